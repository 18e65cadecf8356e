/* The kernel of a call of cross-entropy, and the threads and blocks of its rows. */
#include "choice.h"

#include <stdio.h>

gpuloss_context *choice_context;

const fake_launched *expect_kernel(const gpuloss_cross_entropy_desc *d, const char *name, int line) {
    const int in_clusters = strcmp(name, "clusters") == 0, is_pipeline = in_clusters || strcmp(name, "pipeline") == 0;
    const int may_register = strcmp(name, "registers") == 0, in_memory = may_register || strcmp(name, "memory") == 0;
    const int in_registers = may_register && d->dtype != GPULOSS_F64; /* rows of doubles never are */
    char text[64];
    fake.launches = 0;
    expect_ok_(gpuloss_cross_entropy(choice_context, d, NULL), line);
    snprintf(text, sizeof text, "cross_entropy_%s", is_pipeline ? "row_pipeline" : in_memory ? "row_memory" : name);
    expect_module(text, d->dtype, line);
    if (is_pipeline && (last_launch()->cluster > 0) != in_clusters)
        fail_msg("line %d: clusters of %u are launched instead of %s", line, last_launch()->cluster, name);
    if (in_memory &&
        ((last_launch()->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_REGISTERS) != 0) != in_registers)
        fail_msg("line %d: these rows are not in %s", line, name);
    if (!in_clusters) /* see test_clusters.c */
        assert_int_equal(last_launch()->block, strcmp(name, "block_rows") == 0 ? last_launch()->parameters.rows.group
                                                                               : fake_threads_of(last_launch()->entry));
    return last_launch();
}

/* The kernels of a call: without options, with a given lse, with options and with both; for probabilities, with smoothing
 * and of columns. */
typedef struct kernels {
    const char *basic, *basic_of_lse, *options, *options_of_lse, *probabilities, *smoothing, *columns;
} kernels;

/* Each option by itself leaves the kernels without options. An option with its neutral value does not. */
static void every_option_alone(const gpuloss_cross_entropy_desc *call, const kernels *of) {
    gpuloss_cross_entropy_desc base = *call, d;
    const gpuloss_dtype other = base.dtype == GPULOSS_F16 ? GPULOSS_BF16 : GPULOSS_F16;
    TAKES((void)0, of->basic);
    TAKES(d.class_weights = AT(6), of->options);
    TAKES(d.row_weights = AT(6), of->options);
    TAKES(d.label_smoothing = 1e-9, of->smoothing);
    TAKES(d.lse_square_scale = 1e-9, of->options);
    TAKES(d.logit_scale = 1.5, of->options);
    TAKES(d.logit_scale = -1.0, of->options);
    TAKES(d.softcap = 1e30, of->options);
    TAKES(d.z_loss = AT(6), of->options);
    TAKES(d.z_loss_rows = AT(6), of->options);
    TAKES(d.argmax = (int64_t *)AT(6), of->options);
    TAKES(d.correct = (int64_t *)AT(6), of->options);
    TAKES(d.grad_dtype = other, of->options);
    TAKES((d.label_smoothing = 1e-9, d.softcap = 2.0), of->options);
    TAKES(give_probabilities(&d), of->probabilities);
    TAKES((give_probabilities(&d), d.label_smoothing = 0.5), of->probabilities);
    TAKES((give_probabilities(&d), d.grad_logits = NULL, d.grad_target_probabilities = AT(6)), of->probabilities);
    TAKES(d.inner = 8, of->columns);
    TAKES((d.inner = 8, d.label_smoothing = 0.5), of->columns);
    TAKES((d.inner = 8, d.grad_dtype = other), of->columns);
    TAKES((d.inner = 8, give_probabilities(&d)), of->columns);
    TAKES(d.logit_scale = 1.0, of->basic);
    TAKES(d.inner = 1, of->basic);
    TAKES(d.grad_dtype = d.dtype, of->basic);
    TAKES((d.grad_dtype = other, d.grad_logits = NULL), of->basic);
    TAKES(d.target_dtype = other, of->basic);
    TAKES(d.target_type = GPULOSS_U8, of->basic);
    TAKES((d.flags = 0, d.ignore_index = 0), of->basic);
    TAKES(d.divisor = 3.0, of->basic);
    TAKES(d.divisor_in = AT(6), of->basic);
    TAKES(d.reduction = GPULOSS_SUM, of->basic);
    TAKES((d.loss_rows = AT(6), d.lse = AT(7), d.bad_targets = (int64_t *)AT(8)), of->basic);
    TAKES(d.lse_in = AT(6), of->basic_of_lse);
    TAKES((d.lse_in = AT(6), d.softcap = 2.0), of->options_of_lse);
    TAKES((d.lse_in = AT(6), d.label_smoothing = 1e-9), of->options_of_lse);
    TAKES(d.grad_loss = d.grad_loss_rows = AT(6), of->basic);
}

void on_every_dtype(gpuloss_context *created, void (*check)(gpuloss_cross_entropy_desc d)) {
    size_t t;
    choice_context = created;
    for (t = 0; t < DTYPES; t++) {
        gpuloss_cross_entropy_desc d = some_cross_entropy();
        d.dtype = every_dtype[t].dtype;
        check(d);
    }
    gpuloss_destroy(choice_context);
}

/* Of the kernels for clusters doubles have the pipeline only. */
static int has_more_than_pipeline(gpuloss_dtype dtype) {
    return dtype != GPULOSS_F64;
}

static void check_options(gpuloss_cross_entropy_desc d) {
    static const kernels tiles = {"row_memory", "row_memory", "row_thread", "row_thread",
                                  "row_thread", "row_thread", "row_memory"};
    static const kernels memory = {"row_memory", "row_memory", "row_memory", "row_memory",
                                   "row_memory", "row_memory", "row_memory"};
    every_option_alone(&d, &tiles);
    d.classes = 1 << 12;
    every_option_alone(&d, &memory);
    d.classes = 1 << 20;
    d.rows = 8;
    every_option_alone(&d, &memory);
}

static void options_leave_the_basic_kernels(void **state) {
    (void)state;
    on_every_dtype(new_context_without_clusters(), check_options);
}

/* Newer GPUs have a kernel for all options, with which rows stay in clusters unless their lse is given. */
static void check_options_of_clusters(gpuloss_cross_entropy_desc d) {
    static const kernels long_ones = {"clusters", "pipeline",    "clusters",  "pipeline",
                                      "clusters", "row_cluster", "row_memory"};
    static const kernels long_doubles = {"clusters", "pipeline", "clusters",  "pipeline",
                                         "clusters", "clusters", "row_memory"};
    static const kernels uneven = {"pipeline", "pipeline", "pipeline",  "pipeline",
                                   "pipeline", "pipeline", "row_memory"};
    static const kernels even = {"block_rows", "block_rows", "pipeline",  "pipeline",
                                 "pipeline",   "pipeline",   "row_memory"};
    const int has = has_more_than_pipeline(d.dtype), bytes = every_dtype[d.dtype - GPULOSS_F32].bytes;
    d.classes = 1 << 16;
    d.rows = 8;
    every_option_alone(&d, has ? &long_ones : &long_doubles);
    d.rows = 1000;
    d.classes = 1500 * 16 / bytes;
    d.logits = (const char *)d.logits + bytes;
    every_option_alone(&d, &uneven);
    d.logits = (const char *)d.logits - bytes;
    d.classes = 1000 * 16 / bytes;
    every_option_alone(&d, has ? &even : &uneven);
    d.classes = 31 * 16 / bytes;
    d.logits_stride = d.grad_logits_stride = d.classes + 16 / bytes;
    d.inner = 1;
    d.softcap = 2.0;
    expect_kernel(&d, "row_thread", __LINE__);
    give_probabilities(&d);
    expect_kernel(&d, "row_thread", __LINE__);
}

