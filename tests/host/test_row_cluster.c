/* Rows with options that clusters keep, with the weights of their classes in registers: how the rows are spread, and what
 * is done where none can keep them. */
#include "calls.h"

static gpuloss_context *context;

/* With a gradient, smoothing and class weights: rows of so many vectors. */
static gpuloss_cross_entropy_desc rows_of(gpuloss_dtype dtype, int64_t rows, int64_t vectors) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.dtype = dtype;
    d.rows = rows;
    d.classes = vectors * (dtype == GPULOSS_F32 ? 4 : 8);
    d.label_smoothing = 0.5;
    d.class_weights = AT(6);
    return d;
}
static gpuloss_cross_entropy_desc losses_of(gpuloss_dtype dtype, int64_t rows, int64_t vectors) {
    gpuloss_cross_entropy_desc d = rows_of(dtype, rows, vectors);
    d.grad_logits = NULL;
    return d;
}

static void expect_pipeline(gpuloss_cross_entropy_desc d, int line) {
    expect_ok_(gpuloss_cross_entropy(context, &d, stream_number(1)), line);
    expect_module("cross_entropy_row_pipeline", d.dtype, line);
}

/* size: blocks of a cluster. warps: of a block that have a part of a row. */
static void expect_row_cluster(gpuloss_cross_entropy_desc d, unsigned clusters, unsigned size, unsigned warps,
                               int line) {
    const fake_launched *l;
    expect_ok_(gpuloss_cross_entropy(context, &d, stream_number(1)), line);
    expect_module("cross_entropy_row_cluster", d.dtype, line);
    l = last_launch();
    if (l->cluster != size || l->grid != clusters * size || l->parameters.rows.of.worker_warps != warps)
        fail_msg("line %d: %u blocks in clusters of %u, with %u warps", line, l->grid, l->cluster,
                 l->parameters.rows.of.worker_warps);
    assert_int_equal(l->shared_bytes, 196608);
    assert_int_equal(l->block, 608);
    assert_ptr_equal(l->stream, stream_number(1));
}
#define ROW_CLUSTER(dtype, rows, vectors, clusters, size, warps)                                                       \
    expect_row_cluster(rows_of(dtype, rows, vectors), clusters, size, warps, __LINE__)

/* They go to the kernel of every GPU, and not in clusters. */
static void expect_no_row_cluster(gpuloss_cross_entropy_desc d, int line) {
    const uint32_t call = GPULOSSI_CE_GRADIENT | GPULOSSI_CE_CLASS_WEIGHTS | GPULOSSI_CE_SMOOTHING, *of;
    expect_ok_(gpuloss_cross_entropy(context, &d, stream_number(1)), line);
    expect_module("cross_entropy_row_memory", d.dtype, line);
    assert_int_equal(last_launch()->cluster, 0);
    assert_int_equal(last_launch()->parameters.rows.of.worker_warps, 0);
    assert_int_equal(last_launch()->shared_bytes, 0);
    expect_row_group(last_launch(), d.rows, 256, line);
    of = last_launch()->module->words;
    assert_int_equal(of[GPULOSSI_CALL_WORD] & call, call);
    assert_int_equal(of[GPULOSSI_FORMAT_WORD] & ~(uint32_t)GPULOSSI_FORMAT_SM_80,
                     (d.dtype == GPULOSS_BF16 ? GPULOSSI_FORMAT_BF16 : 0) |
                         (d.classes % 4 != 0 ? GPULOSSI_FORMAT_RAGGED : 0));
}

/* A warp has 256 vectors of floats, or 128 of halves, and a block 16 warps; of the clusters that are large enough, those
 * that are done first. The pipeline has rows that none is large enough for. */
