/* gpuloss_cross_entropy with its options against the reference: sets of options, element types, outputs, factors. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "shapes.h"
#include "suites.h"

/* Every set of options with indices and with probabilities. A small run has one reduction for each. */
static void every_set_of_options(void **state) {
    static const option_shape shape = {6, 21, 0};
    unsigned set, d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (set = 0; set < 2 * OPTION_SETS; set++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (k = 0; k < REDUCTION_COUNT; k++, number++) {
                option_inputs in;
                ce_case c;
                if (harness_small && k != (set / 3 + d) % REDUCTION_COUNT)
                    continue;
                c = option_case(all_dtypes[d], shape, set, LOGITS_NORMAL, set, &in);
                option_vary(&c, number);
                c.reduction = all_reductions[k];
                if (c.reduction != GPULOSS_MEAN)
                    c.divisor_on_device = false, c.divisor = 0;
                ce_test(&c, "set of options");
                option_inputs_free(&in);
            }
    test_done();
}

/* The sets of options of a shape: one by its number, and all options where the reference is quick. */
static void run_shape(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned number) {
    option_shape shape = {rows, classes, 0};
    option_inputs in;
    ce_case c;
    if (harness_small && (number + (unsigned)dtype) % 4 != 0)
        return;
    c = option_case(dtype, shape, number * 37 % (2 * OPTION_SETS), (logits_kind)(number % LOGITS_KINDS), number, &in);
    option_vary(&c, number);
    ce_test(&c, "shape");
    option_inputs_free(&in);
    if (harness_small || rows * classes > 1 << 20)
        return;
    c = option_case(dtype, shape, OPTION_ALL | (number % 2 ? OPTION_PROBABILITIES : 0),
                    (logits_kind)(number / 2 % LOGITS_KINDS), number, &in);
    option_vary(&c, number + 3);
    ce_test(&c, "shape with every option");
    option_inputs_free(&in);
}

SHAPES_TEST(shapes_options_f32, GPULOSS_F32, run_shape)
SHAPES_TEST(shapes_options_f64, GPULOSS_F64, run_shape)
SHAPES_TEST(shapes_options_f16, GPULOSS_F16, run_shape)
SHAPES_TEST(shapes_options_bf16, GPULOSS_BF16, run_shape)

/* Every kind of logits with every option, in registers and streamed. */
static void options_of_every_kind_of_logits(void **state) {
    static const int64_t classes[] = {10, 700, 16500};
    size_t d, k;
    int kind;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (kind = 0; kind < LOGITS_KINDS; kind++) {
                option_shape shape = {2, classes[k], 0};
                unsigned options = kind % 2 ? OPTION_ALL & ~(unsigned)OPTION_SOFTCAP : OPTION_ALL;
                option_inputs in;
                ce_case c;
                if (harness_small && (classes[k] > 1000 || (size_t)kind % DTYPE_COUNT != d))
                    continue;
                options |= (size_t)kind / 2 % 2 == k % 2 ? OPTION_PROBABILITIES : 0;
                c = option_case(all_dtypes[d], shape, options, (logits_kind)kind, 11, &in);
                ce_test(&c, logits_kind_name((logits_kind)kind));
                option_inputs_free(&in);
            }
    test_done();
}

/* Logits, gradients and probabilities of any three types. */
static void every_triple_of_types(void **state) {
    static const option_shape shape = {3, 19, 0};
    unsigned d, g, t;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (g = 0; g < DTYPE_COUNT; g++)
            for (t = 0; t < DTYPE_COUNT; t++) {
                option_inputs in;
                ce_case c = option_case(all_dtypes[d], shape, OPTION_SMOOTHING | OPTION_PROBABILITIES, LOGITS_NORMAL,
                                        g + t, &in);
                c.grad_dtype = all_dtypes[g];
                option_target_dtype(&c, &in, all_dtypes[t]);
                c.logits_offset = (int)(d + t) % 2;
                c.target_offset = (int)(d + g) % 2;
                c.targets_in_place = g % 2 == 1;
                ce_test(&c, "types");
                /* An index target goes another way. */
                c.target_probabilities = NULL;
                c.targets_in_place = false;
                if (t == 0)
                    ce_test(&c, "types");
                option_inputs_free(&in);
            }
    test_done();
}

/* Probabilities of any type with the gradient of the logits alone, all of it in whole vectors. */
static void every_type_of_probabilities(void **state) {
    static const option_shape shape = {3, 40, 0};
    unsigned d, t;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (t = 0; t < DTYPE_COUNT; t++) {
            option_inputs in;
            ce_case c =
                option_case(all_dtypes[d], shape, OPTION_SMOOTHING | OPTION_PROBABILITIES, LOGITS_NORMAL, t, &in);
            option_target_dtype(&c, &in, all_dtypes[t]);
            c.outputs &= ~(unsigned)CE_OUT_GRAD_TARGETS;
            ce_test(&c, "types of probabilities");
            option_inputs_free(&in);
        }
    test_done();
}

/* Targets at the ends of their types, where there are enough classes. With 255 classes or more every u8 but the last is
 * a class. */
static void every_index_type(void **state) {
    static const struct {
        gpuloss_index_type type;
        int64_t classes, targets[6];
    } cases[] = {{GPULOSS_U8, 255, {0, 127, 128, 254, 255, 1}},
                 {GPULOSS_U8, 300, {0, 127, 128, 254, 255, 1}},
                 {GPULOSS_U8, 7, {0, 6, 7, 250, 255, 3}},
                 {GPULOSS_I16, 300, {0, 299, 300, -1, INT16_MIN, INT16_MAX}},
                 {GPULOSS_I32, 300, {0, 299, 65536 + 7, -1, INT32_MIN, INT32_MAX}},
                 {GPULOSS_I64, 300, {0, 299, 256 + 65536, -1, INT64_MIN, INT64_MAX}}};
    static const int64_t ignored[] = {255, -1, -100, 65535, 0};
    size_t d, k, i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof cases / sizeof cases[0]; k++)
            for (i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
                option_shape shape = {6, cases[k].classes, 0};
                option_inputs in;
                ce_case c;
                if (harness_small && (k + i) % DTYPE_COUNT != d)
                    continue;
                c = option_case(all_dtypes[d], shape, i % 2 ? OPTION_WEIGHTS : 0, LOGITS_NORMAL, k, &in);
                c.targets = cases[k].targets;
                c.index_type = cases[k].type;
                c.target_offset = (int)i % 3;
                c.use_ignore_index = true;
                c.ignore_index = ignored[i];
                ce_test(&c, "index type");
                option_inputs_free(&in);
            }
    test_done();
}

