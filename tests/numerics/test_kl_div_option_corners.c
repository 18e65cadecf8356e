/* gpuloss_kl_div with its options where a probability is 0, a row is left out, or an input is infinite or NaN. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "run_common.h"
#include "suites.h"

static const double inf = (double)INFINITY;

/* Fills the inputs of a corner, and removes options that do not go with it from the case. */
typedef void prepare_function(kl_case *c, kl_inputs *in);

/* Every kind and divergence with every dtype and several sets of options; a small run takes some of it. */
static void test_corner(prepare_function *prepare, const char *what) {
    static const divergence_shape shapes[] = {{9, 6}, {9, 33}, {9, 1}, {6, 2600}};
    static const unsigned sets[] = {0, KL_WITH_TEMPERATURE | KL_WITH_SQUARE, KL_WITH_EPS,
                                    KL_WITH_LABELS | KL_WITH_TEMPERATURE};
    unsigned d, k, pair, choice, number = 0;
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (pair = 0; pair < KL_KIND_PAIRS; pair++)
                for (choice = 0; choice < CHOICES; choice++, number++) {
                    kl_inputs in;
                    kl_case c;
                    if (harness_small && (number % 5 != 0 || shapes[k].classes > 1000))
                        continue;
                    c = divergence_case(all_dtypes[d], all_dtypes[number % DTYPE_COUNT], shapes[k], pair, choice);
                    in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, sets[number / 5 % 4], number);
                    c.reduction = all_reductions[number / 3 % REDUCTION_COUNT];
                    c.in_place = number % 3 == 1;
                    c.target_in_place = number % 4 == 1;
                    c.input_offset = (int)number % 2;
                    prepare(&c, &in);
                    kl_test(&c, what);
                    kl_inputs_free(&in);
                }
    test_done();
}

/* The value of a side for the probability p. */
static double value_of(const kl_case *c, bool is_input, double p) {
    gpuloss_kind kind = is_input ? c->input_kind : c->target_kind;
    return dtype_round(is_input ? c->dtype : kl_target_dtype(c), kind == GPULOSS_PROBABILITIES ? p : log(p));
}

static void put(const kl_case *c, kl_inputs *in, int64_t row, int64_t column, double q, double p) {
    in->input[row * c->classes + column] = value_of(c, true, q);
    in->target[row * c->classes + column] = value_of(c, false, p);
}

static void fill(const kl_case *c, double *values, int64_t row, double value) {
    int64_t column;
    for (column = 0; column < c->classes; column++)
        values[row * c->classes + column] = value;
}

/* Zeros of both sides, of one, and of none, in rows that have one sort of zero only and in rows with all. The first
 * class has a probability above 0 on both sides, so that no softmax is empty. */
static void prepare_zeros(kl_case *c, kl_inputs *in) {
    static const double q[] = {0.25, 0.0, 0.5, 0.0, 0.125}, p[] = {0.25, 0.0, 0.0, 0.5, 0.5};
    int64_t row, column;
    for (row = 0; row < c->rows; row++)
        for (column = 0; column < c->classes; column++) {
            int64_t sort = column == 0 ? 0 : row % 4 == 3 ? column % 5 : column % 2 ? row % 4 + 1 : 4;
            put(c, in, row, column, q[sort], p[sort]);
        }
}

static void zeros_of_either_side(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_zeros, "zeros");
}

/* PyTorch's zeros, which are for forward KL. */
static void prepare_pytorch_zeros(kl_case *c, kl_inputs *in) {
    prepare_zeros(c, in);
    c->divergence = GPULOSS_FORWARD_KL;
    c->beta = 0;
    c->pytorch_zeros = true;
}

static void pytorch_zeros_with_options(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_pytorch_zeros, "PyTorch's zeros");
}

