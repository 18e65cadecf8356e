/* Measures gpuloss against what the memory of the GPU can do, both in one process. */
#define _POSIX_C_SOURCE 200809L
#define GPULOSS_STATIC
#include "../../gpuloss.h"
#include "cells.h"
#include "clock.h"
#include "device.h"

enum { MEGABYTE = 1 << 20, CEILING_STEP = 4, CEILING_THREADS = 512, NOTHING_BYTES = 336 };

typedef int launch_function(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            struct CUstream_st *, void **, void **);
typedef int launch_ex_function(const gpulossi_launch_config *, void *, void **, void **);

/* What the library itself does not need of the driver. */
typedef struct timing {
    int (*event_create)(void **, unsigned);
    int (*event_record)(void *, struct CUstream_st *);
    int (*event_synchronize)(void *);
    int (*event_elapsed)(float *, void *, void *);
} timing;

static struct {
    gpuloss_context *context;
    timing timing;
    void *module;
    void *events[BENCH_MOST_RUNS][2];
    void *buffers[4];
    size_t buffer_bytes[4];
    void *small; /* loss, lse, argmax */
    void *driver, *nothing;
    launch_function *driver_launch;
    launch_ex_function *driver_launch_ex;
    long long launches;
    int64_t bytes;
    int cell;
    char failure[512];
} bench;

const char *bench_failure(void) {
    return bench.failure;
}

int bench_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(bench.failure, sizeof bench.failure, format, arguments);
    va_end(arguments);
    return 1;
}

static int check(gpuloss_status status) {
    return status != GPULOSS_OK && bench_fail("%s", gpuloss_last_error());
}

int bench_check(const char *what, int code) {
    return code != 0 && bench_fail("%s: driver error %d", what, code);
}

long long bench_launches(void) {
    return bench.launches;
}

void *bench_symbol(const char *name) {
    return gpulossi_library_symbol(bench.driver, name);
}

static int counted_launch(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                          unsigned threads_z, unsigned shared, struct CUstream_st *stream, void **arguments,
                          void **extra) {
    bench.launches++;
    return bench.driver_launch(function, x, y, z, threads, threads_y, threads_z, shared, stream, arguments, extra);
}

static int counted_launch_ex(const gpulossi_launch_config *config, void *function, void **arguments, void **extra) {
    bench.launches++;
    return bench.driver_launch_ex(config, function, arguments, extra);
}

/* The driver's functions for gpuloss, whose launches are counted on the way. */
static void *counted_symbol(void *library, const char *name) {
    void *found = gpulossi_library_symbol(library, name);
    if (found != NULL && strcmp(name, "cuLaunchKernel") == 0) {
        bench.driver_launch = (launch_function *)(uintptr_t)found;
        return (void *)(uintptr_t)counted_launch;
    }
    if (found != NULL && strcmp(name, "cuLaunchKernelEx") == 0) {
        bench.driver_launch_ex = (launch_ex_function *)(uintptr_t)found;
        return (void *)(uintptr_t)counted_launch_ex;
    }
    return found;
}

gpuloss_context *bench_context(void) {
    return bench.context;
}

static int dtype_of(const char *name) {
    return strcmp(name, "f32") == 0   ? GPULOSS_F32
           : strcmp(name, "f64") == 0 ? GPULOSS_F64
           : strcmp(name, "f16") == 0 ? GPULOSS_F16
                                      : GPULOSS_BF16;
}

static int bytes_of(const bench_cell *c) {
    return gpulossi_dtype_bytes((gpuloss_dtype)dtype_of(c->dtype));
}
static int is(const bench_cell *c, const char *loss) {
    return strcmp(c->loss, loss) == 0;
}
static int is_pair(const bench_cell *c) {
    return strncmp(c->loss, "kl_div", 6) == 0 || is(c, "jsd_logits");
}
static int has_options(const bench_cell *c) {
    return is(c, "cross_entropy_options");
}

const char *bench_pass_name(int pass) {
    static const char *const names[] = {"", "loss", "loss + gradient", "backward"};
    return names[pass];
}

double bench_bytes(int cell) {
    const bench_cell *c = &bench_cells[cell];
    double array = (double)c->rows * (double)c->classes * bytes_of(c);
    double moved = is_pair(c) ? 2 * array : array + (has_options(c) ? 16.0 : 8.0) * (double)c->rows;
    return c->pass == BENCH_LOSS ? moved : moved + array;
}

int bench_ceiling_of(int cell) {
    const bench_cell *c = &bench_cells[cell];
    return c->pass == BENCH_LOSS ? BENCH_READ : is_pair(c) ? BENCH_BLEND : BENCH_COPY;
}

