#!/bin/bash
# Tests that a machine without a GPU can run, and the numerics on the GPU where there is one.
#     tests/run.sh usual|deep|release     deep: longer tests; release: the longest tests
set -u
. tests/count.sh
interpreter=$(realpath "$BUILD/interpreter")
driver=$interpreter/libcuda.so.1

on_interpreter() { env LD_LIBRARY_PATH="$interpreter" "$@"; }

# numerics_on DEVICE SEED WHICH...: each device runs other images, schedules and limits. The seeds shuffle the order of blocks
# and warps.
numerics_on() {
    local device=$1 seed=$2
    shift 2
    env PTXSIM_DEVICE="$device" PTXSIM_SEED="$seed" GPULOSS_DRIVER="$driver" GPULOSS_REQUIRE_GPU=1 \
        "$BUILD/${numerics:-test_numerics}" --small "$@"
}
sanitized_numerics_on() { numerics=test_numerics_sanitized numerics_on "$@"; }

# Runs the numerics with the full documented errors of approximate exponentials and logarithms.
numerics_with_approx_errors() { PTXSIM_APPROX=1 numerics_on sm_90 0; }

without_driver() {
    local example said status bad=0
    for example in 01_smallest 02_digits 03_distill 07_chunks gpuloss_info; do
        said=$(env -u LD_LIBRARY_PATH "$BUILD/$example" 2>&1)
        status=$?
        echo "$said"
        [ $status = 2 ] || { echo "ERROR: $example: exit status $status instead of 2" && bad=1; }
        grep -q 'NVIDIA driver library could not be loaded' <<<"$said" ||
            { echo "ERROR: $example does not say what is missing" && bad=1; }
    done
    return $bad
}

formatted() {
    git ls-files '*.c' '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -P "$(nproc)" -n 20 clang-format --dry-run -Werror
}

of_host() { make -s -f tests/host/host.mk "$1" BUILD="$BUILD" CC="$CC"; }
of_interpreter() { make -s -f tests/interpreter/interpreter.mk "$1" BUILD="$BUILD" CC="$CC"; }

# Three eighths of the numerics: release() has the others on sm_120.
usual() {
    local part
    beside 'numerics on sm_120, 1 of 8' numerics_on sm_120 0 --skip '*rows*' --part 1/8
    beside 'README' bash tests/readme.sh
    beside 'installation' bash tests/install.sh
    beside 'compile' bash tests/compile/run.sh
    beside 'host' of_host run_host
    beside 'references' "$BUILD/test_reference"
    beside 'comparison helpers' "$BUILD/test_harness"
    beside 'interpreter' of_interpreter test-interpreter
    beside '01 interpreted' on_interpreter "$BUILD/01_smallest"
    beside '02 interpreted' on_interpreter "$BUILD/02_digits"
    beside '03 interpreted' on_interpreter "$BUILD/03_distill"
    beside '07 interpreted' on_interpreter "$BUILD/07_chunks"
    beside 'gpuloss_info interpreted' on_interpreter "$BUILD/gpuloss_info"
    for part in 2 3; do
        beside "numerics on sm_120, $part of 8" numerics_on sm_120 0 --skip '*rows*' --part $part/8
    done
    if command -v clang-format >/dev/null; then
        beside 'formatting' formatted
    else
        skip 'formatting' 'clang-format is not installed'
    fi
    report_all
    if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || [ -e /dev/nvhost-gpu ]; then
        suite 'numerics on the GPU' env GPULOSS_REQUIRE_GPU=1 "$BUILD/test_numerics" --small
    else
        skip 'numerics on the GPU' 'this machine has no NVIDIA GPU (none of its device files)'
        suite 'examples without a driver' without_driver
    fi
}

# All numerics on sm_90, a sixteenth of them with sanitizers, other systems and languages, and calls at random.
# The longest suites come first.
deep() {
    local part
    beside 'host, sanitized' of_host run_host_sanitized
    beside 'sanitized numerics on sm_90, 1 of 16' sanitized_numerics_on sm_90 1 --part 1/16
    beside 'numerics on sm_90, 9 of 16' numerics_on sm_90 1 --part 9/16
    beside 'numerics on sm_90, 5 of 8' numerics_on sm_90 1 --part 5/8
    for part in 2 3 4; do
        beside "numerics on sm_90, $part of 4" numerics_on sm_90 1 --part $part/4
    done
    beside 'benchmark interpreted' make -s test-bench BUILD="$BUILD" CC="$CC"
    beside 'PyTorch' bash tests/pytorch/run.sh
    beside 'driver interpreted' env GPULOSS_DRIVER="$driver" GPULOSS_REQUIRE_GPU=1 "$BUILD/test_driver" --small
    beside 'hostile programs, some options' env QUICK=1 bash tests/hostile/run.sh
    beside 'fuzz, 30000 runs' bash tests/hostile/fuzz.sh 30000
    beside 'random calls' bash tests/random_calls/run.sh --seed 1 # the same ones each time; without it, others
    beside 'gpuloss_info --bench interpreted' on_interpreter "$BUILD/gpuloss_info" --bench 1
    beside 'other systems' bash tests/platforms/run.sh
    beside 'other languages' bash tests/languages/run.sh
    beside 'examples of C++ and CUDA' bash tests/examples.sh
    beside 'model_diff' bash tests/model_diff/run.sh
    report_all
}

# Before a release: planted faults for every check, coverage, and numerics on more devices. The coverage runs all numerics
# on sm_50, and shuffled on sm_90. sm_70 has schedules and texts that one of them has: some tests will do.
release() {
    local part
    suite 'coverage' of_interpreter interpreter-coverage
    grep -E '^coverage: |a second$' "$(log_of coverage)" | sed 's/^/    /'
    suite 'ptx is current' bash tests/ptx.sh
    suite 'mutations of the kernels' of_interpreter interpreter-mutations
    beside 'negative cases' bash tests/bad/run.sh
    beside 'negative cases of driver' bash tests/bad/driver.sh
    beside 'negative cases of fuzz' bash tests/bad/fuzz.sh
    beside 'negative cases of languages' bash tests/bad/languages.sh
    beside 'negative cases of examples' bash tests/bad/examples.sh
    beside 'negative cases of model_diff' bash tests/bad/model_diff.sh
    beside 'negative cases of PyTorch' bash tests/bad/pytorch.sh
    beside 'negative cases of random calls' bash tests/bad/random_calls.sh
    beside 'numerics on sm_120, rows' numerics_on sm_120 0 --only '*rows*'
    for part in 4 5 6 7 8; do
        beside "numerics on sm_120, $part of 8" numerics_on sm_120 0 --skip '*rows*' --part $part/8
    done
    for part in $(seq 2 16); do
        beside "sanitized numerics on sm_90, $part of 16" sanitized_numerics_on sm_90 1 --part $part/16
    done
    beside 'hostile programs' bash tests/hostile/run.sh
    beside 'fuzz' bash tests/hostile/fuzz.sh
    beside 'numerics on sm_70, some' numerics_on sm_70 0 --only '*every*'
    beside 'numerics with approx errors' numerics_with_approx_errors
    report_all
}

"$1"
summary
