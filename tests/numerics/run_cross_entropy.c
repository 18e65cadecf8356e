#include "run_cross_entropy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_common.h"

ce_case ce_case_of(gpuloss_dtype dtype, int64_t rows, int64_t classes, const double *x, const int64_t *targets) {
    ce_case c;
    memset(&c, 0, sizeof c);
    c.dtype = dtype;
    c.index_type = GPULOSS_I64;
    c.reduction = GPULOSS_MEAN;
    c.rows = rows;
    c.classes = classes;
    c.x = x;
    c.targets = targets;
    c.outputs = CE_OUT_ALL;
    c.guard = 256;
    return c;
}

unsigned ce_outputs(const ce_case *c) {
    unsigned outputs = c->outputs;
    if (c->reduction == GPULOSS_NONE)
        outputs &= ~(unsigned)(CE_OUT_LOSS | CE_OUT_Z_LOSS);
    if (c->lse_in)
        outputs &= ~(unsigned)CE_OUT_LSE;
    if (c->target_probabilities)
        outputs &= ~(unsigned)(CE_OUT_BAD_TARGETS | CE_OUT_CORRECT);
    else
        outputs &= ~(unsigned)CE_OUT_GRAD_TARGETS;
    return outputs;
}

bool ce_has_divisor(const ce_case *c) {
    return c->chunk > 0 && c->reduction == GPULOSS_MEAN && !(c->divisor > 0);
}

gpuloss_dtype ce_grad_dtype(const ce_case *c) {
    return c->grad_dtype == GPULOSS_DTYPE_UNSET ? c->dtype : c->grad_dtype;
}

gpuloss_dtype ce_target_dtype(const ce_case *c) {
    return c->target_dtype == GPULOSS_DTYPE_UNSET ? c->dtype : c->target_dtype;
}

void ce_describe(const ce_case *c, const char *what, char *text, size_t size) {
    char targets[40], options[200];
    if (c->target_probabilities)
        (void)snprintf(targets, sizeof targets, "t %s", dtype_name(ce_target_dtype(c)));
    else
        (void)snprintf(targets, sizeof targets, "%s%u", c->index_type == GPULOSS_U8 ? "u" : "i",
                       (unsigned)(8 * index_size(c->index_type)));
    (void)snprintf(options, sizeof options, "%s%s, e %g, L %g, scale %g, cap %g, divisor %g%s",
                   c->class_weights ? ", weights" : "", c->row_weights ? ", row weights" : "", c->label_smoothing,
                   c->lse_square_scale, c->logit_scale, c->softcap, c->divisor,
                   c->divisor_on_device ? " (device)" : "");
    (void)snprintf(
        text, size,
        "cross_entropy %s: %s %lldx%lld inner %lld, chunks of %lld -> %s, %s %s, outputs %u%s%s, strides %d %d %d "
        "%d, offsets %d %d %d %d %d%s%s%s%s%s%s",
        what, dtype_name(c->dtype), (long long)c->rows, (long long)c->classes, (long long)c->inner, (long long)c->chunk,
        dtype_name(ce_grad_dtype(c)), reduction_name(c->reduction), targets, ce_outputs(c),
        c->in_place ? " in place" : "", c->targets_in_place ? " over t" : "", (int)c->logits_stride,
        (int)c->grad_stride, (int)c->targets_stride, (int)c->grad_targets_stride, c->logits_offset, c->grad_offset,
        c->target_offset, c->grad_target_offset, c->result_offset, options, c->use_grad_scale ? ", grad_scale" : "",
        c->grad_loss ? ", grad_loss" : "", c->grad_loss_rows ? ", grad_loss_rows" : "", c->lse_in ? ", lse_in" : "",
        c->own_workspace ? ", workspace" : "");
}

/* The operands of a call. Operands that are not wanted stay zero. */
typedef struct ce_operands {
    operand logits, targets, class_weights, row_weights, divisor, grad_loss, grad_loss_rows, lse_in, shard_rows;
    operand loss, loss_rows, z_loss, z_loss_rows, lse, argmax, correct, bad_targets, grad, grad_targets, workspace;
} ce_operands;

