#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

driver_functions driver;
int is_small;

const char *driver_path(void) {
    return getenv("GPULOSS_DRIVER");
}

void skip_because(const char *reason, const char *detail) {
    printf("  skipped: %s %s\n", reason, detail);
    skip();
}

/* Why there is no GPU, or NULL. */
static const char *find_driver(void) {
    const char *path = driver_path();
    void *library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW), *symbol;
    int device;
    if (library == NULL)
        return dlerror();
#define FIND(field, name, arguments)                                                                                   \
    symbol = dlsym(library, name);                                                                                     \
    memcpy(&driver.field, &symbol, sizeof symbol);
    DRIVER_FUNCTIONS(FIND)
#undef FIND
    if (driver.init == NULL || driver.init(0) != 0)
        return "cuInit fails";
    return driver.device_get(&device, 0) != 0 ? "there is no GPU" : NULL;
}

void require_gpu(void) {
    const char *required = getenv("GPULOSS_REQUIRE_GPU"), *reason = find_driver();
    if (reason == NULL)
        return;
    if (required != NULL && strcmp(required, "1") == 0)
        fail_msg("GPULOSS_REQUIRE_GPU=1, but %s", reason);
    skip_because("no GPU:", reason);
}

void require_function(int is_there, const char *field) {
#define NAME(name, symbol, arguments)                                                                                  \
    if (!is_there && strcmp(field, #name) == 0)                                                                        \
        skip_because("the driver has no", symbol);
    DRIVER_FUNCTIONS(NAME)
#undef NAME
}

void note(const char *what, const char *message) {
    printf("  note: %s%s\n", what, message);
}

void must(int code, const char *call, const char *file, int line) {
    if (code != 0)
        fail_msg("%s:%d: %s: the driver says %d", file, line, call, code);
}

void expect_status(gpuloss_status got, gpuloss_status expected, const char *call, const char *file, int line) {
    if (got != expected)
        fail_msg("%s:%d: %s: %s instead of %s (last message: %s)", file, line, call, gpuloss_status_name(got),
                 gpuloss_status_name(expected), gpuloss_last_error());
}

void expect_code_in_message(int code) {
    char word[32];
    (void)snprintf(word, sizeof word, "(got error %d: ", code);
    if (strstr(gpuloss_last_error(), word) == NULL)
        fail_msg("the message has not the code %d: %s", code, gpuloss_last_error());
}

gpuloss_context *new_context(unsigned flags) {
    gpuloss_create_desc desc;
    gpuloss_context *context;
    memset(&desc, 0, sizeof desc);
    desc.driver_path = driver_path();
    desc.flags = flags;
    EXPECT(gpuloss_create(&context, &desc), GPULOSS_OK);
    return context;
}

struct CUctx_st *use_primary(void) {
    struct CUctx_st *primary;
    MUST(driver.primary_retain(&primary, 0));
    MUST(driver.context_set(primary));
    return primary;
}

struct CUctx_st *current_context(void) {
    struct CUctx_st *current = NULL;
    return driver.context_current(&current) == 0 ? current : NULL;
}

struct CUstream_st *new_stream(unsigned flags) {
    struct CUstream_st *stream;
    MUST(driver.stream_create(&stream, flags));
    return stream;
}
