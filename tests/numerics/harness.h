/* The GPU side of the numerics tests: one context, and operands with moats around them. */
#ifndef TESTS_NUMERICS_HARNESS_H
#define TESTS_NUMERICS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compare.h"
#include "dtypes.h"

/* The context of the run, or NULL when there is no GPU; harness_reason then says why. */
extern gpuloss_context *harness_context;
/* Shapes for a slow executor of the kernels; and the first case that fails ends the program. */
extern bool harness_small, harness_stop;

bool harness_open(void);
void harness_close(void);
/* Replaces a context that a test has used. The variants of all groups would take gigabytes. */
bool harness_renew(void);
const char *harness_reason(void);

/* First in every test that needs the GPU. */
bool harness_use(void);
#define REQUIRE_GPU()                                                                                                  \
    do {                                                                                                               \
        if (!harness_use())                                                                                            \
            skip();                                                                                                    \
    } while (0)

/* Fails the running test unless the status is GPULOSS_OK. */
void require_ok(gpuloss_status status);

void *require_memory(size_t bytes);
double *require_doubles(int64_t count);
long double *require_long_doubles(int64_t count);

/* The failures of a case are printed and counted; a test goes on to its next case, and fails at its end. */
void case_done(const report *r);
void test_done(void);

/* A matrix in device memory: [rows, classes] of elements of `size` bytes. Around it lie `guard` bytes, before it also
 * `offset` elements, and between the rows whatever the stride leaves; all that must survive. */
typedef struct operand {
    const char *name;
    int64_t rows, classes, stride; /* stride >= classes */
    size_t size, bytes, start;
    unsigned char *device, *before, *after;
} operand;

operand operand_new(const char *name, size_t size, int64_t rows, int64_t classes, int64_t stride, int offset,
                    size_t guard);
void operand_free(operand *o);
void *operand_pointer(const operand *o); /* NULL for an operand that is all zero: not wanted */

/* Put contents in device memory. */
void operand_put(operand *o, gpuloss_dtype dtype, const double *values);
void operand_put_indices(operand *o, const int64_t *values);
void operand_poison(operand *o);

/* Copies all of an operand's memory: its contents to the device again, or from the device to `after`. */
void operand_upload(const operand *o);
void operand_download(operand *o);

/* Takes the contents back and checks the guards around and between the rows. With `written`, also checks that every
 * element was written. */
void operand_fetch(operand *o, report *r, bool written);
/* Checks that nothing at all was written. */
void operand_unchanged(operand *o, report *r);
double operand_value(const operand *o, gpuloss_dtype dtype, int64_t row, int64_t column);
int64_t operand_integer(const operand *o, int64_t row); /* of elements of 8 bytes */

/* Strides that the tests go through. */
typedef enum stride_kind { STRIDE_PACKED, STRIDE_ONE_MORE, STRIDE_13_MORE, STRIDE_16_BYTES, STRIDE_KINDS } stride_kind;
int64_t stride_of(stride_kind kind, int64_t classes, size_t size);

#endif
