/* Forward KL of two arrays of logits of one type, and the student's gradient: the loss of distillation. With T the
 * temperature, and d = (t - x) / T less the difference of the two lse:
 *
 *   f = p d                                                gradient = (q - p) / T
 *
 * The first pass finds both softmaxes, and the mean under p of (t - x) / T, of which each logit is less its row maximum.
 * This mean less the logarithm of the ratio of the two sums is the sum of f. If the sum is far enough from 0 to have its
 * digits, the second pass only writes the gradient. Otherwise it also sums p d - p + q, of which no term is negative (see
 * divergence_terms.cuh). The second pass reads retained steps from shared memory, and the others again. */
#ifndef GPULOSSI_KL_LOGITS_CUH
#define GPULOSSI_KL_LOGITS_CUH

#include "../loss/divergence_terms.cuh"
#include "../loss/row_mask.cuh"
#include "pair_pipeline.cuh"
#include "row_generic.cuh"
#include "../device/online_softmax.cuh"

/* A loss that always needs the mean difference of the two sides. */
struct Weighs {
    DEVICE bool weighs() { return true; }
};

/* Works on K pairs of vectors at a time. */
template <class E, int K, class Wanted = Weighs> struct Distil : Masked<typename E::Number, gpulossi_kl_div> {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_kl_div Params;
    typedef Masked<N, Params> Base;
    typedef typename Base::Totals Totals;
    using Base::p;
    /* Vectors of each side that enter_step() unrolls. */
    enum { W = Width<E>::value, n = K * W, kAtOnce = W < 8 ? 1 : 2 };
    enum { kArrays = 2, kSums = 0 };
    /* Row maxima over T that differ by more are subtracted from the logits of their side, before the two sides are
     * subtracted. */
    enum { kFar = 8 };
    enum { kStages = GPULOSSI_SLOTS / (kArrays * GPULOSSI_VECTORS_STREAMED) }; /* Stages of a ring. */

    /* The softmaxes of both sides, and a sum of products. Their factors are an exponential of the target, and the
     * difference of the powers of 2 of both sides: the target's, less the input's. A power is relative to the row
     * maximum of its side. */
    struct State {
        Softmax<N> side[2]; /* The input and the target. */
        N weighted_difference, scale;
        /* The decrease of a side's powers if its maximum is raised to `higher`. */
        __device__ __forceinline__ N rise(int a, N higher) const {
            return difference(higher, side[a].row_max) * (scale * N(1.442695041));
        }
        /* The differences of powers grow by `step`. It may be infinite if the target has no exponentials yet. */
        __device__ __forceinline__ void shift_differences(N step) {
            if (Wanted::weighs() && side[1].sum > 0)
                weighted_difference = fma(side[1].sum, step, weighted_difference);
        }
        __device__ __forceinline__ void raise(int a, N higher) {
            Softmax<N> &s = side[a];
            if (higher != s.row_max) {
                N of_powers = rise(a, higher), down = power_of_2(-of_powers);
                shift_differences(a == 1 ? -of_powers : of_powers);
                s.sum *= down;
                if (Wanted::weighs() && a == 1)
                    weighted_difference *= down;
            }
            s.row_max = higher;
        }
        template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
            N row_maxima[2] = {largest_over(lanes, side[0].row_max), largest_over(lanes, side[1].row_max)};
            N rises[2];
#pragma unroll
            for (int a = 0; a < 2; a++) {
                rises[a] = row_maxima[a] == side[a].row_max ? N(0) : rise(a, row_maxima[a]);
                side[a].row_max = row_maxima[a];
            }
            shift_differences(rises[0] - rises[1]);
            N down = power_of_2(-rises[1]);
            side[0].sum *= power_of_2(-rises[0]);
            side[1].sum *= down;
            weighted_difference *= down;
            N sums[3] = {side[0].sum, side[1].sum, weighted_difference};
            lanes.template over_all<Sum>(sums);
            side[0].sum = sums[0];
            side[1].sum = sums[1];
            weighted_difference = sums[2];
        }
    };
    /* With e the exponentials of the logits less their row maximum, q = e_input * inverse and
     * p = e_target * ratio * inverse. `lse_difference` is the target's lse less the input's, each less its row maximum
     * if the two maxima `are_far`. `sum` is the sum of f, if `known`. */
    struct Row {
        int64_t row;
        N input_max, target_max, ratio, inverse, lse_difference, scale, sum;
        bool in_fast_range, are_far, known;
    };

    N inverse_temperature;

    /* All threads of the block call. */
    __device__ __forceinline__ explicit Distil(const Params &p)
        : Base(p), inverse_temperature((N)p.inverse_temperature) {
        if (threadIdx.x == 0)
            grad_scale() = this->scale_of_all() * p.inverse_temperature * p.factor;
        __syncthreads();
    }

    __device__ __forceinline__ const typename E::Bits *array(int a, int64_t row) const {
        return (const typename E::Bits *)(a == 0 ? p.input : p.target) +
               row * (a == 0 ? p.input_stride : p.target_stride);
    }
    DEVICE int smem_vectors() {
        return kArrays;
    }
    __device__ __forceinline__ N absent(int) const {
        return -Limits<N>::infinity();
    }

    __device__ __forceinline__ State empty() const {
        State s;
        s.side[0] = s.side[1] = Softmax<N>::empty();
        s.weighted_difference = N(0);
        s.scale = inverse_temperature;
        return s;
    }
    /* Whether the row takes a second pass. */
    __device__ __forceinline__ bool writes(const Row &r) const {
        return wants_gradient() || uniform(!r.known);
    }
    DEVICE bool wants_gradient() {
        return has(GPULOSSI_KL_GRADIENT);
    }

    __device__ __forceinline__ Row begin(const Cut<E> &, int64_t row, bool) const {
        Row r;
        r.row = row;
        return r;
    }

    __device__ __forceinline__ bool out(int64_t row) const {
        return row >= p.rows.rows || this->left_out(row);
    }

    /* Reduces vectors of both sides into the state. */
    __device__ __forceinline__ void enter(const Row &, State &s, const Cut<E> &, int, int,
                                          const Vector<E> (&x)[K][2]) const {
        enum { a = 1 };
        N own[n], other[n];
#pragma unroll
        for (int i = 0; i < n; i++) {
            own[i] = x[i / W][a].get(i % W);
            other[i] = x[i / W][1 - a].get(i % W);
        }
        s.raise(a, larger(s.side[a].row_max, largest(x, a)));
        s.raise(1 - a, larger(s.side[1 - a].row_max, largest(x, 1 - a)));
        N from = Softmax<N>::finite(s.side[a].row_max), from_other = Softmax<N>::finite(s.side[1 - a].row_max);
        if (!(ScaledExp<N>::in_fast_range(inverse_temperature * from) &&
              ScaledExp<N>::in_fast_range(inverse_temperature * from_other))) {
            s.side[a].add(own, inverse_temperature);
            s.side[1 - a].add(other, inverse_temperature);
            s.weighted_difference = Limits<N>::nan();
            return;
        }
        ScaledExp<N> below(from, inverse_temperature), below_other(from_other, inverse_temperature);
        N e[n], part[4] = {N(0), N(0), N(0), N(0)};
#pragma unroll
        for (int i = 0; i < n; i++) {
            other[i] = below_other.power(other[i]);
            e[i] = power_of_2(other[i]);
        }
        s.side[1 - a].sum = fma(in_halves<Sum>(e), below_other.factor, s.side[1 - a].sum);
#pragma unroll
        for (int i = 0; i < n; i++) {
            own[i] = below.power(own[i]);
            e[i] = power_of_2(own[i]);
            other[i] = own[i] - other[i];
            part[i % 4] = fma(e[i], other[i], part[i % 4]);
        }
        N all = in_halves<Sum>(part), sum = in_halves<Sum>(e);
        /* A class of zero probability adds nothing, whatever its difference is. */
        if (Wanted::weighs() && !(fabs(all) < Limits<N>::infinity())) {
            all = N(0);
#pragma unroll
            for (int i = 0; i < n; i++)
                all += e[i] == 0 ? N(0) : e[i] * other[i];
        }
        all = fma(sum, below_other.rounding(from_other) - below.rounding(from), all);
        s.side[a].sum = fma(sum, below.factor, s.side[a].sum);
        if (Wanted::weighs())
            s.weighted_difference = fma(all, below.factor, s.weighted_difference);
    }

    /* Reduces all vectors of a thread in a stage, of both arrays. `at_once` vectors of each side are unrolled. Returns
     * false if the general code is needed. Only the row maxima have changed then. */
    template <int at_once, class SmemStep>
    __device__ __forceinline__ bool enter_all(State &s, const SmemStep &step) const {
        N row_maxima[2];
#pragma unroll
        for (int a = 0; a < 2; a++) {
            Vector<E> x[SmemStep::vectors][1];
#pragma unroll
            for (int i = 0; i < SmemStep::vectors; i++)
                x[i][0] = step.vector(i, a);
            row_maxima[a] = largest(x, 0);
        }
#pragma unroll
        for (int a = 0; a < 2; a++)
            s.raise(a, larger(s.side[a].row_max, row_maxima[a]));
        N from_input = Softmax<N>::finite(s.side[0].row_max), from_target = Softmax<N>::finite(s.side[1].row_max);
        if (!(ScaledExp<N>::in_fast_range(inverse_temperature * from_input) &&
              ScaledExp<N>::in_fast_range(inverse_temperature * from_target)))
            return false;
        ScaledExp<N> input(from_input, inverse_temperature), target(from_target, inverse_temperature);
        N sums[2] = {N(0), N(0)}, weighted_differences[4] = {N(0), N(0), N(0), N(0)};
#pragma unroll at_once
        for (int i = 0; i < SmemStep::vectors; i++) {
            Vector<E> x = step.vector(i, 0), t = step.vector(i, 1);
            N e[2][W];
#pragma unroll
            for (int j = 0; j < W; j++) {
                N of_input = input.power(x.get(j)), of_target = target.power(t.get(j));
                e[0][j] = power_of_2(of_input);
                e[1][j] = power_of_2(of_target);
                if (Wanted::weighs())
                    weighted_differences[j % 4] = fma(e[1][j], of_target - of_input, weighted_differences[j % 4]);
            }
            sums[0] += in_halves<Sum>(e[0]);
            sums[1] += in_halves<Sum>(e[1]);
        }
        N all = in_halves<Sum>(weighted_differences);
        if (!(fabs(all) < Limits<N>::infinity()))
            return false;
        all = fma(sums[1], input.rounding(from_input) - target.rounding(from_target), all);
        s.side[0].sum = fma(sums[0], input.factor, s.side[0].sum);
        s.side[1].sum = fma(sums[1], target.factor, s.side[1].sum);
        s.weighted_difference = fma(all, target.factor, s.weighted_difference);
        return true;
    }
    template <class SmemStep> __device__ __forceinline__ bool enter_step(State &s, const SmemStep &step) const {
        return enter_all<kAtOnce>(s, step);
    }
    DEVICE bool spoiled(const Row &) {
        return false;
    }

    /* The direct sum is log(2) E[z_t - z_x] - log(S_t / S_x). Here z are the powers of 2 of both sides, S their sums, and E
     * is the mean under p. With u = 2^-24, its error is the sum of these:
     *
     *   u E(|z_t| + |z_x| + |d|)     Each power is rounded once, and so is their difference.
     *   4u E|d| + 8u                 An exponential is within 2^-22. It has a part in E and in S.
     *   3u |E d|                     The slope and log(2) are rounded.
     *   8u |log(S_t / S_x)|          log_ratio() is within 8u.
     *
     * No part grows with an offset between the sides. The product of a row maximum is rounded, but rounding() returns
     * the lost part. The parts rarely add up. This was measured for 600000 rows of 3 and 16 classes, offsets of up to
     * 4000, and sums of 1/16 to 1/11 of 2 + |log(S_t / S_x)|. No error was above 14u, and the median of the relative
     * errors was 9u. The terms p d - p + q of the other sum have errors of about 30u each, most of it from p. A known
     * sum is therefore at least 1/16 of 2 + |log(S_t / S_x)|. In a row with a known sum all logits are finite, or -inf
     * where neither side has a probability above 0. */
    __device__ __forceinline__ void close(Row &r, const State &s) const {
        close_sums<Rounded<N>, false>(r, s);
        set_scale(r);
    }
    /* The factor of a row's gradients. */
    __device__ __forceinline__ void set_scale(Row &r) const {
        if (!wants_gradient())
            return;
        double scale = grad_scale();
        if (p.row_weights | p.rows.grad_loss_rows | p.labels) {
            bool is_out = out(r.row);
            if (p.row_weights && !is_out)
                scale *= (double)((const N *)p.row_weights)[r.row];
            if (p.rows.grad_loss_rows && !is_out)
                scale *= (double)((const N *)p.rows.grad_loss_rows)[r.row];
            scale = is_out ? 0.0 : scale;
        }
        r.scale = (N)scale;
    }
    /* `relative`: the sums lack the factors of ScaledExp and are off by its roundings, which the exponentials of the
     * row are too. */
    template <class Divides, bool relative> __device__ __forceinline__ void close_sums(Row &r, const State &s) const {
        Softmax<N> x = s.side[0], t = s.side[1];
        r.in_fast_range = ScaledExp<N>::in_fast_range(inverse_temperature * x.row_max) &&
                          ScaledExp<N>::in_fast_range(inverse_temperature * t.row_max);
        r.input_max = x.row_max;
        r.target_max = t.row_max;
        r.inverse = Divides::inverse(x.sum);
        r.ratio = Divides::divide(x.sum, t.sum);
        N of_sums = x.sum > 0 && t.sum > 0 ? log_ratio(t.sum, x.sum) : Limits<N>::nan(),
          of_maxima = t.row_max - x.row_max, mean = Divides::divide(s.weighted_difference, t.sum);
        r.sum = fma(mean, N(0.693147181), -of_sums);
        r.known = r.in_fast_range && r.sum * N(16) > N(2) + fabs(of_sums) && r.sum < Limits<N>::infinity();
        ScaledExp<N> input(x.row_max, inverse_temperature), target(t.row_max, inverse_temperature);
        if (relative && r.in_fast_range) {
            of_sums = fma(input.rounding(x.row_max) - target.rounding(t.row_max), N(0.693147181), of_sums);
        } else if (r.in_fast_range) {
            /* Both factors are close to 1: there 1 / input.factor is 2 - input.factor to first order. */
            r.inverse *= input.factor;
            r.ratio *= fma(target.factor - input.factor, N(2) - input.factor, N(1));
        }
        r.are_far = fabs(of_maxima) * inverse_temperature > N(kFar);
        r.lse_difference = r.are_far ? of_sums : fma(of_maxima, inverse_temperature, of_sums);
    }

    template <int m>
    __device__ __forceinline__ void exponentials(const N (&x)[m], N row_max, bool in_fast_range, N (&y)[m]) const {
        if (in_fast_range) {
            ScaledExp<N> below(row_max, inverse_temperature);
#pragma unroll
            for (int i = 0; i < m; i++)
                y[i] = below.exp(x[i]);
        } else {
#pragma unroll
            for (int i = 0; i < m; i++)
                y[i] = exp_of_difference(difference(x[i], row_max) * inverse_temperature);
        }
    }
    /* The exponentials of side `a` of any number of pairs of vectors. */
    template <int k, int m>
    __device__ __forceinline__ void exponentials(const Vector<E> (&x)[k][2], int a, N row_max, bool in_fast_range,
                                                 N (&y)[m]) const {
        N logits[m];
#pragma unroll
        for (int i = 0; i < m; i++)
            logits[i] = x[i / W][a].get(i % W);
        exponentials(logits, row_max, in_fast_range, y);
    }
    /* The gradients of a row whose sum is known, without their common factor. */
    template <int m>
    __device__ __forceinline__ void slopes(const Row &r, const N (&x)[m], const N (&t)[m], N (&q)[m]) const {
        N p[m];
        exponentials(x, r.input_max, true, q);
        exponentials(t, r.target_max, true, p);
#pragma unroll
        for (int i = 0; i < m; i++)
            q[i] = fma(-r.ratio, p[i], q[i]);
    }
    /* log(p / q) of any row, times a power of 2. Sides that are close have differences without a rounding, unless
     * `are_far`. */
    template <int m>
    __device__ __forceinline__ void log_ratios(const Row &r, const N (&x)[m], const N (&t)[m], N part,
                                               N (&d)[m]) const {
#pragma unroll
        for (int i = 0; i < m; i++)
            d[i] = t[i] - x[i];
        if (r.are_far)
#pragma unroll
            for (int i = 0; i < m; i++)
                d[i] = difference(t[i], r.target_max) - difference(x[i], r.input_max);
#pragma unroll
        for (int i = 0; i < m; i++)
            d[i] = fma(d[i], part * inverse_temperature, -part * r.lse_difference);
    }
    /* The factor of slopes() if the sum of the row is known, or else of terms(). */
    DEVICE N inverse_of(const Row &r) {
        return r.known ? r.inverse : r.inverse * (r.ratio * close_unit<N>());
    }
    /* The gradients of any row, and the sum of its terms, each without inverse_of(). With d = log(p / q),
     * y = d / close_unit() and e the target's exponentials, a term is e y - (e - e exp(-d)) / close_unit(). */
    template <int m>
    __device__ __forceinline__ N terms(const Row &r, const N (&x)[m], const N (&t)[m], N (&q)[m]) const {
        const N unit = close_unit<N>();
        N e[m], y[m], ey[m], f[m];
        uint32_t bits = 0;
        /* Most rows: log_ratios() and exponentials() would branch twice. */
        if (r.in_fast_range && !r.are_far) {
            const ScaledExp<N> target(r.target_max, inverse_temperature);
            const N factor = inverse_temperature * (1 / unit), less = r.lse_difference * (1 / unit);
#pragma unroll
            for (int i = 0; i < m; i++) {
                y[i] = fma(difference(t[i], x[i]), factor, -less);
                e[i] = target.exp(t[i]);
            }
        } else {
            log_ratios(r, x, t, 1 / unit, y);
            exponentials(t, r.target_max, r.in_fast_range, e);
        }
        /* Where the sides are close, the gradient is f - e y, which has the digits of y. */
#pragma unroll
        for (int i = 0; i < m; i++) {
            bits |= highest_bits(y[i]);
            ey[i] = e[i] * y[i];
            f[i] = y[i] * excess_over_square<(W == 8)>(y[i], unit, unit);
            q[i] = fma(ey[i], f[i], -ey[i]);
        }
        if (are_below_2(bits))
            return products_in_halves(ey, f);
        const N to_target = quick_reciprocal(r.ratio);
        N of_input[m];
        exponentials(x, r.input_max, r.in_fast_range, of_input);
#pragma unroll
        for (int i = 0; i < m; i++) {
            /* Where e = 0, y may be infinite or NaN. Where it is not +inf, any finite number below -1 will do. */
            const N less = fma(of_input[i], to_target, -e[i]) * (1 / unit), close = ey[i] * f[i],
                    own = e[i] == 0 ? N(0) : e[i] * larger(y[i], N(-1e30)), distant = own + less;
            const bool is_close = fabs(y[i]) < 2;
            f[i] = is_close ? close : distant;
            q[i] = is_close ? q[i] : less;
        }
        return in_halves<Sum>(f);
    }

    /* The address of vector `at` of the row's gradient. */
    __device__ __forceinline__ char *gradient_at(const Cut<E> &cut, const Row &r, int at) const {
        typename E::Bits *to = (typename E::Bits *)p.rows.grad + r.row * p.rows.grad_stride;
        return (char *)(to - cut.head) + (int64_t)at * GPULOSSI_VECTOR_BYTES;
    }
    /* Stores the gradients of any number of vectors; `whole`: all are whole vectors. `ordinary`: none is NaN. A row
     * that is left out has gradients of 0, whatever its logits are. */
    template <int m>
    __device__ __forceinline__ void store_gradient(const Cut<E> &cut, const Row &r, int at, int step, bool whole,
                                                   N (&g)[m], bool ordinary) const {
        typename E::Bits *to = (typename E::Bits *)p.rows.grad + r.row * p.rows.grad_stride;
        char *first = gradient_at(cut, r, at);
        bool finite = ordinary || (E::keeps_nan() && r.scale != 0) || in_halves<Sum>(g) == in_halves<Sum>(g);
        bool none = !finite && out(r.row);
        if (finite && whole && cut.fits(to)) {
#pragma unroll
            for (int k = 0; k < m / W; k++)
                store_whole<E, E>((typename E::Bits *)(first + (int64_t)step * (k * GPULOSSI_VECTOR_BYTES)), g + k * W,
                                  true);
            return;
        }
        if (none)
#pragma unroll
            for (int i = 0; i < m; i++)
                g[i] = N(0);
#pragma unroll
        for (int k = 0; k < m / W; k++)
            if (at + k * step < cut.vectors)
                store<E, E>(cut, to, at + k * step, g + k * W);
    }

    /* Writes the gradients of K pairs of vectors. If the sum of the row is not known, adds their terms to `sum`. */
    __device__ __forceinline__ void work(const Cut<E> &cut, const Row &r, int at, int step, const Vector<E> (&x)[K][2],
                                         bool whole, double &sum) const {
        N own[n], of_target[n], q[n];
#pragma unroll
        for (int i = 0; i < n; i++)
            own[i] = x[i / W][0].get(i % W), of_target[i] = x[i / W][1].get(i % W);
        if (r.known) {
            slopes(r, own, of_target, q);
        } else {
            N more = terms(r, own, of_target, q);
            sum += (double)more;
            if (!wants_gradient())
                return;
        }
        const N scale = inverse_of(r) * r.scale;
#pragma unroll
        for (int i = 0; i < n; i++) /* Adding +0 changes -0 to +0. */
            q[i] = fma(q[i], scale, N(0));
        store_gradient(cut, r, at, step, whole, q, r.known);
    }

    /* Does the work() of all vectors of a thread in a stage, which are whole. Returns false if the general code is
     * needed. */
    template <class SmemStep>
    __device__ __forceinline__ bool write_step(const Cut<E> &cut, const Row &r, int at, const SmemStep &step,
                                               double &sum) const {
        if (!cut.fits((typename E::Bits *)p.rows.grad + r.row * p.rows.grad_stride))
            return false;
        char *first = gradient_at(cut, r, at);
        const N scale = inverse_of(r) * r.scale;
        auto store = [&](int i, const N(&g)[W]) {
            store_whole<E, E>((typename E::Bits *)(first + SmemStep::step * (i * GPULOSSI_VECTOR_BYTES)), g, true);
        };
        if (!r.known)
            return write_terms(r, scale, step, store, sum);
        ScaledExp<N> input(r.input_max, inverse_temperature), target(r.target_max, inverse_temperature);
#pragma unroll 2
        for (int i = 0; i < SmemStep::vectors; i++) {
            Vector<E> x = step.vector(i, 0), t = step.vector(i, 1);
            N g[W];
#pragma unroll
            for (int j = 0; j < W; j++) /* Adding +0 changes -0 to +0. */
                g[j] = fma(fma(-r.ratio, target.exp(t.get(j)), input.exp(x.get(j))), scale, N(0));
            store(i, g);
        }
        return true;
    }
    /* The same for a row whose sum is not known, and adds its terms to `sum`. A vector without a finite sum needs the general
     * code. */
    template <class SmemStep, class Store>
    __device__ __forceinline__ bool write_terms(const Row &r, N scale, const SmemStep &step, const Store &store,
                                                double &sum) const {
        N all = N(0);
        if (!wants_gradient() || !r.in_fast_range)
            return false;
        keep(scale);
#pragma unroll 1
        for (int i = 0; i < SmemStep::vectors; i++) {
            Vector<E> x = step.vector(i, 0), t = step.vector(i, 1);
            N own[W], of_target[W], g[W];
            x.unpack(own);
            t.unpack(of_target);
            all += terms(r, own, of_target, g);
            if (!(fabs(all) < Limits<N>::infinity()))
                return false;
#pragma unroll
            for (int j = 0; j < W; j++) /* Adding +0 changes -0 to +0. */
                g[j] = fma(g[j], scale, N(0));
            store(i, g);
        }
        sum += (double)all;
        return true;
    }

    /* The divergence of the row if it is known, otherwise the factor that makes it from the sum of work(). */
    __device__ __forceinline__ double factor_of(const Row &r) const {
        return (double)(r.known ? r.sum : inverse_of(r));
    }
    __device__ __forceinline__ void finish(int64_t row, double f, Totals &total) const {
        bool is_out = out(row);
        Base::finish(row, is_out ? 0.0 : f * this->weight(row), total);
    }

    /* The factor of all gradients. It is read once a row, so it is in shared memory. */
    DEVICE double &grad_scale() {
        __shared__ double of_block;
        return of_block;
    }
};

#endif
