/* Preloaded before libgpuloss.so: says how much a program has not freed when it destroys its context. */
#define _GNU_SOURCE
#include <gpuloss.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int arrays, streams;

typedef gpuloss_status alloc_function(gpuloss_context *, void **, size_t);
typedef gpuloss_status free_function(gpuloss_context *, void *);
typedef gpuloss_status stream_create_function(gpuloss_context *, struct CUstream_st **);
typedef gpuloss_status stream_destroy_function(gpuloss_context *, struct CUstream_st *);
typedef void destroy_function(gpuloss_context *);

/* The library's function of that name, instead of the one here. C has no cast from void * to a pointer to a
 * function. */
static void find(const char *name, void *function) {
    void *const symbol = dlsym(RTLD_NEXT, name);
    if (symbol == NULL) {
        fprintf(stderr, "balance: there is no %s\n", name);
        abort();
    }
    memcpy(function, &symbol, sizeof symbol);
}

gpuloss_status gpuloss_alloc(gpuloss_context *context, void **pointer, size_t bytes) {
    alloc_function *next;
    gpuloss_status status;
    find("gpuloss_alloc", &next);
    status = next(context, pointer, bytes);
    arrays += status == GPULOSS_OK && *pointer != NULL;
    return status;
}

gpuloss_status gpuloss_free(gpuloss_context *context, void *pointer) {
    free_function *next;
    find("gpuloss_free", &next);
    arrays -= pointer != NULL;
    return next(context, pointer);
}

gpuloss_status gpuloss_stream_create(gpuloss_context *context, struct CUstream_st **stream) {
    stream_create_function *next;
    gpuloss_status status;
    find("gpuloss_stream_create", &next);
    status = next(context, stream);
    streams += status == GPULOSS_OK;
    return status;
}

gpuloss_status gpuloss_stream_destroy(gpuloss_context *context, struct CUstream_st *stream) {
    stream_destroy_function *next;
    find("gpuloss_stream_destroy", &next);
    streams--;
    return next(context, stream);
}

void gpuloss_destroy(gpuloss_context *context) {
    destroy_function *next;
    find("gpuloss_destroy", &next);
    printf("balance: %d arrays and %d streams were not freed\n", arrays, streams);
    fflush(stdout);
    next(context);
}
