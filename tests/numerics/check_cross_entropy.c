#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bounds_options.h"
#include "run_common.h"
#include "run_cross_entropy.h"

static void set_reference(const ce_case *c, reference_cross_entropy *ref) {
    memset(ref, 0, sizeof *ref);
    ref->rows = c->rows;
    ref->classes = c->classes;
    ref->inner = c->inner;
    ref->x = c->x;
    ref->targets = c->targets;
    ref->target_probabilities = c->target_probabilities;
    ref->reduction = c->reduction;
    ref->use_ignore_index = c->use_ignore_index;
    ref->ignore_index = c->ignore_index;
    ref->class_weights = c->class_weights;
    ref->row_weights = c->row_weights;
    ref->label_smoothing = c->label_smoothing;
    ref->lse_square_scale = c->lse_square_scale;
    ref->logit_scale = c->logit_scale;
    ref->softcap = c->softcap;
    ref->external_divisor = c->divisor;
    ref->grad_scale = gradient_factor(c->use_grad_scale, c->grad_scale, c->grad_loss);
    ref->grad_loss_rows = c->grad_loss_rows;
    ref->lse_in = c->lse_in;
}

static void make_reference(const ce_case *c, reference_cross_entropy *ref, bool gradients) {
    int64_t rows = c->rows, elements = rows * c->classes;
    set_reference(c, ref);
    ref->argmax = (int64_t *)require_memory((size_t)rows * sizeof *ref->argmax);
    ref->loss_rows = require_long_doubles(rows);
    ref->z_loss_rows = require_long_doubles(rows);
    ref->lse = require_long_doubles(rows);
    ref->scale_rows = require_long_doubles(rows);
    ref->row_info = (reference_row *)require_memory((size_t)rows * sizeof(reference_row));
    if (gradients) {
        ref->probability = require_long_doubles(elements);
        ref->grad = require_long_doubles(elements);
    }
    if (gradients && c->target_probabilities)
        ref->grad_target_probabilities = require_long_doubles(elements);
    reference_cross_entropy_run(ref);
}

static void free_reference(reference_cross_entropy *ref) {
    free(ref->argmax);
    free(ref->loss_rows);
    free(ref->z_loss_rows);
    free(ref->lse);
    free(ref->scale_rows);
    free(ref->row_info);
    free(ref->probability);
    free(ref->grad);
    free(ref->grad_target_probabilities);
}

static void expect_gradients(const ce_case *c, ce_expected *e, const option_bounds *b, bool normal) {
    int64_t column;
    for (column = 0; column < c->classes; column++) {
        int64_t i = reference_element(&e->ref, b->row, column);
        e->grad[i] = normal ? option_gradient_bound(b, &e->ref, column, ce_grad_dtype(c), e->ref.grad[i]) : 0;
        if (e->grad_targets)
            e->grad_targets[i] = normal ? option_target_gradient_bound(b, &e->ref, column, ce_target_dtype(c),
                                                                       e->ref.grad_target_probabilities[i])
                                        : 0;
    }
}

/* The sums over rows are added up from finite rows: with any other the sum is not finite, and has no bound. */
typedef struct row_totals {
    long double loss, loss_magnitude, z_loss, z_loss_magnitude;
} row_totals;

static void expect_row(const ce_case *c, ce_expected *e, int64_t row, row_totals *totals) {
    option_setting setting = {c->dtype, c->shards};
    option_bounds b = option_bounds_of(setting, &e->ref, row);
    bool normal = reference_row_kind(&e->ref, row) == ROW_NORMAL && !reference_is_silent(&e->ref, row);
    e->loss_rows[row] = normal ? b.loss : 0;
    e->z_loss_rows[row] = normal ? b.z_loss : 0;
    e->lse[row] = b.lse;
    totals->loss += e->loss_rows[row];
    totals->loss_magnitude += fabsl(e->ref.loss_rows[row]);
    totals->z_loss += e->z_loss_rows[row];
    totals->z_loss_magnitude += fabsl(e->ref.z_loss_rows[row]);
    if (e->grad)
        expect_gradients(c, e, &b, normal);
}

