/* The calls that the two divergences and the queries of their workspace refuse, and the messages. The driver is not
 * called before. */
#include "check.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

static gpuloss_context *context;

typedef gpuloss_kl_div_desc dense_desc;
typedef gpuloss_kl_div_sparse_desc sparse_desc;

static void expect_message(gpuloss_status got, gpuloss_status want, const char *function, const char *message,
                           int line) {
    char whole[512];
    snprintf(whole, sizeof whole, "%s: %s", function, message);
    if (got != want)
        fail_msg("line %d: got %s instead of \"%s\"", line, gpuloss_status_name(got), whole);
    if (strcmp(gpuloss_last_error(), whole) != 0)
        fail_msg("line %d: got \"%s\" instead of \"%s\"", line, gpuloss_last_error(), whole);
}

static void dense_refused(const dense_desc *d, gpuloss_status status, const char *message, int line) {
    long calls = fake.calls;
    size_t bytes;
    expect_message(gpuloss_kl_div(context, d, NULL), status, "gpuloss_kl_div", message, line);
    expect_message(gpuloss_kl_div_workspace(context, d, &bytes), status, "gpuloss_kl_div_workspace", message, line);
    assert_int_equal(fake.calls, calls);
}
static void dense_accepted(const dense_desc *d, int line) {
    size_t bytes;
    fake.launches = 0;
    expect_ok_(gpuloss_kl_div(context, d, NULL), line);
    expect_ok_(gpuloss_kl_div_workspace(context, d, &bytes), line);
}
static void sparse_refused(const sparse_desc *d, gpuloss_status status, const char *message, int line) {
    long calls = fake.calls;
    size_t bytes;
    expect_message(gpuloss_kl_div_sparse(context, d, NULL), status, "gpuloss_kl_div_sparse", message, line);
    expect_message(gpuloss_kl_div_sparse_workspace(context, d, &bytes), status, "gpuloss_kl_div_sparse_workspace",
                   message, line);
    assert_int_equal(fake.calls, calls);
}
static void sparse_accepted(const sparse_desc *d, int line) {
    size_t bytes;
    fake.launches = 0;
    expect_ok_(gpuloss_kl_div_sparse(context, d, NULL), line);
    expect_ok_(gpuloss_kl_div_sparse_workspace(context, d, &bytes), line);
}

/* A change of `base`, after which the call of that form is refused with that message, or is still accepted. */
#define REFUSED(form, change, message)                                                                                 \
    d = base;                                                                                                          \
    change;                                                                                                            \
    form##_refused(&d, GPULOSS_ERROR_INVALID_ARGUMENT, message, __LINE__)
#define ACCEPTED(form, change)                                                                                         \
    d = base;                                                                                                          \
    change;                                                                                                            \
    form##_accepted(&d, __LINE__)

static void kinds_and_divergences(void **state) {
    const char *kinds = "kind: must be GPULOSS_PROBABILITIES, LOG_PROBABILITIES or LOGITS (got ";
    dense_desc base = some_kl_div(), d;
    char message[128];
    int k;
    (void)state;
    context = new_context();
    for (k = -1; k <= 4; k += k == 0 ? 4 : 1) {
        snprintf(message, sizeof message, "input_%s%d)", kinds, k);
        REFUSED(dense, d.input_kind = (gpuloss_kind)k, message);
        snprintf(message, sizeof message, "target_%s%d)", kinds, k);
        REFUSED(dense, d.target_kind = (gpuloss_kind)k, message);
    }
    for (k = -1; k <= 4; k += 5) {
        snprintf(message, sizeof message,
                 "divergence: must be GPULOSS_FORWARD_KL, REVERSE_KL, JENSEN_SHANNON or TOTAL_VARIATION (got %d)", k);
        REFUSED(dense, d.divergence = (gpuloss_divergence)k, message);
    }
    REFUSED(dense, d.beta = 0.5, "beta: is that of GPULOSS_JENSEN_SHANNON (got 0.5)");
    REFUSED(dense, (d.beta = 1.0, d.divergence = GPULOSS_REVERSE_KL),
            "beta: is that of GPULOSS_JENSEN_SHANNON (got 1)");
    REFUSED(dense, (d.beta = 1e-300, d.divergence = GPULOSS_TOTAL_VARIATION),
            "beta: is that of GPULOSS_JENSEN_SHANNON (got 1e-300)");
    REFUSED(dense, d.target_dtype = (gpuloss_dtype)5, "target_dtype: must be GPULOSS_F32, F64, F16 or BF16 (got 5)");
    REFUSED(dense, d.target_dtype = (gpuloss_dtype)-1, "target_dtype: must be GPULOSS_F32, F64, F16 or BF16 (got -1)");
    gpuloss_destroy(context);
}

