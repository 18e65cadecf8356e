/* Integer arithmetic, logic, shifts, comparison and selection. */
#include "execute.h"

#define A (a[l])
#define B (b[l])
#define C (c[l])
#define SA ptxsim_signed(A, i->shift)
#define SB ptxsim_signed(B, i->shift)
#define SC ptxsim_signed(C, i->shift)

#define UNARY(name, ...)                                                                                               \
    LOOP(name) {                                                                                                       \
        const uint64_t *a = SOURCE(0);                                                                                 \
        uint64_t *d = RESULT;                                                                                          \
        LANES(d[l] = (uint64_t)(__VA_ARGS__)&i->mask);                                                                 \
        return NEXT;                                                                                                   \
    }
#define BINARY(name, ...)                                                                                              \
    LOOP(name) {                                                                                                       \
        const uint64_t *a = SOURCE(0), *b = SOURCE(1);                                                                 \
        uint64_t *d = RESULT;                                                                                          \
        LANES(d[l] = (uint64_t)(__VA_ARGS__)&i->mask);                                                                 \
        return NEXT;                                                                                                   \
    }
#define TERNARY(name, ...)                                                                                             \
    LOOP(name) {                                                                                                       \
        const uint64_t *a = SOURCE(0), *b = SOURCE(1), *c = SOURCE(2);                                                 \
        uint64_t *d = RESULT;                                                                                          \
        LANES(d[l] = (uint64_t)(__VA_ARGS__)&i->mask);                                                                 \
        return NEXT;                                                                                                   \
    }

static inline uint64_t saturate_s32(int64_t v) {
    return (uint64_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v);
}

BINARY(add, A + B)
BINARY(sub, A - B)
BINARY(add_sat, saturate_s32(SA + SB))
BINARY(sub_sat, saturate_s32(SA - SB))
BINARY(mul_lo, A *B)
TERNARY(mad_lo, A *B + C)

static uint64_t high_product(uint64_t a, uint64_t b, int type, uint32_t shift) {
    if (ptxsim_is_signed(type)) {
        __extension__ typedef __int128 wide;
        return (uint64_t)(((wide)ptxsim_signed(a, shift) * ptxsim_signed(b, shift)) >> (64 - shift));
    }
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)(((wide)a * b) >> (64 - shift));
}

BINARY(mul_hi, high_product(A, B, i->type[0], i->shift))
TERNARY(mad_hi, high_product(A, B, i->type[0], i->shift) + C)

EXEC(mul_wide) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT, keep = i->bits == 32 ? ~0ull : 0xffffffffull;
    if (ptxsim_is_signed(i->type[0]))
        LANES(d[l] = (uint64_t)(SA * SB) & keep);
    else
        LANES(d[l] = A * B & keep);
    return NEXT;
}

EXEC(mad_wide) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1), *c = SOURCE(2);
    uint64_t *d = RESULT, keep = i->bits == 32 ? ~0ull : 0xffffffffull;
    if (ptxsim_is_signed(i->type[0]))
        LANES(d[l] = ((uint64_t)(SA * SB) + C) & keep);
    else
        LANES(d[l] = (A * B + C) & keep);
    return NEXT;
}

/* The condition code is one bit a lane, stored in the warp. */
static uint64_t sum_carry(struct warp *w, const struct insn *i, uint32_t l, uint64_t a, uint64_t b, uint64_t in,
                          bool out) {
    __extension__ typedef unsigned __int128 wide;
    wide sum = (wide)a + b + in;
    if (out)
        w->carry = (w->carry & ~(1u << l)) | (uint32_t)(sum >> i->bits & 1) << l;
    return (uint64_t)sum & i->mask;
}

#define CARRY_IN ((uint64_t)(w->carry >> l & 1))
#define CARRY_BINARY(name, ...)                                                                                        \
    EXEC(name) {                                                                                                       \
        const uint64_t *a = SOURCE(0), *b = SOURCE(1);                                                                 \
        uint64_t *d = RESULT;                                                                                          \
        for (uint32_t l = 0; l < PTXSIM_WARP; l++)                                                                     \
            if (mask >> l & 1)                                                                                         \
                d[l] = __VA_ARGS__;                                                                                    \
        return NEXT;                                                                                                   \
    }
