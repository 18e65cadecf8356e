/* One call of gpuloss_kl_div, and its check against the reference. */
#ifndef TESTS_NUMERICS_RUN_KL_DIV_H
#define TESTS_NUMERICS_RUN_KL_DIV_H

#include "data.h"
#include "harness.h"
#include "reference.h"

enum { KL_OUT_LOSS = 1, KL_OUT_LOSS_ROWS = 2, KL_OUT_LOSS_ELEMENTS = 4, KL_OUT_GRAD = 8, KL_OUT_ALL = 15 };

typedef struct kl_case {
    gpuloss_dtype dtype;
    gpuloss_kind input_kind, target_kind;
    gpuloss_reduction reduction;
    int64_t rows, classes;
    const double *input, *target;
    unsigned outputs; /* KL_OUT_LOSS is dropped for reduction NONE */
    bool in_place;
    stride_kind input_stride, target_stride, grad_stride, elements_stride;
    int input_offset, target_offset, grad_offset, result_offset; /* in elements */
    bool pytorch_zeros;
    double eps;
    bool use_grad_scale;
    double grad_scale;
    const double *grad_loss, *grad_loss_rows; /* NULL: not given */
    bool own_workspace;
    size_t guard;
    struct CUstream_st *stream;
} kl_case;

/* Probabilities on both sides, batchmean, every output, everything packed. */
kl_case kl_case_of(gpuloss_dtype dtype, int64_t rows, int64_t classes, const double *input, const double *target);

/* The same with one of the pairs of kinds, each side probabilities or logarithms, and with no inputs yet. */
enum { KL_PAIRS = 4 };
kl_case kl_case_of_pair(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned pair);

/* The inputs of a case, which is pointed at them. */
typedef struct kl_inputs {
    double *input, *target;
} kl_inputs;
kl_inputs kl_inputs_new(kl_case *c, distribution_kind kind, uint64_t seed);
kl_inputs kl_inputs_unset(kl_case *c); /* for a test that fills them all itself */
void kl_inputs_free(kl_inputs *in);

typedef struct kl_result {
    double loss;
    double *loss_rows, *loss_elements, *grad; /* NULL where it was not asked for */
} kl_result;

void kl_run(const kl_case *c, kl_result *result, report *r);
void kl_check(const kl_case *c, const kl_result *result, report *r);
void kl_same(const kl_case *c, const kl_result *a, const kl_result *b, report *r);
void kl_free(kl_result *result);
void kl_describe(const kl_case *c, const char *what, char *text, size_t size);

/* kl_run, kl_check, case_done. `what` is named when it fails. */
void kl_test(const kl_case *c, const char *what);

/* The reference of a case; its arrays are given back with kl_reference_free. */
void kl_reference(const kl_case *c, reference_kl_div *ref);
void kl_reference_free(reference_kl_div *ref);
/* The bound of the whole reduced loss. */
long double kl_loss_bound(const kl_case *c, const reference_kl_div *ref);

#endif
