/* Coverage of divergences of pairs beyond the other tests: elements that take the slow way, in every sweep and for every
 * output, most of longer rows, and more steps and rows than a warp knows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "run_common.h"
#include "suites.h"

static const double inf = (double)INFINITY;
static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* The elements of a side. */
typedef struct elements {
    double *of;
    gpuloss_dtype dtype;
    gpuloss_kind kind;
    int64_t rows, classes;
} elements;

static void put(const elements *e, int64_t row, int64_t i, double value) {
    e->of[row * e->classes + i] = dtype_round(e->dtype, value);
}

typedef void disturb_function(const elements *e, unsigned number);

/* Probabilities that are 0, subnormal or large, and logarithms of all sizes. Doubles beside other types are floats. */
static void with_ratios(const elements *e, unsigned number) {
    const gpuloss_dtype narrowest = e->dtype == GPULOSS_F64 ? GPULOSS_F32 : e->dtype;
    const double probabilities[] = {0, dtype_ulp(narrowest, 0), dtype_min_normal(narrowest) * 1.5, 1.25, 40000};
    static const double logarithms[] = {-0.001, -90, -720, -3, -inf};
    int64_t row, i;
    for (row = 1; row < e->rows; row++)
        for (i = row; e->kind != GPULOSS_LOGITS && i < e->classes; i += 7 + row)
            put(e, row, i,
                e->kind == GPULOSS_PROBABILITIES ? probabilities[(i + number) % 5] : logarithms[(i + number) % 5]);
}

/* A number that is no probability, in every position of a vector and at the ends of a row. */
static void with_invalid(const elements *e, unsigned number) {
    const int64_t width = dtype_width(e->dtype);
    int64_t row;
    for (row = 0; row < e->rows; row++) {
        const int64_t i = row == e->rows - 1 ? (number % 2 == 0 ? 0 : e->classes - 1) : 20 * width + row;
        const double none = e->kind == GPULOSS_LOGITS && row % 2 == 1 ? inf : (double)NAN;
        put(e, row, i, e->kind == GPULOSS_PROBABILITIES ? -0.25 : none);
    }
}

/* Logits of which each quarter of a row has its own level. */
static void with_levels(const elements *e, unsigned number) {
    static const double levels[][4] = {{0, 0, -100, 0},  {-100, 50, -100, 0},  {-20000, 0, -20000, 9},
                                       {300, 0, 0, -50}, {-300, -200, 0, 200}, {-20000, -20000, -20000, -20000}};
    int64_t row, i;
    for (row = 0; row < e->rows; row++)
        for (i = 0; e->kind == GPULOSS_LOGITS && i < e->classes; i++)
            put(e, row, i, e->of[row * e->classes + i] + levels[(row + number) % 6][4 * i / e->classes]);
}

/* Masked classes in the middle of a row, all but one, or all. */
static void with_masks(const elements *e, unsigned number) {
    int64_t row, i;
    for (row = 0; row < e->rows; row++)
        for (i = 0; e->kind != GPULOSS_PROBABILITIES && i < e->classes; i++) {
            const unsigned way = (unsigned)(row + number) % 4;
            const bool is_masked = way == 0   ? i >= e->classes / 4 && i < 3 * e->classes / 4
                                   : way == 1 ? i != 77
                                   : way == 2 ? row == 3
                                              : i % 3 == 0;
            if (is_masked)
                put(e, row, i, -inf);
        }
}

static disturb_function *const corners[] = {with_ratios, with_invalid, with_levels, with_masks};
enum { CORNERS = sizeof corners / sizeof corners[0] };

/* Each corner of each pair of kinds with each divergence, in one side or both. Shapes, outputs, options and the type of
 * the target vary. */
