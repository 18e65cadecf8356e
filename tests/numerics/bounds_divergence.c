#include "bounds_divergence.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Errors of one pair and of what a divergence makes of it. All are absolute. */
typedef struct pair_errors {
    long double p, q;
    long double own, shared;   /* of d = log p - log q: of this class alone, and what all have in common */
    long double reference;     /* of d in the reference */
    long double term;          /* of f */
    long double summed, slope; /* of f as it enters the sum of a row: without `shared`, and what that is times */
    long double of_p, of_q;    /* of the derivatives, and times p and q */
    long double of_log_p, of_log_q;
} pair_errors;

static bool is_power_of_two(double x) {
    int exponent;
    return fabs(frexp(x, &exponent)) == 0.5;
}

static long double temperature_of(const reference_kl_div *r) {
    return r->temperature > 0 ? (long double)r->temperature : 1;
}

/* A double under float arithmetic is rounded when it is read; 1/T is a rounded constant, and the product is rounded. */
static side_bounds side_of(const divergence_bounds *b, const reference_kl_div *r, bool is_input) {
    side_bounds s;
    memset(&s, 0, sizeof s);
    s.kind = is_input ? r->input_kind : r->target_kind;
    s.row = is_input ? &b->of_row.input : &b->of_row.target;
    if (!is_input && b->setting.target_dtype == GPULOSS_F64 && b->setting.dtype != GPULOSS_F64)
        s.narrowing = b->a.u;
    if (s.kind == GPULOSS_LOGITS && !(r->temperature == 0 || is_power_of_two(r->temperature)))
        s.cooling = 2 * b->a.u;
    return s;
}

/* Error of a logit over the temperature. */
static long double logit_error(const side_bounds *s, long double z) {
    return isinf(z) ? 0 : (s->narrowing + s->cooling) * fabsl(z);
}

/* Of log sum exp(z): that for exact z, and sum p dz. */
static void add_shared(const divergence_bounds *b, const reference_kl_div *r, const double *given, side_bounds *s) {
    int64_t c;
    if (s->kind != GPULOSS_LOGITS)
        return;
    s->shared = log_sum_bound(b->setting.dtype, sum_shape_of(b->setting.dtype, r->classes), s->row);
    for (c = 0; c < r->classes && s->narrowing + s->cooling > 0; c++) {
        long double z = reference_cooled(r, given[b->row * r->classes + c]);
        s->shared += logit_error(s, z) * expl(z - s->row->max - s->row->log_sum);
    }
}

/* p itself; or exp(x): the function, and the error of x; or e_c / S as in cross-entropy's gradient, and the errors of
 * z. What is below the smallest normal number may be flushed. */
static long double probability_error(const divergence_bounds *b, const reference_kl_div *r, const side_bounds *s,
                                     double given, long double p) {
    const arithmetic *a = &b->a;
    long double z = reference_cooled(r, given), distance;
    if (s->kind == GPULOSS_PROBABILITIES)
        return s->narrowing > 0 ? s->narrowing * p + a->smallest : 0;
    if (isinf(given))
        return 0;
    if (s->kind == GPULOSS_LOG_PROBABILITIES)
        return p * (a->exp_relative + s->narrowing * fabsl((long double)given)) + a->smallest;
    distance = a->exp_roundings * a->u * (s->row->max - z + s->row->log_sum);
    return p * (distance + a->exp_relative + 3 * a->u + s->shared + logit_error(s, z)) + a->smallest;
}

/* Of a logarithm by itself, without what is shared. Of a probability: the function (4 ulp), eps and its sum, the
 * rounding of the probability. Of a logit: z, the distance from the top, the difference from the logarithm of S. */
static long double logarithm_error(const divergence_bounds *b, const reference_kl_div *r, const side_bounds *s,
                                   double given, long double value) {
    const arithmetic *a = &b->a;
    long double z = reference_cooled(r, given);
    if (isinf(value))
        return 0;
    if (s->kind == GPULOSS_PROBABILITIES)
        return 8 * a->u * fabsl(value) + (r->eps > 0 ? 2 * a->u : 0) + s->narrowing;
    if (s->kind == GPULOSS_LOG_PROBABILITIES)
        return s->narrowing * fabsl(value);
    return logit_error(s, z) + a->u * (s->row->max - z) + a->u * fabsl(value);
}

