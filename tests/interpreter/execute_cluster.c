/* Thread block clusters, mbarriers and asynchronous copies. A copy takes effect when it is issued, but what it has
 * written to shared memory may not be touched until somebody waits for it. What a barrier or mbarrier orders is ordered
 * for the race check too. */
#include "execute.h"

/* Waited for either by the lane that issued it, through its group, or by anybody through an mbarrier. */
struct pending_copy {
    struct cta *owner;
    uint32_t offset, bytes;
    uint32_t lane, group;
    const uint8_t *mbarrier;
};

static void set_state(const struct pending_copy *copy, uint8_t state) {
    memset(copy->owner->shared_init + copy->offset, state, copy->bytes);
}

/* Notes that these bytes, just written, are under way. */
static void defer(struct warp *w, int lane, const uint8_t *data, uint32_t bytes, const uint8_t *mbarrier) {
    struct launch *launch = w->launch;
    struct copies *copies = mbarrier ? &launch->pending : &w->pending;
    struct pending_copy copy = {NULL, 0, bytes, (uint32_t)lane, w->async_group[lane], mbarrier};
    for (uint32_t c = 0; c < launch->nctas; c++) {
        struct cta *cta = &launch->ctas[c];
        if (data >= cta->shared && data < cta->shared + cta->shared_bytes)
            copy.owner = cta;
    }
    if (!copy.owner)
        return;
    copy.offset = (uint32_t)(data - copy.owner->shared);
    set_state(&copy, SHARED_PENDING);
    copies->at = ptxsim_grow(copies->at, copies->count, &copies->room, sizeof copy);
    copies->at[copies->count++] = copy;
}

/* What waits for an mbarrier has arrived. */
static void settle(struct launch *launch, const uint8_t *mbarrier) {
    uint32_t kept = 0;
    for (uint32_t n = 0; n < launch->pending.count; n++) {
        struct pending_copy *copy = &launch->pending.at[n];
        if (copy->mbarrier == mbarrier)
            set_state(copy, SHARED_WRITTEN);
        else
            launch->pending.at[kept++] = *copy;
    }
    launch->pending.count = kept;
}

/* The groups of these lanes have arrived but for the last `left` of each. */
static void settle_groups(struct warp *w, uint32_t mask, uint32_t left) {
    uint32_t kept = 0;
    for (uint32_t n = 0; n < w->pending.count; n++) {
        struct pending_copy *copy = &w->pending.at[n];
        if (mask >> copy->lane & 1 && copy->group + left < w->async_group[copy->lane])
            set_state(copy, SHARED_WRITTEN);
        else
            w->pending.at[kept++] = *copy;
    }
    w->pending.count = kept;
}

/* An mbarrier's 64 bits, which a program must not look into. */
enum { EXPECTED_AT = 0, PENDING_AT = 20, TX_AT = 40, COUNT_BITS = 20, TX_BITS = 21, PHASE_AT = 63 };

struct mbarrier {
    uint32_t expected, pending;
    int32_t tx;
    uint32_t phase;
};

static struct mbarrier unpack(uint64_t word) {
    struct mbarrier b;
    b.expected = word >> EXPECTED_AT & ((1u << COUNT_BITS) - 1);
    b.pending = word >> PENDING_AT & ((1u << COUNT_BITS) - 1);
    b.tx = (int32_t)ptxsim_signed(word >> TX_AT, 64 - TX_BITS);
    b.phase = (uint32_t)(word >> PHASE_AT);
    return b;
}

static uint64_t repack(struct mbarrier b) {
    return (uint64_t)b.expected << EXPECTED_AT | (uint64_t)b.pending << PENDING_AT |
           ((uint64_t)(uint32_t)b.tx & ((1u << TX_BITS) - 1)) << TX_AT | (uint64_t)b.phase << PHASE_AT;
}

static uint8_t *barrier_at(struct warp *w, const struct insn *i, int lane, enum ptxsim_space space, uint64_t address,
                           enum ptxsim_access access) {
    uint8_t *init;
    enum ptxsim_space is = space == SP_GENERIC ? ptxsim_generic_space(address) : space;
    if (is != SP_SHARED && is != SP_CLUSTER)
        ptxsim_fault(w, i, lane, E_INVALID_ADDRESS_SPACE, "mbarrier at 0x%llx is not in shared memory",
                     (unsigned long long)address);
    return ptxsim_access(w, i, lane, space, address, 8, access, &init);
}

