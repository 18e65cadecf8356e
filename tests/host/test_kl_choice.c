/* The kernel of a call of gpuloss_kl_div, the rows that are cut anew, and the threads of a row. */
#include "check.h"

#include <stdio.h>

static gpuloss_context *context;

static const fake_launched *expect_kernel(const gpuloss_kl_div_desc *d, const char *name, int line) {
    char text[64];
    fake.launches = 0;
    expect_ok_(gpuloss_kl_div(context, d, stream_number(1)), line);
    snprintf(text, sizeof text, "kl_div_%s", name);
    expect_module(text, d->dtype, line);
    assert_int_equal(last_launch()->block, fake_threads_of(last_launch()->entry));
    assert_ptr_equal(last_launch()->stream, stream_number(1));
    return last_launch();
}

/* The rows of the call: as they are, or all of one length that suits the GPU, the last one shorter. */
static void expect_rows(const gpuloss_kl_div_desc *d, const fake_launched *l, int cut, int line) {
    const gpulossi_rows *rows = &l->parameters.rows;
    const int bytes = every_dtype[d->dtype - GPULOSS_F32].bytes;
    const int logarithms = d->input_kind == GPULOSS_LOG_PROBABILITIES && d->target_kind == GPULOSS_LOG_PROBABILITIES;
    const int vectors = d->grad_input != NULL && (bytes == 4 || (bytes == 2 && logarithms)) ? 4 : 8;
    const int64_t length = cut ? 256 * vectors * 16 / bytes : d->classes;
    const int64_t elements = d->rows * d->classes, count = (elements + length - 1) / length;
    if (rows->rows != count || rows->classes != length || rows->last_classes != elements - (count - 1) * length)
        fail_msg("line %d: %lld rows of %lld, the last of %lld", line, (long long)rows->rows, (long long)rows->classes,
                 (long long)rows->last_classes);
    if (cut)
        assert_int_equal(rows->group, GPULOSSI_BLOCK);
    else if (d->classes <= (strstr(l->entry, "_row_memory_f64") != NULL ? 512 : 1000) && l->cluster == 0)
        assert_true(rows->group < GPULOSSI_BLOCK);
}
#define TAKES(change, name, cut)                                                                                       \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_rows(&d, expect_kernel(&d, name, __LINE__), cut, __LINE__)

/* How a side is given, and the bits of the call word that say so for the input and the target. */
static const struct {
    gpuloss_kind kind;
    uint32_t of_input, of_target;
} kinds[] = {{GPULOSS_PROBABILITIES, 0, 0},
             {GPULOSS_LOG_PROBABILITIES, GPULOSSI_KL_INPUT_LOGARITHMS, GPULOSSI_KL_TARGET_LOGARITHMS},
             {GPULOSS_LOGITS, GPULOSSI_KL_INPUT_LOGITS, GPULOSSI_KL_TARGET_LOGITS}};

static int64_t classes_of_vectors(int64_t vectors, gpuloss_dtype dtype) {
    return vectors * (16 / every_dtype[dtype - GPULOSS_F32].bytes);
}

/* The kernel of options, of rows that are long enough for the pipeline, which doubles do not have. */
static const char *kernel_of_options(gpuloss_dtype dtype) {
    return dtype == GPULOSS_F64 ? "row_memory" : "row_pipeline";
}

static void kinds_choose_the_kernel(void **state) {
    size_t t, i, k;
    (void)state;
    context = new_context();
    for (t = 0; t < DTYPES; t++)
        for (i = 0; i < 3; i++)
            for (k = 0; k < 3; k++) {
                gpuloss_kl_div_desc base = some_kl_div(), d;
                const char *const name_of[] = {"probabilities", kernel_of_options(every_dtype[t].dtype),
                                               every_dtype[t].dtype == GPULOSS_F64 ? "row_memory" : "logits_packed"};
                int logits = (kinds[i].kind == GPULOSS_LOGITS) + (kinds[k].kind == GPULOSS_LOGITS);
                base.dtype = every_dtype[t].dtype;
                base.input_kind = kinds[i].kind;
                base.target_kind = kinds[k].kind;
                TAKES((void)0, name_of[logits], logits == 0);
                assert_int_equal(last_launch()->parameters.kl_div.input_kind, kinds[i].kind);
                assert_int_equal(last_launch()->parameters.kl_div.target_kind, kinds[k].kind);
                if (logits == 0)
                    assert_int_equal(last_launch()->module->words[GPULOSSI_CALL_WORD],
                                     kinds[i].of_input | kinds[k].of_target);
            }
    gpuloss_destroy(context);
}

