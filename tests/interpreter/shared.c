/* Shared memory of a block, with a record for each byte: its last writer, and its readers in this block and in other
 * blocks of the cluster. A barrier orders all threads of a block, and a cluster barrier the threads of all its blocks.
 * bar.warp.sync and the .sync exchanges order the lanes that take part. A thread may touch the bytes of a bulk copy
 * only after it has waited for the copy's mbarrier, or has met a thread that has. */
#include "ptxsim.h"

#include <stdlib.h>
#include <string.h>

struct shared_cell {
    uint32_t write_time, write_clock;
    uint32_t read_time, read_clock, read_lanes;
    uint32_t remote_time;     /* of reads by other blocks */
    uint32_t mbarrier, phase; /* of the bulk copy that wrote it, or none: number plus one, phases to be complete */
    uint16_t writer, read_warp, reader, remote_reader;
    uint8_t write_atomic, read_many, remote_readers;
};

enum { PER_BLOCK = PTXSIM_WARP * 32 };
/* The readers in other blocks since the last barrier of the cluster. */
enum { ONE_WARP, MANY_WARPS, MANY_BLOCKS };

/* Counts barriers. It never repeats within a process, so that a new block needs no cleared records. They stay, for each
 * rank in a cluster. */
static uint32_t now;
static struct {
    struct shared_cell *cells;
    uint32_t count;
} pool[PTXSIM_CLUSTER_MAX];

int ptxsim_shared_new(struct cta *cta, uint32_t bytes) {
    cta->shared_bytes = bytes;
    if (!bytes)
        return E_OK;
    cta->shared = malloc(bytes);
    cta->shared_init = malloc(bytes);
    if (pool[cta->rank].count < bytes) {
        free(pool[cta->rank].cells);
        pool[cta->rank].cells = calloc(bytes, sizeof *cta->cells);
        pool[cta->rank].count = bytes;
    }
    cta->cells = pool[cta->rank].cells;
    return cta->shared && cta->shared_init && cta->cells ? E_OK : E_OUT_OF_MEMORY;
}

void ptxsim_shared_reset(struct cta *cta) {
    if (cta->shared_bytes)
        memset(cta->shared_init, 0, cta->shared_bytes);
    ptxsim_shared_cluster_barrier(cta);
}

void ptxsim_shared_barrier(struct cta *cta) {
    cta->block_barrier = ++now;
    ptxsim_mbarrier_block(cta);
}

void ptxsim_shared_cluster_barrier(struct cta *cta) {
    cta->block_barrier = cta->cluster_barrier = ++now;
    ptxsim_mbarrier_block(cta);
}

void ptxsim_shared_free(struct cta *cta) {
    free(cta->shared);
    free(cta->shared_init);
}

static _Noreturn void race(struct warp *w, const struct insn *i, int lane, uint32_t offset, const char *mine,
                           const char *theirs, uint32_t other) {
    const uint32_t *b = w->launch->block;
    ptxsim_fault(w, i, lane, E_LAUNCH_FAILED,
                 "shared-memory race: %s at shared offset %u without a barrier after a %s by thread (%u,%u,%u)", mine,
                 offset, theirs, other % b[0], other / b[0] % b[1], other / b[0] / b[1]);
}

/* Whether both have passed a barrier between that thread's access then and this warp's access now. */
static bool before_barrier(const struct warp *w, uint32_t thread, uint32_t time) {
    const struct cta *cta = w->cta;
    return time < (thread / PER_BLOCK == cta->rank ? cta->block_barrier : cta->cluster_barrier);
}

/* Whether the other lane's access at that time comes before this lane's present instruction. */
static bool ordered(const struct warp *w, int lane, uint32_t other, uint32_t clock) {
    return w->full_sync > clock || (w->has_pairs && w->pair_sync[lane][other] > clock);
}

static bool read_conflicts(const struct warp *w, int lane, const struct shared_cell *cell, uint16_t warp) {
    if (before_barrier(w, cell->reader, cell->read_time))
        return false;
    if (cell->read_many || cell->read_warp != warp)
        return true;
    uint32_t others = cell->read_lanes & ~(1u << lane);
    if (!others || w->full_sync > cell->read_clock)
        return false;
    for (; others; others &= others - 1)
        if (!ordered(w, lane, (uint32_t)__builtin_ctz(others), cell->read_clock))
            return true;
    return false;
}

