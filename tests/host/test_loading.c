/* Which kernels are loaded, when, and as what text. */
#include "check.h"

#include <stdio.h>

static int is_loaded(const char *entry) {
    int i, count = 0;
    for (i = 0; i < fake.modules; i++)
        count += fake.module[i].live && strcmp(fake.module[i].entry, entry) == 0;
    return count;
}

static void only_what_is_needed(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_cross_entropy_desc ce = some_cross_entropy();
    gpuloss_kl_div_desc kl = some_kl_div();
    gpuloss_kl_div_sparse_desc sparse = some_kl_div_sparse();
    (void)state;
    assert_int_equal(fake.loads, 0);
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(fake.loads, 1);
    assert_int_equal(is_loaded("gpuloss_kl_div_pp_f32"), 1);
    kl.target_kind = GPULOSS_LOG_PROBABILITIES;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(is_loaded("gpuloss_kl_div_pl_f32"), 1);
    kl.input_kind = GPULOSS_LOG_PROBABILITIES;
    kl.dtype = GPULOSS_F64;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(is_loaded("gpuloss_kl_div_ll_f64"), 1);
    kl.target_kind = GPULOSS_PROBABILITIES;
    kl.dtype = GPULOSS_F16;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(is_loaded("gpuloss_kl_div_lp_f16"), 1);
    assert_int_equal(fake.loads, 4);
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(is_loaded("gpuloss_cross_entropy_held_f32"), 1);
    assert_int_equal(is_loaded(PREPARE_KERNEL), 1);
    ce.classes = 1 << 20;
    ce.dtype = GPULOSS_BF16;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(is_loaded("gpuloss_cross_entropy_streamed_bf16"), 1);
    assert_int_equal(fake.loads, 7);
    ce.softcap = 30.0;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(is_loaded("gpuloss_cross_entropy_options_bf16"), 1);
    ce = some_combine();
    expect_ok(gpuloss_cross_entropy_combine(context, &ce, NULL));
    assert_int_equal(is_loaded("gpuloss_cross_entropy_combine_shards"), 1);
    ce.dtype = GPULOSS_F64;
    expect_ok(gpuloss_cross_entropy_combine(context, &ce, NULL));
    assert_int_equal(fake.loads, 9);
    kl.row_weights = AT(6);
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(is_loaded("gpuloss_kl_div_options_f16"), 1);
    expect_ok(gpuloss_kl_div_sparse(context, &sparse, NULL));
    assert_int_equal(is_loaded("gpuloss_kl_div_sparse_f32"), 1);
    /* The prepare kernel is there already. */
    GIVE_LABELS(&sparse);
    expect_ok(gpuloss_kl_div_sparse(context, &sparse, NULL));
    assert_int_equal(fake.loads, 11);
    gpuloss_destroy(context);
}

static void a_second_call_takes_nothing_more(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_cross_entropy_desc ce = some_cross_entropy();
    long loads, mallocs, calls;
    int memories, fills, synchronizes, i;
    (void)state;
    expect_ok(gpuloss_cross_entropy(context, &ce, stream_number(1)));
    loads = fake.loads;
    mallocs = fake.mallocs;
    memories = fake.memories;
    fills = fake.fills;
    synchronizes = fake.synchronizes;
    calls = fake.calls;
    for (i = 0; i < 10; i++)
        expect_ok(gpuloss_cross_entropy(context, &ce, stream_number(1)));
    assert_int_equal(fake.loads, loads);
    assert_int_equal(fake.mallocs, mallocs);
    assert_int_equal(fake.memories, memories);
    assert_int_equal(fake.fills, fills);
    assert_int_equal(fake.synchronizes, synchronizes);
    /* Each call: which context is current, and two launches. */
    assert_in_range(fake.calls - calls, 20, 30);
    gpuloss_destroy(context);
}

