/* Chunks of rows: the launch that writes the divisor of them all, and sums that are added to the numbers there. */
#include "check.h"

#include <stddef.h>
#include <stdio.h>

static gpuloss_context *context;

enum { CROSS_ENTROPY, KL_DIV, SPARSE, LOSSES };

/* The desc of one of the losses, in which the common fields have one name each. */
typedef struct chunk_desc {
    int loss;
    gpuloss_cross_entropy_desc ce;
    gpuloss_kl_div_desc kl;
    gpuloss_kl_div_sparse_desc sparse;
} chunk_desc;
#define SET(d, field, value) ((d)->ce.field = (d)->kl.field = (d)->sparse.field = (value))
#define SET_FLAG(d, flag)                                                                                              \
    ((d)->ce.flags |= (unsigned)(flag), (d)->kl.flags |= (unsigned)(flag), (d)->sparse.flags |= (unsigned)(flag))

/* Means over 1000 rows of 500 classes whose targets or labels are ignored where they are -100. */
static chunk_desc some_chunks(int loss) {
    chunk_desc d;
    d.loss = loss;
    d.ce = some_cross_entropy();
    d.kl = some_kl_div();
    d.sparse = some_kl_div_sparse();
    GIVE_LABELS(&d.kl);
    GIVE_LABELS(&d.sparse);
    SET(&d, classes, 500);
    SET(&d, reduction, GPULOSS_MEAN);
    return d;
}

static const char *const names[LOSSES] = {"gpuloss_cross_entropy", "gpuloss_kl_div", "gpuloss_kl_div_sparse"};
/* Of the two that have a divisor of their own: a sparse teacher has that of the other divergences. */
enum { DIVISORS = SPARSE };
static const char *const functions[DIVISORS] = {"gpuloss_cross_entropy_divisor", "gpuloss_kl_div_divisor"};
static const char *const preloads[DIVISORS] = {"gpuloss_cross_entropy_preload", "gpuloss_kl_div_preload"};

static gpuloss_status write_divisor(gpuloss_context *on, const chunk_desc *d, void *divisor,
                                    struct CUstream_st *stream) {
    return d->loss == CROSS_ENTROPY ? gpuloss_cross_entropy_divisor(on, &d->ce, divisor, stream)
                                    : gpuloss_kl_div_divisor(on, &d->kl, divisor, stream);
}
static gpuloss_status call(const chunk_desc *d, struct CUstream_st *stream) {
    return d->loss == CROSS_ENTROPY ? gpuloss_cross_entropy(context, &d->ce, stream)
           : d->loss == KL_DIV      ? gpuloss_kl_div(context, &d->kl, stream)
                                    : gpuloss_kl_div_sparse(context, &d->sparse, stream);
}
static gpuloss_status preload(const chunk_desc *d, struct CUstream_st *stream) {
    return d->loss == CROSS_ENTROPY ? gpuloss_cross_entropy_preload(context, &d->ce, stream)
                                    : gpuloss_kl_div_preload(context, &d->kl, stream);
}

/* One launch of the prepare kernel, which leaves nothing to another one: `flags` among those of divisors and results. */
static void expect_written(const chunk_desc *d, unsigned flags, double divisor, int line) {
    const unsigned all = GPULOSSI_IGNORES | GPULOSSI_DATA_DIVISOR | GPULOSSI_F64_RESULTS;
    const void *targets = d->loss == CROSS_ENTROPY ? d->ce.targets
                          : d->loss == KL_DIV      ? d->kl.labels
                                                   : d->sparse.labels;
    const gpulossi_cross_entropy *p;
    fake.launches = 0;
    expect_ok_(write_divisor(context, d, AT(30), stream_number(1)), line);
    p = &last_launch()->parameters.cross_entropy;
    if (fake.launches != 1 || fake.prepares != 0)
        fail_msg("line %d: %d launches, %d prepare", line, fake.launches, fake.prepares);
    if ((p->rows.flags & all) != flags)
        fail_msg("line %d: the flags are %#x instead of %#x", line, p->rows.flags & all, flags);
    if (p->rows.divisor != divisor)
        fail_msg("line %d: the divisor is %g instead of %g", line, p->rows.divisor, divisor);
    assert_string_equal(last_launch()->entry, PREPARE_KERNEL);
    assert_true((last_launch()->module->words[GPULOSSI_CALL_WORD] & GPULOSSI_PREPARE_OUTPUT) != 0);
    assert_int_equal(last_launch()->block, GPULOSSI_BLOCK);
    assert_ptr_equal(last_launch()->stream, stream_number(1));
    assert_int_equal(p->rows.loss, ADDRESS(30));
    assert_int_equal(p->rows.rows, d->ce.rows);
    assert_int_equal(p->targets, (uintptr_t)targets);
}
#define WRITES(change, flags, divisor)                                                                                 \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_written(&d, flags, divisor, __LINE__)