/* Lanes of a warp that reads another block's memory are not distinguished. */
static bool remote_read_conflicts(const struct warp *w, const struct shared_cell *cell, uint16_t warp) {
    if (cell->remote_readers == MANY_BLOCKS)
        return cell->remote_time >= w->cta->cluster_barrier;
    return (cell->remote_readers == MANY_WARPS || cell->remote_reader / PTXSIM_WARP != warp) &&
           !before_barrier(w, cell->remote_reader, cell->remote_time);
}

static void note_write(struct warp *w, struct shared_cell *cell, uint16_t self, bool atomic) {
    cell->write_time = now;
    cell->write_clock = w->clock;
    cell->writer = self;
    cell->write_atomic = atomic;
    cell->mbarrier = 0;
}

static void note_read(struct warp *w, struct shared_cell *cell, int lane, uint16_t warp, uint16_t self) {
    if (cell->read_time < w->cta->block_barrier) {
        cell->read_lanes = 0;
        cell->read_warp = warp;
        cell->read_many = 0;
    } else if (cell->read_warp != warp) {
        cell->read_many = 1;
    } else if (w->full_sync > cell->read_clock) {
        cell->read_lanes = 0;
    }
    cell->read_lanes |= 1u << lane;
    cell->read_clock = w->clock;
    cell->read_time = now;
    cell->reader = self;
}

static void note_remote_read(struct warp *w, struct shared_cell *cell, uint16_t warp, uint16_t self) {
    if (cell->remote_time < w->cta->cluster_barrier)
        cell->remote_readers = ONE_WARP;
    else if (cell->remote_reader / PER_BLOCK != w->cta->rank)
        cell->remote_readers = MANY_BLOCKS;
    else if (cell->remote_reader / PTXSIM_WARP != warp && cell->remote_readers == ONE_WARP)
        cell->remote_readers = MANY_WARPS;
    cell->remote_time = now;
    cell->remote_reader = self;
}

static void touch_byte(struct warp *w, const struct insn *i, int lane, struct cta *owner, uint32_t offset,
                       enum ptxsim_access access) {
    /* Threads of all blocks of a cluster have distinct numbers. */
    uint16_t warp = (uint16_t)(w->cta->rank * 32 + w->index);
    uint16_t self = (uint16_t)(warp * PTXSIM_WARP + (uint32_t)lane);
    bool atomic = access == ACC_ATOMIC || access == ACC_MBARRIER;
    const char *mine = access == ACC_LOAD ? "read" : atomic ? "atomic" : "write";
    struct shared_cell *cell = &owner->cells[offset];
    uint8_t state = owner->shared_init[offset];
    if (state == SHARED_PENDING)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED,
                     "%s at shared offset %u, where an asynchronous copy has not been waited for", mine, offset);
    if (access != ACC_STORE && state == SHARED_UNWRITTEN)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "uninitialised shared memory: %s at shared offset %u", mine, offset);
    if (state == SHARED_MBARRIER && access != ACC_MBARRIER)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "%s at shared offset %u, where an mbarrier is", mine, offset);
    if (owner == w->cta && state == SHARED_WRITTEN && cell->mbarrier) {
        if (!ptxsim_mbarrier_seen(w, lane, cell->mbarrier - 1, cell->phase))
            ptxsim_fault(w, i, lane, E_LAUNCH_FAILED,
                         "%s at shared offset %u, where an asynchronous copy has not been waited for by this thread",
                         mine, offset);
    } else if (cell->writer != self && !(atomic && cell->write_atomic) &&
               !before_barrier(w, cell->writer, cell->write_time)) {
        bool same_warp = cell->writer / PTXSIM_WARP == warp;
        if (!same_warp || !ordered(w, lane, cell->writer % PTXSIM_WARP, cell->write_clock))
            race(w, i, lane, offset, mine, cell->write_atomic ? "atomic" : "write", cell->writer % PER_BLOCK);
    }
    if (access != ACC_LOAD) {
        if (read_conflicts(w, lane, cell, warp))
            race(w, i, lane, offset, mine, "read", cell->reader % PER_BLOCK);
        if (remote_read_conflicts(w, cell, warp))
            race(w, i, lane, offset, mine, "read", cell->remote_reader % PER_BLOCK);
        note_write(w, cell, self, atomic);
        if (access != ACC_MBARRIER)
            owner->shared_init[offset] = SHARED_WRITTEN;
    } else if (owner == w->cta) {
        note_read(w, cell, lane, warp, self);
    } else {
        note_remote_read(w, cell, warp, self);
    }
}

