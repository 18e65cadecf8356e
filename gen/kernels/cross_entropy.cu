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

    /* top = max x, sum = sum exp(x - top), where a difference of two infinities is never formed: all -inf gives 0. */
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
        template <class Lanes> __device__ __forceinline__ void fold(Lanes lanes) {
            raise(lanes.template over<Maximum>(top));
            sum = lanes.template over<Sum>(sum);
        }
    };

    struct Row {
        int64_t row;
        Target target;
        int vector, place; /* of the target, for the gradient */
        N x_y;
        /* gradient = exp(x - top) * weight, and at y: (exp(x - top) * inverse - 1) * scale */
        N top, inverse, scale, weight;
    };

    const Params &p;
    double grad_scale;

    __device__ __forceinline__ explicit CrossEntropy(const Params &p) : p(p), grad_scale(p.rows.grad_scale) {
        if (p.rows.grad_loss)
            grad_scale *= *(const N *)p.rows.grad_loss;
        if (p.rows.flags & GPULOSSI_COUNTED)
            grad_scale /= (double)scratch()->counted;
    }

    __device__ __forceinline__ const typename E::Bits *array(int, int64_t row) const {
        return (const typename E::Bits *)p.logits + row * p.logits_stride;
    }
    __device__ __forceinline__ typename E::Bits *grad(int64_t row) const {
        return (typename E::Bits *)p.rows.grad + row * p.rows.grad_stride;
    }
    __device__ __forceinline__ gpulossi_scratch *scratch() const { return (gpulossi_scratch *)p.rows.scratch; }
    __device__ __forceinline__ N absent(int) const { return -Limits<N>::infinity(); }
    __device__ __forceinline__ bool reduces() const { return p.lse_in == 0; }
    __device__ __forceinline__ bool sums_apart() const { return false; }

    __device__ __forceinline__ Row begin(const Cut<E> &cut, int64_t row) const {
        Row r;
        r.row = row;
        r.target = kIgnored;
        r.vector = -1;
        r.place = 0;
        r.x_y = 0;
        if (row < p.rows.rows) {
            int64_t y;
            r.target = read_target(p.targets, p.rows.flags, p.ignore_index, p.rows.classes, row, &y);
            if (r.target == kClass) {
                r.vector = cut.vector_of(y);
                r.place = cut.place_of(y);
                r.x_y = E::widen(array(0, row)[y]);
            }
        }
        return r;
    }

    template <int K>
    __device__ __forceinline__ void enter(const Row &, State &s, const Cut<E> &, int, int, Vector<E> (&x)[K][1]) const {
        /* Some vectors at a time, to bound how many numbers are unpacked at once. */
        enum { many = W == 8 ? 1 : 16 / W < K ? 16 / W : K };
#pragma unroll
        for (int first = 0; first < K; first += many) {
            N top = s.top;
#pragma unroll
            for (int k = first; k < first + many; k++)
#pragma unroll
                for (int i = 0; i < W; i++)
                    top = larger(top, x[k][0].get(i));
            s.raise(top);
            /* A NaN among masked classes must still enter the sum. */
            N from = top == -Limits<N>::infinity() ? N(0) : top;
#pragma unroll
            for (int k = first; k < first + many; k++) {
                N sum = 0;
#pragma unroll
                for (int i = 0; i < W; i++)
                    sum += exp_below(x[k][0].get(i), from);
                s.sum += sum;
            }
        }
    }

    __device__ __forceinline__ void close(Row &r, const State &s) const {
        r.top = reduces() ? s.top : ((const N *)p.lse_in)[r.row];
        if (p.rows.grad == 0)
            return;
        r.inverse = reduces() ? reciprocal(s.sum) : N(1);
        r.scale = (N)grad_scale;
        if (p.rows.grad_loss_rows)
            r.scale = (N)(grad_scale * ((const N *)p.rows.grad_loss_rows)[r.row]);
        r.weight = r.inverse * r.scale;
    }

    __device__ __forceinline__ void finish(const Row &r, const State &s, Total &total) const {
        N log_sum = reduces() ? natural_log(s.sum) : N(0);
        N loss = r.target == kClass ? log_sum + (r.top - r.x_y) : r.target == kIgnored ? N(0) : Limits<N>::nan();
        if (p.lse)
            ((N *)p.lse)[r.row] = r.top + log_sum;
        if (p.rows.loss_rows)
            ((N *)p.rows.loss_rows)[r.row] = loss;
        if (r.target == kBad && p.bad_targets)
            atomicAdd((unsigned long long *)&scratch()->bad_targets, 1ull);
        if (p.rows.loss)
            total.sum.add((double)loss, scratch());
        if ((p.rows.flags & GPULOSSI_DATA_DIVISOR) && !(p.rows.flags & GPULOSSI_COUNTED))
            total.counted += r.target != kIgnored;
    }

    __device__ __forceinline__ void gradient(const Row &r, int v, const Vector<E> (&x)[1], N (&g)[W]) const {
#pragma unroll
        for (int i = 0; i < W; i++)
            g[i] = r.target == kClass ? exp_below(x[0].get(i), r.top) * r.weight : N(0);
        if (v == r.vector)
#pragma unroll
            for (int i = 0; i < W; i++)
                if (i == r.place)
                    g[i] = (exp_below(x[0].get(i), r.top) * r.inverse - N(1)) * r.scale;
    }

    __device__ __forceinline__ bool concludes() const {
        return p.rows.loss || p.bad_targets || (p.rows.flags & GPULOSSI_COUNTED);
    }
    __device__ __forceinline__ void conclude(double sum) const {
        double counted = (double)take(&scratch()->counted);
        if (p.rows.loss)
            *(N *)p.rows.loss = (N)(sum / (p.rows.flags & GPULOSSI_DATA_DIVISOR ? counted : p.rows.divisor));
        if (p.bad_targets)
            *(int64_t *)p.bad_targets = take(&scratch()->bad_targets);
    }
};

