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
    /* Adds vectors, of which no element is above the maximum. If that is in the fast range of floats, calls `see` with the
     * exponents of 2 of each vector. The sum of doubles is relative to the maximum `before`: its factor is one more of
     * their exponentials. */
    template <class E, int K, class See>
    __device__ __forceinline__ void add(Vector<E> (&x)[K], const See &see, N before) {
        enum { W = Width<E>::value };
        const N from = finite(max);
        if constexpr (sizeof(N) == 8) {
            N part[K * W + 1];
#pragma unroll
            for (int k = 0; k < K; k++) {
                N of_vector[W];
                x[k].unpack(of_vector);
#pragma unroll
                for (int i = 0; i < W; i++)
                    part[k * W + i] = difference(of_vector[i], from);
            }
            part[K * W] = difference(before, from);
            exp_of_differences(part);
            part[K * W] *= sum;
            sum = in_halves<Sum>(part);
        } else if (ScaledExp<N>::in_fast_range(from)) {
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

#endif
