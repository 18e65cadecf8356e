/* gpuloss_kl_div_sparse: which kernel, for which features a call has it specialised, how rows are spread, no rows,
 * workspaces. */
#include "check.h"

#include <stdio.h>

static gpuloss_context *context;       /* with a pipeline, ... */
static gpuloss_context *other_context; /* ... and without */

static void begin(void) {
    other_context = new_context_without_clusters();
    fake.has_clusters = 1;
    context = new_context();
}
static void end(void) {
    gpuloss_destroy(context);
    gpuloss_destroy(other_context);
}

static const fake_launched *launched(gpuloss_context *in, const gpuloss_kl_div_sparse_desc *d, const char *name,
                                     int line) {
    fake.launches = 0;
    expect_ok_(gpuloss_kl_div_sparse(in, d, stream_number(1)), line);
    expect_module(name, d->dtype, line);
    assert_int_equal(last_launch()->block, GPULOSSI_BLOCK);
    assert_int_equal(last_launch()->shared_bytes, strcmp(name, "kl_div_sparse_memory") == 0 ? 16384 : 98304);
    assert_ptr_equal(last_launch()->stream, stream_number(1));
    assert_int_equal(last_launch()->parameters.rows.rows, d->rows);
    assert_int_equal(last_launch()->parameters.rows.classes, d->classes);
    return last_launch();
}
static const fake_launched *in_pipeline(const gpuloss_kl_div_sparse_desc *d, int line) {
    return launched(context, d, "kl_div_sparse_pipeline", line);
}
static const fake_launched *in_memory(const gpuloss_kl_div_sparse_desc *d, int line) {
    return launched(other_context, d, "kl_div_sparse_memory", line);
}

/* Rows of so many vectors, which begin on vectors. */
static gpuloss_kl_div_sparse_desc rows_of(gpuloss_dtype dtype, int writes, int64_t rows, int64_t vectors, int64_t k) {
    gpuloss_kl_div_sparse_desc d = some_kl_div_sparse();
    d.dtype = dtype;
    d.rows = rows;
    d.classes = vectors * (16 / every_dtype[dtype - GPULOSS_F32].bytes);
    d.k = k;
    d.index_type = GPULOSS_I64;
    d.indices = GPULOSS_PTR((uintptr_t)1 << 54);
    d.values = GPULOSS_PTR((uintptr_t)1 << 55);
    d.grad_logits = writes ? GPULOSS_PTR((uintptr_t)1 << 56) : NULL;
    return d;
}

/* The pipeline is for rows that tiles have no space for, and whose entries are in registers, whatever else is given. */
static void kernels_of_calls(void **state) {
    size_t t;
    (void)state;
    begin();
    for (t = 0; t < DTYPES; t++) {
        gpuloss_kl_div_sparse_desc base = rows_of(every_dtype[t].dtype, 1, 1000, 250, 16), d;
        const int width = 16 / every_dtype[t].bytes, is_double = every_dtype[t].dtype == GPULOSS_F64;
#define TAKES(change, name)                                                                                            \
    do {                                                                                                               \
        d = base;                                                                                                      \
        change;                                                                                                        \
        launched(context, &d, is_double ? "kl_div_sparse_memory" : "kl_div_sparse_" name, __LINE__);                   \
        in_memory(&d, __LINE__);                                                                                       \
    } while (0)
        TAKES((void)0, "pipeline");
        TAKES(d.classes = 47 * width, "memory");
        TAKES(d.classes = 48 * width - 1, "memory");
        TAKES(d.classes = 48 * width, "pipeline");
        TAKES((d.classes = 47 * width, d.logits_stride = 47 * width + 1), "memory");
        TAKES((d.classes = 48 * width, d.logits_stride = 48 * width + 1), "pipeline");
        TAKES((d.classes = 47 * width, d.rows = 1), "memory");
        TAKES((d.classes = 5000 * width, d.rows = 1), "pipeline");
        TAKES((d.classes = 500 * width, d.k = 512), "pipeline");
        TAKES((d.classes = 500 * width, d.k = 513), "memory");
        TAKES((d.classes = 5000 * width, d.rows = 1, d.k = 1000), "memory");
        TAKES(d.value_dtype = GPULOSS_F64, "pipeline");
        TAKES(d.value_kind = GPULOSS_LOG_PROBABILITIES, "pipeline");
        TAKES(d.residual = GPULOSS_DROP, "pipeline");
        TAKES((d.index_type = GPULOSS_U8, d.k = 1), "pipeline");
        TAKES((d.temperature = 2.0, d.flags = GPULOSS_TEMPERATURE_SQUARED), "pipeline");
        TAKES(d.row_weights = AT(6), "pipeline");
        TAKES((GIVE_LABELS(&d), d.divisor_in = AT(6)), "pipeline");
        TAKES((d.grad_logits = NULL, d.loss = NULL, d.bad_indices = (int64_t *)AT(6)), "pipeline");
    }
    end();
}

