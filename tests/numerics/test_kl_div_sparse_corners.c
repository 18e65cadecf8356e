/* gpuloss_kl_div_sparse where something is missing, twice there, out of range, infinite or no number. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bounds.h"
#include "run_common.h"
#include "sparse_cases.h"
#include "suites.h"

static const double inf = (double)INFINITY;

/* Changes the inputs of a case. */
typedef void prepare_function(sparse_case *c, sparse_inputs *in);

enum { ROWS = 9 };

/* Every dtype, residual and kind of values, in short and long rows. The reductions vary. */
static void test_corner(prepare_function *prepare, const char *what) {
    static const sparse_shape shapes[] = {{ROWS, 33, 6}, {ROWS, 260, 40}, {ROWS, 5001, 8}};
    unsigned d, k, residual, kind, number = 0;
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (residual = 0; residual < SPARSE_RESIDUALS; residual++)
            for (kind = 0; kind < SPARSE_KINDS; kind++)
                for (d = 0; d < DTYPE_COUNT; d++, number++) {
                    sparse_case c = sparse_case_of(all_dtypes[d], shapes[k]);
                    sparse_inputs in;
                    if (harness_small && (k == 2 || (k == 1 && number % 8 != 3)))
                        continue;
                    c.residual = sparse_residuals[residual];
                    c.value_kind = sparse_kinds[kind];
                    c.reduction = all_reductions[(number + d) % REDUCTION_COUNT];
                    c.in_place = number % 3 == 1;
                    c.temperature = number % 5 == 2 ? 1.5 : 0;
                    c.logits_offset = (int)number % 2;
                    sparse_fill(&c, LOGITS_NORMAL, 0.85, number, &in);
                    prepare(&c, &in);
                    sparse_test(&c, what);
                    sparse_inputs_free(&in);
                }
    test_done();
}

static int64_t *index_at(const sparse_case *c, sparse_inputs *in, int64_t row, int64_t j) {
    return &in->indices[row * c->k + j];
}

/* The entry stands for the probability p. */
static void put_value(const sparse_case *c, sparse_inputs *in, int64_t row, int64_t j, double p) {
    double value = c->value_kind == GPULOSS_LOG_PROBABILITIES ? log(p) : p;
    in->values[row * c->k + j] = dtype_round(sparse_value_dtype(c), value);
}

static void put_logit(const sparse_case *c, sparse_inputs *in, int64_t row, int64_t column, double value) {
    in->logits[row * c->classes + column] = value;
}

/* Two and three of an index, all the same, and side by side. */
static void prepare_equal(sparse_case *c, sparse_inputs *in) {
    int64_t j;
    *index_at(c, in, 0, 3) = *index_at(c, in, 0, 1);
    *index_at(c, in, 1, c->k - 1) = *index_at(c, in, 1, 0);
    *index_at(c, in, 2, 2) = *index_at(c, in, 2, 4) = *index_at(c, in, 2, 5);
    *index_at(c, in, 3, 1) = *index_at(c, in, 3, 0);
    *index_at(c, in, 3, 3) = *index_at(c, in, 3, 2);
    for (j = 1; j < c->k; j++)
        *index_at(c, in, 4, j) = *index_at(c, in, 4, 0);
    for (j = 0; j < c->k; j++)
        *index_at(c, in, 5, j) = j % 2 ? c->classes - 1 : 0;
    *index_at(c, in, 6, 1) = *index_at(c, in, 6, 0);
    put_value(c, in, 6, 0, 0);
}

static void equal_indices_of_sparse(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_equal, "equal indices");
}

/* Every other row has some; their neighbours are as if nothing were there. */
static void prepare_bad(sparse_case *c, sparse_inputs *in) {
    int64_t j;
    *index_at(c, in, 1, 0) = -1;
    *index_at(c, in, 3, c->k - 1) = c->classes;
    *index_at(c, in, 5, 2) = INT64_MIN;
    *index_at(c, in, 5, 3) = INT64_MAX;
    *index_at(c, in, 5, 4) = INT64_MAX;
    for (j = 0; j < c->k; j++)
        *index_at(c, in, 7, j) = c->classes + j;
    *index_at(c, in, 8, 1) = *index_at(c, in, 8, 2) = -1;
}

