/* The row schedules: how the rows of a loss are spread over threads, loaded, reduced and written. A schedule runs any
 * loss; a loss is a class with
 *
 *   Element, Number, Params   its element type, what it computes in, its kernel parameters
 *   kArrays                   how many arrays of [rows, classes] it reads
 *   kOnePass                  whether enter() also writes what belongs to an element, so that nothing is read again.
 *                             Then what the queue counts are stretches of one or more rows: first_row(stretch), and
 *                             classes_of(stretch) in all of them
 *   State                     of a row: empty() is that of no elements; reduce(lanes) reduces it over lanes
 *   Row                       what a row needs besides its elements
 *   array(a, row), absent(a)  start of a row of array a; a value that adds nothing to the state
 *   begin(cut, row, whole)    the Row, before anything is reduced; the row may lie past the last one. A thread that does
 *                             not lead its group needs no whole Row when there is no gradient
 *   pick(cut, row)            what finish() needs of a single element, which the gradient may overwrite afterwards
 *   pick(row, at, step, x, to)  the same into shared memory, if the element is among K vectors of the row
 *   reduces()                 whether the state is needed
 *   sums_apart()              whether finish() may be called by every thread of a row with its own part of the state
 *   enter(row, state, cut, at, step, x)  K vectors of the row, number at + k * step with contents x[k], enter the state
 *   close(row, state)         completes the Row with what gradient() needs of the folded state
 *   unfinished(row, state, picked)  all that finish() needs
 *   finish(unfinished, total) writes the row's results and adds to the total; one thread calls
 *   writes()                  whether write() is wanted, for a loss that is not of one pass
 *   write(cut, row, at, step, x, picked)  writes the gradients of K vectors; it may use up x
 *   Totals                    what is summed over the rows: a Total
 *   wants(i)                  whether the i-th sum is wanted
 *   concludes()               whether there is anything to do when all rows are done
 *   conclude(sums, counts)    does it; one thread calls
 */
#ifndef GPULOSSI_ROW_GENERIC_CUH
#define GPULOSSI_ROW_GENERIC_CUH

