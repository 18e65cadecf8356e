/* Divergences of a pair of probabilities, element by element, from p, q and d = log p - log q. With M = b p + (1-b) q:
 *
 *   forward KL        f = p d                                  df/dq = -p / q            df/dp = d + 1
 *   reverse KL        f = -q d                                 df/dq = 1 - d             df/dp = -q / p
 *   Jensen-Shannon    f = b p log(p/M) + (1-b) q log(q/M)      df/dq = (1-b) log(q/M)    df/dp = b log(p/M)
 *   total variation   f = |p - q| / 2                          df/dq = sign(q - p) / 2   df/dp = sign(p - q) / 2
 *
 * A probability of 0 adds nothing of its own, whatever the other one is. */
#ifndef GPULOSSI_DIVERGENCE_TERMS_CUH
#define GPULOSSI_DIVERGENCE_TERMS_CUH

#include "../device/reduce.cuh"

/* x - 1 + exp(-x) has a polynomial for |x| below this. */
template <class N> DEVICE N close_limit() {
    return sizeof(N) == 4 ? N(1.25) : N(1);
}
/* In this unit close_limit() is 2: the highest bit of the exponents tells whether some numbers are below it. NaN is not. */
template <class N> DEVICE N close_unit() {
    return close_limit<N>() / 2;
}
DEVICE uint32_t highest_bits(float x) {
    return __float_as_uint(x);
}
DEVICE uint32_t highest_bits(double x) {
    return (uint32_t)__double2hiint(x);
}
/* `bits`: the highest bits of all numbers, combined. */
DEVICE bool are_below_2(uint32_t bits) {
    return (bits & 0x40000000u) == 0;
}
template <class N, int m> DEVICE bool are_below_2(const N (&y)[m]) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < m; i++)
        bits |= highest_bits(y[i]);
    return are_below_2(bits);
}
/* x - 1 + exp(-x) over y^2 and over `less`, where x is y units. It is above 0, so that a small excess keeps its digits. For
 * float it is the minimax polynomial, whose error stays below 2^-25 of the result, or below 2^-21 for logits of 16 bits.
 * For double it is 1/2 (1 - x/3 (1 - x/4 (1 - ... x/18))) where the unit is 1. */
template <bool is_short = false> DEVICE float excess_over_square(float y, float unit = 1, float less = 1) {
    const float square = unit * unit / less, cube = square * unit, fourth = cube * unit, fifth = fourth * unit,
                sixth = fifth * unit, seventh = sixth * unit, eighth = seventh * unit, ninth = eighth * unit;
    float p = is_short ? eighth * 2.5049046e-05f : fmaf(y, ninth * -2.7745473e-06f, eighth * 2.563284e-05f);
    p = fmaf(p, y, seventh * (is_short ? -2.0599546e-04f : -1.9849585e-04f));
    p = fmaf(p, y, sixth * (is_short ? 1.3894910e-03f : 1.388144e-03f));
    p = fmaf(p, y, fifth * (is_short ? -8.3274793e-03f : -8.333238e-03f));
    p = fmaf(p, y, fourth * (is_short ? 4.1666090e-02f : 4.1666854e-02f));
    p = fmaf(p, y, cube * (is_short ? -1.6666778e-01f : -1.6666669e-01f));
    return fmaf(p, y, square * (is_short ? 0.50000006f : 0.5f));
}
template <bool = false> DEVICE double excess_over_square(double y, double unit = 1, double less = 1) {
    double sum = 1;
#pragma unroll
    for (int k = 18; k >= 3; k--)
        sum = fma(sum, -y * (unit / k), 1.0);
    return unit * unit / less * 0.5 * sum;
}
template <class N> DEVICE N excess(N x) {
    return x * x * excess_over_square(x);
}
/* The sum of e (x - 1 + exp(-x)) from the products e y, where x is y in close_unit(). */
template <bool is_short, class N, int m> DEVICE N sum_of_excess(const N (&ey)[m], const N (&y)[m]) {
    N of[m];
#pragma unroll
    for (int i = 0; i < m; i++)
        of[i] = y[i] * excess_over_square<is_short>(y[i], close_unit<N>());
    return products_in_halves(ey, of);
}

