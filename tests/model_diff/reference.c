#include "reference.h"

#include "../numerics/bounds_divergence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BASE, OTHER, SIDES };

/* The figures of one row, and their bounds. */
typedef struct row_figures {
    double kl, loss[SIDES], kl_bound, loss_bound[SIDES];
    bool equal_top;
} row_figures;

/* ---- a row ---- */

static int argmax_of(const double *logits, int classes) {
    int c, best = 0;
    for (c = 1; c < classes; c++)
        if (logits[c] > logits[best])
            best = c;
    return best;
}

/* The sum of p log(p / q) - p + q. */
static double divergence_of(const double *log_p, const double *log_q, int classes) {
    long double sum = 0;
    int c;
    for (c = 0; c < classes; c++)
        sum += (long double)(exp(log_p[c]) * (log_p[c] - log_q[c]) - exp(log_p[c]) + exp(log_q[c]));
    return (double)sum;
}

/* The most by which a divergence changes with logarithms that are off by h: see examples/model_diff.c. */
static double effect_of(double h, double kl) {
    return h * (kl + 2 * sqrt(2 * kl)) + 4 * h * h;
}

/* The numerics tests have the same bounds. */
static row_figures row_of_arrays(gpuloss_dtype dtype, const model_row *base, const model_row *other) {
    const divergence_setting setting = {dtype, dtype, false}; /* two sides of logits */
    const double *logits[SIDES] = {base->logits, other->logits};
    reference_kl_div r;
    divergence_bounds bounds;
    row_figures figures;
    int side;
    memset(&r, 0, sizeof r);
    r.rows = 1;
    r.classes = base->classes;
    r.target = logits[BASE];
    r.input = logits[OTHER];
    r.target_kind = r.input_kind = GPULOSS_LOGITS;
    r.reduction = GPULOSS_NONE;
    divergence_bounds_of(setting, &r, 0, &bounds);
    figures.kl = (double)bounds.of_row.f;
    figures.kl_bound = (double)bounds.loss;
    divergence_bounds_free(&bounds);
    for (side = 0; side < SIDES; side++) {
        const double target = logits[side][base->target];
        reference_row row;
        reference_softmax(logits[side], base->classes, &row);
        figures.loss[side] = (double)(row.max + row.log_sum - (long double)target);
        figures.loss_bound[side] =
            (double)cross_entropy_row_bounds(dtype, base->classes, &row, (long double)target).loss;
    }
    figures.equal_top = argmax_of(logits[BASE], base->classes) == argmax_of(logits[OTHER], base->classes);
    return figures;
}

/* Stored log-probabilities are given to gpuloss as floats, which changes them by a unit roundoff. The divergence is
 * S (KL + exp(d) - 1 - d), and lse is subtracted from each loss. The factor of d's error is exp(d) - 1. */
static row_figures row_of_kld(const model_row *base, const model_row *other) {
    const model_row *rows[SIDES] = {base, other};
    row_figures figures = row_of_arrays(GPULOSS_F32, base, other);
    double lse[SIDES], lse_bound[SIDES], largest = 0;
    int side, c;
    for (side = 0; side < SIDES; side++) {
        const double target = rows[side]->logits[base->target];
        reference_row row;
        reference_softmax(rows[side]->logits, base->classes, &row);
        lse[side] = (double)(row.max + row.log_sum);
        lse_bound[side] = (double)cross_entropy_row_bounds(GPULOSS_F32, base->classes, &row, (long double)target).lse;
        for (c = 0; c < base->classes; c++)
            largest = fmax(largest, fabs(rows[side]->logits[c]));
    }
    figures.kl = divergence_of(base->logits, other->logits, base->classes);
    figures.kl_bound = exp(lse[BASE]) * (figures.kl_bound +
                                         fabs(expm1(lse[OTHER] - lse[BASE])) * (lse_bound[BASE] + lse_bound[OTHER]) +
                                         (lse_bound[BASE] + lse_bound[OTHER]) * (lse_bound[BASE] + lse_bound[OTHER])) +
                       figures.kl * expm1(lse_bound[BASE]) + effect_of(ldexp(largest, -24), figures.kl);
    for (side = 0; side < SIDES; side++) {
        figures.loss[side] = -rows[side]->logits[base->target];
        figures.loss_bound[side] += lse_bound[side] + ldexp(largest, -24);
    }
    return figures;
}

/* ---- all rows ---- */

