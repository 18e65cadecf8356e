/* Reads the text of a module: directives, variables and functions. Instruction lines go to decode.c. */
#include "parse.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void ptxsim_parse_fail(struct parser *parser, int code, const char *format, ...) {
    struct parse_error *error = parser->error;
    char reason[512];
    const char *text = "";
    int length = ptxsim_line_text(parser->module, parser->line, &text);
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    snprintf(error->text, sizeof error->text, "ptxsim: line %u: %s: %.*s", parser->line, reason,
             length > 300 ? 300 : length, text);
    error->code = code;
    longjmp(parser->escape, 1);
}

void *ptxsim_grow(void *items, uint32_t count, uint32_t *room, size_t size) {
    if (count < *room)
        return items;
    *room = *room ? *room * 2 : 16;
    items = realloc(items, *room * size);
    if (!items)
        abort();
    return items;
}

char *ptxsim_copy(const char *text, size_t length) {
    char *copy = malloc(length + 1);
    if (!copy)
        abort();
    memcpy(copy, text, length);
    copy[length] = 0;
    return copy;
}

int ptxsim_line_text(const struct module *module, uint32_t line, const char **text) {
    if (line == 0 || line > module->nlines)
        return 0;
    const char *start = module->lines[line - 1];
    while (*start == ' ' || *start == '\t')
        start++;
    *text = start;
    return (int)strcspn(start, "\r\n");
}

/* Without a locale, since a program may load thousands of texts. */
static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void skip(struct parser *parser) {
    const char *p = parser->p;
    for (;;) {
        if (*p == '\n') {
            parser->line++;
            p++;
        } else if (*p == ' ') { /* the library blanks the parts that it removes from a text */
            p += strspn(p, " ");
        } else if (is_blank(*p)) {
            p++;
        } else if (p[0] == '/' && p[1] == '/') {
            p += strcspn(p, "\n");
        } else if (p[0] == '/' && p[1] == '*') {
            for (p += 2; *p && !(p[0] == '*' && p[1] == '/'); p++)
                parser->line += *p == '\n';
            if (*p)
                p += 2;
        } else {
            break;
        }
    }
    parser->p = p;
}

static bool accept(struct parser *parser, char c) {
    skip(parser);
    if (*parser->p != c)
        return false;
    parser->p++;
    return true;
}

static void expect(struct parser *parser, char c) {
    if (!accept(parser, c))
        ptxsim_parse_fail(parser, E_INVALID_PTX, "expected '%c'", c);
}

static bool is_word(char c) {
    const char lower = (char)(c | 32);
    return (lower >= 'a' && lower <= 'z') || ptxsim_is_digit(c) || c == '_' || c == '$' || c == '%' || c == '.';
}

/* A name, directive or opcode; "::" belongs to it, a single colon does not. */
static void word(struct parser *parser, char out[PARSE_NAME]) {
    size_t n = 0;
    skip(parser);
    while (is_word(*parser->p) || (n && parser->p[0] == ':' && parser->p[1] == ':')) {
        size_t take = *parser->p == ':' ? 2 : 1;
        if (n + take >= PARSE_NAME)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "name is too long");
        memcpy(out + n, parser->p, take);
        n += take;
        parser->p += take;
    }
    out[n] = 0;
    if (!n)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "unexpected '%c'", *parser->p ? *parser->p : ' ');
}

static uint64_t integer(struct parser *parser) {
    uint64_t value;
    const char *end;
    skip(parser);
    if (!ptxsim_number(parser->p, &end, T_B64, &value))
        ptxsim_parse_fail(parser, E_INVALID_PTX, "expected a number");
    parser->p = end;
    return value;
}

static void add_symbol(struct parser *parser, const char *name, enum symbol_kind kind, enum ptxsim_type type,
                       uint32_t count, uint32_t slot) {
    parser->symbols = ptxsim_grow(parser->symbols, parser->nsymbols, &parser->symbols_room, sizeof *parser->symbols);
    struct symbol *symbol = &parser->symbols[parser->nsymbols++];
    symbol->name = ptxsim_copy(name, strlen(name));
    symbol->length = strlen(name);
    symbol->kind = kind;
    symbol->type = type;
    symbol->count = count;
    symbol->slot = slot;
}

static void drop_symbols(struct parser *parser, uint32_t keep) {
    while (parser->nsymbols > keep)
        free(parser->symbols[--parser->nsymbols].name);
}

