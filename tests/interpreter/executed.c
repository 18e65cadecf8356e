/* Records the lines of the kernels that were executed. The variants of a text have the same lines, so that one record
 * serves all of them: a program may load thousands of variants. */
#include "parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct record {
    char *name;      /* of the kernel */
    char **text;     /* of each line, from 1 on, or NULL where no variant has an instruction */
    bool *hit;       /* whether a variant has executed it */
    uint32_t nlines; /* of the text */
    struct record *next;
};

static struct record *records;

static struct record *record_of(const struct kernel *kernel, uint32_t nlines) {
    for (struct record *r = records; r; r = r->next)
        if (strcmp(r->name, kernel->name) == 0 && r->nlines == nlines)
            return r;
    struct record *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->name = ptxsim_copy(kernel->name, strlen(kernel->name));
    r->text = calloc((size_t)nlines + 1, sizeof *r->text);
    r->hit = calloc((size_t)nlines + 1, sizeof *r->hit);
    if (!r->text || !r->hit)
        abort();
    r->nlines = nlines;
    r->next = records;
    records = r;
    return r;
}

void ptxsim_note_executed(const struct module *module) {
    if (!ptxsim_device.coverage || !*ptxsim_device.coverage)
        return;
    for (const struct kernel *k = module->kernels; k; k = k->next) {
        struct record *r = record_of(k, module->nlines);
        for (uint32_t i = 0; i < k->ncode; i++) {
            const uint32_t line = k->code[i].line;
            const char *text = "";
            if (k->code[i].implicit || line > r->nlines)
                continue;
            if (!r->text[line]) {
                int length = ptxsim_line_text(module, line, &text);
                r->text[line] = ptxsim_copy(text, (size_t)length);
            }
            r->hit[line] |= k->code[i].hit;
        }
    }
}

void ptxsim_write_executed(void) {
    FILE *file = records ? fopen(ptxsim_device.coverage, "a") : NULL;
    if (!file)
        return;
    for (const struct record *r = records; r; r = r->next)
        for (uint32_t line = 1; line <= r->nlines; line++)
            if (r->text[line])
                fprintf(file, "%s %u %d %s\n", r->name, line, r->hit[line], r->text[line]);
    fclose(file);
}
