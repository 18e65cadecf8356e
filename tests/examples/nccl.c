/* A stand-in for the parts of NCCL that examples/09_nccl.c calls, for the interpreter. It copies with the driver,
 * because the interpreter's devices share a memory. A group moves its data at its end, and only if each rank of a
 * communicator has made the same call. It prints the error of a wrong call. */
#include <cuda.h>
#include <nccl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* A rank. The ranks of one communicator form a ring. */
struct ncclComm {
    int rank, ranks;
    CUdevice device;
    ncclComm_t next;
    bool called; /* in this group, with the arguments that follow */
    CUdeviceptr from, to;
    size_t count;
    ncclDataType_t type;
};

enum { MOST = 64 };
static ncclComm_t all[MOST];
static int groups;

static ncclResult_t refuse(ncclResult_t result, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "stand-in of NCCL: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    return result;
}

static ncclComm_t *place_of(ncclComm_t comm) {
    for (int i = 0; i < MOST; i++)
        if (all[i] == comm)
            return &all[i];
    return NULL;
}

const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    default:
        return "another error";
    }
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ranks, const int *devices) {
    int count;
    if (cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return refuse(ncclUnhandledCudaError, "no devices");
    if (comms == NULL || ranks < 1 || ranks > count)
        return refuse(ncclInvalidArgument, "%d ranks on %d devices", ranks, count);
    for (int i = 0; i < ranks; i++) {
        ncclComm_t *place = place_of(NULL);
        const int device = devices != NULL ? devices[i] : i;
        for (int j = 0; j < i; j++)
            if (comms[j]->device == device)
                return refuse(ncclInvalidUsage, "device %d has two ranks", device);
        if (device < 0 || device >= count)
            return refuse(ncclInvalidArgument, "device %d of %d", device, count);
        comms[i] = place != NULL ? calloc(1, sizeof *comms[i]) : NULL;
        if (comms[i] == NULL)
            return refuse(ncclSystemError, "out of memory");
        *comms[i] = (struct ncclComm){.rank = i, .ranks = ranks, .device = device};
        *place = comms[i];
    }
    for (int i = 0; i < ranks; i++)
        comms[i]->next = comms[(i + 1) % ranks];
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    ncclComm_t *place = comm != NULL ? place_of(comm) : NULL;
    if (place == NULL)
        return refuse(ncclInvalidArgument, "no communicator");
    free(comm);
    *place = NULL;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
    groups++;
    return ncclSuccess;
}

static size_t bytes_of(ncclDataType_t type) {
    return type == ncclDouble || type == ncclInt64 || type == ncclUint64  ? 8
           : type == ncclFloat || type == ncclInt32 || type == ncclUint32 ? 4
           : type == ncclInt8 || type == ncclUint8                        ? 1
                                                                          : 0;
}

/* Whether the array lies in one allocation on the device. */
static bool is_on(CUdevice device, CUdeviceptr array, size_t bytes) {
    int of_array = -1;
    CUdeviceptr start = 0;
    size_t size = 0;
    return cuPointerGetAttribute(&of_array, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, array) == CUDA_SUCCESS &&
           cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, array) == CUDA_SUCCESS &&
           cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, array) == CUDA_SUCCESS && of_array == device &&
           array - start <= size && bytes <= size - (array - start);
}

/* The device of a stream, or -1. */
static CUdevice device_of(CUstream stream) {
    CUcontext context;
    CUdevice device = -1;
    if (cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || cuCtxPushCurrent(context) != CUDA_SUCCESS)
        return -1;
    if (cuCtxGetDevice(&device) != CUDA_SUCCESS)
        device = -1;
    cuCtxPopCurrent(&context);
    return device;
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    const CUdeviceptr source = (CUdeviceptr)(uintptr_t)from, target = (CUdeviceptr)(uintptr_t)to;
    const size_t bytes = count * bytes_of(type);
    if (comm == NULL || place_of(comm) == NULL)
        return refuse(ncclInvalidArgument, "no communicator");
    if (bytes_of(type) == 0)
        return refuse(ncclInvalidArgument, "type %d is not known here", (int)type);
    if (groups == 0)
        return refuse(ncclInvalidUsage, "outside of a group, rank %d waits for the others for ever", comm->rank);
    if (comm->called)
        return refuse(ncclInvalidUsage, "rank %d is called twice", comm->rank);
    if (device_of(stream) != comm->device)
        return refuse(ncclInvalidUsage, "rank %d: a stream of device %d, not %d", comm->rank, device_of(stream),
                      comm->device);
    if (!is_on(comm->device, source, bytes) || !is_on(comm->device, target, bytes * (size_t)comm->ranks))
        return refuse(ncclInvalidArgument, "rank %d: an array of another device, or too small", comm->rank);
    if (source != target + (size_t)comm->rank * bytes && source < target + bytes * (size_t)comm->ranks &&
        target < source + bytes)
        return refuse(ncclInvalidArgument, "rank %d: arrays that overlap", comm->rank);
    comm->called = true;
    comm->from = source;
    comm->to = target;
    comm->count = count;
    comm->type = type;
    return ncclSuccess;
}

/* The data of one rank, to all. */
static ncclResult_t gather(ncclComm_t of) {
    const size_t bytes = of->count * bytes_of(of->type);
    ncclComm_t to = of;
    do {
        if (!to->called || to->count != of->count || to->type != of->type)
            return refuse(ncclInvalidUsage, "rank %d makes another call than rank %d", to->rank, of->rank);
        if (cuMemcpyDtoD(to->to + (size_t)of->rank * bytes, of->from, bytes) != CUDA_SUCCESS)
            return refuse(ncclUnhandledCudaError, "a copy failed");
        to = to->next;
    } while (to != of);
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    ncclResult_t result = ncclSuccess;
    if (groups == 0)
        return refuse(ncclInvalidUsage, "the end of no group");
    if (--groups > 0)
        return ncclSuccess;
    for (int i = 0; i < MOST; i++)
        if (result == ncclSuccess && all[i] != NULL && all[i]->called)
            result = gather(all[i]);
    for (int i = 0; i < MOST; i++)
        if (all[i] != NULL)
            all[i]->called = false;
    return result;
}
