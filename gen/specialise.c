/* The part of the library that the generator runs itself. The generated block is not needed for it, nor there yet. */
#define GPULOSS_IMPLEMENTATION
#include "library.h"
#include "gen.h"

static const gpulossi_image *gpulossi_image_of(int module) {
    (void)module;
    return NULL;
}

uint64_t sum_of(const text *shortened) {
    return gpulossi_sum_of((const unsigned char *)shortened->bytes, shortened->length);
}

void set_target(text *ptx) {
    static const uint32_t words[GPULOSSI_FEATURE_WORDS] = {0, GPULOSSI_FORMAT_SM_80};
    gpulossi_set_target(ptx->bytes, words, GPULOSSI_ANY_GPU, 0);
}

void specialise(text *marked, const uint32_t *words) {
    gpulossi_marks marks;
    gpulossi_marks_begin(&marks);
    if (!gpulossi_specialise(&marks, marked->bytes, &marked->length, words))
        fail("the library can't specialise this text: %.80s...", marked->bytes);
    marked->bytes[marked->length] = 0;
    gpulossi_set_target(marked->bytes, words, GPULOSSI_ANY_GPU, 0);
}
