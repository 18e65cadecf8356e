/* Divergences in memory and in the pipeline: for which features a call has their kernels specialised, how rows are spread over
 * teams and clusters, and which calls share a kernel. */
#include "check.h"

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

static const fake_launched *launched(gpuloss_context *in, const gpuloss_kl_div_desc *d, const char *name, int line) {
    fake.launches = 0;
    expect_ok_(gpuloss_kl_div(in, d, stream_number(1)), line);
    expect_module(name, d->dtype, line);
    return last_launch();
}
static const fake_launched *in_pipeline(const gpuloss_kl_div_desc *d, int line) {
    return launched(context, d, "kl_div_row_pipeline", line);
}

enum {
    FOLLOWING = GPULOSSI_KL_ONE_SWEEP | GPULOSSI_KL_DIRECT | GPULOSSI_KL_OWN_GRADIENT | GPULOSSI_KL_INPUT_SUM |
                GPULOSSI_KL_TARGET_SUM | GPULOSSI_KL_VALUES | GPULOSSI_KL_WRITTEN_VALUES
};

/* But for the bits that follow from others, from the length of rows and stages, or from the GPU. */
static void expect_words(const fake_launched *l, uint32_t call, uint32_t format, int line) {
    const uint32_t *got = l->module->words;
    const uint32_t others =
        GPULOSSI_FORMAT_NO_LINES | GPULOSSI_FORMAT_THREE_BLOCKS | GPULOSSI_FORMAT_LONG_STAGES | GPULOSSI_FORMAT_SM_80;
    if ((got[GPULOSSI_CALL_WORD] & ~(uint32_t)FOLLOWING) != call || (got[GPULOSSI_FORMAT_WORD] & ~others) != format)
        fail_msg("line %d: %s has the words %#x, %#x instead of %#x, %#x", line, l->entry, got[GPULOSSI_CALL_WORD],
                 got[GPULOSSI_FORMAT_WORD], call, format);
}

/* The words of a call, which are those of the kernel in memory, too, but for what is about stages. How long these are is
 * tested with the teams of blocks. */
static void expect_both(const gpuloss_kl_div_desc *d, uint32_t call, uint32_t format, int line) {
    const uint32_t of_stages = GPULOSSI_FORMAT_TWO_ARRAYS | GPULOSSI_FORMAT_SHORT_STAGES | GPULOSSI_FORMAT_CLUSTER;
    const fake_launched *l = in_pipeline(d, line);
    expect_words(l, call, format | (l->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_SHORT_STAGES), line);
    expect_words(launched(other_context, d, "kl_div_row_memory", line), call, format & ~of_stages, line);
}
#define CALL(change, features)                                                                                         \
    do {                                                                                                               \
        d = base;                                                                                                      \
        change;                                                                                                        \
        expect_both(&d, (uint32_t)(features), GPULOSSI_FORMAT_TWO_ARRAYS, __LINE__);                                   \
    } while (0)
#define FORMAT(change, features)                                                                                       \
    do {                                                                                                               \
        d = base;                                                                                                      \
        change;                                                                                                        \
        expect_both(&d, in_pipeline(&d, __LINE__)->module->words[GPULOSSI_CALL_WORD] & ~(uint32_t)FOLLOWING,           \
                    (uint32_t)(features), __LINE__);                                                                   \
    } while (0)

/* The sum and the gradient of rows of so many vectors, with logits on one side. */
static gpuloss_kl_div_desc rows_of(gpuloss_dtype dtype, int64_t rows, int64_t vectors) {
    gpuloss_kl_div_desc d = some_kl_div();
    d.dtype = dtype;
    d.rows = rows;
    d.classes = vectors * (16 / every_dtype[dtype - GPULOSS_F32].bytes);
    d.input_kind = GPULOSS_LOGITS;
    d.reduction = GPULOSS_SUM;
    d.target = GPULOSS_PTR((uintptr_t)1 << 55);
    d.grad_input = GPULOSS_PTR((uintptr_t)1 << 56);
    return d;
}

/* Rows for the pipeline also without a gradient: logarithms with row weights. */
static gpuloss_kl_div_desc weighted_rows_of(gpuloss_dtype dtype, gpuloss_dtype target, int64_t rows, int64_t vectors,
                                            int writes) {
    gpuloss_kl_div_desc d = rows_of(dtype, rows, vectors);
    d.target_dtype = target;
    d.input_kind = GPULOSS_LOG_PROBABILITIES;
    d.row_weights = AT(6);
    if (!writes)
        d.grad_input = NULL;
    return d;
}

static void a_bit_for_each_option(void **state) {
    enum { SIDES = GPULOSSI_KL_INPUT_LOGITS, BASE = GPULOSSI_KL_LOSS | GPULOSSI_KL_GRADIENT | SIDES };
    gpuloss_kl_div_desc base = rows_of(GPULOSS_F32, 1000, 250), d;
    (void)state;
    begin();
    CALL((void)0, BASE);
    CALL(d.loss = NULL, GPULOSSI_KL_GRADIENT | SIDES);
    CALL(d.grad_input = NULL, GPULOSSI_KL_LOSS | SIDES);
    CALL((d.loss = NULL, d.loss_rows = AT(6)), GPULOSSI_KL_ROW_OUTPUTS | GPULOSSI_KL_GRADIENT | SIDES);
    CALL(d.loss_rows = AT(6), BASE | GPULOSSI_KL_ROW_OUTPUTS);
    CALL(d.loss_elements = AT(6), BASE | GPULOSSI_KL_ELEMENTS);
    CALL(d.grad_target = AT(6), BASE | GPULOSSI_KL_TARGET_GRADIENT);
    CALL((d.grad_target = AT(6), d.grad_input = NULL), GPULOSSI_KL_LOSS | GPULOSSI_KL_TARGET_GRADIENT | SIDES);
    CALL(d.divergence = GPULOSS_REVERSE_KL, BASE | GPULOSSI_KL_REVERSE);
    CALL((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.25), BASE | GPULOSSI_KL_JENSEN_SHANNON);
    CALL((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.5),
         BASE | GPULOSSI_KL_JENSEN_SHANNON | GPULOSSI_KL_HALF_BETA);
    CALL((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.0), BASE);
    CALL((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 1.0), BASE | GPULOSSI_KL_REVERSE);
    CALL(d.divergence = GPULOSS_TOTAL_VARIATION, BASE | GPULOSSI_KL_TOTAL_VARIATION);
    CALL(d.eps = 1e-6, BASE | GPULOSSI_KL_EPS);
    CALL(d.row_weights = AT(6), BASE | GPULOSSI_KL_ROW_WEIGHTS);
    CALL(GIVE_LABELS(&d), BASE | GPULOSSI_KL_LABELS);
    CALL(d.grad_loss_rows = AT(6), BASE | GPULOSSI_KL_ROW_GRADIENTS);
    CALL(d.flags = GPULOSS_PYTORCH_ZEROS, BASE | GPULOSSI_KL_PYTORCH_ZEROS);
    CALL((d.eps = 0.5, d.row_weights = AT(6)), BASE | GPULOSSI_KL_EPS | GPULOSSI_KL_ROW_WEIGHTS);
    /* Every kernel has these options, or the option is a number. */
    CALL(d.temperature = 2.0, BASE);
    CALL((d.temperature = 2.0, d.flags = GPULOSS_TEMPERATURE_SQUARED), BASE);
    CALL(d.grad_loss = AT(6), BASE);
    CALL(d.reduction = GPULOSS_MEAN, BASE);
    CALL((d.reduction = GPULOSS_MEAN, d.divisor = 3.0), BASE);
    CALL((d.reduction = GPULOSS_MEAN, d.divisor_in = AT(6)), BASE);
    CALL((d.flags = GPULOSS_USE_GRAD_SCALE, d.grad_scale = 2.0), BASE);
    CALL(d.label_type = GPULOSS_I16, BASE);
    end();
}

