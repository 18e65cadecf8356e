/* Compares results with expected ones: values, bits, and memory that must not change. Needs no GPU. */
#ifndef TESTS_NUMERICS_COMPARE_H
#define TESTS_NUMERICS_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dtypes.h"

typedef enum quantity {
    CE_LOSS,
    CE_LOSS_ROWS,
    CE_LSE,
    CE_GRAD,
    CE_GRAD_FROM_LSE,
    CE_Z_LOSS,
    CE_Z_LOSS_ROWS,
    CE_GRAD_TARGETS,
    KL_LOSS,
    KL_LOSS_ROWS,
    KL_LOSS_ELEMENTS,
    KL_GRAD,
    KL_GRAD_TARGET,
    SPARSE_LOSS,
    SPARSE_LOSS_ROWS,
    SPARSE_GRAD,
    QUANTITY_COUNT
} quantity;
const char *quantity_name(quantity q);

/* Collects the failures of one case, with their positions: "context: quantity[row, column]: got ..., want ...". */
typedef struct report {
    const char *context;
    int failures;
    char first[1024]; /* the first failure */
} report;
report report_on(const char *context);

void report_failure(report *r, const char *what, int64_t row, int64_t column, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 5, 6)))
#endif
    ;

/* got, read from an output of element type `stored`, against want. A NaN wants a NaN, an infinity the same infinity, a
 * number one within bound. If want + bound passes the largest number of the type, its infinity is right too. Notes the
 * error as a fraction of the bound under q and the dtype of the input. */
bool compare_value(report *r, quantity q, gpuloss_dtype dtype, gpuloss_dtype stored, int64_t row, int64_t column,
                   double got, long double want, long double bound);
/* Notes the distance of a gradient from the rounded exact one, in units in the last place of its type. Gradients small
 * enough to show a flushed intermediate result are left out. */
void note_ulps(quantity q, gpuloss_dtype dtype, double got, long double want);
bool compare_within(report *r, const char *what, int64_t row, long double difference, long double allowed);
/* The divisor of a mean is exact, and rounded once. */
bool compare_divisor(report *r, gpuloss_dtype dtype, double got, long double want);
bool compare_count(report *r, const char *what, int64_t got, int64_t want);

/* Outputs are filled with this before a call: a NaN of every type that no arithmetic gives. */
#define POISON_BITS 0xfff5u
/* Memory around and between the rows of inputs has this NaN, so that reading it shows. */
#define MOAT_BITS 0xfff3u
void fill_bits(void *memory, size_t bytes, uint16_t bits);
/* Whether an element is still POISON_BITS. */
bool is_poison(const void *element, size_t size);

/* Checks that memory which no kernel may write is as it was. */
bool compare_untouched(report *r, const char *what, const void *before, const void *after, size_t bytes);
/* Checks that the elements of a row were all written. */
bool compare_written(report *r, const char *what, int64_t row, const void *elements, int64_t count, size_t size);
bool compare_bits(report *r, const char *what, const void *first, const void *second, size_t bytes);

/* The worst errors seen, as fractions of their bounds, and the worst distance given to note_ulps. */
typedef struct worst {
    long double fraction;
    double ulps;
    bool ulps_noted;
    int64_t compared;
} worst;
const worst *worst_of(quantity q, gpuloss_dtype dtype);
void worst_reset(void);
void worst_print(void);

#endif
