/* Cross-entropy of logits against class indices. With x a row of logits and y its target:
 *
 *   lse = log sum_c exp(x_c),   loss = lse - x_y,   dx_c = s (exp(x_c - lse) - [c = y])
 *
 * A call may have options. With r the row weight, w_c the weight of a class, e the label smoothing, C classes, and L
 * the factor of squares:
 *
 *   loss = r ((1-e) w_y (lse - x_y) + e/C sum_c w_c (lse - x_c) + L lse^2)
 *   dx_c = s r (p_c ((1-e) w_y + e/C sum_c w_c + 2 L lse) - e/C w_c - (1-e) w_y [c = y]),   p_c = exp(x_c - lse)
 *
 * No call with options has a given lse.
 */
#ifndef GPULOSSI_CE_BASIC_CUH
#define GPULOSSI_CE_BASIC_CUH

#include "row_generic.cuh"
#include "../device/online_softmax.cuh"
#include "../loss/targets.cuh"

/* The state of a row with label smoothing. */
template <class N> struct SmoothedSoftmax : Softmax<N> {
    N soft_sum, drop; /* sums over the classes so far of e/C, and of e/C (row_max - x_c); no class weights */

    DEVICE SmoothedSoftmax empty() {
        SmoothedSoftmax s = {Softmax<N>::empty(), N(0), N(0)};
        return s;
    }
    template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
        const N before = this->row_max;
        Softmax<N>::reduce(lanes);
        if (!has(GPULOSSI_CE_SMOOTHING))
            return;
        if (soft_sum != 0 && this->row_max != before)
            drop += soft_sum * (Softmax<N>::finite(this->row_max) - Softmax<N>::finite(before));
        soft_sum = lanes.template over<Sum>(soft_sum);
        drop = lanes.template over<Sum>(drop);
    }
};
template <class N, bool kHasOptions> struct BasicState { typedef Softmax<N> Type; };
template <class N> struct BasicState<N, true> { typedef SmoothedSoftmax<N> Type; };

/* The totals of a launch. With options they have a sum of class weights and the count of correct rows, too. */
template <bool kHasOptions, class Wanted> struct BasicTotals { typedef Total<1, 1> Type; };
template <class Wanted> struct BasicTotals<true, Wanted> {
    typedef Total<GPULOSSI_SUM_SECOND + 1, GPULOSSI_COUNT_CORRECT + 1, Wanted, true> Type;
};

/* The sum of an array, by the first warp of a block. */
template <class N> DEVICE double sum_of_array(const N *array, int64_t count) {
    const SomeLanes lanes = {kLanes};
    double sum = 0;
#pragma unroll 1
    for (int64_t begin = 0; begin < count; begin += kLanes) {
        const int64_t i = begin + threadIdx.x;
        sum += i < count ? (double)array[i] : 0.0;
    }
    return lanes.over<Sum>(sum);
}

