#include "rules.h"

#include <string.h>

#define RULE(field, holds)                                                                                             \
    if (!(holds))                                                                                                      \
    return (field)

static const double most = 3.4e38; /* of numbers that kernels take, about the largest float */

static int is_within(double number, double low, double high) {
    return number >= low && number <= high; /* no NaN is */
}
/* Enumerators begin at 1; 0 is unset. */
static int is_one_of(int number, int last) {
    return number >= 1 && number <= last;
}
static int bytes_of(int dtype) {
    return dtype == GPULOSS_F64 ? 8 : dtype == GPULOSS_F32 ? 4 : 2;
}
static int result_bytes_of(int dtype) {
    return dtype == GPULOSS_F64 ? 8 : 4;
}
static int index_bytes_of(int type) {
    return type == GPULOSS_I64 ? 8 : type == GPULOSS_I32 ? 4 : type == GPULOSS_I16 ? 2 : 1;
}
static int or_unset(int dtype, int of_call) {
    return dtype == GPULOSS_DTYPE_UNSET ? of_call : dtype;
}

/* ---- arrays ---- */

static array *add(arrays *a, const char *field, const void *pointer, int alignment, wide bytes) {
    array *made = &a->all[a->count];
    memset(made, 0, sizeof *made);
    made->field = field;
    made->at = (uint64_t)(uintptr_t)pointer;
    made->alignment = (unsigned)alignment;
    made->bytes = bytes;
    made->stride = 1;
    a->count += pointer != NULL;
    return made;
}
static void add_output(arrays *a, const char *field, const void *pointer, int alignment, wide bytes) {
    add(a, field, pointer, alignment, bytes)->is_output = 1;
}

/* Whether a product fits 63 bits. */
static int fits(wide a, wide b, wide c) {
    return a == 0 || b == 0 || c == 0 || (a * b <= INT64_MAX && a * b * c <= INT64_MAX);
}

/* Rows of `length` elements, or images. A stride that is not given is the length. */
typedef struct matrix {
    int64_t rows;
    wide length;
} matrix;
static int is_stride(const matrix *m, int64_t given, int bytes) {
    const wide stride = given == 0 ? m->length : given;
    return stride >= m->length && fits(stride, m->rows, bytes);
}
static array *add_matrix(arrays *a, const char *field, const void *pointer, int bytes, const matrix *m, int64_t given) {
    const wide stride = given == 0 ? m->length : given;
    array *made = add(a, field, pointer, bytes, m->rows == 0 ? 0 : ((m->rows - 1) * stride + m->length) * bytes);
    made->stride = (int64_t)stride;
    return made;
}
static void add_gradient(arrays *a, const char *field, const void *pointer, int bytes, const matrix *m, int64_t given,
                         const char *same_as) {
    array *made = add_matrix(a, field, pointer, bytes, m, given);
    made->is_output = 1;
    made->same_as = same_as;
}

static int overlap(const array *a, const array *b) {
    return a->bytes > 0 && b->bytes > 0 && a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}
static int may_be_same(const array *gradient, const array *of) {
    return gradient->same_as != NULL && strcmp(gradient->same_as, of->field) == 0 && gradient->at == of->at &&
           gradient->stride == of->stride;
}
static const char *broken_array(const arrays *a) {
    int i, k;
    for (i = 0; i < a->count; i++) {
        const array *one = &a->all[i];
        RULE(one->field, one->at % one->alignment == 0);
        RULE(one->field, one->bytes <= INT64_MAX && one->at + one->bytes <= UINT64_MAX);
        for (k = 0; k < i; k++) {
            const array *other = &a->all[k];
            RULE(one->field, (!one->is_output && !other->is_output) || !overlap(one, other) ||
                                 may_be_same(one, other) || may_be_same(other, one));
        }
    }
    return NULL;
}

/* ---- the rules of all losses, and the rules of divergences ---- */

#define HAS(d, flag) (((d)->flags & (unsigned)(flag)) != 0)
#define MEAN_RULES(d, is_mean)                                                                                         \
    RULE("divisor", is_within((d)->divisor, 0.0, 1e308) && ((d)->divisor == 0.0 || (is_mean)));                        \
    RULE("divisor_in", (d)->divisor_in == NULL || ((is_mean) && (d)->divisor == 0.0))
