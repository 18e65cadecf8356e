/* The bounds of a sparse teacher's divergence, in the terms of bounds.h. */
#ifndef TESTS_NUMERICS_BOUNDS_KL_DIV_SPARSE_H
#define TESTS_NUMERICS_BOUNDS_KL_DIV_SPARSE_H

#include "bounds_pair.h"
#include "reference_kl_div_sparse.h"

/* The bounds of one row: absolute errors, unless they say relative. */
typedef struct sparse_bounds {
    long double loss; /* of loss_i */

    arithmetic a;
    int64_t row;
    reference_sparse_row of_row;
    const long double *t, *t_error; /* [classes]; the errors are set where the teacher knows the class */
    pair_setting setting;
    long double cooling;        /* relative error of a logit over the temperature */
    long double shared, others; /* of log S of all classes, and of log S_o of the classes unknown to the teacher */
    long double sum;            /* of P */
    long double norm;           /* relative error of the divisor of t */
    long double narrowing;      /* relative error of a value of a wider type */
    pair_errors rest;           /* of all other classes */
    long double sum_of_log_q;
} sparse_bounds;

/* t and t_error are filled, and b points to them. */
void sparse_bounds_of(gpuloss_dtype dtype, gpuloss_dtype value_dtype, const reference_sparse *r, int64_t row,
                      long double *t, long double *t_error, sparse_bounds *b);
/* The bound of one entry of the gradient, whose exact value is given. */
long double sparse_gradient_bound(gpuloss_dtype dtype, const sparse_bounds *b, const reference_sparse *r, int64_t c,
                                  long double value);

#endif
