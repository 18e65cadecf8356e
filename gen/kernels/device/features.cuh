/* Feature words hold the options of a call. The loader writes them into the PTX as constants before the driver compiles
 * it. nvcc sees a number that it can't know. The driver sees a constant, and removes the code that it excludes. */
#ifndef GPULOSSI_FEATURES_CUH
#define GPULOSSI_FEATURES_CUH

#define GPULOSSI_SHARED
#include "../../../gpuloss.h"

#define DEVICE static __device__ __forceinline__

/* With these macros defined, a template is compiled for one variant, to be compared with the specialised text. */
#ifdef MODULE_CALL_WORD
DEVICE uint32_t call_word() {
    return MODULE_CALL_WORD;
}
DEVICE uint32_t format_word() {
    return MODULE_FORMAT_WORD;
}
#else
DEVICE uint32_t call_word() {
    uint32_t word;
    asm("mov.u32 %0, 0x5BEC0000;" : "=r"(word));
    return word;
}
DEVICE uint32_t format_word() {
    uint32_t word;
    asm("mov.u32 %0, 0x5BEC0001;" : "=r"(word));
    return word;
}
#endif

/* Whether the call has any of these features, GPULOSSI_CE_*. */
DEVICE bool has(uint32_t features) {
    return (call_word() & features) != 0;
}
/* Whether its types, layout and GPU have any of these features, GPULOSSI_FORMAT_*. */
DEVICE bool has_format(uint32_t features) {
    return (format_word() & features) != 0;
}

/* Whether the module is only for GPUs of compute capability 8.0 and newer. */
DEVICE bool is_sm_80() {
    return MODULE_TARGET >= 80;
}
/* Whether the GPU is of compute capability 8.0 or newer. A text for every GPU knows it when it is loaded. */
DEVICE bool runs_on_sm_80() {
    return is_sm_80() || has_format(GPULOSSI_FORMAT_SM_80);
}

/* A line of inline assembly begins with a tag if only some types or GPUs need it. */
#define GPULOSSI_TEXT(x) #x
#define GPULOSSI_TAG(sign, features) "1" sign GPULOSSI_TEXT(features)
#define GPULOSSI_CALL_TAG(sign, features) "0" sign GPULOSSI_TEXT(features)
#define GPULOSSI_TAGS(sign, features, other_sign, other)                                                               \
    "/*?" GPULOSSI_TAG(sign, features) " " GPULOSSI_TAG(other_sign, other) "*/ "
#define IF_FORMAT(features, line) "/*?" GPULOSSI_TAG("+", features) "*/ " line
#define EITHER_FORMAT(features, line, otherwise)                                                                       \
    IF_FORMAT(features, line) "\n\t/*?" GPULOSSI_TAG("-", features) "*/ " otherwise
/* Selects one of four lines by two features. */
#define BY_FORMATS(a, b, both, only_a, only_b, neither)                                                                \
    GPULOSSI_TAGS("+", a, "+", b)                                                                                      \
    both "\n\t" GPULOSSI_TAGS("+", a, "-", b) only_a "\n\t" GPULOSSI_TAGS("-", a, "+", b) only_b                       \
        "\n\t" GPULOSSI_TAGS("-", a, "-", b) neither

/* Selects a line by whether the call has a feature, and the format not `unless`. */
#define BY_CALL(call, unless, with_call, otherwise)                                                                    \
    "/*?" GPULOSSI_CALL_TAG("-", call) "*/ " otherwise "\n\t/*?" GPULOSSI_CALL_TAG("+", call) " " GPULOSSI_TAG(        \
        "+", unless) "*/ " otherwise                                                                                   \
                     "\n\t/*?" GPULOSSI_CALL_TAG("+", call) " " GPULOSSI_TAG("-", unless) "*/ " with_call

/* The launch bounds of some variants, as a line that gen/ moves to the directives of the entry. */
#define BOUNDS(threads, blocks) ".maxntid " #threads ", 1, 1 .minnctapersm " #blocks

#endif
