/* The vocabularies that language models have, and lengths around the limits of the schedules, with options on and off
 * in each dtype. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const int64_t vocabularies[] = {1,      2,      31,     32,     33,     1000,   4097,   32000,  50257,
                                       100352, 128256, 131073, 151936, 201088, 262144, 262208, 1000003};
enum { VOCABULARIES = sizeof vocabularies / sizeof vocabularies[0] };

static void run_vocabulary(gpuloss_dtype dtype, int64_t classes, unsigned options, unsigned number) {
    int64_t one_row_from = harness_small ? 1001 : 200000;
    option_shape shape = {classes >= one_row_from ? 1 : 1 + (int64_t)(number % 3), classes, 0};
    option_inputs in;
    ce_case c = option_case(dtype, shape, options, number % 3 ? LOGITS_NORMAL : LOGITS_CONFIDENT, number, &in);
    option_vary(&c, number);
    ce_test(&c, "vocabulary");
    option_inputs_free(&in);
}

static void every_vocabulary(void **state) {
    static const unsigned sets[] = {0, OPTION_PROBABILITIES, OPTION_ALL, OPTION_ALL | OPTION_PROBABILITIES};
    unsigned k, d, s, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < VOCABULARIES; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (s = 0; s < 4; s++, number++) {
                /* A small run: one dtype of a long row. */
                if (harness_small &&
                    (vocabularies[k] > 33000 || (vocabularies[k] > 4000 && (d != k % DTYPE_COUNT || s != k % 2 + 2))))
                    continue;
                run_vocabulary(all_dtypes[d], vocabularies[k], sets[s], number);
            }
    test_done();
}

int run_cross_entropy_vocabulary_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_vocabulary),
    };
    return cmocka_run_group_tests_name("cross_entropy vocabularies", tests, NULL, NULL);
}
