#!/bin/bash
# Tests that a machine without a GPU can run, and the numerics on the GPU where there is one.
#     tests/run.sh usual|deep     deep: what takes longer
set -u
. tests/count.sh
interpreter=$(realpath "$BUILD/interpreter")
driver=$interpreter/libcuda.so.1

on_interpreter() { env LD_LIBRARY_PATH="$interpreter" "$@"; }

# What takes one processor runs beside another suite, and is reported afterwards.
aside() {
    local name=$1
    shift
    "$@" >"$BUILD/log/$name.out" 2>&1
    echo $? >"$BUILD/log/$name.status"
}
result_of() {
    local name bad=0
    for name in "$@"; do
        cat "$BUILD/log/$name.out"
        [ "$(cat "$BUILD/log/$name.status")" = 0 ] || bad=1
    done
    return $bad
}

# Each device runs other images, schedules and limits; the seeds shuffle the order of blocks and warps. The coverage runs
# everything on sm_50, and shuffled on sm_90. sm_70 has schedules and texts that one of them has: some tests will do.
numerics_on() {
    local name=$1 device=$2 seed=$3
    shift 3
    aside "$name" env PTXSIM_DEVICE="$device" PTXSIM_SEED="$seed" GPULOSS_DRIVER="$driver" GPULOSS_REQUIRE_GPU=1 \
        "$BUILD/test_numerics" --small "$@"
}

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

usual() {
    local part
    # About half of the tests: deep() has the others. Most of them run beside the other suites.
    for part in 1 2 3; do
        numerics_on sm_120_$part sm_120 0 --skip '*rows*' --part $part/4
    done &
    suite 'README' bash tests/readme.sh
    suite 'installation' bash tests/install.sh
    suite 'compile' bash tests/compile/run.sh
    suite 'host' make -s -f tests/host/host.mk run_host BUILD="$BUILD" CC="$CC"
    suite 'references' "$BUILD/test_reference"
    suite 'comparison helpers' "$BUILD/test_harness"
    suite 'interpreter' make -s -f tests/interpreter/interpreter.mk test-interpreter BUILD="$BUILD" CC="$CC"
    suite '01 interpreted' on_interpreter "$BUILD/01_smallest"
    suite '02 interpreted' on_interpreter "$BUILD/02_digits"
    suite '03 interpreted' on_interpreter "$BUILD/03_distill"
    suite '07 interpreted' on_interpreter "$BUILD/07_chunks"
    suite 'gpuloss_info interpreted' on_interpreter "$BUILD/gpuloss_info"
    if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ] || [ -e /dev/nvhost-gpu ]; then
        suite 'numerics on the GPU' env GPULOSS_REQUIRE_GPU=1 "$BUILD/test_numerics" --small
    else
        skip 'numerics on the GPU' 'this machine has no NVIDIA GPU (none of its device files)'
        suite 'examples without a driver' without_driver
    fi
    if command -v clang-format >/dev/null; then
        suite 'formatting' formatted
    else
        skip 'formatting' 'clang-format is not installed'
    fi
    numerics_on sm_120_4 sm_120 0 --skip '*rows*' --part 4/4
    wait
    suite 'numerics interpreted sm_120' result_of sm_120_{1,2,3,4}
}

deep() {
    {
        numerics_on shuffled sm_90 1 --only '*every*'
        numerics_on sm_70 sm_70 0 --only '*every*'
        numerics_on sm_120_rows sm_120 0 --only '*rows*'
        aside sanitized make -s -f tests/host/host.mk run_host_sanitized BUILD="$BUILD" CC="$CC"
        aside info on_interpreter "$BUILD/gpuloss_info" --bench 1
        aside bench make -s test-bench BUILD="$BUILD" CC="$CC"
        aside platforms bash tests/platforms/run.sh
        aside languages bash tests/languages/run.sh
        aside examples bash tests/examples.sh
        aside model_diff bash tests/model_diff/run.sh
        aside pytorch bash tests/pytorch/run.sh
        aside fuzz bash tests/hostile/fuzz.sh
        aside random_calls bash tests/random_calls/run.sh --seed 1 # the same ones each time; without it, others
    } &
    suite 'coverage' make -s -f tests/interpreter/interpreter.mk interpreter-coverage BUILD="$BUILD" CC="$CC"
    grep -E '^coverage: |a second$' "$BUILD/log/coverage.txt" | sed 's/^/    /'
    suite 'hostile programs' bash tests/hostile/run.sh
    suite 'negative cases' bash tests/bad/run.sh
    suite 'negative cases of languages' bash tests/bad/languages.sh
    suite 'negative cases of examples' bash tests/bad/examples.sh
    suite 'negative cases of model_diff' bash tests/bad/model_diff.sh
    suite 'negative cases of PyTorch' bash tests/bad/pytorch.sh
    suite 'negative cases of random calls' bash tests/bad/random_calls.sh
    suite 'negative cases of fuzz' bash tests/bad/fuzz.sh
    suite 'ptx is current' bash tests/ptx.sh
    suite 'mutations of the kernels' make -s -f tests/interpreter/interpreter.mk interpreter-mutations BUILD="$BUILD" CC="$CC"
    wait
    suite 'numerics interpreted, shuffled, some' result_of shuffled
    suite 'numerics interpreted sm_70, some' result_of sm_70
    suite 'numerics interpreted sm_120, rows' result_of sm_120_rows
    suite 'host, sanitized' result_of sanitized
    suite 'gpuloss_info --bench interpreted' result_of info
    suite 'benchmark interpreted' result_of bench
    suite 'other systems' result_of platforms
    suite 'other languages' result_of languages
    suite 'examples of C++ and CUDA' result_of examples
    suite 'model_diff' result_of model_diff
    suite 'PyTorch' result_of pytorch
    suite 'random calls' result_of random_calls
    suite 'fuzz' result_of fuzz
}

"$1"
summary
