/* The row schedules: how the rows of a loss are spread over threads, loaded, reduced and written. A schedule runs any
 * loss; a loss is a class with
 *
 *   Element, Number, Params   its element type, what it computes in, its kernel parameters
 *   kArrays                   how many arrays of [rows, classes] it reads
 *   kOnePass                  whether enter() also writes what belongs to an element, so that nothing is read again
 *   State                     of a row: empty() is that of no elements; fold(width) folds it over lanes
 *   Row                       what a row needs besides its elements
 *   array(a, row), absent(a)  start of a row of array a; a value that adds nothing to the state
 *   grad(row)                 start of a row of the gradient
 *   begin(cut, row)           the Row, before anything is reduced; the row may lie past the last one
 *   reduces()                 whether the state is needed
 *   sums_apart()              whether finish() may be called by every thread of a row with its own part of the state
 *   enter(row, state, cut, at, step, x)  K vectors of the row, number at + k * step with contents x[k], enter the state;
 *                             x may be turned round
 *   close(row, state)         completes the Row with what gradient() needs of the folded state
 *   finish(row, state, total) writes the row's results and adds to the total; one thread calls
 *   gradient(row, v, x, g)    the gradients of vector v of the row, whose contents are x
 *   concludes()               whether there is anything to do when all rows are done:
 *   conclude(sum)             writes the results of all rows; one thread calls
 */
#ifndef GPULOSSI_ROWS_CUH
#define GPULOSSI_ROWS_CUH

#include "grid.cuh"

/* Turns the vectors of a row round, so that the next one comes first. */
template <class V, int K, int A> DEVICE void turn(V (&x)[K][A]) {
#pragma unroll
    for (int a = 0; a < A; a++) {
        V first = x[0][a];
#pragma unroll
        for (int k = 0; k + 1 < K; k++)
            x[k][a] = x[k + 1][a];
        x[K - 1][a] = first;
    }
}

