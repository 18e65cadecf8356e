#!/bin/bash
# Descs that libFuzzer chooses, against the rules that gpuloss.h documents (fuzz.c): first the descs of the corpus, then
# others.
#     tests/hostile/fuzz.sh [RUNS [SEED]]
# Scratch, and the desc that fails, in $BUILD/fuzz. A desc is repeated with $BUILD/fuzz/fuzz FILE.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
. tests/hostile/build_fuzz.sh
runs=${1:-100000} seed=${2:-1}
out=${BUILD:-build}/fuzz
rm -rf "$out" && mkdir -p "$out" || exit 2
why=$(why_no_fuzzer)
if [ -n "$why" ]; then
    skip "fuzz: $why"
    report fuzz
    exit
fi
builds() { prepare_fuzz gpuloss.h "$out" && build_fuzz "$out"; }
accept "fuzz.c compiles" builds
accept "the corpus" run_fuzz "$out" -runs=0
accept "$runs runs with seed $seed" run_fuzz "$out" -runs="$runs" -seed="$seed"
cp "$out/log" "$out/said"
accept "half of the calls keep to the rules" half_are_accepted "$out/said"
cat "$out/log"
report fuzz
