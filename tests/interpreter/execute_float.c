/* Single and double precision arithmetic. Results that are no number have the GPU's one bit pattern in single
 * precision. Rounding other than to nearest goes through math.c. The approximate functions are computed in double
 * precision and rounded once. Their errors are at most half a unit in the last place, inside every bound of the PTX
 * manual. */
#include "execute.h"

#include <math.h>

#define A ptxsim_f32(a[l])
#define B ptxsim_f32(b[l])
#define C ptxsim_f32(c[l])
#define FLUSHED(x) ptxsim_f32(ptxsim_flush(x))
#define DA ptxsim_f64(a[l])
#define DB ptxsim_f64(b[l])
#define DC ptxsim_f64(c[l])
#define DIRECTED (i->round > RND_RN)

static inline uint64_t finish(float r) {
    return r != r ? 0x7fffffffu : ptxsim_bits_f32(r);
}

static inline uint64_t finish_flushed(float r) {
    return ptxsim_flush(finish(r));
}

static inline uint64_t saturate(uint64_t bits) {
    float r = ptxsim_f32(bits);
    return r >= 1.0f ? 0x3f800000u : r > 0.0f ? bits : 0;
}

static enum ptxsim_next saturated(struct warp *w, const struct insn *i, uint32_t mask) {
    uint64_t *d = RESULT;
    if (i->flags & F_SAT)
        LANES(d[l] = saturate(d[l]));
    return NEXT;
}

static inline uint64_t in(const struct insn *i, uint64_t v) {
    return i->flags & F_FTZ ? ptxsim_flush(v) : v;
}

#define LEAST_NORMAL(bits) (((bits)&0x7fffffffu) == 0x00800000u)

/* .ftz flushes a result that is below the normal range with unlimited exponents, even if it was rounded up to the least
 * normal number. */
static bool tiny(double exact, int round) {
    double m = fabs(exact);
    if (round <= RND_RN)
        return m < 0x1p-126 - 0x1p-151;
    if (round == RND_RZ || (round == RND_RM) == (exact > 0))
        return m < 0x1p-126;
    return m <= 0x1p-126 - 0x1p-150;
}

/* nearest: an expression of a, b, c in floats; flushed: of flushed ones; directed: on bits, in the rounding mode; exact:
 * in double precision. */
#define F32_BODY(nearest, flushed, directed, exact)                                                                    \
    uint64_t *d = RESULT;                                                                                              \
    if (i->flags & F_FTZ) {                                                                                            \
        LANES(uint64_t r = DIRECTED ? ptxsim_flush(directed) : finish_flushed(flushed);                                \
              d[l] = LEAST_NORMAL(r) && tiny(exact, i->round) ? r & 0x80000000u : r);                                  \
    } else if (DIRECTED) {                                                                                             \
        LANES(d[l] = directed);                                                                                        \
    } else {                                                                                                           \
        LANES(d[l] = finish(nearest));                                                                                 \
    }                                                                                                                  \
    return saturated(w, i, mask);

#define EA ((double)FLUSHED(a[l]))
#define EB ((double)FLUSHED(b[l]))
#define EC ((double)FLUSHED(c[l]))

#define IA (uint32_t) in(i, a[l])
#define IB (uint32_t) in(i, b[l])
#define IC (uint32_t) in(i, c[l])

LOOP(add_f32) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    F32_BODY(A + B, FLUSHED(a[l]) + FLUSHED(b[l]), ptxsim_f32_add(IA, IB, i->round), EA + EB)
}

LOOP(sub_f32) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    F32_BODY(A - B, FLUSHED(a[l]) - FLUSHED(b[l]), ptxsim_f32_add(IA, IB ^ 0x80000000u, i->round), EA - EB)
}

LOOP(mul_f32) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    F32_BODY(A * B, FLUSHED(a[l]) * FLUSHED(b[l]), ptxsim_f32_mul(IA, IB, i->round), EA * EB)
}

LOOP(fma_f32) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1), *c = SOURCE(2);
    F32_BODY(__builtin_fmaf(A, B, C), __builtin_fmaf(FLUSHED(a[l]), FLUSHED(b[l]), FLUSHED(c[l])),
             ptxsim_f32_fma(IA, IB, IC, i->round), ptxsim_fma_odd(EA, EB, EC))
}

/* .approx and .full may be off by two units in the last place; the exact quotient is given. */
LOOP(div_f32) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    F32_BODY(A / B, FLUSHED(a[l]) / FLUSHED(b[l]), ptxsim_f32_div(IA, IB, i->round), EA / EB)
}

LOOP(rcp_f32) {
    const uint64_t *a = SOURCE(0);
    F32_BODY(1.0f / A, 1.0f / FLUSHED(a[l]), ptxsim_f32_div(0x3f800000u, IA, i->round), 1 / EA)
}

