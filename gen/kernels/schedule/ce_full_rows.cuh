/* Cross-entropy with every option for the row schedules. */
#ifndef GPULOSSI_CE_FULL_ROWS_CUH
#define GPULOSSI_CE_FULL_ROWS_CUH

#include "ce_full.cuh"

template <class E, Caller kCaller> struct Options {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_cross_entropy Params;
    typedef Terms<N, N, kCaller> OfRows;
    typedef typename OfRows::Totals Totals;
    typedef typename OfRows::State State;
    enum { kArrays = 1, kOnePass = false, W = Width<E>::value, kSoft = kCaller == kProbabilities };

    struct Row {
        typename OfRows::Row of;
    };
    struct Unfinished {
        typename OfRows::Row of;
        State state;
        N x_y;
    };

    const Params &p;
    OfRows terms;

    __device__ __forceinline__ explicit Options(const Params &p) : p(p), terms(p) {}

    __device__ __forceinline__ const typename E::Bits *array(int, int64_t row) const {
        return (const typename E::Bits *)p.logits + row * p.logits_stride;
    }
    __device__ __forceinline__ N absent(int) const { return -Limits<N>::infinity(); }
    __device__ __forceinline__ bool reduces() const { return terms.reduces(); }
    __device__ __forceinline__ bool sums_by_thread() const { return false; }
    __device__ __forceinline__ bool writes() const { return terms.writes(); }

    __device__ __forceinline__ Row begin(const Cut<E> &, int64_t row, bool whole) const {
        Row r;
        r.of.row = row;
        r.of.y = -1;
        r.of.target = kIgnored;
        r.of.hard = N(0);
        if (row < p.rows.rows && whole)
            r.of = terms.row(row);
        return r;
    }
    __device__ __forceinline__ N pick(const Cut<E> &, const Row &r) const {
        return kSoft || r.of.y < 0 ? N(0) : terms.transformed(E::widen(array(0, r.of.row)[r.of.y]));
    }

    /* The soft targets of vector v, or with kWeights only the weights of its classes. */
    template <bool kWeights>
    __device__ __forceinline__ void soft_targets(const Cut<E> &cut, int64_t row, int v, N (&a)[W]) const {
        if (cut.whole(v) && fit<kWeights>(cut, row, v))
            whole_soft_targets<kWeights>(cut, row, v, a);
        else
            some_soft_targets<kWeights>(cut, row, v, a);
    }
    __device__ __forceinline__ Typed weights() const {
        return Typed(p.class_weights, sizeof(N) == 8 ? GPULOSS_F64 : GPULOSS_F32);
    }
    __device__ __forceinline__ Typed probabilities() const { return Typed(p.probabilities, p.target_dtype); }
    /* Whether the inputs of a whole vector's soft targets are aligned for vector accesses. */
    template <bool kWeights> __device__ __forceinline__ bool fit(const Cut<E> &cut, int64_t row, int v) const {
        return (p.class_weights == 0 || weights().template fits<W>(p.class_offset + cut.first(v))) &&
               (!kSoft || kWeights || probabilities().template fits<W>(row * p.probabilities_stride + cut.first(v)));
    }
    template <bool kWeights>
    __device__ __forceinline__ void whole_soft_targets(const Cut<E> &cut, int64_t row, int v, N (&a)[W]) const {
        int64_t first = cut.first(v);
        N w[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            w[i] = N(1), a[i] = N(0);
        if (p.class_weights)
            weights().read_few(p.class_offset + first, w);
        if (kSoft && !kWeights)
            probabilities().read_few(row * p.probabilities_stride + first, a);
#pragma unroll
        for (int i = 0; i < W; i++)
            a[i] = kWeights ? w[i] : w[i] * terms.template soft_target<kSoft>(a[i]);
    }
    /* The soft targets of any vector, class by class. They are 0 outside of the row. */
    template <bool kWeights>
    __device__ __forceinline__ void some_soft_targets(const Cut<E> &cut, int64_t row, int v, N (&a)[W]) const {
#pragma unroll
        for (int i = 0; i < W; i++)
            a[i] = N(0);
#pragma unroll 1
        for (int i = 0; i < W; i++) {
            int64_t c = cut.first(v) + i;
            N soft_target = N(0), t = N(0);
            if (cut.inside(c)) {
                soft_target = p.class_weights ? weights().template read<N>(p.class_offset + c) : N(1);
                if (kSoft && !kWeights)
                    t = probabilities().template read<N>(row * p.probabilities_stride + c);
                if (!kWeights)
                    soft_target *= terms.template soft_target<kSoft>(t);
            }
            shift_in(a, soft_target);
        }
    }

    __device__ __forceinline__ void transformed(const Vector<E> &logits, N (&x)[W]) const {
#pragma unroll
        for (int i = 0; i < W; i++)
            x[i] = logits.get(i);
        terms.transform(x);
    }
    __device__ __forceinline__ void enter_vector(State &s, const Cut<E> &cut, int v, const N (&x)[W],
                                                 const N (&a)[W]) const {
        s.template enter<W>(x, a, terms.has_soft_targets(), terms.finds_best(), cut.first(v), 0);
    }
    /* Vectors that are whole, aligned and without a softcap are added in straight-line code. A loop adds the others. */
    template <int K>
    __device__ __forceinline__ void enter(const Row &r, State &s, const Cut<E> &cut, int at, int step,
                                          Vector<E> (&x)[K][1]) const {
        if (cut.whole(at) && cut.whole(at + (K - 1) * step) && p.softcap == 0 &&
            (!terms.has_soft_targets() || fit<false>(cut, r.of.row, at))) {
            enum { at_once = sizeof(N) == 8 ? 4 : 16, many = at_once / W < K ? at_once / W : K };
#pragma unroll
            for (int first = 0; first < K; first += many) {
                N part[many * W], a[many * W];
#pragma unroll
                for (int i = 0; i < many * W; i++) {
                    part[i] = x[first + i / W][0].get(i % W) * terms.of_block.scale;
                    a[i] = N(0);
                }
                if (terms.has_soft_targets())
#pragma unroll
                    for (int k = 0; k < many; k++)
                        whole_soft_targets<false>(cut, r.of.row, at + (first + k) * step, (N(&)[W])a[k * W]);
                s.template enter<W>(part, a, terms.has_soft_targets(), terms.finds_best(), cut.first(at + first * step),
                                    (int64_t)step * W);
            }
            return;
        }
#pragma unroll 1
        for (int v = at; v < cut.vectors && v < at + K * step; v += step) {
            enter_one(r, s, cut, v, x[0][0]);
            turn(x);
        }
    }
    /* Adds one vector of the row, whole or not. */
    __device__ __forceinline__ void enter_one(const Row &r, State &s, const Cut<E> &cut, int v,
                                              const Vector<E> &logits) const {
        N part[W], a[W];
        transformed(logits, part);
        if (!cut.whole(v))
#pragma unroll
            for (int i = 0; i < W; i++)
                if (!cut.inside(cut.first(v) + i))
                    part[i] = absent(0);
        some_soft_targets<false>(cut, r.of.row, v, a);
        enter_vector(s, cut, v, part, a);
    }

    __device__ __forceinline__ void close(Row &r, const State &s) const {
        if (writes())
            gradient() = terms.gradient(r.of, s);
    }
    __device__ __forceinline__ Unfinished unfinished(const Row &r, const State &s, const N *x_y) const {
        Unfinished u = {r.of, s, *x_y};
        return u;
    }
    __device__ __forceinline__ void finish(const Unfinished &u, Totals &total) const {
        terms.finish(u.of, u.state, u.x_y, total);
    }

    /* Writes the gradients of whole vectors in straight-line code, if only gradients of logits are wanted and the fast
     * formula applies. The target's gradient is then written over the result of the common formula. A loop writes the
     * remaining vectors. */
    template <int K>
    __device__ __forceinline__ void write(const Cut<E> &cut, const Row &r, int at, int step, Vector<E> (&x)[K][1],
                                          const N *x_y) const {
        typename E::Bits *to = (typename E::Bits *)p.rows.grad + r.of.row * p.rows.grad_stride;
        const typename OfRows::Gradient &g = gradient();
        ScaledExp<N> below(g.row_max);
        N of_exp = (g.hard + g.rest) * g.inverse * below.factor, scale = g.scale * terms.of_block.scale;
        bool simple = p.rows.grad && p.grad_dtype == E::dtype() && cut.fits(to) && p.softcap == 0 &&
                      (!kSoft || p.grad_probabilities == 0) && ScaledExp<N>::in_fast_range(g.row_max) &&
                      of_exp == of_exp && (!terms.has_soft_targets() || fit<false>(cut, r.of.row, at));
        uint32_t left = 0;
        if (g.y == OfRows::kZero)
            scale = N(0);
#pragma unroll
        for (int k = 0; k < K; k++) {
            int v = at + k * step;
            if (v >= cut.vectors)
                break;
            left |= 1u << k;
            if (!simple || !cut.whole(v))
                continue;
            N y[W], a[W];
#pragma unroll
            for (int i = 0; i < W; i++)
                a[i] = N(0);
            if (terms.has_soft_targets())
                whole_soft_targets<false>(cut, r.of.row, v, a);
#pragma unroll
            for (int i = 0; i < W; i++) /* adding 0 turns -0 into 0 */
                y[i] = fma(fma(below.exp(x[k][0].get(i) * terms.of_block.scale), of_exp, -a[i]), scale, N(0));
            if ((E::keeps_nan() && g.y != OfRows::kZero) || in_halves<Sum>(y) == in_halves<Sum>(y)) {
                store_whole<E, E>(to + cut.first(v), y, true);
                left ^= 1u << k;
            }
        }
        int after = r.of.y < 0 ? -1 : cut.vector_of(r.of.y) - at;
        if (after >= 0 && after < K * step && (after & (step - 1)) == 0 && (left >> after / step & 1) == 0)
            to[r.of.y] = E::narrow(terms.of_block.scale * terms.element(g, *x_y, terms.soft_target_of(r.of.y), true));
        if (left)
#pragma unroll 1
            for (int v = at; left; left >>= 1, v += step) {
                if (left & 1)
                    write_vector(cut, r, v, x[0]);
                turn(x);
            }
    }
    __device__ __forceinline__ void write_vector(const Cut<E> &cut, const Row &r, int v,
                                                 const Vector<E> (&x)[1]) const {
        N y[W], a[W];
        if (p.rows.grad) {
            int64_t target = r.of.y - cut.first(v);
            transformed(x[0], y);
#pragma unroll
            for (int i = 0; i < W; i++)
                a[i] = N(0);
            if (terms.has_soft_targets())
                soft_targets<false>(cut, r.of.row, v, a);
#pragma unroll
            for (int i = 0; i < W; i++) {
                y[i] = terms.element(gradient(), y[i], a[i], r.of.y >= 0 && i == target);
                a[i] = x[0].get(i);
            }
            terms.transform_back(y, a);
            put_vector(cut, Typed(p.rows.grad, p.grad_dtype), r.of.row * p.rows.grad_stride, v, y);
        }
        if (kSoft && p.grad_probabilities) {
            transformed(x[0], y);
            soft_targets<true>(cut, r.of.row, v, a);
#pragma unroll
            for (int i = 0; i < W; i++)
                y[i] = terms.element_of_target(gradient(), y[i], a[i]);
            put_vector(cut, Typed(p.grad_probabilities, p.target_dtype), r.of.row * p.grad_probabilities_stride, v, y);
        }
    }

    __device__ __forceinline__ bool wants(int i) const {
        return terms.wants(i);
    }
    __device__ __forceinline__ bool concludes() const {
        return terms.concludes();
    }
    __device__ __forceinline__ bool prepared() const {
        return terms.prepared();
    }
    __device__ __forceinline__ void conclude(const double *sums, const int64_t *counts) const {
        terms.conclude(sums, counts);
    }

  private:
    /* The Gradient of this thread's row, in shared memory to save registers. */
    DEVICE typename OfRows::Gradient &gradient() {
        __shared__ typename OfRows::Gradient of_threads[GPULOSSI_BLOCK];
        return of_threads[threadIdx.x];
    }
};

#endif
