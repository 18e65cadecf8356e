/* The pipeline of rows: for which features a call has it specialised, how rows are spread over its teams, and which calls
 * share a kernel. */
#include "check.h"

#include <stdio.h>

static gpuloss_context *context;

static const fake_launched *launched(const gpuloss_cross_entropy_desc *d, int line) {
    fake.launches = 0;
    expect_ok_(gpuloss_cross_entropy(context, d, stream_number(1)), line);
    expect_module("cross_entropy_row_pipeline", d->dtype, line);
    return last_launch();
}

/* The feature words of a call, which the last launch was specialised for. */
/* But for the bits of the length of rows and stages. */
static void expect_word(const gpuloss_cross_entropy_desc *d, int number, uint32_t want, int line) {
    const uint32_t of_length = number == GPULOSSI_FORMAT_WORD
                                   ? GPULOSSI_FORMAT_NO_LINES | GPULOSSI_FORMAT_ONE_STEP | GPULOSSI_FORMAT_LONG_STAGES
                                   : 0;
    const uint32_t got = launched(d, line)->module->words[number] & ~of_length;
    if (got != want)
        fail_msg("line %d: word %d is %#x instead of %#x", line, number, got, want);
}
#define CALL(change, features)                                                                                         \
    do {                                                                                                               \
        d = base;                                                                                                      \
        change;                                                                                                        \
        expect_word(&d, GPULOSSI_CALL_WORD, features, __LINE__);                                                       \
    } while (0)
#define FORMAT(change, features)                                                                                       \
    do {                                                                                                               \
        d = base;                                                                                                      \
        change;                                                                                                        \
        expect_word(&d, GPULOSSI_FORMAT_WORD, (uint32_t)(features), __LINE__);                                         \
    } while (0)

/* Rows of so many vectors, which begin on vectors, with an option that has no bit in the format. */
static gpuloss_cross_entropy_desc rows_of(gpuloss_dtype dtype, int64_t rows, int64_t vectors) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.dtype = dtype;
    d.rows = rows;
    d.classes = vectors * (dtype == GPULOSS_F64 ? 2 : dtype == GPULOSS_F32 ? 4 : 8);
    d.logit_scale = 0.5;
    d.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56);
    return d;
}

/* Rows that begin anywhere, without options: the sum, and the gradient of the logits. */
static gpuloss_cross_entropy_desc without_options(void) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.classes = 8000;
    d.logits_stride = 8001;
    d.flags = 0;
    d.ignore_index = 0;
    return d;
}

static void a_bit_for_each_option(void **state) {
    enum { BASE = GPULOSSI_CE_LOSS | GPULOSSI_CE_GRADIENT, SOFT = BASE | GPULOSSI_CE_PROBABILITIES };
    gpuloss_cross_entropy_desc base = without_options(), d;
    (void)state;
    context = new_context();
    CALL((void)0, BASE);
    CALL((d.loss = NULL, d.loss_rows = AT(6)), GPULOSSI_CE_ROW_OUTPUTS | GPULOSSI_CE_GRADIENT);
    CALL(d.loss = NULL, GPULOSSI_CE_GRADIENT);
    CALL(d.grad_logits = NULL, GPULOSSI_CE_LOSS);
    CALL(d.loss_rows = AT(6), BASE | GPULOSSI_CE_ROW_OUTPUTS);
    CALL(d.lse = AT(6), BASE | GPULOSSI_CE_ROW_OUTPUTS);
    CALL(d.z_loss = AT(6), BASE | GPULOSSI_CE_Z_OUTPUTS);
    CALL(d.z_loss_rows = AT(6), BASE | GPULOSSI_CE_Z_OUTPUTS);
    CALL(d.argmax = (int64_t *)AT(6), BASE | GPULOSSI_CE_ARGMAX);
    CALL(d.correct = (int64_t *)AT(6), BASE | GPULOSSI_CE_ARGMAX);
    CALL(give_probabilities(&d), SOFT);
    CALL((give_probabilities(&d), d.grad_target_probabilities = AT(6)), SOFT | GPULOSSI_CE_TARGET_GRADIENT);
    CALL(d.class_weights = AT(6), BASE | GPULOSSI_CE_CLASS_WEIGHTS);
    CALL(d.row_weights = AT(6), BASE | GPULOSSI_CE_ROW_WEIGHTS);
    CALL(d.label_smoothing = 0.1, BASE | GPULOSSI_CE_SMOOTHING);
    CALL(d.lse_square_scale = 0.1, BASE | GPULOSSI_CE_Z_LOSS);
    CALL(d.logit_scale = -1.0, BASE | GPULOSSI_CE_LOGIT_SCALE);
    CALL(d.softcap = 2.0, BASE | GPULOSSI_CE_SOFTCAP);
    CALL(d.lse_in = AT(6), BASE | GPULOSSI_CE_LSE_IN);
    CALL(d.grad_loss_rows = AT(6), BASE | GPULOSSI_CE_ROW_GRADIENTS);
    CALL((d.softcap = 2.0, d.row_weights = AT(6)), BASE | GPULOSSI_CE_SOFTCAP | GPULOSSI_CE_ROW_WEIGHTS);
    /* Every kernel has these options, or the option is a number. */
    CALL(d.grad_loss = AT(6), BASE);
    CALL(d.bad_targets = (int64_t *)AT(6), BASE);
    CALL(d.divisor = 3.0, BASE);
    CALL(d.divisor_in = AT(6), BASE);
    CALL(d.logit_scale = 1.0, BASE);
    CALL(d.target_type = GPULOSS_U8, BASE);
    CALL((d.flags |= GPULOSS_USE_GRAD_SCALE, d.grad_scale = 2.0), BASE);
    CALL((d.flags |= GPULOSS_USE_IGNORE_INDEX, d.reduction = GPULOSS_SUM), BASE);
    base = some_shard();
    CALL((void)0, GPULOSSI_CE_SHARD);
    CALL((d.shard_rows = NULL, d.lse_in = AT(6), d.grad_logits = AT(4)), GPULOSSI_CE_LSE_IN | GPULOSSI_CE_GRADIENT);
    gpuloss_destroy(context);
}

