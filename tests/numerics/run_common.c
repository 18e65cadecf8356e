#include "run_common.h"

#include "device_bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const gpuloss_reduction all_reductions[REDUCTION_COUNT] = {GPULOSS_NONE, GPULOSS_SUM, GPULOSS_MEAN, GPULOSS_BATCHMEAN};

const char *reduction_name(gpuloss_reduction reduction) {
    static const char *const names[] = {"unset", "none", "sum", "mean", "batchmean"};
    return names[reduction];
}

size_t index_size(gpuloss_index_type type) {
    static const size_t sizes[] = {0, 8, 4, 2, 1};
    return sizes[type];
}

static operand result_new(const char *name, gpuloss_dtype dtype, int64_t count, int offset, size_t guard) {
    return operand_new(name, dtype_size(dtype_of_results(dtype)), 1, count, count, offset, guard);
}

double *quarters(int64_t count) {
    double *values = require_doubles(count);
    int64_t i;
    for (i = 0; i < count; i++)
        values[i] = (double)(i % 9 - 4) / 4;
    return values;
}

operand result_input(const char *name, gpuloss_dtype dtype, int64_t count, int offset, size_t guard,
                     const double *values) {
    operand o = result_new(name, dtype, count, offset, guard);
    operand_put(&o, dtype_of_results(dtype), values);
    return o;
}

operand result_output(const char *name, gpuloss_dtype dtype, int64_t count, int offset, size_t guard) {
    operand o = result_new(name, dtype, count, offset, guard);
    operand_poison(&o);
    return o;
}

operand workspace_of(size_t bytes, size_t guard) {
    operand o;
    memset(&o, 0, sizeof o);
    if (bytes > 0) {
        o = operand_new("workspace", 1, 1, (int64_t)bytes, (int64_t)bytes, 0, guard);
        operand_poison(&o);
    }
    return o;
}

void operand_zero(operand *o) {
    if (!o->device)
        return;
    memset(o->before + o->start, 0, o->size);
    operand_upload(o);
}

void *from_row(const void *array, int64_t row, int64_t stride, size_t size) {
    return array ? (char *)(uintptr_t)array + row * stride * (int64_t)size : NULL;
}

void operands_free(operand *const *operands, size_t count) {
    size_t i;
    for (i = 0; i < count; i++)
        operand_free(operands[i]);
}

void operands_unchanged(operand *const *operands, size_t count, report *r) {
    size_t i;
    for (i = 0; i < count; i++)
        if (operands[i]->device)
            operand_unchanged(operands[i], r);
}

int64_t given_stride(stride_kind kind, const operand *o) {
    return kind == STRIDE_PACKED ? 0 : o->stride;
}

static double *widened(const operand *o, gpuloss_dtype dtype) {
    int64_t row, column;
    double *values = require_doubles(o->rows * o->classes);
    for (row = 0; row < o->rows; row++)
        for (column = 0; column < o->classes; column++)
            values[row * o->classes + column] = operand_value(o, dtype, row, column);
    return values;
}

double *take_values(operand *o, gpuloss_dtype dtype, report *r) {
    if (!o->device)
        return NULL;
    operand_fetch(o, r, true);
    return widened(o, dtype);
}

double take_value(operand *o, gpuloss_dtype dtype, report *r) {
    if (!o->device)
        return 0;
    operand_fetch(o, r, true);
    return operand_value(o, dtype, 0, 0);
}

int64_t *take_integers(operand *o, report *r) {
    int64_t i, *values;
    if (!o->device)
        return NULL;
    operand_fetch(o, r, true);
    values = (int64_t *)require_memory((size_t)o->classes * sizeof *values);
    for (i = 0; i < o->classes; i++)
        values[i] = operand_integer(o, i);
    return values;
}

int64_t take_integer(operand *o, report *r) {
    if (!o->device)
        return 0;
    operand_fetch(o, r, true);
    return operand_integer(o, 0);
}

double *take_gradient(operand *grad, operand *input, bool over_input, gpuloss_dtype dtype, report *r) {
    if (over_input) {
        operand_fetch(input, r, false);
        return widened(input, dtype);
    }
    operand_unchanged(input, r);
    return take_values(grad, dtype, r);
}

long double gradient_factor(bool use_grad_scale, double grad_scale, const double *grad_loss) {
    return (use_grad_scale ? (long double)grad_scale : 1) * (grad_loss ? (long double)*grad_loss : 1);
}

/* An operand that the call wrote. On the device: its contents before the call, and the bits that the call wrote. */
typedef struct written {
    operand *o;
    void *before, *bits;
} written;

static void *on_device(const void *contents, size_t bytes) {
    void *device = NULL;
    require_ok(gpuloss_alloc(harness_context, &device, bytes));
    require_ok(gpuloss_upload(harness_context, device, contents, bytes, NULL));
    return device;
}

static size_t written_of(const made_call *made, written *all) {
    size_t i, count = 0;
    for (i = 0; i < made->count; i++) {
        operand *o = made->operands[i];
        if (!o->device)
            continue;
        operand_download(o);
        if (memcmp(o->before, o->after, o->bytes) == 0)
            continue;
        all[count].o = o;
        all[count].before = on_device(o->before, o->bytes);
        all[count++].bits = on_device(o->after, o->bytes);
    }
    return count;
}

static void call_again(const made_call *made, const device_bytes *d, const written *all, size_t count, int run,
                       struct CUstream_st *stream) {
    size_t i;
    for (i = 0; i < count; i++)
        device_bytes_copy(d, all[i].o->device, all[i].before, all[i].o->bytes);
    if (stream) /* it does not wait for the default stream */
        require_ok(gpuloss_synchronize(harness_context, NULL));
    require_ok(made->function(harness_context, run % 3 == 1 ? made->desc_with_workspace : made->desc, stream));
    require_ok(gpuloss_synchronize(harness_context, stream));
    for (i = 0; i < count; i++)
        device_bytes_compare(d, all[i].o->device, all[i].bits, all[i].o->bytes);
}

/* Where the bits of a run differ. */
static void report_bits(const written *all, size_t count, int run, report *r) {
    char what[64];
    size_t i;
    for (i = 0; i < count; i++) {
        operand *o = all[i].o;
        unsigned char *bits = (unsigned char *)require_memory(o->bytes);
        operand_download(o);
        require_ok(gpuloss_download(harness_context, bits, all[i].bits, o->bytes, NULL));
        (void)snprintf(what, sizeof what, "%s of run %d", o->name, run);
        compare_bits(r, what, bits, o->after, o->bytes);
        free(bits);
    }
}

void repeat_call(const made_call *made, int runs, report *r) {
    written *all = (written *)require_memory(made->count * sizeof *all);
    size_t i, count = written_of(made, all);
    struct CUstream_st *stream = NULL;
    device_bytes d;
    int run;
    require_ok(gpuloss_stream_create(harness_context, &stream));
    device_bytes_open(&d);
    for (run = 1; run < runs && r->failures == 0; run++) {
        call_again(made, &d, all, count, run, run % 4 == 2 ? stream : NULL);
        if (device_bytes_differ(&d)) {
            report_bits(all, count, run, r);
            if (r->failures == 0)
                fail_msg("run %d: bits differ on the device, but not on the host", run);
        }
    }
    device_bytes_close(&d);
    require_ok(gpuloss_stream_destroy(harness_context, stream));
    for (i = 0; i < count; i++) {
        require_ok(gpuloss_free(harness_context, all[i].before));
        require_ok(gpuloss_free(harness_context, all[i].bits));
    }
    free(all);
}
