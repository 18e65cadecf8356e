/* Forward KL of two arrays of logits whose rows are short. GPUs with bulk copies have a kernel for tiles of packed
 * rows, and one for longer rows of one block each. The losses alone of still longer rows have a kernel that does not
 * retain them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "run_common.h"
#include "suites.h"

static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* The rest of a case besides its logits. The number chooses the outputs, the reduction and the options. */
static kl_case packed_case(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned choice, unsigned number,
                           kl_inputs *in) {
    static const unsigned outputs[] = {KL_OUT_LOSS | KL_OUT_LOSS_ROWS | KL_OUT_GRAD, KL_OUT_LOSS,
                                       KL_OUT_LOSS | KL_OUT_GRAD, KL_OUT_LOSS | KL_OUT_LOSS_ROWS, KL_OUT_GRAD};
    divergence_shape shape = {rows, classes};
    kl_case c = divergence_case(dtype, GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1, choice);
    *in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, number * 7 % KL_WITH_SETS & ~(unsigned)KL_WITH_EPS, number);
    c.outputs = outputs[number % 5];
    c.reduction = c.divisor > 0 ? GPULOSS_MEAN : number % 5 == 1 ? GPULOSS_SUM : all_reductions[number % 4];
    c.in_place = number % 3 == 1;
    return c;
}

/* The rows of a tile differ. Some are unchanged, and some have close sides, so that their sum is formed anew. Some have logits far from 0, with larger ones in the second half. Others have classes, or all of them, masked on one side or on
 * both. */
static void vary_rows(const kl_case *c, const kl_inputs *in) {
    static const double inf = (double)INFINITY;
    int64_t row, i, n = c->classes;
    for (row = 0; row < c->rows; row++) {
        double *x = in->input + row * n, *t = in->target + row * n;
        for (i = 0; i < n; i++)
            switch (row % 11) {
            case 2:
            case 3:
                x[i] = dtype_round(c->dtype, t[i] + 0.01 * (double)(i % 7));
                break;
            case 5:
                x[i] = dtype_round(c->dtype, x[i] - 3e4), t[i] = dtype_round(c->dtype, t[i] + 3e4);
                break;
            case 6:
                x[i] = dtype_round(c->dtype, x[i] + (c->dtype == GPULOSS_F16 ? 3e4 : 1e30) * (i < n / 2 ? 1 : 1.5));
                break;
            case 7:
                if (i % 3 == 1)
                    t[i] = -inf, x[i] = i % 2 ? -inf : x[i];
                break;
            case 8:
                if (i % 5 == 2)
                    x[i] = -inf;
                break;
            case 9:
                t[i] = dtype_round(c->dtype, t[i] - (c->dtype == GPULOSS_F16 ? 3e4 : 1e30));
                break;
            case 10:
                if (row % 22 == 10)
                    x[i] = t[i] = -inf;
            }
    }
}

/* Weights too large and too small for the integers of the sum. */
static double *distant_weights(int64_t rows) {
    double *weights = require_doubles(rows);
    int64_t row;
    for (row = 0; row < rows; row++)
        weights[row] = ldexp(row % 2 ? -1 : 1, 40 * (int)(row % 5 - 2));
    return weights;
}

static void check_packed(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned number) {
    kl_inputs in;
    kl_case c = packed_case(dtype, rows, classes, CHOICE_FORWARD, number, &in);
    double *of_rows = NULL;
    if (number % 7 == 5)
        c.row_weights = of_rows = distant_weights(rows);
    else if (number % 2)
        vary_rows(&c, &in);
    if (number % 7 == 3 && c.outputs & KL_OUT_GRAD)
        c.grad_loss_rows = of_rows = quarters(rows);
    kl_test(&c, "packed rows of two logits");
    kl_inputs_free(&in);
    free(of_rows);
}

/* Rows of words and of vectors, for one lane and for 2, 4, 8, 16 and 32. Lanes have equal parts of a row or not. Two
 * rows of 16 bits may share a word. They are in several slots, in one, and in a larger one. The last tile is not whole.
 * */
