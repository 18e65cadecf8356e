/* Shortens a text: a byte stands for each name of a register or label, and for each frequent phrase between them. Most names
 * are the next new one of their class. For each of the others a byte after the text gives its position in a list of recent
 * names. Kernels that differ in numbers only become equal.
 *
 * The result is the shortened text, a zero, and the bytes for recent names. A name that is too long, or no recent one, is
 * written out. */
#define GPULOSSI_SHARED
#include "../gpuloss.h"
#include "gen.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NUMBERS = 65536 };

typedef struct names {
    const char *last[MOST_NUMBERS]; /* where the text has each number last */
    size_t newest, count;
    size_t recent[GPULOSSI_MOST_NAMES]; /* names that come again, the last one at the end */
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
        if (digits == 0 || prefix + digits >= GPULOSSI_NAME_BYTES || at[prefix] == '0' ||
            isalnum((unsigned char)at[prefix + digits]) || strchr("_$", at[prefix + digits]) != NULL)
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

/* The byte of a name, or 0 when the name must be written out. */
static size_t code_of(text *which, names *n, size_t of, size_t number, int is_last) {
    size_t after = 0, code = (is_last ? GPULOSSI_ONLY_NAME : GPULOSSI_NEW_NAME) + of;
    if (number == n->newest + 1) {
        if (n->count == GPULOSSI_MOST_NAMES)
            fail("too many names at a time come again");
        n->newest++;
    } else {
        while (after < n->count && n->recent[n->count - 1 - after] != number)
            after++;
        if (after >= n->count || after >= GPULOSSI_RECENT_NAMES)
            return 0;
        code = GPULOSSI_RECENT_NAME + of;
        add_byte(which, 2 * after + (size_t)is_last);
        n->count--;
        memmove(n->recent + n->count - after, n->recent + n->count - after + 1, after * sizeof *n->recent);
    }
    if (!is_last)
        n->recent[n->count++] = number;
    return code;
}

/* The longest phrase that a text without names begins with, or GPULOSSI_PHRASE_COUNT. */
static size_t phrase_at(const char *at, size_t bytes) {
    static const char *const phrases[] = GPULOSSI_PHRASES;
    size_t longest = 0, found = GPULOSSI_PHRASE_COUNT;
    for (size_t i = 0; i < GPULOSSI_PHRASE_COUNT; i++) {
        size_t length = strlen(phrases[i]);
        if (length > longest && length <= bytes && memcmp(at, phrases[i], length) == 0) {
            longest = length;
            found = i;
        }
    }
    return found;
}

/* Adds a part of a text without names. */
static void add_phrases(text *out, const char *at, size_t bytes) {
    static const char *const phrases[] = GPULOSSI_PHRASES;
    while (bytes > 0) {
        size_t phrase = phrase_at(at, bytes), length = 1;
        if (phrase < GPULOSSI_PHRASE_COUNT) {
            add_byte(out, GPULOSSI_PHRASE + phrase);
            length = strlen(phrases[phrase]);
        } else {
            add_byte(out, (size_t)*at);
        }
        at += length;
        bytes -= length;
    }
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
    const char *done = ptx->bytes; /* the end of what has been added */
    for (const char *at = ptx->bytes; at < end; at += length) {
        size_t code = 0;
        length = name_at(ptx->bytes, at, &of, &number);
        if (length > 0)
            code = code_of(&which, &all[of], of, number, all[of].last[number] == at);
        if (code != 0) {
            add_phrases(&out, done, (size_t)(at - done));
            add_byte(&out, code);
            done = at + length;
        }
        length = length > 0 ? length : 1;
    }
    add_phrases(&out, done, (size_t)(end - done));
    text_add_bytes(&out, which.bytes, which.length);
    text_free(&which);
    return out;
}
