/* One call of gpuloss_kl_div_sparse, and its check against the reference. */
#ifndef TESTS_NUMERICS_RUN_KL_DIV_SPARSE_H
#define TESTS_NUMERICS_RUN_KL_DIV_SPARSE_H

#include "harness.h"
#include "reference_kl_div_sparse.h"

enum { SPARSE_OUT_LOSS = 1, SPARSE_OUT_LOSS_ROWS = 2, SPARSE_OUT_GRAD = 4, SPARSE_OUT_BAD = 8, SPARSE_OUT_ALL = 15 };

typedef struct sparse_case {
    gpuloss_dtype dtype, value_dtype; /* the latter unset: dtype */
    gpuloss_index_type index_type, label_type;
    gpuloss_kind value_kind;
    gpuloss_residual residual;
    gpuloss_divergence divergence;
    gpuloss_reduction reduction;
    int64_t rows, classes, k;
    const double *logits, *values;
    const int64_t *indices;
    unsigned outputs; /* SPARSE_OUT_LOSS is dropped for reduction NONE */
    bool in_place;
    stride_kind logits_stride, indices_stride, values_stride, grad_stride;
    int logits_offset, indices_offset, values_offset, grad_offset, result_offset; /* in elements */
    bool temperature_squared;
    double beta, temperature, divisor;
    bool divisor_on_device;
    int64_t chunk;             /* rows of a call; 0: all. A mean without a divisor takes that of the device */
    const double *row_weights; /* NULL: not given */
    const int64_t *labels;     /* NULL: not given; else ignore_index is used */
    int64_t ignore_index;
    bool use_grad_scale;
    double grad_scale;
    const double *grad_loss, *grad_loss_rows; /* NULL: not given */
    bool own_workspace;
    int runs; /* more than one: must give the same bits */
    size_t guard;
    struct CUstream_st *stream;
} sparse_case;

unsigned sparse_outputs(const sparse_case *c);
bool sparse_has_divisor(const sparse_case *c); /* of chunks, from the device */
gpuloss_dtype sparse_value_dtype(const sparse_case *c);

/* The results, widened; NULL and 0 where they were not requested. */
typedef struct sparse_result {
    double loss, divisor; /* the latter of chunks */
    int64_t bad_indices;
    double *loss_rows, *grad;
} sparse_result;

void sparse_run(const sparse_case *c, sparse_result *result, report *r);
void sparse_check(const sparse_case *c, const sparse_result *result, report *r);
void sparse_free(sparse_result *result);

enum { SPARSE_DESCRIPTION = 512 };
void sparse_describe(const sparse_case *c, const char *what, char *text, size_t size);

/* sparse_run, sparse_check, case_done. `what` is named when it fails. */
void sparse_test(const sparse_case *c, const char *what);

/* The exact results of a call, and the largest error of each. */
typedef struct sparse_expected {
    reference_sparse ref;
    long double loss;              /* bound of its error */
    long double *loss_rows, *grad; /* bounds of the errors of each element */
} sparse_expected;
void sparse_expect(const sparse_case *c, sparse_expected *e);
void sparse_expected_free(sparse_expected *e);

#endif
