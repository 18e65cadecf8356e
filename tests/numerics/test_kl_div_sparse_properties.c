/* Properties of gpuloss_kl_div_sparse that do not depend on its arithmetic. Its gradients are differences of its losses
 * and add up to 0. With all classes it gives the results of gpuloss_kl_div. The bits are the same every time. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "run_common.h"
#include "run_kl_div.h"
#include "sparse_cases.h"
#include "suites.h"

enum { CLASSES = 7, SHIFTED = 2 * CLASSES };
static const double step = 0x1p-17;

/* Copies of a row: copy 2c has class c moved up by a step, copy 2c + 1 down. Logits of few digits, so that a step more or
 * less is a number too. */
static void shift_rows(const sparse_case *c, const sparse_inputs *in) {
    int64_t row, i;
    for (row = 0; row < SHIFTED; row++) {
        for (i = 0; i < CLASSES; i++) {
            double by = row / 2 == i ? (row % 2 ? -step : step) : 0;
            in->logits[row * CLASSES + i] = (double)(i * 5 % 7) / 4 - 1 + by;
        }
        for (i = 0; i < c->k; i++) {
            in->indices[row * c->k + i] = in->indices[i];
            in->values[row * c->k + i] = in->values[i];
        }
        in->row_weights[row] = 1.25;
    }
}

/* With respect to a logit over the temperature, the third derivative of a log sum exp is p (1 - p) (1 - 2p), at most
 * 1/10. f has P + rest of that of all classes, and rest of that of the others, in sum less than 3. For the other
 * divergences, u and its first two derivatives in log q are at most q (L + 2). Here L bounds the logarithms of q and of
 * q / p. The chain rule over log q, whose derivatives are at most 1, 1/4 and 1/10, gives less than 1.85 (L + 2) for f.
 * L is below 12. */
static long double third_derivative(const sparse_case *c) {
    long double of_f = c->divergence == GPULOSS_FORWARD_KL ? 0.3L : 26,
                temperature = c->temperature > 0 ? (long double)c->temperature : 1;
    return 1.25L * (c->temperature_squared ? temperature * temperature : 1) * of_f /
           (temperature * temperature * temperature);
}

static void compare_differences(const sparse_case *shifted, const sparse_result *losses, const double *gradient,
                                const long double *bounds, report *r) {
    long double h = (long double)step, truncation = third_derivative(shifted) * h * h / 6;
    sparse_expected e;
    int64_t i;
    sparse_expect(shifted, &e);
    for (i = 0; i < CLASSES; i++) {
        long double slope =
            ((long double)losses->loss_rows[2 * i] - (long double)losses->loss_rows[2 * i + 1]) / (2 * h);
        long double allowed = truncation + bounds[i] + (e.loss_rows[2 * i] + e.loss_rows[2 * i + 1]) / (2 * h);
        if (!(fabsl((long double)gradient[i] - slope) <= allowed))
            report_failure(r, "grad_logits", i, 0, "gradient %.12g, difference %.12Lg, %.3Lg is allowed", gradient[i],
                           slope, allowed);
    }
    sparse_expected_free(&e);
}

static void check_differences(sparse_case *c, const sparse_inputs *in, report *r) {
    double here[CLASSES];
    sparse_result losses, gradient;
    sparse_expected e;
    sparse_case one = *c;
    int64_t i;
    c->outputs = SPARSE_OUT_LOSS_ROWS;
    sparse_run(c, &losses, r);
    for (i = 0; i < CLASSES; i++)
        here[i] = in->logits[(SHIFTED - 1) * CLASSES + i] + (i == CLASSES - 1 ? step : 0);
    one.rows = 1;
    one.logits = here;
    one.outputs = SPARSE_OUT_GRAD;
    sparse_run(&one, &gradient, r);
    sparse_expect(&one, &e);
    compare_differences(c, &losses, gradient.grad, e.grad, r);
    sparse_expected_free(&e);
    sparse_free(&gradient);
    sparse_free(&losses);
}

/* Sums below 1, of 1, and above, with two equal indices. */
static void gradients_of_sparse_are_differences(void **state) {
    static const sparse_shape shape = {SHIFTED, CLASSES, 3};
    static const double sums[] = {0.6, 1, 1.75}, temperatures[] = {0, 0.75, 4};
    unsigned number, m, t;
    (void)state;
    REQUIRE_GPU();
    for (number = 0; number < SPARSE_DIVERGENCES; number++)
        for (m = 0; m < 3; m++)
            for (t = 0; t < 3; t++) {
                sparse_case c = sparse_case_of(GPULOSS_F64, shape);
                char text[SPARSE_DESCRIPTION];
                sparse_inputs in;
                report r;
                sparse_take(&c, number);
                if (m > 0 && (c.divergence == GPULOSS_REVERSE_KL || c.beta >= 1)) /* infinite without a rest */
                    continue;
                c.reduction = GPULOSS_NONE;
                c.temperature = temperatures[t];
                c.temperature_squared = t == 1;
                sparse_fill(&c, LOGITS_NORMAL, sums[m], 3 * m + t, &in);
                in.indices[1] = t == 2 ? in.indices[0] : in.indices[1];
                shift_rows(&c, &in);
                sparse_weigh(&c, &in);
                sparse_describe(&c, "differences", text, sizeof text);
                r = report_on(text);
                check_differences(&c, &in, &r);
                sparse_inputs_free(&in);
                case_done(&r);
            }
    test_done();
}