/* The divisor is summed on the way, unless it is prepared, as for a gradient of many rows or with class weights. */
static void a_bit_for_counts(void **state) {
    enum { BASE = GPULOSSI_CE_LOSS | GPULOSSI_CE_GRADIENT };
    gpuloss_cross_entropy_desc base = without_options(), d;
    (void)state;
    context = new_context();
    base.flags = GPULOSS_USE_IGNORE_INDEX;
    base.target_type = GPULOSS_I64;
    CALL((void)0, BASE | GPULOSSI_CE_COUNTS);
    CALL(d.rows = 4097, BASE);
    CALL(d.target_type = GPULOSS_I16, BASE);
    CALL((d.rows = 4097, d.grad_logits = NULL), GPULOSSI_CE_LOSS | GPULOSSI_CE_COUNTS);
    CALL((d.class_weights = AT(6), d.grad_logits = NULL),
         GPULOSSI_CE_LOSS | GPULOSSI_CE_CLASS_WEIGHTS | GPULOSSI_CE_COUNTS);
    CALL(d.class_weights = AT(6), BASE | GPULOSSI_CE_CLASS_WEIGHTS);
    assert_int_equal(last_launch()->parameters.rows.flags & BY_PREPARED, BY_PREPARED);
    assert_int_equal(fake.launches, 2);
    CALL(d.reduction = GPULOSS_BATCHMEAN, BASE);
    CALL(d.divisor = 2.0, BASE);
    gpuloss_destroy(context);
}

