/* gpuloss_kl_div_sparse against the reference: shapes, types, kinds, outputs, factors, alignments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "run_common.h"
#include "sparse_cases.h"
#include "suites.h"

/* A varied case with row weights and labels by its number. */
static void test_varied(gpuloss_dtype dtype, sparse_shape shape, logits_kind kind, unsigned number, const char *what) {
    sparse_case c = sparse_case_of(dtype, shape);
    sparse_inputs in;
    sparse_vary(&c, number);
    if (c.k == c.classes && c.residual == GPULOSS_BUCKET) /* something over of nothing is infinite: a case of its own */
        sparse_leave(&c, GPULOSS_RENORMALIZE);
    sparse_fill(&c, kind, number % 4 == 3 ? 0.999 : 0.75, number, &in);
    if (number % 5 == 2)
        sparse_mask(&c, &in);
    if (number % 4 == 1)
        sparse_weigh(&c, &in);
    sparse_test(&c, what);
    sparse_inputs_free(&in);
}

/* Rows of one class up to rows that a block sweeps several times, with one entry up to all classes. The entries of a
 * row are compared with each other, which takes an interpreter long for many entries. */
static void classes_of_sparse(void **state) {
    static const int64_t classes[] = {1, 2, 3, 7, 8, 10, 31, 64, 65, 129, 300, 1000, 1025, 2051, 8193, 20000};
    static const int64_t entries[] = {1, 2, 7, 64, 300, 1024, 0}; /* 0: all classes */
    static const int64_t rows[] = {1, 3, 33, 300};
    size_t n, e, m;
    unsigned number = 0, d;
    (void)state;
    REQUIRE_GPU();
    for (n = 0; n < sizeof classes / sizeof classes[0]; n++)
        for (e = 0; e < sizeof entries / sizeof entries[0]; e++)
            for (m = 0; m < sizeof rows / sizeof rows[0]; m++)
                for (d = 0; d < DTYPE_COUNT; d++, number++) {
                    sparse_shape shape = {rows[m], classes[n], entries[e] ? entries[e] : classes[n]};
                    if (shape.k > classes[n] || shape.k > 1024 || rows[m] * classes[n] > 700000)
                        continue;
                    if (harness_small && (number % 3 != 0 || rows[m] * (classes[n] + shape.k * shape.k) > 20000))
                        continue;
                    test_varied(all_dtypes[d], shape, LOGITS_NORMAL, number, "shape");
                }
    test_done();
}

/* The most entries that there can be, in rows of a group of threads and of a whole block. */
static void most_entries_of_sparse(void **state) {
    static const sparse_shape shapes[] = {{1, 1024, 1024}, {1, 2051, 1024}, {2, 20000, 64}, {1, 20000, 300}};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            if (!harness_small || d == (2 * k + 3) % DTYPE_COUNT)
                test_varied(all_dtypes[d], shapes[k], LOGITS_NORMAL, 3 * k + 5 * d, "most entries");
    test_done();
}

/* Element types, types and kinds of values, types of indices, and residuals. The reductions vary. */
static void types_of_sparse(void **state) {
    static const sparse_shape shape = {3, 19, 5};
    unsigned d, v, kind, i, residual, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (v = 0; v < DTYPE_COUNT; v++)
            for (kind = 0; kind < SPARSE_KINDS; kind++)
                for (residual = 0; residual < SPARSE_RESIDUALS; residual++)
                    for (i = 0; i < SPARSE_INDEX_TYPES; i++, number++) {
                        sparse_case c = sparse_case_of(all_dtypes[d], shape);
                        sparse_inputs in;
                        if (harness_small && i != (d + v + kind + residual) % SPARSE_INDEX_TYPES)
                            continue;
                        sparse_vary(&c, number);
                        c.value_dtype = all_dtypes[v];
                        c.value_kind = sparse_kinds[kind];
                        c.index_type = sparse_index_types[i];
                        sparse_leave(&c, sparse_residuals[residual]);
                        sparse_fill(&c, LOGITS_NORMAL, 0.8, number, &in);
                        sparse_test(&c, "types");
                        sparse_inputs_free(&in);
                    }
    test_done();
}