/* Whole vectors, warps and slices of a row of probability 0, on one side or both. */
static void prepare_masked_slices(kl_case *c, kl_inputs *in) {
    int64_t row, column, n = c->classes;
    for (row = 0; row < c->rows; row++)
        for (column = 0; column < n - 1; column++) {
            bool no_q = row % 3 == 0 ? column < n / 2 : row % 3 == 1 && column > n / 4;
            bool no_p = row % 3 == 0 ? column < n / 2 : row % 3 == 2 && column > n / 3;
            double q = no_q ? 0 : 0.5 / (double)n, p = no_p ? 0 : (double)(1 + column % 3) / (double)n;
            put(c, in, row, column, q, p);
        }
}

static void masked_slices_of_divergences(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_masked_slices, "slices of probability 0");
}

/* Rows that have no softmax: NaN, +inf, all -inf; and NaN as a probability or a logarithm. Their neighbours are not
 * affected. */
static void prepare_not_numbers(kl_case *c, kl_inputs *in) {
    int64_t n = c->classes;
    in->input[1 * n + n / 2] = (double)NAN;
    in->target[3 * n + n - 1] = (double)NAN;
    if (c->input_kind == GPULOSS_LOGITS) {
        in->input[4 * n] = inf;
        fill(c, in->input, 5, -inf);
    }
    if (c->target_kind == GPULOSS_LOGITS) {
        in->target[2 * n + n / 3] = inf;
        fill(c, in->target, 5, -inf);
    }
}

static void rows_of_nan(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_not_numbers, "NaN, +inf, -inf");
}

/* The gradients of a NaN on one side of logits, where no element of the loss is an output. */
static void nan_of_one_side(void **state) {
    static const divergence_shape shapes[] = {{2, 33}, {2, 208}, {2, 521}, {2, 9000}};
    enum { OF_LOGITS = KL_KIND_PAIRS - 1 };
    unsigned d, k, choice, side;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (choice = 0; choice < CHOICES; choice++)
                for (side = 0; side < 2; side++) {
                    kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shapes[k], OF_LOGITS, choice);
                    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, k);
                    assert_true(c.input_kind == GPULOSS_LOGITS && c.target_kind == GPULOSS_LOGITS);
                    c.outputs = KL_OUT_LOSS | KL_OUT_GRAD | (choice % 2 == 0 ? (unsigned)KL_OUT_GRAD_TARGET : 0u);
                    (side == 0 ? in.input : in.target)[5] = (double)NAN;
                    kl_test(&c, "NaN of one side");
                    kl_inputs_free(&in);
                }
    test_done();
}

/* A negative probability is invalid, and its gradient has no meaning. */
static void prepare_negative(kl_case *c, kl_inputs *in) {
    int64_t n = c->classes;
    c->outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS | KL_OUT_LOSS_ELEMENTS;
    if (c->input_kind == GPULOSS_PROBABILITIES)
        in->input[1 * n + n / 2] = -0.25;
    if (c->target_kind == GPULOSS_PROBABILITIES) {
        in->target[2 * n + n - 1] = -0.5;
        in->target[4 * n] = -inf;
    }
}

static void negative_probabilities(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_negative, "negative probabilities");
}

static void leave_out(kl_case *c, kl_inputs *in, int64_t row) {
    in->labels[row] = c->ignore_index;
    fill(c, in->input, row, row % 2 ? (double)NAN : inf);
    fill(c, in->target, row, row % 3 ? (double)NAN : -inf);
}

static void add_labels(kl_case *c, kl_inputs *in, unsigned number) {
    static const gpuloss_index_type types[] = {GPULOSS_I64, GPULOSS_U8, GPULOSS_I32, GPULOSS_I16};
    static const int64_t ignored[][4] = {{-100, 0, -100, -100}, {INT64_MIN, 255, INT32_MIN, INT16_MIN}};
    int64_t row;
    c->label_type = types[number % 4];
    c->ignore_index = ignored[number / 4 % 2][number % 4];
    if (!in->labels)
        c->labels = in->labels = (int64_t *)require_memory((size_t)c->rows * sizeof *in->labels);
    for (row = 0; row < c->rows; row++)
        in->labels[row] = 1 + row;
}

