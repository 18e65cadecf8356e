/* Calls of every loss, each with its loss and gradients, where later calls read results of earlier ones. */
#ifndef TESTS_DRIVER_WORK_H
#define TESTS_DRIVER_WORK_H

#include "driver.h"

enum { WORK_CALLS = 4 };

typedef struct work {
    gpuloss_context *context;
    struct CUstream_st *copies; /* of inputs and outputs */
    unsigned char *inputs, *outputs, *workspace;
    size_t output_bytes, written_bytes; /* the latter without the gaps between arrays */
    gpuloss_cross_entropy_desc rows, long_rows;
    gpuloss_kl_div_desc divergence;
    gpuloss_kl_div_sparse_desc sparse;
} work;

/* Other numbers for each seed, and other kernels for each type. */
work work_new(gpuloss_context *context, gpuloss_dtype dtype, unsigned seed);
void work_free(work *w);
/* Each call gets device memory of its own for reductions. */
void work_give_workspace(work *w);

/* One of the calls. These have no checks of their own: any thread may make them. */
gpuloss_status work_call(const work *w, int call, struct CUstream_st *stream);
gpuloss_status work_preload(const work *w, int call, struct CUstream_st *stream);
/* All of them, up to the first that fails. */
gpuloss_status work_calls(const work *w, struct CUstream_st *stream);
gpuloss_status work_preloads(const work *w, struct CUstream_st *stream);

/* Every byte of the outputs becomes one that no call leaves there. */
gpuloss_status work_clear(const work *w);
/* The outputs, into output_bytes at `bytes`. */
gpuloss_status work_fetch(const work *w, unsigned char *bytes);

/* The outputs of the calls on the stream, which write every one of them. To be freed. */
unsigned char *work_results(const work *w, struct CUstream_st *stream);
/* Checks that the outputs are `results`, after the test has waited for all work of the GPU. */
void work_expect(const work *w, const unsigned char *results, const char *what);
/* Checks that nothing was written since work_clear. */
void work_expect_clear(const work *w, const char *what);
/* Every call and every preload is refused as not preloaded, for that reason. */
void work_expect_not_preloaded(const work *w, struct CUstream_st *stream, const char *reason);

#endif
