/* The elementary functions that the losses use, for float and double. */
#ifndef GPULOSSI_MATH_CUH
#define GPULOSSI_MATH_CUH

#include "vec16.cuh"
#include <math_constants.h>

template <class N> struct Limits;
template <> struct Limits<float> {
    DEVICE float infinity() { return CUDART_INF_F; }
    DEVICE float nan() { return CUDART_NAN_F; }
};
template <> struct Limits<double> {
    DEVICE double infinity() { return CUDART_INF; }
    DEVICE double nan() { return CUDART_NAN; }
};

DEVICE float larger(float a, float b) {
    return fmaxf(a, b);
}
DEVICE double larger(double a, double b) {
    return fmax(a, b);
}
/* The larger of two numbers, of which b is no NaN. Of doubles it takes 3 instructions, and larger() 8. */
DEVICE float larger_number(float a, float b) {
    return fmaxf(a, b);
}
DEVICE double larger_number(double a, double b) {
    return b > a ? b : a;
}

/* a - b, never fused with a product that gives a: a fused difference would not be 0 where b is the same product,
 * rounded. */
DEVICE float difference(float a, float b) {
    return __fsub_rn(a, b);
}
DEVICE double difference(double a, double b) {
    return __dsub_rn(a, b);
}

/* 2^x; below 2^-126 it is 0. */
DEVICE float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A power of two next to the root of |x|, from 2^-126 to 1. For doubles it is 1. */
template <class N> DEVICE N root_power_of_2(double x) {
    const int exponent = (__double2hiint(x) >> 20 & 2047) - 1023;
    return sizeof(N) == 8 ? N(1) : (N)__int_as_float((127 + max(min(exponent, 0), -252) / 2) << 23);
}
/* 1 / x of a power of two that is a normal float. */
DEVICE double inverse_power_of_2(float x) {
    return __hiloint2double((1023 + 127 - (__float_as_int(x) >> 23)) << 20, 0);
}
DEVICE double inverse_power_of_2(double x) {
    return 1.0 / x;
}

/* x, or some number if x is infinite or a NaN. */
DEVICE float finite_of(float x) {
    const float most = 0x1.fffffep127f;
    if (MODULE_TARGET < 90)
        return fminf(fmaxf(x, -most), most);
    float y;
    asm("min.xorsign.abs.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(most));
    return y;
}
DEVICE double finite_of(double x) {
    const double most = 0x1.fffffffffffffp1023;
    return fmin(fmax(x, -most), most);
}

/* exp(d), for d <= 0. */
DEVICE float exp_of_difference(float d) {
    return power_of_2(d * 1.442695041f);
}
/* a / b, rounded as by IEEE 754 if it and both are far from the ends of the range. `estimate` becomes about 1 / b. */
DEVICE double quick_quotient(double a, double b, double &estimate) {
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(estimate) : "d"(b));
    double inverse = __hiloint2double(__double2hiint(estimate), 1), error = fma(-b, inverse, 1.0);
    inverse = fma(inverse, fma(error, error, error), inverse);
    inverse = fma(inverse, fma(-b, inverse, 1.0), inverse);
    const double quotient = a * inverse;
    return fma(inverse, fma(-b, quotient, a), quotient);
}

/* Exponentials of doubles without branches, so that several overlap: exp(d) = 2^(n / 64) exp(r), with the integer n next to
 * 64 d log2(e) and r = d - n ln(2) / 64. A block has the 64 powers of 2^(1/64) in shared memory, which saves half of the
 * polynomial. Many GPUs have few units for doubles.
 *
 * exp(r) is 1 + r + r^2 / 2 + r^3 P(r). The minimax polynomial P is within 2^-57.8 of the result. The first part of
 * ln(2) / 64 has 21 bits, so that its product with n is exact. Constants of 21 bits are parts of an instruction. The error
 * is within an ulp: u for the power, and u for the last sum. */
