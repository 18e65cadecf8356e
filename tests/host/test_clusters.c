/* Launches in clusters of blocks: their sizes, their requirements on a GPU, and the launches without them. */
#include "calls.h"

#include <stdio.h>

static gpuloss_context *context;

/* f32, with a gradient: rows of `vectors` vectors. */
static gpuloss_cross_entropy_desc rows_of(int64_t rows, int64_t vectors) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.rows = rows;
    d.classes = 4 * vectors;
    return d;
}
static gpuloss_kl_div_desc pairs_of(int64_t rows, int64_t vectors) {
    gpuloss_kl_div_desc d = some_kl_div();
    d.input_kind = d.target_kind = GPULOSS_LOGITS;
    d.rows = rows;
    d.classes = 4 * vectors;
    return d;
}

/* size: blocks of a cluster. threads: of a block, which decide its shared memory. slots: of each array, or 1 in the
 * pipeline. */
static void expect_clusters(const char *entry, unsigned clusters, unsigned size, unsigned slots, unsigned threads,
                            int line) {
    const fake_launched *l = last_launch();
    if (strcmp(l->entry, entry) != 0)
        fail_msg("line %d: %s is launched instead of %s", line, l->entry, entry);
    if (l->cluster != size || l->grid != clusters * size || l->parameters.rows.of.smem_vectors != slots)
        fail_msg("line %d: %u blocks in clusters of %u, with %u slots", line, l->grid, l->cluster,
                 l->parameters.rows.of.smem_vectors);
    assert_int_equal(l->shared_bytes, strstr(entry, "_distances_clustered_any16") != NULL               ? 49152
                                      : strstr(entry, "_logits_block_rows_") != NULL                    ? 32768
                                      : threads == FAKE_WIDE_BLOCK || is_pipeline_of_divergences(entry) ? 98304
                                                                                                        : 65536);
    assert_int_equal(l->block, threads);
    assert_int_equal(l->parameters.rows.group, 256);
    assert_ptr_equal(l->stream, stream_number(1));
}

/* The call, and what is launched for it. */
static void expect_cross_entropy(const gpuloss_cross_entropy_desc *d, unsigned clusters, unsigned size,
                                 unsigned threads, int line) {
    expect_ok_(gpuloss_cross_entropy(context, d, stream_number(1)), line);
    expect_clusters(d->dtype == GPULOSS_F32 ? "gpuloss_cross_entropy_row_pipeline_f32"
                                            : "gpuloss_cross_entropy_row_pipeline_any16",
                    clusters, size, 1, threads, line);
}
static void expect_kl_div(const gpuloss_kl_div_desc *d, const char *entry, unsigned clusters, unsigned size,
                          unsigned slots, int line) {
    expect_ok_(gpuloss_kl_div(context, d, stream_number(1)), line);
    expect_clusters(entry, clusters, size, slots, fake_threads_of(entry), line);
}

static void expect_basic(int64_t rows, int64_t vectors, unsigned clusters, unsigned size, unsigned threads, int line) {
    gpuloss_cross_entropy_desc d = rows_of(rows, vectors);
    expect_cross_entropy(&d, clusters, size, threads, line);
}
#define BASIC(rows, vectors, clusters, size) expect_basic(rows, vectors, clusters, size, 256, __LINE__)
#define WIDE(rows, vectors, clusters, size) expect_basic(rows, vectors, clusters, size, FAKE_WIDE_BLOCK, __LINE__)

static void expect_pairs(const char *entry, int64_t rows, int64_t vectors, unsigned clusters, unsigned size,
                         unsigned slots, int line) {
    gpuloss_kl_div_desc d = pairs_of(rows, vectors);
    expect_kl_div(&d, entry, clusters, size, slots, line);
}
#define PAIRS(rows, vectors, clusters, size, slots)                                                                    \
    expect_pairs("gpuloss_kl_div_logits_clustered_f32", rows, vectors, clusters, size, slots, __LINE__)
#define BLOCK_PAIRS(rows, vectors, clusters, size, slots)                                                              \
    expect_pairs("gpuloss_kl_div_logits_block_rows_f32", rows, vectors, clusters, size, slots, __LINE__)

/* The clusters that finish all rows first are chosen. A row takes the time of its steps; a step of a wide block takes 3/8
 * more. The exchange between several blocks takes half a step of many rows, and a step of few. A step that is not retained
 * takes four more. */
static void clusters_retain_a_row(void **state) {
    (void)state;
    context = new_context();
    WIDE(1000, 4097, 264, 1);
    WIDE(1000, 6144, 264, 1);
    BASIC(1000, 6145, 198, 2);
    BASIC(1000, 8192, 198, 2);
    BASIC(1000, 8193, 132, 3);
    BASIC(1000, 12288, 132, 3);
    BASIC(1000, 12289, 96, 4);
    BASIC(1000, 16384, 96, 4);
    BASIC(1000, 16385, 76, 5);
    BASIC(1000, 20480, 76, 5);
    BASIC(1000, 32768, 46, 8);
    BASIC(1000, 32769, 42, 9);
    BASIC(1000, 65536, 20, 16);
    WIDE(1000, 65537, 22, 11);
    WIDE(1000, 98304, 12, 16);
    WIDE(1000, 98305, 22, 11);
    BASIC(1000, 250000, 26, 14);
    WIDE(1, 1 << 27, 1, 16);
    gpuloss_destroy(context);
}

