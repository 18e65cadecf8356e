#include "shared.h"

#include <string.h>

enum { MOST_STEPS = 16 /* from a variable's address to its use, through registers */ };

/* Whether a line contains this whole name. */
static int has_name(const text_line *l, const char *name, size_t length) {
    for (size_t i = 0; i + length <= l->length; i++) {
        const size_t end = i + length;
        if (memcmp(l->at + i, name, length) == 0 && (i == 0 || !is_name(l->at[i - 1])) &&
            (end == l->length || !is_name(l->at[end])))
            return 1;
    }
    return 0;
}

/* The only statement of a line, or NULL. */
static const statement *statement_of(const parsed *p, int line) {
    const statement *only = NULL;
    for (int s = 0; s < p->statement_count; s++)
        if (p->statements[s].line == line) {
            if (only != NULL)
                return NULL;
            only = &p->statements[s];
        }
    return only;
}

/* The register that a line only works out, or NULL where it does more, or the register is assigned elsewhere too. */
static const char *worked_out(const parsed *p, int line) {
    static const char *const pure[] = {"mov", "add", "sub", "mul", "mad",  "shl",
                                       "and", "or",  "xor", "cvt", "cvta", "selp"};
    const statement *s = statement_of(p, line);
    if (s == NULL || s->guard != NULL || s->count < 2 || p->lines[line].is_tagged)
        return NULL;
    for (size_t i = 0; i < sizeof pure / sizeof pure[0]; i++)
        if (is_opcode(s, pure[i]))
            return find_definition(p, s->operands[0], s->scope) >= 0 ? s->operands[0] : NULL;
    return NULL;
}

/* Where something is used that lines name: a line that only works out a register is needed where that one is used. */
static condition use_of(const parsed *p, const char *name, size_t length, int declared, int steps) {
    condition used = never;
    for (int i = p->first; i < p->end; i++) {
        const text_line *l = &p->lines[i];
        if (i == declared || !has_name(l, name, length))
            continue;
        const char *reg = worked_out(p, i);
        condition here = p->blocks[l->block].when;
        if (l->is_tagged)
            here = both(&here, &l->when);
        if (reg != NULL && strlen(reg) == length && memcmp(reg, name, length) == 0)
            continue; /* its definition */
        if (reg != NULL && steps > 0) {
            const condition further = use_of(p, reg, strlen(reg), -1, steps - 1);
            here = both(&here, &further);
        }
        used = either(&used, &here);
    }
    return used;
}

void find_shared(parsed *p) {
    for (int i = p->first; i < p->end; i++) {
        text_line *l = &p->lines[i];
        size_t end, begin;
        if (l->is_tagged || l->length < 8 || memcmp(l->at, ".shared ", 8) != 0)
            continue;
        for (end = 0; end < l->length && l->at[end] != '[' && l->at[end] != ';'; end++)
            ;
        for (begin = end; begin > 0 && is_name(l->at[begin - 1]); begin--)
            ;
        const condition used = use_of(p, l->at + begin, end - begin, i, MOST_STEPS);
        if (used.never || is_same(&used, &always))
            continue;
        for (int k = p->first; k < p->end; k++)
            if (k == i || (has_name(&p->lines[k], l->at + begin, end - begin) && worked_out(p, k) != NULL)) {
                p->lines[k].has_need = 1;
                p->lines[k].when = used;
            }
    }
}
