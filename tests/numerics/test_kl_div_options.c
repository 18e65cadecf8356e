/* gpuloss_kl_div with its options against the reference: kinds, divergences, element types, options, outputs, factors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "run_common.h"
#include "shapes.h"
#include "suites.h"

/* All kinds with all divergences, for every pair of element types. */
static void every_divergence(void **state) {
    static const divergence_shape shapes[] = {{3, 21}, {2, 700}};
    unsigned d, t, pair, choice, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (t = 0; t < DTYPE_COUNT; t++)
                for (pair = 0; pair < KL_KIND_PAIRS; pair++)
                    for (choice = 0; choice < CHOICES; choice++, number++) {
                        distribution_kind kind = (distribution_kind)(number / 5 % DISTRIBUTIONS_KINDS);
                        kl_inputs in;
                        kl_case c;
                        if (harness_small && (k > 0 || (number + d) % 3 != 0))
                            continue;
                        c = divergence_case(all_dtypes[d], all_dtypes[t], shapes[k], pair, choice);
                        in = divergence_inputs(&c, kind, number % 2 ? KL_WITH_TEMPERATURE : 0, number / 2);
                        divergence_vary(&c, number);
                        kl_test(&c, distribution_kind_name(kind));
                        kl_inputs_free(&in);
                    }
    test_done();
}

/* Every set of options with every divergence. A small run takes some, in which every pair of options occurs. */
static void every_set_of_divergence_options(void **state) {
    static const divergence_shape shape = {6, 21};
    unsigned set, pair, choice, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (set = 0; set < KL_WITH_SETS; set++)
        for (pair = 0; pair < KL_KIND_PAIRS; pair++)
            for (choice = 0; choice < CHOICES; choice++, number++) {
                gpuloss_dtype dtype = all_dtypes[number % DTYPE_COUNT];
                gpuloss_dtype target_dtype = all_dtypes[number / 3 % DTYPE_COUNT];
                kl_inputs in;
                kl_case c;
                if (harness_small && number % 11 != 0)
                    continue;
                c = divergence_case(dtype, target_dtype, shape, pair, choice);
                in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, set, number);
                divergence_vary(&c, number / 11);
                kl_test(&c, "set of options");
                kl_inputs_free(&in);
            }
    test_done();
}

/* A shape meets one divergence of one pair of kinds after the other. Its arrays are of one type and packed more often
 * than not, because that is how most are. */
static void run_shape(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned number) {
    divergence_shape shape = {rows, classes};
    gpuloss_dtype target_dtype = number % 3 == 1 ? all_dtypes[number / 3 % DTYPE_COUNT] : GPULOSS_DTYPE_UNSET;
    distribution_kind kind = (distribution_kind)(number / 2 % DISTRIBUTIONS_KINDS);
    kl_inputs in;
    kl_case c;
    if (harness_small ? (number + (unsigned)dtype) % 4 != 0 : rows * classes > INT64_C(1) << 19)
        return;
    c = divergence_case(dtype, target_dtype, shape, number * 7 % KL_KIND_PAIRS, number * 3 % CHOICES);
    in = divergence_inputs(&c, kind, number * 13 % KL_WITH_SETS, number);
    if (number % 3)
        divergence_vary(&c, number);
    kl_test(&c, "shape");
    kl_inputs_free(&in);
}

SHAPES_TEST(shapes_divergences_f32, GPULOSS_F32, run_shape)
SHAPES_TEST(shapes_divergences_f64, GPULOSS_F64, run_shape)
SHAPES_TEST(shapes_divergences_f16, GPULOSS_F16, run_shape)
SHAPES_TEST(shapes_divergences_bf16, GPULOSS_BF16, run_shape)

/* Rows of more than 16384 classes. */
static void divergences_of_long_rows(void **state) {
    static const int64_t classes[] = {20011, 40000};
    unsigned d, pair, choice, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < 2; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (pair = 0; pair < KL_KIND_PAIRS; pair++)
                for (choice = 0; choice < CHOICE_JS; choice++, number++) {
                    divergence_shape shape = {1, classes[k]};
                    kl_inputs in;
                    kl_case c;
                    if (harness_small && number % 31 != 0)
                        continue;
                    c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, pair, choice);
                    in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, KL_WITH_TEMPERATURE, number);
                    c.input_offset = (int)number % 3;
                    kl_test(&c, "long rows");
                    kl_inputs_free(&in);
                }
    test_done();
}

