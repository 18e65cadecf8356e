/* gen: compiles the kernels to PTX, lowers it, and writes ptx/, ptx/MANIFEST and the generated block of gpuloss.h.
 *
 *     gen SCRATCH_FOLDER OUTPUT_FOLDER     from the top folder of the project, which may be the output folder
 *     gen pack OUTPUT_FOLDER               the block only, from ptx/ as it is
 *
 * Needs the CUDA toolkit (nvcc, ptxas) on the PATH, but not to pack. The output depends on the sources and on the versions
 * that MANIFEST names, and on nothing else. */
#define GPULOSSI_SHARED
#include "../gpuloss.h"
#include "gen.h"

#include <inttypes.h>
#include <lzma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULE(loss, kernel, dtype, target) GPULOSSI_MODULE_##loss##_##kernel##_##dtype,
enum { GPULOSSI_MODULES(MODULE) MODULES };
#undef MODULE

enum {
    NO_MODULE = -1,
    MOST_TEXTS = 3 /* in a row, each of which continues the one before; and one more, which none continues */
};

typedef struct module {
    const char *loss, *kernel, *dtype;
    int target;
    char name[128];
    text ptx, shortened, packed;
    int after;    /* the module whose text this one continues */
    size_t texts; /* number of texts that are unpacked for this one, if it is a base */
} module;

