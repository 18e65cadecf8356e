#!/bin/bash
# Random valid calls of the shared library against a reference in numpy: on the PTX interpreter, or with --gpu on a GPU.
#     tests/random_calls/run.sh [ARGUMENTS...]     as for random_calls.py; PYTHON: the interpreter that has numpy
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
python=${PYTHON:-python3}
export BUILD=${BUILD:-build}
if ! command -v "$python" >/dev/null; then
    skip "random calls: there is no $python"
elif ! "$python" -c 'import numpy' 2>/dev/null; then
    skip "random calls: $python has no numpy"
fi
if [ "$skipped" != 0 ]; then
    report 'random calls'
    exit
fi
interpreter=$BUILD/interpreter/libcuda.so.1
case " $* " in
*' --gpu '*) interpreter= ;;
esac
# shellcheck disable=SC2086
make -s shared $interpreter BUILD="$BUILD" || exit 1
BUILD=$(realpath "$BUILD")
exec "$python" tests/random_calls/random_calls.py "$@"