static void a_bit_for_each_kind(void **state) {
    static const struct {
        gpuloss_kind kind;
        uint32_t input, target;
    } kinds[] = {{GPULOSS_PROBABILITIES, 0, 0},
                 {GPULOSS_LOG_PROBABILITIES, GPULOSSI_KL_INPUT_LOGARITHMS, GPULOSSI_KL_TARGET_LOGARITHMS},
                 {GPULOSS_LOGITS, GPULOSSI_KL_INPUT_LOGITS, GPULOSSI_KL_TARGET_LOGITS}};
    const uint32_t features = GPULOSSI_KL_LOSS | GPULOSSI_KL_GRADIENT | GPULOSSI_KL_REVERSE;
    gpuloss_kl_div_desc base = rows_of(GPULOSS_F32, 1000, 250), d;
    size_t i, k;
    (void)state;
    begin();
    for (i = 0; i < 3; i++)
        for (k = 0; k < 3; k++)
            CALL((d.divergence = GPULOSS_REVERSE_KL, d.input_kind = kinds[i].kind, d.target_kind = kinds[k].kind),
                 features | kinds[i].input | kinds[k].target);
    end();
}

/* A KL of two arrays of logits is of one sweep, unless it keeps PyTorch's zeros. Its gradient of the side that weighs needs the
 * KL itself. Of other divergences each gradient of logits needs a sum. Values without logits are summed along with what is
 * written, if anything is. */
static void bits_that_follow(void **state) {
    static const gpuloss_kind kinds[] = {GPULOSS_PROBABILITIES, GPULOSS_LOG_PROBABILITIES, GPULOSS_LOGITS};
    int n;
    (void)state;
    begin();
    for (n = 0; n < 3 * 3 * 4 * 4 * 2 * 2; n++) {
        const int writes = n / 9 % 4, divergence = n / 36 % 4, keeps_zeros = n / 144 % 2;
        gpuloss_kl_div_desc d = rows_of(GPULOSS_F32, 1000, 250);
        uint32_t expected = 0;
        int one, direct, of_input, of_target;
        d.input_kind = kinds[n % 3];
        d.target_kind = kinds[n / 3 % 3];
        d.divergence = (gpuloss_divergence)((int)GPULOSS_FORWARD_KL + divergence);
        d.beta = d.divergence == GPULOSS_JENSEN_SHANNON ? 0.25 : 0.0;
        d.row_weights = AT(6); /* else probabilities have kernels of their own */
        d.grad_input = writes & 1 ? AT(4) : NULL;
        d.grad_target = writes & 2 ? AT(7) : NULL;
        if (keeps_zeros && d.divergence != GPULOSS_FORWARD_KL)
            continue;
        d.loss = n / 288 ? NULL : d.loss;
        d.loss_elements =
            d.loss == NULL || n % 2 != 0 || n % 9 == 8 ? AT(8) : NULL; /* so do two logits without terms */
        d.flags |= keeps_zeros ? GPULOSS_PYTORCH_ZEROS : 0;
        d.eps = n % 5 == 0 && divergence < 2 &&
                        (d.input_kind == GPULOSS_PROBABILITIES || d.target_kind == GPULOSS_PROBABILITIES)
                    ? 1e-6
                    : 0.0;
        of_input = d.input_kind == GPULOSS_LOGITS && d.grad_input != NULL;
        of_target = d.target_kind == GPULOSS_LOGITS && d.grad_target != NULL;
        one = d.input_kind == GPULOSS_LOGITS && d.target_kind == GPULOSS_LOGITS && divergence < 2 && !keeps_zeros;
        direct = (d.input_kind == GPULOSS_LOGITS) != (d.target_kind == GPULOSS_LOGITS) && divergence < 2 &&
                 !keeps_zeros && !(writes & 2) && d.loss_elements == NULL && d.eps == 0;
        expected |= one ? (uint32_t)GPULOSSI_KL_ONE_SWEEP : direct ? (uint32_t)GPULOSSI_KL_DIRECT : 0;
        one |= direct;
        expected |= one && (divergence == 1 ? of_input : of_target) ? (uint32_t)GPULOSSI_KL_OWN_GRADIENT : 0;
        expected |= !one && of_input ? (uint32_t)GPULOSSI_KL_INPUT_SUM : 0;
        expected |= !one && of_target ? (uint32_t)GPULOSSI_KL_TARGET_SUM : 0;
        if (!one && (d.loss != NULL || of_input || of_target))
            expected |= d.input_kind != GPULOSS_LOGITS && d.target_kind != GPULOSS_LOGITS &&
                                (writes != 0 || d.loss_elements != NULL)
                            ? GPULOSSI_KL_WRITTEN_VALUES
                            : GPULOSSI_KL_VALUES;
        (void)in_pipeline(&d, __LINE__);
        if ((last_launch()->module->words[GPULOSSI_CALL_WORD] & FOLLOWING) != expected)
            fail_msg("call %d: %#x, not %#x", n, last_launch()->module->words[GPULOSSI_CALL_WORD] & FOLLOWING,
                     expected);
    }
    end();
}

