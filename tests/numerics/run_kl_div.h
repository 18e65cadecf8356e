/* One call of gpuloss_kl_div, and its check against the reference. */
#ifndef TESTS_NUMERICS_RUN_KL_DIV_H
#define TESTS_NUMERICS_RUN_KL_DIV_H

#include "data.h"
#include "harness.h"
#include "reference.h"

enum {
    KL_OUT_LOSS = 1,
    KL_OUT_LOSS_ROWS = 2,
    KL_OUT_LOSS_ELEMENTS = 4,
    KL_OUT_GRAD = 8,
    KL_OUT_ALL = 15,
    KL_OUT_GRAD_TARGET = 16,
    KL_OUT_EVERY = 31
};

typedef struct kl_case {
    gpuloss_dtype dtype, target_dtype; /* the latter unset: dtype */
    gpuloss_kind input_kind, target_kind;
    gpuloss_divergence divergence;
    gpuloss_reduction reduction;
    int64_t rows, classes, inner; /* the arrays below have rows of classes, whatever `inner` is */
    const double *input, *target; /* a target that is shared is in all rows of this array */
    /* Outputs that a call cannot give are dropped: the sum for reduction NONE, grad_target of a shared target. */
    unsigned outputs;
    bool in_place, target_in_place;
    stride_kind input_stride, target_stride, grad_stride, grad_target_stride, elements_stride;
    int input_offset, target_offset, grad_offset, grad_target_offset, result_offset, label_offset; /* in elements */
    bool pytorch_zeros, temperature_squared, shared_target;
    double beta, temperature, eps, divisor;
    bool divisor_on_device;
    int64_t chunk; /* rows of a call, whole images; 0: all. A mean without a divisor takes that of the device */
    const double *row_weights; /* NULL: not given */
    const int64_t *labels;     /* NULL: not given; else ignore_index is used */
    gpuloss_index_type label_type;
    int64_t ignore_index;
    bool use_grad_scale;
    double grad_scale;
    const double *grad_loss, *grad_loss_rows; /* NULL: not given */
    bool own_workspace;
    int runs; /* more than one: must give the same bits */
    size_t guard;
    struct CUstream_st *stream;
} kl_case;

/* Probabilities on both sides, batchmean, every output, everything packed. */
kl_case kl_case_of(gpuloss_dtype dtype, int64_t rows, int64_t classes, const double *input, const double *target);

/* The same with one of the pairs of kinds, each side probabilities or logarithms, and with no inputs yet. */
enum { KL_PAIRS = 4 };
kl_case kl_case_of_pair(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned pair);

unsigned kl_outputs(const kl_case *c);
bool kl_has_divisor(const kl_case *c); /* of chunks, from the device */
gpuloss_dtype kl_target_dtype(const kl_case *c);

/* The inputs of a case, which is pointed at them. */
typedef struct kl_inputs {
    double *input, *target, *row_weights; /* NULL where there is none */
    int64_t *labels;
} kl_inputs;
kl_inputs kl_inputs_new(kl_case *c, distribution_kind kind, uint64_t seed);
kl_inputs kl_inputs_unset(kl_case *c); /* for a test that fills them all itself */
void kl_inputs_free(kl_inputs *in);

typedef struct kl_result {
    double loss, divisor;                                   /* the latter of chunks */
    double *loss_rows, *loss_elements, *grad, *grad_target; /* NULL where not requested */
} kl_result;

void kl_run(const kl_case *c, kl_result *result, report *r);
void kl_check(const kl_case *c, const kl_result *result, report *r);
void kl_same(const kl_case *c, const kl_result *a, const kl_result *b, report *r);
void kl_free(kl_result *result);

enum { KL_DESCRIPTION = 640 };
void kl_describe(const kl_case *c, const char *what, char *text, size_t size);

/* kl_run, kl_check, case_done. `what` is named when it fails. */
void kl_test(const kl_case *c, const char *what);

/* The exact results of a call, and the largest error of each. */
typedef struct kl_expected {
    reference_kl_div ref;
    long double loss;                                    /* bound of its error */
    long double *loss_rows, *terms, *grad, *grad_target; /* bounds of the errors of each element */
} kl_expected;
void kl_expect(const kl_case *c, kl_expected *e);
void kl_expected_free(kl_expected *e);

#endif
