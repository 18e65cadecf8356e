/* A preload readies the call of its desc, and nothing else. */
#include "calls.h"

static gpuloss_context *context;

static int is_launched(const fake_module *module) {
    int i;
    for (i = 0; i < fake.launches; i++)
        if (fake.launch[i].module == module)
            return 1;
    return 0;
}

/* Nothing is loaded or allocated by the call in a capture, which launches every kernel that was loaded. */
static void expect_ready(const some_call *call) {
    const int launches = fake.launches;
    int m, modules, memories;
    long mallocs;
    expect_ok(preload_call(context, call, stream_number(1)));
    assert_int_equal(fake.launches, launches);
    modules = fake.modules;
    memories = fake.memories;
    mallocs = fake.mallocs;
    assert_true(modules > 0);
    expect_ok(preload_call(context, call, stream_number(1)));
    fake.capturing = 1;
    expect_ok(launch_call(context, call, stream_number(1)));
    fake.capturing = 0;
    assert_int_equal(fake.loads, modules);
    assert_int_equal(fake.memories, memories);
    assert_int_equal(fake.mallocs, mallocs);
    for (m = 0; m < modules; m++)
        if (!is_launched(&fake.module[m]))
            fail_msg("%s is loaded and not launched", fake.module[m].entry);
}

static void a_call_is_captured(void **state) {
    static const int gpus[][2] = {{5, 0}, {7, 0}, {8, 0}, {9, 0}, {12, 0}};
    some_call call;
    size_t g;
    int t, n;
    (void)state;
    for (g = 0; g < sizeof gpus / sizeof gpus[0]; g++)
        for (t = 0; t < DTYPES; t++)
            for (n = 0; make_call(n, &every_dtype[t], &call); n++) {
                fake_reset();
                fake_set_current(&fake.context[2]);
                fake.major = gpus[g][0];
                context = new_context();
                expect_ready(&call);
                gpuloss_destroy(context);
                assert_int_equal(fake_leaks(), 0);
                assert_string_equal(fake.violation, "");
            }
}

static void expect_not_preloaded(const some_call *call, const char *word) {
    const long loads = fake.loads;
    const int launches = fake.launches, memories = fake.memories, was_capturing = fake.capturing;
    fake.capturing = 1;
    expect_error(launch_call(context, call, stream_number(1)), GPULOSS_ERROR_NOT_PRELOADED, call->function,
                 call->preload);
    assert_non_null(strstr(gpuloss_last_error(), word));
    assert_non_null(strstr(gpuloss_last_error(), "before the capture"));
    fake.capturing = was_capturing;
    assert_int_equal(fake.loads, loads);
    assert_int_equal(fake.launches, launches);
    assert_int_equal(fake.memories, memories);
}

static void a_call_is_not_preloaded(void **state) {
    some_call call;
    int n;
    (void)state;
    context = new_context();
    for (n = 0; make_call(n, &every_dtype[0], &call); n++) {
        expect_not_preloaded(&call, "got first use of gpuloss_");
        fake.capturing = 1;
        expect_error(preload_call(context, &call, stream_number(1)), GPULOSS_ERROR_NOT_PRELOADED, call.preload,
                     call.preload + strlen("gpuloss_"));
        fake.capturing = 0;
    }
    gpuloss_destroy(context);
}

/* Whatever chooses a kernel counts: the type, the shape, the alignment, and what is null. */
static void another_call_is_not_preloaded(void **state) {
    some_call call, other;
    int n;
    (void)state;
    context = new_context();
    for (n = 0; make_call(n, &every_dtype[0], &call); n++)
        if (n == 0 || strstr(call.function, "kl_div") != NULL)
            expect_ok(preload_call(context, &call, stream_number(1)));
    (void)make_call(0, &every_dtype[0], &call);
    other = call;
    other.cross_entropy.dtype = GPULOSS_F64;
    expect_not_preloaded(&other, "gpuloss_cross_entropy_row_pipeline_f64");
    other = call;
    other.cross_entropy.classes = 1;
    other.cross_entropy.logits_stride = 0;
    expect_not_preloaded(&other, "gpuloss_cross_entropy_row_basic_f32");
    other.cross_entropy.logits = GPULOSS_PTR(ADDRESS(1) + 4);
    expect_not_preloaded(&other, "gpuloss_cross_entropy_row_thread_f32");
    other = call;
    other.cross_entropy.argmax = (int64_t *)AT(6);
    other.cross_entropy.classes = 20;
    expect_not_preloaded(&other, "gpuloss_cross_entropy_row_thread_f32");
    gpuloss_destroy(context);
}

static gpuloss_cross_entropy_desc with_options(void) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.label_smoothing = 0.1;
    d.logit_scale = 0.5;
    return d;
}