void ptxsim_shared_touch(struct warp *w, const struct insn *i, int lane, struct cta *owner, uint32_t offset,
                         uint32_t bytes, enum ptxsim_access access) {
    struct shared_cell *cells = &owner->cells[offset];
    uint8_t *init = &owner->shared_init[offset];
    /* Bytes whose records are alike stay alike: mostly these are the bytes of one number. */
    bool alike = memcmp(init, init + 1, bytes - 1) == 0 && memcmp(cells, cells + 1, (bytes - 1) * sizeof *cells) == 0;
    touch_byte(w, i, lane, owner, offset, access);
    for (uint32_t b = 1; b < bytes; b++) {
        if (alike) {
            cells[b] = cells[0];
            init[b] = init[0];
        } else {
            touch_byte(w, i, lane, owner, offset + b, access);
        }
    }
}

void ptxsim_shared_sync(struct warp *w, uint32_t mask) {
    w->clock++;
    ptxsim_mbarrier_sync(w, mask);
    if (mask == (w->exists & ~w->exited)) {
        w->full_sync = w->clock;
        return;
    }
    if (!w->has_pairs)
        memset(w->pair_sync, 0, sizeof w->pair_sync);
    w->has_pairs = true;
    for (uint32_t a = 0; a < PTXSIM_WARP; a++)
        for (uint32_t b = 0; b < PTXSIM_WARP && mask >> a & 1; b++)
            if (mask >> b & 1)
                w->pair_sync[a][b] = w->clock;
}

/* Accesses of the other lane of this warp before that clock come before the accesses of this lane from now on. */
void ptxsim_shared_order(struct warp *w, int lane, uint32_t other, uint32_t clock) {
    if (!w->has_pairs)
        memset(w->pair_sync, 0, sizeof w->pair_sync);
    w->has_pairs = true;
    if (w->pair_sync[lane][other] < clock)
        w->pair_sync[lane][other] = clock;
}

/* Bulk copies may from now on access the bytes that these lanes have written, or whose writes they know of. */
void ptxsim_shared_fence(struct warp *w, uint32_t mask) {
    w->clock++;
    for (; mask; mask &= mask - 1) {
        w->fence_clock[__builtin_ctz(mask)] = w->clock;
        w->fence_time[__builtin_ctz(mask)] = now;
    }
}

/* Checks a bulk copy that accesses bytes written by ordinary instructions. Either the thread that wrote them has
 * executed a proxy fence since, or this thread has after a barrier. An address that is not shared is left to the access
 * itself. */
void ptxsim_shared_proxy(struct warp *w, const struct insn *i, int lane, uint64_t address, uint32_t bytes) {
    uint64_t rank = address / PTXSIM_SHARED_STEP - 1;
    uint32_t offset = (uint32_t)(address % PTXSIM_SHARED_STEP);
    if (address < PTXSIM_SHARED_STEP || rank >= w->launch->nctas)
        return;
    const struct cta *owner = &w->launch->ctas[rank];
    if (offset >= owner->shared_bytes || bytes > owner->shared_bytes - offset)
        return;
    for (uint32_t b = 0; b < bytes; b++) {
        const struct shared_cell *cell = &owner->cells[offset + b];
        if (owner->shared_init[offset + b] != SHARED_WRITTEN || cell->mbarrier)
            continue;
        uint32_t thread = cell->writer % PER_BLOCK, other = thread % PTXSIM_WARP;
        const struct warp *writer = &w->launch->ctas[cell->writer / PER_BLOCK].warps[thread / PTXSIM_WARP];
        if (writer->fence_clock[other] > cell->write_clock || w->fence_time[lane] > cell->write_time ||
            (writer == w && w->fence_clock[lane] > cell->write_clock))
            continue;
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "bulk copy at shared offset %u, written without a proxy fence since",
                     offset + b);
    }
}

/* A bulk copy has been written. Threads may read it if they know that this many phases of the mbarrier are complete. */
void ptxsim_shared_copied(struct cta *owner, uint32_t offset, uint32_t bytes, uint32_t mbarrier, uint32_t phase) {
    memset(owner->shared_init + offset, SHARED_WRITTEN, bytes);
    for (uint32_t b = 0; b < bytes; b++) {
        owner->cells[offset + b].mbarrier = mbarrier + 1;
        owner->cells[offset + b].phase = phase;
    }
}
