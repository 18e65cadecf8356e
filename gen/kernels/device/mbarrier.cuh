/* Barriers in shared memory (mbarrier), to wait for bulk copies and for other threads. */
#ifndef GPULOSSI_MBARRIER_CUH
#define GPULOSSI_MBARRIER_CUH

#include "reduce.cuh"

/* The dynamic shared memory of a launch, aligned to a line of 128 bytes. A bulk copy to an address inside a line is
 * slower by up to a seventh. */
enum { kLine = GPULOSSI_LINE_BYTES };
DEVICE uint4 *stash_of_block() {
    extern __shared__ __align__(kLine) uint4 stash[];
    return stash;
}

/* Whether this lane is the one of its warp that is elected. All lanes of the warp call. The assembler knows that only one
 * lane is, and that saves a loop over lanes for each bulk copy. */
DEVICE bool is_elected() {
    uint32_t elected;
    asm volatile("{ .reg .pred one; elect.sync _|one, 0xffffffff; selp.u32 %0, 1, 0, one; }" : "=r"(elected)::"memory");
    return elected != 0;
}

/* An mbarrier counts arrivals and the bytes of copies. Its phases have alternating parity. */
struct Arrival {
    uint64_t barrier;

    __device__ __forceinline__ uint32_t address() const { return (uint32_t)__cvta_generic_to_shared(&barrier); }
    __device__ __forceinline__ void begin(uint32_t arrivals = 1) { begin(address(), arrivals); }
    DEVICE void begin(uint32_t at, uint32_t arrivals) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;\n\tfence.proxy.async.shared::cta;" ::"r"(at), "r"(arrivals)
                     : "memory");
    }
    /* An arrival without bytes. A thread that waits for the phase sees the earlier writes of this thread. */
    __device__ __forceinline__ void arrive() const {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
    }
    /* Announces the bytes of all copies of a phase, which may be 0, to the barrier at address `at`. One thread
     * calls. */
    DEVICE void expect(uint32_t at, uint32_t bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    }
    /* Starts a bulk copy to address `to`, which completes at the barrier at address `at`. 16 divides both addresses and
     * the bytes, which are not 0. One thread calls. */
    DEVICE void copy(uint32_t at, uint32_t to, const void *from, uint32_t bytes) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], %3, [%0];" ::"r"(at),
            "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes)
            : "memory");
    }
    /* Writes x to block `of` of the cluster, to the variable that is `here` in this block. The bytes complete at this
     * barrier's counterpart in that block. */
    template <class T> __device__ __forceinline__ void put(uint32_t of, T *here, const T &x) const {
        uint32_t there, at, words[sizeof(T) / 4];
        memcpy(words, &x, sizeof x);
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(there)
            : "r"((uint32_t)__cvta_generic_to_shared(here)), "r"(of));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(address()), "r"(of));
#pragma unroll
        for (int i = 0; i < (int)(sizeof(T) / 4); i += 4)
            asm volatile(
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                    there + 4 * i),
                "r"(words[i]), "r"(words[i + 1]), "r"(words[i + 2]), "r"(words[i + 3]), "r"(at)
                : "memory");
    }
    /* Starts a phase of one bulk copy. Its bytes may be 0. */
    __device__ __forceinline__ void request(void *to, const void *from, uint32_t bytes) {
        asm volatile(
            "{ .reg .pred some; setp.ne.u32 some, %1, 0;\n\t"
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n\t"
            "@some cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%2], [%3], %1, [%0]; }" ::"r"(
                address()),
            "r"(bytes), "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from))
            : "memory");
    }
    /* Whether the phase of this parity is over. It may wait for a while before it returns false. */
    DEVICE bool is_over(uint32_t at, uint32_t parity) {
        uint32_t done;
        asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, done; }"
                     : "=r"(done)
                     : "r"(at), "r"(parity)
                     : "memory");
        return done != 0;
    }
    /* Waits until the phase of this parity is over. With by_warp, all lanes of the warp call, and leave the loop at once: if
     * they leave it one by one, the assembler expects a diverged warp ever after. */
    DEVICE void wait(uint32_t at, uint32_t parity, bool by_warp) {
        while (by_warp ? uniform(!is_over(at, parity)) : !is_over(at, parity))
            ;
    }
    DEVICE void wait_by_warp(uint32_t at, uint32_t parity) {
        wait(at, parity, true);
    }
    __device__ __forceinline__ void wait_by_warp(uint32_t parity) const {
        wait_by_warp(address(), parity);
    }
};

#endif
