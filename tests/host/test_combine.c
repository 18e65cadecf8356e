/* gpuloss_cross_entropy_combine: the outputs of a vocabulary in shards, from what the shards know of the rows. */
#include "check.h"

static gpuloss_context *context;

static const fake_launched *combine(const gpuloss_cross_entropy_desc *d) {
    fake.launches = 0;
    expect_ok(gpuloss_cross_entropy_combine(context, d, stream_number(3)));
    if (fake.launches == 2)
        assert_string_equal(fake.launch[0].entry, PREPARE_KERNEL);
    assert_int_equal(fake.launches, last_launch()->parameters.rows.flags & GPULOSSI_PREPARED ? 2 : 1);
    assert_string_equal(last_launch()->entry, "gpuloss_cross_entropy_combine_shards");
    assert_int_equal(last_launch()->block, GPULOSSI_BLOCK);
    assert_int_equal(last_launch()->shared_bytes, 0);
    assert_int_equal(last_launch()->parameters.rows.group, 1);
    assert_ptr_equal(last_launch()->stream, stream_number(3));
    return last_launch();
}

/* Every option and output. classes is the whole vocabulary, and there are no logits. */
static void every_field(void **state) {
    gpuloss_cross_entropy_desc d = some_combine();
    gpulossi_cross_entropy want;
    const gpulossi_cross_entropy *got;
    (void)state;
    context = new_context();
    memset(&want, 0, sizeof want);
    d.rows = want.rows.rows = 600;
    want.rows.classes = want.rows.last_classes = want.total_classes = 4000;
    want.rows.divisor = want.rows.grad_scale = 1.0;
    want.rows.group = 1;
    want.rows.flags = GPULOSSI_IGNORES | BY_PREPARED;
    d.ignore_index = want.ignore_index = 7;
    d.targets = AT(2), want.targets = ADDRESS(2);
    d.target_type = GPULOSS_I32, want.target_type = GPULOSS_I32;
    d.dtype = GPULOSS_BF16, want.grad_dtype = want.target_dtype = GPULOSS_BF16;
    want.inner = 1;
    d.shards = want.shards = 4;
    d.shard_rows = (gpuloss_shard_row *)AT(5), want.shard_rows = ADDRESS(5);
    d.class_weights = AT(6), want.class_weights = ADDRESS(6);
    d.row_weights = AT(7), want.row_weights = ADDRESS(7);
    d.label_smoothing = want.label_smoothing = 0.125;
    d.lse_square_scale = want.lse_square_scale = 0.25;
    d.logit_scale = want.logit_scale = 0.5;
    d.softcap = want.softcap = 30.0;
    d.loss = AT(8), want.rows.loss = ADDRESS(8);
    d.loss_rows = AT(9), want.rows.loss_rows = ADDRESS(9);
    d.z_loss = AT(10), want.z_loss = ADDRESS(10);
    d.z_loss_rows = AT(11), want.z_loss_rows = ADDRESS(11);
    d.lse = AT(12), want.lse = ADDRESS(12);
    d.argmax = (int64_t *)AT(13), want.argmax = ADDRESS(13);
    d.correct = (int64_t *)AT(14), want.correct = ADDRESS(14);
    d.bad_targets = (int64_t *)AT(15), want.bad_targets = ADDRESS(15);
    got = &combine(&d)->parameters.cross_entropy;
    want.rows.scratch = got->rows.scratch;
    assert_true(got->rows.scratch != 0);
    assert_memory_equal(got, &want, sizeof want);
    gpuloss_destroy(context);
}

/* The shards have scaled and capped their logits, and nothing is written for another shard. */
static void features(void **state) {
    const uint32_t outputs =
        GPULOSSI_CE_LOSS | GPULOSSI_CE_ROW_OUTPUTS | GPULOSSI_CE_Z_OUTPUTS | GPULOSSI_CE_ARGMAX | GPULOSSI_CE_COUNTS;
    gpuloss_cross_entropy_desc d = some_combine();
    (void)state;
    context = new_context();
    d.logit_scale = 0.5;
    d.softcap = 30.0;
    d.lse = AT(6);
    d.z_loss = AT(7);
    d.argmax = (int64_t *)AT(8);
    assert_int_equal(combine(&d)->module->words[GPULOSSI_CALL_WORD], outputs);
    d.label_smoothing = 0.125;
    d.lse_square_scale = 0.25;
    d.class_weights = AT(9);
    d.row_weights = AT(10);
    assert_int_equal(combine(&d)->module->words[GPULOSSI_CALL_WORD],
                     (outputs & ~(uint32_t)GPULOSSI_CE_COUNTS) | GPULOSSI_CE_SMOOTHING | GPULOSSI_CE_Z_LOSS |
                         GPULOSSI_CE_CLASS_WEIGHTS | GPULOSSI_CE_ROW_WEIGHTS);
    assert_int_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD], 0);
    gpuloss_destroy(context);
}

