/* Cross-entropy over rows of medium length, for GPUs that prefetch into the L2 cache. A block has a row
 * in the registers of its threads: it is read once and written once. Many small blocks on a multiprocessor keep memory
 * busy, because some reduce their row while others load.
 *
 * If rows are only read, most of them are static, assigned round robin: counter accesses slow the reads of other blocks
 * down. The last rows come from a counter, so that the blocks end at the same time. For short rows, counter accesses
 * cost more than this gains, so almost all rows are static. The first tiles of a block that writes are static. The counter
 * gives the others in the order of memory, which is faster. A tile of short rows has two rows, and half of these tiles are
 * static. */
#ifndef GPULOSSI_ROW_CTA_CUH
#define GPULOSSI_ROW_CTA_CUH

#include "../device/tile_scheduler.cuh"
#include "ce_basic.cuh"

/* Prefetches bytes into the L2 cache. 16 divides them and the address. */
DEVICE void prefetch_l2(const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
}

/* Every row consists of the same whole vectors. A thread has K of them at most, and fewer if it also writes them. */
template <class E, bool kHasOptions> class BlockRows {
    typedef BasicCrossEntropy<E, kHasOptions> Loss;
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
        /* The first kPrefetchedRows rows of a block are prefetched before the earlier kernels have ended. */
        kPrefetchedRows = 2,
        /* The targets of kStaticTargets rows are read at first. A ring has kComing rows, which divides kLanes. */
        kStaticTargets = 2,
        kComing = 4
    };

    /* The inputs of a row besides its elements. The target's class is negative if there is none, like Row::position.
     * row_max is used if an lse is given. */
    struct RowInput {
        N row_max, scale;
        int target_class;
        uint32_t word; /* of the tile scheduler */
    };
    /* A row that is reduced and not yet finished. */
    struct Deferred {
        uint32_t row;
        N row_max, sum, x_y;
        int target_class;
    };

    /* A row that is to be reduced: its target's class, for the first thread, and whether it is read. A block's first
     * rows are read before their targets are known. */
    struct Coming {
        int target_class;
        uint32_t reads;
    };

    const Params &p;
    Loss loss;
    int vectors;       /* of a row */
    int deferred_rows; /* rows that are reduced and not yet finished */

    __device__ __forceinline__ explicit BlockRows(const Params &p)
        : p(p), loss(p), vectors((int)(p.rows.classes / W)), deferred_rows(0) {}

    /* A total is rarely accessed, so it is not in registers. Where only the loss is computed, one address serves it and
     * the row that its lane finishes, which takes a register less. */
    struct OfLane {
        typename Loss::Totals total;
        Deferred deferred;
    };
    DEVICE OfLane &smem_of_lane(int lane) {
        __shared__ OfLane of_block[kLanes];
        return of_block[lane];
    }
    DEVICE Deferred &smem_deferred(int i) { return smem_of_lane(i).deferred; }
    /* The inputs of a deferred row that only options need. */
    struct WithOptions {
        N weight, drop;
    };
    DEVICE WithOptions &smem_deferred_options(int i) {
        __shared__ WithOptions of_lanes[kLanes];
        return of_lanes[i];
    }
    DEVICE N &smem_coming_weight(int i) {
        __shared__ N of_block[kComing];
        return of_block[i % kComing];
    }
    DEVICE RowInput &smem_input(int buffer) {
        __shared__ RowInput of_block[2];
        return of_block[buffer];
    }
    /* The row after i deferred ones. */
    DEVICE Coming &smem_coming(int i) {
        __shared__ Coming of_block[kComing];
        return of_block[i % kComing];
    }
    DEVICE State &smem_state(int buffer, uint32_t warp) {
        __shared__ State states[2][kMostWarps];
        return states[buffer][warp];
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
                keep(from); /* one address in registers at a time */
            }
        }
    }

    __device__ __forceinline__ int target_class_of(int64_t y, N weight = N(1)) const {
        Target target = kind_of(p, y);
        const int of_class = Loss::has_row_weights() && weight == 0 ? Loss::silent((int)y) : (int)y;
        return target == kClass ? of_class : target == kIgnored ? -1 : -2;
    }
    /* Whether a row has to be read. */
    __device__ __forceinline__ bool is_read(int target_class) const {
        return target_class >= 0 || loss.reads_ignored();
    }
    /* The inputs of a row with target y. */
    __device__ __forceinline__ RowInput row_input(uint32_t row, int64_t y) const {
        RowInput input = {N(0), N(0), target_class_of(y), 0};
        if (input.target_class >= 0)
            input.scale = loss.scale_of(row);
        if (!Loss::reduces())
            input.row_max = ((const N *)p.lse_in)[row];
        return input;
    }

    /* With smoothing, a vector that this thread has is also added to `powers`. */
    __device__ __forceinline__ N sum_below(const ScaledExp<N> &below, const Vector<E> &x, int k, N &powers) const {
        N part[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            part[i] = below.power(x.get(i));
        if (is_smoothed() && has_vector(k))
            powers += in_halves<Sum>(part);
#pragma unroll
        for (int i = 0; i < W; i++)
            part[i] = power_of_2(part[i]);
        return in_halves<Sum>(part);
    }
    /* No row of 16 bits with smoothing comes here. */
    DEVICE bool is_smoothed() {
        return sizeof(Bits) == 4 && Loss::is_smoothed();
    }
    __device__ __forceinline__ bool has_vector(int k) const {
        return (int)(threadIdx.x + k * blockDim.x) < vectors;
    }
    /* Sums up the terms of smoothing over a warp. The sum of powers may be infinite where the drop is not: then the row is
     * read again. */
    __device__ __forceinline__ void smooth(uint32_t row, N powers, SmoothedSoftmax<N> &state) const {
        const WholeWarp warp;
        const N row_max = State::finite(state.row_max);
        int count = 0;
#pragma unroll
        for (int k = 0; k < kLossVectors; k++)
            count += has_vector(k);
        count = W * sum_over(warp, count);
        state.soft_sum = Loss::smooth() * (N)count;
        state.drop = loss.drop_of(row_max, warp.over<Sum>(powers), (N)count);
        if (ScaledExp<N>::in_fast_range(row_max) && fabs(state.drop) < Limits<N>::infinity())
            return;
        N drop = N(0);
#pragma unroll 1
        for (int v = (int)threadIdx.x; v < vectors; v += (int)blockDim.x) {
            const Vector<E> x = load_vector<E, kRead_again>(loss.array(0, row) + (int64_t)v * W);
#pragma unroll
            for (int i = 0; i < W; i++)
                drop += Loss::smooth() * difference(row_max, x.get(i));
        }
        state.drop = warp.over<Sum>(drop);
    }
    /* The state of a row that is not read. */
    DEVICE State state_of_none() {
        State state = State::empty();
        state.row_max = N(0);
        state.sum = N(1);
        return state;
    }
    /* The state of a warp's part of a row, in its first lane. */
    template <int K> __device__ __forceinline__ State reduce(uint32_t row, Vector<E> (&x)[K][1]) const {
        State state = State::empty();
        state.row_max = WholeWarp().template over<Maximum>(largest(x, 0));
        N row_max = State::finite(state.row_max), powers = N(0);
        if (ScaledExp<N>::in_fast_range(row_max)) {
            ScaledExp<N> below(row_max);
            if (K == kLossVectors || vectors == K * (int)blockDim.x) {
#pragma unroll
                for (int k = 0; k < K; k++)
                    state.sum += sum_below(below, x[k][0], k, powers);
            } else {
                /* Measured for rows that are written: elements of 16 bits skip the vectors that this thread does not
                 * have. Floats only skip the vectors that no thread has. */
                int first = sizeof(Bits) == 2 ? (int)threadIdx.x : 0;
#pragma unroll
                for (int k = 0; k < K; k++)
                    if (first + k * (int)blockDim.x < vectors)
                        state.sum += sum_below(below, x[k][0], k, powers);
            }
            state.sum *= below.factor;
        } else {
#pragma unroll 1
            for (int k = 0; k < K; k++) {
                N part[W];
#pragma unroll
                for (int i = 0; i < W; i++)
                    part[i] = exp_below(x[0][0].get(i), row_max);
                state.sum += in_halves<Sum>(part);
                rotate(x);
            }
        }
        state.sum = WholeWarp().template over<Sum>(state.sum);
        if constexpr (kHasOptions)
            if (is_smoothed())
                smooth(row, powers, state);
        return state;
    }

    /* The target's gradient is inserted before its vector is stored, because a second write to the same memory soon
     * after is slow. The target's logit is saved for finish(). */
    template <int K> __device__ __forceinline__ void write(const Row &r, Vector<E> (&x)[K][1], N *x_y) const {
        Bits *to = loss.grad(r.row), of_target = 0;
        char *vector = (char *)to + threadIdx.x * GPULOSSI_VECTOR_BYTES;
        typename Loss::Slope slope(r);
        uint32_t step = blockDim.x * GPULOSSI_VECTOR_BYTES;
        if (r.position < 0) {
#pragma unroll 1
            for (int v = (int)threadIdx.x; v < vectors; v += (int)blockDim.x)
                store_vector<E>(to + (int64_t)v * W, filled<E>(N(0)));
            return;
        }
#pragma unroll
        for (int k = 0; k < K; k++)
            if ((int)(threadIdx.x + k * blockDim.x) == r.vector) {
                *x_y = x[k][0].find(r.position);
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
                rotate(x);
            }
        }
    }
    DEVICE void store(Bits *to, int v, const Row &r, const N *g, bool finite, Bits of_target) {
        Vector<E> out;
        out.fill(g, finite);
        if (v == r.vector)
            out.replace(r.position, of_target);
        store_vector<E>(to, out);
    }

    /* Each lane of the first warp finishes one deferred row. */
    __device__ __forceinline__ void finish(typename Loss::Totals &total) {
        __syncthreads();
        if (threadIdx.x < (uint32_t)deferred_rows) {
            Deferred done = smem_deferred((int)(threadIdx.x % kLanes));
            Row r = {};
            r.row = done.row;
            r.position = done.target_class;
            r.row_max = done.row_max;
            const WithOptions &options = smem_deferred_options((int)(threadIdx.x % kLanes));
            r.weight = Loss::has_row_weights() ? options.weight : N(1);
            r.class_weight = loss.class_weight_of(r.position);
            r.drop = is_smoothed() ? options.drop : N(0);
            Softmax<N> state = {done.row_max, done.sum};
            loss.finish(loss.unfinished(r, state, &done.x_y), total);
        }
        deferred_rows = 0;
    }

    /* The reduced state of a row, in all threads of the calling warps. Every warp has stored its state to
     * smem_state(). */
    __device__ __forceinline__ State reduced_state(int buffer) const {
        uint32_t lane = threadIdx.x % kLanes;
        State state = State::empty();
        if (lane < blockDim.x / kLanes)
            state = smem_state(buffer, lane);
        state.reduce(WholeWarp());
        return state;
    }

    /* Without a gradient, the loads of the next row start as soon as this one is reduced. */
    __device__ __forceinline__ void losses(typename Loss::Totals &total) {
        Ahead queue(p.rows.scratch, p.rows.rows, blockIdx.x, gridDim.x, 3,
                    blockDim.x >= 256  ? 14
                    : blockDim.x >= 64 ? 15
                                       : 16);
        const uint32_t warp = uniform_warp();
        uint32_t word = threadIdx.x == 0 ? queue.fetch() : 0;
#pragma unroll 1
        while (queue.more()) {
            Vector<E> x[kLossVectors][1];
            int64_t first_y = 0;
            N first_weight = N(1);
            const bool reads_targets = queue.tile[0] == blockIdx.x && threadIdx.x < kStaticTargets;
            bool more;
            if (reads_targets) { /* before the row, which it would wait for */
                const uint32_t row = min(queue.after((int)threadIdx.x), queue.tiles - 1);
                first_y = read_target(p, row);
                first_weight = loss.weight_of(row);
            }
            if (smem_coming(deferred_rows).reads)
                load(queue.tile[0], x);
            if (reads_targets) {
                smem_coming((int)threadIdx.x).target_class = target_class_of(first_y, first_weight);
                if (Loss::has_row_weights())
                    smem_coming_weight((int)threadIdx.x) = first_weight;
            }
#pragma unroll 1
            do {
                int buffer = deferred_rows & 1;
                N x_y = N(0);
                State state = state_of_none();
                int64_t y = 0; /* of the row after the next one */
                N weight = N(1);
                if (threadIdx.x == 0) {
                    const uint32_t row = queue.tile[0];
                    const int target_class = smem_coming(deferred_rows).target_class;
                    smem_deferred(deferred_rows).row = row;
                    smem_deferred(deferred_rows).target_class = target_class;
                    if (Loss::has_row_weights())
                        smem_deferred_options(deferred_rows).weight = smem_coming_weight(deferred_rows);
                    smem_input(buffer).word = word;
                    if (target_class >= 0)
                        x_y = E::widen(loss.array(0, row)[target_class]);
                    if (!Loss::reduces())
                        state.row_max = ((const N *)p.lse_in)[row];
                    const uint32_t later = queue.tile[2] < queue.tiles ? queue.tile[2] : row;
                    y = read_target(p, later);
                    weight = loss.weight_of(later);
                }
                if (Loss::reduces() && smem_coming(deferred_rows).reads)
                    state = reduce(queue.tile[0], x);
                if (threadIdx.x == 0) {
                    const int target_class = target_class_of(y, weight);
                    smem_coming(deferred_rows + 2) = {target_class, is_read(target_class)};
                    if (Loss::has_row_weights())
                        smem_coming_weight(deferred_rows + 2) = weight;
                }
                if (queue.tile[1] >= queue.tiles)
                    let_next_begin();
                more = queue.tile[1] < queue.tiles && deferred_rows + 1 < kLanes;
                if (more && smem_coming(deferred_rows + 1).reads)
                    load(queue.tile[1], x);
                if (threadIdx.x % kLanes == 0)
                    smem_state(buffer, threadIdx.x / kLanes) = state;
                __syncthreads();
                queue.advance(smem_input(buffer).word);
                if (threadIdx.x == 0)
                    word = queue.fetch();
                if (warp == 0) {
                    if (Loss::reduces())
                        state = reduced_state(buffer);
                    if (threadIdx.x == 0) {
                        smem_deferred(deferred_rows).row_max = state.row_max;
                        smem_deferred(deferred_rows).sum = state.sum;
                        if constexpr (kHasOptions)
                            if (is_smoothed())
                                smem_deferred_options(deferred_rows).drop = state.drop;
                        smem_deferred(deferred_rows).x_y = x_y;
                    }
                }
                deferred_rows++;
            } while (more);
            finish(total);
        }
    }

    __device__ __forceinline__ void gradients(typename Loss::Totals &total) {
        const uint32_t rows = (uint32_t)p.rows.rows, run = p.rows.of.tile_rows;
        const bool ahead = p.rows.flags & GPULOSSI_FETCHES_AHEAD;
        Ahead queue(p.rows.scratch, (rows + run - 1) / run, blockIdx.x, gridDim.x, ahead ? 2 : 1, run > 1 ? 8 : 0);
        uint32_t word = threadIdx.x == 0 ? queue.fetch() : 0, row = queue.tile[0] * run;
        int64_t y = queue.more() ? read_target(p, row) : 0;
#pragma unroll 1
        while (queue.more()) {
            Vector<E> x[kGradientVectors][1];
            uint32_t next = row + 1;
            bool ends_run = (next & (run - 1)) == 0 || next == rows;
            int buffer = deferred_rows & 1;
            const bool reads = is_read(target_class_of(y));
            if (reads)
                load(row, x);
            if (threadIdx.x == 0) {
                RowInput input = row_input(row, y);
                input.word = word;
                smem_input(buffer) = input;
            }
            if (ahead && threadIdx.x == blockDim.x - 1) {
                uint32_t after = ends_run ? queue.tile[1] * run : next;
                if (after < rows && is_read(target_class_of(read_target(p, after))))
                    prefetch_l2(loss.array(0, after), (uint32_t)vectors * GPULOSSI_VECTOR_BYTES);
            }
            if (Loss::reduces()) {
                const State state = reads ? reduce(row, x) : state_of_none();
                if (threadIdx.x % kLanes == 0)
                    smem_state(buffer, threadIdx.x / kLanes) = state;
            }
            __syncthreads();
            RowInput input = smem_input(buffer);
            State state = State::empty();
            state.row_max = input.row_max;
            state.sum = N(1);
            if (Loss::reduces())
                state = reduced_state(buffer);
            if (ends_run) {
                if (ahead)
                    queue.advance(input.word);
                else
                    queue.advance_to(input.word);
                next = queue.tile[0] * run;
                if (threadIdx.x == 0)
                    word = queue.fetch();
            }
            if (next < rows)
                y = read_target(p, next);
            Row r;
            r.row = row;
            r.vector = input.target_class < 0 ? -1 : input.target_class / W;
            r.position = input.target_class < 0 ? input.target_class : input.target_class % W;
            r.row_max = state.row_max;
            r.scale = input.scale;
            r.inverse = reciprocal(state.sum);
            if (threadIdx.x == 0) {
                smem_deferred(deferred_rows).row = row;
                smem_deferred(deferred_rows).row_max = state.row_max;
                smem_deferred(deferred_rows).sum = state.sum;
                smem_deferred(deferred_rows).target_class = input.target_class;
                if (input.target_class < 0)
                    smem_deferred(deferred_rows).x_y = N(0);
            }
            write(r, x, &smem_deferred(deferred_rows).x_y);
            row = next;
            if (++deferred_rows == kLanes || !queue.more())
                finish(total);
        }
    }

  public:
    /* Prefetches the first rows of a block that only reads, which are static in every launch. Writes that come later
     * are seen nevertheless. */
    DEVICE void prefetch_first_rows(const Params &p) {
        int64_t row = blockIdx.x + (int64_t)threadIdx.x * gridDim.x;
        if (threadIdx.x < kPrefetchedRows && row < p.rows.rows && !Loss::writes())
            prefetch_l2((const Bits *)p.logits + row * p.logits_stride,
                        (uint32_t)p.rows.classes * (uint32_t)sizeof(Bits));
    }

    DEVICE void run(const Params &p) {
        __shared__ typename Loss::Totals totals[kLanes];
        if (!Loss::writes() && threadIdx.x == 0) /* at fixed addresses, which take no register */
#pragma unroll
            for (int i = 0; i < kStaticTargets; i++)
                smem_coming(i).reads = true;
        BlockRows of_block(p); /* with a barrier */
        const int lane = (int)(threadIdx.x % kLanes);
        typename Loss::Totals &total = Loss::writes() ? totals[lane] : smem_of_lane(lane).total;
        if (threadIdx.x < kLanes)
            total = Loss::Totals::zero();
        if (Loss::writes())
            of_block.gradients(total);
        else
            of_block.losses(total);
        if (threadIdx.x < kLanes)
            end_of_warp(of_block.loss, of_block.loss.scratch(), total);
    }
};

#endif
