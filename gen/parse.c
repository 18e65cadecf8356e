/* Takes a lowered text to pieces. */
#include "parse.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *with_room(void *items, int count, size_t size) {
    return count & (count - 1) ? items : grown(items, (count ? 2 * (size_t)count : 1) * size);
}
/* A new item at the end, whose room doubles where the count is a power of two. */
#define ADD(items, count) (items = with_room(items, count, sizeof *(items)), &items[count++])

static void fail_at(const parsed *p, int line, const char *why) __attribute__((noreturn));
static void fail_at(const parsed *p, int line, const char *why) {
    fail("%s: line %d: %s: %.*s", p->entry, line + 1, why, (int)p->lines[line].length, p->lines[line].at);
}

int is_name(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

/* ---- lines ---- */

static uint32_t read_mask(parsed *p, int line, const char **at) {
    char *end;
    uint32_t mask = (uint32_t)strtoul(*at, &end, 16);
    if (strncmp(*at, "0x", 2) != 0 && strncmp(*at, "0X", 2) != 0)
        fail_at(p, line, "a mask that is not hexadecimal");
    while (*end != 0 && strchr("uUlL", *end) != NULL)
        end++;
    *at = end;
    return mask;
}

/* Reads W+0xMASK and W-0xMASK, with blanks between them, up to the end of the comment. */
static void read_tag(parsed *p, int line, const char *at) {
    p->lines[line].is_tagged = 1;
    while (at[0] != '*') {
        int word = at[0] - '0', is_any = at[1] == '+';
        if (word < 0 || word >= GPULOSSI_FEATURE_WORDS || (!is_any && at[1] != '-'))
            fail_at(p, line, "a clause that is not W+0xMASK or W-0xMASK");
        at += 2;
        uint32_t mask = read_mask(p, line, &at);
        if (is_any)
            require_any(&p->lines[line].when, word, mask);
        else
            require_none(&p->lines[line].when, word, mask);
        while (*at == ' ')
            at++;
    }
    if (at[1] != '/')
        fail_at(p, line, "a tag that does not end");
}

static void blank(char *from, const char *to) {
    for (; from < to; from++)
        if (*from != '\n')
            *from = ' ';
}

/* Reads the tags, and blanks all comments of the copy. */
static void read_comments(parsed *p) {
    for (int i = 0; i < p->line_count; i++) {
        char *at = p->copy + (p->lines[i].at - p->lines[0].at), *start = at, *line_end = at + p->lines[i].length;
        for (; at < line_end; at++) {
            char *end;
            if (at[0] != '/' || (at[1] != '/' && at[1] != '*'))
                continue;
            if (at[1] == '/') {
                if (at[2] == '?' || at[2] == '!')
                    fail_at(p, i, "a comment that reads like a mark");
                blank(at, line_end);
                continue;
            }
            end = strstr(at + 2, "*/");
            if (end == NULL || end >= line_end)
                fail_at(p, i, "a comment that does not end on its line");
            if (at == start && at[2] == '?')
                read_tag(p, i, at + 3);
            else if (at[2] == '?')
                fail_at(p, i, "a tag that is not at the beginning of its line");
            else if (at == start && (isdigit((unsigned char)at[2]) || at[2] == '='))
                fail_at(p, i, "a comment that reads like a mark");
            blank(at, end + 2);
        }
    }
}

static void split_lines(parsed *p, const char *ptx) {
    p->copy = malloc(strlen(ptx) + 1);
    if (p->copy == NULL)
        fail("out of memory");
    strcpy(p->copy, ptx);
    while (*ptx != 0) {
        text_line *l = ADD(p->lines, p->line_count);
        *l = (text_line){.at = ptx, .length = strcspn(ptx, "\n"), .word = -1, .jump = -1};
        ptx += l->length + (ptx[l->length] != 0);
    }
}

/* The body begins after the first line with nothing but a brace. */
static void find_body(parsed *p) {
    int is_kernel = 0;
    for (int i = 0; i < p->line_count; i++) {
        const text_line *l = &p->lines[i];
        is_kernel |= strncmp(l->at, ".entry", 6) == 0 || strncmp(l->at, ".visible .entry", 15) == 0;
        if (is_kernel && l->length == 1 && l->at[0] == '{') {
            p->first = i + 1;
            return;
        }
    }
    fail("%s: the text has no kernel with a body", p->entry);
}

/* ---- names ---- */

int parse_number(const char *name, uint64_t *number) {
    const char *digits = name + (name[0] == '-');
    char *end;
    if (!isdigit((unsigned char)digits[0]))
        return 0;
    *number = strtoull(digits, &end, 0);
    if (name[0] == '-')
        *number = 0 - *number;
    return *end == 0;
}

int is_opcode(const statement *s, const char *name) {
    size_t length = strcspn(s->opcode, ".");
    return strlen(name) == length && memcmp(s->opcode, name, length) == 0;
}

/* Whether a declaration has this name; prefix<count> has the prefix with each number below count. */
static int has_name(const local *l, const char *name, size_t length) {
    size_t prefix = strlen(l->name);
    if (strncmp(name, l->name, prefix) != 0 || prefix > length)
        return 0;
    if (l->count == 0)
        return prefix == length;
    return prefix < length && strspn(name + prefix, "0123456789") == length - prefix && atoi(name + prefix) < l->count;
}

static int is_local(const parsed *p, const char *name, size_t length, int scope) {
    for (; scope != 0; scope = p->scopes[scope].parent)
        for (int i = 0; i < p->local_count; i++)
            if (p->locals[i].scope == scope && has_name(&p->locals[i], name, length))
                return 1;
    return 0;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const definition *)a)->name, ((const definition *)b)->name);
}

