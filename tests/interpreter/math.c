/* Single operations with any rounding mode, and conversions. The processor rounds: operands pass through volatile
 * objects so that nothing is computed outside the span in which the mode is set. */
#include "execute.h"

#include <fenv.h>
#include <math.h>

static int mode_of(int round) {
    switch (round) {
    case RND_RZ:
    case RND_RZI:
        return FE_TOWARDZERO;
    case RND_RM:
    case RND_RMI:
        return FE_DOWNWARD;
    case RND_RP:
    case RND_RPI:
        return FE_UPWARD;
    default:
        return FE_TONEAREST;
    }
}

static uint32_t canonical(float r) {
    return r != r ? 0x7fffffffu : ptxsim_bits_f32(r);
}

#define ROUNDED_F32(expression)                                                                                        \
    volatile float r;                                                                                                  \
    fesetround(mode_of(round));                                                                                        \
    r = expression;                                                                                                    \
    fesetround(FE_TONEAREST);                                                                                          \
    return canonical(r);
#define ROUNDED_F64(expression)                                                                                        \
    volatile double r;                                                                                                 \
    fesetround(mode_of(round));                                                                                        \
    r = expression;                                                                                                    \
    fesetround(FE_TONEAREST);                                                                                          \
    return ptxsim_bits_f64(r);

uint32_t ptxsim_f32_add(uint32_t a, uint32_t b, int round) {
    volatile float x = ptxsim_f32(a), y = ptxsim_f32(b);
    ROUNDED_F32(x + y)
}
uint32_t ptxsim_f32_mul(uint32_t a, uint32_t b, int round) {
    volatile float x = ptxsim_f32(a), y = ptxsim_f32(b);
    ROUNDED_F32(x * y)
}
uint32_t ptxsim_f32_fma(uint32_t a, uint32_t b, uint32_t c, int round) {
    volatile float x = ptxsim_f32(a), y = ptxsim_f32(b), z = ptxsim_f32(c);
    ROUNDED_F32(fmaf(x, y, z))
}
uint32_t ptxsim_f32_div(uint32_t a, uint32_t b, int round) {
    volatile float x = ptxsim_f32(a), y = ptxsim_f32(b);
    ROUNDED_F32(x / y)
}
uint32_t ptxsim_f32_sqrt(uint32_t a, int round) {
    volatile float x = ptxsim_f32(a);
    ROUNDED_F32(sqrtf(x))
}
/* For two NaN operands the processor returns the first, a GPU the second. */
uint64_t ptxsim_f64_add(uint64_t a, uint64_t b, int round) {
    if (isnan(ptxsim_f64(b)))
        return b | 1ull << 51;
    volatile double x = ptxsim_f64(a), y = ptxsim_f64(b);
    ROUNDED_F64(x + y)
}
uint64_t ptxsim_f64_mul(uint64_t a, uint64_t b, int round) {
    volatile double x = ptxsim_f64(a), y = ptxsim_f64(b);
    ROUNDED_F64(x * y)
}
uint64_t ptxsim_f64_fma(uint64_t a, uint64_t b, uint64_t c, int round) {
    volatile double x = ptxsim_f64(a), y = ptxsim_f64(b), z = ptxsim_f64(c);
    ROUNDED_F64(fma(x, y, z))
}
uint64_t ptxsim_f64_div(uint64_t a, uint64_t b, int round) {
    volatile double x = ptxsim_f64(a), y = ptxsim_f64(b);
    ROUNDED_F64(x / y)
}
uint64_t ptxsim_f64_sqrt(uint64_t a, int round) {
    volatile double x = ptxsim_f64(a);
    ROUNDED_F64(sqrt(x))
}

float ptxsim_half_to_float(uint32_t h) {
    uint32_t sign = (h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31)
        return ptxsim_f32(sign | 0x7f800000u | fraction << 13);
    if (exponent)
        return ptxsim_f32(sign | (exponent + 112) << 23 | fraction << 13);
    float small = (float)fraction * 0x1p-24f;
    return sign ? -small : small;
}

