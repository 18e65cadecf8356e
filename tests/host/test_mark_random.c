/* Random flows of control that depend on features and on data. A small evaluator runs each text as it was written, and as
 * the loader leaves it for the same feature words: both must do the same, and no line that is run may be empty. */
#include "../../gen/gen.h"
#define GPULOSS_STATIC
#include "../../gpuloss.h"

#include "test_mark.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum {
    WORDS = GPULOSSI_FEATURE_WORDS,
    MOST_LINES = 4096,
    MOST_GUARDS = 512,
    MOST_STEPS = 600, /* instructions of a run */
    REGISTERS = 1024, /* of each type */
    DEPTH = 4
};

static size_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(*seed >> 33);
}

/* ---- texts ---- */

/* Markers from first to last run only where the word has a bit of the mask, or where it has none. */
typedef struct guard {
    int first, last, word, is_any;
    uint32_t mask;
} guard;

typedef struct writer {
    text body, later; /* blocks after the end of the main flow */
    text initial;     /* assigns registers that a jump may lead to the use of */
    uint64_t seed;
    int registers, predicates, labels, markers;
    int loop;        /* the label of its head; 0: none */
    int is_wild;     /* jumps go anywhere, so that there are no guards */
    int is_in_scope; /* whose labels are not seen from outside */
    guard guards[MOST_GUARDS];
    int guard_count;
} writer;

static int pick(writer *w, int count) {
    return (int)(next_random(&w->seed) % (size_t)count);
}

static uint32_t pick_mask(writer *w) {
    static const uint32_t bits[] = {1, 2, 4, 0x10, 0x8000, 0x80000000};
    uint32_t mask = bits[pick(w, 6)];
    while (pick(w, 3) == 0)
        mask |= bits[pick(w, 6)];
    return mask;
}

static int lowest_bit(uint32_t mask) {
    int bit = 0;
    while (!(mask >> bit & 1))
        bit++;
    return bit;
}

static void add_marker(writer *w, text *out) {
    text_add(out, "st.global.u32 [%%rd0], %d;\n", w->markers++);
}

/* A test of a feature: its predicate is true where the word has a bit of the mask; returns 1, or 0 if it is the other way
 * around. */