/* Each option by itself leaves the kernels without options, and the rows as they are. Neutral values and options of every
 * kernel do not. */
static void every_option_alone(const gpuloss_kl_div_desc *call, const char *basic, const char *options) {
    gpuloss_kl_div_desc base = *call, d;
    const gpuloss_dtype other = base.dtype == GPULOSS_F16 ? GPULOSS_BF16 : GPULOSS_F16;
    TAKES((void)0, basic, 1);
    TAKES(d.divergence = GPULOSS_REVERSE_KL, options, 0);
    TAKES((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.5), options, 0);
    TAKES((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 1.0), options, 0);
    TAKES((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 1e-300), options, 0);
    TAKES(d.divergence = GPULOSS_TOTAL_VARIATION, options, 0);
    TAKES(d.target_dtype = other, options, 0);
    TAKES(d.grad_target = AT(6), options, 0);
    TAKES((d.grad_target = AT(6), d.grad_input = NULL), options, 0);
    TAKES(d.row_weights = AT(6), options, 0);
    TAKES(GIVE_LABELS(&d), options, 0);
    TAKES((GIVE_LABELS(&d), d.reduction = GPULOSS_SUM), options, 0);
    TAKES((GIVE_LABELS(&d), d.divisor = 3.0), options, 0);
    TAKES((d.input_kind = GPULOSS_LOGITS, d.temperature = 2.0), options, 0);
    TAKES((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.0), basic, 1);
    TAKES(d.target_dtype = d.dtype, basic, 1);
    TAKES(d.flags = GPULOSS_PYTORCH_ZEROS, basic, 1);
    TAKES((d.flags = GPULOSS_USE_GRAD_SCALE, d.grad_scale = 0.5), basic, 1);
    TAKES(d.reduction = GPULOSS_SUM, basic, 1);
    TAKES(d.reduction = GPULOSS_MEAN, basic, 1);
    TAKES(d.divisor = 3.0, basic, 1);
    TAKES(d.divisor_in = AT(6), basic, 1);
    TAKES(d.grad_loss = AT(6), basic, 1);
    TAKES(d.loss_elements = AT(6), basic, 1);
    TAKES(d.loss_rows = AT(6), basic, 0);
    TAKES(d.grad_loss_rows = AT(6), basic, 0);
    TAKES(d.target_stride = 1001, basic, 0);
    /* Without labels their type is ignored. */
    TAKES(d.label_type = GPULOSS_I16, basic, 1);
    if (base.input_kind == GPULOSS_PROBABILITIES || base.target_kind == GPULOSS_PROBABILITIES) {
        TAKES(d.eps = 1e-6, basic, 1);
    }
}

static void options_leave_the_basic_kernels(void **state) {
    size_t t, i, k;
    (void)state;
    context = new_context();
    for (t = 0; t < DTYPES; t++)
        for (i = 0; i < 2; i++)
            for (k = 0; k < 2; k++) {
                gpuloss_kl_div_desc d = some_kl_div();
                d.dtype = every_dtype[t].dtype;
                d.input_kind = kinds[i].kind;
                d.target_kind = kinds[k].kind;
                every_option_alone(&d, "probabilities", kernel_of_options(d.dtype));
                /* Rows of less than 48 whole vectors are too short for the pipeline. */
                d.classes = classes_of_vectors(48, d.dtype) - 1;
                every_option_alone(&d, "probabilities", "row_memory");
                d.classes++;
                every_option_alone(&d, "probabilities", kernel_of_options(d.dtype));
            }
    gpuloss_destroy(context);
}

/* `gaps`: the kernel of rows that are not contiguous or do not begin on 16 bytes. `losses`: without a gradient.
 * `distances`: of Jensen-Shannon and total variation. `options`: with options that the kernels of logits do not have. */
