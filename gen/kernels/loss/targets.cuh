/* Class indices: their storage types, and the kind of target that an index makes. */
#ifndef GPULOSSI_TARGETS_CUH
#define GPULOSSI_TARGETS_CUH

#include "../device/grid.cuh"

/* A silent target is a class whose row has the weight 0. */
enum Target { kClass, kIgnored, kBad, kSilent };

DEVICE int64_t read_index(uint64_t indices, uint32_t type, int64_t at) {
    if (type == GPULOSS_I64)
        return ((const int64_t *)indices)[at];
    if (type == GPULOSS_I32)
        return ((const int32_t *)indices)[at];
    if (type == GPULOSS_I16)
        return ((const int16_t *)indices)[at];
    return ((const uint8_t *)indices)[at];
}

/* These take the type of the class indices from the format word. Without options, and in the prepare kernel, a text has
 * several loads of indices. */
DEVICE int64_t read_target(const gpulossi_cross_entropy &p, int64_t row) {
    return has_format(GPULOSSI_FORMAT_INDEX_I32)   ? ((const int32_t *)p.targets)[row]
           : has_format(GPULOSSI_FORMAT_INDEX_I16) ? ((const int16_t *)p.targets)[row]
           : has_format(GPULOSSI_FORMAT_INDEX_U8)  ? ((const uint8_t *)p.targets)[row]
                                                   : ((const int64_t *)p.targets)[row];
}

/* Calls `use` with a typed pointer to the first class index. */
template <class Use> DEVICE void with_targets(const gpulossi_cross_entropy &p, Use use) {
    if (has_format(GPULOSSI_FORMAT_INDEX_I32))
        use((const int32_t *)p.targets);
    else if (has_format(GPULOSSI_FORMAT_INDEX_I16))
        use((const int16_t *)p.targets);
    else if (has_format(GPULOSSI_FORMAT_INDEX_U8))
        use((const uint8_t *)p.targets);
    else
        use((const int64_t *)p.targets);
}

DEVICE Target kind_of(const gpulossi_cross_entropy &p, int64_t y) {
    if ((p.rows.flags & GPULOSSI_IGNORES) && y == p.ignore_index)
        return kIgnored;
    return y >= 0 && y < p.total_classes ? kClass : kBad;
}

/* The number of rows that are not ignored, for a few rows whose indices have 4 or 8 bytes. Each block counts all rows,
 * which is faster than a launch. All threads of the block call. */
DEVICE int count_rows(const gpulossi_cross_entropy &p) {
    enum { kAtOnce = 2 };
    __shared__ int counts[kMostWarps];
    const int rows = (int)p.rows.rows, step = (int)blockDim.x, words = p.target_type == GPULOSS_I32 ? 1 : 2;
    int counted = 0;
#pragma unroll 1
    for (int begin = 0; begin < rows; begin += kAtOnce * step) {
        const int first = begin + (int)threadIdx.x;
        int low[kAtOnce], high[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; i++) {
            const int *y = (const int *)p.targets + words * min(first + i * step, rows - 1);
            low[i] = y[0];
            high[i] = y[words - 1];
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; i++) {
            int sign = words == 1 ? high[i] >> 31 : high[i];
            bool ignored = low[i] == (int)p.ignore_index && sign == (int)(p.ignore_index >> 32);
            counted += first + i * step < rows && !ignored;
        }
    }
    counted = sum_over(WholeWarp(), counted);
    if (threadIdx.x % kLanes == 0)
        counts[threadIdx.x / kLanes] = counted;
    __syncthreads();
    counted = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < blockDim.x / kLanes; i++)
        counted += counts[i];
    return counted;
}

/* The divisor of all gradients, if rows decide it. It is the result of an earlier launch, or the number of rows that
 * are not ignored, without weights. All threads of a block call. */
DEVICE double rows_that_divide(const gpulossi_cross_entropy &p) {
    const gpulossi_scratch *scratch = (const gpulossi_scratch *)p.rows.scratch;
    if (!(p.rows.flags & GPULOSSI_DATA_DIVISOR))
        return 1;
    if (p.rows.flags & GPULOSSI_PREPARED)
        return has(GPULOSSI_CE_CLASS_WEIGHTS) ? scratch->target_weights : (double)scratch->counts[GPULOSSI_COUNT_ROWS];
    return (double)count_rows(p);
}

#endif
