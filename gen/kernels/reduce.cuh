/* Sums and maxima over the threads that share a row, and over all blocks of a launch. Every order is fixed. */
#ifndef GPULOSSI_REDUCE_CUH
#define GPULOSSI_REDUCE_CUH

#include "numbers.cuh"

enum { kLanes = 32, kWarps = 32 };

struct Sum {
    template <class N> DEVICE N of(N a, N b) { return a + b; }
};
struct Maximum {
    template <class N> DEVICE N of(N a, N b) { return larger(a, b); }
};

/* The value over `width` neighbouring lanes, in all of them; width is a power of two. All lanes of the warp call. */
template <class Op, class N> DEVICE N over_lanes(N x, int width) {
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
        if (distance < width)
            x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

/* The threads that share a row: neighbouring lanes of a warp, or whole neighbouring warps of a block. */
struct Group {
    int size;
    int rank;       /* of this thread in its group */
    int64_t number; /* of this group in the grid */
    int64_t count;  /* of groups in the grid */
    int turn;       /* which of the two shared buffers is next */

    /* size 0: the whole grid is one group, which can't be folded. */
    __device__ __forceinline__ explicit Group(uint32_t threads) : size((int)threads), turn(0) {
        if (threads == 0) {
            size = (int)(gridDim.x * blockDim.x);
            rank = (int)(blockIdx.x * blockDim.x + threadIdx.x);
            number = 0;
            count = 1;
        } else {
            int shift = __popc(threads - 1);
            rank = (int)(threadIdx.x & (threads - 1));
            number = (int64_t)blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
            count = (int64_t)gridDim.x * (blockDim.x >> shift);
        }
    }

    /* Folds the states of the group's threads into one, the same in all of them. A state folds itself over some lanes;
     * between warps it goes through shared memory. Two buffers taken in turn need one barrier a fold: a warp writes a
     * buffer again only after a barrier that all its readers have passed. All threads of the group call. */
    template <class State> __device__ __forceinline__ void fold(State &state) {
        state.fold(size < kLanes ? size : kLanes);
        if (size > kLanes) {
            __shared__ State of_warp[2][kWarps];
            uint32_t warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
            uint32_t warps = (uint32_t)size / kLanes, first = warp & ~(warps - 1);
            if (lane == 0)
                of_warp[turn][warp] = state;
            wait();
            state = of_warp[turn][first + (lane & (warps - 1))];
            turn ^= 1;
            state.fold((int)warps);
        }
    }

    /* After it, what any thread of the group has read may be overwritten by another. */
    __device__ __forceinline__ void settle() const {
        if (size <= kLanes)
            __syncwarp();
        else if (size <= (int)blockDim.x)
            wait();
    }

  private:
    /* A barrier among the group's warps. */
    __device__ __forceinline__ void wait() const {
        asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.x / (uint32_t)size), "r"(size) : "memory");
    }
};

/* A sum and a divisor over all threads of the grid, in double. */
struct Total {
    double sum;
    double divisor;

    __device__ __forceinline__ void add(const Total &other) {
        sum += other.sum;
        divisor += other.divisor;
    }

    /* Over the lanes of a warp. Once a launch, so it stays a loop. */
    __device__ __forceinline__ void fold_warp() {
#pragma unroll 1
        for (int distance = kLanes / 2; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, distance);
            divisor += __shfl_xor_sync(0xffffffffu, divisor, distance);
        }
    }

    /* Folds the totals of a block's threads into thread 0. All threads of the block call; their number is a multiple of
     * the lanes of a warp. */
    __device__ __forceinline__ void fold_block() {
        __shared__ Total of_warp[kWarps];
        uint32_t warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes, warps = blockDim.x / kLanes;
        fold_warp();
        __syncthreads();
        if (lane == 0)
            of_warp[warp] = *this;
        __syncthreads();
        sum = lane < warps ? of_warp[lane].sum : 0.0;
        divisor = lane < warps ? of_warp[lane].divisor : 0.0;
        fold_warp();
    }

    /* Folds the totals of all blocks. True in every thread of the one block that finishes last, whose thread 0 then has
     * the result; `done` counts the blocks and is zero again afterwards. */
    __device__ __forceinline__ bool fold_grid(gpulossi_scratch *scratch, uint32_t *done) {
        gpulossi_partial *partials = (gpulossi_partial *)(scratch + 1);
        __shared__ bool last;
        fold_block();
        if (threadIdx.x == 0) {
            partials[blockIdx.x].sum = sum;
            partials[blockIdx.x].divisor = divisor;
            __threadfence();
            last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
        }
        __syncthreads();
        if (!last)
            return false;
        __threadfence();
        sum = divisor = 0.0;
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
            sum += __ldcg(&partials[i].sum);
            divisor += __ldcg(&partials[i].divisor);
        }
        fold_block();
        return true;
    }
};

#endif
