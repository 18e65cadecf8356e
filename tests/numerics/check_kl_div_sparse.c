#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bounds_kl_div_sparse.h"
#include "run_common.h"
#include "run_kl_div_sparse.h"

static void make_reference(const sparse_case *c, reference_sparse *ref) {
    memset(ref, 0, sizeof *ref);
    ref->rows = c->rows;
    ref->classes = c->classes;
    ref->k = c->k;
    ref->logits = c->logits;
    ref->indices = c->indices;
    ref->values = c->values;
    ref->value_kind = c->value_kind;
    ref->residual = c->residual;
    ref->divergence = c->divergence;
    ref->beta = c->beta;
    ref->reduction = c->reduction;
    ref->temperature = c->temperature;
    ref->temperature_squared = c->temperature_squared;
    ref->external_divisor = c->divisor;
    ref->row_weights = c->row_weights;
    ref->labels = c->labels;
    ref->ignore_index = c->ignore_index;
    ref->grad_scale = gradient_factor(c->use_grad_scale, c->grad_scale, c->grad_loss);
    ref->grad_loss_rows = c->grad_loss_rows;
    ref->loss_rows = require_long_doubles(c->rows);
    ref->grad = require_long_doubles(c->rows * c->classes);
    reference_sparse_run(ref);
}

static void expect_gradients(const sparse_case *c, sparse_expected *e, const sparse_bounds *b) {
    int64_t i, first = b->row * c->classes;
    for (i = 0; i < c->classes; i++)
        e->grad[first + i] = b->of_row.out || b->of_row.bad > 0
                                 ? 0
                                 : sparse_gradient_bound(c->dtype, b, &e->ref, i, e->ref.grad[first + i]);
}

void sparse_expect(const sparse_case *c, sparse_expected *e) {
    long double *t = require_long_doubles(c->classes), *t_error = require_long_doubles(c->classes);
    long double bounds = 0, magnitudes = 0;
    int64_t row;
    memset(e, 0, sizeof *e);
    make_reference(c, &e->ref);
    e->loss_rows = require_long_doubles(c->rows);
    e->grad = require_long_doubles(c->rows * c->classes);
    for (row = 0; row < c->rows; row++) {
        sparse_bounds b;
        sparse_bounds_of(c->dtype, sparse_value_dtype(c), &e->ref, row, t, t_error, &b);
        expect_gradients(c, e, &b);
        e->loss_rows[row] = b.loss;
        bounds += b.loss;
        magnitudes += fabsl(e->ref.loss_rows[row]);
    }
    e->loss = reduced_loss_bound(c->dtype, c->rows, bounds, magnitudes, e->ref.divisor, e->ref.loss);
    if (c->chunk > 0)
        e->loss += added_loss_bound(c->dtype, (c->rows + c->chunk - 1) / c->chunk, magnitudes, e->ref.divisor);
    free(t);
    free(t_error);
}

void sparse_expected_free(sparse_expected *e) {
    free(e->ref.loss_rows);
    free(e->ref.grad);
    free(e->loss_rows);
    free(e->grad);
    memset(e, 0, sizeof *e);
}

void sparse_check(const sparse_case *c, const sparse_result *result, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    sparse_expected e;
    int64_t row, i;
    sparse_expect(c, &e);
    for (row = 0; row < c->rows && result->loss_rows; row++)
        compare_value(r, SPARSE_LOSS_ROWS, c->dtype, results, row, 0, result->loss_rows[row], e.ref.loss_rows[row],
                      e.loss_rows[row]);
    for (i = 0; i < c->rows * c->classes && result->grad; i++)
        compare_value(r, SPARSE_GRAD, c->dtype, c->dtype, i / c->classes, i % c->classes, result->grad[i],
                      e.ref.grad[i], e.grad[i]);
    if (sparse_outputs(c) & SPARSE_OUT_LOSS)
        compare_value(r, SPARSE_LOSS, c->dtype, results, 0, 0, result->loss, e.ref.loss, e.loss);
    if (sparse_outputs(c) & SPARSE_OUT_BAD)
        compare_count(r, "bad_indices", result->bad_indices, e.ref.bad_indices);
    if (sparse_has_divisor(c))
        compare_divisor(r, c->dtype, result->divisor, e.ref.divisor);
    sparse_expected_free(&e);
}

void sparse_test(const sparse_case *c, const char *what) {
    char text[SPARSE_DESCRIPTION];
    sparse_result result;
    report r;
    sparse_describe(c, what, text, sizeof text);
    r = report_on(text);
    sparse_run(c, &result, &r);
    sparse_check(c, &result, &r);
    sparse_free(&result);
    case_done(&r);
}