/* Rows that do not consist of whole vectors of every array that is given, or where these do not begin on such vectors. */
static void rows_that_are_ragged(void **state) {
    enum { F16 = GPULOSSI_FORMAT_F16 << GPULOSSI_FORMAT_GRADIENT_SHIFT, RAGGED = GPULOSSI_FORMAT_RAGGED };
    enum { SOFT = GPULOSSI_FORMAT_TWO_ARRAYS, F64 = GPULOSSI_FORMAT_F64 << GPULOSSI_FORMAT_TARGET_SHIFT };
    gpuloss_cross_entropy_desc base = rows_of(GPULOSS_F32, 1000, 250), d;
    (void)state;
    context = new_context();
    FORMAT((void)0, 0);
    FORMAT((d.classes = 1001, d.logits_stride = d.grad_logits_stride = 1004), RAGGED);
    FORMAT(d.logits = (const char *)d.logits + 4, RAGGED);
    FORMAT(d.logits_stride = 1001, RAGGED);
    FORMAT(d.logits_stride = 1004, 0);
    FORMAT(d.grad_logits = (char *)d.grad_logits + 8, RAGGED);
    FORMAT(d.grad_logits_stride = 1002, RAGGED);
    FORMAT(d.grad_logits_stride = 1004, 0);
    FORMAT((d.grad_logits = NULL, d.grad_logits_stride = 1001), 0);
    /* As many elements as a vector of logits has are half as many bytes. */
    FORMAT((d.grad_dtype = GPULOSS_F16, d.grad_logits = (char *)d.grad_logits + 8), F16);
    FORMAT((d.grad_dtype = GPULOSS_F16, d.grad_logits = (char *)d.grad_logits + 4), F16 | RAGGED);
    FORMAT((d.grad_dtype = GPULOSS_F16, d.grad_logits_stride = 1004), F16);
    FORMAT((d.grad_dtype = GPULOSS_F16, d.grad_logits_stride = 1002), F16 | RAGGED);
    FORMAT(d.class_weights = AT(6), 0);
    FORMAT(d.class_weights = (const char *)AT(6) + 4, RAGGED);
    give_probabilities(&base);
    FORMAT((void)0, SOFT);
    FORMAT(d.target_probabilities = (const char *)d.target_probabilities + 4, RAGGED);
    FORMAT(d.target_probabilities_stride = 1001, RAGGED);
    /* Rows that begin anywhere, but at the same element of a vector in both arrays. */
    FORMAT(d.logits_stride = d.target_probabilities_stride = 1001, RAGGED | SOFT);
    FORMAT((d.logits_stride = 1001, d.target_probabilities_stride = 1005), RAGGED | SOFT);
    FORMAT((d.logits = (const char *)d.logits + 4, d.target_probabilities = (const char *)d.target_probabilities + 4),
           RAGGED | SOFT);
    FORMAT((d.logits = (const char *)d.logits + 8, d.target_probabilities = (const char *)d.target_probabilities + 4),
           RAGGED);
    FORMAT(d.target_probabilities_stride = 1004, SOFT);
    FORMAT(d.grad_target_probabilities = AT(6), SOFT);
    FORMAT(d.grad_target_probabilities = (char *)AT(6) + 8, RAGGED | SOFT);
    FORMAT((d.grad_target_probabilities = AT(6), d.grad_target_probabilities_stride = 1002), RAGGED | SOFT);
    FORMAT(d.grad_target_probabilities_stride = 1001, SOFT);
    /* Twice as many bytes are two vectors. */
    FORMAT(d.target_dtype = GPULOSS_F64, F64);
    FORMAT((d.target_dtype = GPULOSS_F64, d.target_probabilities = (const char *)AT(20) + 8), F64 | RAGGED);
    FORMAT((d.target_dtype = GPULOSS_F64, d.target_probabilities_stride = 1001), F64 | RAGGED);
    FORMAT((d.target_dtype = GPULOSS_F64, d.target_probabilities_stride = 1002), F64);
    /* Of a shard, the weights of its own classes. */
    base = some_shard();
    base.class_weights = AT(6);
    FORMAT((void)0, 0);
    FORMAT(d.class_offset = 2004, 0);
    FORMAT(d.class_offset = 2001, RAGGED);
    FORMAT((d.class_offset = 2001, d.class_weights = (const char *)AT(6) + 12), 0);
    FORMAT((d.class_offset = 2001, d.class_weights = NULL), 0);
    gpuloss_destroy(context);
}

/* Types of other arrays count where there are such arrays, and where they are others than that of the logits. */
static void types_of_arrays(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        uint32_t bit;
    } types[] = {{GPULOSS_F32, GPULOSSI_FORMAT_F32},
                 {GPULOSS_F64, GPULOSSI_FORMAT_F64},
                 {GPULOSS_F16, GPULOSSI_FORMAT_F16},
                 {GPULOSS_BF16, GPULOSSI_FORMAT_BF16_ARRAY}};
    size_t t, other;
    (void)state;
    context = new_context();
    for (t = 0; t < 4; t++) {
        const gpuloss_dtype dtype = types[t].dtype;
        const uint32_t of_logits = dtype == GPULOSS_BF16 ? (uint32_t)GPULOSSI_FORMAT_BF16 : 0;
        for (other = 0; dtype != GPULOSS_F64 && other < 4; other++) {
            gpuloss_cross_entropy_desc base = rows_of(dtype, 1000, 250), d;
            const gpuloss_dtype type = types[other].dtype;
            const uint32_t bit = dtype == type ? 0 : types[other].bit;
            const uint32_t staged = dtype == type || type == GPULOSS_F32 ? (uint32_t)GPULOSSI_FORMAT_TWO_ARRAYS : 0;
            FORMAT(d.grad_dtype = type, of_logits | bit << 8);
            FORMAT((d.grad_dtype = type, d.grad_logits = NULL), of_logits);
            FORMAT(d.target_dtype = type, of_logits);
            give_probabilities(&base);
            FORMAT(d.target_dtype = type, of_logits | bit << 12 | staged);
            FORMAT((d.target_dtype = type, d.grad_dtype = type), of_logits | bit << 8 | bit << 12 | staged);
        }
    }
    gpuloss_destroy(context);
}

/* In clusters blocks may be wide, unless a call takes many registers. Stages are short for few rows, and in wide blocks for
 * floats with smoothing and for the class of the maximum of ragged rows. Nothing else of the format is about blocks then. */
