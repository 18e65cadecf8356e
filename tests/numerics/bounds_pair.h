/* Bounds of a divergence's terms of a pair of probabilities, from the bounds of the pair. */
#ifndef TESTS_NUMERICS_BOUNDS_PAIR_H
#define TESTS_NUMERICS_BOUNDS_PAIR_H

#include "bounds.h"

/* Errors of one pair and of the divergence's terms of it. All are absolute. */
typedef struct pair_errors {
    long double p, q;
    long double own, shared;   /* of d = log p - log q: of this class alone, and common to all classes */
    long double reference;     /* of d in the reference */
    long double term;          /* of f */
    long double summed, slope; /* of f in the sum of a row: without `shared`, and the factor of `shared` */
    long double of_p, of_q;    /* of the derivatives, and times p and q */
    long double of_log_p, of_log_q;
} pair_errors;

/* The way a kernel computes the terms of a pair. */
typedef struct pair_setting {
    gpuloss_dtype dtype;
    arithmetic a;
    gpuloss_divergence divergence;
    double beta;
    long double eps;
    bool is_surplus; /* a KL is summed as p log(p / q) + q - p */
    bool has_small;  /* the mixture is computed of scaled numbers */
    bool by_ratio;   /* p - q comes from d, where that is small */
    bool any_form;   /* p - q need not come from d, and a beta of 1/2 need not have its own form */
} pair_setting;

/* Sets the errors after `reference`, from the errors before it. */
void pair_errors_of(const pair_setting *s, const reference_pair *y, pair_errors *e);

#endif