enum { BY_COUNT = GPULOSSI_IGNORES | GPULOSSI_DATA_DIVISOR };

static void divisors_of_cross_entropy(void **state) {
    chunk_desc base = some_chunks(CROSS_ENTROPY), d;
    const gpulossi_cross_entropy *p;
    (void)state;
    context = new_context();
    WRITES((void)0, BY_COUNT, 1.0);
    WRITES(d.ce.dtype = GPULOSS_F64, BY_COUNT | GPULOSSI_F64_RESULTS, 1.0);
    WRITES(d.ce.dtype = GPULOSS_BF16, BY_COUNT, 1.0);
    WRITES(d.ce.row_weights = AT(6), BY_COUNT, 1.0);
    WRITES((d.ce.flags = 0, d.ce.ignore_index = 0), 0, 1000.0);
    WRITES((d.ce.flags = 0, d.ce.ignore_index = 0, d.ce.class_weights = AT(6)), GPULOSSI_DATA_DIVISOR, 1.0);
    WRITES(give_probabilities(&d.ce), GPULOSSI_IGNORES, 1000.0);
    WRITES((give_probabilities(&d.ce), d.ce.class_weights = AT(6)), GPULOSSI_IGNORES, 1000.0);
    /* Few rows, which a call counts in each block, too. */
    WRITES((d.ce.target_type = GPULOSS_I64, SET(&d, rows, 5)), BY_COUNT, 1.0);
    WRITES(SET(&d, rows, 0), BY_COUNT, 1.0);
    /* The divisor_in of the chunks is not read. */
    WRITES((d.ce.logits = d.ce.grad_logits = d.ce.loss = NULL, d.ce.divisor_in = AT(30)), BY_COUNT, 1.0);
    WRITES((d.ce.logits = GPULOSS_PTR(1), d.ce.logits_stride = 1, d.ce.loss = GPULOSS_PTR(1)), BY_COUNT, 1.0);
    WRITES((d.ce.logits = d.ce.grad_logits = NULL, d.ce.grad_loss = AT(8)), BY_COUNT, 1.0);
    WRITES((d.ce.logits = d.ce.grad_logits = NULL, d.ce.grad_loss_rows = AT(8)), BY_COUNT, 1.0);
    WRITES((d.ce.loss = NULL, SET_FLAG(&d, GPULOSS_ADD_SUMS)), BY_COUNT, 1.0);
    WRITES((d.ce.class_weights = AT(6), d.ce.target_type = GPULOSS_U8, d.ce.ignore_index = 7), BY_COUNT, 1.0);
    p = &last_launch()->parameters.cross_entropy;
    assert_int_equal(p->class_weights, ADDRESS(6));
    assert_int_equal(p->target_type, GPULOSS_U8);
    assert_int_equal(p->ignore_index, 7);
    assert_int_equal(p->total_classes, 500);
    /* Of a vocabulary in shards, and of one of them. */
    WRITES((d.ce = some_shard(), d.ce.classes = 500), BY_COUNT, 1.0);
    assert_int_equal(last_launch()->parameters.cross_entropy.total_classes, 4000);
    WRITES(d.ce = some_combine(), BY_COUNT, 1.0);
    assert_int_equal(last_launch()->parameters.cross_entropy.total_classes, 4000);
    gpuloss_destroy(context);
}

