/* schedules CEILINGS_PTX [--bytes N] [--most N] [--classes N] [--runs N] [--as CC] [LOSS]: the measurements that the
 * schedules in gpuloss.h come from. Plans calls like the library, then measures every other schedule that could serve
 * them. Each schedule has a line: '*' marks the one that the library chooses. A line after a cell says when another is
 * more than 3 % faster. All must have the same loss. --bytes: how much a cell moves (1 GiB), but for cells of few rows;
 * --most: leaves out the cells that move more; --classes, LOSS: only cells of this number of classes, or of this loss;
 * --runs: of which the median is taken (10). --as: gpuloss takes the GPU for one of that compute capability. */
#define GPULOSS_STATIC
#include "../../gpuloss.h"
#include "cells.h"
#include "device.h"
#include "options.h"
#include "timing.h"

#include <math.h>

enum { MOST_CANDIDATES = 128, SLOWER = 3, NARROWEST = 32, USUAL_RUNS = 10 };
#define MARGIN 1.03
#define TOLERANCE 1e-5

typedef struct candidate {
    const char *name;
    int module, clustered;
    unsigned group;
    gpulossi_clusters clusters;
    int row_blocks, less; /* like in the plan */
    int64_t units, room;  /* like in the plan */
    unsigned run, ahead;  /* rows that a block or a team takes in a row, and its flag */
    uint32_t words[GPULOSSI_FEATURE_WORDS];
    double milliseconds;
    float loss;
} candidate;

typedef struct options {
    bench_options common;
    long long classes;
} options;

/* The cell at hand. */
static gpulossi_cross_entropy cross_entropy, counting;
static gpulossi_kl_div kl_div;
static gpulossi_plan plan;
static candidate candidates[MOST_CANDIDATES];
static gpuloss_dtype dtype;
static int count, chosen;
static const candidate *running;

/* Threads of a group, or blocks of a cluster. */
static unsigned spread(const candidate *c) {
    return c->clustered ? c->clusters.size : c->group;
}

static int check(gpuloss_status status) {
    return status != GPULOSS_OK && bench_fail("%s", gpuloss_last_error());
}

/* ---- which candidates a cell has ---- */

/* The module of the cell's dtype, from that of f32. */
static int of_dtype(int module) {
    return gpulossi_module_of(module, dtype);
}

static void add(const char *name, int module, unsigned group, int64_t units) {
    candidate c = {name, module, 0, group, {0, 0, 0}, 0, 0, units, 0, 0, 0, {0}, 0, 0};
    c.words[GPULOSSI_FORMAT_WORD] = dtype == GPULOSS_BF16 ? GPULOSSI_FORMAT_BF16 : 0;
    candidates[count++] = c;
}

/* The words of the variant that is planned, and the rows of its tiles. */
static void set_words(candidate *c) {
    memcpy(c->words, plan.words, sizeof c->words);
    c->run = plan.rows->of.tile_rows;
}

/* Adds the packed schedule with the library's parameters. */
static void add_packed(void) {
    add("packed", plan.module, plan.rows->group, plan.units);
    set_words(&candidates[count - 1]);
    candidates[count - 1].less = plan.less;
}

/* The sizes that the GPU takes are known of a kernel that is loaded. A block that would have no vector of a row is
 * hopeless. */
static int list_clusters(const char *name, const char *wide_name, int module, int64_t room) {
    gpuloss_context *context = bench_context();
    int wide;
    unsigned size;
    gpulossi_kernel *kernel;
    if (!context->clusters)
        return 0;
    if (check(gpulossi_kernel_of(context, plan.function, plan.preload, module, plan.words, NULL, &kernel)))
        return 1;
    for (wide = 0; wide <= kernel->wide; wide++)
        for (size = 1; size <= GPULOSSI_CLUSTER; size++)
            if (kernel->clusters[wide][size] > 0 &&
                (int64_t)(size - 1) * gpulossi_threads_of_blocks(kernel, wide) < plan.vectors) {
                const gpulossi_clusters some = {size, gpulossi_threads_of_blocks(kernel, wide),
                                                kernel->clusters[wide][size]};
                add(wide ? wide_name : name, module, GPULOSSI_BLOCK, plan.rows->rows);
                candidates[count - 1].clustered = 1;
                candidates[count - 1].room = room;
                candidates[count - 1].clusters = some;
            }
    return 0;
}

