#include <math.h>
#include <stddef.h>

#include "reference.h"

row_kind reference_row_kind(const reference_cross_entropy *r, int64_t row) {
    int64_t y = r->targets[row];
    if (r->use_ignore_index && y == r->ignore_index)
        return ROW_IGNORED;
    return y < 0 || y >= r->classes ? ROW_BAD_TARGET : ROW_NORMAL;
}

/* lse = log sum_c exp(x_c) = m + log sum_c exp(x_c - m).
 * A row with +inf or NaN has no softmax: everything about it is NaN. A row of -inf only has lse = -inf, the logarithm
 * of an empty sum, and nothing else. */
void reference_softmax(const double *x, int64_t classes, reference_row *info) {
    long double m = -(long double)INFINITY, sum = 0, distance = 0;
    int64_t c;
    for (c = 0; c < classes; c++) {
        if (isnan(x[c]) || (isinf(x[c]) && x[c] > 0)) {
            info->max = info->log_sum = info->mean_distance = (long double)NAN;
            return;
        }
        if ((long double)x[c] > m)
            m = (long double)x[c];
    }
    info->max = info->log_sum = m;
    info->mean_distance = 0;
    if (isinf(m))
        return;
    for (c = 0; c < classes; c++) {
        long double e = expl((long double)x[c] - m);
        sum += e;
        if (e > 0)
            distance += e * (m - (long double)x[c]);
    }
    info->log_sum = logl(sum);
    info->mean_distance = distance / sum;
}

/* D: 1 (none, sum), rows that are not ignored (mean), rows (batchmean). */
static long double divisor_of(const reference_cross_entropy *r) {
    int64_t row, kept = 0;
    if (r->reduction == GPULOSS_BATCHMEAN)
        return (long double)r->rows;
    if (r->reduction != GPULOSS_MEAN)
        return 1;
    for (row = 0; row < r->rows; row++)
        kept += reference_row_kind(r, row) != ROW_IGNORED;
    return (long double)kept;
}

/* dx_c = s (exp(x_c - lse) - [c = y]); 0 for a row that is ignored or whose target is out of range. */
static void row_gradient(reference_cross_entropy *r, int64_t row, row_kind kind, const reference_row *info,
                         long double s) {
    const double *x = r->x + row * r->classes;
    int64_t c, y = r->targets[row];
    for (c = 0; c < r->classes; c++) {
        long double p, g;
        if (r->lse_in)
            p = expl((long double)x[c] - (long double)r->lse_in[row]);
        else
            p = expl((long double)x[c] - info->max - info->log_sum);
        g = kind == ROW_NORMAL ? s * (p - (c == y ? 1 : 0)) : 0;
        if (r->probability)
            r->probability[row * r->classes + c] = p;
        if (r->grad)
            r->grad[row * r->classes + c] = g;
    }
}

void reference_cross_entropy_run(reference_cross_entropy *r) {
    long double sum = 0;
    int64_t row;
    r->divisor = divisor_of(r);
    r->bad_targets = 0;
    for (row = 0; row < r->rows; row++) {
        const double *x = r->x + row * r->classes;
        row_kind kind = reference_row_kind(r, row);
        long double s = r->grad_scale * (r->grad_loss_rows ? (long double)r->grad_loss_rows[row] : 1) / r->divisor;
        long double loss = 0; /* an ignored row */
        reference_row info;
        reference_softmax(x, r->classes, &info);
        if (kind == ROW_NORMAL) /* loss_i = lse_i - x_y, without cancelling m */
            loss = info.log_sum + (info.max - (long double)x[r->targets[row]]);
        else if (kind == ROW_BAD_TARGET)
            loss = (long double)NAN;
        r->bad_targets += kind == ROW_BAD_TARGET;
        sum += loss;
        if (r->loss_rows)
            r->loss_rows[row] = loss;
        if (r->lse)
            r->lse[row] = info.max + info.log_sum;
        if (r->scale_rows)
            r->scale_rows[row] = s;
        if (r->row_info)
            r->row_info[row] = info;
        if (r->grad || r->probability)
            row_gradient(r, row, kind, &info, s);
    }
    r->loss = sum / r->divisor;
}