/* Older GPUs, and those without the memory of a pipeline, have the kernel in memory for all rows. */
static void gpus_without_a_pipeline(void **state) {
    static const struct {
        int major, minor, shared_optin;
        const char *name;
    } gpus[] = {{5, 0, 48, "kl_div_sparse_memory"},    {7, 0, 96, "kl_div_sparse_memory"},
                {8, 0, 163, "kl_div_sparse_memory"},   {9, 0, 119, "kl_div_sparse_memory"},
                {9, 0, 120, "kl_div_sparse_pipeline"}, {12, 0, 227, "kl_div_sparse_pipeline"}};
    static const int64_t vectors[] = {48, 2048, 1 << 20};
    size_t i, v;
    (void)state;
    for (i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        fake.major = gpus[i].major;
        fake.minor = gpus[i].minor;
        fake.shared_optin = gpus[i].shared_optin * 1024;
        context = new_context();
        for (v = 0; v < 3; v++) {
            const gpuloss_kl_div_sparse_desc d = rows_of(GPULOSS_F32, 1, 100, vectors[v], 16);
            const int has_pipeline = strstr(gpus[i].name, "pipeline") != NULL;
            (void)launched(context, &d, gpus[i].name, __LINE__);
            assert_int_equal(last_launch()->cluster > 0, has_pipeline && v > 0);
        }
        gpuloss_destroy(context);
    }
}

/* But for the bits of the length of rows and of newer GPUs. */
static void expect_words(const fake_launched *l, uint32_t call, uint32_t format, int line) {
    const uint32_t *got = l->module->words;
    if (got[GPULOSSI_CALL_WORD] != call ||
        (got[GPULOSSI_FORMAT_WORD] & ~(uint32_t)(GPULOSSI_FORMAT_NO_LINES | GPULOSSI_FORMAT_SM_80)) != format)
        fail_msg("line %d: %s has the words %#x, %#x instead of %#x, %#x", line, l->entry, got[GPULOSSI_CALL_WORD],
                 got[GPULOSSI_FORMAT_WORD], call, format);
}

/* The words of a call, in the pipeline and in memory. */
static void expect_both(const gpuloss_kl_div_sparse_desc *d, uint32_t call, uint32_t format, int line) {
    expect_words(in_pipeline(d, line), call, format, line);
    expect_words(in_memory(d, line), call, format, line);
}
#define CALL(change, features)                                                                                         \
    do {                                                                                                               \
        d = base;                                                                                                      \
        change;                                                                                                        \
        expect_both(&d, (uint32_t)(features), 0, __LINE__);                                                            \
    } while (0)
#define FORMAT(change, features)                                                                                       \
    do {                                                                                                               \
        d = base;                                                                                                      \
        change;                                                                                                        \
        expect_both(&d, OF_GRADIENT, (uint32_t)(features), __LINE__);                                                  \
    } while (0)
enum { OF_GRADIENT = GPULOSSI_KL_LOSS | GPULOSSI_KL_GRADIENT | GPULOSSI_KL_BUCKET | GPULOSSI_KL_VALUES };