static int launch(const char *kernel, unsigned blocks, unsigned threads, void **arguments) {
    void *function;
    return bench_check(kernel, bench.context->driver.module_function(&function, bench.module, kernel)) ||
           bench_check(kernel,
                       bench.context->driver.launch(function, blocks, 1, 1, threads, 1, 1, 0, NULL, arguments, NULL));
}

static int reserve(int which, size_t bytes) {
    if (bench.buffer_bytes[which] >= bytes)
        return 0;
    if (check(gpuloss_free(bench.context, bench.buffers[which])))
        return 1;
    bench.buffer_bytes[which] = bytes;
    return check(gpuloss_alloc(bench.context, &bench.buffers[which], bytes));
}

static int fill(int which, int64_t count, const bench_cell *c, int logarithm, float scale, float shift) {
    int bytes = bytes_of(c), bfloat = strcmp(c->dtype, "bf16") == 0;
    uint64_t seed = 1000003u * (uint64_t)(which + 1);
    void *arguments[] = {&bench.buffers[which], &count, &bytes, &bfloat, &logarithm, &scale, &shift, &seed};
    return launch("fill_random", 4096, 256, arguments);
}

uint64_t bench_buffer(int which) {
    return (uint64_t)(uintptr_t)bench.buffers[which];
}

int bench_prepare(int cell) {
    const bench_cell *c = &bench_cells[cell];
    int64_t count = c->rows * c->classes, rows = c->rows, classes = c->classes;
    size_t bytes = (size_t)count * (size_t)bytes_of(c);
    uint64_t seed = 77;
    bench.cell = cell;
    if (reserve(BENCH_INPUT, bytes) || reserve(BENCH_TARGET, is_pair(c) ? bytes : (size_t)rows * 8) ||
        reserve(BENCH_GRADIENT, c->pass == BENCH_LOSS ? 256 : bytes) || reserve(BENCH_WEIGHTS, (size_t)classes * 4))
        return 1;
    if (!is_pair(c)) {
        static const bench_cell weights = {"weights", "f32", 1, 1, 1, 0, 0, 0};
        void *arguments[] = {&bench.buffers[BENCH_TARGET], &rows, &classes, &seed};
        return fill(BENCH_INPUT, count, c, 0, 16.0f, -8.0f) || launch("fill_targets", 512, 256, arguments) ||
               fill(BENCH_WEIGHTS, classes, &weights, 0, 1.0f, 0.5f);
    }
    if (is(c, "kl_div_pp")) /* none is 0, in f16 neither: that would be an infinite loss */
        return fill(BENCH_INPUT, count, c, 1, -1.0f / (float)classes, 0x1p-24f) ||
               fill(BENCH_TARGET, count, c, 1, -1.0f / (float)classes, 0x1p-24f);
    return fill(BENCH_INPUT, count, c, 0, 8.0f, -14.0f) || fill(BENCH_TARGET, count, c, 0, 8.0f, -14.0f);
}

static gpuloss_cross_entropy_desc describe_cross_entropy(const bench_cell *c) {
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    d.logits = bench.buffers[BENCH_INPUT];
    d.targets = bench.buffers[BENCH_TARGET];
    d.rows = c->rows;
    d.classes = c->classes;
    d.dtype = (gpuloss_dtype)dtype_of(c->dtype);
    d.target_type = GPULOSS_I64;
    d.inner = c->inner;
    if (has_options(c)) {
        d.label_smoothing = 0.1;
        d.class_weights = bench.buffers[BENCH_WEIGHTS];
        d.lse_square_scale = 1e-4;
    }
    return d;
}

gpuloss_cross_entropy_desc bench_cross_entropy_desc(int cell) {
    const bench_cell *c = &bench_cells[cell];
    gpuloss_cross_entropy_desc d = describe_cross_entropy(c);
    d.loss = c->pass == BENCH_BACKWARD ? NULL : bench.small;
    d.argmax = has_options(c) ? (int64_t *)bench.small + 32 : NULL;
    d.lse_in = c->pass == BENCH_BACKWARD ? (char *)bench.small + 256 : NULL;
    d.grad_logits = c->pass == BENCH_LOSS ? NULL : bench.buffers[BENCH_GRADIENT];
    return d;
}

gpuloss_kl_div_desc bench_kl_div_desc(int cell) {
    const bench_cell *c = &bench_cells[cell];
    gpuloss_kl_div_desc d = GPULOSS_KL_DIV_DEFAULTS;
    d.input = bench.buffers[BENCH_INPUT];
    d.target = bench.buffers[BENCH_TARGET];
    d.rows = c->rows;
    d.classes = c->classes;
    d.dtype = (gpuloss_dtype)dtype_of(c->dtype);
    d.input_kind = d.target_kind = is(c, "kl_div_pp")   ? GPULOSS_PROBABILITIES
                                   : is(c, "kl_div_ll") ? GPULOSS_LOG_PROBABILITIES
                                                        : GPULOSS_LOGITS;
    if (is(c, "jsd_logits")) {
        d.divergence = GPULOSS_JENSEN_SHANNON;
        d.beta = 0.5;
    }
    d.loss = bench.small;
    d.grad_input = c->pass == BENCH_LOSS ? NULL : bench.buffers[BENCH_GRADIENT];
    return d;
}