static void eps_and_zeros(void **state) {
    const char *eps = "eps: needs a side of probabilities, and forward or reverse KL (got 0.5)";
    const char *zeros = "flags: GPULOSS_PYTORCH_ZEROS is for forward KL (got 4)";
    dense_desc base = some_kl_div(), d;
    (void)state;
    context = new_context();
    base.eps = 0.5;
    ACCEPTED(dense, (void)0);
    ACCEPTED(dense, d.divergence = GPULOSS_REVERSE_KL);
    ACCEPTED(dense, d.input_kind = GPULOSS_LOGITS);
    ACCEPTED(dense, d.target_kind = GPULOSS_LOG_PROBABILITIES);
    REFUSED(dense, d.input_kind = d.target_kind = GPULOSS_LOG_PROBABILITIES, eps);
    REFUSED(dense, (d.input_kind = GPULOSS_LOG_PROBABILITIES, d.target_kind = GPULOSS_LOGITS), eps);
    REFUSED(dense, d.divergence = GPULOSS_TOTAL_VARIATION, eps);
    REFUSED(dense, d.divergence = GPULOSS_JENSEN_SHANNON, eps);
    REFUSED(dense, (d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = 1.0), eps);
    base.eps = 0.0;
    base.flags = GPULOSS_PYTORCH_ZEROS;
    ACCEPTED(dense, (void)0);
    ACCEPTED(dense, d.input_kind = GPULOSS_LOGITS);
    ACCEPTED(dense, d.grad_target = AT(6));
    REFUSED(dense, d.divergence = GPULOSS_REVERSE_KL, zeros);
    REFUSED(dense, d.divergence = GPULOSS_JENSEN_SHANNON, zeros);
    REFUSED(dense, d.divergence = GPULOSS_TOTAL_VARIATION, zeros);
    gpuloss_destroy(context);
}

static void overlap_of(const char *field, const void *array, int stride, int bytes_behind, char message[160]) {
    const unsigned long long at = (unsigned long long)(uintptr_t)array;
    snprintf(message, 160, "loss_rows: overlaps %s (got 0x%llx, stride 1, over 0x%llx, stride %d)", field,
             at + (unsigned long long)bytes_behind, at, stride);
}

static void columns_and_shared_targets(void **state) {
    const char *large = "inner: classes * inner is too large (got 4611686018427387904)";
    char message[160];
    dense_desc base = some_kl_div(), d;
    (void)state;
    context = new_context();
    base.rows = 60;
    ACCEPTED(dense, d.inner = 60);
    ACCEPTED(dense, d.inner = 1);
    REFUSED(dense, d.inner = -1, "inner: must not be negative (got -1)");
    REFUSED(dense, d.inner = 7, "rows: must be a multiple of inner (got 60)");
    REFUSED(dense, (d.rows = d.inner = (int64_t)1 << 62), large);
    REFUSED(dense, (d.inner = 4, d.input_stride = d.classes * 4 - 1),
            "input_stride: is shorter than a row of 4000 elements (got 3999)");
    base.flags = GPULOSS_SHARED_TARGET;
    ACCEPTED(dense, (void)0);
    ACCEPTED(dense, d.inner = 12);
    REFUSED(dense, d.grad_target = AT(6), "flags: GPULOSS_SHARED_TARGET does not go with grad_target (got 16)");
    REFUSED(dense, d.target_stride = d.classes, "target_stride: must be 0 with GPULOSS_SHARED_TARGET (got 1000)");
    /* The target is one row, or one image: an output may lie behind it. */
    ACCEPTED(dense, d.loss_rows = (char *)d.target + d.classes * 4);
    overlap_of("target", base.target, 1000, 3996, message);
    REFUSED(dense, d.loss_rows = (char *)d.target + d.classes * 4 - 4, message);
    ACCEPTED(dense, (d.inner = 4, d.loss_rows = (char *)d.target + d.classes * 16));
    overlap_of("target", base.target, 4000, 15996, message);
    REFUSED(dense, (d.inner = 4, d.loss_rows = (char *)d.target + d.classes * 16 - 4), message);
    overlap_of("input", base.input, 1000, 4000, message);
    REFUSED(dense, d.loss_rows = (char *)d.input + d.classes * 4, message);
    gpuloss_destroy(context);
}

