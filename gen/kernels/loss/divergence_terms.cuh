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

#include "../device/math.cuh"

/* x - 1 + exp(-x) for |x| < 1. It is at least 0, and a small result keeps its digits. For float it is x^2 times the
 * minimax polynomial, whose error stays below 2^-26 of the result. For double it is
 * x^2/2 (1 - x/3 (1 - x/4 (1 - ... x/18))). */
DEVICE float excess_over_square(float x) {
    float p = fmaf(x, -2.7722835511667654e-06f, 2.535482963139657e-05f);
    p = fmaf(p, x, -1.984402333619073e-04f);
    p = fmaf(p, x, 1.388545148074627e-03f);
    p = fmaf(p, x, -8.33331048488617e-03f);
    p = fmaf(p, x, 4.166673496365547e-02f);
    p = fmaf(p, x, -1.666666716337204e-01f);
    return fmaf(p, x, 0.5f);
}
DEVICE double excess_over_square(double x) {
    double sum = 1;
#pragma unroll
    for (int k = 18; k >= 3; k--)
        sum = fma(sum, -x * (1.0 / k), 1.0);
    return 0.5 * sum;
}
template <class N> DEVICE N excess(N x) {
    return x * x * excess_over_square(x);
}

/* log(1 + w (exp(z) - 1)), for w below 1, and a z that is not large. */
DEVICE float log_plus(float w, float z) {
    const float e = power_of_2(z * 1.442695041f);
    return log_near_1(w * (fabs(z) < 1 ? excess(-z) + z : e - 1));
}
DEVICE double log_plus(double w, double z) {
    return log1p(w * expm1(z));
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
    /* The logarithm of M over one side is log(1 + w (exp(z) - 1)). Here w is the other side's share, and z is d or -d.
     * The logarithm of the other side differs by d. For |d| < 1 the side is taken that loses no digits, otherwise the
     * one that does not overflow. The shares are b of p and c of q. */
    __device__ __forceinline__ void jensen_shannon(N b, N c) {
        const bool p_first = fabs(d) < 1 ? b > c : d > 0;
        const N m = b * p + c * q, direct = d != d ? d : -log_plus(p_first ? c : b, p_first ? -d : d);
        const N p_to_m = p == 0 ? N(0) : p_first ? direct : direct + d;
        const N q_to_m = q == 0 ? N(0) : p_first ? direct - d : direct;
        term = f = b * surplus(p, m, p_to_m) + c * surplus(q, m, q_to_m);
        of_p = b * p_to_m;
        of_q = c * q_to_m;
        of_lp = p * of_p;
        of_lq = q * of_q;
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