/* Columns are in memory. Up to 8 threads share one, by 4 vectors each. */
static void columns_of_pairs(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        int64_t classes;
        uint32_t group;
    } columns[] = {{GPULOSS_F32, 16, 1},   {GPULOSS_F32, 17, 2}, {GPULOSS_F32, 1 << 20, 8}, {GPULOSS_BF16, 32, 1},
                   {GPULOSS_BF16, 257, 8}, {GPULOSS_F64, 8, 1},  {GPULOSS_F64, 65, 8}};
    size_t i;
    (void)state;
    begin();
    for (i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        gpuloss_kl_div_desc d = rows_of(columns[i].dtype, 60, 1);
        const uint32_t format =
            GPULOSSI_FORMAT_COLUMNS | (columns[i].dtype == GPULOSS_BF16 ? (uint32_t)GPULOSSI_FORMAT_BF16 : 0);
        const fake_launched *l;
        d.classes = columns[i].classes;
        d.inner = 12;
        l = launched(context, &d, "kl_div_row_memory", __LINE__);
        expect_words(l, GPULOSSI_KL_LOSS | GPULOSSI_KL_GRADIENT | GPULOSSI_KL_INPUT_LOGITS, format, __LINE__);
        assert_int_equal(l->parameters.rows.group, columns[i].group);
        d.target_dtype = GPULOSS_F16;
        l = launched(context, &d, "kl_div_row_memory", __LINE__);
        expect_words(l, GPULOSSI_KL_LOSS | GPULOSSI_KL_GRADIENT | GPULOSSI_KL_INPUT_LOGITS,
                     format | GPULOSSI_FORMAT_F16 << GPULOSSI_FORMAT_TARGET_SHIFT, __LINE__);
    }
    end();
}

/* The divisor is counted on the way, unless it is prepared, as it is for a gradient. */
static void a_bit_for_counts(void **state) {
    enum { BASE = GPULOSSI_KL_LOSS | GPULOSSI_KL_INPUT_LOGITS | GPULOSSI_KL_LABELS, WRITES = GPULOSSI_KL_GRADIENT };
    gpuloss_kl_div_desc base = rows_of(GPULOSS_F32, 1000, 250), d;
    (void)state;
    begin();
    GIVE_LABELS(&base);
    base.grad_input = NULL;
    base.reduction = GPULOSS_MEAN;
    CALL((void)0, BASE | GPULOSSI_KL_COUNTS);
    assert_int_equal(fake.launches, 1);
    CALL(d.reduction = GPULOSS_BATCHMEAN, BASE | GPULOSSI_KL_COUNTS);
    CALL(d.grad_input = AT(4), BASE | WRITES);
    assert_int_equal(last_launch()->parameters.rows.flags & BY_PREPARED, BY_PREPARED);
    assert_int_equal(fake.launches, 2);
    CALL(d.reduction = GPULOSS_SUM, BASE);
    CALL(d.divisor = 2.0, BASE);
    CALL(d.divisor_in = AT(6), BASE);
    end();
}

/* Rows that do not consist of whole vectors of every array that is given, or where these do not begin on such vectors. The
 * target is in stages where it begins on the same element of a vector as the input, in each row. */
static void rows_that_are_ragged(void **state) {
    enum { RAGGED = GPULOSSI_FORMAT_RAGGED, STAGED = GPULOSSI_FORMAT_TWO_ARRAYS };
    enum { F16 = GPULOSSI_FORMAT_F16 << GPULOSSI_FORMAT_TARGET_SHIFT };
    enum { F32 = GPULOSSI_FORMAT_F32 << GPULOSSI_FORMAT_TARGET_SHIFT };
    enum { F64 = GPULOSSI_FORMAT_F64 << GPULOSSI_FORMAT_TARGET_SHIFT };
    gpuloss_kl_div_desc base = rows_of(GPULOSS_F32, 1000, 250), d;
    (void)state;
    begin();
    FORMAT((void)0, STAGED);
    FORMAT(d.classes = 1001, RAGGED | STAGED);
    FORMAT((d.classes = 999, d.input_stride = d.target_stride = d.grad_input_stride = 1000), RAGGED | STAGED);
    FORMAT(d.input = (const char *)d.input + 4, RAGGED);
    FORMAT((d.input = (const char *)d.input + 4, d.target = (const char *)d.target + 4), RAGGED | STAGED);
    FORMAT((d.input = (const char *)d.input + 8, d.target = (const char *)d.target + 4), RAGGED);
    FORMAT(d.input_stride = 1001, RAGGED);
    FORMAT(d.input_stride = d.target_stride = 1001, RAGGED | STAGED);
    FORMAT((d.input_stride = 1001, d.target_stride = 1005), RAGGED | STAGED);
    FORMAT(d.input_stride = 1004, STAGED);
    FORMAT(d.target = (const char *)d.target + 8, RAGGED);
    FORMAT(d.target_stride = 1002, RAGGED);
    FORMAT(d.target_stride = 1004, STAGED);
    FORMAT(d.grad_input = (char *)d.grad_input + 8, RAGGED | STAGED);
    FORMAT(d.grad_input_stride = 1002, RAGGED | STAGED);
    FORMAT(d.grad_input_stride = 1004, STAGED);
    FORMAT((d.grad_input_stride = 1002, d.grad_input = NULL), STAGED);
    FORMAT(d.grad_target = AT(6), STAGED);
    FORMAT(d.grad_target = (char *)AT(6) + 4, RAGGED | STAGED);
    FORMAT((d.grad_target = AT(6), d.grad_target_stride = 1002), RAGGED | STAGED);
    FORMAT(d.grad_target_stride = 1002, STAGED);
    FORMAT(d.loss_elements = AT(6), STAGED);
    FORMAT(d.loss_elements = (char *)AT(6) + 8, RAGGED | STAGED);
    FORMAT((d.loss_elements = AT(6), d.loss_elements_stride = 1001), RAGGED | STAGED);
    FORMAT(d.loss_elements_stride = 1001, STAGED);
    /* Twice as many bytes are two vectors, and half as many half of one. */
    FORMAT(d.target_dtype = GPULOSS_F64, F64);
    FORMAT((d.target_dtype = GPULOSS_F64, d.target = (const char *)d.target + 8), F64 | RAGGED);
    FORMAT((d.target_dtype = GPULOSS_F64, d.target_stride = 1001), F64 | RAGGED);
    FORMAT((d.target_dtype = GPULOSS_F64, d.target_stride = 1002), F64);
    FORMAT((d.target_dtype = GPULOSS_F64, d.grad_target = (char *)AT(6) + 8), F64 | RAGGED);
    FORMAT((d.target_dtype = GPULOSS_F16, d.target = (const char *)d.target + 8), F16);
    FORMAT((d.target_dtype = GPULOSS_F16, d.target = (const char *)d.target + 4), F16 | RAGGED);
    FORMAT((d.target_dtype = GPULOSS_F16, d.target_stride = 1004), F16);
    FORMAT((d.target_dtype = GPULOSS_F16, d.target_stride = 1002), F16 | RAGGED);
    FORMAT((d.target_dtype = GPULOSS_F16, d.grad_target = (char *)AT(6) + 4), F16 | RAGGED);
    base = rows_of(GPULOSS_F16, 1000, 250);
    base.target_dtype = GPULOSS_F32;
    FORMAT((void)0, F32 | STAGED);
    FORMAT(d.input = (const char *)d.input + 2, F32 | RAGGED);
    FORMAT((d.input = (const char *)d.input + 2, d.target = (const char *)d.target + 4), F32 | RAGGED | STAGED);
    FORMAT(d.target = (const char *)d.target + 16, F32);
    FORMAT(d.target = (const char *)d.target + 32, F32 | STAGED);
    FORMAT(d.target_stride = 2004, F32);
    FORMAT(d.target_stride = 2008, F32 | STAGED);
    FORMAT((d.loss_elements = AT(6), d.loss_elements_stride = 2004), F32 | STAGED);
    FORMAT((d.loss_elements = AT(6), d.loss_elements_stride = 2002), F32 | RAGGED | STAGED);
    end();
}

