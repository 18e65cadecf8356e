/* bench CEILINGS_PTX [--bytes N] [--most N] [--all] [--csv FILE] [LOSS]: prints the table of ceilings and of the cells
 * that are published, or with --all of every cell; of those whose loss has that name when one is given. --bytes: how much a
 * cell of the grid moves (1 GiB); --most: leaves out the cells that move more. --csv: writes the raw results as well.
 * bench CEILINGS_PTX --calls N: what a call costs the host, over N calls of each tiny cell, instead. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *ceilings, *loss, *csv;
    long long bytes, most;
    int all, calls;
} options;

static int fail(void) {
    fprintf(stderr, "bench: %s\n", bench_failure());
    return 1;
}

static options parse(int argc, char **argv) {
    options o = {NULL, NULL, NULL, 1LL << 30, INT64_MAX, 0, 0};
    int i;
    for (i = 1; i < argc; i++)
        if (strcmp(argv[i], "--bytes") == 0 && i + 1 < argc)
            o.bytes = atoll(argv[++i]);
        else if (strcmp(argv[i], "--most") == 0 && i + 1 < argc)
            o.most = atoll(argv[++i]);
        else if (strcmp(argv[i], "--csv") == 0 && i + 1 < argc)
            o.csv = argv[++i];
        else if (strcmp(argv[i], "--calls") == 0 && i + 1 < argc)
            o.calls = atoi(argv[++i]);
        else if (strcmp(argv[i], "--all") == 0)
            o.all = 1;
        else
            *(o.ceilings ? &o.loss : &o.ceilings) = argv[i];
    return o;
}

static int is_wanted(const options *o, int cell) {
    const bench_cell *c = &bench_cells[cell];
    if (bench_bytes(cell) > (double)o->most)
        return 0;
    return o->loss ? strcmp(o->loss, c->loss) == 0 : o->all || c->headline;
}

static int table_line(int cell, const double *ceilings) {
    const bench_cell *c = &bench_cells[cell];
    double ceiling = ceilings[bench_ceiling_of(cell)], milliseconds, rate;
    if (bench_prepare(cell) || bench_measure(&milliseconds))
        return 1;
    rate = bench_bytes(cell) / milliseconds / 1e6;
    printf("%-21s %-5s %8lld %8lld  %-16s %9.1f %7.0f %6.1f\n", c->loss, c->dtype, (long long)c->rows,
           (long long)c->classes, bench_pass_name(c->pass), 1000 * milliseconds, rate, 100 * rate / ceiling);
    fflush(stdout);
    return bench_csv_line(cell, "gpuloss", milliseconds, ceiling);
}

static int print_table(const options *o) {
    static const char *const names[] = {"read", "copy", "read two, write one"};
    char first[600] = "";
    double ceilings[3];
    int i, failures = 0;
    for (i = 0; i < 3; i++) {
        if (bench_ceiling(i, &ceilings[i]))
            return fail();
        printf("ceiling %-20s %7.0f GB/s\n", names[i], ceilings[i]);
    }
    printf("%-21s %-5s %8s %8s  %-16s %9s %7s %6s\n", "loss", "dtype", "rows", "classes", "pass", "us", "GB/s",
           "ceil%");
    for (i = 0; i < bench_cell_count(); i++)
        if (is_wanted(o, i) && table_line(i, ceilings) && failures++ == 0)
            snprintf(first, sizeof first, "%s %s %lld x %lld: %s", bench_cells[i].loss, bench_cells[i].dtype,
                     (long long)bench_cells[i].rows, (long long)bench_cells[i].classes, bench_failure());
    if (failures > 0)
        printf("gpuloss failed on %d cells, the first %s\n", failures, first);
    return failures > 0;
}

static int print_calls(const options *o) {
    bench_calls measured;
    int i;
    printf("%s\n", bench_calls_heading(o->calls));
    for (i = 0; i < bench_cell_count(); i++)
        if (bench_cells[i].tiny) {
            if (bench_prepare(i) || bench_measure_calls(o->calls, &measured))
                return fail();
            printf("%s\n", bench_calls_line(i, &measured));
            fflush(stdout);
        }
    return 0;
}

int main(int argc, char **argv) {
    options o = parse(argc, argv);
    int status;
    if (o.ceilings == NULL) {
        fprintf(stderr, "bench: the file of the ceilings' PTX is required\n");
        return 2;
    }
    if (bench_open(o.ceilings, o.bytes) || (o.csv && bench_csv_open(o.csv))) {
        fail();
        return 2;
    }
    status = o.calls > 0 ? print_calls(&o) : print_table(&o);
    bench_close();
    return status;
}
