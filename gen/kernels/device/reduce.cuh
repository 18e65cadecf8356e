/* Reductions over the threads that share a row. Their order is fixed. */
#ifndef GPULOSSI_REDUCE_CUH
#define GPULOSSI_REDUCE_CUH

#include "math.cuh"

enum { kLanes = 32, kLaneShift = 5, kWarps = GPULOSSI_BLOCK / kLanes, kGroups = GPULOSSI_GROUPS, kMostWarps = 32 };

/* Numbers that are the same in all lanes of a warp, and that the compiler knows to be. Around loops and branches by other
 * numbers it expects a diverged warp. Each collective instruction then has a second copy of ten instructions, and the
 * numbers of the loop take a register a lane. All lanes of the warp call. */
DEVICE uint32_t uniform_warp() {
    return __shfl_sync(0xffffffffu, threadIdx.x / kLanes, 0);
}
DEVICE bool uniform(bool condition) {
    return __any_sync(0xffffffffu, condition);
}

struct Sum {
    template <class N> DEVICE N of(N a, N b) { return a + b; }
};
struct Maximum {
    template <class N> DEVICE N of(N a, N b) { return larger(a, b); }
};
struct LargerNumber {
    template <class N> DEVICE N of(N a, N b) { return larger_number(a, b); }
};
struct Minimum {
    template <class N> DEVICE N of(N a, N b) { return b < a ? b : a; }
};

/* Reduces n numbers of a thread, from x[first] on, as a binary tree. The dependency chain is short, and the error of a
 * sum grows only with log n. */
template <class Op, int first, int n> struct Halves {
    template <class N, int all> DEVICE N over(const N (&x)[all]) {
        return Op::of(Halves<Op, first, n / 2>::over(x), Halves<Op, first + n / 2, n - n / 2>::over(x));
    }
};
template <class Op, int first> struct Halves<Op, first, 1> {
    template <class N, int all> DEVICE N over(const N (&x)[all]) { return x[first]; }
};
template <class Op, class N, int n> DEVICE N in_halves(const N (&x)[n]) {
    return Halves<Op, 0, n>::over(x);
}
/* The sum of the products of n elements, where n is even. */
template <class N, int n> DEVICE N products_in_halves(const N (&x)[n], const N (&y)[n]) {
    N part[n / 2];
#pragma unroll
    for (int i = 0; i < n / 2; i++)
        part[i] = fma(x[i], y[i], x[n / 2 + i] * y[n / 2 + i]);
    return in_halves<Sum>(part);
}

template <class N> DEVICE N products_in_halves(const N (&x)[1], const N (&y)[1]) {
    return x[0] * y[0];
}

/* The largest element of array `a` of K vectors, ignoring NaN. Newer GPUs compare two elements of 16 bits at a time. */
template <class E, int K, int A, bool in_pairs> struct Largest {
    DEVICE typename E::Number of(const Vector<E> (&x)[K][A], int a) {
        enum { W = Width<E>::value };
        typename E::Number part[K * W];
#pragma unroll
        for (int i = 0; i < K * W; i++)
            part[i] = x[i / W][a].get(i % W);
        return in_halves<Maximum>(part);
    }
};
template <class E, int K, int A> struct Largest<E, K, A, true> {
    DEVICE typename E::Number of(const Vector<E> (&x)[K][A], int a) {
        Vector<E> row_max = x[0][a];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int k = 1; k < K; k++)
                row_max.word[i] = E::larger_of_pairs(row_max.word[i], x[k][a].word[i]);
        row_max.word[0] = E::larger_of_pairs(E::larger_of_pairs(row_max.word[0], row_max.word[1]),
                                             E::larger_of_pairs(row_max.word[2], row_max.word[3]));
        return larger(row_max.get(0), row_max.get(1));
    }
};
template <class E, int K, int A> DEVICE typename E::Number largest(const Vector<E> (&x)[K][A], int a) {
    return Largest<E, K, A, (MODULE_TARGET >= 80 && sizeof(typename E::Bits) == 2)>::of(x, a);
}

