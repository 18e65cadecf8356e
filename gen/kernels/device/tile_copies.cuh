/* Copies between memory and a tile of rows or columns in shared memory, by all threads of a block. */
#ifndef GPULOSSI_TILE_COPIES_CUH
#define GPULOSSI_TILE_COPIES_CUH

#include "smem_words.cuh"

/* Loads copy from memory to the tile, and stores back. `smem...` are shared addresses. */
template <class E> struct TileCopies {
    typedef typename E::Bits Bits;
    enum {
        kThreads = GPULOSSI_TILE_THREADS,
        kLoads = 4,                                /* vectors or words that a thread has in flight */
        kGathered = 8,                             /* elements of 16 bits that a thread has in flight */
        kBytes = kThreads * GPULOSSI_VECTOR_BYTES, /* of a vector of each thread */
        kWarps = kThreads / kLanes
    };

    DEVICE void set(Vector<E> &x, int i, Bits element) {
        if constexpr (sizeof(Bits) == 8) {
            x.word[2 * i] = (uint32_t)element;
            x.word[2 * i + 1] = (uint32_t)(element >> 32);
        } else {
            x.replace(i, element);
        }
    }
    DEVICE Bits element_of(const Vector<E> &x, int i) {
        if constexpr (sizeof(Bits) == 8)
            return (uint64_t)x.word[2 * i] | (uint64_t)x.word[2 * i + 1] << 32;
        else if constexpr (sizeof(Bits) == 4)
            return x.word[i];
        else
            return (Bits)(x.word[i / 2] >> (16 * (i % 2)));
    }
    /* A position in rows of `n` units, which are distributed to the threads cyclically. */
    struct Position {
        int row, unit, row_step, unit_step, n;
        __device__ __forceinline__ explicit Position(int n)
            : row((int)threadIdx.x / n), unit((int)threadIdx.x % n), row_step(kThreads / n), unit_step(kThreads % n),
              n(n) {}
        __device__ __forceinline__ void advance() {
            unit += unit_step;
            row += row_step;
            if (unit >= n)
                unit -= n, row++;
        }
    };
    /* Whether vectors are copied without registers. */
    template <bool kStores> DEVICE bool copies() { return !kStores && runs_on_sm_80(); }
    /* Takes a vector from the tile or memory, or copies it. */
    template <bool kStores> DEVICE void take(Vector<E> &x, const char *memory, uint32_t smem) {
        if (kStores)
            Shared::load<4>(smem, x.word);
        else if (copies<kStores>())
            Shared::copy_async(smem, memory);
        else
            x = load_vector<E, kRead_once>(memory);
    }
    template <bool kStores> DEVICE void give(const Vector<E> &x, char *memory, uint32_t smem) {
        if (kStores)
            store_vector<E>((Bits *)memory, x);
        else
            Shared::store<4>(smem, x.word);
    }
    /* Copies packed rows between the tile and memory by vectors, and by pairs of bytes before and after them. Both begin
     * at the same byte of a vector. */
    template <bool kStores> DEVICE void move_packed(uint64_t first_row, uint32_t smem_first_row, int size) {
        enum { kPairs = GPULOSSI_VECTOR_BYTES / 2 };
        const int head = (int)(smem_first_row % GPULOSSI_VECTOR_BYTES), end = head + size;
        const int vectors = end / GPULOSSI_VECTOR_BYTES;
        char *const base = (char *)first_row - head;
        const uint32_t smem_base = smem_first_row - head;
#pragma unroll 1
        for (int v = (int)threadIdx.x + (head > 0); v < vectors; v += kLoads * kThreads) {
            char *const memory = base + v * GPULOSSI_VECTOR_BYTES;
            const uint32_t smem = smem_base + v * GPULOSSI_VECTOR_BYTES;
            Vector<E> x[kLoads];
#pragma unroll
            for (int i = 0; i < kLoads; i++)
                if (v < vectors - i * kThreads)
                    take<kStores>(x[i], memory + i * kBytes, smem + i * kBytes);
#pragma unroll
            for (int i = 0; i < kLoads && !copies<kStores>(); i++)
                if (v < vectors - i * kThreads)
                    give<kStores>(x[i], memory + i * kBytes, smem + i * kBytes);
        }
        const int i = (int)threadIdx.x;
        const int at = 2 * (i < kPairs ? i : max(vectors, head > 0) * kPairs + i - kPairs);
        if (i < 2 * kPairs && at >= head && at < end && (i >= kPairs || head > 0)) {
            if (kStores)
                *(uint16_t *)(base + at) = Shared::bits<uint16_t>(smem_base + at);
            else
                Shared::store(smem_base + at, *(const uint16_t *)(base + at));
        }
    }
    /* Copies `count` rows of whole vectors between the tile and memory. */
    template <bool kStores>
    DEVICE void move_vectors(uint64_t first_row, int64_t row_bytes, uint32_t smem_first_row, int smem_row_bytes,
                             int vectors, int count) {
        const int row = (int)threadIdx.x / vectors, rows = kThreads / vectors, unit_step = kThreads % vectors;
        const int unit_bytes = unit_step * GPULOSSI_VECTOR_BYTES, whole = vectors * GPULOSSI_VECTOR_BYTES;
        int unit = (int)threadIdx.x % vectors;
        char *memory = (char *)first_row + row * row_bytes + unit * GPULOSSI_VECTOR_BYTES;
        uint32_t smem = smem_first_row + (uint32_t)(row * smem_row_bytes + unit * GPULOSSI_VECTOR_BYTES);
#pragma unroll 1
        for (int left = count * vectors - (int)threadIdx.x; left > 0; left -= kLoads * kThreads) {
            Vector<E> x[kLoads];
            char *of_vector[kLoads];
            uint32_t smem_of_vector[kLoads];
#pragma unroll
            for (int i = 0; i < kLoads; i++) {
                of_vector[i] = memory;
                smem_of_vector[i] = smem;
                if (left > i * kThreads)
                    take<kStores>(x[i], memory, smem);
                unit += unit_step;
                memory += rows * row_bytes + unit_bytes;
                smem += (uint32_t)(rows * smem_row_bytes + unit_bytes);
                if (unit >= vectors) {
                    unit -= vectors;
                    memory += row_bytes - whole;
                    smem += (uint32_t)(smem_row_bytes - whole);
                }
            }
#pragma unroll
            for (int i = 0; i < kLoads && !copies<kStores>(); i++)
                if (left > i * kThreads)
                    give<kStores>(x[i], of_vector[i], smem_of_vector[i]);
        }
    }
    /* Takes n of `count` units from memory or the tile, and gives them to the other, or copies them without registers.
     * Unit i is i steps after the first one. */
    template <bool kStores, int n, class Unit>
    DEVICE void move_units(char *memory, int64_t step, uint32_t smem, uint32_t smem_step, int count) {
        const bool copies_unit = sizeof(Unit) > 2 && copies<kStores>();
        Unit x[n];
#pragma unroll
        for (int i = 0; i < n; i++)
            if (i < count) {
                if (kStores)
                    x[i] = Shared::bits<Unit>(smem + i * smem_step);
                else if (copies_unit)
                    Shared::copy_async<sizeof(Unit)>(smem + i * smem_step, memory + i * step);
                else
                    x[i] = *(const Unit *)(memory + i * step);
            }
#pragma unroll
        for (int i = 0; i < n; i++)
            if (i < count && !copies_unit) {
                if (kStores)
                    *(Unit *)(memory + i * step) = x[i];
                else
                    Shared::store(smem + i * smem_step, x[i]);
            }
    }
    /* Moves every kWarps-th class. In memory they begin every `step` bytes. Each lane has one of `count` units of a class
     * at a time. Several units of a class are in flight, or else the units of several classes. */
    template <bool kStores, class Unit>
    DEVICE void move_classes(char *memory, int64_t step, uint32_t smem, int pitch_bytes, int classes, int count) {
        enum { kUnits = sizeof(Unit) == 2 && !kStores ? kGathered : (int)kLoads, kBytesOfWarp = kLanes * sizeof(Unit) };
        const int lane = (int)threadIdx.x % kLanes,
                  classes_of_warp = (classes - (int)threadIdx.x / kLanes + kWarps - 1) / kWarps;
        const uint32_t smem_step = kWarps * pitch_bytes;
        memory += lane * sizeof(Unit);
        smem += lane * (uint32_t)sizeof(Unit);
        if (count >= kLoads * kLanes) {
#pragma unroll 1
            for (int c = 0; c < classes_of_warp; c++, memory += step, smem += smem_step)
#pragma unroll 1
                for (int i = 0; i < count; i += kUnits * kLanes)
                    move_units<kStores, kUnits, Unit>(memory + i * sizeof(Unit), kBytesOfWarp,
                                                      smem + i * (int)sizeof(Unit), kBytesOfWarp,
                                                      (count - i - lane + kLanes - 1) / kLanes);
            return;
        }
#pragma unroll 1
        for (int i = lane; i < count; i += kLanes, memory += kBytesOfWarp, smem += kBytesOfWarp)
#pragma unroll 1
            for (int c = 0; c < classes_of_warp; c += kUnits)
                move_units<kStores, kUnits, Unit>(memory + c * step, step, smem + c * smem_step, smem_step,
                                                  classes_of_warp - c);
    }
};

#endif
