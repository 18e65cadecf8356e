/* The interpreter as a driver: device models and their limits, errors of entry points, several devices, clusters, dependent
 * launches, threads, coverage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *library;

#define HEADER ".version 6.0\n.target sm_50\n.address_size 64\n"

static const char counting[] =
    HEADER ".extern .shared .align 16 .b8 room[];\n"
           ".global .align 4 .u32 counter = 7;\n"
           ".visible .entry add_one(.param .u64 data, .param .u32 n) .maxntid 512, 1, 1 {\n"
           "    .reg .pred %p;\n    .reg .b32 %r<4>;\n    .reg .b64 %rd<4>;\n"
           "    ld.param.u64 %rd1, [data];\n    ld.param.u32 %r3, [n];\n    mov.u32 %r1, %tid.x;\n"
           "    setp.ge.u32 %p, %r1, %r3;\n    @%p exit;\n"
           "    mul.wide.u32 %rd2, %r1, 4;\n    add.u64 %rd1, %rd1, %rd2;\n    ld.global.u32 %r2, [%rd1];\n"
           "    add.u32 %r2, %r2, 1;\n    st.global.u32 [%rd1], %r2;\n    ret;\n}\n"
           ".visible .entry empty() {\n    ret;\n}\n";

static struct gpu gpu;
static void *module, *add_one, *empty;

/* Each device model needs a process of its own: the model is read once. The child's exit status is its count of errors.
 */