/* The type of the target counts where it is not that of the input. It is in stages where it is that, or floats. */
static void types_of_targets(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        uint32_t bit;
    } types[] = {{GPULOSS_F32, GPULOSSI_FORMAT_F32},
                 {GPULOSS_F64, GPULOSSI_FORMAT_F64},
                 {GPULOSS_F16, GPULOSSI_FORMAT_F16},
                 {GPULOSS_BF16, GPULOSSI_FORMAT_BF16_ARRAY}};
    const uint32_t call = GPULOSSI_KL_LOSS | GPULOSSI_KL_GRADIENT | GPULOSSI_KL_INPUT_LOGITS;
    size_t t, other;
    (void)state;
    begin();
    for (t = 0; t < 4; t++)
        for (other = 0; other < 4; other++) {
            const gpuloss_dtype dtype = types[t].dtype, type = types[other].dtype;
            gpuloss_kl_div_desc base = rows_of(dtype, 1000, 200), d = base;
            const uint32_t of_input = dtype == GPULOSS_BF16 ? (uint32_t)GPULOSSI_FORMAT_BF16 : 0;
            const uint32_t bit = dtype == type ? 0 : types[other].bit << GPULOSSI_FORMAT_TARGET_SHIFT;
            const uint32_t staged = dtype == type || type == GPULOSS_F32 ? (uint32_t)GPULOSSI_FORMAT_TWO_ARRAYS : 0;
            d.target_dtype = type;
            if (dtype == GPULOSS_F64)
                expect_words(launched(context, &d, "kl_div_row_memory", __LINE__), call, bit, __LINE__);
            else
                expect_both(&d, call, of_input | bit | staged, __LINE__);
            /* Short rows have no stages. */
            d.classes = 32;
            expect_words(launched(context, &d, "kl_div_row_memory", __LINE__), call, of_input | bit, __LINE__);
        }
    end();
}

/* Calls that sweep a row more than once have more threads, which retain a long row. */
static void sweeps_of_calls(void **state) {
    gpuloss_kl_div_desc base = rows_of(GPULOSS_F32, 1000, 5000), d;
    static const unsigned of_logits[] = {64, 256}, of_others[] = {128, 0};
    const unsigned *threads = of_logits;
    (void)state;
    begin();
#define SWEEPS(change, expected)                                                                                       \
    do {                                                                                                               \
        d = base;                                                                                                      \
        change;                                                                                                        \
        assert_int_equal(in_pipeline(&d, __LINE__)->parameters.rows.group, threads[expected]);                         \
        assert_int_equal(last_launch()->cluster, 0);                                                                   \
    } while (0)
    /* Logits on one side: a KL without eps is summed along with the softmax. */
    SWEEPS((void)0, 1);
    SWEEPS(d.loss = NULL, 1);
    SWEEPS((d.input_kind = GPULOSS_LOG_PROBABILITIES, d.target_kind = GPULOSS_LOGITS), 1);
    SWEEPS(d.grad_input = NULL, 0);
    SWEEPS((d.grad_input = NULL, d.divergence = GPULOSS_REVERSE_KL), 0);
    SWEEPS((d.loss = NULL, d.grad_input = NULL, d.loss_rows = AT(6)), 0);
    SWEEPS((d.grad_input = NULL, d.eps = 1e-6), 1);
    SWEEPS((d.grad_input = NULL, d.divergence = GPULOSS_TOTAL_VARIATION), 1);
    SWEEPS((d.grad_input = NULL, d.grad_target = AT(6)), 1);
    SWEEPS((d.grad_input = NULL, d.flags = GPULOSS_PYTORCH_ZEROS), 1);
    /* On both it has no eps. */
    base.target_kind = GPULOSS_LOGITS;
    base.target_dtype = GPULOSS_F16;
    SWEEPS((void)0, 1);
    SWEEPS(d.loss = NULL, 1);
    base.grad_input = NULL;
    SWEEPS((void)0, 0);
    SWEEPS((d.loss = NULL, d.loss_rows = AT(6)), 0);
    SWEEPS(d.divergence = GPULOSS_REVERSE_KL, 0);
    SWEEPS((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 1.0), 0);
    SWEEPS((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.5), 1);
    SWEEPS(d.divergence = GPULOSS_TOTAL_VARIATION, 1);
    SWEEPS(d.flags = GPULOSS_PYTORCH_ZEROS, 1);
    SWEEPS(d.grad_target = AT(6), 1);
    SWEEPS(d.loss_elements = AT(6), 1);
    SWEEPS(d.row_weights = AT(6), 0);
    SWEEPS(GIVE_LABELS(&d), 0);
    /* On neither: what is written depends on no sum, which is taken along with it. */
    base = rows_of(GPULOSS_F16, 1000, 1000);
    threads = of_others;
    base.input_kind = GPULOSS_LOG_PROBABILITIES;
    base.row_weights = AT(6);
    SWEEPS((void)0, 0);
    SWEEPS((d.loss = NULL, d.loss_rows = AT(7)), 0);
    SWEEPS(d.loss = NULL, 0);
    SWEEPS(d.grad_input = NULL, 0);
    SWEEPS((d.grad_input = NULL, d.divergence = GPULOSS_TOTAL_VARIATION), 0);
    SWEEPS((d.grad_input = NULL, d.grad_target = AT(7)), 0);
    SWEEPS((d.grad_input = NULL, d.loss_elements = AT(7)), 0);
    SWEEPS((d.loss = d.grad_input = NULL, d.grad_target = AT(7)), 0);
    SWEEPS((d.loss = d.grad_input = NULL, d.loss_elements = AT(7)), 0);
    end();
}

/* Beside two arrays a reduction takes the time of short stages, for which two blocks of a cluster are best here. */
static void blocks_of_retained_pairs(void **state) {
    gpuloss_kl_div_desc d;
    (void)state;
    begin();
    d = rows_of(GPULOSS_F32, 313, 6427);
    d.target_kind = GPULOSS_LOGITS;
    d.divergence = GPULOSS_REVERSE_KL;
    assert_true(has_format(in_pipeline(&d, __LINE__), GPULOSSI_FORMAT_CLUSTER));
    assert_int_equal(last_launch()->cluster, 2);
    end();
}

