/* The benchmark as a library: peers.py runs the same cells on the same buffers in the same process. */
#ifndef GPULOSSI_BENCH_H
#define GPULOSSI_BENCH_H

#include <stdint.h>

enum { BENCH_LOSS = 1, BENCH_BOTH = 2, BENCH_BACKWARD = 3 }; /* pass of a cell */
enum { BENCH_READ = 0, BENCH_COPY = 1, BENCH_BLEND = 2 };    /* ceilings: bytes read to bytes written 1:0, 1:1, 2:1 */
enum { BENCH_INPUT = 0, BENCH_TARGET = 1, BENCH_GRADIENT = 2 }; /* buffers of a cell */

typedef struct bench_cell {
    const char *loss; /* cross_entropy, kl_div_pp (both probabilities), kl_div_ll (both logarithms) */
    const char *dtype;
    int64_t rows, classes;
    int pass;
} bench_cell;

extern const bench_cell bench_cells[];
int bench_cell_count(void);

/* Each returns 0, or 1 after printing why not. */
int bench_open(const char *ceilings_ptx);
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
