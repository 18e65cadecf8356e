#!/bin/bash
# Plants one fault at a time in a copy of examples/pytorch, and sees a test of tests/pytorch fail. Each test named must
# also pass without a fault.   tests/bad/pytorch.sh
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
export BUILD=${BUILD:-build} python=${PYTHON:-python3}
out=$BUILD/bad_pytorch
rm -rf "$out" && mkdir -p "$out" || exit 2
if ! "$python" -c 'import torch' 2>/dev/null; then
    skip "PyTorch: $python has no torch"
    report "bad pytorch"
    exit
fi
make -s shared "$BUILD/interpreter/libcuda.so.1" BUILD="$BUILD" || exit 2
BUILD=$(realpath "$BUILD") out=$(realpath "$out")
export GPULOSS_LIBRARY=$BUILD/libgpuloss.so
grep -v '^#' tests/bad/pytorch_mutations >"$out/mutations"

# mutant FOLDER FILE TEST SED: runs the test on a copy in which the file is changed so.
mutant() {
    cp -r examples/pytorch "$1" && sed -i "$4" "$1/$2" || return
    # shellcheck disable=SC2154
    GPULOSS_PYTORCH=$1 timeout 300 "$python" tests/pytorch/main.py "$3" >"$1.log" 2>&1
    echo $? >"$1.status"
}
export -f mutant
awk -F '|' -v out="$out" '{
    sed = $0
    sub(/^[^|]*\|[^|]*\|[^|]*\|/, "", sed)
    printf "%s/mutant%d%c%s%c%s%c%s%c", out, NR, 0, $2, 0, $3, 0, sed, 0
}' "$out/mutations" | xargs -0 -n 4 -P "$(nproc)" bash -c 'mutant "$0" "$1" "$2" "$3"'
n=0
while IFS='|' read -r name file test _; do
    n=$((n + 1))
    if cmp -s "examples/pytorch/$file" "$out/mutant$n/$file"; then
        not_planted "$name"
    elif grep -q "  skipped: .*${test##*.}" "$out/mutant$n.log"; then
        skip "$name: $test was skipped"
    elif grep -q "  FAILED: $test\$" "$out/mutant$n.log"; then
        pass
    elif [ "$(cat "$out/mutant$n.status")" = 0 ]; then
        fail "accepted by $test: $name"
    else
        fail "does not run: $name" "$out/mutant$n.log"
    fi
done <"$out/mutations"
# kernel NAME KERNEL TEST SED: the same of a fault in a kernel's PTX, which the interpreter plants.
kernel() {
    mkdir -p "$out/faults" && changed "ptx/$2.ptx" "$4" "$out/faulty.ptx" || return
    paste -d '\n' "ptx/$2.ptx" "$out/faulty.ptx" |
        awk 'NR % 2 { sound = $0; next } sound != $0 { print NR / 2; print sound; print }' >"$out/faults/gpuloss_$2.fault"
    reject "$1" "  FAILED: $3\$" env PTXSIM_FAULT="$out/faults" "$python" tests/pytorch/main.py "$3"
    rm -r "$out/faults"
}
accuracy=test_accuracy.Accuracy.test_forward_kl_of_logits
kernel "distant packed pairs lose digits" kl_div_logits_packed_f32 $accuracy 's/, 0f41000000;/, 0f7F800000;/'
kernel "distant pairs of a cluster lose digits" kl_div_logits_clustered_f32 $accuracy 's/, 0f41000000;/, 0f7F800000;/'
cat >"$out/test_unexpected.py" <<'END'
import unittest


class Unexpected(unittest.TestCase):
    @unittest.expectedFailure
    def test_that_should_fail(self):
        pass
END
reject "an unexpected success" "  FAILED: test_unexpected.Unexpected.test_that_should_fail" \
    env PYTHONPATH="$out" "$python" tests/pytorch/main.py test_unexpected
# shellcheck disable=SC2046
accept "the package as it is" "$python" tests/pytorch/main.py $accuracy $(cut -d '|' -f 3 "$out/mutations" | sort -u)
rm -rf "$out"/mutant*
report "bad pytorch"
