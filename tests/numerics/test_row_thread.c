/* Short rows and columns in tiles, with every type of the gradient and of the probabilities, and with every layout.
 * Some tiles have more vectors than a thread has in flight. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const option_layout layouts[] = {
    {{290, 24, 0}, STRIDE_PACKED, 0, 0},                                        /* whole vectors */
    {{290, 21, 0}, STRIDE_16_BYTES, 0, 0},                                      /* that begin at vectors */
    {{290, 21, 0}, STRIDE_PACKED, 1, 1},   {{290, 22, 0}, STRIDE_PACKED, 2, 2}, /* packed */
    {{290, 21, 0}, STRIDE_ONE_MORE, 1, 0}, {{290, 22, 0}, STRIDE_PACKED, 2, 0}, /* ragged */
    {{288, 21, 48}, STRIDE_PACKED, 0, 0},  {{40, 90, 8}, STRIDE_PACKED, 0, 0},  /* columns */
    {{282, 21, 47}, STRIDE_PACKED, 0, 0},  {{40, 90, 8}, STRIDE_PACKED, 1, 0}   /* ragged columns */
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static ce_case case_of(gpuloss_dtype dtype, const option_layout *l, unsigned options, unsigned number,
                       option_inputs *in) {
    ce_case c = option_layout_case(dtype, l, options, number, in);
    c.reduction = all_reductions[number % REDUCTION_COUNT];
    c.outputs = number % 3 == 0 ? CE_OUT_LOSS | CE_OUT_GRAD | CE_OUT_GRAD_TARGETS : CE_OUT_EVERY;
    return c;
}

/* Every third row has the weight 0, every fifth a logit whose exponential is subnormal or 0. The softcap is large beside the
 * others in every other case. */
static void types_of_tiles(void **state) {
    static const unsigned sets[] = {OPTION_SOFTCAP | OPTION_IGNORE_INDEX,
                                    OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_IGNORE_INDEX,
                                    OPTION_PROBABILITIES | OPTION_WEIGHTS, OPTION_PROBABILITIES | OPTION_SMOOTHING, 0};
    enum { SETS = sizeof sets / sizeof sets[0] };
    unsigned n, number;
    (void)state;
    REQUIRE_GPU();
    for (n = 0; n < DTYPE_COUNT * DTYPE_COUNT * LAYOUTS * SETS; n++) {
        const unsigned set = sets[n % SETS], k = n / SETS % LAYOUTS, g = n / SETS / LAYOUTS % DTYPE_COUNT;
        option_inputs in;
        ce_case c;
        int64_t i;
        number = n / SETS + n % SETS;
        c = case_of(all_dtypes[n / SETS / LAYOUTS / DTYPE_COUNT], &layouts[k], set, number, &in);
        c.grad_dtype = all_dtypes[g];
        option_target_dtype(&c, &in, all_dtypes[(g + k) % DTYPE_COUNT]);
        for (i = 0; i < c.rows; i += 3)
            in.row_weights[i] = 0;
        for (i = 0; i < c.rows * c.classes; i += 5 * c.classes + 1)
            in.x[i] = dtype_round(c.dtype, -740);
        c.row_weights = in.row_weights;
        if ((set & OPTION_SOFTCAP) != 0 && number % 2 == 0)
            c.softcap = 1000;
        ce_test(&c, "types of tiles");
        option_inputs_free(&in);
    }
    test_done();
}

/* Every option in every layout. The passes vary. */
static void options_of_tiles(void **state) {
    unsigned d, k, set, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (set = 0; set < 8; set++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (k = 0; k < LAYOUTS; k++, number++) {
                option_inputs in;
                ce_case c = case_of(all_dtypes[d], &layouts[k], set < 7 ? 1u << set : OPTION_ALL, number, &in);
                double *lse = option_pass(&c, number);
                if (set == 3)
                    c.softcap = 100;
                ce_test(&c, "options of tiles");
                free(lse);
                option_inputs_free(&in);
            }
    test_done();
}

/* Columns of any alignment of which a tile has many, so that a lane has several units of a class in flight. Each GPU has
 * enough of them for every thread. */
static void wide_tiles_of_columns(void **state) {
    static const unsigned sets[] = {OPTION_SMOOTHING, OPTION_PROBABILITIES};
    enum { INNER = 104999, CLASSES = 3 };
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof sets / sizeof sets[0]; k++) {
            const option_shape shape = {2 * INNER, CLASSES, INNER};
            option_inputs in;
            ce_case c = option_case(all_dtypes[d], shape, sets[k], LOGITS_NORMAL, d, &in);
            c.outputs = CE_OUT_LOSS | CE_OUT_GRAD;
            ce_test(&c, "wide tiles of columns");
            option_inputs_free(&in);
        }
    test_done();
}

int run_row_thread_tests(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(types_of_tiles), cmocka_unit_test(options_of_tiles),
                                       cmocka_unit_test(wide_tiles_of_columns)};
    return cmocka_run_group_tests_name("rows and columns in tiles", tests, NULL, NULL);
}
