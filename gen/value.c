/* Values of registers that are computed from feature words and constants alone. */
#include "condition.h"

#include <stdlib.h>
#include <string.h>

typedef struct type {
    int width; /* 0: no integer and no predicate; 1: a predicate */
    int is_signed;
} type;

typedef enum operation { MOV, AND, OR, XOR, NOT, SHL, SHR, ADD, SUB, CVT, BFE, SELP, SETP } operation;
typedef enum comparison { EQ, NE, LT, LE, GT, GE } comparison;

typedef struct instruction {
    operation operation;
    comparison comparison;
    type to, from; /* different for cvt only */
} instruction;

static const struct {
    const char *name;
    int sources;
} operations[] = {[MOV] = {"mov", 1}, [AND] = {"and", 2},   [OR] = {"or", 2},    [XOR] = {"xor", 2}, [NOT] = {"not", 1},
                  [SHL] = {"shl", 2}, [SHR] = {"shr", 2},   [ADD] = {"add", 2},  [SUB] = {"sub", 2}, [CVT] = {"cvt", 1},
                  [BFE] = {"bfe", 3}, [SELP] = {"selp", 3}, [SETP] = {"setp", 2}};

value number_value(uint64_t number) {
    return (value){.kind = CHOICES, .count = 1, .numbers = {number}};
}

value word_value(int word) {
    return (value){.kind = BITS, .word = word, .mask = ~0u};
}

/* ---- opcodes ---- */

static type type_of(const char *name) {
    static const int widths[] = {8, 16, 32, 64};
    if (strcmp(name, "pred") == 0)
        return (type){.width = 1};
    for (int i = 0; i < 4; i++)
        if (strchr("bus", name[0]) != NULL && atoi(name + 1) == widths[i] && strlen(name) == (i == 0 ? 2 : 3))
            return (type){.width = widths[i], .is_signed = name[0] == 's'};
    return (type){0};
}

static int find(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

/* Parses an opcode. Returns 0 if it is none of the operations, or has another modifier. */
static int decode(const char *opcode, instruction *out) {
    static const char *const comparisons[] = {"eq", "ne", "lt", "le", "gt", "ge"};
    char copy[64], *parts[4];
    int count = 0, known = 0;
    if (strlen(opcode) >= sizeof copy)
        return 0;
    strcpy(copy, opcode);
    for (char *part = strtok(copy, "."); part != NULL; part = strtok(NULL, ".")) {
        if (count == 4)
            return 0;
        parts[count++] = part;
    }
    for (size_t i = 0; count > 0 && i < sizeof operations / sizeof operations[0]; i++)
        if (strcmp(parts[0], operations[i].name) == 0)
            out->operation = (operation)i, known = 1;
    if (!known || count != (out->operation == SETP || out->operation == CVT ? 3 : 2))
        return 0;
    out->from = type_of(parts[count - 1]);
    out->to = out->operation == CVT ? type_of(parts[1]) : out->from;
    if (out->operation == SETP) {
        int comparison_of = find(comparisons, 6, parts[1]);
        if (comparison_of < 0)
            return 0;
        out->comparison = (comparison)comparison_of;
    }
    return out->from.width > 0 && out->to.width > 0 && !(out->operation == BFE && out->from.is_signed);
}

int sources_of(const char *opcode) {
    instruction i;
    return decode(opcode, &i) ? operations[i.operation].sources : 0;
}

/* ---- numbers ---- */

static uint64_t ones(int width) {
    return width >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << width) - 1;
}

static uint64_t extended(uint64_t number, type t) {
    number &= ones(t.width);
    if (t.is_signed && number >> (t.width - 1) & 1)
        number |= ~ones(t.width);
    return number;
}

static uint64_t shifted_right(uint64_t number, uint64_t by, type t) {
    const uint64_t sign = extended(number, t) >> 63;
    if (by >= (uint64_t)t.width)
        return sign ? ones(t.width) : 0;
    number >>= by;
    return sign ? number | (ones(t.width) & ~ones(t.width - (int)by)) : number;
}

static int compares(comparison c, uint64_t a, uint64_t b, type t) {
    int less;
    a = extended(a, t), b = extended(b, t);
    less = t.is_signed ? (int64_t)a < (int64_t)b : a < b;
    switch (c) {
    case EQ:
        return a == b;
    case NE:
        return a != b;
    case LT:
        return less;
    case LE:
        return less || a == b;
    case GT:
        return !less && a != b;
    case GE:
        return !less;
    }
    return 0;
}

