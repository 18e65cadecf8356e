/* Relations between results of gpuloss_kl_div, whatever they are. They need no reference but for the bounds of
 * rounding. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "run_common.h"
#include "suites.h"

/* A call, its results, and the expected results. */
typedef struct outcome {
    kl_result result;
    kl_expected expected;
} outcome;

static outcome outcome_of(const kl_case *c, report *r) {
    outcome o;
    kl_run(c, &o.result, r);
    kl_expect(c, &o.expected);
    return o;
}

static void outcome_free(outcome *o) {
    kl_free(&o->result);
    kl_expected_free(&o->expected);
}

/* Shapes, dtypes, kinds and divergences for a property, some of them in a small run. */
typedef void property(kl_case *c, kl_inputs *in, report *r);

static void test_property(property *check, const char *what) {
    static const divergence_shape shapes[] = {{4, 12}, {3, 301}, {2, 9001}};
    unsigned d, k, pair, choice, number = 0;
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (pair = 0; pair < KL_KIND_PAIRS; pair++)
                for (choice = 0; choice < CHOICES; choice++, number++) {
                    char text[KL_DESCRIPTION];
                    kl_inputs in;
                    kl_case c;
                    report r;
                    if (harness_small && (shapes[k].classes > 1000 || number % 5 != 0))
                        continue;
                    c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shapes[k], pair, choice);
                    in = divergence_inputs(&c, number % 3 ? DISTRIBUTIONS_RANDOM : DISTRIBUTIONS_CLOSE,
                                           KL_WITH_TEMPERATURE, number);
                    kl_describe(&c, what, text, sizeof text);
                    r = report_on(text);
                    check(&c, &in, &r);
                    kl_inputs_free(&in);
                    case_done(&r);
                }
    test_done();
}

/* Jensen-Shannon with beta 0 and 1 gives the bits of the two KL. */
static void check_ends_of_beta(kl_case *c, kl_inputs *in, report *r) {
    kl_result first, second;
    (void)in;
    if (c->divergence != GPULOSS_FORWARD_KL && c->divergence != GPULOSS_REVERSE_KL)
        return;
    kl_run(c, &first, r);
    c->beta = c->divergence == GPULOSS_REVERSE_KL;
    c->divergence = GPULOSS_JENSEN_SHANNON;
    kl_run(c, &second, r);
    kl_same(c, &first, &second, r);
    kl_free(&first);
    kl_free(&second);
}

static void ends_of_beta(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_property(check_ends_of_beta, "ends of beta");
}

/* The same with both sides exchanged. */
static kl_case with_sides_swapped(const kl_case *c) {
    kl_case other = *c;
    other.input = c->target;
    other.target = c->input;
    other.input_kind = c->target_kind;
    other.target_kind = c->input_kind;
    return other;
}

/* Two outcomes are the same to their bounds; with `swapped` the gradient to one side is that to the other. */
static void expect_same_outcome(const kl_case *c, const outcome *a, const outcome *b, bool swapped, report *r) {
    const double *input = swapped ? b->result.grad_target : b->result.grad;
    const double *target = swapped ? b->result.grad : b->result.grad_target;
    const long double *input_bound = swapped ? b->expected.grad_target : b->expected.grad;
    const long double *target_bound = swapped ? b->expected.grad : b->expected.grad_target;
    int64_t i;
    for (i = 0; i < c->rows; i++)
        compare_within(r, "loss", i, (long double)a->result.loss_rows[i] - (long double)b->result.loss_rows[i],
                       a->expected.loss_rows[i] + b->expected.loss_rows[i]);
    for (i = 0; i < c->rows * c->classes; i++) {
        compare_within(r, "grad_input", i, (long double)a->result.grad[i] - (long double)input[i],
                       a->expected.grad[i] + input_bound[i]);
        compare_within(r, "grad_target", i, (long double)a->result.grad_target[i] - (long double)target[i],
                       a->expected.grad_target[i] + target_bound[i]);
    }
}

