/* The part of library.c for schedules.c, which plans the same calls itself. Whoever includes this includes gpuloss.h
 * before. */
#ifndef GPULOSSI_BENCH_DEVICE_H
#define GPULOSSI_BENCH_DEVICE_H

/* The driver's context is current after bench_open. */
gpuloss_context *bench_context(void);

/* The call of a cell that bench_prepare has readied. */
gpuloss_cross_entropy_desc bench_cross_entropy_desc(int cell);
gpuloss_kl_div_desc bench_kl_div_desc(int cell);

#endif