const struct symbol *ptxsim_symbol(const struct parser *parser, const char *name, uint32_t *index) {
    for (uint32_t i = parser->nsymbols; i-- > 0;) {
        const struct symbol *symbol = &parser->symbols[i];
        if (symbol->name[0] != name[0] || (symbol->length > 1 && symbol->name[1] != name[1]) ||
            strncmp(symbol->name, name, symbol->length) != 0)
            continue;
        const char *rest = name + symbol->length;
        if (symbol->kind != SYM_REGISTERS) {
            if (*rest == 0) {
                *index = 0;
                return symbol;
            }
            continue;
        }
        if (!ptxsim_is_digit(*rest) || (*rest == '0' && rest[1]))
            continue;
        char *end;
        unsigned long number = strtoul(rest, &end, 10);
        if (*end == 0 && number < symbol->count) {
            *index = (uint32_t)number;
            return symbol;
        }
    }
    return NULL;
}

struct variable *ptxsim_variable(const struct module *module, const char *name) {
    for (struct variable *v = module->variables; v; v = v->next)
        if (strcmp(v->name, name) == 0)
            return v;
    return NULL;
}

uint32_t ptxsim_slot(struct parser *parser) {
    return parser->kernel->nslots++;
}

static uint32_t align_up(uint32_t value, uint32_t align) {
    return (value + align - 1) / align * align;
}

static uint32_t take_space(uint32_t *used, uint32_t align, uint32_t bytes) {
    uint32_t at = align_up(*used, align);
    *used = at + bytes;
    return at;
}

/* A module-scope shared variable costs only the kernels that name it. */
uint32_t ptxsim_shared_offset(struct parser *parser, struct variable *variable) {
    for (uint32_t i = 0; i < parser->nshared; i++)
        if (parser->shared[i].variable == variable)
            return parser->shared[i].offset;
    if (parser->nshared == 64)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "too many shared variables");
    uint32_t offset = take_space(&parser->kernel->shared_bytes, variable->align, (uint32_t)variable->bytes);
    parser->shared[parser->nshared].variable = variable;
    parser->shared[parser->nshared].offset = offset;
    parser->nshared++;
    return offset;
}

/* The declaration after a space directive: alignment, type, name, extents. */
struct declaration {
    char name[PARSE_NAME];
    enum ptxsim_type type;
    uint32_t align, element;
    uint64_t bytes;
    bool unsized;
};

static void declare(struct parser *parser, struct declaration *out) {
    uint32_t lanes = 1;
    char text[PARSE_NAME];
    memset(out, 0, sizeof *out);
    for (;;) {
        word(parser, text);
        if (text[0] != '.')
            break;
        if (strcmp(text, ".align") == 0) {
            out->align = (uint32_t)integer(parser);
        } else if (strcmp(text, ".v2") == 0 || strcmp(text, ".v4") == 0) {
            lanes = (uint32_t)(text[2] - '0');
        } else if (strcmp(text, ".ptr") == 0 || strcmp(text, ".global") == 0 || strcmp(text, ".shared") == 0 ||
                   strcmp(text, ".const") == 0 || strcmp(text, ".local") == 0) {
            continue;
        } else {
            out->type = ptxsim_type_name(text);
            if (out->type == T_NONE)
                ptxsim_parse_fail(parser, E_INVALID_PTX, "unknown directive %s", text);
        }
    }
    if (out->type == T_NONE || out->type == T_PRED)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "variable %s has no usable type", text);
    memcpy(out->name, text, PARSE_NAME);
    out->element = ptxsim_bits((int)out->type) / 8;
    out->bytes = (uint64_t)out->element * lanes;
    if (out->align == 0)
        out->align = (uint32_t)out->bytes;
    if (out->align & (out->align - 1) || out->align > 256)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "bad alignment %u", out->align);
    while (accept(parser, '[')) {
        if (accept(parser, ']')) {
            out->unsized = true;
            continue;
        }
        out->bytes *= integer(parser);
        expect(parser, ']');
    }
    if (out->bytes > (1u << 30))
        ptxsim_parse_fail(parser, E_INVALID_PTX, "variable %s is too large", out->name);
}