int bench_kl(int kind, uint64_t input, uint64_t target, int64_t rows, int64_t classes, uint64_t loss) {
    gpuloss_kl_div_desc d = GPULOSS_KL_DIV_DEFAULTS;
    d.input = GPULOSS_PTR(input);
    d.target = GPULOSS_PTR(target);
    d.rows = rows;
    d.classes = classes;
    d.dtype = GPULOSS_F32;
    d.input_kind = d.target_kind = (gpuloss_kind)kind;
    d.loss = GPULOSS_PTR(loss);
    return check(gpuloss_kl_div(bench.context, &d, NULL));
}

int bench_call(void *stream) {
    if (is_pair(&bench_cells[bench.cell])) {
        gpuloss_kl_div_desc d = bench_kl_div_desc(bench.cell);
        return check(gpuloss_kl_div(bench.context, &d, stream));
    } else {
        gpuloss_cross_entropy_desc d = bench_cross_entropy_desc(bench.cell);
        return check(gpuloss_cross_entropy(bench.context, &d, stream));
    }
}

static int call_cell(void) {
    return bench_call(NULL);
}

int bench_launch_nothing(void *stream) {
    static char block[NOTHING_BYTES];
    void *arguments[] = {block};
    return bench_check("nothing", bench.context->driver.launch(bench.nothing, 1, 1, 1, GPULOSSI_BLOCK, 1, 1, 0, stream,
                                                               arguments, NULL));
}