static void clusters_that_are_done_first(void **state) {
    (void)state;
    context = new_context();
    ROW_CLUSTER(GPULOSS_F32, 1000, 2049, 132, 1, 9);
    ROW_CLUSTER(GPULOSS_F32, 1000, 4096, 132, 1, 16);
    ROW_CLUSTER(GPULOSS_F32, 1000, 4097, 66, 2, 9);
    ROW_CLUSTER(GPULOSS_F32, 1000, 8192, 44, 3, 11);
    ROW_CLUSTER(GPULOSS_F32, 990, 8192, 66, 2, 16);
    ROW_CLUSTER(GPULOSS_F32, 8192, 32064, 14, 9, 14);
    ROW_CLUSTER(GPULOSS_F32, 1000, 65536, 7, 16, 16);
    ROW_CLUSTER(GPULOSS_BF16, 1000, 2049, 66, 2, 9);
    ROW_CLUSTER(GPULOSS_BF16, 1000, 4096, 44, 3, 11);
    ROW_CLUSTER(GPULOSS_F16, 8192, 16032, 14, 9, 14);
    ROW_CLUSTER(GPULOSS_BF16, 1000, 32768, 7, 16, 16);
    expect_pipeline(rows_of(GPULOSS_F32, 1000, 65537), __LINE__);
    expect_pipeline(rows_of(GPULOSS_F32, 1, 65537), __LINE__);
    expect_pipeline(rows_of(GPULOSS_BF16, 1000, 32769), __LINE__);
    expect_pipeline(rows_of(GPULOSS_F32, 1, 1 << 20), __LINE__);
    gpuloss_destroy(context);
}

/* Over as many blocks as keep eight warps busy, and no more clusters than rows. */
static void few_rows_are_spread(void **state) {
    (void)state;
    context = new_context();
    ROW_CLUSTER(GPULOSS_F32, 1, 2048, 1, 1, 8);
    ROW_CLUSTER(GPULOSS_F32, 1, 16384, 1, 8, 8);
    ROW_CLUSTER(GPULOSS_F32, 14, 16384, 14, 8, 8);
    ROW_CLUSTER(GPULOSS_F32, 15, 16384, 15, 6, 11);
    ROW_CLUSTER(GPULOSS_F32, 131, 4096, 131, 1, 16);
    ROW_CLUSTER(GPULOSS_BF16, 13, 4096, 13, 4, 8);
    expect_row_cluster(losses_of(GPULOSS_F32, 1, 2048), 1, 1, 8, __LINE__);
    expect_row_cluster(losses_of(GPULOSS_F32, 131, 16384), 22, 6, 11, __LINE__);
    gpuloss_destroy(context);
}

/* Rows that are shorter are for the pipeline: where there are no weights, long rows with a gradient go to clusters. */
static void long_rows_alone(void **state) {
    gpuloss_cross_entropy_desc d;
    (void)state;
    context = new_context();
    ROW_CLUSTER(GPULOSS_BF16, 2000, 2049, 66, 2, 9);
    d = rows_of(GPULOSS_BF16, 2000, 2048);
    expect_pipeline(d, __LINE__);
    ROW_CLUSTER(GPULOSS_F32, 2000, 2049, 132, 1, 9);
    d = rows_of(GPULOSS_F32, 2000, 2048);
    expect_pipeline(d, __LINE__);
    expect_row_cluster(losses_of(GPULOSS_BF16, 2000, 4096), 66, 2, 16, __LINE__);
    expect_row_cluster(losses_of(GPULOSS_BF16, 2000, 2049), 66, 2, 9, __LINE__);
    d = losses_of(GPULOSS_BF16, 2000, 2048);
    expect_pipeline(d, __LINE__);
    expect_row_cluster(losses_of(GPULOSS_F32, 2000, 2049), 132, 1, 9, __LINE__);
    d = losses_of(GPULOSS_F32, 2000, 2048);
    expect_pipeline(d, __LINE__);
    d = rows_of(GPULOSS_F32, 2000, 4097);
    d.class_weights = NULL;
    expect_row_cluster(d, 66, 2, 9, __LINE__);
    d.classes = 4 * 4096;
    expect_pipeline(d, __LINE__);
    d = losses_of(GPULOSS_F32, 2000, 10000);
    d.class_weights = NULL;
    expect_pipeline(d, __LINE__);
    gpuloss_destroy(context);
}

