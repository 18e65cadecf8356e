/* The usual variants of the texts. Each is built as the library does it, and as a template, and has a row of MANIFEST. The
 * feature words of the pipeline are those of calls, which tests/host/test_variants.c makes. */
#ifndef GPULOSSI_GEN_VARIANTS_H
#define GPULOSSI_GEN_VARIANTS_H

#include "../gpuloss.h"

typedef struct variant {
    const char *loss, *kernel, *dtype, *module, *name;
    uint32_t words[GPULOSSI_FEATURE_WORDS];
} variant;

#define VARIANT(loss, kernel, dtype, name, call, format)                                                               \
    {#loss, #kernel, #dtype, #loss "_" #kernel "_" #dtype, name, {call, format}},

/* Tiles, and texts of 16 bits for every GPU, know one of 8.0 and newer. */
#define VARIANT_BF16 (GPULOSSI_FORMAT_SM_80 | GPULOSSI_FORMAT_BF16)

/* Tiles of rows or columns for each type, as above. */
#define TILES(name, call, format)                                                                                      \
    VARIANT(cross_entropy, row_thread, f32, name, call, (format) | GPULOSSI_FORMAT_SM_80)                              \
    VARIANT(cross_entropy, row_thread, any16, "f16_" name, call, (format) | GPULOSSI_FORMAT_SM_80)                     \
    VARIANT(cross_entropy, row_thread, any16, "bf16_" name, call, (format) | VARIANT_BF16)

/* Rows or columns of the kernels with few options for each type. */
#define BASIC(kernel, name, call, format)                                                                              \
    VARIANT(cross_entropy, kernel, f32, name, call, format)                                                            \
    VARIANT(cross_entropy, kernel, any16, "f16_" name, call, format)                                                   \
    VARIANT(cross_entropy, kernel, any16, "bf16_" name, call, (format) | GPULOSSI_FORMAT_BF16)

/* Rows in memory for each type, and those in registers, which no doubles are. */
#define MEMORY(name, call, format)                                                                                     \
    REGISTERS(name, call, format)                                                                                      \
    VARIANT(cross_entropy, row_memory, f64, name, call, format)
#define REGISTERS(name, call, format)                                                                                  \
    VARIANT(cross_entropy, row_memory, f32, name, call, format)                                                        \
    VARIANT(cross_entropy, row_memory, any16, "f16_" name, call, (format) | GPULOSSI_FORMAT_SM_80)                     \
    VARIANT(cross_entropy, row_memory, any16, "bf16_" name, call, (format) | VARIANT_BF16)

/* The pipeline for each type, with the format of f32 and that of 16 bits. */
#define PIPELINE(name, call, of_f32, of_16_bits)                                                                       \
    VARIANT(cross_entropy, row_pipeline, f32, name, call, of_f32)                                                      \
    VARIANT(cross_entropy, row_pipeline, any16, "f16_" name, call, of_16_bits)                                         \
    VARIANT(cross_entropy, row_pipeline, any16, "bf16_" name, call, (of_16_bits) | GPULOSSI_FORMAT_BF16)

/* The pipeline of doubles. */
#define F64_PIPELINE(name, call, format) VARIANT(cross_entropy, row_pipeline, f64, name, call, format)

/* Long rows with smoothing for each type. */
#define LONG(name, call, format)                                                                                       \
    VARIANT(cross_entropy, row_cluster, f32, name, call, format)                                                       \
    VARIANT(cross_entropy, row_cluster, any16, "f16_" name, call, format)                                              \
    VARIANT(cross_entropy, row_cluster, any16, "bf16_" name, call, (format) | GPULOSSI_FORMAT_BF16)

/* Probabilities or their logarithms for each type: the input's letter first. */
#define PROBABILITIES(name, call)                                                                                      \
    VARIANT(kl_div, probabilities, f32, name, call, 0)                                                                 \
    VARIANT(kl_div, probabilities, f64, name, call, 0)                                                                 \
    VARIANT(kl_div, probabilities, any16, "f16_" name, call, GPULOSSI_FORMAT_SM_80)                                    \
    VARIANT(kl_div, probabilities, any16, "bf16_" name, call, VARIANT_BF16)

/* Divergences of rows in memory for each type. */
#define PAIRS(name, call)                                                                                              \
    VARIANT(kl_div, row_memory, f32, name, call, 0)                                                                    \
    VARIANT(kl_div, row_memory, f64, name, call, 0)                                                                    \
    VARIANT(kl_div, row_memory, any16, "f16_" name, call, GPULOSSI_FORMAT_SM_80)                                       \
    VARIANT(kl_div, row_memory, any16, "bf16_" name, call, VARIANT_BF16)

/* Divergences of rows in the pipeline for each type. */
#define PAIR_PIPELINE(name, call, of_f32, of_16_bits)                                                                  \
    VARIANT(kl_div, row_pipeline, f32, name, call, of_f32)                                                             \
    VARIANT(kl_div, row_pipeline, any16, "f16_" name, call, of_16_bits)                                                \
    VARIANT(kl_div, row_pipeline, any16, "bf16_" name, call, (of_16_bits) | GPULOSSI_FORMAT_BF16)

/* Forward KL of two arrays of logits for each type. */
#define DISTILLATION(kernel, name, call)                                                                               \
    VARIANT(kl_div, kernel, f32, name, call, 0)                                                                        \
    VARIANT(kl_div, kernel, any16, "f16_" name, call, 0)                                                               \
    VARIANT(kl_div, kernel, any16, "bf16_" name, call, GPULOSSI_FORMAT_BF16)

/* Jensen-Shannon and total variation of long rows of logits for each type. */
#define DISTANCES(name, call)                                                                                          \
    VARIANT(kl_div, distances_clustered, f32, name, call, 0)                                                           \
    VARIANT(kl_div, distances_clustered, any16, "f16_" name, call, 0)                                                  \
    VARIANT(kl_div, distances_clustered, any16, "bf16_" name, call, GPULOSSI_FORMAT_BF16)

/* A sparse teacher for each type, in memory and in the pipeline. */
#define SPARSE(name, call)                                                                                             \
    VARIANT(kl_div, sparse_memory, f32, name, call, 0)                                                                 \
    VARIANT(kl_div, sparse_memory, f64, name, call, 0)                                                                 \
    VARIANT(kl_div, sparse_memory, any16, "f16_" name, call, GPULOSSI_FORMAT_SM_80)                                    \
    VARIANT(kl_div, sparse_memory, any16, "bf16_" name, call, VARIANT_BF16)                                            \
    VARIANT(kl_div, sparse_pipeline, f32, name, call, GPULOSSI_FORMAT_NO_LINES)                                        \
    VARIANT(kl_div, sparse_pipeline, any16, "f16_" name, call, GPULOSSI_FORMAT_NO_LINES)                               \
    VARIANT(kl_div, sparse_pipeline, any16, "bf16_" name, call, GPULOSSI_FORMAT_NO_LINES | GPULOSSI_FORMAT_BF16)

/* Of a mean over rows that are not ignored. With many rows and a gradient another kernel counts them before. */
enum {
    VARIANT_LOSS = GPULOSSI_CE_LOSS | GPULOSSI_CE_COUNTS,
    VARIANT_GRADIENT = GPULOSSI_CE_LOSS | GPULOSSI_CE_GRADIENT,
    VARIANT_WEIGHTS = GPULOSSI_CE_SMOOTHING | GPULOSSI_CE_CLASS_WEIGHTS, /* whose sum that kernel has, too */
    VARIANT_WEIGHTS_LOSS = GPULOSSI_CE_LOSS | GPULOSSI_CE_COUNTS | VARIANT_WEIGHTS,
    VARIANT_ROWS = GPULOSSI_FORMAT_NO_LINES | GPULOSSI_FORMAT_ONE_STEP, /* of a warp */
    VARIANT_SMEM = GPULOSSI_FORMAT_SMEM_WEIGHTS | VARIANT_ROWS,
    VARIANT_SHORT = GPULOSSI_FORMAT_SHORT_STAGES | GPULOSSI_FORMAT_THREE_BLOCKS | VARIANT_ROWS,
    VARIANT_SHORT_ROWS = GPULOSSI_FORMAT_PACKED | GPULOSSI_FORMAT_REGISTERS, /* row_basic */
    VARIANT_LINES = GPULOSSI_FORMAT_NO_LINES,                                /* rows begin on lines */
    VARIANT_STAGED = GPULOSSI_FORMAT_TWO_ARRAYS | VARIANT_LINES,
    VARIANT_LONG = GPULOSSI_FORMAT_LONG_STAGES | VARIANT_STAGED,
    VARIANT_FLOATS = VARIANT_LONG | GPULOSSI_FORMAT_F32 << GPULOSSI_FORMAT_TARGET_SHIFT, /* beside 16 bits */
    VARIANT_PAIRS = GPULOSSI_FORMAT_TWO_ARRAYS | VARIANT_ROWS,
    VARIANT_THREE = VARIANT_PAIRS | GPULOSSI_FORMAT_THREE_BLOCKS,
    VARIANT_STAGED_CLUSTER = VARIANT_STAGED | GPULOSSI_FORMAT_CLUSTER,
    VARIANT_RAGGED = GPULOSSI_FORMAT_RAGGED,
    VARIANT_CLUSTER = GPULOSSI_FORMAT_CLUSTER | GPULOSSI_FORMAT_WIDE,
    VARIANT_FEW = GPULOSSI_FORMAT_SHORT_STAGES | GPULOSSI_FORMAT_NO_LINES | VARIANT_CLUSTER, /* few rows */
    VARIANT_LOGITS = GPULOSSI_KL_LOSS | GPULOSSI_KL_INPUT_LOGITS | GPULOSSI_KL_TARGET_LOGITS,
    VARIANT_VALUES = GPULOSSI_KL_VALUES | GPULOSSI_KL_INPUT_SUM, /* of a gradient of the input */
    VARIANT_KL = VARIANT_LOGITS | GPULOSSI_KL_ONE_SWEEP,
    VARIANT_REVERSE = VARIANT_KL | GPULOSSI_KL_REVERSE | GPULOSSI_KL_OWN_GRADIENT,
    VARIANT_HALVES = GPULOSSI_KL_JENSEN_SHANNON | GPULOSSI_KL_HALF_BETA,
    VARIANT_SHANNON = VARIANT_LOGITS | VARIANT_HALVES | VARIANT_VALUES,
    VARIANT_TEACHER = GPULOSSI_KL_LOSS | GPULOSSI_KL_INPUT_LOGITS | GPULOSSI_KL_DIRECT, /* of probabilities */
    VARIANT_TEACHER_REVERSE = VARIANT_TEACHER | GPULOSSI_KL_REVERSE | GPULOSSI_KL_OWN_GRADIENT,
    VARIANT_SPARSE = GPULOSSI_KL_LOSS | GPULOSSI_KL_BUCKET | GPULOSSI_KL_VALUES,
    VARIANT_SPARSE_SHANNON = GPULOSSI_KL_LOSS | GPULOSSI_KL_RENORMALIZE | VARIANT_HALVES | VARIANT_VALUES
};

static const variant usual_variants[] = {
    /* clang-format off */
    PIPELINE("loss", VARIANT_LOSS, VARIANT_LINES, VARIANT_LINES)
    PIPELINE("gradient", VARIANT_GRADIENT, VARIANT_LINES, VARIANT_LINES)
    PIPELINE("smoothing_loss", VARIANT_LOSS | GPULOSSI_CE_SMOOTHING, VARIANT_LINES, VARIANT_LINES)
    PIPELINE("smoothing_gradient", VARIANT_GRADIENT | GPULOSSI_CE_SMOOTHING, VARIANT_LINES, VARIANT_LINES)
    PIPELINE("smoothing_short_loss", VARIANT_LOSS | GPULOSSI_CE_SMOOTHING, VARIANT_SHORT, VARIANT_SHORT)
    PIPELINE("weights_loss", VARIANT_WEIGHTS_LOSS, VARIANT_SMEM, VARIANT_SMEM)
    PIPELINE("weights_short_loss", VARIANT_WEIGHTS_LOSS, VARIANT_SMEM | VARIANT_SHORT, VARIANT_SMEM | VARIANT_SHORT)
    PIPELINE("weights_gradient", VARIANT_GRADIENT | VARIANT_WEIGHTS, VARIANT_SMEM, VARIANT_SMEM)
    PIPELINE("row_weights_gradient", VARIANT_GRADIENT | GPULOSSI_CE_ROW_WEIGHTS, VARIANT_LINES, VARIANT_LINES)
    PIPELINE("z_loss_gradient", VARIANT_GRADIENT | GPULOSSI_CE_Z_LOSS, VARIANT_LINES, VARIANT_LINES)
    PIPELINE("softcap_gradient", VARIANT_GRADIENT | GPULOSSI_CE_SOFTCAP, VARIANT_LINES, VARIANT_LINES)
    PIPELINE("argmax_correct_loss", VARIANT_LOSS | GPULOSSI_CE_ARGMAX, VARIANT_LINES, VARIANT_LINES)
    PIPELINE("probabilities_loss", GPULOSSI_CE_LOSS | GPULOSSI_CE_PROBABILITIES, VARIANT_LONG, VARIANT_LONG)
    PIPELINE("probabilities_gradient", VARIANT_GRADIENT | GPULOSSI_CE_PROBABILITIES, VARIANT_STAGED, VARIANT_STAGED)
    PIPELINE("ragged_loss", VARIANT_LOSS, VARIANT_RAGGED, VARIANT_RAGGED)
    PIPELINE("ragged_gradient", VARIANT_GRADIENT, VARIANT_RAGGED, VARIANT_RAGGED)
    PIPELINE("ragged_weights_loss", VARIANT_WEIGHTS_LOSS, VARIANT_SMEM | VARIANT_RAGGED, VARIANT_SMEM | VARIANT_RAGGED)
    PIPELINE("ragged_weights_gradient", VARIANT_GRADIENT | VARIANT_WEIGHTS, VARIANT_SMEM | VARIANT_RAGGED, VARIANT_SMEM | VARIANT_RAGGED)
    PIPELINE("cluster_loss", VARIANT_LOSS, VARIANT_FEW, VARIANT_FEW)
    PIPELINE("cluster_gradient", VARIANT_GRADIENT, VARIANT_CLUSTER | VARIANT_LINES, VARIANT_CLUSTER | VARIANT_LINES)
    PIPELINE("ragged_cluster_gradient", VARIANT_GRADIENT, VARIANT_CLUSTER | VARIANT_RAGGED, VARIANT_CLUSTER | VARIANT_RAGGED)
    PIPELINE("argmax_cluster_gradient", VARIANT_GRADIENT | GPULOSSI_CE_ARGMAX, VARIANT_CLUSTER | VARIANT_LINES, VARIANT_CLUSTER | VARIANT_LINES)
    F64_PIPELINE("loss", VARIANT_LOSS, VARIANT_LINES)
    F64_PIPELINE("gradient", VARIANT_GRADIENT, VARIANT_LINES)
    F64_PIPELINE("weights_loss", VARIANT_WEIGHTS_LOSS, GPULOSSI_FORMAT_SMEM_WEIGHTS | GPULOSSI_FORMAT_NO_LINES)
    F64_PIPELINE("weights_gradient", VARIANT_GRADIENT | VARIANT_WEIGHTS, VARIANT_STAGED)
    F64_PIPELINE("probabilities_gradient", VARIANT_GRADIENT | GPULOSSI_CE_PROBABILITIES, VARIANT_STAGED)
    F64_PIPELINE("cluster_gradient", VARIANT_GRADIENT, GPULOSSI_FORMAT_CLUSTER | VARIANT_LINES)
    TILES("smoothing_loss", VARIANT_LOSS | GPULOSSI_CE_SMOOTHING, GPULOSSI_FORMAT_PACKED | GPULOSSI_FORMAT_ONE_THREAD)
    TILES("smoothing_gradient", VARIANT_GRADIENT | GPULOSSI_CE_SMOOTHING, GPULOSSI_FORMAT_PACKED | GPULOSSI_FORMAT_ONE_THREAD)
    TILES("shared_gradient", VARIANT_GRADIENT | GPULOSSI_CE_SMOOTHING, GPULOSSI_FORMAT_PACKED)
    TILES("even_gradient", VARIANT_GRADIENT | GPULOSSI_CE_ROW_WEIGHTS, GPULOSSI_FORMAT_ONE_THREAD)
    TILES("ragged_gradient", VARIANT_GRADIENT, GPULOSSI_FORMAT_RAGGED | GPULOSSI_FORMAT_ONE_THREAD)
    TILES("probabilities_gradient", VARIANT_GRADIENT | GPULOSSI_CE_PROBABILITIES, GPULOSSI_FORMAT_PACKED | GPULOSSI_FORMAT_TWO_ARRAYS)
    TILES("columns_loss", VARIANT_LOSS | GPULOSSI_CE_SMOOTHING, GPULOSSI_FORMAT_COLUMNS | GPULOSSI_FORMAT_ONE_THREAD)
    MEMORY("loss", VARIANT_LOSS, 0)
    MEMORY("gradient", VARIANT_GRADIENT | GPULOSSI_CE_COUNTS, 0)
    REGISTERS("short_loss", VARIANT_LOSS, GPULOSSI_FORMAT_REGISTERS)
    REGISTERS("short_gradient", VARIANT_GRADIENT | GPULOSSI_CE_COUNTS, GPULOSSI_FORMAT_REGISTERS)
    MEMORY("weights_gradient", VARIANT_GRADIENT | VARIANT_WEIGHTS, 0)
    MEMORY("probabilities_gradient", VARIANT_GRADIENT | GPULOSSI_CE_PROBABILITIES, 0)
    BASIC(row_basic, "loss", VARIANT_LOSS, 0)
    BASIC(row_basic, "gradient", VARIANT_GRADIENT, 0)
    BASIC(row_basic, "packed_loss", VARIANT_LOSS, GPULOSSI_FORMAT_PACKED)
    BASIC(row_basic, "packed_gradient", VARIANT_GRADIENT, GPULOSSI_FORMAT_PACKED)
    BASIC(row_basic, "short_loss", VARIANT_LOSS, VARIANT_SHORT_ROWS)
    BASIC(row_basic, "short_gradient", VARIANT_GRADIENT, VARIANT_SHORT_ROWS)
    BASIC(row_basic, "packed_ragged_gradient", VARIANT_GRADIENT, GPULOSSI_FORMAT_PACKED | GPULOSSI_FORMAT_RAGGED)
    BASIC(row_basic, "short_ragged_gradient", VARIANT_GRADIENT, VARIANT_SHORT_ROWS | GPULOSSI_FORMAT_RAGGED)
    BASIC(row_basic, "z_loss", VARIANT_LOSS | GPULOSSI_CE_Z_LOSS, 0)
    BASIC(row_basic, "packed_smoothing_loss", VARIANT_LOSS | GPULOSSI_CE_SMOOTHING, GPULOSSI_FORMAT_PACKED)
    BASIC(row_basic, "short_smoothing_loss", VARIANT_LOSS | GPULOSSI_CE_SMOOTHING, VARIANT_SHORT_ROWS)
    BASIC(row_basic, "weights_loss", VARIANT_LOSS | GPULOSSI_CE_CLASS_WEIGHTS, 0)
    BASIC(row_basic, "packed_weights_loss", VARIANT_LOSS | GPULOSSI_CE_CLASS_WEIGHTS, GPULOSSI_FORMAT_PACKED)
    BASIC(row_basic, "short_weights_gradient", VARIANT_GRADIENT | GPULOSSI_CE_CLASS_WEIGHTS, VARIANT_SHORT_ROWS)
    BASIC(row_basic, "short_smoothing_gradient", VARIANT_GRADIENT | GPULOSSI_CE_SMOOTHING, VARIANT_SHORT_ROWS)
    BASIC(row_basic, "packed_argmax_loss", VARIANT_LOSS | GPULOSSI_CE_ARGMAX, GPULOSSI_FORMAT_PACKED)
    BASIC(row_basic, "packed_both_weights_loss", VARIANT_WEIGHTS_LOSS, GPULOSSI_FORMAT_PACKED)
    BASIC(row_basic, "short_argmax_gradient", VARIANT_GRADIENT | GPULOSSI_CE_ARGMAX, VARIANT_SHORT_ROWS)
    BASIC(row_basic, "short_both_weights_gradient", VARIANT_GRADIENT | VARIANT_WEIGHTS, VARIANT_SHORT_ROWS)
    BASIC(column_basic, "loss", VARIANT_LOSS, 0)
    BASIC(column_basic, "gradient", VARIANT_GRADIENT, 0)
    BASIC(column_basic, "few_loss", VARIANT_LOSS, GPULOSSI_FORMAT_REGISTERS)
    BASIC(column_basic, "few_gradient", VARIANT_GRADIENT, GPULOSSI_FORMAT_REGISTERS)
    VARIANT(common, prepare, targets, "count", 0, 0)
    VARIANT(common, prepare, targets, "weights", GPULOSSI_PREPARE_WEIGHTS, 0)
    VARIANT(common, prepare, targets, "divisor", GPULOSSI_PREPARE_OUTPUT, GPULOSSI_FORMAT_INDEX_I32)
    VARIANT(cross_entropy, row_cluster, f32, "weights_loss", VARIANT_WEIGHTS_LOSS, 0)
    LONG("weights_gradient", VARIANT_GRADIENT | VARIANT_WEIGHTS, 0)
    LONG("smoothing_gradient", VARIANT_GRADIENT | GPULOSSI_CE_SMOOTHING, 0)
    LONG("ragged_weights_loss", VARIANT_WEIGHTS_LOSS, VARIANT_RAGGED)
    LONG("ragged_weights_gradient", VARIANT_GRADIENT | VARIANT_WEIGHTS, VARIANT_RAGGED)
    LONG("ragged_lse_gradient", GPULOSSI_CE_GRADIENT | GPULOSSI_CE_LSE_IN | VARIANT_WEIGHTS, VARIANT_RAGGED)
    PROBABILITIES("pp", 0)
    PROBABILITIES("lp", GPULOSSI_KL_INPUT_LOGARITHMS)
    PROBABILITIES("pl", GPULOSSI_KL_TARGET_LOGARITHMS)
    PROBABILITIES("ll", GPULOSSI_KL_INPUT_LOGARITHMS | GPULOSSI_KL_TARGET_LOGARITHMS)
    PAIRS("logits_loss", VARIANT_KL)
    PAIRS("logits_gradient", VARIANT_KL | GPULOSSI_KL_GRADIENT)
    PAIRS("reverse_gradient", VARIANT_REVERSE | GPULOSSI_KL_GRADIENT)
    PAIRS("shannon_gradient", VARIANT_SHANNON | GPULOSSI_KL_GRADIENT)
    PAIRS("teacher_loss", VARIANT_TEACHER)
    PAIRS("teacher_gradient", VARIANT_TEACHER | GPULOSSI_KL_GRADIENT)
    PAIRS("teacher_reverse_gradient", VARIANT_TEACHER_REVERSE | GPULOSSI_KL_GRADIENT)
    PAIR_PIPELINE("logits_loss", VARIANT_KL, VARIANT_PAIRS, VARIANT_PAIRS)
    PAIR_PIPELINE("logits_gradient", VARIANT_KL | GPULOSSI_KL_GRADIENT, VARIANT_PAIRS, VARIANT_PAIRS)
    PAIR_PIPELINE("reverse_gradient", VARIANT_REVERSE | GPULOSSI_KL_GRADIENT, VARIANT_PAIRS, VARIANT_PAIRS)
    PAIR_PIPELINE("shannon_gradient", VARIANT_SHANNON | GPULOSSI_KL_GRADIENT, VARIANT_PAIRS, VARIANT_THREE)
    PAIR_PIPELINE("teacher_loss", VARIANT_TEACHER, VARIANT_PAIRS, VARIANT_THREE)
    PAIR_PIPELINE("teacher_gradient", VARIANT_TEACHER | GPULOSSI_KL_GRADIENT, VARIANT_PAIRS, VARIANT_THREE)
    PAIR_PIPELINE("teacher_reverse_gradient", VARIANT_TEACHER_REVERSE | GPULOSSI_KL_GRADIENT, VARIANT_PAIRS, VARIANT_PAIRS)
    PAIR_PIPELINE("teacher_cluster_gradient", VARIANT_TEACHER | GPULOSSI_KL_GRADIENT, VARIANT_STAGED_CLUSTER,
                  VARIANT_STAGED_CLUSTER)
    PAIR_PIPELINE("reverse_cluster_gradient", VARIANT_REVERSE | GPULOSSI_KL_GRADIENT, VARIANT_STAGED_CLUSTER,
                  VARIANT_STAGED_CLUSTER)
    PAIR_PIPELINE("teacher_long_loss", VARIANT_TEACHER, VARIANT_LONG, VARIANT_LONG)
    VARIANT(kl_div, row_pipeline, any16, "f16_float_gradient", VARIANT_KL | GPULOSSI_KL_GRADIENT, VARIANT_FLOATS)
    VARIANT(kl_div, row_pipeline, any16, "bf16_float_gradient", VARIANT_KL | GPULOSSI_KL_GRADIENT, VARIANT_FLOATS | GPULOSSI_FORMAT_BF16)
    /* a sparse teacher with a bucket, and Jensen-Shannon of one that is renormalised */
    SPARSE("sparse_loss", VARIANT_SPARSE)
    SPARSE("sparse_gradient", VARIANT_SPARSE | GPULOSSI_KL_GRADIENT)
    SPARSE("sparse_shannon_gradient", VARIANT_SPARSE_SHANNON | GPULOSSI_KL_GRADIENT)
    DISTILLATION(logits_packed, "loss", 0)
    DISTILLATION(logits_packed, "gradient", GPULOSSI_KL_GRADIENT)
    DISTILLATION(logits_packed_reg, "loss", 0)
    DISTILLATION(logits_packed_reg, "gradient", GPULOSSI_KL_GRADIENT)
    DISTILLATION(logits_block_rows, "gradient", GPULOSSI_KL_GRADIENT)
    DISTILLATION(logits_clustered, "gradient", GPULOSSI_KL_GRADIENT)
    DISTANCES("shannon_loss", VARIANT_HALVES)
    DISTANCES("shannon_gradient", VARIANT_HALVES | GPULOSSI_KL_GRADIENT)
    DISTANCES("any_beta_gradient", GPULOSSI_KL_JENSEN_SHANNON | GPULOSSI_KL_GRADIENT)
    DISTANCES("variation_loss", GPULOSSI_KL_TOTAL_VARIATION)
    DISTANCES("variation_gradient", GPULOSSI_KL_TOTAL_VARIATION | GPULOSSI_KL_GRADIENT)
    /* clang-format on */
};

#undef VARIANT
#undef VARIANT_BF16
#undef PIPELINE
#undef LONG
#undef TILES
#undef MEMORY
#undef PROBABILITIES
#undef PAIRS
#undef PAIR_PIPELINE
#undef DISTANCES
#undef SPARSE
#undef BASIC

enum { USUAL_VARIANTS = sizeof usual_variants / sizeof usual_variants[0] };

#endif
