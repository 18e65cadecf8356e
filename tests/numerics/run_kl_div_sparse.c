#include "run_kl_div_sparse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_common.h"

/* The number between the rows of the indices, which is not a class. */
static const int64_t gap = -3;

unsigned sparse_outputs(const sparse_case *c) {
    return c->reduction == GPULOSS_NONE ? c->outputs & ~(unsigned)SPARSE_OUT_LOSS : c->outputs;
}

bool sparse_has_divisor(const sparse_case *c) {
    return c->chunk > 0 && (c->reduction == GPULOSS_MEAN || c->reduction == GPULOSS_BATCHMEAN) && !(c->divisor > 0);
}

gpuloss_dtype sparse_value_dtype(const sparse_case *c) {
    return c->value_dtype == GPULOSS_DTYPE_UNSET ? c->dtype : c->value_dtype;
}

void sparse_describe(const sparse_case *c, const char *what, char *text, size_t size) {
    static const char *const residuals[] = {"unset", "drop", "renormalize", "bucket"};
    static const char *const divergences[] = {"forward", "reverse", "js", "tv"};
    char options[160];
    (void)snprintf(options, sizeof options, ", beta %g, T %g%s, divisor %g%s%s%s%s%s%s%s", c->beta, c->temperature,
                   c->temperature_squared ? " squared" : "", c->divisor, c->divisor_on_device ? " (device)" : "",
                   c->row_weights ? ", row weights" : "", c->labels ? ", labels" : "",
                   c->use_grad_scale ? ", grad_scale" : "", c->grad_loss ? ", grad_loss" : "",
                   c->grad_loss_rows ? ", grad_loss_rows" : "", c->own_workspace ? ", workspace" : "");
    (void)snprintf(text, size,
                   "kl_div_sparse %s: %s, %s %lldx%lld, chunks of %lld, %lld of %s %s at %s%u, %s, %s, outputs %u%s, "
                   "strides %d %d %d %d, "
                   "offsets %d %d %d %d %d%s",
                   what, divergences[c->divergence], dtype_name(c->dtype), (long long)c->rows, (long long)c->classes,
                   (long long)c->chunk, (long long)c->k, dtype_name(sparse_value_dtype(c)),
                   c->value_kind == GPULOSS_PROBABILITIES ? "t" : "log t", c->index_type == GPULOSS_U8 ? "u" : "i",
                   (unsigned)(8 * index_size(c->index_type)), residuals[c->residual], reduction_name(c->reduction),
                   sparse_outputs(c), c->in_place ? " in place" : "", (int)c->logits_stride, (int)c->indices_stride,
                   (int)c->values_stride, (int)c->grad_stride, c->logits_offset, c->indices_offset, c->values_offset,
                   c->grad_offset, c->result_offset, options);
}

/* The operands of a call. Operands that are not wanted stay zero. */
typedef struct sparse_operands {
    operand logits, indices, values, labels, row_weights, divisor, grad_loss, grad_loss_rows;
    operand loss, loss_rows, grad, bad_indices, workspace;
} sparse_operands;

static operand matrix(const sparse_case *c, const char *name, gpuloss_dtype dtype, int64_t width, stride_kind stride,
                      int offset) {
    size_t size = dtype_size(dtype);
    return operand_new(name, size, c->rows, width, stride_of(stride, width, size), offset, c->guard);
}

/* The rows of the indices with the gaps between them, as one row. */
static operand indices_of(const sparse_case *c) {
    size_t size = index_size(c->index_type);
    int64_t stride = stride_of(c->indices_stride, c->k, size), count = c->rows * stride, row, j;
    operand o = operand_new("indices", size, 1, count, count, c->indices_offset, c->guard);
    int64_t *spread = (int64_t *)require_memory((size_t)(count + 1) * sizeof *spread);
    for (j = 0; j < count; j++)
        spread[j] = gap;
    for (row = 0; row < c->rows; row++)
        for (j = 0; j < c->k; j++)
            spread[row * stride + j] = c->indices[row * c->k + j];
    operand_put_indices(&o, spread);
    free(spread);
    return o;
}

