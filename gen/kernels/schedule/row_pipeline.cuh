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
        kMaxStages = GPULOSSI_PIPELINE_STAGES,
        kAtOnce = 4 /* vectors of a thread in registers */
    };

    const Params &p;
    Loss loss;
    Team team;
    Ahead queue;
    int vectors;               /* of a thread in a stage */
    int stages;                /* that a warp has */
    int steps;                 /* of a row, a stage each */
    int retained, visits;      /* of the steps of a row, those that stay in the ring; and all that are copied */
    uint32_t copied, released; /* steps so far */
    int next, visit;           /* to be copied next: of the tiles that are known, and of its steps */
    RowInput in[Ahead::kMost]; /* of the tiles that are known */

    /* A row that is reduced and not finished. */
    struct Deferred {
        int64_t row;
        Row of_row;
        State state;
        N target_logit;
    };

    /* Where a thread's vectors of a stage lie in a row. */
    struct Side {
        const RowPipeline &of;
        const Cut<E> &cut;
        int64_t row;
        int v, step; /* its first vector */

        __device__ __forceinline__ int vector(int k) const { return v + k * kLanes; }
        __device__ __forceinline__ int64_t first(int k) const { return cut.first(vector(k)); }
        __device__ __forceinline__ bool is_inside(int k, int) const { return cut.whole(vector(k)); }
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
        /* Those of the classes, which are the same for every row of whole vectors. */
        template <class Array> __device__ __forceinline__ void read_of_classes(const Array &array, int k, N (&y)[W]) const {
            if (has_format(GPULOSSI_FORMAT_SMEM_WEIGHTS))
                of.smem_class_weights(step, k, y);
            else
                read(array, k, y);
        }
    };
    /* A class of a row that is in no whole vector, as the first element of a vector. */
    struct Edge {
        int64_t row, c;
        __device__ __forceinline__ int64_t first(int) const { return c; }
        __device__ __forceinline__ bool is_inside(int, int i) const { return i == 0; }
        template <class Array> __device__ __forceinline__ void read(const Array &array, int, N (&y)[W]) const {
#pragma unroll
            for (int i = 0; i < W; i++)
                y[i] = N(0);
            y[0] = array.template read<N>(c);
        }
        template <class Array> __device__ __forceinline__ void read_of_classes(const Array &array, int k, N (&y)[W]) const {
            read(array, k, y);
        }
        template <class Array> __device__ __forceinline__ void write(const Array &array, int, const N (&y)[W]) const {
            array.write(c, y[0]);
        }
    };

    __device__ __forceinline__ explicit RowPipeline(const Params &p)
        : p(p), loss(p), team(p.rows.group), vectors((int)p.rows.stage_vectors), stages((int)p.rows.stages), copied(0),
          released(0), next(0), visit(0) {
        int64_t most = p.rows.classes / W + 1;
        if (!rows_on_lines())
            most = (p.rows.classes + W - 1 + kLine / (int)sizeof(Bits) - 1) / W;
        else if (!has_format(GPULOSSI_FORMAT_RAGGED))
            most = p.rows.classes / W;
        const int step = kLanes * vectors * team.warps;
        steps = Loss::reduces() || Loss::writes() ? ((int)most + step - 1) / step : 0;
        queue = Ahead(p.rows.scratch, p.rows.rows, team.number, team.count, steps < stages ? 3 : 2, 0);
        retained = Loss::reduces() && Loss::writes() ? min(steps, stages) : 0;
        visits = retained > 0 ? 2 * steps - retained : steps;
        if (threadIdx.x % kLanes == 0)
#pragma unroll 1
            for (int i = 0; i < stages; i++)
                arrival((uint32_t)i).begin();
        __syncwarp();
    }
    /* Whether all rows begin on a line. Where they do not, vectors are counted from a line on, so that copies begin on lines
     * at both ends. */
    __device__ __forceinline__ bool rows_on_lines() const {
        return (p.logits | (uint64_t)p.logits_stride * sizeof(Bits)) % kLine == 0;
    }

    /* ---- the ring of a warp ---- */

    __device__ __forceinline__ uint32_t warp_in_block() const { return threadIdx.x / kLanes; }
    __device__ __forceinline__ int lane() const { return (int)(threadIdx.x % kLanes); }
    DEVICE Arrival &arrival(uint32_t stage) {
        __shared__ Arrival arrivals[Team::kMaxWarps][kMaxStages];
        return arrivals[threadIdx.x / kLanes][stage];
    }
    __device__ __forceinline__ uint32_t stage_of(uint32_t step) const { return step % (uint32_t)stages; }
    __device__ __forceinline__ uint4 *smem_stage(uint32_t stage) const {
        return stash_of_block() + (warp_in_block() * (uint32_t)stages + stage) * (uint32_t)(vectors * kLanes);
    }
    /* After the stages of all warps. */
    __device__ __forceinline__ float4 *smem_weights(int step) const {
        const uint32_t of_stages = blockDim.x * (uint32_t)(stages * vectors);
        const uint32_t of_warp = (uint32_t)(steps * vectors * kLanes * (W / 4));
        return (float4 *)stash_of_block() + of_stages + warp_in_block() * of_warp +
               (uint32_t)(step * vectors * kLanes * (W / 4));
    }
    __device__ __forceinline__ void smem_class_weights(int step, int k, N (&w)[W]) const {
#pragma unroll
        for (int i = 0; i < W; i += 4) {
            const float4 four = smem_weights(step)[(k * (W / 4) + i / 4) * kLanes + lane()];
            w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
        }
    }
    /* Once a launch: each thread has the weights of its own classes. */
    __device__ __forceinline__ void load_class_weights() {
        const Cut<E> cut = cut_of(0);
#pragma unroll 1
        for (int step = 0; step < steps; step++)
#pragma unroll 1
            for (int k = 0; k < vectors; k++) {
                const int v = vector(step) + k * kLanes + lane();
                N w[W] = {};
                if (cut.whole(v))
                    loss.class_weights().read_vector(cut.first(v), w);
#pragma unroll
                for (int i = 0; i < W; i += 4)
                    smem_weights(step)[(k * (W / 4) + i / 4) * kLanes + lane()] =
                        make_float4((float)w[i], (float)w[i + 1], (float)w[i + 2], (float)w[i + 3]);
            }
    }

    /* The first vector of this warp in a step of a row. */
    __device__ __forceinline__ int vector(int step) const { return (step * team.warps + team.warp) * vectors * kLanes; }
    __device__ __forceinline__ Cut<E> cut_of(int64_t row) const {
        return rows_on_lines() ? Cut<E>(0, p.rows.classes) : Cut<E>(loss.logits(row), p.rows.classes, kLine);
    }

    /* Copies as many steps of the tiles that are known as there are stages for; nothing of rows that are not read. Nobody in
     * the warp uses what was released. */
    __device__ __forceinline__ void copy_ahead() {
        __syncwarp();
#pragma unroll 1
        while (copied - released < (uint32_t)stages && next < queue.known && steps > 0) {
            const uint32_t tile = queue.after(next);
            if (tile >= queue.tiles)
                return;
            const Cut<E> cut = cut_of(tile);
            const int v = vector(visit < steps ? visit : visits - 1 - visit);
            const int first = max(v, cut.lead), end = min(v + vectors * kLanes, cut.lead + (int)cut.whole_vectors);
            if (lane() == 0) {
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
        arrival(stage_of(step)).wait(step / (uint32_t)stages & 1);
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
        if (has_format(GPULOSSI_FORMAT_RAGGED) && tile < queue.tiles) {
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

    __device__ __forceinline__ void accumulate(const Cut<E> &cut, int64_t row, int step, State &state) const {
        const uint4 *stage = smem_stage(stage_of(released_step(step)));
        const Side side = {*this, cut, row, vector(step) + lane(), step};
        if (Loss::sums_only()) {
#pragma unroll 1
            for (int k = 0; k < vectors; k += kAtOnce) { /* more than there are in the row add nothing */
                Vector<E> x[kAtOnce];
#pragma unroll
                for (int i = 0; i < kAtOnce; i++) {
                    x[i] = filled<E>(loss.padding());
                    if (cut.whole(side.vector(k + i)))
                        x[i] = taken(stage, k + i);
                }
                loss.raise(state, x);
                loss.accumulate_sums(state, x);
            }
        } else {
#pragma unroll 1
            for (int k = 0; k < vectors && cut.whole(side.vector(k)); k++) {
                Vector<E> x[1] = {taken(stage, k)};
                loss.raise(state, x);
                loss.accumulate(state, x[0], side, k);
            }
        }
    }
    /* The number of the copy of a step of this row, of which `in_row` were released. */
    __device__ __forceinline__ uint32_t released_step(int step) const { return first_copy + (uint32_t)step; }
    uint32_t first_copy;

    __device__ __forceinline__ void reduce(const Cut<E> &cut, int64_t row, bool reads, State &state) {
        first_copy = released;
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            acquire(first_copy + (uint32_t)step);
            if (reads)
                accumulate(cut, row, step, state);
            if (step < steps - retained)
                release();
        }
    }
    __device__ __forceinline__ void write(const Cut<E> &cut, int64_t row, const Row &r, const State &state, Bits at_edge) {
        const typename Loss::Gradient g = loss.gradient(row, r, state);
        const int target = r.place >= 0 ? cut.vector_of(r.place) : -1, target_place = cut.place_of(r.place);
        const int64_t edge = edge_of(cut);
        if (edge >= 0) {
            const Edge side = {row, edge};
            loss.write(g, r, edge_vector(at_edge), side, 0, edge == r.place ? 0 : -1);
        }
#pragma unroll 1
        for (int i = 0; i < steps; i++) {
            const int step = i < retained ? steps - retained + i : retained > 0 ? steps - 1 - i : i;
            const Side side = {*this, cut, row, vector(step) + lane(), step};
            const uint4 *stage = smem_stage(stage_of(released));
            acquire(released);
            if (Loss::is_basic() && g.is_fast) {
#pragma unroll 4
                for (int k = 0; k < vectors; k++)
                    if (cut.whole(side.vector(k)))
                        loss.write_fast(g, r, taken(stage, k), side, k, side.vector(k) == target ? target_place : -1);
            } else {
#pragma unroll 1
                for (int k = 0; k < vectors; k++)
                    if (cut.whole(side.vector(k)))
                        loss.write(g, r, taken(stage, k), side, k, side.vector(k) == target ? target_place : -1);
            }
            release();
        }
    }

    __device__ __forceinline__ RowInput fetch(uint32_t tile) const {
        RowInput none = {};
        return tile < queue.tiles ? loss.fetch(tile) : none;
    }
    DEVICE uint32_t seen(float x) { return __float_as_uint(x); }

    __device__ __forceinline__ void all_rows(Totals &total) {
        Deferred deferred;
        int deferred_rows = 0;
        uint32_t number = 0;
        Bits edge_after = logit_at_edge(queue.tile[0]);
#pragma unroll
        for (int i = 0; i < Ahead::kMost; i++)
            in[i] = fetch(queue.tile[i]);
        if (has_format(GPULOSSI_FORMAT_SMEM_WEIGHTS))
            load_class_weights();
#pragma unroll 1
        for (; queue.more(); number++) {
            const int64_t row = queue.tile[0];
            const RowInput input = in[0];
            const int64_t place = loss.place_of(input);
            const bool reads = is_read(input);
            const Cut<E> cut = cut_of(row);
            const Bits at_edge = edge_after;
            uint32_t next_tile = 0;
            State state = State::empty();
            N target_logit = N(0);
            if (team.leads())
                next_tile = queue.fetch();
            copy_ahead();
            /* Early, so that nobody waits for it; and before the reduction, after which the gradient may be written over it. */
            edge_after = logit_at_edge(queue.tile[1]);
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
            const Row r = loss.row_of(row, place, input);
            if (team.rank == deferred_rows) {
                deferred.row = row;
                deferred.of_row = r;
                deferred.state = state;
                deferred.target_logit = target_logit;
            }
            deferred_rows++;
            if (Loss::writes())
                write(cut, row, r, state, at_edge);
            queue.advance(next_tile);
            next--;
            in[0] = in[1];
            in[1] = in[2];
            const RowInput last = fetch(queue.after(queue.known - 1));
            if (queue.known == 2)
                in[1] = last;
            else
                in[2] = last;
            if (deferred_rows == kLanes || !queue.more()) {
                if (team.rank < deferred_rows)
                    loss.finish(deferred.row, deferred.of_row, deferred.state, deferred.target_logit, total);
                deferred_rows = 0;
            }
        }
        team.end();
    }

  public:
    DEVICE void run(const Params &p) {
        __shared__ Totals totals[GPULOSSI_BLOCK]; /* seldom touched, so they take no registers; of a cluster, the first warp's */
        RowPipeline rows(p);
        Totals &total = totals[threadIdx.x % GPULOSSI_BLOCK];
        if (threadIdx.x < GPULOSSI_BLOCK)
            total = Totals::zero();
        rows.all_rows(total);
        end(rows.loss, rows.loss.scratch(), totals);
    }
};

#endif
