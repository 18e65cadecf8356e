/* gpuloss_cross_entropy against the reference: ignored rows, bad targets, infinities, empty input. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "run_common.h"
#include "run_cross_entropy.h"
#include "suites.h"

/* Room for the inputs of the tests of this file. */
enum { MOST_ELEMENTS = 1 << 17, MOST_ROWS = 4097 };
static double x[MOST_ELEMENTS];
static int64_t targets[MOST_ROWS];

static ce_case fresh(gpuloss_dtype dtype, int64_t rows, int64_t classes) {
    ce_case c = ce_case_of(dtype, rows, classes, x, targets);
    make_logits(x, rows, classes, LOGITS_NORMAL, dtype, (uint64_t)classes);
    make_targets(targets, rows, classes, (uint64_t)classes);
    return c;
}

/* Tests a case with every reduction, and with the gradient over the logits. */
static void test_everywhere(ce_case *c, const char *what) {
    size_t k;
    for (k = 0; k < REDUCTION_COUNT; k++) {
        c->reduction = all_reductions[k];
        c->in_place = k % 2 == 1;
        ce_test(c, what);
    }
}

static void ignored_rows(void **state) {
    enum { ROWS = 9, CLASSES = 41 };
    static const int64_t indices[] = {-100, 3, 0, CLASSES - 1, CLASSES, INT64_MIN, INT64_MAX};
    size_t d, k;
    int64_t row;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof indices / sizeof indices[0]; k++) {
            ce_case c = fresh(all_dtypes[d], ROWS, CLASSES);
            bool narrow = indices[k] >= INT16_MIN && indices[k] <= INT16_MAX;
            for (row = 0; row < ROWS; row += 4)
                targets[row] = indices[k];
            c.use_ignore_index = true;
            c.ignore_index = indices[k];
            c.index_type = !narrow || k % 3 == 0 ? GPULOSS_I64 : k % 3 == 1 ? GPULOSS_I32 : GPULOSS_I16;
            test_everywhere(&c, "ignore_index");
        }
    test_done();
}

/* Each block counts few rows itself, if their indices have 4 or 8 bytes. Otherwise an earlier kernel counts them. */
static void rows_that_are_counted(void **state) {
    enum { CLASSES = 4 };
    static const int64_t rows[] = {1, 255, 257, 511, 513, 1025, 4096, MOST_ROWS};
    static const gpuloss_index_type types[] = {GPULOSS_I64, GPULOSS_I32, GPULOSS_I16, GPULOSS_U8};
    static const gpuloss_dtype dtypes[] = {GPULOSS_BF16, GPULOSS_F64};
    size_t k, d;
    int64_t row;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof rows / sizeof rows[0]; k++)
        for (d = 0; d < 2; d++) {
            ce_case c = fresh(dtypes[d], rows[k], CLASSES);
            int type;
            c.use_ignore_index = true;
            c.ignore_index = 2;
            targets[rows[k] - 1] = 2;
            for (row = 0; row < rows[k]; row += 7)
                targets[row] = 1;
            for (type = 0; type < (rows[k] < MOST_ROWS ? 4 : 1); type++) {
                c.index_type = types[type];
                c.outputs = type % 2 ? CE_OUT_GRAD : CE_OUT_LOSS | CE_OUT_GRAD;
                ce_test(&c, "rows that are counted");
            }
        }
    test_done();
}

/* A target is never the ignore_index that only one half of it equals. */
static void ignore_index_beyond_32_bits(void **state) {
    (void)state;
    REQUIRE_GPU();
    {
        ce_case c = fresh(GPULOSS_F32, 4, 10);
        targets[0] = 3;
        c.index_type = GPULOSS_I32;
        c.use_ignore_index = true;
        c.ignore_index = (INT64_C(1) << 32) + 3;
        ce_test(&c, "ignore_index of 33 bits");
        c.index_type = GPULOSS_I64;
        targets[1] = 3;
        targets[2] = (INT64_C(1) << 32) + 4;
        ce_test(&c, "targets of which half is the ignore_index");
    }
    test_done();
}

/* Without the flag -100 is a bad target like any other; bad rows count in the mean's divisor. */
static void bad_targets(void **state) {
    enum { ROWS = 9 };
    static const int64_t classes[] = {1, 41, 2100};
    size_t d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++) {
            ce_case c = fresh(all_dtypes[d], ROWS, classes[k]);
            targets[0] = -1;
            targets[3] = classes[k];
            targets[4] = -100;
            targets[7] = k % 2 ? INT64_MAX : INT64_MIN;
            targets[8] = INT64_C(1) << 32;
            test_everywhere(&c, "bad targets");
            targets[7] = INT32_MAX;
            targets[8] = INT32_MIN;
            c.index_type = GPULOSS_I32;
            c.use_ignore_index = true;
            c.ignore_index = -100;
            test_everywhere(&c, "bad 32-bit targets and an ignored one");
        }
    test_done();
}

