/* Cross-entropy of logits against class indices. With x a row of logits and y its target:
 *
 *   lse = log sum_c exp(x_c),   loss = lse - x_y,   dx_c = s (exp(x_c - lse) - [c = y])
 */
#include "rows.cuh"

enum Target { kClass, kIgnored, kBad };

/* The target of a row, and which kind it is. */
DEVICE Target read_target(uint64_t targets, uint32_t flags, int64_t ignore_index, int64_t classes, int64_t row,
                          int64_t *y) {
    *y = flags & GPULOSSI_I32_TARGETS ? ((const int32_t *)targets)[row] : ((const int64_t *)targets)[row];
    if ((flags & GPULOSSI_IGNORES) && *y == ignore_index)
        return kIgnored;
    return *y >= 0 && *y < classes ? kClass : kBad;
}

template <class E> struct CrossEntropy {
    typedef E Element;
    typedef typename E::Number Number;
    typedef Number N;
    typedef gpulossi_cross_entropy Params;
    enum { kArrays = 1, kOnePass = false, W = Width<E>::value };

    /* top = max x, sum = sum exp(x - top). All -inf so far: sum is 0, and a difference of two infinities is never formed. */
    struct State {
        N top, sum;

        DEVICE State empty() {
            State s = {-Limits<N>::infinity(), N(0)};
            return s;
        }
        __device__ __forceinline__ void raise(N higher) {
            if (higher != top)
                sum *= exp_below(top, higher);
            top = higher;
        }
        __device__ __forceinline__ void fold(int width) {
            raise(over_lanes<Maximum>(top, width));
            sum = over_lanes<Sum>(sum, width);
        }
    };

    struct Row {
        int64_t row, y;
        Target target;
        N x_y;
        /* gradient = exp(x - top) * weight, and at y: (exp(x - top) * inverse - 1) * scale */
        N top, inverse, scale, weight;
    };

    const Params &p;
    double grad_scale;

    __device__ __forceinline__ explicit CrossEntropy(const Params &p) : p(p), grad_scale(p.rows.grad_scale) {
        if (p.rows.grad_loss)
            grad_scale *= *(const N *)p.rows.grad_loss;
        if (p.rows.flags & GPULOSSI_DIVIDED_GRAD)
            grad_scale /= ((const gpulossi_scratch *)p.rows.scratch)->divisor;
    }

    __device__ __forceinline__ const typename E::Bits *array(int, int64_t row) const {
        return (const typename E::Bits *)p.logits + row * p.logits_stride;
    }
    __device__ __forceinline__ typename E::Bits *grad(int64_t row) const {
        return (typename E::Bits *)p.rows.grad + row * p.rows.grad_stride;
    }
    __device__ __forceinline__ N absent(int) const { return -Limits<N>::infinity(); }
    __device__ __forceinline__ bool reduces() const { return p.lse_in == 0; }
    __device__ __forceinline__ bool sums_apart() const { return false; }

    __device__ __forceinline__ Row begin(int64_t row) const {
        Row r;
        r.row = row;
        r.target = kIgnored;
        r.y = 0;
        r.x_y = 0;
        if (row < p.rows.rows) {
            r.target = read_target(p.targets, p.rows.flags, p.ignore_index, p.rows.classes, row, &r.y);
            if (r.target == kClass)
                r.x_y = E::widen(array(0, row)[r.y]);
        }
        return r;
    }

    template <int K, class C>
    __device__ __forceinline__ void enter(const Row &, State &s, const C &, typename C::Index, typename C::Index,
                                          const Vector<E> (&x)[K][1]) const {
        N top = s.top;
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int i = 0; i < W; i++)
                top = larger(top, x[k][0].get(i));
        if (top == -Limits<N>::infinity())
            return;
        s.raise(top);
#pragma unroll
        for (int k = 0; k < K; k++) {
            N sum = 0;
#pragma unroll
            for (int i = 0; i < W; i++)
                sum += exp_below(x[k][0].get(i), top);
            s.sum += sum;
        }
    }

    __device__ __forceinline__ void close(Row &r, const State &s) const {
        r.top = reduces() ? s.top : ((const N *)p.lse_in)[r.row];
        r.inverse = reduces() ? reciprocal(s.sum) : N(1);
        double scale = grad_scale;
        if (p.rows.grad_loss_rows)
            scale *= ((const N *)p.rows.grad_loss_rows)[r.row];
        r.scale = (N)scale;
        r.weight = r.inverse * r.scale;
    }

    __device__ __forceinline__ Total finish(const Row &r, const State &s) const {
        N log_sum = reduces() ? natural_log(s.sum) : N(0);
        N loss = r.target == kClass ? log_sum + (r.top - r.x_y) : r.target == kIgnored ? N(0) : Limits<N>::nan();
        if (p.lse)
            ((N *)p.lse)[r.row] = r.top + log_sum;
        if (p.rows.loss_rows)
            ((N *)p.rows.loss_rows)[r.row] = loss;
        if (r.target == kBad && p.bad_targets)
            atomicAdd((unsigned long long *)&((gpulossi_scratch *)p.rows.scratch)->bad_targets, 1ull);
        Total t = {(double)loss, r.target == kIgnored ? 0.0 : 1.0};
        return t;
    }

    __device__ __forceinline__ void gradient(const Row &r, int64_t first, const Vector<E> (&x)[1],
                                             N (&g)[Width<E>::value]) const {
        int64_t off = r.y - first;
        int y = off >= 0 && off < W ? (int)off : -1;
#pragma unroll
        for (int i = 0; i < W; i++) {
            N e = exp_below(x[0].get(i), r.top);
            g[i] = r.target != kClass ? N(0) : i == y ? (e * r.inverse - N(1)) * r.scale : e * r.weight;
        }
    }

    __device__ __forceinline__ void conclude(const Total &total) const {
        gpulossi_scratch *scratch = (gpulossi_scratch *)p.rows.scratch;
        double divisor = p.rows.flags & GPULOSSI_DATA_DIVISOR ? total.divisor : p.rows.divisor;
        if (p.rows.loss)
            *(N *)p.rows.loss = (N)(total.sum / divisor);
        if (p.bad_targets) {
            *(int64_t *)p.bad_targets = (int64_t)__ldcg(&scratch->bad_targets);
            scratch->bad_targets = 0;
        }
    }
};

