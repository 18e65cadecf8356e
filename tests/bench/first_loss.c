/* first_loss CALL DTYPE [ROWS CLASSES]: prints how long the first loss of a process takes, part by part, in milliseconds.
 * first_loss: prints the heading of these lines.
 *
 * CALL: cross_entropy; gradient: cross-entropy with its gradient; options: this with class weights and smoothing; kl_div.
 * DTYPE: f32 or bf16. The logits are zeros, and of a target one class is certain, so the loss is known. */
#define _POSIX_C_SOURCE 200809L
#define GPULOSS_STATIC
#include "../../gpuloss.h"
#include "clock.h"
#include <math.h>

enum { LATER_CALLS = 5 };

static struct {
    int (*load)(void **, const void *, unsigned, int *, void **);
    int (*function)(void **, void *, const char *);
    double seconds;
} loading;

static int timed_load(void **module, const void *image, unsigned count, int *options, void **values) {
    double start = seconds();
    int code = loading.load(module, image, count, options, values);
    loading.seconds += seconds() - start;
    return code;
}

static int timed_function(void **function, void *module, const char *name) {
    double start = seconds();
    int code = loading.function(function, module, name);
    loading.seconds += seconds() - start;
    return code;
}

/* The driver's functions; the two in which it compiles are timed. */
static void *timed_symbol(void *library, const char *name) {
    void *found = gpulossi_library_symbol(library, name);
    if (found != NULL && strcmp(name, "cuModuleLoadDataEx") == 0) {
        loading.load = (int (*)(void **, const void *, unsigned, int *, void **))(uintptr_t)found;
        return (void *)(uintptr_t)timed_load;
    }
    if (found != NULL && strcmp(name, "cuModuleGetFunction") == 0) {
        loading.function = (int (*)(void **, void *, const char *))(uintptr_t)found;
        return (void *)(uintptr_t)timed_function;
    }
    return found;
}

static void check(gpuloss_status status) {
    if (status == GPULOSS_OK)
        return;
    fprintf(stderr, "first_loss: %s\n", gpuloss_last_error());
    exit(1);
}

static void check_driver(const char *what, int code) {
    if (code == 0)
        return;
    fprintf(stderr, "first_loss: %s: driver error %d\n", what, code);
    exit(1);
}

static void require(int condition, const char *what) {
    if (condition)
        return;
    fprintf(stderr, "first_loss: %s\n", what);
    exit(1);
}

static struct {
    gpuloss_context *context;
    gpuloss_cross_entropy_desc cross_entropy;
    gpuloss_kl_div_desc kl_div;
    int is_kl_div, has_gradient, has_options;
    void *loss;
    double expected;
} call;

static void *uploaded(const void *data, size_t bytes) {
    void *buffer = NULL;
    check(gpuloss_alloc(call.context, &buffer, bytes));
    check(gpuloss_upload(call.context, buffer, data, bytes, NULL));
    return buffer;
}

/* rows x classes of one value, and of another in the first class of each row. */
static void *array(int is_bf16, int64_t rows, int64_t classes, float first, float others) {
    size_t count = (size_t)rows * (size_t)classes, bytes = is_bf16 ? 2 : 4, i;
    char *data = (char *)malloc(count * bytes);
    void *buffer;
    require(data != NULL, "no memory");
    for (i = 0; i < count; i++) {
        float value = i % (size_t)classes == 0 ? first : others;
        /* The upper half of a float is the bf16 below it. */
        memcpy(data + i * bytes, (char *)&value + (is_bf16 ? 2 : 0), bytes);
    }
    buffer = uploaded(data, count * bytes);
    free(data);
    return buffer;
}