/* A step that is not retained takes one more at 16 bits, and none for losses alone. */
static void rows_are_retained_where_that_pays(void **state) {
    gpuloss_cross_entropy_desc d = rows_of(1000, 66000);
    gpuloss_kl_div_desc pairs;
    (void)state;
    context = new_context();
    expect_cross_entropy(&d, 22, 11, FAKE_WIDE_BLOCK, __LINE__);
    d.dtype = GPULOSS_BF16;
    d.classes = 8 * 66000;
    expect_cross_entropy(&d, 34, 11, 256, __LINE__);
    d.classes = 8 * 8193;
    expect_cross_entropy(&d, 132, 3, 256, __LINE__);
    d = rows_of(100, 32768);
    expect_cross_entropy(&d, 34, 11, 256, __LINE__);
    d.grad_logits = NULL;
    expect_cross_entropy(&d, 100, 3, 256, __LINE__);
    pairs = pairs_of(21, 32000);
    expect_kl_div(&pairs, "gpuloss_kl_div_logits_clustered_f32", 20, 16, 8, __LINE__);
    pairs.grad_input = NULL;
    expect_kl_div(&pairs, "gpuloss_kl_div_logits_clustered_f32", 21, 11, 8, __LINE__);
    gpuloss_destroy(context);
}

/* Two arrays share the slots. Rows that one smaller block retains, or two, or an odd number, go to the smaller blocks.
 * Few rows do not. */
static void clusters_retain_a_pair_of_rows(void **state) {
    (void)state;
    context = new_context();
    BLOCK_PAIRS(1000, 513, 396, 1, 8);
    BLOCK_PAIRS(1000, 1024, 396, 1, 8);
    BLOCK_PAIRS(132, 1024, 132, 1, 8);
    PAIRS(131, 1024, 131, 1, 4);
    PAIRS(131, 513, 131, 1, 4);
    BLOCK_PAIRS(1000, 1025, 132, 3, 4);
    BLOCK_PAIRS(1000, 2048, 198, 2, 8);
    BLOCK_PAIRS(1000, 2049, 132, 3, 8);
    PAIRS(131, 2049, 131, 3, 4);
    BLOCK_PAIRS(1000, 3072, 132, 3, 8);
    PAIRS(1000, 3073, 198, 2, 8);
    PAIRS(1000, 4096, 198, 2, 8);
    BLOCK_PAIRS(1000, 4097, 76, 5, 8);
    BLOCK_PAIRS(1000, 15 * 1024, 24, 15, 8);
    PAIRS(1000, 15 * 1024 + 1, 46, 8, 8);
    PAIRS(1000, 16384, 46, 8, 8);
    PAIRS(1000, 16385, 42, 9, 8);
    PAIRS(1000, 32768, 20, 16, 8);
    PAIRS(1000, 200000, 26, 14, 8);
    gpuloss_destroy(context);
}

/* Other divergences are spread in the same way, but shorter rows as well. */
static void clusters_of_distances(void **state) {
    static const struct {
        int64_t vectors;
        unsigned clusters, size, slots;
    } rows[] = {{257, 396, 1, 8}, {1024, 396, 1, 8}, {2049, 132, 3, 8}, {200000, 26, 14, 16}},
      halves[] = {{257, 396, 1, 4}, {1024, 396, 1, 8}, {2049, 132, 3, 8}, {200000, 32, 12, 8}};
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gpuloss_kl_div_desc d = pairs_of(1000, rows[i].vectors);
        d.divergence = GPULOSS_TOTAL_VARIATION;
        expect_kl_div(&d, "gpuloss_kl_div_distances_clustered_f32", rows[i].clusters, rows[i].size, rows[i].slots,
                      __LINE__);
    }
    /* Of 16 bits a thread has room for half as many logits. */
    for (i = 0; i < sizeof halves / sizeof halves[0]; i++) {
        gpuloss_kl_div_desc d = pairs_of(1000, halves[i].vectors);
        d.divergence = GPULOSS_JENSEN_SHANNON;
        d.beta = 0.5;
        d.dtype = GPULOSS_BF16;
        d.classes *= 2;
        expect_kl_div(&d, "gpuloss_kl_div_distances_clustered_any16", halves[i].clusters, halves[i].size,
                      halves[i].slots, __LINE__);
    }
    gpuloss_destroy(context);
}

