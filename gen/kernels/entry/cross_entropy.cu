/* The kernels of cross-entropy, under their names in the module table. */
#include "../schedule/row_cta.cuh"
#include "../schedule/row_cluster_ws.cuh"
#include "../schedule/packed_smem.cuh"
#include "../schedule/packed_reg.cuh"
#include "../schedule/ce_basic.cuh"
#include "../schedule/column_smem.cuh"
#include "../schedule/column_reg.cuh"
#include "../loss/cross_entropy.cuh"
#include "../schedule/row_pipeline.cuh"
#include "../schedule/row_thread.cuh"
#include "../schedule/row_memory.cuh"

/* The blocks of a multiprocessor for each element size. They are the most that the registers allow without spilling. */
template <class E, int of_f32, int of_halves, int of_f64> struct Blocks {
    enum { bytes = sizeof(typename E::Bits), threads = GPULOSSI_BLOCK };
    enum { blocks = bytes == 8 ? of_f64 : bytes == 4 ? of_f32 : of_halves };
};

/* Rows: packed ones, in shared memory or in registers, or a block for each row. Losses may have a few options, and in
 * registers gradients may, too. */
template <class E> struct row_basic {
    enum { threads = GPULOSSI_ROW_THREADS, blocks = 2 };
    DEVICE bool has_options() { return has(GPULOSSI_CE_ROW_OPTIONS); }
    template <bool kHasOptions> DEVICE void rows(const gpulossi_cross_entropy &p) {
        if (!has_format(GPULOSSI_FORMAT_PACKED))
            BlockRows<E, kHasOptions>::run(p);
        else if (has_format(GPULOSSI_FORMAT_REGISTERS))
            PackedRegisters<E, kHasOptions>::run_on(p);
        else
            Packed<E, kHasOptions>::run_on(p);
    }
    DEVICE void run(const gpulossi_cross_entropy &p) {
        asm volatile(BY_FORMATS(GPULOSSI_FORMAT_PACKED, GPULOSSI_FORMAT_REGISTERS, BOUNDS(256, 2), BOUNDS(128, 5),
                                BOUNDS(512, 2), BOUNDS(512, 2)));
        if (__builtin_expect(!has_options(), true))
            rows<false>(p);
        else
            rows<true>(p);
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
    enum { bytes = sizeof(typename E::Bits), threads = GPULOSSI_TILE_THREADS };
    enum { blocks = bytes == 8 ? 4 : 8 };
    DEVICE void run(const gpulossi_cross_entropy &p) {
        if constexpr (bytes == 2) /* probabilities may go through the L1 cache */
            asm volatile(
                BY_CALL(GPULOSSI_CE_PROBABILITIES, GPULOSSI_FORMAT_TWO_ARRAYS, BOUNDS(128, 7), BOUNDS(128, 8)));
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

template <class E> struct row_cluster {
    enum { threads = GPULOSSI_ROW_CLUSTER_THREADS, blocks = 1 };
    DEVICE void run(const gpulossi_cross_entropy &p) { RowCluster<E>::run(p); }
};

/* Columns without options: in registers, or in shared memory. */
template <class E> struct column_basic : Blocks<E, 4, 3, 1> {
    DEVICE void run(const gpulossi_cross_entropy &p) {
        if constexpr (sizeof(typename E::Bits) == 4)
            asm volatile(EITHER_FORMAT(GPULOSSI_FORMAT_REGISTERS, BOUNDS(256, 2), BOUNDS(256, 4)));
        else
            asm volatile(EITHER_FORMAT(GPULOSSI_FORMAT_REGISTERS, BOUNDS(256, 2), BOUNDS(256, 3)));
        if (has_format(GPULOSSI_FORMAT_REGISTERS))
            ColumnsInRegisters<E>::run(p);
        else
            ColumnsInSmem<E>::run(p);
    }
};

/* Combines the results of the shards of a vocabulary. A thread combines a row. */
struct shards {};
template <class> struct combine {
    enum { threads = GPULOSSI_BLOCK, blocks = 1 };

    template <class R> DEVICE void rows(const gpulossi_cross_entropy &p) {
        enum : uint32_t {
            kNever = GPULOSSI_CE_GRADIENT | GPULOSSI_CE_TARGET_GRADIENT | GPULOSSI_CE_ROW_GRADIENTS |
                     GPULOSSI_CE_SHARD | GPULOSSI_CE_PROBABILITIES | GPULOSSI_CE_LOGIT_SCALE | GPULOSSI_CE_SOFTCAP |
                     GPULOSSI_CE_LSE_IN
        };
        typedef CrossEntropy<f64, R, int64_t, kNever> Loss;
        typedef typename Loss::State State;
        __shared__ typename Loss::Totals totals[GPULOSSI_BLOCK];
        typename Loss::Totals &total = totals[threadIdx.x];
        const int64_t stride = (int64_t)gridDim.x * blockDim.x;
        Loss loss(p);
        total = Loss::Totals::zero();
#pragma unroll 1
        for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < p.rows.rows; row += stride) {
            const typename Loss::Row r = loss.row_of(loss.fetch(row));
            State s = State::empty();
            double x_y = 0;
#pragma unroll 1
            for (int64_t shard = 0; shard < p.shards; shard++) {
                const gpuloss_shard_row part = ((const gpuloss_shard_row *)p.shard_rows)[shard * p.rows.rows + row];
                const bool is_nan = part.max != part.max;
                State of_shard = State::empty();
                of_shard.softmax.max = of_shard.softmax.from = is_nan ? -CUDART_INF : part.max;
                of_shard.softmax.sum = part.sum;
                of_shard.soft_sum = part.smooth_weight;
                of_shard.drop = -part.smooth_sum;
                if (is_nan)
                    loss.note_nan(s, (typename Loss::Best)part.argmax);
                else
                    loss.note_best(s, part.max, (typename Loss::Best)part.argmax);
                s.merge(of_shard);
                x_y += part.target_logit;
            }
            loss.add(loss.finish(row, r, s, x_y), total);
        }
        end(loss, loss.scratch(), totals);
    }

    DEVICE void run(const gpulossi_cross_entropy &p) {
        Exponentials<f64>::begin();
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
            BlockRows<E, false>::prefetch_first_rows(p);
    }
};

typedef MODULE_KERNEL<MODULE_DTYPE> Kernel;

extern "C" __global__ void __launch_bounds__(Kernel::threads, Kernel::blocks)
    MODULE_ENTRY(const __grid_constant__ gpulossi_cross_entropy p) {
    Exponentials<MODULE_DTYPE>::begin();
    Before<Kernel>::run(p);
    wait_for_earlier();
    Kernel::run(p);
}