static void every_option_of_logits_alone(const gpuloss_kl_div_desc *call, const char *logits, const char *gaps,
                                         const char *losses, const char *distances, const char *options) {
    gpuloss_kl_div_desc base = *call, d;
    const gpuloss_dtype other = base.dtype == GPULOSS_F16 ? GPULOSS_BF16 : GPULOSS_F16;
    TAKES((void)0, logits, 0);
    TAKES(d.input_kind = GPULOSS_LOG_PROBABILITIES, options, 0);
    TAKES(d.target_kind = GPULOSS_LOG_PROBABILITIES, options, 0);
    TAKES(d.divergence = GPULOSS_REVERSE_KL, options, 0);
    TAKES((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.5), distances, 0);
    TAKES((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 1.0), options, 0);
    TAKES(d.divergence = GPULOSS_TOTAL_VARIATION, distances, 0);
    TAKES(d.target_dtype = other, options, 0);
    TAKES(d.grad_target = AT(6), options, 0);
    TAKES((d.grad_target = AT(6), d.grad_input = NULL), options, 0);
    TAKES(d.loss_elements = AT(6), options, 0);
    TAKES(d.flags = GPULOSS_PYTORCH_ZEROS, options, 0);
    TAKES(d.flags = GPULOSS_SHARED_TARGET, gaps, 0);
    TAKES((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.0), logits, 0);
    TAKES(d.target_dtype = d.dtype, logits, 0);
    TAKES(d.temperature = 2.0, logits, 0);
    TAKES((d.temperature = 2.0, d.flags = GPULOSS_TEMPERATURE_SQUARED), logits, 0);
    TAKES(d.row_weights = AT(6), logits, 0);
    TAKES(GIVE_LABELS(&d), logits, 0);
    TAKES((d.grad_loss_rows = AT(6), d.loss_rows = AT(7)), logits, 0);
    TAKES(d.divisor_in = AT(6), logits, 0);
    TAKES((d.reduction = GPULOSS_NONE, d.loss = NULL), logits, 0);
    TAKES((d.input_stride = d.classes + 1, d.target_stride = d.classes + 2), gaps, 0);
    TAKES(d.target_stride = d.classes + 16, gaps, 0);
    TAKES(d.grad_input_stride = d.classes + 3, gaps, 0);
    TAKES(d.input = (const char *)d.input + 8, gaps, 0);
    TAKES(d.target = (const char *)d.target + 8, gaps, 0);
    TAKES(d.grad_input = (char *)d.grad_input + 8, gaps, 0);
    TAKES(d.grad_input = NULL, losses, 0);
    TAKES((d.grad_input = NULL, d.grad_input_stride = d.classes + 3), losses, 0);
    base.divergence = GPULOSS_TOTAL_VARIATION;
    TAKES(d.target_kind = GPULOSS_LOG_PROBABILITIES, options, 0);
    TAKES(d.target_dtype = other, options, 0);
    TAKES(d.grad_target = AT(6), options, 0);
    TAKES(d.loss_elements = AT(6), options, 0);
    TAKES((GIVE_LABELS(&d), d.row_weights = AT(6), d.temperature = 2.0), distances, 0);
}

static gpuloss_kl_div_desc two_logits(gpuloss_dtype dtype) {
    gpuloss_kl_div_desc d = some_kl_div();
    d.dtype = dtype;
    d.input_kind = d.target_kind = GPULOSS_LOGITS;
    return d;
}

/* Two arrays of logits have kernels of their own, without the terms or the gradient of the target: for forward KL, and
 * in clusters for each divergence. */
static void logits_of_both_sides(void **state) {
    size_t t;
    (void)state;
    context = new_context();
    for (t = 0; t < DTYPES; t++) {
        gpuloss_kl_div_desc d = two_logits(every_dtype[t].dtype);
        const char *options = kernel_of_options(d.dtype);
        const char *distances = d.dtype == GPULOSS_F64 ? "row_memory" : "distances_clustered";
        const char *packed = d.dtype == GPULOSS_F64 ? "row_memory" : "logits_packed";
        const char *clustered = d.dtype == GPULOSS_F64 ? "row_memory" : "logits_clustered";
        every_option_of_logits_alone(&d, packed, options, packed, options, options);
        d.classes = 131072;
        every_option_of_logits_alone(&d, clustered, clustered, options, distances, options);
        d.classes = 100;
        every_option_of_logits_alone(&d, packed, "row_memory", packed, "row_memory", "row_memory");
    }
    gpuloss_destroy(context);
}

