/* The calls of gpuloss: library.c is the one part of the benchmark that gpuloss.h is compiled into. */
#ifndef GPULOSSI_BENCH_LIBRARY_H
#define GPULOSSI_BENCH_LIBRARY_H

/* In the current CUcontext, with driver functions by name from `symbol`. */
int bench_library_open(void *(*symbol)(void *user, const char *name));
void bench_library_close(void);
/* The call of a cell, once. */
int bench_library_call(int cell, void *stream);
/* The lse of the cell's logits, from which a backward pass starts. */
int bench_library_save_lse(int cell);

#endif
