#include "run_kl_div.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bounds.h"
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
    kl_inputs in;
    c->input = in.input = require_doubles(c->rows * c->classes);
    c->target = in.target = require_doubles(c->rows * c->classes);
    return in;
}

kl_inputs kl_inputs_new(kl_case *c, distribution_kind kind, uint64_t seed) {
    kl_inputs in = kl_inputs_unset(c);
    make_distributions(in.input, in.target, c->rows, c->classes, kind, c->input_kind, c->target_kind, c->dtype, seed);
    return in;
}

void kl_inputs_free(kl_inputs *in) {
    free(in->input);
    free(in->target);
}

static unsigned outputs_of(const kl_case *c) {
    return c->reduction == GPULOSS_NONE ? c->outputs & ~(unsigned)KL_OUT_LOSS : c->outputs;
}

void kl_describe(const kl_case *c, const char *what, char *text, size_t size) {
    static const char *const kinds[] = {"unset", "q", "log q"};
    (void)snprintf(text, size,
                   "kl_div %s: %s %lldx%lld (%s, %s) %s, outputs %u%s, eps %g, strides %d %d %d %d, offsets %d %d %d "
                   "%d%s%s%s%s%s",
                   what, dtype_name(c->dtype), (long long)c->rows, (long long)c->classes, kinds[c->input_kind],
                   kinds[c->target_kind], reduction_name(c->reduction), outputs_of(c), c->in_place ? " in place" : "",
                   c->eps, (int)c->input_stride, (int)c->target_stride, (int)c->grad_stride, (int)c->elements_stride,
                   c->input_offset, c->target_offset, c->grad_offset, c->result_offset,
                   c->pytorch_zeros ? ", pytorch zeros" : "", c->use_grad_scale ? ", grad_scale" : "",
                   c->grad_loss ? ", grad_loss" : "", c->grad_loss_rows ? ", grad_loss_rows" : "",
                   c->own_workspace ? ", workspace" : "");
}

/* The operands of a call; those that are not wanted stay zero. */
typedef struct kl_operands {
    operand input, target, grad, loss, loss_rows, elements, grad_loss, grad_loss_rows, workspace;
} kl_operands;

static operand matrix(const kl_case *c, const char *name, size_t size, stride_kind stride, int offset) {
    return operand_new(name, size, c->rows, c->classes, stride_of(stride, c->classes, size), offset, c->guard);
}

static void make_operands(const kl_case *c, kl_operands *o) {
    unsigned outputs = outputs_of(c);
    size_t size = dtype_size(c->dtype);
    o->input = matrix(c, "input", size, c->input_stride, c->input_offset);
    operand_put(&o->input, c->dtype, c->input);
    o->target = matrix(c, "target", size, c->target_stride, c->target_offset);
    operand_put(&o->target, c->dtype, c->target);
    if (c->grad_loss)
        o->grad_loss = result_input("grad_loss", c->dtype, 1, c->result_offset, c->guard, c->grad_loss);
    if (c->grad_loss_rows)
        o->grad_loss_rows =
            result_input("grad_loss_rows", c->dtype, c->rows, c->result_offset, c->guard, c->grad_loss_rows);
    if (outputs & KL_OUT_LOSS)
        o->loss = result_output("loss", c->dtype, 1, c->result_offset, c->guard);
    if (outputs & KL_OUT_LOSS_ROWS)
        o->loss_rows = result_output("loss_rows", c->dtype, c->rows, c->result_offset, c->guard);
    if (outputs & KL_OUT_LOSS_ELEMENTS) {
        o->elements =
            matrix(c, "loss_elements", dtype_size(dtype_of_results(c->dtype)), c->elements_stride, c->result_offset);
        operand_poison(&o->elements);
    }
    if (outputs & KL_OUT_GRAD && !c->in_place) {
        o->grad = matrix(c, "grad_input", size, c->grad_stride, c->grad_offset);
        operand_poison(&o->grad);
    }
}