/* The kernels of a loss in one dtype, and those that serve every dtype, which are named whole. */
static void preload_loads_a_loss_and_dtype(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        const char *name;
    } dtypes[] = {{GPULOSS_F32, "f32"}, {GPULOSS_F64, "f64"}, {GPULOSS_F16, "f16"}, {GPULOSS_BF16, "bf16"}};
    static const struct {
        gpuloss_loss loss;
        int count;
        const char *kernels[8];
        const char *of_every_dtype[2];
    } losses[] = {
        {GPULOSS_CROSS_ENTROPY,
         7,
         {"cross_entropy_held", "cross_entropy_streamed", "cross_entropy_options", "cross_entropy_probabilities",
          "cross_entropy_columns"},
         {PREPARE_KERNEL, "gpuloss_cross_entropy_combine_shards"}},
        {GPULOSS_KL_DIV,
         8,
         {"kl_div_pp", "kl_div_lp", "kl_div_pl", "kl_div_ll", "kl_div_logits", "kl_div_options", "kl_div_sparse"},
         {PREPARE_KERNEL}},
    };
    size_t i, l, k;
    (void)state;
    for (i = 0; i < 4; i++)
        for (l = 0; l < 2; l++) {
            gpuloss_context *context = new_context();
            int first = fake.modules;
            expect_ok(gpuloss_preload(context, losses[l].loss, dtypes[i].dtype, NULL));
            assert_int_equal(fake.modules - first, losses[l].count);
            for (k = 0; losses[l].kernels[k] != NULL; k++) {
                char entry[64];
                snprintf(entry, sizeof entry, "gpuloss_%s_%s", losses[l].kernels[k], dtypes[i].name);
                assert_int_equal(is_loaded(entry), 1);
            }
            for (k = 0; k < 2 && losses[l].of_every_dtype[k] != NULL; k++)
                assert_int_equal(is_loaded(losses[l].of_every_dtype[k]), 1);
            expect_ok(gpuloss_preload(context, losses[l].loss, dtypes[i].dtype, NULL));
            assert_int_equal(fake.modules - first, losses[l].count);
            assert_int_equal(fake.launches, 0);
            gpuloss_destroy(context);
            assert_int_equal(fake_live_modules(), 0);
        }
}

static void capture(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_cross_entropy_desc ce = some_cross_entropy(), combine = some_combine();
    struct CUstream_st *stream = stream_number(1);
    int memories, i;
    (void)state;
    fake.capturing = 1;
    expect_error(gpuloss_cross_entropy(context, &ce, stream), GPULOSS_ERROR_NOT_PRELOADED, "gpuloss_cross_entropy",
                 "gpuloss_preload");
    expect_error(gpuloss_preload(context, GPULOSS_CROSS_ENTROPY, GPULOSS_F32, stream), GPULOSS_ERROR_NOT_PRELOADED,
                 "gpuloss_preload", "capture");
    assert_int_equal(fake.loads, 0);
    fake.capturing = 0;
    expect_ok(gpuloss_preload(context, GPULOSS_CROSS_ENTROPY, GPULOSS_F32, stream));
    memories = fake.memories;
    fake.capturing = 1;
    expect_ok(gpuloss_cross_entropy(context, &ce, stream));
    ce.classes = 1 << 20;
    ce.flags = 0;
    ce.ignore_index = 0;
    expect_ok(gpuloss_cross_entropy(context, &ce, stream));
    /* Whatever the loss is asked for. */
    ce.label_smoothing = 0.1;
    expect_ok(gpuloss_cross_entropy(context, &ce, stream));
    ce.inner = 10;
    ce.class_weights = AT(6);
    expect_ok(gpuloss_cross_entropy(context, &ce, stream));
    give_probabilities(&ce);
    expect_ok(gpuloss_cross_entropy(context, &ce, stream));
    ce.inner = 0;
    expect_ok(gpuloss_cross_entropy(context, &ce, stream));
    expect_ok(gpuloss_cross_entropy_combine(context, &combine, stream));
    assert_int_equal(fake.memories, memories);
    /* Streams that are new while they are captured, until no scratch is left: refused, not allocated. */
    for (i = 2; i < 1000; i++) {
        gpuloss_status status = gpuloss_cross_entropy(context, &ce, stream_number(i));
        if (status == GPULOSS_OK)
            continue;
        expect_error(status, GPULOSS_ERROR_NOT_PRELOADED, "gpuloss_cross_entropy", "workspace");
        break;
    }
    assert_in_range(i, 3, 998);
    ce.workspace = AT(5);
    ce.workspace_bytes = 1 << 20;
    expect_ok(gpuloss_cross_entropy(context, &ce, stream_number(i)));
    gpuloss_destroy(context);
}