static void corners_of_longer_rows(void **state) {
    static const divergence_shape shapes[] = {{9, 52}, {9, 130}, {9, 52}, {9, 130}, {3, 1100}}; /* in vectors */
    static const unsigned outputs[] = {KL_OUT_LOSS_ROWS, KL_OUT_LOSS_ROWS | KL_OUT_GRAD,
                                       KL_OUT_LOSS_ROWS | KL_OUT_GRAD_TARGET, KL_OUT_LOSS_ROWS | KL_OUT_LOSS_ELEMENTS,
                                       KL_OUT_LOSS_ROWS};
    static const unsigned options[] = {KL_WITH_ROW_WEIGHTS, KL_WITH_LABELS, KL_WITH_EPS | KL_WITH_ROW_WEIGHTS,
                                       KL_WITH_TEMPERATURE | KL_WITH_ROW_WEIGHTS};
    static const gpuloss_dtype passes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16, GPULOSS_F32};
    enum { PASSES = sizeof passes / sizeof passes[0] };
    static const double upstream = -0.75;
    unsigned d, pair, choice, corner, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < PASSES; d++) {
        number = 187 * d; /* The passes then have different shapes and types. */
        for (pair = 0; pair < KL_KIND_PAIRS; pair++)
            for (choice = 0; choice <= CHOICE_JS; choice++)
                for (corner = 0; corner < CORNERS; corner++, number++) {
                    const divergence_shape *s = &shapes[number / 3 % 5];
                    const divergence_shape shape = {s->rows, s->classes * dtype_width(passes[d]) + (number % 4 != 0)};
                    kl_case c =
                        divergence_case(passes[d], all_dtypes[(d + number / 5) % DTYPE_COUNT], shape, pair, choice);
                    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, options[number / 7 % 4], number);
                    const elements sides[] = {{in.input, c.dtype, c.input_kind, c.rows, c.classes},
                                              {in.target, kl_target_dtype(&c), c.target_kind, c.rows, c.classes}};
                    if (number % 3 != 1)
                        corners[corner](&sides[0], number);
                    if (number % 3 != 2)
                        corners[corner](&sides[1], number / 3);
                    c.outputs = outputs[(pair + choice + corner + d) % 5];
                    /* Gradients may have no meaning, or belong to a share of a mixture below the normal floats. */
                    if (corners[corner] == with_invalid ||
                        (corners[corner] == with_ratios && c.divergence == GPULOSS_JENSEN_SHANNON))
                        c.outputs = KL_OUT_LOSS_ROWS | (number % 8 < 4 ? (unsigned)KL_OUT_LOSS_ELEMENTS : 0u);
                    c.reduction = GPULOSS_SUM;
                    c.pytorch_zeros = choice == CHOICE_FORWARD && number % 3 == 0 && corners[corner] != with_levels;
                    c.grad_loss = (c.outputs & KL_OUT_GRAD) != 0 && number % 4 == 1 ? &upstream : NULL;
                    kl_test(&c, "corners of longer rows");
                    kl_inputs_free(&in);
                }
    }
    test_done();
}

/* KL with one or two sides of logits, which is summed along with the softmax, with every type of the target: rows of a
 * block and of a cluster, whose classes have levels. */
static void levels_of_longer_rows(void **state) {
    static const unsigned pairs[] = {2, 5, 6, 7, KL_KIND_PAIRS - 1};
    static const unsigned outputs[] = {KL_OUT_LOSS_ROWS, KL_OUT_LOSS_ROWS | KL_OUT_GRAD, KL_OUT_LOSS_ROWS};
    static const divergence_shape shapes[] = {{3, 1100}, {9, 60}}; /* in vectors */
    double of_rows[9];
    unsigned d, k, t, choice, shape, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 9; d++)
        of_rows[d] = (double)d - 3;
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof pairs / sizeof pairs[0]; k++)
            for (choice = CHOICE_FORWARD; choice <= CHOICE_REVERSE; choice++)
                for (t = 0; t < DTYPE_COUNT; t++)
                    for (shape = 0; shape < 2; shape++, number++) {
                        const int64_t classes = shapes[shape].classes * dtype_width(dtypes[d]) + (number % 3 != 0);
                        kl_case c = divergence_case(dtypes[d], all_dtypes[t],
                                                    (divergence_shape){shapes[shape].rows, classes}, pairs[k], choice);
                        kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM,
                                                         number % 2 ? KL_WITH_ROW_WEIGHTS : KL_WITH_LABELS, number / 2);
                        const elements sides[] = {{in.input, c.dtype, c.input_kind, c.rows, c.classes},
                                                  {in.target, kl_target_dtype(&c), c.target_kind, c.rows, c.classes}};
                        with_levels(&sides[0], number);
                        with_levels(&sides[1], number / 4);
                        c.outputs = outputs[number % 3];
                        c.reduction = GPULOSS_SUM;
                        c.grad_loss_rows = (c.outputs & KL_OUT_GRAD) != 0 ? of_rows : NULL;
                        kl_test(&c, "levels of longer rows");
                        kl_inputs_free(&in);
                    }
    test_done();
}

