/* Lists the GPUs and the driver of this machine, and tests each loss there:
 *     gpuloss_info [--bench [MIB]]
 * Lists the driver, the GPUs and the driver's cache of compiled kernels. Then each loss and type is compared with a reference
 * in double precision on each GPU. --bench: measures calls whose inputs take MIB mebibytes, 512 unless it says otherwise.
 * Exit status: 0, 1 if a comparison failed, 2 if this machine lacks something, 3 for other errors.
 * cc -std=c99 -O2 examples/gpuloss_info.c -o gpuloss_info -lm -ldl */
#define _POSIX_C_SOURCE 200809L
#define GPULOSS_IMPLEMENTATION
#include "../gpuloss.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 37, CLASSES = 101, COUNT = ROWS * CLASSES, LIKELIEST = 5, SHARDS = 2 };

/* Tolerances are relative to the largest gradient. Types of 16 bits are rounded once: a unit in the last place. For the
 * others it is the error of sums of CLASSES terms. */
static const struct type {
    const char *name;
    gpuloss_dtype dtype;
    size_t bytes;
    double tolerance;
} types[] = {{"f32", GPULOSS_F32, 4, CLASSES / 16777216.0},
             {"f64", GPULOSS_F64, 8, CLASSES / 9007199254740992.0},
             {"f16", GPULOSS_F16, 2, 1.0 / 1024},
             {"bf16", GPULOSS_BF16, 2, 1.0 / 128}};

static gpuloss_context *gpu;
static int failed;

static void check(gpuloss_status status) {
    const gpuloss_status_group group = gpuloss_group_of(status);
    if (status == GPULOSS_OK)
        return;
    fprintf(stderr, "%s\n", gpuloss_last_error());
    exit(group == GPULOSS_GROUP_ENVIRONMENT ? 2 : 3);
}

/* ---- numbers of each type ---- */

/* Multiples of an eighth below 4, which every type holds. */
static double some_number(void) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (double)((int)(state >> 16 & 63) - 32) / 8;
}

static void store(const struct type *type, void *to, size_t at, double value) {
    const float f = (float)value;
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, &f, sizeof bits);
    half = (uint16_t)(type->dtype == GPULOSS_BF16 ? bits >> 16
                      : f == 0                    ? 0
                                                  : (bits >> 16 & 0x8000) | ((bits >> 13 & 0x3ffff) - (112u << 10)));
    if (type->dtype == GPULOSS_F64)
        memcpy((char *)to + 8 * at, &value, 8);
    else if (type->dtype == GPULOSS_F32)
        memcpy((char *)to + 4 * at, &f, 4);
    else
        memcpy((char *)to + 2 * at, &half, 2);
}

static double load(const struct type *type, const void *from, size_t at) {
    double value;
    float f;
    uint32_t bits;
    uint16_t half;
    if (type->dtype == GPULOSS_F64) {
        memcpy(&value, (const char *)from + 8 * at, 8);
        return value;
    }
    if (type->dtype == GPULOSS_F32) {
        memcpy(&f, (const char *)from + 4 * at, 4);
        return (double)f;
    }
    memcpy(&half, (const char *)from + 2 * at, 2);
    if (type->dtype == GPULOSS_F16) {
        const int exponent = half >> 10 & 31, fraction = half & 1023;
        value = exponent == 31  ? (double)NAN
                : exponent == 0 ? ldexp(fraction, -24)
                                : ldexp(1024 + fraction, exponent - 25);
        return half & 0x8000 ? -value : value;
    }
    bits = (uint32_t)half << 16;
    memcpy(&f, &bits, 4);
    return (double)f;
}

static void *device_bytes(const void *host, size_t bytes) {
    void *device;
    check(gpuloss_alloc(gpu, &device, bytes));
    if (host != NULL)
        check(gpuloss_upload(gpu, device, host, bytes, NULL));
    return device;
}

static void *device_numbers(const struct type *type, const double *values, size_t count) {
    char room[8 * COUNT];
    size_t i;
    for (i = 0; i < count; i++)
        store(type, room, i, values[i]);
    return device_bytes(room, count * type->bytes);
}

/* ---- the reference ---- */

static double logits[COUNT], teacher[COUNT]; /* logits of both sides */

