/* Rows in memory and in registers: every type of the gradient in every alignment, and groups that reduce nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

/* Vectors that a thread loads at a time, and vectors of the longest row in registers. Doubles have half. */
enum { AT_ONCE = 4, LONGEST = 2048 };

static int64_t vectors_of(gpuloss_dtype dtype, int64_t vectors) {
    return dtype == GPULOSS_F64 ? vectors / 2 : vectors;
}

static int64_t width_of(gpuloss_dtype dtype) {
    return (int64_t)(16 / dtype_size(dtype));
}

/* Rows that fill the registers of a warp, and rows that are too long for the registers of a block. A third of them
 * begin and end within vectors. The gradients of another third do. */
static void types_of_rows_in_memory(void **state) {
    unsigned n;
    (void)state;
    REQUIRE_GPU();
    for (n = 0; n < DTYPE_COUNT * DTYPE_COUNT * 2 * 3; n++) {
        const gpuloss_dtype dtype = all_dtypes[n / 6 / DTYPE_COUNT];
        const int64_t vectors = vectors_of(dtype, n / 3 % 2 ? LONGEST + 2 : 256);
        const option_shape shape = {2, vectors * width_of(dtype) + (n % 3 == 1), 0};
        option_inputs in;
        ce_case c = option_case(dtype, shape, n % 3 ? OPTION_ROW_WEIGHTS : 0, LOGITS_NORMAL, n, &in);
        c.grad_dtype = all_dtypes[n / 6 % DTYPE_COUNT];
        c.logits_stride = c.grad_stride = n % 3 == 1 ? STRIDE_ONE_MORE : STRIDE_16_BYTES;
        c.grad_offset = n % 3 == 2;
        c.outputs = CE_OUT_LOSS | CE_OUT_GRAD;
        ce_test(&c, "types of rows in memory");
        option_inputs_free(&in);
    }
    test_done();
}

/* Two warps share a row, of which the lse is given. They meet only at a barrier. */
static void groups_of_given_lse(void **state) {
    enum { ROWS = 6 };
    static const double lse[ROWS] = {3, 4, 5, 6, 7, 8};
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        const option_shape shape = {ROWS, vectors_of(all_dtypes[d], 64 * AT_ONCE) * width_of(all_dtypes[d]), 0};
        option_inputs in;
        ce_case c = option_case(all_dtypes[d], shape, 0, LOGITS_NORMAL, d, &in);
        c.lse_in = lse;
        c.outputs = CE_OUT_GRAD;
        ce_test(&c, "groups of a given lse");
        option_inputs_free(&in);
    }
    test_done();
}

/* Smoothing is summed by vectors. Each vector that a thread has at once is the last of a row in one case, and the row
 * ends within it. The cases are rows in registers, columns, and rows that are too long for registers. */
static void ends_of_smoothed_rows(void **state) {
    enum { SHORT_ROWS = 9, LONG_ROWS = AT_ONCE, LENGTHS = SHORT_ROWS + LONG_ROWS, LAYOUTS = 3, KINDS = 2 };
    unsigned n;
    (void)state;
    REQUIRE_GPU();
    for (n = 0; n < DTYPE_COUNT * LAYOUTS * KINDS * LENGTHS * 2; n++) {
        const gpuloss_dtype dtype = all_dtypes[n % DTYPE_COUNT];
        const unsigned k = n / DTYPE_COUNT, layout = k % LAYOUTS, kind = k / LAYOUTS % KINDS;
        const unsigned length = k / LAYOUTS / KINDS % LENGTHS, ends_early = k / LAYOUTS / KINDS / LENGTHS;
        const int is_long = length >= SHORT_ROWS;
        const int64_t width = width_of(dtype);
        const int64_t vectors = is_long ? vectors_of(dtype, LONGEST) + 256 * (length - SHORT_ROWS) + 1 : 1 + length;
        const option_shape shape = {is_long ? 2 : 6, vectors * width - (ends_early ? width - 1 : 1),
                                    layout == 2 ? 3 : 0};
        option_inputs in;
        ce_case c;
        if (is_long && layout == 2)
            continue;
        c = option_case(dtype, shape, OPTION_SMOOTHING, kind ? LOGITS_SHIFTED : LOGITS_NORMAL, n, &in);
        c.logits_stride = c.grad_stride = layout == 1 ? STRIDE_ONE_MORE : STRIDE_16_BYTES;
        c.logits_offset = layout == 1;
        c.outputs = ends_early ? CE_OUT_LOSS | CE_OUT_GRAD : CE_OUT_EVERY;
        ce_test(&c, "ends of smoothed rows");
        option_inputs_free(&in);
    }
    test_done();
}

int run_row_memory_tests(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(types_of_rows_in_memory), cmocka_unit_test(groups_of_given_lse),
                                       cmocka_unit_test(ends_of_smoothed_rows)};
    return cmocka_run_group_tests_name("rows in memory and in registers", tests, NULL, NULL);
}