static void options_leave_the_basic_kernels_of_clusters(void **state) {
    (void)state;
    on_every_dtype(new_context(), check_options_of_clusters);
}

/* Rows of `vectors` vectors, with and without options, of whole vectors or beginning anywhere. `weighted`: with smoothing
 * and class weights. */
static void expect_rows_of(int64_t vectors, gpuloss_cross_entropy_desc d, const char *whole, const kernels *of,
                           const char *weighted, int line) {
    const int64_t width = 16 / every_dtype[d.dtype - GPULOSS_F32].bytes;
    /* Tiles have all vectors that a row touches, stages of the pipeline whole ones. */
    const int is_touched = vectors <= GPULOSSI_TILE_VECTORS + 1;
    gpuloss_cross_entropy_desc anywhere = d;
    d.classes = vectors * width;
    d.logits_stride = d.classes + width; /* not packed */
    expect_kernel(&d, whole, line);
    anywhere.logits_stride = (vectors + 1) * width + 1;
    anywhere.classes = is_touched ? (vectors - 1) * width - width + 2 : (vectors + 1) * width - 1;
    expect_kernel(&anywhere, of->basic, line);
    d.z_loss = anywhere.z_loss = AT(6);
    expect_kernel(&d, of->options, line);
    expect_kernel(&anywhere, of->options, line);
    /* The last vector has a single element. */
    d.logits_stride = d.grad_logits_stride = (vectors + 1) * width;
    d.classes = (is_touched ? vectors - 1 : vectors) * width + 1;
    expect_kernel(&d, of->options, line);
    d.label_smoothing = anywhere.label_smoothing = 0.5;
    d.classes = (vectors - 1) * width + 1;
    if (is_touched)
        expect_kernel(&d, of->smoothing, line);
    d.class_weights = anywhere.class_weights = AT(7);
    expect_kernel(&d, weighted, line);
    if (d.grad_logits != NULL || is_touched) {
        expect_kernel(&anywhere, of->options, line); /* gradients begin elsewhere in their vectors */
    } else {
        anywhere.classes = (vectors - 1) * width - 1;
        expect_kernel(&anywhere, weighted, line);
    }
}
#define ROWS_OF(vectors, whole, basic, options, smoothing, weighted)                                                   \
    do {                                                                                                               \
        const kernels of = {basic, NULL, options, NULL, NULL, smoothing, NULL};                                        \
        expect_rows_of(vectors, d, whole, &of, weighted, __LINE__);                                                    \
    } while (0)
/* Whole vectors are for a block to itself, if it can have that. */
#define WHOLE_ROWS_OF(vectors, basic, options)                                                                         \
    do {                                                                                                               \
        const kernels of = {basic, NULL, options, NULL, NULL, options, NULL};                                          \
        expect_rows_of(vectors, d, has ? "block_rows" : basic, &of, options, __LINE__);                                \
    } while (0)

/* Written rows too long for a warp go to the pipeline, longer ones to clusters. The longest with smoothing are retained
 * in shared memory. */
static void check_rows_that_are_written(gpuloss_cross_entropy_desc d) {
    const int has = has_more_than_pipeline(d.dtype);
    const char *in_smem = "pipeline", *streamed = "pipeline", *options = "pipeline", *tiles = "pipeline";
    const char *clusters = "clusters", *of_clusters = "clusters", *row_cluster = has ? "row_cluster" : "pipeline";
    const char *whole = has ? "row_memory" : "pipeline", *in_second = has ? "row_cluster" : "clusters";
    for (d.rows = fake.multiprocessors; d.rows <= 10000; d.rows *= 5) {
        ROWS_OF(47, "row_memory", "row_thread", "row_thread", "row_thread", "row_thread");
        ROWS_OF(48, whole, in_smem, tiles, tiles, tiles);
        ROWS_OF(96, whole, in_smem, tiles, tiles, tiles);
        WHOLE_ROWS_OF(97, in_smem, tiles);
        WHOLE_ROWS_OF(2048, in_smem, options);
        ROWS_OF(2049, clusters, clusters, of_clusters, of_clusters, row_cluster);
        ROWS_OF(3072, clusters, clusters, of_clusters, of_clusters, in_second);
        ROWS_OF(3073, streamed, streamed, options, options, in_second);
        ROWS_OF(4096, streamed, streamed, options, options, row_cluster);
        ROWS_OF(4097, clusters, clusters, of_clusters, row_cluster, row_cluster);
    }
}

static void long_rows_that_are_written(void **state) {
    (void)state;
    on_every_dtype(new_context(), check_rows_that_are_written);
}

/* Long rows with smoothing are retained in shared memory beside their weights. Logits and gradients must have one type,
 * and begin at the same element of a vector. */
static void rows_beside_their_weights(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    choice_context = new_context();
    base.classes = 20000;
    base.label_smoothing = 0.5;
    TAKES((void)0, "row_cluster");
    TAKES(d.class_weights = AT(7), "row_cluster");
    TAKES(d.class_weights = (const char *)AT(7) + 4, "row_cluster");
    TAKES(d.label_smoothing = 0.0, "clusters");
    TAKES((d.label_smoothing = 0.0, d.class_weights = AT(7)), "clusters");
    TAKES(d.lse_in = AT(7), "pipeline");
    TAKES(d.softcap = 1.0, "clusters");
    TAKES(d.logit_scale = 2.0, "clusters");
    base.class_weights = AT(7);
    base.logits_stride = base.grad_logits_stride = base.classes + 1;
    TAKES((void)0, "row_cluster");
    TAKES((d.logits = (const char *)d.logits + 4, d.grad_logits = (char *)d.grad_logits + 4), "row_cluster");
    TAKES(d.logits = (const char *)d.logits + 4, "clusters");
    TAKES((d.logits = (const char *)d.logits + 4, d.grad_logits = NULL), "row_cluster");
    TAKES(d.grad_logits_stride = d.classes + 2, "clusters");
    TAKES(d.grad_logits_stride = d.classes + 5, "row_cluster");
    TAKES((d.class_weights = NULL, d.label_smoothing = 0.5), "clusters");
    base.logits_stride = base.grad_logits_stride = ((int64_t)1 << 18) + 1;
    TAKES(d.classes = (1 << 18) - 3, "row_cluster");
    TAKES(d.classes = (1 << 18) - 2, "clusters");
    TAKES((d.classes = 1 << 18, d.logits_stride = d.grad_logits_stride = 1 << 18), "row_cluster");
    base.class_weights = NULL;
    base.logits_stride = base.grad_logits_stride = 0;
    d = base;
    d.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56);
    d.logits_stride = d.grad_logits_stride = (int64_t)1 << 31;
    d.classes = INT32_MAX;
    expect_kernel(&d, "clusters", __LINE__);
    TAKES(give_probabilities(&d), "clusters");
    TAKES(d.grad_dtype = GPULOSS_BF16, "clusters");
    TAKES(d.logits = (const char *)d.logits + 4, "clusters");
    TAKES(d.grad_logits = (char *)d.grad_logits + 4, "clusters");
    TAKES(d.grad_logits_stride = d.classes + 1, "clusters");
    TAKES(d.grad_logits_stride = d.classes + 4, "row_cluster");
    TAKES((d.rows = 0, d.loss_rows = AT(8)), "pipeline");
    gpuloss_destroy(choice_context);
}

