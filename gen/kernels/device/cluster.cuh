/* Clusters of blocks, on GPUs that have those: what their blocks tell each other.
 *
 * The code is that of older GPUs but for the instructions spelled out here. */
#ifndef GPULOSSI_CLUSTER_CUH
#define GPULOSSI_CLUSTER_CUH

#include "mbarrier.cuh"

/* The blocks of a cluster. All threads of all of them call what reduces or waits. */
struct Cluster {
    uint32_t size, rank, number, count; /* of blocks, of this one; of this cluster, of clusters */

    __device__ __forceinline__ Cluster() {
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        number = blockIdx.x / size;
        count = gridDim.x / size;
    }
    /* Of this warp, among those of all blocks: neighbours are in different ones. */
    __device__ __forceinline__ uint32_t warp() const { return threadIdx.x / kLanes * size + rank; }
    __device__ __forceinline__ bool leads() const { return rank == 0 && threadIdx.x == 0; }

    /* Everything before is seen by all afterwards. */
    DEVICE void wait() { asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory"); }

    /* Writes to where block `of` has what this one has here. */
    template <class T> DEVICE void put(T *here, uint32_t of, const T &x) {
        uint32_t there, words[sizeof(T) / 4];
        memcpy(words, &x, sizeof x);
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(there)
            : "r"((uint32_t)__cvta_generic_to_shared(here)), "r"(of));
#pragma unroll
        for (int i = 0; i < (int)(sizeof(T) / 4); i++)
            asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(there + 4 * i), "r"(words[i]) : "memory");
    }

    /* All blocks send each other what they know, of several kinds of things. Number n of a kind has the barrier and the
     * buffers of n % 2: nobody sends it before all have sent n - 1, and so have read n - 2. */
    enum Kind { kStates, kSums, kLateSums, kKinds };
    DEVICE Arrival &arrival(Kind kind, uint32_t number) {
        __shared__ Arrival of_kinds[kKinds][2];
        return of_kinds[kind][number % 2];
    }
    DEVICE uint32_t parity(uint32_t number) {
        return number / 2 % 2;
    }
    /* Before anything is sent. */
    DEVICE void begin() {
        if (threadIdx.x < 2 * kKinds)
            arrival((Kind)(threadIdx.x / 2), threadIdx.x).begin();
        wait();
    }
    /* To the same place in all blocks, whose barriers it arrives at. A warp calls. A block that is alone has nobody to
     * send to. */
    template <class T>
    __device__ __forceinline__ void send(const Arrival &arrived, T (&of_block)[GPULOSSI_CLUSTER], const T &x) const {
        uint32_t lane = threadIdx.x % kLanes;
        if (size == 1) {
            if (lane == 0) {
                of_block[0] = x;
                arrived.arrive();
            }
            return;
        }
        if (lane == 0)
            Arrival::expect(arrived.address(), size * (uint32_t)sizeof x);
        if (lane < size)
            arrived.put(lane, &of_block[rank], x);
    }
    /* Nobody leaves while others may still send to it. */
    DEVICE void leave() {
        asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory");
    }

    /* Reduces the states of all threads into one, the same in all of them, and hands out the leader's word; `empty` is the state
     * of nothing. No thread goes on before the leader's warp knows what it has read as `seen`. Blocks have `warps`, a power
     * of two, or may have fewer. */
    template <int warps = kWarps, bool fewer = false, class State>
    __device__ __forceinline__ void reduce(State &state, const State &empty, uint32_t &word, uint32_t seen, Kind kind,
                                           uint32_t number) const {
        struct alignas(16) Message {
            State state;
            uint32_t word, seen; /* the leader's word; no one reads the other */
        };
        __shared__ State of_warp[2][warps];
        __shared__ Message of_block[2][GPULOSSI_CLUSTER];
        uint32_t warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
        Arrival &arrived = arrival(kind, number);
        state.reduce(WholeWarp());
        if (lane == 0)
            of_warp[number % 2][warp] = state;
        if (number < 2 && threadIdx.x >= size && threadIdx.x < GPULOSSI_CLUSTER)
            of_block[number][threadIdx.x].state = empty;
        if (fewer && number < 2 && threadIdx.x < warps && threadIdx.x >= blockDim.x / kLanes)
            of_warp[number][threadIdx.x] = empty;
        __syncthreads();
        if (warp == 0) {
            state = of_warp[number % 2][lane % warps];
            state.reduce(Repeated<warps>(warps));
            Message message;
            memset(&message, 0, sizeof message);
            message.state = state;
            message.word = __shfl_sync(0xffffffffu, word, 0);
            message.seen = __shfl_xor_sync(0xffffffffu, seen, 1);
            send(arrived, of_block[number % 2], message);
        }
        arrived.wait(parity(number));
        state = of_block[number % 2][lane % GPULOSSI_CLUSTER].state;
        word = of_block[number % 2][0].word;
        state.reduce(Repeated<GPULOSSI_CLUSTER>(GPULOSSI_CLUSTER));
    }
};

#endif
