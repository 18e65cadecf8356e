#!/bin/bash
# The library on other systems. The examples, compiled for them and with the PTX interpreter as the driver, print the
# same as here. Without a driver they name what is missing. Windows by MinGW and Wine; 64-bit Arm by GCC and QEMU.
#   tests/platforms/run.sh
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
. tests/compile/strict.sh
build=${BUILD:-build}
out=$(realpath "$build")/platforms
rm -rf "$out" && mkdir -p "$out/windows" "$out/arm/driver" || exit 2
examples='01_smallest 02_digits 03_distill'
interpreter=$(printf '%s\n' tests/interpreter/*.c | grep -v '/coverage\.c$')
as_interpreter='-std=c11 -D_GNU_SOURCE -O2 -ffp-contract=off -shared'

# The commands of each system: to compile, and to run a program without a driver and with one.
# shellcheck disable=SC2086
{
    windows_cc() { x86_64-w64-mingw32-gcc -static "$@"; }
    windows_interpreter() {
        windows_cc $as_interpreter -DPTXSIM_NO_CLONES -Itests/platforms/windows $interpreter -o "$out/nvcuda.dll" -lpthread
    }
    windows_alone() { WINEPREFIX=$out/wine WINEDEBUG=-all wine "$1.exe"; }
    windows_driven() { cp "$out/nvcuda.dll" "$out/wine/drive_c/windows/system32" && windows_alone "$@"; }

    arm_cc() { aarch64-linux-gnu-gcc "$@" -ldl -lm; }
    arm_interpreter() { arm_cc $as_interpreter -fPIC $interpreter -o "$out/arm/driver/libcuda.so.1" -lpthread; }
    arm_alone() { qemu-aarch64 -L /usr/aarch64-linux-gnu "$@"; }
    arm_driven() { qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$out/arm/driver" "$@"; }
}

# same SYSTEM EXAMPLE [FILE]: its output there equals the output here, or the file.
same() {
    LD_LIBRARY_PATH=$build/interpreter "$build/$2" >"$out/here" || return
    "$1_driven" "$out/$1/$2" | tr -d '\r' >"$out/there"
    [ "${PIPESTATUS[0]}" = 0 ] && diff "${3:-$out/here}" "$out/there"
}
# without_driver COMMAND...: it ends as a program does that finds no driver.
without_driver() {
    "$@" 2>&1 | tee "$out/there"
    [ "${PIPESTATUS[0]}" = 2 ] && grep -q 'NVIDIA driver library could not be loaded' "$out/there"
}

on() {
    local system=$1 example
    for example in $examples; do
        # shellcheck disable=SC2086
        accept "$system: $example compiles" "${system}_cc" -std=c99 $strict_c -O2 "examples/$example.c" \
            -o "$out/$system/$example"
    done
    accept "$system: a program compiles" "${system}_cc" -DGPULOSS_IMPLEMENTATION tests/compile/program.c \
        -o "$out/$system/program"
    accept "$system: the interpreter compiles" "${system}_interpreter"
    accept "$system: a driver that is not where it was said" "${system}_alone" "$out/$system/program"
    for example in $examples; do
        accept "$system: $example without a driver" without_driver "${system}_alone" "$out/$system/$example"
    done
    for example in $examples; do
        accept "$system: $example" same "$system" "$example"
    done
    reject "$system: another output" "1.845990" same "$system" 01_smallest "$out/other"
    reject "$system: a driver that is there" "1.845991" without_driver "${system}_driven" "$out/$system/01_smallest"
}

echo 'loss 1.845990' >"$out/other"
if command -v x86_64-w64-mingw32-gcc >/dev/null && command -v wineboot >/dev/null; then
    on windows
    WINEPREFIX=$out/wine wineserver -k
    rm -rf "$out/wine"
else
    skip 'Windows: MinGW (x86_64-w64-mingw32-gcc) and Wine are not both installed'
fi
if command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null; then
    on arm
else
    skip '64-bit Arm: aarch64-linux-gnu-gcc and qemu-aarch64 are not both installed'
fi
report platforms
