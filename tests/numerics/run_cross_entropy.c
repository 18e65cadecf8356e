#include "run_cross_entropy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bounds.h"
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

static unsigned outputs_of(const ce_case *c) {
    unsigned outputs = c->outputs;
    if (c->reduction == GPULOSS_NONE)
        outputs &= ~(unsigned)CE_OUT_LOSS;
    if (c->lse_in)
        outputs &= ~(unsigned)CE_OUT_LSE;
    return outputs;
}

void ce_describe(const ce_case *c, const char *what, char *text, size_t size) {
    (void)snprintf(text, size,
                   "cross_entropy %s: %s %lldx%lld %s i%d, outputs %u%s, strides %d %d, offsets %d %d %d %d%s%s%s%s%s",
                   what, dtype_name(c->dtype), (long long)c->rows, (long long)c->classes, reduction_name(c->reduction),
                   c->index_type == GPULOSS_I32 ? 32 : 64, outputs_of(c), c->in_place ? " in place" : "",
                   (int)c->logits_stride, (int)c->grad_stride, c->logits_offset, c->grad_offset, c->target_offset,
                   c->result_offset, c->use_grad_scale ? ", grad_scale" : "", c->grad_loss ? ", grad_loss" : "",
                   c->grad_loss_rows ? ", grad_loss_rows" : "", c->lse_in ? ", lse_in" : "",
                   c->own_workspace ? ", workspace" : "");
}

/* The operands of a call; those that are not wanted stay zero. */
typedef struct ce_operands {
    operand logits, targets, grad, loss, loss_rows, lse, bad_targets, grad_loss, grad_loss_rows, lse_in, workspace;
} ce_operands;

static void make_inputs(const ce_case *c, ce_operands *o) {
    size_t size = dtype_size(c->dtype), index_size = c->index_type == GPULOSS_I32 ? 4 : 8;
    o->logits = operand_new("logits", size, c->rows, c->classes, stride_of(c->logits_stride, c->classes, size),
                            c->logits_offset, c->guard);
    operand_put(&o->logits, c->dtype, c->x);
    o->targets = operand_new("targets", index_size, 1, c->rows, c->rows, c->target_offset, c->guard);
    operand_put_indices(&o->targets, c->targets);
    if (c->grad_loss)
        o->grad_loss = result_input("grad_loss", c->dtype, 1, c->result_offset, c->guard, c->grad_loss);
    if (c->grad_loss_rows)
        o->grad_loss_rows =
            result_input("grad_loss_rows", c->dtype, c->rows, c->result_offset, c->guard, c->grad_loss_rows);
    if (c->lse_in)
        o->lse_in = result_input("lse_in", c->dtype, c->rows, c->result_offset, c->guard, c->lse_in);
}

static void make_outputs(const ce_case *c, ce_operands *o) {
    unsigned outputs = outputs_of(c);
    size_t size = dtype_size(c->dtype);
    if (outputs & CE_OUT_LOSS)
        o->loss = result_output("loss", c->dtype, 1, c->result_offset, c->guard);
    if (outputs & CE_OUT_LOSS_ROWS)
        o->loss_rows = result_output("loss_rows", c->dtype, c->rows, c->result_offset, c->guard);
    if (outputs & CE_OUT_LSE)
        o->lse = result_output("lse", c->dtype, c->rows, c->result_offset, c->guard);
    if (outputs & CE_OUT_GRAD && !c->in_place) {
        o->grad = operand_new("grad_logits", size, c->rows, c->classes, stride_of(c->grad_stride, c->classes, size),
                              c->grad_offset, c->guard);
        operand_poison(&o->grad);
    }
    if (outputs & CE_OUT_BAD_TARGETS) {
        o->bad_targets = operand_new("bad_targets", 8, 1, 1, 1, 0, c->guard);
        operand_poison(&o->bad_targets);
    }
}

