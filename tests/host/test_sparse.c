/* gpuloss_kl_div_sparse: which kernel, how rows are spread, no rows, workspaces. */
#include "check.h"

#include <stdio.h>

static gpuloss_context *context;

static const fake_launched *expect_kernel(const gpuloss_kl_div_sparse_desc *d, int line) {
    fake.launches = 0;
    expect_ok_(gpuloss_kl_div_sparse(context, d, stream_number(1)), line);
    expect_module("kl_div_sparse", d->dtype, line);
    assert_int_equal(last_launch()->block, GPULOSSI_BLOCK);
    assert_int_equal(last_launch()->shared_bytes, 0);
    assert_ptr_equal(last_launch()->stream, stream_number(1));
    assert_int_equal(last_launch()->parameters.rows.rows, d->rows);
    assert_int_equal(last_launch()->parameters.rows.classes, d->classes);
    return last_launch();
}

/* One kernel a dtype of the logits, whatever else it is given. */
static void one_kernel_a_dtype(void **state) {
    gpuloss_kl_div_sparse_desc base = some_kl_div_sparse(), d;
    size_t t;
    (void)state;
    context = new_context();
    for (t = 0; t < DTYPES; t++) {
        base.dtype = every_dtype[t].dtype;
#define TAKES(change)                                                                                                  \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_kernel(&d, __LINE__)
        TAKES((void)0);
        TAKES(d.value_dtype = GPULOSS_F64);
        TAKES(d.value_kind = GPULOSS_LOG_PROBABILITIES);
        TAKES(d.residual = GPULOSS_DROP);
        TAKES(d.index_type = GPULOSS_U8);
        TAKES(d.k = 1);
        TAKES(d.k = 1000);
        TAKES((d.temperature = 2.0, d.flags = GPULOSS_TEMPERATURE_SQUARED));
        TAKES(d.row_weights = AT(6));
        TAKES((GIVE_LABELS(&d), d.divisor_in = AT(6)));
        TAKES((d.grad_logits = NULL, d.loss = NULL, d.bad_indices = (int64_t *)AT(6)));
    }
    assert_int_equal(fake.loads, DTYPES);
    gpuloss_destroy(context);
}

static void expect_group(const gpuloss_kl_div_sparse_desc *d, unsigned group, int line) {
    expect_row_group(expect_kernel(d, line), d->rows, group, line);
}

/* A thread gets about four vectors of the logits, and keeps as many entries of the teacher as they have elements: what
 * a group keeps always has room for a whole row of entries. */
static void groups_of_rows(void **state) {
    size_t t;
    (void)state;
    context = new_context();
    for (t = 0; t < DTYPES; t++) {
        gpuloss_kl_div_sparse_desc even = some_kl_div_sparse(), d;
        const int width = 16 / every_dtype[t].bytes;
        unsigned group;
        int64_t classes;
        even.dtype = every_dtype[t].dtype;
        even.k = 1;
        for (group = 1; group <= GPULOSSI_BLOCK; group *= 2) {
            unsigned next = group < GPULOSSI_BLOCK ? 2 * group : group;
            even.classes = (int64_t)group * 4 * width;
            d = even;
            expect_group(&d, group, __LINE__);
            d.classes++;
            expect_group(&d, next, __LINE__);
            d = even;
            d.logits_stride = d.classes + 1;
            expect_group(&d, next, __LINE__);
            d = even;
            d.indices_stride = d.values_stride = 3;
            expect_group(&d, group, __LINE__);
            d = even;
            d.rows = 100000;
            d.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56);
            expect_group(&d, group, __LINE__);
        }
        for (classes = 1; classes <= 4096; classes += classes < 64 ? 1 : 61) {
            d = even;
            d.classes = classes;
            d.k = classes < 1024 ? classes : 1024;
            assert_true(
                (int64_t)expect_kernel(&d, __LINE__)->parameters.rows.group * GPULOSSI_ENTRIES_A_VECTOR * width >= d.k);
        }
    }
    gpuloss_destroy(context);
}

static void even_rows(void **state) {
    gpuloss_kl_div_sparse_desc base = some_kl_div_sparse(), d;
    (void)state;
    context = new_context();
#define EVEN(change, expected)                                                                                         \
    d = base;                                                                                                          \
    change;                                                                                                            \
    assert_int_equal((expect_kernel(&d, __LINE__)->parameters.rows.flags & GPULOSSI_EVEN) != 0, expected)
    EVEN((void)0, 1);
    EVEN(d.logits_stride = 1001, 0);
    EVEN(d.logits_stride = 1004, 1);
    EVEN(d.logits = (const char *)d.logits + 4, 0);
    EVEN(d.values = (const char *)d.values + 4, 1);
    EVEN(d.grad_logits_stride = 1001, 1);
    gpuloss_destroy(context);
}

/* No rows: a number that was asked for is still written, nothing else is launched. */
static void no_rows(void **state) {
    gpuloss_kl_div_sparse_desc d = some_kl_div_sparse();
    long calls;
    (void)state;
    context = new_context();
    d.rows = 0;
    d.logits = d.indices = d.values = NULL;
    d.loss = NULL;
    d.loss_rows = AT(6);
    calls = fake.calls;
    expect_ok(gpuloss_kl_div_sparse(context, &d, NULL));
    GIVE_LABELS(&d);
    d.labels = NULL;
    expect_ok(gpuloss_kl_div_sparse(context, &d, NULL));
    assert_int_equal(fake.calls, calls);
    d.loss = AT(3);
    assert_int_equal(expect_kernel(&d, __LINE__)->grid, 1);
    assert_int_equal(fake.launches, 1);
    d.loss = NULL;
    d.bad_indices = (int64_t *)AT(7);
    assert_int_equal(expect_kernel(&d, __LINE__)->grid, 1);
    assert_int_equal(fake.launches, 1);
    gpuloss_destroy(context);
}

static void workspace(void **state) {
    gpuloss_kl_div_sparse_desc d = some_kl_div_sparse();
    size_t bytes = 0;
    int launches;
    (void)state;
    context = new_context();
    expect_ok(gpuloss_kl_div_sparse_workspace(context, &d, &bytes));
    assert_int_equal(bytes, sizeof(gpulossi_scratch));
    d.workspace = AT(9);
    d.workspace_bytes = bytes;
    assert_int_equal(expect_kernel(&d, __LINE__)->parameters.rows.scratch, ADDRESS(9));
    launches = fake.launches;
    d.workspace_bytes--;
    expect_error(gpuloss_kl_div_sparse(context, &d, NULL), GPULOSS_ERROR_WORKSPACE_TOO_SMALL, "gpuloss_kl_div_sparse",
                 "workspace_bytes: ");
    d.workspace = (char *)AT(9) + 8;
    d.workspace_bytes = bytes;
    expect_error(gpuloss_kl_div_sparse(context, &d, NULL), GPULOSS_ERROR_MISALIGNED, "gpuloss_kl_div_sparse",
                 "workspace: ");
    assert_int_equal(fake.launches, launches);
    gpuloss_destroy(context);
}

int sparse_tests(void) {
    const struct CMUnitTest tests[] = {TEST(one_kernel_a_dtype), TEST(groups_of_rows), TEST(even_rows), TEST(no_rows),
                                       TEST(workspace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