/* One kernel serves every dtype: it is told what the results are. */
static void results_of_every_dtype(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F64, GPULOSS_F16, GPULOSS_BF16};
    gpuloss_cross_entropy_desc d = some_combine();
    size_t t;
    (void)state;
    context = new_context();
    for (t = 0; t < 4; t++) {
        d.dtype = dtypes[t];
        assert_int_equal((combine(&d)->parameters.rows.flags & GPULOSSI_F64_RESULTS) != 0, d.dtype == GPULOSS_F64);
    }
    assert_int_equal(fake.loads, 1);
    gpuloss_destroy(context);
}

/* The mean is divided as everywhere. Rows are counted, or their weights summed, on the way. */
static void divisors(void **state) {
    gpuloss_cross_entropy_desc base = some_combine(), d;
    const gpulossi_rows *rows;
    (void)state;
    context = new_context();
#define DIVIDES(change, from, by)                                                                                      \
    d = base;                                                                                                          \
    change;                                                                                                            \
    rows = &combine(&d)->parameters.rows;                                                                              \
    assert_int_equal(rows->flags &BY_PREPARED, from);                                                                  \
    assert_true(rows->divisor == (by))
    DIVIDES((void)0, BY_DATA, 1.0);
    DIVIDES((d.flags = 0, d.ignore_index = 0), 0, 1000.0);
    DIVIDES((d.flags = 0, d.ignore_index = 0, d.class_weights = AT(6), d.label_smoothing = 0.1), BY_DATA, 1.0);
    DIVIDES(d.reduction = GPULOSS_SUM, 0, 1.0);
    DIVIDES(d.reduction = GPULOSS_BATCHMEAN, 0, 1000.0);
    DIVIDES(d.divisor = 3.0, 0, 3.0);
    DIVIDES(d.divisor_in = AT(6), 0, 1.0);
    assert_int_equal(rows->divisor_in, ADDRESS(6));
    gpuloss_destroy(context);
}

/* A thread has a row at a time, and there are no more blocks than run at once. */
static void grids(void **state) {
    static const struct {
        int64_t rows;
        unsigned grid;
    } of_rows[] = {{1, 1}, {256, 1}, {257, 2}, {1000, 4}, {256 * 8 * 132, 8 * 132}, {1 << 24, 8 * 132}};
    gpuloss_cross_entropy_desc d = some_combine();
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof of_rows / sizeof of_rows[0]; i++) {
        d.rows = of_rows[i].rows;
        assert_int_equal(combine(&d)->grid, of_rows[i].grid);
    }
    gpuloss_destroy(context);
}

static void no_rows(void **state) {
    gpuloss_cross_entropy_desc d = some_combine();
    long calls;
    (void)state;
    context = new_context();
    calls = fake.calls;
    d.rows = 0;
    d.targets = NULL;
    d.shard_rows = NULL;
    d.loss = NULL;
    d.loss_rows = d.z_loss_rows = d.lse = AT(6);
    d.argmax = (int64_t *)AT(7);
    expect_ok(gpuloss_cross_entropy_combine(context, &d, NULL));
    assert_int_equal(fake.calls, calls);
    d.loss = AT(8);
    assert_int_equal(combine(&d)->grid, 1);
    d.loss = NULL;
    d.correct = (int64_t *)AT(8);
    assert_int_equal(combine(&d)->grid, 1);
    gpuloss_destroy(context);
}

