/* gpuloss_kl_div against the reference: shapes, strides, alignments, outputs, kinds, zeros, precision. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "run_common.h"
#include "run_kl_div.h"
#include "shapes.h"
#include "suites.h"

/* Every other choice of a case repeats with its number, like for cross_entropy. */
static void vary(kl_case *c, unsigned number) {
    int offsets = (int)(16 / dtype_size(c->dtype));
    c->reduction = all_reductions[number / 3 % REDUCTION_COUNT];
    c->input_stride = (stride_kind)(number / 2 % STRIDE_KINDS);
    c->target_stride = (stride_kind)(number / 3 % STRIDE_KINDS);
    c->grad_stride = (stride_kind)(number / 5 % STRIDE_KINDS);
    c->elements_stride = (stride_kind)(number / 7 % STRIDE_KINDS);
    c->input_offset = (int)(number / 5) % offsets;
    c->target_offset = (int)(number / 2) % offsets;
    c->grad_offset = (int)(number / 7) % offsets;
    c->result_offset = (int)number % 3;
    c->in_place = number % 5 == 4;
    c->guard = number % 2 ? 256 : 0;
    c->own_workspace = number % 7 == 3;
    if (number % 6 == 5 && (c->input_kind == GPULOSS_PROBABILITIES || c->target_kind == GPULOSS_PROBABILITIES))
        c->eps = 1e-3;
}

/* Tests a case with and without the terms. Numbers of 16 bits have a shorter path without them. */
static void test_both_ways(const kl_case *with_terms, const char *what) {
    kl_case c = *with_terms;
    kl_test(&c, what);
    c.outputs &= ~(unsigned)KL_OUT_LOSS_ELEMENTS;
    if (c.outputs != with_terms->outputs)
        kl_test(&c, what);
}

static void run_shape(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned number) {
    distribution_kind kind = (distribution_kind)(number % DISTRIBUTIONS_KINDS);
    kl_case c = kl_case_of_pair(dtype, rows, classes, number + number / KL_PAIRS);
    kl_inputs in = kl_inputs_new(&c, kind, number);
    vary(&c, number);
    if (number % 4 == 1)
        c.outputs &= ~(unsigned)KL_OUT_LOSS_ELEMENTS;
    kl_test(&c, distribution_kind_name(kind));
    kl_inputs_free(&in);
}

SHAPES_TEST(shapes_f32, GPULOSS_F32, run_shape)
SHAPES_TEST(shapes_f64, GPULOSS_F64, run_shape)
SHAPES_TEST(shapes_f16, GPULOSS_F16, run_shape)
SHAPES_TEST(shapes_bf16, GPULOSS_BF16, run_shape)

/* Every pair of kinds with every sort of data, with and without eps, with every reduction. */
static void every_kind(void **state) {
    static const int64_t classes[] = {1, 10, 2500};
    static const double eps[] = {0, 1e-12, 1e-3};
    size_t d, k;
    unsigned pair, e, n = 0;
    int kind;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (pair = 0; pair < KL_PAIRS; pair++)
                for (kind = 0; kind < DISTRIBUTIONS_KINDS; kind++) {
                    kl_case c = kl_case_of_pair(all_dtypes[d], 3, classes[k], pair);
                    kl_inputs in = kl_inputs_new(&c, (distribution_kind)kind, 4);
                    for (e = 0; e < 3; e++) {
                        if (e > 0 && pair == KL_PAIRS - 1) /* eps needs a side of probabilities */
                            continue;
                        c.eps = eps[e];
                        c.reduction = all_reductions[n++ % REDUCTION_COUNT];
                        test_both_ways(&c, distribution_kind_name((distribution_kind)kind));
                    }
                    kl_inputs_free(&in);
                }
    test_done();
}

