/* The times that no cell can beat: of the bytes that must move, of the special functions of its formulas, and of their
 * instructions. Each is at the GPU's full rate. */
#include "bench.h"
#include "ceilings.h"
#include "driver.h"
#include "floors.h"
#include "pairs.h"
#include "requests.h"

#include <string.h>

/* ---- bytes ---- */

typedef struct bytes {
    double arrays;  /* of the arrays that have a number for each row and class */
    double others;  /* of the numbers of a row or of a class */
    double written; /* of the arrays that are written */
} bytes;

static bytes pair_bytes(const bench_cell *c, double elements) {
    const bench_pair *p = c->pair;
    const double rows = (double)c->rows, results = strcmp(c->dtype, "f64") == 0 ? 8 : 4;
    const double input = elements * bench_dtype_bytes(c->dtype), value = bench_dtype_bytes(bench_target_dtype(c));
    const double target = p->entries > 0 ? rows * p->entries * (8 + value) : elements * value;
    bytes b = {input + target, 0, c->pass == BENCH_LOSS ? 0 : input};
    b.written += bench_wants_grad_target(c) ? target : 0;
    b.arrays += b.written;
    b.others = (p->row_weights ? results * rows : 0) + (p->labels ? 8 * rows : 0) + (p->loss_rows ? results * rows : 0);
    return b;
}

/* An ignored row's logits need not be read when nothing of it is wanted; its gradient must still be written. */
static bytes cross_entropy_bytes(const bench_cell *c, double logits) {
    const bench_request *r = bench_request_of(c);
    const double rows = (double)c->rows, results = strcmp(c->dtype, "f64") == 0 ? 8 : 4;
    const double read = 1 - (double)bench_ignored_rows(c) / rows;
    const char *probabilities = bench_probabilities_dtype(c);
    bytes b = {0, 0, c->pass == BENCH_LOSS ? 0 : logits * bench_dtype_bytes(bench_gradient_dtype(c))};
    b.arrays = logits * read * bench_dtype_bytes(c->dtype) + b.written;
    if (probabilities != NULL)
        b.arrays += logits * bench_dtype_bytes(probabilities);
    else
        b.others += 8 * rows;
    b.others += r->class_weights ? results * (double)c->classes : 0;
    b.others += r->row_weights ? results * rows : 0;
    b.others += c->pass == BENCH_BACKWARD ? results * rows : 0;
    if (c->pass != BENCH_BACKWARD)
        b.others += (r->argmax ? 8 * rows : 0) + (r->loss_rows ? results * rows : 0);
    return b;
}

static bytes bytes_of(const bench_cell *c) {
    const double logits = (double)c->rows * (double)c->classes;
    return bench_is_pair(c) ? pair_bytes(c, logits) : cross_entropy_bytes(c, logits);
}

double bench_bytes(int cell) {
    const bytes b = bytes_of(&bench_cells[cell]);
    return b.arrays + b.others;
}

double bench_array_bytes(const bench_cell *c) {
    return bytes_of(c).arrays;
}

double bench_ceiling_of(int cell) {
    const bytes b = bytes_of(&bench_cells[cell]);
    return bench_ceiling_of_mix(b.written / b.arrays);
}

/* ---- special functions and instructions ---- */

/* A maximum, a fused multiplication to the exponential's argument, the exponential, and an addition to the sum. The gradient
 * sweeps the row again, because the lse must be known. It takes the same exponential with the lse in its argument, and a
 * multiplication. Of columns it is the same mathematics, in another order in memory. */
static const bench_work cross_entropy_work = {{1, 4}, {1, 3}, 1, 1, 1};

enum {
    SPECIAL_F64 = 20, /* fused multiplications of an exponential, a logarithm or a quotient of doubles, more or less */
    SLOTS_F64 = 2     /* of an instruction: at most half of the lanes do doubles */
};

static const bench_work *work_of(const bench_cell *c) {
    return bench_is_pair(c) ? &c->pair->work : &cross_entropy_work;
}