/* Once counted, bad targets are not counted again. */
static void bad_targets_start_from_zero(void **state) {
    int again;
    (void)state;
    REQUIRE_GPU();
    for (again = 0; again < 3; again++) {
        ce_case c = fresh(GPULOSS_F32, 7, 12);
        targets[2] = 12;
        c.outputs = again == 1 ? CE_OUT_LOSS | CE_OUT_GRAD : CE_OUT_BAD_TARGETS;
        ce_test(&c, "bad targets in call after call");
    }
    test_done();
}

static void all_ignored(void **state) {
    enum { ROWS = 5, CLASSES = 33 };
    size_t d;
    int64_t row;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        ce_case c = fresh(all_dtypes[d], ROWS, CLASSES);
        for (row = 0; row < ROWS; row++)
            targets[row] = -100;
        c.use_ignore_index = true;
        c.ignore_index = -100;
        test_everywhere(&c, "all rows ignored");
    }
    test_done();
}

static void zero_rows(void **state) {
    size_t d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        ce_case c = fresh(all_dtypes[d], 1, 33);
        c.rows = 0;
        test_everywhere(&c, "no rows");
    }
    test_done();
}

/* Sets every logit of [first, last) that `pick` names to -inf. */
static void mask(int64_t row, int64_t classes, int64_t first, int64_t last, int64_t period, int64_t width) {
    int64_t c;
    for (c = first; c < last; c++)
        if (period == 0 || c % period < width)
            x[row * classes + c] = -(double)INFINITY;
}

/* Masked classes: whole slices, the classes of single threads and warps at a row's beginning and end, and all classes
 * but one. */
static void masked_classes(void **state) {
    enum { ROWS = 8 };
    static const int64_t lengths[] = {2, 10, 33, 129, 1025, 4097, 9001};
    size_t d, k;
    int64_t row;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            int64_t n = lengths[k];
            ce_case c = fresh(all_dtypes[d], ROWS, n);
            mask(0, n, 0, n / 2, 0, 0);
            mask(1, n, n / 2, n, 0, 0);
            mask(2, n, 0, n - 1, 0, 0);
            mask(3, n, 1, n, 0, 0);
            mask(4, n, 0, n, 8, 4);
            mask(5, n, 0, n, 1024, 256);
            mask(6, n, n / 3, n, 64, 63);
            for (row = 0; row < ROWS; row++)
                for (targets[row] = 0; targets[row] < n - 1 && isinf(x[row * n + targets[row]]); targets[row]++)
                    ;
            c.logits_offset = (int)k % 2;
            test_everywhere(&c, "masked classes");
            /* A target that is masked: loss +inf, gradient finite. */
            targets[2] = 0;
            test_everywhere(&c, "masked target");
        }
    test_done();
}

/* Rows 1, 3 and 5 of n classes get a NaN, a +inf, and -inf only. */
static void put_rows_without_softmax(int64_t n) {
    x[1 * n + n / 2] = (double)NAN;
    x[3 * n + n - 1] = (double)INFINITY;
    mask(5, n, 0, n, 0, 0);
}

/* Rows without a softmax, and their neighbours, which they must not touch. */
static void rows_without_softmax(void **state) {
    enum { ROWS = 7 };
    static const int64_t lengths[] = {1, 10, 257, 5000};
    size_t d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            int64_t n = lengths[k];
            ce_case c = fresh(all_dtypes[d], ROWS, n);
            put_rows_without_softmax(n);
            test_everywhere(&c, "rows of NaN, +inf, -inf");
            /* Ignored: 0, whatever they hold. */
            targets[1] = targets[3] = targets[5] = -100;
            c.use_ignore_index = true;
            c.ignore_index = -100;
            test_everywhere(&c, "ignored rows of NaN, +inf, -inf");
            /* Rows with a bad target have gradient 0, whatever their logits are. */
            c.use_ignore_index = false;
            test_everywhere(&c, "bad targets on rows of NaN, +inf, -inf");
        }
    test_done();
}

