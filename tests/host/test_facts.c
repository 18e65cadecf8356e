/* The facts of gen/facts.h. The stand-in checks the words of every text that it is given, in all tests. Here are calls at
 * random, of every kind, among which are some that only one clause of each fact excludes. */
#include "check.h"
#include "../../gen/facts.h"
#include "../../gen/variants.h"

#include <fnmatch.h>
#include <stdio.h>

enum { CALLS_OF_CONTEXT = 800 };

static uint64_t random_state = 1;
static unsigned char seen[FACTS][MOST_CLAUSES]; /* a text whose words satisfy all other clauses */

static unsigned pick(unsigned count) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % count;
}
static int chance(unsigned in) {
    return pick(in) == 0;
}
static void *perhaps(int n, unsigned in) {
    return chance(in) ? AT(n) : NULL;
}
static gpuloss_dtype some_type(gpuloss_dtype own) {
    return chance(2) ? own : every_dtype[pick(DTYPES)].dtype;
}
static int64_t pick_classes(void) {
    static const int64_t all[] = {5, 16, 21, 64, 100, 1000, 1001, 4096, 4097, 40000, 40001, 300000};
    return all[pick(sizeof all / sizeof all[0])];
}
static int64_t pick_rows(void) {
    static const int64_t all[] = {16, 160, 8192, 100000};
    return all[pick(sizeof all / sizeof all[0])];
}
static int64_t pick_stride(int64_t classes) {
    return chance(2) ? 0 : classes + 8 * (int64_t)pick(3) + (int64_t)pick(2);
}
/* Where an array begins, after some of its elements. */
static void *pick_address(int n, gpuloss_dtype dtype) {
    const int bytes = every_dtype[dtype - GPULOSS_F32].bytes;
    return GPULOSS_PTR((uintptr_t)AT(n) + (uintptr_t)((int)pick(3) * bytes));
}

static int clause_holds(const fact_clause *clause, const uint32_t *words) {
    return ((words[clause->word] & clause->mask) != 0) == clause->is_any;
}

/* Notes which facts exclude the words by one clause alone. */
static void note_words(const char *entry, const uint32_t *words) {
    int i, k;
    for (i = 0; i < FACTS; i++) {
        int open = 0, last = 0;
        if (fnmatch(facts[i].texts, entry, 0) != 0)
            continue;
        for (k = 0; k < MOST_CLAUSES && facts[i].clauses[k].mask != 0; k++)
            if (!clause_holds(&facts[i].clauses[k], words)) {
                open++;
                last = k;
            }
        if (open == 0)
            fail_msg("%s: a call has the words %#x, %#x, which fact %d excludes", entry, words[0], words[1], i);
        if (open == 1)
            seen[i][last] = 1;
    }
}

static void note_launch(gpuloss_status status, int *calls) {
    if (status != GPULOSS_OK)
        return;
    note_words(last_launch()->module->real_entry, last_launch()->module->words);
    ++*calls;
}

