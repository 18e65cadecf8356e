/* The calls that gpuloss_cross_entropy and the query of its workspace refuse, and the messages. The driver is not called
 * before. */
#include "check.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

static gpuloss_context *context;

static void expect_message(gpuloss_status got, const char *function, const char *message, int line) {
    char whole[512];
    snprintf(whole, sizeof whole, "%s: %s", function, message);
    if (got != GPULOSS_ERROR_INVALID_ARGUMENT)
        fail_msg("line %d: got %s instead of \"%s\"", line, gpuloss_status_name(got), whole);
    if (strcmp(gpuloss_last_error(), whole) != 0)
        fail_msg("line %d: got \"%s\" instead of \"%s\"", line, gpuloss_last_error(), whole);
}

static void expect_refused(const gpuloss_cross_entropy_desc *d, const char *message, int line) {
    long calls = fake.calls;
    size_t bytes;
    expect_message(gpuloss_cross_entropy(context, d, NULL), "gpuloss_cross_entropy", message, line);
    expect_message(gpuloss_cross_entropy_workspace(context, d, &bytes), "gpuloss_cross_entropy_workspace", message,
                   line);
    assert_int_equal(fake.calls, calls);
}

static void expect_accepted(const gpuloss_cross_entropy_desc *d, int line) {
    size_t bytes;
    expect_ok_(gpuloss_cross_entropy(context, d, NULL), line);
    expect_ok_(gpuloss_cross_entropy_workspace(context, d, &bytes), line);
}

/* A change of `base`, after which the call is refused with that message, or is still accepted. */
#define REFUSED(change, message)                                                                                       \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_refused(&d, message, __LINE__)
#define ACCEPTED(change)                                                                                               \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_accepted(&d, __LINE__)

static void targets(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    REFUSED(d.targets = NULL, "targets: is required (got NULL)");
    REFUSED(d.target_probabilities = AT(20),
            "targets: is one too many beside target_probabilities (got 0x2007000000000)");
    REFUSED(d.target_type = GPULOSS_INDEX_UNSET, "target_type: must be GPULOSS_I64, I32, I16 or U8 (got 0)");
    REFUSED(d.target_type = (gpuloss_index_type)5, "target_type: must be GPULOSS_I64, I32, I16 or U8 (got 5)");
    REFUSED(d.target_type = (gpuloss_index_type)-1, "target_type: must be GPULOSS_I64, I32, I16 or U8 (got -1)");
    REFUSED(d.grad_target_probabilities = AT(6),
            "grad_target_probabilities: has no target_probabilities (got 0x6007000000000)");
    ACCEPTED(d.target_type = GPULOSS_I16);
    ACCEPTED(d.target_type = GPULOSS_U8);
    give_probabilities(&base);
    ACCEPTED((void)0);
    REFUSED(d.correct = (int64_t *)AT(6),
            "correct: goes with targets, not with target_probabilities (got 0x6007000000000)");
    REFUSED(d.bad_targets = (int64_t *)AT(6),
            "bad_targets: goes with targets, not with target_probabilities (got 0x6007000000000)");
    gpuloss_destroy(context);
}

static void types(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    REFUSED(d.dtype = GPULOSS_DTYPE_UNSET, "dtype: must be GPULOSS_F32, F64, F16 or BF16 (got 0)");
    REFUSED(d.grad_dtype = (gpuloss_dtype)5, "grad_dtype: must be GPULOSS_F32, F64, F16 or BF16 (got 5)");
    REFUSED(d.grad_dtype = (gpuloss_dtype)-1, "grad_dtype: must be GPULOSS_F32, F64, F16 or BF16 (got -1)");
    REFUSED(d.target_dtype = (gpuloss_dtype)5, "target_dtype: must be GPULOSS_F32, F64, F16 or BF16 (got 5)");
    REFUSED(d.target_dtype = (gpuloss_dtype)-1, "target_dtype: must be GPULOSS_F32, F64, F16 or BF16 (got -1)");
    ACCEPTED(d.grad_dtype = d.target_dtype = GPULOSS_BF16);
    gpuloss_destroy(context);
}

