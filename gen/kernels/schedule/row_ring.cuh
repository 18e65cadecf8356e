/* Cross-entropy without options on GPUs that copy stretches of memory by themselves. Each warp has a ring of slots in
 * shared memory and asks for its parts of the rows to come as soon as slots come free, so that memory is busy while rows
 * are reduced, folded and written. A warp's slots are its own, so that no barrier of the block comes between asking and
 * taking.
 *
 * A row goes through the ring in steps, of K vectors a thread. Where its gradient needs the state of the whole row, its
 * last steps stay in the ring until they are written; those before them, if there are any, are asked for once more. */
#ifndef GPULOSSI_ROW_RING_CUH
#define GPULOSSI_ROW_RING_CUH

#include "../device/tile_scheduler.cuh"
#include "../device/mbarrier.cuh"
#include "../device/cluster.cuh"
#include "ce_basic.cuh"

/* The warps of a block that share a row. */
class TeamOfBlock {
    Group group;

  public:
    enum { kMostWarps = kWarps, kFinish = GPULOSSI_BLOCK }; /* of a block; and of its threads, those that finish rows */
    int warps, warp, rank; /* how many, this thread's one among them, and this thread */

    __device__ __forceinline__ explicit TeamOfBlock(const gpulossi_rows &p)
        : group(p.group), warps(group.size / kLanes), warp(group.rank / kLanes), rank(group.rank) {}
    __device__ __forceinline__ uint32_t number() const {
        return blockIdx.x * (uint32_t)group.count + (uint32_t)group.number;
    }
    __device__ __forceinline__ uint32_t count() const { return gridDim.x * (uint32_t)group.count; }
    __device__ __forceinline__ bool leads() const { return rank == 0; }
    __device__ __forceinline__ void begin() const {}

    __device__ __forceinline__ void end() const {}
    /* Whose number among those a thread goes by. */
    DEVICE uint32_t finisher() { return threadIdx.x; }

    /* Reduces a state over the team and hands out the leader's word; the `number` of reduces before it. What the leader's warp has
     * `seen` may be written over afterwards. */
    template <class State>
    __device__ __forceinline__ void reduce(State &state, uint32_t &word, uint32_t, uint32_t number) const {
        uint32_t turn = number % 2;
        __shared__ State of_warp[2][kWarps];
        __shared__ uint32_t words[2][kWarps];
        state.reduce(WholeWarp());
        if (warps == 1) {
            word = __shfl_sync(0xffffffffu, word, 0);
            __syncwarp(); /* what a lane has read may be written over by another */
            return;
        }
        uint32_t this_warp = threadIdx.x / kLanes, first = this_warp - (uint32_t)warp;
        if (threadIdx.x % kLanes == 0) {
            of_warp[turn][this_warp] = state;
            words[turn][this_warp] = word;
        }
        group.settle();
        state = of_warp[turn][first + threadIdx.x % (uint32_t)warps];
        word = words[turn][first];
        UpTo<kWarps> lanes = {warps};
        state.reduce(lanes);
    }
};

/* The threads of a cluster, whose blocks may be wide. */
class TeamOfCluster {
    Cluster cluster;

  public:
    enum { kMostWarps = GPULOSSI_WIDE_BLOCK / kLanes, kFinish = kLanes };
    int warps, warp, rank;

    __device__ __forceinline__ explicit TeamOfCluster(const gpulossi_rows &)
        : warps((int)(cluster.size * blockDim.x / kLanes)), warp((int)cluster.warp()),
          rank((int)(cluster.rank * blockDim.x + threadIdx.x)) {}
    __device__ __forceinline__ uint32_t number() const { return cluster.number; }
    __device__ __forceinline__ uint32_t count() const { return cluster.count; }
    __device__ __forceinline__ bool leads() const { return rank == 0; }
    __device__ __forceinline__ void begin() const { Cluster::begin(); }
    __device__ __forceinline__ void end() const { Cluster::leave(); }
    DEVICE uint32_t finisher() { return threadIdx.x % kLanes; }
    template <class State>
    __device__ __forceinline__ void reduce(State &state, uint32_t &word, uint32_t seen, uint32_t number) const {
        enum { kRoundWarps = 16 };
        static_assert(kMostWarps <= kRoundWarps, "a reduce has room for all warps");
        cluster.reduce<kRoundWarps, true>(state, State::empty(), word, seen, Cluster::kStates, number);
    }
};