#define CARRY_TERNARY(name, ...)                                                                                       \
    EXEC(name) {                                                                                                       \
        const uint64_t *a = SOURCE(0), *b = SOURCE(1), *c = SOURCE(2);                                                 \
        uint64_t *d = RESULT;                                                                                          \
        for (uint32_t l = 0; l < PTXSIM_WARP; l++)                                                                     \
            if (mask >> l & 1)                                                                                         \
                d[l] = __VA_ARGS__;                                                                                    \
        return NEXT;                                                                                                   \
    }
#define CC ((i->flags & F_CC) != 0)
#define HIGH (high_product(A, B, i->type[0], i->shift) & i->mask)

/* Subtraction keeps the borrow in the same bit, inverted with respect to the sum it is computed by. */
static uint64_t difference(struct warp *w, const struct insn *i, uint32_t l, uint64_t a, uint64_t b, uint64_t borrow,
                           bool out) {
    uint64_t r = sum_carry(w, i, l, a, ~b & i->mask, 1 - borrow, out);
    if (out)
        w->carry ^= 1u << l;
    return r;
}

CARRY_BINARY(add_carry, sum_carry(w, i, l, A, B, 0, true))
CARRY_BINARY(addc, sum_carry(w, i, l, A, B, CARRY_IN, CC))
CARRY_BINARY(sub_carry, difference(w, i, l, A, B, 0, true))
CARRY_BINARY(subc, difference(w, i, l, A, B, CARRY_IN, CC))
CARRY_TERNARY(mad_lo_carry, sum_carry(w, i, l, A *B & i->mask, C, 0, true))
CARRY_TERNARY(mad_hi_carry, sum_carry(w, i, l, HIGH, C, 0, true))
CARRY_TERNARY(madc_lo, sum_carry(w, i, l, A *B & i->mask, C, CARRY_IN, CC))
CARRY_TERNARY(madc_hi, sum_carry(w, i, l, HIGH, C, CARRY_IN, CC))

static uint64_t product24(uint64_t a, uint64_t b, const struct insn *i) {
    uint64_t p =
        i->type[0] == T_S32 ? (uint64_t)(ptxsim_signed(a, 40) * ptxsim_signed(b, 40)) : (a & 0xffffff) * (b & 0xffffff);
    return i->op[0] == OP_HI ? p >> 16 : p;
}

BINARY(mul24, product24(A, B, i))
TERNARY(mad24, product24(A, B, i) + C)

static inline bool less(uint64_t a, uint64_t b, const struct insn *i) {
    return ptxsim_is_signed(i->type[0]) ? ptxsim_signed(a, i->shift) < ptxsim_signed(b, i->shift) : a < b;
}

TERNARY(sad, C + (less(A, B, i) ? B - A : A - B))
BINARY(min, less(B, A, i) ? B : A)
BINARY(max, less(A, B, i) ? B : A)
UNARY(abs, SA < 0 ? 0 - A : A)
UNARY(neg, 0 - A)

/* A quotient by zero is unspecified, so the checks take the result for unwritten. */
static uint32_t divisors(const uint64_t *b) {
    uint32_t nonzero = 0;
    for (uint32_t l = 0; l < PTXSIM_WARP; l++)
        nonzero |= (uint32_t)(b[l] != 0) << l;
    return nonzero;
}

static uint64_t quotient(uint64_t a, uint64_t b, const struct insn *i, bool remainder) {
    if (b == 0)
        return remainder ? a : i->mask;
    if (!ptxsim_is_signed(i->type[0]))
        return remainder ? a % b : a / b;
    int64_t n = ptxsim_signed(a, i->shift), by = ptxsim_signed(b, i->shift);
    if (by == -1)
        return remainder ? 0 : (0 - a) & i->mask;
    return (uint64_t)(remainder ? n % by : n / by) & i->mask;
}

static enum ptxsim_next divide(struct warp *w, const struct insn *i, uint32_t mask, bool remainder) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT;
    uint32_t defined = divisors(b) & ptxsim_defined(w, i->s[0]) & ptxsim_defined(w, i->s[1]);
    LANES(d[l] = quotient(A, B, i, remainder));
    ptxsim_define(w, i->d[0], mask, defined);
    return NEXT;
}

EXEC(div) {
    return divide(w, i, mask, false);
}
EXEC(rem) {
    return divide(w, i, mask, true);
}

UNARY(popc, (uint32_t)__builtin_popcountll(A))
UNARY(clz, A ? (uint32_t)__builtin_clzll(A) - i->shift : i->bits)

static uint64_t find_msb(uint64_t a, const struct insn *i) {
    if (ptxsim_is_signed(i->type[0]) && a >> (i->bits - 1))
        a = ~a & i->mask;
    if (!a)
        return 0xffffffff;
    uint64_t at = 63 - (uint64_t)__builtin_clzll(a);
    return i->nop ? i->bits - 1u - at : at;
}

