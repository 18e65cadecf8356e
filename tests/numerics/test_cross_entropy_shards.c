/* A vocabulary in shards gives the results of the whole one: gpuloss_cross_entropy of each part, the combination, and
 * the gradients from its lse. All of it runs on one GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bounds.h"
#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

/* Parts of unequal size: two, three, and one that is one class. */
typedef struct cut {
    int64_t classes, firsts[3];
    int shards;
} cut;

/* All results but the gradient are compared with the whole call. The gradient is compared with the whole call from the
 * same lse. */
static void run_cut(ce_case *c, const cut *at, const char *what) {
    char text[CE_DESCRIPTION];
    ce_result result;
    ce_case from_lse;
    double *grad;
    report r;
    ce_describe(c, what, text, sizeof text);
    r = report_on(text);
    ce_run_sharded(c, at->firsts, at->shards, &result, &r);
    grad = result.grad;
    result.grad = NULL;
    c->shards = at->shards;
    ce_check(c, &result, &r);
    from_lse = *c;
    from_lse.lse_in = result.lse;
    from_lse.outputs = CE_OUT_GRAD;
    {
        ce_result gradient;
        memset(&gradient, 0, sizeof gradient);
        gradient.grad = grad;
        ce_check(&from_lse, &gradient, &r);
    }
    free(grad);
    ce_free(&result);
    case_done(&r);
}

static void whole_equals_shards(void **state) {
    static const cut cuts[] = {{10, {0, 3, 0}, 2},      {41, {0, 40, 0}, 2},        {41, {0, 1, 17}, 3},
                               {2, {0, 1, 0}, 2},       {1000, {0, 300, 900}, 3},   {33000, {0, 20000, 0}, 2},
                               {9001, {0, 8193, 0}, 2}, {33000, {0, 100, 16500}, 3}};
    unsigned d, k, set, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof cuts / sizeof cuts[0]; k++)
            for (set = 0; set < OPTION_SETS; set += 9, number++) {
                option_shape shape = {5, cuts[k].classes, 0};
                option_inputs in;
                ce_case c;
                /* A small run: some sets of the small cuts. */
                if (harness_small && (cuts[k].classes > 100 ? set != 18 || d != k % 4 : number % 4 != 0))
                    continue;
                c = option_case(all_dtypes[d], shape, set, (logits_kind)(number % LOGITS_KINDS), number, &in);
                c.reduction = all_reductions[number % REDUCTION_COUNT];
                if (c.reduction == GPULOSS_NONE)
                    c.outputs &= ~(unsigned)(CE_OUT_LOSS | CE_OUT_Z_LOSS);
                option_index_type(&c, number / 4);
                run_cut(&c, &cuts[k], "shards");
                option_inputs_free(&in);
            }
    test_done();
}

/* More rows than a block of the combination takes. */
static void many_rows_of_shards(void **state) {
    static const cut cut_once = {10, {0, 3, 0}, 2};
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        option_shape shape = {600, cut_once.classes, 0};
        option_inputs in;
        ce_case c = option_case(all_dtypes[d], shape, OPTION_SETS - 1, LOGITS_NORMAL, d, &in);
        c.reduction = GPULOSS_MEAN;
        run_cut(&c, &cut_once, "many rows of shards");
        option_inputs_free(&in);
    }
    test_done();
}

/* Ignored and bad targets, targets on both sides of each cut, equal maxima in several shards, and a masked shard. */
static void corners_of_shards(void **state) {
    enum { ROWS = 9, CLASSES = 30 };
    static const cut at = {CLASSES, {0, 7, 20}, 3};
    static const int64_t targets[ROWS] = {6, 7, 19, 20, -100, CLASSES, -1, 29, 0};
    unsigned d, set;
    int64_t i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (set = 0; set < 4; set++) {
            static const unsigned sets[] = {0, OPTION_SMOOTHING | OPTION_WEIGHTS, OPTION_Z_LOSS | OPTION_WEIGHTS,
                                            OPTION_SMOOTHING | OPTION_Z_LOSS | OPTION_ROW_WEIGHTS};
            option_shape shape = {ROWS, CLASSES, 0};
            option_inputs in;
            ce_case c;
            c = option_case(all_dtypes[d], shape, sets[set], LOGITS_NORMAL, set, &in);
            c.targets = targets;
            c.use_ignore_index = set % 2 == 0;
            c.ignore_index = -100;
            /* With weights every class has one, so that a masked class makes the loss infinite. */
            for (i = 0; i < CLASSES; i++)
                in.class_weights[i] += 0.25;
            for (i = 0; i < ROWS; i++)
                in.row_weights[i] = 0.5 + 0.25 * (double)i;
            in.x[1 * CLASSES + 8] = in.x[1 * CLASSES + 3] = in.x[1 * CLASSES + 25] = 32;
            for (i = 7; i < 20; i++)
                in.x[3 * CLASSES + i] = -(double)INFINITY;
            for (i = 0; i < CLASSES; i++)
                in.x[7 * CLASSES + i] = -(double)INFINITY;
            in.x[8 * CLASSES + 12] = set == 1 ? (double)NAN : 1;
            c.reduction = all_reductions[(d + set) % REDUCTION_COUNT];
            run_cut(&c, &at, "corners of shards");
            option_inputs_free(&in);
        }
    test_done();
}

