/* Mbarriers and the copies that complete at them. Shared memory holds an mbarrier's number; its state is stored here. A
 * copy's bytes are written at the start. But no thread may touch them, nor write their source, before the copy has
 * arrived. Then only threads may that know its phase to be complete: because they have waited, or have met a thread
 * that has. A wait orders the earlier accesses of the threads that arrived, or that sent something from another block.
 * Within a warp it orders them exactly; for other warps, like a barrier of all blocks of the cluster. */
#include "ptxsim.h"

#include <string.h>

enum { NOBODY = 0, MANY = UINT16_MAX, TX_MOST = (1 << 20) - 1 };
/* If every warp has failed in a wait within RECENT instructions, and nothing has changed for ROUNDS rounds, no wait
 * ends. */
enum { RECENT = 256, ROUNDS = 1000 };

struct arrivals {
    uint32_t warp; /* of the cluster, plus one; or NOBODY or MANY */
    uint32_t lanes;
    uint32_t clock[PTXSIM_WARP];
};

struct mbarrier {
    struct cta *owner;
    uint32_t offset;
    uint32_t expected, pending;
    int64_t tx;
    uint32_t first, phase;     /* phases completed: before it was initialised, and by now */
    uint32_t observed, common; /* phases that some thread knows of, and phases that all threads of the block do */
    const struct warp *maker;
    int maker_lane;
    bool live, met, fenced; /* met: the block had a barrier since it was initialised */
    struct arrivals now, done;
};

static uint32_t number_of(const struct launch *launch, const struct mbarrier *b) {
    return (uint32_t)(b - launch->mbarriers.at);
}

struct mbarrier *ptxsim_mbarrier(struct launch *launch, const struct cta *owner, uint32_t offset) {
    uint64_t number;
    memcpy(&number, owner->shared + offset, sizeof number);
    if (number >= launch->mbarriers.count)
        return NULL;
    struct mbarrier *b = &launch->mbarriers.at[number];
    return b->live && b->owner == owner && b->offset == offset ? b : NULL;
}

void ptxsim_mbarrier_new(struct warp *w, int lane, struct cta *owner, uint32_t offset, uint32_t count) {
    struct mbarriers *all = &w->launch->mbarriers;
    uint64_t number = 0;
    uint32_t phase = 0;
    while (number < all->count && (all->at[number].owner != owner || all->at[number].offset != offset))
        number++;
    if (number == all->count) {
        all->at = ptxsim_grow(all->at, all->count, &all->room, sizeof *all->at);
        all->count++;
    } else {
        phase = all->at[number].phase;
    }
    struct mbarrier *b = &all->at[number];
    memset(b, 0, sizeof *b);
    b->owner = owner;
    b->offset = offset;
    b->expected = b->pending = count;
    b->first = b->phase = b->observed = b->common = phase;
    b->maker = w;
    b->maker_lane = lane;
    b->live = true;
    all->changed = true;
    memcpy(owner->shared + offset, &number, sizeof number);
    memset(owner->shared_init + offset, SHARED_MBARRIER, sizeof number);
}

static bool is_awaited(const struct launch *launch, const struct mbarrier *b) {
    bool found = false;
    for (uint32_t n = 0; n < launch->pending.count; n++)
        found = found || launch->pending.at[n].mbarrier == number_of(launch, b);
    return found;
}

void ptxsim_mbarrier_end(struct warp *w, const struct insn *i, int lane, struct mbarrier *b) {
    if (is_awaited(w->launch, b))
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "mbarrier at shared offset %u ends with a copy under way", b->offset);
    b->live = false;
    memset(b->owner->shared_init + b->offset, SHARED_UNWRITTEN, sizeof(uint64_t));
}

/* Bulk copies see an mbarrier after a fence by the thread that made it, or by any after a barrier. */
void ptxsim_mbarrier_fence(struct warp *w, uint32_t mask) {
    for (uint32_t n = 0; n < w->launch->mbarriers.count; n++) {
        struct mbarrier *b = &w->launch->mbarriers.at[n];
        b->fenced = b->fenced || (b->owner == w->cta && b->met) || (b->maker == w && mask >> b->maker_lane & 1);
    }
}

static void note_arrival(struct arrivals *a, const struct warp *w, uint32_t lane, uint32_t clock) {
    uint32_t self = w->cta->rank * 32 + w->index + 1;
    a->warp = a->warp == NOBODY || a->warp == self ? self : MANY;
    a->lanes |= 1u << lane;
    a->clock[lane] = clock;
}

