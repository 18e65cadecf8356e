/* The check of a divergence accepts the exact results when they are rounded. It rejects results with one wrong element.
 * Needs no GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "checks.h"
#include "divergence_cases.h"

enum { ROWS = 3, CLASSES = 9 };

static bool passes(const kl_case *c, const kl_result *result) {
    report r = report_on("self-test");
    kl_check(c, result, &r);
    return r.failures == 0;
}

static double *rounded(const long double *values, int64_t count) {
    double *to = require_doubles(count);
    int64_t i;
    for (i = 0; i < count; i++)
        to[i] = (double)(float)values[i];
    return to;
}

static kl_result exact_result(const kl_case *c) {
    kl_expected e;
    kl_result result;
    kl_expect(c, &e);
    result.loss = (double)(float)e.ref.loss;
    result.loss_rows = rounded(e.ref.loss_rows, ROWS);
    result.loss_elements = rounded(e.ref.terms, ROWS * CLASSES);
    result.grad = rounded(e.ref.grad, ROWS * CLASSES);
    result.grad_target = rounded(e.ref.grad_target, ROWS * CLASSES);
    kl_expected_free(&e);
    return result;
}

static void expect_found(const kl_case *c, const kl_result *result, double *number, double off) {
    double right = *number;
    *number = right + off;
    if (passes(c, result))
        fail_msg("kinds %d %d, divergence %d: %g for %g is not found", (int)c->input_kind, (int)c->target_kind,
                 (int)c->divergence, *number, right);
    *number = right;
}

/* A number is found to be wrong if it is off by 2^-10 of itself, or by 2^-13 of the largest of its row if that is more.
 * Numbers are small where others cancel. */
static void expect_row_found(const kl_case *c, const kl_result *result, double *row) {
    double largest = 0;
    int64_t i;
    for (i = 0; i < CLASSES; i++)
        largest = fmax(largest, fabs(row[i]));
    for (i = 0; i < CLASSES; i++)
        expect_found(c, result, &row[i], fmax(fabs(row[i]) * 0x1p-10, largest * 0x1p-13) + 0x1p-40);
}

static void expect_all_found(const kl_case *c, kl_result *result) {
    int64_t row;
    expect_found(c, result, &result->loss, fabs(result->loss) * 0x1p-10);
    for (row = 0; row < ROWS; row++) {
        expect_found(c, result, &result->loss_rows[row], fabs(result->loss_rows[row]) * 0x1p-10 + 0x1p-40);
        expect_row_found(c, result, result->loss_elements + row * CLASSES);
        expect_row_found(c, result, result->grad + row * CLASSES);
        expect_row_found(c, result, result->grad_target + row * CLASSES);
    }
}

static void wrong_divergences_are_found(void **state) {
    static const divergence_shape shape = {ROWS, CLASSES};
    unsigned pair, choice;
    (void)state;
    for (pair = 0; pair < KL_KIND_PAIRS; pair++)
        for (choice = 0; choice < CHOICES; choice++) {
            unsigned options = KL_WITH_TEMPERATURE | KL_WITH_SQUARE | KL_WITH_ROW_WEIGHTS | KL_WITH_LABELS;
            kl_case c = divergence_case(GPULOSS_F32, GPULOSS_F32, shape, pair, choice);
            kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, choice % 2 ? options : 0, pair);
            kl_result result = exact_result(&c);
            assert_true(passes(&c, &result));
            expect_all_found(&c, &result);
            kl_free(&result);
            kl_inputs_free(&in);
        }
}

/* Two results of which one bit differs. */
static void other_bits_of_divergences_are_found(void **state) {
    static const divergence_shape shape = {ROWS, CLASSES};
    kl_case c = divergence_case(GPULOSS_F32, GPULOSS_F32, shape, 8, CHOICE_JS);
    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, 1);
    kl_result a = exact_result(&c), b = exact_result(&c);
    double *const numbers[] = {&b.loss, b.loss_rows + 1, b.loss_elements + 7, b.grad, b.grad_target + 26};
    report r = report_on("self-test");
    size_t i;
    (void)state;
    kl_same(&c, &a, &b, &r);
    assert_int_equal(r.failures, 0);
    for (i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        double right = *numbers[i];
        *numbers[i] = nextafter(right, 100);
        r = report_on("self-test");
        kl_same(&c, &a, &b, &r);
        assert_int_equal(r.failures, 1);
        *numbers[i] = right;
    }
    kl_free(&a);
    kl_free(&b);
    kl_inputs_free(&in);
}

int run_kl_div_check_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_divergences_are_found),
        cmocka_unit_test(other_bits_of_divergences_are_found),
    };
    return cmocka_run_group_tests_name("checks of divergences", tests, NULL, NULL);
}