static uint64_t initial_value(struct parser *parser, enum ptxsim_type type) {
    uint64_t value;
    const char *end;
    skip(parser);
    if (ptxsim_number(parser->p, &end, type, &value)) {
        parser->p = end;
        return value;
    }
    char name[PARSE_NAME];
    word(parser, name);
    bool wrapped = strcmp(name, "generic") == 0 && accept(parser, '(');
    if (wrapped)
        word(parser, name);
    const struct variable *variable = ptxsim_variable(parser->module, name);
    if (!variable || variable->space == SP_SHARED)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "cannot initialise with %s", name);
    if (wrapped)
        expect(parser, ')');
    value = variable->address;
    if (accept(parser, '+'))
        value += integer(parser);
    return value;
}

static void module_variable(struct parser *parser, enum ptxsim_space space, bool is_extern) {
    struct declaration d;
    declare(parser, &d);
    struct variable *v = calloc(1, sizeof *v);
    if (!v)
        abort();
    v->name = ptxsim_copy(d.name, strlen(d.name));
    v->space = space;
    v->align = d.align;
    v->bytes = d.unsized ? 0 : d.bytes;
    v->is_extern = is_extern;
    v->next = parser->module->variables;
    parser->module->variables = v;
    if (space == SP_SHARED) {
        if (d.unsized && !is_extern)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "shared variable %s has no size", d.name);
        expect(parser, ';');
        return;
    }
    if (is_extern || d.unsized)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "variable %s is not defined in this module", d.name);
    if (ptxsim_alloc(v->bytes, NULL, &v->address) != E_OK)
        ptxsim_parse_fail(parser, E_OUT_OF_MEMORY, "no memory for variable %s", d.name);
    memset(ptxsim_arena + (v->address - PTXSIM_DEVICE_BASE), 0, v->bytes);
    if (accept(parser, '=')) {
        uint64_t at = 0;
        uint32_t depth = 0;
        do {
            while (accept(parser, '{'))
                depth++;
            if (at + d.element > v->bytes)
                ptxsim_parse_fail(parser, E_INVALID_PTX, "too many initial values for %s", d.name);
            uint64_t value = initial_value(parser, d.type);
            memcpy(ptxsim_arena + (v->address - PTXSIM_DEVICE_BASE) + at, &value, d.element);
            at += d.element;
            while (depth && accept(parser, '}'))
                depth--;
        } while (accept(parser, ','));
        if (depth)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "initial values of %s are not closed", d.name);
    }
    ptxsim_mark(v->address, v->bytes, space == SP_CONST ? SH_OPEN | SH_INIT | SH_CONST : SH_OPEN | SH_INIT);
    expect(parser, ';');
}

static void registers(struct parser *parser) {
    char text[PARSE_NAME];
    word(parser, text);
    enum ptxsim_type type = ptxsim_type_name(text);
    if (type == T_NONE || type == T_B128 || ptxsim_bits((int)type) == 8)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "registers of type %s are not implemented", text);
    do {
        word(parser, text);
        uint32_t count = 1;
        enum symbol_kind kind = SYM_REGISTER;
        if (accept(parser, '<')) {
            uint64_t n = integer(parser);
            expect(parser, '>');
            if (n > 100000)
                ptxsim_parse_fail(parser, E_INVALID_PTX, "too many registers");
            count = (uint32_t)n;
            kind = SYM_REGISTERS;
        }
        add_symbol(parser, text, kind, type, count, parser->kernel->nslots);
        parser->kernel->nslots += count;
    } while (accept(parser, ','));
    expect(parser, ';');
}

static void body_variable(struct parser *parser, const char *space, bool is_extern) {
    struct kernel *kernel = parser->kernel;
    struct declaration d;
    declare(parser, &d);
    bool shared = strcmp(space, ".shared") == 0;
    if (d.unsized && !(shared && is_extern))
        ptxsim_parse_fail(parser, E_INVALID_PTX, "variable %s has no size", d.name);
    uint32_t bytes = (uint32_t)d.bytes;
    if (shared && d.unsized) {
        if (d.align > kernel->dynamic_align)
            kernel->dynamic_align = d.align;
        kernel->uses_dynamic = true;
        add_symbol(parser, d.name, SYM_DYNAMIC, d.type, 0, 0);
    } else if (shared) {
        add_symbol(parser, d.name, SYM_SHARED, d.type, bytes, take_space(&kernel->shared_bytes, d.align, bytes));
    } else {
        enum symbol_kind kind = strcmp(space, ".param") == 0 ? SYM_FRAME : SYM_LOCAL;
        add_symbol(parser, d.name, kind, d.type, bytes, take_space(&kernel->local_bytes, d.align, bytes));
    }
    expect(parser, ';');
}