static gpuloss_cross_entropy_desc random_cross_entropy(void) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.dtype = every_dtype[pick(DTYPES)].dtype;
    d.grad_dtype = some_type(d.dtype);
    d.target_dtype = some_type(d.dtype);
    d.rows = pick_rows();
    d.classes = pick_classes();
    d.logits_stride = pick_stride(d.classes);
    d.logits = pick_address(1, d.dtype);
    d.loss = perhaps(3, 2);
    d.loss_rows = perhaps(5, 3);
    d.lse = perhaps(6, 4);
    d.argmax = (int64_t *)perhaps(7, 4);
    d.z_loss_rows = perhaps(8, 6);
    d.grad_logits = chance(2) ? pick_address(4, d.grad_dtype) : NULL;
    d.grad_logits_stride = chance(2) ? d.logits_stride : pick_stride(d.classes);
    d.class_weights = perhaps(9, 3);
    d.row_weights = perhaps(10, 4);
    d.label_smoothing = chance(3) ? 0.1 : 0.0;
    d.lse_square_scale = chance(6) ? 1e-4 : 0.0;
    d.logit_scale = chance(6) ? 2.0 : 0.0;
    d.softcap = chance(4) ? 30.0 : 0.0;
    d.lse_in = d.lse == NULL ? perhaps(11, 4) : NULL;
    d.grad_loss_rows = d.grad_logits != NULL ? perhaps(12, 4) : NULL;
    if (chance(3)) {
        d.inner = chance(2) ? 16 : 15;
        d.rows = 16 * 15 * (int64_t)(1 + pick(20));
        d.logits_stride = d.grad_logits_stride = 0;
    }
    if (chance(2)) {
        give_probabilities(&d);
        d.target_probabilities = pick_address(20, d.target_dtype);
        d.target_probabilities_stride = chance(2) ? d.logits_stride : 0;
        d.grad_target_probabilities = perhaps(21, 3);
    } else if (chance(4)) { /* class weights that no shared memory has space for */
        d.class_weights = AT(9);
        d.label_smoothing = 0.1;
        d.lse = NULL;
        d.lse_in = AT(11);
        d.logits_stride = 0;
    }
    return d;
}

static gpuloss_cross_entropy_desc random_shard(void) {
    gpuloss_cross_entropy_desc d = random_cross_entropy();
    const gpuloss_cross_entropy_desc whole = some_shard();
    d.inner = 0;
    d.total_classes = 4 * d.classes;
    d.class_offset = d.classes;
    d.targets = whole.targets;
    d.target_type = whole.target_type;
    d.loss = d.loss_rows = d.lse = d.z_loss_rows = NULL;
    d.argmax = NULL;
    d.target_probabilities = NULL;
    d.grad_target_probabilities = NULL;
    d.grad_logits = d.lse_in != NULL ? AT(4) : NULL;
    d.grad_loss_rows = NULL;
    d.shard_rows = d.lse_in == NULL ? whole.shard_rows : NULL;
    return d;
}

/* Packed rows with few options. */
static gpuloss_cross_entropy_desc random_packed(void) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.dtype = every_dtype[pick(DTYPES)].dtype;
    d.classes = chance(3) ? 4096 : pick_classes(); /* a block for each row, or any */
    d.loss_rows = perhaps(5, 3);
    d.grad_logits = (void *)(uintptr_t)perhaps(4, 2);
    d.lse_in = perhaps(11, 3);
    d.argmax = (int64_t *)perhaps(7, 4);
    d.class_weights = perhaps(9, 4);
    d.row_weights = perhaps(10, 4);
    d.label_smoothing = chance(4) ? 0.1 : 0.0;
    d.lse_square_scale = chance(4) ? 1e-4 : 0.0;
    return d;
}

static gpuloss_kl_div_desc random_kl_div(void) {
    static const gpuloss_kind kinds[] = {GPULOSS_PROBABILITIES, GPULOSS_LOG_PROBABILITIES, GPULOSS_LOGITS,
                                         GPULOSS_LOGITS};
    static const gpuloss_divergence divergences[] = {GPULOSS_FORWARD_KL, GPULOSS_FORWARD_KL, GPULOSS_REVERSE_KL,
                                                     GPULOSS_JENSEN_SHANNON, GPULOSS_TOTAL_VARIATION};
    static const double betas[] = {0.5, 0.25, 1.0, 0.0};
    gpuloss_kl_div_desc d = some_kl_div();
    d.dtype = every_dtype[pick(DTYPES)].dtype;
    d.target_dtype = some_type(d.dtype);
    d.input_kind = kinds[pick(4)];
    d.target_kind = kinds[pick(4)];
    d.divergence = divergences[pick(5)];
    d.beta = d.divergence == GPULOSS_JENSEN_SHANNON ? betas[pick(4)] : 0.0;
    d.eps = chance(5) ? 1e-3 : 0.0;
    d.flags |= d.divergence == GPULOSS_FORWARD_KL && chance(4) ? (unsigned)GPULOSS_PYTORCH_ZEROS : 0u;
    d.rows = pick_rows();
    d.classes = pick_classes();
    d.input_stride = pick_stride(d.classes);
    d.target_stride = chance(2) ? d.input_stride : pick_stride(d.classes);
    d.loss = perhaps(3, 2);
    d.loss_rows = perhaps(5, 3);
    d.loss_elements = perhaps(6, 5);
    d.grad_input = perhaps(7, 2);
    d.grad_target = perhaps(8, 4);
    d.row_weights = perhaps(9, 4);
    if (chance(4)) {
        d.inner = chance(2) ? 16 : 15;
        d.rows = 16 * 15 * (int64_t)(1 + pick(20));
        d.input_stride = d.target_stride = 0;
    }
    return d;
}