/* Rows that are fewer than the multiprocessors, and worth two blocks, are for clusters with and without a gradient. */
static void check_rows_that_are_few(gpuloss_cross_entropy_desc d) {
    const int has = has_more_than_pipeline(d.dtype);
    const char *in_smem = "pipeline", *streamed = "pipeline", *options = "pipeline", *tiles = "pipeline";
    const char *clusters = "clusters", *of_clusters = "clusters", *row_cluster = has ? "row_cluster" : "pipeline";
    const char *whole = has ? "row_memory" : "pipeline";
    const kernels losses = {streamed, NULL, options, NULL, NULL, options, NULL};
    d.rows = fake.multiprocessors - 1;
    WHOLE_ROWS_OF(97, in_smem, tiles);
    WHOLE_ROWS_OF(2047, in_smem, options);
    ROWS_OF(2048, clusters, clusters, of_clusters, of_clusters, row_cluster);
    d.grad_logits = NULL;
    ROWS_OF(192, whole, in_smem, tiles, tiles, tiles);
    WHOLE_ROWS_OF(193, in_smem, tiles);
    WHOLE_ROWS_OF(2047, in_smem, options);
    ROWS_OF(2048, clusters, clusters, of_clusters, of_clusters, row_cluster);
    d.rows = 1;
    ROWS_OF(2048, clusters, clusters, of_clusters, of_clusters, row_cluster);
    d.rows = fake.multiprocessors;
    ROWS_OF(47, "row_memory", "row_thread", "row_thread", "row_thread", "row_thread");
    ROWS_OF(48, whole, in_smem, tiles, tiles, tiles);
    WHOLE_ROWS_OF(2048, in_smem, options);
    expect_rows_of(2049, d, has ? "block_rows" : streamed, &losses, row_cluster, __LINE__);
}

static void long_rows_that_are_few(void **state) {
    (void)state;
    on_every_dtype(new_context(), check_rows_that_are_few);
}

/* Gradients of many long rows of doubles with a softcap are in memory. */
static void long_doubles_with_a_softcap(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    choice_context = new_context();
    base.dtype = GPULOSS_F64;
    base.rows = 1000;
    base.classes = 20000;
    base.softcap = 2.0;
    base.logits = GPULOSS_PTR((uintptr_t)1 << 57);
    base.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56);
    TAKES((void)0, "memory");
    TAKES(d.softcap = 0.0, "clusters");
    TAKES(d.dtype = GPULOSS_F32, "clusters");
    TAKES(d.rows = 100, "clusters");
    TAKES(d.lse_in = AT(6), "pipeline");
    TAKES(d.grad_logits = NULL, "pipeline");
    TAKES(d.classes = 4000, "pipeline");
    gpuloss_destroy(choice_context);
}

/* Without a gradient many long rows go to no clusters, unless they are retained beside their weights. */
static void check_rows_that_are_read(gpuloss_cross_entropy_desc d) {
    const int has = has_more_than_pipeline(d.dtype);
    const char *streamed = "pipeline", *options = "pipeline", *row_cluster = has ? "row_cluster" : "pipeline";
    const kernels losses = {streamed, NULL, options, NULL, NULL, options, NULL};
    d.rows = fake.multiprocessors;
    d.grad_logits = NULL;
    expect_rows_of(4096, d, has ? "block_rows" : streamed, &losses, row_cluster, __LINE__);
    ROWS_OF(4097, streamed, streamed, options, options, row_cluster);
    /* No cluster is large enough for these. */
    ROWS_OF((1 << 16) + 1, streamed, streamed, options, options, options);
    d.class_weights = AT(7);
    d.label_smoothing = 0.5;
    d.classes = 2049 * 16 / every_dtype[d.dtype - GPULOSS_F32].bytes;
    expect_kernel(&d, row_cluster, __LINE__);
    d.classes = 2048 * 16 / every_dtype[d.dtype - GPULOSS_F32].bytes;
    expect_kernel(&d, options, __LINE__);
}

static void long_rows_that_are_read(void **state) {
    (void)state;
    on_every_dtype(new_context(), check_rows_that_are_read);
}

/* A call without rows needs no cluster. */
static void long_rows_that_are_none(void **state) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    (void)state;
    choice_context = new_context();
    d.rows = 0;
    d.classes = 1 << 20;
    expect_kernel(&d, "pipeline", __LINE__);
    assert_int_equal(last_launch()->grid, 1);
    d.softcap = 2.0;
    expect_kernel(&d, "pipeline", __LINE__);
    assert_int_equal(last_launch()->grid, 1);
    gpuloss_destroy(choice_context);
}

/* A shard has other classes than its targets, also when it is the only one. */
static void check_shards(gpuloss_cross_entropy_desc d, const char *name, const char *of_few, const char *of_lse) {
    gpuloss_cross_entropy_desc base = some_shard();
    base.dtype = d.dtype;
    TAKES((void)0, name);
    TAKES((d.total_classes = d.classes, d.class_offset = 0), name);
    TAKES((d.shard_rows = NULL, d.lse_in = AT(6), d.grad_logits = AT(4)), name);
    TAKES((d.shard_rows = NULL, d.bad_targets = (int64_t *)AT(6)), name);
    base.rows = 8;
    base.classes = 1 << 18;
    base.total_classes = 1 << 20;
    TAKES((void)0, of_few);
    TAKES((d.shard_rows = NULL, d.lse_in = AT(6), d.grad_logits = AT(4)), of_lse);
}
static void check_shards_of_clusters(gpuloss_cross_entropy_desc d) {
    check_shards(d, "pipeline", "clusters", "pipeline");
}
static void check_shards_without(gpuloss_cross_entropy_desc d) {
    check_shards(d, "row_thread", "row_memory", "row_memory");
}

static void shards_leave_the_basic_kernels(void **state) {
    (void)state;
    on_every_dtype(new_context(), check_shards_of_clusters);
    on_every_dtype(new_context_without_clusters(), check_shards_without);
}

static void expect_group(const gpuloss_cross_entropy_desc *d, const char *name, unsigned group, int line) {
    expect_row_group(expect_kernel(d, name, line), d->rows, group, line);
}

/* The fewest threads that have registers for a row share it, and twice as many one of a vector more. A block reads rows
 * that it has no registers for twice. One thread does not write more than half of what it has registers for. */
