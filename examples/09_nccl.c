/* The cross-entropy of a vocabulary that is split over the GPUs of a machine, with NCCL, from one process and thread.
 * Each GPU has the logits of its own classes only, and computes a few numbers of each row of them. NCCL gathers these
 * numbers, from which each GPU has the loss and, over its logits, their gradient. Both are compared with the results of
 * one GPU that has all classes, and with results in double.
 *     cc -std=c99 -O2 -I CUDA/include examples/09_nccl.c -L CUDA/lib64 -L CUDA/lib64/stubs -lnccl -lcuda -lm -o nccl
 *     nccl [ROWS CLASSES]
 * CUDA is the folder of the toolkit. CUDA_VISIBLE_DEVICES chooses GPUs. Exit status: 0, 1 for a wrong result, 2 if this
 * machine lacks something, for example a second GPU, 3 for other errors. */
#define GPULOSS_IMPLEMENTATION
#include "../gpuloss.h"
#include <cuda.h>
#include <math.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_GPUS = 16, NUMBERS = sizeof(gpuloss_shard_row) / sizeof(double) };

static int rows, classes, gpus;

/* A GPU, and the classes that it has. */
typedef struct shard {
    CUdevice device;
    CUcontext cuda;
    CUstream stream;
    gpuloss_context *context;
    int first, classes;
    CUdeviceptr logits, targets, numbers, gathered, lse, loss;
} shard;

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
    exit(3);
}

static void check_nccl(ncclResult_t result) {
    if (result == ncclSuccess)
        return;
    fprintf(stderr, "NCCL: %s\n", ncclGetErrorString(result));
    exit(3);
}

static void *allocated(size_t count, size_t size) {
    void *p = calloc(count, size);
    if (p == NULL) {
        fprintf(stderr, "out of memory: %zu numbers\n", count);
        exit(3);
    }
    return p;
}

/* The GPUs of this machine, of which there have to be two. */
static int count_gpus(void) {
    int count = 0;
    const CUresult result = cuInit(0);
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "CUDA: no driver that works, or no GPU (cuInit: error %d)\n", (int)result);
    else
        check_cuda(cuDeviceGetCount(&count));
    if (count < 2) {
        fprintf(stderr, "two GPUs are needed (got %d)\n", count);
        exit(2);
    }
    return count < MOST_GPUS ? count : MOST_GPUS;
}

/* Memory of the GPU whose context is current. */
static CUdeviceptr memory(size_t bytes) {
    CUdeviceptr array;
    check_cuda(cuMemAlloc(&array, bytes));
    return array;
}

/* A GPU with its own stream, library context and arrays, for the classes from `first` to before `end`. NCCL works in the
 * primary context, as the CUDA runtime does. */
static shard opened(int gpu, int first, int end) {
    shard s = {.first = first, .classes = end - first};
    gpuloss_create_desc create = {.flags = GPULOSS_CHECK_POINTERS}; /* while a program is new */
    const size_t all = (size_t)rows;
    check_cuda(cuDeviceGet(&s.device, gpu));
    check_cuda(cuDevicePrimaryCtxRetain(&s.cuda, s.device));
    check_cuda(cuCtxSetCurrent(s.cuda));
    check_cuda(cuStreamCreate(&s.stream, CU_STREAM_NON_BLOCKING));
    create.cuda_context = s.cuda;
    check(gpuloss_create(&s.context, &create));
    s.logits = memory(all * (size_t)s.classes * sizeof(float));
    s.targets = memory(all * sizeof(int32_t));
    s.numbers = memory(all * sizeof(gpuloss_shard_row));
    s.gathered = memory(all * sizeof(gpuloss_shard_row) * (size_t)gpus);
    s.lse = memory(all * sizeof(float));
    s.loss = memory(sizeof(float));
    return s;
}

static void closed(const shard *s) {
    const CUdeviceptr arrays[] = {s->logits, s->targets, s->numbers, s->gathered, s->lse, s->loss};
    check(gpuloss_release_stream(s->context, s->stream));
    gpuloss_destroy(s->context);
    check_cuda(cuCtxSetCurrent(s->cuda));
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        check_cuda(cuMemFree(arrays[i]));
    check_cuda(cuStreamDestroy(s->stream));
    check_cuda(cuDevicePrimaryCtxRelease(s->device));
}

