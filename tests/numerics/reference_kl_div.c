#include <math.h>
#include <stdlib.h>

#include "reference.h"

static bool is_ignored(const reference_kl_div *r, int64_t row) {
    return r->labels && r->labels[row] == r->ignore_index;
}

bool reference_left_out(const reference_kl_div *r, int64_t row) {
    return is_ignored(r, row) || (r->row_weights && r->row_weights[row] == 0);
}

long double reference_divergence_divisor(gpuloss_reduction reduction, double given, int64_t rows_left,
                                         int64_t classes) {
    if (reduction != GPULOSS_MEAN && reduction != GPULOSS_BATCHMEAN)
        return 1;
    if (given > 0)
        return (long double)given;
    return (long double)rows_left * (reduction == GPULOSS_MEAN ? (long double)classes : 1);
}

long double reference_temperature(double given) {
    return given > 0 ? (long double)given : 1;
}

bool reference_is_forward_kl(gpuloss_divergence divergence, double beta) {
    return divergence == GPULOSS_FORWARD_KL || (divergence == GPULOSS_JENSEN_SHANNON && beta <= 0);
}
bool reference_is_reverse_kl(gpuloss_divergence divergence, double beta) {
    return divergence == GPULOSS_REVERSE_KL || (divergence == GPULOSS_JENSEN_SHANNON && beta >= 1);
}

long double reference_cooled(const reference_kl_div *r, double logit) {
    return (long double)logit / reference_temperature(r->temperature);
}

/* m = max z and log sum exp(z - m). A row with NaN or +inf, or of -inf alone, has no softmax: NaN comes of it. */
reference_row reference_cooled_softmax(const double *logits, int64_t classes, double temperature, long double *p) {
    reference_row info = {-(long double)INFINITY, 0, 0};
    long double sum = 0, cold = reference_temperature(temperature);
    int64_t c;
    for (c = 0; c < classes; c++)
        info.max = fmaxl(info.max, (long double)logits[c] / cold);
    for (c = 0; c < classes; c++) {
        long double distance = info.max - (long double)logits[c] / cold, e = expl(-distance);
        sum += e;
        if (!isinf(distance))
            info.mean_distance += e * distance;
        if (p)
            p[c] = e;
    }
    for (c = 0; p && c < classes; c++)
        p[c] /= sum;
    info.log_sum = logl(sum);
    info.mean_distance /= sum;
    return info;
}

/* A probability and its logarithm, from the side's element. eps is added to elements that are probabilities. The
 * logarithm of a logit is known. */
static void read_side(const reference_kl_div *r, gpuloss_kind kind, const reference_row *info, double given,
                      long double *p, long double *log_p) {
    if (kind == GPULOSS_PROBABILITIES) {
        *p = (long double)given;
        *log_p = logl((long double)given + (long double)r->eps);
    } else if (kind == GPULOSS_LOG_PROBABILITIES) {
        *log_p = (long double)given;
        *p = expl(*log_p);
    } else {
        *log_p = reference_cooled(r, given) - info->max - info->log_sum;
    }
}

/* log(a / b) from the relative difference where the two are close, so that it keeps its digits. */
static long double log_ratio(long double a, long double b) {
    long double difference = (a - b) / b;
    return a > 0 && b > 0 && fabsl(difference) < 0.5L ? log1pl(difference) : logl(a) - logl(b);
}

/* KL(a || b), where a = 0 adds nothing: f = a d, df/db = -a / (b + eps_b), df/da = d + a / (a + eps_a). */
typedef struct kl_parts {
    long double f, of_a, of_b, of_log_a, of_log_b;
} kl_parts;

static kl_parts kl_of(long double a, long double eps_a, long double b, long double eps_b, long double d) {
    kl_parts k = {0, 0, 0, 0, 0};
    if (a == 0)
        return k;
    k.f = a < 0 ? (long double)NAN : a * d;
    k.of_a = d + a / (a + eps_a);
    k.of_b = -a / (b + eps_b);
    k.of_log_a = a * k.of_a;
    k.of_log_b = -a;
    return k;
}

static void forward_kl(reference_pair *y, long double eps_p, long double eps_q) {
    kl_parts k = kl_of(y->p, eps_p, y->q, eps_q, y->d);
    y->f = k.f;
    y->of_p = k.of_a, y->of_log_p = k.of_log_a;
    y->of_q = k.of_b, y->of_log_q = k.of_log_b;
}