static void classes_of_packed_pairs(void **state) {
    static const int64_t classes[] = {1,  2,  3,  5,   8,   9,   10,  16,  20,  31,  32,  33,   50,   64,
                                      65, 66, 72, 100, 130, 150, 201, 256, 300, 516, 998, 1000, 1024, 2048};
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++, number++) {
            int64_t rows = classes[k] > 600 ? 23 : classes[k] > 200 ? 35 : classes[k] > 20 ? 133 : 401;
            unsigned pass;
            for (pass = 0; pass < (classes[k] > 600 ? 2u : 4u); pass++)
                check_packed(dtypes[d], rows + pass, classes[k], 3 * number + pass);
        }
    check_packed(GPULOSS_BF16, 9, 4096, 1);
    check_packed(GPULOSS_F16, 11, 4096, 2);
    test_done();
}

/* So many rows that a slot has several for each lane, and that warps take several slots at a time. */
static void many_packed_pairs(void **state) {
    int64_t rows = harness_small ? 6200 : 210000, several = harness_small ? 1600 : 105000;
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (number = d; number < 4 + d; number++) {
            check_packed(dtypes[d], 3 * rows + 7, number % 2 ? 10 : 3, number);
            if (harness_small || (number < d + 2 && number % 2))
                check_packed(dtypes[d], several, d == 0 ? 33 : 65, number + 1);
            if (harness_small || (number < d + 2 && number % 2 == 0))
                check_packed(dtypes[d], several, d == 0 ? 36 : 72, number + 2);
            if (harness_small || number == d)
                check_packed(dtypes[d], several, d == 0 ? 67 : 135, number + 3);
        }
    test_done();
}

/* A lone row. Its sides are close, and closer with a larger number. Or both sides are far from 0. Or classes are masked
 * in the target, or on both sides. */
enum { CLOSE_ROWS = 8, LONE_ROWS = 12 };
static void vary_row(const kl_case *c, const kl_inputs *in, unsigned number) {
    const double shift = c->dtype == GPULOSS_F16 ? 3e4 : 3e5;
    int64_t i;
    for (i = 0; i < c->classes; i++) {
        double *x = in->input + i, *t = in->target + i;
        if (number < CLOSE_ROWS)
            *x = dtype_round(c->dtype, *t + ldexp((double)(i % 7), -(int)number));
        else if (number % 2 == 0)
            *x = dtype_round(c->dtype, *x + shift), *t = dtype_round(c->dtype, *t + shift);
        else if (i % 3 == 1)
            *t = -(double)INFINITY, *x = i % 2 ? *t : *x;
    }
}

static void check_in_registers(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned number) {
    static const unsigned outputs[] = {KL_OUT_LOSS, KL_OUT_LOSS | KL_OUT_GRAD, KL_OUT_GRAD};
    static const gpuloss_reduction reductions[] = {GPULOSS_SUM, GPULOSS_MEAN, GPULOSS_BATCHMEAN};
    divergence_shape shape = {rows, classes};
    kl_case c = divergence_case(dtype, GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1, CHOICE_FORWARD);
    kl_inputs in = divergence_inputs(
        &c, DISTRIBUTIONS_RANDOM, number % 4 ? KL_WITH_TEMPERATURE | (number % 3 ? KL_WITH_SQUARE : 0u) : 0u, number);
    c.outputs = outputs[number % 3];
    c.reduction = reductions[number / 3 % 3];
    c.in_place = number % 5 == 1;
    if (rows == 1)
        vary_row(&c, &in, number / 6 % LONE_ROWS);
    else if (number % 2)
        vary_rows(&c, &in);
    kl_test(&c, "rows of two logits in registers");
    kl_inputs_free(&in);
}

/* Rows that a lane has in registers, because the call has no outputs of rows. They have every number of words, with and
 * without rows that the lane reads twice. The loss of a lone row is the call's. */
static void pairs_in_registers(void **state) {
    unsigned d, number = 0;
    int64_t classes, one;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (classes = 1; classes <= 23; classes++, number += 7) {
            check_in_registers(dtypes[d], 401, classes, number);
            check_in_registers(dtypes[d], 402, classes, number + 1);
            check_in_registers(dtypes[d], 403, classes, number + 2);
            for (one = 0; one < LONE_ROWS; one++)
                check_in_registers(dtypes[d], 1, classes, 6 * (unsigned)one);
        }
    for (d = 0; d < DTYPES; d++) {
        check_in_registers(dtypes[d], harness_small ? 18000 : 630000, 10, d);
        check_in_registers(dtypes[d], harness_small ? 18000 : 630000, 16, d + 3);
    }
    test_done();
}

