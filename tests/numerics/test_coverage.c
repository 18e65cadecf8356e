/* Code of the kernels that the other tests do not execute: the ends of the exact sum (coverage_sums.c), each group size with more
 * rows than groups, more rows than the grid takes at once, every option on the longest rows, and the slow ways of the
 * logarithms. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "coverage_sums.h"
#include "run_cross_entropy.h"
#include "run_kl_div.h"
#include "suites.h"

/* Groups of every size with more rows than groups, so that all groups of a block work and go on to a second row; with
 * and without what makes a row's threads meet. */
static void groups_of_kl_div(void **state) {
    static const int64_t vectors[] = {3, 20, 100, 200, 400};
    size_t d, k;
    unsigned pair, separate_sums;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof vectors / sizeof vectors[0]; k++)
            for (pair = 0; pair < KL_PAIRS; pair++) {
                int64_t rows = vectors[k] > 128 ? 5 : 9;
                int64_t classes = vectors[k] * (int64_t)(16 / dtype_size(all_dtypes[d]));
                kl_case c = kl_case_of_pair(all_dtypes[d], rows, classes, pair);
                kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, k);
                c.input_stride = STRIDE_ONE_MORE;
                for (separate_sums = 0; separate_sums < 2; separate_sums++) {
                    c.outputs = KL_OUT_LOSS | KL_OUT_GRAD | (separate_sums ? 0u : (unsigned)KL_OUT_LOSS_ROWS);
                    kl_test(&c, "groups");
                }
                kl_inputs_free(&in);
            }
    test_done();
}

static void groups_of_cross_entropy(void **state) {
    static const int64_t vectors[] = {300, 600};
    static const int64_t targets[] = {0, 5, 1199, 7, 600};
    enum { ROWS = 5 };
    size_t d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof vectors / sizeof vectors[0]; k++) {
            int64_t classes = vectors[k] * (int64_t)(16 / dtype_size(all_dtypes[d]));
            double *x = require_doubles(ROWS * classes), lse[ROWS] = {3, 4, 5, 6, 7};
            ce_case c = ce_case_of(all_dtypes[d], ROWS, classes, x, targets);
            make_logits(x, ROWS, classes, LOGITS_NORMAL, c.dtype, k);
            ce_test(&c, "groups");
            c.lse_in = lse;
            ce_test(&c, "groups with lse_in");
            free(x);
        }
    test_done();
}

/* More rows than sixteen times the grid's groups, which are taken several at a time from the queue. */
static void more_rows_than_the_grid(void **state) {
    int64_t rows = harness_small ? 28700 : 1700000, row;
    int64_t *targets = (int64_t *)require_memory((size_t)rows * sizeof *targets);
    double *x = require_doubles(rows), *y = require_doubles(rows);
    size_t d;
    unsigned pair;
    (void)state;
    REQUIRE_GPU();
    for (row = 0; row < rows; row++) {
        targets[row] = 0;
        x[row] = (double)(row % 61 + 1) / 64;
        y[row] = (double)(row % 53 + 1) / 64;
    }
    for (d = 0; d < DTYPE_COUNT; d++) {
        ce_case c = ce_case_of(all_dtypes[d], rows, 1, x, targets);
        c.outputs = CE_OUT_LOSS | CE_OUT_LSE | CE_OUT_GRAD;
        c.logits_stride = STRIDE_ONE_MORE;
        ce_test(&c, "more rows than the grid");
        for (pair = 0; pair < KL_PAIRS; pair++) {
            kl_case k = kl_case_of_pair(all_dtypes[d], rows, 1, pair);
            k.input = x;
            k.target = y;
            k.target_stride = STRIDE_ONE_MORE;
            k.outputs = KL_OUT_LOSS | (d % 2 ? KL_OUT_GRAD : KL_OUT_LOSS_ROWS);
            kl_test(&k, "more rows than the grid");
        }
    }
    free(targets);
    free(x);
    free(y);
    test_done();
}