static int add_feature_test(writer *w, text *out, int word, uint32_t mask, int p) {
    const int r = w->registers, is_single = (mask & (mask - 1)) == 0, bit = lowest_bit(mask);
    w->registers += 4;
    text_add(out, "mov.u32 %%r%d, 0x5BEC000%d;\n", r, word);
    switch (pick(w, is_single ? 10 : 6)) {
    case 0:
        text_add(out, "and.b32 %%r%d, %%r%d, %d;\nsetp.ne.s32 %%p%d, %%r%d, 0;\n", r + 1, r, (int)mask, p, r + 1);
        return 1;
    case 1:
        text_add(out, "and.b32 %%r%d, %%r%d, 0x%x;\nsetp.eq.u32 %%p%d, %%r%d, 0;\n", r + 1, r, (unsigned)mask, p,
                 r + 1);
        return 0;
    case 2:
        text_add(out, "cvt.u64.u32 %%rd%d, %%r%d;\nand.b64 %%rd%d, %%rd%d, 0x%x;\nsetp.ne.s64 %%p%d, %%rd%d, 0;\n", r,
                 r, r + 1, r, (unsigned)mask, p, r + 1);
        return 1;
    case 3:
        text_add(out,
                 "and.b32 %%r%d, 0x%x, %%r%d;\nsetp.eq.s32 %%p%d, %%r%d, 0;\nselp.u32 %%r%d, -1, 0, %%p%d;\n"
                 "and.b32 %%r%d, %%r%d, 1;\nsetp.eq.b32 %%p%d, %%r%d, 1;\n",
                 r + 1, (unsigned)mask, r, w->predicates, r + 1, r + 2, w->predicates, r + 3, r + 2, p, r + 3);
        w->predicates++;
        return 0;
    case 4:
        text_add(out,
                 "and.b32 %%r%d, %%r%d, %d;\nand.b32 %%r%d, %%r%d, %d;\nor.b32 %%r%d, %%r%d, %%r%d;\n"
                 "setp.ne.b32 %%p%d, 0, %%r%d;\n",
                 r + 1, r, (int)(mask & -mask), r + 2, r, (int)mask, r + 3, r + 1, r + 2, p, r + 3);
        return 1;
    case 5:
        text_add(out, "shr.u32 %%r%d, %%r%d, %d;\nand.b32 %%r%d, %%r%d, 0x%x;\nsetp.gt.u32 %%p%d, %%r%d, 0;\n", r + 1,
                 r, bit, r + 2, r + 1, (unsigned)(mask >> bit), p, r + 2);
        return 1;
    case 6:
        text_add(out, "and.b32 %%r%d, %%r%d, %d;\nsetp.eq.b32 %%p%d, %%r%d, %d;\n", r + 1, r, (int)mask, p, r + 1,
                 (int)mask);
        return 1;
    case 7:
        text_add(out,
                 "bfe.u32 %%r%d, %%r%d, %d, 1;\nsetp.eq.b32 %%p%d, %%r%d, 1;\nmov.pred %%p%d, 0;\n"
                 "xor.pred %%p%d, %%p%d, %%p%d;\nnot.pred %%p%d, %%p%d;\n",
                 r + 1, r, bit, w->predicates, r + 1, w->predicates + 1, w->predicates + 2, w->predicates,
                 w->predicates + 1, p, w->predicates + 2);
        w->predicates += 3;
        return 0;
    case 8:
        text_add(out, "shl.b32 %%r%d, %%r%d, %d;\nsetp.gt.s32 %%p%d, %%r%d, -1;\n", r + 1, r, 31 - bit, p, r + 1);
        return 0;
    default:
        text_add(out, "not.b32 %%r%d, %%r%d;\nand.b32 %%r%d, %%r%d, %d;\nsetp.eq.s32 %%p%d, %%r%d, 0;\n", r + 1, r,
                 r + 2, r + 1, (int)mask, p, r + 2);
        return 1;
    }
}

static void add_data_test(writer *w, text *out, int p) {
    text_add(out, "ld.global.u32 %%r%d, [%%rd0];\nsetp.lt.u32 %%p%d, %%r%d, %d;\n", w->registers, p, w->registers,
             1 << (28 + pick(w, 3)));
    w->registers++;
}

/* A field of a word, compared with a number; or two words at once. */
static void add_field_test(writer *w, text *out, int p) {
    static const char *const comparisons[] = {"eq.s32", "ne.u32", "lt.u32", "le.s32", "gt.s32", "ge.u32"};
    const int r = w->registers;
    w->registers += 5;
    text_add(out, "mov.u32 %%r%d, 0x5BEC000%d;\nand.b32 %%r%d, %%r%d, 0x%x;\n", r, pick(w, WORDS), r + 1, r,
             (unsigned)pick_mask(w));
    if (pick(w, 2) == 0) {
        text_add(out, "setp.%s %%p%d, %%r%d, %d;\n", comparisons[pick(w, 6)], p, r + 1, pick(w, 7) - 1);
        return;
    }
    text_add(out,
             "mov.b32 %%r%d, 0x5BEC000%d;\nand.b32 %%r%d, %%r%d, 0x%x;\nor.b32 %%r%d, %%r%d, %%r%d;\n"
             "setp.%s %%p%d, %%r%d, 0;\n",
             r + 2, pick(w, WORDS), r + 3, r + 2, (unsigned)pick_mask(w), r + 4, r + 1, r + 3, comparisons[pick(w, 6)],
             p, r + 4);
}

/* A test of a register that has a number after one branch, and bits of a word after the other. */
static void add_joined_test(writer *w, text *out, int p) {
    const int r = w->registers, a = w->predicates++, other = ++w->labels, end = ++w->labels;
    w->registers += 2;
    if (w->is_wild)
        text_add(&w->initial, "mov.u32 %%r%d, %d;\n", r, pick(w, 2));
    (void)add_feature_test(w, out, pick(w, WORDS), pick_mask(w), a);
    text_add(out, "@%%p%d bra L%d;\nmov.u32 %%r%d, %d;\nbra.uni L%d;\nL%d:\n", a, other, r, pick(w, 2), end, other);
    text_add(out, "mov.u32 %%r%d, 0x5BEC000%d;\nand.b32 %%r%d, %%r%d, 0x%x;\nL%d:\nsetp.ne.s32 %%p%d, %%r%d, 0;\n",
             r + 1, pick(w, WORDS), r, r + 1, (unsigned)pick_mask(w), end, p, r);
}

