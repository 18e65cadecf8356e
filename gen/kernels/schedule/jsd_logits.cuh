/* Reverse KL, Jensen-Shannon and total variation of two arrays of logits of one type, and the student's gradient, for
 * clusters. With f of divergence.cuh, u = q df/dq but for what is the same for all classes, and T the temperature:
 *
 *   gradient = (u - q sum_c u) / T
 *
 * For Jensen-Shannon log(q / M) is kept in shared memory from the sum to the gradient, in place of the target's logits. */
#ifndef GPULOSSI_JSD_LOGITS_CUH
#define GPULOSSI_JSD_LOGITS_CUH

#include "kl_logits.cuh"

template <class E, int K> struct Distances : Distil<E, K> {
    typedef Distil<E, K> Sides;
    typedef typename Sides::Number N;
    typedef typename Sides::Params Params;
    typedef typename Sides::Totals Totals;
    typedef typename E::Bits Bits;
    using Sides::p;
    enum { W = Sides::W, n = Sides::n, kSums = 1 };
    enum { kKept = 1 + W / 4, kPlaces = GPULOSSI_DISTANCES_PLACES };
    enum { kAtOnce = W < 8 ? 4 : 2 };

    struct OfAny {
        int weighing; /* the side whose exponentials weigh differences, or -1 for neither */
    };
    typedef typename Sides::template StateOf<OfAny> State;
    struct Row : Sides::Row {
        N mean;        /* of u / q, under q; where it is rough, of log2(q / M) */
        bool rough;    /* whether Jensen-Shannon is by the logarithm of the mixture */
        bool zeros;    /* whether this thread has met a probability of 0 then */
        bool kept;     /* and whether it has kept log2(q / M) in place of logits */
        bool ordinary; /* whether the gradient's short formulas give numbers, and zeros where they should */
    };
    /* What of u / q is summed is that over `inverse`, and of f too, but where the pairs are probabilities. */
    struct Sums {
        double f, u;
        template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
            f = lanes.template over<Sum>(f);
            u = lanes.template over<Sum>(u);
        }
    };

    N beta;

    __device__ __forceinline__ explicit Distances(const Params &p) : Sides(p), beta((N)p.beta) {}

    __device__ __forceinline__ bool writes(const Row &) const { return p.rows.grad != 0; }
    __device__ __forceinline__ Row begin(const Cut<E> &, int64_t row, bool) const {
        Row r;
        r.row = row;
        r.zeros = r.kept = r.ordinary = false;
        return r;
    }
    __device__ __forceinline__ State empty() const {
        State s;
        Sides::clear(s);
        s.weighing = p.divergence == GPULOSS_REVERSE_KL ? 0 : -1;
        return s;
    }
    __device__ __forceinline__ void enter(const typename Sides::Row &, State &s, const Cut<E> &, int, int,
                                          const Vector<E> (&x)[K][2]) const {
        Sides::template enter_both<0>(s, x); /* for other divergences the differences are not looked at */
    }

    template <class Held> __device__ __forceinline__ bool enter_held(State &s, const Held &held) const {
        return p.divergence == GPULOSS_REVERSE_KL ? Sides::template enter_all<0, kAtOnce>(s, held)
                                                  : Sides::template enter_all<-1, kAtOnce>(s, held);
    }
    DEVICE bool spoiled(const Row &r) { return r.kept; }

    /* Of a pair of probabilities, where d = log t - log q. */
    struct Parts {
        N f, u;
    };
    __device__ __forceinline__ Parts reverse(N t, N q, N d) const {
        /* Where q = 0, -d may be -inf or NaN, and any number will do. */
        Parts y = {surplus(q, t, larger(-d, N(-1e30))), q == 0 ? N(0) : -q * d};
        return y;
    }
    /* The logarithm of one side over the mixture is that of 1 + w (exp(z) - 1) with the other's share w and z = +-d, and
     * the other differs by d: for small d that which loses no digits, for large d that which does not overflow. */
    __device__ __forceinline__ Parts jensen_shannon(N t, N q, N d) const {
        N b = beta, c = N(1) - beta, m = b * t + c * q;
        bool target_first = fabs(d) < 1 ? b > c : d > 0;
        N z = target_first ? -d : d, direct = -log_plus(target_first ? c : b, z);
        N t_to_m = target_first ? direct : direct + d, q_to_m = target_first ? direct - d : direct;
        t_to_m = t == 0 ? N(0) : t_to_m;
        q_to_m = q == 0 ? N(0) : q_to_m;
        Parts y = {b * surplus(t, m, t_to_m) + c * surplus(q, m, q_to_m), c * q * q_to_m};
        y.u = d != d && q != 0 ? d : y.u;
        return y;
    }
    /* That of a pair, without a branch: where threads differ, both sides would be taken anyway. An x of 0 does for a p of
     * 0, where it is m. */
    DEVICE N surplus(N p, N m, N x) {
        N near = p * excess(x), far = fma(p, x - N(1), m);
        return fabs(x) < 1 && p != 0 ? near : far;
    }
    /* log(1 + w (exp(z) - 1)), for w below 1, and a z that is not large. */
    DEVICE float log_plus(float w, float z) {
        float e = power_of_2(z * 1.442695041f);
        return log_near_1(w * (fabs(z) < 1 ? excess(-z) + z : e - 1));
    }

    /* A vector of each side. */
    __device__ __forceinline__ void pairs(const Row &r, const Vector<E> (&x)[1][2], N (&q)[W], N (&f)[W],
                                          N (&u)[W]) const {
        N t[W];
        this->exponentials(x, 0, r.input_top, r.near, q);
        this->exponentials(x, 1, r.target_top, r.near, t);
        N inverse_of_target = r.inverse * r.ratio;
#pragma unroll
        for (int i = 0; i < W; i++) {
            N d = fma(x[0][1].get(i) - x[0][0].get(i), this->inverse_temperature, -r.apart);
            q[i] *= r.inverse;
            t[i] *= inverse_of_target;
            Parts y = p.divergence == GPULOSS_REVERSE_KL ? reverse(t[i], q[i], d) : jensen_shannon(t[i], q[i], d);
            f[i] = y.f;
            u[i] = y.u;
        }
    }

    /* Total variation, all of it times inverse: q, |t - q|, and df/dq. */
    template <int k, int m>
    __device__ __forceinline__ void variations(const Row &r, const Vector<E> (&x)[k][2], N (&q)[m], N (&f)[m],
                                               N (&v)[m]) const {
        this->exponentials(x, 0, r.input_top, r.near, q);
        this->exponentials(x, 1, r.target_top, r.near, v);
#pragma unroll
        for (int i = 0; i < m; i++) {
            N apart = fma(-r.ratio, v[i], q[i]);
            f[i] = fabs(apart);
            v[i] = apart > 0 ? N(0.5) : apart < 0 ? N(-0.5) : apart;
        }
    }

    /* Jensen-Shannon where it is not next to 0: with e the exponentials below the tops, z their log2, and M of the
     * pairs e_input, e_target * ratio, the log2 of both over M, but for that of the ratio. */
    template <int k, int m>
    __device__ __forceinline__ void roughly(const Row &r, const Vector<E> (&x)[k][2], N (&q)[m], N (&t)[m],
                                            N (&q_to_m)[m], N (&t_to_m)[m]) const {
        ScaledExp<N> input(r.input_top, this->inverse_temperature), target(r.target_top, this->inverse_temperature);
        N b = beta * r.ratio, c = N(1) - beta;
#pragma unroll
        for (int i = 0; i < m; i++) {
            N z_input = input.power(x[i / W][0].get(i % W)), z_target = target.power(x[i / W][1].get(i % W));
            q[i] = power_of_2(z_input);
            t[i] = power_of_2(z_target);
            N of_m = log2_of(fma(b, t[i], c * q[i]));
            q_to_m[i] = z_input - of_m;
            t_to_m[i] = z_target - of_m;
        }
    }
    template <int m> DEVICE void drop_zeros(const N (&weight)[m], N (&x)[m]) {
#pragma unroll
        for (int i = 0; i < m; i++)
            x[i] = weight[i] == 0 ? N(0) : x[i];
    }

    using Sides::close;
    __device__ __forceinline__ void close(Row &r, const State &s) const {
        Sides::close(r, s);
        r.mean = r.sum;
        r.ordinary = r.known;
        r.rough = p.divergence == GPULOSS_JENSEN_SHANNON && r.near;
    }
    __device__ __forceinline__ bool wants_sums(const Row &r) const {
        return !r.known;
    }

    __device__ __forceinline__ void add(const Cut<E> &cut, Row &r, int at, int step, const Vector<E> (&x)[K][2],
                                        Sums &sums) const {
        N q[n], f[n], u[n];
        if (r.rough) {
            N t[n];
            roughly(r, x, q, t, u, f);
            N of_t = times(t, f), of_q = times(q, u);
            if (!(fabs(of_t + of_q) < Limits<N>::infinity())) {
                drop_zeros(t, f);
                drop_zeros(q, u);
                of_t = times(t, f), of_q = times(q, u);
                r.zeros = true;
            }
            sums.f += (double)fma(beta * r.ratio, of_t, (N(1) - beta) * of_q);
            sums.u += (double)of_q;
            return;
        }
        if (p.divergence == GPULOSS_TOTAL_VARIATION) {
            variations(r, x, q, f, u);
            sums.f += (double)in_halves<Sum>(f);
            sums.u += (double)times(q, u);
            return;
        }
        exactly(x, at, step, [&](const Vector<E>(&one)[1][2], int v) {
            N q[W], f[W], u[W];
            pairs(r, one, q, f, u);
            if (!cut.whole(v))
#pragma unroll
                for (int i = 0; i < W; i++)
                    if (!cut.inside(cut.first(v) + i))
                        f[i] = u[i] = N(0);
            sums.f += (double)in_halves<Sum>(f);
            sums.u += (double)in_halves<Sum>(u);
        });
    }
    /* What add() does, of all that a thread holds at a time. False where it takes more care. */
    template <class Held> __device__ __forceinline__ bool add_held(Row &r, const Held &held, Sums &sums) const {
        if (p.divergence == GPULOSS_TOTAL_VARIATION && r.near) {
            N all_f = N(0), all_u = N(0);
#pragma unroll kAtOnce
            for (int i = 0; i < Held::vectors; i++) {
                Vector<E> x[1][2] = {{held.vector(i, 0), held.vector(i, 1)}};
                N q[W], f[W], v[W];
                variations(r, x, q, f, v);
                all_f += in_halves<Sum>(f);
                all_u += times(q, v);
            }
            sums.f += (double)all_f;
            sums.u += (double)all_u;
            return true;
        }
        if (!r.rough)
            return false;
        r.kept = writes(r);
        N of_t[4] = {N(0), N(0), N(0), N(0)}, of_q[4] = {N(0), N(0), N(0), N(0)};
#pragma unroll kAtOnce
        for (int i = 0; i < Held::vectors; i++) {
            Vector<E> x[1][2] = {{held.vector(i, 0), held.vector(i, 1)}};
            N q[W], t[W], q_to_m[W], t_to_m[W];
            roughly(r, x, q, t, q_to_m, t_to_m);
#pragma unroll
            for (int j = 0; j < W; j++) {
                of_t[j % 4] = fma(t[j], t_to_m[j], of_t[j % 4]);
                of_q[j % 4] = fma(q[j], q_to_m[j], of_q[j % 4]);
            }
            if (r.kept)
                held.keep(i, 1, q_to_m);
        }
        N all_t = in_halves<Sum>(of_t), all_q = in_halves<Sum>(of_q);
        if (!(fabs(all_t + all_q) < Limits<N>::infinity()))
            return false;
        sums.f += (double)fma(beta * r.ratio, all_t, (N(1) - beta) * all_q);
        sums.u += (double)all_q;
        return true;
    }
    /* For each pair of vectors, with their number: in a loop, as that takes long anyway. */
    template <class What> DEVICE void exactly(const Vector<E> (&x)[K][2], int at, int step, What what) {
        Vector<E> y[K][2];
#pragma unroll
        for (int k = 0; k < K; k++)
            y[k][0] = x[k][0], y[k][1] = x[k][1];
#pragma unroll 1
        for (int k = 0; k < K; k++) {
            Vector<E> one[1][2] = {{y[0][0], y[0][1]}};
            what(one, at + k * step);
            turn(y);
        }
    }
    /* The sum of products. */
    template <int m> DEVICE N times(const N (&a)[m], const N (&b)[m]) {
        N part[m];
#pragma unroll
        for (int i = 0; i < m; i++)
            part[i] = a[i] * b[i];
        return in_halves<Sum>(part);
    }

    /* What is rough has an error of some u: one that this could show in is summed again. */
    __device__ __forceinline__ void close(Row &r, const Sums &sums) const {
        r.known = true;
        r.sum = (N)sums.f;
        r.mean = (N)sums.u;
        if (r.rough) {
            r.sum = N(0.693147181) * fma(r.sum, r.inverse, beta * (natural_log(r.ratio) * N(1.442695041)));
            r.mean *= r.inverse;
            r.known = r.rough = r.ordinary = r.sum > N(0.03125) && r.sum < Limits<N>::infinity();
        } else if (p.divergence == GPULOSS_TOTAL_VARIATION) {
            r.sum *= N(0.5) * r.inverse;
            r.mean *= r.inverse;
            r.ordinary = r.near && r.sum < Limits<N>::infinity();
        }
    }

    __device__ __forceinline__ void work(const Cut<E> &cut, const Row &r, int at, int step, const Vector<E> (&x)[K][2],
                                         bool whole, double &) const {
        N q[n], f[n], u[n], scale = r.inverse * r.scale;
        if (r.rough) {
            N t[n];
            roughly(r, x, q, t, u, f);
            if (r.zeros)
                drop_zeros(q, u);
            scale *= N(0.693147181) * (N(1) - beta);
#pragma unroll
            for (int i = 0; i < n; i++)
                u[i] = q[i] * (u[i] - r.mean);
        } else if (p.divergence == GPULOSS_TOTAL_VARIATION) {
            variations(r, x, q, f, u);
#pragma unroll
            for (int i = 0; i < n; i++)
                u[i] = q[i] * (u[i] - r.mean);
        } else if (p.divergence == GPULOSS_REVERSE_KL && r.near && r.sum < Limits<N>::infinity()) {
            this->exponentials(x, 0, r.input_top, true, q);
            differences(r, x, q, u);
#pragma unroll
            for (int i = 0; i < n; i++)
                u[i] *= q[i];
        } else {
            exactly(x, at, step, [&](const Vector<E>(&one)[1][2], int v) {
                N q[W], f[W], u[W];
                pairs(r, one, q, f, u);
#pragma unroll
                for (int i = 0; i < W; i++)
                    u[i] = fma(u[i] - q[i] * r.mean, r.scale, N(0));
                this->store_gradient(cut, r, v, step, whole, u, false);
            });
            return;
        }
#pragma unroll
        for (int i = 0; i < n; i++)
            u[i] = fma(u[i], scale, N(0));
        this->store_gradient(cut, r, at, step, whole, u, r.rough);
    }
    /* The same of all that a thread holds at a time, which are whole vectors. False where it takes more care. */
    template <class Held>
    __device__ __forceinline__ bool work_held(const Cut<E> &cut, const Row &r, int at, const Held &held) const {
        if (!r.ordinary || r.zeros || !cut.fits((Bits *)p.rows.grad + r.row * p.rows.grad_stride))
            return false;
        char *first = this->gradient_at(cut, r, at);
        N scale = r.inverse * r.scale;
        if (r.rough)
            write_held(first, held, scale * (N(0.693147181) * (N(1) - beta)),
                       [&](int i, const Vector<E>(&x)[1][2], N(&q)[W], N(&u)[W]) {
                           held.kept(i, 1, u);
                           this->exponentials(x, 0, r.input_top, true, q);
                           less(u, r.mean);
                       });
        else if (p.divergence == GPULOSS_TOTAL_VARIATION)
            write_held(first, held, scale, [&](int, const Vector<E>(&x)[1][2], N(&q)[W], N(&u)[W]) {
                N f[W];
                variations(r, x, q, f, u);
                less(u, r.mean);
            });
        else
            write_held(first, held, scale, [&](int, const Vector<E>(&x)[1][2], N(&q)[W], N(&u)[W]) {
                this->exponentials(x, 0, r.input_top, true, q);
                differences(r, x, q, u);
            });
        return true;
    }
    /* Gradients of q u, where `what` gives both. */
    template <class Held, class What>
    __device__ __forceinline__ void write_held(char *to, const Held &held, N scale, What what) const {
#pragma unroll kAtOnce
        for (int i = 0; i < Held::vectors; i++) {
            Vector<E> x[1][2] = {{held.vector(i, 0), held.vector(i, 1)}};
            N q[W], u[W];
            what(i, x, q, u);
#pragma unroll
            for (int j = 0; j < W; j++)
                u[j] = fma(q[j] * u[j], scale, N(0));
            store_whole<E, E>((Bits *)(to + Held::step * (i * GPULOSSI_VECTOR_BYTES)), u, true);
        }
    }
    template <int m> DEVICE void less(N (&u)[m], N mean) {
#pragma unroll
        for (int i = 0; i < m; i++)
            u[i] -= mean;
    }
    /* log(q / t) less its mean under q, where there is a q. */
    template <int k, int m>
    __device__ __forceinline__ void differences(const Row &r, const Vector<E> (&x)[k][2], const N (&q)[m],
                                                N (&u)[m]) const {
        N apart = r.apart - r.mean;
#pragma unroll
        for (int i = 0; i < m; i++)
            u[i] = q[i] == 0 ? N(0)
                             : fma(x[i / W][0].get(i % W) - x[i / W][1].get(i % W), this->inverse_temperature, apart);
    }
    DEVICE float log2_of(float x) {
        float y;
        asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
};

#endif
