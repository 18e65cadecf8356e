/* The usual variants of rows, of distances, and of divergences in memory, which gen/ builds, are variants of calls: each is
 * launched here with its feature words. */
#include "check.h"
#include "../../gen/variants.h"

#include <stdio.h>

static gpuloss_context *context;
static int seen[USUAL_VARIANTS];

/* Rows of so many vectors, of which each begins on one: a mean without the rows that are ignored. */
static gpuloss_cross_entropy_desc rows_of(gpuloss_dtype dtype, int writes, int64_t rows, int64_t vectors) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.dtype = dtype;
    d.logits = GPULOSS_PTR((uintptr_t)1 << 57);
    d.grad_logits = writes ? GPULOSS_PTR((uintptr_t)1 << 56) : NULL;
    d.target_type = GPULOSS_I64;
    d.rows = rows;
    d.classes = vectors * (dtype == GPULOSS_F64 ? 2 : dtype == GPULOSS_F32 ? 4 : 8);
    return d;
}

static int find_variant(const char *loss, const char *kernel, const char *name, gpuloss_dtype dtype) {
    char whole[64];
    int v = 0;
    snprintf(whole, sizeof whole, "%s%s", dtype == GPULOSS_F16 ? "f16_" : dtype == GPULOSS_BF16 ? "bf16_" : "", name);
    while (v < USUAL_VARIANTS &&
           (strcmp(usual_variants[v].loss, loss) != 0 || strcmp(usual_variants[v].kernel, kernel) != 0 ||
            strcmp(usual_variants[v].dtype, text_dtype(dtype)) != 0 || strcmp(usual_variants[v].name, whole) != 0))
        v++;
    if (v == USUAL_VARIANTS)
        fail_msg("there is no variant %s", whole);
    return v;
}

/* A launch has the words of a variant, with that format. */
static void expect_words(int v, uint32_t format, const uint32_t *got, int line) {
    const uint32_t call = usual_variants[v].words[GPULOSSI_CALL_WORD];
    if (got[GPULOSSI_CALL_WORD] != call || got[GPULOSSI_FORMAT_WORD] != format)
        fail_msg("line %d: the variant %s has %#x, %#x, a call %#x, %#x", line, usual_variants[v].name, call, format,
                 got[GPULOSSI_CALL_WORD], got[GPULOSSI_FORMAT_WORD]);
    seen[v]++;
}

/* The last launch is of that variant. */
static void expect_launched(const char *loss, const char *kernel, const char *name, gpuloss_dtype dtype, int line) {
    const int v = find_variant(loss, kernel, name, dtype);
    /* The format of distances decides lines of their text, which has no format word. */
    const uint32_t format =
        strcmp(kernel, "distances_clustered") == 0 ? 0 : usual_variants[v].words[GPULOSSI_FORMAT_WORD];
    char module[64];
    snprintf(module, sizeof module, "%s_%s", loss, kernel);
    expect_module(module, dtype, line);
    expect_words(v, format, last_launch()->module->words, line);
}

static void expect_variant(const char *kernel, const char *name, const gpuloss_cross_entropy_desc *d, int line) {
    expect_ok_(gpuloss_cross_entropy(context, d, stream_number(1)), line);
    expect_launched("cross_entropy", kernel, name, d->dtype, line);
}
#define VARIANT(name, writes, rows, vectors, change)                                                                   \
    do {                                                                                                               \
        gpuloss_cross_entropy_desc d = rows_of(dtype, writes, rows, vectors);                                          \
        change;                                                                                                        \
        expect_variant("row_pipeline", name, &d, __LINE__);                                                            \
    } while (0)
/* Rows of a tile, of so many vectors and `more` classes. */
#define TILES(name, writes, vectors, more, change)                                                                     \
    do {                                                                                                               \
        gpuloss_cross_entropy_desc d = rows_of(dtype, writes, 100000, vectors);                                        \
        d.classes += more;                                                                                             \
        change;                                                                                                        \
        expect_variant("row_thread", name, &d, __LINE__);                                                              \
    } while (0)

