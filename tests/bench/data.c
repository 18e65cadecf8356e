/* Buffers and random data. */
#include "data.h"

#include "driver.h"
#include "pairs.h"
#include "requests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MODULE_BYTES = 1 << 20,
    NOTHING_BYTES = 336,
    NOTHING_THREADS = 256,
    FILL_BLOCKS = 4096,
    FILL_THREADS = 256,
    WARP = 32
};
#define DEVIATION 2.0f

static void *module, *nothing;
static uint64_t buffers[BENCH_BUFFERS];
static size_t reserved[BENCH_BUFFERS]; /* 0 where a buffer belongs to another library */

uint64_t bench_buffer(int which) {
    return buffers[which];
}

void *bench_array(int which) {
    return (void *)(uintptr_t)buffers[which];
}

void bench_borrow(uint64_t (*address)(int which)) {
    int i;
    for (i = 0; i < BENCH_BUFFERS; i++)
        buffers[i] = address(i);
}

int bench_launch(const char *kernel, unsigned blocks, unsigned threads, void **arguments) {
    void *function;
    return bench_check(kernel, bench_cuda.module_function(&function, module, kernel)) ||
           bench_check(kernel, bench_cuda.launch(function, blocks, 1, 1, threads, 1, 1, 0, NULL, arguments, NULL));
}

int bench_launch_nothing(void *stream) {
    static char block[NOTHING_BYTES];
    void *arguments[] = {block};
    return bench_check("nothing",
                       bench_cuda.launch(nothing, 1, 1, 1, NOTHING_THREADS, 1, 1, 0, stream, arguments, NULL));
}

int bench_reserve(int which, size_t bytes) {
    if (reserved[which] >= bytes)
        return 0;
    if (reserved[which] > 0 && bench_check("cuMemFree", bench_cuda.memory_free(buffers[which])))
        return 1;
    reserved[which] = 0;
    if (bench_check("cuMemAlloc", bench_cuda.memory_alloc(&buffers[which], bytes)))
        return 1;
    reserved[which] = bytes;
    return 0;
}

/* ---- filling them ---- */

static uint64_t seed_of(int which) {
    return 1000003u * (uint64_t)(which + 1);
}

/* Its threads take several numbers each where these are many. */
static int fill(const char *kernel, int64_t threads, void **arguments) {
    const int64_t blocks = (threads + FILL_THREADS - 1) / FILL_THREADS;
    return bench_launch(kernel, blocks < FILL_BLOCKS ? (unsigned)blocks : FILL_BLOCKS, FILL_THREADS, arguments);
}

static int fill_random(int which, int64_t n, const char *dtype, int logarithm, float scale, float shift) {
    int bytes = bench_dtype_bytes(dtype), bfloat = strcmp(dtype, "bf16") == 0;
    uint64_t seed = seed_of(which);
    void *arguments[] = {&buffers[which], &n, &bytes, &bfloat, &logarithm, &scale, &shift, &seed};
    return fill("fill_random", n, arguments);
}

int bench_fill_uniform(int which, int64_t n) {
    return fill_random(which, n, "f32", 0, 2.0f, -1.0f);
}

static int fill_normal(int which, int64_t n, const char *dtype) {
    int bytes = bench_dtype_bytes(dtype), bfloat = strcmp(dtype, "bf16") == 0;
    float deviation = DEVIATION;
    uint64_t seed = seed_of(which);
    void *arguments[] = {&buffers[which], &n, &bytes, &bfloat, &deviation, &seed};
    return fill("fill_normal", n, arguments);
}

static int fill_probabilities(const bench_cell *c) {
    const char *dtype = bench_probabilities_dtype(c);
    int bytes = bench_dtype_bytes(dtype), bfloat = strcmp(dtype, "bf16") == 0;
    int64_t rows = c->rows, classes = c->classes, inner = c->inner, stride = bench_stride(c);
    uint64_t first = buffers[BENCH_TARGET] + (uint64_t)(bench_layout_of(c)->shift * bytes),
             seed = seed_of(BENCH_TARGET);
    float deviation = DEVIATION;
    void *arguments[] = {&first, &rows, &classes, &inner, &stride, &bytes, &bfloat, &deviation, &seed};
    return fill("fill_probabilities", WARP * rows, arguments);
}