/* Every kind of logits on either side. The other side has the same kind in reverse order. */
static void divergences_of_every_kind_of_logits(void **state) {
    static const divergence_shape shapes[] = {{3, 40}, {2, 2500}};
    static const double temperatures[] = {0, 0.1, 20, 2};
    unsigned d, k, choice, number = 0;
    int kind;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < 2; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (kind = 0; kind < LOGITS_KINDS; kind++)
                for (choice = 0; choice < CHOICE_JS; choice++, number++) {
                    kl_inputs in;
                    kl_case c;
                    int64_t i, n = shapes[k].rows * shapes[k].classes;
                    if (harness_small && (k > 0 || number % 2))
                        continue;
                    c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shapes[k], KL_KIND_PAIRS - 1, choice);
                    in = kl_inputs_unset(&c);
                    make_logits(in.input, c.rows, c.classes, (logits_kind)kind, c.dtype, number);
                    for (i = 0; i < n; i++)
                        in.target[i] = in.input[n - 1 - i];
                    c.temperature = temperatures[number / 2 % 4];
                    c.temperature_squared = c.temperature > 0 && number % 3 == 0;
                    kl_test(&c, logits_kind_name((logits_kind)kind));
                    kl_inputs_free(&in);
                }
    test_done();
}

/* Every set of outputs: without terms, without gradients, with one of them, other work is left out. */
static void every_set_of_divergence_outputs(void **state) {
    static const divergence_shape shape = {4, 37};
    unsigned outputs, pair, choice, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (outputs = 1; outputs <= KL_OUT_EVERY; outputs++)
        for (pair = 0; pair < KL_KIND_PAIRS; pair++)
            for (choice = 0; choice < CHOICE_JS; choice++, number++) {
                kl_inputs in;
                kl_case c;
                if (harness_small && number % 4 != outputs % 4)
                    continue;
                c = divergence_case(all_dtypes[number % DTYPE_COUNT], GPULOSS_DTYPE_UNSET, shape, pair, choice);
                in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, outputs % 3 ? 0 : KL_WITH_LABELS, number);
                c.reduction = all_reductions[number / 4 % REDUCTION_COUNT];
                c.outputs = outputs;
                if (kl_outputs(&c))
                    kl_test(&c, "outputs");
                kl_inputs_free(&in);
            }
    test_done();
}

/* All three of the same arrays, by every way of not being aligned. */
static void every_divergence_offset(void **state) {
    static const divergence_shape shape = {3, 67};
    unsigned d, t;
    int i, j;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (t = 0; t < DTYPE_COUNT; t++) {
            int inputs = (int)(16 / dtype_size(all_dtypes[d])), targets = (int)(16 / dtype_size(all_dtypes[t]));
            for (i = 0; i < inputs; i++)
                for (j = 0; j < targets; j++) {
                    kl_case c = divergence_case(all_dtypes[d], all_dtypes[t], shape, (unsigned)(i + j) % KL_KIND_PAIRS,
                                                (unsigned)(i + 2 * j) % CHOICES);
                    kl_inputs in;
                    if (harness_small && (unsigned)(i + 3 * j) % 4 != (d + t) % 4)
                        continue;
                    in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, 3);
                    c.input_offset = i;
                    c.target_offset = j;
                    c.grad_offset = (i + 2 * j) % inputs;
                    c.grad_target_offset = (2 * i + j) % targets;
                    c.result_offset = (i + j) % 4;
                    c.guard = (i + j) % 2 ? 256 : 0;
                    kl_test(&c, "offsets");
                    kl_inputs_free(&in);
                }
        }
    test_done();
}