static void given(operand *o, const char *name, const sparse_case *c, int64_t count, const double *values) {
    if (values)
        *o = result_input(name, c->dtype, count, c->result_offset, c->guard, values);
}

static void make_inputs(const sparse_case *c, sparse_operands *o) {
    gpuloss_dtype value_dtype = sparse_value_dtype(c);
    o->logits = matrix(c, "logits", c->dtype, c->classes, c->logits_stride, c->logits_offset);
    operand_put(&o->logits, c->dtype, c->logits);
    o->indices = indices_of(c);
    o->values = matrix(c, "values", value_dtype, c->k, c->values_stride, c->values_offset);
    operand_put(&o->values, value_dtype, c->values);
    if (c->labels) {
        o->labels = operand_new("labels", index_size(c->label_type), 1, c->rows, c->rows, c->result_offset, c->guard);
        operand_put_indices(&o->labels, c->labels);
    }
    given(&o->row_weights, "row_weights", c, c->rows, c->row_weights);
    given(&o->divisor, "divisor", c, 1, c->divisor_on_device ? &c->divisor : NULL);
    given(&o->grad_loss, "grad_loss", c, 1, c->grad_loss);
    given(&o->grad_loss_rows, "grad_loss_rows", c, c->rows, c->grad_loss_rows);
}

static void make_outputs(const sparse_case *c, sparse_operands *o) {
    unsigned outputs = sparse_outputs(c);
    if (outputs & SPARSE_OUT_LOSS)
        o->loss = result_output("loss", c->dtype, 1, c->result_offset, c->guard);
    if (outputs & SPARSE_OUT_LOSS_ROWS)
        o->loss_rows = result_output("loss_rows", c->dtype, c->rows, c->result_offset, c->guard);
    if (outputs & SPARSE_OUT_BAD) {
        o->bad_indices = operand_new("bad_indices", 8, 1, 1, 1, c->result_offset, c->guard);
        operand_poison(&o->bad_indices);
    }
    if (outputs & SPARSE_OUT_GRAD && !c->in_place) {
        o->grad = matrix(c, "grad_logits", c->dtype, c->classes, c->grad_stride, c->grad_offset);
        operand_poison(&o->grad);
    }
}

/* Chunks add to these, and take the divisor from where the device has written it. */
static void make_sums(const sparse_case *c, sparse_operands *o) {
    operand_zero(&o->loss);
    operand_zero(&o->bad_indices);
    if (sparse_has_divisor(c))
        o->divisor = result_output("divisor", c->dtype, 1, c->result_offset, c->guard);
}

static void set_options(const sparse_case *c, const sparse_operands *o, gpuloss_kl_div_sparse_desc *d) {
    d->flags = (c->labels ? (unsigned)GPULOSS_USE_IGNORE_INDEX : 0u) |
               (c->use_grad_scale ? (unsigned)GPULOSS_USE_GRAD_SCALE : 0u) |
               (c->temperature_squared ? (unsigned)GPULOSS_TEMPERATURE_SQUARED : 0u);
    d->beta = c->beta;
    d->temperature = c->temperature;
    d->row_weights = operand_pointer(&o->row_weights);
    d->labels = operand_pointer(&o->labels);
    d->label_type = c->labels ? c->label_type : GPULOSS_INDEX_UNSET;
    d->ignore_index = c->labels ? c->ignore_index : 0;
    d->divisor = c->divisor_on_device ? 0 : c->divisor;
    d->divisor_in = operand_pointer(&o->divisor);
    d->grad_scale = c->use_grad_scale ? c->grad_scale : 0;
    d->grad_loss = operand_pointer(&o->grad_loss);
    d->grad_loss_rows = operand_pointer(&o->grad_loss_rows);
}

