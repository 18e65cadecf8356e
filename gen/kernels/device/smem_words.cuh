/* Rows in shared memory by words of 4 bytes, and a lane's part of its row. */
#ifndef GPULOSSI_SMEM_WORDS_CUH
#define GPULOSSI_SMEM_WORDS_CUH

#include "mbarrier.cuh"

/* Shared memory by 32-bit address, which a loop need not convert for each access. */
struct Shared {
    DEVICE uint32_t address(const void *of) { return (uint32_t)__cvta_generic_to_shared(of); }
    /* Copies a vector from memory, past the L1 cache, or a word or two. A barrier after wait_for_copies() makes the
     * copies of all threads visible. Needs compute capability 8.0. */
    template <int bytes = GPULOSSI_VECTOR_BYTES> DEVICE void copy_async(uint32_t to, const void *from) {
        const uint64_t global = __cvta_generic_to_global(from);
        if constexpr (bytes == GPULOSSI_VECTOR_BYTES)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(bytes) : "memory");
    }
    DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
    DEVICE int target(uint32_t at) {
        int16_t x;
        asm volatile("ld.shared.s16 %0, [%1];" : "=h"(x) : "r"(at) : "memory");
        return x;
    }
    template <class Bits> DEVICE Bits bits(uint32_t at) {
        Bits x;
        if constexpr (sizeof x == 2)
            asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(at) : "memory");
        else if constexpr (sizeof x == 8)
            asm volatile("ld.shared.u64 %0, [%1];" : "=l"(x) : "r"(at) : "memory");
        else
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
        return x;
    }
    template <int words> DEVICE void load(uint32_t at, uint32_t *to) {
        if constexpr (words == 4)
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                         : "r"(at)
                         : "memory");
        else if constexpr (words == 2)
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(at) : "memory");
        else
            to[0] = bits<uint32_t>(at);
    }
    DEVICE void store(uint32_t at, uint16_t x) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(x) : "memory"); }
    DEVICE void store(uint32_t at, uint32_t x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory"); }
    DEVICE void store(uint32_t at, uint64_t x) { asm volatile("st.shared.u64 [%0], %1;" ::"r"(at), "l"(x) : "memory"); }
    template <int words> DEVICE void store(uint32_t at, const uint32_t *x) {
        if constexpr (words == 4)
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x[0]), "r"(x[1]), "r"(x[2]),
                         "r"(x[3])
                         : "memory");
        else if constexpr (words == 2)
            asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(x[0]), "r"(x[1]) : "memory");
        else
            store(at, x[0]);
    }
};

/* The elements of a word. A WordMax is the maximum over several words, for each position in the word. */
template <class E, int bytes = sizeof(typename E::Bits)> struct Words;
template <class E> struct Words<E, 4> {
    enum { kElements = 1 };
    typedef float WordMax;
    DEVICE WordMax none() { return -Limits<float>::infinity(); }
    DEVICE uint32_t absent() { return E::narrow(none()); }
    DEVICE WordMax word_max(uint32_t word) { return E::widen(word); }
    DEVICE WordMax larger_of(WordMax a, WordMax b) { return larger(a, b); }
    DEVICE float number(WordMax a) { return a; }
    DEVICE float get(uint32_t word, int) { return E::widen(word); }
    DEVICE uint32_t pack(const float *x) { return E::narrow(x[0]); }
};
template <class E> struct Words<E, 2> {
    enum { kElements = 2 };
    typedef uint32_t WordMax;
    DEVICE WordMax none() { return E::narrow(-Limits<float>::infinity()) * 0x00010001u; }
    DEVICE uint32_t absent() { return none(); }
    DEVICE WordMax word_max(uint32_t word) { return word; }
    DEVICE WordMax larger_of(WordMax a, WordMax b) { return E::larger_of_pairs(a, b); }
    DEVICE float number(WordMax a) { return larger(get(a, 0), get(a, 1)); }
    DEVICE float get(uint32_t word, int i) { return i == 0 ? E::widen_low(word) : E::widen_high(word); }
    DEVICE uint32_t pack(const float *x) { return E::pair(x[0], x[1], false); }
};

/* The largest of n WordMax, as a binary tree. */
template <class Of, int n> struct LargestWordMax {
    DEVICE typename Of::WordMax of(const typename Of::WordMax *x) {
        return Of::larger_of(LargestWordMax<Of, n / 2>::of(x), LargestWordMax<Of, n - n / 2>::of(x + n / 2));
    }
};
template <class Of> struct LargestWordMax<Of, 1> {
    DEVICE typename Of::WordMax of(const typename Of::WordMax *x) { return x[0]; }
};

/* A lane's pieces of a row in dynamic shared memory, of `bytes` bytes each. Every lane of the row has `count` pieces,
 * and `more` is one more or none. The pieces of the next row are `row_stride` bytes further. */
template <int bytes, int rows = 1> struct Pieces {
    enum { kWords = bytes / 4, kAtOnce = bytes == 16 ? 2 : 4 };
    int start, step, twist, row_stride; /* In bytes; `twist` is the XOR swizzle of addresses against bank conflicts. */
    int count, more;
    int most; /* The most pieces of a lane. The loop over it is uniform. */

    DEVICE void load(int at, uint32_t *words) {
        const char *from = (const char *)stash_of_block() + at;
        if (bytes == 16) {
            uint4 w = *(const uint4 *)from;
            words[0] = w.x, words[1] = w.y, words[2] = w.z, words[3] = w.w;
        } else {
            words[0] = *(const uint32_t *)from;
        }
    }
    DEVICE void store(int at, const uint32_t *words) {
        char *to = (char *)stash_of_block() + at;
        if (bytes == 16)
            *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
        else
            *(uint32_t *)to = words[0];
    }
    /* Calls `use` with the words of each piece from number k on, in the order of memory, and with the number, until it
     * returns true. */
    template <class Use> __device__ __forceinline__ void until(int k, Use use) const {
        uint32_t words[kWords];
        int at = start + k * step;
#pragma unroll 1
        for (; k < count + more; k++, at += step) {
            load(at, words);
            if (use(words, k))
                return;
        }
    }
    template <bool writes, int m, class Use> __device__ __forceinline__ void some(int &at, Use use) const {
        uint32_t words[rows][m * kWords];
        int from[m];
#pragma unroll
        for (int k = 0; k < m; k++) {
            from[k] = bytes == 16 ? at ^ twist : at;
#pragma unroll
            for (int row = 0; row < rows; row++)
                load(from[k] + row * row_stride, words[row] + k * kWords);
            at += step;
        }
        if constexpr (rows == 1)
            use(words[0]);
        else
            use(words[0], words[1]);
        if (writes)
#pragma unroll
            for (int k = 0; k < m; k++)
                store(from[k], words[0] + k * kWords);
    }
    /* Calls `use` with the words of some pieces at a time. With `writes`, it changes the words of the first row. */
    template <bool writes, class Use> __device__ __forceinline__ void each(Use use) const {
        int at = start;
        int left = count;
#pragma unroll 1
        for (; left >= kAtOnce; left -= kAtOnce)
            some<writes, kAtOnce>(at, use);
        if (kAtOnce > 2 && (left & 2))
            some<writes, 2>(at, use);
#pragma unroll 1
        for (left = (left & 1) + more; left > 0; left--)
            some<writes, 1>(at, use);
    }
    /* each() with less code, for rare cases. */
    template <bool writes, class Use> __device__ __forceinline__ void each_slowly(Use use) const {
        int at = start;
#pragma unroll 1
        for (int k = 0; k < most; k++)
            if (k < count + more)
                some<writes, 1>(at, use);
    }
};

#endif