/* A case whose sides a test fills by rows. */
typedef struct filled_case {
    kl_case c;
    kl_inputs in;
    elements sides[2];
} filled_case;

static filled_case filled(gpuloss_dtype dtype, gpuloss_dtype target_dtype, divergence_shape shape, unsigned pair,
                          unsigned choice) {
    filled_case f;
    f.c = divergence_case(dtype, target_dtype, shape, pair, choice);
    f.in = divergence_inputs(&f.c, DISTRIBUTIONS_RANDOM, 0, pair);
    f.sides[0] = (elements){f.in.input, dtype, f.c.input_kind, shape.rows, shape.classes};
    f.sides[1] = (elements){f.in.target, kl_target_dtype(&f.c), f.c.target_kind, shape.rows, shape.classes};
    f.c.reduction = GPULOSS_SUM;
    return f;
}

static void check_filled(filled_case *f, unsigned outputs, const char *what) {
    f->c.outputs = outputs;
    kl_test(&f->c, what);
    kl_inputs_free(&f->in);
}

static void fill_row(const elements *e, int64_t row, double probability, double logarithm) {
    int64_t i;
    for (i = 0; i < e->classes && e->kind != GPULOSS_LOGITS; i++)
        put(e, row, i, e->kind == GPULOSS_PROBABILITIES ? probability : logarithm);
}

/* Rows of which every element of a side takes the slow way, so that it does in each position of a vector. */
static void odd_elements_of_pairs(void **state) {
    enum { ROWS = 6 };
    static const double odd[ROWS / 2][2] = {{-0.25, 0.25}, {(double)NAN, (double)NAN}, {inf, inf}};
    static const gpuloss_dtype passes[] = {GPULOSS_F32, GPULOSS_BF16, GPULOSS_F64};
    static const unsigned pairs[] = {0, 1, KL_KINDS}; /* without logits, and not of two logarithms */
    unsigned d, k, choice, number, row;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 3; d++)
        for (k = 0; k < sizeof pairs / sizeof pairs[0]; k++)
            for (choice = CHOICE_FORWARD; choice <= CHOICE_JS_HALF; choice++)
                for (number = 0; number < 4; number++) {
                    const divergence_shape shape = {ROWS, (number / 2 ? 50 : 5) * dtype_width(passes[d]) + 1};
                    const unsigned elements_of = number % 2 ? KL_OUT_LOSS_ELEMENTS : 0;
                    filled_case f = filled(passes[d], GPULOSS_DTYPE_UNSET, shape, pairs[k], choice);
                    for (row = 0; row < ROWS; row++)
                        fill_row(&f.sides[row % 2], row, odd[row / 2][0], odd[row / 2][1]);
                    check_filled(&f, KL_OUT_LOSS_ROWS | elements_of, "odd elements");
                }
    test_done();
}

/* Jensen-Shannon gradients of probabilities that are next to nothing beside the other side, in each position of a vector
 * and at the ends of rows. */
