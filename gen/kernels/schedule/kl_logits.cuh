/* Forward KL of two arrays of logits of one type, and the student's gradient: what distillation does. With T the
 * temperature, and d = (t - x) / T less the difference of the two lse:
 *
 *   f = p d                                                gradient = (q - p) / T
 *
 * The first pass finds both softmaxes, and the mean of (t - x) / T under p, which less the difference of the two lse is
 * the sum of f. Where that is far enough from 0 to have its digits, the second pass, which finds most of the row in the
 * cache, only writes the gradient; else it also sums p d - p + q, of which nothing is negative (see divergence.cuh). */
#ifndef GPULOSSI_KL_LOGITS_CUH
#define GPULOSSI_KL_LOGITS_CUH

#include "../loss/divergence_terms.cuh"
#include "../loss/row_mask.cuh"
#include "row_pipeline2.cuh"
#include "row_generic.cuh"
#include "../device/online_softmax.cuh"

/* K pairs of vectors at a time; kLossOnly: for calls that want no gradient. */
template <class E, int K, bool kLossOnly = false> struct Distil : Masked<typename E::Number, gpulossi_kl_div> {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_kl_div Params;
    typedef Masked<N, Params> Base;
    typedef typename Base::Totals Totals;
    typedef Schedule<Distil> OfRows;
    typedef typename Base::Divergence Divergence;
    using Base::p;
    enum { W = Width<E>::value, n = K * W, kAtOnce = W < 8 ? 1 : 2 /* vectors of each side, in a straight line */ };
    enum { kArrays = 2, kKept = kArrays, kSums = 0 };
    enum { kPlaces = GPULOSSI_SLOTS / (kArrays * GPULOSSI_VECTORS_STREAMED) }; /* of a ring */

    /* The softmaxes of both sides, and the sum of one side's exponentials times its logits less the other's. */
    template <class Weighing> struct StateOf : Weighing {
        Softmax<N> side[2]; /* input, target */
        N apart, scale;
        __device__ __forceinline__ void raise(int a, N higher) {
            Softmax<N> &s = side[a];
            if (higher != s.top) {
                N down = exp_below(scale * s.top, scale * higher);
                s.sum *= down;
                if (this->weighing == a)
                    apart *= down;
            }
            s.top = higher;
        }
        template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
            N tops[2] = {largest_over(lanes, side[0].top), largest_over(lanes, side[1].top)};
#pragma unroll
            for (int a = 0; a < 2; a++) {
                N below = exp_below(scale * side[a].top, scale * tops[a]), down = tops[a] == side[a].top ? N(1) : below;
                side[a].top = tops[a];
                side[a].sum *= down;
                if (this->weighing == a)
                    apart *= down;
            }
            N sums[3] = {side[0].sum, side[1].sum, apart};
            lanes.template over_all<Sum>(sums);
            side[0].sum = sums[0];
            side[1].sum = sums[1];
            apart = sums[2];
        }
    };
    struct OfTarget {
        enum { weighing = 1 };
    };
    typedef StateOf<OfTarget> State;
    /* With e the exponentials below the tops, q = e_input * inverse and p = e_target * ratio * inverse. `sum` is that of
     * f, if it is known. */
    struct Row {
        int64_t row;
        N input_top, target_top, ratio, inverse, apart, scale, sum;
        bool near, known;
    };

    N inverse_temperature;

    /* All threads of the block call. */
    __device__ __forceinline__ explicit Distil(const Params &p)
        : Base(p), inverse_temperature((N)p.inverse_temperature) {
        if (kLossOnly)
            return;
        if (threadIdx.x == 0)
            grad_scale() = this->scale_of_all() * p.inverse_temperature * p.factor;
        __syncthreads();
    }

    __device__ __forceinline__ const typename E::Bits *array(int a, int64_t row) const {
        return (const typename E::Bits *)(a == 0 ? p.input : p.target) +
               row * (a == 0 ? p.input_stride : p.target_stride);
    }
    __device__ __forceinline__ N absent(int) const {
        return -Limits<N>::infinity();
    }

    template <class State> __device__ __forceinline__ void clear(State &s) const {
        s.side[0] = s.side[1] = Softmax<N>::empty();
        s.apart = N(0);
        s.scale = inverse_temperature;
    }
    __device__ __forceinline__ State empty() const {
        State s;
        clear(s);
        return s;
    }
    /* Whether the row takes a second pass. */
    __device__ __forceinline__ bool writes(const Row &r) const {
        return wants_gradient() || !r.known;
    }
    __device__ __forceinline__ bool wants_gradient() const {
        return !kLossOnly && p.rows.grad != 0;
    }

    __device__ __forceinline__ Row begin(const Cut<E> &, int64_t row, bool) const {
        Row r;
        r.row = row;
        return r;
    }

    __device__ __forceinline__ bool out(int64_t row) const {
        return row >= p.rows.rows || this->left_out(row);
    }

    /* Both sides, of which `a` weighs the differences. */
    template <int a, class State>
    __device__ __forceinline__ void enter_both(State &s, const Vector<E> (&x)[K][2]) const {
        N own[n], other[n];
#pragma unroll
        for (int i = 0; i < n; i++) {
            own[i] = x[i / W][a].get(i % W);
            other[i] = x[i / W][1 - a].get(i % W);
        }
        s.raise(a, larger(s.side[a].top, largest(x, a)));
        s.raise(1 - a, larger(s.side[1 - a].top, largest(x, 1 - a)));
        N from = Softmax<N>::finite(s.side[a].top), from_other = Softmax<N>::finite(s.side[1 - a].top);
        if (!(ScaledExp<N>::in_fast_range(inverse_temperature * from) &&
              ScaledExp<N>::in_fast_range(inverse_temperature * from_other))) {
            s.side[a].add(own, inverse_temperature);
            s.side[1 - a].add(other, inverse_temperature);
            s.apart = Limits<N>::nan();
            return;
        }
        ScaledExp<N> below(from, inverse_temperature), below_other(from_other, inverse_temperature);
        N e[n], part[4] = {N(0), N(0), N(0), N(0)};
#pragma unroll
        for (int i = 0; i < n; i++)
            e[i] = below_other.exp(other[i]);
        s.side[1 - a].sum = fma(in_halves<Sum>(e), below_other.factor, s.side[1 - a].sum);
#pragma unroll
        for (int i = 0; i < n; i++) {
            e[i] = below.exp(own[i]);
            other[i] = own[i] - other[i];
            part[i % 4] = fma(e[i], other[i], part[i % 4]);
        }
        N all = in_halves<Sum>(part);
        if (!(fabs(all) < Limits<N>::infinity())) { /* what has no mass adds nothing, whatever the difference is */
            all = N(0);
#pragma unroll
            for (int i = 0; i < n; i++)
                all += e[i] == 0 ? N(0) : e[i] * other[i];
        }
        s.side[a].sum = fma(in_halves<Sum>(e), below.factor, s.side[a].sum);
        s.apart = fma(all, below.factor, s.apart);
    }
    __device__ __forceinline__ void enter(const Row &, State &s, const Cut<E> &, int, int,
                                          const Vector<E> (&x)[K][2]) const {
        enter_both<1>(s, x);
    }

    /* All that a thread holds at a time, of both arrays; side `weighing` weighs the differences, or -1 for neither. False
     * where it takes more care; nothing but the tops has changed then. */
    template <int weighing, int at_once, class State, class Held>
    __device__ __forceinline__ bool enter_all(State &s, const Held &held) const {
        N tops[2];
#pragma unroll
        for (int a = 0; a < 2; a++) {
            Vector<E> x[Held::vectors][1];
#pragma unroll
            for (int i = 0; i < Held::vectors; i++)
                x[i][0] = held.vector(i, a);
            tops[a] = largest(x, 0);
        }
#pragma unroll
        for (int a = 0; a < 2; a++)
            s.raise(a, larger(s.side[a].top, tops[a]));
        N from_input = Softmax<N>::finite(s.side[0].top), from_target = Softmax<N>::finite(s.side[1].top);
        if (!(ScaledExp<N>::in_fast_range(inverse_temperature * from_input) &&
              ScaledExp<N>::in_fast_range(inverse_temperature * from_target)))
            return false;
        ScaledExp<N> input(from_input, inverse_temperature), target(from_target, inverse_temperature);
        N sums[2] = {N(0), N(0)}, apart[4] = {N(0), N(0), N(0), N(0)};
#pragma unroll at_once
        for (int i = 0; i < Held::vectors; i++) {
            Vector<E> x = held.vector(i, 0), t = held.vector(i, 1);
            N e[2][W];
#pragma unroll
            for (int j = 0; j < W; j++) {
                e[0][j] = input.exp(x.get(j));
                e[1][j] = target.exp(t.get(j));
                if (weighing >= 0)
                    apart[j % 4] = fma(e[weighing == 1][j], weighing == 1 ? t.get(j) - x.get(j) : x.get(j) - t.get(j),
                                       apart[j % 4]);
            }
            sums[0] += in_halves<Sum>(e[0]);
            sums[1] += in_halves<Sum>(e[1]);
        }
        N all = in_halves<Sum>(apart);
        if (!(fabs(all) < Limits<N>::infinity()))
            return false;
        s.side[0].sum = fma(sums[0], input.factor, s.side[0].sum);
        s.side[1].sum = fma(sums[1], target.factor, s.side[1].sum);
        s.apart = fma(all, weighing == 1 ? target.factor : input.factor, s.apart);
        return true;
    }
    template <class State, class Held> __device__ __forceinline__ bool enter_held(State &s, const Held &held) const {
        return enter_all<1, kAtOnce>(s, held);
    }
    DEVICE bool spoiled(const Row &) {
        return false;
    }

    /* The mean of the differences, with what is taken from it, has an error of up to 7u times 1 + |apart|: 3u from the
     * exponentials, 4u from the logarithm of the ratio of the sums. They seldom add up: where the sum is a sixteenth of
     * 2 + |apart|, of 10^6 rows of 3 classes none was off by more than 0.8 of what the sum of p d - p + q may be, whose
     * terms have some 30u each, most of it from p. A row that has such a sum holds nothing but numbers, and -inf where
     * neither side has mass. */
    template <class State> __device__ __forceinline__ void close(Row &r, const State &s) const {
        close_sums<Rounded<N>>(r, s);
        if (wants_gradient()) {
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
    }
    template <class Divides, class State> __device__ __forceinline__ void close_sums(Row &r, const State &s) const {
        Softmax<N> x = s.side[0], t = s.side[1];
        r.near = ScaledExp<N>::in_fast_range(inverse_temperature * x.top) &&
                 ScaledExp<N>::in_fast_range(inverse_temperature * t.top);
        r.input_top = x.top;
        r.target_top = t.top;
        r.inverse = Divides::inverse(x.sum);
        r.ratio = Divides::divide(x.sum, t.sum);
        r.apart =
            x.sum > 0 && t.sum > 0 ? (t.top - x.top) * inverse_temperature + log_ratio(t.sum, x.sum) : Limits<N>::nan();
        N mean = Divides::divide(s.apart, s.weighing == 0 ? x.sum : t.sum);
        r.sum = fma(mean, inverse_temperature, s.weighing == 0 ? r.apart : -r.apart);
        r.known = s.weighing >= 0 && r.near && r.sum * N(16) > N(2) + fabs(r.apart) && r.sum < Limits<N>::infinity();
        if (r.near) { /* both factors are next to 1 */
            N of_input = ScaledExp<N>(x.top, inverse_temperature).factor;
            N of_target = ScaledExp<N>(t.top, inverse_temperature).factor;
            r.inverse *= of_input;
            r.ratio *= fma(of_target - of_input, N(2) - of_input, N(1));
        }
    }

    template <int m> __device__ __forceinline__ void exponentials(const N (&x)[m], N top, bool near, N (&y)[m]) const {
        if (near) {
            ScaledExp<N> below(top, inverse_temperature);
#pragma unroll
            for (int i = 0; i < m; i++)
                y[i] = below.exp(x[i]);
        } else {
#pragma unroll
            for (int i = 0; i < m; i++)
                y[i] = exp_below(x[i] * inverse_temperature, top * inverse_temperature);
        }
    }
    /* Of side `a` of any number of pairs of vectors. */
    template <int k, int m>
    __device__ __forceinline__ void exponentials(const Vector<E> (&x)[k][2], int a, N top, bool near, N (&y)[m]) const {
        N logits[m];
#pragma unroll
        for (int i = 0; i < m; i++)
            logits[i] = x[i / W][a].get(i % W);
        exponentials(logits, top, near, y);
    }
    /* Of logits of a row whose sum is known: the gradients, but for a factor that they have in common. */
    template <int m>
    __device__ __forceinline__ void slopes(const Row &r, const N (&x)[m], const N (&t)[m], N (&q)[m]) const {
        N p[m];
        exponentials(x, r.input_top, true, q);
        exponentials(t, r.target_top, true, p);
#pragma unroll
        for (int i = 0; i < m; i++)
            q[i] = fma(-r.ratio, p[i], q[i]);
    }
    /* The same of any row; and the sum of the terms, but for a factor. */
    template <int m>
    __device__ __forceinline__ N terms(const Row &r, const N (&x)[m], const N (&t)[m], N (&q)[m]) const {
        N p[m], d[m], f[m], most = N(0);
        exponentials(x, r.input_top, r.near, q);
        exponentials(t, r.target_top, r.near, p);
#pragma unroll
        for (int i = 0; i < m; i++) {
            d[i] = fma(t[i] - x[i], inverse_temperature, -r.apart);
            /* Where t = 0 it may be -inf or NaN, and any number will do. */
            d[i] = larger(d[i], N(-1e30));
            most = larger(most, fabs(d[i]));
            p[i] *= r.ratio;
            q[i] = difference(q[i], p[i]);
        }
#pragma unroll
        for (int i = 0; i < m; i++)
            f[i] = p[i] * excess(d[i]);
        if (!(most < 1))
#pragma unroll
            for (int i = 0; i < m; i++) {
                N far = fma(p[i], d[i], q[i]);
                f[i] = fabs(d[i]) < 1 ? f[i] : far;
            }
        return in_halves<Sum>(f);
    }

    /* Where vector `at` of a row's gradient goes. */
    __device__ __forceinline__ char *gradient_at(const Cut<E> &cut, const Row &r, int at) const {
        typename E::Bits *to = (typename E::Bits *)p.rows.grad + r.row * p.rows.grad_stride;
        return (char *)(to - cut.head) + (int64_t)at * GPULOSSI_VECTOR_BYTES;
    }
    /* Of whole vectors or any, however many, and of numbers, unless it is said that there may be others. Of a row that is
     * left out it is 0 then, whatever the row holds. */
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

    /* The gradients of K pairs of vectors of a row whose sum is known, and else their terms too. */
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
        N scale = r.inverse * r.scale;
#pragma unroll
        for (int i = 0; i < n; i++) /* adding 0 turns -0 into 0 */
            q[i] = fma(q[i], scale, N(0));
        store_gradient(cut, r, at, step, whole, q, r.known);
    }

    /* The same of all that a thread holds at a time, which are whole vectors. False where it takes more than that. */
    template <class Held>
    __device__ __forceinline__ bool work_held(const Cut<E> &cut, const Row &r, int at, const Held &held) const {
        if (kLossOnly || !r.known || !cut.fits((typename E::Bits *)p.rows.grad + r.row * p.rows.grad_stride))
            return false;
        char *first = gradient_at(cut, r, at);
        ScaledExp<N> input(r.input_top, inverse_temperature), target(r.target_top, inverse_temperature);
        N scale = r.inverse * r.scale;
#pragma unroll 2
        for (int i = 0; i < Held::vectors; i++) {
            Vector<E> x = held.vector(i, 0), t = held.vector(i, 1);
            N g[W];
#pragma unroll
            for (int j = 0; j < W; j++) /* adding 0 turns -0 into 0 */
                g[j] = fma(fma(-r.ratio, target.exp(t.get(j)), input.exp(x.get(j))), scale, N(0));
            store_whole<E, E>((typename E::Bits *)(first + Held::step * (i * GPULOSSI_VECTOR_BYTES)), g, true);
        }
        return true;
    }

    /* The divergence, or, where it is not known, what makes it of the sum of what work() has given. */
    __device__ __forceinline__ double factor_of(const Row &r) const {
        return (double)(r.known ? r.sum : r.inverse);
    }
    __device__ __forceinline__ void finish(int64_t row, double f, Totals &total) const {
        bool is_out = out(row);
        Base::finish(row, is_out, is_out ? 0.0 : f * this->weight(row), total);
    }

    DEVICE void run(const Params &p) {
        __shared__ Totals totals[GPULOSSI_BLOCK];
        Distil distil(p);
        typename OfRows::Rows rows(p);
        Group &group = rows.group;
        int stride = K * group.size;
        totals[threadIdx.x] = Totals::zero();
#pragma unroll 1
        while (rows.queue.more()) {
            int64_t row = rows.row();
            bool live = rows.live(row);
            Cut<E> cut = rows.cut(distil, row);
            typename OfRows::Arrays arrays(distil, cut, row);
            Row r = distil.begin(cut, row, true);
            State state = distil.empty();
            Divergence sum = {0.0};
            Vector<E> x[K][2];
            rows.queue.announce();
#pragma unroll 1
            for (int at = group.rank; at < cut.vectors; at += stride) {
                OfRows::template load<K, kRead_again>(distil, cut, arrays, at, group.size, x);
                distil.enter(r, state, cut, at, group.size, x);
            }
            group.reduce(state, rows.queue.turn);
            distil.close(r, state);
            /* From the end: what was read last is still in the cache. */
            if (cut.vectors > group.rank && distil.writes(r))
#pragma unroll 1
                for (int at = group.rank + (cut.vectors - 1 - group.rank) / stride * stride; at >= 0; at -= stride) {
                    OfRows::template load<K, kRead_once>(distil, cut, arrays, at, group.size, x);
                    bool whole = cut.whole(at) && cut.whole(at + (K - 1) * group.size);
                    distil.work(cut, r, at, group.size, x, whole, sum.f);
                }
            group.reduce(sum, rows.queue.turn);
            if (live && group.rank == 0)
                distil.finish(row, (r.known ? 1.0 : sum.f) * distil.factor_of(r), totals[threadIdx.x]);
            rows.queue.advance();
        }
        end(distil, distil.scratch(), totals);
    }

    /* Of all gradients. Read once a row, so it takes no registers. */
    DEVICE double &grad_scale() {
        __shared__ double of_block;
        return of_block;
    }
};

#endif