/* Numbers of either form, where it has them. */
static void ranges(void **state) {
    static const struct {
        const char *field;
        size_t dense, sparse; /* 0: there is none */
        double high, beyond;  /* beyond: what lies just above */
        const char *bounds;
    } fields[] = {
        {"beta", offsetof(dense_desc, beta), offsetof(sparse_desc, beta), 1.0, 1.0000000000000002, "[0, 1]"},
        {"eps", offsetof(dense_desc, eps), 0, 1.0, 1.0000000000000002, "[0, 1]"},
        {"temperature", offsetof(dense_desc, temperature), offsetof(sparse_desc, temperature), 3.4e38, 3.41e38,
         "[0, 3.4e+38]"},
        {"divisor", offsetof(dense_desc, divisor), offsetof(sparse_desc, divisor), 1e308, 1.1e308, "[0, 1e+308]"},
    };
    size_t i, k;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const double outside[] = {-1e-300, -1.0, fields[i].beyond, HUGE_VAL, -HUGE_VAL, (double)NAN};
        const double inside[] = {0.0, 0.5, fields[i].high};
        dense_desc d = some_kl_div();
        sparse_desc s = some_kl_div_sparse();
        char message[128];
        /* Each number has what it needs beside it. */
        if (strcmp(fields[i].field, "beta") == 0)
            d.divergence = s.divergence = GPULOSS_JENSEN_SHANNON;
        if (strcmp(fields[i].field, "temperature") == 0)
            d.input_kind = GPULOSS_LOGITS;
        for (k = 0; k < sizeof outside / sizeof outside[0]; k++) {
            memcpy((char *)&d + fields[i].dense, &outside[k], sizeof outside[k]);
            snprintf(message, sizeof message, "%s: must lie in %s (got %g)", fields[i].field, fields[i].bounds,
                     outside[k]);
            dense_refused(&d, GPULOSS_ERROR_INVALID_ARGUMENT, message, __LINE__);
            if (fields[i].sparse == 0)
                continue;
            memcpy((char *)&s + fields[i].sparse, &outside[k], sizeof outside[k]);
            sparse_refused(&s, GPULOSS_ERROR_INVALID_ARGUMENT, message, __LINE__);
        }
        for (k = 0; k < sizeof inside / sizeof inside[0]; k++) {
            memcpy((char *)&d + fields[i].dense, &inside[k], sizeof inside[k]);
            dense_accepted(&d, __LINE__);
            if (fields[i].sparse == 0)
                continue;
            memcpy((char *)&s + fields[i].sparse, &inside[k], sizeof inside[k]);
            sparse_accepted(&s, __LINE__);
        }
    }
    gpuloss_destroy(context);
}

#define NO_MEAN "is that of a mean, and the reduction is no mean"
#define NO_FLAG "read only with the flag GPULOSS_USE_IGNORE_INDEX"

/* Refusals that the two forms share. */
#define MASKING(form)                                                                                                  \
    REFUSED(form, d.flags = GPULOSS_TEMPERATURE_SQUARED,                                                               \
            "flags: GPULOSS_TEMPERATURE_SQUARED needs a temperature "                                                  \
            "(got 8)");                                                                                                \
    REFUSED(form, d.labels = AT(6), "labels: are " NO_FLAG " (got 0x6007000000000)");                                  \
    REFUSED(form, d.ignore_index = -100, "ignore_index: is " NO_FLAG " (got -100)");                                   \
    REFUSED(form, (GIVE_LABELS(&d), d.labels = NULL), "labels: is required (got NULL)");                               \
    REFUSED(form, (GIVE_LABELS(&d), d.label_type = GPULOSS_INDEX_UNSET),                                               \
            "label_type: must be GPULOSS_I64, I32, I16 or U8 (got 0)");                                                \
    REFUSED(form, (GIVE_LABELS(&d), d.label_type = (gpuloss_index_type)5),                                             \
            "label_type: must be GPULOSS_I64, I32, I16 or U8 (got 5)");                                                \
    REFUSED(form, (GIVE_LABELS(&d), d.label_type = (gpuloss_index_type)-1),                                            \
            "label_type: must be GPULOSS_I64, I32, I16 or U8 (got -1)");                                               \
    ACCEPTED(form, GIVE_LABELS(&d));                                                                                   \
    ACCEPTED(form, (GIVE_LABELS(&d), d.ignore_index = 0));                                                             \
    ACCEPTED(form, (GIVE_LABELS(&d), d.label_type = GPULOSS_U8));                                                      \
    ACCEPTED(form, d.label_type = GPULOSS_U8);                                                                         \
    REFUSED(form, (d.divisor = 2.5, d.divisor_in = AT(6)),                                                             \
            "divisor_in: is one too many beside divisor (got 0x6007000000000)");                                       \
    REFUSED(form, (d.divisor = 2.5, d.reduction = GPULOSS_SUM), "divisor: " NO_MEAN " (got 2.5)");                     \
    REFUSED(form, (d.divisor = 2.5, d.reduction = GPULOSS_NONE, d.loss = NULL), "divisor: " NO_MEAN " (got 2.5)");     \
    REFUSED(form, (d.divisor_in = AT(6), d.reduction = GPULOSS_SUM), "divisor_in: " NO_MEAN " (got 0x6007000000000)"); \
    ACCEPTED(form, (d.divisor = 2.5, d.reduction = GPULOSS_MEAN));                                                     \
    ACCEPTED(form, (d.divisor = 2.5, d.reduction = GPULOSS_BATCHMEAN));                                                \
    ACCEPTED(form, (d.divisor_in = AT(6), d.reduction = GPULOSS_MEAN));                                                \
    ACCEPTED(form, (d.divisor_in = AT(6), d.reduction = GPULOSS_BATCHMEAN));                                           \
    REFUSED(form, d.flags = 64, "flags: holds a flag that this loss does not have (got 64)");                          \
    REFUSED(                                                                                                           \
        form, (d.reduction = GPULOSS_NONE, d.loss = NULL, d.grad_loss = AT(6)),                                        \
        "grad_loss: with reduction GPULOSS_NONE there is no scalar loss, use grad_loss_rows (got 0x6007000000000)");   \
    REFUSED(form, d.grad_scale = 2.0, "grad_scale: is read only with the flag GPULOSS_USE_GRAD_SCALE (got 2)");        \
    REFUSED(form, d.dtype = GPULOSS_DTYPE_UNSET, "dtype: must be GPULOSS_F32, F64, F16 or BF16 (got 0)");              \
    REFUSED(form, d.reduction = GPULOSS_REDUCTION_UNSET,                                                               \
            "reduction: must be GPULOSS_NONE, SUM, MEAN or BATCHMEAN (got 0)");                                        \
    REFUSED(form, d.rows = -1, "rows: must not be negative (got -1)");                                                 \
    REFUSED(form, d.classes = 0, "classes: must be at least 1 (got 0)")

