/* bench CEILINGS_PTX [--bytes N] [--most N] [--rest MS] [--runs N] [--as CC] [--all] [--only NAME,...] [--csv FILE]
 * [LOSS]: prints the table of ceilings and of the published cells, or with --all of every cell. With a LOSS, only its
 * cells. --only: all cells whose loss, dtype, option or layout begins with a NAME, such as softcap, columns/weights,
 * f64/plain, masked or tv_logits/sigma (bench_select). --bytes: how much a cell of the grid moves (1 GiB); --most:
 * leaves out the cells that move more. --rest: how many milliseconds the GPU rests before each cell (300). --runs: of
 * which the median is taken (30). --as: gpuloss takes the GPU for one of that compute capability, such as 80. --csv:
 * writes the raw results as well.
 * Each cell has its time; its rate, beside the ceiling of its mix of reads and writes; the floors of its bytes, special
 * functions and instructions; and the largest floor, beside its time.
 * bench CEILINGS_PTX --calls N: instead prints the cost of a call on the host, over N calls of each tiny cell. */
#include "bench.h"
#include "options.h"
#include "timing.h"

#include <stdio.h>
#include <string.h>

typedef struct options {
    bench_options common;
    const char *csv, *only;
    long long calls, rest;
    int all;
} options;

static int fail(void) {
    fprintf(stderr, "bench: %s\n", bench_failure());
    return 1;
}

static int parse(char **arguments, options *o) {
    const bench_option own[] = {{"--calls", &o->calls, NULL, NULL}, {"--rest", &o->rest, NULL, NULL},
                                {"--csv", NULL, &o->csv, NULL},     {"--only", NULL, &o->only, NULL},
                                {"--all", NULL, NULL, &o->all},     {0}};
    memset(o, 0, sizeof *o);
    o->rest = bench_usual_rest;
    return bench_parse(arguments, own, BENCH_MOST_RUNS, &o->common) ||
           ((o->calls < 0 || o->calls > INT32_MAX) && bench_fail("--calls %lld: not a count", o->calls)) ||
           ((o->rest < 0 || o->rest > INT32_MAX) && bench_fail("--rest %lld: not a time", o->rest));
}

static int table_line(int cell, int rest) {
    double milliseconds;
    if (bench_prepare(cell) || bench_rest(rest) || bench_measure(&milliseconds))
        return 1;
    printf("%s\n", bench_table_line(cell, milliseconds));
    fflush(stdout);
    return bench_csv_line(cell, "gpuloss", milliseconds);
}

static int print_table(const options *o) {
    char first[700] = "";
    double rate;
    int i, failures = 0;
    for (i = 0; i < BENCH_CEILINGS; i++) {
        if (bench_rest((int)o->rest) || bench_ceiling(i, &rate))
            return fail();
        printf("ceiling %-20s %7.0f GB/s\n", bench_ceiling_name(i), rate);
    }
    printf("%s\n", bench_table_heading());
    for (i = 0; i < bench_cell_count(); i++)
        if (bench_is_selected(i) && table_line(i, (int)o->rest) && failures++ == 0)
            snprintf(first, sizeof first, "%s: %s", bench_cell_columns(i), bench_failure());
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
    if (parse(argv, &o) || bench_open(o.common.ceilings, o.common.bytes) ||
        bench_select(o.only, o.common.loss, o.all, o.common.most) || (o.csv && bench_csv_open(o.csv))) {
        fail();
        return 2;
    }
    if (o.common.as != 0)
        printf("%s\n", bench_taken_for());
    status = o.calls > 0 ? print_calls(&o) : print_table(&o);
    bench_close();
    return status;
}
