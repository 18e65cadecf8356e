/* gpuloss_kl_div_sparse of every divergence with each residual that it goes with: types, close sides, little that is left
 * over, and corners. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "run_common.h"
#include "sparse_cases.h"
#include "suites.h"

static const double inf = (double)INFINITY;

static void put_logit(const sparse_case *c, sparse_inputs *in, int64_t row, int64_t column, double value) {
    in->logits[row * c->classes + column] = dtype_round(c->dtype, value);
}

static void put_value(const sparse_case *c, sparse_inputs *in, int64_t row, int64_t j, double p) {
    in->values[row * c->k + j] = dtype_round(sparse_value_dtype(c), p);
}

/* The first k classes, in order. */
static void put_indices(const sparse_case *c, sparse_inputs *in) {
    int64_t i;
    for (i = 0; i < c->rows * c->k; i++)
        in->indices[i] = i % c->k;
}

/* Changes the inputs of a case. */
typedef void prepare_function(sparse_case *c, sparse_inputs *in);

/* Every dtype with every divergence, in a shape. */
static void test_all(prepare_function *prepare, sparse_shape shape, double sum, const char *what) {
    unsigned d, number;
    for (number = 0; number < SPARSE_DIVERGENCES; number++)
        for (d = 0; d < DTYPE_COUNT; d++) {
            sparse_case c = sparse_case_of(all_dtypes[d], shape);
            sparse_inputs in;
            sparse_take(&c, number);
            c.reduction = all_reductions[(number + d) % REDUCTION_COUNT];
            sparse_fill(&c, LOGITS_NORMAL, sum, number, &in);
            if (prepare)
                prepare(&c, &in);
            sparse_test(&c, what);
            sparse_inputs_free(&in);
        }
    test_done();
}

static void divergences_of_sparse(void **state) {
    static const sparse_shape shapes[] = {{3, 19, 5}, {2, 260, 9}, {2, 5000, 33}};
    unsigned k, d, v, kind, number;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (number = 0; number < SPARSE_DIVERGENCES; number++)
            for (d = 0; d < DTYPE_COUNT; d++)
                for (v = 0; v < DTYPE_COUNT; v++)
                    for (kind = 0; kind < SPARSE_KINDS; kind++) {
                        sparse_case c = sparse_case_of(all_dtypes[d], shapes[k]);
                        sparse_inputs in;
                        if (harness_small &&
                            (k == 2 || v != (d + number + k) % DTYPE_COUNT || kind != (number + k) % 2))
                            continue;
                        sparse_take(&c, number);
                        c.value_dtype = all_dtypes[v];
                        c.value_kind = sparse_kinds[kind];
                        c.temperature = number % 3 == 1 ? 1.75 : 0;
                        c.in_place = number % 2;
                        sparse_fill(&c, LOGITS_NORMAL, 0.8, number + 50 * v, &in);
                        sparse_test(&c, "divergences");
                        sparse_inputs_free(&in);
                    }
    test_done();
}

/* Two equal sides, and sides that are as close as the types of values and logits allow. Each known class has 1/8, and
 * 16 others have 1/2. Row r moves a known logit by r^3 / 256 and another class's by less. */
static void prepare_close(sparse_case *c, sparse_inputs *in) {
    int64_t row, i;
    put_indices(c, in);
    for (row = 0; row < c->rows; row++) {
        for (i = 0; i < c->classes; i++)
            put_logit(c, in, row, i, 2);
        for (i = 0; i < c->k; i++)
            put_value(c, in, row, i, c->residual == GPULOSS_BUCKET ? 1.0 / (double)c->classes : 1.0 / (double)c->k);
        if (c->residual != GPULOSS_BUCKET)
            for (i = c->k; i < c->classes; i++)
                put_logit(c, in, row, i, -60);
        put_logit(c, in, row, 1, 2 + (double)(row * row * row) / 256);
        put_logit(c, in, row, c->classes - 1, row % 2 ? -60 : 2 + (double)row / 64);
    }
}

static void close_sides_of_sparse(void **state) {
    static const sparse_shape shapes[] = {{6, 32, 8}, {6, 8, 4}};
    unsigned k;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < 2; k++)
        test_all(prepare_close, shapes[k], 0.5, "close sides");
}

/* The other classes are 40 and 300 below the known ones, the latter below the range of float. */
static void lower_others(sparse_case *c, sparse_inputs *in, double by) {
    int64_t row, i;
    put_indices(c, in);
    for (row = 0; row < c->rows; row++)
        for (i = c->k; i < c->classes; i++)
            put_logit(c, in, row, i, -by - (double)(i % 3));
}

static void prepare_40(sparse_case *c, sparse_inputs *in) {
    lower_others(c, in, 40);
}

static void prepare_300(sparse_case *c, sparse_inputs *in) {
    lower_others(c, in, 300);
}

static void hardly_any_rest_of_sparse(void **state) {
    static const sparse_shape shape = {3, 37, 5};
    (void)state;
    REQUIRE_GPU();
    test_all(prepare_40, shape, 0.75, "others 40 below");
    test_all(prepare_300, shape, 0.75, "others 300 below");
}

/* Classes of no number, and values with a sum of 1 or less, exactly. In row 0 all other classes are masked, and leave
 * nothing for a bucket. In row 1 one of them is not masked. In row 2 a known class is masked. */
static void prepare_masked(sparse_case *c, sparse_inputs *in) {
    int64_t row, i;
    put_indices(c, in);
    for (row = 0; row < c->rows; row++) {
        for (i = 0; i < c->classes; i++)
            put_logit(c, in, row, i, i < c->k || (row > 0 && i == c->k) ? 0 : -inf);
        for (i = 0; i < c->k; i++)
            put_value(c, in, row, i, row == 3 ? 0.25 : 0.125);
    }
    put_logit(c, in, 2, 1, -inf);
}