static void formats_of_clusters(void **state) {
    enum {
        CLUSTER = GPULOSSI_FORMAT_CLUSTER,
        WIDE = CLUSTER | GPULOSSI_FORMAT_WIDE,
        SHORT = GPULOSSI_FORMAT_SHORT_STAGES
    };
    gpuloss_cross_entropy_desc base = rows_of(GPULOSS_F32, 1000, 2049), d;
    (void)state;
    context = new_context();
    FORMAT((void)0, WIDE);
    assert_true(last_launch()->cluster > 0);
    FORMAT(d.classes -= 4, 0);
    assert_int_equal(last_launch()->cluster, 0);
    FORMAT(d.logit_scale = 1.0, WIDE);
    FORMAT(d.class_weights = AT(6), WIDE);
    FORMAT(d.label_smoothing = 0.1, WIDE | SHORT);
    FORMAT((d.label_smoothing = 0.1, d.dtype = GPULOSS_BF16, d.classes *= 2), WIDE | GPULOSSI_FORMAT_BF16);
    FORMAT(d.rows = 132, WIDE);
    FORMAT(d.rows = 131, WIDE | SHORT);
    FORMAT((d.class_weights = AT(6), give_probabilities(&d)), WIDE | GPULOSSI_FORMAT_TWO_ARRAYS);
    FORMAT(d.softcap = 2.0, WIDE);
    FORMAT(d.argmax = (int64_t *)AT(6), WIDE);
    FORMAT(d.correct = (int64_t *)AT(6), WIDE);
    FORMAT((d.argmax = (int64_t *)AT(6), d.logits_stride = d.classes + 1), WIDE | SHORT | GPULOSSI_FORMAT_RAGGED);
    FORMAT((d.class_weights = AT(6), d.softcap = 2.0, d.argmax = (int64_t *)AT(7)), WIDE);
    FORMAT(d.logits_stride = d.classes + 1, WIDE | GPULOSSI_FORMAT_RAGGED);
    FORMAT(d.class_weights = (const char *)AT(6) + 4, WIDE | GPULOSSI_FORMAT_RAGGED);
    FORMAT((d.class_weights = (const char *)AT(6) + 4, d.label_smoothing = 0.1), CLUSTER | GPULOSSI_FORMAT_RAGGED);
    FORMAT((d.class_weights = (const char *)AT(6) + 4, give_probabilities(&d)),
           CLUSTER | GPULOSSI_FORMAT_RAGGED | GPULOSSI_FORMAT_TWO_ARRAYS);
    FORMAT((d.dtype = GPULOSS_BF16, d.classes *= 2), WIDE | GPULOSSI_FORMAT_BF16);
    base.dtype = GPULOSS_F16;
    base.classes *= 2;
    FORMAT(d.class_weights = AT(6), WIDE);
    FORMAT(d.softcap = 2.0, WIDE);
    FORMAT((d.class_weights = AT(6), d.softcap = 2.0), CLUSTER);
    FORMAT((d.class_weights = AT(6), d.argmax = (int64_t *)AT(7)), CLUSTER);
    base = some_shard();
    base.rows = 8;
    base.classes = 1 << 16;
    base.total_classes = 1 << 18;
    FORMAT((void)0, CLUSTER | SHORT);
    assert_int_equal(last_launch()->parameters.rows.of.tile_rows, 1);
    gpuloss_destroy(context);
}

/* Stages are short where a thread has no more than 4 vectors. */
static void short_stages(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        int64_t rows, vectors;
        unsigned group;
        int is_short;
    } cases[] = {{GPULOSS_F32, 1000, 48, 32, 1},   {GPULOSS_F32, 1000, 128, 32, 1},  {GPULOSS_F32, 1000, 129, 32, 0},
                 {GPULOSS_F32, 1000, 256, 32, 0},  {GPULOSS_F32, 1000, 257, 64, 0},  {GPULOSS_BF16, 1000, 48, 32, 1},
                 {GPULOSS_BF16, 1000, 128, 32, 1}, {GPULOSS_BF16, 1000, 129, 32, 0}, {GPULOSS_BF16, 1000, 512, 64, 0}};
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const gpuloss_cross_entropy_desc d = rows_of(cases[i].dtype, cases[i].rows, cases[i].vectors);
        const uint32_t word = launched(&d, __LINE__)->module->words[GPULOSSI_FORMAT_WORD];
        if (((word & GPULOSSI_FORMAT_SHORT_STAGES) != 0) != cases[i].is_short ||
            last_launch()->parameters.rows.group != cases[i].group)
            fail_msg("case %d: format %#x, %u threads a row", (int)i, word, last_launch()->parameters.rows.group);
    }
    gpuloss_destroy(context);
}

/* A warp alone takes a row of at most 8 vectors of a lane in one step. A second array has its part of these, and 4 are left
 * for the first one. Floats beside 16 bits have 8 of the 12 vectors of a long stage. */
