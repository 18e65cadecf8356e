/* The benchmark as a library: peers.py runs the same cells on the same buffers in the same process. */
#ifndef GPULOSSI_BENCH_H
#define GPULOSSI_BENCH_H

#include <stdint.h>

enum { BENCH_LOSS = 1, BENCH_BOTH = 2, BENCH_BACKWARD = 3 }; /* pass of a cell */
/* Ceilings: bytes read to bytes written 1:0, 1:1, 2:1; the last is that of reading a quarter of the bytes. */
enum { BENCH_READ = 0, BENCH_COPY = 1, BENCH_BLEND = 2, BENCH_READ_LESS = 3, BENCH_CEILINGS = 4 };
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
    int tiny;     /* among those whose call is measured from the host */
} bench_cell;

/* The cells: those that are published first, then the grid, of which each moves about `bytes`, then few long rows and
 * tiny calls. Valid after bench_open. */
extern const bench_cell *bench_cells;
int bench_cell_count(void);

/* Each returns 0, or 1 and bench_failure says why. The driver is the library that GPULOSS_DRIVER names, else the usual. */
int bench_open(const char *ceilings_ptx, int64_t bytes);
void bench_close(void);
int bench_ceiling(int which, double *gigabytes_a_second);
int bench_prepare(int cell);             /* buffers of random data; the cell that is measured next */
int bench_rest(int milliseconds);        /* waits for the GPU, and lets it rest */
extern const int bench_usual_rest;       /* milliseconds */
int bench_measure(double *milliseconds); /* median of our calls on them */
uint64_t bench_buffer(int which);        /* device address */
double bench_bytes(int cell);            /* that must move: inputs read once, outputs written once */
int bench_ceiling_of(int cell);          /* which ceiling the cell's bytes have */
const char *bench_pass_name(int pass);
const char *bench_failure(void);
int bench_fail(const char *format, ...);     /* says why, and returns 1 */
int bench_check(const char *what, int code); /* fails unless the driver's code is 0 */

/* What calls.c measures with. A stream is a CUstream. */
int bench_call(void *stream);           /* the prepared cell's call, once, without waiting */
int bench_launch_nothing(void *stream); /* a bare launch, of a kernel that does nothing */
long long bench_launches(void);         /* kernels that were launched so far */
void *bench_symbol(const char *name);   /* a function of the driver, or NULL */

/* What a call of the prepared cell costs, in microseconds a call. */
typedef struct bench_calls {
    int launches;  /* kernels that one call launches */
    double issued; /* until it returns, of many that are issued in a row without waiting */
    double done;   /* the same, until the GPU has finished all of them */
    double bare;   /* until as many bare launches return */
    double graph;  /* of a graph of many calls, until the GPU has finished; NaN where the driver has no graphs */
} bench_calls;

int bench_measure_calls(int calls, bench_calls *measured);
const char *bench_calls_heading(int calls);
const char *bench_calls_line(int cell, const bench_calls *measured); /* until the next one */

/* The raw results: a heading that names the columns, then a line for each cell and contestant (`who`: gpuloss, or a peer)
 * that ran. `bytes` is what must move, `ceiling_gb_per_s` what the GPU's memory can do with such a mix. */
#define BENCH_CSV "loss,dtype,rows,classes,inner,pass,who,microseconds,bytes,ceiling_gb_per_s"
int bench_csv_open(const char *path);
int bench_csv_line(int cell, const char *who, double milliseconds, double ceiling); /* if it is open, else nothing */

/* One divergence of floats, both of that gpuloss_kind, batchmean, for a look at its accuracy. */
int bench_kl(int kind, uint64_t input, uint64_t target, int64_t rows, int64_t classes, uint64_t loss);

#endif
