#include "bounds_options.h"

#include <math.h>
#include <string.h>

/* Roundings of the weight of a class other than the target, each at most u relative to it. They are: a t of a wider
 * type, (1-e) or e/C as a constant, the product and the sum of (1-e) t + e/C, and the product with w. */
enum { SPREAD_ROUNDINGS = 5 };

/* Roundings of s_i r_i: six of s_i, and the product with r_i; then the product with the entry. */
static long double scale_roundings(const reference_cross_entropy *r) {
    return r->row_weights ? 8 : 7;
}

static int is_power_of_two(double x) {
    int exponent;
    return fabs(frexp(x, &exponent)) == 0.5;
}

static long double scale_of(const reference_cross_entropy *r) {
    return r->logit_scale != 0 ? (long double)r->logit_scale : 1;
}

/* Relative error of a logit times logit_scale: that of the constant and that of the product. */
static long double scaled_relative(const arithmetic *a, const reference_cross_entropy *r) {
    return r->logit_scale == 0 || is_power_of_two(r->logit_scale) ? 0 : 2 * a->u;
}

/* x' = cap tanh(z), z = x / cap: cap or its reciprocal is a rounded constant, 2u with the operation. tanh multiplies a
 * relative error of z by z / cosh(z)^2. Its own error is 2 ulp (4u). cap and the product add another 2u. */
static long double logit_error(const arithmetic *a, const reference_cross_entropy *r, double given) {
    long double x = (long double)given * scale_of(r), cap = (long double)r->softcap, relative = scaled_relative(a, r);
    long double z, cosh_z, from_z;
    if (!isfinite(x) || (relative == 0 && !(cap > 0)))
        return 0;
    if (!(cap > 0))
        return relative * fabsl(x) + a->smallest;
    z = fabsl(x / cap);
    cosh_z = coshl(z);
    from_z = isinf(cosh_z) ? 0 : z / cosh_z / cosh_z * (relative + 2 * a->u);
    return cap * (from_z + tanhl(z) * (4 + 2) * a->u) + a->smallest * (1 + cap);
}

long double option_logit_error(gpuloss_dtype dtype, const reference_cross_entropy *r, double given) {
    arithmetic a = arithmetic_of(dtype);
    return logit_error(&a, r, given);
}

/* 1 / cosh(z)^2 is formed as 4e / (1 + e)^2 with e = exp(-2|z|): the relative error of e enters whole at most. It has
 * the errors of the function, of its argument (twice that of z) and of rounding it. The sum, the square and the
 * division cost another 6u. The product with logit_scale, itself rounded, and the product with the rest: 3u. */
static long double slope_relative(const arithmetic *a, const reference_cross_entropy *r, double given) {
    long double z, relative = scaled_relative(a, r) > 0 ? 2 * a->u : 0;
    if (!(r->softcap > 0))
        return relative;
    z = fabsl((long double)given * scale_of(r) / (long double)r->softcap);
    if (!(z < 20000)) /* e and all that follows is 0 in every type */
        return 0;
    return a->exp_relative + 2 * z * (a->exp_roundings * a->u + scaled_relative(a, r) + 2 * a->u) + (6 + 3) * a->u;
}

static int has_option(const reference_cross_entropy *r) {
    return r->target_probabilities || r->class_weights || r->row_weights || r->label_smoothing > 0 ||
           r->lse_square_scale > 0 || r->logit_scale != 0 || r->softcap > 0;
}

static long double weight_of(const reference_cross_entropy *r, int64_t c) {
    return r->class_weights ? (long double)r->class_weights[c] : 1;
}

/* Magnitude of the weight of a class without the target's part: |w_c| e/C, or |w_c| ((1-e)|t| + e/C). */
static long double spread_weight(const reference_cross_entropy *r, int64_t row, int64_t c) {
    long double e = (long double)r->label_smoothing, weight = e > 0 ? e / (long double)r->classes : 0;
    if (r->target_probabilities)
        weight += (1 - e) * fabsl((long double)r->target_probabilities[reference_element(r, row, c)]);
    return weight * fabsl(weight_of(r, c));
}

/* A row of contiguous classes is summed as bounds.h says. In the other layout one thread or several sum a column. In
 * any order there are no more additions than classes, and no more new maxima. Combining shards is another level of the
 * tree for each. */
static sum_shape shape_of(option_setting setting, const reference_cross_entropy *r) {
    sum_shape shape = sum_shape_of(setting.dtype, r->classes);
    if (r->inner > 0) {
        shape.sequential = (long double)r->classes;
        shape.rescalings += (long double)r->classes;
    }
    shape.tree += (long double)setting.shards;
    shape.rescalings += (long double)setting.shards;
    return shape;
}

