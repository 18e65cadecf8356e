/* Without cross-entropy, double and half: what is left out says so, and a divergence keeps the kernel that it shares with
 * cross-entropy, and the texts that its own are unpacked after. Built on its own. */
#include "check.h"

static void expect_left_out(gpuloss_status got, const char *function, const char *kernel, int line) {
    expect_error_(got, GPULOSS_ERROR_NOT_BUILT, function, kernel, line);
    assert_int_equal(fake.launches, 0);
    assert_int_equal(fake.loads, 0);
}

static void what_is_left_out_says_so(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_cross_entropy_desc ce = some_cross_entropy(), combine = some_combine();
    gpuloss_kl_div_desc kl = some_kl_div();
    gpuloss_kl_div_sparse_desc sparse = some_kl_div_sparse();
    size_t bytes = 0;
    (void)state;
    ce.classes = 800;
    expect_left_out(gpuloss_cross_entropy(context, &ce, NULL), "gpuloss_cross_entropy",
                    "gpuloss_cross_entropy_row_basic_f32", __LINE__);
    ce.logits_stride = 1004;
    expect_left_out(gpuloss_cross_entropy(context, &ce, NULL), "gpuloss_cross_entropy",
                    "gpuloss_cross_entropy_row_basic_f32", __LINE__);
    ce.classes = 100;
    expect_left_out(gpuloss_cross_entropy(context, &ce, NULL), "gpuloss_cross_entropy",
                    "gpuloss_cross_entropy_row_memory_f32", __LINE__);
    ce.logits_stride = 0;
    ce.softcap = 2.0;
    expect_left_out(gpuloss_cross_entropy(context, &ce, NULL), "gpuloss_cross_entropy",
                    "gpuloss_cross_entropy_row_thread_f32", __LINE__);
    ce.classes = 100000;
    ce.softcap = 0.0;
    expect_left_out(gpuloss_cross_entropy(context, &ce, NULL), "gpuloss_cross_entropy",
                    "gpuloss_cross_entropy_row_pipeline_f32", __LINE__);
    expect_left_out(gpuloss_cross_entropy_preload(context, &ce, NULL), "gpuloss_cross_entropy_preload",
                    "gpuloss_cross_entropy_row_pipeline_f32", __LINE__);
    expect_left_out(gpuloss_cross_entropy_preload(context, &combine, NULL), "gpuloss_cross_entropy_preload",
                    "gpuloss_cross_entropy_combine_shards", __LINE__);
    expect_left_out(gpuloss_cross_entropy_combine(context, &combine, NULL), "gpuloss_cross_entropy_combine",
                    "gpuloss_cross_entropy_combine_shards", __LINE__);
    kl.dtype = sparse.dtype = GPULOSS_F64;
    expect_left_out(gpuloss_kl_div(context, &kl, NULL), "gpuloss_kl_div", "gpuloss_kl_div_probabilities_f64", __LINE__);
    GIVE_LABELS(&kl);
    expect_left_out(gpuloss_kl_div(context, &kl, NULL), "gpuloss_kl_div", "gpuloss_kl_div_row_memory_f64", __LINE__);
    kl.dtype = GPULOSS_F16;
    expect_left_out(gpuloss_kl_div(context, &kl, NULL), "gpuloss_kl_div", "gpuloss_kl_div_row_pipeline_any16",
                    __LINE__);
    kl.classes = 100;
    expect_left_out(gpuloss_kl_div(context, &kl, NULL), "gpuloss_kl_div", "gpuloss_kl_div_row_memory_any16", __LINE__);
    kl.dtype = GPULOSS_F64;
    expect_left_out(gpuloss_kl_div_sparse(context, &sparse, NULL), "gpuloss_kl_div_sparse",
                    "gpuloss_kl_div_sparse_memory_f64", __LINE__);
    expect_left_out(gpuloss_kl_div_preload(context, &kl, NULL), "gpuloss_kl_div_preload",
                    "gpuloss_kl_div_row_memory_f64", __LINE__);
    expect_left_out(gpuloss_kl_div_sparse_preload(context, &sparse, NULL), "gpuloss_kl_div_sparse_preload",
                    "left out of this program by a GPULOSS_NO_ switch", __LINE__);
    /* The size of a workspace is known without the kernels. */
    expect_ok(gpuloss_cross_entropy_workspace(context, &ce, &bytes));
    assert_int_equal(bytes, sizeof(gpulossi_scratch));
    gpuloss_destroy(context);
}

static void divergences_still_count_rows(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16};
    size_t t;
    (void)state;
    for (t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++) {
        gpuloss_context *context = new_context();
        gpuloss_kl_div_desc kl = some_kl_div();
        gpuloss_kl_div_sparse_desc sparse = some_kl_div_sparse();
        kl.dtype = sparse.dtype = dtypes[t];
        kl.target_dtype = sparse.value_dtype = GPULOSS_F64;
        GIVE_LABELS(&kl);
        GIVE_LABELS(&sparse);
        fake.launches = 0;
        expect_ok(gpuloss_kl_div_preload(context, &kl, NULL));
        expect_ok(gpuloss_kl_div_sparse_preload(context, &sparse, NULL));
        assert_int_equal(fake.launches, 0);
        expect_ok(gpuloss_kl_div(context, &kl, NULL));
        expect_ok(gpuloss_kl_div_sparse(context, &sparse, NULL));
        assert_int_equal(fake.launches, 4);
        assert_string_equal(fake.launch[0].entry, PREPARE_KERNEL);
        assert_string_equal(fake.launch[2].entry, PREPARE_KERNEL);
        kl.target_dtype = dtypes[t];
        kl.input_kind = kl.target_kind = GPULOSS_LOGITS;
        expect_ok(gpuloss_kl_div(context, &kl, NULL));
        assert_non_null(strstr(last_launch()->entry, "_logits_packed_"));
        kl.classes = 100000;
        expect_ok(gpuloss_kl_div(context, &kl, NULL));
        assert_true(last_launch()->cluster > 0);
        gpuloss_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(what_is_left_out_says_so), TEST(divergences_still_count_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