static void labels_divisors_and_temperatures(void **state) {
    dense_desc base = some_kl_div(), d;
    (void)state;
    context = new_context();
    MASKING(dense);
    REFUSED(dense, d.temperature = 2.0, "temperature: needs a side of logits (got 2)");
    REFUSED(dense, (d.input_kind = d.target_kind = GPULOSS_LOG_PROBABILITIES, d.temperature = 1.0),
            "temperature: needs a side of logits (got 1)");
    REFUSED(dense, (d.input_kind = GPULOSS_LOGITS, d.temperature = 4.0e-39),
            "temperature: must be 0 or at least 4.41176e-39 (got 4e-39)");
    base.temperature = 2.0;
    ACCEPTED(dense, d.input_kind = GPULOSS_LOGITS);
    ACCEPTED(dense, d.target_kind = GPULOSS_LOGITS);
    ACCEPTED(dense, (d.target_kind = GPULOSS_LOGITS, d.flags = GPULOSS_TEMPERATURE_SQUARED));
    gpuloss_destroy(context);
}

static void outputs(void **state) {
    dense_desc base = some_kl_div(), d;
    (void)state;
    context = new_context();
    base.loss = base.grad_input = NULL;
    REFUSED(dense, (void)0,
            "loss, loss_rows, loss_elements, grad_input, grad_target: one output is needed (got all NULL)");
    ACCEPTED(dense, d.loss = AT(6));
    ACCEPTED(dense, d.loss_rows = AT(6));
    ACCEPTED(dense, d.loss_elements = AT(6));
    ACCEPTED(dense, d.grad_input = AT(6));
    ACCEPTED(dense, d.grad_target = AT(6));
    ACCEPTED(dense, (d.grad_target = AT(6), d.grad_loss = d.grad_loss_rows = AT(7)));
    REFUSED(dense, (d.loss = AT(6), d.grad_loss = AT(7)),
            "grad_loss: is read only for grad_input, which is NULL (got 0x7007000000000)");
    REFUSED(dense, (d.loss = AT(6), d.grad_loss_rows = AT(7)),
            "grad_loss_rows: is read only for grad_input, which is NULL (got 0x7007000000000)");
    gpuloss_destroy(context);
}

