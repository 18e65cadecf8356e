/* Device memory: one arena at addresses that no host pointer has, with a shadow byte for each byte. No address is
 * reused before the whole range has been used. Also the check of every access in every space. */
#include "ptxsim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { REDZONE = 512, GRANULE = 512, PAGE = 4096, REACH = 1 << 20, FREED = 4096 };

uint8_t *ptxsim_arena, *ptxsim_shadow;

struct allocation {
    uint64_t address, bytes;
    const void *owner;
};

/* Live allocations by address. */
static struct allocation *live;
static uint32_t nlive, live_room;
/* The ranges freed last, to tell use after free from other bad addresses. */
static struct allocation freed[FREED];
static uint32_t nfreed;
static uint64_t next_offset = REDZONE;
static uint64_t used;

int ptxsim_memory_init(void) {
    if (ptxsim_arena)
        return E_OK;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *arena = mmap(NULL, PTXSIM_DEVICE_SPAN, PROT_READ | PROT_WRITE, flags, -1, 0);
    void *shadow = mmap(NULL, PTXSIM_DEVICE_SPAN, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (arena == MAP_FAILED || shadow == MAP_FAILED)
        return E_OUT_OF_MEMORY;
    /* Taken so that the host has nothing there; where it is taken already nothing is lost. */
    mmap((void *)PTXSIM_DEVICE_BASE, PTXSIM_DEVICE_SPAN, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    ptxsim_arena = arena;
    ptxsim_shadow = shadow;
    return E_OK;
}

static uint32_t find(uint64_t address) {
    uint32_t low = 0, high = nlive;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (live[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool ptxsim_allocation_of(uint64_t address, uint64_t *start, uint64_t *bytes, const void **owner) {
    const uint32_t next = find(address);
    if (next == 0 || address - live[next - 1].address >= live[next - 1].bytes)
        return false;
    *start = live[next - 1].address;
    *bytes = live[next - 1].bytes;
    *owner = live[next - 1].owner;
    return true;
}

int ptxsim_alloc(uint64_t bytes, const void *owner, uint64_t *address) {
    uint64_t room = (bytes + GRANULE - 1) / GRANULE * GRANULE + REDZONE;
    if (bytes == 0)
        return E_INVALID_VALUE;
    if (owner && (bytes > ptxsim_device.memory || used + bytes > ptxsim_device.memory))
        return E_OUT_OF_MEMORY;
    if (ptxsim_memory_init() != E_OK || room > PTXSIM_DEVICE_SPAN / 2)
        return E_OUT_OF_MEMORY;
    /* Reuse the addresses that were freed longest ago, but skip live allocations. */
    for (int pass = 0;; pass++) {
        if (next_offset + room > PTXSIM_DEVICE_SPAN) {
            if (pass > 1)
                return E_OUT_OF_MEMORY;
            next_offset = REDZONE;
        }
        uint32_t at = find(PTXSIM_DEVICE_BASE + next_offset + room);
        if (at == 0 || live[at - 1].address + live[at - 1].bytes + REDZONE <= PTXSIM_DEVICE_BASE + next_offset)
            break;
        next_offset =
            (live[at - 1].address + live[at - 1].bytes - PTXSIM_DEVICE_BASE + 2 * REDZONE) / GRANULE * GRANULE;
        pass--;
        if (next_offset + room > PTXSIM_DEVICE_SPAN)
            pass++;
    }
    if (nlive == live_room) {
        live_room = live_room ? live_room * 2 : 64;
        live = realloc(live, live_room * sizeof *live);
        if (!live)
            abort();
    }
    *address = PTXSIM_DEVICE_BASE + next_offset;
    uint32_t at = find(*address);
    memmove(live + at + 1, live + at, (nlive - at) * sizeof *live);
    live[at].address = *address;
    live[at].bytes = bytes;
    live[at].owner = owner;
    nlive++;
    memset(ptxsim_shadow + next_offset, 0, room);
    memset(ptxsim_shadow + next_offset, SH_OPEN, bytes);
    next_offset += room;
    used += owner ? bytes : 0;
    return E_OK;
}

/* Returns the pages around a freed range, up to its live neighbours, to the system; they read as zero from then on. */
static void give_back_pages(uint32_t next, struct allocation gone) {
    uint64_t first = gone.address > PTXSIM_DEVICE_BASE + REACH ? gone.address - REACH : PTXSIM_DEVICE_BASE;
    uint64_t last = gone.address + gone.bytes + REACH;
    if (next > 0 && live[next - 1].address + live[next - 1].bytes > first)
        first = live[next - 1].address + live[next - 1].bytes;
    if (next < nlive && live[next].address < last)
        last = live[next].address;
    first = (first - PTXSIM_DEVICE_BASE + PAGE - 1) / PAGE * PAGE;
    last = (last - PTXSIM_DEVICE_BASE) / PAGE * PAGE;
    if (last > PTXSIM_DEVICE_SPAN)
        last = PTXSIM_DEVICE_SPAN;
    if (last <= first)
        return;
    madvise(ptxsim_arena + first, last - first, MADV_DONTNEED);
    madvise(ptxsim_shadow + first, last - first, MADV_DONTNEED);
}

static bool was_freed(uint64_t address) {
    for (uint32_t i = 0; i < FREED; i++)
        if (address - freed[i].address < freed[i].bytes)
            return true;
    return false;
}

int ptxsim_free(uint64_t address) {
    uint32_t at = find(address);
    if (at == 0 || live[at - 1].address != address)
        return E_INVALID_VALUE;
    struct allocation gone = live[at - 1];
    memmove(live + at - 1, live + at, (nlive - at) * sizeof *live);
    nlive--;
    used -= gone.owner ? gone.bytes : 0;
    freed[nfreed++ % FREED] = gone;
    memset(ptxsim_shadow + (address - PTXSIM_DEVICE_BASE), 0, gone.bytes);
    give_back_pages(at - 1, gone);
    return E_OK;
}

void ptxsim_free_owned(const void *owner) {
    for (uint32_t n = nlive; n-- > 0;)
        if (live[n].owner == owner)
            ptxsim_free(live[n].address);
}

uint64_t ptxsim_memory_used(void) {
    return used;
}

void ptxsim_mark(uint64_t address, uint64_t bytes, uint8_t state) {
    memset(ptxsim_shadow + (address - PTXSIM_DEVICE_BASE), state, bytes);
}

void ptxsim_mark_read(uint64_t address, uint64_t bytes, bool under_way) {
    uint8_t *shadow = ptxsim_shadow + (address - PTXSIM_DEVICE_BASE);
    for (uint64_t b = 0; b < bytes; b++)
        shadow[b] = (uint8_t)(under_way ? shadow[b] | SH_READ : shadow[b] & ~SH_READ);
}

/* A range that the host copies to or from; it may hold bytes that were never written. */
int ptxsim_host_range(uint64_t address, uint64_t bytes, uint8_t **data, uint8_t **shadow) {
    uint32_t at = find(address);
    if (at == 0)
        return E_INVALID_VALUE;
    const struct allocation *a = &live[at - 1];
    if (bytes > a->bytes || address - a->address > a->bytes - bytes)
        return E_INVALID_VALUE;
    uint64_t offset = address - PTXSIM_DEVICE_BASE;
    *data = ptxsim_arena + offset;
    *shadow = ptxsim_shadow + offset;
    return E_OK;
}

enum ptxsim_space ptxsim_generic_space(uint64_t address) {
    if (address - PTXSIM_SHARED_GENERIC < PTXSIM_WINDOW)
        return SP_CLUSTER;
    if (address - PTXSIM_LOCAL_GENERIC < PTXSIM_WINDOW)
        return SP_LOCAL;
    if (address - PTXSIM_PARAM_GENERIC < PTXSIM_WINDOW)
        return SP_PARAM;
    return SP_GLOBAL;
}

void ptxsim_early(struct warp *w, const struct insn *i, uint32_t mask, enum ptxsim_space space, uint32_t base,
                  int64_t offset) {
    const uint64_t *address = ptxsim_source(w, base);
    for (; mask; mask &= mask - 1) {
        int lane = __builtin_ctz(mask);
        uint64_t at = address[lane] + (uint64_t)offset;
        if (space == SP_GLOBAL || (space == SP_GENERIC && ptxsim_generic_space(at) == SP_GLOBAL))
            ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "global memory at 0x%llx is touched before griddepcontrol.wait",
                         (unsigned long long)at);
    }
}

static const char *access_name(enum ptxsim_access access) {
    return access == ACC_LOAD ? "load" : access == ACC_STORE ? "store" : "atomic";
}

/* Reports the error of an access to device memory, after the shadow has shown that it is wrong. */
static _Noreturn void global_fault(struct warp *w, const struct insn *i, int lane, enum ptxsim_space space,
                                   uint64_t address, uint32_t bytes, enum ptxsim_access access) {
    const char *name = access_name(access);
    unsigned long long shown = address;
    if (address - PTXSIM_DEVICE_BASE >= PTXSIM_DEVICE_SPAN - 16) {
        if (ptxsim_generic_space(address) != SP_GLOBAL)
            ptxsim_fault(w, i, lane, E_INVALID_ADDRESS_SPACE,
                         "%s of %u bytes at 0x%llx: this generic address is not in the instruction's space", name,
                         bytes, shown);
        ptxsim_fault(w, i, lane, E_ILLEGAL_ADDRESS, "%s of %u bytes at 0x%llx, which is no device address", name, bytes,
                     shown);
    }
    const uint8_t *shadow = ptxsim_shadow + (address - PTXSIM_DEVICE_BASE);
    for (uint32_t b = 0; b < bytes; b++) {
        if (!(shadow[b] & SH_OPEN)) {
            if (was_freed(address + b))
                ptxsim_fault(w, i, lane, E_ILLEGAL_ADDRESS, "use after free: %s of %u bytes at 0x%llx", name, bytes,
                             shown);
            uint32_t at = find(address);
            unsigned long long base = at ? live[at - 1].address : 0, size = at ? live[at - 1].bytes : 0;
            ptxsim_fault(w, i, lane, E_ILLEGAL_ADDRESS,
                         "out of bounds: %s of %u bytes at 0x%llx; the allocation before has %llu bytes at 0x%llx",
                         name, bytes, shown, size, base);
        }
        if (access != ACC_LOAD && shadow[b] & SH_CONST)
            ptxsim_fault(w, i, lane, E_ILLEGAL_ADDRESS, "%s to constant memory at 0x%llx", name, shown);
        if (access != ACC_LOAD && shadow[b] & SH_READ)
            ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "%s of %u bytes at 0x%llx, which a bulk copy under way reads",
                         name, bytes, shown);
        if (space == SP_CONST && !(shadow[b] & SH_CONST))
            ptxsim_fault(w, i, lane, E_INVALID_ADDRESS_SPACE, "0x%llx is not in constant memory", shown);
    }
    ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "uninitialised device memory: %s of %u bytes at 0x%llx", name, bytes,
                 shown);
}

/* Checks eight shadow bytes at a time where it can. */
static bool shadow_has(const uint8_t *shadow, uint32_t bytes, uint8_t want, uint8_t bad) {
    const uint64_t ones = 0x0101010101010101ull;
    uint64_t care = (uint64_t)(want | bad) * ones, expect = want * ones;
    bool ok = true;
    for (; bytes >= 8; bytes -= 8, shadow += 8) {
        uint64_t v;
        memcpy(&v, shadow, sizeof v);
        ok = ok && (v & care) == expect;
    }
    if (bytes) {
        uint64_t v = 0, part = (1ull << (8 * bytes)) - 1;
        if (bytes == 4)
            memcpy(&v, shadow, 4);
        else if (bytes == 2)
            memcpy(&v, shadow, 2);
        else
            memcpy(&v, shadow, bytes);
        ok = ok && (v & care & part) == (expect & part);
    }
    return ok;
}

static bool global_ok(uint8_t *shadow, uint32_t bytes, enum ptxsim_space space, enum ptxsim_access access) {
    uint8_t want = access == ACC_STORE ? SH_OPEN : SH_OPEN | SH_INIT;
    if (space == SP_CONST)
        want |= SH_CONST;
    if (!shadow_has(shadow, bytes, want, access == ACC_LOAD ? 0 : SH_CONST | SH_READ))
        return false;
    if (access != ACC_LOAD)
        memset(shadow, SH_OPEN | SH_INIT, bytes);
    return true;
}

static uint8_t *local_access(struct warp *w, const struct insn *i, int lane, uint64_t address, uint32_t bytes,
                             enum ptxsim_access access, uint8_t **init) {
    uint32_t size = w->kernel->local_bytes;
    uint64_t offset = address - PTXSIM_LOCAL_BASE;
    if (offset >= size || bytes > size - offset)
        ptxsim_fault(w, i, lane, E_ILLEGAL_ADDRESS, "out of bounds: %s of %u bytes at local address 0x%llx",
                     access_name(access), bytes, (unsigned long long)address);
    size_t at = (size_t)lane * size + offset;
    *init = w->local_init + at;
    return w->local + at;
}

static uint8_t *shared_access(struct warp *w, const struct insn *i, int lane, enum ptxsim_space space, uint64_t address,
                              uint32_t bytes, enum ptxsim_access access) {
    struct launch *launch = w->launch;
    uint64_t rank = address / PTXSIM_SHARED_STEP - 1;
    uint32_t offset = (uint32_t)(address % PTXSIM_SHARED_STEP);
    if (address < PTXSIM_SHARED_STEP || rank >= launch->nctas)
        ptxsim_fault(w, i, lane, E_ILLEGAL_ADDRESS, "%s of %u bytes at 0x%llx, which is no shared address",
                     access_name(access), bytes, (unsigned long long)address);
    struct cta *owner = &launch->ctas[rank];
    if (space == SP_SHARED && owner != w->cta)
        ptxsim_fault(w, i, lane, E_INVALID_ADDRESS_SPACE,
                     "%s at shared address 0x%llx of another block needs .shared::cluster", access_name(access),
                     (unsigned long long)address);
    if (offset >= owner->shared_bytes || bytes > owner->shared_bytes - offset)
        ptxsim_fault(w, i, lane, E_ILLEGAL_ADDRESS,
                     "out of bounds: %s of %u bytes at shared offset %u; the block has %u bytes", access_name(access),
                     bytes, offset, owner->shared_bytes);
    if (owner != w->cta && owner->live == 0)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "%s of shared memory of a block of the cluster that has exited",
                     access_name(access));
    if (owner != w->cta && launch->cluster_phase == 0)
        ptxsim_fault(w, i, lane, E_LAUNCH_FAILED,
                     "%s of shared memory of a block of the cluster that may not have begun", access_name(access));
    ptxsim_shared_touch(w, i, lane, owner, offset, bytes, access);
    return owner->shared + offset;
}

uint8_t *ptxsim_access(struct warp *w, const struct insn *i, int lane, enum ptxsim_space space, uint64_t address,
                       uint32_t bytes, enum ptxsim_access access, uint8_t **local_init) {
    if (address & (bytes - 1))
        ptxsim_fault(w, i, lane, E_MISALIGNED, "misaligned %s of %u bytes at 0x%llx", access_name(access), bytes,
                     (unsigned long long)address);
    *local_init = NULL;
    if (space == SP_GENERIC) {
        space = ptxsim_generic_space(address);
        if (space == SP_CLUSTER)
            address -= PTXSIM_SHARED_GENERIC;
        if (space == SP_LOCAL)
            address -= PTXSIM_LOCAL_GENERIC;
        if (space == SP_PARAM)
            address -= PTXSIM_PARAM_GENERIC;
    }
    switch (space) {
    case SP_GLOBAL:
    case SP_CONST: {
        uint64_t offset = address - PTXSIM_DEVICE_BASE;
        if (offset >= PTXSIM_DEVICE_SPAN - 64 || !global_ok(ptxsim_shadow + offset, bytes, space, access))
            global_fault(w, i, lane, space, address, bytes, access);
        return ptxsim_arena + offset;
    }
    case SP_SHARED:
    case SP_CLUSTER:
        return shared_access(w, i, lane, space, address, bytes, access);
    case SP_LOCAL:
        return local_access(w, i, lane, address, bytes, access, local_init);
    case SP_PARAM: {
        uint64_t offset = address - PTXSIM_PARAM_BASE;
        if (access != ACC_LOAD || offset >= w->kernel->param_bytes || bytes > w->kernel->param_bytes - offset)
            ptxsim_fault(w, i, lane, E_ILLEGAL_ADDRESS, "%s of %u bytes at parameter address 0x%llx",
                         access_name(access), bytes, (unsigned long long)address);
        return w->launch->params + offset;
    }
    case SP_GENERIC:
        break;
    }
    abort();
}
