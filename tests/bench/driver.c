/* Finds the driver, counts the launches of gpuloss, and lets it take the GPU for another one. */
#include "driver.h"

#include "bench.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

bench_driver bench_cuda;

typedef int launch_ex_function(const void *config, void *function, void **arguments, void **extra);
typedef int attribute_function(int *value, int attribute, int device);

static void *library;
static bench_launch_function *driver_launch;
static launch_ex_function *driver_launch_ex;
static attribute_function *driver_attribute;
static long long launches;

/* The numbers of CUdevice_attribute. */
enum { MAJOR = 75, MINOR = 76, SHARED_OPTIN = 97, CLUSTERS = 120 };

static const bench_model models[] = {{50, 49152, 0},  {60, 49152, 0},   {61, 49152, 0},  {70, 98304, 0},
                                     {75, 65536, 0},  {80, 166912, 0},  {86, 101376, 0}, {89, 101376, 0},
                                     {90, 232448, 1}, {100, 232448, 1}, {120, 101376, 1}};
static const bench_model *taken_for;

int bench_as(int compute_capability) {
    unsigned i;
    for (i = 0; i < sizeof models / sizeof models[0]; i++)
        if (models[i].compute_capability == compute_capability) {
            taken_for = &models[i];
            return 0;
        }
    return bench_fail("--as %d: no such compute capability", compute_capability);
}

void *bench_symbol(const char *name) {
    return dlsym(library, name);
}

static int counted_launch(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                          unsigned threads_z, unsigned shared, void *stream, void **arguments, void **extra) {
    launches++;
    return driver_launch(function, x, y, z, threads, threads_y, threads_z, shared, stream, arguments, extra);
}

static int counted_launch_ex(const void *config, void *function, void **arguments, void **extra) {
    launches++;
    return driver_launch_ex(config, function, arguments, extra);
}

static int attribute_taken_for(int *value, int attribute, int device) {
    int code = driver_attribute(value, attribute, device);
    if (code != 0 || taken_for == NULL)
        return code;
    switch (attribute) {
    case MAJOR:
        *value = taken_for->compute_capability / 10;
        break;
    case MINOR:
        *value = taken_for->compute_capability % 10;
        break;
    case SHARED_OPTIN:
        *value = taken_for->shared_bytes;
        break;
    case CLUSTERS:
        *value = taken_for->clusters;
        break;
    default:
        break;
    }
    return 0;
}

long long bench_launches(void) {
    return launches;
}

void *bench_symbol_for_gpuloss(void *user, const char *name) {
    void *found = bench_symbol(name);
    (void)user;
    if (found != NULL && strcmp(name, "cuLaunchKernel") == 0) {
        driver_launch = (bench_launch_function *)(uintptr_t)found;
        return (void *)(uintptr_t)counted_launch;
    }
    if (found != NULL && strcmp(name, "cuLaunchKernelEx") == 0) {
        driver_launch_ex = (launch_ex_function *)(uintptr_t)found;
        return (void *)(uintptr_t)counted_launch_ex;
    }
    if (found != NULL && strcmp(name, "cuDeviceGetAttribute") == 0) {
        driver_attribute = (attribute_function *)(uintptr_t)found;
        return (void *)(uintptr_t)attribute_taken_for;
    }
    return found;
}

static int find_functions(void) {
#define FIND(field, symbol, arguments)                                                                                 \
    bench_cuda.field = (int(*) arguments)(uintptr_t)bench_symbol(symbol);                                              \
    if (bench_cuda.field == NULL)                                                                                      \
        return bench_fail("the driver has no %s", symbol);
    BENCH_DRIVER(FIND)
#undef FIND
    return 0;
}

/* The primary context is the one that frameworks use. */
static int choose_context(void) {
    void *context = NULL;
    int device;
    if (bench_check("cuInit", bench_cuda.init(0)) ||
        bench_check("cuCtxGetCurrent", bench_cuda.context_current(&context)))
        return 1;
    return context == NULL && (bench_check("cuDeviceGet", bench_cuda.device_get(&device, 0)) ||
                               bench_check("the primary context", bench_cuda.primary_retain(&context, device)) ||
                               bench_check("cuCtxPushCurrent", bench_cuda.context_push(context)));
}

int bench_driver_open(void) {
    const char *path = getenv("GPULOSS_DRIVER");
    library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL && path == NULL)
        library = dlopen("/usr/lib/wsl/lib/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return bench_fail("the driver %s could not be loaded", path ? path : "libcuda.so.1");
    return find_functions() || choose_context();
}

int bench_attribute(int attribute, int *value) {
    int device;
    return bench_check("cuCtxGetDevice", bench_cuda.context_device(&device)) ||
           bench_check("cuDeviceGetAttribute", bench_cuda.device_attribute(value, attribute, device));
}

/* 0 where an older driver does not know the attribute. */
static int attribute_for_gpuloss(int attribute) {
    attribute_function *query = (attribute_function *)(uintptr_t)bench_symbol_for_gpuloss(NULL, "cuDeviceGetAttribute");
    int device, value = 0;
    return bench_cuda.context_device(&device) == 0 && query(&value, attribute, device) == 0 ? value : 0;
}

bench_model bench_model_taken(void) {
    bench_model model;
    model.compute_capability = 10 * attribute_for_gpuloss(MAJOR) + attribute_for_gpuloss(MINOR);
    model.shared_bytes = attribute_for_gpuloss(SHARED_OPTIN);
    model.clusters = attribute_for_gpuloss(CLUSTERS) != 0;
    return model;
}
