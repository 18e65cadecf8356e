#include "compare.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static worst worst_table[QUANTITY_COUNT][DTYPE_COUNT];

const char *quantity_name(quantity q) {
    static const char *const names[QUANTITY_COUNT] = {
        "ce.loss",        "ce.loss_rows",    "ce.lse",           "ce.grad",      "ce.grad_from_lse", "ce.z_loss",
        "ce.z_loss_rows", "ce.grad_targets", "kl.loss",          "kl.loss_rows", "kl.loss_elements", "kl.grad",
        "kl.grad_target", "sparse.loss",     "sparse.loss_rows", "sparse.grad",
    };
    return names[q];
}

static size_t dtype_slot(gpuloss_dtype dtype) {
    size_t i;
    for (i = 0; i < DTYPE_COUNT - 1; i++)
        if (all_dtypes[i] == dtype)
            break;
    return i;
}

report report_on(const char *context) {
    report r;
    memset(&r, 0, sizeof r);
    r.context = context;
    return r;
}

void report_failure(report *r, const char *what, int64_t row, int64_t column, const char *format, ...) {
    if (r->failures++ == 0) {
        int used = snprintf(r->first, sizeof r->first, "%s: %s[%lld, %lld]: ", r->context ? r->context : "", what,
                            (long long)row, (long long)column);
        va_list arguments;
        va_start(arguments, format);
        if (used >= 0 && (size_t)used < sizeof r->first)
            (void)vsnprintf(r->first + used, sizeof r->first - (size_t)used, format, arguments);
        va_end(arguments);
    }
}

static void note(quantity q, gpuloss_dtype dtype, long double fraction) {
    worst *w = &worst_table[q][dtype_slot(dtype)];
    w->compared++;
    if (fraction > w->fraction)
        w->fraction = fraction;
}

void note_ulps(quantity q, gpuloss_dtype dtype, double got, long double want) {
    gpuloss_dtype results = dtype_of_results(dtype);
    worst *w = &worst_table[q][dtype_slot(dtype)];
    double rounded = dtype_round(dtype, (double)want), ulps;
    double least = dtype_min_normal(results) * ldexp(1, dtype_precision(results));
    if (!isfinite(rounded) || !isfinite(got) || fabsl(want) < (long double)least)
        return;
    ulps = fabs(got - rounded) / dtype_ulp(dtype, rounded);
    w->ulps_noted = true;
    if (ulps > w->ulps)
        w->ulps = ulps;
}

bool compare_value(report *r, quantity q, gpuloss_dtype dtype, gpuloss_dtype stored, int64_t row, int64_t column,
                   double got, long double want, long double bound) {
    long double error, largest = (long double)dtype_max(stored);
    if (isnan(want) || isinf(want)) {
        if (isnan(want) ? isnan(got) : (long double)got == want)
            return true;
    } else if (isinf(got)) {
        if (fabsl(want) + bound >= largest && (got > 0) == (want > 0))
            return true;
    } else if (!isnan(got)) {
        error = fabsl((long double)got - want);
        note(q, dtype, error == 0 ? 0 : error / bound);
        if (error <= bound)
            return true;
    }
    report_failure(r, quantity_name(q), row, column, "got %.17g, want %.17Lg, off by %.3Lg where %.3Lg is allowed", got,
                   want, fabsl((long double)got - want), bound);
    return false;
}

bool compare_within(report *r, const char *what, int64_t row, long double difference, long double allowed) {
    if (fabsl(difference) <= allowed)
        return true;
    report_failure(r, what, row, 0, "off by %.3Lg where %.3Lg is allowed", fabsl(difference), allowed);
    return false;
}

bool compare_divisor(report *r, gpuloss_dtype dtype, double got, long double want) {
    const double rounded = dtype == GPULOSS_F64 ? (double)want : (double)(float)want;
    if (memcmp(&got, &rounded, sizeof got) == 0)
        return true;
    report_failure(r, "divisor", 0, 0, "got %.17g, want %.17g", got, rounded);
    return false;
}

bool compare_count(report *r, const char *what, int64_t got, int64_t want) {
    if (got == want)
        return true;
    report_failure(r, what, 0, 0, "got %lld, want %lld", (long long)got, (long long)want);
    return false;
}

void fill_bits(void *memory, size_t bytes, uint16_t bits) {
    unsigned char *to = (unsigned char *)memory, from[2];
    size_t i;
    memcpy(from, &bits, sizeof from);
    for (i = 0; i < bytes; i++)
        to[i] = from[i % 2];
}

bool is_poison(const void *element, size_t size) {
    unsigned char poison[8];
    fill_bits(poison, sizeof poison, POISON_BITS);
    return memcmp(element, poison, size) == 0;
}

static bool compare_bytes(report *r, const char *what, const char *complaint, const void *first, const void *second,
                          size_t bytes) {
    const unsigned char *a = (const unsigned char *)first, *b = (const unsigned char *)second;
    size_t i;
    if (bytes == 0 || memcmp(a, b, bytes) == 0)
        return true;
    for (i = 0; a[i] == b[i]; i++)
        ;
    report_failure(r, what, 0, (int64_t)i, "%s: byte %zu of %zu was %02x, is %02x", complaint, i, bytes, a[i], b[i]);
    return false;
}

bool compare_untouched(report *r, const char *what, const void *before, const void *after, size_t bytes) {
    return compare_bytes(r, what, "memory was written that does not belong to the output", before, after, bytes);
}

bool compare_bits(report *r, const char *what, const void *first, const void *second, size_t bytes) {
    return compare_bytes(r, what, "the bits differ", first, second, bytes);
}

bool compare_written(report *r, const char *what, int64_t row, const void *elements, int64_t count, size_t size) {
    const unsigned char *at = (const unsigned char *)elements;
    int64_t i;
    for (i = 0; i < count; i++, at += size)
        if (is_poison(at, size)) {
            report_failure(r, what, row, i, "was not written");
            return false;
        }
    return true;
}

const worst *worst_of(quantity q, gpuloss_dtype dtype) {
    return &worst_table[q][dtype_slot(dtype)];
}

void worst_reset(void) {
    memset(worst_table, 0, sizeof worst_table);
}

void worst_print(void) {
    int q;
    size_t i;
    printf("worst errors\n%-18s %-5s %12s %16s %14s\n", "quantity", "dtype", "values", "error/bound", "gradient ulps");
    for (q = 0; q < QUANTITY_COUNT; q++)
        for (i = 0; i < DTYPE_COUNT; i++) {
            const worst *w = &worst_table[q][i];
            char ulps[32] = "-";
            if (w->compared == 0)
                continue;
            if (w->ulps_noted)
                (void)snprintf(ulps, sizeof ulps, "%.2f", w->ulps);
            printf("%-18s %-5s %12lld %16.4Lf %14s\n", quantity_name((quantity)q), dtype_name(all_dtypes[i]),
                   (long long)w->compared, w->fraction, ulps);
        }
}