/* A NaN that is alone with absent or masked elements in its thread's share of the row. */
static void lonely_nan(void **state) {
    static const int64_t lengths[] = {1, 9, 33, 257, 1025, 9001};
    size_t d, k, n;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            ce_case c = fresh(all_dtypes[d], 4, lengths[k]);
            n = (size_t)lengths[k];
            x[0 * n + n - 1] = (double)NAN;
            x[1 * n] = (double)NAN;
            mask(2, lengths[k], 1, lengths[k], 0, 0);
            x[2 * n + n - 1] = (double)NAN;
            mask(3, lengths[k], lengths[k] / 2, lengths[k], 0, 0);
            x[3 * n + n - 1 - n / 5] = (double)NAN;
            targets[0] = targets[1] = targets[2] = targets[3] = 0;
            for (c.logits_offset = 0; c.logits_offset < 2; c.logits_offset++)
                ce_test(&c, "a NaN alone");
        }
    test_done();
}

/* A NaN that a given lse does not include, in each vector that a thread takes at a time. Only the gradient of this
 * logit is NaN. */
static void nan_beside_lse(void **state) {
    enum { ROWS = 5, BLOCK = 256 };
    static const double lse[ROWS] = {9, 9.5, 10, 10.25, 11};
    size_t d;
    int k, row;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < 2; k++) { /* in registers of four threads, and streamed */
            int64_t width = (int64_t)(16 / dtype_size(all_dtypes[d])), n = width * (k ? 8 * BLOCK + 2 : 20);
            ce_case c = fresh(all_dtypes[d], ROWS, n);
            for (row = 0; row < ROWS; row++)
                x[row * n + row * (k ? BLOCK : 4) * width + 1] = (double)NAN;
            c.lse_in = lse;
            c.outputs = CE_OUT_GRAD;
            ce_test(&c, "a NaN beside a given lse");
        }
    test_done();
}

/* A target of class weight 0 in a row without a softmax, with its lse given: the loss is NaN, also beside a z-loss. */
static void weightless_targets_beside_lse(void **state) {
    enum { ROWS = 7, CLASSES = 5000 };
    static const int64_t lengths[] = {1, 10, 257, CLASSES};
    static const double lse[ROWS] = {9, (double)NAN, 10, (double)INFINITY, 9.5, (double)-INFINITY, 11};
    static const double class_weights[CLASSES];
    size_t d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            int64_t n = lengths[k];
            ce_case c = fresh(all_dtypes[d], ROWS, n);
            put_rows_without_softmax(n);
            c.class_weights = class_weights;
            c.lse_in = lse;
            c.reduction = GPULOSS_NONE;
            c.outputs = CE_OUT_LOSS_ROWS;
            ce_test(&c, "targets of weight 0 beside a given lse");
            c.lse_square_scale = 0.25;
            ce_test(&c, "targets of weight 0 beside a given lse, z-loss");
        }
    test_done();
}

/* Logits at the ends of the type. The rows are not summed up: a loss of 6e38 is not a float. */
static void huge_logits(void **state) {
    enum { ROWS = 6 };
    static const int64_t lengths[] = {2, 11, 300, 9001};
    size_t d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            int64_t n = lengths[k], column;
            double huge = dtype_max(all_dtypes[d]);
            ce_case c = fresh(all_dtypes[d], ROWS, n);
            for (column = 0; column < n; column++) {
                x[0 * n + column] = huge;
                x[1 * n + column] = -huge;
                x[2 * n + column] = column % 2 ? huge : -huge;
                x[3 * n + column] = column == n / 2 ? huge : dtype_round(all_dtypes[d], 0.5 * huge);
                x[4 * n + column] = column == 0 ? -huge : x[4 * n + column];
            }
            targets[2] = 1;
            c.reduction = GPULOSS_NONE;
            ce_test(&c, "logits at the ends of the type");
            targets[2] = 0;
            c.outputs = CE_OUT_LOSS_ROWS | CE_OUT_GRAD;
            ce_test(&c, "a loss at the end of the type");
        }
    test_done();
}

int run_cross_entropy_corner_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_are_counted),
        cmocka_unit_test(ignored_rows),
        cmocka_unit_test(ignore_index_beyond_32_bits),
        cmocka_unit_test(bad_targets),
        cmocka_unit_test(bad_targets_start_from_zero),
        cmocka_unit_test(all_ignored),
        cmocka_unit_test(zero_rows),
        cmocka_unit_test(masked_classes),
        cmocka_unit_test(rows_without_softmax),
        cmocka_unit_test(lonely_nan),
        cmocka_unit_test(huge_logits),
        cmocka_unit_test(nan_beside_lse),
        cmocka_unit_test(weightless_targets_beside_lse),
    };
    return cmocka_run_group_tests_name("cross_entropy corners", tests, NULL, NULL);
}
