/* Cross-entropy with options by the kernel with the weights of classes in registers. A cluster has many rows. Some are
 * processed again, also one after the other, and some have logits far below the others. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };
enum { LANES = 32, CLASSES_OF_A_WARP = 1024 };
/* The fewest vectors of a row that goes to a cluster: with a gradient, and without. */
enum { WRITTEN = 2049, READ = 4096 };

/* Exact in 16 bits, and beyond the range of the short formulas. */
static const double distant_below = -9984, distant_above = 9984;

/* Rows of `vectors` vectors and `more` classes. */
static ce_case rows_of(gpuloss_dtype dtype, int64_t rows, int64_t vectors, int64_t more, unsigned number,
                       option_inputs *in) {
    static const unsigned sets[] = {OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_Z_LOSS | OPTION_IGNORE_INDEX,
                                    OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_ROW_WEIGHTS};
    const int64_t width = (int64_t)(16 / dtype_size(dtype)), classes = vectors * width + more;
    option_shape shape = {rows, classes, 0};
    ce_case c = option_case(dtype, shape, sets[number % 2], LOGITS_NORMAL, number, in);
    int64_t row, i;
    for (row = 0; row < rows; row++) {
        double *x = in->x + row * classes;
        for (i = 0; i < classes; i++)
            if ((row % 3 == 0 && i / width % LANES == 7) || (row % 5 == 1 && i / CLASSES_OF_A_WARP == 1))
                x[i] = distant_below;
        if (row % 6 == 1 || row % 6 >= 4)
            x[(classes / 2 + row) % classes] = row % 4 ? distant_above : (double)NAN;
    }
    c.logits_stride = classes % width ? STRIDE_16_BYTES : STRIDE_PACKED;
    c.grad_stride = c.logits_stride;
    return c;
}

static void check_all(bool gradient) {
    unsigned d, number;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (number = 0; number < 2; number++) {
            const int64_t most = gradient && d == 0 ? 4400 : 2400, rows = harness_small ? 70 + number : most + number;
            option_inputs in;
            ce_case c = rows_of(dtypes[d], rows, gradient ? WRITTEN : READ, number * 3, number + d, &in);
            c.outputs &= ~(gradient ? 0u : (unsigned)CE_OUT_GRAD);
            c.grad_loss_rows = gradient && number == 1 ? in.row_weights : NULL;
            option_index_type_of_any(&c, number + 2 * d + (gradient ? 2 : 0));
            ce_test(&c, gradient ? "cluster rows that are written" : "cluster rows that are read");
            option_inputs_free(&in);
        }
    test_done();
}

static void many_cluster_rows_that_are_written(void **state) {
    (void)state;
    check_all(true);
}
static void many_cluster_rows_that_are_read(void **state) {
    (void)state;
    check_all(false);
}

/* Rows that begin anywhere: each row has other classes in its vectors, and in the vectors at its ends. */
static void cluster_rows_that_begin_anywhere(void **state) {
    static const struct {
        stride_kind stride;
        int offset;
        int64_t more;
    } layouts[] = {{STRIDE_PACKED, 0, 1},  {STRIDE_ONE_MORE, 3, 0}, {STRIDE_16_BYTES, 1, 0},
                   {STRIDE_13_MORE, 2, 7}, {STRIDE_PACKED, 1, 2},   {STRIDE_16_BYTES, 0, 1}};
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (number = 0; number < 2 * sizeof layouts / sizeof layouts[0]; number++) {
            const unsigned i = number / 2;
            const bool gradient = number % 2 == 0;
            const int64_t rows = harness_small ? 20 + number : 1500 + number;
            option_inputs in;
            ce_case c = rows_of(dtypes[d], rows, gradient ? WRITTEN : READ, layouts[i].more, i + d, &in);
            c.logits_stride = c.grad_stride = layouts[i].stride;
            c.logits_offset = c.grad_offset = layouts[i].offset;
            c.in_place = gradient && i % 2;
            if (!gradient)
                c.outputs &= ~(unsigned)CE_OUT_GRAD;
            ce_test(&c, "cluster rows that begin anywhere");
            option_inputs_free(&in);
        }
    test_done();
}

/* The largest clusters, of which a GPU may have fewer than rows have starts. */
static void cluster_rows_of_many_starts(void **state) {
    unsigned number;
    (void)state;
    REQUIRE_GPU();
    for (number = 0; number < 2; number++) {
        option_inputs in;
        ce_case c = rows_of(GPULOSS_BF16, 17, 32766, 1, number, &in);
        c.logits_stride = c.grad_stride = STRIDE_PACKED;
        c.outputs &= ~(number == 0 ? 0u : (unsigned)CE_OUT_GRAD);
        ce_test(&c, "cluster rows of many starts");
        option_inputs_free(&in);
    }
    test_done();
}

/* The rows have upstream factors, or no gradient. */
static void cluster_rows_of_every_type_of_index(void **state) {
    static const double upstream = -0.75;
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (number = 0; number < 8; number++) {
            const bool gradient = number < 4;
            option_inputs in;
            ce_case c = rows_of(dtypes[d], 7, gradient ? WRITTEN : READ, 0, number % 2, &in);
            option_index_type_of_any(&c, number);
            c.grad_loss = &upstream;
            c.grad_loss_rows = in.row_weights;
            if (!gradient) {
                c.outputs &= ~(unsigned)CE_OUT_GRAD;
                c.grad_loss = c.grad_loss_rows = NULL;
            }
            ce_test(&c, "cluster rows of every type of index");
            option_inputs_free(&in);
        }
    test_done();
}

/* Few rows of the fewest vectors, which one block of 16-bit classes has space for. */
static void cluster_rows_of_one_block(void **state) {
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (number = 0; number < 2; number++) {
            option_inputs in;
            ce_case c = rows_of(dtypes[d], 3, WRITTEN - 1, 0, number + d, &in);
            c.outputs &= ~(number == 0 ? 0u : (unsigned)CE_OUT_GRAD);
            ce_test(&c, "cluster rows of one block");
            option_inputs_free(&in);
        }
    test_done();
}

/* Two shards, each of cluster rows. */
static void cluster_rows_of_shards(void **state) {
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++) {
        option_inputs in;
        ce_case c = rows_of(dtypes[d], 7, 2 * (int64_t)READ, 0, d, &in);
        ce_test_shards(&c, c.classes / 2, "cluster rows of shards");
        option_inputs_free(&in);
    }
    test_done();
}

int run_row_cluster_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_cluster_rows_that_are_written),
        cmocka_unit_test(many_cluster_rows_that_are_read),
        cmocka_unit_test(cluster_rows_that_begin_anywhere),
        cmocka_unit_test(cluster_rows_of_many_starts),
        cmocka_unit_test(cluster_rows_of_every_type_of_index),
        cmocka_unit_test(cluster_rows_of_one_block),
        cmocka_unit_test(cluster_rows_of_shards),
    };
    return cmocka_run_group_tests_name("row_cluster", tests, NULL, NULL);
}
