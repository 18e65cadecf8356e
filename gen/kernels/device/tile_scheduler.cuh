/* Tile schedulers whose teams know their next tiles in advance. */
#ifndef GPULOSSI_TILE_SCHEDULER_CUH
#define GPULOSSI_TILE_SCHEDULER_CUH

#include "grid.cuh"

/* Distributes tiles to teams in rising order. A team knows its tile and up to two after it. The tile after them is
 * broadcast with a reduction, as its `word`. The first tiles are static, assigned round robin: the ones known at first,
 * or `sixteenths` / 16 of all if that is more. Static tiles need no counter, but teams drift. If tiles take long,
 * fewer static tiles let the teams end at the same time. */
struct Ahead {
    enum { kMost = 3 };
    gpulossi_scratch *scratch;
    uint32_t tiles, teams, static_tiles, tile[kMost];
    int known; /* tiles that a team knows, 1 to 3 */

    Ahead() = default;
    __device__ __forceinline__ Ahead(uint64_t scratch, int64_t tiles, uint32_t team, uint32_t teams, int known,
                                     uint32_t sixteenths)
        : scratch((gpulossi_scratch *)scratch), tiles((uint32_t)tiles), teams(teams),
          static_tiles(max((uint32_t)known, (uint32_t)tiles / teams * sixteenths / 16) * teams), known(known) {
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

    /* The word of the team's leader: its next tile, counted from the end of the static ones. The first use of the word
     * waits for the counter. */
    __device__ __forceinline__ uint32_t fetch() const {
        uint32_t last = after(known - 1);
        if (last >= tiles)
            return tiles - static_tiles;
        return last + teams < static_tiles ? last + teams - static_tiles
                                           : count_up(&scratch->taken, tiles - static_tiles + teams);
    }
    __device__ __forceinline__ void advance(uint32_t word) {
        uint32_t last = min(word + static_tiles, tiles);
        tile[0] = tile[1];
        tile[1] = known == 2 ? last : tile[2];
        tile[2] = last;
    }
    /* advance() where one tile is known. */
    __device__ __forceinline__ void advance_to(uint32_t word) {
        tile[0] = min(word + static_tiles, tiles);
    }
};

/* Distributes rows to teams by tiles of `run` rows, a power of 2, in rising order. A team knows its next rows, at most
 * `most`. The tile after them comes from a counter. The team's leader fetches it a row ahead, so that nobody waits. With
 * kHasShare, `sixteenths` / 16 of the tiles are static: measured, the counter takes 2 ns for each tile. */
template <int most, bool kHasShare = false> struct TileScheduler {
    gpulossi_scratch *scratch;
    uint32_t rows, run, tiles, teams, static_tiles; /* The first `static_tiles` tiles need no counter. */
    uint32_t row[most], fetched;                    /* The leader's last fetch() has left `fetched`. */
    int known;                                      /* rows that a team knows */

    __device__ __forceinline__ TileScheduler(uint64_t scratch, int64_t all_rows, uint32_t run, uint32_t team,
                                             uint32_t teams, int known, uint32_t sixteenths = 0)
        : scratch((gpulossi_scratch *)scratch), rows((uint32_t)all_rows), run(run), tiles((rows + run - 1) / run),
          teams(teams), static_tiles(run == 1 ? (uint32_t)known * teams : teams), fetched(0), known(known) {
#pragma unroll
        for (uint32_t i = 0; i < most; i++)
            row[i] = run == 1 ? min(team + i * teams, rows) : team < tiles ? min(team * run + i, rows) : rows;
        if (kHasShare)
            static_tiles = max(static_tiles, tiles / teams * sixteenths / 16 * teams);
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
    /* Whether the row after the last known one is in another tile. */
    __device__ __forceinline__ bool ends_tile() const {
        return ((last() + 1) & (run - 1)) == 0 && last() < rows;
    }

    /* The leader calls before the first row, and whenever it has used a result, until a result is past the last tile.
     * Each team gets one result past the last tile, so that the counter wraps to zero. Results are counted from the end
     * of the static tiles, because adding their number here would wait for the counter. */
    __device__ __forceinline__ void fetch() {
        if (kHasShare) {
            const uint32_t next = (last() >> __popc(run - 1)) + teams;
            if (next < static_tiles) {
                fetched = next - static_tiles;
                return;
            }
        }
        fetched = tiles > static_tiles ? count_up(&scratch->taken, tiles - static_tiles + teams) : tiles - static_tiles;
    }
    __device__ __forceinline__ uint32_t tile_of(uint32_t result) const {
        return result + static_tiles;
    }
    /* `tile` is that of the leader's last result of fetch(). */
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