/* a * b is exact for the formats of this function. The sum gets its last bit set if it is inexact. Rounding it once
 * more to a shorter format then equals rounding the exact sum. */
double ptxsim_fma_odd(double a, double b, double c) {
    double p = a * b, s = p + c;
    if (!isfinite(s))
        return s;
    double part = s - p, error = (p - (s - part)) + (c - part);
    uint64_t bits = ptxsim_bits_f64(s);
    if (error == 0 || bits & 1)
        return s;
    return ptxsim_f64((error > 0) == (s > 0) ? bits + 1 : bits - 1);
}

/* Rounds to a 16-bit format with `fraction` fraction bits and the lowest exponent `lowest`. */
static uint32_t pack(double x, int round, int fraction, int lowest) {
    uint32_t sign = (uint32_t)(ptxsim_bits_f64(x) >> 48) & 0x8000;
    uint32_t infinity = (0x7fffu >> fraction) << fraction;
    if (x != x)
        return 0x7fff;
    if (isinf(x))
        return sign | infinity;
    if (x == 0)
        return sign;
    int exponent;
    double magnitude = fabs(x);
    frexp(magnitude, &exponent);
    exponent = exponent - 1 < lowest ? lowest : exponent - 1;
    double scaled = ldexp(magnitude, fraction - exponent), whole = floor(scaled), rest = scaled - whole;
    uint64_t m = (uint64_t)whole;
    bool up = false;
    if (round == RND_RP || round == RND_RM)
        up = rest > 0 && (round == RND_RP) == !sign;
    else if (round != RND_RZ)
        up = rest > 0.5 || (rest >= 0.5 && m & 1);
    uint64_t encoded = ((uint64_t)(exponent - lowest) << fraction) + m + up;
    if (encoded >= infinity) {
        bool away = round == RND_RP ? !sign : round == RND_RM ? sign != 0 : round != RND_RZ;
        encoded = away ? infinity : infinity - 1;
    }
    return sign | (uint32_t)encoded;
}

/* To nearest, by integer arithmetic: the way most conversions go. */
uint32_t ptxsim_float_to_half(uint32_t bits) {
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return 0x7fff;
    if (magnitude >= 0x477ff000)
        return sign | 0x7c00;
    if (magnitude >= 0x38800000)
        return sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    if (magnitude < 0x33000000)
        return sign;
    uint32_t shift = 126 - (magnitude >> 23), m = (magnitude & 0x7fffff) | 0x800000;
    uint32_t whole = m >> shift, rest = m & ((1u << shift) - 1), middle = 1u << (shift - 1);
    return sign | (whole + (rest > middle || (rest == middle && whole & 1)));
}

uint32_t ptxsim_double_to_half(double x, int round) {
    return pack(x, round, 10, -14);
}

uint32_t ptxsim_double_to_bf16(double x, int round) {
    return pack(x, round, 7, -126);
}

static double round_to_integer(double x, int round) {
    switch (round) {
    case RND_RZI:
    case RND_RZ:
        return trunc(x);
    case RND_RMI:
    case RND_RM:
        return floor(x);
    case RND_RPI:
    case RND_RP:
        return ceil(x);
    default:
        return nearbyint(x);
    }
}

static uint64_t float_to_integer(double x, int from, int to, int round) {
    uint32_t bits = ptxsim_bits(to);
    uint64_t high_bit = 1ull << (bits - 1);
    if (x != x)
        return from == T_F64 || bits == 64 ? high_bit : 0;
    double r = round_to_integer(x, round), limit = ldexp(1.0, (int)bits - 1);
    if (ptxsim_is_signed(to)) {
        if (r >= limit)
            return high_bit - 1;
        return r < -limit ? high_bit : (uint64_t)(int64_t)r;
    }
    if (r >= 2 * limit)
        return high_bit | (high_bit - 1);
    return r > 0 ? (uint64_t)r : 0;
}