/* One image a row: with `inner` its classes and columns, else the classes of one row. */
static operand matrix(const ce_case *c, const char *name, gpuloss_dtype dtype, stride_kind stride, int offset) {
    int64_t images = c->inner ? c->rows / c->inner : c->rows, width = c->inner ? c->classes * c->inner : c->classes;
    size_t size = dtype_size(dtype);
    return operand_new(name, size, images, width, stride_of(stride, width, size), offset, c->guard);
}

static void given(operand *o, const char *name, const ce_case *c, int64_t count, const double *values) {
    if (values)
        *o = result_input(name, c->dtype, count, c->result_offset, c->guard, values);
}

static void make_inputs(const ce_case *c, ce_operands *o) {
    if (c->shard_rows) {
        o->shard_rows = operand_new("shard_rows", sizeof(double), 1, c->shards * c->rows * CE_SHARD_NUMBERS,
                                    c->shards * c->rows * CE_SHARD_NUMBERS, 0, c->guard);
        operand_put(&o->shard_rows, GPULOSS_F64, c->shard_rows);
    } else {
        o->logits = matrix(c, "logits", c->dtype, c->logits_stride, c->logits_offset);
        operand_put(&o->logits, c->dtype, c->x);
    }
    if (c->target_probabilities) {
        o->targets = matrix(c, "target_probabilities", ce_target_dtype(c), c->targets_stride, c->target_offset);
        operand_put(&o->targets, ce_target_dtype(c), c->target_probabilities);
    } else {
        o->targets = operand_new("targets", index_size(c->index_type), 1, c->rows, c->rows, c->target_offset, c->guard);
        operand_put_indices(&o->targets, c->targets);
    }
    given(&o->class_weights, "class_weights", c, c->total_classes ? c->total_classes : c->classes, c->class_weights);
    given(&o->row_weights, "row_weights", c, c->rows, c->row_weights);
    given(&o->divisor, "divisor", c, 1, c->divisor_on_device ? &c->divisor : NULL);
    given(&o->grad_loss, "grad_loss", c, 1, c->grad_loss);
    given(&o->grad_loss_rows, "grad_loss_rows", c, c->rows, c->grad_loss_rows);
    given(&o->lse_in, "lse_in", c, c->rows, c->lse_in);
}

static void wanted(operand *o, const char *name, const ce_case *c, int64_t count, unsigned output) {
    if (ce_outputs(c) & output)
        *o = result_output(name, c->dtype, count, c->result_offset, c->guard);
}

static void wanted_integers(operand *o, const char *name, const ce_case *c, int64_t count, unsigned output) {
    if (!(ce_outputs(c) & output))
        return;
    *o = operand_new(name, 8, 1, count, count, c->result_offset, c->guard);
    operand_poison(o);
}

/* Chunks add to these, and take the divisor from where the device has written it. */
static void make_sums(const ce_case *c, ce_operands *o) {
    operand_zero(&o->loss);
    operand_zero(&o->z_loss);
    operand_zero(&o->correct);
    operand_zero(&o->bad_targets);
    if (ce_has_divisor(c))
        o->divisor = result_output("divisor", c->dtype, 1, c->result_offset, c->guard);
}

static void make_outputs(const ce_case *c, ce_operands *o) {
    unsigned outputs = ce_outputs(c);
    wanted(&o->loss, "loss", c, 1, CE_OUT_LOSS);
    wanted(&o->loss_rows, "loss_rows", c, c->rows, CE_OUT_LOSS_ROWS);
    wanted(&o->z_loss, "z_loss", c, 1, CE_OUT_Z_LOSS);
    wanted(&o->z_loss_rows, "z_loss_rows", c, c->rows, CE_OUT_Z_LOSS_ROWS);
    wanted(&o->lse, "lse", c, c->rows, CE_OUT_LSE);
    wanted_integers(&o->argmax, "argmax", c, c->rows, CE_OUT_ARGMAX);
    wanted_integers(&o->correct, "correct", c, 1, CE_OUT_CORRECT);
    wanted_integers(&o->bad_targets, "bad_targets", c, 1, CE_OUT_BAD_TARGETS);
    if (outputs & CE_OUT_SHARD_ROWS)
        o->shard_rows = result_output("shard_rows", GPULOSS_F64, c->rows * CE_SHARD_NUMBERS, 0, c->guard);
    if (outputs & CE_OUT_GRAD && !c->in_place) {
        o->grad = matrix(c, "grad_logits", ce_grad_dtype(c), c->grad_stride, c->grad_offset);
        operand_poison(&o->grad);
    }
    if (outputs & CE_OUT_GRAD_TARGETS && !c->targets_in_place) {
        o->grad_targets =
            matrix(c, "grad_target_probabilities", ce_target_dtype(c), c->grad_targets_stride, c->grad_target_offset);
        operand_poison(&o->grad_targets);
    }
    if (c->chunk > 0)
        make_sums(c, o);
}

