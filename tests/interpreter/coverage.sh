#!/bin/bash
# Reports how much of each kernel the numerics tests execute on the interpreter. The first device is large, and rows
# spread over many blocks. The second is the smallest one, where few blocks take rows from the queue. The third is the
# large one with a single multiprocessor, for code that needs many rows of a team. Tiles also run on a GPU without
# asynchronous copies, and rows on one without clusters. On the large ones the order of blocks and warps is shuffled.
#     tests/interpreter/coverage.sh
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
build=${BUILD:-build}
case $build in /*) ;; *) build=$PWD/$build ;; esac
out=$build/coverage
rm -rf "$out" && mkdir -p "$out" || exit 2
make -s -f tests/interpreter/interpreter.mk BUILD="$build" interpreter "$build/interpreter/coverage" &&
    make -s -f tests/numerics/numerics.mk BUILD="$build" "$build/test_numerics" || exit 2

numerics() {
    local name=$1 device=$2 multiprocessors=$3 seed=$4
    shift 4
    PTXSIM_DEVICE=$device PTXSIM_SMS=$multiprocessors PTXSIM_SEED=$seed PTXSIM_COVERAGE=$out/$name.txt PTXSIM_SPEED=1 \
        GPULOSS_REQUIRE_GPU=1 GPULOSS_DRIVER=$build/interpreter/libcuda.so.1 \
        "$build/test_numerics" --small "$@" >"$out/$name.log" 2>&1 &&
        sed -i '/^gpuloss_/!d' "$out/$name.txt" # without other kernels that the tests launch
}
coverage() { "$build/interpreter/coverage" ptx tests/interpreter/not_executed.txt "$@"; }

bits='same_bits*'
numerics sm_50_1 sm_50 1 0 --skip "$bits" & first=$!
numerics sm_90_4 sm_90 4 1 --skip "$bits" || fail "numerics on sm_90" "$out/sm_90_4.log"
numerics sm_70_4 sm_70 4 1 --only '*_of_tiles' || fail "tiles on sm_70" "$out/sm_70_4.log"
numerics sm_80_4 sm_80 4 1 --only '*_of_longer_rows' || fail "rows on sm_80" "$out/sm_80_4.log"
numerics sm_90_1 sm_90 1 1 --only 'many_*' || fail "many rows on sm_90" "$out/sm_90_1.log"
numerics sm_90_bits sm_90 4 1 --only "$bits" || fail "same bits on sm_90" "$out/sm_90_bits.log"
wait $first || fail "numerics on sm_50" "$out/sm_50_1.log"
numerics sm_50_bits sm_50 1 0 --only "$bits" || fail "same bits on sm_50" "$out/sm_50_bits.log"
grep -h '^ptxsim: .* a second$' "$out"/sm_*.log

# Incomplete records are not accepted, and the report names the reason.
cat "$out"/sm_*.txt >"$out/all.txt"
kernel=$(sed -n '1s/ .*//p' "$out/all.txt")
grep -v "^$kernel " "$out/all.txt" >"$out/bad.txt"
reject "a kernel that was not executed" "never executed: $kernel," coverage "$out/bad.txt"
awk '$2 % 16 == 0 { $3 = 0 } { print }' "$out/all.txt" >"$out/bad.txt"
reject "one line in sixteen that was not executed" ' neither: FAILED' coverage "$out/bad.txt"
sed '1s/$/ more/' "$out/all.txt" >"$out/bad.txt"
reject "another text than that of ptx/" "another text was executed: $kernel," coverage "$out/bad.txt"
large=$out/sm_90_4.txt
sed 1d "$large" >"$out/bad.txt"
reject "an instruction without a line" "do not see the same instructions: $(sed -n '1s/ .*//p' "$large")," \
    coverage "$out/bad.txt"

# reached FILE...: each kernel there is was executed.
reached() {
    ! comm -23 <(sed -n 's/^\.visible \.entry \([a-z0-9_]*\).*/\1/p' ptx/*.ptx | sort -u) \
        <(awk '$3 { print $1 }' "$@" | sort -u) | sed 's/^/without a test of same bits: /' | grep .
}
accept "kernels with a test of same bits" reached "$out"/sm_*_bits.txt
grep -hv "^$kernel " "$out"/sm_*_bits.txt >"$out/bad.txt"
reject "a kernel without a test of same bits" "without a test of same bits: $kernel\$" reached "$out/bad.txt"

coverage "$out"/sm_*.txt || fail "coverage"
[ $failed = 0 ]
