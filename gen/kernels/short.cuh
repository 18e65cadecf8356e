/* Short packed rows, without options: a block takes as many as fit its shared memory, whatever their alignment, as one
 * stretch of memory, and each thread then works on a row of its own. */
#ifndef GPULOSSI_SHORT_CUH
#define GPULOSSI_SHORT_CUH

#include "plain.cuh"

template <class E> struct Short {
    typedef typename E::Number N;
    typedef gpulossi_cross_entropy Params;
    typedef Plain<E> Loss;
    typedef Schedule<Loss> OfRows;
    enum { W = Width<E>::value, K = 4, kAtOnce = 8 };

    /* A vector that is not all of the stretch. */
    DEVICE void spread(N *desk, const Cut<E> &cut, int first, Vector<E> x) {
#pragma unroll 1
        for (int i = 0; i < W; i++) {
            N number = E::widen(x.pop());
            if (cut.inside(first + i))
                desk[first + i] = number;
        }
    }

    DEVICE void load(const Loss &loss, const Cut<E> &cut, int64_t row, N *desk) {
        typename OfRows::Arrays arrays(loss, cut, row);
#pragma unroll 1
        for (int at = (int)threadIdx.x; at < cut.vectors; at += K * GPULOSSI_BLOCK) {
            Vector<E> x[K][1];
            OfRows::template load<K, kRead_once>(loss, cut, arrays, at, GPULOSSI_BLOCK, x);
#pragma unroll
            for (int k = 0; k < K; k++) {
                int v = at + k * GPULOSSI_BLOCK, first = (int)cut.first(v);
                if (cut.whole(v))
#pragma unroll
                    for (int i = 0; i < W; i++)
                        desk[first + i] = x[k][0].get(i);
                else if (v < cut.vectors)
                    spread(desk, cut, first, x[k][0]);
            }
        }
    }

    DEVICE void store(const Cut<E> &cut, typename E::Bits *to, N *desk) {
#pragma unroll 1
        for (int v = (int)threadIdx.x; v < cut.vectors; v += GPULOSSI_BLOCK) {
            int first = (int)cut.first(v);
            N g[W];
#pragma unroll
            for (int i = 0; i < W; i++)
                g[i] = first + i >= 0 && first + i < (int)cut.classes ? desk[first + i] : N(0);
            ::store<E, E>(cut, to, v, g);
        }
    }

    /* A row; its gradients take the place of its logits. */
    DEVICE void work(const Loss &loss, int64_t row, N *logits, int classes, typename Loss::Totals &total) {
        Cut<E> cut(0, classes);
        typename Loss::Row r = loss.begin(cut, row, true);
        typename Loss::State state = loss.empty();
        int y = r.vector * W + r.place;
        N x_y = r.place >= 0 ? logits[y] : N(0);
        if (loss.reduces())
#pragma unroll 1
            for (int c = 0; c < classes; c += kAtOnce) {
                N part[kAtOnce];
#pragma unroll
                for (int i = 0; i < kAtOnce; i++)
                    part[i] = c + i < classes ? logits[c + i] : loss.absent(0);
                state.enter(part);
            }
        loss.close(r, state);
        loss.finish(loss.unfinished(r, state, &x_y), total);
        if (!loss.writes())
            return;
        Below<N> below(r.top);
        N weight = r.place >= 0 ? r.inverse * r.scale : N(0);
        if (Below<N>::near(r.top)) {
            weight *= below.factor;
#pragma unroll 4
            for (int c = 0; c < classes; c++)
                logits[c] = below.exp(logits[c]) * weight;
        } else {
#pragma unroll 1
            for (int c = 0; c < classes; c++)
                logits[c] = exp_below(logits[c], r.top) * weight;
        }
        if (r.place < 0) /* also where something is NaN */
#pragma unroll 1
            for (int c = 0; c < classes; c++)
                logits[c] = N(0);
        if (r.place >= 0)
            logits[y] = (exp_below(x_y, r.top) * r.inverse - N(1)) * r.scale;
    }

    DEVICE void run(const Params &p) {
        __shared__ N desk[GPULOSSI_SHORT];
        Loss loss(p);
        Group group(GPULOSSI_BLOCK);
        typename Loss::Totals total = Loss::Totals::zero();
        int classes = (int)p.rows.classes, rows = min((int)GPULOSSI_BLOCK, GPULOSSI_SHORT / classes);
        Queue queue(loss.scratch(), group, (p.rows.rows + rows - 1) / rows, 1);
#pragma unroll 1
        while (queue.more()) {
            int64_t first = queue.row() * rows;
            int count = (int)min((int64_t)rows, p.rows.rows - first);
            Cut<E> cut(loss.array(0, first), (int64_t)count * classes);
            queue.announce();
            load(loss, cut, first, desk);
            __syncthreads();
            if ((int)threadIdx.x < count)
                work(loss, first + threadIdx.x, desk + threadIdx.x * classes, classes, total);
            __syncthreads();
            if (loss.writes())
                store(cut, loss.grad(first), desk);
            queue.advance();
            __syncthreads();
        }
        end(loss, loss.scratch(), total);
    }
};

#endif
