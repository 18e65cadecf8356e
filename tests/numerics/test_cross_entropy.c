/* gpuloss_cross_entropy against the reference: shapes, strides, alignments, outputs, factors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "run_common.h"
#include "run_cross_entropy.h"
#include "shapes.h"
#include "suites.h"

/* Logits and targets for a case; the memory lives as long as the inputs. */
typedef struct inputs {
    double *x;
    int64_t *targets;
} inputs;

static inputs inputs_new(gpuloss_dtype dtype, int64_t rows, int64_t classes, logits_kind kind, uint64_t seed) {
    inputs in;
    in.x = require_doubles(rows * classes);
    in.targets = (int64_t *)require_memory((size_t)rows * sizeof *in.targets);
    make_logits(in.x, rows, classes, kind, dtype, seed);
    make_targets(in.targets, rows, classes, seed);
    return in;
}

static void inputs_free(inputs *in) {
    free(in->x);
    free(in->targets);
}

/* Every other choice of a case repeats with the number of the case, in periods without a common factor where possible.
 * A run over all shapes thus meets the combinations in pairs. */
static void vary(ce_case *c, unsigned number) {
    int offsets = (int)(16 / dtype_size(c->dtype));
    c->reduction = all_reductions[number % REDUCTION_COUNT];
    c->index_type = number % 3 ? GPULOSS_I64 : GPULOSS_I32;
    c->logits_stride = (stride_kind)(number / 2 % STRIDE_KINDS);
    c->grad_stride = (stride_kind)(number / 3 % STRIDE_KINDS);
    c->logits_offset = (int)(number / 5) % offsets;
    c->grad_offset = (int)(number / 7) % offsets;
    c->target_offset = (int)number % 2;
    c->result_offset = (int)number % 3;
    c->in_place = number % 5 == 4;
    c->guard = number % 2 ? 256 : 0;
    c->own_workspace = number % 7 == 3;
}

static void run_shape(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned number) {
    logits_kind kind = (logits_kind)(number % LOGITS_KINDS);
    inputs in = inputs_new(dtype, rows, classes, kind, number);
    ce_case c = ce_case_of(dtype, rows, classes, in.x, in.targets);
    vary(&c, number);
    ce_test(&c, logits_kind_name(kind));
    inputs_free(&in);
}

SHAPES_TEST(shapes_f32, GPULOSS_F32, run_shape)
SHAPES_TEST(shapes_f64, GPULOSS_F64, run_shape)
SHAPES_TEST(shapes_f16, GPULOSS_F16, run_shape)
SHAPES_TEST(shapes_bf16, GPULOSS_BF16, run_shape)

/* Every kind of logits for a row that fits in registers and for one that does not. */
static void every_kind_of_logits(void **state) {
    static const int64_t classes[] = {10, 1000, 16500};
    size_t d, k;
    int kind;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (kind = 0; kind < LOGITS_KINDS; kind++) {
                inputs in = inputs_new(all_dtypes[d], 2, classes[k], (logits_kind)kind, 11);
                ce_case c = ce_case_of(all_dtypes[d], 2, classes[k], in.x, in.targets);
                ce_test(&c, logits_kind_name((logits_kind)kind));
                inputs_free(&in);
            }
    test_done();
}

/* Every base address that is aligned to one element: all pairs of logits and gradient, and some of the other arrays. */
static void every_offset(void **state) {
    enum { ROWS = 3 };
    static const int64_t classes[] = {1, 7, 67};
    size_t d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++) {
            int offsets = (int)(16 / dtype_size(all_dtypes[d])), i, j;
            inputs in = inputs_new(all_dtypes[d], ROWS, classes[k], LOGITS_NORMAL, k);
            ce_case c = ce_case_of(all_dtypes[d], ROWS, classes[k], in.x, in.targets);
            for (i = 0; i < offsets; i++)
                for (j = 0; j < offsets; j++) {
                    c.logits_offset = i;
                    c.grad_offset = j;
                    c.guard = (i + j) % 2 ? 256 : 0;
                    ce_test(&c, "offsets of logits and gradient");
                }
            c.logits_offset = c.grad_offset = 0;
            for (i = 0; i < 4; i++) {
                c.index_type = i < 2 ? GPULOSS_I32 : GPULOSS_I64;
                c.target_offset = i;
                c.result_offset = 3 - i;
                ce_test(&c, "offsets of targets and results");
            }
            inputs_free(&in);
        }
    test_done();
}

/* Every set of outputs with every reduction. */
static void every_set_of_outputs(void **state) {
    enum { ROWS = 4, CLASSES = 37 };
    size_t d, k;
    unsigned outputs;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        inputs in = inputs_new(all_dtypes[d], ROWS, CLASSES, LOGITS_NORMAL, 5);
        in.targets[1] = -100;
        in.targets[2] = CLASSES;
        for (k = 0; k < REDUCTION_COUNT; k++)
            for (outputs = 1; outputs <= CE_OUT_ALL; outputs++) {
                ce_case c = ce_case_of(all_dtypes[d], ROWS, CLASSES, in.x, in.targets);
                c.reduction = all_reductions[k];
                c.use_ignore_index = true;
                c.ignore_index = -100;
                c.outputs = outputs;
                if (c.reduction == GPULOSS_NONE && outputs & CE_OUT_LOSS)
                    continue;
                ce_test(&c, "outputs");
            }
        inputs_free(&in);
    }
    test_done();
}

