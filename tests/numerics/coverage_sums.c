/* Sums of the losses of rows: exact where they must be, with terms at the ends of the sum's range. */
#include "coverage_sums.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "run_cross_entropy.h"
#include "run_kl_div.h"

/* Losses of rows, and their sum rounded once. Tiny and huge losses are for double only. */
enum { TERMS = 4 };
typedef struct exact_sum {
    double terms[TERMS];
    double want;
} exact_sum;

static const exact_sum exact_sums[] = {
    {{1.5, 2.25, 0x1p-40}, 3.75 + 0x1p-40},
    {{-5.5, 2}, -3.5},
    {{-0x1p-30, 0x1p-32}, -0x1.8p-31},
    {{0x1.000002p-30, 0}, 0x1.000002p-30},
    {{0x1.000002p14, -0x1p-20}, 0x1.000002p14 - 0x1p-20},
    {{1, 0x1p-53}, 1},
    {{1, 0x1p-53, 0x1p-100}, 1 + 0x1p-52},
    {{1 + 0x1p-23, 0x1p-53}, 1 + 0x1p-23},
    {{1 + 0x1p-52, 0x1p-53}, 1 + 0x1p-51},
    {{0x1p60, 1, -0x1p60}, 1},
    {{-0x1p60, -1, 0x1p60}, -1},
    {{0x1p60, -0x1p60}, 0},
    {{-0x1p50, 0x1p-70}, -0x1p50},
    {{0x1p100, -0x1p-100, 0x1p60}, 0x1p100 + 0x1p60},
    {{0x1p-100, 0x1p-120}, 0x1.00001p-100},
    {{-0x1p-149, 0x1p-126}, 0x1.fffffcp-127},
    {{0x1p126, 0x1p126, 0x1p126, 0x1p126}, 0x1p128},
    {{0x1p-1074, 0x1p-1074}, 0x1p-1073},
    {{0x1p-900, -0x1p-1060}, 0x1p-900},
    {{1, 0x1p-53, 0x1p-1074}, 1 + 0x1p-52},
    {{0x1p1000, 1, -0x1p1000}, 1},
    {{0x1p1023, -0x1p970, 0x1p1023, -0x1p1023}, 0x1.fffffffffffffp1022},
    {{0x1p1023, 0x1p1023}, (double)INFINITY},
    {{(double)INFINITY, 1}, (double)INFINITY},
    {{1, -(double)INFINITY}, -(double)INFINITY},
    {{(double)INFINITY, 0x1p60, -(double)INFINITY}, (double)NAN},
    {{1, (double)NAN, (double)INFINITY}, (double)NAN},
};
enum { EXACT_SUMS = sizeof exact_sums / sizeof exact_sums[0] };

static bool fits(gpuloss_dtype dtype, const exact_sum *sum) {
    int i;
    for (i = 0; i < TERMS; i++)
        if (isfinite(sum->terms[i]) &&
            (dtype_round(dtype, sum->terms[i]) < sum->terms[i] || dtype_round(dtype, sum->terms[i]) > sum->terms[i]))
            return false;
    return true;
}

/* The terms in as many blocks, among rows whose loss is 0. */
enum { EXACT_ROWS = 3 * 256 + 1 };
static void place(double *rows, const exact_sum *sum, double sign) {
    int i;
    for (i = 0; i < EXACT_ROWS; i++)
        rows[i] = 0;
    for (i = 0; i < TERMS; i++)
        rows[i * 256] = sign * sum->terms[i];
}

/* Sums up rows whose losses are the terms. A loss is the given lse times the weight of its row. The lse is not
 * negative, but the weight may be. */
static void check_cross_entropy_sum(ce_case *c, const double *terms, double want, const char *what) {
    double *lse = require_doubles(c->rows), *row_weights = require_doubles(c->rows);
    gpuloss_dtype results = dtype_of_results(c->dtype);
    bool has_negative = false;
    char text[100];
    int64_t i;
    ce_result result;
    report r;
    (void)snprintf(text, sizeof text, "cross_entropy exact sum %a%s, %s", want, what, dtype_name(c->dtype));
    r = report_on(text);
    for (i = 0; i < c->rows; i++) {
        lse[i] = fabs(terms[i]);
        row_weights[i] = terms[i] < 0 ? -1 : 1;
        has_negative |= terms[i] < 0;
    }
    c->lse_in = lse;
    c->row_weights = has_negative ? row_weights : NULL;
    c->reduction = GPULOSS_SUM;
    c->outputs = CE_OUT_LOSS | CE_OUT_LOSS_ROWS;
    ce_run(c, &result, &r);
    compare_value(&r, CE_LOSS, c->dtype, results, 0, 0, result.loss, (long double)dtype_round(results, want), 0);
    ce_free(&result);
    case_done(&r);
    free(row_weights);
    free(lse);
}

/* One class of logit 0 with a given lse: the loss of a row is that lse. */
void exact_sums_of_cross_entropy(void **state) {
    static int64_t targets[EXACT_ROWS];
    static double x[EXACT_ROWS], terms[EXACT_ROWS];
    size_t d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < EXACT_SUMS; k++) {
            ce_case c = ce_case_of(all_dtypes[d], EXACT_ROWS, 1, x, targets);
            if (!fits(dtype_of_results(c.dtype), &exact_sums[k]))
                continue;
            place(terms, &exact_sums[k], 1);
            check_cross_entropy_sum(&c, terms, exact_sums[k].want, "");
        }
    test_done();
}