/* Their kernels are told whether there is a gradient, and packed rows whether they are whole vectors. */
static void expect_words(gpuloss_kl_div_desc d, const char *name, uint32_t ragged, int line) {
    expect_kernel(&d, name, line);
    assert_int_equal(last_launch()->module->words[GPULOSSI_CALL_WORD], GPULOSSI_KL_GRADIENT);
    assert_int_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_RAGGED, ragged);
    d.grad_input = NULL;
    expect_kernel(&d, name, line);
    assert_int_equal(last_launch()->module->words[GPULOSSI_CALL_WORD], 0);
    assert_int_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_RAGGED, ragged);
}
static void words_of_two_logits(void **state) {
    size_t t;
    (void)state;
    context = new_context();
    for (t = 0; t < DTYPES; t++) {
        gpuloss_kl_div_desc d = two_logits(every_dtype[t].dtype);
        d.rows = 5;
        if (d.dtype == GPULOSS_F64)
            continue;
        d.classes = 1000;
        expect_words(d, "logits_packed", 0, __LINE__);
        d.classes = 150;
        expect_words(d, "logits_packed", GPULOSSI_FORMAT_RAGGED, __LINE__);
        d.loss_rows = NULL;
        d.classes = 8;
        expect_words(d, "logits_packed_reg", 0, __LINE__);
        d.classes = 9;
        expect_words(d, "logits_packed_reg", GPULOSSI_FORMAT_RAGGED, __LINE__);
        d.classes = 131072;
        expect_words(d, "logits_clustered", 0, __LINE__);
    }
    gpuloss_destroy(context);
}

/* Rows of the input of `vectors` vectors: packed, or with gaps. */
static void expect_gradients_of(int64_t vectors, gpuloss_kl_div_desc d, const char *packed, const char *name,
                                int line) {
    d.classes = classes_of_vectors(vectors, d.dtype);
    expect_kernel(&d, packed, line);
    d.target_stride = d.grad_input_stride = d.classes + 1;
    expect_kernel(&d, name, line);
}
/* The losses alone, of rows with gaps and of rows that begin anywhere. */
static void expect_losses_of(int64_t vectors, gpuloss_kl_div_desc d, const char *name, int line) {
    d.classes = classes_of_vectors(vectors, d.dtype);
    d.target_stride = d.classes + 1;
    d.grad_input = NULL;
    expect_kernel(&d, name, line);
    d.input_stride = d.classes + 1;
    d.classes -= 2 * classes_of_vectors(1, d.dtype) - 2;
    expect_kernel(&d, name, line);
}
static void expect_logits_of(int64_t vectors, gpuloss_kl_div_desc d, const char *packed, const char *name, int line) {
    expect_gradients_of(vectors, d, packed, name, line);
    expect_losses_of(vectors, d, name, line);
}

/* Both arrays count, whether or not there is a gradient; a block has a row to itself, unless there are few, or two of them
 * have it, or another odd number. Losses alone go to the pipeline. Those of forward KL
 * do not where rows are fewer than the multiprocessors. */