static void bad_indices_of_sparse(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_bad, "bad indices");
}

/* Indices at the ends of their types, where there are enough classes and where there are not. */
static void index_types_of_sparse(void **state) {
    static const struct {
        gpuloss_index_type type;
        int64_t classes, indices[6];
    } cases[] = {{GPULOSS_U8, 300, {0, 127, 128, 254, 255, 1}},
                 {GPULOSS_U8, 255, {0, 127, 128, 254, 255, 1}},
                 {GPULOSS_U8, 7, {0, 6, 7, 250, 255, 3}},
                 {GPULOSS_I16, 300, {0, 299, 300, -1, INT16_MIN, INT16_MAX}},
                 {GPULOSS_I32, 300, {0, 299, 65536 + 7, -1, INT32_MIN, INT32_MAX}},
                 {GPULOSS_I64, 300, {0, 299, 256 + 65536, -1, INT64_MIN, INT64_MAX}}};
    static const sparse_shape shape = {2, 300, 3};
    unsigned d, k;
    int i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            sparse_case c = sparse_case_of(all_dtypes[d], shape);
            sparse_inputs in;
            c.classes = cases[k].classes;
            c.index_type = cases[k].type;
            c.residual = sparse_residuals[(d + k) % SPARSE_RESIDUALS];
            c.indices_offset = (int)(d + k) % 3;
            sparse_fill(&c, LOGITS_NORMAL, 0.6, k, &in);
            for (i = 0; i < 6; i++)
                in.indices[i] = cases[k].indices[i];
            sparse_test(&c, "index type");
            sparse_inputs_free(&in);
        }
    test_done();
}

/* A probability of 0 adds nothing, at a masked class or not; a row may have no other. */
static void prepare_zeros(sparse_case *c, sparse_inputs *in) {
    int64_t j;
    put_value(c, in, 0, 0, 0);
    put_value(c, in, 1, 1, 0);
    put_value(c, in, 1, 5, 0);
    put_value(c, in, 2, 2, 0);
    put_logit(c, in, 2, *index_at(c, in, 2, 2), -inf);
    for (j = 0; j < c->k; j++)
        put_value(c, in, 3, j, c->residual == GPULOSS_RENORMALIZE && j == 0 ? 1 : 0);
    for (j = 1; j < c->k; j++)
        put_value(c, in, 4, j, 0);
}

static void zeros_of_sparse(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_zeros, "zeros");
}

/* The probabilities have no sum to divide by. */
static void nothing_to_renormalize_of_sparse(void **state) {
    static const sparse_shape shape = {2, 33, 4};
    unsigned d;
    int64_t j;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        sparse_case c = sparse_case_of(all_dtypes[d], shape);
        sparse_inputs in;
        c.residual = GPULOSS_RENORMALIZE;
        sparse_fill(&c, LOGITS_NORMAL, 0.85, d, &in);
        for (j = 0; j < c.k; j++)
            put_value(&c, &in, 1, j, 0);
        sparse_test(&c, "nothing to renormalize");
        sparse_inputs_free(&in);
    }
    test_done();
}

/* Sums of 1, just above, and far above. */
static void prepare_above_one(sparse_case *c, sparse_inputs *in) {
    int64_t row, j;
    for (row = 0; row < ROWS; row++)
        for (j = 0; j < c->k; j++)
            put_value(c, in, row, j, j == 0 ? 0.5 : j == 1 ? 0.25 : j < 4 ? 0.125 : row % 3 == 2 ? 0.75 : 0);
    for (row = 1; row < ROWS; row += 3)
        put_value(c, in, row, 4, 0x1p-7);
}

static void above_one_of_sparse(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_above_one, "values that add up to 1 and more");
}

/* All classes are known, and the student's bucket is empty. A teacher's bucket above 0 makes the divergence infinite.
 * */
