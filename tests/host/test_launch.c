/* How the work is spread: the rules that every launch obeys, over many shapes. */
#include "check.h"

static const int64_t sizes[] = {1,    2,    3,    5,    7,    8,     31,    33,    64,     127,   256,
                                1000, 1023, 1024, 4096, 4097, 10000, 32768, 50257, 128256, 262144};
enum { SIZES = sizeof sizes / sizeof sizes[0] };
static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F64, GPULOSS_F16, GPULOSS_BF16};

/* No step of a cluster's slots is empty, and the slots fit in shared memory. Rows that are not retained pass through the
 * slots. In the pipeline a slot is a row. */
static void is_sound_in_clusters(const fake_launched *l, int64_t vectors, int arrays) {
    const gpulossi_rows *rows = &l->parameters.rows;
    const int is_wide = l->block == FAKE_WIDE_BLOCK, is_small = l->block == 128;
    const int has_more = is_wide || is_pipeline_of_divergences(l->entry);
    const int64_t most = (has_more ? fake.wide_clusters : fake.active_clusters)[l->cluster];
    const int64_t threads = (int64_t)l->block * l->cluster;
    const unsigned slots = 16 / (unsigned)arrays;
    assert_true(is_wide ? (l->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_WIDE) != 0
                        : l->block == fake_threads_of(l->entry));
    assert_int_equal(rows->group, 256);
    assert_int_equal(l->grid % l->cluster, 0);
    assert_int_equal(l->grid / l->cluster, rows->rows < most ? rows->rows : most);
    assert_int_equal(l->shared_bytes, has_more ? 98304 : is_small ? 32768 : 65536);
    if (strstr(l->entry, "_pipeline_") != NULL) {
        assert_int_equal(rows->of.tile_rows, 1);
        return;
    }
    assert_in_range(rows->of.smem_vectors, 4, slots);
    assert_int_equal(rows->of.smem_vectors % 4, 0);
    assert_true((rows->of.smem_vectors - 4) * threads <= vectors); /* one more may be counted */
    assert_true(rows->of.smem_vectors * threads >= vectors || rows->of.smem_vectors == slots);
}

/* A tile has some times as many rows as a block takes at once, and they fit the shared memory. */
static void is_sound_of_tiles(const fake_launched *l) {
    const gpulossi_rows *rows = &l->parameters.rows;
    assert_in_range(rows->group, 1, 32);
    assert_in_range(rows->of.tile_rows, 128 / rows->group, UINT32_MAX);
    assert_int_equal(rows->of.tile_rows % (128 / rows->group), 0);
    assert_in_range(tile_bytes_of(l, rows->of.tile_rows), 1, l->shared_bytes);
}

/* Packed rows of a slot: some times as many as a warp takes at a time, and whole vectors, for which a warp has room. */
static void is_sound_of_slots(const fake_launched *l) {
    const gpulossi_rows *rows = &l->parameters.rows;
    const uint64_t row = (uint64_t)rows->classes * (strstr(l->entry, "f32") != NULL ? 4 : 2),
                   bytes = rows->of.tile_rows * row;
    const int is_pair = strstr(l->entry, "_logits_packed_") != NULL, may_have_less = strstr(l->entry, "f32") == NULL;
    const int is_reg = strstr(l->entry, "_packed_reg_") != NULL,
              is_short = is_pair ? 32 * row <= 4096 : 128 * row <= rows->ring_bytes;
    assert_in_range(rows->group, 1, 32);
    assert_in_range(rows->of.tile_rows, 1, GPULOSSI_PACKED_ROWS);
    assert_int_equal(rows->of.tile_rows % (32 / rows->group), 0);
    if (is_pair)
        assert_true(rows->ring_bytes == 8192 || (rows->ring_bytes == 4096 && may_have_less));
    else
        assert_true(rows->ring_bytes == 12288 ||
                    (rows->ring_bytes == 9728 && may_have_less && !is_reg && rows->grad == 0));
    assert_in_range(bytes, 1, !is_short ? rows->ring_bytes : is_pair ? 4096 : rows->ring_bytes / 2);
    assert_int_equal(bytes % 16, 0);
}

