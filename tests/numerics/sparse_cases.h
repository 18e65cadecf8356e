/* Cases of gpuloss_kl_div_sparse, with inputs for them. */
#ifndef TESTS_NUMERICS_SPARSE_CASES_H
#define TESTS_NUMERICS_SPARSE_CASES_H

#include "data.h"
#include "run_kl_div_sparse.h"

enum { SPARSE_RESIDUALS = 3, SPARSE_KINDS = 2, SPARSE_INDEX_TYPES = 4 };

/* The divergences of a sparse teacher: each with every residual that is valid for it, Jensen-Shannon with several
 * betas. */
typedef struct sparse_divergence {
    gpuloss_residual residual;
    gpuloss_divergence divergence;
    double beta;
} sparse_divergence;
enum { SPARSE_DIVERGENCES = 18 };
extern const sparse_divergence sparse_divergences[SPARSE_DIVERGENCES];
void sparse_take(sparse_case *c, unsigned number); /* of sparse_divergences, modulo how many there are */
/* Sets another residual. Reverse KL becomes total variation where it needs the bucket. */
void sparse_leave(sparse_case *c, gpuloss_residual residual);

extern const gpuloss_residual sparse_residuals[SPARSE_RESIDUALS];
extern const gpuloss_kind sparse_kinds[SPARSE_KINDS];
extern const gpuloss_index_type sparse_index_types[SPARSE_INDEX_TYPES];

/* The memory lives as long as the inputs. */
typedef struct sparse_inputs {
    double *logits, *values, *row_weights;
    int64_t *indices, *labels;
} sparse_inputs;

typedef struct sparse_shape {
    int64_t rows, classes, k;
} sparse_shape;

/* Batchmean of every output, packed, with probabilities of the dtype at indices of 64 bits and a bucket. Its inputs
 * come from sparse_fill, when the types are settled. */
sparse_case sparse_case_of(gpuloss_dtype dtype, sparse_shape shape);

/* Fills the inputs of a case and points it at them. Each row has different classes in any order, within the index type,
 * whose probabilities add up to about `total`. Row weights and labels are made, but not given. */
void sparse_fill(sparse_case *c, logits_kind kind, double total, uint64_t seed, sparse_inputs *in);
void sparse_inputs_free(sparse_inputs *in);

/* Gives the labels, of which each third row's is ignore_index, and the row weights. */
void sparse_mask(sparse_case *c, const sparse_inputs *in);
void sparse_weigh(sparse_case *c, const sparse_inputs *in);
/* The teacher's first class lies above all others. The rest is too small for a difference of two sums. */
void sparse_raise_first(const sparse_case *c, const sparse_inputs *in, double largest);

/* Everything but the shape and the dtype, in periods without a common factor where possible. A run over many numbers
 * thus meets the combinations in pairs. Before sparse_fill. */
void sparse_vary(sparse_case *c, unsigned number);

#endif