/* Every pair of outputs: without gradients, with them, and from a given lse other work is left out. */
static void every_pair_of_outputs(void **state) {
    static const option_shape shape = {4, 37, 0};
    static const double lse[] = {3.5, 6.25, 4, 5};
    static const unsigned sets[] = {0, OPTION_SMOOTHING, OPTION_WEIGHTS | OPTION_Z_LOSS, OPTION_ALL};
    unsigned first, second, number = 0, k;
    (void)state;
    REQUIRE_GPU();
    for (first = 1; first <= CE_OUT_GRAD_TARGETS; first *= 2)
        for (second = first; second <= CE_OUT_GRAD_TARGETS; second *= 2)
            for (k = 0; k < 16; k++, number++) {
                unsigned options = sets[k % 4] | (k & 4 ? OPTION_PROBABILITIES : 0u);
                option_inputs in;
                ce_case c;
                if (harness_small && k % 5 != number / 16 % 5)
                    continue;
                c = option_case(all_dtypes[number % 4], shape, options, LOGITS_NORMAL, 5, &in);
                if (!c.target_probabilities)
                    in.targets[2] = 37;
                c.lse_in = k & 8 ? lse : NULL;
                c.outputs = first | second;
                if (ce_outputs(&c))
                    ce_test(&c, "pair of outputs");
                option_inputs_free(&in);
            }
    test_done();
}

/* The factors of the gradients, with a divisor from either side. */
static void factors_and_divisors(void **state) {
    enum { ROWS = 5 };
    static const option_shape shape = {ROWS, 43, 0};
    static const double upstream = -0.75, weights[ROWS] = {1.0, 0.0, -2.0, 0.125, 3.0};
    unsigned d, given;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (given = 0; given < 64; given++) {
            unsigned options = OPTION_ROW_WEIGHTS | OPTION_WEIGHTS | (given & 8 ? OPTION_PROBABILITIES : 0u);
            option_inputs in;
            ce_case c;
            if (harness_small && given % 3 != d % 3)
                continue;
            c = option_case(all_dtypes[d], shape, options, LOGITS_NORMAL, 8, &in);
            c.use_grad_scale = given & 1;
            c.grad_scale = 1.0 / 3.0;
            c.grad_loss = given & 2 ? &upstream : NULL;
            c.grad_loss_rows = given & 4 ? weights : NULL;
            c.divisor = given & 16 ? 48.5 : 0;
            c.divisor_on_device = (given & 48) == 48;
            ce_test(&c, "factors");
            option_inputs_free(&in);
        }
    test_done();
}