/* Rows that a block has to itself, whole and not, of one step and of two. */
static void rows_of_blocks_of_pairs(void **state) {
    static const int64_t vectors[] = {515, 600, 1024};
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof vectors / sizeof vectors[0]; k++, number++) {
            int64_t width = (int64_t)(16 / dtype_size(dtypes[d]));
            int64_t rows = harness_small ? 133 : 307;
            check_packed(dtypes[d], rows, vectors[k] * width, number);
            check_packed(dtypes[d], rows, (vectors[k] - 1) * width - 1, number + 3);
        }
    test_done();
}

/* Enough rows that a block finishes 32 before its last one, and rows of the other divergences. */
static void many_rows_of_blocks_of_pairs(void **state) {
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (number = 0; number < 5; number++) {
            static const unsigned choices[] = {CHOICE_FORWARD, CHOICE_REVERSE, CHOICE_JS_HALF, CHOICE_TV, CHOICE_JS};
            const int64_t width = (int64_t)(16 / dtype_size(dtypes[d]));
            const bool forward = choices[number] == CHOICE_FORWARD;
            double *weights = number < 4 ? NULL : distant_weights(230);
            kl_inputs in;
            kl_case c = packed_case(dtypes[d], 230, (forward ? 513 : 129) * width, choices[number], number + d, &in);
            if (weights)
                c.row_weights = weights;
            else
                vary_rows(&c, &in);
            c.outputs |= forward ? 0u : (unsigned)KL_OUT_GRAD;
            kl_test(&c, "many rows of blocks");
            kl_inputs_free(&in);
            free(weights);
        }
    test_done();
}

/* Losses alone, of rows that are not retained. The weights replace the varied rows, unless they are NULL. */
static void check_losses(gpuloss_dtype dtype, int64_t rows, int64_t classes, stride_kind stride, const double *weights,
                         unsigned number) {
    kl_inputs in;
    kl_case c = packed_case(dtype, rows, classes, CHOICE_FORWARD, number, &in);
    c.outputs = number % 2 ? KL_OUT_LOSS : KL_OUT_LOSS | KL_OUT_LOSS_ROWS;
    c.in_place = false;
    c.input_stride = stride;
    if (weights)
        c.row_weights = weights;
    else
        vary_rows(&c, &in);
    kl_test(&c, "losses of long rows");
    kl_inputs_free(&in);
}

static void losses_of_long_rows(void **state) {
    static const struct {
        int64_t rows, vectors, more;
        stride_kind stride;
    } shapes[] = {{900, 1100, 0, STRIDE_PACKED}, {100, 1600, 3, STRIDE_PACKED}, {100, 1300, 1, STRIDE_ONE_MORE}};
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            check_losses(dtypes[d], harness_small ? 36 : shapes[k].rows,
                         shapes[k].vectors * (int64_t)(16 / dtype_size(dtypes[d])) + shapes[k].more, shapes[k].stride,
                         NULL, number++);
    test_done();
}

/* Enough rows that on a small GPU a cluster has more of them than the lanes that finish them. */
static void many_losses_of_long_rows(void **state) {
    const int64_t rows = 230;
    double *weights;
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    weights = distant_weights(rows);
    for (d = 0; d < DTYPES; d++) {
        const int64_t classes = 1025 * (int64_t)(16 / dtype_size(dtypes[d]));
        check_losses(dtypes[d], rows, classes, STRIDE_PACKED, NULL, d);
        check_losses(dtypes[d], rows, classes, STRIDE_PACKED, weights, d + 3);
    }
    free(weights);
    test_done();
}

int run_packed_pairs_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_of_packed_pairs),      cmocka_unit_test(many_packed_pairs),
        cmocka_unit_test(pairs_in_registers),           cmocka_unit_test(rows_of_blocks_of_pairs),
        cmocka_unit_test(many_rows_of_blocks_of_pairs), cmocka_unit_test(losses_of_long_rows),
        cmocka_unit_test(many_losses_of_long_rows),
    };
    return cmocka_run_group_tests_name("packed rows of two logits", tests, NULL, NULL);
}