/* Whatever the divergences are asked for, nothing more is loaded after a preload. */
static void capture_of_divergences(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_kl_div_desc kl = some_kl_div();
    gpuloss_kl_div_sparse_desc sparse = some_kl_div_sparse();
    struct CUstream_st *stream = stream_number(1);
    (void)state;
    expect_ok(gpuloss_preload(context, GPULOSS_KL_DIV, GPULOSS_F32, stream));
    fake.capturing = 1;
    expect_ok(gpuloss_kl_div(context, &kl, stream));
    kl.input_kind = GPULOSS_LOG_PROBABILITIES;
    expect_ok(gpuloss_kl_div(context, &kl, stream));
    kl.target_kind = GPULOSS_LOG_PROBABILITIES;
    expect_ok(gpuloss_kl_div(context, &kl, stream));
    kl.input_kind = GPULOSS_PROBABILITIES;
    expect_ok(gpuloss_kl_div(context, &kl, stream));
    kl.input_kind = kl.target_kind = GPULOSS_LOGITS;
    expect_ok(gpuloss_kl_div(context, &kl, stream));
    kl.target_dtype = GPULOSS_F16;
    expect_ok(gpuloss_kl_div(context, &kl, stream));
    GIVE_LABELS(&kl);
    expect_ok(gpuloss_kl_div(context, &kl, stream));
    GIVE_LABELS(&sparse);
    expect_ok(gpuloss_kl_div_sparse(context, &sparse, stream));
    sparse.dtype = GPULOSS_F64;
    expect_error(gpuloss_kl_div_sparse(context, &sparse, stream), GPULOSS_ERROR_NOT_PRELOADED, "gpuloss_kl_div_sparse",
                 "gpuloss_kl_div_sparse_f64");
    gpuloss_destroy(context);
}

/* The lowest name from which the assembler keeps warps converged: sm_70; GPUs older than that get the oldest. */
static void target_line(void **state) {
    static const struct {
        int major, minor;
        const char *target;
    } gpus[] = {{5, 0, ".target sm_50\n"}, {5, 3, ".target sm_50\n"},  {6, 1, ".target sm_50\n"},
                {7, 0, ".target sm_70\n"}, {7, 5, ".target sm_70\n"},  {8, 7, ".target sm_70\n"},
                {9, 0, ".target sm_70\n"}, {10, 0, ".target sm_70\n"}, {12, 1, ".target sm_70\n"}};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        gpuloss_context *context;
        const char *ptx;
        int m;
        fake_reset();
        fake_set_current(&fake.context[2]);
        fake.major = gpus[i].major;
        fake.minor = gpus[i].minor;
        context = new_context();
        expect_ok(gpuloss_preload(context, GPULOSS_CROSS_ENTROPY, GPULOSS_F16, NULL));
        expect_ok(gpuloss_preload(context, GPULOSS_KL_DIV, GPULOSS_F64, NULL));
        for (m = 0; m < fake.modules; m++) {
            ptx = fake.module[m].ptx;
            assert_int_equal(strncmp(ptx, ".version 6.0\n", 13), 0);
            assert_int_equal(strncmp(ptx + 13, gpus[i].target, 14), 0);
            assert_null(strstr(ptx + 27, ".target"));
        }
        gpuloss_destroy(context);
    }
}

int loading_tests(void) {
    const struct CMUnitTest tests[] = {TEST(only_what_is_needed),
                                       TEST(a_second_call_takes_nothing_more),
                                       TEST(preload_loads_a_loss_and_dtype),
                                       TEST(capture),
                                       TEST(capture_of_divergences),
                                       TEST(target_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
