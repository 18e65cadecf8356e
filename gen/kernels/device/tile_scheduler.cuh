/* A queue of tiles that says beforehand what comes next. */
#ifndef GPULOSSI_TILE_SCHEDULER_CUH
#define GPULOSSI_TILE_SCHEDULER_CUH

#include "grid.cuh"

/* Shares out tiles among teams, in rising order. A team knows its tile and up to two after it; the one after those comes
 * with the word of a reduce. What is known at first is dealt out in turn, or, where that is asked for, so many sixteenths of
 * all: teams drift apart then, but nobody asks the counter meanwhile. Where tiles take long, dealing out less lets teams
 * end together. */
struct Ahead {
    enum { kMost = 3 };
    gpulossi_scratch *scratch;
    uint32_t tiles, teams, dealt, tile[kMost];
    int known; /* 1 to 3 */

    Ahead() = default;
    __device__ __forceinline__ Ahead(uint64_t scratch, int64_t tiles, uint32_t team, uint32_t teams, int known,
                                     uint32_t sixteenths)
        : scratch((gpulossi_scratch *)scratch), tiles((uint32_t)tiles), teams(teams),
          dealt(max((uint32_t)known, (uint32_t)tiles / teams * sixteenths / 16) * teams), known(known) {
#pragma unroll
        for (uint32_t i = 0; i < kMost; i++)
            tile[i] = min(team + i * teams, this->tiles);
    }
    __device__ __forceinline__ bool more() const {
        return tile[0] < tiles;
    }
    __device__ __forceinline__ uint32_t after(int i) const {
        return i == 0 ? tile[0] : i == 1 ? tile[1] : tile[2];
    }

    /* The word of the team's leader: the next tile, counted from those that are dealt out. It is waited for where it is
     * used. */
    __device__ __forceinline__ uint32_t fetch() const {
        uint32_t last = after(known - 1);
        if (last >= tiles)
            return tiles - dealt;
        return last + teams < dealt ? last + teams - dealt : count_up(&scratch->taken, tiles - dealt + teams);
    }
    __device__ __forceinline__ void advance(uint32_t word) {
        uint32_t last = min(word + dealt, tiles);
        tile[0] = tile[1];
        tile[1] = known == 2 ? last : tile[2];
        tile[2] = last;
    }
    /* The same where one tile is known. */
    __device__ __forceinline__ void advance_to(uint32_t word) {
        tile[0] = min(word + dealt, tiles);
    }
};

/* The same for kernels that know `most` tiles at most. */
template <int most> struct TileScheduler {
    gpulossi_scratch *scratch;
    uint32_t tiles, teams, dealt, tile[most];
    int known; /* 2 to `most` */

    __device__ __forceinline__ TileScheduler(uint64_t scratch, int64_t tiles, uint32_t team, uint32_t teams, int known)
        : scratch((gpulossi_scratch *)scratch), tiles((uint32_t)tiles), teams(teams), dealt((uint32_t)known * teams),
          known(known) {
#pragma unroll
        for (uint32_t i = 0; i < most; i++)
            tile[i] = min(team + i * teams, this->tiles);
    }
    __device__ __forceinline__ bool more() const { return tile[0] < tiles; }
    __device__ __forceinline__ uint32_t after(int n) const {
        uint32_t t = tile[0];
#pragma unroll
        for (int i = 1; i < most; i++)
            t = n == i ? tile[i] : t;
        return t;
    }
    __device__ __forceinline__ uint32_t last() const { return after(known - 1); }

    /* The leader asks for the tile after the last one that is known; it is waited for where it is used. */
    __device__ __forceinline__ uint32_t fetch() const {
        return last() >= tiles ? tiles - dealt : count_up(&scratch->taken, tiles - dealt + teams);
    }
    __device__ __forceinline__ void advance(uint32_t fetched) {
        const uint32_t next = min(fetched + dealt, tiles);
#pragma unroll
        for (int i = 0; i + 1 < most; i++)
            tile[i] = i + 1 == known ? next : tile[i + 1];
        if (known == most)
            tile[most - 1] = next;
    }
};

#endif
