/* A row in shared memory, for GPUs that copy memory by themselves. Each warp has a ring of stages there and asks for its parts
 * of the next rows as soon as a stage is released, so that memory is busy while rows are reduced and written. A warp's stages are
 * its own, so that no barrier of the block comes between acquiring and releasing one.
 *
 * Where the gradient needs the state of the whole row, the last stages of a row stay until they are written; those before
 * them, if there are any, are copied once more. */
#ifndef GPULOSSI_ROW_PIPELINE_CUH
#define GPULOSSI_ROW_PIPELINE_CUH

#include "../device/any_dtype.cuh"
#include "../device/mbarrier.cuh"
#include "../device/tile_scheduler.cuh"
#include "team.cuh"

template <class Loss> class RowPipeline {
    typedef typename Loss::Element E;
    typedef typename Loss::N N;
    typedef typename Loss::Bits Bits;
    typedef typename Loss::Params Params;
    typedef typename Loss::Row Row;
    typedef typename Loss::RowInput RowInput;
    typedef typename Loss::State State;
    typedef typename Loss::Totals Totals;
    enum {
        W = Width<E>::value,
        kClusterVectors = GPULOSSI_VECTORS_STREAMED, /* of a thread in a stage, where a cluster shares a row, ... */
        kBlockVectors = GPULOSSI_RING_VECTORS,       /* ... or warps of a block do, ... */
        kShortVectors = kBlockVectors / 2,           /* ... of short rows */
        kMaxStages = 2 * GPULOSSI_RING_STEPS,
        kMaxTiles = 4
    };

    const Params &p;
    Loss loss;
    Team team;
    TileScheduler<kMaxTiles> tiles;
    int steps;                 /* of a row, a stage each */
    int retained, visits;      /* of the steps of a row, those that stay in the ring; and all that are copied */
    uint32_t copied, released; /* steps so far */
    uint32_t first_copy;       /* of the row that is worked on */
    int next, visit;           /* to be copied next: of the tiles that are known, and of its steps */
    RowInput in[kMaxTiles];    /* of the tiles that are known */

    /* A row that is reduced and not finished. */
    struct Deferred {
        int64_t row;
        Row of_row;
        State state;
        N target_logit;
    };

    /* The vectors of a thread in a stage, and the stages of a warp. */
    DEVICE int vectors() {
        return has_format(GPULOSSI_FORMAT_CLUSTER)        ? (int)kClusterVectors
               : has_format(GPULOSSI_FORMAT_SHORT_STAGES) ? (int)kShortVectors
                                                          : (int)kBlockVectors;
    }
    DEVICE int stages() {
        return has_format(GPULOSSI_FORMAT_CLUSTER)        ? (int)GPULOSSI_SLOTS / kClusterVectors
               : has_format(GPULOSSI_FORMAT_SHORT_STAGES) ? 2 * (int)GPULOSSI_RING_STEPS
                                                          : (int)GPULOSSI_RING_STEPS;
    }

    /* Where a thread's vectors of a stage lie in a row. */
    struct Side {
        const Cut<E> &cut;
        int64_t row;
        int v; /* the first of them */

        __device__ __forceinline__ int vector(int k) const { return v + k * kLanes; }
        __device__ __forceinline__ int64_t first(int k) const { return cut.first(vector(k)); }
        __device__ __forceinline__ bool is_inside(int) const { return true; }
        template <class Array> __device__ __forceinline__ void read(const Array &array, int k, N (&y)[W]) const {
            const int64_t c = first(k);
            if (!has_format(GPULOSSI_FORMAT_RAGGED) || array.is_aligned(c)) {
                array.read_vector(c, y);
                return;
            }
#pragma unroll 1
            for (int i = 0; i < W; i++)
                shift_in(y, array.template read<N>(c + i));
        }
        template <class Array> __device__ __forceinline__ void write(const Array &array, int k, N (&y)[W]) const {
            const int64_t c = first(k);
            if (!has_format(GPULOSSI_FORMAT_RAGGED) || array.is_aligned(c)) {
                array.write_vector(c, y);
                return;
            }
#pragma unroll 1
            for (int i = 0; i < W; i++) {
                array.write(c + i, y[0]);
                shift_in(y, y[0]);
            }
        }
    };
    /* A class of a row that is in no whole vector, as the first element of a vector. */
    struct Edge {
        int64_t row, c;
        __device__ __forceinline__ int64_t first(int) const { return c; }
        __device__ __forceinline__ bool is_inside(int i) const { return i == 0; }
        template <class Array> __device__ __forceinline__ void read(const Array &array, int, N (&y)[W]) const {
#pragma unroll
            for (int i = 0; i < W; i++)
                y[i] = N(0);
            y[0] = array.template read<N>(c);
        }
        template <class Array> __device__ __forceinline__ void write(const Array &array, int, const N (&y)[W]) const {
            array.write(c, y[0]);
        }
    };

    __device__ __forceinline__ explicit RowPipeline(const Params &p)
        : p(p), loss(p), team(p.rows.group), steps(steps_of(p, team)),
          tiles(p.rows.scratch, p.rows.rows, team.number, team.count, steps < stages() ? 4 : 3), copied(0), released(0),
          first_copy(0), next(0), visit(0) {
        retained = Loss::reduces() && Loss::writes() ? min(steps, stages()) : 0;
        visits = retained > 0 ? 2 * steps - retained : steps;
        if (threadIdx.x % kLanes == 0)
#pragma unroll 1
            for (int i = 0; i < stages(); i++)
                arrival((uint32_t)i).begin();
        __syncwarp();
    }
    DEVICE int steps_of(const Params &p, const Team &team) {
        int64_t most = p.rows.classes / W + 1;
        if (!rows_on_lines(p))
            most = (p.rows.classes + W - 1 + kLine / (int)sizeof(Bits) - 1) / W;
        else if (!has_format(GPULOSSI_FORMAT_RAGGED))
            most = p.rows.classes / W;
        const int step = kLanes * vectors() * team.warps;
        return Loss::reduces() || Loss::writes() ? ((int)most + step - 1) / step : 0;
    }
    /* Whether all rows begin on a line. Where they do not, vectors are counted from a line on, so that copies begin on lines
     * at both ends. */
    DEVICE bool rows_on_lines(const Params &p) {
        return (p.logits | (uint64_t)p.logits_stride * sizeof(Bits)) % kLine == 0;
    }

    /* ---- the ring of a warp ---- */

    __device__ __forceinline__ uint32_t warp_in_block() const { return threadIdx.x / kLanes; }
    __device__ __forceinline__ int lane() const { return (int)(threadIdx.x % kLanes); }
    DEVICE Arrival &arrival(uint32_t stage) {
        __shared__ Arrival arrivals[Team::kMaxWarps][kMaxStages];
        return arrivals[threadIdx.x / kLanes][stage];
    }
    __device__ __forceinline__ uint32_t stage_of(uint32_t step) const { return step % (uint32_t)stages(); }
    __device__ __forceinline__ uint4 *smem_stage(uint32_t stage) const {
        return stash_of_block() + (warp_in_block() * (uint32_t)stages() + stage) * (uint32_t)(vectors() * kLanes);
    }
    /* The first vector of this warp in a step of a row. */
    __device__ __forceinline__ int vector(int step) const { return (step * team.warps + team.warp) * vectors() * kLanes; }
    __device__ __forceinline__ Cut<E> cut_of(int64_t row) const {
        return rows_on_lines(p) ? Cut<E>(0, p.rows.classes) : Cut<E>(loss.logits(row), p.rows.classes, kLine);
    }

    /* Copies as many steps as there are stages for, of the tiles that are known but for the last one, whose row input may be
     * under way; nothing of rows that are not read. Nobody in the warp uses what was released. */
    __device__ __forceinline__ void copy_ahead() {
        __syncwarp();
#pragma unroll 1
        while (copied - released < (uint32_t)stages() && next < tiles.known - 1 && steps > 0) {
            const uint32_t tile = tiles.after(next);
            if (tile >= tiles.tiles)
                return;
            if (lane() == 0) {
                const Cut<E> cut = cut_of(tile);
                const int v = vector(visit < steps ? visit : visits - 1 - visit);
                const int first = max(v, cut.lead), end = min(v + vectors() * kLanes, cut.lead + (int)cut.whole_vectors);
                const bool reads = next == 0 ? is_read(in[0]) : next == 1 ? is_read(in[1]) : is_read(in[2]);
                arrival(stage_of(copied))
                    .request(smem_stage(stage_of(copied)) + (first - v),
                             (const char *)(loss.logits(tile) - cut.head) + (int64_t)first * GPULOSSI_VECTOR_BYTES,
                             reads ? (uint32_t)(max(end - first, 0) * GPULOSSI_VECTOR_BYTES) : 0);
            }
            copied++;
            if (++visit == visits)
                visit = 0, next++;
        }
    }
    __device__ __forceinline__ bool is_read(const RowInput &input) const {
        return loss.is_read(loss.place_of(input), input);
    }
    __device__ __forceinline__ void acquire(uint32_t step) const {
        arrival(stage_of(step)).wait(step / (uint32_t)stages() & 1);
    }
    __device__ __forceinline__ void release() {
        released++;
        copy_ahead();
    }
    /* Vector k of this thread in a stage. */
    __device__ __forceinline__ Vector<E> taken(const uint4 *stage, int k) const {
        const uint4 w = stage[k * kLanes + lane()];
        Vector<E> x;
        x.word[0] = w.x, x.word[1] = w.y, x.word[2] = w.z, x.word[3] = w.w;
        return x;
    }

    /* ---- the ends of a row that are no whole vector: a class for each of the team's first threads ---- */

    __device__ __forceinline__ int64_t edge_of(const Cut<E> &cut) const {
        if (!has_format(GPULOSSI_FORMAT_RAGGED))
            return -1;
        const int64_t whole = min(cut.first(cut.lead), cut.classes), end = whole + (int64_t)cut.whole_vectors * W;
        const int64_t c = team.rank < W ? team.rank : end + (team.rank - W);
        return team.rank < 2 * W && (team.rank < W ? c < whole : c < cut.classes) ? c : -1;
    }
    /* Its logit as it is stored: nobody waits for it here. */
    __device__ __forceinline__ Bits logit_at_edge(uint32_t tile) const {
        Bits x = 0;
        if (has_format(GPULOSSI_FORMAT_RAGGED) && tile < tiles.tiles) {
            const int64_t c = edge_of(cut_of(tile));
            if (c >= 0)
                x = loss.logits(tile)[c];
        }
        return x;
    }
    __device__ __forceinline__ Vector<E> edge_vector(Bits x) const {
        Vector<E> v = filled<E>(loss.padding());
        v.replace(0, x);
        return v;
    }

    /* ---- a row ---- */

    /* Adds a stage of n vectors a thread: all of them at once where there is nothing but sums, else one after another. */
    template <int n> __device__ __forceinline__ void accumulate(const Side &side, const uint4 *stage, State &state) const {
        const bool all_whole = side.cut.whole(side.v - lane()) && side.cut.whole(side.v - lane() + n * kLanes - 1);
        Vector<E> x[n];
        if (all_whole) {
#pragma unroll
            for (int k = 0; k < n; k++)
                x[k] = taken(stage, k);
        } else {
#pragma unroll
            for (int k = 0; k < n; k++) {
                x[k] = filled<E>(loss.padding());
                if (side.cut.whole(side.vector(k)))
                    x[k] = taken(stage, k);
            }
        }
        loss.raise(state, x);
        if (Loss::sums_only())
            loss.accumulate_sums(state, x);
        else
#pragma unroll 1
            for (int k = 0; k < n; k++)
                if (all_whole || side.cut.whole(side.vector(k)))
                    loss.accumulate(state, taken(stage, k), side, k);
    }
    __device__ __forceinline__ void reduce(const Cut<E> &cut, int64_t row, bool reads, State &state) {
        first_copy = released;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            const uint32_t copy = first_copy + (uint32_t)step;
            const Side side = {cut, row, vector(step) + lane()};
            acquire(copy);
            if (!reads) {
            } else if (vectors() == kBlockVectors) {
                accumulate<kBlockVectors>(side, smem_stage(stage_of(copy)), state);
            } else {
                accumulate<kShortVectors>(side, smem_stage(stage_of(copy)), state);
            }
            if (step < steps - retained)
                release();
        }
    }
    __device__ __forceinline__ void write(const Cut<E> &cut, int64_t row, bool reads, const Row &r, const State &state,
                                          Bits at_edge) {
        const typename Loss::Gradient g = loss.gradient(row, r, state);
        const int target = r.place >= 0 ? cut.vector_of(r.place) : -1, target_place = cut.place_of(r.place);
        const int64_t edge = edge_of(cut);
        if (edge >= 0) {
            const Edge side = {row, edge};
            if (reads && !g.is_zero)
                loss.write(g, r, edge_vector(at_edge), side, 0, edge == r.place ? 0 : -1);
            else
                loss.write_zeros(side, 0);
        }
#pragma unroll 1
        for (int i = 0; i < steps; i++) {
            const int step = i < retained ? steps - retained + i : retained > 0 ? steps - 1 - i : i;
            const Side side = {cut, row, vector(step) + lane()};
            const uint4 *stage = smem_stage(stage_of(released));
            acquire(released);
            if (!reads || g.is_zero) {
#pragma unroll 4
                for (int k = 0; k < vectors(); k++)
                    if (cut.whole(side.vector(k)))
                        loss.write_zeros(side, k);
            } else if (Loss::is_basic() && g.is_fast) {
#pragma unroll 4
                for (int k = 0; k < vectors(); k++)
                    if (cut.whole(side.vector(k)))
                        loss.write_fast(g, r, taken(stage, k), side, k, side.vector(k) == target ? target_place : -1);
            } else {
#pragma unroll 1
                for (int k = 0; k < vectors(); k++)
                    if (cut.whole(side.vector(k)))
                        loss.write(g, r, taken(stage, k), side, k, side.vector(k) == target ? target_place : -1);
            }
            release();
        }
    }

    __device__ __forceinline__ RowInput fetch(uint32_t tile) const {
        RowInput none = {};
        return tile < tiles.tiles ? loss.fetch(tile) : none;
    }
    DEVICE uint32_t seen(float x) { return __float_as_uint(x); }

    __device__ __forceinline__ void all_rows() {
        Deferred deferred;
        int deferred_rows = 0;
        uint32_t number = 0;
        Bits edge_after = logit_at_edge(tiles.tile[0]);
#pragma unroll
        for (int i = 0; i < kMaxTiles; i++)
            in[i] = fetch(tiles.tile[i]);
        loss.fetch_target(in[0]);
#pragma unroll 1
        for (; tiles.more(); number++) {
            const int64_t row = tiles.tile[0];
            const RowInput input = in[0];
            const int64_t place = loss.place_of(input);
            const bool reads = is_read(input);
            const Cut<E> cut = cut_of(row);
            const Bits at_edge = edge_after;
            uint32_t next_tile = 0;
            State state = State::empty();
            N target_logit = N(0);
            if (team.leads())
                next_tile = tiles.fetch();
            copy_ahead();
            /* Early, so that nobody waits for it; and before the reduction, after which the gradient may be written over it. */
            edge_after = logit_at_edge(tiles.tile[1]);
            if (team.rank == deferred_rows && reads)
                target_logit = loss.target_logit(row, place);
            if (Loss::reduces()) {
                reduce(cut, row, reads, state);
                if (edge_of(cut) >= 0 && reads) {
                    const Edge side = {row, edge_of(cut)};
                    const Vector<E> x[1] = {edge_vector(at_edge)};
                    loss.raise(state, x);
                    loss.accumulate(state, x[0], side, 0);
                }
            }
            team.reduce(state, next_tile, seen(target_logit), number);
            const Row r = loss.row_of(place, input);
            if (team.rank == deferred_rows) {
                deferred.row = row;
                deferred.of_row = r;
                deferred.state = state;
                deferred.target_logit = target_logit;
            }
            deferred_rows++;
            if (Loss::writes())
                write(cut, row, reads, r, state, at_edge);
            tiles.advance(next_tile);
            next--;
#pragma unroll
            for (int i = 0; i + 1 < kMaxTiles; i++)
                in[i] = in[i + 1];
            loss.fetch_target(in[0]);
            const RowInput last = fetch(tiles.last());
            if (tiles.known == kMaxTiles)
                in[kMaxTiles - 1] = last;
            else
                in[kMaxTiles - 2] = last;
            if (deferred_rows == kLanes || !tiles.more()) {
                if (team.rank < deferred_rows)
                    add(loss.finish(deferred.row, deferred.of_row, deferred.state, deferred.target_logit));
                deferred_rows = 0;
            }
        }
        team.end();
    }

    /* Totals are seldom touched, so they take no registers. Those of a cluster take less room, as only its first warp finishes
     * rows. */
    DEVICE Totals &smem_total_of_block() {
        __shared__ Totals of_threads[GPULOSSI_BLOCK];
        return of_threads[threadIdx.x];
    }
    DEVICE Totals &smem_total_of_cluster() {
        __shared__ Totals of_threads[kLanes];
        return of_threads[threadIdx.x];
    }
    DEVICE void clear_totals() {
        if (!has_format(GPULOSSI_FORMAT_CLUSTER))
            smem_total_of_block() = Totals::zero();
        else if (threadIdx.x < kLanes)
            smem_total_of_cluster() = Totals::zero();
    }
    __device__ __forceinline__ void add(const typename Loss::Result &result) const {
        if (has_format(GPULOSSI_FORMAT_CLUSTER))
            loss.add(result, smem_total_of_cluster());
        else
            loss.add(result, smem_total_of_block());
    }
    /* A thread of the first warp gathers what others have. */
    DEVICE Totals gathered_total() {
        if (has_format(GPULOSSI_FORMAT_CLUSTER))
            return smem_total_of_cluster();
        Totals total = smem_total_of_block();
#pragma unroll 1
        for (int i = 1; i < GPULOSSI_BLOCK / kLanes; i++)
            total.add((&smem_total_of_block())[i * kLanes]);
        return total;
    }

  public:
    DEVICE void run(const Params &p) {
        clear_totals();
        RowPipeline rows(p);
        rows.all_rows();
        __syncthreads();
        if (threadIdx.x < kLanes)
            end_of_warp(rows.loss, rows.loss.scratch(), gathered_total());
    }
};

#endif