/* Only the gradient of Jensen-Shannon puts floats in place of a target of 16 bits. */
static void memory_of_distances(void **state) {
    int has_gradient, is_variation;
    (void)state;
    context = new_context();
    for (has_gradient = 0; has_gradient < 2; has_gradient++)
        for (is_variation = 0; is_variation < 2; is_variation++) {
            gpuloss_kl_div_desc d = pairs_of(1000, 2049);
            d.divergence = is_variation ? GPULOSS_TOTAL_VARIATION : GPULOSS_JENSEN_SHANNON;
            d.beta = is_variation ? 0.0 : 0.5;
            d.dtype = GPULOSS_BF16;
            if (!has_gradient)
                d.grad_input = NULL;
            expect_ok(gpuloss_kl_div(context, &d, NULL));
            assert_string_equal(last_launch()->entry, "gpuloss_kl_div_distances_clustered_any16");
            assert_int_equal(last_launch()->shared_bytes, has_gradient && !is_variation ? 49152 : 32768);
        }
    gpuloss_destroy(context);
}

/* A cluster more than there are rows would have nothing to do. */
static void no_more_clusters_than_rows(void **state) {
    (void)state;
    context = new_context();
    BASIC(197, 8192, 197, 2);
    BASIC(199, 8192, 96, 4);
    BASIC(19, 65536, 19, 16);
    WIDE(21, 65536, 21, 11);
    WIDE(262, 6144, 262, 1);
    PAIRS(130, 4096, 130, 2, 8);
    BLOCK_PAIRS(199, 2049, 132, 3, 8);
    gpuloss_destroy(context);
}

/* Few rows go to more blocks, as long as that saves steps, and as many rows go on at a time. */
static void few_rows_take_larger_clusters(void **state) {
    (void)state;
    context = new_context();
    BASIC(1, 2048, 1, 1);
    BASIC(1, 4096, 1, 4);
    BASIC(1, 4097, 1, 5);
    BASIC(1, 16384, 1, 16);
    WIDE(1, 16385, 1, 11);
    BASIC(1, 32768, 1, 16);
    BASIC(96, 4096, 96, 4);
    BASIC(97, 4096, 97, 2);
    BASIC(20, 16384, 20, 16);
    WIDE(21, 16384, 21, 11);
    PAIRS(1, 1024, 1, 1, 4);
    PAIRS(1, 1025, 1, 1, 8);
    PAIRS(1, 4096, 1, 4, 4);
    BLOCK_PAIRS(198, 2048, 198, 2, 8);
    gpuloss_destroy(context);
}

/* Of rows that begin anywhere, whole vectors count. */
static void rows_that_begin_anywhere(void **state) {
    gpuloss_cross_entropy_desc d = rows_of(1000, 8192);
    (void)state;
    context = new_context();
    d.logits_stride = d.classes + 5;
    expect_cross_entropy(&d, 198, 2, 256, __LINE__);
    assert_int_equal(last_launch()->parameters.rows.flags & GPULOSSI_EVEN, 0);
    d.classes += 3;
    expect_cross_entropy(&d, 198, 2, 256, __LINE__);
    d.classes++;
    expect_cross_entropy(&d, 132, 3, 256, __LINE__);
    d.logits_stride = d.classes + 4;
    expect_ok(gpuloss_cross_entropy(context, &d, stream_number(1)));
    assert_int_equal(last_launch()->parameters.rows.flags & GPULOSSI_EVEN, GPULOSSI_EVEN);
    gpuloss_destroy(context);
}

/* Target probabilities are in the stages: a step has fewer vectors of logits, and so has the room. */
static void targets_in_stages(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        int64_t vectors;
        unsigned clusters, size, threads;
    } cases[] = {{GPULOSS_F32, 1025, 264, 1, FAKE_WIDE_BLOCK},
                 {GPULOSS_F32, 2063, 264, 1, FAKE_WIDE_BLOCK},
                 {GPULOSS_F32, 3101, 198, 2, 256},
                 {GPULOSS_F32, 8208, 76, 5, 256},
                 {GPULOSS_BF16, 2063, 132, 3, 256}};
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gpuloss_cross_entropy_desc d = rows_of(1000, cases[i].vectors);
        if (cases[i].dtype == GPULOSS_BF16)
            d.classes *= 2;
        d.dtype = cases[i].dtype;
        give_probabilities(&d);
        d.target_dtype = GPULOSS_F32;
        expect_cross_entropy(&d, cases[i].clusters, cases[i].size, cases[i].threads, __LINE__);
    }
    gpuloss_destroy(context);
}

/* Vectors are what counts, whatever their elements are. */
static void clusters_of_every_dtype(void **state) {
    size_t t;
    (void)state;
    context = new_context();
    for (t = 0; t < DTYPES; t++) {
        gpuloss_cross_entropy_desc d = rows_of(1000, 20000);
        gpuloss_kl_div_desc kl = pairs_of(1000, 10000);
        char entry[64];
        if (every_dtype[t].dtype == GPULOSS_F64)
            continue;
        d.dtype = kl.dtype = every_dtype[t].dtype;
        d.classes = 20000 * 16 / every_dtype[t].bytes;
        kl.classes = 10000 * 16 / every_dtype[t].bytes;
        expect_cross_entropy(&d, 76, 5, 256, __LINE__);
        snprintf(entry, sizeof entry, "gpuloss_kl_div_logits_clustered_%s", text_dtype(d.dtype));
        expect_kl_div(&kl, entry, 76, 5, 8, __LINE__);
    }
    gpuloss_destroy(context);
}

