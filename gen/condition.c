/* Conditions on feature words. */
#include "condition.h"

#include <string.h>

const condition always = {0}, never = {.never = 1};

static int bits_of(uint32_t mask) {
    int count = 0;
    for (; mask != 0; mask &= mask - 1)
        count++;
    return count;
}

static void remove_mask(condition *c, int word, uint32_t at) {
    uint32_t *masks = c->masks[word];
    uint32_t last = --c->count[word];
    memmove(masks + at, masks + at + 1, (last - at) * sizeof *masks);
    masks[last] = 0;
}

/* The mask with most bits, which says least. */
static uint32_t weakest_mask(const condition *c, int word) {
    uint32_t weakest = 0;
    for (uint32_t i = 1; i < c->count[word]; i++)
        if (bits_of(c->masks[word][i]) > bits_of(c->masks[word][weakest]))
            weakest = i;
    return weakest;
}

static void insert_mask(condition *c, int word, uint32_t mask) {
    uint32_t *masks = c->masks[word], at = 0;
    if (c->count[word] == MOST_MASKS) {
        uint32_t weakest = weakest_mask(c, word);
        if (bits_of(masks[weakest]) <= bits_of(mask))
            return;
        remove_mask(c, word, weakest);
    }
    while (at < c->count[word] && masks[at] < mask)
        at++;
    memmove(masks + at + 1, masks + at, (c->count[word] - at) * sizeof *masks);
    masks[at] = mask;
    c->count[word]++;
}

void require_any(condition *c, int word, uint32_t mask) {
    mask &= ~c->off[word];
    if (c->never || mask == 0) {
        *c = never;
        return;
    }
    for (uint32_t i = c->count[word]; i-- > 0;) {
        if ((c->masks[word][i] & ~mask) == 0)
            return;
        if ((mask & ~c->masks[word][i]) == 0)
            remove_mask(c, word, i);
    }
    insert_mask(c, word, mask);
}

void require_none(condition *c, int word, uint32_t mask) {
    uint32_t masks[MOST_MASKS], count = c->count[word];
    if (c->never)
        return;
    memcpy(masks, c->masks[word], sizeof masks);
    memset(c->masks[word], 0, sizeof masks);
    c->count[word] = 0;
    c->off[word] |= mask;
    for (uint32_t i = 0; i < count; i++)
        require_any(c, word, masks[i]);
}

condition both(const condition *a, const condition *b) {
    condition c = *a;
    if (b->never)
        return never;
    for (int word = 0; word < GPULOSSI_FEATURE_WORDS; word++) {
        require_none(&c, word, b->off[word]);
        for (uint32_t i = 0; i < b->count[word]; i++)
            require_any(&c, word, b->masks[word][i]);
    }
    return c;
}

condition either(const condition *a, const condition *b) {
    condition c = always;
    if (a->never || b->never)
        return a->never ? *b : *a;
    for (int word = 0; word < GPULOSSI_FEATURE_WORDS; word++) {
        c.off[word] = a->off[word] & b->off[word];
        for (uint32_t i = 0; i < a->count[word]; i++)
            for (uint32_t k = 0; k < b->count[word]; k++)
                require_any(&c, word, a->masks[word][i] | b->masks[word][k]);
    }
    return c;
}

static int has_mask_within(const condition *c, int word, uint32_t mask) {
    for (uint32_t i = 0; i < c->count[word]; i++)
        if ((c->masks[word][i] & ~mask) == 0)
            return 1;
    return 0;
}

int implies(const condition *a, const condition *b) {
    if (a->never || b->never)
        return a->never;
    for (int word = 0; word < GPULOSSI_FEATURE_WORDS; word++) {
        if (b->off[word] & ~a->off[word])
            return 0;
        for (uint32_t i = 0; i < b->count[word]; i++)
            if (!has_mask_within(a, word, b->masks[word][i]))
                return 0;
    }
    return 1;
}

int is_same(const condition *a, const condition *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

text condition_text(const condition *c) {
    text t = {0};
    text_add_bytes(&t, "", 0);
    for (int word = 0; word < GPULOSSI_FEATURE_WORDS; word++) {
        for (uint32_t i = 0; i < c->count[word]; i++)
            text_add(&t, " %d+%08x", word, (unsigned)c->masks[word][i]);
        if (c->off[word])
            text_add(&t, " %d-%08x", word, (unsigned)c->off[word]);
    }
    return t;
}
