/* The running state of a softmax: a maximum, and the sum of exponentials below it. */
#ifndef GPULOSSI_SOFTMAX_CUH
#define GPULOSSI_SOFTMAX_CUH

#include "reduce.cuh"

/* top = max x, sum = sum exp(x - top), where a difference of two infinities is never formed: all -inf gives 0. */
template <class N> struct Softmax {
    N top, sum;

    DEVICE Softmax empty() {
        Softmax s = {-Limits<N>::infinity(), N(0)};
        return s;
    }
    /* What to take from x: the top, where there is one. */
    DEVICE N finite(N top) { return top == -Limits<N>::infinity() ? N(0) : top; }

    __device__ __forceinline__ void raise(N higher) {
        if (higher != top)
            sum *= exp_below(top, higher);
        top = higher;
    }
    template <int m> __device__ __forceinline__ void enter(const N (&x)[m]) {
        raise(larger(top, in_halves<Maximum>(x)));
        add(x);
    }
    /* Numbers of which none is above the top. */
    template <int m> __device__ __forceinline__ void add(const N (&x)[m]) {
        N part[m];
        N from = finite(top);
#pragma unroll
        for (int i = 0; i < m; i++)
            part[i] = exp_below(x[i], from);
        sum += in_halves<Sum>(part);
    }
    template <class Lanes> __device__ __forceinline__ void fold(Lanes lanes) {
        raise(lanes.template over<Maximum>(top));
        sum = lanes.template over<Sum>(sum);
    }
};

#endif
