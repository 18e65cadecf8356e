/* Fills bench_cells. */
#ifndef GPULOSSI_BENCH_CELLS_H
#define GPULOSSI_BENCH_CELLS_H

#include "bench.h"

void bench_list(int64_t bytes);

#endif