/* log p - log q of two sides of logits is (t - x) / T - (lse_t - lse_x): the difference of the logits, the product with
 * a rounded 1/T, the last difference. Of two probabilities it is one logarithm of the ratio, within 8u however near to
 * 1 the ratio is. Else it is the difference of two logarithms. */
static void set_ratio_errors(const divergence_bounds *b, const reference_kl_div *r, const reference_pair *y, double x,
                             double t, pair_errors *e) {
    const arithmetic *a = &b->a;
    long double apart = ((long double)t - (long double)x) / temperature_of(r);
    if (isnan(y->d) || isinf(y->d))
        return;
    e->shared = b->shared;
    e->reference = LDBL_EPSILON * (4 + fabsl(y->log_p) + fabsl(y->log_q));
    if (b->input.kind == GPULOSS_LOGITS)
        e->reference += LDBL_EPSILON * fabsl(b->of_row.input.max);
    if (b->target.kind == GPULOSS_LOGITS)
        e->reference += LDBL_EPSILON * fabsl(b->of_row.target.max);
    if (b->input.kind == GPULOSS_LOGITS && b->target.kind == GPULOSS_LOGITS)
        e->own = (a->u + b->input.cooling) * fabsl(apart) + b->target.narrowing * fabsl(reference_cooled(r, t)) +
                 a->u * fabsl(y->d);
    else if (b->input.kind == GPULOSS_PROBABILITIES && b->target.kind == GPULOSS_PROBABILITIES)
        e->own = 8 * a->u * fabsl(y->d) + (r->eps > 0 ? 4 * a->u : 0) + b->target.narrowing;
    else
        e->own = logarithm_error(b, r, &b->input, x, y->log_q) + logarithm_error(b, r, &b->target, t, y->log_p) +
                 a->u * fabsl(y->d);
}

/* Of S(p, m, x) = p (x - 1) + m with x = log(p / m), which is m where p = 0. For |x| < 1 it is p (x - 1 + exp(-x)), x^2
 * times a polynomial, within 5u, with 4u for the products. In float the polynomial leaves out u/5 and its last two steps
 * round to 1.5u, in double it is a series whose last factors round to 2u; the square and the product are 2u more. Its
 * error in x is times p - m, to which the second order is added because x may be smaller than its error. Else each part
 * has its roundings, and x is times p. Where x may be on either side of 1 the difference between the two, m, is
 * uncertain. `dx` is the whole error of x, `own` what is not shared. */
typedef struct surplus_error {
    long double value, error, slope; /* slope: what x is times */
    long double uncertain;           /* of slope */
} surplus_error;

static surplus_error surplus_of(const arithmetic *a, long double p, long double dp, long double m, long double dm,
                                long double x, long double own, long double dx) {
    surplus_error s = {m, dm, 0, 0};
    if (p == 0)
        return s;
    s.value = p * (x - 1) + m;
    if (fabsl(x) + dx < 1) {
        s.error = s.value * (dp / p + 9 * a->u) + fabsl(p - m) * own + p * expl(fabsl(x) + dx) * dx * dx / 2;
        s.slope = p - m;
        return s;
    }
    s.error = dp * fabsl(x - 1) + dm + 3 * a->u * (p * fabsl(x - 1) + m) + (p + m) * own;
    s.slope = p;
    s.uncertain = fabsl(x) - dx < 1 ? m : 0;
    return s;
}

