/* The shapes that both losses go through. */
#ifndef TESTS_NUMERICS_SHAPES_H
#define TESTS_NUMERICS_SHAPES_H

#include "harness.h"

/* Runs one case of a loss on a shape; `number` counts the cases, and varies their other choices. */
typedef void run_shape_function(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned number);

/* A test: every shape of the dtype, or with harness_small the small ones. */
void test_shapes(gpuloss_dtype dtype, run_shape_function *run);

/* Defines the test `name` of the shapes of a dtype. */
#define SHAPES_TEST(name, dtype, run)                                                                                  \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        REQUIRE_GPU();                                                                                                 \
        test_shapes(dtype, run);                                                                                       \
    }

#endif
