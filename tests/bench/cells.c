/* The lists of cells. */
#include "cells.h"

#include "floors.h"
#include "pairs.h"
#include "requests.h"

#include <string.h>

static const struct headline {
    const char *loss, *dtype;
    int64_t rows, classes, inner;
    int pass;
} headlines[] = {
    {"kl_div_pp", "f32", 16384, 16384, 1, BENCH_LOSS},
    {"kl_div_pp", "f32", 16384, 16384, 1, BENCH_BOTH},
    {"kl_div_ll", "f32", 16384, 16384, 1, BENCH_LOSS},
    {"kl_div_ll", "f32", 16384, 16384, 1, BENCH_BOTH},
    {"cross_entropy", "f32", 32768, 4096, 1, BENCH_LOSS},
    {"cross_entropy", "f32", 32768, 4096, 1, BENCH_BOTH},
    {"cross_entropy", "f32", 32768, 4096, 1, BENCH_BACKWARD},
    {"cross_entropy", "f32", 8192, 128256, 1, BENCH_LOSS},
    {"cross_entropy", "f32", 8192, 128256, 1, BENCH_BOTH},
    {"cross_entropy_options", "f32", 8192, 128256, 1, BENCH_LOSS},
    {"cross_entropy_options", "f32", 8192, 128256, 1, BENCH_BOTH},
    {"cross_entropy", "bf16", 8192, 128256, 1, BENCH_LOSS},
    {"cross_entropy", "bf16", 8192, 128256, 1, BENCH_BOTH},
    {"cross_entropy_options", "bf16", 8192, 128256, 1, BENCH_LOSS},
    {"cross_entropy_options", "bf16", 8192, 128256, 1, BENCH_BOTH},
    {"kl_div_pp", "bf16", 8192, 128256, 1, BENCH_LOSS},
    {"kl_div_pp", "bf16", 8192, 128256, 1, BENCH_BOTH},
    {"columns", "f32", 16 * 512 * 512, 21, 512 * 512, BENCH_LOSS},
    {"columns", "f32", 16 * 512 * 512, 21, 512 * 512, BENCH_BOTH},
    {"columns", "bf16", 16 * 512 * 512, 21, 512 * 512, BENCH_LOSS},
    {"columns", "bf16", 16 * 512 * 512, 21, 512 * 512, BENCH_BOTH},
    {"columns", "f32", 8 * 512 * 512, 150, 512 * 512, BENCH_LOSS},
    {"columns", "f32", 8 * 512 * 512, 150, 512 * 512, BENCH_BOTH},
    {"columns", "bf16", 8 * 512 * 512, 150, 512 * 512, BENCH_LOSS},
    {"columns", "bf16", 8 * 512 * 512, 150, 512 * 512, BENCH_BOTH},
    {"cross_entropy", "f32", 16 * 512 * 512, 21, 1, BENCH_LOSS},
    {"cross_entropy", "f32", 16 * 512 * 512, 21, 1, BENCH_BOTH},
    {"cross_entropy", "f32", 8 * 512 * 512, 150, 1, BENCH_LOSS},
    {"cross_entropy", "f32", 8 * 512 * 512, 150, 1, BENCH_BOTH},
    {"cross_entropy", "bf16", 16 * 512 * 512, 21, 1, BENCH_LOSS},
    {"cross_entropy", "bf16", 16 * 512 * 512, 21, 1, BENCH_BOTH},
    {"cross_entropy", "bf16", 8 * 512 * 512, 150, 1, BENCH_LOSS},
    {"cross_entropy", "bf16", 8 * 512 * 512, 150, 1, BENCH_BOTH},
    {"kl_div_logits", "f32", 131072, 1000, 1, BENCH_BOTH},
    {"kl_div_logits", "bf16", 131072, 1000, 1, BENCH_BOTH},
    {"kl_div_logits", "f32", 8192, 32000, 1, BENCH_BOTH},
    {"kl_div_logits", "bf16", 8192, 32000, 1, BENCH_BOTH},
    {"kl_div_logits", "f32", 4096, 128256, 1, BENCH_BOTH},
    {"kl_div_logits", "bf16", 4096, 128256, 1, BENCH_BOTH},
    {"jsd_logits", "f32", 8192, 32000, 1, BENCH_BOTH},
    {"jsd_logits", "bf16", 8192, 32000, 1, BENCH_BOTH},
    {"jsd_logits", "f32", 4096, 128256, 1, BENCH_BOTH},
    {"jsd_logits", "bf16", 4096, 128256, 1, BENCH_BOTH},
};