static gpuloss_kl_div_sparse_desc random_sparse(void) {
    static const gpuloss_index_type types[] = {GPULOSS_I64, GPULOSS_I32, GPULOSS_I16, GPULOSS_U8};
    gpuloss_kl_div_sparse_desc d = some_kl_div_sparse();
    d.dtype = every_dtype[pick(DTYPES)].dtype;
    d.value_dtype = some_type(d.dtype);
    d.index_type = types[pick(4)];
    d.rows = pick_rows();
    d.classes = pick_classes();
    d.k = 1 + (int64_t)pick(16);
    d.logits_stride = pick_stride(d.classes);
    d.grad_logits = perhaps(4, 2);
    return d;
}

static void random_calls(int has_clusters) {
    gpuloss_context *context = has_clusters ? new_context() : new_context_without_clusters();
    int calls = 0, i;
    for (i = 0; i < CALLS_OF_CONTEXT; i++) {
        const unsigned kind = pick(8);
        const gpuloss_cross_entropy_desc d = kind == 0   ? random_shard()
                                             : kind == 1 ? random_packed()
                                                         : random_cross_entropy();
        const gpuloss_kl_div_desc k = random_kl_div();
        const gpuloss_kl_div_sparse_desc s = random_sparse();
        note_launch(kind < 5   ? gpuloss_cross_entropy(context, &d, stream_number(1))
                    : kind < 7 ? gpuloss_kl_div(context, &k, stream_number(1))
                               : gpuloss_kl_div_sparse(context, &s, stream_number(1)),
                    &calls);
    }
    gpuloss_destroy(context);
    assert_in_range(calls, CALLS_OF_CONTEXT / 2, CALLS_OF_CONTEXT);
}

static void facts_of_calls_with_clusters(void **state) {
    (void)state;
    random_calls(1);
}
static void facts_of_calls_without_clusters(void **state) {
    (void)state;
    random_calls(0);
}

static void facts_of_usual_variants(void **state) {
    int v;
    (void)state;
    for (v = 0; v < USUAL_VARIANTS; v++) {
        char entry[96];
        snprintf(entry, sizeof entry, "gpuloss_%s", usual_variants[v].module);
        note_words(entry, usual_variants[v].words);
    }
}

/* Each clause is needed: without it a call would be among what the fact excludes. */
static void every_clause_is_needed(void **state) {
    int i, k, missing = 0;
    (void)state;
    for (i = 0; i < FACTS; i++)
        for (k = 0; k < MOST_CLAUSES && facts[i].clauses[k].mask != 0; k++)
            if (!seen[i][k]) {
                print_error("fact %d of %s: no call satisfies all clauses but clause %d\n", i, facts[i].texts, k);
                missing++;
            }
    assert_int_equal(missing, 0);
}

int fact_tests(void) {
    const struct CMUnitTest tests[] = {TEST(facts_of_calls_with_clusters),    TEST(facts_of_calls_with_clusters),
                                       TEST(facts_of_calls_with_clusters),    TEST(facts_of_calls_with_clusters),
                                       TEST(facts_of_calls_without_clusters), TEST(facts_of_calls_without_clusters),
                                       TEST(facts_of_calls_without_clusters), TEST(facts_of_usual_variants),
                                       TEST(every_clause_is_needed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