static void upload(const shard *s, const float *logits, const int32_t *targets) {
    const size_t of_row = (size_t)s->classes * sizeof(float);
    check_cuda(cuCtxSetCurrent(s->cuda));
    for (int i = 0; i < rows; i++)
        check_cuda(cuMemcpyHtoDAsync(s->logits + (size_t)i * of_row,
                                     logits + (size_t)i * (size_t)classes + (size_t)s->first, of_row, s->stream));
    check_cuda(cuMemcpyHtoDAsync(s->targets, targets, (size_t)rows * sizeof targets[0], s->stream));
}

/* The gradient goes to the shard's columns of all classes. */
static float download(const shard *s, float *gradient) {
    const size_t of_row = (size_t)s->classes * sizeof(float);
    float loss;
    check_cuda(cuCtxSetCurrent(s->cuda));
    check_cuda(cuStreamSynchronize(s->stream));
    for (int i = 0; i < rows; i++)
        check_cuda(cuMemcpyDtoH(gradient + (size_t)i * (size_t)classes + (size_t)s->first,
                                s->logits + (size_t)i * of_row, of_row));
    check_cuda(cuMemcpyDtoH(&loss, s->loss, sizeof loss));
    return loss;
}

/* The fields that all calls share: the mean over the rows that are not ignored. */
static gpuloss_cross_entropy_desc call_of(const shard *s) {
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS; /* mean, ignore_index = -100 */
    d.logits = GPULOSS_PTR(s->logits);
    d.dtype = GPULOSS_F32;
    d.targets = GPULOSS_PTR(s->targets); /* counted over all classes, on every GPU */
    d.target_type = GPULOSS_I32;
    d.rows = rows;
    d.classes = s->classes;
    return d;
}

static void on_one(const shard *s) {
    gpuloss_cross_entropy_desc d = call_of(s);
    d.loss = GPULOSS_PTR(s->loss);
    d.grad_logits = GPULOSS_PTR(s->logits); /* over the logits: they are not needed again */
    check(gpuloss_cross_entropy(s->context, &d, s->stream));
}

static gpuloss_cross_entropy_desc part_of(const shard *s) {
    gpuloss_cross_entropy_desc d = call_of(s);
    d.total_classes = classes;
    d.class_offset = s->first;
    return d;
}

/* Each loop enqueues work for all GPUs, which thus work at the same time. */
static void on_all(const shard *s, const ncclComm_t *ranks) {
    for (int i = 0; i < gpus; i++) {
        gpuloss_cross_entropy_desc d = part_of(&s[i]);
        d.shard_rows = GPULOSS_PTR(s[i].numbers);
        check(gpuloss_cross_entropy(s[i].context, &d, s[i].stream));
    }
    /* One thread makes the calls of all ranks, so they are in a group: a call alone would wait for the others. */
    check_nccl(ncclGroupStart());
    for (int i = 0; i < gpus; i++)
        check_nccl(ncclAllGather(GPULOSS_PTR(s[i].numbers), GPULOSS_PTR(s[i].gathered), (size_t)rows * NUMBERS,
                                 ncclDouble, ranks[i], s[i].stream));
    check_nccl(ncclGroupEnd());
    for (int i = 0; i < gpus; i++) {
        gpuloss_cross_entropy_desc d = call_of(&s[i]);
        d.classes = classes;
        d.shard_rows = GPULOSS_PTR(s[i].gathered);
        d.shards = gpus;
        d.loss = GPULOSS_PTR(s[i].loss);
        d.lse = GPULOSS_PTR(s[i].lse);
        check(gpuloss_cross_entropy_combine(s[i].context, &d, s[i].stream));
        d = part_of(&s[i]);
        d.lse_in = GPULOSS_PTR(s[i].lse);
        d.grad_logits = GPULOSS_PTR(s[i].logits);
        check(gpuloss_cross_entropy(s[i].context, &d, s[i].stream));
    }
}

/* Roundings of floats, to first order. A sum of exponentials has one for each class, and 70 in a tree. An exponential
 * has 6, and 3 of its argument. The argument is at most 8 in a sum and below 30 in a gradient. The logarithm, below 22,
 * is rounded thrice; the loss of a row, below 30, twice. The factors and the subtraction in a gradient add 5. */
static double tolerance(void) {
    return ldexp(classes + 70 + (6 + 3 * 8) + (6 + 3 * 30) + 3 * 22 + 2 * 30 + 5, -24);
}

/* The largest error over the allowed one. That of a NaN is infinite. */
static void note(double *worst, double error, double allowed) {
    if (!(error <= *worst * allowed))
        *worst = error >= 0 && allowed > 0 ? error / allowed : HUGE_VAL;
}