/* The largest element of K vectors, ignoring NaN. With `negated`, elements are negated first. */
template <class E, int K, bool in_pairs = (sizeof(typename E::Bits) == 2)> struct LargestOf {
    typedef typename E::Number N;
    DEVICE N of(const Vector<E> (&x)[K], bool negated) {
        enum { W = Width<E>::value };
        N part[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            N of_vector[W];
            x[k].unpack(of_vector);
            if (negated)
#pragma unroll
                for (int i = 0; i < W; i++)
                    of_vector[i] = -of_vector[i];
            part[k] = in_halves<Maximum>(of_vector);
        }
        return in_halves<Maximum>(part);
    }
};
/* A comparison with no NaN takes 3 instructions of doubles, and their maximum 8. */
template <int K> struct LargestOf<f64, K, false> {
    DEVICE double of(const Vector<f64> (&x)[K], bool negated) {
        double of_parity[2] = {-CUDART_INF, -CUDART_INF};
#pragma unroll
        for (int i = 0; i < 2 * K; i++) {
            const double given = x[i / 2].get(i % 2), number = negated ? -given : given;
            of_parity[i % 2] = number > of_parity[i % 2] ? number : of_parity[i % 2];
        }
        return of_parity[0] > of_parity[1] ? of_parity[0] : of_parity[1];
    }
};
/* The largest of a number and others, or any of them if there is a NaN. */
template <int m> DEVICE double largest_with(double number, const double (&x)[m]) {
    double of_parity[2] = {x[0] > number ? x[0] : number, x[1]};
#pragma unroll
    for (int i = 2; i < m; i++)
        of_parity[i % 2] = x[i] > of_parity[i % 2] ? x[i] : of_parity[i % 2];
    return of_parity[1] > of_parity[0] ? of_parity[1] : of_parity[0];
}
template <int K> struct LargestOf<any16, K, true> {
    DEVICE float of(const Vector<any16> (&x)[K], bool negated) {
        if (!runs_on_sm_80())
            return LargestOf<any16, K, false>::of(x, negated);
        const uint32_t flip = negated ? 0x80008000u : 0;
        uint32_t largest[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            largest[i] = x[0].word[i] ^ flip;
#pragma unroll
            for (int k = 1; k < K; k++)
                largest[i] = any16::larger_of_pairs(largest[i], x[k].word[i] ^ flip);
        }
        const uint32_t all = any16::larger_of_pairs(any16::larger_of_pairs(largest[0], largest[1]),
                                                    any16::larger_of_pairs(largest[2], largest[3]));
        return larger(any16::widen_low(all), any16::widen_high(all));
    }
};

/* The larger elements of two vectors, ignoring NaN. */
template <class E> DEVICE Vector<E> larger_of(const Vector<E> &a, const Vector<E> &b) {
    enum { W = Width<E>::value };
    Vector<E> y;
    if constexpr (MODULE_TARGET >= 80 && sizeof(typename E::Bits) == 2) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            y.word[i] = E::larger_of_pairs(a.word[i], b.word[i]);
    } else {
        typename E::Number x[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            x[i] = larger(a.get(i), b.get(i));
        y.fill(x);
    }
    return y;
}

/* Reductions over all lanes of a warp, and over `width` neighbouring ones, a power of two. Every lane gets the result
 * of its lanes. All lanes of the warp call. */
struct WholeWarp {
    template <class Op, class N> __device__ __forceinline__ N over(N x) const {
#pragma unroll
        for (int distance = kLanes / 2; distance > 0; distance /= 2)
            x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, distance));
        return x;
    }
    template <class Op, class N, int m> __device__ __forceinline__ void over_all(N (&x)[m]) const {
#pragma unroll
        for (int i = 0; i < m; i++)
            x[i] = over<Op>(x[i]);
    }
    /* The lanes for which a condition is true. */
    DEVICE int count(bool condition) {
        return __popc(__ballot_sync(0xffffffffu, condition));
    }
};
struct SomeLanes {
    int width;
    template <class Op, class N> __device__ __forceinline__ N over(N x) const {
#pragma unroll 1
        for (int distance = width / 2; distance > 0; distance /= 2)
            x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, distance));
        return x;
    }
    /* Reduces several numbers in one loop. */
    template <class Op, class N, int m> __device__ __forceinline__ void over_all(N (&x)[m]) const {
#pragma unroll 1
        for (int distance = width / 2; distance > 0; distance /= 2)
#pragma unroll
            for (int i = 0; i < m; i++)
                x[i] = Op::of(x[i], __shfl_xor_sync(0xffffffffu, x[i], distance));
    }
    __device__ __forceinline__ int count(bool condition) const {
        return over<Sum>((int)condition);
    }
};

