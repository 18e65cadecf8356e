/* Calls of every kind. */
#ifndef CALLS_H
#define CALLS_H

#include "check.h"

/* One function's desc is set, the others are zero. */
typedef struct some_call {
    const char *function, *preload; /* names */
    gpuloss_cross_entropy_desc cross_entropy;
    gpuloss_kl_div_desc kl_div;
    gpuloss_kl_div_sparse_desc kl_div_sparse;
} some_call;

/* The n-th call, counted from 0, on arrays of that type; returns 0 where there is none. */
int make_call(int n, const some_dtype *dtype, some_call *call);
gpuloss_status launch_call(gpuloss_context *context, const some_call *call, struct CUstream_st *stream);
gpuloss_status preload_call(gpuloss_context *context, const some_call *call, struct CUstream_st *stream);
void preload_every_call(gpuloss_context *context, gpuloss_dtype dtype);

#endif