/* The factors of the gradients, with a divisor from either side, and rows that are left out. */
static void divergence_factors(void **state) {
    enum { ROWS = 5 };
    static const divergence_shape shape = {ROWS, 43};
    static const double upstream = -0.75, rows[ROWS] = {1.0, 0.0, -2.0, 0.125, 3.0};
    unsigned d, given;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (given = 0; given < 128; given++) {
            unsigned options = (given & 8 ? KL_WITH_ROW_WEIGHTS : 0u) | (given & 16 ? KL_WITH_LABELS : 0u) |
                               KL_WITH_TEMPERATURE | KL_WITH_SQUARE;
            kl_inputs in;
            kl_case c;
            if (harness_small && given % 3 != d % 3)
                continue;
            c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, given % KL_KIND_PAIRS, given % CHOICES);
            in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, options, given);
            c.reduction = given % 2 ? GPULOSS_MEAN : GPULOSS_BATCHMEAN;
            c.use_grad_scale = given & 1;
            c.grad_scale = 1.0 / 3.0;
            c.grad_loss = given & 2 ? &upstream : NULL;
            c.grad_loss_rows = given & 4 ? rows : NULL;
            c.divisor = given & 32 ? 48.5 : 0;
            c.divisor_on_device = (given & 96) == 96;
            kl_test(&c, "factors");
            kl_inputs_free(&in);
        }
    test_done();
}

/* Targets of floats beside inputs of 16 bits: rows of one step of a warp, and of several long stages. */
static void divergences_of_floats_and_16_bits(void **state) {
    static const int64_t classes[] = {480, 1000, 1024, 1608, 5603};
    static const unsigned outputs[] = {KL_OUT_LOSS | KL_OUT_LOSS_ROWS, KL_OUT_LOSS | KL_OUT_GRAD,
                                       KL_OUT_GRAD | KL_OUT_GRAD_TARGET};
    unsigned d, k, pair, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (pair = 0; pair < KL_KIND_PAIRS; pair++, number++) {
                const divergence_shape shape = {40, classes[k]};
                kl_case c = divergence_case(d == 0 ? GPULOSS_F16 : GPULOSS_BF16, GPULOSS_F32, shape, pair,
                                            number % (CHOICE_JS + 1));
                kl_inputs in;
                if (harness_small && number % 3 != 0)
                    continue;
                in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, number);
                c.outputs = outputs[number / 3 % 3];
                kl_test(&c, "floats and 16 bits");
                kl_inputs_free(&in);
            }
    test_done();
}

/* Rows that no cluster retains whole: each sweep after the first copies steps of them once more. The last sweep writes, or is
 * that of the values. */
static void divergences_of_rows_that_do_not_fit(void **state) {
    enum { VECTORS = 16 * 256 * 12, MORE = 4100 }; /* vectors that the largest cluster retains of each array */
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16};
    static const gpuloss_kind targets[] = {GPULOSS_PROBABILITIES, GPULOSS_LOG_PROBABILITIES};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (k = 0; k < 4; k++) {
            const divergence_shape shape = {1, (VECTORS + MORE) * 16 / (int64_t)dtype_size(dtypes[d]) + 3 * (k % 2)};
            kl_case c =
                divergence_case(dtypes[d], GPULOSS_DTYPE_UNSET, shape, 0, k < 2 ? CHOICE_FORWARD : CHOICE_JS_HALF);
            kl_inputs in;
            if (harness_small && (d > 0 || k != 2))
                continue;
            c.input_kind = GPULOSS_LOGITS;
            c.target_kind = targets[k / 2];
            c.outputs = k == 0 ? KL_OUT_LOSS : KL_OUT_LOSS | KL_OUT_GRAD;
            in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, k);
            kl_test(&c, "rows that do not fit");
            kl_inputs_free(&in);
        }
    test_done();
}

/* Every kind, divergence, type of the target and set of outputs, in rows of 48 vectors and more. Rows are whole vectors
 * or not, and the vectors of the two sides may differ. The last shape is that of a cluster. */
