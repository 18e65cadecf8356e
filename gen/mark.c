/* Marks what a text needs only for some feature words, so that the loader can empty the rest without an analysis:
 *
 *   //?N CLAUSES    condition N: all of the clauses hold; W+mask: word W has a bit of the mask, W-mask: it has none
 *   //!N            lines from here to the next //! are needed only if condition N holds; 0: always
 *   comment of N    at the beginning of a line: the line is needed only if condition N holds
 *   comment of =W   at the beginning of a line: the loader writes word W over its 0x00000000
 *
 * Every basic block gets a condition that holds whenever the block is reached. Clauses flow forward along the edges, and
 * the edges of a branch add the clauses of its predicate. A block may stay in a text that never reaches it. Lines that no
 * call needs are left out. */
#include "parse.h"
#include "shared.h"

#include <stdlib.h>
#include <string.h>

/* The value of a register, once it was requested. */
typedef struct known {
    int is_requested;
    value *value; /* NULL: unknown */
} known;

typedef struct marking {
    parsed *p;
    known *known; /* of each definition */
    condition conditions[GPULOSSI_MOST_CONDITIONS + 1];
    int condition_count;
} marking;

/* ---- values of registers ---- */

static value value_of(marking *m, const char *name, int scope);

static value value_defined(marking *m, const definition *d) {
    const value unknown = {0};
    const statement *s = &m->p->statements[d->statement];
    value sources[MOST_OPERANDS];
    int count;
    if (m->p->lines[s->line].word >= 0)
        return word_value(m->p->lines[s->line].word);
    count = sources_of(s->opcode);
    if (s->guard != NULL || m->p->lines[s->line].is_tagged || strcmp(s->operands[0], d->name) != 0 || count == 0 ||
        s->count != count + 1)
        return unknown;
    for (int i = 0; i < count; i++)
        sources[i] = value_of(m, s->operands[i + 1], s->scope);
    return compute(s->opcode, sources);
}

/* The value that one of several definitions assigned, under the condition of its block. */
static value value_assigned(marking *m, int first, int count) {
    value v = {.kind = CHOICES};
    if (count == 1)
        return value_defined(m, &m->p->definitions[first]);
    for (int i = first; i < first + count && v.kind == CHOICES; i++) {
        const definition *d = &m->p->definitions[i];
        const condition *when = &m->p->blocks[m->p->lines[m->p->statements[d->statement].line].block].when;
        const value one = when->never ? (value){.kind = CHOICES} : value_defined(m, d);
        add_values(&v, &one, when);
    }
    return v;
}

/* A register that depends on itself is unknown. */
static value value_of(marking *m, const char *name, int scope) {
    value v = {0};
    uint64_t number;
    int at, count;
    if (parse_number(name, &number))
        return number_value(number);
    at = find_definitions(m->p, name, scope, &count);
    if (at < 0)
        return v;
    if (m->known[at].is_requested)
        return m->known[at].value != NULL ? *m->known[at].value : v;
    m->known[at].is_requested = 1;
    v = value_assigned(m, at, count);
    if (v.kind == UNKNOWN)
        return v;
    m->known[at].value = malloc(sizeof v);
    if (m->known[at].value == NULL)
        fail("out of memory");
    *m->known[at].value = v;
    return v;
}

/* The values depend on the conditions of blocks. */
static void forget_values(marking *m) {
    for (int i = 0; i < m->p->definition_count; i++) {
        free(m->known[i].value);
        m->known[i] = (known){0};
    }
}

/* ---- conditions of blocks ---- */

/* Weakens the condition of a block by an edge to it; returns whether that changed it. */
static int flow_to(parsed *p, int to, const condition *edge) {
    if (to >= p->block_count || implies(edge, &p->blocks[to].when) || !is_possible(p->entry, edge))
        return 0;
    p->blocks[to].when = either(&p->blocks[to].when, edge);
    return 1;
}

/* The condition of the edge on which a statement jumps, or of the edge to the next block. */
static condition edge_of(marking *m, const statement *s, const condition *before, int is_jump) {
    const text_line *l = &m->p->lines[s->line];
    condition edge = *before;
    if (s->guard != NULL) {
        value guard = value_of(m, s->guard, s->scope);
        condition of_guard = where(&guard, is_jump != s->is_negated);
        edge = both(&edge, &of_guard);
    } else if (!is_jump && !l->is_tagged) {
        return never;
    }
    if (l->is_tagged)
        edge = is_jump ? both(&edge, &l->when) : *before;
    return edge;
}

/* A branch whose other edge no call takes adds no clauses. */
static int flow_from(marking *m, int b) {
    const basic_block *from = &m->p->blocks[b];
    const statement *s = from->last < 0 ? NULL : &m->p->statements[from->last];
    condition jump = never, next = from->when;
    if (from->when.never)
        return 0;
    if (s != NULL) {
        next = edge_of(m, s, &from->when, 0);
        if (is_opcode(s, "bra")) {
            jump = edge_of(m, s, &from->when, 1);
            if (!is_possible(m->p->entry, &next))
                jump = from->when;
            else if (!is_possible(m->p->entry, &jump))
                next = from->when;
        }
    }
    return (jump.never ? 0 : flow_to(m->p, find_label(m->p, s), &jump)) | flow_to(m->p, b + 1, &next);
}

