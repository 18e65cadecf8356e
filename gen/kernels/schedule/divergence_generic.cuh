/* Divergences of two arrays in general. Either side is probabilities, their logarithms or logits, and the target may
 * have another type. All divergences and gradients to both sides are supported.
 *
 * A row takes up to three passes. The first finds the softmax of logits, and the sum of a side of probabilities. The
 * second finds the sums over the row that a gradient to logits needs. The third computes the terms and the gradients. A
 * pass without an effect is skipped: without logits there is one. With u = q df/dq of divergence_terms.cuh, and T the
 * temperature, the gradients are:
 *
 *   input of probabilities: df/dq      of logarithms: u      of logits z: (u - q sum_c u) / T */
#ifndef GPULOSSI_DIVERGENCE_GENERIC_CUH
#define GPULOSSI_DIVERGENCE_GENERIC_CUH

#include "../loss/divergence_terms.cuh"
#include "../loss/row_mask.cuh"
#include "row_generic.cuh"
#include "../device/online_softmax.cuh"
#include "../device/any_dtype.cuh"

template <class E> struct Pairs : Masked<typename E::Number, gpulossi_kl_div> {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_kl_div Params;
    typedef Masked<N, Params> Base;
    typedef typename Base::Totals Totals;
    using Base::p;
    typedef typename Out<E>::Type Result;
    enum {
        kArrays = 1, /* Arrays that a row is cut by: the input. */
        W = Width<E>::value,
        kVectors = W < 8 ? 2 : 1, /* Vectors that a thread works on at a time. */
        n = kVectors * W
    };

    /* The sums of one side. */
    struct Side {
        Softmax<N> x;    /* The softmax of logits over the temperature. */
        double prob_sum; /* The sum of probabilities. */
    };
    struct Sides {
        Side input, target;
        template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
            input.x.reduce(lanes);
            target.x.reduce(lanes);
            input.prob_sum = lanes.template over<Sum>(input.prob_sum);
            target.prob_sum = lanes.template over<Sum>(target.prob_sum);
        }
    };
    struct Sums {
        double f, of_lq, of_lp;
        template <class Lanes> __device__ __forceinline__ void reduce(Lanes lanes) {
            f = lanes.template over<Sum>(f);
            of_lq = lanes.template over<Sum>(of_lq);
            of_lp = lanes.template over<Sum>(of_lp);
        }
    };
    /* Computed once a block. */
    struct Constants {
        double grad_scale;
        N eps, beta, inverse_temperature;
    };
    /* A row whose sides are reduced. */
    struct Row {
        int64_t row;
        bool out; /* The row is left out by its label. */
        N input_max, input_log_sum, input_inverse;
        N target_max, target_log_sum, target_inverse;
        N lse_difference;              /* The lse of the target less that of the input. */
        N sum_of_input, sum_of_target; /* Sums of u, for a gradient to logits. */
        N term_scale, scale;           /* Factors of terms and of gradients. */
    };

    const Constants &of_block;

    __device__ __forceinline__ explicit Pairs(const Params &p) : Base(p), of_block(constants(*this)) {}

    __device__ __forceinline__ bool is(uint32_t kind, gpuloss_kind what) const { return kind == (uint32_t)what; }
    __device__ __forceinline__ bool has_logits() const {
        return is(p.input_kind, GPULOSS_LOGITS) || is(p.target_kind, GPULOSS_LOGITS);
    }
    __device__ __forceinline__ bool normalised() const {
        return is(p.input_kind, GPULOSS_LOGITS) && is(p.target_kind, GPULOSS_LOGITS);
    }
    __device__ __forceinline__ bool needs_sums() const {
        return (p.rows.grad && is(p.input_kind, GPULOSS_LOGITS) && p.divergence != GPULOSS_FORWARD_KL) ||
               (p.grad_target && is(p.target_kind, GPULOSS_LOGITS) && p.divergence != GPULOSS_REVERSE_KL);
    }
    __device__ __forceinline__ bool has_terms() const { return p.rows.loss || p.rows.loss_rows || p.elements; }

    __device__ __forceinline__ const typename E::Bits *array(int, int64_t row) const {
        return (const typename E::Bits *)p.input + row * p.input_stride;
    }
    __device__ __forceinline__ Typed target() const { return Typed(p.target, p.target_dtype); }

    /* Loads the elements of the vectors v, v + step, ... of the input and of the target. They are `none` outside of the
     * row. */
    __device__ __forceinline__ void fetch(const Cut<E> &cut, int64_t row, int v, int step, N none, N (&x)[n],
                                          N (&t)[n]) const {
#pragma unroll
        for (int k = 0; k < kVectors; k++) {
            int at = v + k * step;
            N of_x[W], of_t[W];
            bool whole = cut.whole(at);
            int64_t start = row * p.target_stride + cut.first(at);
#pragma unroll
            for (int i = 0; i < W; i++)
                of_x[i] = of_t[i] = none;
            if (whole) {
                Vector<E> loaded = load_vector<E, kRead_again>(array(0, row) + cut.first(at));
#pragma unroll
                for (int i = 0; i < W; i++)
                    of_x[i] = loaded.get(i);
            }
            if (whole && target().template fits<W>(start)) {
                target().read_few(start, of_t);
            } else if (at < cut.vectors) {
#pragma unroll 1
                for (int i = 0; i < W; i++) {
                    bool inside = cut.inside(cut.first(at) + i);
                    shift_in(of_t, inside ? target().template read<N>(start + i) : none);
                    if (!whole)
                        shift_in(of_x, inside ? E::widen(array(0, row)[cut.first(at) + i]) : none);
                }
            }
#pragma unroll
            for (int i = 0; i < W; i++)
                x[k * W + i] = of_x[i], t[k * W + i] = of_t[i];
        }
    }

    /* Reduces n elements of a side into its sums. Elements outside of the row are -inf. */
    __device__ __forceinline__ void enter(Side &side, uint32_t kind, N (&x)[n]) const {
        if (is(kind, GPULOSS_LOGITS)) {
#pragma unroll
            for (int i = 0; i < n; i++)
                x[i] *= of_block.inverse_temperature;
            side.x.enter(x);
            return;
        }
#pragma unroll
        for (int i = 0; i < n; i++)
            x[i] = x[i] == -Limits<N>::infinity()        ? N(0)
                   : is(kind, GPULOSS_LOG_PROBABILITIES) ? exponential(x[i])
                                                         : x[i];
        side.prob_sum += (double)in_halves<Sum>(x);
    }

    __device__ __forceinline__ Row begin(int64_t row, const Sides &s) const {
        Row r;
        r.row = row;
        r.out = this->left_out(row);
        r.term_scale = (N)this->weight(row);
        r.scale = (N)this->scale(row, of_block.grad_scale);
        r.input_max = s.input.x.row_max;
        r.input_log_sum = natural_log(s.input.x.sum);
        r.input_inverse = reciprocal(s.input.x.sum);
        r.target_max = s.target.x.row_max;
        r.target_log_sum = natural_log(s.target.x.sum);
        r.target_inverse = reciprocal(s.target.x.sum);
        r.lse_difference = (r.target_max - r.input_max) + (r.target_log_sum - r.input_log_sum);
        /* For forward KL u is -p, and for reverse KL it is -q: these sums are known in advance. */
        r.sum_of_input = is(p.target_kind, GPULOSS_LOGITS) ? N(-1) : (N)-s.target.prob_sum;
        r.sum_of_target = is(p.input_kind, GPULOSS_LOGITS) ? N(-1) : (N)-s.input.prob_sum;
        return r;
    }

    /* The probability of an element of a side, and its logarithm for pairs without a formula for the ratio. */
    __device__ __forceinline__ N probability(uint32_t kind, N x, N row_max, N inverse) const {
        return is(kind, GPULOSS_LOGITS)              ? exp_below(x * of_block.inverse_temperature, row_max) * inverse
               : is(kind, GPULOSS_LOG_PROBABILITIES) ? exponential(x)
                                                     : x;
    }
    __device__ __forceinline__ N logarithm(uint32_t kind, N x, N row_max, N log_sum) const {
        return is(kind, GPULOSS_LOGITS)              ? difference(x * of_block.inverse_temperature, row_max) - log_sum
               : is(kind, GPULOSS_LOG_PROBABILITIES) ? x
                                                     : natural_log(x + of_block.eps);
    }

    __device__ __forceinline__ Pair<N> pair(const Row &r, N x, N t) const {
        Pair<N> y;
        bool input_is_prob = is(p.input_kind, GPULOSS_PROBABILITIES),
             target_is_prob = is(p.target_kind, GPULOSS_PROBABILITIES);
        N eps_q = input_is_prob ? of_block.eps : N(0), eps_p = target_is_prob ? of_block.eps : N(0);
        y.q = probability(p.input_kind, x, r.input_max, r.input_inverse);
        y.p = probability(p.target_kind, t, r.target_max, r.target_inverse);
        if (normalised())
            y.d = (t - x) * of_block.inverse_temperature - r.lse_difference;
        else if (input_is_prob && target_is_prob)
            y.d = log_any_ratio(t + of_block.eps, x + of_block.eps);
        else
            y.d = logarithm(p.target_kind, t, r.target_max, r.target_log_sum) -
                  logarithm(p.input_kind, x, r.input_max, r.input_log_sum);
        /* A negative probability makes NaN. A side that is not the weight needs only its logarithm, which eps may make
         * finite. */
        if ((input_is_prob && x < 0 && p.divergence != GPULOSS_FORWARD_KL) ||
            (target_is_prob && t < 0 && p.divergence != GPULOSS_REVERSE_KL))
            y.d = y.p = y.q = Limits<N>::nan();
        switch (p.divergence) {
        case GPULOSS_FORWARD_KL:
            y.forward(normalised(), eps_p, eps_q);
            if (y.p == 0 && (p.rows.flags & GPULOSSI_KEEP_ZERO_NAN)) {
                N zero = logarithm(p.input_kind, x, r.input_max, r.input_log_sum) * N(0);
                if (is(p.target_kind, GPULOSS_LOG_PROBABILITIES))
                    zero += t * N(0);
                y.term = zero;
                y.f += zero;
                y.of_q = -Format<N>::divide(y.p, y.q + eps_q);
            }
            break;
        case GPULOSS_REVERSE_KL:
            y.reverse(normalised(), eps_p, eps_q);
            break;
        case GPULOSS_JENSEN_SHANNON:
            y.jensen_shannon(of_block.beta);
            break;
        default:
            y.total_variation();
        }
        return y;
    }

    __device__ __forceinline__ N gradient(uint32_t kind, const Row &r, N of_p, N of_lp, N p, N sum) const {
        return r.scale * (is(kind, GPULOSS_PROBABILITIES)       ? of_p
                          : is(kind, GPULOSS_LOG_PROBABILITIES) ? of_lp
                                                                : (of_lp - p * sum) * of_block.inverse_temperature);
    }

    /* The elements that a thread works on. Shared memory can be indexed in a rolled loop, so that the code exists
     * once. */
    struct SmemElements {
        N x[n][GPULOSSI_BLOCK], t[n][GPULOSSI_BLOCK], term[n][GPULOSSI_BLOCK];
    };

    /* Stores n numbers of this thread to the vectors v, v + step, ... of a row. */
    template <class Array>
    DEVICE void put(const Cut<E> &cut, const Array &array, int64_t start, int v, int step,
                    const N (&from)[n][GPULOSSI_BLOCK]) {
#pragma unroll
        for (int k = 0; k < kVectors; k++)
            if (v + k * step < cut.vectors) {
                N part[W];
#pragma unroll
                for (int i = 0; i < W; i++)
                    part[i] = from[k * W + i][threadIdx.x];
                put_vector(cut, array, start, v + k * step, part);
            }
    }

    /* Adds the terms of the vectors v, v + step, ... to the sums, and stores terms and gradients if they are wanted. A
     * row that is left out has 0 in all of them, whatever its elements are. */
    __device__ __forceinline__ void work(SmemElements &smem, const Cut<E> &cut, const Row &r, int v, int step,
                                         bool terms, bool gradients, Sums &s) const {
        N x[n], t[n];
        fetch(cut, r.row, v, step, N(0), x, t);
#pragma unroll
        for (int i = 0; i < n; i++)
            smem.x[i][threadIdx.x] = x[i], smem.t[i][threadIdx.x] = t[i];
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            N &at_x = smem.x[i][threadIdx.x], &at_t = smem.t[i][threadIdx.x], &at_term = smem.term[i][threadIdx.x];
            if (r.out || !cut.inside(cut.first(v + i / W * step) + i % W)) {
                at_x = at_t = at_term = N(0);
                continue;
            }
            Pair<N> y = pair(r, at_x, at_t);
            if (terms)
                s.f += (double)y.f;
            s.of_lq += (double)y.of_lq;
            s.of_lp += (double)y.of_lp;
            at_term = y.term * r.term_scale;
            at_x = gradient(p.input_kind, r, y.of_q, y.of_lq, y.q, r.sum_of_input);
            at_t = gradient(p.target_kind, r, y.of_p, y.of_lp, y.p, r.sum_of_target);
        }
        if (terms && p.elements)
            put(cut, Elements<Result>(p.elements), r.row * p.elements_stride, v, step, smem.term);
        if (gradients && p.rows.grad)
            put(cut, Elements<E>(p.rows.grad), r.row * p.rows.grad_stride, v, step, smem.x);
        if (gradients && p.grad_target)
            put(cut, Typed(p.grad_target, p.target_dtype), r.row * p.grad_target_stride, v, step, smem.t);
    }

    DEVICE void run(const Params &p) {
        __shared__ Totals totals[GPULOSSI_BLOCK];
        __shared__ SmemElements smem;
        Pairs pairs(p);
        typename Schedule<Pairs>::Rows rows(p);
        Group &group = rows.group;
        int step = group.size, stride = kVectors * step;
        totals[threadIdx.x] = Totals::zero();
#pragma unroll 1
        while (rows.queue.more()) {
            int64_t row = rows.row();
            bool live = rows.live(row);
            Cut<E> cut = rows.cut(pairs, row);
            Sides sides = {{Softmax<N>::empty(), 0.0}, {Softmax<N>::empty(), 0.0}};
            Sums sums = {0.0, 0.0, 0.0};
            rows.queue.announce();
            if (pairs.has_logits()) {
#pragma unroll 1
                for (int v = group.rank; v < cut.vectors; v += stride) {
                    N x[n], t[n];
                    pairs.fetch(cut, row, v, step, -Limits<N>::infinity(), x, t);
                    pairs.enter(sides.input, p.input_kind, x);
                    pairs.enter(sides.target, p.target_kind, t);
                }
                group.reduce(sides, rows.queue.phase);
            }
            Row r = {};
            if (live)
                r = pairs.begin(row, sides);
            /* Pass 0 is for the sums, if the gradients need them first. Pass 1 is for the gradients. A pass goes
             * backwards: the vectors that the first loop read last are still in the cache. */
            bool sums_first = pairs.needs_sums(), gradients = p.rows.grad || p.grad_target;
            int last = group.rank + (cut.vectors - 1 - group.rank) / stride * stride;
#pragma unroll 1
            for (int pass = sums_first ? 0 : 1; pass < 2; pass++) {
                bool terms = pass == 0 || (!sums_first && pairs.has_terms());
                if (cut.vectors > group.rank && (terms || gradients))
#pragma unroll 1
                    for (int v = last; v >= 0; v -= stride)
                        pairs.work(smem, cut, r, v, step, terms, pass == 1 && gradients, sums);
                if (!terms)
                    continue;
                group.reduce(sums, rows.queue.phase);
                if (p.divergence != GPULOSS_FORWARD_KL)
                    r.sum_of_input = (N)sums.of_lq;
                if (p.divergence != GPULOSS_REVERSE_KL)
                    r.sum_of_target = (N)sums.of_lp;
            }
            group.settle();
            rows.queue.advance();
            if (live && group.rank == 0)
                pairs.finish(row, r.out, r.out ? 0.0 : sums.f * (double)r.term_scale, totals[threadIdx.x]);
        }
        end(pairs, pairs.scratch(), totals);
    }

  private:
    DEVICE const Constants &constants(const Base &base) {
        __shared__ Constants c;
        const Params &p = base.p;
        if (threadIdx.x == 0) {
            c.grad_scale = base.scale_of_all();
            c.eps = (N)p.eps;
            c.beta = (N)p.beta;
            c.inverse_temperature = (N)p.inverse_temperature;
        }
        __syncthreads();
        return c;
    }
};

#endif
