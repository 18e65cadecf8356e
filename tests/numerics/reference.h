/* The losses in extended precision, written next to their formulas. Where long double is wider than double (x86-64, or
 * quad on 64-bit ARM) the results are more exact than a double kernel can be. */
#ifndef TESTS_NUMERICS_REFERENCE_H
#define TESTS_NUMERICS_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "../../gpuloss.h"

/* Memory for `classes` elements of `size` bytes. Ends the program if there is none. */
void *reference_memory(int64_t classes, size_t size);

/* The numbers that a row's softmax needs. The bounds are stated in them too. */
typedef struct reference_row {
    long double max;           /* m = max_c x_c */
    long double log_sum;       /* log sum_c exp(x_c - m), so that lse = m + log_sum */
    long double mean_distance; /* sum_c p_c (m - x_c) */
} reference_row;

/* The fields of gpuloss_cross_entropy_desc, widened. x, target_probabilities and both gradients are packed and laid out
 * as `inner` says there. A number of 0 and a pointer of NULL leave an option out. */
typedef struct reference_cross_entropy {
    int64_t rows, classes, inner;
    const double *x;
    const int64_t *targets;             /* [rows]; not read with target_probabilities */
    const double *target_probabilities; /* as x */
    gpuloss_reduction reduction;
    int use_ignore_index;
    int64_t ignore_index;
    const double *class_weights; /* [classes] */
    const double *row_weights;   /* [rows] */
    double label_smoothing, lse_square_scale, logit_scale, softcap, external_divisor;
    long double grad_scale;       /* every upstream factor that is one number, multiplied */
    const double *grad_loss_rows; /* [rows], or NULL for 1 */
    const double *lse_in;         /* [rows], or NULL; stands for the lse in everything but the result of that name */

    /* Results; each array may be NULL. */
    long double loss, z_loss; /* not for reduction NONE */
    long double divisor;
    int64_t bad_targets, correct;
    int64_t *argmax;                        /* [rows] */
    long double *loss_rows;                 /* [rows] */
    long double *z_loss_rows;               /* [rows] */
    long double *lse;                       /* [rows] */
    long double *scale_rows;                /* [rows]: s_i r_i */
    long double *probability;               /* p, laid out like x */
    long double *grad;                      /* laid out like x */
    long double *grad_target_probabilities; /* laid out like x */
    reference_row *row_info;                /* [rows] */
} reference_cross_entropy;

typedef enum row_kind { ROW_NORMAL, ROW_IGNORED, ROW_BAD_TARGET } row_kind;
row_kind reference_row_kind(const reference_cross_entropy *r, int64_t row);
/* Whether a row has the loss 0 and the gradient 0, whatever it holds: it is ignored, or of row weight 0. */
bool reference_is_silent(const reference_cross_entropy *r, int64_t row);

/* The position of element (row, c) in x, and in arrays of the same layout. */
int64_t reference_element(const reference_cross_entropy *r, int64_t row, int64_t c);
/* The x of the formulas from a logit as given, and its derivative. */
long double reference_logit(const reference_cross_entropy *r, double given);
long double reference_logit_slope(const reference_cross_entropy *r, double given);
/* The weight q_c of class c: loss_i = r_i (sum_c q_c (lse_i - x_c) + z_i). */
long double reference_target_weight(const reference_cross_entropy *r, int64_t row, int64_t c);

void reference_cross_entropy_run(reference_cross_entropy *r);
/* Fills *info from one row of logits. */
void reference_softmax(const double *x, int64_t classes, reference_row *info);

/* The fields of gpuloss_kl_div_desc, widened. input, target and both gradients are packed. A number of 0 and a pointer
 * of NULL leave an option out. */
typedef struct reference_kl_div {
    int64_t rows, classes;
    const double *input, *target; /* [rows, classes] */
    gpuloss_kind input_kind, target_kind;
    gpuloss_divergence divergence;
    gpuloss_reduction reduction;
    int pytorch_zeros, temperature_squared;
    double beta, temperature, eps, external_divisor;
    const double *row_weights; /* [rows] */
    const int64_t *labels;     /* [rows] */
    int64_t ignore_index;      /* of labels */
    long double grad_scale;
    const double *grad_loss_rows; /* [rows], or NULL for 1 */

    /* Results; each array may be NULL. */
    long double loss; /* not for reduction NONE */
    long double divisor;
    long double *loss_rows;   /* [rows] */
    long double *scale_rows;  /* [rows]: s_i r_i F */
    long double *terms;       /* [rows, classes]: r_i F f */
    long double *grad;        /* [rows, classes] */
    long double *grad_target; /* [rows, classes] */
} reference_kl_div;

/* A pair of probabilities, and the divergence's terms of it. */
typedef struct reference_pair {
    long double p, q;               /* of the target and of the input */
    long double log_p, log_q;       /* with eps */
    long double d;                  /* log_p - log_q */
    long double f, of_p, of_q;      /* f, df/dp and df/dq */
    long double of_log_p, of_log_q; /* df/dp times p, and df/dq times q */
} reference_pair;

/* The sums of a row. */
typedef struct reference_kl_row {
    reference_row input, target;               /* of logits over the temperature */
    long double f, sum_of_log_p, sum_of_log_q; /* of the fields of its pairs */
} reference_kl_row;

/* Whether a divergence is this KL. Jensen-Shannon becomes a KL at the ends of beta. */
bool reference_is_forward_kl(gpuloss_divergence divergence, double beta);
bool reference_is_reverse_kl(gpuloss_divergence divergence, double beta);
/* Sets the fields after d, from d and the fields before it. */
void reference_pair_terms(gpuloss_divergence divergence, double beta, long double eps_p, long double eps_q,
                          reference_pair *y);
bool reference_left_out(const reference_kl_div *r, int64_t row);
/* Fills pairs[classes] too. */
reference_kl_row reference_row_of(const reference_kl_div *r, int64_t row, reference_pair *pairs);
/* D: 1 (none, sum), else the given one, or the rows that are not left out, times classes for mean. */
long double reference_divergence_divisor(gpuloss_reduction reduction, double given, int64_t rows_left, int64_t classes);
/* 1 where none is given. */
long double reference_temperature(double given);
/* The softmax of logits over the temperature. p: NULL, or the array for their probabilities. */
reference_row reference_cooled_softmax(const double *logits, int64_t classes, double temperature, long double *p);
/* A logit over the temperature. */
long double reference_cooled(const reference_kl_div *r, double logit);

void reference_kl_div_run(reference_kl_div *r);

#endif
