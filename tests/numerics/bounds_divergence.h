/* The bounds of divergences of any two sides, in the terms of bounds.h. They hold for the documented arithmetic of the
 * kernels with options. */
#ifndef TESTS_NUMERICS_BOUNDS_DIVERGENCE_H
#define TESTS_NUMERICS_BOUNDS_DIVERGENCE_H

#include "bounds_pair.h"

typedef struct divergence_setting {
    gpuloss_dtype dtype, target_dtype;
    bool is_direct; /* a KL that is summed along with the softmax of one side of logits */
} divergence_setting;

/* The parts of the errors of the probabilities of one side of a row. */
typedef struct side_bounds {
    gpuloss_kind kind;
    const reference_row *row;
    long double narrowing; /* relative error of an element that is of a wider type than the arithmetic, or 0 */
    long double cooling;   /* of a difference of logits over the temperature, or 0 */
    long double reach;     /* of logits: from the smallest finite one to the largest, over the temperature */
    long double shared;    /* absolute error of the logarithms that all classes of a row have in common */
} side_bounds;

/* The bounds of one row. */
typedef struct divergence_bounds {
    long double loss; /* absolute error of loss_i */

    divergence_setting setting;
    arithmetic a;
    int64_t row;
    reference_kl_row of_row;
    reference_pair *pairs; /* [classes] */
    pair_errors *errors;   /* [classes] */
    side_bounds input, target;
    bool may_be_close, may_be_distant;      /* how the logits of two sides are subtracted */
    long double shift;                      /* of a direct divergence: the largest shift of all distances */
    long double added;                      /* the relative error of a sum over the row in the arithmetic's type */
    long double factor;                     /* |r_i| F */
    long double shared;                     /* error of log p - log q that all classes have in common */
    long double sum_of_log_p, sum_of_log_q; /* errors of these sums */
} divergence_bounds;

/* Absolute errors of the results of one pair. */
typedef struct element_bounds {
    long double term, grad, grad_target;
} element_bounds;

/* b points into itself, and is freed with divergence_bounds_free(). */
void divergence_bounds_of(divergence_setting setting, const reference_kl_div *r, int64_t row, divergence_bounds *b);
void divergence_bounds_free(divergence_bounds *b);
element_bounds divergence_element_bounds(const divergence_bounds *b, const reference_kl_div *r, int64_t c);

#endif