/* scratch_bytes: what the query for a workspace says. */
static void is_sound(gpuloss_context *context, const fake_launched *l, size_t scratch_bytes) {
    const gpulossi_rows *rows = &l->parameters.rows;
    const uint64_t at_once = blocks_at_once(l);
    const int is_packed = strstr(l->entry, "_packed_") != NULL, has_block = strstr(l->entry, "_block_rows_") != NULL;
    const int is_pipeline = strstr(l->entry, "_pipeline_") != NULL;
    const int is_tile = strstr(l->entry, "_row_thread_") != NULL;
    gpuloss_info info;
    uint64_t rows_of_block;
    expect_ok(gpuloss_get_info(context, &info));
    assert_int_equal(info.multiprocessors, fake.multiprocessors);
    assert_int_equal(l->shared_bytes, shared_bytes_of(l));
    if (is_packed)
        is_sound_of_slots(l);
    else
        assert_int_equal(rows->ring_bytes, 0);
    if (is_tile)
        is_sound_of_tiles(l);
    else if (is_pipeline)
        assert_true(rows->group >= 32 && (rows->of.tile_rows == 1 || rows->of.tile_rows == 4));
    else if (!is_packed && !has_block)
        assert_int_equal(rows->of.tile_rows, 0);
    assert_int_equal(l->cluster, 0);
    if (has_block) {
        assert_in_range(rows->of.tile_rows, 1, rows->grad != 0 ? 2 : 1);
        assert_in_range(l->block, 32, GPULOSSI_ROW_THREADS);
        assert_int_equal(l->block, rows->group);
        assert_in_range(l->grid, 1, fake.multiprocessors * 2 * GPULOSSI_ROW_THREADS / (int)l->block);
        assert_true(rows->rows == 0 || l->grid <= rows->rows);
        return;
    }
    assert_int_equal(l->block, fake_threads_of(l->entry));
    assert_in_range(l->grid, 1, at_once);
    assert_true(rows->group >= 1);
    assert_int_equal(rows->group & (rows->group - 1), 0);
    assert_true(rows->group <= l->block);
    if (rows->group > 32)
        assert_true(l->block / rows->group <= GPULOSSI_GROUPS);
    assert_true(rows->scratch != 0);
    assert_int_equal(scratch_bytes, sizeof(gpulossi_scratch));
    /* No block of the grid is without a row, unless there is no row at all, and none that could run is missing. */
    rows_of_block = is_tile     ? rows->of.tile_rows
                    : is_packed ? rows->of.tile_rows * l->block / 32
                                : l->block / rows->group;
    if (rows->rows > 0)
        assert_true(l->grid * rows_of_block < (uint64_t)rows->rows + rows_of_block);
    assert_true(l->grid * rows_of_block >= (uint64_t)rows->rows || l->grid == at_once);
}

/* Whether every row of an array begins on 16 bytes, looked at row by row. */
static int is_even(const void *base, int64_t stride, int64_t element) {
    int64_t row;
    for (row = 0; row < 16; row++)
        if (((uintptr_t)base + (uintptr_t)(row * stride * element)) % 16 != 0)
            return 0;
    return 1;
}

static int64_t bytes_of(gpuloss_dtype dtype) {
    return dtype == GPULOSS_F64 ? 8 : dtype == GPULOSS_F32 ? 4 : 2;
}

/* Vectors of 16 bytes that a row touches, at most, over the ways in which the rows can lie. */
static int64_t vectors_touched(uintptr_t base, int64_t stride, int64_t classes, int64_t element) {
    int64_t most = 0, row;
    for (row = 0; row < 16; row++) {
        uintptr_t first = base + (uintptr_t)(row * stride * element), last = first + (uintptr_t)(classes * element) - 1;
        int64_t touched = (int64_t)(last / 16 - first / 16) + 1;
        most = touched > most ? touched : most;
    }
    return most;
}

