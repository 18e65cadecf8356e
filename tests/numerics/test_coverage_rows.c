/* Coverage of longer rows beyond the other tests: options beside every type of other arrays, in whole vectors and others,
 * in blocks and in clusters. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "option_cases.h"
#include "run_common.h"
#include "sparse_cases.h"
#include "suites.h"

/* Rows of blocks, a step of a warp among them, rows that are fewer than the multiprocessors, and rows that no block
 * retains. */
static const struct rows { int64_t rows, vectors; } shapes[] = {{9, 52}, {5, 130}, {2, 1100}, {5, 2400}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Moves logits out of the range of the fast exponentials. */
static void shift_row(double *x, int64_t classes, gpuloss_dtype dtype) {
    int64_t i;
    for (i = 0; i < classes; i++)
        x[i] = dtype_round(dtype, 30000 + x[i]);
}

static const unsigned passes[] = {CE_OUT_EVERY, CE_OUT_LOSS, CE_OUT_LOSS | CE_OUT_GRAD, CE_OUT_LOSS | CE_OUT_ARGMAX,
                                  CE_OUT_LOSS | CE_OUT_GRAD_TARGETS};
enum { PASSES = sizeof passes / sizeof passes[0] };

static void options_of_longer_rows(void **state) {
    static const unsigned sets[] = {0,
                                    OPTION_SOFTCAP,
                                    OPTION_SMOOTHING,
                                    OPTION_WEIGHTS | OPTION_ROW_WEIGHTS,
                                    OPTION_WEIGHTS | OPTION_SMOOTHING,
                                    OPTION_SOFTCAP | OPTION_WEIGHTS | OPTION_SMOOTHING};
    enum { SETS = sizeof sets / sizeof sets[0] };
    unsigned d, k, t, set, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < SHAPES - 1; k++)
            for (t = 0; t <= DTYPE_COUNT; t++) /* the last: no probabilities */
                for (set = 0; set < SETS; set++, number++) {
                    const unsigned soft = t < DTYPE_COUNT ? (unsigned)OPTION_PROBABILITIES : 0;
                    const option_shape shape = {shapes[k].rows,
                                                shapes[k].vectors * dtype_width(all_dtypes[d]) + number % 2, 0};
                    option_inputs in;
                    ce_case c = option_case(all_dtypes[d], shape, sets[set] | soft | OPTION_IGNORE_INDEX, LOGITS_NORMAL,
                                            number, &in);
                    double *lse = NULL;
                    shift_row(in.x + c.classes, c.classes, c.dtype);
                    if (c.rows > 4)
                        in.x[4 * c.classes + number % 50] = (double)NAN;
                    if (number % (PASSES + 1) == PASSES)
                        lse = option_pass(&c, 7);
                    else
                        c.outputs = passes[number % (PASSES + 1)];
                    option_target_dtype(&c, &in, all_dtypes[t % DTYPE_COUNT]);
                    c.grad_dtype = c.in_place || number % 3 == 0 ? c.dtype : all_dtypes[number / 7 % DTYPE_COUNT];
                    if ((sets[set] & OPTION_SOFTCAP) != 0 && number % 4 < 2)
                        c.softcap = 1000;
                    ce_test(&c, "options of longer rows");
                    free(lse);
                    option_inputs_free(&in);
                }
    test_done();
}

/* The class of the maximum is tied, below a NaN, or alone among masked ones. */
static void mark_classes(const ce_case *c, const option_inputs *in) {
    int64_t row, i;
    for (row = 0; row < c->rows; row++) {
        double *x = in->x + row * c->classes;
        const int64_t at = (row * 97 + 41) % c->classes;
        for (i = 0; i < c->classes && row % 4 == 3; i++)
            x[i] = i == at ? x[i] : -(double)INFINITY;
        if (row % 4 == 1)
            x[at] = x[c->classes - 1] = x[0] = dtype_round(c->dtype, 50);
        if (row % 4 == 2)
            x[at] = (double)NAN;
    }
}

