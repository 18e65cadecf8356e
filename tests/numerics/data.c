#include "data.h"

#include <math.h>

random_source random_from(uint64_t seed) {
    random_source r;
    r.state = seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
    return r;
}

/* splitmix64 */
static uint64_t random_next(random_source *r) {
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double random_uniform(random_source *r, double low, double high) {
    return low + (high - low) * ((double)(random_next(r) >> 11) + 0.5) * 0x1p-53;
}

double random_normal(random_source *r) {
    double radius = sqrt(-2 * log(random_uniform(r, 0, 1)));
    return radius * cos(6.283185307179586 * random_uniform(r, 0, 1));
}

int64_t random_below(random_source *r, int64_t limit) {
    return (int64_t)(random_next(r) % (uint64_t)limit);
}

const char *logits_kind_name(logits_kind kind) {
    static const char *const names[LOGITS_KINDS] = {"normal",    "wide",       "tiny",     "shifted",
                                                    "ascending", "descending", "constant", "confident"};
    return names[kind];
}

static double logit(random_source *r, logits_kind kind, int64_t c, int64_t classes, int64_t favourite) {
    double position = (double)c / (double)classes;
    switch (kind) {
    case LOGITS_WIDE:
        return random_uniform(r, -80, 80);
    case LOGITS_TINY:
        return 1e-5 * random_normal(r);
    case LOGITS_SHIFTED:
        return 1e4 + random_normal(r);
    case LOGITS_ASCENDING:
        return 20 * position - 3;
    case LOGITS_DESCENDING:
        return 3 - 20 * position;
    case LOGITS_CONSTANT:
        return 0.75;
    case LOGITS_CONFIDENT:
        return c == favourite ? 50 : random_normal(r);
    case LOGITS_NORMAL:
    case LOGITS_KINDS:
    default:
        return 3 * random_normal(r);
    }
}

void make_logits(double *x, int64_t rows, int64_t classes, logits_kind kind, gpuloss_dtype dtype, uint64_t seed) {
    random_source r = random_from(seed);
    int64_t row, c;
    for (row = 0; row < rows; row++) {
        int64_t favourite = random_below(&r, classes);
        for (c = 0; c < classes; c++)
            x[row * classes + c] = dtype_round(dtype, logit(&r, kind, c, classes, favourite));
    }
}

void make_targets(int64_t *targets, int64_t rows, int64_t classes, uint64_t seed) {
    random_source r = random_from(seed + 77);
    int64_t row;
    for (row = 0; row < rows; row++)
        targets[row] = random_below(&r, classes);
}

const char *distribution_kind_name(distribution_kind kind) {
    static const char *const names[DISTRIBUTIONS_KINDS] = {"random", "close", "sparse", "loose"};
    return names[kind];
}

static void normalise(double *p, int64_t classes) {
    double sum = 0;
    int64_t c;
    for (c = 0; c < classes; c++)
        sum += p[c];
    for (c = 0; c < classes; c++)
        p[c] /= sum;
}

static void softmax_row(random_source *r, double *p, int64_t classes) {
    int64_t c;
    for (c = 0; c < classes; c++)
        p[c] = exp(random_normal(r));
    normalise(p, classes);
}

static void distribution_rows(random_source *r, double *q, double *t, int64_t classes, distribution_kind kind) {
    int64_t c;
    softmax_row(r, q, classes);
    softmax_row(r, t, classes);
    for (c = 0; c < classes; c++) {
        if (kind == DISTRIBUTIONS_CLOSE)
            q[c] = t[c] * (1 + 1e-3 * random_normal(r));
        if (kind == DISTRIBUTIONS_SPARSE && c % 3 == 1)
            t[c] = 0;
        if (kind == DISTRIBUTIONS_SPARSE && c % 6 == 1)
            q[c] = 0;
        if (kind == DISTRIBUTIONS_LOOSE) {
            q[c] = random_uniform(r, 1e-3, 2);
            t[c] = random_uniform(r, 1e-3, 2);
        }
    }
    if (kind == DISTRIBUTIONS_CLOSE)
        normalise(q, classes);
}

/* A positive probability that is too small for the type must not become 0: that is another case. */
static double stored_probability(gpuloss_dtype dtype, double p, gpuloss_kind kind) {
    double rounded;
    if (kind == GPULOSS_LOGITS)
        return dtype_round(dtype, 3 + log(p));
    if (kind == GPULOSS_LOG_PROBABILITIES)
        return dtype_round(dtype, log(p));
    rounded = dtype_round(dtype, p);
    return p > 0 && rounded <= 0 ? dtype_ulp(dtype, 0) : rounded;
}

void make_distributions_of_two_types(double *input, double *target, int64_t rows, int64_t classes,
                                     distribution_kind kind, gpuloss_kind input_kind, gpuloss_kind target_kind,
                                     gpuloss_dtype dtype, gpuloss_dtype target_dtype, uint64_t seed) {
    random_source r = random_from(seed);
    int64_t row, c;
    for (row = 0; row < rows; row++) {
        double *q = input + row * classes, *t = target + row * classes;
        distribution_rows(&r, q, t, classes, kind);
        for (c = 0; c < classes; c++) {
            q[c] = stored_probability(dtype, q[c], input_kind);
            t[c] = stored_probability(target_dtype, t[c], target_kind);
        }
    }
}

void make_distributions(double *input, double *target, int64_t rows, int64_t classes, distribution_kind kind,
                        gpuloss_kind input_kind, gpuloss_kind target_kind, gpuloss_dtype dtype, uint64_t seed) {
    make_distributions_of_two_types(input, target, rows, classes, kind, input_kind, target_kind, dtype, dtype, seed);
}

bool lies_below(int64_t row, int64_t i, int64_t classes) {
    switch (row) {
    case 0:
        return i % 2 == 0;
    case 1:
        return i % 2 == 1;
    case 2:
        return i < classes / 2;
    case 3:
        return i < classes - 1;
    case 4:
        return i > 0;
    default:
        return i / 2 % 2 == 0;
    }
}

void make_distant_weights(double *weights, int64_t rows, gpuloss_dtype dtype) {
    static const int exponents[] = {1, 0, -1, 20, -20, -90, 80, -80, 100, 45, 110};
    int64_t row;
    for (row = 0; row < rows; row++) {
        const int exponent = exponents[row * 7 % (int64_t)(sizeof exponents / sizeof exponents[0])];
        weights[row] = ldexp(row % 2 ? -1 : 1, exponent * (dtype == GPULOSS_F64 ? 9 : 1));
    }
}