/* Rows that start at several elements of a vector have a multiple of as many clusters, or several waves of them. Each start
 * has a cluster. */
static void rows_of_several_starts(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        int64_t rows, classes, gap;
        unsigned clusters, size, warps;
    } cases[] = {{GPULOSS_F32, 5341, 50257, 0, 20, 6, 9},     {GPULOSS_BF16, 5341, 50257, 0, 44, 6, 9},
                 {GPULOSS_F32, 5341, 50256, 0, 22, 6, 9},     {GPULOSS_F32, 1000, 16392, 2, 66, 2, 9},
                 {GPULOSS_BF16, 1000, 16392, 2, 64, 2, 9},    {GPULOSS_BF16, 1000, 16392, 4, 66, 2, 9},
                 {GPULOSS_F32, 3, 50257, 0, 3, 7, 8},         {GPULOSS_BF16, 3, 50257, 0, 3, 7, 8},
                 {GPULOSS_BF16, 1, 50256, 0, 1, 7, 8},        {GPULOSS_F32, 1000, 16392, 1, 64, 2, 9},
                 {GPULOSS_BF16, 1000, 262129, 0, 21, 16, 16}, {GPULOSS_BF16, 2500, 50257, 0, 44, 6, 9},
                 {GPULOSS_F32, 20000, 50257, 0, 20, 6, 9},    {GPULOSS_BF16, 7, 262129, 0, 7, 16, 16},
                 {GPULOSS_BF16, 7, 140001, 0, 7, 16, 9}};
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gpuloss_cross_entropy_desc d = rows_of(cases[i].dtype, cases[i].rows, 1);
        const fake_launched *l;
        d.classes = cases[i].classes;
        d.logits_stride = d.grad_logits_stride = d.classes + cases[i].gap;
        expect_ok(gpuloss_cross_entropy(context, &d, stream_number(1)));
        expect_module("cross_entropy_row_cluster", d.dtype, __LINE__);
        l = last_launch();
        if (l->cluster != cases[i].size || l->grid != cases[i].clusters * cases[i].size ||
            l->parameters.rows.of.worker_warps != cases[i].warps)
            fail_msg("case %d: %u blocks in clusters of %u, with %u warps", (int)i, l->grid, l->cluster,
                     l->parameters.rows.of.worker_warps);
        assert_int_equal((l->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_RAGGED) != 0,
                         d.classes % 4 != 0 || cases[i].gap != 0);
    }
    gpuloss_destroy(context);
}

/* From an lse they take gradients alone, of rows that do not all begin at vectors. */
static void long_rows_from_an_lse(void **state) {
    gpuloss_cross_entropy_desc d = rows_of(GPULOSS_F32, 5341, 1);
    (void)state;
    context = new_context();
    d.classes = d.logits_stride = d.grad_logits_stride = 50257;
    d.lse_in = AT(8);
    expect_pipeline(d, __LINE__);
    d.loss = NULL;
    expect_row_cluster(d, 20, 6, 9, __LINE__);
    assert_true(last_launch()->module->words[GPULOSSI_CALL_WORD] & GPULOSSI_CE_LSE_IN);
    d.loss_rows = AT(9);
    expect_pipeline(d, __LINE__);
    d.loss_rows = NULL;
    d.z_loss_rows = AT(9);
    expect_pipeline(d, __LINE__);
    d.z_loss_rows = NULL;
    d.z_loss = AT(9);
    expect_pipeline(d, __LINE__);
    d.z_loss = NULL;
    d.argmax = (int64_t *)AT(9);
    expect_pipeline(d, __LINE__);
    d.argmax = NULL;
    d.classes = d.logits_stride = d.grad_logits_stride = 50256;
    expect_pipeline(d, __LINE__);
    gpuloss_destroy(context);
}