static uint64_t compute_numbers(const instruction *i, uint64_t a, uint64_t b, uint64_t c) {
    const uint64_t all = ones(i->to.width);
    switch (i->operation) {
    case MOV:
        return a & all;
    case AND:
        return a & b & all;
    case OR:
        return (a | b) & all;
    case XOR:
        return (a ^ b) & all;
    case NOT:
        return ~a & all;
    case SHL:
        return (b & ~0u) >= (uint64_t)i->to.width ? 0 : a << b & all;
    case SHR:
        return shifted_right(a & all, b & ~0u, i->to);
    case ADD:
        return (a + b) & all;
    case SUB:
        return (a - b) & all;
    case CVT:
        return extended(a, i->from) & all;
    case BFE:
        return (b & 255) >= 64 ? 0 : (a & all) >> (b & 255) & ones((int)(c & 255));
    case SELP:
        return (c & 1 ? a : b) & all;
    case SETP:
        return (uint64_t)compares(i->comparison, a, b, i->from);
    }
    return 0;
}

/* ---- bits of a feature word ---- */

/* The bits of the word that are at these positions of the value. */
static uint32_t bits_at(const value *v, uint64_t positions) {
    if (v->shift >= 0)
        return v->shift >= 32 ? 0 : (uint32_t)(positions << v->shift);
    return v->shift <= -64 ? 0 : (uint32_t)(positions >> -v->shift);
}

static uint64_t positions_of(const value *v, uint32_t bits) {
    if (v->shift >= 0)
        return v->shift >= 32 ? 0 : bits >> v->shift;
    return v->shift <= -64 ? 0 : (uint64_t)bits << -v->shift;
}

static value masked(value v, uint64_t positions) {
    v.mask &= bits_at(&v, positions);
    return v;
}

static int is_number(const value *v, uint64_t *number) {
    *number = v->numbers[0];
    return v->kind == CHOICES && v->count == 1 && is_same(&v->when[0], &always);
}

static value xored(value v, uint64_t number) {
    const value unknown = {0};
    if (number & ~positions_of(&v, v.mask))
        return unknown;
    v.flip ^= bits_at(&v, number);
    return v;
}

static value shifted(value v, int right, uint64_t by, int width) {
    if (by >= 64)
        return number_value(0);
    v.shift += right ? (int)by : -(int)by;
    return masked(v, ones(width));
}

static int has_sign(const value *v, type t) {
    return t.is_signed && (v->mask & bits_at(v, (uint64_t)1 << (t.width - 1))) != 0;
}

/* An operation on bits and a number; unknown where its result is not bits of the word. */
static value compute_bits(const instruction *i, value v, uint64_t number) {
    const value unknown = {0};
    const int width = i->to.width;
    switch (i->operation) {
    case MOV:
        return v;
    case CVT:
        return has_sign(&v, i->from) && width > i->from.width ? unknown
                                                              : masked(masked(v, ones(i->from.width)), ones(width));
    case AND:
        return masked(v, number);
    case OR:
        return (number & ones(width)) == 0 ? v : unknown;
    case XOR:
        return xored(v, number & ones(width));
    case NOT:
        return xored(v, ones(width));
    case SHL:
        return shifted(v, 0, number, width);
    case SHR:
        return has_sign(&v, i->from) ? unknown : shifted(v, 1, number, width);
    case ADD:
    case SUB:
    case BFE:
    case SELP:
    case SETP:
        break;
    }
    return unknown;
}

/* Bits of the same word at the same positions. */
static value compute_two_bits(const instruction *i, value a, value b) {
    value v = a;
    const uint32_t shared = a.mask & b.mask;
    if (a.word != b.word || a.shift != b.shift || ((a.flip ^ b.flip) & shared) != 0)
        return (value){0};
    if (i->operation == AND)
        v.mask = shared;
    else if (i->operation == OR)
        v.mask = a.mask | b.mask, v.flip = (a.flip & a.mask) | (b.flip & b.mask);
    else
        return (value){0};
    return v;
}

/* The condition for some numbers that the bits of a value may make: number n is one if bit n of `listed` is set. */
static condition where_listed(const value *v, const uint32_t *bits, int count, uint64_t listed) {
    condition c = always;
    if (listed == 0)
        return never;
    for (int i = 0; i < count; i++) {
        int ever = 0;
        for (int n = 0; n < 1 << count; n++)
            ever |= (listed >> n & 1) && (n >> i & 1);
        if (!ever)
            require_none(&c, v->word, bits[i]);
    }
    for (int subset = 1; subset < 1 << count; subset++) {
        uint32_t mask = 0;
        int clear = 0;
        for (int n = 0; n < 1 << count; n++)
            clear |= (listed >> n & 1) && (n & subset) == 0;
        for (int i = 0; i < count; i++)
            mask |= subset >> i & 1 ? bits[i] : 0;
        if (!clear)
            require_any(&c, v->word, mask);
    }
    return c;
}

