/* Loads, stores and atomics. memory.c decides whether an address is valid. */
#include "execute.h"

static inline uint64_t read_bytes(const uint8_t *p, uint32_t bytes) {
    uint64_t v = 0;
    switch (bytes) {
    case 1:
        return *p;
    case 2:
        memcpy(&v, p, 2);
        return v;
    case 4:
        memcpy(&v, p, 4);
        return v;
    default:
        memcpy(&v, p, 8);
        return v;
    }
}

static inline void write_bytes(uint8_t *p, uint64_t v, uint32_t bytes) {
    switch (bytes) {
    case 1:
        *p = (uint8_t)v;
        break;
    case 2:
        memcpy(p, &v, 2);
        break;
    case 4:
        memcpy(p, &v, 4);
        break;
    default:
        memcpy(p, &v, 8);
        break;
    }
}

static inline uint64_t extend(uint64_t v, const struct insn *i) {
    if (!ptxsim_is_signed(i->type[0]) || i->dbits == i->bits)
        return v;
    return (uint64_t)ptxsim_signed(v, i->shift) & (i->dbits == 64 ? ~0ull : (1ull << i->dbits) - 1);
}

static bool all_set(const uint8_t *init, uint32_t bytes) {
    bool all = true;
    for (uint32_t b = 0; b < bytes; b++)
        all = all && init[b];
    return all;
}

static enum ptxsim_next load(struct warp *w, const struct insn *i, uint32_t mask, enum ptxsim_space space) {
    const uint64_t *base = SOURCE(0);
    uint64_t address[PTXSIM_WARP];
    uint32_t each = i->bytes, bytes = each * i->nv;
    ptxsim_need(w, i, i->s[0], mask, "the address");
    ptxsim_need_wait(w, i, mask, space, i->s[0], i->offset);
    for (uint32_t l = 0; l < PTXSIM_WARP; l++)
        address[l] = base[l] + (uint64_t)i->offset;
    uint32_t defined[8];
    for (uint32_t n = 0; n < i->nv; n++)
        defined[n] = ~0u;
    for (uint32_t m = mask; m; m &= m - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(m);
        uint8_t *init;
        const uint8_t *p = ptxsim_access(w, i, (int)l, space, address[l], bytes, ACC_LOAD, &init);
        for (uint32_t n = 0; n < i->nv; n++) {
            w->regs[(size_t)i->v[n] * PTXSIM_WARP + l] = extend(read_bytes(p + n * each, each), i);
            if (init && !all_set(init + n * each, each))
                defined[n] &= ~(1u << l);
        }
    }
    for (uint32_t n = 0; n < i->nv; n++)
        ptxsim_define(w, i->v[n], mask, defined[n]);
    return NEXT;
}

static enum ptxsim_next store(struct warp *w, const struct insn *i, uint32_t mask, enum ptxsim_space space) {
    const uint64_t *base = SOURCE(0);
    uint32_t each = i->bytes, bytes = each * i->nv;
    ptxsim_need(w, i, i->s[0], mask, "the address");
    ptxsim_need_wait(w, i, mask, space, i->s[0], i->offset);
    for (uint32_t m = mask; m; m &= m - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(m);
        uint8_t *init;
        uint8_t *p = ptxsim_access(w, i, (int)l, space, base[l] + (uint64_t)i->offset, bytes, ACC_STORE, &init);
        for (uint32_t n = 0; n < i->nv; n++) {
            bool defined = ptxsim_defined(w, i->v[n]) >> l & 1;
            write_bytes(p + n * each, ptxsim_source(w, i->v[n])[l], each);
            if (init)
                memset(init + n * each, defined, each);
            else if (!defined)
                ptxsim_need(w, i, i->v[n], 1u << l, "the stored value");
        }
    }
    return NEXT;
}

EXEC(ld) {
    return load(w, i, mask, (enum ptxsim_space)i->space[0]);
}

EXEC(ldu) {
    return load(w, i, mask, (enum ptxsim_space)i->space[0]);
}

EXEC(st) {
    return store(w, i, mask, (enum ptxsim_space)i->space[0]);
}

