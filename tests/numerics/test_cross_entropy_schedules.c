/* gpuloss_cross_entropy where a row ends: what every kernel must do by itself, in shapes that each of them serves. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const double inf = (double)INFINITY;

/* Rows of so many vectors, and of so many classes more. */
typedef struct place {
    int64_t rows, vectors, more, inner;
    int offset; /* of the logits, in elements */
    enum { ROWS_SHORT, ROWS_LONG, ROWS_PLANES } kind;
} place;

/* In the order of the kernels that serve them without options on the newest GPUs, or for the last two with: rows held by
 * lanes, packed, short, held, a block each, long, kept, together; columns; planes held and not. */
static const place places[] = {
    {70, 0, 3, 0, 0, ROWS_SHORT},         {40, 2, 0, 0, 0, ROWS_SHORT},  {40, 10, 1, 0, 0, ROWS_SHORT},
    {40, 10, 0, 0, 0, ROWS_SHORT},        {40, 10, 1, 0, 1, ROWS_SHORT}, {7, 45, 3, 0, 1, ROWS_SHORT},
    {7, 260, 0, 0, 0, ROWS_SHORT},        {7, 2100, 1, 0, 0, ROWS_LONG}, {7, 2049, 0, 0, 0, ROWS_LONG},
    {32, 1024, 0, 0, 0, ROWS_LONG},       {15, 0, 7, 5, 0, ROWS_SHORT},  {3 * 344, 0, 5, 344, 0, ROWS_PLANES},
    {3 * 344, 0, 26, 344, 0, ROWS_PLANES}};
enum { PLACES = sizeof places / sizeof places[0], MOST_SETS = 5, END = OPTION_PROBABILITIES << 1 };

/* What is put into a case, and the sets of options that it goes with. */
typedef struct corner {
    const char *name;
    void (*prepare)(ce_case *c, option_inputs *in, unsigned number);
    unsigned sets[MOST_SETS];
} corner;

static double *logit(const ce_case *c, const option_inputs *in, int64_t row, int64_t column) {
    reference_cross_entropy layout = {0};
    layout.classes = c->classes;
    layout.inner = c->inner;
    return &in->x[reference_element(&layout, row, column)];
}

/* All outputs, or few: some kernels add up losses in another way where nothing is asked for of a row. */
static void ask_for(ce_case *c, unsigned number) {
    static const unsigned outputs[] = {CE_OUT_EVERY, CE_OUT_LOSS, CE_OUT_LOSS | CE_OUT_GRAD,
                                       CE_OUT_ALL & ~(unsigned)CE_OUT_GRAD, CE_OUT_ALL};
    c->outputs = outputs[number % 5];
    c->reduction = number % 2 ? GPULOSS_SUM : GPULOSS_MEAN;
    c->in_place = number % 3 == 1;
}

/* Rows that are sure of their target, which is far above the others; with an lse that was rounded below it as well. */
static void prepare_confident(ce_case *c, option_inputs *in, unsigned number) {
    random_source random = random_from(number);
    double *lse = require_doubles(c->rows);
    int64_t row, column;
    for (row = 0; row < c->rows; row++) {
        double top = dtype_round(c->dtype, random_uniform(&random, -40, 40));
        for (column = 0; column < c->classes; column++)
            *logit(c, in, row, column) = column == in->targets[row] ? top : dtype_round(c->dtype, top - 1000);
        lse[row] = (double)nextafterf((float)top, -HUGE_VALF);
        in->row_weights[row] = 0.25 + (double)(row % 5) / 4;
    }
    for (column = 0; column < c->classes; column++)
        in->class_weights[column] = 0.5 + (double)(column % 3);
    ask_for(c, number);
    if (number % 4 == 3 && c->logit_scale == 0) {
        c->lse_in = lse;
        c->outputs |= CE_OUT_GRAD;
        return;
    }
    free(lse);
}

