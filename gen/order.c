/* Chooses the text that each of several texts continues, so that all of them pack into few bytes. */
#include "gen.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES_OF_A_TEXT = 700 /* that packing must save for one more text to be unpacked ahead of it */ };

typedef struct pairs {
    size_t count;
    size_t *bytes; /* of text j, packed as one that continues text i, at [i * count + j]; for i == j none */
} pairs;

static pairs measure(const text *const *texts, size_t count) {
    pairs p = {count, grown(NULL, count * count * sizeof *p.bytes)};
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++) {
            const text *const two[] = {texts[i], texts[j]};
            text packed = i == j ? pack(two + 1, 1) : pack(two, 2);
            p.bytes[i * count + j] = packed.length;
            text_free(&packed);
        }
    return p;
}

/* A tree from this root: the text that costs the least after one of the tree joins it, until all have. */
static void grow_tree(const pairs *p, size_t root, size_t most_texts, int *after, size_t *depth) {
    after[root] = -1;
    depth[root] = 1;
    for (size_t joined = 1; joined < p->count; joined++) {
        size_t least = (size_t)-1, from = 0, next = 0;
        for (size_t i = 0; i < p->count; i++)
            for (size_t j = 0; j < p->count; j++) {
                size_t cost = p->bytes[i * p->count + j] + BYTES_OF_A_TEXT * depth[i];
                if (depth[i] > 0 && depth[i] < most_texts && depth[j] == 0 && cost < least) {
                    least = cost;
                    from = i;
                    next = j;
                }
            }
        after[next] = (int)from;
        depth[next] = depth[from] + 1;
    }
}

void choose_order(const text *const *texts, size_t count, size_t root, size_t most_texts, int *after) {
    pairs p = measure(texts, count);
    size_t *depth = grown(NULL, count * sizeof *depth);
    memset(depth, 0, count * sizeof *depth);
    if (count > 0)
        grow_tree(&p, root, most_texts, after, depth);
    free(depth);
    free(p.bytes);
}