/* Forward KL one way is reverse KL the other way; beta becomes 1 - beta. */
static void check_swap(kl_case *c, kl_inputs *in, report *r) {
    kl_case other = with_sides_swapped(c);
    outcome a, b;
    (void)in;
    if (c->divergence == GPULOSS_FORWARD_KL)
        other.divergence = GPULOSS_REVERSE_KL;
    if (c->divergence == GPULOSS_REVERSE_KL)
        other.divergence = GPULOSS_FORWARD_KL;
    if (c->divergence == GPULOSS_JENSEN_SHANNON)
        other.beta = 1 - c->beta;
    a = outcome_of(c, r);
    b = outcome_of(&other, r);
    expect_same_outcome(c, &a, &b, true, r);
    outcome_free(&a);
    outcome_free(&b);
}

static void divergences_of_swapped_sides(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_property(check_swap, "sides swapped");
}

/* The excess of a row's sum over 1. */
static long double excess_of(const kl_case *c, const double *values, gpuloss_kind kind, int64_t row) {
    long double sum = 0;
    int64_t i;
    if (kind == GPULOSS_LOGITS)
        return 0;
    for (i = row * c->classes; i < (row + 1) * c->classes; i++)
        sum += kind == GPULOSS_PROBABILITIES ? (long double)values[i] : expl((long double)values[i]);
    return sum - 1;
}

/* No divergence of distributions is negative. Jensen-Shannon is at most the entropy of beta, which is log 2 at 1/2.
 * Total variation is at most 1. Rounded probabilities do not quite add up to 1. With sums P and Q these limits move by
 * no more than |P - 1| + |Q - 1|, and twice that is allowed. */
static void check_range(kl_case *c, kl_inputs *in, report *r) {
    outcome o = outcome_of(c, r);
    long double b = (long double)c->beta, most = (long double)INFINITY;
    int64_t row;
    (void)in;
    if (c->divergence == GPULOSS_JENSEN_SHANNON && b > 0 && b < 1)
        most = -b * logl(b) - (1 - b) * logl(1 - b);
    if (c->divergence == GPULOSS_TOTAL_VARIATION)
        most = 1;
    for (row = 0; row < c->rows; row++) {
        long double loss = (long double)o.result.loss_rows[row];
        long double off = 2 * (fabsl(excess_of(c, c->input, c->input_kind, row)) +
                               fabsl(excess_of(c, c->target, c->target_kind, row)));
        if (!(loss >= -off - o.expected.loss_rows[row] && loss <= most + off + o.expected.loss_rows[row]))
            report_failure(r, "loss_rows", row, 0, "%.9Lg is not in [0, %.9Lg]", loss, most);
    }
    outcome_free(&o);
}

static void ranges_of_divergences(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_property(check_range, "range");
}

/* A divergence of an array from itself is 0, in every element. */
static void check_itself(kl_case *c, kl_inputs *in, report *r) {
    kl_result result;
    int64_t i;
    (void)in;
    if (c->input_kind != c->target_kind)
        return;
    c->target = c->input;
    kl_run(c, &result, r);
    for (i = 0; i < c->rows * c->classes; i++)
        if (!(result.loss_elements[i] == 0))
            report_failure(r, "loss_elements", i, 0, "got %g", result.loss_elements[i]);
    for (i = 0; i < c->rows; i++)
        if (!(result.loss_rows[i] == 0))
            report_failure(r, "loss_rows", i, 0, "got %g", result.loss_rows[i]);
    if (!(result.loss == 0))
        report_failure(r, "loss", 0, 0, "got %g", result.loss);
    kl_free(&result);
}

static void divergences_from_itself(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_property(check_itself, "from itself");
}

static void expect_zero_sums(const kl_case *c, const double *gradient, const long double *bounds, const char *what,
                             report *r) {
    int64_t row, i;
    for (row = 0; row < c->rows; row++) {
        long double sum = 0, allowed = 0;
        for (i = row * c->classes; i < (row + 1) * c->classes; i++) {
            sum += (long double)gradient[i];
            allowed += bounds[i];
        }
        compare_within(r, what, row, sum, allowed);
    }
}