/* KL(a || b) with the logarithm d of a / b. What is summed is f itself, or S(a, b, d) where both sides are logits. */
static void kl_errors(const divergence_bounds *b, const reference_kl_div *r, bool reversed, const reference_pair *y,
                      pair_errors *e) {
    const arithmetic *a = &b->a;
    bool surplus = r->input_kind == GPULOSS_LOGITS && r->target_kind == GPULOSS_LOGITS;
    long double of = reversed ? y->q : y->p, other = reversed ? y->p : y->q, sign = reversed ? -1 : 1;
    long double d_of = reversed ? e->q : e->p, d_other = reversed ? e->p : e->q, eps = (long double)r->eps;
    long double d = e->own + e->shared, of_a = fabsl(reversed ? y->of_q : y->of_p), of_a_error, of_b_error = 0;
    if (surplus) {
        surplus_error s = surplus_of(a, of, d_of, other, d_other, sign * y->d, e->own, d);
        e->summed = s.error + s.uncertain * e->shared;
        e->slope = sign * s.slope;
    }
    if (of == 0)
        return;
    e->term = of * d + fabsl(y->d) * d_of + a->u * fabsl(y->f) + a->smallest * (1 + fabsl(y->d));
    if (!surplus) {
        e->summed = e->term - of * e->shared;
        e->slope = sign * of;
    }
    /* d + a / (a + eps): a quotient whose eps and sum cost 2u, and the sum. */
    of_a_error = d + a->u * (fabsl(y->d) + 1 + of_a) + (eps > 0 ? 4 * a->u : 0);
    /* a / (b + eps): both errors, eps and the sum, the quotient. */
    if (other + eps > 0)
        of_b_error = of / (other + eps) * (d_of / of + d_other / (other + eps) + 4 * a->u);
    e->of_p = reversed ? of_b_error : of_a_error;
    e->of_q = reversed ? of_a_error : of_b_error;
    *(reversed ? &e->of_log_q : &e->of_log_p) = of * of_a_error + of_a * d_of + a->u * of * of_a;
    *(reversed ? &e->of_log_p : &e->of_log_q) = d_of;
}

/* A share of the mixture m: 1 + x = p / m, of p or q. */
typedef struct share {
    long double x, dx, relative; /* relative: error of p / m */
    long double log, dlog;       /* log(1 + x) */
} share;

/* log(1 + x). Close to 0, x - x^2 P(x): its error comes divided by 1 + x; P and the square round to u/2 of x, the
 * difference to u. In double log1p is within an ulp, up to |x| < 1/2. Elsewhere it is the logarithm of the share: lg2.approx
 * is within 2^-22 of the result, or absolutely where that is below 1, and the constant and its product cost 2u. Where x may
 * be on either side, so may be the error. */
static void set_log_error(const divergence_bounds *b, share *of) {
    const arithmetic *a = &b->a;
    bool is_double = b->setting.dtype == GPULOSS_F64;
    long double limit = is_double ? 0.5L : 0.25L, size = fabsl(of->x), close, distant;
    close = of->dx / (1 + of->x) + 2 * a->u * fabsl(of->log);
    distant = of->relative + 2 * a->u * fabsl(of->log);
    if (!is_double)
        distant += ldexpl(1, -22) * (fabsl(of->log) + logl(2));
    of->dlog = 0;
    if (size - of->dx < limit)
        of->dlog = close;
    if (size + of->dx >= limit && distant > of->dlog)
        of->dlog = distant;
}

/* g(x) = (1 + x) log(1 + x) - x. Close to 0 it is x^2 (1 - P(x) (1 + x)), where P takes half of it: its error, the square,
 * and three roundings. The error of x comes times the slope, log(1 + x). Elsewhere the product and the difference are
 * rounded, and x and the share have errors of their own. */
static long double g_error(const arithmetic *a, const share *of) {
    long double part = 1 + of->x, g = part * of->log - of->x, close, distant;
    close = fabsl(of->log) * of->dx + of->dx * of->dx + 6 * a->u * g;
    distant = part * (of->dlog + fabsl(of->log) * (of->relative + a->u)) + of->dx + a->u * g;
    if (fabsl(of->x) + of->dx < 0.25L)
        return close;
    return fabsl(of->x) - of->dx >= 0.25L || distant > close ? distant : close;
}

/* (g(x) + g(-x)) / 2, where both shares count alike: a polynomial of x^2, or half the sum of two products. */
static long double half_error(const arithmetic *a, const share *of_p, const share *of_q) {
    long double p = 1 + of_p->x, q = 1 + of_q->x, x = fabsl(of_p->x), dx = of_p->dx, close, distant;
    long double g = ((p > 0 ? p * of_p->log : 0) + (q > 0 ? q * of_q->log : 0)) / 2;
    close = (fabsl(of_p->log) + fabsl(of_q->log)) / 2 * dx + dx * dx + 5 * a->u * g;
    distant = (p * (of_p->dlog + fabsl(of_p->log) * (of_p->relative + a->u)) +
               q * (of_q->dlog + fabsl(of_q->log) * (of_q->relative + a->u))) /
                  2 +
              a->u * g;
    if (x + dx < 0.25L)
        return close;
    return x - dx >= 0.25L || distant > close ? distant : close;
}

