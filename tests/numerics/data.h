/* Inputs for the tests, the same every time: each generator depends on its arguments and seed only. */
#ifndef TESTS_NUMERICS_DATA_H
#define TESTS_NUMERICS_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "dtypes.h"

typedef struct random_source {
    uint64_t state;
} random_source;

random_source random_from(uint64_t seed);
double random_uniform(random_source *r, double low, double high);
double random_normal(random_source *r);
int64_t random_below(random_source *r, int64_t limit);

typedef enum logits_kind {
    LOGITS_NORMAL,     /* 3 N(0, 1) */
    LOGITS_WIDE,       /* uniform in +-80 */
    LOGITS_TINY,       /* differences of 1e-5 */
    LOGITS_SHIFTED,    /* N(0, 1) around 1e4 */
    LOGITS_ASCENDING,  /* every element a new maximum */
    LOGITS_DESCENDING, /* the first element is the maximum */
    LOGITS_CONSTANT,
    LOGITS_CONFIDENT, /* one class 50 above the rest */
    LOGITS_KINDS
} logits_kind;
const char *logits_kind_name(logits_kind kind);

/* x[rows, classes], each value one of the dtype. */
void make_logits(double *x, int64_t rows, int64_t classes, logits_kind kind, gpuloss_dtype dtype, uint64_t seed);
void make_targets(int64_t *targets, int64_t rows, int64_t classes, uint64_t seed);

typedef enum distribution_kind {
    DISTRIBUTIONS_RANDOM, /* independent softmax rows */
    DISTRIBUTIONS_CLOSE,  /* the input differs from the target by 1e-3 relative: a divergence of about 5e-7 */
    DISTRIBUTIONS_SPARSE, /* every third target is 0, and every sixth input with it */
    DISTRIBUTIONS_LOOSE,  /* not normalised: uniform in (0, 2] */
    DISTRIBUTIONS_KINDS
} distribution_kind;
const char *distribution_kind_name(distribution_kind kind);

/* input and target [rows, classes] as the kinds say, each value one of the dtype. Logits are logarithms and 3. */
void make_distributions(double *input, double *target, int64_t rows, int64_t classes, distribution_kind kind,
                        gpuloss_kind input_kind, gpuloss_kind target_kind, gpuloss_dtype dtype, uint64_t seed);
void make_distributions_of_two_types(double *input, double *target, int64_t rows, int64_t classes,
                                     distribution_kind kind, gpuloss_kind input_kind, gpuloss_kind target_kind,
                                     gpuloss_dtype dtype, gpuloss_dtype target_dtype, uint64_t seed);

/* Row weights from all over the range of either type, of both signs. */
void make_distant_weights(double *weights, int64_t rows, gpuloss_dtype dtype);

/* Whether class i of a row lies far below the others: one class after the other, or all but one. */
bool lies_below(int64_t row, int64_t i, int64_t classes);

#endif