static void ranges(void **state) {
    static const struct {
        const char *field;
        size_t offset;
        double low, high, beyond; /* beyond: what lies just above */
        const char *bounds;
    } fields[] = {
        {"label_smoothing", offsetof(gpuloss_cross_entropy_desc, label_smoothing), 0.0, 1.0, 1.0000000000000002,
         "[0, 1]"},
        {"lse_square_scale", offsetof(gpuloss_cross_entropy_desc, lse_square_scale), 0.0, 3.4e38, 3.41e38,
         "[0, 3.4e+38]"},
        {"logit_scale", offsetof(gpuloss_cross_entropy_desc, logit_scale), -3.4e38, 3.4e38, 3.41e38,
         "[-3.4e+38, 3.4e+38]"},
        {"softcap", offsetof(gpuloss_cross_entropy_desc, softcap), 0.0, 3.4e38, 3.41e38, "[0, 3.4e+38]"},
        {"divisor", offsetof(gpuloss_cross_entropy_desc, divisor), 0.0, 1e308, 1.1e308, "[0, 1e+308]"},
    };
    size_t i, k;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const double below = fields[i].low - (fields[i].low == 0.0 ? 1e-300 : 1e36);
        const double outside[] = {below, fields[i].beyond, HUGE_VAL, -HUGE_VAL, NAN};
        const double inside[] = {fields[i].low, fields[i].high, 0.5};
        gpuloss_cross_entropy_desc d = some_cross_entropy();
        char *number = (char *)&d + fields[i].offset, message[128];
        for (k = 0; k < sizeof outside / sizeof outside[0]; k++) {
            memcpy(number, &outside[k], sizeof outside[k]);
            snprintf(message, sizeof message, "%s: must lie in %s (got %g)", fields[i].field, fields[i].bounds,
                     outside[k]);
            expect_refused(&d, message, __LINE__);
        }
        for (k = 0; k < sizeof inside / sizeof inside[0]; k++) {
            memcpy(number, &inside[k], sizeof inside[k]);
            expect_accepted(&d, __LINE__);
        }
    }
    gpuloss_destroy(context);
}

#define NO_MEAN "is that of a mean, and the reduction is no mean"

static void divisors(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    REFUSED((d.divisor = 2.5, d.divisor_in = AT(6)),
            "divisor_in: is one too many beside divisor (got 0x6007000000000)");
    REFUSED((d.divisor = 2.5, d.reduction = GPULOSS_SUM), "divisor: " NO_MEAN " (got 2.5)");
    REFUSED((d.divisor = 2.5, d.reduction = GPULOSS_BATCHMEAN), "divisor: " NO_MEAN " (got 2.5)");
    REFUSED((d.divisor_in = AT(6), d.reduction = GPULOSS_SUM), "divisor_in: " NO_MEAN " (got 0x6007000000000)");
    REFUSED((d.divisor_in = AT(6), d.reduction = GPULOSS_NONE, d.loss = NULL),
            "divisor_in: " NO_MEAN " (got 0x6007000000000)");
    ACCEPTED(d.divisor = 2.5);
    ACCEPTED(d.divisor_in = AT(6));
    REFUSED(d.flags = 0, "ignore_index: is read only with the flag GPULOSS_USE_IGNORE_INDEX (got -100)");
    gpuloss_destroy(context);
}

static void outputs(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    REFUSED((d.reduction = GPULOSS_NONE, d.loss = NULL, d.z_loss = AT(6)),
            "z_loss: nothing is summed with reduction GPULOSS_NONE, use z_loss_rows (got 0x6007000000000)");
    REFUSED((d.lse = AT(6), d.lse_in = AT(7)), "lse: is not computed when lse_in is given (got 0x6007000000000)");
    REFUSED((d.grad_logits = NULL, d.grad_loss = AT(6)),
            "grad_loss: is read only for grad_logits, which is NULL (got 0x6007000000000)");
    base.loss = base.grad_logits = NULL;
    REFUSED((void)0, "loss, loss_rows, z_loss, z_loss_rows, lse, argmax, correct, bad_targets, grad_logits, "
                     "grad_target_probabilities, shard_rows: one output is needed (got all NULL)");
    ACCEPTED(d.loss = AT(6));
    ACCEPTED(d.loss_rows = AT(6));
    ACCEPTED(d.z_loss = AT(6));
    ACCEPTED(d.z_loss_rows = AT(6));
    ACCEPTED(d.lse = AT(6));
    ACCEPTED(d.argmax = (int64_t *)AT(6));
    ACCEPTED(d.correct = (int64_t *)AT(6));
    ACCEPTED(d.bad_targets = (int64_t *)AT(6));
    ACCEPTED(d.grad_logits = AT(6));
    ACCEPTED((give_probabilities(&d), d.grad_target_probabilities = AT(6)));
    ACCEPTED((give_probabilities(&d), d.grad_target_probabilities = AT(6), d.grad_loss = AT(7)));
    ACCEPTED((d.total_classes = 1000, d.shard_rows = (gpuloss_shard_row *)AT(6)));
    gpuloss_destroy(context);
}