static void check_groups_of_rows_in_registers(gpuloss_cross_entropy_desc d) {
    const int width = 16 / every_dtype[d.dtype - GPULOSS_F32].bytes;
    const int most = GPULOSSI_REG_VECTORS;
    unsigned group;
    if (d.dtype == GPULOSS_F64) /* those rows do not stay in registers */
        return;
    d.logits_stride = d.grad_logits_stride = 1 << 16; /* all begin at vectors */
    for (group = 1; group <= GPULOSSI_BLOCK; group *= 2) {
        const char *next = group < GPULOSSI_BLOCK ? "registers" : "memory";
        d.classes = (int64_t)group * most * width;
        expect_group(&d, "registers", group > 1 ? group : 2, __LINE__);
        d.classes = ((int64_t)group * most + 1) * width;
        expect_group(&d, next, group < GPULOSSI_BLOCK ? 2 * group : group, __LINE__);
    }
    d.classes = most / 2 * width;
    expect_group(&d, "registers", 1, __LINE__);
    d.classes += width;
    expect_group(&d, "registers", 2, __LINE__);
    d.grad_logits = NULL;
    d.grad_logits_stride = 0;
    expect_group(&d, "registers", 1, __LINE__);
    d.classes = most * width;
    expect_group(&d, "registers", 1, __LINE__);
}

/* Rows stay in registers if the softmax and the sum of the logits are all that is computed of them. */
static void check_options_in_registers(gpuloss_cross_entropy_desc base) {
    const gpuloss_dtype other = base.dtype == GPULOSS_F16 ? GPULOSS_BF16 : GPULOSS_F16;
    gpuloss_cross_entropy_desc d;
    if (base.dtype == GPULOSS_F64)
        return;
    base.classes = 1000 * 16 / every_dtype[base.dtype - GPULOSS_F32].bytes;
    TAKES((void)0, "registers");
    assert_int_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_RAGGED, 0);
    TAKES((d.classes++, d.class_weights = AT(6)), "registers");
    assert_int_not_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_RAGGED, 0);
    TAKES((d.row_weights = AT(6), d.lse_square_scale = 1.0), "registers");
    TAKES((d.argmax = (int64_t *)AT(6), d.grad_dtype = other), "registers");
    TAKES(d.label_smoothing = 1e-9, "registers");
    TAKES((d.label_smoothing = 1e-9, d.class_weights = AT(6)), "memory");
    TAKES(d.logit_scale = 1.5, "memory");
    TAKES(d.softcap = 1e30, "memory");
    TAKES(d.lse_in = AT(6), "memory");
    TAKES(give_probabilities(&d), "memory");
}

static void rows_in_registers(void **state) {
    (void)state;
    on_every_dtype(new_context_without_clusters(), check_groups_of_rows_in_registers);
    on_every_dtype(new_context_without_clusters(), check_options_in_registers);
}

/* Rows of the pipeline: about 8 vectors a thread, of half the bytes 16 with a gradient and 32 without, as long as the rows
 * fill the GPU; and fewer threads for a row where their last step of 8 vectors would be nearly empty. */
static void groups_of_the_pipeline(void **state) {
    static const struct {
        int bytes, writes;
        int64_t rows, vectors;
        unsigned group;
    } cases[] = {{4, 1, 1 << 20, 257, 64},
                 {4, 1, 1 << 20, 512, 64},
                 {4, 1, 1 << 20, 513, 128},
                 {4, 1, 1 << 20, 1024, 128},
                 {4, 1, 1 << 20, 1025, 256},
                 {4, 1, 1 << 20, 4096, 256},
                 {4, 1, 140, 257, 64},
                 {4, 1, 140, 512, 64},
                 {4, 0, 1 << 20, 1024, 32},
                 {4, 0, 1 << 20, 1025, 32},
                 {4, 0, 1 << 20, 2049, 32},
                 {2, 1, 1 << 20, 257, 32},
                 {2, 1, 1 << 20, 512, 32},
                 {2, 1, 1 << 20, 513, 64},
                 {2, 1, 1 << 20, 1024, 64},
                 {2, 1, 1 << 20, 1025, 128},
                 {2, 1, 1 << 20, 2048, 128},
                 {2, 1, 1 << 20, 4096, 256},
                 {2, 0, 1 << 20, 1024, 32},
                 {2, 0, 1 << 20, 2048, 64},
                 {2, 0, 1 << 20, 4096, 128},
                 {2, 0, 1 << 20, 16384, 256},
                 {2, 0, 1 << 20, 100000, 256},
                 /* Few rows: 512 threads for each of 132 multiprocessors are 2112 rows of 32. */
                 {2, 1, 2112, 257, 32},
                 {2, 1, 2111, 257, 64},
                 {2, 1, 1056, 1024, 64},
                 {2, 1, 1055, 1024, 128},
                 {2, 1, 140, 1024, 128},
                 {2, 1, 140, 1025, 256},
                 {2, 0, 2112, 1024, 32},
                 {2, 0, 2111, 1024, 64},
                 {2, 0, 140, 1024, 128},
                 {2, 0, 140, 1025, 256},
                 /* Last steps that are less than half full, of twice as many rows. */
                 {4, 0, 1 << 20, 4096, 128},
                 {4, 0, 1 << 20, 4097, 64},
                 {4, 0, 1 << 20, 5120, 128},
                 {4, 0, 1 << 20, 5121, 256},
                 {4, 0, 1 << 20, 14337, 128},
                 {4, 0, 1 << 20, 16385, 256},
                 {4, 0, 528, 4097, 128},
                 {4, 0, 527, 4097, 256},
                 {4, 0, 1056, 4097, 64},
                 {4, 0, 1055, 4097, 128},
                 {2, 0, 1 << 20, 1025, 32},
                 {2, 0, 1 << 20, 1280, 32},
                 {2, 0, 1 << 20, 1281, 64},
                 {2, 0, 1 << 20, 2049, 32},
                 {2, 0, 1 << 20, 2305, 64},
                 {2, 0, 1 << 20, 2561, 128},
                 {2, 0, 2112, 1025, 32},
                 {2, 0, 2111, 1025, 64}};
    size_t i;
    (void)state;
    choice_context = new_context();
    for (i = 0; i < DTYPES * (sizeof cases / sizeof cases[0]); i++) {
        gpuloss_cross_entropy_desc d = some_cross_entropy();
        const size_t c = i / DTYPES;
        d.dtype = every_dtype[i % DTYPES].dtype;
        if (every_dtype[i % DTYPES].bytes != cases[c].bytes)
            continue;
        d.rows = cases[c].rows;
        /* They have that many whole vectors and begin anywhere: others are for blocks of their own. */
        d.classes = d.logits_stride = cases[c].vectors * 16 / cases[c].bytes + 1;
        d.grad_logits = cases[c].writes ? GPULOSS_PTR((uintptr_t)1 << 56) : NULL;
        expect_group(&d, "pipeline", cases[c].group, __LINE__);
        d.softcap = 30; /* which gives a thread of floats as many vectors as one of 16 bits */
        if (cases[c].bytes == 4 && cases[c].writes && cases[c].rows == 1 << 20)
            expect_group(&d, "pipeline",
                         cases[c].vectors <= 512    ? 32
                         : cases[c].vectors <= 1024 ? 64
                         : cases[c].vectors <= 2048 ? 128
                                                    : 256,
                         __LINE__);
    }
    gpuloss_destroy(choice_context);
}

