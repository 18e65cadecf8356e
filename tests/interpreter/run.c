/* Runs a launch: the blocks of one cluster at a time, and their warps one after the other. All lanes of a warp with the
 * same program counter run at once. Of diverged lanes, the deepest call and then the lowest program counter runs first.
 * Lanes then meet again where the compiler planned it. */
#include "ptxsim.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { QUANTUM = 512, FAIR_PERIOD = 20000 };

char ptxsim_fault_text[2048];
uint64_t ptxsim_total_instructions;
static uint64_t launches;
double ptxsim_total_seconds;

_Noreturn void ptxsim_fault(struct warp *w, const struct insn *i, int lane, int code, const char *format, ...) {
    struct launch *launch = w->launch;
    char reason[512];
    const char *text = "";
    int length = i ? ptxsim_line_text(w->kernel->module, i->line, &text) : 0;
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    uint32_t t = w->index * PTXSIM_WARP + (uint32_t)(lane < 0 ? 0 : lane);
    const uint32_t *b = launch->block;
    snprintf(ptxsim_fault_text, sizeof ptxsim_fault_text,
             "ptxsim: error %d: %s; kernel %s, block (%u,%u,%u), thread (%u,%u,%u), PTX line %u: %.*s", code, reason,
             w->kernel->name, w->cta->index[0], w->cta->index[1], w->cta->index[2], t % b[0], t / b[0] % b[1],
             t / b[0] / b[1], i ? i->line : 0, length, text);
    fprintf(stderr, "%s\n", ptxsim_fault_text);
    launch->error = code;
    longjmp(launch->escape, 1);
}

uint64_t ptxsim_random(struct launch *launch) {
    uint64_t z = (launch->random += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static void shuffle(struct launch *launch, uint32_t *items, uint32_t n) {
    if (ptxsim_device.seed == 0)
        return;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)(ptxsim_random(launch) % i);
        uint32_t swap = items[i - 1];
        items[i - 1] = items[j];
        items[j] = swap;
    }
}

static uint32_t mask_below(uint32_t n) {
    return n >= 32 ? ~0u : (1u << n) - 1;
}

static uint64_t special_value(const struct warp *w, enum ptxsim_special id, uint64_t value, uint32_t lane) {
    const struct launch *launch = w->launch;
    const struct cta *cta = w->cta;
    const uint32_t *b = launch->block, *g = launch->grid, *c = launch->cluster;
    uint32_t t = w->index * PTXSIM_WARP + lane;
    uint32_t shared_base = (cta->rank + 1) * PTXSIM_SHARED_STEP;
    switch (id) {
    case SR_TID_X:
        return t % b[0];
    case SR_TID_Y:
        return t / b[0] % b[1];
    case SR_TID_Z:
        return t / b[0] / b[1];
    case SR_NTID_X:
    case SR_NTID_Y:
    case SR_NTID_Z:
        return b[id - SR_NTID_X];
    case SR_CTAID_X:
    case SR_CTAID_Y:
    case SR_CTAID_Z:
        return cta->index[id - SR_CTAID_X];
    case SR_NCTAID_X:
    case SR_NCTAID_Y:
    case SR_NCTAID_Z:
        return g[id - SR_NCTAID_X];
    case SR_LANEID:
        return lane;
    case SR_WARPID:
        return w->index;
    case SR_NWARPID:
        return cta->nwarps;
    case SR_SMID:
        return (cta->index[0] + cta->index[1] + cta->index[2]) % ptxsim_device.sms;
    case SR_NSMID:
        return ptxsim_device.sms;
    case SR_GRIDID:
        return 1;
    case SR_MASK_EQ:
        return 1u << lane;
    case SR_MASK_LT:
        return mask_below(lane);
    case SR_MASK_LE:
        return mask_below(lane + 1);
    case SR_MASK_GT:
        return ~mask_below(lane + 1);
    case SR_MASK_GE:
        return ~mask_below(lane);
    case SR_CLUSTERID_X:
    case SR_CLUSTERID_Y:
    case SR_CLUSTERID_Z:
        return cta->index[id - SR_CLUSTERID_X] / c[id - SR_CLUSTERID_X];
    case SR_NCLUSTERID_X:
    case SR_NCLUSTERID_Y:
    case SR_NCLUSTERID_Z:
        return g[id - SR_NCLUSTERID_X] / c[id - SR_NCLUSTERID_X];
    case SR_CLUSTER_CTAID_X:
    case SR_CLUSTER_CTAID_Y:
    case SR_CLUSTER_CTAID_Z:
        return cta->index[id - SR_CLUSTER_CTAID_X] % c[id - SR_CLUSTER_CTAID_X];
    case SR_CLUSTER_NCTAID_X:
    case SR_CLUSTER_NCTAID_Y:
    case SR_CLUSTER_NCTAID_Z:
        return c[id - SR_CLUSTER_NCTAID_X];
    case SR_CLUSTER_CTARANK:
        return cta->rank;
    case SR_CLUSTER_NCTARANK:
        return launch->nctas;
    case SR_IS_EXPLICIT_CLUSTER:
        return launch->nctas > 1;
    case SR_DYNAMIC_SMEM:
        return launch->dynamic_bytes;
    case SR_TOTAL_SMEM:
        return launch->dynamic_bytes + w->kernel->shared_bytes;
    case SR_SHARED_SYMBOL:
        return shared_base + value;
    case SR_DYNAMIC_SYMBOL:
        return shared_base + w->kernel->shared_bytes;
    case SR_CLOCK:
    case SR_CLOCK_HI:
    case SR_CLOCK64:
    case SR_GLOBALTIMER:
    case SR_GLOBALTIMER_LO:
    case SR_GLOBALTIMER_HI:
        break; /* read by mov when it runs */
    }
    return 0;
}