static void long_rows_of_logits(void **state) {
    static const int64_t rows[] = {1, 32, 33, 131, 132, 1000};
    size_t t, r;
    int64_t blocks;
    (void)state;
    context = new_context();
    for (t = 0; t < DTYPES; t++)
        for (r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            gpuloss_kl_div_desc d = some_kl_div();
            const char *distances;
            d.dtype = every_dtype[t].dtype;
            d.rows = rows[r];
            d.input_kind = d.target_kind = GPULOSS_LOGITS;
            if (d.dtype != GPULOSS_F64) {
                const int is_few = rows[r] < fake.multiprocessors;
                const char *block = is_few ? "logits_clustered" : "logits_block_rows";
                const char *loss = is_few ? "logits_clustered" : "row_pipeline";
                expect_gradients_of(47, d, "logits_packed", "row_memory", __LINE__);
                expect_gradients_of(48, d, "logits_packed", "row_pipeline", __LINE__);
                expect_logits_of(256, d, "logits_packed", "row_pipeline", __LINE__);
                expect_gradients_of(257, d, "logits_packed", block, __LINE__);
                expect_losses_of(257, d, loss, __LINE__);
                expect_gradients_of(512, d, "logits_packed", block, __LINE__);
                expect_gradients_of(513, d, block, block, __LINE__);
                expect_losses_of(513, d, loss, __LINE__);
                for (blocks = 1; blocks <= 17; blocks++) {
                    const char *of_more = blocks == 2 || (blocks % 2 == 1 && blocks < 16) ? block : "logits_clustered";
                    if (blocks > 1)
                        expect_gradients_of(1024 * (blocks - 1) + 1, d, of_more, of_more, __LINE__);
                    expect_gradients_of(1024 * blocks, d, of_more, of_more, __LINE__);
                }
                expect_losses_of(1025, d, loss, __LINE__);
                expect_losses_of(65536, d, loss, __LINE__);
                d.divergence = GPULOSS_REVERSE_KL;
                expect_logits_of(256, d, "row_pipeline", "row_pipeline", __LINE__);
                expect_logits_of(257, d, "row_pipeline", "row_pipeline", __LINE__);
                expect_logits_of(65536, d, "row_pipeline", "row_pipeline", __LINE__);
            } else {
                expect_logits_of(256, d, "row_memory", "row_memory", __LINE__);
                expect_logits_of(5130, d, "row_memory", "row_memory", __LINE__);
            }
            d.divergence = GPULOSS_TOTAL_VARIATION;
            distances = kernel_of_options(d.dtype);
            expect_gradients_of(47, d, "row_memory", "row_memory", __LINE__);
            expect_gradients_of(48, d, distances, distances, __LINE__);
            expect_logits_of(256, d, distances, distances, __LINE__);
            distances = d.dtype == GPULOSS_F64 ? "row_memory" : "distances_clustered";
            expect_logits_of(257, d, distances, distances, __LINE__);
        }
    gpuloss_destroy(context);
}

/* Packed rows: a slot fits the rows that a warp takes at a time, and the next ones begin on 16 bytes. Slots have 8192
 * bytes where 4096 would fit too few rows, or where rows are not whole vectors. With 4096 bytes, of 16 bits only, a block
 * has half of the shared memory. */
static void packed_pairs(void **state) {
    static const struct {
        int bytes;
        int64_t rows, classes;
        unsigned lanes, slots, ring_bytes;
    } cases[] = {{4, 1 << 20, 1, 1, 192, 8192},
                 {4, 1 << 20, 10, 1, 96, 8192},
                 {4, 1 << 20, 31, 1, 32, 8192},
                 {4, 1 << 20, 32, 1, 32, 8192},
                 {4, 1 << 20, 33, 1, 32, 8192},
                 {4, 1 << 20, 36, 2, 16, 8192},
                 {4, 1 << 20, 63, 1, 32, 8192},
                 {4, 1 << 20, 64, 2, 16, 8192},
                 {4, 1 << 20, 65, 2, 16, 8192},
                 {4, 1 << 20, 511, 8, 4, 8192},
                 {4, 1 << 20, 512, 16, 2, 8192},
                 {4, 1 << 20, 514, 16, 2, 8192},
                 {4, 1 << 20, 1022, 16, 2, 8192},
                 {4, 1 << 20, 1024, 32, 1, 8192},
                 {4, 1 << 20, 1028, 32, 1, 8192},
                 {4, 1 << 20, 2048, 32, 1, 8192},
                 {2, 1 << 20, 1, 1, 192, 4096},
                 {2, 1 << 20, 63, 1, 32, 4096},
                 {2, 1 << 20, 64, 1, 32, 4096},
                 {2, 1 << 20, 65, 1, 32, 8192},
                 {2, 1 << 20, 72, 2, 16, 4096},
                 {2, 1 << 20, 127, 1, 32, 8192},
                 {2, 1 << 20, 129, 2, 16, 8192},
                 {2, 1 << 20, 511, 4, 8, 8192},
                 {2, 1 << 20, 1024, 16, 2, 4096},
                 {2, 1 << 20, 1032, 16, 2, 8192},
                 {2, 1 << 20, 2044, 16, 2, 8192},
                 {2, 1 << 20, 4096, 32, 1, 8192},
                 /* Few rows: 12 warps for each of 132 multiprocessors are 1584, and 20 of half the memory 2640. */
                 {4, 3 * 32 * 1584, 10, 1, 96, 8192},
                 {4, 3 * 32 * 1584 - 1, 10, 1, 64, 8192},
                 {4, 2 * 32 * 1584 - 1, 10, 1, 32, 8192},
                 {4, 1, 10, 1, 32, 8192},
                 {2, 6 * 32 * 2640, 10, 1, 192, 4096},
                 {2, 6 * 32 * 2640 - 1, 10, 1, 160, 4096},
                 {2, 1, 10, 1, 32, 4096}};
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < DTYPES * (sizeof cases / sizeof cases[0]); i++) {
        gpuloss_kl_div_desc d = some_kl_div();
        const size_t c = i / DTYPES;
        const fake_launched *l;
        const gpulossi_rows *rows;
        int64_t blocks = (cases[c].rows + 4 * (int64_t)cases[c].slots - 1) / (4 * (int64_t)cases[c].slots);
        const int64_t at_once = fake.multiprocessors * (cases[c].ring_bytes == 4096 ? 5 : 2);
        d.dtype = every_dtype[i % DTYPES].dtype;
        if (every_dtype[i % DTYPES].bytes != cases[c].bytes)
            continue;
        d.rows = cases[c].rows;
        d.classes = cases[c].classes;
        d.input_kind = d.target_kind = GPULOSS_LOGITS;
        d.target = GPULOSS_PTR((uintptr_t)1 << 55);
        d.grad_input = GPULOSS_PTR((uintptr_t)1 << 56);
        l = expect_kernel(&d, d.classes <= 22 ? "logits_packed_reg" : "logits_packed", __LINE__);
        rows = &l->parameters.rows;
        if (rows->group != cases[c].lanes || rows->of.tile_rows != cases[c].slots ||
            rows->ring_bytes != cases[c].ring_bytes)
            fail_msg("case %d: %u lanes a row, %u rows a slot, %u bytes of slots", (int)c, rows->group,
                     rows->of.tile_rows, rows->ring_bytes);
        assert_int_equal(l->block, 128);
        assert_int_equal(l->shared_bytes, 8 * rows->ring_bytes);
        assert_int_equal(l->grid, blocks < at_once ? blocks : at_once);
        assert_int_equal(l->cluster, 0);
    }
    gpuloss_destroy(context);
}