/* Rows of one block each. A block has as few warps as have registers for a row, at 8 vectors a thread, or 4 with a
 * gradient. It has more where rows are few. Blocks get the same number of rows, and no more blocks run than a
 * multiprocessor has room for. With a gradient, many short rows are processed two in a row. The next row is prefetched
 * where a multiprocessor has less than 3750 vectors at a time. For floats in rows up to 1024 the limit is 2800. Rows of
 * 16 bits and more than 1024 vectors are always prefetched. */
static void blocks_of_rows(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        int writes;
        int64_t rows, vectors;
        unsigned threads, grid, run, ahead;
    } cases[] = {{GPULOSS_F32, 0, 1000000, 193, 32, 4220, 1, 0},   {GPULOSS_F32, 0, 1000000, 256, 32, 4220, 1, 0},
                 {GPULOSS_F32, 0, 1000000, 257, 64, 2110, 1, 0},   {GPULOSS_F32, 0, 1000000, 512, 64, 2110, 1, 0},
                 {GPULOSS_F32, 0, 1000000, 513, 96, 1320, 1, 0},   {GPULOSS_F32, 0, 32768, 1024, 128, 1024, 1, 0},
                 {GPULOSS_BF16, 0, 32768, 1025, 160, 781, 1, 0},   {GPULOSS_F32, 0, 32768, 2049, 288, 395, 1, 0},
                 {GPULOSS_F32, 0, 32768, 4096, 512, 263, 1, 0},    {GPULOSS_F32, 0, 132, 193, 256, 132, 1, 0},
                 {GPULOSS_F32, 0, 527, 1024, 256, 527, 1, 0},      {GPULOSS_F32, 0, 528, 1024, 128, 528, 1, 0},
                 {GPULOSS_F32, 0, 1, 1024, 512, 1, 1, 0},          {GPULOSS_F32, 1, 1000000, 97, 32, 4220, 2, 0},
                 {GPULOSS_F32, 1, 1000000, 128, 32, 4220, 2, 0},   {GPULOSS_F32, 1, 1000000, 129, 64, 2110, 2, 1},
                 {GPULOSS_F32, 1, 1000000, 250, 64, 2110, 2, 0},   {GPULOSS_F32, 1, 1000000, 257, 96, 1320, 2, 1},
                 {GPULOSS_F32, 1, 1000000, 280, 96, 1320, 2, 0},   {GPULOSS_F32, 1, 1000000, 279, 96, 1320, 2, 1},
                 {GPULOSS_F32, 1, 1000000, 511, 128, 1056, 2, 0},  {GPULOSS_F32, 1, 1000000, 512, 128, 1056, 1, 0},
                 {GPULOSS_F32, 1, 32768, 1024, 256, 521, 1, 0},    {GPULOSS_F32, 1, 32768, 1025, 288, 395, 1, 1},
                 {GPULOSS_F32, 1, 32768, 1300, 352, 263, 1, 1},    {GPULOSS_F32, 1, 32768, 1874, 480, 263, 1, 1},
                 {GPULOSS_F32, 1, 32768, 1875, 480, 263, 1, 0},    {GPULOSS_F32, 1, 32768, 2048, 512, 263, 1, 0},
                 {GPULOSS_F32, 1, 8447, 250, 64, 2112, 1, 0},      {GPULOSS_F32, 1, 8448, 250, 64, 2112, 2, 0},
                 {GPULOSS_F32, 1, 133, 1024, 512, 133, 1, 1},      {GPULOSS_F32, 1, 264, 512, 256, 264, 1, 1},
                 {GPULOSS_BF16, 1, 1000000, 250, 64, 2110, 2, 0},  {GPULOSS_BF16, 1, 1000000, 280, 96, 1320, 2, 1},
                 {GPULOSS_F16, 1, 1000000, 468, 128, 1056, 2, 1},  {GPULOSS_F16, 1, 1000000, 469, 128, 1056, 2, 0},
                 {GPULOSS_BF16, 1, 1000000, 512, 128, 1056, 1, 0}, {GPULOSS_BF16, 1, 1000000, 600, 160, 792, 2, 1},
                 {GPULOSS_BF16, 1, 1000000, 750, 192, 660, 1, 0},  {GPULOSS_BF16, 1, 32768, 1024, 256, 521, 1, 0},
                 {GPULOSS_BF16, 1, 32768, 1025, 288, 395, 1, 1},   {GPULOSS_BF16, 1, 32768, 2048, 512, 263, 1, 1}};
    size_t i;
    (void)state;
    choice_context = new_context();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t width = cases[i].dtype == GPULOSS_F32 ? 4 : 8;
        gpuloss_cross_entropy_desc d = some_cross_entropy();
        const fake_launched *l;
        const gpulossi_rows *rows;
        d.dtype = cases[i].dtype;
        d.rows = cases[i].rows;
        d.classes = cases[i].vectors * width;
        d.logits_stride = d.classes + width;
        d.grad_logits = cases[i].writes ? GPULOSS_PTR((uintptr_t)1 << 56) : NULL;
        l = expect_kernel(&d, "block_rows", __LINE__);
        rows = &l->parameters.rows;
        if (rows->group != cases[i].threads || l->block != cases[i].threads || l->grid != cases[i].grid ||
            rows->of.tile_rows != cases[i].run || ((rows->flags & GPULOSSI_FETCHES_AHEAD) != 0) != cases[i].ahead ||
            l->shared_bytes != 0)
            fail_msg("%lld rows of %lld vectors: %u blocks of %u threads (%u), %u in a row, flags %u, %u bytes",
                     (long long)cases[i].rows, (long long)cases[i].vectors, l->grid, l->block, rows->group,
                     rows->of.tile_rows, rows->flags, l->shared_bytes);
    }
    gpuloss_destroy(choice_context);
}

/* Rows that a block has to itself are of whole vectors, begin on 16 bytes, and so do their gradients; and they are numbered
 * by 30 bits. */
static void check_rows_of_no_block(gpuloss_cross_entropy_desc base) {
    const int bytes = every_dtype[base.dtype - GPULOSS_F32].bytes, has = has_more_than_pipeline(base.dtype);
    const char *whole = has ? "block_rows" : "pipeline", *other = "pipeline";
    gpuloss_cross_entropy_desc d;
    base.rows = 1000;
    base.classes = 300 * 16 / bytes;
    base.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56);
    TAKES((void)0, whole);
    TAKES(d.lse_in = AT(6), whole);
    TAKES((d.lse_in = AT(6), d.classes = 2048 * 16 / bytes), whole);
    TAKES((d.lse_in = AT(6), d.classes = 2049 * 16 / bytes), "pipeline");
    TAKES(d.logits_stride = d.classes + 16 / bytes, whole);
    TAKES(d.logits_stride = d.classes + 1, other);
    TAKES(d.logits = (const char *)d.logits + bytes, other);
    TAKES(d.grad_logits_stride = d.classes + 16 / bytes, whole);
    TAKES(d.grad_logits_stride = d.classes + 1, other);
    TAKES(d.grad_logits = (char *)d.grad_logits + bytes, other);
    TAKES((d.classes--, d.logits_stride = d.grad_logits_stride = d.classes + 1), other);
    TAKES(d.rows = (1 << 30) - 1, whole);
    TAKES(d.rows = 1 << 30, other);
}