static void warp_reset(struct warp *w) {
    struct kernel *kernel = w->kernel;
    uint32_t threads = w->cta->threads - w->index * PTXSIM_WARP;
    w->exists = w->runnable = mask_below(threads);
    w->waited = w->launch->dependent ? 0 : ~0u;
    w->exited = w->at_bar = w->at_sync = w->at_warpbar = w->at_cluster = w->cur = 0;
    w->clock = 1;
    w->full_sync = 0;
    w->has_pairs = false;
    w->carry = w->cluster_arrived = w->pending.count = w->nseen = 0;
    w->seen_differ = w->others_first = false;
    w->since_wait = UINT32_MAX;
    memset(w->pc, 0, sizeof w->pc);
    memset(w->depth, 0, sizeof w->depth);
    memset(w->async_group, 0, sizeof w->async_group);
    memset(w->fence_clock, 0, sizeof w->fence_clock);
    memset(w->fence_time, 0, sizeof w->fence_time);
    memset(w->def, 0, kernel->nslots * sizeof *w->def);
    for (uint32_t l = 0; l < PTXSIM_WARP; l++)
        w->pc[l] = kernel->entry;
    for (uint32_t s = 0; s < kernel->nspecials; s++) {
        const struct special *special = &kernel->specials[s];
        uint64_t *r = w->regs + (size_t)special->slot * PTXSIM_WARP;
        for (uint32_t l = 0; l < PTXSIM_WARP; l++)
            r[l] = special_value(w, special->id, special->value, l);
        w->def[special->slot] = ~0u;
    }
    if (kernel->local_bytes)
        memset(w->local_init, 0, (size_t)kernel->local_bytes * PTXSIM_WARP);
}

static void cta_start(struct cta *cta, const uint32_t index[3]) {
    memcpy(cta->index, index, sizeof cta->index);
    cta->live = cta->threads;
    memset(cta->barriers, 0, sizeof cta->barriers);
    ptxsim_shared_reset(cta);
    for (uint32_t i = 0; i < cta->nwarps; i++)
        warp_reset(&cta->warps[i]);
}

