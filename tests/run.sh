#!/bin/bash
# All tests that a machine without a GPU can run, and the numerics on the GPU where there is one.
set -u
. tests/count.sh
interpreter=$(realpath "$BUILD/interpreter")
driver=$interpreter/libcuda.so.1

on_interpreter() { env LD_LIBRARY_PATH="$interpreter" "$@"; }

# Each device runs other images, schedules and limits: all tests on sm_120, and those of every option and type on sm_70,
# which has the images of sm_50. They run beside the coverage, which is all tests on sm_50 and sm_90, since each takes one
# processor, and are reported afterwards.
numerics_on() {
    local device=$1
    shift
    PTXSIM_DEVICE=$device GPULOSS_DRIVER=$driver GPULOSS_REQUIRE_GPU=1 "$BUILD/test_numerics" --small "$@" \
        >"$BUILD/log/numerics_$device.out" 2>&1
    echo $? >"$BUILD/log/numerics_$device.status"
}
numerics_of() { cat "$BUILD/log/numerics_$1.out" && return "$(cat "$BUILD/log/numerics_$1.status")"; }

without_driver() {
    local example said status bad=0
    for example in 01_smallest 02_digits 03_distill; do
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
    git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs -P "$(nproc)" -n 20 clang-format --dry-run -Werror
}

suite 'compile' bash tests/compile/run.sh
suite 'host' make -s -f tests/host/host.mk run_host BUILD="$BUILD" CC="$CC"
suite 'negative cases' bash tests/bad/run.sh
suite 'references' "$BUILD/test_reference"
suite 'comparison helpers' "$BUILD/test_harness"
suite 'interpreter' make -s -f tests/interpreter/interpreter.mk test-interpreter BUILD="$BUILD" CC="$CC"
{ numerics_on sm_120 && numerics_on sm_70 --only 'every_*'; } &
beside=$!
suite 'coverage' make -s -f tests/interpreter/interpreter.mk interpreter-coverage BUILD="$BUILD" CC="$CC"
grep -E '^coverage: |a second$' "$BUILD/log/coverage.txt" | sed 's/^/    /'
wait $beside
suite 'numerics interpreted sm_120' numerics_of sm_120
suite 'numerics interpreted sm_70' numerics_of sm_70
suite 'mutations of the kernels' make -s -f tests/interpreter/interpreter.mk interpreter-mutations BUILD="$BUILD" CC="$CC"
suite '01 interpreted' on_interpreter "$BUILD/01_smallest"
suite '02 interpreted' on_interpreter "$BUILD/02_digits"
suite '03 interpreted' on_interpreter "$BUILD/03_distill"
suite 'benchmark interpreted' make -s test-bench BUILD="$BUILD" CC="$CC"
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
summary
