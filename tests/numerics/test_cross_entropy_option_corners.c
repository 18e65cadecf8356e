/* gpuloss_cross_entropy with its options where something is missing, infinite or no number. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const double inf = (double)INFINITY;

/* Fills the inputs of a corner; options that it does not want it takes out of the case. */
typedef void prepare_function(ce_case *c, option_inputs *in);

static const unsigned corner_sets[] = {0,
                                       OPTION_WEIGHTS,
                                       OPTION_SMOOTHING,
                                       OPTION_Z_LOSS,
                                       OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_ROW_WEIGHTS,
                                       OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_Z_LOSS | OPTION_SCALE,
                                       OPTION_SOFTCAP | OPTION_SCALE,
                                       OPTION_PROBABILITIES,
                                       OPTION_PROBABILITIES | OPTION_SMOOTHING,
                                       OPTION_PROBABILITIES | OPTION_WEIGHTS | OPTION_Z_LOSS,
                                       OPTION_PROBABILITIES | OPTION_ALL};

/* Row weights that are positive: infinite losses stay infinite. */
static void positive_row_weights(const ce_case *c, const option_inputs *in) {
    int64_t row;
    for (row = 0; row < c->rows; row++)
        in->row_weights[row] = 0.25 + (double)(row % 5) / 4;
}

/* Every set with every dtype and reduction, in rows and in columns; a small run takes some of it. */
static void test_corner(prepare_function *prepare, const char *what, unsigned options) {
    static const option_shape shapes[] = {{9, 33, 0}, {9, 20, 3}, {9, 1, 0}, {9, 5001, 0}, {9, 2, 9}, {9, 260, 0}};
    unsigned d, k, s, number = 0;
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (s = 0; s < sizeof corner_sets / sizeof corner_sets[0]; s++)
            for (d = 0; d < DTYPE_COUNT; d++, number++) {
                option_inputs in;
                ce_case c;
                unsigned set = corner_sets[s] & options;
                if (set != corner_sets[s] || (harness_small && (number % 3 != 0 || shapes[k].classes > 1000)))
                    continue;
                c = option_case(all_dtypes[d], shapes[k], set, LOGITS_NORMAL, number, &in);
                positive_row_weights(&c, &in);
                c.reduction = all_reductions[number / 4 % REDUCTION_COUNT];
                c.in_place = number % 3 == 1;
                c.logits_offset = (int)number % 2;
                prepare(&c, &in);
                ce_test(&c, what);
                option_inputs_free(&in);
            }
    test_done();
}

static double *element(const ce_case *c, double *array, int64_t row, int64_t column) {
    reference_cross_entropy layout = {0};
    layout.classes = c->classes;
    layout.inner = c->inner;
    return &array[reference_element(&layout, row, column)];
}

static void put(const ce_case *c, option_inputs *in, int64_t row, int64_t column, double value) {
    *element(c, in->x, row, column) = value;
}

static void fill(const ce_case *c, option_inputs *in, int64_t row, double value) {
    int64_t column;
    for (column = 0; column < c->classes; column++)
        put(c, in, row, column, value);
}

/* Ignored rows give 0 and bad targets NaN, whatever their logits hold. */
static void prepare_without_target(ce_case *c, option_inputs *in) {
    c->use_ignore_index = true;
    c->ignore_index = -100;
    in->targets[0] = in->targets[2] = in->targets[4] = in->targets[5] = -100;
    in->targets[6] = c->classes;
    in->targets[7] = in->targets[8] = -1;
    put(c, in, 2, c->classes / 2, (double)NAN);
    put(c, in, 4, c->classes - 1, inf);
    fill(c, in, 5, -inf);
    put(c, in, 7, 0, (double)NAN);
}

static void rows_without_target(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_without_target, "ignored rows and bad targets", OPTION_ALL);
}

static void prepare_all_ignored(ce_case *c, option_inputs *in) {
    int64_t row;
    c->use_ignore_index = true;
    c->ignore_index = 0;
    for (row = 0; row < c->rows; row++)
        in->targets[row] = 0;
    c->divisor = c->reduction == GPULOSS_MEAN && c->dtype == GPULOSS_F16 ? 2 : 0;
}

static void all_rows_ignored(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_all_ignored, "all rows ignored", OPTION_ALL);
}

static void prepare_no_rows(ce_case *c, option_inputs *in) {
    (void)in;
    c->rows = 0;
    c->divisor = c->reduction == GPULOSS_MEAN && c->dtype == GPULOSS_F16 ? 2 : 0;
}