static void skip_line(struct parser *parser) {
    parser->p += strcspn(parser->p, "\n");
}

static void skip_braces(struct parser *parser) {
    int depth = 0;
    do {
        parser->p += strcspn(parser->p, "{}\"/\n");
        skip(parser);
        char c = *parser->p;
        if (!c)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "text ends inside a body");
        if (c == '"') {
            parser->p++;
            parser->p += strcspn(parser->p, "\"\n");
        }
        depth += c == '{';
        depth -= c == '}';
        parser->p++;
    } while (depth);
}

static void add_label(struct parser *parser, const char *name) {
    parser->labels = ptxsim_grow(parser->labels, parser->nlabels, &parser->labels_room, sizeof *parser->labels);
    struct label *label = &parser->labels[parser->nlabels++];
    label->name = ptxsim_copy(name, strlen(name));
    label->line = parser->line;
    label->pc = parser->kernel->ncode;
}

static int compare_labels(const void *a, const void *b) {
    return strcmp(((const struct label *)a)->name, ((const struct label *)b)->name);
}

/* Sets the targets of a function's jumps, from the first one on. */
static void resolve_jumps(struct parser *parser, uint32_t first) {
    qsort(parser->labels, parser->nlabels, sizeof *parser->labels, compare_labels);
    for (uint32_t i = 1; i < parser->nlabels; i++)
        if (compare_labels(&parser->labels[i - 1], &parser->labels[i]) == 0) {
            const uint32_t one = parser->labels[i - 1].line, other = parser->labels[i].line;
            parser->line = one > other ? one : other;
            ptxsim_parse_fail(parser, E_INVALID_PTX, "label %s is defined twice", parser->labels[i].name);
        }
    for (uint32_t i = first; i < parser->njumps; i++) {
        const struct jump *jump = &parser->jumps[i];
        const struct label wanted = {jump->name, 0, 0};
        const struct label *label =
            bsearch(&wanted, parser->labels, parser->nlabels, sizeof *parser->labels, compare_labels);
        parser->line = jump->line;
        if (!label)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "label %s is not defined", jump->name);
        parser->kernel->code[jump->insn].target = label->pc;
    }
}

static void instruction(struct parser *parser, const char *opcode, const char *guard) {
    skip(parser);
    uint32_t line = parser->line;
    size_t room = 0;
    while (parser->p[room] && parser->p[room] != ';')
        room++;
    if (!parser->p[room])
        ptxsim_parse_fail(parser, E_INVALID_PTX, "instruction has no end");
    while (room >= parser->operands_room)
        parser->operands = ptxsim_grow(parser->operands, parser->operands_room, &parser->operands_room, 1);
    char *operands = memcpy(parser->operands, parser->p, room);
    operands[room] = 0;
    size_t n = 0;
    for (size_t i = 0; i < room; i++) {
        if (operands[i] == '\n')
            parser->line++;
        if (operands[i] == '/' && operands[i + 1] == '/') {
            while (i + 1 < room && operands[i + 1] != '\n')
                i++;
            continue;
        }
        if (!is_blank(operands[i]))
            operands[n++] = operands[i];
    }
    operands[n] = 0;
    parser->p += room + 1;
    uint32_t end = parser->line;
    parser->line = line;
    ptxsim_decode(parser, opcode, operands, guard);
    parser->line = end;
}