/* The parameters are those of the kernels without clusters, but for how the rows are spread. */
static void the_same_parameters(void **state) {
    gpuloss_context *with = new_context(), *without = new_context_without_clusters();
    gpuloss_cross_entropy_desc ce = rows_of(100, 5000);
    gpuloss_kl_div_desc kl = pairs_of(100, 5000);
    fake_launched clustered;
    (void)state;
#define SAME(call_with, call_without)                                                                                  \
    expect_ok(call_with);                                                                                              \
    clustered = *last_launch();                                                                                        \
    expect_ok(call_without);                                                                                           \
    assert_true(clustered.cluster > 0 && last_launch()->cluster == 0);                                                 \
    clustered.parameters.rows.of.smem_vectors = 0;                                                                     \
    clustered.parameters.rows.scratch = last_launch()->parameters.rows.scratch;                                        \
    assert_memory_equal(&clustered.parameters, &last_launch()->parameters, sizeof clustered.parameters)
    SAME(gpuloss_cross_entropy(with, &ce, NULL), gpuloss_cross_entropy(without, &ce, NULL));
    ce.logits = (const char *)ce.logits + 4;
    SAME(gpuloss_cross_entropy(with, &ce, NULL), gpuloss_cross_entropy(without, &ce, NULL));
    ce = rows_of(100, 5000);
    ce.class_weights = AT(6);
    SAME(gpuloss_cross_entropy(with, &ce, NULL), gpuloss_cross_entropy(without, &ce, NULL));
    SAME(gpuloss_kl_div(with, &kl, NULL), gpuloss_kl_div(without, &kl, NULL));
    kl.target_stride = kl.grad_input_stride = kl.classes + 1;
    kl.temperature = 3.0;
    GIVE_LABELS(&kl);
    SAME(gpuloss_kl_div(with, &kl, NULL), gpuloss_kl_div(without, &kl, NULL));
    gpuloss_destroy(with);
    gpuloss_destroy(without);
}

/* The longest rows where a GPU or a driver takes no clusters beyond some size. One row gets the largest cluster. Many
 * rows get clusters of one block where there are no others. */
static void expect_largest(unsigned size, int line) {
    context = new_context();
    expect_basic(1, 1 << 24, 1, size, 256, line);
    expect_pairs("gpuloss_kl_div_logits_clustered_f32", 1, 1 << 24, 1, size, 8, line);
    gpuloss_destroy(context);
}
static void expect_lone_blocks(unsigned blocks, int line) {
    context = new_context();
    expect_basic(1000, 200000, blocks, 1, 256, line);
    expect_pairs("gpuloss_kl_div_logits_clustered_f32", 1000, 200000, blocks, 1, 8, line);
    gpuloss_destroy(context);
}

static void sizes_that_a_gpu_does_not_take(void **state) {
    unsigned size;
    (void)state;
    memset(fake.wide_clusters, 0, sizeof fake.wide_clusters);
    for (size = 16; size > 1; size--) {
        fake.active_clusters[size] = 0;
        expect_largest(size - 1, __LINE__);
    }
    expect_lone_blocks(396, __LINE__);
    /* Nothing is known of clusters of one block: as many as there are multiprocessors will run. */
    fake.active_clusters[1] = 0;
    expect_lone_blocks(132, __LINE__);
    fake.active_clusters[1] = 390;
    fake.active_clusters[8] = 40; /* and none between them */
    expect_largest(8, __LINE__);
}

/* Where no wide block fits, or none of some size, rows go to others. */
static void gpus_without_wide_blocks(void **state) {
    (void)state;
    fake.shared_optin = 120 * 1024 - 1;
    context = new_context();
    BASIC(1000, 4097, 132, 3);
    gpuloss_destroy(context);
    fake.shared_optin++;
    context = new_context();
    WIDE(1000, 4097, 264, 1);
    gpuloss_destroy(context);
    fake.wide_clusters[1] = 0;
    context = new_context();
    BASIC(1000, 4097, 132, 3);
    gpuloss_destroy(context);
}

