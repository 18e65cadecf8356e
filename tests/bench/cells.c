/* Which cells there are. */
#include "cells.h"

#include <string.h>

static const bench_cell headlines[] = {
    {"kl_div_pp", "f32", 16384, 16384, 1, BENCH_LOSS, 1, 0},
    {"kl_div_pp", "f32", 16384, 16384, 1, BENCH_BOTH, 1, 0},
    {"kl_div_ll", "f32", 16384, 16384, 1, BENCH_LOSS, 1, 0},
    {"kl_div_ll", "f32", 16384, 16384, 1, BENCH_BOTH, 1, 0},
    {"cross_entropy", "f32", 32768, 4096, 1, BENCH_LOSS, 1, 0},
    {"cross_entropy", "f32", 32768, 4096, 1, BENCH_BOTH, 1, 0},
    {"cross_entropy", "f32", 32768, 4096, 1, BENCH_BACKWARD, 1, 0},
    {"cross_entropy", "f32", 8192, 128256, 1, BENCH_LOSS, 1, 0},
    {"cross_entropy", "f32", 8192, 128256, 1, BENCH_BOTH, 1, 0},
    {"cross_entropy_options", "f32", 8192, 128256, 1, BENCH_LOSS, 1, 0},
    {"cross_entropy_options", "f32", 8192, 128256, 1, BENCH_BOTH, 1, 0},
    {"cross_entropy", "bf16", 8192, 128256, 1, BENCH_LOSS, 1, 0},
    {"cross_entropy", "bf16", 8192, 128256, 1, BENCH_BOTH, 1, 0},
    {"cross_entropy_options", "bf16", 8192, 128256, 1, BENCH_LOSS, 1, 0},
    {"cross_entropy_options", "bf16", 8192, 128256, 1, BENCH_BOTH, 1, 0},
    {"kl_div_pp", "bf16", 8192, 128256, 1, BENCH_LOSS, 1, 0},
    {"kl_div_pp", "bf16", 8192, 128256, 1, BENCH_BOTH, 1, 0},
    {"columns", "f32", 16 * 512 * 512, 21, 512 * 512, BENCH_LOSS, 1, 0},
    {"columns", "f32", 16 * 512 * 512, 21, 512 * 512, BENCH_BOTH, 1, 0},
    {"columns", "bf16", 16 * 512 * 512, 21, 512 * 512, BENCH_LOSS, 1, 0},
    {"columns", "bf16", 16 * 512 * 512, 21, 512 * 512, BENCH_BOTH, 1, 0},
    {"columns", "f32", 8 * 512 * 512, 150, 512 * 512, BENCH_LOSS, 1, 0},
    {"columns", "f32", 8 * 512 * 512, 150, 512 * 512, BENCH_BOTH, 1, 0},
    {"columns", "bf16", 8 * 512 * 512, 150, 512 * 512, BENCH_LOSS, 1, 0},
    {"columns", "bf16", 8 * 512 * 512, 150, 512 * 512, BENCH_BOTH, 1, 0},
    {"cross_entropy", "f32", 16 * 512 * 512, 21, 1, BENCH_LOSS, 1, 0},
    {"cross_entropy", "f32", 16 * 512 * 512, 21, 1, BENCH_BOTH, 1, 0},
    {"cross_entropy", "f32", 8 * 512 * 512, 150, 1, BENCH_LOSS, 1, 0},
    {"cross_entropy", "f32", 8 * 512 * 512, 150, 1, BENCH_BOTH, 1, 0},
    {"cross_entropy", "bf16", 16 * 512 * 512, 21, 1, BENCH_LOSS, 1, 0},
    {"cross_entropy", "bf16", 16 * 512 * 512, 21, 1, BENCH_BOTH, 1, 0},
    {"cross_entropy", "bf16", 8 * 512 * 512, 150, 1, BENCH_LOSS, 1, 0},
    {"cross_entropy", "bf16", 8 * 512 * 512, 150, 1, BENCH_BOTH, 1, 0},
    {"kl_div_logits", "f32", 131072, 1000, 1, BENCH_BOTH, 1, 0},
    {"kl_div_logits", "bf16", 131072, 1000, 1, BENCH_BOTH, 1, 0},
    {"kl_div_logits", "f32", 8192, 32000, 1, BENCH_BOTH, 1, 0},
    {"kl_div_logits", "bf16", 8192, 32000, 1, BENCH_BOTH, 1, 0},
    {"kl_div_logits", "f32", 4096, 128256, 1, BENCH_BOTH, 1, 0},
    {"kl_div_logits", "bf16", 4096, 128256, 1, BENCH_BOTH, 1, 0},
    {"jsd_logits", "f32", 8192, 32000, 1, BENCH_BOTH, 1, 0},
    {"jsd_logits", "bf16", 8192, 32000, 1, BENCH_BOTH, 1, 0},
    {"jsd_logits", "f32", 4096, 128256, 1, BENCH_BOTH, 1, 0},
    {"jsd_logits", "bf16", 4096, 128256, 1, BENCH_BOTH, 1, 0},
};

