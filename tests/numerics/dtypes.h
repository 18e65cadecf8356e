/* The four element types on the host: conversions that are exact to the bit, and the size of a last place. */
#ifndef TESTS_NUMERICS_DTYPES_H
#define TESTS_NUMERICS_DTYPES_H

#include <stddef.h>
#include <stdint.h>

#include "../../gpuloss.h"

#define DTYPE_COUNT 4
extern const gpuloss_dtype all_dtypes[DTYPE_COUNT];

const char *dtype_name(gpuloss_dtype dtype);
size_t dtype_size(gpuloss_dtype dtype);
int64_t dtype_width(gpuloss_dtype dtype); /* elements of a vector of 16 bytes */

/* The type that losses, lse and upstream gradients have for inputs of this type. */
gpuloss_dtype dtype_of_results(gpuloss_dtype dtype);

/* Stores value at `to` rounded to nearest, ties to even; overflow gives inf, subnormals stay, NaN stays NaN. */
void dtype_store(gpuloss_dtype dtype, void *to, double value);
/* Widens; exact for every value of every type. */
double dtype_load(gpuloss_dtype dtype, const void *from);

/* Round trip: the value that an element of this type holds after value was stored in it. */
double dtype_round(gpuloss_dtype dtype, double value);

/* Distance from |value| to the next larger number of the type, subnormals included. Finite values. */
double dtype_ulp(gpuloss_dtype dtype, double value);
double dtype_max(gpuloss_dtype dtype);
double dtype_min_normal(gpuloss_dtype dtype);

/* Numbers of the type: significand bits with the leading one, and the exponent of the smallest subnormal. */
int dtype_precision(gpuloss_dtype dtype);
int dtype_min_exponent(gpuloss_dtype dtype);

#endif