/* Calls that take many registers are not for wide blocks. They are spread as if the GPU had none. */
static void rows_without_wide_blocks(void **state) {
    gpuloss_cross_entropy_desc base = rows_of(1000, 4097), d;
    (void)state;
    context = new_context();
#define TAKES(change, clusters, size, threads)                                                                         \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_cross_entropy(&d, clusters, size, threads, __LINE__)
    TAKES((void)0, 264, 1, FAKE_WIDE_BLOCK);
    TAKES(d.row_weights = AT(6), 264, 1, FAKE_WIDE_BLOCK);
    TAKES(give_probabilities(&d), 132, 3, 256); /* they are in the stages, too */
    TAKES(d.softcap = 2.0, 264, 1, FAKE_WIDE_BLOCK);
    TAKES(d.argmax = (int64_t *)AT(6), 264, 1, FAKE_WIDE_BLOCK);
    TAKES(d.correct = (int64_t *)AT(6), 264, 1, FAKE_WIDE_BLOCK);
    TAKES(d.class_weights = AT(6), 264, 1, FAKE_WIDE_BLOCK);
    TAKES(d.class_weights = (const char *)AT(6) + 4, 264, 1, FAKE_WIDE_BLOCK);
    TAKES((d.class_weights = (const char *)AT(6) + 4, d.label_smoothing = 0.1, d.logit_scale = 2.0), 132, 3, 256);
    base = some_shard();
    base.rows = 1;
    base.classes = 4 * 16385;
    base.total_classes = 4 * base.classes;
    TAKES((void)0, 1, 9, 256);
    TAKES((d.shard_rows = NULL, d.bad_targets = (int64_t *)AT(6)), 1, 11, FAKE_WIDE_BLOCK);
    gpuloss_destroy(context);
}

static void a_driver_that_does_not_say(void **state) {
    (void)state;
    fake.fail_symbol = "cuOccupancyMaxActiveClusters";
    expect_lone_blocks(132, __LINE__);
    fake.multiprocessors = 7;
    expect_lone_blocks(7, __LINE__);
}

/* Sixteen blocks take a permission that a kernel is given once. */
static void sixteen_blocks_are_refused(void **state) {
    int m;
    (void)state;
    fake.fail_attribute = 14;
    memset(fake.wide_clusters, 0, sizeof fake.wide_clusters);
    expect_largest(8, __LINE__);
    fake.fail_attribute = 0;
    context = new_context();
    BASIC(1000, 65536, 20, 16);
    for (m = 0; m < fake.modules; m++)
        if (fake.module[m].live)
            assert_int_equal(fake.module[m].non_portable_allowed, fake.module[m].smem_rows);
    gpuloss_destroy(context);
}

/* The library queries and sets a kernel's attributes when it loads the kernel, and never again. */
static void a_second_call_only_launches(void **state) {
    gpuloss_cross_entropy_desc ce = rows_of(1000, 5000);
    gpuloss_kl_div_desc kl = pairs_of(1000, 5000);
    long calls;
    (void)state;
    context = new_context();
    ce.flags = 0;
    ce.ignore_index = 0;
    expect_ok(gpuloss_cross_entropy(context, &ce, stream_number(1)));
    expect_ok(gpuloss_kl_div(context, &kl, stream_number(1)));
    calls = fake.calls;
    expect_ok(gpuloss_cross_entropy(context, &ce, stream_number(1)));
    expect_ok(gpuloss_kl_div(context, &kl, stream_number(1)));
    /* Each call: which context is current, and a launch. */
    assert_in_range(fake.calls - calls, 2, 4);
    gpuloss_destroy(context);
}

/* All kinds of calls that clusters are for go as they would on a GPU that has none, and nothing else is loaded. */
static void expect_no_clusters(int line) {
    gpuloss_cross_entropy_desc ce = rows_of(1000, 5000);
    gpuloss_kl_div_desc kl = pairs_of(1000, 5000);
    int m;
    context = new_context();
#define WITHOUT(call, name)                                                                                            \
    expect_ok_(call, line);                                                                                            \
    if (strcmp(last_launch()->entry, name) != 0 || last_launch()->cluster != 0)                                        \
    fail_msg("line %d: %s is launched", line, last_launch()->entry)
    WITHOUT(gpuloss_cross_entropy(context, &ce, NULL), "gpuloss_cross_entropy_row_memory_f32");
    ce.classes = 4 * 1024;
    WITHOUT(gpuloss_cross_entropy(context, &ce, NULL), "gpuloss_cross_entropy_row_memory_f32");
    ce.classes = 4 * 5000;
    ce.z_loss = AT(6);
    WITHOUT(gpuloss_cross_entropy(context, &ce, NULL), "gpuloss_cross_entropy_row_memory_f32");
    ce.rows = 1;
    WITHOUT(gpuloss_cross_entropy(context, &ce, NULL), "gpuloss_cross_entropy_row_memory_f32");
    WITHOUT(gpuloss_kl_div(context, &kl, NULL), "gpuloss_kl_div_row_memory_f32");
    kl.classes = 4 * 1000;
    WITHOUT(gpuloss_kl_div(context, &kl, NULL), "gpuloss_kl_div_row_memory_f32");
    kl.classes = 400;
    WITHOUT(gpuloss_kl_div(context, &kl, NULL), "gpuloss_kl_div_row_memory_f32");
    kl.divergence = GPULOSS_REVERSE_KL;
    WITHOUT(gpuloss_kl_div(context, &kl, NULL), "gpuloss_kl_div_row_memory_f32");
    preload_every_call(context, GPULOSS_BF16);
    for (m = 0; m < fake.modules; m++)
        if (fake.module[m].is_new)
            fail_msg("line %d: %s is loaded", line, fake.module[m].entry);
    gpuloss_destroy(context);
}