static void small_shares_of_longer_rows(void **state) {
    enum { ROWS = 4 };
    static const gpuloss_dtype passes[] = {GPULOSS_F32, GPULOSS_BF16};
    static const unsigned pairs[] = {1, KL_KINDS, 2, 2 * KL_KINDS};
    static const int exponents[ROWS] = {-126, -130, -126, -20};
    unsigned d, k, choice;
    int64_t row, i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (k = 0; k < sizeof pairs / sizeof pairs[0]; k++)
            for (choice = CHOICE_JS_HALF; choice <= CHOICE_JS; choice += CHOICE_JS - CHOICE_JS_HALF) {
                const divergence_shape shape = {ROWS, 50 * dtype_width(passes[d]) + 1};
                filled_case f = filled(passes[d], GPULOSS_DTYPE_UNSET, shape, pairs[k], choice);
                const elements *small = &f.sides[f.c.input_kind != GPULOSS_PROBABILITIES];
                for (row = 0; row < ROWS; row++)
                    for (i = 0; i < shape.classes; i++) {
                        put(small, row, i, ldexp(1 + 0.25 * (double)(i % 4), exponents[row]));
                        if (f.sides[small == f.sides].kind == GPULOSS_LOG_PROBABILITIES)
                            put(&f.sides[small == f.sides], row, i, 0.5 - 0.125 * (double)(i % 3));
                    }
                check_filled(&f, KL_OUT_LOSS_ROWS | KL_OUT_GRAD | KL_OUT_GRAD_TARGET, "small shares");
            }
    test_done();
}

/* Gradients of rows whose logits have no softmax: all are masked, or one is no number. */
static void gradients_without_softmax(void **state) {
    enum { ROWS = 4 };
    static const gpuloss_dtype passes[] = {GPULOSS_F32, GPULOSS_BF16};
    static const unsigned pairs[] = {2, 5, 6, 7, 8}; /* one of logits, or both */
    static const unsigned outputs[] = {KL_OUT_LOSS_ROWS | KL_OUT_GRAD | KL_OUT_GRAD_TARGET, KL_OUT_GRAD_TARGET};
    unsigned d, k, choice, number;
    int64_t row, i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (k = 0; k < sizeof pairs / sizeof pairs[0]; k++)
            for (choice = CHOICE_FORWARD; choice <= CHOICE_JS_HALF; choice++)
                for (number = 0; number < 4; number++) {
                    const divergence_shape shape = {ROWS, (number / 2 ? 50 : 10) * dtype_width(passes[d]) + 1};
                    filled_case f = filled(passes[d], GPULOSS_DTYPE_UNSET, shape, pairs[k], choice);
                    for (row = 0; row < ROWS; row++)
                        for (i = 0; i < shape.classes && f.sides[row % 2].kind == GPULOSS_LOGITS; i++)
                            if (row < 2 || i == 17)
                                put(&f.sides[row % 2], row, i, row < 2 ? -inf : (double)NAN);
                    check_filled(&f, outputs[number % 2], "without softmax");
                }
    test_done();
}

/* Probabilities from all over the range, so that the logarithm of a ratio takes each of its ways. */
static void distant_ratios_of_pairs(void **state) {
    static const int exponents[][2] = {{-140, 1},  {-140, 100}, {1, -140},  {100, -140},  {0, 127},
                                       {-30, 127}, {127, 127},  {126, -30}, {-149, -149}, {127, 0}};
    enum { KINDS = sizeof exponents / sizeof exponents[0], ROWS = 9 };
    static const gpuloss_dtype passes[] = {GPULOSS_F32, GPULOSS_BF16, GPULOSS_F64};
    static const int64_t vectors[] = {5, 50, 240};
    static const double weights[ROWS] = {1, 0.5, 1, 1, 1, 1, 1, 1, 1};
    unsigned d, choice, number;
    int64_t i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 3; d++)
        for (choice = CHOICE_FORWARD; choice <= CHOICE_REVERSE; choice++)
            for (number = 0; number < (d == 2 ? 6u : 4u); number++) {
                const divergence_shape shape = {ROWS, vectors[number / 2] * dtype_width(passes[d]) + 1};
                const double least = dtype_ulp(passes[d], 0);
                const int times = passes[d] == GPULOSS_F64 ? 8 : 1;
                filled_case f = filled(passes[d], GPULOSS_DTYPE_UNSET, shape, 0, choice);
                for (i = 0; i < shape.rows * shape.classes; i++) {
                    const int *of = exponents[(i + i / shape.classes) % KINDS];
                    f.in.input[i] = fmax(ldexp(1, of[0] * times), least);
                    f.in.target[i] = fmax(ldexp(1, of[1] * times), least);
                }
                f.c.row_weights = weights;
                check_filled(&f, KL_OUT_LOSS_ROWS | (number % 2 ? (unsigned)KL_OUT_LOSS_ELEMENTS : 0u),
                             "distant ratios");
            }
    test_done();
}