/* exp(x - lse), of the exact lse or the one that is given. */
static long double probability_of(const option_bounds *b, const reference_cross_entropy *r, long double x) {
    return r->lse_in ? expl(x - (long double)r->lse_in[b->row]) : expl(x - b->row_max - b->log_sum_value);
}

/* Sums over a row that its errors are made of. */
typedef struct row_sums {
    long double shift;     /* sum p dx */
    long double distances; /* sum a (m - x) */
    long double logits;    /* sum a dx */
} row_sums;

static row_sums sums_of(option_bounds *b, const reference_cross_entropy *r) {
    row_sums s = {0, 0, 0};
    int64_t c;
    for (c = 0; c < r->classes; c++) {
        double given = r->x[reference_element(r, b->row, c)];
        long double x = reference_logit(r, given), dx = logit_error(&b->a, r, given);
        long double weight = spread_weight(r, b->row, c);
        if (dx > 0 && !r->lse_in)
            s.shift += dx * probability_of(b, r, x);
        if (weight > 0) {
            b->spread += weight;
            s.distances += weight * (b->row_max - x);
            s.logits += weight * dx;
        }
    }
    return s;
}

/* (1-e) w_y (log_sum + (m - x_y)): the difference, the sum, and the product if any; 0 if the target has no weight. */
static long double target_part(const option_bounds *b, const reference_cross_entropy *r, long double *value) {
    double given;
    long double d, term, error;
    *value = 0;
    if (b->target_weight == 0)
        return 0;
    given = r->x[reference_element(r, b->row, r->targets[b->row])];
    d = b->row_max - reference_logit(r, given);
    term = b->log_sum_value + d;
    error = b->log_sum + b->shift + logit_error(&b->a, r, given) + b->a.u * (d + term) + b->a.smallest;
    *value = b->target_weight * term;
    return b->target_weight * (error + term * (b->target_relative + b->rounding));
}

/* A log_sum - sum a (x - m), with A = sum a. Both sums have the errors of their terms and of the additions; a term of
 * the second has a difference and a product more. Whenever a maximum rises, the partial sum of A times the rise is
 * added to the second sum. The rises of a term and its own distance add up to m - x. So the corrections have the
 * roundings of a term and of A, and double the number of additions. Then two products and the difference. */
static long double spread_part(const option_bounds *b, const row_sums *s, sum_shape shape, long double *value) {
    long double u = b->a.u, additions = shape.sequential + shape.tree, product = b->spread * b->log_sum_value;
    long double error = b->spread * (b->log_sum + b->shift) + s->logits;
    *value = product + s->distances;
    error += product * (SPREAD_ROUNDINGS + additions + 1) * u;
    error += s->distances * (SPREAD_ROUNDINGS + 2 + 3 * additions) * u;
    return error + *value * 2 * u + (b->spread > 0 ? b->a.smallest : 0);
}

/* lse_square_scale lse^2: the constant and two products. */
static long double z_part(const option_bounds *b, const reference_cross_entropy *r, long double lse,
                          long double *value) {
    long double factor = (long double)r->lse_square_scale;
    *value = factor > 0 ? factor * lse * lse : 0;
    return factor > 0 ? factor * (2 * fabsl(lse) + b->lse) * b->lse + *value * 3 * b->a.u + b->a.smallest : 0;
}

static void add_losses(option_bounds *b, const reference_cross_entropy *r, const row_sums *s, sum_shape shape,
                       long double lse) {
    long double target, spread, z, total, error = target_part(b, r, &target);
    long double weight = r->row_weights ? fabsl((long double)r->row_weights[b->row]) : 1;
    error += spread_part(b, s, shape, &spread);
    b->z_loss = z_part(b, r, lse, &z);
    total = fabsl(target) + spread + z;
    /* The product with r; then, of the loss, the sum of its parts, and one operation for the product with r and the sum. */
    b->z_loss = weight * (b->z_loss + z * b->rounding);
    b->loss = weight * (error + total * 2 * b->rounding) + b->z_loss;
}

/* log sum exp(x - m), and with lse_in the rounded difference lse_in - m that stands for it. */
static long double set_lse(option_bounds *b, gpuloss_dtype dtype, sum_shape shape, const reference_cross_entropy *r) {
    const reference_row *info = &r->row_info[b->row];
    b->row_max = info->max;
    if (!r->lse_in) {
        b->log_sum_value = info->log_sum;
        b->log_sum = log_sum_bound(dtype, shape, info);
        return info->max + info->log_sum;
    }
    b->log_sum_value = fabsl((long double)r->lse_in[b->row] - info->max);
    b->log_sum = b->a.u * b->log_sum_value;
    return (long double)r->lse_in[b->row];
}

