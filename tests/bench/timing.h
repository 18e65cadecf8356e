/* Times of calls between events on the default stream. */
#ifndef GPULOSSI_BENCH_TIMING_H
#define GPULOSSI_BENCH_TIMING_H

enum { BENCH_WARM_UP = 30 /* ms */, BENCH_MOST_RUNS = 30 };

/* The median time of the runs. Before them comes one call that is not timed, and then more for `warm_up` milliseconds. */
int bench_median(int (*call)(void), int warm_up, int runs, double *milliseconds);
/* The usual one. */
int bench_measure_call(int (*call)(void), double *milliseconds);

#endif
