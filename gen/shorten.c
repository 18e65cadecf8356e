/* Shortens a text: a byte stands for each name of a register or label. Most are the next new name of their class. For
 * each of the others a byte after the text gives its position in a list of recent names. Kernels that differ in numbers
 * only become equal.
 *
 * The result is the shortened text, a zero, and the bytes for recent names. A name that is not in the list is written out. */
#define GPULOSSI_SHARED
#include "../gpuloss.h"
#include "gen.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NUMBERS = 65536 };

typedef struct names {
    const char *last[MOST_NUMBERS]; /* where the text has each number last */
    size_t newest;
    uint16_t recent[GPULOSSI_RECENT_NAMES]; /* names that come again, the last one first */
} names;

/* The length of the name that begins here, or 0. */
static size_t name_at(const char *begin, const char *at, size_t *of, size_t *number) {
    static const char *const classes[] = GPULOSSI_NAMES;
    char before = at > begin ? at[-1] : '\n';
    for (size_t c = 0; c < GPULOSSI_NAME_CLASSES; c++) {
        size_t prefix = strlen(classes[c]), digits;
        if (strncmp(at, classes[c], prefix) != 0 || isalnum((unsigned char)before) || strchr("_$.", before) != NULL)
            continue;
        digits = strspn(at + prefix, "0123456789");
        if (digits == 0 || digits > 5 || at[prefix] == '0' || isalnum((unsigned char)at[prefix + digits]) ||
            strchr("_$", at[prefix + digits]) != NULL)
            continue;
        *of = c;
        *number = strtoul(at + prefix, NULL, 10);
        if (*number < MOST_NUMBERS)
            return prefix + digits;
    }
    return 0;
}

static void add_byte(text *t, size_t byte) {
    char c = (char)byte;
    text_add_bytes(t, &c, 1);
}

/* Adds the byte of a name. Returns 0 when the name must be written out. */
static int add_name(text *out, text *which, names *n, size_t of, size_t number, int is_last) {
    size_t at = GPULOSSI_RECENT_NAMES - 1;
    if (number == n->newest + 1) {
        add_byte(out, (is_last ? GPULOSSI_ONLY_NAME : GPULOSSI_NEW_NAME) + of);
        n->newest++;
    } else {
        for (at = 0; at < GPULOSSI_RECENT_NAMES && n->recent[at] != number; at++)
            ;
        if (at == GPULOSSI_RECENT_NAMES)
            return 0;
        add_byte(out, GPULOSSI_RECENT_NAME + of);
        add_byte(which, 2 * at + (size_t)is_last);
    }
    if (is_last) {
        memmove(n->recent + at, n->recent + at + 1, (GPULOSSI_RECENT_NAMES - 1 - at) * sizeof *n->recent);
    } else {
        memmove(n->recent + 1, n->recent, at * sizeof *n->recent);
        n->recent[0] = (uint16_t)number;
    }
    return 1;
}

text shorten(const text *ptx) {
    static names all[GPULOSSI_NAME_CLASSES];
    const char *end = ptx->bytes + ptx->length;
    text out = {0}, which = {0};
    size_t of, number, length;
    memset(all, 0, sizeof all);
    for (const char *at = ptx->bytes; at<end; at += length> 0 ? length : 1) {
        if (*at <= 0)
            fail("a text has a byte that is not ASCII");
        length = name_at(ptx->bytes, at, &of, &number);
        if (length > 0)
            all[of].last[number] = at;
    }
    text_add_bytes(&which, "", 1);
    for (const char *at = ptx->bytes; at < end; at += length) {
        length = name_at(ptx->bytes, at, &of, &number);
        if (length == 0 || !add_name(&out, &which, &all[of], of, number, all[of].last[number] == at)) {
            length = length > 0 ? length : 1;
            text_add_bytes(&out, at, length);
        }
    }
    text_add_bytes(&out, which.bytes, which.length);
    text_free(&which);
    return out;
}
