/* The largest errors of a kernel's results. Every bound is derived from the documented arithmetic of the kernels, to
 * first order in the unit roundoff. No bound is fitted to a kernel's results. */
#ifndef TESTS_NUMERICS_BOUNDS_H
#define TESTS_NUMERICS_BOUNDS_H

#include "dtypes.h"
#include "reference.h"

/* The arithmetic behind an element type: float for f32, f16 and bf16, double for f64. */
typedef struct arithmetic {
    long double u;             /* unit roundoff: 2^-24 or 2^-53 */
    long double exp_relative;  /* of the exponential function itself */
    long double exp_roundings; /* roundings of its argument, each u times the argument */
    long double smallest;      /* smallest normal number: smaller ones may be flushed to zero */
    long double largest;
} arithmetic;

arithmetic arithmetic_of(gpuloss_dtype dtype);

/* Half an ulp of the element type around `value`: the one rounding of a gradient when it is stored. */
long double store_rounding(gpuloss_dtype dtype, long double value);

/* Sums of a row: `sequential` additions one after another, then a tree. */
typedef struct sum_shape {
    long double sequential;
    long double tree;
    long double rescalings; /* how often a part of a sum of exponentials is multiplied to suit a higher maximum */
} sum_shape;
sum_shape sum_shape_of(gpuloss_dtype dtype, int64_t classes);

typedef struct row_bounds {
    long double log_sum; /* absolute error of log sum exp(x - m) */
    long double lse;
    long double loss;
    long double scale; /* relative error of s_i */
} row_bounds;

/* Absolute error of log sum exp(x - m), for exact x. */
long double log_sum_bound(gpuloss_dtype dtype, sum_shape shape, const reference_row *row);
/* y: the target's logit; any logit when there is no target. */
row_bounds cross_entropy_row_bounds(gpuloss_dtype dtype, int64_t classes, const reference_row *row, long double y);
/* Error of one gradient entry s (p - [c = y]) before it is rounded to the element type, plus that rounding. */
long double cross_entropy_gradient_bound(gpuloss_dtype dtype, const reference_row *row, const row_bounds *bounds,
                                         long double x, long double p, int is_target, long double s);

/* One term of kl_div, and one gradient entry. `value` is the exact result. */
long double kl_div_term_bound(gpuloss_dtype dtype, const reference_kl_div *r, double input, double target,
                              long double value);
long double kl_div_gradient_bound(gpuloss_dtype dtype, const reference_kl_div *r, double target, long double value);
/* A row's sum, from the sums of its terms' bounds and magnitudes. */
long double kl_div_row_bound(gpuloss_dtype dtype, int64_t classes, long double sum_of_bounds,
                             long double sum_of_magnitudes, long double value);

/* The reduced loss, from the rows: sum / D in double, then one rounding to the result type. */
long double reduced_loss_bound(gpuloss_dtype dtype, int64_t rows, long double sum_of_bounds,
                               long double sum_of_magnitudes, long double divisor, long double value);
/* The bound of the sum that calls for chunks of the rows add up, besides that of one call. */
long double added_loss_bound(gpuloss_dtype dtype, int64_t chunks, long double sum_of_magnitudes, long double divisor);

#endif
