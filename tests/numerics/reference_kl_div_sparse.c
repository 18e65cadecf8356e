#include "reference_kl_div_sparse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* The logarithm of the sum of a row's probabilities of a class, which is a number where the sum is too small for one. */
static long double log_of_class(const reference_sparse *r, int64_t row, int64_t c) {
    const int64_t *indices = r->indices + row * r->k;
    const double *logs = r->values + row * r->k;
    long double largest = -(long double)INFINITY, sum = 0;
    int64_t j;
    for (j = 0; j < r->k; j++)
        if (indices[j] == c)
            largest = fmaxl(largest, (long double)logs[j]);
    for (j = 0; j < r->k; j++)
        if (indices[j] == c)
            sum += isinf(logs[j]) && logs[j] < 0 ? 0 : expl((long double)logs[j] - largest);
    return largest + logl(sum);
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

bool reference_sparse_is_forward(const reference_sparse *r) {
    return reference_is_forward_kl(r->divergence, r->beta);
}

bool reference_sparse_is_reverse(const reference_sparse *r) {
    return reference_is_reverse_kl(r->divergence, r->beta);
}

/* S(a, b) = a log(a / b) + b - a stands for the term of a KL: the sums of a and of b are known. It has the digits of a
 * ratio close to 1, whose logarithm is d. */
static long double surplus(long double a, long double b, long double d) {
    if (a == 0)
        return b;
    return fabsl(d) < 1 ? a * (d + expm1l(-d)) : a * (d - 1) + b;
}

long double reference_sparse_term(const reference_sparse *r, const reference_pair *y) {
    if (isnan(y->f))
        return y->f;
    if (reference_sparse_is_forward(r))
        return surplus(y->p, y->q, y->d);
    return reference_sparse_is_reverse(r) ? surplus(y->q, y->p, -y->d) : y->f;
}

/* The part that the sum of surpluses leaves out, where the student's probabilities add up to 1. */
static long double missing(const reference_sparse *r, long double total) {
    return reference_sparse_is_forward(r) ? total - 1 : reference_sparse_is_reverse(r) ? 1 - total : 0;
}

reference_pair reference_sparse_pair(const reference_sparse *r, const reference_sparse_row *of_row, int64_t row,
                                     int64_t c, long double t) {
    reference_pair y = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    y.log_q = reference_sparse_log_q(r, of_row, row, c);
    y.q = expl(y.log_q);
    y.p = r->residual != GPULOSS_RENORMALIZE ? t : of_row->sum == 0 ? 0 : t / of_row->sum;
    y.log_p = logl(y.p);
    if (r->value_kind == GPULOSS_LOG_PROBABILITIES && r->residual != GPULOSS_RENORMALIZE && t != REFERENCE_OTHER)
        y.log_p = log_of_class(r, row, c);
    y.d = y.log_p - y.log_q;
    reference_pair_terms(r->divergence, r->beta, 0, 0, &y);
    return y;
}

/* Their softmax, from their own maximum. The sum of their probabilities may be below the smallest exponential. */
static void set_others(const reference_sparse *r, int64_t row, reference_sparse_row *of_row, const long double *t) {
    reference_row *o = &of_row->others;
    long double sum = 0;
    int64_t c;
    o->max = -(long double)INFINITY;
    for (c = 0; c < r->classes; c++)
        if (t[c] == REFERENCE_OTHER)
            o->max = fmaxl(o->max, reference_sparse_logit(r, row, c));
    for (c = 0; c < r->classes && !isinf(o->max); c++) {
        long double distance = o->max - reference_sparse_logit(r, row, c), e = expl(-distance);
        if (t[c] != REFERENCE_OTHER)
            continue;
        sum += e;
        o->mean_distance += isinf(distance) ? 0 : e * distance;
    }
    if (sum > 0) {
        o->mean_distance /= sum;
        o->log_sum = logl(sum);
    }
}

static void set_rest(const reference_sparse *r, reference_sparse_row *of_row) {
    reference_pair *y = &of_row->rest;
    if (r->residual == GPULOSS_BUCKET)
        y->p = of_row->sum > 1 ? 0 : 1 - of_row->sum;
    y->log_q = of_row->others.max - of_row->softmax.max + (of_row->others.log_sum - of_row->softmax.log_sum);
    y->q = expl(y->log_q);
    y->log_p = logl(y->p);
    y->d = y->log_p - y->log_q;
    reference_pair_terms(r->divergence, r->beta, 0, 0, y);
    of_row->total = of_row->sum;
    if (r->residual == GPULOSS_RENORMALIZE)
        of_row->total = of_row->sum == 0 ? 0 : of_row->sum / of_row->sum;
    if (r->residual == GPULOSS_BUCKET && of_row->sum <= 1)
        of_row->total = 1;
}

static void add_terms(const reference_sparse *r, int64_t row, reference_sparse_row *of_row, const long double *t) {
    int64_t c;
    of_row->sum_of_log_q = of_row->rest.of_log_q;
    of_row->f = reference_sparse_term(r, &of_row->rest);
    for (c = 0; c < r->classes; c++)
        if (t[c] != REFERENCE_OTHER) {
            reference_pair y = reference_sparse_pair(r, of_row, row, c, t[c]);
            of_row->f += reference_sparse_term(r, &y);
            of_row->sum_of_log_q += y.of_log_q;
        }
    of_row->f += missing(r, of_row->total);
    if (of_row->total == 0 && reference_sparse_is_forward(r) && !isnan(of_row->f))
        of_row->f = 0;
}

reference_sparse_row reference_sparse_row_of(const reference_sparse *r, int64_t row, long double *t) {
    reference_sparse_row of_row;
    memset(&of_row, 0, sizeof of_row);
    of_row.out = left_out(r, row);
    if (of_row.out)
        return of_row;
    read_teacher(r, row, &of_row, t);
    if (of_row.bad > 0)
        return of_row;
    of_row.softmax = reference_cooled_softmax(r->logits + row * r->classes, r->classes, r->temperature, NULL);
    set_others(r, row, &of_row, t);
    set_rest(r, &of_row);
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

long double reference_sparse_part(const reference_sparse *r, const reference_sparse_row *of_row, int64_t row,
                                  int64_t c) {
    long double z = reference_sparse_logit(r, row, c);
    return isinf(z) && z < 0 ? 0 : expl(z - of_row->others.max - of_row->others.log_sum);
}

/* u - q sum u of a class of the teacher. The others share theirs in proportion to q; a class of q = 0 has none of it,
 * even where it is infinite. */
static void run_gradient(reference_sparse *r, int64_t row, const reference_sparse_row *of_row, const long double *t) {
    long double scale = reference_sparse_scale(r, row);
    const reference_pair *rest = &of_row->rest;
    int64_t c;
    for (c = 0; c < r->classes; c++) {
        reference_pair y = reference_sparse_pair(r, of_row, row, c, t[c]);
        long double part, derivative;
        if (t[c] != REFERENCE_OTHER) {
            derivative = y.q == 0 ? y.of_log_q : y.of_log_q - y.q * of_row->sum_of_log_q;
        } else {
            part = reference_sparse_part(r, of_row, row, c);
            derivative = rest->of_log_q - (rest->q == 0 ? 0 : rest->q * of_row->sum_of_log_q);
            derivative = y.q == 0 && part == 0 ? 0 : part * derivative;
        }
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