/* They are specialised for the options of the call. */
static void features_of_long_rows(void **state) {
    const uint32_t options = GPULOSSI_CE_LOSS | GPULOSSI_CE_SMOOTHING | GPULOSSI_CE_CLASS_WEIGHTS;
    gpuloss_cross_entropy_desc d;
    const uint32_t *words;
    (void)state;
    context = new_context();
    ROW_CLUSTER(GPULOSS_F32, 1000, 4096, 132, 1, 16);
    words = last_launch()->module->words;
    assert_int_equal(words[GPULOSSI_CALL_WORD], options | GPULOSSI_CE_GRADIENT);
    assert_int_equal(words[GPULOSSI_FORMAT_WORD], 0);
    d = losses_of(GPULOSS_BF16, 2000, 4096);
    d.argmax = (int64_t *)AT(7);
    d.lse = AT(8);
    expect_row_cluster(d, 66, 2, 16, __LINE__);
    words = last_launch()->module->words;
    assert_int_equal(words[GPULOSSI_CALL_WORD],
                     options | GPULOSSI_CE_COUNTS | GPULOSSI_CE_ARGMAX | GPULOSSI_CE_ROW_OUTPUTS);
    assert_int_equal(words[GPULOSSI_FORMAT_WORD], GPULOSSI_FORMAT_BF16);
    gpuloss_destroy(context);
}

/* A GPU or a driver lacks some sizes, the memory, the instructions, or an answer. */
static void gpus_that_keep_less(void **state) {
    gpuloss_cross_entropy_desc d;
    int size;
    (void)state;
    for (size = 16; size > 2; size--)
        fake.row_clusters[size] = 0;
    context = new_context();
    ROW_CLUSTER(GPULOSS_F32, 1000, 8192, 66, 2, 16);
    expect_no_row_cluster(rows_of(GPULOSS_F32, 1000, 8193), __LINE__);
    expect_no_row_cluster(rows_of(GPULOSS_BF16, 1000, 4097), __LINE__);
    gpuloss_destroy(context);
    fake.row_clusters[2] = fake.row_clusters[1] = 0; /* as many blocks as there are multiprocessors will run */
    context = new_context();
    ROW_CLUSTER(GPULOSS_F32, 1000, 4096, 132, 1, 16);
    expect_no_row_cluster(rows_of(GPULOSS_F32, 1000, 4097), __LINE__);
    d = rows_of(GPULOSS_F32, 1000, 4097);
    d.classes--;
    d.logits_stride = d.grad_logits_stride = 4 * 4097;
    expect_no_row_cluster(d, __LINE__);
    gpuloss_destroy(context);
}

static void gpus_that_keep_nothing(void **state) {
    gpuloss_cross_entropy_desc d = rows_of(GPULOSS_F32, 1000, 4096);
    (void)state;
    fake.shared_optin = 216 * 1024 - 1;
    context = new_context();
    expect_pipeline(d, __LINE__);
    gpuloss_destroy(context);
    fake.shared_optin = 216 * 1024;
    context = new_context();
    ROW_CLUSTER(GPULOSS_F32, 1000, 4096, 132, 1, 16);
    gpuloss_destroy(context);
    fake.driver_version = 12009;
    context = new_context();
    expect_no_row_cluster(rows_of(GPULOSS_F32, 1000, 4096), __LINE__);
    preload_every_call(context, GPULOSS_F32);
    for (int m = 0; m < fake.modules; m++)
        assert_true(!fake.module[m].live || strstr(fake.module[m].entry, "_row_cluster_") == NULL);
    gpuloss_destroy(context);
    fake.driver_version = 12010;
    context = new_context();
    ROW_CLUSTER(GPULOSS_F32, 1000, 4096, 132, 1, 16);
    gpuloss_destroy(context);
}

int row_cluster_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(clusters_that_are_done_first), TEST(few_rows_are_spread),    TEST(long_rows_alone),
        TEST(rows_of_several_starts),       TEST(features_of_long_rows),  TEST(long_rows_from_an_lse),
        TEST(gpus_that_keep_less),          TEST(gpus_that_keep_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
