#include "reference_kl_div_sparse.h"

#include <math.h>
#include <stdlib.h>

static bool left_out(const reference_sparse *r, int64_t row) {
    return r->labels && r->labels[row] == r->ignore_index;
}

long double reference_sparse_logit(const reference_sparse *r, int64_t row, int64_t c) {
    return (long double)r->logits[row * r->classes + c] / reference_temperature(r->temperature);
}

long double reference_sparse_log_q(const reference_sparse *r, const reference_sparse_row *of_row, int64_t row,
                                   int64_t c) {
    return reference_sparse_logit(r, row, c) - of_row->softmax.max - of_row->softmax.log_sum;
}

/* A negative probability is none. */
long double reference_sparse_value(const reference_sparse *r, int64_t row, int64_t j) {
    long double v = (long double)r->values[row * r->k + j];
    if (r->value_kind == GPULOSS_LOG_PROBABILITIES)
        return expl(v);
    return v < 0 ? (long double)NAN : v;
}

static void read_teacher(const reference_sparse *r, int64_t row, reference_sparse_row *of_row, long double *t) {
    int64_t c, j;
    for (c = 0; c < r->classes; c++)
        t[c] = REFERENCE_OTHER;
    for (j = 0; j < r->k; j++) {
        c = r->indices[row * r->k + j];
        if (c < 0 || c >= r->classes) {
            of_row->bad++;
            continue;
        }
        t[c] = (t[c] == REFERENCE_OTHER ? 0 : t[c]) + reference_sparse_value(r, row, j);
        of_row->sum += reference_sparse_value(r, row, j);
    }
}

/* What t is divided by. */
static long double norm_of(const reference_sparse *r, const reference_sparse_row *of_row) {
    return r->residual == GPULOSS_RENORMALIZE ? of_row->sum : 1;
}

static void add_terms(const reference_sparse *r, int64_t row, reference_sparse_row *of_row, const long double *t) {
    int64_t c;
    for (c = 0; c < r->classes; c++) {
        long double log_q = reference_sparse_log_q(r, of_row, row, c), p = t[c] / norm_of(r, of_row);
        if (t[c] == REFERENCE_OTHER)
            of_row->left += expl(log_q);
        else if (p != 0)
            of_row->f += p * (logl(p) - log_q);
    }
    if (r->residual != GPULOSS_BUCKET)
        return;
    of_row->rest = of_row->sum > 1 ? 0 : 1 - of_row->sum;
    if (of_row->rest != 0)
        of_row->f += of_row->rest * logl(of_row->rest / of_row->left);
}

reference_sparse_row reference_sparse_row_of(const reference_sparse *r, int64_t row, long double *t) {
    reference_sparse_row of_row = {false, 0, {0, 0, 0}, 0, 0, 0, 0};
    of_row.out = left_out(r, row);
    if (of_row.out)
        return of_row;
    read_teacher(r, row, &of_row, t);
    if (of_row.bad > 0)
        return of_row;
    of_row.softmax = reference_cooled_softmax(r->logits + row * r->classes, r->classes, r->temperature, NULL);
    add_terms(r, row, &of_row, t);
    return of_row;
}

long double reference_sparse_factor(const reference_sparse *r, int64_t row) {
    long double factor = r->row_weights ? (long double)r->row_weights[row] : 1;
    return r->temperature_squared
               ? factor * reference_temperature(r->temperature) * reference_temperature(r->temperature)
               : factor;
}

long double reference_sparse_scale(const reference_sparse *r, int64_t row) {
    long double upstream = r->grad_scale * (r->grad_loss_rows ? (long double)r->grad_loss_rows[row] : 1);
    return upstream * reference_sparse_factor(r, row) / r->divisor / reference_temperature(r->temperature);
}

/* f = sum p (log p - log q) + rest (log rest - log left) has the derivative q (sum p + rest) - p with respect to the
 * logit of a class of the teacher, and q (sum p + rest - rest / left) to any other. */
static void run_gradient(reference_sparse *r, int64_t row, const reference_sparse_row *of_row, const long double *t) {
    long double scale = reference_sparse_scale(r, row), norm = norm_of(r, of_row), mass = of_row->sum / norm;
    int64_t c;
    mass += of_row->rest;
    for (c = 0; c < r->classes; c++) {
        long double q = expl(reference_sparse_log_q(r, of_row, row, c)), derivative = q * mass;
        if (t[c] != REFERENCE_OTHER)
            derivative -= t[c] / norm;
        else if (of_row->rest != 0)
            derivative -= q * of_row->rest / of_row->left;
        r->grad[row * r->classes + c] = scale * derivative;
    }
}

static long double run_row(reference_sparse *r, int64_t row, long double *t) {
    reference_sparse_row of_row = reference_sparse_row_of(r, row, t);
    int64_t c;
    r->bad_indices += of_row.bad;
    if (of_row.out || of_row.bad > 0) {
        for (c = 0; r->grad && c < r->classes; c++)
            r->grad[row * r->classes + c] = 0;
        return of_row.out ? 0 : (long double)NAN;
    }
    if (r->grad)
        run_gradient(r, row, &of_row, t);
    return reference_sparse_factor(r, row) * of_row.f;
}

void reference_sparse_run(reference_sparse *r) {
    long double *t = (long double *)malloc((size_t)r->classes * sizeof *t), sum = 0;
    int64_t row, left = 0;
    if (!t)
        abort();
    for (row = 0; row < r->rows; row++)
        left += !left_out(r, row);
    r->divisor = reference_divergence_divisor(r->reduction, r->external_divisor, left, r->classes);
    r->bad_indices = 0;
    for (row = 0; row < r->rows; row++) {
        long double loss = run_row(r, row, t);
        sum += loss;
        if (r->loss_rows)
            r->loss_rows[row] = loss;
    }
    r->loss = sum / r->divisor;
    free(t);
}
