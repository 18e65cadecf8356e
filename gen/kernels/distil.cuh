/* Forward KL of two arrays of logits of one type, and the student's gradient: what distillation does. The first pass
 * finds both softmaxes, the second, which finds most of the row in the cache, gives terms and gradient. With T the
 * temperature, and d = (t - x) / T less the difference of the two lse:
 *
 *   f = p d, summed as p d - p + q (see divergence.cuh)      gradient = (q - p) / T */
#ifndef GPULOSSI_DISTIL_CUH
#define GPULOSSI_DISTIL_CUH

#include "divergence.cuh"
#include "masked.cuh"
#include "rows.cuh"
#include "softmax.cuh"

template <class E> struct Distil : Masked<typename E::Number, gpulossi_kl_div> {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_kl_div Params;
    typedef Masked<N, Params> Base;
    typedef typename Base::Totals Totals;
    typedef Schedule<Distil> OfRows;
    typedef typename Base::Divergence Divergence;
    using Base::p;
    enum { kArrays = 2, W = Width<E>::value, K = W < 8 ? GPULOSSI_PAIRS_STREAMED : 1, n = K * W };

    struct Sides {
        Softmax<N> input, target;
        template <class Lanes> __device__ __forceinline__ void fold(Lanes lanes) {
            input.fold(lanes);
            target.fold(lanes);
        }
    };
    struct Row {
        int64_t row;
        bool out;
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

    __device__ __forceinline__ void enter(Softmax<N> &side, int a, const Vector<E> (&x)[K][2]) const {
        N part[n];
#pragma unroll
        for (int i = 0; i < n; i++)
            part[i] = x[i / W][a].get(i % W) * inverse_temperature;
        side.enter(part);
    }

    __device__ __forceinline__ Row begin(int64_t row, bool live, const Sides &s) const {
        Row r = {row, !live || this->left_out(row)};
        r.input_top = s.input.top;
        r.input_inverse = reciprocal(s.input.sum);
        r.target_top = s.target.top;
        r.target_inverse = reciprocal(s.target.sum);
        r.apart = (s.target.top - s.input.top) + (natural_log(s.target.sum) - natural_log(s.input.sum));
        r.scale = r.out ? N(0) : (N)(this->scale(row, this->scale_of_all()) * p.inverse_temperature);
        return r;
    }

    /* The terms and gradients of K pairs of vectors. */
    __device__ __forceinline__ void work(const Cut<E> &cut, const Row &r, int at, int step, const Vector<E> (&x)[K][2],
                                         Divergence &sum) const {
        N g[n], f[n];
#pragma unroll
        for (int i = 0; i < n; i++) {
            N of_x = x[i / W][0].get(i % W), of_t = x[i / W][1].get(i % W);
            N q = exp_below(of_x * inverse_temperature, r.input_top) * r.input_inverse;
            N t = exp_below(of_t * inverse_temperature, r.target_top) * r.target_inverse;
            f[i] = Pair<N>::surplus(t, q, (of_t - of_x) * inverse_temperature - r.apart);
            g[i] = r.out ? N(0) : (q - t) * r.scale;
        }
        sum.f += (double)in_halves<Sum>(f);
        if (p.rows.grad)
#pragma unroll
            for (int k = 0; k < K; k++)
                if (at + k * step < cut.vectors)
                    store<E, E>(cut, (typename E::Bits *)p.rows.grad + r.row * p.rows.grad_stride, at + k * step,
                                g + k * W);
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
            Sides sides = {Softmax<N>::empty(), Softmax<N>::empty()};
            Divergence sum = {0.0};
            Vector<E> x[K][2];
            rows.queue.announce();
#pragma unroll 1
            for (int at = group.rank; at < cut.vectors; at += stride) {
                OfRows::template load<K, kRead_again>(distil, cut, arrays, at, group.size, x);
                distil.enter(sides.input, 0, x);
                distil.enter(sides.target, 1, x);
            }
            group.fold(sides, rows.queue.turn);
            Row r = distil.begin(row, live, sides);
            /* From the end: what was read last is still in the cache. */
            if (cut.vectors > group.rank)
#pragma unroll 1
                for (int at = group.rank + (cut.vectors - 1 - group.rank) / stride * stride; at >= 0; at -= stride) {
                    OfRows::template load<K, kRead_once>(distil, cut, arrays, at, group.size, x);
                    distil.work(cut, r, at, group.size, x, sum);
                }
            group.fold(sum, rows.queue.turn);
            if (live && group.rank == 0)
                distil.finish(row, r.out, r.out ? 0.0 : sum.f * distil.weight(row), totals[threadIdx.x]);
            rows.queue.advance();
        }
        end(distil, distil.scratch(), totals[threadIdx.x]);
    }
};

#endif
