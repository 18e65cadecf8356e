/* Divergences of a target from an input, of which each is probabilities, their logarithms or logits. The target may have
 * another type. With u = q df/dq of divergence_terms.cuh, and T the temperature, the gradients are:
 *
 *   input of probabilities: df/dq      of logarithms: u      of logits z: (u - q sum_c u) / T
 *
 * A row takes up to three sweeps: the softmax of logits, the sums over the row, and the results. Without logits the
 * sums need no softmax, and are taken in the sweep that writes. The KL of two arrays of logits is summed along with the
 * softmax. With a the side that weighs, b the other one, and v = (a - b) / T less a number that is the same for the
 * row, p the softmax of a, and E its mean:
 *
 *   KL = E[v + expm1(-v)] + log1p(m) - m      m = E[expm1(-v)]
 *
 * No term of the first sum is negative, so that a KL close to 0 keeps its digits. A KL that is not close to 0 is E[v] plus
 * the difference of the two lse. A row for which neither is exact enough has its sums taken in a sweep of their own. In a close
 * row v is small, so that the first sum is a polynomial of it. The exponentials of b are those of a times exp(-v) there, and
 * their sum follows from the other three.
 *
 * The KL of logits z and a side of another kind is direct: it is summed along with the softmax, too. With M any number, p
 * the other side, v = log p - (z - M) / T, and lse that of (z - M) / T:
 *
 *   KL(p || z) = sum p v + lse sum p      KL(z || p) = -E[v] - lse      E is the mean under the softmax of z
 *
 * Exponentials are relative to a reference, from some classes in the middle of the row, so that no maximum is searched. That
 * of a direct KL is the M for which their mean v is 0: then the two parts do not cancel. A huge number may mask these
 * classes. Where the exponentials of a thread leave the range, it takes its maximum instead, and adds the vectors again.
 *
 * The loss works on vectors of a row in registers. It uses no thread index but in its constructor. */
#ifndef GPULOSSI_DIVERGENCE_CUH
#define GPULOSSI_DIVERGENCE_CUH

#include "divergence_state.cuh"
#include "divergence_terms.cuh"

