/* Thread block clusters, and the messages between their blocks.
 *
 * The C++ is compiled for older GPUs, so the instructions that need clusters are inline assembly. */
#ifndef GPULOSSI_CLUSTER_CUH
#define GPULOSSI_CLUSTER_CUH

#include "mbarrier.cuh"

/* The cluster of this block. All threads of all its blocks call the functions that reduce or wait. */
struct Cluster {
    uint32_t size, rank, number, count; /* This block has a rank below `size`, in cluster `number` of `count`. */

    DEVICE uint32_t blocks() {
        uint32_t count;
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
        return count;
    }
    __device__ __forceinline__ Cluster() {
        size = blocks();
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        number = blockIdx.x / size;
        count = gridDim.x / size;
    }
    /* The rank in the cluster of a warp of this block. Warps of neighbouring ranks are in different blocks. */
    __device__ __forceinline__ uint32_t rank_of(uint32_t warp) const { return warp * size + rank; }
    __device__ __forceinline__ bool leads() const { return rank == 0 && threadIdx.x == 0; }

    /* A cluster barrier with release and acquire: all threads see the writes before it. */
    DEVICE void wait() { asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory"); }

    /* Writes x to the shared memory of block `of`, to the variable that is `here` in this block. */
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

    /* Every block sends its messages to all blocks, in several kinds. Message n of a kind uses the barrier and the
     * buffers n % 2. A block sends it only after all blocks have sent message n - 1, and thus have read message n -
     * 2. */
    enum Kind { kStates, kSums, kLateSums, kKinds };
    DEVICE Arrival &arrival(Kind kind, uint32_t number) {
        __shared__ Arrival of_kinds[kKinds][2];
        return of_kinds[kind][number % 2];
    }
    DEVICE uint32_t parity(uint32_t number) {
        return number / 2 % 2;
    }
    /* Initializes the barriers, before the first message. */
    DEVICE void begin() {
        if (threadIdx.x < 2 * kKinds)
            arrival((Kind)(threadIdx.x / 2), threadIdx.x).begin();
        wait();
    }
    /* Sends x to all blocks, to the element of this block's rank, and arrives at the barrier of each. A warp calls. A
     * cluster of one block needs no remote copy. */
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
    /* No block exits while another may still send to it. */
    DEVICE void leave() {
        asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory");
    }

    /* Reduces the states of all threads into one, and broadcasts it with the leader's word. `empty` is the state of no
     * elements. No thread returns before the loads of the leader's warp into `seen` have completed. A block has `warps`
     * warps, a power of two; with `fewer` it may have fewer. */
    template <int warps = kWarps, bool fewer = false, class State>
    __device__ __forceinline__ void reduce(State &state, const State &empty, uint32_t &word, uint32_t seen, Kind kind,
                                           uint32_t number) const {
        struct alignas(16) Message {
            State state;
            uint32_t word, seen; /* Nobody reads `seen`: it only makes the message depend on the loads. */
        };
        __shared__ State of_warp[2][warps];
        __shared__ Message of_block[2][GPULOSSI_CLUSTER];
        uint32_t warp = uniform_warp(), lane = threadIdx.x % kLanes;
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
        Arrival::wait_by_warp(arrived.address(), parity(number));
        word = of_block[number % 2][0].word;
        if (size == 1) {
            state = of_block[number % 2][0].state;
            return;
        }
        state = of_block[number % 2][lane % GPULOSSI_CLUSTER].state;
        state.reduce(Repeated<GPULOSSI_CLUSTER>(GPULOSSI_CLUSTER));
    }
};

#endif
