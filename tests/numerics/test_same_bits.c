/* The same call gives the same bits in every run, whatever the order of blocks, also on another stream and with the
 * caller's workspace. The rows cover every schedule (tests/interpreter/coverage.sh checks that they reach each
 * kernel). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "device_bytes.h"
#include "divergence_cases.h"
#include "option_cases.h"
#include "run_common.h"
#include "sparse_cases.h"
#include "suites.h"

/* The rows for an interpreter of the kernels, and for a GPU. They have `vectors` vectors of 16 bytes and `more`
 * classes. */
typedef struct row_shape {
    int64_t few, many, vectors, more;
} row_shape;

static int runs(void) {
    return harness_small ? 3 : 2000;
}

static int64_t rows_of(const row_shape *shape) {
    return harness_small ? shape->few : shape->many;
}

static int64_t classes_of(const row_shape *shape, gpuloss_dtype dtype) {
    return shape->vectors * (int64_t)(16 / dtype_size(dtype)) + shape->more;
}

/* Forward and backward at once, unless the logits are only to be read, and the loss alone. */
static void check_cross_entropy(ce_case c, bool only_read) {
    c.runs = runs();
    if (!only_read)
        ce_test(&c, "same bits");
    c.outputs = CE_OUT_LOSS;
    ce_test(&c, "same bits of a loss");
}

static void check_options(gpuloss_dtype dtype, option_shape shape, unsigned options, bool only_read, unsigned number) {
    option_inputs in;
    ce_case c = option_case(dtype, shape, options, LOGITS_NORMAL, number, &in);
    if (options == 0) /* other outputs would take the kernels for options */
        c.outputs = CE_OUT_ALL;
    check_cross_entropy(c, only_read);
    option_inputs_free(&in);
}

/* The comparison of the runs finds one differing byte at any position, and copies all bytes. */
static void bytes_on_the_device(void **state) {
    enum { BYTES = 1001 };
    static const int positions[] = {0, 255, 256, BYTES - 1};
    unsigned char bytes[BYTES];
    void *one = NULL, *other = NULL;
    unsigned i;
    (void)state;
    REQUIRE_GPU();
    require_ok(gpuloss_alloc(harness_context, &one, BYTES));
    require_ok(gpuloss_alloc(harness_context, &other, BYTES));
    for (i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * 7);
    require_ok(gpuloss_upload(harness_context, one, bytes, BYTES, NULL));
    for (i = 0; i < sizeof positions / sizeof positions[0]; i++) {
        device_bytes d;
        device_bytes_open(&d);
        bytes[positions[i]] ^= 1;
        require_ok(gpuloss_upload(harness_context, other, bytes, BYTES, NULL));
        bytes[positions[i]] ^= 1;
        if (positions[i] > 0)
            device_bytes_compare(&d, one, other, (size_t)positions[i]);
        assert_false(device_bytes_differ(&d));
        device_bytes_compare(&d, one, other, BYTES);
        assert_true(device_bytes_differ(&d));
        device_bytes_close(&d);
        device_bytes_open(&d);
        device_bytes_copy(&d, other, one, BYTES);
        device_bytes_compare(&d, one, other, BYTES);
        assert_false(device_bytes_differ(&d));
        device_bytes_close(&d);
    }
    require_ok(gpuloss_free(harness_context, one));
    require_ok(gpuloss_free(harness_context, other));
    test_done();
}

static void same_bits_of_cross_entropy(void **state) {
    static const struct {
        row_shape shape;
        stride_kind stride;
        int offset;
    } kinds[] = {{{70, 40000, 0, 10}, STRIDE_PACKED, 0}, {{70, 2000, 0, 150}, STRIDE_PACKED, 0},
                 {{40, 300, 250, 0}, STRIDE_PACKED, 0},  {{9, 140, 1024, 0}, STRIDE_PACKED, 0},
                 {{9, 140, 1024, 1}, STRIDE_PACKED, 0},  {{5, 40, 4125, 0}, STRIDE_PACKED, 0},
                 {{2, 8, 8500, 0}, STRIDE_PACKED, 0},    {{1, 4, 18000, 0}, STRIDE_PACKED, 0},
                 {{70, 20000, 0, 21}, STRIDE_PACKED, 1}, {{9, 2000, 0, 150}, STRIDE_ONE_MORE, 0},
                 {{3, 1, 2500, 3}, STRIDE_ONE_MORE, 1}};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            option_shape shape = {rows_of(&kinds[k].shape), classes_of(&kinds[k].shape, all_dtypes[d]), 0};
            option_inputs in;
            ce_case c = option_case(all_dtypes[d], shape, OPTION_IGNORE_INDEX, LOGITS_NORMAL, k, &in);
            c.outputs = CE_OUT_ALL;
            c.logits_stride = kinds[k].stride;
            c.logits_offset = kinds[k].offset;
            c.in_place = k % 2 == 1;
            check_cross_entropy(c, false);
            option_inputs_free(&in);
        }
    test_done();
}