/* Rows that are left out give 0 whatever their inputs are, and are not counted. */
static void prepare_left_out(kl_case *c, kl_inputs *in) {
    static unsigned number;
    int64_t row;
    add_labels(c, in, number++);
    for (row = 0; row < c->rows; row += 2)
        leave_out(c, in, row);
    if (c->rows > 3)
        leave_out(c, in, 3);
}

static void rows_left_out(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_left_out, "rows left out");
}

static void prepare_all_left_out(kl_case *c, kl_inputs *in) {
    static unsigned number;
    int64_t row;
    add_labels(c, in, number++);
    for (row = 0; row < c->rows; row++)
        leave_out(c, in, row);
    c->divisor = number % 3 == 0 && (c->reduction == GPULOSS_MEAN || c->reduction == GPULOSS_BATCHMEAN) ? 2 : 0;
}

static void all_rows_left_out(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_all_left_out, "all rows left out");
}

static void prepare_no_rows(kl_case *c, kl_inputs *in) {
    (void)in;
    c->rows = 0;
}

static void divergences_of_no_rows(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_no_rows, "no rows");
}

/* A large eps, and one much smaller than the probabilities. */
static void prepare_eps(kl_case *c, kl_inputs *in) {
    bool is_kl = c->divergence == GPULOSS_FORWARD_KL || c->divergence == GPULOSS_REVERSE_KL;
    prepare_zeros(c, in);
    if (is_kl && (c->input_kind == GPULOSS_PROBABILITIES || c->target_kind == GPULOSS_PROBABILITIES))
        c->eps = c->in_place ? 1 : 1e-12;
}

static void eps_and_zeros(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_eps, "eps and zeros");
}

/* Where both sides agree total variation has the derivative 0, and every divergence is 0. */
static void prepare_ties(kl_case *c, kl_inputs *in) {
    static const double values[] = {0.5, 0.0, 0.25, 1.0};
    int64_t row, column;
    for (row = 0; row < c->rows; row++)
        for (column = 0; column < c->classes; column++) {
            double p = values[column == 0 ? 0 : (row + column) % 4];
            put(c, in, row, column, column % 5 == 4 ? p / 2 : p, p);
        }
}

static void ties_of_both_sides(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_corner(prepare_ties, "ties");
}

/* Logarithms of probabilities of very different sizes, also below the smallest normal number and below the smallest
 * subnormal one. */
static void distant_logarithms(void **state) {
    static const double floats[] = {-0.0078125, -3, -60, -86, -90, -95, -103, -150, -3000};
    static const double doubles[] = {-0.0078125, -3, -500, -706, -712, -720, -744, -800, -30000};
    enum { VALUES = sizeof floats / sizeof floats[0] };
    static const divergence_shape shape = {VALUES, VALUES};
    unsigned d, choice, side;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (choice = 0; choice < CHOICES; choice++)
            for (side = 0; side < 4; side++) {
                const double *values = all_dtypes[d] == GPULOSS_F64 ? doubles : floats;
                kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, 4 + side / 2 * 4, choice);
                kl_inputs in = kl_inputs_unset(&c);
                int64_t i;
                for (i = 0; i < VALUES * VALUES; i++) {
                    in.input[i] = dtype_round(c.dtype, values[i / VALUES]);
                    in.target[i] = dtype_round(c.dtype, values[i % VALUES]);
                }
                if (side % 2) {
                    double *input = in.input;
                    c.input = in.input = in.target;
                    c.target = in.target = input;
                }
                kl_test(&c, "distant logarithms");
                kl_inputs_free(&in);
            }
    test_done();
}

