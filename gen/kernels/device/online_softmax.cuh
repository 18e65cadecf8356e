/* The running state of an online softmax: the maximum, and the sum of exponentials relative to it. */
#ifndef GPULOSSI_ONLINE_SOFTMAX_CUH
#define GPULOSSI_ONLINE_SOFTMAX_CUH

#include "reduce.cuh"

/* row_max = max x, sum = sum exp(scale (x - row_max)). A difference of two infinities is never formed: all -inf gives
 * 0. The scale is the same in all calls, and above 0. */
template <class N> struct Softmax {
    N row_max, sum;

    DEVICE Softmax empty() {
        Softmax s = {-Limits<N>::infinity(), N(0)};
        return s;
    }
    /* A maximum that can be subtracted: that of no elements is 0. */
    DEVICE N finite(N row_max) { return row_max == -Limits<N>::infinity() ? N(0) : row_max; }

    __device__ __forceinline__ void raise(N higher, N scale = N(1)) {
        if (higher != row_max)
            sum *= exp_below(scale * row_max, scale * higher);
        row_max = higher;
    }
    template <int m> __device__ __forceinline__ void enter(const N (&x)[m], N scale = N(1)) {
        raise(larger(row_max, in_halves<Maximum>(x)), scale);
        add(x, scale);
    }
    /* Adds numbers, of which none is above the maximum. */
    template <int m> __device__ __forceinline__ void add(const N (&x)[m], N scale = N(1)) {
        N part[m], from = finite(row_max);
        if (ScaledExp<N>::in_fast_range(scale * from)) {
            ScaledExp<N> below(from, scale);
#pragma unroll
            for (int i = 0; i < m; i++)
                part[i] = below.exp(x[i]);
            sum = fma(in_halves<Sum>(part), below.factor, sum);
        } else { /* This is rare. A loop saves code. */
#pragma unroll
            for (int i = 0; i < m; i++)
                part[i] = x[i];
#pragma unroll 1
            for (int n = 0; n < m; n++) {
                sum += exp_of_difference(difference(part[0], from) * scale);
#pragma unroll
                for (int i = 0; i + 1 < m; i++)
                    part[i] = part[i + 1];
            }
        }
    }
    template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes, N scale = N(1)) {
        raise(lanes.template over<Maximum>(row_max), scale);
        sum = lanes.template over<Sum>(sum);
    }
};

/* Online softmax over vectors of elements (Milakov and Gimelshein, 2018). */
template <class N> struct OnlineSoftmax {
    N max, sum;

    DEVICE OnlineSoftmax empty() {
        OnlineSoftmax s = {-Limits<N>::infinity(), N(0)};
        return s;
    }
    /* A maximum that can be subtracted: that of no elements is 0. */
    DEVICE N finite(N max) { return max == -Limits<N>::infinity() ? N(0) : max; }

    __device__ __forceinline__ void raise(N higher) {
        if (higher != max)
            sum *= exp_below(max, higher);
        max = higher;
    }
    /* The number that is subtracted from all that is summed. */
    __device__ __forceinline__ N reference() const { return finite(max); }
    __device__ __forceinline__ bool must_rescale(N higher) const { return higher != max; }
    /* Adds vectors, of which no element is above the maximum. If that is in the fast range of floats, calls `see` with the
     * exponents of 2 of each vector. */
    template <class E, int K, class See> __device__ __forceinline__ void add(Vector<E> (&x)[K], const See &see) {
        enum { W = Width<E>::value };
        const N from = reference();
        if (ScaledExp<N>::in_fast_range(from)) {
            const ScaledExp<N> scaled(from);
            N of_vectors = N(0);
#pragma unroll
            for (int k = 0; k < K; k++) {
                N part[W];
                x[k].unpack(part);
#pragma unroll
                for (int i = 0; i < W; i++)
                    part[i] = scaled.power(part[i]);
                see(k, part);
#pragma unroll
                for (int i = 0; i < W; i++)
                    part[i] = power_of_2(part[i]);
                of_vectors += in_halves<Sum>(part);
            }
            sum = fma(of_vectors, scaled.factor, sum);
        } else {
#pragma unroll 1
            for (int k = 0; k < K; k++) { /* rare, so it is not unrolled */
                N part[W];
                x[0].unpack(part);
#pragma unroll
                for (int i = 0; i < W; i++)
                    part[i] = exp_below(part[i], from);
                sum += in_halves<Sum>(part);
                rotate(x);
            }
        }
    }
};

/* That of doubles is relative to a number that may be kRise below the maximum or kFall above it, until raise() makes it
 * the maximum. Most vectors then need no exponential but their own. */
template <> struct OnlineSoftmax<double> {
    enum { kRise = 8, kFall = 256 };
    double max, from, sum;

    DEVICE OnlineSoftmax empty() {
        OnlineSoftmax s = {-CUDART_INF, 0, 0};
        return s;
    }
    DEVICE double finite(double max) { return max == -CUDART_INF ? 0 : max; }
    __device__ __forceinline__ double reference() const { return from; }
    __device__ __forceinline__ bool must_rescale(double higher) const { return higher != from && higher > -CUDART_INF; }
    __device__ __forceinline__ bool is_far_off() const {
        return max > from + kRise || (max < from - kFall && max > -CUDART_INF);
    }

    /* Divides the sum by the exponential of `higher`, so that it is at least 1 if it has that. */
    __device__ __forceinline__ void raise(double higher) {
        if (must_rescale(higher)) {
            double estimate;
            if (higher > from + kFall)
                sum *= 0;
            else if (sum != 0)
                sum = quick_quotient(sum, exp_below(higher, from), estimate);
            from = higher;
        }
        max = higher;
    }
};

#endif
