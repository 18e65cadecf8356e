/* The kernels that a call loads, and their texts. */
#include "calls.h"

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
    assert_int_equal(is_loaded("gpuloss_kl_div_probabilities_f32"), 1);
    kl.target_kind = GPULOSS_LOG_PROBABILITIES;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(is_loaded("gpuloss_kl_div_probabilities_f32"), 2);
    kl.input_kind = GPULOSS_LOG_PROBABILITIES;
    kl.dtype = GPULOSS_F64;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(is_loaded("gpuloss_kl_div_probabilities_f64"), 1);
    kl.target_kind = GPULOSS_PROBABILITIES;
    kl.dtype = GPULOSS_F16;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(is_loaded("gpuloss_kl_div_probabilities_any16"), 1);
    assert_int_equal(fake.loads, 4);
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(is_loaded("gpuloss_cross_entropy_block_rows_f32"), 1);
    assert_int_equal(is_loaded(PREPARE_KERNEL), 1);
    ce.classes = 1 << 20;
    ce.dtype = GPULOSS_BF16;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(is_loaded("gpuloss_cross_entropy_row_pipeline_any16"), 1);
    assert_int_equal(fake.loads, 7);
    ce.lse_in = AT(6);
    ce.softcap = 30.0;
    ce.dtype = GPULOSS_F64;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(is_loaded("gpuloss_cross_entropy_row_pipeline_f64"), 1);
    ce = some_combine();
    expect_ok(gpuloss_cross_entropy_combine(context, &ce, NULL));
    assert_int_equal(is_loaded("gpuloss_cross_entropy_combine_shards"), 1);
    for (ce.dtype = GPULOSS_F64; ce.dtype <= GPULOSS_BF16; ce.dtype = (gpuloss_dtype)(ce.dtype + 1))
        expect_ok(gpuloss_cross_entropy_combine(context, &ce, NULL));
    assert_int_equal(fake.loads, 9);
    kl.row_weights = AT(6);
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(is_loaded("gpuloss_kl_div_row_pipeline_any16"), 1);
    kl.classes = 100;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(is_loaded("gpuloss_kl_div_row_memory_any16"), 1);
    expect_ok(gpuloss_kl_div_sparse(context, &sparse, NULL));
    assert_int_equal(is_loaded("gpuloss_kl_div_sparse_pipeline_f32"), 1);
    /* The prepare kernel is loaded for each type of indices, and is there already for the second call. */
    GIVE_LABELS(&sparse);
    expect_ok(gpuloss_kl_div_sparse(context, &sparse, NULL));
    assert_int_equal(fake.loads, 14);
    assert_int_equal(is_loaded(PREPARE_KERNEL), 2);
    expect_ok(gpuloss_kl_div_sparse(context, &sparse, NULL));
    assert_int_equal(fake.loads, 14);
    assert_int_equal(is_loaded("gpuloss_kl_div_sparse_pipeline_f32"), 2);
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

/* Kernels for newer GPUs are loaded only on newer GPUs, whatever the call is. The last one is a newer GPU whose driver denies
 * it clusters. */
static void kernels_that_a_gpu_can_load(void **state) {
    static const struct {
        int major, minor, has_clusters;
    } gpus[] = {{5, 0, 1}, {6, 1, 1}, {7, 0, 1}, {7, 5, 1}, {8, 0, 1}, {8, 9, 1}, {9, 0, 1}, {12, 0, 1}, {9, 0, 0}};
    size_t i;
    (void)state;
    for (i = 0; i < 2 * sizeof gpus / sizeof gpus[0]; i++) {
        const int is_80 = gpus[i / 2].major >= 8, is_90 = gpus[i / 2].major >= 9 && gpus[i / 2].has_clusters;
        const char *dtype = i % 2 ? "any16" : "f32";
        gpuloss_context *context;
        int m, of_90 = 0;
        fake.major = gpus[i / 2].major;
        fake.minor = gpus[i / 2].minor;
        fake.has_clusters = gpus[i / 2].has_clusters;
        context = new_context();
        preload_every_call(context, i % 2 ? GPULOSS_BF16 : GPULOSS_F32);
        assert_int_equal(is_loaded_of("cross_entropy_column_smem", dtype), is_80);
        assert_int_equal(is_loaded_of("cross_entropy_column_reg", dtype), is_80);
        assert_true(is_loaded_of("cross_entropy_row_thread", dtype) > 0);
        assert_int_equal(is_loaded_of("cross_entropy_packed_smem", dtype), is_90);
        assert_int_equal(is_loaded_of("kl_div_logits_packed", dtype), is_90);
        assert_int_equal(is_loaded_of("kl_div_row_pipeline", dtype) > 0, is_90);
        assert_true(is_loaded_of("kl_div_row_memory", dtype) > 0);
        assert_true(is_loaded_of("kl_div_sparse_memory", dtype) > 0);
        assert_int_equal(is_loaded_of("kl_div_sparse_pipeline", dtype) > 0, is_90);
        assert_int_equal(is_loaded(PREPARE_KERNEL), 3);
        assert_int_equal(is_loaded("gpuloss_cross_entropy_combine_shards"), 1);
        for (m = 0; m < fake.modules; m++)
            of_90 += fake.module[m].live && fake.module[m].is_new;
        assert_int_equal(of_90 > 0, is_90);
        gpuloss_destroy(context);
        assert_int_equal(fake_live_modules(), 0);
    }
    assert_int_equal(fake.launches, 0);
}