/* SomeLanes for at most `most` lanes, unrolled. */
template <int most> struct UpTo {
    int width;
    template <class Op, class N> __device__ __forceinline__ N over(N x) const {
        N all[1] = {x};
        over_all<Op>(all);
        return all[0];
    }
    template <class Op, class N, int m> __device__ __forceinline__ void over_all(N (&x)[m]) const {
#pragma unroll
        for (int distance = most / 2; distance > 0; distance /= 2)
            if (distance < width)
#pragma unroll
                for (int i = 0; i < m; i++)
                    x[i] = Op::of(x[i], __shfl_xor_sync(0xffffffffu, x[i], distance));
    }
};

/* SomeLanes where the other lanes of the warp repeat the numbers of the first ones. Only over_all() is unrolled. */
template <int most> struct Repeated : SomeLanes {
    __device__ __forceinline__ explicit Repeated(int width) : SomeLanes{width} {}
    template <class Op, class N, int m> __device__ __forceinline__ void over_all(N (&x)[m]) const {
        UpTo<most> lanes = {width};
        lanes.template over_all<Op>(x);
    }
};

/* The threads of a block with the same lane in `count` neighbouring groups of `width` threads. All threads call. */
template <int threads> struct AcrossGroups {
    int width, count;
    template <class Op, class N> __device__ __forceinline__ N over(N x) const {
        __shared__ N of_threads[threads];
        of_threads[threadIdx.x] = x;
        __syncthreads();
        x = of_threads[threadIdx.x % (uint32_t)width];
#pragma unroll 1
        for (int i = 1; i < count; i++)
            x = Op::of(x, of_threads[threadIdx.x % (uint32_t)width + (uint32_t)(i * width)]);
        __syncthreads();
        return x;
    }
};

/* The largest number over lanes, none of which is NaN. Floats without NaN map to integers of the same order, which
 * newer GPUs reduce over a whole warp in one instruction. */
template <class Lanes, class N> DEVICE N largest_over(const Lanes &lanes, N x) {
    return lanes.template over<LargerNumber>(x);
}
DEVICE float largest_over(const WholeWarp &lanes, float x) {
    if (!is_sm_80())
        return lanes.over<Maximum>(x);
    int32_t bits = __float_as_int(x), all;
    asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;"
                 : "=r"(all)
                 : "r"(bits ^ (bits >> 31 & 0x7fffffff))
                 : "memory");
    return __int_as_float(all ^ (all >> 31 & 0x7fffffff));
}
template <int most> DEVICE float largest_over(const Repeated<most> &, float x) {
    return largest_over(WholeWarp(), x);
}
/* The high words of doubles are reduced first, and then the low words of the lanes that have the largest. */
DEVICE double largest_over(const WholeWarp &lanes, double x) {
    if (!is_sm_80())
        return lanes.over<LargerNumber>(x);
    const int32_t sign = __double2hiint(x) >> 31, high = __double2hiint(x) ^ (sign & 0x7fffffff);
    int32_t highest;
    asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(highest) : "r"(high) : "memory");
    uint32_t low = high == highest ? (uint32_t)(__double2loint(x) ^ sign) : 0, lowest;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(lowest) : "r"(low) : "memory");
    const int32_t of_all = highest >> 31;
    return __hiloint2double(highest ^ (of_all & 0x7fffffff), (int32_t)lowest ^ of_all);
}
template <int most> DEVICE double largest_over(const Repeated<most> &, double x) {
    return largest_over(WholeWarp(), x);
}

