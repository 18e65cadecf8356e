#!/bin/bash
# How much of each kernel the numerics tests execute on the interpreter. Two devices: a large one, where rows spread over
# many blocks, and the smallest there is, where few blocks take them from the queue; and the large one with a single
# multiprocessor, for what takes many rows of a team.   tests/interpreter/coverage.sh
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
    local device=$1 multiprocessors=$2 name=$1_$2
    shift 2
    PTXSIM_DEVICE=$device PTXSIM_SMS=$multiprocessors PTXSIM_COVERAGE=$out/$name.txt PTXSIM_SPEED=1 \
        GPULOSS_REQUIRE_GPU=1 GPULOSS_DRIVER=$build/interpreter/libcuda.so.1 \
        "$build/test_numerics" --small "$@" >"$out/$name.log" 2>&1
}
coverage() { "$build/interpreter/coverage" ptx tests/interpreter/not_executed.txt "$@"; }

numerics sm_50 1 & first=$!
numerics sm_90 4 || fail "numerics on sm_90" "$out/sm_90_4.log"
numerics sm_90 1 --only 'many_*' || fail "many rows on sm_90" "$out/sm_90_1.log"
wait $first || fail "numerics on sm_50" "$out/sm_50_1.log"
grep -h '^ptxsim: .* a second$' "$out"/sm_*.log

# What is short of the truth is not accepted, and the report says why.
cat "$out"/sm_*.txt >"$out/all.txt"
kernel=$(sed -n '1s/ .*//p' "$out/all.txt")
grep -v "^$kernel " "$out/all.txt" >"$out/bad.txt"
reject "a kernel that was not executed" "never executed: $kernel," coverage "$out/bad.txt"
awk '$2 % 16 == 0 { $3 = 0 } { print }' "$out/all.txt" >"$out/bad.txt"
reject "one line in sixteen that was not executed" ' neither: FAILED' coverage "$out/bad.txt"
sed '1s/$/ more/' "$out/all.txt" >"$out/bad.txt"
reject "another text than that of ptx/" "another text was executed: $kernel," coverage "$out/bad.txt"
sed 1d "$out/sm_90_4.txt" >"$out/bad.txt"
reject "an instruction without a line" "do not see the same instructions: $kernel," coverage "$out/bad.txt"

coverage "$out"/sm_*.txt || fail "coverage"
[ $failed = 0 ]