static void divergences_of_the_pipeline(void **state) {
    static const divergence_shape shapes[] = {{5, 448}, {3, 453}, {2, 8201}};
    static const unsigned outputs[] = {KL_OUT_EVERY,
                                       KL_OUT_GRAD | KL_OUT_GRAD_TARGET,
                                       KL_OUT_LOSS | KL_OUT_LOSS_ROWS,
                                       KL_OUT_LOSS | KL_OUT_LOSS_ROWS | KL_OUT_GRAD_TARGET,
                                       KL_OUT_GRAD,
                                       KL_OUT_LOSS_ROWS | KL_OUT_LOSS_ELEMENTS,
                                       KL_OUT_LOSS | KL_OUT_GRAD};
    enum { SETS = sizeof outputs / sizeof outputs[0], SOME = 3 };
    unsigned d, t, pair, choice, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < 3; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (t = 0; t < DTYPE_COUNT; t++)
                for (pair = 0; pair < KL_KIND_PAIRS; pair++)
                    for (choice = 0; choice < CHOICE_JS; choice++, number++) {
                        kl_inputs in;
                        kl_case c;
                        if (harness_small && (number + number / 36) % SOME != 0)
                            continue;
                        c = divergence_case(all_dtypes[d], all_dtypes[t], shapes[k], pair, choice);
                        in = divergence_inputs(&c, (distribution_kind)(number / 7 % DISTRIBUTIONS_KINDS),
                                               number * 29 % KL_WITH_SETS, number);
                        if (k > 0 || number % 2)
                            divergence_vary(&c, number);
                        c.outputs = outputs[number / SOME % SETS];
                        c.pytorch_zeros = choice == CHOICE_FORWARD && number / 15 % 3 == 1;
                        kl_test(&c, "pipeline");
                        kl_inputs_free(&in);
                    }
    test_done();
}

/* Classes outside of whole vectors, of every kind and divergence with each of its gradients, and PyTorch's zeros. */
static void ragged_divergences_of_the_pipeline(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16};
    static const unsigned choices[] = {CHOICE_FORWARD, CHOICE_REVERSE, CHOICE_JS_HALF, CHOICE_TV, CHOICE_FORWARD};
    static const unsigned outputs[] = {KL_OUT_EVERY, KL_OUT_LOSS | KL_OUT_LOSS_ROWS,
                                       KL_OUT_LOSS | KL_OUT_GRAD | KL_OUT_LOSS_ELEMENTS};
    enum { ZEROS = sizeof choices / sizeof choices[0] - 1 };
    unsigned d, pair, choice, k, kind, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (pair = 0; pair < KL_KIND_PAIRS; pair++)
            for (choice = 0; choice <= ZEROS; choice++)
                for (k = 0; k < 3; k++)
                    for (kind = 0; kind < (choice == ZEROS ? DISTRIBUTIONS_KINDS : 1); kind++, number++) {
                        const divergence_shape shape = {3, 453};
                        kl_case c = divergence_case(dtypes[d], GPULOSS_DTYPE_UNSET, shape, pair, choices[choice]);
                        kl_inputs in =
                            divergence_inputs(&c, (distribution_kind)((kind + number / 7) % DISTRIBUTIONS_KINDS),
                                              choice == ZEROS ? 0 : number * 29 % KL_WITH_SETS, number);
                        c.outputs = outputs[k];
                        c.pytorch_zeros = choice == ZEROS;
                        kl_test(&c, "ragged rows of the pipeline");
                        kl_inputs_free(&in);
                    }
    test_done();
}

/* KL of two arrays of logits in long rows that are fewer than the multiprocessors. */
static void few_long_rows_of_two_logits(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16};
    static const unsigned outputs[] = {KL_OUT_LOSS | KL_OUT_LOSS_ROWS, KL_OUT_LOSS | KL_OUT_GRAD, KL_OUT_GRAD};
    static const int64_t vectors[] = {300, 1100, 5000};
    unsigned d, reverse, k, v, kind, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (reverse = 0; reverse < 2; reverse++)
            for (v = 0; v < 3; v++)
                for (k = 0; k < 3; k++)
                    for (kind = 0; kind < DISTRIBUTIONS_KINDS; kind++, number++) {
                        const divergence_shape shape = {2, vectors[v] * 16 / (int64_t)dtype_size(dtypes[d]) +
                                                               (number % 3 ? 0 : 1)};
                        kl_case c = divergence_case(dtypes[d], GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1,
                                                    reverse ? CHOICE_REVERSE : CHOICE_FORWARD);
                        kl_inputs in = divergence_inputs(&c, (distribution_kind)kind, 0, number);
                        c.outputs = outputs[k];
                        kl_test(&c, "few long rows");
                        kl_inputs_free(&in);
                    }
    test_done();
}

