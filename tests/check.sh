# Sourced by the test scripts: single checks, and their counts. The output of a command goes to $out/log, where $out is
# the script's scratch folder. The end of this file is shown when the check fails.
# shellcheck shell=bash disable=SC2154
passed=0 failed=0 skipped=0

pass() { passed=$((passed + 1)); }
# fail WHAT [FILE]: of FILE, which says more, the end is shown.
fail() {
    failed=$((failed + 1))
    echo "  FAILED: $1"
    [ $# = 1 ] || tail -n 12 "$2" | cut -c1-300 | sed 's/^/    /'
}
skip() {
    skipped=$((skipped + 1))
    echo "  skipped: $1"
}

# accept NAME COMMAND...: the command succeeds.
accept() {
    local name=$1
    shift
    if "$@" >"$out/log" 2>&1; then
        pass
    else
        fail "$name" "$out/log"
    fi
}

# reject NAME WORD COMMAND...: the command fails, and says why.
reject() {
    local name=$1 word=$2
    shift 2
    if "$@" >"$out/log" 2>&1; then
        fail "accepted: $name"
    elif grep -q -- "$word" "$out/log"; then
        pass
    else
        fail "rejected for another reason: $name" "$out/log"
    fi
}

# exits STATUS WORD COMMAND...: whether the command ends with that status, and prints WORD. Its output is in $out/said,
# too.
exits() {
    local want=$1 word=$2 status=0
    shift 2
    "$@" >"$out/said" 2>&1 || status=$?
    cat "$out/said"
    [ $status = "$want" ] || { echo "exit status $status instead of $want" && return 1; }
    grep -q -- "$word" "$out/said" || { echo "it does not say: $word" && return 1; }
}

# changed FILE SED [RESULT]: the file changed so, as $out/bad or RESULT. A fault that could not be planted, because the
# text has changed, does not count as found.
changed() {
    local result=${3:-$out/bad}
    sed "$2" "$1" >"$result"
    ! cmp -s "$1" "$result" || not_planted "$2"
}
not_planted() {
    fail "not planted: $1"
    false
}

# report NAME: the line that is added up over the scripts, and whether nothing failed.
report() {
    echo "$1: $passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ]
}