option_bounds option_bounds_of(option_setting setting, const reference_cross_entropy *r, int64_t row) {
    sum_shape shape = shape_of(setting, r);
    long double e = (long double)r->label_smoothing, factor = 2 * (long double)r->lse_square_scale, lse;
    option_bounds b;
    row_sums sums;
    memset(&b, 0, sizeof b);
    b.a = arithmetic_of(setting.dtype);
    b.row = row;
    b.rounding = has_option(r) ? b.a.u : 0;
    if (reference_row_kind(r, row) == ROW_NORMAL && !r->target_probabilities) {
        b.target_weight = fabsl((1 - e) * weight_of(r, r->targets[row]));
        b.target_relative = (e > 0 ? 2 : 0) * b.a.u;
    }
    lse = set_lse(&b, setting.dtype, shape, r);
    sums = sums_of(&b, r);
    b.shift = sums.shift;
    b.lse = b.log_sum + b.shift + b.a.u * fabsl(lse) + b.a.smallest;
    /* sum a + 2 lse_square_scale lse: the sum, the constant, a product each and their sum. */
    b.common = b.spread + factor * fabsl(lse);
    b.common_error = b.spread * (SPREAD_ROUNDINGS + shape.sequential + shape.tree + 2) * b.a.u +
                     (factor > 0 ? factor * (b.lse + fabsl(lse) * 3 * b.a.u) : 0);
    add_losses(&b, r, &sums, shape, lse);
    return b;
}

/* The relative error of p: see cross_entropy_gradient_bound, with exact x, or that of exp(x - lse_in), the argument of
 * which is rounded in the same way; then the errors of x. */
static long double p_relative(const option_bounds *b, const reference_cross_entropy *r, double given, long double x) {
    const arithmetic *a = &b->a;
    long double shifts = b->shift + logit_error(a, r, given) + a->exp_relative;
    if (r->lse_in)
        return a->exp_roundings * a->u * fabsl(x - (long double)r->lse_in[b->row]) + shifts;
    return a->exp_roundings * a->u * (b->row_max - x + b->log_sum_value) + b->log_sum + 3 * a->u + shifts;
}

/* Error of p (m + b) - a at other classes, and of m (p - 1) + (b p - a) at the target. m is the target's weight, b is
 * `common`, and a is the weight of the class itself. */
static long double entry_error(const option_bounds *b, long double p, long double relative, long double own,
                               int is_target) {
    long double from_target = is_target ? fabsl(p - 1) : p;
    long double error = p * relative * (b->target_weight + b->common) + p * b->common_error;
    error += b->target_weight * from_target * b->target_relative;
    if (is_target)
        error += b->target_weight * b->a.u * from_target;
    error += own * SPREAD_ROUNDINGS * b->a.u;
    /* The products, and two sums. */
    return error + 3 * b->rounding * (b->target_weight * from_target + b->common * p + own);
}

long double option_gradient_bound(const option_bounds *b, const reference_cross_entropy *r, int64_t c,
                                  gpuloss_dtype stored, long double value) {
    int64_t i = reference_element(r, b->row, c);
    double given = r->x[i];
    long double x, slope, p = r->probability[i], scale = fabsl(r->scale_rows[b->row]), error;
    long double weights = b->target_weight + b->common, own = spread_weight(r, b->row, c);
    int is_target = !r->target_probabilities && c == r->targets[b->row];
    if (isnan(value)) /* nothing is close to NaN */
        return 0;
    x = reference_logit(r, given), slope = fabsl(reference_logit_slope(r, given));
    error = entry_error(b, p, p > 0 ? p_relative(b, r, given, x) : 0, own, is_target);
    /* p and each intermediate result may be flushed below the smallest normal number. */
    error += b->a.smallest * (weights > 1 ? 1 + weights : 1);
    error = scale * slope * error + fabsl(value) * (scale_roundings(r) * b->a.u + slope_relative(&b->a, r, given));
    if (r->softcap > 0) /* so may be e, of which the slope is four times as much */
        error += scale * 8 * b->a.smallest * fabsl(scale_of(r)) * (weights + own);
    return error + b->a.smallest + store_rounding(stored, value);
}

/* s (1-e) w_c (log_sum + (m - x_c)): the difference and the sum; s; (1-e), the products with it, w and s. */
long double option_target_gradient_bound(const option_bounds *b, const reference_cross_entropy *r, int64_t c,
                                         gpuloss_dtype stored, long double value) {
    double given = r->x[reference_element(r, b->row, c)];
    long double factor = (1 - (long double)r->label_smoothing) * fabsl(weight_of(r, c));
    long double d, error;
    if (factor == 0)
        return b->a.smallest;
    d = b->row_max - reference_logit(r, given);
    error = b->log_sum + b->shift + logit_error(&b->a, r, given) + b->a.u * (2 * d + b->log_sum_value) + b->a.smallest;
    error = fabsl(r->scale_rows[b->row]) * factor * error + fabsl(value) * (scale_roundings(r) + 4) * b->a.u;
    return error + b->a.smallest + store_rounding(stored, value);
}