#define COMMON_RULES(d, known, has_gradient, has_sum)                                                                  \
    RULE("dtype", is_one_of((int)(d)->dtype, GPULOSS_BF16));                                                           \
    RULE("reduction", is_one_of((int)(d)->reduction, GPULOSS_BATCHMEAN));                                              \
    RULE("flags", ((d)->flags & ~(unsigned)((known) | GPULOSS_ADD_SUMS)) == 0);                                        \
    RULE("flags", !HAS(d, GPULOSS_ADD_SUMS) || (has_sum) || (d)->rows == 0);                                           \
    RULE("rows", (d)->rows >= 0);                                                                                      \
    RULE("classes", (d)->classes >= 1);                                                                                \
    RULE("loss", (d)->loss == NULL || (d)->reduction != GPULOSS_NONE);                                                 \
    RULE("grad_scale", (d)->grad_scale == 0.0 || HAS(d, GPULOSS_USE_GRAD_SCALE));                                      \
    RULE("grad_loss", (d)->grad_loss == NULL || (d)->reduction != GPULOSS_NONE);                                       \
    RULE("grad_loss", (has_gradient) || (d)->rows == 0 || ((d)->grad_loss == NULL && (d)->grad_loss_rows == NULL));    \
    RULE("ignore_index", (d)->ignore_index == 0 || HAS(d, GPULOSS_USE_IGNORE_INDEX))
/* A workspace that is too small only counts with its own bytes. */
#define SPAN_OF_WORKSPACE(d, needed) ((wide)((d)->workspace_bytes < (needed) ? (d)->workspace_bytes : (needed)))
#define ADD_COMMON(a, d, workspace_bytes)                                                                              \
    do {                                                                                                               \
        const int result = result_bytes_of((int)(d)->dtype);                                                           \
        const wide of_rows = (wide)(d)->rows * result;                                                                 \
        add((a), "grad_loss", (d)->grad_loss, result, result);                                                         \
        add((a), "grad_loss_rows", (d)->grad_loss_rows, result, of_rows);                                              \
        add((a), "divisor_in", (d)->divisor_in, result, result);                                                       \
        add((a), "row_weights", (d)->row_weights, result, of_rows);                                                    \
        add_output((a), "loss", (d)->loss, result, result);                                                            \
        add_output((a), "loss_rows", (d)->loss_rows, result, of_rows);                                                 \
        add_output((a), "workspace", (d)->workspace, 16, SPAN_OF_WORKSPACE(d, workspace_bytes));                       \
    } while (0)

#define MASKING_RULES(d)                                                                                               \
    MEAN_RULES(d, (d)->reduction == GPULOSS_MEAN || (d)->reduction == GPULOSS_BATCHMEAN);                              \
    RULE("temperature", (d)->temperature == 0.0 || is_within((d)->temperature, 1.5 / most, most));                     \
    RULE("flags", (d)->temperature != 0.0 || !HAS(d, GPULOSS_TEMPERATURE_SQUARED));                                    \
    RULE("label_type", !HAS(d, GPULOSS_USE_IGNORE_INDEX) || is_one_of((int)(d)->label_type, GPULOSS_U8));              \
    RULE("labels", HAS(d, GPULOSS_USE_IGNORE_INDEX) ? (d)->labels != NULL || (d)->rows == 0 : (d)->labels == NULL)
#define DIVERGENCE_RULES(d)                                                                                            \
    MASKING_RULES(d);                                                                                                  \
    RULE("divergence", (int)(d)->divergence >= 0 && (int)(d)->divergence <= GPULOSS_TOTAL_VARIATION);                  \
    RULE("beta", is_within((d)->beta, 0.0, 1.0) && ((d)->beta == 0.0 || (d)->divergence == GPULOSS_JENSEN_SHANNON));   \
    RULE("classes", (d)->classes <= INT32_MAX)
#define ADD_LABELS(a, d)                                                                                               \
    add((a), "labels", (d)->labels, index_bytes_of((int)(d)->label_type),                                              \
        (wide)(d)->rows *index_bytes_of((int)(d)->label_type))