/* q = softmax(x). Returns log sum exp x. */
static double softmax(const double *x, double *q) {
    double max = x[0], sum = 0;
    int c;
    for (c = 1; c < CLASSES; c++)
        max = fmax(max, x[c]);
    for (c = 0; c < CLASSES; c++)
        sum += exp(x[c] - max);
    for (c = 0; c < CLASSES; c++)
        q[c] = exp(x[c] - max) / sum;
    return max + log(sum);
}

/* f and q df/dq of one class, as gpuloss.h documents them. */
typedef void term(double q, double t, double *f, double *u);
static void cross_entropy(double q, double t, double *f, double *u) {
    *f = -t * log(q);
    *u = -t;
}
static void forward_kl(double q, double t, double *f, double *u) {
    *f = t == 0 ? 0 : t * log(t / q);
    *u = -t;
}
static void reverse_kl(double q, double t, double *f, double *u) {
    *f = q * log(q / t);
    *u = q * (log(q / t) + 1);
}
static void jensen_shannon(double q, double t, double *f, double *u) {
    const double m = (q + t) / 2;
    *f = (t * log(t / m) + q * log(q / m)) / 2;
    *u = q * log(q / m) / 2;
}
static void total_variation(double q, double t, double *f, double *u) {
    *f = fabs(t - q) / 2;
    *u = q * (t < q ? 0.5 : t > q ? -0.5 : 0);
}

/* The mean over rows, and its gradient to the logits. */
static double reference(term *of_class, const double *targets, double *gradient) {
    double loss = 0;
    int row, c;
    for (row = 0; row < ROWS; row++) {
        const double *t = targets + row * CLASSES;
        double q[CLASSES], u[CLASSES], sum = 0, f;
        softmax(logits + row * CLASSES, q);
        for (c = 0; c < CLASSES; c++) {
            of_class(q[c], t[c], &f, &u[c]);
            loss += f;
            sum += u[c];
        }
        for (c = 0; c < CLASSES; c++)
            gradient[row * CLASSES + c] = (u[c] - q[c] * sum) / ROWS;
    }
    return loss / ROWS;
}

/* ---- comparisons ---- */

/* Frees the loss and the gradient, which is NULL if there is none. */
static void compare(const char *name, const struct type *type, void *loss, void *grad, double want,
                    const double *gradient) {
    const struct type *result = type->dtype == GPULOSS_F64 ? type : &types[0];
    char room[8 * COUNT];
    double got, error, worst = 0, largest = 0;
    int i;
    check(gpuloss_download(gpu, room, loss, result->bytes, NULL));
    got = load(result, room, 0);
    error = fabs(got - want) / fabs(want);
    if (grad != NULL)
        check(gpuloss_download(gpu, room, grad, COUNT * type->bytes, NULL));
    for (i = 0; grad != NULL && i < COUNT; i++) {
        const double off = fabs(load(type, room, (size_t)i) - gradient[i]);
        worst = off <= worst ? worst : off; /* a NaN is the worst */
        largest = fmax(largest, fabs(gradient[i]));
    }
    if (!(error <= result->tolerance && worst <= type->tolerance * largest)) {
        printf("  FAILED  %s %s: loss %.9g instead of %.9g, gradients off by %.3g of %.3g\n", name, type->name, got,
               want, worst, largest);
        failed++;
    }
    check(gpuloss_free(gpu, loss));
    check(gpuloss_free(gpu, grad));
}

/* Each shard has the classes from firsts[shard] on. */
static void test_shards(const struct type *type, gpuloss_cross_entropy_desc d, double want) {
    static const int firsts[SHARDS + 1] = {0, 40, CLASSES};
    const size_t bytes = ROWS * sizeof(gpuloss_shard_row);
    char *rows = (char *)device_bytes(NULL, SHARDS * bytes);
    const char *all = (const char *)d.logits;
    void *loss = d.loss;
    int shard;
    d.loss = NULL;
    d.grad_logits = NULL;
    d.logits_stride = CLASSES;
    for (shard = 0; shard < SHARDS; shard++) {
        d.logits = all + (size_t)firsts[shard] * type->bytes;
        d.classes = firsts[shard + 1] - firsts[shard];
        d.class_offset = firsts[shard];
        d.total_classes = CLASSES;
        d.shard_rows = (gpuloss_shard_row *)(void *)(rows + (size_t)shard * bytes);
        check(gpuloss_cross_entropy(gpu, &d, NULL));
    }
    d.logits = NULL;
    d.logits_stride = d.class_offset = d.total_classes = 0;
    d.classes = CLASSES;
    d.shards = SHARDS;
    d.shard_rows = (gpuloss_shard_row *)(void *)rows;
    d.loss = loss;
    check(gpuloss_cross_entropy_combine(gpu, &d, NULL));
    compare("cross_entropy_combine", type, loss, NULL, want, NULL);
    check(gpuloss_free(gpu, rows));
}

