/* The benchmark as a library: peers.py and compare run the same cells on the same buffers in the same process. */
#ifndef GPULOSSI_BENCH_H
#define GPULOSSI_BENCH_H

#include <stdint.h>

enum { BENCH_LOSS = 1, BENCH_BOTH = 2, BENCH_BACKWARD = 3 }; /* pass of a cell */
/* Ceilings: bytes read to bytes written 1:0, 1:1, 2:1; that of reading a quarter of the bytes; and 0:1. */
enum { BENCH_READ = 0, BENCH_COPY = 1, BENCH_BLEND = 2, BENCH_READ_LESS = 3, BENCH_WRITE = 4, BENCH_CEILINGS = 5 };
enum { /* buffers of a cell */
       BENCH_INPUT = 0,
       BENCH_TARGET = 1, /* the other array of a divergence, class indices, or probabilities */
       BENCH_GRADIENT = 2,
       BENCH_WEIGHTS = 3, /* of classes */
       BENCH_ROW_WEIGHTS = 4,
       BENCH_LSE = 5,
       BENCH_RESULTS = 6, /* one number each */
       BENCH_ARGMAX = 7,
       BENCH_LOSS_ROWS = 8,
       BENCH_GRAD_TARGET = 9,
       BENCH_LABELS = 10, /* of the rows of a divergence */
       BENCH_VALUES = 11, /* of a sparse teacher, whose indices are the target */
       BENCH_BUFFERS = 12
};

typedef struct bench_cell {
    /* cross_entropy, cross_entropy_options (smoothing, weights, z-loss and argmax on), columns (classes not innermost),
     * or a divergence of pairs.c, for example kl_div_logits */
    const char *loss;
    const char *dtype;
    int64_t rows, classes;
    int64_t inner; /* of columns; else 1 */
    int pass;
    int headline; /* among the few that every run measures */
    int tiny;     /* its call is measured from the host */
    int option;   /* row of a table in requests.c: the options of its call, or how close a divergence's logits are */
    int layout;   /* row of a table in requests.c: how the arrays lie in memory */
    int normal;   /* its logits are normal with deviation 2; else uniform, for cross-entropy in (-8, 8) */
    const struct bench_pair *pair; /* its row of the table in pairs.c; NULL: it is of cross-entropy */
} bench_cell;

/* The cells. The published cells come first; then the grid of calls without options, each of about `bytes` bytes, few
 * long rows and tiny calls; then the grid of options and layouts; then the grid of divergences. Valid after
 * bench_open. */
extern const bench_cell *bench_cells;
int bench_cell_count(void);
const char *bench_option_name(int cell);
const char *bench_layout_name(int cell);

/* Selects cells: `only` is names with commas between them, or NULL. A name selects the cells whose
 * "loss/option/layout", "dtype/option/layout", "option/layout" or "layout" begins with it. Without names, the published
 * cells are selected, or `all`. Cells of other losses than `loss`, if one is given, and cells that move more than
 * `most` bytes are left out. */
int bench_select(const char *only, const char *loss, int all, int64_t most);
int bench_is_selected(int cell);

/* Each returns 0, or 1 and bench_failure says why. The driver is the library that GPULOSS_DRIVER names, else the usual. */
int bench_as(int compute_capability); /* before bench_open: gpuloss takes the GPU for one of 80, say */
int bench_open(const char *ceilings_ptx, int64_t bytes);
void bench_close(void);
int bench_prepare(int cell);       /* buffers of random data; the cell that is measured next */
int bench_use_runs(int runs);      /* of which times are medians: 30, which is the most, unless this says otherwise */
int bench_rest(int milliseconds);  /* waits for the GPU, and lets it rest */
extern const int bench_usual_rest; /* milliseconds */
int bench_measure(double *milliseconds); /* median of our calls on them */
uint64_t bench_buffer(int which);        /* device address */
const char *bench_pass_name(int pass);
const char *bench_taken_for(void); /* says of which compute capability, and more, the GPU is to gpuloss */
enum { BENCH_FAILURE_BYTES = 512 };
const char *bench_failure(void);
int bench_fail(const char *format, ...);     /* says why, and returns 1 */
int bench_check(const char *what, int code); /* fails unless the driver's code is 0 */

/* The GPU's limits. All ceilings are measured before a floor is requested. */
int bench_ceiling(int which, double *gigabytes_a_second);
const char *bench_ceiling_name(int which);
double bench_ceiling_of(int cell); /* of the mix of reads and writes of the cell's arrays */
double bench_bytes(int cell);      /* that must move: inputs read once, outputs written once */

/* Microseconds that a cell takes at least: to move its bytes, for its special functions, and to issue its instructions. */
typedef struct bench_floors {
    double bytes, special, issue, largest;
} bench_floors;

int bench_floors_of(int cell, bench_floors *floors);

/* For compare. Runs have numbers below 30, and are queued without waiting. */
int bench_prepare_beside(int cell, uint64_t (*address)(int which)); /* buffers that another library has prepared */
int bench_warm_up(int *in_a_row);                                   /* how many calls take a millisecond */
int bench_queue_run(int run, int in_a_row);
int bench_run_time(int run, int in_a_row, double *milliseconds); /* of a call, when the run has ended */
double bench_median_of(double *times, int count);                /* sorts them */

/* Functions for the measurements of calls.c. A stream is a CUstream. */
int bench_call(void *stream);           /* the prepared cell's call, once, without waiting */
int bench_launch_nothing(void *stream); /* a bare launch, of a kernel that does nothing */
long long bench_launches(void);         /* kernels that were launched so far */
void *bench_symbol(const char *name);   /* a function of the driver, or NULL */

/* The costs of the prepared cell's call, in microseconds a call. */
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

/* The table. Each text is valid until the next one of its kind. */
const char *bench_cell_heading(void); /* loss to pass */
const char *bench_cell_columns(int cell);
const char *bench_table_heading(void);                       /* these, and our time beside its limits */
const char *bench_table_line(int cell, double milliseconds); /* without numbers where the time is not above 0 */

/* The raw results: a heading that names the columns, then a line for each cell and contestant (`who`: gpuloss, or a
 * peer) that ran. `bytes` must move; `ceiling_gb_per_s` is the rate of the GPU's memory for this mix of reads and
 * writes. The last three are the floors in microseconds. */
#define BENCH_CSV                                                                                                      \
    "loss,dtype,rows,classes,inner,pass,who,microseconds,bytes,ceiling_gb_per_s,option,layout,bytes_us,special_us,"    \
    "issue_us"
int bench_csv_open(const char *path);
int bench_csv_line(int cell, const char *who, double milliseconds); /* if it is open, else nothing */

/* One divergence of floats, both of that gpuloss_kind, batchmean, for a look at its accuracy. */
int bench_kl(int kind, uint64_t input, uint64_t target, int64_t rows, int64_t classes, uint64_t loss);

#endif
