#!/bin/bash
# Runs the host test programs that were built in a folder, and adds up what cmocka says of each.
#     tests/host/run.sh BUILD
set -u
build=$1 passed=0 failed=0
run() {
    local status
    "$@" 2>&1 | tee "$build/host.log"
    status=${PIPESTATUS[0]}
    passed=$((passed + $(awk '/^\[  PASSED  \]/ { n += $4 } END { print n + 0 }' "$build/host.log")))
    local listed
    listed=$(awk '/^\[  FAILED  \] [0-9]+ test\(s\), listed/ { n += $4 } END { print n + 0 }' "$build/host.log")
    # A program that dies has not listed what it failed on.
    [ "$status" = 0 ] || [ "$listed" != 0 ] || { listed=1 && echo "  FAILED: $1 ends with status $status"; }
    failed=$((failed + listed))
}
run "$build/test_host"
run "$build/test_host_sanitized"
run "$build/test_threads"
run "$build/test_left_out"
run "$build/test_block" ptx
echo "host: $passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