/* Arrays that begin elsewhere than the logits. Long rows have their class weights in stages, with and without an lse. */
static void layouts_of_longer_rows(void **state) {
    static const unsigned sets[] = {OPTION_SMOOTHING, OPTION_WEIGHTS | OPTION_SMOOTHING, 0, OPTION_WEIGHTS,
                                    OPTION_SCALE | OPTION_ROW_WEIGHTS};
    static const unsigned outputs[] = {CE_OUT_LOSS | CE_OUT_ARGMAX | CE_OUT_CORRECT, CE_OUT_EVERY,
                                       CE_OUT_LOSS | CE_OUT_GRAD};
    enum { SETS = sizeof sets / sizeof sets[0] };
    unsigned d, k, t, set, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < SHAPES; k++)
            for (t = k < SHAPES - 1 ? 0 : DTYPE_COUNT; t <= DTYPE_COUNT; t++) /* the last: no probabilities */
                for (set = 0; set < (k < SHAPES - 1 ? (unsigned)SETS : 4); set++, number++) {
                    const unsigned soft = t < DTYPE_COUNT ? (unsigned)OPTION_PROBABILITIES : 0;
                    const unsigned options = (k < SHAPES - 1 ? sets[set] : sets[1]) | soft;
                    const option_shape shape = {shapes[k].rows,
                                                shapes[k].vectors * dtype_width(all_dtypes[d]) + number / 2 % 2, 0};
                    option_inputs in;
                    ce_case c = option_case(all_dtypes[d], shape, options, LOGITS_NORMAL, number, &in);
                    double *lse = NULL;
                    if (set % 2 == 0)
                        shift_row(in.x, c.classes, c.dtype);
                    mark_classes(&c, &in);
                    c.logits_offset = c.grad_offset = number % 5 == 2;
                    c.target_offset = number % 5 > 2;
                    c.grad_target_offset = number % 5 == 4;
                    c.targets_stride = number % 3 == 1 ? STRIDE_ONE_MORE : STRIDE_PACKED;
                    if (number % 4 == 3)
                        lse = option_pass(&c, number % 8);
                    else
                        c.outputs = outputs[number % 4];
                    option_target_dtype(&c, &in, all_dtypes[t % DTYPE_COUNT]);
                    ce_test(&c, "layouts of longer rows");
                    free(lse);
                    option_inputs_free(&in);
                }
    test_done();
}

/* Every divergence of every pair of kinds and types. What is written varies. */
static void divergences_of_longer_rows(void **state) {
    static const unsigned outputs[] = {KL_OUT_EVERY, KL_OUT_LOSS, KL_OUT_LOSS | KL_OUT_GRAD, KL_OUT_GRAD_TARGET,
                                       KL_OUT_LOSS | KL_OUT_GRAD | KL_OUT_GRAD_TARGET};
    unsigned d, t, pair, choice, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (t = 0; t < DTYPE_COUNT; t++)
            for (pair = 0; pair < KL_KIND_PAIRS; pair++)
                for (choice = 0; choice <= CHOICE_JS; choice++, number++) {
                    const struct rows *s = &shapes[number % 13 == 12 ? 2 : number % 13 == 6 ? 3 : number / 3 % 2];
                    const divergence_shape shape = {s->rows, s->vectors * dtype_width(all_dtypes[d]) + number / 2 % 2};
                    kl_case c = divergence_case(all_dtypes[d], all_dtypes[t], shape, pair, choice);
                    kl_inputs in = divergence_inputs(&c, (distribution_kind)(number / 5 % DISTRIBUTIONS_KINDS),
                                                     number % KL_WITH_SETS, number);
                    if (c.input_kind == GPULOSS_LOGITS)
                        shift_row(in.input + c.classes, c.classes, c.dtype);
                    if (c.target_kind == GPULOSS_LOGITS) {
                        shift_row(in.target + number % 2 * c.classes, c.classes, c.target_dtype);
                        in.target[number % 50] = -(double)INFINITY;
                    }
                    c.outputs = outputs[number / 7 % (sizeof outputs / sizeof outputs[0])];
                    kl_test(&c, "divergences of longer rows");
                    kl_inputs_free(&in);
                }
    test_done();
}

/* Every divergence from a sparse teacher, with every type of labels, indices and values. Logarithms may have exponentials
 * that are subnormal, and logits large ones. */
static void sparse_teachers_of_longer_rows(void **state) {
    enum { ROWS = 9, K = 3 };
    unsigned d, divergence, kind, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (divergence = 0; divergence < SPARSE_DIVERGENCES; divergence++)
            for (kind = 0; kind < SPARSE_KINDS; kind++, number++) {
                const sparse_shape shape = {ROWS, 60 * dtype_width(all_dtypes[d]) + number % 2, K};
                sparse_case c = sparse_case_of(all_dtypes[d], shape);
                sparse_inputs in;
                sparse_take(&c, divergence);
                c.value_kind = sparse_kinds[kind];
                c.value_dtype = all_dtypes[(d + number / 3) % DTYPE_COUNT];
                c.index_type = sparse_index_types[number / 2 % SPARSE_INDEX_TYPES];
                c.label_type = sparse_index_types[number / 5 % SPARSE_INDEX_TYPES];
                sparse_fill(&c, number % 5 == 4 ? LOGITS_SHIFTED : LOGITS_NORMAL, 0.7, number, &in);
                sparse_mask(&c, &in);
                if (c.value_kind == GPULOSS_LOG_PROBABILITIES)
                    in.values[K] = dtype_round(c.value_dtype, -720.5);
                sparse_test(&c, "sparse teachers of longer rows");
                sparse_inputs_free(&in);
            }
    test_done();
}