/* Any test; returns its predicate. */
static int add_test(writer *w, text *out, int depth) {
    static const char *const operations[] = {"and", "or", "xor"};
    const int p = w->predicates++, kind = pick(w, depth > 0 ? 9 : 4);
    if (kind == 0) {
        add_data_test(w, out, p);
    } else if (kind == 1) {
        add_field_test(w, out, p);
    } else if (kind < 4) {
        (void)add_feature_test(w, out, pick(w, WORDS), pick_mask(w), p);
    } else if (kind == 4) {
        text_add(out, "not.pred %%p%d, %%p%d;\n", p, add_test(w, out, depth - 1));
    } else if (kind == 5) {
        add_joined_test(w, out, p);
    } else {
        int a = add_test(w, out, depth - 1), b = add_test(w, out, depth - 1);
        text_add(out, "%s.pred %%p%d, %%p%d, %%p%d;\n", operations[pick(w, 3)], p, a, b);
    }
    /* Now and then a predicate of two definitions. */
    if (pick(w, 16) == 0)
        text_add(out, "not.pred %%p%d, %%p%d;\n", p, p);
    return p;
}

static void add_flow(writer *w, text *out, int depth);

/* Notes that the markers since `first` are behind a single test. */
static void note_guard(writer *w, int first, int word, uint32_t mask, int is_any) {
    if (!w->is_wild && first < w->markers && w->guard_count < MOST_GUARDS)
        w->guards[w->guard_count++] = (guard){first, w->markers - 1, word, is_any, mask};
}

/* A flow between two labels that jumps to the second one. */
static void add_later(writer *w, int label, int end, int depth) {
    text block = {0};
    text_add(&block, "L%d:\n", label);
    add_flow(w, &block, depth);
    text_add(&block, "bra.uni L%d;\n", end);
    text_add_bytes(&w->later, block.bytes, block.length);
    text_free(&block);
}

/* A branch around a flow that runs where the predicate is `is`. The flow is here or after the end of the main flow. */
static void add_branch(writer *w, text *out, int p, int is, int depth, int has_else) {
    const int other = ++w->labels, end = has_else ? ++w->labels : other;
    if (w->is_in_scope || pick(w, 3) > 0) {
        text_add(out, "@%s%%p%d bra L%d;\n", is ? "!" : "", p, other);
        add_flow(w, out, depth - 1);
        if (has_else)
            text_add(out, "bra.uni L%d;\nL%d:\n", end, other);
    } else {
        const int first = ++w->labels;
        text_add(out, "@%s%%p%d bra L%d;\n", is ? "" : "!", p, first);
        add_later(w, first, end, depth - 1);
        if (has_else)
            text_add(out, "L%d:\n", other);
    }
    if (has_else)
        add_flow(w, out, depth - 1);
    text_add(out, "L%d:\n", end);
}

static void add_if(writer *w, text *out, int depth) {
    const int first = w->markers;
    if (pick(w, 2) == 0) {
        const int word = pick(w, WORDS), p = w->predicates++, is = pick(w, 2);
        const uint32_t mask = pick_mask(w);
        const int is_any = add_feature_test(w, out, word, mask, p) == is;
        add_branch(w, out, p, is, depth, 0);
        note_guard(w, first, word, mask, is_any);
    } else {
        const int p = add_test(w, out, 2);
        add_branch(w, out, p, pick(w, 2), depth, pick(w, 2));
    }
}

static void add_loop(writer *w, text *out, int depth) {
    const int head = ++w->labels, outer = w->loop, p = w->predicates++;
    w->loop = head;
    text_add(out, "L%d:\n.pragma \"nounroll\";\n", head);
    add_flow(w, out, depth - 1);
    add_data_test(w, out, p);
    text_add(out, "@%%p%d bra L%d;\n", p, head);
    w->loop = outer;
}