DEVICE double *smem_powers() {
    __shared__ double powers[64];
    return powers;
}
enum { kPositionOf0 = 0xfc00 }; /* position() of n = 0 */
/* Constants in constant memory take an instruction, and others of more than 21 bits two. Templates are in no text that does
 * not use them. */
template <class N> __constant__ N exp_rest_of_ln2 = 0x1.05c610ca86c39p-35;
template <class N> __constant__ N exp_sixth = 0x1.555555555ab90p-3;
struct Exponential {
    int high; /* word of d */
    double shifted, series;

    __device__ __forceinline__ explicit Exponential(double d) : high(__double2hiint(d)) {
        const double integer = 0x1.8p52 + kPositionOf0; /* the low word of a sum with it is position() */
        shifted = fma(d, 0x1.71547p6, integer);
        const double n = shifted - integer, r = fma(n, exp_rest_of_ln2<double>, fma(n, -0x1.62e43p-7, d));
        const double tail = fma(fma(0x1.1110ep-7, r, 0x1.555568ec47261p-5), r, exp_sixth<double>);
        series = fma(fma(tail, r, 0.5), r * r, r);
    }
    /* Some bits are set if d is a NaN or far from 0. */
    __device__ __forceinline__ uint32_t odd() const { return (uint32_t)__double2hiint(shifted) ^ 0x43380000u; }
    /* n + kPositionOf0 */
    __device__ __forceinline__ uint32_t position() const { return (uint32_t)__double2loint(shifted); }
    /* For odd() of 0 and a position() below 2^16. The words in shared memory lack their own part of the exponent. */
    __device__ __forceinline__ double inside() const {
        const double power = smem_powers()[position() % 64];
        const double scaled = __hiloint2double(__double2hiint(power) + (int)(position() << 14), __double2loint(power));
        return fma(scaled, series, scaled);
    }
    /* `inside` for any d with this high word. Below 2^-1022 it is 0, and above 2^1022 it is inf. */
    DEVICE double anywhere(int high, double inside) {
        const int at_end = high <= (int)0xfff00000 ? 0 : (int)max((uint32_t)high, 0x7ff00000u); /* a NaN stays NaN */
        const bool is_at_end = (high & 0x7fffffff) >= 0x4086232b;
        return __hiloint2double(is_at_end ? at_end : __double2hiint(inside), is_at_end ? 0 : __double2loint(inside));
    }
};
/* A kernel calls begin() before its first exponential. If it is of doubles, its block then computes the powers. Thread
 * n + 32 has 2^(n / 64), which is 1 + r and a rest below 0.07, whose rounding is a tenth of an ulp. */
template <class E> struct Exponentials {
    DEVICE void begin() {}
};
template <> struct Exponentials<f64> {
    DEVICE void begin() {
        const double coefficients[] = {0x1.ad1f6p-26,         0x1.289ffp-22,
                                       0x1.71df5p-19,         0x1.a019aace2c5edp-16,
                                       0x1.a01a012155b29p-13, 0x1.6c16c17ce0d61p-10,
                                       0x1.111111112706bp-7,  0x1.55555555531a0p-5,
                                       0x1.5555555555509p-3,  0.5};
        const int n = (int)threadIdx.x - 32;
        const double first = n * 0x1.62e42fefa3p-7, rest = n * 0x1.3de6af278ece6p-48, r = first + rest;
        double series = coefficients[0];
#pragma unroll
        for (int i = 1; i < 10; i++)
            series = fma(series, r, coefficients[i]);
        const double sum = 1.0 + first, power = sum + (first - (sum - 1.0) + fma(r * r, series, rest));
        if (n < 32)
            smem_powers()[n & 63] =
                __hiloint2double(__double2hiint(power) - ((n + kPositionOf0) << 14), __double2loint(power));
        __syncthreads();
    }
};
/* exp(d), for |d| < 2^31. */
DEVICE double exp_of_difference(double d) {
    const Exponential e(d);
    return e.anywhere(e.high, e.inside());
}
/* exp(d) of many d, which are replaced, if each is between -698 and 11. Otherwise returns false, and exp_at_ends() gives
 * exponentials, from the high words of d. */
