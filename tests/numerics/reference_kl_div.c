#include <math.h>
#include <stddef.h>

#include "reference.h"

/* D: 1 (none, sum), rows classes (mean), rows (batchmean). */
static long double divisor_of(const reference_kl_div *r) {
    if (r->reduction == GPULOSS_BATCHMEAN)
        return (long double)r->rows;
    if (r->reduction == GPULOSS_MEAN)
        return (long double)r->rows * (long double)r->classes;
    return 1;
}

/* log(a / b) from the relative difference where the two are near each other, so that it keeps its digits. a, b > 0. */
static long double log_ratio(long double a, long double b) {
    long double difference = (a - b) / b;
    return fabsl(difference) < 0.5L ? log1pl(difference) : logl(a) - logl(b);
}

/* term = t (log(t + eps) - log(q + eps)); eps is added to probabilities only.
 * t = 0 contributes 0, unless PyTorch's zeros are wanted: xlogy(t, t) - t log q when the target is a probability,
 * exp(log t) (log t - log q) when it is a logarithm, in which 0 * inf is NaN. */
static long double term_of(const reference_kl_div *r, double input, double target) {
    long double eps = (long double)r->eps, x = (long double)input, y = (long double)target;
    int input_is_log = r->input_kind == GPULOSS_LOG_PROBABILITIES;
    int target_is_log = r->target_kind == GPULOSS_LOG_PROBABILITIES;
    long double t = target_is_log ? expl(y) : y;
    long double log_q = input_is_log ? x : logl(x + eps);
    if (target_is_log ? isinf(y) && y < 0 : t == 0) {
        if (!r->pytorch_zeros)
            return 0;
        return target_is_log ? t * (y - log_q) : 0 - t * log_q;
    }
    if (isnan(t) || t < 0)
        return (long double)NAN;
    if (target_is_log)
        return t * (y - log_q);
    if (input_is_log)
        return t * (logl(t + eps) - x);
    if (x + eps > 0)
        return t * log_ratio(t + eps, x + eps);
    return t * (logl(t + eps) - log_q);
}

/* dq = -t / (q + eps) s for probabilities, dx = -t s for logarithms; 0 where t = 0, as for the term. PyTorch's log has
 * the derivative 1 / q, so that its gradient at t = 0, q = 0 is 0 * inf. */
static long double gradient_of(const reference_kl_div *r, double input, double target, long double s) {
    int target_is_log = r->target_kind == GPULOSS_LOG_PROBABILITIES;
    long double t = target_is_log ? expl((long double)target) : (long double)target;
    if (target_is_log ? isinf(target) && target < 0 : t == 0) {
        if (r->pytorch_zeros && r->input_kind == GPULOSS_PROBABILITIES)
            return -t / ((long double)input + (long double)r->eps) * s;
        return 0;
    }
    if (r->input_kind == GPULOSS_LOG_PROBABILITIES)
        return -t * s;
    return -t / ((long double)input + (long double)r->eps) * s;
}

void reference_kl_div_run(reference_kl_div *r) {
    long double sum = 0;
    int64_t row, c;
    r->divisor = divisor_of(r);
    for (row = 0; row < r->rows; row++) {
        long double s = r->grad_scale * (r->grad_loss_rows ? (long double)r->grad_loss_rows[row] : 1) / r->divisor;
        long double row_sum = 0;
        for (c = 0; c < r->classes; c++) {
            int64_t i = row * r->classes + c;
            long double term = term_of(r, r->input[i], r->target[i]);
            row_sum += term;
            if (r->terms)
                r->terms[i] = term;
            if (r->grad)
                r->grad[i] = gradient_of(r, r->input[i], r->target[i], s);
        }
        sum += row_sum;
        if (r->loss_rows)
            r->loss_rows[row] = row_sum;
        if (r->scale_rows)
            r->scale_rows[row] = s;
    }
    r->loss = sum / r->divisor;
}
