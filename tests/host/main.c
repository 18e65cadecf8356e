/* test_host [GROUP]: all host tests, or those of one group. */
#include "check.h"

#include <stdio.h>

static const struct group {
    const char *name;
    int (*run)(void);
} groups[] = {
    {"lifecycle", lifecycle_tests},
    {"failures", failure_tests},
    {"environment", environment_tests},
    {"loading", loading_tests},
    {"preload", preload_tests},
    {"scratch", scratch_tests},
    {"launch", launch_tests},
    {"choice", choice_tests},
    {"divisors", divisor_tests},
    {"combine", combine_tests},
    {"refusals", refusal_tests},
    {"parameters", parameter_tests},
    {"unpack", unpack_tests},
    {"specialise", specialise_tests},
    {"kl_choice", kl_choice_tests},
    {"kl_parameters", kl_parameter_tests},
    {"kl_divisors", kl_divisor_tests},
    {"kl_refusals", kl_refusal_tests},
    {"sparse", sparse_tests},
    {"clusters", cluster_tests},
    {"pipeline", pipeline_tests},
    {"variants", variant_tests},
    {"facts", fact_tests},
    {"row_cluster", row_cluster_tests},
    {"overlaps", overlap_tests},
    {"threads", thread_tests},
    {"pairs", pair_tests},
    {"chunks", chunk_tests},
};

int main(int count, char **arguments) {
    int failed = 0, known = 0;
    size_t i;
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* an aborted program has printed its progress */
    for (i = 0; i < sizeof groups / sizeof groups[0]; i++)
        if (count < 2 || strcmp(arguments[1], groups[i].name) == 0) {
            failed += groups[i].run();
            known = 1;
        }
    if (!known)
        print_error("there is no group of tests named %s\n", arguments[1]);
    return failed != 0 || !known;
}
