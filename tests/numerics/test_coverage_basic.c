/* Coverage of cross-entropy with few options beyond the other tests: losses of all sizes, rows without a loss, and logits
 * that are no numbers, where rows are packed or have a block each. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const double inf = (double)INFINITY;
static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0], MOST_ROWS = 2600 };

static double *logit(const ce_case *c, const option_inputs *in, int64_t row, int64_t k) {
    const int64_t inner = c->inner > 1 ? c->inner : 1;
    return &in->x[(row / inner * c->classes + k) * inner + row % inner];
}

/* Logits of a row times a power of two, so that the losses of the rows have very different sizes. Squares stay finite. */
static void spread_rows(const ce_case *c, const option_inputs *in) {
    static const int exponents[] = {0, 1, 20, -20, 60, 100, 119, 10, -90, 30};
    const double limit = c->lse_square_scale > 0 ? 0x1p60 : dtype_max(c->dtype) / 4;
    int64_t row, k;
    for (row = 0; row < c->rows; row++)
        for (k = 0; k < c->classes; k++) {
            double *x = logit(c, in, row, k);
            *x = dtype_round(c->dtype, fmax(-limit, fmin(limit, ldexp(*x, exponents[row % 10]))));
        }
}

/* A NaN, an infinite logit, the target's among them, and rows of which all or all but one are masked. */
static void break_rows(const ce_case *c, const option_inputs *in) {
    int64_t row, k;
    for (row = 0; row < c->rows; row++) {
        const int64_t at = row % c->classes, y = in->targets[row] >= 0 ? in->targets[row] % c->classes : 0;
        for (k = 0; k < c->classes && row % 7 < 2; k++)
            if (row % 7 == 0 || k != at)
                *logit(c, in, row, k) = -inf;
        if (row % 7 == 3)
            *logit(c, in, row, at) = row % 2 ? (double)NAN : inf;
        if (row % 7 == 5)
            *logit(c, in, row, y) = -inf;
    }
}

static double highest_of(const ce_case *c, const option_inputs *in, int64_t row) {
    double highest = -inf;
    int64_t k;
    for (k = 0; k < c->classes; k++)
        highest = fmax(highest, *logit(c, in, row, k));
    return highest;
}

/* Weights of very different sizes and of both signs. */
static void spread_weights(const ce_case *c, const option_inputs *in) {
    static const int exponents[] = {0, 1, 20, -20, 60, -60, 25};
    int64_t row;
    for (row = 0; row < c->rows; row++)
        in->row_weights[row] = row % 11 == 5 ? 0 : ldexp(row % 2 ? -1.5 : 1, exponents[row % 7]);
}

/* Class weights of very different sizes. */
static void spread_class_weights(const ce_case *c, const option_inputs *in) {
    static const int exponents[] = {0, -100, 1, 20, 60, -60, 25};
    int64_t k;
    for (k = 0; k < c->classes; k++)
        in->class_weights[k] = ldexp(1 + (double)(k % 3) / 4, exponents[k % 7]);
}

/* Number n of the options, corners, outputs and types. Gradients of more classes than fit in registers have no options.
 * Without options they may come from an lse. */
enum { CORNERS = 3, PASSES = 4, SETS = 8, NUMBERS = SETS * CORNERS * PASSES, REG_CLASSES = 23 };
static void check_rows(gpuloss_dtype dtype, option_shape shape, unsigned n) {
    static const unsigned sets[SETS] = {0,
                                        OPTION_SMOOTHING,
                                        OPTION_ROW_WEIGHTS,
                                        OPTION_Z_LOSS,
                                        OPTION_WEIGHTS,
                                        OPTION_SMOOTHING | OPTION_ROW_WEIGHTS | OPTION_Z_LOSS,
                                        OPTION_WEIGHTS | OPTION_Z_LOSS,
                                        OPTION_WEIGHTS | OPTION_ROW_WEIGHTS};
    static const unsigned outputs[] = {CE_OUT_LOSS, CE_OUT_LOSS | CE_OUT_LOSS_ROWS, CE_OUT_LOSS_ROWS | CE_OUT_LSE,
                                       CE_OUT_LOSS};
    static const double upstream = -0.75;
    static double lse[MOST_ROWS], of_rows[MOST_ROWS];
    const unsigned set = sets[n % SETS], corner = n / SETS % CORNERS, pass = n / (SETS * CORNERS) % PASSES;
    option_inputs in;
    ce_case c =
        option_case(dtype, shape, set | (n % 3 == 1 ? (unsigned)OPTION_IGNORE_INDEX : 0), LOGITS_NORMAL, n, &in);
    int64_t row;
    option_index_type(&c, n + n / (SETS * CORNERS));
    if (corner == 1 && c.class_weights != NULL)
        spread_class_weights(&c, &in);
    else if (corner == 1 && c.row_weights != NULL)
        spread_weights(&c, &in);
    else if (corner == 1)
        spread_rows(&c, &in);
    if (corner == 2)
        break_rows(&c, &in);
    c.outputs = outputs[corner == 2 && pass != 0 ? 2 : pass];
    for (row = 0; row < shape.rows; row++) {
        lse[row] = (double)(float)(9 + highest_of(&c, &in, row));
        of_rows[row] = (double)(row % 5) - 2;
    }
    if (pass > 0 && (set == 0 || shape.classes <= REG_CLASSES)) {
        c.outputs |= CE_OUT_GRAD;
        c.grad_loss_rows = pass == 2 ? NULL : of_rows;
        c.lse_in = set == 0 && corner < 2 && pass > 1 ? lse : NULL;
    }
    c.reduction = (c.outputs & CE_OUT_LOSS) == 0 ? GPULOSS_NONE : n % 2 ? GPULOSS_SUM : GPULOSS_MEAN;
    c.grad_loss = (c.outputs & CE_OUT_GRAD) != 0 && pass < 3 && c.reduction != GPULOSS_NONE ? &upstream : NULL;
    ce_test(&c, "rows with few options");
    option_inputs_free(&in);
}