static void options_of_no_rows(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_no_rows, "no rows", OPTION_ALL | OPTION_PROBABILITIES);
}

/* Masked classes. The loss is infinite if they have a weight, from smoothing or a probability. */
static void prepare_masked(ce_case *c, option_inputs *in) {
    int64_t row, column;
    for (row = 0; row < c->rows; row++)
        for (column = 0; column < c->classes - 1; column++)
            if ((column + row) % 3 == 0 || row == 8)
                put(c, in, row, column, -inf);
    in->targets[0] = c->classes - 1;
    in->targets[8] = 0;
    for (row = 0; row < c->rows && in->t; row += 2) /* without smoothing: the masked have probability 0 */
        for (column = 0; column < c->classes; column++)
            if (isinf(*element(c, in->x, row, column)))
                *element(c, in->t, row, column) = 0;
}

static void masked_options(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_masked, "masked classes", (OPTION_ALL | OPTION_PROBABILITIES) & ~(unsigned)OPTION_SOFTCAP);
}

/* The masked classes have no weight, so that nothing is infinite, also with smoothing. */
static void prepare_masked_without_weight(ce_case *c, option_inputs *in) {
    int64_t row, column;
    for (column = 0; column < c->classes; column++) {
        in->class_weights[column] = column % 4 == 1 ? 0 : 0.5;
        for (row = 0; row < c->rows && column % 4 == 1; row++)
            put(c, in, row, column, -inf);
    }
    c->class_weights = in->class_weights;
}

static void masked_classes_without_weight(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_masked_without_weight, "masked classes without weight",
                (OPTION_ALL | OPTION_PROBABILITIES) & ~(unsigned)OPTION_SOFTCAP);
}

/* Rows of NaN, +inf or -inf, and their neighbours. Every class has a weight. */
static void prepare_without_softmax(ce_case *c, option_inputs *in) {
    int64_t column;
    for (column = 0; column < c->classes; column++)
        in->class_weights[column] = 0.5 + (double)(column % 3);
    put(c, in, 1, c->classes / 2, (double)NAN);
    put(c, in, 3, c->classes - 1, inf);
    fill(c, in, 5, -inf);
    put(c, in, 7, 0, (double)NAN);
    put(c, in, 7, c->classes - 1, inf);
}

static void options_without_softmax(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_without_softmax, "rows of NaN, +inf, -inf",
                (OPTION_ALL | OPTION_PROBABILITIES) & ~(unsigned)OPTION_SOFTCAP);
}

/* A softcap makes any logit finite: the ends of the type, logits that overflow when scaled, and infinities. */
static void prepare_capped(ce_case *c, option_inputs *in) {
    double huge = dtype_max(c->dtype);
    int64_t column;
    c->softcap = 30;
    c->logit_scale = 4;
    for (column = 0; column < c->classes; column++) {
        put(c, in, 0, column, huge);
        put(c, in, 1, column, -huge);
        put(c, in, 2, column, column % 2 ? huge : -huge);
        put(c, in, 3, column, column % 3 ? -inf : (double)(column % 7));
        put(c, in, 4, column, column % 3 ? (double)(column % 7) : inf);
        put(c, in, 5, column, 25 + (double)(column % 5));
    }
    fill(c, in, 6, -inf);
}

static void huge_logits_with_softcap(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_capped, "huge logits with softcap", OPTION_ALL | OPTION_PROBABILITIES);
}

/* Without a softcap, logits at the ends of the type with weights on all classes. The loss of a row may be twice as
 * large as a logit. Weights of 1/8 keep it finite. */
static void prepare_huge(ce_case *c, option_inputs *in) {
    double huge = dtype_max(c->dtype);
    int64_t row, column;
    c->reduction = GPULOSS_NONE;
    c->logit_scale = 0.5;
    c->lse_square_scale = 0; /* the square of the lse overflows */
    c->outputs &= ~(unsigned)(CE_OUT_Z_LOSS_ROWS | CE_OUT_GRAD_TARGETS);
    for (column = 0; column < c->classes; column++) {
        put(c, in, 0, column, huge);
        put(c, in, 1, column, -huge);
        put(c, in, 2, column, column % 2 ? huge : -huge);
        in->class_weights[column] = 1.0 / (8 * (double)c->classes);
        for (row = 0; row < c->rows; row++)
            in->targets[row] = row % c->classes;
    }
    c->class_weights = in->class_weights;
}

static void huge_logits_with_weights(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_huge, "huge logits with weights", OPTION_ALL & ~(unsigned)(OPTION_SOFTCAP | OPTION_Z_LOSS));
}