static void a_bit_for_each_option(void **state) {
    enum { LOSS = GPULOSSI_KL_LOSS | GPULOSSI_KL_VALUES, WRITES = GPULOSSI_KL_GRADIENT, REST = GPULOSSI_KL_BUCKET };
    gpuloss_kl_div_sparse_desc base = rows_of(GPULOSS_F32, 1, 1000, 250, 16), d;
    (void)state;
    begin();
    CALL((void)0, OF_GRADIENT);
    CALL(d.grad_logits = NULL, LOSS | REST);
    CALL(d.loss_rows = AT(6), OF_GRADIENT | GPULOSSI_KL_ROW_OUTPUTS);
    CALL((d.loss = NULL, d.loss_rows = AT(6)), GPULOSSI_KL_ROW_OUTPUTS | GPULOSSI_KL_VALUES | WRITES | REST);
    CALL(d.residual = GPULOSS_DROP, LOSS | WRITES);
    CALL(d.residual = GPULOSS_RENORMALIZE, LOSS | WRITES | GPULOSSI_KL_RENORMALIZE);
    CALL(d.value_kind = GPULOSS_LOG_PROBABILITIES, OF_GRADIENT | GPULOSSI_KL_TARGET_LOGARITHMS);
    CALL(d.row_weights = AT(6), OF_GRADIENT | GPULOSSI_KL_ROW_WEIGHTS);
    CALL(GIVE_LABELS(&d), OF_GRADIENT | GPULOSSI_KL_LABELS);
    CALL(d.grad_loss_rows = AT(6), OF_GRADIENT | GPULOSSI_KL_ROW_GRADIENTS);
    CALL((d.residual = GPULOSS_DROP, d.row_weights = AT(6)), LOSS | WRITES | GPULOSSI_KL_ROW_WEIGHTS);
    /* Every kernel has these options, or the option is a number. */
    CALL(d.temperature = 2.0, OF_GRADIENT);
    CALL((d.temperature = 2.0, d.flags = GPULOSS_TEMPERATURE_SQUARED), OF_GRADIENT);
    CALL(d.k = 1, OF_GRADIENT);
    CALL(d.grad_loss = AT(6), OF_GRADIENT);
    CALL(d.bad_indices = (int64_t *)AT(6), OF_GRADIENT);
    CALL((d.flags = GPULOSS_USE_GRAD_SCALE, d.grad_scale = 2.0), OF_GRADIENT);
    CALL(d.label_type = GPULOSS_I16, OF_GRADIENT);
    end();
}

/* A Jensen-Shannon divergence of beta 0 or 1 is a KL. Divergences but forward KL need a sum for the gradient, and
 * losses and that sum need a sweep over the entries. */
static void bits_of_formulas(void **state) {
    static const struct {
        gpuloss_divergence divergence;
        double beta;
        uint32_t bits;
    } formulas[] = {{GPULOSS_FORWARD_KL, 0.0, 0},
                    {GPULOSS_JENSEN_SHANNON, 0.0, 0},
                    {GPULOSS_REVERSE_KL, 0.0, GPULOSSI_KL_REVERSE},
                    {GPULOSS_JENSEN_SHANNON, 1.0, GPULOSSI_KL_REVERSE},
                    {GPULOSS_JENSEN_SHANNON, 0.25, GPULOSSI_KL_JENSEN_SHANNON},
                    {GPULOSS_JENSEN_SHANNON, 0.5, GPULOSSI_KL_JENSEN_SHANNON | GPULOSSI_KL_HALF_BETA},
                    {GPULOSS_TOTAL_VARIATION, 0.0, GPULOSSI_KL_TOTAL_VARIATION}};
    size_t i;
    (void)state;
    begin();
    for (i = 0; i < sizeof formulas / sizeof formulas[0]; i++) {
        const uint32_t bits = formulas[i].bits | (uint32_t)GPULOSSI_KL_BUCKET;
        const uint32_t of_sum = formulas[i].bits != 0 ? GPULOSSI_KL_INPUT_SUM | GPULOSSI_KL_VALUES : 0;
        gpuloss_kl_div_sparse_desc base = rows_of(GPULOSS_F32, 1, 1000, 250, 16), d;
        base.divergence = formulas[i].divergence;
        base.beta = formulas[i].beta;
        CALL((void)0, OF_GRADIENT | of_sum | bits);
        CALL(d.grad_logits = NULL, GPULOSSI_KL_LOSS | GPULOSSI_KL_VALUES | bits);
        CALL(d.loss = NULL, GPULOSSI_KL_GRADIENT | of_sum | bits);
        CALL((d.loss = NULL, d.grad_logits = NULL, d.bad_indices = (int64_t *)AT(6)), bits);
        CALL((d.loss = NULL, d.grad_logits = NULL, d.loss_rows = AT(6)),
             GPULOSSI_KL_ROW_OUTPUTS | GPULOSSI_KL_VALUES | bits);
    }
    end();
}