/* With kHasOptions a call has options. With kMayWrite it may have a gradient. */
template <class E, bool kHasOptions = false, bool kMayWrite = !kHasOptions> struct BasicCrossEntropy {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_cross_entropy Params;
    struct Wanted {
        DEVICE bool sum(int i) { return i == GPULOSSI_SUM_LOSS ? has(GPULOSSI_CE_LOSS) : !first_only(); }
        DEVICE bool count(int i) { return i == GPULOSSI_COUNT_ROWS || finds_best(); }
        DEVICE bool first_only() { return !sums_weights(); }
    };
    typedef typename BasicTotals<kHasOptions, Wanted>::Type Totals;
    typedef typename BasicState<N, kHasOptions>::Type State;
    enum { kArrays = 1, W = Width<E>::value };

    struct Row {
        int64_t row;
        /* The target's vector, and its position in the vector. Without a target, the vector is -1. The position is then
         * -1 if the row is ignored, -2 if the target is bad, or that of silent(). */
        int vector, position;
        /* gradient = exp(x - row_max) * inverse * scale, and at the target (exp(x - row_max) * inverse - 1) * scale */
        N row_max, inverse, scale;
        N weight, class_weight, drop; /* with options */
        int best;                     /* the class of the maximum */

        __device__ __forceinline__ Target target() const {
            return position >= 0 ? kClass : position == -1 ? kIgnored : !kHasOptions || position == -2 ? kBad : kSilent;
        }
    };

    /* The common factors of a row's gradients. */
    struct Slope {
        ScaledExp<N> below;
        N whole_weight, weight;
        bool simple; /* whether the fast formula applies */

        __device__ __forceinline__ explicit Slope(const Row &r)
            : below(r.row_max), whole_weight(r.inverse * r.scale), weight(whole_weight * below.factor) {
            simple = ScaledExp<N>::in_fast_range(r.row_max) && weight == weight && r.position >= 0;
        }
        __device__ __forceinline__ N of(N x, const Row &r) const {
            return r.position >= 0 ? exp_below(x, r.row_max) * whole_weight : N(0);
        }
    };

    struct Unfinished {
        int64_t row;
        N row_max, sum, x_y;
        Target target;
        N weight, class_weight, drop;
    };

    const Params &p;

    /* All threads of the block call. */
    __device__ __forceinline__ explicit BasicCrossEntropy(const Params &p) : p(p) {
        if (is_smoothed() && uniform_warp() == 0)
            set_smoothing();
        if (writes()) {
            double part = rows_that_divide(p);
            if (threadIdx.x == 0)
                grad_scale() = gradient_scale<N>(p.rows, part);
        }
        __syncthreads();
    }

    __device__ __forceinline__ const typename E::Bits *array(int, int64_t row) const {
        return (const typename E::Bits *)p.logits + row * p.logits_stride;
    }
    __device__ __forceinline__ typename E::Bits *grad(int64_t row) const {
        return (typename E::Bits *)p.rows.grad + row * p.rows.grad_stride;
    }
    __device__ __forceinline__ gpulossi_scratch *scratch() const { return (gpulossi_scratch *)p.rows.scratch; }
    __device__ __forceinline__ N absent(int) const { return -Limits<N>::infinity(); }
    DEVICE bool reduces() { return kHasOptions || !has(GPULOSSI_CE_LSE_IN); }
    DEVICE bool writes() { return kMayWrite && has(GPULOSSI_CE_GRADIENT); }
    DEVICE bool has_options() { return kHasOptions; }
    DEVICE bool has_class_weights() { return kHasOptions && has(GPULOSSI_CE_CLASS_WEIGHTS); }
    /* Whether the loss is divided by the weights of the targets, which this launch sums. */
    DEVICE bool sums_weights() { return has_class_weights() && has(GPULOSSI_CE_COUNTS); }
    DEVICE bool is_smoothed() { return kHasOptions && has(GPULOSSI_CE_SMOOTHING); }
    /* Whether the smoothing of a class has its weight. */
    DEVICE bool weighs_classes() { return is_smoothed() && has_class_weights(); }
    DEVICE bool has_row_weights() { return kHasOptions && has(GPULOSSI_CE_ROW_WEIGHTS); }
    DEVICE bool has_z_loss() { return kHasOptions && has(GPULOSSI_CE_Z_LOSS); }
    /* Whether packed rows have the class of their maximum as a result. */
    DEVICE bool finds_best() { return kHasOptions && has(GPULOSSI_CE_ARGMAX); }
    DEVICE bool has_row_outputs() { return has(GPULOSSI_CE_ROW_OUTPUTS); }
    /* Whether rows without a target are read. */
    __device__ __forceinline__ bool reads_ignored() const { return has_row_outputs() && p.lse != 0; }
    /* Whether there are results besides the gradient. */
    __device__ __forceinline__ bool has_results() const {
        return has(GPULOSSI_CE_LOSS | GPULOSSI_CE_ROW_OUTPUTS | GPULOSSI_CE_COUNTS) || finds_best() || p.bad_targets;
    }
    __device__ __forceinline__ Row row_of(const Cut<E> &cut, int64_t row, bool live, int64_t y) const {
        Row r = {};
        Target target = kind_of(p, y);
        r.row = row;
        r.vector = -1;
        r.position = live && target == kBad ? -2 : -1;
        if (live && target == kClass) {
            r.vector = cut.vector_of(y);
            r.position = cut.position_of(y);
        }
        return r;
    }

    __device__ __forceinline__ Unfinished unfinished(const Row &r, const Softmax<N> &s, const N *x_y) const {
        Unfinished u = {r.row,      r.row_max, s.sum,          r.position >= 0 ? *x_y : N(0),
                        r.target(), r.weight,  r.class_weight, r.drop};
        return u;
    }

    __device__ __forceinline__ void close(Row &r, const Softmax<N> &s) const {
        r.row_max = reduces() ? s.row_max : ((const N *)p.lse_in)[r.row];
        if (writes())
            slope(r, s, reduces());
    }
    /* The part of close() that only gradients need. */
    __device__ __forceinline__ void slope(Row &r, const Softmax<N> &s, bool reduced) const {
        r.inverse = reduced ? reciprocal(s.sum) : N(1);
        r.scale = r.position >= 0 ? scale_of(r.row) : N(0);
    }
    /* The factor of the gradients of a row with a target. It is common_scale() if rows have none of their own. */
    __device__ __forceinline__ N scale_of(int64_t row) const {
        return has(GPULOSSI_CE_ROW_GRADIENTS) ? (N)(grad_scale() * ((const N *)p.rows.grad_loss_rows)[row])
                                              : common_scale();
    }
    __device__ __forceinline__ N common_scale() const { return (N)grad_scale(); }

    /* The position of a target whose row has the weight 0. */
    DEVICE int silent(int target_class) { return -3 - target_class; }
    /* The class weight of a target by its position, if that is its class. A row without a target has 0. */
    __device__ __forceinline__ N class_weight_of(int position) const {
        if (!has_class_weights())
            return N(1);
        const int target_class = position < -2 ? silent(position) : position;
        return target_class >= 0 ? ((const N *)p.class_weights)[target_class] : N(0);
    }

    __device__ __forceinline__ N weight_of_class(int c) const { return ((const N *)p.class_weights)[c]; }
    /* 1-e, e/C, the sum of class weights, and that of e/C of each class by its weight. They are read once a row, so they
     * are not in registers. */
    __device__ __forceinline__ N keep() const { return (N)(1.0 - p.label_smoothing); }
    DEVICE N &smooth() {
        __shared__ N of_block;
        return of_block;
    }
    DEVICE N &weight_sum() {
        __shared__ N of_block;
        return of_block;
    }
    DEVICE N &soft_sum() {
        __shared__ N of_block;
        return of_block;
    }
    /* The first warp of a block calls. */
    __device__ __forceinline__ void set_smoothing() const {
        const double classes = (double)p.total_classes,
                     weights = weighs_classes() ? sum_of_array((const N *)p.class_weights, p.total_classes) : classes;
        if (threadIdx.x != 0)
            return;
        smooth() = (N)quotient_for(N(), p.label_smoothing, classes);
        weight_sum() = (N)weights;
        soft_sum() = (N)(p.label_smoothing * (weighs_classes() ? quotient_for(N(), weights, classes) : 1.0));
    }
    /* The smoothing of class c. A class of weight 0 adds nothing, whatever its logit. */
    __device__ __forceinline__ N drop_of_class(N row_max, N x, int c) const {
        const N weight = weighs_classes() ? weight_of_class(c) : N(1);
        return weight == 0 ? N(0) : smooth() * weight * difference(row_max, x);
    }
    __device__ __forceinline__ N weight_of(int64_t row) const {
        return has_row_weights() ? ((const N *)p.row_weights)[row] : N(1);
    }
    /* The drop of classes, from the sum of their power(x), by their weights, and the sum of these. */
    __device__ __forceinline__ N drop_of(N row_max, N powers, N count) const {
        return smooth() * (N(-0.693147181) * fma(-ScaledExp<N>(row_max).rounding(row_max), count, powers));
    }
    /* The factor of a target: (1-e) w_y. */
    __device__ __forceinline__ N hard_of(N class_weight) const {
        return (is_smoothed() ? keep() : N(1)) * (has_class_weights() ? class_weight : N(1));
    }
    /* The loss of a row. Without the clamp, rounding could make it negative in a confident row. */
    __device__ __forceinline__ N loss_of(N log_sum, N row_max, N x_y, N weight, N class_weight, N drop) const {
        const N hard = hard_of(class_weight);
        N loss = at_least_0(log_sum + (row_max - x_y)), z_loss = N(0);
        if (has_class_weights() || is_smoothed())
            loss = hard * (hard == 0 ? fabs(row_max + log_sum) : loss);
        if (is_smoothed())
            loss += fma(soft_sum(), log_sum, drop);
        if (has_z_loss()) {
            const N lse = row_max + log_sum;
            z_loss = (N)p.lse_square_scale * lse * weight * lse; /* lse^2 alone may overflow */
        }
        return has_options() ? fma(weight, loss, z_loss) : loss;
    }
    /* Writes all results of a row, and returns its loss. It is not yet added to the sum of losses. */
    __device__ __forceinline__ N result(const Unfinished &u, Totals &total) const {
        N log_sum = reduces() ? natural_log(u.sum) : N(0);
        N loss = u.target == kClass ? loss_of(log_sum, u.row_max, u.x_y, u.weight, u.class_weight, u.drop)
                 : u.target == kIgnored || u.target == kSilent ? N(0)
                                                               : Limits<N>::nan();
        if (has_row_outputs()) {
            if (p.lse)
                ((N *)p.lse)[u.row] = u.row_max + log_sum;
            if (p.rows.loss_rows)
                ((N *)p.rows.loss_rows)[u.row] = loss;
        }
        if (u.target == kBad && p.bad_targets)
            total.count_bad(scratch(), 1);
        count(u.target != kIgnored, total);
        return loss;
    }
    /* Writes the class of the maximum of a packed row. Its position is its target's class. */
    __device__ __forceinline__ void put_best(const Row &r, Totals &total) const {
        const int target_class = r.position >= -2 ? r.position : silent(r.position);
        if (p.argmax)
            ((int64_t *)p.argmax)[r.row] = r.best;
        if constexpr (kHasOptions)
            total.counts[GPULOSSI_COUNT_CORRECT] += r.best == target_class;
    }
    /* Whether the rows that are not ignored are counted. count() adds to their count. */
    DEVICE bool counts() { return has(GPULOSSI_CE_COUNTS) && !has_class_weights(); }
    __device__ __forceinline__ void count(int rows, Totals &total) const {
        if (counts())
            total.counts[GPULOSSI_COUNT_ROWS] += rows;
    }
    __device__ __forceinline__ void add(double losses, Totals &total) const {
        if (has(GPULOSSI_CE_LOSS))
            total.add(GPULOSSI_SUM_LOSS, losses, scratch());
    }
    __device__ __forceinline__ void add_weights(double weights, Totals &total) const {
        if constexpr (kHasOptions)
            if (sums_weights())
                total.add(GPULOSSI_SUM_SECOND, weights, scratch());
    }
    __device__ __forceinline__ void finish(const Unfinished &u, Totals &total) const {
        N loss = result(u, total);
        add((double)loss, total);
        add_weights((double)u.class_weight, total);
    }

    /* The gradient of the target's logit. Its rounded probability may be above 1. */
    __device__ __forceinline__ N of_target(const Row &r, N x_y) const {
        return of_target(exp_below(x_y, r.row_max) * r.inverse, r.scale);
    }
    DEVICE N of_target(N probability, N scale) { return (at_most_1(probability) - N(1)) * scale; }

    /* The gradients of a row with options: of a class p_c weight - w_c spread, and of the target another one. w_c is 1
     * unless the smoothing has the weights of classes. */
    struct OptionSlope {
        double factor;
        N hard, rest, weight, spread;

        __device__ __forceinline__ N of(N p, N w = N(1)) const { return fma(p, weight, N(0) - w * spread); }
        __device__ __forceinline__ N of_target(N p, N w = N(1)) const {
            p = at_most_1(p);
            return (N)(factor * (double)fma(p, rest, hard * (p - N(1)))) - w * spread;
        }
    };
    __device__ __forceinline__ OptionSlope option_slope(const Row &r, const Softmax<N> &s) const {
        OptionSlope slope = {grad_scale(), N(1), N(0), N(0), N(0)};
        if (has(GPULOSSI_CE_ROW_GRADIENTS))
            slope.factor *= ((const N *)p.rows.grad_loss_rows)[r.row];
        if (has_row_weights())
            slope.factor *= r.weight;
        slope.hard = hard_of(r.class_weight);
        if (is_smoothed()) {
            slope.rest = soft_sum();
            /* A load that is not volatile would also be executed without smoothing. */
            slope.spread = (N)(slope.factor * (double)*(const volatile N *)&smooth());
        }
        if (has_z_loss())
            slope.rest += (r.row_max + natural_log(s.sum)) * (N(2) * (N)p.lse_square_scale);
        slope.weight = (N)(slope.factor * (double)(slope.hard + slope.rest));
        return slope;
    }

    __device__ __forceinline__ bool wants(int i) const {
        return i == GPULOSSI_SUM_LOSS ? has(GPULOSSI_CE_LOSS) : sums_weights();
    }
    __device__ __forceinline__ bool prepared() const { return p.rows.flags & GPULOSSI_PREPARED; }
    __device__ __forceinline__ bool concludes() const {
        return has(GPULOSSI_CE_LOSS) || finds_best() || p.bad_targets || prepared();
    }
    __device__ __forceinline__ void conclude(const double *sums, const int64_t *counts) const {
        double of_data = (double)counts[GPULOSSI_COUNT_ROWS];
        if (has_class_weights())
            of_data = sums_weights() ? sums[GPULOSSI_SUM_SECOND] : scratch()->target_weights;
        if (has(GPULOSSI_CE_LOSS))
            put_sum<N>(p.rows, p.rows.loss,
                       quotient_for(N(), sums[GPULOSSI_SUM_LOSS],
                                    p.rows.flags & GPULOSSI_DATA_DIVISOR ? of_data : divisor_of<N>(p.rows)));
        if (finds_best() && p.correct)
            put_sum<int64_t>(p.rows, p.correct, counts[GPULOSSI_COUNT_CORRECT]);
        if (p.bad_targets)
            put_sum<int64_t>(p.rows, p.bad_targets, take_number(&scratch()->bad_targets));
    }

  private:
    /* It is read once a row, so it is in shared memory. */
    DEVICE double &grad_scale() {
        __shared__ double of_block;
        return of_block;
    }
};

#endif