static void rows_of_one_step(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        int64_t rows, vectors;
        unsigned group;
        int has_targets, is_one;
    } cases[] = {{GPULOSS_F32, 100000, 48, 32, 0, 1},   {GPULOSS_F32, 100000, 128, 32, 0, 1},
                 {GPULOSS_F32, 100000, 256, 32, 0, 1},  {GPULOSS_F32, 100000, 257, 64, 0, 0},
                 {GPULOSS_BF16, 100000, 256, 32, 0, 1}, {GPULOSS_BF16, 100000, 257, 32, 0, 0},
                 {GPULOSS_F32, 100000, 128, 32, 1, 1},  {GPULOSS_F32, 100000, 129, 64, 1, 0},
                 {GPULOSS_F32, 100000, 64, 32, 1, 0},   {GPULOSS_F32, 100000, 65, 32, 1, 1},
                 {GPULOSS_BF16, 100000, 64, 32, 1, 1},  {GPULOSS_BF16, 100000, 65, 32, 1, 1},
                 {GPULOSS_BF16, 100000, 128, 32, 1, 1}, {GPULOSS_BF16, 100000, 129, 64, 1, 0},
                 {GPULOSS_F32, 8, 257, 64, 0, 0}};
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gpuloss_cross_entropy_desc d = rows_of(cases[i].dtype, cases[i].rows, cases[i].vectors);
        if (cases[i].has_targets) {
            give_probabilities(&d);
            d.target_dtype = GPULOSS_F32;
        }
        if (has_format(launched(&d, __LINE__), GPULOSSI_FORMAT_ONE_STEP) != cases[i].is_one ||
            last_launch()->parameters.rows.group != cases[i].group)
            fail_msg("case %d: format %#x, %u threads a row", (int)i,
                     last_launch()->module->words[GPULOSSI_FORMAT_WORD], last_launch()->parameters.rows.group);
    }
    gpuloss_destroy(context);
}

/* Vectors of rows of 8 KiB are counted from lines, unless all rows begin on lines. */
static void rows_without_lines(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
    size_t i;
    int longer;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        for (longer = 0; longer < 2; longer++) {
            gpuloss_cross_entropy_desc d = rows_of(dtypes[i], 1000, 512);
            d.label_smoothing = 0.1;
            assert_true(has_format(launched(&d, __LINE__), GPULOSSI_FORMAT_NO_LINES));
            d.logits_stride = d.classes + (dtypes[i] == GPULOSS_F32 ? 16 : 32);
            d.classes -= !longer;
            assert_int_equal(has_format(launched(&d, __LINE__), GPULOSSI_FORMAT_NO_LINES), !longer);
            d.classes += !longer;
            d.logits_stride = 2 * d.classes;
            d.logits = (const char *)d.logits + 64;
            d.classes -= !longer;
            assert_int_equal(has_format(launched(&d, __LINE__), GPULOSSI_FORMAT_NO_LINES), !longer);
        }
    gpuloss_destroy(context);
}

/* Stages of floats beside 16 bits are long. Those of two arrays of one type are if a row takes more than two of them, and
 * none is retained for a gradient. */
static void long_stages(void **state) {
    gpuloss_cross_entropy_desc d;
    (void)state;
    context = new_context();
#define LONG(dtype, rows, vectors, change, is_long)                                                                    \
    do {                                                                                                               \
        d = rows_of(dtype, rows, vectors);                                                                             \
        give_probabilities(&d);                                                                                        \
        d.grad_logits = NULL;                                                                                          \
        change;                                                                                                        \
        assert_int_equal(has_format(launched(&d, __LINE__), GPULOSSI_FORMAT_LONG_STAGES), is_long);                    \
    } while (0)
    LONG(GPULOSS_F32, 100000, 12 * 32 + 1, (void)0, 1);
    LONG(GPULOSS_F32, 100000, 12 * 32, (void)0, 0);
    LONG(GPULOSS_F32, 100000, 12 * 32 + 1, d.target_dtype = GPULOSS_F16, 0);
    LONG(GPULOSS_F32, 100000, 1500, d.grad_logits = AT(6), 0);
    LONG(GPULOSS_F16, 100000, 500, (d.grad_logits = AT(6), d.target_dtype = GPULOSS_F32), 1);
    LONG(GPULOSS_F16, 100000, 500, (d.target_dtype = GPULOSS_F32, d.class_weights = AT(7)), 0);
    LONG(GPULOSS_F32, 100000, 4000,
         (d.target_probabilities = NULL, d.targets = AT(5), d.target_type = GPULOSS_I64, d.class_weights = AT(7),
          d.label_smoothing = 0.1, d.loss = NULL, d.lse_in = AT(8), d.grad_logits = AT(6)),
         1);
    LONG(GPULOSS_F16, 100, 16032, d.target_dtype = GPULOSS_F32, 0);
    assert_true(last_launch()->cluster > 0);
    LONG(GPULOSS_F16, 10000, 16032, (d.grad_logits = AT(6), d.target_dtype = GPULOSS_F32), 0);
    assert_true(last_launch()->cluster > 0);
#undef LONG
    gpuloss_destroy(context);
}

