# Sourced by the test scripts: runs suites, each with its output in a file, and counts their results.
# shellcheck shell=bash
passed=0 failed=0 skipped=0
mkdir -p "$BUILD/log"

# The counts in a log: its lines 'N passed, N failed, N skipped', or else cmocka's closing lines.
counts() {
    awk '
        /^\[  PASSED  \] [0-9]+ test/ { p += $4 }
        /^\[  FAILED  \] [0-9]+ test/ { f += $4 }
        /^\[  SKIPPED \] [0-9]+ test/ { s += $4 }
        match($0, /[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/) {
            split(substr($0, RSTART), n, " "); direct = 1; pp += n[1]; pf += n[3]; ps += n[5]
        }
        END { if (direct) print pp, pf, ps; else print p + 0, f + 0, s + 0 }' "$1"
}

# ran NAME STATUS SECONDS: counts the results in the suite's log. A suite that fails without saying how often counts as
# one failure, one that succeeds without saying so as one success.
log_of() { echo "$BUILD/log/${1// /-}.txt"; }
ran() {
    local name=$1 log
    log=$(log_of "$name")
    read -r p f s < <(counts "$log")
    [ "$2" = 0 ] || [ "$f" -gt 0 ] || f=1
    [ "$2" != 0 ] || [ $((p + f + s)) -gt 0 ] || p=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-34s %5d passed %3d failed %3d skipped  %4d s\n' "$name" "$p" "$f" "$s" "$3"
    if [ "$f" -gt 0 ]; then
        grep -E 'FAIL|ERROR|error|fault|differ|refus|NOT|wrong' "$log" | head -20
        echo "    (all of it: $log)"
    elif [ "$s" -gt 0 ]; then
        grep -hE "skipped: " "$log" | sort | uniq -c | sed "s/^/    /" | head -5
    fi
}

# suite NAME COMMAND...
suite() {
    local name=$1 status=0 start=$SECONDS
    shift
    "$@" >"$(log_of "$name")" 2>&1 || status=$?
    ran "$name" $status $((SECONDS - start))
}

# beside NAME COMMAND...: a suite beside others, as soon as a processor is free. Suites are reported in the order of
# their calls.
besides=()
beside() {
    local log name=$1
    shift
    log=$(log_of "$name")
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do
        wait -n
        report_ended
    done
    rm -f "$log.status"
    {
        start=$SECONDS status=0
        "$@" >"$log" 2>&1 || status=$?
        echo "$status $((SECONDS - start))" >"$log.new" && mv "$log.new" "$log.status"
    } &
    besides+=("$name")
}
report_ended() {
    local log status seconds
    while [ ${#besides[@]} -gt 0 ]; do
        log=$(log_of "${besides[0]}")
        [ -e "$log.status" ] || return 0
        read -r status seconds <"$log.status"
        ran "${besides[0]}" "$status" "$seconds"
        besides=("${besides[@]:1}")
    done
}
# A suite that was killed has no status: it has failed.
report_all() {
    local name
    wait
    for name in "${besides[@]}"; do
        [ -e "$(log_of "$name").status" ] || echo '137 0' >"$(log_of "$name").status"
    done
    report_ended
}

skip() {
    skipped=$((skipped + 1))
    printf '%-34s skipped: %s\n' "$1" "$2"
}

summary() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ]
}
