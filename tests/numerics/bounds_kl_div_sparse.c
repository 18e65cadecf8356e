#include "bounds_kl_div_sparse.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Sums and quotients that the kernels form in double, whatever the element type. */
static const long double double_u = 0x1p-53L;

static long double largest_of_two(long double a, long double b) {
    return a > b ? a : b;
}

/* A logit, or its distance from a maximum, is multiplied with a rounded 1 / temperature: 2u, and nothing for a power of
 * two. */
static long double cooling_of(const arithmetic *a, const reference_sparse *r) {
    int exponent;
    return r->temperature == 0 || frexp(r->temperature, &exponent) == 0.5 ? 0 : 2 * a->u;
}

static long double distance_of(const sparse_bounds *b, const reference_sparse *r, int64_t c) {
    return b->of_row.softmax.max - reference_sparse_logit(r, b->row, c);
}

static long double logit_error(const sparse_bounds *b, const reference_sparse *r, int64_t c) {
    long double z = reference_sparse_logit(r, b->row, c);
    if (!isfinite(z) || b->cooling == 0)
        return 0;
    return b->cooling * largest_of_two(fabsl(z), distance_of(b, r, c)) + b->a.smallest;
}

/* The relative error of exp(z - m), from the error of z and the errors of the exponential. */
static long double exponential_error(const sparse_bounds *b, const reference_sparse *r, int64_t c, long double m) {
    long double distance = m - reference_sparse_logit(r, b->row, c);
    return logit_error(b, r, c) + b->a.exp_roundings * b->a.u * distance + b->a.exp_relative;
}

/* The relative error of q = exp(z - m) times a rounded reciprocal of their sum: see cross_entropy_gradient_bound. */
static long double q_relative(const sparse_bounds *b, const reference_sparse *r, int64_t c) {
    return exponential_error(b, r, c, b->of_row.softmax.max) + b->shared + 3 * b->a.u;
}

/* Two vectors at a time enter the sum of a thread, which has four of them, or as many as 256 threads leave it. The
 * maximum may rise each time, and at each level of the tree over the threads. The sum of the k classes and that of the
 * others are rescaled once more to become one. */
static sum_shape shape_of(gpuloss_dtype dtype, int64_t classes) {
    int64_t vectors = (classes * (int64_t)dtype_size(dtype) + 15) / 16 + 1, share = (vectors + 255) / 256;
    sum_shape shape = sum_shape_of(dtype, classes);
    shape.rescalings = largest_of_two(shape.rescalings, (long double)((share < 4 ? 4 : share) + 1) / 2 + 8) + 1;
    return shape;
}

/* The errors of the logits come weighed by the shares of a sum. */
static void set_softmax(gpuloss_dtype dtype, const reference_sparse *r, sparse_bounds *b) {
    const reference_sparse_row *of_row = &b->of_row;
    int64_t c;
    b->cooling = cooling_of(&b->a, r);
    b->shared = log_sum_bound(dtype, shape_of(dtype, r->classes), &of_row->softmax);
    b->others = log_sum_bound(dtype, shape_of(dtype, r->classes), &of_row->others);
    for (c = 0; c < r->classes && b->cooling > 0; c++) {
        long double q = expl(reference_sparse_log_q(r, of_row, b->row, c)), part;
        if (q > 0)
            b->shared += q * logit_error(b, r, c);
        if (b->t[c] != REFERENCE_OTHER)
            continue;
        part = reference_sparse_part(r, of_row, b->row, c);
        if (part > 0)
            b->others += part * logit_error(b, r, c);
    }
}

/* Sums of few multiples of a small power of two have no roundings. */
static int adds_up_exactly(const reference_sparse *r, int64_t row) {
    int64_t j;
    for (j = 0; j < r->k; j++)
        if (fmod(r->values[row * r->k + j], 0x1p-40) != 0)
            return 0;
    return r->value_kind == GPULOSS_PROBABILITIES;
}

/* A value of a wider type is rounded once; the exponential of a logarithm is within 2 ulp (float) or one (double). Each
 * further value of the same class is added with a rounding. */