static void body(struct parser *parser) {
    uint32_t marks[32];
    uint32_t depth = 0;
    uint32_t first_jump = parser->njumps;
    expect(parser, '{');
    for (;;) {
        char text[PARSE_NAME], name[PARSE_NAME], guard[PARSE_NAME + 1];
        guard[0] = 0;
        skip(parser);
        if (accept(parser, '}')) {
            if (depth == 0)
                break;
            drop_symbols(parser, marks[--depth]);
            continue;
        }
        if (accept(parser, '{')) {
            if (depth == 32)
                ptxsim_parse_fail(parser, E_INVALID_PTX, "scopes are nested too deeply");
            marks[depth++] = parser->nsymbols;
            continue;
        }
        if (accept(parser, '@')) {
            bool not = accept(parser, '!');
            word(parser, name);
            guard[0] = not ? '!' : '@';
            strcpy(guard + 1, name);
        }
        word(parser, text);
        if (text[0] != '.') {
            if (!guard[0] && accept(parser, ':'))
                add_label(parser, text);
            else
                instruction(parser, text, guard);
            continue;
        }
        if (strcmp(text, ".reg") == 0) {
            registers(parser);
        } else if (strcmp(text, ".local") == 0 || strcmp(text, ".shared") == 0 || strcmp(text, ".param") == 0) {
            body_variable(parser, text, false);
        } else if (strcmp(text, ".extern") == 0) {
            word(parser, text);
            body_variable(parser, text, true);
        } else if (strcmp(text, ".loc") == 0 || strcmp(text, ".pragma") == 0) {
            skip_line(parser);
        } else {
            ptxsim_parse_fail(parser, E_INVALID_PTX, "directive %s is not implemented", text);
        }
    }
    uint32_t line = parser->line;
    resolve_jumps(parser, first_jump);
    parser->line = line;
    while (parser->njumps > first_jump)
        free(parser->jumps[--parser->njumps].name);
    while (parser->nlabels)
        free(parser->labels[--parser->nlabels].name);
    char end[] = "";
    ptxsim_decode(parser, "ret", end, "");
    parser->kernel->code[parser->kernel->ncode - 1].implicit = true;
    parser->kernel->code[parser->kernel->ncode - 1].line = line;
}

static void kernel_parameters(struct parser *parser) {
    struct kernel *kernel = parser->kernel;
    if (!accept(parser, '('))
        return;
    if (accept(parser, ')'))
        return;
    uint32_t room = 0, room2 = 0;
    do {
        char text[PARSE_NAME];
        struct declaration d;
        word(parser, text);
        if (strcmp(text, ".param") != 0)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "expected .param, not %s", text);
        declare(parser, &d);
        uint32_t offset = take_space(&kernel->param_bytes, d.align, (uint32_t)d.bytes);
        kernel->param_offset = ptxsim_grow(kernel->param_offset, kernel->param_count, &room, sizeof(uint32_t));
        kernel->param_size = ptxsim_grow(kernel->param_size, kernel->param_count, &room2, sizeof(uint32_t));
        kernel->param_offset[kernel->param_count] = offset;
        kernel->param_size[kernel->param_count++] = (uint32_t)d.bytes;
        add_symbol(parser, d.name, SYM_PARAM, d.type, (uint32_t)d.bytes, offset);
    } while (accept(parser, ','));
    expect(parser, ')');
    if (kernel->param_bytes > 4352)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "more than 4352 bytes of parameters");
}

static void dimensions(struct parser *parser, uint32_t out[3]) {
    out[1] = out[2] = 1;
    uint32_t n = 0;
    do
        out[n++] = (uint32_t)integer(parser);
    while (n < 3 && accept(parser, ','));
}

static void performance_directives(struct parser *parser) {
    struct kernel *kernel = parser->kernel;
    for (;;) {
        skip(parser);
        if (*parser->p == '{' || *parser->p == ';')
            return;
        char text[PARSE_NAME];
        uint32_t n[3];
        word(parser, text);
        if (strcmp(text, ".maxntid") == 0) {
            dimensions(parser, n);
            kernel->max_ntid = n[0] * n[1] * n[2];
        } else if (strcmp(text, ".reqntid") == 0) {
            dimensions(parser, kernel->req_ntid);
        } else if (strcmp(text, ".reqnctapercluster") == 0) {
            dimensions(parser, kernel->req_cluster);
        } else if (strcmp(text, ".maxclusterrank") == 0) {
            kernel->max_cluster_rank = (uint32_t)integer(parser);
        } else if (strcmp(text, ".minnctapersm") == 0 || strcmp(text, ".maxnreg") == 0) {
            integer(parser);
        } else if (strcmp(text, ".pragma") == 0) {
            skip_line(parser);
        } else if (strcmp(text, ".explicitcluster") != 0 && strcmp(text, ".noreturn") != 0) {
            ptxsim_parse_fail(parser, E_INVALID_PTX, "directive %s is not implemented", text);
        }
    }
}

static uint32_t formals(struct parser *parser, struct formal *out, uint32_t room) {
    uint32_t n = 0;
    if (accept(parser, ')'))
        return 0;
    do {
        char text[PARSE_NAME];
        struct declaration d;
        word(parser, text);
        if (strcmp(text, ".param") != 0)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "function parameters in %s are not implemented", text);
        declare(parser, &d);
        if (n == room)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "too many function parameters");
        out[n].bytes = (uint32_t)d.bytes;
        out[n].offset = take_space(&parser->kernel->local_bytes, d.align, (uint32_t)d.bytes);
        add_symbol(parser, d.name, SYM_FRAME, d.type, (uint32_t)d.bytes, out[n].offset);
        n++;
    } while (accept(parser, ','));
    expect(parser, ')');
    return n;
}