static void divisors_of_divergences(void **state) {
    chunk_desc base = some_chunks(KL_DIV), d;
    (void)state;
    context = new_context();
    WRITES((void)0, BY_COUNT, 500.0);
    WRITES(d.kl.reduction = GPULOSS_BATCHMEAN, BY_COUNT, 1.0);
    WRITES(d.kl.dtype = GPULOSS_F64, BY_COUNT | GPULOSSI_F64_RESULTS, 500.0);
    WRITES(d.kl.row_weights = AT(6), BY_COUNT, 500.0);
    WRITES(SET(&d, rows, 0), BY_COUNT, 500.0);
    WRITES((d.kl.divisor_in = AT(30), d.kl.loss = NULL, SET_FLAG(&d, GPULOSS_ADD_SUMS)), BY_COUNT, 500.0);
    WRITES((d.kl.input = d.kl.target = d.kl.loss = d.kl.grad_input = NULL), BY_COUNT, 500.0);
    WRITES(d.kl.label_type = GPULOSS_I16, BY_COUNT, 500.0);
    assert_int_equal(last_launch()->parameters.cross_entropy.target_type, GPULOSS_I16);
    assert_int_equal(last_launch()->parameters.cross_entropy.ignore_index, -100);
    assert_int_equal(last_launch()->parameters.cross_entropy.class_weights, 0);
    base.kl = some_kl_div();
    WRITES((void)0, 0, 1000.0);
    WRITES(d.kl.reduction = GPULOSS_MEAN, 0, 1000000.0);
    gpuloss_destroy(context);
}

/* A thread counts four rows, and there are no more blocks than are resident. */
static void grid(void **state) {
    static const struct {
        int64_t rows;
        unsigned grid;
    } shapes[] = {{0, 1}, {1, 1}, {1023, 1}, {1024, 2}, {5000, 5}};
    chunk_desc d = some_chunks(CROSS_ENTROPY);
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        SET(&d, rows, shapes[i].rows);
        expect_ok(write_divisor(context, &d, AT(30), NULL));
        assert_int_equal(last_launch()->grid, shapes[i].grid);
    }
    SET(&d, rows, 1 << 28);
    expect_ok(write_divisor(context, &d, AT(30), NULL));
    assert_int_equal(last_launch()->grid, blocks_at_once(last_launch()));
    gpuloss_destroy(context);
}

/* Nothing of the driver is called. */
static void expect_refused(const chunk_desc *d, void *divisor, gpuloss_status status, const char *message, int line) {
    const long calls = fake.calls;
    expect_error_(write_divisor(context, d, divisor, NULL), status, functions[d->loss], message, line);
    assert_int_equal(fake.calls, calls);
}
#define REFUSED(change, message)                                                                                       \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_refused(&d, AT(30), GPULOSS_ERROR_INVALID_ARGUMENT, message, __LINE__)

static void refusals_of_all(int loss) {
    chunk_desc base = some_chunks(loss), d;
    expect_refused(&base, NULL, GPULOSS_ERROR_INVALID_ARGUMENT, "divisor: is required (got NULL)", __LINE__);
    expect_refused(&base, GPULOSS_PTR(ADDRESS(30) + 2), GPULOSS_ERROR_MISALIGNED,
                   "divisor: must be aligned to 4 bytes (got 0x", __LINE__);
    expect_refused(&base, loss == CROSS_ENTROPY ? AT(2) : AT(21), GPULOSS_ERROR_INVALID_ARGUMENT, "divisor: overlaps ",
                   __LINE__);
    expect_error(write_divisor(NULL, &base, AT(30), NULL), GPULOSS_ERROR_INVALID_ARGUMENT, functions[loss],
                 "context: is required (got NULL)");
    REFUSED(SET(&d, reduction, GPULOSS_SUM), "reduction: is not that of a mean over targets (got 2)");
    REFUSED(SET(&d, reduction, GPULOSS_NONE), "reduction: is not that of a mean over targets (got 1)");
    REFUSED(SET(&d, reduction, GPULOSS_REDUCTION_UNSET), "reduction: is not that of a mean over targets (got 0)");
    REFUSED(SET(&d, divisor, 7.0), "divisor: must be 0 in the desc, as it is to be computed (got 7)");
    REFUSED(SET(&d, divisor, -7.0), "divisor: must be 0 in the desc, as it is to be computed (got -7)");
    REFUSED(SET(&d, dtype, GPULOSS_DTYPE_UNSET), "dtype: must be GPULOSS_F32, F64, F16 or BF16 (got 0)");
    REFUSED(SET(&d, rows, -1), "rows: must not be negative (got -1)");
    REFUSED(SET(&d, classes, 0), "classes: must be at least 1 (got 0)");
    REFUSED(SET_FLAG(&d, 64), "flags: holds a flag that this loss does not have (got ");
    REFUSED((SET(&d, workspace, AT(30)), SET(&d, workspace_bytes, sizeof(gpulossi_scratch))),
            "workspace: overlaps divisor");
    d = base;
    SET(&d, workspace, AT(31));
    expect_error(write_divisor(context, &d, AT(30), NULL), GPULOSS_ERROR_WORKSPACE_TOO_SMALL, functions[loss],
                 "workspace_bytes: ");
}