static void set_teacher(gpuloss_dtype value_dtype, const reference_sparse *r, long double *t_error, sparse_bounds *b) {
    int is_double = b->a.u < 0x1p-30L;
    long double narrowing = value_dtype == GPULOSS_F64 && !is_double ? b->a.u : 0, all = 0;
    int64_t j;
    memset(t_error, 0, (size_t)r->classes * sizeof *t_error);
    for (j = 0; j < r->k; j++) {
        int64_t at = b->row * r->k + j, c = r->indices[at];
        long double value = reference_sparse_value(r, b->row, j), relative = narrowing, error;
        if (r->value_kind == GPULOSS_LOG_PROBABILITIES)
            relative = narrowing * fabsl((long double)r->values[at]) + (is_double ? 2 : 4) * b->a.u;
        error = value > 0 ? value * relative : 0;
        if (value != b->t[c])
            error += b->a.u * b->t[c];
        t_error[c] += error;
        all += error + (relative > 0 ? b->a.smallest : 0);
    }
    b->t_error = t_error;
    b->narrowing = narrowing;
    b->sum = all + (adds_up_exactly(r, b->row) ? 0 : (long double)(r->k + 3) * double_u * b->of_row.sum);
    if (r->residual == GPULOSS_RENORMALIZE && b->of_row.sum > 0) /* the sum is rounded, and the quotient */
        b->norm = b->sum / b->of_row.sum + 2 * b->a.u;
}

/* The error of log q in the reference, and of d. */
static long double reference_error(const sparse_bounds *b, const reference_pair *y) {
    long double row_max = b->of_row.softmax.max, others = isinf(b->of_row.others.max) ? 0 : b->of_row.others.max;
    long double logs = isfinite(y->log_p) ? fabsl(y->log_p) + fabsl(y->log_q) : fabsl(y->log_q);
    return LDBL_EPSILON * (4 + logs + fabsl(row_max) + fabsl(others));
}

/* Sets the error of d, from the errors of p and of log q. A logarithm is within an ulp (2u), and the difference is
 * rounded. A logarithm that was given is narrowed, also where p is too small for a number. */
static void set_ratio_error(const sparse_bounds *b, const reference_pair *y, long double of_log_q, pair_errors *e) {
    if (!isfinite(y->d))
        return;
    e->reference = reference_error(b, y);
    e->own = (y->p > 0 ? e->p / y->p : b->narrowing * fabsl(y->log_p)) + 2 * b->a.u * fabsl(y->log_p) + of_log_q +
             b->a.u * fabsl(y->d) + e->reference;
    e->shared = b->shared;
}

/* Each factor may be flushed if it is below the smallest normal number. Jensen-Shannon in the reference is a difference
 * of two products, each of the size of b c |p - q|. */
static void complete_errors(const sparse_bounds *b, const reference_sparse *r, const reference_pair *y,
                            pair_errors *e) {
    long double flushed = b->a.smallest * (2 + (isfinite(y->d) ? fabsl(y->d) : 0));
    pair_errors_of(&b->setting, y, e);
    e->summed += flushed;
    e->of_log_q += flushed + e->reference * y->q;
    if (b->setting.divergence == GPULOSS_JENSEN_SHANNON)
        e->summed += 4 * LDBL_EPSILON * (long double)r->beta * (1 - (long double)r->beta) * fabsl(y->p - y->q);
}

/* log q = (z - m) - log_sum: two rounded differences. */
static pair_errors entry_errors(const sparse_bounds *b, const reference_sparse *r, int64_t c, const reference_pair *y) {
    pair_errors e;
    memset(&e, 0, sizeof e);
    if (isnan(y->p) || isnan(y->q))
        return e;
    if (y->p > 0)
        e.p = y->p * (b->t_error[c] / b->t[c] + b->norm);
    if (y->q > 0)
        e.q = y->q * (q_relative(b, r, c) + reference_error(b, y)) + b->a.smallest;
    if (isfinite(y->d))
        set_ratio_error(b, y, logit_error(b, r, c) + b->a.u * (distance_of(b, r, c) + fabsl(y->log_q)), &e);
    if (y->p > 0 && (e.p > 0 || y->p < b->a.smallest)) /* it may be flushed, which is no error of its logarithm */
        e.p += b->a.smallest;
    complete_errors(b, r, y, &e);
    return e;
}

/* The maximum of all classes less that of the other classes, and log(S_o / S) of the sums. */
typedef struct gap {
    long double distance, logs;
} gap;
static gap gap_of(const sparse_bounds *b) {
    gap g;
    g.distance = b->of_row.softmax.max - b->of_row.others.max;
    g.logs = b->of_row.others.log_sum - b->of_row.softmax.log_sum;
    return g;
}