/* Takes arrivals and transferred bytes into account; gives the phase as it was. */
uint32_t ptxsim_mbarrier_update(struct warp *w, const struct insn *i, int lane, struct mbarrier *b, uint32_t arrivals,
                                int64_t expect, int64_t complete) {
    uint32_t phase = b->phase;
    w->launch->mbarriers.changed = true;
    if (arrivals > b->pending)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "mbarrier at shared offset %u: %u arrivals where %u are pending",
                     b->offset, arrivals, b->pending);
    b->tx += expect;
    if (b->tx <= TX_MOST)
        b->tx -= complete;
    if (b->tx > TX_MOST || b->tx < -TX_MOST)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "mbarrier at shared offset %u: transaction count %lld", b->offset,
                     (long long)b->tx);
    b->pending -= arrivals;
    if (arrivals)
        note_arrival(&b->now, w, (uint32_t)lane, ++w->clock);
    if (b->pending)
        return phase;
    if (b->tx < 0)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED,
                     "mbarrier at shared offset %u: %lld bytes more than its phase expects", b->offset,
                     -(long long)b->tx);
    if (b->tx == 0) {
        if (is_awaited(w->launch, b))
            ptxsim_fault(
                w, i, lane, E_LAUNCH_FAILED,
                "mbarrier at shared offset %u: its phase completes without a copy under way, which it does not "
                "expect",
                b->offset);
        b->phase++;
        b->pending = b->expected;
        b->done = b->now;
        b->now.warp = NOBODY;
        b->now.lanes = 0;
    }
    return phase;
}

/* Notes a copy, whose bytes have just been written, as under way. By proxy: the mbarrier must be seen there. */
void ptxsim_mbarrier_copy(struct warp *w, const struct insn *i, int lane, struct mbarrier *b, struct pending_copy copy,
                          bool proxy) {
    struct copies *copies = &w->launch->pending;
    if (copy.owner != b->owner)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "the mbarrier is in another block than the copy's destination");
    if (proxy && !b->fenced)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED,
                     "mbarrier at shared offset %u has been initialised without a proxy fence since", b->offset);
    copy.mbarrier = number_of(w->launch, b);
    copy.phase = b->phase;
    memset(copy.owner->shared_init + copy.offset, SHARED_PENDING, copy.bytes);
    if (copy.source)
        ptxsim_mark_read(copy.source, copy.bytes, true);
    copies->at = ptxsim_grow(copies->at, copies->count, &copies->room, sizeof copy);
    copies->at[copies->count++] = copy;
}

static void mark_sources(const struct launch *launch) {
    for (uint32_t n = 0; n < launch->pending.count; n++)
        if (launch->pending.at[n].source)
            ptxsim_mark_read(launch->pending.at[n].source, launch->pending.at[n].bytes, true);
}

/* Copies for this mbarrier arrive: all of them, or some where the order is shuffled. */
void ptxsim_mbarrier_deliver(struct warp *w, const struct insn *i, int lane, struct mbarrier *b) {
    struct launch *launch = w->launch;
    for (uint32_t n = 0; n < launch->pending.count;) {
        const struct pending_copy copy = launch->pending.at[n];
        if (copy.mbarrier != number_of(launch, b) || (ptxsim_device.seed && ptxsim_random(launch) & 1)) {
            n++;
            continue;
        }
        launch->pending.at[n] = launch->pending.at[--launch->pending.count];
        if (copy.source) {
            ptxsim_mark_read(copy.source, copy.bytes, false);
            mark_sources(launch);
        }
        ptxsim_shared_copied(copy.owner, copy.offset, copy.bytes, copy.mbarrier, copy.phase + 1);
        if (copy.sender)
            note_arrival(&b->now, copy.sender, copy.lane, copy.clock);
        ptxsim_mbarrier_update(w, i, lane, b, 0, 0, copy.bytes);
    }
}

static bool knows(const struct warp *w, int lane, uint32_t number, uint32_t phase) {
    return number < w->nseen && w->seen[number][lane] >= phase;
}

static void learn(struct warp *w, int lane, uint32_t number, uint32_t phase) {
    while (w->nseen <= number) {
        w->seen = ptxsim_grow(w->seen, w->nseen, &w->seen_room, sizeof *w->seen);
        memset(w->seen[w->nseen++], 0, sizeof *w->seen);
    }
    w->seen[number][lane] = phase;
    w->seen_differ = true;
}