/* PyTorch's zeros beside inputs without a logarithm, in each position of a vector. */
static void infinite_inputs_of_pairs(void **state) {
    static const gpuloss_dtype passes[] = {GPULOSS_F32, GPULOSS_BF16, GPULOSS_F64};
    static const double weights[] = {1, 0.5, 1};
    unsigned d, pair, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 3; d++)
        for (pair = 0; pair <= KL_KINDS; pair += KL_KINDS)
            for (number = 0; number < 4; number++) {
                const divergence_shape shape = {3, (number / 2 ? 50 : 5) * dtype_width(passes[d]) + 3};
                const unsigned elements_of = number % 2 ? KL_OUT_LOSS_ELEMENTS : 0;
                filled_case f = filled(passes[d], GPULOSS_DTYPE_UNSET, shape, pair, CHOICE_FORWARD);
                fill_row(&f.sides[0], 0, inf, inf);
                fill_row(&f.sides[1], 0, 0, -inf);
                fill_row(&f.sides[1], 1, 0, -inf);
                f.c.row_weights = weights;
                f.c.pytorch_zeros = true;
                check_filled(&f, KL_OUT_LOSS_ROWS | elements_of, "infinite inputs");
            }
    test_done();
}

/* A side of logits of columns that several threads share, and of short rows, of which one is far above all others; and two
 * sides whose parts have their own level. */
static void levels_of_columns(void **state) {
    static const unsigned pairs[] = {2, 2 * KL_KINDS, KL_KIND_PAIRS - 1};
    static const gpuloss_dtype passes[] = {GPULOSS_F32, GPULOSS_BF16, GPULOSS_F64};
    unsigned d, k, choice, inner;
    int64_t row;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 3; d++)
        for (k = 0; k < sizeof pairs / sizeof pairs[0]; k++)
            for (choice = CHOICE_FORWARD; choice <= CHOICE_REVERSE; choice++)
                for (inner = 1; inner <= 6; inner += 5) {
                    const divergence_shape shape = {12, inner > 1 ? 300 : 43};
                    filled_case f = filled(passes[d], GPULOSS_DTYPE_UNSET, shape, pairs[k], choice);
                    f.c.inner = inner;
                    if (k == 2) {
                        with_levels(&f.sides[0], k);
                        with_levels(&f.sides[1], choice + 3);
                    }
                    for (row = 0; row < shape.rows && k < 2; row++)
                        put(&f.sides[k], row, 5 * row % shape.classes, 300);
                    check_filled(&f, KL_OUT_LOSS_ROWS, "levels of columns");
                }
    test_done();
}

/* Two logits of different types, which do not begin at the same part of a vector, with levels for which the sums of a row
 * are not exact enough. */
static void unaligned_levels_of_longer_rows(void **state) {
    static const gpuloss_dtype passes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
    unsigned d, t;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 3; d++)
        for (t = 0; t < DTYPE_COUNT; t++) {
            const divergence_shape shape = {9, 60 * dtype_width(passes[d]) + 1};
            filled_case f = filled(passes[d], all_dtypes[t], shape, KL_KIND_PAIRS - 1, CHOICE_FORWARD);
            with_levels(&f.sides[0], 0);
            with_levels(&f.sides[1], 4);
            f.c.target_offset = 1;
            check_filled(&f, KL_OUT_LOSS_ROWS, "unaligned levels");
        }
    test_done();
}

/* A side of logits beside another one, for a cluster of several blocks, of which one has a logit far above all others. */
static void distant_logit_of_longest_rows(void **state) {
    static const gpuloss_dtype passes[] = {GPULOSS_F32, GPULOSS_BF16};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (k = 0; k < 2; k++) {
            const divergence_shape shape = {1, 2200 * dtype_width(passes[d]) + 1};
            filled_case f = filled(passes[d], GPULOSS_DTYPE_UNSET, shape, k ? 2 : 2 * KL_KINDS, CHOICE_FORWARD);
            put(&f.sides[!k], 0, 3, 300);
            check_filled(&f, KL_OUT_LOSS_ROWS, "distant logit of longest rows");
        }
    test_done();
}

