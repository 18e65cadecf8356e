#include "bounds_kl_div_sparse.h"

#include <math.h>
#include <string.h>

/* Sums and quotients that the kernels form in double, whatever the element type. */
static const long double double_u = 0x1p-53L;

static long double largest_of_two(long double a, long double b) {
    return a > b ? a : b;
}

/* A logit is multiplied with a rounded 1 / temperature: 2u, and nothing for a power of two. */
static long double cooling_of(const arithmetic *a, const reference_sparse *r) {
    int exponent;
    return r->temperature == 0 || frexp(r->temperature, &exponent) == 0.5 ? 0 : 2 * a->u;
}

static long double logit_error(const sparse_bounds *b, const reference_sparse *r, int64_t c) {
    long double z = reference_sparse_logit(r, b->row, c);
    return isfinite(z) && b->cooling > 0 ? b->cooling * fabsl(z) + b->a.smallest : 0;
}

static long double distance_of(const sparse_bounds *b, const reference_sparse *r, int64_t c) {
    return b->of_row.softmax.max - reference_sparse_logit(r, b->row, c);
}

/* Of exp(z - m), relative, from the error of z and those of the exponential. */
static long double exponential_error(const sparse_bounds *b, const reference_sparse *r, int64_t c) {
    return logit_error(b, r, c) + b->a.exp_roundings * b->a.u * distance_of(b, r, c) + b->a.exp_relative;
}

/* Of q = exp(z - m) times a rounded reciprocal of their sum, relative: see cross_entropy_gradient_bound. */
static long double q_relative(const sparse_bounds *b, const reference_sparse *r, int64_t c) {
    return exponential_error(b, r, c) + b->shift + b->log_sum + 3 * b->a.u;
}

/* log q = (z - m) - log_sum: two rounded differences. */
static long double log_q_error(const sparse_bounds *b, const reference_sparse *r, int64_t c, long double log_q) {
    return logit_error(b, r, c) + b->shift + b->log_sum + b->a.u * (distance_of(b, r, c) + fabsl(log_q));
}

/* Two vectors at a time enter the sum of a thread, which has four of them, or as many as 256 threads leave it: each time
 * and at each level of the tree over the threads the maximum may rise. */
static sum_shape shape_of(gpuloss_dtype dtype, int64_t classes) {
    int64_t vectors = (classes * (int64_t)dtype_size(dtype) + 15) / 16 + 1, share = (vectors + 255) / 256;
    sum_shape shape = sum_shape_of(dtype, classes);
    shape.rescalings = (long double)((share < 4 ? 4 : share) + 1) / 2 + 8;
    return shape;
}

static void set_softmax(gpuloss_dtype dtype, const reference_sparse *r, sparse_bounds *b) {
    int64_t c;
    b->cooling = cooling_of(&b->a, r);
    b->log_sum = log_sum_bound(dtype, shape_of(dtype, r->classes), &b->of_row.softmax);
    for (c = 0; c < r->classes && b->cooling > 0; c++) {
        long double q = expl(reference_sparse_log_q(r, &b->of_row, b->row, c));
        if (q > 0)
            b->shift += q * logit_error(b, r, c);
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
        error = value > 0 ? value * relative + (relative > 0 ? b->a.smallest : 0) : 0;
        if (value != b->t[c])
            error += b->a.u * b->t[c];
        t_error[c] += error;
        all += error;
    }
    b->t_error = t_error;
    b->sum = all + (adds_up_exactly(r, b->row) ? 0 : (long double)(r->k + 3) * double_u * b->of_row.sum);
    if (r->residual == GPULOSS_RENORMALIZE) /* the sum is rounded, and the quotient */
        b->norm = b->sum / b->of_row.sum + 2 * b->a.u;
    if (r->residual == GPULOSS_DROP || (r->residual == GPULOSS_BUCKET && b->of_row.sum + b->sum > 1))
        b->own = b->others = b->sum + b->a.u * b->of_row.sum;
}

/* x - 1 + exp(-x). */
static long double excess(long double x) {
    return x + expm1l(-x);
}

/* A class of the teacher, and what it adds to f as the kernels form it. */
typedef struct term {
    long double value, error;
} term;

