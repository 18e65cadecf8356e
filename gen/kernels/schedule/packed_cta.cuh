/* Short packed rows, without options. A block takes a tile of rows that fits its shared memory, whatever their
 * alignment. It copies the tile as contiguous memory, and each thread then works on rows of its own. */
#ifndef GPULOSSI_PACKED_CTA_CUH
#define GPULOSSI_PACKED_CTA_CUH

#include "ce_basic.cuh"

template <class E> struct PackedCta {
    typedef typename E::Number N;
    typedef gpulossi_cross_entropy Params;
    typedef Plain<E> Loss;
    typedef typename Loss::State State;
    enum { W = Width<E>::value, K = 4 };
    static_assert(sizeof(N) == 4, "four numbers are 16 bytes");

    /* Element c of the row tile is at c + head in shared memory, so that vectors are aligned there, too. */
    DEVICE void load(const Cut<E> &cut, const typename E::Bits *from, N *smem_logits) {
#pragma unroll 1
        for (int at = (int)threadIdx.x; at < cut.vectors; at += K * GPULOSSI_BLOCK) {
            Vector<E> x[K];
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (cut.whole(at + k * GPULOSSI_BLOCK))
                    x[k] = load_vector<E, kRead_once>(from + cut.first(at + k * GPULOSSI_BLOCK));
            }
#pragma unroll
            for (int k = 0; k < K; k++)
                if (cut.whole(at + k * GPULOSSI_BLOCK))
#pragma unroll
                    for (int i = 0; i < W; i += 4)
                        *(float4 *)&smem_logits[(at + k * GPULOSSI_BLOCK) * W + i] =
                            make_float4(x[k].get(i), x[k].get(i + 1), x[k].get(i + 2), x[k].get(i + 3));
        }
        /* The elements outside whole vectors are fewer than the threads of a block. */
        int lead = cut.lead * (W - cut.head), whole = (int)cut.whole_vectors * W, c = (int)threadIdx.x;
        if (c >= lead)
            c += whole;
        if (c < (int)cut.classes)
            smem_logits[c + cut.head] = E::widen(from[c]);
    }

    DEVICE void store(const Cut<E> &cut, typename E::Bits *to, const N *smem_logits) {
        bool fits = cut.fits(to);
#pragma unroll 1
        for (int v = (int)threadIdx.x; v < cut.vectors; v += GPULOSSI_BLOCK) {
            int first = (int)cut.first(v);
            if (cut.whole(v) && fits) {
                N g[W];
#pragma unroll
                for (int i = 0; i < W; i += 4) {
                    float4 four = *(const float4 *)&smem_logits[v * W + i];
                    g[i] = four.x, g[i + 1] = four.y, g[i + 2] = four.z, g[i + 3] = four.w;
                }
                store_whole<E, E>(to + first, g, false);
            } else {
#pragma unroll 1
                for (int i = 0; i < W; i++)
                    if (cut.inside(first + i))
                        to[first + i] = E::narrow(smem_logits[v * W + i]);
            }
        }
    }

    /* Processes a row. Its gradients replace its logits. */
    DEVICE N work(const Loss &loss, int64_t row, N *logits, int classes, typename Loss::Totals &total) {
        Cut<E> cut(0, classes);
        typename Loss::Row r = loss.begin(cut, row, true);
        State state = State::empty();
        int y = r.vector * W + r.place;
        N x_y = r.place >= 0 ? logits[y] : N(0);
        if (loss.reduces()) {
            int c;
#pragma unroll 4
            for (c = 0; c < classes; c++)
                state.row_max = larger(state.row_max, logits[c]);
            if (ScaledExp<N>::in_fast_range(state.row_max)) {
                ScaledExp<N> below(state.row_max);
#pragma unroll 1
                for (c = 0; c + K <= classes; c += K) {
                    N part[K];
#pragma unroll
                    for (int i = 0; i < K; i++)
                        part[i] = below.exp(logits[c + i]);
                    state.sum += in_halves<Sum>(part);
                }
#pragma unroll 1
                for (; c < classes; c++)
                    state.sum += below.exp(logits[c]);
                state.sum *= below.factor;
            } else {
#pragma unroll 1
                for (c = 0; c < classes; c++)
                    state.sum += exp_below(logits[c], State::finite(state.row_max));
            }
        }
        loss.close(r, state);
        N of_row = loss.result(loss.unfinished(r, state, &x_y), total);
        if (!loss.writes())
            return of_row;
        ScaledExp<N> below(r.row_max);
        N weight = r.place >= 0 ? r.inverse * r.scale : N(0);
        if (ScaledExp<N>::in_fast_range(r.row_max)) {
            weight *= below.factor;
#pragma unroll 4
            for (int c = 0; c < classes; c++)
                logits[c] = below.exp(logits[c]) * weight;
        } else {
#pragma unroll 1
            for (int c = 0; c < classes; c++)
                logits[c] = exp_below(logits[c], r.row_max) * weight;
        }
        if (r.place < 0) /* also if a gradient is NaN */
#pragma unroll 1
            for (int c = 0; c < classes; c++)
                logits[c] = N(0);
        if (r.place >= 0)
            logits[y] = loss.of_target(r, x_y);
        return of_row;
    }

    DEVICE void run(const Params &p) {
        __shared__ float4 smem_vectors[GPULOSSI_SHORT / 4 + 4];
        __shared__ typename Loss::Totals totals[GPULOSSI_BLOCK]; /* rarely accessed, so not in registers */
        N *smem_logits = (N *)smem_vectors;
        Loss loss(p);
        Group group(GPULOSSI_BLOCK);
        typename Loss::Totals &total = totals[threadIdx.x];
        total = Loss::Totals::zero();
        int classes = (int)p.rows.classes, rows = min((int)GPULOSSI_SHORT_ROWS, GPULOSSI_SHORT / classes);
        Queue queue(loss.scratch(), group, (p.rows.rows + rows - 1) / rows, 1);
#pragma unroll 1
        while (queue.more()) {
            int64_t first = queue.row() * rows;
            int count = (int)min((int64_t)rows, p.rows.rows - first);
            Cut<E> cut(loss.array(0, first), (int64_t)count * classes);
            queue.announce();
            load(cut, loss.array(0, first), smem_logits);
            __syncthreads();
            double sum = 0;
#pragma unroll 1
            for (int row = (int)threadIdx.x; row < count; row += GPULOSSI_BLOCK) {
                sum += (double)work(loss, first + row, smem_logits + cut.head + row * classes, classes, total);
                /* Losses from a given lse may cancel, so each is added to the exact sum. */
                if (!loss.reduces() || row + GPULOSSI_BLOCK >= count) {
                    loss.add(sum, total);
                    sum = 0;
                }
            }
            __syncthreads();
            if (loss.writes())
                store(cut, loss.grad(first), smem_logits);
            queue.advance();
            __syncthreads();
        }
        end(loss, loss.scratch(), totals);
    }
};

#endif