static void expect_some_clusters(void) {
    context = new_context();
    BASIC(1000, 8192, 198, 2);
    PAIRS(1000, 4096, 198, 2, 8);
    gpuloss_destroy(context);
}

static void gpus_without_clusters(void **state) {
    static const int gpus[][2] = {{5, 0}, {7, 0}, {8, 0}, {8, 9}};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        fake.major = gpus[i][0];
        fake.minor = gpus[i][1];
        expect_no_clusters(__LINE__);
    }
    for (fake.major = 9; fake.major < 13; fake.major++)
        expect_some_clusters();
}

static void drivers_without_clusters(void **state) {
    static const char *const symbols[] = {"cuLaunchKernelEx", "cuFuncSetAttribute", "cuOccupancyMaxActiveClusters"};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        fake.missing[0] = symbols[i];
        expect_no_clusters(__LINE__);
    }
    fake.missing[0] = NULL;
    /* These come with PTX ISA 7.8, but a part of what the texts take with 8.0 and 8.1. */
    fake.driver_version = 11080;
    expect_no_clusters(__LINE__);
    fake.driver_version = 12009;
    expect_no_clusters(__LINE__);
    fake.driver_version = 12010;
    expect_some_clusters();
}

/* The attributes of a device, if the driver knows them. */
static void devices_without_clusters(void **state) {
    (void)state;
    fake.has_clusters = 0;
    expect_no_clusters(__LINE__);
    fake.has_clusters = 1;
    fake.fail_attribute = 120;
    expect_no_clusters(__LINE__);
    fake.fail_attribute = 97;
    expect_no_clusters(__LINE__);
    fake.fail_attribute = 0;
    fake.shared_optin = 48 * 1024;
    expect_no_clusters(__LINE__);
    fake.shared_optin = 65536; /* the slots and nothing else */
    expect_no_clusters(__LINE__);
    fake.shared_optin = 88 * 1024 - 1;
    expect_no_clusters(__LINE__);
    fake.shared_optin = 88 * 1024;
    expect_some_clusters();
}

static int loaded_pipelines(void) {
    int m, pipelines = 0;
    for (m = 0; m < fake.modules; m++)
        pipelines += fake.module[m].live && strstr(fake.module[m].entry, "_row_pipeline_") != NULL;
    return pipelines;
}

/* Without the memory of a pipeline in blocks, rows stay in a block's registers where they fit. Longer ones go to
 * clusters. */
static void devices_without_a_pipeline_of_blocks(void **state) {
    static const int enough[] = {88 * 1024, 120 * 1024 - 1, 120 * 1024};
    int i;
    (void)state;
    for (i = 0; i < 3; i++) {
        const char *pipeline = i == 2 ? "gpuloss_cross_entropy_row_pipeline_f32" : NULL;
        gpuloss_cross_entropy_desc d = rows_of(1000, 2047);
        d.logits_stride = d.classes + 1;
        fake.shared_optin = enough[i];
        context = new_context();
#define BLOCKS_OR(name)                                                                                                \
    expect_ok(gpuloss_cross_entropy(context, &d, NULL));                                                               \
    assert_string_equal(last_launch()->entry, pipeline != NULL ? pipeline : name);                                     \
    assert_int_equal(last_launch()->cluster, 0)
        BLOCKS_OR("gpuloss_cross_entropy_row_memory_f32");
        d.softcap = 2.0;
        BLOCKS_OR("gpuloss_cross_entropy_row_memory_f32");
        d.softcap = 0.0;
        d.classes = 4 * 3100;
        d.logits_stride = d.classes + 1;
        expect_ok(gpuloss_cross_entropy(context, &d, NULL));
        assert_string_equal(last_launch()->entry, "gpuloss_cross_entropy_row_pipeline_f32");
        assert_int_equal(last_launch()->cluster > 0, pipeline == NULL);
        d.grad_logits = NULL;
        BLOCKS_OR("gpuloss_cross_entropy_row_memory_f32");
        give_probabilities(&d);
        BLOCKS_OR("gpuloss_cross_entropy_row_memory_f32");
        d.dtype = GPULOSS_BF16;
        expect_ok(gpuloss_cross_entropy_preload(context, &d, NULL));
        assert_int_equal(loaded_pipelines(), pipeline != NULL ? 5 : 1);
        gpuloss_destroy(context);
    }
}

/* Packed rows in registers take as much shared memory. GPUs with less have no other packed rows either. */
static void devices_without_packed_rows(void **state) {
    static const char *const entries[2][2] = {
        {"gpuloss_cross_entropy_row_memory_f32", "gpuloss_cross_entropy_row_memory_f32"},
        {"gpuloss_cross_entropy_packed_reg_f32", "gpuloss_cross_entropy_packed_smem_f32"}};
    int has, few, m;
    (void)state;
    for (has = 0; has < 2; has++) {
        fake.shared_optin = 120 * 1024 - 1 + has;
        context = new_context();
        for (few = 0; few < 2; few++) {
            gpuloss_cross_entropy_desc d = rows_of(1000, few ? 2 : 20);
            expect_ok(gpuloss_cross_entropy(context, &d, NULL));
            assert_string_equal(last_launch()->entry, entries[has][!few]);
        }
        preload_every_call(context, GPULOSS_BF16);
        for (m = 0; m < fake.modules; m++)
            assert_true(has || strstr(fake.module[m].entry, "entropy_packed_") == NULL);
        gpuloss_destroy(context);
    }
}