/* p - q. As p (1 - exp(-d)) where both sides are logarithms and |d| < 1, in types of more than 16 bits: the error of d
 * comes times q, and 1 - exp(-d) is d less an excess that is within 9u. Else the errors of both, and a rounding. */
static long double difference_error(const divergence_bounds *b, const reference_pair *y, const pair_errors *e) {
    long double d = fabsl(y->d), dd = e->own + e->shared, size = fabsl(y->p - y->q);
    long double direct = e->p + e->q + b->a.u * size, by_ratio;
    bool is_short = b->setting.dtype == GPULOSS_F16 || b->setting.dtype == GPULOSS_BF16;
    if (is_short || b->input.kind == GPULOSS_PROBABILITIES || b->target.kind == GPULOSS_PROBABILITIES ||
        !(d - dd < 1) || y->p == 0)
        return direct;
    by_ratio = size * (e->p / y->p + 12 * b->a.u) + (y->q + e->q) * dd * (1 + dd);
    return d + dd < 1 || by_ratio > direct ? by_ratio : direct;
}

/* M (b g(x) + c g(y)), of x = c (p - q) / M and y = -b (p - q) / M: M is of two products and a sum, its reciprocal within
 * an ulp, and x takes a rounded c and two products. Without probabilities, M is larger by 2^-120. */
static void jensen_shannon_errors(const divergence_bounds *bounds, long double b, const reference_pair *y,
                                  pair_errors *e) {
    const arithmetic *a = &bounds->a;
    long double c = 1 - b, m = b * y->p + c * y->q, dm = b * e->p + c * e->q + 3 * a->u * m, apart, of_m;
    bool has_small = bounds->input.kind == GPULOSS_PROBABILITIES || bounds->target.kind == GPULOSS_PROBABILITIES;
    share of_p, of_q;
    if (m == 0)
        return;
    if (!has_small && bounds->setting.dtype != GPULOSS_F64)
        dm += ldexpl(1, -120);
    of_m = dm / m + 2 * a->u;
    apart = difference_error(bounds, y, e) / m + fabsl(y->p - y->q) / m * (of_m + 3 * a->u);
    memset(&of_p, 0, sizeof of_p);
    memset(&of_q, 0, sizeof of_q);
    of_p.x = c * (y->p - y->q) / m, of_q.x = b * (y->q - y->p) / m;
    of_p.dx = c * apart, of_q.dx = b * apart;
    of_p.log = y->p > 0 ? y->of_p / b : 0, of_q.log = y->q > 0 ? y->of_q / c : 0;
    if (y->p > 0) {
        of_p.relative = e->p / y->p + of_m + a->u;
        set_log_error(bounds, &of_p);
    }
    if (y->q > 0) {
        of_q.relative = e->q / y->q + of_m + a->u;
        set_log_error(bounds, &of_q);
    }
    if (bounds->setting.dtype == GPULOSS_F64) {
        surplus_error s_p = surplus_of(a, y->p, e->p, m, dm, of_p.log, of_p.dlog, of_p.dlog);
        surplus_error s_q = surplus_of(a, y->q, e->q, m, dm, of_q.log, of_q.dlog, of_q.dlog);
        e->summed = b * s_p.error + c * s_q.error + 5 * a->u * (b * s_p.value + c * s_q.value);
        e->summed += (b * s_p.uncertain * of_p.dlog + c * s_q.uncertain * of_q.dlog);
    } else if (b == 0.5L) {
        e->summed = m * half_error(a, &of_p, &of_q) + fabsl(y->f) * (dm / m + 5 * a->u);
    } else {
        e->summed = m * (b * g_error(a, &of_p) + c * g_error(a, &of_q)) + fabsl(y->f) * (dm / m + 5 * a->u);
    }
    e->summed += 4 * a->smallest;
    e->term = e->summed;
    e->of_p = y->p > 0 ? b * of_p.dlog + 2 * a->u * fabsl(y->of_p) : 0;
    e->of_q = y->q > 0 ? c * of_q.dlog + 2 * a->u * fabsl(y->of_q) : 0;
    e->of_log_p = y->p * e->of_p + e->p * fabsl(y->of_p) + a->u * fabsl(y->of_log_p);
    e->of_log_q = y->q * e->of_q + e->q * fabsl(y->of_q) + a->u * fabsl(y->of_log_q);
}

