/* Driver entry points: initialisation, devices, contexts, streams, events. Calls may come from any thread; a lock serialises them. */
#include "driver_api.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STACK = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialised, has_device;
static CUcontext contexts;
static CUcontext primaries[PTXSIM_MOST_DEVICES];
static CUstream streams;
static CUevent events;
static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth;

void ptxsim_lock(void) {
    pthread_mutex_lock(&lock);
}
void ptxsim_unlock(void) {
    pthread_mutex_unlock(&lock);
}

static bool alive(CUcontext context) {
    for (CUcontext c = contexts; c; c = c->next)
        if (c == context)
            return c->alive;
    return false;
}

static CUcontext current(void) {
    return depth ? stack[depth - 1] : NULL;
}

int ptxsim_enter(CUcontext *context) {
    ptxsim_lock();
    *context = current();
    if (!initialised)
        return E_NOT_INITIALIZED;
    if (!*context)
        return E_INVALID_CONTEXT;
    if (!alive(*context))
        return E_CONTEXT_DESTROYED;
    return (*context)->sticky;
}

static int leave(int error) {
    ptxsim_unlock();
    return error;
}

bool ptxsim_stream_ok(CUstream stream) {
    /* The default streams are the small numbers 0, 1 and 2. */
    if ((uintptr_t)stream <= 2)
        return true;
    for (CUstream s = streams; s; s = s->next)
        if (s == stream)
            return true;
    return false;
}

PTXSIM_EXPORT int cuInit(unsigned flags) {
    ptxsim_lock();
    if (!initialised)
        has_device = ptxsim_device_init();
    initialised = initialised || has_device;
    return leave(flags ? E_INVALID_VALUE : has_device ? E_OK : E_NO_DEVICE);
}