/* Rows of row_basic, whose variants are called by their schedule. */
#define BASIC(schedule, name, writes, vectors, change)                                                                 \
    do {                                                                                                               \
        const int v = find_variant("cross_entropy", "row_basic", name, dtype);                                         \
        gpuloss_cross_entropy_desc d = rows_of(dtype, writes, 8192, vectors);                                          \
        change;                                                                                                        \
        expect_ok(gpuloss_cross_entropy(context, &d, stream_number(1)));                                               \
        expect_module("cross_entropy_" schedule, dtype, __LINE__);                                                     \
        expect_words(v, usual_variants[v].words[GPULOSSI_FORMAT_WORD], last_launch()->module->words, __LINE__);        \
    } while (0)

static void calls_of(gpuloss_dtype dtype) {
    VARIANT("loss", 0, 8192, 16032, (void)0);
    VARIANT("gradient", 1, 8192, 4000, (void)0);
    VARIANT("smoothing_loss", 0, 8192, 16032, d.label_smoothing = 0.1);
    VARIANT("smoothing_gradient", 1, 8192, 4000, d.label_smoothing = 0.1);
    VARIANT("smoothing_short_loss", 0, 131072, 125, (d.label_smoothing = 0.1, d.logits_stride = d.classes + 16));
    VARIANT("weights_loss", 0, 131072, 250, (d.label_smoothing = 0.1, d.class_weights = AT(6)));
    VARIANT("weights_short_loss", 0, 131072, 125,
            (d.label_smoothing = 0.1, d.class_weights = AT(6), d.logits_stride = d.classes + 16));
    VARIANT("weights_gradient", 1, 131072, 250, (d.label_smoothing = 0.1, d.class_weights = AT(6)));
    VARIANT("row_weights_gradient", 1, 8192, 4000, d.row_weights = AT(6));
    VARIANT("z_loss_gradient", 1, 8192, 4000, d.lse_square_scale = 1e-4);
    VARIANT("softcap_gradient", 1, 8192, 4000, d.softcap = 30.0);
    VARIANT("argmax_correct_loss", 0, 8192, 4000, (d.argmax = (int64_t *)AT(6), d.correct = (int64_t *)AT(7)));
    VARIANT("probabilities_loss", 0, 8192, 4000, give_probabilities(&d));
    VARIANT("probabilities_gradient", 1, 8192, 1000, give_probabilities(&d));
    VARIANT("ragged_loss", 0, 8192, 4000, d.classes++);
    VARIANT("ragged_gradient", 1, 8192, 4000, d.classes++);
    VARIANT("ragged_weights_loss", 0, 131072, 250, (d.classes++, d.label_smoothing = 0.1, d.class_weights = AT(6)));
    VARIANT("ragged_weights_gradient", 1, 131072, 250, (d.classes++, d.label_smoothing = 0.1, d.class_weights = AT(6)));
    VARIANT("cluster_loss", 0, 100, 16032, (void)0);
    VARIANT("cluster_gradient", 1, 8192, 16032, (void)0);
    VARIANT("ragged_cluster_gradient", 1, 8192, 16032, d.classes++);
    VARIANT("argmax_cluster_gradient", 1, 8192, 16032, d.argmax = (int64_t *)AT(6));
    BASIC("block_rows", "loss", 0, 1000, (void)0);
    BASIC("block_rows", "gradient", 1, 1000, (void)0);
    BASIC("packed_smem", "packed_loss", 0, 20, (void)0);
    BASIC("packed_smem", "packed_gradient", 1, 20, (void)0);
    BASIC("packed_smem", "packed_ragged_gradient", 1, 20, d.classes++);
    BASIC("packed_reg", "short_loss", 0, 2, (void)0);
    BASIC("packed_reg", "short_gradient", 1, 2, (void)0);
    BASIC("packed_reg", "short_ragged_gradient", 1, 2, d.classes++);
    BASIC("block_rows", "z_loss", 0, 1000, d.lse_square_scale = 1e-4);
    BASIC("packed_smem", "packed_smoothing_loss", 0, 20, d.label_smoothing = 0.1);
    BASIC("packed_reg", "short_smoothing_loss", 0, 2, d.label_smoothing = 0.1);
    BASIC("block_rows", "weights_loss", 0, 1000, d.class_weights = AT(6));
    BASIC("packed_smem", "packed_weights_loss", 0, 20, d.class_weights = AT(6));
    BASIC("packed_reg", "short_weights_gradient", 1, 2, d.class_weights = AT(6));
    BASIC("packed_reg", "short_smoothing_gradient", 1, 2, d.label_smoothing = 0.1);
    BASIC("packed_smem", "packed_argmax_loss", 0, 20, d.argmax = (int64_t *)AT(6));
    BASIC("packed_smem", "packed_both_weights_loss", 0, 20, (d.label_smoothing = 0.1, d.class_weights = AT(6)));
    BASIC("packed_reg", "short_argmax_gradient", 1, 2, d.correct = (int64_t *)AT(6));
    BASIC("packed_reg", "short_both_weights_gradient", 1, 2, (d.label_smoothing = 0.1, d.class_weights = AT(6)));
    TILES("smoothing_loss", 0, 5, 2, (d.label_smoothing = 0.1, d.logits = GPULOSS_PTR(((uintptr_t)1 << 57) + 4)));
    TILES("smoothing_gradient", 1, 5, 2, d.label_smoothing = 0.1);
    TILES("shared_gradient", 1, 20, 2, d.label_smoothing = 0.1);
    TILES("even_gradient", 1, 5, 0, d.row_weights = AT(6));
    TILES("ragged_gradient", 1, 5, 0, d.logits_stride = d.classes + 1);
    TILES("probabilities_gradient", 1, 5, 2, give_probabilities(&d));
    TILES("columns_loss", 0, 5, 0, (d.inner = 1000, d.label_smoothing = 0.1));
}

