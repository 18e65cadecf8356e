/* gpuloss_kl_div with the classes not innermost, and with a target that all rows share, against the reference. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "run_common.h"
#include "suites.h"

/* The target of the first row, or image, in all of them. */
static void share_target(kl_case *c, kl_inputs *in) {
    int64_t of_image = (c->inner > 1 ? c->inner : 1) * c->classes, i;
    for (i = of_image; i < c->rows * c->classes; i++)
        in->target[i] = in->target[i - of_image];
    c->shared_target = true;
}

static void run_layout(gpuloss_dtype dtype, gpuloss_dtype target_dtype, divergence_shape shape, int64_t inner,
                       bool is_shared, unsigned number) {
    unsigned pair = number % KL_KIND_PAIRS, choice = number / KL_KIND_PAIRS % CHOICES;
    kl_case c = divergence_case(dtype, target_dtype, shape, pair, choice);
    kl_inputs in = divergence_inputs(&c, (distribution_kind)(number / 7 % DISTRIBUTIONS_KINDS),
                                     number * 29 % KL_WITH_SETS, number);
    c.inner = inner;
    if (is_shared)
        share_target(&c, &in);
    divergence_vary(&c, number);
    c.pytorch_zeros = c.divergence == GPULOSS_FORWARD_KL && number / 2 % 3 == 1;
    kl_test(&c, is_shared ? "shared target" : "columns");
    kl_inputs_free(&in);
}

/* Tiles of columns that are full, cut and of one column, with few classes and with many. */
static void columns_of_divergences(void **state) {
    static const int64_t inners[] = {1, 2, 7, 32, 200}, classes[] = {1, 2, 3, 10, 33, 150, 700};
    unsigned d, t, i, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (t = 0; t < DTYPE_COUNT; t++)
            for (i = 0; i < sizeof inners / sizeof inners[0]; i++)
                for (k = 0; k < sizeof classes / sizeof classes[0]; k++, number++) {
                    const divergence_shape shape = {(1 + number % 3) * inners[i], classes[k]};
                    if (harness_small && (number % 4 != 0 || shape.rows * shape.classes > 4000))
                        continue;
                    run_layout(all_dtypes[d], all_dtypes[t], shape, inners[i], false, number * 11);
                }
    test_done();
}

/* In rows of every kernel, and in columns. */
static void target_of_all_rows(void **state) {
    static const struct {
        divergence_shape shape;
        int64_t inner;
    } layouts[] = {{{5, 7}, 0},   {{6, 256}, 0}, {{4, 1003}, 0}, {{2, 9000}, 0},
                   {{1, 300}, 0}, {{12, 20}, 4}, {{9, 70}, 9}};
    unsigned d, k, pair, choice, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof layouts / sizeof layouts[0]; k++)
            for (pair = 0; pair < KL_KIND_PAIRS; pair++)
                for (choice = 0; choice < CHOICE_JS; choice++, number++) {
                    if (harness_small && (number % 5 != 0 || (k == 3 && number % 15 != 0)))
                        continue;
                    run_layout(all_dtypes[d], all_dtypes[number / 3 % DTYPE_COUNT], layouts[k].shape, layouts[k].inner,
                               true, pair + KL_KIND_PAIRS * choice + number / 36 * 5 * KL_KIND_PAIRS * CHOICES);
                }
    test_done();
}

/* The same numbers in both layouts: inner = 1 is rows. */
static void inner_of_one_of_divergences(void **state) {
    size_t d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        const divergence_shape shape = {3, 50};
        kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1, CHOICE_JS_HALF), one;
        kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, 2);
        char text[KL_DESCRIPTION];
        kl_result first, second;
        report r;
        one = c;
        one.inner = 1;
        kl_describe(&one, "inner = 1", text, sizeof text);
        r = report_on(text);
        kl_run(&c, &first, &r);
        kl_run(&one, &second, &r);
        kl_check(&one, &second, &r);
        compare_bits(&r, "grad_input", first.grad, second.grad, 150 * sizeof *first.grad);
        kl_free(&first);
        kl_free(&second);
        kl_inputs_free(&in);
        case_done(&r);
    }
    test_done();
}

/* The entropy of a row, as the header says: of uniform rows, of rows that are sure, and of others. The sums here round once a
 * class. */
static void entropies_of_rows(void **state) {
    enum { ROWS = 3, CLASSES = 1003 };
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        const divergence_shape shape = {ROWS, CLASSES};
        kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1, CHOICE_REVERSE);
        kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, d);
        char text[KL_DESCRIPTION];
        kl_expected e;
        kl_result result;
        report r;
        int64_t row, k;
        for (k = 0; k < ROWS * CLASSES; k++)
            in.target[k] = 0;
        for (k = 0; k < CLASSES; k++) {
            in.input[k] = 5;
            in.input[CLASSES + k] = k == 7 ? 100 : 0;
        }
        c.shared_target = true;
        c.outputs = KL_OUT_LOSS_ROWS;
        kl_describe(&c, "entropy", text, sizeof text);
        r = report_on(text);
        kl_run(&c, &result, &r);
        kl_expect(&c, &e);
        for (row = 0; row < ROWS; row++) {
            long double sum = 0, weighted = 0, entropy;
            for (k = 0; k < CLASSES; k++) {
                long double exponential = expl((long double)in.input[row * CLASSES + k]);
                sum += exponential;
                weighted += exponential * (long double)in.input[row * CLASSES + k];
            }
            entropy = logl(sum) - weighted / sum;
            if (!(fabsl(logl(CLASSES) - (long double)result.loss_rows[row] - entropy) <=
                  e.loss_rows[row] + CLASSES * logl(CLASSES) * LDBL_EPSILON))
                report_failure(&r, "entropy", row, 0, "%.9Lg instead of %.9Lg", logl(CLASSES) - result.loss_rows[row],
                               entropy);
        }
        kl_expected_free(&e);
        kl_free(&result);
        kl_inputs_free(&in);
        case_done(&r);
    }
    test_done();
}

int run_kl_div_layout_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_of_divergences),
        cmocka_unit_test(target_of_all_rows),
        cmocka_unit_test(inner_of_one_of_divergences),
        cmocka_unit_test(entropies_of_rows),
    };
    return cmocka_run_group_tests_name("kl_div layouts", tests, NULL, NULL);
}
