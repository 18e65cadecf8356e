/* Class indices: how they are stored, and what becomes of a row by its index. */
#ifndef GPULOSSI_TARGETS_CUH
#define GPULOSSI_TARGETS_CUH

#include "grid.cuh"

enum Target { kClass, kIgnored, kBad };

DEVICE int64_t read_index(uint64_t indices, uint32_t type, int64_t at) {
    switch (type) {
    case GPULOSS_I32:
        return ((const int32_t *)indices)[at];
    case GPULOSS_I16:
        return ((const int16_t *)indices)[at];
    case GPULOSS_U8:
        return ((const uint8_t *)indices)[at];
    default:
        return ((const int64_t *)indices)[at];
    }
}
DEVICE int64_t read_target(const gpulossi_cross_entropy &p, int64_t row) {
    return read_index(p.targets, p.target_type, row);
}

DEVICE Target kind_of(const gpulossi_cross_entropy &p, int64_t y) {
    if ((p.rows.flags & GPULOSSI_IGNORES) && y == p.ignore_index)
        return kIgnored;
    return y >= 0 && y < p.total_classes ? kClass : kBad;
}

#endif
