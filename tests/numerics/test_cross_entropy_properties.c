/* Relations between results, whatever they are. They need no reference but for the bounds of rounding. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

/* A call, its results, and the expected results. */
typedef struct outcome {
    ce_case c;
    ce_result result;
    ce_expected expected;
} outcome;

static outcome outcome_of(const ce_case *c, report *r) {
    outcome o;
    o.c = *c;
    ce_run(&o.c, &o.result, r);
    ce_expect(&o.c, true, &o.expected);
    return o;
}

static void outcome_free(outcome *o) {
    ce_free(&o->result);
    ce_expected_free(&o->expected);
}

/* Shapes, dtypes and sets of options for a property, some of them in a small run. */
typedef void property(ce_case *c, option_inputs *in, report *r);

static void test_property(property *check, unsigned options, const char *what) {
    static const option_shape shapes[] = {{4, 12, 0}, {3, 301, 0}, {6, 9, 3}, {2, 9001, 0}};
    unsigned d, k, set, number = 0;
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (set = 0; set < 2 * OPTION_SETS; set += 7, number++) {
                logits_kind kind = number % 3 ? LOGITS_NORMAL : LOGITS_TINY;
                char text[CE_DESCRIPTION];
                option_inputs in;
                ce_case c;
                report r;
                if (harness_small && (shapes[k].classes > 1000 || number % 5 != d))
                    continue;
                c = option_case(all_dtypes[d], shapes[k], set & options, kind, number, &in);
                c.reduction = number % 2 ? GPULOSS_MEAN : GPULOSS_NONE;
                c.divisor = number % 2 ? 4 : 0;
                ce_describe(&c, what, text, sizeof text);
                r = report_on(text);
                check(&c, &in, &r);
                option_inputs_free(&in);
                case_done(&r);
            }
    test_done();
}

/* Without z-loss and softcap, a constant added to all logits of a row does not change its loss. The gradient therefore
 * sums to zero. */
static void check_zero_sum(ce_case *c, option_inputs *in, report *r) {
    outcome o = outcome_of(c, r);
    int64_t row, column;
    (void)in;
    for (row = 0; row < c->rows; row++) {
        long double sum = 0, allowed = 0;
        for (column = 0; column < c->classes; column++) {
            int64_t i = reference_element(&o.expected.ref, row, column);
            sum += (long double)o.result.grad[i];
            allowed += o.expected.grad[i];
        }
        compare_within(r, "sum of a row's gradient", row, sum, allowed);
    }
    outcome_free(&o);
}

static void gradients_sum_to_zero(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_property(check_zero_sum, (OPTION_ALL | OPTION_PROBABILITIES) & ~(unsigned)(OPTION_Z_LOSS | OPTION_SOFTCAP),
                  "gradients sum to zero");
}

/* The class at position c after reordering. The order has steps of a number that shares no factor with the number of
 * classes. */
