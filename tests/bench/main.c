/* bench CEILINGS_PTX [--bytes N] [--all] [LOSS]: prints the table of ceilings and of the cells that are published, or with
 * --all of every cell; of those whose loss has that name when one is given. --bytes: how much a cell of the grid moves
 * (1 GiB). */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    static const char *const ceiling_names[] = {"read", "copy", "read two, write one"};
    static const char *const pass_names[] = {"", "loss", "loss + gradient", "backward"};
    double ceilings[3], milliseconds;
    const char *path = NULL, *loss = NULL;
    int64_t bytes = (int64_t)1 << 30;
    int i, all = 0;
    for (i = 1; i < argc; i++)
        if (strcmp(argv[i], "--bytes") == 0 && i + 1 < argc)
            bytes = atoll(argv[++i]);
        else if (strcmp(argv[i], "--all") == 0)
            all = 1;
        else
            *(path ? &loss : &path) = argv[i];
    if (path == NULL || bench_open(path, bytes))
        return 2;
    for (i = 0; i < 3; i++) {
        if (bench_ceiling(i, &ceilings[i]))
            return 1;
        printf("ceiling %-20s %7.0f GB/s\n", ceiling_names[i], ceilings[i]);
    }
    printf("%-21s %-5s %8s %8s  %-16s %9s %7s %6s\n", "loss", "dtype", "rows", "classes", "pass", "us", "GB/s",
           "ceil%");
    for (i = 0; i < bench_cell_count(); i++) {
        const bench_cell *c = &bench_cells[i];
        double rate;
        if (loss ? strcmp(loss, c->loss) != 0 : !all && !c->headline)
            continue;
        if (bench_prepare(i) || bench_measure(&milliseconds))
            return 1;
        rate = bench_bytes(i) / milliseconds / 1e6;
        printf("%-21s %-5s %8lld %8lld  %-16s %9.1f %7.0f %6.1f\n", c->loss, c->dtype, (long long)c->rows,
               (long long)c->classes, pass_names[c->pass], 1000 * milliseconds, rate,
               100 * rate / ceilings[bench_ceiling_of(i)]);
        fflush(stdout);
    }
    bench_close();
    return 0;
}