static void expect_missing_variant(const gpuloss_cross_entropy_desc *d, int line) {
    const long loads = fake.loads;
    fake.capturing = 1;
    expect_error_(gpuloss_cross_entropy(context, d, stream_number(1)), GPULOSS_ERROR_NOT_PRELOADED,
                  "gpuloss_cross_entropy", "gpuloss_cross_entropy_row_pipeline_f32", line);
    fake.capturing = 0;
    expect_ok_(gpuloss_cross_entropy_preload(context, d, stream_number(1)), line);
    assert_int_equal(fake.loads, loads + 1);
    fake.capturing = 1;
    expect_ok_(gpuloss_cross_entropy(context, d, stream_number(1)), line);
    fake.capturing = 0;
}

/* The same text for other features is another kernel; for other numbers it is the same one. */
static void variants_of_a_text(void **state) {
    gpuloss_cross_entropy_desc d = with_options();
    (void)state;
    context = new_context();
    expect_ok(gpuloss_cross_entropy_preload(context, &d, stream_number(1)));
    fake.capturing = 1;
    d.label_smoothing = 0.2;
    d.rows = 900;
    expect_ok(gpuloss_cross_entropy(context, &d, stream_number(1)));
    fake.capturing = 0;
    d.row_weights = AT(6);
    expect_missing_variant(&d, __LINE__);
    d = with_options();
    d.grad_logits = NULL;
    expect_missing_variant(&d, __LINE__);
    d = with_options();
    d.logits = GPULOSS_PTR(ADDRESS(1) + 4);
    expect_missing_variant(&d, __LINE__);
    d = with_options();
    d.classes = 12000;
    expect_missing_variant(&d, __LINE__);
    gpuloss_destroy(context);
}

/* The message of a refusal, without the function's name. */
static const char *after_name(const char *function) {
    const char *message = gpuloss_last_error();
    assert_int_equal(strncmp(message, function, strlen(function)), 0);
    return message + strlen(function);
}

static void expect_refused_alike(const some_call *call, int line) {
    char message[1024];
    const gpuloss_status status = launch_call(context, call, NULL);
    if (status == GPULOSS_OK)
        fail_msg("line %d: the call is not refused", line);
    strcpy(message, after_name(call->function));
    assert_int_equal(preload_call(context, call, NULL), status);
    assert_string_equal(after_name(call->preload), message);
}

#define REFUSED(n, change)                                                                                             \
    do {                                                                                                               \
        some_call call;                                                                                                \
        assert_true(make_call(n, &every_dtype[0], &call));                                                             \
        call.change;                                                                                                   \
        expect_refused_alike(&call, __LINE__);                                                                         \
    } while (0)

static int first_of(const char *function) {
    some_call call;
    int n;
    for (n = 0; make_call(n, &every_dtype[0], &call); n++)
        if (strcmp(call.function, function) == 0)
            return n;
    fail_msg("there is no call of %s", function);
    return 0;
}

static void what_a_call_refuses(void **state) {
    const int combine = first_of("gpuloss_cross_entropy_combine"), kl = first_of("gpuloss_kl_div");
    const int sparse = first_of("gpuloss_kl_div_sparse");
    long calls;
    (void)state;
    context = new_context();
    calls = fake.calls;
    REFUSED(0, cross_entropy.logits = NULL);
    REFUSED(0, cross_entropy.dtype = GPULOSS_DTYPE_UNSET);
    REFUSED(0, cross_entropy.rows = -1);
    REFUSED(0, cross_entropy.logits_stride = 3);
    REFUSED(0, cross_entropy.lse = GPULOSS_PTR(3));
    REFUSED(0, cross_entropy.grad_logits = GPULOSS_PTR(ADDRESS(1) + 64));
    REFUSED(0, cross_entropy.workspace = GPULOSS_PTR(8));
    REFUSED(combine, cross_entropy.shard_rows = NULL);
    REFUSED(combine, cross_entropy.shards = -1);
    REFUSED(kl, kl_div.target = NULL);
    REFUSED(kl, kl_div.input_kind = GPULOSS_KIND_UNSET);
    REFUSED(kl, kl_div.temperature = 2.0);
    REFUSED(sparse, kl_div_sparse.k = 0);
    REFUSED(sparse, kl_div_sparse.residual = GPULOSS_RESIDUAL_UNSET);
    assert_int_equal(fake.calls, calls);
    gpuloss_destroy(context);
}

static void a_workspace_is_checked(void **state) {
    some_call call;
    int n;
    (void)state;
    context = new_context();
    for (n = 0; make_call(n, &every_dtype[0], &call); n++) {
        call.cross_entropy.workspace = call.kl_div.workspace = call.kl_div_sparse.workspace = AT(22);
        call.cross_entropy.workspace_bytes = call.kl_div.workspace_bytes = call.kl_div_sparse.workspace_bytes = 16;
        expect_refused_alike(&call, __LINE__);
    }
    assert_int_equal(fake.loads, 0);
    gpuloss_destroy(context);
}

