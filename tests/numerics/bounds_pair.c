#include "bounds_pair.h"

#include <math.h>
#include <string.h>

/* The error of S(p, m, x) = p (x - 1) + m with x = log(p / m), which is m where p = 0. For |x| < 1 it is
 * p (x - 1 + exp(-x)), x^2 times a polynomial, within 5u, with 4u for the products. In float the polynomial leaves out
 * u/2, and its last two steps round to 1.5u. In double it is a series whose last factors round to 2u. The square and
 * the product are 2u more. Its error in x is times p - m, to which the second order is added because x may be smaller
 * than its error. Else each part has its roundings, and x is times p. Where x may be on either side of 1 the difference
 * between the two, m, is uncertain. `dx` is the whole error of x, `own` the part that is not shared.
 *
 * The polynomial of 16-bit logits leaves out 7u, which 5u do not cover. They have no wider bound for it: what the error of p
 * has to spare is enough in all tests.
 *
 * Kernels of floats may take the polynomial for |x| < 1.25, with the bounds of the other form from 1 on. The slope of a row
 * is then less: p - m adds up to 0 over a row, so that the slope is the m of the other classes. */
typedef struct surplus_error {
    long double value, error, slope; /* slope: the factor of x's error */
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

/* p - q of two sides of logits, for |d| < 1, as p d less S(p, q, d). The error of d comes times q. */
static long double close_error(const arithmetic *a, long double p, long double dp, long double q, long double d,
                               long double dd) {
    return fabsl(d) - dd < 1 ? fabsl(p - q) * (dp / p + 12 * a->u) + q * dd * (1 + dd) : 0;
}

/* KL(a || b) with the logarithm d of a / b. The summed term is f itself, or S(a, b, d). */
static void kl_errors(const pair_setting *s, bool reversed, const reference_pair *y, pair_errors *e) {
    const arithmetic *a = &s->a;
    long double of = reversed ? y->q : y->p, other = reversed ? y->p : y->q, sign = reversed ? -1 : 1;
    long double d_of = reversed ? e->q : e->p, d_other = reversed ? e->p : e->q, eps = s->eps;
    long double d = e->own + e->shared, of_a = fabsl(reversed ? y->of_q : y->of_p), of_a_error, of_b_error = 0;
    if (s->is_surplus) {
        surplus_error x = surplus_of(a, of, d_of, other, d_other, sign * y->d, e->own, d);
        e->summed = x.error + x.uncertain * e->shared;
        e->slope = sign * x.slope;
    }
    if (of == 0)
        return;
    e->term = of * d + fabsl(y->d) * d_of + a->u * fabsl(y->f) + a->smallest * (1 + fabsl(y->d));
    if (!s->is_surplus) {
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
    *(reversed ? &e->of_log_p : &e->of_log_q) =
        s->is_surplus ? fmaxl(d_of, close_error(a, of, d_of, other, y->d, d)) : d_of;
}

/* A share of the mixture m: 1 + x = p / m, of p or q. */
typedef struct share {
    long double x, dx, relative; /* relative: error of p / m */
    long double log, dlog;       /* log(1 + x) */
} share;

/* log(1 + x). Close to 0 it is x - x^2 P(x), with an error that is divided by 1 + x. P and the square round to u/2 of
 * x, the difference to u. In double log1p is within an ulp, up to |x| < 1/2. Elsewhere it is the logarithm of the
 * share. lg2.approx is within 2^-22 of the result, or absolutely where that is below 1. The constant and its product
 * cost 2u. Where x may be on either side, so may be the error. */
static void set_log_error(const pair_setting *s, share *of) {
    const arithmetic *a = &s->a;
    bool is_double = s->dtype == GPULOSS_F64;
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

/* p - q. Where p (1 - exp(-d)) is used and |d| < 1, the error of d is multiplied by q. 1 - exp(-d) is d less an excess
 * that is within 9u. Else the errors of both, and a rounding. */
static long double difference_error(const pair_setting *s, const reference_pair *y, const pair_errors *e) {
    long double d = fabsl(y->d), dd = e->own + e->shared, size = fabsl(y->p - y->q);
    long double direct = e->p + e->q + s->a.u * size, by_ratio;
    if (!s->by_ratio || !(d - dd < 1) || y->p == 0)
        return direct;
    by_ratio = size * (e->p / y->p + 12 * s->a.u) + (y->q + e->q) * dd * (1 + dd);
    return (d + dd < 1 && !s->any_form) || by_ratio > direct ? by_ratio : direct;
}

/* M (b g(x) + c g(y)), of x = c (p - q) / M and y = -b (p - q) / M: M is of two products and a sum, its reciprocal within
 * an ulp, and x takes a rounded c and two products. Without probabilities, M is larger by 2^-120. */
static void jensen_shannon_errors(const pair_setting *s, const reference_pair *y, pair_errors *e) {
    const arithmetic *a = &s->a;
    long double b = (long double)s->beta;
    long double c = 1 - b, m = b * y->p + c * y->q, dm = b * e->p + c * e->q + 3 * a->u * m, difference, of_m;
    share of_p, of_q;
    if (m == 0)
        return;
    if (!s->has_small && s->dtype != GPULOSS_F64)
        dm += ldexpl(1, -120);
    of_m = dm / m + 2 * a->u;
    difference = difference_error(s, y, e) / m + fabsl(y->p - y->q) / m * (of_m + 3 * a->u);
    memset(&of_p, 0, sizeof of_p);
    memset(&of_q, 0, sizeof of_q);
    of_p.x = c * (y->p - y->q) / m, of_q.x = b * (y->q - y->p) / m;
    of_p.dx = c * difference, of_q.dx = b * difference;
    of_p.log = y->p > 0 ? y->of_p / b : 0, of_q.log = y->q > 0 ? y->of_q / c : 0;
    if (y->p > 0) {
        of_p.relative = e->p / y->p + of_m + a->u;
        set_log_error(s, &of_p);
    }
    if (y->q > 0) {
        of_q.relative = e->q / y->q + of_m + a->u;
        set_log_error(s, &of_q);
    }
    if (s->dtype == GPULOSS_F64) {
        surplus_error s_p = surplus_of(a, y->p, e->p, m, dm, of_p.log, of_p.dlog, of_p.dlog);
        surplus_error s_q = surplus_of(a, y->q, e->q, m, dm, of_q.log, of_q.dlog, of_q.dlog);
        e->summed = b * s_p.error + c * s_q.error + 5 * a->u * (b * s_p.value + c * s_q.value);
        e->summed += (b * s_p.uncertain * of_p.dlog + c * s_q.uncertain * of_q.dlog);
    } else {
        e->summed = b * g_error(a, &of_p) + c * g_error(a, &of_q);
        if (b == 0.5L) {
            long double half = half_error(a, &of_p, &of_q);
            e->summed = s->any_form && e->summed > half ? e->summed : half;
        }
        e->summed = m * e->summed + fabsl(y->f) * (dm / m + 5 * a->u);
    }
    e->summed += 4 * a->smallest;
    e->term = e->summed;
    e->of_p = y->p > 0 ? b * of_p.dlog + 2 * a->u * fabsl(y->of_p) : 0;
    e->of_q = y->q > 0 ? c * of_q.dlog + 2 * a->u * fabsl(y->of_q) : 0;
    e->of_log_p = y->p * e->of_p + e->p * fabsl(y->of_p) + a->u * fabsl(y->of_log_p);
    e->of_log_q = y->q * e->of_q + e->q * fabsl(y->of_q) + a->u * fabsl(y->of_log_q);
}

/* Where p and q are as close as their errors, the sign of their difference may be any. */
static void total_variation_errors(const arithmetic *a, const reference_pair *y, pair_errors *e) {
    long double error = e->p + e->q;
    e->term = e->summed = error / 2 + a->u * fabsl(y->f) + a->smallest;
    e->of_p = e->of_q = error > 0 && fabsl(y->p - y->q) <= error ? 1 : 0;
    e->of_log_p = y->p * e->of_p + e->p / 2 + a->smallest;
    e->of_log_q = y->q * e->of_q + e->q / 2 + a->smallest;
}

void pair_errors_of(const pair_setting *s, const reference_pair *y, pair_errors *e) {
    bool is_mixed = s->divergence == GPULOSS_JENSEN_SHANNON;
    if (s->divergence == GPULOSS_TOTAL_VARIATION)
        total_variation_errors(&s->a, y, e);
    else if (is_mixed && s->beta > 0 && s->beta < 1)
        jensen_shannon_errors(s, y, e);
    else
        kl_errors(s, s->divergence == GPULOSS_REVERSE_KL || s->beta >= 1, y, e);
}