/* The kernels, by the names that the module table gives them. */
template <class E> struct held {
    enum { threads = GPULOSSI_HELD_THREADS, blocks = sizeof(typename E::Bits) == 4 ? 2 : 1 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        Schedule<CrossEntropy<E> >::template held<GPULOSSI_VECTORS_HELD>(p);
    }
};

template <class E> struct streamed {
    enum { threads = GPULOSSI_STREAMED_THREADS, blocks = sizeof(typename E::Bits) == 8 ? 1 : 3 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        Schedule<CrossEntropy<E> >::template streamed<GPULOSSI_VECTORS_STREAMED>(p);
    }
};

/* How many rows are not ignored, into scratch.counted: the divisor of a mean's gradient. */
struct targets {};
template <class> struct count {
    enum { threads = GPULOSSI_COUNT_THREADS, blocks = 1 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        gpulossi_scratch *scratch = (gpulossi_scratch *)p.rows.scratch;
        int64_t y, stride = (int64_t)gridDim.x * blockDim.x;
        int counted = 0;
#pragma unroll 1
        for (int64_t base = (int64_t)blockIdx.x * blockDim.x; base < p.rows.rows; base += stride) {
            int64_t row = base + threadIdx.x;
            counted += __syncthreads_count(
                row < p.rows.rows &&
                read_target(p.targets, p.rows.flags, p.ignore_index, p.rows.classes, row, &y) != kIgnored);
        }
        if (threadIdx.x == 0)
            atomicAdd((unsigned long long *)&scratch->counted, (unsigned long long)counted);
    }
};

typedef MODULE_KERNEL<MODULE_DTYPE> Kernel;

extern "C" __global__ void __launch_bounds__(Kernel::threads, Kernel::blocks)
    MODULE_ENTRY(const __grid_constant__ gpulossi_cross_entropy p) {
    Kernel::run(p);
}
