/* Cross-entropy of logits against class indices, without options. With x a row of logits and y its target:
 *
 *   lse = log sum_c exp(x_c),   loss = lse - x_y,   dx_c = s (exp(x_c - lse) - [c = y])
 */
#ifndef GPULOSSI_PLAIN_CUH
#define GPULOSSI_PLAIN_CUH

#include "rows.cuh"
#include "softmax.cuh"
#include "targets.cuh"

template <class E> struct Plain {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_cross_entropy Params;
    typedef Total<1, 1> Totals;
    typedef Softmax<N> State;
    enum { kArrays = 1, kOnePass = false, W = Width<E>::value };

    struct Row {
        int64_t row;
        int64_t y;
        Target target;
        int vector, place; /* of the target */
        /* gradient = exp(x - top) * weight, and at y: (exp(x - top) * inverse - 1) * scale */
        N top, inverse, scale, weight;
    };

    struct Unfinished {
        int64_t row;
        N top, sum, x_y;
        Target target;
    };

    const Params &p;
    double grad_scale;

    __device__ __forceinline__ explicit Plain(const Params &p)
        : p(p), grad_scale(gradient_scale<N>(p.rows, (double)scratch()->counts[GPULOSSI_COUNT_ROWS])) {}

    __device__ __forceinline__ const typename E::Bits *array(int, int64_t row) const {
        return (const typename E::Bits *)p.logits + row * p.logits_stride;
    }
    __device__ __forceinline__ typename E::Bits *grad(int64_t row) const {
        return (typename E::Bits *)p.rows.grad + row * p.rows.grad_stride;
    }
    __device__ __forceinline__ gpulossi_scratch *scratch() const { return (gpulossi_scratch *)p.rows.scratch; }
    __device__ __forceinline__ N absent(int) const { return -Limits<N>::infinity(); }
    __device__ __forceinline__ bool reduces() const { return p.lse_in == 0; }
    __device__ __forceinline__ bool sums_apart() const { return false; }

    __device__ __forceinline__ Row begin(const Cut<E> &cut, int64_t row, bool whole) const {
        Row r;
        r.row = row;
        r.y = 0;
        r.target = kIgnored;
        r.vector = -1;
        r.place = 0;
        if (row < p.rows.rows && whole) {
            r.y = read_target(p, row);
            r.target = kind_of(p, r.y);
            if (r.target == kClass) {
                r.vector = cut.vector_of(r.y);
                r.place = cut.place_of(r.y);
            }
        }
        return r;
    }

    __device__ __forceinline__ N pick(const Row &r) const {
        return r.target == kClass ? E::widen(array(0, r.row)[r.y]) : N(0);
    }

    template <int K>
    __device__ __forceinline__ void pick(const Row &r, int at, int step, const Vector<E> (&x)[K][1], N *to) const {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (at + k * step == r.vector)
#pragma unroll
                for (int i = 0; i < W; i++)
                    if (i == r.place)
                        *to = x[k][0].get(i);
    }

    __device__ __forceinline__ Unfinished unfinished(const Row &r, const State &s, const N *x_y) const {
        Unfinished u = {r.row, r.top, s.sum, r.target == kClass ? *x_y : N(0), r.target};
        return u;
    }

    template <int K>
    __device__ __forceinline__ void enter(const Row &, State &s, const Cut<E> &, int, int, Vector<E> (&x)[K][1]) const {
        /* Some vectors at a time, to bound how many numbers are unpacked at once. */
        enum { many = 8 / W < K ? 8 / W : K };
#pragma unroll
        for (int first = 0; first < K; first += many) {
            N part[many * W];
            N top = s.top;
#pragma unroll
            for (int i = 0; i < many * W; i++)
                part[i] = x[first + i / W][0].get(i % W);
            top = larger(top, in_halves<Maximum>(part));
            s.raise(top);
            /* A NaN among masked classes must still enter the sum. */
            N from = top == -Limits<N>::infinity() ? N(0) : top;
#pragma unroll
            for (int i = 0; i < many * W; i++)
                part[i] = exp_below(x[first + i / W][0].get(i % W), from);
            s.sum += in_halves<Sum>(part);
        }
    }

    __device__ __forceinline__ void close(Row &r, const State &s) const {
        r.top = reduces() ? s.top : ((const N *)p.lse_in)[r.row];
        if (p.rows.grad == 0)
            return;
        r.inverse = reduces() ? reciprocal(s.sum) : N(1);
        r.scale = (N)grad_scale;
        if (p.rows.grad_loss_rows)
            r.scale = (N)(grad_scale * ((const N *)p.rows.grad_loss_rows)[r.row]);
        r.weight = r.inverse * r.scale;
    }

    __device__ __forceinline__ void finish(const Unfinished &u, Totals &total) const {
        N log_sum = reduces() ? natural_log(u.sum) : N(0);
        N loss = u.target == kClass ? log_sum + (u.top - u.x_y) : u.target == kIgnored ? N(0) : Limits<N>::nan();
        if (p.lse)
            ((N *)p.lse)[u.row] = u.top + log_sum;
        if (p.rows.loss_rows)
            ((N *)p.rows.loss_rows)[u.row] = loss;
        if (u.target == kBad && p.bad_targets)
            atomicAdd((unsigned long long *)&scratch()->bad_targets, 1ull);
        if (p.rows.loss)
            total.sums[GPULOSSI_SUM_LOSS].add((double)loss, scratch()->digits[GPULOSSI_SUM_LOSS]);
        if ((p.rows.flags & GPULOSSI_DATA_DIVISOR) && !(p.rows.flags & GPULOSSI_PREPARED))
            total.counts[GPULOSSI_COUNT_ROWS] += u.target != kIgnored;
    }

    __device__ __forceinline__ bool writes() const {
        return p.rows.grad != 0;
    }
    __device__ __forceinline__ void write(const Cut<E> &cut, const Row &r, int v, const Vector<E> (&x)[1]) const {
        N g[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            g[i] = r.target == kClass ? exp_below(x[0].get(i), r.top) * r.weight : N(0);
        if (v == r.vector)
#pragma unroll
            for (int i = 0; i < W; i++)
                if (i == r.place)
                    g[i] = (exp_below(x[0].get(i), r.top) * r.inverse - N(1)) * r.scale;
        store<E, E>(cut, grad(r.row), v, g);
    }

    __device__ __forceinline__ bool wants(int) const {
        return p.rows.loss != 0;
    }
    __device__ __forceinline__ bool concludes() const {
        return p.rows.loss || p.bad_targets || (p.rows.flags & GPULOSSI_PREPARED);
    }
    __device__ __forceinline__ void conclude(const double *sums) const {
        double rows = (double)take(&scratch()->counts[GPULOSSI_COUNT_ROWS]);
        if (p.rows.loss)
            *(N *)p.rows.loss =
                (N)(sums[GPULOSSI_SUM_LOSS] / (p.rows.flags & GPULOSSI_DATA_DIVISOR ? rows : divisor_of<N>(p.rows)));
        if (p.bad_targets)
            *(int64_t *)p.bad_targets = take(&scratch()->bad_targets);
    }
};

#endif
