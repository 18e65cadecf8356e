/* Calls for chunks of rows, which add up their sums. They give the results of one call. The device computes the divisor
 * of their mean. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "option_cases.h"
#include "run_common.h"
#include "sparse_cases.h"
#include "suites.h"

/* Rows of whole images, and the rows of a call. */
typedef struct chunk_shape {
    int64_t rows, classes, inner, chunk;
} chunk_shape;
static const chunk_shape shapes[] = {{7, 5, 0, 3},    {5, 300, 0, 1},  {9, 33, 0, 9},  {12, 9, 4, 8},
                                     {6, 1200, 0, 4}, {3, 5000, 0, 2}, {64, 12, 0, 60}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* The numbers of cases, of which an interpreter takes some. */
static unsigned step(void) {
    return harness_small ? 17 : 1;
}

static void chunks_of_cross_entropy(void **state) {
    unsigned d, k, options, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < SHAPES; k++)
            for (options = 0; options < 2 * OPTION_SETS; options += step(), number++) {
                const option_shape shape = {shapes[k].rows, shapes[k].classes, shapes[k].inner};
                option_inputs in;
                ce_case c;
                if (harness_small && shape.classes > 1000 && number % 4)
                    continue;
                c = option_case(all_dtypes[d], shape, options, LOGITS_NORMAL, number, &in);
                option_vary(&c, number);
                c.chunk = shapes[k].chunk;
                if (c.reduction == GPULOSS_BATCHMEAN) /* is of the rows of a call */
                    c.reduction = GPULOSS_MEAN;
                if (!c.target_probabilities && number % 4 == 1)
                    in.targets[c.rows - 1] = c.classes; /* is bad and counted: the loss is NaN */
                ce_test(&c, "chunks");
                option_inputs_free(&in);
            }
    test_done();
}

static void chunks_of_divergences(void **state) {
    unsigned d, k, pair, choice, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < SHAPES; k++)
            for (pair = 0; pair < KL_KIND_PAIRS; pair++)
                for (choice = 0; choice < CHOICES; choice++, number++) {
                    const divergence_shape shape = {shapes[k].rows, shapes[k].classes};
                    kl_inputs in;
                    kl_case c;
                    if (number % step() != 0 || (harness_small && shape.classes > 1000 && number % 4))
                        continue;
                    c = divergence_case(all_dtypes[d], all_dtypes[(d + number) % DTYPE_COUNT], shape, pair, choice);
                    c.inner = shapes[k].inner;
                    c.chunk = shapes[k].chunk;
                    in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, number % KL_WITH_SETS, number);
                    divergence_vary(&c, number);
                    kl_test(&c, "chunks");
                    kl_inputs_free(&in);
                }
    test_done();
}

static void chunks_of_sparse_teachers(void **state) {
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < SHAPES; k++)
            for (number = d * 64 + k; number < d * 64 + 64; number += step()) {
                const sparse_shape shape = {shapes[k].rows, shapes[k].classes, 4};
                sparse_case c = sparse_case_of(all_dtypes[d], shape);
                sparse_inputs in;
                sparse_vary(&c, number);
                c.chunk = shapes[k].chunk;
                sparse_fill(&c, LOGITS_NORMAL, 0.9, number, &in);
                if (number % 3)
                    sparse_mask(&c, &in);
                if (number % 2)
                    sparse_weigh(&c, &in);
                if (number % 4 == 1 && c.classes < 256) /* each type of indices has this number */
                    in.indices[1] = c.classes;
                sparse_test(&c, "chunks");
                sparse_inputs_free(&in);
            }
    test_done();
}

/* Rows of `vectors` vectors of 16 bytes and `more` classes, in two chunks. They reach the kernels of all lengths. */
typedef struct kernel_shape {
    int64_t rows, vectors, more, inner;
    stride_kind stride;
    unsigned choice; /* the options of a cross-entropy, or a divergence */
} kernel_shape;

static int64_t classes_of(const kernel_shape *shape, gpuloss_dtype dtype) {
    return shape->vectors * (int64_t)(16 / dtype_size(dtype)) + shape->more;
}

