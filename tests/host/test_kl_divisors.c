/* The divisor of the sum over rows of a divergence, and calls whose rows the prepare kernel counts first. */
#include "check.h"

static gpuloss_context *context;

/* The same of a sparse teacher: its one gradient for either one, its count of indices for the terms. */
static gpuloss_kl_div_sparse_desc sparse_of(const gpuloss_kl_div_desc *d) {
    gpuloss_kl_div_sparse_desc s = some_kl_div_sparse();
    s.rows = d->rows;
    s.classes = d->classes;
    s.reduction = d->reduction;
    s.flags = d->flags;
    s.row_weights = d->row_weights;
    s.labels = d->labels;
    s.label_type = d->label_type;
    s.ignore_index = d->ignore_index;
    s.divisor = d->divisor;
    s.divisor_in = d->divisor_in;
    s.loss = d->loss;
    s.loss_rows = d->loss_rows;
    s.grad_logits = d->grad_input != NULL ? d->grad_input : d->grad_target;
    s.bad_indices = (int64_t *)d->loss_elements;
    s.grad_scale = d->grad_scale;
    s.grad_loss = d->grad_loss;
    return s;
}

/* The prepare kernel gets the rows of the launch that follows, and their labels. */
static void expect_counting(const gpuloss_kl_div_desc *d) {
    const gpulossi_cross_entropy *got = &fake.launch[0].parameters.cross_entropy;
    gpulossi_cross_entropy want;
    memset(&want, 0, sizeof want);
    want.rows = last_launch()->parameters.rows;
    want.rows.grad = (uint64_t)(uintptr_t)(d->grad_input != NULL ? d->grad_input : d->grad_target);
    want.rows.flags = GPULOSSI_IGNORES | BY_PREPARED;
    want.rows.group = got->rows.group;
    want.rows.of.tile_rows = got->rows.of.tile_rows;
    want.targets = (uint64_t)(uintptr_t)d->labels;
    want.target_type = (uint32_t)d->label_type;
    want.ignore_index = d->ignore_index;
    assert_memory_equal(got, &want, sizeof want);
    assert_string_equal(fake.launch[0].entry, PREPARE_KERNEL);
    assert_int_equal(fake.launch[0].block, GPULOSSI_BLOCK);
    assert_in_range(fake.launch[0].grid, 1, 4 * 132);
    assert_ptr_equal(fake.launch[0].stream, stream_number(1));
}

/* Of the call, and of the same one of a sparse teacher: see expect_divisor. */
static void expect_division(const gpuloss_kl_div_desc *d, unsigned flags, double divisor, double scale, int prepares,
                            int line) {
    int sparse;
    for (sparse = 0; sparse < 2; sparse++) {
        gpuloss_kl_div_sparse_desc s = sparse_of(d);
        const gpulossi_rows *rows;
        fake.launches = 0;
        expect_ok_(sparse ? gpuloss_kl_div_sparse(context, &s, stream_number(1))
                          : gpuloss_kl_div(context, d, stream_number(1)),
                   line);
        rows = &last_launch()->parameters.rows;
        expect_divisor(flags, divisor, scale, prepares, line);
        assert_int_equal((rows->flags & GPULOSSI_IGNORES) != 0, d->labels != NULL);
        assert_int_equal(rows->divisor_in, (uintptr_t)d->divisor_in);
        assert_non_null(strstr(last_launch()->entry, sparse ? "_kl_div_sparse_" : "_kl_div_"));
        if (prepares)
            expect_counting(d);
    }
}
#define DIVIDES(change, flags, divisor, scale, prepares)                                                               \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_division(&d, flags, divisor, scale, prepares, __LINE__)

/* 1000 rows of 500 classes. */
static gpuloss_kl_div_desc some_rows(void) {
    gpuloss_kl_div_desc d = some_kl_div();
    d.classes = 500;
    return d;
}

static void known_to_the_host(void **state) {
    gpuloss_kl_div_desc base = some_rows(), d;
    (void)state;
    context = new_context();
    DIVIDES((void)0, 0, 1000.0, 1.0 / 1000.0, 0);
    DIVIDES(d.row_weights = AT(6), 0, 1000.0, 1.0 / 1000.0, 0);
    DIVIDES(d.reduction = GPULOSS_MEAN, 0, 500000.0, 1.0 / 500000.0, 0);
    DIVIDES((d.reduction = GPULOSS_MEAN, d.row_weights = AT(6)), 0, 500000.0, 1.0 / 500000.0, 0);
    DIVIDES(d.reduction = GPULOSS_SUM, 0, 1.0, 1.0, 0);
    DIVIDES((d.reduction = GPULOSS_NONE, d.loss = NULL), 0, 1.0, 1.0, 0);
    DIVIDES((d.flags |= GPULOSS_USE_GRAD_SCALE, d.grad_scale = 8.0), 0, 1000.0, 8.0 / 1000.0, 0);
    DIVIDES(d.flags |= GPULOSS_USE_GRAD_SCALE, 0, 1000.0, 0.0, 0);
    DIVIDES((d.reduction = GPULOSS_SUM, GIVE_LABELS(&d)), 0, 1.0, 1.0, 0);
    DIVIDES((d.reduction = GPULOSS_NONE, d.loss = NULL, GIVE_LABELS(&d)), 0, 1.0, 1.0, 0);
    gpuloss_destroy(context);
}