static void make_desc(const sparse_case *c, const sparse_operands *o, gpuloss_kl_div_sparse_desc *d) {
    memset(d, 0, sizeof *d);
    d->logits = operand_pointer(&o->logits);
    d->logits_stride = given_stride(c->logits_stride, &o->logits);
    d->indices = operand_pointer(&o->indices);
    if (c->indices_stride != STRIDE_PACKED)
        d->indices_stride = stride_of(c->indices_stride, c->k, index_size(c->index_type));
    d->values = operand_pointer(&o->values);
    d->values_stride = given_stride(c->values_stride, &o->values);
    d->rows = c->rows;
    d->classes = c->classes;
    d->k = c->k;
    d->dtype = c->dtype;
    d->value_dtype = c->value_dtype;
    d->divergence = c->divergence;
    d->index_type = c->index_type;
    d->value_kind = c->value_kind;
    d->residual = c->residual;
    d->reduction = c->reduction;
    d->loss = operand_pointer(&o->loss);
    d->loss_rows = operand_pointer(&o->loss_rows);
    d->bad_indices = (int64_t *)operand_pointer(&o->bad_indices);
    if (sparse_outputs(c) & SPARSE_OUT_GRAD) {
        d->grad_logits = operand_pointer(c->in_place ? &o->logits : &o->grad);
        d->grad_logits_stride = c->in_place ? d->logits_stride : given_stride(c->grad_stride, &o->grad);
    }
    set_options(c, o, d);
}

/* A desc, and the rows of each call for its rows, 0 for one call. `divisor`: NULL, or where the device writes it. */
typedef struct sparse_call {
    gpuloss_kl_div_sparse_desc desc;
    int64_t chunk;
    void *divisor;
} sparse_call;

static void add_workspace(const sparse_case *c, sparse_operands *o, gpuloss_kl_div_sparse_desc *d) {
    require_ok(gpuloss_kl_div_sparse_workspace(harness_context, d, &d->workspace_bytes));
    o->workspace = workspace_of(d->workspace_bytes, c->guard);
    d->workspace = operand_pointer(&o->workspace);
}

static void check_inputs(const sparse_case *c, sparse_operands *o, report *r) {
    operand *const inputs[] = {&o->indices,   &o->values,         &o->labels, &o->row_weights,
                               &o->grad_loss, &o->grad_loss_rows, &o->divisor};
    operands_unchanged(inputs, sizeof inputs / sizeof inputs[0] - (sparse_has_divisor(c) ? 1 : 0), r);
    if (o->workspace.device)
        operand_fetch(&o->workspace, r, false);
}

static void take_outputs(const sparse_case *c, sparse_operands *o, sparse_result *result, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    bool over_logits = c->in_place && sparse_outputs(c) & SPARSE_OUT_GRAD;
    result->loss = take_value(&o->loss, results, r);
    result->loss_rows = take_values(&o->loss_rows, results, r);
    result->bad_indices = take_integer(&o->bad_indices, r);
    result->grad = take_gradient(&o->grad, &o->logits, over_logits, c->dtype, r);
    if (sparse_has_divisor(c))
        result->divisor = take_value(&o->divisor, results, r);
    check_inputs(c, o, r);
}

/* The arrays of a desc from a row on. */
static gpuloss_kl_div_sparse_desc desc_from(const gpuloss_kl_div_sparse_desc *whole, int64_t row) {
    const size_t result = dtype_size(dtype_of_results(whole->dtype)), size = dtype_size(whole->dtype);
    const size_t value = dtype_size(whole->value_dtype ? whole->value_dtype : whole->dtype);
#define STRIDE(name, width) (whole->name##_stride ? whole->name##_stride : (width))
    gpuloss_kl_div_sparse_desc d = *whole;
    d.logits = from_row(d.logits, row, STRIDE(logits, d.classes), size);
    d.indices = from_row(d.indices, row, STRIDE(indices, d.k), index_size(d.index_type));
    d.values = from_row(d.values, row, STRIDE(values, d.k), value);
    d.labels = from_row(d.labels, row, 1, index_size(d.label_type));
    d.row_weights = from_row(d.row_weights, row, 1, result);
    d.loss_rows = from_row(d.loss_rows, row, 1, result);
    d.grad_logits = from_row(d.grad_logits, row, STRIDE(grad_logits, d.classes), size);
    d.grad_loss_rows = from_row(d.grad_loss_rows, row, 1, result);
#undef STRIDE
    return d;
}

