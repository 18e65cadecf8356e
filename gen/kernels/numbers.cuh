/* The elementary functions that the losses use, for float and double. */
#ifndef GPULOSSI_NUMBERS_CUH
#define GPULOSSI_NUMBERS_CUH

#include "elements.cuh"
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

DEVICE float larger(float a, float b) { return fmaxf(a, b); }
DEVICE double larger(double a, double b) { return fmax(a, b); }

/* exp(x - top), for x <= top. The difference is formed first: x and top may be near the end of the range. */
DEVICE float exp_below(float x, float top) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"((x - top) * 1.442695041f));
    return y;
}
DEVICE double exp_below(double x, double top) { return exp(x - top); }

DEVICE float natural_log(float x) { return logf(x); }
DEVICE double natural_log(double x) { return log(x); }

DEVICE float reciprocal(float x) { return __frcp_rn(x); }
DEVICE double reciprocal(double x) { return 1.0 / x; }

DEVICE float exponential(float x) { return expf(x); }
DEVICE double exponential(double x) { return exp(x); }

/* Exponent and mantissa of a number as one integer, so that differences of two are about the log2 of their ratio. */
template <class N> struct Parts;
template <> struct Parts<float> {
    typedef int32_t Integer;
    enum { mantissa = 23, rescue = 24 };
    DEVICE Integer of(float x) { return __float_as_int(x); }
    DEVICE float from(Integer i) { return __int_as_float(i); }
    DEVICE bool normal(float x) { return (uint32_t)of(x) - 0x00800000u < 0x7f000000u; }
    DEVICE float rescued(float x) { return x * 0x1p24f; }
    DEVICE float ln2() { return 0.693147181f; }
    DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }
    /* log(1 + f) for f in [-1/3, 1/2]: f + f^2 Q(f), Q the minimax polynomial of relative error 2^-26. */
    DEVICE float log1p_small(float f) {
        float q = -6.743920960e-02f;
        q = fmaf(q, f, 1.179209430e-01f);
        q = fmaf(q, f, -1.104558278e-01f);
        q = fmaf(q, f, 1.080291044e-01f);
        q = fmaf(q, f, -1.235862565e-01f);
        q = fmaf(q, f, 1.430141845e-01f);
        q = fmaf(q, f, -1.667403766e-01f);
        q = fmaf(q, f, 1.999962923e-01f);
        q = fmaf(q, f, -2.499986164e-01f);
        q = fmaf(q, f, 3.333333649e-01f);
        q = fmaf(q, f, -5.000000053e-01f);
        return fmaf(f * f, q, f);
    }
    /* a / b for normal b of moderate size: the reciprocal's error is taken out by one step. */
    DEVICE float quotient(float a, float b) {
        float r, f;
        asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(b));
        f = a * r;
        return fmaf(fmaf(-f, b, a), r, f);
    }
};
template <> struct Parts<double> {
    typedef int64_t Integer;
    enum { mantissa = 52, rescue = 54 };
    DEVICE Integer of(double x) { return __double_as_longlong(x); }
    DEVICE double from(Integer i) { return __longlong_as_double(i); }
    DEVICE bool normal(double x) { return (uint64_t)of(x) - 0x0010000000000000ull < 0x7fe0000000000000ull; }
    DEVICE double rescued(double x) { return x * 0x1p54; }
    DEVICE double ln2() { return 0.69314718055994531; }
    DEVICE double divide(double a, double b) { return __ddiv_rn(a, b); }
    DEVICE double log1p_small(double f) { return log1p(f); }
    DEVICE double quotient(double a, double b) { return __ddiv_rn(a, b); }
};

/* log(a / b) for a > 0. The power of two next to a / b is taken out of a, so that a - b is exact and the logarithm of a
 * ratio near 1 keeps all its digits, where log(a) - log(b) or the rounded a / b would lose them. */
template <class N> DEVICE N log_ratio(N a, N b) {
    typedef Parts<N> P;
    int shift = 0;
    if (!(P::normal(a) && P::normal(b))) {
        N ratio = P::divide(a, b);
        if (!(a > 0 && b > 0 && a < Limits<N>::infinity() && b < Limits<N>::infinity()))
            return ratio == 0 ? -Limits<N>::infinity() : ratio > 0 ? ratio : Limits<N>::nan();
        if (!P::normal(a))
            a = P::rescued(a), shift -= P::rescue;
        if (!P::normal(b))
            b = P::rescued(b), shift += P::rescue;
    }
    typename P::Integer half = (typename P::Integer)1 << (P::mantissa - 1);
    typename P::Integer k = (P::of(a) - P::of(b) + half) >> P::mantissa;
    N near_b = P::from(P::of(a) - k * 2 * half);
    N f = P::quotient(near_b - b, b);
    return fma((N)((int)k + shift), P::ln2(), P::log1p_small(f));
}

#endif