/* The divisor of chunks divides a mean that has no other divisor. */
#define DIVISOR_RULES(d, is_mean) RULE("divisor", (d)->loss != NULL && (is_mean) && (d)->divisor == 0.0)

/* ---- cross-entropy ---- */

static const char *broken_combine(const gpuloss_cross_entropy_desc *d) {
    RULE("shards", d->shards >= 1 && fits(d->shards, d->rows, (int)sizeof(gpuloss_shard_row)));
    RULE("total_classes", d->total_classes == 0);
    RULE("class_offset", d->class_offset == 0);
    RULE("inner", d->inner <= 1);
    RULE("shard_rows", d->shard_rows != NULL || d->rows == 0);
    RULE("target_probabilities", d->target_probabilities == NULL);
    RULE("grad_logits", d->grad_logits == NULL);
    RULE("lse_in", d->lse_in == NULL);
    return NULL;
}

static const char *broken_shard(const gpuloss_cross_entropy_desc *d) {
    RULE("total_classes", d->total_classes >= d->classes);
    RULE("class_offset", d->class_offset >= 0 && d->class_offset <= d->total_classes - d->classes);
    RULE("inner", d->inner <= 1);
    RULE("target_probabilities", d->target_probabilities == NULL);
    RULE("loss", d->loss == NULL && d->loss_rows == NULL && d->z_loss == NULL && d->z_loss_rows == NULL);
    RULE("lse", d->lse == NULL && d->argmax == NULL && d->correct == NULL);
    RULE("shard_rows", d->shard_rows == NULL || d->lse_in == NULL);
    RULE("grad_logits", d->grad_logits == NULL || d->lse_in != NULL || d->rows == 0);
    return NULL;
}

static const char *broken_whole(const gpuloss_cross_entropy_desc *d) {
    RULE("shards", d->shards == 0);
    RULE("classes", d->classes <= INT32_MAX);
    RULE("inner", (wide)d->classes * d->inner <= INT64_MAX);
    RULE("rows", d->inner <= 1 || d->rows % d->inner == 0);
    RULE("logits", d->logits != NULL || d->rows == 0);
    if (d->total_classes != 0)
        return broken_shard(d);
    RULE("class_offset", d->class_offset == 0);
    RULE("shard_rows", d->shard_rows == NULL);
    return NULL;
}

static int has_targets(const gpuloss_cross_entropy_desc *d) {
    if (d->rows == 0 && d->targets == NULL && d->target_type == GPULOSS_INDEX_UNSET)
        return 1;
    return is_one_of((int)d->target_type, GPULOSS_U8) && (d->targets != NULL || d->rows == 0);
}

static void add_targets(arrays *a, const gpuloss_cross_entropy_desc *d) {
    const int result = result_bytes_of((int)d->dtype), index = index_bytes_of((int)d->target_type);
    add(a, "targets", d->targets, index, (wide)d->rows * index);
    add(a, "class_weights", d->class_weights, result,
        (wide)(d->total_classes != 0 ? d->total_classes : d->classes) * result);
}

