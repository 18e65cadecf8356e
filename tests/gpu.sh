#!/bin/bash
# gpu.sh [REPORT]: all tests on this machine's GPU; with REPORT also the benchmark, and everything into that file.
set -u
. tests/count.sh
report=${1:-}
export GPULOSS_REQUIRE_GPU=1 BUILD

# each NAME LEFT_OUT COMMAND...: the command with --only for every test whose name does not match LEFT_OUT. The tests
# use all GPUs, and as many processes as there are processors, because the references on the CPU take most of their
# time. Tests that wait for the GPU thousands of times come first, one at a time. Then come the longest tests.
each() {
    local name=$1 names bad=0 ran written gpus
    gpus=$(nvidia-smi -L | wc -l)
    [ "$gpus" -gt 0 ] || gpus=1
    names=$(grep -l 'include "suites.h"' tests/numerics/test_*.c | xargs cat |
        grep -o 'cmocka_unit_test([a-z0-9_]*' | cut -d'(' -f2 | grep -vE "$2")
    written=$(wc -l <<<"$names")
    names=$(sort -u <<<"$names")
    shift 2
    rm -f "$BUILD"/log/"$name"_*.txt
    at_a_time() {
        local jobs=$1
        shift
        GPUS=$gpus xargs -r -P "$jobs" -I TEST sh -c \
            'CUDA_VISIBLE_DEVICES=$(($$ % GPUS)) "$@" --only TEST >"$0"_TEST.txt 2>&1' "$BUILD/log/$name" "$@" || bad=1
    }
    at_a_time 1 "$@" < <(grep '^same_bits' <<<"$names")
    at_a_time "$(nproc)" "$@" < <(
        grep -E '^(many|more|mixed)_' <<<"$names"
        grep -vE '^((many|more|mixed)_|same_bits)' <<<"$names"
    )
    cat "$BUILD"/log/"$name"_*.txt
    ran=$(cat "$BUILD"/log/"$name"_*.txt | grep -c '^\[ RUN')
    [ "$ran" = "$written" ] || { echo "ERROR: $ran tests ran of the $written that are written" && bad=1; }
    return $bad
}

numerics() { each numerics '^$' "$BUILD/test_numerics"; }
# A block of row_cluster has 195 barriers, which synccheck does not always see by itself.
sanitized() {
    each "$1" '^same_bits' compute-sanitizer --tool "$1" --num-cuda-barriers 256 --error-exitcode 3 \
        "$BUILD/test_numerics" --small
}

tests() {
    suite 'numerics' numerics
    suite 'driver' "$BUILD/test_driver"
    suite 'instructions' "$BUILD/interpreter/run_instructions" libcuda.so.1 tests/interpreter/tests \
        tests/interpreter/tests/results_sm_90.txt
    for example in 01_smallest 02_digits 03_distill 07_chunks gpuloss_info; do
        suite "$example" "$BUILD/$example"
    done
    suite 'examples of C++ and CUDA' bash tests/examples.sh
    suite 'PyTorch' bash tests/pytorch/run.sh
    suite 'random calls' bash tests/random_calls/run.sh --gpu
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck initcheck synccheck; do
            suite "compute-sanitizer $tool" sanitized $tool
            suite "random calls, $tool" bash tests/random_calls/sanitized.sh $tool
        done
    else
        skip 'compute-sanitizer' 'it is not installed'
    fi
    summary
}

if [ -z "$report" ]; then
    tests
    exit
fi
{
    echo "sha256 of gpuloss.h: $(sha256sum gpuloss.h | cut -c1-64)"
    echo "device and driver: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader)"
    tests
    status=$?
    echo
    bash tests/bench/run.sh || status=1
    echo
    echo 'worst errors of the numerics tests, as a fraction of the derived bound, and of gradients in units in the last place'
    grep -h -E '^(ce|kl|sparse)\.' "$BUILD"/log/numerics_*.txt | sort -k1,2 -k4nr | awk '!seen[$1 $2]++'
    exit $status
} 2>&1 | tee "$report"
exit "${PIPESTATUS[0]}"