static void reverse_kl(reference_pair *y, long double eps_p, long double eps_q) {
    kl_parts k = kl_of(y->q, eps_q, y->p, eps_p, -y->d);
    y->f = k.f;
    y->of_q = k.of_a, y->of_log_q = k.of_log_a;
    y->of_p = k.of_b, y->of_log_p = k.of_log_b;
}

/* log(1 + w (p - q) / m), which is log(p / m) or log(q / m): next to 1 the quotient has no digits. */
static long double log_of_share(long double p, long double m, long double w_difference) {
    return fabsl(w_difference) < m / 2 ? log1pl(w_difference / m) : log_ratio(p, m);
}

/* m = b p + (1-b) q, f = b p log(p / m) + (1-b) q log(q / m). */
static void jensen_shannon(reference_pair *y, long double b) {
    long double m = b * y->p + (1 - b) * y->q, difference = y->p - y->q;
    y->of_p = y->p == 0 ? 0 : b * log_of_share(y->p, m, (1 - b) * difference);
    y->of_q = y->q == 0 ? 0 : (1 - b) * log_of_share(y->q, m, -b * difference);
    y->of_log_p = y->p * y->of_p;
    y->of_log_q = y->q * y->of_q;
    y->f = y->of_log_p + y->of_log_q;
    if (y->p < 0 || y->q < 0)
        y->f = (long double)NAN;
}

static void total_variation(reference_pair *y) {
    y->f = fabsl(y->p - y->q) / 2;
    y->of_p = isnan(y->f) ? y->f : y->p > y->q ? 0.5L : y->p < y->q ? -0.5L : 0;
    y->of_q = -y->of_p;
    y->of_log_p = y->p * y->of_p;
    y->of_log_q = y->q * y->of_q;
}

/* PyTorch's p = 0: xlogy(p, p) - p log q when the target is a probability, exp(log p) (log p - log q) when it is a
 * logarithm, in which 0 * inf is NaN. Its log q has the derivative 1 / q, so that the gradient to q is -p / q. xlogy(p, p)
 * has the derivative p / p to its second argument, which is NaN. */
static void pytorch_zero(const reference_kl_div *r, reference_pair *y, double target, long double eps_q) {
    bool is_log = r->target_kind == GPULOSS_LOG_PROBABILITIES;
    if (y->p != 0 || (is_log && !isinf(target)))
        return;
    y->f = is_log ? y->p * (y->log_p - y->log_q) : 0 - y->p * y->log_q;
    y->of_q = -y->p / (y->q + eps_q);
    y->of_p = (long double)NAN;
    y->of_log_p = is_log ? y->f + y->p : y->of_p;
}

void reference_pair_terms(gpuloss_divergence divergence, double beta, long double eps_p, long double eps_q,
                          reference_pair *y) {
    double b = divergence == GPULOSS_JENSEN_SHANNON ? beta : 0;
    if (divergence == GPULOSS_TOTAL_VARIATION)
        total_variation(y);
    else if (divergence == GPULOSS_REVERSE_KL || b >= 1)
        reverse_kl(y, eps_p, eps_q);
    else if (b > 0)
        jensen_shannon(y, (long double)b);
    else
        forward_kl(y, eps_p, eps_q);
}

/* y has the probabilities of logits. */
static void set_pair(const reference_kl_div *r, const reference_kl_row *of_row, int64_t row, int64_t c,
                     reference_pair *y) {
    double input = r->input[row * r->classes + c], target = r->target[row * r->classes + c];
    bool input_is_p = r->input_kind == GPULOSS_PROBABILITIES, target_is_p = r->target_kind == GPULOSS_PROBABILITIES;
    long double eps_q = input_is_p ? (long double)r->eps : 0, eps_p = target_is_p ? (long double)r->eps : 0;
    read_side(r, r->input_kind, &of_row->input, input, &y->q, &y->log_q);
    read_side(r, r->target_kind, &of_row->target, target, &y->p, &y->log_p);
    y->d = input_is_p && target_is_p ? log_ratio(y->p + eps_p, y->q + eps_q) : y->log_p - y->log_q;
    reference_pair_terms(r->divergence, r->beta, eps_p, eps_q, y);
    if (r->pytorch_zeros)
        pytorch_zero(r, y, target, eps_q);
}