/* Either loss is log(classes): of logits that are all alike, and of a target that is sure against an even input. */
static void prepare(gpuloss_dtype dtype, int64_t rows, int64_t classes) {
    gpuloss_cross_entropy_desc c = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    gpuloss_kl_div_desc k = GPULOSS_KL_DIV_DEFAULTS;
    float zero = 0;
    int is_bf16 = dtype == GPULOSS_BF16;
    call.loss = uploaded(&zero, sizeof zero);
    call.expected = log((double)classes);
    if (call.is_kl_div) {
        k.input = array(is_bf16, rows, classes, 1.0f / (float)classes, 1.0f / (float)classes);
        k.target = array(is_bf16, rows, classes, 1, 0);
        k.input_kind = k.target_kind = GPULOSS_PROBABILITIES;
        k.rows = rows, k.classes = classes, k.dtype = dtype, k.loss = call.loss;
    } else {
        int64_t *targets = (int64_t *)calloc((size_t)rows, sizeof *targets);
        require(targets != NULL, "no memory");
        c.logits = array(is_bf16, rows, classes, 0, 0);
        c.targets = uploaded(targets, (size_t)rows * sizeof *targets);
        c.target_type = GPULOSS_I64;
        c.rows = rows, c.classes = classes, c.dtype = dtype, c.loss = call.loss;
        if (call.has_gradient)
            c.grad_logits = array(is_bf16, rows, classes, 0, 0);
        if (call.has_options) {
            c.label_smoothing = 0.1;
            c.class_weights = array(0, 1, classes, 1, 1);
        }
        free(targets);
    }
    call.cross_entropy = c;
    call.kl_div = k;
}

/* Seconds from the call to its result on the host. */
static double time_to_result(void) {
    double start = seconds(), taken;
    float loss = 0;
    check(call.is_kl_div ? gpuloss_kl_div(call.context, &call.kl_div, NULL)
                         : gpuloss_cross_entropy(call.context, &call.cross_entropy, NULL));
    check(gpuloss_download(call.context, &loss, call.loss, sizeof loss, NULL));
    taken = seconds() - start;
    /* 1 / classes in bf16 is up to a 128th too small. */
    require(fabs((double)loss - call.expected) < 0.01, "the loss is wrong");
    return taken;
}

static double shortest_time_to_result(void) {
    double best = time_to_result();
    int i;
    for (i = 1; i < LATER_CALLS; i++) {
        double taken = time_to_result();
        if (taken < best)
            best = taken;
    }
    return best;
}

/* The primary context of the first GPU, made current. */
static void open_context(const gpulossi_driver *driver) {
    struct CUctx_st *context;
    int device;
    check_driver("cuDeviceGet", driver->device_get(&device, 0));
    check_driver("cuDevicePrimaryCtxRetain", driver->primary_retain(&context, device));
    check_driver("cuCtxPushCurrent", driver->context_push(context));
}

int main(int argc, char **argv) {
    gpuloss_create_desc desc = {NULL, 0, getenv("GPULOSS_DRIVER"), NULL, NULL, 0};
    char why[256] = "";
    gpulossi_driver driver;
    int64_t rows = argc > 4 ? atoll(argv[3]) : 8192, classes = argc > 4 ? atoll(argv[4]) : 1000;
    double start, init, context, create, first, later;
    if (argc == 1) {
        printf("%-14s %-5s %8s %8s %8s %8s %8s %8s %8s\n", "call", "dtype", "init", "context", "create", "load",
               "driver's", "call", "all");
        return 0;
    }
    require(argc == 3 || argc == 5, "CALL DTYPE [ROWS CLASSES] are required");
    call.is_kl_div = strcmp(argv[1], "kl_div") == 0;
    call.has_options = strcmp(argv[1], "options") == 0;
    call.has_gradient = call.has_options || strcmp(argv[1], "gradient") == 0;
    require(call.is_kl_div || call.has_gradient || strcmp(argv[1], "cross_entropy") == 0, "there is no such call");
    require(strcmp(argv[2], "f32") == 0 || strcmp(argv[2], "bf16") == 0, "there is no such dtype");
    require(rows > 0 && classes > 1, "rows and classes are too small");

    start = seconds();
    check(gpulossi_find_driver(&driver, &desc));
    check_driver("cuInit", driver.init(0));
    init = seconds() - start;

    start = seconds();
    open_context(&driver);
    context = seconds() - start;

    desc.symbol = timed_symbol;
    desc.symbol_user = gpulossi_open(desc.driver_path, why, sizeof why);
    start = seconds();
    check(gpuloss_create(&call.context, &desc));
    create = seconds() - start;

    prepare(argv[2][0] == 'b' ? GPULOSS_BF16 : GPULOSS_F32, rows, classes);
    first = time_to_result();
    later = shortest_time_to_result();
    printf("%-14s %-5s %8.2f %8.2f %8.2f %8.2f %8.2f %8.3f %8.2f\n", argv[1], argv[2], 1e3 * init, 1e3 * context,
           1e3 * create, 1e3 * (first - later), 1e3 * loading.seconds, 1e3 * later, 1e3 * (init + create + first));
    gpuloss_destroy(call.context);
    return 0;
}
