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
enum { DTYPES = sizeof dtypes / sizeof dtypes[0], MOST_ROWS = 70 };

/* Logits of a row times a power of two, so that the losses of the rows have very different sizes. Squares stay finite. */
static void spread_rows(const ce_case *c, const option_inputs *in) {
    static const int exponents[] = {0, 1, 20, -20, 60, 100, 119, 10, -90, 30};
    int64_t row, i;
    for (row = 0; row < c->rows; row++)
        for (i = 0; i < c->classes; i++) {
            double *x = &in->x[row * c->classes + i];
            const double limit = c->lse_square_scale > 0 ? 0x1p60 : dtype_max(c->dtype) / 4;
            *x = dtype_round(c->dtype, fmax(-limit, fmin(limit, ldexp(*x, exponents[row % 10]))));
        }
}

/* A NaN, an infinite logit, the target's among them, and rows of which all or all but one are masked. */
static void break_rows(const ce_case *c, const option_inputs *in) {
    int64_t row, i;
    for (row = 0; row < c->rows; row++) {
        double *x = in->x + row * c->classes;
        const int64_t at = row % c->classes, y = in->targets[row] >= 0 ? in->targets[row] % c->classes : 0;
        for (i = 0; i < c->classes && row % 7 < 2; i++)
            x[i] = row % 7 == 1 && i == at ? x[i] : -inf;
        if (row % 7 == 3)
            x[at] = row % 2 ? (double)NAN : inf;
        if (row % 7 == 5)
            x[y] = -inf;
    }
}

static double highest_of(const ce_case *c, int64_t row) {
    double highest = -inf;
    int64_t i;
    for (i = 0; i < c->classes; i++)
        highest = fmax(highest, c->x[row * c->classes + i]);
    return highest;
}

/* Number n of the options, outputs and corners. Gradients have no other options. */
static void check_rows(gpuloss_dtype dtype, option_shape shape, unsigned n) {
    static const unsigned sets[] = {0, OPTION_SMOOTHING, OPTION_ROW_WEIGHTS, OPTION_Z_LOSS,
                                    OPTION_SMOOTHING | OPTION_ROW_WEIGHTS | OPTION_Z_LOSS};
    static const unsigned outputs[] = {CE_OUT_LOSS, CE_OUT_LOSS | CE_OUT_LOSS_ROWS, CE_OUT_LOSS_ROWS | CE_OUT_LSE};
    static const double upstream = -0.75;
    const unsigned set = sets[n % 5], corner = n / 5 % 3;
    double lse[MOST_ROWS], of_rows[MOST_ROWS];
    option_inputs in;
    ce_case c =
        option_case(dtype, shape, set | (n % 3 == 1 ? (unsigned)OPTION_IGNORE_INDEX : 0), LOGITS_NORMAL, n, &in);
    int64_t row;
    option_index_type(&c, n);
    if (corner == 1)
        spread_rows(&c, &in);
    if (corner == 2)
        break_rows(&c, &in);
    c.outputs = outputs[corner == 2 ? 2 : (n + n / 3) % 3];
    c.reduction = c.outputs & CE_OUT_LOSS ? (n % 2 ? GPULOSS_SUM : GPULOSS_MEAN) : GPULOSS_NONE;
    for (row = 0; row < shape.rows; row++) {
        lse[row] = (double)(float)(9 + highest_of(&c, row));
        of_rows[row] = (double)(row % 5) - 2;
    }
    if (set == 0 && n % 10 < 5) {
        c.outputs |= CE_OUT_GRAD;
        c.grad_loss_rows = n % 4 < 2 ? of_rows : NULL;
        c.grad_loss = n % 4 == 1 && c.reduction != GPULOSS_NONE ? &upstream : NULL;
        c.lse_in = corner < 2 && n % 3 != 0 ? lse : NULL;
    }
    ce_test(&c, "rows with few options");
    option_inputs_free(&in);
}

/* One lane or several for a row, by words and by vectors, and blocks of which threads have a part of a row. */
static void rows_with_few_options(void **state) {
    static const int64_t classes[] = {2, 8, 10, 21, 37, 64, 100, 161, 300, 516, 1000, 1640, 3000, 4800, 9000};
    unsigned d, k, n;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (n = 0; n < 30; n++)
                check_rows(dtypes[d], (option_shape){classes[k] < 400 ? MOST_ROWS : 14, classes[k], 0}, n + d + k);
    test_done();
}

int run_coverage_basic_tests(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_with_few_options)};
    return cmocka_run_group_tests_name("coverage of few options", tests, NULL, NULL);
}
