#include "bounds_divergence.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Error of a logit over the temperature, from which the largest one is subtracted first. */
static long double logit_error(const side_bounds *s, long double z) {
    return isinf(z) ? 0 : s->narrowing * fabsl(z) + s->cooling * (s->row->max - z);
}

/* The error of log sum exp(z): the error for exact z, and sum p dz. */
static void add_shared(const divergence_bounds *b, const reference_kl_div *r, const double *given, side_bounds *s) {
    int64_t c;
    if (s->kind != GPULOSS_LOGITS)
        return;
    s->shared = log_sum_bound(b->setting.dtype, sum_shape_of(b->setting.dtype, r->classes), s->row);
    for (c = 0; c < r->classes; c++) {
        long double z = reference_cooled(r, given[b->row * r->classes + c]);
        if (isfinite(z))
            s->reach = fmaxl(s->reach, s->row->max - z);
        if (s->narrowing + s->cooling > 0)
            s->shared += logit_error(s, z) * expl(z - s->row->max - s->row->log_sum);
    }
}

/* Two sides of logits that are close are subtracted as they are. From distant sides, a number among the logits of each
 * side is subtracted first. They are distant if their maxima over the temperature differ by more than 8, or if the mean
 * distance of some classes is more than 8. */
static void set_distance(const reference_kl_div *r, divergence_bounds *b) {
    const long double most = 8, of_maxima = fabsl(b->of_row.target.max - b->of_row.input.max);
    bool above = false, below = false;
    int64_t c;
    b->may_be_close = !(of_maxima > most);
    b->may_be_distant = !(of_maxima <= most);
    for (c = 0; c < r->classes; c++) {
        int64_t i = b->row * r->classes + c;
        long double distance = (long double)r->target[i] - (long double)r->input[i];
        above = above || distance >= -most;
        below = below || distance <= most;
        b->may_be_distant = b->may_be_distant || fabsl(distance) > most;
    }
    b->may_be_close = b->may_be_close || (above && below);
}

/* A direct KL of weights w is sum w v + L sum w. Each v is log p - log q without L, the lse of the logits less M. L is
 * the mean of log p - log q over some classes, if it is finite and M is then within 32 of the largest logit. Else L is
 * log sum. */
static void set_direct(const reference_kl_div *r, divergence_bounds *b) {
    const reference_row *logits = r->input_kind == GPULOSS_LOGITS ? &b->of_row.input : &b->of_row.target;
    const sum_shape shape = sum_shape_of(b->setting.dtype, r->classes);
    int64_t c;
    if (!b->setting.is_direct)
        return;
    b->added = (shape.sequential + shape.tree) * b->a.u;
    b->shift = logits->log_sum;
    for (c = 0; c < r->classes; c++)
        b->shift = fmaxl(b->shift, isfinite(b->pairs[c].d) ? fabsl(b->pairs[c].d) : 32 + logits->log_sum);
    b->shift = fminl(b->shift, 32 + logits->log_sum);
}

/* The probability is p itself; or exp(x), with the errors of the function and of x; or e_c / S like in cross-entropy's
 * gradient, with the errors of z. Numbers below the smallest normal number may be flushed. */
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

/* The error of a logarithm, without the shared part. A probability has the errors of the function (4 ulp), of eps and
 * its sum, and of the probability's rounding. A logit has the errors of z, of the distance from row_max, and of the
 * difference from the logarithm of S. */
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

/* The distance of two logits over T, and the product with a rounded 1/T. In distant sides each logit is rounded, and
 * their difference. */
static long double distance_error(const divergence_bounds *b, long double distance) {
    const long double relative = b->a.u + b->input.cooling, reach = b->input.reach + b->target.reach;
    return fmaxl(b->may_be_close ? relative * fabsl(distance) : 0, b->may_be_distant ? (b->a.u + relative) * reach : 0);
}

/* The error of v and of its sum with L. The shifted logit is at most as large as the other logarithm and v, also where
 * a thread has an M of its own. It is rounded once, like its v. v and L are rounded, their sum, and L by its product
 * and sum. */
static long double direct_error(const divergence_bounds *b, const reference_kl_div *r, const reference_pair *y) {
    const long double other = r->input_kind == GPULOSS_LOGITS ? y->log_p : y->log_q;
    return b->a.u * ((isinf(other) ? 0 : 2 * fabsl(other)) + 4 * (fabsl(y->d) + b->shift));
}