/* t d + q - t from 1 on: the difference d - 1, the product and the sum are rounded. Below, t (d - 1 + exp(-d)) by a
 * series, whose Horner scheme, factors and what it leaves out make 8u; where d is as small as its own error, the square
 * of that counts too. */
static term surplus(const sparse_bounds *b, long double p, long double dp, long double q, long double dq, long double d,
                    long double dd) {
    long double u = b->a.u, direct, series;
    term y;
    y.value = p * (d - 1) + q;
    direct = dp * fabsl(d - 1) + p * dd + 2 * u * p * fabsl(d - 1) + u * fabsl(y.value) + dq;
    series = (dp + 8 * u * p) * excess(d) + p * (fabsl(expm1l(-d)) * dd + 1.5L * dd * dd);
    y.error = fabsl(d) + dd < 1 ? series : fabsl(d) - dd >= 1 ? direct : largest_of_two(direct, series);
    return y;
}

/* p = t / norm; the logarithm is within an ulp (2u), and d = log p - log q and p d are rounded. Where the values add up
 * to more than 1, what the surplus adds has to come off again, so that neither form has fewer errors. */
static term term_of(const sparse_bounds *b, const reference_sparse *r, int64_t c) {
    long double u = b->a.u, norm = r->residual == GPULOSS_RENORMALIZE ? b->of_row.sum : 1, p = b->t[c] / norm;
    long double log_q = reference_sparse_log_q(r, &b->of_row, b->row, c), q = expl(log_q), relative, d, dd, dq;
    term y = {0, 0}, other;
    dq = q > 0 ? q * q_relative(b, r, c) + b->a.smallest : 0;
    if (p == 0 || q == 0) {
        y.value = r->residual == GPULOSS_BUCKET ? q : 0;
        y.error = r->residual == GPULOSS_BUCKET ? dq : 0;
        return y;
    }
    relative = b->t_error[c] / b->t[c] + b->norm;
    d = logl(p) - log_q;
    dd = relative + 2 * u * fabsl(logl(p)) + log_q_error(b, r, c, log_q) + u * fabsl(d);
    y.value = p * d;
    y.error = p * relative * fabsl(d) + p * dd + u * fabsl(y.value);
    if (r->residual == GPULOSS_BUCKET) {
        other = surplus(b, p, p * relative, q, dq, d, dd);
        y.error = b->of_row.sum > 1 ? largest_of_two(other.error, y.error) : other.error;
        y.value = largest_of_two(fabsl(other.value), fabsl(y.value));
    }
    y.error += b->a.smallest * (2 + fabsl(d));
    return y;
}

/* Of 1 - Q, which is the difference of two sums in double of the same exponentials, over one of them: the errors of the
 * exponentials count where they are left over, and in the whole sum; those of adding up are of the size of the whole. */
static long double left_error(gpuloss_dtype dtype, const sparse_bounds *b, const reference_sparse *r) {
    sum_shape shape = shape_of(dtype, r->classes);
    long double all = 0, others = 0, additions = shape.sequential + 2 * shape.tree + (long double)r->k + 4;
    int64_t c;
    for (c = 0; c < r->classes; c++) {
        long double q = expl(reference_sparse_log_q(r, &b->of_row, b->row, c)), error;
        if (q == 0)
            continue;
        error = q * exponential_error(b, r, c) + b->a.smallest;
        all += error;
        if (b->t[c] == REFERENCE_OTHER)
            others += error;
    }
    return others + b->of_row.left * all + additions * double_u;
}

/* The bucket's surplus, which is convex in both: within a box it is largest at a corner, and no further below. */
static long double bucket_of(long double rest, long double left) {
    return rest > 0 ? rest * (logl(rest / left) - 1) + left : left;
}

static long double bucket_error(const sparse_bounds *b, long double left_off) {
    long double rest = b->of_row.rest, left = b->of_row.left, value = bucket_of(rest, left), worst = 0;
    long double over = 1 - b->of_row.sum; /* negative where nothing is left over */
    int corner;
    for (corner = 0; corner < 4; corner++) {
        long double at_rest = over + (corner & 1 ? b->sum : -b->sum),
                    at_left = left + (corner & 2 ? left_off : -left_off);
        at_rest = at_rest > 0 ? at_rest : 0;
        at_left = at_left > 0 ? at_left : 0;
        worst = largest_of_two(worst, bucket_of(at_rest, at_left) - value);
    }
    /* In double: a logarithm within 8u, and four operations. */
    return worst + double_u * (rest > 0 ? rest * (8 * fabsl(logl(rest / left)) + 4) : 0) + 4 * double_u * left;
}

