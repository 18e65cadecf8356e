/* Cross-entropy where the classes are not innermost: in arrays [images, classes, inner], a row is a column of an image.
 *
 * A tile is kTile neighbouring columns. Lanes lie along the columns, so that accesses are coalesced. The warps of a
 * group lie along the classes. Their states are merged in shared memory, where a thread finishes a column. A tile of
 * all classes is small enough to stay in the L2 cache until the gradient reads it again. */
#ifndef GPULOSSI_NCHW_GENERIC_CUH
#define GPULOSSI_NCHW_GENERIC_CUH

#include "ce_full.cuh"

template <class E> struct Columns {
    typedef typename E::Number N;
    typedef typename E::Bits Bits;
    typedef gpulossi_cross_entropy Params;
    typedef Terms<N, N, kColumns> Of;
    typedef typename Of::State State;
    typedef typename Of::Totals Totals;
    enum {
        /* A thread has I columns. With more, the registers would allow fewer warps. */
        I = 2,
        kTile = I * kLanes,
        /* A thread has K classes of one array in flight, or kPairs classes of two arrays. */
        K = sizeof(Bits) == 8 ? 2 : 8,
        kPairs = sizeof(Bits) == 8 ? 2 : 4
    };

    /* First the state of one warp's classes of a column, then the Gradient of the column. */
    union Slot {
        State state;
        typename Of::Gradient gradient;
    };

    const Params &p;
    Of terms;
    Group group;
    int64_t tile;
    int64_t image, within; /* image of this thread's first column, and the column in it */
    uint32_t steps[I];     /* images from there to that of column i */

    __device__ __forceinline__ explicit Columns(const Params &p) : p(p), terms(p), group(p.rows.group) {}

    __device__ __forceinline__ int lane() const { return threadIdx.x % kLanes; }
    __device__ __forceinline__ int warp() const { return group.rank / kLanes; } /* in its group */
    __device__ __forceinline__ int warps() const { return group.size / kLanes; }

    __device__ __forceinline__ int64_t number(int i) const { return tile * kTile + lane() * I + i; }
    __device__ __forceinline__ bool live(int i) const { return number(i) < p.rows.rows; }

    __device__ __forceinline__ int64_t image_of(int64_t number) const {
        return (int64_t)((uint64_t)number / (uint64_t)p.inner); /* unsigned, so that 32 bits are used if they suffice */
    }
    __device__ __forceinline__ void go_to(int64_t next) {
        tile = next;
        image = image_of(number(0));
        within = number(0) - image * p.inner;
#pragma unroll
        for (int i = 0; i < I; i++)
            steps[i] = i == 0 || within + i < p.inner ? 0 : (uint32_t)(image_of(number(i)) - image);
    }

    /* An array, and the position of this thread's columns in it. */
    template <class Array> struct ColumnArray {
        Array array;
        int64_t at, jump; /* position of the first column; additional step to a neighbour in the next image */
        __device__ __forceinline__ ColumnArray(const Columns &c, const Array &array, int64_t stride)
            : array(array), at(c.image * stride + c.within), jump(stride - c.p.inner) {}
    };
    template <class Array>
    __device__ __forceinline__ int64_t position(const ColumnArray<Array> &in, int64_t c, int i) const {
        return in.at + c * p.inner + i + steps[i] * in.jump;
    }
    template <class Array> __device__ __forceinline__ bool is_aligned(const ColumnArray<Array> &in, int64_t c) const {
        return steps[I - 1] == 0 && live(I - 1) && in.array.template fits<I>(position(in, c, 0));
    }
    template <class Array>
    __device__ __forceinline__ void read(const ColumnArray<Array> &from, int64_t c, N (&x)[I]) const {
        if (is_aligned(from, c)) {
            from.array.read_few(position(from, c, 0), x);
            return;
        }
#pragma unroll
        for (int i = 0; i < I; i++)
            x[i] = live(i) ? from.array.template read<N>(position(from, c, i)) : N(0);
    }
    template <class Array>
    __device__ __forceinline__ void write(const ColumnArray<Array> &to, int64_t c, const N (&x)[I]) const {
        if (is_aligned(to, c)) {
            to.array.write_few(position(to, c, 0), x);
            return;
        }
#pragma unroll
        for (int i = 0; i < I; i++)
            if (live(i))
                to.array.write(position(to, c, i), x[i]);
    }

    /* The soft targets of a class. */
    template <bool kSoft>
    __device__ __forceinline__ void soft_targets(const ColumnArray<Typed> &t, int64_t c, N (&a)[I]) const {
        N w = terms.class_weight(c);
        if (kSoft)
            read(t, c, a);
#pragma unroll
        for (int i = 0; i < I; i++)
            a[i] = w * terms.template soft_target<kSoft>(a[i]);
    }

    /* Adds this warp's classes to the states of the thread's columns, n at a time. */
    template <bool kSoft, int n> __device__ __forceinline__ void reduce(State (&s)[I]) const {
        ColumnArray<Elements<E>> logits(*this, Elements<E>(p.logits), p.logits_stride);
        ColumnArray<Typed> t(*this, Typed(p.probabilities, p.target_dtype), p.probabilities_stride);
#pragma unroll 1
        for (int64_t c = warp(); c < p.rows.classes; c += n * warps()) {
            N x[n * I], a[n][I];
#pragma unroll
            for (int k = 0; k < n; k++) {
                N of_class[I];
#pragma unroll
                for (int i = 0; i < I; i++)
                    of_class[i] = a[k][i] = N(0);
                if (c + k * warps() < p.rows.classes) {
                    read(logits, c + k * warps(), of_class);
                    if (terms.has_soft_targets())
                        soft_targets<kSoft>(t, c + k * warps(), a[k]);
                }
#pragma unroll
                for (int i = 0; i < I; i++)
                    x[k * I + i] = of_class[i];
            }
            terms.transform(x);
#pragma unroll
            for (int i = 0; i < I; i++) {
                N part[n], soft_target[n];
#pragma unroll
                for (int k = 0; k < n; k++) {
                    part[k] = c + k * warps() < p.rows.classes ? x[k * I + i] : -Limits<N>::infinity();
                    soft_target[k] = a[k][i];
                }
                s[i].template enter<1>(part, soft_target, terms.has_soft_targets(), terms.finds_best(), c, warps());
            }
        }
    }

    /* Merges the states of a column of the tile, writes its results, and replaces the state by the Gradient. */
    __device__ __forceinline__ void finish(Slot (*slots)[kTile], int column, Totals &total) const {
        int64_t number = tile * kTile + column;
        State s = slots[0][column].state;
#pragma unroll 1
        for (int w = 1; w < warps(); w++)
            s.merge(slots[w][column].state);
        typename Of::Row r = terms.row(number);
        N x_y = N(0);
        if (r.y >= 0) {
            int64_t image = image_of(number);
            x_y = terms.transformed(
                E::widen(((const Bits *)p.logits)[image * p.logits_stride + number - image * p.inner + r.y * p.inner]));
        }
        terms.finish(r, s, x_y, total);
        slots[0][column].gradient = terms.gradient(r, s);
    }

    template <bool kSoft> __device__ __forceinline__ void gradients(const Slot (*slots)[kTile]) const {
        typename Of::Gradient of[I];
        ColumnArray<Elements<E>> logits(*this, Elements<E>(p.logits), p.logits_stride);
        ColumnArray<Typed> t(*this, Typed(p.probabilities, p.target_dtype), p.probabilities_stride);
        ColumnArray<Typed> grad(*this, Typed(p.rows.grad, p.grad_dtype), p.rows.grad_stride);
        ColumnArray<Typed> grad_t(*this, Typed(p.grad_probabilities, p.target_dtype), p.grad_probabilities_stride);
#pragma unroll
        for (int i = 0; i < I; i++)
            of[i] = slots[0][lane() * I + (live(i) ? i : 0)].gradient;
            /* The pass starts at the end, which was read last and is still in the cache. */
#pragma unroll 1
        for (int64_t c = warp() + (p.rows.classes - 1 - warp()) / warps() * warps(); c >= 0; c -= warps()) {
            N given[I], x[I], a[I], g[I];
            read(logits, c, given);
#pragma unroll
            for (int i = 0; i < I; i++)
                a[i] = N(0), x[i] = given[i];
            terms.transform(x);
            if (terms.has_soft_targets())
                soft_targets<kSoft>(t, c, a);
            if (kSoft && p.grad_probabilities) {
                N w = terms.class_weight(c);
#pragma unroll
                for (int i = 0; i < I; i++)
                    g[i] = terms.element_of_target(of[i], x[i], w);
                write(grad_t, c, g);
            }
            if (p.rows.grad) {
#pragma unroll
                for (int i = 0; i < I; i++)
                    g[i] = terms.element(of[i], x[i], a[i], c == of[i].y);
                terms.transform_back(g, given);
                write(grad, c, g);
            }
        }
    }

    DEVICE void run(const Params &p) {
        __shared__ Totals totals[GPULOSSI_BLOCK];
        __shared__ Slot slots[GPULOSSI_BLOCK / kLanes][kTile];
        gpulossi_scratch *scratch = (gpulossi_scratch *)p.rows.scratch;
        Columns columns(p);
        Group &group = columns.group;
        Queue queue(scratch, group, (p.rows.rows + kTile - 1) / kTile, 1);
        Slot(*of_group)[kTile] = slots + group.number * columns.warps();
        totals[threadIdx.x] = Totals::zero();
#pragma unroll 1
        while (queue.more()) {
            State s[I];
            columns.go_to(queue.row());
#pragma unroll
            for (int i = 0; i < I; i++)
                s[i] = State::empty();
            if (columns.terms.reduces() && columns.terms.soft())
                columns.template reduce<true, kPairs>(s);
            else if (columns.terms.reduces())
                columns.template reduce<false, K>(s);
#pragma unroll
            for (int i = 0; i < I; i++)
                of_group[columns.warp()][columns.lane() * I + i].state = s[i];
            queue.announce();
            group.settle();
#pragma unroll 1
            for (int column = group.rank; column < kTile && columns.tile * kTile + column < p.rows.rows;
                 column += group.size)
                columns.finish(of_group, column, totals[threadIdx.x]);
            queue.advance();
            group.settle();
            if (columns.terms.writes() && columns.live(0) && columns.terms.soft())
                columns.template gradients<true>(of_group);
            else if (columns.terms.writes() && columns.live(0))
                columns.template gradients<false>(of_group);
            group.settle();
        }
        end(columns.terms, scratch, totals);
    }
};

#endif