/* Lists teams of a block, of the library's sizes, and clusters of any size. */
static int list_pipeline(const gpuloss_cross_entropy_desc *d) {
    const gpulossi_plan as_planned = plan;
    const gpulossi_rows rows = *plan.rows;
    int clustered, first, status = 0;
    for (clustered = 0; clustered < 2 && status == 0; clustered++) {
        first = count;
        plan.clustered = clustered;
        gpulossi_schedule_pipeline(bench_context(), &plan, d, &cross_entropy, gpulossi_dtype_bytes(d->dtype),
                                   d->grad_logits != NULL);
        gpulossi_set_dtype(bench_context(), &plan, dtype);
        if (clustered)
            status = list_clusters("clustered", "wide", plan.module, GPULOSSI_SLOTS);
        else
            add("pipeline", plan.module, plan.rows->group, plan.units);
        while (first < count)
            set_words(&candidates[first++]);
        *plan.rows = rows;
    }
    plan = as_planned;
    return status;
}

/* A row a block. With a gradient: several rows in a row, and the next one prefetched, or not. */
static void list_block_rows(const gpuloss_cross_entropy_desc *d) {
    static const char *const names[2][3] = {{"block_rows", "two_rows", "four_rows"},
                                            {"ahead", "ahead_two", "ahead_four"}};
    const gpulossi_plan as_planned = plan;
    const gpulossi_rows rows = *plan.rows;
    const int writes = d->grad_logits != NULL;
    int ahead, run;
    gpulossi_schedule_block_rows(bench_context(), &plan, gpulossi_dtype_bytes(d->dtype), writes);
    gpulossi_set_basic(&plan, &cross_entropy, GPULOSSI_MODULE_cross_entropy_row_basic_f32, 0);
    gpulossi_set_dtype(bench_context(), &plan, dtype);
    for (ahead = 0; ahead <= writes; ahead++)
        for (run = 0; run <= 2 * writes; run++) {
            add(names[ahead][run], plan.module, plan.rows->group, rows.rows);
            set_words(&candidates[count - 1]);
            candidates[count - 1].row_blocks = plan.row_blocks;
            candidates[count - 1].run = 1u << run;
            candidates[count - 1].ahead = ahead ? GPULOSSI_FETCHES_AHEAD : 0;
        }
    plan = as_planned;
    *plan.rows = rows;
}

/* Tiles of rows, each of which some threads share. */
static void list_tiles(const gpuloss_cross_entropy_desc *d) {
    const gpulossi_plan as_planned = plan;
    const gpulossi_rows rows = *plan.rows;
    unsigned group = gpulossi_group_of_tile(bench_context(), d, &cross_entropy, NARROWEST);
    for (; group > 0 && group <= NARROWEST; group *= 2) {
        gpulossi_schedule_tiles(bench_context(), &plan, d, &cross_entropy, group);
        gpulossi_set_dtype(bench_context(), &plan, dtype);
        add("row_thread", plan.module, group, plan.units);
        candidates[count - 1].less = plan.less;
        set_words(&candidates[count - 1]);
        *plan.rows = rows;
        plan = as_planned;
    }
}