/* Continue, return or trap, or anywhere. */
static void add_jump(writer *w, text *out) {
    const int kind = pick(w, 4), p = add_test(w, out, 1);
    if (w->is_wild && w->labels > 0 && kind > 0)
        text_add(out, "@%%p%d bra L%d;\n", p, 1 + pick(w, w->labels));
    else if (w->loop != 0 && kind < 3)
        text_add(out, "@%%p%d bra L%d;\n", p, w->loop);
    else
        text_add(out, "@!%%p%d %s;\n", p, kind == 3 ? "trap" : "ret");
}

static void add_tagged(writer *w, text *out) {
    const int word = pick(w, WORDS), is_any = pick(w, 2), first = w->markers;
    const uint32_t mask = pick_mask(w);
    text_add(out, "/*?%d%c0x%X*/", word, is_any ? '+' : '-', (unsigned)mask);
    add_marker(w, out);
    note_guard(w, first, word, mask, is_any);
}

/* Braces around a label, or around a flow. */
static void add_scope(writer *w, text *out, int depth) {
    text_add(out, "{\n.reg .pred %%q;\n");
    if (pick(w, 2) == 0) {
        text_add(out, "W:\nld.global.u32 %%r%d, [%%rd0];\nsetp.lt.u32 %%q, %%r%d, 268435456;\n", w->registers,
                 w->registers);
        w->registers++;
        add_marker(w, out);
        text_add(out, "@%%q bra W;\n");
    } else if (!w->is_wild) {
        const int count = w->guard_count, was_in_scope = w->is_in_scope;
        w->is_in_scope = 1;
        if (depth > 0)
            add_if(w, out, 1);
        w->is_in_scope = was_in_scope;
        w->guard_count = count;
    }
    text_add(out, "}\n");
}

static void add_flow(writer *w, text *out, int depth) {
    add_marker(w, out);
    for (int count = pick(w, 4); count > 0; count--) {
        const int kind = pick(w, 12);
        if (kind < 6 && depth > 0)
            add_if(w, out, depth);
        else if (kind == 6 && depth > 0)
            add_loop(w, out, depth);
        else if (kind == 7)
            add_jump(w, out);
        else if (kind == 8)
            add_tagged(w, out);
        else if (kind == 9)
            add_scope(w, out, depth);
        else
            add_marker(w, out);
    }
}

static void write_text(writer *w) {
    text out = {0}, flow = {0};
    text_add(&out, ".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry k(\n.param .u64 p\n)\n{\n"
                   ".reg .pred %%p<9>;\n");
    w->registers = w->predicates = 1;
    add_flow(w, &flow, DEPTH);
    add_flow(w, &flow, DEPTH);
    text_add(&flow, "ret;\n");
    if (w->initial.length > 0)
        text_add_bytes(&out, w->initial.bytes, w->initial.length);
    text_add_bytes(&out, flow.bytes, flow.length);
    if (w->later.length > 0)
        text_add_bytes(&out, w->later.bytes, w->later.length);
    text_add(&out, "}\n");
    text_free(&w->initial);
    text_free(&flow);
    text_free(&w->later);
    w->body = out;
}

/* ---- runs ---- */

typedef struct lines {
    char *copy, *at[MOST_LINES];
    int count;
} lines;

static lines split(const char *ptx) {
    lines l = {.copy = malloc(strlen(ptx) + 1)};
    assert_non_null(l.copy);
    strcpy(l.copy, ptx);
    for (char *at = l.copy, *end; *at != 0; at = end + 1) {
        end = strchr(at, '\n');
        assert_non_null(end);
        *end = 0;
        assert_true(l.count < MOST_LINES);
        l.at[l.count++] = at;
    }
    return l;
}

typedef struct machine {
    const lines *l;
    const uint32_t *words;
    uint64_t seed; /* of the data */
    uint64_t r[REGISTERS], rd[REGISTERS];
    int p[REGISTERS], q;
    int at, has_ended, marker_count;
    int markers[MOST_STEPS];
    char is_run[MOST_LINES];
} machine;