/* R = exp(m_o - m) S_o / S: the errors of both sums and of an exponential; a reciprocal and two products. */
static long double rest_q_error(const sparse_bounds *b) {
    long double q = b->of_row.rest.q;
    if (q == 0)
        return b->of_row.others.max > -(long double)INFINITY ? b->a.smallest : 0;
    return q * ((b->a.exp_roundings * b->a.u + b->cooling) * gap_of(b).distance + b->a.exp_relative + b->others +
                b->shared + 4 * b->a.u + reference_error(b, &b->of_row.rest)) +
           b->a.smallest;
}

/* The errors of the rest's pair, where p is off by dp. log R = (m_o - m) + log(S_o / S): a difference, a quotient, its
 * logarithm within an ulp, and a sum. */
static pair_errors rest_errors_at(const sparse_bounds *b, const reference_sparse *r, const reference_pair *y,
                                  long double dp) {
    gap g = gap_of(b);
    pair_errors e;
    memset(&e, 0, sizeof e);
    e.p = dp;
    e.q = rest_q_error(b);
    set_ratio_error(b, y,
                    (b->a.u + b->cooling) * g.distance + b->others + b->a.u * (1 + 2 * fabsl(g.logs)) +
                        b->a.u * fabsl(y->log_q),
                    &e);
    complete_errors(b, r, y, &e);
    return e;
}

/* A first-order bound is not enough where 1 - P may be anything next to 0. The summed term is convex in p. Its error is
 * therefore largest at an end of the range of p, or 2 dp at p = q. Its derivative is monotone. */
static pair_errors uncertain_errors(const sparse_bounds *b, const reference_sparse *r, long double low,
                                    long double high) {
    const reference_pair *at = &b->of_row.rest;
    pair_errors worst;
    int end;
    memset(&worst, 0, sizeof worst);
    for (end = 0; end < 2; end++) {
        reference_pair y = *at;
        pair_errors e;
        y.p = end ? high : low;
        y.log_p = logl(y.p);
        y.d = y.log_p - y.log_q;
        reference_pair_terms(r->divergence, r->beta, 0, 0, &y);
        e = rest_errors_at(b, r, &y, b->a.u * y.p);
        e.summed += fabsl(e.slope) * e.shared + 2 * (high - low) +
                    fabsl(reference_sparse_term(r, &y) - reference_sparse_term(r, at));
        e.of_log_q += fabsl(y.of_log_q - at->of_log_q);
        worst.q = e.q;
        worst.summed = largest_of_two(worst.summed, isnan(e.summed) ? (long double)INFINITY : e.summed);
        worst.of_log_q = largest_of_two(worst.of_log_q, isnan(e.of_log_q) ? (long double)INFINITY : e.of_log_q);
    }
    return worst;
}

/* 1 - P has the error of P and is rounded; without a bucket it is exactly 0. */
static pair_errors rest_errors(const sparse_bounds *b, const reference_sparse *r) {
    const reference_pair *y = &b->of_row.rest;
    long double over = 1 - b->of_row.sum, low = over - b->sum, high = over + b->sum;
    pair_errors none;
    memset(&none, 0, sizeof none);
    if (isnan(y->p) || isnan(y->q))
        return none;
    if (r->residual != GPULOSS_BUCKET || high <= 0 || (b->sum == 0 && over == 0))
        return rest_errors_at(b, r, y, 0);
    if (low < over / 2)
        return uncertain_errors(b, r, low > 0 ? low : 0, high);
    return rest_errors_at(b, r, y, b->sum + b->a.u * y->p);
}

/* An error times a factor: where that is 0, nothing is left of an error that has no bound. */
static long double scaled(long double factor, long double error) {
    return factor > 0 ? factor * error : 0;
}

/* The kernels take surpluses, and the mixture in whichever form. */
static void set_setting(gpuloss_dtype dtype, const reference_sparse *r, sparse_bounds *b) {
    b->setting.dtype = dtype;
    b->setting.a = b->a;
    b->setting.divergence = r->divergence;
    b->setting.beta = r->beta;
    b->setting.is_surplus = b->setting.by_ratio = b->setting.any_form = true;
}

/* For a KL, the sums of the sides are subtracted from the surpluses. P is rounded; it may be found on the other side of
 * 1. */
static long double total_error(const sparse_bounds *b, const reference_sparse *r) {
    bool is_kl = reference_sparse_is_forward(r) || reference_sparse_is_reverse(r);
    bool is_sum = r->residual == GPULOSS_DROP || (r->residual == GPULOSS_BUCKET && b->of_row.sum + b->sum > 1);
    return is_kl && is_sum ? b->sum + b->a.u * b->of_row.sum : 0;
}