/* A constant added to the logits of a row changes no loss, so that their gradient sums to zero. */
static void check_zero_sum(kl_case *c, kl_inputs *in, report *r) {
    outcome o = outcome_of(c, r);
    (void)in;
    if (c->input_kind == GPULOSS_LOGITS)
        expect_zero_sums(c, o.result.grad, o.expected.grad, "sum of grad_input", r);
    if (c->target_kind == GPULOSS_LOGITS)
        expect_zero_sums(c, o.result.grad_target, o.expected.grad_target, "sum of grad_target", r);
    outcome_free(&o);
}

static void divergence_gradients_sum_to_zero(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_property(check_zero_sum, "gradients sum to zero");
}

/* Logits that are multiples of 1/16 below 2^3 in magnitude take 16, or in the type of the fewest digits -4, exactly. */
static void coarsen(const kl_case *c, double *x) {
    double grain = c->dtype == GPULOSS_BF16 ? 4 : 16;
    int64_t i;
    for (i = 0; i < c->rows * c->classes; i++)
        x[i] = fmin(fmax(round(x[i] * grain) / grain, -3), 7);
}

static void shift(const kl_case *c, double *x, report *r) {
    double constant = c->dtype == GPULOSS_BF16 ? -4 : 16;
    int64_t i;
    for (i = 0; i < c->rows * c->classes; i++) {
        x[i] += constant;
        if (dtype_round(c->dtype, x[i]) != x[i])
            report_failure(r, "shift", i, 0, "%g is not a number of the type", x[i]);
    }
}

static void check_shift(kl_case *c, kl_inputs *in, report *r) {
    outcome a, b;
    if (c->input_kind == GPULOSS_LOGITS)
        coarsen(c, in->input);
    if (c->target_kind == GPULOSS_LOGITS)
        coarsen(c, in->target);
    a = outcome_of(c, r);
    if (c->input_kind == GPULOSS_LOGITS)
        shift(c, in->input, r);
    if (c->target_kind == GPULOSS_LOGITS)
        shift(c, in->target, r);
    b = outcome_of(c, r);
    expect_same_outcome(c, &a, &b, false, r);
    outcome_free(&a);
    outcome_free(&b);
}

static void constant_added_to_either_side(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_property(check_shift, "a constant added");
}

/* The loss like PyTorch computes it from float logits: log_softmax of each side, and the sum of
 * exp(log p) (log p - log q). */
static float log_sum_of(const double *x, int64_t classes, float row_max) {
    float sum = 0;
    int64_t c;
    for (c = 0; c < classes; c++)
        sum += expf((float)x[c] - row_max);
    return logf(sum);
}

static float row_max_of(const double *x, int64_t classes) {
    double row_max = x[0];
    int64_t c;
    for (c = 1; c < classes; c++)
        row_max = fmax(row_max, x[c]);
    return (float)row_max;
}

static double with_log_softmax(const kl_case *c) {
    double sum = 0;
    int64_t row, i;
    for (row = 0; row < c->rows; row++) {
        const double *x = c->input + row * c->classes, *t = c->target + row * c->classes;
        float max_x = row_max_of(x, c->classes), log_x = log_sum_of(x, c->classes, max_x);
        float max_t = row_max_of(t, c->classes), log_t = log_sum_of(t, c->classes, max_t);
        for (i = 0; i < c->classes; i++) {
            float log_q = (float)x[i] - max_x - log_x, log_p = (float)t[i] - max_t - log_t;
            sum += (double)(expf(log_p) * (log_p - log_q));
        }
    }
    return sum / (double)c->rows;
}

static double with_two_logarithms(const kl_case *c) {
    double sum = 0;
    int64_t i;
    for (i = 0; i < c->rows * c->classes; i++)
        sum += (double)((float)c->target[i] * (logf((float)c->target[i]) - logf((float)c->input[i])));
    return sum / (double)c->rows;
}