/* A z-loss beyond the range of float adds nothing where the row's weight is 0. With a small weight it is a number.
 * Double holds it, so the reference is right for logits that a float holds. A mean makes the gradient's factor
 * subnormal. */
static void prepare_overflowing_z_loss(ce_case *c, option_inputs *in) {
    double huge = dtype_round(c->dtype, fmin(dtype_max(c->dtype), 0x1p127));
    c->reduction = GPULOSS_MEAN;
    c->logit_scale = 0.5;
    c->row_weights = in->row_weights;
    in->row_weights[0] = in->row_weights[1] = 0;
    in->row_weights[2] = 0x1p-124;
    fill(c, in, 0, huge);
    put(c, in, 1, c->classes / 2, huge);
    fill(c, in, 2, huge);
}

static void overflowing_z_loss(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_overflowing_z_loss, "z-loss that overflows",
                OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_Z_LOSS | OPTION_SCALE);
}

/* Label smoothing of distant logits. The sum over the classes overflows float. The loss, which has e/C of it, does not.
 * */
static void prepare_distant(ce_case *c, option_inputs *in) {
    double huge = dtype_round(c->dtype, dtype_max(c->dtype) / 8);
    int64_t row, column;
    c->reduction = GPULOSS_NONE;
    c->label_smoothing = 0.1;
    c->outputs &= ~(unsigned)(CE_OUT_Z_LOSS_ROWS | CE_OUT_GRAD_TARGETS);
    for (row = 0; row < c->rows; row++)
        for (column = 0; column < c->classes; column++)
            put(c, in, row, column, (row + column) % 2 ? huge : -huge);
}

static void distant_and_smoothed(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_distant, "distant smoothed logits", OPTION_WEIGHTS);
}

/* Equal maxima, NaN among them, rows of one value, and the maximum at either end. */
static void prepare_ties(ce_case *c, option_inputs *in) {
    int64_t n = c->classes, column;
    put(c, in, 0, n / 3, 32);
    put(c, in, 0, n - 1, 32);
    put(c, in, 1, n / 2, (double)NAN);
    put(c, in, 1, n - 1, (double)NAN);
    put(c, in, 1, 0, 64);
    fill(c, in, 2, 1.5);
    fill(c, in, 3, -inf);
    fill(c, in, 4, -inf);
    put(c, in, 4, n - 1, -3);
    put(c, in, 5, n / 2, inf);
    put(c, in, 5, n - 1, inf);
    put(c, in, 6, n / 4, inf);
    put(c, in, 6, n / 2, (double)NAN);
    for (column = n / 2; column < n; column++)
        put(c, in, 7, column, 24);
    in->targets[0] = n / 3;
    in->targets[1] = n / 2;
    in->targets[3] = 0;
    in->targets[7] = n / 2;
    c->reduction = GPULOSS_SUM;
    c->outputs = CE_OUT_ARGMAX | CE_OUT_CORRECT | CE_OUT_LOSS_ROWS;
    for (column = 0; column < n; column++)
        in->class_weights[column] = 1;
}

static void ties_of_argmax(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_ties, "equal maxima", (OPTION_ALL | OPTION_PROBABILITIES) & ~(unsigned)OPTION_SOFTCAP);
}

/* The maximum at each class in turn: alone, equal to that of the last class, infinite as well, and a NaN as well. Then rows
 * of -inf. */
static ce_case best_class_case(gpuloss_dtype dtype, int64_t classes, unsigned options, uint64_t seed,
                               option_inputs *in) {
    static const double best[] = {64, 64, INFINITY, (double)NAN};
    const int64_t step = classes / 40 + 1, positions = (classes - 1) / step + 1;
    const option_shape shape = {5 * positions, classes, 0};
    ce_case c = option_case(dtype, shape, options, LOGITS_NORMAL, seed, in);
    int64_t row;
    for (row = 0; row < c.rows; row++) {
        const int64_t kind = row / positions, column = (row + kind) % positions * step; /* in any lane */
        if (kind == 4) {
            fill(&c, in, row, -inf);
            continue;
        }
        put(&c, in, row, column, best[kind]);
        if (kind > 0)
            put(&c, in, row, classes - 1, best[kind]);
        if (row % 2)
            in->targets[row] = column;
    }
    c.reduction = GPULOSS_SUM;
    return c;
}

