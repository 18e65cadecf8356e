/* Forward KL of a teacher that is given by k classes a row and their probabilities p, from the logits of a student. With
 * q = softmax(logits / T), P = sum_k p, Q = sum_k q, and what the k classes leave over, rest = 1 - P and R = 1 - Q:
 *
 *   drop          sum_k p log(p / q)                             gradient q P - p
 *   renormalise   the same with p / P for p                      gradient q - p / P
 *   bucket        the same and rest log(rest / R)                gradient q - p of the k classes, q (1 - rest / R) of others
 *
 * times 1 / T, and p = 0 for other classes. Equal indices of a row are one class, whose probability is their sum. */
#ifndef GPULOSSI_SPARSE_CUH
#define GPULOSSI_SPARSE_CUH

#include "divergence.cuh"
#include "masked.cuh"
#include "rows.cuh"
#include "softmax.cuh"
#include "typed.cuh"

template <class E> struct Sparse : Masked<typename E::Number, gpulossi_kl_div_sparse> {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_kl_div_sparse Params;
    typedef Masked<N, Params> Base;
    typedef typename Base::Totals Totals;
    using Base::p;
    enum { kArrays = 1, K = GPULOSSI_VECTORS_STREAMED / 2, W = Width<E>::value };

    /* Of the k classes. */
    struct Sums {
        double teacher, student, f;
        int bad;
        template <class Lanes> __device__ __forceinline__ void fold(Lanes lanes) {
            teacher = lanes.template over<Sum>(teacher);
            student = lanes.template over<Sum>(student);
            f = lanes.template over<Sum>(f);
            bad = lanes.template over<Sum>(bad);
        }
    };
    /* Of a row, once its softmax is known. */
    struct Row {
        int64_t row;
        bool zero; /* left out, or with a bad index */
        N top, inverse, log_sum, scale, others;
    };

    __device__ __forceinline__ explicit Sparse(const Params &p) : Base(p) {}

    __device__ __forceinline__ const typename E::Bits *array(int, int64_t row) const {
        return (const typename E::Bits *)p.logits + row * p.logits_stride;
    }
    __device__ __forceinline__ N absent(int) const { return -Limits<N>::infinity(); }
    __device__ __forceinline__ N over_temperature(N logit) const { return logit * (N)p.inverse_temperature; }

    __device__ __forceinline__ int64_t index(int64_t row, int64_t j) const {
        return read_index(p.indices, p.index_type, row * p.indices_stride + j);
    }
    __device__ __forceinline__ N value(int64_t row, int64_t j) const {
        N v = Typed(p.values, p.value_dtype).template read<N>(row * p.values_stride + j);
        return p.value_kind == GPULOSS_LOG_PROBABILITIES ? exponential(v) : v;
    }
    /* The probability of the class of the j-th entry: of all entries with its index, or -1 if an earlier one has it. */
    __device__ __forceinline__ N teacher(int64_t row, int64_t j) const {
        int64_t c = index(row, j);
        N sum = N(0);
#pragma unroll 1
        for (int64_t i = 0; i < p.k; i++)
            if (index(row, i) == c) {
                if (i < j)
                    return N(-1);
                sum += value(row, i);
            }
        return sum >= 0 ? sum : Limits<N>::nan();
    }
    __device__ __forceinline__ N logit(int64_t row, int64_t c) const {
        return over_temperature(E::widen(array(0, row)[c]));
    }

    __device__ __forceinline__ Softmax<N> softmax(const Group &group, const Cut<E> &cut, int64_t row, int turn) const {
        typename Schedule<Sparse>::Arrays arrays(*this, cut, row);
        Softmax<N> s = Softmax<N>::empty();
#pragma unroll 1
        for (int v = group.rank; v < cut.vectors; v += K * group.size) {
            Vector<E> x[K][1];
            N part[K * W];
            Schedule<Sparse>::template load<K, kRead_again>(*this, cut, arrays, v, group.size, x);
#pragma unroll
            for (int i = 0; i < K * W; i++)
                part[i] = over_temperature(x[i / W][0].get(i % W));
            s.enter(part);
        }
        const_cast<Group &>(group).fold(s, turn);
        return s;
    }

    /* The sums over the entries that belong to this thread; with `terms` those of the divergence. */
    __device__ __forceinline__ void add(const Group &group, const Row &r, bool terms, Sums &s) const {
        bool bucket = p.residual == GPULOSS_BUCKET;
        N norm = p.residual == GPULOSS_RENORMALIZE ? (N)s.teacher : N(1);
        double teacher = 0, student = 0, f = 0;
#pragma unroll 1
        for (int64_t j = group.rank; j < p.k; j += group.size) {
            int64_t c = index(r.row, j);
            if (c < 0 || c >= p.rows.classes) {
                s.bad += !terms;
                continue;
            }
            N t = this->teacher(r.row, j);
            if (t == N(-1))
                continue;
            N x = logit(r.row, c), q = exp_below(x, r.top) * r.inverse;
            Pair<N> y = {t / norm, q, natural_log(t / norm) - ((x - r.top) - r.log_sum)};
            teacher += (double)t;
            student += (double)q;
            y.forward(bucket, N(0), N(0));
            f += (double)y.f;
        }
        if (terms)
            s.f = f;
        else
            s.teacher = teacher, s.student = student;
    }

    __device__ __forceinline__ void write(const Cut<E> &cut, const Row &r, int v, const Vector<E> &x) const {
        N g[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            g[i] = r.zero ? N(0) : exp_below(over_temperature(x.get(i)), r.top) * r.inverse * r.others * r.scale;
        store<E, E>(cut, (typename E::Bits *)p.rows.grad + r.row * p.rows.grad_stride, v, g);
    }

    /* The gradients of all classes as if they were others, and then of the k classes, whose own are worked out before:
     * the gradient may lie over the logits. */
    __device__ __forceinline__ void gradients(const Group &group, const Cut<E> &cut, const Row &r, const Sums &s,
                                              N *kept) const {
        typename Schedule<Sparse>::Arrays arrays(*this, cut, r.row);
        N norm = p.residual == GPULOSS_RENORMALIZE ? (N)s.teacher : N(1);
        N own = p.residual == GPULOSS_DROP ? (N)s.teacher : N(1);
        int at = 0;
#pragma unroll 1
        for (int64_t j = group.rank; j < p.k && !r.zero; j += group.size, at++) {
            N t = this->teacher(r.row, j);
            kept[at * GPULOSSI_BLOCK] = t == N(-1) ? N(0)
                                                   : r.scale * (exp_below(logit(r.row, index(r.row, j)), r.top) *
                                                                    r.inverse * own -
                                                                t / norm);
        }
#pragma unroll 1
        for (int v = group.rank; v < cut.vectors; v += K * group.size) {
            Vector<E> x[K][1];
            Schedule<Sparse>::template load<K, kRead_once>(*this, cut, arrays, v, group.size, x);
#pragma unroll
            for (int k = 0; k < K; k++)
                if (v + k * group.size < cut.vectors)
                    write(cut, r, v + k * group.size, x[k][0]);
        }
        group.settle();
        at = 0;
#pragma unroll 1
        for (int64_t j = group.rank; j < p.k && !r.zero; j += group.size, at++)
            if (this->teacher(r.row, j) != N(-1))
                ((typename E::Bits *)p.rows.grad)[r.row * p.rows.grad_stride + index(r.row, j)] =
                    E::narrow(kept[at * GPULOSSI_BLOCK]);
    }
};

#endif