/* Reverse KL with a gradient, of rows that no block retains. */
static void reverse_gradients_of_longest_rows(void **state) {
    static const divergence_shape shape = {2, 66000};
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1, CHOICE_REVERSE);
        kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, d);
        c.outputs = KL_OUT_LOSS | KL_OUT_GRAD;
        kl_test(&c, "reverse gradients");
        kl_inputs_free(&in);
    }
    test_done();
}

/* The mean of rows without some labels of every type: packed rows of one lane and of several, and long ones. */
static void means_of_labelled_rows(void **state) {
    static const gpuloss_index_type types[] = {GPULOSS_I64, GPULOSS_I32, GPULOSS_I16, GPULOSS_U8};
    static const divergence_shape labelled[] = {{70, 8}, {40, 300}, {9, 800}, {2, 9000}, {2, 50000}};
    enum { LABELLED = sizeof labelled / sizeof labelled[0] };
    int64_t labels[70];
    unsigned d, k, n;
    (void)state;
    REQUIRE_GPU();
    for (n = 0; n < 70; n++)
        labels[n] = n % 3 == 1 ? 7 : 1;
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < LABELLED; k++)
            for (n = 0; n < (k == LABELLED - 1 ? 2u : 12u); n++) {
                kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, labelled[k], KL_KIND_PAIRS - 1, n / 4);
                kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, n);
                c.labels = labels;
                c.label_type = types[n % 4];
                c.ignore_index = 7;
                c.reduction = n % 2 ? GPULOSS_BATCHMEAN : GPULOSS_MEAN;
                c.outputs = (n + d) % 3 == 0 ? KL_OUT_LOSS | KL_OUT_GRAD : KL_OUT_LOSS;
                kl_test(&c, "means of labelled rows");
                kl_inputs_free(&in);
            }
    test_done();
}

enum { MANY_ROWS = 68 };

/* Losses of very different sizes, and labels of a type. The gradients are in the range of each type. */
static void distant_rows(gpuloss_dtype dtype, divergence_shape shape, unsigned choice, unsigned outputs,
                         unsigned type) {
    static const gpuloss_index_type types[] = {GPULOSS_I64, GPULOSS_I32, GPULOSS_I16, GPULOSS_U8};
    double weights[MANY_ROWS];
    int64_t labels[MANY_ROWS], row;
    kl_case c = divergence_case(dtype, GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1, choice);
    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, type);
    for (row = 0; row < shape.rows; row++)
        labels[row] = row % 5 == 3 ? 7 : 1;
    make_distant_weights(weights, shape.rows, dtype);
    if (type == 1)
        in.input[2 * c.classes] = (double)NAN;
    c.row_weights = weights;
    c.labels = labels;
    c.label_type = types[type];
    c.ignore_index = 7;
    c.reduction = type == 2 || outputs == KL_OUT_LOSS ? GPULOSS_MEAN : GPULOSS_SUM;
    c.outputs = outputs | (type > 1 ? KL_OUT_LOSS_ROWS : 0u);
    c.use_grad_scale = true;
    c.grad_scale = 0x1p-120;
    kl_test(&c, "many distant rows");
    kl_inputs_free(&in);
}

/* As many rows of a team as its lanes finish at a time. */
static void many_distant_rows_of_pairs(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
    static const unsigned choices[] = {CHOICE_FORWARD, CHOICE_REVERSE, CHOICE_JS_HALF, CHOICE_TV};
    unsigned d, k, type;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 3; d++)
        for (type = 0; type < 4; type++) {
            const int64_t width = dtype_width(dtypes[d]);
            const divergence_shape few = {34, 3073 * width}, some = {MANY_ROWS, 257 * width};
            if (d == type % 2)
                distant_rows(dtypes[d], few, CHOICE_FORWARD, KL_OUT_LOSS | KL_OUT_GRAD, type);
            if (d != 2)
                distant_rows(dtypes[d], some, CHOICE_JS_HALF + type % 2, KL_OUT_LOSS, type);
            for (k = 0; k < 4 && d != type % 3; k++) {
                distant_rows(dtypes[d], some, choices[k], KL_OUT_LOSS | KL_OUT_GRAD, type);
                distant_rows(dtypes[d], (divergence_shape){MANY_ROWS, 66 * width}, choices[k], KL_OUT_LOSS, type);
            }
        }
    test_done();
}

int run_coverage_row_tests(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(options_of_longer_rows),
                                       cmocka_unit_test(layouts_of_longer_rows),
                                       cmocka_unit_test(divergences_of_longer_rows),
                                       cmocka_unit_test(sparse_teachers_of_longer_rows),
                                       cmocka_unit_test(reverse_gradients_of_longest_rows),
                                       cmocka_unit_test(means_of_labelled_rows),
                                       cmocka_unit_test(many_distant_rows_of_pairs)};
    return cmocka_run_group_tests_name("coverage of rows", tests, NULL, NULL);
}