/* log p - log q of two sides of logits is (t - x) / T - (lse_t - lse_x): the distance, and the last difference. Of two
 * probabilities it is one logarithm of the ratio, within 8u however close to 1 the ratio is. Else it is the difference of
 * two logarithms. */
static void set_ratio_errors(const divergence_bounds *b, const reference_kl_div *r, const reference_pair *y, double x,
                             double t, pair_errors *e) {
    const arithmetic *a = &b->a;
    long double distance = ((long double)t - (long double)x) / temperature_of(r);
    if (isnan(y->d) || isinf(y->d))
        return;
    e->shared = b->shared;
    e->reference = LDBL_EPSILON * (4 + fabsl(y->log_p) + fabsl(y->log_q));
    if (b->input.kind == GPULOSS_LOGITS)
        e->reference += LDBL_EPSILON * fabsl(b->of_row.input.max);
    if (b->target.kind == GPULOSS_LOGITS)
        e->reference += LDBL_EPSILON * fabsl(b->of_row.target.max);
    if (b->input.kind == GPULOSS_LOGITS && b->target.kind == GPULOSS_LOGITS)
        e->own = distance_error(b, distance) + b->target.narrowing * fabsl(reference_cooled(r, t)) + a->u * fabsl(y->d);
    else if (b->input.kind == GPULOSS_PROBABILITIES && b->target.kind == GPULOSS_PROBABILITIES)
        e->own = 8 * a->u * fabsl(y->d) + (r->eps > 0 ? 4 * a->u : 0) + b->target.narrowing;
    else
        e->own = logarithm_error(b, r, &b->input, x, y->log_q) + logarithm_error(b, r, &b->target, t, y->log_p) +
                 a->u * fabsl(y->d) + (b->setting.is_direct ? direct_error(b, r, y) : 0);
}

/* Each side's p or q times the error of a logarithm in long double. NaN has no error. */
static void add_reference_error(const reference_pair *y, pair_errors *e) {
    long double p = isnan(y->p) ? 0 : y->p, q = isnan(y->q) ? 0 : y->q;
    e->term += (p + q) * e->reference;
    e->summed += (p + q) * e->reference;
    e->of_p += e->reference;
    e->of_q += e->reference;
    e->of_log_p += p * e->reference;
    e->of_log_q += q * e->reference;
}

/* p - q comes from d where both sides are logarithms, in types of more than 16 bits. */
static pair_setting setting_of(const divergence_bounds *b, const reference_kl_div *r) {
    bool is_short = b->setting.dtype == GPULOSS_F16 || b->setting.dtype == GPULOSS_BF16;
    pair_setting s;
    s.dtype = b->setting.dtype;
    s.a = b->a;
    s.divergence = r->divergence;
    s.beta = r->beta;
    s.eps = (long double)r->eps;
    s.is_surplus = r->input_kind == GPULOSS_LOGITS && r->target_kind == GPULOSS_LOGITS;
    s.has_small = r->input_kind == GPULOSS_PROBABILITIES || r->target_kind == GPULOSS_PROBABILITIES;
    s.by_ratio = !is_short && !s.has_small;
    s.any_form = false;
    return s;
}

static pair_errors errors_of(const divergence_bounds *b, const reference_kl_div *r, const reference_pair *y,
                             int64_t c) {
    double x = r->input[b->row * r->classes + c], t = r->target[b->row * r->classes + c];
    pair_setting setting;
    pair_errors e;
    memset(&e, 0, sizeof e);
    if (isnan(y->p) || isnan(y->q)) /* the results are NaN then, or 0 */
        return e;
    e.q = probability_error(b, r, &b->input, x, y->q);
    e.p = probability_error(b, r, &b->target, t, y->p);
    set_ratio_errors(b, r, y, x, t, &e);
    setting = setting_of(b, r);
    pair_errors_of(&setting, y, &e);
    add_reference_error(y, &e);
    return e;
}

/* lse_t - lse_x = (max_t - max_x) + (log S_t - log S_x): two differences and their sum. In distant sides the maxima are
 * rounded as the logits are. */
