#include "run_kl_div.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_common.h"

kl_case kl_case_of(gpuloss_dtype dtype, int64_t rows, int64_t classes, const double *input, const double *target) {
    kl_case c;
    memset(&c, 0, sizeof c);
    c.dtype = dtype;
    c.input_kind = GPULOSS_PROBABILITIES;
    c.target_kind = GPULOSS_PROBABILITIES;
    c.reduction = GPULOSS_BATCHMEAN;
    c.rows = rows;
    c.classes = classes;
    c.input = input;
    c.target = target;
    c.outputs = KL_OUT_ALL;
    c.guard = 256;
    return c;
}

kl_case kl_case_of_pair(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned pair) {
    static const gpuloss_kind kinds[] = {GPULOSS_PROBABILITIES, GPULOSS_LOG_PROBABILITIES};
    kl_case c = kl_case_of(dtype, rows, classes, NULL, NULL);
    c.input_kind = kinds[pair % 2];
    c.target_kind = kinds[pair / 2 % 2];
    return c;
}

kl_inputs kl_inputs_unset(kl_case *c) {
    kl_inputs in = {NULL, NULL, NULL, NULL};
    c->input = in.input = require_doubles(c->rows * c->classes);
    c->target = in.target = require_doubles(c->rows * c->classes);
    return in;
}

kl_inputs kl_inputs_new(kl_case *c, distribution_kind kind, uint64_t seed) {
    kl_inputs in = kl_inputs_unset(c);
    make_distributions_of_two_types(in.input, in.target, c->rows, c->classes, kind, c->input_kind, c->target_kind,
                                    c->dtype, kl_target_dtype(c), seed);
    return in;
}

void kl_inputs_free(kl_inputs *in) {
    free(in->input);
    free(in->target);
    free(in->row_weights);
    free(in->labels);
}

unsigned kl_outputs(const kl_case *c) {
    unsigned outputs = c->outputs;
    if (c->reduction == GPULOSS_NONE)
        outputs &= ~(unsigned)KL_OUT_LOSS;
    if (c->shared_target)
        outputs &= ~(unsigned)KL_OUT_GRAD_TARGET;
    return outputs;
}

bool kl_has_divisor(const kl_case *c) {
    return c->chunk > 0 && (c->reduction == GPULOSS_MEAN || c->reduction == GPULOSS_BATCHMEAN) && !(c->divisor > 0);
}

gpuloss_dtype kl_target_dtype(const kl_case *c) {
    return c->target_dtype == GPULOSS_DTYPE_UNSET ? c->dtype : c->target_dtype;
}

void kl_describe(const kl_case *c, const char *what, char *text, size_t size) {
    static const char *const kinds[] = {"unset", "q", "log q", "logits"};
    static const char *const divergences[] = {"forward", "reverse", "js", "tv"};
    char options[200];
    (void)snprintf(options, sizeof options, "%s, b %g, T %g%s, eps %g, divisor %g%s%s%s", divergences[c->divergence],
                   c->beta, c->temperature, c->temperature_squared ? " squared" : "", c->eps, c->divisor,
                   c->divisor_on_device ? " (device)" : "", c->row_weights ? ", row weights" : "",
                   c->labels ? ", labels" : "");
    (void)snprintf(text, size,
                   "kl_div %s: %s %lldx%lld inner %lld, chunks of %lld (%s, %s %s) %s, %s, outputs %u%s%s, strides %d "
                   "%d %d %d %d, offsets %d %d "
                   "%d %d %d%s%s%s%s%s%s",
                   what, dtype_name(c->dtype), (long long)c->rows, (long long)c->classes, (long long)c->inner,
                   (long long)c->chunk, kinds[c->input_kind], kinds[c->target_kind], dtype_name(kl_target_dtype(c)),
                   reduction_name(c->reduction), options, kl_outputs(c), c->in_place ? " in place" : "",
                   c->target_in_place ? " over t" : "", (int)c->input_stride, (int)c->target_stride,
                   (int)c->grad_stride, (int)c->grad_target_stride, (int)c->elements_stride, c->input_offset,
                   c->target_offset, c->grad_offset, c->grad_target_offset, c->result_offset,
                   c->pytorch_zeros ? ", pytorch zeros" : "", c->shared_target ? ", shared target" : "",
                   c->use_grad_scale ? ", grad_scale" : "", c->grad_loss ? ", grad_loss" : "",
                   c->grad_loss_rows ? ", grad_loss_rows" : "", c->own_workspace ? ", workspace" : "");
}

/* The operands of a call. Operands that are not wanted stay zero. */
typedef struct kl_operands {
    operand input, target, row_weights, labels, divisor, grad_loss, grad_loss_rows;
    operand loss, loss_rows, elements, grad, grad_target, workspace;
} kl_operands;

