/* The benchmark as a library: peers.py runs the same cells on the same buffers in the same process. */
#ifndef GPULOSSI_BENCH_H
#define GPULOSSI_BENCH_H

#include <stdint.h>

enum { BENCH_LOSS = 1, BENCH_BOTH = 2, BENCH_BACKWARD = 3 }; /* pass of a cell */
enum { BENCH_READ = 0, BENCH_COPY = 1, BENCH_BLEND = 2 };    /* ceilings: bytes read to bytes written 1:0, 1:1, 2:1 */
enum { BENCH_INPUT = 0, BENCH_TARGET = 1, BENCH_GRADIENT = 2, BENCH_WEIGHTS = 3 }; /* buffers of a cell */

typedef struct bench_cell {
    const char
        *loss; /* cross_entropy, cross_entropy_options (smoothing, weights, z-loss and argmax on), columns (classes
                       * not innermost); kl_div_pp (both probabilities), kl_div_ll (both logarithms), kl_div_logits,
                       * jsd_logits (Jensen-Shannon, beta 1/2) */
    const char *dtype;
    int64_t rows, classes;
    int64_t inner; /* of columns; else 1 */
    int pass;
    int headline; /* among the few that every run measures */
} bench_cell;

/* The cells: those that are published first, then the grid, of which each moves about `bytes`, then few long rows and
 * tiny calls. Valid after bench_open. */
extern const bench_cell *bench_cells;
int bench_cell_count(void);

/* Each returns 0, or 1 after printing why not. */
int bench_open(const char *ceilings_ptx, int64_t bytes);
void bench_close(void);
int bench_ceiling(int which, double *gigabytes_a_second);
int bench_prepare(int cell);             /* buffers of random data; the cell that is measured next */
int bench_measure(double *milliseconds); /* median of our calls on them */
uint64_t bench_buffer(int which);        /* device address */
double bench_bytes(int cell);            /* that must move: inputs read once, outputs written once */
int bench_ceiling_of(int cell);          /* which ceiling the cell's bytes have */

/* One divergence of float probabilities, batchmean, for a look at its accuracy. */
int bench_kl(uint64_t input, uint64_t target, int64_t rows, int64_t classes, uint64_t loss);

#endif
