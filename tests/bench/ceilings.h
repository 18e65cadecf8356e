/* The ceilings of the GPU's memory. */
#ifndef GPULOSSI_BENCH_CEILINGS_H
#define GPULOSSI_BENCH_CEILINGS_H

#include <stdint.h>

/* Sets the bytes of the arrays that ceilings are measured with. */
void bench_ceilings_of(int64_t bytes_of_an_array);
/* GB/s of a mix of which the share `written` is written, from the ceilings that have been measured. */
double bench_ceiling_of_mix(double written);

#endif
