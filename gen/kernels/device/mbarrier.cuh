/* Waiting for copies to shared memory, and for other threads, by barriers that lie there. */
#ifndef GPULOSSI_MBARRIER_CUH
#define GPULOSSI_MBARRIER_CUH

#include "reduce.cuh"

/* The shared memory that a launch asks for. It begins on a line of 128 bytes: bulk copies to another place in it are slower
 * by up to a seventh. */
enum { kLine = 128 };
DEVICE uint4 *stash_of_block() {
    extern __shared__ __align__(kLine) uint4 stash[];
    return stash;
}

/* A barrier in shared memory that counts arrivals and the bytes of copies; its phases are of alternating parity. */
struct Arrival {
    uint64_t barrier;

    __device__ __forceinline__ uint32_t address() const { return (uint32_t)__cvta_generic_to_shared(&barrier); }
    __device__ __forceinline__ void begin(uint32_t arrivals = 1) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;\n\tfence.proxy.async.shared::cta;" ::"r"(address()),
                     "r"(arrivals)
                     : "memory");
    }
    /* One arrival, without bytes: who waits sees what this thread has written before. */
    __device__ __forceinline__ void arrive() const {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
    }
    /* Of one at an address the bytes of all copies of a phase, which may be none; and then each copy, of some, to an address
     * too. 16 divides the bytes and where they are from and go to. One thread calls. */
    DEVICE void expect(uint32_t at, uint32_t bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    }
    DEVICE void copy(uint32_t at, uint32_t to, const void *from, uint32_t bytes) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], %3, [%0];" ::"r"(at),
            "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes)
            : "memory");
    }
    /* Writes to where block `of` of the cluster has what this one has here, and tells its barrier there of the bytes. */
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
    /* A phase of one copy, of so many bytes, which may be none. */
    __device__ __forceinline__ void request(void *to, const void *from, uint32_t bytes) {
        asm volatile(
            "{ .reg .pred some; setp.ne.u32 some, %1, 0;\n\t"
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n\t"
            "@some cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%2], [%3], %1, [%0]; }" ::"r"(
                address()),
            "r"(bytes), "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from))
            : "memory");
    }
    __device__ __forceinline__ void wait(uint32_t parity) const {
        wait(address(), parity);
    }
    DEVICE void wait(uint32_t at, uint32_t parity) {
        uint32_t done;
        do
            asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
                         "selp.u32 %0, 1, 0, done; }"
                         : "=r"(done)
                         : "r"(at), "r"(parity)
                         : "memory");
        while (!done);
    }
};

#endif
