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
        template <class Lanes> __device__ __forceinline__ void fold(Lanes lanes) {
            sum = lanes.template over<Sum>(sum);
        }
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

    __device__ __forceinline__ Row begin(const Cut<E> &, int64_t row) const {
        Row r;
        double scale = grad_scale;
        if (p.rows.grad_loss_rows && row < p.rows.rows)
            scale *= ((const N *)p.rows.grad_loss_rows)[row];
        r.row = row;
        r.scale = (N)scale;
        return r;
    }

    /* For ordinary numbers. t = 0 takes the ratio 1, whose logarithm is 0. */
    __device__ __forceinline__ N term(N x, N target) const {
        N t = kLogTarget ? exponential(target) : target;
        if (kLogInput && kLogTarget)
            return t == 0 ? N(0) : t * (target - x);
        if (kLogInput)
            return t == 0 ? N(0) : t * (natural_log(t + eps) - x);
        if (kLogTarget)
            return t == 0 ? N(0) : t * (target - natural_log(x + eps));
        return t * log_ratio(t == 0 ? x + eps : t + eps, x + eps);
    }

    /* For all numbers: t = 0 makes 0, or what PyTorch makes of it, which is NaN when 0 meets an infinite or undefined
     * logarithm. */
    __device__ __forceinline__ N any_term(N x, N target) const {
        N t = kLogTarget ? exponential(target) : target;
        if (t != 0)
            return kLogInput || kLogTarget ? term(x, target) : t * log_any_ratio(t + eps, x + eps);
        if (!(p.rows.flags & GPULOSSI_KEEP_ZERO_NAN))
            return N(0);
        return N(0) * (kLogTarget ? target : N(0)) - N(0) * (kLogInput ? x : natural_log(x + eps));
    }

    __device__ __forceinline__ N gradient_of(const Row &r, N x, N target) const {
        N t = kLogTarget ? exponential(target) : target;
        return t == 0 ? N(0) : -(kLogInput ? t : Format<N>::quotient(t, x + eps)) * r.scale;
    }

    __device__ __forceinline__ N any_gradient_of(const Row &r, N x, N target) const {
        N t = kLogTarget ? exponential(target) : target;
        if (t == 0 && !(p.rows.flags & GPULOSSI_KEEP_ZERO_NAN))
            return N(0);
        return -(kLogInput ? t : Format<N>::divide(t, x + eps)) * r.scale;
    }

    /* Whether term() and gradient_of() are right for a pair of vectors. */
    __device__ __forceinline__ bool ordinary(const Vector<E> (&x)[2]) const {
        if (p.rows.flags & GPULOSSI_KEEP_ZERO_NAN)
            return false;
        if (kLogInput)
            return true;
        typename Format<N>::Bits worst = 0;
#pragma unroll
        for (int i = 0; i < W; i++) {
            N q = x[0].get(i) + eps, t = x[1].get(i);
            worst = max(worst, distance(q));
            if (!kLogTarget)
                worst = max(worst, t == 0 ? 0 : distance(t + eps));
        }
        return worst < Format<N>::range();
    }

    /* Fills y with the terms or the gradients of a pair of vectors. */
    template <bool kGradient> __device__ __forceinline__ void each(const Row &r, const Vector<E> (&x)[2], N (&y)[W]) const {
        bool usual = ordinary(x);
        if (usual) {
            N sum = 0;
#pragma unroll
            for (int i = 0; i < W; i++) {
                y[i] = kGradient ? gradient_of(r, x[0].get(i), x[1].get(i)) : term(x[0].get(i), x[1].get(i));
                sum += y[i];
            }
            /* A quotient that overflows comes out as NaN. */
            usual = !kGradient || kLogInput || sum == sum;
        }
        if (!usual) {
            Vector<E> rest[2] = {x[0], x[1]};
#pragma unroll 1
            for (int i = 0; i < W; i++) {
                N q = E::widen(rest[0].pop()), t = E::widen(rest[1].pop());
                N last = kGradient ? any_gradient_of(r, q, t) : any_term(q, t);
#pragma unroll
                for (int j = 0; j + 1 < W; j++)
                    y[j] = y[j + 1];
                y[W - 1] = last;
            }
        }
    }

    template <int K>
    __device__ __forceinline__ void enter(const Row &r, State &s, const Cut<E> &cut, int at, int step,
                                          Vector<E> (&x)[K][2]) const {
        typedef typename Out<E>::Type O;
        bool terms = p.rows.loss || p.rows.loss_rows || p.elements;
        N sum = 0;
#pragma unroll 1
        for (int k = 0; k < K; k++, at += step) {
            N y[W];
            if (terms) {
                each<false>(r, x[0], y);
                N part = 0;
#pragma unroll
                for (int i = 0; i < W; i++)
                    part += y[i];
                sum += part;
                if (p.elements && at < cut.vectors)
                    store<E, O>(cut, (typename O::Bits *)p.elements + r.row * p.elements_stride, at, y);
            }
            if (p.rows.grad && at < cut.vectors) {
                each<true>(r, x[0], y);
                store<E, E>(cut, grad(r.row), at, y);
            }
            turn(x);
        }
        s.sum += (double)sum;
    }

    __device__ __forceinline__ void close(Row &, const State &) const {}

    __device__ __forceinline__ void finish(const Row &r, const State &s, Total &total) const {
        if (p.rows.loss_rows)
            ((N *)p.rows.loss_rows)[r.row] = (N)s.sum;
        if (p.rows.loss)
            total.sum.add(s.sum, (gpulossi_scratch *)p.rows.scratch);
    }

    __device__ __forceinline__ void gradient(const Row &, int, const Vector<E> (&)[2], N (&)[W]) const {}

    __device__ __forceinline__ bool concludes() const { return p.rows.loss != 0; }
    __device__ __forceinline__ void conclude(double sum) const {
        if (p.rows.loss)
            *(N *)p.rows.loss = (N)(sum / p.rows.divisor);
    }
};

/* The kernels, by the names that the module table gives them: p for probabilities, l for logarithms, the input first. */
template <class E> struct pp { typedef KlDiv<E, false, false> Loss; };
template <class E> struct lp { typedef KlDiv<E, true, false> Loss; };
template <class E> struct pl { typedef KlDiv<E, false, true> Loss; };
template <class E> struct ll { typedef KlDiv<E, true, true> Loss; };

extern "C" __global__ void __launch_bounds__(GPULOSSI_PAIRED_THREADS, sizeof(MODULE_DTYPE::Bits) == 8 ? 4 : 5)
    MODULE_ENTRY(const __grid_constant__ gpulossi_kl_div p) {
    Schedule<MODULE_KERNEL<MODULE_DTYPE>::Loss>::streamed<GPULOSSI_VECTORS_PAIRED>(p);
}