/* The statistics of a row in a shard. The relative error of its sum is the absolute error of the logarithm. The sums of
 * the weights w e/C have two roundings, at most one addition a class, and corrections for a rising maximum. */
static void check_shard_row(const ce_case *c, const gpuloss_shard_row *s, int64_t row, report *r) {
    gpuloss_dtype results = dtype_of_results(c->dtype);
    const double *x = c->x + row * c->classes;
    long double u = arithmetic_of(c->dtype).u, additions = (long double)c->classes, weight = 0, weighted = 0, sum;
    long double smooth = (long double)c->label_smoothing / (long double)c->total_classes;
    int64_t i, best = 0, y = c->targets[row] - c->class_offset;
    reference_row info;
    reference_softmax(x, c->classes, &info);
    sum = expl(info.log_sum);
    for (i = 0; i < c->classes; i++) {
        long double w = smooth * (c->class_weights ? (long double)c->class_weights[c->class_offset + i] : 1);
        weight += w;
        weighted += w * ((long double)x[i] - info.max);
        best = x[i] > x[best] ? i : best;
    }
    if ((long double)s->max != info.max || s->argmax != (double)(best + c->class_offset) ||
        s->target_logit != (y >= 0 && y < c->classes ? x[y] : 0))
        report_failure(r, "shard row", row, 0, "got max %g, argmax %g, target %g", s->max, s->argmax, s->target_logit);
    compare_value(r, CE_LSE, c->dtype, results, row, 0, s->sum, sum,
                  sum * log_sum_bound(c->dtype, sum_shape_of(c->dtype, c->classes), &info));
    compare_value(r, CE_LSE, c->dtype, results, row, 1, s->smooth_weight, weight, (2 + additions) * u * weight);
    compare_value(r, CE_LSE, c->dtype, results, row, 2, s->smooth_sum, weighted,
                  (4 + 3 * additions) * u * fabsl(weighted));
}

static void numbers_of_a_shard(void **state) {
    enum { ROWS = 6, CLASSES = 29, TOTAL = 100, OFFSET = 40 };
    double weights[TOTAL];
    unsigned d, weighted;
    int64_t i, row;
    (void)state;
    REQUIRE_GPU();
    for (i = 0; i < TOTAL; i++)
        weights[i] = 0.25 + (double)(i % 9) / 8;
    for (d = 0; d < DTYPE_COUNT; d++)
        for (weighted = 0; weighted < 2; weighted++) {
            option_shape shape = {ROWS, CLASSES, 0};
            option_inputs in;
            ce_case c = option_case(all_dtypes[d], shape, OPTION_SMOOTHING, LOGITS_NORMAL, 4, &in);
            ce_result result;
            report r = report_on("the numbers of a shard");
            c.class_weights = weighted ? weights : NULL;
            c.total_classes = TOTAL;
            c.class_offset = OFFSET;
            c.outputs = CE_OUT_SHARD_ROWS;
            for (row = 0; row < ROWS; row++)
                in.targets[row] = OFFSET - 2 + 6 * row;
            ce_run(&c, &result, &r);
            for (row = 0; row < ROWS; row++) {
                gpuloss_shard_row s;
                memcpy(&s, result.shard_rows + row * CE_SHARD_NUMBERS, sizeof s);
                check_shard_row(&c, &s, row, &r);
            }
            ce_free(&result);
            option_inputs_free(&in);
            case_done(&r);
        }
    test_done();
}

int run_cross_entropy_shard_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_equals_shards),
        cmocka_unit_test(many_rows_of_shards),
        cmocka_unit_test(corners_of_shards),
        cmocka_unit_test(numbers_of_a_shard),
    };
    return cmocka_run_group_tests_name("cross_entropy shards", tests, NULL, NULL);
}
