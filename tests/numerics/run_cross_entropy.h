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
    CE_OUT_ALL = 31,
    CE_OUT_Z_LOSS = 32,
    CE_OUT_Z_LOSS_ROWS = 64,
    CE_OUT_ARGMAX = 128,
    CE_OUT_CORRECT = 256,
    CE_OUT_GRAD_TARGETS = 512,
    CE_OUT_EVERY = 1023,
    CE_OUT_SHARD_ROWS = 1024 /* with total_classes */
};

/* The numbers of a gpuloss_shard_row. */
enum { CE_SHARD_NUMBERS = sizeof(gpuloss_shard_row) / sizeof(double) };

typedef struct ce_case {
    gpuloss_dtype dtype, grad_dtype, target_dtype; /* the latter two unset: dtype */
    gpuloss_index_type index_type;
    gpuloss_reduction reduction;
    int64_t rows, classes, inner;
    const double *x;
    const int64_t *targets;
    const double *target_probabilities; /* instead of targets */
    /* Outputs that a call cannot give are dropped: the sums for reduction NONE, lse with lse_in, correct and
     * bad_targets with target_probabilities, their gradient without them. */
    unsigned outputs;
    bool in_place, targets_in_place;
    stride_kind logits_stride, grad_stride, targets_stride, grad_targets_stride;
    int logits_offset, grad_offset, target_offset, grad_target_offset, result_offset; /* in elements */
    bool use_ignore_index;
    int64_t ignore_index;
    const double *class_weights, *row_weights; /* NULL: not given */
    double label_smoothing, lse_square_scale, logit_scale, softcap, divisor;
    bool divisor_on_device;
    int64_t chunk; /* rows of a call, whole images; 0: all. A mean without a divisor takes that of the device */
    bool use_grad_scale;
    double grad_scale;
    const double *grad_loss, *grad_loss_rows, *lse_in; /* NULL: not given */
    bool own_workspace;
    int runs;                            /* more than one: must give the same bits */
    int64_t total_classes, class_offset; /* of a shard of the vocabulary; 0: it is whole */
    int shards;                          /* number of shards that the results are, or will be, combined from; 0: none */
    const double *shard_rows;            /* [shards, rows] of gpuloss_shard_row; then the call is one of combine */
    size_t guard;
    struct CUstream_st *stream;
} ce_case;

/* f32 forward and gradient of mean, i64 targets, everything packed. */
ce_case ce_case_of(gpuloss_dtype dtype, int64_t rows, int64_t classes, const double *x, const int64_t *targets);

unsigned ce_outputs(const ce_case *c);
bool ce_has_divisor(const ce_case *c); /* of chunks, from the device */
gpuloss_dtype ce_grad_dtype(const ce_case *c);
gpuloss_dtype ce_target_dtype(const ce_case *c);

/* The results, widened; NULL and 0 where they were not requested. */
typedef struct ce_result {
    double loss, z_loss, divisor; /* the latter of chunks */
    int64_t bad_targets, correct;
    int64_t *argmax;
    double *loss_rows, *z_loss_rows, *lse, *grad, *grad_targets, *shard_rows;
} ce_result;

void ce_run(const ce_case *c, ce_result *result, report *r);
/* The same from `shards` parts of the vocabulary, with first classes firsts[0] = 0, firsts[1], .... First each part by
 * itself, then their combination, then the gradient of each from the lse. */
void ce_run_sharded(const ce_case *c, const int64_t *firsts, int shards, ce_result *result, report *r);
void ce_free(ce_result *result);

/* The exact results of a call, and the largest error of each. `ref` has probability, grad and, with
 * target_probabilities, their gradient where gradients are expected. */
typedef struct ce_expected {
    reference_cross_entropy ref;
    long double loss, z_loss;                                         /* bounds of their errors */
    long double *loss_rows, *z_loss_rows, *lse, *grad, *grad_targets; /* bounds of the errors of each element */
} ce_expected;
void ce_expect(const ce_case *c, bool gradients, ce_expected *e);
void ce_expected_free(ce_expected *e);

void ce_check(const ce_case *c, const ce_result *result, report *r);

/* ce_run, ce_check, case_done. `what` is named when it fails. */
void ce_test(const ce_case *c, const char *what);
/* The same of a forward call in two parts of the vocabulary. */
void ce_test_shards(const ce_case *whole, int64_t second, const char *what);

/* "what: dtype rows x classes ..." for a report. */
enum { CE_DESCRIPTION = 640 };
void ce_describe(const ce_case *c, const char *what, char *text, size_t size);

#endif
