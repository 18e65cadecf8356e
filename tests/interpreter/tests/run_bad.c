/* Every kernel in bad/ must be refused: by the error, and with the words, that its first lines name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENTS = 64 };

static struct gpu gpu;
static const char *folder;

/* Launches on arrays of as many elements as the block has threads: the input initialised, the output not. */
static int launch(void *module, const char *file, unsigned blocks, unsigned threads, unsigned shared,
                  unsigned dependent) {
    struct launch_attribute attribute = {LAUNCH_DEPENDENT, 0, {dependent}};
    struct launch_config config = {{blocks, 1, 1}, {threads, 1, 1}, shared, NULL, &attribute, 1};
    uint32_t words[ELEMENTS] = {0}, n = threads;
    uint64_t in, out;
    void *function, *params[] = {&in, &out, &n};
    assert_true(threads <= ELEMENTS);
    assert_int_equal(gpu.alloc(&in, threads * 4), 0);
    assert_int_equal(gpu.alloc(&out, threads * 4), 0);
    assert_int_equal(gpu.upload(in, words, threads * 4), 0);
    assert_int_equal(gpu.function(&function, module, "kernel"), 0);
    if (strcmp(file, "use_after_free.ptx") == 0)
        assert_int_equal(gpu.release_memory(in), 0);
    assert_int_equal(gpu.launch_ex(&config, function, params, NULL), 0);
    int error = gpu.synchronize();
    /* The error stays until the context has gone. */
    assert_int_equal(gpu.synchronize(), error);
    assert_int_equal(gpu.download(words, out, threads * 4), error);
    return error;
}

static void refused(void **state) {
    const char *file = *state;
    char *text = read_text(folder, file), log[1024] = "", says[256];
    int options[] = {5, 6}, error;
    void *values[] = {log, (void *)(uintptr_t)sizeof log}, *module;
    unsigned want, blocks, threads, shared, dependent = 0;
    const char *at = strstr(text, "//! error ");
    assert_non_null(at);
    int found = sscanf(at, "//! error %u blocks %u threads %u shared %u dependent %u", &want, &blocks, &threads,
                       &shared, &dependent);
    assert_in_range(found, 4, 5);
    at = strstr(text, "//! says ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "//! says %255[^\n]", says), 1);
    error = gpu.load(&module, text, 2, options, values);
    const char *message = log;
    if (!error) {
        error = launch(module, file, blocks, threads, shared, dependent);
        message = gpu.last_fault();
        gpu_reset(&gpu);
    }
    if (error != (int)want || !strstr(message, says))
        fprintf(stderr, "%s: error %d, wanted %u; message: %s; wanted: %s\n", file, error, want, message, says);
    assert_int_equal(error, want);
    assert_non_null(strstr(message, says));
    assert_non_null(strstr(message, "line "));
    free(text);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s LIBRARY FOLDER\n", argv[0]);
        return 2;
    }
    folder = argv[2];
    setenv("PTXSIM_STEPS", "100000", 1);
    gpu_open(&gpu, argv[1]);
    if (!gpu.last_fault) {
        fprintf(stderr, "these kernels are for the interpreter only\n");
        return 2;
    }
    int failed = run_folder("bad kernels", folder, refused);
    gpu.release(0);
    return failed;
}
