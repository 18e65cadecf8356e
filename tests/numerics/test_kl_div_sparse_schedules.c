/* gpuloss_kl_div_sparse in each schedule: rows of a warp up to rows of a cluster, and several rows after each other in
 * the same threads. Rows begin at any address, and have more classes than bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "run_common.h"
#include "sparse_cases.h"
#include "suites.h"

typedef struct shape_of_schedule {
    sparse_shape shape;
    const char *what;
} shape_of_schedule;

/* Gives row weights that make losses too large for a thread's sum. */
static void weigh_heavily(sparse_case *c, const sparse_inputs *in) {
    int64_t row;
    sparse_weigh(c, in);
    for (row = 0; row < c->rows; row++)
        in->row_weights[row] *= 0x1p24;
}

/* A varied case by its number. The logits and their gradient begin `shift` elements later. */
static void test_row(gpuloss_dtype dtype, const shape_of_schedule *of, int shift, bool in_place, unsigned number) {
    sparse_case c = sparse_case_of(dtype, of->shape);
    sparse_inputs in;
    sparse_vary(&c, number);
    c.logits_stride = c.grad_stride = shift != 0 ? STRIDE_ONE_MORE : STRIDE_PACKED;
    c.logits_offset = c.grad_offset = shift;
    c.in_place = in_place;
    sparse_fill(&c, LOGITS_NORMAL, number % 3 == 0 ? 0.999 : 0.8, number, &in);
    if (number % 4 == 1)
        sparse_mask(&c, &in);
    if (number % 5 == 2)
        weigh_heavily(&c, &in);
    sparse_test(&c, of->what);
    sparse_inputs_free(&in);
}

