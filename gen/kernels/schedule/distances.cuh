/* Jensen-Shannon and total variation of two arrays of logits of one type, and the student's gradient, for clusters. With f of
 * divergence_terms.cuh, u = q df/dq without the part of df/dq that is the same for all classes, and T the temperature:
 *
 *   gradient = (u - q sum_c u) / T
 *
 * For Jensen-Shannon, the pass of the sums overwrites the target's logits in shared memory with log(q / M). The
 * gradient reads it from there. The first pass computes the forward KL as well, which shows whether a row is close to
 * 0. Other rows use a short formula. Close rows use a formula of log p - log q where beta is 1/2. The loader decides
 * the divergence, whether beta is 1/2, and whether there is a gradient. */
#ifndef GPULOSSI_DISTANCES_CUH
#define GPULOSSI_DISTANCES_CUH

#include "kl_logits.cuh"

/* Only Jensen-Shannon needs the mean difference of the two sides. */
struct WeighsForShannon {
    DEVICE bool weighs() { return has(GPULOSSI_KL_JENSEN_SHANNON); }
};

template <class E, int K> struct Distances : Distil<E, K, WeighsForShannon> {
    typedef Distil<E, K, WeighsForShannon> Sides;
    typedef typename Sides::Number N;
    typedef typename Sides::Params Params;
    typedef typename Sides::Totals Totals;
    typedef typename E::Bits Bits;
    using Sides::p;
    enum { W = Sides::W, n = Sides::n, kSums = 1 };
    enum { kStages = GPULOSSI_DISTANCES_STAGES };
    enum { kAtOnce = W < 8 ? 4 : 2, kClose = W < 8 ? 4 : 1 }; /* vectors of each side at a time */
    /* A sum of more than kLeast is not close to 0. In 32 bits a sum of less than kDistant takes polynomials of a wide
     * range. */
    static constexpr double kLeast = 0.03125, kDistant = 0.1;

    typedef typename Sides::State State;
    struct Row : Sides::Row {
        /* The mean of log(q / M) under q, or if `approximate`, of log2(q / M). */
        N mean;
        bool approximate; /* Whether Jensen-Shannon is computed from the logarithm of the mixture. */
        bool distant;     /* Whether it is computed by distant_terms(). */
        bool wide;        /* Whether the polynomials cover a wide range. */
        bool zeros;       /* Whether this thread has met a probability of 0 in these two cases. */
        bool replaced;    /* Whether this thread has overwritten logits with log(q / M) or log2(q / M). */
        bool repeated;    /* Whether the sums take a second pass. */
        bool ordinary;    /* Whether the short formulas of the gradient give finite numbers, and 0 where they should. */
    };
    /* The sums of f and u over `inverse`. If pairs() computes the terms, the sums are final. */
    struct Sums {
        double f, u;
        template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
            double all[2] = {f, u};
            if (has_gradient())
                lanes.template over_all<Sum>(all);
            else
                all[0] = lanes.template over<Sum>(f);
            f = all[0];
            u = all[1];
        }
    };

    N beta, input_share; /* of the target and of the input in M */

    __device__ __forceinline__ explicit Distances(const Params &p)
        : Sides(p), beta((N)p.beta), input_share((N)(1.0 - p.beta)) {}

    DEVICE bool is_variation() { return has(GPULOSSI_KL_TOTAL_VARIATION); }
    DEVICE bool is_shannon() { return has(GPULOSSI_KL_JENSEN_SHANNON); }
    DEVICE bool is_half() { return has(GPULOSSI_KL_HALF_BETA); }
    DEVICE bool has_gradient() { return has(GPULOSSI_KL_GRADIENT); }
    DEVICE bool has_wide() { return is_half() && W < 8; }

    /* The gradient of Jensen-Shannon needs space for floats instead of the target. */
    DEVICE int smem_vectors() { return has_gradient() && is_shannon() ? 1 + W / 4 : 2; }

    __device__ __forceinline__ bool writes(const Row &) const { return has_gradient(); }
    __device__ __forceinline__ Row begin(const Cut<E> &, int64_t row, bool) const {
        Row r;
        r.row = row;
        r.zeros = r.replaced = r.repeated = r.ordinary = false;
        return r;
    }
    template <class SmemStep> __device__ __forceinline__ bool enter_step(State &s, const SmemStep &step) const {
        return Sides::template enter_all<kAtOnce>(s, step);
    }
    /* All false where the features exclude them, which the compiler does not find by itself. */
    DEVICE bool is_approximate(const Row &r) { return is_shannon() && !has_wide() && r.approximate; }
    DEVICE bool is_distant(const Row &r) { return has_wide() && r.distant; }
    DEVICE bool has_zeros(const Row &r) { return !is_variation() && r.zeros; }
    DEVICE bool spoiled(const Row &r) { return is_shannon() && r.replaced; }

    /* q, f and log(q / M) of one vector of each side. */
    __device__ __forceinline__ void pairs(const Row &r, const Vector<E> (&x)[1][2], N (&q)[W], N (&f)[W],
                                          N (&q_to_m)[W]) const {
        N of_input[W], of_target[W], t[W], d[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            of_input[i] = x[0][0].get(i), of_target[i] = x[0][1].get(i);
        this->exponentials(of_input, r.input_max, r.in_fast_range, q);
        this->exponentials(of_target, r.target_max, r.in_fast_range, t);
        this->log_ratios(r, of_input, of_target, N(1), d);
        N inverse_of_target = r.inverse * r.ratio;
#pragma unroll
        for (int i = 0; i < W; i++) {
            q[i] *= r.inverse;
            t[i] *= inverse_of_target;
            const Mixture<N> mixture(beta, input_share, t[i], q[i], d[i], is_half(), W < 8, false);
            f[i] = mixture.divergence();
            q_to_m[i] = mixture.log_q();
        }
    }

    /* The sums of f and u over k vectors of each side, and log(q / M), where beta is 1/2. With y half of d = log(p / q), the
     * root of p q is q exp(y):
     *
     *   f = root (y sinh(y) - cosh(y) log(cosh(y)))            log(q / M) = -y - log(cosh(y))
     *
     * Returns false if a |y| is not below 1, or 2 if `wide`, and the polynomials are not for it. */
    template <bool wide, int k, int m>
    __device__ __forceinline__ bool close_pairs(const Row &r, const Vector<E> (&x)[k][2], N &f, N &u,
                                                N (&q_to_m)[m]) const {
        N of_input[m], of_target[m], y[m], of_f[m], of_u[m];
        bool are_close = true;
#pragma unroll
        for (int i = 0; i < m; i++)
            of_input[i] = x[i / W][0].get(i % W), of_target[i] = x[i / W][1].get(i % W);
        this->log_ratios(r, of_input, of_target, N(0.5), y);
#pragma unroll
        for (int i = 0; i < m; i++)
            are_close &= fabs(y[i]) < (wide ? 2 : 1);
        if (!are_close)
            return false;
        const ScaledExp<N> input(r.input_max, this->inverse_temperature);
#pragma unroll
        for (int i = 0; i < m; i++) {
            const N z = y[i] * y[i], power = input.power(of_input[i]);
            of_f[i] = power_of_2(fma(y[i], N(1.442695041), power)) * (z * divergence_over_square<wide>(z));
            q_to_m[i] = fma(-z, log_cosh_over_square<wide>(z), -y[i]);
            of_u[i] = has_gradient() ? power_of_2(power) * q_to_m[i] : N(0);
        }
        f = r.inverse * in_halves<Sum>(of_f);
        u = r.inverse * in_halves<Sum>(of_u);
        return true;
    }

    /* Computes q over `inverse` and log(q / M) of each pair, where beta is 1/2. With y as above and w = exp(-2 |y|):
     *
     *   log(cosh(y)) = |y| - log(2) + log(1 + w)               f = ((p - q) y - (p + q) log(cosh(y))) / 2
     *
     * Adds both parts of f to `parts`, over inverse / 2. An error of 2^-22 in every logarithm is an error of 2^-23 in the
     * sum. A probability of 0 needs `clamps`: its |y| is 80 then, for which w is 0. */
    struct Parts {
        N slopes[4], curves[4];
        __device__ __forceinline__ N sum() const { return in_halves<Sum>(slopes) - in_halves<Sum>(curves); }
    };
    template <bool clamps, int k, int m>
    __device__ __forceinline__ void distant_terms(const Row &r, const Vector<E> (&x)[k][2], Parts &parts, N (&q)[m],
                                                  N (&q_to_m)[m]) const {
        N of_input[m], of_target[m], y[m], p[m];
#pragma unroll
        for (int i = 0; i < m; i++)
            of_input[i] = x[i / W][0].get(i % W), of_target[i] = x[i / W][1].get(i % W);
        this->log_ratios(r, of_input, of_target, N(0.5), y);
        this->exponentials(of_input, r.input_max, true, q);
        this->exponentials(of_target, r.target_max, true, p);
#pragma unroll
        for (int i = 0; i < m; i++) {
            if (clamps)
                y[i] = larger(-larger(-y[i], N(-80)), N(-80));
            const N of_w = log2_of(N(1) + power_of_2(fabs(y[i]) * N(-2.885390082)));
            const N log_cosh = fma(of_w, N(0.693147181), fabs(y[i]) - N(0.693147181));
            parts.slopes[i % 4] = fma(fma(r.ratio, p[i], -q[i]), y[i], parts.slopes[i % 4]);
            parts.curves[i % 4] = fma(fma(r.ratio, p[i], q[i]), log_cosh, parts.curves[i % 4]);
            q_to_m[i] = -y[i] - log_cosh;
        }
    }

    /* Total variation: q and |t - q|, both over `inverse`, and df/dq for a gradient. */
    template <int k, int m>
    __device__ __forceinline__ void variations(const Row &r, const Vector<E> (&x)[k][2], N (&q)[m], N (&f)[m],
                                               N (&v)[m]) const {
        this->exponentials(x, 0, r.input_max, r.in_fast_range, q);
        this->exponentials(x, 1, r.target_max, r.in_fast_range, v);
#pragma unroll
        for (int i = 0; i < m; i++) {
            N difference = fma(-r.ratio, v[i], q[i]);
            f[i] = fabs(difference);
            v[i] = !has_gradient() ? N(0) : difference > 0 ? N(0.5) : difference < 0 ? N(-0.5) : difference;
        }
    }

    /* Jensen-Shannon where it is not close to 0. Computes e, the exponentials of the logits less their row maximum, and
     * log2(q / M) and log2(p / M). In 32 bits an error of 2^-22 in a logarithm would show in the sum. ex2.approx is
     * 2^-24 low on average, which would be in every log2(M). With d = log2(p / q) it is in the smaller share of M only:
     *
     *   log2(p / M) = -log2(b + c 2^-d)  where d > 0           log2(q / M) = log2(p / M) - d
     *
     * In 16 bits, with z the log2 of e, they are z - log2(M), where M is that of e_input and e_target * ratio. That of the
     * target lacks log2(ratio). */
    template <int k, int m>
    __device__ __forceinline__ void approximate_terms(const Row &r, const Vector<E> (&x)[k][2], N (&q)[m], N (&t)[m],
                                                      N (&q_to_m)[m], N (&t_to_m)[m]) const {
        const ScaledExp<N> input(r.input_max, this->inverse_temperature),
            target(r.target_max, this->inverse_temperature);
        const N b = beta * r.ratio, c = input_share;
        N of_input[m], of_target[m], d[m];
#pragma unroll
        for (int i = 0; i < m; i++)
            of_input[i] = x[i / W][0].get(i % W), of_target[i] = x[i / W][1].get(i % W);
        if (W < 8)
            this->log_ratios(r, of_input, of_target, N(1.442695041), d);
#pragma unroll
        for (int i = 0; i < m; i++) {
            const N z_input = input.power(of_input[i]), z_target = target.power(of_target[i]);
            q[i] = power_of_2(z_input);
            t[i] = power_of_2(z_target);
            if (W < 8) {
                const bool is_less = d[i] < 0; /* p is less than q */
                const N less = power_of_2(-fabs(d[i]));
                const N of_larger = -ordinary_log2(is_less ? fma(beta, less, c) : fma(c, less, beta));
                q_to_m[i] = of_larger - larger(d[i], N(0));
                t_to_m[i] = of_larger - larger(-d[i], N(0));
            } else {
                const N of_m = log2_of(fma(b, t[i], c * q[i]));
                q_to_m[i] = z_input - of_m;
                t_to_m[i] = z_target - of_m;
            }
        }
    }
    template <int m> DEVICE void drop_zeros(const N (&weight)[m], N (&x)[m]) {
#pragma unroll
        for (int i = 0; i < m; i++)
            x[i] = weight[i] == 0 ? N(0) : x[i];
    }

    using Sides::close;
    /* Close to 0, Jensen-Shannon is beta (1 - beta) times the forward KL. */
    __device__ __forceinline__ void close(Row &r, const State &s) const {
        Sides::close(r, s);
        r.known = false;
        const N sum = beta * input_share * r.sum;
        r.approximate = r.in_fast_range && sum > N(kLeast);
        r.distant = r.in_fast_range && sum > N(kDistant);
        r.wide = sum > N(kLeast);
    }
    __device__ __forceinline__ bool wants_sums(const Row &r) const {
        return uniform(!r.known);
    }

    __device__ __forceinline__ void add(const Cut<E> &cut, Row &r, int at, int step, const Vector<E> (&x)[K][2],
                                        Sums &sums) const {
        N q[n], f[n], u[n];
        if (is_approximate(r)) {
            N t[n];
            approximate_terms(r, x, q, t, u, f);
            N of_t = times(t, f), of_q = times(q, u);
            if (!(fabs(of_t + of_q) < Limits<N>::infinity())) {
                drop_zeros(t, f);
                drop_zeros(q, u);
                of_t = times(t, f), of_q = times(q, u);
                r.zeros = true;
            }
            sums.f += (double)fma(beta * r.ratio, of_t, input_share * of_q);
            sums.u += (double)of_q;
            return;
        }
        if (is_distant(r)) {
            Parts parts = {};
            distant_terms<true>(r, x, parts, q, u);
            sums.f += (double)(N(0.5) * r.inverse * parts.sum());
            sums.u += (double)(r.inverse * times(q, u));
            return;
        }
        if (is_variation()) {
            variations(r, x, q, f, u);
            sums.f += (double)in_halves<Sum>(f);
            sums.u += (double)times(q, u);
            return;
        }
        for_each_pair(x, at, step, [&](const Vector<E>(&one)[1][2], int v) {
            N q[W], f[W], q_to_m[W];
            pairs(r, one, q, f, q_to_m);
            if (!cut.whole(v))
#pragma unroll
                for (int i = 0; i < W; i++)
                    if (!cut.inside(cut.first(v) + i))
                        f[i] = q[i] = N(0);
            sums.f += (double)in_halves<Sum>(f);
            sums.u += (double)times(q, q_to_m);
        });
    }
    /* Does the add() of all vectors of a thread in a stage. Returns false if the general code is needed. */
    template <class SmemStep> __device__ __forceinline__ bool add_step(Row &r, const SmemStep &step, Sums &sums) const {
        if (is_variation() && r.in_fast_range) {
            N all_f = N(0), all_u = N(0);
#pragma unroll kAtOnce
            for (int i = 0; i < SmemStep::vectors; i++) {
                Vector<E> x[1][2] = {{step.vector(i, 0), step.vector(i, 1)}};
                N q[W], f[W], v[W];
                variations(r, x, q, f, v);
                all_f += in_halves<Sum>(f);
                all_u += times(q, v);
            }
            sums.f += (double)all_f;
            sums.u += (double)all_u;
            return true;
        }
        if (is_variation() || !r.in_fast_range || r.repeated)
            return false;
        r.replaced = writes(r);
        if (is_distant(r))
            return add_distant(r, step, sums);
        if (!is_approximate(r)) {
            add_pairs(r, step, sums);
            return true;
        }
        N of_t[4] = {N(0), N(0), N(0), N(0)}, of_q[4] = {N(0), N(0), N(0), N(0)};
#pragma unroll kAtOnce
        for (int i = 0; i < SmemStep::vectors; i++) {
            Vector<E> x[1][2] = {{step.vector(i, 0), step.vector(i, 1)}};
            N q[W], t[W], q_to_m[W], t_to_m[W];
            approximate_terms(r, x, q, t, q_to_m, t_to_m);
#pragma unroll
            for (int j = 0; j < W; j++) {
                of_t[j % 4] = fma(t[j], t_to_m[j], of_t[j % 4]);
                of_q[j % 4] = fma(q[j], q_to_m[j], of_q[j % 4]);
            }
            if (r.replaced)
                step.store(i, 1, q_to_m);
        }
        N all_t = in_halves<Sum>(of_t), all_q = in_halves<Sum>(of_q);
        if (!(fabs(all_t + all_q) < Limits<N>::infinity()))
            return false;
        sums.f += (double)fma(beta * r.ratio, all_t, input_share * all_q);
        sums.u += (double)all_q;
        return true;
    }
    /* The add_step() of a row with distant_terms(). */
    template <class SmemStep>
    __device__ __forceinline__ bool add_distant(Row &r, const SmemStep &step, Sums &sums) const {
        Parts parts = {};
        N all_u = N(0);
#pragma unroll kAtOnce
        for (int i = 0; i < SmemStep::vectors; i++) {
            const Vector<E> x[1][2] = {{step.vector(i, 0), step.vector(i, 1)}};
            N q[W], q_to_m[W];
            distant_terms<false>(r, x, parts, q, q_to_m);
            all_u += has_gradient() ? times(q, q_to_m) : N(0);
            if (r.replaced)
                step.store(i, 1, q_to_m);
        }
        const N sum = parts.sum();
        r.zeros = r.zeros || !(fabs(sum) < Limits<N>::infinity());
        if (r.zeros)
            return false;
        sums.f += (double)(N(0.5) * r.inverse * sum);
        sums.u += (double)(r.inverse * all_u);
        return true;
    }
    /* The add_step() of a row that is close to 0. */
    template <class SmemStep>
    __device__ __forceinline__ void add_pairs(const Row &r, const SmemStep &step, Sums &sums) const {
        N all_f = N(0), all_u = N(0), f, u;
#pragma unroll 1
        for (int i = 0; i < SmemStep::vectors; i += kClose) {
            Vector<E> x[kClose][2];
            N q_to_m[kClose * W];
#pragma unroll
            for (int j = 0; j < kClose; j++)
                x[j][0] = step.vector(i + j, 0), x[j][1] = step.vector(i + j, 1);
            if (is_half() && (has_wide() && r.wide ? close_pairs<true>(r, x, f, u, q_to_m)
                                                   : close_pairs<false>(r, x, f, u, q_to_m))) {
                all_f += f;
                all_u += u;
#pragma unroll
                for (int j = 0; j < kClose; j++)
                    if (r.replaced)
                        step.store(i + j, 1, (const N(&)[W])q_to_m[j * W]);
                continue;
            }
#pragma unroll 1
            for (int j = i; j < i + kClose; j++)
                add_pair(r, step, j, all_f, all_u);
        }
        sums.f += (double)all_f;
        sums.u += (double)all_u;
    }
    /* Adds the sums of f and u of any vectors. */
    template <class SmemStep>
    __device__ __forceinline__ void add_pair(const Row &r, const SmemStep &step, int i, N &f, N &u) const {
        const Vector<E> x[1][2] = {{step.vector(i, 0), step.vector(i, 1)}};
        N q[W], of_f[W], q_to_m[W];
        pairs(r, x, q, of_f, q_to_m);
        f += in_halves<Sum>(of_f);
        u += has_gradient() ? times(q, q_to_m) : N(0);
        if (r.replaced)
            step.store(i, 1, q_to_m);
    }
    /* Calls `use` for each pair of vectors, with its number. The loop is not unrolled, since the terms take long
     * anyway. */
    template <class Use> DEVICE void for_each_pair(const Vector<E> (&x)[K][2], int at, int step, Use use) {
        Vector<E> y[K][2];
#pragma unroll
        for (int k = 0; k < K; k++)
            y[k][0] = x[k][0], y[k][1] = x[k][1];
#pragma unroll 1
        for (int k = 0; k < K; k++) {
            Vector<E> one[1][2] = {{y[0][0], y[0][1]}};
            use(one, at + k * step);
            rotate(y);
        }
    }
    /* The sum of the products. */
    template <int m> DEVICE N times(const N (&a)[m], const N (&b)[m]) {
        N part[m];
#pragma unroll
        for (int i = 0; i < m; i++)
            part[i] = a[i] * b[i];
        return in_halves<Sum>(part);
    }

    /* The sums of approximate and distant terms have an error of a few u. A row whose sum is at most kLeast could show it,
     * so it is summed again. */
    __device__ __forceinline__ void close(Row &r, const Sums &sums) const {
        r.known = true;
        r.sum = (N)sums.f;
        r.mean = (N)sums.u;
        if (is_approximate(r)) {
            const N of_ratio = W < 8 ? N(0) : beta * (natural_log(r.ratio) * N(1.442695041));
            r.sum = N(0.693147181) * fma(r.sum, r.inverse, of_ratio);
            r.mean *= r.inverse;
            r.known = r.approximate = r.ordinary = r.sum > N(kLeast) && r.sum < Limits<N>::infinity();
            r.repeated = !r.known;
        } else if (is_distant(r)) {
            r.known = r.distant = r.ordinary = r.sum > N(kLeast) && r.sum < Limits<N>::infinity();
            r.repeated = !r.known;
        } else if (is_variation()) {
            r.sum *= N(0.5) * r.inverse;
            r.mean *= r.inverse;
            r.ordinary = r.in_fast_range && r.sum < Limits<N>::infinity();
        } else {
            r.ordinary = r.in_fast_range && !r.repeated && r.sum < Limits<N>::infinity();
        }
    }

    __device__ __forceinline__ void work(const Cut<E> &cut, const Row &r, int at, int step, const Vector<E> (&x)[K][2],
                                         bool whole, double &) const {
        N q[n], f[n], u[n], scale = r.inverse * r.scale;
        if (is_approximate(r)) {
            N t[n];
            approximate_terms(r, x, q, t, u, f);
            if (has_zeros(r))
                drop_zeros(q, u);
            scale *= N(0.693147181) * input_share;
#pragma unroll
            for (int i = 0; i < n; i++)
                u[i] = q[i] * (u[i] - r.mean);
        } else if (is_distant(r) || is_variation()) {
            if (is_distant(r)) {
                Parts parts = {};
                distant_terms<true>(r, x, parts, q, u);
                scale *= input_share;
            } else {
                variations(r, x, q, f, u);
            }
#pragma unroll
            for (int i = 0; i < n; i++)
                u[i] = q[i] * (u[i] - r.mean);
        } else {
            for_each_pair(x, at, step, [&](const Vector<E>(&one)[1][2], int v) {
                N q[W], f[W], u[W];
                pairs(r, one, q, f, u);
#pragma unroll
                for (int i = 0; i < W; i++)
                    u[i] = fma(q[i] == 0 ? N(0) : q[i] * (u[i] - r.mean), r.scale * input_share, N(0));
                this->store_gradient(cut, r, v, step, whole, u, false);
            });
            return;
        }
#pragma unroll
        for (int i = 0; i < n; i++)
            u[i] = fma(u[i], scale, N(0));
        this->store_gradient(cut, r, at, step, whole, u, is_approximate(r));
    }
    /* Does the work() of all vectors of a thread in a stage, which are whole. Returns false if the general code is
     * needed. */
    template <class SmemStep>
    __device__ __forceinline__ bool write_step(const Cut<E> &cut, const Row &r, int at, const SmemStep &step,
                                               double &) const {
        if (!r.ordinary || has_zeros(r) || !cut.fits((Bits *)p.rows.grad + r.row * p.rows.grad_stride))
            return false;
        char *first = this->gradient_at(cut, r, at);
        N scale = r.inverse * r.scale;
        if (!is_variation())
            write_vectors(first, step, scale * input_share * (is_approximate(r) ? N(0.693147181) : N(1)),
                          [&](int i, const Vector<E>(&x)[1][2], N(&q)[W], N(&u)[W]) {
                              step.load(i, 1, u);
                              this->exponentials(x, 0, r.input_max, true, q);
                              less(u, r.mean);
                          });
        else
            write_vectors(first, step, scale, [&](int, const Vector<E>(&x)[1][2], N(&q)[W], N(&u)[W]) {
                N f[W];
                variations(r, x, q, f, u);
                less(u, r.mean);
            });
        return true;
    }
    /* Writes the gradients q u scale, where `use` gives q and u. */
    template <class SmemStep, class Use>
    __device__ __forceinline__ void write_vectors(char *to, const SmemStep &step, N scale, Use use) const {
#pragma unroll kAtOnce
        for (int i = 0; i < SmemStep::vectors; i++) {
            Vector<E> x[1][2] = {{step.vector(i, 0), step.vector(i, 1)}};
            N q[W], u[W];
            use(i, x, q, u);
#pragma unroll
            for (int j = 0; j < W; j++)
                u[j] = fma(q[j] * u[j], scale, N(0));
            store_whole<E, E>((Bits *)(to + SmemStep::step * (i * GPULOSSI_VECTOR_BYTES)), u, true);
        }
    }
    template <int m> DEVICE void less(N (&u)[m], N mean) {
#pragma unroll
        for (int i = 0; i < m; i++)
            u[i] -= mean;
    }
};

#endif
