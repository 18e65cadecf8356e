/* gpuloss_cross_entropy in the corner cases that each kernel handles with code of its own, in shapes of each kernel. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const double inf = (double)INFINITY;

/* Rows of `vectors` vectors and `more` classes. */
typedef struct row_set {
    int64_t rows, vectors, more, inner;
    int offset; /* of the logits, in elements */
    enum { ROWS_SHORT, ROWS_LONG, ROWS_PLANES } kind;
} row_set;

/* In the order of the kernels that serve them on the newest GPUs. Without options: packed rows in registers and in
 * shared memory, short rows, rows of one block each, and rows of clusters. With options: rows retained beside their
 * weights, alone and several in a cluster. Then columns in tiles, in registers and in shared memory. */
static const row_set row_sets[] = {
    {70, 0, 3, 0, 0, ROWS_SHORT},         {40, 2, 0, 0, 0, ROWS_SHORT},  {40, 10, 1, 0, 0, ROWS_SHORT},
    {40, 10, 0, 0, 0, ROWS_SHORT},        {40, 10, 1, 0, 1, ROWS_SHORT}, {7, 45, 3, 0, 1, ROWS_SHORT},
    {7, 260, 0, 0, 0, ROWS_SHORT},        {7, 2100, 1, 0, 0, ROWS_LONG}, {7, 2049, 0, 0, 0, ROWS_LONG},
    {32, 1024, 0, 0, 0, ROWS_LONG},       {15, 0, 7, 5, 0, ROWS_SHORT},  {3 * 344, 0, 5, 344, 0, ROWS_PLANES},
    {3 * 344, 0, 26, 344, 0, ROWS_PLANES}};
enum { ROW_SETS = sizeof row_sets / sizeof row_sets[0], MOST_SETS = 5, END = OPTION_PROBABILITIES << 1 };

/* A corner: the change that it makes to a case, and the sets of options that it goes with. */
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

/* All outputs, or few: some kernels sum losses in another way where no output per row is requested. */
static void request_outputs(ce_case *c, unsigned number) {
    static const unsigned outputs[] = {CE_OUT_EVERY, CE_OUT_LOSS, CE_OUT_LOSS | CE_OUT_GRAD,
                                       CE_OUT_ALL & ~(unsigned)CE_OUT_GRAD, CE_OUT_ALL};
    c->outputs = outputs[number % 5];
    c->reduction = number % 2 ? GPULOSS_SUM : GPULOSS_MEAN;
    c->in_place = number % 3 == 1;
}

/* Confident rows: the target's logit is 1000 above the others. Some have a given lse that was rounded to less than it.
 * */
static void prepare_confident(ce_case *c, option_inputs *in, unsigned number) {
    random_source random = random_from(number);
    double *lse = require_doubles(c->rows);
    int64_t row, column;
    for (row = 0; row < c->rows; row++) {
        double maximum = dtype_round(c->dtype, random_uniform(&random, -40, 40));
        for (column = 0; column < c->classes; column++)
            *logit(c, in, row, column) = column == in->targets[row] ? maximum : dtype_round(c->dtype, maximum - 1000);
        lse[row] = (double)nextafterf((float)maximum, -HUGE_VALF);
        in->row_weights[row] = 0.25 + (double)(row % 5) / 4;
    }
    for (column = 0; column < c->classes; column++)
        in->class_weights[column] = 0.5 + (double)(column % 3);
    request_outputs(c, number);
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
    request_outputs(c, number);
}

/* The largest x is of the smallest logit. */
static void prepare_negative_scale(ce_case *c, option_inputs *in, unsigned number) {
    int64_t row;
    for (row = 0; row < c->rows; row++)
        in->row_weights[row] = 0.25 + (double)(row % 5) / 4;
    c->logit_scale = -0.75;
    request_outputs(c, number);
}

/* Rows of row weight 0, of either sign, whatever their logits are. */
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
    request_outputs(c, number);
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

/* A large row set meets every second set of options. The GPU decides whether there are enough columns for planes. */
static bool is_left_out(const row_set *at, unsigned number) {
    return (at->kind == ROWS_LONG && number % 2) || (at->kind == ROWS_PLANES && !harness_small);
}

