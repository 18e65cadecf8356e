#include "check.h"

#include <stdio.h>

/* Every function with a context: what it does to the caller's current CUcontext is the same for all. */
static void call_everything(gpuloss_context *context, struct CUstream_st *stream) {
    gpuloss_cross_entropy_desc ce = some_cross_entropy(), combine = some_combine();
    gpuloss_kl_div_desc kl = some_kl_div(), of_logits = kl;
    gpuloss_kl_div_sparse_desc sparse = some_kl_div_sparse();
    struct CUctx_st *before = fake_current();
    struct CUstream_st *own;
    gpuloss_info info;
    size_t bytes;
    void *memory;
    char data[16] = "fifteen letters";
    int depth = fake_depth();
#define UNCHANGED(call)                                                                                                \
    expect_ok(call);                                                                                                   \
    assert_ptr_equal(fake_current(), before);                                                                          \
    assert_int_equal(fake_depth(), depth)
    ce.dtype = kl.dtype = sparse.dtype = GPULOSS_F64;
    UNCHANGED(gpuloss_cross_entropy_preload(context, &ce, stream));
    UNCHANGED(gpuloss_kl_div_preload(context, &kl, stream));
    UNCHANGED(gpuloss_kl_div_sparse_preload(context, &sparse, stream));
    ce.dtype = kl.dtype = sparse.dtype = GPULOSS_F32;
    UNCHANGED(gpuloss_cross_entropy(context, &ce, stream));
    UNCHANGED(gpuloss_cross_entropy_workspace(context, &ce, &bytes));
    UNCHANGED(gpuloss_cross_entropy_combine(context, &combine, stream));
    UNCHANGED(gpuloss_kl_div(context, &kl, stream));
    UNCHANGED(gpuloss_kl_div_workspace(context, &kl, &bytes));
    ce.classes = of_logits.classes = 100000;
    of_logits.input_kind = of_logits.target_kind = GPULOSS_LOGITS;
    UNCHANGED(gpuloss_cross_entropy(context, &ce, stream));
    UNCHANGED(gpuloss_kl_div(context, &of_logits, stream));
    assert_true(last_launch()->cluster > 0);
    UNCHANGED(gpuloss_kl_div_sparse(context, &sparse, stream));
    UNCHANGED(gpuloss_kl_div_sparse_workspace(context, &sparse, &bytes));
    UNCHANGED(gpuloss_alloc(context, &memory, 16));
    UNCHANGED(gpuloss_upload(context, memory, data, 16, stream));
    memset(data, 0, sizeof data);
    UNCHANGED(gpuloss_download(context, data, memory, 16, stream));
    assert_string_equal(data, "fifteen letters");
    UNCHANGED(gpuloss_free(context, memory));
    UNCHANGED(gpuloss_stream_create(context, &own));
    UNCHANGED(gpuloss_synchronize(context, own));
    UNCHANGED(gpuloss_stream_destroy(context, own));
    UNCHANGED(gpuloss_get_info(context, &info));
    UNCHANGED(gpuloss_release_stream(context, stream));
}

static void uses_the_current_context(void **state) {
    gpuloss_context *context = new_context();
    (void)state;
    call_everything(context, NULL);
    assert_int_equal(fake.retains, 0);
    assert_int_equal(fake.pushes, 0);
    assert_ptr_equal(fake.memory[0].context, &fake.context[2]);
    gpuloss_destroy(context);
    assert_ptr_equal(fake_current(), &fake.context[2]);
    assert_int_equal(fake_leaks(), 0);
}

static void retains_the_primary_context_once(void **state) {
    gpuloss_create_desc desc = fake_desc();
    gpuloss_context *context;
    gpuloss_info info;
    (void)state;
    fake_set_current(NULL);
    desc.device = 1;
    expect_ok(gpuloss_create(&context, &desc));
    assert_int_equal(fake.retains, 1);
    assert_null(fake_current());
    call_everything(context, stream_number(1));
    assert_null(fake_current());
    assert_ptr_equal(fake.memory[0].context, &fake.context[1]);
    expect_ok(gpuloss_get_info(context, &info));
    assert_int_equal(info.device, 1);
    gpuloss_destroy(context);
    assert_int_equal(fake.retains, 1);
    assert_int_equal(fake.releases, 1);
    assert_null(fake_current());
}

static void takes_a_given_context(void **state) {
    gpuloss_create_desc desc = fake_desc();
    gpuloss_context *context;
    (void)state;
    desc.cuda_context = &fake.context[3];
    expect_ok(gpuloss_create(&context, &desc));
    assert_ptr_equal(fake_current(), &fake.context[2]);
    call_everything(context, NULL);
    assert_ptr_equal(fake.memory[0].context, &fake.context[3]);
    assert_int_equal(fake.retains, 0);
    fake_set_current(NULL);
    gpuloss_destroy(context);
    assert_null(fake_current());
}