uint32_t ptxsim_callee(struct parser *parser, const char *name) {
    for (uint32_t i = 0; i < parser->ncallees; i++)
        if (strcmp(parser->callees[i].function->name, name) == 0)
            return i;
    for (struct function *f = parser->module->functions; f; f = f->next) {
        if (strcmp(f->name, name) != 0 || !f->has_body || f->is_entry)
            continue;
        parser->callees = realloc(parser->callees, (parser->ncallees + 1) * sizeof *parser->callees);
        if (!parser->callees)
            abort();
        memset(&parser->callees[parser->ncallees], 0, sizeof *parser->callees);
        parser->callees[parser->ncallees].function = f;
        return parser->ncallees++;
    }
    ptxsim_parse_fail(parser, E_INVALID_PTX, "function %s has no body in this module", name);
}

static void decode_callee(struct parser *parser, uint32_t index) {
    struct callee callee = parser->callees[index];
    uint32_t mark = parser->nsymbols;
    char text[PARSE_NAME];
    parser->p = parser->module->text + callee.function->text;
    parser->line = callee.function->line;
    parser->current = index;
    if (accept(parser, '('))
        callee.nresults = formals(parser, callee.results, 4);
    word(parser, text);
    if (accept(parser, '('))
        callee.nformals = formals(parser, callee.formals, 32);
    performance_directives(parser);
    callee.entry = parser->kernel->ncode;
    parser->callees[index] = callee;
    body(parser);
    drop_symbols(parser, mark);
}

/* A function's registers and frame exist once in a kernel, so a call chain must not come back to itself. */
static void refuse_recursion(struct parser *parser) {
    uint32_t n = parser->ncallees;
    bool *reach = calloc((size_t)n * n + 1, sizeof *reach);
    if (!reach)
        abort();
    for (uint32_t i = 0; i < parser->ncalls; i++)
        if (parser->calls[i].caller < n)
            reach[parser->calls[i].caller * n + parser->calls[i].callee] = true;
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < n; j++)
                reach[i * n + j] = reach[i * n + j] || (reach[i * n + k] && reach[k * n + j]);
    bool recursive = false;
    for (uint32_t i = 0; i < n; i++)
        recursive = recursive || reach[i * n + i];
    free(reach);
    if (recursive)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "recursive functions are not implemented");
}

static void bind_calls(struct parser *parser) {
    struct kernel *kernel = parser->kernel;
    for (uint32_t c = 0; c < parser->ncalls; c++) {
        const struct call_site *site = &parser->calls[c];
        const struct callee *callee = &parser->callees[site->callee];
        struct insn *insn = &kernel->code[site->insn];
        parser->line = site->line;
        if (site->narguments != callee->nformals || site->nresults != callee->nresults)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "call does not fit function %s", callee->function->name);
        insn->target = callee->entry;
        insn->copy = kernel->ncopies;
        insn->ncopy = (uint8_t)site->narguments;
        insn->ncopy_back = (uint8_t)site->nresults;
        for (uint32_t i = 0; i < site->narguments + site->nresults; i++) {
            bool back = i >= site->narguments;
            const struct formal *actual = back ? &site->results[i - site->narguments] : &site->arguments[i];
            const struct formal *formal = back ? &callee->results[i - site->narguments] : &callee->formals[i];
            if (actual->bytes != formal->bytes)
                ptxsim_parse_fail(parser, E_INVALID_PTX, "argument %u of %s has another size", i,
                                  callee->function->name);
            kernel->copies = ptxsim_grow(kernel->copies, kernel->ncopies, &kernel->copies_room, sizeof *kernel->copies);
            struct argument_copy *copy = &kernel->copies[kernel->ncopies++];
            copy->from = back ? formal->offset : actual->offset;
            copy->to = back ? actual->offset : formal->offset;
            copy->bytes = formal->bytes;
        }
    }
}

/* An upper bound of the instructions of a text. */
static uint32_t most_instructions(const struct module *module) {
    uint32_t count = 1;
    for (const char *p = module->text; (p = memchr(p, ';', (size_t)(module->text + module->size - p))) != NULL; p++)
        count++;
    return count;
}