static int fill_close(int which, int centre, int64_t n, const char *dtype, double sigma) {
    int bytes = bench_dtype_bytes(dtype), bfloat = strcmp(dtype, "bf16") == 0;
    float deviation = (float)sigma;
    uint64_t seed = seed_of(which);
    void *arguments[] = {&buffers[which], &buffers[centre], &n, &bytes, &bfloat, &deviation, &seed};
    return fill("fill_close", n, arguments);
}

static int fill_classes(int which, const bench_cell *c) {
    int64_t rows = c->rows, classes = c->classes;
    uint64_t seed = 77;
    void *arguments[] = {&buffers[which], &rows, &classes, &seed};
    return fill("fill_targets", rows, arguments);
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Random rows are ignored, and their number is exact: the bytes that must move follow from it. */
static int fill_masked_targets(const bench_cell *c) {
    int64_t *targets = malloc((size_t)c->rows * sizeof *targets), left = bench_ignored_rows(c), i;
    uint64_t state = 77;
    int code;
    if (targets == NULL)
        return bench_fail("out of memory for %lld targets", (long long)c->rows);
    for (i = 0; i < c->rows; i++) {
        const int ignored = (int64_t)(next_random(&state) % (uint64_t)(c->rows - i)) < left;
        targets[i] = ignored ? BENCH_IGNORE_INDEX : (int64_t)(next_random(&state) % (uint64_t)c->classes);
        left -= ignored;
    }
    code = bench_cuda.upload(buffers[BENCH_TARGET], targets, (size_t)c->rows * sizeof *targets, NULL);
    code = code != 0 ? code : bench_cuda.stream_synchronize(NULL);
    free(targets);
    return bench_check("cuMemcpyHtoDAsync", code);
}

static const char *results_dtype(const bench_cell *c) {
    return strcmp(c->dtype, "f64") == 0 ? "f64" : "f32";
}

static int fill_row_weights(const bench_cell *c) {
    return fill_random(BENCH_ROW_WEIGHTS, c->rows, results_dtype(c), 0, 1.0f, 0.5f);
}

/* An array of a divergence, independent of the other one. */
static int fill_side(const bench_cell *c, int which, const char *dtype, bench_kind kind) {
    const int probabilities = kind == BENCH_OF_PROBABILITIES;
    /* No probability is 0, in f16 neither: that would be an infinite loss. */
    float scale = probabilities ? -1.0f / (float)c->classes : 8.0f, shift = probabilities ? 0x1p-24f : -14.0f;
    return fill_random(which, bench_elements(c), dtype, probabilities, scale, shift);
}

/* A sparse teacher has nine tenths of each row. */
static int fill_entries(const bench_cell *c) {
    int64_t rows = c->rows, classes = c->classes, k = bench_entries(c);
    float deviation = DEVIATION, all = 0.9f;
    uint64_t seed = seed_of(BENCH_VALUES);
    void *arguments[] = {&buffers[BENCH_TARGET], &buffers[BENCH_VALUES], &rows, &classes, &k, &deviation, &all, &seed};
    return fill("fill_entries", WARP * rows, arguments);
}

static int fill_pair(const bench_cell *c) {
    const bench_pair *p = c->pair;
    const double closeness = bench_request_of(c)->closeness;
    const int64_t n = bench_elements(c);
    if (p->entries > 0)
        return fill_normal(BENCH_INPUT, n, c->dtype) || fill_entries(c);
    if (closeness > 0
            ? fill_normal(BENCH_TARGET, n, c->dtype) || fill_close(BENCH_INPUT, BENCH_TARGET, n, c->dtype, closeness)
            : fill_side(c, BENCH_INPUT, c->dtype, p->input) ||
                  fill_side(c, BENCH_TARGET, bench_target_dtype(c), p->target))
        return 1;
    return (p->row_weights && fill_row_weights(c)) || (p->labels && fill_classes(BENCH_LABELS, c));
}

static int fill_cross_entropy(const bench_cell *c) {
    const bench_request *r = bench_request_of(c);
    const char *results = results_dtype(c);
    if (c->normal ? fill_normal(BENCH_INPUT, bench_elements(c), c->dtype)
                  : fill_random(BENCH_INPUT, bench_elements(c), c->dtype, 0, 16.0f, -8.0f))
        return 1;
    if (r->probabilities != NULL ? fill_probabilities(c)
        : r->ignored > 0         ? fill_masked_targets(c)
                                 : fill_classes(BENCH_TARGET, c))
        return 1;
    return (r->class_weights && fill_random(BENCH_WEIGHTS, c->classes, results, 0, 1.0f, 0.5f)) ||
           (r->row_weights && fill_row_weights(c));
}

/* ---- the buffers of a cell ---- */

static size_t array_bytes(const bench_cell *c, const char *dtype) {
    return (size_t)bench_elements(c) * (size_t)bench_dtype_bytes(dtype);
}

static size_t bytes_of(const bench_cell *c, int which) {
    const bench_request *r = bench_request_of(c);
    const bench_pair *p = c->pair;
    const size_t rows = (size_t)c->rows, results = strcmp(c->dtype, "f64") == 0 ? 8 : 4;
    switch (which) {
    case BENCH_INPUT:
        return array_bytes(c, c->dtype);
    case BENCH_TARGET:
        return bench_entries(c) > 0 ? rows * (size_t)bench_entries(c) * 8
               : bench_is_pair(c)   ? array_bytes(c, bench_target_dtype(c))
               : r->probabilities   ? array_bytes(c, bench_probabilities_dtype(c))
                                    : rows * 8;
    case BENCH_GRADIENT:
        return c->pass == BENCH_LOSS || bench_layout_of(c)->in_place ? 0 : array_bytes(c, bench_gradient_dtype(c));
    case BENCH_WEIGHTS:
        return r->class_weights ? (size_t)c->classes * results : 0;
    case BENCH_ROW_WEIGHTS:
        return r->row_weights || (p != NULL && p->row_weights) ? rows * results : 0;
    case BENCH_LSE:
        return c->pass == BENCH_BACKWARD ? rows * results : 0;
    case BENCH_ARGMAX:
        return r->argmax ? rows * 8 : 0;
    case BENCH_LOSS_ROWS:
        return r->loss_rows || (p != NULL && p->loss_rows) ? rows * results : 0;
    case BENCH_GRAD_TARGET:
        return bench_wants_grad_target(c) ? array_bytes(c, bench_target_dtype(c)) : 0;
    case BENCH_LABELS:
        return p != NULL && p->labels ? rows * 8 : 0;
    case BENCH_VALUES:
        return rows * (size_t)bench_entries(c) * sizeof(float);
    default:
        return 256; /* the loss and the count of correct rows */
    }
}

int bench_fill_cell(const bench_cell *c) {
    int i;
    for (i = 0; i < BENCH_BUFFERS; i++)
        if (bench_reserve(i, bytes_of(c, i)))
            return 1;
    return bench_is_pair(c) ? fill_pair(c) : fill_cross_entropy(c);
}

/* ---- opening and closing ---- */

int bench_data_open(const char *path) {
    static char text[MODULE_BYTES];
    size_t length;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return bench_fail("%s: can't be read", path);
    length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    return bench_check(path, bench_cuda.module_load(&module, text, 0, NULL, NULL)) ||
           bench_check("nothing", bench_cuda.module_function(&nothing, module, "nothing"));
}

void bench_data_close(void) {
    int i;
    for (i = 0; i < BENCH_BUFFERS; i++)
        if (reserved[i] > 0)
            (void)bench_cuda.memory_free(buffers[i]);
}