/* A warp takes a row of at most 4 vectors a lane of each array in one step, if these are not in short stages. */
static void rows_of_one_step(void **state) {
    static const int64_t vectors[] = {64, 65, 125, 128, 129};
    gpuloss_kl_div_desc d;
    size_t i;
    (void)state;
    begin();
    for (i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        d = rows_of(GPULOSS_F16, 100000, vectors[i]);
        assert_int_equal(has_format(in_pipeline(&d, __LINE__), GPULOSSI_FORMAT_ONE_STEP),
                         vectors[i] > 64 && vectors[i] <= 128);
        assert_int_equal(last_launch()->parameters.rows.group, 32);
    }
    d = rows_of(GPULOSS_F16, 8, 125); /* shared by more warps */
    assert_false(has_format(in_pipeline(&d, __LINE__), GPULOSSI_FORMAT_ONE_STEP));
    d = rows_of(GPULOSS_F16, 1000, 125);
    d.target_dtype = GPULOSS_F32; /* in long stages, as this sweep takes many registers */
    d.input_kind = d.target_kind = GPULOSS_LOGITS;
    d.divergence = GPULOSS_REVERSE_KL;
    assert_false(has_format(in_pipeline(&d, __LINE__), GPULOSSI_FORMAT_ONE_STEP));
    assert_int_equal(last_launch()->parameters.rows.group, 64);
    end();
}

/* Vectors of rows of 8 KiB are counted from lines, unless all rows begin on lines. */
static void rows_without_lines(void **state) {
    gpuloss_kl_div_desc base = rows_of(GPULOSS_F16, 1000, 512), d = base;
    (void)state;
    begin();
#define LINES(change, has_lines)                                                                                       \
    do {                                                                                                               \
        d = base;                                                                                                      \
        change;                                                                                                        \
        assert_int_equal(!has_format(in_pipeline(&d, __LINE__), GPULOSSI_FORMAT_NO_LINES), has_lines);                 \
    } while (0)
    LINES((void)0, 0);
    LINES(d.input = (const char *)d.input + 64, 1);
    LINES(d.input_stride = d.classes + 32, 1);
    LINES(d.input_stride = d.classes + 64, 0);
    LINES(d.target = (const char *)d.target + 64, 0);
    LINES((d.classes--, d.input_stride = d.classes + 33), 0);
#undef LINES
    end();
}

/* Stages of floats beside 16 bits are long. Those of two arrays of one type are if a row takes more than two of them, and
 * none is retained for another sweep, but for gradients of 16 bits that take many instructions. */
static void long_stages(void **state) {
    gpuloss_kl_div_desc d;
    (void)state;
    begin();
#define LONG(dtype, rows, vectors, change, is_long)                                                                    \
    do {                                                                                                               \
        d = rows_of(dtype, rows, vectors);                                                                             \
        d.grad_input = NULL;                                                                                           \
        change;                                                                                                        \
        assert_int_equal(has_format(in_pipeline(&d, __LINE__), GPULOSSI_FORMAT_LONG_STAGES), is_long);                 \
    } while (0)
    LONG(GPULOSS_F32, 100000, 12 * 32 + 1, (void)0, 1);
    LONG(GPULOSS_F32, 100000, 12 * 32, (void)0, 0);
    LONG(GPULOSS_F32, 100000, 12 * 32 + 1, d.target_dtype = GPULOSS_F64, 0);
    LONG(GPULOSS_F32, 100000, 12 * 32 + 1, d.grad_input = AT(6), 0);
    LONG(GPULOSS_F32, 100000, 3500, (d.grad_input = AT(6), d.divergence = GPULOSS_REVERSE_KL), 0);
    LONG(GPULOSS_F16, 100000, 1024, (d.grad_input = AT(6), d.divergence = GPULOSS_REVERSE_KL), 1);
    LONG(GPULOSS_F16, 100000, 1024, d.grad_input = AT(6), 0);
    LONG(GPULOSS_F16, 100000, 1024,
         (d.target_kind = GPULOSS_LOGITS, d.divergence = GPULOSS_REVERSE_KL, d.grad_input = AT(6),
          d.grad_target = AT(7)),
         0);
    LONG(GPULOSS_F16, 100, 1024, (void)0, 0);
    LONG(GPULOSS_F16, 100000, 200, (d.grad_input = AT(6), d.target_dtype = GPULOSS_F32), 1);
    LONG(GPULOSS_F16, 100000, 50, d.target_dtype = GPULOSS_F32, 0);
    LONG(GPULOSS_F16, 100000, 512, (d.grad_input = AT(6), d.divergence = GPULOSS_TOTAL_VARIATION), 0);
    LONG(GPULOSS_F16, 1395, 16032, d.grad_input = AT(6), 0);
    assert_true(last_launch()->cluster > 0);
    LONG(GPULOSS_F16, 1000, 16032, (d.grad_input = AT(6), d.target_dtype = GPULOSS_F32), 1);
    assert_true(last_launch()->cluster > 0);
    LONG(GPULOSS_F16, 100, 16032, d.target_dtype = GPULOSS_F32, 0);
    LONG(GPULOSS_F16, 132, 16032, d.target_dtype = GPULOSS_F32, 1);
#undef LONG
    end();
}

/* Three blocks at a time have rows of logits of 16 bits that are in one stage, unless they take many registers. */
static void three_blocks_of_pairs(void **state) {
    gpuloss_kl_div_desc base = rows_of(GPULOSS_BF16, 100000, 128), d;
    (void)state;
    begin();
#define BLOCKS(change, three, bytes)                                                                                   \
    do {                                                                                                               \
        d = base;                                                                                                      \
        change;                                                                                                        \
        assert_int_equal(has_format(in_pipeline(&d, __LINE__), GPULOSSI_FORMAT_THREE_BLOCKS), three);                  \
        assert_int_equal(last_launch()->shared_bytes, bytes);                                                          \
        assert_int_equal(last_launch()->module->shared_bytes_set, bytes);                                              \
    } while (0)
    BLOCKS((void)0, 1, 65536);
    BLOCKS(d.classes = 64 * 8, 1, 49152);
    BLOCKS(d.classes += 8, 0, 98304);
    BLOCKS(d.grad_input = NULL, 1, 65536);
    BLOCKS(d.grad_target = AT(6), 0, 98304);
    BLOCKS(d.divergence = GPULOSS_TOTAL_VARIATION, 1, 65536);
    BLOCKS(d.divergence = GPULOSS_REVERSE_KL, 0, 98304);
    BLOCKS((d.divergence = GPULOSS_REVERSE_KL, d.grad_input = NULL), 1, 65536);
    BLOCKS(d.target_dtype = GPULOSS_F16, 1, 49152);
    BLOCKS((d.input_kind = GPULOSS_LOG_PROBABILITIES, d.row_weights = AT(6)), 0, 98304);
    BLOCKS((d.target_kind = GPULOSS_LOGITS, d.divergence = GPULOSS_TOTAL_VARIATION), 1, 65536);
    BLOCKS((d.target_kind = GPULOSS_LOGITS, d.divergence = GPULOSS_REVERSE_KL), 0, 98304);
    base = rows_of(GPULOSS_F32, 100000, 128);
    BLOCKS((void)0, 0, 98304);
    end();
}

