/* 8 bytes of neighbouring columns of a class, where the classes are not innermost. */
#ifndef GPULOSSI_COLUMN_VEC_CUH
#define GPULOSSI_COLUMN_VEC_CUH

#include "vec16.cuh"
#include "math.cuh"

template <class E> struct Plane {
    typedef typename E::Number N;
    typedef typename E::Bits Bits;
    enum { W = GPULOSSI_PLANE_BYTES / sizeof(Bits) };
    static_assert(sizeof(N) == 4, "two words have 8 bytes");

    DEVICE uint2 none() {
        uint32_t word = E::narrow(-Limits<N>::infinity());
        if (sizeof(Bits) == 2)
            word *= 0x00010001u;
        return make_uint2(word, word);
    }
    DEVICE N number(const uint2 &x, int i) {
        if constexpr (sizeof(Bits) == 4)
            return E::widen(i == 0 ? x.x : x.y);
        else
            return E::widen((Bits)((i < 2 ? x.x : x.y) >> (16 * (i % 2))));
    }
    DEVICE uint2 packed(const N (&x)[W]) {
        if constexpr (sizeof(Bits) == 4)
            return make_uint2(E::narrow(x[0]), E::narrow(x[1]));
        else
            return make_uint2(E::pair(x[0], x[1], false), E::pair(x[2], x[3], false));
    }
    DEVICE uint32_t larger_each(uint32_t a, uint32_t b) {
        if constexpr (sizeof(Bits) == 4)
            return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
        else
            return E::larger_of_pairs(a, b);
    }
    DEVICE uint2 larger_each(const uint2 &a, const uint2 &b) {
        return make_uint2(larger_each(a.x, b.x), larger_each(a.y, b.y));
    }
};

/* What the gradients of the columns of a thread need: they are exp(x - top) weight, and 0 where there is no target. */
template <class E> struct Slopes {
    typedef typename E::Number N;
    typedef Plane<E> Of;
    enum { W = Of::W };
    N top[W], weight[W];
    bool simple; /* no logit or weight is NaN or far out; add() all columns, then settle() */

    __device__ __forceinline__ Slopes() : simple(true) {}
    /* `safe`: there is a target, or no logit is NaN where the weight is not. */
    __device__ __forceinline__ void add(int i, N of_top, N of_weight, bool safe) {
        top[i] = of_top;
        weight[i] = of_weight;
        simple = simple && ScaledExp<N>::in_fast_range(of_top) && of_weight == of_weight && safe;
    }
    __device__ __forceinline__ void settle() {
        if (simple)
#pragma unroll
            for (int i = 0; i < W; i++)
                weight[i] *= ScaledExp<N>(top[i]).factor;
    }
    /* The gradients in the place of logits: where that is simple, ... */
    __device__ __forceinline__ uint2 of(const uint2 &x) const {
        N g[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            g[i] = ScaledExp<N>(top[i]).exp(Of::number(x, i)) * weight[i];
        return Of::packed(g);
    }
    /* ... and always; y: less than 0 where there is no target. */
    __device__ __forceinline__ uint2 of(const uint2 &x, const int (&y)[W]) const {
        N g[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            g[i] = y[i] < 0 ? N(0) : exp_below(Of::number(x, i), top[i]) * weight[i];
        return Of::packed(g);
    }
};

#endif
