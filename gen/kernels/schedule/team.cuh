/* The warps that share a row: neighbours in a block, or all of a cluster of blocks. */
#ifndef GPULOSSI_TEAM_CUH
#define GPULOSSI_TEAM_CUH

#include "../device/cluster.cuh"

class Team {
    enum { kRoundWarps = 16 };
    static_assert(GPULOSSI_WIDE_BLOCK / kLanes <= kRoundWarps, "a reduction has room for all warps of a block");
    Cluster cluster;

  public:
    enum {
        kMaxWarps = GPULOSSI_WIDE_BLOCK / kLanes,
        kBarrier = 1 /* and the next ones are those of the teams of a block */
    };
    int warps, warp, rank;  /* how many, this thread's one among them, and this thread */
    uint32_t number, count; /* of this team, of teams */
    int in_block;           /* number of this team in its block */

    __device__ __forceinline__ explicit Team(uint32_t threads) {
        if (has_format(GPULOSSI_FORMAT_CLUSTER)) {
            cluster = Cluster();
            warps = (int)(cluster.size * blockDim.x / kLanes);
            warp = (int)cluster.warp();
            rank = (int)(cluster.rank * blockDim.x + threadIdx.x);
            number = cluster.number;
            count = cluster.count;
            in_block = 0;
            Cluster::begin();
        } else {
            const uint32_t in_a_block = blockDim.x / threads;
            warps = (int)(threads / kLanes);
            in_block = (int)(threadIdx.x / threads);
            rank = (int)(threadIdx.x % threads);
            warp = rank / kLanes;
            number = blockIdx.x * in_a_block + (uint32_t)in_block;
            count = gridDim.x * in_a_block;
        }
    }
    __device__ __forceinline__ bool leads() const { return rank == 0; }
    /* Nobody leaves while others may still tell it something. */
    __device__ __forceinline__ void end() const {
        if (has_format(GPULOSSI_FORMAT_CLUSTER))
            Cluster::leave();
    }

    /* Reduces a state over the team, and hands out the leader's next tile; the `number` of reductions before it. Memory that
     * the leader's warp has `seen` may be written over afterwards. */
    template <class State>
    __device__ __forceinline__ void reduce(State &state, uint32_t &next_tile, uint32_t seen, uint32_t number) const {
        if (has_format(GPULOSSI_FORMAT_CLUSTER))
            cluster.reduce<kRoundWarps, true>(state, State::empty(), next_tile, seen, Cluster::kStates, number);
        else
            reduce_block(state, next_tile, number % 2);
    }

  private:
    template <class State>
    __device__ __forceinline__ void reduce_block(State &state, uint32_t &next_tile, uint32_t phase) const {
        __shared__ State smem_state[2][kMaxWarps];
        __shared__ uint32_t smem_next_tile[2][kMaxWarps];
        state.reduce(WholeWarp());
        if (warps == 1) {
            next_tile = __shfl_sync(0xffffffffu, next_tile, 0);
            __syncwarp(); /* what a lane has read may be written over by another */
            return;
        }
        const uint32_t this_warp = threadIdx.x / kLanes, first = this_warp - (uint32_t)warp,
                       lane = threadIdx.x % kLanes;
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
    /* A barrier among the team's warps. Its number is spelled out, as a block that computes it is taken to need all sixteen. */
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