/* The input is the target with every probability changed by `spread` of itself, which makes a KL of spread^2 / 2. */
static void make_close(kl_case *c, kl_inputs *in, double spread) {
    random_source r = random_from(17);
    int64_t row, i;
    for (row = 0; row < c->rows; row++) {
        double *q = in->input + row * c->classes, *p = in->target + row * c->classes, sum = 0, changed = 0;
        for (i = 0; i < c->classes; i++) {
            p[i] = exp(random_normal(&r));
            q[i] = p[i] * exp(spread * random_normal(&r));
            sum += p[i];
            changed += q[i];
        }
        for (i = 0; i < c->classes; i++) {
            bool logits = c->input_kind == GPULOSS_LOGITS;
            p[i] = dtype_round(c->dtype, logits ? log(p[i]) : p[i] / sum);
            q[i] = dtype_round(c->dtype, logits ? log(q[i]) : q[i] / changed);
        }
    }
}

/* Besides the usual bound, a KL below 1e-5 must be closer to the exact one than the difference of two logarithms. */
static void check_close(kl_case *c, kl_inputs *in, double spread, report *r) {
    bool logits = c->input_kind == GPULOSS_LOGITS;
    kl_expected e;
    kl_result result;
    long double error, other;
    make_close(c, in, spread);
    kl_run(c, &result, r);
    kl_check(c, &result, r);
    kl_expect(c, &e);
    error = fabsl((long double)result.loss - e.ref.loss) / e.ref.loss;
    other = (logits ? (long double)with_log_softmax(c) : (long double)with_two_logarithms(c)) - e.ref.loss;
    other = fabsl(other) / e.ref.loss;
    if (c->divergence == GPULOSS_FORWARD_KL) {
        print_message("close sides, %s: KL %.3Le, relative error %.2Le, allowed %.2Le, by two logarithms %.2Le\n",
                      logits ? "logits" : "probabilities", e.ref.loss, error, e.loss / e.ref.loss, other);
        if (e.ref.loss < 1e-5L && !(error < other))
            report_failure(r, "relative error", 0, 0, "%.2Le, but two logarithms leave %.2Le", error, other);
    }
    kl_expected_free(&e);
    kl_free(&result);
}

static void divergences_of_close_sides(void **state) {
    static const double spreads[] = {4.5e-2, 1.4e-3, 4.5e-5};
    static const divergence_shape small = {4, 1024}, full = {16, 16384};
    unsigned pair, choice, k;
    (void)state;
    REQUIRE_GPU();
    for (pair = 0; pair < KL_KIND_PAIRS; pair += KL_KIND_PAIRS - 1)
        for (choice = CHOICE_FORWARD; choice <= CHOICE_JS_HALF; choice++)
            for (k = 0; k < 3; k++) {
                kl_case c = divergence_case(GPULOSS_F32, GPULOSS_F32, harness_small ? small : full, pair, choice);
                kl_inputs in = kl_inputs_unset(&c);
                char text[KL_DESCRIPTION];
                report r;
                c.reduction = GPULOSS_BATCHMEAN;
                kl_describe(&c, "close sides", text, sizeof text);
                r = report_on(text);
                check_close(&c, &in, spreads[k], &r);
                kl_inputs_free(&in);
                case_done(&r);
            }
    test_done();
}

int run_kl_div_property_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_of_beta),
        cmocka_unit_test(divergences_of_swapped_sides),
        cmocka_unit_test(ranges_of_divergences),
        cmocka_unit_test(divergences_from_itself),
        cmocka_unit_test(divergence_gradients_sum_to_zero),
        cmocka_unit_test(constant_added_to_either_side),
        cmocka_unit_test(divergences_of_close_sides),
    };
    return cmocka_run_group_tests_name("kl_div properties", tests, NULL, NULL);
}