static void a_workspace_takes_no_scratch(void **state) {
    const int fills = 1; /* of the scratch that comes with a context */
    int i;
    (void)state;
    context = new_context();
    for (i = 0; i < 100; i++) {
        gpuloss_cross_entropy_desc d = some_cross_entropy();
        d.workspace = AT(22);
        d.workspace_bytes = sizeof(gpulossi_scratch);
        expect_ok(gpuloss_cross_entropy_preload(context, &d, stream_number(i)));
    }
    assert_int_equal(fake.memories, 1);
    assert_int_equal(fake.fills, fills);
    gpuloss_destroy(context);
}

/* A stream gets its scratch with the preload, of new memory where there is none left; another one has none then. */
static void scratch_of_the_stream(void **state) {
    gpuloss_kl_div_desc d = some_kl_div();
    int n;
    (void)state;
    context = new_context();
    for (n = 1; n < 1000 && fake.memories < 2; n++)
        expect_ok(gpuloss_kl_div_preload(context, &d, stream_number(n)));
    while (n < 1000 && fake.memories < 3) {
        fake.capturing = 1;
        if (gpuloss_kl_div(context, &d, stream_number(n)) != GPULOSS_OK)
            break;
        n++;
    }
    assert_in_range(n, 3, 998);
    expect_error(gpuloss_kl_div(context, &d, stream_number(n)), GPULOSS_ERROR_NOT_PRELOADED, "gpuloss_kl_div",
                 "call gpuloss_kl_div_preload before the capture, or pass a workspace");
    expect_error(gpuloss_kl_div_preload(context, &d, stream_number(n)), GPULOSS_ERROR_NOT_PRELOADED,
                 "gpuloss_kl_div_preload", "scratch");
    fake.capturing = 0;
    expect_ok(gpuloss_kl_div_preload(context, &d, stream_number(n)));
    assert_int_equal(fake.memories, 3);
    fake.capturing = 1;
    expect_ok(gpuloss_kl_div(context, &d, stream_number(n)));
    gpuloss_destroy(context);
}

/* A sum of no rows is written by a call all the same. */
static void sums_of_no_rows(void **state) {
    some_call call;
    int n;
    (void)state;
    for (n = 0; make_call(n, &every_dtype[0], &call); n++)
        if (call.cross_entropy.total_classes == 0) {
            call.cross_entropy.rows = call.kl_div.rows = call.kl_div_sparse.rows = 0;
            fake_reset();
            fake_set_current(&fake.context[2]);
            context = new_context();
            expect_ready(&call);
            gpuloss_destroy(context);
        }
}

/* Where a call launches nothing, it makes no call of the driver. */
static void nothing_of_no_rows(void **state) {
    some_call call;
    long calls;
    int n;
    (void)state;
    context = new_context();
    calls = fake.calls;
    for (n = 0; make_call(n, &every_dtype[0], &call); n++) {
        call.cross_entropy.rows = call.kl_div.rows = call.kl_div_sparse.rows = 0;
        call.cross_entropy.loss = call.kl_div.loss = call.kl_div_sparse.loss = NULL;
        if (call.cross_entropy.total_classes == 0)
            call.cross_entropy.loss_rows = AT(7);
        call.kl_div.loss_rows = call.kl_div_sparse.loss_rows = AT(7);
        expect_ok(preload_call(context, &call, NULL));
        expect_ok(launch_call(context, &call, NULL));
    }
    assert_int_equal(fake.calls, calls);
    gpuloss_destroy(context);
}

/* The driver can't be queried about the default stream while another one is captured. That counts as a capture, too. */
static void a_capture_that_cannot_be_queried(void **state) {
    gpuloss_cross_entropy_desc d = with_options();
    (void)state;
    context = new_context();
    fake.fail_symbol = "cuStreamIsCapturing";
    fake.fail_code = 906;
    expect_error(gpuloss_cross_entropy(context, &d, NULL), GPULOSS_ERROR_NOT_PRELOADED, "gpuloss_cross_entropy",
                 "call gpuloss_cross_entropy_preload before the capture");
    assert_int_equal(fake.loads, 0);
    fake.fail_code = 719;
    expect_ok(gpuloss_cross_entropy(context, &d, NULL));
    gpuloss_destroy(context);
}

int preload_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_call_is_captured),
        TEST(a_call_is_not_preloaded),
        TEST(another_call_is_not_preloaded),
        TEST(variants_of_a_text),
        TEST(what_a_call_refuses),
        TEST(a_workspace_is_checked),
        TEST(a_workspace_takes_no_scratch),
        TEST(scratch_of_the_stream),
        TEST(sums_of_no_rows),
        TEST(nothing_of_no_rows),
        TEST(a_capture_that_cannot_be_queried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