static void chunks_of_all_lengths(void **state) {
    static const kernel_shape kinds[] = {
        {20, 0, 10, 0, STRIDE_PACKED, OPTION_IGNORE_INDEX},
        {20, 0, 150, 0, STRIDE_PACKED, OPTION_IGNORE_INDEX},
        {8, 250, 0, 0, STRIDE_PACKED, OPTION_IGNORE_INDEX},
        {6, 1024, 1, 0, STRIDE_PACKED, OPTION_IGNORE_INDEX},
        {4, 4125, 0, 0, STRIDE_PACKED, OPTION_IGNORE_INDEX},
        {2, 8500, 0, 0, STRIDE_PACKED, OPTION_IGNORE_INDEX},
        {9, 0, 150, 0, STRIDE_ONE_MORE, OPTION_IGNORE_INDEX},
        {32, 0, 21, 16, STRIDE_PACKED, OPTION_IGNORE_INDEX},
        {2048, 0, 5, 1024, STRIDE_PACKED, OPTION_IGNORE_INDEX},
        {2048, 0, 26, 1024, STRIDE_PACKED, OPTION_IGNORE_INDEX},
        {6, 1024, 1, 0, STRIDE_PACKED, OPTION_Z_LOSS},
        {4, 2049, 0, 0, STRIDE_PACKED, OPTION_SMOOTHING | OPTION_WEIGHTS},
        {4, 2049, 0, 0, STRIDE_PACKED, OPTION_SMOOTHING | OPTION_WEIGHTS | OPTION_Z_LOSS}};
    unsigned d, k, pass;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            for (pass = 0; pass < 2; pass++) {
                const option_shape shape = {kinds[k].rows, classes_of(&kinds[k], all_dtypes[d]), kinds[k].inner};
                option_inputs in;
                ce_case c = option_case(all_dtypes[d], shape, kinds[k].choice, LOGITS_NORMAL, k, &in);
                if (kinds[k].choice == OPTION_IGNORE_INDEX)
                    c.outputs = pass == 0 ? CE_OUT_ALL : CE_OUT_LOSS | CE_OUT_BAD_TARGETS;
                else if (pass == 0)
                    c.outputs &= ~(unsigned)CE_OUT_GRAD;
                c.logits_stride = kinds[k].stride;
                c.chunk = c.inner ? c.inner : (c.rows + 1) / 2;
                if (k % 4 == 1)
                    in.targets[0] = -1;
                ce_test(&c, "chunks of a length");
                option_inputs_free(&in);
            }
    test_done();
}

/* The call that combines shards adds to the numbers there, too. Its divisor is that of the whole vocabulary. */
static void chunk_of_shards(void **state) {
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        const option_shape shape = {9, 50, 0};
        option_inputs in;
        ce_case c = option_case(all_dtypes[d], shape, OPTION_ALL, LOGITS_NORMAL, d, &in);
        c.chunk = c.rows;
        ce_test_shards(&c, 20, "chunk of shards");
        option_inputs_free(&in);
    }
    test_done();
}

static void chunks_of_probabilities(void **state) {
    static const kernel_shape kinds[] = {
        {20, 0, 10, 0, STRIDE_PACKED, 0}, {6, 0, 1000, 0, STRIDE_PACKED, 0}, {4, 1600, 1, 0, STRIDE_PACKED, 0}};
    static const unsigned outputs[] = {KL_OUT_ALL, KL_OUT_LOSS, KL_OUT_LOSS | KL_OUT_GRAD};
    unsigned d, k, pair;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            for (pair = 0; pair < KL_PAIRS; pair++) {
                kl_case c = kl_case_of_pair(all_dtypes[d], kinds[k].rows, classes_of(&kinds[k], all_dtypes[d]), pair);
                kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, k);
                c.outputs = outputs[k];
                c.chunk = c.rows / 2;
                kl_test(&c, "chunks of probabilities");
                kl_inputs_free(&in);
            }
    test_done();
}