/* A row of logits that was launched either way. */
static void is_sound_either_way(gpuloss_context *context, const gpuloss_cross_entropy_desc *d, size_t scratch_bytes) {
    const fake_launched *l = last_launch();
    const int64_t element = bytes_of(d->dtype), stride = d->logits_stride != 0 ? d->logits_stride : d->classes;
    if (l->cluster != 0)
        is_sound_in_clusters(l, vectors_touched((uintptr_t)d->logits, stride, d->classes, element), 1);
    else
        is_sound(context, l, scratch_bytes);
}

/* The rows are those of the call. */
static void is_cut_as_given(const fake_launched *l, int64_t rows, int64_t classes) {
    assert_int_equal(l->parameters.rows.rows, rows);
    assert_int_equal(l->parameters.rows.classes, classes);
    assert_int_equal(l->parameters.rows.last_classes, classes);
}

static void says_if_even(const fake_launched *l, const void *base, int64_t stride, gpuloss_dtype dtype) {
    assert_int_equal((l->parameters.rows.flags & GPULOSSI_EVEN) != 0, is_even(base, stride, bytes_of(dtype)));
}

/* For gradients that overlap no input, whatever the shape is. */
#define DISTANT GPULOSS_PTR((uintptr_t)1 << 56)

typedef void shape_function(gpuloss_context *context, gpuloss_dtype dtype, int64_t rows, int64_t classes);

static void on_every_shape(shape_function *check) {
    gpuloss_context *context = new_context();
    size_t t, r, c;
    for (t = 0; t < 4; t++)
        for (r = 0; r < SIZES; r++)
            for (c = 0; c < SIZES; c++)
                check(context, dtypes[t], sizes[r], sizes[c]);
    gpuloss_destroy(context);
}

static void check_cross_entropy(gpuloss_context *context, gpuloss_dtype dtype, int64_t rows, int64_t classes) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    const fake_launched *l;
    size_t bytes;
    d.dtype = dtype;
    d.rows = rows;
    d.classes = classes;
    d.grad_logits = DISTANT;
    fake.launches = 0;
    expect_ok(gpuloss_cross_entropy_workspace(context, &d, &bytes));
    expect_ok(gpuloss_cross_entropy(context, &d, NULL));
    assert_int_equal(fake.launches, 2);
    assert_string_equal(fake.launch[0].entry, PREPARE_KERNEL);
    assert_int_equal(fake.launch[0].block, GPULOSSI_BLOCK);
    assert_in_range(fake.launch[0].grid, 1, 4 * fake.multiprocessors);
    l = last_launch();
    is_sound_either_way(context, &d, bytes);
    is_cut_as_given(l, rows, classes);
    assert_non_null(strstr(l->entry, "_entropy_"));
    says_if_even(l, d.logits, classes, dtype);
}

static void cross_entropy_shapes(void **state) {
    static const int multiprocessors[] = {1, 20, 132, 255};
    size_t i;
    (void)state;
    for (i = 0; i < 2 * (sizeof multiprocessors / sizeof multiprocessors[0]); i++) {
        fake_reset();
        fake_set_current(&fake.context[2]);
        fake.multiprocessors = multiprocessors[i / 2];
        fake.has_clusters = i % 2;
        on_every_shape(check_cross_entropy);
    }
}

/* Rows cut anew hold every element once: all of one length and one after the other, the last one shorter or not. */
static void covers_everything(const fake_launched *l, int64_t elements) {
    const gpulossi_kl_div *p = &l->parameters.kl_div;
    assert_in_range(p->rows.last_classes, 1, p->rows.classes);
    assert_int_equal((p->rows.rows - 1) * p->rows.classes + p->rows.last_classes, elements);
    assert_int_equal(p->input_stride, p->rows.classes);
    assert_int_equal(p->target_stride, p->rows.classes);
    assert_int_equal(p->elements_stride, p->rows.classes);
    assert_int_equal(p->rows.grad_stride, p->rows.classes);
}