/* Packed rows: in registers up to 22 or 23 classes, and up to 4 KiB shared by up to 32 lanes. */
static void best_classes_of_packed_rows(void **state) {
    static const int64_t classes[] = {1,  2,  3,  7,  8,   10,  11,  16,  21,  22,  23,
                                      24, 33, 64, 75, 100, 101, 150, 257, 600, 1000};
    static const unsigned sets[] = {0, OPTION_SMOOTHING | OPTION_ROW_WEIGHTS, OPTION_WEIGHTS | OPTION_IGNORE_INDEX,
                                    OPTION_SMOOTHING | OPTION_WEIGHTS};
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16, GPULOSS_F16};
    unsigned i, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (i = 0; i < sizeof classes / sizeof classes[0]; i++)
        for (k = 0; k < 4 * 3; k++, number++) {
            option_inputs in;
            ce_case c;
            if (harness_small && (i + k + k / 3) % 3 != 0)
                continue;
            c = best_class_case(dtypes[k % 3], classes[i], sets[k / 3], number, &in);
            c.outputs = CE_OUT_ARGMAX | CE_OUT_CORRECT;
            c.result_offset = number % 5 == 3;
            if (number % 2)
                c.outputs |= CE_OUT_LOSS_ROWS | CE_OUT_LSE;
            if (number % 4 < 2)
                c.outputs |= CE_OUT_LOSS;
            if (classes[i] < 24 && number / 2 % 2)
                c.outputs |= CE_OUT_GRAD;
            ce_test(&c, "best class");
            option_inputs_free(&in);
        }
    test_done();
}

static void prepare_all_smoothed(ce_case *c, option_inputs *in) {
    c->label_smoothing = 1;
    put(c, in, 4, c->classes - 1, -inf);
    in->targets[4] = c->classes - 1; /* whose own part has the factor 0 */
    in->class_weights[c->classes - 1] = 0;
}

static void all_smoothed(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_all_smoothed, "smoothing of 1",
                (OPTION_ALL | OPTION_PROBABILITIES) & ~(unsigned)OPTION_SOFTCAP);
}

/* The same without outputs that other kernels have. */
static void all_smoothed_losses(void **state) {
    static const int64_t classes[] = {10, 33, 4096};
    unsigned d, k, weighs;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (weighs = 0; weighs < 2; weighs++) {
                const option_shape shape = {9, classes[k], 0};
                option_inputs in;
                ce_case c = option_case(all_dtypes[d], shape, OPTION_SMOOTHING | (weighs ? OPTION_WEIGHTS : 0u),
                                        LOGITS_NORMAL, k, &in);
                prepare_all_smoothed(&c, &in);
                c.reduction = GPULOSS_NONE;
                c.outputs = CE_OUT_LOSS_ROWS;
                ce_test(&c, "losses with a smoothing of 1");
                option_inputs_free(&in);
            }
    test_done();
}

/* Targets whose class has no weight, masked and not; with `every` there is no weight at all. */
static void prepare_weightless(ce_case *c, option_inputs *in) {
    int64_t row, column, every = c->dtype == GPULOSS_BF16;
    for (column = 0; column < c->classes; column++)
        in->class_weights[column] = every || column % 2 == 0 ? 0 : 1.5;
    for (row = 0; row < c->rows; row += 2)
        in->targets[row] = 0;
    put(c, in, 4, 0, -inf);
    c->class_weights = in->class_weights;
    c->row_weights = NULL;
    c->outputs &= ~(unsigned)CE_OUT_GRAD_TARGETS;
}

static void targets_without_weight(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_weightless, "targets without weight",
                (OPTION_ALL | OPTION_PROBABILITIES) & ~(unsigned)OPTION_SOFTCAP);
}

int run_cross_entropy_option_corner_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_without_target),
        cmocka_unit_test(all_rows_ignored),
        cmocka_unit_test(options_of_no_rows),
        cmocka_unit_test(masked_options),
        cmocka_unit_test(masked_classes_without_weight),
        cmocka_unit_test(options_without_softmax),
        cmocka_unit_test(huge_logits_with_softcap),
        cmocka_unit_test(huge_logits_with_weights),
        cmocka_unit_test(overflowing_z_loss),
        cmocka_unit_test(distant_and_smoothed),
        cmocka_unit_test(ties_of_argmax),
        cmocka_unit_test(best_classes_of_packed_rows),
        cmocka_unit_test(all_smoothed),
        cmocka_unit_test(all_smoothed_losses),
        cmocka_unit_test(targets_without_weight),
    };
    return cmocka_run_group_tests_name("cross_entropy option corners", tests, NULL, NULL);
}