static uint64_t integer_to_integer(uint64_t value, int from, int to, bool sat) {
    uint32_t shift = 64 - ptxsim_bits(from), bits = ptxsim_bits(to);
    bool negative = ptxsim_is_signed(from) && ptxsim_signed(value, shift) < 0;
    uint64_t v = ptxsim_is_signed(from) ? (uint64_t)ptxsim_signed(value, shift) : value << shift >> shift;
    uint64_t high_bit = 1ull << (bits - 1);
    if (!sat)
        return v;
    if (!ptxsim_is_signed(to))
        return negative ? 0 : v > (high_bit | (high_bit - 1)) ? high_bit | (high_bit - 1) : v;
    if (negative)
        return (int64_t)v < -(int64_t)(high_bit - 1) - 1 ? high_bit : v;
    return v > high_bit - 1 ? high_bit - 1 : v;
}

/* The 64 bits of a long double's fraction hold every integer, so the one conversion after it rounds once. */
static uint64_t integer_to_float(uint64_t value, int from, int to, int round) {
    uint32_t shift = 64 - ptxsim_bits(from);
    volatile long double exact =
        ptxsim_is_signed(from) ? (long double)ptxsim_signed(value, shift) : (long double)(value << shift >> shift);
    if (to == T_F16)
        return ptxsim_double_to_half((double)exact, round);
    if (to == T_BF16)
        return ptxsim_double_to_bf16(ptxsim_fma_odd(1, (double)exact, (double)(exact - (long double)(double)exact)),
                                     round);
    if (round > RND_RN)
        fesetround(mode_of(round));
    volatile float single = (float)exact;
    volatile double twice = (double)exact;
    if (round > RND_RN)
        fesetround(FE_TONEAREST);
    return to == T_F32 ? ptxsim_bits_f32(single) : ptxsim_bits_f64(twice);
}

static uint64_t float_to_float(double x, int from, int to, int round, uint32_t flags) {
    bool integral = round >= RND_RNI && round <= RND_RPI;
    uint64_t r;
    if (integral && x == x)
        x = copysign(round_to_integer(x, round), x);
    if (flags & F_SAT)
        x = x >= 1 ? 1 : x > 0 ? x : 0;
    if (to == T_F64)
        return x != x && flags & F_FTZ ? 0x7fffffffe0000000ull : ptxsim_bits_f64(x);
    if (from == T_F64 && x != x && !(flags & F_SAT)) {
        uint64_t bits = ptxsim_bits_f64(x);
        return to == T_F32 ? (bits >> 32 & 0x80000000u) | 0x7fc00000u | (bits >> 29 & 0x3fffff)
                           : (bits >> 48 & 0x8000) | 0x7e00u | (bits >> 42 & 0x1ff);
    }
    if (integral || from == to)
        round = RND_RN;
    if (to == T_F32) {
        volatile double exact = x;
        if (round > RND_RN)
            fesetround(mode_of(round));
        volatile float single = (float)exact;
        if (round > RND_RN)
            fesetround(FE_TONEAREST);
        r = canonical(single);
        return flags & F_FTZ ? ptxsim_flush(r) : r;
    }
    if (flags & F_RELU && x <= 0)
        x = 0;
    return to == T_F16 ? ptxsim_double_to_half(x, round) : ptxsim_double_to_bf16(x, round);
}

/* The result is not cut to the destination's width. */
uint64_t ptxsim_convert(uint64_t value, int from, int to, int round, uint32_t flags) {
    double x;
    if (!ptxsim_is_float(from))
        return ptxsim_is_float(to) ? integer_to_float(value, from, to, round)
                                   : integer_to_integer(value, from, to, flags & F_SAT);
    switch (from) {
    case T_F16:
        x = (double)ptxsim_half_to_float(value & 0xffff);
        break;
    case T_BF16:
        x = (double)ptxsim_f32(value << 16);
        break;
    case T_F32:
        x = (double)ptxsim_f32(flags & F_FTZ ? ptxsim_flush(value) : value);
        break;
    default:
        x = ptxsim_f64(value);
        break;
    }
    return ptxsim_is_float(to) ? float_to_float(x, from, to, round, flags) : float_to_integer(x, from, to, round);
}
