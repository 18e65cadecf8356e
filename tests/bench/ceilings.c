/* The ceilings of the GPU's memory: streams of several mixes of reads and writes. */
#include "bench.h"
#include "ceilings.h"
#include "data.h"
#include "driver.h"
#include "timing.h"

enum { STEP = 4, THREADS = 512 };

static const struct ceiling {
    const char *name, *kernel;
    int reads, writes; /* arrays */
    int share;         /* the bytes of an array are divided by this */
} ceilings[BENCH_CEILINGS] = {
    [BENCH_READ] = {"read", "read_vectors", 1, 0, 1},
    [BENCH_COPY] = {"copy", "copy_vectors", 1, 1, 1},
    [BENCH_BLEND] = {"read two, write one", "blend_vectors", 2, 1, 1},
    [BENCH_READ_LESS] = {"read a quarter", "read_vectors", 1, 0, 4},
    [BENCH_WRITE] = {"write", "write_vectors", 0, 1, 1},
};

static int64_t largest;
static double rates[BENCH_CEILINGS]; /* GB/s; 0: not measured */

/* At hand. */
static const struct ceiling *at_hand;
static int64_t bytes;
static unsigned blocks;

void bench_ceilings_of(int64_t bytes_of_an_array) {
    largest = bytes_of_an_array;
}

const char *bench_ceiling_name(int which) {
    return ceilings[which].name;
}

static int call_ceiling(void) {
    void *first = bench_array(BENCH_INPUT), *second = bench_array(BENCH_TARGET), *out = bench_array(BENCH_GRADIENT);
    int64_t vectors = bytes / 16;
    void *two[] = {&out, &vectors}, *three[] = {&first, &out, &vectors}, *four[] = {&first, &second, &out, &vectors};
    return bench_launch(at_hand->kernel, blocks, THREADS,
                        at_hand->reads == 0   ? two
                        : at_hand->reads == 2 ? four
                                              : three);
}

/* The best of several grids, so that nobody is measured against a badly launched stream. */
int bench_ceiling(int which, double *gigabytes_a_second) {
    /* 0: a block for every step. The hardware hands them out in order. */
    static const int blocks_a_multiprocessor[] = {2, 4, 8, 16, 0};
    double moved;
    int buffer, multiprocessors;
    unsigned i;
    if (bench_attribute(BENCH_ATTRIBUTE_MULTIPROCESSORS, &multiprocessors))
        return 1;
    for (buffer = 0; buffer < 3; buffer++)
        if (bench_reserve(buffer, (size_t)largest) || bench_fill_uniform(buffer, largest / 4))
            return 1;
    at_hand = &ceilings[which];
    bytes = largest / at_hand->share;
    moved = (double)bytes * (at_hand->reads + at_hand->writes);
    rates[which] = 0;
    for (i = 0; i < sizeof blocks_a_multiprocessor / sizeof blocks_a_multiprocessor[0]; i++) {
        double milliseconds;
        blocks = (unsigned)(blocks_a_multiprocessor[i] * multiprocessors);
        if (blocks == 0)
            blocks = 1 + (unsigned)((bytes - 1) / (16 * STEP * THREADS));
        if (bench_measure_call(call_ceiling, &milliseconds))
            return 1;
        if (moved / milliseconds / 1e6 > rates[which])
            rates[which] = moved / milliseconds / 1e6;
    }
    *gigabytes_a_second = rates[which];
    return 0;
}

/* Between two ceilings the time that a byte takes goes linearly with the share that is written. */
double bench_ceiling_of_mix(double written) {
    static const struct {
        double written;
        int ceiling;
    } mixes[] = {{0, BENCH_READ}, {1.0 / 3, BENCH_BLEND}, {0.5, BENCH_COPY}, {1, BENCH_WRITE}};
    double within;
    int i = 0;
    while (written > mixes[i + 1].written)
        i++;
    within = (written - mixes[i].written) / (mixes[i + 1].written - mixes[i].written);
    return 1 / ((1 - within) / rates[mixes[i].ceiling] + within / rates[mixes[i + 1].ceiling]);
}