static void check_kl_div(gpuloss_context *context, gpuloss_dtype dtype, int64_t rows, int64_t classes) {
    int rows_wanted; /* 2: by an option */
    for (rows_wanted = 0; rows_wanted < 3; rows_wanted++) {
        gpuloss_kl_div_desc d = some_kl_div();
        const fake_launched *l;
        size_t bytes;
        d.dtype = dtype;
        d.rows = rows;
        d.classes = classes;
        d.grad_input = DISTANT;
        d.loss_rows = rows_wanted == 1 ? AT(6) : NULL;
        d.row_weights = rows_wanted == 2 ? AT(6) : NULL;
        fake.launches = 0;
        expect_ok(gpuloss_kl_div_workspace(context, &d, &bytes));
        expect_ok(gpuloss_kl_div(context, &d, NULL));
        assert_int_equal(fake.launches, 1);
        l = last_launch();
        if (l->cluster != 0) {
            assert_non_null(strstr(l->entry, "_kl_div_row_pipeline_"));
            is_sound_in_clusters(l, vectors_touched((uintptr_t)d.input, classes, classes, bytes_of(dtype)), 2);
        } else {
            is_sound(context, l, bytes);
        }
        says_if_even(l, d.input, l->parameters.kl_div.input_stride, dtype);
        if (rows_wanted)
            is_cut_as_given(l, rows, classes);
        else
            covers_everything(l, rows * classes);
    }
}

static void kl_div_shapes(void **state) {
    (void)state;
    on_every_shape(check_kl_div);
}

static void check_kl_div_of_logits(gpuloss_context *context, gpuloss_dtype dtype, int64_t rows, int64_t classes) {
    gpuloss_kl_div_desc d = some_kl_div();
    int writes;
    d.dtype = dtype;
    d.input_kind = d.target_kind = GPULOSS_LOGITS;
    d.rows = rows;
    d.classes = classes;
    d.target = GPULOSS_PTR((uintptr_t)1 << 55);
    for (writes = 0; writes < 2; writes++) {
        d.grad_input = writes ? DISTANT : NULL;
        fake.launches = 0;
        expect_ok(gpuloss_kl_div(context, &d, NULL));
        assert_int_equal(fake.launches, 1);
        if (last_launch()->cluster != 0)
            is_sound_in_clusters(last_launch(), vectors_touched((uintptr_t)d.input, classes, classes, bytes_of(dtype)),
                                 2);
        else
            is_sound(context, last_launch(), sizeof(gpulossi_scratch));
    }
}

static void kl_div_shapes_of_logits(void **state) {
    (void)state;
    on_every_shape(check_kl_div_of_logits);
}

static void check_kl_div_sparse(gpuloss_context *context, gpuloss_dtype dtype, int64_t rows, int64_t classes) {
    gpuloss_kl_div_sparse_desc d = some_kl_div_sparse();
    const fake_launched *l;
    size_t bytes;
    int64_t most;
    d.dtype = dtype;
    d.rows = rows;
    d.classes = classes;
    d.grad_logits = DISTANT;
    for (most = 512; most <= 1024; most *= 2) {
        d.k = classes < most ? classes : most;
        fake.launches = 0;
        expect_ok(gpuloss_kl_div_sparse_workspace(context, &d, &bytes));
        expect_ok(gpuloss_kl_div_sparse(context, &d, NULL));
        assert_int_equal(fake.launches, 1);
        l = last_launch();
        if (l->cluster != 0)
            is_sound_in_clusters(l, vectors_touched((uintptr_t)d.logits, classes, classes, bytes_of(dtype)), 1);
        else
            is_sound(context, l, bytes);
        is_cut_as_given(l, rows, classes);
    }
}

static void kl_div_sparse_shapes(void **state) {
    (void)state;
    on_every_shape(check_kl_div_sparse);
}

