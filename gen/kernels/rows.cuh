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
 *   begin(row)                the Row, before anything is reduced; the row may lie past the last one
 *   reduces()                 whether the state is needed
 *   sums_apart()              whether finish() may be called by every thread of a row with its own part of the state
 *   enter(row, state, cut, at, step, x)  K vectors of the row, number at + k * step with contents x[k], enter the state
 *   close(row, state)         completes the Row with what gradient() needs of the folded state
 *   finish(row, state)        the row's results, written by the one thread that calls it; returns what it adds to the total
 *   gradient(row, first, x, g)    the gradients of a vector whose first element is element `first` of the row
 *   conclude(total)           writes the results of all rows
 */
#ifndef GPULOSSI_ROWS_CUH
#define GPULOSSI_ROWS_CUH

#include "reduce.cuh"

template <class Loss> struct Schedule {
    typedef typename Loss::Element E;
    typedef typename Loss::Number N;
    enum { A = Loss::kArrays, W = Width<E>::value };

    /* The vectors at, at + step, ... of a row, K of them. All loads are under way before the first is used; what can't
     * be loaded whole is mended afterwards, in a loop that turns the vectors round so that its code is there once. */
    template <int K, Stay stay, class C>
    DEVICE void load(const Loss &loss, const C &cut, int64_t row, typename C::Index at, typename C::Index step,
                     Vector<E> (&x)[K][A]) {
        bool ragged = false;
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int a = 0; a < A; a++) {
                typename C::Index v = at + k * step;
                if (cut.whole(v) && cut.fits(loss.array(a, row))) {
                    x[k][a] = load_vector<E, stay>(loss.array(a, row) + cut.first(v));
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
                    if (at < cut.vectors && !(cut.whole(at) && cut.fits(loss.array(a, row))))
                        x[0][a] = load_elements<E>(cut, loss.array(a, row), at, loss.absent(a));
                at += step;
                turn(x);
            }
        }
    }

    template <int K, class C>
    DEVICE void write_gradient(const Loss &loss, const C &cut, const typename Loss::Row &r, typename C::Index at,
                               typename C::Index step, Vector<E> (&x)[K][A]) {
#pragma unroll 1
        for (int k = 0; k < K && at < cut.vectors; k++, at += step) {
            N g[W];
            loss.gradient(r, cut.first(at), x[0], g);
            store<E, E>(cut, loss.grad(r.row), at, g);
            turn(x);
        }
    }

    template <int K> DEVICE void turn(Vector<E> (&x)[K][A]) {
#pragma unroll
        for (int a = 0; a < A; a++) {
            Vector<E> first = x[0][a];
#pragma unroll
            for (int k = 0; k + 1 < K; k++)
                x[k][a] = x[k + 1][a];
            x[K - 1][a] = first;
        }
    }

    /* The last step of every kernel: what the grid's threads have summed becomes the loss. */
    DEVICE void end(const Loss &loss, Total &total) {
        gpulossi_scratch *scratch = (gpulossi_scratch *)loss.p.rows.scratch;
        if (scratch && total.fold_grid(scratch, &scratch->blocks_done) && threadIdx.x == 0)
            loss.conclude(total);
    }

    /* A row stays in the registers of its group, K vectors a thread: read once, written once. */
    template <int K> DEVICE void held(const typename Loss::Params &p) {
        Loss loss(p);
        Group group(p.rows.group);
        Total total = {0.0, 0.0};
#pragma unroll 1
        for (int64_t base = 0; base < p.rows.rows; base += group.count) {
            int64_t row = base + group.number;
            bool live = row < p.rows.rows;
            /* Lanes of a warp leave together: those past the last row go along with an empty one. */
            Cut<E, int> cut(live ? loss.array(0, row) : 0, live ? (int)p.rows.classes : 0);
            typename Loss::Row r = loss.begin(row);
            typename Loss::State state = Loss::State::empty();
            Vector<E> x[K][A];
            load<K, kRead_once>(loss, cut, row, group.rank, group.size, x);
            if (loss.reduces()) {
                loss.enter(r, state, cut, group.rank, group.size, x);
                group.fold(state);
            }
            group.settle();
            if (live)
                loss.close(r, state);
            if (live && group.rank == 0)
                total.add(loss.finish(r, state));
            if (live && p.rows.grad)
                write_gradient(loss, cut, r, group.rank, group.size, x);
        }
        end(loss, total);
    }

    /* A row is read in steps of K vectors a thread, and a second time for the gradient where it needs the state. */
    template <int K> DEVICE void streamed(const typename Loss::Params &p) {
        Loss loss(p);
        Group group(p.rows.group);
        Total total = {0.0, 0.0};
#pragma unroll 1
        for (int64_t base = 0; base < p.rows.rows; base += group.count) {
            int64_t row = base + group.number, step = (int64_t)K * group.size;
            bool live = row < p.rows.rows;
            Cut<E, int64_t> cut(live ? loss.array(0, row) : 0, live ? p.rows.classes : 0);
            typename Loss::Row r = loss.begin(row);
            typename Loss::State state = Loss::State::empty();
            Vector<E> x[K][A];
            int64_t at = group.rank;
#pragma unroll 1
            for (; loss.reduces() && at < cut.vectors; at += step) {
                load<K, Loss::kOnePass ? kRead_once : kRead_again>(loss, cut, row, at, group.size, x);
                loss.enter(r, state, cut, at, group.size, x);
            }
            if (loss.reduces() && !loss.sums_apart())
                group.fold(state);
            group.settle();
            if (live)
                loss.close(r, state);
            if (live && (loss.sums_apart() || group.rank == 0))
                total.add(loss.finish(r, state));
            if (!Loss::kOnePass && p.rows.grad && cut.vectors > group.rank)
                /* From the end: what was read last is still in the cache. */
#pragma unroll 1
                for (at = group.rank + (cut.vectors - 1 - group.rank) / step * step; at >= 0; at -= step) {
                    load<K, kRead_once>(loss, cut, row, at, group.size, x);
                    write_gradient(loss, cut, r, at, group.size, x);
                }
        }
        end(loss, total);
    }
};

#endif