static void refusals(void **state) {
    chunk_desc base = some_chunks(CROSS_ENTROPY), d;
    int loss;
    (void)state;
    context = new_context();
    for (loss = 0; loss < DIVISORS; loss++)
        refusals_of_all(loss);
    REFUSED(d.ce.reduction = GPULOSS_BATCHMEAN, "reduction: is not that of a mean over targets (got 4)");
    REFUSED(d.ce.targets = NULL, "targets: is required (got NULL)");
    REFUSED(d.ce.target_type = GPULOSS_INDEX_UNSET, "target_type: must be GPULOSS_I64, I32, I16 or U8 (got 0)");
    REFUSED(d.ce.flags = 0, "ignore_index: is read only with the flag GPULOSS_USE_IGNORE_INDEX (got -100)");
    REFUSED(d.ce.total_classes = 499, "total_classes: must be at least classes (got 499)");
    REFUSED(d.ce.class_weights = AT(30), "divisor: overlaps class_weights");
    base.loss = KL_DIV;
    REFUSED(d.kl.labels = NULL, "labels: is required (got NULL)");
    REFUSED(d.kl.flags = 0, "ignore_index: is read only with the flag GPULOSS_USE_IGNORE_INDEX (got -100)");
    expect_error(gpuloss_cross_entropy_divisor(context, NULL, AT(30), NULL), GPULOSS_ERROR_INVALID_ARGUMENT,
                 functions[CROSS_ENTROPY], "desc: is required (got NULL)");
    expect_error(gpuloss_kl_div_divisor(context, NULL, AT(30), NULL), GPULOSS_ERROR_INVALID_ARGUMENT, functions[KL_DIV],
                 "desc: is required (got NULL)");
    assert_int_equal(fake.launches, 0);
    gpuloss_destroy(context);
}

/* A preload of the chunks, which have divisor_in, readies the function that writes it. */
static void captured(void **state) {
    int loss;
    (void)state;
    for (loss = 0; loss < DIVISORS; loss++) {
        chunk_desc d = some_chunks(loss);
        int launches, modules, memories;
        fake_reset();
        fake_set_current(&fake.context[2]);
        context = new_context();
        fake.capturing = 1;
        expect_error(write_divisor(context, &d, AT(30), stream_number(1)), GPULOSS_ERROR_NOT_PRELOADED, functions[loss],
                     preloads[loss]);
        fake.capturing = 0;
        SET(&d, divisor_in, AT(30));
        expect_ok(preload(&d, stream_number(1)));
        launches = fake.launches, modules = fake.modules, memories = fake.memories;
        assert_int_equal(launches, 0);
        assert_int_equal(modules, 2);
        fake.capturing = 1;
        expect_ok(write_divisor(context, &d, AT(30), stream_number(1)));
        expect_ok(call(&d, stream_number(1)));
        fake.capturing = 0;
        assert_int_equal(fake.launches, 2);
        assert_int_equal(fake.modules, modules);
        assert_int_equal(fake.memories, memories);
        gpuloss_destroy(context);
        assert_int_equal(fake_leaks(), 0);
    }
}

/* The workspace of the chunks is zeroed before it is used. */
static void workspaces(void **state) {
    int loss;
    (void)state;
    context = new_context();
    for (loss = 0; loss < DIVISORS; loss++) {
        chunk_desc d = some_chunks(loss);
        const int fills = fake.fills;
        SET(&d, workspace, AT(31));
        SET(&d, workspace_bytes, sizeof(gpulossi_scratch));
        expect_ok(write_divisor(context, &d, AT(30), stream_number(1)));
        assert_int_equal(last_launch()->parameters.rows.scratch, ADDRESS(31));
        assert_int_equal(fake.fills, fills + 1);
        assert_int_equal(fake.fill[fills].base, ADDRESS(31));
        assert_int_equal(fake.fill[fills].bytes, sizeof(gpulossi_scratch));
        assert_ptr_equal(fake.fill[fills].stream, stream_number(1));
    }
    gpuloss_destroy(context);
}