/* The kernels, by the names that the module table gives them. */
template <class E> struct held {
    enum { threads = GPULOSSI_HELD_THREADS, blocks = 1 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        Schedule<CrossEntropy<E> >::template held<GPULOSSI_VECTORS_HELD>(p);
    }
};

template <class E> struct streamed {
    enum { threads = GPULOSSI_STREAMED_THREADS, blocks = sizeof(typename E::Bits) == 8 ? 2 : 3 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        Schedule<CrossEntropy<E> >::template streamed<GPULOSSI_VECTORS_STREAMED>(p);
    }
};

/* How many rows are not ignored, into scratch.divisor: the divisor of a mean's gradient. */
struct targets {};
template <class> struct count {
    enum { threads = GPULOSSI_COUNT_THREADS, blocks = 1 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        gpulossi_scratch *scratch = (gpulossi_scratch *)p.rows.scratch;
        Total total = {0.0, 0.0};
        int64_t y, stride = (int64_t)gridDim.x * blockDim.x, counted = 0;
#pragma unroll 1
        for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < p.rows.rows; row += stride)
            counted += read_target(p.targets, p.rows.flags, p.ignore_index, p.rows.classes, row, &y) != kIgnored;
        total.divisor = (double)counted;
        if (total.fold_grid(scratch, &scratch->counts_done) && threadIdx.x == 0)
            scratch->divisor = total.divisor;
    }
};

typedef MODULE_KERNEL<MODULE_DTYPE> Kernel;

extern "C" __global__ void __launch_bounds__(Kernel::threads, Kernel::blocks)
    MODULE_ENTRY(const __grid_constant__ gpulossi_cross_entropy p) {
    Kernel::run(p);
}