enum { HEADLINES = sizeof headlines / sizeof headlines[0], MOST = 2048 };

static bench_cell cells[MOST];
static int count;
const bench_cell *bench_cells = cells;

int bench_cell_count(void) {
    return count;
}

static bench_cell *add(const char *loss, const char *dtype, int64_t rows, int64_t classes, int pass) {
    bench_cell *c = &cells[count++];
    memset(c, 0, sizeof *c);
    c->loss = loss;
    c->dtype = dtype;
    c->rows = rows < 1 ? 1 : rows;
    c->classes = classes;
    c->inner = 1;
    c->pass = pass;
    c->pair = bench_pair_of(loss);
    return c;
}

/* ---- calls without options ---- */

static void add_headlines(void) {
    unsigned i;
    for (i = 0; i < HEADLINES; i++) {
        const struct headline *h = &headlines[i];
        bench_cell *c = add(h->loss, h->dtype, h->rows, h->classes, h->pass);
        c->inner = h->inner;
        c->headline = 1;
        c->option = bench_is(c, "cross_entropy_options") ? BENCH_PUBLISHED : BENCH_PLAIN;
    }
}

static int64_t rows_that_move(int64_t bytes, const char *loss, const char *dtype, int64_t classes, int pass) {
    int64_t arrays = (strcmp(loss, "cross_entropy") == 0 ? 1 : 2) + (pass != BENCH_LOSS);
    return bytes / (arrays * (strcmp(dtype, "f32") == 0 ? 4 : 2) * classes);
}

