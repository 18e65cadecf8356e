/* Cross-entropy with every option: the inputs, the state and the results of a row. With x the logits after scale and
 * softcap, a_c the soft target of class c, and hard the weight of the target's own term:
 *
 *   loss = r (hard (lse - x_y) + sum_c a_c (lse - x_c) + L lse^2)
 *   dx_c = s r (p_c (hard + rest) - a_c - hard [c = y]),   rest = sum_c a_c + 2 L lse
 *
 * An index has hard = (1-e) w_y and a_c = w_c e/C. Probabilities t have hard = 0 and a_c = w_c ((1-e) t_c + e/C). */
#ifndef GPULOSSI_CE_FULL_CUH
#define GPULOSSI_CE_FULL_CUH

#include "row_generic.cuh"
#include "../device/online_softmax.cuh"
#include "../loss/targets.cuh"
#include "../device/any_dtype.cuh"

/* The state of a row: online softmax, the sums over soft targets, and the argmax. */
template <class N> struct RowState {
    Softmax<N> x;
    N soft_sum;   /* sum of a */
    N drop;       /* sum of a (row_max - x), or of -a x while there is no maximum */
    int64_t best; /* class of the maximum; or the class of a NaN less kNan, as a NaN is above any number */

    static const int64_t kNone = INT64_MAX, kNan = (int64_t)1 << 62;

    DEVICE RowState empty() {
        RowState s = {Softmax<N>::empty(), N(0), N(0), kNone};
        return s;
    }
    __device__ __forceinline__ void raise(N higher) {
        if (higher != x.row_max && soft_sum != 0)
            drop += soft_sum * (x.finite(higher) - x.finite(x.row_max));
        x.raise(higher);
    }

    /* Adds m elements and their soft targets, if there are any. Each of the classes first, first + step, ... begins a
     * run of `run` neighbours. */
    template <int run, int m>
    __device__ __forceinline__ void enter(const N (&logits)[m], const N (&a)[m], bool has_soft_targets, bool finds_best,
                                          int64_t first, int64_t step) {
        N part[m], highest = in_halves<Maximum>(logits);
        bool rises = highest > x.row_max;
        raise(larger(x.row_max, highest));
        x.add(logits);
        if (finds_best && best >= 0 && (rises || x.sum != x.sum)) {
            int position = -1;
#pragma unroll
            for (int i = m - 1; i >= 0; i--)
                position = rises && logits[i] == highest ? i : position;
            int of_nan = -1;
            if (x.sum != x.sum)
#pragma unroll
                for (int i = m - 1; i >= 0; i--)
                    of_nan = logits[i] != logits[i] ? i : of_nan;
            position = of_nan >= 0 ? of_nan : position;
            if (position >= 0)
                best = first + position / run * step + position % run - (of_nan >= 0 ? kNan : 0);
        }
        if (!has_soft_targets)
            return;
#pragma unroll
        for (int i = 0; i < m; i++)
            part[i] = a[i] * (x.finite(x.row_max) - logits[i]);
        N more = in_halves<Sum>(part);
        if (!(fabs(more) < Limits<N>::infinity())) { /* a soft target of 0 adds nothing, whatever the logit */
#pragma unroll
            for (int i = 0; i < m; i++)
                part[i] = a[i] == 0 ? N(0) : part[i];
            more = in_halves<Sum>(part);
        }
        drop += more;
        soft_sum += in_halves<Sum>(a);
    }

    /* In a row with nothing above -inf it is the first class. */
    __device__ __forceinline__ int64_t argmax() const {
        return best == kNone ? 0 : best < 0 ? best + kNan : best;
    }

    template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
        N all = lanes.template over<Maximum>(x.row_max);
        if (best >= 0 && x.row_max != all)
            best = kNone;
        raise(all);
        x.sum = lanes.template over<Sum>(x.sum);
        soft_sum = lanes.template over<Sum>(soft_sum);
        drop = lanes.template over<Sum>(drop);
        best = lanes.template over<Minimum>((long long)best);
    }
    /* Merges the state of another part of the same row. */
    __device__ __forceinline__ void merge(RowState other) {
        N all = larger(x.row_max, other.x.row_max);
        if (best >= 0 && x.row_max != all)
            best = kNone;
        if (other.best >= 0 && other.x.row_max != all)
            other.best = kNone;
        raise(all);
        other.raise(all);
        x.sum += other.x.sum;
        soft_sum += other.soft_sum;
        drop += other.drop;
        best = Minimum::of(best, other.best);
    }
};

/* The users of Terms. Only rows of indices may be a shard. Only columns have either indices or probabilities. Combined
 * shards have no gradient. Rows that share class weights have indices, no scale or softcap, and no given lse. kSmoothed
 * always has label smoothing. */