static void make_desc(const kl_case *c, const kl_operands *o, gpuloss_kl_div_desc *d) {
    memset(d, 0, sizeof *d);
    d->input = operand_pointer(&o->input);
    d->input_stride = given_stride(c->input_stride, &o->input);
    d->target = operand_pointer(&o->target);
    d->target_stride = given_stride(c->target_stride, &o->target);
    d->rows = c->rows;
    d->classes = c->classes;
    d->dtype = c->dtype;
    d->input_kind = c->input_kind;
    d->target_kind = c->target_kind;
    d->reduction = c->reduction;
    d->flags = (c->pytorch_zeros ? (unsigned)GPULOSS_PYTORCH_ZEROS : 0u) |
               (c->use_grad_scale ? (unsigned)GPULOSS_USE_GRAD_SCALE : 0u);
    d->eps = c->eps;
    d->grad_scale = c->use_grad_scale ? c->grad_scale : 0;
    d->loss = operand_pointer(&o->loss);
    d->loss_rows = operand_pointer(&o->loss_rows);
    d->loss_elements = operand_pointer(&o->elements);
    d->loss_elements_stride = given_stride(c->elements_stride, &o->elements);
    d->grad_loss = operand_pointer(&o->grad_loss);
    d->grad_loss_rows = operand_pointer(&o->grad_loss_rows);
    if (outputs_of(c) & KL_OUT_GRAD) {
        d->grad_input = operand_pointer(c->in_place ? &o->input : &o->grad);
        d->grad_input_stride = c->in_place ? d->input_stride : given_stride(c->grad_stride, &o->grad);
    }
}

static void add_workspace(const kl_case *c, kl_operands *o, gpuloss_kl_div_desc *d) {
    require_ok(gpuloss_kl_div_workspace(harness_context, d, &d->workspace_bytes));
    o->workspace = workspace_of(d->workspace_bytes, c->guard);
    d->workspace = operand_pointer(&o->workspace);
}

static void take_outputs(const kl_case *c, kl_operands *o, kl_result *result, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    result->loss = take_value(&o->loss, results, r);
    result->loss_rows = take_values(&o->loss_rows, results, r);
    result->loss_elements = take_values(&o->elements, results, r);
    result->grad = take_gradient(&o->grad, &o->input, c->in_place && outputs_of(c) & KL_OUT_GRAD, c->dtype, r);
    operand_unchanged(&o->target, r);
    if (o->workspace.device)
        operand_fetch(&o->workspace, r, false);
}

void kl_run(const kl_case *c, kl_result *result, report *r) {
    gpuloss_kl_div_desc d;
    kl_operands o;
    operand *const all[] = {&o.input,    &o.target,    &o.grad,           &o.loss,     &o.loss_rows,
                            &o.elements, &o.grad_loss, &o.grad_loss_rows, &o.workspace};
    memset(result, 0, sizeof *result);
    memset(&o, 0, sizeof o);
    make_operands(c, &o);
    make_desc(c, &o, &d);
    if (c->own_workspace)
        add_workspace(c, &o, &d);
    if (c->stream) /* the operands were filled on the default stream, which this one does not wait for */
        require_ok(gpuloss_synchronize(harness_context, NULL));
    require_ok(gpuloss_kl_div(harness_context, &d, c->stream));
    require_ok(gpuloss_synchronize(harness_context, c->stream));
    take_outputs(c, &o, result, r);
    operands_free(all, sizeof all / sizeof all[0]);
}

void kl_free(kl_result *result) {
    free(result->loss_rows);
    free(result->loss_elements);
    free(result->grad);
    memset(result, 0, sizeof *result);
}

void kl_reference(const kl_case *c, reference_kl_div *ref) {
    int64_t rows = c->rows, elements = rows * c->classes;
    memset(ref, 0, sizeof *ref);
    ref->rows = c->rows;
    ref->classes = c->classes;
    ref->input = c->input;
    ref->target = c->target;
    ref->input_kind = c->input_kind;
    ref->target_kind = c->target_kind;
    ref->reduction = c->reduction;
    ref->pytorch_zeros = c->pytorch_zeros;
    ref->eps = c->eps;
    ref->grad_scale = gradient_factor(c->use_grad_scale, c->grad_scale, c->grad_loss);
    ref->grad_loss_rows = c->grad_loss_rows;
    ref->loss_rows = require_long_doubles(rows);
    ref->scale_rows = require_long_doubles(rows);
    ref->terms = require_long_doubles(elements);
    ref->grad = require_long_doubles(elements);
    reference_kl_div_run(ref);
}

