/* gpuloss_cross_entropy with the classes not innermost: [images, classes, inner], against the reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static void run_layout(gpuloss_dtype dtype, option_shape shape, unsigned options, unsigned number) {
    option_inputs in;
    ce_case c = option_case(dtype, shape, options, (logits_kind)(number % LOGITS_KINDS), number, &in);
    option_vary(&c, number);
    ce_test(&c, "layout");
    option_inputs_free(&in);
}

/* Every number of classes with every width: tiles of columns that are full, cut and of one column, in one image and
 * over several. */
static void every_inner(void **state) {
    static const int64_t inners[] = {1, 2, 3, 7, 32, 128, 200};
    int64_t classes;
    unsigned i, d, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (classes = 1; classes <= 41; classes++)
        for (i = 0; i < sizeof inners / sizeof inners[0]; i++)
            for (d = 0; d < DTYPE_COUNT; d++, number++) {
                int64_t n = classes == 41 ? 150 : classes, images = 1 + (int64_t)(number % 3);
                option_shape shape = {images * inners[i], n, inners[i]};
                /* A small run has a third of the narrow layouts, and wide layouts of few classes only. */
                if (harness_small && (number % 3 != 0 || (n * shape.rows > 2000 && n > 4)))
                    continue;
                run_layout(all_dtypes[d], shape, number * 53 % (2 * OPTION_SETS), number);
            }
    test_done();
}

/* Rows without options and with all options, for each dtype and reduction, from every offset. */
static void layouts_with_no_and_all_options(void **state) {
    static const option_shape shapes[] = {{10, 5, 5}, {66, 21, 33}, {192, 10, 64}};
    unsigned d, k, full, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (full = 0; full < 4; full++, number++) {
                unsigned options = (full & 1 ? OPTION_ALL : 0u) | (full & 2 ? OPTION_PROBABILITIES : 0u);
                int offsets = harness_small ? 1 : (int)(16 / dtype_size(all_dtypes[d])), offset;
                if (harness_small && number % 3 == 1)
                    continue;
                for (offset = 0; offset < offsets; offset++) {
                    option_inputs in;
                    ce_case c = option_case(all_dtypes[d], shapes[k], options, LOGITS_NORMAL, number, &in);
                    c.reduction = all_reductions[number % REDUCTION_COUNT];
                    c.logits_offset = offset;
                    c.grad_offset = (offset + (int)number) % 2;
                    c.logits_stride = (stride_kind)(offset % STRIDE_KINDS);
                    ce_test(&c, "layout with no or all options");
                    option_inputs_free(&in);
                }
            }
    test_done();
}

/* A long class dimension with few and many columns, as of a vocabulary in the middle. */
static void long_layouts(void **state) {
    static const option_shape shapes[] = {{4, 1000, 2}, {3, 4099, 3}, {70, 1025, 35}, {2, 50257, 1}, {1, 32000, 1}};
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++, number++) {
            if (harness_small && (k > 1 || d % 2 != k))
                continue;
            run_layout(all_dtypes[d], shapes[k], OPTION_ALL | (number % 2 ? OPTION_PROBABILITIES : 0u), number);
            run_layout(all_dtypes[d], shapes[k], number % 2 ? 0u : (unsigned)OPTION_PROBABILITIES, number + 1);
        }
    test_done();
}

/* The same numbers in both layouts: inner = 1 is packed rows. */
static void inner_of_one(void **state) {
    static const option_shape rows = {3, 50, 0}, inner = {3, 50, 1};
    size_t d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        option_inputs in;
        ce_case c = option_case(all_dtypes[d], rows, OPTION_ALL, LOGITS_NORMAL, 2, &in), columns = c;
        char text[CE_DESCRIPTION];
        ce_result first, second;
        report r;
        columns.inner = inner.inner;
        ce_describe(&columns, "inner = 1", text, sizeof text);
        r = report_on(text);
        ce_run(&c, &first, &r);
        ce_run(&columns, &second, &r);
        ce_check(&columns, &second, &r);
        compare_bits(&r, "argmax", first.argmax, second.argmax, 3 * sizeof *first.argmax);
        ce_free(&first);
        ce_free(&second);
        option_inputs_free(&in);
        case_done(&r);
    }
    test_done();
}

int run_cross_entropy_layout_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_inner),
        cmocka_unit_test(layouts_with_no_and_all_options),
        cmocka_unit_test(long_layouts),
        cmocka_unit_test(inner_of_one),
    };
    return cmocka_run_group_tests_name("cross_entropy layouts", tests, NULL, NULL);
}