template <class Loss> struct Schedule {
    typedef typename Loss::Element E;
    typedef typename Loss::Number N;
    enum { A = Loss::kArrays, W = Width<E>::value };

    /* The arrays of one row. */
    struct Arrays {
        const typename E::Bits *start[A];
        bool fit[A];
        bool all_fit;

        __device__ __forceinline__ Arrays(const Loss &loss, const Cut<E> &cut, int64_t row) : all_fit(true) {
#pragma unroll
            for (int a = 0; a < A; a++) {
                start[a] = loss.array(a, row);
                fit[a] = cut.fits(start[a]);
                all_fit = all_fit && fit[a];
            }
        }
    };

    /* The vectors at, at + step, ... of a row, K of them. All loads are under way before the first is used; what can't
     * be loaded whole is mended afterwards, in a loop that turns the vectors round so that its code is there once. */
    template <int K, Stay stay>
    DEVICE void load(const Loss &loss, const Cut<E> &cut, const Arrays &arrays, int at, int step,
                     Vector<E> (&x)[K][A]) {
        if (arrays.all_fit && cut.whole(at) && cut.whole(at + (K - 1) * step)) {
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int a = 0; a < A; a++)
                    x[k][a] = load_vector<E, stay>(arrays.start[a] + cut.first(at + k * step));
            return;
        }
        bool ragged = false;
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int a = 0; a < A; a++) {
                int v = at + k * step;
                if (cut.whole(v) && arrays.fit[a]) {
                    x[k][a] = load_vector<E, stay>(arrays.start[a] + cut.first(v));
                } else {
                    x[k][a] = filled<E>(loss.absent(a));
                    ragged = ragged || v < cut.vectors;
                }
            }
        if (ragged) {
#pragma unroll 1
            for (int k = 0; k < K; k++) {
#pragma unroll
                for (int a = 0; a < A; a++)
                    if (at < cut.vectors && !(cut.whole(at) && arrays.fit[a]))
                        x[0][a] = load_elements<E>(cut, arrays.start[a], at, loss.absent(a));
                at += step;
                turn(x);
            }
        }
    }

    template <int K>
    DEVICE void write_gradient(const Loss &loss, const Cut<E> &cut, const typename Loss::Row &r, int at, int step,
                               Vector<E> (&x)[K][A]) {
#pragma unroll 1
        for (int k = 0; k < K && at < cut.vectors; k++, at += step) {
            N g[W];
            loss.gradient(r, at, x[0], g);
            store<E, E>(cut, loss.grad(r.row), at, g);
            turn(x);
        }
    }

    /* The last step of every kernel: what the grid's threads have summed becomes the loss. */
    DEVICE void end(const Loss &loss, Total &total, int64_t tiles) {
        gpulossi_scratch *scratch = (gpulossi_scratch *)loss.p.rows.scratch;
        if ((!loss.concludes() && tiles <= gridDim.x) || !total.last(scratch))
            return;
        double sum = loss.p.rows.loss ? Exact::take(scratch) : 0.0;
        if (threadIdx.x == 0)
            loss.conclude(sum);
    }

    /* A row stays in the registers of its group, K vectors a thread: read once, written once. */
    template <int K> DEVICE void held(const typename Loss::Params &p) {
        Loss loss(p);
        Group group(p.rows.group);
        Total total = {Exact::zero(), 0};
        int64_t tiles = (p.rows.rows + group.count - 1) / group.count;
        Queue queue((gpulossi_scratch *)p.rows.scratch, tiles);
#pragma unroll 1
        while (queue.more()) {
            int64_t row = queue.tile() * group.count + group.number;
            bool live = row < p.rows.rows;
            /* Lanes of a warp go on together: those past the last row go along with an empty one. */
            Cut<E> cut(live ? loss.array(0, row) : 0, live ? p.rows.classes : 0);
            Arrays arrays(loss, cut, row);
            Vector<E> x[K][A];
            load<K, kRead_once>(loss, cut, arrays, group.rank, group.size, x);
            queue.advance();
            typename Loss::Row r = loss.begin(cut, row);
            typename Loss::State state = Loss::State::empty();
            if (loss.reduces()) {
                loss.enter(r, state, cut, group.rank, group.size, x);
                group.fold(state);
            } else {
                group.settle();
            }
            if (live)
                loss.close(r, state);
            if (live && group.rank == 0)
                loss.finish(r, state, total);
            if (live && p.rows.grad)
                write_gradient(loss, cut, r, group.rank, group.size, x);
        }
        end(loss, total, tiles);
    }

    /* A row is read in steps of K vectors a thread, and a second time for the gradient where it needs the state. The last
     * row may be cut short. */
    template <int K> DEVICE void streamed(const typename Loss::Params &p) {
        Loss loss(p);
        Group group(p.rows.group);
        Total total = {Exact::zero(), 0};
        int64_t tiles = (p.rows.rows + group.count - 1) / group.count;
        int step = K * group.size;
        Queue queue((gpulossi_scratch *)p.rows.scratch, tiles);
#pragma unroll 1
        while (queue.more()) {
            int64_t row = queue.tile() * group.count + group.number;
            bool live = row < p.rows.rows;
            Cut<E> cut(live ? loss.array(0, row) : 0, live ? (row + 1 < p.rows.rows ? p.rows.classes : p.rows.last_classes) : 0);
            Arrays arrays(loss, cut, row);
            queue.advance();
            typename Loss::Row r = loss.begin(cut, row);
            typename Loss::State state = Loss::State::empty();
            Vector<E> x[K][A];
            int at;
#pragma unroll 1
            for (at = group.rank; loss.reduces() && at < cut.vectors; at += step) {
                load<K, Loss::kOnePass ? kRead_once : kRead_again>(loss, cut, arrays, at, group.size, x);
                loss.enter(r, state, cut, at, group.size, x);
            }
            if (!loss.reduces())
                group.settle();
            else if (!loss.sums_apart())
                group.fold(state);
            if (live)
                loss.close(r, state);
            if (live && (loss.sums_apart() || group.rank == 0))
                loss.finish(r, state, total);
            if (!Loss::kOnePass && p.rows.grad && cut.vectors > group.rank)
                /* From the end: what was read last is still in the cache. */
#pragma unroll 1
                for (at = group.rank + (cut.vectors - 1 - group.rank) / step * step; at >= 0; at -= step) {
                    load<K, kRead_once>(loss, cut, arrays, at, group.size, x);
                    write_gradient(loss, cut, r, at, group.size, x);
                }
        }
        end(loss, total, tiles);
    }
};

#endif
