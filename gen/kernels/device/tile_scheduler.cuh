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

/* Deals rows out to teams by tiles of `run` rows, a power of 2, in rising order. A team knows the next rows, up to `most` of
 * them. The tile after these comes from a counter, which the team's leader asks a row ahead, so that nobody waits for it. */
template <int most> struct TileScheduler {
    gpulossi_scratch *scratch;
    uint32_t rows, run, tiles, teams, dealt; /* dealt: tiles that no counter is asked for */
    uint32_t row[most], asked;               /* asked: what the leader got last */
    int known;

    __device__ __forceinline__ TileScheduler(uint64_t scratch, int64_t all_rows, uint32_t run, uint32_t team,
                                             uint32_t teams, int known)
        : scratch((gpulossi_scratch *)scratch), rows((uint32_t)all_rows), run(run), tiles((rows + run - 1) / run),
          teams(teams), dealt(run == 1 ? (uint32_t)known * teams : teams), asked(0), known(known) {
#pragma unroll
        for (uint32_t i = 0; i < most; i++)
            row[i] = run == 1 ? min(team + i * teams, rows) : team < tiles ? min(team * run + i, rows) : rows;
    }
    __device__ __forceinline__ bool more() const {
        return row[0] < rows;
    }
    __device__ __forceinline__ uint32_t after(int n) const {
        uint32_t r = row[0];
#pragma unroll
        for (int i = 1; i < most; i++)
            r = n == i ? row[i] : r;
        return r;
    }
    __device__ __forceinline__ uint32_t last() const {
        return after(known - 1);
    }
    /* Whether the row after the last one that is known is in another tile. */
    __device__ __forceinline__ bool ends_tile() const {
        return ((last() + 1) & (run - 1)) == 0 && last() < rows;
    }

    /* The leader calls, before the first row and whenever it has used what it got, up to a number past the last tile: so each
     * team gets one of these, and the counter ends at zero. */
    __device__ __forceinline__ void ask() {
        asked = tiles > dealt ? count_up(&scratch->taken, tiles - dealt + teams) + dealt : tiles;
    }
    /* `tile`: what the leader got. */
    __device__ __forceinline__ void advance(uint32_t tile) {
        const uint32_t next = last() >= rows ? rows
                              : ends_tile()  ? (tile < tiles ? tile * run : rows)
                                             : min(last() + 1, rows);
#pragma unroll
        for (int i = 0; i + 1 < most; i++)
            row[i] = i + 1 == known ? next : row[i + 1];
        if (known == most)
            row[most - 1] = next;
    }
};

#endif