/* A kernel's parameter is the same for all lanes; a called function's lies in the thread's frame. */
EXEC(ld_param) {
    if (i->frame)
        return load(w, i, mask, SP_LOCAL);
    if (!(i->s[0] & SLOT_POOL))
        return load(w, i, mask, SP_PARAM);
    uint8_t *init;
    const uint8_t *p = ptxsim_access(w, i, __builtin_ctz(mask), SP_PARAM, SOURCE(0)[0] + (uint64_t)i->offset,
                                     (uint32_t)i->bytes * i->nv, ACC_LOAD, &init);
    for (uint32_t n = 0; n < i->nv; n++) {
        uint64_t value = extend(read_bytes(p + n * i->bytes, i->bytes), i);
        uint64_t *d = w->regs + (size_t)i->v[n] * PTXSIM_WARP;
        LANES(d[l] = value);
        ptxsim_define(w, i->v[n], mask, ~0u);
    }
    return NEXT;
}

EXEC(st_param) {
    return store(w, i, mask, SP_LOCAL);
}

EXEC(prefetch) {
    (void)w, (void)i, (void)mask;
    return NEXT;
}

/* Every access takes effect at once, so there is nothing to order. */
EXEC(fence) {
    (void)w, (void)i, (void)mask;
    return NEXT;
}

static uint64_t add_floats(const struct insn *i, uint64_t a, uint64_t b, bool flush) {
    if (i->type[0] == T_F64)
        return ptxsim_f64_add(a, b, RND_RN);
    if (flush) {
        a = ptxsim_flush(a);
        b = ptxsim_flush(b);
    }
    float sum = ptxsim_f32(a) + ptxsim_f32(b);
    uint64_t r = sum != sum ? 0x7fffffffu : ptxsim_bits_f32(sum);
    return flush ? ptxsim_flush(r) : r;
}

/* Single precision sums in global memory flush denormals. Sums in shared memory do not. */
uint64_t ptxsim_atomic_result(const struct insn *i, uint64_t old, uint64_t b, uint64_t c, bool is_global) {
    bool is_signed = ptxsim_is_signed(i->type[0]);
    bool less = is_signed ? ptxsim_signed(b, i->shift) < ptxsim_signed(old, i->shift) : b < old;
    switch (i->op[0]) {
    case OP_ADD:
        return ptxsim_is_float(i->type[0]) ? add_floats(i, old, b, is_global) : old + b;
    case OP_MIN:
        return less ? b : old;
    case OP_MAX:
        return less ? old : b;
    case OP_INC:
        return old >= b ? 0 : old + 1;
    case OP_DEC:
        return old == 0 || old > b ? b : old - 1;
    case OP_AND:
        return old & b;
    case OP_OR:
        return old | b;
    case OP_XOR:
        return old ^ b;
    case OP_CAS:
        return old == b ? c : old;
    default:
        return b;
    }
}

static enum ptxsim_next atomic(struct warp *w, const struct insn *i, uint32_t mask) {
    const uint64_t *base = SOURCE(0), *b = SOURCE(1), *c = i->ns > 2 ? SOURCE(2) : b;
    uint64_t old[PTXSIM_WARP];
    for (uint32_t n = 0; n < i->ns; n++)
        ptxsim_need(w, i, i->s[n], mask, n ? "an atomic's operand" : "the address");
    ptxsim_need_wait(w, i, mask, (enum ptxsim_space)i->space[0], i->s[0], i->offset);
    for (uint32_t m = mask; m; m &= m - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(m);
        uint64_t address = base[l] + (uint64_t)i->offset;
        enum ptxsim_space space = (enum ptxsim_space)i->space[0];
        bool is_global = space == SP_GLOBAL || (space == SP_GENERIC && ptxsim_generic_space(address) == SP_GLOBAL);
        uint8_t *init;
        uint8_t *p = ptxsim_access(w, i, (int)l, space, address, i->bytes, ACC_ATOMIC, &init);
        old[l] = read_bytes(p, i->bytes);
        write_bytes(p, ptxsim_atomic_result(i, old[l], b[l], c[l], is_global), i->bytes);
    }
    if (i->nd) {
        uint64_t *d = RESULT;
        LANES(d[l] = old[l]);
        ptxsim_define(w, i->d[0], mask, ~0u);
    }
    return NEXT;
}

EXEC(atom) {
    return atomic(w, i, mask);
}
EXEC(red) {
    return atomic(w, i, mask);
}