static void make_desc(const ce_case *c, const ce_operands *o, gpuloss_cross_entropy_desc *d) {
    memset(d, 0, sizeof *d);
    d->logits = operand_pointer(&o->logits);
    d->logits_stride = given_stride(c->logits_stride, &o->logits);
    d->targets = operand_pointer(&o->targets);
    d->rows = c->rows;
    d->classes = c->classes;
    d->dtype = c->dtype;
    d->target_type = c->index_type;
    d->reduction = c->reduction;
    d->ignore_index = c->use_ignore_index ? c->ignore_index : 0;
    d->grad_scale = c->use_grad_scale ? c->grad_scale : 0;
    d->flags = (c->use_ignore_index ? (unsigned)GPULOSS_USE_IGNORE_INDEX : 0u) |
               (c->use_grad_scale ? (unsigned)GPULOSS_USE_GRAD_SCALE : 0u);
    d->loss = operand_pointer(&o->loss);
    d->loss_rows = operand_pointer(&o->loss_rows);
    d->lse = operand_pointer(&o->lse);
    d->bad_targets = (int64_t *)operand_pointer(&o->bad_targets);
    d->grad_loss = operand_pointer(&o->grad_loss);
    d->grad_loss_rows = operand_pointer(&o->grad_loss_rows);
    d->lse_in = operand_pointer(&o->lse_in);
    if (outputs_of(c) & CE_OUT_GRAD) {
        d->grad_logits = operand_pointer(c->in_place ? &o->logits : &o->grad);
        d->grad_logits_stride = c->in_place ? d->logits_stride : given_stride(c->grad_stride, &o->grad);
    }
}

static void add_workspace(const ce_case *c, ce_operands *o, gpuloss_cross_entropy_desc *d) {
    require_ok(gpuloss_cross_entropy_workspace(harness_context, d, &d->workspace_bytes));
    o->workspace = workspace_of(d->workspace_bytes, c->guard);
    d->workspace = operand_pointer(&o->workspace);
}

static void take_outputs(const ce_case *c, ce_operands *o, ce_result *result, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    result->loss = take_value(&o->loss, results, r);
    result->loss_rows = take_values(&o->loss_rows, results, r);
    result->lse = take_values(&o->lse, results, r);
    if (o->bad_targets.device) {
        operand_fetch(&o->bad_targets, r, true);
        result->bad_targets = operand_count(&o->bad_targets);
    }
    result->grad = take_gradient(&o->grad, &o->logits, c->in_place && outputs_of(c) & CE_OUT_GRAD, c->dtype, r);
    operand_unchanged(&o->targets, r);
    if (o->workspace.device)
        operand_fetch(&o->workspace, r, false);
}

static void free_operands(ce_operands *o) {
    operand *const all[] = {&o->logits,      &o->targets,   &o->grad,           &o->loss,   &o->loss_rows, &o->lse,
                            &o->bad_targets, &o->grad_loss, &o->grad_loss_rows, &o->lse_in, &o->workspace};
    operands_free(all, sizeof all / sizeof all[0]);
}

void ce_run(const ce_case *c, ce_result *result, report *r) {
    gpuloss_cross_entropy_desc d;
    ce_operands o;
    memset(result, 0, sizeof *result);
    memset(&o, 0, sizeof o);
    make_inputs(c, &o);
    make_outputs(c, &o);
    make_desc(c, &o, &d);
    if (c->own_workspace)
        add_workspace(c, &o, &d);
    if (c->stream) /* the operands were filled on the default stream, which this one does not wait for */
        require_ok(gpuloss_synchronize(harness_context, NULL));
    require_ok(gpuloss_cross_entropy(harness_context, &d, c->stream));
    require_ok(gpuloss_synchronize(harness_context, c->stream));
    take_outputs(c, &o, result, r);
    free_operands(&o);
}

void ce_free(ce_result *result) {
    free(result->loss_rows);
    free(result->lse);
    free(result->grad);
    memset(result, 0, sizeof *result);
}

static void make_reference(const ce_case *c, reference_cross_entropy *ref, bool gradient) {
    int64_t rows = c->rows, elements = rows * c->classes;
    memset(ref, 0, sizeof *ref);
    ref->rows = c->rows;
    ref->classes = c->classes;
    ref->x = c->x;
    ref->targets = c->targets;
    ref->reduction = c->reduction;
    ref->use_ignore_index = c->use_ignore_index;
    ref->ignore_index = c->ignore_index;
    ref->grad_scale = gradient_factor(c->use_grad_scale, c->grad_scale, c->grad_loss);
    ref->grad_loss_rows = c->grad_loss_rows;
    ref->lse_in = c->lse_in;
    ref->loss_rows = require_long_doubles(rows);
    ref->lse = require_long_doubles(rows);
    ref->scale_rows = require_long_doubles(rows);
    ref->row_info = (reference_row *)require_memory((size_t)rows * sizeof(reference_row));
    if (gradient) {
        ref->probability = require_long_doubles(elements);
        ref->grad = require_long_doubles(elements);
    }
    reference_cross_entropy_run(ref);
}