static int by_time(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int call_and_wait(int (*call)(void)) {
    return call() || bench_check("cuEventRecord", bench.timing.event_record(bench.events[0][0], NULL)) ||
           bench_check("cuEventSynchronize", bench.timing.event_synchronize(bench.events[0][0]));
}

const int bench_usual_rest = 300;

/* At the limit of its power a GPU lowers its clock, and does not raise it at once: what ran before would count. */
int bench_rest(int milliseconds) {
    struct timespec rest = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    return bench_check("cuEventRecord", bench.timing.event_record(bench.events[0][0], NULL)) ||
           bench_check("cuEventSynchronize", bench.timing.event_synchronize(bench.events[0][0])) ||
           (milliseconds > 0 && nanosleep(&rest, NULL) != 0 && bench_fail("the rest was interrupted"));
}

/* The calls are queued before the first is waited for: what is timed is the GPU, not how soon it hears of a call. A run is
 * of as many calls in a row as take a millisecond, as a program's work is queued: a time between calls would keep them
 * apart. While a kernel is loaded the GPU is idle, and takes a while to come back to its speed. */
int bench_median(int (*call)(void), int warm_up, int runs, double *milliseconds) {
    float times[BENCH_MOST_RUNS];
    double end;
    int calls = 0, in_a_row, i, k;
    if (call_and_wait(call))
        return 1;
    for (end = seconds() + 1e-3 * warm_up; seconds() < end; calls++)
        if (call_and_wait(call))
            return 1;
    in_a_row = calls > warm_up ? calls / warm_up : 1;
    for (i = 0; i < runs; i++) {
        if (bench_check("cuEventRecord", bench.timing.event_record(bench.events[i][0], NULL)))
            return 1;
        for (k = 0; k < in_a_row; k++)
            if (call())
                return 1;
        if (bench_check("cuEventRecord", bench.timing.event_record(bench.events[i][1], NULL)))
            return 1;
    }
    if (bench_check("cuEventSynchronize", bench.timing.event_synchronize(bench.events[runs - 1][1])))
        return 1;
    for (i = 0; i < runs; i++)
        if (bench_check("cuEventElapsedTime",
                        bench.timing.event_elapsed(&times[i], bench.events[i][0], bench.events[i][1])))
            return 1;
    qsort(times, (size_t)runs, sizeof times[0], by_time);
    *milliseconds = times[runs / 2] / in_a_row;
    return 0;
}

static int measure(int (*call)(void), double *milliseconds) {
    return bench_median(call, BENCH_WARM_UP, BENCH_MOST_RUNS, milliseconds);
}

int bench_measure(double *milliseconds) {
    const bench_cell *c = &bench_cells[bench.cell];
    if (c->pass == BENCH_BACKWARD) {
        /* The lse that the backward pass starts from. */
        gpuloss_cross_entropy_desc d = describe_cross_entropy(c);
        d.lse = (char *)bench.small + 256;
        if (check(gpuloss_cross_entropy(bench.context, &d, NULL)))
            return 1;
    }
    return measure(call_cell, milliseconds);
}

static int ceiling_kind;
static int64_t ceiling_bytes; /* of an array */
static unsigned ceiling_blocks;

static int call_ceiling(void) {
    static const char *const names[] = {"read_vectors", "copy_vectors", "blend_vectors", "read_vectors"};
    int64_t vectors = ceiling_bytes / 16;
    void *three[] = {&bench.buffers[BENCH_INPUT], &bench.buffers[BENCH_GRADIENT], &vectors};
    void *four[] = {&bench.buffers[BENCH_INPUT], &bench.buffers[BENCH_TARGET], &bench.buffers[BENCH_GRADIENT],
                    &vectors};
    return launch(names[ceiling_kind], ceiling_blocks, CEILING_THREADS, ceiling_kind == BENCH_BLEND ? four : three);
}

/* The best of several grids, so that nobody is measured against a badly launched stream. */
int bench_ceiling(int which, double *gigabytes_a_second) {
    static const bench_cell source = {"ceiling", "f32", 1, 1, 1, 0, 0, 0};
    /* 0: as many blocks as there are steps, which the hardware hands out in order. */
    static const unsigned blocks_a_multiprocessor[] = {2, 4, 8, 16, 0};
    double moved;
    unsigned i;
    int buffer;
    for (buffer = 0; buffer < 3; buffer++)
        if (reserve(buffer, (size_t)bench.bytes) || fill(buffer, bench.bytes / 4, &source, 0, 2.0f, -1.0f))
            return 1;
    ceiling_kind = which;
    ceiling_bytes = which == BENCH_READ_LESS ? bench.bytes / 4 : bench.bytes;
    moved = (double)ceiling_bytes * (which == BENCH_READ_LESS ? 1 : which + 1);
    *gigabytes_a_second = 0;
    for (i = 0; i < sizeof blocks_a_multiprocessor / sizeof blocks_a_multiprocessor[0]; i++) {
        double milliseconds;
        ceiling_blocks = blocks_a_multiprocessor[i] * (unsigned)bench.context->multiprocessors;
        if (ceiling_blocks == 0)
            ceiling_blocks = 1 + (unsigned)((ceiling_bytes - 1) / (16 * CEILING_STEP * CEILING_THREADS));
        if (measure(call_ceiling, &milliseconds))
            return 1;
        if (moved / milliseconds / 1e6 > *gigabytes_a_second)
            *gigabytes_a_second = moved / milliseconds / 1e6;
    }
    return 0;
}

static int load_ceilings(const char *path) {
    static char text[MEGABYTE];
    size_t length;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return bench_fail("%s: can't be read", path);
    length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    return bench_check(path, bench.context->driver.module_load(&bench.module, text, 0, NULL, NULL)) ||
           bench_check("nothing", bench.context->driver.module_function(&bench.nothing, bench.module, "nothing"));
}

int bench_open(const char *ceilings_ptx, int64_t bytes) {
    gpuloss_create_desc desc = {NULL, 0, getenv("GPULOSS_DRIVER"), NULL, NULL};
    struct CUctx_st *current = NULL;
    int i;
    bench.driver = gpulossi_open(desc.driver_path);
    if (bench.driver != NULL) {
        desc.symbol = counted_symbol;
        desc.symbol_user = bench.driver;
    }
    bench.bytes = 2 * bytes; /* of an array of a ceiling */
    bench_list(bytes);
    if (check(gpuloss_create(&bench.context, &desc)))
        return 1;
    /* The driver calls made here need a current context. */
    (void)bench.context->driver.context_current(&current);
    if (current == NULL &&
        bench_check("cuCtxPushCurrent", bench.context->driver.context_push(bench.context->cuda_context)))
        return 1;
#define FIND(field, name, arguments) bench.timing.field = (int(*) arguments)(uintptr_t)bench_symbol(name)
    FIND(event_create, "cuEventCreate", (void **, unsigned));
    FIND(event_record, "cuEventRecord", (void *, struct CUstream_st *));
    FIND(event_synchronize, "cuEventSynchronize", (void *));
    FIND(event_elapsed, "cuEventElapsedTime", (float *, void *, void *));
#undef FIND
    for (i = 0; i < BENCH_MOST_RUNS; i++)
        if (bench_check("cuEventCreate", bench.timing.event_create(&bench.events[i][0], 0)) ||
            bench_check("cuEventCreate", bench.timing.event_create(&bench.events[i][1], 0)))
            return 1;
    return load_ceilings(ceilings_ptx) ||
           check(gpuloss_alloc(bench.context, &bench.small, MEGABYTE + (size_t)bytes / 4));
}

void bench_close(void) {
    int i;
    for (i = 0; i < 4; i++)
        (void)gpuloss_free(bench.context, bench.buffers[i]);
    (void)gpuloss_free(bench.context, bench.small);
    gpuloss_destroy(bench.context);
}