static void chunks_of_two_logits(void **state) {
    static const kernel_shape kinds[] = {
        {20, 0, 10, 0, STRIDE_PACKED, CHOICE_FORWARD},  {14, 0, 150, 0, STRIDE_PACKED, CHOICE_FORWARD},
        {6, 513, 1, 0, STRIDE_PACKED, CHOICE_FORWARD},  {10, 513, 0, 0, STRIDE_PACKED, CHOICE_FORWARD},
        {4, 1030, 0, 0, STRIDE_PACKED, CHOICE_FORWARD}, {6, 130, 3, 0, STRIDE_ONE_MORE, CHOICE_REVERSE},
        {2, 4100, 0, 0, STRIDE_PACKED, CHOICE_FORWARD}, {4, 2050, 0, 0, STRIDE_PACKED, CHOICE_JS_HALF},
        {2, 2050, 1, 0, STRIDE_ONE_MORE, CHOICE_TV}};
    static const unsigned outputs[] = {KL_OUT_LOSS | KL_OUT_GRAD, KL_OUT_LOSS, KL_OUT_LOSS | KL_OUT_LOSS_ROWS};
    unsigned d, k, pass;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            for (pass = 0; pass < 3; pass++) {
                const divergence_shape shape = {kinds[k].rows, classes_of(&kinds[k], all_dtypes[d])};
                kl_case c =
                    divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1, kinds[k].choice);
                kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, k % 2 ? KL_WITH_LABELS : 0u, k);
                c.outputs = outputs[pass];
                c.input_stride = kinds[k].stride;
                c.chunk = c.rows / 2;
                kl_test(&c, "chunks of two logits");
                kl_inputs_free(&in);
            }
    test_done();
}

/* One chunk of all rows has the same bits as one call: both divide by the same number. Where no target has a weight or
 * every row is ignored, that number is 0. */
static void one_chunk(void **state) {
    static const unsigned options[] = {OPTION_IGNORE_INDEX, OPTION_IGNORE_INDEX | OPTION_WEIGHTS,
                                       OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_ROW_WEIGHTS, OPTION_PROBABILITIES, 0};
    unsigned d, i, all;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (i = 0; i < sizeof options / sizeof options[0]; i++)
            for (all = 0; all < 2; all++) {
                const option_shape shape = {harness_small ? 40 : 5000, 21, 0};
                char text[CE_DESCRIPTION];
                option_inputs in;
                ce_case c = option_case(all_dtypes[d], shape, options[i], LOGITS_NORMAL, d, &in);
                ce_result whole, chunk;
                report r;
                int64_t row, elements = c.rows * c.classes;
                for (row = 0; all && row < c.rows; row++)
                    in.targets[row] = c.use_ignore_index ? c.ignore_index : 3; /* the weight of class 3 is 0 */
                ce_describe(&c, "one chunk", text, sizeof text);
                r = report_on(text);
                ce_run(&c, &whole, &r);
                c.chunk = c.rows;
                c.runs = 3;
                ce_run(&c, &chunk, &r);
                ce_check(&c, &chunk, &r);
                compare_bits(&r, "loss", &whole.loss, &chunk.loss, sizeof whole.loss);
                compare_bits(&r, "z_loss", &whole.z_loss, &chunk.z_loss, sizeof whole.z_loss);
                compare_bits(&r, "grad", whole.grad, chunk.grad, (size_t)elements * sizeof *whole.grad);
                compare_count(&r, "correct", chunk.correct, whole.correct);
                ce_free(&whole);
                ce_free(&chunk);
                option_inputs_free(&in);
                case_done(&r);
            }
    test_done();
}

/* ---- the divisor by itself ---- */

/* Targets of every kind: ignored, of a class, of none. */
typedef struct divisor_case {
    gpuloss_dtype dtype;
    gpuloss_index_type type;
    int64_t rows, classes, total_classes; /* the latter 0: not in shards */
    int64_t *targets;
    const double *weights; /* of all classes; NULL: none */
    bool ignores;
} divisor_case;

/* Weights are multiples of 2^-20 or 2^-40 below 4: in a long double, the sum of 2^20 of them is exact. */
static long double expected_divisor(const divisor_case *c) {
    const int64_t classes = c->total_classes ? c->total_classes : c->classes;
    long double sum = 0;
    int64_t row;
    for (row = 0; row < c->rows; row++) {
        const int64_t y = c->targets[row];
        if (c->ignores && y == 100)
            continue;
        if (!c->weights)
            sum += 1;
        else if (y >= 0 && y < classes)
            sum += (long double)c->weights[y];
    }
    return sum;
}

