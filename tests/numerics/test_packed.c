/* Cross-entropy without options of packed short rows. GPUs with bulk copies have a kernel for tiles of packed rows. One
 * lane or several read a row, by vectors or by words. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* extreme: one logit of each row, or -inf for all logits of two rows; 0: none. */
static void check_extreme(gpuloss_dtype dtype, int64_t rows, int64_t classes, logits_kind kind, unsigned number,
                          double extreme) {
    option_shape shape = {rows, classes, 0};
    option_inputs in;
    ce_case c = option_case(dtype, shape, number % 3 == 2 ? OPTION_IGNORE_INDEX : 0, kind, number, &in);
    double *lse, *of_rows = NULL;
    int64_t row, i;
    c.grad_dtype = GPULOSS_DTYPE_UNSET;
    c.reduction = all_reductions[(number + number / 4) % REDUCTION_COUNT];
    option_index_type(&c, number / 2);
    if (number % 5 == 1 && classes < 250)
        in.targets[rows / 2] = classes + 2; /* none */
    for (row = 0; extreme != 0 && row < rows; row++)
        in.x[row * classes + row % classes] = dtype_round(dtype, extreme);
    for (i = 0; isinf(extreme) && i < classes; i++)
        in.x[i] = in.x[5 * classes + i] = extreme;
    lse = option_pass(&c, number);
    if (number % 7 == 3 && c.outputs & CE_OUT_GRAD)
        c.grad_loss_rows = of_rows = quarters(rows);
    ce_test(&c, "packed rows");
    option_inputs_free(&in);
    free(lse);
    free(of_rows);
}

static void check_packed(gpuloss_dtype dtype, int64_t rows, int64_t classes, logits_kind kind, unsigned number) {
    check_extreme(dtype, rows, classes, kind, number, 0);
}

/* Rows of words and of vectors, for one lane and for 2, 4, 8, 16 and 32. Lanes have equal parts of a row or not. Two
 * rows of 16 bits may share a word. The last tile is not whole. Rows of up to 22 or 23 classes are in registers. */
static void classes_of_packed_rows(void **state) {
    static const int64_t classes[] = {1,  2,  3,  4,  5,  6,  7,  8,   9,   10,  11,  12,  13,  16,  17,  20,  21,
                                      22, 23, 24, 32, 33, 64, 72, 100, 130, 161, 200, 255, 256, 300, 516, 1000};
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++, number++) {
            int64_t rows = classes[k] > 200 ? 35 : classes[k] > 23 ? 133 : 401;
            unsigned pass;
            for (pass = 0; pass < 4; pass++)
                check_packed(dtypes[d], rows + pass, classes[k], (logits_kind)((number + pass) % LOGITS_KINDS),
                             4 * number + pass);
        }
    test_done();
}

/* Enough rows for several in a slot for each lane, and for several slots a warp. */
static void many_packed_rows(void **state) {
    unsigned d, number;
    int64_t rows = harness_small ? 6200 : 210000, several = harness_small ? 1100 : 70000;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (number = d; number < 8 + d; number += 2) { /* every index type */
            check_packed(dtypes[d], 3 * rows + 7, number < 2 ? 10 : 3, LOGITS_NORMAL, number);
            check_packed(dtypes[d], rows + 3, 7, (logits_kind)(number % LOGITS_KINDS), number + 1);
        }
    /* Rows of two lanes, of words and of vectors, each of which defers one row; and rows of one lane. */
    for (number = 0; number < 4; number++)
        for (d = 0; d < DTYPES; d++) {
            static const unsigned numbers[] = {0, 3, 5, 6}; /* every index type and every pass */
            check_packed(dtypes[d], several, d == 0 ? 97 : 193, LOGITS_NORMAL, numbers[number]);
            check_packed(dtypes[d], several, d == 0 ? 100 : 200, LOGITS_NORMAL, numbers[number]);
            check_packed(dtypes[d], 2 * several, 24, LOGITS_NORMAL, numbers[number]);
            /* A tile of them fills the ring. */
            if (number == d || !harness_small)
                check_packed(dtypes[d], rows + 5, d == 0 ? 25 : 49, LOGITS_NORMAL, numbers[number]);
        }
    if (harness_small)
        check_packed(GPULOSS_F32, 4200, 516, LOGITS_NORMAL, 0);
    test_done();
}

/* Losses too large for the integers of the sum, and rows with all classes masked. */
static void large_losses_of_packed_rows(void **state) {
    static const int64_t classes[] = {4, 8, 10, 13, 16, 21, 64, 66, 300};
    unsigned k, pass;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
        for (pass = 0; pass < 24; pass++) {
            const double extreme[] = {1e30, -1e30, -(double)INFINITY};
            const gpuloss_dtype dtype = pass < 12 ? GPULOSS_F32 : GPULOSS_BF16;
            check_extreme(dtype, 300, classes[k], LOGITS_NORMAL, 3 * pass, extreme[pass % 3]);
        }
    test_done();
}

int run_packed_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_of_packed_rows),
        cmocka_unit_test(many_packed_rows),
        cmocka_unit_test(large_losses_of_packed_rows),
    };
    return cmocka_run_group_tests_name("packed rows", tests, NULL, NULL);
}