static void decode_kernel(struct parser *parser, struct function *function) {
    struct module *module = parser->module;
    struct kernel *kernel = calloc(1, sizeof *kernel);
    char text[PARSE_NAME];
    if (!kernel)
        abort();
    kernel->module = module;
    kernel->name = ptxsim_copy(function->name, strlen(function->name));
    kernel->dynamic_align = 16;
    kernel->code_room = most_instructions(module);
    kernel->code = calloc(kernel->code_room, sizeof *kernel->code);
    if (!kernel->code)
        abort();
    kernel->next = module->kernels;
    module->kernels = kernel;
    parser->kernel = kernel;
    parser->ncallees = parser->ncalls = parser->nshared = 0;
    parser->discard = ptxsim_slot(parser);
    parser->p = module->text + function->text;
    parser->line = function->line;
    parser->current = UINT32_MAX;
    word(parser, text);
    kernel_parameters(parser);
    performance_directives(parser);
    body(parser);
    for (uint32_t i = 0; i < parser->ncallees; i++)
        decode_callee(parser, i);
    refuse_recursion(parser);
    bind_calls(parser);
    drop_symbols(parser, 0);
    kernel->shared_bytes = align_up(kernel->shared_bytes, kernel->uses_dynamic ? kernel->dynamic_align : 1);
    for (struct variable *v = module->variables; v; v = v->next)
        kernel->const_bytes += v->space == SP_CONST ? (uint32_t)v->bytes : 0;
}

static void note_function(struct parser *parser, bool is_entry) {
    struct function *function = calloc(1, sizeof *function);
    char text[PARSE_NAME];
    if (!function)
        abort();
    skip(parser);
    function->text = (size_t)(parser->p - parser->module->text);
    function->line = parser->line;
    function->is_entry = is_entry;
    function->next = parser->module->functions;
    parser->module->functions = function;
    if (accept(parser, '('))
        while (*parser->p && *parser->p++ != ')')
            parser->line += parser->p[-1] == '\n';
    word(parser, text);
    function->name = ptxsim_copy(text, strlen(text));
    for (skip(parser); *parser->p && *parser->p != '{' && *parser->p != ';'; skip(parser))
        parser->p++;
    function->has_body = *parser->p == '{';
    if (function->has_body)
        skip_braces(parser);
    else
        expect(parser, ';');
}

static uint32_t decimal_pair(struct parser *parser) {
    char *end;
    skip(parser);
    unsigned long major = strtoul(parser->p, &end, 10);
    if (end == parser->p || *end != '.')
        ptxsim_parse_fail(parser, E_INVALID_PTX, "bad .version");
    unsigned long minor = strtoul(end + 1, &end, 10);
    parser->p = end;
    return (uint32_t)(major * 10 + minor);
}

static void header_check(struct parser *parser) {
    struct module *module = parser->module;
    if (module->version > ptxsim_driver_isa())
        ptxsim_parse_fail(parser, E_UNSUPPORTED_PTX_VERSION, "PTX %u.%u needs a newer driver (this one reads %u.%u)",
                          module->version / 10, module->version % 10, ptxsim_driver_isa() / 10,
                          ptxsim_driver_isa() % 10);
    if (module->target > ptxsim_device.sm)
        ptxsim_parse_fail(parser, E_NO_BINARY, "target sm_%u is newer than the device, sm_%u", module->target,
                          ptxsim_device.sm);
}

static void target(struct parser *parser) {
    char text[PARSE_NAME];
    do {
        word(parser, text);
        if (strncmp(text, "sm_", 3) == 0) {
            char *end;
            parser->module->target = (uint32_t)strtoul(text + 3, &end, 10);
            if (*end == 'a' || *end == 'f') {
                if (parser->module->target != ptxsim_device.sm)
                    ptxsim_parse_fail(parser, E_NO_BINARY, "target %s runs on that architecture only", text);
            } else if (*end) {
                ptxsim_parse_fail(parser, E_INVALID_PTX, "unknown target %s", text);
            }
        } else if (strcmp(text, "texmode_independent") != 0 && strcmp(text, "debug") != 0) {
            ptxsim_parse_fail(parser, E_INVALID_PTX, "unknown target %s", text);
        }
    } while (accept(parser, ','));
    header_check(parser);
}

