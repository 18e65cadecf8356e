/* Cross-entropy of a row of logits x against a class index y or probabilities t, with every option. With w the class
 * weights, r the row weight, e the label smoothing, C classes, and z the logits after scale and softcap:
 *
 *   soft_c = w_c (e/C + (1-e) t_c)      hard = (1-e) w_y, 0 with probabilities      rest = sum_c soft_c + 2 L lse
 *   loss   = r (hard (lse - z_y) + sum_c soft_c (lse - z_c) + L lse^2)
 *   dz_c   = s r (p_c (hard + rest) - soft_c - hard [c = y])
 *   dx_c   = dz_c scale (1 - (z_c / softcap)^2)
 *   dt_c   = s r (1-e) w_c (lse - z_c)
 *
 * The loss works on vectors of a row in registers. It uses no thread index and no barrier. */
#ifndef GPULOSSI_CROSS_ENTROPY_CUH
#define GPULOSSI_CROSS_ENTROPY_CUH

#include "../device/any_dtype.cuh"
#include "../device/grid.cuh"
#include "cross_entropy_state.cuh"
#include "targets.cuh"

/* R is the type of stored results, weights and upstream gradients. An Index takes the number of any class. No call of a
 * schedule has the features kNever. */
template <class E, class R = typename E::Number, class Index = int, uint32_t kNever = 0> struct CrossEntropy {
    typedef E Element;
    typedef typename E::Number N;
    typedef typename E::Bits Bits;
    typedef gpulossi_cross_entropy Params;
    typedef FormatArray<E, GPULOSSI_FORMAT_GRADIENT_SHIFT> Gradients;
    typedef FormatArray<E, GPULOSSI_FORMAT_TARGET_SHIFT> Targets; /* probabilities, and their gradients */
    enum {
        W = Width<E>::value,
        kHasBasicRows = 1,
        kHasClasses = 1,
        kHasValues = 0,
        kHasEntries = 0,
        kClusterSlots = GPULOSSI_SLOTS
    };

    DEVICE bool has(uint32_t features) { return ::has(features & ~kNever); }

    /* A row's target among the classes of this launch, or the reason why there is none. */
    enum { kIgnored = -1, kBad = -2, kInOtherShard = -3, kNoIndex = -4 };

    /* The sums and counts of a variant over the rows of a launch. */
    struct Wanted {
        DEVICE bool sum(int i) { return i == GPULOSSI_SUM_LOSS ? has(GPULOSSI_CE_LOSS) : !first_only(); }
        DEVICE bool count(int i) { return i == GPULOSSI_COUNT_ROWS ? counts_rows() : has(GPULOSSI_CE_ARGMAX); }
        DEVICE bool first_only() { return !has(GPULOSSI_CE_Z_OUTPUTS) && !sums_weights(); }
    };
    typedef Total<GPULOSSI_SUM_SECOND + 1, GPULOSSI_COUNTS, Wanted> Totals;

    /* The divisor of a mean, if no earlier kernel has computed it: rows, or the class weights of their targets. */
    DEVICE bool counts_rows() { return has(GPULOSSI_CE_COUNTS) && !has(GPULOSSI_CE_CLASS_WEIGHTS); }
    DEVICE bool sums_weights() { return has(GPULOSSI_CE_COUNTS) && has(GPULOSSI_CE_CLASS_WEIGHTS); }
    DEVICE bool has_soft() { return has(GPULOSSI_CE_PROBABILITIES | GPULOSSI_CE_SMOOTHING); }
    DEVICE bool has_index() { return !has(GPULOSSI_CE_PROBABILITIES); }
    DEVICE bool has_transform() { return has(GPULOSSI_CE_LOGIT_SCALE | GPULOSSI_CE_SOFTCAP); }
    DEVICE bool finds_best() { return has(GPULOSSI_CE_ARGMAX | GPULOSSI_CE_SHARD); }
    /* Whether all classes have the same soft target. */
    DEVICE bool is_uniform() {
        return has(GPULOSSI_CE_SMOOTHING) && !has(GPULOSSI_CE_PROBABILITIES | GPULOSSI_CE_CLASS_WEIGHTS);
    }
    /* Whether a pass computes nothing but the softmax and the sum of the logits. */
    DEVICE bool is_basic() { return (!has_soft() || is_uniform()) && !has_transform(); }
    DEVICE bool sums_only() { return is_basic(); }
    /* Whether a class adds terms of its shape and its logit to the sums. */
    DEVICE bool adds_shapes() { return has_soft() && !is_uniform() && !has_transform(); }
    DEVICE bool writes() { return has(GPULOSSI_CE_GRADIENT | GPULOSSI_CE_TARGET_GRADIENT); }
    /* Whether the state of a row is needed. */
    DEVICE bool reduces() {
        return !has(GPULOSSI_CE_LSE_IN) || has(GPULOSSI_CE_PROBABILITIES) || finds_best() ||
               (has(GPULOSSI_CE_SMOOTHING) && has(GPULOSSI_CE_LOSS | GPULOSSI_CE_ROW_OUTPUTS));
    }
    /* Whether a row's common factor may be a subnormal float although its gradients are normal. */
    DEVICE bool splits_scale() { return has(GPULOSSI_CE_ROW_WEIGHTS | GPULOSSI_CE_ROW_GRADIENTS | GPULOSSI_CE_Z_LOSS); }

    const Params &p;
    /* Only the members that a variant needs are in registers. keep is 1-e, and smooth is e/C. */
    N keep, smooth, scale, softcap, inverse_softcap;
    N small, series[4]; /* of transform() */

    /* All threads of the block call. */
    __device__ __forceinline__ explicit CrossEntropy(const Params &p) : p(p) {
        keep = N(1);
        scale = (N)p.logit_scale;
        smooth = softcap = inverse_softcap = N(0); /* no assembler leaves out a division that nobody needs */
        if (has(GPULOSSI_CE_SMOOTHING)) {
            keep = (N)(1.0 - p.label_smoothing);
            smooth = (N)quotient_for(N(), p.label_smoothing, (double)p.total_classes);
        }
        if (has(GPULOSSI_CE_SOFTCAP)) {
            softcap = (N)p.softcap;
            inverse_softcap = (N)quotient_for(N(), 1.0, p.softcap);
            set_series();
        }
        if (writes()) {
            double part = has_index() ? rows_that_divide(p) : 1.0;
            if (threadIdx.x == 0)
                grad_scale() = gradient_scale<R>(p.rows, part);
        }
        __syncthreads();
    }

    __device__ __forceinline__ gpulossi_scratch *scratch() const { return (gpulossi_scratch *)p.rows.scratch; }
    DEVICE const Bits *first_input(const Params &p) { return (const Bits *)p.logits; }
    DEVICE int64_t stride_of_input(const Params &p) { return p.logits_stride; }
    DEVICE int64_t inner(const Params &p) { return p.inner; }
    __device__ __forceinline__ const Bits *logits(int64_t row) const { return first_input(p) + row * p.logits_stride; }
    /* The array that goes through the pipeline with the logits: target probabilities, or else class weights. */
    DEVICE bool stages_weights() { return has_format(GPULOSSI_FORMAT_TWO_ARRAYS) && has_index(); }
    /* Its elements of a row from class c on. */
    __device__ __forceinline__ const void *second_input(int64_t row, int64_t c) const {
        if (stages_weights())
            return class_weights().base + c;
        return Targets(p.probabilities, row * p.probabilities_stride + c).base;
    }
    __device__ __forceinline__ Gradients gradients_of(int64_t row) const {
        return Gradients(p.rows.grad, row * p.rows.grad_stride);
    }
    DEVICE N lowest() { return -Limits<N>::infinity(); }
    /* A logit that does not change the state of a row. */
    __device__ __forceinline__ N padding() const { return has_negative_scale() ? -lowest() : lowest(); }

    /* ---- the inputs of a row ---- */

    /* It is fetched ahead, and nobody waits for it before row_of(). All lanes of a row fetch the same. */
    struct RowInput {
        int64_t index;
        N weight, lse;
    };
    template <bool kMayHaveColumns = false> __device__ __forceinline__ RowInput fetch(int64_t row, int = 0) const {
        RowInput in = {0, N(1), N(0)};
        if (has_index())
            in.index = read_index(p.targets, p.target_type, row);
        if (has(GPULOSSI_CE_ROW_WEIGHTS))
            in.weight = (N)((const R *)p.row_weights)[row];
        if (has(GPULOSSI_CE_LSE_IN))
            in.lse = (N)((const R *)p.lse_in)[row];
        return in;
    }
    /* A row without its logits. The weight of the target's class is fetched here, and not waited for. */
    struct Row {
        Index target_class;
        N weight, lse, class_weight; /* A weight of 0 means neither loss nor gradients, whatever the logits are. */
    };
    typedef Row DeferredRow;
    DEVICE bool sums_while_writing() { return false; }
    template <class Lanes = WholeWarp>
    __device__ __forceinline__ Row row_of(const RowInput &in, const Lanes & = Lanes()) const {
        Row r = {kNoIndex, in.weight, in.lse, N(1)};
        if (!has_index())
            return r;
        const int64_t target_class = in.index - p.class_offset;
        if ((uint64_t)target_class < (uint64_t)p.rows.classes && in.index != p.ignore_index) {
            r.target_class = (Index)target_class;
        } else {
            const Target kind = kind_of(p, in.index);
            r.target_class = (Index)(kind == ::kClass ? kInOtherShard : kind == ::kIgnored ? kIgnored : kBad);
            if (kind != ::kClass) {
                r.weight = N(0);
                return r;
            }
        }
        if (has(GPULOSSI_CE_CLASS_WEIGHTS))
            r.class_weight = class_weight(in.index);
        return r;
    }
    /* Whether the logits of a row have to be read. */
    __device__ __forceinline__ bool is_read(const Row &r) const {
        const uint64_t lse = has(GPULOSSI_CE_ROW_OUTPUTS) ? p.lse : 0;
        return r.weight != 0 || finds_best() || lse != 0;
    }
    /* The factor of the target's part of the loss. */
    __device__ __forceinline__ N hard_of(const Row &r) const {
        N hard = has_index() ? N(1) : N(0);
        if (has(GPULOSSI_CE_SMOOTHING))
            hard *= keep;
        if (has(GPULOSSI_CE_CLASS_WEIGHTS))
            hard *= r.class_weight;
        return hard;
    }
    __device__ __forceinline__ ResultArray<E> class_weights() const {
        return ResultArray<E>((const N *)p.class_weights + p.class_offset);
    }
    __device__ __forceinline__ N class_weight(int64_t c) const { return (N)((const R *)p.class_weights)[c]; }
    /* The target's logit before scale and softcap, or 0 if it is not in this launch. It is not widened here, which would
     * wait for the load. */
    __device__ __forceinline__ Bits target_logit(int64_t row, const Row &r) const {
        return has_index() && r.target_class >= 0 ? logits(row)[r.target_class] : Bits(0);
    }

    /* ---- scale and softcap ---- */

    /* A scaled logit after softcap, and the softcap's derivative. A class that is masked before scaling stays masked. A
     * class whose logit is infinite only after scaling does not. */
    __device__ __forceinline__ N capped(N given, N scaled, N &slope) const {
        const N x = softcap * tanh_of(scaled * inverse_softcap, slope);
        return given == padding() ? lowest() : x;
    }
    /* The logit that the softmax sees, and the softcap's derivative. */
    __device__ __forceinline__ N transformed(N x, N &slope) const {
        const N given = x;
        slope = N(1);
        if (has(GPULOSSI_CE_LOGIT_SCALE))
            x *= scale;
        if (has(GPULOSSI_CE_SOFTCAP))
            x = capped(given, x, slope);
        return x;
    }
    /* With x = a softcap, tanh(a) softcap / x - 1 is a polynomial in x^2 without constant, if |x| is less than `small`.
     * The result is within 1.6u. `small` is 0 if powers of the softcap are no ordinary floats. */
    __device__ __forceinline__ void set_series() {
        const N square = inverse_softcap * inverse_softcap;
        const N of_a[4] = {N(-3.33333105e-01f), N(1.33305132e-01f), N(-5.33910543e-02f), N(1.79992188e-02f)};
        N power = square;
        small = softcap > N(0x1p-12f) && softcap < N(0x1p12f) ? N(0.5) * softcap : N(0);
#pragma unroll
        for (int i = 0; i < 4; i++, power *= square)
            series[i] = of_a[i] * power;
    }
    /* transformed() of a vector. It takes fewer instructions if all logits are small. A NaN stays NaN in both
     * branches. */
    __device__ __forceinline__ void transform(N (&x)[W], N (&slope)[W]) const {
        N given[W], size[W];
#pragma unroll
        for (int i = 0; i < W; i++) {
            given[i] = x[i];
            if (has(GPULOSSI_CE_LOGIT_SCALE))
                x[i] *= scale;
            size[i] = fabs(x[i]);
        }
        if (!has(GPULOSSI_CE_SOFTCAP))
            return;
        if (sizeof(N) == 4 && in_halves<Maximum>(size) < small) {
            const N inverse2 = inverse_softcap * inverse_softcap;
#pragma unroll
            for (int i = 0; i < W; i++) {
                const N z = x[i] * x[i];
                const N sum = fma(fma(fma(series[3], z, series[2]), z, series[1]), z, series[0]);
                x[i] = fma(x[i] * z, sum, x[i]);
                slope[i] = fma(-x[i] * x[i], inverse2, N(1));
            }
        } else {
#pragma unroll
            for (int i = 0; i < W; i++)
                x[i] = capped(given[i], x[i], slope[i]);
        }
    }
    __device__ __forceinline__ N transformed(N x) const {
        N slope;
        return transformed(x, slope);
    }

    /* ---- first pass: online softmax, and the sums over soft targets ---- */

    typedef CrossEntropyState<CrossEntropy, N> State;
    typedef typename State::Best Best;

    /* A row's state for finish(). */
    typedef State Outcome;
    DEVICE const State &outcome(const Row &, const State &s) {
        return s;
    }
    /* The part of the state that a sweep over the logits reduces. */
    typedef State Softmax;
    /* Raises the maximum of a state to the maximum of some vectors, which highest_of() gives. */
    __device__ __forceinline__ void raise(State &s, N highest) const {
        if (highest != lowest())
            s.raise(larger(s.softmax.max, transformed(has_negative_scale() ? -highest : highest)));
    }
    __device__ __forceinline__ bool has_negative_scale() const {
        return has(GPULOSSI_CE_LOGIT_SCALE) && scale < 0;
    }
    /* The largest logit, or the negated smallest one if the scale is negative. */
    template <int K> __device__ __forceinline__ N highest_of(const Vector<E> (&x)[K]) const {
        return LargestOf<E, K>::of(x, has_negative_scale());
    }

    /* The first of a few vectors with the highest number, if it is above that of the vectors before. */
    struct Highest {
        N value;
        int k;

        __device__ __forceinline__ void note(N of_vector, int of_k) {
            k = of_vector > value ? of_k : k;
            value = larger(value, of_vector);
        }
    };
    DEVICE Highest highest_before(const State &s) {
        const Highest h = {s.best_value, -1};
        return h;
    }

    /* Adds vectors to the sums of a basic loss. Returns their maximum. Elements outside the row are padding. */
    template <int K, class Side>
    __device__ __forceinline__ N add_to_sums(State &s, Vector<E> (&x)[K], const Side &side) const {
        const N highest = LargestOf<E, K>::of(x, false);
        N products = N(0);
        if constexpr (sizeof(N) == 8) {
            N all[K * W], differences[K * W];
            int inside = 0;
#pragma unroll
            for (int i = 0; i < K * W; i++)
                all[i] = x[i / W].get(i % W);
            s.add(all, differences);
            if (!is_uniform())
                return highest;
#pragma unroll
            for (int k = 0; k < K; k++)
                inside += side.count(k);
            const N more = unit() * in_halves<Sum>(differences);
            if (inside == K * W && fabs(more) < Limits<N>::infinity()) {
                s.drop -= more;
                s.soft_sum = fma(unit(), N(K * W), s.soft_sum);
                return highest;
            }
        } else {
            s.raise(larger(s.softmax.max, highest));
            const auto see = [&](int k, const N(&y)[W]) {
                if (is_uniform() && kAddsProducts<K, Side>)
                    products += side.count(k) > 0 ? in_halves<Sum>(y) : N(0);
            };
            s.softmax.template add<E, K>(x, see);
        }
        if (is_uniform())
            add_uniform(s, x, products, side);
        return highest;
    }
    /* Whether the soft targets of K vectors are summed as products with exponents of 2, which may overflow. */
    template <int K, class Side>
    static constexpr bool kAddsProducts = sizeof(N) == 4 && K > 1 && !Side::kHasPartialVectors;
    /* Adds the soft targets of vectors. If products are not finite, vectors are loaded again, to save registers. */
    template <int K, class Side>
    __device__ __forceinline__ void add_uniform(State &s, Vector<E> (&x)[K], N products, const Side &side) const {
        N z[W];
        if constexpr (kAddsProducts<K, Side>) {
            const Batch batch = batch_of(s);
            const N count = N(max(side.end - side.begin, 0) * (int)W), more = drop_of(s, batch, products, count);
            if (batch.is_fast && fabs(more) < Limits<N>::infinity()) {
                s.drop += more;
                s.soft_sum = fma(unit(), count, s.soft_sum);
                return;
            }
        }
        if constexpr (kAddsProducts<K, Side> || sizeof(N) == 8) {
#pragma unroll 1
            for (int k = side.begin; k < side.end; k++) {
                side.load(k).unpack(z);
                add_uniform(s, z, side, k);
            }
        } else {
#pragma unroll 1
            for (int k = 0; k < K; k++) {
                x[0].unpack(z);
                add_uniform(s, z, side, k);
                rotate(x);
            }
        }
    }
    /* Adds the soft targets of a vector. unit() is inside the sums against overflow. */
    template <class Side>
    __device__ __forceinline__ void add_uniform(State &s, const N (&z)[W], const Side &side, int k) const {
        const N from = s.softmax.reference();
        const int count = side.count(k);
        N sum[2] = {}; /* two chains of additions have half the latency */
#pragma unroll
        for (int i = 0; i < W; i++)
            if (count == W || side.is_inside(k, i))
                sum[i % 2] = fma(unit(), difference(z[i], from), sum[i % 2]);
        s.drop -= count > 0 ? sum[0] + sum[1] : N(0);
        s.soft_sum = fma(unit(), (N)count, s.soft_sum);
    }
    /* Adds vectors to the state of a basic loss. */
    template <int K, class Side>
    __device__ __forceinline__ void accumulate_sums(State &s, Vector<E> (&x)[K], const Side &side) const {
        const N before = s.softmax.max, highest = add_to_sums(s, x, side);
        if (!finds_best())
            return;
        Highest first = {highest, -1};
        if (highest > before)
#pragma unroll
            for (int k = K - 1; k >= 0; k--)
                first.k = LargestOf<E, 1>::of({x[k]}, false) == highest ? k : first.k;
        find_best<false>(s, first, side.begin, side.end, 1, [&](int) { return side; });
    }
    /* Sums of vectors under the maximum of a state: of 2^y, of shape y and of shape, with
     * y = (z - max) log2(e) + rounding. */
    struct Batch {
        ScaledExp<N> scaled;
        bool is_fast;
        N powers, products, shapes;
    };
    DEVICE Batch batch_of(const State &s) {
        const N from = s.softmax.reference();
        const Batch b = {ScaledExp<N>(from), ScaledExp<N>::in_fast_range(from), N(0), N(0), N(0)};
        return b;
    }
    /* The part of the drop that products and shapes under the maximum of a batch make. */
    __device__ __forceinline__ N drop_of(const State &s, const Batch &batch, N products, N shapes) const {
        const N rounding = batch.scaled.rounding(s.softmax.reference());
        return unit() * (N(-0.693147181) * fma(-rounding, shapes, products));
    }
    /* Adds a vector to a batch, with every option but the class of the maximum. Instead it notes the vector if it has
     * the highest number. A schedule's Side knows the row and the position of the vector in it. first(k) is the first
     * class of vector k. count(k) of its elements are in the row: the elements i with is_inside(k, i). read(array, k,
     * y) and write(array, k, y) access the same classes of another array. Doubles are added to the state at once. */
    template <class Side>
    __device__ __forceinline__ void accumulate(State &s, Batch &batch, Highest &highest, const Vector<E> &x,
                                               const Side &side, int k) const {
        N z[W], part[W], shape[W] = {};
        if (has_soft() && !side.is_staged())
            shape_of(side, k, shape); /* early, so that its loads are not waited for */
        x.unpack(z);
        transform(z, part);
        if (finds_best())
            highest.note(in_halves<Maximum>(z), k);
        if (has_soft() && side.is_staged())
            shape_of(side, k, shape);
        if constexpr (sizeof(N) == 8) {
            add(s, z, shape, side, k);
        } else {
            N products[2] = {};
#pragma unroll
            for (int i = 0; i < W; i++) {
                z[i] = batch.scaled.power(z[i]);
                part[i] = power_of_2(z[i]);
                if (has_soft() && side.is_inside(k, i))
                    products[i % 2] = fma(shape[i], z[i], products[i % 2]);
            }
            batch.powers += in_halves<Sum>(part);
            if (has_soft()) {
                N of_vector = in_halves<Sum>(products);
                if (!is_uniform() && !(fabs(of_vector) < Limits<N>::infinity())) { /* a soft target of 0 adds nothing */
                    of_vector = N(0);
#pragma unroll
                    for (int i = 0; i < W; i++)
                        of_vector += shape[i] == 0 ? N(0) : shape[i] * z[i];
                }
                batch.products += of_vector;
                batch.shapes += in_halves<Sum>(shape);
            }
        }
    }
    /* Adds a float alone to the powers and products of a batch of a basic loss. */
    DEVICE void accumulate_basic(Batch &batch, float x) {
        const float y = batch.scaled.power(x);
        batch.powers += power_of_2(y);
        if (has_soft())
            batch.products += y;
    }
    /* Adds a float and its shape. */
    DEVICE void accumulate_shape(Batch &batch, float x, float shape) {
        const float y = batch.scaled.power(x);
        batch.powers += power_of_2(y);
        batch.products += shape == 0 ? 0 : shape * y;
        batch.shapes += shape;
    }
    /* The shape of a class, from its target probability and its weight. */
    __device__ __forceinline__ N shape_of(N target, N weight) const {
        const N soft_target = has(GPULOSSI_CE_SMOOTHING) ? fma(keep, target, smooth) : target;
        return !has(GPULOSSI_CE_CLASS_WEIGHTS)  ? soft_target
               : has(GPULOSSI_CE_PROBABILITIES) ? soft_target * weight
                                                : weight;
    }
    /* Adds a batch to the state. side_of(k) is a Side of its vectors k. They are added one by one if the maximum is not
     * in the range of ScaledExp or the sums are not finite. */
    template <class SideOf>
    __device__ __forceinline__ void close(State &s, const Batch &batch, int begin, int end, int step,
                                          const SideOf &side_of) const {
        if constexpr (sizeof(N) == 4) {
            const N more = drop_of(s, batch, batch.products, batch.shapes);
            if (batch.is_fast && fabs(more) < Limits<N>::infinity()) {
                s.softmax.sum = fma(batch.powers, batch.scaled.factor, s.softmax.sum);
                if (has_soft()) {
                    s.drop += more;
                    s.soft_sum += unit() * batch.shapes;
                }
                return;
            }
#pragma unroll 1
            for (int k = begin; k < end; k += step)
                add_vector(s, side_of(k).load(k), side_of(k), k);
        }
    }
    /* Adds a vector in a batch of its own. */
    template <class Side>
    __device__ __forceinline__ void accumulate_one(State &s, Highest &highest, const Vector<E> &x, const Side &side,
                                                   int k) const {
        raise(s, highest_of({x}));
        Batch batch = batch_of(s);
        accumulate(s, batch, highest, x, side, k);
        close(s, batch, k, k + 1, 1, [&](int) { return side; });
    }
    /* Adds a vector to the state, whatever its logits are. */
    template <class Side>
    __device__ __forceinline__ void add_vector(State &s, const Vector<E> &x, const Side &side, int k) const {
        N z[W], slope[W], shape[W] = {};
        x.unpack(z);
        transform(z, slope);
        if (has_soft())
            shape_of(side, k, shape);
        add(s, z, shape, side, k);
    }
    /* Adds numbers of any size to the state. A class whose soft target is 0 adds nothing to the drop, whatever its logit.
     * unit() is inside the sum against overflow. */
    template <class Side>
    __device__ __forceinline__ void add(State &s, N (&z)[W], N (&shape)[W], const Side &side, int k) const {
        const N from = s.softmax.reference();
        if constexpr (sizeof(N) == 8) {
            N part[W], more = N(0);
#pragma unroll
            for (int i = 0; i < W; i++)
                part[i] = z[i] = difference(z[i], from);
            exp_of_differences(part);
            s.softmax.sum += in_halves<Sum>(part);
            if (!has_soft())
                return;
#pragma unroll
            for (int i = 0; i < W; i++)
                part[i] = side.is_inside(k, i) ? shape[i] * z[i] : N(0);
            more = unit() * in_halves<Sum>(part);
            if (!(fabs(more) < Limits<N>::infinity())) {
#pragma unroll
                for (int i = 0; i < W; i++)
                    part[i] = shape[i] == 0 ? N(0) : unit() * shape[i] * z[i];
                more = in_halves<Sum>(part);
            }
            s.drop -= more;
            s.soft_sum += unit() * in_halves<Sum>(shape);
        } else {
#pragma unroll 1
            for (int i = 0; i < (int)Side::kElements; i++) { /* rare, so it is not unrolled */
                const N z_0 = difference(z[0], from), shape_0 = shape[0];
                s.softmax.sum += exp_of_difference(z_0);
                if (has_soft() && shape_0 != 0)
                    s.drop -= unit() * shape_0 * z_0;
                s.soft_sum += unit() * shape_0;
                shift_in(z, z_0);
                shift_in(shape, shape_0);
            }
        }
    }
    /* Adds a vector alone, with the class of the maximum. */
    template <class Side>
    __device__ __forceinline__ void accumulate_alone(State &s, const Vector<E> &x, const Side &side) const {
        raise(s, highest_of({x}));
        add_vector(s, x, side, 0);
        if (finds_best())
            search(s, x, side.first(0), true);
    }
    /* Whether accumulate_together() will do. */
    DEVICE bool adds_together() {
        return !finds_best() && !has(GPULOSSI_CE_SOFTCAP);
    }
    /* accumulate() of vectors first_k, first_k + step, ..., whose latencies overlap. */
    template <int K, class Side>
    __device__ __forceinline__ void accumulate_together(State &s, const Vector<E> (&x)[K], const Side &side,
                                                        int first_k, int step) const {
        typedef N OfVector[W];
        N z[K * W], part[K * W], shape[K * W];
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (has_soft())
                shape_of(side, first_k + k * step, (OfVector &)shape[k * W]);
            x[k].unpack((OfVector &)z[k * W]);
        }
#pragma unroll
        for (int i = 0; i < K * W; i++)
            part[i] = has(GPULOSSI_CE_LOGIT_SCALE) ? z[i] * scale : z[i];
        s.add(part, z);
        if (!has_soft())
            return;
#pragma unroll
        for (int i = 0; i < K * W; i++)
            part[i] = shape[i] * z[i];
        N more = unit() * in_halves<Sum>(part);
        if (!(fabs(more) < Limits<N>::infinity())) { /* as in accumulate() */
#pragma unroll
            for (int i = 0; i < K * W; i++)
                part[i] = shape[i] == 0 ? N(0) : unit() * shape[i] * z[i];
            more = in_halves<Sum>(part);
        }
        s.drop -= more;
        s.soft_sum += unit() * in_halves<Sum>(shape);
    }
    /* soft_c is unit() shape_c. An index has the unit e/C and the shape w_c. Probabilities have the unit 1 and the
     * shape w_c ((1-e) t_c + e/C). */
    __device__ __forceinline__ N unit() const {
        return has(GPULOSSI_CE_PROBABILITIES) ? N(1) : smooth;
    }
    template <class Side> __device__ __forceinline__ void shape_of(const Side &side, int k, N (&shape)[W]) const {
#pragma unroll
        for (int i = 0; i < W; i++)
            shape[i] = side.is_inside(k, i) ? N(1) : N(0);
        if (has(GPULOSSI_CE_PROBABILITIES)) {
            side.read_staged(Targets(p.probabilities, side.start(p.probabilities_stride)), k, shape);
            if (has(GPULOSSI_CE_SMOOTHING))
#pragma unroll
                for (int i = 0; i < W; i++)
                    shape[i] = side.is_inside(k, i) ? fma(keep, shape[i], smooth) : N(0);
        }
        if (has(GPULOSSI_CE_CLASS_WEIGHTS)) {
            N w[W];
            side.read_of_classes(class_weights(), k, w);
#pragma unroll
            for (int i = 0; i < W; i++)
                shape[i] = has(GPULOSSI_CE_PROBABILITIES) ? shape[i] * w[i] : w[i];
        }
    }
    /* Finds the class of the maximum among vectors that a thread has added, of which side_of(k) is a Side. All of them
     * are searched if there is a NaN, and else the one with the highest number. */
    template <bool kTransforms = true, class SideOf>
    __device__ __forceinline__ void find_best(State &s, const Highest &highest, int begin, int end, int step,
                                              const SideOf &side_of) const {
        const bool has_nan = s.softmax.sum != s.softmax.sum; /* true for infinities, too */
        if (!finds_best() || (!has_nan && highest.k < 0))
            return;
#pragma unroll 1
        for (int k = has_nan ? begin : highest.k; k < (has_nan ? end : highest.k + 1); k += step)
            search<kTransforms>(s, side_of(k).load(k), side_of(k).first(k), has_nan);
    }
    template <bool kTransforms = true>
    __device__ __forceinline__ void search(State &s, const Vector<E> &x, int64_t first, bool may_have_nan) const {
        N z[W], slope[W];
        x.unpack(z);
        if constexpr (kTransforms)
            transform(z, slope);
        const N highest = in_halves<Maximum>(z);
        int at = 0;
#pragma unroll
        for (int i = W - 1; i >= 0; i--)
            at = z[i] == highest ? i : at;
        note_best(s, highest, (Best)first + at);
        if (may_have_nan) {
            int of_nan = W;
#pragma unroll
            for (int i = W - 1; i >= 0; i--)
                of_nan = z[i] != z[i] ? i : of_nan;
            if (of_nan < W)
                note_nan(s, (Best)first + of_nan);
        }
    }
    __device__ __forceinline__ void note_best(State &s, N value, Best c) const {
        const Best best = c | State::kNumber;
        if (value > s.best_value || (value == s.best_value && best < s.best && s.best != State::kNone)) {
            s.best = best;
            s.best_value = value;
        }
    }
    __device__ __forceinline__ void note_nan(State &s, Best c) const {
        s.best = Minimum::of(s.best, c);
        s.best_value = Limits<N>::infinity();
    }
    /* ---- second pass: gradients ---- */

    /* The common factors of a row's gradients: g = exp(z - shift) weight - shape_c spread, times the softcap's slope. A
     * basic row that is fast uses the ScaledExp. The row's factor s r is scale root. With it, hard and rest have the
     * factor root: then no product is subnormal or infinite before the last one. */
    struct Gradient {
        N shift, inverse, log_sum; /* p = exp(z - shift) inverse, log_sum = lse - shift */
        N scale, root, hard, rest;
        N weight, spread;
        ScaledExp<N> exp;
        bool is_fast, is_zero;
    };
    /* gradient() before set_scale(). */
    __device__ __forceinline__ Gradient unscaled(const Row &r, const State &s) const {
        Gradient g = {s.softmax.max,      N(1),  N(0), N(0), N(1), hard_of(r), N(0), N(0), N(0),
                      ScaledExp<N>(N(0)), false, false};
        if (has(GPULOSSI_CE_LSE_IN)) {
            g.shift = r.lse;
        } else {
            g.inverse = reciprocal(s.softmax.sum);
            if (has(GPULOSSI_CE_Z_LOSS | GPULOSSI_CE_TARGET_GRADIENT))
                g.log_sum = natural_log(s.softmax.sum);
        }
        return g;
    }
    /* The factor s r of a row's gradients. */
    __device__ __forceinline__ double factor_of(int64_t row, const Row &r) const {
        double factor = grad_scale();
        if (has(GPULOSSI_CE_ROW_GRADIENTS))
            factor *= ((const R *)p.rows.grad_loss_rows)[row];
        if (has(GPULOSSI_CE_ROW_WEIGHTS))
            factor *= r.weight;
        return factor;
    }
    __device__ __forceinline__ void set_scale(Gradient &g, double factor, const Row &r, const State &s) const {
        if (splits_scale())
            g.root = root_power_of_2<N>(factor);
        g.scale = (N)(factor * inverse_power_of_2(g.root));
        g.is_zero = r.weight == 0;
        if (has_soft())
            g.rest = reduces()                        ? s.soft_sum
                     : has(GPULOSSI_CE_CLASS_WEIGHTS) ? smooth * (N)scratch()->class_weights
                                                      : (N)p.label_smoothing;
        g.hard *= g.root;
        g.rest *= g.root;
        if (has(GPULOSSI_CE_Z_LOSS))
            g.rest += g.root * (g.shift + g.log_sum) * (N(2) * (N)p.lse_square_scale);
        g.exp = ScaledExp<N>(g.shift);
        g.weight = g.scale * g.inverse;
        if (has_soft() || has_transform() || splits_scale() || has(GPULOSSI_CE_CLASS_WEIGHTS))
            g.weight *= g.hard + g.rest;
        g.spread = g.scale * g.root * unit();
        if (has(GPULOSSI_CE_LOGIT_SCALE)) {
            g.weight *= scale;
            g.spread *= scale;
        }
        g.is_fast = ScaledExp<N>::in_fast_range(g.shift) && g.weight == g.weight;
    }
    __device__ __forceinline__ Gradient gradient(int64_t row, const Row &r, const State &s) const {
        Gradient g = unscaled(r, s);
        set_scale(g, factor_of(row, r), r, s);
        return g;
    }
    /* The gradients of a vector of logits, with every option, as if none of them were the target's. */
    template <class Side>
    __device__ __forceinline__ void gradients(const Gradient &g, const Vector<E> &x, const Side &side, int k,
                                              N (&of_x)[W]) const {
        N slope[W], shape[W];
        x.unpack(of_x);
        transform(of_x, slope);
#pragma unroll
        for (int i = 0; i < W; i++) {
            shape[i] = N(0);
            of_x[i] = difference(of_x[i], g.shift);
            if (sizeof(N) == 4)
                of_x[i] = exp_of_difference(of_x[i]);
        }
        if constexpr (sizeof(N) == 8)
            exp_of_differences(of_x);
        if (has_soft())
            shape_of(side, k, shape);
#pragma unroll
        for (int i = 0; i < W; i++) { /* adding 0 changes -0 to 0 */
            of_x[i] = fma(of_x[i], g.weight, has_soft() ? fma(-shape[i], g.spread, N(0)) : N(0));
            if (has(GPULOSSI_CE_SOFTCAP))
                of_x[i] *= slope[i];
        }
    }
    /* The gradient of a logit of a basic row that is fast. */
    __device__ __forceinline__ N fast_gradient(const Gradient &g, N x) const {
        const N weight = g.weight * g.exp.factor;
        return is_uniform() ? fma(g.exp.exp(x), weight, -g.spread) : g.exp.exp(x) * weight;
    }
    __device__ __forceinline__ void fast_gradients(const Gradient &g, const Vector<E> &x, N (&of_x)[W]) const {
        x.unpack(of_x);
#pragma unroll
        for (int i = 0; i < W; i++)
            of_x[i] = fast_gradient(g, of_x[i]);
    }
    /* The gradient of a logit with a shape, if the row is fast. */
    DEVICE N shape_gradient(const Gradient &g, N x, N shape) {
        return fma(g.exp.exp(x), g.weight * g.exp.factor, fma(-shape, g.spread, N(0)));
    }
    /* fast_gradients() of several vectors of doubles. */
    template <int K>
    __device__ __forceinline__ void fast_gradients(const Gradient &g, const Vector<E> (&x)[K], N (&of_x)[K][W]) const {
        N e[K * W];
#pragma unroll
        for (int i = 0; i < K * W; i++)
            e[i] = difference(x[i / W].get(i % W), g.shift);
        exp_of_differences(e);
#pragma unroll
        for (int i = 0; i < K * W; i++)
            of_x[i / W][i % W] = is_uniform() ? fma(e[i], g.weight, -g.spread) : e[i] * g.weight;
    }
    /* The gradient of the target's logit x, before scale and softcap. p is clamped to 1 against rounding, so that p - 1
     * is at most 0. With kReloads the class weight is loaded again, which takes fewer registers. */
    template <bool kReloads = true>
    __device__ __forceinline__ N target_gradient(const Gradient &g, const Row &r, N x) const {
        N slope, p = exp_below(transformed(x, slope), g.shift) * g.inverse;
        p = p > N(1) ? N(1) : p;
        N of_z = g.hard * (p - N(1));
        if (has_soft() || has(GPULOSSI_CE_Z_LOSS)) {
            N soft_target = has_soft() ? smooth : N(0);
            if (has(GPULOSSI_CE_SMOOTHING) && has(GPULOSSI_CE_CLASS_WEIGHTS))
                soft_target *= kReloads ? class_weight(this->p.class_offset + r.target_class) : r.class_weight;
            of_z += p * g.rest - g.root * soft_target;
        }
        of_z *= g.scale;
        if (has(GPULOSSI_CE_LOGIT_SCALE))
            of_z *= scale;
        return has(GPULOSSI_CE_SOFTCAP) ? of_z * slope : of_z;
    }
    /* The gradients of a vector of target probabilities. */
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
            N soft_target = has(GPULOSSI_CE_SMOOTHING) ? keep * w[i] : w[i];
            N of_class = g.scale * (g.root * soft_target * (g.log_sum + (g.shift - transformed(of_t[i]))));
            of_t[i] = soft_target == 0 ? N(0) : of_class;
        }
    }

    /* Writes the gradients of a vector, with every option. Its element `target` is the target's, unless it is negative.
     * They are 0 if the row has no gradient. */
    template <class Side>
    __device__ __forceinline__ void write(const Gradient &g, const Row &r, const Vector<E> &x, const Side &side, int k,
                                          int target, bool has_gradient = true) const {
        N y[W] = {};
        if (has(GPULOSSI_CE_GRADIENT)) {
            if (has_gradient) {
                gradients(g, x, side, k, y);
                put_target(g, r, x, target, y);
            }
            side.write(Gradients(p.rows.grad, side.start_of_gradient(p.rows.grad_stride)), k, y);
        }
        if (has(GPULOSSI_CE_TARGET_GRADIENT)) {
            if (has_gradient)
                probability_gradients(g, x, side, k, y);
            side.write(Targets(p.grad_probabilities, side.start(p.grad_probabilities_stride)), k, y);
        }
    }
    /* write() of a basic row that is fast, by all lanes of a warp. */
    __device__ __forceinline__ void write_fast(const Gradient &g, const Row &r, const Vector<E> &x,
                                               const Gradients &gradients, int64_t first, int target,
                                               bool is_inside) const {
        N y[W];
        fast_gradients(g, x, y);
        put_target(g, r, x, target, y);
        gradients.write_vectors(first, y, is_inside);
    }
    /* Writes the gradients of a row that has none, or was not read. */
    template <class Side> __device__ __forceinline__ void write_zeros(const Side &side, int k) const {
        N zeros[W] = {};
        if (has(GPULOSSI_CE_GRADIENT))
            side.write(Gradients(p.rows.grad, side.start_of_gradient(p.rows.grad_stride)), k, zeros);
        if (has(GPULOSSI_CE_TARGET_GRADIENT))
            side.write(Targets(p.grad_probabilities, side.start(p.grad_probabilities_stride)), k, zeros);
    }
    __device__ __forceinline__ void put_target(const Gradient &g, const Row &r, const Vector<E> &x, int target,
                                               N (&y)[W]) const {
        if (!has_index() || target < 0)
            return;
        const N own = target_gradient(g, r, x.find(target));
#pragma unroll
        for (int i = 0; i < W; i++)
            y[i] = i == target ? own : y[i];
    }

    /* ---- the results of a row, by one thread ---- */

    /* The contribution of a row to the totals of a launch. */
    struct Result {
        N loss, second;       /* the part of GPULOSSI_SUM_SECOND */
        int counted, correct; /* rows */
        bool is_bad;
    };
    __device__ __forceinline__ Result finish(int64_t row, const Row &r, const State &s, N x_y) const {
        const N shift = reduces() ? s.softmax.max : r.lse, z_y = transformed(x_y);
        Result of = {N(0), N(0), r.target_class != kIgnored, 0, r.target_class == kBad};
        N log_sum = N(0), z_loss = N(0);
        if (reduces())
            log_sum = has(GPULOSSI_CE_LSE_IN) ? r.lse - shift : natural_log(s.softmax.sum);
        const N lse = shift + log_sum;
        if (of.is_bad) {
            of.loss = z_loss = Limits<N>::nan();
        } else if (r.weight != 0) {
            if (has_index()) {
                const N hard = hard_of(r), of_target = log_sum + (shift - z_y);
                of.loss =
                    hard == 0 ? hard * fabs(lse) : hard * at_least_0(of_target); /* rounding may make it negative */
            }
            if (has_soft())
                of.loss += s.soft_sum * log_sum + s.drop;
            if (has(GPULOSSI_CE_Z_LOSS))
                z_loss = (N)p.lse_square_scale * lse * r.weight * lse; /* lse^2 alone may overflow */
            if (has(GPULOSSI_CE_ROW_WEIGHTS | GPULOSSI_CE_Z_LOSS))
                of.loss = fma(r.weight, of.loss, z_loss);
        }
        if (has(GPULOSSI_CE_ROW_OUTPUTS)) {
            if (p.lse)
                ((R *)p.lse)[row] = (R)lse;
            if (p.rows.loss_rows)
                ((R *)p.rows.loss_rows)[row] = (R)of.loss;
        }
        if (has(GPULOSSI_CE_Z_OUTPUTS) && p.z_loss_rows)
            ((R *)p.z_loss_rows)[row] = (R)z_loss;
        of.second = !sums_weights() ? z_loss : of.counted && !of.is_bad ? r.class_weight : N(0);
        if (finds_best())
            of.correct = finish_best(row, r, s, z_y);
        return of;
    }
    /* Writes the results of the best class of a row. Returns whether it is the target. */
    __device__ __forceinline__ int finish_best(int64_t row, const Row &r, const State &s, N z_y) const {
        const int64_t best = s.argmax() + p.class_offset;
        if (has(GPULOSSI_CE_SHARD)) {
            gpuloss_shard_row shard = {(double)s.softmax.max,
                                       (double)s.softmax.sum,
                                       r.target_class >= 0 ? (double)z_y : 0.0,
                                       has_soft() ? (double)s.soft_sum : 0.0,
                                       has_soft() ? -(double)s.drop : 0.0,
                                       (double)best};
            if (s.has_nan())
                shard.max = CUDART_NAN;
            ((gpuloss_shard_row *)p.shard_rows)[row] = shard;
        }
        if (p.argmax)
            ((int64_t *)p.argmax)[row] = best;
        return r.target_class >= 0 && best == r.target_class + p.class_offset;
    }
    __device__ __forceinline__ void add(const Result &of, Totals &total) const {
        if (of.is_bad && p.bad_targets)
            total.count_bad(scratch(), 1);
        if (counts_rows())
            total.counts[GPULOSSI_COUNT_ROWS] += of.counted;
        if (has(GPULOSSI_CE_ARGMAX))
            total.counts[GPULOSSI_COUNT_CORRECT] += of.correct;
#pragma unroll 1
        for (int i = 0; i < Totals::kSums; i++) { /* not unrolled, because the code of a sum is long */
            if (Wanted::sum(i))
                total.add(i, i == GPULOSSI_SUM_LOSS ? of.loss : of.second, scratch());
            if (Wanted::first_only())
                break;
        }
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
        double divisor = divisor_of<R>(p.rows);
        if (has_index() && (p.rows.flags & GPULOSSI_DATA_DIVISOR))
            divisor = sums_weights()                   ? sums[GPULOSSI_SUM_SECOND]
                      : has(GPULOSSI_CE_CLASS_WEIGHTS) ? scratch()->target_weights
                                                       : (double)counts[GPULOSSI_COUNT_ROWS];
        if (p.rows.loss)
            put_sum<R>(p.rows, p.rows.loss, quotient_for(R(), sums[GPULOSSI_SUM_LOSS], divisor));
        if (has(GPULOSSI_CE_Z_OUTPUTS) && p.z_loss)
            put_sum<R>(p.rows, p.z_loss, quotient_for(R(), sums[GPULOSSI_SUM_SECOND], divisor));
        if (has(GPULOSSI_CE_ARGMAX) && p.correct)
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
