# Sourced by the test scripts: runs suites, each with its output in a file, and counts what they report.
# shellcheck shell=bash
passed=0 failed=0 skipped=0
mkdir -p "$BUILD/log"

# The counts in a log: its plain lines 'N passed, N failed, N skipped', or else cmocka's closing lines.
counts() {
    awk '
        /^\[  PASSED  \] [0-9]+ test/ { p += $4 }
        /^\[  FAILED  \] [0-9]+ test/ { f += $4 }
        /^\[  SKIPPED \] [0-9]+ test/ { s += $4 }
        match($0, /[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/) {
            split(substr($0, RSTART), n, " "); plain = 1; pp += n[1]; pf += n[3]; ps += n[5]
        }
        END { if (plain) print pp, pf, ps; else print p + 0, f + 0, s + 0 }' "$1"
}

# suite NAME COMMAND...: a suite that fails without saying how often counts as one failure, one that succeeds without
# saying so as one success.
suite() {
    local name=$1 log="$BUILD/log/${1// /-}.txt" status=0 start=$SECONDS
    shift
    "$@" >"$log" 2>&1 || status=$?
    read -r p f s < <(counts "$log")
    [ $status = 0 ] || [ "$f" -gt 0 ] || f=1
    [ $status != 0 ] || [ $((p + f + s)) -gt 0 ] || p=1
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-34s %5d passed %3d failed %3d skipped  %4d s\n' "$name" "$p" "$f" "$s" $((SECONDS - start))
    if [ "$f" -gt 0 ]; then
        grep -E 'FAIL|ERROR|error|fault|differ|refus|NOT|wrong' "$log" | head -20
        echo "    (all of it: $log)"
    elif [ "$s" -gt 0 ]; then
        grep -hE "skipped: " "$log" | sort | uniq -c | sed "s/^/    /" | head -5
    fi
}

skip() {
    skipped=$((skipped + 1))
    printf '%-34s skipped: %s\n' "$1" "$2"
}

summary() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ]
}