/* Rows in memory, and in registers if a group has enough of them. */
static void list_memory(const gpuloss_cross_entropy_desc *d) {
    const gpulossi_plan as_planned = plan;
    const gpulossi_rows rows = *plan.rows;
    const int64_t most = gpulossi_vectors_of_thread(d->dtype, GPULOSSI_REG_VECTORS);
    uint32_t *format = &plan.words[GPULOSSI_FORMAT_WORD];
    unsigned group;
    gpulossi_schedule_memory(&plan, d, &cross_entropy);
    gpulossi_set_dtype(bench_context(), &plan, dtype);
    for (group = 1; group <= GPULOSSI_BLOCK && (*format & GPULOSSI_FORMAT_REGISTERS) != 0; group *= 2)
        if (most * (int64_t)group >= plan.vectors) {
            add("registers", plan.module, group, plan.units);
            set_words(&candidates[count - 1]);
        }
    *format &= ~(uint32_t)GPULOSSI_FORMAT_REGISTERS;
    for (group = NARROWEST; group <= GPULOSSI_BLOCK; group *= 2) {
        add("memory", plan.module, group, plan.units);
        set_words(&candidates[count - 1]);
    }
    *plan.rows = rows;
    plan = as_planned;
}

static int list_cross_entropy(int cell) {
    gpuloss_cross_entropy_desc d = bench_cross_entropy_desc(cell);
    int64_t rows = d.rows;
    dtype = d.dtype;
    /* Else the gradient of many rows would be preceded by their count, which is the same for all schedules. */
    d.divisor = (double)rows;
    if (check(gpulossi_plan_cross_entropy(bench_context(), "schedules", &d, &cross_entropy, &plan)))
        return 1;
    list_memory(&d);
    list_tiles(&d);
    if (gpulossi_is_for_block_rows(bench_context(), &plan, &d, &cross_entropy))
        list_block_rows(&d);
    if (plan.module == of_dtype(GPULOSSI_MODULE_cross_entropy_row_basic_f32) &&
        (plan.words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_PACKED) != 0)
        add_packed();
    return d.dtype != GPULOSS_F64 &&
           gpulossi_can_load(bench_context(), GPULOSSI_MODULE_cross_entropy_row_pipeline_f32) && list_pipeline(&d);
}

/* Groups below a warp only next to the one that is chosen: of long rows they are hopeless. */
static void list_pairs_in_memory(const gpuloss_kl_div_desc *d) {
    const gpulossi_plan as_planned = plan;
    const gpulossi_rows rows = *plan.rows;
    unsigned group, ours;
    gpulossi_schedule_pairs_in_memory(&plan, d, &kl_div);
    gpulossi_set_dtype(bench_context(), &plan, dtype);
    ours = plan.rows->group;
    for (group = 1; group <= GPULOSSI_BLOCK; group *= 2)
        if (group >= NARROWEST || (2 * group >= ours && group <= 2 * ours)) {
            add("memory", plan.module, group, d->rows);
            set_words(&candidates[count - 1]);
        }
    *plan.rows = rows;
    plan = as_planned;
}

static int list_pair_pipeline(const gpuloss_kl_div_desc *d) {
    const gpulossi_plan as_planned = plan;
    const gpulossi_rows rows = *plan.rows;
    const int first = count;
    int i, status = 0;
    if (gpulossi_schedule_pair_pipeline(bench_context(), &plan, d, &kl_div)) {
        gpulossi_set_dtype(bench_context(), &plan, dtype);
        if (plan.clustered)
            status = list_clusters("pipeline", NULL, plan.module, plan.room);
        else
            add("pipeline", plan.module, plan.rows->group, d->rows);
        for (i = first; i < count; i++)
            set_words(&candidates[i]);
    }
    *plan.rows = rows;
    plan = as_planned;
    return status;
}

static int list_kl_div(int cell) {
    gpuloss_kl_div_desc d = bench_kl_div_desc(cell);
    dtype = d.dtype;
    if (check(gpulossi_plan_kl_div(bench_context(), "schedules", &d, &kl_div, &counting, &plan)))
        return 1;
    if (plan.module == of_dtype(GPULOSSI_MODULE_kl_div_logits_packed_f32) ||
        plan.module == of_dtype(GPULOSSI_MODULE_kl_div_logits_packed_reg_f32))
        add_packed();
    list_pairs_in_memory(&d);
    if (list_pair_pipeline(&d))
        return 1;
    if (plan.clustered &&
        list_clusters("block_rows", NULL, of_dtype(GPULOSSI_MODULE_kl_div_logits_block_rows_f32), GPULOSSI_SLOTS / 2))
        return 1;
    return list_clusters("clustered", NULL, of_dtype(GPULOSSI_MODULE_kl_div_logits_clustered_f32), GPULOSSI_SLOTS / 2);
}

