/* The row schedules assign the rows of a loss to threads, and load, reduce and write them. They run losses of
 * this interface. RowPipeline, RowMemory and RowThread run losses with accumulate() instead. A loss is a class with
 *
 *   Element, Number, Params   element type, type of computations, kernel parameters
 *   kArrays                   number of [rows, classes] arrays that it reads
 *   kOnePass                  whether enter() also writes the results of an element, so that nothing is read again.
 *                             The queue then counts row tiles of one or more rows: first_row(row_tile), with
 *                             classes_of(row_tile) in all of them
 *   State                     state of a row: empty() has no elements; reduce(lanes) reduces it over lanes
 *   Row                       inputs of a row besides its elements
 *   array(a, row), absent(a)  start of a row of array a; a value that adds nothing to the state
 *   begin(cut, row, whole)    the Row, before anything is reduced; the row may lie past the last one. Without a
 *                             gradient, only the leader of a group needs a whole Row
 *   pick(cut, row)            the element that finish() needs, which the gradient may overwrite afterwards
 *   reduces()                 whether the state is needed
 *   sums_by_thread()          whether every thread of a row may call finish() with its own part of the state
 *   enter(row, state, cut, at, step, x)  adds K vectors of the row to the state: x[k] has number at + k * step
 *   close(row, state)         completes the Row for the gradient, from the reduced state
 *   unfinished(row, state, picked)  all inputs of finish()
 *   finish(unfinished, total) writes the row's results and adds to the total; one thread calls
 *   writes()                  whether write() is needed, for a loss that is not of one pass
 *   write(cut, row, at, step, x, picked)  writes the gradients of K vectors; it may overwrite x
 *   Totals                    the Total of the sums over rows
 *   wants(i)                  whether sum i is needed
 *   concludes()               whether there is work left after all rows
 *   conclude(sums, counts)    does this work; one thread calls
 */
#ifndef GPULOSSI_ROW_GENERIC_CUH
#define GPULOSSI_ROW_GENERIC_CUH

#include "../device/grid.cuh"