/* More rows of a whole block each than there are blocks. */
static void more_blocks_than_the_grid(void **state) {
    int64_t rows = harness_small ? 9 : 1300;
    size_t d;
    unsigned pair;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (pair = 0; pair < KL_PAIRS; pair++) {
            int64_t classes = (int64_t)(513 * 16 / dtype_size(all_dtypes[d]));
            kl_case c = kl_case_of_pair(all_dtypes[d], rows, classes, pair);
            kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, 1);
            c.outputs = KL_OUT_LOSS_ROWS;
            kl_test(&c, "more rows than blocks");
            kl_inputs_free(&in);
        }
    test_done();
}

/* Every option of cross-entropy on rows that are streamed. */
static void options_of_long_rows(void **state) {
    enum { ROWS = 9 };
    static const double upstream = -0.75;
    static const double weights[ROWS] = {1.0, 0.0, -2.0, 0.125, 3.0, 1.0, -1.0, 0.5, 2.0};
    size_t d;
    int option, row;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        int64_t classes = (int64_t)(2048 * 16 / dtype_size(all_dtypes[d])) + 5, targets[ROWS];
        double *x = require_doubles(ROWS * classes);
        make_logits(x, ROWS, classes, LOGITS_NORMAL, all_dtypes[d], d);
        for (option = 0; option < 4; option++) {
            ce_case c = ce_case_of(all_dtypes[d], option ? 3 : ROWS, classes, x, targets);
            for (row = 0; row < ROWS; row++)
                targets[row] = row * ((classes - 1) / (ROWS - 1) + 1) % classes;
            c.logits_offset = option % 2;
            c.index_type = option % 2 ? GPULOSS_I32 : GPULOSS_I64;
            c.outputs = option ? CE_OUT_ALL : CE_OUT_LOSS | CE_OUT_LOSS_ROWS | CE_OUT_GRAD;
            c.grad_loss = option == 1 ? &upstream : NULL;
            c.grad_loss_rows = option > 1 ? weights : NULL;
            if (option == 2) {
                targets[0] = -100;
                targets[1] = classes;
                c.use_ignore_index = true;
                c.ignore_index = -100;
            }
            if (option == 3)
                x[classes + 17] = (double)NAN;
            ce_test(&c, "options of long rows");
        }
        free(x);
    }
    test_done();
}

/* A target in every place of a thread's vectors. */
static void every_position_of_the_target(void **state) {
    size_t d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        enum { MOST = 64 };
        int64_t classes = (int64_t)(8 * 16 / dtype_size(all_dtypes[d])), targets[MOST], row;
        double *x = require_doubles(classes * classes);
        ce_case c = ce_case_of(all_dtypes[d], classes, classes, x, targets);
        make_logits(x, classes, classes, LOGITS_NORMAL, c.dtype, d);
        for (row = 0; row < classes; row++)
            targets[row] = row;
        ce_test(&c, "every place of the target");
        free(x);
    }
    test_done();
}

/* Doubles whose exponentials are subnormal: next to the maximum, before it in a thread's share of the row, and in
 * shares of their own; the logarithms of targets as well. */
static void subnormal_exponentials(void **state) {
    static const int64_t lengths[] = {16, 64, 512, 1024, 5000};
    enum { ROWS = 4 };
    size_t k;
    int64_t i;
    unsigned pair;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
        int64_t n = lengths[k], targets[ROWS] = {1, 0, n / 2, n - 1};
        double *x = require_doubles(ROWS * n), *y = require_doubles(ROWS * n), lse[ROWS] = {725, 0.5, 0.5, 0.5};
        ce_case c = ce_case_of(GPULOSS_F64, ROWS, n, x, targets);
        for (i = 0; i < n; i++) {
            x[i] = i % 2 ? -720.5 : 0;
            x[n + i] = i % 2 ? 0 : -720.5;
            x[2 * n + i] = i < n / 2 ? -720.5 : 0;
            x[3 * n + i] = i < n - 1 ? -720.5 : 0;
        }
        ce_test(&c, "subnormal exponentials");
        c.lse_in = lse;
        ce_test(&c, "subnormal exponentials from an lse");
        for (pair = 2; pair < KL_PAIRS; pair++) {
            kl_case l = kl_case_of_pair(GPULOSS_F64, ROWS, n, pair);
            l.input = y;
            l.target = x;
            for (i = 0; i < ROWS * n; i++)
                y[i] = l.input_kind == GPULOSS_PROBABILITIES ? 0.25 : -1.5;
            kl_test(&l, "subnormal exponentials");
            l.pytorch_zeros = true;
            l.input_stride = STRIDE_ONE_MORE;
            l.target_offset = 1;
            kl_test(&l, "subnormal exponentials");
        }
        free(x);
        free(y);
    }
    test_done();
}