/* The oldest GPU of a text, as in the table. */
static int target_of(const char *ptx) {
#define TARGET(loss, name, dtype, target)                                                                              \
    if (strstr(ptx, ".entry gpuloss_" #loss "_" #name "_" #dtype "(") != NULL)                                         \
        return target;
    GPULOSSI_MODULES(TARGET)
#undef TARGET
    fail_msg("%.200s: this text is not in the table", ptx);
    return 0;
}

/* The instruction that waits for an earlier kernel is a comment on GPUs that do not have it. */
static void expect_waiting(const fake_module *module, int waits) {
    if (module->waits != waits)
        fail_msg("%s %s for the kernel before it", module->entry, waits ? "does not wait" : "waits");
    assert_int_equal(strstr(module->ptx, "//griddepcontrol") == NULL, waits);
    assert_non_null(strstr(module->ptx, "griddepcontrol.launch_dependents;"));
    assert_int_equal(
        strstr(module->ptx, "\n  griddepcontrol") != NULL || strstr(module->ptx, "\ngriddepcontrol") != NULL, waits);
}

/* The first lines of a text. The target is sm_70, from which on the assembler keeps warps converged, and sm_50 for older
 * GPUs. A text for newer GPUs names them, in the first version that has them. A text for every GPU may have instructions of
 * newer ones. Where kernels wait for each other, all texts are for GPUs that can. */
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
        int m, of_clusters = 0, of_planes = 0, of_newer = 0;
        fake_reset();
        fake_set_current(&fake.context[2]);
        fake.major = gpus[i].major;
        fake.minor = gpus[i].minor;
        fake.driver_version = gpus[i].driver_version;
        context = new_context();
        preload_every_call(context, GPULOSS_F16);
        preload_every_call(context, GPULOSS_F64);
        for (m = 0; m < fake.modules; m++) {
            const int is_newer = (fake.module[m].words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_SM_80) != 0;
            const int of_module = target_of(fake.module[m].ptx), target = is_newer ? 80 : of_module;
            ptx = fake.module[m].ptx;
            assert_int_equal(
                strncmp(ptx,
                        fake_is_for_clusters(fake.module[m].entry) || strstr(fake.module[m].entry, "_pipeline_") != NULL
                            ? ".version 8.1\n"
                        : target == 90 || waits ? ".version 8.0\n"
                        : target == 80          ? ".version 7.0\n"
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
            if (target < 80 && (strstr(ptx, "\ncp.async") != NULL || strstr(ptx, ".bf16x2") != NULL))
                fail_msg("%s has instructions of newer GPUs", fake.module[m].entry);
            expect_waiting(&fake.module[m], target == 90 || waits);
            of_clusters += target == 90;
            of_planes += of_module == 80;
            of_newer += is_newer;
        }
        assert_int_equal(of_planes, gpus[i].major < 8 ? 0 : 2);
        assert_int_equal(of_newer > 0, gpus[i].major >= 8);
        assert_int_equal(of_clusters > 0, gpus[i].major >= 9);
        gpuloss_destroy(context);
    }
}

int loading_tests(void) {
    const struct CMUnitTest tests[] = {TEST(only_what_is_needed), TEST(a_second_call_takes_nothing_more),
                                       TEST(kernels_that_a_gpu_can_load), TEST(target_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
