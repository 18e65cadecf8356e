/* Selects the cells that are measured. */
#define _POSIX_C_SOURCE 200809L
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    char *only, *loss;
    int all;
    int64_t most;
} wanted;

static int begins_with(const char *text, const char *name, size_t length) {
    return strncmp(text, name, length) == 0;
}

static int is_named(int cell, const char *name, size_t length) {
    char option[80], full[160], typed[160];
    snprintf(option, sizeof option, "%s/%s", bench_option_name(cell), bench_layout_name(cell));
    snprintf(full, sizeof full, "%s/%s", bench_cells[cell].loss, option);
    snprintf(typed, sizeof typed, "%s/%s", bench_cells[cell].dtype, option);
    return length > 0 && (begins_with(full, name, length) || begins_with(typed, name, length) ||
                          begins_with(option, name, length) || begins_with(bench_layout_name(cell), name, length));
}

/* The length of a name, and where the next one begins. */
static size_t next_name(const char *names, const char **next) {
    const size_t length = strcspn(names, ",");
    *next = names + length + (names[length] == ',');
    return length;
}

static int is_named_by_any(int cell, const char *names) {
    const char *next;
    for (; *names != 0; names = next) {
        const size_t length = next_name(names, &next);
        if (is_named(cell, names, length))
            return 1;
    }
    return 0;
}

static int names_no_cell(const char *name, size_t length) {
    int cell;
    for (cell = 0; cell < bench_cell_count(); cell++)
        if (is_named(cell, name, length))
            return 0;
    return 1;
}

/* The caller's text need not live on. */
static int copy(char **to, const char *from) {
    free(*to);
    *to = from == NULL ? NULL : strdup(from);
    return from != NULL && *to == NULL && bench_fail("out of memory for a name");
}

int bench_select(const char *only, const char *loss, int all, int64_t most) {
    const char *name, *next;
    if (copy(&wanted.only, only) || copy(&wanted.loss, loss))
        return 1;
    wanted.all = all;
    wanted.most = most;
    for (name = only; name != NULL && *name != 0; name = next) {
        const size_t length = next_name(name, &next);
        if (names_no_cell(name, length))
            return bench_fail("--only %.*s: no cell has this name", (int)length, name);
    }
    return only != NULL && *only == 0 && bench_fail("--only: no name");
}

int bench_is_selected(int cell) {
    const bench_cell *c = &bench_cells[cell];
    if (bench_bytes(cell) > (double)wanted.most || (wanted.loss && strcmp(wanted.loss, c->loss) != 0))
        return 0;
    return wanted.only ? is_named_by_any(cell, wanted.only) : wanted.loss || wanted.all || c->headline;
}