/* 1 - rest / left is rounded. A rest that may be left over where nothing is has no bound. */
static void set_others(sparse_bounds *b, long double left_off) {
    long double rest = b->of_row.rest, left = b->of_row.left, most;
    if (1 - b->of_row.sum + b->sum <= 0)
        return;
    most = left > left_off ? (rest + b->sum) / (left - left_off) : (long double)INFINITY;
    b->others += most - rest / left + (double_u * 2 + b->a.u) * (1 + rest / left);
}

/* An error times a factor: where that is 0, nothing is left of an error that has no bound. */
static long double scaled(long double factor, long double error) {
    return factor > 0 ? factor * error : 0;
}

void sparse_bounds_of(gpuloss_dtype dtype, gpuloss_dtype value_dtype, const reference_sparse *r, int64_t row,
                      long double *t, long double *t_error, sparse_bounds *b) {
    long double errors = 0, magnitudes = 0, off, factor = fabsl(reference_sparse_factor(r, row));
    int64_t c;
    memset(b, 0, sizeof *b);
    b->a = arithmetic_of(dtype);
    b->row = row;
    b->t = t;
    b->of_row = reference_sparse_row_of(r, row, t);
    if (b->of_row.out || b->of_row.bad > 0)
        return;
    set_softmax(dtype, r, b);
    set_teacher(value_dtype, r, t_error, b);
    for (c = 0; c < r->classes; c++)
        if (t[c] != REFERENCE_OTHER) {
            term y = term_of(b, r, c);
            errors += y.error;
            magnitudes += fabsl(y.value);
        }
    if (r->residual == GPULOSS_BUCKET) {
        off = left_error(dtype, b, r);
        set_others(b, off);
        errors += bucket_error(b, off);
        magnitudes += fabsl(bucket_of(b->of_row.rest, b->of_row.left)) + b->of_row.sum;
        if (fabsl(1 - b->of_row.sum) <= b->sum) /* it may be found to be above 1 */
            errors += b->sum;
    }
    /* Sums in double, the factor and one rounding at the end. */
    errors += (long double)(r->k + 8) * double_u * magnitudes;
    b->loss = scaled(factor, errors + (b->a.u + 4 * double_u) * fabsl(b->of_row.f)) + b->a.smallest;
}

/* s (q own - t / norm), or s q others: products, a difference and a quotient. s is formed in double, from at most twelve
 * roundings, and rounded once. */
long double sparse_gradient_bound(gpuloss_dtype dtype, const sparse_bounds *b, const reference_sparse *r, int64_t c,
                                  long double value) {
    long double u = b->a.u, scale = fabsl(reference_sparse_scale(r, b->row)), error, factor, off, tiny;
    long double q = expl(reference_sparse_log_q(r, &b->of_row, b->row, c)), norm, p = 0, difference;
    int is_other = b->t[c] == REFERENCE_OTHER;
    norm = r->residual == GPULOSS_RENORMALIZE ? b->of_row.sum : 1;
    factor = b->of_row.sum / norm + b->of_row.rest;
    if (is_other && b->of_row.rest > 0)
        factor = fabsl(factor - b->of_row.rest / b->of_row.left);
    off = is_other ? b->others : b->own;
    tiny = b->a.smallest * (1 + factor);
    error = q > 0 ? q * factor * (q_relative(b, r, c) + 2 * u) + q * off + tiny : 0;
    difference = q * factor;
    if (!is_other) {
        p = b->t[c] / norm;
        difference = fabsl(difference - p);
        error += p > 0 ? b->t_error[c] / norm + p * b->norm : 0;
    }
    error += u * difference + tiny;
    return scaled(scale, error) + fabsl(value) * (2 * u + 12 * double_u) + b->a.smallest + store_rounding(dtype, value);
}
