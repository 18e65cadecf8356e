#include <stdlib.h>
#include <string.h>

#include "run_cross_entropy.h"

/* The state that the shards of one call share. `firsts` ends with the number of classes. */
typedef struct sharding {
    const ce_case *whole;
    int64_t *firsts;
    int shards;
    double *shard_rows; /* [shards, rows] of gpuloss_shard_row */
} sharding;

static sharding sharding_of(const ce_case *c, const int64_t *firsts, int shards) {
    sharding s;
    s.whole = c;
    s.shards = shards;
    s.firsts = (int64_t *)require_memory((size_t)(shards + 1) * sizeof *s.firsts);
    memcpy(s.firsts, firsts, (size_t)shards * sizeof *s.firsts);
    s.firsts[shards] = c->classes;
    s.shard_rows = require_doubles(shards * c->rows * CE_SHARD_NUMBERS);
    return s;
}

static int64_t classes_of(const sharding *s, int shard) {
    return s->firsts[shard + 1] - s->firsts[shard];
}

/* The call of one shard, with its columns of the logits. */
static ce_case case_of_shard(const sharding *s, int shard, double *x) {
    ce_case c = *s->whole;
    int64_t row;
    c.classes = classes_of(s, shard);
    c.total_classes = s->whole->classes;
    c.class_offset = s->firsts[shard];
    c.x = x;
    for (row = 0; row < c.rows; row++)
        memcpy(x + row * c.classes, s->whole->x + row * s->whole->classes + c.class_offset,
               (size_t)c.classes * sizeof *x);
    return c;
}

static void reduce_shard(sharding *s, int shard, double *x, report *r) {
    ce_case c = case_of_shard(s, shard, x);
    size_t numbers = (size_t)c.rows * CE_SHARD_NUMBERS;
    ce_result result;
    c.outputs = CE_OUT_SHARD_ROWS;
    ce_run(&c, &result, r);
    memcpy(s->shard_rows + (size_t)shard * numbers, result.shard_rows, numbers * sizeof(double));
    ce_free(&result);
}

static void combine(const sharding *s, ce_result *result, report *r) {
    ce_case c = *s->whole;
    c.shards = s->shards;
    c.shard_rows = s->shard_rows;
    c.outputs = (c.outputs | CE_OUT_LSE) & ~(unsigned)CE_OUT_GRAD;
    ce_run(&c, result, r);
}

static void gradient_of_shard(const sharding *s, int shard, double *x, ce_result *whole, report *r) {
    ce_case c = case_of_shard(s, shard, x);
    ce_result result;
    int64_t row;
    c.outputs = CE_OUT_GRAD;
    c.lse_in = whole->lse;
    ce_run(&c, &result, r);
    for (row = 0; row < c.rows; row++)
        memcpy(whole->grad + row * s->whole->classes + c.class_offset, result.grad + row * c.classes,
               (size_t)c.classes * sizeof(double));
    ce_free(&result);
}

void ce_run_sharded(const ce_case *c, const int64_t *firsts, int shards, ce_result *result, report *r) {
    double *x = require_doubles(c->rows * c->classes);
    sharding s = sharding_of(c, firsts, shards);
    int k;
    for (k = 0; k < shards; k++)
        reduce_shard(&s, k, x, r);
    combine(&s, result, r);
    if (c->outputs & CE_OUT_GRAD) {
        result->grad = require_doubles(c->rows * c->classes);
        for (k = 0; k < shards; k++)
            gradient_of_shard(&s, k, x, result, r);
    }
    free(x);
    free(s.firsts);
    free(s.shard_rows);
}

void ce_test_shards(const ce_case *whole, int64_t second, const char *what) {
    const int64_t firsts[] = {0, second};
    char text[CE_DESCRIPTION];
    ce_case c = *whole;
    ce_result result;
    report r;
    ce_describe(&c, what, text, sizeof text);
    r = report_on(text);
    c.outputs &= ~(unsigned)CE_OUT_GRAD;
    c.shards = 2;
    ce_run_sharded(&c, firsts, 2, &result, &r);
    ce_check(&c, &result, &r);
    ce_free(&result);
    case_done(&r);
}
