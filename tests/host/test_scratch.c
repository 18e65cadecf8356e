/* Memory for reductions: one piece a stream, from the context or from the caller. */
#include "check.h"

#include <pthread.h>

static uint64_t scratch_on(gpuloss_context *context, struct CUstream_st *stream) {
    gpuloss_kl_div_desc kl = some_kl_div();
    expect_ok(gpuloss_kl_div(context, &kl, stream));
    return last_launch()->parameters.rows.scratch;
}

static size_t scratch_bytes(gpuloss_context *context) {
    gpuloss_kl_div_desc kl = some_kl_div();
    size_t bytes = 0;
    expect_ok(gpuloss_kl_div_workspace(context, &kl, &bytes));
    assert_int_equal(bytes, sizeof(gpulossi_scratch));
    return bytes;
}

/* Inside one of the context's own allocations. */
static void is_in_memory(uint64_t scratch, size_t bytes) {
    int i;
    for (i = 0; i < fake.memories; i++)
        if (scratch >= fake.memory[i].base && scratch + bytes <= fake.memory[i].base + fake.memory[i].bytes)
            return;
    fail_msg("scratch lies outside of what is allocated");
}

static void one_a_stream(void **state) {
    enum { STREAMS = 300 };
    uint64_t scratch[STREAMS];
    gpuloss_context *context = new_context();
    size_t bytes = scratch_bytes(context);
    gpuloss_info info;
    int i, j;
    (void)state;
    for (i = 0; i < STREAMS; i++) {
        scratch[i] = scratch_on(context, stream_number(i));
        /* Streams share no cache line either: their blocks count with atomics at the same time. */
        assert_int_equal(scratch[i] % 128, 0);
        is_in_memory(scratch[i], bytes);
        for (j = 0; j < i; j++)
            assert_true(scratch[i] + bytes <= scratch[j] || scratch[j] + bytes <= scratch[i]);
    }
    for (i = STREAMS - 1; i >= 0; i--)
        assert_int_equal(scratch_on(context, stream_number(i)), scratch[i]);
    expect_ok(gpuloss_get_info(context, &info));
    assert_int_equal(info.scratch_bytes, (size_t)fake.memories * 65536);
    gpuloss_destroy(context);
}

/* The acceptance line: at most 64 KiB a context, whatever the GPU; 34 streams have room in it. */
static void the_first_streams_share_64_kib(void **state) {
    static const int multiprocessors[] = {1, 2, 16, 30, 84, 108, 132, 148, 192, 255};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof multiprocessors / sizeof multiprocessors[0]; i++) {
        gpuloss_context *context;
        gpuloss_info info;
        int stream;
        fake_reset();
        fake_set_current(&fake.context[2]);
        fake.multiprocessors = multiprocessors[i];
        context = new_context();
        scratch_on(context, NULL);
        for (stream = 1; stream < 34; stream++)
            scratch_on(context, stream_number(stream));
        expect_ok(gpuloss_get_info(context, &info));
        assert_true(info.scratch_bytes <= 65536);
        assert_int_equal(fake.memories, 1);
        assert_true(fake.memory[0].bytes <= 65536);
        gpuloss_destroy(context);
    }
}

/* Every stream's scratch is zero when its first launch runs: fills on other streams have finished. */
static void zeroed_before_use(void **state) {
    gpuloss_context *context = new_context();
    int i, f;
    (void)state;
    for (i = 0; i < 300; i++) {
        uint64_t scratch = scratch_on(context, stream_number(i));
        int zeroed = 0;
        for (f = 0; f < fake.fills; f++)
            zeroed |= fake.fill[f].value == 0 && fake.fill[f].base <= scratch &&
                      fake.fill[f].base + fake.fill[f].bytes >= scratch + sizeof(gpulossi_scratch);
        assert_true(zeroed);
        assert_string_equal(fake.violation, "");
    }
    gpuloss_destroy(context);
}

