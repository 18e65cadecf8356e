/* The driver's functions that the benchmark calls, which it finds without the help of gpuloss.h. */
#ifndef GPULOSSI_BENCH_DRIVER_H
#define GPULOSSI_BENCH_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int bench_launch_function(void *function, unsigned x, unsigned y, unsigned z, unsigned threads,
                                  unsigned threads_y, unsigned threads_z, unsigned shared, void *stream,
                                  void **arguments, void **extra);

/* X(field, symbol, arguments) */
#define BENCH_DRIVER(X)                                                                                                \
    X(init, "cuInit", (unsigned))                                                                                      \
    X(device_get, "cuDeviceGet", (int *, int))                                                                         \
    X(device_attribute, "cuDeviceGetAttribute", (int *, int, int))                                                     \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (void **, int))                                                      \
    X(context_current, "cuCtxGetCurrent", (void **))                                                                   \
    X(context_push, "cuCtxPushCurrent_v2", (void *))                                                                   \
    X(context_device, "cuCtxGetDevice", (int *))                                                                       \
    X(module_load, "cuModuleLoadDataEx", (void **, const void *, unsigned, int *, void **))                            \
    X(module_function, "cuModuleGetFunction", (void **, void *, const char *))                                         \
    X(launch, "cuLaunchKernel",                                                                                        \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))        \
    X(memory_alloc, "cuMemAlloc_v2", (uint64_t *, size_t))                                                             \
    X(memory_free, "cuMemFree_v2", (uint64_t))                                                                         \
    X(upload, "cuMemcpyHtoDAsync_v2", (uint64_t, const void *, size_t, void *))                                        \
    X(stream_synchronize, "cuStreamSynchronize", (void *))                                                             \
    X(event_create, "cuEventCreate", (void **, unsigned))                                                              \
    X(event_record, "cuEventRecord", (void *, void *))                                                                 \
    X(event_synchronize, "cuEventSynchronize", (void *))                                                               \
    X(event_elapsed, "cuEventElapsedTime", (float *, void *, void *))

#define BENCH_FIELD(field, symbol, arguments) int(*field) arguments;
typedef struct bench_driver {
    BENCH_DRIVER(BENCH_FIELD)
} bench_driver;
#undef BENCH_FIELD

extern bench_driver bench_cuda;

enum { BENCH_ATTRIBUTE_CLOCK = 13 /* kHz */, BENCH_ATTRIBUTE_MULTIPROCESSORS = 16 };

/* Finds the driver; a context is current afterwards: the caller's, or else the primary one of GPU 0. */
int bench_driver_open(void);
/* An attribute that the current context's GPU really has, whatever bench_as says. */
int bench_attribute(int attribute, int *value);

typedef struct bench_model {
    int compute_capability, shared_bytes, clusters; /* shared_bytes: the most that a block may have */
} bench_model;

/* The GPU that gpuloss believes to have. */
bench_model bench_model_taken(void);
/* For gpuloss_create: counts launches on the way, and answers questions about the GPU as bench_as says. */
void *bench_symbol_for_gpuloss(void *user, const char *name);

#endif
