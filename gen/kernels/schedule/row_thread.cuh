/* Rows of few classes in tiles of shared memory, with every option: rows of any stride and alignment, and columns,
 * whose classes are not innermost. The host selects this schedule for options and columns from compute capability 7.0
 * on. One thread has a row, or a few threads share it.
 *
 * Packed rows are accessed by words, which the threads of a row share cyclically. Rows that are no whole words are accessed
 * by elements of 16 bits if an option needs vectors. */
#ifndef GPULOSSI_ROW_THREAD_CUH
#define GPULOSSI_ROW_THREAD_CUH

#include "row_tile.cuh"

template <class Loss> class RowThread : RowTile<Loss> {
    typedef RowTile<Loss> Base;
    using Base::is_packed, Base::is_ragged, Base::has_one_thread, Base::has_tile, Base::has_targets,
        Base::has_float_targets, Base::writes_tile, Base::stages_gradient, Base::adds_shapes, Base::adds_elements,
        Base::adds_pairs, Base::aligned, Base::rows_at_once, Base::address, Base::bits, Base::load_elements,
        Base::store_elements, Base::load_rows, Base::move_columns, Base::prefetch_columns, Base::store_rows,
        Base::start_of_column;
    using Base::p, Base::loss, Base::smem_tile, Base::smem_rows, Base::targets_offset, Base::smem_targets,
        Base::targets_pitch, Base::are_targets_even, Base::smem_gradient, Base::gradient_pitch, Base::is_gradient_even,
        Base::classes, Base::vectors, Base::rows, Base::pitch_bytes, Base::threads, Base::rank, Base::row, Base::first,
        Base::count, Base::image, Base::within;
    using Base::W, Base::kThreads, Base::kLoads, Base::kNone;
    using typename Base::E, typename Base::N, typename Base::Bits, typename Base::Params, typename Base::Gradients,
        typename Base::Targets, typename Base::Row, typename Base::RowInput, typename Base::State,
        typename Base::Totals, typename Base::Copies;

    __device__ __forceinline__ explicit RowThread(const Params &p) : Base(p) {}

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
                x = of.template load_elements<kWhole>(at, left);
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
                of.template store_elements<kWhole>(of.address(row_in_tile, k * W), left, x);
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
                highest = larger_number(highest, loss.highest_of({side.load(k)}));
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
    /* Sixteenths of the tiles that are static. Measured: rows of floats that threads only read, with little work for each,
     * take 0.86 to 0.92 of the time, and others 1.05 to 1.15. */
    DEVICE uint32_t static_share() {
        return sizeof(Bits) == 4 && has_one_thread() && !Loss::writes() && !Loss::finds_best() &&
                       !has(GPULOSSI_CE_SMOOTHING | GPULOSSI_CE_CLASS_WEIGHTS | GPULOSSI_CE_SOFTCAP)
                   ? 12
                   : 0;
    }
    __device__ __forceinline__ void all_tiles(Totals &total) {
        __shared__ uint32_t next_tile;
        Ahead queue(p.rows.scratch, (p.rows.rows + rows - 1) / rows, blockIdx.x, gridDim.x, 1, static_share());
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