/* Target probabilities are in the stages, so a row of half as many vectors needs as many threads. */
static void stages_of_targets(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        int64_t vectors;
        unsigned group, clustered;
    } cases[] = {{GPULOSS_F32, 128, 32, 0},   {GPULOSS_F32, 129, 64, 0},   {GPULOSS_F32, 1024, 256, 0},
                 {GPULOSS_F32, 1025, 256, 1}, {GPULOSS_BF16, 256, 128, 0}, {GPULOSS_BF16, 512, 128, 0},
                 {GPULOSS_BF16, 513, 256, 1}};
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gpuloss_cross_entropy_desc d = rows_of(cases[i].dtype, 1000, cases[i].vectors);
        const fake_launched *l;
        give_probabilities(&d);
        d.target_dtype = GPULOSS_F32;
        l = launched(&d, __LINE__);
        if (l->parameters.rows.group != cases[i].group || (l->cluster != 0) != cases[i].clustered)
            fail_msg("case %d: %u threads a row, clusters of %u", (int)i, l->parameters.rows.group, l->cluster);
    }
    gpuloss_destroy(context);
}

/* Losses of short stages have half of the memory, for three blocks at a time, unless they take many registers. */
static void three_blocks_of_losses(void **state) {
    enum { SHORT = GPULOSSI_FORMAT_SHORT_STAGES, THREE = SHORT | GPULOSSI_FORMAT_THREE_BLOCKS };
    gpuloss_cross_entropy_desc base = rows_of(GPULOSS_F32, 1000, 128), d;
    (void)state;
    context = new_context();
    base.grad_logits = NULL;
    FORMAT((void)0, THREE);
    assert_int_equal(last_launch()->shared_bytes, 49152);
    assert_int_equal(last_launch()->module->shared_bytes_set, 49152);
    FORMAT(d.grad_logits = AT(4), SHORT);
    assert_int_equal(last_launch()->shared_bytes, 98304);
    FORMAT(d.classes += 4, 0);
    assert_int_equal(last_launch()->shared_bytes, 98304);
    FORMAT(d.softcap = 2.0, THREE);
    FORMAT(d.argmax = (int64_t *)AT(6), THREE);
    FORMAT(d.class_weights = AT(6), THREE);
    FORMAT(d.class_weights = (const char *)AT(6) + 4, SHORT | GPULOSSI_FORMAT_RAGGED);
    FORMAT((d.class_weights = AT(6), d.label_smoothing = 0.1), THREE | GPULOSSI_FORMAT_SMEM_WEIGHTS);
    FORMAT((d.class_weights = AT(6), d.label_smoothing = 0.1, d.grad_logits = AT(4)),
           SHORT | GPULOSSI_FORMAT_SMEM_WEIGHTS);
    FORMAT((d.classes = 508, d.logits_stride = 509), THREE | GPULOSSI_FORMAT_RAGGED);
    FORMAT(give_probabilities(&d), GPULOSSI_FORMAT_TWO_ARRAYS);
    FORMAT((give_probabilities(&d), d.classes = 256), THREE | GPULOSSI_FORMAT_TWO_ARRAYS);
    FORMAT((give_probabilities(&d), d.classes = 257), THREE | GPULOSSI_FORMAT_TWO_ARRAYS | GPULOSSI_FORMAT_RAGGED);
    base = some_shard();
    base.classes = 512;
    FORMAT((void)0, SHORT);
    gpuloss_destroy(context);
}

