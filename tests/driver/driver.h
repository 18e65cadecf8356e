/* The driver functions that a program calls beside the library, and helpers of the tests in this folder. */
#ifndef TESTS_DRIVER_DRIVER_H
#define TESTS_DRIVER_DRIVER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../../gpuloss.h"

/* The driver's functions: X(field, symbol, arguments). Handles of graphs are void pointers here. */
#define DRIVER_FUNCTIONS(X)                                                                                            \
    X(init, "cuInit", (unsigned))                                                                                      \
    X(device_get, "cuDeviceGet", (int *, int))                                                                         \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (struct CUctx_st **, int))                                           \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", (int))                                                          \
    X(primary_reset, "cuDevicePrimaryCtxReset_v2", (int))                                                              \
    X(context_create, "cuCtxCreate_v2", (struct CUctx_st **, unsigned, int))                                           \
    X(context_destroy, "cuCtxDestroy_v2", (struct CUctx_st *))                                                         \
    X(context_current, "cuCtxGetCurrent", (struct CUctx_st **))                                                        \
    X(context_set, "cuCtxSetCurrent", (struct CUctx_st *))                                                             \
    X(stream_create, "cuStreamCreate", (struct CUstream_st **, unsigned))                                              \
    X(stream_destroy, "cuStreamDestroy_v2", (struct CUstream_st *))                                                    \
    X(stream_synchronize, "cuStreamSynchronize", (struct CUstream_st *))                                               \
    X(stream_capturing, "cuStreamIsCapturing", (struct CUstream_st *, int *))                                          \
    X(capture_begin, "cuStreamBeginCapture_v2", (struct CUstream_st *, int))                                           \
    X(capture_end, "cuStreamEndCapture", (struct CUstream_st *, void **))                                              \
    X(graph_nodes, "cuGraphGetNodes", (void *, void **, size_t *))                                                     \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", (void **, void *, unsigned long long))                         \
    X(graph_launch, "cuGraphLaunch", (void *, struct CUstream_st *))                                                   \
    X(graph_exec_destroy, "cuGraphExecDestroy", (void *))                                                              \
    X(graph_destroy, "cuGraphDestroy", (void *))

#define DRIVER_FIELD(field, symbol, arguments) int(*field) arguments;
typedef struct driver_functions {
    DRIVER_FUNCTIONS(DRIVER_FIELD)
} driver_functions;
#undef DRIVER_FIELD
extern driver_functions driver;

enum {
    CODE_UNSUPPORTED_IN_CAPTURE = 900,
    CODE_CAPTURE_INVALIDATED = 901,
    CODE_CAPTURE_IMPLICIT = 906,
    STREAM_BLOCKING = 0, /* it waits for the default stream, which waits for it */
    STREAM_NON_BLOCKING = 1,
    CAPTURE_GLOBAL = 0,
    CAPTURE_THREAD_LOCAL = 1,
    CAPTURE_RELAXED = 2,
    CAPTURE_ACTIVE = 1, /* a status of cuStreamIsCapturing */
    MESSAGE_BYTES = 1024
};

/* Sizes for a slow executor of the kernels. */
extern int is_small;
/* GPULOSS_DRIVER, or NULL for the driver that the library finds. */
const char *driver_path(void);

/* First in every test: the driver is found and has a GPU. Else the test is skipped, or fails where a GPU is required. */
void require_gpu(void);
/* The test is skipped where the driver lacks a function. */
#define REQUIRE_FUNCTION(field) require_function(driver.field != NULL, #field)
void require_function(int is_there, const char *field);
void skip_because(const char *reason, const char *detail);

/* Prints a line that is no failure, about the driver's behaviour where the header leaves it open. */
void note(const char *what, const char *message);

/* Fails the test unless the driver's code is 0. */
#define MUST(call) must((call), #call, __FILE__, __LINE__)
void must(int code, const char *call, const char *file, int line);
/* Fails the test unless the status is the expected one. */
#define EXPECT(status, expected) expect_status((status), (expected), #status, __FILE__, __LINE__)
void expect_status(gpuloss_status got, gpuloss_status expected, const char *call, const char *file, int line);
/* The last message holds the driver's code. */
void expect_code_in_message(int code);

/* A gpuloss_context on the current CUcontext, or the primary one. */
gpuloss_context *new_context(unsigned flags);
/* The GPU's primary CUcontext, retained and current. */
struct CUctx_st *use_primary(void);
/* The calling thread's CUcontext, or NULL. */
struct CUctx_st *current_context(void);
struct CUstream_st *new_stream(unsigned flags);

/* Every test by its name, which begins with its group's. */
typedef struct test_list {
    const struct CMUnitTest *tests;
    size_t count;
} test_list;
extern const test_list capture_tests, beside_tests, default_stream_tests, context_tests, reset_tests;
#define TEST_LIST(tests)                                                                                               \
    { (tests), sizeof(tests) / sizeof(tests)[0] }

#endif
