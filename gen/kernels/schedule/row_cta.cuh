/* Cross-entropy without options over rows of a middling length, for GPUs that fetch ahead into their cache: a row a block,
 * in the registers of its threads, read once and written once. Many small blocks on a multiprocessor keep memory busy, as
 * some reduce their row while others load.
 *
 * Where rows are only read, most are dealt out in turn beforehand, as asking a counter for each slows the others' reading
 * down; the last ones come from a counter, so that the blocks end together. Where rows are short, asking costs more than that
 * gives. Where rows are written, all come from the counter, in the order of memory, which answers sooner then; of short ones
 * two at a time, and half of them dealt out. */
#ifndef GPULOSSI_ROW_CTA_CUH
#define GPULOSSI_ROW_CTA_CUH

#include "../device/tile_scheduler.cuh"
#include "ce_basic.cuh"

/* Asks for so many bytes to come to the cache; 16 divides them and the address. */
DEVICE void fetch_ahead(const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
}

/* Every row has the same whole vectors, of which a thread has K at most: fewer where it also writes them. */
template <class E> class BlockRows {
    typedef Plain<E> Loss;
    typedef typename Loss::Params Params;
    typedef typename Loss::Number N;
    typedef typename Loss::Row Row;
    typedef typename Loss::State State;
    typedef typename E::Bits Bits;
    enum {
        W = Width<E>::value,
        kMostWarps = GPULOSSI_ROW_THREADS / kLanes,
        kLossVectors = GPULOSSI_ROW_LOSS_VECTORS,
        kGradientVectors = GPULOSSI_ROW_GRADIENT_VECTORS,
        kAskedFor = 2 /* rows, before a launch begins */
    };

    /* What is known of a row besides its elements: `place` is its target, or as in Row; top where an lse was given. */
    struct Known {
        N top, scale;
        int place;
        uint32_t word; /* of the queue */
    };
    /* What is left to do of a row when it is reduced. */
    struct Late {
        uint32_t row;
        N top, sum, x_y;
        int place;
    };

    const Params &p;
    Loss loss;
    int vectors; /* of a row */
    int lates;   /* rows that are reduced and not finished */

    __device__ __forceinline__ explicit BlockRows(const Params &p)
        : p(p), loss(p), vectors((int)(p.rows.classes / W)), lates(0) {}

    DEVICE Late &late(int i) {
        __shared__ Late of_block[kLanes];
        return of_block[i];
    }
    DEVICE Known &known(int turn) {
        __shared__ Known of_block[2];
        return of_block[turn];
    }
    DEVICE State &of_warp(int turn, uint32_t warp) {
        __shared__ State states[2][kMostWarps];
        return states[turn][warp];
    }

    template <int K> __device__ __forceinline__ void load(uint32_t row, Vector<E> (&x)[K][1]) const {
        const char *from = (const char *)loss.array(0, row) + threadIdx.x * GPULOSSI_VECTOR_BYTES;
        uint32_t step = blockDim.x * GPULOSSI_VECTOR_BYTES;
        if (vectors == K * (int)blockDim.x) {
#pragma unroll
            for (int k = 0; k < K; k++)
                x[k][0] = load_vector<E, kRead_once>(from + k * step);
        } else {
            int left = vectors - (int)threadIdx.x;
#pragma unroll
            for (int k = 0; k < K; k++) {
                x[k][0] = filled<E>(loss.absent(0));
                if (left > 0)
                    x[k][0] = load_vector<E, kRead_once>(from);
                from += step;
                left -= (int)blockDim.x;
                keep(from); /* one address at a time */
            }
        }
    }

    __device__ __forceinline__ int place_of(int64_t y) const {
        Target target = kind_of(p, y);
        return target == kClass ? (int)y : target == kIgnored ? -1 : -2;
    }
    __device__ __forceinline__ Known learned(uint32_t row) const {
        Known it = {N(0), N(0), place_of(read_target(p, row)), 0};
        if (it.place >= 0)
            it.scale = loss.scale_of(row);
        if (!loss.reduces())
            it.top = ((const N *)p.lse_in)[row];
        return it;
    }

    __device__ __forceinline__ N sum_below(const ScaledExp<N> &below, const Vector<E> &x) const {
        N part[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            part[i] = below.exp(x.get(i));
        return in_halves<Sum>(part);
    }
    /* The state of a warp's part of a row, in its first lane. */
    template <int K> __device__ __forceinline__ State reduce(Vector<E> (&x)[K][1]) const {
        State state = {WholeWarp().template over<Maximum>(largest(x, 0)), N(0)};
        N top = State::finite(state.top);
        if (ScaledExp<N>::in_fast_range(top)) {
            ScaledExp<N> below(top);
            if (K == kLossVectors || vectors == K * (int)blockDim.x) {
#pragma unroll
                for (int k = 0; k < K; k++)
                    state.sum += sum_below(below, x[k][0]);
            } else {
                /* Measured, where rows are written: of 16 bits what this thread has not is left out, of floats what no
                 * thread has. */
                int first = sizeof(Bits) == 2 ? (int)threadIdx.x : 0;
#pragma unroll
                for (int k = 0; k < K; k++)
                    if (first + k * (int)blockDim.x < vectors)
                        state.sum += sum_below(below, x[k][0]);
            }
            state.sum *= below.factor;
        } else {
#pragma unroll 1
            for (int k = 0; k < K; k++) {
                N part[W];
#pragma unroll
                for (int i = 0; i < W; i++)
                    part[i] = exp_below(x[0][0].get(i), top);
                state.sum += in_halves<Sum>(part);
                turn(x);
            }
        }
        state.sum = WholeWarp().template over<Sum>(state.sum);
        return state;
    }

    /* The target's own gradient is put among the others before they are stored: memory takes long over what is soon written
     * again. Its logit is left for finish(). */
    template <int K> __device__ __forceinline__ void write(const Row &r, Vector<E> (&x)[K][1], N *x_y) const {
        Bits *to = loss.grad(r.row), of_target = 0;
        char *vector = (char *)to + threadIdx.x * GPULOSSI_VECTOR_BYTES;
        typename Loss::Slope slope(r);
        uint32_t step = blockDim.x * GPULOSSI_VECTOR_BYTES;
#pragma unroll
        for (int k = 0; k < K; k++)
            if ((int)(threadIdx.x + k * blockDim.x) == r.vector) {
                *x_y = x[k][0].find(r.place);
                of_target = E::narrow(loss.of_target(r, *x_y));
            }
        if (slope.simple) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                int v = (int)(threadIdx.x + k * blockDim.x);
                if (v < vectors) {
                    N g[W];
#pragma unroll
                    for (int i = 0; i < W; i++)
                        g[i] = slope.below.exp(x[k][0].get(i)) * slope.weight;
                    store((Bits *)(vector + k * step), v, r, g, true, of_target);
                }
            }
        } else {
#pragma unroll 1
            for (int v = (int)threadIdx.x; v < vectors; v += (int)blockDim.x) {
                N g[W];
#pragma unroll
                for (int i = 0; i < W; i++)
                    g[i] = slope.of(x[0][0].get(i), r);
                store(to + (int64_t)v * W, v, r, g, false, of_target);
                turn(x);
            }
        }
    }
    DEVICE void store(Bits *to, int v, const Row &r, const N *g, bool finite, Bits of_target) {
        Vector<E> out;
        out.fill(g, finite);
        if (v == r.vector)
            out.replace(r.place, of_target);
        store_vector<E>(to, out);
    }

    /* A lane of the first warp finishes a row. */
    __device__ __forceinline__ void finish(typename Loss::Totals &total) {
        __syncthreads();
        if (threadIdx.x < (uint32_t)lates) {
            Late done = late((int)threadIdx.x);
            Row r;
            r.row = done.row;
            r.place = done.place;
            r.top = done.top;
            State state = {done.top, done.sum};
            loss.finish(loss.unfinished(r, state, &done.x_y), total);
        }
        lates = 0;
    }

    /* The folded state of a row, in all threads of the warps that call; every warp has put its own into of_warp(). */
    __device__ __forceinline__ State folded(int turn) const {
        uint32_t lane = threadIdx.x % kLanes;
        State state = State::empty();
        if (lane < blockDim.x / kLanes)
            state = of_warp(turn, lane);
        state.reduce(WholeWarp());
        return state;
    }

    /* Without a gradient the next row is asked for as soon as this one is summed. */
    __device__ __forceinline__ void losses(typename Loss::Totals &total) {
        Ahead queue(p.rows.scratch, p.rows.rows, blockIdx.x, gridDim.x, 3,
                    blockDim.x >= 256  ? 14
                    : blockDim.x >= 64 ? 15
                                       : 16);
        uint32_t word = threadIdx.x == 0 ? queue.fetch() : 0;
#pragma unroll 1
        while (queue.more()) {
            Vector<E> x[kLossVectors][1];
            int64_t y = read_target(p, queue.tile[0]);
            bool more;
            load(queue.tile[0], x);
#pragma unroll 1
            do {
                int turn = lates & 1;
                N x_y = N(0);
                State state = {N(0), N(1)};
                if (threadIdx.x == 0) {
                    uint32_t row = queue.tile[0];
                    int place = place_of(y);
                    late(lates).row = row;
                    late(lates).place = place;
                    known(turn).word = word;
                    if (place >= 0)
                        x_y = E::widen(loss.array(0, row)[place]);
                    if (!loss.reduces())
                        state.top = ((const N *)p.lse_in)[row];
                }
                if (loss.reduces())
                    state = reduce(x);
                if (queue.tile[1] >= queue.tiles)
                    let_next_begin();
                more = queue.tile[1] < queue.tiles && lates + 1 < kLanes;
                if (more) {
                    y = read_target(p, queue.tile[1]);
                    load(queue.tile[1], x);
                }
                if (threadIdx.x % kLanes == 0)
                    of_warp(turn, threadIdx.x / kLanes) = state;
                __syncthreads();
                queue.advance(known(turn).word);
                if (threadIdx.x == 0)
                    word = queue.fetch();
                if (threadIdx.x < kLanes) {
                    if (loss.reduces())
                        state = folded(turn);
                    if (threadIdx.x == 0) {
                        late(lates).top = state.top;
                        late(lates).sum = state.sum;
                        late(lates).x_y = x_y;
                    }
                }
                lates++;
            } while (more);
            finish(total);
        }
    }

    __device__ __forceinline__ void gradients(typename Loss::Totals &total) {
        const uint32_t rows = (uint32_t)p.rows.rows, run = p.rows.slots;
        const bool ahead = p.rows.flags & GPULOSSI_FETCHES_AHEAD;
        Ahead queue(p.rows.scratch, (rows + run - 1) / run, blockIdx.x, gridDim.x, ahead ? 2 : 1, run > 1 ? 8 : 0);
        uint32_t word = threadIdx.x == 0 ? queue.fetch() : 0, row = queue.tile[0] * run;
#pragma unroll 1
        while (queue.more()) {
            Vector<E> x[kGradientVectors][1];
            uint32_t next = row + 1;
            bool ends_run = (next & (run - 1)) == 0 || next == rows;
            int turn = lates & 1;
            load(row, x);
            if (threadIdx.x == 0) {
                Known it = learned(row);
                it.word = word;
                known(turn) = it;
            }
            if (ahead && threadIdx.x == blockDim.x - 1) {
                uint32_t after = ends_run ? queue.tile[1] * run : next;
                if (after < rows)
                    fetch_ahead(loss.array(0, after), (uint32_t)vectors * GPULOSSI_VECTOR_BYTES);
            }
            if (loss.reduces()) {
                State state = reduce(x);
                if (threadIdx.x % kLanes == 0)
                    of_warp(turn, threadIdx.x / kLanes) = state;
            }
            __syncthreads();
            Known it = known(turn);
            State state = {it.top, N(1)};
            if (loss.reduces())
                state = folded(turn);
            if (ends_run) {
                if (ahead)
                    queue.advance(it.word);
                else
                    queue.advance_to(it.word);
                next = queue.tile[0] * run;
                if (threadIdx.x == 0)
                    word = queue.fetch();
            }
            Row r;
            r.row = row;
            r.vector = it.place < 0 ? -1 : it.place / W;
            r.place = it.place < 0 ? it.place : it.place % W;
            r.top = state.top;
            r.scale = it.scale;
            r.inverse = reciprocal(state.sum);
            if (threadIdx.x == 0) {
                late(lates).row = row;
                late(lates).top = state.top;
                late(lates).sum = state.sum;
                late(lates).place = it.place;
                if (it.place < 0)
                    late(lates).x_y = N(0);
            }
            write(r, x, &late(lates).x_y);
            row = next;
            if (++lates == kLanes || !queue.more())
                finish(total);
        }
    }

  public:
    /* The first rows of a block that only reads, to the cache: those that every launch deals out in turn. What is written
     * until they are read is seen all the same. */
    DEVICE void ask_for_first(const Params &p) {
        int64_t row = blockIdx.x + (int64_t)threadIdx.x * gridDim.x;
        if (threadIdx.x < kAskedFor && row < p.rows.rows && p.rows.grad == 0)
            fetch_ahead((const Bits *)p.logits + row * p.logits_stride,
                        (uint32_t)p.rows.classes * (uint32_t)sizeof(Bits));
    }

    DEVICE void run(const Params &p) {
        __shared__ typename Loss::Totals totals[kLanes]; /* seldom touched, so they take no registers */
        BlockRows of_block(p);
        typename Loss::Totals &total = totals[threadIdx.x % kLanes];
        if (threadIdx.x < kLanes)
            total = Loss::Totals::zero();
        if (of_block.loss.writes())
            of_block.gradients(total);
        else
            of_block.losses(total);
        if (threadIdx.x < kLanes)
            end_of_warp(of_block.loss, of_block.loss.scratch(), total);
    }
};

#endif
