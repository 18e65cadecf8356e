/* Cross-entropy of logits against class indices. With x a row of logits and y its target:
 *
 *   lse = log sum_c exp(x_c),   loss = lse - x_y,   dx_c = s (exp(x_c - lse) - [c = y])
 */
#include "rows.cuh"

enum Target { kClass, kIgnored, kBad };

DEVICE int64_t read_target(const gpulossi_cross_entropy &p, int64_t row) {
    return p.rows.flags & GPULOSSI_I32_TARGETS ? ((const int32_t *)p.targets)[row] : ((const int64_t *)p.targets)[row];
}

DEVICE Target kind_of(const gpulossi_cross_entropy &p, int64_t y) {
    if ((p.rows.flags & GPULOSSI_IGNORES) && y == p.ignore_index)
        return kIgnored;
    return y >= 0 && y < p.rows.classes ? kClass : kBad;
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
        int64_t y;
        Target target;
        int vector, place; /* of the target */
        /* gradient = exp(x - top) * weight, and at y: (exp(x - top) * inverse - 1) * scale */
        N top, inverse, scale, weight;
    };

    struct Unfinished {
        int64_t row;
        N top, sum, x_y;
        Target target;
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

    __device__ __forceinline__ Row begin(const Cut<E> &cut, int64_t row, bool whole) const {
        Row r;
        r.row = row;
        r.y = 0;
        r.target = kIgnored;
        r.vector = -1;
        r.place = 0;
        if (row < p.rows.rows && whole) {
            r.y = read_target(p, row);
            r.target = kind_of(p, r.y);
            if (r.target == kClass) {
                r.vector = cut.vector_of(r.y);
                r.place = cut.place_of(r.y);
            }
        }
        return r;
    }

    __device__ __forceinline__ N pick(const Row &r) const {
        return r.target == kClass ? E::widen(array(0, r.row)[r.y]) : N(0);
    }

    template <int K>
    __device__ __forceinline__ void pick(const Row &r, int at, int step, const Vector<E> (&x)[K][1], N *to) const {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (at + k * step == r.vector)
#pragma unroll
                for (int i = 0; i < W; i++)
                    if (i == r.place)
                        *to = x[k][0].get(i);
    }

    __device__ __forceinline__ Unfinished unfinished(const Row &r, const State &s, const N *x_y) const {
        Unfinished u = {r.row, r.top, s.sum, r.target == kClass ? *x_y : N(0), r.target};
        return u;
    }

    template <int K>
    __device__ __forceinline__ void enter(const Row &, State &s, const Cut<E> &, int, int, Vector<E> (&x)[K][1]) const {
        /* Some vectors at a time, to bound how many numbers are unpacked at once. */
        enum { many = 8 / W < K ? 8 / W : K };
#pragma unroll
        for (int first = 0; first < K; first += many) {
            N part[many * W];
            N top = s.top;
#pragma unroll
            for (int i = 0; i < many * W; i++)
                part[i] = x[first + i / W][0].get(i % W);
            top = larger(top, in_halves<Maximum>(part));
            s.raise(top);
            /* A NaN among masked classes must still enter the sum. */
            N from = top == -Limits<N>::infinity() ? N(0) : top;
#pragma unroll
            for (int i = 0; i < many * W; i++)
                part[i] = exp_below(x[first + i / W][0].get(i % W), from);
            s.sum += in_halves<Sum>(part);
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

    __device__ __forceinline__ void finish(const Unfinished &u, Total &total) const {
        N log_sum = reduces() ? natural_log(u.sum) : N(0);
        N loss = u.target == kClass ? log_sum + (u.top - u.x_y) : u.target == kIgnored ? N(0) : Limits<N>::nan();
        if (p.lse)
            ((N *)p.lse)[u.row] = u.top + log_sum;
        if (p.rows.loss_rows)
            ((N *)p.rows.loss_rows)[u.row] = loss;
        if (u.target == kBad && p.bad_targets)
            atomicAdd((unsigned long long *)&scratch()->bad_targets, 1ull);
        if (p.rows.loss)
            total.sum.add((double)loss, scratch());
        if ((p.rows.flags & GPULOSSI_DATA_DIVISOR) && !(p.rows.flags & GPULOSSI_COUNTED))
            total.counted += u.target != kIgnored;
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
    enum { threads = GPULOSSI_BLOCK, blocks = sizeof(typename E::Bits) == 8 ? 1 : 3 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        Schedule<CrossEntropy<E>>::template held<GPULOSSI_VECTORS_HELD>(p);
    }
};

template <class E> struct streamed {
    enum { threads = GPULOSSI_BLOCK, blocks = sizeof(typename E::Bits) == 8 ? 1 : 3 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        Schedule<CrossEntropy<E>>::template streamed<GPULOSSI_VECTORS_STREAMED>(p);
    }
};

/* How many rows are not ignored, into scratch.counted: the divisor of a mean's gradient. */
struct targets {};
template <class> struct count {
    enum { threads = GPULOSSI_COUNT_THREADS, blocks = 1 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        gpulossi_scratch *scratch = (gpulossi_scratch *)p.rows.scratch;
        int64_t stride = (int64_t)gridDim.x * blockDim.x;
        int counted = 0;
#pragma unroll 1
        for (int64_t base = (int64_t)blockIdx.x * blockDim.x; base < p.rows.rows; base += stride) {
            int64_t row = base + threadIdx.x;
            counted += __syncthreads_count(row < p.rows.rows && kind_of(p, read_target(p, row)) != kIgnored);
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
