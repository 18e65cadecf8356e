/* Wall time on the host. Whoever includes this defines _POSIX_C_SOURCE before anything else. */
#ifndef GPULOSSI_BENCH_CLOCK_H
#define GPULOSSI_BENCH_CLOCK_H

#include <time.h>

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
