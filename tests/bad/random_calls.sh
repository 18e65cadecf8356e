#!/bin/bash
# Plants one fault at a time in the library or in the reference, and sees tests/random_calls find it.
#     tests/bad/random_calls.sh     PYTHON: the interpreter that has numpy
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
. tests/compile/strict.sh
export BUILD=${BUILD:-build}
python=${PYTHON:-python3}
out=$BUILD/bad_random_calls
rm -rf "$out" && mkdir -p "$out" || exit 2
if ! "$python" -c 'import numpy' 2>/dev/null; then
    skip "random calls: $python has no numpy"
    report 'bad random_calls'
    exit
fi
make -s shared "$BUILD/interpreter/libcuda.so.1" BUILD="$BUILD" || exit 2
BUILD=$(realpath "$BUILD") out=$(realpath "$out")
mkdir -p "$out/tree/examples/pytorch" "$out/tree/tests"
cp -r examples/pytorch/gpuloss "$out/tree/examples/pytorch/" && cp -r tests/random_calls "$out/tree/tests/" || exit 2

# calls LIBRARY FUNCTION: some calls of the copy, up to the first that fails. The seed is fixed.
calls() {
    GPULOSS_LIBRARY=$1 "$python" "$out/tree/tests/random_calls/random_calls.py" --function "$2" --seed 1 --calls 400 --failures 1
}

# library FUNCTION NAME WORD SED: with the header changed so, a call of the function is wrong, and WORD is said of it.
library() {
    changed gpuloss.h "$4" "$out/bad.h" || return
    # shellcheck disable=SC2154
    if ${CC:-cc} -std=c99 $strict_c -O0 -fPIC -shared -DGPULOSS_IMPLEMENTATION \
        -DGPULOSS_API='__attribute__((visibility("default"))) extern' -x c "$out/bad.h" -o "$out/bad.so" -ldl >"$out/log" 2>&1; then
        reject "$2" "FAILED: --function $1 .*: $3" calls "$out/bad.so" "$1"
    else
        fail "does not compile: $2" "$out/log"
    fi
}

# test_file FILE FUNCTION NAME WORD SED: the same of a file of the test.
test_file() {
    local file=tests/random_calls/$1
    changed "$file" "$5" "$out/tree/$file" &&
        reject "$3" "$4" calls "$BUILD/libgpuloss.so" "$2"
    cp "$file" "$out/tree/$file"
}
# The messages about calls, without addresses, do not depend on the number of processes that make the calls.
in_processes() {
    GPULOSS_LIBRARY=$2 "$python" "$out/tree/tests/random_calls/random_calls.py" --seed 1 --calls 100 --failures 3 --jobs "$1" |
        sed 's/0x[0-9a-f]*//'
}
alike() { diff <(in_processes 1 "$1") <(in_processes 3 "$1"); }
# processes NAME WORD SED: with random_calls.py changed so, it depends on that for the last library.
processes() {
    changed tests/random_calls/random_calls.py "$3" "$out/tree/tests/random_calls/random_calls.py" &&
        reject "$1" "$2" alike "$out/bad.so"
    cp tests/random_calls/random_calls.py "$out/tree/tests/random_calls/random_calls.py"
}
reference() { test_file reference.py "$1" "$2" "FAILED: --function $1 .*: $3" "$4"; }

for function in cross_entropy combine kl_div kl_div_sparse; do
    accept "$function as it is" calls "$BUILD/libgpuloss.so" $function
done

accept "calls side by side" alike "$BUILD/libgpuloss.so"

# Faults of 1 %, for which the bounds are tight enough.
library cross_entropy "another smoothing" loss 's/p->label_smoothing = /&0.99 * /'
library cross_entropy "another z-loss" '[a-z_]*' 's/p->lse_square_scale = /&0.99 * /'
library cross_entropy "another softcap" '[a-z_]*' 's/p->softcap = /&1.01 * /'
library cross_entropy "another ignore_index" '[a-z_]*' 's/p->ignore_index = d->ignore_index/& + 1/'
library cross_entropy "another number of rows" '[a-z_]*' 's/        divisor = (double)d->rows;/        divisor = (double)d->rows + 1;/'
library cross_entropy "no upstream gradient of rows" grad_ 's/rows->grad_loss_rows = .*/rows->grad_loss_rows = 0;/'
library cross_entropy "a factor that is left out" grad_ 's/rows->grad_scale = .*/rows->grad_scale = 1.0;/'
library cross_entropy "an lse that is left unwritten" lse 's/p->lse = .*/p->lse = 0;/'
library cross_entropy "bad targets that are not counted" bad_targets 's/p->bad_targets = .*/p->bad_targets = 0;/'
library cross_entropy "a stride that is ignored" '[a-z_]*' 's/\*stride = given == 0 ? classes : given;/*stride = classes;(void)given;/'
library cross_entropy "a call that is refused" 'gpuloss_cross_entropy: softcap' 's/"softcap", &d->softcap, 0.0/"softcap", \&d->softcap, 20.0/'
library cross_entropy "a workspace at another address" 'workspace: element .* is changed' \
    's/rows->scratch = (uint64_t)(uintptr_t)workspace;/rows->scratch = (uint64_t)(uintptr_t)workspace + 64;/'