/* The smallest integer over lanes. */
template <class Lanes, class I> DEVICE I smallest_over(const Lanes &lanes, I x) {
    return lanes.template over<Minimum>(x);
}
DEVICE uint32_t smallest_over(const WholeWarp &lanes, uint32_t x) {
    if (!is_sm_80())
        return lanes.over<Minimum>(x);
    uint32_t all;
    asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(all) : "r"(x) : "memory");
    return all;
}
template <int most> DEVICE uint32_t smallest_over(const Repeated<most> &, uint32_t x) {
    return smallest_over(WholeWarp(), x);
}

/* The sum of a few integers over lanes. */
template <class Lanes> DEVICE int sum_over(const Lanes &lanes, int x) {
    return lanes.template over<Sum>(x);
}
DEVICE int sum_over(const WholeWarp &lanes, int x) {
    if (!is_sm_80())
        return lanes.over<Sum>(x);
    int sum;
    asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(sum) : "r"(x) : "memory");
    return sum;
}

/* The threads that share a row: neighbouring lanes of a warp, or whole neighbouring warps of a block. */
struct Group {
    int size, shift; /* threads of a group, and log2 of them */
    int rank;        /* of this thread in its group */
    int number;      /* of this group in its block */
    int count;       /* groups of a block */
    bool is_uniform; /* The compiler knows that the warps of a group have the same number. */

    __device__ __forceinline__ explicit Group(uint32_t threads, bool is_uniform = false)
        : size((int)threads), is_uniform(is_uniform) {
        shift = __popc(threads - 1);
        rank = (int)(threadIdx.x & (threads - 1));
        number = (int)(threadIdx.x >> shift);
        count = (int)(blockDim.x >> shift);
    }

    /* Reduces the states of the group's threads into one, which all of them get. A state reduces itself over lanes;
     * between warps it goes through shared memory. Two alternating buffers, 0 and 1, need one barrier a reduction. A
     * warp writes a buffer again only after a barrier that all its readers have passed. All threads of the group call.
     * Memory that one of them has read before the call may be overwritten by another after it. */
    template <class State> __device__ __forceinline__ void reduce(State &state, int buffer) const {
        if (size < kLanes) {
            SomeLanes lanes = {size};
            __syncwarp();
            state.reduce(lanes);
            return;
        }
        state.reduce(WholeWarp());
        if (size == kLanes) {
            __syncwarp();
        } else {
            __shared__ State of_warp[2][kWarps];
            uint32_t warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
            uint32_t warps = (uint32_t)size / kLanes, first = warp & ~(warps - 1);
            if (lane == 0)
                of_warp[buffer][warp] = state;
            wait();
            state = of_warp[buffer][first + (lane & (warps - 1))];
            SomeLanes lanes = {(int)warps};
            state.reduce(lanes);
        }
    }

    /* The barrier of reduce() alone: memory that was read before it may be overwritten after it. */
    __device__ __forceinline__ void settle() const {
        if (size <= kLanes)
            __syncwarp();
        else
            wait();
    }

  private:
    /* A barrier among the group's warps. Barrier 0 is left to the whole block, where other groups may wait already. The
     * numbers are literals: a block that computes them is assumed to need all sixteen, and fewer blocks fit. */
    __device__ __forceinline__ void wait() const {
        static_assert(kGroups == 4, "a case for each group of a block");
        switch (is_uniform ? (int)(uniform_warp() >> (shift - kLaneShift)) : number) {
        case 0:
            asm volatile("bar.sync 1, %0;" ::"r"(size) : "memory");
            break;
        case 1:
            asm volatile("bar.sync 2, %0;" ::"r"(size) : "memory");
            break;
        case 2:
            asm volatile("bar.sync 3, %0;" ::"r"(size) : "memory");
            break;
        default:
            asm volatile("bar.sync 4, %0;" ::"r"(size) : "memory");
        }
    }
};

#endif
