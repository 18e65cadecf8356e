/* Devices, contexts, memory and streams of the stand-in, and its table of functions, which is private to the
 * implementation. */
#define GPULOSS_STATIC
#include "fake_private.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake_driver fake;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct CUctx_st *stack[16];
static __thread int depth;

void fake_violate(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (fake.violation[0] == 0)
        vsnprintf(fake.violation, sizeof fake.violation, format, arguments);
    va_end(arguments);
}

int fake_begin(const char *symbol, int needs) {
    int code = 0;
    pthread_mutex_lock(&lock);
    fake.calls++;
    if (needs == NEEDS_CONTEXT && depth == 0) {
        fake_violate("%s without a current context", symbol);
        code = 201;
    }
    if (fake.fail_at != 0 && (fake.calls == fake.fail_at || (fake.fail_from_there_on && fake.calls > fake.fail_at)))
        code = fake.fail_code;
    if (fake.fail_symbol != NULL && strcmp(fake.fail_symbol, symbol) == 0)
        code = fake.fail_code;
    if (code != 0) {
        fake.failed = symbol;
        fake.failed_attribute = 0;
    }
    return code;
}

int fake_begin_attribute(const char *symbol, int needs, int attribute) {
    int code = fake_begin(symbol, needs);
    if (attribute == fake.fail_attribute) {
        code = fake.fail_code;
        fake.failed = symbol;
    }
    if (code != 0)
        fake.failed_attribute = attribute;
    return code;
}