UNARY(bfind, find_msb(A, i) & 0xffffffff)

static uint64_t reverse(uint64_t v, uint32_t bits) {
    uint64_t r = 0;
    for (uint32_t b = 0; b < bits; b++)
        r |= (v >> b & 1) << (bits - 1 - b);
    return r;
}

UNARY(brev, reverse(A, i->bits))

static inline uint64_t extract(uint64_t a, uint64_t position, uint64_t length, const struct insn *i) {
    uint32_t from = position & 0xff, count = length & 0xff, msb = i->bits - 1u;
    if (count == 0)
        return 0;
    uint64_t field = count >= 64 ? ~0ull : (1ull << count) - 1, r = from > msb ? 0 : a >> from & field;
    uint32_t last = from + count - 1 < msb ? from + count - 1 : msb;
    if (!ptxsim_is_signed(i->type[0]) || !(a >> last & 1))
        return r;
    /* The bits above the field repeat its last bit. */
    uint32_t width = from > msb ? 0 : last - from + 1;
    return width >= 64 ? r : r | ~0ull << width;
}

TERNARY(bfe, extract(A, B, C, i))

static inline uint64_t insert(uint64_t a, uint64_t b, uint64_t position, uint64_t length, const struct insn *i) {
    uint32_t from = position & 0xff, count = length & 0xff;
    if (from >= i->bits || count == 0)
        return b;
    uint64_t field = (count >= 64 ? ~0ull : (1ull << count) - 1) << from & i->mask;
    return (b & ~field) | (a << from & field);
}

LOOP(bfi) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1), *c = SOURCE(2), *e = SOURCE(3);
    uint64_t *d = RESULT;
    LANES(d[l] = insert(A, B, C, e[l], i));
    return NEXT;
}

static uint64_t dot(uint64_t a, uint64_t b, uint64_t c, const struct insn *i, uint32_t parts) {
    uint32_t first = parts == 2 && i->op[0] == OP_HI ? 2 : 0, width = parts == 2 ? 16 : 8;
    uint64_t sum = c;
    for (uint32_t n = 0; n < parts; n++) {
        uint64_t x = a >> (n * width), y = b >> ((n + first) * 8);
        int64_t p = i->type[0] == T_S32 ? ptxsim_signed(x, 64 - width) : (int64_t)(x & ((1ull << width) - 1));
        int64_t q = i->type[1] == T_S32 ? ptxsim_signed(y, 56) : (int64_t)(y & 0xff);
        sum += (uint64_t)(p * q);
    }
    return sum;
}

TERNARY(dp4a, dot(A, B, C, i, 4))
TERNARY(dp2a, dot(A, B, C, i, 2))

BINARY(and, A &B)
BINARY(or, A | B)
BINARY(xor, A ^ B)
UNARY(not, ~A)
UNARY(cnot, A == 0)

static inline uint64_t lookup(uint64_t a, uint64_t b, uint64_t c, uint32_t table) {
    uint64_t r = 0;
    for (uint32_t n = 0; n < 8; n++)
        if (table >> n & 1)
            r |= (n & 4 ? a : ~a) & (n & 2 ? b : ~b) & (n & 1 ? c : ~c);
    return r;
}

TERNARY(lop3, lookup(A, B, C, i->immediate))
BINARY(shl, B < i->bits ? A << B : 0)

LOOP(shr) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT;
    if (ptxsim_is_signed(i->type[0]))
        LANES(d[l] = (uint64_t)(SA >> (B < i->bits ? B : i->bits - 1u)) & i->mask);
    else
        LANES(d[l] = B < i->bits ? A >> B : 0);
    return NEXT;
}

static inline uint64_t funnel(uint64_t a, uint64_t b, uint64_t c, const struct insn *i) {
    uint64_t n = i->op[1] == OP_CLAMP ? (c > 32 ? 32 : c) : c & 31;
    uint64_t both = b << 32 | a;
    if (i->op[0] == OP_R)
        return both >> n;
    return n == 32 ? a : both << n >> 32;
}

TERNARY(shf, funnel(A, B, C, i))