static void test_cross_entropy(const struct type *type) {
    static double soft[COUNT], gradient[COUNT];
    const double smoothing = 0.125;
    int32_t targets[ROWS];
    double want;
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    int i;
    for (i = 0; i < ROWS; i++)
        targets[i] = i * 7 % CLASSES;
    for (i = 0; i < COUNT; i++)
        soft[i] = smoothing / CLASSES + (targets[i / CLASSES] == i % CLASSES ? 1 - smoothing : 0);
    want = reference(cross_entropy, soft, gradient);
    d.logits = device_numbers(type, logits, COUNT);
    d.dtype = type->dtype;
    d.targets = device_bytes(targets, sizeof targets);
    d.target_type = GPULOSS_I32;
    d.rows = ROWS;
    d.classes = CLASSES;
    d.label_smoothing = smoothing;
    d.loss = device_bytes(NULL, 8);
    d.grad_logits = device_bytes(NULL, COUNT * type->bytes);
    check(gpuloss_cross_entropy(gpu, &d, NULL));
    compare("cross_entropy", type, d.loss, d.grad_logits, want, gradient);
    d.loss = device_bytes(NULL, 8);
    test_shards(type, d, want);
    check(gpuloss_free(gpu, (void *)(uintptr_t)d.logits));
    check(gpuloss_free(gpu, (void *)(uintptr_t)d.targets));
}

static void test_divergences(const struct type *type) {
    static const struct {
        const char *name;
        gpuloss_divergence divergence;
        term *of_class;
    } all[] = {{"forward KL", GPULOSS_FORWARD_KL, forward_kl},
               {"reverse KL", GPULOSS_REVERSE_KL, reverse_kl},
               {"Jensen-Shannon", GPULOSS_JENSEN_SHANNON, jensen_shannon},
               {"total variation", GPULOSS_TOTAL_VARIATION, total_variation}};
    static double t[COUNT], gradient[COUNT];
    gpuloss_kl_div_desc d = GPULOSS_KL_DIV_DEFAULTS;
    size_t i;
    for (i = 0; i < ROWS; i++)
        softmax(teacher + i * CLASSES, t + i * CLASSES);
    d.input = device_numbers(type, logits, COUNT);
    d.target = device_numbers(type, teacher, COUNT);
    d.dtype = type->dtype;
    d.input_kind = d.target_kind = GPULOSS_LOGITS;
    d.rows = ROWS;
    d.classes = CLASSES;
    for (i = 0; i < sizeof all / sizeof all[0]; i++) {
        const double want = reference(all[i].of_class, t, gradient);
        d.divergence = all[i].divergence;
        d.beta = d.divergence == GPULOSS_JENSEN_SHANNON ? 0.5 : 0;
        d.loss = device_bytes(NULL, 8);
        d.grad_input = device_bytes(NULL, COUNT * type->bytes);
        check(gpuloss_kl_div(gpu, &d, NULL));
        compare(all[i].name, type, d.loss, d.grad_input, want, gradient);
    }
    check(gpuloss_free(gpu, (void *)(uintptr_t)d.input));
    check(gpuloss_free(gpu, (void *)(uintptr_t)d.target));
}