/* Vectors of both arrays count where both are in stages, and floats beside 16 bits twice. Rows of 2048 vectors and more are for
 * clusters if they are fewer than the multiprocessors. */
static void rows_for_clusters(void **state) {
    static const struct {
        gpuloss_dtype dtype, target;
        int64_t arrays;
    } types[] = {{GPULOSS_F32, GPULOSS_F32, 2},  {GPULOSS_F32, GPULOSS_F64, 1},  {GPULOSS_F32, GPULOSS_BF16, 1},
                 {GPULOSS_F16, GPULOSS_F16, 2},  {GPULOSS_F16, GPULOSS_BF16, 1}, {GPULOSS_F16, GPULOSS_F32, 4},
                 {GPULOSS_BF16, GPULOSS_F32, 4}, {GPULOSS_BF16, GPULOSS_F64, 1}};
    static const struct {
        int64_t rows, vectors;
        int more, is_clustered;
    } cases[] = {{132, 2048, 1, 0}, {132, 2048, 0, 0}, {132, 1 << 20, 0, 0}, {132, 1 << 20, 1, 0}, {131, 2044, 1, 0},
                 {131, 2048, 1, 1}, {131, 2044, 0, 0}, {131, 2048, 0, 1},    {131, 1 << 20, 1, 1}, {1, 1 << 20, 0, 1}};
    size_t t, i;
    (void)state;
    begin();
    for (t = 0; t < sizeof types / sizeof types[0]; t++)
        for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const gpuloss_kl_div_desc d = weighted_rows_of(types[t].dtype, types[t].target, cases[i].rows,
                                                           cases[i].vectors / types[t].arrays, cases[i].more);
            const fake_launched *l = in_pipeline(&d, __LINE__);
            if ((l->cluster != 0) != cases[i].is_clustered)
                fail_msg("case %d of types %d: clusters of %u", (int)i, (int)t, l->cluster);
            assert_int_equal(l->parameters.rows.of.tile_rows, 1);
        }
    end();
}

/* A thread of a cluster has six stages, of four vectors of all arrays each. Rows go to the clusters in which all of them are
 * done first, as in test_clusters.c: steps that are not retained take four more, or one more of 16 bits. */
static void clusters_of_pairs(void **state) {
    static const struct {
        gpuloss_dtype dtype, target;
        int64_t rows, vectors;
        unsigned clusters, size;
    } cases[] = {{GPULOSS_F32, GPULOSS_F32, 131, 1024, 131, 1},  {GPULOSS_F32, GPULOSS_F32, 1, 2048, 1, 4},
                 {GPULOSS_F32, GPULOSS_F32, 1, 32768, 1, 16},    {GPULOSS_F32, GPULOSS_F32, 20, 32768, 20, 11},
                 {GPULOSS_F32, GPULOSS_F32, 130, 4096, 130, 2},  {GPULOSS_F32, GPULOSS_F64, 131, 2048, 131, 1},
                 {GPULOSS_F32, GPULOSS_F64, 1, 4096, 1, 4},      {GPULOSS_F32, GPULOSS_F64, 1, 65536, 1, 16},
                 {GPULOSS_F32, GPULOSS_F64, 20, 65536, 20, 11},  {GPULOSS_F32, GPULOSS_F64, 130, 8192, 130, 2},
                 {GPULOSS_F16, GPULOSS_F16, 131, 1024, 131, 1},  {GPULOSS_F16, GPULOSS_F16, 1, 2048, 1, 4},
                 {GPULOSS_F16, GPULOSS_F16, 1, 32768, 1, 16},    {GPULOSS_F16, GPULOSS_F16, 20, 32768, 20, 11},
                 {GPULOSS_F16, GPULOSS_F16, 130, 4096, 130, 2},  {GPULOSS_BF16, GPULOSS_F32, 131, 512, 131, 1},
                 {GPULOSS_BF16, GPULOSS_F32, 1, 1024, 1, 4},     {GPULOSS_BF16, GPULOSS_F32, 1, 16384, 1, 16},
                 {GPULOSS_BF16, GPULOSS_F32, 20, 16384, 20, 11}, {GPULOSS_BF16, GPULOSS_F32, 130, 2048, 130, 2},
                 {GPULOSS_F16, GPULOSS_F64, 131, 2048, 131, 1},  {GPULOSS_F16, GPULOSS_F64, 1, 4096, 1, 4},
                 {GPULOSS_F16, GPULOSS_F64, 1, 65536, 1, 16},    {GPULOSS_F16, GPULOSS_F64, 20, 65536, 20, 11},
                 {GPULOSS_F16, GPULOSS_F64, 130, 8192, 130, 2}};
    gpuloss_kl_div_desc d;
    size_t i;
    (void)state;
    begin();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const fake_launched *l;
        d = rows_of(cases[i].dtype, cases[i].rows, cases[i].vectors);
        d.target_dtype = cases[i].target;
        l = in_pipeline(&d, __LINE__);
        if (l->cluster != cases[i].size || l->grid != cases[i].clusters * cases[i].size)
            fail_msg("case %d: %u clusters of %u", (int)i, l->cluster ? l->grid / l->cluster : l->grid, l->cluster);
        assert_int_equal(l->block, GPULOSSI_BLOCK);
        assert_int_equal(l->shared_bytes, 98304);
        assert_int_equal(l->parameters.rows.group, GPULOSSI_BLOCK);
        assert_int_equal(l->parameters.rows.of.tile_rows, 1);
    }
    /* A row that is read once takes no more for what is not retained. */
    d = rows_of(GPULOSS_F32, 130, 32768);
    assert_int_not_equal(in_pipeline(&d, __LINE__)->cluster, 2);
    d.input_kind = GPULOSS_LOG_PROBABILITIES;
    d.row_weights = AT(6);
    assert_int_equal(in_pipeline(&d, __LINE__)->cluster, 2);
    assert_int_equal(last_launch()->grid, 2 * 130);
    end();
}

/* Clusters retain many rows, too, for the gradient of a KL without eps, if a block does not retain half of both arrays, or of 16
 * bits a quarter. The resident clusters are those of an H100. */