/* Of few classes, in registers: unless the call has something for each row. */
static void packed_pairs_in_registers(void **state) {
    size_t t;
    (void)state;
    context = new_context();
    for (t = 0; t < DTYPES; t++) {
        gpuloss_kl_div_desc base = some_kl_div(), d;
        const int fast = every_dtype[t].dtype != GPULOSS_F64, is_short = fast && every_dtype[t].bytes == 2;
        const char *packed = fast ? "logits_packed" : "row_memory";
        const char *in_registers = fast ? "logits_packed_reg" : "row_memory";
        base.dtype = every_dtype[t].dtype;
        base.classes = 10;
        base.input_kind = base.target_kind = GPULOSS_LOGITS;
        TAKES((void)0, in_registers, 0);
        TAKES(d.grad_input = NULL, in_registers, 0);
        TAKES(d.loss = NULL, in_registers, 0);
        TAKES(d.temperature = 2.0, in_registers, 0);
        TAKES(d.reduction = GPULOSS_SUM, in_registers, 0);
        TAKES(d.classes = 22, in_registers, 0);
        TAKES(d.classes = 23, is_short ? in_registers : packed, 0);
        TAKES(d.classes = 24, packed, 0);
        TAKES(d.loss_rows = AT(5), packed, 0);
        TAKES(d.grad_loss_rows = AT(5), packed, 0);
        TAKES(d.row_weights = AT(5), packed, 0);
        TAKES((d.labels = AT(5), d.label_type = GPULOSS_I64, d.flags = GPULOSS_USE_IGNORE_INDEX), packed, 0);
    }
    gpuloss_destroy(context);
}

