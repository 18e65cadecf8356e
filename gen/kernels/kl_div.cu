/* Kullback-Leibler divergence of a target t from an input q, each given as probabilities or as logarithms of them:
 *
 *   term = t (log t - log q),   d term / dq = -t / q,   d term / d log q = -t
 */
#include "rows.cuh"

template <class E, bool kLogInput, bool kLogTarget> struct KlDiv {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_kl_div Params;
    enum { kArrays = 2, kOnePass = true, W = Width<E>::value };

    struct State {
        double sum;

        DEVICE State empty() {
            State s = {0.0};
            return s;
        }
        __device__ __forceinline__ void fold(int width) { sum = over_lanes<Sum>(sum, width); }
    };

    struct Row {
        int64_t row;
        N scale;
    };

    const Params &p;
    double grad_scale;
    N eps;

    __device__ __forceinline__ explicit KlDiv(const Params &p) : p(p), grad_scale(p.rows.grad_scale), eps((N)p.eps) {
        if (p.rows.grad_loss)
            grad_scale *= *(const N *)p.rows.grad_loss;
    }

    __device__ __forceinline__ const typename E::Bits *array(int a, int64_t row) const {
        return (const typename E::Bits *)(a == 0 ? p.input : p.target) +
               row * (a == 0 ? p.input_stride : p.target_stride);
    }
    __device__ __forceinline__ typename E::Bits *grad(int64_t row) const {
        return (typename E::Bits *)p.rows.grad + row * p.rows.grad_stride;
    }
    /* t = 0 and q = 1; as logarithms, a t so small that exp(t) is 0, and yet finite. */
    __device__ __forceinline__ N absent(int a) const {
        return a == 0 ? (kLogInput ? N(0) : N(1)) : (kLogTarget ? N(-60000) : N(0));
    }
    __device__ __forceinline__ bool reduces() const { return true; }
    __device__ __forceinline__ bool sums_apart() const { return p.rows.loss_rows == 0; }

    __device__ __forceinline__ Row begin(int64_t row) const {
        Row r;
        double scale = grad_scale;
        if (p.rows.grad_loss_rows && row < p.rows.rows)
            scale *= ((const N *)p.rows.grad_loss_rows)[row];
        r.row = row;
        r.scale = (N)scale;
        return r;
    }

    __device__ __forceinline__ N term(N x, N target) const {
        N t = kLogTarget ? exponential(target) : target;
        N ratio; /* log t - log q */
        if (kLogInput && kLogTarget)
            ratio = target - x;
        else if (kLogInput)
            ratio = natural_log(t + eps) - x;
        else if (kLogTarget)
            ratio = target - natural_log(x + eps);
        else
            ratio = log_ratio(t + eps, x + eps);
        N term = t * ratio;
        if (t == 0) {
            term = 0;
            if (p.rows.flags & GPULOSSI_KEEP_ZERO_NAN)
                term = zero_times_log(kLogTarget ? target : N(0), x);
        }
        return term;
    }

    /* What PyTorch makes of t = 0: 0, unless 0 is multiplied by an infinite or undefined logarithm. */
    __device__ __forceinline__ N zero_times_log(N log_t, N x) const {
        N log_q = kLogInput ? x : natural_log(x + eps);
        return N(0) * log_t - N(0) * log_q;
    }

    __device__ __forceinline__ N gradient_of(const Row &r, N x, N target) const {
        N t = kLogTarget ? exponential(target) : target;
        bool zero = t == 0 && !(p.rows.flags & GPULOSSI_KEEP_ZERO_NAN);
        if (kLogInput)
            return zero ? N(0) : -t * r.scale;
        return zero ? N(0) : -Parts<N>::divide(t, x + eps) * r.scale;
    }

    template <int K, class C>
    __device__ __forceinline__ void enter(const Row &r, State &s, const C &cut, typename C::Index at,
                                          typename C::Index step, const Vector<E> (&x)[K][2]) const {
        typedef typename Out<E>::Type O;
#pragma unroll
        for (int k = 0; k < K; k++) {
            typename C::Index v = at + k * step;
            N y[W];
            if (p.rows.scratch || p.rows.loss_rows || p.elements) {
                N sum = 0;
#pragma unroll
                for (int i = 0; i < W; i++) {
                    y[i] = term(x[k][0].get(i), x[k][1].get(i));
                    sum += y[i];
                }
                s.sum += (double)sum;
                if (p.elements && v < cut.vectors)
                    store<E, O>(cut, (typename O::Bits *)p.elements + r.row * p.elements_stride, v, y);
            }
            if (p.rows.grad && v < cut.vectors) {
#pragma unroll
                for (int i = 0; i < W; i++)
                    y[i] = gradient_of(r, x[k][0].get(i), x[k][1].get(i));
                store<E, E>(cut, grad(r.row), v, y);
            }
        }
    }

    __device__ __forceinline__ void close(Row &, const State &) const {}

    __device__ __forceinline__ Total finish(const Row &r, const State &s) const {
        if (p.rows.loss_rows)
            ((N *)p.rows.loss_rows)[r.row] = (N)s.sum;
        Total t = {s.sum, 0.0};
        return t;
    }

    __device__ __forceinline__ void gradient(const Row &, int64_t, const Vector<E> (&)[2], N (&)[Width<E>::value]) const {}

    __device__ __forceinline__ void conclude(const Total &total) const {
        if (p.rows.loss)
            *(N *)p.rows.loss = (N)(total.sum / p.rows.divisor);
    }
};

/* The kernels, by the names that the module table gives them: p for probabilities, l for logarithms, the input first. */
template <class E> struct pp { typedef KlDiv<E, false, false> Loss; };
template <class E> struct lp { typedef KlDiv<E, true, false> Loss; };
template <class E> struct pl { typedef KlDiv<E, false, true> Loss; };
template <class E> struct ll { typedef KlDiv<E, true, true> Loss; };

extern "C" __global__ void __launch_bounds__(GPULOSSI_PAIRED_THREADS)
    MODULE_ENTRY(const __grid_constant__ gpulossi_kl_div p) {
    Schedule<MODULE_KERNEL<MODULE_DTYPE>::Loss>::streamed<GPULOSSI_VECTORS_PAIRED>(p);
}