static int compare_doubles(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double mean_of(const double *values, int count) {
    long double sum = 0;
    int i;
    for (i = 0; i < count; i++)
        sum += (long double)values[i];
    return (double)(sum / count);
}

static double root_mean_square(const double *values, int count) {
    double squares[ROWS];
    int i;
    for (i = 0; i < count; i++)
        squares[i] = values[i] * values[i];
    return sqrt(mean_of(squares, count));
}

/* Standard error of the mean: the deviation with count - 1, over the root of the count. */
static double error_of_mean(const double *values, int count) {
    double off[ROWS];
    int i;
    for (i = 0; i < count; i++)
        off[i] = values[i] - mean_of(values, count);
    return root_mean_square(off, count) / sqrt(count - 1);
}

/* A mean is off by at most the mean of the bounds. Its standard error is a seminorm of the values, and off by at most that
 * of the bounds: their root mean square over the root of count - 1. Sums in double add `roundings` of the largest value. */
typedef struct estimate {
    double mean, error, mean_bound, error_bound;
} estimate;

static estimate estimate_of(const double *values, const double *bounds, int count) {
    estimate e;
    double largest = 0, roundings;
    int i;
    for (i = 0; i < count; i++)
        largest = fmax(largest, fabs(values[i]));
    roundings = ldexp(4 * count, -53) * largest;
    e.mean = mean_of(values, count);
    e.error = error_of_mean(values, count);
    e.mean_bound = mean_of(bounds, count) + roundings;
    e.error_bound = root_mean_square(bounds, count) / sqrt(count - 1) + roundings;
    return e;
}

static void expect(FILE *file, const char *name, double value, double bound) {
    fprintf(file, "%s,%.17g,,%.3g,\n", name, value, bound);
}

static void expect_mean(FILE *file, const char *name, const estimate *e) {
    fprintf(file, "%s,%.17g,%.17g,%.3g,%.3g\n", name, e->mean, e->error, e->mean_bound, e->error_bound);
}

/* exp of a mean: its standard error is that of the mean, times its value. */
static void expect_exp(FILE *file, const char *name, const estimate *e) {
    const double value = exp(e->mean), bound = value * expm1(e->mean_bound) + ldexp(value, -51);
    fprintf(file, "%s,%.17g,%.17g,%.3g,%.3g\n", name, value, value * e->error, bound,
            bound * e->error + (value + bound) * e->error_bound);
}

/* Each rank of the sorted values is off by at most the largest bound. So are numbers between two ranks. */
static void expect_quantiles(FILE *file, double *kls, const double *bounds, int count) {
    static const struct {
        const char *name;
        int thousandths;
    } quantiles[] = {{"kl_median", 500}, {"kl_90", 900},   {"kl_95", 950},
                     {"kl_99", 990},     {"kl_99_9", 999}, {"kl_largest", 1000}};
    double bound = 0;
    size_t i;
    int k;
    for (k = 0; k < count; k++)
        bound = fmax(bound, bounds[k]);
    qsort(kls, (size_t)count, sizeof *kls, compare_doubles);
    for (i = 0; i < sizeof quantiles / sizeof quantiles[0]; i++) {
        const int scaled = quantiles[i].thousandths * (count - 1), rank = scaled / 1000;
        const double above = kls[rank + (rank + 1 < count)], part = scaled % 1000 / 1000.0;
        expect(file, quantiles[i].name, (1 - part) * kls[rank] + part * above, bound + ldexp(above, -50));
    }
}

void write_expected(FILE *file, FILE *kls, gpuloss_dtype dtype, bool is_kld, const model_row *base,
                    const model_row *other) {
    static double kl[ROWS], kl_bound[ROWS], loss[SIDES][ROWS], loss_bound[SIDES][ROWS], more[ROWS], more_bound[ROWS];
    static double difference[ROWS], difference_bound[ROWS], equal[ROWS], no_bound[ROWS];
    int row, side, count = 0, cut_off[SIDES] = {0, 0};
    estimate e;
    for (row = 0; row < ROWS; row++) {
        row_figures f;
        if (base[row].left_out)
            continue;
        f = is_kld ? row_of_kld(&base[row], &other[row]) : row_of_arrays(dtype, &base[row], &other[row]);
        kl[count] = f.kl;
        fprintf(kls, "%.17g\n", f.kl);
        kl_bound[count] = f.kl_bound;
        for (side = 0; side < SIDES; side++) {
            loss[side][count] = f.loss[side];
            loss_bound[side][count] = f.loss_bound[side];
        }
        more[count] = f.loss[OTHER] - f.loss[BASE];
        more_bound[count] = f.loss_bound[OTHER] + f.loss_bound[BASE];
        difference[count] = exp(-f.loss[OTHER]) - exp(-f.loss[BASE]);
        difference_bound[count] =
            exp(-f.loss[OTHER]) * expm1(f.loss_bound[OTHER]) + exp(-f.loss[BASE]) * expm1(f.loss_bound[BASE]);
        equal[count++] = f.equal_top;
        cut_off[BASE] += base[row].cut_off[base[row].target];
        cut_off[OTHER] += other[row].cut_off[base[row].target];
    }
    expect(file, "tokens", count, 0);
    if (count < ROWS)
        expect(file, "nonfinite_rows", ROWS - count, 0);
    for (side = 0; side < SIDES; side++) {
        e = estimate_of(loss[side], loss_bound[side], count);
        expect_exp(file, side == BASE ? "perplexity_base" : "perplexity_other", &e);
    }
    e = estimate_of(more, more_bound, count);
    expect_exp(file, "perplexity_ratio", &e);
    e = estimate_of(kl, kl_bound, count);
    expect_mean(file, "kl_mean", &e);
    expect_quantiles(file, kl, kl_bound, count);
    /* A root mean square is a norm: it is off by at most that of the bounds. */
    expect(file, "p_difference_rms", root_mean_square(difference, count),
           root_mean_square(difference_bound, count) + ldexp(4 * count, -53));
    e = estimate_of(equal, no_bound, count);
    expect_mean(file, "equal_top", &e);
    if (is_kld) {
        expect(file, "cut_off_base", cut_off[BASE], 0);
        expect(file, "cut_off_other", cut_off[OTHER], 0);
    }
    if (ferror(file) + ferror(kls) != 0 || fclose(file) + fclose(kls) != 0) {
        perror("what is expected could not be written");
        exit(3);
    }
}

/* ---- the bounds of .kld files ---- */

static void log_probabilities(const model_row *row, double *log_p) {
    reference_row info;
    int c;
    reference_softmax(row->logits, row->classes, &info);
    for (c = 0; c < row->classes; c++)
        log_p[c] = (double)((long double)row->logits[c] - info.max - info.log_sum);
}

/* The largest of a row's logits less the next. */
static double lead_of(const double *log_p, int classes) {
    const int best = argmax_of(log_p, classes);
    double next = -(double)INFINITY;
    int c;
    for (c = 0; c < classes; c++)
        if (c != best)
            next = fmax(next, log_p[c]);
    return log_p[best] - next;
}

static bool side_within(const model_row *stored, const double *log_p, double h) {
    const int classes = stored->classes;
    double sum = 0;
    int c;
    for (c = 0; c < classes; c++) {
        sum += exp(stored->logits[c]);
        if (!stored->cut_off[c] && fabs(stored->logits[c] - log_p[c]) > h)
            return false;
    }
    return sum <= exp(h) * (1 + classes * exp(-16)) &&
           (argmax_of(log_p, classes) == argmax_of(stored->logits, classes) || lead_of(log_p, classes) <= 2 * h);
}

bool within_stated_bounds(const char *kind, const model_row *base, const model_row *other, const model_row *stored_base,
                          const model_row *stored_other) {
    const double h = 1.4e-4;
    const int classes = base[0].classes;
    int row, c, cut_off = 0, bad = 0;
    for (row = 0; row < ROWS; row++) {
        double log_p[CLASSES], log_q[CLASSES], lost = 0, kl, stored, effect;
        log_probabilities(&base[row], log_p);
        log_probabilities(&other[row], log_q);
        /* The terms of classes that are cut off are all that a divergence may lose but for rounding. */
        for (c = 0; c < classes; c++)
            if (stored_base[row].cut_off[c] || stored_other[row].cut_off[c]) {
                lost += exp(log_p[c]) * (log_p[c] - log_q[c]) - exp(log_p[c]) + exp(log_q[c]);
                cut_off++;
            }
        kl = divergence_of(log_p, log_q, classes);
        stored = divergence_of(stored_base[row].logits, stored_other[row].logits, classes);
        effect = effect_of(h, kl);
        if (!(stored - kl <= classes * exp(-16) * kl + effect && kl - stored <= lost + effect &&
              side_within(&stored_base[row], log_p, h) && side_within(&stored_other[row], log_q, h))) {
            printf("%s: row %d: is not within the stated bounds: KL %.9g, stored %.9g\n", kind, row, kl, stored);
            bad++;
        }
    }
    printf("%s: %d classes of %d are cut off\n", kind, cut_off, ROWS * classes);
    return bad == 0 && cut_off > 0;
}