/* Rows that fit no slot go to the kernels of rows with gaps. GPUs without clusters have no packed kernel. */
static void pairs_that_are_not_packed(void **state) {
    static const struct {
        int bytes;
        int64_t classes;
        const char *name;
    } cases[] = {{4, 513, "row_pipeline"},       {4, 1021, "row_pipeline"},      {4, 1026, "logits_block_rows"},
                 {4, 2049, "logits_block_rows"}, {4, 2052, "logits_block_rows"}, {2, 513, "row_pipeline"},
                 {2, 1026, "row_pipeline"},      {2, 2034, "row_pipeline"},      {2, 2042, "logits_block_rows"},
                 {2, 2052, "logits_block_rows"}, {2, 4104, "logits_block_rows"}};
    gpuloss_kl_div_desc d = some_kl_div();
    size_t i, t;
    d.input_kind = d.target_kind = GPULOSS_LOGITS;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (t = 0; t < DTYPES; t++) {
            d.dtype = every_dtype[t].dtype;
            d.classes = cases[i].classes;
            if (every_dtype[t].bytes == cases[i].bytes)
                expect_kernel(&d, cases[i].name, __LINE__);
        }
    d.dtype = GPULOSS_F32;
    d.classes = 10;
    expect_kernel(&d, "logits_packed_reg", __LINE__);
    d.classes = 100;
    expect_kernel(&d, "logits_packed", __LINE__);
    gpuloss_destroy(context);
    fake.major = 8;
    context = new_context();
    expect_kernel(&d, "row_memory", __LINE__);
    d.classes = 1000;
    expect_kernel(&d, "row_memory", __LINE__);
    gpuloss_destroy(context);
}

/* At its two ends Jensen-Shannon is one of the others, and nowhere else. */
static void ends_of_jensen_shannon(void **state) {
    static const struct {
        gpuloss_divergence given;
        double beta;
        gpuloss_divergence taken;
    } divergences[] = {{GPULOSS_FORWARD_KL, 0.0, GPULOSS_FORWARD_KL},
                       {GPULOSS_REVERSE_KL, 0.0, GPULOSS_REVERSE_KL},
                       {GPULOSS_TOTAL_VARIATION, 0.0, GPULOSS_TOTAL_VARIATION},
                       {GPULOSS_JENSEN_SHANNON, 0.0, GPULOSS_FORWARD_KL},
                       {GPULOSS_JENSEN_SHANNON, 1.0, GPULOSS_REVERSE_KL},
                       {GPULOSS_JENSEN_SHANNON, 1e-300, GPULOSS_JENSEN_SHANNON},
                       {GPULOSS_JENSEN_SHANNON, 0.5, GPULOSS_JENSEN_SHANNON},
                       {GPULOSS_JENSEN_SHANNON, 0.9999999999999999, GPULOSS_JENSEN_SHANNON}};
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof divergences / sizeof divergences[0]; i++) {
        gpuloss_kl_div_desc d = some_kl_div();
        d.input_kind = GPULOSS_LOGITS;
        d.divergence = divergences[i].given;
        d.beta = divergences[i].beta;
        assert_int_equal(expect_kernel(&d, "row_pipeline", __LINE__)->parameters.kl_div.divergence,
                         divergences[i].taken);
        assert_true(last_launch()->parameters.kl_div.beta == divergences[i].beta);
    }
    gpuloss_destroy(context);
}

static void expect_group(const gpuloss_kl_div_desc *d, const char *name, unsigned group, int line) {
    expect_row_group(expect_kernel(d, name, line), d->rows, group, line);
}

/* A thread gets about four vectors of the input, or two of doubles with options, wherever a row begins and whatever type
 * the target has. */
static void groups_of_rows(void **state) {
    size_t t;
    int logits; /* how many sides are */
    (void)state;
    context = new_context_without_clusters();
    for (t = 0; t < DTYPES; t++)
        for (logits = 0; logits < 3; logits++) {
            gpuloss_kl_div_desc even = some_kl_div(), d;
            const char *name = logits == 0 ? "probabilities" : "row_memory";
            const int64_t vectors = logits > 0 && every_dtype[t].dtype == GPULOSS_F64 ? 2 : 4;
            unsigned group;
            even.dtype = every_dtype[t].dtype;
            even.loss_rows = AT(6);
            if (logits == 1)
                even.target_dtype = even.dtype == GPULOSS_F64 ? GPULOSS_F16 : GPULOSS_F64;
            if (logits >= 1)
                even.target_kind = GPULOSS_LOGITS;
            if (logits == 2)
                even.input_kind = GPULOSS_LOGITS;
            for (group = 1; group <= GPULOSSI_BLOCK; group *= 2) {
                unsigned next = group < GPULOSSI_BLOCK ? 2 * group : group;
                even.classes = classes_of_vectors((int64_t)group * vectors, even.dtype);
                d = even;
                expect_group(&d, name, group, __LINE__);
                d.target_stride = d.classes + 1;
                expect_group(&d, name, group, __LINE__);
                d = even;
                d.classes++;
                expect_group(&d, name, next, __LINE__);
                d = even;
                d.input_stride = d.classes + 1;
                expect_group(&d, name, next, __LINE__);
                d = even;
                d.rows = 100000;
                d.target = GPULOSS_PTR((uintptr_t)1 << 55);
                d.grad_input = GPULOSS_PTR((uintptr_t)1 << 56);
                expect_group(&d, name, group, __LINE__);
            }
            even.classes = 1;
            expect_group(&even, name, 1, __LINE__);
        }
    gpuloss_destroy(context);
}