/* The sums of a row, like row_sums of bounds_divergence.c. */
typedef struct row_sums {
    long double f, slope, magnitude, u, u_magnitude;
} row_sums;

static void add_pair(const reference_sparse *r, const reference_pair *y, const pair_errors *e, row_sums *s) {
    s->f += e->summed;
    s->slope += e->slope;
    s->magnitude += fabsl(reference_sparse_term(r, y));
    s->u += e->of_log_q;
    s->u_magnitude += fabsl(y->of_log_q);
}

void sparse_bounds_of(gpuloss_dtype dtype, gpuloss_dtype value_dtype, const reference_sparse *r, int64_t row,
                      long double *t, long double *t_error, sparse_bounds *b) {
    long double factor = fabsl(reference_sparse_factor(r, row)), error;
    row_sums s = {0, 0, 0, 0, 0};
    int64_t c;
    memset(b, 0, sizeof *b);
    b->a = arithmetic_of(dtype);
    b->row = row;
    b->t = t;
    b->of_row = reference_sparse_row_of(r, row, t);
    if (b->of_row.out || b->of_row.bad > 0)
        return;
    set_setting(dtype, r, b);
    set_softmax(dtype, r, b);
    set_teacher(value_dtype, r, t_error, b);
    b->rest = rest_errors(b, r);
    add_pair(r, &b->of_row.rest, &b->rest, &s);
    for (c = 0; c < r->classes; c++)
        if (t[c] != REFERENCE_OTHER) {
            reference_pair y = reference_sparse_pair(r, &b->of_row, row, c, t[c]);
            pair_errors e = entry_errors(b, r, c, &y);
            add_pair(r, &y, &e, &s);
        }
    /* Sums in double, the factor and one rounding at the end. */
    error = s.f + fabsl(s.slope) * b->shared + total_error(b, r) +
            (long double)(r->k + 8) * double_u * (s.magnitude + b->of_row.total + 1);
    b->loss = scaled(factor, error + (b->a.u + 4 * double_u) * fabsl(b->of_row.f)) + b->a.smallest;
    b->sum_of_log_q = s.u + (long double)(r->k + 3) * double_u * s.u_magnitude + b->a.u * fabsl(b->of_row.sum_of_log_q);
}

/* The error of u - q sum u: a product and a difference. A class of q = 0 has u alone. */
static long double derivative_error(const sparse_bounds *b, const reference_pair *y, const pair_errors *e) {
    long double sum = b->of_row.sum_of_log_q, u = b->a.u;
    long double error = e->of_log_q + u * fabsl(y->of_log_q) + 4 * b->a.smallest;
    if (y->q > 0)
        error += (e->q + 2 * u * y->q) * fabsl(sum) + y->q * b->sum_of_log_q + u * fabsl(y->of_log_q - y->q * sum);
    return error;
}

/* The probability of all others times the class's part of it: an exponential over their sum. */
static long double part_error(const sparse_bounds *b, const reference_sparse *r, int64_t c) {
    const reference_pair *y = &b->of_row.rest;
    long double part = reference_sparse_part(r, &b->of_row, b->row, c), relative, derivative;
    if (!(part > 0))
        return b->a.smallest;
    relative = exponential_error(b, r, c, b->of_row.others.max) + b->others + 5 * b->a.u;
    derivative = fabsl(y->of_log_q - (y->q > 0 ? y->q * b->of_row.sum_of_log_q : 0));
    return part * (derivative_error(b, y, &b->rest) + relative * derivative) + b->a.smallest * (1 + derivative);
}

/* s is formed in double, from at most twelve roundings, and rounded once; the product is rounded. */
long double sparse_gradient_bound(gpuloss_dtype dtype, const sparse_bounds *b, const reference_sparse *r, int64_t c,
                                  long double value) {
    long double scale = fabsl(reference_sparse_scale(r, b->row)), error;
    if (b->t[c] == REFERENCE_OTHER) {
        error = part_error(b, r, c);
    } else {
        reference_pair y = reference_sparse_pair(r, &b->of_row, b->row, c, b->t[c]);
        pair_errors e = entry_errors(b, r, c, &y);
        error = derivative_error(b, &y, &e);
    }
    return scaled(scale, error) + fabsl(value) * (2 * b->a.u + 12 * double_u) + b->a.smallest +
           store_rounding(dtype, value);
}
