#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bounds_divergence.h"
#include "run_common.h"
#include "run_kl_div.h"

static void set_reference(const kl_case *c, reference_kl_div *ref) {
    memset(ref, 0, sizeof *ref);
    ref->rows = c->rows;
    ref->classes = c->classes;
    ref->input = c->input;
    ref->target = c->target;
    ref->input_kind = c->input_kind;
    ref->target_kind = c->target_kind;
    ref->divergence = c->divergence;
    ref->reduction = c->reduction;
    ref->pytorch_zeros = c->pytorch_zeros;
    ref->temperature_squared = c->temperature_squared;
    ref->beta = c->beta;
    ref->temperature = c->temperature;
    ref->eps = c->eps;
    ref->external_divisor = c->divisor;
    ref->row_weights = c->row_weights;
    ref->labels = c->labels;
    ref->ignore_index = c->ignore_index;
    ref->grad_scale = gradient_factor(c->use_grad_scale, c->grad_scale, c->grad_loss);
    ref->grad_loss_rows = c->grad_loss_rows;
}

static void make_reference(const kl_case *c, reference_kl_div *ref) {
    int64_t rows = c->rows, elements = rows * c->classes;
    set_reference(c, ref);
    ref->loss_rows = require_long_doubles(rows);
    ref->scale_rows = require_long_doubles(rows);
    ref->terms = require_long_doubles(elements);
    if (kl_outputs(c) & KL_OUT_GRAD)
        ref->grad = require_long_doubles(elements);
    if (kl_outputs(c) & KL_OUT_GRAD_TARGET)
        ref->grad_target = require_long_doubles(elements);
    reference_kl_div_run(ref);
}

enum { NOT_DIRECT = KL_OUT_LOSS_ELEMENTS | KL_OUT_GRAD_TARGET };
/* Whether a KL of one side of logits is summed along with the softmax, unless one of these outputs is wanted. */
static bool may_be_direct(const kl_case *c) {
    const bool is_kl =
        reference_is_forward_kl(c->divergence, c->beta) || reference_is_reverse_kl(c->divergence, c->beta);
    return is_kl && (c->input_kind == GPULOSS_LOGITS) != (c->target_kind == GPULOSS_LOGITS) && !(c->eps > 0) &&
           !c->pytorch_zeros;
}

/* Whether a kernel without options takes the call. These kernels have bounds of their own: they sum terms in float, and
 * may form a quotient as a product with a reciprocal. */
static bool is_basic(const kl_case *c) {
    return reference_is_forward_kl(c->divergence, c->beta) && c->input_kind != GPULOSS_LOGITS &&
           c->target_kind != GPULOSS_LOGITS && kl_target_dtype(c) == c->dtype &&
           !(kl_outputs(c) & KL_OUT_GRAD_TARGET) && !c->row_weights && !c->labels;
}

static void expect_basic_row(const kl_case *c, kl_expected *e, int64_t row) {
    const reference_kl_div *ref = &e->ref;
    long double bounds = 0, magnitudes = 0;
    int64_t i;
    for (i = row * c->classes; i < (row + 1) * c->classes; i++) {
        e->terms[i] = kl_div_term_bound(c->dtype, ref, c->input[i], c->target[i], ref->terms[i]);
        if (e->grad)
            e->grad[i] = kl_div_gradient_bound(c->dtype, ref, c->target[i], ref->grad[i]);
        bounds += e->terms[i];
        magnitudes += fabsl(ref->terms[i]);
    }
    e->loss_rows[row] = kl_div_row_bound(c->dtype, c->classes, bounds, magnitudes, ref->loss_rows[row]);
}

static void expect_row(const kl_case *c, kl_expected *e, int64_t row) {
    divergence_setting setting = {c->dtype, kl_target_dtype(c),
                                  may_be_direct(c) && !(kl_outputs(c) & (unsigned)NOT_DIRECT)};
    divergence_bounds b;
    int64_t column;
    if (reference_left_out(&e->ref, row)) /* exactly 0 */
        return;
    divergence_bounds_of(setting, &e->ref, row, &b);
    e->loss_rows[row] = b.loss;
    for (column = 0; column < c->classes; column++) {
        int64_t i = row * c->classes + column;
        element_bounds bounds = divergence_element_bounds(&b, &e->ref, column);
        e->terms[i] = bounds.term;
        if (e->grad)
            e->grad[i] = bounds.grad;
        if (e->grad_target)
            e->grad_target[i] = bounds.grad_target;
    }
    divergence_bounds_free(&b);
}

static long double *zeros(int64_t count) {
    long double *values = require_long_doubles(count);
    int64_t i;
    for (i = 0; i < count; i++)
        values[i] = 0;
    return values;
}