static void released_and_reused(void **state) {
    gpuloss_context *context = new_context();
    uint64_t first = scratch_on(context, stream_number(1)), second = scratch_on(context, stream_number(2));
    int i;
    (void)state;
    expect_ok(gpuloss_release_stream(context, stream_number(1)));
    assert_int_equal(scratch_on(context, stream_number(3)), first);
    assert_int_equal(scratch_on(context, stream_number(2)), second);
    expect_ok(gpuloss_release_stream(context, stream_number(2)));
    expect_ok(gpuloss_release_stream(context, stream_number(3)));
    for (i = 0; i < 1000; i++) {
        scratch_on(context, stream_number(i));
        expect_ok(gpuloss_release_stream(context, stream_number(i)));
        fake.launches = fake.fills = 0;
    }
    assert_int_equal(fake.memories, 1);
    /* A stream that the library made gives its scratch back by itself. */
    for (i = 0; i < 100; i++) {
        struct CUstream_st *stream;
        expect_ok(gpuloss_stream_create(context, &stream));
        scratch_on(context, stream);
        expect_ok(gpuloss_stream_destroy(context, stream));
    }
    assert_int_equal(fake.memories, 1);
    gpuloss_destroy(context);
}

typedef struct per_thread {
    gpuloss_context *context;
    uint64_t scratch;
} per_thread;

/* A handle of no stream takes no slot, however often it is tried, and nothing is launched. */
static void handles_of_no_stream(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    uint64_t first;
    gpuloss_info before, after;
    int i, launches;
    (void)state;
    first = scratch_on(context, stream_number(1));
    expect_ok(gpuloss_get_info(context, &before));
    launches = fake.launches;
    fake.fail_symbol = "cuStreamIsCapturing";
    fake.fail_code = 400;
    for (i = 2; i < 1000; i++)
        expect_error(gpuloss_cross_entropy(context, &d, stream_number(i)), GPULOSS_ERROR_DRIVER,
                     "gpuloss_cross_entropy", "stream: the driver says");
    assert_int_equal(fake.launches, launches);
    expect_ok(gpuloss_get_info(context, &after));
    assert_int_equal(after.scratch_bytes, before.scratch_bytes);
    /* A stream that has a slot is not queried. */
    assert_int_equal(scratch_on(context, stream_number(1)), first);
    fake.fail_symbol = NULL;
    assert_true(scratch_on(context, stream_number(2)) != first);
    expect_ok(gpuloss_get_info(context, &after));
    assert_int_equal(after.scratch_bytes, before.scratch_bytes);
    gpuloss_destroy(context);
}

static void *on_the_stream_of_this_thread(void *argument) {
    per_thread *p = (per_thread *)argument;
    struct CUstream_st *stream = (struct CUstream_st *)(uintptr_t)2;
    fake_set_current(&fake.context[2]);
    p->scratch = scratch_on(p->context, stream);
    assert_int_equal(scratch_on(p->context, stream), p->scratch);
    return NULL;
}