static void run_lse_in(gpuloss_dtype dtype, option_shape shape, unsigned options, logits_kind kind) {
    option_inputs in;
    ce_case forward = option_case(dtype, shape, options, kind, 21, &in), backward;
    char text[CE_DESCRIPTION];
    ce_result first, second;
    report r;
    ce_describe(&forward, "lse saved and given back", text, sizeof text);
    r = report_on(text);
    forward.outputs = CE_OUT_LSE | CE_OUT_LOSS | CE_OUT_GRAD | CE_OUT_GRAD_TARGETS;
    ce_run(&forward, &first, &r);
    ce_check(&forward, &first, &r);
    backward = forward;
    backward.lse_in = first.lse;
    backward.outputs = CE_OUT_GRAD | CE_OUT_GRAD_TARGETS;
    ce_run(&backward, &second, &r);
    ce_check(&backward, &second, &r);
    ce_free(&second);
    backward.outputs = CE_OUT_EVERY;
    backward.in_place = true;
    ce_run(&backward, &second, &r);
    ce_check(&backward, &second, &r);
    ce_free(&second);
    ce_free(&first);
    option_inputs_free(&in);
    case_done(&r);
}

/* The gradients from a saved lse equal the fused ones within the bounds of both, since both follow the same formulas.
 * */
static void options_from_lse(void **state) {
    static const option_shape shapes[] = {{3, 10, 0}, {3, 257, 0}, {4, 11, 2}, {2, 16500, 0}};
    static const unsigned sets[] = {OPTION_WEIGHTS,
                                    OPTION_SMOOTHING,
                                    OPTION_WEIGHTS | OPTION_SMOOTHING,
                                    OPTION_Z_LOSS,
                                    OPTION_SOFTCAP | OPTION_SCALE,
                                    OPTION_ROW_WEIGHTS,
                                    OPTION_ALL,
                                    0};
    unsigned d, k, s, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (s = 0; s < 2 * sizeof sets / sizeof sets[0]; s++, number++) {
                unsigned options = sets[s / 2] | (s % 2 ? OPTION_PROBABILITIES : 0u);
                if (harness_small && (shapes[k].classes > 1000 || number % 5 != 0))
                    continue;
                run_lse_in(all_dtypes[d], shapes[k], options, (logits_kind)(number / 3 % LOGITS_KINDS));
            }
    test_done();
}

/* Long rows that do not begin at vectors, from an lse: one outside of the fast range, and rows with a masked class or
 * without a target. */
static void long_ragged_gradients_from_lse(void **state) {
    enum { ROWS = 5 };
    static const double lse[ROWS] = {10.25, 5000, 10, 9.75, 10.5};
    static const unsigned sets[] = {OPTION_WEIGHTS | OPTION_SMOOTHING, OPTION_WEIGHTS | OPTION_SMOOTHING |
                                                                           OPTION_ROW_WEIGHTS | OPTION_Z_LOSS |
                                                                           OPTION_IGNORE_INDEX};
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16, GPULOSS_F16};
    unsigned d, s;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
        for (s = 0; s < sizeof sets / sizeof sets[0]; s++) {
            const option_shape shape = {ROWS, dtypes[d] == GPULOSS_F32 ? 8209 : 16421, 0};
            option_inputs in;
            ce_case c;
            if (harness_small && d != s)
                continue;
            c = option_case(dtypes[d], shape, sets[s], LOGITS_NORMAL, 10 + s, &in);
            in.x[3 * shape.classes + 5000] = -INFINITY;
            c.lse_in = lse;
            c.outputs = CE_OUT_GRAD | CE_OUT_BAD_TARGETS;
            ce_test(&c, "gradients of long ragged rows");
            c.in_place = true;
            c.reduction = GPULOSS_NONE;
            ce_test(&c, "gradients of long ragged rows in place");
            option_inputs_free(&in);
        }
    test_done();
}

int run_cross_entropy_option_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_set_of_options),
        cmocka_unit_test(shapes_options_f32),
        cmocka_unit_test(shapes_options_f64),
        cmocka_unit_test(shapes_options_f16),
        cmocka_unit_test(shapes_options_bf16),
        cmocka_unit_test(options_of_every_kind_of_logits),
        cmocka_unit_test(every_triple_of_types),
        cmocka_unit_test(every_index_type),
        cmocka_unit_test(every_pair_of_outputs),
        cmocka_unit_test(factors_and_divisors),
        cmocka_unit_test(options_from_lse),
        cmocka_unit_test(every_type_of_probabilities),
        cmocka_unit_test(long_ragged_gradients_from_lse),
    };
    return cmocka_run_group_tests_name("cross_entropy options", tests, NULL, NULL);
}