static void every_offset(void **state) {
    enum { ROWS = 3, CLASSES = 67 };
    size_t d;
    unsigned pair;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        int offsets = (int)(16 / dtype_size(all_dtypes[d])), i, j;
        for (pair = 0; pair < KL_PAIRS; pair += harness_small ? 3 : 1) {
            kl_case c = kl_case_of_pair(all_dtypes[d], ROWS, CLASSES, pair);
            kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, 3);
            for (i = 0; i < offsets; i++)
                for (j = 0; j < offsets; j++) {
                    c.input_offset = i;
                    c.target_offset = j;
                    c.grad_offset = (i + 2 * j) % offsets;
                    c.result_offset = (i + j) % 4;
                    c.guard = (i + j) % 2 ? 256 : 0;
                    kl_test(&c, "offsets");
                }
            c.input_offset = c.target_offset = c.result_offset = 0;
            for (i = 0; i < offsets; i++) {
                c.grad_offset = i;
                kl_test(&c, "offsets of the gradient");
            }
            kl_inputs_free(&in);
        }
    }
    test_done();
}

/* Every set of outputs with every reduction. */
static void every_set_of_outputs(void **state) {
    static const int64_t classes[] = {37, 2500};
    size_t d, k, n;
    unsigned outputs;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (n = 0; n < sizeof classes / sizeof classes[0]; n++) {
            kl_case c = kl_case_of_pair(all_dtypes[d], 4, classes[n], (unsigned)d);
            kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, 9);
            for (k = 0; k < REDUCTION_COUNT; k++)
                for (outputs = 1; outputs <= KL_OUT_ALL; outputs++) {
                    c.reduction = all_reductions[k];
                    c.outputs = outputs;
                    if (c.reduction == GPULOSS_NONE && outputs & KL_OUT_LOSS)
                        continue;
                    kl_test(&c, "outputs");
                }
            kl_inputs_free(&in);
        }
    test_done();
}

static void gradient_factors(void **state) {
    enum { ROWS = 5, CLASSES = 43 };
    static const double scales[] = {0.0, -1.5, 1.0 / 3.0};
    static const double upstream = -0.75;
    static const double weights[ROWS] = {1.0, 0.0, -2.0, 0.125, 3.0};
    size_t d, k;
    unsigned given;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof scales / sizeof scales[0]; k++)
            for (given = 0; given < 8; given++) {
                kl_case c = kl_case_of_pair(all_dtypes[d], ROWS, CLASSES, given);
                kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, 8);
                c.reduction = all_reductions[(k + given) % REDUCTION_COUNT];
                c.in_place = given % 2;
                c.use_grad_scale = given & 1;
                c.grad_scale = scales[k];
                c.grad_loss = given & 2 && c.reduction != GPULOSS_NONE ? &upstream : NULL;
                c.grad_loss_rows = given & 4 ? weights : NULL;
                kl_test(&c, "factors");
                kl_inputs_free(&in);
            }
    test_done();
}

/* The corners of the zero rule, a column each, as probabilities. */
static const double corner_q[] = {0.25, 0.0, 0.5, 0.0, 0.5, 0.25};
static const double corner_t[] = {0.25, 0.0, 0.0, 0.5, 0.25, 0.0};
enum { CORNERS = 6 };

static void put_corners(kl_inputs *in, const kl_case *c) {
    int64_t i;
    for (i = 0; i < c->rows * c->classes; i++) {
        double q = corner_q[i % CORNERS], t = corner_t[i % CORNERS];
        in->input[i] = dtype_round(c->dtype, c->input_kind == GPULOSS_LOG_PROBABILITIES ? log(q) : q);
        in->target[i] = dtype_round(c->dtype, c->target_kind == GPULOSS_LOG_PROBABILITIES ? log(t) : t);
    }
}

/* t = 0 with q = 0 and q > 0, t > 0 with q = 0, by our rule and by PyTorch's. */
static void zeros(void **state) {
    static const int64_t classes[] = {6, 8, 2500};
    size_t d, k;
    unsigned pair, pytorch;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (pair = 0; pair < KL_PAIRS; pair++)
                for (pytorch = 0; pytorch < 4; pytorch++) {
                    kl_case c = kl_case_of_pair(all_dtypes[d], 2, classes[k], pair);
                    kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, 1);
                    put_corners(&in, &c);
                    c.pytorch_zeros = pytorch % 2;
                    c.reduction = all_reductions[pair];
                    if (pytorch >= 2) {
                        if (pair == KL_PAIRS - 1)
                            c.outputs = KL_OUT_GRAD;
                        else
                            c.eps = 1e-3;
                    }
                    test_both_ways(&c, "zeros");
                    kl_inputs_free(&in);
                }
    test_done();
}