/* Takes arrivals and transferred bytes into account; gives the word as it was. */
static uint64_t update(struct warp *w, const struct insn *i, int lane, enum ptxsim_space space, uint64_t address,
                       uint32_t arrivals, int64_t expect, int64_t complete) {
    uint8_t *p = barrier_at(w, i, lane, space, address, ACC_ATOMIC);
    uint64_t old;
    memcpy(&old, p, sizeof old);
    struct mbarrier b = unpack(old);
    if (b.expected == 0)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "no mbarrier at 0x%llx", (unsigned long long)address);
    if (arrivals > b.pending)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "mbarrier at 0x%llx: %u arrivals where %u are pending",
                     (unsigned long long)address, arrivals, b.pending);
    int64_t tx = b.tx + expect - complete;
    if (tx >= 1 << (TX_BITS - 1) || tx < -(1 << (TX_BITS - 1)))
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "mbarrier at 0x%llx: transaction count %lld",
                     (unsigned long long)address, (long long)tx);
    b.tx = (int32_t)tx;
    b.pending -= arrivals;
    if (b.pending == 0 && b.tx == 0) {
        b.phase ^= 1;
        b.pending = b.expected;
    }
    uint64_t now = repack(b);
    memcpy(p, &now, sizeof now);
    return old;
}

#define SPACE0 ((enum ptxsim_space)i->space[0])
#define ADDRESS(l) (SOURCE(0)[l] + (uint64_t)i->offset)
#define EACH_LANE(...)                                                                                                 \
    for (uint32_t m = mask; m; m &= m - 1) {                                                                           \
        int l = __builtin_ctz(m);                                                                                      \
        __VA_ARGS__;                                                                                                   \
    }

static void need_all(struct warp *w, const struct insn *i, uint32_t mask) {
    for (uint32_t n = 0; n < i->ns; n++)
        ptxsim_need(w, i, i->s[n], mask, "an operand");
}

EXEC(mbarrier_init) {
    need_all(w, i, mask);
    EACH_LANE({
        uint64_t count = SOURCE(1)[l];
        uint8_t *p = barrier_at(w, i, l, SPACE0, ADDRESS(l), ACC_STORE);
        if (count == 0 || count >= 1u << COUNT_BITS)
            ptxsim_fault(w, i, l, E_LAUNCH_FAILED, "mbarrier count %llu", (unsigned long long)count);
        uint64_t word = repack((struct mbarrier){(uint32_t)count, (uint32_t)count, 0, 0});
        memcpy(p, &word, sizeof word);
    })
    return NEXT;
}

EXEC(mbarrier_inval) {
    need_all(w, i, mask);
    EACH_LANE({
        uint8_t *p = barrier_at(w, i, l, SPACE0, ADDRESS(l), ACC_ATOMIC);
        memset(p, 0, 8);
    })
    return NEXT;
}

EXEC(mbarrier_arrive) {
    need_all(w, i, mask);
    EACH_LANE({
        uint32_t count = i->ns > 1 ? (uint32_t)SOURCE(1)[l] : 1;
        RESULT[l] = update(w, i, l, SPACE0, ADDRESS(l), count, 0, 0);
    })
    ptxsim_define(w, i->d[0], mask, ~0u);
    return NEXT;
}

EXEC(mbarrier_arrive_expect) {
    need_all(w, i, mask);
    EACH_LANE(RESULT[l] = update(w, i, l, SPACE0, ADDRESS(l), 1, (int64_t)SOURCE(1)[l], 0))
    ptxsim_define(w, i->d[0], mask, ~0u);
    return NEXT;
}

EXEC(mbarrier_expect) {
    need_all(w, i, mask);
    EACH_LANE(update(w, i, l, SPACE0, ADDRESS(l), 0, (int64_t)SOURCE(1)[l], 0))
    return NEXT;
}

static enum ptxsim_next wait_for(struct warp *w, const struct insn *i, uint32_t mask, bool parity) {
    bool done = false;
    need_all(w, i, mask);
    EACH_LANE({
        uint64_t word;
        uint64_t state = SOURCE(1)[l];
        const uint8_t *p = barrier_at(w, i, l, SPACE0, ADDRESS(l), ACC_ATOMIC);
        memcpy(&word, p, sizeof word);
        struct mbarrier b = unpack(word);
        if (b.expected == 0)
            ptxsim_fault(w, i, l, E_LAUNCH_FAILED, "no mbarrier at 0x%llx", (unsigned long long)ADDRESS(l));
        RESULT[l] = b.phase != (parity ? state & 1 : state >> PHASE_AT);
        if (RESULT[l])
            settle(w->launch, p);
        done = done || RESULT[l];
    })
    if (done)
        ptxsim_shared_cluster_barrier(w->cta);
    ptxsim_define(w, i->d[0], mask, ~0u);
    return NEXT;
}

EXEC(mbarrier_wait) {
    return wait_for(w, i, mask, false);
}
EXEC(mbarrier_wait_parity) {
    return wait_for(w, i, mask, true);
}

