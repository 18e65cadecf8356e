/* The check of a cross-entropy accepts the results of float arithmetic with every option. It rejects results with one
 * wrong element. Needs no GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checks.h"
#include "option_cases.h"
#include "run_common.h"

enum { ROWS = 5, CLASSES = 9 };
static const option_shape shape = {ROWS, CLASSES, 0};

/* The options of a case in float. */
typedef struct float_options {
    float keep, share, scale, cap, z;
} float_options;

static float_options float_options_of(const ce_case *c) {
    float_options o;
    o.keep = (float)(1 - c->label_smoothing);
    o.share = (float)(c->label_smoothing / CLASSES);
    o.scale = c->logit_scale != 0 ? (float)c->logit_scale : 1;
    o.cap = (float)c->softcap;
    o.z = (float)c->lse_square_scale;
    return o;
}

static float weight_in_float(const ce_case *c, int64_t i) {
    return c->class_weights ? (float)c->class_weights[i] : 1;
}

static float target_weight_in_float(const ce_case *c, const float_options *o, int64_t row, int64_t i) {
    float w = weight_in_float(c, i);
    if (c->target_probabilities)
        return w * (o->keep * (float)c->target_probabilities[row * CLASSES + i] + o->share);
    return w * o->share + (i == c->targets[row] ? w * o->keep : 0);
}

static float logit_in_float(const float_options *o, double given) {
    float x = (float)given * o->scale;
    return o->cap > 0 ? o->cap * tanhf(x / o->cap) : x;
}

static float slope_in_float(const float_options *o, double given) {
    float e;
    if (!(o->cap > 0))
        return o->scale;
    e = expf(-2 * fabsf((float)given * o->scale / o->cap));
    return o->scale * (4 * e / ((1 + e) * (1 + e)));
}

/* One row, added up from the first class to the last. */
static void row_in_float(const ce_case *c, ce_result *result, int64_t row) {
    float_options o = float_options_of(c);
    float x[CLASSES], row_max = -INFINITY, sum = 0, weights = 0, loss = 0, lse, z;
    float r = c->row_weights ? (float)c->row_weights[row] : 1;
    bool ignored = !c->target_probabilities && c->use_ignore_index && c->targets[row] == c->ignore_index;
    int64_t i;
    for (i = 0; i < CLASSES; i++) {
        x[i] = logit_in_float(&o, c->x[row * CLASSES + i]);
        result->argmax[row] = x[i] > row_max ? i : result->argmax[row];
        row_max = fmaxf(row_max, x[i]);
    }
    for (i = 0; i < CLASSES; i++)
        sum += expf(x[i] - row_max);
    lse = row_max + logf(sum);
    z = o.z * lse * lse;
    for (i = 0; i < CLASSES; i++) {
        weights += target_weight_in_float(c, &o, row, i);
        loss += target_weight_in_float(c, &o, row, i) * (logf(sum) + (row_max - x[i]));
    }
    result->lse[row] = (double)lse;
    result->loss_rows[row] = ignored ? 0 : (double)(r * (loss + z));
    result->z_loss_rows[row] = ignored ? 0 : (double)(r * z);
    for (i = 0; i < CLASSES; i++) {
        float p = expf(x[i] - row_max) / sum;
        float g = p * (weights + 2 * o.z * lse) - target_weight_in_float(c, &o, row, i);
        result->grad[row * CLASSES + i] = ignored ? 0 : (double)(r * g * slope_in_float(&o, c->x[row * CLASSES + i]));
        if (result->grad_targets)
            result->grad_targets[row * CLASSES + i] =
                (double)(r * o.keep * weight_in_float(c, i) * (logf(sum) + (row_max - x[i])));
    }
    result->correct += !c->target_probabilities && !ignored && result->argmax[row] == c->targets[row];
}

/* The results of reduction sum in float. */
static ce_result result_in_float(const ce_case *c) {
    ce_result result;
    int64_t row;
    memset(&result, 0, sizeof result);
    result.argmax = (int64_t *)require_memory(ROWS * sizeof *result.argmax);
    result.loss_rows = require_doubles(ROWS);
    result.z_loss_rows = require_doubles(ROWS);
    result.lse = require_doubles(ROWS);
    result.grad = require_doubles(ROWS * CLASSES);
    result.grad_targets = c->target_probabilities ? require_doubles(ROWS * CLASSES) : NULL;
    for (row = 0; row < ROWS; row++) {
        row_in_float(c, &result, row);
        result.loss += result.loss_rows[row];
        result.z_loss += result.z_loss_rows[row];
    }
    result.loss = (double)(float)result.loss;
    result.z_loss = (double)(float)result.z_loss;
    return result;
}

static bool passes(const ce_case *c, const ce_result *result) {
    report r = report_on("self-test");
    ce_check(c, result, &r);
    return r.failures == 0;
}

static ce_case float_case(unsigned options, option_inputs *in) {
    ce_case c = option_case(GPULOSS_F32, shape, options, LOGITS_NORMAL, 3 + options, in);
    c.reduction = GPULOSS_SUM;
    return c;
}