static void all_classes_of_sparse(void **state) {
    static const sparse_shape shape = {3, 20, 20};
    unsigned d, residual, less;
    int64_t i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (residual = 0; residual < SPARSE_RESIDUALS; residual++)
            for (less = 0; less < 2; less++) {
                sparse_case c = sparse_case_of(all_dtypes[d], shape);
                sparse_inputs in;
                c.residual = sparse_residuals[residual];
                sparse_fill(&c, LOGITS_NORMAL, 1, d, &in);
                for (i = 0; i < c.rows * c.k; i++)
                    in.values[i] = i % 20 < 12 && !less ? 0x1p-4 : 0x1p-5;
                sparse_test(&c, less ? "all classes, not all of the teacher" : "all classes");
                sparse_inputs_free(&in);
            }
    test_done();
}

/* NaN and negative values make their row NaN, also beside an equal index that outweighs them. */
static void prepare_no_probabilities(sparse_case *c, sparse_inputs *in) {
    in->values[1 * c->k + 2] = (double)NAN;
    if (c->value_kind == GPULOSS_LOG_PROBABILITIES)
        return;
    in->values[3 * c->k] = -0.5;
    in->values[5 * c->k + 1] = -1;
    in->values[7 * c->k] = -0x1p-10;
    in->values[7 * c->k + 1] = 0.5;
    *index_at(c, in, 7, 1) = *index_at(c, in, 7, 0);
}

static void no_probabilities_of_sparse(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_no_probabilities, "NaN and negative values");
}

/* Rows left out by their labels, whatever they hold. */
static void prepare_left_out(sparse_case *c, sparse_inputs *in) {
    int64_t i;
    sparse_mask(c, in); /* rows 1, 4 and 7 */
    *index_at(c, in, 1, 0) = -1;
    put_logit(c, in, 1, 0, (double)NAN);
    for (i = 0; i < c->classes; i++)
        put_logit(c, in, 4, i, -inf);
    for (i = 0; i < c->k; i++) {
        *index_at(c, in, 7, i) = INT64_MAX;
        in->values[7 * c->k + i] = (double)NAN;
    }
    *index_at(c, in, 8, 0) = -5; /* which is one of D all the same */
}

static void rows_left_out_of_sparse(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_left_out, "rows left out");
}

static void prepare_all_left_out(sparse_case *c, sparse_inputs *in) {
    int64_t row;
    sparse_mask(c, in);
    for (row = 0; row < ROWS; row++)
        in->labels[row] = 77;
    *index_at(c, in, 2, 0) = -1;
    c->divisor = c->reduction == GPULOSS_MEAN && c->dtype == GPULOSS_F16 ? 2 : 0;
}

static void all_left_out_of_sparse(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_all_left_out, "all rows left out");
}

static void prepare_no_rows(sparse_case *c, sparse_inputs *in) {
    (void)in;
    c->rows = 0;
}

static void no_rows_of_sparse(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_no_rows, "no rows");
}

/* Classes of -inf: the student gives them 0. At one that the teacher gives more the divergence is infinite. */
static void prepare_masked_classes(sparse_case *c, sparse_inputs *in) {
    int64_t row, column, j;
    for (row = 0; row < 3; row++) {
        for (column = 0; column < c->classes; column++)
            if (column % 3 == row)
                put_logit(c, in, row, column, -inf);
        for (j = 0; j < c->k; j++)
            put_logit(c, in, row, *index_at(c, in, row, j), 0.5 * (double)(j % 5));
    }
    put_logit(c, in, 4, *index_at(c, in, 4, 3), -inf);
}

static void masked_classes_of_sparse(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_masked_classes, "masked classes");
}

/* Rows of NaN, +inf or -inf, and their neighbours. */
static void prepare_without_softmax(sparse_case *c, sparse_inputs *in) {
    int64_t column;
    put_logit(c, in, 1, c->classes / 2, (double)NAN);
    put_logit(c, in, 3, c->classes - 1, inf);
    for (column = 0; column < c->classes; column++)
        put_logit(c, in, 5, column, -inf);
    put_logit(c, in, 7, *index_at(c, in, 7, 0), (double)NAN);
    put_logit(c, in, 8, *index_at(c, in, 8, 0), inf);
}