/* Takes the lanes that run next, and where other lanes wait for the present ones. */
static bool pick(struct warp *w, bool fair) {
    uint32_t best = 0, key = UINT32_MAX;
    uint32_t next = UINT32_MAX;
    if (!w->runnable)
        return false;
    for (uint32_t l = 0; l < PTXSIM_WARP; l++) {
        if (!(w->runnable >> l & 1))
            continue;
        uint32_t k = (uint32_t)(PTXSIM_CALL_DEPTH - w->depth[l]) << 24 | w->pc[l];
        if (fair)
            k = UINT32_MAX - 1 - k;
        if (k < key) {
            if (key < next)
                next = key;
            key = k;
            best = 1u << l;
        } else if (k == key) {
            best |= 1u << l;
        } else if (k < next) {
            next = k;
        }
    }
    w->cur = best;
    w->cur_pc = w->pc[__builtin_ctz(best)];
    w->next_pc = next == UINT32_MAX ? UINT32_MAX : fair ? 0 : next >> 24 == key >> 24 ? next & 0xffffff : UINT32_MAX;
    return true;
}

/* Sends lanes on to pc; the executor then requests rescheduling. */
void ptxsim_advance(struct warp *w, uint32_t mask, uint32_t pc) {
    for (; mask; mask &= mask - 1)
        w->pc[__builtin_ctz(mask)] = pc;
}

void ptxsim_leave(struct warp *w, uint32_t mask) {
    /* Where a thread does not wait, the next kernel could run beside the kernels before this one. */
    if (mask & ~w->waited)
        ptxsim_fault(w, &w->kernel->code[w->cur_pc], __builtin_ctz(mask & ~w->waited), E_LAUNCH_FAILED,
                     "a thread of a dependent launch ends without griddepcontrol.wait");
    w->runnable &= ~mask;
    w->exited |= mask;
    w->cta->live -= (uint32_t)__builtin_popcount(mask);
    for (uint32_t id = 0; id < PTXSIM_FULL_BARRIERS; id++)
        if (w->cta->barriers[id].arrived)
            ptxsim_barrier_check(w->cta, id);
    if (w->cta->live == 0)
        ptxsim_mbarrier_exit(w, &w->kernel->code[w->cur_pc], __builtin_ctz(mask));
    w->launch->cluster_arrived -= (uint32_t)__builtin_popcount(w->cluster_arrived & mask);
    w->cluster_arrived &= ~mask;
    ptxsim_cluster_check(w->launch);
}

static void poison(struct warp *w, const struct insn *i, uint32_t mask) {
    uint32_t defined = ~0u;
    for (uint32_t s = 0; s < i->ns; s++)
        defined &= ptxsim_defined(w, i->s[s]);
    for (uint32_t d = 0; d < i->nd; d++)
        ptxsim_define(w, i->d[d], mask, defined);
}

static uint32_t guarded(struct warp *w, const struct insn *i) {
    const uint64_t *p = w->regs + (size_t)i->guard * PTXSIM_WARP;
    uint32_t mask = 0;
    uint32_t undefined = w->cur & ~w->def[i->guard];
    if (undefined)
        ptxsim_fault(w, i, __builtin_ctz(undefined), E_LAUNCH_FAILED, "guard predicate was never written");
    for (uint32_t l = 0; l < PTXSIM_WARP; l++)
        mask |= (uint32_t)(p[l] & 1) << l;
    return (i->guard_not ? ~mask : mask) & w->cur;
}