static void restores_another_current_context(void **state) {
    gpuloss_context *context = new_context();
    (void)state;
    fake_set_current(&fake.context[3]);
    call_everything(context, stream_number(1));
    fake_set_current(NULL);
    call_everything(context, stream_number(2));
    gpuloss_destroy(context);
}

static void several_on_one_context(void **state) {
    gpuloss_context *first = new_context(), *second = new_context();
    gpuloss_kl_div_desc kl = some_kl_div();
    uint64_t scratch;
    (void)state;
    expect_ok(gpuloss_kl_div(first, &kl, NULL));
    scratch = last_launch()->parameters.rows.scratch;
    expect_ok(gpuloss_kl_div(second, &kl, NULL));
    assert_true(scratch != last_launch()->parameters.rows.scratch);
    gpuloss_destroy(first);
    expect_ok(gpuloss_kl_div(second, &kl, NULL));
    gpuloss_destroy(second);
}

static void waits_before_it_frees(void **state) {
    gpuloss_context *context = new_context();
    int before = fake.synchronizes;
    (void)state;
    gpuloss_destroy(context);
    assert_true(fake.synchronizes > before);
    gpuloss_destroy(NULL);
}

static void info_is_filled(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_kl_div_desc kl = some_kl_div();
    gpuloss_info info;
    (void)state;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    expect_ok(gpuloss_get_info(context, &info));
    assert_string_equal(info.device_name, "Fake GPU 0");
    assert_int_equal(info.compute_capability, 90);
    assert_int_equal(info.multiprocessors, 132);
    assert_int_equal(info.driver_version, 13000);
    assert_int_equal(info.kernels_loaded, 1);
    assert_int_equal(info.scratch_bytes, 65536);
    gpuloss_destroy(context);
}