/* Where p and q are as near as their errors, the sign of their difference may be any. */
static void total_variation_errors(const arithmetic *a, const reference_pair *y, pair_errors *e) {
    long double apart = e->p + e->q;
    e->term = e->summed = apart / 2 + a->u * fabsl(y->f) + a->smallest;
    e->of_p = e->of_q = apart > 0 && fabsl(y->p - y->q) <= apart ? 1 : 0;
    e->of_log_p = y->p * e->of_p + e->p / 2 + a->smallest;
    e->of_log_q = y->q * e->of_q + e->q / 2 + a->smallest;
}

/* Each side's p or q times the error of a logarithm in long double. What is NaN has no error. */
static void add_reference_error(const reference_pair *y, pair_errors *e) {
    long double p = isnan(y->p) ? 0 : y->p, q = isnan(y->q) ? 0 : y->q;
    e->term += (p + q) * e->reference;
    e->summed += (p + q) * e->reference;
    e->of_p += e->reference;
    e->of_q += e->reference;
    e->of_log_p += p * e->reference;
    e->of_log_q += q * e->reference;
}

static pair_errors errors_of(const divergence_bounds *b, const reference_kl_div *r, const reference_pair *y,
                             int64_t c) {
    double x = r->input[b->row * r->classes + c], t = r->target[b->row * r->classes + c];
    pair_errors e;
    memset(&e, 0, sizeof e);
    if (isnan(y->p) || isnan(y->q)) /* and so is what comes of it, or 0 */
        return e;
    e.q = probability_error(b, r, &b->input, x, y->q);
    e.p = probability_error(b, r, &b->target, t, y->p);
    set_ratio_errors(b, r, y, x, t, &e);
    if (r->divergence == GPULOSS_TOTAL_VARIATION)
        total_variation_errors(&b->a, y, &e);
    else if (r->divergence == GPULOSS_JENSEN_SHANNON && r->beta > 0 && r->beta < 1)
        jensen_shannon_errors(b, (long double)r->beta, y, &e);
    else
        kl_errors(b, r, r->divergence == GPULOSS_REVERSE_KL || r->beta >= 1, y, &e);
    add_reference_error(y, &e);
    return e;
}

/* apart = (top_t - top_x) + (log S_t - log S_x): two differences and their sum. */
static long double shared_error(const divergence_bounds *b) {
    const reference_row *x = &b->of_row.input, *t = &b->of_row.target;
    long double tops = t->max - x->max, logs = t->log_sum - x->log_sum;
    if (b->input.kind != GPULOSS_LOGITS || b->target.kind != GPULOSS_LOGITS)
        return b->input.shared + b->target.shared;
    return b->input.shared + b->target.shared + b->a.u * (fabsl(tops) + fabsl(logs) + fabsl(tops + logs));
}

/* Sums of a row are formed in double, whatever the order, and rounded once. Where a sum is that of -p or -q, it is -1
 * for logits; of anything else these are added up in float, at most 16 at a time, by halves. */
static long double sum_error(const divergence_bounds *b, const reference_kl_div *r, bool known, gpuloss_kind kind,
                             long double errors, long double magnitudes) {
    long double in_double = ldexpl(1, -53) * ((long double)r->classes + 2);
    if (known && kind == GPULOSS_LOGITS)
        return 0;
    return errors + magnitudes * (in_double + (known ? 5 : 1) * b->a.u);
}

/* Errors and magnitudes of what a row adds up. */
typedef struct row_sums {
    long double f, slope, magnitude, log_p, log_q, log_p_magnitude, log_q_magnitude;
} row_sums;

static row_sums sums_of(const divergence_bounds *b, const reference_kl_div *r) {
    row_sums s = {0, 0, 0, 0, 0, 0, 0};
    int64_t c;
    for (c = 0; c < r->classes; c++) {
        reference_pair y = b->pairs[c];
        pair_errors e = b->errors[c] = errors_of(b, r, &y, c);
        s.f += e.summed;
        s.slope += e.slope;
        s.magnitude += fabsl(y.f);
        s.log_p += e.of_log_p;
        s.log_q += e.of_log_q;
        s.log_p_magnitude += fabsl(y.of_log_p);
        s.log_q_magnitude += fabsl(y.of_log_q);
    }
    return s;
}