/* t = 0 hides a NaN of the input; anything else does not. Negative and NaN targets give NaN, to their row alone. */
static void not_probabilities(void **state) {
    enum { ROWS = 6, CLASSES = 40 };
    size_t d;
    unsigned pair;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (pair = 0; pair < KL_PAIRS; pair++) {
            kl_case c = kl_case_of_pair(all_dtypes[d], ROWS, CLASSES, pair);
            kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_LOOSE, 2);
            bool log_target = c.target_kind == GPULOSS_LOG_PROBABILITIES;
            in.input[1 * CLASSES + 3] = (double)NAN;
            in.target[2 * CLASSES + 5] = (double)NAN;
            in.input[3 * CLASSES + 7] = (double)NAN;
            in.target[3 * CLASSES + 7] = log_target ? -(double)INFINITY : 0.0;
            if (!log_target)
                in.target[4 * CLASSES + 39] = -0.5;
            test_both_ways(&c, "NaN and negative");
            if (!log_target) {
                c.eps = 0.75; /* more than the negative target lacks */
                test_both_ways(&c, "NaN and negative, lifted by eps");
            }
            kl_inputs_free(&in);
        }
    test_done();
}

/* Ratios whose quotient overflows the type, and subnormal probabilities: the terms stay finite. The gradient -t / q may
 * overflow, so it is not requested. */
static void extreme_ratios(void **state) {
    enum { ROWS = 1, CLASSES = 6 };
    size_t d;
    unsigned pair;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (pair = 0; pair < KL_PAIRS - 1; pair++) {
            kl_case c = kl_case_of_pair(all_dtypes[d], ROWS, CLASSES, pair);
            kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, 2);
            double tiny = dtype_ulp(all_dtypes[d], 0), normal = dtype_min_normal(all_dtypes[d]);
            if (c.input_kind == GPULOSS_PROBABILITIES) {
                in.input[0] = tiny;
                in.input[1] = normal;
                in.input[2] = dtype_round(c.dtype, normal / 3);
                in.input[3] = tiny;
            }
            if (c.target_kind == GPULOSS_PROBABILITIES) {
                in.target[3] = tiny;
                in.target[4] = normal;
                in.target[5] = dtype_round(c.dtype, normal / 3);
            }
            c.outputs = KL_OUT_ALL & ~(unsigned)KL_OUT_GRAD;
            test_both_ways(&c, "extreme ratios");
            kl_inputs_free(&in);
        }
    test_done();
}

/* The relative error that float logarithms of the two sides, each rounded, leave in the divergence. */
static long double error_of_two_logarithms(const kl_case *c, long double divergence) {
    double sum = 0;
    int64_t i;
    for (i = 0; i < c->rows * c->classes; i++) {
        float t = (float)c->target[i], difference = logf(t) - logf((float)c->input[i]);
        sum += (double)(t * difference);
    }
    return fabsl((long double)sum / (long double)c->rows - divergence) / divergence;
}

/* Distributions that nearly agree: the terms cancel down to 5e-4 of their magnitude. The bound is the usual one, from
 * each term's own relative error. In addition, float must not be worse than the difference of two logarithms. */
static void close_distributions(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F64};
    int64_t rows = harness_small ? 4 : 256, classes = harness_small ? 4096 : 16384;
    size_t d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++) {
        kl_case c = kl_case_of_pair(dtypes[d], rows, classes, 0);
        kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_CLOSE, 6);
        long double error;
        kl_expected expected;
        kl_result result;
        char text[KL_DESCRIPTION];
        report r;
        kl_describe(&c, "close distributions", text, sizeof text);
        r = report_on(text);
        c.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS;
        kl_run(&c, &result, &r);
        kl_check(&c, &result, &r);
        kl_expect(&c, &expected);
        error = fabsl((long double)result.loss - expected.ref.loss) / expected.ref.loss;
        print_message("close distributions %s: divergence %.3Le, relative error %.2Le, allowed %.2Le\n",
                      dtype_name(dtypes[d]), expected.ref.loss, error, expected.loss / expected.ref.loss);
        if (dtypes[d] == GPULOSS_F32 && error > error_of_two_logarithms(&c, expected.ref.loss))
            report_failure(&r, "relative error", 0, 0, "%.2Le, but two logarithms leave %.2Le", error,
                           error_of_two_logarithms(&c, expected.ref.loss));
        kl_expected_free(&expected);
        kl_free(&result);
        kl_inputs_free(&in);
        case_done(&r);
    }
    test_done();
}

