/* bench CEILINGS_PTX [LOSS]: prints the table of ceilings and of all cells, or of those whose loss has that name. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    static const char *const ceiling_names[] = {"read", "copy", "read two, write one"};
    static const char *const pass_names[] = {"", "loss", "loss + gradient", "backward"};
    double ceilings[3], milliseconds;
    int i;
    if (argc < 2 || argc > 3 || bench_open(argv[1]))
        return 2;
    for (i = 0; i < 3; i++) {
        if (bench_ceiling(i, &ceilings[i]))
            return 1;
        printf("ceiling %-20s %7.0f GB/s\n", ceiling_names[i], ceilings[i]);
    }
    printf("%-14s %-5s %8s %8s  %-16s %9s %7s %6s\n", "loss", "dtype", "rows", "classes", "pass", "us", "GB/s",
           "ceil%");
    for (i = 0; i < bench_cell_count(); i++) {
        const bench_cell *c = &bench_cells[i];
        double rate;
        if (argc == 3 && strcmp(argv[2], c->loss) != 0)
            continue;
        if (bench_prepare(i) || bench_measure(&milliseconds))
            return 1;
        rate = bench_bytes(i) / milliseconds / 1e6;
        printf("%-14s %-5s %8lld %8lld  %-16s %9.1f %7.0f %6.1f\n", c->loss, c->dtype, (long long)c->rows,
               (long long)c->classes, pass_names[c->pass], 1000 * milliseconds, rate,
               100 * rate / ceilings[bench_ceiling_of(i)]);
    }
    bench_close();
    return 0;
}