static void same_bits_of_options(void **state) {
    static const struct {
        row_shape shape;
        unsigned options;
        bool only_read;
    } kinds[] = {{{7, 3000, 0, 33}, OPTION_ALL, false},
                 {{5, 100, 0, 2500}, OPTION_ALL | OPTION_PROBABILITIES, false},
                 {{35, 70, 2049, 0}, OPTION_WEIGHTS | OPTION_SMOOTHING, false},
                 {{2, 8, 4096, 0}, OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_Z_LOSS, false},
                 {{35, 1060, 1024, 0}, OPTION_WEIGHTS | OPTION_SMOOTHING, true}};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            option_shape shape = {rows_of(&kinds[k].shape), classes_of(&kinds[k].shape, all_dtypes[d]), 0};
            check_options(all_dtypes[d], shape, kinds[k].options, kinds[k].only_read, k);
        }
    test_done();
}

/* Teams of a warp, of several, of a block and of a cluster, with each kind of stages; there is no variant for doubles. */
static void same_bits_of_the_pipeline(void **state) {
    static const struct {
        row_shape shape;
        unsigned options;
        stride_kind stride;
    } kinds[] = {{{70, 68000, 33, 0}, OPTION_SOFTCAP | OPTION_IGNORE_INDEX, STRIDE_PACKED},
                 {{40, 4000, 0, 1000}, OPTION_WEIGHTS | OPTION_SMOOTHING, STRIDE_PACKED},
                 {{20, 1500, 130, 3}, OPTION_ALL, STRIDE_ONE_MORE},
                 {{9, 300, 1024, 0}, OPTION_Z_LOSS | OPTION_ROW_WEIGHTS, STRIDE_PACKED},
                 {{5, 300, 600, 0}, OPTION_PROBABILITIES | OPTION_WEIGHTS, STRIDE_PACKED},
                 {{3, 60, 2100, 5}, OPTION_SOFTCAP | OPTION_Z_LOSS, STRIDE_PACKED},
                 {{5, 300, 6200, 0}, OPTION_SCALE, STRIDE_PACKED}};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof kinds / sizeof kinds[0] && all_dtypes[d] != GPULOSS_F64; k++) {
            option_shape shape = {rows_of(&kinds[k].shape), classes_of(&kinds[k].shape, all_dtypes[d]), 0};
            option_inputs in;
            ce_case c = option_case(all_dtypes[d], shape, kinds[k].options, LOGITS_NORMAL, k, &in);
            c.logits_stride = c.grad_stride = kinds[k].stride;
            check_cross_entropy(c, kinds[k].shape.vectors == 6200);
            option_inputs_free(&in);
        }
    test_done();
}

/* Classes that are not innermost. */
static void same_bits_of_columns(void **state) {
    static const struct {
        int64_t few, many, classes;
        unsigned options;
    } kinds[] = {{344, 11272, 5, 0}, {344, 11272, 26, 0}, {35, 1003, 70, OPTION_ALL}};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            int64_t inner = harness_small ? kinds[k].few : kinds[k].many;
            option_shape shape = {3 * inner, kinds[k].classes, inner};
            check_options(all_dtypes[d], shape, kinds[k].options, false, k);
        }
    test_done();
}

/* Shards of a vocabulary, their combination, and their gradients. */
static void same_bits_of_shards(void **state) {
    static const int64_t firsts[] = {0, 300, 900};
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        option_shape shape = {harness_small ? 5 : 300, 1000, 0};
        char text[CE_DESCRIPTION];
        option_inputs in;
        ce_case c = option_case(all_dtypes[d], shape, OPTION_ALL, LOGITS_NORMAL, d, &in);
        ce_result result;
        report r;
        c.runs = runs();
        ce_describe(&c, "same bits of shards", text, sizeof text);
        r = report_on(text);
        ce_run_sharded(&c, firsts, sizeof firsts / sizeof firsts[0], &result, &r);
        ce_free(&result);
        option_inputs_free(&in);
        case_done(&r);
    }
    test_done();
}

static void check_kl_div(kl_case c) {
    c.runs = runs();
    kl_test(&c, "same bits");
    c.outputs = KL_OUT_LOSS;
    kl_test(&c, "same bits of a loss");
}

/* Packed arrays, which are cut anew where no output per row is requested, and rows. */
static void same_bits_of_kl_div(void **state) {
    static const row_shape shapes[] = {{70, 20000, 0, 10}, {9, 700, 0, 1000}, {3, 60, 1600, 1}};
    unsigned d, k, pair;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (pair = 0; pair < KL_PAIRS; pair++) {
                kl_case c =
                    kl_case_of_pair(all_dtypes[d], rows_of(&shapes[k]), classes_of(&shapes[k], all_dtypes[d]), pair);
                kl_inputs in = kl_inputs_new(&c, DISTRIBUTIONS_RANDOM, k);
                c.outputs = k == 0 ? KL_OUT_ALL : k == 1 ? KL_OUT_LOSS | KL_OUT_LOSS_ROWS : KL_OUT_LOSS | KL_OUT_GRAD;
                check_kl_div(c);
                kl_inputs_free(&in);
            }
    test_done();
}

