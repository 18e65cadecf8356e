/* Cross-entropy with every option: what a row consists of, and what is made of it. With x the logits after scale and
 * softcap, a_c the mass of class c, and hard that of the target:
 *
 *   loss = r (hard (lse - x_y) + sum_c a_c (lse - x_c) + L lse^2)
 *   dx_c = s r (p_c (hard + rest) - a_c - hard [c = y]),   rest = sum_c a_c + 2 L lse
 *
 * where an index has hard = (1-e) w_y and a_c = w_c e/C, and probabilities t have hard = 0, a_c = w_c ((1-e) t_c + e/C). */
#ifndef GPULOSSI_CE_FULL_CUH
#define GPULOSSI_CE_FULL_CUH

#include "row_generic.cuh"
#include "../device/online_softmax.cuh"
#include "../loss/targets.cuh"
#include "../device/any_dtype.cuh"

/* What the elements of a row add up to. */
template <class N> struct RowState {
    Softmax<N> x;
    N mass;       /* of a */
    N drop;       /* of a (top - x); with no top yet, of -a x */
    int64_t best; /* class of the top; less kNan for the class of a NaN, which is larger than any number */

    static const int64_t kNone = INT64_MAX, kNan = (int64_t)1 << 62;

    DEVICE RowState empty() {
        RowState s = {Softmax<N>::empty(), N(0), N(0), kNone};
        return s;
    }
    __device__ __forceinline__ void raise(N higher) {
        if (higher != x.top && mass != 0)
            drop += mass * (x.finite(higher) - x.finite(x.top));
        x.raise(higher);
    }

    /* m elements and their masses, where there are any, of the classes first, first + step, ...: runs of so many
     * neighbours each. */
    template <int run, int m>
    __device__ __forceinline__ void enter(const N (&logits)[m], const N (&a)[m], bool has_masses, bool finds_best,
                                          int64_t first, int64_t step) {
        N part[m], highest = in_halves<Maximum>(logits);
        bool rises = highest > x.top;
        raise(larger(x.top, highest));
        x.add(logits);
        if (finds_best && best >= 0 && (rises || x.sum != x.sum)) {
            int place = -1;
#pragma unroll
            for (int i = m - 1; i >= 0; i--)
                place = rises && logits[i] == highest ? i : place;
            int of_nan = -1;
            if (x.sum != x.sum)
#pragma unroll
                for (int i = m - 1; i >= 0; i--)
                    of_nan = logits[i] != logits[i] ? i : of_nan;
            place = of_nan >= 0 ? of_nan : place;
            if (place >= 0)
                best = first + place / run * step + place % run - (of_nan >= 0 ? kNan : 0);
        }
        if (!has_masses)
            return;
#pragma unroll
        for (int i = 0; i < m; i++)
            part[i] = a[i] * (x.finite(x.top) - logits[i]);
        N more = in_halves<Sum>(part);
        if (!(fabs(more) < Limits<N>::infinity())) { /* no mass, no part, whatever the logit */
#pragma unroll
            for (int i = 0; i < m; i++)
                part[i] = a[i] == 0 ? N(0) : part[i];
            more = in_halves<Sum>(part);
        }
        drop += more;
        mass += in_halves<Sum>(a);
    }

    /* A row with nothing above -inf has its first class. */
    __device__ __forceinline__ int64_t argmax() const {
        return best == kNone ? 0 : best < 0 ? best + kNan : best;
    }

    template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
        N all = lanes.template over<Maximum>(x.top);
        if (best >= 0 && x.top != all)
            best = kNone;
        raise(all);
        x.sum = lanes.template over<Sum>(x.sum);
        mass = lanes.template over<Sum>(mass);
        drop = lanes.template over<Sum>(drop);
        best = lanes.template over<Minimum>((long long)best);
    }
    /* Another part of the same row. */
    __device__ __forceinline__ void merge(RowState other) {
        N all = larger(x.top, other.x.top);
        if (best >= 0 && x.top != all)
            best = kNone;
        if (other.best >= 0 && other.x.top != all)
            other.best = kNone;
        raise(all);
        other.raise(all);
        x.sum += other.x.sum;
        mass += other.mass;
        drop += other.drop;
        best = Minimum::of(best, other.best);
    }
};

/* Who asks: only rows of indices may be a shard, only columns have either indices or probabilities, and combined shards
 * have no gradient. Rows that share class weights have indices, logits as they are, and no lse given; some of their
 * schedules are for label smoothing only. */
enum Caller { kIndices, kProbabilities, kColumns, kCombined, kSharing, kSmoothed };