static const char *broken_cross_entropy(const call *c, size_t workspace_bytes, arrays *a) {
    const gpuloss_cross_entropy_desc *d = &c->desc.cross_entropy;
    const int combines = c->function == COMBINE, has_soft = d->target_probabilities != NULL;
    const int is_divisor = c->function == DIVISOR;
    const int has_outputs = d->loss != NULL || d->loss_rows != NULL || d->z_loss != NULL || d->z_loss_rows != NULL ||
                            d->lse != NULL || d->argmax != NULL || d->correct != NULL || d->bad_targets != NULL ||
                            d->grad_logits != NULL || d->grad_target_probabilities != NULL ||
                            (d->shard_rows != NULL && !combines);
    const int bytes = bytes_of((int)d->dtype), grad = or_unset((int)d->grad_dtype, (int)d->dtype);
    const int soft = bytes_of(or_unset((int)d->target_dtype, (int)d->dtype)), result = result_bytes_of((int)d->dtype);
    const int64_t inner = d->inner > 1 ? d->inner : 1;
    const char *broken;
    matrix m;
    COMMON_RULES(d, GPULOSS_USE_IGNORE_INDEX | GPULOSS_USE_GRAD_SCALE,
                 is_divisor || d->grad_logits != NULL || d->grad_target_probabilities != NULL,
                 d->loss != NULL || d->z_loss != NULL || d->correct != NULL || d->bad_targets != NULL || is_divisor);
    MEAN_RULES(d, d->reduction == GPULOSS_MEAN);
    RULE("grad_dtype", is_one_of(grad, GPULOSS_BF16));
    RULE("target_dtype", is_one_of(or_unset((int)d->target_dtype, (int)d->dtype), GPULOSS_BF16));
    RULE("inner", d->inner >= 0);
    RULE("targets", has_soft ? d->targets == NULL : has_targets(d));
    RULE("correct", !has_soft || (d->correct == NULL && d->bad_targets == NULL));
    RULE("label_smoothing", is_within(d->label_smoothing, 0.0, 1.0));
    RULE("lse_square_scale", is_within(d->lse_square_scale, 0.0, most));
    RULE("logit_scale", is_within(d->logit_scale, -most, most));
    RULE("softcap", is_within(d->softcap, 0.0, most));
    RULE("loss", has_outputs || d->rows == 0);
    RULE("lse", d->lse == NULL || d->lse_in == NULL);
    RULE("z_loss", d->z_loss == NULL || d->reduction != GPULOSS_NONE);
    RULE("grad_target_probabilities", d->grad_target_probabilities == NULL || has_soft || d->rows == 0);
    if (is_divisor) {
        DIVISOR_RULES(d, d->reduction == GPULOSS_MEAN);
        RULE("total_classes", d->total_classes == 0 || d->total_classes >= d->classes);
        add_targets(a, d);
        add_output(a, "divisor", d->loss, result, result);
        add_output(a, "workspace", d->workspace, 16, SPAN_OF_WORKSPACE(d, workspace_bytes));
        return broken_array(a);
    }
    broken = combines ? broken_combine(d) : broken_whole(d);
    if (broken != NULL)
        return broken;
    m.rows = d->rows / inner;
    m.length = (wide)d->classes * inner;
    if (!combines) {
        RULE("logits_stride", is_stride(&m, d->logits_stride, bytes));
        RULE("grad_logits_stride", is_stride(&m, d->grad_logits_stride, bytes_of(grad)));
        RULE("target_probabilities_stride", is_stride(&m, d->target_probabilities_stride, soft));
        RULE("grad_target_probabilities_stride", is_stride(&m, d->grad_target_probabilities_stride, soft));
        add_matrix(a, "logits", d->logits, bytes, &m, d->logits_stride);
        add_matrix(a, "target_probabilities", d->target_probabilities, soft, &m, d->target_probabilities_stride);
        add_gradient(a, "grad_logits", d->grad_logits, bytes_of(grad), &m, d->grad_logits_stride,
                     grad == (int)d->dtype ? "logits" : NULL);
        add_gradient(a, "grad_target_probabilities", d->grad_target_probabilities, soft, &m,
                     d->grad_target_probabilities_stride, "target_probabilities");
    }
    add_targets(a, d);
    add(a, "lse_in", d->lse_in, result, (wide)d->rows * result);
    ADD_COMMON(a, d, workspace_bytes);
    add_output(a, "z_loss", d->z_loss, result, result);
    add_output(a, "z_loss_rows", d->z_loss_rows, result, (wide)d->rows * result);
    add_output(a, "lse", d->lse, result, (wide)d->rows * result);
    add_output(a, "argmax", d->argmax, 8, (wide)d->rows * 8);
    add_output(a, "correct", d->correct, 8, 8);
    add_output(a, "bad_targets", d->bad_targets, 8, 8);
    add(a, "shard_rows", d->shard_rows, 8, (wide)d->rows * (combines ? d->shards : 1) * (int)sizeof(gpuloss_shard_row))
        ->is_output = !combines;
    return broken_array(a);
}

/* ---- divergences ---- */

enum {
    KL_DIV_FLAGS = GPULOSS_USE_IGNORE_INDEX | GPULOSS_USE_GRAD_SCALE | GPULOSS_PYTORCH_ZEROS |
                   GPULOSS_TEMPERATURE_SQUARED | GPULOSS_SHARED_TARGET
};