/* Calls the divisor of the other divergences, with a desc that has the rows and the labels. */
static gpuloss_status write_divisor(gpuloss_context *context, const gpuloss_kl_div_sparse_desc *d, void *divisor,
                                    struct CUstream_st *stream) {
    gpuloss_kl_div_desc kl;
    memset(&kl, 0, sizeof kl);
    kl.rows = d->rows;
    kl.classes = d->classes;
    kl.dtype = d->dtype;
    kl.reduction = d->reduction;
    kl.flags = d->flags & (unsigned)GPULOSS_USE_IGNORE_INDEX;
    kl.labels = d->labels;
    kl.label_type = d->label_type;
    kl.ignore_index = d->ignore_index;
    return gpuloss_kl_div_divisor(context, &kl, divisor, stream);
}

static gpuloss_status call_in_chunks(gpuloss_context *context, const sparse_call *of, struct CUstream_st *stream) {
    const gpuloss_kl_div_sparse_desc *whole = &of->desc;
    gpuloss_status status = GPULOSS_OK;
    int64_t row;
    if (of->divisor)
        status = write_divisor(context, whole, of->divisor, stream);
    for (row = 0; status == GPULOSS_OK && row < whole->rows; row += of->chunk) {
        gpuloss_kl_div_sparse_desc d = desc_from(whole, row);
        d.rows = whole->rows - row < of->chunk ? whole->rows - row : of->chunk;
        if (d.loss || d.bad_indices)
            d.flags |= GPULOSS_ADD_SUMS;
        status = gpuloss_kl_div_sparse(context, &d, stream);
    }
    return status;
}

static gpuloss_status call(gpuloss_context *context, const void *made, struct CUstream_st *stream) {
    const sparse_call *of = (const sparse_call *)made;
    return of->chunk > 0 ? call_in_chunks(context, of, stream) : gpuloss_kl_div_sparse(context, &of->desc, stream);
}

enum { SPARSE_OPERANDS = 13 };
static void list(operand *all[SPARSE_OPERANDS], sparse_operands *o) {
    operand *const those[SPARSE_OPERANDS] = {
        &o->logits,    &o->indices, &o->values,         &o->labels,    &o->row_weights, &o->divisor,  &o->loss,
        &o->loss_rows, &o->grad,    &o->grad_loss_rows, &o->grad_loss, &o->bad_indices, &o->workspace};
    memcpy(all, those, sizeof those);
}

/* All operands but the workspace, which is the last. */
static void repeat(const sparse_case *c, sparse_operands *o, const sparse_call *of, report *r) {
    operand *all[SPARSE_OPERANDS];
    sparse_call with_workspace = *of;
    made_call made = {call, of, &with_workspace, all, SPARSE_OPERANDS - 1};
    if (!o->workspace.device)
        add_workspace(c, o, &with_workspace.desc);
    list(all, o);
    repeat_call(&made, c->runs, r);
}

static void free_operands(sparse_operands *o) {
    operand *all[SPARSE_OPERANDS];
    list(all, o);
    operands_free(all, SPARSE_OPERANDS);
}

void sparse_run(const sparse_case *c, sparse_result *result, report *r) {
    sparse_call of;
    sparse_operands o;
    memset(result, 0, sizeof *result);
    memset(&o, 0, sizeof o);
    make_inputs(c, &o);
    make_outputs(c, &o);
    if (c->chunk > 0)
        make_sums(c, &o);
    make_desc(c, &o, &of.desc);
    of.chunk = c->chunk;
    of.divisor = sparse_has_divisor(c) ? operand_pointer(&o.divisor) : NULL;
    if (c->own_workspace)
        add_workspace(c, &o, &of.desc);
    if (c->stream) /* the operands were filled on the default stream, which this one does not wait for */
        require_ok(gpuloss_synchronize(harness_context, NULL));
    require_ok(call(harness_context, &of, c->stream));
    require_ok(gpuloss_synchronize(harness_context, c->stream));
    if (c->runs > 1)
        repeat(c, &o, &of, r);
    take_outputs(c, &o, result, r);
    free_operands(&o);
}

void sparse_free(sparse_result *result) {
    free(result->loss_rows);
    free(result->grad);
    memset(result, 0, sizeof *result);
}