template <int m> DEVICE bool exp_inside(double (&d)[m], int (&high)[m]) {
    uint32_t odd = 0, positions = 0;
#pragma unroll
    for (int i = 0; i < m; i++) {
        const Exponential e(d[i]);
        odd |= e.odd();
        positions |= e.position();
        high[i] = e.high;
        d[i] = e.inside();
    }
    return odd == 0 && positions < 1u << 16;
}
template <int m> DEVICE void exp_at_ends(double (&d)[m], const int (&high)[m]) {
#pragma unroll
    for (int i = 0; i < m; i++)
        d[i] = Exponential::anywhere(high[i], d[i]);
}
/* exp(d) of many d, which are replaced. */
template <int m> DEVICE void exp_of_differences(double (&d)[m]) {
    int high[m];
    if (!exp_inside(d, high))
        exp_at_ends(d, high);
}

/* exp(x - row_max), for x <= row_max; below 2^-126 it is 0. The difference is computed first, because x and row_max may
 * be close to the end of the range. */
DEVICE float exp_below(float x, float row_max) {
    return power_of_2(difference(x, row_max) * 1.442695041f);
}
DEVICE double exp_below(double x, double row_max) {
    return exp_of_difference(difference(x, row_max));
}

/* exp(x - row_max) of many x <= row_max, but for a common factor next to 1. The exponent of 2 is x log2(e) less the
 * rounded row_max log2(e), which takes one instruction less than the difference. The factor 1 - ln(2) d corrects the
 * rounding d, to 2^-26 if row_max is in the fast range. */
template <class N> struct ScaledExp;
template <> struct ScaledExp<float> {
    float slope, offset, factor;
    DEVICE bool in_fast_range(float row_max) { return fabs(row_max) < 4096.0f; }
    __device__ __forceinline__ bool is_fast() const { return fabs(offset) < 4096.0f * 1.4426f; }
    DEVICE float least() { return -4095.0f; } /* in the fast range */
    /* With a scale, exp(scale x - scale row_max). */
    __device__ __forceinline__ explicit ScaledExp(float row_max, float scale = 1.0f)
        : slope(scale * 1.442695041f), offset(row_max * slope) {
        factor = fmaf(rounding(row_max), -0.693147181f, 1.0f);
    }
    __device__ __forceinline__ float power(float x) const { return fmaf(x, slope, -offset); }
    /* The d above: power(x) is (x - row_max) slope + d. */
    __device__ __forceinline__ float rounding(float row_max) const { return fmaf(row_max, slope, -offset); }
    /* power() anywhere. */
    __device__ __forceinline__ float power(float x, float row_max) const { return difference(x, row_max) * slope; }
    /* The exponential of a power, and the logarithm of the number whose powers they are. */
    DEVICE float exp_of(float power) { return power_of_2(power); }
    DEVICE float unit() { return 0.693147181f; }
    __device__ __forceinline__ float exp(float x) const { return exp_of(power(x)); }
};
template <> struct ScaledExp<double> {
    double row_max, scale, factor;
    DEVICE bool in_fast_range(double) { return true; }
    DEVICE bool is_fast() { return true; }
    __device__ __forceinline__ explicit ScaledExp(double row_max, double scale = 1.0)
        : row_max(row_max), scale(scale), factor(1) {}
    __device__ __forceinline__ double power(double x) const { return power(x, row_max); }
    __device__ __forceinline__ double power(double x, double row_max) const { return difference(x, row_max) * scale; }
    DEVICE double rounding(double) { return 0; }
    DEVICE double exp_of(double power) { return exp_of_difference(power); }
    DEVICE double unit() { return 1; }
    __device__ __forceinline__ double exp(double x) const { return exp_of(power(x)); }
};