static int ends_with(const char *text, const char *end) {
    return strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

/* Only kernels of newer GPUs are allowed the shared memory that they take. The driver is queried for the blocks of each
 * kernel that run at once, with all of that memory and with less. */
static void shared_memory_of_every_kernel(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F64, GPULOSS_BF16};
    int m, i, packed = 0, others = 0, pairs = 0, pipelines = 0;
    (void)state;
    context = new_context();
    for (i = 0; i < 6; i++)
        preload_every_call(context, dtypes[i / 2]);
    for (m = 0; m < fake.modules; m++) {
        const fake_module *module = &fake.module[m];
        const int is_packed_pair = strstr(module->entry, "_logits_packed_") != NULL;
        const int is_block_pair = strstr(module->entry, "_logits_block_rows_") != NULL;
        const int is_reg = strstr(module->entry, "entropy_packed_reg_") != NULL;
        const int is_packed = strstr(module->entry, "entropy_packed_") != NULL && !is_reg;
        const int is_row_cluster = strstr(module->entry, "_row_cluster_") != NULL;
        const int is_other = strstr(module->entry, "_clustered_") != NULL || is_row_cluster;
        const int is_pipeline = strstr(module->entry, "_pipeline_") != NULL;
        const int is_short = strstr(module->entry, "_distances_clustered_any16") != NULL;
        const uint32_t blocks = GPULOSSI_FORMAT_CLUSTER | GPULOSSI_FORMAT_WIDE;
        const int is_clustered = strstr(module->entry, "entropy_row_pipeline_") != NULL &&
                                 (module->words[GPULOSSI_FORMAT_WORD] & blocks) == GPULOSSI_FORMAT_CLUSTER;
        const int bytes = is_clustered                 ? 65536
                          : is_reg || is_pipeline      ? 98304
                          : is_row_cluster             ? 196608
                          : is_short                   ? 32768
                          : is_packed                  ? 49152
                          : is_other || is_packed_pair ? 65536
                          : is_block_pair              ? 32768
                                                       : 0;
        if (module->occupancies != 2 || module->shared_bytes_set != bytes)
            fail_msg("%s is allowed %d bytes, and was queried %d times", module->entry, module->shared_bytes_set,
                     module->occupancies);
        assert_true(!ends_with(module->entry, "_f64") || is_pipeline || module->shared_bytes_set == 0);
        packed += is_reg + is_packed;
        pipelines += is_pipeline;
        others += is_other;
        pairs += is_packed_pair + is_block_pair;
    }
    assert_int_equal(packed, 4);
    assert_int_equal(others, 4);
    assert_true(pipelines >= 10);
    assert_int_equal(pairs, 6);
    gpuloss_destroy(context);
}

/* In blocks the pipeline is launched with the whole of its memory, as a kernel without clusters. */
static void expect_a_pipeline(void) {
    gpuloss_cross_entropy_desc d = rows_of(1000, 2000);
    fake.launches = 0;
    context = new_context();
    d.logits_stride = d.classes + 1;
    expect_ok(gpuloss_cross_entropy(context, &d, stream_number(1)));
    assert_string_equal(last_launch()->entry, "gpuloss_cross_entropy_row_pipeline_f32");
    assert_int_equal(last_launch()->shared_bytes, 98304);
    assert_int_equal(last_launch()->cluster, 0);
    assert_int_equal(last_launch()->grid, 2 * 132);
    assert_ptr_equal(last_launch()->stream, stream_number(1));
    /* The kernel that counts its rows is also for older GPUs. */
    assert_string_equal(fake.launch[0].entry, PREPARE_KERNEL);
    assert_int_equal(fake.launch[0].shared_bytes, 0);
    gpuloss_destroy(context);
}

static void shared_memory_of_a_pipeline(void **state) {
    (void)state;
    expect_a_pipeline();
    fake.driver_version = 12020;
    expect_a_pipeline();
}

