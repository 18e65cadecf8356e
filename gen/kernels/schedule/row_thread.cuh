/* Rows of few classes in tiles of shared memory, with every option: rows of any stride and alignment, and columns,
 * whose classes are not innermost. The host selects this schedule for options and columns from compute capability 7.0
 * on. One thread has a row, or a few threads share it.
 *
 * In a tile each row begins with a vector, and its last vector is filled with logits that change nothing. The distance
 * of two rows is an odd number of vectors, so that neighbouring rows are in different banks. Packed rows are copied to
 * a tile as they are in memory, and accessed by words there, which the threads of a row share cyclically. Rows that are
 * no whole words are accessed by elements of 16 bits if an option needs vectors. In a tile of columns the elements of a
 * class follow each other, like in memory, so that a warp accesses neighbouring ones. The threads of a block load a
 * tile in the order of memory.
 *
 * Target probabilities that lie in memory like the logits follow them in the tile, and so do floats beside logits of 16
 * bits. Columns have their target probabilities in the tile if a column needs no more threads then. Gradients replace
 * the logits, or follow if they are of another type. They are stored in the order of memory. */
#ifndef GPULOSSI_ROW_THREAD_CUH
#define GPULOSSI_ROW_THREAD_CUH

#include "../device/tile_copies.cuh"
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

    __device__ __forceinline__ explicit RowThread(const Params &p)
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

    /* ---- the tile ---- */
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
        enum { kLine = 128 };
        if (within + count > p.inner)
            return;
