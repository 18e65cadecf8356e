/* The gradients of gpuloss_kl_div in double against differences of the library's own losses. With
 * D(h) = (f(x + h) - f(x - h)) / 2h the error of D(h) is h^2 / 6 times a third derivative to first order. This is a
 * third of D(2h) - D(h). The whole difference is allowed, and the roundings of the losses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "run_common.h"
#include "suites.h"

enum { CLASSES = 7, STEPS = 4, SHIFTED = STEPS * CLASSES };
static const double step = 0x1p-17;

/* Copies of a row; copy STEPS c + k has class c of one side moved by shifts[k] steps. */
typedef struct copies {
    double input[SHIFTED * CLASSES], target[SHIFTED * CLASSES], row_weights[SHIFTED];
} copies;

static void copy_side(double *to, const double *from, int64_t rows, bool shifted) {
    static const double shifts[STEPS] = {1, -1, 2, -2};
    int64_t row, c;
    for (row = 0; row < rows; row++)
        for (c = 0; c < CLASSES; c++)
            to[row * CLASSES + c] = from[c] + (shifted && row / STEPS == c ? shifts[row % STEPS] * step : 0);
}

static kl_case copies_of(const kl_case *base, int64_t rows, bool shift_input, bool shift_target, copies *to) {
    kl_case c = *base;
    int64_t row;
    copy_side(to->input, base->input, rows, shift_input);
    copy_side(to->target, base->target, rows, shift_target);
    for (row = 0; row < rows; row++)
        to->row_weights[row] = base->row_weights ? base->row_weights[0] : 1;
    c.rows = rows;
    c.input = to->input;
    c.target = to->target;
    c.row_weights = base->row_weights ? to->row_weights : NULL;
    return c;
}

static long double difference(const double *up_and_down, long double h) {
    return ((long double)up_and_down[0] - (long double)up_and_down[1]) / (2 * h);
}

static void compare_differences(const kl_case *base, bool of_input, const double *gradient, const long double *bounds,
                                report *r) {
    copies to;
    kl_case c = copies_of(base, SHIFTED, of_input, !of_input, &to);
    kl_result l;
    kl_expected e;
    int64_t i, k;
    c.outputs = KL_OUT_LOSS_ROWS;
    kl_run(&c, &l, r);
    kl_expect(&c, &e);
    for (i = 0; i < CLASSES; i++) {
        const double *losses = l.loss_rows + STEPS * i;
        long double h = (long double)step, close = difference(losses, h), wide = difference(losses + 2, 2 * h);
        long double allowed = fabsl(wide - close) + bounds[i];
        for (k = 0; k < STEPS; k++)
            allowed += e.loss_rows[STEPS * i + k] / (2 * h);
        if (!(fabsl((long double)gradient[i] - close) <= allowed))
            report_failure(r, of_input ? "grad_input" : "grad_target", i, 0,
                           "gradient %.12g, difference %.12Lg, %.3Lg is allowed", gradient[i], close, allowed);
    }
    kl_free(&l);
    kl_expected_free(&e);
}

static void check_differences(const kl_case *base, report *r) {
    copies to;
    kl_case c = copies_of(base, 1, false, false, &to);
    kl_expected e;
    kl_result result;
    c.outputs = KL_OUT_GRAD | KL_OUT_GRAD_TARGET;
    kl_run(&c, &result, r);
    kl_expect(&c, &e);
    compare_differences(base, true, result.grad, e.grad, r);
    compare_differences(base, false, result.grad_target, e.grad_target, r);
    kl_free(&result);
    kl_expected_free(&e);
}

/* Inputs of few digits, so that a step more or less is a number too, and none next to 0. No two of a class are within
 * a step, where total variation has a corner. */
static void shorten(const kl_case *c, kl_inputs *in) {
    int64_t i;
    for (i = 0; i < CLASSES; i++) {
        in->input[i] = (c->input_kind == GPULOSS_PROBABILITIES) / 64.0 + round(in->input[i] * 1024) / 1024;
        in->target[i] = (c->target_kind == GPULOSS_PROBABILITIES) / 32.0 + round(in->target[i] * 1024) / 1024;
    }
}

static void divergence_gradients_are_differences(void **state) {
    static const divergence_shape shape = {1, CLASSES};
    unsigned pair, choice, set;
    (void)state;
    REQUIRE_GPU();
    for (pair = 0; pair < KL_KIND_PAIRS; pair++)
        for (choice = 0; choice < CHOICES; choice++)
            for (set = 0; set < KL_WITH_LABELS; set += harness_small ? 15 : 1) {
                kl_case c = divergence_case(GPULOSS_F64, GPULOSS_F64, shape, pair, choice);
                kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, set, 8 * pair + choice);
                char text[KL_DESCRIPTION];
                report r;
                shorten(&c, &in);
                c.reduction = GPULOSS_NONE;
                kl_describe(&c, "differences", text, sizeof text);
                r = report_on(text);
                check_differences(&c, &r);
                kl_inputs_free(&in);
                case_done(&r);
            }
    test_done();
}

int run_kl_div_difference_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(divergence_gradients_are_differences),
    };
    return cmocka_run_group_tests_name("kl_div differences", tests, NULL, NULL);
}