void kl_expect(const kl_case *c, kl_expected *e) {
    long double bounds = 0, magnitudes = 0;
    int64_t row, elements = c->rows * c->classes;
    memset(e, 0, sizeof *e);
    make_reference(c, &e->ref);
    e->loss_rows = zeros(c->rows);
    e->terms = zeros(elements);
    e->grad = e->ref.grad ? zeros(elements) : NULL;
    e->grad_target = e->ref.grad_target ? zeros(elements) : NULL;
    for (row = 0; row < c->rows; row++) {
        if (is_basic(c))
            expect_basic_row(c, e, row);
        else
            expect_row(c, e, row);
        bounds += e->loss_rows[row];
        magnitudes += fabsl(e->ref.loss_rows[row]);
    }
    e->loss = reduced_loss_bound(c->dtype, c->rows, bounds, magnitudes, e->ref.divisor, e->ref.loss);
    if (c->chunk > 0)
        e->loss += added_loss_bound(c->dtype, (c->rows + c->chunk - 1) / c->chunk, magnitudes, e->ref.divisor);
}

void kl_expected_free(kl_expected *e) {
    free(e->ref.loss_rows);
    free(e->ref.scale_rows);
    free(e->ref.terms);
    free(e->ref.grad);
    free(e->ref.grad_target);
    free(e->loss_rows);
    free(e->terms);
    free(e->grad);
    free(e->grad_target);
    memset(e, 0, sizeof *e);
}

static void check_elements(const kl_case *c, const kl_result *result, const kl_expected *e, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    int64_t i;
    for (i = 0; i < c->rows * c->classes; i++) {
        int64_t row = i / c->classes, column = i % c->classes;
        if (result->loss_elements)
            compare_value(r, KL_LOSS_ELEMENTS, c->dtype, results, row, column, result->loss_elements[i],
                          e->ref.terms[i], e->terms[i]);
        if (result->grad)
            compare_value(r, KL_GRAD, c->dtype, c->dtype, row, column, result->grad[i], e->ref.grad[i], e->grad[i]);
        if (result->grad && is_basic(c)) /* where nothing cancels */
            note_ulps(KL_GRAD, c->dtype, result->grad[i], e->ref.grad[i]);
        if (result->grad_target)
            compare_value(r, KL_GRAD_TARGET, c->dtype, kl_target_dtype(c), row, column, result->grad_target[i],
                          e->ref.grad_target[i], e->grad_target[i]);
    }
}

void kl_check(const kl_case *c, const kl_result *result, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    kl_expected e;
    int64_t row;
    kl_expect(c, &e);
    check_elements(c, result, &e, r);
    for (row = 0; row < c->rows && result->loss_rows; row++)
        compare_value(r, KL_LOSS_ROWS, c->dtype, results, row, 0, result->loss_rows[row], e.ref.loss_rows[row],
                      e.loss_rows[row]);
    if (kl_outputs(c) & KL_OUT_LOSS)
        compare_value(r, KL_LOSS, c->dtype, results, 0, 0, result->loss, e.ref.loss, e.loss);
    if (kl_has_divisor(c))
        compare_divisor(r, c->dtype, result->divisor, e.ref.divisor);
    kl_expected_free(&e);
}

static void compare_arrays(report *r, const char *what, const double *first, const double *second, size_t count) {
    if (first && second)
        compare_bits(r, what, first, second, count * sizeof *first);
}

void kl_same(const kl_case *c, const kl_result *a, const kl_result *b, report *r) {
    size_t rows = (size_t)c->rows, elements = rows * (size_t)c->classes;
    compare_bits(r, "loss", &a->loss, &b->loss, sizeof a->loss);
    compare_arrays(r, "loss_rows", a->loss_rows, b->loss_rows, rows);
    compare_arrays(r, "loss_elements", a->loss_elements, b->loss_elements, elements);
    compare_arrays(r, "grad_input", a->grad, b->grad, elements);
    compare_arrays(r, "grad_target", a->grad_target, b->grad_target, elements);
}

static void test_outputs(const kl_case *c, const char *what) {
    char text[KL_DESCRIPTION];
    kl_result result;
    report r;
    kl_describe(c, what, text, sizeof text);
    r = report_on(text);
    kl_run(c, &result, &r);
    kl_check(c, &result, &r);
    kl_free(&result);
    case_done(&r);
}

void kl_test(const kl_case *c, const char *what) {
    kl_case direct = *c;
    test_outputs(c, what);
    direct.outputs &= ~(unsigned)NOT_DIRECT;
    direct.target_in_place = false;
    if (may_be_direct(c) && kl_outputs(c) != kl_outputs(&direct) && kl_outputs(&direct))
        test_outputs(&direct, what);
}
