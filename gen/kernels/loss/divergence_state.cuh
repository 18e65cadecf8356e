/* The rows of a divergence, with the references of their exponentials, and the state of a row: its softmax, and the sums of a
 * sweep of their own. */
#ifndef GPULOSSI_DIVERGENCE_STATE_CUH
#define GPULOSSI_DIVERGENCE_STATE_CUH

#include "divergence_call.cuh"

template <class E> struct DivergenceState : DivergenceCall<E> {
    typedef DivergenceCall<E> Base;
    typedef typename Base::N N;
    typedef typename Base::Bits Bits;
    typedef typename Base::Params Params;
    typedef FormatArray<E, GPULOSSI_FORMAT_TARGET_SHIFT> Targets; /* the target, and its gradient */
    using Base::has_distance, Base::in_one_sweep, Base::is_direct, Base::has_divergence, Base::has_sum;
    using Base::inverse_temperature;
    using Base::is_logits, Base::is_probability, Base::has_two_logits, Base::logits_weigh;
    using Base::kInput, Base::kTarget;
    using Base::of_logits, Base::of_other, Base::side_of_other;
    using Base::p;
    using Base::weighing, Base::own;
    /* Logits of two sides that differ by more are subtracted after a number is subtracted from each. */
    enum { kFar = 8 };

    __device__ __forceinline__ explicit DivergenceState(const Params &p) : Base(p) {}

    DEVICE const Bits *first_input(const Params &p) { return (const Bits *)p.input; }

    /* ---- the inputs of a row ---- */

    /* Some classes in the middle of the row, one a lane, give the distance of the two sides. In columns it is one for all
     * threads. Nobody waits for them before row_of(). */
    struct RowInput {
        int64_t label;
        N weight;
        Bits input;
        typename Targets::Loaded target;
    };
    template <bool kMayHaveColumns = false> __device__ __forceinline__ RowInput fetch(int64_t row, int lane) const {
        RowInput in = {0, N(1), Bits(0), 0};
        const int classes = (int)p.rows.classes, c = min(classes / 2 + lane, classes - 1);
        if (has(GPULOSSI_KL_LABELS))
            in.label = read_index(p.labels, p.label_type, row);
        if (has(GPULOSSI_KL_ROW_WEIGHTS))
            in.weight = ((const N *)p.row_weights)[row];
        if (has_distance()) {
            in.input = first_input(p)[element<kMayHaveColumns>(row, p.input_stride, c)];
            in.target = Targets(p.target, 0).load(element<kMayHaveColumns>(row, p.target_stride, c));
        }
        return in;
    }
    /* The element of a class in an array with a row, or an image of columns, each `stride` elements. */
    template <bool kMayHaveColumns>
    __device__ __forceinline__ int64_t element(int64_t row, int64_t stride, int64_t c) const {
        if (!kMayHaveColumns || !has_format(GPULOSSI_FORMAT_COLUMNS))
            return row * stride + c;
        const int64_t image = (int64_t)((uint64_t)row / (uint64_t)p.inner);
        return image * stride + (row - image * p.inner) + c * p.inner;
    }
    /* The two sides of a row are subtracted after shift() is subtracted from each, and then rest(). A large distance is
     * subtracted first, which keeps digits; a small one last. */
    struct Row {
        static const int target_class = -1;
        N weight; /* A weight of 0 means no divergence and gradients of 0, whatever the elements are. */
        bool is_counted;
        N reference[2]; /* of the exponentials of each side of logits */
        bool is_close;  /* whether both sides are close in most classes of fetch() */

        __device__ __forceinline__ N distance() const { return difference(reference[kTarget], reference[kInput]); }
        __device__ __forceinline__ bool is_far() const { return has_two_logits() && fabs(distance()) > N(kFar); }
        __device__ __forceinline__ N shift(int side) const { return is_far() ? reference[side] : N(0); }
        __device__ __forceinline__ N rest() const { return is_far() ? N(0) : distance(); }
    };
    typedef Row DeferredRow;
    /* All lanes of a row call. */
    template <class Lanes> __device__ __forceinline__ Row row_of(const RowInput &in, const Lanes &lanes) const {
        Row r = {in.weight, true, {N(0), N(0)}, false};
        if (has(GPULOSSI_KL_LABELS) && in.label == p.ignore_index) {
            r.weight = N(0);
            r.is_counted = false;
        }
        if (is_direct()) {
            r.reference[kInput] = r.reference[kTarget] =
                reference_of(E::widen(in.input), Targets::widen(in.target), lanes);
        } else if (has_distance()) {
            const N x = E::widen(in.input), distance = Targets::widen(in.target) - x;
            const bool is_finite = fabs(distance) < Limits<N>::infinity();
            N sums[2] = {is_finite ? x : N(0), is_finite ? distance : N(0)};
            const int count = lanes.count(is_finite);
            lanes.template over_all<Sum>(sums);
            if (count > 0) {
                r.reference[kInput] = sums[0] * quick_reciprocal(N(count));
                r.reference[kTarget] = fma(sums[1], quick_reciprocal(N(count)), r.reference[kInput]);
                if (Base::has_close_rows()) {
                    const bool is_close = fabs(difference(distance, r.distance())) * inverse_temperature < N(0.75);
                    r.is_close = are_most(lanes, is_close);
                }
            }
        }
        return r;
    }
    /* Whether most classes of a row are close. Less than 1 % of rows have 28 lanes if the sides differ by 0.8 times a normal
     * number. Only the pipeline has close rows, with whole warps. */
    DEVICE bool are_most(const WholeWarp &lanes, bool is_close) { return lanes.count(is_close) >= kLanes - 4; }
    template <class Lanes> DEVICE bool are_most(const Lanes &, bool) { return false; }
    /* The M of a direct KL, from a class of each lane. */
    template <class Lanes> DEVICE N reference_of(N x, N t, const Lanes &lanes) {
        const N logit = of_logits(x, t), other = of_other(x, t),
                log_other = is_probability(side_of_other()) ? quick_log(other) : other,
                shift = logit - log_other * Base::smem_temperature();
        const bool is_finite = fabs(shift) < Limits<N>::infinity();
        const int count = lanes.count(is_finite);
        const N sum = lanes.template over<Sum>(is_finite ? shift * N(1.0 / 64) : N(0)); /* no sum of 32 overflows */
        return count > 0 ? sum * (N(64) * quick_reciprocal(N(count))) : N(0);
    }

    /* ---- the sums of a row ---- */

    struct Softmax {
        /* The sum of each side of logits is relative to `max`, a reference or a maximum. A direct KL also has the sum of the
         * side that weighs. The other side's maximum is then the largest logit whose term is infinite. */
        N max[2], sum[2];
        N weighted; /* sum of exp(a) v, or p v; that of a direct KL is relative to the maximum, too */
        N excess;   /* sum of exp(a) (v + expm1(-v)) */

        DEVICE Softmax empty() {
            const N lowest = -Limits<N>::infinity();
            Softmax s = {{lowest, lowest}, {N(0), N(0)}, N(0), N(0)};
            return s;
        }
        /* Raises the maximum of a side. */
        __device__ __forceinline__ void raise(int side, N higher) {
            if (higher == max[side])
                return;
            const N by = Base::smem_inverse_temperature() * difference(higher, max[side]),
                    down = exp_of_difference(-by);
            if (is_direct() && own(sum) > 0 && max[side] > -Limits<N>::infinity())
                weighted = fma(own(sum), by, weighted);
            max[side] = higher;
            sum[side] *= down;
            if (side == weighing()) {
                if (is_direct()) /* It may be infinite because of classes whose probability becomes 0 here. */
                    weighted = down == 0 ? N(0) : weighted * down;
                if (in_one_sweep()) {
                    weighted *= down;
                    excess *= down;
                }
            }
        }
        template <class Lanes> __device__ __forceinline__ void reduce(const Lanes &lanes) {
#pragma unroll
            for (int side = kInput; side <= kTarget; side++)
                if (is_logits(side)) {
                    raise(side, largest_over(lanes, max[side]));
                    sum[side] = lanes.template over<Sum>(sum[side]);
                } else if (is_direct() && logits_weigh() && has_divergence()) {
                    max[side] = largest_over(lanes, max[side]);
                }
            if (in_one_sweep() || (is_direct() && has_divergence()))
                weighted = lanes.template over<Sum>(weighted);
            if (in_one_sweep())
                excess = lanes.template over<Sum>(excess);
            if (is_direct() && !logits_weigh()) {
                const N all = lanes.template over<Sum>(own(sum));
                sum[kInput] = weighing() == kInput ? all : sum[kInput];
                sum[kTarget] = weighing() == kTarget ? all : sum[kTarget];
            }
        }
    };
    /* The sums of a sweep of their own: of f, and of u of each side. */
    struct Values {
        double f, of_log[2];

        DEVICE Values empty() {
            Values values = {0.0, {0.0, 0.0}};
            return values;
        }
        template <class Lanes> __device__ __forceinline__ void reduce(const Lanes &lanes) {
            f = lanes.template over<Sum>(f);
#pragma unroll
            for (int side = kInput; side <= kTarget; side++)
                if (has_sum(side))
                    of_log[side] = lanes.template over<Sum>(of_log[side]);
        }
    };
    struct State : Softmax {
        Values values;
        DEVICE State empty() {
            State s = {Softmax::empty(), Values::empty()};
            return s;
        }
    };

    /* The largest elements of both sides, by their position in some vectors, before a sweep adds the vectors. A target of
     * another type has one number. */
    struct Highest {
        Vector<E> of_input, of_target;
        N of_other;
    };
    DEVICE Highest lowest() {
        const N none = -Limits<N>::infinity();
        const Highest highest = {filled<E>(none), filled<E>(none), none};
        return highest;
    }
    __device__ __forceinline__ void raise(State &s, const Highest &highest) const {
        if (is_logits(kInput))
            s.raise(kInput, larger(s.max[kInput], highest_of_input(highest)));
        if (is_logits(kTarget))
            s.raise(kTarget, larger(s.max[kTarget], highest_of_target(highest)));
    }
    DEVICE N highest_of_input(const Highest &highest) {
        return LargestOf<E, 1>::of({highest.of_input}, false);
    }
    DEVICE N highest_of_target(const Highest &highest) {
        return larger(highest.of_other, LargestOf<E, 1>::of({highest.of_target}, false));
    }
    /* The first maxima of a thread are the references of the row. */
    __device__ __forceinline__ void refer(const Row &r, State &s) const {
#pragma unroll
        for (int a = kInput; a <= kTarget; a++)
            if (is_logits(a) && s.max[a] == -Limits<N>::infinity())
                s.max[a] = r.reference[a];
    }
    /* Whether exponentials relative to the maxima are neither large nor all small. Next to a sum of at least 2^-64 those
     * below 2^-126 are nothing. */
    DEVICE bool in_range(const State &s) {
        bool are_all = true;
#pragma unroll
        for (int a = kInput; a <= kTarget; a++)
            if (is_logits(a))
                are_all &= s.sum[a] > N(0x1p-64) && s.sum[a] < N(0x1p64);
        return are_all;
    }
    /* The same for vectors of which the largest elements are known. The exponential of 40 is 2^58. */
    __device__ __forceinline__ bool in_range(const State &s, const Highest &highest) const {
        enum { kMost = 40 };
        return (!is_logits(kInput) ||
                fabs(difference(highest_of_input(highest), s.max[kInput])) * inverse_temperature < kMost) &&
               (!is_logits(kTarget) ||
                fabs(difference(highest_of_target(highest), s.max[kTarget])) * inverse_temperature < kMost);
    }
};

#endif