/* The divisor is counted on the way, unless it is prepared, as it is for a gradient. */
static void a_bit_for_counts(void **state) {
    enum { BASE = (OF_GRADIENT & ~GPULOSSI_KL_GRADIENT) | GPULOSSI_KL_LABELS };
    gpuloss_kl_div_sparse_desc base = rows_of(GPULOSS_F32, 0, 1000, 250, 16), d;
    (void)state;
    begin();
    GIVE_LABELS(&base);
    base.reduction = GPULOSS_BATCHMEAN;
    CALL((void)0, BASE | GPULOSSI_KL_COUNTS);
    assert_int_equal(fake.launches, 1);
    CALL(d.reduction = GPULOSS_MEAN, BASE | GPULOSSI_KL_COUNTS);
    CALL(d.grad_logits = AT(4), BASE | GPULOSSI_KL_GRADIENT);
    assert_int_equal(last_launch()->parameters.rows.flags & BY_PREPARED, BY_PREPARED);
    assert_int_equal(fake.launches, 2);
    CALL(d.reduction = GPULOSS_SUM, BASE);
    CALL(d.divisor = 2.0, BASE);
    CALL(d.divisor_in = AT(6), BASE);
    end();
}

/* Rows that do not consist of whole vectors of the logits or of a gradient that is given, or do not begin on them.
 * Entries may begin anywhere. */
static void rows_that_are_ragged(void **state) {
    enum { RAGGED = GPULOSSI_FORMAT_RAGGED };
    gpuloss_kl_div_sparse_desc base = rows_of(GPULOSS_F32, 1, 1000, 250, 16), d;
    (void)state;
    begin();
    FORMAT((void)0, 0);
    FORMAT(d.classes = 1001, RAGGED);
    FORMAT((d.classes = 999, d.logits_stride = d.grad_logits_stride = 1000), RAGGED);
    FORMAT(d.logits = (const char *)d.logits + 4, RAGGED);
    FORMAT(d.logits_stride = 1001, RAGGED);
    FORMAT(d.logits_stride = 1004, 0);
    FORMAT(d.grad_logits = (char *)d.grad_logits + 8, RAGGED);
    FORMAT(d.grad_logits_stride = 1002, RAGGED);
    FORMAT(d.grad_logits_stride = 1004, 0);
    FORMAT(d.indices = (const char *)d.indices + 8, 0);
    FORMAT(d.indices_stride = 17, 0);
    FORMAT(d.values = (const char *)d.values + 4, 0);
    FORMAT(d.values_stride = 17, 0);
    base.grad_logits = NULL;
    CALL((d.residual = GPULOSS_BUCKET, d.grad_logits_stride = 1002), OF_GRADIENT & ~GPULOSSI_KL_GRADIENT);
    base = rows_of(GPULOSS_F16, 1, 1000, 250, 16);
    FORMAT(d.classes -= 4, RAGGED);
    FORMAT(d.logits_stride = 2004, RAGGED);
    FORMAT(d.grad_logits_stride = 2004, RAGGED);
    FORMAT(d.logits_stride = d.grad_logits_stride = 2008, 0);
    end();
}