/* The pipeline of doubles. */
static void calls_of_doubles(void) {
    const gpuloss_dtype dtype = GPULOSS_F64;
    VARIANT("loss", 0, 8192, 16032, (void)0);
    VARIANT("gradient", 1, 8192, 4000, (void)0);
    VARIANT("weights_loss", 0, 131072, 500, (d.label_smoothing = 0.1, d.class_weights = AT(6)));
    VARIANT("weights_gradient", 1, 8192, 4000, (d.label_smoothing = 0.1, d.class_weights = AT(6)));
    VARIANT("probabilities_gradient", 1, 8192, 1000, give_probabilities(&d));
    VARIANT("cluster_gradient", 1, 8192, 16032, (void)0);
}

/* Logits on both sides, in rows of so many vectors. */
static gpuloss_kl_div_desc pairs_of(gpuloss_dtype dtype, int writes, int64_t vectors) {
    gpuloss_kl_div_desc d = some_kl_div();
    d.dtype = dtype;
    d.input_kind = d.target_kind = GPULOSS_LOGITS;
    d.rows = 8192;
    d.classes = vectors * (dtype == GPULOSS_F64 ? 2 : dtype == GPULOSS_F32 ? 4 : 8);
    d.grad_input = writes ? GPULOSS_PTR((uintptr_t)1 << 56) : NULL;
    return d;
}
#define PAIRS(name, writes, change)                                                                                    \
    do {                                                                                                               \
        gpuloss_kl_div_desc d = pairs_of(dtype, writes, vectors);                                                      \
        change;                                                                                                        \
        expect_ok(gpuloss_kl_div(context, &d, stream_number(1)));                                                      \
        expect_launched("kl_div", kernel, name, dtype, __LINE__);                                                      \
    } while (0)