/* Whether the phase of that parity, or that number, is complete; the lane then knows it to be. Strangers: the phase had
 * arrivals from other warps. */
bool ptxsim_mbarrier_wait(struct warp *w, int lane, struct mbarrier *b, uint32_t value, bool parity, bool *strangers) {
    uint32_t number = number_of(w->launch, b);
    if (parity ? ((b->phase - b->first) & 1) == value : b->phase == value) {
        w->wait_for = number;
        return false;
    }
    bool known = knows(w, lane, number, b->phase);
    if (!known) {
        learn(w, lane, number, b->phase);
        b->observed = b->phase;
        w->launch->mbarriers.changed = true;
    }
    if (b->done.warp == w->cta->rank * 32 + w->index + 1) {
        for (uint32_t m = b->done.lanes; m; m &= m - 1)
            ptxsim_shared_order(w, lane, (uint32_t)__builtin_ctz(m), b->done.clock[__builtin_ctz(m)]);
    } else if (!known && b->done.warp != NOBODY) {
        *strangers = true;
    }
    return true;
}

bool ptxsim_mbarrier_seen(const struct warp *w, int lane, uint32_t number, uint32_t phase) {
    return knows(w, lane, number, phase) || w->launch->mbarriers.at[number].common >= phase;
}

/* Lanes that meet share their knowledge of completed phases. */
void ptxsim_mbarrier_sync(struct warp *w, uint32_t mask) {
    if (!w->seen_differ)
        return;
    w->seen_differ = mask != (w->exists & ~w->exited);
    for (uint32_t n = 0; n < w->nseen; n++) {
        uint32_t most = 0;
        for (uint32_t m = mask; m; m &= m - 1)
            if (w->seen[n][__builtin_ctz(m)] > most)
                most = w->seen[n][__builtin_ctz(m)];
        for (uint32_t m = mask; m; m &= m - 1)
            w->seen[n][__builtin_ctz(m)] = most;
    }
}

/* The same for all threads of a block. */
void ptxsim_mbarrier_block(struct cta *cta) {
    for (uint32_t n = 0; n < cta->launch->mbarriers.count; n++) {
        struct mbarrier *b = &cta->launch->mbarriers.at[n];
        if (b->owner != cta)
            continue;
        b->common = b->observed;
        b->met = true;
    }
}

/* After each round of the scheduler: finds out when all that can run do nothing but wait in vain. */
void ptxsim_mbarrier_idle(struct launch *launch) {
    struct mbarriers *all = &launch->mbarriers;
    struct warp *waiting = NULL;
    bool idle = all->count && !all->changed;
    for (uint32_t c = 0; c < launch->nctas && idle; c++) {
        for (uint32_t n = 0; n < launch->ctas[c].nwarps; n++) {
            struct warp *w = &launch->ctas[c].warps[n];
            idle = idle && (!w->runnable || w->since_wait < RECENT);
            waiting = w->runnable ? w : waiting;
        }
    }
    all->changed = false;
    all->idle = idle && waiting ? all->idle + 1 : 0;
    if (all->idle < ROUNDS)
        return;
    const struct mbarrier *b = &all->at[waiting->wait_for];
    ptxsim_fault(waiting, &waiting->kernel->code[waiting->wait_pc], (int)waiting->wait_lane, E_TIMEOUT,
                 "waits for ever: the mbarrier at shared offset %u lacks %u arrivals and %lld bytes", b->offset,
                 b->pending, (long long)b->tx);
}

/* Before the last threads of a block leave. */
void ptxsim_mbarrier_exit(struct warp *w, const struct insn *i, int lane) {
    for (uint32_t n = 0; n < w->launch->pending.count; n++) {
        const struct pending_copy *copy = &w->launch->pending.at[n];
        if (copy->owner == w->cta)
            ptxsim_fault(w, i, lane, E_LAUNCH_FAILED,
                         "the block exits with a copy under way: %u bytes to shared offset %u", copy->bytes,
                         copy->offset);
    }
}

/* After a launch that has failed. */
void ptxsim_mbarrier_clear(struct launch *launch) {
    for (uint32_t n = 0; n < launch->pending.count; n++)
        if (launch->pending.at[n].source)
            ptxsim_mark_read(launch->pending.at[n].source, launch->pending.at[n].bytes, false);
}