enum { HEADLINES = sizeof headlines / sizeof headlines[0], MOST = 1024 };

static bench_cell cells[MOST];
static int count;
const bench_cell *bench_cells = cells;

int bench_cell_count(void) {
    return count;
}

static bench_cell *add(const char *loss, const char *dtype, int64_t rows, int64_t classes, int pass) {
    bench_cell *c = &cells[count++];
    c->loss = loss;
    c->dtype = dtype;
    c->rows = rows < 1 ? 1 : rows;
    c->classes = classes;
    c->inner = 1;
    c->pass = pass;
    return c;
}

static int64_t rows_that_move(int64_t bytes, const char *loss, const char *dtype, int64_t classes, int pass) {
    int64_t arrays = (strcmp(loss, "cross_entropy") == 0 ? 1 : 2) + (pass != BENCH_LOSS);
    return bytes / (arrays * (strcmp(dtype, "f32") == 0 ? 4 : 2) * classes);
}

void bench_list(int64_t bytes) {
    static const char *const losses[] = {"cross_entropy", "kl_div_pp", "kl_div_ll", "kl_div_logits"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    static const int64_t classes[] = {10, 64, 256, 1000, 4096, 16384, 32000, 50257, 128256, 151936, 262144};
    static const int64_t few[] = {1, 8, 64, 256}, longest[] = {32000, 128256, 262144};
    unsigned loss, dtype, i, k;
    int pass;
    for (count = 0; count < HEADLINES; count++)
        cells[count] = headlines[count];
    for (loss = 0; loss < 4; loss++)
        for (dtype = 0; dtype < 3; dtype++)
            for (i = 0; i < sizeof classes / sizeof classes[0]; i++)
                /* A divergence has no backward pass of its own: it reads what the fused one reads. */
                for (pass = BENCH_LOSS; pass <= (loss == 0 ? BENCH_BACKWARD : BENCH_BOTH); pass++)
                    add(losses[loss], dtypes[dtype],
                        rows_that_move(bytes, losses[loss], dtypes[dtype], classes[i], pass), classes[i], pass);
    for (pass = BENCH_LOSS; pass <= BENCH_BOTH; pass++) {
        for (i = 0; i < 4; i++)
            for (k = 0; k < 3; k++)
                add("cross_entropy", "bf16", few[i], longest[k], pass);
        add("cross_entropy", "f32", 128, 10, pass)->tiny = 1;
        add("cross_entropy", "f32", 1024, 1000, pass)->tiny = 1;
        add("kl_div_logits", "f32", 128, 10, pass)->tiny = 1;
    }
}

void bench_list_for_schedules(int64_t bytes) {
    static const char *const losses[] = {"cross_entropy", "kl_div_logits"}, *const dtypes[] = {"f32", "bf16"};
    static const int64_t classes[] = {10, 21, 64, 100, 256, 1000, 4096, 8192, 16384, 32000, 50257, 128256, 262144};
    static const int64_t few[] = {1, 8, 64}, longest[] = {32000, 128256, 262144};
    unsigned kind, i, k;
    count = 0;
    for (kind = 0; kind < 8; kind++) { /* loss, dtype, pass */
        const char *loss = losses[kind / 4], *dtype = dtypes[kind / 2 % 2];
        int pass = kind % 2 == 0 ? BENCH_LOSS : BENCH_BOTH;
        for (i = 0; i < sizeof classes / sizeof classes[0]; i++)
            add(loss, dtype, rows_that_move(bytes, loss, dtype, classes[i], pass), classes[i], pass);
        for (i = 0; i < sizeof few / sizeof few[0]; i++)
            for (k = 0; k < sizeof longest / sizeof longest[0]; k++)
                add(loss, dtype, few[i], longest[k], pass);
    }
}
