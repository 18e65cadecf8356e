/* The device memory of the cell at hand, the random data in it, and the module of the ceilings, whose kernels fill it. */
#ifndef GPULOSSI_BENCH_DATA_H
#define GPULOSSI_BENCH_DATA_H

#include "bench.h"

#include <stddef.h>

/* Loads the module from a file of PTX. */
int bench_data_open(const char *path);
void bench_data_close(void);

/* Launches a kernel of the module. */
int bench_launch(const char *kernel, unsigned blocks, unsigned threads, void **arguments);
/* Makes a buffer at least that large. Its contents may be lost. */
int bench_reserve(int which, size_t bytes);
/* n uniform numbers in (-1, 1), floats. */
int bench_fill_uniform(int which, int64_t n);
/* The buffers of a cell with its data in them. */
int bench_fill_cell(const bench_cell *c);
/* From now on the buffers of a cell are at the addresses that `address` returns. Another library has filled them. */
void bench_borrow(uint64_t (*address)(int which));

/* The address of a buffer. */
void *bench_array(int which);

#endif
