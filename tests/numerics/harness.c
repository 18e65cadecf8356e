#include "harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { max_printed_failures = 8 };

gpuloss_context *harness_context;
bool harness_small, harness_stop;
static char reason[1024];
static int failed_cases;
static bool is_used;

bool harness_open(void) {
    gpuloss_create_desc desc;
    gpuloss_status status;
    memset(&desc, 0, sizeof desc);
    desc.driver_path = getenv("GPULOSS_DRIVER");
    desc.flags = GPULOSS_CHECK_POINTERS;
    status = gpuloss_create(&harness_context, &desc);
    if (status == GPULOSS_OK)
        return true;
    (void)snprintf(reason, sizeof reason, "%s: %s", gpuloss_status_name(status), gpuloss_last_error());
    harness_context = NULL;
    return gpuloss_group_of(status) == GPULOSS_GROUP_ENVIRONMENT;
}

void harness_close(void) {
    gpuloss_destroy(harness_context);
    harness_context = NULL;
}

bool harness_use(void) {
    is_used = true;
    return harness_context != NULL;
}

bool harness_renew(void) {
    if (!is_used)
        return true;
    is_used = false;
    harness_close();
    return harness_open();
}

const char *harness_reason(void) {
    return reason;
}

void require_ok(gpuloss_status status) {
    if (status != GPULOSS_OK)
        fail_msg("%s: %s", gpuloss_status_name(status), gpuloss_last_error());
}

void *require_memory(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "out of host memory: %zu bytes\n", bytes);
        abort();
    }
    return memory;
}

double *require_doubles(int64_t count) {
    return (double *)require_memory((size_t)count * sizeof(double));
}

long double *require_long_doubles(int64_t count) {
    return (long double *)require_memory((size_t)count * sizeof(long double));
}

void case_done(const report *r) {
    if (r->failures == 0)
        return;
    print_error("%s (%d failures)\n", r->first, r->failures);
    if (harness_stop)
        exit(1);
    if (++failed_cases == max_printed_failures)
        test_done();
}

void test_done(void) {
    int failed = failed_cases;
    failed_cases = 0;
    if (failed)
        fail_msg("%d cases failed", failed);
}

operand operand_new(const char *name, size_t size, int64_t rows, int64_t classes, int64_t stride, int offset,
                    size_t guard) {
    operand o;
    size_t elements = rows > 0 ? (size_t)((rows - 1) * stride + classes) : 1;
    memset(&o, 0, sizeof o);
    o.name = name;
    o.rows = rows;
    o.classes = classes;
    o.stride = stride;
    o.size = size;
    o.start = guard + (size_t)offset * size;
    o.bytes = o.start + elements * size + guard;
    o.before = (unsigned char *)require_memory(o.bytes);
    o.after = (unsigned char *)require_memory(o.bytes);
    fill_bits(o.before, o.bytes, MOAT_BITS);
    {
        void *device = NULL;
        require_ok(gpuloss_alloc(harness_context, &device, o.bytes));
        o.device = (unsigned char *)device;
    }
    return o;
}

void operand_free(operand *o) {
    if (o->device)
        require_ok(gpuloss_free(harness_context, o->device));
    free(o->before);
    free(o->after);
    memset(o, 0, sizeof *o);
}

void *operand_pointer(const operand *o) {
    return o->device ? o->device + o->start : NULL;
}

static size_t at(const operand *o, int64_t row, int64_t column) {
    return o->start + (size_t)(row * o->stride + column) * o->size;
}

void operand_upload(const operand *o) {
    require_ok(gpuloss_upload(harness_context, o->device, o->before, o->bytes, NULL));
}

void operand_put(operand *o, gpuloss_dtype dtype, const double *values) {
    int64_t row, c;
    for (row = 0; row < o->rows; row++)
        for (c = 0; c < o->classes; c++)
            dtype_store(dtype, o->before + at(o, row, c), values[row * o->classes + c]);
    operand_upload(o);
}

static void store_index(unsigned char *to, size_t size, int64_t value) {
    int32_t i32 = (int32_t)value;
    int16_t i16 = (int16_t)value;
    uint8_t u8 = (uint8_t)value;
    if (size == sizeof u8)
        memcpy(to, &u8, sizeof u8);
    else if (size == sizeof i16)
        memcpy(to, &i16, sizeof i16);
    else if (size == sizeof i32)
        memcpy(to, &i32, sizeof i32);
    else
        memcpy(to, &value, sizeof value);
}

void operand_put_indices(operand *o, const int64_t *values) {
    int64_t row;
    for (row = 0; row < o->rows * o->classes; row++)
        store_index(o->before + at(o, 0, row), o->size, values[row]);
    operand_upload(o);
}

void operand_poison(operand *o) {
    int64_t row;
    for (row = 0; row < o->rows; row++)
        fill_bits(o->before + at(o, row, 0), (size_t)o->classes * o->size, POISON_BITS);
    operand_upload(o);
}

void operand_download(operand *o) {
    require_ok(gpuloss_download(harness_context, o->after, o->device, o->bytes, NULL));
}

void operand_fetch(operand *o, report *r, bool written) {
    size_t free_from = 0;
    int64_t row;
    operand_download(o);
    for (row = 0; row < o->rows; row++) {
        size_t begin = at(o, row, 0);
        compare_untouched(r, o->name, o->before + free_from, o->after + free_from, begin - free_from);
        free_from = begin + (size_t)o->classes * o->size;
        if (written)
            compare_written(r, o->name, row, o->after + begin, o->classes, o->size);
    }
    compare_untouched(r, o->name, o->before + free_from, o->after + free_from, o->bytes - free_from);
}

void operand_unchanged(operand *o, report *r) {
    operand_download(o);
    compare_untouched(r, o->name, o->before, o->after, o->bytes);
}

double operand_value(const operand *o, gpuloss_dtype dtype, int64_t row, int64_t column) {
    return dtype_load(dtype, o->after + at(o, row, column));
}

int64_t operand_integer(const operand *o, int64_t row) {
    int64_t value;
    memcpy(&value, o->after + at(o, 0, row), sizeof value);
    return value;
}

int64_t stride_of(stride_kind kind, int64_t classes, size_t size) {
    int64_t vector = (int64_t)(16 / size);
    switch (kind) {
    case STRIDE_ONE_MORE:
        return classes + 1;
    case STRIDE_13_MORE:
        return classes + 13;
    case STRIDE_16_BYTES:
        return (classes + vector - 1) / vector * vector;
    case STRIDE_PACKED:
    case STRIDE_KINDS:
    default:
        return classes;
    }
}
