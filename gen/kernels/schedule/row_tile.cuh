/* A tile of rows or columns in shared memory, its layout, and the copies between it and memory.
 *
 * In a tile each row begins with a vector, and its last vector is filled with logits that change nothing. The distance
 * of two rows is an odd number of vectors, so that neighbouring rows are in different banks. Packed rows are copied to
 * a tile as they are in memory. In a tile of columns the elements of a class follow each other, like in memory, so that a
 * warp accesses neighbouring ones. The threads of a block load a tile in the order of memory.
 *
 * Target probabilities that lie in memory like the logits follow them in the tile, and so do floats beside logits of 16
 * bits. Columns have their target probabilities in the tile if a column needs no more threads then. Gradients replace
 * the logits, or follow if they are of another type. They are stored in the order of memory. */
#ifndef GPULOSSI_ROW_TILE_CUH
#define GPULOSSI_ROW_TILE_CUH

#include "../device/tile_copies.cuh"
#include "../device/tile_scheduler.cuh"
#include "class_vector.cuh"

template <class Loss> class RowTile {
  protected:
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
    typedef TileCopies<E> Copies;
    enum { W = Width<E>::value, kThreads = GPULOSSI_TILE_THREADS, kLoads = TileCopies<E>::kLoads, kNone = -1 };

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
    int threads;           /* number of threads that share a row */
    int rank;              /* of this thread in its row's threads */
    int row;               /* first row of this thread in a tile */
    int64_t first;         /* row of the launch that is the first one of the tile */
    int count;             /* rows of the tile that are there */
    int64_t image, within; /* of the first column of the tile: its image, and its position there */

    /* Whether the rows of the arrays in the tile are contiguous, and alike in their alignment. */
    DEVICE bool is_packed() { return has_format(GPULOSSI_FORMAT_PACKED); }
    DEVICE bool is_ragged() { return has_format(GPULOSSI_FORMAT_RAGGED); }
    DEVICE bool has_one_thread() { return has_format(GPULOSSI_FORMAT_ONE_THREAD); }
    /* Whether more than the target's logit is read. */
    DEVICE bool has_tile() { return Loss::reduces() || Loss::writes(); }
    /* Whether the tile also has target probabilities, in rows like the logits. */
    DEVICE bool has_targets() { return has_format(GPULOSSI_FORMAT_TWO_ARRAYS); }
    /* Whether these are floats and the logits have 16 bits. Their rows are whole vectors or contiguous. */
    DEVICE bool has_float_targets() { return sizeof(Bits) == 2 && has_format(GPULOSSI_FORMAT_FLOAT_TARGETS); }
    /* Whether the gradient replaces the logits of the tile. */
    DEVICE bool writes_tile() { return has(GPULOSSI_CE_GRADIENT) && !Gradients::is_other(); }
    /* Whether the tile also has the gradient, in rows of another type that are whole vectors or contiguous. */
    DEVICE bool stages_gradient() { return has_format(GPULOSSI_FORMAT_STAGED_GRADIENT); }

    /* Whether a thread adds whole vectors, and the elements before and after them one by one. */
    DEVICE bool adds_elements() {
        return sizeof(N) == 4 && (Loss::sums_only() || adds_shapes()) && !Loss::finds_best();
    }
    /* Whether it does so with shapes that the classes of packed rows have. */
    DEVICE bool adds_shapes() {
        return Loss::adds_shapes() && is_packed() && (has_targets() || !has(GPULOSSI_CE_PROBABILITIES));
    }
    /* Whether a thread adds two columns of 16 bits at a time, whose elements of a class are a word. */
    DEVICE bool adds_pairs() { return sizeof(Bits) == 2 && has_columns() && adds_elements(); }

    __device__ __forceinline__ explicit RowTile(const Params &p)
        : p(p), loss(p), smem_tile(Shared::address(stash_of_block())), smem_rows(smem_tile),
          classes((int)p.rows.classes), vectors((classes + W - 1) / W), rows((int)p.rows.of.tile_rows),
          pitch_bytes(has_columns() ? rows * (int)sizeof(Bits)
                      : is_packed() ? classes * (int)sizeof(Bits)
                                    : (vectors | 1) * GPULOSSI_VECTOR_BYTES),
          threads((int)p.rows.group), first(0), count(0), image(0), within(0) {
        const int groups = rows_at_once();
        keep(smem_tile);
        targets_offset = aligned((has_columns() ? classes : rows) * pitch_bytes);
        if (has_float_targets())
            targets_pitch = pitch_of(p.probabilities, p.probabilities_stride, 4, are_targets_even);
        if (stages_gradient())
            gradient_pitch = pitch_of(p.rows.grad, p.rows.grad_stride, Gradients::element_bytes(), is_gradient_even);
        row = has_columns() ? (int)threadIdx.x % groups : (int)threadIdx.x / threads;
        rank = has_one_thread() ? 0 : has_columns() ? (int)threadIdx.x / groups : (int)threadIdx.x % threads;
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

    /* Rows that the threads of the block have at a time. The threads of a row are a power of 2. */
    __device__ __forceinline__ int rows_at_once() const { return kThreads >> (31 - __clz(threads)); }

    /* The shared address of class c of a row. */
    __device__ __forceinline__ uint32_t address(int row, int c) const {
        if (has_columns())
            return smem_tile + (uint32_t)(c * pitch_bytes + row * (int)sizeof(Bits));
        return (is_packed() ? smem_rows : smem_tile) + (uint32_t)(row * pitch_bytes + c * (int)sizeof(Bits));
    }
    /* Bytes from one class of a row of the tile to the next. */
    __device__ __forceinline__ int class_bytes() const { return has_columns() ? pitch_bytes : (int)sizeof(Bits); }
    DEVICE Bits bits(uint32_t at) { return Shared::bits<Bits>(at); }
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
                Copies::set(x, i, from[i]);
        return x;
    }
    /* Whether all rows of an array consist of words. */
    __device__ __forceinline__ bool has_words(uint64_t array, int64_t stride) const {
        return sizeof(Bits) == 2 && array % 4 == 0 && stride % 2 == 0 && classes % 2 == 0;
    }
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
                Copies::set(x, i, bits(from));
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
                Shared::store(to, Copies::element_of(x, i));
        }
    }
    /* Loads rows of an array that has the layout of the logits. */
    __device__ __forceinline__ void load_array(uint64_t array, int64_t stride, int offset) const {
        const int64_t row_bytes = stride * (int)sizeof(Bits);
        if (is_packed())
            Copies::template move_packed<false>(array + first * pitch_bytes, smem_rows + offset, count * pitch_bytes);
        else
            Copies::template move_vectors<false>(array + first * row_bytes, row_bytes, smem_tile + offset, pitch_bytes,
                                                 vectors, count);
    }
    __device__ __forceinline__ void load_float_targets() const {
        const int64_t row_bytes = p.probabilities_stride * 4;
        if (are_targets_even)
            Copies::template move_vectors<false>(p.probabilities + first * row_bytes, row_bytes, smem_targets,
                                                 targets_pitch, classes / 4, count);
        else
            Copies::template move_packed<false>(p.probabilities + first * targets_pitch, smem_targets,
                                                count * targets_pitch);
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
        typename Copies::Position at(vectors);
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
    /* Moves columns of any alignment, by words or by elements. The classes of a warp are alike in their alignment. */
    template <bool kStores>
    __device__ __forceinline__ void move_ragged_columns(uint64_t array, int64_t stride, int offset) const {
        const int warp = (int)threadIdx.x / kLanes;
        const int64_t class_bytes = p.inner * (int)sizeof(Bits), step = kThreads / kLanes * class_bytes;
        char *memory = (char *)array + (image * stride + within) * (int)sizeof(Bits) + warp * class_bytes;
        const uint32_t smem = address(0, warp) + offset;
        if (within + count > p.inner || count % 2 != 0)
            move_columns_alone<kStores>(array, stride, offset);
        else if (sizeof(Bits) > 2 || (uint32_t)(uint64_t)memory % 4 != 0)
            Copies::template move_classes<kStores, Bits>(memory, step, smem, pitch_bytes, classes, count);
        else
            Copies::template move_classes<kStores, uint32_t>(memory, step, smem, pitch_bytes, classes, count / 2);
    }
    /* Moves columns of several images, or an odd number. A thread moves the classes of its columns. The last column is
     * loaded twice if a pair needs it. */
    template <bool kStores>
    __device__ __forceinline__ void move_columns_alone(uint64_t array, int64_t stride, int offset) const {
        const int64_t step = threads * p.inner * (int)sizeof(Bits);
        const uint32_t smem_step = (uint32_t)(threads * pitch_bytes);
#pragma unroll 1
        for (int i = row; i < count + (!kStores && adds_pairs() ? count % 2 : 0); i += rows_at_once()) {
            char *memory = (char *)((Bits *)array + start_of_column(min(i, count - 1), stride) + rank * p.inner);
            uint32_t smem = address(i, rank) + offset;
#pragma unroll 1
            for (int left = (classes - rank + threads - 1) / threads; left > 0; left -= kLoads) {
                Copies::template move_units<kStores, kLoads, Bits>(memory, step, smem, smem_step, left);
                memory += kLoads * step;
                smem += kLoads * smem_step;
            }
        }
    }
    /* Copies columns between the tile and memory by vectors of neighbouring ones. */
    template <bool kStores>
    __device__ __forceinline__ void move_even_columns(uint64_t array, int64_t stride, int offset) const {
        const int units = rows / W, at_once = min(units, (int)kThreads), step = kThreads / at_once;
        const int64_t class_bytes = p.inner * (int)sizeof(Bits), step_bytes = step * class_bytes;
        const uint32_t smem_step = (uint32_t)(step * pitch_bytes);
        const int first_class = (int)threadIdx.x / at_once;
#pragma unroll 1
        for (int unit = (int)threadIdx.x % at_once; unit * W < count && first_class < step; unit += at_once) {
            char *memory =
                (char *)array + start_of_column(unit * W, stride) * (int)sizeof(Bits) + first_class * class_bytes;
            uint32_t smem = address(unit * W, first_class) + offset;
#pragma unroll 1
            for (int left = classes - first_class; left > 0; left -= kLoads * step) {
                Vector<E> x[kLoads];
                char *of_vector = memory;
                uint32_t smem_of_vector = smem;
#pragma unroll
                for (int i = 0; i < kLoads; i++, memory += step_bytes, smem += smem_step)
                    if (left > i * step)
                        Copies::template take<kStores>(x[i], memory, smem);
#pragma unroll
                for (int i = 0; i < kLoads && !Copies::template copies<kStores>();
                     i++, of_vector += step_bytes, smem_of_vector += smem_step)
                    if (left > i * step)
                        Copies::template give<kStores>(x[i], of_vector, smem_of_vector);
            }
        }
    }
    template <bool kStores>
    __device__ __forceinline__ void move_columns(uint64_t array, int64_t stride, int offset) const {
        if (is_ragged())
            move_ragged_columns<kStores>(array, stride, offset);
        else
            move_even_columns<kStores>(array, stride, offset);
    }
    /* Prefetches columns of the tile into the L2 cache. Each lane of a warp has a class at a time. */
    __device__ __forceinline__ void prefetch_columns(uint64_t array, int64_t stride) const {
        if (within + count > p.inner)
            return;
#pragma unroll 1
        for (int c = (int)threadIdx.x; c < classes; c += kLanes) {
            const char *first = (const char *)((const Bits *)array + image * stride + within + c * p.inner);
#pragma unroll 1
            for (int at = 0; at < count * (int)sizeof(Bits); at += GPULOSSI_LINE_BYTES)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(first + at));
        }
    }
    __device__ __forceinline__ void store_rows() const {
        const int64_t stride_bytes = p.rows.grad_stride * Gradients::element_bytes();
        const uint64_t first_row = p.rows.grad + first * stride_bytes;
        const uint32_t smem = stages_gradient() ? smem_gradient : smem_rows;
        const int pitch = stages_gradient() ? gradient_pitch : pitch_bytes;
        if (stages_gradient() ? !is_gradient_even : is_packed()) {
            Copies::template move_packed<true>(p.rows.grad + first * pitch, smem, count * pitch);
        } else if (stages_gradient() || !is_ragged()) {
            Copies::template move_vectors<true>(first_row, stride_bytes, smem, pitch,
                                                classes * Gradients::element_bytes() / GPULOSSI_VECTOR_BYTES, count);
        } else {
            Bits *base = (Bits *)first_row;
#pragma unroll 2
            for (typename Copies::Position at(classes); at.row < count; at.advance())
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
};

#endif
