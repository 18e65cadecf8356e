/* Cases of gpuloss_cross_entropy by the set of their options, with inputs for them. */
#ifndef TESTS_NUMERICS_OPTION_CASES_H
#define TESTS_NUMERICS_OPTION_CASES_H

#include "run_cross_entropy.h"

enum {
    OPTION_WEIGHTS = 1,
    OPTION_SMOOTHING = 2,
    OPTION_Z_LOSS = 4,
    OPTION_SOFTCAP = 8,
    OPTION_SCALE = 16,
    OPTION_ROW_WEIGHTS = 32,
    OPTION_IGNORE_INDEX = 64,
    OPTION_SETS = 128,
    OPTION_ALL = 127,
    OPTION_PROBABILITIES = 128 /* for targets */
};

/* The memory lives as long as the inputs. */
typedef struct option_inputs {
    double *x, *t, *class_weights, *row_weights;
    int64_t *targets;
} option_inputs;

typedef struct option_shape {
    int64_t rows, classes, inner;
} option_shape;

/* The layout of a tile's rows in memory: offsets, in elements, of the logits and of the other arrays. */
typedef struct option_layout {
    option_shape shape;
    stride_kind stride;
    int logits_offset, offset;
} option_layout;

/* Every output is requested; the reduction is mean. */
ce_case option_case(gpuloss_dtype dtype, option_shape shape, unsigned options, logits_kind kind, uint64_t seed,
                    option_inputs *in);
/* The same in a layout, with normal logits. */
ce_case option_layout_case(gpuloss_dtype dtype, const option_layout *l, unsigned options, uint64_t seed,
                           option_inputs *in);
/* Gives the target probabilities a type, and rounds them to it. */
void option_target_dtype(ce_case *c, option_inputs *in, gpuloss_dtype dtype);
void option_inputs_free(option_inputs *in);

/* The index type of that number, if the classes fit, and an ignore_index that fits too. */
void option_index_type(ce_case *c, unsigned number);
/* The same, of any number of classes: targets and ignore_index are made to fit. */
void option_index_type_of_any(ce_case *c, unsigned number);
/* The pass of that number: all results, also in place; a forward pass; the loss alone, summed or the mean; or the
 * gradient, also with the loss or from an lse. The lse is returned, and to be freed. */
double *option_pass(ce_case *c, unsigned number);
/* Every other choice of a case, in periods without a common factor where possible. A run over many numbers thus meets
 * the combinations in pairs. */
void option_vary(ce_case *c, unsigned number);

#endif