static gpuloss_cross_entropy_desc desc_of(const divisor_case *c, const operand *targets, const operand *weights) {
    gpuloss_cross_entropy_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = c->dtype;
    d.rows = c->rows;
    d.classes = c->classes;
    d.total_classes = c->total_classes;
    d.targets = operand_pointer(targets);
    d.target_type = c->type;
    d.class_weights = operand_pointer(weights);
    d.reduction = GPULOSS_MEAN;
    d.flags = c->ignores ? (unsigned)GPULOSS_USE_IGNORE_INDEX : 0u;
    d.ignore_index = c->ignores ? 100 : 0;
    return d;
}

/* The same labels of a divergence: mean and batchmean. */
static gpuloss_status write_divisor(const divisor_case *c, unsigned number, const gpuloss_cross_entropy_desc *of,
                                    void *divisor) {
    gpuloss_kl_div_desc kl = GPULOSS_KL_DIV_DEFAULTS;
    if (number == 0)
        return gpuloss_cross_entropy_divisor(harness_context, of, divisor, NULL);
    kl.dtype = c->dtype;
    kl.rows = c->rows;
    kl.classes = c->classes;
    kl.labels = of->targets;
    kl.label_type = of->target_type;
    kl.flags = of->flags;
    kl.ignore_index = of->ignore_index;
    kl.reduction = number == 1 ? GPULOSS_MEAN : GPULOSS_BATCHMEAN;
    return gpuloss_kl_div_divisor(harness_context, &kl, divisor, NULL);
}

static void check_divisor(const divisor_case *c, long double want) {
    const bool has_labels =
        c->ignores && !c->weights; /* then a divergence has the same divisor, a mean for each class */
    operand targets = operand_new("targets", index_size(c->type), 1, c->rows, c->rows, 1, 256), weights;
    gpuloss_cross_entropy_desc d;
    char text[200];
    report r;
    unsigned number;
    (void)snprintf(text, sizeof text, "divisor: %s, %u bytes, %lld of %lld rows, total %lld%s%s", dtype_name(c->dtype),
                   (unsigned)index_size(c->type), (long long)c->classes, (long long)c->rows,
                   (long long)c->total_classes, c->weights ? ", weights" : "", c->ignores ? ", ignored" : "");
    r = report_on(text);
    memset(&weights, 0, sizeof weights);
    operand_put_indices(&targets, c->targets);
    if (c->weights)
        weights = result_input("class_weights", c->dtype, c->total_classes ? c->total_classes : c->classes, 1, 256,
                               c->weights);
    d = desc_of(c, &targets, &weights);
    for (number = 0; number < (has_labels ? 3u : 1u); number++) {
        operand divisor = result_output("divisor", c->dtype, 1, 1, 256);
        require_ok(write_divisor(c, number, &d, operand_pointer(&divisor)));
        compare_divisor(&r, c->dtype, take_value(&divisor, dtype_of_results(c->dtype), &r),
                        number == 1 ? want * (long double)c->classes : want);
        operand_free(&divisor);
    }
    operand_unchanged(&targets, &r);
    operand_free(&targets);
    operand_free(&weights);
    case_done(&r);
}

/* `kind`: classes, some of them out of range and some ignored; all ignored; none. */
static void fill_targets(divisor_case *c, int kind, random_source *r) {
    int64_t row;
    for (row = 0; row < c->rows; row++) {
        const int64_t y = random_below(r, c->classes + 3);
        c->targets[row] = kind == 1 || (kind == 0 && row % 5 == 2) ? 100 : kind == 0 && row % 7 == 3 ? 101 : y;
    }
}

