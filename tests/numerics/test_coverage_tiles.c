/* Coverage of tiles of short rows and columns beyond the other tests: options beside every type of other arrays, in every
 * layout and pass. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const option_layout layouts[] = {
    {{40, 24, 0}, STRIDE_PACKED, 0, 0},                                       /* whole vectors */
    {{40, 23, 0}, STRIDE_16_BYTES, 0, 0},                                     /* that begin at vectors */
    {{40, 23, 0}, STRIDE_PACKED, 1, 1},   {{40, 22, 0}, STRIDE_PACKED, 2, 2}, /* packed */
    {{40, 23, 0}, STRIDE_ONE_MORE, 1, 0}, {{40, 22, 0}, STRIDE_PACKED, 2, 0}, /* ragged */
    {{48, 23, 16}, STRIDE_PACKED, 0, 0},  {{40, 50, 8}, STRIDE_PACKED, 0, 0}, /* columns */
    {{45, 23, 15}, STRIDE_PACKED, 0, 0},  {{40, 50, 8}, STRIDE_PACKED, 1, 0}, /* ragged columns */
    {{600, 20, 0}, STRIDE_PACKED, 0, 0},                                      /* a row for each thread */
    {{600, 21, 0}, STRIDE_PACKED, 0, 0}};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* Rows that take the slow way: beyond the range of the fast exponentials, with classes of probability 0, and with a NaN. */
static void disturb(const ce_case *c, const option_inputs *in) {
    const int64_t inner = c->inner > 1 ? c->inner : 1;
    int64_t row, i;
    for (row = 1; row < c->rows; row += row % 8 == 5 ? 4 : 1) {
        double *x = in->x + row / inner * inner * c->classes + row % inner;
        for (i = 0; i < c->classes && row % 8 == 1; i++)
            x[i * inner] = dtype_round(c->dtype, 30000 + x[i * inner]);
        if (row % 8 == 2 || row % 8 == 5)
            x[row % c->classes * inner] = row % 8 == 2 ? -(double)INFINITY : (double)NAN;
    }
}

/* The results of a pass by its number; an lse that it takes is returned, and to be freed. */
static double *take_pass(ce_case *c, unsigned number) {
    static const unsigned outputs[] = {CE_OUT_EVERY,
                                       CE_OUT_LOSS | CE_OUT_GRAD,
                                       CE_OUT_LOSS,
                                       CE_OUT_LOSS_ROWS | CE_OUT_LSE,
                                       CE_OUT_LOSS | CE_OUT_GRAD_TARGETS,
                                       CE_OUT_LOSS | CE_OUT_GRAD | CE_OUT_GRAD_TARGETS};
    enum { PASSES = sizeof outputs / sizeof outputs[0], FROM_LSE = 7 };
    if (number % (PASSES + 1) == PASSES)
        return option_pass(c, FROM_LSE);
    c->outputs = outputs[number % (PASSES + 1)];
    return NULL;
}

static const unsigned sets[] = {0,
                                OPTION_SMOOTHING,
                                OPTION_SOFTCAP,
                                OPTION_SCALE | OPTION_SMOOTHING,
                                OPTION_WEIGHTS,
                                OPTION_WEIGHTS | OPTION_SMOOTHING,
                                OPTION_SOFTCAP | OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_ROW_WEIGHTS};
enum { SETS = sizeof sets / sizeof sets[0] };

/* A set of options with probabilities of type t, or none for DTYPE_COUNT. The pass and the type of the gradient vary. */
static void check_layout(gpuloss_dtype dtype, const option_layout *layout, unsigned t, unsigned set, unsigned number) {
    const unsigned soft = t < DTYPE_COUNT ? (unsigned)OPTION_PROBABILITIES : 0;
    option_inputs in;
    ce_case c = option_layout_case(dtype, layout, sets[set] | soft | OPTION_IGNORE_INDEX, number, &in);
    double *lse;
    int64_t i;
    disturb(&c, &in);
    for (i = 0; i < c.rows; i += 3)
        in.row_weights[i] = 0;
    if (set % 2 == 1)
        c.row_weights = in.row_weights;
    lse = take_pass(&c, number);
    option_target_dtype(&c, &in, all_dtypes[t % DTYPE_COUNT]);
    c.grad_dtype = c.in_place || number % 3 == 0 ? c.dtype : all_dtypes[number / 7 % DTYPE_COUNT];
    ce_test(&c, "options beside types of tiles");
    free(lse);
    option_inputs_free(&in);
}

/* Every set of options meets every layout, and with probabilities every type of them. */
static void options_beside_types_of_tiles(void **state) {
    unsigned d, k, t, set, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < LAYOUTS; k++)
            for (t = 0; t <= DTYPE_COUNT; t++)
                for (set = 0; set < SETS; set++, number++)
                    check_layout(all_dtypes[d], &layouts[k], t, set, number);
    test_done();
}

/* As many vectors in a tile as its threads have in flight. */
static void many_vectors_of_tiles(void **state) {
    static const struct {
        int64_t rows, vectors, less, inner; /* `less` classes than those vectors have */
        stride_kind stride;
        int offset;
    } full[] = {{600, 7, 0, 0, STRIDE_PACKED, 0},    {600, 7, 2, 0, STRIDE_PACKED, 2},
                {600, 7, 1, 0, STRIDE_PACKED, 0},    {600, 7, 1, 0, STRIDE_ONE_MORE, 1},
                {1200, 5, 1, 600, STRIDE_PACKED, 0}, {1206, 5, 1, 603, STRIDE_PACKED, 0},
                {1530, 5, 3, 15, STRIDE_PACKED, 1}};
    enum { FULL = sizeof full / sizeof full[0] };
    unsigned d, k, n, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < FULL; k++)
            for (n = 0; n < SETS; n++, number++) {
                const int64_t width = (int64_t)(16 / dtype_size(all_dtypes[d]));
                const option_layout l = {{full[k].rows, full[k].vectors * width - full[k].less, full[k].inner},
                                         full[k].stride,
                                         full[k].offset,
                                         full[k].offset};
                const unsigned t = n % 3 == 0 ? DTYPE_COUNT : n % 3 == 1 ? d : number / 2 % DTYPE_COUNT;
                check_layout(all_dtypes[d], &l, t, n, number);
            }
    test_done();
}

int run_coverage_tile_tests(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(options_beside_types_of_tiles),
                                       cmocka_unit_test(many_vectors_of_tiles)};
    return cmocka_run_group_tests_name("coverage of tiles", tests, NULL, NULL);
}