static void test_sparse(const struct type *type) {
    static double t[COUNT], gradient[COUNT];
    int32_t indices[ROWS * LIKELIEST];
    double values[ROWS * LIKELIEST], want;
    gpuloss_kl_div_sparse_desc d = GPULOSS_KL_DIV_SPARSE_DEFAULTS;
    int i;
    memset(t, 0, sizeof t);
    for (i = 0; i < ROWS * LIKELIEST; i++) {
        indices[i] = i % LIKELIEST * 19 + i / LIKELIEST % 19;
        t[i / LIKELIEST * CLASSES + indices[i]] = values[i] = 0.125;
    }
    want = reference(forward_kl, t, gradient);
    d.logits = device_numbers(type, logits, COUNT);
    d.dtype = type->dtype;
    d.indices = device_bytes(indices, sizeof indices);
    d.index_type = GPULOSS_I32;
    d.values = device_numbers(type, values, ROWS * LIKELIEST);
    d.value_kind = GPULOSS_PROBABILITIES;
    d.residual = GPULOSS_DROP;
    d.rows = ROWS;
    d.classes = CLASSES;
    d.k = LIKELIEST;
    d.loss = device_bytes(NULL, 8);
    d.grad_logits = device_bytes(NULL, COUNT * type->bytes);
    check(gpuloss_kl_div_sparse(gpu, &d, NULL));
    compare("sparse teacher", type, d.loss, d.grad_logits, want, gradient);
    check(gpuloss_free(gpu, (void *)(uintptr_t)d.logits));
    check(gpuloss_free(gpu, (void *)(uintptr_t)d.indices));
    check(gpuloss_free(gpu, (void *)(uintptr_t)d.values));
}

/* ---- the benchmark ---- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Microseconds a call. The calls take a fifth of a second in total. */
static double time_of(const gpuloss_cross_entropy_desc *ce, const gpuloss_kl_div_desc *kl) {
    double start, taken = 0;
    int calls, i;
    for (calls = 1; taken < 0.2; calls *= 2) {
        start = seconds();
        for (i = 0; i < calls; i++)
            check(ce != NULL ? gpuloss_cross_entropy(gpu, ce, NULL) : gpuloss_kl_div(gpu, kl, NULL));
        check(gpuloss_synchronize(gpu, NULL));
        taken = seconds() - start;
    }
    return 2e6 * taken / calls;
}

/* A row of the table: a loss, then the loss with its gradient. With `sides` 2 it is a divergence. */
static void measure(const struct type *type, int64_t classes, int sides, void *const *arrays, void *targets, void *loss,
                    double bytes) {
    const int64_t rows = (int64_t)bytes / (int64_t)type->bytes / classes / sides;
    const double moved = (double)(rows * classes) * (double)type->bytes;
    gpuloss_cross_entropy_desc ce = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    gpuloss_kl_div_desc kl = GPULOSS_KL_DIV_DEFAULTS;
    double us[2];
    int gradient;
    ce.logits = kl.input = arrays[0];
    kl.target = arrays[1];
    ce.targets = targets;
    ce.target_type = GPULOSS_U8;
    ce.dtype = kl.dtype = type->dtype;
    kl.input_kind = kl.target_kind = GPULOSS_LOGITS;
    ce.rows = kl.rows = rows;
    ce.classes = kl.classes = classes;
    ce.loss = kl.loss = loss;
    for (gradient = 0; gradient < 2; gradient++) {
        ce.grad_logits = kl.grad_input = gradient ? arrays[2] : NULL;
        us[gradient] = time_of(sides == 1 ? &ce : NULL, &kl);
    }
    printf("  %-14s %-5s %9lld x %-7lld %9.1f %6.0f %9.1f %6.0f\n", sides == 1 ? "cross_entropy" : "KL of logits",
           type->name, (long long)rows, (long long)classes, us[0], 1e-3 * moved * sides / us[0], us[1],
           1e-3 * moved * (sides + 1) / us[1]);
}

static void bench(double bytes) {
    static const int64_t classes[] = {64, 1000, 4096, 32000, 128256};
    enum { SIZES = sizeof classes / sizeof classes[0], BLOCK = 1 << 20 };
    static char block[BLOCK];
    const size_t room = (size_t)bytes, targets_room = room / 128 + 1;
    void *arrays[3], *targets = device_bytes(NULL, targets_room), *loss = device_bytes(NULL, 8);
    unsigned char *zeros = (unsigned char *)calloc(1, targets_room);
    size_t done, k, sides, i;
    if (zeros == NULL)
        exit(3);
    check(gpuloss_upload(gpu, targets, zeros, targets_room, NULL));
    free(zeros);
    for (k = 0; k < 3; k++)
        arrays[k] = device_bytes(NULL, room);
    printf("  %-14s %-5s %9s   %-7s %9s %6s %9s %6s\n", "microseconds", "", "rows", "classes", "loss", "GB/s",
           "with grad", "GB/s");
    for (k = 0; k < 2; k++) {
        const struct type *type = &types[k == 0 ? 0 : 3];
        for (i = 0; i < BLOCK / type->bytes; i++)
            store(type, block, i, some_number());
        for (i = 0; i < 2; i++)
            for (done = 0; done < room; done += BLOCK)
                check(gpuloss_upload(gpu, (char *)arrays[i] + done, block, room - done < BLOCK ? room - done : BLOCK,
                                     NULL));
        for (sides = 1; sides <= 2; sides++)
            for (i = 0; i < SIZES; i++) {
                fprintf(stderr, "\r%d of %d ", (int)(k * 2 * SIZES + (sides - 1) * SIZES + i + 1), 4 * SIZES);
                measure(type, classes[i], (int)sides, arrays, targets, loss, bytes);
            }
    }
    fprintf(stderr, "\r");
    for (k = 0; k < 3; k++)
        check(gpuloss_free(gpu, arrays[k]));
    check(gpuloss_free(gpu, targets));
    check(gpuloss_free(gpu, loss));
}