/* The type of the values counts where it is not that of the logits; that of the indices where they are not i64. */
static void types_of_entries(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        uint32_t bit;
    } types[] = {{GPULOSS_F32, GPULOSSI_FORMAT_F32},
                 {GPULOSS_F64, GPULOSSI_FORMAT_F64},
                 {GPULOSS_F16, GPULOSSI_FORMAT_F16},
                 {GPULOSS_BF16, GPULOSSI_FORMAT_BF16_ARRAY}};
    static const struct {
        gpuloss_index_type type;
        uint32_t bit;
    } indices[] = {{GPULOSS_I64, 0},
                   {GPULOSS_I32, GPULOSSI_FORMAT_INDEX_I32},
                   {GPULOSS_I16, GPULOSSI_FORMAT_INDEX_I16},
                   {GPULOSS_U8, GPULOSSI_FORMAT_INDEX_U8}};
    size_t t, other, i;
    (void)state;
    begin();
    for (t = 0; t < 4; t++)
        for (other = 0; other < 4; other++)
            for (i = 0; i < 4; i++) {
                const gpuloss_dtype dtype = types[t].dtype, type = types[other].dtype;
                gpuloss_kl_div_sparse_desc d = rows_of(dtype, 1, 1000, 200, 16);
                const uint32_t format = (dtype == GPULOSS_BF16 ? (uint32_t)GPULOSSI_FORMAT_BF16 : 0) | indices[i].bit |
                                        (dtype == type ? 0 : types[other].bit << GPULOSSI_FORMAT_TARGET_SHIFT);
                d.value_dtype = type;
                d.index_type = indices[i].type;
                if (dtype == GPULOSS_F64)
                    expect_words(launched(context, &d, "kl_div_sparse_memory", __LINE__), OF_GRADIENT, format,
                                 __LINE__);
                else
                    expect_both(&d, OF_GRADIENT, format, __LINE__);
            }
    end();
}

/* Classes share bits where a row has more of them than its kernel has bits. */
static void bits_of_classes(void **state) {
    enum { SHARED = GPULOSSI_FORMAT_SHARED_BITS, FEW = GPULOSSI_FORMAT_CLUSTER | GPULOSSI_FORMAT_SHORT_STAGES };
    static const struct {
        gpuloss_dtype dtype;
        int64_t rows, classes, k;
        const char *name;
        uint32_t format;
    } cases[] = {
        {GPULOSS_F64, 1000, 65024, 16, "memory", 0},       {GPULOSS_F64, 1000, 65026, 16, "memory", SHARED},
        {GPULOSS_F32, 1000, 65024, 513, "memory", 0},      {GPULOSS_F32, 1000, 65028, 513, "memory", SHARED},
        {GPULOSS_F16, 1000, 65032, 513, "memory", SHARED}, {GPULOSS_F32, 1000, 65028, 16, "pipeline", 0},
        {GPULOSS_F32, 1000, 130560, 16, "pipeline", 0},    {GPULOSS_F32, 1000, 130564, 16, "pipeline", SHARED},
        {GPULOSS_F16, 1000, 130560, 16, "pipeline", 0},    {GPULOSS_F16, 1000, 130568, 16, "pipeline", SHARED},
        {GPULOSS_F32, 100, 130560, 16, "pipeline", FEW},   {GPULOSS_F32, 100, 130564, 16, "pipeline", FEW | SHARED}};
    gpuloss_kl_div_sparse_desc d;
    size_t i;
    (void)state;
    begin();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[64];
        d = rows_of(cases[i].dtype, 1, cases[i].rows, 1, cases[i].k);
        d.classes = cases[i].classes;
        snprintf(name, sizeof name, "kl_div_sparse_%s", cases[i].name);
        expect_words(launched(context, &d, name, __LINE__), OF_GRADIENT, cases[i].format, __LINE__);
    }
    d = rows_of(GPULOSS_F32, 1, 1000, 16256, 16);
    expect_words(in_memory(&d, __LINE__), OF_GRADIENT, 0, __LINE__);
    d.classes += 4;
    expect_words(in_memory(&d, __LINE__), OF_GRADIENT, SHARED, __LINE__);
    end();
}

/* In memory a thread has up to four vectors of the logits, or two of doubles. */
static void groups_in_memory(void **state) {
    size_t t;
    (void)state;
    begin();
    for (t = 0; t < DTYPES; t++) {
        const int vectors = every_dtype[t].dtype == GPULOSS_F64 ? 2 : 4;
        unsigned group;
        for (group = 1; group <= GPULOSSI_BLOCK; group *= 2) {
            const gpuloss_kl_div_sparse_desc even = rows_of(every_dtype[t].dtype, 1, 1000, group * vectors, 1);
            const unsigned next = group < GPULOSSI_BLOCK ? 2 * group : group;
            gpuloss_kl_div_sparse_desc d = even;
#define GROUP(change, expected)                                                                                        \
    do {                                                                                                               \
        d = even;                                                                                                      \
        change;                                                                                                        \
        expect_row_group(in_memory(&d, __LINE__), d.rows, expected, __LINE__);                                         \
        assert_int_equal(last_launch()->parameters.rows.of.tile_rows, 0);                                              \
    } while (0)
            GROUP((void)0, group);
            GROUP(d.classes++, next);
            GROUP(d.logits_stride = d.classes + 1, next);
            GROUP(d.logits = (const char *)d.logits + every_dtype[t].bytes, next);
            GROUP(d.indices_stride = d.values_stride = 3, group);
            GROUP(d.grad_logits_stride = d.classes + 1, group);
            GROUP(d.grad_logits = NULL, group);
            GROUP(d.rows = 100000, group);
            GROUP(d.rows = 1, group);
        }
    }
    end();
}

