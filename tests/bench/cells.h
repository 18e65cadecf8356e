/* Fills bench_cells with the cells of the benchmark, or with the cells that the schedules are chosen by. */
#ifndef GPULOSSI_BENCH_CELLS_H
#define GPULOSSI_BENCH_CELLS_H

#include "bench.h"

void bench_list(int64_t bytes);
void bench_list_for_schedules(int64_t bytes);

#endif
