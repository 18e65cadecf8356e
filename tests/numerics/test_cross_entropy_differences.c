/* The gradients in double against differences of the library's own losses: (f(x + h) - f(x - h)) / 2h. The difference
 * is off by h^2 / 6 times the largest third derivative, and by the roundings of both losses over 2h. All shifted rows
 * of an input go through one call. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

enum { CLASSES = 7, SHIFTED = 2 * CLASSES };
static const double step = 0x1p-17;

/* `count` copies of a row; copy 2c has class c of `shifted` moved up by a step, copy 2c + 1 down. */
typedef struct copies {
    double x[SHIFTED * CLASSES], t[SHIFTED * CLASSES], row_weights[SHIFTED];
    int64_t targets[SHIFTED];
} copies;

static void copy_value(double *to, const double *from, const reference_cross_entropy *layout, int shifted) {
    int64_t row, c;
    for (row = 0; row < layout->rows; row++)
        for (c = 0; c < CLASSES; c++) {
            double by = shifted && row / 2 == c ? (row % 2 ? -step : step) : 0;
            to[reference_element(layout, row, c)] = from[c] + by;
        }
}

static ce_case copies_of(const ce_case *base, int64_t rows, int64_t inner, int shift_x, int shift_t, copies *to) {
    ce_case c = *base;
    reference_cross_entropy layout;
    int64_t row;
    memset(&layout, 0, sizeof layout);
    layout.rows = c.rows = rows;
    layout.classes = CLASSES;
    layout.inner = c.inner = inner;
    copy_value(to->x, base->x, &layout, shift_x);
    c.x = to->x;
    if (base->target_probabilities) {
        copy_value(to->t, base->target_probabilities, &layout, shift_t);
        c.target_probabilities = to->t;
    }
    for (row = 0; row < rows; row++) {
        to->targets[row] = base->targets[0];
        to->row_weights[row] = base->row_weights ? base->row_weights[0] : 1;
    }
    c.targets = to->targets;
    c.row_weights = base->row_weights ? to->row_weights : NULL;
    return c;
}

/* The largest third derivative of the loss with respect to a logit as given. With respect to x, the derivatives of lse
 * are p, p (1 - p), p (1 - p) (1 - 2p), at most 1, 1/4 and 1/10. The derivatives of lse^2 follow from them. x is k z or
 * cap tanh(k z / cap), and the second and third derivatives of tanh are below 0.77 and 2. The chain rule gives the
 * rest. */
static long double third_derivative(const ce_case *c, const reference_cross_entropy *ref) {
    long double k = c->logit_scale != 0 ? (long double)c->logit_scale : 1, cap = (long double)c->softcap;
    long double x2 = cap > 0 ? 0.77L * k * k / cap : 0, x3 = cap > 0 ? 2 * k * k * k / (cap * cap) : 0;
    long double lse = fabsl(ref->lse[0]) + k * (long double)step, z = (long double)c->lse_square_scale, weights = 0;
    long double f1, f2, f3, weight = c->row_weights ? fabsl((long double)c->row_weights[0]) : 1;
    int64_t i;
    for (i = 0; i < CLASSES; i++)
        weights += fabsl(reference_target_weight(ref, 0, i));
    f1 = 2 * weights + 2 * z * lse;
    f2 = weights / 4 + z * (2 + lse / 2);
    f3 = weights / 10 + z * (1.5L + lse / 5);
    return weight * (f3 * k * k * k + 3 * f2 * k * x2 + f1 * x3);
}

typedef struct losses {
    ce_result result;
    ce_expected expected;
} losses;

static void compare_differences(const double *gradient, const long double *bounds, const losses *l,
                                long double truncation, const char *what, report *r) {
    int64_t i;
    for (i = 0; i < CLASSES; i++) {
        long double h = (long double)step;
        long double up = (long double)l->result.loss_rows[2 * i], down = (long double)l->result.loss_rows[2 * i + 1];
        long double slope = (up - down) / (2 * h);
        long double allowed = truncation * h * h / 6 + bounds[i] +
                              (l->expected.loss_rows[2 * i] + l->expected.loss_rows[2 * i + 1]) / (2 * h);
        if (!(fabsl((long double)gradient[i] - slope) <= allowed))
            report_failure(r, what, i, 0, "gradient %.12g, difference %.12Lg, %.3Lg is allowed", gradient[i], slope,
                           allowed);
    }
}

static losses losses_of(const ce_case *base, int64_t inner, int shift_x, int shift_t, copies *to, report *r) {
    ce_case c = copies_of(base, SHIFTED, inner, shift_x, shift_t, to);
    losses l;
    c.outputs = CE_OUT_LOSS_ROWS;
    ce_run(&c, &l.result, r);
    ce_expect(&c, false, &l.expected);
    return l;
}

static void losses_free(losses *l) {
    ce_free(&l->result);
    ce_expected_free(&l->expected);
}

static void check_differences(const ce_case *base, int64_t inner, report *r) {
    copies here, shifted;
    ce_case c = copies_of(base, 1, inner ? 1 : 0, 0, 0, &here);
    ce_expected expected;
    ce_result result;
    losses l;
    c.outputs = CE_OUT_GRAD | CE_OUT_GRAD_TARGETS;
    ce_run(&c, &result, r);
    ce_expect(&c, true, &expected);
    l = losses_of(base, inner, 1, 0, &shifted, r);
    compare_differences(result.grad, expected.grad, &l, third_derivative(&c, &expected.ref), "grad_logits", r);
    losses_free(&l);
    if (c.target_probabilities) { /* in which the loss is linear */
        l = losses_of(base, inner, 0, 1, &shifted, r);
        compare_differences(result.grad_targets, expected.grad_targets, &l, 0, "grad_target_probabilities", r);
        losses_free(&l);
    }
    ce_free(&result);
    ce_expected_free(&expected);
}

/* Logits and probabilities of few digits, so that a step more or less is a number too. */
static void shorten(option_inputs *in) {
    int64_t i;
    for (i = 0; i < CLASSES; i++) {
        in->x[i] = round(in->x[i] * 1024) / 1024;
        if (in->t)
            in->t[i] = (1 + round(in->t[i] * 1024)) / 1024;
    }
}

static void gradients_are_differences(void **state) {
    static const option_shape shape = {1, CLASSES, 0};
    unsigned set, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (set = 0; set < 2 * OPTION_SETS; set++, number++) {
        option_inputs in;
        ce_case c;
        char text[CE_DESCRIPTION];
        report r;
        if (set & OPTION_IGNORE_INDEX || (harness_small && number % 3 != 0))
            continue;
        c = option_case(GPULOSS_F64, shape, set, LOGITS_NORMAL, set, &in);
        shorten(&in);
        c.reduction = GPULOSS_NONE;
        ce_describe(&c, "differences", text, sizeof text);
        r = report_on(text);
        check_differences(&c, number % 2 ? 0 : SHIFTED, &r);
        option_inputs_free(&in);
        case_done(&r);
    }
    test_done();
}

int run_cross_entropy_difference_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_differences),
    };
    return cmocka_run_group_tests_name("cross_entropy differences", tests, NULL, NULL);
}