/* A row in registers fits the registers of its threads, wherever it begins. */
static void rows_fit_in_registers(void **state) {
    gpuloss_context *context = new_context();
    size_t t;
    (void)state;
    for (t = 0; t < 4; t++) {
        int64_t element = bytes_of(dtypes[t]), width = 16 / element;
        int64_t vectors, off, lead, padding;
        for (vectors = 1; vectors <= 4096; vectors *= 2)
            for (off = -width - 1; off <= width + 1; off++)
                for (lead = 0; lead < width; lead++)
                    for (padding = 0; padding < 3; padding++) {
                        gpuloss_cross_entropy_desc d = some_cross_entropy();
                        const fake_launched *l;
                        d.dtype = dtypes[t];
                        d.logits = (const char *)d.logits + lead * element;
                        d.classes = vectors * width + off;
                        if (d.classes < 1)
                            continue;
                        d.logits_stride = d.classes + padding;
                        fake.launches = 0;
                        expect_ok(gpuloss_cross_entropy(context, &d, NULL));
                        l = last_launch();
                        is_sound_either_way(context, &d, sizeof(gpulossi_scratch));
                        says_if_even(l, d.logits, d.logits_stride, d.dtype);
                        if ((l->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_REGISTERS) != 0)
                            assert_true(vectors_touched((uintptr_t)d.logits, d.logits_stride, d.classes, element) <=
                                        (int64_t)l->parameters.rows.group *
                                            (GPULOSSI_REG_VECTORS / (d.dtype == GPULOSS_F64 ? 2 : 1)));
                    }
    }
    gpuloss_destroy(context);
}

/* Packed arrays without inputs or outputs per row are cut into other rows. Each of these changes leaves the rows as they
 * are. */
static void kl_div_keeps_rows_that_count(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_kl_div_desc base = some_kl_div(), d;
    (void)state;
    base.loss_elements = AT(9);
#define ROWS_AFTER(change, unchanged)                                                                                  \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_ok(gpuloss_kl_div(context, &d, NULL));                                                                      \
    if (unchanged) {                                                                                                   \
        assert_int_equal(last_launch()->parameters.rows.rows, 1000);                                                   \
        assert_int_equal(last_launch()->parameters.rows.classes, 1000);                                                \
    } else                                                                                                             \
        covers_everything(last_launch(), 1000000);                                                                     \
    assert_int_equal(last_launch()->parameters.rows.rows == 1000, unchanged)
    ROWS_AFTER((void)0, 0);
    ROWS_AFTER(d.input_stride = 1000, 0);
    ROWS_AFTER(d.input_stride = 1001, 1);
    ROWS_AFTER(d.target_stride = 1001, 1);
    ROWS_AFTER(d.grad_input_stride = 1001, 1);
    ROWS_AFTER(d.loss_elements_stride = 1001, 1);
    ROWS_AFTER((d.grad_input = NULL, d.grad_input_stride = 1001), 0);
    ROWS_AFTER((d.loss_elements = NULL, d.loss_elements_stride = 1001), 0);
    ROWS_AFTER(d.loss_rows = AT(6), 1);
    ROWS_AFTER(d.grad_loss_rows = AT(7), 1);
    ROWS_AFTER(d.grad_loss = AT(7), 0);
    gpuloss_destroy(context);
}

/* An empty tensor has no address, so of no rows also the outputs may all be null, whatever belongs to them. */
static void empty_input_without_arrays(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_cross_entropy_desc ce = some_cross_entropy(), shard = some_shard(), combine = some_combine();
    gpuloss_kl_div_desc kl = some_kl_div();
    gpuloss_kl_div_sparse_desc sparse = some_kl_div_sparse();
    const long calls = fake.calls;
    size_t bytes;
    (void)state;
    ce.rows = shard.rows = combine.rows = kl.rows = sparse.rows = 0;
    ce.logits = ce.targets = ce.loss = ce.grad_logits = NULL;
    ce.grad_loss = kl.grad_loss = sparse.grad_loss = AT(6);
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    expect_ok(gpuloss_cross_entropy_preload(context, &ce, NULL));
    expect_ok(gpuloss_cross_entropy_workspace(context, &ce, &bytes));
    ce.target_type = GPULOSS_INDEX_UNSET; /* of probabilities */
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    ce.grad_target_probabilities = AT(7);
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    shard.logits = shard.targets = NULL;
    shard.shard_rows = NULL;
    expect_ok(gpuloss_cross_entropy(context, &shard, NULL));
    combine.targets = combine.loss = NULL;
    combine.shard_rows = NULL;
    expect_ok(gpuloss_cross_entropy_combine(context, &combine, NULL));
    kl.input = kl.target = kl.loss = kl.grad_input = NULL;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    expect_ok(gpuloss_kl_div_preload(context, &kl, NULL));
    sparse.logits = sparse.indices = sparse.values = sparse.loss = sparse.grad_logits = NULL;
    expect_ok(gpuloss_kl_div_sparse(context, &sparse, NULL));
    expect_ok(gpuloss_kl_div_sparse_preload(context, &sparse, NULL));
    assert_int_equal(fake.calls, calls);
    gpuloss_destroy(context);
}