/* A class that is masked stays so under a softcap: as a rule not the target, of some rows the target, or every class. */
static void prepare_masked(ce_case *c, option_inputs *in, unsigned number) {
    int64_t row, column;
    for (row = 0; row < c->rows; row++) {
        in->row_weights[row] = 0.25 + (double)(row % 5) / 4;
        for (column = 0; column < c->classes; column++)
            if (row % 7 == 4 || (row % 7 == 2) == (column == in->targets[row]))
                if (row % 7 == 4 || row % 7 == 2 || (row + column) % 3 == 1)
                    *logit(c, in, row, column) = -inf;
    }
    for (row = 0; row < c->rows && in->t; row += 2)
        for (column = 0; column < c->classes; column++)
            if (isinf(*logit(c, in, row, column)))
                in->t[logit(c, in, row, column) - in->x] = 0;
    ask_for(c, number);
}

/* The largest x is of the smallest logit. */
static void prepare_negative_scale(ce_case *c, option_inputs *in, unsigned number) {
    int64_t row;
    for (row = 0; row < c->rows; row++)
        in->row_weights[row] = 0.25 + (double)(row % 5) / 4;
    c->logit_scale = -0.75;
    ask_for(c, number);
}

/* Rows of row weight 0, of either sign, whatever they hold. */
static void prepare_silent(ce_case *c, option_inputs *in, unsigned number) {
    int64_t row, column;
    for (row = 0; row < c->rows; row++) {
        in->row_weights[row] = row % 2 ? 0.75 : row % 4 ? -0.0 : 0;
        if (row % 2)
            continue;
        if (row % 10 == 0)
            *logit(c, in, row, in->targets[row]) = -inf;
        else if (row % 10 < 6)
            *logit(c, in, row, c->classes / 2) = row % 10 == 2 ? (double)NAN : inf;
        for (column = 0; column < c->classes && row % 10 == 6; column++)
            *logit(c, in, row, column) = -inf;
    }
    for (column = 0; column < c->classes; column++)
        in->class_weights[column] = 0.5 + (double)(column % 3);
    ask_for(c, number);
}

/* All targets are of a class of weight 0, so that a mean divides by 0. */
static void prepare_weightless(ce_case *c, option_inputs *in, unsigned number) {
    int64_t row, column;
    for (column = 0; column < c->classes; column++)
        in->class_weights[column] = column == 0 ? 0 : 1.5;
    for (row = 0; row < c->rows; row++) {
        in->targets[row] = c->use_ignore_index && row % 3 == 1 ? c->ignore_index : 0;
        in->row_weights[row] = 0.75;
    }
    c->outputs = number % 2 ? CE_OUT_EVERY : CE_OUT_GRAD;
}

/* A big place sees every second set. Whether there are enough columns for planes is up to the GPU. */
static bool is_left_out(const place *at, unsigned number) {
    return (at->kind == ROWS_LONG && number % 2) || (at->kind == ROWS_PLANES && !harness_small);
}

