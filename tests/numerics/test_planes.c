/* Cross-entropy without options where the classes are not innermost, with enough columns for the kernel that takes them
 * by vectors. Other cases reach the kernel for all columns. */
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

/* Neighbouring columns of 3 images: enough for every multiprocessor, and the last tile is not whole. */
static int64_t inner_for_all(void) {
    return harness_small ? 344 : 22536;
}

static ce_case plane_case(gpuloss_dtype dtype, int64_t classes, logits_kind kind, unsigned number, option_inputs *in) {
    option_shape shape = {3 * inner_for_all(), classes, inner_for_all()};
    ce_case c = option_case(dtype, shape, number % 3 == 2 ? OPTION_IGNORE_INDEX : 0, kind, number, in);
    c.grad_dtype = GPULOSS_DTYPE_UNSET;
    c.outputs = CE_OUT_ALL;
    c.reduction = all_reductions[number % REDUCTION_COUNT];
    return c;
}

static double *logit(const ce_case *c, const option_inputs *in, int64_t row, int64_t k) {
    return &in->x[(row / c->inner * c->classes + k) * c->inner + row % c->inner];
}

/* of_rows: with a gradient of each row's own from above, where there is one at all. */
static void check_pass(ce_case c, unsigned number, bool of_rows, const char *name) {
    double *lse, *above = NULL;
    option_index_type(&c, number / 4);
    lse = option_pass(&c, number);
    if (of_rows && c.outputs & CE_OUT_GRAD)
        c.grad_loss_rows = above = quarters(c.rows);
    ce_test(&c, name);
    free(lse);
    free(above);
}

/* Up to 22 classes are in the registers of a warp. More classes are distributed to 2, 4 and 8 warps, some of which have
 * one more class than others. The last cases do not fit at once. */
static void classes_of_planes(void **state) {
    static const int64_t classes[] = {1, 2, 3, 4, 15, 16, 21, 22, 23, 180, 33, 70};
    unsigned d, k, pass, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (pass = 0; pass < 4; pass++, number++) {
                option_inputs in;
                ce_case c = plane_case(dtypes[d], classes[k], (logits_kind)(number / 4 % LOGITS_KINDS), number, &in);
                if (classes[k] < 23 || d == pass % DTYPES || harness_small)
                    check_pass(c, number, number % 3 == 0, "planes");
                option_inputs_free(&in);
            }
    test_done();
}

/* Losses too large for the integers of the sum, and columns with all classes masked. */
static void large_losses_of_columns(void **state) {
    const double extreme[] = {1e30, -1e30, -(double)INFINITY};
    unsigned d, pass;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (pass = 0; pass < 24; pass++) {
            option_inputs in;
            ce_case c = plane_case(dtypes[d], pass < 12 ? 3 : 26, LOGITS_NORMAL, pass, &in);
            int64_t row, k;
            for (row = 0; row < c.rows; row += c.rows / 3)
                for (k = pass % 3; k < (pass % 3 == 2 ? c.classes : 1 + pass % 3); k++)
                    *logit(&c, &in, row, k) = dtypes[d] == GPULOSS_F16 && !isinf(extreme[pass % 3])
                                                  ? copysign(60000, extreme[pass % 3])
                                                  : dtype_round(dtypes[d], extreme[pass % 3]);
            check_pass(c, pass, false, "large losses of columns");
            option_inputs_free(&in);
        }
    test_done();
}

/* Enough columns for several tiles a warp, of one image or of two. */
static void many_columns_of_few_classes(void **state) {
    const int64_t multiprocessors = harness_small ? 4 : 132, warps = 16;
    unsigned d, pass;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (pass = 0; pass < 4; pass++) {
            option_inputs in;
            const int64_t tile = 256 / (int64_t)dtype_size(dtypes[d]), tiles = 8 * warps * multiprocessors / 3 * 3 + 3;
            const option_shape shape = {tiles * tile, 3, tiles * tile / (pass % 2 ? 1 : 3)};
            ce_case c = option_case(dtypes[d], shape, pass == 2 ? OPTION_IGNORE_INDEX : 0, LOGITS_NORMAL, pass, &in);
            c.grad_dtype = GPULOSS_DTYPE_UNSET;
            if (!harness_small || pass == 2 || pass == d)
                check_pass(c, pass + 4 * d, pass == 0, "many columns");
            option_inputs_free(&in);
        }
    test_done();
}