library cross_entropy "sums that replace what is there" '[a-z_]*' 's/rows->flags = c->flags & GPULOSS_ADD_SUMS ? .*/rows->flags = 0;/'
library cross_entropy "a divisor of another ignore_index" divisor '/gpulossi_fill_cross_entropy(&d, &c, &p, &plan);/s/$/ p.ignore_index++;/'
library cross_entropy "a divisor_in that is ignored" '[a-z_]*' 's/rows->divisor_in = .*/rows->divisor_in = 0;/'
library kl_div "a divisor of other labels" divisor '/(void)gpulossi_fill_masking(&c, &m, &p, &plan);/s/$/ p.rows.divisor *= 2;/'
library combine "a shard at another offset" '[a-z_]*' 's/p->class_offset = .*/p->class_offset = 0;/'
library combine "a shard that is left out" '[a-z_]*' 's/p->shards = d->shards;/p->shards = d->shards > 1 ? d->shards - 1 : 1;/'
library kl_div "another eps" '[a-z_]*' 's/p->eps = d->eps;/p->eps = 2 * d->eps;/'
accept "wrong calls side by side" alike "$out/bad.so"
processes "a call that is left out" '^> random calls: ' 's/range(first, min(first + step, end))/range(first + 1, min(first + step, end))/'
processes "another order" '^>   FAILED: ' 's/executor.map(run, _parts(options, seed))/executor.map(run, reversed(_parts(options, seed)))/'
processes "a part without its last call" '^> random calls: ' 's/return list(_calls_of(.*))$/&[:-1]/'
library kl_div "another beta" '[a-z_]*' 's/p->beta = d->beta;/p->beta = 1 - d->beta;/'
library kl_div "another temperature" '[a-z_]*' 's/p->inverse_temperature = .*/p->inverse_temperature = d->temperature != 0.0 ? 0.99 \/ d->temperature : 1.0;/'
library kl_div "a temperature that is not squared" '[a-z_]*' 's/m->temperature \* m->temperature/m->temperature/'
library kl_div "elements with the stride of other rows" 'loss_elements' 's/&p->elements_stride}/\&p->target_stride}/'
library kl_div "labels that are ignored" '[a-z_]*' 's/p->labels = .*/p->labels = 0;/'
library kl_div_sparse "an entry that is left out" '[a-z_]*' 's/p->k = d->k;/p->k = d->k > 1 ? d->k - 1 : 1;/'
library kl_div_sparse "bad indices that are not counted" bad_indices 's/p->bad_indices = .*/p->bad_indices = 0;/'

reference cross_entropy "a row without a softmax that has a loss" loss_rows 's/loss.where(undefined | bad_column, np.nan/loss.where(bad_column, np.nan/'
reference cross_entropy "a loss that is added to nothing" '[z_]*loss: got' 's/^    return output + number$/    return output/'
reference cross_entropy "a count that is added to nothing" '[a-z_]*: got' 's/Bounded(output.value + number, output.error/Bounded(output.value, output.error/'
reference kl_div_sparse "a divisor of all rows" divisor 's/np.float64((~_ignored_labels(given, rows)).sum())/np.float64(rows)/'
reference cross_entropy "a z-loss without its gradient" grad_ 's/^        gradient = gradient + lse \* p .*/        pass/'
reference cross_entropy "no slope of the softcap" grad_logits 's/slope = (slope \* (-(tanh/slope = (slope * (-(tanh * 0.0/'
reference cross_entropy "a weight that is not part of the divisor" '[a-z_]*.*: got' 's/math.fsum(weights[[]targets[[]valid]])/valid.sum()/'
reference kl_div "a side of Jensen-Shannon without its share" '[a-z_]*' 's/in ((t, beta), (q, 1.0 - beta))/in ((t, beta), (q, beta))/'
reference kl_div "a logit without the others" 'grad_' 's/(times - p \* total)/(times - p * 0.0)/'
reference kl_div_sparse "equal indices that replace each other" '[a-z_]*' 's/np.add.at(value, at, \(.*\))$/value[at] = \1/'
reference kl_div_sparse "a bucket without a gradient" grad_logits 's/share \* u_bucket/share * 0.0/'
reference combine "another class of the maximum" argmax 's/np.argmax(x.value, axis=1)/np.argmin(x.value, axis=1)/'
test_file reference.py kl_div "numbers without a bound" 'too many numbers have no bound' \
    's/^    return outputs$/    return {name: o.where(True, 0.0, np.inf) for name, o in outputs.items()}/'
test_file storage.py cross_entropy "16 bits that are cut off" 'FAILED: --function cross_entropy .*: grad_' 's/0x7FFF + ((bits >> 16) \& 1)/0/'
test_file gpu.py kl_div "an output that is taken for an input" 'may not write' 's/self.is_output = numbers is None/self.is_output = False/'

# Stands for compute-sanitizer: it runs the program, or prints FINDING.
mkdir -p "$out/bin"
cat >"$out/bin/compute-sanitizer" <<'end'
#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift 2; done
[ -z "${FINDING:-}" ] || { echo "$FINDING" && exit 3; }
exec "$@"
end
chmod +x "$out/bin/compute-sanitizer"
sanitized() {
    env PATH="$out/bin:$PATH" LD_LIBRARY_PATH="$BUILD/interpreter" "$@" bash tests/random_calls/sanitized.sh memcheck 60 1
}
accept "calls under a tool" sanitized env
reject "what a tool finds" "ERROR SUMMARY: 1 error" sanitized env FINDING="ERROR SUMMARY: 1 error"

rm -rf "$out/tree" "$out/bin" "$out"/bad.*
report 'bad random_calls'
