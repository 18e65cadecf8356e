/* Forward KL of two arrays of logits, of short packed rows, each row shared by one lane or a few.
 *
 * Rows of whole vectors are read by vectors of 16 bytes, all others by words of 4 bytes.
 *
 * Where the sides are close in some classes of each lane, a loss is summed in one pass by the formula of divergence.cuh that
 * keeps its digits. Exponentials of the target are enough there: that of the input is exp(-v) times as large. */
#ifndef GPULOSSI_PACKED_PAIR_SMEM_CUH
#define GPULOSSI_PACKED_PAIR_SMEM_CUH

#include "packed_pair_base.cuh"

template <class E> class PackedPairs : public PairedRows<E, PackedPairs<E>> {
    typedef PairedRows<E, PackedPairs<E>> Base;
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
    template <int bytes> using Part = typename Base::template Part<bytes>;
    using Base::p, Base::loss, Base::lane, Base::rank, Base::size, Base::shift, Base::ring_bytes, Base::stage_offset,
        Base::consumer;
    using Base::sum, Base::settle_sum;
    enum { kNone = -1, kElements = Of::kElements };

    /* A reduced row that is not finished yet. If several lanes share a row, each lane defers another row. */
    struct Deferred {
        int64_t row;
        double f;
    } deferred;
    /* `further`: the call has outputs besides the gradient and the sum of losses. */
    int deferred_count, further;

    __device__ __forceinline__ explicit PackedPairs(const Params &p)
        : Base(p), deferred_count(0), further(p.rows.loss_rows || loss.counts()) {
        keep(further);
        deferred.row = kNone;
    }

    /* The elements of words. */
    template <int n> DEVICE void widen(const uint32_t (&words)[n], N (&x)[n * kElements]) {
#pragma unroll
        for (int i = 0; i < n * kElements; i++)
            x[i] = Of::get(words[i / kElements], i % kElements);
    }
    /* The lone element of a part, of array `a`. */
    __device__ __forceinline__ N lone_of(const Bits *lone, int a) const {
        return E::widen(*(const Bits *)((const char *)lone + a * ring_bytes));
    }

    template <int bytes> __device__ __forceinline__ void largest_of(const Part<bytes> &part, State &state) const {
        typename Of::WordMax row_maxima[2] = {Of::none(), Of::none()};
        part.pieces.template each<false>([&](auto &x, auto &t) {
            enum { n = sizeof x / 4 };
            typename Of::WordMax of_x[n], of_t[n];
#pragma unroll
            for (int i = 0; i < n; i++)
                of_x[i] = Of::word_max(x[i]), of_t[i] = Of::word_max(t[i]);
            row_maxima[0] = Of::larger_of(row_maxima[0], LargestWordMax<Of, n>::of(of_x));
            row_maxima[1] = Of::larger_of(row_maxima[1], LargestWordMax<Of, n>::of(of_t));
        });
        N row_max[2] = {Of::number(row_maxima[0]), Of::number(row_maxima[1])};
        if (part.lone)
            row_max[0] = larger(row_max[0], lone_of(part.lone, 0)),
            row_max[1] = larger(row_max[1], lone_of(part.lone, 1));
        UpTo<kLanes> lanes = {size};
        if (size > 1)
            lanes.template over_all<Maximum>(row_max);
        state.side[0].row_max = row_max[0];
        state.side[1].row_max = row_max[1];
    }

    /* A class's exponential e of the target times the difference of its powers. A class of zero probability adds
     * nothing, whatever the difference is. */
    DEVICE N weighted(N e, N of_target, N of_input) {
        return e == 0 ? N(0) : e * (of_target - of_input);
    }

    template <int bytes> __device__ __forceinline__ void reduce(const Part<bytes> &part, State &state) const {
        const N scale = loss.inverse_temperature;
        /* The sums of both sides, and the sum of the target's exponentials times the differences. */
        N sums[3] = {N(0), N(0), N(0)};
        N from_input = Softmax<N>::finite(state.side[0].row_max),
          from_target = Softmax<N>::finite(state.side[1].row_max);
        if (ScaledExp<N>::in_fast_range(scale * from_input) && ScaledExp<N>::in_fast_range(scale * from_target)) {
            ScaledExp<N> input(from_input, scale), target(from_target, scale);
            part.pieces.template each<false>([&](auto &of_x, auto &of_t) {
                enum { n = sizeof of_x / 4 * kElements };
                N x[n], t[n], e[n], d[n];
                widen(of_x, x);
                widen(of_t, t);
#pragma unroll
                for (int i = 0; i < n; i++) {
                    x[i] = input.power(x[i]);
                    t[i] = target.power(t[i]);
                    d[i] = t[i] - x[i];
                    e[i] = power_of_2(x[i]);
                    t[i] = power_of_2(t[i]);
                }
                sums[0] += in_halves<Sum>(e);
                sums[1] += in_halves<Sum>(t);
                N part[2] = {N(0), N(0)};
#pragma unroll
                for (int i = 0; i < n; i++)
                    part[i % 2] = fma(t[i], d[i], part[i % 2]);
                sums[2] += in_halves<Sum>(part);
            });
            if (!(fabs(sums[2]) < Limits<N>::infinity())) {
                sums[2] = N(0);
                part.pieces.template each_slowly<false>([&](auto &of_x, auto &of_t) {
                    enum { n = sizeof of_x / 4 * kElements };
                    N x[n], t[n];
                    widen(of_x, x);
                    widen(of_t, t);
#pragma unroll
                    for (int i = 0; i < n; i++)
                        t[i] = weighted(target.exp(t[i]), target.power(t[i]), input.power(x[i]));
                    sums[2] += in_halves<Sum>(t);
                });
            }
            if (part.lone) {
                N x = input.power(lone_of(part.lone, 0)), t = target.power(lone_of(part.lone, 1)), e = power_of_2(t);
                sums[0] += power_of_2(x);
                sums[1] += e;
                sums[2] += weighted(e, t, x);
            }
        } else {
            part.pieces.template each_slowly<false>([&](auto &of_x, auto &of_t) {
                enum { n = sizeof of_x / 4 * kElements };
                N x[n], t[n];
                widen(of_x, x);
                widen(of_t, t);
#pragma unroll
                for (int i = 0; i < n; i++) {
                    x[i] = exp_of_difference(difference(x[i], from_input) * scale);
                    t[i] = exp_of_difference(difference(t[i], from_target) * scale);
                }
                sums[0] += in_halves<Sum>(x);
                sums[1] += in_halves<Sum>(t);
            });
            if (part.lone) {
                sums[0] += exp_of_difference(difference(lone_of(part.lone, 0), from_input) * scale);
                sums[1] += exp_of_difference(difference(lone_of(part.lone, 1), from_target) * scale);
            }
            sums[2] = Limits<N>::nan();
        }
        UpTo<kLanes> lanes = {size};
        if (size > 1)
            lanes.template over_all<Sum>(sums);
        state.side[0].sum = sums[0];
        state.side[1].sum = sums[1];
        state.weighted_difference = sums[2];
    }

    enum { kMostLanes = kLanes * 3 / 4 };

    /* Whether the two sides, each less its maximum, are close in the first class of most lanes of the warp. */
    template <int bytes>
    __device__ __forceinline__ bool may_be_close(const Part<bytes> &part, const State &state) const {
        N v = N(0);
        if (part.pieces.count + part.pieces.more > 0) {
            const Bits *x = (const Bits *)((const char *)stash_of_block() + (part.pieces.start ^ part.pieces.twist)),
                       *t = (const Bits *)((const char *)x + part.pieces.row_stride);
            v = difference(difference(E::widen(*t), E::widen(*x)),
                           difference(state.side[1].row_max, state.side[0].row_max));
        }
        return __popc(__ballot_sync(0xffffffffu, !(fabs(v) * loss.inverse_temperature >= 1))) >= kMostLanes;
    }
    /* The mean distance of the two sides in the first piece of each lane. Returns whether they are close to it in most lanes
     * of the warp. A lane without finite distances does not count. */
    template <int bytes> __device__ __forceinline__ bool are_close(const Part<bytes> &part, N &shift) const {
        enum { kWords = bytes / 4, n = kWords * kElements, kMost = Loss::kFar };
        N x[n], t[n] = {}, sums[2] = {N(0), N(0)}, most = N(0);
        if (part.pieces.count + part.pieces.more > 0) {
            uint32_t words[2][kWords];
#pragma unroll
            for (int a = 0; a < 2; a++)
                part.pieces.load((part.pieces.start ^ part.pieces.twist) + a * part.pieces.row_stride, words[a]);
            widen(words[0], x);
            widen(words[1], t);
#pragma unroll
            for (int i = 0; i < n; i++)
                t[i] = difference(t[i], x[i]) * loss.inverse_temperature;
            sums[0] = in_halves<Sum>(t);
            sums[1] = N(n);
        }
        const bool counts = fabs(sums[0]) < Limits<N>::infinity() && sums[1] > 0;
        if (!counts)
            sums[0] = sums[1] = N(0);
        UpTo<kLanes> lanes = {size};
        if (size > 1)
            lanes.template over_all<Sum>(sums);
        shift = sums[1] > 0 ? sums[0] * quick_reciprocal(sums[1]) : N(0);
#pragma unroll
        for (int i = 0; i < n; i++)
            most = larger(most, fabs(difference(t[i], shift)));
        return __popc(__ballot_sync(0xffffffffu, fabs(shift) < kMost && (!counts || most < 1))) >= kMostLanes;
    }
    /* A row whose sides are close. With v the distance of the sides over T less the row's `shift`, and e the target's
     * exponentials, the sums are of e, e v and e (v + expm1(-v)). The input's exponentials times `to_target` are e exp(-v). */
    struct CloseRow {
        ScaledExp<N> input, target;
        N rate, shift, to_target;
        N sums[3];
        bool has_distant; /* some classes that are not close are to be added yet */
    };
    template <bool close, int n> DEVICE void add_closely(CloseRow &of, const N (&x)[n], const N (&t)[n]) {
        N v[n], e[n], ev[n], size[n];
#pragma unroll
        for (int i = 0; i < n; i++) {
            v[i] = fma(difference(t[i], x[i]), of.rate, -of.shift);
            e[i] = of.target.exp(t[i]);
            ev[i] = e[i] * v[i];
            size[i] = fabs(v[i]);
        }
        N all = in_halves<Sum>(ev), excess;
        const bool are_close = in_halves<Maximum>(size) < close_limit<N>() && fabs(all) < Limits<N>::infinity();
        of.has_distant |= !are_close;
        if (are_close != close)
            return;
        if (close) {
            excess = sum_of_excess(ev, v);
        } else {
#pragma unroll
            for (int i = 0; i < n; i++) {
                const N small = ev[i] * v[i] * excess_over_square(v[i]);
                /* A class of zero probability adds nothing of its own, whatever the distance is. */
                ev[i] = e[i] == 0 ? N(0) : ev[i];
                v[i] =
                    size[i] < close_limit<N>() ? small : fma(of.input.exp(x[i]), of.to_target, difference(ev[i], e[i]));
            }
            all = in_halves<Sum>(ev);
            excess = in_halves<Sum>(v);
        }
        of.sums[0] += in_halves<Sum>(e);
        of.sums[1] += all;
        of.sums[2] += excess;
    }
    template <bool close, int bytes>
    __device__ __forceinline__ void add_all_closely(CloseRow &of, const Part<bytes> &part) const {
        part.pieces.template each_slowly<false>([&](auto &of_x, auto &of_t) {
            enum { n = sizeof of_x / 4 * kElements };
            N x[n], t[n];
            widen(of_x, x);
            widen(of_t, t);
            add_closely<close>(of, x, t);
        });
        if (part.lone) {
            const N x[1] = {lone_of(part.lone, 0)}, t[1] = {lone_of(part.lone, 1)};
            add_closely<close>(of, x, t);
        }
    }
    /* The divergence of a row whose maxima are known and whose sides are close. Returns whether it has its digits: each sum has
     * an error of a few u of itself, and comes times m / (1 + m). */
    template <int bytes>
    __device__ __forceinline__ bool sum_closely(const Part<bytes> &part, const State &state, N shift,
                                                N &divergence) const {
        const N rate = loss.inverse_temperature,
                max[2] = {Softmax<N>::finite(state.side[0].row_max), Softmax<N>::finite(state.side[1].row_max)};
        const ScaledExp<N> target(max[1], rate);
        CloseRow row = {target, target, rate, shift, N(0), {N(0), N(0), N(0)}, false};
        add_all_closely<true>(row, part);
        if (row.has_distant) {
            row.input = ScaledExp<N>(max[0], rate);
            row.to_target = power_of_2(difference(shift, difference(max[1], max[0]) * rate) * N(1.442695041));
            add_all_closely<false>(row, part);
        }
        UpTo<kLanes> lanes = {size};
        if (size > 1)
            lanes.template over_all<Sum>(row.sums);
        const N inverse = quick_reciprocal(row.sums[0]), mean = row.sums[1] * inverse, excess = row.sums[2] * inverse,
                m = difference(excess, mean);
        divergence = excess + log_excess(m);
        return ScaledExp<N>::in_fast_range(rate * max[0]) && ScaledExp<N>::in_fast_range(rate * max[1]) &&
               excess <= 4 * divergence && fabs(m) * (excess + fabs(mean)) <= 4 * divergence * (1 + m);
    }

    /* The gradients of a row whose divergence is known. */
    template <int bytes> __device__ __forceinline__ void write(const Part<bytes> &part, const Row &r) const {
        const N scale = r.inverse * r.scale;
        part.pieces.template each<true>([&](auto &of_x, auto &of_t) {
            enum { n = sizeof of_x / 4 * kElements };
            N x[n], t[n], g[n];
            widen(of_x, x);
            widen(of_t, t);
            loss.slopes(r, x, t, g);
            pack(of_x, g, scale);
        });
        if (part.lone) {
            N x[1] = {lone_of(part.lone, 0)}, t[1] = {lone_of(part.lone, 1)}, g[1];
            loss.slopes(r, x, t, g);
            *part.lone = E::narrow(fma(g[0], scale, N(0)));
        }
    }
    /* The terms of any other row, and its gradients if they are wanted. Returns the sum of the terms. A row that is
     * left out has gradients of 0, whatever its logits are. */
    template <bool gradients, int bytes>
    __device__ __forceinline__ N terms(const Part<bytes> &part, const Row &r) const {
        const N scale = r.inverse * r.scale;
        bool none = gradients && r.scale == 0 && loss.out(r.row);
        N sum = N(0);
        part.pieces.template each_slowly<gradients>([&](auto &of_x, auto &of_t) {
            enum { n = sizeof of_x / 4 * kElements };
            N x[n], t[n], g[n];
            widen(of_x, x);
            widen(of_t, t);
            sum += loss.terms(r, x, t, g);
            if (!gradients)
                return;
            pack(of_x, g, scale);
#pragma unroll
            for (int i = 0; i < (int)sizeof of_x / 4; i++)
                of_x[i] = none ? 0 : of_x[i];
        });
        if (part.lone) {
            N x[1] = {lone_of(part.lone, 0)}, t[1] = {lone_of(part.lone, 1)}, g[1];
            sum += loss.terms(r, x, t, g);
            if (gradients)
                *part.lone = E::narrow(none ? N(0) : fma(g[0], scale, N(0)));
        }
        return sum;
    }
    template <int n> DEVICE void pack(uint32_t (&words)[n], N (&g)[n * kElements], N scale) {
#pragma unroll
        for (int i = 0; i < n * kElements; i++) /* Adding +0 changes -0 to +0. */
            g[i] = fma(g[i], scale, N(0));
#pragma unroll
        for (int i = 0; i < n; i++)
            words[i] = Of::pack(g + i * kElements);
    }

    /* Adds the divergence of a row to the outputs. */
    __device__ __forceinline__ void add(int64_t row, double f, Totals &total) {
        bool out = loss.out(row);
        double of_row = out ? 0.0 : f * loss.weight(row);
        if (further)
            loss.put(row, of_row), loss.count(row, total);
        sum += of_row;
    }
    /* Each lane finishes its deferred row. */
    __device__ __forceinline__ void finish(Totals &total) {
        if (deferred.row != kNone)
            add(deferred.row, deferred.f, total);
        deferred.row = kNone;
        deferred_count = 0;
    }

    /* Works on row `row` of the row tile; all lanes of the warp call. `live`: this lane's group has a row. */
    template <int bytes> __device__ __forceinline__ void work(int64_t first, int row, bool live) {
        Part<bytes> part(stage_offset(consumer), row, live, *this);
        Row r;
        State state;
        N shift, divergence;
        bool is_summed = false;
        r.row = first + row;
        largest_of(part, state);
        if (!Loss::wants_gradient() && may_be_close(part, state) && are_close(part, shift))
            is_summed = sum_closely(part, state, shift, divergence) || !live;
        if (!__all_sync(0xffffffffu, is_summed)) {
            reduce(part, state);
            loss.template close<true>(r, state);
        }
        if (is_summed) {
            r.known = true;
            r.sum = divergence;
        }
        N more = N(0);
        if (!r.known)
            more = Loss::wants_gradient() ? terms<true>(part, r) : terms<false>(part, r);
        else if (Loss::wants_gradient())
            write(part, r);
        UpTo<kLanes> lanes = {size};
        if (size > 1 && uniform(!r.known))
            more = lanes.template over<Sum>(more);
        if (live && rank == deferred_count)
            deferred.row = r.row, deferred.f = (r.known ? 1.0 : (double)more) * loss.factor_of(r);
        deferred_count++;
    }

    __device__ __forceinline__ void rows_of_stage(int64_t first, int count, End ends, Totals &total) {
        const int at_once = kLanes >> shift;
#pragma unroll 1
        for (int begin = 0; begin < count; begin += at_once) {
            const int row = begin + (lane >> shift);
            const bool ends_stage = begin + at_once >= count;
            if (has_format(GPULOSSI_FORMAT_RAGGED))
                work<4>(first, row, row < count);
            else
                work<16>(first, row, row < count);
            if (!(deferred_count == size || (ends_stage && ends.launch)))
                continue;
            finish(total);
            /* Tiles are scheduled dynamically, so the deferred rows of a lane vary between runs, and each loss is added to
             * the exact total on its own. */
            if (size > 1 || (ends_stage && ends.tile))
                settle_sum(total);
        }
    }
};

#endif