/* Class weights are in shared memory where all targets need them and there are at most 8192 of them. */
static void weights_in_shared_memory(void **state) {
    enum { SMEM = GPULOSSI_FORMAT_SMEM_WEIGHTS, SHORT = GPULOSSI_FORMAT_SHORT_STAGES };
    static const struct {
        gpuloss_dtype dtype;
        int writes;
        int64_t rows, vectors;
        unsigned group;
        uint32_t format;
    } cases[] = {{GPULOSS_F32, 1, 1000, 128, 32, SMEM | SHORT}, {GPULOSS_F32, 1, 1000, 256, 32, SMEM},
                 {GPULOSS_F32, 1, 1000, 257, 64, SMEM},         {GPULOSS_F32, 1, 1000, 2048, 256, SMEM},
                 {GPULOSS_F32, 0, 1 << 20, 2048, 64, SMEM},     {GPULOSS_F16, 1, 1 << 20, 128, 32, SMEM | SHORT},
                 {GPULOSS_F16, 1, 1 << 20, 129, 32, SMEM},      {GPULOSS_F16, 1, 1 << 20, 257, 64, SMEM},
                 {GPULOSS_F16, 0, 1 << 20, 512, 32, SMEM},      {GPULOSS_F16, 0, 1 << 20, 1024, 32, SMEM},
                 {GPULOSS_F16, 0, 1 << 20, 1025, 32, 0},        {GPULOSS_F16, 1, 1 << 20, 1024, 128, SMEM},
                 {GPULOSS_F16, 1, 1 << 20, 1025, 128, 0}};
    gpuloss_cross_entropy_desc base, d;
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        d = rows_of(cases[i].dtype, cases[i].rows, cases[i].vectors);
        d.class_weights = AT(6);
        d.label_smoothing = 0.1;
        if (!cases[i].writes)
            d.grad_logits = NULL;
        expect_word(&d, GPULOSSI_FORMAT_WORD, cases[i].format, __LINE__);
        if (last_launch()->parameters.rows.group != cases[i].group || last_launch()->shared_bytes != 98304)
            fail_msg("case %d: %u threads a row", (int)i, last_launch()->parameters.rows.group);
    }
    base = rows_of(GPULOSS_F32, 1000, 250);
    base.class_weights = AT(6);
    FORMAT((void)0, 0);
    FORMAT(d.label_smoothing = 0.1, SMEM);
    FORMAT((d.label_smoothing = 0.1, d.class_weights = NULL), 0);
    FORMAT(give_probabilities(&d), SMEM | GPULOSSI_FORMAT_TWO_ARRAYS);
    FORMAT((give_probabilities(&d), d.class_weights = NULL), GPULOSSI_FORMAT_TWO_ARRAYS);
    FORMAT((d.label_smoothing = 0.1, d.class_weights = (const char *)AT(6) + 4), SMEM | GPULOSSI_FORMAT_RAGGED);
    FORMAT((d.label_smoothing = 0.1, d.logits_stride = 1001), SMEM | GPULOSSI_FORMAT_RAGGED);
    FORMAT((d.label_smoothing = 0.1, d.softcap = 2.0, d.classes = 8191), SMEM | GPULOSSI_FORMAT_RAGGED);
    FORMAT((d.label_smoothing = 0.1, d.softcap = 2.0, d.classes = 8193), GPULOSSI_FORMAT_RAGGED);
    FORMAT((d.label_smoothing = 0.1, d.softcap = 2.0, d.rows = 100, d.classes = 8192,
            d.class_weights = (const char *)AT(6) + 4),
           GPULOSSI_FORMAT_RAGGED | GPULOSSI_FORMAT_CLUSTER | GPULOSSI_FORMAT_SHORT_STAGES);
    gpuloss_destroy(context);
}

/* More class weights go through the pipeline, where each row is swept once and begins where they do. */
static void weights_in_stages(void **state) {
    enum {
        STAGED = GPULOSSI_FORMAT_TWO_ARRAYS,
        RAGGED = GPULOSSI_FORMAT_RAGGED,
        WIDE = GPULOSSI_FORMAT_CLUSTER | GPULOSSI_FORMAT_WIDE | GPULOSSI_FORMAT_SHORT_STAGES,
        FLOATS = GPULOSSI_FORMAT_F32 << GPULOSSI_FORMAT_TARGET_SHIFT
    };
    gpuloss_cross_entropy_desc base = rows_of(GPULOSS_F32, 1000, 2050), d;
    (void)state;
    context = new_context();
    base.class_weights = AT(6);
    base.label_smoothing = 0.1;
    base.softcap = 2.0;
    FORMAT((void)0, WIDE);
    FORMAT(d.classes = 14000, 0);
    FORMAT(d.grad_logits = NULL, STAGED);
    FORMAT((d.grad_logits = NULL, d.rows = 100), WIDE);
    FORMAT((d.grad_logits = NULL, give_probabilities(&d), d.target_probabilities_stride = 8201), RAGGED);
    FORMAT((d.grad_logits = NULL, d.classes = 8192), GPULOSSI_FORMAT_SMEM_WEIGHTS);
    FORMAT((d.grad_logits = NULL, d.classes = 8197, d.logits_stride = 8200), STAGED | RAGGED);
    FORMAT((d.grad_logits = NULL, d.logits_stride = 8201), RAGGED);
    FORMAT((d.grad_logits = NULL, d.class_weights = (const char *)AT(6) + 4), RAGGED);
    FORMAT((d.grad_logits = NULL, d.class_weights = NULL), 0);
    FORMAT((d.grad_logits = NULL, d.label_smoothing = 0), 0);
    FORMAT((d.grad_logits = NULL, d.dtype = GPULOSS_BF16, d.classes = 16400), GPULOSSI_FORMAT_BF16);
    FORMAT((d.loss = NULL, d.lse_in = AT(7), d.dtype = GPULOSS_BF16, d.classes = 16400),
           STAGED | FLOATS | GPULOSSI_FORMAT_BF16);
    FORMAT((d.loss = NULL, d.lse_in = AT(7)), STAGED);
    base = rows_of(GPULOSS_F64, 1 << 20, 2048);
    base.class_weights = AT(6);
    base.label_smoothing = 0.1;
    base.grad_logits = NULL;
    FORMAT((void)0, GPULOSSI_FORMAT_SMEM_WEIGHTS);
    FORMAT(d.classes = 4098, STAGED);
    FORMAT(d.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56), STAGED);
    FORMAT((d.classes = 4097, d.logits_stride = 4098), STAGED | RAGGED);
    FORMAT(d.class_weights = (const char *)AT(6) + 8, RAGGED);
    base = some_shard();
    base.class_weights = AT(6);
    base.label_smoothing = 0.1;
    base.softcap = 2.0;
    base.rows = 1000;
    base.classes = 8200;
    base.total_classes = 20000;
    FORMAT(d.class_offset = 4, STAGED);
    FORMAT(d.class_offset = 5, RAGGED);
    gpuloss_destroy(context);
}