/* Gradients of long rows in clusters. The clusters have long stages, because there is a row for each multiprocessor. */
static void many_long_rows_for_clusters(void **state) {
    gpuloss_info info;
    unsigned k;
    (void)state;
    REQUIRE_GPU();
    require_ok(gpuloss_get_info(harness_context, &info));
    for (k = 0; k < 3; k++) {
        const divergence_shape shape = {info.multiprocessors, 24600 + (k == 2)};
        kl_case c = divergence_case(k == 1 ? GPULOSS_BF16 : GPULOSS_F32, GPULOSS_F32, shape,
                                    k == 1 ? KL_KIND_PAIRS - 1 : KL_KINDS - 1, CHOICE_FORWARD);
        kl_inputs in;
        c.outputs = KL_OUT_LOSS | KL_OUT_GRAD;
        in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, k);
        kl_test(&c, "many long rows for clusters");
        kl_inputs_free(&in);
    }
    test_done();
}

/* Losses of probabilities are one sweep, whose stages are released as soon as they are added. */
static void many_losses_of_probabilities(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16};
    static const unsigned choices[] = {CHOICE_TV, CHOICE_REVERSE, CHOICE_JS_HALF};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (k = 0; k < 3; k++) {
            const divergence_shape shape = {230, 129 * 16 / (int64_t)dtype_size(dtypes[d])};
            kl_case c = divergence_case(dtypes[d], GPULOSS_DTYPE_UNSET, shape, 0, choices[k]);
            kl_inputs in;
            c.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS;
            in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, k);
            kl_test(&c, "many losses of probabilities");
            kl_inputs_free(&in);
        }
    test_done();
}

/* Jensen-Shannon with nearly all of the mixture on one side, in rows of every kernel. */
static void betas_next_to_0_and_1(void **state) {
    static const double betas[] = {1e-7, 1e-6, 0.25, 1 - 1e-6, 1 - 1e-7};
    static const int64_t classes[] = {50, 1000, 9001};
    unsigned d, pair, k, i, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (pair = 0; pair < KL_KIND_PAIRS; pair++)
            for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
                for (i = 0; i < sizeof betas / sizeof betas[0]; i++, number++) {
                    const divergence_shape shape = {2, classes[k]};
                    kl_case c;
                    kl_inputs in;
                    if (harness_small && number % 4 != 0)
                        continue;
                    c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, pair, CHOICE_JS);
                    in = divergence_inputs(&c, (distribution_kind)(number / 4 % DISTRIBUTIONS_KINDS), 0, number / 4);
                    c.beta = betas[i];
                    c.outputs = number % 3 ? KL_OUT_EVERY : KL_OUT_LOSS | KL_OUT_LOSS_ROWS | KL_OUT_GRAD;
                    kl_test(&c, "beta next to 0 or 1");
                    kl_inputs_free(&in);
                }
    test_done();
}

int run_kl_div_option_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_divergence),
        cmocka_unit_test(every_set_of_divergence_options),
        cmocka_unit_test(shapes_divergences_f32),
        cmocka_unit_test(shapes_divergences_f64),
        cmocka_unit_test(shapes_divergences_f16),
        cmocka_unit_test(shapes_divergences_bf16),
        cmocka_unit_test(divergences_of_long_rows),
        cmocka_unit_test(divergences_of_every_kind_of_logits),
        cmocka_unit_test(every_set_of_divergence_outputs),
        cmocka_unit_test(every_divergence_offset),
        cmocka_unit_test(divergence_factors),
        cmocka_unit_test(divergences_of_the_pipeline),
        cmocka_unit_test(ragged_divergences_of_the_pipeline),
        cmocka_unit_test(few_long_rows_of_two_logits),
        cmocka_unit_test(many_long_rows_for_clusters),
        cmocka_unit_test(divergences_of_rows_that_do_not_fit),
        cmocka_unit_test(divergences_of_floats_and_16_bits),
        cmocka_unit_test(many_losses_of_probabilities),
        cmocka_unit_test(betas_next_to_0_and_1),
    };
    return cmocka_run_group_tests_name("kl_div options", tests, NULL, NULL);
}
