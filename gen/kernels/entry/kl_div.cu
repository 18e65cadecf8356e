/* The kernels of divergences, under their names in the module table. */
#include "../schedule/distances.cuh"
#include "../schedule/kl_logits.cuh"
#include "../schedule/packed_pair_reg.cuh"
#include "../schedule/kl_prob.cuh"
#include "../schedule/packed_pair_smem.cuh"
#include "../loss/divergence.cuh"
#include "../loss/sparse_divergence.cuh"
#include "../schedule/row_memory.cuh"
#include "../schedule/row_pipeline.cuh"

/* The blocks of a multiprocessor are the most that the registers allow without spilling. */
template <class E> struct probabilities {
    typedef gpulossi_kl_div Params;
    enum { threads = GPULOSSI_BLOCK, blocks = sizeof(typename E::Bits) == 8 ? 2 : 4 };
    DEVICE void run(const Params &p) { Schedule<KlDiv<E>>::template streamed<GPULOSSI_PAIRS_STREAMED>(p); }
};

template <class E> struct row_memory {
    typedef gpulossi_kl_div Params;
    enum { threads = GPULOSSI_BLOCK, blocks = sizeof(typename E::Bits) == 8 ? 1 : 2 };
    DEVICE void run(const Params &p) {
        Exponentials<E>::begin();
        RowMemory<Divergence<E>>::run(p);
    }
};

template <class E> struct row_pipeline {
    typedef gpulossi_kl_div Params;
    enum { threads = GPULOSSI_BLOCK, blocks = 2 };
    DEVICE void run(const Params &p) {
        if constexpr (sizeof(typename E::Bits) == 2)
            asm volatile(EITHER_FORMAT(GPULOSSI_FORMAT_THREE_BLOCKS, BOUNDS(256, 3), BOUNDS(256, 2)));
        RowPipeline<Divergence<E>>::run(p);
    }
};

template <class E> struct logits_clustered {
    typedef gpulossi_kl_div Params;
    enum { K = Width<E>::value < 8 ? 2 : 1, kTimes = GPULOSSI_VECTORS_STREAMED / K };
    enum { threads = GPULOSSI_BLOCK, blocks = 3 };
    DEVICE void run(const Params &p) { PairsRing<Distil<E, K>, K, kTimes>::run(p); }
};

template <class E> struct logits_packed {
    typedef gpulossi_kl_div Params;
    enum { threads = GPULOSSI_PAIRS_THREADS, blocks = GPULOSSI_PAIRS_BLOCKS };
    DEVICE void run(const Params &p) { PackedPairs<E>::run_on(p); }
};

template <class E> struct logits_packed_reg {
    typedef gpulossi_kl_div Params;
    enum { threads = GPULOSSI_PAIRS_THREADS, blocks = GPULOSSI_PAIRS_BLOCKS };
    DEVICE void run(const Params &p) { PairRegisters<E>::run_on(p); }
};

template <class E> struct logits_block_rows {
    typedef gpulossi_kl_div Params;
    enum { K = Width<E>::value < 8 ? 2 : 1, kTimes = GPULOSSI_VECTORS_STREAMED / K };
    enum { threads = GPULOSSI_PAIRS_THREADS, blocks = 6 };
    DEVICE void run(const Params &p) { PairsRing<Distil<E, K>, K, kTimes, threads>::run(p); }
};

template <class E> struct distances_clustered {
    typedef gpulossi_kl_div Params;
    enum { is_short = Width<E>::value == 8, K = is_short ? 1 : 2 };
    enum { kTimes = (is_short ? GPULOSSI_DISTANCES_SHORT : GPULOSSI_DISTANCES_VECTORS) / K };
    enum { threads = GPULOSSI_DISTANCES_THREADS, blocks = is_short ? 4 : 3 };
    DEVICE void run(const Params &p) { PairsRing<Distances<E, K>, K, kTimes, threads>::run(p); }
};

template <class E> struct sparse_memory {
    typedef gpulossi_kl_div_sparse Params;
    enum { threads = GPULOSSI_BLOCK, blocks = sizeof(typename E::Bits) == 8 ? 1 : 2 };
    DEVICE void run(const Params &p) {
        Exponentials<E>::begin();
        RowMemory<SparseDivergence<E>>::run(p);
    }
};

template <class E> struct sparse_pipeline {
    typedef gpulossi_kl_div_sparse Params;
    enum { threads = GPULOSSI_BLOCK, blocks = 2 };
    DEVICE void run(const Params &p) { RowPipeline<SparseDivergence<E>>::run(p); }
};

typedef MODULE_KERNEL<MODULE_DTYPE> Kernel;

extern "C" __global__ void __launch_bounds__(Kernel::threads, Kernel::blocks)
    MODULE_ENTRY(const __grid_constant__ Kernel::Params p) {
    wait_for_earlier();
    Kernel::run(p);
}
