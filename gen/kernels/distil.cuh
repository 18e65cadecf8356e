/* Forward KL of two arrays of logits of one type, and the student's gradient: what distillation does. The first pass
 * finds both softmaxes, the second, which finds most of the row in the cache, gives terms and gradient. With T the
 * temperature, and d = (t - x) / T less the difference of the two lse:
 *
 *   f = p d, summed as p d - p + q (see divergence.cuh)      gradient = (q - p) / T */
#ifndef GPULOSSI_DISTIL_CUH
#define GPULOSSI_DISTIL_CUH

#include "cluster.cuh"
#include "divergence.cuh"
#include "masked.cuh"
#include "rows.cuh"
#include "softmax.cuh"

/* K pairs of vectors at a time. */
template <class E, int K> struct Distil : Masked<typename E::Number, gpulossi_kl_div> {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_kl_div Params;
    typedef Masked<N, Params> Base;
    typedef typename Base::Totals Totals;
    typedef Schedule<Distil> OfRows;
    typedef typename Base::Divergence Divergence;
    using Base::p;
    enum { kArrays = 2, kSums = kSumsLast, W = Width<E>::value, n = K * W };

    /* The softmaxes of both sides. */
    struct State {
        Softmax<N> input, target;
        N scale;
        template <class Lanes> __device__ __forceinline__ void fold(Lanes lanes) {
            input.fold(lanes, scale);
            target.fold(lanes, scale);
        }
    };
    struct Row {
        int64_t row;
        N input_top, input_inverse, target_top, target_inverse, apart, scale;
    };

    N inverse_temperature;

    __device__ __forceinline__ explicit Distil(const Params &p)
        : Base(p), inverse_temperature((N)p.inverse_temperature) {}

    __device__ __forceinline__ const typename E::Bits *array(int a, int64_t row) const {
        return (const typename E::Bits *)(a == 0 ? p.input : p.target) +
               row * (a == 0 ? p.input_stride : p.target_stride);
    }
    __device__ __forceinline__ N absent(int) const { return -Limits<N>::infinity(); }

    __device__ __forceinline__ State empty() const {
        State s = {Softmax<N>::empty(), Softmax<N>::empty(), inverse_temperature};
        return s;
    }
    __device__ __forceinline__ bool writes() const { return true; }

    __device__ __forceinline__ Row begin(const Cut<E> &, int64_t row, bool) const {
        Row r;
        r.row = row;
        return r;
    }

    __device__ __forceinline__ bool out(const Row &r) const { return r.row >= p.rows.rows || this->left_out(r.row); }

    __device__ __forceinline__ void enter(Softmax<N> &side, int a, const Vector<E> (&x)[K][2]) const {
        N part[n];
#pragma unroll
        for (int i = 0; i < n; i++)
            part[i] = x[i / W][a].get(i % W);
        side.enter(part, inverse_temperature);
    }
    __device__ __forceinline__ void enter(const Row &, State &s, const Cut<E> &, int, int,
                                          const Vector<E> (&x)[K][2]) const {
        enter(s.input, 0, x);
        enter(s.target, 1, x);
    }

    __device__ __forceinline__ void close(Row &r, const State &s) const {
        r.input_top = s.input.top;
        r.input_inverse = reciprocal(s.input.sum);
        r.target_top = s.target.top;
        r.target_inverse = reciprocal(s.target.sum);
        r.apart =
            (s.target.top - s.input.top) * inverse_temperature + (natural_log(s.target.sum) - natural_log(s.input.sum));
        r.scale = out(r) ? N(0) : (N)(this->scale(r.row, this->scale_of_all()) * p.inverse_temperature);
    }

    __device__ __forceinline__ void probabilities(const Vector<E> (&x)[K][2], int a, N top, N inverse,
                                                  N (&y)[n]) const {
        Below<N> below(top, inverse_temperature);
        if (Below<N>::near(inverse_temperature * top)) {
            inverse *= below.factor;
#pragma unroll
            for (int i = 0; i < n; i++)
                y[i] = below.exp(x[i / W][a].get(i % W)) * inverse;
        } else {
#pragma unroll
            for (int i = 0; i < n; i++)
                y[i] = exp_below(x[i / W][a].get(i % W) * inverse_temperature, top * inverse_temperature) * inverse;
        }
    }

    /* Of a row that is left out it is 0, whatever the row holds. */
    __device__ __forceinline__ void store_gradient(const Cut<E> &cut, const Row &r, int at, int step, N (&g)[n]) const {
        typename E::Bits *to = (typename E::Bits *)p.rows.grad + r.row * p.rows.grad_stride;
        bool finite = (E::kKeepsNan && r.scale != 0) || in_halves<Sum>(g) == in_halves<Sum>(g);
        if (!finite && out(r))
#pragma unroll
            for (int i = 0; i < n; i++)
                g[i] = N(0);
#pragma unroll
        for (int k = 0; k < K; k++)
            if (finite && cut.whole(at + k * step) && cut.fits(to))
                store_whole<E, E>(to + cut.first(at + k * step), g + k * W, true);
            else if (at + k * step < cut.vectors)
                store<E, E>(cut, to, at + k * step, g + k * W);
    }

    /* The terms and gradients of K pairs of vectors. */
    __device__ __forceinline__ void work(const Cut<E> &cut, const Row &r, int at, int step, const Vector<E> (&x)[K][2],
                                         double &sum) const {
        N q[n], t[n], f[n];
        probabilities(x, 0, r.input_top, r.input_inverse, q);
        probabilities(x, 1, r.target_top, r.target_inverse, t);
#pragma unroll
        for (int i = 0; i < n; i++) {
            N apart = x[i / W][1].get(i % W) - x[i / W][0].get(i % W);
            /* Where t = 0 it may be -inf or NaN, and any number will do. */
            f[i] = Pair<N>::surplus_of(t[i], q[i], larger(fma(apart, inverse_temperature, -r.apart), N(-1e30)));
        }
        N more = in_halves<Sum>(f);
        sum += (double)more;
        if (p.rows.grad == 0)
            return;
#pragma unroll
        for (int i = 0; i < n; i++) /* adding 0 turns -0 into 0 */
            q[i] = fma(q[i] - t[i], r.scale, N(0));
        store_gradient(cut, r, at, step, q);
    }

    __device__ __forceinline__ void finish(const Row &r, const Divergence &sum, Totals &total) const {
        bool is_out = out(r);
        Base::finish(r.row, is_out, is_out ? 0.0 : sum.f * this->weight(r.row), total);
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
            group.fold(state, rows.queue.turn);
            distil.close(r, state);
            /* From the end: what was read last is still in the cache. */
            if (cut.vectors > group.rank)
#pragma unroll 1
                for (int at = group.rank + (cut.vectors - 1 - group.rank) / stride * stride; at >= 0; at -= stride) {
                    OfRows::template load<K, kRead_once>(distil, cut, arrays, at, group.size, x);
                    distil.work(cut, r, at, group.size, x, sum.f);
                }
            group.fold(sum, rows.queue.turn);
            if (live && group.rank == 0)
                distil.finish(r, sum, totals[threadIdx.x]);
            rows.queue.advance();
        }
        end(distil, distil.scratch(), totals[threadIdx.x]);
    }
};

#endif