/* Without rows a requested number is still written, and nothing else is launched. */
static void empty_input(void **state) {
    gpuloss_context *context = new_context();
    gpuloss_cross_entropy_desc ce = some_cross_entropy();
    gpuloss_kl_div_desc kl = some_kl_div();
    long calls = fake.calls;
    void *loss = ce.loss;
    (void)state;
    ce.rows = kl.rows = 0;
    ce.logits = ce.targets = NULL;
    ce.loss_rows = ce.z_loss_rows = ce.lse = AT(6);
    ce.argmax = (int64_t *)AT(7);
    kl.input = kl.target = NULL;
    ce.loss = kl.loss = NULL;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(fake.calls, calls);
    kl.loss = loss;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(fake.launches, 1);
    is_sound(context, last_launch(), sizeof(gpulossi_scratch));
    assert_int_equal(last_launch()->parameters.rows.rows, 0);
#define LAUNCHES(number)                                                                                               \
    fake.launches = 0;                                                                                                 \
    number = GPULOSS_PTR(0x5000);                                                                                      \
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));                                                              \
    assert_int_equal(fake.launches, 1);                                                                                \
    is_sound(context, last_launch(), sizeof(gpulossi_scratch));                                                        \
    number = NULL
    LAUNCHES(ce.loss);
    LAUNCHES(ce.z_loss);
    LAUNCHES(ce.correct);
    LAUNCHES(ce.bad_targets);
    gpuloss_destroy(context);
}

/* By either function of the driver. */
static void on_the_stream_given(void **state) {
    static const int drivers[] = {12020, 13000};
    size_t i;
    (void)state;
    for (i = 0; i < 2; i++) {
        gpuloss_context *context;
        gpuloss_cross_entropy_desc ce = some_cross_entropy();
        fake.driver_version = drivers[i];
        fake.launches = 0;
        context = new_context();
        expect_ok(gpuloss_cross_entropy(context, &ce, stream_number(5)));
        assert_ptr_equal(fake.launch[0].stream, stream_number(5));
        assert_ptr_equal(fake.launch[1].stream, stream_number(5));
        gpuloss_destroy(context);
    }
}

/* The prepare kernel, and one of each way to spread rows that the GPU has kernels for. */
static void launch_in_every_way(gpuloss_context *context) {
    gpuloss_cross_entropy_desc ce = some_cross_entropy(), combine = some_combine();
    gpuloss_kl_div_desc kl = some_kl_div();
    gpuloss_kl_div_sparse_desc sparse = some_kl_div_sparse();
    fake.launches = 0;
    ce.grad_logits = kl.grad_input = DISTANT;
    kl.target = GPULOSS_PTR((uintptr_t)1 << 55);
    ce.classes = 800;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    ce.classes = 1200;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    ce.logits_stride = 1201;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    ce.logits_stride = 0;
    ce.classes = 100000;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    ce.classes = 20000;
    ce.label_smoothing = 0.5;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    ce.label_smoothing = 0.0;
    ce.inner = 4;
    ce.rows = 132 * 2 * 64;
    ce.classes = 15;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    expect_ok(gpuloss_cross_entropy_combine(context, &combine, NULL));
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    expect_ok(gpuloss_kl_div_sparse(context, &sparse, NULL));
    sparse.classes = 100;
    expect_ok(gpuloss_kl_div_sparse(context, &sparse, NULL));
    kl.input_kind = kl.target_kind = GPULOSS_LOGITS;
    kl.classes = 100000;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    kl.target_kind = GPULOSS_PROBABILITIES;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    kl.classes = 100;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
}

static int launches_of(const char *part) {
    int i, count = 0;
    for (i = 0; i < fake.launches; i++)
        count += strstr(fake.launch[i].entry, part) != NULL;
    return count;
}

