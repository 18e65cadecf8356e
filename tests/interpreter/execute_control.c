/* Branches, calls, the barriers of a block, and the wait for earlier kernels. */
#include "execute.h"

EXEC(bra) {
    uint32_t stay = w->cur & ~mask;
    if (!stay) {
        w->cur_pc = i->target - 1;
        return NEXT;
    }
    ptxsim_advance(w, mask, i->target);
    ptxsim_advance(w, stay, w->cur_pc + 1);
    return RESCHEDULE;
}

static void copy_arguments(struct warp *w, uint32_t lane, uint32_t first, uint32_t count) {
    size_t base = (size_t)lane * w->kernel->local_bytes;
    for (uint32_t n = 0; n < count; n++) {
        const struct argument_copy *copy = &w->kernel->copies[first + n];
        memcpy(w->local + base + copy->to, w->local + base + copy->from, copy->bytes);
        memcpy(w->local_init + base + copy->to, w->local_init + base + copy->from, copy->bytes);
    }
}

EXEC(call) {
    for (uint32_t m = mask; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m);
        if (w->depth[lane] == PTXSIM_CALL_DEPTH)
            ptxsim_fault(w, i, (int)lane, E_LAUNCH_FAILED, "calls are nested too deeply");
        copy_arguments(w, lane, i->copy, i->ncopy);
        w->stack[lane][w->depth[lane]++] = w->cur_pc + 1;
    }
    ptxsim_advance(w, mask, i->target);
    ptxsim_advance(w, w->cur & ~mask, w->cur_pc + 1);
    return RESCHEDULE;
}

EXEC(ret) {
    uint32_t gone = 0;
    (void)i;
    for (uint32_t m = mask; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m);
        if (w->depth[lane] == 0) {
            gone |= 1u << lane;
            continue;
        }
        uint32_t back = w->stack[lane][--w->depth[lane]];
        const struct insn *site = &w->kernel->code[back - 1];
        copy_arguments(w, lane, site->copy + site->ncopy, site->ncopy_back);
        w->pc[lane] = back;
    }
    ptxsim_advance(w, w->cur & ~mask, w->cur_pc + 1);
    if (gone)
        ptxsim_leave(w, gone);
    return RESCHEDULE;
}

EXEC(exit) {
    (void)i;
    ptxsim_advance(w, w->cur & ~mask, w->cur_pc + 1);
    ptxsim_leave(w, mask);
    return RESCHEDULE;
}

EXEC(trap) {
    ptxsim_fault(w, i, __builtin_ctz(mask), E_LAUNCH_FAILED, "the kernel trapped");
}

EXEC(nanosleep) {
    (void)w, (void)i, (void)mask;
    return NEXT;
}

/* Kernels run one after the other, so all that a thread waits for has happened. Only the wait itself is recorded. */
EXEC(grid_wait) {
    (void)i;
    w->waited |= mask;
    return NEXT;
}

/* The next kernel may begin, but waits for the end of this one all the same. */
EXEC(launch_dependents) {
    (void)w, (void)i, (void)mask;
    return NEXT;
}

/* Lets the waiting threads go when all that are expected have come. */
void ptxsim_barrier_check(struct cta *cta, uint32_t id) {
    struct barrier *b = &cta->barriers[id];
    uint32_t expected = b->expected ? b->expected : cta->live;
    if (b->arrived < expected)
        return;
    for (uint32_t n = 0; n < cta->nwarps; n++) {
        struct warp *w = &cta->warps[n];
        for (uint32_t m = w->at_bar; m; m &= m - 1) {
            uint32_t lane = (uint32_t)__builtin_ctz(m);
            const struct insn *i = &w->kernel->code[w->pc[lane]];
            if (w->bar_id[lane] != id)
                continue;
            w->at_bar &= ~(1u << lane);
            w->runnable |= 1u << lane;
            w->pc[lane]++;
            if (!i->nd)
                continue;
            uint64_t popc = (uint64_t)b->votes;
            RESULT[lane] = i->op[i->nop - 1] == OP_POPC  ? popc
                           : i->op[i->nop - 1] == OP_AND ? popc == b->arrived
                                                         : popc != 0;
            ptxsim_define(w, i->d[0], 1u << lane, ~0u);
        }
    }
    memset(b, 0, sizeof *b);
    ptxsim_shared_barrier(cta);
}

static void arrive(struct warp *w, const struct insn *i, uint32_t lane, uint32_t id, uint64_t count) {
    if (id >= PTXSIM_FULL_BARRIERS)
        ptxsim_fault(w, i, (int)lane, E_ILLEGAL_INSTRUCTION, "barrier %u does not exist", id);
    if (count % PTXSIM_WARP)
        ptxsim_fault(w, i, (int)lane, E_ILLEGAL_INSTRUCTION, "barrier for %u threads, which is no whole warps",
                     (unsigned)count);
    struct barrier *b = &w->cta->barriers[id];
    if (b->arrived && b->expected != count)
        ptxsim_fault(w, i, (int)lane, E_LAUNCH_FAILED, "barrier %u is waited at for %u and for %u threads", id,
                     b->expected, (unsigned)count);
    if (b->arrived && !count && b->pc != w->cur_pc)
        ptxsim_fault(w, i, (int)lane, E_LAUNCH_FAILED, "divergent barrier: other threads wait at line %u",
                     w->kernel->code[b->pc].line);
    b->expected = (uint32_t)count;
    b->pc = w->cur_pc;
    b->arrived++;
}

/* Common to sync and red; red adds its predicate to the votes first. */
static enum ptxsim_next wait_at(struct warp *w, const struct insn *i, uint32_t mask, bool counted, bool voting) {
    uint32_t ids = 0;
    for (uint32_t n = 0; n < i->ns; n++)
        ptxsim_need(w, i, i->s[n], mask, "an operand of the barrier");
    ptxsim_advance(w, w->cur & ~mask, w->cur_pc + 1);
    ptxsim_advance(w, mask, w->cur_pc);
    w->at_bar |= mask;
    w->runnable &= ~mask;
    for (uint32_t m = mask; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m);
        uint32_t id = (uint32_t)SOURCE(0)[lane];
        arrive(w, i, lane, id, counted ? SOURCE(1)[lane] : 0);
        w->bar_id[lane] = id;
        ids |= 1u << id;
        if (voting)
            w->cta->barriers[id].votes += (SOURCE(i->ns - 1)[lane] & 1) != i->negate;
    }
    for (; ids; ids &= ids - 1)
        ptxsim_barrier_check(w->cta, (uint32_t)__builtin_ctz(ids));
    return RESCHEDULE;
}

EXEC(bar_sync) {
    return wait_at(w, i, mask, i->ns > 1, false);
}

EXEC(bar_red) {
    return wait_at(w, i, mask, i->ns > 2, true);
}

EXEC(bar_arrive) {
    uint32_t ids = 0;
    ptxsim_need(w, i, i->s[0], mask, "the barrier's number");
    ptxsim_need(w, i, i->s[1], mask, "the barrier's count");
    ptxsim_advance(w, w->cur, w->cur_pc + 1);
    for (uint32_t m = mask; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m);
        arrive(w, i, lane, (uint32_t)SOURCE(0)[lane], SOURCE(1)[lane]);
        ids |= 1u << SOURCE(0)[lane];
    }
    for (; ids; ids &= ids - 1)
        ptxsim_barrier_check(w->cta, (uint32_t)__builtin_ctz(ids));
    return RESCHEDULE;
}