/* The softmax of a side of logits. Its probabilities go to the pairs. */
static reference_row softmax_of(const reference_kl_div *r, const double *logits, bool is_input, reference_pair *pairs) {
    long double *p = (long double *)reference_memory(r->classes, sizeof *p);
    reference_row info = reference_cooled_softmax(logits, r->classes, r->temperature, p);
    int64_t c;
    for (c = 0; c < r->classes; c++)
        *(is_input ? &pairs[c].q : &pairs[c].p) = p[c];
    free(p);
    return info;
}

reference_kl_row reference_row_of(const reference_kl_div *r, int64_t row, reference_pair *pairs) {
    reference_kl_row of_row = {{0, 0, 0}, {0, 0, 0}, 0, 0, 0};
    int64_t c;
    if (r->input_kind == GPULOSS_LOGITS)
        of_row.input = softmax_of(r, r->input + row * r->classes, true, pairs);
    if (r->target_kind == GPULOSS_LOGITS)
        of_row.target = softmax_of(r, r->target + row * r->classes, false, pairs);
    for (c = 0; c < r->classes; c++) {
        set_pair(r, &of_row, row, c, &pairs[c]);
        of_row.f += pairs[c].f;
        of_row.sum_of_log_p += pairs[c].of_log_p;
        of_row.sum_of_log_q += pairs[c].of_log_q;
    }
    return of_row;
}

/* df/dp of probabilities, u = p df/dp of logarithms, (u - p sum u) / T of logits, where p = 0 also if the sum is infinite. */
static long double derivative(const reference_kl_div *r, gpuloss_kind kind, long double of_p, long double u,
                              long double p, long double sum) {
    if (kind == GPULOSS_PROBABILITIES)
        return of_p;
    if (kind == GPULOSS_LOG_PROBABILITIES)
        return u;
    return (p == 0 ? u : u - p * sum) / reference_temperature(r->temperature);
}

static void run_pair(reference_kl_div *r, const reference_kl_row *of_row, const reference_pair *y, int64_t i,
                     long double factor, long double s) {
    if (r->terms)
        r->terms[i] = factor * y->f;
    if (r->grad)
        r->grad[i] = s * derivative(r, r->input_kind, y->of_q, y->of_log_q, y->q, of_row->sum_of_log_q);
    if (r->grad_target)
        r->grad_target[i] = s * derivative(r, r->target_kind, y->of_p, y->of_log_p, y->p, of_row->sum_of_log_p);
}

static void leave_out(reference_kl_div *r, int64_t row) {
    int64_t i;
    for (i = row * r->classes; i < (row + 1) * r->classes; i++) {
        if (r->terms)
            r->terms[i] = 0;
        if (r->grad)
            r->grad[i] = 0;
        if (r->grad_target)
            r->grad_target[i] = 0;
    }
}

/* r_i F sum f. */
static long double run_row(reference_kl_div *r, int64_t row, reference_pair *pairs) {
    long double factor = r->row_weights ? (long double)r->row_weights[row] : 1, s;
    reference_kl_row of_row;
    int64_t c;
    if (r->temperature_squared)
        factor *= reference_temperature(r->temperature) * reference_temperature(r->temperature);
    s = r->grad_scale * (r->grad_loss_rows ? (long double)r->grad_loss_rows[row] : 1) * factor / r->divisor;
    if (r->scale_rows)
        r->scale_rows[row] = s;
    if (reference_left_out(r, row)) {
        leave_out(r, row);
        return 0;
    }
    of_row = reference_row_of(r, row, pairs);
    for (c = 0; c < r->classes; c++)
        run_pair(r, &of_row, &pairs[c], row * r->classes + c, factor, s);
    return factor * of_row.f;
}

void reference_kl_div_run(reference_kl_div *r) {
    reference_pair *pairs = (reference_pair *)reference_memory(r->classes, sizeof *pairs);
    long double sum = 0;
    int64_t row, left = 0;
    for (row = 0; row < r->rows; row++)
        left += !is_ignored(r, row);
    r->divisor = reference_divergence_divisor(r->reduction, r->external_divisor, left, r->classes);
    for (row = 0; row < r->rows; row++) {
        long double loss = run_row(r, row, pairs);
        sum += loss;
        if (r->loss_rows)
            r->loss_rows[row] = loss;
    }
    r->loss = sum / r->divisor;
    free(pairs);
}
