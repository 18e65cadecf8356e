/* Cross-entropy without options where the classes are not innermost: arrays [images, classes, inner], a row is a column
 * of an image, and all vectors of neighbouring columns can be loaded and stored at once.
 *
 * A tile is a vector of columns a lane. Lanes lie along them and the warps of a group along the classes; what the warps
 * find is brought together in shared memory, where a thread finishes a column. A tile of all classes is small enough to
 * stay in the L2 cache until the gradient reads it again. */
#ifndef GPULOSSI_PLANES_CUH
#define GPULOSSI_PLANES_CUH

#include "plain.cuh"

template <class E> struct Planes {
    static_assert(GPULOSSI_PLANE_VECTORS == kLanes, "a vector of columns a lane");
    typedef typename E::Number N;
    typedef gpulossi_cross_entropy Params;
    typedef Plain<E> Loss;
    typedef typename Loss::Totals Totals;
    enum { W = Width<E>::value, kTile = GPULOSSI_PLANE_VECTORS * W, K = 8, kLost = -1 };

    /* What the gradient needs of a column. */
    struct Column {
        N top, weight; /* gradient = exp(x - top) weight */
        N of_target;
        int y; /* kLost: all is 0 */
    };
    /* First the state of one warp's classes. */
    union Slot {
        Softmax<N> state;
        Column column;
    };

    const Params &p;
    Group group;
    int64_t first; /* column of this thread, which has W */

    __device__ __forceinline__ explicit Planes(const Params &p) : p(p), group(p.rows.group), first(0) {}

    __device__ __forceinline__ int lane() const { return threadIdx.x % kLanes; }
    __device__ __forceinline__ int warp() const { return group.rank / kLanes; } /* in its group, which has: */
    __device__ __forceinline__ int warps() const { return group.size / kLanes; }
    __device__ __forceinline__ bool live() const { return first < p.rows.rows; }
    /* Where class 0 of a column is in an array. */
    __device__ __forceinline__ int64_t start(int64_t column, int64_t stride) const {
        uint64_t image = (uint64_t)column / (uint64_t)p.inner;
        return (int64_t)image * (stride - p.inner) + column;
    }

    /* This warp's classes enter the states of the thread's columns, K at a time. */
    __device__ __forceinline__ void reduce(Softmax<N> (&s)[W]) const {
        const typename E::Bits *from = (const typename E::Bits *)p.logits + start(first, p.logits_stride);
#pragma unroll 1
        for (int c = warp(); c < (int)p.rows.classes; c += K * warps()) {
            Vector<E> x[K];
#pragma unroll
            for (int k = 0; k < K; k++) {
                x[k] = filled<E>(-Limits<N>::infinity());
                if (c + k * warps() < (int)p.rows.classes)
                    x[k] = load_vector<E, kRead_again>(from + (c + k * warps()) * p.inner);
            }
#pragma unroll
            for (int i = 0; i < W; i++) {
                N part[K];
#pragma unroll
                for (int k = 0; k < K; k++)
                    part[k] = x[k].get(i);
                s[i].enter(part);
            }
        }
    }

    /* One column from the states of its warps: its results, and what stays in their place. */
    __device__ __forceinline__ void finish(const Loss &loss, Slot (*slots)[kTile], int at, int64_t column,
                                           Totals &total) const {
        Softmax<N> s = slots[0][at].state;
#pragma unroll 1
        for (int w = 1; w < warps(); w++) {
            Softmax<N> other = slots[w][at].state;
            N top = larger(s.top, other.top);
            s.raise(top);
            other.raise(top);
            s.sum += other.sum;
        }
        Cut<E> cut(0, p.rows.classes);
        typename Loss::Row r = loss.begin(cut, column, true);
        N x_y = N(0);
        int y = r.vector * W + r.place;
        if (r.place >= 0)
            x_y = E::widen(((const typename E::Bits *)p.logits)[start(column, p.logits_stride) + y * p.inner]);
        loss.close(r, s);
        loss.finish(loss.unfinished(r, s, &x_y), total);
        if (!loss.writes())
            return;
        Column done = {r.top, r.inverse * r.scale, (exp_below(x_y, r.top) * r.inverse - N(1)) * r.scale,
                       r.place >= 0 ? y : (int)kLost};
        slots[0][at].column = done;
    }

    template <bool kNear> __device__ __forceinline__ void gradients(const Slot *of) const {
        const typename E::Bits *from = (const typename E::Bits *)p.logits + start(first, p.logits_stride);
        typename E::Bits *to = (typename E::Bits *)p.rows.grad + start(first, p.rows.grad_stride);
        N top[W], weight[W];
        int y[W];
#pragma unroll
        for (int i = 0; i < W; i++) {
            top[i] = of[i].column.top;
            y[i] = of[i].column.y;
            weight[i] = of[i].column.weight * (kNear ? Below<N>(top[i]).factor : N(1));
        }
        /* From the end: what was read last is still in the cache. */
#pragma unroll 1
        for (int c = warp() + ((int)p.rows.classes - 1 - warp()) / warps() * warps(); c >= 0; c -= warps()) {
            Vector<E> x = load_vector<E, kRead_once>(from + c * p.inner);
            N g[W];
#pragma unroll
            for (int i = 0; i < W; i++) {
                g[i] = (kNear ? Below<N>(top[i]).exp(x.get(i)) : exp_below(x.get(i), top[i])) * weight[i];
                if (c == y[i])
                    g[i] = of[i].column.of_target;
            }
            bool finite = in_halves<Sum>(g) == in_halves<Sum>(g);
            if (!finite)
#pragma unroll
                for (int i = 0; i < W; i++)
                    g[i] = y[i] == kLost ? N(0) : g[i];
            store_whole<E, E>(to + c * p.inner, g, finite);
        }
    }
    __device__ __forceinline__ void gradients(const Slot (*slots)[kTile]) const {
        const Slot *of = &slots[0][lane() * W];
        bool near = true;
#pragma unroll
        for (int i = 0; i < W; i++)
            near = near && Below<N>::near(of[i].column.top);
        if (near)
            gradients<true>(of);
        else
            gradients<false>(of);
    }

    DEVICE void run(const Params &p) {
        __shared__ Totals totals[GPULOSSI_BLOCK];
        __shared__ Slot slots[kWarps][kTile];
        Loss loss(p);
        Planes planes(p);
        Group &group = planes.group;
        Queue queue(loss.scratch(), group, (p.rows.rows + kTile - 1) / kTile, 1);
        Slot(*of_group)[kTile] = slots + group.number * planes.warps();
        totals[threadIdx.x] = Totals::zero();
#pragma unroll 1
        while (queue.more()) {
            int64_t tile = queue.row() * kTile;
            Softmax<N> s[W];
            planes.first = tile + planes.lane() * W;
#pragma unroll
            for (int i = 0; i < W; i++)
                s[i] = Softmax<N>::empty();
            if (loss.reduces() && planes.live())
                planes.reduce(s);
#pragma unroll
            for (int i = 0; i < W; i++)
                of_group[planes.warp()][planes.lane() * W + i].state = s[i];
            queue.announce();
            group.settle();
#pragma unroll 1
            for (int at = group.rank; at < kTile && tile + at < p.rows.rows; at += group.size)
                planes.finish(loss, of_group, at, tile + at, totals[threadIdx.x]);
            queue.advance();
            group.settle();
            if (loss.writes() && planes.live())
                planes.gradients(of_group);
            group.settle();
        }
        end(loss, loss.scratch(), totals[threadIdx.x]);
    }
};

#endif
