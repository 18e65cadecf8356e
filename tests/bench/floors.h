/* The part of floors.c that the list of cells needs. */
#ifndef GPULOSSI_BENCH_FLOORS_H
#define GPULOSSI_BENCH_FLOORS_H

#include "bench.h"

/* Bytes of the arrays with a number for each row and class, each moved once. */
double bench_array_bytes(const bench_cell *c);

#endif