LOOP(sqrt_f32) {
    const uint64_t *a = SOURCE(0);
    F32_BODY(__builtin_sqrtf(A), __builtin_sqrtf(FLUSHED(a[l])), ptxsim_f32_sqrt(IA, i->round), sqrt(EA))
}

/* A relative error, one for each 1/128 of the mantissas: a table that a GPU interpolates is off by parts, too. The result is
 * within 2^-22, of which its rounding is a fourth. */
static double approx_error(double x) {
    int exponent;
    const double mantissa = frexp(x, &exponent);
    if (ptxsim_device.approx == 0 || mantissa == 0.5 || !isfinite(x) || x == 0)
        return 0;
    uint64_t hash = ((uint64_t)(mantissa * 256) + 1) * (2 * ptxsim_device.approx + 1) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
    hash *= 0xbf58476d1ce4e5b9u;
    return ((double)(hash >> 11) * 0x1p-52 - 1) * 0x1.8p-23;
}
/* Between 1/2 and 2 the error of a logarithm is absolute. */
static double approx_log2(double x) {
    const double y = log2(x);
    return x > 0.5 && x < 2 ? y + approx_error(x) : y * (1 + approx_error(x));
}
static double approx_exp2(double x) {
    return exp2(x) * (1 + approx_error(1 + (x - floor(x))));
}

#define F32_APPROX(name, expression)                                                                                   \
    EXEC(name) {                                                                                                       \
        const uint64_t *a = SOURCE(0);                                                                                 \
        uint64_t *d = RESULT;                                                                                          \
        LANES(double x = (double)ptxsim_f32(in(i, a[l])); d[l] = in(i, finish((float)(expression))));                  \
        return NEXT;                                                                                                   \
    }

F32_APPROX(rsqrt_f32, 1.0 / sqrt(x))
F32_APPROX(sin_f32, sin(x))
F32_APPROX(cos_f32, cos(x))
F32_APPROX(lg2_f32, approx_log2(x))
F32_APPROX(ex2_f32, approx_exp2(x))
F32_APPROX(tanh_f32, tanh(x))

#define BITS(v) in(i, v)

static inline bool is_nan32(uint64_t v) {
    return (v & 0x7fffffffu) > 0x7f800000u;
}

LOOP(abs_f32) {
    const uint64_t *a = SOURCE(0);
    uint64_t *d = RESULT;
    LANES(d[l] = is_nan32(a[l]) ? 0x7fffffffu : BITS(a[l]) & 0x7fffffffu);
    return NEXT;
}

LOOP(neg_f32) {
    const uint64_t *a = SOURCE(0);
    uint64_t *d = RESULT;
    LANES(d[l] = is_nan32(a[l]) ? 0x7fffffffu : BITS(a[l]) ^ 0x80000000u);
    return NEXT;
}

/* Ordered as integers, so that -0 is below +0. */
static inline int32_t rank32(uint64_t v) {
    return (int32_t)(v & 0x80000000u ? ~v ^ 0x80000000u : v);
}

static uint64_t extreme32(const struct insn *i, uint64_t a, uint64_t b, bool largest) {
    a = in(i, a);
    b = in(i, b);
    uint64_t sign = (a ^ b) & 0x80000000u, r;
    if (i->flags & F_XORSIGN) {
        a &= 0x7fffffffu;
        b &= 0x7fffffffu;
    }
    if (is_nan32(a) || is_nan32(b)) {
        bool none = (is_nan32(a) && is_nan32(b)) || i->flags & F_NAN;
        if (none)
            return 0x7fffffffu;
        r = is_nan32(a) ? b : a;
    } else {
        r = (rank32(a) < rank32(b)) == largest ? b : a;
    }
    return i->flags & F_XORSIGN ? r | sign : r;
}

LOOP(min_f32) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT;
    LANES(d[l] = extreme32(i, a[l], b[l], false));
    return NEXT;
}

LOOP(max_f32) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT;
    LANES(d[l] = extreme32(i, a[l], b[l], true));
    return NEXT;
}

static inline bool is_nan64(uint64_t v) {
    return (v & ~(1ull << 63)) > 0x7ff0000000000000ull;
}

/* The result is the first NaN of the operands, made quiet. */
static inline uint64_t finish64(uint64_t r, uint64_t first, uint64_t second, uint64_t third) {
    uint64_t nan = is_nan64(first) ? first : is_nan64(second) ? second : is_nan64(third) ? third : r;
    return is_nan64(r) ? nan | 1ull << 51 : r;
}

#define F64_BODY(nearest, directed, ...)                                                                               \
    uint64_t *d = RESULT;                                                                                              \
    if (DIRECTED)                                                                                                      \
        LANES(d[l] = finish64(directed, __VA_ARGS__));                                                                 \
    else                                                                                                               \
        LANES(d[l] = finish64(ptxsim_bits_f64(nearest), __VA_ARGS__));                                                 \
    return NEXT;