EXEC(mapa) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1);
    uint64_t window = i->space[0] == SP_CLUSTER ? 0 : PTXSIM_SHARED_GENERIC;
    need_all(w, i, mask);
    EACH_LANE({
        uint64_t address = a[l] + (uint64_t)i->offset - window;
        if (b[l] >= w->launch->nctas)
            ptxsim_fault(w, i, l, E_LAUNCH_FAILED, "the cluster has no block %u", (unsigned)b[l]);
        if (address < PTXSIM_SHARED_STEP || address >= PTXSIM_SHARED_STEP * (PTXSIM_CLUSTER_MAX + 1ull))
            ptxsim_fault(w, i, l, E_INVALID_ADDRESS_SPACE, "0x%llx is no shared address", (unsigned long long)a[l]);
        RESULT[l] = (window + (b[l] + 1) * PTXSIM_SHARED_STEP + address % PTXSIM_SHARED_STEP) & i->mask;
    })
    ptxsim_define(w, i->d[0], mask, ~0u);
    return NEXT;
}

EXEC(getctarank) {
    uint64_t window = i->space[0] == SP_CLUSTER ? 0 : PTXSIM_SHARED_GENERIC;
    need_all(w, i, mask);
    EACH_LANE(RESULT[l] = (SOURCE(0)[l] - window) / PTXSIM_SHARED_STEP - 1)
    ptxsim_define(w, i->d[0], mask, ~0u);
    return NEXT;
}

/* Completes the cluster barrier's phase when every thread that still runs has arrived. */
void ptxsim_cluster_check(struct launch *launch) {
    uint32_t live = 0;
    for (uint32_t c = 0; c < launch->nctas; c++)
        live += launch->ctas[c].live;
    if (!launch->cluster_arrived || launch->cluster_arrived < live)
        return;
    launch->cluster_arrived = 0;
    launch->cluster_phase++;
    for (uint32_t c = 0; c < launch->nctas; c++) {
        struct cta *cta = &launch->ctas[c];
        for (uint32_t n = 0; n < cta->nwarps; n++) {
            struct warp *w = &cta->warps[n];
            w->cluster_arrived &= ~w->at_cluster;
            w->runnable |= w->at_cluster;
            for (uint32_t m = w->at_cluster; m; m &= m - 1)
                w->pc[__builtin_ctz(m)]++;
            w->at_cluster = 0;
        }
        ptxsim_shared_cluster_barrier(cta);
    }
}

EXEC(cluster_arrive) {
    if (w->cluster_arrived & mask)
        ptxsim_fault(w, i, __builtin_ctz(w->cluster_arrived & mask), E_LAUNCH_FAILED,
                     "cluster barrier: arrives twice without waiting");
    w->cluster_arrived |= mask;
    w->launch->cluster_arrived += (uint32_t)__builtin_popcount(mask);
    EACH_LANE(w->cluster_phase[l] = w->launch->cluster_phase)
    ptxsim_advance(w, w->cur, w->cur_pc + 1);
    ptxsim_cluster_check(w->launch);
    return RESCHEDULE;
}

EXEC(cluster_wait) {
    uint32_t wait = 0;
    if (mask & ~w->cluster_arrived)
        ptxsim_fault(w, i, __builtin_ctz(mask & ~w->cluster_arrived), E_LAUNCH_FAILED,
                     "cluster barrier: waits without having arrived");
    EACH_LANE(wait |= (uint32_t)(w->cluster_phase[l] == w->launch->cluster_phase) << l)
    ptxsim_advance(w, w->cur, w->cur_pc + 1);
    ptxsim_advance(w, wait, w->cur_pc);
    w->at_cluster |= wait;
    w->runnable &= ~wait;
    w->cluster_arrived &= ~(mask & ~wait);
    return RESCHEDULE;
}

/* Copies in pieces that the two access checks see whole; to shared memory, for an mbarrier to wait for. */
static void copy(struct warp *w, const struct insn *i, int lane, enum ptxsim_space to_space, uint64_t to,
                 enum ptxsim_space from_space, uint64_t from, uint32_t bytes, const uint8_t *mbarrier) {
    const uint32_t piece = 16;
    for (uint32_t at = 0; at < bytes; at += piece) {
        uint8_t *init;
        const uint8_t *p = ptxsim_access(w, i, lane, from_space, from + at, piece, ACC_LOAD, &init);
        uint8_t *q = ptxsim_access(w, i, lane, to_space, to + at, piece, ACC_STORE, &init);
        memcpy(q, p, piece);
        if (mbarrier)
            defer(w, lane, q, piece, mbarrier);
    }
}