/* Tiles of one row and of four rows, with each type of the target and of the labels. Some rows have one step. On a GPU
 * with a single multiprocessor, a team has more rows than it knows at a time. */
static void many_rows_of_pairs(void **state) {
    static const struct {
        gpuloss_dtype dtype, target;
        unsigned pair, choice, outputs;
        int64_t rows;
    } cases[] = {{GPULOSS_F32, GPULOSS_F64, 8, CHOICE_FORWARD, KL_OUT_LOSS_ROWS, 70},
                 {GPULOSS_F32, GPULOSS_F16, 8, CHOICE_FORWARD, KL_OUT_LOSS_ROWS, 70},
                 {GPULOSS_BF16, GPULOSS_F64, 8, CHOICE_FORWARD, KL_OUT_LOSS_ROWS, 70},
                 {GPULOSS_BF16, GPULOSS_F32, 8, CHOICE_FORWARD, KL_OUT_LOSS_ROWS, 70},
                 {GPULOSS_F32, GPULOSS_F32, 6, CHOICE_FORWARD, KL_OUT_LOSS_ROWS, 520},
                 {GPULOSS_F32, GPULOSS_F32, 6, CHOICE_FORWARD, KL_OUT_LOSS_ROWS, 70},
                 {GPULOSS_F32, GPULOSS_F32, 6, CHOICE_JS, KL_OUT_LOSS_ROWS, 70},
                 {GPULOSS_F16, GPULOSS_F16, 6, CHOICE_FORWARD, KL_OUT_LOSS_ROWS, 520},
                 {GPULOSS_F16, GPULOSS_F16, 6, CHOICE_FORWARD, KL_OUT_LOSS_ROWS, 70},
                 {GPULOSS_F16, GPULOSS_F16, 6, CHOICE_JS, KL_OUT_LOSS_ROWS, 70},
                 {GPULOSS_F16, GPULOSS_F16, 2, CHOICE_JS, KL_OUT_LOSS_ROWS | KL_OUT_GRAD, 70}};
    unsigned k;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const divergence_shape shape = {cases[k].rows, (cases[k].rows > 70 ? 48 : 70) * dtype_width(cases[k].dtype)};
        kl_case c = divergence_case(cases[k].dtype, cases[k].target, shape, cases[k].pair, cases[k].choice);
        kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, KL_WITH_LABELS, 1);
        c.outputs = cases[k].outputs;
        c.reduction = GPULOSS_SUM;
        kl_test(&c, "many rows of pairs");
        kl_inputs_free(&in);
    }
    test_done();
}

/* Rows of more steps than a block retains, where it has them to itself. */
static void many_steps_of_pairs(void **state) {
    unsigned k;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < 4; k++) {
        const divergence_shape shape = {1, 5200 * dtype_width(GPULOSS_F32) + k % 2};
        kl_case c = divergence_case(GPULOSS_F32, GPULOSS_DTYPE_UNSET, shape, k % 2 ? 2 : 2 * KL_KINDS, CHOICE_TV);
        kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, k);
        c.outputs = KL_OUT_LOSS_ROWS | (k / 2 ? (unsigned)KL_OUT_GRAD : 0u);
        kl_test(&c, "many steps of pairs");
        kl_inputs_free(&in);
    }
    test_done();
}

int run_coverage_pair_tests(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(corners_of_longer_rows),
                                       cmocka_unit_test(levels_of_longer_rows),
                                       cmocka_unit_test(odd_elements_of_pairs),
                                       cmocka_unit_test(small_shares_of_longer_rows),
                                       cmocka_unit_test(gradients_without_softmax),
                                       cmocka_unit_test(distant_ratios_of_pairs),
                                       cmocka_unit_test(infinite_inputs_of_pairs),
                                       cmocka_unit_test(levels_of_columns),
                                       cmocka_unit_test(unaligned_levels_of_longer_rows),
                                       cmocka_unit_test(distant_logit_of_longest_rows),
                                       cmocka_unit_test(many_rows_of_pairs),
                                       cmocka_unit_test(many_steps_of_pairs)};
    return cmocka_run_group_tests_name("coverage of pairs", tests, NULL, NULL);
}