/* Runs one warp for a while; says whether it did anything. */
static bool warp_run(struct warp *w, uint32_t quantum) {
    struct insn *code = w->kernel->code;
    struct launch *launch = w->launch;
    bool fair = (launch->steps / FAIR_PERIOD % 4 == 3) != w->others_first && (w->runnable & (w->runnable - 1));
    enum ptxsim_next next = NEXT;
    uint64_t lanes = 0;
    if (!pick(w, fair))
        return false;
    uint32_t left = quantum;
    while (left--) {
        struct insn *i = &code[w->cur_pc];
        uint32_t mask = w->cur;
        i->hit = true;
        if (i->guard != SLOT_NONE) {
            mask = guarded(w, i);
            if (!mask) {
                w->cur_pc++;
                goto merge;
            }
        }
        lanes += mask == ~0u ? PTXSIM_WARP : (uint32_t)__builtin_popcount(mask);
        if (i->pure) {
            poison(w, i, mask);
            i->exec(w, i, mask);
            w->cur_pc++;
        } else if ((next = i->exec(w, i, mask)) == NEXT) {
            w->cur_pc++;
        } else {
            if (!pick(w, fair) || next == YIELD)
                break;
            continue;
        }
    merge:
        if (w->cur_pc >= w->next_pc) {
            ptxsim_advance(w, w->cur, w->cur_pc);
            pick(w, fair);
        }
    }
    if (w->runnable)
        ptxsim_advance(w, w->cur & w->runnable, w->cur_pc);
    launch->steps += quantum - left;
    w->since_wait = next == YIELD ? 0 : w->since_wait > UINT32_MAX - quantum ? UINT32_MAX : w->since_wait + quantum;
    w->others_first = next == YIELD && !w->others_first;
    launch->instructions += lanes;
    if (launch->steps > launch->step_limit) {
        const struct insn *i = &code[w->cur_pc < w->kernel->ncode ? w->cur_pc : 0];
        ptxsim_fault(w, i, w->cur ? __builtin_ctz(w->cur) : 0, E_TIMEOUT,
                     "step limit of %llu warp instructions in a block or cluster passed",
                     (unsigned long long)launch->step_limit);
    }
    return true;
}

/* Nothing can run though threads remain: names a waiting thread, and what it waits for. */
static _Noreturn void deadlock(struct launch *launch) {
    struct warp *waiting = NULL;
    for (uint32_t c = 0; c < launch->nctas; c++) {
        struct cta *cta = &launch->ctas[c];
        for (uint32_t n = 0; n < cta->nwarps; n++) {
            struct warp *w = &cta->warps[n];
            if (w->at_sync | w->at_warpbar) {
                uint32_t lane = (uint32_t)__builtin_ctz(w->at_sync | w->at_warpbar);
                ptxsim_fault(w, &w->kernel->code[w->pc[lane]], (int)lane, E_LAUNCH_FAILED,
                             "lanes of the mask never reach this instruction");
            }
            if (!waiting && (w->at_bar | w->at_cluster))
                waiting = w;
        }
    }
    if (!waiting)
        abort();
    uint32_t lane = (uint32_t)__builtin_ctz(waiting->at_bar ? waiting->at_bar : waiting->at_cluster);
    ptxsim_fault(waiting, &waiting->kernel->code[waiting->pc[lane]], (int)lane, E_LAUNCH_FAILED,
                 "divergent barrier: not all threads reach it");
}

static void cluster_run(struct launch *launch) {
    uint32_t live;
    do {
        bool progress = false;
        live = 0;
        for (uint32_t c = 0; c < launch->nctas; c++) {
            struct cta *cta = &launch->ctas[c];
            shuffle(launch, cta->order, cta->nwarps);
            for (uint32_t n = 0; n < cta->nwarps && cta->live; n++) {
                uint32_t quantum = ptxsim_device.seed ? (uint32_t)(ptxsim_random(launch) % 64) + 1 : QUANTUM;
                progress = warp_run(&cta->warps[cta->order[n]], quantum) || progress;
            }
            live += cta->live;
        }
        if (!progress && live)
            deadlock(launch);
        ptxsim_mbarrier_idle(launch);
    } while (live);
}

static void run_blocks(struct launch *launch, const uint32_t *order, uint64_t total) {
    const uint32_t *g = launch->grid, *c = launch->cluster;
    uint32_t x = g[0] / c[0], y = g[1] / c[1];
    for (uint64_t n = 0; n < total; n++) {
        uint64_t at = order ? order[n] : n;
        uint32_t corner[3] = {(uint32_t)(at % x) * c[0], (uint32_t)(at / x % y) * c[1], (uint32_t)(at / x / y) * c[2]};
        launch->cluster_arrived = launch->cluster_phase = launch->pending.count = 0;
        launch->mbarriers.count = launch->mbarriers.idle = 0;
        for (uint32_t r = 0; r < launch->nctas; r++) {
            uint32_t index[3] = {corner[0] + r % c[0], corner[1] + r / c[0] % c[1], corner[2] + r / c[0] / c[1]};
            cta_start(&launch->ctas[r], index);
        }
        launch->steps = 0;
        cluster_run(launch);
    }
}