int find_definitions(const parsed *p, const char *name, int scope, int *count) {
    const definition key = {.name = name};
    if (p->definition_count == 0 || is_local(p, name, strlen(name), scope))
        return -1;
    const definition *d = bsearch(&key, p->definitions, (size_t)p->definition_count, sizeof key, compare_names);
    if (d == NULL)
        return -1;
    const definition *end = d + 1;
    while (d > p->definitions && compare_names(&d[-1], d) == 0)
        d--;
    while (end < p->definitions + p->definition_count && compare_names(end, d) == 0)
        end++;
    *count = (int)(end - d);
    return (int)(d - p->definitions);
}

int find_definition(const parsed *p, const char *name, int scope) {
    int count, at = find_definitions(p, name, scope, &count);
    return at >= 0 && count == 1 ? at : -1;
}

int find_label(const parsed *p, const statement *branch) {
    for (int scope = branch->scope; scope >= 0; scope = p->scopes[scope].parent)
        for (int b = 0; b < p->block_count; b++)
            if (p->blocks[b].label != NULL && p->blocks[b].scope == scope &&
                strcmp(p->blocks[b].label, branch->operands[0]) == 0)
                return b;
    fail_at(p, branch->line, "a branch to a label that is not there");
}

/* ---- the body ---- */

typedef struct reader {
    parsed *p;
    char *at;
    int line, scope;
    int last_line; /* on which the last thing ended that was read */
    int is_fresh;  /* nothing of the block was read */
    int is_ended;  /* the block, by a jump */
} reader;

static void skip_blanks(reader *r) {
    for (; isspace((unsigned char)*r->at); r->at++)
        r->line += *r->at == '\n';
}

/* Ends the text at `end` that begins here, without the blanks before it; continues after it. */
static char *cut(reader *r, char *end) {
    char *begin = r->at;
    for (char *c = begin; c < end; c++)
        if (*c == '\n') {
            r->line++;
            *c = ' ';
        }
    r->at = end + 1;
    *end = 0;
    while (end > begin && isspace((unsigned char)end[-1]))
        *--end = 0;
    return begin;
}

static char *cut_statement(reader *r) {
    char *end = strchr(r->at, ';');
    if (end == NULL)
        fail_at(r->p, r->line, "an instruction that does not end");
    return cut(r, end);
}

static void begin_block(reader *r, int first_line) {
    *ADD(r->p->blocks, r->p->block_count) = (basic_block){.scope = r->scope, .first_line = first_line, .last = -1};
    r->is_ended = 0;
    r->is_fresh = 1;
}

