/* Forward KL of a teacher that is given by k classes a row and their probabilities p, from the logits of a student. Let
 * q = softmax(logits / T), P = sum_k p and Q = sum_k q. All other classes have rest = 1 - P and R = 1 - Q:
 *
 *   drop          sum_k p log(p / q)                             gradient q P - p
 *   renormalise   the same with p / P for p                      gradient q - p / P
 *   bucket        the same and rest log(rest / R)                gradient q - p of the k, q (1 - rest / R) of others
 *
 * All gradients are times 1 / T, and p = 0 for other classes. Equal indices of a row are one class, whose probability
 * is their sum. */
#ifndef GPULOSSI_KL_TOPK_CUH
#define GPULOSSI_KL_TOPK_CUH

#include "../loss/divergence_terms.cuh"
#include "../loss/row_mask.cuh"
#include "row_generic.cuh"
#include "../device/online_softmax.cuh"
#include "../device/any_dtype.cuh"

template <class E> struct Sparse : Masked<typename E::Number, gpulossi_kl_div_sparse> {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_kl_div_sparse Params;
    typedef Masked<N, Params> Base;
    typedef typename Base::Totals Totals;
    typedef typename Base::Divergence Divergence;
    using Base::p;
    enum { kArrays = 1, K = GPULOSSI_VECTORS_STREAMED / 2, W = Width<E>::value };

    /* The sums of the teacher's probabilities, and of exp(x - row_max) over the k classes and over all classes. */
    struct Sums {
        double teacher, student, all;
        int bad;
        template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
            teacher = lanes.template over<Sum>(teacher);
            student = lanes.template over<Sum>(student);
            all = lanes.template over<Sum>(all);
            bad = lanes.template over<Sum>(bad);
        }
    };
    /* A row whose softmax is known. */
    struct Row {
        int64_t row;
        /* `out`: the row is left out, or is past the last one. `zero`: its gradient is 0, which it also is with a bad
         * index. */
        bool out, zero;
        N row_max, inverse, log_sum, scale;
        /* p is divided by `norm`. q is multiplied by `own` for the k classes, and by `others` for the other classes. */
        N norm, own, others;
        /* share * exp(x - share_max) is subtracted from the gradients of other classes. */
        N share, share_max;
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
        return p.value_kind == GPULOSS_LOG_PROBABILITIES ? exponential(v) : v >= 0 ? v : Limits<N>::nan();
    }
    /* The probability of the class of entry j, summed over all entries with its index, or -1 if an earlier entry has
     * it. */
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
        return sum;
    }
    __device__ __forceinline__ N logit(int64_t row, int64_t c) const {
        return over_temperature(E::widen(array(0, row)[c]));
    }

    __device__ __forceinline__ Softmax<N> softmax(const Group &group, const Cut<E> &cut, int64_t row,
                                                  int buffer) const {
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
        group.reduce(s, buffer);
        return s;
    }

    /* The sums over the entries of this thread. */
    __device__ __forceinline__ Sums sums(const Group &group, const Row &r) const {
        Sums s = {0.0, 0.0, 0.0, 0};
#pragma unroll 1
        for (int64_t j = group.rank; j < p.k && !r.out; j += group.size) {
            int64_t c = index(r.row, j);
            if (c < 0 || c >= p.rows.classes) {
                s.bad++;
                continue;
            }
            N t = teacher(r.row, j);
            if (t == N(-1))
                continue;
            s.teacher += (double)t;
            s.student += (double)exp_below(logit(r.row, c), r.row_max);
        }
        return s;
    }
    /* The sum over all classes. It is a double: the difference from the sum of the k classes must have its digits. */
    __device__ __forceinline__ double sum_of_all(const Group &group, const Cut<E> &cut, const Row &r) const {
        double sum = 0;
#pragma unroll 1
        for (int v = group.rank; v < cut.vectors; v += group.size)
#pragma unroll 1
            for (int i = 0; i < W; i++)
                if (cut.inside(cut.first(v) + i))
                    sum += (double)exp_below(logit(r.row, cut.first(v) + i), r.row_max);
        return sum;
    }
    __device__ __forceinline__ Divergence divergence(const Group &group, const Row &r) const {
        Divergence d = {0.0};
#pragma unroll 1
        for (int64_t j = group.rank; j < p.k && !r.zero; j += group.size) {
            N t = teacher(r.row, j);
            if (t == N(-1))
                continue;
            N x = logit(r.row, index(r.row, j)), log_q = (x - r.row_max) - r.log_sum;
            Pair<N> y = {t / r.norm, exp_below(x, r.row_max) * r.inverse, natural_log(t / r.norm) - log_q};
            y.forward(p.residual == GPULOSS_BUCKET, N(0), N(0));
            d.f += (double)y.f;
        }
        return d;
    }
    __device__ __forceinline__ bool is_known(int64_t row, int64_t c) const {
#pragma unroll 1
        for (int64_t j = 0; j < p.k; j++)
            if (index(row, j) == c)
                return true;
        return false;
    }
    struct Others {
        N row_max;
        template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
            row_max = lanes.template over<Maximum>(row_max);
        }
    };
    /* The row maximum of the other classes, for a row where the difference of the two sums has lost its digits. */
    __device__ __forceinline__ Others others_of(const Group &group, const Cut<E> &cut, const Row &r) const {
        Others t = {-Limits<N>::infinity()};
#pragma unroll 1
        for (int v = group.rank; v < cut.vectors && !r.out; v += group.size)
#pragma unroll 1
            for (int i = 0; i < W; i++)
                if (cut.inside(cut.first(v) + i) && !is_known(r.row, cut.first(v) + i))
                    t.row_max = larger(t.row_max, logit(r.row, cut.first(v) + i));
        return t;
    }
    __device__ __forceinline__ Divergence sum_of_others(const Group &group, const Cut<E> &cut, const Row &r,
                                                        N row_max) const {
        Divergence d = {0.0};
#pragma unroll 1
        for (int v = group.rank; v < cut.vectors && !r.out; v += group.size)
#pragma unroll 1
            for (int i = 0; i < W; i++)
                if (cut.inside(cut.first(v) + i) && !is_known(r.row, cut.first(v) + i))
                    d.f += (double)exp_below(logit(r.row, cut.first(v) + i), row_max);
        return d;
    }
    /* Completes the row from the sums. Returns the bucket's part of the divergence. */
    __device__ __forceinline__ double complete(const Group &group, const Cut<E> &cut, int buffer, Row &r,
                                               const Sums &s) const {
        double rest = 1 - s.teacher, left = (s.all - s.student) / s.all;
        r.zero = r.zero || s.bad != 0;
        r.norm = p.residual == GPULOSS_RENORMALIZE ? (N)s.teacher : N(1);
        r.own = p.residual == GPULOSS_DROP          ? (N)s.teacher
                : p.residual == GPULOSS_RENORMALIZE ? (N)(s.teacher / s.teacher)
                                                    : (N)(s.teacher <= 1 ? 1.0 : s.teacher);
        r.others = r.own;
        r.share = r.share_max = 0;
        if (p.residual != GPULOSS_BUCKET)
            return 0;
        /* A sum that rounds to more than 1 leaves a rest of 0. */
        rest = rest > 0 || rest != rest ? rest : 0;
        left = left > 0 || left != left ? left : 0;
        bool little = left < 0x1p-20 && rest > 0;
        if (__any_sync(0xffffffffu, little)) {
            Others t = others_of(group, cut, r);
            group.reduce(t, buffer);
            group.settle();
            N from = Softmax<N>::finite(t.row_max);
            Divergence d = sum_of_others(group, cut, r, from);
            group.reduce(d, buffer ^ 1);
            group.settle();
            if (little) {
                left = d.f * exp((double)from - (double)r.row_max) / s.all;
                r.share_max = from;
                r.share = (N)(rest / d.f);
            }
        }
        if (!little && rest != 0)
            r.others = (N)((double)r.own - rest / left);
        Pair<double> bucket = {rest, left, log_any_ratio(rest, left)};
        bucket.forward(true, 0.0, 0.0);
        return s.teacher > 1 ? bucket.f + (s.teacher - 1) : bucket.f;
    }

    __device__ __forceinline__ void write(const Cut<E> &cut, const Row &r, int v, const Vector<E> &x) const {
        N g[W];
#pragma unroll
        for (int i = 0; i < W; i++) {
            N z = over_temperature(x.get(i)), e = exp_below(z, r.row_max) * r.inverse * r.others;
            if (r.share != 0)
                e -= exp_below(z, r.share_max) * r.share;
            g[i] = r.zero ? N(0) : e * r.scale;
        }
        store<E, E>(cut, (typename E::Bits *)p.rows.grad + r.row * p.rows.grad_stride, v, g);
    }

    /* Writes the gradients of all classes as if none were among the k, then the gradients of the k classes. The latter
     * are computed first, since the gradient may overwrite the logits. */
    __device__ __forceinline__ void gradients(const Group &group, const Cut<E> &cut, const Row &r,
                                              N *smem_gradients) const {
        typename Schedule<Sparse>::Arrays arrays(*this, cut, r.row);
        int at = 0;
#pragma unroll 1
        for (int64_t j = group.rank; j < p.k && !r.zero; j += group.size, at++) {
            N t = teacher(r.row, j);
            smem_gradients[at * GPULOSSI_BLOCK] =
                t == N(-1)
                    ? N(0)
                    : r.scale * (exp_below(logit(r.row, index(r.row, j)), r.row_max) * r.inverse * r.own - t / r.norm);
        }
        /* All threads have read these logits. */
        group.settle();
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
            if (teacher(r.row, j) != N(-1))
                ((typename E::Bits *)p.rows.grad)[r.row * p.rows.grad_stride + index(r.row, j)] =
                    E::narrow(smem_gradients[at * GPULOSSI_BLOCK]);
    }

    __device__ __forceinline__ bool concludes() const {
        return Base::concludes() || p.bad_indices;
    }
    __device__ __forceinline__ void conclude(const double *sums, const int64_t *counts) const {
        Base::conclude(sums, counts);
        if (p.bad_indices)
            *(int64_t *)p.bad_indices = take_number(&this->scratch()->bad_targets);
    }

    DEVICE void run(const Params &p) {
        __shared__ Totals totals[GPULOSSI_BLOCK];
        __shared__ N smem_gradients[GPULOSSI_ENTRIES_A_VECTOR * W][GPULOSSI_BLOCK];
        Sparse sparse(p);
        typename Schedule<Sparse>::Rows rows(p);
        Group &group = rows.group;
        totals[threadIdx.x] = Totals::zero();
#pragma unroll 1
        while (rows.queue.more()) {
            int64_t row = rows.row();
            bool live = rows.live(row);
            Cut<E> cut = rows.cut(sparse, row);
            rows.queue.announce();
            Softmax<N> softmax = sparse.softmax(group, cut, row, rows.queue.phase);
            Row r = {row, !live || sparse.left_out(row)};
            r.zero = r.out;
            r.row_max = softmax.row_max;
            r.inverse = reciprocal(softmax.sum);
            r.log_sum = natural_log(softmax.sum);
            if (live)
                r.scale = (N)(sparse.scale(row, sparse.scale_of_all()) * p.inverse_temperature);
            Sums sums = sparse.sums(group, r);
            if (p.residual == GPULOSS_BUCKET)
                sums.all = sparse.sum_of_all(group, cut, r);
            group.reduce(sums, rows.queue.phase);
            double bucket = sparse.complete(group, cut, rows.queue.phase, r, sums);
            Divergence d = sparse.divergence(group, r);
            group.reduce(d, rows.queue.phase);
            if (p.rows.grad)
                sparse.gradients(group, cut, r, &smem_gradients[0][threadIdx.x]);
            if (live && group.rank == 0) {
                double loss = r.out ? 0.0 : sums.bad ? CUDART_NAN : (d.f + bucket) * sparse.weight(row);
                if (sums.bad && p.bad_indices)
                    totals[threadIdx.x].count_bad(sparse.scratch(), sums.bad);
                sparse.finish(row, loss, totals[threadIdx.x]);
            }
            rows.queue.advance();
        }
        end(sparse, sparse.scratch(), totals);
    }
};

#endif