static void *must(void *memory) {
    if (!memory)
        abort();
    return memory;
}

static void free_launch(struct launch *launch, uint32_t warps) {
    for (uint32_t c = 0; c < launch->nctas; c++) {
        struct cta *cta = &launch->ctas[c];
        for (uint32_t n = 0; n < warps; n++) {
            free(cta->warps[n].def);
            free(cta->warps[n].local);
            free(cta->warps[n].local_init);
            free(cta->warps[n].pending.at);
            free(cta->warps[n].seen);
        }
        free(cta->warps);
        free(cta->order);
        ptxsim_shared_free(cta);
    }
    free(launch->ctas);
    free(launch->pending.at);
    free(launch->mbarriers.at);
}

/* The registers of a launch. Their memory serves all launches, so that it is new to the system only once. */
static uint64_t *registers_of(const struct launch *launch, uint32_t warps) {
    static uint64_t *registers;
    static size_t room;
    const size_t wanted = (size_t)launch->nctas * warps * launch->kernel->nslots * PTXSIM_WARP;
    if (wanted > room) {
        free(registers);
        registers = must(malloc(wanted * sizeof *registers));
        room = wanted;
    }
    return registers;
}

static void make_launch(struct launch *launch, uint32_t threads, uint32_t warps) {
    struct kernel *kernel = launch->kernel;
    uint64_t *registers = registers_of(launch, warps);
    launch->ctas = must(calloc(launch->nctas, sizeof *launch->ctas));
    for (uint32_t c = 0; c < launch->nctas; c++) {
        struct cta *cta = &launch->ctas[c];
        cta->launch = launch;
        cta->rank = c;
        cta->threads = threads;
        cta->nwarps = warps;
        cta->warps = must(calloc(warps, sizeof *cta->warps));
        cta->order = must(calloc(warps, sizeof *cta->order));
        if (ptxsim_shared_new(cta, kernel->shared_bytes + launch->dynamic_bytes) != E_OK)
            abort();
        for (uint32_t n = 0; n < warps; n++) {
            struct warp *w = &cta->warps[n];
            cta->order[n] = n;
            w->cta = cta;
            w->launch = launch;
            w->kernel = kernel;
            w->index = n;
            w->pool = kernel->pool;
            w->regs = registers + ((size_t)c * warps + n) * kernel->nslots * PTXSIM_WARP;
            w->def = must(calloc(kernel->nslots, sizeof *w->def));
            if (kernel->local_bytes) {
                w->local = must(calloc(kernel->local_bytes, PTXSIM_WARP));
                w->local_init = must(calloc(kernel->local_bytes, PTXSIM_WARP));
            }
        }
    }
}

void ptxsim_run(struct launch *launch) {
    uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    uint32_t warps = (threads + PTXSIM_WARP - 1) / PTXSIM_WARP;
    launch->nctas = launch->cluster[0] * launch->cluster[1] * launch->cluster[2];
    launch->error = E_OK;
    launch->steps = launch->instructions = 0;
    launch->random = ptxsim_device.seed + launches++ * 0xd1342543de82ef95ull;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    make_launch(launch, threads, warps);
    uint64_t total = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2] / launch->nctas;
    uint32_t *order = NULL;
    if (ptxsim_device.seed && total < 1u << 24) {
        order = must(malloc(total * sizeof *order));
        for (uint32_t n = 0; n < total; n++)
            order[n] = n;
        shuffle(launch, order, (uint32_t)total);
    }
    if (setjmp(launch->escape) == 0)
        run_blocks(launch, order, total);
    ptxsim_mbarrier_clear(launch);
    free_launch(launch, warps);
    free(order);
    clock_gettime(CLOCK_MONOTONIC, &end);
    ptxsim_total_seconds += (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
    ptxsim_total_instructions += launch->instructions;
}
