/* Exchanges among the lanes that a member mask names. A lane waits here until all lanes of its mask have come. Of all
 * these only bar.warp.sync orders accesses to memory. */
#include "execute.h"

typedef void exchange(struct warp *w, const struct insn *i, uint32_t group);

static void check_member(struct warp *w, const struct insn *i, uint32_t lane, uint32_t members) {
    if (!(members >> lane & 1))
        ptxsim_fault(w, i, (int)lane, E_LAUNCH_FAILED, "lane %u is not in its own member mask 0x%08x", lane, members);
    if (members & w->exited)
        ptxsim_fault(w, i, (int)lane, E_LAUNCH_FAILED, "member mask 0x%08x names lanes 0x%08x, which have exited",
                     members, members & w->exited);
}

static enum ptxsim_next meet(struct warp *w, const struct insn *i, uint32_t mask, uint32_t nth, exchange *act) {
    const uint64_t *members = SOURCE(nth);
    uint32_t first = (uint32_t)members[__builtin_ctz(mask)];
    bool same = true;
    ptxsim_need(w, i, i->s[nth], mask, "the member mask");
    for (uint32_t m = mask; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m);
        check_member(w, i, lane, (uint32_t)members[lane]);
        same = same && members[lane] == first;
    }
    if (same && (first & w->exists) == mask) {
        act(w, i, mask);
        return NEXT;
    }
    uint32_t here = mask;
    for (uint32_t l = 0; l < PTXSIM_WARP; l++)
        if (w->at_sync >> l & 1 && w->pc[l] == w->cur_pc)
            here |= 1u << l;
    ptxsim_advance(w, w->cur & ~mask, w->cur_pc + 1);
    ptxsim_advance(w, mask, w->cur_pc);
    w->at_sync |= here;
    w->runnable &= ~here;
    while (here) {
        uint32_t want = (uint32_t)members[__builtin_ctz(here)];
        uint32_t group = 0;
        for (uint32_t m = here; m; m &= m - 1)
            if (members[__builtin_ctz(m)] == want)
                group |= 1u << __builtin_ctz(m);
        here &= ~group;
        if (group != (want & w->exists))
            continue;
        act(w, i, group);
        w->at_sync &= ~group;
        w->runnable |= group;
        ptxsim_advance(w, group, w->cur_pc + 1);
    }
    return RESCHEDULE;
}

/* Lanes may wait for each other at different bar.warp.sync instructions. */
EXEC(bar_warp) {
    const uint64_t *members = SOURCE(0);
    ptxsim_need(w, i, i->s[0], mask, "the member mask");
    ptxsim_advance(w, w->cur & ~mask, w->cur_pc + 1);
    ptxsim_advance(w, mask, w->cur_pc);
    for (uint32_t m = mask; m; m &= m - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(m);
        check_member(w, i, lane, (uint32_t)members[lane]);
        w->warpbar_mask[lane] = (uint32_t)members[lane];
    }
    w->at_warpbar |= mask;
    w->runnable &= ~mask;
    for (uint32_t left = mask; left;) {
        uint32_t want = w->warpbar_mask[__builtin_ctz(left)];
        uint32_t group = 0;
        for (uint32_t m = w->at_warpbar; m; m &= m - 1)
            if (w->warpbar_mask[__builtin_ctz(m)] == want)
                group |= 1u << __builtin_ctz(m);
        left &= ~group;
        if (group != (want & w->exists))
            continue;
        ptxsim_shared_sync(w, group);
        w->at_warpbar &= ~group;
        w->runnable |= group;
        for (uint32_t m = group; m; m &= m - 1)
            w->pc[__builtin_ctz(m)]++;
    }
    return RESCHEDULE;
}

static void do_shfl(struct warp *w, const struct insn *i, uint32_t group) {
    const uint64_t *a = SOURCE(0), *b = SOURCE(1), *c = SOURCE(2);
    uint32_t have = ptxsim_defined(w, i->s[0]), defined = 0;
    uint64_t value[PTXSIM_WARP];
    uint8_t inside[PTXSIM_WARP];
    ptxsim_need(w, i, i->s[1], group, "the shuffle's lane operand");
    ptxsim_need(w, i, i->s[2], group, "the shuffle's clamp operand");
    for (uint32_t m = group; m; m &= m - 1) {
        int lane = __builtin_ctz(m);
        int by = (int)(b[lane] & 31), clamp = (int)(c[lane] & 31), segment = (int)(c[lane] >> 8 & 31);
        int most = (lane & segment) | (clamp & ~segment), least = lane & segment;
        int from = lane;
        bool in;
        switch (i->op[0]) {
        case OP_UP:
            from = lane - by;
            in = from >= most;
            break;
        case OP_DOWN:
            from = lane + by;
            in = from <= most;
            break;
        case OP_BFLY:
            from = lane ^ by;
            in = from <= most;
            break;
        default:
            from = least | (by & ~segment);
            in = from <= most;
            break;
        }
        if (!in)
            from = lane;
        if (!(group >> from & 1))
            ptxsim_fault(w, i, lane, E_LAUNCH_FAILED, "shuffle from inactive lane %d (active 0x%08x)", from, group);
        value[lane] = a[from];
        inside[lane] = in;
        defined |= (have >> from & 1) << lane;
    }
    for (uint32_t m = group; m; m &= m - 1) {
        int lane = __builtin_ctz(m);
        RESULT[lane] = value[lane];
        if (i->nd > 1)
            RESULT2[lane] = inside[lane];
    }
    ptxsim_define(w, i->d[0], group, defined);
    if (i->nd > 1)
        ptxsim_define(w, i->d[1], group, ~0u);
}

