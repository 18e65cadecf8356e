/* Cross-entropy of a row of logits x against a class index y or probabilities t, with every option. With w the class
 * weights, r the row weight, e the label smoothing, C classes, and z the logits after scale and softcap:
 *
 *   soft_c = w_c (e/C + (1-e) t_c)      hard = (1-e) w_y, 0 with probabilities      rest = sum_c soft_c + 2 L lse
 *   loss   = r (hard (lse - z_y) + sum_c soft_c (lse - z_c) + L lse^2)
 *   dz_c   = s r (p_c (hard + rest) - soft_c - hard [c = y])
 *   dx_c   = dz_c scale (1 - (z_c / softcap)^2)
 *   dt_c   = s r (1-e) w_c (lse - z_c)
 *
 * The loss works on vectors of a row in registers. It knows no thread and no barrier. */
#ifndef GPULOSSI_CROSS_ENTROPY_CUH
#define GPULOSSI_CROSS_ENTROPY_CUH

#include "../device/any_dtype.cuh"
#include "../device/grid.cuh"
#include "../device/online_softmax.cuh"
#include "targets.cuh"

template <class E> struct CrossEntropy {
    typedef E Element;
    typedef typename E::Number N;
    typedef typename E::Bits Bits;
    typedef gpulossi_cross_entropy Params;
    typedef FormatArray<E, GPULOSSI_FORMAT_GRADIENT_SHIFT> Gradients;
    typedef FormatArray<E, GPULOSSI_FORMAT_TARGET_SHIFT> Targets; /* probabilities, and their gradients */
    enum { W = Width<E>::value };

    /* The place of a row's target among the classes of this launch, or why there is none. */
    enum { kIgnored = -1, kBad = -2, kInOtherShard = -3, kNoIndex = -4 };

    /* Sums over the rows of a launch that a variant has. */
    struct Wanted {
        DEVICE bool sum(int i) {
            return i == GPULOSSI_SUM_LOSS     ? has(GPULOSSI_CE_LOSS)
                   : i == GPULOSSI_SUM_Z_LOSS ? has(GPULOSSI_CE_Z_OUTPUTS)
                                              : has(GPULOSSI_CE_COUNTS) && has(GPULOSSI_CE_CLASS_WEIGHTS);
        }
        DEVICE bool count(int i) {
            return i == GPULOSSI_COUNT_ROWS ? has(GPULOSSI_CE_COUNTS) : has(GPULOSSI_CE_ARGMAX);
        }
    };
    typedef Total<GPULOSSI_SUMS, GPULOSSI_COUNTS, Wanted> Totals;

    DEVICE bool has_soft() { return has(GPULOSSI_CE_PROBABILITIES | GPULOSSI_CE_SMOOTHING); }
    DEVICE bool has_index() { return !has(GPULOSSI_CE_PROBABILITIES); }
    DEVICE bool has_transform() { return has(GPULOSSI_CE_LOGIT_SCALE | GPULOSSI_CE_SOFTCAP); }
    DEVICE bool finds_best() { return has(GPULOSSI_CE_ARGMAX | GPULOSSI_CE_SHARD); }
    /* Whether a sweep has nothing but a softmax to work out. */
    DEVICE bool is_basic() { return !has_soft() && !has_transform(); }
    DEVICE bool sums_only() { return is_basic() && !finds_best(); }
    DEVICE bool writes() { return has(GPULOSSI_CE_GRADIENT | GPULOSSI_CE_TARGET_GRADIENT); }
    /* Whether the state of a row is needed. */
    DEVICE bool reduces() {
        return !has(GPULOSSI_CE_LSE_IN) || has(GPULOSSI_CE_PROBABILITIES) || finds_best() ||
               (has(GPULOSSI_CE_SMOOTHING) && has(GPULOSSI_CE_LOSS | GPULOSSI_CE_ROW_OUTPUTS));
    }
    DEVICE bool reads_class_weights() { return has_soft() && has(GPULOSSI_CE_CLASS_WEIGHTS); }
    DEVICE bool reads_probabilities() { return has(GPULOSSI_CE_PROBABILITIES); }

    const Params &p;
    /* In registers, where a variant needs them. */
    N keep, smooth, scale, softcap, inverse_softcap;

    /* All threads of the block call. */
    __device__ __forceinline__ explicit CrossEntropy(const Params &p) : p(p) {
        keep = (N)(1.0 - p.label_smoothing);
        smooth = (N)(p.label_smoothing / (double)p.total_classes);
        scale = (N)p.logit_scale;
        softcap = (N)p.softcap;
        inverse_softcap = (N)(p.softcap > 0 ? 1.0 / p.softcap : 0.0);
        if (writes()) {
            double part = has_index() ? rows_that_divide(p) : 1.0;
            if (threadIdx.x == 0) /* a mean over no rows, or over rows of no weight, has the gradient 0 */
                grad_scale() = part != 0 ? gradient_scale<N>(p.rows, part) : 0.0;
        }
        __syncthreads();
    }

    __device__ __forceinline__ gpulossi_scratch *scratch() const { return (gpulossi_scratch *)p.rows.scratch; }
    __device__ __forceinline__ const Bits *logits(int64_t row) const {
        return (const Bits *)p.logits + row * p.logits_stride;
    }
    __device__ __forceinline__ N padding() const { return -Limits<N>::infinity(); }

    /* ---- what belongs to a row ---- */

    /* Fetched a row ahead. */
    struct RowInput {
        int64_t index;
        N weight;
    };
    __device__ __forceinline__ RowInput fetch(int64_t row) const {
        RowInput in = {0, N(1)};
        if (has_index())
            in.index = read_target(p, row);
        if (has(GPULOSSI_CE_ROW_WEIGHTS))
            in.weight = ((const N *)p.row_weights)[row];
        return in;
    }
    __device__ __forceinline__ int64_t place_of(const RowInput &in) const {
        if (!has_index())
            return kNoIndex;
        Target target = kind_of(p, in.index);
        if (target != kClass)
            return target == ::kIgnored ? (int64_t)kIgnored : (int64_t)kBad;
        int64_t place = in.index - p.class_offset;
        return place >= 0 && place < p.rows.classes ? place : (int64_t)kInOtherShard;
    }
    /* Whether a row has a loss and gradients, and not just zeros or a NaN, whatever it holds. */
    __device__ __forceinline__ bool counts(int64_t place, const RowInput &in) const {
        return place != kIgnored && place != kBad && (!has(GPULOSSI_CE_ROW_WEIGHTS) || in.weight != 0);
    }
    /* Whether its logits have to be read. */
    __device__ __forceinline__ bool is_read(int64_t place, const RowInput &in) const {
        return counts(place, in) || finds_best() || p.lse != 0;
    }

    struct Row {
        int64_t place;
        N hard, weight, lse; /* weight: 0 where the row does not count; lse: where one was given */
    };
    __device__ __forceinline__ Row row_of(int64_t row, int64_t place, const RowInput &in) const {
        Row r = {place, N(0), counts(place, in) ? in.weight : N(0), N(0)};
        if (place >= 0 || place == kInOtherShard) {
            r.hard = has(GPULOSSI_CE_SMOOTHING) ? keep : N(1);
            if (has(GPULOSSI_CE_CLASS_WEIGHTS))
                r.hard *= class_weight(in.index);
        }
        if (has(GPULOSSI_CE_LSE_IN))
            r.lse = ((const N *)p.lse_in)[row];
        return r;
    }
    __device__ __forceinline__ ResultArray<E> class_weights() const {
        return ResultArray<E>((const N *)p.class_weights + p.class_offset);
    }
    __device__ __forceinline__ N class_weight(int64_t c) const { return ((const N *)p.class_weights)[c]; }
    /* Its target's logit as given, if it is here. */
    __device__ __forceinline__ N target_logit(int64_t row, int64_t place) const {
        return place >= 0 ? E::widen(logits(row)[place]) : N(0);
    }

    /* ---- scale and softcap ---- */

    /* tanh |a| and its derivative, from e = exp(-2 |a|): that is 4e / (1 + e)^2, which keeps its digits where tanh is next
     * to 1. ScaledExp 1 a polynomial is nearer to tanh: within 1.5u of it. */
    DEVICE void tanh_of(float a, float &tanh, float &slope) {
        float size = fabs(a), e = power_of_2(size * -2.885390082f), r = quick_reciprocal(1.0f + e), z = a * a;
        float series = fmaf(fmaf(fmaf(-4.237463e-04f, z, 2.51967646e-03f), z, -8.2293814e-03f), z, 2.16655992e-02f);
        series = fmaf(fmaf(fmaf(series, z, -5.3936094e-02f), z, 1.33331403e-01f), z, -3.33333313e-01f);
        tanh = size < 1.0f ? fmaf(a * z, series, a) : copysignf(fmaf(-2.0f * e, r, 1.0f), a);
        slope = 4.0f * e * r * r;
    }
    DEVICE void tanh_of(double a, double &tanh, double &slope) {
        double e = exp(-2.0 * fabs(a)), r = 1.0 / (1.0 + e);
        tanh = ::tanh(a);
        slope = 4.0 * e * r * r;
    }
    /* The logit that the softmax sees, and its derivative. A class that is masked by -inf stays masked. */
    __device__ __forceinline__ N transformed(N x, N &slope) const {
        slope = N(1);
        if (has(GPULOSSI_CE_LOGIT_SCALE)) {
            x *= scale;
            slope = scale;
        }
        if (has(GPULOSSI_CE_SOFTCAP)) {
            N of_tanh, tanh;
            tanh_of(x * inverse_softcap, tanh, of_tanh);
            x = x == padding() ? x : softcap * tanh;
            slope *= of_tanh;
        }
        return x;
    }
    __device__ __forceinline__ N transformed(N x) const {
        N slope;
        return transformed(x, slope);
    }

    /* ---- first sweep: online softmax, and what is spread over the classes ---- */

    struct State {
        OnlineSoftmax<N> softmax;
        N soft;       /* sum of soft_c */
        N drop;       /* sum of soft_c (max - z_c) */
        int64_t best; /* class of the maximum; less kNan for the class of a NaN, which is larger than any number */

        static const int64_t kNone = INT64_MAX, kNan = (int64_t)1 << 62;

        DEVICE State empty() {
            State s = {OnlineSoftmax<N>::empty(), N(0), N(0), kNone};
            return s;
        }
        __device__ __forceinline__ void raise(N higher) {
            if (has_soft() && higher != softmax.max && soft != 0)
                drop += soft * (softmax.finite(higher) - softmax.finite(softmax.max));
            if (finds_best() && best >= 0 && higher != softmax.max)
                best = kNone;
            softmax.raise(higher);
        }
        template <class Lanes> __device__ __forceinline__ void reduce(const Lanes &lanes) {
            raise(largest_over(lanes, softmax.max));
            softmax.sum = lanes.template over<Sum>(softmax.sum);
            if (has_soft()) {
                soft = lanes.template over<Sum>(soft);
                drop = lanes.template over<Sum>(drop);
            }
            if (finds_best())
                best = lanes.template over<Minimum>((long long)best);
        }
        /* A row with nothing above -inf has its first class. */
        __device__ __forceinline__ int64_t argmax() const { return best == kNone ? 0 : best < 0 ? best + kNan : best; }
    };

    /* Raises the maximum of a state to that of these vectors. */
    template <int K> __device__ __forceinline__ void raise(State &s, const Vector<E> (&x)[K]) const {
        s.raise(larger(s.softmax.max, highest(x)));
    }
    template <int K> __device__ __forceinline__ N highest(const Vector<E> (&x)[K]) const {
        if (!has(GPULOSSI_CE_LOGIT_SCALE) || scale > 0)
            return transformed(LargestOf<E, K>::of(x, false));
        return transformed(-LargestOf<E, K>::of(x, true)); /* of a negative scale the least logit is the highest */
    }

    /* Adds vectors, of which no element is above the maximum, where there is nothing but sums of exponentials. */
    template <int K> __device__ __forceinline__ void accumulate_sums(State &s, Vector<E> (&x)[K]) const {
        s.softmax.template add<E, K>(x);
    }
    /* Adds a vector with every option. A schedule's Side says which row it is of, and where in it: first(k) is the first
     * class of vector k, is_inside(k, i) whether its element i is in the row; read(array, k, y) and write(array, k, y)
     * access the same classes of another array, and read_of_classes() an array of all rows. */
    template <class Side>
    __device__ __forceinline__ void accumulate(State &s, const Vector<E> &x, const Side &side, int k) const {
        const N from = s.softmax.finite(s.softmax.max);
        N z[W], part[W];
        x.unpack(z);
#pragma unroll
        for (int i = 0; i < W; i++) {
            z[i] = transformed(z[i]);
            part[i] = exp_below(z[i], from);
        }
        s.softmax.sum += in_halves<Sum>(part);
        if (finds_best())
            find_best(s, z, side.first(k));
        if (!has_soft())
            return;
        N soft[W];
        soft_of(side, k, soft);
#pragma unroll
        for (int i = 0; i < W; i++)
            part[i] = soft[i] == 0 ? N(0) : soft[i] * (from - z[i]); /* no soft target, no part, whatever the logit */
        s.drop += in_halves<Sum>(part);
        s.soft += in_halves<Sum>(soft);
    }
    template <class Side> __device__ __forceinline__ void soft_of(const Side &side, int k, N (&soft)[W]) const {
        if (has(GPULOSSI_CE_PROBABILITIES))
            side.read(Targets(p.probabilities, side.row * p.probabilities_stride), k, soft);
#pragma unroll
        for (int i = 0; i < W; i++) {
            if (has(GPULOSSI_CE_SMOOTHING))
                soft[i] = has(GPULOSSI_CE_PROBABILITIES) ? fma(keep, soft[i], smooth) : smooth;
            if (has(GPULOSSI_CE_SMOOTHING) && !side.is_inside(k, i))
                soft[i] = N(0);
        }
        if (has(GPULOSSI_CE_CLASS_WEIGHTS)) {
            N w[W];
            side.read_of_classes(class_weights(), k, w);
#pragma unroll
            for (int i = 0; i < W; i++)
                soft[i] *= w[i];
        }
    }
    __device__ __forceinline__ void find_best(State &s, const N (&z)[W], int64_t first) const {
        int at = W, of_nan = W;
#pragma unroll
        for (int i = W - 1; i >= 0; i--) {
            at = z[i] == s.softmax.max ? i : at;
            of_nan = z[i] != z[i] ? i : of_nan;
        }
        if (at < W && s.softmax.max != padding())
            s.best = Minimum::of(s.best, first + at);
        if (of_nan < W)
            s.best = Minimum::of(s.best, first + of_nan - State::kNan);
    }

    /* ---- second sweep: gradients ---- */

    /* p = exp(z - shift) inverse; all that the gradients of a row have in common. */
    struct Gradient {
        N shift, inverse, log_sum; /* log_sum = lse - shift */
        N scale, hard, rest;
        ScaledExp<N> exp; /* of a basic row: g = exp(x) weight */
        N weight;
        bool is_fast, is_zero;
    };
    __device__ __forceinline__ Gradient gradient(int64_t row, const Row &r, const State &s) const {
        Gradient g = {s.softmax.max, N(1), N(0), N(0), r.hard, N(0), ScaledExp<N>(N(0)), N(0), false, false};
        if (has(GPULOSSI_CE_LSE_IN)) {
            g.shift = r.lse;
        } else {
            g.inverse = reciprocal(s.softmax.sum);
            if (has(GPULOSSI_CE_Z_LOSS | GPULOSSI_CE_TARGET_GRADIENT))
                g.log_sum = natural_log(s.softmax.sum);
        }
        double factor = grad_scale();
        if (has(GPULOSSI_CE_ROW_GRADIENTS))
            factor *= ((const N *)p.rows.grad_loss_rows)[row];
        if (has(GPULOSSI_CE_ROW_WEIGHTS))
            factor *= r.weight;
        g.scale = (N)factor;
        g.is_zero = r.place == kIgnored || r.place == kBad || (has(GPULOSSI_CE_ROW_WEIGHTS) && r.weight == 0);
        if (has_soft())
            g.rest = reduces()                        ? s.soft
                     : has(GPULOSSI_CE_CLASS_WEIGHTS) ? smooth * (N)scratch()->class_weights
                                                      : (N)p.label_smoothing;
        if (has(GPULOSSI_CE_Z_LOSS))
            g.rest += N(2) * (N)p.lse_square_scale * (g.shift + g.log_sum);
        g.exp = ScaledExp<N>(g.shift);
        if (is_basic()) {
            g.weight = g.scale * g.inverse * g.exp.factor;
            if (has(GPULOSSI_CE_CLASS_WEIGHTS | GPULOSSI_CE_Z_LOSS))
                g.weight *= g.hard + g.rest;
            g.is_fast = ScaledExp<N>::in_fast_range(g.shift) && g.weight == g.weight && !g.is_zero;
        }
        return g;
    }
    /* Of the logits of a vector, as if none of them were the target's: with every option, ... */
    template <class Side>
    __device__ __forceinline__ void gradients(const Gradient &g, const Vector<E> &x, const Side &side, int k,
                                              N (&of_x)[W]) const {
        N soft[W];
        const N weight = g.inverse * (g.hard + g.rest);
        x.unpack(of_x);
#pragma unroll
        for (int i = 0; i < W; i++)
            soft[i] = N(0);
        if (has_soft())
            soft_of(side, k, soft);
#pragma unroll
        for (int i = 0; i < W; i++) {
            N slope, z = transformed(of_x[i], slope);
            of_x[i] = fma(exp_below(z, g.shift), weight, -soft[i]) * g.scale;
            if (has_transform())
                of_x[i] = of_x[i] == 0 ? of_x[i] : of_x[i] * slope;
            of_x[i] += N(0); /* -0 becomes 0 */
        }
        if (g.is_zero)
#pragma unroll
            for (int i = 0; i < W; i++)
                of_x[i] = N(0);
    }
    /* ... and of a basic row that is fast. */
    __device__ __forceinline__ void fast_gradients(const Gradient &g, const Vector<E> &x, N (&of_x)[W]) const {
        x.unpack(of_x);
#pragma unroll
        for (int i = 0; i < W; i++)
            of_x[i] = g.exp.exp(of_x[i]) * g.weight;
    }
    /* The target's, of a logit as given. p is at most 1, whatever was rounded, so that this is at most 0 by itself. */
    __device__ __forceinline__ N target_gradient(const Gradient &g, const Row &r, N x) const {
        N slope, z = transformed(x, slope), p = exp_below(z, g.shift) * g.inverse, soft = N(0);
        p = p > N(1) ? N(1) : p;
        if (has(GPULOSSI_CE_SMOOTHING)) {
            soft = smooth;
            if (has(GPULOSSI_CE_CLASS_WEIGHTS))
                soft *= class_weight(this->p.class_offset + r.place);
        }
        N of_z = g.hard * (p - N(1));
        if (has_soft() || has(GPULOSSI_CE_Z_LOSS))
            of_z += p * g.rest - soft;
        of_z *= g.scale;
        of_z = has_transform() && of_z != 0 ? of_z * slope : of_z;
        return g.is_zero ? N(0) : of_z;
    }
    /* Of the target probabilities of a vector. */
    template <class Side>
    __device__ __forceinline__ void probability_gradients(const Gradient &g, const Vector<E> &x, const Side &side,
                                                          int k, N (&of_t)[W]) const {
        N w[W];
        x.unpack(of_t);
#pragma unroll
        for (int i = 0; i < W; i++)
            w[i] = N(1);
        if (has(GPULOSSI_CE_CLASS_WEIGHTS))
            side.read_of_classes(class_weights(), k, w);
#pragma unroll
        for (int i = 0; i < W; i++) {
            N mass = has(GPULOSSI_CE_SMOOTHING) ? keep * w[i] : w[i];
            N of_class = g.scale * mass * (g.log_sum + (g.shift - transformed(of_t[i])));
            of_t[i] = mass == 0 || g.is_zero ? N(0) : of_class;
        }
    }

    /* Writes the gradients of a vector, whose element `target` is the target's, unless that is negative: with every option,
     * and of a basic row that is fast. */
    template <class Side>
    __device__ __forceinline__ void write(const Gradient &g, const Row &r, const Vector<E> &x, const Side &side, int k,
                                          int target) const {
        N y[W];
        if (has(GPULOSSI_CE_GRADIENT)) {
            gradients(g, x, side, k, y);
            write_with_target(g, r, x, side, k, target, y);
        }
        if (has(GPULOSSI_CE_TARGET_GRADIENT)) {
            probability_gradients(g, x, side, k, y);
            side.write(Targets(p.grad_probabilities, side.row * p.grad_probabilities_stride), k, y);
        }
    }
    template <class Side>
    __device__ __forceinline__ void write_fast(const Gradient &g, const Row &r, const Vector<E> &x, const Side &side,
                                               int k, int target) const {
        N y[W];
        fast_gradients(g, x, y);
        write_with_target(g, r, x, side, k, target, y);
    }
    template <class Side>
    __device__ __forceinline__ void write_with_target(const Gradient &g, const Row &r, const Vector<E> &x,
                                                      const Side &side, int k, int target, N (&y)[W]) const {
        if (target >= 0) {
            const N own = target_gradient(g, r, x.find(target));
#pragma unroll
            for (int i = 0; i < W; i++)
                y[i] = i == target ? own : y[i];
        }
        side.write(Gradients(p.rows.grad, side.row * p.rows.grad_stride), k, y);
    }

    /* ---- the results of a row, by one thread ---- */

    __device__ __forceinline__ void finish(int64_t row, const Row &r, const State &s, N x_y, Totals &total) const {
        const N shift = reduces() ? s.softmax.max : r.lse, z_y = transformed(x_y);
        N log_sum = N(0), loss = N(0), z_loss = N(0);
        if (reduces())
            log_sum = has(GPULOSSI_CE_LSE_IN) ? r.lse - shift : natural_log(s.softmax.sum);
        const N lse = shift + log_sum;
        if (r.place == kBad) {
            loss = z_loss = Limits<N>::nan();
            if (p.bad_targets)
                total.count_bad(scratch(), 1);
        } else if (r.place != kIgnored && r.weight != 0) {
            if (has_index()) {
                loss = log_sum + (shift - z_y);
                loss = r.hard == 0 ? r.hard * log_sum : r.hard * (loss < 0 ? N(0) : loss); /* rounded below 0 */
            }
            if (has_soft())
                loss += s.soft * log_sum + s.drop;
            if (has(GPULOSSI_CE_Z_LOSS))
                z_loss = (N)p.lse_square_scale * lse * r.weight * lse; /* lse^2 may be too large, and the weight 0 */
            if (has(GPULOSSI_CE_ROW_WEIGHTS | GPULOSSI_CE_Z_LOSS))
                loss = fma(r.weight, loss, z_loss);
        }
        if (p.lse)
            ((N *)p.lse)[row] = lse;
        if (has(GPULOSSI_CE_ROW_OUTPUTS) && p.rows.loss_rows)
            ((N *)p.rows.loss_rows)[row] = loss;
        if (has(GPULOSSI_CE_Z_OUTPUTS) && p.z_loss_rows)
            ((N *)p.z_loss_rows)[row] = z_loss;
        if (has(GPULOSSI_CE_COUNTS))
            total.counts[GPULOSSI_COUNT_ROWS] += r.place != kIgnored;
#pragma unroll 1
        for (int i = 0; i < Totals::kSums; i++) /* the long code of a sum is there once */
            if (Wanted::sum(i))
                total.add(i,
                          i == GPULOSSI_SUM_LOSS     ? (double)loss
                          : i == GPULOSSI_SUM_Z_LOSS ? (double)z_loss
                          : r.place >= 0             ? (double)class_weight(r.place)
                                                     : 0.0,
                          scratch());
        if (finds_best())
            finish_best(row, r, s, z_y, total);
    }
    __device__ __forceinline__ void finish_best(int64_t row, const Row &r, const State &s, N z_y,
                                                Totals &total) const {
        const int64_t best = s.argmax() + p.class_offset;
        if (has(GPULOSSI_CE_SHARD)) {
            gpuloss_shard_row shard = {(double)s.softmax.max, (double)s.softmax.sum, r.place >= 0 ? (double)z_y : 0.0,
                                       (double)s.soft,        -(double)s.drop,       (double)best};
            if (s.best < 0)
                shard.max = CUDART_NAN;
            if (!has_soft())
                shard.smooth_mass = shard.smooth_sum = 0;
            ((gpuloss_shard_row *)p.shard_rows)[row] = shard;
        }
        if (p.argmax)
            ((int64_t *)p.argmax)[row] = best;
        if (p.correct && r.place != kIgnored && r.place != kBad)
            total.counts[GPULOSSI_COUNT_CORRECT] += best == r.place + p.class_offset;
    }

    /* ---- the results of a launch ---- */

    __device__ __forceinline__ bool wants(int i) const {
        return Wanted::sum(i);
    }
    __device__ __forceinline__ bool prepared() const {
        return p.rows.flags & GPULOSSI_PREPARED;
    }
    __device__ __forceinline__ bool concludes() const {
        return has(GPULOSSI_CE_LOSS | GPULOSSI_CE_Z_OUTPUTS | GPULOSSI_CE_ARGMAX) || p.bad_targets ||
               (prepared() && p.class_weights == 0);
    }
    __device__ __forceinline__ void conclude(const double *sums, const int64_t *counts) const {
        double divisor = divisor_of<N>(p.rows);
        if (has_index() && (p.rows.flags & GPULOSSI_DATA_DIVISOR))
            divisor = !has(GPULOSSI_CE_CLASS_WEIGHTS) ? (double)counts[GPULOSSI_COUNT_ROWS]
                      : prepared()                    ? scratch()->target_weights
                                                      : sums[GPULOSSI_SUM_WEIGHTS];
        if (p.rows.loss)
            *(N *)p.rows.loss = (N)(sums[GPULOSSI_SUM_LOSS] / divisor);
        if (p.z_loss)
            *(N *)p.z_loss = (N)(sums[GPULOSSI_SUM_Z_LOSS] / divisor);
        if (p.correct)
            *(int64_t *)p.correct = counts[GPULOSSI_COUNT_CORRECT];
        if (p.bad_targets)
            *(int64_t *)p.bad_targets = take_number(&scratch()->bad_targets);
    }

  private:
    /* Read once a row, so it takes no registers. */
    DEVICE double &grad_scale() {
        __shared__ double of_block;
        return of_block;
    }
};

#endif