/* Vectors of rows of 8 KiB are counted from lines, unless all rows begin on lines. */
static void rows_without_lines(void **state) {
    gpuloss_kl_div_sparse_desc d = rows_of(GPULOSS_BF16, 1, 1000, 512, 16);
    (void)state;
    begin();
    assert_true(has_format(in_pipeline(&d, __LINE__), GPULOSSI_FORMAT_NO_LINES));
    d.logits_stride = d.classes + 32;
    assert_false(has_format(in_pipeline(&d, __LINE__), GPULOSSI_FORMAT_NO_LINES));
    d.classes--;
    assert_true(has_format(in_pipeline(&d, __LINE__), GPULOSSI_FORMAT_NO_LINES));
    end();
}

/* In the pipeline a row has the fewest threads that have space for it. Of many short rows a team takes four in a row;
 * stages are short where a thread has no more than 4 vectors. */
static void groups_in_the_pipeline(void **state) {
    enum { SHORT = GPULOSSI_FORMAT_SHORT_STAGES, SHARED = GPULOSSI_FORMAT_SHARED_BITS };
    static const struct {
        gpuloss_dtype dtype;
        int writes;
        int64_t rows, vectors, k;
        unsigned group, slots;
        uint32_t format;
    } cases[] = {/* Entries: 2 in the registers of a thread. */
                 {GPULOSS_F32, 0, 100000, 600, 64, 32, 1, 0},
                 {GPULOSS_F32, 0, 100000, 600, 65, 64, 1, 0},
                 {GPULOSS_F32, 0, 100000, 600, 128, 64, 1, 0},
                 {GPULOSS_F32, 0, 100000, 600, 129, 128, 1, 0},
                 {GPULOSS_F32, 0, 100000, 600, 256, 128, 1, 0},
                 {GPULOSS_F32, 0, 100000, 600, 257, 256, 1, SHORT},
                 {GPULOSS_F32, 0, 100000, 600, 512, 256, 1, SHORT},
                 /* Rows that are written: 16 vectors of a thread are retained. */
                 {GPULOSS_F32, 1, 100000, 512, 16, 32, 4, 0},
                 {GPULOSS_F32, 1, 100000, 513, 16, 64, 1, 0},
                 {GPULOSS_F32, 1, 100000, 1024, 16, 64, 1, 0},
                 {GPULOSS_F32, 1, 100000, 1025, 16, 128, 1, 0},
                 {GPULOSS_F32, 1, 100000, 2048, 16, 128, 1, 0},
                 {GPULOSS_F32, 1, 100000, 2049, 16, 256, 1, 0},
                 {GPULOSS_F16, 1, 100000, 512, 16, 32, 4, 0},
                 {GPULOSS_BF16, 1, 100000, 513, 16, 64, 1, 0},
                 {GPULOSS_F32, 0, 100000, 2049, 16, 32, 1, 0},
                 /* Bits: 512 classes a thread, less 512 of a row. */
                 {GPULOSS_F32, 0, 100000, 3968, 16, 32, 1, 0},
                 {GPULOSS_F32, 0, 100000, 3969, 16, 64, 1, 0},
                 {GPULOSS_F32, 0, 100000, 8064, 16, 64, 1, 0},
                 {GPULOSS_F32, 0, 100000, 8065, 16, 128, 1, 0},
                 {GPULOSS_F32, 0, 100000, 16256, 16, 128, 1, 0},
                 {GPULOSS_F32, 0, 100000, 16257, 16, 256, 1, 0},
                 {GPULOSS_F32, 0, 100000, 32641, 16, 256, 1, SHARED},
                 {GPULOSS_F16, 0, 100000, 1984, 16, 32, 1, 0},
                 {GPULOSS_F16, 0, 100000, 1985, 16, 64, 1, 0},
                 /* Few rows: those of a stage stay with a warp, and longer ones have more, up to two blocks. */
                 {GPULOSS_F32, 0, 1, 256, 16, 32, 1, 0},
                 {GPULOSS_F32, 0, 2112, 257, 16, 32, 1, 0},
                 {GPULOSS_F32, 0, 2111, 257, 16, 64, 1, 0},
                 {GPULOSS_F32, 0, 1, 512, 16, 64, 1, 0},
                 {GPULOSS_F32, 0, 1056, 513, 16, 64, 1, 0},
                 {GPULOSS_F32, 0, 1055, 513, 16, 128, 1, 0},
                 {GPULOSS_F16, 0, 528, 1025, 16, 128, 1, 0},
                 {GPULOSS_F16, 0, 527, 1025, 16, 256, 1, 0},
                 /* Rows of a team. */
                 {GPULOSS_F32, 1, 67584, 200, 16, 32, 4, 0},
                 {GPULOSS_F32, 1, 67583, 200, 16, 32, 1, 0},
                 {GPULOSS_F16, 0, 33792, 257, 65, 64, 4, 0},
                 {GPULOSS_F16, 0, 33791, 257, 65, 64, 1, 0},
                 {GPULOSS_F32, 0, 100000, 512, 16, 32, 4, 0},
                 {GPULOSS_F32, 0, 100000, 513, 16, 32, 1, 0},
                 /* Stages. */
                 {GPULOSS_F32, 1, 1000, 48, 16, 32, 1, SHORT},
                 {GPULOSS_F32, 1, 1000, 128, 16, 32, 1, SHORT},
                 {GPULOSS_F32, 1, 1000, 129, 16, 32, 1, 0},
                 {GPULOSS_BF16, 0, 1000, 256, 65, 64, 1, SHORT},
                 {GPULOSS_BF16, 0, 1000, 257, 65, 64, 1, 0}};
    gpuloss_kl_div_sparse_desc ragged = rows_of(GPULOSS_F32, 1, 100000, 512, 16);
    size_t i;
    (void)state;
    begin();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gpuloss_kl_div_sparse_desc d =
            rows_of(cases[i].dtype, cases[i].writes, cases[i].rows, cases[i].vectors, cases[i].k);
        const gpulossi_rows *rows = &in_pipeline(&d, __LINE__)->parameters.rows;
        const uint32_t format = last_launch()->module->words[GPULOSSI_FORMAT_WORD];
        if (rows->group != cases[i].group || rows->of.tile_rows != cases[i].slots ||
            (format & (SHORT | SHARED | GPULOSSI_FORMAT_CLUSTER)) != cases[i].format)
            fail_msg("case %d: %u threads a row, %u rows, format %#x", (int)i, rows->group, rows->of.tile_rows, format);
        assert_int_equal(last_launch()->cluster, 0);
        expect_row_group(last_launch(), d.rows, rows->group, __LINE__);
    }
    /* Only whole vectors count. */
    ragged.classes += 3;
    assert_int_equal(in_pipeline(&ragged, __LINE__)->parameters.rows.group, 32);
    ragged.logits_stride = ragged.classes + 2;
    assert_int_equal(in_pipeline(&ragged, __LINE__)->parameters.rows.group, 32);
    end();
}