/* Each output alone for a row that is streamed. */
static void outputs_of_long_rows(void **state) {
    enum { ROWS = 2, CLASSES = 16500 };
    size_t d;
    unsigned outputs;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        inputs in = inputs_new(all_dtypes[d], ROWS, CLASSES, LOGITS_NORMAL, 6);
        for (outputs = 1; outputs <= CE_OUT_BAD_TARGETS; outputs *= 2) {
            ce_case c = ce_case_of(all_dtypes[d], ROWS, CLASSES, in.x, in.targets);
            c.outputs = outputs;
            ce_test(&c, "one output");
        }
        inputs_free(&in);
    }
    test_done();
}

/* The factors of the gradient, alone and multiplied. */
static void gradient_factors(void **state) {
    enum { ROWS = 5, CLASSES = 43 };
    static const double scales[] = {0.0, 1.0, -1.5, 1.0 / 3.0, 65536.0};
    static const double upstream = -0.75;
    static const double weights[ROWS] = {1.0, 0.0, -2.0, 0.125, 3.0};
    size_t d, k;
    unsigned given;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        inputs in = inputs_new(all_dtypes[d], ROWS, CLASSES, LOGITS_NORMAL, 8);
        for (k = 0; k < sizeof scales / sizeof scales[0]; k++)
            for (given = 0; given < 8; given++) {
                ce_case c = ce_case_of(all_dtypes[d], ROWS, CLASSES, in.x, in.targets);
                c.reduction = all_reductions[(k + given) % REDUCTION_COUNT];
                c.use_grad_scale = given & 1;
                c.grad_scale = scales[k];
                c.grad_loss = given & 2 && c.reduction != GPULOSS_NONE ? &upstream : NULL;
                c.grad_loss_rows = given & 4 ? weights : NULL;
                ce_test(&c, "factors");
            }
        inputs_free(&in);
    }
    test_done();
}

static void run_lse_in(gpuloss_dtype dtype, int64_t rows, int64_t classes, logits_kind kind) {
    inputs in = inputs_new(dtype, rows, classes, kind, 21);
    ce_case forward = ce_case_of(dtype, rows, classes, in.x, in.targets), backward;
    char text[400];
    ce_result first, second;
    report r;
    ce_describe(&forward, "lse saved and given back", text, sizeof text);
    r = report_on(text);
    in.targets[rows - 1] = -100;
    forward.use_ignore_index = true;
    forward.ignore_index = -100;
    forward.outputs = CE_OUT_LSE | CE_OUT_LOSS;
    ce_run(&forward, &first, &r);
    ce_check(&forward, &first, &r);
    backward = forward;
    backward.lse_in = first.lse;
    backward.outputs = CE_OUT_GRAD;
    ce_run(&backward, &second, &r);
    ce_check(&backward, &second, &r);
    ce_free(&second);
    /* The loss alone. */
    backward.outputs = CE_OUT_LOSS | CE_OUT_LOSS_ROWS;
    ce_run(&backward, &second, &r);
    ce_check(&backward, &second, &r);
    ce_free(&second);
    /* Writes the loss as well, and the gradient over the logits. */
    backward.outputs = CE_OUT_ALL;
    backward.in_place = true;
    ce_run(&backward, &second, &r);
    ce_check(&backward, &second, &r);
    ce_free(&second);
    ce_free(&first);
    inputs_free(&in);
    case_done(&r);
}

/* The gradient from a saved lse is exp(x - lse) for the given lse. It equals the fused one within the bounds of both,
 * since both follow the same formula. */
static void backward_from_lse(void **state) {
    static const int64_t classes[] = {1, 10, 257, 16500};
    size_t d, k;
    int kind;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (kind = 0; kind < LOGITS_KINDS; kind += harness_small && classes[k] > 1000 ? 3 : 1)
                run_lse_in(all_dtypes[d], 3, classes[k], (logits_kind)kind);
    test_done();
}

int run_cross_entropy_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_f32),           cmocka_unit_test(shapes_f64),
        cmocka_unit_test(shapes_f16),           cmocka_unit_test(shapes_bf16),
        cmocka_unit_test(every_kind_of_logits), cmocka_unit_test(every_offset),
        cmocka_unit_test(every_set_of_outputs), cmocka_unit_test(outputs_of_long_rows),
        cmocka_unit_test(gradient_factors),     cmocka_unit_test(backward_from_lse),
    };
    return cmocka_run_group_tests_name("cross_entropy", tests, NULL, NULL);
}
