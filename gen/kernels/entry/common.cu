/* The prepare kernel, which serves every loss. */
#include "../device/grid.cuh"
#include "../loss/targets.cuh"

/* Computes the numbers that are needed before the first row: the divisor of a mean's gradient, and the sum of the class
 * weights. */
struct targets {};
template <class> struct prepare {
    /* A thread loads several class indices before it waits for one. */
    DEVICE void count(const gpulossi_cross_entropy &p, gpulossi_scratch *scratch) {
        enum { kAtOnce = 8 };
        __shared__ int of_block;
        const int64_t last = p.rows.rows - 1, stride = (int64_t)gridDim.x * blockDim.x;
        int counted = 0;
        if (threadIdx.x == 0)
            of_block = 0;
        __syncthreads();
        with_targets(p, [&](auto *from) {
#pragma unroll 1
            for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row <= last; row += kAtOnce * stride) {
                int64_t y[kAtOnce];
#pragma unroll
                for (int i = 0; i < kAtOnce; i++)
                    y[i] = from[min(row + i * stride, last)];
#pragma unroll
                for (int i = 0; i < kAtOnce; i++)
                    counted += row + i * stride <= last && kind_of(p, y[i]) != kIgnored;
            }
        });
        counted = WholeWarp().over<Sum>(counted);
        if (threadIdx.x % kLanes == 0)
            atomicAdd(&of_block, counted);
        __syncthreads();
        if (threadIdx.x == 0)
            atomicAdd((unsigned long long *)&scratch->counts[GPULOSSI_COUNT_ROWS], (unsigned long long)of_block);
    }

    /* Both sums are exact. They use the scratch's first digits, and end in its fields of their own names. */
    struct Weights {
        typedef Total<2, 1> Totals;
        gpulossi_scratch *scratch;
        DEVICE double weight(const gpulossi_cross_entropy &p, int64_t c) {
            return p.rows.flags & GPULOSSI_F64_RESULTS ? ((const double *)p.class_weights)[c]
                                                       : (double)((const float *)p.class_weights)[c];
        }
        __device__ __forceinline__ bool wants(int) const { return true; }
        __device__ __forceinline__ bool concludes() const { return true; }
        __device__ __forceinline__ bool prepared() const { return false; }
        __device__ __forceinline__ void conclude(const double *sums, const int64_t *) const {
            scratch->target_weights = sums[0];
            scratch->class_weights = sums[1];
        }
    };

    DEVICE void weigh(const gpulossi_cross_entropy &p, gpulossi_scratch *scratch) {
        Weights weights = {scratch};
        __shared__ typename Weights::Totals totals[GPULOSSI_BLOCK];
        typename Weights::Totals &total = totals[threadIdx.x];
        total = Weights::Totals::zero();
        int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
        if (p.rows.flags & GPULOSSI_DATA_DIVISOR)
#pragma unroll 1
            for (int64_t row = first; row < p.rows.rows; row += stride) {
                int64_t y = read_target(p, row);
                if (kind_of(p, y) == kClass)
                    total.add(0, Weights::weight(p, y), scratch);
            }
#pragma unroll 1
        for (int64_t c = first; c < p.total_classes; c += stride)
            total.add(1, Weights::weight(p, c), scratch);
        end(weights, scratch, totals);
    }

    DEVICE void run(const gpulossi_cross_entropy &p) {
        gpulossi_scratch *scratch = (gpulossi_scratch *)p.rows.scratch;
        let_next_begin();
        if (p.class_weights)
            weigh(p, scratch);
        else
            count(p, scratch);
    }
};

extern "C" __global__ void __launch_bounds__(GPULOSSI_BLOCK)
    MODULE_ENTRY(const __grid_constant__ gpulossi_cross_entropy p) {
    wait_for_earlier();
    MODULE_KERNEL<MODULE_DTYPE>::run(p);
}
