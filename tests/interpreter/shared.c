/* Shared memory of a block with a record for each byte: who wrote and who read it since the last barrier. Barriers
 * order all threads of the block; bar.warp.sync and the .sync exchanges order the lanes that take part. */
#include "ptxsim.h"

#include <stdlib.h>
#include <string.h>

struct shared_cell {
    uint32_t write_epoch, write_clock;
    uint32_t read_epoch, read_clock, read_lanes;
    uint16_t writer, read_warp, reader;
    uint8_t write_atomic, read_many, read_atomic;
};

/* Epochs never repeat within a process, so that a new block needs no cleared records. */
static uint32_t last_epoch;

int ptxsim_shared_new(struct cta *cta, uint32_t bytes) {
    cta->shared_bytes = bytes;
    if (!bytes)
        return E_OK;
    cta->shared = malloc(bytes);
    cta->shared_init = malloc(bytes);
    cta->cells = calloc(bytes, sizeof *cta->cells);
    return cta->shared && cta->shared_init && cta->cells ? E_OK : E_OUT_OF_MEMORY;
}

void ptxsim_shared_reset(struct cta *cta) {
    if (cta->shared_bytes)
        memset(cta->shared_init, 0, cta->shared_bytes);
    cta->epoch = ++last_epoch;
}

void ptxsim_shared_barrier(struct cta *cta) {
    cta->epoch = ++last_epoch;
}

void ptxsim_shared_free(struct cta *cta) {
    free(cta->shared);
    free(cta->shared_init);
    free(cta->cells);
}

static _Noreturn void race(struct warp *w, const struct insn *i, int lane, uint32_t offset, const char *mine,
                           const char *theirs, uint32_t other) {
    const uint32_t *b = w->launch->block;
    ptxsim_fault(w, i, lane, E_LAUNCH_FAILED,
                 "shared-memory race: %s at shared offset %u without a barrier after a %s by thread (%u,%u,%u)", mine,
                 offset, theirs, other % b[0], other / b[0] % b[1], other / b[0] / b[1]);
}

/* Whether what the other lane of this warp did at that time comes before this lane's present instruction. */
static bool ordered(const struct warp *w, int lane, uint32_t other, uint32_t clock) {
    return w->full_sync > clock || (w->has_pairs && w->pair_sync[lane][other] > clock);
}

static bool read_conflicts(const struct warp *w, int lane, const struct shared_cell *cell, uint16_t warp) {
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

void ptxsim_shared_touch(struct warp *w, const struct insn *i, int lane, struct cta *owner, uint32_t offset,
                         uint32_t bytes, enum ptxsim_access access) {
    /* Threads of all blocks of a cluster are told apart by numbering them through. */
    uint16_t warp = (uint16_t)(w->cta->rank * 32 + w->index);
    uint16_t self = (uint16_t)(warp * PTXSIM_WARP + (uint32_t)lane);
    uint32_t per_block = PTXSIM_WARP * 32;
    bool atomic = access == ACC_ATOMIC;
    const char *mine = access == ACC_LOAD ? "read" : atomic ? "atomic" : "write";
    for (uint32_t b = 0; b < bytes; b++) {
        struct shared_cell *cell = &owner->cells[offset + b];
        uint8_t state = owner->shared_init[offset + b];
        if (state == SHARED_PENDING)
            ptxsim_fault(w, i, lane, E_LAUNCH_FAILED,
                         "%s at shared offset %u, where an asynchronous copy has not been waited for", mine,
                         offset + b);
        if (access != ACC_STORE && state == SHARED_UNWRITTEN)
            ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "uninitialised shared memory: %s at shared offset %u", mine,
                         offset + b);
        if (cell->write_epoch == owner->epoch && cell->writer != self && !(atomic && cell->write_atomic)) {
            bool same_warp = cell->writer / PTXSIM_WARP == warp;
            if (!same_warp || !ordered(w, lane, cell->writer % PTXSIM_WARP, cell->write_clock))
                race(w, i, lane, offset + b, mine, cell->write_atomic ? "atomic" : "write", cell->writer % per_block);
        }
        if (access != ACC_LOAD) {
            if (cell->read_epoch == owner->epoch && read_conflicts(w, lane, cell, warp))
                race(w, i, lane, offset + b, mine, "read", cell->reader % per_block);
            cell->write_epoch = owner->epoch;
            cell->write_clock = w->clock;
            cell->writer = self;
            cell->write_atomic = atomic;
            owner->shared_init[offset + b] = SHARED_WRITTEN;
            continue;
        }
        if (cell->read_epoch != owner->epoch) {
            cell->read_epoch = owner->epoch;
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
        cell->reader = self;
    }
}

void ptxsim_shared_sync(struct warp *w, uint32_t mask) {
    w->clock++;
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
