/* Half precision and bfloat16, single and in pairs. An operation is computed in double precision, whose 53 bits make
 * the one further rounding harmless for sums and products; fma rounds to odd first. */
#include "execute.h"

#include <math.h>

typedef double half_operation(double a, double b, double c);

static bool is_bf16(const struct insn *i) {
    return i->type[0] == T_BF16 || i->type[0] == T_BF16X2;
}

static double widen(const struct insn *i, uint32_t h) {
    if (is_bf16(i))
        return (double)ptxsim_f32((uint64_t)h << 16);
    if (i->flags & F_FTZ && !(h & 0x7c00))
        h &= 0x8000;
    return (double)ptxsim_half_to_float(h);
}

static uint32_t narrow(const struct insn *i, double r) {
    if (i->flags & F_SAT)
        r = r >= 1 ? 1 : r > 0 ? r : 0;
    if (i->flags & F_RELU && r <= 0)
        r = 0;
    if (r != r)
        return 0x7fff;
    if (is_bf16(i))
        return ptxsim_double_to_bf16(r, RND_RN);
    /* A number below the least normal number that rounds to it is not flushed, like in single precision. */
    if (i->flags & F_FTZ && fabs(r) < 0x1p-14 - 0x1p-26)
        r = copysign(0, r);
    return ptxsim_double_to_half(r, RND_RN);
}

static enum ptxsim_next half(struct warp *w, const struct insn *i, uint32_t mask, half_operation *act) {
    uint64_t *d = RESULT;
    for (uint32_t l = 0; l < PTXSIM_WARP; l++) {
        if (!(mask >> l & 1))
            continue;
        uint64_t r = 0;
        for (uint32_t at = 0; at < i->bits; at += 16) {
            double v[3] = {0, 0, 0};
            for (uint32_t n = 0; n < i->ns; n++)
                v[n] = widen(i, SOURCE(n)[l] >> at & 0xffff);
            r |= (uint64_t)narrow(i, act(v[0], v[1], v[2])) << at;
        }
        d[l] = r;
    }
    return NEXT;
}

static double plus(double a, double b, double c) {
    return (void)c, a + b;
}
static double minus(double a, double b, double c) {
    return (void)c, a - b;
}
static double times(double a, double b, double c) {
    return (void)c, a * b;
}
static double power(double a, double b, double c) {
    return (void)b, (void)c, exp2(a);
}
static double hyperbolic(double a, double b, double c) {
    return (void)b, (void)c, tanh(a);
}

EXEC(add_half) {
    return half(w, i, mask, plus);
}
EXEC(sub_half) {
    return half(w, i, mask, minus);
}
EXEC(mul_half) {
    return half(w, i, mask, times);
}
EXEC(fma_half) {
    return half(w, i, mask, ptxsim_fma_odd);
}
EXEC(ex2_half) {
    return half(w, i, mask, power);
}
EXEC(tanh_half) {
    return half(w, i, mask, hyperbolic);
}

/* Every NaN gets the one pattern. */
static uint64_t settle(const struct insn *i, uint64_t before, uint64_t after) {
    uint32_t infinity = is_bf16(i) ? 0x7f80 : 0x7c00;
    for (uint32_t at = 0; at < i->bits; at += 16)
        if ((before >> at & 0x7fff) > infinity)
            after = (after & ~(0xffffull << at)) | 0x7fffull << at;
    return after;
}

static uint64_t signs(const struct insn *i) {
    return i->bits == 32 ? 0x80008000u : 0x8000u;
}

static uint64_t flush_pair(const struct insn *i, uint64_t v) {
    if (!(i->flags & F_FTZ))
        return v;
    if (!(v & 0x7c00))
        v &= 0xffff8000u;
    if (!(v & 0x7c000000u))
        v &= 0x8000ffffu;
    return v;
}

EXEC(neg_half) {
    const uint64_t *a = SOURCE(0);
    uint64_t *d = RESULT;
    LANES(d[l] = settle(i, a[l], flush_pair(i, a[l]) ^ signs(i)));
    return NEXT;
}

EXEC(abs_half) {
    const uint64_t *a = SOURCE(0);
    uint64_t *d = RESULT;
    LANES(d[l] = settle(i, a[l], flush_pair(i, a[l]) & ~signs(i)));
    return NEXT;
}

static uint32_t extreme(const struct insn *i, uint32_t a, uint32_t b, bool largest) {
    uint32_t infinity = is_bf16(i) ? 0x7f80 : 0x7c00;
    bool a_nan = (a & 0x7fff) > infinity, b_nan = (b & 0x7fff) > infinity;
    if ((a_nan && b_nan) || ((a_nan || b_nan) && i->flags & F_NAN))
        return 0x7fff;
    if (a_nan || b_nan)
        return a_nan ? b : a;
    int32_t x = a & 0x8000 ? -(int32_t)(a & 0x7fff) - 1 : (int32_t)a;
    int32_t y = b & 0x8000 ? -(int32_t)(b & 0x7fff) - 1 : (int32_t)b;
    return (x < y) == largest ? b : a;
}

static enum ptxsim_next extremes(struct warp *w, const struct insn *i, uint32_t mask, bool largest) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT;
    for (uint32_t l = 0; l < PTXSIM_WARP; l++) {
        if (!(mask >> l & 1))
            continue;
        uint64_t x = flush_pair(i, a[l]), y = flush_pair(i, b[l]), r = 0;
        for (uint32_t at = 0; at < i->bits; at += 16)
            r |= (uint64_t)extreme(i, x >> at & 0xffff, y >> at & 0xffff, largest) << at;
        d[l] = r;
    }
    return NEXT;
}

EXEC(min_half) {
    return extremes(w, i, mask, false);
}
EXEC(max_half) {
    return extremes(w, i, mask, true);
}