/* .reg .type name, prefix<count> */
static void read_locals(reader *r, char *names) {
    names += strcspn(names, " ");
    names += strspn(names, " ");
    names += strcspn(names, " ");
    for (char *name = strtok(names, ", "); name != NULL; name = strtok(NULL, ", ")) {
        local *l = ADD(r->p->locals, r->p->local_count);
        size_t prefix = strcspn(name, "<");
        *l = (local){.name = name, .scope = r->scope, .count = name[prefix] == '<' ? atoi(name + prefix + 1) : 0};
        name[prefix] = 0;
    }
}

static void read_directive(reader *r) {
    char *directive = cut_statement(r);
    if (r->scope != 0 && strncmp(directive, ".reg ", 5) == 0)
        read_locals(r, directive);
    if (r->scope == 0 && strncmp(directive, ".pragma", 7) != 0)
        r->p->blocks[r->p->block_count - 1].declares = 1;
}

static void read_label(reader *r, char *colon) {
    if (r->last_line == r->line)
        fail_at(r->p, r->line, "a label that is not at the beginning of its line");
    if (!r->is_fresh)
        begin_block(r, r->line);
    basic_block *b = &r->p->blocks[r->p->block_count - 1];
    b->scope = r->scope;
    b->label = cut(r, colon);
}

static char *cut_word(char **at) {
    char *word = *at;
    *at += strcspn(*at, " ");
    if (**at != 0)
        *(*at)++ = 0;
    *at += strspn(*at, " ");
    return word;
}

static void read_operands(statement *s, char *at) {
    while (*at != 0) {
        int depth = 0;
        char *end = at;
        for (; *end != 0 && (*end != ',' || depth > 0); end++)
            depth += (strchr("[{(", *end) != NULL) - (strchr("]})", *end) != NULL);
        char *next = *end != 0 ? end + 1 : end;
        *end = 0;
        at += strspn(at, " ");
        while (end > at && end[-1] == ' ')
            *--end = 0;
        if (s->count < MOST_OPERANDS)
            s->operands[s->count] = at;
        s->count++;
        at = next;
    }
}

/* Counts every name in the first operand but addresses. Where that is a source, a register is unknown without need. */
static void define_registers(parsed *p, int index) {
    const statement s = p->statements[index];
    int depth = 0;
    for (const char *at = s.count > 0 ? s.operands[0] : ""; *at != 0;) {
        size_t length = 0;
        while (is_name(at[length]))
            length++;
        depth += (*at == '[') - (*at == ']');
        if (length > 0 && depth == 0 && !is_local(p, at, length, s.scope)) {
            char *name = malloc(length + 1);
            if (name == NULL)
                fail("out of memory");
            memcpy(name, at, length);
            name[length] = 0;
            *ADD(p->definitions, p->definition_count) = (definition){.name = name, .statement = index};
        }
        at += length > 0 ? length : 1;
    }
}

/* A mov of a feature word that has its line to itself. */
static void find_word(parsed *p, const statement *s) {
    text_line *l = &p->lines[s->line];
    char expected[256];
    if (s->count != 2 || strncmp(s->operands[1], FEATURE_WORD, sizeof FEATURE_WORD - 1) != 0)
        return;
    int word = s->operands[1][sizeof FEATURE_WORD - 1] - '0';
    snprintf(expected, sizeof expected, "%s %s, %s%d;", s->opcode, s->operands[0], FEATURE_WORD, word);
    if (word >= 0 && word < GPULOSSI_FEATURE_WORDS && s->guard == NULL &&
        (strcmp(s->opcode, "mov.u32") == 0 || strcmp(s->opcode, "mov.b32") == 0) && strlen(expected) == l->length &&
        memcmp(expected, l->at, l->length) == 0)
        l->word = word;
}

static void end_block(reader *r, int index) {
    const statement *s = &r->p->statements[index];
    if (r->last_line == s->line || r->line != s->line)
        fail_at(r->p, s->line, "a branch that does not have its line to itself");
    r->p->blocks[r->p->block_count - 1].last = index;
    r->p->lines[s->line].jump = index;
    r->is_ended = 1;
}

