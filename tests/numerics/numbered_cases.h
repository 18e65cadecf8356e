/* Cases of gpuloss_cross_entropy whose choices are the digits of a number, from the lowest on. A search over random
 * numbers finds the ones that execute code of the kernels that no other case does. */
#ifndef TESTS_NUMERICS_NUMBERED_CASES_H
#define TESTS_NUMERICS_NUMBERED_CASES_H

#include "option_cases.h"

/* The choices. Each has a digit of the number, and as many values as `choices` says. */
enum {
    CHOICE_FAMILY, /* of shapes */
    CHOICE_DTYPE,
    CHOICE_CLASSES, /* from the fewest to the most of the family */
    CHOICE_WHOLE,   /* whether the classes are whole vectors */
    CHOICE_ROWS,
    CHOICE_INNER,
    CHOICE_OPTIONS, /* a set of options, probabilities among them */
    CHOICE_TYPE,    /* of indices or of target probabilities */
    CHOICE_GRAD_DTYPE,
    CHOICE_OUTPUTS,
    CHOICE_REDUCTION,
    CHOICE_LAYOUT,
    CHOICE_VALUES,
    CHOICE_WEIGHTS,
    CHOICE_LSE, /* whether the lse is given */
    CHOICE_UPSTREAM,
    CHOICE_DIVISOR,
    CHOICE_IN_PLACE,
    CHOICE_SOFTCAP,
    CHOICE_SIGN, /* of the scale */
    CHOICE_BAD_TARGET,
    CHOICE_SEED,
    CHOICE_CHUNKS, /* whether the rows are two chunks */
    CHOICES
};
extern const unsigned choices[CHOICES];

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
