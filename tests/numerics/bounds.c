#include "bounds.h"

#include <math.h>

arithmetic arithmetic_of(gpuloss_dtype dtype) {
    arithmetic a;
    int is_double = dtype == GPULOSS_F64;
    a.u = ldexpl(1, is_double ? -53 : -24);
    /* float: ex2.approx has a relative error of 2^-22; its argument (x - m) log2(e) takes two roundings and the rounded
     * constant, 3u of the argument. If m log2(e) is rounded instead, once a row, the factor that corrects it is off by
     * a rounding and 2^-26. Multiplying by it rounds: 2^-23 at most. double: exp() is within one ulp, 2u; x - m is
     * rounded once. */
    a.exp_relative = is_double ? 2 * a.u : ldexpl(1, -22) + ldexpl(1, -23);
    a.exp_roundings = is_double ? 1 : 3;
    a.smallest = (long double)dtype_min_normal(dtype_of_results(dtype));
    a.largest = (long double)dtype_max(dtype_of_results(dtype));
    return a;
}

/* A thread adds at most 64 numbers before its sum meets another's. Rows for which that is too few are shared by at
 * least 256 threads, each of which adds up sums of 16 bytes of elements. The rest is a tree. A thread with whole rows
 * of few classes takes one logarithm of the product of their sums. n numbers take n - 1 additions, and the n-th u is
 * that of the product. */
sum_shape sum_shape_of(gpuloss_dtype dtype, int64_t classes) {
    int64_t vectors = (classes * (int64_t)dtype_size(dtype) + 15) / 16, share = (vectors + 255) / 256, reach;
    sum_shape shape;
    if (share < 64)
        share = classes < 64 ? classes : 64;
    shape.sequential = (long double)share;
    shape.tree = 0;
    for (reach = 1; reach < classes; reach *= 2)
        shape.tree += 1;
    shape.rescalings = shape.tree;
    return shape;
}

long double store_rounding(gpuloss_dtype dtype, long double value) {
    long double magnitude = fabsl(value), largest = (long double)dtype_max(dtype);
    if (!(magnitude < largest))
        magnitude = largest;
    return (long double)dtype_ulp(dtype, (double)magnitude) / 2;
}

/* With d_c = x_c - m, an exponential e_c = exp(d_c) has the relative error exp_roundings u |d_c| + exp_relative. The
 * sum S = sum e_c weighs these by p_c, which makes mean_distance of the first part; adding up costs u an addition.
 * Where m is found while summing, a partial sum is rescaled by exp(m_old - m_new). The distances of the rescalings of a
 * term and its own add up to d_c. Only exp_relative + u thus comes again, once a level of the tree. log S then has that
 * relative error of S as its absolute error, and one ulp (2u) of its own. */
long double log_sum_bound(gpuloss_dtype dtype, sum_shape shape, const reference_row *row) {
    arithmetic a = arithmetic_of(dtype);
    long double sum = a.exp_roundings * a.u * row->mean_distance + a.exp_relative +
                      (shape.sequential + shape.tree) * a.u + shape.rescalings * (a.exp_relative + a.u);
    return sum + 2 * a.u * row->log_sum;
}

/* s_i = grad_scale grad_loss grad_loss_rows / D: grad_scale and D rounded, two products, one division, one spare. */
row_bounds cross_entropy_row_bounds(gpuloss_dtype dtype, int64_t classes, const reference_row *row, long double y) {
    arithmetic a = arithmetic_of(dtype);
    row_bounds b;
    long double target_distance = row->max - y;
    b.log_sum = log_sum_bound(dtype, sum_shape_of(dtype, classes), row);
    /* lse = m + log S; loss = log S + (m - y): the difference is rounded, and the sum. */
    b.lse = b.log_sum + a.u * fabsl(row->max + row->log_sum) + a.smallest;
    b.loss = b.log_sum + a.u * target_distance + a.u * (row->log_sum + target_distance) + a.smallest;
    b.scale = 6 * a.u;
    return b;
}

/* The error of s (p - [c = y]) from the relative error of p. */
static long double gradient_bound(gpuloss_dtype dtype, long double p_relative, long double p, int is_target,
                                  long double s) {
    arithmetic a = arithmetic_of(dtype);
    long double difference = is_target ? p - 1 : p;
    long double error = p > 0 ? p * p_relative : 0;
    if (is_target) /* p - 1 is rounded in the arithmetic's type, before anything else */
        error += a.u * fabsl(difference);
    /* s and the product; an intermediate or a result below the smallest normal number may be flushed. */
    error += fabsl(difference) * (6 + 1) * a.u + a.smallest;
    return fabsl(s) * error + a.smallest + store_rounding(dtype, s * difference);
}

/* p = e_c / S, as a quotient or times a rounded reciprocal (3u), or as exp(d_c - log S), whose argument takes the error
 * of log S and exp_roundings u of its size. Both are within this bound. p = exp(x - lse) with a rounded lse is not, and
 * must not be used: it loses every digit for large logits. */