/* Columns by vectors need every plane, and both arrays, to begin on 16 bytes. */
static void alignments_of_planes(void **state) {
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (number = 0; number < 5; number++) {
            option_inputs in;
            ce_case c = plane_case(dtypes[d], 5, LOGITS_NORMAL, number, &in);
            c.logits_offset = number == 1;
            c.grad_offset = number == 2;
            c.logits_stride = number == 3 ? STRIDE_13_MORE : STRIDE_16_BYTES;
            c.grad_stride = number == 4 ? STRIDE_ONE_MORE : STRIDE_PACKED;
            ce_test(&c, "alignments of planes");
            option_inputs_free(&in);
        }
    test_done();
}

/* Neighbouring columns have one class at -inf, all classes at -inf, a NaN, +inf, a NaN in an ignored column, a bad
 * target, and a distant maximum. Types with enough range have a loss too large for the integers of the sum. */
static void contents_of_planes(void **state) {
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2 * DTYPES; d++) {
        const int64_t classes = d < DTYPES ? 12 : 26;
        const gpuloss_dtype dtype = dtypes[d % DTYPES];
        option_inputs in;
        ce_case c = plane_case(dtype, classes, LOGITS_NORMAL, 2, &in);
        int64_t row, k;
        for (row = 0; row < c.rows; row++)
            switch (row / 7 % 16) {
            case 1:
                *logit(&c, &in, row, row % classes) = -(double)INFINITY;
                break;
            case 2:
                for (k = 0; k < classes; k++)
                    *logit(&c, &in, row, k) = -(double)INFINITY;
                break;
            case 3:
                *logit(&c, &in, row, row % classes) = (double)NAN;
                break;
            case 4:
                *logit(&c, &in, row, row % classes) = (double)INFINITY;
                break;
            case 5:
                *logit(&c, &in, row, row % classes) = (double)NAN;
                in.targets[row] = c.ignore_index;
                break;
            case 6:
                in.targets[row] = classes + row % 3;
                break;
            case 7:
                *logit(&c, &in, row, row % classes) = 8192;
                break;
            case 8:
                *logit(&c, &in, row, row % classes) = dtype == GPULOSS_F16 ? 60000 : dtype_round(dtype, 1e30);
                break;
            default:
                break;
            }
        c.reduction = GPULOSS_SUM;
        ce_test(&c, "contents of planes");
        option_inputs_free(&in);
    }
    test_done();
}

/* The loss by itself, and the gradient by itself, from the lse of a forward pass. */
static void planes_from_lse(void **state) {
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (number = 0; number < 4; number++) {
            option_inputs in;
            ce_case c =
                plane_case(dtypes[d], number < 2 ? 21 : 26, d == 1 ? LOGITS_SHIFTED : LOGITS_NORMAL, 1 + d, &in);
            ce_result first;
            char text[CE_DESCRIPTION];
            report r;
            ce_describe(&c, "lse of planes", text, sizeof text);
            r = report_on(text);
            ce_run(&c, &first, &r);
            ce_check(&c, &first, &r);
            case_done(&r);
            c.lse_in = first.lse;
            c.outputs = number % 2 ? CE_OUT_GRAD : CE_OUT_LOSS;
            ce_test(&c, "planes from lse");
            ce_free(&first);
            option_inputs_free(&in);
        }
    test_done();
}

int run_plane_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_of_planes),           cmocka_unit_test(large_losses_of_columns),
        cmocka_unit_test(many_columns_of_few_classes), cmocka_unit_test(alignments_of_planes),
        cmocka_unit_test(contents_of_planes),          cmocka_unit_test(planes_from_lse),
    };
    return cmocka_run_group_tests_name("planes", tests, NULL, NULL);
}
