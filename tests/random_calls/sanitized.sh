#!/bin/bash
# Random valid calls on a GPU under a tool of compute-sanitizer, as many processes at a time as there are processors.
#     tests/random_calls/sanitized.sh TOOL [CALLS [SEED]]     PYTHON: the interpreter that has numpy
# The arrays have no guards, so that the tool sees accesses just outside of them. Scratch in $BUILD/random_calls_TOOL.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
tool=$1 calls=${2:-2000} seed=${3:-$((RANDOM << 15 | RANDOM))}
export PYTHON=${PYTHON:-python3} BUILD=${BUILD:-build} GUARD_BYTES=0
# Some ten calls of a process may have many unspecified numbers by chance.
export SOME_NUMBERS=50000
if ! command -v compute-sanitizer >/dev/null; then
    skip "random calls, $tool: there is no compute-sanitizer"
elif ! "$PYTHON" -c 'import numpy' 2>/dev/null; then
    skip "random calls, $tool: $PYTHON has no numpy"
fi
if [ "$skipped" != 0 ]; then
    report "random calls, $tool"
    exit
fi
make -s shared BUILD="$BUILD" || exit 1
out=$BUILD/random_calls_$tool
rm -rf "$out" && mkdir -p "$out" || exit 2
parts=$((4 * $(nproc)))
share=$(((calls + parts - 1) / parts))
parts=$(((calls + share - 1) / share))
echo "seed $seed, $share calls in each of $parts processes"
# part TOOL CALLS SEED FOLDER
part() {
    compute-sanitizer --tool "$1" --error-exitcode 3 --target-processes all \
        "$PYTHON" tests/random_calls/random_calls.py --gpu --jobs 1 --calls "$2" --seed "$3" >"$4/$3.txt" 2>&1
}
export -f part
status=0
seq "$seed" "$share" $((seed + share * (parts - 1))) |
    xargs -P "$(nproc)" -I FIRST bash -c 'part "$1" "$2" FIRST "$0"' "$out" "$tool" "$share" || status=1
cat "$out"/*.txt
exit $status
