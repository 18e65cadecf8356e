/* Cases of gpuloss_cross_entropy whose choices are the digits of a number, from the lowest on. A search over random
 * numbers finds the ones that execute code of the kernels that no other case does. */
#ifndef TESTS_NUMERICS_NUMBERED_CASES_H
#define TESTS_NUMERICS_NUMBERED_CASES_H

#include "option_cases.h"

/* The digits. `digit_values` has the number of values of each. */
enum {
    DIGIT_FAMILY, /* of shapes */
    DIGIT_DTYPE,
    DIGIT_CLASSES, /* from the fewest to the most of the family */
    DIGIT_WHOLE,   /* whether the classes are whole vectors */
    DIGIT_ROWS,
    DIGIT_INNER,
    DIGIT_OPTIONS, /* a set of options, probabilities among them */
    DIGIT_TYPE,    /* of indices or of target probabilities */
    DIGIT_GRAD_DTYPE,
    DIGIT_OUTPUTS,
    DIGIT_REDUCTION,
    DIGIT_LAYOUT,
    DIGIT_VALUES,
    DIGIT_WEIGHTS,
    DIGIT_LSE, /* whether the lse is given */
    DIGIT_UPSTREAM,
    DIGIT_DIVISOR,
    DIGIT_IN_PLACE,
    DIGIT_SOFTCAP,
    DIGIT_SIGN, /* of the scale */
    DIGIT_BAD_TARGET,
    DIGIT_SEED,
    DIGIT_CHUNKS, /* whether the rows are two chunks */
    DIGITS
};
extern const unsigned digit_values[DIGITS];

/* The memory lives as long as the inputs. */
typedef struct numbered_inputs {
    option_inputs options;
    double *lse, *grad_loss_rows;
} numbered_inputs;

ce_case numbered_case(uint64_t number, numbered_inputs *in);
void numbered_inputs_free(numbered_inputs *in);
/* Checks the case of a number. */
void numbered_test(uint64_t number);

#endif