/* Gives all blocks between two braces one condition. */
static void unite_scope(parsed *p, const brace_scope *s) {
    condition when = never;
    int first = p->lines[s->first_line].block, last = p->lines[s->last_line].block;
    if (first == last)
        return;
    for (int b = first; b <= last; b++)
        when = either(&when, &p->blocks[b].when);
    for (int b = first; b <= last; b++)
        p->blocks[b].when = when;
}

/* The fixpoint from conditions that never hold. Each step weakens one, and there are finitely many weaker ones. */
static void find_conditions(marking *m) {
    parsed *p = m->p;
    int is_changed = 1;
    for (int b = 0; b < p->block_count; b++)
        p->blocks[b].when = b == 0 ? always : never;
    while (is_changed) {
        is_changed = 0;
        forget_values(m);
        for (int b = 0; b < p->block_count; b++)
            is_changed |= flow_from(m, b);
    }
    for (int b = 0; b < p->block_count; b++)
        if (p->blocks[b].declares)
            p->blocks[b].when = always;
    for (int s = 1; s < p->scope_count; s++)
        unite_scope(p, &p->scopes[s]);
    find_shared(p);
}

/* ---- the marked text ---- */

static int number_of(marking *m, const condition *c) {
    if (is_same(c, &always))
        return 0;
    for (int n = 1; n <= m->condition_count; n++)
        if (is_same(c, &m->conditions[n]))
            return n;
    if (m->condition_count == GPULOSSI_MOST_CONDITIONS)
        fail("%s: more than %d conditions", m->p->entry, GPULOSSI_MOST_CONDITIONS);
    m->conditions[++m->condition_count] = *c;
    return m->condition_count;
}

/* The condition of a line in a block that is needed: that of its tag, or of the label that it jumps to. */
static condition condition_of_line(const marking *m, const text_line *l) {
    const basic_block *b = &m->p->blocks[l->block];
    const statement *s = l->jump < 0 ? NULL : &m->p->statements[l->jump];
    condition when = l->is_tagged || l->has_need ? l->when : always;
    const condition here = both(&b->when, &when);
    if (!is_possible(m->p->entry, &here))
        return never;
    if (s != NULL && is_opcode(s, "bra")) {
        const condition *target = &m->p->blocks[find_label(m->p, s)].when;
        if (!implies(&here, target))
            when = both(&when, target);
    }
    return when;
}

static void add_line(text *out, const text_line *l, int number) {
    const char *code = l->at;
    size_t length = l->length;
    if (l->is_tagged) {
        const char *end = strstr(code, "*/") + 2;
        length -= (size_t)(end - code), code = end;
    }
    if (number > 0)
        text_add(out, "/*%d*/", number);
    if (l->word >= 0) {
        text_add(out, "/*=%d*/%.*s0x00000000;", l->word, (int)length - 11, code);
    } else {
        text_add_bytes(out, code, length);
    }
    text_add_bytes(out, "\n", 1);
}

static text marked_body(marking *m) {
    text out = {0};
    int current = 0;
    for (int i = m->p->first; i < m->p->end; i++) {
        const text_line *l = &m->p->lines[i];
        const condition when = condition_of_line(m, l);
        if (when.never)
            continue;
        const int number = number_of(m, &m->p->blocks[l->block].when);
        if (number != current)
            text_add(&out, "//!%d\n", number);
        current = number;
        add_line(&out, l, number_of(m, &when));
    }
    if (current != 0)
        text_add(&out, "//!0\n");
    for (int i = m->p->end; i < m->p->line_count; i++) {
        text_add_bytes(&out, m->p->lines[i].at, m->p->lines[i].length);
        text_add_bytes(&out, "\n", 1);
    }
    return out;
}

static void add_head(marking *m, text *out) {
    for (int i = 0; i < m->p->first; i++)
        if (!m->p->lines[i].when.never)
            (void)number_of(m, &m->p->lines[i].when);
    for (int i = 0; i < m->p->first; i++) {
        const text_line *l = &m->p->lines[i];
        if (l->when.never)
            continue;
        add_line(out, l, number_of(m, &l->when));
        if (l->length < 13 || memcmp(l->at, ".address_size", 13) != 0)
            continue;
        for (int n = 1; n <= m->condition_count; n++) {
            text clauses = condition_text(&m->conditions[n]);
            text_add(out, "//?%d%s\n", n, clauses.bytes);
            text_free(&clauses);
        }
    }
}

text mark(const char *ptx, const char *entry) {
    text out = {0};
    if (strstr(ptx, FEATURE_WORD) == NULL && strstr(ptx, "/*?") == NULL) {
        text_add_bytes(&out, ptx, strlen(ptx));
        return out;
    }
    marking *m = calloc(1, sizeof *m);
    if (m == NULL)
        fail("out of memory");
    m->p = parse(ptx, entry);
    m->known = calloc((size_t)m->p->definition_count + 1, sizeof *m->known);
    if (m->known == NULL)
        fail("out of memory");
    find_conditions(m);
    text body = marked_body(m);
    add_head(m, &out);
    text_add_bytes(&out, body.bytes, body.length);
    text_free(&body);
    forget_values(m);
    free(m->known);
    parse_free(m->p);
    free(m);
    return out;
}