/* The divisor depends on rows, classes, dtype, reduction and labels. */
static const char *broken_kl_div_divisor(const gpuloss_kl_div_desc *d, size_t workspace_bytes, arrays *a) {
    const int result = result_bytes_of((int)d->dtype);
    COMMON_RULES(d, KL_DIV_FLAGS, 1, 1);
    MASKING_RULES(d);
    DIVISOR_RULES(d, d->reduction == GPULOSS_MEAN || d->reduction == GPULOSS_BATCHMEAN);
    ADD_LABELS(a, d);
    add(a, "row_weights", d->row_weights, result, (wide)d->rows * result)->is_given = 1; /* to no kernel */
    add_output(a, "divisor", d->loss, result, result);
    add_output(a, "workspace", d->workspace, 16, SPAN_OF_WORKSPACE(d, workspace_bytes));
    return broken_array(a);
}

static const char *broken_kl_div(const gpuloss_kl_div_desc *d, size_t workspace_bytes, arrays *a) {
    const int is_shared = HAS(d, GPULOSS_SHARED_TARGET);
    const int is_kl = d->divergence == GPULOSS_FORWARD_KL || d->divergence == GPULOSS_REVERSE_KL;
    const int has_logits = d->input_kind == GPULOSS_LOGITS || d->target_kind == GPULOSS_LOGITS;
    const int has_probabilities = d->input_kind == GPULOSS_PROBABILITIES || d->target_kind == GPULOSS_PROBABILITIES;
    const int has_outputs = d->loss != NULL || d->loss_rows != NULL || d->loss_elements != NULL ||
                            d->grad_input != NULL || d->grad_target != NULL;
    const int target_dtype = or_unset((int)d->target_dtype, (int)d->dtype);
    const int bytes = bytes_of((int)d->dtype), target = bytes_of(target_dtype), result = result_bytes_of((int)d->dtype);
    const int64_t inner = d->inner > 1 ? d->inner : 1;
    matrix m, of_target;
    COMMON_RULES(d, KL_DIV_FLAGS, d->grad_input != NULL || d->grad_target != NULL, d->loss != NULL);
    DIVERGENCE_RULES(d);
    RULE("target_dtype", is_one_of(target_dtype, GPULOSS_BF16));
    RULE("input_kind", is_one_of((int)d->input_kind, GPULOSS_LOGITS));
    RULE("target_kind", is_one_of((int)d->target_kind, GPULOSS_LOGITS));
    RULE("eps", is_within(d->eps, 0.0, 1.0) && (d->eps == 0.0 || (has_probabilities && is_kl)));
    RULE("temperature", d->temperature == 0.0 || has_logits);
    RULE("flags", !HAS(d, GPULOSS_PYTORCH_ZEROS) || d->divergence == GPULOSS_FORWARD_KL);
    RULE("target_stride", !is_shared || (d->target_stride == 0 && d->grad_target == NULL));
    RULE("inner", d->inner >= 0 && (wide)d->classes * d->inner <= INT64_MAX);
    RULE("rows", d->rows % inner == 0);
    RULE("loss", has_outputs || d->rows == 0);
    RULE("input", (d->input != NULL && d->target != NULL) || d->rows == 0);
    m.rows = d->rows / inner;
    m.length = (wide)d->classes * inner;
    of_target = m;
    RULE("input_stride", is_stride(&m, d->input_stride, bytes));
    RULE("target_stride", is_stride(&m, d->target_stride, target));
    RULE("loss_elements_stride", is_stride(&m, d->loss_elements_stride, result));
    RULE("grad_input_stride", is_stride(&m, d->grad_input_stride, bytes));
    RULE("grad_target_stride", is_stride(&m, d->grad_target_stride, target));
    if (is_shared && of_target.rows > 1)
        of_target.rows = 1;
    add_matrix(a, "input", d->input, bytes, &m, d->input_stride);
    add_matrix(a, "target", d->target, target, &of_target, d->target_stride);
    add_gradient(a, "loss_elements", d->loss_elements, result, &m, d->loss_elements_stride, NULL);
    add_gradient(a, "grad_input", d->grad_input, bytes, &m, d->grad_input_stride, "input");
    add_gradient(a, "grad_target", d->grad_target, target, &m, d->grad_target_stride, "target");
    ADD_LABELS(a, d);
    ADD_COMMON(a, d, workspace_bytes);
    return broken_array(a);
}