/* Every pointer of the desc: aligned to one element of what it points to. */
static const struct {
    const char *field;
    size_t offset;
    enum { LOGITS, GRADIENT, TARGET, INDEX, RESULT, EIGHT } element;
    int soft; /* is of probabilities */
} pointers[] = {
#define POINTER(field, element, soft)                                                                                  \
    { #field, offsetof(gpuloss_cross_entropy_desc, field), element, soft }
    POINTER(logits, LOGITS, 0),
    POINTER(targets, INDEX, 0),
    POINTER(target_probabilities, TARGET, 1),
    POINTER(class_weights, RESULT, 0),
    POINTER(row_weights, RESULT, 0),
    POINTER(divisor_in, RESULT, 0),
    POINTER(loss, RESULT, 0),
    POINTER(loss_rows, RESULT, 0),
    POINTER(z_loss, RESULT, 0),
    POINTER(z_loss_rows, RESULT, 0),
    POINTER(lse, RESULT, 0),
    POINTER(argmax, EIGHT, 0),
    POINTER(correct, EIGHT, 0),
    POINTER(bad_targets, EIGHT, 0),
    POINTER(grad_logits, GRADIENT, 0),
    POINTER(grad_target_probabilities, TARGET, 1),
    POINTER(grad_loss, RESULT, 0),
    POINTER(grad_loss_rows, RESULT, 0),
    POINTER(lse_in, RESULT, 0),
    POINTER(shard_rows, EIGHT, 0),
};

static int bytes_of(gpuloss_dtype dtype) {
    return dtype == GPULOSS_F64 ? 8 : dtype == GPULOSS_F32 ? 4 : 2;
}

static void alignments_with(gpuloss_cross_entropy_desc call) {
    static const int index_bytes[] = {0, 8, 4, 2, 1};
    const int bytes[] = {bytes_of(call.dtype),          bytes_of(call.grad_dtype),         bytes_of(call.target_dtype),
                         index_bytes[call.target_type], call.dtype == GPULOSS_F64 ? 8 : 4, 8};
    size_t i;
    for (i = 0; i < sizeof pointers / sizeof pointers[0]; i++) {
        gpuloss_cross_entropy_desc d = call;
        int align = bytes[pointers[i].element];
        const char *at = (const char *)AT(6) + align / 2;
        char message[128];
        long calls = fake.calls;
        if (pointers[i].soft)
            give_probabilities(&d);
        if (strcmp(pointers[i].field, "shard_rows") == 0)
            d.total_classes = d.classes, d.loss = d.grad_logits = NULL;
        if (align > 1) {
            memcpy((char *)&d + pointers[i].offset, &at, sizeof at);
            snprintf(message, sizeof message, "%s: must be aligned to %d bytes (got 0x%llx)", pointers[i].field, align,
                     (unsigned long long)(uintptr_t)at);
            expect_error(gpuloss_cross_entropy(context, &d, NULL), GPULOSS_ERROR_MISALIGNED, "gpuloss_cross_entropy",
                         message);
            assert_int_equal(fake.calls, calls);
        }
        at = (const char *)AT(6) + align;
        memcpy((char *)&d + pointers[i].offset, &at, sizeof at);
        expect_accepted(&d, __LINE__);
    }
}

static void alignments(void **state) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    (void)state;
    context = new_context();
    d.grad_dtype = GPULOSS_F64;
    d.target_dtype = GPULOSS_F16;
    alignments_with(d);
    d.dtype = GPULOSS_F64;
    d.grad_dtype = GPULOSS_BF16;
    d.target_dtype = GPULOSS_F32;
    d.target_type = GPULOSS_I32;
    alignments_with(d);
    d.dtype = d.grad_dtype = GPULOSS_F16;
    d.target_dtype = GPULOSS_F64;
    d.target_type = GPULOSS_I16;
    alignments_with(d);
    d.target_type = GPULOSS_U8;
    alignments_with(d);
    gpuloss_destroy(context);
}