/* A divisor lies in memory of the GPU, where that is checked. */
static void memory_of_the_divisor(void **state) {
    gpuloss_create_desc create = fake_desc();
    int loss;
    (void)state;
    create.flags = GPULOSS_CHECK_POINTERS;
    expect_ok(gpuloss_create(&context, &create));
    fake.unknown_at = ADDRESS(30);
    fake.unknown_bytes = 1;
    for (loss = 0; loss < DIVISORS; loss++) {
        const chunk_desc d = some_chunks(loss);
        expect_error(write_divisor(context, &d, AT(30), NULL), GPULOSS_ERROR_INVALID_ARGUMENT, functions[loss],
                     "divisor: is not memory that the GPU can access");
        expect_ok(write_divisor(context, &d, AT(29), NULL));
    }
    gpuloss_destroy(context);
}

static void expect_adds(const chunk_desc *d, int adds, int line) {
    fake.launches = 0;
    expect_ok_(call(d, NULL), line);
    if (((last_launch()->parameters.rows.flags & GPULOSSI_ADDS) != 0) != adds)
        fail_msg("line %d: the flags are %#x", line, last_launch()->parameters.rows.flags);
}

static void sums_are_added(void **state) {
    int loss;
    (void)state;
    context = new_context();
    for (loss = 0; loss < LOSSES; loss++) {
        chunk_desc d = some_chunks(loss);
        expect_adds(&d, 0, __LINE__);
        SET_FLAG(&d, GPULOSS_ADD_SUMS);
        expect_adds(&d, 1, __LINE__); /* also where another launch counts the rows first */
        SET(&d, divisor_in, AT(30));
        expect_adds(&d, 1, __LINE__);
        SET(&d, reduction, GPULOSS_SUM);
        SET(&d, divisor_in, NULL);
        expect_adds(&d, 1, __LINE__);
        d.ce.grad_logits = d.sparse.grad_logits = d.kl.grad_input = NULL;
        SET(&d, rows, 0);
        expect_adds(&d, 1, __LINE__);
    }
    gpuloss_destroy(context);
}

static void expect_no_sums(const chunk_desc *d, const char *message, int line) {
    const long calls = fake.calls;
    expect_error_(call(d, NULL), GPULOSS_ERROR_INVALID_ARGUMENT, names[d->loss], message, line);
    assert_int_equal(fake.calls, calls);
}

/* There must be a number to add to, unless there are no rows. */
static void nothing_to_add_to(void **state) {
    gpuloss_cross_entropy_desc combine = some_combine();
    chunk_desc d;
    int loss;
    (void)state;
    context = new_context();
    for (loss = 0; loss < LOSSES; loss++) {
        d = some_chunks(loss);
        SET_FLAG(&d, GPULOSS_ADD_SUMS);
        SET(&d, loss, NULL);
        SET(&d, loss_rows, AT(6));
        expect_no_sums(&d, "flags: GPULOSS_ADD_SUMS needs loss or another sum (got 33)", __LINE__);
        SET(&d, rows, 0);
        expect_ok(call(&d, NULL));
    }
    d = some_chunks(SPARSE);
    SET_FLAG(&d, GPULOSS_ADD_SUMS);
    d.sparse.loss = NULL;
    d.sparse.bad_indices = (int64_t *)AT(6);
    expect_adds(&d, 1, __LINE__);
    d = some_chunks(CROSS_ENTROPY);
    SET_FLAG(&d, GPULOSS_ADD_SUMS);
    d.ce.loss = NULL;
    d.ce.z_loss = AT(6);
    expect_adds(&d, 1, __LINE__);
    d.ce.z_loss = NULL;
    d.ce.correct = (int64_t *)AT(6);
    expect_adds(&d, 1, __LINE__);
    d.ce.correct = NULL;
    d.ce.bad_targets = (int64_t *)AT(6);
    expect_adds(&d, 1, __LINE__);
    combine.flags |= GPULOSS_ADD_SUMS;
    expect_ok(gpuloss_cross_entropy_combine(context, &combine, NULL));
    assert_int_equal(last_launch()->parameters.rows.flags & GPULOSSI_ADDS, GPULOSSI_ADDS);
    gpuloss_destroy(context);
}

int chunk_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(divisors_of_cross_entropy),
        TEST(divisors_of_divergences),
        TEST(grid),
        TEST(refusals),
        TEST(captured),
        TEST(workspaces),
        TEST(memory_of_the_divisor),
        TEST(sums_are_added),
        TEST(nothing_to_add_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
