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
            return i == GPULOSSI_SUM_LOSS ? has(GPULOSSI_CE_LOSS) : has(GPULOSSI_CE_Z_OUTPUTS);
        }
        DEVICE bool count(int i) {
            return i == GPULOSSI_COUNT_ROWS ? has(GPULOSSI_CE_COUNTS) : has(GPULOSSI_CE_ARGMAX);
        }
    };
    typedef Total<GPULOSSI_SUM_Z_LOSS + 1, GPULOSSI_COUNTS, Wanted, uint32_t> Totals;

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

    /* Fetched rows ahead; the weight of the target's class a row ahead, when its index is there. */
    struct RowInput {
        int64_t index;
        N weight, lse, class_weight;
    };
    __device__ __forceinline__ RowInput fetch(int64_t row) const {
        RowInput in = {0, N(1), N(0), N(1)};
        if (has_index())
            in.index = read_target(p, row);
        if (has(GPULOSSI_CE_ROW_WEIGHTS))
            in.weight = ((const N *)p.row_weights)[row];
        if (has(GPULOSSI_CE_LSE_IN))
            in.lse = ((const N *)p.lse_in)[row];
        return in;
    }
    __device__ __forceinline__ void fetch_target(RowInput &in) const {
        if (has(GPULOSSI_CE_CLASS_WEIGHTS) && has_index() && kind_of(p, in.index) == kClass)
            in.class_weight = class_weight(in.index);
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
        return counts(place, in) || finds_best() || (has(GPULOSSI_CE_ROW_OUTPUTS) && p.lse != 0);
    }

    struct Row {
        int64_t place;
        N hard, weight, lse; /* weight: 0 where the row does not count; lse: where one was given */
    };
    __device__ __forceinline__ Row row_of(int64_t place, const RowInput &in) const {
        Row r = {place, N(0), counts(place, in) ? in.weight : N(0), in.lse};
        if (place >= 0 || place == kInOtherShard) {
            r.hard = has(GPULOSSI_CE_SMOOTHING) ? keep : N(1);
            if (has(GPULOSSI_CE_CLASS_WEIGHTS))
                r.hard *= in.class_weight;
        }
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

    /* tanh a and its derivative, for |a| < 1: from a polynomial, within 1.5u. */
    DEVICE float tanh_near_0(float a, float &slope) {
        const float z = a * a;
        float series = fmaf(fmaf(fmaf(-4.237463e-04f, z, 2.51967646e-03f), z, -8.2293814e-03f), z, 2.16655992e-02f);
        series = fmaf(fmaf(fmaf(series, z, -5.3936094e-02f), z, 1.33331403e-01f), z, -3.33333313e-01f);
        const float tanh = fmaf(a * z, series, a);
        slope = fmaf(-tanh, tanh, 1.0f);
        return tanh;
    }
    /* The same of any a, from e = exp(-2 |a|): the derivative is 4e / (1 + e)^2, which keeps its digits where tanh is next
     * to 1. */
    DEVICE float tanh_of(float a, float &slope) {
        const float e = power_of_2(fabs(a) * -2.885390082f), r = quick_reciprocal(1.0f + e);
        float slope_near_0;
        const float near_0 = tanh_near_0(a, slope_near_0);
        slope = 4.0f * e * r * r;
        return fabs(a) < 1.0f ? near_0 : copysignf(fmaf(-2.0f * e, r, 1.0f), a);
    }
    DEVICE double tanh_of(double a, double &slope) {
        const double e = exp(-2.0 * fabs(a)), r = 1.0 / (1.0 + e);
        slope = 4.0 * e * r * r;
        return tanh(a);
    }
    DEVICE double tanh_near_0(double a, double &slope) { return tanh_of(a, slope); }
    /* The logit that the softmax sees, and the softcap's derivative. A class that is masked by -inf stays masked. */
    __device__ __forceinline__ N transformed(N x, N &slope) const {
        slope = N(1);
        if (has(GPULOSSI_CE_LOGIT_SCALE))
            x *= scale;
        if (has(GPULOSSI_CE_SOFTCAP))
            x = x == padding() ? x : softcap * tanh_of(x * inverse_softcap, slope);
        return x;
    }
    /* The same of a vector, which takes fewer instructions where none of its logits is as large as the softcap. A NaN stays
     * one in either way. */
    __device__ __forceinline__ void transform(N (&x)[W], N (&slope)[W]) const {
        if (has(GPULOSSI_CE_LOGIT_SCALE))
#pragma unroll
            for (int i = 0; i < W; i++)
                x[i] *= scale;
        if (!has(GPULOSSI_CE_SOFTCAP))
            return;
        N a[W], size[W];
#pragma unroll
        for (int i = 0; i < W; i++) {
            a[i] = x[i] * inverse_softcap;
            size[i] = fabs(a[i]);
        }
        if (in_halves<Maximum>(size) < N(1)) {
#pragma unroll
            for (int i = 0; i < W; i++)
                x[i] = softcap * tanh_near_0(a[i], slope[i]);
        } else {
#pragma unroll
            for (int i = 0; i < W; i++)
                x[i] = x[i] == padding() ? x[i] : softcap * tanh_of(a[i], slope[i]);
        }
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
     * class of vector k, is_inside(i) whether its element i is in the row; read(array, k, y) and write(array, k, y) access
     * the same classes of another array. */
    template <class Side>
    __device__ __forceinline__ void accumulate(State &s, const Vector<E> &x, const Side &side, int k) const {
        const N from = s.softmax.finite(s.softmax.max);
        N z[W], part[W];
        x.unpack(z);
        transform(z, part);
#pragma unroll
        for (int i = 0; i < W; i++)
            part[i] = exp_of_difference(difference(z[i], from));
        s.softmax.sum += in_halves<Sum>(part);
        if (finds_best() && (s.softmax.sum != s.softmax.sum || in_halves<Maximum>(z) == s.softmax.max))
            find_best(s, z, side.first(k));
        if (!has_soft())
            return;
        N shape[W];
        shape_of(side, k, shape);
#pragma unroll
        for (int i = 0; i < W; i++)
            part[i] = shape[i] * difference(from, z[i]);
        N more = in_halves<Sum>(part);
        if (!(fabs(more) < Limits<N>::infinity())) { /* no soft target, no part, whatever the logit */
#pragma unroll
            for (int i = 0; i < W; i++)
                part[i] = shape[i] == 0 ? N(0) : part[i];
            more = in_halves<Sum>(part);
        }
        s.drop += more;
        s.soft += in_halves<Sum>(shape);
    }
    /* soft_c over the unit that all classes have in common: w_c, times 1 or (1-e) t_c + e/C. */
    __device__ __forceinline__ N unit() const { return has(GPULOSSI_CE_PROBABILITIES) ? N(1) : smooth; }
    template <class Side> __device__ __forceinline__ void shape_of(const Side &side, int k, N (&shape)[W]) const {
#pragma unroll
        for (int i = 0; i < W; i++)
            shape[i] = side.is_inside(i) ? N(1) : N(0);
        if (has(GPULOSSI_CE_PROBABILITIES)) {
            side.read(Targets(p.probabilities, side.row * p.probabilities_stride), k, shape);
            if (has(GPULOSSI_CE_SMOOTHING))
#pragma unroll
                for (int i = 0; i < W; i++)
                    shape[i] = side.is_inside(i) ? fma(keep, shape[i], smooth) : N(0);
        }
        if (has(GPULOSSI_CE_CLASS_WEIGHTS)) {
            N w[W];
            side.read(class_weights(), k, w);
#pragma unroll
            for (int i = 0; i < W; i++)
                shape[i] = has(GPULOSSI_CE_PROBABILITIES) ? shape[i] * w[i] : w[i];
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

    /* What the gradients of a row have in common: g = exp(z - shift) weight - shape_c spread, times the softcap's slope. Of a
     * basic row that is fast the exponential is scaled. */
    struct Gradient {
        N shift, inverse, log_sum; /* p = exp(z - shift) inverse, log_sum = lse - shift */
        N scale, hard, rest;
        N weight, spread;
        ScaledExp<N> exp;
        bool is_fast, is_zero;
    };
    __device__ __forceinline__ Gradient gradient(int64_t row, const Row &r, const State &s) const {
        Gradient g = {s.softmax.max, N(1), N(0), N(0), r.hard, N(0), N(0), N(0), ScaledExp<N>(N(0)), false, false};
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
            g.rest = reduces()                        ? unit() * s.soft
                     : has(GPULOSSI_CE_CLASS_WEIGHTS) ? smooth * (N)scratch()->class_weights
                                                      : (N)p.label_smoothing;
        if (has(GPULOSSI_CE_Z_LOSS))
            g.rest += N(2) * (N)p.lse_square_scale * (g.shift + g.log_sum);
        g.exp = ScaledExp<N>(g.shift);
        g.weight = g.scale * g.inverse;
        if (!is_basic() || has(GPULOSSI_CE_CLASS_WEIGHTS | GPULOSSI_CE_Z_LOSS))
            g.weight *= g.hard + g.rest;
        g.spread = g.scale * unit();
        if (has(GPULOSSI_CE_LOGIT_SCALE)) {
            g.weight *= scale;
            g.spread *= scale;
        }
        if (is_basic())
            g.is_fast = ScaledExp<N>::in_fast_range(g.shift) && g.weight == g.weight;
        return g;
    }
    /* Of the logits of a vector, as if none of them were the target's: with every option, ... */
    template <class Side>
    __device__ __forceinline__ void gradients(const Gradient &g, const Vector<E> &x, const Side &side, int k,
                                              N (&of_x)[W]) const {
        N slope[W], shape[W];
        x.unpack(of_x);
        transform(of_x, slope);
#pragma unroll
        for (int i = 0; i < W; i++) {
            shape[i] = N(0);
            of_x[i] = exp_of_difference(difference(of_x[i], g.shift));
        }
        if (has_soft())
            shape_of(side, k, shape);
#pragma unroll
        for (int i = 0; i < W; i++) { /* the sums with 0 turn -0 into 0 */
            of_x[i] = fma(of_x[i], g.weight, has_soft() ? fma(-shape[i], g.spread, N(0)) : N(0));
            if (has(GPULOSSI_CE_SOFTCAP))
                of_x[i] *= slope[i];
        }
    }
    /* ... and of a basic row that is fast. */
    __device__ __forceinline__ void fast_gradients(const Gradient &g, const Vector<E> &x, N (&of_x)[W]) const {
        const N weight = g.weight * g.exp.factor;
        x.unpack(of_x);
#pragma unroll
        for (int i = 0; i < W; i++)
            of_x[i] = g.exp.exp(of_x[i]) * weight;
    }
    /* The target's, of a logit as given. p is at most 1, whatever was rounded, so that this is at most 0 by itself. */
    __device__ __forceinline__ N target_gradient(const Gradient &g, const Row &r, N x) const {
        N slope, p = exp_below(transformed(x, slope), g.shift) * g.inverse;
        p = p > N(1) ? N(1) : p;
        N of_z = g.hard * (p - N(1));
        if (has_soft() || has(GPULOSSI_CE_Z_LOSS)) {
            N soft = has_soft() ? smooth : N(0);
            if (has(GPULOSSI_CE_SMOOTHING) && has(GPULOSSI_CE_CLASS_WEIGHTS))
                soft *= class_weight(this->p.class_offset + r.place);
            of_z += p * g.rest - soft;
        }
        of_z *= g.scale;
        if (has(GPULOSSI_CE_LOGIT_SCALE))
            of_z *= scale;
        return has(GPULOSSI_CE_SOFTCAP) ? of_z * slope : of_z;
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
            side.read(class_weights(), k, w);
#pragma unroll
        for (int i = 0; i < W; i++) {
            N mass = has(GPULOSSI_CE_SMOOTHING) ? keep * w[i] : w[i];
            N of_class = g.scale * mass * (g.log_sum + (g.shift - transformed(of_t[i])));
            of_t[i] = mass == 0 ? N(0) : of_class;
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
    /* Of a row that has no gradient, or was not read. */
    template <class Side> __device__ __forceinline__ void write_zeros(const Side &side, int k) const {
        N zeros[W] = {};
        if (has(GPULOSSI_CE_GRADIENT))
            side.write(Gradients(p.rows.grad, side.row * p.rows.grad_stride), k, zeros);
        if (has(GPULOSSI_CE_TARGET_GRADIENT))
            side.write(Targets(p.grad_probabilities, side.row * p.grad_probabilities_stride), k, zeros);
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

    /* What a row adds to the totals of a launch. */
    struct Result {
        N loss, z_loss;
        int counted, correct; /* rows */
        bool is_bad;
    };
    __device__ __forceinline__ Result finish(int64_t row, const Row &r, const State &s, N x_y) const {
        const N shift = reduces() ? s.softmax.max : r.lse, z_y = transformed(x_y);
        Result of = {N(0), N(0), r.place != kIgnored, 0, r.place == kBad};
        N log_sum = N(0);
        if (reduces())
            log_sum = has(GPULOSSI_CE_LSE_IN) ? r.lse - shift : natural_log(s.softmax.sum);
        const N lse = shift + log_sum;
        if (of.is_bad) {
            of.loss = of.z_loss = Limits<N>::nan();
        } else if (r.place != kIgnored && r.weight != 0) {
            if (has_index()) {
                N loss = log_sum + (shift - z_y);
                of.loss = r.hard == 0 ? r.hard * log_sum : r.hard * (loss < 0 ? N(0) : loss); /* rounded below 0 */
            }
            if (has_soft())
                of.loss += unit() * (s.soft * log_sum + s.drop);
            if (has(GPULOSSI_CE_Z_LOSS))
                of.z_loss = (N)p.lse_square_scale * lse * r.weight * lse; /* lse^2 may be too large, and the weight 0 */
            if (has(GPULOSSI_CE_ROW_WEIGHTS | GPULOSSI_CE_Z_LOSS))
                of.loss = fma(r.weight, of.loss, of.z_loss);
        }
        if (has(GPULOSSI_CE_ROW_OUTPUTS)) {
            if (p.lse)
                ((N *)p.lse)[row] = lse;
            if (p.rows.loss_rows)
                ((N *)p.rows.loss_rows)[row] = of.loss;
        }
        if (has(GPULOSSI_CE_Z_OUTPUTS) && p.z_loss_rows)
            ((N *)p.z_loss_rows)[row] = of.z_loss;
        if (finds_best())
            of.correct = finish_best(row, r, s, z_y);
        return of;
    }
    /* Writes what belongs to the best class of a row; returns whether that is the target. */
    __device__ __forceinline__ int finish_best(int64_t row, const Row &r, const State &s, N z_y) const {
        const int64_t best = s.argmax() + p.class_offset;
        if (has(GPULOSSI_CE_SHARD)) {
            gpuloss_shard_row shard = {(double)s.softmax.max,
                                       (double)s.softmax.sum,
                                       r.place >= 0 ? (double)z_y : 0.0,
                                       has_soft() ? (double)(unit() * s.soft) : 0.0,
                                       has_soft() ? -(double)(unit() * s.drop) : 0.0,
                                       (double)best};
            if (s.best < 0)
                shard.max = CUDART_NAN;
            ((gpuloss_shard_row *)p.shard_rows)[row] = shard;
        }
        if (p.argmax)
            ((int64_t *)p.argmax)[row] = best;
        return r.place >= 0 && best == r.place + p.class_offset;
    }
    __device__ __forceinline__ void add(const Result &of, Totals &total) const {
        if (of.is_bad && p.bad_targets)
            total.count_bad(scratch(), 1);
        if (has(GPULOSSI_CE_COUNTS))
            total.counts[GPULOSSI_COUNT_ROWS] += of.counted;
        if (has(GPULOSSI_CE_ARGMAX))
            total.counts[GPULOSSI_COUNT_CORRECT] += of.correct;
#pragma unroll 1
        for (int i = 0; i < Totals::kSums; i++) /* the long code of a sum is there once */
            if (Wanted::sum(i))
                total.add(i, i == GPULOSSI_SUM_LOSS ? (double)of.loss : (double)of.z_loss, scratch());
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
            divisor = has(GPULOSSI_CE_CLASS_WEIGHTS) ? scratch()->target_weights : (double)counts[GPULOSSI_COUNT_ROWS];
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
