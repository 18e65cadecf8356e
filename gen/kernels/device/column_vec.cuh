/* Vectors of 8 bytes: neighbouring columns of a class, where the classes are not innermost. */
#ifndef GPULOSSI_COLUMN_VEC_CUH
#define GPULOSSI_COLUMN_VEC_CUH

#include "vec16.cuh"
#include "math.cuh"

template <class E> struct ColumnVector {
    typedef typename E::Number N;
    typedef typename E::Bits Bits;
    enum { W = GPULOSSI_PLANE_BYTES / sizeof(Bits), kSmemSize = 23 * GPULOSSI_BLOCK };
    static_assert(sizeof(N) == 4, "two words have 8 bytes");

    /* The shared memory of a block, in either schedule. */
    DEVICE uint2 *smem() {
        __shared__ uint2 of_block[kSmemSize];
        return of_block;
    }
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

/* The factors of the gradients of a thread's columns: g = exp(x - row_max) weight, or 0 in a column without a
 * target. */
template <class E> struct Slopes {
    typedef typename E::Number N;
    typedef ColumnVector<E> Of;
    enum { W = Of::W };
    N row_max[W], weight[W];
    bool simple; /* No logit or weight is NaN, and every row maximum is in the fast range. */

    __device__ __forceinline__ Slopes() : simple(true) {}
    /* Each column is added before settle(). `safe`: the column has a target, or its weight is NaN if a logit is. */
    __device__ __forceinline__ void add(int i, N of_max, N of_weight, bool safe) {
        row_max[i] = of_max;
        weight[i] = of_weight;
        simple = simple && ScaledExp<N>::in_fast_range(of_max) && of_weight == of_weight && safe;
    }
    __device__ __forceinline__ void settle() {
        if (simple)
#pragma unroll
            for (int i = 0; i < W; i++)
                weight[i] *= ScaledExp<N>(row_max[i]).factor;
    }
    /* The gradients of a vector of logits, if `simple`. */
    __device__ __forceinline__ uint2 of(const uint2 &x) const {
        N g[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            g[i] = ScaledExp<N>(row_max[i]).exp(Of::number(x, i)) * weight[i];
        return Of::packed(g);
    }
    /* The gradients of a vector of logits in any case. A column without a target has y < 0. */
    __device__ __forceinline__ uint2 of(const uint2 &x, const int (&y)[W]) const {
        N g[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            g[i] = y[i] < 0 ? N(0) : exp_below(Of::number(x, i), row_max[i]) * weight[i];
        return Of::packed(g);
    }
};

#endif