EXEC(shfl) {
    return meet(w, i, mask, 3, do_shfl);
}

static void give_all(struct warp *w, const struct insn *i, uint32_t group, uint64_t value) {
    for (uint32_t m = group; m; m &= m - 1)
        RESULT[__builtin_ctz(m)] = value;
    ptxsim_define(w, i->d[0], group, ~0u);
}

static void do_vote(struct warp *w, const struct insn *i, uint32_t group) {
    const uint64_t *p = SOURCE(0);
    uint32_t votes = 0;
    ptxsim_need(w, i, i->s[0], group, "the vote");
    for (uint32_t m = group; m; m &= m - 1) {
        int lane = __builtin_ctz(m);
        votes |= (uint32_t)((p[lane] & 1) != i->negate) << lane;
    }
    uint64_t result = i->op[0] == OP_ALL   ? votes == group
                      : i->op[0] == OP_ANY ? votes != 0
                      : i->op[0] == OP_UNI ? votes == group || votes == 0
                                           : votes;
    give_all(w, i, group, result);
}

EXEC(vote) {
    return meet(w, i, mask, 1, do_vote);
}

static void do_match(struct warp *w, const struct insn *i, uint32_t group) {
    const uint64_t *a = SOURCE(0);
    uint32_t equal[PTXSIM_WARP] = {0};
    ptxsim_need(w, i, i->s[0], group, "the matched value");
    for (uint32_t m = group; m; m &= m - 1)
        for (uint32_t n = group; n; n &= n - 1)
            equal[__builtin_ctz(m)] |= (uint32_t)(a[__builtin_ctz(m)] == a[__builtin_ctz(n)]) << __builtin_ctz(n);
    for (uint32_t m = group; m; m &= m - 1) {
        int lane = __builtin_ctz(m);
        bool all = equal[lane] == group;
        RESULT[lane] = i->op[0] == OP_ANY ? equal[lane] : all ? group : 0;
        if (i->nd > 1)
            RESULT2[lane] = all;
    }
    for (uint32_t d = 0; d < i->nd; d++)
        ptxsim_define(w, i->d[d], group, ~0u);
}

EXEC(match) {
    return meet(w, i, mask, 1, do_match);
}

static void do_redux(struct warp *w, const struct insn *i, uint32_t group) {
    const uint64_t *a = SOURCE(0);
    uint32_t r = (uint32_t)a[__builtin_ctz(group)];
    ptxsim_need(w, i, i->s[0], group, "the reduced value");
    for (uint32_t m = group & (group - 1); m; m &= m - 1) {
        uint32_t v = (uint32_t)a[__builtin_ctz(m)];
        bool less = i->type[0] == T_S32 ? (int32_t)v < (int32_t)r : v < r;
        switch (i->op[0]) {
        case OP_ADD:
            r += v;
            break;
        case OP_MIN:
            r = less ? v : r;
            break;
        case OP_MAX:
            r = less ? r : v;
            break;
        case OP_AND:
            r &= v;
            break;
        case OP_OR:
            r |= v;
            break;
        default:
            r ^= v;
            break;
        }
    }
    give_all(w, i, group, r);
}

EXEC(redux) {
    return meet(w, i, mask, 1, do_redux);
}

static void do_elect(struct warp *w, const struct insn *i, uint32_t group) {
    uint32_t leader = (uint32_t)__builtin_ctz(group);
    give_all(w, i, group, leader);
    if (i->nd < 2)
        return;
    for (uint32_t m = group; m; m &= m - 1)
        RESULT2[__builtin_ctz(m)] = (uint32_t)__builtin_ctz(m) == leader;
    ptxsim_define(w, i->d[1], group, ~0u);
}

EXEC(elect) {
    return meet(w, i, mask, 0, do_elect);
}
