/* Rows of few classes in tiles of shared memory, with every option: rows of any stride and alignment, and columns, whose
 * classes are not innermost. The host selects this schedule for options and columns from compute capability 7.0 on. One thread has a row, or a few threads share it.
 *
 * In a tile each row begins with a vector, and its last vector is filled with logits that change nothing. The distance
 * of two rows is an odd number of vectors, so that neighbouring rows are in different banks. Before each eighth column
 * there is one vector more, for every second, fourth or eighth column. Packed rows are copied to a tile as they are in
 * memory, and accessed by words there, or by elements of 16 bits if rows are no whole words. As they are no whole
 * vectors, at most two rows that a warp accesses are in one bank. The threads of a block load a tile in the order of
 * memory. Columns are transposed in registers. Gradients replace the logits in the tile, and are stored in the order of
 * memory. */
#ifndef GPULOSSI_ROW_THREAD_CUH
#define GPULOSSI_ROW_THREAD_CUH

#include "../device/smem_words.cuh"
#include "../device/tile_scheduler.cuh"
#include "class_vector.cuh"

template <class Loss> class RowThread {
    typedef typename Loss::Element E;
    typedef typename Loss::N N;
    typedef typename Loss::Bits Bits;
    typedef typename Loss::Params Params;
    typedef typename Loss::Gradients Gradients;
    typedef typename Loss::Targets Targets;
    typedef typename Loss::Row Row;
    typedef typename Loss::RowInput RowInput;
    typedef typename Loss::State State;
    typedef typename Loss::Totals Totals;
    enum {
        W = Width<E>::value,
        kThreads = GPULOSSI_TILE_THREADS,
        kLoads = 4, /* vectors that a thread has in flight */
        kNone = -1
    };

    const Params &p;
    Loss loss;
    uint32_t smem_tile; /* its shared address */
    uint32_t smem_rows; /* the shared address of its first row */
    int classes;
    int vectors;           /* of a row */
    int pitch_bytes;       /* from one row of the tile to the next */
    int rows;              /* of a tile */
    int threads;           /* that share a row */
    int rank;              /* of this thread among them */
    int row;               /* first row of this thread in a tile */
    int64_t first;         /* row of the launch that is the first one of the tile */
    int count;             /* rows of the tile that are there */
    int64_t image, within; /* of the first column of the tile: its image, and its position there */

    /* Whether the rows of the arrays in the tile are contiguous, and alike in their alignment. */
    DEVICE bool is_packed() { return has_format(GPULOSSI_FORMAT_PACKED); }
    DEVICE bool is_ragged() { return has_format(GPULOSSI_FORMAT_RAGGED); }
    /* Whether more than the target's logit is read. */
    DEVICE bool has_tile() { return Loss::reduces() || Loss::writes(); }
    /* Whether the gradient replaces the logits of the tile. */
    DEVICE bool writes_tile() {
        return has(GPULOSSI_CE_GRADIENT) && !Gradients::is_other() && !(has_columns() && is_ragged());
    }

    __device__ __forceinline__ explicit RowThread(const Params &p)
        : p(p), loss(p), smem_tile(Shared::address(stash_of_block())), smem_rows(smem_tile),
          classes((int)p.rows.classes), vectors((classes + W - 1) / W),
          pitch_bytes(is_packed() ? classes * (int)sizeof(Bits) : (vectors | 1) * GPULOSSI_VECTOR_BYTES),
          rows((int)p.rows.of.tile_rows), threads((int)p.rows.group), first(0), count(0), image(0), within(0) {
        const int groups = kThreads / threads;
        keep(smem_tile);
        row = has_columns() ? (int)threadIdx.x % groups : (int)threadIdx.x / threads;
        rank = has_columns() ? (int)threadIdx.x / groups : (int)threadIdx.x % threads;
    }

    /* ---- the tile ---- */

    __device__ __forceinline__ uint32_t address(int row, int vector) const {
        const int more = has_columns() ? row / 8 : 0;
        return (is_packed() ? smem_rows : smem_tile) +
               (uint32_t)(row * pitch_bytes + (more + vector) * GPULOSSI_VECTOR_BYTES);
    }
    DEVICE Bits bits(uint32_t at) {
        if constexpr (sizeof(Bits) == 8) {
            uint32_t words[2];
            Shared::load<2>(at, words);
            return (uint64_t)words[0] | (uint64_t)words[1] << 32;
        } else {
            return Shared::bits<Bits>(at);
        }
    }
    DEVICE void put(uint32_t at, Bits x) {
        if constexpr (sizeof(Bits) == 8) {
            const uint32_t words[2] = {(uint32_t)x, (uint32_t)(x >> 32)};
            Shared::store<2>(at, words);
        } else {
            Shared::store(at, x);
        }
    }
    DEVICE void set(Vector<E> &x, int i, Bits element) {
        if constexpr (sizeof(Bits) == 8) {
            x.word[2 * i] = (uint32_t)element;
            x.word[2 * i + 1] = (uint32_t)(element >> 32);
        } else {
            x.replace(i, element);
        }
    }
    DEVICE Bits element_of(const Vector<E> &x, int i) {
        if constexpr (sizeof(Bits) == 8)
            return (uint64_t)x.word[2 * i] | (uint64_t)x.word[2 * i + 1] << 32;
        else if constexpr (sizeof(Bits) == 4)
            return x.word[i];
        else
            return (Bits)(x.word[i / 2] >> (16 * (i % 2)));
    }
    /* The vector of `left` or more elements, one each `step` elements of memory. `by_words`: they are neighbours, and each
     * two of 16 bits are a word. Without `may_be_whole` fewer than W are left. */
    __device__ __forceinline__ Vector<E> gathered(const Bits *from, int64_t step, int left, bool by_words,
                                                  bool may_be_whole) const {
        Vector<E> x = filled<E>(loss.padding());
        if constexpr (sizeof(Bits) == 2)
            if (by_words) {
#pragma unroll
                for (int i = 0; i < W; i += 2)
                    if (i < left)
                        x.word[i / 2] = *(const uint32_t *)(from + i);
                return x;
            }
#pragma unroll
        for (int i = 0; i < W; i++)
            if (i < left && (i + 1 < W || may_be_whole))
                set(x, i, from[i * step]);
        return x;
    }
    /* Whether all rows of an array consist of words. */
    __device__ __forceinline__ bool has_words(uint64_t array, int64_t stride) const {
        return sizeof(Bits) == 2 && array % 4 == 0 && stride % 2 == 0 && classes % 2 == 0;
    }

    /* A position in rows of `n` units, which the threads take in turn. */
    struct Position {
        int row, unit, row_step, unit_step, n;
        __device__ __forceinline__ explicit Position(int n)
            : row((int)threadIdx.x / n), unit((int)threadIdx.x % n), row_step(kThreads / n), unit_step(kThreads % n),
              n(n) {}
        __device__ __forceinline__ void advance() {
            unit += unit_step;
            row += row_step;
            if (unit >= n)
                unit -= n, row++;
        }
    };
    /* Packed rows are accessed by words, or by elements if they are no words. */
    DEVICE int unit() {
        return sizeof(Bits) == 2 && !is_ragged() ? 2 : 1;
    }
    /* The vector of packed rows at address `at`. Its first `left` elements are in the row. */
    template <bool kWhole> __device__ __forceinline__ Vector<E> load_packed(uint32_t at, int left) const {
        Vector<E> x = filled<E>(loss.padding());
#pragma unroll
        for (int i = 0; i < W; i++) {
            const uint32_t from = at + i * (int)sizeof(Bits);
            if (i % unit() != 0 || !(kWhole || i < left))
                continue;
            if (unit() == 2)
                x.word[i / 2] = Shared::bits<uint32_t>(from);
            else
                set(x, i, bits(from));
        }
        return x;
    }
    template <bool kWhole>
    __device__ __forceinline__ void store_packed(uint32_t at, int left, const Vector<E> &x) const {
#pragma unroll
        for (int i = 0; i < W; i++) {
            const uint32_t to = at + i * (int)sizeof(Bits);
            if (i % unit() != 0 || !(kWhole || i < left))
                continue;
            if (unit() == 2)
                Shared::store(to, x.word[i / 2]);
            else
                put(to, element_of(x, i));
        }
    }
    /* Copies packed rows between the tile and memory by whole vectors, and by elements before and after them. */
    template <bool kStores> __device__ __forceinline__ void move_packed(uint64_t array) const {
        const int head = (int)(smem_rows - smem_tile) / (int)sizeof(Bits), end = head + count * classes;
        Bits *const base = (Bits *)array + first * classes - head;
#pragma unroll 1
        for (int v = (int)threadIdx.x + (head > 0); v < end / W;) {
            Vector<E> x[kLoads];
            const int from = v;
#pragma unroll
            for (int i = 0; i < kLoads; i++, v += kThreads)
                if (v < end / W) {
                    if (kStores)
                        Shared::load<4>(smem_tile + v * GPULOSSI_VECTOR_BYTES, x[i].word);
                    else
                        x[i] = load_vector<E, kRead_once>(base + v * W);
                }
            v = from;
#pragma unroll
            for (int i = 0; i < kLoads; i++, v += kThreads)
                if (v < end / W) {
                    if (kStores)
                        store_vector<E>(base + v * W, x[i]);
                    else
                        Shared::store<4>(smem_tile + v * GPULOSSI_VECTOR_BYTES, x[i].word);
                }
        }
        const int i = (int)threadIdx.x, e = i < W ? i : max(end / W * W, head > 0 ? (int)W : 0) + i - W;
        if (i < 2 * W && e >= head && e < end && (i >= W || head > 0)) {
            const uint32_t at = smem_tile + e * (int)sizeof(Bits);
            if (kStores)
                base[e] = bits(at);
            else
                put(at, base[e]);
        }
    }
    __device__ __forceinline__ void load_rows() const {
        if (is_packed()) {
            move_packed<false>(p.logits);
            return;
        }
        const Bits *base = (const Bits *)p.logits + first * p.logits_stride;
        const bool by_words = has_words(p.logits, p.logits_stride);
        Position at(vectors);
#pragma unroll 1
        while (at.row < count) {
            Vector<E> x[kLoads];
            uint32_t to[kLoads];
#pragma unroll
            for (int i = 0; i < kLoads; i++, at.advance()) {
                const Bits *from = base + at.row * p.logits_stride + at.unit * W;
                const int left = at.row < count ? classes - at.unit * W : 0;
                to[i] = address(at.row, at.unit);
                if (!is_ragged() && left >= W)
                    x[i] = load_vector<E, kRead_once>(from);
                else
                    x[i] = gathered(from, 1, left, by_words, is_ragged());
                if (left <= 0)
                    to[i] = 0;
            }
#pragma unroll
            for (int i = 0; i < kLoads; i++)
                if (to[i] != 0)
                    Shared::store<4>(to[i], x[i].word);
        }
    }
    /* Columns of any alignment. A thread loads the classes that it will use. */
    __device__ __forceinline__ void load_ragged_columns() const {
#pragma unroll 1
        for (int i = row; i < count; i += kThreads / threads) {
            const Bits *base = (const Bits *)p.logits + start_of_column(i, p.logits_stride);
#pragma unroll 1
            for (int k = rank; k < vectors; k += threads) {
                const Vector<E> x = gathered(base + k * W * p.inner, p.inner, classes - k * W, false, true);
                Shared::store<4>(address(i, k), x.word);
            }
        }
    }
    /* Column i of W vectors, as a vector. */
    DEVICE Vector<E> transposed(const Vector<E> (&x)[W], int i) {
        Vector<E> column;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            if constexpr (sizeof(Bits) == 2)
                column.word[w] =
                    __byte_perm(x[2 * w].word[i / 2], x[2 * w + 1].word[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
            else if constexpr (sizeof(Bits) == 4)
                column.word[w] = x[w].word[i];
            else
                column.word[w] = x[w / 2].word[2 * i + w % 2];
        }
        return column;
    }
    /* Moves columns by vectors of neighbouring ones, W classes of W columns at a time. */
    __device__ __forceinline__ void load_columns() const {
#pragma unroll 1
        for (Position at(rows / W); at.row < vectors; at.advance()) {
            const int column = at.unit * W;
            if (column >= count)
                continue;
            const Bits *base = (const Bits *)p.logits + start_of_column(column, p.logits_stride);
            Vector<E> x[W];
#pragma unroll
            for (int i = 0; i < W; i++) {
                x[i] = filled<E>(loss.padding());
                if (at.row * W + i < classes)
                    x[i] = load_vector<E, kRead_once>(base + (at.row * W + i) * p.inner);
            }
#pragma unroll
            for (int i = 0; i < W; i++)
                Shared::store<4>(address(column + i, at.row), transposed(x, i).word);
        }
    }
    __device__ __forceinline__ void store_columns() const {
#pragma unroll 1
        for (Position at(rows / W); at.row < vectors; at.advance()) {
            const int column = at.unit * W;
            if (column >= count)
                continue;
            Bits *base = (Bits *)p.rows.grad + start_of_column(column, p.rows.grad_stride);
            Vector<E> x[W];
#pragma unroll
            for (int i = 0; i < W; i++)
                Shared::load<4>(address(column + i, at.row), x[i].word);
#pragma unroll
            for (int i = 0; i < W; i++)
                if (at.row * W + i < classes)
                    store_vector<E>(base + (at.row * W + i) * p.inner, transposed(x, i));
        }
    }
    __device__ __forceinline__ void store_rows() const {
        if (is_packed()) {
            move_packed<true>(p.rows.grad);
            return;
        }
        Bits *base = (Bits *)p.rows.grad + first * p.rows.grad_stride;
        if (!is_ragged() && classes % W == 0) {
#pragma unroll 1
            for (Position at(vectors); at.row < count; at.advance()) {
                Vector<E> x;
                Shared::load<4>(address(at.row, at.unit), x.word);
                store_vector<E>(base + at.row * p.rows.grad_stride + at.unit * W, x);
            }
        } else {
#pragma unroll 2
            for (Position at(classes); at.row < count; at.advance())
                base[at.row * p.rows.grad_stride + at.unit] = bits(address(at.row, 0) + at.unit * sizeof(Bits));
        }
    }
    /* Position of a column of the tile in an array with an image each `stride` elements. */
    __device__ __forceinline__ int64_t start_of_column(int column, int64_t stride) const {
        int64_t of_image = image, position = within + column;
        if (position >= p.inner) {
            const int64_t images = (int64_t)((uint64_t)position / (uint64_t)p.inner);
            of_image += images;
            position -= images * p.inner;
        }
        return of_image * stride + position;
    }

    /* ---- a row ---- */

    /* A vector of a row. Its first `left` elements are in the row: all of them if it is whole. */
    template <bool kWhole> struct Side {
        enum { kElements = W };
        const RowThread &of;
        int64_t row;
        int row_in_tile, left;

        __device__ __forceinline__ int64_t first(int k) const { return k * W; }
        __device__ __forceinline__ int count(int) const { return kWhole || left >= W ? (int)W : left; }
        __device__ __forceinline__ bool is_inside(int, int i) const { return kWhole || i < left; }
        enum { kHasPartialVectors = !kWhole };
        DEVICE bool is_staged() { return false; }
        __device__ __forceinline__ int64_t start(int64_t stride) const { return of.start(row_in_tile, stride); }
        /* No assembler leaves out a division that nobody needs. */
        __device__ __forceinline__ int64_t start_of_gradient(int64_t stride) const {
            return writes_tile() ? 0 : start(stride);
        }
        __device__ __forceinline__ Vector<E> load(int k) const {
            const uint32_t at = of.address(row_in_tile, k);
            Vector<E> x;
            if (!is_packed())
                Shared::load<4>(at, x.word);
            else if (kWhole || left >= W)
                x = of.load_packed<true>(at, left);
            else
                x = of.load_packed<false>(at, left);
            return x;
        }
        __device__ __forceinline__ ClassVector<E, kWhole, false> classes(int k) const {
            return {k * W, of.p.inner, 0, left};
        }
        template <class Array> __device__ __forceinline__ void read_staged(const Array &array, int k, N (&y)[W]) const {
            classes(k).read(array, y);
        }
        template <class Array>
        __device__ __forceinline__ void read_of_classes(const Array &array, int k, N (&y)[W]) const {
            classes(k).read_of_classes(array, y);
        }
        __device__ __forceinline__ void write(const Gradients &array, int k, const N (&y)[W]) const {
            if (!writes_tile()) {
                classes(k).write(array, y);
                return;
            }
            Vector<E> x;
            x.fill(y);
            if (is_packed())
                of.store_packed<kWhole>(of.address(row_in_tile, k), left, x);
            else
                Shared::store<4>(of.address(row_in_tile, k), x.word);
        }
        __device__ __forceinline__ void write(const Targets &array, int k, const N (&y)[W]) const {
            classes(k).write(array, y);
        }
    };
    __device__ __forceinline__ int64_t start(int row_in_tile, int64_t stride) const {
        return has_columns() ? start_of_column(row_in_tile, stride) : (first + row_in_tile) * stride;
    }
    /* Class c of a row in memory, from the start of the row on. */
    __device__ __forceinline__ int64_t element(int64_t c) const {
        return has_columns() ? c * p.inner : c;
    }

    /* Adds the vectors of this thread. Their maximum comes first, so that they are one batch. Floats that only add to the
     * softmax raise it as they come, which takes fewer instructions. */
    __device__ __forceinline__ void accumulate_row(int64_t number, int row_in_tile, State &state) const {
        const auto side_of = [&](int k) { return Side<false>{*this, number, row_in_tile, classes - k * W}; };
        const bool is_online = sizeof(N) == 4 && Loss::sums_only() && !Loss::is_uniform();
        auto best = loss.highest_before(state);
        N highest = Loss::lowest();
#pragma unroll 1
        for (int k = rank; k < vectors; k += threads) {
            const Side<false> side = side_of(k);
            Vector<E> x[1] = {side.load(k)};
            if (is_online && Loss::finds_best())
                loss.accumulate_one(state, best, x[0], side, k);
            else if (is_online)
                loss.add_to_sums(state, x, side);
            else
                highest = larger(highest, loss.highest_of(x));
        }
        if (!is_online) {
            loss.raise(state, highest);
            auto batch = loss.batch_of(state);
#pragma unroll 1
            for (int k = rank; k < vectors; k += threads) {
                const Side<false> side = side_of(k);
                const Side<true> whole = {*this, number, row_in_tile, side.left};
                if (side.left >= W)
                    loss.accumulate(state, batch, best, whole.load(k), whole, k);
                else if (sizeof(N) == 4 && Loss::sums_only() && !Loss::finds_best())
#pragma unroll 1
                    for (int i = 0; i < side.left; i++)
                        Loss::accumulate_uniform(
                            batch, E::widen(bits(address(row_in_tile, k) + (uint32_t)(i * (int)sizeof(Bits)))));
                else
                    loss.accumulate(state, batch, best, side.load(k), side, k);
            }
            loss.close(state, batch, rank, vectors, threads, side_of);
        }
        loss.find_best(state, best, rank, vectors, threads, side_of);
    }
    /* All threads call. */
    __device__ __forceinline__ void reduce(State &state) const {
        if (threads == 1)
            return;
        if (has_columns()) {
            const AcrossGroups<kThreads> groups = {kThreads / threads, threads};
            state.reduce(groups);
        } else {
            const UpTo<kLanes> lanes = {threads};
            state.reduce(lanes);
        }
    }
    template <bool kWhole>
    __device__ __forceinline__ void write(const typename Loss::Gradient &g, const Row &r, bool has_gradient,
                                          const Side<kWhole> &side, int k) const {
        if (!has_gradient) {
            loss.write_zeros(side, k);
        } else if (Loss::is_basic() && g.is_fast) {
            N y[W];
            loss.fast_gradients(g, side.load(k), y);
            side.write(Gradients(p.rows.grad, side.start_of_gradient(p.rows.grad_stride)), k, y);
        } else {
            loss.write(g, r, side.load(k), side, k, kNone);
        }
    }
    /* The target's gradient replaces the one that its vector has got as any class. It is written once a row, as almost
     * every vector of a warp has a target in some row. */
    __device__ __forceinline__ void write_target(const typename Loss::Gradient &g, const Row &r, int row_in_tile,
                                                 N logit) const {
        const N y = loss.target_gradient(g, r, logit);
        if (writes_tile())
            put(address(row_in_tile, 0) + (uint32_t)(r.target_class * sizeof(Bits)), E::narrow(y));
        else
            Gradients(p.rows.grad, start(row_in_tile, p.rows.grad_stride)).write(element(r.target_class), y);
    }
    __device__ __forceinline__ void write_row(int64_t number, int row_in_tile, const Row &r, const State &state,
                                              N logit, bool reads) const {
        const typename Loss::Gradient g = loss.gradient(number, r, state);
        const bool has_gradient = reads && !g.is_zero;
#pragma unroll 1
        for (int k = rank; k < vectors; k += threads) {
            const int left = classes - k * W;
            if (left >= W)
                write<true>(g, r, has_gradient, {*this, number, row_in_tile, left}, k);
            else
                write<false>(g, r, has_gradient, {*this, number, row_in_tile, left}, k);
        }
        if (has(GPULOSSI_CE_GRADIENT) && has_gradient && r.target_class >= 0 &&
            (r.target_class / W & (threads - 1)) == rank)
            write_target(g, r, row_in_tile, logit);
    }
    __device__ __forceinline__ RowInput fetch(int row) const {
        return loss.fetch(first + min(row, count - 1));
    }
    __device__ __forceinline__ N target_logit(int row_in_tile, const Row &r) const {
        if (r.target_class < 0)
            return N(0);
        if (has_tile())
            return E::widen(bits(address(row_in_tile, 0) + (uint32_t)(r.target_class * sizeof(Bits))));
        return E::widen(((const Bits *)p.logits)[start(row_in_tile, p.logits_stride) + element(r.target_class)]);
    }
    __device__ __forceinline__ void rows_of_tile(RowInput input, Totals &total) const {
#pragma unroll 1
        for (int i = row; i - row < rows; i += kThreads / threads) {
            const bool is_there = i < count;
            const int64_t number = first + min(i, count - 1);
            const Row r = loss.row_of(input);
            const bool reads = is_there && loss.is_read(r);
            State state = State::empty();
            N logit = N(0);
            input = fetch(i + kThreads / threads);
            if (reads)
                logit = target_logit(i, r);
            if (Loss::reduces() && reads)
                accumulate_row(number, i, state);
            if (Loss::reduces())
                reduce(state);
            if (is_there && rank == 0)
                loss.add(loss.finish(number, r, state, logit), total);
            if (!Loss::writes())
                continue;
            if (threads > 1) /* the others have read the target's logit */
                settle();
            if (is_there)
                write_row(number, i, r, state, logit, reads);
        }
    }
    /* A barrier for the threads of a row. */
    DEVICE void settle() {
        if (has_columns())
            __syncthreads();
        else
            __syncwarp();
    }

    __device__ __forceinline__ void load_tile() const {
        if (!has_columns())
            load_rows();
        else if (is_ragged())
            load_ragged_columns();
        else
            load_columns();
    }
    __device__ __forceinline__ void all_tiles(Totals &total) {
        __shared__ uint32_t next_tile;
        Ahead queue(p.rows.scratch, (p.rows.rows + rows - 1) / rows, blockIdx.x, gridDim.x, 1, 0);
#pragma unroll 1
        while (queue.more()) {
            if (threadIdx.x == 0)
                next_tile = queue.fetch();
            first = (int64_t)queue.after(0) * rows;
            count = (int)min((int64_t)rows, p.rows.rows - first);
            if (has_columns()) {
                image = (int64_t)((uint64_t)first / (uint64_t)p.inner);
                within = first - image * p.inner;
            }
            if (is_packed())
                smem_rows =
                    smem_tile + (uint32_t)(uintptr_t)((const Bits *)p.logits + first * classes) % GPULOSSI_VECTOR_BYTES;
            const RowInput input = fetch(row);
            if (has_tile())
                load_tile();
            __syncthreads();
            queue.advance_to(next_tile);
            rows_of_tile(input, total);
            __syncthreads();
            if (writes_tile()) {
                if (has_columns())
                    store_columns();
                else
                    store_rows();
                __syncthreads();
            }
        }
    }

  public:
    DEVICE void run(const Params &p) {
        __shared__ Totals totals[kThreads]; /* rarely accessed, so not in registers */
        totals[threadIdx.x] = Totals::zero();
        RowThread schedule(p);
        schedule.all_tiles(totals[threadIdx.x]);
        end<kThreads>(schedule.loss, schedule.loss.scratch(), totals);
    }
};

#endif
