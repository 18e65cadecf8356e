/* Whether the facts leave a condition possible. */
#define GPULOSSI_SHARED
#include "condition.h"
#include "facts.h"

#include <fnmatch.h>

static int has_clause(const condition *c, const fact_clause *clause) {
    condition one = always;
    if (clause->is_any)
        require_any(&one, clause->word, clause->mask);
    else
        require_none(&one, clause->word, clause->mask);
    return implies(c, &one);
}

/* Adds the opposite of the only clause that may not hold; a condition with all clauses never holds. */
static void apply(const fact *f, condition *c) {
    const fact_clause *open = NULL;
    for (int i = 0; i < MOST_CLAUSES && f->clauses[i].mask != 0; i++) {
        if (has_clause(c, &f->clauses[i]))
            continue;
        if (open != NULL)
            return;
        open = &f->clauses[i];
    }
    if (open == NULL)
        *c = never;
    else if (open->is_any)
        require_none(c, open->word, open->mask);
    else
        require_any(c, open->word, open->mask);
}

int is_possible(const char *entry, const condition *c) {
    condition known = *c, before;
    do {
        before = known;
        for (int i = 0; i < FACTS; i++)
            if (fnmatch(facts[i].texts, entry, 0) == 0)
                apply(&facts[i], &known);
    } while (!is_same(&known, &before));
    return !known.never;
}
