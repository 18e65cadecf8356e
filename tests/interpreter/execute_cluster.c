/* Thread block clusters, mbarriers and asynchronous copies. A copy takes effect when it is issued. A thread may touch
 * the shared memory that it writes only after waiting for it. The race check knows the order that barriers and
 * mbarriers give. */
#include "execute.h"

/* The block of the cluster that has this byte of shared memory, or null. */
static struct cta *owner_of(struct launch *launch, const uint8_t *data) {
    for (uint32_t c = 0; c < launch->nctas; c++) {
        struct cta *cta = &launch->ctas[c];
        if (data >= cta->shared && data < cta->shared + cta->shared_bytes)
            return cta;
    }
    return NULL;
}

/* Notes that these bytes, just written, wait for a group of their lane. */
static void defer(struct warp *w, int lane, const uint8_t *data, uint32_t bytes) {
    struct pending_copy copy = {
        w->cta, (uint32_t)(data - w->cta->shared), bytes, (uint32_t)lane, w->async_group[lane], 0, 0, 0, NULL, 0};
    memset(w->cta->shared_init + copy.offset, SHARED_PENDING, bytes);
    w->pending.at = ptxsim_grow(w->pending.at, w->pending.count, &w->pending.room, sizeof copy);
    w->pending.at[w->pending.count++] = copy;
}