static void rows_of_no_block(void **state) {
    (void)state;
    on_every_dtype(new_context(), check_rows_of_no_block);
}

/* Rows without a gap between them, as many as a warp takes at a time in a slot; the next ones start on 16 bytes. */
static void check_packed_rows(gpuloss_cross_entropy_desc base) {
    const int bytes = every_dtype[base.dtype - GPULOSS_F32].bytes, has = has_more_than_pipeline(base.dtype);
    const char *packed = has ? "packed_smem" : "row_memory", *of_few = has ? "packed_reg" : "row_thread";
    const char *shorts = bytes == 2 ? "row_thread" : "row_memory";
    gpuloss_cross_entropy_desc d;
    base.classes = 60;
    TAKES((void)0, packed);
    TAKES(d.grad_logits = NULL, packed);
    TAKES((d.grad_logits = NULL, d.grad_logits_stride = d.classes + 16), packed);
    TAKES(d.lse_in = AT(6), packed);
    TAKES((d.grad_logits = NULL, d.lse_in = AT(6)), shorts);
    TAKES(d.logits_stride = d.classes + 16, shorts);
    TAKES(d.grad_logits_stride = d.classes + 16, shorts);
    TAKES(d.logits = (const char *)d.logits + 8, bytes == 2 || has || bytes == 8 ? "row_thread" : "row_memory");
    TAKES(d.grad_logits = (char *)d.grad_logits + 8, shorts);
    TAKES(d.softcap = 2.0, "row_thread");
    TAKES(d.inner = 8, "row_thread");
    TAKES(d.classes = 1, of_few);
    TAKES((d.classes = 1, d.grad_logits = NULL), of_few);
    TAKES((d.classes = 1, d.lse_in = AT(6)), of_few);
    TAKES(d.classes = 22, has ? of_few : "row_memory");
    TAKES(d.classes = 23, bytes == 4 ? packed : of_few);
    TAKES(d.classes = 24, packed);
    TAKES(d.rows = 0, packed);
    assert_int_equal(last_launch()->grid, 1);
    packed = has ? packed : "pipeline";
    TAKES(d.classes = 3584 / bytes, packed);
    TAKES(d.classes = 3600 / bytes, has ? "block_rows" : "pipeline");
    TAKES((d.classes = 3600 / bytes, d.lse_in = AT(6)), has ? "block_rows" : "pipeline");
    TAKES(d.classes = 3608 / bytes, packed);
    TAKES(d.classes = 4096 / bytes, has ? "block_rows" : "pipeline");
    TAKES(d.classes = 4100 / bytes, "pipeline");
    TAKES((d.classes = 4100 / bytes, d.grad_logits = NULL), "pipeline");
    TAKES((d.classes = 4112 / bytes, d.grad_logits = NULL), has ? "block_rows" : "pipeline");
    TAKES((d.classes = 4096 / bytes - 1, d.grad_logits = NULL), "pipeline");
    TAKES((d.classes = 1 << 30, d.grad_logits = NULL), "pipeline");
    /* 8 rows of an odd number of shorts are whole vectors, and 4 rows of as many floats; half of them are not. */
    TAKES(d.classes = 257, packed);
    TAKES(d.classes = 767, packed);
    TAKES((d.grad_logits = NULL, d.classes = 767), packed);
    TAKES(d.classes = 769, "pipeline");
    TAKES((d.grad_logits = NULL, d.classes = 769), "pipeline");
    TAKES(d.classes = 770, packed);
}

static void packed_rows(void **state) {
    (void)state;
    on_every_dtype(new_context(), check_packed_rows);
}

/* The loss alone: not of rows of whole vectors and more than 3584 bytes, of floats 3072. */
static void packed_losses(void **state) {
    static const struct {
        int64_t classes;
        const char *floats, *halves;
    } cases[] = {
        {1, "packed_reg", "packed_reg"},      {31, "packed_smem", "packed_smem"},  {32, "packed_smem", "packed_smem"},
        {33, "packed_smem", "packed_smem"},   {36, "packed_smem", "packed_smem"},  {512, "packed_smem", "packed_smem"},
        {513, "packed_smem", "packed_smem"},  {514, "packed_smem", "packed_smem"}, {516, "packed_smem", "packed_smem"},
        {600, "packed_smem", "packed_smem"},  {767, "packed_smem", "packed_smem"}, {768, "packed_smem", "packed_smem"},
        {769, "pipeline", "pipeline"},        {770, "packed_smem", "packed_smem"}, {772, "block_rows", "packed_smem"},
        {1022, "packed_smem", "packed_smem"}, {1023, "pipeline", "pipeline"},      {1024, "block_rows", "packed_smem"},
        {1025, "pipeline", "pipeline"},       {1026, "pipeline", "packed_smem"},   {1792, "block_rows", "packed_smem"},
        {1800, "block_rows", "block_rows"},   {1804, "block_rows", "packed_smem"}, {2048, "block_rows", "block_rows"},
        {2050, "pipeline", "pipeline"}};
    size_t i, t;
    (void)state;
    choice_context = new_context();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (t = 0; t < DTYPES; t++) {
            gpuloss_cross_entropy_desc d = some_cross_entropy();
            d.dtype = every_dtype[t].dtype;
            d.classes = cases[i].classes;
            d.grad_logits = NULL;
            if (d.dtype != GPULOSS_F64)
                expect_kernel(&d, every_dtype[t].bytes == 2 ? cases[i].halves : cases[i].floats, __LINE__);
        }
    gpuloss_destroy(choice_context);
}

/* As many rows as a warp takes at a time, as often as they fit the slot and each warp has a slot of them. Of the slots there
 * are three in 12 KiB, two where a lane gets more rows then, or one where a half would not have two rows of each lane. For
 * losses of 16 bits the ring is smaller, where more blocks have more bytes in theirs. */