/* Every set of options: float arithmetic passes as f32, and fails as f64. */
static void float_passes_as_float(void **state) {
    unsigned set;
    (void)state;
    for (set = 0; set < 2 * OPTION_SETS; set++) {
        option_inputs in;
        ce_case c = float_case(set, &in);
        ce_result result = result_in_float(&c);
        report r = report_on("float arithmetic");
        ce_check(&c, &result, &r);
        if (r.failures)
            fail_msg("set of options %u: %s", set, r.first);
        c.dtype = GPULOSS_F64;
        assert_false(passes(&c, &result));
        ce_free(&result);
        option_inputs_free(&in);
    }
}

/* A number that is off by 2^-10 of itself, and a little where it is 0, is found wherever it is. */
static void expect_found(const ce_case *c, const ce_result *result, double *number) {
    double right = *number;
    *number = right * (1 + 0x1p-10) + 0x1p-40;
    assert_false(passes(c, result));
    *number = right;
}

static void wrong_numbers_are_found(void **state) {
    static const unsigned sets[] = {OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_Z_LOSS, OPTION_ALL,
                                    OPTION_PROBABILITIES | OPTION_Z_LOSS | OPTION_ROW_WEIGHTS};
    size_t k, i;
    (void)state;
    for (k = 0; k < sizeof sets / sizeof sets[0]; k++) {
        option_inputs in;
        ce_case c = float_case(sets[k], &in);
        ce_result result = result_in_float(&c);
        assert_true(passes(&c, &result));
        expect_found(&c, &result, &result.loss);
        expect_found(&c, &result, &result.z_loss);
        for (i = 0; i < ROWS; i++) {
            expect_found(&c, &result, &result.loss_rows[i]);
            expect_found(&c, &result, &result.z_loss_rows[i]);
            expect_found(&c, &result, &result.lse[i]);
        }
        for (i = 0; i < ROWS * CLASSES; i++) {
            expect_found(&c, &result, &result.grad[i]);
            if (result.grad_targets)
                expect_found(&c, &result, &result.grad_targets[i]);
        }
        ce_free(&result);
        option_inputs_free(&in);
    }
}

static void wrong_counts_are_found(void **state) {
    static const unsigned sets[] = {0, OPTION_SOFTCAP, OPTION_IGNORE_INDEX};
    size_t k;
    int64_t row;
    (void)state;
    for (k = 0; k < sizeof sets / sizeof sets[0]; k++) {
        option_inputs in;
        ce_case c = float_case(sets[k], &in);
        ce_result result = result_in_float(&c);
        int64_t *argmax = result.argmax;
        assert_true(passes(&c, &result));
        for (row = 0; row < ROWS; row++) {
            int64_t right = argmax[row];
            for (argmax[row] = -1; argmax[row] <= CLASSES; argmax[row]++)
                assert_int_equal(passes(&c, &result), argmax[row] == right);
            argmax[row] = right;
        }
        result.correct++;
        assert_false(passes(&c, &result));
        result.argmax = NULL;
        assert_false(passes(&c, &result));
        result.correct -= 2;
        assert_false(passes(&c, &result));
        result.correct++;
        assert_true(passes(&c, &result));
        result.bad_targets = 1;
        assert_false(passes(&c, &result));
        result.argmax = argmax;
        ce_free(&result);
        option_inputs_free(&in);
    }
}

/* The sums of chunks may be off by a rounding each, and their divisor not at all. */
static void wrong_sums_of_chunks_are_found(void **state) {
    option_inputs in;
    ce_case c = float_case(OPTION_IGNORE_INDEX | OPTION_WEIGHTS | OPTION_Z_LOSS, &in);
    ce_expected e;
    ce_result result;
    (void)state;
    c.reduction = GPULOSS_MEAN;
    c.outputs = CE_OUT_LOSS | CE_OUT_Z_LOSS;
    ce_expect(&c, false, &e);
    memset(&result, 0, sizeof result);
    result.divisor = (double)e.ref.divisor;
    result.loss = (double)e.ref.loss;
    result.z_loss = (double)e.ref.z_loss;
    assert_true(passes(&c, &result));
    result.loss += (double)e.loss * 1.01;
    assert_false(passes(&c, &result));
    c.chunk = 1;
    assert_true(passes(&c, &result));
    expect_found(&c, &result, &result.loss);
    expect_found(&c, &result, &result.z_loss);
    result.divisor = nextafter(result.divisor, 0);
    assert_false(passes(&c, &result));
    ce_expected_free(&e);
    option_inputs_free(&in);
}

int run_check_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_passes_as_float),
        cmocka_unit_test(wrong_numbers_are_found),
        cmocka_unit_test(wrong_counts_are_found),
        cmocka_unit_test(wrong_sums_of_chunks_are_found),
    };
    return cmocka_run_group_tests_name("checks", tests, NULL, NULL);
}
