/* Moves, packs, address conversions and number conversions. */
#include "execute.h"

#include <time.h>

static uint64_t clock_value(enum ptxsim_special id) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return id == SR_CLOCK_HI || id == SR_GLOBALTIMER_HI ? ns >> 32 : ns;
}

PTXSIM_CLONES static enum ptxsim_next unpack(struct warp *w, const struct insn *i, uint32_t mask) {
    const uint64_t *a = SOURCE(0);
    uint32_t bits = i->bits / i->nv;
    uint64_t keep = (1ull << bits) - 1;
    for (uint32_t n = 0; n < i->nv; n++) {
        uint64_t *d = w->regs + (size_t)i->v[n] * PTXSIM_WARP;
        uint32_t shift = n * bits;
        uint64_t value[PTXSIM_WARP];
        memcpy(value, a, sizeof value);
        ptxsim_define(w, i->v[n], mask, ptxsim_defined(w, i->s[0]));
        LANES(d[l] = value[l] >> shift & keep);
    }
    return NEXT;
}

PTXSIM_CLONES static enum ptxsim_next join(struct warp *w, const struct insn *i, uint32_t mask) {
    uint64_t sum[PTXSIM_WARP] = {0};
    uint32_t bits = i->bits / i->nv, defined = ~0u;
    uint64_t *d = RESULT;
    for (uint32_t n = 0; n < i->nv; n++) {
        const uint64_t *a = ptxsim_source(w, i->v[n]);
        defined &= ptxsim_defined(w, i->v[n]);
        for (uint32_t l = 0; l < PTXSIM_WARP; l++)
            sum[l] |= a[l] << (n * bits);
    }
    ptxsim_define(w, i->d[0], mask, defined);
    LANES(d[l] = sum[l]);
    return NEXT;
}

LOOP(mov) {
    if (i->nv)
        return i->ns ? unpack(w, i, mask) : join(w, i, mask);
    uint64_t *d = RESULT;
    if (i->s[0] == SLOT_NONE) {
        uint64_t now = clock_value((enum ptxsim_special)i->offset);
        LANES(d[l] = now & i->mask);
        ptxsim_define(w, i->d[0], mask, ~0u);
        return NEXT;
    }
    const uint64_t *a = SOURCE(0);
    uint64_t add = (uint64_t)i->offset;
    LANES(d[l] = (a[l] + add) & i->mask);
    ptxsim_define(w, i->d[0], mask, ptxsim_defined(w, i->s[0]));
    return NEXT;
}

static uint64_t window(enum ptxsim_space space) {
    return space == SP_SHARED  ? PTXSIM_SHARED_GENERIC
           : space == SP_LOCAL ? PTXSIM_LOCAL_GENERIC
           : space == SP_PARAM ? PTXSIM_PARAM_GENERIC
                               : 0;
}

/* A generic address outside the space it is converted to gives nothing that could be used. */
EXEC(cvta) {
    const uint64_t *a = SOURCE(0);
    uint64_t *d = RESULT, base = window((enum ptxsim_space)i->space[0]), add = (uint64_t)i->offset;
    uint32_t defined = ptxsim_defined(w, i->s[0]);
    if (i->flags & F_TO) {
        for (uint32_t l = 0; l < PTXSIM_WARP; l++) {
            bool inside = base ? a[l] - base < PTXSIM_WINDOW : ptxsim_generic_space(a[l]) == SP_GLOBAL;
            if (!inside)
                defined &= ~(1u << l);
        }
        LANES(d[l] = a[l] - base);
    } else {
        LANES(d[l] = a[l] + base + add);
    }
    ptxsim_define(w, i->d[0], mask, defined);
    return NEXT;
}

EXEC(isspacep) {
    const uint64_t *a = SOURCE(0);
    uint64_t *d = RESULT;
    for (uint32_t l = 0; l < PTXSIM_WARP; l++) {
        if (!(mask >> l & 1))
            continue;
        enum ptxsim_space is = ptxsim_generic_space(a[l]);
        enum ptxsim_space want = (enum ptxsim_space)i->space[0];
        bool own = (a[l] - PTXSIM_SHARED_GENERIC) / PTXSIM_SHARED_STEP == w->cta->rank + 1;
        bool constant = is == SP_GLOBAL && a[l] - PTXSIM_DEVICE_BASE < PTXSIM_DEVICE_SPAN &&
                        ptxsim_shadow[a[l] - PTXSIM_DEVICE_BASE] & SH_CONST;
        d[l] = want == SP_SHARED ? is == SP_CLUSTER && own : want == SP_CONST ? constant : is == want && !constant;
    }
    ptxsim_define(w, i->d[0], mask, ptxsim_defined(w, i->s[0]));
    return NEXT;
}

static inline uint64_t widen(uint64_t v, const struct insn *i) {
    v &= i->mask;
    if (!ptxsim_is_signed(i->type[0]) || i->dbits == i->bits)
        return v;
    return (uint64_t)ptxsim_signed(v, i->shift) & (i->dbits == 64 ? ~0ull : (1ull << i->dbits) - 1);
}

LOOP(cvt) {
    const uint64_t *a = SOURCE(0);
    uint64_t *d = RESULT;
    int from = i->type[1], to = i->type[0];
    uint32_t shift = 64 - ptxsim_bits(from);
    if (!ptxsim_is_float(from) && !ptxsim_is_float(to) && !(i->flags & F_SAT)) {
        if (ptxsim_is_signed(from))
            LANES(d[l] = widen((uint64_t)ptxsim_signed(a[l], shift), i));
        else
            LANES(d[l] = widen(a[l] << shift >> shift, i));
    } else if (from == T_S32 && to == T_F32 && i->round == RND_RN) {
        LANES(d[l] = ptxsim_bits_f32((float)(int32_t)a[l]));
    } else if (from == T_F32 && to == T_F64 && !i->flags) {
        LANES(d[l] = ptxsim_bits_f64((double)ptxsim_f32(a[l])));
    } else if (from == T_F16 && to == T_F32 && !i->flags) {
        LANES(float f = ptxsim_half_to_float((uint32_t)a[l]); d[l] = f != f ? 0x7fffffffu : ptxsim_bits_f32(f));
    } else if (from == T_F32 && to == T_F16 && i->round == RND_RN && !i->flags) {
        LANES(d[l] = ptxsim_float_to_half((uint32_t)a[l]));
    } else {
        LANES(d[l] = widen(ptxsim_convert(a[l], from, to, i->round, i->flags), i));
    }
    return NEXT;
}

/* The first source becomes the upper half. */
EXEC(cvt_pair) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t *d = RESULT;
    int to = i->type[0] == T_F16X2 ? T_F16 : T_BF16;
    LANES(d[l] = ptxsim_convert(a[l], T_F32, to, i->round, i->flags) << 16 |
                 ptxsim_convert(b[l], T_F32, to, i->round, i->flags));
    return NEXT;
}

/* Nearest, ties away from zero, on the upper 19 bits. */
EXEC(cvt_tf32) {
    const uint64_t *a = SOURCE(0);
    uint64_t *d = RESULT;
    LANES(d[l] = ((a[l] & 0x7f800000u) == 0x7f800000u ? a[l] : a[l] + 0x1000) & 0xffffe000u);
    return NEXT;
}

EXEC(activemask) {
    uint64_t *d = RESULT;
    LANES(d[l] = mask);
    ptxsim_define(w, i->d[0], mask, ~0u);
    return NEXT;
}