template <class E> struct Divergence : DivergenceState<E> {
    typedef DivergenceState<E> Base;
    typedef typename Base::N N;
    typedef typename Base::Bits Bits;
    typedef typename Base::Params Params;
    typedef typename Base::Gradients Gradients;
    typedef typename Base::Targets Targets;
    typedef typename Base::Row Row;
    typedef typename Base::Values Values;
    typedef typename Base::State State;
    typedef typename Base::Highest Highest;
    using Base::exp_from, Base::finite, Base::inverse_temperature;
    using Base::has_close_rows, Base::has_ratios, Base::writes_ratios, Base::has_distance, Base::in_one_sweep,
        Base::is_direct;
    using Base::has_short_pairs, Base::has_short_formulas, Base::logits_weigh, Base::has_divergence, Base::has_sum;
    using Base::is_logits, Base::is_logarithm, Base::is_probability, Base::has_logits, Base::has_two_logits,
        Base::is_kl;
    using Base::kFar, Base::kInput, Base::kTarget;
    using Base::lowest, Base::raise, Base::refer, Base::in_range;
    using Base::may_be_small, Base::is_float_shannon, Base::kSmall;
    using Base::may_have_values, Base::sums_while_writing, Base::wants_of_probability;
    using Base::p;
    using Base::side_of_other, Base::of_logits, Base::of_other, Base::is_other_short, Base::log_unit,
        Base::weight_of_other;
    using Base::weighing, Base::own, Base::other;
    enum { W = Base::W, kHasEntries = 0, kClusterSlots = GPULOSSI_PAIR_SLOTS };

    __device__ __forceinline__ explicit Divergence(const Params &p) : Base(p) {}

    DEVICE int64_t stride_of_input(const Params &p) { return p.input_stride; }
    DEVICE int64_t inner(const Params &p) { return p.inner; }
    __device__ __forceinline__ const Bits *logits(int64_t row) const {
        return Base::first_input(p) + row * p.input_stride;
    }
    __device__ __forceinline__ const void *second_input(int64_t row, int64_t c) const {
        return Targets(p.target, row * p.target_stride + c).base;
    }
    /* An element of probability 0. */
    DEVICE N padding(int side) { return is_probability(side) ? N(0) : -Limits<N>::infinity(); }
    DEVICE N padding() { return padding(kInput); }

    /* ---- the sums of a row ---- */

    template <class Side>
    __device__ __forceinline__ void note_highest(Highest &highest, const Vector<E> &x, const Side &side, int k) const {
        enum { m = Side::kElements };
        if (is_logits(kInput))
            highest.of_input = larger_of(highest.of_input, x);
        if (!is_logits(kTarget))
            return;
        if (side.has_vectors_of_target()) {
            highest.of_target = larger_of(highest.of_target, side.load_target(k));
        } else {
            N t[m];
            load_target(side, k, t);
            highest.of_other = larger(highest.of_other, in_halves<Maximum>(t));
        }
    }
    /* Sums of v + expm1(-v) of a vector: by the exponentials of both sides, by a polynomial for small v, or by the latter if
     * the former has no digits. */
    enum Sums { kQuick, kExact, kChecked };
    /* Adds a vector in the first sweep. */
    template <Sums sums = kChecked, class Side>
    __device__ __forceinline__ void accumulate(const Row &r, State &s, const Vector<E> &x, const Side &side) const {
        Highest highest = lowest();
        note_highest(highest, x, side, 0);
        State referred = s;
        refer(r, referred);
        if (has_distance() && in_range(referred, highest))
            s = referred;
        else
            raise(s, highest);
        add_vector<sums>(s, batch_of(r, s), x, side, 0);
    }
    /* Adds the vectors of a stage. All lanes of the warp call. Without digits in a quick sum, the stage is added once more. The
     * next stage of the row is expected to be like this one. */
    template <class Side> __device__ __forceinline__ void accumulate_stage(Row &r, State &s, const Side &side) const {
        const State before = s;
        bool was_close;
#pragma unroll 1
        do {
            s = before;
            was_close = has_close_rows() && r.is_close;
            add_stage(r, s, before, side, was_close);
            if (!has_close_rows())
                break;
            r.is_close = !has_all_digits(r, s);
        } while (r.is_close && !was_close);
    }
    /* A sum of v + expm1(-v) that is more than this part of its weights has its digits without a polynomial. */
    DEVICE N close_share() {
        return N(0.25);
    }
    /* Whether the sum of this warp is. Lanes count together where their exponentials are relative to the same references. */
    __device__ __forceinline__ bool has_all_digits(const Row &r, const State &s) const {
        const bool is_referred = s.max[kInput] == r.reference[kInput] && s.max[kTarget] == r.reference[kTarget];
        const N more = fma(own(s.sum), -close_share(), s.excess),
                all = WholeWarp().over<Sum>(is_referred ? more : N(0));
        return __all_sync(0xffffffffu, all >= 0 && (is_referred || more >= 0));
    }
    template <class Side>
    __device__ __forceinline__ void add_stage(const Row &r, State &s, const State &before, const Side &side,
                                              bool is_close) const {
        bool searches = !has_distance();
#pragma unroll 1
        for (; side.begin < side.end; searches = true) {
            if (searches) {
                Highest highest = lowest();
#pragma unroll 2
                for (int k = side.begin; k < side.end; k++)
                    note_highest(highest, side.load(k), side, k);
                raise(s, highest);
            } else {
                refer(r, s);
            }
            const Batch batch = batch_of(r, s);
            if (is_close) {
                const N from_a = factor_from_a(batch);
#pragma unroll 1
                for (int k = side.begin; k < side.end; k++)
                    add_close_vector(s, batch, from_a, side, k);
            } else {
#pragma unroll 1
                for (int k = side.begin; k < side.end; k++)
                    add_vector<kQuick>(s, batch, side.load(k), side, k);
            }
            if (searches || in_range(s))
                break;
            s = before;
        }
    }

    /* The elements of a vector of each side. Elements outside the row have a probability of 0. */
    template <class Side, int m>
    __device__ __forceinline__ void load(const Vector<E> &x, const Side &side, int k, N (&z)[2][m]) const {
        x.unpack(z[kInput]);
        load_target(side, k, z[kTarget]);
#pragma unroll
        for (int i = 0; i < m; i++)
            z[kInput][i] = side.is_inside(k, i) ? z[kInput][i] : padding(kInput);
    }
    template <class Side, int m> __device__ __forceinline__ void load_target(const Side &side, int k, N (&t)[m]) const {
        side.read_staged(Targets(p.target, side.start(p.target_stride)), k, t);
#pragma unroll
        for (int i = 0; i < m; i++)
            t[i] = side.is_inside(k, i) ? t[i] : padding(kTarget);
    }
    /* Whether exponentials of both sides may be taken by a ScaledExp. */
    DEVICE bool are_fast(const ScaledExp<N> (&exp)[2]) {
        return (!is_logits(kInput) || exp[kInput].is_fast()) && (!is_logits(kTarget) || exp[kTarget].is_fast());
    }
    /* The constants of some vectors in the first sweep. */
    struct Batch {
        ScaledExp<N> exp[2];
        N shift[2], rest; /* of the row */
        N to_a;           /* e_b to_a is e_a exp(-v) */
        bool is_fast;
    };
    __device__ __forceinline__ Batch batch_of(const Row &r, const State &s) const {
        Batch of = {{ScaledExp<N>(finite(s.max[kInput]), inverse_temperature),
                     ScaledExp<N>(finite(s.max[kTarget]), inverse_temperature)},
                    {r.shift(kInput), r.shift(kTarget)},
                    r.rest(),
                    N(0),
                    false};
        of.is_fast = !r.is_far() && are_fast(of.exp);
        if (in_one_sweep() && may_have_values()) {
            of.to_a = exponential((difference(finite(other(s.max)), other(of.shift)) -
                                   difference(finite(own(s.max)), own(of.shift)) + signed_rest(of.rest)) *
                                  inverse_temperature);
            if (of.is_fast) {
                const N factor[2] = {of.exp[kInput].factor, of.exp[kTarget].factor};
                of.to_a *= other(factor) * (N(2) - own(factor));
            }
        }
        return of;
    }
    template <Sums sums, class Side>
    __device__ __forceinline__ void add_vector(State &s, const Batch &batch, const Vector<E> &x, const Side &side,
                                               int k) const {
        N z[2][Side::kElements];
        load(x, side, k, z);
        add_elements<sums>(s, batch, z);
    }
    template <Sums sums, int m>
    __device__ __forceinline__ void add_elements(State &s, const Batch &batch, const N (&z)[2][m]) const {
        N power[2][m], e[2][m], v[m] = {}, weight[m];
        if (is_direct())
            direct_logarithms(z, v, weight);
        if (batch.is_fast) {
            if (in_one_sweep())
                quick_distances(batch, z, N(1), v);
#pragma unroll
            for (int a = kInput; a <= kTarget; a++)
#pragma unroll
                for (int i = 0; i < m; i++)
                    power[a][i] = batch.exp[a].power(z[a][i]);
        } else {
#pragma unroll
            for (int i = 0; i < m; i++) {
#pragma unroll
                for (int a = kInput; a <= kTarget; a++)
                    power[a][i] = batch.exp[a].power(z[a][i], finite(s.max[a]));
                if (in_one_sweep())
                    v[i] = distance_of(batch, z[kInput][i], z[kTarget][i]);
            }
        }
        N sum[2], factor[2], rounding[2];
#pragma unroll
        for (int a = kInput; a <= kTarget; a++)
            if (is_logits(a)) {
#pragma unroll
                for (int i = 0; i < m; i++)
                    e[a][i] = ScaledExp<N>::exp_of(power[a][i]);
                factor[a] = batch.is_fast ? batch.exp[a].factor : N(1);
                rounding[a] = batch.is_fast ? batch.exp[a].rounding(finite(s.max[a])) : N(0);
                sum[a] = in_halves<Sum>(e[a]);
                s.sum[a] = fma(sum[a], factor[a], s.sum[a]);
            }
        if (in_one_sweep() && may_have_values()) {
            if (weighing() == kTarget)
                accumulate_kl<sums>(s, batch.to_a, v, e[kTarget], e[kInput], sum[kTarget], sum[kInput], factor[kTarget],
                                    s.sum[kTarget]);
            else
                accumulate_kl<sums>(s, batch.to_a, v, e[kInput], e[kTarget], sum[kInput], sum[kTarget], factor[kInput],
                                    s.sum[kInput]);
        }
        if (is_direct()) {
#pragma unroll
            for (int i = 0; i < m; i++) {
                power[kInput][i] = of_logits(power[kInput][i], power[kTarget][i]);
                e[kInput][i] = of_logits(e[kInput][i], e[kTarget][i]);
            }
            accumulate_direct(s, z, v, weight, power[kInput], e[kInput], of_logits(sum[kInput], sum[kTarget]),
                              of_logits(factor[kInput], factor[kTarget]),
                              of_logits(rounding[kInput], rounding[kTarget]));
        }
    }
    /* Adds a vector to the sums of a direct KL, from direct_logarithms(). e is the exponentials of its logits, with their
     * sum and its factor. Their powers are `rounding` too large. */
    template <int m>
    __device__ __forceinline__ void accumulate_direct(State &s, const N (&z)[2][m], N (&v)[m], N (&weight)[m],
                                                      const N (&power)[m], const N (&e)[m], N sum, N factor,
                                                      N rounding) const {
        if (!logits_weigh()) {
            sum = in_halves<Sum>(weight);
            if (weighing() == kInput)
                s.sum[kInput] += sum;
            else
                s.sum[kTarget] += sum;
        }
        if (!has_divergence())
            return;
#pragma unroll
        for (int i = 0; i < m; i++) {
            weight[i] = logits_weigh() ? e[i] : weight[i];
            v[i] = distance_from(v[i], power[i]);
        }
        N all = products_in_halves(weight, v);
        /* A class of probability 0 adds nothing of its own, whatever its distance is. A logit whose other side is 0 may get
         * that probability yet, when the maximum is raised. */
        if (!(fabs(all) < Limits<N>::infinity())) {
            N most = other(s.max);
#pragma unroll
            for (int i = 0; i < m; i++) {
                const bool is_infinite = logits_weigh() && v[i] < N(-1e30);
                if (is_infinite && weight[i] > 0)
                    most = larger(most, of_logits(z[kInput][i], z[kTarget][i]));
                v[i] = weight[i] < Format<N>::from(Format<N>::least()) || is_infinite ? N(0) : v[i];
            }
            if (logits_weigh()) {
                s.max[kInput] = weighing() == kInput ? s.max[kInput] : most;
                s.max[kTarget] = weighing() == kTarget ? s.max[kTarget] : most;
            }
            all = products_in_halves(weight, v);
        }
        all = fma(sum, distance_from(N(0), -rounding), all);
        s.weighted = fma(all, logits_weigh() ? factor * log_unit() : log_unit(), s.weighted);
    }
    /* v of a direct KL, in log_unit(), from the power of a logit, and the logarithm of the other side. */
    DEVICE N distance_from(N log, N power) {
        return fma(power, log_unit() == N(1) ? -ScaledExp<N>::unit() : N(-1), log);
    }
    /* Logarithms of the side of a direct KL that is no logits, in log_unit(), and its probabilities. A negative one becomes
     * a NaN. The logarithm of a probability of less than 2^-125 is any number if that probability weighs it. */
    template <int m>
    __device__ __forceinline__ void direct_logarithms(const N (&z)[2][m], N (&v)[m], N (&weight)[m]) const {
        const bool has_logs = !is_probability(side_of_other());
        const auto least = logits_weigh() ? Format<N>::least() : 0;
        const N of_log = log_unit() == N(1) ? N(1) : N(1.442695041);
#pragma unroll
        for (int i = 0; i < m; i++) {
            const N other = of_other(z[kInput][i], z[kTarget][i]);
            v[i] = has_logs || !is_other_short() ? other : (N)log2_of((float)other);
            weight[i] = weight_of_other(other);
        }
        /* Above 1/2 log2_of() has too few digits. */
        if (!has_logs && !(is_other_short() && are_between(least, weight, Format<N>::bits(N(0.5))))) {
            if (are_between(least, weight, Format<N>::least() + Format<N>::range())) {
#pragma unroll
                for (int i = 0; i < m; i++)
                    v[i] = ordinary_log(weight[i]) * of_log;
            } else {
#pragma unroll
                for (int i = 0; i < m; i++) {
                    v[i] = weight[i];
                    weight[i] = weight[i] < 0 ? Limits<N>::nan() : weight[i];
                }
#pragma unroll 1
                for (int i = 0; i < m; i++)
                    shift_in(v, natural_log(v[0]) * of_log);
            }
        }
    }
    /* The difference of the side that weighs and the other one over T, without the number that is the same for the row. */
    __device__ __forceinline__ N distance_of(const Batch &of, N x, N t) const {
        const N d = difference(difference(t, of.shift[kTarget]), difference(x, of.shift[kInput]));
        return signed_rest(difference(d, of.rest)) * inverse_temperature;
    }
    /* Adds a vector of distances, whose exponentials are summed already. The sum of v + expm1(-v) over the vector is
     * the sum of e_b to_a - e_a + e_a v. It is off by a few u of e_a, little next to 1/4 of all e_a of the thread.
     * Where the sum is smaller, a polynomial has the digits of a small v. */
    template <Sums sums, int m>
    __device__ __forceinline__ void accumulate_kl(State &s, N to_a, N (&v)[m], const N (&e_a)[m], const N (&e_b)[m],
                                                  N sum_a, N sum_b, N factor, N all_a) const {
        N all = products_in_halves(e_a, v);
        /* A class of probability 0 adds nothing of its own, whatever its distance is. */
        if (!(fabs(all) < Limits<N>::infinity())) {
#pragma unroll
            for (int i = 0; i < m; i++)
                v[i] = e_a[i] == 0 ? close_limit<N>() : v[i]; /* no small one */
            all = products_in_halves(e_a, v);
            /* Without a maximum of the side that weighs, the other side's part has no scale: the row is swept again. */
            if (all_a == 0 && sum_b > 0)
                s.excess = Limits<N>::nan();
        }
        N more = fma(sum_b, to_a, difference(all, sum_a));
        if (sums == kExact || (sums == kChecked && !(fma(more, factor, s.excess) > all_a * close_share()))) {
            N excess[m];
#pragma unroll
            for (int i = 0; i < m; i++)
                excess[i] = e_a[i] * v[i] * v[i] * excess_over_square(v[i]);
            if (!(largest_size(v) < close_limit<N>()))
#pragma unroll
                for (int i = 0; i < m; i++)
                    excess[i] = fabs(v[i]) < close_limit<N>() ? excess[i]
                                                              : fma(e_b[i], to_a, difference(e_a[i] * v[i], e_a[i]));
            more = in_halves<Sum>(excess);
        }
        s.weighted = fma(all, factor, s.weighted);
        s.excess = fma(more, factor, s.excess);
    }
    /* v of a row that is fast, times `part`. */
    template <int m>
    __device__ __forceinline__ void quick_distances(const Batch &batch, const N (&z)[2][m], N part, N (&v)[m]) const {
        const N factor = part * inverse_temperature, less = signed_rest(batch.rest) * factor;
#pragma unroll
        for (int i = 0; i < m; i++)
            v[i] = fma(weighing() == kTarget ? difference(z[kTarget][i], z[kInput][i])
                                             : difference(z[kInput][i], z[kTarget][i]),
                       factor, -less);
    }
    /* The number that makes e_b, with its factor, of e_a exp(-v). It is 0 if sums of either may overflow. */
    DEVICE N factor_from_a(const Batch &batch) {
        const N factor[2] = {batch.exp[kInput].factor, batch.exp[kTarget].factor};
        const bool is_normal = batch.is_fast && batch.to_a > N(0x1p-32) && batch.to_a < N(0x1p32);
        return is_normal ? other(factor) * quick_reciprocal(batch.to_a) : N(0);
    }
    /* Adds a vector of a close row. The other side's sum is that of e_a exp(-v), so that it takes no exponentials. */
    template <class Side>
    __device__ __forceinline__ void add_close_vector(State &s, const Batch &batch, N from_a, const Side &side,
                                                     int k) const {
        enum { m = Side::kElements };
        const bool input_weighs = weighing() == kInput;
        const ScaledExp<N> exp = input_weighs ? batch.exp[kInput] : batch.exp[kTarget];
        N z[2][m], y[m], e[m], ey[m]; /* y is v in close_unit() */
        load(side.load(k), side, k, z);
        quick_distances(batch, z, 1 / close_unit<N>(), y);
#pragma unroll
        for (int i = 0; i < m; i++) {
            e[i] = exp.exp(input_weighs ? z[kInput][i] : z[kTarget][i]);
            ey[i] = e[i] * y[i];
        }
        if (!(from_a > 0 && are_below_2(y)))
            return add_vector<kExact>(s, batch, side.load(k), side, k);
        const N sum = in_halves<Sum>(e), all = close_unit<N>() * in_halves<Sum>(ey),
                more = sum_of_excess<sizeof(Bits) == 2>(ey, y), rest = difference(sum, difference(all, more));
        s.sum[kInput] = fma(input_weighs ? sum : rest, input_weighs ? exp.factor : from_a, s.sum[kInput]);
        s.sum[kTarget] = fma(input_weighs ? rest : sum, input_weighs ? from_a : exp.factor, s.sum[kTarget]);
        s.weighted = fma(all, exp.factor, s.weighted);
        s.excess = fma(more, exp.factor, s.excess);
    }
    template <int m> DEVICE N largest_size(const N (&v)[m]) {
        N size[m];
#pragma unroll
        for (int i = 0; i < m; i++)
            size[i] = fabs(v[i]);
        return in_halves<Maximum>(size);
    }
    /* The rest of a distance from the side that weighs. */
    DEVICE N signed_rest(N rest) {
        return weighing() == kTarget ? rest : -rest;
    }

    /* ---- a row whose softmax is reduced ---- */

    /* The constants of a row. `lse_difference` is log p - log q where both logits are at their shift. The shift is a
     * side's maximum if the sides are distant, else 0: the difference of close logits is exact. The sides are distant
     * in the middle of the row, or in their maxima if the middle is masked. Of a direct KL it is the lse, less the maximum. */
    struct Sides {
        N max[2], inverse[2], log_sum[2], shift[2], lse_difference;
        bool is_fast;        /* Whether the row has short formulas, with `exp`. */
        ScaledExp<N> exp[2]; /* q and p are these times of_exp. */
        N of_exp[2];
    };
    __device__ __forceinline__ Sides sides_of(const Row &r, const State &s, bool needs_ratios = true) const {
        const bool is_far =
            has_two_logits() && (r.is_far() || fabs(difference(s.max[kInput], s.max[kTarget])) > N(kFar));
        const ScaledExp<N> none(N(0));
        Sides of = {{}, {}, {}, {}, N(0), false, {none, none}, {}};
#pragma unroll
        for (int a = kInput; a <= kTarget; a++)
            if (is_logits(a)) {
                of.max[a] = s.max[a];
                of.inverse[a] = reciprocal(s.sum[a]);
                of.log_sum[a] = natural_log(s.sum[a]);
                of.shift[a] = is_far ? s.max[a] : N(0);
            }
        if (is_direct())
            of.lse_difference = of_logits(of.log_sum[kInput], of.log_sum[kTarget]);
        if (has_two_logits() && has_ratios() && needs_ratios)
            of.lse_difference =
                s.sum[kInput] > 0 && s.sum[kTarget] > 0
                    ? fma(difference(s.max[kInput], of.shift[kInput]) - difference(s.max[kTarget], of.shift[kTarget]),
                          inverse_temperature, log_any_ratio(s.sum[kInput], s.sum[kTarget]))
                    : Limits<N>::nan();
        if (has_short_formulas()) {
            const bool drops_nan = has_short_pairs() && !(s.sum[kInput] > 0 && s.sum[kTarget] > 0);
#pragma unroll
            for (int a = kInput; a <= kTarget; a++) {
                of.exp[a] = ScaledExp<N>(finite(s.max[a]), inverse_temperature);
                of.of_exp[a] = of.inverse[a] * of.exp[a].factor;
            }
            of.is_fast = !drops_nan && are_fast(of.exp);
        }
        return of;
    }
    /* The sums of a row's KL of two logits from the first sweep. `Way` selects the mean, the excess, or a sweep of its
     * own. Logarithms and quotients are approximate here, because they only select. A direct sum has enough digits if
     * it is 1/16 of its terms and more: a shift rounds the maxima, else their difference rounds. The other sum has an
     * error of a few u of E[v + expm1(-v)], and of E[v] and it times m / (1 + m). The KL has to be 1/4 of both. Large
     * sums leave no digits to m, nor do shifts that are distant from the maxima, which masked classes make. */
    enum Way { kDirect, kExcess, kValues };
    struct Kl {
        N sum, other, weighted, excess, distance; /* `distance` of the maxima, without their row's number */
        int way;
    };
    __device__ __forceinline__ Kl kl_of(const Row &r, const State &s) const {
        enum { kOfDirect = 16, kOfExcess = 4, kMost = 64 };
        const N shift[2] = {r.shift(kInput), r.shift(kTarget)};
        const N from_a = difference(own(s.max), own(shift)), from_b = difference(other(s.max), other(shift)),
                of_maxima = difference(from_b, from_a) * inverse_temperature,
                rest = signed_rest(r.rest()) * inverse_temperature;
        const bool is_shifted = r.is_far();
        Kl kl = {own(s.sum), other(s.sum), s.weighted, s.excess, of_maxima + rest, kValues};
        const float inverse = quick_reciprocal((float)kl.sum), mean = (float)kl.weighted * inverse,
                    excess = (float)kl.excess * inverse, m = excess - mean,
                    less = fabs(m) < 0.25f ? 0.5f * m * m * quick_reciprocal(m < 0 ? 1 + m : 1.0f)
                                           : m - 0.693147181f * log2_of(1 + m),
                    at_least = excess - less;
        const float direct = mean + (float)kl.distance + 0.693147181f * log2_of((float)kl.other * inverse);
        const float of_shifts =
            is_shifted ? (fabs((float)from_a) + fabs((float)from_b)) * (float)inverse_temperature : 0.0f;
        const float terms = 2 + fabs((float)of_maxima) + fabs((float)rest) + of_shifts;
        if (direct * kOfDirect > terms && direct < Limits<float>::infinity())
            kl.way = kDirect;
        else if (of_shifts < kMost && excess + fabs(mean) < kMost && excess < kOfExcess * at_least &&
                 fabs(m) * (excess + fabs(mean)) < kOfExcess * at_least * (1 + m))
            kl.way = kExcess;
        return kl;
    }
    DEVICE N kl_of_sums(const Kl &kl) {
        const N mean = kl.weighted / kl.sum, excess = kl.excess / kl.sum;
        return kl.way == kDirect ? mean + (kl.distance + log_any_ratio(kl.other, kl.sum))
                                 : excess + log_excess(excess - mean);
    }
    /* The same of a direct KL. `other` is the sum of exponentials of the logits. */
    __device__ __forceinline__ Kl direct_sums(const State &s) const {
        const N infinity = Limits<N>::infinity();
        const bool is_infinite = logits_weigh() && other(s.max) > -infinity && exp_from(other(s.max), own(s.max)) != 0;
        const Kl kl = {
            own(s.sum), of_logits(s.sum[kInput], s.sum[kTarget]), is_infinite ? -infinity : s.weighted, N(0), N(0),
            kDirect};
        return kl;
    }
    /* Probabilities that are all 0 have no divergence, whatever the lse is. */
    DEVICE N direct_kl(const Kl &kl) {
        const N lse = natural_log(kl.other);
        return logits_weigh() ? -(kl.weighted / kl.sum) - lse
               : kl.sum == 0  ? kl.weighted
                              : fma(kl.sum, lse, kl.weighted);
    }
    /* Whether a row takes the second sweep. */
    __device__ __forceinline__ bool has_values(const Row &r, const State &s) const {
        return may_have_values() && (!in_one_sweep() || kl_of(r, s).way == kValues);
    }

    __device__ __forceinline__ N probability(int side, const Sides &of, N z) const {
        return is_logits(side) ? exp_from(z, of.max[side]) * of.inverse[side] : is_logarithm(side) ? exponential(z) : z;
    }
    __device__ __forceinline__ N logarithm(int side, const Sides &of, N z) const {
        return is_logits(side)      ? difference(z, of.max[side]) * inverse_temperature - of.log_sum[side]
               : is_logarithm(side) ? z
                                    : natural_log(z + eps());
    }
    __device__ __forceinline__ N eps() const {
        return has(GPULOSSI_KL_EPS) ? (N)p.eps : N(0);
    }
    __device__ __forceinline__ N log_ratio_of_logits(const Sides &of, N x, N t) const {
        return fma(difference(difference(t, of.shift[kTarget]), difference(x, of.shift[kInput])), inverse_temperature,
                   of.lse_difference);
    }
    /* log p - log q of the elements of a vector of each side, if they are needed. */
    template <int m> __device__ __forceinline__ void log_ratios(const Sides &of, const N (&z)[2][m], N (&d)[m]) const {
        if (!has_ratios()) {
#pragma unroll
            for (int i = 0; i < m; i++)
                d[i] = N(0);
        } else if (has_two_logits()) {
#pragma unroll
            for (int i = 0; i < m; i++)
                d[i] = log_ratio_of_logits(of, z[kInput][i], z[kTarget][i]);
        } else if (is_probability(kInput) && is_probability(kTarget)) {
            log_ratios_of_probabilities(z, d);
        } else {
#pragma unroll
            for (int i = 0; i < m; i++)
                d[i] = logarithm(kTarget, of, z[kTarget][i]) - logarithm(kInput, of, z[kInput][i]);
        }
    }
    /* Probabilities outside the range of log_ratio(), as 0 is, take a loop that is not unrolled. */
    template <int m> __device__ __forceinline__ void log_ratios_of_probabilities(const N (&z)[2][m], N (&d)[m]) const {
        N a[m], b[m];
        bool in_range = true;
#pragma unroll
        for (int i = 0; i < m; i++) {
            a[i] = z[kTarget][i] + eps();
            b[i] = z[kInput][i] + eps();
            in_range = in_range && distance(a[i]) < Format<N>::range() && distance(b[i]) < Format<N>::range();
        }
        if (in_range) {
#pragma unroll
            for (int i = 0; i < m; i++)
                d[i] = log_ratio(a[i], b[i]);
        } else {
#pragma unroll 1
            for (int i = 0; i < m; i++) {
                shift_in(d, log_any_ratio(a[0], b[0]));
                shift_in(a, N(0));
                shift_in(b, N(0));
            }
        }
    }
    /* The pair of an element of each side, with its term and the derivatives that are gradients. */
    __device__ __forceinline__ Pair<N> pair(const Sides &of, N x, N t, N d) const {
        Pair<N> y;
        const N eps_q = is_probability(kInput) ? eps() : N(0), eps_p = is_probability(kTarget) ? eps() : N(0);
        y.q = probability(kInput, of, x);
        y.p = probability(kTarget, of, t);
        y.d = d;
        /* A negative probability makes NaN. A side that is not the weight needs only its logarithm, which eps may make
         * finite. One NaN is enough for Jensen-Shannon. Beside logits a second one takes fewer registers. */
        if (!has(GPULOSSI_KL_TOTAL_VARIATION) &&
            ((is_probability(kInput) && x < 0 && (has(GPULOSSI_KL_REVERSE) || !is_kl())) ||
             (is_probability(kTarget) && t < 0 && !has(GPULOSSI_KL_REVERSE)))) {
            y.p = Limits<N>::nan();
            if (is_kl() || has_logits())
                y.d = y.q = y.p;
        }
        if (has(GPULOSSI_KL_TOTAL_VARIATION)) {
            y.total_variation();
        } else if (has(GPULOSSI_KL_JENSEN_SHANNON)) {
            y.jensen_shannon((N)p.beta, (N)(1.0 - p.beta), has(GPULOSSI_KL_HALF_BETA), has_ratios(),
                             is_probability(kInput) || is_probability(kTarget));
        } else if (has(GPULOSSI_KL_REVERSE)) {
            y.reverse(has_two_logits(), eps_p, eps_q, wants_of_probability(kTarget), has(GPULOSSI_KL_GRADIENT));
        } else {
            y.forward(has_two_logits(), eps_p, eps_q, has(GPULOSSI_KL_TARGET_GRADIENT), wants_of_probability(kInput));
            if (has(GPULOSSI_KL_PYTORCH_ZEROS) && y.p == 0)
                keep_nan(of, x, t, eps_q, y);
        }
        return y;
    }
    /* PyTorch's products of 0. */
    __device__ __forceinline__ void keep_nan(const Sides &of, N x, N t, N eps_q, Pair<N> &y) const {
        N zero = logarithm(kInput, of, x) * N(0);
        if (is_logarithm(kTarget))
            zero += t * N(0);
        y.term = zero;
        y.f += zero;
        if (wants_of_probability(kInput))
            y.of_q = -Format<N>::divide(y.p, y.q + eps_q);
        y.of_p = Limits<N>::nan();
        y.of_lp = is_logarithm(kTarget) ? zero : y.of_p;
    }
    /* q, p, f, df/dq and df/dp of a vector of each side, in a row whose exponentials are fast. With y half of log p - log q,
     * the root of p q is q exp(y). Jensen-Shannon of beta 1/2 is, with polynomials where |y| is below kClose:
     *
     *   f = root (y sinh(y) - cosh(y) log(cosh(y)))            df/dq = (-y - log(cosh(y))) / 2 */
    template <int m>
    __device__ __forceinline__ void short_pairs(const Sides &of, const N (&z)[2][m], N (&probability)[2][m], N (&f)[m],
                                                N (&slope)[2][m]) const {
        enum { kClose = 2, kMost = 160 }; /* kMost is finite, so that a probability of 0 adds nothing. */
        const bool is_variation = has(GPULOSSI_KL_TOTAL_VARIATION);
        N y[m];
        bool are_close = true;
#pragma unroll
        for (int a = kInput; a <= kTarget; a++)
            if (is_variation || has_sum(a))
                probabilities(of, a, z[a], probability[a]);
        if (is_variation) {
#pragma unroll
            for (int i = 0; i < m; i++) {
                const N difference = probability[kInput][i] - probability[kTarget][i];
                f[i] = N(0.5) * fabs(difference);
                slope[kInput][i] = difference > 0 ? N(0.5) : difference < 0 ? N(-0.5) : difference;
                slope[kTarget][i] = -slope[kInput][i];
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < m; i++) {
            y[i] = N(0.5) * log_ratio_of_logits(of, z[kInput][i], z[kTarget][i]);
            are_close &= fabs(y[i]) < kClose;
        }
#pragma unroll
        for (int i = 0; i < m; i++) {
            const N square = y[i] * y[i], log_cosh = square * log_cosh_over_square<true>(square),
                    power = fma(y[i], N(1.442695041), of.exp[kInput].power(z[kInput][i]));
            f[i] = of.of_exp[kInput] * power_of_2(power) * (square * divergence_over_square<true>(square));
            slope[kInput][i] = N(-0.5) * (y[i] + log_cosh);
            slope[kTarget][i] = N(0.5) * (y[i] - log_cosh);
        }
        if (are_close)
            return;
#pragma unroll
        for (int a = kInput; a <= kTarget; a++)
            probabilities(of, a, z[a], probability[a]);
#pragma unroll
        for (int i = 0; i < m; i++) {
            const HalfLogs<N> logs(larger(-larger(N(-2) * y[i], N(-kMost)), N(-kMost)));
            const bool is_close = fabs(y[i]) < kClose;
            const N distant = fma(probability[kTarget][i], logs.of_p, probability[kInput][i] * logs.of_q);
            f[i] = is_close ? f[i] : N(0.5) * distant;
            slope[kInput][i] = is_close ? slope[kInput][i] : N(0.5) * logs.of_q;
            slope[kTarget][i] = is_close ? slope[kTarget][i] : N(0.5) * logs.of_p;
        }
    }
    template <int m>
    __device__ __forceinline__ void probabilities(const Sides &of, int side, const N (&z)[m], N (&p)[m]) const {
#pragma unroll
        for (int i = 0; i < m; i++)
            p[i] = of.exp[side].exp(z[i]) * of.of_exp[side];
    }
    /* f, and u of each side, from short_pairs(). */
    template <int m>
    __device__ __forceinline__ void short_values(const Sides &of, const N (&z)[2][m], N (&f)[m], N (&u)[2][m]) const {
        if constexpr (sizeof(N) == 4) {
            N probability[2][m];
            short_pairs(of, z, probability, f, u);
#pragma unroll
            for (int a = kInput; a <= kTarget; a++)
#pragma unroll
                for (int i = 0; i < m; i++)
                    u[a][i] *= probability[a][i];
        }
    }
    /* Adds a vector to the sums of the row. */
    template <class Side>
    __device__ __forceinline__ void add_values(Values &s, const Sides &of, const Vector<E> &x, const Side &side,
                                               int k) const {
        enum { m = Side::kElements };
        N z[2][m], d[m], f[m], of_log[2][m];
        load(x, side, k, z);
        if (has_short_pairs() && of.is_fast) {
            short_values(of, z, f, of_log);
        } else {
            log_ratios(of, z, d);
#pragma unroll
            for (int i = 0; i < m; i++) {
                const Pair<N> y = pair(of, z[kInput][i], z[kTarget][i], d[i]);
                const bool is_inside = side.is_inside(k, i);
                f[i] = is_inside ? y.f : N(0);
                of_log[kInput][i] = is_inside ? y.of_lq : N(0);
                of_log[kTarget][i] = is_inside ? y.of_lp : N(0);
            }
        }
        s.f += (double)in_halves<Sum>(f);
#pragma unroll
        for (int a = kInput; a <= kTarget; a++)
            if (has_sum(a))
                s.of_log[a] += (double)in_halves<Sum>(of_log[a]);
    }
    /* add_values() for rows of which the first sweep has the sums, which all are of two logits. */
    template <class Side>
    __device__ __forceinline__ void add_logits(Values &s, const Sides &of, const Vector<E> &x, const Side &side,
                                               int k) const {
        enum { m = Side::kElements };
        N z[2][m], f[m];
        load(x, side, k, z);
#pragma unroll
        for (int i = 0; i < m; i++) {
            Pair<N> y;
            y.q = exp_from(z[kInput][i], of.max[kInput]) * of.inverse[kInput];
            y.p = exp_from(z[kTarget][i], of.max[kTarget]) * of.inverse[kTarget];
            y.d = log_ratio_of_logits(of, z[kInput][i], z[kTarget][i]);
            f[i] = weighing() == kInput ? y.surplus(y.q, y.p, -y.d) : y.surplus(y.p, y.q, y.d);
        }
        s.f += (double)in_halves<Sum>(f);
    }

    /* ---- the results of a row ---- */

    struct Gradient {
        Sides sides;
        N scale[2], sum[2]; /* of the gradients of each side, and the sum of u */
        N of_terms;         /* factor of the terms */
        N less;   /* of fast_gradients(): a logit's ratio is the difference of the two sides over T and this */
        double f; /* sum of the pairs that this thread has written */
        bool is_zero, is_fast;
    };
    __device__ __forceinline__ Gradient gradient(int64_t row, const Row &r, const State &s) const {
        Gradient g = {sides_of(r, s, writes_ratios()), {}, {}, N(0), N(0), 0.0, !Base::is_read(r), false};
        g.is_fast = g.sides.is_fast;
        const double scale = this->scale_of(row, Base::weight_of(r));
        g.of_terms = (N)(p.factor * (double)Base::weight_of(r));
#pragma unroll
        for (int a = kInput; a <= kTarget; a++) {
            g.scale[a] = (N)(is_logits(a) ? scale * p.inverse_temperature : scale);
            g.sum[a] = (N)s.values.of_log[a];
        }
        /* u is -p of the weighing side for the other one, and p (d + 1) of its own. */
        if (has(GPULOSSI_KL_OWN_GRADIENT)) {
            g.sum[kInput] = g.sum[kTarget] = (N)outcome(r, s).sum();
            g.is_fast = g.is_fast && fabs(g.sum[kInput]) < Limits<N>::infinity();
            if (in_one_sweep())
                set_less(g, r);
        } else if (is_direct())
            g.sum[kInput] = own(s.sum);
        return g;
    }
    /* Logits are subtracted without shifts. That takes digits of the ratios of a row whose sides are distant, which is not
     * fast. Nor is one whose sum is infinite. */
    __device__ __forceinline__ void set_less(Gradient &g, const Row &r) const {
        const N of_shifts = difference(g.sides.shift[kTarget], g.sides.shift[kInput]) * inverse_temperature,
                ratio = difference(g.sides.lse_difference, of_shifts);
        g.less = difference(weighing() == kTarget ? ratio : -ratio, own(g.sum));
        g.is_fast = g.is_fast && !r.is_far() && fabs(of_shifts) < N(4 * kFar) && fabs(g.less) < Limits<N>::infinity();
    }
    /* The gradient of an element, without its factor. A logit of probability 0 has no part of the sum, also if that is
     * infinite. */
    DEVICE N of_element(int side, const Gradient &g, const Pair<N> &y) {
        const N p = side == kInput ? y.q : y.p;
        if (in_one_sweep() || (is_direct() && is_logits(side))) {
            const N d = side == kInput ? -y.d : y.d, all = is_direct() ? g.sum[side] : N(1);
            return side != weighing() ? fma(p, all, -(side == kInput ? y.p : y.q))
                   : p == 0           ? N(0)
                                      : p * (d - g.sum[side]);
        }
        const N of_log = side == kInput ? y.of_lq : y.of_lp;
        return is_probability(side) ? (side == kInput ? y.of_q : y.of_p)
               : is_logarithm(side) ? of_log
               : p == 0             ? of_log
                                    : of_log - p * g.sum[side];
    }
    /* The gradients of the KL of two logits, which have the same scale. */
    template <int m> __device__ __forceinline__ void fast_gradients(const Gradient &g, N (&z)[2][m]) const {
        const N of_q = g.sides.of_exp[kInput] * g.scale[kInput], of_p = g.sides.of_exp[kTarget] * g.scale[kInput];
#pragma unroll
        for (int i = 0; i < m; i++) {
            const N x = z[kInput][i], t = z[kTarget][i], q = g.sides.exp[kInput].exp(x) * of_q,
                    p = g.sides.exp[kTarget].exp(t) * of_p;
            const N ratio = weighing() == kInput ? difference(x, t) : difference(t, x),
                    of_own = finite_of(fma(ratio, inverse_temperature, g.less));
            z[kInput][i] = weighing() == kInput ? fma(q, of_own, N(0)) : difference(q, p);
            z[kTarget][i] = weighing() == kTarget ? fma(p, of_own, N(0)) : difference(p, q);
        }
    }
    /* The gradients of the input's logits of a direct KL. */
    template <int m> __device__ __forceinline__ void direct_gradients(const Gradient &g, N (&z)[2][m]) const {
        N v[m] = {}, p[m];
        if (logits_weigh())
            direct_logarithms(z, v, p);
        else
#pragma unroll
            for (int i = 0; i < m; i++) /* a negative one has made the row's sum a NaN */
                p[i] = weight_of_other(z[kTarget][i]);
        const ScaledExp<N> &exp = g.sides.exp[kInput];
        const N rounding = exp.rounding(finite(g.sides.max[kInput])),
                less = fma(-distance_from(N(0), rounding), log_unit(), g.sides.lse_difference + g.sum[kInput]),
                of_q = g.sides.of_exp[kInput] * (logits_weigh() ? g.scale[kInput] : g.sum[kInput]);
#pragma unroll
        for (int i = 0; i < m; i++) {
            const N power = exp.power(z[kInput][i]), e = ScaledExp<N>::exp_of(power),
                    of_own = finite_of(fma(-distance_from(v[i], power), log_unit(), -less));
            z[kInput][i] =
                logits_weigh() ? fma(e * of_q, of_own, N(0)) : fma(fma(e, of_q, -p[i]), g.scale[kInput], N(0));
        }
    }
    /* The gradients of both sides from short_pairs(). */
    template <int m> __device__ __forceinline__ void short_gradients(const Gradient &g, N (&z)[2][m]) const {
        if constexpr (sizeof(N) == 4) {
            N probability[2][m], f[m], slope[2][m];
            short_pairs(g.sides, z, probability, f, slope);
#pragma unroll
            for (int a = kInput; a <= kTarget; a++)
#pragma unroll
                for (int i = 0; i < m; i++)
                    z[a][i] = fma(probability[a][i] * (slope[a][i] - g.sum[a]), g.scale[a], N(0));
        }
    }
    /* The gradients and terms of Jensen-Shannon in a row of which a side has no softmax. In a float Mixture the logarithm of
     * 0 is a NaN there. */
    DEVICE bool is_nan(const Gradient &g) {
        return has_logits() && !(g.sides.inverse[kInput] + g.sides.inverse[kTarget] < Limits<N>::infinity());
    }
    template <int m>
    __device__ __forceinline__ void nan_gradients(const Gradient &g, N (&z)[2][m], N (&term)[m]) const {
#pragma unroll
        for (int i = 0; i < m; i++) {
#pragma unroll
            for (int a = kInput; a <= kTarget; a++)
                z[a][i] = probability(a, g.sides, z[a][i]) == 0 ? N(0) : Limits<N>::nan();
            term[i] = Limits<N>::nan();
        }
    }
    /* Replaces the gradients of probabilities with small shares in a vector, if there are any. `least` is the bits of the
     * least derivative, if one is below 0. */
    template <int m>
    __device__ __forceinline__ void replace_small(int side, uint32_t least, const Gradient &g, const N (&z)[2][m],
                                                  N (&y)[m]) const {
        const N share[2] = {(N)(1.0 - p.beta), (N)p.beta};
        if (!may_be_small(side) || least <= __float_as_uint((float)(share[side] * kSmall)))
            return;
#pragma unroll
        for (int i = 0; i < m; i++) {
            const N own = probability(side, g.sides, z[side][i]),
                    other = probability(1 - side, g.sides, z[1 - side][i]);
            const N log = log_of_small_share(own, share[1 - side], other);
            y[i] = own > 0 && log < kSmall ? fma(share[side] * log, g.scale[side], N(0)) : y[i];
        }
    }
    /* Writes the gradients of a vector, and its terms. They are 0 if the row has none. */
    template <class Side>
    __device__ __forceinline__ void write(Gradient &g, const Row &, const Vector<E> &x, const Side &side, int k, int,
                                          bool has_gradient = true) const {
        enum { m = Side::kElements };
        N z[2][m] = {}, d[m], f[m], term[m] = {};
        if (has_gradient)
            load(x, side, k, z);
        if (has_gradient && in_one_sweep() && g.is_fast) {
            fast_gradients(g, z);
        } else if (has_gradient && is_direct() && g.is_fast) {
            direct_gradients(g, z);
        } else if (has_gradient && has_short_pairs() && g.is_fast) {
            short_gradients(g, z);
        } else if (has_gradient && is_float_shannon() && is_nan(g)) {
            nan_gradients(g, z, term);
        } else if (has_gradient) {
            N given[2][m];
            uint32_t least[2] = {};
#pragma unroll
            for (int i = 0; i < m; i++)
                given[kInput][i] = z[kInput][i], given[kTarget][i] = z[kTarget][i];
            log_ratios(g.sides, z, d);
#pragma unroll
            for (int i = 0; i < m; i++) {
                const Pair<N> y = pair(g.sides, z[kInput][i], z[kTarget][i], d[i]);
                f[i] = side.is_inside(k, i) ? y.f : N(0);
                term[i] = y.term * g.of_terms;
#pragma unroll
                for (int a = kInput; a <= kTarget; a++) { /* adding 0 changes -0 to 0 */
                    const N of = of_element(a, g, y);
                    least[a] = may_be_small(a) ? max(least[a], __float_as_uint((float)of)) : 0;
                    z[a][i] = fma(of, g.scale[a], N(0));
                }
            }
            replace_small(kInput, least[kInput], g, given, z[kInput]);
            replace_small(kTarget, least[kTarget], g, given, z[kTarget]);
            if (sums_while_writing())
                g.f += (double)in_halves<Sum>(f);
        }
        store(side, k, z[kInput], z[kTarget], term);
    }
    template <class Side, int m>
    __device__ __forceinline__ void store(const Side &side, int k, N (&of_x)[m], N (&of_t)[m], N (&term)[m]) const {
        if (has(GPULOSSI_KL_GRADIENT))
            side.write(Gradients(p.rows.grad, side.start_of_gradient(p.rows.grad_stride)), k, of_x);
        if (has(GPULOSSI_KL_TARGET_GRADIENT))
            side.write(Targets(p.grad_target, side.start(p.grad_target_stride)), k, of_t);
        if (has(GPULOSSI_KL_ELEMENTS))
            side.write(ResultOutput<E>(p.elements, side.start(p.elements_stride)), k, term);
    }
    template <class Side> __device__ __forceinline__ void write_zeros(const Side &side, int k) const {
        enum { m = Side::kElements };
        N zeros[3][m] = {};
        store(side, k, zeros[0], zeros[1], zeros[2]);
    }

    /* ---- the results of a row, by one thread ---- */

    struct Outcome {
        double f;
        Kl kl;
        __device__ __forceinline__ double sum() const {
            return is_direct()                           ? (double)direct_kl(kl)
                   : in_one_sweep() && kl.way != kValues ? (double)kl_of_sums(kl)
                                                         : f;
        }
    };
    __device__ __forceinline__ Outcome outcome(const Row &r, const State &s) const {
        Outcome of = {s.values.f, {}};
        if (is_direct())
            of.kl = direct_sums(s);
        if (in_one_sweep())
            of.kl = kl_of(r, s);
        return of;
    }
};

#endif