static void set_options(const ce_case *c, const ce_operands *o, gpuloss_cross_entropy_desc *d) {
    d->ignore_index = c->use_ignore_index ? c->ignore_index : 0;
    d->grad_scale = c->use_grad_scale ? c->grad_scale : 0;
    d->flags = (c->use_ignore_index ? (unsigned)GPULOSS_USE_IGNORE_INDEX : 0u) |
               (c->use_grad_scale ? (unsigned)GPULOSS_USE_GRAD_SCALE : 0u);
    d->class_weights = operand_pointer(&o->class_weights);
    d->row_weights = operand_pointer(&o->row_weights);
    d->label_smoothing = c->label_smoothing;
    d->lse_square_scale = c->lse_square_scale;
    d->logit_scale = c->logit_scale;
    d->softcap = c->softcap;
    d->divisor = c->divisor_on_device ? 0 : c->divisor;
    d->divisor_in = operand_pointer(&o->divisor);
    d->grad_loss = operand_pointer(&o->grad_loss);
    d->grad_loss_rows = operand_pointer(&o->grad_loss_rows);
    d->lse_in = operand_pointer(&o->lse_in);
}

static void set_outputs(const ce_case *c, const ce_operands *o, gpuloss_cross_entropy_desc *d) {
    unsigned outputs = ce_outputs(c);
    d->loss = operand_pointer(&o->loss);
    d->loss_rows = operand_pointer(&o->loss_rows);
    d->z_loss = operand_pointer(&o->z_loss);
    d->z_loss_rows = operand_pointer(&o->z_loss_rows);
    d->lse = operand_pointer(&o->lse);
    d->argmax = (int64_t *)operand_pointer(&o->argmax);
    d->correct = (int64_t *)operand_pointer(&o->correct);
    d->bad_targets = (int64_t *)operand_pointer(&o->bad_targets);
    if (outputs & CE_OUT_GRAD) {
        d->grad_logits = operand_pointer(c->in_place ? &o->logits : &o->grad);
        d->grad_logits_stride = c->in_place ? d->logits_stride : given_stride(c->grad_stride, &o->grad);
    }
    if (outputs & CE_OUT_GRAD_TARGETS) {
        d->grad_target_probabilities = operand_pointer(c->targets_in_place ? &o->targets : &o->grad_targets);
        d->grad_target_probabilities_stride = c->targets_in_place
                                                  ? d->target_probabilities_stride
                                                  : given_stride(c->grad_targets_stride, &o->grad_targets);
    }
}

static void make_desc(const ce_case *c, const ce_operands *o, gpuloss_cross_entropy_desc *d) {
    memset(d, 0, sizeof *d);
    d->logits = operand_pointer(&o->logits);
    d->logits_stride = given_stride(c->logits_stride, &o->logits);
    d->rows = c->rows;
    d->classes = c->classes;
    d->inner = c->inner;
    d->dtype = c->dtype;
    d->grad_dtype = c->grad_dtype;
    d->target_dtype = c->target_dtype;
    d->reduction = c->reduction;
    if (c->target_probabilities) {
        d->target_probabilities = operand_pointer(&o->targets);
        d->target_probabilities_stride = given_stride(c->targets_stride, &o->targets);
    } else {
        d->targets = operand_pointer(&o->targets);
        d->target_type = c->index_type;
    }
    d->total_classes = c->total_classes;
    d->class_offset = c->class_offset;
    d->shard_rows = (gpuloss_shard_row *)operand_pointer(&o->shard_rows);
    d->shards = c->shard_rows ? c->shards : 0;
    set_options(c, o, d);
    set_outputs(c, o, d);
}

