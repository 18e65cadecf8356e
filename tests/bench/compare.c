/* compare OLD_LIBBENCH NEW_LIBBENCH CEILINGS_PTX [--bytes N] [--most N] [--rest MS] [--runs N] [--as CC] [--all]
 * [--only NAME,...] [LOSS]: measures two builds of the benchmark's library, each with a gpuloss.h of its own. The other
 * arguments are those of bench (main.c). Runs of both alternate in one process, on the same buffers. Prints both times
 * of each cell, and the new one over the old one. The cells that have become slower are listed at the end. */
#include "bench.h"
#include "options.h"
#include "timing.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN 1.03

#define FUNCTIONS(X)                                                                                                   \
    X(int, parse, (char **arguments, const bench_option *own, int runs, bench_options *options))                       \
    X(int, as, (int compute_capability))                                                                               \
    X(int, use_runs, (int runs))                                                                                       \
    X(int, open, (const char *ceilings_ptx, int64_t bytes))                                                            \
    X(void, close, (void))                                                                                             \
    X(int, select, (const char *only, const char *loss, int all, int64_t most))                                        \
    X(int, is_selected, (int cell))                                                                                    \
    X(int, cell_count, (void))                                                                                         \
    X(int, prepare, (int cell))                                                                                        \
    X(int, prepare_beside, (int cell, uint64_t (*address)(int which)))                                                 \
    X(uint64_t, buffer, (int which))                                                                                   \
    X(int, rest, (int milliseconds))                                                                                   \
    X(int, warm_up, (int *in_a_row))                                                                                   \
    X(int, queue_run, (int run, int in_a_row))                                                                         \
    X(int, run_time, (int run, int in_a_row, double *milliseconds))                                                    \
    X(double, median_of, (double *times, int count))                                                                   \
    X(const char *, cell_heading, (void))                                                                              \
    X(const char *, cell_columns, (int cell))                                                                          \
    X(const char *, taken_for, (void))                                                                                 \
    X(const char *, failure, (void))

/* A build of the library. */
#define FIELD(type, name, arguments) type(*name) arguments;
typedef struct side {
    FUNCTIONS(FIELD)
    int in_a_row;
    double times[BENCH_MOST_RUNS], milliseconds;
} side;
#undef FIELD

typedef struct options {
    bench_options common;
    const char *only;
    long long rest;
    int all;
} options;

static side old, new;
static char reason[700];

/* 1, and `reason` says whose failure it was. */
static int failed(const side *s, int bad) {
    if (bad)
        snprintf(reason, sizeof reason, "%s: %s", s == &old ? "old" : "new", s->failure());
    return bad;
}

static int load(side *s, const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(reason, sizeof reason, "%s", dlerror());
        return 1;
    }
#define FIND(type, name, arguments)                                                                                    \
    s->name = (type(*) arguments)(uintptr_t)dlsym(library, "bench_" #name);                                            \
    if (s->name == NULL) {                                                                                             \
        snprintf(reason, sizeof reason, "%s has no bench_%s", path, #name);                                            \
        return 1;                                                                                                      \
    }
    FUNCTIONS(FIND)
#undef FIND
    return 0;
}

static int parse(char **arguments, options *o) {
    const bench_option own[] = {
        {"--rest", &o->rest, NULL, NULL}, {"--only", NULL, &o->only, NULL}, {"--all", NULL, NULL, &o->all}, {0}};
    memset(o, 0, sizeof *o);
    o->rest = 300;
    return failed(&new, new.parse(arguments, own, BENCH_MOST_RUNS, &o->common));
}

static int open_both(const options *o) {
    const bench_options *c = &o->common;
    if (failed(&new, new.open(c->ceilings, c->bytes) || new.select(o->only, c->loss, o->all, c->most)) ||
        failed(&old,
               (c->as != 0 && old.as((int)c->as)) || old.use_runs((int)c->runs) || old.open(c->ceilings, c->bytes)))
        return 1;
    if (old.cell_count() == new.cell_count())
        return 0;
    snprintf(reason, sizeof reason, "the libraries have %d and %d cells", old.cell_count(), new.cell_count());
    return 1;
}

static int run_time(side *s, int run) {
    return failed(s, s->run_time(run, s->in_a_row, &s->times[run]));
}

/* Both are queued before the first is waited for, and see the same clock of the GPU. */
static int measure(int cell, const options *o) {
    const int runs = (int)o->common.runs;
    int i;
    if (failed(&new, new.prepare(cell)) || failed(&old, old.prepare_beside(cell, new.buffer)) ||
        failed(&new, new.rest((int)o->rest)) || failed(&old, old.warm_up(&old.in_a_row)) ||
        failed(&new, new.warm_up(&new.in_a_row)))
        return 1;
    for (i = 0; i < runs; i++)
        if (failed(&old, old.queue_run(i, old.in_a_row)) || failed(&new, new.queue_run(i, new.in_a_row)))
            return 1;
    for (i = 0; i < runs; i++)
        if (run_time(&old, i) || run_time(&new, i))
            return 1;
    old.milliseconds = old.median_of(old.times, runs);
    new.milliseconds = new.median_of(new.times, runs);
    return 0;
}

/* Rounds like the printed ratio, so that the list of slower cells agrees with their lines. */
static double rounded(double ratio) {
    return (double)(int64_t)(1000 * ratio + 0.5) / 1000;
}

static void print_line(int cell, double ratio) {
    printf("%s %9.1f %9.1f %7.3f\n", new.cell_columns(cell), 1000 * old.milliseconds, 1000 * new.milliseconds, ratio);
    fflush(stdout);
}

static void print_slower(const double *ratios, int measured) {
    int cell, slower = 0;
    for (cell = 0; cell < new.cell_count(); cell++)
        slower += ratios[cell] > MARGIN;
    printf("%d cells; %d of them are slower by more than %.0f %%\n", measured, slower, 100 * (MARGIN - 1));
    for (cell = 0; cell < new.cell_count(); cell++)
        if (ratios[cell] > MARGIN)
            printf("slower: %s %7.3f\n", new.cell_columns(cell), ratios[cell]);
}

/* A cell that fails, in an older header perhaps, leaves the others. */
static int compare(const options *o) {
    double *ratios = calloc((size_t) new.cell_count(), sizeof *ratios);
    int cell, measured = 0, failures = 0;
    if (ratios == NULL)
        return 1;
    printf("%s %9s %9s %7s\n", new.cell_heading(), "old us", "new us", "new/old");
    for (cell = 0; cell < new.cell_count(); cell++) {
        if (!new.is_selected(cell))
            continue;
        if (measure(cell, o)) {
            printf("%s failed: %s\n", new.cell_columns(cell), reason);
            failures++;
            continue;
        }
        ratios[cell] = rounded(new.milliseconds / old.milliseconds);
        print_line(cell, ratios[cell]);
        measured++;
    }
    print_slower(ratios, measured);
    free(ratios);
    if (failures > 0)
        printf("%d cells failed\n", failures);
    return failures > 0;
}

int main(int argc, char **argv) {
    options o;
    int status;
    if (argc < 3)
        snprintf(reason, sizeof reason, "the libraries of two headers are required");
    if (argc < 3 || load(&old, argv[1]) || load(&new, argv[2]) || parse(argv + 2, &o) || open_both(&o)) {
        fprintf(stderr, "compare: %s\n", reason);
        return 2;
    }
    if (o.common.as != 0)
        printf("%s\n", old.taken_for());
    status = compare(&o);
    old.close();
    new.close();
    return status;
}