/* Numbers of 16 bits are cut into rows: enough for each block to take wide tiles of rows, and a last row that is not
 * whole. */
static void many_wide_tiles(void **state) {
    enum { ROW = 16384, WIDE_TILE = 4, BLOCKS = 4 };
    gpuloss_info info;
    (void)state;
    REQUIRE_GPU();
    require_ok(gpuloss_get_info(harness_context, &info));
    {
        int64_t rows = WIDE_TILE * (BLOCKS * (int64_t)info.multiprocessors + 3) + 2;
        kl_case c = kl_case_of_pair(GPULOSS_BF16, 1, rows * ROW + 77, 0);
        kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_LOOSE, 11);
        c.outputs = KL_OUT_LOSS;
        kl_test(&c, "wide tiles");
        kl_inputs_free(&in);
    }
    test_done();
}

/* Numbers of 16 bits, one a row, so that each term shows by itself. The target is next to the input, or up to 2^8 away,
 * or the input is 0. */
static void lone_terms(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F16, GPULOSS_BF16};
    int64_t rows = harness_small ? 500 : 20000, i;
    size_t d;
    unsigned pair;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (pair = 0; pair < KL_PAIRS; pair++) {
            kl_case c = kl_case_of_pair(dtypes[d], rows, 1, pair);
            kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, 4);
            for (i = 0; i < rows; i++) {
                double q = exp2(-fmod((double)i * 0.6180339887498949, 8)), t = exp2(-fmod((double)i * 0.7548776662, 8));
                q = i % 50 == 48 ? 0 : dtype_round(c.dtype, q);
                if (i % 2)
                    t = q + (double)(i / 2 % 7 - 3) * dtype_ulp(c.dtype, q);
                in.input[i] = dtype_round(c.dtype, c.input_kind == GPULOSS_LOG_PROBABILITIES ? log(q) : q);
                in.target[i] = dtype_round(c.dtype, c.target_kind == GPULOSS_LOG_PROBABILITIES ? log(t) : t);
            }
            c.reduction = GPULOSS_SUM;
            c.outputs = KL_OUT_LOSS_ROWS;
            kl_test(&c, "lone terms");
            c.outputs = KL_OUT_LOSS_ROWS | KL_OUT_GRAD;
            kl_test(&c, "lone terms");
            c.outputs = KL_OUT_GRAD;
            c.eps = pair < KL_PAIRS - 1 ? 1e-3 : 0; /* eps needs a side of probabilities */
            kl_test(&c, "lone terms");
            kl_inputs_free(&in);
        }
    test_done();
}

static void zero_rows(void **state) {
    size_t d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < REDUCTION_COUNT; k++) {
            kl_case c = kl_case_of_pair(all_dtypes[d], 1, 9, (unsigned)k);
            kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, 2);
            c.rows = 0;
            c.reduction = all_reductions[k];
            kl_test(&c, "no rows");
            kl_inputs_free(&in);
        }
    test_done();
}

int run_kl_div_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_f32),
        cmocka_unit_test(shapes_f64),
        cmocka_unit_test(shapes_f16),
        cmocka_unit_test(shapes_bf16),
        cmocka_unit_test(every_kind),
        cmocka_unit_test(every_offset),
        cmocka_unit_test(gradient_factors),
        cmocka_unit_test(every_set_of_outputs),
        cmocka_unit_test(zeros),
        cmocka_unit_test(extreme_ratios),
        cmocka_unit_test(not_probabilities),
        cmocka_unit_test(close_distributions),
        cmocka_unit_test(many_wide_tiles),
        cmocka_unit_test(lone_terms),
        cmocka_unit_test(zero_rows),
    };
    return cmocka_run_group_tests_name("kl_div", tests, NULL, NULL);
}
