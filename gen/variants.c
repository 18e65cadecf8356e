/* Measures the cost of the feature words of a text. Each usual variant is built as the library builds it, and by nvcc
 * as a template of that one variant. The figures of both go to MANIFEST. */
#define GPULOSSI_SHARED
#include "../gpuloss.h"
#include "gen.h"
#include "variants.h"

#include <stdio.h>
#include <string.h>

enum {
    SPECIALISED,
    TEMPLATE,
    WAYS,
    /* Thousandths of the instructions of its template that a specialised text may take, and one of a divergence. */
    MOST_THOUSANDTHS = 1030,
    MOST_OF_DIVERGENCES = 1050
};

typedef struct built {
    char name[128]; /* of its files in the scratch folder, without the suffix */
    text ptx;
    long instructions, registers, spills, bytes;
} built;

static built variants[USUAL_VARIANTS][WAYS];

static int target_of(const variant *v) {
#define ROW(loss, kernel, dtype, target) {#loss "_" #kernel "_" #dtype, target},
    static const struct {
        const char *name;
        int target;
    } modules[] = {GPULOSSI_MODULES(ROW)};
#undef ROW
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++)
        if (strcmp(modules[i].name, v->module) == 0)
            return modules[i].target;
    fail("variant %s: there is no module %s", v->name, v->module);
}

static void compile_templates(const char *scratch) {
    text commands[USUAL_VARIANTS] = {0}, logs[USUAL_VARIANTS];
    for (int i = 0; i < USUAL_VARIANTS; i++) {
        const variant *v = &usual_variants[i];
        char words[128], path[1024];
        snprintf(variants[i][SPECIALISED].name, sizeof variants[i][0].name, "%s.%s", v->module, v->name);
        snprintf(variants[i][TEMPLATE].name, sizeof variants[i][0].name, "%s.%s.template", v->module, v->name);
        snprintf(words, sizeof words, " -DMODULE_CALL_WORD=0x%08xu -DMODULE_FORMAT_WORD=0x%08xu",
                 (unsigned)v->words[GPULOSSI_CALL_WORD], (unsigned)v->words[GPULOSSI_FORMAT_WORD]);
        snprintf(path, sizeof path, "%s/%s.ptx", scratch, variants[i][TEMPLATE].name);
        add_nvcc(&commands[i], v->loss, v->kernel, v->dtype, target_of(v), words, path);
    }
    run_all(commands, logs, USUAL_VARIANTS);
    for (int i = 0; i < USUAL_VARIANTS; i++) {
        text_free(&commands[i]);
        text_free(&logs[i]);
    }
}

/* The text of a template, in which lines of inline assembly still have tags: it goes the way of every text. */
static text template_text(const variant *v, const char *path) {
    char entry[128];
    snprintf(entry, sizeof entry, "gpuloss_%s", v->module);
    text raw = read_file(path), lowered = lower(raw.bytes, entry, target_of(v)), marked = mark(lowered.bytes, entry);
    text_free(&raw);
    text_free(&lowered);
    return marked;
}

/* Both texts of a variant, as the driver would get them. */
static void make_texts(int i, const char *scratch, const char *folder) {
    const variant *v = &usual_variants[i];
    char path[1024];
    snprintf(path, sizeof path, "%s/ptx/%s.ptx", folder, v->module);
    variants[i][SPECIALISED].ptx = read_file(path);
    snprintf(path, sizeof path, "%s/%s.ptx", scratch, variants[i][TEMPLATE].name);
    variants[i][TEMPLATE].ptx = template_text(v, path);
    for (int way = 0; way < WAYS; way++) {
        built *b = &variants[i][way];
        specialise(&b->ptx, v->words);
        for (size_t at = 0; at < b->ptx.length; at++)
            b->bytes += b->ptx.bytes[at] != ' ' && b->ptx.bytes[at] != '\n';
        snprintf(path, sizeof path, "%s/%s.ptx", scratch, b->name);
        write_file(path, b->ptx.bytes, b->ptx.length);
        text_free(&b->ptx);
    }
}