static void workspace(void **state) {
    gpuloss_cross_entropy_desc d = some_combine();
    size_t bytes = 0;
    (void)state;
    context = new_context();
    expect_ok(gpuloss_cross_entropy_workspace(context, &d, &bytes));
    assert_int_equal(bytes, sizeof(gpulossi_scratch));
    d.workspace = AT(9);
    d.workspace_bytes = bytes;
    assert_int_equal(combine(&d)->parameters.rows.scratch, ADDRESS(9));
    d.workspace_bytes--;
    expect_error(gpuloss_cross_entropy_combine(context, &d, NULL), GPULOSS_ERROR_WORKSPACE_TOO_SMALL,
                 "gpuloss_cross_entropy_combine", "workspace_bytes: ");
    gpuloss_destroy(context);
}

static void expect_refused(const gpuloss_cross_entropy_desc *d, gpuloss_status status, const char *message, int line) {
    long calls = fake.calls;
    size_t bytes;
    expect_error_(gpuloss_cross_entropy_combine(context, d, NULL), status, "gpuloss_cross_entropy_combine", message,
                  line);
    /* The query tells this call from the other one by its shards. */
    if (d->shards != 0)
        expect_error_(gpuloss_cross_entropy_workspace(context, d, &bytes), status, "gpuloss_cross_entropy_workspace",
                      message, line);
    assert_int_equal(fake.calls, calls);
}

/* A change of what is combined, after which it is refused with that message. */
static void refusals(void **state) {
    gpuloss_cross_entropy_desc base = some_combine(), d;
    const int64_t most = INT64_MAX / (int64_t)sizeof(gpuloss_shard_row) / 1000;
    (void)state;
    context = new_context();
#define REFUSED_AS(status, change, message)                                                                            \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_refused(&d, GPULOSS_ERROR_##status, message, __LINE__)
#define REFUSED(change, message) REFUSED_AS(INVALID_ARGUMENT, change, message)
    REFUSED(d.shards = 0, ": shards: must be at least 1 (got 0)");
    REFUSED(d.shards = -2, ": shards: must be at least 1 (got -2)");
    REFUSED(d.shards = most + 1, ": shards: shards * rows does not fit 63 bits (got ");
    REFUSED(d.shard_rows = NULL, ": shard_rows: is required (got NULL)");
    REFUSED_AS(MISALIGNED, d.shard_rows = GPULOSS_PTR(0x1004), ": shard_rows: must be aligned to 8 bytes (got 0x1004)");
    REFUSED(d.total_classes = 4000, ": total_classes: is here what classes holds (got 4000)");
    REFUSED(d.class_offset = 1000, ": class_offset: is for gpuloss_cross_entropy (got 1000)");
    REFUSED(d.inner = 2, ": inner: does not go with shards (got 2)");
    REFUSED(d.inner = -1, ": inner: must not be negative (got -1)");
    REFUSED(give_probabilities(&d), ": target_probabilities: does not go with shards (got 0x14007000000000)");
    REFUSED(d.grad_logits = AT(6), ": grad_logits: is for gpuloss_cross_entropy (got 0x6007000000000)");
    REFUSED(d.lse_in = AT(6), ": lse_in: is for gpuloss_cross_entropy (got 0x6007000000000)");
    /* The shard_rows are no output here. */
    REFUSED(d.loss = NULL, "shard_rows: one output is needed (got all NULL)");
    /* Fields that it shares with gpuloss_cross_entropy. */
    REFUSED(d.targets = NULL, ": targets: is required (got NULL)");
    REFUSED(d.dtype = GPULOSS_DTYPE_UNSET, ": dtype: must be GPULOSS_F32, F64, F16 or BF16 (got 0)");
    REFUSED(d.rows = -1, ": rows: must not be negative (got -1)");
    REFUSED(d.label_smoothing = 2.0, ": label_smoothing: must lie in [0, 1] (got 2)");
    REFUSED((d.divisor = 2.5, d.reduction = GPULOSS_SUM), ": divisor: is that of a mean, and the reduction is ");
    d = base;
    d.shards = most;
    combine(&d);
    gpuloss_destroy(context);
}

int combine_tests(void) {
    const struct CMUnitTest tests[] = {TEST(every_field), TEST(features), TEST(results_of_every_dtype),
                                       TEST(divisors),    TEST(grids),    TEST(no_rows),
                                       TEST(workspace),   TEST(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
