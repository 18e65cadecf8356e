/* The loss of a linear layer in chunks of rows, forward and backward, with cuBLAS: the largest part of a language
 * model's training step. Only the logits of one chunk exist at a time, and their gradient overwrites them. The chunks
 * add up the weight's gradient in float within the products. Loss and gradients are compared with the results of one
 * chunk, and the time with the time of the three products alone.
 *     cc -std=c99 -O2 -I CUDA/include examples/08_cublas.c -L CUDA/lib64 -L CUDA/lib64/stubs -lcublas -lcuda -lm -o cublas
 *     cublas [ROWS FEATURES CLASSES MEGABYTES]     MEGABYTES: for the logits of a chunk
 * CUDA is the folder of the toolkit, 11.0 or newer. Exit status: 0, 1 for a wrong result, 2 if this machine lacks something, 3
 * for other errors. */
#define GPULOSS_IMPLEMENTATION
#include "../gpuloss.h"
#include <cublas_v2.h>
#include <cuda.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 3, STEPS = 9 /* timed */ };

/* Row-major arrays on the GPU, in bf16 but for the weight's gradient. */
typedef struct layer {
    int rows, features, classes;
    CUdeviceptr hidden, weight, logits, targets, grad_hidden, grad_weight, loss, divisor;
} layer;

static CUstream stream;
static gpuloss_context *gpu;
static cublasHandle_t blas;

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

static void check_blas(cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS)
        return;
    fprintf(stderr, "cuBLAS: status %d\n", (int)status);
    exit(status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_ARCH_MISMATCH ? 2 : 3);
}

static void *allocated(size_t count, size_t size) {
    void *p = calloc(count, size);
    if (p == NULL) {
        fprintf(stderr, "out of memory: %zu numbers\n", count);
        exit(3);
    }
    return p;
}