static void many_rows_for_clusters(void **state) {
    static const int resident[FAKE_CLUSTER_SIZES] = {0,  264, 132, 79, 62, 47, 39, 32, 30,
                                                     23, 21,  16,  16, 14, 14, 14, 14};
    static const struct {
        gpuloss_dtype dtype, target;
        int64_t rows, vectors;
        unsigned size;
    } cases[] = {{GPULOSS_F32, GPULOSS_F32, 2796, 6144, 0},    {GPULOSS_F32, GPULOSS_F32, 2796, 7000, 2},
                 {GPULOSS_F32, GPULOSS_F32, 2796, 8000, 2},    {GPULOSS_F32, GPULOSS_F32, 697, 32064, 8},
                 {GPULOSS_F16, GPULOSS_F16, 2796, 12288, 0},   {GPULOSS_F16, GPULOSS_F16, 2796, 12800, 4},
                 {GPULOSS_BF16, GPULOSS_BF16, 1395, 16032, 4}, {GPULOSS_BF16, GPULOSS_F32, 4194, 3072, 0},
                 {GPULOSS_BF16, GPULOSS_F32, 4194, 4000, 2},   {GPULOSS_BF16, GPULOSS_F32, 1046, 16032, 8},
                 {GPULOSS_F32, GPULOSS_F64, 697, 32064, 0}};
    gpuloss_kl_div_desc d;
    size_t i;
    (void)state;
    begin();
    memcpy(fake.wide_clusters, resident, sizeof resident);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        d = rows_of(cases[i].dtype, cases[i].rows, cases[i].vectors);
        d.target_dtype = cases[i].target;
        if (in_pipeline(&d, __LINE__)->cluster != cases[i].size)
            fail_msg("case %d: clusters of %u", (int)i, last_launch()->cluster);
    }
#define ROWS(change, expected)                                                                                         \
    do {                                                                                                               \
        d = rows_of(GPULOSS_F32, 697, 32064);                                                                          \
        change;                                                                                                        \
        assert_int_equal(in_pipeline(&d, __LINE__)->cluster, expected);                                                \
    } while (0)
    ROWS(d.divergence = GPULOSS_REVERSE_KL, 8);
    ROWS(d.eps = 1e-8, 0);
    ROWS(d.grad_input = NULL, 0);
    ROWS((d.grad_input = NULL, d.loss_elements = AT(6)), 0);
    ROWS((d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.5), 0);
    ROWS(d.divergence = GPULOSS_TOTAL_VARIATION, 0);
    ROWS((d.target_kind = GPULOSS_LOGITS, d.grad_target = d.grad_input, d.grad_target_stride = d.grad_input_stride,
          d.grad_input = NULL),
         8);
#undef ROWS
    d = rows_of(GPULOSS_BF16, 1395, 16032);
    d.divergence = GPULOSS_REVERSE_KL;
    assert_int_equal(in_pipeline(&d, __LINE__)->cluster, 4);
    d = rows_of(GPULOSS_F32, 2097, 8000);
    d.target_kind = GPULOSS_LOGITS;
    d.grad_target = GPULOSS_PTR((uintptr_t)1 << 57);
    assert_int_equal(in_pipeline(&d, __LINE__)->cluster, 3);
    d.rows = 523, d.classes = 128256;
    d.input_stride = d.target_stride = d.grad_input_stride = d.grad_target_stride = 0;
    assert_int_equal(in_pipeline(&d, __LINE__)->cluster, 8);
    d = rows_of(GPULOSS_BF16, 1046, 16032);
    d.target_kind = GPULOSS_LOGITS;
    d.grad_target = GPULOSS_PTR((uintptr_t)1 << 57);
    assert_int_equal(in_pipeline(&d, __LINE__)->cluster, 4);
    end();
}

/* Some warps of a block share a row, or all do: those with which the rows are done first, where a thread takes 2 for a vector
 * of each array, 8 for a row, and 2 more, or 1 of 16 bits, for a vector of each array that it does not retain. Where nothing
 * is reduced but sums, a thread has about 8 vectors, or 32 of 16 bits. Stages are short where a thread has no more than 4
 * vectors, and many short rows are taken four at a time. */
static void teams_of_blocks(void **state) {
    enum { SHORT = GPULOSSI_FORMAT_SHORT_STAGES };
    static const struct {
        gpuloss_dtype dtype, target;
        int is_logits, writes;
        int64_t rows, vectors;
        unsigned group, slots;
        uint32_t format;
    } cases[] = {{GPULOSS_F32, GPULOSS_F32, 1, 1, 1000, 48, 64, 1, SHORT},
                 {GPULOSS_F32, GPULOSS_F32, 1, 1, 1000, 64, 64, 1, SHORT},
                 {GPULOSS_F32, GPULOSS_F32, 1, 1, 1000, 65, 64, 1, SHORT},
                 {GPULOSS_F32, GPULOSS_F64, 1, 1, 1000, 128, 64, 1, SHORT},
                 {GPULOSS_F32, GPULOSS_F64, 1, 1, 1000, 257, 64, 1, 0},
                 {GPULOSS_F32, GPULOSS_F32, 1, 1, 100000, 256, 32, 4, 0},
                 {GPULOSS_F32, GPULOSS_F32, 1, 1, 100000, 1024, 128, 1, 0},
                 {GPULOSS_F32, GPULOSS_F32, 1, 1, 100000, 1536, 128, 1, 0},
                 {GPULOSS_F32, GPULOSS_F32, 1, 1, 100000, 4096, 256, 1, 0},
                 {GPULOSS_F32, GPULOSS_F32, 1, 1, 100000, 6144, 256, 1, 0},
                 {GPULOSS_F32, GPULOSS_F32, 0, 0, 1000, 5000, 256, 1, 0},
                 {GPULOSS_F32, GPULOSS_F32, 0, 0, 1048576, 560, 256, 1, 0},
                 {GPULOSS_F16, GPULOSS_F16, 1, 1, 1048576, 256, 32, 4, 0},
                 {GPULOSS_F16, GPULOSS_F16, 1, 1, 1048576, 512, 32, 4, 0},
                 {GPULOSS_F16, GPULOSS_F16, 1, 1, 100000, 2048, 128, 1, 0},
                 {GPULOSS_F16, GPULOSS_F16, 1, 1, 100000, 8192, 256, 1, 0},
                 {GPULOSS_F16, GPULOSS_F16, 0, 0, 1048576, 512, 32, 4, 0},
                 {GPULOSS_F16, GPULOSS_F16, 0, 0, 1048576, 513, 32, 1, 0},
                 {GPULOSS_F16, GPULOSS_F32, 1, 1, 1000, 48, 64, 1, SHORT},
                 {GPULOSS_BF16, GPULOSS_F32, 1, 1, 100000, 512, 64, 4, 0},
                 {GPULOSS_BF16, GPULOSS_F32, 0, 0, 1048576, 256, 32, 4, 0},
                 {GPULOSS_F32, GPULOSS_F64, 1, 0, 100000, 128, 32, 4, SHORT},
                 {GPULOSS_F32, GPULOSS_F64, 1, 0, 1046, 32064, 64, 1, 0},
                 {GPULOSS_F16, GPULOSS_BF16, 1, 0, 2092, 16032, 32, 1, 0},
                 {GPULOSS_F16, GPULOSS_BF16, 1, 0, 100000, 16032, 64, 1, 0},
                 {GPULOSS_BF16, GPULOSS_F32, 1, 0, 132, 16032, 256, 1, 0},
                 {GPULOSS_F32, GPULOSS_F64, 1, 1, 67584, 250, 32, 4, 0},
                 {GPULOSS_F32, GPULOSS_F64, 1, 1, 67583, 250, 32, 1, 0},
                 {GPULOSS_F32, GPULOSS_F32, 1, 1, 1, 125, 256, 1, SHORT},
                 {GPULOSS_F32, GPULOSS_F64, 1, 0, 100, 500, 256, 1, SHORT},
                 {GPULOSS_F32, GPULOSS_F64, 1, 0, 4224, 500, 32, 1, 0},
                 {GPULOSS_F32, GPULOSS_F64, 1, 0, 4225, 500, 64, 1, 0},
                 {GPULOSS_F32, GPULOSS_F32, 0, 1, 100000, 64, 32, 4, SHORT},
                 {GPULOSS_F32, GPULOSS_F32, 0, 1, 100000, 1024, 256, 1, 0},
                 {GPULOSS_F16, GPULOSS_F16, 0, 1, 100000, 1024, 64, 1, 0}};
    size_t i;
    (void)state;
    begin();
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gpuloss_kl_div_desc d =
            weighted_rows_of(cases[i].dtype, cases[i].target, cases[i].rows, cases[i].vectors, cases[i].writes);
        if (cases[i].is_logits)
            d.input_kind = d.target_kind = GPULOSS_LOGITS;
        if (cases[i].is_logits && cases[i].writes) { /* gradients of the input alone have kernels of their own */
            d.grad_target = d.grad_input;
            d.grad_target_stride = d.grad_input_stride;
            d.grad_input = NULL;
        }
        const gpulossi_rows *rows = &in_pipeline(&d, __LINE__)->parameters.rows;
        if (rows->group != cases[i].group || rows->of.tile_rows != cases[i].slots ||
            (last_launch()->module->words[GPULOSSI_FORMAT_WORD] & SHORT) != cases[i].format)
            fail_msg("case %d: %u threads a row, %u rows, format %#x", (int)i, rows->group, rows->of.tile_rows,
                     last_launch()->module->words[GPULOSSI_FORMAT_WORD]);
        expect_row_group(last_launch(), d.rows, rows->group, __LINE__);
    }
    /* A KL whose pairs take few instructions does not hide copies of 16 bits. */
    gpuloss_kl_div_desc few = rows_of(GPULOSS_BF16, 43690, 512);
    assert_int_equal(in_pipeline(&few, __LINE__)->parameters.rows.group, 64);
    few.divergence = GPULOSS_REVERSE_KL;
    assert_int_equal(in_pipeline(&few, __LINE__)->parameters.rows.group, 32);
    end();
}