/* log1p(m) - m. */
template <class N> DEVICE N log_excess(N m) {
    if (fabs(m) < N(0.125)) {
        N sum = N(0);
#pragma unroll
        for (int k = sizeof(N) == 4 ? 9 : 19; k >= 2; k--)
            sum = fma(sum, -m, N(1.0) / N(k));
        return -m * m * sum;
    }
    return log_plus_1(m) - m;
}

/* Minimax polynomials for (y sinh(y) - cosh(y) log(cosh(y))) / z and log(cosh(y)) / z, of z = y^2 in [0, 1], or in
 * [0, 4] if `wide`. They are within 2^-26 of the result, or within 2^-24 if `wide`. */
template <bool wide> DEVICE float divergence_over_square(float z) {
    if constexpr (wide) {
        float p = fmaf(z, 5.9118746e-08f, -1.24266223e-06f);
        p = fmaf(p, z, 1.19171652e-05f);
        p = fmaf(p, z, -7.21064735e-05f);
        p = fmaf(p, z, 3.32825892e-04f);
        p = fmaf(p, z, -1.36702655e-03f);
        p = fmaf(p, z, 6.93702233e-03f);
        p = fmaf(p, z, 9.87358191e-07f);
        return fmaf(p, z, 0.5f);
    }
    float p = fmaf(z, -4.70382683e-05f, 3.14540064e-04f);
    p = fmaf(p, z, -1.36467289e-03f);
    p = fmaf(p, z, 6.93913293e-03f);
    p = fmaf(p, z, 4.32472079e-07f);
    return fmaf(p, z, 0.5f);
}
template <bool wide> DEVICE float log_cosh_over_square(float z) {
    if constexpr (wide) {
        float p = fmaf(z, 1.91432911e-08f, -4.71262616e-07f);
        p = fmaf(p, z, 5.25890174e-06f);
        p = fmaf(p, z, -3.58180974e-05f);
        p = fmaf(p, z, 1.71569047e-04f);
        p = fmaf(p, z, -6.44962464e-04f);
        p = fmaf(p, z, 2.11830164e-03f);
        p = fmaf(p, z, -6.71543619e-03f);
        p = fmaf(p, z, 2.22150371e-02f);
        p = fmaf(p, z, -8.33326631e-02f);
        return fmaf(p, z, 0.5f);
    }
    float p = fmaf(z, 8.780589997e-05f, -0.0005602164892f);
    p = fmaf(p, z, 0.002082297346f);
    p = fmaf(p, z, -0.006713375449f);
    p = fmaf(p, z, 0.02221741714f);
    p = fmaf(p, z, -0.0833330974f);
    return fmaf(p, z, 0.5f);
}

/* log(p / M) and log(q / M) where beta is 1/2, from d = log p - log q. Each has an error of 2^-23 and 2^-23 of itself, so they
 * are for pairs that are not close. */
template <class N> struct HalfLogs {
    N of_p, of_q;
    __device__ __forceinline__ explicit HalfLogs(N d) {
        const N of_sum = log2_of(N(1) + power_of_2(fabs(d) * N(-1.442695041))), positive = larger(d, N(0)),
                of_larger = fma(of_sum, N(-0.693147181), N(0.693147181));
        of_q = of_larger - positive;
        of_p = of_larger - (positive - d);
    }
};

/* The mixture M = b p + c q, with the shares 1 + x = p / M and 1 + y = q / M. Let b + c = 1 and
 * g(x) = (1 + x) log(1 + x) - x, which is never negative. The Jensen-Shannon divergence of the pair is M (b g(x) + c
 * g(y)), because b x + c y is 0. It keeps its digits where p and q are close.
 *
 * `is_half`: b and c are 1/2. `by_ratio`: p - q is p (1 - exp(-d)) where |d| < 1, which has the digits of
 * d = log p - log q. `has_small`: the shares are needed of subnormal numbers, too. */