static module modules[MODULES] = {
#define MODULE(loss_, kernel_, dtype_, gpu)                                                                            \
    {.loss = #loss_, .kernel = #kernel_, .dtype = #dtype_, .target = gpu, .after = NO_MODULE},
    GPULOSSI_MODULES(MODULE)
#undef MODULE
};

static const char begin_mark[] = "/* gpuloss: begin of the generated block */\n";
static const char end_mark[] = "/* gpuloss: end of the generated block */\n";

static void upper(char *to, const char *from) {
    for (; *from; from++, to++)
        *to = *from >= 'a' && *from <= 'z' ? (char)(*from - 'a' + 'A') : *from;
    *to = 0;
}

/* Texts of any type continue these texts, which are there whatever types are left out. */
static int is_base(const module *m) {
    return strcmp(m->dtype, "any16") == 0;
}

static void name_all(void) {
    for (int i = 0; i < MODULES; i++) {
        module *m = &modules[i];
        snprintf(m->name, sizeof m->name, "%s_%s_%s", m->loss, m->kernel, m->dtype);
    }
}

static void compile_all(const char *scratch, const char *folder) {
    text commands[MODULES] = {0}, logs[MODULES];
    for (int i = 0; i < MODULES; i++) {
        module *m = &modules[i];
        char path[1024];
        snprintf(path, sizeof path, "%s/%s.ptx", scratch, m->name);
        add_nvcc(&commands[i], m->loss, m->kernel, m->dtype, m->target, "", path);
    }
    run_all(commands, logs, MODULES);
    for (int i = 0; i < MODULES; i++) {
        module *m = &modules[i];
        char path[1024], entry[160];
        snprintf(entry, sizeof entry, "gpuloss_%s", m->name);
        snprintf(path, sizeof path, "%s/%s.ptx", scratch, m->name);
        text raw = read_file(path), lowered = lower(raw.bytes, entry, m->target), marked = mark(lowered.bytes, entry);
        m->ptx = renumber(marked.bytes);
        snprintf(path, sizeof path, "%s/ptx/%s.ptx", folder, m->name);
        write_file(path, m->ptx.bytes, m->ptx.length);
        text_free(&raw);
        text_free(&lowered);
        text_free(&marked);
        text_free(&commands[i]);
        text_free(&logs[i]);
    }
}

static void read_all(void) {
    for (int i = 0; i < MODULES; i++) {
        char path[1024];
        snprintf(path, sizeof path, "ptx/%s.ptx", modules[i].name);
        modules[i].ptx = read_file(path);
    }
}

/* Whether a base continues no other one. Most programs begin with rows without options. Their text takes 10 KB more of the
 * header, and half the time to unpack. */
static int is_alone(const module *m) {
    return is_base(m) && strcmp(m->kernel, "row_basic") == 0;
}

/* The text, packed as one that continues that of `after`. */
static text packed_after(const module *m, int after) {
    const text *texts[MOST_TEXTS + 1];
    size_t count = after == NO_MODULE ? 1 : modules[after].texts + 1;
    texts[count - 1] = &m->shortened;
    for (size_t i = count - 1; i > 0; i--, after = modules[after].after)
        texts[i - 1] = &modules[after].shortened;
    return pack(texts, count);
}

static size_t texts_of(int module) {
    return module == NO_MODULE ? 0 : texts_of(modules[module].after) + 1;
}

/* Chooses which bases of the loss continue which, and packs them. The kernel of large rows is needed first most often. */
static void pack_bases(const char *loss) {
    const text *texts[MODULES];
    int number[MODULES], after[MODULES];
    size_t count = 0, root = 0;
    for (int i = 0; i < MODULES; i++)
        if (is_base(&modules[i]) && !is_alone(&modules[i]) && strcmp(modules[i].loss, loss) == 0) {
            if (strcmp(modules[i].kernel, "row_pipeline") == 0)
                root = count;
            number[count] = i;
            texts[count++] = &modules[i].shortened;
        }
    choose_order(texts, count, root, MOST_TEXTS, after);
    for (size_t i = 0; i < count; i++)
        modules[number[i]].after = after[i] < 0 ? NO_MODULE : number[after[i]];
    for (size_t i = 0; i < count; i++)
        modules[number[i]].texts = texts_of(number[i]);
    for (size_t i = 0; i < count; i++)
        modules[number[i]].packed = packed_after(&modules[number[i]], modules[number[i]].after);
}

static void pack_alone(module *m) {
    m->after = NO_MODULE;
    m->texts = 1;
    m->packed = packed_after(m, NO_MODULE);
}

/* Packs a text of another type. It continues the base of its kernel, or the one of its loss after which it is smallest. */
static void pack_other(module *m) {
    int has_base = 0;
    m->packed = packed_after(m, NO_MODULE);
    for (int i = 0; i < MODULES; i++)
        has_base |=
            is_base(&modules[i]) && strcmp(m->loss, modules[i].loss) == 0 && strcmp(m->kernel, modules[i].kernel) == 0;
    for (int i = 0; i < MODULES; i++) {
        const module *base = &modules[i];
        text packed;
        if (!is_base(base) || strcmp(m->loss, base->loss) != 0 || (has_base && strcmp(m->kernel, base->kernel) != 0))
            continue;
        packed = packed_after(m, i);
        if (packed.length < m->packed.length) {
            text_free(&m->packed);
            m->packed = packed;
            m->after = i;
        } else {
            text_free(&packed);
        }
    }
}

static void pack_all(void) {
    for (int i = 0; i < MODULES; i++)
        modules[i].shortened = shorten(&modules[i].ptx);
    pack_bases("cross_entropy");
    pack_bases("kl_div");
    for (int i = 0; i < MODULES; i++)
        if (is_alone(&modules[i]))
            pack_alone(&modules[i]);
    for (int i = 0; i < MODULES; i++)
        if (!is_base(&modules[i]))
            pack_other(&modules[i]);
}

static void add_manifest(text *manifest, const char *scratch, const char *folder) {
    text commands[MODULES] = {0}, logs[MODULES];
    for (int i = 0; i < MODULES; i++) {
        const module *m = &modules[i];
        text whole = {0};
        char path[1024];
        snprintf(path, sizeof path, "%s/%s.whole.ptx", scratch, m->name);
        text_add_bytes(&whole, m->ptx.bytes, m->ptx.length);
        set_target(&whole);
        write_file(path, whole.bytes, whole.length);
        text_free(&whole);
        text_add(&commands[i], "sha256sum %s/ptx/%s.ptx && ptxas -arch=sm_90 -v %s -o %s/%s.cubin 2>&1", folder,
                 m->name, path, scratch, m->name);
    }
    run_all(commands, logs, MODULES);
    for (int i = 0; i < MODULES; i++) {
        const module *m = &modules[i];
        const char *log = logs[i].bytes;
        text_add(manifest, "%.64s %-34s %9ld %6ld %6ld %8zu %8zu\n", log, m->name, figure(log, " registers"),
                 figure(log, " bytes spill stores") + figure(log, " bytes spill loads"), figure(log, " bytes smem"),
                 m->ptx.length, m->packed.length);
        text_free(&commands[i]);
        text_free(&logs[i]);
    }
}

/* Adds packed bytes as words, the last of which ends in zeros. Hexadecimal constants can do without ULL. */
static void add_words(text *block, const char *name, const text *packed) {
    enum { LINE = 48 }; /* bytes, whose words take up to 115 columns */
    text_add(block, "static const unsigned long long GPULOSSI_WORD_ALIGNED gpulossi_%s[] = {\n", name);
    for (size_t at = 0; at < packed->length; at += 8) {
        const size_t left = packed->length - at;
        uint64_t word = 0;
        memcpy(&word, packed->bytes + at, left < 8 ? left : 8);
        text_add(block, "0x%" PRIx64 "%s%s", word, left > 8 ? "," : "", left <= 8 || at % LINE == LINE - 8 ? "\n" : "");
    }
    text_add(block, "};\n");
}

/* Adds a module's words and its image, under the switches that leave it out. */
static void add_image(text *block, const module *m) {
    char loss[64], dtype[64];
    upper(loss, m->loss);
    upper(dtype, m->dtype);
    /* Modules that serve every loss, or every dtype, are left out with none. */
    int any_loss = strcmp(m->loss, "common") == 0, any_dtype = dtype[0] != 'F';
    text_add(block, any_loss ? "#if 1" : "#if !defined(GPULOSS_NO_%s)", loss);
    if (!any_dtype)
        text_add(block, " && !defined(GPULOSS_NO_%s)", dtype);
    text_add(block, "\n");
    add_words(block, m->name, &m->packed);
    text_add(block, "#define GPULOSSI_IMAGE_%s {\"gpuloss_%s\", gpulossi_%s, %zu, %zu, %zu, ", m->name, m->name,
             m->name, m->packed.length, m->shortened.length, m->ptx.length + 1);
    if (m->after == NO_MODULE)
        text_add(block, "-1, ");
    else
        text_add(block, "GPULOSSI_MODULE_%s, ", modules[m->after].name);
    text_add(block, "%s, 0x%016" PRIx64 "},\n", is_base(m) ? "GPULOSSI_BUILT_ANY16" : "1", sum_of(&m->shortened));
    text_add(block, "#else\n#define GPULOSSI_IMAGE_%s {\"gpuloss_%s\", NULL, 0, 0, 0, -1, 0, 0},\n#endif\n", m->name,
             m->name);
}

static void add_block(text *block) {
    text_add(block, "/* clang-format off */\n"
                    "#ifdef GPULOSS_NO_F16\n#define GPULOSSI_BUILT_F16 0\n#else\n#define GPULOSSI_BUILT_F16 1\n#endif\n"
                    "#ifdef GPULOSS_NO_BF16\n#define GPULOSSI_BUILT_BF16 0\n#else\n#define GPULOSSI_BUILT_BF16 2\n"
                    "#endif\n"
                    "#define GPULOSSI_BUILT_ANY16 (GPULOSSI_BUILT_F16 + GPULOSSI_BUILT_BF16)\n");
    for (int i = 0; i < MODULES; i++)
        add_image(block, &modules[i]);
    text_add(block, "\nstatic const gpulossi_image *gpulossi_image_of(int module) {\n"
                    "#define GPULOSSI_ROW(loss, kernel, dtype, target) GPULOSSI_IMAGE_##loss##_##kernel##_##dtype\n"
                    "    static const gpulossi_image images[] = {GPULOSSI_MODULES(GPULOSSI_ROW)};\n"
                    "#undef GPULOSSI_ROW\n"
                    "    return &images[module];\n"
                    "}\n"
                    "/* clang-format on */\n");
}

static void replace_block(const text *block, const char *folder) {
    char path[1024];
    text header = read_file("gpuloss.h"), out = {0};
    char *begin = strstr(header.bytes, begin_mark), *end = strstr(header.bytes, end_mark);
    if (begin == NULL || end == NULL || end < begin)
        fail("gpuloss.h: the marks of the generated block are missing");
    begin += sizeof begin_mark - 1;
    text_add_bytes(&out, header.bytes, (size_t)(begin - header.bytes));
    text_add_bytes(&out, block->bytes, block->length);
    text_add_bytes(&out, end, strlen(end));
    snprintf(path, sizeof path, "%s/gpuloss.h", folder);
    write_file(path, out.bytes, out.length);
    text_free(&out);
    text_free(&header);
}

/* Compiles and packs all modules; writes ptx/ and MANIFEST. */
static void generate(const char *scratch, const char *folder) {
    text manifest = {0};
    char path[1024];
    text release = run("mkdir -p %s %s/ptx && nvcc --version | sed -n 's/.*release .*, V//p'", scratch, folder);
    text_add(&manifest,
             "# The PTX that gpuloss.h embeds: one module a row of its module table, one kernel a module.\n"
             "# toolkit: nvcc %.*s, from compute_75; liblzma %s\n"
             "# PTX ISA 6.0, target sm_70 (sm_50 on GPUs before Volta); needs driver 384 (CUDA 9.0) and compute "
             "capability 5.0\n"
             "# column_*: PTX ISA 7.0, target sm_80; needs driver 450 (CUDA 11.0) and compute capability 8.0\n"
             "# row_basic, *packed*: PTX ISA 8.0, row_pipeline, *cluster*, logits_block_rows: "
             "8.1, target sm_90; need driver 530 (CUDA 12.1) and compute capability 9.0\n"
             "# registers a thread, spill bytes and shared bytes a block: ptxas -arch=sm_90\n"
             "# sha256                                                         module                             "
             "registers spills shared    bytes   packed\n",
             (int)strcspn(release.bytes, "\n"), release.bytes, lzma_version_string());
    compile_all(scratch, folder);
    pack_all();
    add_manifest(&manifest, scratch, folder);
    add_variants(&manifest, scratch, folder);
    snprintf(path, sizeof path, "%s/ptx/MANIFEST", folder);
    write_file(path, manifest.bytes, manifest.length);
    text_free(&release);
    text_free(&manifest);
}

int main(int argc, char **argv) {
    text block = {0};
    if (argc != 3)
        fail("usage: gen SCRATCH_FOLDER OUTPUT_FOLDER, or gen pack OUTPUT_FOLDER");
    const char *folder = argv[2];
    name_all();
    if (strcmp(argv[1], "pack") == 0) {
        read_all();
        pack_all();
    } else {
        generate(argv[1], folder);
    }
    add_block(&block);
    replace_block(&block, folder);
    for (int i = 0; i < MODULES; i++) {
        text_free(&modules[i].ptx);
        text_free(&modules[i].shortened);
        text_free(&modules[i].packed);
    }
    text_free(&block);
    return 0;
}
