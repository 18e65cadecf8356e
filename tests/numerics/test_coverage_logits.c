/* Coverage of divergences of two arrays of logits beyond the other tests, by every kernel that they have to themselves:
 * tiles of packed rows, rows of one block, and rows of a cluster. Wherever labels are read, they have every type. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "run_common.h"
#include "suites.h"

enum { LOGITS_PAIR = KL_KIND_PAIRS - 1, MOST_ROWS = 9 };

/* A sum that counts its rows, and gradients with factors of all kinds. Rows that are left out, by their label or weight,
 * have a NaN in one vector, so that gradients of 0 read the label. */
static void check_labels(gpuloss_dtype dtype, divergence_shape shape, unsigned choice, unsigned number) {
    static const unsigned outputs[] = {KL_OUT_LOSS | KL_OUT_LOSS_ROWS, KL_OUT_GRAD | KL_OUT_LOSS_ROWS, KL_OUT_GRAD};
    static const double upstream = -0.75, of_rows[MOST_ROWS] = {1, 0, -2, 3, 0.5, 1, -1, 2, 1};
    static const double weights[MOST_ROWS] = {0, 1, 0.5, 0, 2, -1, 0.25, 1, 1};
    unsigned pass;
    for (pass = 0; pass < sizeof outputs / sizeof outputs[0]; pass++) {
        kl_case c = divergence_case(dtype, GPULOSS_DTYPE_UNSET, shape, LOGITS_PAIR, choice);
        kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, KL_WITH_LABELS, number);
        int64_t row;
        for (row = 0; row < c.rows; row++)
            if (in.labels[row] == c.ignore_index || (pass == 2 && weights[row] == 0))
                in.input[row * c.classes + 5] = (double)NAN;
        c.row_weights = pass == 2 ? weights : NULL;
        c.outputs = outputs[pass];
        c.grad_loss = pass > 0 ? &upstream : NULL;
        c.grad_loss_rows = pass > 0 ? of_rows : NULL;
        kl_test(&c, "labels of two logits");
        kl_inputs_free(&in);
    }
}

static void labels_of_two_logits(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
    static const int64_t packed[] = {24, 25, 72, 129};
    unsigned d, type, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 3; d++)
        for (type = 0; type < 4; type++) {
            const int64_t width = dtype_width(dtypes[d]);
            if (d > 0 && type % 2 == d - 1) /* Both types of 16 bits have one text. */
                continue;
            for (k = 0; k < 4; k++)
                check_labels(dtypes[d], (divergence_shape){MOST_ROWS, packed[k]}, CHOICE_FORWARD, type);
            check_labels(dtypes[d], (divergence_shape){5, 520 * width + 2}, CHOICE_FORWARD, type);
            check_labels(dtypes[d], (divergence_shape){3, 520 * width}, CHOICE_FORWARD, type);
            check_labels(dtypes[d], (divergence_shape){5, 300 * width}, CHOICE_TV, type);
            check_labels(dtypes[d], (divergence_shape){4, 300 * width + 1}, CHOICE_REVERSE, type);
            check_labels(dtypes[d], (divergence_shape){4, 300 * width}, CHOICE_JS_HALF, type);
        }
    test_done();
}

/* Packed rows in registers, with a factor from above. */
static void registers_of_two_logits(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16};
    static const double upstream = -0.75;
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++) {
        const divergence_shape shape = {133, 12};
        kl_case c = divergence_case(dtypes[d], GPULOSS_DTYPE_UNSET, shape, LOGITS_PAIR, CHOICE_FORWARD);
        kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, d);
        c.outputs = KL_OUT_LOSS | KL_OUT_GRAD;
        c.grad_loss = &upstream;
        kl_test(&c, "registers of two logits");
        kl_inputs_free(&in);
    }
    test_done();
}

/* On a GPU with a single multiprocessor, lanes of a warp finish rows before its last one. */
static void many_labels_of_two_logits(void **state) {
    static const int64_t packed[][2] = {{36, 65}, {72, 129}};
    unsigned d, type, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (type = 0; type < 4; type++)
            for (k = 0; k < 2; k++) {
                const divergence_shape shape = {680, packed[d][k]};
                kl_case c = divergence_case(d ? GPULOSS_BF16 : GPULOSS_F32, GPULOSS_DTYPE_UNSET, shape, LOGITS_PAIR,
                                            CHOICE_FORWARD);
                kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, KL_WITH_LABELS, type);
                c.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS;
                kl_test(&c, "many labels of two logits");
                kl_inputs_free(&in);
            }
    test_done();
}

/* The input of every row lies far above its target or below. The rows differ otherwise by random numbers, by small ones,
 * or not at all. A target may have another alignment. */
static void distant_sides_of_two_logits(void **state) {
    static const unsigned choices[] = {CHOICE_REVERSE, CHOICE_JS_HALF, CHOICE_JS, CHOICE_FORWARD};
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
    unsigned d, k, number = 0;
    int64_t i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 3; d++)
        for (k = 0; k < 4; k++, number++) {
            const int64_t classes = (k == 3 ? 520 : 300) * dtype_width(dtypes[d]) + 3 * (d % 2);
            const divergence_shape shape = {5, classes};
            kl_case c = divergence_case(dtypes[d], GPULOSS_DTYPE_UNSET, shape, LOGITS_PAIR, choices[k]);
            kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, number);
            for (i = 0; i < c.rows * c.classes; i++) {
                const int64_t row = i / c.classes;
                const double base = row % 3 == 0 ? in.input[i] : in.target[i], less = row % 3 == 1 ? 0.7 : 0;
                in.input[i] = dtype_round(c.dtype, base + (i % 2 ? less : -less) + (row % 2 ? 20 : -20));
            }
            c.outputs = KL_OUT_LOSS_ROWS | KL_OUT_GRAD;
            c.target_offset = number % 2;
            kl_test(&c, "distant sides of two logits");
            kl_inputs_free(&in);
        }
    test_done();
}

/* Rows whose last vectors begin another step, if a row does not begin on a line. A block has no memory for that step. */
static void last_steps_of_two_logits(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
    unsigned d, offset;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 3; d++)
        for (offset = 0; offset < 4; offset += 3) {
            const divergence_shape shape = {5, 1023 * dtype_width(dtypes[d]) - 1};
            kl_case c = divergence_case(dtypes[d], GPULOSS_DTYPE_UNSET, shape, LOGITS_PAIR, CHOICE_FORWARD);
            kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, d);
            c.outputs = KL_OUT_LOSS_ROWS | KL_OUT_GRAD;
            c.target_offset = (int)offset;
            kl_test(&c, "last steps of two logits");
            kl_inputs_free(&in);
        }
    test_done();
}

int run_coverage_logits_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_of_two_logits), cmocka_unit_test(registers_of_two_logits),
        cmocka_unit_test(many_labels_of_two_logits), cmocka_unit_test(distant_sides_of_two_logits),
        cmocka_unit_test(last_steps_of_two_logits)};
    return cmocka_run_group_tests_name("coverage of logits", tests, NULL, NULL);
}