static void check_divergence(gpuloss_dtype dtype, const row_shape *shape, unsigned choice, stride_kind stride,
                             unsigned outputs, unsigned number) {
    divergence_shape of_rows = {rows_of(shape), classes_of(shape, dtype)};
    kl_case c = divergence_case(dtype, GPULOSS_DTYPE_UNSET, of_rows, KL_KIND_PAIRS - 1, choice);
    kl_inputs in =
        divergence_inputs(&c, DISTRIBUTIONS_RANDOM, KL_WITH_TEMPERATURE | (number % 2 ? KL_WITH_LABELS : 0u), number);
    c.outputs = outputs;
    c.input_stride = stride;
    check_kl_div(c);
    kl_inputs_free(&in);
}

/* Forward KL of two logits, and the distances between them. */
static void same_bits_of_two_logits(void **state) {
    static const struct {
        row_shape shape;
        unsigned choice;
        stride_kind stride;
    } kinds[] = {
        {{70, 20000, 0, 10}, CHOICE_FORWARD, STRIDE_PACKED},  {{35, 1500, 0, 150}, CHOICE_FORWARD, STRIDE_PACKED},
        {{9, 200, 513, 0}, CHOICE_FORWARD, STRIDE_PACKED},    {{9, 200, 513, 1}, CHOICE_FORWARD, STRIDE_PACKED},
        {{5, 60, 2050, 0}, CHOICE_FORWARD, STRIDE_PACKED},    {{2, 8, 4100, 0}, CHOICE_FORWARD, STRIDE_PACKED},
        {{9, 1500, 0, 150}, CHOICE_FORWARD, STRIDE_ONE_MORE}, {{5, 60, 2050, 0}, CHOICE_JS_HALF, STRIDE_PACKED},
        {{2, 8, 2050, 1}, CHOICE_TV, STRIDE_ONE_MORE}};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            check_divergence(all_dtypes[d], &kinds[k].shape, kinds[k].choice, kinds[k].stride,
                             KL_OUT_LOSS | KL_OUT_LOSS_ROWS | KL_OUT_GRAD, k);
        /* In registers: without anything for each row. */
        for (k = 0; k < 2; k++)
            check_divergence(all_dtypes[d], &kinds[0].shape, CHOICE_FORWARD, STRIDE_PACKED,
                             KL_OUT_LOSS | (k == 0 ? KL_OUT_GRAD : 0u), 2 * k);
    }
    test_done();
}

static void same_bits_of_losses_of_long_rows(void **state) {
    static const row_shape shapes[] = {{9, 900, 1030, 0}, {5, 60, 2050, 1}};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            check_divergence(all_dtypes[d], &shapes[k], CHOICE_FORWARD, STRIDE_PACKED, KL_OUT_LOSS | KL_OUT_LOSS_ROWS,
                             k);
    test_done();
}

/* Two types, every output, and the options. */
static void same_bits_of_divergences(void **state) {
    static const row_shape shapes[] = {{4, 4000, 0, 10}, {3, 60, 0, 2501}};
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++, number++) {
            divergence_shape shape = {rows_of(&shapes[k]), shapes[k].more};
            kl_case c = divergence_case(all_dtypes[d], all_dtypes[number % DTYPE_COUNT], shape,
                                        number * 4 % KL_KIND_PAIRS, (number * 3 + 2) % CHOICES);
            kl_inputs in =
                divergence_inputs(&c, DISTRIBUTIONS_RANDOM, KL_WITH_ALL & ~(unsigned)KL_WITH_DIVISOR, number);
            check_kl_div(c);
            kl_inputs_free(&in);
        }
    test_done();
}

static void same_bits_of_sparse(void **state) {
    static const row_shape shapes[] = {{2, 3000, 0, 10}, {2, 100, 0, 2501}};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
            sparse_shape shape = {rows_of(&shapes[k]), shapes[k].more, k ? 33 : 4};
            sparse_case c = sparse_case_of(all_dtypes[d], shape);
            sparse_inputs in;
            sparse_take(&c, 2 * d + k);
            sparse_fill(&c, LOGITS_NORMAL, 0.8, d, &in);
            c.runs = runs();
            sparse_test(&c, "same bits");
            sparse_inputs_free(&in);
        }
    test_done();
}

int run_same_bits_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_on_the_device),
        cmocka_unit_test(same_bits_of_cross_entropy),
        cmocka_unit_test(same_bits_of_options),
        cmocka_unit_test(same_bits_of_the_pipeline),
        cmocka_unit_test(same_bits_of_columns),
        cmocka_unit_test(same_bits_of_shards),
        cmocka_unit_test(same_bits_of_kl_div),
        cmocka_unit_test(same_bits_of_two_logits),
        cmocka_unit_test(same_bits_of_losses_of_long_rows),
        cmocka_unit_test(same_bits_of_divergences),
        cmocka_unit_test(same_bits_of_sparse),
    };
    return cmocka_run_group_tests_name("same bits", tests, NULL, NULL);
}
