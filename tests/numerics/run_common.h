/* The parts of a call of any loss: its small operands, its results taken back, and the call made again. */
#ifndef TESTS_NUMERICS_RUN_COMMON_H
#define TESTS_NUMERICS_RUN_COMMON_H

#include "harness.h"

enum { REDUCTION_COUNT = 4 };
extern const gpuloss_reduction all_reductions[REDUCTION_COUNT];
const char *reduction_name(gpuloss_reduction reduction);
size_t index_size(gpuloss_index_type type);

/* Multiples of a quarter from -1 to 1, repeated; to be freed. */
double *quarters(int64_t count);

/* `count` numbers of the type that results have for inputs of `dtype`: given, or wanted and poisoned. */
operand result_input(const char *name, gpuloss_dtype dtype, int64_t count, int offset, size_t guard,
                     const double *values);
operand result_output(const char *name, gpuloss_dtype dtype, int64_t count, int offset, size_t guard);
/* Poisoned; an operand that is not wanted for no bytes. */
operand workspace_of(size_t bytes, size_t guard);
void operands_free(operand *const *operands, size_t count);
/* Checks that nothing was written to the operands that are wanted. */
void operands_unchanged(operand *const *operands, size_t count, report *r);

/* Zeros, which a call adds to; only for an operand that is wanted. */
void operand_zero(operand *o);
/* The array from a row on, NULL for NULL. `stride`: in elements of `size` bytes. */
void *from_row(const void *array, int64_t row, int64_t stride, size_t size);

/* The stride in a desc: 0 for packed rows, and for an operand that is not wanted. */
int64_t given_stride(stride_kind kind, const operand *o);

/* The contents of an output, widened, of which every element must have been written; NULL and 0 for one that is not
 * wanted. */
double *take_values(operand *o, gpuloss_dtype dtype, report *r);
double take_value(operand *o, gpuloss_dtype dtype, report *r);
int64_t *take_integers(operand *o, report *r);
int64_t take_integer(operand *o, report *r);
/* The same for a gradient, which may lie over the input; otherwise the input must be unchanged. */
double *take_gradient(operand *grad, operand *input, bool over_input, gpuloss_dtype dtype, report *r);

/* The factor of a gradient: the product of the factors that are given. */
long double gradient_factor(bool use_grad_scale, double grad_scale, const double *grad_loss);

/* A call that was made, and may be made again: its desc, its desc with the caller's workspace, and its operands but for
 * the workspace. */
typedef gpuloss_status call_function(gpuloss_context *context, const void *desc, struct CUstream_st *stream);
typedef struct made_call {
    call_function *function;
    const void *desc, *desc_with_workspace;
    operand *const *operands;
    size_t count;
} made_call;

/* Makes the call again until it was made `runs` times, on another stream and with the workspace in between. Each time
 * the memory that the first call wrote has its old contents again, and must get the same bits. */
void repeat_call(const made_call *made, int runs, report *r);

#endif
