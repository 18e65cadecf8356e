/* The lines of the table. */
#include "bench.h"

#include <stdio.h>

const char *bench_pass_name(int pass) {
    static const char *const names[] = {"", "loss", "loss + gradient", "backward"};
    return names[pass];
}

const char *bench_cell_heading(void) {
    static char text[160];
    snprintf(text, sizeof text, "%-21s %-17s %-9s %-5s %8s %8s  %-16s", "loss", "option", "layout", "dtype", "rows",
             "classes", "pass");
    return text;
}

const char *bench_cell_columns(int cell) {
    static char text[160];
    const bench_cell *c = &bench_cells[cell];
    snprintf(text, sizeof text, "%-21s %-17s %-9s %-5s %8lld %8lld  %-16s", c->loss, bench_option_name(cell),
             bench_layout_name(cell), c->dtype, (long long)c->rows, (long long)c->classes, bench_pass_name(c->pass));
    return text;
}

const char *bench_table_heading(void) {
    static char text[300];
    snprintf(text, sizeof text, "%s %9s %7s %6s %9s %9s %9s %6s", bench_cell_heading(), "us", "GB/s", "ceil%",
             "bytes us", "special", "issue", "floor%");
    return text;
}

const char *bench_table_line(int cell, double milliseconds) {
    static char text[300];
    const double microseconds = 1000 * milliseconds, rate = bench_bytes(cell) / microseconds / 1e3;
    bench_floors f;
    if (bench_floors_of(cell, &f))
        return bench_failure();
    if (microseconds > 0)
        snprintf(text, sizeof text, "%s %9.1f %7.0f %6.1f %9.1f %9.1f %9.1f %6.1f", bench_cell_columns(cell),
                 microseconds, rate, 100 * rate / bench_ceiling_of(cell), f.bytes, f.special, f.issue,
                 100 * f.largest / microseconds);
    else
        snprintf(text, sizeof text, "%s %9s %7s %6s %9.1f %9.1f %9.1f %6s", bench_cell_columns(cell), "", "", "",
                 f.bytes, f.special, f.issue, "");
    return text;
}