static void masked_classes_of_sparse_divergences(void **state) {
    static const sparse_shape shape = {4, 11, 4};
    (void)state;
    REQUIRE_GPU();
    test_all(prepare_masked, shape, 0.5, "masked classes");
}

/* No probability in row 0, one in row 1; duplicates in row 2; a sum above 1 in row 3. */
static void prepare_corners(sparse_case *c, sparse_inputs *in) {
    int64_t i;
    put_indices(c, in);
    for (i = 0; i < c->k; i++) {
        put_value(c, in, 0, i, 0);
        put_value(c, in, 1, i, i == 1 ? 0.5 : 0);
        put_value(c, in, 2, i, 0.125);
        put_value(c, in, 3, i, 0.375);
    }
    in->indices[2 * c->k + 1] = in->indices[2 * c->k + 3] = in->indices[2 * c->k];
}

static void corners_of_sparse_divergences(void **state) {
    static const sparse_shape shape = {4, 21, 4};
    (void)state;
    REQUIRE_GPU();
    test_all(prepare_corners, shape, 0.5, "corners");
}

/* Values of 1/16 and 1/32 that add up to 1, so that a bucket has nothing on either side. */
static void prepare_every_class(sparse_case *c, sparse_inputs *in) {
    int64_t i;
    for (i = 0; i < c->rows * c->k; i++)
        in->values[i] = i % 20 < 12 ? 0x1p-4 : 0x1p-5;
}

static void every_class_of_sparse_divergences(void **state) {
    static const sparse_shape shape = {2, 20, 20};
    (void)state;
    REQUIRE_GPU();
    test_all(prepare_every_class, shape, 1, "every class");
}

/* Stands for a small probability, which is at least the smallest number that the arithmetic has of it. */
static double small_value(const sparse_case *c, double log) {
    const gpuloss_dtype values = sparse_value_dtype(c),
                        of = values == GPULOSS_F64 ? dtype_of_results(c->dtype) : values;
    return c->value_kind == GPULOSS_PROBABILITIES ? fmax(dtype_round(of, exp(log)), dtype_ulp(of, 0)) : log;
}

/* Probabilities below the smallest normal number, or their logarithms, which may be too small for any number. Row 1 has
 * equal indices. In row 2 one value is 0, which reverse KL makes infinite unless its class is masked, as in row 3. */
static void prepare_small(sparse_case *c, sparse_inputs *in) {
    static const double logs[] = {-1, -3, -90, -98, -103.5, -110, -800, -3000},
                        doubles[] = {-1, -3, -710, -730, -744, -750, -3000, -30000};
    const bool is_double = c->dtype == GPULOSS_F64 && sparse_value_dtype(c) == GPULOSS_F64;
    int64_t row, j;
    for (row = 0; row < c->rows; row++)
        for (j = 0; j < c->k; j++) {
            const double of = (is_double ? doubles : logs)[j % 8] - (double)(j / 8) - 0.25 * (double)row;
            put_value(c, in, row, j, small_value(c, of));
        }
    for (j = 0; j < 8; j++)
        put_logit(c, in, 0, in->indices[j], (double)(j % 3));
    for (j = 3; j < c->k; j += 3)
        in->indices[c->k + j] = in->indices[c->k + j - 1];
    put_value(c, in, 2, 4, c->value_kind == GPULOSS_PROBABILITIES ? 0 : -inf);
    put_value(c, in, 3, 4, c->value_kind == GPULOSS_PROBABILITIES ? 0 : -inf);
    put_logit(c, in, 3, in->indices[3 * c->k + 4], -inf);
}

/* Rows in memory and in the pipeline, with entries in registers, and with more. */
static void small_values_of_sparse(void **state) {
    static const sparse_shape shapes[] = {{4, 19, 8}, {4, 400, 8}, {4, 100, 80}, {4, 400, 80}};
    unsigned k, number, d, v, kind;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (number = 0; number < SPARSE_DIVERGENCES; number++)
            for (d = 0; d < DTYPE_COUNT; d++)
                for (v = 0; v < DTYPE_COUNT; v++)
                    for (kind = 0; kind < SPARSE_KINDS; kind++) {
                        sparse_case c = sparse_case_of(all_dtypes[d], shapes[k]);
                        sparse_inputs in;
                        if (harness_small && v != d && v != (d + number + k) % DTYPE_COUNT)
                            continue;
                        sparse_take(&c, number);
                        c.value_dtype = all_dtypes[v];
                        c.value_kind = sparse_kinds[kind];
                        c.temperature = number % 3 == 1 ? 1.75 : 0;
                        sparse_fill(&c, LOGITS_NORMAL, 0.8, number, &in);
                        prepare_small(&c, &in);
                        sparse_test(&c, "small values");
                        sparse_inputs_free(&in);
                    }
    test_done();
}

int run_kl_div_sparse_divergence_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(divergences_of_sparse),         cmocka_unit_test(close_sides_of_sparse),
        cmocka_unit_test(hardly_any_rest_of_sparse),     cmocka_unit_test(masked_classes_of_sparse_divergences),
        cmocka_unit_test(corners_of_sparse_divergences), cmocka_unit_test(every_class_of_sparse_divergences),
        cmocka_unit_test(small_values_of_sparse),
    };
    return cmocka_run_group_tests_name("kl_div_sparse divergences", tests, NULL, NULL);
}