static const char *broken_sparse(const gpuloss_kl_div_sparse_desc *d, size_t workspace_bytes, arrays *a) {
    const int has_outputs = d->loss != NULL || d->loss_rows != NULL || d->grad_logits != NULL || d->bad_indices != NULL;
    const int value_dtype = or_unset((int)d->value_dtype, (int)d->dtype), bytes = bytes_of((int)d->dtype);
    const int value = bytes_of(value_dtype), index = index_bytes_of((int)d->index_type);
    matrix m, entries;
    COMMON_RULES(d, GPULOSS_USE_IGNORE_INDEX | GPULOSS_USE_GRAD_SCALE | GPULOSS_TEMPERATURE_SQUARED,
                 d->grad_logits != NULL, d->loss != NULL || d->bad_indices != NULL);
    DIVERGENCE_RULES(d);
    RULE("value_dtype", is_one_of(value_dtype, GPULOSS_BF16));
    RULE("k", d->k >= 1 && d->k <= 1024 && d->k <= d->classes);
    RULE("value_kind", is_one_of((int)d->value_kind, GPULOSS_LOG_PROBABILITIES));
    RULE("residual", is_one_of((int)d->residual, GPULOSS_BUCKET));
    RULE("residual", d->residual == GPULOSS_BUCKET || (d->divergence != GPULOSS_REVERSE_KL && d->beta != 1.0));
    RULE("index_type", is_one_of((int)d->index_type, GPULOSS_U8));
    RULE("loss", has_outputs || d->rows == 0);
    RULE("logits", (d->logits != NULL && d->indices != NULL && d->values != NULL) || d->rows == 0);
    m.rows = entries.rows = d->rows;
    m.length = d->classes;
    entries.length = d->k;
    RULE("logits_stride", is_stride(&m, d->logits_stride, bytes));
    RULE("indices_stride", is_stride(&entries, d->indices_stride, index));
    RULE("values_stride", is_stride(&entries, d->values_stride, value));
    RULE("grad_logits_stride", is_stride(&m, d->grad_logits_stride, bytes));
    add_matrix(a, "logits", d->logits, bytes, &m, d->logits_stride);
    add_matrix(a, "indices", d->indices, index, &entries, d->indices_stride);
    add_matrix(a, "values", d->values, value, &entries, d->values_stride);
    add_gradient(a, "grad_logits", d->grad_logits, bytes, &m, d->grad_logits_stride, "logits");
    ADD_LABELS(a, d);
    ADD_COMMON(a, d, workspace_bytes);
    add_output(a, "bad_indices", d->bad_indices, 8, 8);
    return broken_array(a);
}

static const char *broken_creation(const creation *d) {
    RULE("version", d->version == GPULOSS_VERSION && d->bytes == (int64_t)GPULOSS_DESC_BYTES);
    RULE("driver_path", d->symbol != 0);
    RULE("flags", (d->flags & ~(unsigned)GPULOSS_CHECK_POINTERS) == 0);
    RULE("device", d->given != 0 || d->current != 0 || (d->device >= 0 && d->device < FAKE_DEVICES));
    return NULL;
}

const char *broken_rule(const call *c, size_t workspace_bytes, arrays *a) {
    a->count = 0;
    switch (c->function) {
    case KL_DIV:
        return broken_kl_div(&c->desc.kl_div, workspace_bytes, a);
    case KL_DIV_SPARSE:
        return broken_sparse(&c->desc.sparse, workspace_bytes, a);
    case KL_DIV_DIVISOR:
        return broken_kl_div_divisor(&c->desc.kl_div, workspace_bytes, a);
    case CREATE:
        return broken_creation(&c->desc.created);
    default:
        return broken_cross_entropy(c, workspace_bytes, a);
    }
}

int is_empty(const call *c) {
    const gpuloss_cross_entropy_desc *d = &c->desc.cross_entropy;
    switch (c->function) {
    case KL_DIV:
        return c->desc.kl_div.rows == 0 && c->desc.kl_div.loss == NULL;
    case KL_DIV_SPARSE:
        return c->desc.sparse.rows == 0 && c->desc.sparse.loss == NULL && c->desc.sparse.bad_indices == NULL;
    case DIVISOR:
    case KL_DIV_DIVISOR:
        return 0;
    default:
        return d->rows == 0 && d->loss == NULL && d->z_loss == NULL && d->correct == NULL && d->bad_targets == NULL;
    }
}