/* Either every kernel may come before the one before it has ended, or none may. */
static void dependent_launches(void **state) {
    static const char *const every_way[] = {PREPARE_KERNEL,
                                            "_packed_",
                                            "_block_rows_",
                                            "_row_pipeline_",
                                            "_row_cluster_",
                                            "_column_",
                                            "_combine_shards",
                                            "_kl_div_probabilities_",
                                            "_kl_div_sparse_memory_",
                                            "_kl_div_sparse_pipeline_",
                                            "_kl_div_logits_clustered_",
                                            "_kl_div_row_pipeline_",
                                            "_kl_div_row_memory_"};
    static const struct {
        int major, minor, driver_version;
        const char *missing;
        int has_clusters, is_dependent;
    } gpus[] = {{9, 0, 12030, NULL, 1, 1},
                {9, 0, 13000, NULL, 1, 1},
                {12, 0, 12080, NULL, 1, 1},
                {9, 0, 13000, NULL, 0, 1},
                {9, 0, 13000, "cuFuncSetAttribute", 1, 1},
                {9, 0, 12029, NULL, 1, 0},
                {9, 0, 12020, NULL, 1, 0},
                {9, 0, 12000, NULL, 1, 0},
                {9, 0, 13000, "cuLaunchKernelEx", 1, 0},
                {8, 9, 13000, NULL, 1, 0},
                {8, 0, 12030, NULL, 1, 0},
                {7, 0, 12030, NULL, 1, 0},
                {5, 0, 9000, NULL, 1, 0}};
    size_t i, k;
    int l;
    (void)state;
    for (i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        gpuloss_context *context;
        fake.major = gpus[i].major;
        fake.minor = gpus[i].minor;
        fake.driver_version = gpus[i].driver_version;
        fake.missing[0] = gpus[i].missing;
        fake.has_clusters = gpus[i].has_clusters;
        context = new_context();
        launch_in_every_way(context);
        for (l = 0; l < fake.launches; l++)
            if (fake.launch[l].dependent != gpus[i].is_dependent)
                fail_msg("%d.%d, driver %d: %s is %sdependent", gpus[i].major, gpus[i].minor, gpus[i].driver_version,
                         fake.launch[l].entry, fake.launch[l].dependent ? "" : "not ");
        for (k = 0; i == 0 && k < sizeof every_way / sizeof every_way[0]; k++)
            if (launches_of(every_way[k]) == 0)
                fail_msg("nothing is launched of %s", every_way[k]);
        gpuloss_destroy(context);
    }
}

/* The rows have been counted by then: the count must not be found by the next launch, by either function of the driver. */
static void a_launch_fails(void **state) {
    static const struct {
        int driver_version;
        const char *symbol;
    } drivers[] = {{12020, "cuLaunchKernel"}, {12030, "cuLaunchKernelEx"}};
    size_t i;
    (void)state;
    for (i = 0; i < 2; i++) {
        gpuloss_cross_entropy_desc ce = some_cross_entropy();
        gpuloss_context *context;
        int fills;
        fake.driver_version = drivers[i].driver_version;
        context = new_context();
        expect_ok(gpuloss_cross_entropy(context, &ce, stream_number(1)));
        fills = fake.fills;
        fake.fail_entry = last_launch()->entry;
        expect_error(gpuloss_cross_entropy(context, &ce, stream_number(1)), GPULOSS_ERROR_DRIVER,
                     "gpuloss_cross_entropy", "launching");
        fake.fail_entry = NULL;
        assert_string_equal(fake.failed, drivers[i].symbol);
        expect_cleared(fills + 1, stream_number(1));
        expect_ok(gpuloss_cross_entropy(context, &ce, stream_number(1)));
        gpuloss_destroy(context);
    }
}

/* Short rows of two arrays, with so many bytes of shared memory a block. */
static void expect_packed_pairs(gpuloss_context *context, const gpuloss_kl_div_desc *d, unsigned bytes, unsigned grid) {
    expect_ok(gpuloss_kl_div(context, d, NULL));
    assert_non_null(strstr(last_launch()->entry, "_logits_packed_"));
    assert_int_equal(last_launch()->block, 128);
    assert_int_equal(last_launch()->shared_bytes, bytes);
    assert_int_equal(last_launch()->grid, grid);
}