static void without_softmax_of_sparse(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_without_softmax, "rows of NaN, +inf, -inf");
}

/* The student is nearly sure of a class that the teacher knows. The gradients of the other classes share the small
 * rest. */
static void prepare_sure(sparse_case *c, sparse_inputs *in) {
    int64_t row;
    for (row = 0; row < ROWS; row++)
        put_logit(c, in, row, *index_at(c, in, row, 1), 14 + (double)row);
}

static void little_left_over_of_sparse(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_sure, "little left over");
}

/* The student is so sure that the rest is below the roundings of the whole. rest log(1 / left) and the gradients
 * rest q / left are still ordinary numbers. An exponential of the gap has the error of its roundings. Sums of fewer
 * than 64 nearly equal logits have an error of 64u. q - t is at least 0.15, so that its error is below 16 times the
 * errors of q and t. */
static void check_hardly_anything(const sparse_case *c, double gap, report *r) {
    arithmetic a = arithmetic_of(c->dtype);
    long double relative = 16 * (2 * a.exp_roundings * a.u * (long double)gap + 2 * a.exp_relative + 64 * a.u), want;
    sparse_expected e;
    sparse_result result;
    int64_t i;
    sparse_run(c, &result, r);
    sparse_expect(c, &e);
    for (i = 0; i < c->rows; i++) {
        want = e.ref.loss_rows[i];
        if (!(fabsl((long double)result.loss_rows[i] - want) <= relative * fabsl(want)))
            report_failure(r, "loss_rows", i, 0, "got %g, want %Lg", result.loss_rows[i], want);
    }
    for (i = 0; i < c->rows * c->classes; i++) {
        want = e.ref.grad[i];
        if (!(fabsl((long double)result.grad[i] - want) <= relative * fabsl(want) + store_rounding(c->dtype, want)))
            report_failure(r, "grad_logits", i / c->classes, i % c->classes, "got %g, want %Lg", result.grad[i], want);
    }
    sparse_expected_free(&e);
    sparse_free(&result);
}

static void hardly_anything_left_over_of_sparse(void **state) {
    static const sparse_shape shape = {ROWS, 33, 6};
    static const double gaps[] = {35, 50, 75};
    unsigned d, g;
    int64_t row;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (g = 0; g < sizeof gaps / sizeof gaps[0]; g++) {
            sparse_case c = sparse_case_of(all_dtypes[d], shape);
            char text[SPARSE_DESCRIPTION];
            sparse_inputs in;
            report r;
            c.reduction = GPULOSS_SUM;
            sparse_fill(&c, LOGITS_TINY, 0.85, g, &in);
            for (row = 0; row < ROWS; row++)
                put_logit(&c, &in, row, *index_at(&c, &in, row, 1), gaps[g]);
            sparse_describe(&c, "hardly anything left over", text, sizeof text);
            r = report_on(text);
            check_hardly_anything(&c, gaps[g], &r);
            sparse_inputs_free(&in);
            case_done(&r);
        }
    test_done();
}

int run_kl_div_sparse_corner_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_indices_of_sparse),
        cmocka_unit_test(bad_indices_of_sparse),
        cmocka_unit_test(index_types_of_sparse),
        cmocka_unit_test(zeros_of_sparse),
        cmocka_unit_test(nothing_to_renormalize_of_sparse),
        cmocka_unit_test(above_one_of_sparse),
        cmocka_unit_test(all_classes_of_sparse),
        cmocka_unit_test(no_probabilities_of_sparse),
        cmocka_unit_test(rows_left_out_of_sparse),
        cmocka_unit_test(all_left_out_of_sparse),
        cmocka_unit_test(no_rows_of_sparse),
        cmocka_unit_test(masked_classes_of_sparse),
        cmocka_unit_test(without_softmax_of_sparse),
        cmocka_unit_test(little_left_over_of_sparse),
        cmocka_unit_test(hardly_anything_left_over_of_sparse),
    };
    return cmocka_run_group_tests_name("kl_div_sparse corners", tests, NULL, NULL);
}
