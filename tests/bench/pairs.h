/* The losses of two arrays, or of one and a sparse teacher, by name: the requests of their calls, and their work. */
#ifndef GPULOSSI_BENCH_PAIRS_H
#define GPULOSSI_BENCH_PAIRS_H

#include "requests.h"

typedef enum bench_kind { BENCH_OF_PROBABILITIES, BENCH_OF_LOGARITHMS, BENCH_OF_LOGITS } bench_kind;
typedef enum bench_divergence {
    BENCH_FORWARD,
    BENCH_REVERSE,
    BENCH_JENSEN_SHANNON,
    BENCH_TOTAL_VARIATION
} bench_divergence;

/* The work of a logit, or of a pair of elements. */
typedef struct bench_work {
    bench_cost sum;      /* without a gradient */
    bench_cost gradient; /* of the gradients besides */
    int sum_sweeps;      /* how often the sum reads the arrays */
    int gradient_sweeps; /* how often the gradients read them in addition */
    int logarithms;      /* of a row's sums of exponentials, or their reciprocals */
} bench_work;

typedef struct bench_pair {
    const char *loss;
    bench_kind input, target;
    bench_divergence divergence;
    double beta;
    const char *target_dtype; /* "" for that of the input */
    int grad_target;          /* wanted, too, where the pass has a gradient */
    int row_weights, labels, loss_rows;
    int entries; /* of a row of a sparse teacher: indices of 8 bytes and floats; 0: the teacher has an array */
    bench_work work;
} bench_pair;

const bench_pair *bench_pair_of(const char *loss);   /* NULL: it is no loss of two arrays */
const char *bench_target_dtype(const bench_cell *c); /* of a cell of two arrays */
int bench_wants_grad_target(const bench_cell *c);    /* of any cell */
int bench_entries(const bench_cell *c);              /* of a row of any cell */

#endif