template <class N> struct Mixture;
template <> struct Mixture<float> {
    float b, c, p, q, m, x, y, inverse;
    bool is_half, has_small;

    /* m is M, or 2 M if b and c are 1/2. 2^-120 keeps the reciprocal of two zeros finite. Scaled by 2^64, the reciprocal of
     * any sum of floats is finite. */
    __device__ __forceinline__ Mixture(float b, float c, float p, float q, float d, bool is_half, bool by_ratio,
                                       bool has_small)
        : b(b), c(c), p(p), q(q), is_half(is_half), has_small(has_small) {
        if (has_small) {
            this->p *= 0x1p64f;
            this->q *= 0x1p64f;
        }
        const float more = (is_half ? this->p : b * this->p) + 0x1p-120f;
        m = is_half ? more + this->q : fmaf(c, this->q, more);
        inverse = quick_reciprocal(m);
        float u = difference(this->p, this->q);
        if (by_ratio)
            u = fabs(d) < 1 ? this->p * (d - excess(d)) : u;
        u *= inverse;
        x = is_half ? u : c * u;
        y = is_half ? -u : -b * u;
    }
    DEVICE bool is_close(float x) { return !(fabs(x) >= 0.25f); } /* NaN is */
    /* (x - log(1 + x)) / x^2 where x is close to 0, within 2^-26. */
    DEVICE float defect(float x) {
        float p = fmaf(x, -0.1266771806f, 0.1384796465f);
        p = fmaf(p, x, -0.1420050452f);
        p = fmaf(p, x, 0.1661269214f);
        p = fmaf(p, x, -0.2000174915f);
        p = fmaf(p, x, 0.2500068311f);
        p = fmaf(p, x, -0.3333332330f);
        return fmaf(p, x, 0.4999999866f);
    }
    /* The logarithm of a share of M, within 2^-22 log(2) where it is not far below 0. A share of 0 has -87.3.
     * `lg2.approx` is too large: by 9e-8 in the mean of two shares of 2 M, and by 5e-8 in that of two shares of M. */
    __device__ __forceinline__ float distant_log(float p) const {
        return fmaf(0.693147181f, log2_of(larger(p * inverse, 0x1p-126f)), is_half ? 0.693147123f : -3.5e-8f);
    }
    /* Both are computed, because threads of a warp may need different ones. */
    __device__ __forceinline__ float log_of(float x, float p) const {
        const float close = fmaf(-x * x, defect(x), x), distant = distant_log(p);
        return is_close(x) ? close : distant;
    }
    __device__ __forceinline__ float log_p() const { return log_of(x, p); }
    __device__ __forceinline__ float log_q() const { return log_of(y, q); }
    /* M g(x), where m is M. */
    __device__ __forceinline__ float of_share(float x, float p) const {
        const float of = defect(x), close = m * (x * x) * fmaf(-of, x, 1.0f - of),
                    distant = fmaf(p, distant_log(p), -m * x);
        return is_close(x) ? close : distant;
    }
    __device__ __forceinline__ float divergence() const {
        if (is_half) { /* (g(x) + g(-x)) / 2 is x^2 times a polynomial of x^2, within 2^-29. */
            const float z = x * x, of = fmaf(fmaf(fmaf(z, 0.0193362611f, 0.0332742591f), z, 0.0833340814f), z, 0.5f),
                        close = m * z * of, distant = fmaf(p, distant_log(p), q * distant_log(q));
            return (has_small ? 0x1p-65f : 0.5f) * (is_close(x) ? close : distant);
        }
        const float f = fmaf(b, of_share(x, p), c * of_share(y, q));
        return has_small ? f * 0x1p-64f : f;
    }
};
template <> struct Mixture<double> {
    double b, c, p, q, m, of_p, of_q; /* of_p is log(p / M), and of_q log(q / M). */
    bool has_small;

    /* Scaled by 2^128, no probability is subnormal. */
    __device__ __forceinline__ Mixture(double b, double c, double p, double q, double d, bool, bool by_ratio,
                                       bool has_small)
        : b(b), c(c), p(has_small ? p * 0x1p128 : p), q(has_small ? q * 0x1p128 : q), has_small(has_small) {
        m = b * this->p + c * this->q;
        const double of = by_ratio && fabs(d) < 1 ? -p * expm1(-d) : this->p - this->q, u = m == 0 ? of : of / m;
        of_p = log_of(c * u, this->p);
        of_q = log_of(-b * u, this->q);
    }
    /* The logarithm of a share 1 + x of M. The share is scaled where it would be subnormal. */
    __device__ __forceinline__ double log_of(double x, double p) const {
        if (fabs(x) < 0.5 || x != x)
            return log1p(x);
        const bool is_small = has_small && p < m * 0x1p-1020;
        const double of = log((is_small ? p * 0x1p128 : p) / m);
        return is_small ? of - 88.722839111672995 : of;
    }
    __device__ __forceinline__ double log_p() const { return of_p; }
    __device__ __forceinline__ double log_q() const { return of_q; }
    /* p log(p / M) + M - p. */
    __device__ __forceinline__ double of_share(double p, double log_p) const {
        return p == 0 ? m : fabs(log_p) < 1 ? p * excess(log_p) : p * (log_p - 1.0) + m;
    }
    __device__ __forceinline__ double divergence() const {
        const double f = b * of_share(p, of_p) + c * of_share(q, of_q);
        return has_small ? f * 0x1p-128 : f;
    }
};