static void free_reference(reference_cross_entropy *ref) {
    free(ref->loss_rows);
    free(ref->lse);
    free(ref->scale_rows);
    free(ref->row_info);
    free(ref->probability);
    free(ref->grad);
}

static void check_gradient_row(const ce_case *c, const ce_result *result, const reference_cross_entropy *ref,
                               const row_bounds *bounds, int64_t row, report *r) {
    bool normal = reference_row_kind(ref, row) == ROW_NORMAL;
    int64_t column;
    for (column = 0; column < c->classes; column++) {
        int64_t i = row * c->classes + column;
        long double x = (long double)c->x[i], p = ref->probability[i], s = ref->scale_rows[row], bound = 0;
        int is_target = column == c->targets[row];
        if (normal && c->lse_in)
            bound = cross_entropy_gradient_bound_from_lse(c->dtype, (long double)c->lse_in[row], x, p, is_target, s);
        else if (normal)
            bound = cross_entropy_gradient_bound(c->dtype, &ref->row_info[row], bounds, x, p, is_target, s);
        compare_value(r, c->lse_in ? CE_GRAD_FROM_LSE : CE_GRAD, c->dtype, c->dtype, row, column, result->grad[i],
                      ref->grad[i], bound);
        /* p - 1 keeps no last places of a p near 1: there the bound speaks alone. */
        if (normal && !(is_target && p > 0.5L))
            note_ulps(c->lse_in ? CE_GRAD_FROM_LSE : CE_GRAD, c->dtype, result->grad[i], ref->grad[i]);
    }
}

void ce_check(const ce_case *c, const ce_result *result, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    long double sum_of_bounds = 0, sum_of_magnitudes = 0;
    reference_cross_entropy ref;
    int64_t row;
    make_reference(c, &ref, result->grad != NULL);
    for (row = 0; row < c->rows; row++) {
        bool normal = reference_row_kind(&ref, row) == ROW_NORMAL;
        long double y = normal ? (long double)c->x[row * c->classes + c->targets[row]] : ref.row_info[row].max;
        row_bounds bounds = cross_entropy_row_bounds(c->dtype, c->classes, &ref.row_info[row], y);
        if (c->lse_in) /* loss = lse_in - y, where the given lse stands for the exact one */
            bounds.loss += fabsl((long double)c->lse_in[row] - ref.lse[row]);
        sum_of_bounds += normal ? bounds.loss : 0;
        sum_of_magnitudes += fabsl(ref.loss_rows[row]);
        if (result->loss_rows)
            compare_value(r, CE_LOSS_ROWS, c->dtype, results, row, 0, result->loss_rows[row], ref.loss_rows[row],
                          normal ? bounds.loss : 0);
        if (result->lse)
            compare_value(r, CE_LSE, c->dtype, results, row, 0, result->lse[row], ref.lse[row], bounds.lse);
        if (result->grad)
            check_gradient_row(c, result, &ref, &bounds, row, r);
    }
    if (outputs_of(c) & CE_OUT_LOSS)
        compare_value(r, CE_LOSS, c->dtype, results, 0, 0, result->loss, ref.loss,
                      reduced_loss_bound(c->dtype, c->rows, sum_of_bounds, sum_of_magnitudes, ref.divisor, ref.loss));
    if (outputs_of(c) & CE_OUT_BAD_TARGETS)
        compare_count(r, "bad_targets", result->bad_targets, ref.bad_targets);
    free_reference(&ref);
}

void ce_same(const ce_case *c, const ce_result *a, const ce_result *b, report *r) {
    size_t rows = (size_t)c->rows;
    compare_bits(r, "loss", &a->loss, &b->loss, sizeof a->loss);
    compare_arrays(r, "loss_rows", a->loss_rows, b->loss_rows, rows);
    compare_arrays(r, "lse", a->lse, b->lse, rows);
    compare_arrays(r, "grad_logits", a->grad, b->grad, rows * (size_t)c->classes);
}

void ce_test(const ce_case *c, const char *what) {
    char text[400];
    ce_result result;
    report r;
    ce_describe(c, what, text, sizeof text);
    r = report_on(text);
    ce_run(c, &result, &r);
    ce_check(c, &result, &r);
    ce_free(&result);
    case_done(&r);
}