/* Every kind of logits with each residual. */
static void logits_of_sparse(void **state) {
    static const sparse_shape shapes[] = {{2, 10, 3}, {2, 700, 20}, {2, 9000, 64}};
    unsigned d, k, kind, residual, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (kind = 0; kind < LOGITS_KINDS; kind++)
            for (residual = 0; residual < SPARSE_RESIDUALS; residual++)
                for (d = 0; d < DTYPE_COUNT; d++, number++) {
                    if (harness_small && (shapes[k].classes > 1000 || d != (kind + residual + k) % DTYPE_COUNT))
                        continue;
                    test_varied(all_dtypes[d], shapes[k], (logits_kind)kind, residual + 3 * number,
                                logits_kind_name((logits_kind)kind));
                }
    test_done();
}

/* Every set of outputs with every reduction: without a gradient other work is left out. */
static void outputs_of_sparse(void **state) {
    static const sparse_shape shape = {4, 37, 6};
    unsigned outputs, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (outputs = 1; outputs <= SPARSE_OUT_ALL; outputs++)
        for (k = 0; k < REDUCTION_COUNT; k++, number++) {
            sparse_case c = sparse_case_of(all_dtypes[(outputs + k) % DTYPE_COUNT], shape);
            sparse_inputs in;
            sparse_take(&c, number);
            c.reduction = all_reductions[k];
            c.outputs = outputs;
            if (sparse_outputs(&c) == 0)
                continue;
            sparse_fill(&c, LOGITS_NORMAL, 0.9, number, &in);
            if (number % 2)
                sparse_mask(&c, &in);
            sparse_test(&c, "outputs");
            sparse_inputs_free(&in);
        }
    test_done();
}

/* The factors of the gradient, with a divisor from either side. */
static void factors_of_sparse(void **state) {
    enum { ROWS = 5 };
    static const sparse_shape shape = {ROWS, 43, 7};
    static const double upstream = -0.75, weights[ROWS] = {1.0, 0.0, -2.0, 0.125, 3.0};
    unsigned d, given;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (given = 0; given < 64; given++) {
            sparse_case c = sparse_case_of(all_dtypes[d], shape);
            sparse_inputs in;
            if (harness_small && given % 4 != d)
                continue;
            sparse_take(&c, given);
            c.reduction = given & 8 ? GPULOSS_MEAN : GPULOSS_BATCHMEAN;
            c.temperature = given & 8 ? 3.5 : 0;
            c.temperature_squared = (given & 10) == 10;
            c.use_grad_scale = given & 1;
            c.grad_scale = 1.0 / 3.0;
            c.grad_loss = given & 2 ? &upstream : NULL;
            c.grad_loss_rows = given & 4 ? weights : NULL;
            c.divisor = given & 16 ? 48.5 : 0;
            c.divisor_on_device = (given & 48) == 48;
            sparse_fill(&c, LOGITS_NORMAL, 0.9, given, &in);
            sparse_weigh(&c, &in);
            if (given & 32)
                sparse_mask(&c, &in);
            sparse_test(&c, "factors");
            sparse_inputs_free(&in);
        }
    test_done();
}

/* Logits and gradients that start at every element of 16 bytes, separate and in place. */
static void offsets_of_sparse(void **state) {
    static const sparse_shape shapes[] = {{3, 67, 9}, {2, 1100, 9}};
    unsigned d, k, number = 0;
    int i;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (i = 0; i < (int)(16 / dtype_size(all_dtypes[d])); i++, number++) {
                sparse_case c = sparse_case_of(all_dtypes[d], shapes[k]);
                sparse_inputs in;
                if (harness_small && k > 0)
                    continue;
                sparse_take(&c, number);
                c.logits_offset = i;
                c.grad_offset = 3 * i % (int)(16 / dtype_size(c.dtype));
                c.in_place = number % 2;
                c.guard = number % 4 < 2 ? 256 : 0;
                sparse_fill(&c, LOGITS_NORMAL, 0.7, number, &in);
                sparse_test(&c, "offsets");
                sparse_inputs_free(&in);
            }
    test_done();
}

int run_kl_div_sparse_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_of_sparse), cmocka_unit_test(most_entries_of_sparse),
        cmocka_unit_test(types_of_sparse),   cmocka_unit_test(logits_of_sparse),
        cmocka_unit_test(outputs_of_sparse), cmocka_unit_test(factors_of_sparse),
        cmocka_unit_test(offsets_of_sparse),
    };
    return cmocka_run_group_tests_name("kl_div_sparse", tests, NULL, NULL);
}