/* log2(x), approximately. */
DEVICE float log2_of(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float natural_log(float x) {
    return logf(x);
}
DEVICE double natural_log(double x) {
    return log(x);
}

DEVICE float reciprocal(float x) {
    return __frcp_rn(x);
}
DEVICE double reciprocal(double x) {
    return 1.0 / x;
}
/* The reciprocal within an ulp, if it is normal. */
DEVICE float quick_reciprocal(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

DEVICE double quick_reciprocal(double x) {
    return 1.0 / x;
}
/* The logarithm, within 2^-22 of it, or within 2^-22 next to 1. That of a subnormal float is -inf. */
DEVICE float quick_log(float x) {
    return 0.693147181f * log2_of(x);
}
DEVICE double quick_log(double x) {
    return log(x);
}
/* quick_log(), also of a subnormal float. */
DEVICE float quick_log_of_any(float x) {
    const bool is_small = x < 0x1p-126f;
    return 0.693147181f * (log2_of(is_small ? x * 0x1p64f : x) - (is_small ? 64.0f : 0.0f));
}
DEVICE double quick_log_of_any(double x) {
    return log(x);
}

DEVICE float exponential(float x) {
    return expf(x);
}
DEVICE double exponential(double x) {
    return exp(x);
}

DEVICE float log_plus_1(float x) {
    return log1pf(x);
}
DEVICE double log_plus_1(double x) {
    return log1p(x);
}
/* log(exp(a) + exp(b)). */
template <class N> DEVICE N log_of_sum(N a, N b) {
    const N most = a > b ? a : b, least = a > b ? b : a;
    return least == -Limits<N>::infinity() ? most : most + log_plus_1(exponential(least - most));
}

/* tanh a and its derivative, for |a| < 1, from a polynomial within 1.5u. */
DEVICE float tanh_close_to_0(float a, float &slope) {
    const float z = a * a;
    float series = fmaf(fmaf(fmaf(-4.237463e-04f, z, 2.51967646e-03f), z, -8.2293814e-03f), z, 2.16655992e-02f);
    series = fmaf(fmaf(fmaf(series, z, -5.3936094e-02f), z, 1.33331403e-01f), z, -3.33333313e-01f);
    const float tanh = fmaf(a * z, series, a);
    slope = fmaf(-tanh, tanh, 1.0f);
    return tanh;
}
/* tanh a and its derivative for any a, from e = exp(-2 |a|). The derivative 4e / (1 + e)^2 keeps its digits where
 * tanh is next to 1. */
DEVICE float tanh_of(float a, float &slope) {
    const float e = power_of_2(fabs(a) * -2.885390082f), r = quick_reciprocal(1.0f + e);
    float slope_close_to_0;
    const float close_to_0 = tanh_close_to_0(a, slope_close_to_0);
    slope = 4.0f * e * r * r;
    return fabs(a) < 1.0f ? close_to_0 : copysignf(fmaf(-2.0f * e, r, 1.0f), a);
}
DEVICE double tanh_of(double a, double &slope) {
    const double e = exp_of_difference(-2.0 * fabs(a)), r = 1.0 / (1.0 + e);
    slope = 4.0 * e * r * r;
    return tanh(a);
}

/* Clamps a number that rounding may have moved out of its range. A NaN stays NaN. */
template <class N> DEVICE N at_least_0(N x) {
    return x < N(0) ? N(0) : x;
}
template <class N> DEVICE N at_least_1(N x) {
    return x < N(1) ? N(1) : x;
}
template <class N> DEVICE N at_most_1(N x) {
    return x > N(1) ? N(1) : x;
}

/* The format of a number, for the logarithm of a ratio. */
template <class N> struct Format;
template <> struct Format<float> {
    typedef uint32_t Bits;
    typedef int32_t Integer;
    enum { mantissa = 23, rescue = 24 };
    DEVICE Bits bits(float x) { return __float_as_uint(x); }
    DEVICE float from(Bits b) { return __uint_as_float(b); }
    DEVICE float rescued(float x) { return x * 0x1p24f; }
    /* The range is 2^-125 .. 2^124, where all intermediate results of log_close() are normal. */
    DEVICE Bits least() { return 0x01000000u; }
    DEVICE Bits range() { return 0x7c800000u; }
    DEVICE float ln2_of_mantissa() { return 0.693147181f * 0x1p-23f; }
    DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }
    /* a / b in that range. The reciprocal is within an ulp, so the quotient is within 3u. */
    DEVICE float quotient(float a, float b) { return a * quick_reciprocal(b); }
    /* log(a / b) for a / b in [2/3, 3/2]. With s = (a - b) / (a + b), it is 2 atanh(s) = 2 s + (2 s)^3 P((2 s)^2). P is
     * the minimax polynomial, whose error stays below 2^-28 of the result. */
    DEVICE float log_close(float a, float b) {
        float d = a - b, s = quotient(d, fmaf(d, 0.5f, b)), z = s * s;
        float p = fmaf(fmaf(z, 2.372285118e-03f, 1.248675212e-02f), z, 8.333368599e-02f);
        return fmaf(s * z, p, s);
    }
};
template <> struct Format<double> {
    typedef uint64_t Bits;
    typedef int64_t Integer;
    enum { mantissa = 52, rescue = 54 };
    DEVICE Bits bits(double x) { return (Bits)__double_as_longlong(x); }
    DEVICE double from(Bits b) { return __longlong_as_double((long long)b); }
    DEVICE double rescued(double x) { return x * 0x1p54; }
    DEVICE Bits least() { return 0x0020000000000000ull; }
    DEVICE Bits range() { return 0x7fa0000000000000ull; }
    DEVICE double ln2_of_mantissa() { return 0.69314718055994531 * 0x1p-52; }
    DEVICE double divide(double a, double b) { return __ddiv_rn(a, b); }
    DEVICE double quotient(double a, double b) { return __ddiv_rn(a, b); }
    DEVICE double log_close(double a, double b) { return log1p((a - b) / b); }
};

/* Correctly rounded quotients. */
template <class N> struct Rounded {
    DEVICE N divide(N a, N b) { return Format<N>::divide(a, b); }
    DEVICE N inverse(N a) { return reciprocal(a); }
};
/* Quotients of floats that are far from the ends of their range. A Newton step squares the error of the reciprocal, so
 * that they are off by no more than 2^-44 besides their rounding. */
struct Refined {
    DEVICE float divide(float a, float b) {
        float r = quick_reciprocal(b), q = a * r;
        return fmaf(fmaf(-q, b, a), r, q);
    }
    DEVICE float inverse(float a) {
        float r = quick_reciprocal(a);
        return fmaf(fmaf(-r, a, 1.0f), r, r);
    }
};

/* The distance of a number from the start of log_ratio()'s range, in units of the last place. Inside the range it is
 * less than Format::range(). */
template <class N> DEVICE typename Format<N>::Bits distance(N x) {
    return Format<N>::bits(x) - Format<N>::least();
}

/* Whether the bits of n numbers are all at least `least` and below `end`. The bits of a negative number are above all
 * others. */
template <class N, int n>
DEVICE bool are_between(typename Format<N>::Bits least, const N (&x)[n], typename Format<N>::Bits end) {
    typename Format<N>::Bits most = 0;
#pragma unroll
    for (int i = 0; i < n; i++)
        most = max(most, Format<N>::bits(x[i]) - least);
    return most < end - least;
}

/* log(a / b) for a and b in range. Any other a without a sign, also 0, gives a finite result. The power of two next to
 * a / b is taken out of a. Then a - b is exact, and the logarithm of a ratio close to 1 has all its digits.
 * log(a) - log(b) or the rounded a / b would lose them. Seen as integers, exponent and mantissa of a number are about
 * its log2.
 *
 * For float the error is within 8u of the result. (a + b) / 2, its reciprocal and s round to 3.5u at most: where the
 * ulp of one is largest, the ulp of another is smallest. The polynomial and the last sum of log_close() add 1.1u. The
 * power of two raises the error to 7.6u at most, where the sum cancels from log(2 / 3) + log(2) to log(4 / 3). */
template <class N> DEVICE N log_ratio(N a, N b) {
    typedef Format<N> F;
    typedef typename F::Integer Integer;
    Integer half = (Integer)1 << (F::mantissa - 1);
    Integer power = ((Integer)(F::bits(a) - F::bits(b)) + half) & -2 * half;
    return fma((N)power, F::ln2_of_mantissa(), F::log_close(F::from(F::bits(a) - power), b));
}

/* 2^23 log2(a / b) of numbers of 16 bits. Its product with of_short() is the logarithm; of_short() may also multiply
 * the sum of many. For a and b of at most 12 digits a + b is exact too, once the power of two is out.
 *
 * The error is within 8u, including the product with of_short(). The reciprocal is within 2u and s rounds to 1u, which
 * makes 3.1u of the series. Its minimax polynomial in s^2, times 2^24 log2(e), is within 0.25u with its factors
 * rounded. Its last step rounds to 0.7u, the earlier steps to 0.05u. The sum of these is 4.1u, or 5.8u where the power
 * of two cancels in the same way. The sum with the power rounds to 1u and the product to 1.1u, which makes 7.9u. */
DEVICE float short_log_ratio(float a, float b) {
    typedef Format<float> F;
    int32_t half = 1 << (F::mantissa - 1);
    int32_t power = ((int32_t)(F::bits(a) - F::bits(b)) + half) & -2 * half;
    float scaled_a = F::from(F::bits(a) - (uint32_t)power);
    float s = F::quotient(scaled_a - b, scaled_a + b), z = s * s;
    return fmaf(s, fmaf(fmaf(fmaf(z, 3839503.25f, 4826070.0f), z, 8068311.5f), z, 24204406.0f), (float)power);
}
DEVICE float of_short() {
    return Format<float>::ln2_of_mantissa();
}

/* exp(x) of a number of 16 bits. Its error is 2^-22 of ex2.approx, and 1.3u of x. */
DEVICE float short_exponential(float x) {
    return power_of_2(x * 1.442695041f);
}

/* log(x) for x in range. Any other float without a sign gives a finite result. */
DEVICE float ordinary_log(float x) {
    return log_ratio(x, 1.0f);
}
DEVICE double ordinary_log(double x) {
    return log(x);
}

/* log2(x) for x in range. The second term corrects the rounded log2(e), whose error would be 2^-26 of every
 * logarithm. */
DEVICE float ordinary_log2(float x) {
    const float y = ordinary_log(x);
    return fmaf(y, 1.442695022f, y * 1.925963033e-08f);
}
DEVICE double ordinary_log2(double x) {
    return log2(x);
}

/* log(a / b) for any a and b. */
template <class N> DEVICE N log_any_ratio(N a, N b) {
    typedef Format<N> F;
    N ratio = F::divide(a, b), shift = 0;
    if (!(a > 0 && b > 0 && a < Limits<N>::infinity() && b < Limits<N>::infinity()))
        return a < 0 || b < 0 ? Limits<N>::nan()
               : ratio == 0   ? -Limits<N>::infinity()
               : ratio > 0    ? ratio
                              : Limits<N>::nan();
    N ln2 = F::ln2_of_mantissa() * ((typename F::Integer)1 << F::mantissa);
    if (a < 1 && b < 1)
        a = F::rescued(a), b = F::rescued(b);
    else if (F::bits(a) < F::least())
        a = F::rescued(a), shift -= N(F::rescue) * ln2;
    else if (F::bits(b) < F::least())
        b = F::rescued(b), shift += N(F::rescue) * ln2;
    if (a > 1 && b > 1)
        a *= N(0x1p-8), b *= N(0x1p-8);
    else if (b > 1 && distance(b) >= F::range())
        b *= N(0x1p-8), shift -= 8 * ln2;
    return log_ratio(a, b) + shift;
}

#endif
