#!/bin/bash
# run.sh [--all] [--only NAME,...] [--bytes N] [--most N] [--rest MS] [--runs N] [--as CC] [--peers] [LOSS]: runs the
# benchmark, with PyTorch beside it if it is installed. Then measures the cost of a call on the host, over $CALLS calls,
# and the time to the first loss. The raw results go to $BUILD/bench.csv.
set -u
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    bench() { python3 tests/bench/peers.py "$BUILD/libbench.so" tests/bench/ceilings.ptx "$@"; }
else
    echo 'no peers: PyTorch is not installed here, or finds no GPU'
    bench() {
        local argument arguments=()
        for argument; do
            [ "$argument" = --peers ] || arguments+=("$argument")
        done
        "$BUILD/bench" tests/bench/ceilings.ptx "${arguments[@]}"
    }
fi
status=0
bench --csv "$BUILD/bench.csv" "$@" || status=1
echo
bench --calls "${CALLS:-2000}" || status=1
echo
bash tests/bench/first_loss.sh || status=1
exit $status