static void divergences_of_a_sparse_teacher(void) {
    sparse_desc base = some_kl_div_sparse(), d;
    int divergence;
#define DIVERGENCES "divergence: must be GPULOSS_FORWARD_KL, REVERSE_KL, JENSEN_SHANNON or TOTAL_VARIATION (got "
    REFUSED(sparse, d.divergence = (gpuloss_divergence)4, DIVERGENCES "4)");
    REFUSED(sparse, d.divergence = (gpuloss_divergence)-1, DIVERGENCES "-1)");
    for (divergence = GPULOSS_FORWARD_KL; divergence <= GPULOSS_TOTAL_VARIATION; divergence++) {
        base.divergence = (gpuloss_divergence)divergence;
        ACCEPTED(sparse, (void)0);
        if (base.divergence == GPULOSS_JENSEN_SHANNON)
            continue;
        REFUSED(sparse, d.beta = 0.5, "beta: is that of GPULOSS_JENSEN_SHANNON (got 0.5)");
        REFUSED(sparse, d.beta = 1.0, "beta: is that of GPULOSS_JENSEN_SHANNON (got 1)");
    }
    /* Reverse KL has the bucket. */
    for (divergence = GPULOSS_FORWARD_KL; divergence <= GPULOSS_TOTAL_VARIATION; divergence++) {
        base.divergence = (gpuloss_divergence)divergence;
        if (base.divergence == GPULOSS_REVERSE_KL)
            continue;
        ACCEPTED(sparse, d.residual = GPULOSS_DROP);
        ACCEPTED(sparse, d.residual = GPULOSS_RENORMALIZE);
    }
#define INFINITE "residual: reverse KL is finite only with GPULOSS_BUCKET (got "
    base.divergence = GPULOSS_REVERSE_KL;
    REFUSED(sparse, d.residual = GPULOSS_DROP, INFINITE "1)");
    REFUSED(sparse, d.residual = GPULOSS_RENORMALIZE, INFINITE "2)");
    base.divergence = GPULOSS_JENSEN_SHANNON;
    base.beta = 1.0;
    ACCEPTED(sparse, (void)0);
    REFUSED(sparse, d.residual = GPULOSS_DROP, INFINITE "1)");
    REFUSED(sparse, d.residual = GPULOSS_RENORMALIZE, INFINITE "2)");
    base.beta = 0.99999999999999989;
    ACCEPTED(sparse, d.residual = GPULOSS_DROP);
    ACCEPTED(sparse, d.residual = GPULOSS_RENORMALIZE);
}

static void of_a_sparse_teacher(void **state) {
    sparse_desc base = some_kl_div_sparse(), d;
    (void)state;
    context = new_context();
    MASKING(sparse);
    REFUSED(sparse, d.flags = GPULOSS_PYTORCH_ZEROS, "flags: holds a flag that this loss does not have (got 4)");
    REFUSED(sparse, d.k = 0, "k: must lie in [1, 1024], and be at most classes (got 0)");
    REFUSED(sparse, d.k = -1, "k: must lie in [1, 1024], and be at most classes (got -1)");
    REFUSED(sparse, d.k = 1001, "k: must lie in [1, 1024], and be at most classes (got 1001)");
    REFUSED(sparse, (d.k = 1025, d.classes = 5000), "k: must lie in [1, 1024], and be at most classes (got 1025)");
    ACCEPTED(sparse, d.k = 1);
    ACCEPTED(sparse, d.k = 1000);
    ACCEPTED(sparse, (d.k = 1024, d.classes = 5000));
#define VALUES "value_kind: must be GPULOSS_PROBABILITIES or LOG_PROBABILITIES (got "
    REFUSED(sparse, d.value_kind = GPULOSS_KIND_UNSET, VALUES "0)");
    REFUSED(sparse, d.value_kind = GPULOSS_LOGITS, VALUES "3)");
    ACCEPTED(sparse, d.value_kind = GPULOSS_LOG_PROBABILITIES);
#define RESIDUALS "residual: must be GPULOSS_DROP, RENORMALIZE or BUCKET (got "
    REFUSED(sparse, d.residual = GPULOSS_RESIDUAL_UNSET, RESIDUALS "0)");
    REFUSED(sparse, d.residual = (gpuloss_residual)4, RESIDUALS "4)");
    REFUSED(sparse, d.residual = (gpuloss_residual)-1, RESIDUALS "-1)");
    ACCEPTED(sparse, d.residual = GPULOSS_DROP);
    ACCEPTED(sparse, d.residual = GPULOSS_RENORMALIZE);
    divergences_of_a_sparse_teacher();
    REFUSED(sparse, d.value_dtype = (gpuloss_dtype)5, "value_dtype: must be GPULOSS_F32, F64, F16 or BF16 (got 5)");
    REFUSED(sparse, d.index_type = GPULOSS_INDEX_UNSET, "index_type: must be GPULOSS_I64, I32, I16 or U8 (got 0)");
    REFUSED(sparse, d.index_type = (gpuloss_index_type)5, "index_type: must be GPULOSS_I64, I32, I16 or U8 (got 5)");
    REFUSED(sparse, d.logits = NULL, "logits: is required (got NULL)");
    REFUSED(sparse, d.indices = NULL, "indices: is required (got NULL)");
    REFUSED(sparse, d.values = NULL, "values: is required (got NULL)");
    base.loss = base.grad_logits = NULL;
    REFUSED(sparse, (void)0, "loss, loss_rows, grad_logits, bad_indices: one output is needed (got all NULL)");
    ACCEPTED(sparse, d.loss = AT(6));
    ACCEPTED(sparse, d.loss_rows = AT(6));
    ACCEPTED(sparse, d.grad_logits = AT(6));
    ACCEPTED(sparse, d.bad_indices = (int64_t *)AT(6));
    REFUSED(sparse, (d.loss = AT(6), d.grad_loss = AT(7)),
            "grad_loss: is read only for grad_logits, which is NULL (got 0x7007000000000)");
    gpuloss_destroy(context);
}