PTXSIM_EXPORT int cuDriverGetVersion(int *version) {
    if (!version)
        return E_INVALID_VALUE;
    ptxsim_lock();
    if (!initialised)
        ptxsim_device_init();
    *version = ptxsim_device.driver_version;
    return leave(E_OK);
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {E_OK, "CUDA_SUCCESS", "no error"},
    {E_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {E_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {E_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {E_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {E_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {E_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {E_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {E_NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {E_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {E_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {E_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {E_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {E_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {E_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {E_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {E_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {E_CONTEXT_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {E_ILLEGAL_INSTRUCTION, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {E_MISALIGNED, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {E_INVALID_ADDRESS_SPACE, "CUDA_ERROR_INVALID_ADDRESS_SPACE",
     "operation not supported on global/shared address space"},
    {E_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {E_CLUSTER_SIZE, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"},
    {E_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

static int describe(int code, const char **out, bool name) {
    if (!out)
        return E_INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            *out = name ? errors[i].name : errors[i].text;
    return *out ? E_OK : E_INVALID_VALUE;
}

PTXSIM_EXPORT int cuGetErrorName(int code, const char **name) {
    return describe(code, name, true);
}
PTXSIM_EXPORT int cuGetErrorString(int code, const char **text) {
    return describe(code, text, false);
}

PTXSIM_EXPORT int cuDeviceGetCount(int *count) {
    if (!initialised)
        return E_NOT_INITIALIZED;
    if (!count)
        return E_INVALID_VALUE;
    *count = (int)ptxsim_device.devices;
    return E_OK;
}

static int device_check(int device, const void *out) {
    if (!initialised)
        return E_NOT_INITIALIZED;
    if (device < 0 || device >= (int)ptxsim_device.devices)
        return E_INVALID_DEVICE;
    return out ? E_OK : E_INVALID_VALUE;
}

PTXSIM_EXPORT int cuDeviceGet(int *device, int ordinal) {
    int error = device_check(ordinal, device);
    if (!error)
        *device = ordinal;
    return error;
}

PTXSIM_EXPORT int cuDeviceGetName(char *name, int length, int device) {
    int error = device_check(device, name);
    if (!error && length <= 0)
        error = E_INVALID_VALUE;
    if (!error)
        snprintf(name, (size_t)length, "%s", ptxsim_device.name);
    return error;
}

PTXSIM_EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int error = device_check(device, value);
    return error ? error : ptxsim_device_attribute(attribute, value);
}

PTXSIM_EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    int error = device_check(device, bytes);
    if (!error)
        *bytes = ptxsim_device.memory;
    return error;
}

static CUcontext context_new(int device, bool is_primary) {
    CUcontext context = calloc(1, sizeof *context);
    if (!context)
        abort();
    context->alive = true;
    context->device = device;
    context->primary = is_primary;
    context->next = contexts;
    contexts = context;
    return context;
}

/* The object stays, so that a stale handle is recognised. */
static void context_end(CUcontext context) {
    ptxsim_drop_modules(context);
    ptxsim_free_owned(context);
    for (CUstream *s = &streams; *s;) {
        CUstream gone = *s;
        if (gone->context == context) {
            *s = gone->next;
            free(gone);
        } else {
            s = &gone->next;
        }
    }
    context->alive = false;
}

PTXSIM_EXPORT int cuDevicePrimaryCtxRetain(CUcontext *context, int device) {
    int error = device_check(device, context);
    if (error)
        return error;
    ptxsim_lock();
    CUcontext *primary = &primaries[device];
    if (!*primary)
        *primary = context_new(device, true);
    (*primary)->alive = true;
    (*primary)->retained++;
    *context = *primary;
    return leave(E_OK);
}

static int primary_release(int device) {
    int error = device_check(device, &device);
    if (error)
        return error;
    ptxsim_lock();
    CUcontext primary = primaries[device];
    if (!primary || !primary->retained)
        return leave(E_INVALID_CONTEXT);
    if (--primary->retained == 0) {
        context_end(primary);
        primary->sticky = E_OK;
    }
    return leave(E_OK);
}

PTXSIM_EXPORT int cuDevicePrimaryCtxRelease(int device) {
    return primary_release(device);
}
PTXSIM_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    return primary_release(device);
}

PTXSIM_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    int error = device_check(device, active);
    if (error)
        return error;
    if (flags)
        *flags = 0;
    *active = primaries[device] && primaries[device]->retained;
    return E_OK;
}

PTXSIM_EXPORT int cuCtxCreate_v2(CUcontext *context, unsigned flags, int device) {
    int error = device_check(device, context);
    (void)flags;
    if (error)
        return error;
    if (depth == STACK)
        return E_OUT_OF_MEMORY;
    ptxsim_lock();
    *context = context_new(device, false);
    stack[depth++] = *context;
    return leave(E_OK);
}

PTXSIM_EXPORT int cuCtxDestroy_v2(CUcontext context) {
    if (!initialised)
        return E_NOT_INITIALIZED;
    ptxsim_lock();
    if (!alive(context) || context->primary)
        return leave(E_INVALID_CONTEXT);
    context_end(context);
    if (current() == context)
        depth--;
    return leave(E_OK);
}

PTXSIM_EXPORT int cuCtxGetCurrent(CUcontext *context) {
    if (!initialised)
        return E_NOT_INITIALIZED;
    if (!context)
        return E_INVALID_VALUE;
    *context = current();
    return E_OK;
}

static int check_context(CUcontext context) {
    if (!initialised)
        return E_NOT_INITIALIZED;
    ptxsim_lock();
    return leave(alive(context) ? E_OK : E_INVALID_CONTEXT);
}

PTXSIM_EXPORT int cuCtxSetCurrent(CUcontext context) {
    int error = context ? check_context(context) : initialised ? E_OK : E_NOT_INITIALIZED;
    if (error)
        return error;
    if (depth)
        depth--;
    if (context)
        stack[depth++] = context;
    return E_OK;
}

PTXSIM_EXPORT int cuCtxPushCurrent_v2(CUcontext context) {
    int error = check_context(context);
    if (error)
        return error;
    if (depth == STACK)
        return E_OUT_OF_MEMORY;
    stack[depth++] = context;
    return E_OK;
}

PTXSIM_EXPORT int cuCtxPopCurrent_v2(CUcontext *context) {
    if (!initialised)
        return E_NOT_INITIALIZED;
    if (!depth)
        return E_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return E_OK;
}

PTXSIM_EXPORT int cuCtxGetDevice(int *device) {
    if (!initialised)
        return E_NOT_INITIALIZED;
    if (!current())
        return E_INVALID_CONTEXT;
    if (!device)
        return E_INVALID_VALUE;
    *device = current()->device;
    return E_OK;
}

PTXSIM_EXPORT int cuCtxSynchronize(void) {
    CUcontext context;
    return leave(ptxsim_enter(&context));
}

PTXSIM_EXPORT int cuStreamCreate(CUstream *stream, unsigned flags) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    if (!error && (!stream || flags > 1))
        error = E_INVALID_VALUE;
    if (error)
        return leave(error);
    *stream = calloc(1, sizeof **stream);
    if (!*stream)
        return leave(E_OUT_OF_MEMORY);
    (*stream)->context = context;
    (*stream)->next = streams;
    streams = *stream;
    return leave(E_OK);
}

PTXSIM_EXPORT int cuStreamDestroy_v2(CUstream stream) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    CUstream *s = &streams;
    while (*s && *s != stream)
        s = &(*s)->next;
    if (!*s)
        return leave(error ? error : E_INVALID_HANDLE);
    *s = stream->next;
    free(stream);
    return leave(error);
}

static int stream_call(CUstream stream) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    return leave(error ? error : ptxsim_stream_ok(stream) ? E_OK : E_INVALID_HANDLE);
}

PTXSIM_EXPORT int cuStreamSynchronize(CUstream stream) {
    return stream_call(stream);
}

PTXSIM_EXPORT int cuStreamQuery(CUstream stream) {
    return stream_call(stream);
}

PTXSIM_EXPORT int cuStreamGetCtx(CUstream stream, CUcontext *context) {
    CUcontext calling;
    int error = ptxsim_enter(&calling);
    if (!error && (!context || !ptxsim_stream_ok(stream)))
        error = context ? E_INVALID_HANDLE : E_INVALID_VALUE;
    if (!error)
        *context = (uintptr_t)stream <= 2 ? calling : stream->context;
    return leave(error);
}

PTXSIM_EXPORT int cuStreamIsCapturing(CUstream stream, int *status) {
    if (!status)
        return E_INVALID_VALUE;
    *status = 0;
    return stream_call(stream);
}

PTXSIM_EXPORT int cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    uint64_t start, bytes;
    const void *owner;
    CUcontext context;
    int error = ptxsim_enter(&context);
    if (!error && (!data || !ptxsim_allocation_of(address, &start, &bytes, &owner)))
        error = E_INVALID_VALUE;
    if (error)
        return leave(error);
    switch (attribute) {
    case 2: /* the type: device memory */
        *(unsigned *)data = 2;
        break;
    case 8: /* whether it is managed */
        *(unsigned *)data = 0;
        break;
    case 9: /* the device */
        *(int *)data = (owner ? (const struct CUctx_st *)owner : context)->device;
        break;
    case 11:
        *(uint64_t *)data = start;
        break;
    case 12:
        *(uint64_t *)data = bytes;
        break;
    default:
        return leave(E_INVALID_VALUE);
    }
    return leave(E_OK);
}

PTXSIM_EXPORT int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)event, (void)flags;
    return stream_call(stream);
}

PTXSIM_EXPORT int cuEventCreate(CUevent *event, unsigned flags) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    if (!error && (!event || flags > 7))
        error = E_INVALID_VALUE;
    if (error)
        return leave(error);
    *event = calloc(1, sizeof **event);
    if (!*event)
        return leave(E_OUT_OF_MEMORY);
    (*event)->context = context;
    (*event)->next = events;
    events = *event;
    return leave(E_OK);
}

static CUevent *event_place(CUevent event) {
    CUevent *e = &events;
    while (*e && *e != event)
        e = &(*e)->next;
    return e;
}

PTXSIM_EXPORT int cuEventRecord(CUevent event, CUstream stream) {
    CUcontext context;
    struct timespec now;
    int error = ptxsim_enter(&context);
    if (!error && (!*event_place(event) || !ptxsim_stream_ok(stream)))
        error = E_INVALID_HANDLE;
    if (error)
        return leave(error);
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    event->recorded = true;
    return leave(E_OK);
}

static int event_call(CUevent event) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    return leave(error ? error : *event_place(event) ? E_OK : E_INVALID_HANDLE);
}

PTXSIM_EXPORT int cuEventSynchronize(CUevent event) {
    return event_call(event);
}

PTXSIM_EXPORT int cuEventQuery(CUevent event) {
    return event_call(event);
}

static int elapsed_time(float *ms, CUevent start, CUevent end) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    if (!error && !ms)
        error = E_INVALID_VALUE;
    if (!error && (!*event_place(start) || !*event_place(end) || !start->recorded || !end->recorded))
        error = E_INVALID_HANDLE;
    if (!error)
        *ms = (float)((double)(int64_t)(end->ns - start->ns) / 1e6);
    return leave(error);
}
PTXSIM_EXPORT int cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    return elapsed_time(ms, start, end);
}
/* The version for drivers of CUDA 12.8 and newer. */
PTXSIM_EXPORT int cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) {
    return elapsed_time(ms, start, end);
}

PTXSIM_EXPORT int cuEventDestroy_v2(CUevent event) {
    CUcontext context;
    int error = ptxsim_enter(&context);
    CUevent *e = event_place(event);
    if (!*e)
        return leave(error ? error : E_INVALID_HANDLE);
    *e = event->next;
    free(event);
    return leave(error);
}

/* Functions beyond the driver's own: the last fault, and the executed instructions. */
PTXSIM_EXPORT const char *ptxsim_last_fault(void) {
    return ptxsim_fault_text;
}
PTXSIM_EXPORT unsigned long long ptxsim_instructions_executed(void) {
    return ptxsim_total_instructions;
}
