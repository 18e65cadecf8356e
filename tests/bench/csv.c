/* Writes the raw results. */
#include "bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static FILE *file;

/* Lines are not buffered, so that a run that is ended early loses no measurement. */
static int check_written(int printed) {
    return (printed < 0 || fflush(file) != 0) && bench_fail("the raw results can't be written: %s", strerror(errno));
}

int bench_csv_open(const char *path) {
    file = fopen(path, "w");
    if (file == NULL)
        return bench_fail("%s: can't be written: %s", path, strerror(errno));
    return check_written(fprintf(file, "%s\n", BENCH_CSV));
}

int bench_csv_line(int cell, const char *who, double milliseconds) {
    const bench_cell *c = &bench_cells[cell];
    bench_floors f;
    if (file == NULL)
        return 0;
    if (bench_floors_of(cell, &f))
        return 1;
    return check_written(fprintf(file, "%s,%s,%lld,%lld,%lld,%s,%s,%.6g,%.0f,%.6g,%s,%s,%.6g,%.6g,%.6g\n", c->loss,
                                 c->dtype, (long long)c->rows, (long long)c->classes, (long long)c->inner,
                                 bench_pass_name(c->pass), who, 1000 * milliseconds, bench_bytes(cell),
                                 bench_ceiling_of(cell), bench_option_name(cell), bench_layout_name(cell), f.bytes,
                                 f.special, f.issue));
}