/* The factor of the gradient that lies in memory, for every kernel. */
static void upstream_gradients(void **state) {
    enum { ROWS = 2, CLASSES = 11 };
    static const double upstream = -0.75;
    size_t d;
    unsigned pair;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (pair = 0; pair < KL_PAIRS; pair++) {
            kl_case c = kl_case_of_pair(all_dtypes[d], ROWS, CLASSES, pair);
            kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, d);
            c.grad_loss = &upstream;
            kl_test(&c, "upstream gradient");
            kl_inputs_free(&in);
        }
    test_done();
}

/* The same place in the range of double. */
static double exponent_of(double of_float, bool is_double) {
    return is_double ? of_float * 8 + (of_float > 1 ? 7 : 0) : of_float;
}

static double positive(gpuloss_dtype dtype, double exponent) {
    double smallest = dtype_ulp(dtype, 0), value = ldexp(1, (int)exponent);
    return value < smallest ? smallest : value;
}

/* The paths for numbers too small or too large for the logarithm of a ratio, each in every position of a vector. */
static void distant_ratios(void **state) {
    static const double distant[][2] = {
        /* target, input: as powers of two for float */
        {-140, 1},  {-140, 100}, {0, -140}, {100, -140}, {0, 127},
        {-30, 127}, {127, 127},  {126, 1},  {127, -127}, {-149, -149},
    };
    enum { ROWS = sizeof distant / sizeof distant[0], POSITIONS = 16 };
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16, GPULOSS_F64};
    size_t d;
    int i;
    unsigned pair, pytorch;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
        for (pair = 0; pair < KL_PAIRS - 1; pair++) {
            kl_case c = kl_case_of_pair(dtypes[d], ROWS, POSITIONS, pair);
            kl_inputs in = kl_inputs_unset(&c);
            bool is_double = c.dtype == GPULOSS_F64;
            for (i = 0; i < ROWS * POSITIONS; i++) {
                const double *of = distant[(i + i / POSITIONS) % ROWS];
                double t = exponent_of(of[0], is_double), q = exponent_of(of[1], is_double);
                in.target[i] =
                    c.target_kind == GPULOSS_PROBABILITIES ? positive(c.dtype, t) : 0.6875 * (t < 0 ? t : t / 2);
                in.input[i] = c.input_kind == GPULOSS_PROBABILITIES ? positive(c.dtype, q) : 0.6875 * q;
                in.target[i] = dtype_round(c.dtype, in.target[i]);
                in.input[i] = dtype_round(c.dtype, in.input[i]);
            }
            c.reduction = GPULOSS_NONE;
            c.outputs = KL_OUT_LOSS_ROWS | KL_OUT_LOSS_ELEMENTS;
            for (pytorch = 0; pytorch < 2; pytorch++) {
                c.pytorch_zeros = pytorch;
                kl_test(&c, "distant ratios");
            }
            kl_inputs_free(&in);
        }
    test_done();
}

/* Positive numbers from all over the range, in every combination. */
static void any_positive_numbers(void **state) {
    enum { ROWS = 16, CLASSES = 128 };
    double *input = require_doubles(ROWS * CLASSES), *target = require_doubles(ROWS * CLASSES);
    size_t d;
    int i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        kl_case c = kl_case_of(all_dtypes[d], ROWS, CLASSES, input, target);
        int lowest = dtype_min_exponent(c.dtype);
        double highest = log2(dtype_max(c.dtype)) - 1;
        random_source r = random_from(d);
        for (i = 0; i < ROWS * CLASSES; i++) {
            double t = exp2(random_uniform(&r, lowest, highest)), q = exp2(random_uniform(&r, lowest, highest));
            target[i] = dtype_round(c.dtype, t);
            input[i] = dtype_round(c.dtype, i % 3 == 0 ? t : q);
        }
        c.reduction = GPULOSS_NONE;
        c.outputs = KL_OUT_LOSS_ELEMENTS;
        kl_test(&c, "any positive numbers");
    }
    free(input);
    free(target);
    test_done();
}

