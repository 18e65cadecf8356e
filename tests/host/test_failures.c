/* Every call into the driver, and every allocation on the host, fails once, one after the other. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct run {
    gpuloss_context *context;
    void *memory;
    struct CUstream_st *stream;
    int streams;  /* that were used to fill the first allocation of scratch */
    int launches; /* made before the call that is looked at */
} run;

static gpuloss_status create(run *r) {
    gpuloss_create_desc desc = fake_desc();
    gpuloss_status status = gpuloss_create(&r->context, &desc);
    assert_int_equal(status == GPULOSS_OK, r->context != NULL);
    return status;
}
static gpuloss_cross_entropy_desc few_rows(void) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.rows = 2;
    d.classes = 100000;
    d.z_loss = AT(6);
    return d;
}
static gpuloss_status cross_entropy_preload(run *r) {
    gpuloss_cross_entropy_desc d = few_rows();
    gpuloss_status status = gpuloss_cross_entropy_preload(r->context, &d, stream_number(1));
    assert_int_equal(fake.launches, r->launches);
    return status;
}
/* On a stream that is new, as are the kernels. */
static gpuloss_status kl_div_preload(run *r) {
    gpuloss_kl_div_desc d = some_kl_div();
    gpuloss_status status;
    d.dtype = GPULOSS_F16;
    GIVE_LABELS(&d);
    status = gpuloss_kl_div_preload(r->context, &d, stream_number(6));
    assert_int_equal(fake.launches, r->launches);
    return status;
}
static gpuloss_status kl_div_sparse_preload(run *r) {
    gpuloss_kl_div_sparse_desc d = some_kl_div_sparse();
    gpuloss_status status;
    d.dtype = GPULOSS_F16;
    status = gpuloss_kl_div_sparse_preload(r->context, &d, stream_number(7));
    assert_int_equal(fake.launches, r->launches);
    return status;
}
/* Not preloaded, on a stream that is new: everything happens in the call. */
static gpuloss_status cross_entropy(run *r) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.dtype = GPULOSS_BF16;
    return gpuloss_cross_entropy(r->context, &d, stream_number(2));
}
/* The prepare kernel sums weights for it. */
static gpuloss_status cross_entropy_with_options(run *r) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.class_weights = AT(6);
    return gpuloss_cross_entropy(r->context, &d, stream_number(2));
}
static gpuloss_status cross_entropy_combine(run *r) {
    gpuloss_cross_entropy_desc d = some_combine();
    d.dtype = GPULOSS_F64;
    return gpuloss_cross_entropy_combine(r->context, &d, stream_number(2));
}
static gpuloss_status kl_div(run *r) {
    gpuloss_kl_div_desc d = some_kl_div();
    return gpuloss_kl_div(r->context, &d, stream_number(3));
}
static gpuloss_status kl_div_on_more_streams(run *r) {
    gpuloss_kl_div_desc d = some_kl_div();
    gpuloss_status status = GPULOSS_OK;
    while (status == GPULOSS_OK && fake.memories < 2) {
        r->launches = fake.launches;
        status = gpuloss_kl_div(r->context, &d, stream_number(100 + r->streams));
        r->streams += status == GPULOSS_OK;
    }
    return status;
}
static gpuloss_status kl_div_in_a_workspace(run *r) {
    gpuloss_kl_div_desc d = some_kl_div();
    d.workspace = AT(5);
    d.workspace_bytes = 65536;
    return gpuloss_kl_div(r->context, &d, stream_number(3));
}
/* The prepare kernel counts rows for both of these. */
static gpuloss_status kl_div_with_labels(run *r) {
    gpuloss_kl_div_desc d = some_kl_div();
    GIVE_LABELS(&d);
    return gpuloss_kl_div(r->context, &d, stream_number(3));
}
static gpuloss_status kl_div_sparse(run *r) {
    gpuloss_kl_div_sparse_desc d = some_kl_div_sparse();
    GIVE_LABELS(&d);
    return gpuloss_kl_div_sparse(r->context, &d, stream_number(4));
}
/* In clusters: of one array, of one with options, and of two arrays. */
static gpuloss_status cross_entropy_of_long_rows(run *r) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.dtype = GPULOSS_F16;
    d.classes = 100000;
    return gpuloss_cross_entropy(r->context, &d, stream_number(5));
}
static gpuloss_status cross_entropy_of_few_rows(run *r) {
    gpuloss_cross_entropy_desc d = few_rows();
    return gpuloss_cross_entropy(r->context, &d, stream_number(1));
}
static gpuloss_status kl_div_of_long_rows(run *r) {
    gpuloss_kl_div_desc d = some_kl_div();
    GIVE_LABELS(&d);
    d.input_kind = d.target_kind = GPULOSS_LOGITS;
    d.classes = 100000;
    return gpuloss_kl_div(r->context, &d, stream_number(3));
}
static gpuloss_status workspace(run *r) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    size_t bytes;
    return gpuloss_cross_entropy_workspace(r->context, &d, &bytes);
}
static gpuloss_status info(run *r) {
    gpuloss_info filled;
    return gpuloss_get_info(r->context, &filled);
}
static gpuloss_status alloc(run *r) {
    return gpuloss_alloc(r->context, &r->memory, 64);
}
static gpuloss_status upload(run *r) {
    return gpuloss_upload(r->context, r->memory, "four", 4, NULL);
}
static gpuloss_status download(run *r) {
    char data[4];
    return gpuloss_download(r->context, data, r->memory, 4, NULL);
}
static gpuloss_status synchronize(run *r) {
    return gpuloss_synchronize(r->context, NULL);
}
static gpuloss_status stream_create(run *r) {
    return gpuloss_stream_create(r->context, &r->stream);
}
static gpuloss_status use_stream(run *r) {
    gpuloss_kl_div_desc d = some_kl_div();
    return gpuloss_kl_div(r->context, &d, r->stream);
}
static gpuloss_status stream_destroy(run *r) {
    return gpuloss_stream_destroy(r->context, r->stream);
}
static gpuloss_status free_memory(run *r) {
    return gpuloss_free(r->context, r->memory);
}

