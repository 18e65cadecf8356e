/* Forward KL of two arrays of logits, of packed rows of few classes, each row in the registers of a lane.
 *
 * A row is left to a second pass if its divergence is close to 0, or if its logits are outside of the fast range. The
 * second pass first compacts its rows, so that no lane waits for the row of another. */
#ifndef GPULOSSI_PACKED_PAIR_REG_CUH
#define GPULOSSI_PACKED_PAIR_REG_CUH

#include "packed_pair_base.cuh"

template <class E> class PairRegisters : public PairedRows<E, PairRegisters<E>> {
    typedef PairedRows<E, PairRegisters<E>> Base;
    friend Base;
    typedef typename Base::Loss Loss;
    typedef typename Base::Params Params;
    typedef typename Base::Totals Totals;
    typedef typename Base::End End;
    typedef typename Loss::Number N;
    typedef typename Loss::Row Row;
    typedef typename Loss::State State;
    typedef typename E::Bits Bits;
    typedef Words<E> Of;
    using Base::p, Base::loss, Base::lane, Base::classes, Base::row_bytes, Base::swizzle, Base::ring_bytes,
        Base::ring_base;
    using Base::stage_offset, Base::consumer, Base::sum, Base::settle_sum;
    enum { kElements = Of::kElements, kMaxWords = GPULOSSI_PAIRS_REG_CLASSES / kElements };
    static_assert(GPULOSSI_PACKED_ROWS <= 256, "the number of a row in its row tile is a byte");

    N scale;               /* The factor of all gradients. */
    uint32_t ring_address; /* The shared address of the block's rings. */

    __device__ __forceinline__ explicit PairRegisters(const Params &p)
        : Base(p), scale(0), ring_address(Shared::address(ring_base())) {
        keep(ring_address);
        if (Loss::wants_gradient()) {
            scale = (N)loss.grad_scale();
            /* keep() reads the value, so it must be set. */
            keep(scale);
        }
    }

    /* The rows of the row tile that are left to the second pass. */
    DEVICE uint8_t *rows_left() {
        __shared__ uint8_t of_block[Base::kTeams][GPULOSSI_PACKED_ROWS];
        return of_block[threadIdx.x / kLanes];
    }

    /* A row of array `a` in its stage. */
    __device__ __forceinline__ Bits *row_of(int a, int row) const {
        return (Bits *)(ring_base() + stage_offset(consumer) + a * ring_bytes + row * row_bytes);
    }

    /* The sum of the target's exponentials times the differences of the powers, if a difference is not finite. A class
     * of zero probability adds nothing. */
    __device__ __forceinline__ N weighted(int row, const ScaledExp<N> &input, const ScaledExp<N> &target) const {
        const Bits *x = row_of(0, row), *t = row_of(1, row);
        N sum = N(0);
#pragma unroll 1
        for (int c = 0; c < classes; c++) {
            N of_target = target.power(E::widen(t[c])), e = power_of_2(of_target);
            sum += e == 0 ? N(0) : e * (of_target - input.power(E::widen(x[c])));
        }
        return sum;
    }

    /* Works on the rows of this lane in the stage. Returns a mask of the rows that are left to the second pass. A row
     * has `least` to `most` whole words, and maybe a lone element. `even`: rows are whole vectors. */
    template <bool even, int least, int most> __device__ __forceinline__ uint32_t rows_of(int count) {
        enum { n = most * kElements, kPiece = even ? GPULOSSI_VECTOR_BYTES : 4, kWords = kPiece / 4 };
        const N rate = loss.inverse_temperature;
        const int words_of_row = classes / kElements;
        const bool odd = !even && kElements > 1 && (classes & 1);
        const uint32_t to_words = odd && (lane & 1) ? sizeof(Bits) : 0,
                       to_lone = lane & 1 ? 0 : row_bytes - (uint32_t)sizeof(Bits);
        uint32_t left = 0, this_row = 1, at = ring_address + (uint32_t)(stage_offset(consumer) + lane * row_bytes);
#pragma unroll 1
        for (int row = lane; row < count; row += kLanes, this_row <<= 1, at += kLanes * row_bytes) {
            uint32_t x[2][most];
            N e[2][n], lone[2], row_max[2], sums[2], weighted_differences[2] = {N(0), N(0)};
            State state;
            Row r;
            auto address_of = [&](int i) { return even ? (at + 4 * i) ^ swizzle : at + to_words + 4 * i; };
#pragma unroll
            for (int a = 0; a < 2; a++) {
                typename Of::WordMax row_maxima[most];
                lone[a] = odd ? E::widen(Shared::bits<Bits>(at + to_lone + a * ring_bytes)) : loss.absent(a);
#pragma unroll
                for (int i = 0; i < most; i += kWords) {
#pragma unroll
                    for (int k = 0; k < kWords; k++)
                        x[a][i + k] = Of::absent();
                    if (i < least || i < words_of_row)
                        Shared::load<kWords>(address_of(i) + a * ring_bytes, x[a] + i);
                }
#pragma unroll
                for (int i = 0; i < most; i++)
                    row_maxima[i] = Of::word_max(x[a][i]);
                row_max[a] = larger(Of::number(LargestWordMax<Of, most>::of(row_maxima)), lone[a]);
            }
            if (!ScaledExp<N>::in_fast_range(rate * row_max[0]) || !ScaledExp<N>::in_fast_range(rate * row_max[1])) {
                left |= this_row;
                continue;
            }
            ScaledExp<N> input(row_max[0], rate), target(row_max[1], rate);
#pragma unroll
            for (int i = 0; i < n; i++) {
                N of_input = input.power(Of::get(x[0][i / kElements], i % kElements));
                N of_target = target.power(Of::get(x[1][i / kElements], i % kElements));
                e[0][i] = power_of_2(of_input);
                e[1][i] = power_of_2(of_target);
                if (i / kElements < least || i / kElements < words_of_row)
                    weighted_differences[i % 2] = fma(e[1][i], of_target - of_input, weighted_differences[i % 2]);
            }
            sums[0] = in_halves<Sum>(e[0]);
            sums[1] = in_halves<Sum>(e[1]);
            if (odd) {
                N of_input = input.power(lone[0]), of_target = target.power(lone[1]);
                lone[0] = power_of_2(of_input);
                lone[1] = power_of_2(of_target);
                sums[0] += lone[0];
                sums[1] += lone[1];
                weighted_differences[0] = fma(lone[1], of_target - of_input, weighted_differences[0]);
            }
            state.side[0].row_max = row_max[0];
            state.side[1].row_max = row_max[1];
            state.side[0].sum = sums[0];
            state.side[1].sum = sums[1];
            state.weighted_difference = in_halves<Sum>(weighted_differences);
            if (!(fabs(state.weighted_difference) < Limits<N>::infinity()))
                state.weighted_difference = weighted(row, input, target);
            loss.template close_sums<Refined, true>(r, state);
            if (!r.known) {
                left |= this_row;
                continue;
            }
            sum = fma((double)r.sum, p.factor, sum);
            if (Loss::wants_gradient()) {
                const N weight = r.inverse * scale;
                /* Adding +0 changes -0 to +0. */
                auto gradient = [&](N q, N p) { return fma(fma(-r.ratio, p, q), weight, N(0)); };
#pragma unroll
                for (int i = 0; i < n; i++)
                    e[0][i] = gradient(e[0][i], e[1][i]);
#pragma unroll
                for (int i = 0; i < most; i++)
                    x[0][i] = Of::pack(e[0] + i * kElements);
#pragma unroll
                for (int i = 0; i < most; i += kWords)
                    if (i < least || i < words_of_row)
                        Shared::store<kWords>(address_of(i), x[0] + i);
                if (odd)
                    Shared::store(at + to_lone, E::narrow(gradient(lone[0], lone[1])));
            }
        }
        return left;
    }
    __device__ __forceinline__ uint32_t rows_in_registers(int count) {
        enum { m = 2 / kElements }; /* A row of floats has twice as many words. */
        const int words = classes / kElements;
        if (!has_format(GPULOSSI_FORMAT_RAGGED))
            return words == 4                     ? rows_of<true, 4, 4>(count)
                   : words == 8 || kElements == 2 ? rows_of<true, 8, 8>(count)
                                                  : rows_of<true, 12, 20>(count);
        if (words <= 2 * m)
            return rows_of<false, 0, 2 * m>(count);
        if (words <= 5 * m)
            return rows_of<false, 2 * m, 5 * m>(count);
        if (words <= 8 * m)
            return rows_of<false, 5 * m, 8 * m>(count);
        return rows_of<false, 8 * m, kMaxWords>(count);
    }

    /* A row of the second pass, from its stage. */
    __device__ __forceinline__ void second_pass(int row) {
        Bits *x = row_of(0, row);
        const Bits *t = row_of(1, row);
        State state = loss.empty();
        Row r;
        N more = N(0), weight;
        state.side[0] = softmax_of(x);
        state.side[1] = softmax_of(t);
        state.weighted_difference = Limits<N>::nan();
        loss.template close_sums<Rounded<N>, true>(r, state);
        weight = loss.inverse_of(r) * scale;
#pragma unroll 1
        for (int c = 0; c < classes; c++) {
            N of_input[1] = {E::widen(x[c])}, of_target[1] = {E::widen(t[c])}, g[1];
            more += loss.terms(r, of_input, of_target, g);
            if (Loss::wants_gradient())
                x[c] = E::narrow(fma(g[0], weight, N(0)));
        }
        sum = fma((double)more * loss.factor_of(r), p.factor, sum);
    }
    __device__ __forceinline__ Softmax<N> softmax_of(const Bits *x) const {
        Softmax<N> side = Softmax<N>::empty();
#pragma unroll 1
        for (int c = 0; c < classes; c++)
            side.row_max = larger(side.row_max, E::widen(x[c]));
        N from = Softmax<N>::finite(side.row_max);
        bool in_fast_range = ScaledExp<N>::in_fast_range(loss.inverse_temperature * from);
#pragma unroll 1
        for (int c = 0; c < classes; c++) {
            N of_one[1] = {E::widen(x[c])}, e[1];
            loss.exponentials(of_one, from, in_fast_range, e);
            side.sum += e[0];
        }
        return side;
    }

    __device__ __forceinline__ void rows_of_stage(int64_t, int count, End ends, Totals &total) {
        uint32_t left = rows_in_registers(count);
        int left_count = 0;
#pragma unroll 1
        for (int row = lane; __any_sync(0xffffffffu, left != 0); row += kLanes, left >>= 1) {
            uint32_t mask = __ballot_sync(0xffffffffu, left & 1);
            if (left & 1)
                rows_left()[left_count + __popc(mask & ((1u << lane) - 1))] = (uint8_t)row;
            left_count += __popc(mask);
        }
        __syncwarp();
#pragma unroll 1
        for (int i = lane; i < left_count; i += kLanes)
            second_pass(rows_left()[i]);
        if (ends.tile)
            settle_sum(total);
    }
};

#endif
