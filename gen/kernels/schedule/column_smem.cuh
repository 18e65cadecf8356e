/* Cross-entropy without options where the classes are not innermost: in arrays [images, classes, inner], a row is a
 * column of an image. Neighbouring columns are loaded and stored as vectors.
 *
 * A tile is 8 bytes of columns a lane. Lanes lie along the columns, and the warps of a group along the classes. A
 * thread has slots of its own in shared memory, where its logits stay for the gradient. Classes that don't fit come in
 * pages, and only the last page need not be read again. The states of the warps are merged in shared memory. To finish
 * the columns of a lane, the warps divide them. */
#ifndef GPULOSSI_COLUMN_SMEM_CUH
#define GPULOSSI_COLUMN_SMEM_CUH

#include "ce_basic.cuh"
#include "../device/column_vec.cuh"
#include "row_generic.cuh"

/* Copies 16 bytes to shared memory asynchronously. request_group() commits a group of copies. settled<n>() waits until
 * at most the last n groups of this thread are in flight. */
DEVICE void request(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
}
DEVICE void request_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int n> DEVICE void settled() {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

template <class E> struct ColumnsInSmem {
    typedef typename E::Number N;
    typedef typename E::Bits Bits;
    typedef gpulossi_cross_entropy Params;
    typedef BasicCrossEntropy<E> Loss;
    typedef typename Loss::Totals Totals;
    typedef ColumnVector<E> Of;
    enum {
        /* A thread has W columns. */
        W = Of::W,
        kTile = kLanes * W,
        /* In shared memory are the slots, and the states at its end. */
        kSmemSize = Of::kSmemSize,
        /* A thread has kSlots slots, for a page of its classes. */
        kSlots = kSmemSize / GPULOSSI_BLOCK - kTile / kLanes,
        /* Columns without a class have one of these instead. */
        kIgnoredClass = -1,
        kBadClass = -2
    };
    static_assert(kSlots >= GPULOSSI_PLANE_CLASSES, "a warp with others has these");
    static_assert(kSmemSize / GPULOSSI_BLOCK - 2 * kTile / kLanes >= GPULOSSI_PLANE_CLASSES,
                  "a warp by itself has fewer");

    const Params &p;
    const Loss &loss;
    const Group &group;
    uint2 *smem;
    const Queue &queue;
    int64_t image;  /* image of this thread's columns */
    int thread;     /* in the block */
    int log2_warps; /* of a group */

    __device__ __forceinline__ ColumnsInSmem(const Params &p, const Loss &loss, uint2 *smem, const Group &group,
                                             const Queue &queue)
        : p(p), loss(loss), group(group), smem(smem), queue(queue), thread((int)threadIdx.x),
          log2_warps(group.shift - kLaneShift) {}

    __device__ __forceinline__ int64_t first() const { return queue.row() * kTile + lane() * W; }
    __device__ __forceinline__ int lane() const { return thread & (kLanes - 1); }
    __device__ __forceinline__ int warp() const { return thread >> kLaneShift & (warps() - 1); } /* in its group */
    __device__ __forceinline__ int warps() const { return 1 << log2_warps; }
    __device__ __forceinline__ bool live() const { return first() < p.rows.rows; }
    /* The classes of this warp are warp() + slot * warps(). This is their number. */
    __device__ __forceinline__ int classes() const {
        return max((int)p.rows.classes - warp() + warps() - 1, 0) >> log2_warps;
    }
    __device__ __forceinline__ bool of_one_page() const { return p.rows.classes <= (int64_t)kSlots << log2_warps; }

    /* Two words of column i of this lane, for a warp of the group. */
    __device__ __forceinline__ uint2 &words(int of_warp, int i) const {
        return smem[kSmemSize - (warps() * (group.count - group.number) - of_warp) * kTile + i * kLanes + lane()];
    }
    __device__ __forceinline__ Softmax<N> state(int of_warp, int i) const {
        uint2 word = words(of_warp, i);
        Softmax<N> s = {__uint_as_float(word.x), __uint_as_float(word.y)};
        return s;
    }
    __device__ __forceinline__ void put(int i, const Softmax<N> &s) const {
        words(warp(), i) = make_uint2(__float_as_uint(s.row_max), __float_as_uint(s.sum));
    }
    __device__ __forceinline__ uint2 &slot(int k) const { return smem[k * GPULOSSI_BLOCK + thread]; }

    /* The offset of this thread's columns in an array, in its first class of a page. */
    __device__ __forceinline__ int64_t start(int64_t stride, int page) const {
        int64_t c = warp() + ((int64_t)page * kSlots << log2_warps);
        return image * (stride - p.inner) + first() + c * p.inner;
    }

    /* Starts the copies of a page of n classes. */
    __device__ __forceinline__ void load(int page, int n) const {
        const Bits *from = (const Bits *)p.logits + start(p.logits_stride, page);
        int64_t step = p.inner << log2_warps;
        uint32_t to = (uint32_t)__cvta_generic_to_shared(&slot(0));
#pragma unroll 4
        for (int k = 0; k < n; k++, from += step, to += GPULOSSI_BLOCK * sizeof(uint2))
            asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(__cvta_generic_to_global(from))
                         : "memory");
        request_group();
    }

    /* The targets of the columns that this thread finishes: classes, or the kinds of targets instead. Targets of all
     * images are contiguous. */
    template <class T> __device__ __forceinline__ void targets_of(const T *from, int (&y)[W]) const {
        int64_t read[W];
        from += first() + warp();
#pragma unroll
        for (int j = 0; j < W; j++) {
            read[j] = 0;
            if (warp() + (j << log2_warps) < W)
                read[j] = from[j << log2_warps];
        }
#pragma unroll
        for (int j = 0; j < W; j++) {
            if (W > 2 && warp() + (j << log2_warps) >= W)
                break;
            Target target = kind_of(p, read[j]);
            y[j] = target == kClass ? (int)read[j] : target == kIgnored ? (int)kIgnoredClass : (int)kBadClass;
        }
    }
    __device__ __forceinline__ void targets(int (&y)[W]) const {
        with_targets(p, [&](auto *from) { targets_of(from, y); });
    }

    /* Adds m slots to the sums, without the factor of ScaledExp. No slot is above the row maxima. */
    template <int m> __device__ __forceinline__ void add(int k, const N (&row_max)[W], N (&sum)[W]) const {
        uint2 x[m];
#pragma unroll
        for (int j = 0; j < m; j++)
            x[j] = slot(k + j);
#pragma unroll
        for (int i = 0; i < W; i++) {
            ScaledExp<N> below(row_max[i]);
            N part[m];
#pragma unroll
            for (int j = 0; j < m; j++)
                part[j] = below.exp(Of::number(x[j], i));
            sum[i] += in_halves<Sum>(part);
        }
    }
    /* Adds the n slots of a page to the states of their columns. */
    __device__ __forceinline__ void enter(int page, int n) const {
        enum { m = 4 };
        Softmax<N> s[W];
        uint2 row_maxima = slot(0);
        bool all_in_fast_range = true;
        int k;
#pragma unroll 4
        for (k = 1; k < n; k++) {
            row_maxima = Of::larger_each(row_maxima, slot(k));
        }
#pragma unroll
        for (int i = 0; i < W; i++) {
            s[i] = Softmax<N>::empty();
            if (page > 0)
                s[i] = state(warp(), i);
            all_in_fast_range = all_in_fast_range && ScaledExp<N>::in_fast_range(Of::number(row_maxima, i));
        }
        if (all_in_fast_range) {
            N row_max[W], sum[W];
#pragma unroll
            for (int i = 0; i < W; i++) {
                row_max[i] = larger(s[i].row_max, Of::number(row_maxima, i));
                if (page > 0)
                    s[i].raise(row_max[i]);
                s[i].row_max = row_max[i];
                put(i, s[i]);
                sum[i] = N(0);
            }
            asm volatile("" ::: "memory"); /* the stored states take no registers */
#pragma unroll 1
            for (k = 0; k + m <= n; k += m)
                add<m>(k, row_max, sum);
#pragma unroll 1
            for (; k < n; k++)
                add<1>(k, row_max, sum);
#pragma unroll
            for (int i = 0; i < W; i++) {
                s[i] = state(warp(), i);
                s[i].sum = fma(sum[i], ScaledExp<N>(s[i].row_max).factor, s[i].sum);
            }
        } else {
#pragma unroll 1
            for (k = 0; k < n; k++) {
                uint2 x = slot(k);
#pragma unroll
                for (int i = 0; i < W; i++) {
                    N one = Of::number(x, i);
                    s[i].raise(larger(s[i].row_max, one));
                    s[i].sum += exp_below(one, Softmax<N>::finite(s[i].row_max));
                }
            }
        }
#pragma unroll
        for (int i = 0; i < W; i++)
            put(i, s[i]);
    }

    /* The state of a column, merged over the warps of a group. The difference of two infinities is formed only where
     * the sum is NaN. */
    __device__ __forceinline__ Softmax<N> merged_state(int i) const {
        Softmax<N> s = state(0, i);
#pragma unroll 1
        for (int w = 1; w < warps(); w++) {
            Softmax<N> other = state(w, i);
            N row_max = larger(s.row_max, other.row_max), from = Softmax<N>::finite(row_max);
            s.sum = fma(s.sum, exp_below(s.row_max, from), other.sum * exp_below(other.row_max, from));
            s.row_max = row_max;
        }
        return s;
    }

    /* Finishes a column from the states of its warps, and returns its loss. The gradient's inputs replace the
     * states. */
    __device__ __forceinline__ N finish(int i, int y, Totals &total) const {
        typename Loss::Row r = {};
        Softmax<N> s = Softmax<N>::empty();
        N x_y = N(0);
        r.row = first() + i;
        r.position = y;
        if (Loss::reduces())
            s = merged_state(i);
        if (y >= 0 && of_one_page()) {
            int owner = group.number * group.size + (y & (warps() - 1)) * kLanes + lane();
            x_y = E::widen(((const Bits *)&smem[(y >> log2_warps) * GPULOSSI_BLOCK + owner])[i]);
        } else if (y >= 0) {
            x_y =
                E::widen(((const Bits *)p.logits)[image * (p.logits_stride - p.inner) + r.row + (int64_t)y * p.inner]);
        }
        loss.close(r, s);
        if (Loss::writes()) {
            N of_target = loss.of_target(r, x_y);
            words(0, i) = make_uint2(__float_as_uint(r.row_max), __float_as_uint(r.inverse * r.scale));
            words(1, i) = make_uint2(__float_as_uint(of_target), (uint32_t)y);
        }
        return loss.result(loss.unfinished(r, s, &x_y), total);
    }

    __device__ __forceinline__ Slopes<E> slopes() const {
        Slopes<E> slopes;
#pragma unroll
        for (int i = 0; i < W; i++) {
            uint2 word = words(0, i);
            slopes.add(i, __uint_as_float(word.x), __uint_as_float(word.y), Loss::reduces() || (int)words(1, i).y >= 0);
        }
        slopes.settle();
        return slopes;
    }
    /* Replaces the logits of a page by their gradients. The targets' gradients are then written over the results of the
     * common formula. */
    __device__ __forceinline__ void gradients(const Slopes<E> &slopes, int page, int n) const {
        N of_targets[W];
        int y[W];
#pragma unroll
        for (int i = 0; i < W; i++) {
            uint2 word = words(1, i);
            of_targets[i] = __uint_as_float(word.x);
            y[i] = (int)word.y;
        }
        if (slopes.simple) {
#pragma unroll 2
            for (int k = 0; k < n; k++)
                slot(k) = slopes.of(slot(k));
        } else {
#pragma unroll 1
            for (int k = 0; k < n; k++)
                slot(k) = slopes.of(slot(k), y);
        }
#pragma unroll
        for (int i = 0; i < W; i++) {
            int k = (y[i] >> log2_warps) - page * kSlots;
            if (y[i] >= 0 && (y[i] & (warps() - 1)) == warp() && (uint32_t)k < (uint32_t)n)
                ((Bits *)&slot(k))[i] = E::narrow(of_targets[i]);
        }
        Bits *to = (Bits *)p.rows.grad + start(p.rows.grad_stride, page);
        int64_t step = p.inner << log2_warps;
#pragma unroll 4
        for (int k = 0; k < n; k++, to += step)
            __stcs((uint2 *)to, slot(k));
    }
    /* Writes the gradients of all pages. It starts with the last page, which is still in shared memory. */
    __device__ __forceinline__ void write() const {
        const Slopes<E> needed = slopes();
        int n = classes(), page = max(n - 1, 0) / kSlots;
#pragma unroll 1
        for (;;) {
            gradients(needed, page, min(n - page * kSlots, (int)kSlots));
            if (--page < 0)
                return;
            load(page, kSlots);
            settled<0>();
        }
    }

    DEVICE void run(const Params &p) {
        uint2 *smem = Of::smem();
        Loss loss(p);
        Group group(p.rows.group);
        Queue queue(loss.scratch(), group, (p.rows.rows + kTile - 1) / kTile, 1);
        ColumnsInSmem columns(p, loss, smem, group, queue);
        Totals total = Totals::zero();
        int n = columns.classes();
#pragma unroll 1
        while (queue.more()) {
            int y[W] = {};
            double sum = 0;
            columns.image = (int64_t)((uint64_t)columns.first() / (uint64_t)p.inner);
#pragma unroll 1
            for (int page = 0; page == 0 || page * kSlots < n; page++) {
                int of_page = min(n - page * kSlots, (int)kSlots);
                keep(columns.thread); /* addresses are computed again: they would take registers from tile to tile */
                keep(columns.log2_warps);
                if (columns.live()) {
                    columns.load(page, of_page);
                    columns.targets(y);
                }
                /* Other warps read the inputs of the last tile's gradients until here. */
                if (Loss::writes() && page == 0)
                    group.settle();
                settled<0>();
                if (columns.live() && Loss::reduces())
                    columns.enter(page, of_page);
            }
            queue.announce();
            group.settle();
            if (columns.live()) {
#pragma unroll 1
                for (int i = columns.warp(); i < W; i += columns.warps()) {
                    sum += (double)columns.finish(i, y[0], total);
                    /* Losses from a given lse may cancel, so each is added to the exact sum. */
                    if (!Loss::reduces() || i + columns.warps() >= W) {
                        loss.add(sum, total);
                        sum = 0;
                    }
#pragma unroll
                    for (int j = 0; j + 1 < W; j++)
                        y[j] = y[j + 1];
                }
            }
            group.settle();
            if (Loss::writes() && columns.live())
                columns.write();
            queue.advance();
        }
        __syncthreads();
        Totals *totals = (Totals *)smem;
        totals[threadIdx.x] = total;
        end(loss, loss.scratch(), totals);
    }
};

#endif