static void add_basic(int64_t bytes) {
    static const char *const losses[] = {"cross_entropy", "kl_div_pp", "kl_div_ll", "kl_div_logits"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    static const int64_t classes[] = {10, 64, 256, 1000, 4096, 16384, 32000, 50257, 128256, 151936, 262144};
    static const int64_t few[] = {1, 8, 64, 256}, longest[] = {32000, 128256, 262144};
    unsigned loss, dtype, i, k;
    int pass;
    for (loss = 0; loss < 4; loss++)
        for (dtype = 0; dtype < 3; dtype++)
            for (i = 0; i < sizeof classes / sizeof classes[0]; i++)
                /* A divergence has no backward pass of its own: it reads the same arrays as the fused one. */
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

/* ---- options and layouts ---- */

enum { LOSS = 1 << BENCH_LOSS, BOTH = 1 << BENCH_BOTH, BACKWARD = 1 << BENCH_BACKWARD };
#define OPTION(name) (1u << BENCH_##name)
#define SHORT_ROWS 10, 21, 64, 100, 150
#define LONG_ROWS 1000, 4096, 32000, 50257, 128256
#define PAIR_ROWS 1000, 4096, 32000, 128256

/* Every option with every type, number of classes and pass; lists end with 0. */
static const struct group {
    unsigned options; /* bits by their number */
    const char *dtypes[3];
    int64_t classes[11];
    int passes, layout;
} groups[] = {
    {OPTION(PLAIN), {"f32", "bf16"}, {21, 100, 150}, LOSS | BOTH | BACKWARD, BENCH_PACKED},
    {OPTION(SMOOTHING) | OPTION(CLASS_WEIGHTS) | OPTION(SMOOTHING_WEIGHTS) | OPTION(ROW_WEIGHTS_ALONE) |
         OPTION(Z_LOSS) | OPTION(SOFTCAP) | OPTION(LOGIT_SCALE) | OPTION(WITH_ARGMAX) | OPTION(WITH_LOSS_ROWS) |
         OPTION(ALL) | OPTION(PROBABILITIES),
     {"f32", "bf16"},
     {SHORT_ROWS, LONG_ROWS},
     LOSS | BOTH,
     BENCH_PACKED},
    {OPTION(SMOOTHING) | OPTION(CLASS_WEIGHTS) | OPTION(SMOOTHING_WEIGHTS) | OPTION(ALL),
     {"f32", "bf16"},
     {SHORT_ROWS, LONG_ROWS},
     BACKWARD,
     BENCH_PACKED},
    {OPTION(PROBABILITIES_F32), {"bf16"}, {SHORT_ROWS, LONG_ROWS}, LOSS | BOTH, BENCH_PACKED},
    {OPTION(GRADIENT_F32), {"bf16"}, {SHORT_ROWS, LONG_ROWS}, BOTH, BENCH_PACKED},
    {OPTION(GRADIENT_BF16), {"f32"}, {SHORT_ROWS, LONG_ROWS}, BOTH, BENCH_PACKED},
    {OPTION(SMOOTHING_WEIGHTS) | OPTION(SOFTCAP) | OPTION(PROBABILITIES),
     {"f16"},
     {21, 4096, 50257},
     LOSS | BOTH,
     BENCH_PACKED},
    {OPTION(PLAIN) | OPTION(SMOOTHING_WEIGHTS) | OPTION(ALL) | OPTION(PROBABILITIES),
     {"f64"},
     {21, 1000, 32000, 128256},
     LOSS | BOTH,
     BENCH_PACKED},
    {OPTION(PLAIN), {"f64"}, {21, 1000, 32000, 128256}, BACKWARD, BENCH_PACKED},
    {OPTION(PLAIN) | OPTION(SMOOTHING_WEIGHTS),
     {"f32", "bf16"},
     {100, 1000, 4096, 32000, 128256},
     LOSS | BOTH,
     BENCH_SHIFTED},
    {OPTION(PLAIN) | OPTION(SMOOTHING_WEIGHTS), {"f32", "bf16"}, {101, 1001}, LOSS | BOTH, BENCH_ODD_ROWS},
    {OPTION(PLAIN) | OPTION(SMOOTHING_WEIGHTS),
     {"f32", "bf16"},
     {100, 1000, 4096, 32000, 128256},
     LOSS | BOTH,
     BENCH_STRIDE_1},
    {OPTION(PLAIN) | OPTION(SMOOTHING_WEIGHTS), {"f32", "bf16"}, {50257}, LOSS | BOTH, BENCH_PADDED},
    {OPTION(PLAIN) | OPTION(SMOOTHING_WEIGHTS),
     {"f32", "bf16"},
     {100, 1000, 4096, 32000, 50257, 128256},
     BOTH,
     BENCH_IN_PLACE},
};

/* The same of columns. */
static const struct group column_groups[] = {
    {OPTION(SMOOTHING) | OPTION(CLASS_WEIGHTS) | OPTION(PROBABILITIES),
     {"f32", "bf16"},
     {21, 150},
     LOSS | BOTH,
     BENCH_PACKED},
    {OPTION(PLAIN), {"f32", "bf16"}, {21, 150}, LOSS | BOTH, BENCH_ODD_INNER},
};

/* Rows that are partly ignored. Their numbers are for cells of the usual 1 GiB. */
static const struct masked {
    const char *dtype;
    int64_t rows, classes;
} masked[] = {{"bf16", 8192, 128256}, {"f32", 32768, 4096}, {"bf16", 8192, 32000}};

/* Divergences: the ones that the grid without options lacks, and divergences of close logits. */
static const struct pair_group {
    const char *losses[13];
    struct group cells;
} pair_groups[] = {
    {{"reverse_logits", "tv_logits", "logits_p", "logits_l", "reverse_p", "logits_both", "reverse_ll", "jsd_pp",
      "tv_pp", "ll_weights", "ll_labels", "ll_rows"},
     {OPTION(PLAIN), {"f32", "bf16"}, {PAIR_ROWS}, LOSS | BOTH, BENCH_PACKED}},
    {{"sparse_16", "sparse_64", "sparse_256", "sparse_reverse", "sparse_jsd", "sparse_tv"},
     {OPTION(PLAIN), {"f32", "bf16"}, {PAIR_ROWS}, LOSS | BOTH, BENCH_PACKED}},
    {{"logits_f32", "pp_f32"}, {OPTION(PLAIN), {"bf16"}, {PAIR_ROWS}, LOSS | BOTH, BENCH_PACKED}},
    {{"kl_div_logits", "reverse_logits", "jsd_logits", "tv_logits"},
     {OPTION(SIGMA_1_100) | OPTION(SIGMA_3_10) | OPTION(SIGMA_1),
      {"f32", "bf16"},
      {PAIR_ROWS},
      LOSS | BOTH,
      BENCH_PACKED}},
};

static bench_cell *add_option(const char *loss, const char *dtype, int64_t classes, int pass, int option, int layout) {
    bench_cell *c = add(loss, dtype, 1, classes, pass);
    c->option = option;
    c->layout = layout;
    c->normal = c->pair == NULL || bench_request_of(c)->closeness > 0;
    return c;
}

/* The rows that move these bytes in all, or one. */
static void set_rows(bench_cell *c, int64_t bytes) {
    c->rows = (int64_t)((double)bytes / bench_array_bytes(c));
    c->rows = c->rows < 1 ? 1 : c->rows;
}

/* Images of 512 x 512 columns, or of 513 x 511, which are no multiple of 16 bytes; smaller ones in smaller cells. */
static void set_images(bench_cell *c, int64_t bytes) {
    const int64_t columns = (int64_t)((double)bytes / bench_array_bytes(c));
    int64_t side = 512;
    while (side > 2 && side * side > columns)
        side /= 2;
    c->inner = side * side - (c->layout == BENCH_ODD_INNER);
    c->rows = columns < c->inner ? c->inner : columns / c->inner * c->inner;
}

typedef void set_size(bench_cell *c, int64_t bytes);

static void add_group(const char *loss, const struct group *g, int64_t bytes, set_size *set) {
    int option, dtype, i, pass;
    for (option = 0; option < BENCH_REQUESTS; option++)
        for (dtype = 0; g->options >> option & 1 && g->dtypes[dtype] != NULL; dtype++)
            for (i = 0; g->classes[i] > 0; i++)
                for (pass = BENCH_LOSS; pass <= BENCH_BACKWARD; pass++)
                    if (g->passes >> pass & 1)
                        set(add_option(loss, g->dtypes[dtype], g->classes[i], pass, option, g->layout), bytes);
}

static void add_masked(int64_t bytes) {
    unsigned i;
    int option;
    for (i = 0; i < sizeof masked / sizeof masked[0]; i++)
        for (option = BENCH_MASKED_0; option <= BENCH_MASKED_85; option++) {
            bench_cell *c =
                add_option("cross_entropy", masked[i].dtype, masked[i].classes, BENCH_BOTH, option, BENCH_IN_PLACE);
            c->rows = (int64_t)((double)masked[i].rows * (double)bytes / (double)(1 << 30));
            c->rows = c->rows < 1 ? 1 : c->rows;
        }
}

static void add_pairs(int64_t bytes) {
    unsigned i;
    int loss;
    for (i = 0; i < sizeof pair_groups / sizeof pair_groups[0]; i++)
        for (loss = 0; pair_groups[i].losses[loss] != NULL; loss++)
            add_group(pair_groups[i].losses[loss], &pair_groups[i].cells, bytes, set_rows);
}

void bench_list(int64_t bytes) {
    unsigned i;
    count = 0;
    add_headlines();
    add_basic(bytes);
    for (i = 0; i < sizeof groups / sizeof groups[0]; i++)
        add_group("cross_entropy", &groups[i], bytes, set_rows);
    add_masked(bytes);
    for (i = 0; i < sizeof column_groups / sizeof column_groups[0]; i++)
        add_group("columns", &column_groups[i], bytes, set_images);
    add_pairs(bytes);
}

/* ---- the cells that the schedules are chosen by ---- */

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