static void the_stream_of_each_thread(void **state) {
    per_thread here, there;
    pthread_t thread;
    (void)state;
    here.context = there.context = new_context();
    on_the_stream_of_this_thread(&here);
    assert_int_equal(pthread_create(&thread, NULL, on_the_stream_of_this_thread, &there), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(here.scratch != there.scratch);
    gpuloss_destroy(here.context);
}

/* NULL and CU_STREAM_LEGACY are the same stream. */
static void the_default_stream_by_either_name(void **state) {
    gpuloss_context *context = new_context();
    (void)state;
    assert_int_equal(scratch_on(context, NULL), scratch_on(context, (struct CUstream_st *)(uintptr_t)1));
    gpuloss_destroy(context);
}

static void workspace_of_the_caller(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_kl_div_desc kl = some_kl_div();
    gpuloss_cross_entropy_desc ce = some_cross_entropy();
    size_t bytes = 1;
    int fills, launches;
    (void)state;
    expect_ok(gpuloss_kl_div_workspace(context, &kl, &bytes));
    assert_true(bytes > 0 && bytes <= 65536);
    kl.workspace = AT(6);
    kl.workspace_bytes = bytes;
    fills = fake.fills;
    expect_ok(gpuloss_kl_div(context, &kl, stream_number(9)));
    assert_int_equal(last_launch()->parameters.rows.scratch, (uintptr_t)AT(6));
    assert_int_equal(fake.fills, fills + 1);
    assert_int_equal(fake.fill[fills].base, (uintptr_t)AT(6));
    assert_int_equal(fake.fill[fills].bytes, sizeof(gpulossi_scratch));
    assert_int_equal(fake.fill[fills].value, 0);
    assert_ptr_equal(fake.fill[fills].stream, stream_number(9));
    assert_int_equal(fake.fill[fills].launches_before, 0);
    launches = fake.launches;
    kl.workspace_bytes = bytes - 1;
    expect_error(gpuloss_kl_div(context, &kl, NULL), GPULOSS_ERROR_WORKSPACE_TOO_SMALL, "gpuloss_kl_div",
                 "workspace_bytes: ");
    /* One that ends where the loss begins overlaps nothing. */
    kl.workspace = GPULOSS_PTR((uintptr_t)kl.loss - 256), kl.workspace_bytes = 256;
    expect_error(gpuloss_kl_div(context, &kl, NULL), GPULOSS_ERROR_WORKSPACE_TOO_SMALL, "gpuloss_kl_div",
                 "workspace_bytes: ");
    expect_ok(gpuloss_kl_div_workspace(context, &kl, &bytes));
    kl.workspace = AT(6);
    kl.workspace_bytes = 0;
    expect_error(gpuloss_kl_div(context, &kl, NULL), GPULOSS_ERROR_WORKSPACE_TOO_SMALL, "gpuloss_kl_div",
                 "workspace_bytes: ");
    kl.workspace = (char *)AT(6) + 8;
    kl.workspace_bytes = bytes;
    expect_error(gpuloss_kl_div(context, &kl, NULL), GPULOSS_ERROR_MISALIGNED, "gpuloss_kl_div", "workspace: ");
    assert_int_equal(fake.launches, launches);
    assert_int_equal(fake.fills, fills + 1);
    /* Both kernels of a call share it. */
    expect_ok(gpuloss_cross_entropy_workspace(context, &ce, &bytes));
    ce.workspace = AT(7);
    ce.workspace_bytes = bytes;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(fake.launches, launches + 2);
    assert_int_equal(fake.launch[launches].parameters.rows.scratch, (uintptr_t)AT(7));
    assert_int_equal(fake.launch[launches + 1].parameters.rows.scratch, (uintptr_t)AT(7));
    gpuloss_destroy(context);
}

/* The queried size is enough for every choice of outputs. Each launch takes scratch. */
static void the_query_tells_the_truth(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_kl_div_desc kl = some_kl_div();
    gpuloss_cross_entropy_desc ce = some_cross_entropy();
    unsigned outputs;
    (void)state;
    for (outputs = 1; outputs < 16; outputs++) {
        size_t bytes = 1;
        kl.loss = outputs & 1 ? AT(3) : NULL;
        kl.grad_input = outputs & 2 ? AT(4) : NULL;
        kl.loss_rows = outputs & 4 ? AT(5) : NULL;
        kl.loss_elements = outputs & 8 ? AT(6) : NULL;
        expect_ok(gpuloss_kl_div_workspace(context, &kl, &bytes));
        assert_int_equal(bytes, sizeof(gpulossi_scratch));
        expect_ok(gpuloss_kl_div(context, &kl, NULL));
        assert_true(last_launch()->parameters.rows.scratch != 0);
        kl.workspace = AT(8);
        kl.workspace_bytes = bytes;
        expect_ok(gpuloss_kl_div(context, &kl, NULL));
        assert_int_equal(last_launch()->parameters.rows.scratch, (uintptr_t)AT(8));
        kl.workspace = NULL;
        kl.workspace_bytes = 0;
        ce.loss = kl.loss;
        ce.grad_logits = kl.grad_input;
        ce.loss_rows = kl.loss_rows;
        ce.bad_targets = (int64_t *)kl.loss_elements;
        expect_ok(gpuloss_cross_entropy_workspace(context, &ce, &bytes));
        assert_int_equal(bytes, sizeof(gpulossi_scratch));
        ce.workspace = AT(7);
        ce.workspace_bytes = bytes;
        expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
        assert_int_equal(last_launch()->parameters.rows.scratch, (uintptr_t)AT(7));
        ce.workspace = NULL;
        ce.workspace_bytes = 0;
    }
    gpuloss_destroy(context);
}

int scratch_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(one_a_stream),
        TEST(the_first_streams_share_64_kib),
        TEST(zeroed_before_use),
        TEST(released_and_reused),
        TEST(handles_of_no_stream),
        TEST(the_stream_of_each_thread),
        TEST(the_default_stream_by_either_name),
        TEST(workspace_of_the_caller),
        TEST(the_query_tells_the_truth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
