/* The rules that gpuloss.h documents: which descs are refused, which bytes the arrays of the others have, and which of them
 * their kernels are given. */
#ifndef RULES_H
#define RULES_H

#include "../host/fake_driver.h"
#include "fields.h"

__extension__ typedef __int128 wide; /* the product of two sizes */

typedef struct array {
    const char *field;
    uint64_t at;
    wide bytes;
    unsigned alignment;
    int64_t stride;      /* from one row to the next, where the rows have one */
    const char *same_as; /* of a gradient: the array that it may be */
    int is_output, is_given;
} array;

enum { MOST_ARRAYS = 32 };
typedef struct arrays {
    int count;
    array all[MOST_ARRAYS];
} arrays;

/* The field whose rule a desc breaks, or NULL. Fills the arrays of the call, with a workspace of that size. */
const char *broken_rule(const call *c, size_t workspace_bytes, arrays *a);
/* Whether a call launches nothing, because it has nothing to do. */
int is_empty(const call *c);
/* The array in which a launch of the call may go out of bounds, or NULL. Notes the arrays that it is given. */
const char *broken_bounds(const call *c, size_t workspace_bytes, arrays *a, const fake_launched *l);

#endif
