/* The kernels of cross-entropy, under their names in the module table. */
#include "../schedule/row_cta.cuh"
#include "../schedule/row_cluster_ws.cuh"
#include "../schedule/ce_full_rows.cuh"
#include "../schedule/packed_smem.cuh"
#include "../schedule/packed_reg.cuh"
#include "../schedule/ce_basic.cuh"
#include "../schedule/nchw_smem.cuh"
#include "../schedule/nchw_reg.cuh"
#include "../loss/cross_entropy.cuh"
#include "../schedule/row_pipeline.cuh"
#include "../schedule/row_thread.cuh"
#include "../schedule/row_memory.cuh"

/* The blocks of a multiprocessor for each element size. They are the most that the registers allow without spilling. */
template <class E, int of_f32, int of_halves, int of_f64> struct Blocks {
    enum { bytes = sizeof(typename E::Bits), threads = GPULOSSI_BLOCK };
    enum { blocks = bytes == 8 ? of_f64 : bytes == 4 ? of_f32 : of_halves };
};

/* Rows without options: packed ones, in shared memory or in registers, or a block for each row. */
template <class E> struct row_basic {
    enum { threads = GPULOSSI_ROW_THREADS, blocks = 2 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        asm volatile(BY_FORMATS(GPULOSSI_FORMAT_PACKED, GPULOSSI_FORMAT_REGISTERS, BOUNDS(256, 2), BOUNDS(128, 5),
                                BOUNDS(512, 2), BOUNDS(512, 2)));
        if (!has_format(GPULOSSI_FORMAT_PACKED))
            BlockRows<E>::run(p);
        else if (has_format(GPULOSSI_FORMAT_REGISTERS))
            PackedRegisters<E>::run_on(p);
        else
            Packed<E>::run_on(p);
    }
};

template <class E> struct row_pipeline {
    enum { threads = GPULOSSI_WIDE_BLOCK, blocks = 2 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        asm volatile(BY_FORMATS(GPULOSSI_FORMAT_WIDE, GPULOSSI_FORMAT_THREE_BLOCKS, BOUNDS(384, 2), BOUNDS(384, 2),
                                BOUNDS(256, 3), BOUNDS(256, 2)));
        RowPipeline<CrossEntropy<E>>::run(p);
    }
};

template <class E> struct row_thread {
    enum { threads = GPULOSSI_TILE_THREADS, blocks = sizeof(typename E::Bits) == 8 ? 4 : 6 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        if constexpr (sizeof(typename E::Bits) == 2) /* a thread transposes 8 x 8 elements */
            asm volatile(BY_FORMATS(GPULOSSI_FORMAT_COLUMNS, GPULOSSI_FORMAT_RAGGED, BOUNDS(128, 6), BOUNDS(128, 5),
                                    BOUNDS(128, 6), BOUNDS(128, 6)));
        RowThread<CrossEntropy<E>>::run(p);
    }
};

template <class E> struct row_memory : Blocks<E, 3, 2, 2> {
    DEVICE void run(const gpulossi_cross_entropy &p) {
        if constexpr (sizeof(typename E::Bits) == 4)
            asm volatile(EITHER_FORMAT(GPULOSSI_FORMAT_REGISTERS, BOUNDS(256, 2), BOUNDS(256, 3)));
        RowMemory<CrossEntropy<E>>::run(p);
    }
};

template <class E> struct options_kept {
    enum { threads = GPULOSSI_KEPT_THREADS, blocks = 1 };
    DEVICE void run(const gpulossi_cross_entropy &p) { RowCluster<E>::run(p); }
};

/* Columns without options. */
template <class E> struct column_smem : Blocks<E, 4, 3, 1> {
    DEVICE void run(const gpulossi_cross_entropy &p) { Planes<E>::run(p); }
};

template <class E> struct column_reg : Blocks<E, 2, 2, 1> {
    DEVICE void run(const gpulossi_cross_entropy &p) { PlaneRegisters<E>::run(p); }
};

/* Combines the results of the shards of a vocabulary. A thread combines a row. */
struct shards {};
template <class> struct combine {
    enum { threads = GPULOSSI_BLOCK, blocks = 1 };

    template <class R> DEVICE void rows(const gpulossi_cross_entropy &p) {
        typedef Terms<double, R, kCombined> Of;
        Of terms(p);
        __shared__ typename Of::Totals totals[GPULOSSI_BLOCK];
        typename Of::Totals &total = totals[threadIdx.x];
        total = Of::Totals::zero();
        int64_t stride = (int64_t)gridDim.x * blockDim.x;
#pragma unroll 1
        for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < p.rows.rows; row += stride) {
            typename Of::State s = Of::State::empty();
            double x_y = 0;
#pragma unroll 1
            for (int64_t shard = 0; shard < p.shards; shard++) {
                gpuloss_shard_row part = ((const gpuloss_shard_row *)p.shard_rows)[shard * p.rows.rows + row];
                bool ordered = part.max == part.max;
                typename Of::State other = {{ordered ? part.max : -CUDART_INF, part.sum},
                                            part.smooth_mass,
                                            -part.smooth_sum,
                                            (int64_t)part.argmax - (ordered ? 0 : Of::State::kNan)};
                s.merge(other);
                x_y += part.target_logit;
            }
            terms.finish(terms.row(row), s, x_y, total);
        }
        end(terms, (gpulossi_scratch *)p.rows.scratch, totals);
    }

    DEVICE void run(const gpulossi_cross_entropy &p) {
        if (p.rows.flags & GPULOSSI_F64_RESULTS)
            rows<double>(p);
        else
            rows<float>(p);
    }
};

/* The work of a kernel before it waits for the earlier kernels of the stream. */
template <class Kernel> struct Before {
    DEVICE void run(const gpulossi_cross_entropy &) {}
};
template <class E> struct Before<row_basic<E>> {
    DEVICE void run(const gpulossi_cross_entropy &p) {
        if (!has_format(GPULOSSI_FORMAT_PACKED))
            BlockRows<E>::prefetch_first_rows(p);
    }
};

typedef MODULE_KERNEL<MODULE_DTYPE> Kernel;

extern "C" __global__ void __launch_bounds__(Kernel::threads, Kernel::blocks)
    MODULE_ENTRY(const __grid_constant__ gpulossi_cross_entropy p) {
    Before<Kernel>::run(p);
    wait_for_earlier();
    Kernel::run(p);
}
