/* The part of the library that the generator runs itself. The generated block is not needed for it, nor there yet. */
#define GPULOSS_IMPLEMENTATION
#include "library.h"
#include "gen.h"

static const gpulossi_image *gpulossi_image_of(int module) {
    (void)module;
    return NULL;
}

uint64_t sum_of(const text *ptx) {
    return gpulossi_sum_of(ptx->bytes, ptx->length + 1);
}

void set_target(text *ptx) {
    static const uint32_t words[GPULOSSI_FEATURE_WORDS] = {0, GPULOSSI_FORMAT_SM_80};
    gpulossi_set_target(ptx->bytes, words, GPULOSSI_ANY_GPU, 0);
}

void specialise(text *marked, const uint32_t *words) {
    if (!gpulossi_specialise(marked->bytes, marked->length + 1, words))
        fail("the library can't specialise this text: %.80s...", marked->bytes);
    marked->length = strlen(marked->bytes);
    gpulossi_set_target(marked->bytes, words, GPULOSSI_ANY_GPU, 0);
}