/* Rotates the vectors of a row, so that the next one comes first. */
template <class V, int K, int A> DEVICE void rotate(V (&x)[K][A]) {
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

    /* The arrays of a row, by the addresses of vector 0 of the cut, which may begin before the row. */
    struct Arrays {
        const char *vectors[A];
        int fit[A];

        __device__ __forceinline__ Arrays(const Loss &loss, const Cut<E> &cut, int64_t row) {
#pragma unroll
            for (int a = 0; a < A; a++) {
                const typename E::Bits *start = loss.array(a, row);
                vectors[a] = (const char *)(start - cut.head);
                fit[a] = a == 0 || cut.fits(start); /* The cut is aligned for array 0. */
                if (A > 1)
                    keep(vectors[a]);
                if (a > 0)
                    keep(fit[a]);
            }
        }
        __device__ __forceinline__ bool all_fit() const {
            bool all = true;
#pragma unroll
            for (int a = 1; a < A; a++)
                all = all && fit[a];
            return all;
        }
        __device__ __forceinline__ const char *at(int a, int v) const {
            return vectors[a] + (int64_t)v * GPULOSSI_VECTOR_BYTES;
        }
    };

    /* Loads the K vectors at, at + step, ... of a row. All loads are in flight before the first is used. Vectors that
     * can't be loaded whole are loaded afterwards, in a loop that rotates the vectors and is not unrolled. */
    template <int K, Stay stay>
    DEVICE void load(const Loss &loss, const Cut<E> &cut, const Arrays &arrays, int at, int step,
                     Vector<E> (&x)[K][A]) {
        if (arrays.all_fit() && cut.whole(at) && cut.whole(at + (K - 1) * step)) {
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int a = 0; a < A; a++)
                    x[k][a] = load_vector<E, stay>(arrays.at(a, at) + (int64_t)step * (k * GPULOSSI_VECTOR_BYTES));
            return;
        }
        bool ragged = false;
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int a = 0; a < A; a++) {
                int v = at + k * step;
                if (cut.whole(v) && arrays.fit[a]) {
                    x[k][a] = load_vector<E, stay>(arrays.at(a, v));
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
                        x[0][a] = load_elements<E>(cut, (const typename E::Bits *)arrays.vectors[a] + cut.head, at,
                                                   loss.absent(a));
                at += step;
                rotate(x);
            }
        }
    }

    /* The rows of a launch. All have the same cut if all start on 16 bytes. */
    struct Rows {
        const typename Loss::Params &p;
        Group group;
        Cut<E> even;
        Queue queue;

        __device__ __forceinline__ explicit Rows(const typename Loss::Params &p)
            : p(p), group(p.rows.group), even(0, p.rows.classes),
              queue((gpulossi_scratch *)p.rows.scratch, group, p.rows.rows, run(group, p.rows.rows)) {
            if (A == 1) /* Two arrays leave fewer registers. */
                keep(even.vectors);
        }

        /* A queue tile has several iterations if rows are short and there are enough of them. */
        DEVICE int run(const Group &group, int64_t rows) {
            return group.size <= kLanes && rows > 16ll * gridDim.x * group.count ? Queue::kRun : 1;
        }

        __device__ __forceinline__ int64_t row() const { return queue.row(); }
        __device__ __forceinline__ bool live(int64_t row) const { return row < p.rows.rows; }

        /* The lanes of a warp stay converged: a row past the last one is empty. */
        __device__ __forceinline__ Cut<E> cut(const Loss &loss, int64_t row) const {
            Cut<E> cut = even;
            if (!(p.rows.flags & GPULOSSI_EVEN))
                cut = Cut<E>(loss.array(0, row), p.rows.classes);
            if (!live(row))
                cut.vectors = 0, cut.whole_vectors = 0;
            return cut;
        }
        /* The cut of a row tile that begins with that row. */
        __device__ __forceinline__ Cut<E> cut_of(const Loss &loss, int64_t row_tile, int64_t row) const {
            int64_t classes = loss.classes_of(row_tile);
            return classes != p.rows.classes ? Cut<E>(loss.array(0, row), classes) : cut(loss, row_tile);
        }
    };

    /* A row is read in steps of K vectors a thread. A gradient that needs the state reads it a second time. */
    template <int K> DEVICE void streamed(const typename Loss::Params &p) {
        __shared__ typename Loss::Totals totals[GPULOSSI_BLOCK]; /* rarely accessed, so not in registers */
        __shared__ N picked[2][GPULOSSI_BLOCK];
        Loss loss(p);
        Rows rows(p);
        Group &group = rows.group;
        totals[threadIdx.x] = Loss::Totals::zero();
        int step = K * group.size, buffer = 0;
#pragma unroll 1
        while (rows.queue.more()) {
            int64_t row = rows.row();
            bool live = rows.live(row), leads = group.rank == 0;
            Cut<E> cut;
            if constexpr (Loss::kOnePass) {
                int64_t row_tile = row;
                row = loss.first_row(row_tile);
                cut = rows.cut_of(loss, row_tile, row);
            } else {
                cut = rows.cut(loss, row);
            }
            Arrays arrays(loss, cut, row);
            typename Loss::Row r = loss.begin(cut, row, leads || loss.writes());
            typename Loss::State state = Loss::State::empty();
            Vector<E> x[K][A];
            N *to = &picked[buffer][group.number];
            int at;
            buffer ^= 1;
            if (leads)
                *to = loss.pick(cut, r);
            rows.queue.announce();
            if (!loss.reduces() || loss.sums_by_thread())
                group.settle();
#pragma unroll 1
            for (at = group.rank; loss.reduces() && at < cut.vectors; at += step) {
                load<K, Loss::kOnePass ? kRead_once : kRead_again>(loss, cut, arrays, at, group.size, x);
                loss.enter(r, state, cut, at, group.size, x);
            }
            if (loss.reduces() && !loss.sums_by_thread())
                group.reduce(state, rows.queue.phase);
            if (live)
                loss.close(r, state);
            if (live && (loss.sums_by_thread() || leads))
                loss.finish(loss.unfinished(r, state, to), totals[threadIdx.x]);
            rows.queue.advance();
            if (!Loss::kOnePass && loss.writes() && cut.vectors > group.rank)
            /* The pass starts at the end, which was read last and is still in the cache. */
#pragma unroll 1
                for (at = group.rank + (cut.vectors - 1 - group.rank) / step * step; at >= 0; at -= step) {
                    load<K, kRead_once>(loss, cut, arrays, at, group.size, x);
                    loss.write(cut, r, at, group.size, x, to);
                }
        }
        end(loss, (gpulossi_scratch *)p.rows.scratch, totals);
    }
};

#endif