/* A grid holds what runs at once, and no more. */
static void occupancy_limits_the_grid(void **state) {
    gpuloss_context *context;
    gpuloss_cross_entropy_desc ce = some_cross_entropy();
    gpuloss_kl_div_desc kl = some_kl_div();
    (void)state;
    fake.blocks_small = 3;
    fake.blocks_shared = 2;
    fake.blocks_less = 4;
    context = new_context();
    ce.rows = kl.rows = 1 << 20;
    ce.classes = 6000;
    ce.logits_stride = 6001;
    ce.grad_logits = NULL;
    kl.grad_input = NULL;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(last_launch()->block, GPULOSSI_BLOCK);
    assert_int_equal(last_launch()->grid, 2 * 132);
    assert_int_equal(last_launch()->shared_bytes, 98304);
    ce.dtype = GPULOSS_F64;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(last_launch()->grid, 2 * 132);
    assert_int_equal(last_launch()->shared_bytes, 98304);
    ce.inner = 8;
    ce.logits_stride = 0;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(last_launch()->grid, 3 * 132);
    assert_int_equal(last_launch()->shared_bytes, 0);
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(last_launch()->grid, 3 * 132);
    /* Of less shared memory a multiprocessor has more blocks. */
    kl.input_kind = kl.target_kind = GPULOSS_LOGITS;
    expect_packed_pairs(context, &kl, 65536, 2 * 132);
    kl.dtype = GPULOSS_F16;
    expect_packed_pairs(context, &kl, 32768, 4 * 132);
    kl.classes = 1001;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(last_launch()->block, GPULOSSI_BLOCK);
    assert_int_equal(last_launch()->grid, 2 * 132);
    assert_int_equal(last_launch()->shared_bytes, 98304);
    kl.dtype = GPULOSS_F64;
    expect_ok(gpuloss_kl_div(context, &kl, NULL));
    assert_int_equal(last_launch()->grid, 3 * 132);
    assert_int_equal(last_launch()->shared_bytes, 0);
    kl.dtype = GPULOSS_F16;
    kl.classes = 65;
    expect_packed_pairs(context, &kl, 65536, 2 * 132);
    gpuloss_destroy(context);
}

/* Where a driver does not say how many run at once, a multiprocessor takes one of those that want much of its
 * memory. */
static void occupancy_is_not_known(void **state) {
    gpuloss_context *context;
    gpuloss_cross_entropy_desc ce = some_cross_entropy();
    gpuloss_kl_div_desc kl = some_kl_div();
    (void)state;
    fake.missing[0] = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
    context = new_context();
    ce.rows = 1 << 20;
    ce.classes = 6000;
    ce.logits_stride = 6001;
    ce.grad_logits = NULL;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(last_launch()->grid, 132);
    assert_int_equal(last_launch()->shared_bytes, 98304);
    ce.dtype = GPULOSS_F64;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(last_launch()->grid, 132);
    ce.inner = 8;
    ce.logits_stride = 0;
    expect_ok(gpuloss_cross_entropy(context, &ce, NULL));
    assert_int_equal(last_launch()->grid, 4 * 132);
    kl.rows = 1 << 20;
    kl.grad_input = NULL;
    kl.input_kind = kl.target_kind = GPULOSS_LOGITS;
    expect_packed_pairs(context, &kl, 65536, 132);
    kl.dtype = GPULOSS_BF16;
    expect_packed_pairs(context, &kl, 32768, 132);
    gpuloss_destroy(context);
}

int launch_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(cross_entropy_shapes),
        TEST(kl_div_shapes),
        TEST(kl_div_shapes_of_logits),
        TEST(kl_div_sparse_shapes),
        TEST(rows_fit_in_registers),
        TEST(kl_div_keeps_rows_that_count),
        TEST(empty_input),
        TEST(empty_input_without_arrays),
        TEST(on_the_stream_given),
        TEST(dependent_launches),
        TEST(a_launch_fails),
        TEST(occupancy_limits_the_grid),
        TEST(occupancy_is_not_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