/* ---- launches ---- */

/* Whether a kernel that uses these bytes from an address stays in the array of that field. */
static int is_in(arrays *a, const char *field, uint64_t at, wide bytes) {
    int i;
    if (at == 0)
        return 1;
    for (i = 0; i < a->count; i++)
        if (strcmp(a->all[i].field, field) == 0) {
            a->all[i].is_given = 1;
            return at == a->all[i].at && bytes <= a->all[i].bytes;
        }
    return 0;
}
#define GIVEN(field, at, bytes) RULE(field, is_in(a, field, at, bytes))

/* Rows that a kernel takes. Divergences may have cut their packed arrays into other rows, some of which are longer. */
typedef struct taken {
    wide rows, images, length, last_length;
} taken;
static taken taken_of(const gpulossi_rows *r, int64_t inner, int64_t wide_tiles) {
    taken t;
    t.rows = r->rows + (wide)wide_tiles * (GPULOSSI_WIDE_TILE_ROWS - 1);
    t.images = inner > 1 ? t.rows / inner : t.rows;
    t.length = (wide)r->classes * (inner > 1 ? inner : 1);
    t.last_length = inner > 1 ? t.length : r->last_classes;
    return t;
}
static wide reach(const taken *t, int64_t stride, int bytes) {
    return t->images == 0 ? 0 : ((t->images - 1) * stride + t->last_length) * bytes;
}

static const char *broken_rows(const gpulossi_rows *r, arrays *a, int result) {
    const wide of_rows = (wide)r->rows * result;
    GIVEN("loss", r->loss, result);
    GIVEN("loss_rows", r->loss_rows, of_rows);
    GIVEN("grad_loss", r->grad_loss, result);
    GIVEN("grad_loss_rows", r->grad_loss_rows, of_rows);
    GIVEN("divisor_in", r->divisor_in, result);
    return NULL;
}

static const char *bounds_of_cross_entropy(const call *c, arrays *a, const gpulossi_cross_entropy *p) {
    const gpuloss_cross_entropy_desc *d = &c->desc.cross_entropy;
    const int combines = c->function == COMBINE, result = result_bytes_of((int)d->dtype);
    const int soft = bytes_of(or_unset((int)d->target_dtype, (int)d->dtype));
    const taken t = taken_of(&p->rows, p->inner, 0);
    const wide of_rows = t.rows * result;
    if (!combines) {
        GIVEN("logits", p->logits, reach(&t, p->logits_stride, bytes_of((int)d->dtype)));
        GIVEN("grad_logits", p->rows.grad,
              reach(&t, p->rows.grad_stride, bytes_of(or_unset((int)d->grad_dtype, (int)d->dtype))));
        GIVEN("target_probabilities", p->probabilities, reach(&t, p->probabilities_stride, soft));
        GIVEN("grad_target_probabilities", p->grad_probabilities, reach(&t, p->grad_probabilities_stride, soft));
    }
    GIVEN("targets", p->targets, t.rows * index_bytes_of((int)p->target_type));
    GIVEN("class_weights", p->class_weights, (wide)p->total_classes * result);
    RULE("class_offset", p->class_offset >= 0 && (wide)p->class_offset + p->rows.classes <= p->total_classes);
    GIVEN("row_weights", p->row_weights, of_rows);
    GIVEN("lse_in", p->lse_in, of_rows);
    GIVEN("lse", p->lse, of_rows);
    GIVEN("z_loss", p->z_loss, result);
    GIVEN("z_loss_rows", p->z_loss_rows, of_rows);
    GIVEN("argmax", p->argmax, t.rows * 8);
    GIVEN("correct", p->correct, 8);
    GIVEN("bad_targets", p->bad_targets, 8);
    GIVEN("shard_rows", p->shard_rows, t.rows * (combines ? p->shards : 1) * (int)sizeof(gpuloss_shard_row));
    return broken_rows(&p->rows, a, result);
}