static uint64_t read_operand(const machine *m, const char *operand) {
    if (operand[0] != '%')
        return strncmp(operand, "0x5BEC000", 9) == 0 ? m->words[operand[9] - '0'] : (uint64_t)strtoll(operand, NULL, 0);
    if (operand[1] == 'q')
        return (uint64_t)m->q;
    if (operand[1] == 'p')
        return (uint64_t)m->p[atoi(operand + 2)];
    return operand[2] == 'd' ? m->rd[atoi(operand + 3)] : m->r[atoi(operand + 2)];
}

static void write_operand(machine *m, const char *operand, uint64_t value) {
    if (operand[1] == 'q')
        m->q = value & 1;
    else if (operand[1] == 'p')
        m->p[atoi(operand + 2)] = value & 1;
    else if (operand[2] == 'd')
        m->rd[atoi(operand + 3)] = value;
    else
        m->r[atoi(operand + 2)] = (uint32_t)value;
}

static int compares(const char *opcode, uint64_t a, uint64_t b) {
    const int is_signed = strchr(opcode, 's') != NULL && opcode[strlen(opcode) - 3] == 's';
    const int64_t left = is_signed ? (int32_t)a : (int64_t)(uint32_t)a,
                  right = is_signed ? (int32_t)b : (int64_t)(uint32_t)b;
    switch (opcode[5] << 8 | opcode[6]) {
    case 'e' << 8 | 'q':
        return left == right;
    case 'n' << 8 | 'e':
        return left != right;
    case 'l' << 8 | 't':
        return left < right;
    case 'l' << 8 | 'e':
        return left <= right;
    case 'g' << 8 | 't':
        return left > right;
    default:
        return left >= right;
    }
}

static int is(const char *opcode, const char *name) {
    return strncmp(opcode, name, strlen(name)) == 0;
}

static uint64_t result_of(machine *m, const char *opcode, char *const *operands) {
    const uint64_t a = read_operand(m, operands[1]), b = operands[2] != NULL ? read_operand(m, operands[2]) : 0,
                   c = operands[3] != NULL ? read_operand(m, operands[3]) : 0;
    if (is(opcode, "ld.global"))
        return next_random(&m->seed);
    if (is(opcode, "mov") || is(opcode, "cvt"))
        return a;
    if (is(opcode, "and"))
        return a & b;
    if (is(opcode, "or"))
        return a | b;
    if (is(opcode, "xor"))
        return a ^ b;
    if (is(opcode, "not"))
        return ~a;
    if (is(opcode, "shl"))
        return a << b;
    if (is(opcode, "shr"))
        return a >> b;
    if (is(opcode, "bfe"))
        return a >> b & ((1u << c) - 1);
    if (is(opcode, "selp"))
        return c ? a : b;
    assert_true(is(opcode, "setp"));
    return (uint64_t)compares(opcode, a, b);
}

static int is_label(const char *line, const char *name, size_t length) {
    return strncmp(line, name, length) == 0 && strcmp(line + length, ":") == 0;
}

/* Of the same name in several scopes, to the nearest one. */
static void jump(machine *m, const char *label) {
    int to = -1, distance = MOST_LINES;
    for (int i = 0; i < m->l->count; i++)
        if (is_label(m->l->at[i], label, strlen(label)) && abs(i - m->at) < distance) {
            to = i;
            distance = abs(i - m->at);
        }
    if (to < 0)
        fail_msg("a jump to %s, which is empty", label);
    m->at = to;
}

/* The clauses of a conditional line that the generator has still to mark. */
static int tag_holds(const machine *m, const char *tag) {
    unsigned word, mask;
    char sign;
    assert_int_equal(sscanf(tag, "/*?%1u%c0x%x", &word, &sign, &mask), 3);
    return ((m->words[word] & mask) != 0) == (sign == '+');
}

