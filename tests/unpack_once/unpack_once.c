/* For run.sh: each thread unpacks a text once, and all of them together specialise it for the same words a few times. */
#define GPULOSS_STATIC
#include "../../gpuloss.h"

#include <pthread.h>

typedef struct variant {
    uint32_t words[GPULOSSI_FEATURE_WORDS];
    int times;
    char *text; /* after TIMES_UNPACKED, which run.sh defines */
    size_t bytes;
    struct variant *next;
} variant;
static variant *variants[GPULOSSI_MODULE_COUNT];

static int module_of(const gpulossi_image *image) {
    int module = 0;
    while (gpulossi_image_of(module) != image)
        module++;
    return module;
}

/* The texts that a thread has unpacked, which are freed at its end. */
static pthread_key_t key_of_known;
static void free_known(void *known) {
    int module;
    for (module = 0; module < GPULOSSI_MODULE_COUNT; module++)
        free(((unsigned char **)known)[module]);
    free(known);
}
static void make_key(void) {
    if (pthread_key_create(&key_of_known, free_known) != 0)
        abort();
}
static unsigned char **known_of_thread(void) {
    static pthread_once_t has_key = PTHREAD_ONCE_INIT;
    unsigned char **known;
    pthread_once(&has_key, make_key);
    known = (unsigned char **)pthread_getspecific(key_of_known);
    if (known == NULL) {
        known = (unsigned char **)calloc(GPULOSSI_MODULE_COUNT, sizeof *known);
        if (known == NULL || pthread_setspecific(key_of_known, known) != 0)
            abort();
    }
    return known;
}

int unpacked_once(gpulossi_lzma *z, const gpulossi_image *image);
int unpacked_once(gpulossi_lzma *z, const gpulossi_image *image) {
    unsigned char **known = known_of_thread();
    const size_t bytes = image->shortened_bytes, all_bytes = gpulossi_unpacked_bytes(image);
    const int module = module_of(image);
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

/* This file is not compiled for the thread sanitizer, which thus sees no order of the library's threads from here. It would
 * still check calls of memcpy(). */
static void copy(char *to, const char *from, size_t bytes) {
    size_t i;
    for (i = 0; i < bytes; i++)
        to[i] = from[i];
}

static variant *find(const gpulossi_image *image, const uint32_t words[GPULOSSI_FEATURE_WORDS]) {
    variant *v = __atomic_load_n(&variants[module_of(image)], __ATOMIC_ACQUIRE);
    while (v != NULL && memcmp(v->words, words, sizeof v->words) != 0)
        v = v->next;
    return v;
}

int known_text(const gpulossi_image *image, const uint32_t words[GPULOSSI_FEATURE_WORDS], char *text);
int known_text(const gpulossi_image *image, const uint32_t words[GPULOSSI_FEATURE_WORDS], char *text) {
    const variant *v = find(image, words);
    const char *known = v != NULL ? __atomic_load_n(&v->text, __ATOMIC_ACQUIRE) : NULL;
    if (known == NULL)
        return 0;
    copy(text, known, v->bytes);
    return 1;
}

void note_text(const gpulossi_image *image, const uint32_t words[GPULOSSI_FEATURE_WORDS], const char *text);
void note_text(const gpulossi_image *image, const uint32_t words[GPULOSSI_FEATURE_WORDS], const char *text) {
    variant *v = find(image, words);
    char *known;
    if (v == NULL) {
        variant **first = &variants[module_of(image)];
        v = (variant *)calloc(1, sizeof *v);
        if (v == NULL)
            abort();
        copy((char *)v->words, (const char *)words, sizeof v->words);
        v->next = __atomic_load_n(first, __ATOMIC_ACQUIRE);
        while (!__atomic_compare_exchange_n(first, &v->next, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            continue;
    }
    if (__atomic_add_fetch(&v->times, 1, __ATOMIC_ACQ_REL) != TIMES_UNPACKED)
        return;
    v->bytes = strlen(text) + 1;
    known = (char *)malloc(v->bytes);
    if (known == NULL)
        abort();
    copy(known, text, v->bytes);
    __atomic_store_n(&v->text, known, __ATOMIC_RELEASE);
}
