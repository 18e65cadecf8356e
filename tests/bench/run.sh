#!/bin/bash
# run.sh [--all] [--bytes N]: the benchmark, with PyTorch beside it where that is installed, else alone.
set -e
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    python3 tests/bench/peers.py "$BUILD/libbench.so" tests/bench/ceilings.ptx "$@" "$BUILD/bench.csv"
else
    echo 'PyTorch is not installed here: no peers'
    "$BUILD/bench" tests/bench/ceilings.ptx "$@"
fi