#pragma unroll 1
        for (int c = (int)threadIdx.x; c < classes; c += kLanes) {
            const char *first = (const char *)((const Bits *)array + image * stride + within + c * p.inner);
#pragma unroll 1
            for (int at = 0; at < count * (int)sizeof(Bits); at += kLine)
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

    /* ---- a row ---- */

    /* A vector of a row. Its first `left` elements are in the row: all of them if it is whole. Vector k begins with
     * class k W + shift. kOfUnits: of a row that is added by units, which is packed if it has soft targets. */
    template <bool kWhole, bool kOfUnits = false> struct Side {
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
            return {(int)first(k), of.p.inner, 0, left};
        }
        template <class Array> __device__ __forceinline__ void read_staged(const Array &array, int k, N (&y)[W]) const {
            if (!kOfUnits && !has_targets())
                classes(k).read(array, y);
            if (kOfUnits ? !is_packed() : !has_targets())
                return;
            const uint32_t at = of.address(row_in_tile, (int)first(k)) + of.targets_offset;
            if (has_float_targets())
                of.read_floats(row_in_tile, (int)first(k), count(k), y);
            else
                (kOfUnits ? of.template load_elements<kWhole>(at, left) : load_at(at)).unpack(y);
#pragma unroll
            for (int i = 0; i < W; i++)
                y[i] = is_inside(k, i) ? y[i] : N(0);
        }
        template <class Array>
        __device__ __forceinline__ void read_of_classes(const Array &array, int k, N (&y)[W]) const {
            if (!kOfUnits || is_packed())
                classes(k).read_of_classes(array, y);
        }
        /* kVectors: not the units of a tile. */
        template <bool kVectors = false>
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
            if (!kVectors && (is_packed() || has_columns()))
                of.store_elements<kWhole>(of.address(row_in_tile, k * W), left, x);
            else
                Shared::store<4>(of.address(row_in_tile, k * W), x.word);
        }
        __device__ __forceinline__ void write(const Targets &array, int k, const N (&y)[W]) const {
            classes(k).write(array, y);
        }
    };
    /* The partial vector of a row. */
    __device__ __forceinline__ Side<false> tail_of(int64_t row, int row_in_tile, int k) const {
        const int left = classes - k * W;
        __builtin_assume(left < W);
        return {*this, row, row_in_tile, left};
    }
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
        return sizeof(N) == 4 && (Loss::sums_only() || adds_shapes()) && !Loss::finds_best();
    }
    /* Whether it does so with shapes that the classes of packed rows have. */
    DEVICE bool adds_shapes() {
        return Loss::adds_shapes() && is_packed() && (has_targets() || !has(GPULOSSI_CE_PROBABILITIES));
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
    /* Whether the threads of a row share its units cyclically: words of packed rows, or classes of columns.
     * Neighbouring threads then read neighbouring banks. */
    DEVICE bool takes_units() {
        return is_packed() || has_columns();
    }
    DEVICE int elements_of_units(int units) {
        return has_columns() ? units : units * Words<E>::kElements;
    }
    /* Whole units of some elements. */
    DEVICE int units_of(int elements) {
        return has_columns() ? elements : (int)((uint32_t)elements / Words<E>::kElements);
    }
    __device__ __forceinline__ uint32_t unit_bytes() const {
        return has_columns() ? (uint32_t)pitch_bytes : 4;
    }
    /* Bytes from a unit of this thread to its i-th one after that. */
    __device__ __forceinline__ uint32_t units_after(int i) const {
        return has_one_thread() && !has_columns() ? 4 * i : (uint32_t)(i * threads) * unit_bytes();
    }
    /* This thread's part of a row: its vectors and other elements. A vector is one of the row, or the elements of the
     * thread's next units. */
    struct Part {
        int head;         /* elements before the first whole word of the row */
        uint32_t of_head; /* the shared address of class 0 */
        uint32_t begin;   /* the shared address of the thread's first vector or unit */
        uint32_t end;     /* the shared address after the row's last whole vector or unit */
        uint32_t step;    /* bytes from a vector or unit of the thread to the next */
        uint32_t targets; /* the float target probability of an element is at twice its address plus this */
    };
    __device__ __forceinline__ Part part_of(int row_in_tile) const {
        Part part;
        part.head = head_of(row_in_tile);
        part.of_head = address(row_in_tile, 0);
        const uint32_t first = part.of_head + (uint32_t)part.head * (uint32_t)sizeof(Bits);
        const uint32_t bytes = takes_units() ? unit_bytes() : GPULOSSI_VECTOR_BYTES;
        part.begin = first + (uint32_t)rank * bytes;
        part.end = first + (uint32_t)(takes_units() ? units_of(classes - part.head) : whole_vectors()) * bytes;
        part.step = (uint32_t)threads * bytes;
        part.targets =
            has_float_targets() ? smem_targets + (uint32_t)(row_in_tile * targets_pitch) - 2 * part.of_head : 0;
        return part;
    }
    /* Calls use_vector(at) with the vectors of a part, use_elements(at, n) with its other elements. kUnits: of units. */
    template <bool kUnits = false, class UseVector, class UseElements>
    __device__ __forceinline__ void each(const Part &part, const UseVector &use_vector,
                                         const UseElements &use_elements) const {
        uint32_t at = part.begin;
        if (!kUnits && !takes_units()) {
#pragma unroll 1
            for (; at < part.end; at += part.step)
                use_vector(at);
            if (may_have_tail() && at == part.end)
                use_elements(at, classes % W);
            return;
        }
        if (part.head > 0 && rank == 0)
            use_elements(part.of_head, 1);
        const uint32_t units = (uint32_t)units_of(W);
#pragma unroll 1
        for (; at + (units - 1) * part.step < part.end; at += units * part.step)
            use_vector(at);
#pragma unroll 1
        for (; at < part.end; at += part.step)
            use_elements(at, elements_of_units(1));
        if (may_have_head() && at == part.end && (classes - part.head) % 2 != 0)
            use_elements(at, 1);
    }
    /* kWrites: of units that are replaced. Others are no columns of 16 bits, of which a thread adds pairs. */
    template <bool kWrites> __device__ __forceinline__ Vector<E> load_words(uint32_t at) const {
        Vector<E> x = filled<E>(N(0));
        if ((kWrites || sizeof(Bits) > 2) && has_columns())
#pragma unroll
            for (int i = 0; i < W; i++)
                Copies::set(x, i, bits(at + units_after(i)));
        else if (kWrites || is_packed())
#pragma unroll
            for (int i = 0; i < 4; i++)
                x.word[i] = Shared::bits<uint32_t>(at + units_after(i));
        else
            Shared::load<4>(at, x.word);
        return x;
    }
    /* A vector of this thread's part of a row, as a Side of the loss that adds it. */
    struct PartSide {
        const RowThread &of;
        const Part &part;
        uint32_t at; /* a shared address */
        __device__ __forceinline__ int64_t start(int64_t) const { return 0; }
        __device__ __forceinline__ bool is_inside(int, int) const { return true; }
        DEVICE bool is_staged() { return has(GPULOSSI_CE_PROBABILITIES); }
        template <class Array> __device__ __forceinline__ void read_staged(const Array &, int, N (&y)[W]) const {
            read(y, [&](uint32_t at, N(&of_unit)[W / 4]) { of.read_targets(part, at, W / 4, of_unit); });
        }
        template <class Array> __device__ __forceinline__ void read_of_classes(const Array &, int, N (&y)[W]) const {
            read(y, [&](uint32_t at, N(&of_unit)[W / 4]) { of.read_weights(part, at, W / 4, of_unit); });
        }
        /* Shapes of the vector. */
        __device__ __forceinline__ void read_shapes(N (&y)[W]) const {
            read(y, [&](uint32_t at, N(&of_unit)[W / 4]) { of.read_shapes(part, at, W / 4, of_unit); });
        }
        /* Only packed rows have shapes that differ. */
        template <class Read> __device__ __forceinline__ void read(N (&y)[W], const Read &read_unit) const {
            if (!is_packed())
                return;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                N of_unit[W / 4];
                read_unit(at + of.units_after(i), of_unit);
#pragma unroll
                for (int k = 0; k < W / 4; k++)
                    y[i * (W / 4) + k] = of_unit[k];
            }
        }
    };
    /* Reads the target probabilities of the first n elements of a unit. */
    template <int kElements>
    __device__ __forceinline__ void read_targets(const Part &part, uint32_t at, int n, N (&t)[kElements]) const {
        if (has_float_targets()) {
#pragma unroll
            for (int i = 0; i < kElements; i++)
                if (i < n)
                    t[i] = __uint_as_float(Shared::bits<uint32_t>(part.targets + 2 * at + 4 * i));
        } else if (n < kElements) {
            t[0] = E::widen(bits(at + targets_offset));
        } else {
            const uint32_t word = Shared::bits<uint32_t>(at + targets_offset);
#pragma unroll
            for (int i = 0; i < kElements; i++)
                t[i] = Words<E>::get(word, i);
        }
    }
    /* Reads their class weights. */
    template <int kElements>
    __device__ __forceinline__ void read_weights(const Part &part, uint32_t at, int n, N (&w)[kElements]) const {
        const int c = (int)((at - part.of_head) / sizeof(Bits));
#pragma unroll
        for (int i = 0; i < kElements; i++)
            if (i < n)
                w[i] = loss.class_weights().template read<N>(c + i);
    }
    /* Reads their shapes. */
    template <int kElements>
    __device__ __forceinline__ void read_shapes(const Part &part, uint32_t at, int n, N (&shape)[kElements]) const {
        N weights[kElements];
#pragma unroll
        for (int i = 0; i < kElements; i++)
            shape[i] = weights[i] = N(0);
        if (!adds_shapes())
            return;
        if (has_targets())
            read_targets(part, at, n, shape);
        if (has(GPULOSSI_CE_CLASS_WEIGHTS))
            read_weights(part, at, n, weights);
#pragma unroll
        for (int i = 0; i < kElements; i++)
            shape[i] = loss.shape_of(shape[i], weights[i]);
    }
    /* Calls use(x, shape) with n elements of a row, or with an element of a column. */
    template <bool kReadsShapes, class Use>
    __device__ __forceinline__ void each_element(const Part &part, uint32_t at, int n, const Use &use) const {
        enum { kElements = Words<E>::kElements };
        N t[kElements] = {};
        if (sizeof(Bits) > 2 && has_columns()) {
            use(E::widen(bits(at)), N(0));
            return;
        }
#pragma unroll 1
        for (; n >= kElements; n -= kElements, at += 4) {
            const uint32_t word = Shared::bits<uint32_t>(at);
            if (kReadsShapes)
                read_shapes(part, at, kElements, t);
#pragma unroll
            for (int i = 0; i < kElements; i++)
                use(Words<E>::get(word, i), t[i]);
        }
        if (kElements > 1 && n > 0) {
            if (kReadsShapes)
                read_shapes(part, at, 1, t);
            use(E::widen(bits(at)), t[0]);
        }
    }
    __device__ __forceinline__ void store_words(uint32_t at, const Vector<E> &x) const {
        if (has_columns())
#pragma unroll
            for (int i = 0; i < W; i++)
                Shared::store(at + units_after(i), Copies::element_of(x, i));
        else
#pragma unroll
            for (int i = 0; i < 4; i++)
                Shared::store(at + units_after(i), x.word[i]);
    }
    /* Replaces n elements of a row, or an element of a column, by get(x, shape). */
    template <class Get>
    __device__ __forceinline__ void replace_elements(const Part &part, uint32_t at, int n, const Get &get) const {
        enum { kElements = Words<E>::kElements };
        N t[kElements];
        if (has_columns()) {
            Shared::store(at, E::narrow(get(E::widen(bits(at)), N(0))));
            return;
        }
#pragma unroll 1
        for (; n >= kElements; n -= kElements, at += 4) {
            const uint32_t word = Shared::bits<uint32_t>(at);
            N y[kElements];
            read_shapes(part, at, kElements, t);
#pragma unroll
            for (int i = 0; i < kElements; i++)
                y[i] = get(Words<E>::get(word, i), t[i]);
            Shared::store(at, Words<E>::pack(y));
        }
        if (kElements > 1 && n > 0) {
            read_shapes(part, at, 1, t);
            Shared::store(at, E::narrow(get(E::widen(bits(at)), t[0])));
        }
    }

    /* accumulate_row() of a basic loss. */
    __device__ __forceinline__ void accumulate_words(int64_t number, int row_in_tile, State &state) const {
        const Part part = part_of(row_in_tile);
        N highest = Loss::lowest();
        each(
            part, [&](uint32_t at) { highest = larger(highest, loss.highest_of({load_words<false>(at)})); },
            [&](uint32_t at, int n) {
                each_element<false>(part, at, n, [&](N x, N) { highest = larger(highest, x); });
            });
        state.softmax.max = highest;
        auto batch = loss.batch_of(state);
        auto best = loss.highest_before(state);
        each(
            part,
            [&](uint32_t at) {
                loss.accumulate(state, batch, best, load_words<false>(at), PartSide{*this, part, at}, 0);
            },
            [&](uint32_t at, int n) {
                each_element<true>(part, at, n, [&](N x, N t) {
                    if (adds_shapes())
                        loss.accumulate_shape(batch, x, t);
                    else
                        Loss::accumulate_basic(batch, x);
                });
                if (Loss::has_soft() && !adds_shapes())
                    batch.shapes += (N)n;
            });
        close(number, row_in_tile, state, batch);
    }
    /* Ends a batch of this thread's elements. Its Sides are its units. The first unit begins before class 0 if the row
     * begins within a word. */
    __device__ __forceinline__ void close(int64_t number, int row_in_tile, State &state,
                                          const typename Loss::Batch &batch) const {
        const int head = head_of(row_in_tile), n = takes_units() ? elements_of_units(1) : (int)W;
        const int units = takes_units() ? units_of(classes - head + n - 1) : vectors;
        loss.close(state, batch, head > 0 && rank == 0 ? -threads : rank, units, threads, [&](int k) {
            const int from = k < 0 ? 0 : head + k * n, left = k < 0 ? 1 : min(n, classes - from);
            return Side<false, true>{*this, number, row_in_tile, left, from - k * W};
        });
    }
    /* Whether a thread adds two columns of 16 bits at a time, whose elements of a class are a word. */
    DEVICE bool adds_pairs() {
        return sizeof(Bits) == 2 && has_columns() && adds_elements();
    }
    /* Calls use(word) with the classes of this thread of a column and the next one. */
    template <class Use> __device__ __forceinline__ void each_word(const Part &part, const Use &use) const {
        each<true>(
            part,
            [&](uint32_t at) {
#pragma unroll
                for (int i = 0; i < W; i++)
                    use(Shared::bits<uint32_t>(at + units_after(i)));
            },
            [&](uint32_t at, int) { use(Shared::bits<uint32_t>(at)); });
    }
    /* accumulate_words() of a column and the next one. */
    __device__ __forceinline__ void accumulate_pair(int row_in_tile, State (&state)[2]) const {
        typedef Words<E> Pair;
        const Part part = part_of(row_in_tile);
        N highest[2] = {Loss::lowest(), Loss::lowest()};
        if (runs_on_sm_80()) {
            uint32_t of_pair = Pair::none();
            each_word(part, [&](uint32_t word) { of_pair = Pair::larger_of(of_pair, word); });
            highest[0] = Pair::get(of_pair, 0);
            highest[1] = Pair::get(of_pair, 1);
        } else {
            each_word(part, [&](uint32_t word) {
                highest[0] = larger(highest[0], Pair::get(word, 0));
                highest[1] = larger(highest[1], Pair::get(word, 1));
            });
        }
        state[0].softmax.max = highest[0];
        state[1].softmax.max = highest[1];
        typename Loss::Batch batch[2] = {loss.batch_of(state[0]), loss.batch_of(state[1])};
        int counted = 0;
        each_word(part, [&](uint32_t word) {
            Loss::accumulate_basic(batch[0], Pair::get(word, 0));
            Loss::accumulate_basic(batch[1], Pair::get(word, 1));
            counted++;
        });
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (Loss::has_soft())
                batch[i].shapes = (N)counted;
            close(0, row_in_tile + i, state[i], batch[i]);
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
        const bool is_online = sizeof(N) == 4 && !Loss::has_soft() && !Loss::has_transform();
        auto best = loss.highest_before(state);
        N highest = Loss::lowest();
        const auto see = [&](const auto &side, int k) {
            if (is_online)
                loss.accumulate_one(state, best, side.load(k), side, k);
            else
                highest = larger(highest, loss.highest_of({side.load(k)}));
        };
        int k = rank;
#pragma unroll 1
        for (; k < whole_vectors(); k += threads)
            see(whole, k);
        if (may_have_tail() && k < vectors)
            see(tail_of(number, row_in_tile, k), k);
        if (!is_online) {
            loss.raise(state, highest);
            auto batch = loss.batch_of(state);
#pragma unroll 1
            for (k = rank; k < whole_vectors(); k += threads)
                loss.accumulate(state, batch, best, whole.load(k), whole, k);
            if (may_have_tail() && k < vectors)
                loss.accumulate(state, batch, best, side_of(k).load(k), tail_of(number, row_in_tile, k), k);
            loss.close(state, batch, rank, vectors, threads, side_of);
        }
        loss.find_best(state, best, rank, vectors, threads, side_of);
    }
    /* All threads call. */
    __device__ __forceinline__ void reduce(State &state) const {
        if (has_one_thread())
            return;
        if (has_columns()) {
            const AcrossGroups<kThreads> groups = {rows_at_once(), threads};
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
            side.template write<sizeof(N) == 4>(Gradients(p.rows.grad, side.start_of_gradient(p.rows.grad_stride)), k,
                                                y);
        } else {
            loss.write(g, r, side.load(k), side, k, kNone);
        }
    }
    /* The target's gradient replaces the gradient that its vector has without a target. It is written once a row,
     * because almost every vector of a warp has a target in some row. */
    __device__ __forceinline__ void write_target(const typename Loss::Gradient &g, const Row &r, int row_in_tile,
                                                 N logit) const {
        const N y = loss.target_gradient(g, r, logit);
        if (writes_tile())
            Shared::store(address(row_in_tile, (int)r.target_class), E::narrow(y));
        else if (stages_gradient())
            stage_gradient(row_in_tile, r.target_class, {y}, 1);
        else
            Gradients(p.rows.grad, start(row_in_tile, p.rows.grad_stride)).write(element(r.target_class), y);
    }
    __device__ __forceinline__ void write_row(int64_t number, int row_in_tile, const Row &r, const State &state,
                                              N logit, bool reads) const {
        const typename Loss::Gradient g = loss.gradient(number, r, state);
        const bool has_gradient = reads && !g.is_zero;
        int owner = (int)r.target_class / W; /* the thread that writes the target's gradient, modulo the threads */
        bool is_written = false;
        if constexpr (sizeof(N) == 4)
            if ((Loss::is_basic() || (adds_shapes() && !has(GPULOSSI_CE_TARGET_GRADIENT))) && takes_units() &&
                writes_tile() && has_gradient && g.is_fast) {
                is_written = true;
                const Part part = part_of(row_in_tile);
                owner = units_of(max((int)r.target_class - part.head, 0));
                each<true>(
                    part,
                    [&](uint32_t at) {
                        N y[W], t[W];
                        Vector<E> x = load_words<true>(at);
                        if (adds_shapes()) {
                            x.unpack(y);
                            PartSide{*this, part, at}.read_shapes(t);
#pragma unroll
                            for (int i = 0; i < W; i++)
                                y[i] = loss.shape_gradient(g, y[i], t[i]);
                        } else {
                            loss.fast_gradients(g, x, y);
                        }
                        x.fill(y);
                        store_words(at, x);
                    },
                    [&](uint32_t at, int n) {
                        replace_elements(part, at, n, [&](N x, N t) {
                            return adds_shapes() ? loss.shape_gradient(g, x, t) : loss.fast_gradient(g, x);
                        });
                    });
            }
        if (!is_written) {
            int k = rank;
#pragma unroll 1
            for (; k < whole_vectors(); k += threads)
                write<true>(g, r, has_gradient, {*this, number, row_in_tile, W}, k);
            if (may_have_tail() && k < vectors)
                write<false>(g, r, has_gradient, tail_of(number, row_in_tile, k), k);
        }
        if (has(GPULOSSI_CE_GRADIENT) && has_gradient && r.target_class >= 0 && (owner & (threads - 1)) == rank)
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
        if (!has_one_thread()) /* the others have read the target's logit */
            settle();
        if (is_there)
            write_row(number, i, r, state, logit, reads);
    }
    __device__ __forceinline__ void rows_of_tile(RowInput input, Totals &total) const {
        const int at_once = adds_pairs() ? 2 : 1, step = at_once * rows_at_once();
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
        if (!has_columns()) {
            load_rows();
            return;
        }
        move_columns<false>(p.logits, p.logits_stride, 0);
        if (has_targets())
            move_columns<false>(p.probabilities, p.probabilities_stride, targets_offset);
        else if (has(GPULOSSI_CE_PROBABILITIES) && threadIdx.x < kLanes)
            prefetch_columns(p.probabilities, p.probabilities_stride);
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
                    move_columns<true>(p.rows.grad, p.rows.grad_stride, 0);
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