static const char *bounds_of_kl_div(const gpuloss_kl_div_desc *d, arrays *a, const gpulossi_kl_div *p) {
    const int bytes = bytes_of((int)d->dtype), result = result_bytes_of((int)d->dtype);
    const int target = bytes_of(or_unset((int)d->target_dtype, (int)d->dtype));
    const taken t = taken_of(&p->rows, p->inner, p->wide_tiles);
    GIVEN("input", p->input, reach(&t, p->input_stride, bytes));
    GIVEN("target", p->target, reach(&t, p->target_stride, target));
    GIVEN("loss_elements", p->elements, reach(&t, p->elements_stride, result));
    GIVEN("grad_input", p->rows.grad, reach(&t, p->rows.grad_stride, bytes));
    GIVEN("grad_target", p->grad_target, reach(&t, p->grad_target_stride, target));
    GIVEN("row_weights", p->row_weights, t.rows * result);
    GIVEN("labels", p->labels, t.rows * index_bytes_of((int)p->label_type));
    return broken_rows(&p->rows, a, result);
}

static const char *bounds_of_sparse(const gpuloss_kl_div_sparse_desc *d, arrays *a, const gpulossi_kl_div_sparse *p) {
    const int bytes = bytes_of((int)d->dtype), result = result_bytes_of((int)d->dtype);
    const taken t = taken_of(&p->rows, 1, 0);
    taken entries = t;
    entries.last_length = p->k;
    GIVEN("logits", p->logits, reach(&t, p->logits_stride, bytes));
    GIVEN("indices", p->indices, reach(&entries, p->indices_stride, index_bytes_of((int)d->index_type)));
    GIVEN("values", p->values, reach(&entries, p->values_stride, bytes_of((int)p->value_dtype)));
    GIVEN("grad_logits", p->rows.grad, reach(&t, p->rows.grad_stride, bytes));
    GIVEN("row_weights", p->row_weights, t.rows * result);
    GIVEN("labels", p->labels, t.rows * index_bytes_of((int)p->label_type));
    GIVEN("bad_indices", p->bad_indices, 8);
    return broken_rows(&p->rows, a, result);
}

/* The kernel that counts rows reads targets or labels, and class weights. It may write a divisor. */
static const char *bounds_of_count(const call *c, arrays *a, const gpulossi_cross_entropy *p) {
    const int is_divergence = c->function == KL_DIV || c->function == KL_DIV_SPARSE || c->function == KL_DIV_DIVISOR;
    const int result = (p->rows.flags & GPULOSSI_F64_RESULTS) != 0 ? 8 : 4;
    GIVEN(is_divergence ? "labels" : "targets", p->targets, (wide)p->rows.rows * index_bytes_of((int)p->target_type));
    GIVEN("class_weights", p->class_weights, (wide)p->total_classes * result);
    if (c->function == DIVISOR || c->function == KL_DIV_DIVISOR)
        GIVEN("divisor", p->rows.loss, result);
    return NULL;
}

/* The scratch is the workspace, or memory of the context. */
static int is_scratch(arrays *a, uint64_t at, size_t bytes) {
    int i;
    for (i = 0; i < a->count; i++)
        if (strcmp(a->all[i].field, "workspace") == 0)
            return is_in(a, "workspace", at, (wide)bytes);
    for (i = 0; i < fake.memories; i++)
        if (fake.memory[i].base != 0 && at >= fake.memory[i].base &&
            at + bytes <= fake.memory[i].base + fake.memory[i].bytes)
            return 1;
    return 0;
}

const char *broken_bounds(const call *c, size_t workspace_bytes, arrays *a, const fake_launched *l) {
    RULE("workspace", is_scratch(a, l->parameters.rows.scratch, workspace_bytes));
    if (strstr(l->entry, "prepare_targets") != NULL)
        return bounds_of_count(c, a, &l->parameters.cross_entropy);
    switch (c->function) {
    case KL_DIV:
        return bounds_of_kl_div(&c->desc.kl_div, a, &l->parameters.kl_div);
    case KL_DIV_SPARSE:
        return bounds_of_sparse(&c->desc.sparse, a, &l->parameters.kl_div_sparse);
    default:
        return bounds_of_cross_entropy(c, a, &l->parameters.cross_entropy);
    }
}
