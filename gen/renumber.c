/* Names of registers and labels with numbers from 1, in the order in which the text has them. Texts that differ little become
 * alike, which makes them pack well. Assemblers do not look at the numbers. */
#define GPULOSSI_SHARED
#include "../gpuloss.h"
#include "gen.h"

#include <stdlib.h>
#include <string.h>

/* The numbers of the names of a class. */
typedef struct numbers {
    unsigned *given; /* by the old number; 0 is none yet */
    size_t room;
    unsigned newest;
} numbers;

static unsigned number_anew(numbers *n, size_t old) {
    if (old >= n->room) {
        size_t room = 2 * old + 64;
        n->given = grown(n->given, room * sizeof *n->given);
        memset(n->given + n->room, 0, (room - n->room) * sizeof *n->given);
        n->room = room;
    }
    if (n->given[old] == 0)
        n->given[old] = ++n->newest;
    return n->given[old];
}

/* Whether this is the prefix with digits after it. */
static int is_numbered(const char *at, size_t length, const char *prefix) {
    size_t digits = strlen(prefix);
    return length > digits && memcmp(at, prefix, digits) == 0 && strspn(at + digits, "0123456789") == length - digits;
}

static void add_name(text *out, numbers *of, const char *at, size_t length) {
    static const char *const classes[] = GPULOSSI_NAMES;
    for (size_t c = 0; c < GPULOSSI_NAME_CLASSES; c++)
        if (is_numbered(at, length, classes[c])) {
            size_t old = strtoul(at + strlen(classes[c]), NULL, 10);
            text_add(out, "%s%u", classes[c], number_anew(&of[c], old));
            return;
        }
    text_add_bytes(out, at, length);
}

text renumber(const char *ptx) {
    numbers of[GPULOSSI_NAME_CLASSES] = {0};
    text out = {0};
    text_add_bytes(&out, "", 0);
    while (*ptx != 0) {
        size_t length = *ptx == '%'; /* begins a register */
        while (is_symbol(ptx[length]))
            length++;
        if (length > 0) {
            add_name(&out, of, ptx, length);
        } else { /* or a modifier, which may be L1 or L2 */
            length = 1;
            while (*ptx == '.' && is_symbol(ptx[length]))
                length++;
            text_add_bytes(&out, ptx, length);
        }
        ptx += length;
    }
    for (size_t c = 0; c < GPULOSSI_NAME_CLASSES; c++)
        free(of[c].given);
    return out;
}
