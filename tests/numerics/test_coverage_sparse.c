/* Coverage of sparse teachers beyond the other tests: every type of indices and labels where rows have one warp, several
 * or a cluster, and logits, values and weights that take the slow way there. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "run_common.h"
#include "sparse_cases.h"
#include "suites.h"

/* Some classes, the teacher's among them, are masked or have subnormal exponentials. The third or last row is not a
 * number. */
static void lower_some(const sparse_case *c, const sparse_inputs *in, unsigned number) {
    int64_t row, i;
    for (row = 0; row < c->rows; row++) {
        double *x = in->logits + row * c->classes;
        for (i = row % 3; i < c->classes; i += 3)
            x[i] = dtype_round(c->dtype, row % 2 ? -(double)INFINITY : -720.5);
        x[in->indices[row * c->k + 1]] = row % 4 == 2 ? -(double)INFINITY : x[in->indices[row * c->k + 1]];
    }
    in->logits[(c->rows > 2 ? 2 : c->rows - 1) * c->classes + 5] = number % 2 ? (double)NAN : (double)INFINITY;
}

/* Probabilities that are 0, tiny or 1, and logarithms. The logarithm of a subnormal one would be that of 0 where it weighs. */
static void spread_values(const sparse_case *c, const sparse_inputs *in) {
    static const double values[] = {0, 1e-30, 1, 0.25};
    const bool weighs = c->divergence == GPULOSS_FORWARD_KL || c->divergence == GPULOSS_TOTAL_VARIATION;
    int64_t i;
    for (i = 0; i < c->rows * c->k; i += 1 + i % c->k) {
        const double p = values[i % 4], logarithm = p > 0 ? log(p) : weighs ? -720.5 : -80;
        in->values[i] = dtype_round(sparse_value_dtype(c), c->value_kind == GPULOSS_LOG_PROBABILITIES ? logarithm : p);
    }
}

/* Types, outputs and options by a number, with a corner of the logits or values. */
static void check_teacher(gpuloss_dtype dtype, sparse_shape shape, unsigned n, unsigned number) {
    static const unsigned outputs[] = {SPARSE_OUT_ALL, SPARSE_OUT_LOSS, SPARSE_OUT_LOSS_ROWS,
                                       SPARSE_OUT_LOSS | SPARSE_OUT_GRAD, SPARSE_OUT_GRAD};
    static const double upstream = -0.75;
    sparse_case c = sparse_case_of(dtype, shape);
    sparse_inputs in;
    sparse_take(&c, n);
    c.value_kind = sparse_kinds[number / 2 % SPARSE_KINDS];
    c.value_dtype = all_dtypes[number % DTYPE_COUNT];
    c.index_type = sparse_index_types[n % SPARSE_INDEX_TYPES];
    c.label_type = sparse_index_types[(n + n / 4) % SPARSE_INDEX_TYPES];
    sparse_fill(&c, LOGITS_NORMAL, n % 7 == 3 ? 0.999 : 0.7, number, &in);
    if (n % 3 != 1)
        sparse_mask(&c, &in);
    if (n % 5 == 1)
        sparse_raise_first(&c, &in, 60);
    if (n % 5 == 2 && c.rows < 100)
        lower_some(&c, &in, n);
    if (n % 5 > 2)
        spread_values(&c, &in);
    if (n % 4 == 1) {
        make_distant_weights(in.row_weights, c.rows, c.dtype);
        sparse_weigh(&c, &in);
    }
    c.outputs = n % 4 == 1 ? SPARSE_OUT_LOSS | SPARSE_OUT_LOSS_ROWS : outputs[number % 5];
    c.reduction = n % 4 == 1 ? GPULOSS_SUM : GPULOSS_MEAN;
    c.grad_loss = (c.outputs & SPARSE_OUT_GRAD) != 0 && number % 3 == 0 ? &upstream : NULL;
    sparse_test(&c, "sparse teachers of every schedule");
    sparse_inputs_free(&in);
}

/* A warp for each row, several, a block, and a cluster; more entries than registers; and a third row of each warp. */
static void sparse_teachers_of_every_schedule(void **state) {
    static const sparse_shape shapes[] = {{9, 60, 3},   {9, 200, 40}, {5, 520, 3},
                                          {3, 2100, 3}, {9, 12, 22},  {260, 50, 3}}; /* in vectors */
    enum { SHAPES = sizeof shapes / sizeof shapes[0] };
    unsigned d, k, n, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < SHAPES; k++)
            for (n = 0; n < (k < SHAPES - 1 ? (unsigned)SPARSE_DIVERGENCES : 6); n++, number++) {
                const sparse_shape shape = {shapes[k].rows, shapes[k].classes * dtype_width(all_dtypes[d]) + number % 2,
                                            shapes[k].k};
                check_teacher(all_dtypes[d], shape, n, number);
            }
    test_done();
}

/* Several classes to a bit, in the memory of every GPU, of a block and of a cluster. */
static void shared_bits_of_every_type(void **state) {
    static const sparse_shape shapes[] = {{2, 66000, 3}, {4, 131000, 3}, {1, 131000, 3}};
    unsigned d, k, n;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < (all_dtypes[d] == GPULOSS_F64 ? 1u : 3u); k++)
            for (n = 0; n < SPARSE_INDEX_TYPES; n++)
                if (k == 0 || all_dtypes[d] == GPULOSS_F32 || (n + k + d) % 2 == 0)
                    check_teacher(all_dtypes[d], shapes[k], n, n + d);
    test_done();
}

