/* The table of the losses of two arrays, and of a sparse teacher. */
#include "pairs.h"

#include <string.h>

#define PP .input = BENCH_OF_PROBABILITIES, .target = BENCH_OF_PROBABILITIES
#define LL .input = BENCH_OF_LOGARITHMS, .target = BENCH_OF_LOGARITHMS
#define LOGITS .input = BENCH_OF_LOGITS, .target = BENCH_OF_LOGITS
#define JENSEN_SHANNON .divergence = BENCH_JENSEN_SHANNON, .beta = 0.5
#define TYPE_OF_INPUT .target_dtype = ""

/* A reciprocal, a multiplication to the quotient, its logarithm, and a fused multiplication to the sum. The gradient is the
 * quotient times a factor. */
#define WORK_PP                                                                                                        \
    { {2, 4}, {0, 1}, 1, 0, 0 }
/* A multiplication and an exponential of the target, a difference, and a fused multiplication to the sum. The gradient is
 * the exponential times a factor. */
#define WORK_LL                                                                                                        \
    { {1, 4}, {0, 1}, 1, 0, 0 }
/* Both sums of exponentials, four instructions each; a difference, and a fused multiplication that sums its products. The
 * gradient takes both exponentials anew, a difference and a multiplication. */
#define WORK_LOGITS                                                                                                    \
    { {2, 10}, {2, 6}, 1, 1, 2 }

/* The sum of exponentials of the logits. The gradient takes an exponential anew, and a multiplication. The entries of a
 * row are few next to its classes. */
#define WORK_SPARSE                                                                                                    \
    { {1, 4}, {1, 3}, 1, 1, 1 }
#define SPARSE(k) .input = BENCH_OF_LOGITS, .target = BENCH_OF_PROBABILITIES, .target_dtype = "f32", .entries = k

static const bench_pair pairs[] = {
    {"kl_div_pp", PP, TYPE_OF_INPUT, .work = WORK_PP},
    {"kl_div_ll", LL, TYPE_OF_INPUT, .work = WORK_LL},
    {"kl_div_logits", LOGITS, TYPE_OF_INPUT, .work = WORK_LOGITS},
    /* Both sums of exponentials. A second sweep takes both exponentials anew, the logarithm of their mean, and the terms.
     * The gradient has the sum of the second sweep in it, and so needs a third. */
    {"jsd_logits", LOGITS, JENSEN_SHANNON, TYPE_OF_INPUT, .work = {{5, 20}, {3, 11}, 2, 1, 2}},
    /* The sum is like forward KL. The gradient takes the exponential of the input anew, a difference, a fused
     * multiplication that subtracts the divergence, and a multiplication. */
    {"reverse_logits", LOGITS, .divergence = BENCH_REVERSE, TYPE_OF_INPUT, .work = {{2, 10}, {1, 5}, 1, 1, 2}},
    /* Both sums of exponentials. A second sweep takes both exponentials anew, a difference, and the addition of its
     * absolute value. The gradient contains a sum of the second sweep, which gives a probability the difference's sign
     * and adds it. A third sweep takes both exponentials anew, a comparison, a choice and a multiplication. */
    {"tv_logits", LOGITS, .divergence = BENCH_TOTAL_VARIATION, TYPE_OF_INPUT, .work = {{4, 14}, {2, 9}, 2, 1, 2}},
    /* The sum of exponentials of the input, and the teacher's logarithm. The difference takes a fused multiplication,
     * the sum another one, and the sum of the teacher an addition. The gradient takes the exponential anew, and a fused
     * multiplication. */
    {"logits_p", .input = BENCH_OF_LOGITS, .target = BENCH_OF_PROBABILITIES, TYPE_OF_INPUT,
     .work = {{2, 8}, {1, 3}, 1, 1, 1}},
    /* The same, but for the teacher a multiplication and an exponential, which the gradient takes anew as well. */
    {"logits_l", .input = BENCH_OF_LOGITS, .target = BENCH_OF_LOGARITHMS, TYPE_OF_INPUT,
     .work = {{2, 9}, {2, 5}, 1, 1, 1}},
    /* The gradient takes the teacher's logarithm anew, too, and two differences. */
    {"reverse_p", .input = BENCH_OF_LOGITS, .target = BENCH_OF_PROBABILITIES, .divergence = BENCH_REVERSE,
     TYPE_OF_INPUT, .work = {{2, 8}, {2, 5}, 1, 1, 1}},
    /* Another type of the target only changes how it is loaded (floors.c). */
    {"logits_f32", LOGITS, .target_dtype = "f32", .work = WORK_LOGITS},
    /* The target's gradient takes another difference, a fused multiplication that subtracts the divergence, and a
     * multiplication. */
    {"logits_both", LOGITS, TYPE_OF_INPUT, .grad_target = 1, .work = {{2, 10}, {2, 9}, 1, 1, 2}},
    /* The sum is like forward KL, with the exponential of the input. The gradient adds a number to the difference, and
     * multiplies. */
    {"reverse_ll", LL, .divergence = BENCH_REVERSE, TYPE_OF_INPUT, .work = {{1, 4}, {0, 2}, 1, 0, 0}},
    /* An addition to the mean, its reciprocal, both quotients, both logarithms, and two fused multiplications to the sum.
     * The gradient is a logarithm times a factor. */
    {"jsd_pp", PP, JENSEN_SHANNON, TYPE_OF_INPUT, .work = {{3, 8}, {0, 1}, 1, 0, 0}},
    /* A difference, and the addition of its absolute value. The gradient is a comparison and a choice. */
    {"tv_pp", PP, .divergence = BENCH_TOTAL_VARIATION, TYPE_OF_INPUT, .work = {{0, 2}, {0, 2}, 1, 0, 0}},
    {"pp_f32", PP, .target_dtype = "f32", .work = WORK_PP},
    /* A row's weight is a factor of the row, its label decides whether it counts, and its loss is a number of the row. */
    {"ll_weights", LL, TYPE_OF_INPUT, .row_weights = 1, .work = WORK_LL},
    {"ll_labels", LL, TYPE_OF_INPUT, .labels = 1, .work = WORK_LL},
    {"ll_rows", LL, TYPE_OF_INPUT, .loss_rows = 1, .work = WORK_LL},
    {"sparse_16", SPARSE(16), .work = WORK_SPARSE},
    {"sparse_64", SPARSE(64), .work = WORK_SPARSE},
    {"sparse_256", SPARSE(256), .work = WORK_SPARSE},
    {"sparse_reverse", SPARSE(64), .divergence = BENCH_REVERSE, .work = WORK_SPARSE},
    {"sparse_jsd", SPARSE(64), JENSEN_SHANNON, .work = WORK_SPARSE},
    {"sparse_tv", SPARSE(64), .divergence = BENCH_TOTAL_VARIATION, .work = WORK_SPARSE},
};

const bench_pair *bench_pair_of(const char *loss) {
    unsigned i;
    for (i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (strcmp(pairs[i].loss, loss) == 0)
            return &pairs[i];
    return NULL;
}

const char *bench_target_dtype(const bench_cell *c) {
    return *c->pair->target_dtype == 0 ? c->dtype : c->pair->target_dtype;
}

int bench_entries(const bench_cell *c) {
    return c->pair != NULL ? c->pair->entries : 0;
}

int bench_wants_grad_target(const bench_cell *c) {
    return c->pair != NULL && c->pair->grad_target && c->pass != BENCH_LOSS;
}