static void test_places(const corner *of) {
    unsigned d, k, s, number = 0;
    for (k = 0; k < PLACES; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (s = 0; s < MOST_SETS && of->sets[s] != END; s++, number++) {
                const int64_t width = (int64_t)(16 / dtype_size(all_dtypes[d]));
                const option_shape shape = {places[k].rows, places[k].vectors * width + places[k].more,
                                            places[k].inner};
                option_inputs in;
                ce_case c;
                if (is_left_out(&places[k], number))
                    continue;
                c = option_case(all_dtypes[d], shape, of->sets[s], LOGITS_NORMAL, number, &in);
                c.logits_offset = places[k].offset;
                of->prepare(&c, &in, number / 2 + k);
                ce_test(&c, of->name);
                free((void *)(uintptr_t)c.lse_in);
                option_inputs_free(&in);
            }
    test_done();
}

static void confident_rows_of_every_schedule(void **state) {
    static const corner of = {"confident rows",
                              prepare_confident,
                              {0, 0, OPTION_WEIGHTS | OPTION_ROW_WEIGHTS, OPTION_SCALE, OPTION_IGNORE_INDEX}};
    (void)state;
    REQUIRE_GPU();
    test_places(&of);
}

static void masked_classes_of_every_schedule(void **state) {
    static const corner of = {"masked classes under a softcap",
                              prepare_masked,
                              {OPTION_SOFTCAP, OPTION_SOFTCAP | OPTION_SCALE | OPTION_WEIGHTS,
                               OPTION_SOFTCAP | OPTION_SMOOTHING, OPTION_SOFTCAP | OPTION_PROBABILITIES,
                               OPTION_SOFTCAP | OPTION_Z_LOSS | OPTION_ROW_WEIGHTS}};
    (void)state;
    REQUIRE_GPU();
    test_places(&of);
}

static void negative_scales_of_every_schedule(void **state) {
    static const corner of = {"negative scale",
                              prepare_negative_scale,
                              {OPTION_SCALE, OPTION_SCALE | OPTION_SOFTCAP, OPTION_SCALE | OPTION_SMOOTHING,
                               OPTION_SCALE | OPTION_PROBABILITIES, END}};
    (void)state;
    REQUIRE_GPU();
    test_places(&of);
}

static void silent_rows_of_every_schedule(void **state) {
    static const corner of = {"rows of row weight 0",
                              prepare_silent,
                              {OPTION_ROW_WEIGHTS, OPTION_ROW_WEIGHTS | OPTION_Z_LOSS,
                               OPTION_ROW_WEIGHTS | OPTION_WEIGHTS | OPTION_SMOOTHING,
                               OPTION_ROW_WEIGHTS | OPTION_PROBABILITIES | OPTION_WEIGHTS,
                               OPTION_ROW_WEIGHTS | OPTION_SOFTCAP | OPTION_SCALE}};
    (void)state;
    REQUIRE_GPU();
    test_places(&of);
}

static void weightless_targets_of_every_schedule(void **state) {
    static const corner of = {"targets of weight 0",
                              prepare_weightless,
                              {OPTION_WEIGHTS, OPTION_WEIGHTS | OPTION_Z_LOSS, OPTION_WEIGHTS | OPTION_SMOOTHING,
                               OPTION_WEIGHTS | OPTION_SOFTCAP | OPTION_IGNORE_INDEX,
                               OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_ROW_WEIGHTS}};
    (void)state;
    REQUIRE_GPU();
    test_places(&of);
}

/* The same of a vocabulary in shards, where the combination finishes the rows. */
static void corners_of_a_split_vocabulary(void **state) {
    static const corner corners[] = {
        {"confident rows in shards", prepare_confident, {0, OPTION_WEIGHTS | OPTION_ROW_WEIGHTS, OPTION_SCALE, END}},
        {"masked classes in shards",
         prepare_masked,
         {OPTION_SOFTCAP, OPTION_SOFTCAP | OPTION_SMOOTHING, OPTION_SOFTCAP | OPTION_Z_LOSS | OPTION_ROW_WEIGHTS, END}},
        {"rows of row weight 0 in shards",
         prepare_silent,
         {OPTION_ROW_WEIGHTS | OPTION_Z_LOSS, OPTION_ROW_WEIGHTS | OPTION_WEIGHTS | OPTION_SMOOTHING, END}}};
    static const int64_t firsts[] = {0, 17};
    static const option_shape shape = {20, 41, 0};
    unsigned d, k, s, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof corners / sizeof corners[0]; k++)
        for (s = 0; corners[k].sets[s] != END; s++)
            for (d = 0; d < DTYPE_COUNT; d++, number++) {
                char text[CE_DESCRIPTION];
                option_inputs in;
                ce_result result;
                report r;
                ce_case c = option_case(all_dtypes[d], shape, corners[k].sets[s], LOGITS_NORMAL, number, &in);
                corners[k].prepare(&c, &in, 0);
                c.in_place = false;
                ce_describe(&c, corners[k].name, text, sizeof text);
                r = report_on(text);
                ce_run_sharded(&c, firsts, 2, &result, &r);
                free(result.grad); /* it is that from a rounded lse */
                result.grad = NULL;
                c.shards = 2;
                ce_check(&c, &result, &r);
                ce_free(&result);
                case_done(&r);
                option_inputs_free(&in);
            }
    test_done();
}

int run_cross_entropy_schedule_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(confident_rows_of_every_schedule),  cmocka_unit_test(masked_classes_of_every_schedule),
        cmocka_unit_test(silent_rows_of_every_schedule),     cmocka_unit_test(weightless_targets_of_every_schedule),
        cmocka_unit_test(negative_scales_of_every_schedule), cmocka_unit_test(corners_of_a_split_vocabulary),
    };
    return cmocka_run_group_tests_name("cross_entropy schedules", tests, NULL, NULL);
}
