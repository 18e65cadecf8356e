/* Reverse KL, Jensen-Shannon and total variation of two arrays of logits of one type, and the student's gradient, for
 * clusters. With f of divergence.cuh, u = q df/dq but for what is the same for all classes, and T the temperature:
 *
 *   gradient = (u - q sum_c u) / T */
#ifndef GPULOSSI_DISTANCES_CUH
#define GPULOSSI_DISTANCES_CUH

#include "distil.cuh"

template <class E, int K> struct Distances : Distil<E, K> {
    typedef Distil<E, K> Sides;
    typedef typename Sides::Number N;
    typedef typename Sides::Params Params;
    typedef typename Sides::Totals Totals;
    typedef typename Sides::State State;
    using Sides::p;
    enum { kSums = kSumsFirst, W = Sides::W, n = Sides::n };

    struct Row : Sides::Row {
        N sum; /* of u */
    };
    struct Sums {
        double f, u;
        template <class Lanes> __device__ __forceinline__ void fold(Lanes lanes) {
            f = lanes.template over<Sum>(f);
            u = lanes.template over<Sum>(u);
        }
    };

    N beta;

    __device__ __forceinline__ explicit Distances(const Params &p) : Sides(p), beta((N)p.beta) {}

    __device__ __forceinline__ bool writes() const { return p.rows.grad != 0; }
    __device__ __forceinline__ Row begin(const Cut<E> &, int64_t row, bool) const {
        Row r;
        r.row = row;
        return r;
    }

    /* Of a pair of probabilities, where d = log t - log q. */
    struct Parts {
        N f, u;
    };
    __device__ __forceinline__ Parts reverse(N t, N q, N d) const {
        /* Where q = 0, -d may be -inf or NaN, and any number will do. */
        Parts y = {Pair<N>::surplus_of(q, t, larger(-d, N(-1e30))), q == 0 ? N(0) : -q * d};
        return y;
    }
    /* The logarithm of one side over the mixture is that of 1 + w (exp(z) - 1) with the other's share w and z = +-d, and
     * the other differs by d: for small d that which loses no digits, for large d that which does not overflow. */
    __device__ __forceinline__ Parts jensen_shannon(N t, N q, N d) const {
        N b = beta, c = N(1) - beta, m = b * t + c * q;
        bool target_first = fabs(d) < 1 ? b > c : d > 0;
        N z = target_first ? -d : d, direct = -log_plus(target_first ? c : b, z);
        N t_to_m = target_first ? direct : direct + d, q_to_m = target_first ? direct - d : direct;
        Parts y = {b * Pair<N>::surplus(t, m, t_to_m) + c * Pair<N>::surplus(q, m, q_to_m), c * q * q_to_m};
        if (q == 0)
            y.u = N(0);
        else if (d != d)
            y.u = d;
        return y;
    }
    __device__ __forceinline__ Parts total_variation(N t, N q) const {
        N difference = t - q, half = N(0.5) * fabs(difference);
        Parts y = {half, difference > 0 ? N(-0.5) * q : difference < 0 ? N(0.5) * q : N(0) * difference};
        return y;
    }

    /* log(1 + w (exp(z) - 1)), for w below 1, and a z that is not large. */
    DEVICE float log_plus(float w, float z) {
        float e;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(z * 1.442695041f));
        return log_near_1(w * (fabs(z) < 1 ? excess(-z) + z : e - 1));
    }

    __device__ __forceinline__ void pairs(const Row &r, const Vector<E> (&x)[K][2], N (&q)[n], N (&f)[n],
                                          N (&u)[n]) const {
        N t[n];
        this->probabilities(x, 0, r.input_top, r.input_inverse, q);
        this->probabilities(x, 1, r.target_top, r.target_inverse, t);
#pragma unroll
        for (int i = 0; i < n; i++) {
            N d = fma(x[i / W][1].get(i % W) - x[i / W][0].get(i % W), this->inverse_temperature, -r.apart);
            Parts y = p.divergence == GPULOSS_REVERSE_KL       ? reverse(t[i], q[i], d)
                      : p.divergence == GPULOSS_JENSEN_SHANNON ? jensen_shannon(t[i], q[i], d)
                                                               : total_variation(t[i], q[i]);
            f[i] = y.f;
            u[i] = y.u;
        }
    }

    __device__ __forceinline__ void add(const Cut<E> &cut, const Row &r, int at, int step, const Vector<E> (&x)[K][2],
                                        Sums &sums) const {
        N q[n], f[n], u[n];
        pairs(r, x, q, f, u);
        if (!(cut.whole(at) && cut.whole(at + (K - 1) * step)))
#pragma unroll
            for (int i = 0; i < n; i++)
                if (!cut.inside(cut.first(at + i / W * step) + i % W))
                    f[i] = u[i] = N(0);
        sums.f += (double)in_halves<Sum>(f);
        sums.u += (double)in_halves<Sum>(u);
    }
    using Sides::close;
    __device__ __forceinline__ void close(Row &r, const Sums &sums) const {
        r.sum = (N)sums.u;
    }
    __device__ __forceinline__ void finish(const Row &r, const Sums &sums, Totals &total) const {
        typename Sides::Divergence divergence = {sums.f};
        Sides::finish(r, divergence, total);
    }

    __device__ __forceinline__ void write(const Cut<E> &cut, const Row &r, int at, int step, const Vector<E> (&x)[K][2],
                                          const N *) const {
        N q[n], f[n], u[n];
        pairs(r, x, q, f, u);
#pragma unroll
        for (int i = 0; i < n; i++)
            u[i] = fma(u[i] - q[i] * r.sum, r.scale, N(0));
        this->store_gradient(cut, r, at, step, u);
    }
};

#endif