/* ---- this machine ---- */

static void print_cache(void) {
    static const char *const names[] = {"CUDA_CACHE_DISABLE", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE",
                                        "CUDA_FORCE_PTX_JIT", "CUDA_VISIBLE_DEVICES"};
    const char *disabled = getenv("CUDA_CACHE_DISABLE"), *path = getenv("CUDA_CACHE_PATH"), *home = getenv("HOME");
    size_t i;
    if (disabled != NULL && strcmp(disabled, "0") != 0)
        printf("compiled kernels are not cached: each process compiles them\n");
    else if (path != NULL || home != NULL)
        printf("compiled kernels are cached in %s%s\n", path ? path : home, path ? "" : "/.nv/ComputeCache");
    for (i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i]) != NULL)
            printf("%s=%s\n", names[i], getenv(names[i]));
}

static void print_gpu(const gpuloss_info *info) {
    const int has_clusters = info->compute_capability >= 90 && info->driver_version >= 12010;
    printf("GPU %d: %s, compute capability %d.%d, %d multiprocessors\n", info->device, info->device_name,
           info->compute_capability / 10, info->compute_capability % 10, info->multiprocessors);
    printf("  kernels: for every GPU%s%s\n", info->compute_capability >= 80 ? ", for columns (8.0)" : "",
           has_clusters ? ", for rows in clusters (9.0, CUDA 12.1)" : "");
}

static gpuloss_status open_gpu(int device) {
    gpuloss_create_desc create;
    memset(&create, 0, sizeof create);
    create.device = device;
    create.flags = GPULOSS_CHECK_POINTERS;
    return gpuloss_create(&gpu, &create);
}

int main(int argc, char **argv) {
    const int measures = argc > 1 && strcmp(argv[1], "--bench") == 0;
    const double mebibytes = measures && argc > 2 ? strtod(argv[2], NULL) : 512;
    size_t i;
    int device;
    if (argc > 1 + measures + (measures && argc > 2) || !(mebibytes >= 1 && mebibytes <= 65536)) {
        fprintf(stderr, "gpuloss_info [--bench [MIB]], MIB from 1 to 65536\n");
        return 3;
    }
    printf("gpuloss %d.%d.%d\n", GPULOSS_VERSION_MAJOR, GPULOSS_VERSION_MINOR, GPULOSS_VERSION_PATCH);
    check(open_gpu(0));
    for (i = 0; i < COUNT; i++) {
        logits[i] = some_number();
        teacher[i] = some_number();
    }
    for (device = 0;;) {
        gpuloss_info info;
        check(gpuloss_get_info(gpu, &info));
        if (device == 0) {
            printf("driver: CUDA %d.%d\n", info.driver_version / 1000, info.driver_version % 1000 / 10);
            print_cache();
        }
        print_gpu(&info);
        for (i = 0; i < sizeof types / sizeof types[0]; i++) {
            const int before = failed;
            test_cross_entropy(&types[i]);
            test_divergences(&types[i]);
            test_sparse(&types[i]);
            printf("  %-4s cross-entropy, shards, four divergences, sparse teacher: %s\n", types[i].name,
                   failed == before ? "pass" : "FAIL");
        }
        if (measures)
            bench(mebibytes * 1048576);
        gpuloss_destroy(gpu);
        if (open_gpu(++device) != GPULOSS_OK)
            break;
    }
    printf("%s\n", failed == 0 ? "everything passed" : "something FAILED");
    return failed != 0;
}