static void check_sums(const sparse_case *c, const sparse_result *result, report *r) {
    sparse_expected e;
    int64_t row, i;
    sparse_expect(c, &e);
    for (row = 0; row < c->rows; row++) {
        long double sum = 0, allowed = 0;
        for (i = row * c->classes; i < (row + 1) * c->classes; i++) {
            sum += (long double)result->grad[i];
            allowed += e.grad[i];
        }
        if (!(fabsl(sum) <= allowed))
            report_failure(r, "sum of grad_logits", row, 0, "%.3Lg, %.3Lg is allowed", sum, allowed);
    }
    sparse_expected_free(&e);
}

/* The same added to all logits of a row changes nothing. */
static void gradients_of_sparse_add_up_to_zero(void **state) {
    static const sparse_shape shapes[] = {{3, 20, 4}, {2, 1000, 30}};
    unsigned d, k, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < 2; k++)
            for (number = 0; number < SPARSE_DIVERGENCES; number++) {
                sparse_case c = sparse_case_of(all_dtypes[d], shapes[k]);
                char text[SPARSE_DESCRIPTION];
                sparse_inputs in;
                sparse_result result;
                report r;
                if (harness_small && k == 1 && d != number % 4)
                    continue;
                sparse_take(&c, number);
                c.reduction = GPULOSS_SUM;
                c.temperature = number % 2 ? 2.5 : 0;
                sparse_fill(&c, LOGITS_NORMAL, 0.7, number, &in);
                sparse_describe(&c, "sums", text, sizeof text);
                r = report_on(text);
                sparse_run(&c, &result, &r);
                check_sums(&c, &result, &r);
                sparse_free(&result);
                sparse_inputs_free(&in);
                case_done(&r);
            }
    test_done();
}

/* The teacher of all classes for gpuloss_kl_div. */
static kl_case dense_of(const sparse_case *c, double *target) {
    kl_case dense = kl_case_of(c->dtype, c->rows, c->classes, c->logits, target);
    int64_t i;
    for (i = 0; i < c->rows * c->classes; i++)
        target[i / c->k * c->classes + c->indices[i]] = c->values[i];
    dense.input_kind = GPULOSS_LOGITS;
    dense.target_dtype = c->value_dtype;
    dense.divergence = c->divergence;
    dense.beta = c->beta;
    dense.temperature = c->temperature;
    dense.temperature_squared = c->temperature_squared;
    dense.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS | KL_OUT_GRAD;
    return dense;
}

static void compare_within_bounds(report *r, const char *what, int64_t i, double sparse, double dense,
                                  long double allowed) {
    if (!(fabsl((long double)sparse - (long double)dense) <= allowed))
        report_failure(r, what, i, 0, "sparse %.12g, dense %.12g, %.3Lg is allowed", sparse, dense, allowed);
}

static void compare_dense(const sparse_case *c, report *r) {
    double *target = require_doubles(c->rows * c->classes);
    kl_case dense = dense_of(c, target);
    sparse_result a;
    kl_result b;
    sparse_expected of_a;
    kl_expected of_b;
    int64_t i;
    sparse_run(c, &a, r);
    kl_run(&dense, &b, r);
    sparse_expect(c, &of_a);
    kl_expect(&dense, &of_b);
    compare_within_bounds(r, "loss", 0, a.loss, b.loss, of_a.loss + of_b.loss);
    for (i = 0; i < c->rows; i++)
        compare_within_bounds(r, "loss_rows", i, a.loss_rows[i], b.loss_rows[i], of_a.loss_rows[i] + of_b.loss_rows[i]);
    for (i = 0; i < c->rows * c->classes; i++)
        compare_within_bounds(r, "grad_logits", i, a.grad[i], b.grad[i], of_a.grad[i] + of_b.grad[i]);
    sparse_expected_free(&of_a);
    kl_expected_free(&of_b);
    sparse_free(&a);
    kl_free(&b);
    free(target);
}

/* Two kernels of different arithmetic on the same numbers may differ by the sum of both bounds. */
static void all_classes_of_sparse_as_kl_div(void **state) {
    static const sparse_shape shapes[] = {{3, 12, 12}, {2, 90, 90}, {2, 700, 700}};
    static const gpuloss_divergence divergences[] = {GPULOSS_FORWARD_KL, GPULOSS_JENSEN_SHANNON,
                                                     GPULOSS_TOTAL_VARIATION};
    enum { DIVERGENCES = 3 };
    unsigned d, k, of, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (of = 0; of < DIVERGENCES; of++, number++) {
                sparse_case c = sparse_case_of(all_dtypes[d], shapes[k]);
                char text[SPARSE_DESCRIPTION];
                sparse_inputs in;
                report r;
                if (harness_small && (k == 2 || (k == 1 && d > 1)))
                    continue;
                c.residual = GPULOSS_DROP;
                c.divergence = divergences[of];
                c.beta = c.divergence == GPULOSS_JENSEN_SHANNON ? 0.3 : 0;
                c.value_dtype = all_dtypes[number % DTYPE_COUNT];
                c.temperature = number % 2 ? 2.5 : 0;
                c.temperature_squared = number % 2;
                sparse_fill(&c, LOGITS_NORMAL, 1, number, &in);
                sparse_describe(&c, "against kl_div", text, sizeof text);
                r = report_on(text);
                compare_dense(&c, &r);
                sparse_inputs_free(&in);
                case_done(&r);
            }
    test_done();
}

int run_kl_div_sparse_property_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_sparse_are_differences),
        cmocka_unit_test(gradients_of_sparse_add_up_to_zero),
        cmocka_unit_test(all_classes_of_sparse_as_kl_div),
    };
    return cmocka_run_group_tests_name("kl_div_sparse properties", tests, NULL, NULL);
}