/* Inputs next to the ends of the range in which a ratio's logarithm is taken without scaling, for each pair of leading
 * digits: neither the scaled target nor its sum with the input may leave the normal numbers. */
static void inputs_at_the_ends(void **state) {
    enum { DIGITS = 16, EXPONENTS = 6 };
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16, GPULOSS_F64};
    double *input = require_doubles(EXPONENTS * DIGITS * DIGITS),
           *target = require_doubles(EXPONENTS * DIGITS * DIGITS);
    size_t d;
    int e, i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        kl_case c = kl_case_of(dtypes[d], EXPONENTS, DIGITS * DIGITS, input, target);
        int range = c.dtype == GPULOSS_F64 ? 1024 : 128;
        for (e = 0; e < EXPONENTS; e++)
            for (i = 0; i < DIGITS * DIGITS; i++) {
                int exponent = e < EXPONENTS / 2 ? 2 - range + e : range + 1 - e;
                input[e * DIGITS * DIGITS + i] = ldexp(1 + (double)(i / DIGITS) / DIGITS, exponent);
                target[e * DIGITS * DIGITS + i] = 0.5 + 0.5 * (double)(i % DIGITS) / DIGITS;
            }
        c.reduction = GPULOSS_NONE;
        c.outputs = KL_OUT_LOSS_ELEMENTS;
        kl_test(&c, "inputs at the ends of the range");
    }
    free(input);
    free(target);
    test_done();
}

/* A negative number has no logarithm, though its ratio to another may have one, or vanish. */
static void negative_numbers(void **state) {
    enum { ROWS = 5 };
    size_t d;
    unsigned pytorch;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (pytorch = 0; pytorch < 2; pytorch++) {
            double tiny = dtype_ulp(all_dtypes[d], 0), huge = dtype_max(all_dtypes[d]);
            const double input[ROWS] = {-0.5, 0.5, -0.25, -huge, huge}, target[ROWS] = {-0.25, -0.25, 0.5, tiny, -tiny};
            kl_case c = kl_case_of(all_dtypes[d], ROWS, 1, input, target);
            c.pytorch_zeros = pytorch;
            c.reduction = GPULOSS_NONE;
            c.outputs = KL_OUT_LOSS_ELEMENTS | KL_OUT_LOSS_ROWS;
            kl_test(&c, "negative numbers");
        }
    test_done();
}

/* Sums of 16-bit terms that pass 2^40: the largest there are, as many as it takes. */
static void sums_of_large_halves(void **state) {
    static const int64_t lengths[KL_PAIRS] = {700000, 300, 300, 300};
    unsigned pair;
    (void)state;
    REQUIRE_GPU();
    for (pair = 0; pair < KL_PAIRS; pair++) {
        int64_t n = lengths[pair], i;
        kl_case c = kl_case_of_pair(GPULOSS_F16, 1, n, pair);
        kl_inputs in = kl_inputs_unset(&c);
        for (i = 0; i < n; i++) {
            in.input[i] = c.input_kind == GPULOSS_PROBABILITIES ? 0x1p-24 : -65504;
            in.target[i] = c.target_kind == GPULOSS_PROBABILITIES ? 65504 : 25;
        }
        c.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS;
        kl_test(&c, "large halves");
        kl_inputs_free(&in);
    }
    test_done();
}

