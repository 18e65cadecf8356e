/* The warps that share a row: neighbouring warps of a block, or all warps of a cluster. */
#ifndef GPULOSSI_TEAM_CUH
#define GPULOSSI_TEAM_CUH

#include "../device/cluster.cuh"

class Team {
    enum { kRoundWarps = 16 };
    static_assert(GPULOSSI_WIDE_BLOCK / kLanes <= kRoundWarps, "a reduction has room for all warps of a block");
    Cluster cluster;

  public:
    /* The teams of a block use the barriers from kBarrier on. */
    enum { kMaxWarps = GPULOSSI_WIDE_BLOCK / kLanes, kBarrier = 1 };
    int warps, warp, rank;  /* warps of the team; this thread's warp, and its rank among the team's threads */
    uint32_t number, count; /* this team of `count` teams */
    int in_block;           /* this team's number in its block */

    /* With `is_uniform` the compiler knows that the numbers of a team in a block are those of all its lanes. */
    __device__ __forceinline__ Team(uint32_t threads, bool is_uniform) {
        if (has_format(GPULOSSI_FORMAT_CLUSTER)) {
            cluster = Cluster();
            warps = (int)(cluster.size * blockDim.x / kLanes);
            warp = (int)cluster.rank_of(is_uniform ? uniform_warp() : threadIdx.x / kLanes);
            rank = (int)(cluster.rank * blockDim.x + threadIdx.x);
            number = cluster.number;
            count = cluster.count;
            in_block = 0;
            Cluster::begin();
        } else if (has_format(GPULOSSI_FORMAT_ONE_STEP)) {
            of_block(kLanes, is_uniform);
        } else {
            of_block(threads, is_uniform);
        }
    }
    __device__ __forceinline__ bool leads() const { return rank == 0; }
    /* The blocks of a cluster, and the rank of this one. */
    DEVICE int blocks() { return (int)Cluster::blocks(); }
    __device__ __forceinline__ int block() const { return (int)cluster.rank; }
    /* The team's warps in this block. */
    __device__ __forceinline__ int warps_in_block() const {
        return has_format(GPULOSSI_FORMAT_CLUSTER) ? (int)(blockDim.x / kLanes) : warps;
    }
    /* A barrier among the team's threads in this block. */
    __device__ __forceinline__ void settle() const {
        if (has_format(GPULOSSI_FORMAT_CLUSTER))
            __syncthreads();
        else if (warps == 1)
            __syncwarp();
        else
            wait();
    }
    /* No block of a cluster exits while others may still send to it. */
    __device__ __forceinline__ void end() const {
        if (has_format(GPULOSSI_FORMAT_CLUSTER))
            Cluster::leave();
    }

    /* Reduces a state over the team, and broadcasts the leader's next tile. A team of one warp does so only if it needs
     * the tile, because that waits for it. `number` counts the earlier reductions of the kind. A block needs only its
     * parity. Memory that the leader's warp has loaded into `seen` may be overwritten afterwards. Each kind has a State of
     * its own. */
    template <Cluster::Kind kind = Cluster::kStates, class State>
    __device__ __forceinline__ void reduce(State &state, bool needs_tile, uint32_t &next_tile, uint32_t seen,
                                           uint32_t number) const {
        if (has_format(GPULOSSI_FORMAT_CLUSTER))
            cluster.reduce<kRoundWarps, true>(state, State::empty(), next_tile, seen, kind, number);
        else
            reduce_block(state, needs_tile, next_tile, number % 2);
    }

  private:
    /* Divides the block into teams of `threads` threads. A constant number needs no division. */
    __device__ __forceinline__ void of_block(uint32_t threads, bool is_uniform) {
        const uint32_t teams_of_block = blockDim.x / threads;
        warps = (int)(threads / kLanes);
        const uint32_t first = is_uniform ? uniform_warp() * kLanes : threadIdx.x;
        in_block = (int)(first / threads);
        warp = (int)(first % threads / kLanes);
        rank = (int)(threadIdx.x % threads);
        number = blockIdx.x * teams_of_block + (uint32_t)in_block;
        count = gridDim.x * teams_of_block;
    }
    template <class State>
    __device__ __forceinline__ void reduce_block(State &state, bool needs_tile, uint32_t &next_tile,
                                                 uint32_t phase) const {
        __shared__ State smem_state[2][kMaxWarps];
        __shared__ uint32_t smem_next_tile[2][kMaxWarps];
        state.reduce(WholeWarp());
        if (warps == 1) {
            next_tile = needs_tile ? __shfl_sync(0xffffffffu, next_tile, 0) : 0;
            __syncwarp(); /* Other lanes may overwrite memory that this one has read. */
            return;
        }
        const uint32_t this_warp = uniform_warp(), first = this_warp - (uint32_t)warp, lane = threadIdx.x % kLanes;
        if (lane == 0) {
            smem_state[phase][this_warp] = state;
            smem_next_tile[phase][this_warp] = next_tile;
        }
        wait();
        state = State::empty();
        if (lane < (uint32_t)warps)
            state = smem_state[phase][first + lane];
        next_tile = smem_next_tile[phase][first];
        state.reduce(WholeWarp());
    }
    /* A barrier among the team's warps. Its number is a literal: a block that computes it is assumed to need all
     * sixteen. */
    __device__ __forceinline__ void wait() const {
        const int threads = kLanes * warps;
        static_assert(GPULOSSI_GROUPS == 4, "a case for each team of a block that has more than a warp");
        switch (in_block) {
        case 0:
            asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
            break;
        case 1:
            asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory");
            break;
        case 2:
            asm volatile("bar.sync 3, %0;" ::"r"(threads) : "memory");
            break;
        default:
            asm volatile("bar.sync 4, %0;" ::"r"(threads) : "memory");
        }
    }
};

#endif