/* One image a row: with `inner` its classes and columns, else the classes of one row. */
static operand images(const kl_case *c, int64_t rows, const char *name, gpuloss_dtype dtype, stride_kind stride,
                      int offset) {
    int64_t inner = c->inner > 1 ? c->inner : 1, width = c->classes * inner;
    size_t size = dtype_size(dtype);
    return operand_new(name, size, rows / inner, width, stride_of(stride, width, size), offset, c->guard);
}

static operand matrix(const kl_case *c, const char *name, gpuloss_dtype dtype, stride_kind stride, int offset) {
    return images(c, c->rows, name, dtype, stride, offset);
}

/* Cases have rows of classes. Copies their elements to the layout in memory, or from memory to a case. */
static void transpose(const kl_case *c, int64_t rows, const double *from, double *to, bool to_memory) {
    int64_t row, k;
    for (row = 0; row < rows; row++)
        for (k = 0; k < c->classes; k++) {
            int64_t of_case = row * c->classes + k,
                    in_memory = (row / c->inner * c->classes + k) * c->inner + row % c->inner;
            to[to_memory ? in_memory : of_case] = from[to_memory ? of_case : in_memory];
        }
}

static void put(const kl_case *c, int64_t rows, operand *o, gpuloss_dtype dtype, const double *values) {
    double *transposed = NULL;
    if (c->inner > 1 && values) {
        transposed = require_doubles(rows * c->classes);
        transpose(c, rows, values, transposed, true);
    }
    operand_put(o, dtype, transposed ? transposed : values);
    free(transposed);
}

static double *rows_of(const kl_case *c, double *values) {
    double *rows;
    if (c->inner <= 1 || !values)
        return values;
    rows = require_doubles(c->rows * c->classes);
    transpose(c, c->rows, values, rows, false);
    free(values);
    return rows;
}

static operand wanted_matrix(const kl_case *c, const char *name, gpuloss_dtype dtype, stride_kind stride, int offset) {
    operand o = matrix(c, name, dtype, stride, offset);
    operand_poison(&o);
    return o;
}

static void given(operand *o, const char *name, const kl_case *c, int64_t count, const double *values) {
    if (values)
        *o = result_input(name, c->dtype, count, c->result_offset, c->guard, values);
}

static void make_inputs(const kl_case *c, kl_operands *o) {
    int64_t inner = c->inner > 1 ? c->inner : 1;
    int64_t of_target = c->shared_target && c->rows > inner ? inner : c->rows;
    o->input = matrix(c, "input", c->dtype, c->input_stride, c->input_offset);
    put(c, c->rows, &o->input, c->dtype, c->input);
    o->target = images(c, of_target, "target", kl_target_dtype(c), c->target_stride, c->target_offset);
    put(c, of_target, &o->target, kl_target_dtype(c), c->target);
    if (c->labels) {
        o->labels = operand_new("labels", index_size(c->label_type), 1, c->rows, c->rows, c->label_offset, c->guard);
        operand_put_indices(&o->labels, c->labels);
    }
    given(&o->row_weights, "row_weights", c, c->rows, c->row_weights);
    given(&o->divisor, "divisor", c, 1, c->divisor_on_device ? &c->divisor : NULL);
    given(&o->grad_loss, "grad_loss", c, 1, c->grad_loss);
    given(&o->grad_loss_rows, "grad_loss_rows", c, c->rows, c->grad_loss_rows);
}

static void make_outputs(const kl_case *c, kl_operands *o) {
    unsigned outputs = kl_outputs(c);
    if (outputs & KL_OUT_LOSS)
        o->loss = result_output("loss", c->dtype, 1, c->result_offset, c->guard);
    if (outputs & KL_OUT_LOSS_ROWS)
        o->loss_rows = result_output("loss_rows", c->dtype, c->rows, c->result_offset, c->guard);
    if (outputs & KL_OUT_LOSS_ELEMENTS)
        o->elements =
            wanted_matrix(c, "loss_elements", dtype_of_results(c->dtype), c->elements_stride, c->result_offset);
    if (outputs & KL_OUT_GRAD && !c->in_place)
        o->grad = wanted_matrix(c, "grad_input", c->dtype, c->grad_stride, c->grad_offset);
    if (outputs & KL_OUT_GRAD_TARGET && !c->target_in_place)
        o->grad_target =
            wanted_matrix(c, "grad_target", kl_target_dtype(c), c->grad_target_stride, c->grad_target_offset);
}

