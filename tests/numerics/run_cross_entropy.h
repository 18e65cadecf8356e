/* One call of gpuloss_cross_entropy, and its check against the reference. */
#ifndef TESTS_NUMERICS_RUN_CROSS_ENTROPY_H
#define TESTS_NUMERICS_RUN_CROSS_ENTROPY_H

#include "data.h"
#include "harness.h"
#include "reference.h"

enum {
    CE_OUT_LOSS = 1,
    CE_OUT_LOSS_ROWS = 2,
    CE_OUT_LSE = 4,
    CE_OUT_GRAD = 8,
    CE_OUT_BAD_TARGETS = 16,
    CE_OUT_ALL = 31
};

typedef struct ce_case {
    gpuloss_dtype dtype;
    gpuloss_index_type index_type;
    gpuloss_reduction reduction;
    int64_t rows, classes;
    const double *x;
    const int64_t *targets;
    unsigned outputs; /* CE_OUT_LOSS is dropped for reduction NONE, CE_OUT_LSE with lse_in */
    bool in_place;
    stride_kind logits_stride, grad_stride;
    int logits_offset, grad_offset, target_offset, result_offset; /* in elements */
    bool use_ignore_index;
    int64_t ignore_index;
    bool use_grad_scale;
    double grad_scale;
    const double *grad_loss, *grad_loss_rows, *lse_in; /* NULL: not given */
    bool own_workspace;
    size_t guard;
    struct CUstream_st *stream;
} ce_case;

/* f32 forward and gradient of mean, i64 targets, everything packed. */
ce_case ce_case_of(gpuloss_dtype dtype, int64_t rows, int64_t classes, const double *x, const int64_t *targets);

/* What came back, widened; NULL and 0 where it was not asked for. */
typedef struct ce_result {
    double loss;
    int64_t bad_targets;
    double *loss_rows, *lse, *grad;
} ce_result;

void ce_run(const ce_case *c, ce_result *result, report *r);
void ce_check(const ce_case *c, const ce_result *result, report *r);
/* The results have the same bits. */
void ce_same(const ce_case *c, const ce_result *a, const ce_result *b, report *r);
void ce_free(ce_result *result);

/* ce_run, ce_check, case_done. `what` is named when it fails. */
void ce_test(const ce_case *c, const char *what);

/* "what: dtype rows x classes ..." for a report. */
void ce_describe(const ce_case *c, const char *what, char *text, size_t size);

#endif