static const fake_module *expect_loads(const gpuloss_kl_div_desc *d, long loads, int line) {
    const long before = fake.loads;
    const fake_module *module;
    expect_ok_(gpuloss_kl_div(context, d, stream_number(1)), line);
    module = last_launch()->module;
    if (fake.loads - before != loads)
        fail_msg("line %d: %ld kernels are loaded", line, fake.loads - before);
    return module;
}

/* The same features are one kernel, and others are another one of the same text, of which none is lost. */
static void calls_that_share_a_kernel(void **state) {
    static const int64_t vectors[] = {250, 40}; /* in the pipeline, and in memory */
    int i;
    (void)state;
    for (i = 0; i < 2; i++) {
        gpuloss_kl_div_desc first = rows_of(GPULOSS_F32, 1000, vectors[i]), second = first, half;
        const fake_module *of_first, *of_second, *of_half;
        context = new_context();
        of_first = expect_loads(&first, 1, __LINE__);
        first.rows = 990;
        first.temperature = 2.0;
        first.loss = AT(7);
        assert_ptr_equal(expect_loads(&first, 0, __LINE__), of_first);
        second.divergence = GPULOSS_JENSEN_SHANNON;
        second.beta = 0.25;
        of_second = expect_loads(&second, 1, __LINE__);
        assert_ptr_not_equal(of_second, of_first);
        second.beta = 0.75;
        assert_ptr_equal(expect_loads(&second, 0, __LINE__), of_second);
        second.beta = 0.0;
        assert_ptr_equal(expect_loads(&second, 0, __LINE__), of_first);
        second.grad_input_stride = second.classes + 1;
        assert_ptr_not_equal(expect_loads(&second, 1, __LINE__), of_first);
        half = rows_of(GPULOSS_F16, 1000, vectors[i]);
        of_half = expect_loads(&half, 1, __LINE__);
        half.dtype = GPULOSS_BF16;
        assert_ptr_not_equal(expect_loads(&half, 1, __LINE__), of_half);
        half.dtype = GPULOSS_F16;
        assert_ptr_equal(expect_loads(&half, 0, __LINE__), of_half);
        assert_ptr_equal(expect_loads(&first, 0, __LINE__), of_first);
        assert_int_equal(fake_live_modules(), 5);
        gpuloss_destroy(context);
    }
}

/* Without the memory of a pipeline all rows with options are for the kernel in memory. */
static void gpus_without_a_pipeline(void **state) {
    static const int64_t vectors[] = {48, 2049, 6144};
    int enough, v;
    (void)state;
    for (enough = 0; enough < 2; enough++) {
        fake.shared_optin = 120 * 1024 - 1 + enough;
        context = new_context();
        for (v = 0; v < 3; v++) {
            const gpuloss_kl_div_desc d = rows_of(GPULOSS_F32, 1000, vectors[v]);
            (void)launched(context, &d, enough ? "kl_div_row_pipeline" : "kl_div_row_memory", __LINE__);
            assert_int_equal(last_launch()->shared_bytes, enough ? 98304 : 0);
            assert_int_equal(last_launch()->cluster, 0);
        }
        gpuloss_destroy(context);
    }
}

int pair_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_bit_for_each_option),    TEST(a_bit_for_each_kind), TEST(a_bit_for_counts),
        TEST(columns_of_pairs),         TEST(bits_that_follow),    TEST(rows_that_are_ragged),
        TEST(types_of_targets),         TEST(sweeps_of_calls),     TEST(rows_for_clusters),
        TEST(blocks_of_retained_pairs), TEST(rows_of_one_step),    TEST(rows_without_lines),
        TEST(three_blocks_of_pairs),    TEST(long_stages),         TEST(clusters_of_pairs),
        TEST(many_rows_for_clusters),   TEST(teams_of_blocks),     TEST(calls_that_share_a_kernel),
        TEST(gpus_without_a_pipeline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