/* Entries of the same class: their logarithms are added up for reverse KL. Some are far below the other one, or no numbers.
 * Probabilities below 0 are none, either. Shapes are in vectors, with entries in registers and in memory. */
static void equal_indices_of_odd_values(void **state) {
    static const sparse_shape shapes[] = {{6, 5, 8}, {6, 25, 80}, {6, 60, 40}};
    unsigned d, k, logarithms;
    int64_t row, i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (logarithms = 0; logarithms < 2; logarithms++) {
                const int64_t classes = shapes[k].classes * dtype_width(all_dtypes[d]);
                const sparse_shape shape = {shapes[k].rows, classes, shapes[k].k < classes ? shapes[k].k : classes};
                const double odd[] = {-0.25, (double)NAN}, odd_logarithms[] = {-722, (double)NAN};
                sparse_case c = sparse_case_of(all_dtypes[d], shape);
                sparse_inputs in;
                c.divergence = GPULOSS_REVERSE_KL;
                c.value_kind = sparse_kinds[logarithms];
                sparse_fill(&c, LOGITS_NORMAL, 0.7, k, &in);
                for (row = 0; row < c.rows; row++)
                    for (i = 0; i + 1 < c.k; i += 2) {
                        const double value = (logarithms ? odd_logarithms : odd)[row / 2 % 2];
                        if (row % 2)
                            in.indices[row * c.k + i] = in.indices[row * c.k + i + 1];
                        if (row < 4 && (row / 2 == 0 || i == 2))
                            in.values[row * c.k + i] = dtype_round(c.dtype, value);
                    }
                sparse_test(&c, "equal indices of odd values");
                sparse_inputs_free(&in);
            }
    test_done();
}

/* Tiles of one row and of four rows, with each type of indices, labels and values. One teacher's values have a sum above 1,
 * and one has a class out of range. On a GPU with a single multiprocessor, a team has more rows than it knows at a time. */
static void many_rows_of_sparse_teachers(void **state) {
    enum { ROWS = 70, MANY = 520 };
    static const gpuloss_dtype passes[] = {GPULOSS_F32, GPULOSS_BF16};
    static double of_rows[MANY];
    unsigned d, n;
    (void)state;
    REQUIRE_GPU();
    for (n = 0; n < MANY; n++)
        of_rows[n] = (double)(n % 7) - 3;
    for (d = 0; d < 2; d++)
        for (n = 0; n < 5; n++) {
            const sparse_shape shape = {n < 4 ? ROWS : MANY, 50 * dtype_width(passes[d]) + n % 2, n < 4 ? 40 : 3};
            sparse_case c = sparse_case_of(passes[d], shape);
            sparse_inputs in;
            c.value_dtype = all_dtypes[n % DTYPE_COUNT];
            c.index_type = sparse_index_types[n % SPARSE_INDEX_TYPES];
            c.label_type = sparse_index_types[(n + 1) % SPARSE_INDEX_TYPES];
            sparse_fill(&c, LOGITS_NORMAL, n == 2 ? 1.01 : 0.7, n, &in);
            sparse_mask(&c, &in);
            if (n == 0)
                in.indices[3 * c.k] = c.classes;
            c.grad_loss_rows = of_rows;
            sparse_test(&c, "many rows of sparse teachers");
            sparse_inputs_free(&in);
        }
    test_done();
}

/* A class out of range, where a cluster has the row. */
static void bad_index_of_clusters(void **state) {
    static const gpuloss_dtype passes[] = {GPULOSS_F32, GPULOSS_BF16};
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++) {
        const sparse_shape shape = {2, 2100 * dtype_width(passes[d]), 3};
        sparse_case c = sparse_case_of(passes[d], shape);
        sparse_inputs in;
        sparse_fill(&c, LOGITS_NORMAL, 0.7, d, &in);
        in.indices[1] = c.classes;
        sparse_test(&c, "bad index of clusters");
        sparse_inputs_free(&in);
    }
    test_done();
}

/* Several classes share a bit of a block, or of a cluster. The teacher has a class in each vector of a stage, and the last
 * class of the row. */
static void many_classes_to_a_bit(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        gpuloss_index_type type;
    } cases[] = {{GPULOSS_F32, GPULOSS_I32}, {GPULOSS_F32, GPULOSS_U8}, {GPULOSS_BF16, GPULOSS_I64}};
    unsigned n;
    int64_t i;
    (void)state;
    REQUIRE_GPU();
    for (n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        const int64_t of_lanes = 32 * dtype_width(cases[n].dtype);
        const sparse_shape shape = {1, 131072 + 8 * of_lanes + 1, 9};
        sparse_case c = sparse_case_of(cases[n].dtype, shape);
        sparse_inputs in;
        c.index_type = cases[n].type;
        sparse_fill(&c, LOGITS_NORMAL, 0.7, n, &in);
        for (i = 0; i < c.k; i++)
            in.indices[i] = c.index_type == GPULOSS_U8 ? 28 * i : i < 8 ? of_lanes * i + 5 : c.classes - 1;
        sparse_test(&c, "many classes to a bit");
        sparse_inputs_free(&in);
    }
    test_done();
}

int run_coverage_sparse_tests(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sparse_teachers_of_every_schedule),
                                       cmocka_unit_test(shared_bits_of_every_type),
                                       cmocka_unit_test(equal_indices_of_odd_values),
                                       cmocka_unit_test(many_rows_of_sparse_teachers),
                                       cmocka_unit_test(bad_index_of_clusters),
                                       cmocka_unit_test(many_classes_to_a_bit)};
    return cmocka_run_group_tests_name("coverage of sparse teachers", tests, NULL, NULL);
}
