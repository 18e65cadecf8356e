#!/bin/bash
# Plants one fault at a time in the library, in the rules or in the mutator, and sees tests/hostile/fuzz.c find it.
#     tests/bad/fuzz.sh
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
. tests/hostile/build_fuzz.sh
out=${BUILD:-build}/bad_fuzz
rm -rf "$out" && mkdir -p "$out" || exit 2
why=$(why_no_fuzzer)
if [ -n "$why" ]; then
    skip "fuzz: $why"
    report 'bad fuzz'
    exit
fi
prepare_fuzz gpuloss.h "$out/sound" || exit 2

# faulty FILE SED: the sources in $out/faulty, one of which is changed so.
faulty() {
    rm -rf "$out/faulty" && cp -r "$out/sound" "$out/faulty" && changed "$out/sound/$1" "$2" "$out/faulty/$1"
}
# fuzz RUNS: of the corpus, or of others after it.
fuzz() { build_fuzz "$out/faulty" && run_fuzz "$out/faulty" -runs="$1" -seed=1; }

# library NAME WORDS SED: the corpus has a desc for which the header that is changed so is wrong, and WORDS are said of it.
library() { faulty gpuloss.h "$3" && reject "$1" "FAILED: $2" fuzz 0; }
# overflow NAME SED: the same for faults that only UBSan sees.
overflow() { faulty gpuloss.h "$2" && reject "$1" "runtime error: signed integer overflow" fuzz 0; }
# rules NAME WORDS SED: the same for faults of the rules.
rules() { faulty tests/hostile/rules.c "$3" && reject "$1" "FAILED: $2" fuzz 0; }

faulty gpuloss.h '/^typedef int gpulossi_result;/a /* nothing */' && accept "a comment" fuzz 1000

broken="accepted with a broken rule"
library "negative rows" "$broken: rows" 's/if (c->rows < 0)/if (0)/'
library "no classes" "$broken: classes" 's/if (c->classes < 1)/if (c->classes < 0)/'
library "more classes than kernels count" "$broken: classes" 's/return classes > INT32_MAX ?/return 0 ?/'
library "flags that a loss does not have" "$broken: flags" 's/if ((c->flags \& ~c->known_flags) != 0)/if (0)/'
library "sums that are none" "$broken: flags" 's/(c->flags \& GPULOSS_ADD_SUMS) != 0 \&\& c->rows > 0 \&\& /0 \&\& /'
library "a type that is none" "$broken: [a-z_]*dtype" 's/if (dtype < (int)GPULOSS_F32 ||/if (/'
library "a stride shorter than a row" "$broken: [a-z_]*stride" 's/if (\*stride < classes)/if (0)/'
overflow "strides that overflow" 's/if (rows > 0 \&\& \*stride > INT64_MAX/if (0 \&\& *stride > INT64_MAX/'
library "rows that are no images" "$broken: rows" 's/if (rows % inner != 0)/if (0)/'
overflow "images that overflow" 's/if (inner > INT64_MAX . classes)/if (0)/'
library "misaligned arrays" "$broken" 's/if (a->at % a->alignment != 0)/if (0)/'
library "arrays beyond the last address" "$broken" 's/if (a->bytes > UINT64_MAX - a->at)/if (0)/'
library "overlaps" "$broken" 's/if ((output->use \& GPULOSSI_OUTPUT) == 0 ||/if (1 ||/'
library "a gradient of another stride over its array" "$broken: grad" 's/ \&\& a->at == b->at \&\& a->stride == b->stride))/ \&\& a->at == b->at))/'
library "an overlap too many" "refused without a broken rule" 's/const int may_be_same = .*/const int may_be_same = 0;/'
library "entries beyond the classes" "$broken: k" 's/ || d->k > d->classes)/)/'
library "a number out of its range" "$broken" 's/ || gpulossi_order_of(number) > gpulossi_order_of(&high))/)/'
library "a temperature whose inverse overflows" "$broken: temperature" 's/if (m->temperature != 0.0 \&\& m->temperature < 1.5 /if (0 \&\& m->temperature < 1.5 /'
library "a shard beyond the vocabulary" "$broken: class_offset" 's/ || d->class_offset > d->total_classes - d->classes)/)/'
overflow "shards that overflow" 's/if (d->rows > 0 \&\& d->shards > INT64_MAX/if (0 \&\& d->shards > INT64_MAX/'
library "a workspace that is too small" "$broken: workspace_bytes" 's/workspace_bytes < sizeof(gpulossi_scratch))/workspace_bytes == 0)/'
library "a message without its field" "a message without its field" 's/"rows", "must be a multiple of inner"/"row", "must be a multiple of inner"/'
library "a message without its value" "a message without its value" 's/is required (got NULL)"/is required"/'
library "targets in another place" "gpuloss_cross_entropy[a-z_0-9]*: targets" 's/p->targets = (uint64_t)(uintptr_t)d->targets;/p->targets = (uint64_t)(uintptr_t)d->targets + 8;/'
library "an output that is left out" "an array is given to no kernel: lse" 's/p->lse = (uint64_t)(uintptr_t)d->lse;/p->lse = 0;/'
library "a stride that is ignored" "gpuloss_[a-z_0-9]*: [a-z]*" 's/    \*stride = given == 0 ? classes : given;/&\n    if (classes < INT64_MAX) *stride += 1;/'
library "a last row that is too long" "gpuloss_kl_div[a-z_0-9]*: " 's/rows->last_classes = elements - /rows->last_classes = 1 + elements - /'
library "a shared target with a stride" "gpuloss_kl_div[a-z_0-9]*: target" 's/^        p->target_stride = 0;/        (void)0;/'
library "a workspace in another place" "gpuloss_[a-z_0-9]*: workspace" 's/plan->rows->scratch = (uint64_t)(uintptr_t)workspace;/plan->rows->scratch = (uint64_t)(uintptr_t)workspace + 64;/'
library "another launch of the same call" "another launch of the same call" 's/^    plan->rows->group = 1;/    { static unsigned n; plan->rows->group = 1u << (n++ % 2); }/'
library "a preload that launches" "a launch of a preload" 's/"gpuloss_kl_div_preload", desc, stream, 0)/"gpuloss_kl_div_preload", desc, stream, 1)/'
library "a preload that checks less" "another status of its preload" \
    's/return status == GPULOSS_OK ? gpulossi_run_cross_entropy(context, \&plan, desc, stream, 0) : status;/return GPULOSS_OK;/'