/* Chunks add to these, and take the divisor from where the device has written it. */
static void make_sums(const kl_case *c, kl_operands *o) {
    operand_zero(&o->loss);
    if (kl_has_divisor(c))
        o->divisor = result_output("divisor", c->dtype, 1, c->result_offset, c->guard);
}

static void set_options(const kl_case *c, const kl_operands *o, gpuloss_kl_div_desc *d) {
    d->flags = (c->pytorch_zeros ? (unsigned)GPULOSS_PYTORCH_ZEROS : 0u) |
               (c->temperature_squared ? (unsigned)GPULOSS_TEMPERATURE_SQUARED : 0u) |
               (c->shared_target ? (unsigned)GPULOSS_SHARED_TARGET : 0u) |
               (c->labels ? (unsigned)GPULOSS_USE_IGNORE_INDEX : 0u) |
               (c->use_grad_scale ? (unsigned)GPULOSS_USE_GRAD_SCALE : 0u);
    d->beta = c->beta;
    d->temperature = c->temperature;
    d->eps = c->eps;
    d->row_weights = operand_pointer(&o->row_weights);
    d->labels = operand_pointer(&o->labels);
    d->label_type = c->label_type;
    d->ignore_index = c->ignore_index;
    d->divisor = c->divisor_on_device ? 0 : c->divisor;
    d->divisor_in = operand_pointer(&o->divisor);
    d->grad_scale = c->use_grad_scale ? c->grad_scale : 0;
    d->grad_loss = operand_pointer(&o->grad_loss);
    d->grad_loss_rows = operand_pointer(&o->grad_loss_rows);
}

static void set_outputs(const kl_case *c, const kl_operands *o, gpuloss_kl_div_desc *d) {
    d->loss = operand_pointer(&o->loss);
    d->loss_rows = operand_pointer(&o->loss_rows);
    d->loss_elements = operand_pointer(&o->elements);
    d->loss_elements_stride = given_stride(c->elements_stride, &o->elements);
    if (kl_outputs(c) & KL_OUT_GRAD) {
        d->grad_input = operand_pointer(c->in_place ? &o->input : &o->grad);
        d->grad_input_stride = c->in_place ? d->input_stride : given_stride(c->grad_stride, &o->grad);
    }
    if (kl_outputs(c) & KL_OUT_GRAD_TARGET) {
        d->grad_target = operand_pointer(c->target_in_place ? &o->target : &o->grad_target);
        d->grad_target_stride =
            c->target_in_place ? d->target_stride : given_stride(c->grad_target_stride, &o->grad_target);
    }
}

static void make_desc(const kl_case *c, const kl_operands *o, gpuloss_kl_div_desc *d) {
    memset(d, 0, sizeof *d);
    d->input = operand_pointer(&o->input);
    d->input_stride = given_stride(c->input_stride, &o->input);
    d->target = operand_pointer(&o->target);
    d->target_stride = c->shared_target ? 0 : given_stride(c->target_stride, &o->target);
    d->rows = c->rows;
    d->classes = c->classes;
    d->inner = c->inner;
    d->dtype = c->dtype;
    d->target_dtype = c->target_dtype;
    d->input_kind = c->input_kind;
    d->target_kind = c->target_kind;
    d->divergence = c->divergence;
    d->reduction = c->reduction;
    set_options(c, o, d);
    set_outputs(c, o, d);
}

/* A desc, and the rows of each call for its rows, 0 for one call. `divisor`: NULL, or where the device writes it. */
typedef struct kl_call {
    gpuloss_kl_div_desc desc;
    int64_t chunk;
    void *divisor;
} kl_call;

static void add_workspace(const kl_case *c, kl_operands *o, gpuloss_kl_div_desc *d) {
    require_ok(gpuloss_kl_div_workspace(harness_context, d, &d->workspace_bytes));
    o->workspace = workspace_of(d->workspace_bytes, c->guard);
    d->workspace = operand_pointer(&o->workspace);
}

static void check_inputs(const kl_case *c, kl_operands *o, report *r) {
    operand *const inputs[] = {&o->row_weights, &o->labels, &o->grad_loss, &o->grad_loss_rows, &o->divisor};
    operands_unchanged(inputs, sizeof inputs / sizeof inputs[0] - (kl_has_divisor(c) ? 1 : 0), r);
    if (o->workspace.device)
        operand_fetch(&o->workspace, r, false);
}

static void take_outputs(const kl_case *c, kl_operands *o, kl_result *result, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    unsigned outputs = kl_outputs(c);
    result->loss = take_value(&o->loss, results, r);
    result->loss_rows = take_values(&o->loss_rows, results, r);
    result->loss_elements = rows_of(c, take_values(&o->elements, results, r));
    result->grad = rows_of(c, take_gradient(&o->grad, &o->input, c->in_place && outputs & KL_OUT_GRAD, c->dtype, r));
    result->grad_target =
        rows_of(c, take_gradient(&o->grad_target, &o->target, c->target_in_place && outputs & KL_OUT_GRAD_TARGET,
                                 kl_target_dtype(c), r));
    if (kl_has_divisor(c))
        result->divisor = take_value(&o->divisor, results, r);
    check_inputs(c, o, r);
}