/* A desc, and the rows of each call for its rows, 0 for one call. `divisor`: NULL, or where the device writes it. */
typedef struct ce_call {
    gpuloss_cross_entropy_desc desc;
    int64_t chunk;
    void *divisor;
} ce_call;

static void add_workspace(const ce_case *c, ce_operands *o, gpuloss_cross_entropy_desc *d) {
    require_ok(gpuloss_cross_entropy_workspace(harness_context, d, &d->workspace_bytes));
    o->workspace = workspace_of(d->workspace_bytes, c->guard);
    d->workspace = operand_pointer(&o->workspace);
}

static void check_inputs(const ce_case *c, ce_operands *o, report *r) {
    operand *const inputs[] = {&o->class_weights,  &o->row_weights, &o->grad_loss,
                               &o->grad_loss_rows, &o->lse_in,      &o->divisor};
    operands_unchanged(inputs, sizeof inputs / sizeof inputs[0] - (ce_has_divisor(c) ? 1 : 0), r);
    if (o->workspace.device)
        operand_fetch(&o->workspace, r, false);
}

static void take_outputs(const ce_case *c, ce_operands *o, ce_result *result, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    unsigned outputs = ce_outputs(c);
    result->loss = take_value(&o->loss, results, r);
    result->loss_rows = take_values(&o->loss_rows, results, r);
    result->z_loss = take_value(&o->z_loss, results, r);
    result->z_loss_rows = take_values(&o->z_loss_rows, results, r);
    if (ce_has_divisor(c))
        result->divisor = take_value(&o->divisor, results, r);
    result->lse = take_values(&o->lse, results, r);
    result->argmax = take_integers(&o->argmax, r);
    result->correct = take_integer(&o->correct, r);
    result->bad_targets = take_integer(&o->bad_targets, r);
    if (outputs & CE_OUT_SHARD_ROWS)
        result->shard_rows = take_values(&o->shard_rows, GPULOSS_F64, r);
    if (c->shard_rows)
        operand_unchanged(&o->shard_rows, r);
    else
        result->grad = take_gradient(&o->grad, &o->logits, c->in_place && outputs & CE_OUT_GRAD, ce_grad_dtype(c), r);
    result->grad_targets = take_gradient(&o->grad_targets, &o->targets,
                                         c->targets_in_place && outputs & CE_OUT_GRAD_TARGETS, ce_target_dtype(c), r);
    check_inputs(c, o, r);
}

/* The arrays of a desc from a row on. */
static gpuloss_cross_entropy_desc desc_from(const gpuloss_cross_entropy_desc *whole, int64_t row) {
    const gpuloss_dtype target_dtype = whole->target_dtype ? whole->target_dtype : whole->dtype;
    const size_t result = dtype_size(dtype_of_results(whole->dtype)), target = dtype_size(target_dtype);
    const size_t grad = dtype_size(whole->grad_dtype ? whole->grad_dtype : whole->dtype);
    const int64_t inner = whole->inner ? whole->inner : 1, packed = whole->classes * inner, image = row / inner;
#define STRIDE(name) (whole->name##_stride ? whole->name##_stride : packed)
    gpuloss_cross_entropy_desc d = *whole;
    d.logits = from_row(d.logits, image, STRIDE(logits), dtype_size(d.dtype));
    d.targets = from_row(d.targets, row, 1, index_size(d.target_type));
    d.target_probabilities = from_row(d.target_probabilities, image, STRIDE(target_probabilities), target);
    d.row_weights = from_row(d.row_weights, row, 1, result);
    d.loss_rows = from_row(d.loss_rows, row, 1, result);
    d.z_loss_rows = from_row(d.z_loss_rows, row, 1, result);
    d.lse = from_row(d.lse, row, 1, result);
    d.argmax = (int64_t *)from_row(d.argmax, row, 1, sizeof *d.argmax);
    d.grad_logits = from_row(d.grad_logits, image, STRIDE(grad_logits), grad);
    d.grad_target_probabilities =
        from_row(d.grad_target_probabilities, image, STRIDE(grad_target_probabilities), target);
    d.grad_loss_rows = from_row(d.grad_loss_rows, row, 1, result);
    d.lse_in = from_row(d.lse_in, row, 1, result);
#undef STRIDE
    return d;
}