static void step(machine *m) {
    const int at = m->at++;
    const char *text_of_line = m->l->at[at];
    char copy[256], *operands[6] = {0}, *opcode;
    int count = 0, is_taken = 1;
    if (is(text_of_line, "/*?") && !tag_holds(m, text_of_line))
        return;
    if (is(text_of_line, "/*"))
        text_of_line = strstr(text_of_line, "*/") + 2;
    text_of_line += strspn(text_of_line, " ");
    if (*text_of_line == 0 || strchr("/.{}", *text_of_line) != NULL || text_of_line[strlen(text_of_line) - 1] == ':') {
        m->is_run[at] = *text_of_line != 0 && *text_of_line != '/';
        return;
    }
    snprintf(copy, sizeof copy, "%s", text_of_line);
    opcode = strtok(copy, " ;");
    if (*opcode == '@') {
        is_taken = (int)read_operand(m, opcode + 1 + (opcode[1] == '!')) != (opcode[1] == '!');
        opcode = strtok(NULL, " ;");
    }
    while (count < 5 && (operands[count] = strtok(NULL, ", ;")) != NULL)
        count++;
    m->is_run[at] = is_taken || !is(opcode, "bra");
    if (!is_taken)
        return;
    if (is(opcode, "bra"))
        jump(m, operands[0]);
    else if (is(opcode, "ret") || is(opcode, "trap"))
        m->has_ended = 1;
    else if (is(opcode, "st.global"))
        m->markers[m->marker_count++] = atoi(operands[1]);
    else
        write_operand(m, operands[0], result_of(m, opcode, operands));
}

static machine *run_text(const lines *l, const uint32_t words[WORDS], uint64_t seed) {
    machine *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->l = l;
    m->words = words;
    m->seed = seed;
    while (strcmp(l->at[m->at], "{") != 0)
        m->at++;
    m->at++;
    for (int steps = 0; steps < MOST_STEPS && !m->has_ended && m->at < l->count; steps++)
        step(m);
    m->has_ended |= m->at == l->count;
    return m;
}

/* ---- checks ---- */

typedef struct checks {
    long run, empty, guarded;
} checks;

static int is_empty(const char *line) {
    return line[0] == 0;
}

/* Without a mark or tag before it. */
static const char *instruction_of(const char *line) {
    const char *end = is(line, "/*") ? strstr(line, "*/") : NULL;
    return end != NULL ? end + 2 : line;
}

/* Whether a marked line is this line of the text, in which a number stands for each feature word. */
static int is_same_line(const char *line, const char *marked) {
    const char *word = is(marked, "/*=") ? strstr(line, "0x5BEC000") : NULL;
    const char *a = instruction_of(line), *b = instruction_of(marked);
    return word != NULL ? strncmp(a, b, (size_t)(word - a)) == 0 : strcmp(a, b) == 0;
}

/* The lines of the text, in the form that the loader leaves. Lines that the marked text has not are empty. A label follows
 * them, so that the next line that is alike is the same one. */
static lines specialised_lines(const lines *whole, const text *marked, const uint32_t words[WORDS]) {
    lines of_marked = split(marked->bytes), all, own = {0};
    int next = 0;
    char *copy = malloc(marked->length + 1);
    size_t bytes = marked->length;
    gpulossi_marks marks;
    assert_non_null(copy);
    memcpy(copy, marked->bytes, marked->length + 1);
    gpulossi_marks_begin(&marks);
    assert_true(gpulossi_specialise(&marks, copy, &bytes, words));
    copy[bytes] = 0;
    all = split(copy);
    assert_int_equal(all.count, of_marked.count);
    for (int i = 0; i < whole->count; i++) {
        static char left_out[] = "";
        while (next < all.count && (is(of_marked.at[next], "//?") || is(of_marked.at[next], "//!")))
            next++;
        const int is_there = next < all.count && is_same_line(whole->at[i], of_marked.at[next]);
        own.at[own.count++] = is_there ? all.at[next++] : left_out;
    }
    assert_int_equal(next, all.count);
    own.copy = all.copy;
    free(copy);
    free(of_marked.copy);
    return own;
}