static void strides(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    const int64_t longest = INT64_MAX / 4 / 1000;
    char message[128];
    (void)state;
    context = new_context();
    give_probabilities(&base);
    base.grad_target_probabilities = AT(30);
    REFUSED(d.logits_stride = 999, "logits_stride: is shorter than a row of 1000 elements (got 999)");
    REFUSED(d.grad_logits_stride = 999, "grad_logits_stride: is shorter than a row of 1000 elements (got 999)");
    REFUSED(d.target_probabilities_stride = 999,
            "target_probabilities_stride: is shorter than a row of 1000 elements (got 999)");
    REFUSED(d.grad_target_probabilities_stride = -1,
            "grad_target_probabilities_stride: is shorter than a row of 1000 elements (got -1)");
    base.grad_logits = base.grad_target_probabilities = NULL;
    ACCEPTED(d.target_probabilities_stride = longest);
    snprintf(message, sizeof message, "target_probabilities_stride: rows * stride does not fit 63 bits (got %lld)",
             (long long)longest + 1);
    REFUSED(d.target_probabilities_stride = longest + 1, message);
    /* Images of 8 columns. */
    base.inner = 8;
    REFUSED(d.logits_stride = 7999, "logits_stride: is shorter than a row of 8000 elements (got 7999)");
    REFUSED(d.target_probabilities_stride = 7999,
            "target_probabilities_stride: is shorter than a row of 8000 elements (got 7999)");
    ACCEPTED(d.logits_stride = 8000);
    ACCEPTED(d.target_probabilities_stride = 8 * longest);
    gpuloss_destroy(context);
}

#define IN_AT(n, bytes) ((char *)AT(n) + (bytes))
/* 1000 rows of 1000 floats end here. */
#define END_AT(n) IN_AT(n, 4000000)

static void overlaps_of_gradients(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    ACCEPTED(d.grad_logits = AT(1));
    ACCEPTED(d.grad_logits = END_AT(1));
    REFUSED(
        d.grad_logits = IN_AT(1, 3999996),
        "grad_logits: overlaps logits without being the same array with the same stride (got 0x10070003d08fc, stride "
        "1000, over 0x1007000000000, stride 1000)");
    REFUSED(
        (d.grad_logits = AT(1), d.grad_logits_stride = 1001),
        "grad_logits: overlaps logits without being the same array with the same stride (got 0x1007000000000, stride "
        "1001, over 0x1007000000000, stride 1000)");
    REFUSED((d.grad_logits = AT(1), d.grad_dtype = GPULOSS_F16),
            "grad_logits: overlaps logits (got 0x1007000000000, stride 1000, over 0x1007000000000, stride 1000)");
    ACCEPTED((d.grad_logits = IN_AT(1, -2000000), d.grad_dtype = GPULOSS_F16));
    ACCEPTED((d.inner = 10, d.grad_logits = AT(1)));
    ACCEPTED((d.inner = 10, d.grad_logits = END_AT(1)));
    REFUSED(
        (d.inner = 10, d.grad_logits = IN_AT(1, 3999996)),
        "grad_logits: overlaps logits without being the same array with the same stride (got 0x10070003d08fc, stride "
        "10000, over 0x1007000000000, stride 10000)");
    give_probabilities(&base);
    ACCEPTED(d.grad_logits = END_AT(20));
    REFUSED(d.grad_logits = AT(20),
            "grad_logits: overlaps target_probabilities (got 0x14007000000000, stride 1000, over "
            "0x14007000000000, stride 1000)");
    gpuloss_destroy(context);
}

static void overlaps_of_probabilities(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    give_probabilities(&base);
    ACCEPTED(d.grad_target_probabilities = AT(20));
    ACCEPTED(d.grad_target_probabilities = END_AT(20));
    ACCEPTED((d.grad_target_probabilities = IN_AT(20, 2000000), d.target_dtype = GPULOSS_F16));
    REFUSED(d.grad_target_probabilities = IN_AT(20, 4),
            "grad_target_probabilities: overlaps target_probabilities without being the same array with the same "
            "stride (got 0x14007000000004, stride 1000, over 0x14007000000000, stride 1000)");
    REFUSED((d.grad_target_probabilities = AT(20), d.grad_target_probabilities_stride = 1001),
            "grad_target_probabilities: overlaps target_probabilities without being the same array with the same "
            "stride (got 0x14007000000000, stride 1001, over 0x14007000000000, stride 1000)");
    REFUSED(
        d.grad_target_probabilities = AT(1),
        "grad_target_probabilities: overlaps logits (got 0x1007000000000, stride 1000, over 0x1007000000000, stride "
        "1000)");
    REFUSED(d.grad_target_probabilities = AT(4), "grad_target_probabilities: overlaps grad_logits (got "
                                                 "0x4007000000000, stride 1000, over 0x4007000000000, stride "
                                                 "1000)");
    gpuloss_destroy(context);
}

