/* gen: compiles the kernels to PTX, lowers it, and writes ptx/, ptx/MANIFEST and the generated block of gpuloss.h.
 *
 *     gen SCRATCH_FOLDER     from the top folder of the project
 *
 * Needs the CUDA toolkit (nvcc, ptxas, bin2c) on the PATH. The output depends on the sources and on the versions that
 * MANIFEST names, and on nothing else. */
#define GPULOSSI_SHARED
#include "../gpuloss.h"
#include "gen.h"

#include <lz4.h>
#include <lz4hc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct module {
    const char *loss, *kernel, *dtype;
    int target;
} module;

static const module modules[] = {
#define MODULE(loss, kernel, dtype, target) {#loss, #kernel, #dtype, target},
    GPULOSSI_MODULES(MODULE)
#undef MODULE
};

static const char begin_mark[] = "/* gpuloss: begin of the generated block */\n";
static const char end_mark[] = "/* gpuloss: end of the generated block */\n";

/* A figure of ptxas -v: the number before `unit`. */
static long figure(const char *log, const char *unit) {
    const char *at = strstr(log, unit);
    if (at == NULL)
        return 0;
    while (at > log && (at[-1] == ' ' || (at[-1] >= '0' && at[-1] <= '9')))
        at--;
    return strtol(at, NULL, 10);
}

static void upper(char *to, const char *from) {
    for (; *from; from++, to++)
        *to = *from >= 'a' && *from <= 'z' ? (char)(*from - 'a' + 'A') : *from;
    *to = 0;
}

/* Adds a module's words, under the switches that leave it out. */
static void add_words(text *block, const module *m, const char *name, const char *scratch, const text *ptx,
                      size_t packed_bytes) {
    char loss[64], dtype[64];
    upper(loss, m->loss);
    upper(dtype, m->dtype);
    text words = run("bin2c --type longlong --const --static --padd 0 --name gpulossi_%s %s/packed", name, scratch);
    const char *body = strstr(words.bytes, "static"), *end = body ? strstr(body, "};") : NULL;
    if (end == NULL)
        fail("bin2c wrote something unexpected for %s", name);
    /* What serves every loss, or every dtype, is left out with none. */
    int any_loss = strcmp(m->loss, "common") == 0, any_dtype = dtype[0] != 'F' && dtype[0] != 'B';
    int any16 = strcmp(m->dtype, "any16") == 0;
    text_add(block, any_loss ? "#if 1" : "#if !defined(GPULOSS_NO_%s)", loss);
    if (any16)
        text_add(block, " && !(defined(GPULOSS_NO_F16) && defined(GPULOSS_NO_BF16))");
    else if (!any_dtype)
        text_add(block, " && !defined(GPULOSS_NO_%s)", dtype);
    text_add(block, "\n");
    text_add_bytes(block, body, (size_t)(end - body));
    text_add(block, "};\n#define GPULOSSI_IMAGE_%s {\"gpuloss_%s\", gpulossi_%s, %zu, %zu},\n", name, name, name,
             packed_bytes, ptx->length + 1);
    text_add(block, "#else\n#define GPULOSSI_IMAGE_%s {\"gpuloss_%s\", NULL, 0, 0},\n#endif\n", name, name);
    text_free(&words);
}

static size_t pack(const text *ptx, const char *scratch) {
    char path[1024];
    int room = LZ4_compressBound((int)ptx->length + 1);
    char *packed = malloc((size_t)room);
    if (packed == NULL)
        fail("out of memory");
    int bytes = LZ4_compress_HC(ptx->bytes, packed, (int)ptx->length + 1, room, LZ4HC_CLEVEL_MAX);
    if (bytes <= 0)
        fail("LZ4 can't compress");
    snprintf(path, sizeof path, "%s/packed", scratch);
    write_file(path, packed, (size_t)bytes);
    free(packed);
    return (size_t)bytes;
}

