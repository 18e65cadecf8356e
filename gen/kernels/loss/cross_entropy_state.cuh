/* The state of a row of cross-entropy: its online softmax, the sums over soft targets, and the class of the maximum. */
#ifndef GPULOSSI_CROSS_ENTROPY_STATE_CUH
#define GPULOSSI_CROSS_ENTROPY_STATE_CUH

#include "../device/online_softmax.cuh"

template <class Loss, class N> struct CrossEntropyState {
    /* The class of a row's maximum. The least of several counts, because a NaN is above any number, and the lowest class
     * of equal numbers is the result. It is as wide as a number, so that a state has no padding. */
    typedef typename Format<N>::Bits Best;

    OnlineSoftmax<N> softmax;
    N soft_sum;   /* sum of soft_c */
    N drop;       /* sum of soft_c (reference - z_c) */
    N best_value; /* largest number so far; inf if there is a NaN */
    Best best;    /* kNumber and its class, the class of a NaN, or kNone */

    static const Best kNumber = 0x80000000u, kNone = 0xffffffffu;
    /* The drop is relative to the reference, too, which therefore is the maximum of the first vectors. */
    static constexpr double kNoReference = -0x1.fffffffffffffp1023;

    DEVICE CrossEntropyState empty() {
        CrossEntropyState s = {OnlineSoftmax<N>::empty(), N(0), N(0), -Limits<N>::infinity(), kNone};
        if constexpr (sizeof(N) == 8)
            s.softmax.from = Loss::has_soft() ? kNoReference : 0;
        return s;
    }
    __device__ __forceinline__ void raise(N higher) {
        raise_drop(higher);
        softmax.raise(higher);
    }
    __device__ __forceinline__ void raise_drop(N higher) {
        if (Loss::has_soft() && softmax.must_rescale(higher) && soft_sum != 0)
            drop += soft_sum * (softmax.finite(higher) - softmax.reference());
    }
    /* Adds doubles to the softmax, and returns their differences to the reference, which becomes the maximum where it is far
     * off. */
    template <int m> __device__ __forceinline__ void add(const N (&x)[m], N (&differences)[m]) {
        int high[m];
        N e[m];
        softmax.max = largest_with(softmax.max, x);
        if (Loss::has_soft() && softmax.from == kNoReference)
            raise(softmax.max);
#pragma unroll 1
        for (bool is_done = false; !is_done;) {
#pragma unroll
            for (int i = 0; i < m; i++)
                differences[i] = e[i] = difference(x[i], softmax.from);
            is_done = exp_inside(e, high);
            if (is_done)
                continue;
            if (softmax.is_far_off()) {
                raise(softmax.max);
            } else {
                exp_at_ends(e, high);
                is_done = true;
            }
        }
        softmax.sum += in_halves<Sum>(e);
    }
    template <class Lanes> __device__ __forceinline__ void reduce(const Lanes &lanes) {
        raise(largest_over(lanes, softmax.max));
        softmax.sum = lanes.template over<Sum>(softmax.sum);
        if (Loss::has_soft()) {
            soft_sum = lanes.template over<Sum>(soft_sum);
            drop = lanes.template over<Sum>(drop);
        }
        if (Loss::finds_best()) {
            const N highest = largest_over(lanes, best_value);
            if (best >= kNumber && best_value != highest)
                best = kNone;
            best_value = highest;
            best = smallest_over(lanes, best);
        }
    }
    /* Adds the sums of another part of the row. */
    __device__ __forceinline__ void merge(CrossEntropyState other) {
        const N highest = larger(softmax.max, other.softmax.max);
        raise(highest);
        other.raise(highest);
        softmax.sum += other.softmax.sum;
        soft_sum += other.soft_sum;
        drop += other.drop;
    }
    __device__ __forceinline__ bool has_nan() const {
        return best < kNumber;
    }
    /* In a row with nothing above -inf it is the first class. */
    __device__ __forceinline__ int64_t argmax() const {
        return best == kNone ? 0 : (int64_t)(best & ~kNumber);
    }
};

#endif