static int in_registers(const uint32_t *words) {
    return (words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_REGISTERS) != 0;
}

static int find_chosen(void) {
    gpuloss_context *context = bench_context();
    gpulossi_kernel *kernel;
    gpulossi_clusters of = {0, 0, 0};
    if (check(gpulossi_kernel_of(context, plan.function, plan.preload, plan.module, plan.words, NULL, &kernel)))
        return 1;
    if (plan.clustered)
        of = gpulossi_clusters_of(&plan, kernel);
    for (chosen = 0; chosen < count; chosen++)
        if (candidates[chosen].module == plan.module && candidates[chosen].group == plan.rows->group &&
            candidates[chosen].clusters.size == of.size && candidates[chosen].clusters.threads == of.threads &&
            in_registers(candidates[chosen].words) == in_registers(plan.words) &&
            (plan.row_blocks == 0 || (candidates[chosen].run == plan.rows->of.tile_rows &&
                                      candidates[chosen].ahead == (plan.rows->flags & GPULOSSI_FETCHES_AHEAD))))
            return 0;
    return bench_fail("the library's own schedule is not among the candidates");
}

static int list(int cell) {
    count = 0;
    return (strcmp(bench_cells[cell].loss, "cross_entropy") == 0 ? list_cross_entropy(cell) : list_kl_div(cell)) ||
           find_chosen();
}

/* ---- measuring them ---- */

/* Launches like gpulossi_launch_clusters, with the candidate's clusters. */
static int launch_clusters(const gpulossi_kernel *kernel) {
    const gpulossi_clusters *of = &running->clusters;
    const int64_t clusters = plan.rows->rows < of->count ? plan.rows->rows : of->count;
    if (running->run == 0)
        plan.rows->of.smem_vectors = (uint32_t)(gpulossi_retained_steps(&plan, of) * plan.step);
    return check(gpulossi_launch(bench_context(), &plan, kernel, plan.parameters, (unsigned)clusters * of->size,
                                 of->threads, of->size, NULL));
}

/* Runs the call like gpulossi_run, with the candidate's schedule. */
static int call_running(void) {
    gpuloss_context *context = bench_context();
    gpulossi_kernel *kernel, *prepare;
    plan.module = running->module;
    plan.clustered = running->clustered;
    plan.row_blocks = running->row_blocks;
    plan.less = running->less;
    plan.room = running->room;
    plan.units = running->units;
    plan.rows->group = running->group;
    memcpy(plan.words, running->words, sizeof plan.words);
    if (running->run > 0) {
        plan.rows->of.tile_rows = running->run;
        plan.rows->flags = (plan.rows->flags & ~(unsigned)GPULOSSI_FETCHES_AHEAD) | running->ahead;
    }
    if (check(gpulossi_ready(context, &plan, NULL, 0, NULL, &kernel, &prepare)))
        return 1;
    return running->clustered ? launch_clusters(kernel) : check(gpulossi_launch_blocks(context, &plan, kernel, NULL));
}

/* One call says which candidates are hopeless: their medians are not waited for. The loss is a NaN beforehand, which no
 * call may leave. */
static int measure(candidate *c, double patience, int runs) {
    const gpulossi_driver *driver = &bench_context()->driver;
    running = c;
    return bench_check("cuMemsetD32Async", driver->fill(plan.rows->loss, 0xffffffffu, 1, NULL)) ||
           bench_median(call_running, 0, 1, &c->milliseconds) ||
           (c->milliseconds <= patience && bench_median(call_running, BENCH_WARM_UP, runs, &c->milliseconds)) ||
           bench_check("cuMemcpyDtoHAsync", driver->download(&c->loss, plan.rows->loss, sizeof c->loss, NULL)) ||
           bench_check("cuStreamSynchronize", driver->stream_synchronize(NULL));
}