/* Probabilities below the smallest normal number, which have logarithms, too, against each other and larger ones. */
static void subnormal_probabilities(void **state) {
    static const int floats[] = {0, -3, -100, -125, -126, -127, -133, -140, -149};
    static const int doubles[] = {0, -3, -900, -1021, -1022, -1023, -1040, -1060, -1074};
    enum { VALUES = sizeof floats / sizeof floats[0] };
    static const divergence_shape shapes[] = {{VALUES, VALUES}, {VALUES, 45 * VALUES}};
    unsigned d, choice, pair, k;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < 2; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (choice = 0; choice < CHOICES; choice++)
                for (pair = 0; pair < KL_KIND_PAIRS; pair++) {
                    const int *exponents = all_dtypes[d] == GPULOSS_F64 ? doubles : floats;
                    kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shapes[k], pair, choice);
                    kl_inputs in;
                    int64_t i;
                    if (harness_small && k == 1 && choice != CHOICE_JS_HALF && choice != CHOICE_JS)
                        continue;
                    in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, choice);
                    c.reduction = GPULOSS_SUM;
                    for (i = 0; i < c.rows * c.classes; i++) {
                        if (c.input_kind == GPULOSS_PROBABILITIES)
                            in.input[i] = dtype_round(c.dtype, ldexp(1.3, exponents[i / c.classes]));
                        if (c.target_kind == GPULOSS_PROBABILITIES)
                            in.target[i] = dtype_round(c.dtype, ldexp(1.6, exponents[i % VALUES]));
                    }
                    kl_test(&c, "subnormal probabilities");
                    kl_inputs_free(&in);
                }
    test_done();
}

/* A class of probability 0 on one side, in a row of which the other side has no softmax. Whatever the loss is, the class
 * adds nothing of its own to the gradient. */
static void prepare_masked_beside_nan(const kl_case *c, kl_inputs *in) {
    int64_t n = c->classes, row;
    for (row = 0; row < c->rows; row++) {
        const bool is_input = row % 2 == 0 && row < 6;
        put(c, in, row, n / 2, is_input ? 0.5 : 0, is_input ? 0 : 0.5);
    }
    if (c->input_kind == GPULOSS_LOGITS) {
        in->input[0 * n + n - 1] = inf;
        in->input[2 * n + n - 1] = (double)NAN;
        fill(c, in->input, 4, -inf);
    }
    if (c->target_kind == GPULOSS_LOGITS) {
        in->target[1 * n + n - 1] = inf;
        in->target[3 * n + n - 1] = (double)NAN;
        fill(c, in->target, 5, -inf);
    }
}

static void masked_classes_beside_nan(void **state) {
    static const divergence_shape shapes[] = {{7, 6}, {7, 35}, {7, 400}, {7, 9000}};
    unsigned d, k, pair, choice, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (d = 0; d < DTYPE_COUNT; d++)
            for (pair = 0; pair < KL_KIND_PAIRS; pair++)
                for (choice = 0; choice < CHOICES; choice++, number++) {
                    kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shapes[k], pair, choice);
                    kl_inputs in;
                    if (c.input_kind != GPULOSS_LOGITS && c.target_kind != GPULOSS_LOGITS)
                        continue;
                    if (harness_small && (k == 3 ? pair != KL_KIND_PAIRS - 1 || d != 0 : (number + k) % 2))
                        continue;
                    in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, number);
                    if (number % 3 == 0) /* clusters have no other outputs */
                        c.outputs = KL_OUT_LOSS | KL_OUT_GRAD;
                    c.in_place = number % 4 == 1;
                    prepare_masked_beside_nan(&c, &in);
                    kl_test(&c, "masked classes beside NaN");
                    kl_inputs_free(&in);
                }
    test_done();
}

/* A class of probability close to 1 on one side and close to 0 on the other. Their ratio overflows the type, though its
 * logarithm does not. */
static void distant_logits(void **state) {
    enum { N = 200 };
    static const divergence_shape shape = {2, N};
    unsigned d, choice;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (choice = 0; choice < CHOICES; choice++) {
            kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1, choice);
            kl_inputs in = kl_inputs_unset(&c);
            int64_t i;
            for (i = 0; i < 2 * N; i++) {
                in.input[i] = i < N ? (i == 7 ? 0 : -50) : (i == N + 9 ? -86.5 : 0);
                in.target[i] = i < N ? (i == 7 ? -86.5 : 0) : (i == N + 9 ? 0 : -50);
            }
            kl_test(&c, "distant logits");
            kl_inputs_free(&in);
        }
    test_done();
}