static void make_module(const module *m, const char *scratch, text *block, text *manifest) {
    char name[128], entry[160], path[1024];
    snprintf(name, sizeof name, "%s_%s_%s", m->loss, m->kernel, m->dtype);
    snprintf(entry, sizeof entry, "gpuloss_%s", name);
    text log = run("nvcc -ptx -arch=compute_75 -std=c++17 -Werror all-warnings -DMODULE_KERNEL=%s -DMODULE_DTYPE=%s "
                   "-DMODULE_TARGET=%d -DMODULE_ENTRY=%s gen/kernels/entry/%s.cu -o %s/raw.ptx 2>&1",
                   m->kernel, m->dtype, m->target, entry, m->loss, scratch);
    text_free(&log);
    snprintf(path, sizeof path, "%s/raw.ptx", scratch);
    text raw = read_file(path);
    text lowered = lower(raw.bytes, entry, m->target), ptx = mark(lowered.bytes, entry);
    text_free(&lowered);
    text_free(&raw);
    snprintf(path, sizeof path, "ptx/%s.ptx", name);
    write_file(path, ptx.bytes, ptx.length);
    size_t packed_bytes = pack(&ptx, scratch);
    log = run("ptxas -arch=sm_90 -v %s -o %s/cubin 2>&1", path, scratch);
    text sum = run("sha256sum %s", path);
    text_add(manifest, "%.64s %-34s %9ld %6ld %6ld %8zu %8zu\n", sum.bytes, name, figure(log.bytes, " registers"),
             figure(log.bytes, " bytes spill stores") + figure(log.bytes, " bytes spill loads"),
             figure(log.bytes, " bytes smem"), ptx.length, packed_bytes);
    add_words(block, m, name, scratch, &ptx, packed_bytes);
    text_free(&sum);
    text_free(&log);
    text_free(&ptx);
    printf("%s: %zu bytes packed\n", name, packed_bytes);
}

static void replace_block(const text *block) {
    text header = read_file("gpuloss.h"), out = {0};
    char *begin = strstr(header.bytes, begin_mark), *end = strstr(header.bytes, end_mark);
    if (begin == NULL || end == NULL || end < begin)
        fail("gpuloss.h: the marks of the generated block are missing");
    begin += sizeof begin_mark - 1;
    text_add_bytes(&out, header.bytes, (size_t)(begin - header.bytes));
    text_add_bytes(&out, block->bytes, block->length);
    text_add_bytes(&out, end, strlen(end));
    write_file("gpuloss.h", out.bytes, out.length);
    text_free(&out);
    text_free(&header);
}

int main(int argc, char **argv) {
    text block = {0}, manifest = {0};
    if (argc != 2)
        fail("usage: gen SCRATCH_FOLDER");
    text release = run("nvcc --version | sed -n 's/.*release .*, V//p'");
    text_add(&manifest,
             "# The PTX that gpuloss.h embeds: one module a row of its module table, one kernel a module.\n"
             "# toolkit: nvcc %.*s, from compute_75; LZ4 %s\n"
             "# PTX ISA 6.0, target sm_70 (sm_50 on GPUs before Volta); needs driver 384 (CUDA 9.0) and compute "
             "capability 5.0\n"
             "# planes*: PTX ISA 7.0, target sm_80; needs driver 450 (CUDA 11.0) and compute capability 8.0\n"
             "# *block_rows, *packed*, ring: PTX ISA 8.0, *clustered, *kept: 8.1, target sm_90; need driver 530 "
             "(CUDA 12.1) and compute capability 9.0\n"
             "# registers a thread, spill bytes and shared bytes a block: ptxas -arch=sm_90\n"
             "# sha256                                                         module                             "
             "registers spills shared    bytes   packed\n",
             (int)strcspn(release.bytes, "\n"), release.bytes, LZ4_versionString());
    text_add(&block, "/* clang-format off */\n");
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++)
        make_module(&modules[i], argv[1], &block, &manifest);
    text_add(&block, "\nstatic const gpulossi_image *gpulossi_image_of(int module) {\n"
                     "#define GPULOSSI_ROW(loss, kernel, dtype, target) GPULOSSI_IMAGE_##loss##_##kernel##_##dtype\n"
                     "    static const gpulossi_image images[] = {GPULOSSI_MODULES(GPULOSSI_ROW)};\n"
                     "#undef GPULOSSI_ROW\n"
                     "    return &images[module];\n"
                     "}\n"
                     "/* clang-format on */\n");
    replace_block(&block);
    write_file("ptx/MANIFEST", manifest.bytes, manifest.length);
    text_free(&release);
    text_free(&manifest);
    text_free(&block);
    return 0;
}