void kl_reference_free(reference_kl_div *ref) {
    free(ref->loss_rows);
    free(ref->scale_rows);
    free(ref->terms);
    free(ref->grad);
}

/* The sums of a row that its bound is made of. */
typedef struct row_sums {
    long double bounds, magnitudes;
} row_sums;

static row_sums sums_of_row(const kl_case *c, const reference_kl_div *ref, int64_t row) {
    row_sums sums = {0, 0};
    int64_t column;
    for (column = 0; column < c->classes; column++) {
        int64_t i = row * c->classes + column;
        sums.bounds += kl_div_term_bound(c->dtype, ref, c->input[i], c->target[i], ref->terms[i]);
        sums.magnitudes += fabsl(ref->terms[i]);
    }
    return sums;
}

long double kl_loss_bound(const kl_case *c, const reference_kl_div *ref) {
    long double bounds = 0, magnitudes = 0;
    int64_t row;
    for (row = 0; row < c->rows; row++) {
        row_sums sums = sums_of_row(c, ref, row);
        bounds += kl_div_row_bound(c->dtype, c->classes, sums.bounds, sums.magnitudes, ref->loss_rows[row]);
        magnitudes += fabsl(ref->loss_rows[row]);
    }
    return reduced_loss_bound(c->dtype, c->rows, bounds, magnitudes, ref->divisor, ref->loss);
}

static void check_elements(const kl_case *c, const kl_result *result, const reference_kl_div *ref, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    int64_t i;
    for (i = 0; i < c->rows * c->classes; i++) {
        int64_t row = i / c->classes, column = i % c->classes;
        if (result->loss_elements)
            compare_value(r, KL_LOSS_ELEMENTS, c->dtype, results, row, column, result->loss_elements[i], ref->terms[i],
                          kl_div_term_bound(c->dtype, ref, c->input[i], c->target[i], ref->terms[i]));
        if (result->grad) {
            note_ulps(KL_GRAD, c->dtype, result->grad[i], ref->grad[i]);
            compare_value(r, KL_GRAD, c->dtype, c->dtype, row, column, result->grad[i], ref->grad[i],
                          kl_div_gradient_bound(c->dtype, ref, c->input[i], c->target[i], ref->grad[i]));
        }
    }
}

void kl_check(const kl_case *c, const kl_result *result, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    reference_kl_div ref;
    int64_t row;
    kl_reference(c, &ref);
    check_elements(c, result, &ref, r);
    for (row = 0; row < c->rows && result->loss_rows; row++) {
        row_sums sums = sums_of_row(c, &ref, row);
        compare_value(r, KL_LOSS_ROWS, c->dtype, results, row, 0, result->loss_rows[row], ref.loss_rows[row],
                      kl_div_row_bound(c->dtype, c->classes, sums.bounds, sums.magnitudes, ref.loss_rows[row]));
    }
    if (outputs_of(c) & KL_OUT_LOSS)
        compare_value(r, KL_LOSS, c->dtype, results, 0, 0, result->loss, ref.loss, kl_loss_bound(c, &ref));
    kl_reference_free(&ref);
}

void kl_same(const kl_case *c, const kl_result *a, const kl_result *b, report *r) {
    size_t rows = (size_t)c->rows, elements = rows * (size_t)c->classes;
    compare_bits(r, "loss", &a->loss, &b->loss, sizeof a->loss);
    compare_arrays(r, "loss_rows", a->loss_rows, b->loss_rows, rows);
    compare_arrays(r, "loss_elements", a->loss_elements, b->loss_elements, elements);
    compare_arrays(r, "grad_input", a->grad, b->grad, elements);
}

void kl_test(const kl_case *c, const char *what) {
    char text[400];
    kl_result result;
    report r;
    kl_describe(c, what, text, sizeof text);
    r = report_on(text);
    kl_run(c, &result, &r);
    kl_check(c, &result, &r);
    kl_free(&result);
    case_done(&r);
}