static long double shared_error(const divergence_bounds *b) {
    const reference_row *x = &b->of_row.input, *t = &b->of_row.target;
    long double of_maxima = t->max - x->max, logs = t->log_sum - x->log_sum;
    if (b->input.kind != GPULOSS_LOGITS || b->target.kind != GPULOSS_LOGITS)
        return b->input.shared + b->target.shared;
    return b->input.shared + b->target.shared + distance_error(b, of_maxima) +
           b->a.u * (fabsl(logs) + (b->may_be_close ? fabsl(of_maxima + logs) : 0));
}

/* Sums of a row are formed in double, whatever the order, and rounded once. A sum of -p or -q is -1 for logits. For
 * other kinds these terms are added up in float, at most 16 at a time, by halves. The sums of a direct KL are of the
 * arithmetic's type. */
static long double sum_error(const divergence_bounds *b, const reference_kl_div *r, bool known, gpuloss_kind kind,
                             long double errors, long double magnitudes) {
    long double in_double = ldexpl(1, -53) * ((long double)r->classes + 2);
    if (known && kind == GPULOSS_LOGITS)
        return 0;
    return errors + magnitudes * (in_double + (known ? 5 : 1) * b->a.u + b->added);
}

/* Errors and magnitudes of the sums of a row. */
typedef struct row_sums {
    long double f, slope, magnitude, log_p, log_q, log_p_magnitude, log_q_magnitude, direct;
} row_sums;

static row_sums sums_of(const divergence_bounds *b, const reference_kl_div *r) {
    row_sums s = {0, 0, 0, 0, 0, 0, 0, 0};
    int64_t c;
    for (c = 0; c < r->classes; c++) {
        reference_pair y = b->pairs[c];
        pair_errors e = b->errors[c] = errors_of(b, r, &y, c);
        s.f += e.summed;
        s.slope += e.slope;
        s.magnitude += fabsl(y.f);
        if (b->setting.is_direct && isfinite(y.d))
            s.direct += (reference_is_forward_kl(r->divergence, r->beta) ? y.p : y.q) * (fabsl(y.d) + 2 * b->shift);
        s.log_p += e.of_log_p;
        s.log_q += e.of_log_q;
        s.log_p_magnitude += fabsl(y.of_log_p);
        s.log_q_magnitude += fabsl(y.of_log_q);
    }
    return s;
}

void divergence_bounds_of(divergence_setting setting, const reference_kl_div *r, int64_t row, divergence_bounds *b) {
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
    set_distance(r, b);
    set_direct(r, b);
    b->shared = shared_error(b);
    s = sums_of(b, r);
    b->sum_of_log_p =
        sum_error(b, r, reference_is_reverse_kl(r->divergence, r->beta), r->input_kind, s.log_p, s.log_p_magnitude);
    b->sum_of_log_q =
        sum_error(b, r, reference_is_forward_kl(r->divergence, r->beta), r->target_kind, s.log_q, s.log_q_magnitude);
    /* The sum of the row; r F is rounded, and the loss. Each product of a direct KL is rounded, too, and two sums. */
    b->loss = s.f + fabsl(s.slope) * b->shared + ldexpl(1, -53) * (long double)r->classes * s.magnitude;
    b->loss += (2 * b->added + 2 * b->a.u) * s.direct;
    b->sum_of_log_q += reference_is_reverse_kl(r->divergence, r->beta) ? (2 * b->added + 2 * b->a.u) * s.direct : 0;
    b->loss = b->factor * (b->loss + 3 * b->a.u * fabsl(b->of_row.f)) + b->a.smallest;
}

void divergence_bounds_free(divergence_bounds *b) {
    free(b->pairs);
    free(b->errors);
}

/* The parts of the gradient of one side, and their errors. */
typedef struct entry {
    gpuloss_kind kind;
    gpuloss_dtype stored;
    long double value;                      /* s times the derivative */
    long double of_p_error;                 /* of a probability */
    long double u, u_error;                 /* of a logarithm */
    long double p, p_error, sum, sum_error; /* of a logit: u - p sum u */
} entry;

/* The error of s times the derivative: eight roundings of s, including r and F, and the product. For logits u - p sum u
 * is a product and a difference; then 1/T and its product. A stored number may be larger than the reference by the
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
