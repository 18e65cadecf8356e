/* Cross-entropy without options over whole vectors, of rows that a block has to itself on GPUs which fetch ahead. */
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

static ce_case block_case(gpuloss_dtype dtype, int64_t rows, int64_t vectors, bool gradient, unsigned number,
                          option_inputs *in) {
    option_shape shape = {rows, vectors * (int64_t)(16 / dtype_size(dtype)), 0};
    ce_case c = option_case(dtype, shape, number % 3 == 2 ? OPTION_IGNORE_INDEX : 0,
                            (logits_kind)(number % LOGITS_KINDS), number, in);
    option_index_type(&c, number);
    c.outputs = CE_OUT_ALL & ~(gradient ? 0u : (unsigned)CE_OUT_GRAD);
    c.reduction = all_reductions[number % REDUCTION_COUNT];
    c.in_place = gradient && number % 4 == 1;
    c.logits_stride = number % 2 ? STRIDE_16_BYTES : STRIDE_PACKED;
    c.grad_stride = c.in_place || number % 3 ? c.logits_stride : STRIDE_PACKED;
    c.grad_loss_rows = gradient && number % 5 == 3 ? in->row_weights : NULL;
    c.divisor = c.reduction == GPULOSS_MEAN ? 2.75 : 0;
    c.divisor_on_device = c.reduction == GPULOSS_MEAN && number % 4 < 2;
    c.result_offset = (int)number % 3;
    c.guard = number % 2 ? 256 : 0;
    return c;
}

/* Blocks have one warp to sixteen, odd numbers too. All threads have the maximum number of vectors, or some have fewer.
 * Few rows have a larger block. */
static void sizes_of_block_rows(void **state) {
    static const struct {
        int64_t rows, vectors;
        bool gradient;
    } shapes[] = {{70, 193, false},  {40, 256, false},  {40, 300, false},  {20, 520, false}, {14, 1024, false},
                  {14, 1300, false}, {10, 2100, false}, {10, 4096, false}, {3, 600, false},  {1, 513, false},
                  {70, 97, true},    {60, 128, true},   {40, 200, true},   {30, 400, true},  {20, 520, true},
                  {20, 1024, true},  {12, 1030, true},  {10, 1800, true},  {10, 2048, true}, {3, 600, true},
                  {1, 300, true}};
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++, number++) {
            option_inputs in;
            int64_t rows = harness_small || shapes[k].rows < 10 ? shapes[k].rows : 20 * shapes[k].rows;
            ce_case c = block_case(dtypes[d], rows, shapes[k].vectors, shapes[k].gradient, number, &in);
            ce_test(&c, "block rows");
            option_inputs_free(&in);
        }
    test_done();
}

/* More rows a block than it can defer: read only; written, from the counter, and prefetched; two in a row, and both. */
static void many_block_rows(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        int64_t vectors;
        bool gradient;
        int64_t blocks; /* of a multiprocessor */
    } cases[] = {{GPULOSS_F32, 2052, false, 3}, {GPULOSS_F32, 513, true, 6},  {GPULOSS_F32, 280, true, 10},
                 {GPULOSS_BF16, 250, true, 16}, {GPULOSS_F16, 257, true, 10}, {GPULOSS_BF16, 1030, true, 3}};
    int64_t multiprocessors = harness_small ? 4 : 132;
    unsigned k;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        option_inputs in;
        int64_t rows = 34 * cases[k].blocks * multiprocessors - 3;
        ce_case c = block_case(cases[k].dtype, rows, cases[k].vectors, cases[k].gradient, 1 + 3 * k, &in);
        ce_test(&c, "many block rows");
        option_inputs_free(&in);
    }
    test_done();
}

static void backward_of_block_rows(void **state) {
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (number = 0; number < 4; number++) {
            option_inputs in;
            ce_case forward = block_case(dtypes[d], 37, number % 2 ? 250 : 600, false, 4 * d + number, &in);
            ce_case backward = forward;
            ce_result first;
            report r = report_on("lse of block rows");
            forward.outputs = CE_OUT_LSE;
            ce_run(&forward, &first, &r);
            backward.lse_in = first.lse;
            backward.outputs = number == 0 ? CE_OUT_GRAD : CE_OUT_ALL & ~(number == 1 ? (unsigned)CE_OUT_GRAD : 0u);
            backward.in_place = number == 3;
            backward.grad_stride = backward.logits_stride;
            ce_test(&backward, "backward of block rows");
            ce_free(&first);
            option_inputs_free(&in);
        }
    test_done();
}

/* Neighbouring rows have one class at -inf, all classes at -inf, a NaN, +inf, a NaN in an ignored row, a bad target,
 * and a distant maximum. Types with enough range have a loss too large for the integers of the sum. */
static void contents_of_block_rows(void **state) {
    unsigned d, gradient;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (gradient = 0; gradient < 2; gradient++) {
            option_inputs in;
            ce_case c = block_case(dtypes[d], 40, 260, gradient == 1, 2, &in);
            int64_t row, i;
            c.index_type = GPULOSS_I64;
            for (row = 0; row < c.rows; row++) {
                double *x = in.x + row * c.classes;
                int64_t at = row * 97 % c.classes;
                switch (row % 9) {
                case 1:
                    x[at] = -(double)INFINITY;
                    break;
                case 2:
                    for (i = 0; i < c.classes; i++)
                        x[i] = -(double)INFINITY;
                    break;
                case 3:
                    x[at] = (double)NAN;
                    break;
                case 4:
                    x[at] = (double)INFINITY;
                    break;
                case 5:
                    x[at] = (double)NAN;
                    in.targets[row] = c.ignore_index;
                    break;
                case 6:
                    in.targets[row] = c.classes + row % 3;
                    break;
                case 7:
                    x[at] = 8192;
                    break;
                case 8:
                    x[at] = dtypes[d] == GPULOSS_F16 ? 60000 : dtype_round(dtypes[d], 1e30);
                    break;
                default:
                    break;
                }
            }
            c.reduction = GPULOSS_SUM;
            c.divisor = 0;
            c.divisor_on_device = false;
            ce_test(&c, "contents of block rows");
            option_inputs_free(&in);
        }
    test_done();
}

int run_block_row_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_of_block_rows),
        cmocka_unit_test(many_block_rows),
        cmocka_unit_test(backward_of_block_rows),
        cmocka_unit_test(contents_of_block_rows),
    };
    return cmocka_run_group_tests_name("block_rows", tests, NULL, NULL);
}