int fake_end(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

int fake_room(int count, const char *what) {
    if (count < FAKE_RECORDS)
        return 1;
    fake_violate("too many records of %s", what);
    return 0;
}

/* Explaining an error must work while calls fail, and is not counted: it is not part of the work. */
static int fake_error_name(int code, const char **name) {
    *name = code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_FAKED";
    return 0;
}
static int fake_error_string(int code, const char **text) {
    *text = code == 719 ? "unspecified launch failure" : "as the test wants it";
    return 0;
}

static int fake_init(unsigned flags) {
    int code = fake_begin("cuInit", NEEDS_NOTHING);
    if (flags != 0)
        fake_violate("cuInit with flags");
    return fake_end(code == 0 && fake.devices == 0 ? 100 : code);
}
static int fake_driver_version(int *version) {
    int code = fake_begin("cuDriverGetVersion", NEEDS_NOTHING);
    if (code == 0)
        *version = fake.driver_version;
    return fake_end(code);
}
static int fake_device_count(int *count) {
    int code = fake_begin("cuDeviceGetCount", NEEDS_NOTHING);
    if (code == 0)
        *count = fake.devices;
    return fake_end(code);
}
static int fake_device_get(int *device, int ordinal) {
    int code = fake_begin("cuDeviceGet", NEEDS_NOTHING);
    if (code == 0 && (ordinal < 0 || ordinal >= fake.devices))
        code = 101;
    if (code == 0)
        *device = ordinal;
    return fake_end(code);
}
static int fake_device_name(char *name, int bytes, int device) {
    int code = fake_begin("cuDeviceGetName", NEEDS_NOTHING);
    if (code == 0)
        snprintf(name, (size_t)bytes, "Fake GPU %d", device);
    return fake_end(code);
}
static int fake_device_attribute(int *value, int attribute, int device) {
    int code = fake_begin_attribute("cuDeviceGetAttribute", NEEDS_NOTHING, attribute);
    if (code == 0 && (device < 0 || device >= fake.devices))
        code = 101;
    if (code == 0)
        *value = attribute == 75    ? fake.major
                 : attribute == 76  ? fake.minor
                 : attribute == 16  ? fake.multiprocessors
                 : attribute == 97  ? fake.shared_optin
                 : attribute == 120 ? fake.has_clusters
                                    : -1;
    return fake_end(code);
}

static int fake_primary_retain(struct CUctx_st **context, int device) {
    int code = fake_begin("cuDevicePrimaryCtxRetain", NEEDS_NOTHING);
    if (code == 0) {
        *context = &fake.context[device];
        fake.context[device].retained++;
        fake.retains++;
    }
    return fake_end(code);
}
static int release(const char *symbol, int device) {
    int code = fake_begin(symbol, NEEDS_NOTHING);
    if (device < 0 || device >= fake.devices) {
        fake_violate("%s of device %d", symbol, device);
        return fake_end(101);
    }
    if (fake.context[device].retained == 0)
        fake_violate("%s of a context that is not retained", symbol);
    /* There is nobody to try again, so a failed release counts too. */
    fake.context[device].retained--;
    fake.releases++;
    return fake_end(code);
}
static int fake_primary_release(int device) {
    return release("cuDevicePrimaryCtxRelease_v2", device);
}
static int fake_primary_release_v1(int device) {
    return release("cuDevicePrimaryCtxRelease", device);
}

static int fake_context_current(struct CUctx_st **context) {
    int code = fake_begin("cuCtxGetCurrent", NEEDS_NOTHING);
    if (code == 0)
        *context = fake_current();
    return fake_end(code);
}
static int fake_context_push(struct CUctx_st *context) {
    int code = fake_begin("cuCtxPushCurrent_v2", NEEDS_NOTHING);
    if (context < fake.context || context >= fake.context + FAKE_CONTEXTS)
        fake_violate("cuCtxPushCurrent of something that is no context");
    else if (context < fake.context + FAKE_DEVICES && context->retained == 0)
        fake_violate("cuCtxPushCurrent of a primary context that is not retained");
    if (code == 0) {
        stack[depth++] = context;
        fake.pushes++;
    }
    return fake_end(code);
}
/* A pop that is made to fail pops all the same: the caller could not do it otherwise. */
static int fake_context_pop(struct CUctx_st **context) {
    int code = fake_begin("cuCtxPopCurrent_v2", NEEDS_CONTEXT);
    if (depth > 0) {
        *context = stack[--depth];
        fake.pops++;
    }
    return fake_end(code);
}
static int fake_context_device(int *device) {
    int code = fake_begin("cuCtxGetDevice", NEEDS_CONTEXT);
    *device = code == 0 ? fake_current()->device : -1;
    return fake_end(code);
}

static void finish_fills(struct CUstream_st *stream, int all) {
    int i;
    for (i = 0; i < fake.fills; i++)
        if (all || fake.fill[i].stream == stream)
            fake.fill[i].finished = 1;
}

static int fake_context_synchronize(void) {
    int code = fake_begin("cuCtxSynchronize", NEEDS_CONTEXT);
    fake.synchronizes++;
    finish_fills(NULL, 1);
    return fake_end(code);
}

static fake_memory *memory_at(uint64_t address, size_t bytes) {
    int i;
    for (i = 0; i < fake.memories; i++) {
        fake_memory *m = &fake.memory[i];
        if (m->base != 0 && address >= m->base && address + bytes <= m->base + m->bytes)
            return m;
    }
    return NULL;
}

static int fake_memory_alloc(uint64_t *address, size_t bytes) {
    int code = fake_begin("cuMemAlloc_v2", NEEDS_CONTEXT);
    fake_memory *made = &fake.memory[fake.memories];
    void *base = NULL;
    if (bytes == 0)
        fake_violate("cuMemAlloc of nothing");
    if (fake.capturing)
        fake_violate("cuMemAlloc during capture");
    if (code == 0 && (!fake_room(fake.memories, "allocations") || posix_memalign(&base, 256, bytes) != 0))
        code = 2;
    if (code != 0)
        return fake_end(code);
    memset(base, 0xa5, bytes);
    made->base = *address = (uint64_t)(uintptr_t)base;
    made->bytes = bytes;
    made->context = fake_current();
    fake.memories++;
    return fake_end(0);
}
static int fake_memory_free(uint64_t address) {
    int code = fake_begin("cuMemFree_v2", NEEDS_CONTEXT);
    fake_memory *m = memory_at(address, 1);
    if (m == NULL || m->base != address) {
        fake_violate("cuMemFree of what is not allocated");
        return fake_end(1);
    }
    if (depth > 0 && m->context != fake_current())
        fake_violate("cuMemFree in another context");
    if (code != 0) {
        m->release_failed = 1;
        return fake_end(code);
    }
    finish_fills(NULL, 1); /* the driver waits for all work */
    free((void *)(uintptr_t)address);
    m->base = 0;
    return fake_end(0);
}
static int fake_upload(uint64_t device, const void *host, size_t bytes, struct CUstream_st *stream) {
    int code = fake_begin("cuMemcpyHtoDAsync_v2", NEEDS_CONTEXT);
    (void)stream;
    if (code == 0 && memory_at(device, bytes) == NULL)
        code = 1;
    if (code == 0)
        memcpy((void *)(uintptr_t)device, host, bytes);
    return fake_end(code);
}
static int fake_download(void *host, uint64_t device, size_t bytes, struct CUstream_st *stream) {
    int code = fake_begin("cuMemcpyDtoHAsync_v2", NEEDS_CONTEXT);
    (void)stream;
    if (code == 0 && memory_at(device, bytes) == NULL)
        code = 1;
    if (code == 0)
        memcpy(host, (const void *)(uintptr_t)device, bytes);
    return fake_end(code);
}
static int fake_fill(uint64_t device, unsigned value, size_t count, struct CUstream_st *stream) {
    int code = fake_begin("cuMemsetD32Async", NEEDS_CONTEXT);
    fake_filled *made = &fake.fill[fake.fills];
    int i;
    if (code != 0 || !fake_room(fake.fills, "fills"))
        return fake_end(code);
    made->base = device;
    made->bytes = 4 * count;
    made->value = value;
    made->stream = stream;
    made->launches_before = fake.launches;
    fake.fills++;
    for (i = fake.prepares - 1; i >= 0; i--)
        if (fake.prepared[i].rows.scratch >= device && fake.prepared[i].rows.scratch < device + 4 * count)
            fake.prepared[i] = fake.prepared[--fake.prepares];
    return fake_end(0);
}

static int fake_stream_create(struct CUstream_st **stream, unsigned flags) {
    int code = fake_begin("cuStreamCreate", NEEDS_CONTEXT);
    if (flags != 1)
        fake_violate("cuStreamCreate with flags %u", flags);
    if (code == 0) {
        *stream = (struct CUstream_st *)malloc(16);
        fake.streams_live++;
    }
    return fake_end(code);
}
static int fake_stream_destroy(struct CUstream_st *stream) {
    int code = fake_begin("cuStreamDestroy_v2", NEEDS_CONTEXT);
    if (code == 0) {
        free(stream);
        fake.streams_live--;
    }
    return fake_end(code);
}
static int fake_stream_synchronize(struct CUstream_st *stream) {
    int code = fake_begin("cuStreamSynchronize", NEEDS_CONTEXT);
    fake.synchronizes++;
    if (code == 0)
        finish_fills(stream, 0);
    return fake_end(code);
}
static int fake_stream_capturing(struct CUstream_st *stream, int *capturing) {
    int code = fake_begin("cuStreamIsCapturing", NEEDS_CONTEXT);
    (void)stream;
    if (code == 0)
        *capturing = fake.capturing;
    return fake_end(code);
}

static int fake_pointer_attribute(void *data, int attribute, uint64_t address) {
    int code = fake_begin_attribute("cuPointerGetAttribute", NEEDS_CONTEXT, attribute);
    const uint64_t behind = fake.unknown_at + fake.unknown_bytes;
    const int is_before = fake.unknown_bytes == 0 || address < fake.unknown_at;
    if (code == 0 && !is_before && address < behind)
        code = 1;
    if (code != 0)
        return fake_end(code);
    switch (attribute) {
    case 2:
        *(unsigned *)data = (unsigned)fake.pointer_type;
        break;
    case 8:
        *(unsigned *)data = (unsigned)fake.pointer_managed;
        break;
    case 9:
        *(int *)data = fake.pointer_gpu;
        break;
    case 11:
        *(uint64_t *)data = is_before ? 0 : behind;
        break;
    case 12:
        *(uint64_t *)data = fake.unknown_bytes == 0 ? UINT64_MAX : is_before ? fake.unknown_at : UINT64_MAX - behind;
        break;
    default:
        fake_violate("attribute %d of a pointer is queried", attribute);
    }
    return fake_end(0);
}

static int fake_clusters(int *clusters, void *function, const gpulossi_launch_config *config) {
    return fake_active_clusters(clusters, function, config);
}
static int fake_launch_ex(const gpulossi_launch_config *config, void *function, void **parameters, void **extra) {
    return fake_launch_config(config, function, parameters, extra);
}

void *fake_symbol(void *user, const char *name) {
    size_t i;
    if (user != &fake)
        fake_violate("the symbol source was not given its symbol_user");
    for (i = 0; i < sizeof fake.missing / sizeof fake.missing[0]; i++)
        if (fake.missing[i] != NULL && strcmp(fake.missing[i], name) == 0)
            return NULL;
            /* A row of the table without a function here, or one of another type, does not compile. */
#define GIVE(need, field, symbol, arguments)                                                                           \
    if (strcmp(name, symbol) == 0) {                                                                                   \
        int(*function) arguments = fake_##field;                                                                       \
        return (void *)(uintptr_t)function;                                                                            \
    }
    GPULOSSI_DRIVER(GIVE)
#undef GIVE
    fake_violate("%s is requested and is not in the table", name);
    return NULL;
}

gpuloss_create_desc fake_desc(void) {
    gpuloss_create_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.symbol = fake_symbol;
    desc.symbol_user = &fake;
    return desc;
}

void fake_set_current(struct CUctx_st *context) {
    depth = 0;
    if (context != NULL)
        stack[depth++] = context;
}
struct CUctx_st *fake_current(void) {
    return depth > 0 ? stack[depth - 1] : NULL;
}
int fake_depth(void) {
    return depth;
}

void fake_reset(void) {
    static const int active_clusters[FAKE_CLUSTER_SIZES] = {0,  396, 198, 132, 96, 76, 66, 50, 46,
                                                            42, 36,  34,  32,  28, 26, 24, 20};
    static const int wide_clusters[FAKE_CLUSTER_SIZES] = {0,  264, 132, 84, 64, 50, 40, 36, 32,
                                                          28, 24,  22,  20, 18, 16, 14, 12};
    static const int row_clusters[FAKE_CLUSTER_SIZES] = {0, 132, 66, 44, 29, 22, 22, 14, 14, 14, 7, 7, 7, 7, 7, 7, 7};
    int i;
    for (i = 0; i < fake.memories; i++)
        free((void *)(uintptr_t)fake.memory[i].base);
    for (i = 0; i < fake.modules; i++)
        free(fake.module[i].ptx);
    memset(&fake, 0, sizeof fake);
    fake.driver_version = 13000;
    fake.devices = FAKE_DEVICES;
    fake.major = 9;
    fake.multiprocessors = 132;
    fake.blocks_small = 8;
    fake.blocks_shared = 2;
    fake.blocks_less = 5;
    fake.has_clusters = 1;
    fake.shared_optin = 232448;
    memcpy(fake.active_clusters, active_clusters, sizeof active_clusters);
    memcpy(fake.wide_clusters, wide_clusters, sizeof wide_clusters);
    memcpy(fake.row_clusters, row_clusters, sizeof row_clusters);
    fake.fail_code = 719;
    fake.pointer_type = 2;
    for (i = 0; i < FAKE_CONTEXTS; i++)
        fake.context[i].device = i % FAKE_DEVICES;
    fake_set_current(NULL);
}

int fake_live_modules(void) {
    int i, live = 0;
    for (i = 0; i < fake.modules; i++)
        live += fake.module[i].live && !fake.module[i].release_failed;
    return live;
}

int fake_leaks(void) {
    int i, leaks = fake_live_modules() + fake.streams_live + fake.mallocs_live;
    for (i = 0; i < fake.memories; i++)
        leaks += fake.memory[i].base != 0 && !fake.memory[i].release_failed;
    for (i = 0; i < FAKE_DEVICES; i++)
        leaks += fake.context[i].retained;
    return leaks;
}

void *fake_malloc(size_t bytes) {
    void *made;
    pthread_mutex_lock(&lock);
    made = ++fake.mallocs == fake.fail_malloc_at ? NULL : malloc(bytes);
    fake.mallocs_live += made != NULL;
    pthread_mutex_unlock(&lock);
    return made != NULL ? memset(made, 0xa5, bytes) : NULL;
}

void fake_free(void *pointer) {
    pthread_mutex_lock(&lock);
    if (pointer == NULL)
        fake_violate("GPULOSS_FREE of NULL");
    fake.mallocs_live--;
    pthread_mutex_unlock(&lock);
    free(pointer);
}