static void slots_of_packed_rows(void **state) {
    static const struct {
        int writes, bytes;
        int64_t rows, classes;
        unsigned group, slots, ring_bytes;
    } cases[] = {{1, 4, 1 << 20, 1, 1, 192, 12288},
                 {1, 4, 1 << 20, 5, 1, 192, 12288},
                 {1, 4, 1 << 20, 6, 1, 192, 12288},
                 {1, 4, 1 << 20, 8, 1, 192, 12288},
                 {1, 4, 1 << 20, 9, 1, 160, 12288},
                 {1, 4, 1 << 20, 10, 1, 128, 12288},
                 {1, 4, 1 << 20, 21, 1, 64, 12288},
                 {1, 4, 1 << 20, 24, 1, 64, 12288},
                 {1, 4, 1 << 20, 25, 1, 96, 12288},
                 {1, 4, 1 << 20, 32, 1, 96, 12288},
                 {1, 4, 1 << 20, 33, 1, 64, 12288},
                 {1, 4, 1 << 20, 48, 1, 64, 12288},
                 {1, 4, 1 << 20, 49, 1, 32, 12288},
                 {1, 4, 1 << 20, 96, 1, 32, 12288},
                 {1, 4, 1 << 20, 97, 2, 16, 12288},
                 {1, 4, 1 << 20, 256, 4, 8, 12288},
                 {1, 4, 1 << 20, 513, 8, 4, 12288},
                 {1, 4, 1 << 20, 768, 8, 4, 12288},
                 {1, 4, 1 << 20, 770, 16, 2, 12288},
                 {1, 4, 1 << 20, 1022, 16, 2, 12288},
                 {1, 2, 1 << 20, 10, 1, 192, 12288},
                 {1, 2, 1 << 20, 64, 1, 96, 12288},
                 {1, 2, 1 << 20, 65, 1, 64, 12288},
                 {1, 2, 1 << 20, 192, 1, 32, 12288},
                 {1, 2, 1 << 20, 193, 2, 16, 12288},
                 {1, 2, 1 << 20, 256, 2, 16, 12288},
                 {1, 2, 1 << 20, 1000, 8, 4, 12288},
                 {1, 2, 1 << 20, 2044, 16, 2, 12288},
                 {1, 2, 1 << 20, 48, 1, 64, 12288},
                 {1, 2, 1 << 20, 49, 1, 96, 12288},
                 {0, 4, 1 << 20, 23, 1, 64, 12288},
                 {0, 4, 1 << 20, 64, 1, 32, 12288},
                 {0, 4, 1 << 20, 256, 4, 8, 12288},
                 {0, 2, 1 << 20, 23, 1, 128, 12288},
                 {0, 2, 1 << 20, 24, 1, 128, 12288},
                 {0, 2, 1 << 20, 38, 1, 64, 9728},
                 {0, 2, 1 << 20, 39, 1, 64, 12288},
                 {0, 2, 1 << 20, 64, 1, 96, 12288},
                 {0, 2, 1 << 20, 152, 1, 32, 9728},
                 {0, 2, 1 << 20, 153, 1, 32, 12288},
                 {0, 2, 1 << 20, 192, 1, 32, 12288},
                 {0, 2, 1 << 20, 256, 2, 16, 9728},
                 {0, 2, 1 << 20, 350, 2, 16, 12288},
                 {0, 2, 1 << 20, 701, 4, 8, 12288},
                 {0, 2, 1 << 20, 767, 4, 8, 12288},
                 {0, 2, 1 << 20, 1000, 8, 4, 9728},
                 /* Few rows: 16 warps for each of 132 multiprocessors are 2112, and 20 are 2640. */
                 {1, 2, 6 * 32 * 2112, 10, 1, 192, 12288},
                 {1, 2, 6 * 32 * 2112 - 1, 10, 1, 160, 12288},
                 {1, 2, 2 * 32 * 2112, 10, 1, 64, 12288},
                 {1, 2, 2 * 32 * 2112 - 1, 10, 1, 32, 12288},
                 {1, 2, 1, 10, 1, 32, 12288},
                 {0, 2, 3 * 32 * 2640, 49, 1, 96, 9728},
                 {0, 2, 3 * 32 * 2640 - 1, 49, 1, 64, 9728}};
    size_t i;
    (void)state;
    choice_context = new_context();
    for (i = 0; i < DTYPES * (sizeof cases / sizeof cases[0]); i++) {
        gpuloss_cross_entropy_desc d = some_cross_entropy();
        const size_t c = i / DTYPES;
        const fake_launched *l;
        int64_t blocks, of_block;
        d.dtype = every_dtype[i % DTYPES].dtype;
        if (every_dtype[i % DTYPES].bytes != cases[c].bytes)
            continue;
        d.rows = cases[c].rows;
        d.classes = cases[c].classes;
        d.grad_logits = cases[c].writes ? GPULOSS_PTR((uintptr_t)1 << 56) : NULL;
        l = expect_kernel(&d, d.classes <= (cases[c].bytes == 2 ? 23 : 22) ? "packed_reg" : "packed_smem", __LINE__);
        if (l->parameters.rows.group != cases[c].group || l->parameters.rows.of.tile_rows != cases[c].slots ||
            l->parameters.rows.ring_bytes != cases[c].ring_bytes)
            fail_msg("case %d: %u lanes a row, %u rows a slot, %u bytes of slots", (int)c, l->parameters.rows.group,
                     l->parameters.rows.of.tile_rows, l->parameters.rows.ring_bytes);
        of_block = l->block / 32 * (int64_t)cases[c].slots;
        blocks = (cases[c].rows + of_block - 1) / of_block;
        assert_int_equal(l->grid, blocks < blocks_at_once(l) ? blocks : blocks_at_once(l));
        assert_int_equal(l->shared_bytes, l->block / 32 * cases[c].ring_bytes);
    }
    gpuloss_destroy(choice_context);
}

/* With options a thread gets about four vectors, wherever the row begins. */
static void groups_of_rows_with_options(void **state) {
    size_t t;
    int soft;
    (void)state;
    fake.major = 6; /* newer GPUs have short rows in tiles */
    choice_context = new_context();
    for (t = 0; t < DTYPES; t++)
        for (soft = 0; soft < 2; soft++) {
            gpuloss_cross_entropy_desc even = some_cross_entropy(), d;
            const int at_once = GPULOSSI_VECTORS_STREAMED / (every_dtype[t].bytes == 8 ? 2 : 1);
            unsigned group;
            even.dtype = every_dtype[t].dtype;
            even.softcap = 2.0;
            if (soft)
                give_probabilities(&even);
            for (group = 1; group <= GPULOSSI_BLOCK; group *= 2) {
                unsigned next = group < GPULOSSI_BLOCK ? 2 * group : group;
                even.classes = (int64_t)group * at_once * 16 / every_dtype[t].bytes;
                d = even;
                expect_group(&d, "memory", group, __LINE__);
                d.classes++;
                expect_group(&d, "memory", next, __LINE__);
                d = even;
                d.logits_stride = d.classes + 1;
                expect_group(&d, "memory", next, __LINE__);
                d = even;
                d.rows = 100000;
                d.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56);
                if (even.dtype == GPULOSS_F64) /* many rows of doubles have fewer threads each */
                    expect_group(&d, "memory", group > 8 ? group * 2 / GPULOSSI_F64_VECTORS : 1, __LINE__);
                else
                    expect_group(&d, "memory", group, __LINE__);
            }
        }
    gpuloss_destroy(choice_context);
}

/* Columns whose classes fit no tile, or of older GPUs. Up to 8 threads share a column, with 4 vectors each if fewer
 * suffice, and a block has as many columns as fit. */
