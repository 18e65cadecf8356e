/* Macros for executors. EXEC(name) defines the function that the rows of instructions.def call. LANES runs a statement
 * for each lane l of the group. Registers are read through SOURCE and written through RESULT, zero-extended. */
#ifndef PTXSIM_EXECUTE_H
#define PTXSIM_EXECUTE_H

#include "ptxsim.h"

#include <string.h>

/* Where the compiler can, each executor exists a second time for wide vectors and is picked when the library loads. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(PTXSIM_NO_CLONES) &&                   \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PTXSIM_CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define PTXSIM_CLONES
#endif

#define EXEC(name)                                                                                                     \
    ptxsim_exec ptxsim_x_##name;                                                                                       \
    enum ptxsim_next ptxsim_x_##name(struct warp *w, const struct insn *i, uint32_t mask)

/* For executors that are loops over lanes and little else. */
#define LOOP(name)                                                                                                     \
    ptxsim_exec ptxsim_x_##name;                                                                                       \
    PTXSIM_CLONES enum ptxsim_next ptxsim_x_##name(struct warp *w, const struct insn *i, uint32_t mask)

#if defined(__clang__)
#define PTXSIM_IVDEP
#else
#define PTXSIM_IVDEP _Pragma("GCC ivdep")
#endif

#define LANES(...)                                                                                                     \
    do {                                                                                                               \
        if (mask == ~0u) {                                                                                             \
            PTXSIM_IVDEP                                                                                               \
            for (uint32_t l = 0; l < PTXSIM_WARP; l++) {                                                               \
                __VA_ARGS__;                                                                                           \
            }                                                                                                          \
        } else {                                                                                                       \
            for (uint32_t l = 0; l < PTXSIM_WARP; l++)                                                                 \
                if (mask >> l & 1) {                                                                                   \
                    __VA_ARGS__;                                                                                       \
                }                                                                                                      \
        }                                                                                                              \
    } while (0)

#define SOURCE(n) ptxsim_source(w, i->s[n])
#define RESULT (w->regs + (size_t)i->d[0] * PTXSIM_WARP)
#define RESULT2 (w->regs + (size_t)i->d[1] * PTXSIM_WARP)

static inline int64_t ptxsim_signed(uint64_t value, uint32_t shift) {
    return (int64_t)(value << shift) >> shift;
}

static inline float ptxsim_f32(uint64_t value) {
    uint32_t u = (uint32_t)value;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t ptxsim_bits_f32(float value) {
    uint32_t u;
    memcpy(&u, &value, sizeof u);
    return u;
}

static inline double ptxsim_f64(uint64_t value) {
    double d;
    memcpy(&d, &value, sizeof d);
    return d;
}

static inline uint64_t ptxsim_bits_f64(double value) {
    uint64_t u;
    memcpy(&u, &value, sizeof u);
    return u;
}

/* .ftz: a denormal becomes zero of the same sign. */
static inline uint64_t ptxsim_flush(uint64_t value) {
    return (value & 0x7f800000u) ? value : value & 0x80000000u;
}

/* Faults unless the register has been written in every lane of the group. */
static inline void ptxsim_need(struct warp *w, const struct insn *i, uint32_t slot, uint32_t mask, const char *what) {
    uint32_t undefined = mask & ~ptxsim_defined(w, slot);
    if (undefined)
        ptxsim_fault(w, i, __builtin_ctz(undefined), E_LAUNCH_FAILED, "%s comes from a register that was never written",
                     what);
}

/* Faults where a lane of the group may be ahead of the kernels before this one, whose results global memory has. */
static inline void ptxsim_need_wait(struct warp *w, const struct insn *i, uint32_t mask, enum ptxsim_space space,
                                    uint32_t base, int64_t offset) {
    if (mask & ~w->waited)
        ptxsim_early(w, i, mask & ~w->waited, space, base, offset);
}

#endif
