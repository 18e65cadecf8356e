/* Memory and a stream of the CUDA driver API (cuda.h): GPULOSS_PTR makes a pointer of a CUdeviceptr, and a CUstream needs no
 * cast. Copies and losses on one stream follow each other.
 *     cc -std=c99 -O2 -I CUDA/include examples/05_cuda_driver.c -L CUDA/lib64/stubs -lcuda -lm -o cuda_driver
 * CUDA is the folder of the toolkit. Exit status: 0, 1 for a wrong result, 2 if this machine lacks something, 3 for other
 * errors. */
#define GPULOSS_IMPLEMENTATION
#include "../gpuloss.h"
#include <cuda.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 64, CLASSES = 1000 };

/* Roundings of floats, to first order. An exponential of an argument below 8 has 6 and 3 of the argument. A sum of them has
 * one for each class, and 7 for each of 10 levels of a tree. Its logarithm, below 7, has 2 of its size; then the loss, below
 * 8, is rounded for its row and for the mean. */
static const double tolerance = (6 + 3 * 8 + CLASSES + 7 * 10 + 2 * 7 + 2 * 8) / 16777216.0;

static void check(gpuloss_status status) {
    if (status == GPULOSS_OK)
        return;
    fprintf(stderr, "%s\n", gpuloss_last_error());
    exit(gpuloss_group_of(status) == GPULOSS_GROUP_ENVIRONMENT ? 2 : 3);
}

static void check_cuda(CUresult result) {
    const char *text;
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "CUDA: %s\n", cuGetErrorString(result, &text) == CUDA_SUCCESS ? text : "unknown error");
    exit(result == CUDA_ERROR_NO_DEVICE || result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH ? 2 : 3);
}

int main(void) {
    static float x[ROWS][CLASSES];
    int32_t y[ROWS];
    double want = 0;
    float mean;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUdeviceptr logits, targets, loss;
    gpuloss_create_desc create = {.flags = GPULOSS_CHECK_POINTERS}; /* while a program is new */
    gpuloss_context *gpu;
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;

    /* In a row of zeros but for its target's logit a, the loss is log(1 + (CLASSES - 1) exp(-a)). */
    for (int row = 0; row < ROWS; row++) {
        const float a = (float)row / 8;
        y[row] = row * 31 % CLASSES;
        x[row][y[row]] = a;
        want += log1p((CLASSES - 1) * exp(-(double)a)) / ROWS;
    }

    check_cuda(cuInit(0));
    check_cuda(cuDeviceGet(&device, 0));
    check_cuda(cuDevicePrimaryCtxRetain(&context, device));
    check_cuda(cuCtxSetCurrent(context));
    check_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    check_cuda(cuMemAlloc(&logits, sizeof x));
    check_cuda(cuMemAlloc(&targets, sizeof y));
    check_cuda(cuMemAlloc(&loss, sizeof mean));

    create.cuda_context = context;
    check(gpuloss_create(&gpu, &create));
    d.logits = GPULOSS_PTR(logits);
    d.dtype = GPULOSS_F32;
    d.targets = GPULOSS_PTR(targets);
    d.target_type = GPULOSS_I32;
    d.rows = ROWS;
    d.classes = CLASSES;
    d.loss = GPULOSS_PTR(loss);

    check_cuda(cuMemcpyHtoDAsync(logits, x, sizeof x, stream));
    check_cuda(cuMemcpyHtoDAsync(targets, y, sizeof y, stream));
    check(gpuloss_cross_entropy(gpu, &d, stream));
    check_cuda(cuMemcpyDtoHAsync(&mean, loss, sizeof mean, stream));
    check_cuda(cuStreamSynchronize(stream));

    check(gpuloss_release_stream(gpu, stream));
    gpuloss_destroy(gpu);
    check_cuda(cuMemFree(logits));
    check_cuda(cuMemFree(targets));
    check_cuda(cuMemFree(loss));
    check_cuda(cuStreamDestroy(stream));
    check_cuda(cuDevicePrimaryCtxRelease(device));
    printf("loss %.6f, %.1e from the exact one\n", (double)mean, fabs((double)mean - want));
    return fabs((double)mean - want) <= tolerance ? 0 : 1;
}
