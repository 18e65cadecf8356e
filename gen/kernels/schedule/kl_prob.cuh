/* Kullback-Leibler divergence of a target t from an input q, each given as probabilities or as their logarithms:
 *
 *   term = t (log t - log q),   d term / dq = -t / q,   d term / d log q = -t */
#ifndef GPULOSSI_KL_PROB_CUH
#define GPULOSSI_KL_PROB_CUH

#include "row_generic.cuh"
#include "../loss/targets.cuh"

template <class E> struct KlDiv {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_kl_div Params;
    typedef Total<1, 1> Totals;
    enum { kArrays = 2, kOnePass = true, W = Width<E>::value, kShort = sizeof(typename E::Bits) == 2 };

    struct State {
        double sum;

        DEVICE State empty() {
            State s = {0.0};
            return s;
        }
        template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
            sum = lanes.template over<Sum>(sum);
        }
    };

    struct Row {
        int64_t row;
        N scale; /* The factor of t or of t / q in the gradient. */
    };

    /* The results that are wanted. kKeepsNan: 0 * inf is NaN. kFast: the fast path has all that is wanted. */
    enum { kTerms = 1, kElements = 2, kGradient = 4, kKeepsNan = 8, kFast = 16 };

    DEVICE bool log_input() { return has(GPULOSSI_KL_INPUT_LOGARITHMS); }
    DEVICE bool log_target() { return has(GPULOSSI_KL_TARGET_LOGARITHMS); }

    const Params &p;
    N eps;
    /* In one register: testing the pointers again takes a dozen instructions a step. */
    int wanted;

    __device__ __forceinline__ explicit KlDiv(const Params &p) : p(p), eps((N)p.eps) {
        if (threadIdx.x == 0)
            grad_scale() = gradient_scale<N>(p.rows, 1.0);
        __syncthreads();
        wanted = (p.rows.loss || p.rows.loss_rows || p.elements ? kTerms : 0) | (p.elements ? kElements : 0) |
                 (p.rows.grad ? kGradient : 0) | (p.rows.flags & GPULOSSI_KEEP_ZERO_NAN ? kKeepsNan : 0);
        if (kShort && !(wanted & kElements) && ((log_input() && log_target()) || eps == 0))
            wanted |= kFast;
        keep(wanted);
    }

    __device__ __forceinline__ const typename E::Bits *array(int a, int64_t row) const {
        return (const typename E::Bits *)(a == 0 ? p.input : p.target) +
               row * (a == 0 ? p.input_stride : p.target_stride);
    }
    __device__ __forceinline__ typename E::Bits *grad(int64_t row) const {
        return (typename E::Bits *)p.rows.grad + row * p.rows.grad_stride;
    }
    /* If packed arrays are cut into new rows, the first row tiles may have several of them. */
    __device__ __forceinline__ int64_t first_row(int64_t row_tile) const {
        return row_tile < p.wide_tiles ? row_tile * GPULOSSI_WIDE_TILE_ROWS
                                       : row_tile + p.wide_tiles * (GPULOSSI_WIDE_TILE_ROWS - 1);
    }
    __device__ __forceinline__ int64_t classes_of(int64_t row_tile) const {
        return row_tile < p.wide_tiles       ? p.rows.classes * GPULOSSI_WIDE_TILE_ROWS
               : row_tile + 1 == p.rows.rows ? p.rows.last_classes
                                             : p.rows.classes;
    }
    /* t = 0 and q = 1. As logarithms: log q = 0, and a finite log t whose exp() is 0. */
    __device__ __forceinline__ N absent(int a) const {
        return a == 0 ? (log_input() ? N(0) : N(1)) : (log_target() ? N(-60000) : N(0));
    }
    __device__ __forceinline__ bool reduces() const { return true; }
    __device__ __forceinline__ bool sums_by_thread() const { return p.rows.loss_rows == 0; }

    __device__ __forceinline__ Row begin(const Cut<E> &, int64_t row, bool) const {
        Row r;
        double scale = grad_scale();
        if (p.rows.grad_loss_rows && row < p.rows.rows)
            scale *= ((const N *)p.rows.grad_loss_rows)[row];
        r.row = row;
        r.scale = (N)-scale;
        return r;
    }

    /* Below, q is the input as given, plus eps if it is a probability. */
    __device__ __forceinline__ N weight(N target) const {
        const N of_logarithm = exponential(target);
        return log_target() ? of_logarithm : target;
    }

    /* log t - log q of ordinary numbers. It is finite where t = 0. */
    __device__ __forceinline__ N logarithm(N q, N target) const {
        if (log_input() && log_target())
            return target - q;
        if (log_input())
            return ordinary_log(target + eps) - q;
        if (log_target())
            return target - ordinary_log(q);
        return log_ratio(target + eps, q);
    }

    /* The term of any pair. t = 0 makes 0. With GPULOSSI_KEEP_ZERO_NAN it makes PyTorch's NaN if the logarithm is
     * infinite or NaN. */
    __device__ __forceinline__ N any_term(N q, N target) const {
        N t = weight(target);
        /* Then t + eps need not be negative. */
        if (t < 0)
            return Limits<N>::nan();
        if (t != 0)
            return t * (!log_input() && !log_target()
                            ? log_any_ratio(t + eps, q)
                            : (log_target() ? target : natural_log(t + eps)) - (log_input() ? q : natural_log(q)));
        if (!(p.rows.flags & GPULOSSI_KEEP_ZERO_NAN))
            return N(0);
        return N(0) * (log_target() ? target : N(0)) - N(0) * (log_input() ? q : natural_log(q));
    }

    /* Adding +0 changes -0 to +0. */
    __device__ __forceinline__ N gradient_of(const Row &r, N q, N target) const {
        N t = weight(target);
        return log_input() && t == 0 ? N(0) : fma(log_input() ? t : Format<N>::quotient(t, q), r.scale, N(0));
    }

    __device__ __forceinline__ N any_gradient_of(const Row &r, N q, N target) const {
        N t = weight(target);
        if (t == 0 && !(wanted & kKeepsNan))
            return N(0);
        return (log_input() ? t : Format<N>::divide(t, q)) * r.scale;
    }

    /* Callers store only finite numbers if the input is a probability, and !log_input() says so to the store. */
    template <class O, int K>
    DEVICE void store_each(const Cut<E> &cut, typename O::Bits *row, int at, int step, const N (&y)[K * W]) {
        typename O::Bits *to = row + cut.first(at);
        if (cut.whole(at) && cut.whole(at + (K - 1) * step) && (uintptr_t)to % GPULOSSI_VECTOR_BYTES == 0) {
#pragma unroll
            for (int k = 0; k < K; k++)
                store_whole<E, O>(to + (int64_t)step * (k * W), y + k * W, !log_input());
            return;
        }
#pragma unroll
        for (int k = 0; k < K; k++)
            if (at + k * step < cut.vectors)
                store<E, O>(cut, row, at + k * step, y + k * W, !log_input());
    }

    /* The general code: computes the `rest` of the terms and gradients of some vectors, element by element from memory.
     * Returns the sum of the terms, or `sum` if they are not in `rest`. */
    __device__ __forceinline__ N any_of(const Row &r, const Cut<E> &cut, int at, int step, int vectors, int rest,
                                        N sum) const {
        typedef typename Out<E>::Type O;
        if (rest & kTerms)
            sum = 0;
#pragma unroll 1
        for (int i = 0; i < vectors * W; i++) {
            int64_t c = cut.first(at + i / W * step) + i % W;
            if (!cut.inside(c))
                continue;
            N q = E::widen(array(0, r.row)[c]) + (log_input() ? N(0) : eps), t = E::widen(array(1, r.row)[c]);
            if (rest & kTerms) {
                N term = any_term(q, t);
                sum += term;
                if (wanted & kElements)
                    elements(r.row)[c] = O::narrow(term);
            }
            if (rest & kGradient)
                grad(r.row)[c] = E::narrow(any_gradient_of(r, q, t));
        }
        return sum;
    }

    __device__ __forceinline__ typename Out<E>::Type::Bits *elements(int64_t row) const {
        return (typename Out<E>::Type::Bits *)p.elements + row * p.elements_stride;
    }

    /* Whether probabilities of 16 bits are in [0, 2), and the input's not close to 0: two bits of each show it. Then no
     * term overflows, and no gradient unless by its scale. */
    template <int K> DEVICE bool fit_fast_path(const Vector<E> (&x)[K][2]) {
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < 4 * K; i++) {
            if (!log_input())
                bits |= x[i / 4][0].word[i % 4] - E::two_of_least();
            if (!log_target())
                bits |= x[i / 4][1].word[i % 4];
        }
        return (bits & 0xc000c000u) == 0;
    }

    DEVICE N fast_logarithm(N q, N target) {
        if (log_input() && log_target())
            return target - q;
        if (log_input())
            return fma(short_log_ratio(target, N(1)), of_short(), -q);
        if (log_target())
            return fma(short_log_ratio(q, N(1)), -of_short(), target);
        return short_log_ratio(target, q);
    }

    /* The fast path, for 16 bits: the terms of all pairs, and with kGradients their gradients. Returns false without
     * any result if a pair needs the general code. Infinite or NaN logarithms show in the sum. */
    template <bool kGradients, int K>
    __device__ __forceinline__ bool enter_fast(const Row &r, State &s, const Cut<E> &cut, int at, int step,
                                               const Vector<E> (&x)[K][2]) const {
        Vector<E> out[K];
        N sum = 0, check = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            N y[W];
#pragma unroll
            for (int i = 0; i < W; i++) {
                N q = x[k][0].get(i), t = x[k][1].get(i), weighs = log_target() ? short_exponential(t) : t;
                sum = fma(weighs, fast_logarithm(q, t), sum);
                if (kGradients) {
                    y[i] = fma(log_input() ? weighs : Format<N>::quotient(weighs, q), r.scale, N(0));
                    if (!log_input() && log_target()) /* The quotient may overflow. */
                        check += y[i];
                }
            }
            if (kGradients)
                out[k].fill(y, true);
        }
        if ((log_input() || log_target()) &&
            !(fabs(sum) < Limits<N>::infinity() && fabs(check) < Limits<N>::infinity()))
            return false;
        s.sum += (double)(log_input() || log_target() ? sum : sum * of_short());
        if (kGradients)
            store_vectors<K>(cut, grad(r.row), at, step, out);
        return true;
    }

    template <int K>
    DEVICE void store_vectors(const Cut<E> &cut, typename E::Bits *row, int at, int step, const Vector<E> (&out)[K]) {
        typename E::Bits *to = row + cut.first(at);
        if (cut.whole(at) && cut.whole(at + (K - 1) * step) && (uintptr_t)to % GPULOSSI_VECTOR_BYTES == 0) {
#pragma unroll
            for (int k = 0; k < K; k++)
                __stcs((uint4 *)(to + (int64_t)step * (k * W)),
                       make_uint4(out[k].word[0], out[k].word[1], out[k].word[2], out[k].word[3]));
            return;
        }
#pragma unroll
        for (int k = 0; k < K; k++)
            if (at + k * step < cut.vectors)
                store_vector<E, E>(cut, row, at + k * step, cut.first(at + k * step), out[k]);
    }

    template <int K>
    __device__ __forceinline__ void enter(const Row &r, State &s, const Cut<E> &cut, int at, int step,
                                          Vector<E> (&x)[K][2]) const {
        if constexpr (kShort) {
            int wants = wanted;
            keep(wants);
            if (wants & kFast && fit_fast_path<K>(x)) {
                if (wants & kGradient
                        ? fabs(r.scale) < Limits<N>::infinity() && enter_fast<true, K>(r, s, cut, at, step, x)
                        : enter_fast<false, K>(r, s, cut, at, step, x))
                    return;
            }
#pragma unroll 1
            for (int k = 0; k < K; k++) {
                enter_each<1>(r, s, cut, at + k * step, step, (Vector<E>(&)[1][2])x);
                rotate(x);
            }
        } else {
            enter_each<K>(r, s, cut, at, step, x);
        }
    }

    template <int K> __device__ __forceinline__ N q_of(const Vector<E> (&x)[K][2], int i) const {
        return x[i / W][0].get(i % W) + (log_input() ? N(0) : eps);
    }

    /* The short formulas come first, without branches. If they are not right for all pairs, any_of() follows. */
    template <int K>
    __device__ __forceinline__ void enter_each(const Row &r, State &s, const Cut<E> &cut, int at, int step,
                                               Vector<E> (&x)[K][2]) const {
        enum { n = K * W };
        N q[n], t[n], y[n];
        int wants = wanted;
        /* Otherwise values that follow from it would take registers over all steps. */
        keep(wants);
        typename Format<N>::Bits worst = 0;
        uint32_t signs = 0;
#pragma unroll
        for (int i = 0; i < n; i++) {
            q[i] = q_of(x, i);
            t[i] = x[i / W][1].get(i % W);
            if (!log_input())
                worst = max(worst, distance(q[i]));
            if (!log_target() && i % W == 0)
                signs |= x[i / W][1].signs();
        }
        /* With 16 bits the general code has PyTorch's zeros, which would spill registers here. */
        bool fine = worst < Format<N>::range() && signs == 0 && !(kShort && wants & kKeepsNan);
        int rest = wants & (kTerms | kGradient);
        N sum = 0;
        if (wants & kTerms) {
#pragma unroll
            for (int i = 0; i < n; i++) {
                N weighs = weight(t[i]), l = logarithm(q[i], t[i]);
                const bool has_no_nan = kShort || !(wants & kKeepsNan);
                y[i] = (log_input() || log_target()) && weighs == 0 && has_no_nan ? N(0) : l;
                sum = fma(weighs, y[i], sum);
            }
            fine = fine && fabs(sum) < Limits<N>::infinity();
            if (wants & kElements && fine) {
#pragma unroll
                for (int i = 0; i < n; i++)
                    y[i] *= weight(t[i]);
                store_each<typename Out<E>::Type, K>(cut, elements(r.row), at, step, y);
            }
            if (fine)
                rest = wants & kGradient;
        }
        if (wants & kGradient && fine) {
            /* Widening the elements once more takes fewer registers than keeping the numbers. */
            if constexpr (kShort) {
#pragma unroll
                for (int i = 0; i < 8 * K; i++)
                    keep(x[i / 8][i / 4 % 2].word[i % 4]);
            }
#pragma unroll
            for (int i = 0; i < n; i++)
                y[i] = gradient_of(r, q_of(x, i), x[i / W][1].get(i % W));
            /* A quotient that overflows is infinite or NaN. */
            if (log_input() || fabs(in_halves<Sum>(y)) < Limits<N>::infinity()) {
                store_each<E, K>(cut, grad(r.row), at, step, y);
                rest = 0;
            }
        }
        if (rest)
            sum = any_of(r, cut, at, step, K, rest, sum);
        s.sum += (double)sum;
    }

    __device__ __forceinline__ void close(Row &, const State &) const {}

    __device__ __forceinline__ N pick(const Cut<E> &, const Row &) const {
        return 0;
    }

    struct Unfinished {
        int64_t row;
        double sum;
    };
    __device__ __forceinline__ Unfinished unfinished(const Row &r, const State &s, const N *) const {
        Unfinished u = {r.row, s.sum};
        return u;
    }
    __device__ __forceinline__ void finish(const Unfinished &u, Totals &total) const {
        if (p.rows.loss_rows)
            ((N *)p.rows.loss_rows)[u.row] = (N)u.sum;
        if (p.rows.loss)
            total.add(GPULOSSI_SUM_LOSS, u.sum, (gpulossi_scratch *)p.rows.scratch);
    }

    __device__ __forceinline__ bool writes() const {
        return false;
    }
    template <int K>
    __device__ __forceinline__ void write(const Cut<E> &, const Row &, int, int, const Vector<E> (&)[K][2],
                                          const N *) const {}

    __device__ __forceinline__ bool wants(int) const {
        return p.rows.loss != 0;
    }
    __device__ __forceinline__ bool concludes() const {
        return p.rows.loss != 0;
    }
    __device__ __forceinline__ bool prepared() const {
        return false;
    }
    __device__ __forceinline__ void conclude(const double *sums, const int64_t *) const {
        put_sum<N>(p.rows, p.rows.loss, quotient_for(N(), sums[0], divisor_of<N>(p.rows)));
    }

  private:
    /* It is read once a row, so it is in shared memory. */
    DEVICE double &grad_scale() {
        __shared__ double of_block;
        return of_block;
    }
};

#endif