/* Every function names a context, desc or result pointer that is NULL. */
static void null_handles_are_named(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_create_desc desc = fake_desc();
    gpuloss_cross_entropy_desc ce = some_cross_entropy();
    gpuloss_kl_div_desc kl = some_kl_div();
    gpuloss_kl_div_sparse_desc sparse = some_kl_div_sparse();
    struct CUstream_st *stream = stream_number(1);
    gpuloss_info info;
    size_t bytes;
    void *memory;
    char data[4];
    int calls = (int)fake.calls;
    (void)state;
#define REFUSED(function, arguments, word)                                                                             \
    expect_error(function arguments, GPULOSS_ERROR_INVALID_ARGUMENT, #function, word)
    REFUSED(gpuloss_create, (NULL, &desc), "context");
    REFUSED(gpuloss_release_stream, (NULL, NULL), "context");
    REFUSED(gpuloss_get_info, (NULL, &info), "context");
    REFUSED(gpuloss_get_info, (context, NULL), "info");
    REFUSED(gpuloss_cross_entropy, (NULL, &ce, NULL), "context");
    REFUSED(gpuloss_cross_entropy, (context, NULL, NULL), "desc");
    REFUSED(gpuloss_cross_entropy_preload, (NULL, &ce, NULL), "context");
    REFUSED(gpuloss_cross_entropy_preload, (context, NULL, NULL), "desc");
    REFUSED(gpuloss_cross_entropy_workspace, (NULL, &ce, &bytes), "context");
    REFUSED(gpuloss_cross_entropy_workspace, (context, NULL, &bytes), "desc");
    REFUSED(gpuloss_cross_entropy_workspace, (context, &ce, NULL), "bytes");
    REFUSED(gpuloss_cross_entropy_combine, (NULL, &ce, NULL), "context");
    REFUSED(gpuloss_cross_entropy_combine, (context, NULL, NULL), "desc");
    REFUSED(gpuloss_kl_div, (NULL, &kl, NULL), "context");
    REFUSED(gpuloss_kl_div, (context, NULL, NULL), "desc");
    REFUSED(gpuloss_kl_div_preload, (NULL, &kl, NULL), "context");
    REFUSED(gpuloss_kl_div_preload, (context, NULL, NULL), "desc");
    REFUSED(gpuloss_kl_div_workspace, (NULL, &kl, &bytes), "context");
    REFUSED(gpuloss_kl_div_workspace, (context, NULL, &bytes), "desc");
    REFUSED(gpuloss_kl_div_workspace, (context, &kl, NULL), "bytes");
    REFUSED(gpuloss_kl_div_sparse, (NULL, &sparse, NULL), "context");
    REFUSED(gpuloss_kl_div_sparse, (context, NULL, NULL), "desc");
    REFUSED(gpuloss_kl_div_sparse_preload, (NULL, &sparse, NULL), "context");
    REFUSED(gpuloss_kl_div_sparse_preload, (context, NULL, NULL), "desc");
    REFUSED(gpuloss_kl_div_sparse_workspace, (NULL, &sparse, &bytes), "context");
    REFUSED(gpuloss_kl_div_sparse_workspace, (context, NULL, &bytes), "desc");
    REFUSED(gpuloss_kl_div_sparse_workspace, (context, &sparse, NULL), "bytes");
    REFUSED(gpuloss_alloc, (NULL, &memory, 4), "context");
    REFUSED(gpuloss_alloc, (context, NULL, 4), "pointer");
    REFUSED(gpuloss_free, (NULL, AT(1)), "context");
    REFUSED(gpuloss_upload, (NULL, AT(1), data, 4, NULL), "context");
    REFUSED(gpuloss_upload, (context, NULL, data, 4, NULL), "device");
    REFUSED(gpuloss_upload, (context, AT(1), NULL, 4, NULL), "host");
    REFUSED(gpuloss_download, (NULL, data, AT(1), 4, NULL), "context");
    REFUSED(gpuloss_download, (context, NULL, AT(1), 4, NULL), "host");
    REFUSED(gpuloss_download, (context, data, NULL, 4, NULL), "device");
    REFUSED(gpuloss_synchronize, (NULL, NULL), "context");
    REFUSED(gpuloss_stream_create, (NULL, &stream), "context");
    REFUSED(gpuloss_stream_create, (context, NULL), "stream");
    REFUSED(gpuloss_stream_destroy, (NULL, stream_number(1)), "context");
    assert_int_equal(fake.calls, calls);
    gpuloss_destroy(context);
}

static void nothing_to_do_is_fine(void **state) {
    gpuloss_context *context = new_context();
    void *memory = context;
    int calls = (int)fake.calls;
    (void)state;
    expect_ok(gpuloss_alloc(context, &memory, 0));
    assert_null(memory);
    expect_ok(gpuloss_free(context, NULL));
    expect_ok(gpuloss_upload(context, NULL, NULL, 0, NULL));
    expect_ok(gpuloss_download(context, NULL, NULL, 0, NULL));
    expect_ok(gpuloss_stream_destroy(context, NULL));
    expect_ok(gpuloss_release_stream(context, stream_number(77)));
    assert_int_equal(fake.calls, calls);
    gpuloss_destroy(context);
}

static void statuses_have_names_and_groups(void **state) {
    (void)state;
    assert_string_equal(gpuloss_status_name(GPULOSS_OK), "GPULOSS_OK");
    assert_string_equal(gpuloss_status_name(GPULOSS_ERROR_NO_JIT), "GPULOSS_ERROR_NO_JIT");
    assert_string_equal(gpuloss_status_name((gpuloss_status)99), "unknown gpuloss_status");
    assert_int_equal(gpuloss_group_of(GPULOSS_OK), GPULOSS_GROUP_OK);
    assert_int_equal(gpuloss_group_of(GPULOSS_ERROR_NOT_PRELOADED), GPULOSS_GROUP_USAGE);
    assert_int_equal(gpuloss_group_of(GPULOSS_ERROR_JIT_DISABLED), GPULOSS_GROUP_ENVIRONMENT);
    assert_int_equal(gpuloss_group_of(GPULOSS_ERROR_OUT_OF_DEVICE_MEMORY), GPULOSS_GROUP_RESOURCE);
    assert_int_equal(gpuloss_group_of(GPULOSS_ERROR_COMPILE), GPULOSS_GROUP_DRIVER);
}

/* The header that a caller was compiled with is not that of the implementation. */
static void callers_of_another_version(void **state) {
    gpuloss_create_desc desc = fake_desc();
    gpuloss_context *context = (gpuloss_context *)&desc;
    char word[128];
    (void)state;
    snprintf(word, sizeof word,
             "version: the caller was compiled with another gpuloss.h (got %d, descs of %lu bytes, need %d, of %lu)",
             GPULOSS_VERSION + 1, (unsigned long)GPULOSS_DESC_BYTES, GPULOSS_VERSION,
             (unsigned long)GPULOSS_DESC_BYTES);
    expect_error(gpuloss_create_versioned(&context, &desc, GPULOSS_VERSION + 1, GPULOSS_DESC_BYTES),
                 GPULOSS_ERROR_INVALID_ARGUMENT, "gpuloss_create", word);
    assert_null(context);
    expect_error(gpuloss_create_versioned(&context, &desc, GPULOSS_VERSION, GPULOSS_DESC_BYTES - 8),
                 GPULOSS_ERROR_INVALID_ARGUMENT, "gpuloss_create", "version: the caller was compiled with another");
    assert_int_equal(fake.calls, 0);
}

int lifecycle_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(callers_of_another_version),
        TEST(uses_the_current_context),
        TEST(retains_the_primary_context_once),
        TEST(takes_a_given_context),
        TEST(restores_another_current_context),
        TEST(several_on_one_context),
        TEST(waits_before_it_frees),
        TEST(info_is_filled),
        TEST(null_handles_are_named),
        TEST(nothing_to_do_is_fine),
        TEST(statuses_have_names_and_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