void ce_expect(const ce_case *c, bool gradients, ce_expected *e) {
    row_totals totals = {0, 0, 0, 0};
    int64_t row;
    memset(e, 0, sizeof *e);
    make_reference(c, &e->ref, gradients);
    e->loss_rows = require_long_doubles(c->rows);
    e->z_loss_rows = require_long_doubles(c->rows);
    e->lse = require_long_doubles(c->rows);
    if (gradients)
        e->grad = require_long_doubles(c->rows * c->classes);
    if (gradients && c->target_probabilities)
        e->grad_targets = require_long_doubles(c->rows * c->classes);
    for (row = 0; row < c->rows; row++)
        expect_row(c, e, row, &totals);
    e->loss = reduced_loss_bound(c->dtype, c->rows, totals.loss, totals.loss_magnitude, e->ref.divisor, e->ref.loss);
    e->z_loss =
        reduced_loss_bound(c->dtype, c->rows, totals.z_loss, totals.z_loss_magnitude, e->ref.divisor, e->ref.z_loss);
    if (c->chunk > 0) {
        const int64_t chunks = (c->rows + c->chunk - 1) / c->chunk;
        e->loss += added_loss_bound(c->dtype, chunks, totals.loss_magnitude, e->ref.divisor);
        e->z_loss += added_loss_bound(c->dtype, chunks, totals.z_loss_magnitude, e->ref.divisor);
    }
}

void ce_expected_free(ce_expected *e) {
    free_reference(&e->ref);
    free(e->loss_rows);
    free(e->z_loss_rows);
    free(e->lse);
    free(e->grad);
    free(e->grad_targets);
    memset(e, 0, sizeof *e);
}

static bool has_option(const ce_case *c) {
    return c->target_probabilities || c->class_weights || c->row_weights || c->label_smoothing > 0 ||
           c->lse_square_scale > 0 || c->logit_scale != 0 || c->softcap > 0 || c->grad_dtype != GPULOSS_DTYPE_UNSET;
}

static void check_gradient_row(const ce_case *c, const ce_result *result, const ce_expected *e, int64_t row,
                               report *r) {
    quantity q = c->lse_in ? CE_GRAD_FROM_LSE : CE_GRAD;
    bool noted = !has_option(c) && reference_row_kind(&e->ref, row) == ROW_NORMAL;
    int64_t column;
    for (column = 0; column < c->classes; column++) {
        int64_t i = reference_element(&e->ref, row, column);
        if (result->grad)
            compare_value(r, q, c->dtype, ce_grad_dtype(c), row, column, result->grad[i], e->ref.grad[i], e->grad[i]);
        if (result->grad_targets)
            compare_value(r, CE_GRAD_TARGETS, c->dtype, ce_target_dtype(c), row, column, result->grad_targets[i],
                          e->ref.grad_target_probabilities[i], e->grad_targets[i]);
        /* p - 1 loses the last bits of a p close to 1, and so does a difference of weights. There only the bound
         * counts. */
        if (noted && result->grad && !(column == c->targets[row] && e->ref.probability[i] > 0.5L))
            note_ulps(q, c->dtype, result->grad[i], e->ref.grad[i]);
    }
}

/* Whether a class can be the largest when each transformed logit has its error. */
static bool may_be_best(const ce_case *c, const reference_cross_entropy *ref, int64_t row, int64_t column) {
    int64_t best = ref->argmax[row];
    double largest, other;
    long double x_largest;
    if (column == best)
        return true;
    if (column < 0 || column >= c->classes)
        return false;
    largest = ref->x[reference_element(ref, row, best)];
    other = ref->x[reference_element(ref, row, column)];
    x_largest = reference_logit(ref, largest);
    if (!isfinite(x_largest) || (ref->logit_scale == 0 && !(ref->softcap > 0)))
        return false;
    return reference_logit(ref, other) + option_logit_error(c->dtype, ref, other) >=
           x_largest - option_logit_error(c->dtype, ref, largest);
}

static void check_argmax(const ce_case *c, const ce_result *result, const reference_cross_entropy *ref, report *r) {
    int64_t row;
    for (row = 0; row < c->rows; row++)
        if (!may_be_best(c, ref, row, result->argmax[row]))
            report_failure(r, "argmax", row, 0, "got %lld, want %lld", (long long)result->argmax[row],
                           (long long)ref->argmax[row]);
}

/* Checks `correct`: the number of rows whose target is the argmax of the call. Without an argmax, it counts at least
 * the rows where only the target can be the argmax, and at most the rows where the target can be. */
static void check_correct(const ce_case *c, const ce_result *result, const reference_cross_entropy *ref, report *r) {
    int64_t row, column, least = 0, most = 0;
    for (row = 0; row < c->rows; row++) {
        int64_t y = c->targets[row];
        bool only = ref->argmax[row] == y;
        if (reference_row_kind(ref, row) != ROW_NORMAL)
            continue;
        if (result->argmax) {
            least += result->argmax[row] == y;
            most += result->argmax[row] == y;
            continue;
        }
        for (column = 0; column < c->classes && only; column++)
            only = column == y || !may_be_best(c, ref, row, column);
        least += only;
        most += may_be_best(c, ref, row, y);
    }
    if (result->correct < least || result->correct > most)
        report_failure(r, "correct", 0, 0, "got %lld, want %lld to %lld", (long long)result->correct, (long long)least,
                       (long long)most);
}