static uint64_t permute(uint64_t a, uint64_t b, uint64_t c, const struct insn *i) {
    static const uint8_t by_mode[6][4][4] = {{{0, 1, 2, 3}, {1, 2, 3, 4}, {2, 3, 4, 5}, {3, 4, 5, 6}},
                                             {{0, 7, 6, 5}, {1, 0, 7, 6}, {2, 1, 0, 7}, {3, 2, 1, 0}},
                                             {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}},
                                             {{0, 1, 2, 3}, {1, 1, 2, 3}, {2, 2, 2, 3}, {3, 3, 3, 3}},
                                             {{0, 0, 0, 0}, {0, 1, 1, 1}, {0, 1, 2, 2}, {0, 1, 2, 3}},
                                             {{0, 1, 0, 1}, {2, 3, 2, 3}, {0, 1, 0, 1}, {2, 3, 2, 3}}};
    uint64_t bytes = b << 32 | a, r = 0;
    for (uint32_t n = 0; n < 4; n++) {
        uint32_t selector = i->nop ? by_mode[i->op[0] - OP_F4E][c & 3][n] : (uint32_t)(c >> (4 * n) & 15);
        uint64_t byte = bytes >> (8 * (selector & 7)) & 0xff;
        if (selector & 8)
            byte = byte & 0x80 ? 0xff : 0;
        r |= byte << (8 * n);
    }
    return r;
}

TERNARY(prmt, permute(A, B, C, i))

/* Comparison: op[0] says which; the operand type is the last one of the instruction. A bit a lane. */
struct order {
    uint32_t below, equal, unordered;
};

/* x and y: expressions of the lane l. */
#define ORDER_FLOATS(type, x, y)                                                                                       \
    for (uint32_t l = 0; l < PTXSIM_WARP; l++) {                                                                       \
        const type one = x, other = y;                                                                                 \
        o.below |= (uint32_t)(one < other) << l;                                                                       \
        o.equal |= (uint32_t)(one == other) << l;                                                                      \
        o.unordered |= (uint32_t)(one != one || other != other) << l;                                                  \
    }
#define ORDER_INTEGERS(x, y)                                                                                           \
    for (uint32_t l = 0; l < PTXSIM_WARP; l++) {                                                                       \
        o.below |= (uint32_t)((x) < (y)) << l;                                                                         \
        o.equal |= (uint32_t)(A == B) << l;                                                                            \
    }

static float half(uint64_t bits, bool flush) {
    return flush && !(bits & 0x7c00) ? 0 : ptxsim_half_to_float((uint32_t)bits);
}

static struct order order(const struct insn *i, int type, const uint64_t *a, const uint64_t *b) {
    const bool flush = i->flags & F_FTZ;
    const uint32_t shift = 64 - ptxsim_bits(type);
    struct order o = {0, 0, 0};
    if (type == T_F32 && flush)
        ORDER_FLOATS(float, ptxsim_f32(ptxsim_flush(A)), ptxsim_f32(ptxsim_flush(B)))
    else if (type == T_F32)
        ORDER_FLOATS(float, ptxsim_f32(A), ptxsim_f32(B))
    else if (type == T_F64)
        ORDER_FLOATS(double, ptxsim_f64(A), ptxsim_f64(B))
    else if (type == T_F16)
        ORDER_FLOATS(float, half(A, flush), half(B, flush))
    else if (ptxsim_is_signed(type))
        ORDER_INTEGERS(ptxsim_signed(A, shift), ptxsim_signed(B, shift))
    else
        ORDER_INTEGERS(A, B)
    return o;
}

static uint32_t compare(const struct insn *i, int type, const uint64_t *a, const uint64_t *b) {
    const struct order o = order(i, type, a, b);
    switch (i->op[0]) {
    case OP_EQ:
        return o.equal;
    case OP_NE:
        return ~(o.equal | o.unordered);
    case OP_LT:
    case OP_LO:
        return o.below;
    case OP_LE:
    case OP_LS:
        return o.below | o.equal;
    case OP_GT:
    case OP_HI:
        return ~(o.below | o.equal | o.unordered);
    case OP_GE:
    case OP_HS:
        return ~(o.below | o.unordered);
    case OP_EQU:
        return o.equal | o.unordered;
    case OP_NEU:
        return ~o.equal;
    case OP_LTU:
        return o.below | o.unordered;
    case OP_LEU:
        return o.below | o.equal | o.unordered;
    case OP_GTU:
        return ~(o.below | o.equal);
    case OP_GEU:
        return ~o.below;
    case OP_NUM:
        return ~o.unordered;
    default:
        return o.unordered;
    }
}

static uint32_t combine(int op, uint32_t x, uint32_t y) {
    return op == OP_AND ? x & y : op == OP_OR ? x | y : x ^ y;
}

