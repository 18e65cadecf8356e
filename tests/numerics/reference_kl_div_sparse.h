/* Divergences of a teacher that is known by k classes a row, in extended precision. */
#ifndef TESTS_NUMERICS_REFERENCE_KL_DIV_SPARSE_H
#define TESTS_NUMERICS_REFERENCE_KL_DIV_SPARSE_H

#include "reference.h"

/* The fields of gpuloss_kl_div_sparse_desc, widened. Every array is packed. A number of 0 and a pointer of NULL leave
 * an option out. */
typedef struct reference_sparse {
    int64_t rows, classes, k;
    const double *logits;   /* [rows, classes] */
    const int64_t *indices; /* [rows, k] */
    const double *values;   /* [rows, k] */
    gpuloss_kind value_kind;
    gpuloss_residual residual;
    gpuloss_divergence divergence;
    gpuloss_reduction reduction;
    int temperature_squared;
    double beta, temperature, external_divisor;
    const double *row_weights; /* [rows] */
    const int64_t *labels;     /* [rows] */
    int64_t ignore_index;      /* of labels */
    long double grad_scale;
    const double *grad_loss_rows; /* [rows], or NULL for 1 */

    /* Results; each array may be NULL. */
    long double loss; /* not for reduction NONE */
    long double divisor;
    int64_t bad_indices;
    long double *loss_rows; /* [rows] */
    long double *grad;      /* [rows, classes] */
} reference_sparse;

/* Stands for the probability of a class that the teacher of the row does not know. */
#define REFERENCE_OTHER (-1.0L)

typedef struct reference_sparse_row {
    bool out;              /* by its label: nothing else is set */
    int64_t bad;           /* how many of its indices are out of range; if any, nothing that follows is set */
    reference_row softmax; /* of the logits over the temperature */
    reference_row others;  /* of the logits over the temperature of the classes that the teacher does not know */
    long double sum;       /* P: the sum of the values */
    long double total;     /* the teacher's probability of all classes, the bucket among them */
    reference_pair rest;   /* of all other classes: the bucket, or none of the teacher's. q is R, which is 1 - Q */
    long double f, sum_of_log_q;
} reference_sparse_row;

/* Fills t[classes] too: of a class of the row its probability, which is their sum for equal indices, else
 * REFERENCE_OTHER. */
reference_sparse_row reference_sparse_row_of(const reference_sparse *r, int64_t row, long double *t);
/* A logit over the temperature, and log q of it. */
long double reference_sparse_logit(const reference_sparse *r, int64_t row, int64_t c);
long double reference_sparse_log_q(const reference_sparse *r, const reference_sparse_row *of_row, int64_t row,
                                   int64_t c);
/* The pair of a class that the teacher knows, by its t. */
reference_pair reference_sparse_pair(const reference_sparse *r, const reference_sparse_row *of_row, int64_t row,
                                     int64_t c, long double t);
/* The term of a pair in the sum: p log(p / q) + q - p for a KL, and the term of the divergence for any other. */
long double reference_sparse_term(const reference_sparse *r, const reference_pair *y);
/* A class's part of the probability of all others. */
long double reference_sparse_part(const reference_sparse *r, const reference_sparse_row *of_row, int64_t row,
                                  int64_t c);
/* Whether it is forward or reverse KL. Jensen-Shannon of beta 0 or 1 is a KL, too. */
bool reference_sparse_is_forward(const reference_sparse *r);
bool reference_sparse_is_reverse(const reference_sparse *r);
/* The probability that a value stands for. */
long double reference_sparse_value(const reference_sparse *r, int64_t row, int64_t j);
/* r_i F, and s_i r_i F / temperature. */
long double reference_sparse_factor(const reference_sparse *r, int64_t row);
long double reference_sparse_scale(const reference_sparse *r, int64_t row);

void reference_sparse_run(reference_sparse *r);

#endif
