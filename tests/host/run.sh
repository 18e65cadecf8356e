#!/bin/bash
# Runs host test programs that were built in a folder, and adds up what cmocka says of each.
#     tests/host/run.sh BUILD PROGRAM...
set -u
build=$1 passed=0 failed=0
shift
# The programs run side by side, and are reported one after another.
programs=()
for program; do
    case $program in
    test_block*) programs+=("$program ptx") ;;
    *) programs+=("$program") ;;
    esac
done
# strstr() under a sanitizer checks all bytes of a text at each call. The stand-in copies each text, which the thread sanitizer
# checks once. Huge pages save page faults of its shadow memory.
export TSAN_OPTIONS=intercept_strstr=0:no_huge_pages_for_shadow=0
run() {
    # The other programs call strstr() a few times only.
    [ "$2" != test_host_sanitized ] || export ASAN_OPTIONS=intercept_strstr=0
    # shellcheck disable=SC2086
    "$1"/$2 >"$1/${2%% *}.log" 2>&1
    echo $? >"$1/${2%% *}.status"
}
export -f run
printf '%s\0' "${programs[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c 'run "$0" "{}"' "$build"
for program in "${programs[@]%% *}"; do
    log=$build/$program.log status=$(cat "$build/$program.status")
    cat "$log"
    passed=$((passed + $(awk '/^\[  PASSED  \]/ { n += $4 } END { print n + 0 }' "$log")))
    listed=$(awk '/^\[  FAILED  \] [0-9]+ test\(s\), listed/ { n += $4 } END { print n + 0 }' "$log")
    # A program that dies has not listed what it failed on.
    [ "$status" = 0 ] || [ "$listed" != 0 ] || { listed=1 && echo "  FAILED: $program ends with status $status"; }
    failed=$((failed + listed))
done
echo "host: $passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