/* With labels the rows that are left are counted: before a gradient is divided by them, else as the rows go by. The
 * classes of the mean are known to the host. */
static void rows_that_are_left(void **state) {
    gpuloss_kl_div_desc base = some_rows(), d;
    (void)state;
    context = new_context();
    GIVE_LABELS(&base);
    DIVIDES((void)0, BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES(d.loss = NULL, BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES((d.grad_target = d.grad_input, d.grad_input = NULL), BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES((d.label_type = GPULOSS_I16, d.ignore_index = 12), BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES((d.label_type = GPULOSS_U8, d.ignore_index = 0), BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES(d.row_weights = AT(6), BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES(d.classes = 1 << 20, BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES((d.flags |= GPULOSS_USE_GRAD_SCALE, d.grad_scale = -3.0), BY_PREPARED, 1.0, -3.0, 1);
    DIVIDES((d.flags |= GPULOSS_USE_GRAD_SCALE, d.grad_loss = AT(6)), BY_PREPARED, 1.0, 0.0, 1);
    DIVIDES(d.grad_input = NULL, BY_DATA, 1.0, 1.0, 0);
    DIVIDES((d.grad_input = NULL, d.loss_rows = AT(6)), BY_DATA, 1.0, 1.0, 0);
    DIVIDES(d.rows = 0, BY_DATA, 1.0, 1.0, 0);
    /* There is nothing to divide: nothing may be counted in the scratch that nobody takes out of it. */
    DIVIDES((d.grad_input = d.loss = NULL, d.loss_rows = AT(6)), 0, 1000.0, 1.0 / 1000.0, 0);
    DIVIDES((d.grad_input = d.loss = NULL, d.loss_elements = AT(6)), 0, 1000.0, 1.0 / 1000.0, 0);
    base.reduction = GPULOSS_MEAN;
    DIVIDES((void)0, BY_PREPARED, 500.0, 1.0 / 500.0, 1);
    DIVIDES(d.loss = NULL, BY_PREPARED, 500.0, 1.0 / 500.0, 1);
    DIVIDES((d.flags |= GPULOSS_USE_GRAD_SCALE, d.grad_scale = -3.0), BY_PREPARED, 500.0, -3.0 / 500.0, 1);
    DIVIDES(d.grad_input = NULL, BY_DATA, 500.0, 1.0 / 500.0, 0);
    DIVIDES((d.grad_input = d.loss = NULL, d.loss_rows = AT(6)), 0, 500000.0, 1.0 / 500000.0, 0);
    gpuloss_destroy(context);
}

static void given_by_the_caller(void **state) {
    static const gpuloss_reduction means[] = {GPULOSS_MEAN, GPULOSS_BATCHMEAN};
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < 2; i++) {
        gpuloss_kl_div_desc base = some_rows(), d;
        base.reduction = means[i];
        DIVIDES(d.divisor = 8.0, 0, 8.0, 1.0 / 8.0, 0);
        DIVIDES((d.divisor = 8.0, GIVE_LABELS(&d)), 0, 8.0, 1.0 / 8.0, 0);
        DIVIDES((d.divisor = 0.25, d.flags |= GPULOSS_USE_GRAD_SCALE, d.grad_scale = 3.0), 0, 0.25, 12.0, 0);
        DIVIDES(d.divisor_in = AT(6), 0, 1.0, 1.0, 0);
        DIVIDES((d.divisor_in = AT(6), GIVE_LABELS(&d)), 0, 1.0, 1.0, 0);
        DIVIDES((d.divisor_in = AT(6), d.grad_input = NULL), 0, 1.0, 1.0, 0);
    }
    gpuloss_destroy(context);
}

/* The two kernels of a call use one workspace, which is zeroed once and before both. */
static void workspace_of_both_kernels(void **state) {
    gpuloss_kl_div_desc d = some_rows();
    gpuloss_kl_div_sparse_desc s;
    size_t bytes = 0;
    int sparse;
    (void)state;
    context = new_context();
    GIVE_LABELS(&d);
    expect_ok(gpuloss_kl_div_workspace(context, &d, &bytes));
    assert_int_equal(bytes, sizeof(gpulossi_scratch));
    d.workspace = AT(7);
    d.workspace_bytes = bytes;
    s = sparse_of(&d);
    s.workspace = d.workspace;
    s.workspace_bytes = bytes;
    for (sparse = 0; sparse < 2; sparse++) {
        int fills = fake.fills;
        fake.launches = 0;
        expect_ok(sparse ? gpuloss_kl_div_sparse(context, &s, NULL) : gpuloss_kl_div(context, &d, NULL));
        assert_int_equal(fake.launches, 2);
        assert_int_equal(fake.launch[0].parameters.rows.scratch, ADDRESS(7));
        assert_int_equal(fake.launch[1].parameters.rows.scratch, ADDRESS(7));
        assert_int_equal(fake.fills, fills + 1);
        assert_int_equal(fake.fill[fills].base, ADDRESS(7));
        assert_int_equal(fake.fill[fills].bytes, bytes);
        assert_int_equal(fake.fill[fills].launches_before, 0);
    }
    gpuloss_destroy(context);
}

int kl_divisor_tests(void) {
    const struct CMUnitTest tests[] = {TEST(known_to_the_host), TEST(rows_that_are_left), TEST(given_by_the_caller),
                                       TEST(workspace_of_both_kernels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
