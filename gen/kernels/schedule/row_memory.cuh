/* Rows in memory, on every GPU, with every option: rows of any length, stride and alignment, and columns, whose classes
 * are not innermost. The vectors of a row are distributed cyclically to the threads of a group. Neighbouring threads
 * have neighbouring vectors of a row, or the same classes of neighbouring columns.
 *
 * A gradient reads the row once more, from its end, which is still in the cache. Short rows stay in registers instead,
 * if the softmax and the sum of the logits are all that they need. Short rows of doubles do not, because their
 * exponentials need the registers. The state of a row waits in a thread of its group until each thread has one, but at
 * most 32. Then each thread finishes a row. */
#ifndef GPULOSSI_ROW_MEMORY_CUH
#define GPULOSSI_ROW_MEMORY_CUH

#include "../device/class_bits.cuh"
#include "class_vector.cuh"

template <class Loss> class RowMemory {
    typedef typename Loss::Element E;
    typedef typename Loss::N N;
    typedef typename Loss::Bits Bits;
    typedef typename Loss::Params Params;
    typedef typename Loss::Gradients Gradients;
    typedef typename Loss::Row Row;
    typedef typename Loss::RowInput RowInput;
    typedef typename Loss::State State;
    typedef typename Loss::Gradient Gradient;
    typedef typename Loss::Totals Totals;
    typedef ClassVector<E, false, true> Classes;
    enum {
        W = Width<E>::value,
        kThreads = GPULOSSI_BLOCK,
        kRegVectors = GPULOSSI_REG_VECTORS,                               /* of a row, in the registers of a thread */
        kLoads = GPULOSSI_VECTORS_STREAMED / (sizeof(Bits) == 8 ? 2 : 1), /* of a thread, at once */
        kPrefetches = sizeof(Bits) == 8, /* vectors two loads ahead are prefetched into the L2 cache */
        kNone = -1
    };

    /* A row, and its vectors. */
    struct Span {
        int64_t row, image, within; /* of columns: the image, and the position there */
        Cut<E> cut;
        const Bits *logits;
    };
    /* A row that is reduced and not yet finished. */
    struct Deferred {
        int64_t row;
        typename Loss::DeferredRow of_row;
        typename Loss::Outcome outcome;
        N target_logit;
    };

    const Params &p;
    Loss loss;
    int threads, shift; /* number of threads that share a row, and its log2 */
    int rank;           /* of this thread in its row's threads */
    Group group;        /* group that shares a row, or the tile of columns of a block */
    Queue queue;

    DEVICE bool is_ragged() { return has_format(GPULOSSI_FORMAT_RAGGED); }
    DEVICE bool in_registers() {
        return Loss::kHasBasicRows && sizeof(Bits) < 8 && has_format(GPULOSSI_FORMAT_REGISTERS);
    }
    /* Whether the next vectors of a thread are in flight while it works on some. Loads of other arrays would wait for
     * them. */
    DEVICE bool loads_ahead() { return sizeof(Bits) == 8 && Loss::is_basic(); }
    DEVICE int columns(const Params &p) { return kThreads >> __popc(p.rows.group - 1); }
    DEVICE int64_t tiles(const Params &p) {
        return has_columns() ? (p.rows.rows + columns(p) - 1) >> __popc(columns(p) - 1) : p.rows.rows;
    }
    /* Several rows are taken at a time if they are short and there are enough of them. */
    DEVICE int run_of(const Params &p, const Group &group) {
        return group.size <= kLanes && p.rows.rows > 16ll * gridDim.x * group.count ? Queue::kRun : 1;
    }

    __device__ __forceinline__ explicit RowMemory(const Params &p)
        : p(p), loss(p), threads((int)p.rows.group), shift(__popc(p.rows.group - 1)),
          group(has_columns() ? (uint32_t)kThreads : p.rows.group, true),
          queue((gpulossi_scratch *)p.rows.scratch, group, tiles(p), run_of(p, group)) {
        rank = has_columns() ? (int)threadIdx.x >> __popc(columns(p) - 1) : group.rank;
    }

    /* The row of this thread, which may lie past the last one. */
    __device__ __forceinline__ int64_t row() const {
        return has_columns() ? queue.row() * columns(p) + (int)(threadIdx.x & (columns(p) - 1)) : queue.row();
    }
    __device__ __forceinline__ RowInput fetch() const {
        if constexpr (Loss::kHasEntries)
            return loss.fetch(min(row(), p.rows.rows - 1), Sharers{*this, {}});
        else
            return loss.template fetch<true>(min(row(), p.rows.rows - 1), has_columns() ? 0 : rank % kLanes);
    }
    __device__ __forceinline__ Span span_of(int64_t row) const {
        Span span = {row, 0, 0, Cut<E>(0, p.rows.classes), 0};
        if (has_columns()) {
            span.image = (int64_t)((uint64_t)row / (uint64_t)Loss::inner(p));
            span.within = row - span.image * Loss::inner(p);
        }
        span.logits = Loss::first_input(p) + start(span, Loss::stride_of_input(p));
        if (is_ragged() && !has_columns())
            span.cut = Cut<E>(span.logits, p.rows.classes);
        return span;
    }
    /* Where a row begins in an array with a row, or an image, each `stride` elements. */
    __device__ __forceinline__ int64_t start(const Span &span, int64_t stride) const {
        return has_columns() ? span.image * stride + span.within : span.row * stride;
    }

    /* ---- vectors ---- */

    __device__ __forceinline__ Classes classes_of(const Span &span, int v) const {
        const int64_t first = span.cut.first(v), left = span.cut.classes - first;
        return {first, Loss::inner(p), first < 0 ? (int)-first : 0, left < W ? (int)left : (int)W};
    }
    /* Vector v by elements, of which one each `step` is a class. Elements outside the row are padding. */
    __device__ __forceinline__ Vector<E> gathered(const Span &span, int v, int64_t step) const {
        const Classes classes = classes_of(span, v);
        const Bits padding = E::narrow(loss.padding());
        Bits x[W];
        Vector<E> all;
#pragma unroll
        for (int i = 0; i < W; i++)
            x[i] = classes.is_inside(i) ? span.logits[(classes.first_class + i) * step] : padding;
#pragma unroll
        for (int i = 0; i < 4; i++)
            all.word[i] = 0;
#pragma unroll
        for (int i = W - 1; i >= 0; i--)
            all.push(x[i]);
        return all;
    }
    /* Loads the K vectors v, v + threads, ... of a row. All loads are in flight before the first is used. Vectors beyond
     * the row are padding. */
    template <int K, Stay stay> __device__ __forceinline__ void load(const Span &span, int v, Vector<E> (&x)[K]) const {
        if (has_columns()) {
#pragma unroll
            for (int k = 0; k < K; k++)
                x[k] = gathered(span, v + k * threads, Loss::inner(p));
            return;
        }
        if (span.cut.whole(v) && span.cut.whole(v + (K - 1) * threads)) {
            const Bits *from = span.logits + span.cut.first(v);
#pragma unroll
            for (int k = 0; k < K; k++)
                x[k] = load_vector<E, stay>(from + k * threads * W);
            return;
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int at = v + k * threads;
            x[k] = filled<E>(loss.padding());
            if (span.cut.whole(at))
                x[k] = load_vector<E, stay>(span.logits + span.cut.first(at));
        }
        if (!is_ragged())
            return;
#pragma unroll 1
        for (int at = v; at < v + K * threads; at += threads) {
            if (at < span.cut.vectors && !span.cut.whole(at))
                x[0] = gathered(span, at, 1);
            rotate(x);
        }
    }

    /* Loads the vectors from v on. If they are in `ahead` already, the vectors from `next` on are loaded into it. */
    template <Stay stay>
    __device__ __forceinline__ void load_next(const Span &span, int v, int next, Vector<E> (&x)[kLoads],
                                              Vector<E> (&ahead)[kLoads]) const {
        if (loads_ahead()) {
#pragma unroll
            for (int k = 0; k < kLoads; k++)
                x[k] = ahead[k];
            if (next >= 0 && next < span.cut.vectors)
                load<kLoads, stay>(span, next, ahead);
        } else {
            load<kLoads, stay>(span, v, x);
        }
        if (kPrefetches && !has_columns())
#pragma unroll
            for (int k = 0; k < kLoads; k += 2) /* two vectors are a sector */
                prefetch(span, v + (next - v) * (GPULOSSI_VECTORS_STREAMED / kLoads) + rank + k * threads);
    }
    __device__ __forceinline__ void prefetch(const Span &span, int v) const {
        if (v >= 0 && v < span.cut.vectors)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(span.logits + span.cut.first(v)));
    }

    /* The vector k of a thread, for the loss. */
    struct Side {
        const RowMemory &of;
        const Span &span;
        int v, begin, end;

        __device__ __forceinline__ int vector(int k) const { return v + k * of.threads; }
        __device__ __forceinline__ int64_t first(int k) const { return span.cut.first(vector(k)); }
        __device__ __forceinline__ Classes classes(int k) const { return of.classes_of(span, vector(k)); }
        __device__ __forceinline__ int count(int k) const {
            return vector(k) < span.cut.vectors ? classes(k).count() : 0;
        }
        __device__ __forceinline__ bool is_inside(int k, int i) const { return classes(k).is_inside(i); }
        enum { kHasPartialVectors = 1 }; /* if rows are ragged, and in columns */
        enum { kExcludesEntries = 1 };
        enum { kElements = W };
        DEVICE bool is_edge() { return false; }
        __device__ __forceinline__ int position(int k) const { return vector(k) * W; }
        __device__ __forceinline__ int64_t row_number() const { return span.row; }
        DEVICE bool is_staged() { return false; }
        DEVICE bool has_vectors_of_target() { return false; }
        DEVICE Vector<E> load_target(int) { return {}; }
        __device__ __forceinline__ int64_t start(int64_t stride) const { return of.start(span, stride); }
        __device__ __forceinline__ int64_t start_of_gradient(int64_t stride) const { return start(stride); }
        __device__ __forceinline__ Vector<E> load(int k) const {
            Vector<E> x[1];
            of.template load<1, kRead_again>(span, vector(k), x);
            return x[0];
        }
        template <class Array> __device__ __forceinline__ void read_staged(const Array &array, int k, N (&y)[W]) const {
            classes(k).read(array, y);
        }
        template <class Array>
        __device__ __forceinline__ void read_of_classes(const Array &array, int k, N (&y)[W]) const {
            classes(k).read_of_classes(array, y);
        }
        template <class Array> __device__ __forceinline__ void write(const Array &array, int k, const N (&y)[W]) const {
            classes(k).write(array, y);
        }
    };

    /* The threads that share a row, for a loss whose rows have entries. */
    struct Sharers {
        enum { kMayHaveMore = 1 }; /* entries than registers of all threads */
        const RowMemory &of;
        const Cut<E> cut;
        __device__ __forceinline__ int rank() const { return of.rank; }
        __device__ __forceinline__ int size() const { return of.threads; }
        __device__ __forceinline__ void settle() const { of.group.settle(); }
        DEVICE bool counts_bad() { return true; }
        __device__ __forceinline__ int64_t positions() const { return of.p.rows.classes + 2 * W; }
        __device__ __forceinline__ int position(int64_t c) const { return (int)c + cut.head; }
    };
    __device__ __forceinline__ void begin_entries() {
        const Cut<E> whole(0, p.rows.classes);
        const uint32_t bytes = GPULOSSI_CLASS_BITS_FEWER_BYTES / (uint32_t)group.count;
        loss.begin(Sharers{*this, whole}, Shared::address(stash_of_block()) + (uint32_t)group.number * bytes, bytes);
    }

    /* ---- a row ---- */

    template <int K>
    __device__ __forceinline__ void accumulate_sums(const Span &span, int v, Vector<E> (&x)[K], State &state) const {
        const Side side = {*this, span, v, 0, min((span.cut.vectors - v + threads - 1) >> shift, (int)K)};
        if constexpr (Loss::kHasBasicRows || Loss::kHasEntries)
            loss.accumulate_sums(state, x, side);
    }
    /* Adds a row in two halves, which takes fewer registers. */
    __device__ __forceinline__ void accumulate_registers(const Span &span, Vector<E> (&reg_row)[kRegVectors],
                                                         State &state) const {
        typedef Vector<E> Half[kRegVectors / 2];
        accumulate_sums(span, rank, (Half &)reg_row[0], state);
        accumulate_sums(span, rank + kRegVectors / 2 * threads, (Half &)reg_row[kRegVectors / 2], state);
    }
    /* Adds vectors with every option, once the maximum of all is known. */
    template <int K>
    __device__ __forceinline__ void accumulate_all(const Span &span, const Row &r, int v, Vector<E> (&x)[K],
                                                   State &state) const {
        if constexpr (Loss::kHasBasicRows) {
            const Side all = {*this, span, v, 0, K};
            auto best = loss.highest_before(state);
            int k = 0;
            if constexpr (sizeof(Bits) == 8)
                if (Loss::adds_together() && v + (K - 1) * threads < span.cut.vectors)
                    return loss.accumulate_together(state, x, all, 0, 1);
            loss.raise(state, loss.highest_of(x));
            auto batch = loss.batch_of(state);
#pragma unroll 1
            for (; k < K && all.vector(k) < span.cut.vectors; k++) {
                loss.accumulate(state, batch, best, x[0], all, k);
                rotate(x);
            }
            loss.close(state, batch, 0, k, 1, [&](int) { return all; });
            loss.find_best(state, best, 0, k, 1, [&](int) { return all; });
        } else if constexpr (!Loss::kHasEntries) {
#pragma unroll 1
            for (int at = v; at < v + K * threads && at < span.cut.vectors; at += threads) {
                const Side side = {*this, span, at, 0, 1};
                loss.accumulate(r, state, x[0], side);
                rotate(x);
            }
        }
    }
    __device__ __forceinline__ void accumulate_row(const Span &span, const Row &r, State &state) const {
        const int step = kLoads * threads;
        Vector<E> x[kLoads], ahead[kLoads];
        if (loads_ahead())
            load<kLoads, kRead_again>(span, rank, ahead);
#pragma unroll 1
        for (int v = rank; v < span.cut.vectors; v += step) {
            load_next<kRead_again>(span, v, v + step, x, ahead);
            if (Loss::sums_only())
                accumulate_sums(span, v, x, state);
            else
                accumulate_all(span, r, v, x, state);
        }
    }
    /* Adds up a row whose softmax is reduced, from the row's end on, which is still in the cache. */
    __device__ __forceinline__ void add_values(const Span &span, const Row &r, State &state) const {
        const typename Loss::Sides sides = loss.sides_of(r, state);
        const int step = kLoads * threads, last = rank + ((span.cut.vectors - 1 - rank) & -step);
#pragma unroll 1
        for (int v = last; v >= 0 && span.cut.vectors > rank; v -= step) {
            Vector<E> x[kLoads];
            load<kLoads, kRead_again>(span, v, x);
#pragma unroll 1
            for (int at = v; at < v + step && at < span.cut.vectors; at += threads) {
                const Side side = {*this, span, at, 0, 1};
                loss.add_values(state.values, sides, x[0], side, 0);
                rotate(x);
            }
        }
    }
    /* The sums of the rows of the group that have values. Threads that share a barrier agree on whether they reduce. */
    __device__ __forceinline__ void reduce_values(const Span &span, const Row &r, bool reads, State &state) const {
        const bool has_values = reads && loss.has_values(r, state);
        if (!(has_columns() ? __syncthreads_or(has_values) : __any_sync(0xffffffffu, has_values)))
            return;
        if (has_values)
            add_values(span, r, state);
        reduce(state.values);
    }
    /* Completes a row whose softmax is reduced, with the values of its entries. */
    __device__ __forceinline__ void reduce_entries(const Span &span, bool reads, State &state) const {
        loss.complete(state);
        if (!Loss::may_have_values())
            return;
        if (reads)
            loss.add_values(state, span.row, Sharers{*this, span.cut});
        reduce(state.values);
    }
    /* A barrier for the threads of a row, or for the block. Memory that one of them has read before may be overwritten by
     * another after it. */
    template <class Reduced> __device__ __forceinline__ void reduce(Reduced &state) const {
        if (has_columns()) {
            const AcrossGroups<kThreads> groups = {columns(p), threads};
            state.reduce(groups);
        } else {
            group.reduce(state, queue.phase);
        }
    }

    /* Writes the gradients of the whole vectors of a basic row that is fast. */
    template <int K>
    __device__ __forceinline__ void write_fast(const Gradient &g, const Span &span, int v,
                                               const Vector<E> (&x)[K]) const {
        N all[K][W];
        if constexpr (Loss::kHasBasicRows && sizeof(Bits) == 8)
            loss.fast_gradients(g, x, all);
#pragma unroll
        for (int k = 0; k < K; k++)
            if (span.cut.whole(v + k * threads)) {
                N y[W];
                if constexpr (Loss::kHasBasicRows && sizeof(Bits) == 8) {
                    loss.gradients_of(span.row).write_vector(span.cut.first(v + k * threads), all[k]);
                } else if constexpr (Loss::kHasBasicRows) {
                    loss.fast_gradients(g, x[k], y);
                    loss.gradients_of(span.row).write_vector(span.cut.first(v + k * threads), y);
                }
            }
    }
    /* Writes the gradients of vectors with every option. Skips whole vectors if they are written already. */
    template <int K>
    __device__ __forceinline__ void write(Gradient &g, const Row &r, bool has_gradient, bool skips_whole,
                                          const Span &span, int v, Vector<E> (&x)[K]) const {
#pragma unroll 1
        for (int at = v; at < v + K * threads && at < span.cut.vectors; at += threads) {
            const Side side = {*this, span, at, 0, 1};
            if (!(skips_whole && span.cut.whole(at)))
                loss.write(g, r, x[0], side, 0, kNone, has_gradient);
            rotate(x);
        }
    }
    /* The target's gradient replaces the one that its vector has got as any class. */
    __device__ __forceinline__ void write_target(const Gradient &g, const Row &r, const Span &span, N logit) const {
        if constexpr (Loss::kHasClasses)
            write_target_class(g, r, span, logit);
    }
    __device__ __forceinline__ void write_target_class(const Gradient &g, const Row &r, const Span &span,
                                                       N logit) const {
        const int64_t c = has_columns() ? r.target_class * Loss::inner(p) : r.target_class;
        if (!has(GPULOSSI_CE_GRADIENT) || r.target_class < 0 ||
            (span.cut.vector_of(r.target_class) & (threads - 1)) != rank)
            return;
        Gradients(p.rows.grad, start(span, p.rows.grad_stride)).write(c, loss.target_gradient(g, r, logit));
    }
    __device__ __forceinline__ void write_row(const Span &span, const Row &r, State &state, N logit, bool reads,
                                              const Vector<E> (&reg_row)[kRegVectors]) const {
        Gradient g = loss.gradient(span.row, r, state);
        const bool has_gradient = reads & !g.is_zero;
        const int step = kLoads * threads;
        const bool is_aligned = !is_ragged() | loss.gradients_of(span.row).is_aligned(span.cut.first(0));
        bool is_fast = false;
        if constexpr (Loss::kHasBasicRows)
            is_fast = Loss::is_basic() & !has_columns() & has_gradient & g.is_fast & is_aligned;
        if (in_registers()) {
            if (is_fast) {
                write_fast(g, span, rank, reg_row);
                if (!is_ragged())
                    return write_target(g, r, span, logit);
            }
        }
        if (span.cut.vectors > rank) {
            const int last = rank + ((span.cut.vectors - 1 - rank) & -step);
            Vector<E> x[kLoads], ahead[kLoads];
            if (loads_ahead() && has_gradient)
                load<kLoads, kRead_once>(span, last, ahead);
#pragma unroll 1
            for (int v = last; v >= 0; v -= step) {
                if (has_gradient)
                    load_next<kRead_once>(span, v, v - step, x, ahead);
                if (!in_registers()) {
                    if (is_fast) {
                        write_fast(g, span, v, x);
                        if (!is_ragged())
                            continue;
                    }
                }
                write(g, r, has_gradient, is_ragged() & is_fast, span, v, x);
            }
        }
        if (has_gradient)
            write_target(g, r, span, logit);
        if constexpr (Loss::kHasEntries)
            if (has_gradient)
                loss.write_entries(g, span.row, Sharers{*this, span.cut});
        if constexpr (Loss::kHasValues && !Loss::kHasEntries)
            if (Loss::sums_while_writing())
                state.values.f = g.f;
    }

    __device__ __forceinline__ N target_logit(const Span &span, const Row &r) const {
        if (r.target_class < 0)
            return N(0);
        return E::widen(span.logits[has_columns() ? r.target_class * Loss::inner(p) : r.target_class]);
    }
    DEVICE Deferred &smem_deferred() {
        __shared__ Deferred of_threads[kThreads];
        return of_threads[threadIdx.x];
    }
    __device__ __forceinline__ void all_rows(Totals &total) {
        RowInput input = {};
        int deferred_rows = 0;
        if constexpr (Loss::kHasEntries)
            begin_entries();
        if (queue.more())
            input = fetch();
#pragma unroll 1
        while (queue.more()) {
            const bool is_there = row() < p.rows.rows;
            const Span span = span_of(min(row(), p.rows.rows - 1));
            const Row r = loss.row_of(input, SomeLanes{has_columns() ? 1 : min(threads, (int)kLanes)});
            const bool reads = is_there & loss.is_read(r);
            State state = State::empty();
            N logit = N(0);
            Vector<E> reg_row[kRegVectors];
            queue.announce();
            if constexpr (Loss::kHasEntries)
                loss.open(span.row, r, reads, Sharers{*this, span.cut});
            if (reads) {
                if (in_registers())
                    load<kRegVectors, kRead_once>(span, rank, reg_row);
                logit = target_logit(span, r);
                if (in_registers())
                    accumulate_registers(span, reg_row, state);
                else if (Loss::reduces())
                    accumulate_row(span, r, state);
                if constexpr (Loss::kHasEntries)
                    loss.add_entries(state, span.row, Sharers{*this, span.cut});
            }
            if (Loss::reduces())
                reduce((typename Loss::Softmax &)state);
            else
                group.settle();
            if constexpr (Loss::kHasEntries)
                reduce_entries(span, reads, state);
            else if constexpr (Loss::kHasValues)
                if (Loss::may_have_values() && !Loss::sums_while_writing())
                    reduce_values(span, r, reads, state);
            queue.advance();
            input = fetch();
            if (!Loss::sums_while_writing() && is_there && rank == deferred_rows)
                smem_deferred() = {span.row, r, loss.outcome(r, state), logit};
            deferred_rows += is_there;
            if (Loss::writes() && is_there)
                write_row(span, r, state, logit, reads, reg_row);
            if constexpr (Loss::kHasValues)
                if (Loss::sums_while_writing())
                    reduce(state.values);
            if (Loss::sums_while_writing() && is_there && rank == deferred_rows - 1)
                smem_deferred() = {span.row, r, loss.outcome(r, state), logit};
            if (deferred_rows == min(threads, (int)kLanes) || !queue.more()) {
                if (rank < deferred_rows) {
                    const Deferred &of = smem_deferred();
                    loss.add(loss.finish(of.row, of.of_row, of.outcome, of.target_logit), total);
                }
                deferred_rows = 0;
            }
        }
    }

  public:
    DEVICE void run(const Params &p) {
        __shared__ Totals totals[kThreads]; /* rarely accessed, so not in registers */
        totals[threadIdx.x] = Totals::zero();
        RowMemory schedule(p);
        schedule.all_rows(totals[threadIdx.x]);
        end(schedule.loss, schedule.loss.scratch(), totals);
    }
};

#endif