/* Whether no factor of a loss or a gradient is negative. */
static bool has_signs(const ce_case *c, const reference_cross_entropy *ref, int64_t row) {
    double upstream = c->grad_loss_rows ? c->grad_loss_rows[row] : 1, weight = c->row_weights ? c->row_weights[row] : 1;
    int64_t y = c->targets ? c->targets[row] : 0;
    if (c->target_probabilities || c->label_smoothing > 0 || c->lse_square_scale > 0 || c->logit_scale < 0)
        return false;
    return reference_row_kind(ref, row) == ROW_NORMAL && ref->grad_scale >= 0 && ref->divisor >= 0 && upstream >= 0 &&
           weight >= 0 && (!c->class_weights || c->class_weights[y] >= 0);
}

/* No rounding makes a loss negative, or the gradient of a target's logit positive. */
static void check_signs(const ce_case *c, const ce_result *result, const reference_cross_entropy *ref, report *r) {
    bool all = c->rows > 0;
    int64_t row;
    for (row = 0; row < c->rows; row++) {
        bool of_row = has_signs(c, ref, row);
        int64_t i = of_row ? reference_element(ref, row, c->targets[row]) : 0;
        all = all && (of_row || reference_row_kind(ref, row) == ROW_IGNORED);
        if (of_row && result->loss_rows && result->loss_rows[row] < 0)
            report_failure(r, "sign of loss_rows", row, 0, "got %.17g", result->loss_rows[row]);
        if (of_row && result->grad && result->grad[i] > 0)
            report_failure(r, "sign of the target's gradient", row, c->targets[row], "got %.17g", result->grad[i]);
    }
    if (all && ce_outputs(c) & CE_OUT_LOSS && result->loss < 0)
        report_failure(r, "sign of loss", 0, 0, "got %.17g", result->loss);
}

static void check_row(const ce_case *c, const ce_result *result, const ce_expected *e, int64_t row, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    if (result->loss_rows)
        compare_value(r, CE_LOSS_ROWS, c->dtype, results, row, 0, result->loss_rows[row], e->ref.loss_rows[row],
                      e->loss_rows[row]);
    if (result->z_loss_rows)
        compare_value(r, CE_Z_LOSS_ROWS, c->dtype, results, row, 0, result->z_loss_rows[row], e->ref.z_loss_rows[row],
                      e->z_loss_rows[row]);
    if (result->lse)
        compare_value(r, CE_LSE, c->dtype, results, row, 0, result->lse[row], e->ref.lse[row], e->lse[row]);
    if (result->grad || result->grad_targets)
        check_gradient_row(c, result, e, row, r);
}

void ce_check(const ce_case *c, const ce_result *result, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    unsigned outputs = ce_outputs(c);
    ce_expected e;
    int64_t row;
    ce_expect(c, result->grad || result->grad_targets, &e);
    for (row = 0; row < c->rows; row++)
        check_row(c, result, &e, row, r);
    if (outputs & CE_OUT_LOSS)
        compare_value(r, CE_LOSS, c->dtype, results, 0, 0, result->loss, e.ref.loss, e.loss);
    if (outputs & CE_OUT_Z_LOSS)
        compare_value(r, CE_Z_LOSS, c->dtype, results, 0, 0, result->z_loss, e.ref.z_loss, e.z_loss);
    if (ce_has_divisor(c))
        compare_divisor(r, c->dtype, result->divisor, e.ref.divisor);
    check_signs(c, result, &e.ref, r);
    if (result->argmax)
        check_argmax(c, result, &e.ref, r);
    if (outputs & CE_OUT_CORRECT)
        check_correct(c, result, &e.ref, r);
    if (outputs & CE_OUT_BAD_TARGETS)
        compare_count(r, "bad_targets", result->bad_targets, e.ref.bad_targets);
    ce_expected_free(&e);
}

void ce_test(const ce_case *c, const char *what) {
    char text[CE_DESCRIPTION];
    ce_result result;
    report r;
    ce_describe(c, what, text, sizeof text);
    r = report_on(text);
    ce_run(c, &result, &r);
    ce_check(c, &result, &r);
    ce_free(&result);
    case_done(&r);
}
