/* Part of the header that run.sh writes: a text that has been unpacked often for the same words is copied. */
#ifdef UNPACKED_ONCE
int known_text(const gpulossi_image *image, const uint32_t words[GPULOSSI_FEATURE_WORDS], char *text);
void note_text(const gpulossi_image *image, const uint32_t words[GPULOSSI_FEATURE_WORDS], const char *text);
static int text_once(const gpulossi_image *image, const uint32_t words[GPULOSSI_FEATURE_WORDS], char *text) {
    if (known_text(image, words, text))
        return 1;
    if (!gpulossi_unpack_text(image, words, text))
        return 0;
    note_text(image, words, text);
    return 1;
}
#define gpulossi_unpack_text text_once
#endif
