/* Cases of gpuloss_kl_div by their options, with inputs for them. */
#ifndef TESTS_NUMERICS_DIVERGENCE_CASES_H
#define TESTS_NUMERICS_DIVERGENCE_CASES_H

#include "run_kl_div.h"

enum { KL_KINDS = 3, KL_KIND_PAIRS = KL_KINDS * KL_KINDS };

/* The divergences, Jensen-Shannon with several beta: at 0 and 1 it is one of the KL. */
enum { CHOICE_FORWARD, CHOICE_REVERSE, CHOICE_JS_HALF, CHOICE_TV, CHOICE_JS, CHOICE_JS_0, CHOICE_JS_1, CHOICES };

enum {
    KL_WITH_TEMPERATURE = 1,
    KL_WITH_SQUARE = 2, /* of the temperature */
    KL_WITH_EPS = 4,
    KL_WITH_ROW_WEIGHTS = 8,
    KL_WITH_LABELS = 16,
    KL_WITH_DIVISOR = 32,
    KL_WITH_SETS = 64,
    KL_WITH_ALL = 63
};

typedef struct divergence_shape {
    int64_t rows, classes;
} divergence_shape;

/* `pair`: of kinds, the input changes first. Every output is requested; the reduction is mean. */
kl_case divergence_case(gpuloss_dtype dtype, gpuloss_dtype target_dtype, divergence_shape shape, unsigned pair,
                        unsigned choice);
/* Sets the options that are valid for the kinds and the divergence. */
void divergence_options(kl_case *c, unsigned options, uint64_t seed, kl_inputs *in);
/* The inputs of a case. An odd seed exchanges the two distributions. */
kl_inputs divergence_inputs(kl_case *c, distribution_kind kind, unsigned options, uint64_t seed);

/* Everything else that a case can choose, in periods that share no factor where they can. */
void divergence_vary(kl_case *c, unsigned number);

#endif