/* One lane or several for a row, by words and by vectors, and blocks of which threads have a part of a row. */
static void rows_with_few_options(void **state) {
    static const option_shape shapes[] = {{70, 2, 0},    {70, 8, 0},    {70, 4, 0},    {70, 16, 0},  {70, 21, 0},
                                          {70, 32, 0},   {70, 25, 0},   {70, 100, 0},  {70, 161, 0}, {41, 515, 0},
                                          {41, 1001, 0}, {14, 2001, 0}, {14, 2000, 0}, {14, 3000, 0}};
    unsigned d, k, n;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (n = (d + k) % 3; n < NUMBERS; n += shapes[k].classes <= REG_CLASSES ? 1 : 3)
                check_rows(dtypes[d], shapes[k], n);
    test_done();
}

/* Several tiles of rows for each warp, and several rows for each block. */
static void many_rows_with_few_options(void **state) {
    static const option_shape shapes[] = {{1100, 4, 0}, {1100, 12, 0},  {1100, 21, 0}, {1100, 24, 0},
                                          {900, 25, 0}, {2600, 201, 0}, {110, 2000, 0}};
    unsigned d, k, n;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (n = (d + k) % 5; n < NUMBERS; n += 5)
                check_rows(dtypes[d], shapes[k], n);
    test_done();
}

/* Columns of several images, in the registers of a warp and not. */
static void columns_with_few_options(void **state) {
    static const option_shape shapes[] = {{1032, 5, 344}, {1032, 30, 344}};
    unsigned d, k, n;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < 2; k++)
            for (n = 0; n < NUMBERS; n += 5)
                check_rows(dtypes[d], shapes[k], n);
    test_done();
}

/* Some results of rows in two shards, with losses of all sizes. */
static void shards_with_few_outputs(void **state) {
    static const option_shape shape = {20, 30, 0};
    static const unsigned sets[] = {OPTION_IGNORE_INDEX, OPTION_ROW_WEIGHTS,
                                    OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_IGNORE_INDEX};
    static const unsigned outputs[] = {CE_OUT_LOSS, CE_OUT_LOSS | CE_OUT_LOSS_ROWS, CE_OUT_LSE,
                                       CE_OUT_LOSS | CE_OUT_BAD_TARGETS};
    unsigned d, o, set, corner;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (o = 0; o < 4; o++)
            for (set = 0; set < 3; set++)
                for (corner = 0; corner < 3; corner++) {
                    option_inputs in;
                    ce_case c = option_case(all_dtypes[d], shape, sets[set], LOGITS_NORMAL, o, &in);
                    c.outputs = outputs[o];
                    c.reduction = corner == 1 ? GPULOSS_SUM : GPULOSS_MEAN;
                    if (corner == 1 && set == 1)
                        spread_weights(&c, &in);
                    else if (corner == 1)
                        spread_rows(&c, &in);
                    if (corner == 2)
                        break_rows(&c, &in);
                    ce_test_shards(&c, 13, "shards with few outputs");
                    option_inputs_free(&in);
                }
    test_done();
}

int run_coverage_basic_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_with_few_options), cmocka_unit_test(many_rows_with_few_options),
        cmocka_unit_test(columns_with_few_options), cmocka_unit_test(shards_with_few_outputs)};
    return cmocka_run_group_tests_name("coverage of few options", tests, NULL, NULL);
}