/* Names the candidate in the failure. */
static int measure_named(candidate *c, double patience, int runs) {
    char why[BENCH_FAILURE_BYTES / 2];
    if (!measure(c, patience, runs))
        return 0;
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, bench_failure());
    return bench_fail("%s %u: %s", c->name, spread(c), why);
}

static int check_loss(const candidate *c) {
    double expected = (double)candidates[chosen].loss;
    return !(fabs((double)c->loss - expected) <= TOLERANCE * fabs(expected)) &&
           bench_fail("%s %u: the loss disagrees: %.9g, but %.9g by the schedule that is chosen", c->name, spread(c),
                      (double)c->loss, expected);
}

static int measure_all(int runs) {
    int i;
    if (measure_named(&candidates[chosen], (double)INFINITY, runs))
        return 1;
    for (i = 0; i < count; i++)
        if (i != chosen && measure_named(&candidates[i], SLOWER * candidates[chosen].milliseconds, runs))
            return 1;
    for (i = 0; i < count; i++)
        if (check_loss(&candidates[i]))
            return 1;
    return 0;
}

/* ---- printing the results ---- */

/* Prints the schedules of a cell. Returns whether another one is faster by more than two measurements may differ by. */
static int print_cell(int cell) {
    const bench_cell *c = &bench_cells[cell];
    const candidate *best = &candidates[chosen];
    double gain;
    int i;
    for (i = 0; i < count; i++) {
        const candidate *k = &candidates[i];
        printf("%-13s %-5s %8lld %7lld  %-15s  %-10s %13u %10.2f %7.0f%s\n", c->loss, c->dtype, (long long)c->rows,
               (long long)c->classes, bench_pass_name(c->pass), k->name, spread(k), 1000 * k->milliseconds,
               bench_bytes(cell) / k->milliseconds / 1e6, i == chosen ? " *" : "");
        if (k->milliseconds < best->milliseconds)
            best = k;
    }
    gain = candidates[chosen].milliseconds / best->milliseconds;
    if (gain > MARGIN)
        printf("better: %s %u, by %.1f %%\n", best->name, spread(best), 100 * (gain - 1));
    fflush(stdout);
    return gain > MARGIN;
}

static int run(const options *o) {
    int cell, cells = 0, better = 0;
    printf("%-13s %-5s %8s %7s  %-15s  %-10s %13s %10s %7s\n", "loss", "dtype", "rows", "classes", "pass", "schedule",
           "group/cluster", "us", "GB/s");
    for (cell = 0; cell < bench_cell_count(); cell++) {
        const bench_cell *c = &bench_cells[cell];
        if (bench_bytes(cell) > (double)o->common.most || (o->classes && o->classes != c->classes) ||
            (o->common.loss && strcmp(o->common.loss, c->loss) != 0))
            continue;
        if (bench_prepare(cell) || list(cell) || measure_all((int)o->common.runs)) {
            printf("%s %s %lld x %lld, %s: %s\n", c->loss, c->dtype, (long long)c->rows, (long long)c->classes,
                   bench_pass_name(c->pass), bench_failure());
            return 1;
        }
        better += print_cell(cell);
        cells++;
    }
    printf("%d cells; in %d of them another schedule is more than %.0f %% faster\n", cells, better, 100 * (MARGIN - 1));
    return 0;
}

static int parse(char **arguments, options *o) {
    const bench_option own[] = {{"--classes", &o->classes, NULL, NULL}, {0}};
    o->classes = 0;
    return bench_parse(arguments, own, USUAL_RUNS, &o->common);
}

int main(int argc, char **argv) {
    options o;
    int status;
    (void)argc;
    if (parse(argv, &o) || bench_open(o.common.ceilings, o.common.bytes)) {
        fprintf(stderr, "schedules: %s\n", bench_failure());
        return 2;
    }
    if (o.common.as != 0)
        printf("%s\n", bench_taken_for());
    bench_list_for_schedules(o.common.bytes);
    status = run(&o);
    bench_close();
    return status;
}