static bool has_sums(const gpuloss_cross_entropy_desc *d) {
    return d->loss || d->z_loss || d->correct || d->bad_targets;
}

static gpuloss_status call_once(gpuloss_context *context, const gpuloss_cross_entropy_desc *d,
                                struct CUstream_st *stream) {
    return d->shards ? gpuloss_cross_entropy_combine(context, d, stream) : gpuloss_cross_entropy(context, d, stream);
}

/* The rows of combined shards are one chunk. */
static gpuloss_status call_in_chunks(gpuloss_context *context, const ce_call *of, struct CUstream_st *stream) {
    const gpuloss_cross_entropy_desc *whole = &of->desc;
    gpuloss_status status = GPULOSS_OK;
    int64_t row;
    if (of->divisor)
        status = gpuloss_cross_entropy_divisor(context, whole, of->divisor, stream);
    for (row = 0; status == GPULOSS_OK && row < whole->rows; row += of->chunk) {
        gpuloss_cross_entropy_desc d = desc_from(whole, row);
        d.rows = whole->rows - row < of->chunk ? whole->rows - row : of->chunk;
        if (has_sums(&d))
            d.flags |= GPULOSS_ADD_SUMS;
        status = call_once(context, &d, stream);
    }
    return status;
}

static gpuloss_status call(gpuloss_context *context, const void *made, struct CUstream_st *stream) {
    const ce_call *of = (const ce_call *)made;
    return of->chunk > 0 ? call_in_chunks(context, of, stream) : call_once(context, &of->desc, stream);
}

enum { CE_OPERANDS = 20 };
static void list(operand *all[CE_OPERANDS], ce_operands *o) {
    operand *const those[CE_OPERANDS] = {&o->logits,     &o->targets,   &o->class_weights,  &o->row_weights,
                                         &o->divisor,    &o->grad_loss, &o->grad_loss_rows, &o->lse_in,
                                         &o->loss,       &o->loss_rows, &o->z_loss,         &o->z_loss_rows,
                                         &o->lse,        &o->argmax,    &o->correct,        &o->bad_targets,
                                         &o->shard_rows, &o->grad,      &o->grad_targets,   &o->workspace};
    memcpy(all, those, sizeof those);
}

/* All operands but the workspace, which is the last. */
static void repeat(const ce_case *c, ce_operands *o, const ce_call *of, report *r) {
    operand *all[CE_OPERANDS];
    ce_call with_workspace = *of;
    made_call made = {call, of, &with_workspace, all, CE_OPERANDS - 1};
    if (!o->workspace.device)
        add_workspace(c, o, &with_workspace.desc);
    list(all, o);
    repeat_call(&made, c->runs, r);
}

static void free_operands(ce_operands *o) {
    operand *all[CE_OPERANDS];
    list(all, o);
    operands_free(all, CE_OPERANDS);
}

void ce_run(const ce_case *c, ce_result *result, report *r) {
    ce_call of;
    ce_operands o;
    memset(result, 0, sizeof *result);
    memset(&o, 0, sizeof o);
    make_inputs(c, &o);
    make_outputs(c, &o);
    make_desc(c, &o, &of.desc);
    of.chunk = c->chunk;
    of.divisor = ce_has_divisor(c) ? operand_pointer(&o.divisor) : NULL;
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

void ce_free(ce_result *result) {
    free(result->argmax);
    free(result->loss_rows);
    free(result->z_loss_rows);
    free(result->lse);
    free(result->grad);
    free(result->grad_targets);
    free(result->shard_rows);
    memset(result, 0, sizeof *result);
}
