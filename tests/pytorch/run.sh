#!/bin/bash
# Tests of examples/pytorch: on CUDA tensors where torch has a GPU, else on CPU tensors and the PTX interpreter.
#     tests/pytorch/run.sh [NAME...]     NAME: as for main.py; PYTHON: the interpreter that has torch
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
python=${PYTHON:-python3}
export BUILD=${BUILD:-build}
if ! command -v "$python" >/dev/null; then
    skip "PyTorch: there is no $python"
elif ! version=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null); then
    skip "PyTorch: $python has no torch"
elif [ "$(printf '2.4\n%s\n' "$version" | sort -V | head -n 1)" != 2.4 ]; then
    skip "PyTorch: 2.4 or newer is needed (got $version)"
fi
if [ "$skipped" != 0 ]; then
    report pytorch
    exit
fi
make -s shared "$BUILD/interpreter/libcuda.so.1" BUILD="$BUILD" || exit 1
BUILD=$(realpath "$BUILD")
exec "$python" tests/pytorch/main.py "$@"
