/* Cross-entropy with options over long rows, for the loss alone. A block takes several rows at a time, so that the
 * weight of a class is read once for all of them. Read once a row, the weights would be the bytes of the logits again,
 * or twice these, and the L2 cache would be the limit.
 *
 * All rows start on 16 bytes, and logits have no scale or softcap. Logits that are not finite, or outside the fast
 * range, make the results of the fast formulas NaN or infinite. The row is then processed again with the general
 * formulas. */
#ifndef GPULOSSI_ROW_MULTI_CUH
#define GPULOSSI_ROW_MULTI_CUH

#include "ce_full_rows.cuh"

template <class E> struct MultiRow {
    typedef Options<E, kSharing> Loss;
    typedef Schedule<Loss> OfRows;
    typedef typename Loss::State State;
    typedef Vector<E> Vectors[1][1];
    enum { R = GPULOSSI_TOGETHER, W = Width<E>::value, kNoBest = INT32_MAX };

    /* A thread's part of the state of a row. row_max is that of its warp, so that it rarely rises. All else is of the
     * thread alone, with the slope s and the offset of ScaledExp:
     * sum = sum 2^(s x - offset), drop = sum w (s x - offset). */
    struct Part {
        float row_max, offset, sum, drop;
    };
    /* The class of the maximum, if this thread has it. It is rarely accessed, so it is in shared memory. */
    DEVICE int &best(int r) {
        __shared__ int of_threads[R][GPULOSSI_BLOCK];
        return of_threads[r][threadIdx.x];
    }

    /* Raises the warp's maximum. `soft_sum` is the sum of the weights in the drop so far. A maximum outside the fast
     * range makes the state NaN. */
    template <bool kSoftTargets>
    DEVICE void rise(Part &part, int r, const float (&x)[W], float highest, int first, float soft_sum,
                     bool finds_best) {
        float all = WholeWarp().over<Maximum>(larger(part.row_max, highest)),
              offset = ScaledExp<float>::in_fast_range(all) ? ScaledExp<float>(all).offset : Limits<float>::nan(),
              change = part.offset - offset;
        part.sum *= exp_below(change * 0.693147181f, 0.0f);
        if (kSoftTargets && soft_sum != 0)
            part.drop = fma(soft_sum, change, part.drop);
        if (finds_best) {
            int best_class = kNoBest;
#pragma unroll
            for (int i = W - 1; i >= 0; i--)
                best_class = x[i] == all ? first + i : best_class;
            best(r) = best_class;
        }
        part.row_max = all;
        part.offset = offset;
    }

    template <bool kSoftTargets>
    DEVICE void enter(Part &part, int r, const Vector<E> &logits, const float (&w)[W], int first, float soft_sum,
                      bool finds_best) {
        float x[W], power[W], drop = 0;
#pragma unroll
        for (int i = 0; i < W; i++)
            x[i] = logits.get(i);
        float highest = in_halves<Maximum>(x);
        if (__any_sync(0xffffffffu, highest > part.row_max))
            rise<kSoftTargets>(part, r, x, highest, first, soft_sum, finds_best);
#pragma unroll
        for (int i = 0; i < W; i++) {
            x[i] = fma(x[i], ScaledExp<float>(0).slope, -part.offset);
            power[i] = power_of_2(x[i]);
            if (kSoftTargets)
                drop = i == 0 ? w[i] * x[i] : fma(w[i], x[i], drop);
        }
        part.sum += in_halves<Sum>(power);
        if (kSoftTargets)
            part.drop += drop;
    }

    /* Adds the vectors of a row that are whole in all lanes of a warp. Returns the next vector of this thread. */
    template <bool kSoftTargets>
    DEVICE int sweep(const Loss &loss, const Cut<E> &cut, int64_t row, int rows, Part (&part)[R], float &soft_sum) {
        const gpulossi_cross_entropy &p = loss.p;
        bool finds_best = loss.terms.finds_best();
        int64_t stride = p.logits_stride * (int64_t)sizeof(typename E::Bits);
        const char *at = (const char *)loss.array(0, row) + (int64_t)threadIdx.x * GPULOSSI_VECTOR_BYTES;
        const float *weights = (const float *)p.class_weights + p.class_offset;
        float w[W];
        int v = (int)threadIdx.x;
#pragma unroll
        for (int i = 0; i < W; i++)
            w[i] = 1;
#pragma unroll 1
        for (; v < (int)cut.whole_vectors && (v | (kLanes - 1)) < (int)cut.whole_vectors; v += GPULOSSI_BLOCK) {
            Vector<E> x[R];
            const char *from = at;
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r < rows)
                    x[r] = load_vector<E, kRead_once>(from);
                from += stride;
            }
            if (kSoftTargets && p.class_weights)
#pragma unroll
                for (int i = 0; i < W; i += 4) {
                    float4 four = __ldg((const float4 *)(weights + (int64_t)v * W + i));
                    w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
                }
#pragma unroll
            for (int r = 0; r < R; r++)
                if (r < rows)
                    enter<kSoftTargets>(part[r], r, x[r], w, v * W, soft_sum, finds_best);
            if (kSoftTargets)
                soft_sum += in_halves<Sum>(w);
            at += GPULOSSI_BLOCK * GPULOSSI_VECTOR_BYTES;
        }
        return v;
    }

    DEVICE State state_of(const Loss &loss, const Part &part, int r, float soft_sum) {
        State s = State::empty();
        s.x.sum = part.sum;
        if (part.row_max == -Limits<float>::infinity())
            return s;
        ScaledExp<float> below(part.row_max);
        s.x.row_max = part.row_max;
        s.x.sum *= below.factor;
        float smooth = loss.terms.of_block.smooth, rest = fmaf(part.row_max, below.slope, -below.offset);
        s.soft_sum = smooth * soft_sum;
        s.drop = smooth * (0.693147181f * fmaf(rest, soft_sum, -part.drop));
        s.best = best(r) == kNoBest ? State::kNone : best(r);
        return s;
    }

    /* Adds the vectors of a row from `at` on, with the general formulas. */
    DEVICE void add_rest(const Loss &loss, const Cut<E> &cut, const typename Loss::Row &r, int at, State &s) {
        typename OfRows::Arrays arrays(loss, cut, r.of.row);
#pragma unroll 1
        for (; at < cut.vectors; at += GPULOSSI_BLOCK) {
            Vectors x;
            OfRows::template load<1, kRead_again>(loss, cut, arrays, at, GPULOSSI_BLOCK, x);
            loss.enter_one(r, s, cut, at, x[0][0]);
        }
    }

    DEVICE bool finite(float x) {
        return fabs(x) < Limits<float>::infinity();
    }

    /* Tiles have R rows as long as every block gets one. The remaining rows are divided equally. */
    struct Tiles {
        int64_t rows, full, part, count;
        __device__ __forceinline__ explicit Tiles(int64_t rows) : rows(rows) {
            full = rows / ((int64_t)gridDim.x * R) * gridDim.x;
            int64_t left = rows - full * R;
            part = max((int64_t)1, (left + gridDim.x - 1) / gridDim.x);
            count = full + (left + part - 1) / part;
        }
        __device__ __forceinline__ int64_t first(int64_t tile) const {
            return tile < full ? tile * R : full * R + (tile - full) * part;
        }
        __device__ __forceinline__ int size(int64_t tile) const {
            return tile < full ? (int)R : (int)min(part, rows - first(tile));
        }
    };

    DEVICE void run(const gpulossi_cross_entropy &p) {
        __shared__ typename Loss::Totals total;
        Loss loss(p);
        Group group(GPULOSSI_BLOCK);
        Cut<E> cut(0, p.rows.classes);
        Tiles tiles(p.rows.rows);
        Queue queue((gpulossi_scratch *)p.rows.scratch, group, tiles.count, 1);
        int buffer = 0;
        if (threadIdx.x == 0)
            total = Loss::Totals::zero();
#pragma unroll 1
        while (queue.more()) {
            int64_t row = tiles.first(queue.row());
            int rows = tiles.size(queue.row()), at;
            Part part[R];
            float soft_sum = 0;
#pragma unroll
            for (int r = 0; r < R; r++) {
                part[r].row_max = part[r].offset = -Limits<float>::infinity();
                part[r].sum = part[r].drop = 0;
                best(r) = kNoBest;
            }
            if (loss.terms.has_soft_targets())
                at = sweep<true>(loss, cut, row, rows, part, soft_sum);
            else
                at = sweep<false>(loss, cut, row, rows, part, soft_sum);
            queue.announce();
#pragma unroll 1
            for (int i = 0; i < rows; i++) {
                State s = state_of(loss, part[0], i, soft_sum);
#pragma unroll
                for (int r = 0; r + 1 < R; r++)
                    part[r] = part[r + 1];
                typename Loss::Row r = loss.begin(cut, row + i, threadIdx.x == 0);
                float x_y = loss.pick(cut, r);
                r.of.row = row + i;
                int from = at;
#pragma unroll 1
                for (;;) {
                    add_rest(loss, cut, r, from, s);
                    group.reduce(s, buffer);
                    buffer ^= 1;
                    if (from == (int)threadIdx.x || (finite(s.x.row_max) && finite(s.x.sum) && finite(s.drop)))
                        break;
                    s = State::empty();
                    from = (int)threadIdx.x;
                }
                if (threadIdx.x == 0)
                    loss.finish(loss.unfinished(r, s, &x_y), total);
            }
            queue.advance();
        }
        typename Loss::Totals mine = Loss::Totals::zero();
        if (threadIdx.x == 0)
            mine = total;
        if (threadIdx.x < kLanes)
            end_of_warp(loss, (gpulossi_scratch *)p.rows.scratch, mine);
    }
};

#endif