static int64_t moved(int64_t c, int64_t classes) {
    int64_t step = classes / 2 + 1, a, b;
    for (;; step++) {
        for (a = step, b = classes; b > 0;) {
            int64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            return c * step % classes;
    }
}

/* An array of this layout with its classes in the other order. */
static double *permuted(const reference_cross_entropy *layout, const double *values) {
    double *to = values ? require_doubles(layout->rows * layout->classes) : NULL;
    int64_t row, c;
    for (row = 0; to && row < layout->rows; row++)
        for (c = 0; c < layout->classes; c++)
            to[reference_element(layout, row, moved(c, layout->classes))] = values[reference_element(layout, row, c)];
    return to;
}

static option_inputs permuted_inputs(const reference_cross_entropy *layout, const option_inputs *in) {
    option_inputs p;
    reference_cross_entropy one = *layout;
    int64_t row;
    one.rows = 1;
    one.inner = 0;
    memset(&p, 0, sizeof p);
    p.x = permuted(layout, in->x);
    p.t = permuted(layout, in->t);
    p.class_weights = permuted(&one, in->class_weights);
    p.targets = (int64_t *)require_memory((size_t)layout->rows * sizeof *p.targets);
    for (row = 0; row < layout->rows; row++)
        p.targets[row] = in->targets[row] < 0 ? in->targets[row] : moved(in->targets[row], layout->classes);
    return p;
}

static void compare_permuted(const outcome *first, const outcome *second, report *r) {
    const reference_cross_entropy *layout = &first->expected.ref;
    int64_t row, c;
    for (row = 0; row < layout->rows; row++) {
        compare_within(r, "loss of permuted classes", row,
                       (long double)first->result.loss_rows[row] - (long double)second->result.loss_rows[row],
                       first->expected.loss_rows[row] + second->expected.loss_rows[row]);
        for (c = 0; c < layout->classes; c++) {
            int64_t i = reference_element(layout, row, c);
            int64_t j = reference_element(layout, row, moved(c, layout->classes));
            compare_within(r, "gradient of permuted classes", i,
                           (long double)first->result.grad[i] - (long double)second->result.grad[j],
                           first->expected.grad[i] + second->expected.grad[j]);
        }
    }
}

static void check_permutation(ce_case *c, option_inputs *in, report *r) {
    outcome first = outcome_of(c, r), second;
    option_inputs other = permuted_inputs(&first.expected.ref, in);
    ce_case again = *c;
    again.x = other.x;
    again.target_probabilities = other.t;
    again.targets = other.targets;
    again.class_weights = c->class_weights ? other.class_weights : NULL;
    second = outcome_of(&again, r);
    compare_permuted(&first, &second, r);
    outcome_free(&first);
    outcome_free(&second);
    option_inputs_free(&other);
}

static void classes_in_another_order(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_property(check_permutation, OPTION_ALL | OPTION_PROBABILITIES, "classes in another order");
}

/* Logits that are multiples of 1/16 below 2^3 in magnitude take 16, or in the type of the fewest digits -4, exactly. */
static void check_shift(ce_case *c, option_inputs *in, report *r) {
    double constant = c->dtype == GPULOSS_BF16 ? -4 : 16, grain = c->dtype == GPULOSS_BF16 ? 4 : 16;
    int64_t i, elements = c->rows * c->classes;
    outcome first, second;
    for (i = 0; i < elements; i++)
        in->x[i] = fmin(fmax(round(in->x[i] * grain) / grain, -3), 7);
    first = outcome_of(c, r);
    for (i = 0; i < elements; i++) {
        in->x[i] += constant;
        if (dtype_round(c->dtype, in->x[i]) != in->x[i])
            report_failure(r, "shift", i, 0, "%g is not a number of the type", in->x[i]);
    }
    second = outcome_of(c, r);
    for (i = 0; i < c->rows; i++)
        compare_within(r, "loss of a shifted row", i,
                       (long double)first.result.loss_rows[i] - (long double)second.result.loss_rows[i],
                       first.expected.loss_rows[i] + second.expected.loss_rows[i]);
    for (i = 0; i < elements; i++)
        compare_within(r, "gradient of a shifted row", i,
                       (long double)first.result.grad[i] - (long double)second.result.grad[i],
                       first.expected.grad[i] + second.expected.grad[i]);
    outcome_free(&first);
    outcome_free(&second);
}

static void constant_added_to_rows(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_property(check_shift, (OPTION_ALL | OPTION_PROBABILITIES) & ~(unsigned)(OPTION_Z_LOSS | OPTION_SOFTCAP),
                  "a constant added");
}

int run_cross_entropy_property_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_sum_to_zero),
        cmocka_unit_test(classes_in_another_order),
        cmocka_unit_test(constant_added_to_rows),
    };
    return cmocka_run_group_tests_name("cross_entropy properties", tests, NULL, NULL);
}