/* A kernel that is not given its shared memory is no use: the call says so, and the next one tries again. */
static void shared_memory_is_refused(void **state) {
    gpuloss_cross_entropy_desc ce = rows_of(1000, 5000);
    gpuloss_kl_div_desc kl = pairs_of(1000, 4000);
    int mallocs_live;
    (void)state;
    context = new_context();
    mallocs_live = fake.mallocs_live;
    fake.fail_attribute = 8;
    expect_error(gpuloss_cross_entropy(context, &ce, stream_number(1)), GPULOSS_ERROR_DRIVER, "gpuloss_cross_entropy",
                 "gpuloss_cross_entropy_row_pipeline_f32");
    expect_error(gpuloss_kl_div(context, &kl, stream_number(1)), GPULOSS_ERROR_DRIVER, "gpuloss_kl_div",
                 "gpuloss_kl_div_logits_clustered_f32");
    assert_non_null(strstr(gpuloss_last_error(), "got error 719"));
    assert_int_equal(fake_live_modules(), 0);
    kl.dtype = GPULOSS_BF16;
    expect_error(gpuloss_kl_div_preload(context, &kl, NULL), GPULOSS_ERROR_DRIVER, "gpuloss_kl_div_preload",
                 "gpuloss_kl_div_logits_block_rows_any16");
    kl.dtype = GPULOSS_F32;
    fake.fail_code = 2;
    expect_error(gpuloss_kl_div(context, &kl, stream_number(1)), GPULOSS_ERROR_OUT_OF_DEVICE_MEMORY, "gpuloss_kl_div",
                 "gpuloss_kl_div_logits_clustered_f32");
    assert_int_equal(fake.launches, 0);
    assert_int_equal(fake.mallocs_live - mallocs_live, fake_live_modules());
    fake.fail_attribute = 0;
    WIDE(1000, 5000, 264, 1);
    PAIRS(1000, 4096, 198, 2, 8);
    gpuloss_destroy(context);
}

/* The rows have been counted by then: the count must not be found by the next launch. */
static void expect_clearing(void) {
    gpuloss_cross_entropy_desc ce = rows_of(1000, 5000);
    gpuloss_kl_div_desc kl = pairs_of(1000, 4000);
    int fills;
    context = new_context();
    GIVE_LABELS(&kl);
    WIDE(1000, 5000, 264, 1);
    PAIRS(1000, 4096, 198, 2, 8);
    fills = fake.fills;
    fake.fail_entry = "gpuloss_cross_entropy_row_pipeline_f32";
    expect_error(gpuloss_cross_entropy(context, &ce, stream_number(1)), GPULOSS_ERROR_DRIVER, "gpuloss_cross_entropy",
                 "launching");
    assert_string_equal(fake.failed, "cuLaunchKernelEx");
    expect_cleared(fills + 1, stream_number(1));
    fake.fail_entry = "gpuloss_kl_div_logits_clustered_f32";
    expect_error(gpuloss_kl_div(context, &kl, stream_number(1)), GPULOSS_ERROR_DRIVER, "gpuloss_kl_div", "launching");
    assert_int_equal(fake.prepares, 0);
    assert_int_equal(fake.fills, fills + 2);
    /* Nothing was counted for these rows, and nothing is to be cleared. */
    kl = pairs_of(1000, 4000);
    expect_error(gpuloss_kl_div(context, &kl, stream_number(1)), GPULOSS_ERROR_DRIVER, "gpuloss_kl_div", "launching");
    assert_int_equal(fake.fills, fills + 2);
    fake.fail_entry = NULL;
    WIDE(1000, 5000, 264, 1);
    PAIRS(1000, 4096, 198, 2, 8);
    gpuloss_destroy(context);
}

static void a_launch_fails(void **state) {
    (void)state;
    expect_clearing();
    fake.driver_version = 12020;
    expect_clearing();
}

/* Combining shards has no kernels for clusters. Divergences of probabilities take none, whatever the length of their
 * rows. */
static void other_calls_take_no_clusters(void **state) {
    gpuloss_cross_entropy_desc combine = some_combine();
    gpuloss_kl_div_desc kl = some_kl_div();
    (void)state;
    context = new_context();
    combine.rows = kl.rows = 8;
    combine.classes = kl.classes = 1 << 20;
    expect_ok(gpuloss_cross_entropy_combine(context, &combine, NULL));
    assert_int_equal(last_launch()->cluster, 0);
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(last_launch()->cluster, 0);
    kl.loss_rows = AT(6);
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(last_launch()->cluster, 0);
    gpuloss_destroy(context);
}

int cluster_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(clusters_retain_a_row),
        TEST(rows_are_retained_where_that_pays),
        TEST(clusters_retain_a_pair_of_rows),
        TEST(clusters_of_distances),
        TEST(memory_of_distances),
        TEST(no_more_clusters_than_rows),
        TEST(few_rows_take_larger_clusters),
        TEST(rows_that_begin_anywhere),
        TEST(targets_in_stages),
        TEST(clusters_of_every_dtype),
        TEST(the_same_parameters),
        TEST(sizes_that_a_gpu_does_not_take),
        TEST(gpus_without_wide_blocks),
        TEST(rows_without_wide_blocks),
        TEST(a_driver_that_does_not_say),
        TEST(sixteen_blocks_are_refused),
        TEST(a_second_call_only_launches),
        TEST(gpus_without_clusters),
        TEST(drivers_without_clusters),
        TEST(devices_without_clusters),
        TEST(devices_without_a_pipeline_of_blocks),
        TEST(devices_without_packed_rows),
        TEST(shared_memory_of_every_kernel),
        TEST(shared_memory_of_a_pipeline),
        TEST(shared_memory_is_refused),
        TEST(a_launch_fails),
        TEST(other_calls_take_no_clusters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
