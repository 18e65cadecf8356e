/* Memory and a stream of the CUDA runtime, and a CUDA graph. gpuloss takes a cudaStream_t without a cast, and works in
 * the runtime's context. Its calls can be captured. Each launch of the graph gives the bits of the direct call.
 *     cc -std=c99 -O2 -I CUDA/include examples/06_cuda_runtime.c -L CUDA/lib64 -lcudart -lm -o cuda_runtime
 * CUDA is the folder of the toolkit, 11.4 or newer. Exit status: 0, 1 for a wrong result, 2 if this machine lacks something, 3
 * for other errors. */
#define GPULOSS_IMPLEMENTATION
#include "../gpuloss.h"
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 256, CLASSES = 1000, COUNT = ROWS * CLASSES, LAUNCHES = 3 };

/* Roundings of floats, to first order. A row's logits are equal: their exponentials are 1, and have 6. A sum of them has one
 * for each class, and 7 for each of 10 levels of a tree. Its logarithm, below 7, has 2 of its size, and the mean is rounded.
 * A probability, below 1 / CLASSES, has few more, and so has a gradient times ROWS. */
static const double tolerance = (6 + CLASSES + 7 * 10 + 3 * 7) / 16777216.0;

typedef struct results {
    float loss;
    float grad[COUNT];
} results;

static void check(gpuloss_status status) {
    if (status == GPULOSS_OK)
        return;
    fprintf(stderr, "%s\n", gpuloss_last_error());
    exit(gpuloss_group_of(status) == GPULOSS_GROUP_ENVIRONMENT ? 2 : 3);
}

static void check_cuda(cudaError_t error) {
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
    exit(error == cudaErrorInsufficientDriver || error == cudaErrorCallRequiresNewerDriver || error == cudaErrorNoDevice
             ? 2
             : 3);
}

static void *device_bytes(const void *host, size_t bytes) {
    void *pointer;
    check_cuda(cudaMalloc(&pointer, bytes));
    if (host != NULL)
        check_cuda(cudaMemcpy(pointer, host, bytes, cudaMemcpyHostToDevice));
    return pointer;
}

/* Checks the results of equal logits. */
static int is_right(const results *got, const int32_t *targets) {
    double worst = fabs((double)got->loss - log(CLASSES));
    for (int i = 0; i < COUNT; i++) {
        const double p = 1.0 / CLASSES, want = (i % CLASSES == targets[i / CLASSES] ? p - 1 : p) / ROWS;
        const double error = fabs((double)got->grad[i] - want) * ROWS;
        worst = error <= worst ? worst : error; /* a NaN is the worst */
    }
    if (!(worst <= tolerance))
        printf("FAILED: loss %.9g instead of %.9g, errors of %.3g\n", (double)got->loss, log(CLASSES), worst);
    return worst <= tolerance;
}

static void download(const gpuloss_cross_entropy_desc *d, results *to, cudaStream_t stream) {
    check_cuda(cudaMemcpyAsync(&to->loss, d->loss, sizeof to->loss, cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaMemcpyAsync(to->grad, d->grad_logits, sizeof to->grad, cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaStreamSynchronize(stream));
}

/* The workspace is the graph's own: other calls on the stream cannot disturb it. */
static cudaGraphExec_t capture(gpuloss_context *gpu, gpuloss_cross_entropy_desc d, void *workspace, size_t bytes,
                               cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    d.workspace = workspace;
    d.workspace_bytes = bytes;
    check(gpuloss_cross_entropy_preload(gpu, &d, stream)); /* kernels cannot be loaded during the capture */
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    check(gpuloss_cross_entropy(gpu, &d, stream));
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiateWithFlags(&executable, graph, 0));
    check_cuda(cudaGraphDestroy(graph));
    return executable;
}

int main(void) {
    static float logits[COUNT];
    static results direct, of_graph;
    int32_t targets[ROWS];
    cudaStream_t stream;
    cudaGraphExec_t graph;
    gpuloss_context *gpu;
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    void *workspace;
    size_t workspace_bytes;
    int right;

    for (int i = 0; i < COUNT; i++)
        logits[i] = (float)(i / CLASSES) / 8;
    for (int row = 0; row < ROWS; row++)
        targets[row] = row * 31 % CLASSES;

    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(gpuloss_create(&gpu, NULL));
    d.logits = device_bytes(logits, sizeof logits);
    d.dtype = GPULOSS_F32;
    d.targets = device_bytes(targets, sizeof targets);
    d.target_type = GPULOSS_I32;
    d.rows = ROWS;
    d.classes = CLASSES;
    d.loss = device_bytes(NULL, sizeof direct.loss);
    d.grad_logits = device_bytes(NULL, sizeof direct.grad);
    check(gpuloss_cross_entropy_workspace(gpu, &d, &workspace_bytes));
    workspace = device_bytes(NULL, workspace_bytes);

    graph = capture(gpu, d, workspace, workspace_bytes, stream);
    check(gpuloss_cross_entropy(gpu, &d, stream));
    download(&d, &direct, stream);
    right = is_right(&direct, targets);
    for (int launch = 1; launch <= LAUNCHES; launch++) {
        check_cuda(cudaMemsetAsync(d.loss, 0xff, sizeof direct.loss, stream)); /* NaN, unless the graph writes it */
        check_cuda(cudaMemsetAsync(d.grad_logits, 0xff, sizeof direct.grad, stream));
        check_cuda(cudaGraphLaunch(graph, stream));
        download(&d, &of_graph, stream);
        if (memcmp(&of_graph, &direct, sizeof direct) != 0) {
            printf("FAILED: launch %d of the graph has other bits than the direct call\n", launch);
            right = 0;
        }
    }

    check_cuda(cudaGraphExecDestroy(graph));
    check(gpuloss_release_stream(gpu, stream));
    gpuloss_destroy(gpu);
    check_cuda(cudaFree(workspace));
    check_cuda(cudaFree((void *)(uintptr_t)d.logits));
    check_cuda(cudaFree((void *)(uintptr_t)d.targets));
    check_cuda(cudaFree(d.loss));
    check_cuda(cudaFree(d.grad_logits));
    check_cuda(cudaStreamDestroy(stream));
    printf("loss %.6f, the same from %d launches of a graph: %s\n", (double)direct.loss, LAUNCHES,
           right ? "yes" : "no");
    return right ? 0 : 1;
}
