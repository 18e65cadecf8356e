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
    enum { kArrays = 2, kOnePass = true, kFewRegisters = kLogInput, W = Width<E>::value };

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

    __device__ __forceinline__ Row begin(const Cut<E> &, int64_t row, bool) const {
        Row r;
        double scale = grad_scale;
        if (p.rows.grad_loss_rows && row < p.rows.rows)
            scale *= ((const N *)p.rows.grad_loss_rows)[row];
        r.row = row;
        r.scale = (N)scale;
        return r;
    }

    /* Here q is the input as given, and where it is a probability, with eps. */
    __device__ __forceinline__ N weight(N target) const { return kLogTarget ? exponential(target) : target; }

    /* What log_ratio takes for t: t = 0 takes the ratio 1, whose logarithm is 0. */
    __device__ __forceinline__ N numerator(N q, N t) const { return t == 0 ? q : t + eps; }

    /* For ordinary numbers. */
    __device__ __forceinline__ N term(N q, N target) const {
        N t = weight(target);
        if (kLogInput && kLogTarget)
            return t == 0 ? N(0) : t * (target - q);
        if (kLogInput)
            return t == 0 ? N(0) : t * (natural_log(t + eps) - q);
        if (kLogTarget)
            return t == 0 ? N(0) : t * (target - natural_log(q));
        return t * log_ratio(numerator(q, t), q);
    }

    /* For all numbers: t = 0 makes 0, or what PyTorch makes of it, which is NaN when 0 meets an infinite or undefined
     * logarithm. */
    __device__ __forceinline__ N any_term(N q, N target) const {
        N t = weight(target);
        if (t < 0) /* which t + eps need not be */
            return Limits<N>::nan();
        if (t != 0)
            return kLogInput || kLogTarget ? term(q, target) : t * log_any_ratio(t + eps, q);
        if (!(p.rows.flags & GPULOSSI_KEEP_ZERO_NAN))
            return N(0);
        return N(0) * (kLogTarget ? target : N(0)) - N(0) * (kLogInput ? q : natural_log(q));
    }

    __device__ __forceinline__ N gradient_of(const Row &r, N q, N target) const {
        N t = weight(target);
        return t == 0 ? N(0) : -(kLogInput ? t : Format<N>::quotient(t, q)) * r.scale;
    }

    __device__ __forceinline__ N any_gradient_of(const Row &r, N q, N target) const {
        N t = weight(target);
        if (t == 0 && !(p.rows.flags & GPULOSSI_KEEP_ZERO_NAN))
            return N(0);
        return -(kLogInput ? t : Format<N>::divide(t, q)) * r.scale;
    }

    template <class O, int K>
    DEVICE void store_each(const Cut<E> &cut, typename O::Bits *row, int at, int step, const N (&y)[K * W]) {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (at + k * step < cut.vectors)
                store<E, O>(cut, row, at + k * step, y + k * W);
    }

    /* The terms or the gradients of K pairs of vectors, element by element from memory: for what is not ordinary.
     * Returns the sum of the terms. */
    template <bool kGradient>
    __device__ __forceinline__ N any_of(const Row &r, const Cut<E> &cut, int at, int step, int vectors) const {
        typedef typename Out<E>::Type O;
        N sum = 0;
#pragma unroll 1
        for (int i = 0; i < vectors * W; i++) {
            int64_t c = cut.first(at + i / W * step) + i % W;
            if (!cut.inside(c))
                continue;
            N q = E::widen(array(0, r.row)[c]) + (kLogInput ? N(0) : eps), t = E::widen(array(1, r.row)[c]);
            if (kGradient) {
                grad(r.row)[c] = E::narrow(any_gradient_of(r, q, t));
            } else {
                N term = any_term(q, t);
                sum += term;
                if (p.elements)
                    elements(r.row)[c] = O::narrow(term);
            }
        }
        return sum;
    }

    __device__ __forceinline__ typename Out<E>::Type::Bits *elements(int64_t row) const {
        return (typename Out<E>::Type::Bits *)p.elements + row * p.elements_stride;
    }

    /* The short ways are taken first, in a straight line; where they are not right for all of the pairs, any_of()
     * follows. */
    template <int K>
    __device__ __forceinline__ void enter(const Row &r, State &s, const Cut<E> &cut, int at, int step,
                                          Vector<E> (&x)[K][2]) const {
        enum { n = K * W };
        N q[n], t[n], y[n];
        typename Format<N>::Bits worst = 0;
#pragma unroll
        for (int i = 0; i < n; i++) {
            q[i] = x[i / W][0].get(i % W);
            t[i] = x[i / W][1].get(i % W);
        }
        if (eps != 0) {
#pragma unroll
            for (int i = 0; i < n; i++) {
                if (!kLogInput)
                    q[i] += eps;
                if (!kLogTarget && t[i] < 0)
                    worst = Format<N>::range();
            }
        }
#pragma unroll
        for (int i = 0; i < n; i++) {
            if (!kLogInput)
                worst = max(worst, distance(q[i]));
            if (!kLogInput && !kLogTarget)
                worst = max(worst, distance(numerator(q[i], t[i])));
        }
        bool ordinary = worst < Format<N>::range() && !(p.rows.flags & GPULOSSI_KEEP_ZERO_NAN);
        if (p.rows.loss || p.rows.loss_rows || p.elements) {
#pragma unroll
            for (int i = 0; i < n; i++)
                y[i] = term(q[i], t[i]);
            s.sum += (double)(ordinary ? in_halves<Sum>(y) : any_of<false>(r, cut, at, step, K));
            if (p.elements && ordinary)
                store_each<typename Out<E>::Type, K>(cut, elements(r.row), at, step, y);
        }
        if (p.rows.grad) {
#pragma unroll
            for (int i = 0; i < n; i++)
                y[i] = gradient_of(r, q[i], t[i]);
            /* A quotient that overflows comes out as NaN. */
            N sum = kLogInput ? N(0) : in_halves<Sum>(y);
            if (ordinary && sum == sum)
                store_each<E, K>(cut, grad(r.row), at, step, y);
            else
                any_of<true>(r, cut, at, step, K);
        }
    }

    __device__ __forceinline__ void close(Row &, const State &) const {}

    __device__ __forceinline__ N pick(const Row &) const {
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
    __device__ __forceinline__ void finish(const Unfinished &u, Total &total) const {
        if (p.rows.loss_rows)
            ((N *)p.rows.loss_rows)[u.row] = (N)u.sum;
        if (p.rows.loss)
            total.sum.add(u.sum, (gpulossi_scratch *)p.rows.scratch);
    }

    __device__ __forceinline__ void gradient(const Row &, int, const Vector<E> (&)[2], N (&)[W]) const {}

    __device__ __forceinline__ bool concludes() const {
        return p.rows.loss != 0;
    }
    __device__ __forceinline__ void conclude(double sum) const {
        if (p.rows.loss)
            *(N *)p.rows.loss = (N)(sum / p.rows.divisor);
    }
};

/* The kernels, by the names that the module table gives them: p for probabilities, l for logarithms, the input first.
 */
template <class E> struct pp { typedef KlDiv<E, false, false> Loss; };
template <class E> struct lp { typedef KlDiv<E, true, false> Loss; };
template <class E> struct pl { typedef KlDiv<E, false, true> Loss; };
template <class E> struct ll { typedef KlDiv<E, true, true> Loss; };

typedef MODULE_KERNEL<MODULE_DTYPE>::Loss Loss;

/* As many blocks as the registers of each kind allow without spilling. */
enum {
    kBlocks = sizeof(MODULE_DTYPE::Bits) == 8 ? 2
              : Loss::kFewRegisters           ? 4
                                              : 3,
    kVectors = Width<MODULE_DTYPE>::value < 8 ? GPULOSSI_PAIRS_STREAMED : 1
};

extern "C" __global__ void __launch_bounds__(GPULOSSI_BLOCK, kBlocks)
    MODULE_ENTRY(const __grid_constant__ gpulossi_kl_div p) {
    Schedule<Loss>::streamed<kVectors>(p);
}