static void divisors(void **state) {
    static const gpuloss_index_type types[] = {GPULOSS_I64, GPULOSS_I32, GPULOSS_I16, GPULOSS_U8};
    static const int64_t rows[] = {0, 1, 31, 1024, 5000, 300000};
    random_source random = random_from(3);
    double weights[120];
    unsigned d, t, k, set, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (t = 0; t < 4; t++)
            for (k = 0; k < sizeof rows / sizeof rows[0]; k++)
                for (set = 0; set < 12; set++, number++) {
                    divisor_case c = {all_dtypes[d], types[t], rows[k], 90, 0, NULL, NULL, set % 2 == 1};
                    int64_t i;
                    if (harness_small && (rows[k] > 5000 || (rows[k] > 1000 && number % 5)))
                        continue;
                    for (i = 0; i < 120; i++)
                        weights[i] = c.dtype == GPULOSS_F64
                                         ? ldexp((double)random_below(&random, (int64_t)1 << 42), -40)
                                         : ldexp((double)random_below(&random, 1 << 22), -20);
                    c.weights = set / 2 % 2 ? weights : NULL;
                    c.total_classes = number % 3 == 2 ? 120 : 0;
                    c.targets = (int64_t *)require_memory((size_t)(c.rows + 1) * sizeof *c.targets);
                    fill_targets(&c, (int)set / 4, &random);
                    check_divisor(&c, expected_divisor(&c));
                    free(c.targets);
                }
    test_done();
}

/* The sum of the weights is exact, whatever they are. */
static void divisors_of_any_weights(void **state) {
    static const struct {
        double weights[3];
        long double divisor;
    } sums[] = {{{0x1p100, 1, -0x1p100}, 1},
                {{0x1p-140, 0, 0x1p-149}, 0x1p-140L + 0x1p-149L},
                {{0x1p127, 0x1p127, -0x1p127}, 0x1p127L},
                {{(double)INFINITY, 1, 2}, (long double)INFINITY},
                {{-1, -2, 0.5}, -2.5L},
                {{0, 0, 0}, 0}};
    static int64_t classes[] = {0, 1, 2, -1, 3, 100};
    unsigned d, i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (i = 0; i < sizeof sums / sizeof sums[0]; i++) {
            const divisor_case c = {all_dtypes[d], GPULOSS_I16, 6, 3, 0, classes, sums[i].weights, true};
            check_divisor(&c, sums[i].divisor);
        }
    test_done();
}

/* Divisors that no target decides: probabilities have the number of rows. */
static void divisors_of_rows(void **state) {
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        gpuloss_cross_entropy_desc probabilities = GPULOSS_CROSS_ENTROPY_DEFAULTS;
        gpuloss_kl_div_desc kl = GPULOSS_KL_DIV_DEFAULTS;
        operand one = result_output("divisor", all_dtypes[d], 1, 0, 256);
        operand other = result_output("divisor", all_dtypes[d], 1, 0, 256);
        report r = report_on(dtype_name(all_dtypes[d]));
        probabilities.dtype = kl.dtype = all_dtypes[d];
        probabilities.rows = kl.rows = (1 << 24) + 1; /* not exact as a float */
        probabilities.classes = kl.classes = 7;
        probabilities.target_probabilities = operand_pointer(&other); /* it is not read */
        kl.reduction = GPULOSS_MEAN;
        require_ok(gpuloss_cross_entropy_divisor(harness_context, &probabilities, operand_pointer(&one), NULL));
        require_ok(gpuloss_kl_div_divisor(harness_context, &kl, operand_pointer(&other), NULL));
        compare_divisor(&r, all_dtypes[d], take_value(&one, dtype_of_results(all_dtypes[d]), &r), (1 << 24) + 1);
        compare_divisor(&r, all_dtypes[d], take_value(&other, dtype_of_results(all_dtypes[d]), &r),
                        7 * ((1 << 24) + 1));
        operand_free(&one);
        operand_free(&other);
        case_done(&r);
    }
    test_done();
}

int run_chunk_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_of_cross_entropy),
        cmocka_unit_test(chunks_of_divergences),
        cmocka_unit_test(chunks_of_sparse_teachers),
        cmocka_unit_test(chunks_of_all_lengths),
        cmocka_unit_test(chunk_of_shards),
        cmocka_unit_test(chunks_of_probabilities),
        cmocka_unit_test(chunks_of_two_logits),
        cmocka_unit_test(one_chunk),
        cmocka_unit_test(divisors),
        cmocka_unit_test(divisors_of_any_weights),
        cmocka_unit_test(divisors_of_rows),
    };
    return cmocka_run_group_tests_name("chunks", tests, NULL, NULL);
}
