/* For run.sh: each thread unpacks a text once. */
#define GPULOSS_STATIC
#include "../../gpuloss.h"

int unpacked_once(gpulossi_lzma *z, const gpulossi_image *image);
int unpacked_once(gpulossi_lzma *z, const gpulossi_image *image) {
    static _Thread_local unsigned char *known[GPULOSSI_MODULE_COUNT];
    const size_t bytes = image->shortened_bytes, all_bytes = gpulossi_unpacked_bytes(image);
    int module = 0;
    while (gpulossi_image_of(module) != image)
        module++;
    if (known[module] == NULL) {
        unsigned char *history = z->history;
        known[module] = (unsigned char *)malloc(all_bytes);
        if (known[module] == NULL)
            abort();
        z->history = known[module];
        if (!gpulossi_unpack(z, image))
            abort();
        z->history = history;
    }
    z->at = all_bytes;
    memcpy(z->history + all_bytes - bytes, known[module] + all_bytes - bytes, bytes);
    return 1;
}