static void read_statement(reader *r) {
    parsed *p = r->p;
    int index = p->statement_count, first_line = r->line;
    char *at = cut_statement(r);
    statement *s = ADD(p->statements, p->statement_count);
    *s = (statement){.line = first_line, .scope = r->scope};
    if (*at == '@') {
        s->is_negated = at[1] == '!';
        s->guard = cut_word(&at) + 1 + s->is_negated;
    }
    s->opcode = cut_word(&at);
    read_operands(s, at);
    if (is_opcode(s, "brx") || is_opcode(s, "call"))
        fail_at(p, first_line, "a jump that is not followed");
    if (p->lines[first_line].is_tagged && first_line != r->line)
        fail_at(p, first_line, "an instruction that is longer than its conditional line");
    define_registers(p, index);
    find_word(p, s);
    if (is_opcode(s, "bra") || is_opcode(s, "ret") || is_opcode(s, "exit") || is_opcode(s, "trap"))
        end_block(r, index);
}

static void open_scope(reader *r) {
    *ADD(r->p->scopes, r->p->scope_count) = (brace_scope){.parent = r->scope, .first_line = r->line};
    r->scope = r->p->scope_count - 1;
    r->at++;
}

static void close_scope(reader *r) {
    const int first = r->p->scopes[r->scope].first_line;
    if ((r->p->lines[first].is_tagged || r->p->lines[r->line].is_tagged) && first != r->line)
        fail_at(r->p, first, "a scope that is longer than its conditional line");
    r->p->scopes[r->scope].last_line = r->line;
    r->scope = r->p->scopes[r->scope].parent;
    r->at++;
}

static void read_next(reader *r) {
    size_t length = 0;
    while (is_name(r->at[length]))
        length++;
    const int is_label = length > 0 && r->at[length] == ':' && r->at[length + 1] != ':';
    if (r->is_ended) {
        if (r->last_line == r->line)
            fail_at(r->p, r->line, "a branch that does not have its line to itself");
        begin_block(r, r->last_line + 1);
    }
    if (r->p->lines[r->line].is_tagged && is_label)
        fail_at(r->p, r->line, "a conditional line with a label");
    if (*r->at == '{')
        open_scope(r);
    else if (*r->at == '}')
        close_scope(r);
    else if (*r->at == '.')
        read_directive(r);
    else if (is_label)
        read_label(r, r->at + length);
    else
        read_statement(r);
    r->is_fresh = 0;
    r->last_line = r->line;
}

static void read_body(parsed *p, const char *ptx) {
    reader r = {.p = p, .at = p->copy + (p->lines[p->first].at - ptx), .line = p->first, .last_line = -1};
    begin_block(&r, p->first);
    for (skip_blanks(&r); *r.at != 0 && (*r.at != '}' || r.scope != 0); skip_blanks(&r))
        read_next(&r);
    if (*r.at == 0)
        fail("%s: the kernel does not end", p->entry);
    if (r.last_line == r.line)
        fail_at(p, r.line, "the end of the kernel does not have its line to itself");
    p->end = r.line;
}

static void check_words(const parsed *p, const char *ptx) {
    int i = 0;
    for (const char *found = strstr(ptx, FEATURE_WORD); found != NULL; found = strstr(found + 1, FEATURE_WORD)) {
        while (found > p->lines[i].at + p->lines[i].length)
            i++;
        if (p->lines[i].word < 0)
            fail_at(p, i, "a feature word that is not a mov of its own");
    }
}

parsed *parse(const char *ptx, const char *entry) {
    parsed *p = calloc(1, sizeof *p);
    if (p == NULL)
        fail("out of memory");
    p->entry = entry;
    split_lines(p, ptx);
    read_comments(p);
    find_body(p);
    *ADD(p->scopes, p->scope_count) = (brace_scope){.parent = -1};
    read_body(p, ptx);
    check_words(p, ptx);
    for (int b = 0; b < p->block_count; b++)
        for (int i = p->blocks[b].first_line; i < p->end; i++)
            p->lines[i].block = b;
    if (p->definition_count > 0)
        qsort(p->definitions, (size_t)p->definition_count, sizeof *p->definitions, compare_names);
    return p;
}

void parse_free(parsed *p) {
    for (int i = 0; i < p->definition_count; i++)
        free((char *)(uintptr_t)p->definitions[i].name);
    free(p->definitions);
    free(p->locals);
    free(p->scopes);
    free(p->blocks);
    free(p->statements);
    free(p->lines);
    free(p->copy);
    free(p);
}