static int in_child(int (*body)(void), const char *device) {
    pid_t child = fork();
    if (child == 0) {
        setenv("PTXSIM_DEVICE", device, 1);
        gpu_open(&gpu, library);
        int errors = gpu.load(&module, counting, 0, NULL, NULL) != 0;
        errors += gpu.function(&add_one, module, "add_one") != 0;
        errors += gpu.function(&empty, module, "empty") != 0;
        errors += body();
        gpu.release(0);
        exit(errors);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

#define EXPECT(condition) (errors += (condition) ? 0 : (fprintf(stderr, "line %d: %s\n", __LINE__, #condition), 1))

static int launch_empty(unsigned grid, unsigned block, unsigned shared) {
    return gpu.launch(empty, grid, 1, 1, block, 1, 1, shared, NULL, NULL, NULL);
}

static unsigned optin;

static int limits(void) {
    int errors = 0, value = 0;
    EXPECT(gpu.attribute(&value, 97, 0) == 0 && (unsigned)value == optin);
    EXPECT(launch_empty(1, 1024, 49152) == 0);
    EXPECT(launch_empty(1, 1025, 0) == 1);
    EXPECT(launch_empty(0, 32, 0) == 1);
    EXPECT(launch_empty(1, 32, 49153) == 1);
    EXPECT(gpu.set(empty, 8, (int)optin) == 0);
    EXPECT(launch_empty(1, 32, optin) == 0);
    EXPECT(launch_empty(1, 32, optin + 1) == 1);
    EXPECT(gpu.set(empty, 8, (int)optin + 1) == 1);
    EXPECT(gpu.synchronize() == 0);
    return errors;
}

static void device_limits(void **state) {
    static const struct {
        const char *device;
        unsigned optin;
    } devices[] = {{"sm_50", 49152},  {"sm_60", 49152},  {"sm_70", 98304},
                   {"sm_80", 166912}, {"sm_90", 232448}, {"sm_120", 101376}};
    (void)state;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        optin = devices[i].optin;
        assert_int_equal(in_child(limits, devices[i].device), 0);
    }
}

static void *function_of(const char *name) {
    void *handle = dlopen(library, RTLD_NOW), *address = dlsym(handle, name);
    if (!address)
        fprintf(stderr, "%s is missing\n", name);
    return address;
}
#define LOOK_UP(pointer, name)                                                                                         \
    do {                                                                                                               \
        void *found = function_of(name);                                                                               \
        memcpy(&(pointer), &found, sizeof found);                                                                      \
    } while (0)

static int cluster_launch(unsigned size, unsigned grid) {
    struct launch_attribute attribute = {LAUNCH_CLUSTER, 0, {size, 1, 1}};
    struct launch_config config = {{grid, 1, 1}, {32, 1, 1}, 0, NULL, &attribute, 1};
    return gpu.launch_ex(&config, empty, NULL, NULL);
}

/* The number of clusters that the device takes at a time, or less than 0 if it takes none of this size. */
static int clusters_at_a_time(unsigned size, unsigned shared) {
    struct launch_attribute attribute = {LAUNCH_CLUSTER, 0, {size, 1, 1}};
    struct launch_config config = {{size, 1, 1}, {256, 1, 1}, shared, NULL, &attribute, 1};
    int (*occupancy)(int *, void *, const struct launch_config *), clusters = 0;
    LOOK_UP(occupancy, "cuOccupancyMaxActiveClusters");
    return occupancy(&clusters, empty, &config) ? -1 : clusters;
}

static int with_clusters(void) {
    int errors = 0;
    EXPECT(clusters_at_a_time(2, 0) == 16);
    EXPECT(clusters_at_a_time(2, 49153) == -1);
    EXPECT(clusters_at_a_time(16, 0) == -1);
    EXPECT(cluster_launch(8, 16) == 0);
    EXPECT(cluster_launch(8, 15) == 1);
    EXPECT(cluster_launch(16, 16) == 912);
    EXPECT(gpu.set(empty, 14, 1) == 0);
    EXPECT(cluster_launch(16, 16) == 0);
    EXPECT(cluster_launch(32, 32) == 912);
    EXPECT(gpu.set(empty, 8, 200000) == 0);
    EXPECT(clusters_at_a_time(4, 200000) == 1);
    EXPECT(clusters_at_a_time(16, 200000) == 1);
    return errors;
}

static int without_clusters(void) {
    int errors = 0;
    EXPECT(cluster_launch(1, 16) == 0);
    EXPECT(cluster_launch(2, 16) == 801);
    EXPECT(clusters_at_a_time(1, 0) == 32);
    EXPECT(clusters_at_a_time(2, 0) == -1);
    return errors;
}

static void cluster_sizes(void **state) {
    (void)state;
    assert_int_equal(in_child(with_clusters, "sm_90"), 0);
    assert_int_equal(in_child(without_clusters, "sm_80"), 0);
}

/* Before it waits, a kernel may use its parameters and shared memory, and prefetch the memory that it will read. */
static const char waiting[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".shared .align 16 .b8 tile[128];\n"
    ".visible .entry add_one(.param .u64 data) {\n"
    "    .reg .pred %p;\n    .reg .b32 %r<5>;\n    .reg .b64 %rd<5>;\n"
    "    ld.param.u64 %rd1, [data];\n    mov.u32 %r1, %tid.x;\n    setp.eq.u32 %p, %r1, 0;\n    mov.u32 %r4, 128;\n"
    "    @%p cp.async.bulk.prefetch.L2.global [%rd1], %r4;\n"
    "    mul.wide.u32 %rd2, %r1, 4;\n    add.u64 %rd1, %rd1, %rd2;\n    prefetch.global.L2 [%rd1];\n"
    "    mov.u64 %rd3, tile;\n    cvta.shared.u64 %rd4, %rd3;\n    add.u64 %rd4, %rd4, %rd2;\n"
    "    st.u32 [%rd4], %r1;\n    ld.u32 %r3, [%rd4];\n"
    "    griddepcontrol.wait;\n    griddepcontrol.launch_dependents;\n"
    "    ld.global.u32 %r2, [%rd1];\n    add.u32 %r2, %r2, 1;\n    st.global.u32 [%rd1], %r2;\n    ret;\n}\n";

static int dependent_launches(void) {
    enum { WORDS = 32, TIMES = 3 };
    int errors = 0;
    uint64_t data;
    uint32_t words[WORDS] = {0};
    void *other, *function, *params[] = {&data};
    struct launch_attribute attributes[] = {{LAUNCH_DEPENDENT, 0, {1}}, {LAUNCH_CLUSTER, 0, {1, 1, 1}}};
    struct launch_config config = {{1, 1, 1}, {WORDS, 1, 1}, 0, NULL, attributes, 2};
    EXPECT(gpu.load(&other, waiting, 0, NULL, NULL) == 0);
    EXPECT(gpu.function(&function, other, "add_one") == 0);
    EXPECT(gpu.alloc(&data, sizeof words) == 0);
    EXPECT(gpu.upload(data, words, sizeof words) == 0);
    for (int i = 0; i < TIMES; i++)
        EXPECT(gpu.launch_ex(&config, function, params, NULL) == 0);
    EXPECT(gpu.launch(function, 1, 1, 1, WORDS, 1, 1, 0, NULL, params, NULL) == 0);
    EXPECT(gpu.synchronize() == 0);
    EXPECT(gpu.download(words, data, sizeof words) == 0);
    EXPECT(words[0] == TIMES + 1 && words[WORDS - 1] == TIMES + 1);
    /* Without it a kernel need not wait. */
    attributes[0].value[0] = 0;
    EXPECT(gpu.launch_ex(&config, empty, NULL, NULL) == 0);
    EXPECT(gpu.synchronize() == 0);
    return errors;
}

static void dependent(void **state) {
    (void)state;
    assert_int_equal(in_child(dependent_launches, "sm_90"), 0);
}

static int misuse(void) {
    int errors = 0;
    uint64_t data = 0, words[4] = {0};
    uint32_t n = 4;
    void *function, *params[] = {&data, &n}, *other;
    EXPECT(gpu.function(&function, module, "absent") == 500);
    EXPECT(gpu.function(&function, NULL, "empty") == 400);
    EXPECT(gpu.alloc(&data, 0) == 1);
    EXPECT(gpu.alloc(&data, (size_t)1 << 40) == 2);
    EXPECT(gpu.alloc(&data, 16) == 0);
    EXPECT(gpu.upload(data, words, 17) == 1);
    EXPECT(gpu.upload(data + 8, words, 8) == 0);
    EXPECT(gpu.download(words, data, 16) == 0);
    EXPECT(gpu.fill(data, 1, 16) == 0);
    EXPECT(gpu.launch(add_one, 1, 1, 1, 32, 1, 1, 0, (void *)words, params, NULL) == 400);
    EXPECT(gpu.launch(add_one, 1, 1, 1, 513, 1, 1, 0, NULL, params, NULL) == 1);
    EXPECT(gpu.launch(add_one, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL) == 0);
    EXPECT(gpu.download(words, data, 16) == 0 && words[0] == 0x0101010201010102ull);
    EXPECT(gpu.release_memory(data + 4) == 1);
    EXPECT(gpu.release_memory(data) == 0);
    EXPECT(gpu.release_memory(data) == 1);
    EXPECT(gpu.load(&other, "\177ELF", 0, NULL, NULL) == 209);
    EXPECT(gpu.load(&other, "no PTX", 0, NULL, NULL) == 218);
    EXPECT(gpu.set_current(NULL) == 0);
    EXPECT(gpu.alloc(&data, 16) == 201);
    EXPECT(gpu.load(&other, counting, 0, NULL, NULL) == 201);
    EXPECT(gpu.set_current(gpu.context) == 0);
    EXPECT(gpu.unload(module) == 0);
    EXPECT(gpu.unload(module) == 400);
    EXPECT(gpu.launch(add_one, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL) == 400);
    return errors;
}

static void entry_points(void **state) {
    (void)state;
    assert_int_equal(in_child(misuse, "sm_90"), 0);
}

/* Contexts, streams and arrays each belong to one of the devices. */
static int two_devices(void) {
    int (*count)(int *), (*device)(int *), (*create)(void **, unsigned), (*context_of)(void *, void **);
    int (*attribute)(void *, int, uint64_t);
    int errors = 0, number = 0;
    uint64_t data;
    void *other, *none, *stream;
    LOOK_UP(count, "cuDeviceGetCount");
    LOOK_UP(device, "cuCtxGetDevice");
    LOOK_UP(create, "cuStreamCreate");
    LOOK_UP(context_of, "cuStreamGetCtx");
    LOOK_UP(attribute, "cuPointerGetAttribute");
    EXPECT(count(&number) == 0 && number == 2);
    EXPECT(gpu.retain(&none, 2) == 101 && gpu.retain(&none, -1) == 101);
    EXPECT(gpu.retain(&other, 1) == 0 && other != gpu.context);
    EXPECT(device(&number) == 0 && number == 0);
    EXPECT(gpu.set_current(other) == 0);
    EXPECT(device(&number) == 0 && number == 1);
    EXPECT(gpu.alloc(&data, 16) == 0);
    EXPECT(launch_empty(1, 32, 0) == 400); /* a function of the first device */
    EXPECT(create(&stream, 1) == 0);
    EXPECT(gpu.set_current(gpu.context) == 0);
    EXPECT(attribute(&number, 9, data) == 0 && number == 1);
    EXPECT(context_of(stream, &none) == 0 && none == other);
    EXPECT(context_of(NULL, &none) == 0 && none == gpu.context);
    EXPECT(context_of(&number, &none) == 400);
    EXPECT(gpu.launch(empty, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL) == 400);
    EXPECT(gpu.release(1) == 0 && gpu.release(1) == 201);
    EXPECT(gpu.download(&number, data, 4) == 1); /* it went with its context */
    EXPECT(launch_empty(1, 32, 0) == 0);
    return errors;
}

static int no_errors(void) {
    return 0;
}

static void devices(void **state) {
    (void)state;
    setenv("PTXSIM_DEVICES", "2", 1);
    assert_int_equal(in_child(two_devices, "sm_90"), 0);
    setenv("PTXSIM_DEVICES", "9", 1);
    assert_int_equal(in_child(no_errors, "sm_90"), 1);
    unsetenv("PTXSIM_DEVICES");
}

enum { WORKERS = 4, ROUNDS = 50 };

static void *work(void *unused) {
    uint64_t data;
    uint32_t words[32] = {0}, n = 32;
    void *params[] = {&data, &n};
    intptr_t errors = 0;
    (void)unused;
    EXPECT(gpu.set_current(gpu.context) == 0);
    EXPECT(gpu.alloc(&data, sizeof words) == 0);
    EXPECT(gpu.upload(data, words, sizeof words) == 0);
    for (int i = 0; i < ROUNDS; i++)
        EXPECT(gpu.launch(add_one, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL) == 0);
    EXPECT(gpu.download(words, data, sizeof words) == 0);
    EXPECT(words[0] == ROUNDS && words[31] == ROUNDS);
    return (void *)errors;
}

static int threads(void) {
    pthread_t workers[WORKERS];
    int errors = 0;
    for (int i = 0; i < WORKERS; i++)
        EXPECT(pthread_create(&workers[i], NULL, work, NULL) == 0);
    for (int i = 0; i < WORKERS; i++) {
        void *result;
        EXPECT(pthread_join(workers[i], &result) == 0 && result == NULL);
    }
    return errors;
}

static void many_threads(void **state) {
    (void)state;
    assert_int_equal(in_child(threads, "sm_90"), 0);
}

/* Marks are comments. The words are written, and a block is blank. */
static const char marked[] =
    HEADER "//?1 0+00000001\n//?2 0-00000001 1+00000002\n"
           ".visible .entry add_some(\n.param .u64 data\n)\n{\n.reg .pred %p;\n.reg .b32 %r<4>;\n.reg .b64 %rd<2>;\n"
           "ld.param.u64 %rd1, [data];\nld.global.u32 %r1, [%rd1];\n/*=0*/mov.u32 %r2, 0x00000003;\n"
           "/*2*/ add.u32 %r1, %r1, %r2;\nsetp.ne.u32 %p, %r2, 3;\n/*1*/@%p bra L2;\n//!1\nadd.u32 %r1, %r1, 10;\n"
           "          \n    \n//!0\nL1:\n/* a remark */ st.global.u32 [%rd1], %r1;\n//!2\nL2:\n//!0\n/*2*/ret;\n}\n";

static int run_marked(void) {
    void *marked_module, *add_some;
    uint64_t data;
    uint32_t word = 5;
    void *params[] = {&data};
    int errors = 0;
    EXPECT(gpu.load(&marked_module, marked, 0, NULL, NULL) == 0);
    EXPECT(gpu.function(&add_some, marked_module, "add_some") == 0);
    EXPECT(gpu.alloc(&data, sizeof word) == 0);
    EXPECT(gpu.upload(data, &word, sizeof word) == 0);
    EXPECT(gpu.launch(add_some, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL) == 0);
    EXPECT(gpu.download(&word, data, sizeof word) == 0);
    EXPECT(word == 18);
    return errors;
}

static void marks(void **state) {
    (void)state;
    assert_int_equal(in_child(run_marked, "sm_90"), 0);
}

static void coverage(void **state) {
    char path[] = "/tmp/ptxsim_coverage_XXXXXX", line[256];
    int executed = 0, missed = 0, file = mkstemp(path);
    (void)state;
    assert_true(file >= 0);
    setenv("PTXSIM_COVERAGE", path, 1);
    assert_int_equal(in_child(threads, "sm_90"), 0);
    unsetenv("PTXSIM_COVERAGE");
    FILE *stream = fdopen(file, "r");
    assert_non_null(stream);
    while (fgets(line, sizeof line, stream)) {
        char kernel[64];
        unsigned number;
        int hit;
        assert_int_equal(sscanf(line, "%63s %u %d", kernel, &number, &hit), 3);
        executed += hit;
        missed += !hit;
    }
    fclose(stream);
    unlink(path);
    /* All of add_one; the other kernel's only line is not run, and the end of a body is no line. */
    assert_int_equal(missed, 1);
    assert_int_equal(executed, 11);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_limits), cmocka_unit_test(cluster_sizes), cmocka_unit_test(dependent),
        cmocka_unit_test(entry_points),  cmocka_unit_test(devices),       cmocka_unit_test(many_threads),
        cmocka_unit_test(marks),         cmocka_unit_test(coverage),
    };
    if (argc < 2) {
        fprintf(stderr, "usage: %s LIBRARY\n", argv[0]);
        return 2;
    }
    library = argv[1];
    return cmocka_run_group_tests_name("driver", tests, NULL, NULL);
}
