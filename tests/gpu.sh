#!/bin/bash
# gpu.sh [REPORT]: all tests on this machine's GPU; with REPORT also the benchmark, and everything into that file.
set -u
. tests/count.sh
report=${1:-}
export GPULOSS_REQUIRE_GPU=1

# The parts of the full-size numerics side by side: most of their time goes into the references on the CPU.
numerics() {
    local parts=(shapes_{,options_,divergences_}{f32,f64,f16,bf16} 'same_bits*' 'su*' 'sm*' 'shar*' {a..r}\* {t..z}\*)
    local pids=() bad=0 i ran written
    rm -f "$BUILD"/log/part*.txt
    for i in "${!parts[@]}"; do
        "$BUILD/test_numerics" --only "${parts[i]}" >"$BUILD/log/part$i.txt" 2>&1 &
        pids[i]=$!
    done
    for i in "${!parts[@]}"; do
        wait "${pids[i]}" || bad=1
        cat "$BUILD/log/part$i.txt"
    done
    ran=$(cat "$BUILD"/log/part*.txt | grep -c '^\[ RUN')
    written=$(grep -l 'include "suites.h"' tests/numerics/test_*.c | xargs cat | grep -o 'cmocka_unit_test(' | wc -l)
    [ "$ran" = "$written" ] || { echo "ERROR: $ran tests ran of the $written that are written" && bad=1; }
    return $bad
}

sanitized() { compute-sanitizer --tool "$1" --error-exitcode 3 "$BUILD/test_numerics" --small --skip 'same_bits*'; }

tests() {
    suite 'numerics' numerics
    suite 'instructions' "$BUILD/interpreter/run_instructions" libcuda.so.1 tests/interpreter/tests \
        tests/interpreter/tests/results_sm_90.txt
    for example in 01_smallest 02_digits 03_distill; do
        suite "$example" "$BUILD/$example"
    done
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck initcheck synccheck; do
            suite "compute-sanitizer $tool" sanitized $tool
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
    grep -h -E '^(ce|kl|sparse)\.' "$BUILD"/log/part*.txt | sort -k1,2 -k4nr | awk '!seen[$1 $2]++'
    exit $status
} 2>&1 | tee "$report"
exit "${PIPESTATUS[0]}"
