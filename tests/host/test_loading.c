/* Which kernels are loaded, when, and as what text. */
#include "check.h"

#include <stdio.h>

static int is_loaded(const char *entry) {
    int i, count = 0;
    for (i = 0; i < fake.modules; i++)
        count += fake.module[i].live && strcmp(fake.module[i].entry, entry) == 0;
    return count;
}

static int is_loaded_of(const char *kernel, const char *dtype) {
    char entry[64];
    snprintf(entry, sizeof entry, "gpuloss_%s_%s", kernel, dtype);
    return is_loaded(entry);
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
    assert_int_equal(is_loaded("gpuloss_cross_entropy_block_rows_f32"), 1);
    assert_int_equal(is_loaded(PREPARE_KERNEL), 1);
    ce.classes = 1 << 20;
    ce.dtype = GPULOSS_BF16;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(is_loaded("gpuloss_cross_entropy_clustered_bf16"), 1);
    assert_int_equal(fake.loads, 7);
    ce.lse_in = AT(6);
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

/* The kernels of a loss in one dtype, those of newer GPUs only on these, and those that serve every dtype, which are
 * named whole. */
static void preload_loads_a_loss_and_dtype(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        const char *name;
    } dtypes[] = {{GPULOSS_F32, "f32"}, {GPULOSS_F64, "f64"}, {GPULOSS_F16, "f16"}, {GPULOSS_BF16, "bf16"}};
    static const struct {
        gpuloss_loss loss;
        int count, fast, since_80, since_90;
        const char *kernels[8];
        const char *not_of_f64[4];
        const char *of_80[3];
        const char *of_90[7];
        const char *of_every_dtype[2];
    } losses[] = {
        {GPULOSS_CROSS_ENTROPY,
         7,
         2,
         2,
         6,
         {"cross_entropy_held", "cross_entropy_streamed", "cross_entropy_options", "cross_entropy_probabilities",
          "cross_entropy_columns"},
         {"cross_entropy_short_rows", "cross_entropy_options_together"},
         {"cross_entropy_planes", "cross_entropy_planes_held"},
         {"cross_entropy_block_rows", "cross_entropy_packed", "cross_entropy_packed_held", "cross_entropy_ring",
          "cross_entropy_clustered", "cross_entropy_options_kept"},
         {PREPARE_KERNEL, "gpuloss_cross_entropy_combine_shards"}},
        {GPULOSS_KL_DIV,
         8,
         0,
         0,
         6,
         {"kl_div_pp", "kl_div_lp", "kl_div_pl", "kl_div_ll", "kl_div_logits", "kl_div_options", "kl_div_sparse"},
         {NULL},
         {NULL},
         {"kl_div_logits_packed", "kl_div_logits_packed_held", "kl_div_logits_block_rows", "kl_div_logits_clustered",
          "kl_div_logits_streamed", "kl_div_distances_clustered"},
         {PREPARE_KERNEL}},
    };
    /* The last one is a newer GPU whose driver denies it clusters. */
    static const struct {
        int major, minor, has_clusters;
    } gpus[] = {{5, 0, 1}, {6, 1, 1}, {7, 0, 1}, {7, 5, 1}, {8, 0, 1}, {8, 9, 1}, {9, 0, 1}, {12, 0, 1}, {9, 0, 0}};
    const size_t count_of_gpus = sizeof gpus / sizeof gpus[0];
    size_t i, l, k;
    (void)state;
    for (i = 0; i < 4 * count_of_gpus; i++)
        for (l = 0; l < 2; l++) {
            const int fast = dtypes[i % 4].dtype != GPULOSS_F64;
            const int is_80 = fast && gpus[i / 4].major >= 8;
            const int is_90 = fast && gpus[i / 4].major >= 9 && gpus[i / 4].has_clusters;
            const int count = losses[l].count + (fast ? losses[l].fast : 0) + (is_80 ? losses[l].since_80 : 0) +
                              (is_90 ? losses[l].since_90 : 0);
            gpuloss_context *context;
            int first = fake.modules;
            fake.major = gpus[i / 4].major;
            fake.minor = gpus[i / 4].minor;
            fake.has_clusters = gpus[i / 4].has_clusters;
            context = new_context();
            expect_ok(gpuloss_preload(context, losses[l].loss, dtypes[i % 4].dtype, NULL));
            assert_int_equal(fake.modules - first, count);
            for (k = 0; losses[l].kernels[k] != NULL; k++)
                assert_int_equal(is_loaded_of(losses[l].kernels[k], dtypes[i % 4].name), 1);
            for (k = 0; losses[l].not_of_f64[k] != NULL; k++)
                assert_int_equal(is_loaded_of(losses[l].not_of_f64[k], dtypes[i % 4].name), fast);
            for (k = 0; losses[l].of_80[k] != NULL; k++)
                assert_int_equal(is_loaded_of(losses[l].of_80[k], dtypes[i % 4].name), is_80);
            for (k = 0; losses[l].of_90[k] != NULL; k++)
                assert_int_equal(is_loaded_of(losses[l].of_90[k], dtypes[i % 4].name), is_90);
            for (k = 0; k < 2 && losses[l].of_every_dtype[k] != NULL; k++)
                assert_int_equal(is_loaded(losses[l].of_every_dtype[k]), 1);
            expect_ok(gpuloss_preload(context, losses[l].loss, dtypes[i % 4].dtype, NULL));
            assert_int_equal(fake.modules - first, count);
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
    ce.lse_in = AT(6);
    expect_ok(gpuloss_cross_entropy(context, &ce, stream));
    ce.lse_in = NULL;
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
    assert_int_equal(last_launch()->cluster, 0);
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
    assert_string_equal(last_launch()->entry, "gpuloss_kl_div_logits_packed_f32");
    kl.input_stride = 1001;
    expect_ok(gpuloss_kl_div(context, &kl, stream));
    assert_string_equal(last_launch()->entry, "gpuloss_kl_div_logits_f32");
    kl.input_stride = 0;
    kl.classes = 4000;
    expect_ok(gpuloss_kl_div(context, &kl, stream));
    assert_string_equal(last_launch()->entry, "gpuloss_kl_div_logits_block_rows_f32");
    kl.classes = 100000;
    expect_ok(gpuloss_kl_div(context, &kl, stream));
    assert_true(last_launch()->cluster > 0);
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

/* The oldest GPU of a kernel, as in the table. */
static int target_of(const char *kernel) {
#define TARGET(loss, name, dtype, target)                                                                              \
    if (strcmp(kernel, "gpuloss_" #loss "_" #name "_" #dtype) == 0)                                                    \
        return target;
    GPULOSSI_MODULES(TARGET)
#undef TARGET
    fail_msg("%s is not in the table", kernel);
    return 0;
}

/* What waits for an earlier kernel is an instruction where that is known, and elsewhere a comment. */
static void expect_waiting(const fake_module *module, int waits) {
    if (module->waits != waits)
        fail_msg("%s %s for the kernel before it", module->entry, waits ? "does not wait" : "waits");
    assert_int_equal(strstr(module->ptx, "//griddepcontrol") == NULL, waits);
    assert_non_null(strstr(module->ptx, "griddepcontrol.launch_dependents;"));
    assert_int_equal(
        strstr(module->ptx, "\n  griddepcontrol") != NULL || strstr(module->ptx, "\ngriddepcontrol") != NULL, waits);
}

/* What a text begins with. The target is the lowest name from which the assembler keeps warps converged, sm_70, and for
 * GPUs older than that the oldest; what is for newer ones names these, in the first version that knows them. Where kernels
 * wait for each other all texts are for the GPUs that know how. */
static void target_line(void **state) {
    static const struct {
        int major, minor, driver_version;
        const char *target;
    } gpus[] = {
        {5, 0, 13000, ".target sm_50\n"},  {5, 3, 13000, ".target sm_50\n"},  {6, 1, 13000, ".target sm_50\n"},
        {7, 0, 13000, ".target sm_70\n"},  {7, 5, 13000, ".target sm_70\n"},  {8, 7, 13000, ".target sm_70\n"},
        {9, 0, 12020, ".target sm_70\n"},  {9, 0, 12030, ".target sm_90\n"},  {9, 0, 13000, ".target sm_90\n"},
        {10, 0, 12020, ".target sm_70\n"}, {10, 0, 13000, ".target sm_90\n"}, {12, 1, 13000, ".target sm_90\n"}};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        gpuloss_context *context;
        const char *ptx;
        const int waits = strcmp(gpus[i].target, ".target sm_90\n") == 0;
        int m, of_clusters = 0, of_planes = 0;
        fake_reset();
        fake_set_current(&fake.context[2]);
        fake.major = gpus[i].major;
        fake.minor = gpus[i].minor;
        fake.driver_version = gpus[i].driver_version;
        context = new_context();
        expect_ok(gpuloss_preload(context, GPULOSS_CROSS_ENTROPY, GPULOSS_F16, NULL));
        expect_ok(gpuloss_preload(context, GPULOSS_KL_DIV, GPULOSS_F64, NULL));
        expect_ok(gpuloss_preload(context, GPULOSS_KL_DIV, GPULOSS_BF16, NULL));
        for (m = 0; m < fake.modules; m++) {
            const int target = target_of(fake.module[m].entry);
            ptx = fake.module[m].ptx;
            assert_int_equal(strncmp(ptx,
                                     fake_is_for_clusters(fake.module[m].entry) ? ".version 8.1\n"
                                     : target == 90 || waits                    ? ".version 8.0\n"
                                     : target == 80                             ? ".version 7.0\n"
                                                                                : ".version 6.0\n",
                                     13),
                             0);
            assert_int_equal(strncmp(ptx + 13,
                                     target == 90             ? ".target sm_90\n"
                                     : target == 80 && !waits ? ".target sm_80\n"
                                                              : gpus[i].target,
                                     14),
                             0);
            assert_null(strstr(ptx + 27, ".target"));
            expect_waiting(&fake.module[m], target == 90 || waits);
            of_clusters += target == 90;
            of_planes += target == 80;
        }
        assert_int_equal(of_planes, gpus[i].major < 8 ? 0 : 2);
        assert_int_equal(of_clusters, gpus[i].major < 9 ? 0 : 12);
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
