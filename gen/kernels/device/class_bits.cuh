/* The classes of a row that a sparse teacher has, a bit each, in shared memory. */
#ifndef GPULOSSI_CLASS_BITS_CUH
#define GPULOSSI_CLASS_BITS_CUH

#include "smem_words.cuh"

/* Two consecutive rows have bits: the bits of a row are cleared while the next row is reduced. A bit stands for the
 * position of a class in the vectors of a row, or of an edge. With GPULOSSI_FORMAT_SHARED_BITS there may be more
 * positions than bits, and then some share a bit. */
class ClassBits {
    enum { kBytesAfter = 16, kRepeats = 31 }; /* bytes of the word after the bits, and its bit for repeats() */
    uint32_t rows, current;                   /* addresses of the bits of both rows, and of this row */
    uint32_t bits;                            /* of a row, a multiple of 128 */

    DEVICE bool shares() { return has_format(GPULOSSI_FORMAT_SHARED_BITS); }
    __device__ __forceinline__ uint32_t row_bytes() const { return bits / 8 + kBytesAfter; }
    __device__ __forceinline__ uint32_t other() const { return 2 * rows + row_bytes() - current; }

  public:
    enum { kElsewhere = -1 }; /* the position of a class that another block has */
    /* The position of a class outside the whole vectors, of which a row has fewer than 31. */
    DEVICE int edge(int i) { return -2 - i; }
    /* Whether a set bit may be that of another class. */
    DEVICE bool may_be_another() { return shares(); }

    ClassBits() = default;
    __device__ __forceinline__ ClassBits(uint32_t address, uint32_t bytes, int64_t positions)
        : rows(address), current(address), bits(((uint32_t)positions + 127) / 128 * 128) {
        const uint32_t most = (bytes / 2 - kBytesAfter) / 16 * 128;
        if (shares() && positions > (int64_t)most)
            bits = most;
    }
    __device__ __forceinline__ void next_row() { current = other(); }
    /* Clears the bits of the other row. The `size` threads of the row in this block share the work. */
    __device__ __forceinline__ void clear_other(int rank, int size) const {
        const uint32_t zeros[4] = {0, 0, 0, 0}, end = other() + row_bytes();
#pragma unroll 1
        for (uint32_t at = other() + (uint32_t)rank * 16; at < end; at += (uint32_t)size * 16)
            Shared::store<4>(at, zeros);
    }
    /* Sets the bit of a position. If it was set, the row may have a class twice. */
    __device__ __forceinline__ void set(int position) const {
        const uint32_t bit = position < 0 ? bits + (uint32_t)(-2 - position) : own(position), mask = 1u << bit % 32;
        if (set_in(current + bit / 32 * 4, mask) & mask)
            set_in(current + bits / 8, 1u << kRepeats);
    }
    __device__ __forceinline__ bool repeats() const {
        return Shared::bits<uint32_t>(current + bits / 8) >> kRepeats != 0;
    }
    /* The bits of `count` positions from `position` on, which are in one byte. */
    template <int count> __device__ __forceinline__ uint32_t get(int position) const {
        const uint32_t bit = own(position);
        return byte(current + bit / 8) >> bit % 8 & ((1u << count) - 1);
    }
    __device__ __forceinline__ uint32_t get_edge(int i) const {
        return Shared::bits<uint32_t>(current + bits / 8) >> i & 1;
    }

  private:
    __device__ __forceinline__ uint32_t own(int position) const {
        return shares() ? (uint32_t)position % bits : (uint32_t)position;
    }
    DEVICE uint32_t byte(uint32_t at) {
        uint32_t x;
        asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
        return x;
    }
    DEVICE uint32_t set_in(uint32_t at, uint32_t mask) {
        uint32_t before;
        asm volatile("atom.shared.or.b32 %0, [%1], %2;" : "=r"(before) : "r"(at), "r"(mask) : "memory");
        return before;
    }
};

#endif