/* log(p / M) of a small share, where M is c q, since the rest of it rounds away. */
template <class N> DEVICE N log_of_small_share(N p, N c, N q) {
    return quick_log_of_any(p) - quick_log(c * q);
}

/* A pair of probabilities, with its term of a divergence and the derivatives of the term. */
template <class N> struct Pair {
    N p, q, d;
    N term;         /* f */
    N f;            /* the term, or a number that has the same sum over a row and keeps its digits there */
    N of_q, of_p;   /* df/dq and df/dp */
    N of_lq, of_lp; /* q df/dq and p df/dp, the derivatives with respect to log q and log p */

    /* p log(p / m) + m - p, where x = log(p / m). It is never negative, so that small numbers keep their digits in a
     * sum. Over a row it has the same sum as p log(p / m), if p and m have the same sum. */
    DEVICE N surplus(N p, N m, N x) { return p == 0 ? m : surplus_of(p, m, x); }
    DEVICE N surplus_of(N p, N m, N x) { return fabs(x) < 1 ? p * excess(x) : p * (x - N(1)) + m; }

    /* `normalised`: p and q are known to have the same sum. eps_p and eps_q are the epsilons of p and q in d. Without wants_p
     * and wants_q there are no derivatives with respect to p and log p, and to q: they take divisions. */
    __device__ __forceinline__ void forward(bool normalised, N eps_p, N eps_q, bool wants_p = true,
                                            bool wants_q = true) {
        term = p == 0 ? N(0) : p * d;
        f = normalised ? surplus(p, q, d) : term;
        of_lq = -p;
        of_q = of_p = of_lp = N(0);
        if (wants_q)
            of_q = p == 0 ? N(0) : -Format<N>::divide(p, q + eps_q);
        if (wants_p) {
            of_p = p == 0 ? N(0) : d + (eps_p == 0 ? N(1) : Format<N>::divide(p, p + eps_p));
            of_lp = p == 0 ? N(0) : p * of_p;
        }
    }
    __device__ __forceinline__ void reverse(bool normalised, N eps_p, N eps_q, bool wants_p, bool wants_q) {
        Pair other = {q, p, -d};
        other.forward(normalised, eps_q, eps_p, wants_q, wants_p);
        term = other.term, f = other.f;
        of_q = other.of_p, of_p = other.of_q;
        of_lq = other.of_lp, of_lp = other.of_lq;
    }
    /* The shares are b of p and c of q. With has_small, a side may be probabilities. */
    __device__ __forceinline__ void jensen_shannon(N b, N c, bool is_half, bool by_ratio, bool has_small) {
        const Mixture<N> mixture(b, c, p, q, d, is_half, by_ratio, has_small);
        term = f = mixture.divergence();
        of_p = b * mixture.log_p();
        of_q = c * mixture.log_q();
        /* The logarithm of 0 is finite in float only. */
        of_lp = p == 0 && sizeof(N) == 8 ? N(0) : p * of_p;
        of_lq = q == 0 && sizeof(N) == 8 ? N(0) : q * of_q;
        if (has_small) {
            of_p = p == 0 ? N(0) : of_p;
            of_q = q == 0 ? N(0) : of_q;
        }
    }
    __device__ __forceinline__ void total_variation() {
        N sign = p > q ? N(0.5) : p < q ? N(-0.5) : N(0);
        term = f = sign * (p - q);
        of_p = sign;
        of_q = -sign;
        of_lp = p * sign;
        of_lq = -q * sign;
        if (p != p || q != q)
            term = f = of_p = of_q = of_lp = of_lq = p + q;
    }
};

#endif