/* To the nearest, ties to even. */
static uint16_t to_bf16(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float from_bf16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* c = a b + beta c, of matrices as cuBLAS has them: by columns, [m, n], over k. A row-major array is its transpose. */
static void multiply(cublasOperation_t of_a, cublasOperation_t of_b, int m, int n, int k, CUdeviceptr a, int lda,
                     CUdeviceptr b, int ldb, float beta, CUdeviceptr c, cudaDataType type) {
    const float one = 1;
    check_blas(cublasGemmEx(blas, of_a, of_b, m, n, k, &one, GPULOSS_PTR(a), CUDA_R_16BF, lda, GPULOSS_PTR(b),
                            CUDA_R_16BF, ldb, &beta, GPULOSS_PTR(c), type, m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

/* Rows from `first` on, with a loss between the products, or the products alone. */
static void chunk_of(const layer *l, gpuloss_cross_entropy_desc *d, int first, int rows, int has_loss) {
    const CUdeviceptr hidden = l->hidden + (size_t)first * (size_t)l->features * 2;
    multiply(CUBLAS_OP_T, CUBLAS_OP_N, l->classes, rows, l->features, l->weight, l->features, hidden, l->features, 0,
             l->logits, CUDA_R_16BF);
    d->rows = rows;
    d->targets = GPULOSS_PTR(l->targets + (size_t)first * 4);
    if (has_loss)
        check(gpuloss_cross_entropy(gpu, d, stream));
    multiply(CUBLAS_OP_N, CUBLAS_OP_N, l->features, rows, l->classes, l->weight, l->features, l->logits, l->classes, 0,
             l->grad_hidden + (size_t)first * (size_t)l->features * 2, CUDA_R_16BF);
    multiply(CUBLAS_OP_N, CUBLAS_OP_T, l->features, l->classes, rows, hidden, l->features, l->logits, l->classes,
             first == 0 ? 0 : 1, l->grad_weight, CUDA_R_32F);
}

static void step(const layer *l, int chunk, int has_loss) {
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS; /* mean, ignore_index = -100 */
    d.dtype = GPULOSS_BF16;
    d.targets = GPULOSS_PTR(l->targets);
    d.target_type = GPULOSS_I32;
    d.rows = l->rows;
    d.classes = l->classes;
    check(gpuloss_cross_entropy_divisor(gpu, &d, GPULOSS_PTR(l->divisor), stream));
    check_cuda(cuMemsetD32Async(l->loss, 0, 1, stream));
    d.divisor_in = GPULOSS_PTR(l->divisor); /* the divisor is that of all rows */
    d.flags |= GPULOSS_ADD_SUMS;            /* a chunk adds its loss */
    d.logits = d.grad_logits = GPULOSS_PTR(l->logits);
    d.loss = GPULOSS_PTR(l->loss);
    for (int first = 0; first < l->rows; first += chunk)
        chunk_of(l, &d, first, first + chunk < l->rows ? chunk : l->rows - first, has_loss);
}

static float milliseconds(const layer *l, int chunk, int has_loss) {
    CUevent begin, end;
    float time;
    check_cuda(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    check_cuda(cuEventCreate(&end, CU_EVENT_DEFAULT));
    check_cuda(cuEventRecord(begin, stream));
    step(l, chunk, has_loss);
    check_cuda(cuEventRecord(end, stream));
    check_cuda(cuEventSynchronize(end));
    check_cuda(cuEventElapsedTime(&time, begin, end));
    check_cuda(cuEventDestroy(begin));
    check_cuda(cuEventDestroy(end));
    return time;
}

static int order(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Medians of steps in chunks, and of the products alone. The two alternate, so that the GPU is equally warm for
 * both. */
static void measure(const layer *l, int chunk, float *in_chunks, float *products) {
    float times[2][STEPS];
    for (int i = -WARM_UP; i < STEPS; i++)
        for (int has_loss = 0; has_loss < 2; has_loss++) {
            const float time = milliseconds(l, has_loss ? chunk : l->rows, has_loss);
            if (i >= 0)
                times[has_loss][i] = time;
        }
    for (int has_loss = 0; has_loss < 2; has_loss++)
        qsort(times[has_loss], STEPS, sizeof(float), order);
    *products = times[0][STEPS / 2], *in_chunks = times[1][STEPS / 2];
}

/* Random numbers in (-size, size), and their array on the GPU. */
static CUdeviceptr random_halves(size_t count, float size) {
    static uint32_t state = 1;
    uint16_t *numbers = allocated(count, 2);
    CUdeviceptr array;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = to_bf16(size * ((float)(state >> 8) / 8388608.0f - 1));
    }
    check_cuda(cuMemAlloc(&array, count * 2));
    check_cuda(cuMemcpyHtoD(array, numbers, count * 2));
    free(numbers);
    return array;
}

typedef struct results {
    float loss, *grad_weight;
    uint16_t *grad_hidden;
} results;

static results download(const layer *l) {
    const size_t of_hidden = (size_t)l->rows * (size_t)l->features;
    const size_t of_weight = (size_t)l->classes * (size_t)l->features;
    results r = {0, allocated(of_weight, 4), allocated(of_hidden, 2)};
    check_cuda(cuStreamSynchronize(stream));
    check_cuda(cuMemcpyDtoH(&r.loss, l->loss, 4));
    check_cuda(cuMemcpyDtoH(r.grad_weight, l->grad_weight, of_weight * 4));
    check_cuda(cuMemcpyDtoH(r.grad_hidden, l->grad_hidden, of_hidden * 2));
    return r;
}

/* Both runs multiply the same logits of bf16 by row: the products of a chunk may be summed in another order. Then a logit
 * may round to its other neighbour, 2^-8 of it away, and so may a gradient of it. Their errors have chance signs: the root
 * mean square is at most 2^-7, twice either rounding. A gradient of another row or chunk is no closer than 1. */
static double difference(const results *a, const results *b, const layer *l, int of_weight) {
    const size_t count = (size_t)(of_weight ? l->classes : l->rows) * (size_t)l->features;
    double error = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        const double x = (double)(of_weight ? a->grad_weight[i] : from_bf16(a->grad_hidden[i]));
        const double y = (double)(of_weight ? b->grad_weight[i] : from_bf16(b->grad_hidden[i]));
        error += (x - y) * (x - y);
        size += y * y;
    }
    return sqrt(error / size);
}

static uint16_t *download_halves(CUdeviceptr array, size_t count) {
    uint16_t *numbers = allocated(count, 2);
    check_cuda(cuMemcpyDtoH(numbers, array, count * 2));
    return numbers;
}

/* The loss in double, from logits as the products round them. The hidden states times their gradient, and the weight
 * times its gradient, have the same sum: the mean of the softmax times the logits, less the target's. */
static double reference(const layer *l, const int32_t *targets, double *of_gradients) {
    const size_t features = (size_t)l->features, classes = (size_t)l->classes;
    uint16_t *hidden = download_halves(l->hidden, (size_t)l->rows * features);
    uint16_t *weight = download_halves(l->weight, classes * features);
    double *logits = allocated(classes, sizeof *logits), loss = 0, of_logits = 0;
    int count = 0;
    for (int i = 0; i < l->rows; i++) {
        double sum = 0, weighted = 0;
        if (targets[i] < 0)
            continue;
        for (size_t c = 0; c < classes; c++) {
            double product = 0;
            for (size_t k = 0; k < features; k++)
                product +=
                    (double)from_bf16(hidden[(size_t)i * features + k]) * (double)from_bf16(weight[c * features + k]);
            logits[c] = (double)from_bf16(to_bf16((float)product));
            sum += exp(logits[c]);
            weighted += exp(logits[c]) * logits[c];
        }
        loss += log(sum) - logits[targets[i]];
        of_logits += weighted / sum - logits[targets[i]];
        count++;
    }
    free(hidden), free(weight), free(logits);
    *of_gradients = of_logits / count;
    return loss / count;
}

/* An array times its gradient, summed. */
static double times_gradient(const results *r, const layer *l, int of_weight) {
    const size_t count = (size_t)(of_weight ? l->classes : l->rows) * (size_t)l->features;
    uint16_t *numbers = download_halves(of_weight ? l->weight : l->hidden, count);
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)from_bf16(numbers[i]) * (double)(of_weight ? r->grad_weight[i] : from_bf16(r->grad_hidden[i]));
    free(numbers);
    return sum;
}

/* A logit may round to its other neighbour, and its gradient is rounded once more, each by 2^-8 of it. The target's
 * logit is the largest part of the sums, which are within 2^-7 of it. */
static int is_right(const layer *l, const results *r, const int32_t *targets) {
    double of_gradients, loss = reference(l, targets, &of_gradients);
    const double of_hidden = times_gradient(r, l, 0), of_weight = times_gradient(r, l, 1);
    const double bound = ldexp(loss + fabs(of_gradients), -7);
    printf("in double: loss %.6f, gradients times their arrays %.6f (got %.6f and %.6f)\n", loss, of_gradients,
           of_hidden, of_weight);
    return fabs((double)r->loss - loss) <= bound && fabs(of_hidden - of_gradients) <= bound &&
           fabs(of_weight - of_gradients) <= bound;
}

static int number(char **argv, int argc, int i, int otherwise, const char *name) {
    char *end = NULL;
    const long given = argc > i ? strtol(argv[i], &end, 10) : otherwise;
    if (given >= 1 && given <= 1 << 30 && (argc <= i || *end == 0))
        return (int)given;
    fprintf(stderr, "%s: must be a number from 1 to 2^30 (got %s)\n", name, argv[i]);
    exit(3);
}

int main(int argc, char **argv) {
    gpuloss_create_desc create = {.flags = GPULOSS_CHECK_POINTERS}; /* while a program is new */
    layer l = {.rows = number(argv, argc, 1, 96, "ROWS"),
               .features = number(argv, argc, 2, 32, "FEATURES"),
               .classes = number(argv, argc, 3, 496, "CLASSES")};
    char *end = NULL;
    const double megabytes = argc > 4 ? strtod(argv[4], &end) : 0.03;
    const size_t of_row = (size_t)l.classes * 2;
    const double fits = megabytes * 1e6 / (double)of_row;
    const int chunk = fits < l.rows ? (int)fits : l.rows;
    int32_t *targets = allocated((size_t)l.rows, 4);
    CUdevice device;
    results chunks, whole;
    double of_hidden, of_weight;
    int right;
    if (argc > 4 && *end != 0) {
        fprintf(stderr, "MEGABYTES: must be a number (got %s)\n", argv[4]);
        return 3;
    }
    if (!(fits >= 1)) {
        fprintf(stderr, "MEGABYTES: a row of logits needs %g (got %g)\n", (double)of_row / 1e6, megabytes);
        return 3;
    }
    check_cuda(cuInit(0));
    check_cuda(cuDeviceGet(&device, 0));
    check_cuda(cuDevicePrimaryCtxRetain(&create.cuda_context, device)); /* the one that cuBLAS works in */
    check_cuda(cuCtxSetCurrent(create.cuda_context));
    check_cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    check(gpuloss_create(&gpu, &create));
    check_blas(cublasCreate(&blas));
    check_blas(cublasSetStream(blas, stream));

    for (int i = 0; i < l.rows; i++)
        targets[i] = i % 7 == 3 ? -100 : (int32_t)((int64_t)i * 37 % l.classes);
    l.hidden = random_halves((size_t)l.rows * (size_t)l.features, 1);
    l.weight = random_halves((size_t)l.classes * (size_t)l.features, 4 / sqrtf((float)l.features));
    check_cuda(cuMemAlloc(&l.targets, (size_t)l.rows * 4));
    check_cuda(cuMemcpyHtoD(l.targets, targets, (size_t)l.rows * 4));
    check_cuda(cuMemAlloc(&l.grad_hidden, (size_t)l.rows * (size_t)l.features * 2));
    check_cuda(cuMemAlloc(&l.grad_weight, (size_t)l.classes * (size_t)l.features * 4));
    check_cuda(cuMemAlloc(&l.loss, 4));
    check_cuda(cuMemAlloc(&l.divisor, 4));
    check_cuda(cuMemAlloc(&l.logits, of_row * (size_t)l.rows)); /* all logits, for the comparison */

    {
        float in_chunks, products;
        measure(&l, chunk, &in_chunks, &products);
        step(&l, l.rows, 1);
        whole = download(&l);
        step(&l, chunk, 1);
        chunks = download(&l);
        printf("%d chunks of %d rows: %.3f ms a step, %.3f of its three products\n", (l.rows + chunk - 1) / chunk,
               chunk, (double)in_chunks, (double)(in_chunks / products));
    }
    of_hidden = difference(&chunks, &whole, &l, 0);
    of_weight = difference(&chunks, &whole, &l, 1);
    printf("loss %.6f, in one chunk %.6f; difference of the gradients of hidden %.1e, of weight %.1e\n",
           (double)chunks.loss, (double)whole.loss, of_hidden, of_weight);
    right = fabs((double)(chunks.loss - whole.loss)) <= ldexp((double)whole.loss, -7) && of_hidden <= ldexp(1, -7) &&
            of_weight <= ldexp(1, -7);
    if ((double)l.rows * l.features * l.classes <= 1e9) /* a second of a processor */
        right = is_right(&l, &chunks, targets) && right;

    free(targets);
    free(chunks.grad_weight), free(chunks.grad_hidden);
    free(whole.grad_weight), free(whole.grad_hidden);
    check(gpuloss_release_stream(gpu, stream));
    gpuloss_destroy(gpu);
    check_blas(cublasDestroy(blas));
    {
        const CUdeviceptr arrays[] = {l.hidden,      l.weight,      l.logits, l.targets,
                                      l.grad_hidden, l.grad_weight, l.loss,   l.divisor};
        for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
            check_cuda(cuMemFree(arrays[i]));
    }
    check_cuda(cuStreamDestroy(stream));
    check_cuda(cuDevicePrimaryCtxRelease(device));
    return right ? 0 : 1;
}