/* It is the input's rows of which it is told whether all of them begin on 16 bytes. */
static void even_rows(void **state) {
    gpuloss_kl_div_desc base = some_kl_div(), d;
    (void)state;
    context = new_context();
    base.loss_rows = AT(6);
#define EVEN(change, expected)                                                                                         \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_ok(gpuloss_kl_div(context, &d, NULL));                                                                      \
    assert_int_equal((last_launch()->parameters.rows.flags & GPULOSSI_EVEN) != 0, expected)
    EVEN((void)0, 1);
    EVEN(d.input_stride = 1001, 0);
    EVEN(d.input_stride = 1004, 1);
    EVEN(d.input = (const char *)d.input + 4, 0);
    EVEN(d.target_stride = 1001, 1);
    EVEN(d.target = (const char *)d.target + 4, 1);
    EVEN(d.grad_input_stride = 1001, 1);
    EVEN((d.target_kind = GPULOSS_LOGITS, d.target_dtype = GPULOSS_F16, d.target_stride = 1001), 1);
    EVEN((d.target_kind = GPULOSS_LOGITS, d.target_dtype = GPULOSS_F16, d.input_stride = 1001), 0);
    /* Rows that are cut anew are even where their beginning is. */
    base.classes = 1001;
    base.loss_rows = NULL;
    EVEN((void)0, 1);
    EVEN(d.loss_rows = AT(6), 0);
    EVEN(d.input = (const char *)d.input + 4, 0);
    gpuloss_destroy(context);
}

/* No rows: nothing is cut, and what is made of all of them is still written, by whichever kernel. */
static void no_rows(void **state) {
    gpuloss_kl_div_desc base = some_kl_div(), d;
    long calls;
    (void)state;
    context = new_context();
    base.rows = 0;
    base.input = base.target = NULL;
    base.grad_input = base.grad_target = base.loss_rows = base.loss_elements = AT(6);
    calls = fake.calls;
    d = base;
    d.loss = NULL;
    expect_ok(gpuloss_kl_div(context, &d, NULL));
    GIVE_LABELS(&d);
    d.labels = NULL;
    expect_ok(gpuloss_kl_div(context, &d, NULL));
    assert_int_equal(fake.calls, calls);
    d.loss = AT(3);
    assert_int_equal(expect_kernel(&d, "row_pipeline", __LINE__)->grid, 1);
    assert_int_equal(fake.launches, 1);
    d = base;
    d.grad_target = d.loss_elements = NULL;
    d.input_kind = d.target_kind = GPULOSS_LOGITS;
    d.classes = 100000;
    assert_int_equal(expect_kernel(&d, "row_pipeline", __LINE__)->grid, 1);
    d.classes = 47 * 4;
    d.divergence = GPULOSS_REVERSE_KL;
    assert_int_equal(expect_kernel(&d, "row_memory", __LINE__)->grid, 1);
    d.divergence = GPULOSS_FORWARD_KL;
    d.classes = 1000;
    assert_int_equal(expect_kernel(&d, "logits_packed", __LINE__)->grid, 1);
    d = base;
    d.grad_target = NULL;
    assert_int_equal(expect_kernel(&d, "probabilities", __LINE__)->grid, 1);
    assert_int_equal(last_launch()->parameters.rows.rows, 0);
    assert_int_equal(last_launch()->parameters.rows.classes, 1000);
    gpuloss_destroy(context);
}

int kl_choice_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(kinds_choose_the_kernel),
        TEST(options_leave_the_basic_kernels),
        TEST(logits_of_both_sides),
        TEST(words_of_two_logits),
        TEST(long_rows_of_logits),
        TEST(packed_pairs),
        TEST(packed_pairs_in_registers),
        TEST(pairs_that_are_not_packed),
        TEST(ends_of_jensen_shannon),
        TEST(groups_of_rows),
        TEST(even_rows),
        TEST(no_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