/* Long rows that are fewer than the multiprocessors are for clusters. A thread retains 16 vectors. A step that is not
 * retained takes four more of f32, one more of 16 bits, and none for losses. */
static void rows_for_clusters(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        int writes;
        int64_t rows, vectors;
        unsigned clusters, size;
    } cases[] = {{GPULOSS_F32, 1, 131, 2047, 0, 0},   {GPULOSS_F32, 1, 132, 2048, 0, 0},
                 {GPULOSS_F32, 1, 131, 2048, 131, 1}, {GPULOSS_F16, 0, 131, 2048, 131, 1},
                 {GPULOSS_F32, 1, 60, 40000, 24, 10}, {GPULOSS_F16, 1, 60, 40000, 32, 8},
                 {GPULOSS_BF16, 1, 60, 40000, 32, 8}, {GPULOSS_F32, 0, 60, 40000, 60, 4},
                 {GPULOSS_F16, 0, 60, 40000, 60, 4},  {GPULOSS_F32, 1, 8, 100000, 8, 14}};
    size_t i;
    (void)state;
    begin();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gpuloss_kl_div_sparse_desc d = rows_of(cases[i].dtype, cases[i].writes, cases[i].rows, cases[i].vectors, 16);
        const fake_launched *l = in_pipeline(&d, __LINE__);
        const uint32_t format = l->module->words[GPULOSSI_FORMAT_WORD];
        if (l->cluster != cases[i].size || (cases[i].size != 0 && l->grid != cases[i].clusters * cases[i].size))
            fail_msg("case %d: %u blocks in clusters of %u", (int)i, l->grid, l->cluster);
        assert_int_equal((format & GPULOSSI_FORMAT_CLUSTER) != 0, cases[i].size != 0);
        if (cases[i].size == 0)
            continue;
        assert_int_not_equal(format & GPULOSSI_FORMAT_SHORT_STAGES, 0);
        assert_int_equal(l->parameters.rows.group, 256);
        assert_int_equal(l->parameters.rows.of.tile_rows, 1);
    }
    end();
}
/* Without rows a requested number is still written, and nothing else is launched. */
static void no_rows(void **state) {
    gpuloss_kl_div_sparse_desc d = some_kl_div_sparse();
    long calls;
    (void)state;
    context = new_context();
    d.rows = 0;
    d.logits = d.indices = d.values = NULL;
    d.loss = NULL;
    d.loss_rows = AT(6);
    calls = fake.calls;
    expect_ok(gpuloss_kl_div_sparse(context, &d, NULL));
    GIVE_LABELS(&d);
    d.labels = NULL;
    expect_ok(gpuloss_kl_div_sparse(context, &d, NULL));
    assert_int_equal(fake.calls, calls);
    d.loss = AT(3);
    assert_int_equal(in_pipeline(&d, __LINE__)->grid, 1);
    assert_int_equal(fake.launches, 1);
    d.loss = NULL;
    d.bad_indices = (int64_t *)AT(7);
    assert_int_equal(in_pipeline(&d, __LINE__)->grid, 1);
    assert_int_equal(fake.launches, 1);
    gpuloss_destroy(context);
}

