#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "reference.h"

row_kind reference_row_kind(const reference_cross_entropy *r, int64_t row) {
    int64_t y;
    if (r->target_probabilities)
        return ROW_NORMAL;
    y = r->targets[row];
    if (r->use_ignore_index && y == r->ignore_index)
        return ROW_IGNORED;
    return y < 0 || y >= r->classes ? ROW_BAD_TARGET : ROW_NORMAL;
}

bool reference_is_silent(const reference_cross_entropy *r, int64_t row) {
    row_kind kind = reference_row_kind(r, row);
    return kind == ROW_IGNORED || (kind == ROW_NORMAL && r->row_weights && fpclassify(r->row_weights[row]) == FP_ZERO);
}

int64_t reference_element(const reference_cross_entropy *r, int64_t row, int64_t c) {
    if (r->inner > 0)
        return (row / r->inner * r->classes + c) * r->inner + row % r->inner;
    return row * r->classes + c;
}

static long double scale_of(const reference_cross_entropy *r) {
    return r->logit_scale != 0 ? (long double)r->logit_scale : 1;
}

long double reference_logit(const reference_cross_entropy *r, double given) {
    long double x = (long double)given * scale_of(r), cap = (long double)r->softcap;
    bool masked = isinf(given) && x < 0; /* stays masked */
    return cap > 0 && !masked ? cap * tanhl(x / cap) : x;
}

/* d tanh(z) = 1 / cosh(z)^2, which keeps its digits where 1 - tanh(z)^2 does not. */
long double reference_logit_slope(const reference_cross_entropy *r, double given) {
    long double x = (long double)given * scale_of(r), cap = (long double)r->softcap, cosh_z;
    if (!(cap > 0))
        return scale_of(r);
    cosh_z = coshl(x / cap);
    return scale_of(r) / cosh_z / cosh_z;
}

static long double weight_of(const reference_cross_entropy *r, int64_t c) {
    return r->class_weights ? (long double)r->class_weights[c] : 1;
}

/* q_c has two parts: the first only where c is the target, the second for any class. */
static long double weight_of_target(const reference_cross_entropy *r, int64_t row, int64_t c) {
    bool is_target = !r->target_probabilities && c == r->targets[row];
    return is_target ? (1 - (long double)r->label_smoothing) * weight_of(r, c) : 0;
}

static long double weight_of_any(const reference_cross_entropy *r, int64_t row, int64_t c) {
    long double e = (long double)r->label_smoothing, share = e > 0 ? e / (long double)r->classes : 0;
    if (r->target_probabilities)
        share += (1 - e) * (long double)r->target_probabilities[reference_element(r, row, c)];
    return weight_of(r, c) * share;
}

long double reference_target_weight(const reference_cross_entropy *r, int64_t row, int64_t c) {
    return weight_of_target(r, row, c) + weight_of_any(r, row, c);
}

/* lse = log sum_c exp(x_c) = m + log sum_c exp(x_c - m).
 * A row with +inf or NaN has no softmax: everything about it is NaN. A row of -inf only has lse = -inf, the logarithm
 * of an empty sum, and nothing else. */
static void softmax(const long double *x, int64_t classes, reference_row *info) {
    long double m = -(long double)INFINITY, sum = 0, distance = 0;
    int64_t c;
    for (c = 0; c < classes; c++) {
        if (isnan(x[c]) || (isinf(x[c]) && x[c] > 0)) {
            info->max = info->log_sum = info->mean_distance = (long double)NAN;
            return;
        }
        if (x[c] > m)
            m = x[c];
    }
    info->max = info->log_sum = m;
    info->mean_distance = 0;
    if (isinf(m))
        return;
    for (c = 0; c < classes; c++) {
        long double e = expl(x[c] - m);
        sum += e;
        if (e > 0)
            distance += e * (m - x[c]);
    }
    info->log_sum = logl(sum);
    info->mean_distance = distance / sum;
}

void *reference_memory(int64_t classes, size_t size) {
    void *memory = malloc((size_t)classes * size);
    if (!memory) {
        fprintf(stderr, "out of host memory: a row of %lld classes\n", (long long)classes);
        abort();
    }
    return memory;
}

void reference_softmax(const double *x, int64_t classes, reference_row *info) {
    long double *wide = (long double *)reference_memory(classes, sizeof *wide);
    int64_t c;
    for (c = 0; c < classes; c++)
        wide[c] = (long double)x[c];
    softmax(wide, classes, info);
    free(wide);
}

/* The lowest class of the largest x, where a NaN is larger than any number. */
static int64_t argmax_of(const long double *x, int64_t classes) {
    int64_t c, best = 0;
    for (c = 1; c < classes && !isnan(x[best]); c++)
        if (isnan(x[c]) || x[c] > x[best])
            best = c;
    return best;
}

/* D: 1 (none, sum), rows (batchmean). mean: the given one; rows for target_probabilities; else the sum of w[y] over the
 * rows that are not ignored. A bad target adds 1 without weights, or nothing with weights. */
static long double divisor_of(const reference_cross_entropy *r) {
    long double sum = 0;
    int64_t row;
    if (r->reduction == GPULOSS_BATCHMEAN)
        return (long double)r->rows;
    if (r->reduction != GPULOSS_MEAN)
        return 1;
    if (r->external_divisor > 0)
        return (long double)r->external_divisor;
    for (row = 0; row < r->rows; row++) {
        row_kind kind = reference_row_kind(r, row);
        if (r->target_probabilities || (kind == ROW_BAD_TARGET && !r->class_weights))
            sum += 1;
        else if (kind == ROW_NORMAL)
            sum += weight_of(r, r->targets[row]);
    }
    return sum;
}