static void test_shapes(const shape_of_schedule *shapes, size_t count) {
    size_t i;
    unsigned d, number = 0;
    int shift;
    for (i = 0; i < count; i++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (shift = 0; shift < 3; shift += 2, number++)
                if (!harness_small || (number + i) % 3 == 0)
                    test_row(all_dtypes[d], &shapes[i], shift, number % 2 == 0, number);
    test_done();
}

/* Fewer rows than multiprocessors go to clusters if they are long. */
static void clusters_of_sparse(void **state) {
    static const shape_of_schedule shapes[] = {{{1, 8200, 3}, "a row of a cluster"},
                                               {{3, 20000, 64}, "rows of a cluster"},
                                               {{2, 16411, 300}, "rows of a cluster with ends"},
                                               {{3, 40000, 500}, "rows of several blocks"}};
    (void)state;
    REQUIRE_GPU();
    test_shapes(shapes, sizeof shapes / sizeof shapes[0]);
}

/* Each thread has its entries in registers, up to two of them. More entries go to the rows in memory. */
static void blocks_of_sparse(void **state) {
    static const shape_of_schedule shapes[] = {
        {{140, 500, 5}, "rows of a warp"},         {{9, 1000, 33}, "two entries of a lane"},
        {{9, 1000, 65}, "rows of two warps"},      {{9, 4100, 200}, "rows of four warps"},
        {{140, 800, 64}, "many rows of a warp"},   {{9, 9000, 100}, "rows of a block"},
        {{9, 17000, 512}, "all registers"},        {{9, 2100, 513}, "more entries than registers"},
        {{5, 34000, 40}, "rows that are retained"}};
    (void)state;
    REQUIRE_GPU();
    test_shapes(shapes, sizeof shapes / sizeof shapes[0]);
}

/* Classes with the same bit as one of the teacher, for each type of indices. With indices of a byte the classes are
 * among the first. */
static void shared_bits_of_sparse(void **state) {
    static const shape_of_schedule shapes[] = {{{1, 200000, 500}, "bits of a cluster"},
                                               {{4, 200000, 500}, "bits of a block"},
                                               {{2, 100000, 500}, "bits of a block in memory"}};
    unsigned i, d, t;
    (void)state;
    REQUIRE_GPU();
    for (i = 0; i < 3; i++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (t = 0; t < SPARSE_INDEX_TYPES; t++)
                if (!harness_small || t == (i + d) % SPARSE_INDEX_TYPES ||
                    (i == 1 && t == (d + 3) % SPARSE_INDEX_TYPES)) {
                    sparse_case c = sparse_case_of(all_dtypes[d], shapes[i].shape);
                    sparse_inputs in;
                    sparse_vary(&c, 3 * i + t);
                    c.index_type = sparse_index_types[t];
                    c.k = c.index_type == GPULOSS_U8 ? 100 : c.k;
                    c.logits_offset = c.grad_offset = (int)(i + t) % 2;
                    sparse_fill(&c, LOGITS_NORMAL, 0.8, i, &in);
                    sparse_test(&c, shapes[i].what);
                    sparse_inputs_free(&in);
                }
    test_done();
}

/* Copies indices of a row to other entries of it. */
static void repeat_indices(const sparse_case *c, const sparse_inputs *in) {
    int64_t row, j;
    for (row = 0; row < c->rows; row += 2)
        for (j = 0; j < c->k; j++)
            if (j % 7 == 3)
                in->indices[row * c->k + j] = in->indices[row * c->k + (j + 64) % c->k];
}

/* Every option with every type of values and indices and every kind of logits. Rows are short, or of the pipeline on
 * GPUs that have it. Some entries are equal, and some losses too large for a thread's sum. */
static void options_of_sparse(void **state) {
    enum { CASES = 360 };
    static const sparse_shape shapes[] = {{5, 404, 9}, {3, 411, 70}, {4, 60, 40}};
    unsigned d, n;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (n = d; n < CASES; n += harness_small ? 4 : 1) {
            sparse_case c = sparse_case_of(all_dtypes[d], shapes[n / 4 % 3]);
            sparse_inputs in;
            sparse_vary(&c, n);
            c.value_dtype = all_dtypes[n / 12 % DTYPE_COUNT];
            c.index_type = sparse_index_types[n / 48 % SPARSE_INDEX_TYPES];
            c.label_type = sparse_index_types[n / 20 % SPARSE_INDEX_TYPES];
            sparse_fill(&c, n % 5 == 0 ? LOGITS_SHIFTED : LOGITS_NORMAL, 0.8, n, &in);
            if (n / 4 % 2 != 0)
                repeat_indices(&c, &in);
            if (n % 3 != 0)
                sparse_mask(&c, &in);
            if (n / 4 % 4 == 1)
                sparse_weigh(&c, &in);
            if (n / 4 % 16 == 1)
                weigh_heavily(&c, &in);
            sparse_test(&c, "options");
            sparse_inputs_free(&in);
        }
    test_done();
}

/* Entries of the same class: in registers of one thread, of two, some of them in other warps, and entries without
 * registers. */
static void equal_indices_of_rows_of_sparse(void **state) {
    static const sparse_shape shapes[] = {{9, 1000, 90}, {9, 60, 40}};
    unsigned d, i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++) {
            sparse_case c = sparse_case_of(all_dtypes[d], shapes[i / 2]);
            sparse_inputs in;
            sparse_take(&c, 5 * d + 3 * i + 1);
            sparse_fill(&c, LOGITS_NORMAL, 0.7, d, &in);
            repeat_indices(&c, &in);
            sparse_test(&c, "equal indices of rows");
            sparse_inputs_free(&in);
        }
    test_done();
}

/* The last class of each row, and classes at the ends of rows that begin anywhere. */
static void ends_of_rows_of_sparse(void **state) {
    enum { ROWS = 3, CLASSES = 1003, K = 20 };
    const sparse_shape shape = {ROWS, CLASSES, K};
    unsigned d, number = 0;
    int shift;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (shift = 0; shift < 8; shift++, number++) {
            sparse_case c = sparse_case_of(all_dtypes[d], shape);
            sparse_inputs in;
            int64_t row, j;
            if (harness_small && shift % 3 != (int)d % 3)
                continue;
            sparse_take(&c, number);
            c.logits_offset = c.grad_offset = shift;
            sparse_fill(&c, LOGITS_NORMAL, 0.7, number, &in);
            for (row = 0; row < ROWS; row++)
                for (j = 0; j < K; j++)
                    in.indices[row * K + j] = j < K / 2 ? j : CLASSES - K + j;
            sparse_test(&c, "ends of rows");
            sparse_inputs_free(&in);
        }
    test_done();
}

int run_kl_div_sparse_schedule_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clusters_of_sparse),
        cmocka_unit_test(blocks_of_sparse),
        cmocka_unit_test(shared_bits_of_sparse),
        cmocka_unit_test(options_of_sparse),
        cmocka_unit_test(equal_indices_of_rows_of_sparse),
        cmocka_unit_test(ends_of_rows_of_sparse),
    };
    return cmocka_run_group_tests_name("kl_div_sparse schedules", tests, NULL, NULL);
}
