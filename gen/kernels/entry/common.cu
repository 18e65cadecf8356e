/* The prepare kernel, which serves every loss. */
#include "../device/grid.cuh"
#include "../device/any_dtype.cuh"
#include "../loss/targets.cuh"

/* Computes the numbers that are needed before the first row: the divisor of a mean's gradient, and the sum of the class
 * weights. Or it computes the divisor of a mean and writes it. */
struct targets {};
template <class> struct prepare {
    /* Sums of weights are exact. They use the scratch's first digits, and end in its fields of their own names. */
    struct Divisor {
        enum { kTargets, kClasses, kSums };
        struct Wanted {
            DEVICE bool sum(int) { return is_weighted(); }
            DEVICE bool count(int) { return true; }
            DEVICE bool first_only() { return false; }
        };
        typedef Total<kSums, 1, Wanted> Totals;
        const gpulossi_cross_entropy &p;
        gpulossi_scratch *scratch;
        DEVICE double weight(const gpulossi_cross_entropy &p, int64_t c) {
            return p.rows.flags & GPULOSSI_F64_RESULTS ? ((const double *)p.class_weights)[c]
                                                       : (double)((const float *)p.class_weights)[c];
        }
        DEVICE bool is_output() { return has(GPULOSSI_PREPARE_OUTPUT); }
        DEVICE bool is_weighted() { return has(GPULOSSI_PREPARE_WEIGHTS); }
        __device__ __forceinline__ bool wants(int) const { return is_weighted(); }
        __device__ __forceinline__ bool concludes() const { return is_weighted() || is_output(); }
        __device__ __forceinline__ bool prepared() const { return false; }
        __device__ __forceinline__ void conclude(const double *sums, const int64_t *counts) const {
            double divisor = p.rows.divisor;
            if (p.rows.flags & GPULOSSI_DATA_DIVISOR)
                divisor = is_weighted() ? sums[kTargets] : (double)counts[GPULOSSI_COUNT_ROWS] * divisor;
            if (!is_output()) {
                scratch->target_weights = sums[kTargets];
                scratch->class_weights = sums[kClasses];
            } else if (p.rows.flags & GPULOSSI_F64_RESULTS) {
                *(double *)p.rows.loss = divisor;
            } else {
                *(float *)p.rows.loss = (float)divisor;
            }
        }
    };

    /* The rows of a thread that are not ignored. It loads several class indices before it waits for one. */
    DEVICE int count(const gpulossi_cross_entropy &p) {
        enum { kAtOnce = 8 };
        const int64_t last = p.rows.rows - 1, stride = (int64_t)gridDim.x * blockDim.x;
        int counted = 0;
#pragma unroll 1
        for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row <= last; row += kAtOnce * stride) {
            int64_t y[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; i++)
                y[i] = read_target(p, min(row + i * stride, last));
#pragma unroll
            for (int i = 0; i < kAtOnce; i++)
                counted += row + i * stride <= last && kind_of(p, y[i]) != kIgnored;
        }
        return counted;
    }

    /* Leaves the rows of all threads to the kernel that follows. */
    DEVICE void leave(int counted, gpulossi_scratch *scratch) {
        __shared__ int of_block;
        if (threadIdx.x == 0)
            of_block = 0;
        __syncthreads();
        counted = WholeWarp().over<Sum>(counted);
        if (threadIdx.x % kLanes == 0)
            atomicAdd(&of_block, counted);
        __syncthreads();
        if (threadIdx.x == 0)
            atomicAdd((unsigned long long *)&scratch->counts[GPULOSSI_COUNT_ROWS], (unsigned long long)of_block);
    }

    /* Adds up the weights of the targets, and then those of all classes. The loop over both makes their code one. */
    DEVICE void weigh(const Divisor &divisor, typename Divisor::Totals &total) {
        enum { kAtOnce = 4 };
        const gpulossi_cross_entropy &p = divisor.p;
        const int64_t stride = (int64_t)gridDim.x * blockDim.x;
#pragma unroll 1
        for (int sum = p.rows.flags & GPULOSSI_DATA_DIVISOR ? Divisor::kTargets : Divisor::kClasses;
             sum <= (divisor.is_output() ? Divisor::kTargets : Divisor::kClasses); sum++) {
            const int64_t count = sum == Divisor::kTargets ? p.rows.rows : p.total_classes;
#pragma unroll 1
            for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += kAtOnce * stride) {
                double weights[kAtOnce];
#pragma unroll
                for (int i = 0; i < kAtOnce; i++) {
                    const int64_t own = min(at + i * stride, count - 1);
                    const int64_t c = sum == Divisor::kTargets ? read_target(p, own) : own;
                    const bool counts =
                        at + i * stride < count && (sum == Divisor::kClasses || kind_of(p, c) == kClass);
                    weights[i] = counts ? Divisor::weight(p, c) : 0;
                }
#pragma unroll 1
                for (int i = 0; i < kAtOnce; i++) {
                    total.add(sum, weights[0], divisor.scratch);
                    shift_in(weights, 0.0);
                }
            }
        }
    }

    DEVICE void run(const gpulossi_cross_entropy &p) {
        const Divisor divisor = {p, (gpulossi_scratch *)p.rows.scratch};
        __shared__ typename Divisor::Totals totals[GPULOSSI_BLOCK];
        typename Divisor::Totals &total = totals[threadIdx.x];
        let_next_begin();
        const int counted = !Divisor::is_weighted() && (p.rows.flags & GPULOSSI_DATA_DIVISOR) ? count(p) : 0;
        if (!divisor.concludes()) {
            leave(counted, divisor.scratch);
            return;
        }
        total = Divisor::Totals::zero();
        total.counts[GPULOSSI_COUNT_ROWS] = counted;
        if (Divisor::is_weighted())
            weigh(divisor, total);
        end(divisor, divisor.scratch, totals);
    }
};

extern "C" __global__ void __launch_bounds__(GPULOSSI_BLOCK)
    MODULE_ENTRY(const __grid_constant__ gpulossi_cross_entropy p) {
    wait_for_earlier();
    MODULE_KERNEL<MODULE_DTYPE>::run(p);
}