/* One row of the softmax, from which its results are formed. */
typedef struct row_state {
    int64_t row;
    row_kind kind;
    const long double *x;
    reference_row info;
    long double lse;
    long double r, z; /* row weight, lse_square_scale lse^2 */
} row_state;

/* lse - x_c, without cancelling m. */
static long double distance_of(const reference_cross_entropy *r, const row_state *s, int64_t c) {
    return r->lse_in ? s->lse - s->x[c] : s->info.log_sum + (s->info.max - s->x[c]);
}

/* sum_c q_c (lse - x_c) + z. A class of weight 0 adds nothing, nor does a target above a given lse that was rounded. A
 * row without a softmax has no loss. */
static long double loss_of(const reference_cross_entropy *r, const row_state *s) {
    long double sum = 0;
    int64_t c;
    if (reference_is_silent(r, s->row))
        return 0;
    if (s->kind == ROW_BAD_TARGET || !isfinite(s->info.max))
        return (long double)NAN;
    for (c = 0; c < r->classes; c++) {
        long double hard = weight_of_target(r, s->row, c), soft = weight_of_any(r, s->row, c), d = distance_of(r, s, c);
        if (hard != 0)
            sum += hard * (d < 0 ? 0 : d);
        if (soft != 0)
            sum += soft * d;
    }
    return s->r * (sum + s->z);
}

/* dx_c = s ((sum q + 2 lse_square_scale lse) p_c - q_c), p = exp(x - lse), the target's at most 1, and from there to the
 * logit as given; 0 for a row that is silent or whose target is out of range. */
static void row_gradient(reference_cross_entropy *r, const row_state *s, long double scale) {
    long double weight = 2 * (long double)r->lse_square_scale * (r->lse_square_scale > 0 ? s->lse : 0);
    bool writes = s->kind == ROW_NORMAL && !reference_is_silent(r, s->row);
    int64_t c;
    for (c = 0; c < r->classes && writes; c++)
        weight += reference_target_weight(r, s->row, c);
    for (c = 0; c < r->classes; c++) {
        int64_t i = reference_element(r, s->row, c);
        long double p = r->lse_in ? s->x[c] - s->lse : s->x[c] - s->info.max - s->info.log_sum, g = 0;
        if (!isnan(p))
            p = expl(p);
        if (p > 1 && writes && weight_of_target(r, s->row, c) != 0)
            p = 1;
        if (writes)
            g = isnan(p)
                    ? p
                    : scale * (weight * p - reference_target_weight(r, s->row, c)) * reference_logit_slope(r, r->x[i]);
        if (r->probability)
            r->probability[i] = p;
        if (r->grad)
            r->grad[i] = g;
    }
}

/* dt_c = s (1-e) w_c (lse - x_c) */
static void row_target_gradient(reference_cross_entropy *r, const row_state *s, long double scale) {
    int64_t c;
    for (c = 0; c < r->classes; c++) {
        long double factor = (1 - (long double)r->label_smoothing) * weight_of(r, c);
        r->grad_target_probabilities[reference_element(r, s->row, c)] =
            factor != 0 && !reference_is_silent(r, s->row) ? scale * factor * distance_of(r, s, c) : 0;
    }
}

static row_state row_state_of(const reference_cross_entropy *r, int64_t row, long double *x) {
    row_state s;
    int64_t c;
    for (c = 0; c < r->classes; c++)
        x[c] = reference_logit(r, r->x[reference_element(r, row, c)]);
    s.row = row;
    s.kind = reference_row_kind(r, row);
    s.x = x;
    softmax(x, r->classes, &s.info);
    s.lse = r->lse_in ? (long double)r->lse_in[row] : s.info.max + s.info.log_sum;
    s.r = r->row_weights ? (long double)r->row_weights[row] : 1;
    s.z = s.kind == ROW_BAD_TARGET  ? (long double)NAN
          : r->lse_square_scale > 0 ? (long double)r->lse_square_scale * s.lse * s.lse
                                    : 0;
    return s;
}

static void run_row(reference_cross_entropy *r, const row_state *s) {
    long double scale = s->r * r->grad_scale, loss = loss_of(r, s);
    long double z = reference_is_silent(r, s->row) ? 0 : s->r * s->z;
    int64_t best = argmax_of(s->x, r->classes);
    scale = r->divisor == 0 ? 0 : scale / r->divisor; /* where nothing has a weight nothing has a gradient */
    if (r->grad_loss_rows)
        scale *= (long double)r->grad_loss_rows[s->row];
    r->bad_targets += s->kind == ROW_BAD_TARGET;
    r->correct += s->kind == ROW_NORMAL && !r->target_probabilities && best == r->targets[s->row];
    r->loss += loss;
    r->z_loss += z;
    if (r->argmax)
        r->argmax[s->row] = best;
    if (r->loss_rows)
        r->loss_rows[s->row] = loss;
    if (r->z_loss_rows)
        r->z_loss_rows[s->row] = z;
    if (r->lse)
        r->lse[s->row] = s->info.max + s->info.log_sum;
    if (r->scale_rows)
        r->scale_rows[s->row] = scale;
    if (r->row_info)
        r->row_info[s->row] = s->info;
    if (r->grad || r->probability)
        row_gradient(r, s, scale);
    if (r->grad_target_probabilities)
        row_target_gradient(r, s, scale);
}

void reference_cross_entropy_run(reference_cross_entropy *r) {
    long double *x = (long double *)reference_memory(r->classes, sizeof *x);
    int64_t row;
    r->divisor = divisor_of(r);
    r->bad_targets = r->correct = 0;
    r->loss = r->z_loss = 0;
    for (row = 0; row < r->rows; row++) {
        row_state s = row_state_of(r, row, x);
        run_row(r, &s);
    }
    r->loss /= r->divisor;
    r->z_loss /= r->divisor;
    free(x);
}