enum { ONE, ALL, BETWEEN, ERRORS }; /* of one GPU, of all, and the difference between them */

static void compare(double one, double all, double exact, double allowed, double *errors) {
    note(&errors[ONE], fabs(one - exact), allowed);
    note(&errors[ALL], fabs(all - exact), allowed);
    note(&errors[BETWEEN], fabs(all - one), 2 * allowed);
}

/* The loss in double, and the errors of gradients. The bound is relative to their two parts, the probability and the 1
 * of the target. */
static double reference(const float *logits, const int32_t *targets, const float *one, const float *all,
                        double *errors) {
    double loss = 0;
    int count = 0;
    for (int i = 0; i < rows; i++)
        count += targets[i] >= 0;
    for (int i = 0; i < rows; i++) {
        const size_t row = (size_t)i * (size_t)classes;
        double sum = 0;
        for (size_t c = row; c < row + (size_t)classes; c++)
            sum += exp((double)logits[c]);
        if (targets[i] >= 0)
            loss += (log(sum) - (double)logits[row + (size_t)targets[i]]) / count;
        for (int k = 0; k < classes; k++) {
            const size_t c = row + (size_t)k;
            const double p = targets[i] >= 0 ? exp((double)logits[c]) / sum : 0, target = k == targets[i];
            compare((double)one[c], (double)all[c], (p - target) / count, tolerance() * (p + target) / count, errors);
        }
    }
    return loss;
}

static int number(char **argv, int argc, int i, int otherwise, int least, const char *name) {
    char *end = NULL;
    const long given = argc > i ? strtol(argv[i], &end, 10) : otherwise;
    if (given >= least && given <= 1 << 22 && (argc <= i || *end == 0))
        return (int)given;
    fprintf(stderr, "%s: must be a number from %d to 2^22 (got %s)\n", name, least, argv[i]);
    exit(3);
}

int main(int argc, char **argv) {
    shard shards[MOST_GPUS], whole;
    ncclComm_t ranks[MOST_GPUS];
    float *logits, *gradient_of_one, *gradient, loss_of_one, losses[MOST_GPUS];
    double errors[ERRORS] = {0}, exact;
    int32_t *targets;
    uint32_t state = 1;
    size_t count;
    gpus = count_gpus();
    rows = number(argv, argc, 1, 64, 1, "ROWS");
    classes = number(argv, argc, 2, 2003, gpus, "CLASSES");
    count = (size_t)rows * (size_t)classes;
    targets = allocated((size_t)rows, sizeof targets[0]);
    logits = allocated(count, sizeof logits[0]);
    gradient = allocated(count, sizeof gradient[0]);
    gradient_of_one = allocated(count, sizeof gradient[0]);
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        logits[i] = (float)(state >> 8) / 2097152.0f - 4;
    }
    for (int i = 0; i < rows; i++)
        targets[i] = i % 7 == 3 ? -100 : (int32_t)((int64_t)i * classes / rows);

    for (int i = 0; i < gpus; i++) {
        shards[i] = opened(i, (int)((int64_t)classes * i / gpus), (int)((int64_t)classes * (i + 1) / gpus));
        upload(&shards[i], logits, targets);
    }
    check_nccl(ncclCommInitAll(ranks, gpus, NULL)); /* rank i is GPU i */
    on_all(shards, ranks);
    whole = opened(0, 0, classes);
    upload(&whole, logits, targets);
    on_one(&whole);

    loss_of_one = download(&whole, gradient_of_one);
    for (int i = 0; i < gpus; i++)
        losses[i] = download(&shards[i], gradient);
    exact = reference(logits, targets, gradient_of_one, gradient, errors);
    for (int i = 0; i < gpus; i++)
        compare((double)loss_of_one, (double)losses[i], exact, tolerance(), errors);
    printf(
        "loss of %d GPUs %.6f, of one %.6f, in double %.6f; errors over the allowed ones: %.3f, of one %.3f, between "
        "them %.3f\n",
        gpus, (double)losses[0], (double)loss_of_one, exact, errors[ALL], errors[ONE], errors[BETWEEN]);

    for (int i = 0; i < gpus; i++)
        check_nccl(ncclCommDestroy(ranks[i]));
    for (int i = 0; i < gpus; i++)
        closed(&shards[i]);
    closed(&whole);
    free(targets), free(logits), free(gradient), free(gradient_of_one);
    return errors[ONE] <= 1 && errors[ALL] <= 1 && errors[BETWEEN] <= 1 ? 0 : 1;
}
