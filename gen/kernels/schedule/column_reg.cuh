/* Cross-entropy without options where the classes are few and not innermost. column_smem.cuh has more classes. A thread
 * has all classes of 8 bytes of columns in registers, and issues all loads before it waits for the first. It also
 * stores the logits in shared memory, in slots of its own. There it reads the targets' logits by index, and completes
 * the gradients. */
#ifndef GPULOSSI_COLUMN_REG_CUH
#define GPULOSSI_COLUMN_REG_CUH

#include "ce_basic.cuh"
#include "../device/column_vec.cuh"
#include "row_generic.cuh"

template <class E> class ColumnsInRegisters {
    typedef typename E::Number N;
    typedef typename E::Bits Bits;
    typedef gpulossi_cross_entropy Params;
    typedef BasicCrossEntropy<E> Loss;
    typedef typename Loss::Totals Totals;
    typedef typename Loss::Row Row;
    typedef ColumnVector<E> Of;
    enum { W = Of::W, kTile = kLanes * W, kMost = GPULOSSI_PLANE_REG_CLASSES, kAtOnce = 4 };
    static_assert(kMost % 2 == 0, "gradients are formed for two classes at a time");
    static_assert(kMost * GPULOSSI_BLOCK <= Of::kSmemSize, "a thread has a slot for each class");

    const Params &p;
    const Loss &loss;
    uint2 *slots;
    int classes;
    N scale; /* factor of all gradients, if columns have none of their own */

    struct Position {
        int64_t first, image; /* first column of this thread in a tile, and its image */
    } at;                     /* in the current tile */
    int y[W];                 /* target's class of a column, or a negative reason why there is none */
    N row_max[W], sum[W];
    double losses; /* sum over the iterations of a queue tile */
    int counted;   /* columns with a class in it */

    __device__ __forceinline__ ColumnsInRegisters(const Params &p, const Loss &loss, uint2 *smem)
        : p(p), loss(loss), slots(smem + threadIdx.x), classes((int)p.rows.classes), scale(0), losses(0), counted(0) {
        if (Loss::writes()) {
            scale = loss.common_scale();
            keep(scale); /* without gradients, it is not set and not read */
        }
    }

    __device__ __forceinline__ uint2 &slot(int k) const { return slots[k * GPULOSSI_BLOCK]; }
    __device__ __forceinline__ Bits *at_slot(int k, int i) const { return (Bits *)&slot(k) + i; }
    /* Finds this thread's columns in a tile. Returns whether there are any. */
    __device__ __forceinline__ bool find(int64_t tile, Position &position) const {
        position.first = tile * kTile + threadIdx.x % kLanes * W;
        position.image = (int64_t)((uint64_t)position.first / (uint64_t)p.inner);
        return position.first < p.rows.rows;
    }
    __device__ __forceinline__ int64_t start(const Position &position, int64_t stride) const {
        return position.image * (stride - p.inner) + position.first;
    }

    __device__ __forceinline__ void fetch(const Position &position, uint2 (&x)[kMost], int64_t (&targets)[W]) const {
        const Bits *from = (const Bits *)p.logits + start(position, p.logits_stride);
        int64_t step = p.inner;
#pragma unroll
        for (int k = 0; k < kMost; k++, from += step) {
            x[k] = Of::none();
            asm volatile("{ .reg .pred there; setp.ne.s32 there, %3, 0;\n\t"
                         "@there ld.global.cs.v2.u32 {%0, %1}, [%2]; }"
                         : "+r"(x[k].x), "+r"(x[k].y)
                         : "l"(__cvta_generic_to_global(from)), "r"((int)(k < classes))
                         : "memory");
        }
        with_targets(p, [&](auto *indices) {
#pragma unroll
            for (int i = 0; i < W; i++)
                targets[i] = indices[position.first + i];
        });
    }
    /* Stores the fetched logits in shared memory, and sets the targets and the row maxima. */
    __device__ __forceinline__ void receive(const uint2 (&x)[kMost], const int64_t (&targets)[W]) {
        uint2 row_maxima = Of::none();
#pragma unroll
        for (int k = 0; k < kMost; k += kAtOnce)
            if (k < classes) {
#pragma unroll
                for (int j = k; j < k + kAtOnce && j < kMost; j++) {
                    slot(j) = x[j];
                    row_maxima = Of::larger_each(row_maxima, x[j]);
                }
            }
#pragma unroll
        for (int i = 0; i < W; i++) {
            Target target = kind_of(p, targets[i]);
            y[i] = target == kClass ? (int)targets[i] : target == kIgnored ? -1 : -2;
            row_max[i] = Of::number(row_maxima, i);
            sum[i] = N(1);
        }
    }

    __device__ __forceinline__ void add_up(const uint2 (&x)[kMost]) {
        bool all_in_fast_range = true;
#pragma unroll
        for (int i = 0; i < W; i++) {
            all_in_fast_range = all_in_fast_range && ScaledExp<N>::in_fast_range(row_max[i]);
            sum[i] = N(0);
        }
        if (all_in_fast_range) {
#pragma unroll
            for (int k = 0; k < kMost; k += kAtOnce)
                if (k < classes) {
#pragma unroll
                    for (int i = 0; i < W; i++) {
                        N part[kAtOnce];
#pragma unroll
                        for (int j = 0; j < kAtOnce; j++)
                            part[j] = k + j < kMost
                                          ? ScaledExp<N>(row_max[i]).exp(Of::number(x[min(k + j, kMost - 1)], i))
                                          : N(0);
                        sum[i] += in_halves<Sum>(part);
                    }
                }
#pragma unroll
            for (int i = 0; i < W; i++)
                sum[i] *= ScaledExp<N>(row_max[i]).factor;
        } else {
#pragma unroll 1
            for (int k = 0; k < classes; k++) {
                uint2 word = slot(k);
#pragma unroll
                for (int i = 0; i < W; i++)
                    sum[i] += exp_below(Of::number(word, i), Softmax<N>::finite(row_max[i]));
            }
        }
    }

    __device__ __forceinline__ Row row(int i) const {
        Row r;
        r.row = at.first + i;
        r.vector = -1;
        r.position = y[i];
        r.row_max = row_max[i];
        return r;
    }
    __device__ __forceinline__ N of_target(int i, int y) const {
        return y >= 0 ? E::widen(*at_slot(y, i)) : N(0);
    }

    __device__ __forceinline__ void add(Totals &total) {
        bool usual = Loss::reduces() && !Loss::has_row_outputs();
#pragma unroll
        for (int i = 0; i < W; i++)
            usual = usual && y[i] >= -1;
        if (!usual) {
            add_slowly(total);
            return;
        }
        N product = N(1);
#pragma unroll
        for (int i = 0; i < W; i++)
            if (y[i] >= 0) {
                product *= at_least_1(sum[i]); /* the sum has an exp(0) */
                losses += (double)(row_max[i] - of_target(i, y[i]));
                counted++;
            }
        losses += (double)natural_log(product);
    }
    /* This is rare, so it is not unrolled. Losses from a given lse may cancel, so each is added to the exact sum. */
    __device__ __forceinline__ void add_slowly(Totals &total) {
        typename Loss::Unfinished u[W];
#pragma unroll
        for (int i = 0; i < W; i++) {
            Softmax<N> s = {row_max[i], sum[i]};
            N x_y = of_target(i, y[i]);
            u[i] = loss.unfinished(row(i), s, &x_y);
        }
#pragma unroll 1
        for (int i = 0; i < W; i++) {
            losses += (double)loss.result(u[0], total);
            if (!Loss::reduces())
                settle(total);
#pragma unroll
            for (int j = 0; j + 1 < W; j++)
                u[j] = u[j + 1];
        }
    }
    __device__ __forceinline__ void settle(Totals &total) {
        loss.add(losses, total);
        loss.count(counted, total);
        losses = 0;
        counted = 0;
    }

    __device__ __forceinline__ void write() const {
        Slopes<E> slopes;
        N of_targets[W], scales[W];
#pragma unroll
        for (int i = 0; i < W; i++)
            scales[i] = scale;
        if (has(GPULOSSI_CE_ROW_GRADIENTS))
#pragma unroll
            for (int i = 0; i < W; i++)
                scales[i] = loss.scale_of(at.first + i) + N(0); /* the addition waits for the load here */
#pragma unroll
        for (int i = 0; i < W; i++) {
            N inverse = Loss::reduces() ? quick_reciprocal(sum[i]) : N(1), of_column = y[i] >= 0 ? scales[i] : N(0);
            of_targets[i] = Loss::of_target(exp_below(of_target(i, y[i]), row_max[i]) * inverse, of_column);
            slopes.add(i, row_max[i], inverse * of_column, Loss::reduces() || y[i] >= 0);
        }
        slopes.settle();
        if (slopes.simple) {
#pragma unroll 2
            for (int k = 0; k < classes; k += 2) { /* one class more than there are does no harm */
                slot(k) = slopes.of(slot(k));
                slot(k + 1) = slopes.of(slot(k + 1));
            }
        } else {
#pragma unroll 1
            for (int k = 0; k < classes; k++)
                slot(k) = slopes.of(slot(k), y);
        }
#pragma unroll
        for (int i = 0; i < W; i++)
            if (y[i] >= 0)
                *at_slot(y[i], i) = E::narrow(of_targets[i]);
        Bits *to = (Bits *)p.rows.grad + start(at, p.rows.grad_stride);
        int64_t step = p.inner;
#pragma unroll 4
        for (int k = 0; k < classes; k++, to += step)
            __stcs((uint2 *)to, slot(k));
    }

    __device__ __forceinline__ void reduce(const Position &position, const uint2 (&x)[kMost],
                                           const int64_t (&targets)[W]) {
        at = position;
        receive(x, targets);
        if (Loss::reduces())
            add_up(x);
        else
#pragma unroll
            for (int i = 0; i < W; i++)
                row_max[i] = ((const N *)p.lse_in)[at.first + i] + N(0); /* waits here, not for the next loads too */
    }
    __device__ __forceinline__ void finish(Totals &total) {
        if (loss.has_results())
            add(total);
        if (Loss::writes())
            write();
    }

  public:
    DEVICE void run(const Params &p) {
        uint2 *smem = Of::smem();
        Loss loss(p);
        Group group(kLanes);
        const int64_t tiles = (p.rows.rows + kTile - 1) / kTile;
        const int run = tiles > 8ll * gridDim.x * group.count ? Queue::kRun : 1;
        Queue queue(loss.scratch(), group, tiles, run);
        ColumnsInRegisters columns(p, loss, smem);
        Totals total = Totals::zero();
        uint2 x[kMost];
        int64_t targets[W];
        Position next;
        bool live = false, last = false;
#pragma unroll 1
        for (;;) {
            bool more = queue.more(), next_live = more && columns.find(queue.row(), next);
            if (next_live) /* in flight while the tile before is finished */
                columns.fetch(next, x, targets);
            if (live)
                columns.finish(total);
            if (last)
                columns.settle(total);
            if (!more)
                break;
            live = next_live;
            last = ((int)queue.row() & (run - 1)) == run - 1;
            queue.announce();
            if (live)
                columns.reduce(next, x, targets);
            group.settle();
            queue.advance();
        }
        columns.settle(total);
        __syncthreads();
        Totals *totals = (Totals *)smem;
        totals[threadIdx.x] = total;
        end(loss, loss.scratch(), totals);
    }
};

#endif