template <class E, class Team, int K, int kSteps> class Ring {
    typedef Plain<E> Loss;
    typedef typename Loss::Params Params;
    typedef typename Loss::Number N;
    typedef typename Loss::Row Row;
    typedef typename Loss::State State;
    typedef typename E::Bits Bits;
    enum { W = Width<E>::value, kChunk = kLanes * K };

    const Params &p;
    Loss loss;
    Team team;
    int steps; /* of a row; none where only its target counts */
    Ahead queue;
    int held, visits;      /* of the steps of a row, those that stay in the ring; and all that are asked for */
    uint32_t asked, freed; /* steps so far */
    int next, visit;       /* what is asked for next: of the rows that are known, and of its steps */

    /* What is left to do of a row when it is reduced; a thread of its first warp does it, together with others that have
     * other rows. */
    struct Late {
        int64_t row;
        N top, sum, x_y;
    };

    __device__ __forceinline__ explicit Ring(const Params &p)
        : p(p), loss(p), team(p.rows), steps(steps_of(p, team)),
          queue(p.rows.scratch, p.rows.rows, team.number(), team.count(), steps < kSteps ? 3 : 2, 0), asked(0),
          freed(0), next(0), visit(0) {
        held = loss.reduces() && loss.writes() ? min(steps, (int)kSteps) : 0;
        visits = held > 0 ? 2 * steps - held : steps;
        if (threadIdx.x % kLanes == 0)
#pragma unroll
            for (int i = 0; i < kSteps; i++)
                arrival(i).begin();
        __syncwarp();
    }
    /* Whether all rows begin on a line. Where they do not, vectors are counted from a line on, so that copies begin on lines
     * at both ends. */
    DEVICE bool on_lines(const Params &p) {
        return (p.logits | (uint64_t)p.logits_stride * sizeof(Bits)) % kLine == 0;
    }
    DEVICE int steps_of(const Params &p, const Team &team) {
        int64_t most = p.rows.classes + W - 1 + (on_lines(p) ? 0 : kLine / (int)sizeof(Bits) - 1);
        int step = kChunk * team.warps;
        return p.lse_in && !p.rows.grad ? 0 : ((int)(most / W) + step - 1) / step;
    }

    DEVICE Arrival &arrival(uint32_t step) {
        __shared__ Arrival arrivals[Team::kMostWarps][kSteps];
        return arrivals[threadIdx.x / kLanes][step % kSteps];
    }
    /* The slots of a warp for a step. */
    DEVICE uint4 *slots(uint32_t step) {
        return &stash_of_block()[(threadIdx.x / kLanes * kSteps + step % kSteps) * kChunk];
    }
    /* The first vector of this warp in a step of a row. */
    __device__ __forceinline__ int vector(int step) const {
        return (step * team.warps + team.warp) * kChunk;
    }
    __device__ __forceinline__ Cut<E> cut_of(int64_t row) const {
        return on_lines(p) ? Cut<E>(0, p.rows.classes) : Cut<E>(loss.array(0, row), p.rows.classes, kLine);
    }

    /* Asks for as many steps of the rows that are known as there is room for. Nobody in the warp uses what was freed. */
    __device__ __forceinline__ void ask() {
        __syncwarp();
#pragma unroll 1
        while (asked - freed < kSteps && next < queue.known && steps > 0) {
            uint32_t tile = queue.after(next);
            if (tile >= queue.tiles)
                return;
            Cut<E> cut = cut_of(tile);
            int v = vector(visit < steps ? visit : visits - 1 - visit);
            int first = max(v, cut.lead), end = min(v + (int)kChunk, cut.lead + (int)cut.whole_vectors);
            if (threadIdx.x % kLanes == 0)
                arrival(asked).request(slots(asked) + (first - v),
                                       (const char *)(loss.array(0, tile) - cut.head) +
                                           (int64_t)first * GPULOSSI_VECTOR_BYTES,
                                       (uint32_t)(max(end - first, 0) * GPULOSSI_VECTOR_BYTES));
            asked++;
            if (++visit == visits)
                visit = 0, next++;
        }
    }

    __device__ __forceinline__ void wait(uint32_t step) const {
        arrival(step).wait(step / kSteps & 1);
    }
    /* Of a step that has come: vector k of this thread. */
    DEVICE Vector<E> taken(uint32_t step, int k) {
        uint4 w = slots(step)[k * kLanes + threadIdx.x % kLanes];
        Vector<E> x;
        x.word[0] = w.x, x.word[1] = w.y, x.word[2] = w.z, x.word[3] = w.w;
        return x;
    }
    __device__ __forceinline__ bool all_whole(const Cut<E> &cut, int v) const {
        return cut.whole(v) && cut.whole(v + kChunk - 1);
    }

    /* The ends of a row that are no whole vector: a class for each of the team's first threads, or -1. */
    __device__ __forceinline__ int64_t edge_of(const Cut<E> &cut) const {
        int64_t whole = min(cut.first(cut.lead), cut.classes), end = whole + (int64_t)cut.whole_vectors * W;
        int64_t c = team.rank < W ? team.rank : end + (team.rank - W);
        return team.rank < 2 * W && (team.rank < W ? c < whole : c < cut.classes) ? c : -1;
    }
    /* Its logit, as it is stored: nobody waits for it here. */
    __device__ __forceinline__ Bits logit_at_edge(uint32_t tile) const {
        Bits x = 0;
        if (tile < queue.tiles) {
            int64_t c = edge_of(cut_of(tile));
            if (c >= 0)
                x = loss.array(0, tile)[c];
        }
        return x;
    }

    /* The class index of a row that is written. */
    __device__ __forceinline__ int64_t target_of(uint32_t tile) const {
        return loss.writes() && tile < queue.tiles ? read_target(p, tile) : 0;
    }

    __device__ __forceinline__ void reduce(const Cut<E> &cut, State &state) {
        uint32_t first = freed;
        Row none = Row();
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            int v = vector(step);
            Vector<E> x[K][1];
            wait(first + (uint32_t)step);
            if (all_whole(cut, v)) {
#pragma unroll
                for (int k = 0; k < K; k++)
                    x[k][0] = taken(first + (uint32_t)step, k);
            } else {
#pragma unroll
                for (int k = 0; k < K; k++) {
                    x[k][0] = filled<E>(loss.absent(0));
                    if (cut.whole(v + k * kLanes + (int)(threadIdx.x % kLanes)))
                        x[k][0] = taken(first + (uint32_t)step, k);
                }
            }
            loss.enter(none, state, cut, 0, 0, x);
            if (step < steps - held) {
                freed++;
                ask();
            }
        }
    }

    __device__ __forceinline__ void write(const Cut<E> &cut, const Row &r, Bits at_edge) {
        Bits *to = loss.grad(r.row);
        typename Loss::Slope slope(r);
        bool simple = slope.simple && cut.fits(to);
        int lane = (int)(threadIdx.x % kLanes);
        int64_t edge = edge_of(cut);
        if (edge >= 0) {
            N x = E::widen(at_edge);
            bool is_target = r.place >= 0 && edge == cut.first(r.vector) + r.place;
            to[edge] = E::narrow(is_target ? loss.of_target(r, x) : slope.of(x, r));
        }
#pragma unroll 1
        for (int i = 0; i < steps; i++) {
            int step = i < held ? steps - held + i : held > 0 ? steps - 1 - i : i, v = vector(step), at = v + lane;
            bool all = all_whole(cut, v);
            char *there = (char *)(to - cut.head) + (int64_t)at * GPULOSSI_VECTOR_BYTES;
            wait(freed);
            if (simple) {
#pragma unroll
                for (int k = 0; k < K; k++)
                    if (all || cut.whole(at + k * kLanes)) {
                        Vector<E> x = taken(freed, k);
                        N g[W];
#pragma unroll
                        for (int n = 0; n < W; n++)
                            g[n] = slope.below.exp(x.get(n)) * slope.weight;
                        store_whole<E, E>((Bits *)(there + k * kLanes * GPULOSSI_VECTOR_BYTES), g, true);
                    }
            } else {
#pragma unroll 1
                for (int k = 0; k < K; k++)
                    if (cut.whole(at + k * kLanes)) {
                        Vector<E> x = taken(freed, k);
                        N g[W];
#pragma unroll
                        for (int n = 0; n < W; n++)
                            g[n] = slope.of(x.get(n), r);
                        store<E, E>(cut, to, at + k * kLanes, g);
                    }
            }
            if (loss.template has_target<K>(r, at, kLanes) && cut.whole(r.vector)) {
                const uint4 *holds = &slots(freed)[r.vector - v];
                to[cut.first(r.vector) + r.place] =
                    E::narrow(loss.of_target(r, E::widen(((const Bits *)holds)[r.place])));
            }
            freed++;
            ask();
        }
    }

    __device__ __forceinline__ void finish(const Late &late, typename Loss::Totals &total) const {
        Cut<E> cut = cut_of(late.row);
        Row r = loss.begin(cut, late.row, true);
        State state = {late.top, late.sum};
        N x_y = loss.writes() ? late.x_y : loss.pick(cut, r);
        r.top = late.top;
        loss.finish(loss.unfinished(r, state, &x_y), total);
    }

    DEVICE uint32_t seen(float x) {
        return __float_as_uint(x);
    }
    __device__ __forceinline__ void rows(typename Loss::Totals &total) {
        Late late = {0, N(0), N(0), N(0)};
        Bits edge_after = logit_at_edge(queue.tile[0]);
        int64_t y_after = target_of(queue.tile[0]);
        uint32_t number = 0;
        int lates = 0;
        team.begin();
#pragma unroll 1
        for (; queue.more(); number++) {
            int64_t row = queue.tile[0], y = y_after;
            uint32_t word = 0;
            State state = State::empty();
            if (team.leads())
                word = queue.fetch();
            ask();
            Cut<E> cut = cut_of(row);
            Bits at_edge = edge_after;
            N x_y = N(0);
            /* Early, so that nobody waits for it; and before the reduce, after which the gradient may be written over it. */
            edge_after = logit_at_edge(queue.tile[1]);
            y_after = target_of(queue.tile[1]);
            if (loss.writes() && team.rank == lates)
                x_y = loss.pick(cut, loss.row_of(cut, row, true, y));
            if (loss.reduces()) {
                N x[1] = {E::widen(at_edge)};
                reduce(cut, state);
                if (edge_of(cut) >= 0)
                    state.enter(x);
            }
            Row r = loss.row_of(cut, row, loss.writes(), y);
            team.reduce(state, word, seen(x_y), number);
            loss.close(r, state);
            if (team.rank == lates)
                late = {row, r.top, state.sum, x_y};
            if (++lates == kLanes) {
                if (team.rank < kLanes)
                    finish(late, total);
                lates = 0;
            }
            if (loss.writes())
                write(cut, r, at_edge);
            queue.advance(word);
            next--;
        }
        if (team.rank < lates)
            finish(late, total);
        team.end();
    }

  public:
    DEVICE void run(const Params &p) {
        __shared__ typename Loss::Totals totals[Team::kFinish]; /* seldom touched, so they take no registers */
        Ring ring(p);
        if (threadIdx.x == Team::finisher())
            totals[threadIdx.x] = Loss::Totals::zero();
        ring.rows(totals[Team::finisher()]);
        end<Team::kFinish>(ring.loss, ring.loss.scratch(), totals);
    }
};

#endif