/* More rows than the interpreter's threads, so that each thread adds several. The lower 32 bits of each two carry. */
void carries_of_sums(void **state) {
    enum { ROWS_SHIFT = 14, ROWS = 1 << ROWS_SHIFT };
    const double term = 0x1.fffffep-19;
    static int64_t targets[ROWS];
    static double x[ROWS], terms[ROWS];
    size_t d;
    int i;
    (void)state;
    REQUIRE_GPU();
    for (i = 0; i < ROWS; i++)
        terms[i] = term;
    for (d = 0; d < DTYPE_COUNT; d++) {
        ce_case c = ce_case_of(all_dtypes[d], ROWS, 1, x, targets);
        check_cross_entropy_sum(&c, terms, ldexp(term, ROWS_SHIFT), " of many rows");
    }
    test_done();
}

/* The same on rows that are streamed: fewer, and with a gradient from the lse. */
void exact_sums_of_long_rows(void **state) {
    static const int64_t targets[TERMS] = {0, 1, 2, 3};
    size_t d, k;
    int i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        int64_t classes = (int64_t)(2049 * 16 / dtype_size(all_dtypes[d]));
        double *x = require_doubles(TERMS * classes);
        make_logits(x, TERMS, classes, LOGITS_CONSTANT, all_dtypes[d], 0);
        for (i = 0; i < TERMS; i++)
            x[i * classes + targets[i]] = 0;
        for (k = 0; k < EXACT_SUMS; k++) {
            ce_case c = ce_case_of(all_dtypes[d], TERMS, classes, x, targets);
            if (fits(dtype_of_results(c.dtype), &exact_sums[k]))
                check_cross_entropy_sum(&c, exact_sums[k].terms, exact_sums[k].want, " of long rows");
        }
        free(x);
    }
    test_done();
}

/* One class with t = 1: the loss of a row is minus the logarithm that is its input. */
void exact_sums_of_kl_div(void **state) {
    static double input[EXACT_ROWS], target[EXACT_ROWS];
    size_t d, k;
    int kind, i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (kind = 0; kind < 2; kind++)
            for (k = 0; k < EXACT_SUMS; k++) {
                kl_case c = kl_case_of(all_dtypes[d], EXACT_ROWS, 1, input, target);
                gpuloss_dtype results = dtype_of_results(c.dtype);
                char text[100];
                kl_result result;
                report r;
                if (!fits(c.dtype, &exact_sums[k]))
                    continue;
                (void)snprintf(text, sizeof text, "kl_div exact sum %d, %s", (int)k, dtype_name(c.dtype));
                r = report_on(text);
                c.input_kind = GPULOSS_LOG_PROBABILITIES;
                c.target_kind = kind ? GPULOSS_LOG_PROBABILITIES : GPULOSS_PROBABILITIES;
                place(input, &exact_sums[k], -1);
                for (i = 0; i < EXACT_ROWS; i++)
                    target[i] = kind ? 0 : 1;
                c.reduction = GPULOSS_SUM;
                c.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS;
                kl_run(&c, &result, &r);
                compare_value(&r, KL_LOSS, c.dtype, results, 0, 0, result.loss,
                              (long double)dtype_round(results, exact_sums[k].want), 0);
                kl_free(&result);
                case_done(&r);
            }
    test_done();
}

/* Rows of very different size: their sum is that of the losses of the rows. */
void sums_of_distant_rows(void **state) {
    enum { ROWS = 300 };
    static const int exponents[] = {60, -80, 55, -8, -106, 1, 99, -100};
    static double input[ROWS], target[ROWS];
    size_t d, first;
    unsigned pair;
    int i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (pair = 0; pair < KL_PAIRS; pair++)
            for (first = 0; first < sizeof exponents / sizeof exponents[0]; first++) {
                kl_case c = kl_case_of_pair(all_dtypes[d], ROWS, 1, pair);
                gpuloss_dtype results = dtype_of_results(c.dtype);
                long double sum = 0, unit = results == GPULOSS_F64 ? 0x1p-53L : 0x1p-24L;
                char text[100];
                kl_result result;
                report r;
                bool of_log = pair / 2;
                if (!of_log && c.dtype == GPULOSS_F16)
                    continue;
                (void)snprintf(text, sizeof text, "kl_div rows of distant sizes from 2^%d, %s", exponents[first],
                               dtype_name(c.dtype));
                r = report_on(text);
                c.input = input;
                c.target = target;
                for (i = 0; i < ROWS; i++) {
                    int exponent = exponents[(first + (size_t)i) % 8] * (results == GPULOSS_F64 ? 10 : 1);
                    double t = of_log ? exponent * 0.6875 : ldexp(1, exponent);
                    if (i % 100 != 7)
                        t = of_log ? -(double)INFINITY : 0;
                    input[i] = pair % 2 ? -0.25 : 0.75;
                    target[i] = dtype_round(c.dtype, t);
                }
                c.reduction = GPULOSS_SUM;
                c.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS;
                kl_run(&c, &result, &r);
                for (i = 0; i < ROWS; i++)
                    sum += (long double)result.loss_rows[i];
                compare_value(&r, KL_LOSS, c.dtype, results, 0, 0, result.loss, sum, unit * fabsl(sum));
                kl_free(&result);
                case_done(&r);
            }
    test_done();
}
