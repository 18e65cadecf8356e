/* Cross-entropy of packed rows of few classes, each row in the registers of a lane.
 *
 * Rare rows are left to a second pass: rows outside of the fast range, bad targets, and losses from a given lse. Losses
 * from a given lse may cancel, so they are added one by one. Calls with row weights do not come here. */
#ifndef GPULOSSI_PACKED_REG_CUH
#define GPULOSSI_PACKED_REG_CUH

#include "packed_base.cuh"

template <class E, bool kHasOptions>
class PackedRegisters
    : public PackedRows<BasicCrossEntropy<E, kHasOptions, true>, PackedRegisters<E, kHasOptions>, GPULOSSI_BLOCK> {
    typedef PackedRows<BasicCrossEntropy<E, kHasOptions, true>, PackedRegisters<E, kHasOptions>, GPULOSSI_BLOCK> Base;
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
    using Base::consumer, Base::sum, Base::counted;
    using Base::p, Base::loss, Base::lane, Base::classes, Base::row_bytes, Base::swizzle, Base::ring_base,
        Base::stage_offset;
    using Base::targets, Base::row_of, Base::add, Base::settle_sum;
    enum { kElements = Of::kElements, kMaxWords = GPULOSSI_PACKED_REG_CLASSES / kElements };

    N scale;               /* The factor of all gradients, if rows have none of their own. */
    uint32_t ring_address; /* The shared address of the block's rings. */

    __device__ __forceinline__ explicit PackedRegisters(const Params &p)
        : Base(p), scale(0), ring_address(Shared::address(ring_base())) {
        keep(ring_address);
        if (Loss::writes()) {
            scale = loss.common_scale();
            /* keep() reads the value, so it must be set. */
            keep(scale);
        }
    }

    /* Loads the lse and the gradient's factor of a row, where the call has them. Adding 0 makes the wait happen here.
     * Otherwise each use would wait for all loads in flight, even if nothing was loaded here. */
    __device__ __forceinline__ void load_numbers(int64_t row, N &lse, N &of_row) const {
        if (!Loss::reduces())
            lse = ((const N *)p.lse_in)[row] + N(0);
        if (Loss::writes() && !kHasOptions && has(GPULOSSI_CE_ROW_GRADIENTS))
            of_row = loss.scale_of(row) + N(0);
    }

    /* The weight of a class in the smoothing. */
    __device__ __forceinline__ N weight_of_class(int c) const {
        return Loss::weighs_classes() ? loss.weight_of_class(c) : N(1);
    }

    /* The first class of a row's words that is its maximum, or a large number if it is not among them. The swizzle changes
     * the order of vectors. */
    template <bool even, int most> __device__ __forceinline__ int best_of(const uint32_t (&x)[most], N row_max) const {
        enum { kWords = even ? GPULOSSI_VECTOR_BYTES / 4 : most, kMissing = 1 << 16 };
        int best = kMissing;
#pragma unroll
        for (int first = 0; first < most; first += kWords) {
            int at = kMissing;
#pragma unroll
            for (int i = kWords * kElements - 1; i >= 0; i--)
                at = Of::get(x[first + i / kElements], i % kElements) == row_max ? i : at;
            best = min(best, at + (even ? first ^ swizzle / 4 : first) * kElements);
        }
        return best;
    }

    /* Works on the rows of this lane in the stage. Returns a mask of the rows that are left to the second pass. A row
     * has `least` to `most` whole words, and maybe a lone element. `even`: rows are whole vectors. */
    template <bool even, int least, int most>
    __device__ __forceinline__ uint32_t rows_of(int64_t first, int count, N &product, Totals &total) {
        enum { n = most * kElements, kPiece = even ? GPULOSSI_VECTOR_BYTES : 4, kWords = kPiece / 4 };
        /* Whether the weights of all classes stay in registers. */
        enum { kHasRegWeights = n <= 10 };
        const int words_of_row = classes / kElements;
        const uint32_t begin = ring_address + (uint32_t)(stage_offset(consumer) + lane * row_bytes);
        const bool odd = !even && kElements > 1 && (classes & 1);
        const uint32_t to_words = odd && (lane & 1) ? sizeof(Bits) : 0,
                       to_lone = lane & 1 ? 0 : row_bytes - (uint32_t)sizeof(Bits);
        const int skipped = (int)(to_words / sizeof(Bits)); /* The class of the first word. */
        const auto is_inside = [&](int i) { return i / kElements < least || i / kElements < words_of_row; };
        const auto read_weight = [&](int i) {
            const int word = i / kElements, first = word & -kWords;
            const int c = ((even ? first ^ swizzle / 4 : first) + word % kWords) * kElements + i % kElements;
            return is_inside(i) ? weight_of_class(c + skipped) : N(0);
        };
        const N weight_of_lone = odd ? weight_of_class(skipped > 0 ? 0 : classes - 1) : N(0);
        N reg_weights[n];
        if (kHasRegWeights && Loss::weighs_classes())
#pragma unroll
            for (int i = 0; i < n; i++)
                reg_weights[i] = read_weight(i);
        const auto weight_at = [&](int i) {
            return kHasRegWeights && Loss::weighs_classes() ? reg_weights[i] : read_weight(i);
        };
        uint32_t left = 0, this_row = 1, at = begin, at_index = Shared::address(targets() + lane);
#pragma unroll 1
        for (int begins = 0; begins < count; begins += kLanes, this_row <<= 1, at += kLanes * row_bytes) {
            const int row = begins + lane;
            if (row >= count)
                continue;
            Row r = row_of(first + row, Shared::target(at_index));
            const uint32_t at_target = at + max(r.position, 0) * (int)sizeof(Bits), lone = at + to_lone;
            uint32_t x[most];
            N x_y = E::widen(Shared::bits<Bits>(at_target)), e[n];
            N of_lone = odd ? E::widen(Shared::bits<Bits>(lone)) : loss.absent(0);
            typename Of::WordMax row_maxima[most];
            State state = {N(0), N(1)};
            auto address_of = [&](int i) { return even ? (at + 4 * i) ^ swizzle : at + to_words + 4 * i; };
            N given = N(0), of_row = scale;
            at_index += kLanes * sizeof(int16_t);
            load_numbers(r.row, given, of_row);
            r.class_weight = loss.class_weight_of(r.position);
#pragma unroll
            for (int i = 0; i < most; i += kWords) {
#pragma unroll
                for (int k = 0; k < kWords; k++)
                    x[i + k] = Of::absent();
                if (i < least || i < words_of_row)
                    Shared::load<kWords>(address_of(i), x + i);
            }
#pragma unroll
            for (int i = 0; i < most; i++)
                row_maxima[i] = Of::word_max(x[i]);
            r.row_max = Loss::reduces() ? larger(Of::number(LargestWordMax<Of, most>::of(row_maxima)), of_lone) : given;
            if (!ScaledExp<N>::in_fast_range(r.row_max) || r.position < -1) {
                left |= this_row;
                continue;
            }
            if (Loss::finds_best()) {
                const int of_words = best_of<even>(x, r.row_max) + skipped;
                r.best = of_lone == r.row_max ? min(of_words, skipped > 0 ? 0 : classes - 1) : of_words;
            }
            ScaledExp<N> below(r.row_max);
            of_lone = below.power(of_lone);
#pragma unroll
            for (int i = 0; i < n; i++)
                e[i] = below.power(Of::get(x[i / kElements], i % kElements));
            if (Loss::is_smoothed()) {
                N powers[n];
#pragma unroll
                for (int i = 0; i < n; i++)
                    powers[i] = is_inside(i) ? e[i] * weight_at(i) : N(0);
                r.drop = loss.drop_of(r.row_max, in_halves<Sum>(powers) + (odd ? of_lone * weight_of_lone : N(0)),
                                      this->sum_of_weights());
                if (!(fabs(r.drop) < Limits<N>::infinity())) {
                    left |= this_row;
                    continue;
                }
            }
            of_lone = power_of_2(of_lone);
#pragma unroll
            for (int i = 0; i < n; i++)
                e[i] = power_of_2(e[i]);
            if (Loss::reduces())
                state.sum = (in_halves<Sum>(e) + of_lone) * below.factor;
            if (Loss::finds_best() && state.sum != state.sum) {
                left |= this_row;
                continue;
            }
            state.row_max = r.row_max;
            const bool is_alone = Loss::has_row_outputs() || Loss::has_z_loss() || Loss::has_class_weights();
            if (is_alone) {
                add(r, state, x_y, total);
            } else if (r.position >= 0) {
                const N of_target = r.row_max - x_y;
                product *= at_least_1(state.sum); /* The sum includes exp(0). */
                sum += (double)(Loss::is_smoothed() ? fma(loss.keep(), of_target, r.drop) : of_target);
                counted++;
            }
            if (Loss::finds_best() && !is_alone)
                loss.put_best(r, total);
            if (Loss::writes()) {
                N inverse = quick_reciprocal(state.sum) * below.factor, weight = inverse * of_row, own = N(0);
                if constexpr (kHasOptions) {
                    typename Loss::OptionSlope slope = loss.option_slope(r, state);
                    own = slope.of_target(below.exp(x_y) * inverse, weight_of_class(max(r.position, 0)));
                    slope.weight *= inverse;
#pragma unroll
                    for (int i = 0; i < n; i++)
                        e[i] = slope.of(e[i], weight_at(i));
                    of_lone = slope.of(of_lone, weight_of_lone);
                } else {
                    own = Loss::of_target(below.exp(x_y) * inverse, of_row);
#pragma unroll
                    for (int i = 0; i < n; i++)
                        e[i] *= weight;
                    of_lone *= weight;
                }
#pragma unroll
                for (int i = 0; i < most; i++)
                    x[i] = r.position >= 0 ? Of::pack(e + i * kElements) : 0;
#pragma unroll
                for (int i = 0; i < most; i += kWords)
                    if (i < least || i < words_of_row)
                        Shared::store<kWords>(address_of(i), x + i);
                if (odd)
                    Shared::store(lone, E::narrow(r.position >= 0 ? of_lone : N(0)));
                if (r.position >= 0)
                    Shared::store(at_target, E::narrow(own));
            }
        }
        return left;
    }
    __device__ __forceinline__ uint32_t rows_in_registers(int64_t first, int count, N &product, Totals &total) {
        enum { m = 2 / kElements }; /* A row of floats has twice as many words. */
        const int words = classes / kElements;
        if (!has_format(GPULOSSI_FORMAT_RAGGED))
            return words == 4                     ? rows_of<true, 4, 4>(first, count, product, total)
                   : words == 8 || kElements == 2 ? rows_of<true, 8, 8>(first, count, product, total)
                                                  : rows_of<true, 12, 20>(first, count, product, total);
        if (words <= 4 * m)
            return rows_of<false, 0, 4 * m>(first, count, product, total);
        if (words <= 5 * m)
            return rows_of<false, 4 * m, 5 * m>(first, count, product, total);
        if (words <= 8 * m)
            return rows_of<false, 5 * m, 8 * m>(first, count, product, total);
        return rows_of<false, 8 * m, kMaxWords>(first, count, product, total);
    }

    /* A row of the second pass, from its stage. Without a target the gradient is 0, even where a logit is NaN. */
    __device__ __forceinline__ void second_pass(int64_t first, int row, Totals &total) {
        Row r = row_of(first + row, targets()[row]);
        Bits *x = (Bits *)(ring_base() + stage_offset(consumer) + row * row_bytes);
        State state = State::empty();
        N x_y = r.position >= 0 ? E::widen(x[r.position]) : N(0);
        if (Loss::reduces()) {
#pragma unroll 1
            for (int c = 0; c < classes; c++)
                state.row_max = larger(state.row_max, E::widen(x[c]));
#pragma unroll 1
            for (int c = 0; c < classes; c++)
                state.sum += exp_below(E::widen(x[c]), State::finite(state.row_max));
#pragma unroll 1
            for (int c = 0; Loss::is_smoothed() && c < classes; c++)
                r.drop += loss.drop_of_class(State::finite(state.row_max), E::widen(x[c]), c);
            uint32_t best = Base::kNoClass;
#pragma unroll 1
            for (int c = 0; Loss::finds_best() && c < classes; c++)
                best = min(best, Base::best_class(E::widen(x[c]), state.row_max, c));
            r.best = (int)(best & ~Base::kNumber);
        }
        r.row_max = Loss::reduces() ? state.row_max : ((const N *)p.lse_in)[r.row];
        r.class_weight = loss.class_weight_of(r.position);
        if (loss.has_results())
            add(r, state, x_y, total);
        if (!Loss::reduces())
            settle_sum(total);
        if (!Loss::writes())
            return;
        loss.slope(r, state, Loss::reduces());
        typename Loss::OptionSlope slope = {};
        if constexpr (kHasOptions)
            slope = loss.option_slope(r, state);
        auto probability = [&](N x) { return exp_below(x, r.row_max) * r.inverse; };
#pragma unroll 1
        for (int c = 0; c < classes; c++) {
            N of_x = exp_below(E::widen(x[c]), r.row_max) * (r.inverse * r.scale);
            if (kHasOptions)
                of_x = slope.of(probability(E::widen(x[c])), weight_of_class(c));
            x[c] = E::narrow(r.position >= 0 ? of_x : N(0));
        }
        if (r.position >= 0)
            x[r.position] = E::narrow(kHasOptions ? slope.of_target(probability(x_y), weight_of_class(r.position))
                                                  : loss.of_target(r, x_y));
    }

    __device__ __forceinline__ int first_row() const {
        return lane;
    }
    __device__ __forceinline__ void rows_of_stage(int64_t first, int count, N, End ends, Totals &total) {
        /* The product of the row sums: one logarithm serves all rows of a lane. */
        N product = N(1);
        uint32_t left = ~0u;
        if (Loss::reduces() || !loss.has_results())
            left = rows_in_registers(first, count, product, total);
        sum += (double)natural_log(product);
#pragma unroll 1
        for (int begin = 0; begin < count && uniform(left != 0); begin += kLanes, left >>= 1)
            if ((left & 1) && begin + lane < count)
                second_pass(first, begin + lane, total);
        __syncwarp();
        if (ends.tile)
            settle_sum(total);
    }
};

#endif
