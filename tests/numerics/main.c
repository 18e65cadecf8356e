/* The numerics tests, on whatever driver is found: a GPU's, or one named by GPULOSS_DRIVER.
 *
 *   test_numerics [--small]
 *
 * --small    shapes for an interpreter of the kernels instead of a GPU
 *
 * With no driver or GPU every test is skipped, which succeeds unless GPULOSS_REQUIRE_GPU=1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "suites.h"

int main(int argc, char **argv) {
    const char *required = getenv("GPULOSS_REQUIRE_GPU");
    gpuloss_info info;
    int failed = 0;
    if (argc > 1)
        harness_small = strcmp(argv[1], "--small") == 0;
    if (argc > 2 || (argc == 2 && !harness_small)) {
        fprintf(stderr, "usage: %s [--small]\n", argv[0]);
        return 2;
    }
    if (!harness_open()) {
        fprintf(stderr, "no context: %s\n", harness_reason());
        return 1;
    }
    if (harness_context && gpuloss_get_info(harness_context, &info) == GPULOSS_OK)
        printf("numerics on %s, compute capability %d.%d, driver %d\n", info.device_name, info.compute_capability / 10,
               info.compute_capability % 10, info.driver_version);
    else
        printf("numerics skipped: %s\n", harness_reason());
    failed += run_cross_entropy_tests();
    failed += run_cross_entropy_corner_tests();
    failed += run_kl_div_tests();
    failed += run_misuse_tests();
    failed += run_large_tests();
    if (harness_context)
        worst_print();
    else if (required && strcmp(required, "1") == 0) {
        fprintf(stderr, "GPULOSS_REQUIRE_GPU=1, but %s\n", harness_reason());
        failed++;
    }
    harness_close();
    return failed ? 1 : 0;
}