/* Instructions of an element. A vector of 16 bytes takes a load or a store, and an addition to its address. */
static double move(const char *dtype) {
    return 2.0 * bench_dtype_bytes(dtype) / 16;
}
/* Numbers of 16 bits are widened one at a time. */
static double load(const char *dtype) {
    return move(dtype) + (bench_dtype_bytes(dtype) == 2 ? 1 : 0);
}
/* Numbers of 16 bits are narrowed two at a time. */
static double store(const char *dtype) {
    return move(dtype) + (bench_dtype_bytes(dtype) == 2 ? 0.5 : 0);
}

static double loads_of(const bench_cell *c) {
    const char *second = bench_entries(c) > 0 ? NULL
                         : bench_is_pair(c)   ? bench_target_dtype(c)
                                              : bench_probabilities_dtype(c);
    return load(c->dtype) + (second != NULL ? load(second) : 0);
}

static double stores_of(const bench_cell *c) {
    return (c->pass == BENCH_LOSS ? 0 : store(bench_gradient_dtype(c))) +
           (bench_wants_grad_target(c) ? store(bench_target_dtype(c)) : 0);
}

/* In a row that is not ignored. */
static bench_cost cost_of_logit(const bench_cell *c) {
    const bench_work *w = work_of(c);
    const bench_request *r = bench_request_of(c);
    const double sweep = loads_of(c);
    bench_cost cost = {0, 0};
    if (c->pass != BENCH_BACKWARD) {
        cost.special = w->sum.special + r->sum.special;
        cost.instructions = w->sum.instructions + r->sum.instructions + sweep * w->sum_sweeps;
    }
    if (c->pass != BENCH_LOSS) {
        cost.special += w->gradient.special + r->gradient_sweep.special;
        cost.instructions += w->gradient.instructions + r->gradient_sweep.instructions + sweep * w->gradient_sweeps;
    }
    if (strcmp(c->dtype, "f64") == 0) {
        cost.instructions = SLOTS_F64 * (cost.instructions + (SPECIAL_F64 - 1) * cost.special);
        cost.special = 0;
    }
    return cost;
}

/* The logarithms of a row. Logarithms of doubles are no special functions, and a row has too few of them to count. */
static double logarithms_of(const bench_cell *c) {
    return c->pass == BENCH_BACKWARD || strcmp(c->dtype, "f64") == 0 ? 0 : work_of(c)->logarithms;
}

static double largest(double a, double b) {
    return a > b ? a : b;
}

static int rates(double *special, double *issue) {
    enum { SPECIAL_UNITS = 16, LANES_ISSUED = 4 * 32 }; /* a clock and multiprocessor */
    int kilohertz, multiprocessors;
    double clocks;
    if (bench_attribute(BENCH_ATTRIBUTE_CLOCK, &kilohertz) ||
        bench_attribute(BENCH_ATTRIBUTE_MULTIPROCESSORS, &multiprocessors))
        return 1;
    clocks = (double)kilohertz * 1e-3 * multiprocessors; /* a microsecond, of all multiprocessors */
    *special = SPECIAL_UNITS * clocks;
    *issue = LANES_ISSUED * clocks;
    return 0;
}

int bench_floors_of(int cell, bench_floors *f) {
    const bench_cell *c = &bench_cells[cell];
    const bench_cost cost = cost_of_logit(c);
    const double rows = (double)c->rows, logits = rows * (double)c->classes;
    const double read = 1 - (double)bench_ignored_rows(c) / rows;
    const double stores = stores_of(c);
    double special, issue;
    if (rates(&special, &issue))
        return 1;
    f->bytes = bench_bytes(cell) / bench_ceiling_of(cell) / 1e3;
    f->special = read * (logits * cost.special + rows * logarithms_of(c)) / special;
    f->issue = logits * (read * cost.instructions + stores) / issue;
    f->largest = largest(f->bytes, largest(f->special, f->issue));
    return 0;
}