enum Caller { kIndices, kProbabilities, kColumns, kCombined, kSharing, kSmoothed };

/* N is the type of computations. R is the stored type of results, weights and upstream gradients. */
template <class N, class R, Caller kCaller> struct Terms {
    typedef gpulossi_cross_entropy Params;
    typedef Total<kCaller == kProbabilities ? GPULOSSI_SUM_WEIGHTS : GPULOSSI_SUMS, GPULOSSI_COUNTS> Totals;
    typedef RowState<N> State;

    /* The constants of a block, in shared memory to save registers. */
    struct Constants {
        double grad_scale;
        N keep, smooth, scale, softcap, inverse_softcap;
    };

    const Params &p;
    const Constants &of_block;

    /* All threads of the block call. */
    __device__ __forceinline__ explicit Terms(const Params &p) : p(p), of_block(constants(p)) {}

    __device__ __forceinline__ gpulossi_scratch *scratch() const { return (gpulossi_scratch *)p.rows.scratch; }
    __device__ __forceinline__ bool soft() const {
        return kCaller == kProbabilities || (kCaller == kColumns && p.probabilities != 0);
    }
    DEVICE bool shares() { return kCaller == kSharing || kCaller == kSmoothed; }
    __device__ __forceinline__ bool has_soft_targets() const {
        return kCaller == kSmoothed || soft() || p.label_smoothing != 0;
    }
    __device__ __forceinline__ bool has_loss() const { return p.rows.loss || p.rows.loss_rows; }
    __device__ __forceinline__ bool has_indices() const { return kCaller != kProbabilities; } /* possibly */
    __device__ __forceinline__ bool writes_shard() const { return (kCaller == kIndices || shares()) && p.shard_rows; }
    __device__ __forceinline__ bool counts_correct() const { return has_indices() && p.correct; }
    __device__ __forceinline__ bool counts_bad() const { return has_indices() && p.bad_targets; }
    __device__ __forceinline__ bool finds_best() const { return p.argmax || counts_correct() || writes_shard(); }
    __device__ __forceinline__ bool from_lse() const { return kCaller != kCombined && !shares() && p.lse_in; }
    /* Whether the rows decide the divisor. With prepared(), an earlier launch has computed it. */
    __device__ __forceinline__ bool data_divides() const {
        return has_indices() && (p.rows.flags & GPULOSSI_DATA_DIVISOR);
    }
    __device__ __forceinline__ bool prepared() const {
        return has_indices() && kCaller != kCombined && (p.rows.flags & GPULOSSI_PREPARED);
    }
    __device__ __forceinline__ bool reduces() const {
        return !from_lse() || soft() || (has_soft_targets() && has_loss()) || finds_best();
    }
    __device__ __forceinline__ bool writes() const { return p.rows.grad || p.grad_probabilities; }

    /* Applies scale and softcap. The loop of a softcap is not unrolled, because its code is long. A class that is
     * masked by an infinite logit stays masked. A class whose logit is infinite only after scaling does not. */
    template <int n> __device__ __forceinline__ void transform(N (&x)[n]) const {
        const N masked = of_block.scale < 0 ? Limits<N>::infinity() : -Limits<N>::infinity();
        if (shares())
            return;
        if (p.softcap != 0)
#pragma unroll 1
            for (int i = 0; i < n; i++)
                shift_in(x, x[0] == masked
                                ? -Limits<N>::infinity()
                                : of_block.softcap * tangent(x[0] * of_block.scale * of_block.inverse_softcap));
        if (p.softcap == 0 && p.logit_scale != 1)
#pragma unroll
            for (int i = 0; i < n; i++)
                x[i] *= of_block.scale;
    }
    __device__ __forceinline__ N transformed(N logit) const {
        N x[1] = {logit};
        transform(x);
        return x[0];
    }
    /* Converts gradients of x to gradients of the logits as given. The factors are scale and 1 - tanh^2 z = 4 e / (1 +
     * e)^2. With e = exp(-2 |z|), it keeps its digits where tanh is next to 1. */
    template <int n> __device__ __forceinline__ void transform_back(N (&g)[n], const N (&logits)[n]) const {
        N z[n];
        if (shares())
            return;
        if (p.logit_scale != 1)
#pragma unroll
            for (int i = 0; i < n; i++)
                g[i] *= of_block.scale;
        if (p.softcap == 0)
            return;
#pragma unroll
        for (int i = 0; i < n; i++)
            z[i] = logits[i] * of_block.scale * of_block.inverse_softcap;
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            N e = exponential(N(-2) * fabs(z[0]));
            shift_in(g, g[0] == 0 ? g[0] : g[0] * (N(4) * e * reciprocal((N(1) + e) * (N(1) + e))));
            shift_in(z, z[0]);
        }
    }

    /* The soft target of a class of weight 1, with or without a target probability. */
    template <bool kSoft> __device__ __forceinline__ N soft_target(N probability) const {
        return kSoft ? fma(of_block.keep, probability, of_block.smooth) : of_block.smooth;
    }
    __device__ __forceinline__ N class_weight(int64_t c) const {
        return p.class_weights ? (N)((const R *)p.class_weights)[c] : N(1);
    }
    /* The soft target of the target's class c, which is in this launch. */
    __device__ __forceinline__ N soft_target_of(int64_t c) const {
        return has_soft_targets() ? of_block.smooth * class_weight(p.class_offset + c) : N(0);
    }
    __device__ __forceinline__ N row_weight(int64_t row) const {
        return p.row_weights ? (N)((const R *)p.row_weights)[row] : N(1);
    }

    struct Row {
        int64_t row;
        int64_t y; /* among the classes of this launch, or -1 */
        Target target;
        N hard;
    };
    __device__ __forceinline__ Row row(int64_t number) const {
        Row r = {number, -1, kClass, N(0)};
        if (soft())
            return r;
        int64_t y = read_target(p, number);
        r.target = kind_of(p, y);
        if (r.target == kClass) {
            r.hard = of_block.keep * class_weight(y);
            if (y >= p.class_offset && y - p.class_offset < p.rows.classes)
                r.y = y - p.class_offset;
        }
        return r;
    }

    /* Whether a row has neither a loss nor gradients. */
    __device__ __forceinline__ bool is_silent(const Row &r) const {
        return r.target != kClass || row_weight(r.row) == 0;
    }

    /* Writes the results of a row. x_y is the target's logit, if it is in this launch. */
    __device__ __forceinline__ void finish(const Row &r, const State &s, N x_y, Totals &total) const {
        N row_max = reduces() ? s.x.row_max : (N)((const R *)p.lse_in)[r.row], log_sum = N(0);
        if (reduces())
            log_sum = from_lse() ? (N)((const R *)p.lse_in)[r.row] - row_max : natural_log(s.x.sum);
        N lse = row_max + log_sum, weight = row_weight(r.row), loss = N(0), z = N(0);
        if (r.target == kClass && weight != 0) {
            if (p.lse_square_scale != 0)
                z = (N)p.lse_square_scale * lse * weight * lse; /* lse^2 alone may overflow */
            if (!soft())
                loss = r.hard * log_sum; /* NaN where the row is */
            if (r.hard != 0)
                loss = r.hard * at_least_0(log_sum + (row_max - x_y)); /* rounding may make it negative */
            if (has_soft_targets())
                loss += s.soft_sum * log_sum + s.drop;
            loss = fma(weight, loss, z);
        } else if (has_indices() && r.target == kBad) {
            loss = z = Limits<N>::nan();
            if (p.bad_targets)
                total.count_bad(scratch(), 1);
        }
        if (p.lse)
            ((R *)p.lse)[r.row] = (R)lse;
        if (p.rows.loss_rows)
            ((R *)p.rows.loss_rows)[r.row] = (R)loss;
        if (p.z_loss_rows)
            ((R *)p.z_loss_rows)[r.row] = (R)z;
        if (data_divides() && !prepared())
            total.counts[GPULOSSI_COUNT_ROWS] += r.target != kIgnored;
#pragma unroll 1
        for (int i = 0; i < Totals::kSums; i++) /* not unrolled, because the code of a sum is long */
            if (wants(i))
                total.add(i,
                          i == GPULOSSI_SUM_LOSS          ? (double)loss
                          : i == GPULOSSI_SUM_Z_LOSS      ? (double)z
                          : !soft() && r.target == kClass ? (double)class_weight(read_target(p, r.row))
                                                          : 0.0,
                          scratch());
        if (finds_best())
            finish_best(r, s, x_y, total);
    }

    /* The factor of a row's gradients. */
    __device__ __forceinline__ double factor_of(int64_t row) const {
        double factor = of_block.grad_scale;
        if (p.rows.grad_loss_rows)
            factor *= ((const R *)p.rows.grad_loss_rows)[row];
        if (p.row_weights)
            factor *= ((const R *)p.row_weights)[row];
        return factor;
    }
    /* The common terms of a row's gradients, in the formulas at the head of this file. */
    struct Gradient {
        N row_max, inverse; /* p = exp(x - row_max) inverse */
        N log_sum;          /* lse - row_max */
        N scale, hard, rest;
        int y; /* kZero if all gradients are 0, else the target's class or -1; in columns a class fits an int */
    };
    enum { kZero = -2 };
    __device__ __forceinline__ Gradient gradient(const Row &r, const State &s) const {
        Gradient g = {s.x.row_max, N(1), N(0), N(0), r.hard, N(0), is_silent(r) ? (int)kZero : (int)r.y};
        if (from_lse()) {
            g.row_max = (N)((const R *)p.lse_in)[r.row];
        } else {
            g.inverse = reciprocal(s.x.sum);
            g.log_sum = natural_log(s.x.sum);
        }
        g.scale = (N)factor_of(r.row);
        if (has_soft_targets())
            g.rest = reduces()         ? s.soft_sum
                     : p.class_weights ? of_block.smooth * (N)scratch()->class_weights
                                       : (N)p.label_smoothing;
        if (p.lse_square_scale != 0)
            g.rest += N(2) * (N)p.lse_square_scale * (g.row_max + g.log_sum);
        return g;
    }
    /* The gradient of an x whose class has the soft target a. */
    __device__ __forceinline__ N element(const Gradient &g, N x, N a, bool is_target) const {
        N p = exp_below(x, g.row_max) * g.inverse, of_x = p * (g.hard + g.rest) - a;
        if (is_target) { /* p - 1 is formed first: it is exact near 1 */
            p = at_most_1(p);
            of_x = g.hard * (p - N(1)) + (p * g.rest - a);
        }
        return g.y == kZero ? N(0) : of_x * g.scale;
    }
    /* The gradient of the target probability of a class of weight w. */
    __device__ __forceinline__ N element_of_target(const Gradient &g, N x, N w) const {
        N soft_target = of_block.keep * w;
        return soft_target == 0 || g.y == kZero ? N(0) : g.scale * soft_target * (g.log_sum + (g.row_max - x));
    }

    __device__ __forceinline__ bool wants(int i) const {
        return i == GPULOSSI_SUM_LOSS     ? p.rows.loss != 0
               : i == GPULOSSI_SUM_Z_LOSS ? p.z_loss != 0
                                          : p.class_weights && data_divides() && !prepared();
    }
    __device__ __forceinline__ bool concludes() const {
        return p.rows.loss || p.z_loss || counts_correct() || counts_bad() || (prepared() && p.class_weights == 0);
    }
    __device__ __forceinline__ void conclude(const double *sums, const int64_t *counts) const {
        double divisor = divisor_of<R>(p.rows);
        if (data_divides())
            divisor = p.class_weights == 0 ? (double)counts[GPULOSSI_COUNT_ROWS]
                      : prepared()         ? scratch()->target_weights
                                           : sums[GPULOSSI_SUM_WEIGHTS];
        if (p.rows.loss)
            *(R *)p.rows.loss = (R)(sums[GPULOSSI_SUM_LOSS] / divisor);
        if (p.z_loss)
            *(R *)p.z_loss = (R)(sums[GPULOSSI_SUM_Z_LOSS] / divisor);
        if (counts_correct())
            *(int64_t *)p.correct = counts[GPULOSSI_COUNT_CORRECT];
        if (counts_bad())
            *(int64_t *)p.bad_targets = take_number(&scratch()->bad_targets);
    }

  private:
    DEVICE const Constants &constants(const Params &p) {
        __shared__ Constants c;
        double part = 1; /* With probabilities, the host knows the whole divisor. */
        if (kCaller != kCombined && kCaller != kProbabilities && (p.rows.grad || p.grad_probabilities))
            part = rows_that_divide(p);
        if (threadIdx.x == 0) {
            if (kCaller != kCombined) /* a mean over rows of no weight has the gradient 0 */
                c.grad_scale = part != 0 ? gradient_scale<R>(p.rows, part) : 0.0;
            c.keep = (N)(1.0 - p.label_smoothing);
            c.smooth = (N)(p.label_smoothing / (double)p.total_classes);
            c.scale = (N)p.logit_scale;
            c.softcap = (N)p.softcap;
            c.inverse_softcap = (N)(p.softcap > 0 ? 1.0 / p.softcap : 0.0);
        }
        __syncthreads();
        return c;
    }

    __device__ __forceinline__ void finish_best(const Row &r, const State &s, N x_y, Totals &total) const {
        int64_t best = s.argmax() + p.class_offset;
        if (writes_shard()) {
            gpuloss_shard_row shard = {(double)s.x.row_max, (double)s.x.sum, r.y >= 0 ? (double)x_y : 0.0,
                                       (double)s.soft_sum,  -(double)s.drop, (double)best};
            if (s.best < 0 && s.best != State::kNone)
                shard.max = CUDART_NAN;
            ((gpuloss_shard_row *)p.shard_rows)[r.row] = shard;
        }
        if (p.argmax)
            ((int64_t *)p.argmax)[r.row] = best;
        if (counts_correct() && r.target == kClass)
            total.counts[GPULOSSI_COUNT_CORRECT] += best == read_target(p, r.row);
    }
};

#endif