/* Every pointer of a desc: aligned to one element of what it points to. */
enum element { INPUT, TARGET, LABEL, INDEX, RESULT, EIGHT };
typedef struct pointer {
    const char *field;
    size_t offset;
    enum element element;
} pointer;
#define DENSE(field, element)                                                                                          \
    { #field, offsetof(dense_desc, field), element }
#define SPARSE(field, element)                                                                                         \
    { #field, offsetof(sparse_desc, field), element }
static const pointer dense_pointers[] = {
    DENSE(input, INPUT),          DENSE(target, TARGET),      DENSE(row_weights, RESULT), DENSE(labels, LABEL),
    DENSE(divisor_in, RESULT),    DENSE(loss, RESULT),        DENSE(loss_rows, RESULT),   DENSE(grad_input, INPUT),
    DENSE(loss_elements, RESULT), DENSE(grad_target, TARGET), DENSE(grad_loss, RESULT),   DENSE(grad_loss_rows, RESULT),
};
static const pointer sparse_pointers[] = {
    SPARSE(logits, INPUT),      SPARSE(values, TARGET),     SPARSE(indices, INDEX),     SPARSE(row_weights, RESULT),
    SPARSE(labels, LABEL),      SPARSE(divisor_in, RESULT), SPARSE(loss, RESULT),       SPARSE(loss_rows, RESULT),
    SPARSE(grad_logits, INPUT), SPARSE(grad_loss, RESULT),  SPARSE(bad_indices, EIGHT), SPARSE(grad_loss_rows, RESULT),
};

/* The pointer is moved by half of what it must be aligned to, and by all of it. */
#define ALIGNMENTS(form, call, bytes)                                                                                  \
    for (i = 0; i < sizeof form##_pointers / sizeof form##_pointers[0]; i++) {                                         \
        form##_desc moved = call;                                                                                      \
        const pointer *p = &form##_pointers[i];                                                                        \
        int align = (bytes)[p->element];                                                                               \
        const char *at = (const char *)AT(6) + align / 2;                                                              \
        char message[128];                                                                                             \
        if (align > 1) {                                                                                               \
            memcpy((char *)&moved + p->offset, &at, sizeof at);                                                        \
            snprintf(message, sizeof message, "%s: must be aligned to %d bytes (got 0x%llx)", p->field, align,         \
                     (unsigned long long)(uintptr_t)at);                                                               \
            form##_refused(&moved, GPULOSS_ERROR_MISALIGNED, message, __LINE__);                                       \
        }                                                                                                              \
        at = (const char *)AT(6) + align;                                                                              \
        memcpy((char *)&moved + p->offset, &at, sizeof at);                                                            \
        form##_accepted(&moved, __LINE__);                                                                             \
    }

static void alignments(void **state) {
    static const int index_bytes[] = {0, 8, 4, 2, 1};
    size_t input, target, i;
    int type;
    (void)state;
    context = new_context();
    for (input = 0; input < DTYPES; input++)
        for (target = 0; target < DTYPES; target++)
            for (type = GPULOSS_I64; type <= GPULOSS_U8; type++) {
                const int other = GPULOSS_I64 + GPULOSS_U8 - type, result = every_dtype[input].bytes == 8 ? 8 : 4;
                const int bytes[] = {every_dtype[input].bytes,
                                     every_dtype[target].bytes,
                                     index_bytes[type],
                                     index_bytes[other],
                                     result,
                                     8};
                dense_desc d = some_kl_div();
                sparse_desc s = some_kl_div_sparse();
                GIVE_LABELS(&d);
                GIVE_LABELS(&s);
                d.dtype = s.dtype = every_dtype[input].dtype;
                d.target_dtype = s.value_dtype = every_dtype[target].dtype;
                d.label_type = s.label_type = (gpuloss_index_type)type;
                s.index_type = (gpuloss_index_type)other;
                ALIGNMENTS(dense, d, bytes)
                ALIGNMENTS(sparse, s, bytes)
            }
    gpuloss_destroy(context);
}

/* A stride of one less than a row is refused, for arrays that are there or not. */
#define STRIDE(form, field, length)                                                                                    \
    snprintf(message, sizeof message, #field ": is shorter than a row of %d elements (got %d)", length, (length)-1);   \
    REFUSED(form, d.field = (length)-1, message);                                                                      \
    snprintf(message, sizeof message, #field ": is shorter than a row of %d elements (got -1)", length);               \
    REFUSED(form, d.field = -1, message);                                                                              \
    ACCEPTED(form, d.field = length)
/* 1000 rows of the longest stride still have addresses, of elements of so many bytes. */
#define LONGEST(form, field, bytes)                                                                                    \
    ACCEPTED(form, d.field = INT64_MAX / (bytes) / 1000);                                                              \
    snprintf(message, sizeof message, #field ": rows * stride does not fit 63 bits (got %lld)",                        \
             (long long)(INT64_MAX / (bytes) / 1000 + 1));                                                             \
    REFUSED(form, d.field = INT64_MAX / (bytes) / 1000 + 1, message)

static void strides_of_both_sides(void **state) {
    dense_desc base = some_kl_div(), d;
    char message[128];
    (void)state;
    context = new_context();
    STRIDE(dense, input_stride, 1000);
    STRIDE(dense, target_stride, 1000);
    STRIDE(dense, loss_elements_stride, 1000);
    STRIDE(dense, grad_input_stride, 1000);
    STRIDE(dense, grad_target_stride, 1000);
    base.grad_input = NULL;
    base.loss = AT(0); /* before the other arrays */
    base.dtype = GPULOSS_F16;
    base.target_dtype = GPULOSS_F64;
    LONGEST(dense, input_stride, 2);
    LONGEST(dense, target_stride, 8);
    LONGEST(dense, loss_elements_stride, 4);
    LONGEST(dense, grad_input_stride, 2);
    LONGEST(dense, grad_target_stride, 8);
    gpuloss_destroy(context);
}

static void strides_of_a_sparse_teacher(void **state) {
    sparse_desc base = some_kl_div_sparse(), d;
    char message[128];
    (void)state;
    context = new_context();
    STRIDE(sparse, logits_stride, 1000);
    STRIDE(sparse, grad_logits_stride, 1000);
    STRIDE(sparse, indices_stride, 16);
    STRIDE(sparse, values_stride, 16);
    base.grad_logits = NULL;
    base.loss = AT(0);
    base.dtype = GPULOSS_F64;
    base.value_dtype = GPULOSS_BF16;
    LONGEST(sparse, logits_stride, 8);
    LONGEST(sparse, grad_logits_stride, 8);
    LONGEST(sparse, indices_stride, 4);
    LONGEST(sparse, values_stride, 2);
    gpuloss_destroy(context);
}

#define IN_AT(n, bytes) ((char *)AT(n) + (bytes))
/* 1000 rows of 1000 floats end here. */
#define END_AT(n) IN_AT(n, 4000000)
#define NOT_SAME " without being the same array with the same stride"
#define PACKED_OVER(n) " (got " n ", stride 1000, over " n ", stride 1000)"

/* Each output is separate from every input and output. A gradient may replace the array it is the gradient of. */
static void overlaps(void **state) {
    dense_desc base = some_kl_div(), d;
    (void)state;
    context = new_context();
    base.grad_target = AT(5);
    base.loss_elements = AT(6);
    ACCEPTED(dense, d.grad_input = AT(1));
    ACCEPTED(dense, d.grad_target = AT(2));
    ACCEPTED(dense, (d.grad_input = AT(1), d.grad_target = AT(2)));
    ACCEPTED(dense, (d.input_stride = d.grad_input_stride = 1001, d.grad_input = AT(1)));
    REFUSED(dense, (d.grad_input = AT(1), d.grad_input_stride = 1001),
            "grad_input: overlaps input" NOT_SAME
            " (got 0x1007000000000, stride 1001, over 0x1007000000000, stride 1000)");
    REFUSED(dense, d.grad_input = IN_AT(1, 4),
            "grad_input: overlaps input" NOT_SAME
            " (got 0x1007000000004, stride 1000, over 0x1007000000000, stride 1000)");
    REFUSED(dense, (d.grad_target = AT(2), d.grad_target_stride = 1001),
            "grad_target: overlaps target" NOT_SAME
            " (got 0x2007000000000, stride 1001, over 0x2007000000000, stride 1000)");
    REFUSED(dense, d.grad_input = AT(2), "grad_input: overlaps target" PACKED_OVER("0x2007000000000"));
    REFUSED(dense, d.grad_target = AT(1), "grad_target: overlaps input" PACKED_OVER("0x1007000000000"));
    REFUSED(dense, d.grad_target = AT(4), "grad_target: overlaps grad_input" PACKED_OVER("0x4007000000000"));
    REFUSED(dense, d.grad_target = AT(6), "grad_target: overlaps loss_elements" PACKED_OVER("0x6007000000000"));
    REFUSED(dense, d.grad_input = AT(6), "grad_input: overlaps loss_elements" PACKED_OVER("0x6007000000000"));
    REFUSED(dense, d.loss_elements = AT(1), "loss_elements: overlaps input" PACKED_OVER("0x1007000000000"));
    REFUSED(dense, d.loss_elements = AT(2), "loss_elements: overlaps target" PACKED_OVER("0x2007000000000"));
    /* Up to the very next byte, by the bytes of each array. */
    ACCEPTED(dense, d.grad_input = END_AT(1));
    ACCEPTED(dense, d.loss_elements = END_AT(2));
    ACCEPTED(dense, (d.target_dtype = GPULOSS_F16, d.loss_elements = IN_AT(2, 2000000)));
    REFUSED(dense, (d.target_dtype = GPULOSS_F16, d.loss_elements = IN_AT(2, 1999996)),
            "loss_elements: overlaps target (got 0x20070001e847c, stride 1000, over 0x2007000000000, stride 1000)");
    ACCEPTED(dense, (d.target_dtype = GPULOSS_F64, d.grad_target = IN_AT(1, -8000000)));
    REFUSED(dense, (d.target_dtype = GPULOSS_F64, d.grad_target = IN_AT(1, -7999992)),
            "grad_target: overlaps input (got 0x1006fff85ee08, stride 1000, over 0x1007000000000, stride 1000)");
    ACCEPTED(dense, (d.dtype = GPULOSS_F16, d.target_dtype = GPULOSS_F16, d.grad_target = IN_AT(1, 2000000)));
    ACCEPTED(dense, (d.dtype = GPULOSS_F16, d.loss_elements = IN_AT(1, -4000000)));
    REFUSED(dense, (d.dtype = GPULOSS_F16, d.target_dtype = GPULOSS_F32, d.loss_elements = IN_AT(1, -3999996)),
            "loss_elements: overlaps input (got 0x1006fffc2f704, stride 1000, over 0x1007000000000, stride 1000)");
    gpuloss_destroy(context);
}

static void overlaps_of_a_sparse_gradient(void **state) {
    sparse_desc base = some_kl_div_sparse(), d;
    (void)state;
    context = new_context();
    ACCEPTED(sparse, d.grad_logits = AT(1));
    ACCEPTED(sparse, d.grad_logits = END_AT(1));
    REFUSED(sparse, (d.grad_logits = AT(1), d.grad_logits_stride = 1001),
            "grad_logits: overlaps logits" NOT_SAME
            " (got 0x1007000000000, stride 1001, over 0x1007000000000, stride 1000)");
    REFUSED(sparse, d.grad_logits = IN_AT(1, -4),
            "grad_logits: overlaps logits" NOT_SAME
            " (got 0x1006ffffffffc, stride 1000, over 0x1007000000000, stride 1000)");
    gpuloss_destroy(context);
}

/* The classes of a row are counted in an int. */
static void long_rows(void **state) {
    const char *message = "classes: must be at most 2147483647 (got 2147483648)";
    size_t t;
    (void)state;
    context = new_context();
    for (t = 0; t < DTYPES; t++) {
        dense_desc d = some_kl_div();
        sparse_desc s = some_kl_div_sparse();
        d.dtype = s.dtype = every_dtype[t].dtype;
        d.rows = s.rows = 1;
        d.grad_input = s.grad_logits = GPULOSS_PTR((uintptr_t)1 << 56);
        d.target_dtype = GPULOSS_F64;
        d.classes = s.classes = INT32_MAX;
        d.target = GPULOSS_PTR((uintptr_t)1 << 55);
        dense_accepted(&d, __LINE__);
        sparse_accepted(&s, __LINE__);
        d.classes = s.classes = (int64_t)INT32_MAX + 1;
        dense_refused(&d, GPULOSS_ERROR_INVALID_ARGUMENT, message, __LINE__);
        sparse_refused(&s, GPULOSS_ERROR_INVALID_ARGUMENT, message, __LINE__);
    }
    gpuloss_destroy(context);
}

int kl_refusal_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(kinds_and_divergences),
        TEST(eps_and_zeros),
        TEST(columns_and_shared_targets),
        TEST(ranges),
        TEST(labels_divisors_and_temperatures),
        TEST(outputs),
        TEST(of_a_sparse_teacher),
        TEST(alignments),
        TEST(strides_of_both_sides),
        TEST(strides_of_a_sparse_teacher),
        TEST(overlaps),
        TEST(overlaps_of_a_sparse_gradient),
        TEST(long_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