/* Of many short rows a team takes four in a row: where each of the teams that run at once has 32 of them. */
static void rows_of_a_team(void **state) {
    static const struct {
        int64_t rows, vectors;
        unsigned group, slots;
    } cases[] = {{16 * 132 * 32, 250, 32, 4},
                 {16 * 132 * 32 - 1, 250, 32, 1},
                 {8 * 132 * 32, 512, 64, 4},
                 {8 * 132 * 32 - 1, 512, 64, 1},
                 {1 << 20, 513, 128, 1},
                 {1 << 20, 48, 32, 4},
                 {1, 250, 32, 1}};
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const gpuloss_cross_entropy_desc d = rows_of(GPULOSS_F32, cases[i].rows, cases[i].vectors);
        const gpulossi_rows *rows = &launched(&d, __LINE__)->parameters.rows;
        if (rows->group != cases[i].group || rows->of.tile_rows != cases[i].slots)
            fail_msg("case %d: %u threads a row, %u rows", (int)i, rows->group, rows->of.tile_rows);
        expect_row_group(last_launch(), d.rows, cases[i].group, __LINE__);
    }
    gpuloss_destroy(context);
}

static const fake_module *expect_loads(const gpuloss_cross_entropy_desc *d, long loads, int line) {
    const long before = fake.loads;
    const fake_module *module = launched(d, line)->module;
    if (fake.loads - before != loads)
        fail_msg("line %d: %ld kernels are loaded", line, fake.loads - before);
    return module;
}

/* The same features are one kernel, and others are another one of the same text, of which none is lost. */
static void calls_that_share_a_kernel(void **state) {
    gpuloss_cross_entropy_desc first = rows_of(GPULOSS_F32, 1000, 250), second = first, half;
    const fake_module *of_first, *of_second, *of_half;
    gpuloss_info info;
    (void)state;
    context = new_context();
    of_first = expect_loads(&first, 2, __LINE__); /* and the prepare kernel */
    first.rows = 77;
    first.logit_scale = 0.25;
    assert_ptr_equal(expect_loads(&first, 0, __LINE__), of_first);
    second.softcap = 2.0;
    of_second = expect_loads(&second, 1, __LINE__);
    assert_ptr_not_equal(of_second, of_first);
    assert_ptr_equal(expect_loads(&first, 0, __LINE__), of_first);
    assert_ptr_equal(expect_loads(&second, 0, __LINE__), of_second);
    second.softcap = 0.0;
    second.logits_stride = 1001;
    assert_ptr_not_equal(expect_loads(&second, 1, __LINE__), of_first);
    half = rows_of(GPULOSS_F16, 1000, 250);
    of_half = expect_loads(&half, 1, __LINE__);
    half.dtype = GPULOSS_BF16;
    assert_ptr_not_equal(expect_loads(&half, 1, __LINE__), of_half);
    half.dtype = GPULOSS_F16;
    assert_ptr_equal(expect_loads(&half, 0, __LINE__), of_half);
    assert_ptr_equal(expect_loads(&first, 0, __LINE__), of_first);
    expect_ok(gpuloss_get_info(context, &info));
    assert_int_equal(info.kernels_loaded, 6);
    assert_int_equal(fake_live_modules(), 6);
    gpuloss_destroy(context);
}

/* In another context the same features are another kernel. */
static void contexts_do_not_share_kernels(void **state) {
    const gpuloss_cross_entropy_desc d = rows_of(GPULOSS_F32, 1000, 250);
    gpuloss_context *first = new_context(), *second = new_context();
    const fake_module *of_first;
    (void)state;
    context = first;
    of_first = expect_loads(&d, 2, __LINE__);
    context = second;
    assert_ptr_not_equal(expect_loads(&d, 2, __LINE__), of_first);
    gpuloss_destroy(first);
    gpuloss_destroy(second);
}

int pipeline_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_bit_for_each_option),
        TEST(a_bit_for_counts),
        TEST(rows_that_are_ragged),
        TEST(types_of_arrays),
        TEST(formats_of_clusters),
        TEST(short_stages),
        TEST(rows_of_one_step),
        TEST(rows_without_lines),
        TEST(long_stages),
        TEST(stages_of_targets),
        TEST(three_blocks_of_losses),
        TEST(rows_of_a_team),
        TEST(weights_in_shared_memory),
        TEST(weights_in_stages),
        TEST(calls_that_share_a_kernel),
        TEST(contexts_do_not_share_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