#include "../device/grid.cuh"

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

    /* The arrays of one row, by where the first vector of the cut begins or would begin. */
    struct Arrays {
        const char *vectors[A];
        int fit[A];

        __device__ __forceinline__ Arrays(const Loss &loss, const Cut<E> &cut, int64_t row) {
#pragma unroll
            for (int a = 0; a < A; a++) {
                const typename E::Bits *start = loss.array(a, row);
                vectors[a] = (const char *)(start - cut.head);
                fit[a] = a == 0 || cut.fits(start); /* it was cut to fit the first */
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

    /* The vectors at, at + step, ... of a row, K of them. All loads are under way before the first is used; what can't
     * be loaded whole is mended afterwards, in a loop that turns the vectors round so that its code is there once. */
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
                turn(x);
            }
        }
    }

    /* In halves, which takes fewer registers at a time. */
    template <int K>
    DEVICE void write_held(const Loss &loss, const Cut<E> &cut, const typename Loss::Row &r, int at, int step,
                           Vector<E> (&x)[K][A], const N *picked) {
        typedef Vector<E> Half[K / 2][A];
#pragma unroll 1
        for (int half = 0; half < 2 && at < cut.vectors; half++) {
            loss.write(cut, r, at, step, (Half &)x, picked);
            at += K / 2 * step;
#pragma unroll
            for (int k = 0; k < K / 2; k++)
#pragma unroll
                for (int a = 0; a < A; a++)
                    x[k][a] = x[k + K / 2][a];
        }
    }

    /* Where the rows of a launch lie: every row has the same cut when all start on 16 bytes. */
    struct Rows {
        const typename Loss::Params &p;
        Group group;
        Cut<E> even;
        Queue queue;

        __device__ __forceinline__ explicit Rows(const typename Loss::Params &p)
            : p(p), group(p.rows.group), even(0, p.rows.classes),
              queue((gpulossi_scratch *)p.rows.scratch, group, p.rows.rows, run(group, p.rows.rows)) {
            if (A == 1) /* with two arrays registers are scarcer */
                keep(even.vectors);
        }

        /* Short rows are taken several times in a row, where there are enough of them. */
        DEVICE int run(const Group &group, int64_t rows) {
            return group.size <= kLanes && rows > 16ll * gridDim.x * group.count ? Queue::kRun : 1;
        }

        __device__ __forceinline__ int64_t row() const { return queue.row(); }
        __device__ __forceinline__ bool live(int64_t row) const { return row < p.rows.rows; }

        /* Lanes of a warp go on together: those past the last row go along with an empty one. */
        __device__ __forceinline__ Cut<E> cut(const Loss &loss, int64_t row) const {
            Cut<E> cut = even;
            if (!(p.rows.flags & GPULOSSI_EVEN))
                cut = Cut<E>(loss.array(0, row), p.rows.classes);
            if (!live(row))
                cut.vectors = 0, cut.whole_vectors = 0;
            return cut;
        }
        /* Of a stretch that begins with that row. */
        __device__ __forceinline__ Cut<E> cut_of(const Loss &loss, int64_t stretch, int64_t row) const {
            int64_t classes = loss.classes_of(stretch);
            return classes != p.rows.classes ? Cut<E>(loss.array(0, row), classes) : cut(loss, stretch);
        }
    };

    /* A row stays in the registers of its group, K vectors a thread: read once, written once. The one thread that
     * finishes a row does so when the next one's loads are under way, so that the others need not wait for it; what it
     * keeps until then lies in shared memory, where it takes no registers of theirs. */
    template <int K> DEVICE void held(const typename Loss::Params &p) {
        __shared__ typename Loss::Totals totals[GPULOSSI_BLOCK];
        __shared__ typename Loss::Unfinished kept[GPULOSSI_BLOCK];
        __shared__ bool unfinished[GPULOSSI_BLOCK];
        __shared__ int turns[GPULOSSI_BLOCK];
        __shared__ N picked[2][GPULOSSI_BLOCK];
        Loss loss(p);
        Rows rows(p);
        Group &group = rows.group;
        int &turn = turns[threadIdx.x];
        turn = 0;
        unfinished[threadIdx.x] = false;
        totals[threadIdx.x] = Loss::Totals::zero();
#pragma unroll 1
        for (;;) {
            bool more = rows.queue.more();
            int64_t row = rows.row();
            bool live = rows.live(row);
            Cut<E> cut = rows.cut(loss, row);
            Arrays arrays(loss, cut, row);
            Vector<E> x[K][A];
            if (more) {
                load<K, kRead_once>(loss, cut, arrays, group.rank, group.size, x);
                rows.queue.announce();
            }
            typename Loss::Row r = loss.begin(cut, row, true);
            if (unfinished[threadIdx.x])
                loss.finish(kept[threadIdx.x], totals[threadIdx.x]);
            if (!more)
                break;
            loss.pick(r, group.rank, group.size, x, &picked[turn][group.number]);
            typename Loss::State state = Loss::State::empty();
            if (loss.reduces()) {
                loss.enter(r, state, cut, group.rank, group.size, x);
                group.reduce(state, rows.queue.turn);
            } else {
                group.settle();
            }
            rows.queue.advance();
            if (live)
                loss.close(r, state);
            unfinished[threadIdx.x] = live && group.rank == 0;
            if (live && group.rank == 0)
                kept[threadIdx.x] = loss.unfinished(r, state, &picked[turn][group.number]);
            turn ^= 1;
            if (live && loss.writes())
                write_held(loss, cut, r, group.rank, group.size, x, &picked[turn ^ 1][group.number]);
        }
        end(loss, (gpulossi_scratch *)p.rows.scratch, totals);
    }

    /* A row is read in steps of K vectors a thread, and a second time for the gradient where it needs the state. */
    template <int K> DEVICE void streamed(const typename Loss::Params &p) {
        __shared__ typename Loss::Totals totals[GPULOSSI_BLOCK]; /* seldom touched, so they take no registers */
        __shared__ N picked[2][GPULOSSI_BLOCK];
        Loss loss(p);
        Rows rows(p);
        Group &group = rows.group;
        totals[threadIdx.x] = Loss::Totals::zero();
        int step = K * group.size, turn = 0;
#pragma unroll 1
        while (rows.queue.more()) {
            int64_t row = rows.row();
            bool live = rows.live(row), leads = group.rank == 0;
            Cut<E> cut;
            if constexpr (Loss::kOnePass) {
                int64_t stretch = row;
                row = loss.first_row(stretch);
                cut = rows.cut_of(loss, stretch, row);
            } else {
                cut = rows.cut(loss, row);
            }
            Arrays arrays(loss, cut, row);
            typename Loss::Row r = loss.begin(cut, row, leads || loss.writes());
            typename Loss::State state = Loss::State::empty();
            Vector<E> x[K][A];
            N *to = &picked[turn][group.number];
            int at;
            turn ^= 1;
            if (leads)
                *to = loss.pick(cut, r);
            rows.queue.announce();
            if (!loss.reduces() || loss.sums_apart())
                group.settle();
#pragma unroll 1
            for (at = group.rank; loss.reduces() && at < cut.vectors; at += step) {
                load<K, Loss::kOnePass ? kRead_once : kRead_again>(loss, cut, arrays, at, group.size, x);
                loss.enter(r, state, cut, at, group.size, x);
            }
            if (loss.reduces() && !loss.sums_apart())
                group.reduce(state, rows.queue.turn);
            if (live)
                loss.close(r, state);
            if (live && (loss.sums_apart() || leads))
                loss.finish(loss.unfinished(r, state, to), totals[threadIdx.x]);
            rows.queue.advance();
            if (!Loss::kOnePass && loss.writes() && cut.vectors > group.rank)
            /* From the end: what was read last is still in the cache. */
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