static int list_bits(uint32_t mask, uint32_t bits[32]) {
    int count = 0;
    for (; mask != 0; mask &= mask - 1)
        bits[count++] = mask & -mask;
    return count;
}

/* The value if the word has exactly these of its bits. */
static uint64_t value_at(const value *v, uint32_t word) {
    return positions_of(v, (word ^ v->flip) & v->mask);
}

static uint32_t word_of(const uint32_t *bits, int count, int number) {
    uint32_t word = 0;
    for (int i = 0; i < count; i++)
        word |= number >> i & 1 ? bits[i] : 0;
    return word;
}

static value predicate_value(condition is_true, condition is_false) {
    value v = {.kind = CHOICES};
    if (!is_true.never)
        v.numbers[v.count] = 1, v.when[v.count++] = is_true;
    if (!is_false.never)
        v.numbers[v.count] = 0, v.when[v.count++] = is_false;
    return v;
}

static value compare_listed(const instruction *i, const value *v, uint64_t number, const uint32_t *bits, int count) {
    uint64_t listed = 0;
    for (int n = 0; n < 1 << count; n++)
        if (compares(i->comparison, value_at(v, word_of(bits, count, n)), number, i->from))
            listed |= (uint64_t)1 << n;
    return predicate_value(where_listed(v, bits, count, listed),
                           where_listed(v, bits, count, ~listed & ones(1 << count)));
}

/* Many bits, compared with a number for equality. */
static value compare_many(const instruction *i, const value *v, uint64_t number, const uint32_t *bits, int count) {
    condition equal = always, other = always;
    const uint32_t set = (bits_at(v, number) ^ v->flip) & v->mask;
    const int is_possible = (number & ~positions_of(v, v->mask)) == 0;
    if (!is_possible)
        equal = never;
    require_none(&equal, v->word, v->mask & ~set);
    for (int k = 0; k < count; k++)
        if (bits[k] & set)
            require_any(&equal, v->word, bits[k]);
    if (set == 0 && is_possible)
        require_any(&other, v->word, v->mask);
    return i->comparison == EQ ? predicate_value(equal, other) : predicate_value(other, equal);
}

static value compare_bits(const instruction *i, const value *v, uint64_t number) {
    const uint64_t all = ones(i->from.width);
    const uint64_t sign = (uint64_t)1 << (i->from.width - 1);
    const int is_low = i->comparison == LT || i->comparison == GE;
    value of = *v;
    uint32_t bits[32];
    number &= all;
    /* A comparison with zero of a signed number is one of its sign alone. */
    if (i->from.is_signed && i->comparison != EQ && i->comparison != NE && number == (is_low ? 0 : all)) {
        of = masked(of, sign);
        number = is_low ? 0 : all;
    }
    int count = list_bits(of.mask, bits);
    if (count <= MOST_LISTED)
        return compare_listed(i, &of, number, bits, count);
    if (i->comparison == EQ || i->comparison == NE)
        return compare_many(i, &of, number, bits, count);
    return predicate_value(always, always);
}

/* ---- choices ---- */

static void add_choice(value *v, uint64_t number, const condition *when) {
    if (when->never)
        return;
    for (int i = 0; i < v->count; i++)
        if (v->numbers[i] == number) {
            v->when[i] = either(&v->when[i], when);
            return;
        }
    if (v->count == MOST_CHOICES) {
        v->kind = UNKNOWN;
        return;
    }
    v->numbers[v->count] = number;
    v->when[v->count++] = *when;
}

static value as_choices(const value *v, int is_predicate) {
    value choices = {.kind = CHOICES};
    uint32_t bits[32];
    if (v->kind == CHOICES)
        return *v;
    if (v->kind != BITS)
        return is_predicate ? predicate_value(always, always) : (value){0};
    int count = list_bits(v->mask, bits);
    if (1 << (count < 5 ? count : 5) > MOST_CHOICES)
        return (value){0};
    for (int n = 0; n < 1 << count; n++) {
        condition when = always;
        require_none(&when, v->word, v->mask & ~word_of(bits, count, n));
        for (int i = 0; i < count; i++)
            if (n >> i & 1)
                require_any(&when, v->word, bits[i]);
        add_choice(&choices, value_at(v, word_of(bits, count, n)), &when);
    }
    return choices;
}