static void assemble(const char *scratch) {
    enum { COUNT = USUAL_VARIANTS * WAYS };
    text commands[COUNT] = {0}, logs[COUNT];
    for (int i = 0; i < COUNT; i++) {
        const char *name = variants[i / WAYS][i % WAYS].name;
        text_add(&commands[i], "ptxas -arch=sm_90 -v %s/%s.ptx -o %s/%s.cubin 2>&1", scratch, name, scratch, name);
    }
    run_all(commands, logs, COUNT);
    for (int i = 0; i < COUNT; i++) {
        built *b = &variants[i / WAYS][i % WAYS];
        char path[1024], entry[128];
        snprintf(entry, sizeof entry, "gpuloss_%s", usual_variants[i / WAYS].module);
        snprintf(path, sizeof path, "%s/%s.cubin", scratch, b->name);
        b->instructions = instructions_of(path, entry);
        b->registers = figure(logs[i].bytes, " registers");
        b->spills = figure(logs[i].bytes, " bytes spill stores") + figure(logs[i].bytes, " bytes spill loads");
        text_free(&commands[i]);
        text_free(&logs[i]);
    }
}

/* Rounded up, so that no row looks better than its text is. */
static long thousandths_of(int i) {
    const long instructions = variants[i][TEMPLATE].instructions;
    return (1000 * variants[i][SPECIALISED].instructions + instructions - 1) / instructions;
}

static long most_of(const variant *v) {
    return strcmp(v->loss, "kl_div") == 0 ? MOST_OF_DIVERGENCES : MOST_THOUSANDTHS;
}

static void add_row(text *rows, int i) {
    const variant *v = &usual_variants[i];
    const built *s = &variants[i][SPECIALISED], *t = &variants[i][TEMPLATE];
    const long thousandths = thousandths_of(i);
    text_add(rows, "%-36s %-27s %6ld %5ld %ld.%03ld   %3ld %3ld %3ld %3ld %8ld %8ld\n", v->module, v->name,
             s->instructions, t->instructions, thousandths / 1000, thousandths % 1000, s->registers, t->registers,
             s->spills, t->spills, s->bytes, t->bytes);
}

/* Whether a text may not spill, whatever its template does. A spill of a wide block is read back from memory once a
 * row, and the cluster waits for it. In measurements the kernel then takes 1.2 to 1.4 times as long. */
static int must_not_spill(const variant *v) {
    return strcmp(v->kernel, "row_pipeline") == 0 && (v->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_WIDE) != 0;
}

/* Ends the program if a specialised text costs more than its template may. */
static void check_costs(void) {
    text costly = {0};
    for (int i = 0; i < USUAL_VARIANTS; i++)
        if (thousandths_of(i) > most_of(&usual_variants[i]) ||
            (variants[i][SPECIALISED].spills > 0 &&
             (variants[i][TEMPLATE].spills == 0 || must_not_spill(&usual_variants[i]))))
            add_row(&costly, i);
    if (costly.length > 0)
        fail("texts that cost too much, or too much more than their templates:\n%s", costly.bytes);
}

void add_variants(text *manifest, const char *scratch, const char *folder) {
    compile_templates(scratch);
    for (int i = 0; i < USUAL_VARIANTS; i++)
        make_texts(i, scratch, folder);
    assemble(scratch);
    check_costs();
    text_add(manifest,
             "# variants: usual ones, each built twice: specialised by the library, and by nvcc as a template\n"
             "# pairs of the specialised text and its template: instructions, but for those that fill up the end; "
             "registers a thread; spill bytes; bytes of PTX that are not blank\n"
             "# module                             variant                     instructions ratio registers spills "
             "            bytes\n");
    for (int i = 0; i < USUAL_VARIANTS; i++)
        add_row(manifest, i);
}
