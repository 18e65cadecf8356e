/* Forward KL of two arrays of logits, of short packed rows, each row shared by one lane or a few.
 *
 * Rows of whole vectors are read by vectors of 16 bytes, all others by words of 4 bytes.
 *
 * Where the sides are close in some classes of each lane, the KL is summed in one pass by the formula of divergence.cuh that
 * keeps its digits. Exponentials of the target are enough there: that of the input is exp(-v) times as large. Their sum
 * follows from the others, so that the gradients of 16 bits need no other pass but the one that writes them. */
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

    /* A row whose sides may be close. With v the distance of the sides less the row's `distance`, over T,
     * y = v / close_unit(), and e the target's exponentials, the sums are of e, e y and e (v + expm1(-v)). e is 1 at the
     * logit `one`. */
    struct CloseRow {
        N distance, one, sums[3];
    };
    /* Finds the distance of the two sides in the first class of each lane, and its target. Returns whether another class has
     * a similar distance in most lanes of the warp. */
    template <int bytes> __device__ __forceinline__ bool may_be_close(const Part<bytes> &part, CloseRow &of) const {
        enum { kMostLanes = kLanes * 3 / 4, kLast = bytes / (int)sizeof(Bits) - 1 };
        const int pieces = part.pieces.count + part.pieces.more;
        N other = Limits<N>::nan();
        of.distance = other;
        of.one = -Limits<N>::infinity();
        if (pieces > 0) {
            of.one = class_of(part, 0, 0, 1);
            of.distance = difference(of.one, class_of(part, 0, 0, 0));
            other = difference(class_of(part, pieces > 1, kLast, 1), class_of(part, pieces > 1, kLast, 0));
        }
        const bool is_far = fabs(other - of.distance) * loss.inverse_temperature >= 1;
        return __popc(__ballot_sync(0xffffffffu, !is_far)) >= kMostLanes;
    }
    /* Replaces the distance of each lane by the mean of the row's lanes, and the target by the largest one. A lane without
     * a finite distance does not count. */
    __device__ __forceinline__ void find_distance(CloseRow &of) const {
        const bool counts = fabs(of.distance) < Limits<N>::infinity();
        const uint32_t lanes_of_row = 0xffffffffu >> (kLanes - size) << (lane & -size);
        UpTo<kLanes> lanes = {size};
        const N sum = lanes.template over<Sum>(counts ? of.distance : N(0)),
                count = N(__popc(__ballot_sync(0xffffffffu, counts) & lanes_of_row));
        of.distance = count > 0 ? sum * quick_reciprocal(count) : N(0);
        of.one = Softmax<N>::finite(lanes.template over<Maximum>(of.one));
    }
    /* A class of piece k, of array `a`. */
    template <int bytes> DEVICE N class_of(const Part<bytes> &part, int k, int i, int a) {
        const int at = (part.pieces.start + k * part.pieces.step) ^ part.pieces.twist;
        return E::widen(((const Bits *)((const char *)stash_of_block() + at + a * part.pieces.row_stride))[i]);
    }
    /* y = factor (t - x) - less. */
    struct Distance {
        N factor, less;
        __device__ __forceinline__ N of(N t, N x) const { return fma(difference(t, x), factor, -less); }
    };
    /* Adds some classes of a row if all of them are close. Returns whether they are. */
    template <int n>
    DEVICE bool add_close(CloseRow &of, const ScaledExp<N> &target, const Distance &distance, const N (&x)[n],
                          const N (&t)[n]) {
        N y[n], e[n], ey[n];
#pragma unroll
        for (int i = 0; i < n; i++) {
            y[i] = distance.of(t[i], x[i]);
            e[i] = target.exp(t[i]);
            ey[i] = e[i] * y[i];
        }
        const N sums[3] = {in_halves<Sum>(e), in_halves<Sum>(ey), sum_of_excess<kElements == 2>(ey, y)};
        const bool are_close = are_below_2(y);
#pragma unroll
        for (int i = 0; i < 3; i++)
            of.sums[i] += are_close ? sums[i] : N(0);
        return are_close;
    }
    /* e exp(-v) is 2^((x - one) slope + less). */
    DEVICE N less_of(const CloseRow &of, const ScaledExp<N> &target) {
        return fma(of.distance, target.slope, target.rounding(of.one));
    }
    /* Adds any classes of a row. */
    template <int n>
    DEVICE void add_any(CloseRow &of, const ScaledExp<N> &target, const Distance &distance, const N (&x)[n],
                        const N (&t)[n]) {
        const N less = less_of(of, target);
#pragma unroll
        for (int i = 0; i < n; i++) {
            /* A class of zero probability adds nothing of its own, whatever the distance is. */
            const N y = distance.of(t[i], x[i]), e = target.exp(t[i]), ey = e * y,
                    close = ey * (y * excess_over_square<kElements == 2>(y, close_unit<N>())),
                    of_input = power_of_2(fma(difference(x[i], of.one), target.slope, less)), own = e == 0 ? N(0) : ey,
                    distant = of_input + fma(own, close_unit<N>(), -e);
            of.sums[0] += e;
            of.sums[1] += own;
            of.sums[2] += fabs(y) < 2 ? close : distant;
        }
    }
    /* The divergence of a row whose sides are close, and what its gradients take. Returns whether the divergence has its
     * digits: each sum has an error of a few u of itself, and comes times m / (1 + m). */
    template <int bytes>
    __device__ __forceinline__ bool sum_closely(const Part<bytes> &part, CloseRow &row, Row &r) const {
        enum { kWords = bytes / 4, n = kWords * kElements };
        find_distance(row);
        const N rate = loss.inverse_temperature, factor = rate * (1 / close_unit<N>());
        const ScaledExp<N> target(row.one, rate);
        const Distance distance = {factor, row.distance * factor};
        const int pieces = part.pieces.count + part.pieces.more;
        uint32_t start = Shared::address(stash_of_block()) + (uint32_t)part.pieces.start;
        auto load = [&](uint32_t at, N(&x)[n], N(&t)[n]) {
            uint32_t words[2][kWords];
            at ^= (uint32_t)part.pieces.twist;
            Shared::load<kWords>(at, words[0]);
            Shared::load<kWords>(at + (uint32_t)part.pieces.row_stride, words[1]);
            widen(words[0], x);
            widen(words[1], t);
        };
        N x[n], t[n];
        row.sums[0] = row.sums[1] = row.sums[2] = N(0);
        keep(start);
#pragma unroll 1
        for (int begin = 0; begin < pieces; begin += kLanes) {
            uint32_t at = start, distant = 0; /* a bit for each piece that is not added yet */
#pragma unroll 1
            for (uint32_t bit = 1, k = begin; bit != 0 && k < pieces; bit <<= 1, k++, at += part.pieces.step) {
                load(at, x, t);
                distant |= add_close(row, target, distance, x, t) ? 0 : bit;
            }
#pragma unroll 1
            for (; distant != 0; distant &= distant - 1) {
                load(start + (__ffs((int)distant) - 1) * part.pieces.step, x, t);
                add_any(row, target, distance, x, t);
            }
            start = at;
        }
        if (part.lone) {
            const N lone[2][1] = {{lone_of(part.lone, 0)}, {lone_of(part.lone, 1)}};
            add_any(row, target, distance, lone[0], lone[1]);
        }
        UpTo<kLanes> lanes = {size};
        if (size > 1)
            lanes.template over_all<Sum>(row.sums);
        const N inverse = quick_reciprocal(row.sums[0]), mean = row.sums[1] * (close_unit<N>() * inverse),
                excess = row.sums[2] * inverse, m = difference(excess, mean);
        r.sum = excess + log_excess(m);
        if (Loss::wants_gradient())
            prepare_slopes(row, target, m, r);
        return fabs(row.distance) * rate < Loss::kFar && row.sums[0] < Limits<N>::infinity() && excess <= 4 * r.sum &&
               fabs(m) * (excess + fabs(mean)) <= 4 * r.sum * (1 + m) &&
               (!Loss::wants_gradient() || ScaledExp<N>::in_fast_range(rate * row.one));
    }
    /* The input's exponentials of slopes() are e exp(-v) times 2^`more`, which is next to 1, and have the sum 1 + m. */
    __device__ __forceinline__ void prepare_slopes(const CloseRow &row, const ScaledExp<N> &target, N m, Row &r) const {
        r.target_max = row.one;
        r.input_max = row.one - row.distance;
        const ScaledExp<N> input(r.input_max, loss.inverse_temperature);
        const N more = fma(difference(row.one, r.input_max), input.slope, input.rounding(r.input_max)) -
                       less_of(row, target),
                of_more = fma(more, N(0.693147181), N(1));
        r.ratio = (1 + m) * of_more;
        r.inverse = reciprocal(row.sums[0] * r.ratio);
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
        const N scale = loss.inverse_of(r) * r.scale;
        N sum = N(0);
        if (gradients && r.scale == 0 && loss.out(r.row)) {
            clear(part);
            return sum;
        }
        part.pieces.template each_slowly<gradients>([&](auto &of_x, auto &of_t) {
            enum { n = sizeof of_x / 4 * kElements };
            N x[n], t[n], g[n];
            widen(of_x, x);
            widen(of_t, t);
            sum += loss.terms(r, x, t, g);
            if (gradients)
                pack(of_x, g, scale);
        });
        if (part.lone) {
            N x[1] = {lone_of(part.lone, 0)}, t[1] = {lone_of(part.lone, 1)}, g[1];
            sum += loss.terms(r, x, t, g);
            if (gradients)
                *part.lone = E::narrow(fma(g[0], scale, N(0)));
        }
        return sum;
    }
    template <int bytes> __device__ __forceinline__ void clear(const Part<bytes> &part) const {
        part.pieces.template each_slowly<true>([&](auto &of_x, auto &) {
#pragma unroll
            for (int i = 0; i < (int)sizeof of_x / 4; i++)
                of_x[i] = 0;
        });
        if (part.lone)
            *part.lone = 0;
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
        CloseRow close;
        r.row = first + row;
        bool is_summed = false;
        /* Gradients of 32 bits would show the roundings of a difference of two probabilities. */
        if ((!Loss::wants_gradient() || kElements == 2) && may_be_close(part, close))
            is_summed = sum_closely(part, close, r) || !live;
        r.known = __all_sync(0xffffffffu, is_summed);
        if (!r.known) {
            largest_of(part, state);
            reduce(part, state);
            loss.template close_sums<Rounded<N>, true>(r, state);
        }
        loss.set_scale(r);
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
