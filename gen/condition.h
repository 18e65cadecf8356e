/* Conditions on feature words, and values of registers: the domain of the analysis in mark.c. */
#ifndef GPULOSSI_GEN_CONDITION_H
#define GPULOSSI_GEN_CONDITION_H

#define GPULOSSI_SHARED
#include "../gpuloss.h"
#include "gen.h"

#include <stdint.h>

enum {
    MOST_MASKS = 8,   /* of `+` clauses of a word in one condition; weaker ones are forgotten */
    MOST_CHOICES = 8, /* numbers that a register may have */
    MOST_LISTED = 6,  /* bits of a feature word whose numbers are listed to compare them */
    MOST_OPERANDS = 5 /* of an instruction that is computed */
};

/* A conjunction of clauses, in a normal form: equal conditions have equal bytes. Masks ascend. No mask has a bit of `off`
 * or contains another mask of its word. The rest of the array is zero. */
typedef struct condition {
    int never;                                          /* no words satisfy it */
    uint32_t off[GPULOSSI_FEATURE_WORDS];               /* bits that are clear */
    uint32_t count[GPULOSSI_FEATURE_WORDS];             /* of masks */
    uint32_t masks[GPULOSSI_FEATURE_WORDS][MOST_MASKS]; /* each has a bit that is set */
} condition;

extern const condition always, never;

/* Adds a clause: W+mask or W-mask. */
void require_any(condition *c, int word, uint32_t mask);
void require_none(condition *c, int word, uint32_t mask);
condition both(const condition *a, const condition *b);
/* The strongest condition of this form that holds where a or b does, but for forgotten masks. */
condition either(const condition *a, const condition *b);
int implies(const condition *a, const condition *b);
int is_same(const condition *a, const condition *b);
/* Whether words of a call may satisfy it, in the text of that entry. */
int is_possible(const char *entry, const condition *c);
/* The clauses of a condition that may hold, a blank before each. */
text condition_text(const condition *c);

typedef enum value_kind {
    UNKNOWN,
    BITS,    /* of a feature word: ((word ^ flip) & mask) >> shift; a negative shift is one to the left */
    CHOICES, /* one of these numbers, each of which it may be only where its condition holds */
    FLAG     /* zero only where the first condition holds, another number only where the second one does */
} value_kind;

typedef struct value {
    value_kind kind;
    int word, shift;
    uint32_t mask, flip;
    int count;
    uint64_t numbers[MOST_CHOICES];
    condition when[MOST_CHOICES];
} value;

value number_value(uint64_t number);
value word_value(int word);
/* The number of operands after the first of an instruction that compute() knows; 0: it doesn't know the instruction. */
int sources_of(const char *opcode);
value compute(const char *opcode, const value *sources);
/* Adds the values that one of several instructions may assign to a register, where its condition holds. */
void add_values(value *to, const value *v, const condition *when);
/* Where a predicate may be true, or false. */
condition where(const value *predicate, int is);

#endif