static const struct step {
    const char *function;
    gpuloss_status (*call)(run *);
} steps[] = {
    {"gpuloss_create", create},
    {"gpuloss_cross_entropy_preload", cross_entropy_preload},
    {"gpuloss_cross_entropy", cross_entropy},
    {"gpuloss_cross_entropy", cross_entropy_with_options},
    {"gpuloss_cross_entropy_combine", cross_entropy_combine},
    {"gpuloss_kl_div", kl_div},
    {"gpuloss_kl_div", kl_div_on_more_streams},
    {"gpuloss_kl_div", kl_div_in_a_workspace},
    {"gpuloss_kl_div", kl_div_with_labels},
    {"gpuloss_kl_div_sparse", kl_div_sparse},
    {"gpuloss_kl_div_preload", kl_div_preload},
    {"gpuloss_kl_div_sparse_preload", kl_div_sparse_preload},
    {"gpuloss_cross_entropy", cross_entropy_of_long_rows},
    {"gpuloss_cross_entropy", cross_entropy_of_few_rows},
    {"gpuloss_kl_div", kl_div_of_long_rows},
    {"gpuloss_cross_entropy_workspace", workspace},
    {"gpuloss_get_info", info},
    {"gpuloss_alloc", alloc},
    {"gpuloss_upload", upload},
    {"gpuloss_download", download},
    {"gpuloss_synchronize", synchronize},
    {"gpuloss_stream_create", stream_create},
    {"gpuloss_kl_div", use_stream},
    {"gpuloss_stream_destroy", stream_destroy},
    {"gpuloss_free", free_memory},
};
enum { STEPS = sizeof steps / sizeof steps[0] };

/* Driver calls whose failure changes nothing for the caller: there is another way, or nothing left to do. */
static int is_harmless(const char *symbol, int attribute) {
    if (attribute != 0)
        return attribute == 97 || attribute == 120 || attribute == 9 || attribute == 14;
    return strcmp(symbol, "cuOccupancyMaxActiveBlocksPerMultiprocessor") == 0 ||
           strcmp(symbol, "cuStreamIsCapturing") == 0 || strcmp(symbol, "cuCtxPopCurrent_v2") == 0 ||
           strcmp(symbol, "cuCtxGetCurrent") == 0 || strcmp(symbol, "cuOccupancyMaxActiveClusters") == 0;
}