static void check_same_run(const machine *a, const machine *b) {
    const int count = a->marker_count < b->marker_count ? a->marker_count : b->marker_count;
    if (a->has_ended && b->has_ended)
        assert_int_equal(a->marker_count, b->marker_count);
    assert_memory_equal(a->markers, b->markers, (size_t)count * sizeof *a->markers);
}

static void check_guards(const writer *w, const lines *own, const lines *left, const uint32_t words[WORDS],
                         checks *done) {
    for (int g = 0; g < w->guard_count; g++) {
        const guard *of = &w->guards[g];
        if (((words[of->word] & of->mask) != 0) == of->is_any)
            continue;
        for (int i = 0; i < own->count; i++) {
            const char *at = strstr(own->at[i], "st.global.u32 [%rd0], ");
            const int marker = at != NULL ? atoi(at + 22) : -1;
            if (marker < of->first || marker > of->last)
                continue;
            if (!is_empty(left->at[i]))
                fail_msg("marker %d is not empty:\n%s", marker, w->body.bytes);
            done->guarded++;
        }
    }
}

/* A text that a driver would refuse: braces that do not match, a branch to a label that is empty. */
static void check_is_whole(const lines *left) {
    int depth = 0;
    for (int i = 0; i < left->count; i++) {
        const char *branch = strstr(left->at[i], "bra"), *label = branch == NULL ? NULL : strchr(branch, ' ') + 1;
        int has_label = branch == NULL;
        for (int k = 0; k < left->count && !has_label; k++)
            has_label = is_label(left->at[k], label, strcspn(label, ";"));
        if (!has_label)
            fail_msg("%s: its label is empty", left->at[i]);
        depth += (left->at[i][0] == '{') - (left->at[i][0] == '}');
    }
    assert_int_equal(depth, 0);
}

static void check_words(const writer *w, const lines *own, const text *marked, const uint32_t words[WORDS],
                        uint64_t seed, checks *done) {
    lines left = specialised_lines(own, marked, words);
    check_is_whole(&left);
    for (int round = 0; round < 3; round++) {
        machine *a = run_text(own, words, seed + (uint64_t)round), *b = run_text(&left, words, seed + (uint64_t)round);
        check_same_run(a, b);
        for (int i = 0; i < own->count; i++) {
            if (a->is_run[i] && is_empty(left.at[i]))
                fail_msg("line %d is run and empty:\n%s", i, marked->bytes);
            done->run += a->is_run[i];
        }
        free(a);
        free(b);
    }
    for (int i = 0; i < own->count; i++)
        done->empty += is_empty(left.at[i]);
    check_guards(w, own, &left, words, done);
    free(left.copy);
}

static checks check_texts(int count, int is_wild) {
    static const uint32_t bits = 0x80008017;
    checks done = {0};
    for (int n = 0; n < count; n++) {
        writer *w = calloc(1, sizeof *w);
        assert_non_null(w);
        w->seed = (uint64_t)n * 977 + 5 + (uint64_t)is_wild;
        w->is_wild = is_wild;
        write_text(w);
        text marked = mark(w->body.bytes, "k");
        lines own = split(w->body.bytes);
        for (int round = 0; round < 10; round++) {
            uint32_t words[WORDS];
            for (int i = 0; i < WORDS; i++)
                words[i] = (uint32_t)(next_random(&w->seed) << 1 ^ next_random(&w->seed)) & (round < 8 ? bits : ~0u) &
                           (round % 4 == 0 ? (uint32_t)(next_random(&w->seed) << 1) : ~0u);
            check_words(w, &own, &marked, words, w->seed, &done);
        }
        free(own.copy);
        text_free(&marked);
        text_free(&w->body);
        free(w);
    }
    return done;
}

void random_flows(void **state) {
    checks done = check_texts(400, 0);
    (void)state;
    print_message("%ld lines run, %ld empty, %ld of them guarded\n", done.run, done.empty, done.guarded);
    assert_true(done.run > 100000 && done.empty > 100000 && done.guarded > 10000);
}

void random_jumps(void **state) {
    checks done = check_texts(400, 1);
    (void)state;
    print_message("%ld lines run, %ld empty\n", done.run, done.empty);
    assert_true(done.run > 100000 && done.empty > 10000);
}
