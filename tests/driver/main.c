/* Tests of programs that use the driver around the library: graphs, several contexts, resets.
 *
 *   test_driver [--small] [--only PATTERN]
 *
 * --small    sizes for an interpreter of the kernels instead of a GPU
 * --only     the tests whose names match, with * for any letters
 *
 * Each test runs in a process of its own: a CUcontext that is reset, a crash or an endless wait ends with it. Without a GPU all
 * are skipped, which succeeds unless GPULOSS_REQUIRE_GPU=1. */
#include "driver.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 120 /* that a test may take */ };

static int run_here(const struct CMUnitTest *test) {
    const struct CMUnitTest one[] = {*test};
    (void)alarm(SECONDS);
    return cmocka_run_group_tests_name(test->name, one, NULL, NULL);
}

static int run_in_process(const struct CMUnitTest *test) {
    pid_t child;
    int status = 0;
    (void)fflush(NULL);
    child = fork();
    if (child == 0) {
        exit(run_here(test) != 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("ERROR: a process for a test");
        return 1;
    }
    if (WIFSIGNALED(status))
        printf("ERROR: %s: ended by signal %d\n", test->name, WTERMSIG(status));
    return status != 0;
}

int main(int argc, char **argv) {
    const test_list *const lists[] = {&capture_tests, &beside_tests, &default_stream_tests, &context_tests,
                                      &reset_tests};
    const char *pattern = "*";
    size_t l, t;
    int i, ran = 0, failed = 0;
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            is_small = 1;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            pattern = argv[++i];
        else {
            fprintf(stderr, "usage: %s [--small] [--only PATTERN]   (got %s)\n", argv[0], argv[i]);
            return 2;
        }
    }
    for (l = 0; l < sizeof lists / sizeof lists[0]; l++)
        for (t = 0; t < lists[l]->count; t++)
            if (fnmatch(pattern, lists[l]->tests[t].name, 0) == 0) {
                failed += run_in_process(&lists[l]->tests[t]);
                ran++;
            }
    if (ran == 0)
        printf("ERROR: no test has a name as %s\n", pattern);
    return failed != 0 || ran == 0;
}