static gpuloss_status_group group_of(const char *symbol, int code) {
    if (code == 2)
        return GPULOSS_GROUP_RESOURCE;
    if (code == 100 || code == 221 || strcmp(symbol, "cuInit") == 0)
        return GPULOSS_GROUP_ENVIRONMENT;
    return GPULOSS_GROUP_DRIVER;
}

static void expect_failure(const struct step *step, gpuloss_status status, int launches) {
    const char *message = gpuloss_last_error();
    size_t length = strlen(step->function);
    gpuloss_status_group group = group_of(fake.failed, fake.fail_code);
    if (gpuloss_group_of(status) != group)
        fail_msg("%s, %s fails with %d: got %s", step->function, fake.failed, fake.fail_code,
                 gpuloss_status_name(status));
    if (strncmp(message, step->function, length) != 0 || message[length] != ':' || strstr(message, "got ") == NULL)
        fail_msg("%s, %s fails: the message is \"%s\"", step->function, fake.failed, message);
    /* The prepare kernel, which writes nothing of the caller's, goes before the launch that may fail. */
    if (fake.launches > launches &&
        (fake.launches > launches + 1 || strcmp(fake.launch[launches].entry, PREPARE_KERNEL) != 0))
        fail_msg("%s, %s fails: something was launched", step->function, fake.failed);
}

/* The call of the driver that failed, and its step. */
typedef struct position {
    const char *symbol;
    int attribute, step; /* after all steps comes gpuloss_destroy */
} position;
enum { MAX_POSITIONS = 2000 };

/* Without a current CUcontext the primary one is taken. Returns whether the n-th call was reached, and where. A step that
 * failed is tried again: the context is as good as new. */
static int fail_driver_call(long n, int code, int primary, position *where) {
    run r;
    int i;
    const char *failed_before = NULL;
    where->step = STEPS;
    memset(&r, 0, sizeof r);
    fake_reset();
    fake_set_current(primary ? NULL : &fake.context[2]);
    fake.fail_at = n;
    fake.fail_code = code;
    for (i = 0; i < (int)STEPS; i++) {
        int depth = fake_depth();
        gpuloss_status status;
        failed_before = fake.failed;
        r.launches = fake.launches;
        status = steps[i].call(&r);
        if (fake.failed != failed_before)
            where->step = i;
        assert_int_equal(fake_depth(), depth);
        assert_ptr_equal(fake_current(), primary ? NULL : &fake.context[2]);
        if (status != GPULOSS_OK) {
            assert_non_null(fake.failed);
            expect_failure(&steps[i], status, r.launches);
            expect_ok(steps[i].call(&r));
        } else if (fake.failed != failed_before && !is_harmless(fake.failed, fake.failed_attribute))
            fail_msg("%s: %s failed and it says nothing", steps[i].function, fake.failed);
        /* Not knowing which CUcontext is current is no reason to work in another one. */
        assert_ptr_equal(fake.memory[fake.memories - 1].context, primary ? &fake.context[0] : &fake.context[2]);
    }
    failed_before = fake.failed;
    gpuloss_destroy(r.context);
    where->symbol = fake.failed;
    where->attribute = fake.failed_attribute;
    assert_int_equal(fake_depth(), primary ? 0 : 1);
    assert_int_equal(fake.pushes, fake.pops);
    assert_int_equal(fake.retains, fake.releases);
    assert_string_equal(fake.violation, "");
    if (fake.mallocs_live != 0)
        fail_msg("call %ld, %s, failed: host memory is leaked", n, fake.failed);
    /* Memory of a CUcontext that can't be entered any more is left to it. */
    if (fake.failed != failed_before && strcmp(fake.failed, "cuCtxPushCurrent_v2") == 0)
        return 1;
    if (fake_leaks() != 0)
        fail_msg("call %ld, %s, failed: %d things are leaked", n, fake.failed, fake_leaks());
    return fake.failed != NULL;
}