long double cross_entropy_gradient_bound(gpuloss_dtype dtype, const reference_row *row, const row_bounds *bounds,
                                         long double x, long double p, int is_target, long double s) {
    arithmetic a = arithmetic_of(dtype);
    long double distance = p > 0 ? row->max - x : 0;
    long double relative =
        a.exp_roundings * a.u * (distance + row->log_sum) + a.exp_relative + bounds->log_sum + 3 * a.u;
    return gradient_bound(dtype, relative, p, is_target, s);
}

/* The parts of a kl_div term: t and its relative error, and L, the logarithm of the ratio, and its error. */
typedef struct kl_parts {
    long double t, t_relative;
    long double ratio_log;   /* L = log t - log q */
    long double ratio_error; /* absolute error of L */
} kl_parts;

/* A probability has eps added, which costs the roundings of eps and of the sum: 2u relative, absolute in the logarithm.
 * Logarithms are within 4 ulp (8u), that of the ratio of two probabilities too, however close to 1 it is.
 * exp(log t): exp_relative and one rounding less than after a difference. */
static kl_parts kl_parts_of(const arithmetic *a, const reference_kl_div *r, double input, double target) {
    kl_parts parts;
    long double eps = (long double)r->eps, x = (long double)input, y = (long double)target;
    long double eps_error = r->eps > 0 ? 2 * a->u : 0;
    int input_is_log = r->input_kind == GPULOSS_LOG_PROBABILITIES;
    int target_is_log = r->target_kind == GPULOSS_LOG_PROBABILITIES;
    long double log_q = input_is_log ? x : logl(x + eps), log_t = target_is_log ? y : logl(y + eps);
    parts.t = target_is_log ? expl(y) : y;
    parts.t_relative = target_is_log ? a->exp_relative + a->exp_roundings * a->u * fabsl(y) : 0;
    parts.ratio_log = log_t - log_q;
    if (!input_is_log && !target_is_log) {
        parts.ratio_error = 2 * eps_error + 8 * a->u * fabsl(parts.ratio_log);
    } else { /* the logarithm of one side at most, then a rounded difference */
        parts.ratio_error = a->u * fabsl(parts.ratio_log);
        if (!input_is_log)
            parts.ratio_error += eps_error + 8 * a->u * fabsl(log_q);
        if (!target_is_log)
            parts.ratio_error += eps_error + 8 * a->u * fabsl(log_t);
    }
    return parts;
}

/* term = t L: the errors of both, the product, and the term may be flushed. The terms are stored in the result type. */
long double kl_div_term_bound(gpuloss_dtype dtype, const reference_kl_div *r, double input, double target,
                              long double value) {
    arithmetic a = arithmetic_of(dtype);
    kl_parts parts;
    if (value == 0 || !isfinite(value))
        return value == 0 ? a.smallest * 256 : 0;
    parts = kl_parts_of(&a, r, input, target);
    return parts.t * parts.ratio_error + fabsl(value) * (parts.t_relative + a.u) +
           a.smallest * (1 + fabsl(parts.ratio_log));
}

/* -t s, or -t / (q + eps) s: s with its 6u, the exponential, eps (2u), a quotient (or product with a rounded
 * reciprocal, 3u), the product, the store. */
long double kl_div_gradient_bound(gpuloss_dtype dtype, const reference_kl_div *r, double target, long double value) {
    arithmetic a = arithmetic_of(dtype);
    long double relative = (6 + 1) * a.u;
    if (value == 0 || !isfinite(value))
        return a.smallest;
    if (r->target_kind == GPULOSS_LOG_PROBABILITIES)
        relative += a.exp_relative + a.exp_roundings * a.u * fabsl((long double)target);
    if (r->input_kind == GPULOSS_PROBABILITIES)
        relative += 3 * a.u + (r->eps > 0 ? 2 * a.u : 0);
    return fabsl(value) * relative + 2 * a.smallest + store_rounding(dtype, value);
}

long double kl_div_row_bound(gpuloss_dtype dtype, int64_t classes, long double sum_of_bounds,
                             long double sum_of_magnitudes, long double value) {
    arithmetic a = arithmetic_of(dtype);
    sum_shape shape = sum_shape_of(dtype, classes);
    return sum_of_bounds + (shape.sequential + shape.tree) * a.u * sum_of_magnitudes + a.u * fabsl(value);
}

/* Sums in double take u a level; they run over all rows, in the worst order one after another. */
long double reduced_loss_bound(gpuloss_dtype dtype, int64_t rows, long double sum_of_bounds,
                               long double sum_of_magnitudes, long double divisor, long double value) {
    arithmetic a = arithmetic_of(dtype);
    long double in_double = ldexpl(1, -53) * ((long double)rows + 4);
    return (sum_of_bounds + in_double * sum_of_magnitudes) / divisor + a.u * fabsl(value) + a.smallest;
}

/* A chunk rounds sum / D and its sum with the number there to double, and then to the result type. None of the three is
 * larger than all magnitudes over D. */
long double added_loss_bound(gpuloss_dtype dtype, int64_t chunks, long double sum_of_magnitudes, long double divisor) {
    arithmetic a = arithmetic_of(dtype);
    return (long double)chunks * ((a.u + ldexpl(1, -52)) * sum_of_magnitudes / fabsl(divisor) + a.smallest);
}