void divergence_bounds_of(divergence_setting setting, const reference_kl_div *r, int64_t row, divergence_bounds *b) {
    bool js = r->divergence == GPULOSS_JENSEN_SHANNON;
    bool reverse = r->divergence == GPULOSS_REVERSE_KL || (js && r->beta >= 1);
    bool forward = r->divergence == GPULOSS_FORWARD_KL || (js && r->beta <= 0);
    row_sums s;
    memset(b, 0, sizeof *b);
    b->setting = setting;
    b->a = arithmetic_of(setting.dtype);
    b->row = row;
    b->pairs = (reference_pair *)reference_memory(r->classes, sizeof *b->pairs);
    b->errors = (pair_errors *)reference_memory(r->classes, sizeof *b->errors);
    b->of_row = reference_row_of(r, row, b->pairs);
    b->factor = r->row_weights ? fabsl((long double)r->row_weights[row]) : 1;
    if (r->temperature_squared)
        b->factor *= temperature_of(r) * temperature_of(r);
    b->input = side_of(b, r, true);
    b->target = side_of(b, r, false);
    add_shared(b, r, r->input, &b->input);
    add_shared(b, r, r->target, &b->target);
    b->shared = shared_error(b);
    s = sums_of(b, r);
    b->sum_of_log_p = sum_error(b, r, reverse, r->input_kind, s.log_p, s.log_p_magnitude);
    b->sum_of_log_q = sum_error(b, r, forward, r->target_kind, s.log_q, s.log_q_magnitude);
    /* The sum of the row; r F is rounded, and the loss. */
    b->loss = s.f + fabsl(s.slope) * b->shared + ldexpl(1, -53) * (long double)r->classes * s.magnitude;
    b->loss = b->factor * (b->loss + 3 * b->a.u * fabsl(b->of_row.f)) + b->a.smallest;
}

void divergence_bounds_free(divergence_bounds *b) {
    free(b->pairs);
    free(b->errors);
}

/* What the gradient of one side is made of, and the errors of that. */
typedef struct entry {
    gpuloss_kind kind;
    gpuloss_dtype stored;
    long double value;                      /* s times the derivative */
    long double of_p_error;                 /* of a probability */
    long double u, u_error;                 /* of a logarithm */
    long double p, p_error, sum, sum_error; /* of a logit: u - p sum u */
} entry;

/* Of s times the derivative: eight roundings of s, with r and F among them, and the product. For logits u - p sum u is
 * a product and a difference; then 1/T and its product. A number that is stored may be larger than the reference by the
 * error. */
static long double entry_error(const divergence_bounds *b, const reference_kl_div *r, const entry *of) {
    long double s = fabsl(r->scale_rows[b->row]), error = of->of_p_error;
    if (of->kind == GPULOSS_LOG_PROBABILITIES)
        error = of->u_error;
    if (of->kind == GPULOSS_LOGITS) {
        error = of->u_error + b->a.u * fabsl(of->u) + 4 * b->a.smallest;
        if (of->p > 0)
            error += (of->p_error + 2 * b->a.u * of->p) * fabsl(of->sum) + of->p * of->sum_error;
        error /= temperature_of(r);
    }
    error = s * (error + 4 * b->a.smallest) + fabsl(of->value) * 11 * b->a.u + b->a.smallest;
    return error + store_rounding(of->stored, fabsl(of->value) + error);
}

element_bounds divergence_element_bounds(const divergence_bounds *b, const reference_kl_div *r, int64_t c) {
    reference_pair y = b->pairs[c];
    pair_errors e = b->errors[c];
    int64_t i = b->row * r->classes + c;
    entry input = {r->input_kind, b->setting.dtype, 0, e.of_q, y.of_log_q, e.of_log_q, y.q, e.q, 0, 0};
    entry target = {r->target_kind, b->setting.target_dtype, 0, e.of_p, y.of_log_p, e.of_log_p, y.p, e.p, 0, 0};
    element_bounds bounds = {0, 0, 0};
    input.sum = b->of_row.sum_of_log_q, input.sum_error = b->sum_of_log_q;
    target.sum = b->of_row.sum_of_log_p, target.sum_error = b->sum_of_log_p;
    bounds.term = b->factor * (e.term + 3 * b->a.u * fabsl(y.f) + b->a.smallest) + b->a.smallest;
    if (r->grad) {
        input.value = r->grad[i];
        bounds.grad = entry_error(b, r, &input);
    }
    if (r->grad_target) {
        target.value = r->grad_target[i];
        bounds.grad_target = entry_error(b, r, &target);
    }
    return bounds;
}