/* Losses of rows and columns without options, of very different sizes. The target's logit is -2^e of another. */
static void sums_of_distant_logits(void **state) {
    enum { ROWS = 8, MOST = 3000 };
    static const int exponents[][ROWS] = {{100, 1, 1, 1, 1, 1, 1, -100}, {80, 80, -80, 80, 80, 80, 20, 1}};
    static const int64_t shapes[][2] = {{3, 0},    {40, 0},   {1000, 0},
                                        {MOST, 0}, {3, ROWS}, {60, ROWS}}; /* classes, inner */
    static const int64_t targets[ROWS] = {0};
    static double x[ROWS * MOST];
    size_t d, k, e;
    int64_t row, class;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (e = 0; e < sizeof exponents / sizeof exponents[0]; e++) {
                const int64_t classes = shapes[k][0], inner = shapes[k][1];
                ce_case c = ce_case_of(all_dtypes[d], ROWS, classes, x, targets);
                if (c.dtype == GPULOSS_F16)
                    continue; /* 2^15 is its largest power */
                c.inner = inner;
                c.reduction = GPULOSS_SUM;
                c.outputs = CE_OUT_LOSS | CE_OUT_LOSS_ROWS;
                for (row = 0; row < ROWS; row++)
                    for (class = 0; class < classes; class ++)
                        x[inner == 0 ? row * classes + class : class * inner + row] =
                            class == 0 ? -ldexp(1, exponents[e][row] * (c.dtype == GPULOSS_F64 ? 9 : 1)) : 0;
                ce_test(&c, "distant logits");
            }
    test_done();
}

/* No rows at all, of any length. */
static void no_long_rows(void **state) {
    static const double x[1] = {0};
    static const int64_t targets[1] = {0};
    size_t d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        ce_case c = ce_case_of(all_dtypes[d], 0, 20000, x, targets);
        ce_test(&c, "no long rows");
    }
    test_done();
}

/* Inputs that are no probabilities but have a logarithm, and those that have none. */
static void infinite_inputs(void **state) {
    static const double values[][2] = {
        {0.5, (double)INFINITY},
        {0, (double)INFINITY},
        {0.5, 0},
        {0, 0},
        {(double)INFINITY, 0.5},
        {0, (double)NAN},
        {0.25, -1},
        {1, 1},
        {0, 1},
    };
    enum { ROWS = sizeof values / sizeof values[0], POSITIONS = 16 };
    size_t d;
    int i;
    unsigned pair, pytorch;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (pair = 0; pair < KL_PAIRS; pair++)
            for (pytorch = 0; pytorch < 2; pytorch++) {
                kl_case c = kl_case_of_pair(all_dtypes[d], ROWS, POSITIONS, pair);
                kl_inputs in = kl_inputs_unset(&c);
                for (i = 0; i < ROWS * POSITIONS; i++) {
                    double t = values[(i + i / POSITIONS) % ROWS][0], q = values[(i + i / POSITIONS) % ROWS][1];
                    in.target[i] = c.target_kind == GPULOSS_PROBABILITIES ? t : dtype_round(c.dtype, log(t));
                    in.input[i] = c.input_kind == GPULOSS_PROBABILITIES ? q : dtype_round(c.dtype, log(q));
                }
                c.pytorch_zeros = pytorch;
                c.reduction = GPULOSS_NONE;
                c.outputs = KL_OUT_LOSS_ROWS | KL_OUT_LOSS_ELEMENTS;
                kl_test(&c, "infinite inputs");
                kl_inputs_free(&in);
            }
    test_done();
}

int run_coverage_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_sums_of_cross_entropy),
        cmocka_unit_test(carries_of_sums),
        cmocka_unit_test(exact_sums_of_long_rows),
        cmocka_unit_test(exact_sums_of_kl_div),
        cmocka_unit_test(sums_of_distant_rows),
        cmocka_unit_test(groups_of_kl_div),
        cmocka_unit_test(groups_of_cross_entropy),
        cmocka_unit_test(more_rows_than_the_grid),
        cmocka_unit_test(more_blocks_than_the_grid),
        cmocka_unit_test(options_of_long_rows),
        cmocka_unit_test(every_position_of_the_target),
        cmocka_unit_test(subnormal_exponentials),
        cmocka_unit_test(upstream_gradients),
        cmocka_unit_test(no_long_rows),
        cmocka_unit_test(sums_of_large_halves),
        cmocka_unit_test(sums_of_distant_logits),
        cmocka_unit_test(any_positive_numbers),
        cmocka_unit_test(inputs_at_the_ends),
        cmocka_unit_test(negative_numbers),
        cmocka_unit_test(distant_ratios),
        cmocka_unit_test(infinite_inputs),
    };
    return cmocka_run_group_tests_name("coverage", tests, NULL, NULL);
}
