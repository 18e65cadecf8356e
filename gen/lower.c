/* Lowers nvcc's PTX to one of three kinds of image, by its target:
 *
 *   sm_70   PTX ISA 6.0, which every driver from CUDA 9.0 on and every GPU from compute capability 5.0 on take; the
 *           loader writes sm_50 for GPUs before Volta, and sm_80 where a text has instructions of it for newer GPUs
 *   sm_80   PTX ISA 7.0, for drivers from CUDA 11.0 on
 *   sm_90   PTX ISA 8.0, for drivers from CUDA 12.0 on; or 8.1 and 12.1 where the kernel has st.async
 *
 * griddepcontrol becomes a comment if it is too new for the target. The loader removes the comment for GPUs that have
 * the instruction.
 *
 * The code comes from compute_75, the oldest target of nvcc 13. Only instructions that a kernel for a newer target
 * spells out are newer than PTX 6.0. `.version` and `.target` do not change how an assembler treats the rest. */
#include "gen.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int is_symbol(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$';
}

/* The short names of symbols: a shared variable has the number of its first use, the parameter is p. */
typedef struct symbol {
    const char *at; /* in nvcc's PTX */
    size_t length;
} symbol;

typedef struct names {
    const char *entry;
    symbol *shared;
    size_t count, room;
} names;

static size_t number_of(names *n, const char *at, size_t length) {
    for (size_t i = 0; i < n->count; i++)
        if (n->shared[i].length == length && memcmp(n->shared[i].at, at, length) == 0)
            return i;
    if (n->count == n->room) {
        n->room = 2 * n->room + 16;
        n->shared = grown(n->shared, n->room * sizeof *n->shared);
    }
    n->shared[n->count].at = at;
    n->shared[n->count].length = length;
    return n->count++;
}

static void add_name(text *out, names *n, const char *at, size_t length) {
    static const char label[] = "$L__BB0_";
    const size_t of_label = sizeof label - 1;
    char parameter[256];
    snprintf(parameter, sizeof parameter, "%s_param_0", n->entry);
    if (length > of_label && memcmp(at, label, of_label) == 0)
        text_add(out, "L%.*s", (int)(length - of_label), at + of_label);
    else if (length == strlen(parameter) && memcmp(at, parameter, length) == 0)
        text_add(out, "p");
    else if (length > 2 && memcmp(at, "_Z", 2) == 0)
        text_add(out, "s%zu", number_of(n, at, length));
    else
        text_add_bytes(out, at, length);
}

static void add_line(text *out, names *n, const char *line, size_t length) {
    for (size_t i = 0; i < length;) {
        size_t end = i + (line[i] == '%'); /* begins a register */
        while (end < length && is_symbol(line[end]))
            end++;
        if (end > i) {
            add_name(out, n, line + i, end - i);
            i = end;
        } else if (isspace((unsigned char)line[i])) {
            while (i < length && isspace((unsigned char)line[i]))
                i++;
            text_add(out, " ");
        } else {
            text_add_bytes(out, line + i++, 1);
        }
    }
    text_add(out, "\n");
}

/* Launch bounds that only some variants have are lines of inline assembly with a tag, because nvcc takes one for a
 * kernel. They belong before its body, instead of nvcc's own. */
static int is_tagged_bound(const char *line, size_t length) {
    const char *end = length > 3 && memcmp(line, "/*?", 3) == 0 ? strstr(line, "*/ .") : NULL;
    return end != NULL && end < line + length &&
           (strncmp(end + 3, ".maxntid", 8) == 0 || strncmp(end + 3, ".minnctapersm", 13) == 0);
}
static int is_bound(const char *line) {
    return strncmp(line, ".maxntid", 8) == 0 || strncmp(line, ".minnctapersm", 13) == 0;
}
static void add_tagged_bounds(text *out, names *n, const char *ptx) {
    for (; *ptx; ptx += strcspn(ptx, "\n"), ptx += *ptx != 0) {
        ptx += strspn(ptx, " \t");
        if (is_tagged_bound(ptx, strcspn(ptx, "\n")))
            add_line(out, n, ptx, strcspn(ptx, "\n"));
    }
}

/* Whether a line defines a constant that no other line of the text has. nvcc also writes constants of functions that are not
 * called. */
static int is_unused_constant(const char *line, const char *ptx) {
    char name[256] = "";
    const char *at;
    if (sscanf(line, ".const .align %*d .f64 %255[^ ;=]", name) != 1)
        return 0;
    at = strstr(ptx, name);
    return at == NULL || strstr(at + 1, name) == NULL;
}

text lower(const char *ptx, const char *entry, int target) {
    const char *const begin = ptx;
    int has_bounds = 0;
    char header[64];
    text out = {0};
    names n = {.entry = entry};
    while (*ptx) {
        size_t whole = strcspn(ptx, "\n"), length = whole;
        const char *line = ptx, *comment = strstr(line, "//");
        if (comment != NULL && comment < line + length)
            length = (size_t)(comment - line);
        while (length > 0 && isspace((unsigned char)*line))
            line++, length--;
        while (length > 0 && isspace((unsigned char)line[length - 1]))
            length--;
        if (strncmp(line, ".version", 8) == 0)
            text_add(&out, ".version %s\n",
                     strstr(ptx, "st.async") ? "8.1"
                     : target >= 90          ? "8.0"
                     : target >= 80          ? "7.0"
                                             : "6.0");
        else if (strncmp(line, ".target", 7) == 0)
            text_add(&out, ".target sm_%d\n", target);
        else if (strncmp(line, ".pragma \"used_bytes_mask", 24) == 0)
            ; /* a hint that PTX 6.0 does not know */
        else if (is_unused_constant(line, begin))
            ;
        else if (is_bound(line)) {
            const size_t before = out.length;
            if (!has_bounds)
                add_tagged_bounds(&out, &n, begin);
            has_bounds |= out.length != before;
            if (!has_bounds)
                add_line(&out, &n, line, length);
        } else if (length > 0 && !is_tagged_bound(line, length)) {
            if (target < 90 && strncmp(line, "griddepcontrol", 14) == 0)
                text_add(&out, "//");
            add_line(&out, &n, line, length);
        }
        ptx += whole + (ptx[whole] != 0);
    }
    free(n.shared);
    snprintf(header, sizeof header, "\n.target sm_%d\n", target);
    if (out.bytes == NULL || strstr(out.bytes, header) == NULL)
        fail("%s: nvcc's PTX does not begin with .version and .target", entry);
    return out;
}