/* Divergences of rows of the pipeline, or of shorter ones in memory. Logits are not packed: there is a gap between rows. */
static void pairs_of_calls(gpuloss_dtype dtype, const char *kernel, int64_t vectors) {
    PAIRS("logits_loss", 0, d.target_stride = d.classes + 16);
    PAIRS("logits_gradient", 1, d.target_stride = d.classes + 16);
    PAIRS("reverse_gradient", 1, d.divergence = GPULOSS_REVERSE_KL);
    PAIRS("shannon_gradient", 1, (d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.5));
    PAIRS("teacher_loss", 0, d.target_kind = GPULOSS_PROBABILITIES);
    PAIRS("teacher_gradient", 1, d.target_kind = GPULOSS_PROBABILITIES);
    PAIRS("teacher_reverse_gradient", 1, (d.target_kind = GPULOSS_PROBABILITIES, d.divergence = GPULOSS_REVERSE_KL));
}

/* Probabilities or their logarithms on either side. */
static void calls_of_probabilities(gpuloss_dtype dtype) {
    const char *kernel = "probabilities";
    const int64_t vectors = 200;
    PAIRS("pp", 1, d.input_kind = d.target_kind = GPULOSS_PROBABILITIES);
    PAIRS("lp", 1, (d.input_kind = GPULOSS_LOG_PROBABILITIES, d.target_kind = GPULOSS_PROBABILITIES));
    PAIRS("pl", 1, (d.input_kind = GPULOSS_PROBABILITIES, d.target_kind = GPULOSS_LOG_PROBABILITIES));
    PAIRS("ll", 1, d.input_kind = d.target_kind = GPULOSS_LOG_PROBABILITIES);
}

/* Long rows. */
static void long_pairs_of_calls(gpuloss_dtype dtype) {
    const char *kernel = "row_pipeline";
    const int64_t vectors = 16032;
    PAIRS("teacher_cluster_gradient", 1, (d.rows = 1395, d.target_kind = GPULOSS_PROBABILITIES));
    PAIRS("reverse_cluster_gradient", 1, (d.rows = 1395, d.divergence = GPULOSS_REVERSE_KL));
    PAIRS("teacher_long_loss", 0, d.target_kind = GPULOSS_PROBABILITIES);
    if (dtype != GPULOSS_F32)
        PAIRS("float_gradient", 1, (d.classes = 8000, d.target_dtype = GPULOSS_F32));
}

/* Jensen-Shannon and total variation of long rows of logits. */
static void distances_of_calls(gpuloss_dtype dtype) {
    const char *kernel = "distances_clustered";
    const int64_t vectors = 9000;
    PAIRS("shannon_loss", 0, (d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.5));
    PAIRS("shannon_gradient", 1, (d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.5));
    PAIRS("any_beta_gradient", 1, (d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.25));
    PAIRS("variation_loss", 0, d.divergence = GPULOSS_TOTAL_VARIATION);
    PAIRS("variation_gradient", 1, d.divergence = GPULOSS_TOTAL_VARIATION);
}

/* Divergences of a sparse teacher, whose other classes are a bucket unless a call renormalises. */
#define SPARSE(name, writes, change)                                                                                   \
    do {                                                                                                               \
        gpuloss_kl_div_sparse_desc d = some_kl_div_sparse();                                                           \
        d.dtype = dtype;                                                                                               \
        d.index_type = GPULOSS_I64;                                                                                    \
        d.indices = GPULOSS_PTR((uintptr_t)1 << 54);                                                                   \
        d.values = GPULOSS_PTR((uintptr_t)1 << 55);                                                                    \
        d.rows = 8192;                                                                                                 \
        d.classes = vectors * (dtype == GPULOSS_F64 ? 2 : dtype == GPULOSS_F32 ? 4 : 8);                               \
        d.grad_logits = writes ? GPULOSS_PTR((uintptr_t)1 << 56) : NULL;                                               \
        change;                                                                                                        \
        expect_ok(gpuloss_kl_div_sparse(context, &d, stream_number(1)));                                               \
        expect_launched("kl_div", kernel, name, dtype, __LINE__);                                                      \
    } while (0)