static void workspace(void **state) {
    gpuloss_kl_div_sparse_desc d = some_kl_div_sparse();
    size_t bytes = 0;
    int launches;
    (void)state;
    context = new_context();
    expect_ok(gpuloss_kl_div_sparse_workspace(context, &d, &bytes));
    assert_int_equal(bytes, sizeof(gpulossi_scratch));
    d.workspace = AT(9);
    d.workspace_bytes = bytes;
    assert_int_equal(in_pipeline(&d, __LINE__)->parameters.rows.scratch, ADDRESS(9));
    launches = fake.launches;
    d.workspace_bytes--;
    expect_error(gpuloss_kl_div_sparse(context, &d, NULL), GPULOSS_ERROR_WORKSPACE_TOO_SMALL, "gpuloss_kl_div_sparse",
                 "workspace_bytes: ");
    d.workspace = (char *)AT(9) + 8;
    d.workspace_bytes = bytes;
    expect_error(gpuloss_kl_div_sparse(context, &d, NULL), GPULOSS_ERROR_MISALIGNED, "gpuloss_kl_div_sparse",
                 "workspace: ");
    assert_int_equal(fake.launches, launches);
    gpuloss_destroy(context);
}

int sparse_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(kernels_of_calls),
        TEST(gpus_without_a_pipeline),
        TEST(a_bit_for_each_option),
        TEST(bits_of_formulas),
        TEST(a_bit_for_counts),
        TEST(rows_that_are_ragged),
        TEST(types_of_entries),
        TEST(bits_of_classes),
        TEST(rows_without_lines),
        TEST(groups_in_memory),
        TEST(groups_in_the_pipeline),
        TEST(rows_for_clusters),
        TEST(no_rows),
        TEST(workspace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
