/* Smoothing, class weights, row weights and a z-loss: losses of packed rows and of rows that a block has to itself, and
 * gradients of few classes. GPUs with bulk copies have kernels for them that have no other options. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
static const unsigned sets[] = {OPTION_SMOOTHING, OPTION_ROW_WEIGHTS,
                                OPTION_Z_LOSS,    OPTION_SMOOTHING | OPTION_ROW_WEIGHTS | OPTION_Z_LOSS,
                                OPTION_WEIGHTS,   OPTION_WEIGHTS | OPTION_ROW_WEIGHTS | OPTION_Z_LOSS};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0], SETS = sizeof sets / sizeof sets[0] };

/* A logit whose exponent of 2 is -inf. No sum of losses can have it, nor a loss that is weighed. */
static const double lowest = -2.5e38;

/* With `extreme`, one logit of each row, or -inf for all logits of two rows; 0: none. Every third row has the weight 0, and
 * an infinite logit that must not matter. `more`: gradients, or 0. */
static void check_options(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned set, unsigned number,
                          double extreme, unsigned more) {
    const option_shape shape = {rows, classes, 0};
    option_inputs in;
    ce_case c = option_case(dtype, shape, set | (number % 3 == 2 ? (unsigned)OPTION_IGNORE_INDEX : 0),
                            (logits_kind)(number % LOGITS_KINDS), number, &in);
    int64_t row, i;
    option_index_type(&c, number / 2 + number / 8);
    c.reduction = (set & OPTION_WEIGHTS) != 0 && number % 2 == 0
                      ? GPULOSS_MEAN
                      : all_reductions[(number + number / 4) % REDUCTION_COUNT];
    c.outputs = CE_OUT_LOSS | ((number + number / 8) % 2 == 0 && c.reduction != GPULOSS_NONE
                                   ? 0u
                                   : (unsigned)(CE_OUT_LOSS_ROWS | CE_OUT_LSE | CE_OUT_BAD_TARGETS));
    if (more != 0)
        c.outputs = more | (number % 3 == 0 ? 0u : c.outputs);
    c.in_place = more != 0 && number % 7 == 3;
    if (extreme == lowest && (set != OPTION_SMOOTHING || c.reduction == GPULOSS_SUM))
        extreme = -1e38;
    if (number % 5 == 1 && classes < 250)
        in.targets[rows / 2] = classes + 2; /* none */
    for (row = 0; extreme != 0 && row < rows; row++)
        in.x[row * classes + row % classes] = dtype_round(dtype, extreme);
    for (i = 0; isinf(extreme) && i < classes; i++)
        in.x[i] = in.x[rows / 2 * classes + i] = extreme;
    for (row = 0; (set & OPTION_ROW_WEIGHTS) != 0 && row < rows; row += 3) {
        in.row_weights[row] = 0;
        in.x[row * classes + row % classes] = INFINITY;
    }
    c.grad_loss_rows = more != 0 && number % 4 == 1 ? in.row_weights : NULL;
    ce_test(&c, "row options");
    option_inputs_free(&in);
}

static void check_losses(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned set, unsigned number,
                         double extreme) {
    check_options(dtype, rows, classes, set, number, extreme, 0);
}

/* One thread or several for a row, by words and by vectors, and rows in registers. */
static void options_of_packed_losses(void **state) {
    static const int64_t classes[] = {2,  3,  4,  8,  10,  13,  16,  20,  21,  22,
                                      23, 24, 37, 64, 100, 161, 256, 300, 516, 1000};
    const double extremes[] = {0, 1e15, lowest, -(double)INFINITY};
    unsigned d, k, n, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (n = 0; n < 2 * SETS; n++, number++)
                check_losses(dtypes[d], classes[k] > 200 ? 41 : 133, classes[k], sets[n % SETS], number,
                             extremes[n < SETS ? 0 : 1 + (number + k) % 3]);
    test_done();
}

/* Gradients of rows in registers. */
static void options_of_packed_gradients(void **state) {
    static const int64_t classes[] = {2, 3, 4, 7, 8, 10, 13, 16, 18, 19, 20, 21, 22, 23};
    const double extremes[] = {0, 0, 1e15, -1e30, -(double)INFINITY};
    unsigned d, k, n, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (n = 0; n < 2 * SETS; n++, number++)
                check_options(dtypes[d], 133, classes[k], sets[n % SETS], number, extremes[(number + n / SETS) % 5],
                              CE_OUT_GRAD);
    test_done();
}

/* Blocks of a warp and of several, of which some threads have fewer vectors, or none. */
static void options_of_block_losses(void **state) {
    static const int64_t vectors[] = {193, 256, 300, 520, 1024, 2100, 4096};
    const double extremes[] = {0, 1e15, lowest, -(double)INFINITY};
    unsigned d, k, n, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof vectors / sizeof vectors[0]; k++)
            for (n = 0; n < SETS; n++, number++)
                check_losses(dtypes[d], k < 3 ? 70 : 14, vectors[k] * (int64_t)(16 / dtype_size(dtypes[d])), sets[n],
                             number, extremes[(number + k) % 4]);
    test_done();
}

/* More rows than the lanes of a warp defer, and than a block does. */
static void many_rows_with_options(void **state) {
    const int64_t rows = harness_small ? 1500 : 40000;
    unsigned d, n;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (n = 0; n < SETS; n++) {
            check_losses(dtypes[d], rows, 100, sets[n], n, 0);
            check_losses(dtypes[d], 2 * rows, 12, sets[n], n, 0);
            check_losses(dtypes[d], rows / 4, 4000, sets[n], n, 0);
            check_options(dtypes[d], 2 * rows, 14, sets[n], n + 1, 0, CE_OUT_GRAD);
        }
    test_done();
}

/* Losses of 16 bits whose row tiles take exactly half of the ring of a warp, which has several of them. */
static void many_rows_that_fill_stages(void **state) {
    unsigned d, n;
    (void)state;
    REQUIRE_GPU();
    for (d = 1; d < DTYPES; d++)
        for (n = 0; n < SETS; n++) {
            check_losses(dtypes[d], harness_small ? 8000 : 300000, 25, sets[n], n, 0);
            check_losses(dtypes[d], harness_small ? 2700 : 100000, 75, sets[n], n, 0);
        }
    test_done();
}

int run_row_option_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_packed_losses),   cmocka_unit_test(options_of_packed_gradients),
        cmocka_unit_test(options_of_block_losses),    cmocka_unit_test(many_rows_with_options),
        cmocka_unit_test(many_rows_that_fill_stages),
    };
    return cmocka_run_group_tests_name("row options", tests, NULL, NULL);
}
