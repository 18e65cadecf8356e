/* Cross-entropy without options where the classes are not innermost and there are columns enough for the kernel that
 * takes them by vectors; cases beside it go to the one for all columns. */
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

/* The classes are shared out among 1, 2, 4 and 8 warps, some have one more than others, and the last don't fit at once. */
static void classes_of_planes(void **state) {
    static const int64_t classes[] = {1, 2, 15, 16, 21, 180, 33, 70};
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++, number++) {
            option_inputs in;
            ce_case c = plane_case(dtypes[d], classes[k], (logits_kind)(number % LOGITS_KINDS), number, &in);
            if (harness_small && classes[k] > 33 && d != 0)
                continue;
            option_index_type(&c, number);
            c.in_place = number % 2 == 1;
            c.outputs &= ~(number % 4 == 3 ? (unsigned)CE_OUT_GRAD : 0u);
            ce_test(&c, "planes");
            option_inputs_free(&in);
        }
    test_done();
}

/* Columns by vectors need every plane, and both arrays, to begin on 16 bytes. */
static void places_of_planes(void **state) {
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
            ce_test(&c, "places of planes");
            option_inputs_free(&in);
        }
    test_done();
}

static double *logit(const ce_case *c, const option_inputs *in, int64_t row, int64_t k) {
    return &in->x[(row / c->inner * c->classes + k) * c->inner + row % c->inner];
}

/* In neighbouring columns: one class at -inf, all of them, a NaN, +inf, a NaN in what is ignored, a bad target, and a top
 * that is far out, and one, of types that have it, for which the loss is too large for the integers of the sum. */
static void contents_of_planes(void **state) {
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++) {
        enum { CLASSES = 12 };
        option_inputs in;
        ce_case c = plane_case(dtypes[d], CLASSES, LOGITS_NORMAL, 2, &in);
        int64_t row, k;
        for (row = 0; row < c.rows; row++)
            switch (row / 7 % 16) {
            case 1:
                *logit(&c, &in, row, row % CLASSES) = -(double)INFINITY;
                break;
            case 2:
                for (k = 0; k < CLASSES; k++)
                    *logit(&c, &in, row, k) = -(double)INFINITY;
                break;
            case 3:
                *logit(&c, &in, row, row % CLASSES) = (double)NAN;
                break;
            case 4:
                *logit(&c, &in, row, row % CLASSES) = (double)INFINITY;
                break;
            case 5:
                *logit(&c, &in, row, row % CLASSES) = (double)NAN;
                in.targets[row] = c.ignore_index;
                break;
            case 6:
                in.targets[row] = CLASSES + row % 3;
                break;
            case 7:
                *logit(&c, &in, row, row % CLASSES) = 8192;
                break;
            case 8:
                *logit(&c, &in, row, row % CLASSES) = dtypes[d] == GPULOSS_F16 ? 60000 : dtype_round(dtypes[d], 1e30);
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

static void planes_from_lse(void **state) {
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++) {
        option_inputs in;
        ce_case c = plane_case(dtypes[d], 21, d == 1 ? LOGITS_SHIFTED : LOGITS_NORMAL, 1 + d, &in);
        ce_result first;
        char text[CE_DESCRIPTION];
        report r;
        ce_describe(&c, "lse of planes", text, sizeof text);
        r = report_on(text);
        ce_run(&c, &first, &r);
        ce_check(&c, &first, &r);
        case_done(&r);
        c.lse_in = first.lse;
        c.outputs = CE_OUT_GRAD;
        ce_test(&c, "planes from lse");
        ce_free(&first);
        option_inputs_free(&in);
    }
    test_done();
}

int run_plane_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_of_planes),
        cmocka_unit_test(places_of_planes),
        cmocka_unit_test(contents_of_planes),
        cmocka_unit_test(planes_from_lse),
    };
    return cmocka_run_group_tests_name("planes", tests, NULL, NULL);
}
