/* The bounds of cross-entropy with its options, in the terms of bounds.h. Without options they equal the bounds of
 * bounds.h. */
#ifndef TESTS_NUMERICS_BOUNDS_OPTIONS_H
#define TESTS_NUMERICS_BOUNDS_OPTIONS_H

#include "bounds.h"

/* Where a row was summed. */
typedef struct option_setting {
    gpuloss_dtype dtype;
    int shards; /* of the vocabulary; 0: not in shards */
} option_setting;

/* The absolute errors of the results of one row, and the parts of the bounds of its gradients. */
typedef struct option_bounds {
    long double lse, loss, z_loss;

    arithmetic a;
    int64_t row;
    long double row_max, log_sum_value; /* of the reference; with lse_in its distance from the maximum */
    long double log_sum;                /* error of log_sum_value for exact x */
    long double shift;                  /* error of log_sum_value from the errors of x */
    long double rounding;               /* u, or 0 where no option adds an operation */
    long double target_weight;          /* |(1-e) w_y|, or 0 */
    long double target_relative;        /* its relative error */
    long double spread;                 /* sum of the weights without it */
    long double common, common_error;   /* factor of p besides target_weight, and its error */
} option_bounds;

option_bounds option_bounds_of(option_setting setting, const reference_cross_entropy *r, int64_t row);
/* Error of the transformed logit. */
long double option_logit_error(gpuloss_dtype dtype, const reference_cross_entropy *r, double given);
/* Errors of one entry of the gradients, whose exact values are given, when stored as `stored`. */
long double option_gradient_bound(const option_bounds *b, const reference_cross_entropy *r, int64_t c,
                                  gpuloss_dtype stored, long double value);
long double option_target_gradient_bound(const option_bounds *b, const reference_cross_entropy *r, int64_t c,
                                         gpuloss_dtype stored, long double value);

#endif
