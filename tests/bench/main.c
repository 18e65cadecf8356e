/* bench CEILINGS_PTX [--bytes N] [--most N] [--rest MS] [--all] [--csv FILE] [LOSS]: prints the table of ceilings and of the
 * cells that are published, or with --all of every cell; of those whose loss has that name when one is given. --bytes: how
 * much a cell of the grid moves (1 GiB); --most: leaves out the cells that move more. --rest: how many milliseconds the GPU
 * rests before each cell (300). --csv: writes the raw results as well.
 * bench CEILINGS_PTX --calls N: what a call costs the host, over N calls of each tiny cell, instead. */
#include "bench.h"
#include "options.h"

#include <stdio.h>
#include <string.h>

typedef struct options {
    bench_options common;
    const char *csv;
    long long calls, rest;
    int all;
} options;

static int fail(void) {
    fprintf(stderr, "bench: %s\n", bench_failure());
    return 1;
}

static int parse(char **arguments, options *o) {
    const bench_option own[] = {{"--calls", &o->calls, NULL, NULL},
                                {"--rest", &o->rest, NULL, NULL},
                                {"--csv", NULL, &o->csv, NULL},
                                {"--all", NULL, NULL, &o->all},
                                {0}};
    memset(o, 0, sizeof *o);
    o->rest = bench_usual_rest;
    return bench_parse(arguments, own, &o->common) ||
           ((o->calls < 0 || o->calls > INT32_MAX) && bench_fail("--calls %lld: not a count", o->calls)) ||
           ((o->rest < 0 || o->rest > INT32_MAX) && bench_fail("--rest %lld: not a time", o->rest));
}

static int is_wanted(const options *o, int cell) {
    const bench_cell *c = &bench_cells[cell];
    if (bench_bytes(cell) > (double)o->common.most)
        return 0;
    return o->common.loss ? strcmp(o->common.loss, c->loss) == 0 : o->all || c->headline;
}

static int table_line(int cell, const double *ceilings, int rest) {
    const bench_cell *c = &bench_cells[cell];
    double ceiling = ceilings[bench_ceiling_of(cell)], milliseconds, rate;
    if (bench_prepare(cell) || bench_rest(rest) || bench_measure(&milliseconds))
        return 1;
    rate = bench_bytes(cell) / milliseconds / 1e6;
    printf("%-21s %-5s %8lld %8lld  %-16s %9.1f %7.0f %6.1f\n", c->loss, c->dtype, (long long)c->rows,
           (long long)c->classes, bench_pass_name(c->pass), 1000 * milliseconds, rate, 100 * rate / ceiling);
    fflush(stdout);
    return bench_csv_line(cell, "gpuloss", milliseconds, ceiling);
}

static int print_table(const options *o) {
    static const char *const names[] = {"read", "copy", "read two, write one", "read a quarter"};
    char first[600] = "";
    double ceilings[BENCH_CEILINGS];
    int i, failures = 0;
    for (i = 0; i < BENCH_CEILINGS; i++) {
        if (bench_rest((int)o->rest) || bench_ceiling(i, &ceilings[i]))
            return fail();
        printf("ceiling %-20s %7.0f GB/s\n", names[i], ceilings[i]);
    }
    printf("%-21s %-5s %8s %8s  %-16s %9s %7s %6s\n", "loss", "dtype", "rows", "classes", "pass", "us", "GB/s",
           "ceil%");
    for (i = 0; i < bench_cell_count(); i++)
        if (is_wanted(o, i) && table_line(i, ceilings, (int)o->rest) && failures++ == 0)
            snprintf(first, sizeof first, "%s %s %lld x %lld: %s", bench_cells[i].loss, bench_cells[i].dtype,
                     (long long)bench_cells[i].rows, (long long)bench_cells[i].classes, bench_failure());
    if (failures > 0)
        printf("gpuloss failed on %d cells, the first %s\n", failures, first);
    return failures > 0;
}

static int print_calls(const options *o) {
    bench_calls measured;
    int i;
    printf("%s\n", bench_calls_heading((int)o->calls));
    for (i = 0; i < bench_cell_count(); i++)
        if (bench_cells[i].tiny) {
            if (bench_prepare(i) || bench_measure_calls((int)o->calls, &measured))
                return fail();
            printf("%s\n", bench_calls_line(i, &measured));
            fflush(stdout);
        }
    return 0;
}

int main(int argc, char **argv) {
    options o;
    int status;
    (void)argc;
    if (parse(argv, &o) || bench_open(o.common.ceilings, o.common.bytes) || (o.csv && bench_csv_open(o.csv))) {
        fail();
        return 2;
    }
    status = o.calls > 0 ? print_calls(&o) : print_table(&o);
    bench_close();
    return status;
}