static void sparse_calls(gpuloss_dtype dtype, const char *kernel, int64_t vectors) {
    SPARSE("sparse_loss", 0, (void)0);
    SPARSE("sparse_gradient", 1, (void)0);
    SPARSE("sparse_shannon_gradient", 1,
           (d.residual = GPULOSS_RENORMALIZE, d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 0.5));
}

/* The prepare kernel, which is the first launch of a call. */
static void expect_prepared(const char *name, int line) {
    int v = 0;
    while (v < USUAL_VARIANTS &&
           (strcmp(usual_variants[v].kernel, "prepare") != 0 || strcmp(usual_variants[v].name, name) != 0))
        v++;
    if (v == USUAL_VARIANTS)
        fail_msg("there is no variant %s", name);
    assert_string_equal(fake.launch[0].entry, PREPARE_KERNEL);
    expect_words(v, usual_variants[v].words[GPULOSSI_FORMAT_WORD], fake.launch[0].module->words, line);
}

static void prepared_calls(void) {
    gpuloss_cross_entropy_desc d = rows_of(GPULOSS_F32, 1, 8192, 100);
    fake.launches = 0;
    expect_ok(gpuloss_cross_entropy(context, &d, stream_number(1)));
    expect_prepared("count", __LINE__);
    d.class_weights = AT(6);
    fake.launches = 0;
    expect_ok(gpuloss_cross_entropy(context, &d, stream_number(1)));
    expect_prepared("weights", __LINE__);
    d.class_weights = NULL;
    d.target_type = GPULOSS_I32;
    fake.launches = 0;
    expect_ok(gpuloss_cross_entropy_divisor(context, &d, AT(30), stream_number(1)));
    expect_prepared("divisor", __LINE__);
}

static int is_of_calls(const variant *v) {
    return strcmp(v->kernel, "row_pipeline") == 0 || strncmp(v->kernel, "sparse_", 7) == 0 ||
           strcmp(v->kernel, "row_thread") == 0 || strcmp(v->kernel, "distances_clustered") == 0 ||
           strcmp(v->kernel, "prepare") == 0 || strcmp(v->kernel, "row_basic") == 0 ||
           (strcmp(v->loss, "kl_div") == 0 &&
            (strcmp(v->kernel, "row_memory") == 0 || strcmp(v->kernel, "probabilities") == 0));
}

static void usual_variants_are_those_of_calls(void **state) {
    int v;
    (void)state;
    context = new_context();
    calls_of(GPULOSS_F32);
    calls_of(GPULOSS_F16);
    calls_of(GPULOSS_BF16);
    calls_of_doubles();
    prepared_calls();
    for (v = 0; v < DTYPES; v++) {
        calls_of_probabilities(every_dtype[v].dtype);
        pairs_of_calls(every_dtype[v].dtype, "row_memory", 40);
        sparse_calls(every_dtype[v].dtype, "sparse_memory", 40);
        if (every_dtype[v].dtype != GPULOSS_F64) {
            pairs_of_calls(every_dtype[v].dtype, "row_pipeline", 125);
            sparse_calls(every_dtype[v].dtype, "sparse_pipeline", 200);
            long_pairs_of_calls(every_dtype[v].dtype);
            distances_of_calls(every_dtype[v].dtype);
        }
    }
    gpuloss_destroy(context);
    for (v = 0; v < USUAL_VARIANTS; v++)
        if (seen[v] != is_of_calls(&usual_variants[v]))
            fail_msg("%d calls are of the variant %s of %s", seen[v], usual_variants[v].name, usual_variants[v].kernel);
}

int variant_tests(void) {
    const struct CMUnitTest tests[] = {TEST(usual_variants_are_those_of_calls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