/* The groups of these lanes have arrived but for the last `left` of each. */
static void settle_groups(struct warp *w, uint32_t mask, uint32_t left) {
    uint32_t waiting = 0;
    for (uint32_t n = 0; n < w->pending.count; n++) {
        struct pending_copy *copy = &w->pending.at[n];
        if (mask >> copy->lane & 1 && copy->group + left < w->async_group[copy->lane])
            memset(copy->owner->shared_init + copy->offset, SHARED_WRITTEN, copy->bytes);
        else
            w->pending.at[waiting++] = *copy;
    }
    w->pending.count = waiting;
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

static struct mbarrier *find_mbarrier(struct warp *w, const struct insn *i, int lane, enum ptxsim_space space,
                                      uint64_t address) {
    const uint8_t *p = barrier_at(w, i, lane, space, address, ACC_MBARRIER);
    const struct cta *owner = owner_of(w->launch, p);
    struct mbarrier *b = ptxsim_mbarrier(w->launch, owner, (uint32_t)(p - owner->shared));
    if (!b)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "no mbarrier at 0x%llx", (unsigned long long)address);
    return b;
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

#define MBARRIER(l) find_mbarrier(w, i, l, SPACE0, ADDRESS(l))

EXEC(mbarrier_init) {
    need_all(w, i, mask);
    EACH_LANE({
        uint64_t count = SOURCE(1)[l];
        const uint8_t *p = barrier_at(w, i, l, SPACE0, ADDRESS(l), ACC_STORE);
        if (count == 0 || count >= 1u << 20)
            ptxsim_fault(w, i, l, E_LAUNCH_FAILED, "mbarrier count %llu", (unsigned long long)count);
        struct cta *owner = owner_of(w->launch, p);
        ptxsim_mbarrier_new(w, l, owner, (uint32_t)(p - owner->shared), (uint32_t)count);
    })
    return NEXT;
}

EXEC(mbarrier_inval) {
    need_all(w, i, mask);
    EACH_LANE(ptxsim_mbarrier_end(w, i, l, MBARRIER(l)))
    return NEXT;
}

EXEC(mbarrier_arrive) {
    need_all(w, i, mask);
    EACH_LANE({
        uint32_t count = i->ns > 1 ? (uint32_t)SOURCE(1)[l] : 1;
        RESULT[l] = ptxsim_mbarrier_update(w, i, l, MBARRIER(l), count, 0, 0);
    })
    ptxsim_define(w, i->d[0], mask, ~0u);
    return NEXT;
}

EXEC(mbarrier_arrive_expect) {
    need_all(w, i, mask);
    EACH_LANE(RESULT[l] = ptxsim_mbarrier_update(w, i, l, MBARRIER(l), 1, (int64_t)SOURCE(1)[l], 0))
    ptxsim_define(w, i->d[0], mask, ~0u);
    return NEXT;
}

EXEC(mbarrier_expect) {
    need_all(w, i, mask);
    EACH_LANE(ptxsim_mbarrier_update(w, i, l, MBARRIER(l), 0, (int64_t)SOURCE(1)[l], 0))
    return NEXT;
}

EXEC(fence_proxy) {
    (void)i;
    ptxsim_shared_fence(w, mask);
    ptxsim_mbarrier_fence(w, mask);
    return NEXT;
}

EXEC(fence_mbarrier) {
    (void)i;
    ptxsim_mbarrier_fence(w, mask);
    return NEXT;
}

/* Copies arrive after a wait that failed without them, which finds a program that does not wait again. Where the order
 * is shuffled they sometimes arrive before the wait or later, and a wait sometimes fails for some lanes. */
static enum ptxsim_next wait_for(struct warp *w, const struct insn *i, uint32_t mask, bool parity) {
    bool strangers = false;
    uint32_t failed = 0;
    uint64_t random = ptxsim_device.seed ? ptxsim_random(w->launch) : 0;
    uint32_t refused = random % 8 == 1 ? (uint32_t)(random >> 32) : 0;
    need_all(w, i, mask);
    if (random & 8)
        ptxsim_mbarrier_deliver(w, i, __builtin_ctz(mask), MBARRIER(__builtin_ctz(mask)));
    EACH_LANE({
        uint32_t value = (uint32_t)SOURCE(1)[l];
        struct mbarrier *b = MBARRIER(l);
        if (parity && value > 1)
            ptxsim_fault(w, i, l, E_LAUNCH_FAILED, "a phase's parity is 0 or 1, not %u", value);
        RESULT[l] = !(refused >> l & 1) && ptxsim_mbarrier_wait(w, l, b, value, parity, &strangers);
        failed |= (uint32_t)!RESULT[l] << l;
    })
    if (strangers)
        ptxsim_shared_cluster_barrier(w->cta);
    ptxsim_define(w, i->d[0], mask, ~0u);
    if (!failed)
        return NEXT;
    w->wait_pc = w->cur_pc;
    w->wait_lane = (uint32_t)__builtin_ctz(failed);
    mask = random & 16 ? 0 : failed;
    EACH_LANE(ptxsim_mbarrier_deliver(w, i, l, MBARRIER(l)))
    ptxsim_advance(w, w->cur, w->cur_pc + 1);
    return YIELD;
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

/* Copies in pieces that the two access checks see whole, then notes it as under way where there is an mbarrier. */
static void copy(struct warp *w, const struct insn *i, int lane, enum ptxsim_space to_space, uint64_t to,
                 enum ptxsim_space from_space, uint64_t from, uint32_t bytes, struct mbarrier *b) {
    const uint32_t piece = 16;
    struct pending_copy note = {NULL, 0, bytes, (uint32_t)lane, 0, 0, 0, 0, NULL, 0};
    for (uint32_t at = 0; at < bytes; at += piece) {
        uint8_t *init;
        const uint8_t *p = ptxsim_access(w, i, lane, from_space, from + at, piece, ACC_LOAD, &init);
        if (from_space == SP_SHARED)
            ptxsim_shared_proxy(w, i, lane, from + at, piece);
        if (to_space != SP_GLOBAL)
            ptxsim_shared_proxy(w, i, lane, to + at, piece);
        uint8_t *q = ptxsim_access(w, i, lane, to_space, to + at, piece, ACC_STORE, &init);
        memcpy(q, p, piece);
        if (at == 0 && b) {
            note.owner = owner_of(w->launch, q);
            note.offset = (uint32_t)(q - note.owner->shared);
            note.source = from_space == SP_GLOBAL ? from : 0;
            if (from_space == SP_SHARED) {
                note.sender = w;
                note.clock = ++w->clock;
            }
        }
    }
    if (b)
        ptxsim_mbarrier_copy(w, i, lane, b, note, true);
}

EXEC(cp_async) {
    uint32_t size = i->immediate;
    need_all(w, i, mask);
    ptxsim_need_wait(w, i, mask, SP_GLOBAL, i->s[1], i->offset_more[0]);
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
        defer(w, l, p, size);
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

/* Also waits for copies that no group has been made of. */
EXEC(cp_async_wait_all) {
    (void)i;
    EACH_LANE(w->async_group[l]++)
    settle_groups(w, mask, 0);
    return NEXT;
}

/* Bulk copies to global memory are visible to all threads at once, and not delayed until they are waited for. */
EXEC(cp_bulk_commit) {
    (void)w, (void)i, (void)mask;
    return NEXT;
}

EXEC(cp_bulk_wait) {
    (void)w, (void)i, (void)mask;
    return NEXT;
}

static uint32_t bulk_size(struct warp *w, const struct insn *i, int lane, int source) {
    uint32_t bytes = (uint32_t)SOURCE(source)[lane];
    if (bytes == 0 || bytes % 16)
        ptxsim_fault(w, i, lane, E_MISALIGNED, "bulk copy of %u bytes, no multiple of 16", bytes);
    return bytes;
}

EXEC(cp_bulk_load) {
    need_all(w, i, mask);
    ptxsim_need_wait(w, i, mask, (enum ptxsim_space)i->space[1], i->s[1], i->offset_more[0]);
    EACH_LANE({
        uint32_t bytes = bulk_size(w, i, l, 2);
        uint64_t mbarrier = SOURCE(3)[l] + (uint64_t)i->offset_more[1];
        copy(w, i, l, SPACE0, ADDRESS(l), (enum ptxsim_space)i->space[1], SOURCE(1)[l] + (uint64_t)i->offset_more[0],
             bytes, find_mbarrier(w, i, l, SP_CLUSTER, mbarrier));
    })
    return NEXT;
}

EXEC(cp_bulk_store) {
    need_all(w, i, mask);
    ptxsim_need_wait(w, i, mask, SP_GLOBAL, i->s[0], i->offset);
    EACH_LANE(copy(w, i, l, SP_GLOBAL, ADDRESS(l), SP_SHARED, SOURCE(1)[l] + (uint64_t)i->offset_more[0],
                   bulk_size(w, i, l, 2), NULL))
    return NEXT;
}

/* A prefetch changes nothing, but its memory must exist and be allocated. Earlier kernels may still write this memory,
 * because the cache is that of the whole GPU. */
EXEC(cp_bulk_prefetch) {
    need_all(w, i, mask);
    EACH_LANE({
        uint32_t bytes = bulk_size(w, i, l, 1);
        for (uint32_t at = 0; at < bytes; at += 16) {
            uint8_t *init;
            (void)ptxsim_access(w, i, l, SP_GLOBAL, ADDRESS(l) + at, 16, ACC_LOAD, &init);
        }
    })
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
        struct pending_copy note = {owner_of(w->launch, p), 0, bytes, (uint32_t)l, 0, 0, 0, 0, w, ++w->clock};
        note.offset = (uint32_t)(p - note.owner->shared);
        ptxsim_mbarrier_copy(w, i, l, find_mbarrier(w, i, l, SPACE0, mbarrier), note, false);
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
        uint64_t mbarrier = SOURCE(2)[l] + (uint64_t)i->offset_more[0];
        ptxsim_mbarrier_update(w, i, l, find_mbarrier(w, i, l, SPACE0, mbarrier), 0, 0, i->bytes);
    })
    return NEXT;
}