/* The arrays of a desc from a row on. */
static gpuloss_kl_div_desc desc_from(const gpuloss_kl_div_desc *whole, int64_t row) {
    const size_t result = dtype_size(dtype_of_results(whole->dtype)), size = dtype_size(whole->dtype);
    const size_t target = dtype_size(whole->target_dtype ? whole->target_dtype : whole->dtype);
    const int64_t inner = whole->inner ? whole->inner : 1, packed = whole->classes * inner, image = row / inner;
#define STRIDE(name) (whole->name##_stride ? whole->name##_stride : packed)
    gpuloss_kl_div_desc d = *whole;
    d.input = from_row(d.input, image, STRIDE(input), size);
    if (!(d.flags & GPULOSS_SHARED_TARGET))
        d.target = from_row(d.target, image, STRIDE(target), target);
    d.labels = from_row(d.labels, row, 1, index_size(d.label_type));
    d.row_weights = from_row(d.row_weights, row, 1, result);
    d.loss_rows = from_row(d.loss_rows, row, 1, result);
    d.loss_elements = from_row(d.loss_elements, image, STRIDE(loss_elements), result);
    d.grad_input = from_row(d.grad_input, image, STRIDE(grad_input), size);
    d.grad_target = from_row(d.grad_target, image, STRIDE(grad_target), target);
    d.grad_loss_rows = from_row(d.grad_loss_rows, row, 1, result);
#undef STRIDE
    return d;
}

static gpuloss_status call_in_chunks(gpuloss_context *context, const kl_call *of, struct CUstream_st *stream) {
    const gpuloss_kl_div_desc *whole = &of->desc;
    gpuloss_status status = GPULOSS_OK;
    int64_t row;
    if (of->divisor)
        status = gpuloss_kl_div_divisor(context, whole, of->divisor, stream);
    for (row = 0; status == GPULOSS_OK && row < whole->rows; row += of->chunk) {
        gpuloss_kl_div_desc d = desc_from(whole, row);
        d.rows = whole->rows - row < of->chunk ? whole->rows - row : of->chunk;
        if (d.loss)
            d.flags |= GPULOSS_ADD_SUMS;
        status = gpuloss_kl_div(context, &d, stream);
    }
    return status;
}

static gpuloss_status call(gpuloss_context *context, const void *made, struct CUstream_st *stream) {
    const kl_call *of = (const kl_call *)made;
    return of->chunk > 0 ? call_in_chunks(context, of, stream) : gpuloss_kl_div(context, &of->desc, stream);
}

enum { KL_OPERANDS = 13 };
static void list(operand *all[KL_OPERANDS], kl_operands *o) {
    operand *const those[KL_OPERANDS] = {
        &o->input, &o->target,    &o->row_weights, &o->labels, &o->divisor,     &o->grad_loss, &o->grad_loss_rows,
        &o->loss,  &o->loss_rows, &o->elements,    &o->grad,   &o->grad_target, &o->workspace};
    memcpy(all, those, sizeof those);
}

/* All operands but the workspace, which is the last. */
static void repeat(const kl_case *c, kl_operands *o, const kl_call *of, report *r) {
    operand *all[KL_OPERANDS];
    kl_call with_workspace = *of;
    made_call made = {call, of, &with_workspace, all, KL_OPERANDS - 1};
    if (!o->workspace.device)
        add_workspace(c, o, &with_workspace.desc);
    list(all, o);
    repeat_call(&made, c->runs, r);
}

static void free_operands(kl_operands *o) {
    operand *all[KL_OPERANDS];
    list(all, o);
    operands_free(all, KL_OPERANDS);
}

void kl_run(const kl_case *c, kl_result *result, report *r) {
    kl_call of;
    kl_operands o;
    memset(result, 0, sizeof *result);
    memset(&o, 0, sizeof o);
    make_inputs(c, &o);
    make_outputs(c, &o);
    if (c->chunk > 0)
        make_sums(c, &o);
    make_desc(c, &o, &of.desc);
    of.chunk = c->chunk;
    of.divisor = kl_has_divisor(c) ? operand_pointer(&o.divisor) : NULL;
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

void kl_free(kl_result *result) {
    free(result->loss_rows);
    free(result->loss_elements);
    free(result->grad);
    free(result->grad_target);
    memset(result, 0, sizeof *result);
}