static void columns(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    ACCEPTED(d.inner = 1000);
    REFUSED(d.inner = -1, "inner: must not be negative (got -1)");
    REFUSED(d.inner = 3, "rows: must be a multiple of inner (got 1000)");
    REFUSED(d.inner = 2000, "rows: must be a multiple of inner (got 1000)");
    base.rows = 0;
    ACCEPTED((d.inner = 3, d.classes = INT32_MAX));
    REFUSED((d.inner = 3, d.classes = (int64_t)INT32_MAX + 1), "classes: must be at most 2147483647 (got 2147483648)");
    ACCEPTED((d.inner = INT64_MAX / 1000));
    REFUSED((d.inner = INT64_MAX / 1000 + 1), "inner: classes * inner is too large (got 9223372036854776)");
    /* Where the bytes of such a size would not fit, none are counted. */
    ACCEPTED((d.classes = 1, d.inner = (int64_t)1 << 62));
    ACCEPTED((d.logits_stride = INT64_MAX, d.softcap = 30.0));
    gpuloss_destroy(context);
}

/* The number of a class fits an int, whatever the types are. */
static void long_rows(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F64, GPULOSS_F16, GPULOSS_BF16};
    size_t t, g;
    (void)state;
    context = new_context();
    for (t = 0; t < 4; t++)
        for (g = 0; g < 4; g++) {
            gpuloss_cross_entropy_desc d = some_cross_entropy();
            d.dtype = dtypes[t];
            d.grad_dtype = dtypes[g];
            d.rows = 1;
            d.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56);
            d.classes = INT32_MAX;
            expect_accepted(&d, __LINE__);
            d.classes++;
            expect_refused(&d, "classes: must be at most 2147483647 (got 2147483648)", __LINE__);
        }
    gpuloss_destroy(context);
}

static void shards(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    REFUSED(d.class_offset = 5, "class_offset: needs total_classes (got 5)");
    REFUSED(d.shard_rows = (gpuloss_shard_row *)AT(6), "shard_rows: needs total_classes (got 0x6007000000000)");
    base = some_shard();
    ACCEPTED((void)0);
    ACCEPTED((d.class_offset = 0, d.total_classes = 1000));
    ACCEPTED(d.class_offset = 3000);
    REFUSED(d.class_offset = 3001, "class_offset: the shard must lie within total_classes (got 3001)");
    REFUSED(d.class_offset = -1, "class_offset: the shard must lie within total_classes (got -1)");
    REFUSED(d.total_classes = 999, "total_classes: must be at least classes (got 999)");
    REFUSED(d.total_classes = -4000, "total_classes: must be at least classes (got -4000)");
    REFUSED(d.inner = 2, "inner: does not go with shards (got 2)");
    REFUSED(give_probabilities(&d), "target_probabilities: does not go with shards (got 0x14007000000000)");
#define OF_ALL(field, type)                                                                                            \
    REFUSED(d.field = (type *)AT(6), #field                                                                            \
            ": takes the whole vocabulary: it is an output of gpuloss_cross_entropy_combine (got 0x6007000000000)")
    OF_ALL(loss, void);
    OF_ALL(loss_rows, void);
    OF_ALL(z_loss, void);
    OF_ALL(z_loss_rows, void);
    OF_ALL(lse, void);
    OF_ALL(argmax, int64_t);
    OF_ALL(correct, int64_t);
    ACCEPTED(d.bad_targets = (int64_t *)AT(6));
    REFUSED(d.grad_logits = AT(6), "grad_logits: needs the lse of all shards as lse_in: see "
                                   "gpuloss_cross_entropy_combine (got 0x6007000000000)");
    REFUSED((d.grad_logits = AT(6), d.lse_in = AT(7)),
            "shard_rows: is not computed when lse_in is given (got 0x5007000000000)");
    ACCEPTED((d.grad_logits = AT(6), d.lse_in = AT(7), d.shard_rows = NULL));
    /* The query takes it for what is combined. */
    base.bad_targets = (int64_t *)AT(6);
    base.shards = 2;
    expect_error(gpuloss_cross_entropy(context, &base, NULL), GPULOSS_ERROR_INVALID_ARGUMENT, "gpuloss_cross_entropy",
                 ": shards: is for gpuloss_cross_entropy_combine (got 2)");
    base.shards = -1;
    expect_error(gpuloss_cross_entropy(context, &base, NULL), GPULOSS_ERROR_INVALID_ARGUMENT, "gpuloss_cross_entropy",
                 ": shards: is for gpuloss_cross_entropy_combine (got -1)");
    gpuloss_destroy(context);
}

int refusal_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(targets),   TEST(types),   TEST(ranges),
        TEST(divisors),  TEST(outputs), TEST(alignments),
        TEST(strides),   TEST(columns), TEST(overlaps_of_gradients),
        TEST(long_rows), TEST(shards),  TEST(overlaps_of_probabilities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