EXEC(cp_async) {
    uint32_t size = i->immediate;
    need_all(w, i, mask);
    EACH_LANE({
        uint64_t to = SOURCE(0)[l] + (uint64_t)i->offset, from = SOURCE(1)[l] + (uint64_t)i->offset_more[0];
        uint32_t take = i->ns > 2 ? (uint32_t)SOURCE(2)[l] : size;
        uint8_t *init;
        if (size != 4 && size != 8 && size != 16)
            ptxsim_fault(w, i, l, E_ILLEGAL_INSTRUCTION, "cp.async of %u bytes", size);
        if (from & (size - 1))
            ptxsim_fault(w, i, l, E_MISALIGNED, "misaligned cp.async of %u bytes at 0x%llx", size,
                         (unsigned long long)from);
        uint8_t *p = ptxsim_access(w, i, l, SP_SHARED, to, size, ACC_STORE, &init);
        memset(p, 0, size);
        if (take >= size)
            memcpy(p, ptxsim_access(w, i, l, SP_GLOBAL, from, size, ACC_LOAD, &init), size);
        for (uint32_t b = 0; take < size && b < take; b++)
            p[b] = *ptxsim_access(w, i, l, SP_GLOBAL, from + b, 1, ACC_LOAD, &init);
        defer(w, l, p, size, NULL);
    })
    return NEXT;
}

EXEC(cp_async_commit) {
    (void)i;
    EACH_LANE(w->async_group[l]++)
    return NEXT;
}

EXEC(cp_async_wait) {
    settle_groups(w, mask, i->immediate);
    return NEXT;
}

/* What no group has been made of, too. */
EXEC(cp_async_wait_all) {
    (void)i;
    EACH_LANE(w->async_group[l]++)
    settle_groups(w, mask, 0);
    return NEXT;
}

/* Bulk copies to global memory are seen by everybody at once; nothing is held back until they are waited for. */
EXEC(cp_bulk_commit) {
    (void)w, (void)i, (void)mask;
    return NEXT;
}

EXEC(cp_bulk_wait) {
    (void)w, (void)i, (void)mask;
    return NEXT;
}

static uint32_t bulk_size(struct warp *w, const struct insn *i, int lane) {
    uint32_t bytes = (uint32_t)SOURCE(2)[lane];
    if (bytes % 16)
        ptxsim_fault(w, i, lane, E_MISALIGNED, "bulk copy of %u bytes, no multiple of 16", bytes);
    return bytes;
}

EXEC(cp_bulk_load) {
    need_all(w, i, mask);
    EACH_LANE({
        uint32_t bytes = bulk_size(w, i, l);
        uint64_t mbarrier = SOURCE(3)[l] + (uint64_t)i->offset_more[1];
        copy(w, i, l, SPACE0, ADDRESS(l), (enum ptxsim_space)i->space[1], SOURCE(1)[l] + (uint64_t)i->offset_more[0],
             bytes, barrier_at(w, i, l, SP_CLUSTER, mbarrier, ACC_ATOMIC));
        update(w, i, l, SP_CLUSTER, mbarrier, 0, 0, bytes);
    })
    return NEXT;
}

EXEC(cp_bulk_store) {
    need_all(w, i, mask);
    EACH_LANE(copy(w, i, l, SP_GLOBAL, ADDRESS(l), SP_SHARED, SOURCE(1)[l] + (uint64_t)i->offset_more[0],
                   bulk_size(w, i, l), NULL))
    return NEXT;
}

EXEC(st_async) {
    need_all(w, i, mask);
    EACH_LANE({
        uint32_t bytes = (uint32_t)i->bytes * i->nv;
        uint8_t *init;
        uint8_t *p = ptxsim_access(w, i, l, SPACE0, ADDRESS(l), bytes, ACC_STORE, &init);
        for (uint32_t n = 0; n < i->nv; n++) {
            ptxsim_need(w, i, i->v[n], 1u << l, "the stored value");
            memcpy(p + n * i->bytes, &ptxsim_source(w, i->v[n])[l], i->bytes);
        }
        uint64_t mbarrier = SOURCE(1)[l] + (uint64_t)i->offset_more[0];
        defer(w, l, p, bytes, barrier_at(w, i, l, SPACE0, mbarrier, ACC_ATOMIC));
        update(w, i, l, SPACE0, mbarrier, 0, 0, bytes);
    })
    return NEXT;
}

EXEC(red_async) {
    need_all(w, i, mask);
    EACH_LANE({
        uint8_t *init;
        uint8_t *p = ptxsim_access(w, i, l, SPACE0, ADDRESS(l), i->bytes, ACC_ATOMIC, &init);
        uint64_t old = 0;
        memcpy(&old, p, i->bytes);
        uint64_t now = ptxsim_atomic_result(i, old, SOURCE(1)[l], 0, false);
        memcpy(p, &now, i->bytes);
        update(w, i, l, SPACE0, SOURCE(2)[l] + (uint64_t)i->offset_more[0], 0, 0, i->bytes);
    })
    return NEXT;
}
