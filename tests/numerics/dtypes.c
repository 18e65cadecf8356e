#include "dtypes.h"

#include <math.h>
#include <string.h>

const gpuloss_dtype all_dtypes[DTYPE_COUNT] = {GPULOSS_F32, GPULOSS_F64, GPULOSS_F16, GPULOSS_BF16};

typedef struct format {
    gpuloss_dtype dtype;
    const char *name;
    size_t size;
    int precision;    /* significand bits with the leading one */
    int min_exponent; /* the smallest subnormal is 2^min_exponent */
    double max, min_normal;
} format;

static const format formats[DTYPE_COUNT] = {
    {GPULOSS_F32, "f32", 4, 24, -149, 0x1.fffffep127, 0x1p-126},
    {GPULOSS_F64, "f64", 8, 53, -1074, 0x1.fffffffffffffp1023, 0x1p-1022},
    {GPULOSS_F16, "f16", 2, 11, -24, 0x1.ffcp15, 0x1p-14},
    {GPULOSS_BF16, "bf16", 2, 8, -133, 0x1.fep127, 0x1p-126},
};

static const format *format_of(gpuloss_dtype dtype) {
    size_t i;
    for (i = 0; i < DTYPE_COUNT; i++)
        if (formats[i].dtype == dtype)
            return &formats[i];
    return &formats[0];
}

const char *dtype_name(gpuloss_dtype dtype) {
    return format_of(dtype)->name;
}
size_t dtype_size(gpuloss_dtype dtype) {
    return format_of(dtype)->size;
}

int64_t dtype_width(gpuloss_dtype dtype) {
    return (int64_t)(16 / dtype_size(dtype));
}
int dtype_precision(gpuloss_dtype dtype) {
    return format_of(dtype)->precision;
}
int dtype_min_exponent(gpuloss_dtype dtype) {
    return format_of(dtype)->min_exponent;
}

gpuloss_dtype dtype_of_results(gpuloss_dtype dtype) {
    return dtype == GPULOSS_F64 ? GPULOSS_F64 : GPULOSS_F32;
}

double dtype_max(gpuloss_dtype dtype) {
    return format_of(dtype)->max;
}

double dtype_min_normal(gpuloss_dtype dtype) {
    return format_of(dtype)->min_normal;
}

/* 2^exponent, from the smallest subnormal to the largest one that is finite. ldexp() is slow. */
static double power_of_two(int exponent) {
    const uint64_t bits = exponent >= -1022 ? (uint64_t)(exponent + 1023) << 52 : (uint64_t)1 << (exponent + 1074);
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

double dtype_ulp(gpuloss_dtype dtype, double value) {
    const format *f = format_of(dtype);
    int exponent;
    if (value == 0.0)
        return power_of_two(f->min_exponent);
    (void)frexp(value, &exponent);
    exponent -= f->precision;
    return power_of_two(exponent < f->min_exponent ? f->min_exponent : exponent);
}

/* Rounds to the grid of the format. value / ulp is exact (a power of two), it is below 2^precision or so, and nearbyint
 * in the default rounding mode ties to even. */
static double round_to(const format *f, double value) {
    double ulp, rounded;
    if (!isfinite(value) || value == 0.0)
        return value;
    ulp = dtype_ulp(f->dtype, value);
    rounded = nearbyint(value / ulp) * ulp;
    if (fabs(rounded) > dtype_max(f->dtype))
        return copysign((double)INFINITY, value);
    return rounded;
}

double dtype_round(gpuloss_dtype dtype, double value) {
    return dtype == GPULOSS_F64 ? value : round_to(format_of(dtype), value);
}

/* 16-bit formats: sign, exponent field, fraction. */
static uint16_t encode16(const format *f, double value) {
    int fraction_bits = f->precision - 1;
    uint16_t sign = (uint16_t)(signbit(value) ? 0x8000u : 0u);
    uint16_t all_ones = (uint16_t)(0x7fffu & ~((1u << fraction_bits) - 1u));
    double magnitude;
    int exponent;
    if (isnan(value))
        return (uint16_t)(sign | all_ones | (1u << (fraction_bits - 1)));
    magnitude = fabs(round_to(f, value));
    if (isinf(magnitude))
        return (uint16_t)(sign | all_ones);
    if (magnitude < dtype_min_normal(f->dtype))
        return (uint16_t)(sign | (uint16_t)(magnitude * power_of_two(-f->min_exponent)));
    (void)frexp(magnitude, &exponent);
    /* The significand in units of the last place is 2^fraction_bits + fraction. Adding it to (field - 1) shifted thus
     * puts the leading one into the exponent field. */
    return (uint16_t)(sign + (((unsigned)(exponent - f->precision - f->min_exponent)) << fraction_bits) +
                      (unsigned)(magnitude * power_of_two(f->precision - exponent)));
}

static double decode16(const format *f, uint16_t bits) {
    int fraction_bits = f->precision - 1;
    unsigned field = (bits & 0x7fffu) >> fraction_bits;
    unsigned fraction = bits & ((1u << fraction_bits) - 1u);
    unsigned all_ones = 0x7fffu >> fraction_bits;
    double magnitude;
    if (field == all_ones)
        magnitude = fraction ? (double)NAN : (double)INFINITY;
    else if (field == 0)
        magnitude = (double)fraction * power_of_two(f->min_exponent);
    else
        magnitude = (double)(fraction + (1u << fraction_bits)) * power_of_two((int)field - 1 + f->min_exponent);
    return bits & 0x8000u ? -magnitude : magnitude;
}

void dtype_store(gpuloss_dtype dtype, void *to, double value) {
    if (dtype == GPULOSS_F64) {
        memcpy(to, &value, sizeof value);
    } else if (dtype == GPULOSS_F32) {
        float narrow = (float)value;
        memcpy(to, &narrow, sizeof narrow);
    } else {
        uint16_t bits = encode16(format_of(dtype), value);
        memcpy(to, &bits, sizeof bits);
    }
}

double dtype_load(gpuloss_dtype dtype, const void *from) {
    if (dtype == GPULOSS_F64) {
        double value;
        memcpy(&value, from, sizeof value);
        return value;
    }
    if (dtype == GPULOSS_F32) {
        float value;
        memcpy(&value, from, sizeof value);
        return (double)value;
    } else {
        uint16_t bits;
        memcpy(&bits, from, sizeof bits);
        return decode16(format_of(dtype), bits);
    }
}
