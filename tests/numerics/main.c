/* The numerics tests, on whatever driver is found: a GPU's, or one named by GPULOSS_DRIVER.
 *
 *   test_numerics [--small] [--stop] [--only PATTERN | --skip PATTERN] [--part NUMBER/OF]
 *
 * --small    shapes for an interpreter of the kernels instead of a GPU
 * --stop     at the first case that fails
 * --only     the tests whose names match, with * for any letters; --skip: those that do not
 * --part     each group of tests that is the NUMBER-th of OF: programs of all numbers, from 1 on, run every test once
 *
 * With no driver or GPU every test is skipped, which succeeds unless GPULOSS_REQUIRE_GPU=1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"
#include "suites.h"

static int (*const groups[])(void) = {
    run_cross_entropy_tests,
    run_cross_entropy_corner_tests,
    run_cross_entropy_option_tests,
    run_cross_entropy_layout_tests,
    run_cross_entropy_option_corner_tests,
    run_cross_entropy_schedule_tests,
    run_cross_entropy_property_tests,
    run_cross_entropy_difference_tests,
    run_cross_entropy_shard_tests,
    run_cross_entropy_vocabulary_tests,
    run_kl_div_tests,
    run_kl_div_option_tests,
    run_kl_div_layout_tests,
    run_kl_div_option_corner_tests,
    run_kl_div_property_tests,
    run_kl_div_difference_tests,
    run_kl_div_logits_tests,
    run_kl_div_sparse_tests,
    run_kl_div_sparse_corner_tests,
    run_kl_div_sparse_property_tests,
    run_kl_div_sparse_schedule_tests,
    run_kl_div_sparse_divergence_tests,
    run_cluster_tests,
    run_row_cluster_tests,
    run_row_pipeline_tests,
    run_row_memory_tests,
    run_row_thread_tests,
    run_block_row_tests,
    run_packed_tests,
    run_row_option_tests,
    run_packed_pairs_tests,
    run_plane_tests,
    run_misuse_tests,
    run_coverage_tests,
    run_coverage_option_tests,
    run_coverage_divergence_tests,
    run_stream_tests,
    run_large_tests,
    run_same_bits_tests,
    run_chunk_tests,
    run_coverage_tile_tests,
    run_coverage_row_tests,
    run_coverage_pair_tests,
    run_coverage_sparse_tests,
    run_coverage_basic_tests,
    run_coverage_logits_tests,
    run_coverage_number_tests,
};

enum { GROUPS = sizeof groups / sizeof groups[0] };

static bool read_part(const char *text, int *part, int *parts) {
    int end = 0;
    return sscanf(text, "%3d/%3d%n", part, parts, &end) == 2 && text[end] == 0 && *part >= 1 && *part <= *parts;
}

int main(int argc, char **argv) {
    const char *required = getenv("GPULOSS_REQUIRE_GPU");
    gpuloss_info info;
    int i, part = 1, parts = 1, failed = 0;
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            harness_small = 1;
        else if (strcmp(argv[i], "--stop") == 0)
            harness_stop = 1;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            cmocka_set_test_filter(argv[++i]);
        else if (strcmp(argv[i], "--skip") == 0 && i + 1 < argc)
            cmocka_set_skip_filter(argv[++i]);
        else if (strcmp(argv[i], "--part") == 0 && i + 1 < argc && read_part(argv[i + 1], &part, &parts))
            i++;
        else {
            fprintf(stderr,
                    "usage: %s [--small] [--stop] [--only PATTERN | --skip PATTERN] [--part NUMBER/OF]   (got %s)\n",
                    argv[0], argv[i]);
            return 2;
        }
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
    for (i = part - 1; i < GROUPS; i += parts) {
        failed += groups[i]();
        failed += !harness_renew();
    }
    if (harness_context)
        worst_print();
    else if (required && strcmp(required, "1") == 0) {
        fprintf(stderr, "GPULOSS_REQUIRE_GPU=1, but %s\n", harness_reason());
        failed++;
    }
    harness_close();
    return failed ? 1 : 0;
}
