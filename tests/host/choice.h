/* Shared by the tests of the kernel that a call of cross-entropy takes. */
#ifndef TESTS_HOST_CHOICE_H
#define TESTS_HOST_CHOICE_H

#include "check.h"

extern gpuloss_context *choice_context;

/* Runs the call on the kernel of that name; "clusters" and "pipeline" are one kernel, in clusters and without, and so are
 * "registers" and "memory", which are "row_memory" with rows in registers and without. */
const fake_launched *expect_kernel(const gpuloss_cross_entropy_desc *d, const char *name, int line);
/* A call `d` that differs from `base` in one change. */
#define TAKES(change, name)                                                                                            \
    do {                                                                                                               \
        d = base;                                                                                                      \
        change;                                                                                                        \
        expect_kernel(&d, name, __LINE__);                                                                             \
    } while (0)

/* Runs the check on a call of each dtype, and destroys the context. */
void on_every_dtype(gpuloss_context *created, void (*check)(gpuloss_cross_entropy_desc d));

/* Tests of few options and of tiles, which run after the others. */
int few_option_tests(void);
int tile_tests(void);

#endif