library "a workspace that checks less" "another status of its workspace" \
    '/^GPULOSS_API gpuloss_status gpuloss_kl_div_sparse_workspace(/,/^}/s/return status;/return GPULOSS_OK;/'
library "flags that no context has" "$broken: flags" 's/if ((desc->flags \& ~(unsigned)GPULOSS_CHECK_POINTERS) != 0)/if (0)/'
library "a caller of another version" "$broken: version" 's/if (header_version != GPULOSS_VERSION ||/if (0 ||/'
library "a context that a failed create leaves" "create: leaves a context" '/^GPULOSS_API gpuloss_status gpuloss_create_versioned/,/^}/s/^        \*context = NULL;/        (void)0;/'
library "a failed create that leaks" "a leak: of create" 's/^    GPULOSS_FREE(context);$/    if (context->arenas != 0 || context->multiprocessors != 0) GPULOSS_FREE(context);/'

library "a divisor without an address" "$broken: divisor" 's/status == GPULOSS_OK ? gpulossi_check_required(function, "divisor", divisor, 1) : status;/status;/'
library "a divisor over its targets" "$broken: divisor" 's/gpulossi_add_array(&plan->given, "divisor", c->loss, .*/(void)0;/'
library "a divisor of more than a mean" "$broken: divisor" '/^GPULOSSI_COLD static gpuloss_status gpulossi_check_mean/,/^}/s/if (!is_mean)/if (0)/'
library "a divisor of another divisor" "$broken: divisor" 's/return gpulossi_order_of(&given) == 0$/return 1/'
library "a divisor of fewer classes than a shard" "$broken: total_classes" 's/status = gpulossi_check_total(function, &d);/(void)0;/'
library "a divisor in another place" "gpuloss_common_prepare_targets[a-z_0-9]*: divisor" 's|^    plan->units = c->rows / 4 + 1;|p->rows.loss += 8; &|'
library "labels of another type" "gpuloss_common_prepare_targets[a-z_0-9]*: labels" '/(void)gpulossi_fill_masking(&c, &m, &p, &plan);/s/$/ p.target_type = GPULOSS_I64;/'
library "a workspace of a divisor that is ignored" "$broken: workspace_bytes" 's/gpulossi_run(context, plan, c->workspace, c->workspace_bytes, stream, 1);/gpulossi_run(context, plan, c->workspace, SIZE_MAX, stream, 1);/'

rules "a rule that is left out" "refused without a broken rule: gpuloss_kl_div_sparse: k" 's/ \&\& d->k <= d->classes);/);/'
rules "a rule that is none" "accepted with a broken rule: grad_loss" 's/RULE("grad_loss", (has_gradient) || (d)->rows == 0/RULE("grad_loss", (has_gradient)/'
rules "a divisor that goes with itself" "refused without a broken rule: gpuloss_kl_div_divisor: divisor" 's/ && (d)->divisor == 0.0)$/)/'
rules "a span that is too short" "gpuloss_[a-z_0-9]*: " 's/((m->rows - 1) \* stride + m->length) \* bytes/m->rows * m->length * bytes/'
rules "a span that is too long" "an array is given to no kernel\|accepted with a broken rule" 's/m->rows == 0 ? 0 : ((m->rows - 1)/m->rows == 0 ? 1 : ((m->rows - 1)/'

# The mutator takes some runs.
faulty tests/hostile/fuzz.c 's/" %s=%" PRIx64, f->name/" %s=%" PRIx64, "nonsense"/' &&
    reject "a mutator of descs that can't be read" "FAILED: an input that can't be read: nonsense" fuzz 5000
few_are_accepted() { fuzz 5000 >"$out/said" 2>&1 && half_are_accepted "$out/said"; }
faulty tests/hostile/fuzz.c 's/ || random_below(8) == 0)/ || 1)/' &&
    reject "a mutator that breaks the rules" "calls, .* accepted" few_are_accepted
faulty tests/hostile/fuzz.c 's/^/ /' && echo 'gpuloss_kl_div 90 row=1' >"$out/faulty/corpus/aa" &&
    reject "a desc of another version" "FAILED: an input that can't be read: row=1" fuzz 0
rm -rf "$out/faulty"
report 'bad fuzz'