static void test_row_sets(const corner *of) {
    unsigned d, k, s, number = 0;
    for (k = 0; k < ROW_SETS; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (s = 0; s < MOST_SETS && of->sets[s] != END; s++, number++) {
                const int64_t width = (int64_t)(16 / dtype_size(all_dtypes[d]));
                const option_shape shape = {row_sets[k].rows, row_sets[k].vectors * width + row_sets[k].more,
                                            row_sets[k].inner};
                option_inputs in;
                ce_case c;
                if (is_left_out(&row_sets[k], number))
                    continue;
                c = option_case(all_dtypes[d], shape, of->sets[s], LOGITS_NORMAL, number, &in);
                c.logits_offset = row_sets[k].offset;
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
    test_row_sets(&of);
}

static void masked_classes_of_every_schedule(void **state) {
    static const corner of = {"masked classes under a softcap",
                              prepare_masked,
                              {OPTION_SOFTCAP, OPTION_SOFTCAP | OPTION_SCALE | OPTION_WEIGHTS,
                               OPTION_SOFTCAP | OPTION_SMOOTHING, OPTION_SOFTCAP | OPTION_PROBABILITIES,
                               OPTION_SOFTCAP | OPTION_Z_LOSS | OPTION_ROW_WEIGHTS}};
    (void)state;
    REQUIRE_GPU();
    test_row_sets(&of);
}

static void negative_scales_of_every_schedule(void **state) {
    static const corner of = {"negative scale",
                              prepare_negative_scale,
                              {OPTION_SCALE, OPTION_SCALE | OPTION_SOFTCAP, OPTION_SCALE | OPTION_SMOOTHING,
                               OPTION_SCALE | OPTION_PROBABILITIES, END}};
    (void)state;
    REQUIRE_GPU();
    test_row_sets(&of);
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
    test_row_sets(&of);
}

static void weightless_targets_of_every_schedule(void **state) {
    static const corner of = {"targets of weight 0",
                              prepare_weightless,
                              {OPTION_WEIGHTS, OPTION_WEIGHTS | OPTION_Z_LOSS, OPTION_WEIGHTS | OPTION_SMOOTHING,
                               OPTION_WEIGHTS | OPTION_SOFTCAP | OPTION_IGNORE_INDEX,
                               OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_ROW_WEIGHTS}};
    (void)state;
    REQUIRE_GPU();
    test_row_sets(&of);
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
                free(result.grad); /* from a rounded lse, so not compared */
                result.grad = NULL;
                c.shards = 2;
                ce_check(&c, &result, &r);
                ce_free(&result);
                case_done(&r);
                option_inputs_free(&in);
            }
    test_done();
}

/* Uploads zeros to some rows of logits. The others stay uninitialised. */
static void put_zeros(const operand *logits, const int64_t *of_rows) {
    const size_t bytes = (size_t)logits->classes * logits->size;
    void *zeros = require_memory(bytes);
    int64_t row;
    memset(zeros, 0, bytes);
    for (row = 0; row < logits->rows; row++)
        if (of_rows[row] >= 0)
            require_ok(gpuloss_upload(harness_context, logits->device + logits->start + (size_t)row * bytes, zeros,
                                      bytes, NULL));
    free(zeros);
}

/* The first `first` rows have targets, and a third of 41 more. A row of zeros has the loss log C, with softcap too. Its
 * sum is exact, its logarithm within a unit in the last row_set, and the mean is rounded once: within 2 units. */
static void test_unread_rows(gpuloss_dtype dtype, int64_t first, int64_t classes, double softcap, bool gradient) {
    enum { MORE = 41, IGNORED = -100 };
    const int64_t rows = first + MORE;
    const double expected = log((double)classes), unit = dtype == GPULOSS_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
    int64_t *y = require_memory((size_t)rows * sizeof *y), row;
    report r = report_on("rows that are not read");
    operand logits = operand_new("logits", dtype_size(dtype), rows, classes, classes, 0, 0);
    operand targets = operand_new("targets", sizeof *y, rows, 1, 1, 0, 0);
    operand grad = operand_new("grad", dtype_size(dtype), rows, classes, classes, 0, 256);
    operand loss = result_output("loss", dtype, 1, 0, 256);
    operand *const all[] = {&logits, &targets, &grad, &loss};
    gpuloss_cross_entropy_desc desc = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    for (row = 0; row < rows; row++)
        y[row] = row < first || row % 3 == 1 ? row % classes : IGNORED;
    put_zeros(&logits, y);
    operand_put_indices(&targets, y);
    operand_poison(&grad);
    desc.logits = operand_pointer(&logits);
    desc.targets = operand_pointer(&targets);
    desc.target_type = GPULOSS_I64;
    desc.rows = rows;
    desc.classes = classes;
    desc.dtype = dtype;
    desc.softcap = softcap;
    desc.loss = operand_pointer(&loss);
    desc.grad_logits = gradient ? operand_pointer(&grad) : NULL;
    require_ok(gpuloss_cross_entropy(harness_context, &desc, NULL));
    compare_within(&r, "loss", 0, take_value(&loss, dtype_of_results(dtype), &r) - expected, 2 * unit * expected);
    if (gradient) {
        operand_fetch(&grad, &r, true);
        for (row = 0; row < rows; row++)
            compare_count(&r, "gradients", operand_value(&grad, dtype, row, 0) != 0, y[row] != IGNORED);
    }
    case_done(&r);
    operands_free(all, sizeof all / sizeof all[0]);
    free(y);
}

/* The interpreter, and compute-sanitizer's initcheck, report a load of uninitialised logits. A block of row_cta prefetches
 * its first two rows, and loads one of them, before their targets are known. */
static void ignored_rows_are_not_read(void **state) {
    enum { FIRST = 2 * 16 }; /* rows that the blocks of row_cta of a multiprocessor prefetch at most */
    static const struct {
        gpuloss_dtype dtype;
        int64_t classes, first;
        double softcap;
    } cases[] = {{GPULOSS_F32, 8192, FIRST, 0}, {GPULOSS_BF16, 16384, FIRST, 0}, {GPULOSS_F16, 40000, 0, 0},
                 {GPULOSS_F32, 17000, 0, 30},   {GPULOSS_BF16, 40000, 0, 30},    {GPULOSS_F64, 5000, 0, 0}};
    gpuloss_info info;
    size_t k;
    (void)state;
    REQUIRE_GPU();
    require_ok(gpuloss_get_info(harness_context, &info));
    for (k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        const int64_t first = cases[k].first * info.multiprocessors;
        test_unread_rows(cases[k].dtype, first, cases[k].classes, cases[k].softcap, false);
        test_unread_rows(cases[k].dtype, first, cases[k].classes, cases[k].softcap, true);
    }
    test_done();
}

int run_cross_entropy_schedule_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(confident_rows_of_every_schedule),  cmocka_unit_test(masked_classes_of_every_schedule),
        cmocka_unit_test(silent_rows_of_every_schedule),     cmocka_unit_test(weightless_targets_of_every_schedule),
        cmocka_unit_test(negative_scales_of_every_schedule), cmocka_unit_test(corners_of_a_split_vocabulary),
        cmocka_unit_test(ignored_rows_are_not_read),
    };
    return cmocka_run_group_tests_name("cross_entropy schedules", tests, NULL, NULL);
}
