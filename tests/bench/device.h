/* What bench.c has besides for schedules.c, which plans the same calls itself. Whoever includes this includes gpuloss.h
 * before. */
#ifndef GPULOSSI_BENCH_DEVICE_H
#define GPULOSSI_BENCH_DEVICE_H

enum { BENCH_WARM_UP = 30 /* ms */, BENCH_MOST_RUNS = 30 };

/* The driver's context is current after bench_open. */
gpuloss_context *bench_context(void);

/* The call of a cell that bench_prepare has readied. */
gpuloss_cross_entropy_desc bench_cross_entropy_desc(int cell);
gpuloss_kl_div_desc bench_kl_div_desc(int cell);

/* The median time of so many calls in a row, each between events on the stream, after one that is not timed, and
 * more for so many milliseconds. */
int bench_median(int (*call)(void), int warm_up, int runs, double *milliseconds);

#endif
