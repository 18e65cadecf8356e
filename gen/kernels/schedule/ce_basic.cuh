/* Cross-entropy of logits against class indices. With x a row of logits and y its target:
 *
 *   lse = log sum_c exp(x_c),   loss = lse - x_y,   dx_c = s (exp(x_c - lse) - [c = y])
 *
 * A loss without a gradient may have options. With r the row weight, e the label smoothing, C classes, and L the factor of
 * squares:
 *
 *   loss = r ((1-e) (lse - x_y) + e/C sum_c (lse - x_c) + L lse^2)
 */
#ifndef GPULOSSI_CE_BASIC_CUH
#define GPULOSSI_CE_BASIC_CUH

#include "row_generic.cuh"
#include "../device/online_softmax.cuh"
#include "../loss/targets.cuh"

/* The state of a row with label smoothing. */
template <class N> struct SmoothedSoftmax : Softmax<N> {
    N soft_sum, drop; /* sums over the classes so far of e/C, and of e/C (row_max - x_c) */

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

/* With kHasOptions a call has options, and neither a gradient nor a given lse. */
template <class E, bool kHasOptions = false> struct BasicCrossEntropy {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_cross_entropy Params;
    typedef Total<1, 1> Totals;
    typedef typename BasicState<N, kHasOptions>::Type State;
    enum { kArrays = 1, W = Width<E>::value };

    struct Row {
        int64_t row;
        /* The target's vector, and its position in the vector. Without a target, the vector is -1. The position is then
         * -1 if the row is ignored, -2 if the target is bad, or -3 if it is silent. */
        int vector, position;
        /* gradient = exp(x - row_max) * inverse * scale, and at the target (exp(x - row_max) * inverse - 1) * scale */
        N row_max, inverse, scale;
        N weight, drop; /* with options */

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
        N weight, drop;
    };

    const Params &p;

    /* All threads of the block call. */
    __device__ __forceinline__ explicit BasicCrossEntropy(const Params &p) : p(p) {
        if (is_smoothed() && threadIdx.x == 0)
            smooth() = (N)quotient_for(N(), p.label_smoothing, (double)p.total_classes);
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
    DEVICE bool writes() { return !kHasOptions && has(GPULOSSI_CE_GRADIENT); }
    DEVICE bool has_options() { return kHasOptions; }
    DEVICE bool is_smoothed() { return kHasOptions && has(GPULOSSI_CE_SMOOTHING); }
    DEVICE bool has_row_weights() { return kHasOptions && has(GPULOSSI_CE_ROW_WEIGHTS); }
    DEVICE bool has_z_loss() { return kHasOptions && has(GPULOSSI_CE_Z_LOSS); }
    DEVICE bool has_row_outputs() { return has(GPULOSSI_CE_ROW_OUTPUTS); }
    /* Whether rows without a target are read. */
    __device__ __forceinline__ bool reads_ignored() const { return has_row_outputs() && p.lse != 0; }
    /* Whether there are results besides the gradient. */
    __device__ __forceinline__ bool has_results() const {
        return has(GPULOSSI_CE_LOSS | GPULOSSI_CE_ROW_OUTPUTS | GPULOSSI_CE_COUNTS) || p.bad_targets;
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
        Unfinished u = {r.row, r.row_max, s.sum, r.position >= 0 ? *x_y : N(0), r.target(), r.weight, r.drop};
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

    /* 1-e, and e/C. They are read once a row, so they are not in registers. */
    __device__ __forceinline__ N keep() const { return (N)(1.0 - p.label_smoothing); }
    DEVICE N &smooth() {
        __shared__ N of_block;
        return of_block;
    }
    __device__ __forceinline__ N weight_of(int64_t row) const {
        return has_row_weights() ? ((const N *)p.row_weights)[row] : N(1);
    }
    /* The drop of `count` classes, from the sum of their power(x). */
    __device__ __forceinline__ N drop_of(N row_max, N powers, N count) const {
        return smooth() * (N(-0.693147181) * fma(-ScaledExp<N>(row_max).rounding(row_max), count, powers));
    }
    /* The loss of a row. Without the clamp, rounding could make it negative in a confident row. */
    __device__ __forceinline__ N loss_of(N log_sum, N row_max, N x_y, N weight, N drop) const {
        N loss = at_least_0(log_sum + (row_max - x_y)), z_loss = N(0);
        if (is_smoothed())
            loss = fma(keep(), loss, fma((N)p.label_smoothing, log_sum, drop));
        if (has_z_loss()) {
            const N lse = row_max + log_sum;
            z_loss = (N)p.lse_square_scale * lse * weight * lse; /* lse^2 alone may overflow */
        }
        return has_options() ? fma(weight, loss, z_loss) : loss;
    }
    /* Writes all results of a row, and returns its loss. It is not yet added to the sum of losses. */
    __device__ __forceinline__ N result(const Unfinished &u, Totals &total) const {
        N log_sum = reduces() ? natural_log(u.sum) : N(0);
        N loss = u.target == kClass                            ? loss_of(log_sum, u.row_max, u.x_y, u.weight, u.drop)
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
    /* Whether the rows that are not ignored are counted. count() adds to their count. */
    DEVICE bool counts() { return has(GPULOSSI_CE_COUNTS); }
    __device__ __forceinline__ void count(int rows, Totals &total) const {
        if (counts())
            total.counts[GPULOSSI_COUNT_ROWS] += rows;
    }
    __device__ __forceinline__ void add(double losses, Totals &total) const {
        if (has(GPULOSSI_CE_LOSS))
            total.add(GPULOSSI_SUM_LOSS, losses, scratch());
    }
    __device__ __forceinline__ void finish(const Unfinished &u, Totals &total) const {
        N loss = result(u, total);
        add((double)loss, total);
    }

    /* The gradient of the target's logit. Its rounded probability may be above 1. */
    __device__ __forceinline__ N of_target(const Row &r, N x_y) const {
        return of_target(exp_below(x_y, r.row_max) * r.inverse, r.scale);
    }
    DEVICE N of_target(N probability, N scale) { return (at_most_1(probability) - N(1)) * scale; }

    __device__ __forceinline__ bool wants(int) const { return has(GPULOSSI_CE_LOSS); }
    __device__ __forceinline__ bool prepared() const { return p.rows.flags & GPULOSSI_PREPARED; }
    __device__ __forceinline__ bool concludes() const { return has(GPULOSSI_CE_LOSS) || p.bad_targets || prepared(); }
    __device__ __forceinline__ void conclude(const double *sums, const int64_t *counts) const {
        double rows = (double)counts[GPULOSSI_COUNT_ROWS];
        if (has(GPULOSSI_CE_LOSS))
            put_sum<N>(p.rows, p.rows.loss,
                       quotient_for(N(), sums[GPULOSSI_SUM_LOSS],
                                    p.rows.flags & GPULOSSI_DATA_DIVISOR ? rows : divisor_of<N>(p.rows)));
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