static int is_first(const position *positions, long n) {
    long i;
    for (i = 0; i < n; i++)
        if (positions[i].step == positions[n].step && positions[i].attribute == positions[n].attribute &&
            strcmp(positions[i].symbol, positions[n].symbol) == 0)
            return 0;
    return 1;
}

/* Every call fails with one code; with the others, the first of each kind in each step. */
static void every_call(int primary) {
    static const int others[] = {2, 100, 221};
    position *positions = (position *)malloc(MAX_POSITIONS * sizeof *positions);
    long n, calls = 0;
    size_t i;
    assert_non_null(positions);
    while (fail_driver_call(calls + 1, 719, primary, &positions[calls]))
        assert_true(++calls < MAX_POSITIONS);
    assert_true(calls > 50);
    for (n = 0; n < calls; n++)
        for (i = 0; is_first(positions, n) && i < sizeof others / sizeof others[0]; i++) {
            position again;
            assert_true(fail_driver_call(n + 1, others[i], primary, &again));
        }
    free(positions);
}

static void each_driver_call_fails(void **state) {
    (void)state;
    every_call(0);
    every_call(1);
    fake_reset();
}

static void die_at(long n, const gpuloss_kl_div_desc *kl) {
    gpuloss_create_desc desc = fake_desc();
    gpuloss_context *context = NULL;
    gpuloss_status status;
    fake_reset();
    fake.fail_at = n;
    fake.fail_from_there_on = 1;
    status = gpuloss_create(&context, &desc);
    if (status != GPULOSS_OK) {
        assert_null(context);
        if (strncmp(gpuloss_last_error(), "gpuloss_create:", 15) != 0)
            fail_msg("from call %ld on: the message is \"%s\"", n, gpuloss_last_error());
    } else {
        status = gpuloss_kl_div(context, kl, stream_number(1));
        if (status != GPULOSS_OK)
            assert_int_equal(strncmp(gpuloss_last_error(), "gpuloss_kl_div:", 15), 0);
        gpuloss_destroy(context);
    }
    if (fake.mallocs_live != 0)
        fail_msg("from call %ld on: host memory is leaked", n);
    assert_string_equal(fake.violation, "");
}

/* A driver that has died: everything fails from some call on. The message is still that of the function called. */
static void driver_dies(void **state) {
    gpuloss_kl_div_desc short_rows = some_kl_div(), long_rows = short_rows;
    long n;
    (void)state;
    long_rows.input_kind = long_rows.target_kind = GPULOSS_LOGITS;
    long_rows.classes = 100000;
    for (n = 1; n < 60; n++) {
        die_at(n, &short_rows);
        die_at(n, &long_rows);
    }
    fake_reset();
}

static void each_allocation_fails(void **state) {
    long n;
    int reached = 1;
    (void)state;
    for (n = 1; reached; n++) {
        run r;
        int i;
        memset(&r, 0, sizeof r);
        fake_reset();
        fake_set_current(&fake.context[2]);
        fake.fail_malloc_at = n;
        for (i = 0; i < (int)STEPS; i++) {
            long before = fake.mallocs;
            gpuloss_status status;
            r.launches = fake.launches;
            status = steps[i].call(&r);
            if (before < n && fake.mallocs >= n) {
                expect_error(status, GPULOSS_ERROR_OUT_OF_HOST_MEMORY, steps[i].function, "no memory (got ");
                assert_int_equal(fake.launches, r.launches);
                expect_ok(steps[i].call(&r));
            } else
                expect_ok(status);
        }
        reached = fake.mallocs >= n;
        gpuloss_destroy(r.context);
        assert_int_equal(fake_leaks(), 0);
        assert_int_equal(fake.pushes, fake.pops);
        assert_string_equal(fake.violation, "");
    }
    assert_true(n > 8);
}

int failure_tests(void) {
    const struct CMUnitTest tests[] = {TEST(each_driver_call_fails), TEST(driver_dies), TEST(each_allocation_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
