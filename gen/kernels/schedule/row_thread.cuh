/* Rows of few classes in tiles of shared memory, with every option: rows of any stride and alignment, and columns,
 * whose classes are not innermost. The host selects this schedule for options and columns from compute capability 7.0
 * on. One thread has a row, or a few threads share it.
 *
 * In a tile each row begins with a vector, and its last vector is filled with logits that change nothing. The distance
 * of two rows is an odd number of vectors, so that neighbouring rows are in different banks. Packed rows are copied to
 * a tile as they are in memory, and accessed by words there. Rows that are no whole words are accessed by elements of
 * 16 bits if an option needs vectors. As packed rows are no whole vectors, at most two rows that a warp accesses are in
 * one bank. In a tile of columns the elements of a class follow each other, like in memory, so that a warp accesses
 * neighbouring ones. The threads of a block load a tile in the order of memory.
 *
 * Target probabilities that lie in memory like the logits follow them in the tile, and so do floats beside logits of 16
 * bits. Gradients replace the logits, or follow if they are of another type. They are stored in the order of memory. */
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
        kGathered = 8,                             /* elements of ragged columns that a thread has in flight */
        kBytes = kThreads * GPULOSSI_VECTOR_BYTES, /* of a vector of each thread */
        kNone = -1
    };

    const Params &p;
    Loss loss;
    uint32_t smem_tile;     /* its shared address */
    uint32_t smem_rows;     /* the shared address of its first row */
    int targets_offset;     /* bytes from a logit of the tile to its target probability, or to the floats */
    uint32_t smem_targets;  /* the shared address of its first float target probability */
    int targets_pitch;      /* bytes from the float target probabilities of a row to the next */
    bool are_targets_even;  /* whether these rows are whole vectors */
    uint32_t smem_gradient; /* the shared address of its first gradient */
    int gradient_pitch;     /* bytes from the gradient of a row to the next */
    bool is_gradient_even;  /* whether these rows are whole vectors */
    int classes;
    int vectors;           /* of a row */
    int rows;              /* of a tile */
    int pitch_bytes;       /* from one row of the tile to the next, or from one class of columns */
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
    /* Whether these are floats and the logits have 16 bits. Their rows are whole vectors or contiguous. */
    DEVICE bool has_float_targets() { return sizeof(Bits) == 2 && has_format(GPULOSSI_FORMAT_FLOAT_TARGETS); }
    /* Whether the gradient replaces the logits of the tile. */
    DEVICE bool writes_tile() {
        return has(GPULOSSI_CE_GRADIENT) && !Gradients::is_other() && !(has_columns() && is_ragged());
    }
    /* Whether the tile also has the gradient, in rows of another type that are whole vectors or contiguous. */
    DEVICE bool stages_gradient() { return has_format(GPULOSSI_FORMAT_STAGED_GRADIENT); }

    __device__ __forceinline__ explicit RowThread(const Params &p)
        : p(p), loss(p), smem_tile(Shared::address(stash_of_block())), smem_rows(smem_tile),
          classes((int)p.rows.classes), vectors((classes + W - 1) / W), rows((int)p.rows.of.tile_rows),
          pitch_bytes(has_columns() ? rows * (int)sizeof(Bits)
                      : is_packed() ? classes * (int)sizeof(Bits)
                                    : (vectors | 1) * GPULOSSI_VECTOR_BYTES),
          threads((int)p.rows.group), first(0), count(0), image(0), within(0) {
        const int groups = kThreads / threads;
        keep(smem_tile);
        targets_offset = aligned(rows * pitch_bytes);
        if (has_float_targets())
            targets_pitch = pitch_of(p.probabilities, p.probabilities_stride, 4, are_targets_even);
        if (stages_gradient())
            gradient_pitch = pitch_of(p.rows.grad, p.rows.grad_stride, Gradients::element_bytes(), is_gradient_even);
        row = has_columns() ? (int)threadIdx.x % groups : (int)threadIdx.x / threads;
        rank = has_columns() ? (int)threadIdx.x / groups : (int)threadIdx.x % threads;
    }

    /* The bytes of an array in the tile, which may begin within a vector. */
    DEVICE int aligned(int bytes) { return (bytes / GPULOSSI_VECTOR_BYTES + 2) * GPULOSSI_VECTOR_BYTES; }
    /* Bytes from a row of another type in the tile to the next. `is_even`: rows are whole vectors in memory, too. */
    __device__ __forceinline__ int pitch_of(uint64_t array, int64_t stride, int element_bytes, bool &is_even) const {
        const int bytes = classes * element_bytes;
        is_even =
            ((uint32_t)array | (uint32_t)stride * (uint32_t)element_bytes | (uint32_t)bytes) % GPULOSSI_VECTOR_BYTES ==
            0;
        return is_even ? bytes | GPULOSSI_VECTOR_BYTES : bytes;
    }

    /* ---- the tile ---- */

    /* The shared address of class c of a row. */
    __device__ __forceinline__ uint32_t address(int row, int c) const {
        if (has_columns())
            return smem_tile + (uint32_t)(c * pitch_bytes + row * (int)sizeof(Bits));
        return (is_packed() ? smem_rows : smem_tile) + (uint32_t)(row * pitch_bytes + c * (int)sizeof(Bits));
    }
    /* Bytes from one class of a row of the tile to the next. */
    __device__ __forceinline__ int class_bytes() const { return has_columns() ? pitch_bytes : (int)sizeof(Bits); }
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
    /* The vector of `left` or more elements. `by_words`: each two of 16 bits are a word. */
    __device__ __forceinline__ Vector<E> gathered(const Bits *from, int left, bool by_words) const {
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
                set(x, i, from[i]);
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
    /* Whether packed rows of 16 bits consist of words. */
    DEVICE bool by_words() {
        return sizeof(Bits) == 2 && is_packed() && !is_ragged();
    }
    /* The vector of packed rows or columns at address `at`. Its first `left` elements are in the row. */
    template <bool kWhole> __device__ __forceinline__ Vector<E> load_elements(uint32_t at, int left) const {
        Vector<E> x = filled<E>(loss.padding());
#pragma unroll
        for (int i = 0; i < W; i++) {
            const uint32_t from = at + i * class_bytes();
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
    __device__ __forceinline__ void store_elements(uint32_t at, int left, const Vector<E> &x) const {
#pragma unroll
        for (int i = 0; i < W; i++) {
            const uint32_t to = at + i * class_bytes();
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
    __device__ __forceinline__ void load_float_targets() const {
        const int64_t row_bytes = p.probabilities_stride * 4;
        if (are_targets_even)
            move_vectors<false>(p.probabilities + first * row_bytes, row_bytes, smem_targets, targets_pitch,
                                classes / 4);
        else
            move_packed<false>(p.probabilities + first * targets_pitch, smem_targets, count * targets_pitch);
    }
    __device__ __forceinline__ void load_rows() const {
        if (has_float_targets())
            load_float_targets();
        if (is_packed() || !is_ragged()) {
            load_array(p.logits, p.logits_stride, 0);
            if (has_targets() && !has_float_targets())
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
                x[i] = gathered(base + at.row * p.logits_stride + at.unit * W, left, by_words);
                to[i] = left > 0 ? address(at.row, at.unit * W) : 0;
            }
#pragma unroll
            for (int i = 0; i < kLoads; i++)
                if (to[i] != 0)
                    Shared::store<4>(to[i], x[i].word);
        }
    }
    /* Columns of any alignment. A thread loads the classes of its columns, for which neighbours have neighbouring
     * addresses. The last column is loaded twice if a pair needs it. */
    __device__ __forceinline__ void load_ragged_columns() const {
        const int64_t step_bytes = threads * p.inner * (int)sizeof(Bits);
        const uint32_t smem_step = (uint32_t)(threads * pitch_bytes);
#pragma unroll 1
        for (int i = row; i < count + (adds_pairs() ? count % 2 : 0); i += kThreads / threads) {
            const int64_t start = start_of_column(min(i, count - 1), p.logits_stride);
            const char *memory = (const char *)((const Bits *)p.logits + start + rank * p.inner);
            uint32_t smem = address(i, rank);
#pragma unroll 1
            for (int left = classes - rank; left > 0; left -= kGathered * threads) {
                Bits x[kGathered];
#pragma unroll
                for (int j = 0; j < kGathered; j++, memory += step_bytes)
                    if (left > j * threads)
                        x[j] = *(const Bits *)memory;
#pragma unroll
                for (int j = 0; j < kGathered; j++, smem += smem_step)
                    if (left > j * threads)
                        put(smem, x[j]);
            }
        }
    }
    /* Copies columns between the tile and memory by vectors of neighbouring ones. */
    template <bool kStores> __device__ __forceinline__ void move_columns(uint64_t array, int64_t stride) const {
        const int units = rows / W, at_once = min(units, (int)kThreads), step = kThreads / at_once;
        const int64_t class_bytes = p.inner * (int)sizeof(Bits), step_bytes = step * class_bytes;
        const uint32_t smem_step = (uint32_t)(step * pitch_bytes);
        const int first_class = (int)threadIdx.x / at_once;
#pragma unroll 1
        for (int unit = (int)threadIdx.x % at_once; unit * W < count && first_class < step; unit += at_once) {
            char *memory =
                (char *)array + start_of_column(unit * W, stride) * (int)sizeof(Bits) + first_class * class_bytes;
            uint32_t smem = address(unit * W, first_class);
#pragma unroll 1
            for (int left = classes - first_class; left > 0; left -= kLoads * step) {
                Vector<E> x[kLoads];
                char *of_vector = memory;
                uint32_t smem_of_vector = smem;
#pragma unroll
                for (int i = 0; i < kLoads; i++, memory += step_bytes, smem += smem_step)
                    if (left > i * step)
                        take<kStores>(x[i], memory, smem);
#pragma unroll
                for (int i = 0; i < kLoads && !copies<kStores>();
                     i++, of_vector += step_bytes, smem_of_vector += smem_step)
                    if (left > i * step)
                        give<kStores>(x[i], of_vector, smem_of_vector);
            }
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
                base[at.row * p.rows.grad_stride + at.unit] = bits(address(at.row, at.unit));
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

    /* A vector of a row. Its first `left` elements are in the row: all of them if it is whole. Vector k begins with
     * class k W + shift. */
    template <bool kWhole> struct Side {
        enum { kElements = W };
        const RowThread &of;
        int64_t row;
        int row_in_tile, left;
        int shift = 0;

        __device__ __forceinline__ int64_t first(int k) const { return k * W + shift; }
        __device__ __forceinline__ int count(int) const { return kWhole || left >= W ? (int)W : left; }
        __device__ __forceinline__ bool is_inside(int, int i) const { return kWhole || i < left; }
        enum { kHasPartialVectors = !kWhole };
        DEVICE bool is_staged() { return has_targets(); }
        __device__ __forceinline__ int64_t start(int64_t stride) const { return of.start(row_in_tile, stride); }
        /* No assembler leaves out a division that nobody needs. */
        __device__ __forceinline__ int64_t start_of_gradient(int64_t stride) const {
            return writes_tile() || stages_gradient() ? 0 : start(stride);
        }
        __device__ __forceinline__ Vector<E> load(int k) const {
            return load_at(of.address(row_in_tile, (int)first(k)));
        }
        __device__ __forceinline__ Vector<E> load_at(uint32_t at) const {
            Vector<E> x;
            if (is_packed() || has_columns())
                x = of.load_elements<kWhole>(at, left);
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
            if (has_float_targets())
                of.read_floats(row_in_tile, (int)first(k), count(k), y);
            else
                load_at(of.address(row_in_tile, (int)first(k)) + of.targets_offset).unpack(y);
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
            if (is_packed() || has_columns())
                of.store_elements<kWhole>(of.address(row_in_tile, k * W), left, x);
            else
                Shared::store<4>(of.address(row_in_tile, k * W), x.word);
        }
        __device__ __forceinline__ void write(const Targets &array, int k, const N (&y)[W]) const {
            classes(k).write(array, y);
        }
    };
    /* Reads `count` float target probabilities from class c on. */
    __device__ __forceinline__ void read_floats(int row_in_tile, int c, int count, N (&y)[W]) const {
        const uint32_t at = smem_targets + (uint32_t)(row_in_tile * targets_pitch + c * 4);
        if (are_targets_even && count == W) {
            Targets::read_shared(at, y);
            return;
        }
#pragma unroll
        for (int i = 0; i < W; i++)
            if (i < count)
                y[i] = __uint_as_float(Shared::bits<uint32_t>(at + 4 * i));
    }
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
    /* Whether a thread adds whole vectors, and the elements before and after them one by one. */
    DEVICE bool adds_elements() {
        return sizeof(N) == 4 && Loss::sums_only() && !Loss::finds_best();
    }
    __device__ __forceinline__ int whole_vectors() const {
        return may_have_tail() ? classes / W : vectors;
    }
    /* The classes of a row before its first whole word. */
    DEVICE bool may_have_head() {
        return sizeof(Bits) == 2 && is_packed() && is_ragged();
    }
    __device__ __forceinline__ int head_of(int row_in_tile) const {
        return may_have_head() ? (int)(address(row_in_tile, 0) / sizeof(Bits) % 2) : 0;
    }
    /* Calls use_vector(at) with the whole vectors of this thread, and use_elements(at, n) with its other elements. `at`
     * is a shared address. Vectors begin with a word: packed rows are no whole vectors, so their number is the same
     * after an odd element. */
    template <class UseVector, class UseElements>
    __device__ __forceinline__ void each(int row_in_tile, const UseVector &use_vector,
                                         const UseElements &use_elements) const {
        const int head = head_of(row_in_tile);
        const int vector_bytes = W * class_bytes();
        const uint32_t first = address(row_in_tile, head), end = first + (uint32_t)(whole_vectors() * vector_bytes);
        uint32_t at = first + (uint32_t)(rank * vector_bytes);
        if (head > 0 && rank == 0)
            use_elements(address(row_in_tile, 0), 1);
#pragma unroll 1
        for (; at < end; at += (uint32_t)(threads * vector_bytes))
            use_vector(at);
        if (may_have_tail() && at == end)
            use_elements(at, classes % W - head);
    }
    __device__ __forceinline__ Vector<E> load_words(uint32_t at) const {
        Vector<E> x;
        if (has_columns())
            return load_elements<true>(at, W);
        if (is_packed())
#pragma unroll
            for (int i = 0; i < 4; i++)
                x.word[i] = Shared::bits<uint32_t>(at + 4 * i);
        else
            Shared::load<4>(at, x.word);
        return x;
    }
    /* Calls use(x) with n elements of a row. */
    template <class Use> __device__ __forceinline__ void each_element(uint32_t at, int n, const Use &use) const {
        enum { kElements = Words<E>::kElements };
        if (has_columns()) {
#pragma unroll 1
            for (; n > 0; n--, at += (uint32_t)pitch_bytes)
                use(E::widen(bits(at)));
            return;
        }
#pragma unroll 1
        for (; n >= kElements; n -= kElements, at += 4) {
            const uint32_t word = Shared::bits<uint32_t>(at);
#pragma unroll
            for (int i = 0; i < kElements; i++)
                use(Words<E>::get(word, i));
        }
        if (kElements > 1 && n > 0)
            use(E::widen(bits(at)));
    }
    __device__ __forceinline__ void store_words(uint32_t at, const Vector<E> &x) const {
        if (has_columns()) {
            store_elements<true>(at, W, x);
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            Shared::store(at + 4 * i, x.word[i]);
    }
    /* Replaces n elements of a row by get(x). */
    template <class Get> __device__ __forceinline__ void replace_elements(uint32_t at, int n, const Get &get) const {
        enum { kElements = Words<E>::kElements };
        if (has_columns()) {
#pragma unroll 1
            for (; n > 0; n--, at += (uint32_t)pitch_bytes)
                put(at, E::narrow(get(E::widen(bits(at)))));
            return;
        }
#pragma unroll 1
        for (; n >= kElements; n -= kElements, at += 4) {
            const uint32_t word = Shared::bits<uint32_t>(at);
            N y[kElements];
#pragma unroll
            for (int i = 0; i < kElements; i++)
                y[i] = get(Words<E>::get(word, i));
            Shared::store(at, Words<E>::pack(y));
        }
        if (kElements > 1 && n > 0)
            put(at, E::narrow(get(E::widen(bits(at)))));
    }

    /* accumulate_row() of a basic loss. */
    __device__ __forceinline__ void accumulate_words(int64_t number, int row_in_tile, State &state) const {
        N highest = Loss::lowest();
        each(
            row_in_tile, [&](uint32_t at) { highest = larger(highest, loss.highest_of({load_words(at)})); },
            [&](uint32_t at, int n) { each_element(at, n, [&](N x) { highest = larger(highest, x); }); });
        state.softmax.max = highest;
        auto batch = loss.batch_of(state);
        auto best = loss.highest_before(state);
        const Side<true> whole = {*this, number, row_in_tile, W};
        each(
            row_in_tile, [&](uint32_t at) { loss.accumulate(state, batch, best, load_words(at), whole, 0); },
            [&](uint32_t at, int n) {
                each_element(at, n, [&](N x) { Loss::accumulate_basic(batch, x); });
                if (Loss::has_soft())
                    batch.shapes += (N)n;
            });
        const int head = head_of(row_in_tile);
        loss.close(state, batch, head > 0 && rank == 0 ? -threads : rank, vectors, threads, [&](int k) {
            const int shift = k < 0 ? threads * (int)W : head;
            return Side<false>{*this, number, row_in_tile, k < 0 ? 1 : classes - k * W - shift, shift};
        });
    }
    /* Whether a thread adds two columns of 16 bits at a time, whose elements of a class are a word. */
    DEVICE bool adds_pairs() {
        return sizeof(Bits) == 2 && has_columns() && adds_elements();
    }
    /* Calls use(word) with the classes of this thread of a column and the next one. */
    template <class Use> __device__ __forceinline__ void each_word(int row_in_tile, const Use &use) const {
        each(
            row_in_tile,
            [&](uint32_t at) {
#pragma unroll
                for (int i = 0; i < W; i++)
                    use(Shared::bits<uint32_t>(at + (uint32_t)(i * pitch_bytes)));
            },
            [&](uint32_t at, int n) {
#pragma unroll 1
                for (; n > 0; n--, at += (uint32_t)pitch_bytes)
                    use(Shared::bits<uint32_t>(at));
            });
    }
    /* accumulate_words() of a column and the next one. */
    __device__ __forceinline__ void accumulate_pair(int row_in_tile, State (&state)[2]) const {
        typedef Words<E> Pair;
        N highest[2] = {Loss::lowest(), Loss::lowest()};
        if (runs_on_sm_80()) {
            uint32_t of_pair = Pair::none();
            each_word(row_in_tile, [&](uint32_t word) { of_pair = Pair::larger_of(of_pair, word); });
            highest[0] = Pair::get(of_pair, 0);
            highest[1] = Pair::get(of_pair, 1);
        } else {
            each_word(row_in_tile, [&](uint32_t word) {
                highest[0] = larger(highest[0], Pair::get(word, 0));
                highest[1] = larger(highest[1], Pair::get(word, 1));
            });
        }
        state[0].softmax.max = highest[0];
        state[1].softmax.max = highest[1];
        typename Loss::Batch batch[2] = {loss.batch_of(state[0]), loss.batch_of(state[1])};
        int counted = 0;
        each_word(row_in_tile, [&](uint32_t word) {
            Loss::accumulate_basic(batch[0], Pair::get(word, 0));
            Loss::accumulate_basic(batch[1], Pair::get(word, 1));
            counted++;
        });
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (Loss::has_soft())
                batch[i].shapes = (N)counted;
            loss.close(state[i], batch[i], rank, vectors, threads, [&](int k) {
                return Side<false>{*this, 0, row_in_tile + i, classes - k * W};
            });
        }
    }
    /* Adds the vectors of this thread. Their maximum comes first, so that they are one batch. Floats that add to the
     * softmax and find the class of the maximum raise it as they come, which takes fewer instructions. */
    __device__ __forceinline__ void accumulate_row(int64_t number, int row_in_tile, State &state) const {
        if constexpr (sizeof(N) == 4)
            if (adds_elements()) {
                accumulate_words(number, row_in_tile, state);
                return;
            }
        const auto side_of = [&](int k) { return Side<false>{*this, number, row_in_tile, classes - k * W}; };
        const Side<true> whole = {*this, number, row_in_tile, W};
        const bool is_online = sizeof(N) == 4 && Loss::sums_only() && !Loss::is_uniform();
        auto best = loss.highest_before(state);
        N highest = Loss::lowest();
        const auto see = [&](const Vector<E> &x, int k) {
            if (is_online)
                loss.accumulate_one(state, best, x, side_of(k), k);
            else
                highest = larger(highest, loss.highest_of({x}));
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
            if (may_have_tail() && k < vectors)
                loss.accumulate(state, batch, best, side_of(k).load(k), side_of(k), k);
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
            put(address(row_in_tile, (int)r.target_class), E::narrow(y));
        else if (stages_gradient())
            stage_gradient(row_in_tile, r.target_class, {y}, 1);
        else
            Gradients(p.rows.grad, start(row_in_tile, p.rows.grad_stride)).write(element(r.target_class), y);
    }
    __device__ __forceinline__ void write_row(int64_t number, int row_in_tile, const Row &r, const State &state,
                                              N logit, bool reads) const {
        const typename Loss::Gradient g = loss.gradient(number, r, state);
        const bool has_gradient = reads && !g.is_zero;
        int head = 0;
        bool is_written = false;
        if constexpr (sizeof(N) == 4)
            if (Loss::is_basic() && (is_packed() || has_columns()) && writes_tile() && has_gradient && g.is_fast) {
                is_written = true;
                head = head_of(row_in_tile);
                each(
                    row_in_tile,
                    [&](uint32_t at) {
                        N y[W];
                        Vector<E> x;
                        loss.fast_gradients(g, load_words(at), y);
                        x.fill(y);
                        store_words(at, x);
                    },
                    [&](uint32_t at, int n) {
                        replace_elements(at, n, [&](N x) { return loss.fast_gradient(g, x); });
                    });
            }
        if (!is_written) {
            int k = rank;
#pragma unroll 1
            for (; k < whole_vectors(); k += threads)
                write<true>(g, r, has_gradient, {*this, number, row_in_tile, W}, k);
            if (may_have_tail() && k < vectors)
                write<false>(g, r, has_gradient, {*this, number, row_in_tile, classes - k * W}, k);
        }
        if (has(GPULOSSI_CE_GRADIENT) && has_gradient && r.target_class >= 0 &&
            ((r.target_class - head) / W & (threads - 1)) == rank)
            write_target(g, r, row_in_tile, logit);
    }
    __device__ __forceinline__ RowInput fetch(int row) const {
        return loss.fetch(first + min(row, count - 1));
    }
    __device__ __forceinline__ N target_logit(int row_in_tile, const Row &r) const {
        if (r.target_class < 0)
            return N(0);
        if (has_tile())
            return E::widen(bits(address(row_in_tile, (int)r.target_class)));
        return E::widen(((const Bits *)p.logits)[start(row_in_tile, p.logits_stride) + element(r.target_class)]);
    }
    /* All threads call. `next` is the row after row i. */
    __device__ __forceinline__ void one_row(int i, int next, RowInput &input, State &state, Totals &total) const {
        const bool is_there = i < count;
        const int64_t number = first + min(i, count - 1);
        const Row r = loss.row_of(input);
        const bool reads = is_there && loss.is_read(r);
        N logit = N(0);
        input = fetch(next);
        if (reads)
            logit = target_logit(i, r);
        if (Loss::reduces() && reads && !adds_pairs())
            accumulate_row(number, i, state);
        if (Loss::reduces())
            reduce(state);
        if (is_there && rank == 0)
            loss.add(loss.finish(number, r, state, logit), total);
        if (!Loss::writes())
            return;
        if (threads > 1) /* the others have read the target's logit */
            settle();
        if (is_there)
            write_row(number, i, r, state, logit, reads);
    }
    __device__ __forceinline__ void rows_of_tile(RowInput input, Totals &total) const {
        const int at_once = adds_pairs() ? 2 : 1, step = at_once * kThreads / threads;
#pragma unroll 1
        for (int i = row * at_once; i - row * at_once < rows; i += step) {
            State states[2] = {State::empty(), State::empty()};
            if constexpr (sizeof(Bits) == 2)
                if (Loss::reduces() && adds_pairs() && i < count)
                    accumulate_pair(i, states);
#pragma unroll 1
            for (int k = 0;; k++) {
                one_row(i + k, adds_pairs() && k == 0 ? i + 1 : i + step, input, states[0], total);
                if (!adds_pairs() || k > 0) /* for ptxas, so that a row is not in a loop */
                    break;
                states[0] = states[1];
            }
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
            move_columns<false>(p.logits, p.logits_stride);
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
            if (has_float_targets()) {
                smem_targets = smem_tile + targets_offset;
                if (!are_targets_even)
                    smem_targets += (uint32_t)(p.probabilities + first * targets_pitch) % GPULOSSI_VECTOR_BYTES;
            }
            if (stages_gradient()) {
                smem_gradient = has_float_targets() ? smem_tile + targets_offset + aligned(rows * targets_pitch)
                                                    : smem_tile + (1 + has_targets()) * targets_offset;
                if (!is_gradient_even)
                    smem_gradient += (uint32_t)(p.rows.grad + first * gradient_pitch) % GPULOSSI_VECTOR_BYTES;
            }
            const RowInput input = fetch(adds_pairs() ? 2 * row : row);
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
                    move_columns<true>(p.rows.grad, p.rows.grad_stride);
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