void add_values(value *to, const value *v, const condition *when) {
    const value choices = as_choices(v, 0);
    if (choices.kind == UNKNOWN)
        to->kind = UNKNOWN;
    for (int i = 0; to->kind == CHOICES && i < choices.count; i++) {
        const condition here = both(&choices.when[i], when);
        add_choice(to, choices.numbers[i], &here);
    }
}

static value compute_choices(const instruction *i, const value *sources) {
    const int count = operations[i->operation].sources;
    value of[3], result = {.kind = CHOICES};
    for (int k = 0; k < 3; k++) {
        of[k] = k < count ? as_choices(&sources[k], i->from.width == 1 || (i->operation == SELP && k == 2))
                          : number_value(0);
        if (of[k].kind == UNKNOWN)
            return i->operation == SETP ? predicate_value(always, always) : of[k];
    }
    for (int a = 0; a < of[0].count; a++)
        for (int b = 0; b < of[1].count; b++)
            for (int c = 0; c < of[2].count; c++) {
                condition when = both(&of[0].when[a], &of[1].when[b]);
                when = both(&when, &of[2].when[c]);
                add_choice(&result, compute_numbers(i, of[0].numbers[a], of[1].numbers[b], of[2].numbers[c]), &when);
            }
    return result;
}

/* ---- flags ---- */

condition where(const value *predicate, int is) {
    value v = as_choices(predicate, 1);
    condition c = never;
    for (int i = 0; i < v.count; i++)
        if ((v.numbers[i] & 1) == (uint64_t)is)
            c = either(&c, &v.when[i]);
    return c;
}

static value is_zero(const value *v, type t) {
    const instruction equals = {.operation = SETP, .comparison = EQ, .to = t, .from = t};
    value sources[2] = {*v, number_value(0)};
    if (v->kind == FLAG)
        return predicate_value(v->when[0], v->when[1]);
    return v->kind == BITS ? compare_bits(&equals, v, 0) : compute_choices(&equals, sources);
}

/* An `or`, for example of several words: only whether it is zero. */
static value compute_or(const instruction *i, const value *a, const value *b) {
    const value a_is_zero = is_zero(a, i->from), b_is_zero = is_zero(b, i->from);
    const condition zeros[2] = {where(&a_is_zero, 1), where(&b_is_zero, 1)};
    const condition others[2] = {where(&a_is_zero, 0), where(&b_is_zero, 0)};
    return (value){.kind = FLAG, .when = {both(&zeros[0], &zeros[1]), either(&others[0], &others[1])}};
}

/* An operation on a flag, and a number where it has a second source. */
static value compute_flag(const instruction *i, const value *a, uint64_t number) {
    if (i->operation == MOV || (i->operation == CVT && i->to.width >= i->from.width))
        return *a;
    if (i->operation == SETP && number == 0 && i->comparison == EQ)
        return predicate_value(a->when[0], a->when[1]);
    if (i->operation == SETP && number == 0 && i->comparison == NE)
        return predicate_value(a->when[1], a->when[0]);
    return (value){0};
}

static int commutes(const instruction *i) {
    return i->operation == AND || i->operation == OR || i->operation == XOR ||
           (i->operation == SETP && (i->comparison == EQ || i->comparison == NE));
}

value compute(const char *opcode, const value *sources) {
    instruction i;
    value result = {0};
    uint64_t number = 0, length = 0;
    if (!decode(opcode, &i))
        return result;
    const int count = operations[i.operation].sources;
    const value *a = &sources[0], *b = count > 1 ? &sources[1] : NULL;
    if (commutes(&i) && is_number(a, &number))
        a = &sources[1], b = &sources[0];
    const int with_number = b == NULL || is_number(b, &number);
    if (a->kind == BITS && with_number && i.operation == BFE && is_number(&sources[2], &length))
        result = masked(shifted(*a, 1, number & 255, i.from.width), ones((int)(length & 255)));
    else if (a->kind == BITS && with_number)
        result = i.operation == SETP ? compare_bits(&i, a, number) : compute_bits(&i, *a, number);
    else if (a->kind == FLAG && with_number)
        result = compute_flag(&i, a, number);
    else if (a->kind == BITS && b->kind == BITS)
        result = compute_two_bits(&i, *a, *b);
    if (result.kind == UNKNOWN)
        result = compute_choices(&i, sources);
    return result.kind == UNKNOWN && i.operation == OR ? compute_or(&i, a, b) : result;
}