/* N is computed with, R is how results, weights and upstream gradients are stored. */
template <class N, class R, Caller kCaller> struct Terms {
    typedef gpulossi_cross_entropy Params;
    typedef Total<kCaller == kProbabilities ? GPULOSSI_SUM_WEIGHTS : GPULOSSI_SUMS, GPULOSSI_COUNTS> Totals;
    typedef RowState<N> State;

    /* What is worked out once a block. It lies in shared memory, where it takes no registers. */
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
    __device__ __forceinline__ bool has_masses() const {
        return kCaller == kSmoothed || soft() || p.label_smoothing != 0;
    }
    __device__ __forceinline__ bool has_loss() const { return p.rows.loss || p.rows.loss_rows; }
    __device__ __forceinline__ bool has_indices() const { return kCaller != kProbabilities; } /* perhaps */
    __device__ __forceinline__ bool writes_shard() const { return (kCaller == kIndices || shares()) && p.shard_rows; }
    __device__ __forceinline__ bool counts_correct() const { return has_indices() && p.correct; }
    __device__ __forceinline__ bool counts_bad() const { return has_indices() && p.bad_targets; }
    __device__ __forceinline__ bool finds_best() const { return p.argmax || counts_correct() || writes_shard(); }
    __device__ __forceinline__ bool from_lse() const { return kCaller != kCombined && !shares() && p.lse_in; }
    /* The rows decide the divisor; an earlier launch has found it. */
    __device__ __forceinline__ bool data_divides() const {
        return has_indices() && (p.rows.flags & GPULOSSI_DATA_DIVISOR);
    }
    __device__ __forceinline__ bool prepared() const {
        return has_indices() && kCaller != kCombined && (p.rows.flags & GPULOSSI_PREPARED);
    }
    __device__ __forceinline__ bool reduces() const {
        return !from_lse() || soft() || (has_masses() && has_loss()) || finds_best();
    }
    __device__ __forceinline__ bool writes() const { return p.rows.grad || p.grad_probabilities; }

    /* Scale and softcap. What a softcap takes is long, so it is there once. A class that was masked by an infinite logit stays
     * masked, not one whose logit is infinite only when scaled. */
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
    /* Makes gradients of x those of the logits as given: times scale and 1 - tanh^2 z = 4 e / (1 + e)^2, where
     * e = exp(-2 |z|) keeps the digits of a tanh next to 1. */
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

    /* The mass of a class of weight 1: of a probability, or without one. */
    template <bool kSoft> __device__ __forceinline__ N mass(N probability) const {
        return kSoft ? fma(of_block.keep, probability, of_block.smooth) : of_block.smooth;
    }
    __device__ __forceinline__ N class_weight(int64_t c) const {
        return p.class_weights ? (N)((const R *)p.class_weights)[c] : N(1);
    }
    /* The mass of a class of this launch that is a target. */
    __device__ __forceinline__ N mass_of(int64_t c) const {
        return has_masses() ? of_block.smooth * class_weight(p.class_offset + c) : N(0);
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

    /* Writes the results of a row; x_y is the target's logit, if it is here. */
    __device__ __forceinline__ void finish(const Row &r, const State &s, N x_y, Totals &total) const {
        N top = reduces() ? s.x.top : (N)((const R *)p.lse_in)[r.row], log_sum = N(0);
        if (reduces())
            log_sum = from_lse() ? (N)((const R *)p.lse_in)[r.row] - top : natural_log(s.x.sum);
        N lse = top + log_sum, weight = row_weight(r.row), loss = N(0), z = N(0);
        if (r.target == kClass && weight != 0) {
            if (p.lse_square_scale != 0)
                z = (N)p.lse_square_scale * lse * weight * lse; /* lse^2 may be too large, and the weight small */
            if (!soft())
                loss = r.hard * log_sum; /* NaN where the row is */
            if (r.hard != 0)
                loss = r.hard * at_least_0(log_sum + (top - x_y)); /* rounded, it may be less */
            if (has_masses())
                loss += s.mass * log_sum + s.drop;
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
        for (int i = 0; i < Totals::kSums; i++) /* the long code of a sum is there once */
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

    /* Of the gradients of a row. */
    __device__ __forceinline__ double factor_of(int64_t row) const {
        double factor = of_block.grad_scale;
        if (p.rows.grad_loss_rows)
            factor *= ((const R *)p.rows.grad_loss_rows)[row];
        if (p.row_weights)
            factor *= ((const R *)p.row_weights)[row];
        return factor;
    }
    /* What is multiplied with and taken from the probabilities: see the top. */
    struct Gradient {
        N top, inverse; /* p = exp(x - top) inverse */
        N log_sum;      /* lse - top */
        N scale, hard, rest;
        int y; /* kZero: all is 0; else the target's class or -1, where classes fit an int, as in columns */
    };
    enum { kZero = -2 };
    __device__ __forceinline__ Gradient gradient(const Row &r, const State &s) const {
        Gradient g = {s.x.top, N(1), N(0), N(0), r.hard, N(0), is_silent(r) ? (int)kZero : (int)r.y};
        if (from_lse()) {
            g.top = (N)((const R *)p.lse_in)[r.row];
        } else {
            g.inverse = reciprocal(s.x.sum);
            g.log_sum = natural_log(s.x.sum);
        }
        g.scale = (N)factor_of(r.row);
        if (has_masses())
            g.rest = reduces()         ? s.mass
                     : p.class_weights ? of_block.smooth * (N)scratch()->class_weights
                                       : (N)p.label_smoothing;
        if (p.lse_square_scale != 0)
            g.rest += N(2) * (N)p.lse_square_scale * (g.top + g.log_sum);
        return g;
    }
    /* Of an x, whose class has mass a. */
    __device__ __forceinline__ N element(const Gradient &g, N x, N a, bool is_target) const {
        N p = exp_below(x, g.top) * g.inverse, of_x = p * (g.hard + g.rest) - a;
        if (is_target) { /* p - 1 is formed first: it is exact near 1 */
            p = at_most_1(p);
            of_x = g.hard * (p - N(1)) + (p * g.rest - a);
        }
        return g.y == kZero ? N(0) : of_x * g.scale;
    }
    /* Of the probability of a class of weight w. */
    __device__ __forceinline__ N element_of_target(const Gradient &g, N x, N w) const {
        N mass = of_block.keep * w;
        return mass == 0 || g.y == kZero ? N(0) : g.scale * mass * (g.log_sum + (g.top - x));
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
        double part = 1; /* of probabilities the host knows it all */
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
            gpuloss_shard_row shard = {(double)s.x.top, (double)s.x.sum, r.y >= 0 ? (double)x_y : 0.0,
                                       (double)s.mass,  -(double)s.drop, (double)best};
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
