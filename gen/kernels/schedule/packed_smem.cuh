/* Cross-entropy of short packed rows, each row shared by one lane or a few.
 *
 * Rows of whole vectors are read by vectors of 16 bytes, all others by words of 4 bytes. */
#ifndef GPULOSSI_PACKED_SMEM_CUH
#define GPULOSSI_PACKED_SMEM_CUH

#include "packed_base.cuh"

/* The first number of classes that does not fit in registers. */
template <class E> struct FirstPacked {
    enum { value = GPULOSSI_PACKED_REG_CLASSES + (sizeof(typename E::Bits) == 2) + 1 };
};

template <class E, bool kHasOptions>
class Packed : public PackedRows<BasicCrossEntropy<E, kHasOptions>, Packed<E, kHasOptions>, GPULOSSI_PACKED_THREADS,
                                 FirstPacked<E>::value> {
    typedef PackedRows<BasicCrossEntropy<E, kHasOptions>, Packed<E, kHasOptions>, GPULOSSI_PACKED_THREADS,
                       FirstPacked<E>::value>
        Base;
    friend Base;
    typedef typename Base::Loss Loss;
    typedef typename Base::Params Params;
    typedef typename Base::Totals Totals;
    typedef typename Base::N N;
    typedef typename Base::Row Row;
    typedef typename Base::State State;
    typedef typename Base::End End;
    typedef typename E::Bits Bits;
    typedef Words<E> Of;
    template <int bytes> using Part = typename Base::template Part<bytes>;
    using Base::p, Base::loss, Base::lane, Base::rank, Base::size, Base::shift, Base::row_bytes, Base::ring_base;
    using Base::stage_offset, Base::consumer, Base::add, Base::settle_sum;
    using Base::swizzle, Base::kNumber, Base::kNoClass;
    enum { kNone = -1, kElements = Of::kElements };

    /* A reduced row that is not finished yet. If several lanes share a row, each lane defers another row. */
    struct Deferred {
        int64_t row;
        N row_max, sum, x_y;
        int target, best;
        N weight, drop;
    } deferred;
    int deferred_count;

    __device__ __forceinline__ explicit Packed(const Params &p) : Base(p), deferred_count(0) { deferred.row = kNone; }

    /* Elements of a piece. */
    template <int bytes> static constexpr int kOf = bytes / 4 * kElements;
    /* The number in the order of memory of the piece that this lane reads as its k-th. The swizzle changes the order. */
    template <int bytes> __device__ __forceinline__ int order(int k) const {
        return bytes == 4 ? k : k ^ (swizzle >> (4 + shift));
    }
    /* The first class of this lane's k-th piece in the order of memory. */
    template <int bytes> __device__ __forceinline__ int class_of(const Part<bytes> &part, int k) const {
        return part.first_class + k * size * kOf<bytes>;
    }
    /* Reads the weights of the classes of a piece from class c on: those of a vector, which are aligned, or of a word. */
    __device__ __forceinline__ void read_weights(int c, N (&weights)[4 * kElements]) const {
        const float4 *from = (const float4 *)((const N *)p.class_weights + c);
#pragma unroll
        for (int i = 0; i < kElements; i++) {
            const float4 four = from[i];
            weights[4 * i] = four.x, weights[4 * i + 1] = four.y, weights[4 * i + 2] = four.z;
            weights[4 * i + 3] = four.w;
        }
    }
    __device__ __forceinline__ void read_weights(int c, N (&weights)[kElements]) const {
#pragma unroll
        for (int i = 0; i < kElements; i++)
            weights[i] = loss.weight_of_class(c + i);
    }
    template <int bytes> __device__ __forceinline__ int class_of_lone(const Part<bytes> &part) const {
        return part.first_class == 0 ? this->classes - 1 : 0;
    }

    /* The largest number of this lane's pieces, and the number of the piece from which on it is found. Pieces are read in
     * pairs, and the swizzle changes the order of the pairs. */
    struct Highest {
        N number;
        int piece;
        __device__ __forceinline__ void see(N of_pieces, int first) {
            if (of_pieces > number || (of_pieces == number && first < piece))
                number = of_pieces, piece = first;
        }
    };

    template <int bytes> __device__ __forceinline__ void reduce(const Part<bytes> &part, Row &r, State &state) const {
        typename Of::WordMax row_max = Of::none();
        Highest highest = {loss.absent(0), 0};
        int pieces = 0;
        part.pieces.template each<false>([&](auto &words) {
            enum { n = sizeof words / 4 };
            typename Of::WordMax of_word[n];
#pragma unroll
            for (int i = 0; i < n; i++)
                of_word[i] = Of::word_max(words[i]);
            const typename Of::WordMax of_words = LargestWordMax<Of, n>::of(of_word);
            row_max = Of::larger_of(row_max, of_words);
            if (Loss::finds_best())
                highest.see(Of::number(of_words), bytes == 4 ? pieces : order<bytes>(pieces) & -2);
            pieces += (int)sizeof words / bytes;
        });
        N lone = part.lone ? E::widen(*part.lone) : loss.absent(0);
        UpTo<kLanes> lanes = {size};
        state.row_max = larger(Of::number(row_max), lone);
        if (size > 1)
            state.row_max = lanes.template over<Maximum>(state.row_max);
        N from = State::finite(state.row_max);
        if (ScaledExp<N>::in_fast_range(from)) {
            ScaledExp<N> below(from);
            int piece = 0;
            state.sum = below.exp(lone);
            if (Loss::is_smoothed() && part.lone)
                r.drop =
                    below.power(lone) * (Loss::weighs_classes() ? loss.weight_of_class(class_of_lone(part)) : N(1));
            part.pieces.template each<false>([&](auto &words) {
                enum { n = sizeof words / 4 * kElements };
                N e[n];
#pragma unroll
                for (int i = 0; i < n; i++)
                    e[i] = below.power(Of::get(words[i / kElements], i % kElements));
                if (Loss::weighs_classes()) {
                    N weights[n];
#pragma unroll
                    for (int k = 0; k < (int)sizeof words / bytes; k++)
                        read_weights(class_of(part, order<bytes>(piece + k)),
                                     (N(&)[kOf<bytes>])weights[k * kOf<bytes>]);
                    r.drop += products_in_halves(e, weights);
                    piece += (int)sizeof words / bytes;
                } else if (Loss::is_smoothed()) {
                    r.drop += in_halves<Sum>(e);
                }
#pragma unroll
                for (int i = 0; i < n; i++)
                    e[i] = power_of_2(e[i]);
                state.sum += in_halves<Sum>(e);
            });
            state.sum *= below.factor;
        } else {
            /* Two alternating sums: each is a chain of half the length. */
            N other = exp_below(lone, from);
            part.pieces.template each_slowly<false>([&](auto &words) {
                enum { n = sizeof words / 4 * kElements };
                N e[n];
#pragma unroll
                for (int i = 0; i < n; i++)
                    e[i] = exp_below(Of::get(words[i / kElements], i % kElements), from);
                N more = other + in_halves<Sum>(e);
                other = state.sum;
                state.sum = more;
            });
            state.sum += other;
        }
        if (size > 1)
            state.sum = lanes.template over<Sum>(state.sum);
        if (Loss::is_smoothed())
            r.drop = drop_of(part, lone, from, lanes, r.drop);
        if (Loss::finds_best())
            r.best = best_of(part, highest, lone, state, lanes);
    }
    /* The first class among this lane's pieces from number k on that `is_best` accepts. */
    template <int bytes, class IsBest>
    __device__ __forceinline__ uint32_t first_best(const Part<bytes> &part, int k, const IsBest &is_best) const {
        enum { n = kOf<bytes> };
        uint32_t best = kNoClass;
        part.pieces.until(k, [&](auto &words, int piece) {
            int at = kNone;
#pragma unroll
            for (int i = n - 1; i >= 0; i--)
                at = is_best(Of::get(words[i / kElements], i % kElements)) ? i : at;
            if (at != kNone)
                best = (uint32_t)(class_of(part, piece) + at);
            return at != kNone;
        });
        return best;
    }
    /* The class of the row's maximum, or of its first NaN. Infinities may make the sum a NaN, too. All lanes of the warp
     * call. */
    template <int bytes>
    __device__ __forceinline__ int best_of(const Part<bytes> &part, const Highest &highest, N lone, const State &state,
                                           const UpTo<kLanes> &lanes) const {
        uint32_t best = kNoClass;
        if (highest.number == state.row_max)
            best = first_best(part, highest.piece, [&](N x) { return x == state.row_max; }) | kNumber;
        if (state.sum != state.sum)
            best = min(best, first_best(part, 0, [](N x) { return x != x; }));
        if (part.lone)
            best = min(best, Base::best_class(lone, state.row_max, class_of_lone(part)));
        return (int)((size > 1 ? lanes.template over<Minimum>(best) : best) & ~kNumber);
    }
    /* The drop of a row, from the sum of powers of each lane. They may be infinite where it is not: then it is summed term
     * by term. All lanes of the warp call. */
    template <int bytes>
    __device__ __forceinline__ N drop_of(const Part<bytes> &part, N lone, N from, const UpTo<kLanes> &lanes,
                                         N powers) const {
        const N quick =
            loss.drop_of(from, size > 1 ? lanes.template over<Sum>(powers) : powers, this->sum_of_weights());
        const bool is_quick = ScaledExp<N>::in_fast_range(from) && fabs(quick) < Limits<N>::infinity();
        if (__all_sync(0xffffffffu, is_quick))
            return quick;
        N drop = part.lone ? loss.drop_of_class(from, lone, class_of_lone(part)) : N(0);
        part.pieces.until(0, [&](auto &words, int piece) {
#pragma unroll
            for (int i = 0; i < kOf<bytes>; i++)
                drop +=
                    loss.drop_of_class(from, Of::get(words[i / kElements], i % kElements), class_of(part, piece) + i);
            return false;
        });
        if (size > 1)
            drop = lanes.template over<Sum>(drop);
        return is_quick ? quick : drop;
    }

    template <int bytes> __device__ __forceinline__ void write(const Part<bytes> &part, const Row &r) const {
        N weight = r.inverse * r.scale;
        if (ScaledExp<N>::in_fast_range(r.row_max) && r.position >= 0) {
            ScaledExp<N> below(r.row_max);
            weight *= below.factor;
            part.pieces.template each<true>([&](auto &words) {
#pragma unroll
                for (int i = 0; i < (int)sizeof words / 4; i++) {
                    N g[kElements];
#pragma unroll
                    for (int n = 0; n < kElements; n++)
                        g[n] = below.exp(Of::get(words[i], n)) * weight;
                    words[i] = Of::pack(g);
                }
            });
            if (part.lone)
                *part.lone = E::narrow(below.exp(E::widen(*part.lone)) * weight);
        } else {
            /* Without a target the gradient is 0, even where a logit is NaN. */
            part.pieces.template each_slowly<true>([&](auto &words) {
#pragma unroll
                for (int i = 0; i < (int)sizeof words / 4; i++) {
                    N g[kElements];
#pragma unroll
                    for (int n = 0; n < kElements; n++)
                        g[n] = r.position >= 0 ? exp_below(Of::get(words[i], n), r.row_max) * weight : N(0);
                    words[i] = Of::pack(g);
                }
            });
            if (part.lone)
                *part.lone = E::narrow(r.position >= 0 ? exp_below(E::widen(*part.lone), r.row_max) * weight : N(0));
        }
    }

    /* Each lane finishes its deferred row. */
    __device__ __forceinline__ void finish(Totals &total) {
        if (deferred.row != kNone) {
            Row r = this->row_of(deferred.row, deferred.target);
            State state = {deferred.row_max, deferred.sum};
            r.row_max = deferred.row_max;
            r.weight = Loss::has_row_weights() ? deferred.weight : N(1);
            r.class_weight = loss.class_weight_of(r.position);
            r.drop = Loss::is_smoothed() ? deferred.drop : N(0);
            r.best = deferred.best;
            add(r, state, deferred.x_y, total);
        }
        deferred.row = kNone;
        deferred_count = 0;
    }

    /* Works on row `row` of the row tile; all lanes of the warp call. `live`: this lane's group has a row. */
    __device__ __forceinline__ void work(int64_t first, int row, bool live, N weight, Totals &total) {
        const bool even = !has_format(GPULOSSI_FORMAT_RAGGED);
        Row r = this->row_of(first + row, live ? Base::targets()[row] : -1);
        State state = State::empty();
        weigh(r, weight);
        Bits *at_target = (Bits *)(ring_base() + stage_offset(consumer) + row * row_bytes) + r.position;
        N x_y = r.position >= 0 ? E::widen(*at_target) : N(0);
        if (Loss::reduces() && even)
            reduce(Part<16>(stage_offset(consumer), row, live, *this), r, state);
        else if (Loss::reduces())
            reduce(Part<4>(stage_offset(consumer), row, live, *this), r, state);
        if (live)
            r.row_max = Loss::reduces() ? state.row_max : ((const N *)p.lse_in)[r.row];
        if (loss.has_results() && live && rank == deferred_count)
            deferred.row = r.row, deferred.row_max = r.row_max, deferred.sum = state.sum, deferred.x_y = x_y,
            deferred.target = r.position, deferred.weight = r.weight, deferred.drop = r.drop, deferred.best = r.best;
        deferred_count++;
        if (Loss::writes()) {
            /* All lanes have read the target's logit before it is overwritten. */
            __syncwarp();
            if (live) {
                loss.slope(r, state, Loss::reduces());
                if (even)
                    write(Part<16>(stage_offset(consumer), row, live, *this), r);
                else
                    write(Part<4>(stage_offset(consumer), row, live, *this), r);
            }
            __syncwarp();
            if (rank == 0 && r.position >= 0)
                *at_target = E::narrow(loss.of_target(r, x_y));
        }
    }

    DEVICE void weigh(Row &r, N weight) {
        r.weight = weight;
        if (Loss::has_row_weights() && r.position >= 0 && weight == 0)
            r.position = Loss::silent(r.position);
    }
    __device__ __forceinline__ int first_row() const {
        return lane >> shift;
    }
    /* Weights are loaded a row ahead. */
    __device__ __forceinline__ void rows_of_stage(int64_t first, int count, N weight, End ends, Totals &total) {
        const int at_once = kLanes >> shift;
#pragma unroll 1
        for (int begin = 0; begin < count; begin += at_once) {
            const int row = begin + (lane >> shift);
            const bool ends_stage = begin + at_once >= count;
            N next = N(1);
            if (Loss::has_row_weights())
                next = this->weight_of(first, row + at_once, count);
            work(first, row, row < count, weight, total);
            if (Loss::has_row_weights())
                weight = next;
            if (!loss.has_results() || !(deferred_count == size || (ends_stage && ends.launch)))
                continue;
            finish(total);
            /* Tiles are scheduled dynamically, so the deferred rows of a lane vary between runs, and each loss is added to
             * the exact total on its own. Losses from a given lse may cancel, so they are, too. */
            if (size > 1 || !Loss::reduces() || (ends_stage && ends.tile))
                settle_sum(total);
        }
    }
};

#endif