/* A gradient in double lies just above the middle of two 16-bit numbers. Rounded to float first, it would be the middle
 * itself, and round to the lower number. Total variation has the derivative 1/2 for the target. */
static void gradients_rounded_once(void **state) {
    static const gpuloss_dtype types[] = {GPULOSS_F16, GPULOSS_BF16};
    static const divergence_shape shape = {2, 35};
    unsigned t;
    int offset;
    (void)state;
    REQUIRE_GPU();
    for (t = 0; t < 2; t++)
        for (offset = 0; offset < 8; offset++) {
            kl_case c = divergence_case(GPULOSS_F64, types[t], shape, 0, CHOICE_TV);
            kl_inputs in = kl_inputs_unset(&c);
            int64_t i;
            for (i = 0; i < shape.rows * shape.classes; i++) {
                in.input[i] = 0.25;
                in.target[i] = i % 2 ? 0.5 : 0.125;
            }
            c.reduction = GPULOSS_SUM;
            c.use_grad_scale = true;
            c.grad_scale = 2 * (1 + ldexp(1, -dtype_precision(types[t])) + 0x1p-40);
            c.target_offset = c.grad_target_offset = offset;
            c.target_in_place = offset % 2;
            kl_test(&c, "rounded once");
            kl_inputs_free(&in);
        }
    test_done();
}

/* Logits at the ends of the type. The distance of the two sides is at most its largest number. A row of one value is a
 * uniform distribution, whatever the value is. In a row of two values the logarithms must be numbers of the type. */
static void huge_logits(void **state) {
    static const divergence_shape shape = {6, 12};
    static const double temperatures[] = {0, 20, 4};
    unsigned d, choice, pair, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (choice = 0; choice < CHOICES; choice++)
            for (pair = 0; pair < KL_KIND_PAIRS; pair++)
                for (k = 0; k < 3; k++) {
                    kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, pair, choice);
                    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, 4);
                    double huge = dtype_max(c.dtype) / (k == 2 ? 4 : 1);
                    int64_t i;
                    if (c.input_kind == GPULOSS_LOGITS || c.target_kind == GPULOSS_LOGITS)
                        c.temperature = temperatures[k];
                    for (i = 0; i < c.classes; i++) {
                        double *x = c.input_kind == GPULOSS_LOGITS ? in.input + i : NULL;
                        double *t = c.target_kind == GPULOSS_LOGITS ? in.target + i : NULL;
                        if (x)
                            x[0] = huge, x[12] = -huge / 2, x[24] = huge / 2, x[36] = i % 2 ? huge / 4 : -huge / 4;
                        if (t)
                            t[0] = huge, t[12] = huge / 2, t[24] = -huge / 2, t[36] = i % 3 ? huge / 4 : -huge / 4;
                    }
                    kl_test(&c, "huge logits");
                    kl_inputs_free(&in);
                }
    test_done();
}

int run_kl_div_option_corner_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zeros_of_either_side),
        cmocka_unit_test(pytorch_zeros_with_options),
        cmocka_unit_test(masked_slices_of_divergences),
        cmocka_unit_test(rows_of_nan),
        cmocka_unit_test(nan_of_one_side),
        cmocka_unit_test(negative_probabilities),
        cmocka_unit_test(rows_left_out),
        cmocka_unit_test(all_rows_left_out),
        cmocka_unit_test(divergences_of_no_rows),
        cmocka_unit_test(eps_and_zeros),
        cmocka_unit_test(ties_of_both_sides),
        cmocka_unit_test(distant_logarithms),
        cmocka_unit_test(subnormal_probabilities),
        cmocka_unit_test(masked_classes_beside_nan),
        cmocka_unit_test(distant_logits),
        cmocka_unit_test(gradients_rounded_once),
        cmocka_unit_test(huge_logits),
    };
    return cmocka_run_group_tests_name("kl_div option corners", tests, NULL, NULL);
}
