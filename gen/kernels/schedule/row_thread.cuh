/* Rows of few classes in tiles of shared memory, with every option: rows of any stride and alignment, and columns, whose
 * classes are not innermost. The host selects this schedule for options and columns from compute capability 7.0 on. One
 * thread has a row, or a few threads share it.
 *
 * In a tile each row begins with a vector, and its last vector is filled with logits that change nothing. The distance
 * of two rows is an odd number of vectors, so that neighbouring rows are in different banks. Before each eighth column
 * there is one vector more, for every second, fourth or eighth column. Packed rows are copied to a tile as they are in
 * memory, and accessed by words there, or by elements of 16 bits if rows are no whole words. As they are no whole
 * vectors, at most two rows that a warp accesses are in one bank. The threads of a block load a tile in the order of
 * memory. Columns are transposed in registers.
 *
 * Target probabilities that lie in memory like the logits follow them in the tile. Gradients replace the logits, or
 * follow if they are of another type. They are stored in the order of memory. */
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
        kLoads = 4,                                /* vectors that a thread has in flight */
        kGathered = sizeof(Bits) == 2 ? 1 : 3,     /* and of a ragged column */
        kBytes = kThreads * GPULOSSI_VECTOR_BYTES, /* of a vector of each thread */
        kNone = -1
    };

    const Params &p;
    Loss loss;
    uint32_t smem_tile;     /* its shared address */
    uint32_t smem_rows;     /* the shared address of its first row */
    int targets_offset;     /* bytes from a logit of the tile to its target probability */
    uint32_t smem_gradient; /* the shared address of its first gradient */
    int gradient_pitch;     /* bytes from the gradient of a row to the next */
    bool is_gradient_even;  /* whether these rows are whole vectors */
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
    /* Whether the tile also has target probabilities, in rows like those of the logits. */
    DEVICE bool has_targets() { return has_format(GPULOSSI_FORMAT_TWO_ARRAYS); }
    /* Whether the gradient replaces the logits of the tile. */
    DEVICE bool writes_tile() {
        return has(GPULOSSI_CE_GRADIENT) && !Gradients::is_other() && !(has_columns() && is_ragged());
    }
    /* Whether the tile also has the gradient, in rows of another type that are whole vectors or contiguous. */
    DEVICE bool stages_gradient() { return has_format(GPULOSSI_FORMAT_STAGED_GRADIENT); }

    __device__ __forceinline__ explicit RowThread(const Params &p)
        : p(p), loss(p), smem_tile(Shared::address(stash_of_block())), smem_rows(smem_tile),
          classes((int)p.rows.classes), vectors((classes + W - 1) / W),
          pitch_bytes(is_packed() ? classes * (int)sizeof(Bits) : (vectors | 1) * GPULOSSI_VECTOR_BYTES),
          rows((int)p.rows.of.tile_rows), threads((int)p.rows.group), first(0), count(0), image(0), within(0) {
        const int groups = kThreads / threads;
        keep(smem_tile);
        targets_offset = (rows * pitch_bytes / GPULOSSI_VECTOR_BYTES + 2) * GPULOSSI_VECTOR_BYTES;
        if (stages_gradient()) {
            gradient_pitch = classes * Gradients::element_bytes();
            const uint32_t bits = (uint32_t)p.rows.grad_stride * (uint32_t)Gradients::element_bytes();
            is_gradient_even = (((uint32_t)p.rows.grad | bits | (uint32_t)gradient_pitch) % GPULOSSI_VECTOR_BYTES) == 0;
            if (is_gradient_even)
                gradient_pitch |= GPULOSSI_VECTOR_BYTES;
        }
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
     * two of 16 bits are a word. */
    __device__ __forceinline__ Vector<E> gathered(const Bits *from, int64_t step, int left, bool by_words) const {
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
            if (i < left)
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
    /* Whether rows of 16 bits consist of words in the tile. */
    DEVICE bool by_words() {
        return sizeof(Bits) == 2 && !(is_packed() && is_ragged());
    }
    /* The vector of packed rows at address `at`. Its first `left` elements are in the row. */
    template <bool kWhole> __device__ __forceinline__ Vector<E> load_packed(uint32_t at, int left) const {
        Vector<E> x = filled<E>(loss.padding());
#pragma unroll
        for (int i = 0; i < W; i++) {
            const uint32_t from = at + i * (int)sizeof(Bits);
            if ((by_words() && i % 2 != 0) || !(kWhole || i < left))
                continue;
            if (by_words())
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
            if ((by_words() && i % 2 != 0) || !(kWhole || i < left))
                continue;
            if (by_words())
                Shared::store(to, x.word[i / 2]);
            else
                put(to, element_of(x, i));
        }
    }
    /* Copies packed rows between the tile and memory by vectors, and by pairs of bytes before and after them. Both begin
     * at the same byte of a vector. */
    template <bool kStores> DEVICE void move_packed(uint64_t first_row, uint32_t smem_first_row, int size) {
        enum { kPairs = GPULOSSI_VECTOR_BYTES / 2 };
        const int head = (int)(smem_first_row % GPULOSSI_VECTOR_BYTES), end = head + size;
        const int vectors = end / GPULOSSI_VECTOR_BYTES;
        char *const base = (char *)first_row - head;
        const uint32_t smem_base = smem_first_row - head;
#pragma unroll 1
        for (int v = (int)threadIdx.x + (head > 0); v < vectors; v += kLoads * kThreads) {
            char *const memory = base + v * GPULOSSI_VECTOR_BYTES;
            const uint32_t smem = smem_base + v * GPULOSSI_VECTOR_BYTES;
            Vector<E> x[kLoads];
#pragma unroll
            for (int i = 0; i < kLoads; i++)
                if (v < vectors - i * kThreads)
                    take<kStores>(x[i], memory + i * kBytes, smem + i * kBytes);
#pragma unroll
            for (int i = 0; i < kLoads && !copies<kStores>(); i++)
                if (v < vectors - i * kThreads)
                    give<kStores>(x[i], memory + i * kBytes, smem + i * kBytes);
        }
        const int i = (int)threadIdx.x;
        const int at = 2 * (i < kPairs ? i : max(vectors, head > 0) * kPairs + i - kPairs);
        if (i < 2 * kPairs && at >= head && at < end && (i >= kPairs || head > 0)) {
            if (kStores)
                *(uint16_t *)(base + at) = Shared::bits<uint16_t>(smem_base + at);
            else
                Shared::store(smem_base + at, *(const uint16_t *)(base + at));
        }
    }
    /* Copies rows of whole vectors between the tile and memory. */
    template <bool kStores>
    __device__ __forceinline__ void move_vectors(uint64_t first_row, int64_t row_bytes, uint32_t smem_first_row,
                                                 int smem_row_bytes, int vectors) const {
        const int row = (int)threadIdx.x / vectors, rows = kThreads / vectors, unit_step = kThreads % vectors;
        const int unit_bytes = unit_step * GPULOSSI_VECTOR_BYTES, whole = vectors * GPULOSSI_VECTOR_BYTES;
        int unit = (int)threadIdx.x % vectors;
        char *memory = (char *)first_row + row * row_bytes + unit * GPULOSSI_VECTOR_BYTES;
        uint32_t smem = smem_first_row + (uint32_t)(row * smem_row_bytes + unit * GPULOSSI_VECTOR_BYTES);
#pragma unroll 1
        for (int left = count * vectors - (int)threadIdx.x; left > 0; left -= kLoads * kThreads) {
            Vector<E> x[kLoads];
            char *of_vector[kLoads];
            uint32_t smem_of_vector[kLoads];
#pragma unroll
            for (int i = 0; i < kLoads; i++) {
                of_vector[i] = memory;
                smem_of_vector[i] = smem;
                if (left > i * kThreads)
                    take<kStores>(x[i], memory, smem);
                unit += unit_step;
                memory += rows * row_bytes + unit_bytes;
                smem += (uint32_t)(rows * smem_row_bytes + unit_bytes);
                if (unit >= vectors) {
                    unit -= vectors;
                    memory += row_bytes - whole;
                    smem += (uint32_t)(smem_row_bytes - whole);
                }
            }
#pragma unroll
            for (int i = 0; i < kLoads && !copies<kStores>(); i++)
                if (left > i * kThreads)
                    give<kStores>(x[i], of_vector[i], smem_of_vector[i]);
        }
    }
    /* Whether vectors are copied without registers. */
    template <bool kStores> DEVICE bool copies() {
        return !kStores && runs_on_sm_80();
    }
    /* Takes a vector from the tile or memory, or copies it. */
    template <bool kStores> DEVICE void take(Vector<E> &x, const char *memory, uint32_t smem) {
        if (kStores)
            Shared::load<4>(smem, x.word);
        else if (copies<kStores>())
            Shared::copy_async(smem, memory);
        else
            x = load_vector<E, kRead_once>(memory);
    }
    template <bool kStores> DEVICE void give(const Vector<E> &x, char *memory, uint32_t smem) {
        if (kStores)
            store_vector<E>((Bits *)memory, x);
        else
            Shared::store<4>(smem, x.word);
    }
    /* Loads rows of an array that has the layout of the logits. */
    __device__ __forceinline__ void load_array(uint64_t array, int64_t stride, int offset) const {
        const int64_t row_bytes = stride * (int)sizeof(Bits);
        if (is_packed())
            move_packed<false>(array + first * pitch_bytes, smem_rows + offset, count * pitch_bytes);
        else
            move_vectors<false>(array + first * row_bytes, row_bytes, smem_tile + offset, pitch_bytes, vectors);
    }
    __device__ __forceinline__ void load_rows() const {
        if (is_packed() || !is_ragged()) {
            load_array(p.logits, p.logits_stride, 0);
            if (has_targets())
                load_array(p.probabilities, p.probabilities_stride, targets_offset);
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
                const int left = at.row < count ? classes - at.unit * W : 0;
                x[i] = gathered(base + at.row * p.logits_stride + at.unit * W, 1, left, by_words);
                to[i] = left > 0 ? address(at.row, at.unit) : 0;
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
            for (int k = rank; k < vectors; k += kGathered * threads) {
                Vector<E> x[kGathered];
#pragma unroll
                for (int j = 0; j < kGathered; j++) {
                    const int at = (k + j * threads) * W;
                    x[j] = gathered(base + at * p.inner, p.inner, classes - at, false);
                }
#pragma unroll
                for (int j = 0; j < kGathered; j++)
                    if (k + j * threads < vectors)
                        Shared::store<4>(address(i, k + j * threads), x[j].word);
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
        const int64_t stride_bytes = p.rows.grad_stride * Gradients::element_bytes();
        const uint64_t first_row = p.rows.grad + first * stride_bytes;
        const uint32_t smem = stages_gradient() ? smem_gradient : smem_rows;
        const int pitch = stages_gradient() ? gradient_pitch : pitch_bytes;
        if (stages_gradient() ? !is_gradient_even : is_packed()) {
            move_packed<true>(p.rows.grad + first * pitch, smem, count * pitch);
        } else if (stages_gradient() || !is_ragged()) {
            move_vectors<true>(first_row, stride_bytes, smem, pitch,
                               classes * Gradients::element_bytes() / GPULOSSI_VECTOR_BYTES);
        } else {
            Bits *base = (Bits *)first_row;
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
        DEVICE bool is_staged() { return has_targets(); }
        __device__ __forceinline__ int64_t start(int64_t stride) const { return of.start(row_in_tile, stride); }
        /* No assembler leaves out a division that nobody needs. */
        __device__ __forceinline__ int64_t start_of_gradient(int64_t stride) const {
            return writes_tile() || stages_gradient() ? 0 : start(stride);
        }
        __device__ __forceinline__ Vector<E> load(int k) const { return load_at(of.address(row_in_tile, k)); }
        __device__ __forceinline__ Vector<E> load_at(uint32_t at) const {
            Vector<E> x;
            if (is_packed())
                x = of.load_packed<kWhole>(at, left);
            else
                Shared::load<4>(at, x.word);
            return x;
        }
        __device__ __forceinline__ ClassVector<E, kWhole, false> classes(int k) const {
            return {k * W, of.p.inner, 0, left};
        }
        template <class Array> __device__ __forceinline__ void read_staged(const Array &array, int k, N (&y)[W]) const {
            if (!has_targets()) {
                classes(k).read(array, y);
                return;
            }
            load_at(of.address(row_in_tile, k) + of.targets_offset).unpack(y);
#pragma unroll
            for (int i = 0; i < W; i++)
                y[i] = is_inside(k, i) ? y[i] : N(0);
        }
        template <class Array>
        __device__ __forceinline__ void read_of_classes(const Array &array, int k, N (&y)[W]) const {
            classes(k).read_of_classes(array, y);
        }
        __device__ __forceinline__ void write(const Gradients &array, int k, const N (&y)[W]) const {
            if (stages_gradient()) {
                of.stage_gradient(row_in_tile, k * W, y, count(k));
                return;
            }
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
    /* Writes `count` elements of the gradient from class c on to the tile. */
    __device__ __forceinline__ void stage_gradient(int row_in_tile, int c, const N (&y)[W], int count) const {
        Gradients::write_shared(smem_gradient +
                                    (uint32_t)(row_in_tile * gradient_pitch + c * Gradients::element_bytes()),
                                y, count, is_gradient_even && count == W);
    }
    __device__ __forceinline__ int64_t start(int row_in_tile, int64_t stride) const {
        return has_columns() ? start_of_column(row_in_tile, stride) : (first + row_in_tile) * stride;
    }
    /* Class c of a row in memory, from the start of the row on. */
    __device__ __forceinline__ int64_t element(int64_t c) const {
        return has_columns() ? c * p.inner : c;
    }

    /* Whether the last vector of a row may be partial. */
    DEVICE bool may_have_tail() {
        return is_packed() || is_ragged() || has_columns();
    }
    /* Whether a thread adds the elements of a partial vector one by one. */
    DEVICE bool adds_elements() {
        return sizeof(N) == 4 && Loss::sums_only() && !Loss::finds_best();
    }
    __device__ __forceinline__ int whole_vectors() const {
        return may_have_tail() ? classes / W : vectors;
    }

    /* Adds the first `left` elements of a vector to a batch of a basic loss. */
    __device__ __forceinline__ void accumulate_elements(typename Loss::Batch &batch, uint32_t at, int left) const {
#pragma unroll 1
        for (int i = 0; i < left; i += by_words() ? 2 : 1) {
            const uint32_t from = at + (uint32_t)(i * (int)sizeof(Bits));
            Vector<E> x = {};
            if (by_words())
                x.word[0] = Shared::bits<uint32_t>(from);
            else
                set(x, 0, bits(from));
            Loss::accumulate_uniform(batch, x.get(0));
            if (by_words() && i + 1 < left)
                Loss::accumulate_uniform(batch, x.get(1));
        }
    }
    /* Adds the vectors of this thread. Their maximum comes first, so that they are one batch. Floats that only add to the
     * softmax raise it as they come, which takes fewer instructions. */
    __device__ __forceinline__ void accumulate_row(int64_t number, int row_in_tile, State &state) const {
        const auto side_of = [&](int k) { return Side<false>{*this, number, row_in_tile, classes - k * W}; };
        const Side<true> whole = {*this, number, row_in_tile, W};
        const bool is_online = sizeof(N) == 4 && Loss::sums_only() && !Loss::is_uniform();
        auto best = loss.highest_before(state);
        N highest = Loss::lowest();
        const auto see = [&](const Vector<E> &vector, int k) {
            Vector<E> x[1] = {vector};
            if (is_online && Loss::finds_best())
                loss.accumulate_one(state, best, x[0], side_of(k), k);
            else if (is_online)
                loss.add_to_sums(state, x, side_of(k));
            else
                highest = larger(highest, loss.highest_of(x));
        };
        int k = rank;
#pragma unroll 1
        for (; k < whole_vectors(); k += threads)
            see(whole.load(k), k);
        if (may_have_tail() && k < vectors)
            see(side_of(k).load(k), k);
        if (!is_online) {
            loss.raise(state, highest);
            auto batch = loss.batch_of(state);
#pragma unroll 1
            for (k = rank; k < whole_vectors(); k += threads)
                loss.accumulate(state, batch, best, whole.load(k), whole, k);
            if (may_have_tail() && k < vectors) {
                if (adds_elements())
                    accumulate_elements(batch, address(row_in_tile, k), classes - k * W);
                else
                    loss.accumulate(state, batch, best, side_of(k).load(k), side_of(k), k);
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
            const SomeLanes lanes = {threads};
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
        else if (stages_gradient())
            stage_gradient(row_in_tile, r.target_class, {y}, 1);
        else
            Gradients(p.rows.grad, start(row_in_tile, p.rows.grad_stride)).write(element(r.target_class), y);
    }
    __device__ __forceinline__ void write_row(int64_t number, int row_in_tile, const Row &r, const State &state,
                                              N logit, bool reads) const {
        const typename Loss::Gradient g = loss.gradient(number, r, state);
        const bool has_gradient = reads && !g.is_zero;
        int k = rank;
#pragma unroll 1
        for (; k < whole_vectors(); k += threads)
            write<true>(g, r, has_gradient, {*this, number, row_in_tile, W}, k);
        if (may_have_tail() && k < vectors)
            write<false>(g, r, has_gradient, {*this, number, row_in_tile, classes - k * W}, k);
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
                smem_rows = smem_tile + (uint32_t)(p.logits + first * pitch_bytes) % GPULOSSI_VECTOR_BYTES;
            if (stages_gradient()) {
                smem_gradient = smem_tile + (1 + has_targets()) * targets_offset;
                if (!is_gradient_even)
                    smem_gradient += (uint32_t)(p.rows.grad + first * gradient_pitch) % GPULOSSI_VECTOR_BYTES;
            }
            const RowInput input = fetch(row);
            if (has_tile())
                load_tile();
            if (runs_on_sm_80())
                Shared::wait_for_copies();
            __syncthreads();
            rows_of_tile(input, total);
            queue.advance_to(next_tile);
            __syncthreads();
            if (writes_tile() || stages_gradient()) {
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