static void expect_columns(int64_t rows, int64_t classes, unsigned group) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    const uint64_t columns = GPULOSSI_BLOCK / group, blocks = ((uint64_t)rows + columns - 1) / columns;
    const fake_launched *l;
    d.inner = 2;
    d.rows = rows;
    d.classes = classes;
    d.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56);
    l = expect_kernel(&d, "memory", __LINE__);
    assert_int_equal(l->module->words[GPULOSSI_FORMAT_WORD], GPULOSSI_FORMAT_COLUMNS);
    assert_int_equal(l->parameters.rows.group, group);
    assert_int_equal(l->grid, blocks < 8 * 132 ? blocks : 8 * 132);
}

/* A vector of a column has as many classes as one of a row. The text knows the gradient's type. */
static void check_types_of_columns(gpuloss_cross_entropy_desc d) {
    const int64_t width = 16 / every_dtype[d.dtype - GPULOSS_F32].bytes;
    const uint32_t own = d.dtype == GPULOSS_BF16 ? GPULOSSI_FORMAT_BF16 : 0;
    d.inner = 2;
    d.grad_dtype = d.dtype == GPULOSS_F32 ? GPULOSS_F64 : GPULOSS_F32;
    d.classes = 8 * width;
    expect_group(&d, "memory", 2, __LINE__);
    assert_int_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD],
                     GPULOSSI_FORMAT_COLUMNS | own |
                         (d.dtype == GPULOSS_F32 ? GPULOSSI_FORMAT_F64 : GPULOSSI_FORMAT_F32)
                             << GPULOSSI_FORMAT_GRADIENT_SHIFT);
    d.classes++;
    expect_group(&d, "memory", 4, __LINE__);
}

static void types_of_columns(void **state) {
    (void)state;
    fake.major = 6;
    on_every_dtype(new_context(), check_types_of_columns);
}

static void groups_of_columns(void **state) {
    static const struct {
        int64_t classes;
        unsigned group;
    } of_classes[] = {{1, 1}, {16, 1}, {17, 2}, {32, 2}, {33, 4}, {64, 4}, {65, 8}, {1000, 8}, {100000, 8}};
    static const int64_t rows[] = {2, 64, 66, 128, 130, 512, 514, 1000, 1 << 20, 1 << 24};
    size_t c, r;
    (void)state;
    choice_context = new_context();
    for (r = 0; r < sizeof rows / sizeof rows[0]; r++)
        expect_columns(rows[r], 161, 8);
    gpuloss_destroy(choice_context);
    fake.major = 6;
    choice_context = new_context();
    for (c = 0; c < sizeof of_classes / sizeof of_classes[0]; c++)
        for (r = 0; r < sizeof rows / sizeof rows[0]; r++)
            expect_columns(rows[r], of_classes[c].classes, of_classes[c].group);
    gpuloss_destroy(choice_context);
}

/* Columns by vectors, where there are enough of them, all on 16 bytes: warps share the classes of 256 bytes of them,
 * or one has them all. */
static void check_planes(gpuloss_cross_entropy_desc base) {
    const int bytes = every_dtype[base.dtype - GPULOSS_F32].bytes, width = 16 / bytes;
    const char *planes = bytes < 8 && fake.major >= 8 ? "column_smem" : "row_thread";
    const char *of_few = bytes < 8 && fake.major >= 8 ? "column_reg" : "row_thread";
    gpuloss_cross_entropy_desc d;
    base.inner = width;
    base.rows = fake.multiprocessors * 2 * 256 / bytes;
    base.classes = 23;
    TAKES((void)0, planes);
    if (strcmp(planes, "column_smem") == 0) {
        assert_int_equal(last_launch()->grid, fake.multiprocessors * 2 / 4);
        assert_int_equal(last_launch()->parameters.rows.group, 64);
    }
    TAKES(d.rows += width, planes);
    if (strcmp(planes, "column_smem") == 0)
        assert_int_equal(last_launch()->grid, fake.multiprocessors * 2 / 4 + 1);
    TAKES(d.rows -= width, "row_thread");
    TAKES(d.classes = 22, of_few);
    if (strcmp(planes, "column_smem") == 0) {
        assert_int_equal(last_launch()->grid, fake.multiprocessors * 2 / 8);
        assert_int_equal(last_launch()->parameters.rows.group, 32);
    }
    TAKES((d.classes = 22, d.rows -= width), "row_thread");
    if (bytes < 8)
        TAKES((d.inner = width / 2, d.classes = 16), "row_thread");
    TAKES(d.logits = (const char *)d.logits + 8, "row_thread");
    TAKES(d.grad_logits = (char *)d.grad_logits + 8, "row_thread");
    TAKES(d.grad_logits = NULL, planes);
    TAKES(d.softcap = 2.0, "row_thread");
    TAKES(d.inner *= 2, planes);
    TAKES(d.classes = 30, planes);
    if (strcmp(planes, "column_smem") == 0)
        assert_int_equal(last_launch()->parameters.rows.group, 64);
    TAKES(d.classes = 31, planes);
    if (strcmp(planes, "column_smem") == 0)
        assert_int_equal(last_launch()->parameters.rows.group, 128);
}

static void planes_of_columns(void **state) {
    (void)state;
    on_every_dtype(new_context(), check_planes);
    on_every_dtype(new_context_without_clusters(), check_planes);
    fake.major = 8;
    on_every_dtype(new_context(), check_planes);
    fake.major = 7;
    on_every_dtype(new_context(), check_planes);
}

/* Vectors are of the logits where classes are innermost, and nowhere else: what begins on 16 bytes is told. */
static void even_rows(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    choice_context = new_context();
#define EVEN(change, expected)                                                                                         \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_ok(gpuloss_cross_entropy(choice_context, &d, NULL));                                                        \
    assert_int_equal((last_launch()->parameters.rows.flags & GPULOSSI_EVEN) != 0, expected)
    EVEN((void)0, 1);
    EVEN(d.softcap = 1.0, 1);
    EVEN((d.softcap = 1.0, d.grad_logits_stride = 1001), 1);
    EVEN((d.softcap = 1.0, d.logits_stride = 1001), 0);
    EVEN((d.softcap = 1.0, d.logits = (const char *)d.logits + 4), 0);
    EVEN((give_probabilities(&d), d.target_probabilities_stride = 1001), 1);
    EVEN(d.inner = 1, 1);
    EVEN(d.inner = 4, 0);
    gpuloss_destroy(choice_context);
}

int choice_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(options_leave_the_basic_kernels),
        TEST(options_leave_the_basic_kernels_of_clusters),
        TEST(long_rows_that_are_written),
        TEST(rows_beside_their_weights),
        TEST(long_rows_that_are_few),
        TEST(long_doubles_with_a_softcap),
        TEST(long_rows_that_are_read),
        TEST(long_rows_that_are_none),
        TEST(shards_leave_the_basic_kernels),
        TEST(rows_in_registers),
        TEST(groups_of_the_pipeline),
        TEST(blocks_of_rows),
        TEST(rows_of_no_block),
        TEST(packed_rows),
        TEST(packed_losses),
        TEST(slots_of_packed_rows),
        TEST(groups_of_rows_with_options),
        TEST(types_of_columns),
        TEST(groups_of_columns),
        TEST(planes_of_columns),
        TEST(even_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) + few_option_tests() + tile_tests();
}