LOOP(add_f64) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    F64_BODY(DA + DB, ptxsim_f64_add(a[l], b[l], i->round), b[l], a[l], 0)
}

LOOP(sub_f64) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    F64_BODY(DA - DB, ptxsim_f64_add(a[l], b[l] ^ 1ull << 63, i->round), b[l], a[l], 0)
}

LOOP(mul_f64) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    F64_BODY(DA * DB, ptxsim_f64_mul(a[l], b[l], i->round), b[l], a[l], 0)
}

LOOP(fma_f64) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1), *c = SOURCE(2);
    F64_BODY(__builtin_fma(DA, DB, DC), ptxsim_f64_fma(a[l], b[l], c[l], i->round), b[l], c[l], a[l])
}

LOOP(div_f64) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    F64_BODY(DA / DB, ptxsim_f64_div(a[l], b[l], i->round), a[l], b[l], 0)
}

LOOP(rcp_f64) {
    const uint64_t *a = SOURCE(0);
    F64_BODY(1.0 / DA, ptxsim_f64_div(0x3ff0000000000000ull, a[l], i->round), a[l], 0, 0)
}

LOOP(sqrt_f64) {
    const uint64_t *a = SOURCE(0);
    F64_BODY(__builtin_sqrt(DA), ptxsim_f64_sqrt(a[l], i->round), a[l], 0, 0)
}

/* The coarse .ftz.f64 forms look at, and give, the upper 32 bits only. */
static uint64_t upper(uint64_t v) {
    uint64_t r = v & 0xffffffff00000000ull;
    return (r & 0x7ff0000000000000ull) ? r : r & 1ull << 63;
}

#define F64_APPROX(name, before, after, expression)                                                                    \
    EXEC(name) {                                                                                                       \
        const uint64_t *a = SOURCE(0);                                                                                 \
        uint64_t *d = RESULT;                                                                                          \
        LANES(double x = ptxsim_f64(before(a[l])); d[l] = after(ptxsim_bits_f64(expression)));                         \
        return NEXT;                                                                                                   \
    }

F64_APPROX(rcp_ftz_f64, upper, upper, 1.0 / x)
F64_APPROX(rsqrt_ftz_f64, upper, upper, 1.0 / sqrt(x))
F64_APPROX(rsqrt_f64, , , 1.0 / sqrt(x))

EXEC(abs_f64) {
    const uint64_t *a = SOURCE(0);
    uint64_t *d = RESULT;
    LANES(d[l] = is_nan64(a[l]) ? a[l] : a[l] & ~(1ull << 63));
    return NEXT;
}

EXEC(neg_f64) {
    const uint64_t *a = SOURCE(0);
    uint64_t *d = RESULT;
    LANES(d[l] = is_nan64(a[l]) ? a[l] : a[l] ^ 1ull << 63);
    return NEXT;
}

static inline int64_t rank64(uint64_t v) {
    return (int64_t)(v >> 63 ? ~v ^ 1ull << 63 : v);
}

static uint64_t extreme64(uint64_t a, uint64_t b, bool largest) {
    if (is_nan64(b))
        return is_nan64(a) ? b | 1ull << 51 : a;
    if (is_nan64(a))
        return b;
    return (rank64(a) < rank64(b)) == largest ? b : a;
}

EXEC(min_f64) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT;
    LANES(d[l] = extreme64(a[l], b[l], false));
    return NEXT;
}

EXEC(max_f64) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT;
    LANES(d[l] = extreme64(a[l], b[l], true));
    return NEXT;
}

static bool classify(const struct insn *i, uint64_t v) {
    bool single = i->type[0] == T_F32;
    uint64_t exponent = single ? v >> 23 & 0xff : v >> 52 & 0x7ff, max_exponent = single ? 0xff : 0x7ff;
    bool fraction = (single ? v & 0x7fffff : v & 0xfffffffffffffull) != 0;
    switch (i->op[0]) {
    case OP_FINITE:
        return exponent != max_exponent;
    case OP_INFINITE:
        return exponent == max_exponent && !fraction;
    case OP_NUMBER:
        return exponent != max_exponent || !fraction;
    case OP_NOTANUMBER:
        return exponent == max_exponent && fraction;
    case OP_NORMAL:
        return (exponent != 0 || !fraction) && exponent != max_exponent; /* zero counts */
    default:
        return exponent == 0 && fraction;
    }
}

EXEC(testp) {
    const uint64_t *a = SOURCE(0);
    uint64_t *d = RESULT;
    LANES(d[l] = classify(i, a[l]));
    return NEXT;
}

/* The sign is the first operand's, the magnitude the second's. */
EXEC(copysign) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT, sign = 1ull << (i->bits - 1);
    LANES(d[l] = (a[l] & sign) | (b[l] & ~sign & i->mask));
    return NEXT;
}