static void module_text(struct parser *parser) {
    bool is_extern = false;
    for (;;) {
        char text[PARSE_NAME];
        skip(parser);
        if (!*parser->p)
            break;
        word(parser, text);
        if (!parser->module->version && strcmp(text, ".version") != 0)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "a module begins with .version");
        if (strcmp(text, ".version") == 0) {
            parser->module->version = decimal_pair(parser);
            header_check(parser);
        } else if (strcmp(text, ".target") == 0) {
            target(parser);
        } else if (strcmp(text, ".address_size") == 0) {
            if (integer(parser) != 64)
                ptxsim_parse_fail(parser, E_INVALID_PTX, "only 64-bit addresses are implemented");
        } else if (strcmp(text, ".visible") == 0 || strcmp(text, ".weak") == 0) {
            continue;
        } else if (strcmp(text, ".extern") == 0) {
            is_extern = true;
            continue;
        } else if (strcmp(text, ".entry") == 0 || strcmp(text, ".func") == 0) {
            if (!parser->module->target)
                ptxsim_parse_fail(parser, E_INVALID_PTX, "no .target before the first function");
            note_function(parser, text[1] == 'e');
        } else if (strcmp(text, ".global") == 0) {
            module_variable(parser, SP_GLOBAL, is_extern);
        } else if (strcmp(text, ".const") == 0) {
            module_variable(parser, SP_CONST, is_extern);
        } else if (strcmp(text, ".shared") == 0) {
            module_variable(parser, SP_SHARED, is_extern);
        } else if (strcmp(text, ".file") == 0 || strcmp(text, ".pragma") == 0) {
            skip_line(parser);
        } else if (strcmp(text, ".section") == 0) {
            word(parser, text);
            skip_braces(parser);
        } else {
            ptxsim_parse_fail(parser, E_INVALID_PTX, "directive %s is not implemented", text);
        }
        is_extern = false;
    }
    if (!parser->module->version || !parser->module->target)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "no .version or no .target");
}

static void index_lines(struct module *module) {
    uint32_t room = 0;
    const char *p = module->text;
    for (;;) {
        module->lines = ptxsim_grow(module->lines, module->nlines, &room, sizeof *module->lines);
        module->lines[module->nlines++] = p;
        p = strchr(p, '\n');
        if (!p)
            return;
        p++;
    }
}

static void parser_free(struct parser *parser) {
    drop_symbols(parser, 0);
    for (uint32_t i = 0; i < parser->njumps; i++)
        free(parser->jumps[i].name);
    while (parser->nlabels)
        free(parser->labels[--parser->nlabels].name);
    free(parser->operands);
    free(parser->symbols);
    free(parser->labels);
    free(parser->jumps);
    free(parser->callees);
    free(parser->calls);
}

struct module *ptxsim_parse(const char *text, struct parse_error *error) {
    struct parser *parser = calloc(1, sizeof *parser);
    struct module *volatile saved = calloc(1, sizeof *saved);
    struct module *module = saved;
    if (!parser || !module)
        abort();
    module->size = strlen(text);
    module->text = ptxsim_copy(text, module->size);
    index_lines(module);
    parser->module = module;
    parser->p = module->text;
    parser->line = 1;
    parser->error = error;
    error->text[0] = 0;
    error->code = E_OK;
    if (setjmp(parser->escape) == 0) {
        module_text(parser);
        for (struct function *f = saved->functions; f; f = f->next)
            if (f->is_entry && f->has_body)
                decode_kernel(parser, f);
    }
    module = saved;
    parser_free(parser);
    free(parser);
    if (error->code != E_OK) {
        ptxsim_module_free(module);
        return NULL;
    }
    return module;
}

void ptxsim_module_free(struct module *module) {
    while (module->kernels) {
        struct kernel *kernel = module->kernels;
        module->kernels = kernel->next;
        free(kernel->name);
        free(kernel->code);
        free(kernel->pool);
        free(kernel->specials);
        free(kernel->copies);
        free(kernel->param_offset);
        free(kernel->param_size);
        free(kernel);
    }
    while (module->variables) {
        struct variable *variable = module->variables;
        module->variables = variable->next;
        if (variable->address)
            ptxsim_free(variable->address);
        free(variable->name);
        free(variable);
    }
    while (module->functions) {
        struct function *function = module->functions;
        module->functions = function->next;
        free(function->name);
        free(function);
    }
    free(module->lines);
    free(module->text);
    free(module);
}
