/* The options and layouts that cells have, by name, and the work that an option adds to a logit. */
#ifndef GPULOSSI_BENCH_REQUESTS_H
#define GPULOSSI_BENCH_REQUESTS_H

#include "bench.h"

#include <stddef.h>

enum { BENCH_IGNORE_INDEX = -100 };

/* The cost of a logit, in one sweep over its row. Special functions are exponentials, logarithms and reciprocals. */
typedef struct bench_cost {
    double special, instructions;
} bench_cost;

typedef struct bench_request {
    const char *name;
    double label_smoothing, lse_square_scale, softcap, logit_scale;
    int class_weights, row_weights, argmax, loss_rows;
    int correct;
    int ignored;               /* % of the targets that are ignore_index */
    const char *probabilities; /* type of the target probabilities, "" for that of the logits; NULL: class indices */
    const char *gradient;      /* type of the gradient; NULL: that of the logits */
    double closeness;          /* of a divergence of logits: the deviation of input - target; 0: they are independent */
    /* Cost besides a call without options: of the sweep that sums a row, and of the sweep that writes its gradient. */
    bench_cost sum, gradient_sweep;
} bench_request;

enum {
    BENCH_PLAIN,
    BENCH_PUBLISHED,
    BENCH_SMOOTHING,
    BENCH_CLASS_WEIGHTS,
    BENCH_SMOOTHING_WEIGHTS,
    BENCH_ROW_WEIGHTS_ALONE,
    BENCH_Z_LOSS,
    BENCH_SOFTCAP,
    BENCH_LOGIT_SCALE,
    BENCH_WITH_ARGMAX,
    BENCH_WITH_LOSS_ROWS,
    BENCH_ALL,
    BENCH_PROBABILITIES,
    BENCH_PROBABILITIES_F32,
    BENCH_GRADIENT_F32,
    BENCH_GRADIENT_BF16,
    BENCH_MASKED_0,
    BENCH_MASKED_50,
    BENCH_MASKED_85,
    BENCH_SIGMA_1_100,
    BENCH_SIGMA_3_10,
    BENCH_SIGMA_1,
    BENCH_REQUESTS
};
extern const bench_request bench_requests[BENCH_REQUESTS];

typedef struct bench_layout {
    const char *name;
    int shift;    /* elements between the buffer's beginning and the array's */
    int more;     /* elements between rows */
    int multiple; /* strides are rounded up to a multiple of it; 0: not rounded */
    int in_place; /* the gradient is written over the logits */
} bench_layout;

enum {
    BENCH_PACKED,
    BENCH_SHIFTED,
    BENCH_ODD_ROWS,
    BENCH_STRIDE_1,
    BENCH_PADDED,
    BENCH_IN_PLACE,
    BENCH_ODD_INNER,
    BENCH_LAYOUTS
};
extern const bench_layout bench_layouts[BENCH_LAYOUTS];

const bench_request *bench_request_of(const bench_cell *c);
const bench_layout *bench_layout_of(const bench_cell *c);
int bench_dtype_bytes(const char *dtype);
int bench_is(const bench_cell *c, const char *loss);
int bench_is_pair(const bench_cell *c); /* a divergence of two arrays */
const char *bench_gradient_dtype(const bench_cell *c);
const char *bench_probabilities_dtype(const bench_cell *c); /* NULL: the targets are indices */
int64_t bench_stride(const bench_cell *c);   /* elements from one row to the next, or from image to image */
int64_t bench_elements(const bench_cell *c); /* of an array, with the gaps between rows and before the first */
int64_t bench_ignored_rows(const bench_cell *c);

#endif