/* The predicate that a comparison is combined with. */
static uint32_t predicate(const struct insn *i, const uint64_t *p) {
    uint32_t r = 0;
    for (uint32_t l = 0; l < PTXSIM_WARP; l++)
        r |= (uint32_t)(p[l] & 1) << l;
    return i->negate ? ~r : r;
}

/* The usual comparison of 32-bit integers and floats, without the general way's tests in each lane. */
#define FAST_COMPARE(test)                                                                                             \
    do {                                                                                                               \
        if (i->type[0] == T_S32)                                                                                       \
            LANES(d[l] = (int32_t)A test(int32_t) B);                                                                  \
        else if (i->type[0] == T_F32)                                                                                  \
            LANES(d[l] = ptxsim_f32(A) test ptxsim_f32(B));                                                            \
        else                                                                                                           \
            LANES(d[l] = A test B);                                                                                    \
        return NEXT;                                                                                                   \
    } while (0)

LOOP(setp) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT;
    int type = i->type[0];
    if (i->nop == 1 && i->nd == 1 && !(i->flags & F_FTZ) &&
        (type == T_S32 || type == T_F32 || type == T_U32 || type == T_U64 || type == T_B32)) {
        if (i->op[0] == OP_LT)
            FAST_COMPARE(<);
        if (i->op[0] == OP_LE)
            FAST_COMPARE(<=);
        if (i->op[0] == OP_GT)
            FAST_COMPARE(>);
        if (i->op[0] == OP_GE)
            FAST_COMPARE(>=);
        if (i->op[0] == OP_EQ)
            FAST_COMPARE(==);
        if (i->op[0] == OP_NE && type != T_F32)
            FAST_COMPARE(!=);
    }
    uint32_t r = compare(i, type, a, b), other = ~r;
    if (i->nop > 1) {
        const uint32_t p = predicate(i, SOURCE(2));
        r = combine(i->op[1], r, p);
        other = combine(i->op[1], other, p);
    }
    LANES(d[l] = r >> l & 1);
    if (i->nd > 1) {
        uint64_t *e = RESULT2;
        LANES(e[l] = other >> l & 1);
    }
    return NEXT;
}

EXEC(setp_f16x2) {
    const uint64_t *packed = SOURCE(0), *other_packed = SOURCE(1);
    uint64_t *d = RESULT, *e = RESULT2;
    uint64_t a[2][PTXSIM_WARP], b[2][PTXSIM_WARP];
    for (uint32_t l = 0; l < PTXSIM_WARP; l++) {
        a[0][l] = packed[l] & 0xffff;
        a[1][l] = packed[l] >> 16;
        b[0][l] = other_packed[l] & 0xffff;
        b[1][l] = other_packed[l] >> 16;
    }
    const uint32_t low = compare(i, T_F16, a[0], b[0]), high = compare(i, T_F16, a[1], b[1]);
    LANES(d[l] = low >> l & 1);
    if (i->nd > 1)
        LANES(e[l] = high >> l & 1);
    return NEXT;
}

EXEC(set) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT, yes = i->type[0] == T_F32 ? 0x3f800000u : 0xffffffffu;
    uint32_t r = compare(i, i->type[1], a, b);
    if (i->nop > 1)
        r = combine(i->op[1], r, predicate(i, SOURCE(2)));
    LANES(d[l] = r >> l & 1 ? yes : 0);
    return NEXT;
}

/* Only the chosen side has to be defined. */
LOOP(selp) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1), *c = SOURCE(2);
    uint64_t *d = RESULT, inverted = i->negate;
    uint32_t chosen = 0;
    for (uint32_t l = 0; l < PTXSIM_WARP; l++)
        chosen |= (uint32_t)((C & 1) ^ inverted) << l;
    LANES(d[l] = (C & 1) ^ inverted ? A : B);
    uint32_t defined = (chosen & ptxsim_defined(w, i->s[0])) | (~chosen & ptxsim_defined(w, i->s[1]));
    ptxsim_define(w, i->d[0], mask, defined & ptxsim_defined(w, i->s[2]));
    return NEXT;
}

static uint64_t by_sign(uint64_t a, uint64_t b, uint64_t c, const struct insn *i) {
    if (i->type[1] == T_S32)
        return (int32_t)c >= 0 ? a : b;
    return ptxsim_f32(i->flags & F_FTZ ? ptxsim_flush(c) : c) >= 0.0f ? a : b;
}

TERNARY(slct, by_sign(A, B, C, i))
