/* Coverage of the kernels of kl_div and kl_div_sparse beyond the other tests. They are: groups of every size with more
 * rows than a block has groups, every type of index wherever one is read, a divisor in memory, the slow paths of
 * exponentials and logarithms in each position of a vector, and sums over rows of very different sizes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "run_common.h"
#include "sparse_cases.h"
#include "suites.h"

enum { LOGITS_PAIR = KL_KIND_PAIRS - 1 };

/* With what makes the threads of a row meet most often: both sides' logits, and sums that gradients need first. */
static void groups_of_divergences(void **state) {
    static const int64_t vectors[] = {3, 20, 100, 200, 400};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof vectors / sizeof vectors[0]; k++) {
            divergence_shape shape = {vectors[k] > 128 ? 5 : 9, vectors[k] * dtype_width(all_dtypes[d])};
            kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, LOGITS_PAIR, CHOICE_JS_HALF);
            kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, k);
            kl_test(&c, "groups");
            kl_inputs_free(&in);
            c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, 0, CHOICE_TV);
            in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, k);
            c.outputs = KL_OUT_GRAD;
            kl_test(&c, "groups without sums");
            kl_inputs_free(&in);
        }
    test_done();
}

/* To where other warps than that of the teacher's classes write last, and are slow if the last vector is not whole: what
 * the teacher says must not be written before. */
static void move_to_end(const sparse_case *c, const sparse_inputs *in) {
    int64_t i;
    for (i = 0; i < c->rows * c->k; i++)
        in->indices[i] = c->classes - 1 - i % c->k * (c->classes > 200 ? c->classes / 12 : 1);
}

static void groups_of_sparse(void **state) {
    static const int64_t vectors[] = {3, 20, 100, 192, 200, 400};
    unsigned d, k, little;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof vectors / sizeof vectors[0]; k++)
            for (little = 0; little < 2; little++) {
                sparse_shape shape = {vectors[k] > 128 ? 5 : 9, vectors[k] * dtype_width(all_dtypes[d]) - (k < 4), 3};
                sparse_case c = sparse_case_of(all_dtypes[d], shape);
                sparse_inputs in;
                sparse_take(&c, 4 * k + d + 9 * little);
                sparse_fill(&c, LOGITS_NORMAL, 0.7, k, &in);
                c.in_place = d % 2 == little;
                if (little)
                    sparse_raise_first(&c, &in, 60);
                else
                    move_to_end(&c, &in);
                sparse_test(&c, "groups");
                sparse_inputs_free(&in);
            }
    test_done();
}

/* The types of indices and labels, where next to nothing is left over and where it is not; with what lies in memory. */
static void types_of_sparse(void **state) {
    enum { ROWS = 4 };
    static const sparse_shape shape = {ROWS, 40, 3};
    static const double upstream = -0.75, of_rows[ROWS] = {1.0, 0.0, -2.0, 3.0};
    unsigned d, type, values, little;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (type = 0; type < SPARSE_INDEX_TYPES; type++)
            for (values = 0; values < DTYPE_COUNT; values++)
                for (little = 0; little < 2; little++) {
                    sparse_case c = sparse_case_of(all_dtypes[d], shape);
                    sparse_inputs in;
                    sparse_take(&c, 5 * type + 4 * values + d + 9 * little);
                    c.value_dtype = all_dtypes[values];
                    c.index_type = sparse_index_types[type];
                    c.label_type = sparse_index_types[(type + values) % SPARSE_INDEX_TYPES];
                    c.divisor = 2.75;
                    c.divisor_on_device = values % 2;
                    c.grad_loss = &upstream;
                    c.grad_loss_rows = of_rows;
                    sparse_fill(&c, LOGITS_NORMAL, 0.7, values, &in);
                    sparse_mask(&c, &in);
                    if (little)
                        sparse_raise_first(&c, &in, 50);
                    sparse_test(&c, "types");
                    sparse_inputs_free(&in);
                }
    test_done();
}

/* Gradients alone, and with a divisor in memory, from numbers with logarithms and those without. */
static void gradients_of_every_pair(void **state) {
    static const divergence_shape shape = {3, 33};
    unsigned d, pair, variant;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (pair = 0; pair < KL_KIND_PAIRS; pair++)
            for (variant = 0; variant < 3; variant++) {
                kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, pair, CHOICE_FORWARD);
                kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, d + pair);
                c.outputs = variant ? KL_OUT_GRAD : KL_OUT_GRAD | KL_OUT_LOSS;
                c.divisor = 2.75;
                c.divisor_on_device = variant != 2;
                if (variant == 2 && c.input_kind == GPULOSS_PROBABILITIES)
                    in.input[1] = 0;
                kl_test(&c, "gradients");
                kl_inputs_free(&in);
            }
    test_done();
}

/* Doubles whose exponentials are subnormal, next to the maximum, before it and after it. */
static void lower_some(double *x, int64_t rows, int64_t classes, int64_t shift) {
    int64_t row, i;
    for (row = 0; row < rows; row++)
        for (i = 0; i < classes; i++)
            x[row * classes + i] = lies_below((row + shift) % rows, i, classes) ? -720.5 : 0;
}

enum { PATTERNS = 6 };
static const int64_t lengths_of_patterns[] = {16, 64, 600};

static void subnormal_exponentials_of_divergences(void **state) {
    unsigned k, pair, target;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof lengths_of_patterns / sizeof lengths_of_patterns[0]; k++)
        for (pair = KL_KINDS - 1; pair < KL_KIND_PAIRS; pair++)
            for (target = 0; target < 2; target++) {
                divergence_shape shape = {PATTERNS, lengths_of_patterns[k]};
                kl_case c = divergence_case(GPULOSS_F64, GPULOSS_F64, shape, pair, CHOICE_FORWARD);
                kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, k);
                if (c.input_kind != GPULOSS_PROBABILITIES)
                    lower_some(in.input, PATTERNS, c.classes, 0);
                if (c.target_kind != GPULOSS_PROBABILITIES)
                    lower_some(in.target, PATTERNS, c.classes, target ? 2 : 0);
                if (target) /* what the kernel of two logits does not give */
                    c.outputs &= ~(unsigned)(KL_OUT_GRAD_TARGET | KL_OUT_LOSS_ELEMENTS);
                kl_test(&c, "subnormal exponentials");
                kl_inputs_free(&in);
            }
    test_done();
}

/* The same, where the teacher's classes are among the lower ones, and where they are all of the higher ones, so that what
 * is left over is subnormal: with a teacher who leaves over half of everything, all, or all but a subnormal share. */
static void lower_student(sparse_case *c, const sparse_inputs *in) {
    int64_t row, i;
    lower_some(in->logits, c->rows, c->classes, 0);
    for (i = 0; i < c->rows * c->classes; i++)
        in->logits[i] = dtype_round(c->dtype, in->logits[i]);
    for (row = 3; row < 5; row++)
        in->indices[row * c->k + 1] = row == 3 ? c->classes - 1 : 0;
}

static void subnormal_exponentials_of_sparse(void **state) {
    unsigned d, k, teacher;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof lengths_of_patterns / sizeof lengths_of_patterns[0]; k++)
            for (teacher = 0; teacher < 3; teacher++) {
                sparse_shape shape = {PATTERNS, lengths_of_patterns[k], 3};
                sparse_case c = sparse_case_of(all_dtypes[d], shape);
                sparse_inputs in;
                int64_t i;
                c.value_kind = teacher == 2 ? GPULOSS_LOG_PROBABILITIES : GPULOSS_PROBABILITIES;
                sparse_fill(&c, LOGITS_NORMAL, 0.5, k, &in);
                lower_student(&c, &in);
                for (i = 0; i < PATTERNS * 3 && teacher; i++)
                    in.values[i] = teacher == 2 ? dtype_round(c.dtype, -720.5) : 0;
                sparse_test(&c, "subnormal exponentials");
                sparse_inputs_free(&in);
            }
    test_done();
}

/* The same place in the range of either type. */
static double power_of_two(int exponent, bool is_double) {
    return ldexp(1, is_double ? 8 * exponent + (exponent > 1 ? 7 : 0) : exponent);
}

/* Numbers too small or too large for the logarithm of a ratio, with options. */
static void distant_ratios_of_divergences(void **state) {
    static const int distant[][2] = {{-140, 1},  {-140, 100}, {0, -140}, {100, -140}, {0, 127},
                                     {-30, 127}, {127, 127},  {126, 1},  {-149, -149}};
    enum { ROWS = sizeof distant / sizeof distant[0], POSITIONS = 11 };
    static const divergence_shape shape = {ROWS, POSITIONS};
    static const double ones[ROWS] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    unsigned d, t, choice;
    int i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (t = 0; t < DTYPE_COUNT; t++)
            for (choice = CHOICE_FORWARD; choice <= CHOICE_REVERSE; choice++) {
                kl_case c = divergence_case(all_dtypes[d], all_dtypes[t], shape, 0, choice);
                kl_inputs in = kl_inputs_unset(&c);
                bool doubles = c.dtype == GPULOSS_F64 && c.target_dtype == GPULOSS_F64;
                for (i = 0; i < ROWS * POSITIONS; i++) {
                    const int *of = distant[(i + i / POSITIONS) % ROWS];
                    double p = power_of_two(of[0], doubles), q = power_of_two(of[1], doubles);
                    in.target[i] = fmax(dtype_ulp(c.target_dtype, 0), fmin(p, dtype_max(c.target_dtype)));
                    in.input[i] = fmax(dtype_ulp(c.dtype, 0), fmin(q, dtype_max(c.dtype)));
                }
                c.row_weights = ones;
                c.reduction = GPULOSS_NONE;
                c.outputs = KL_OUT_LOSS_ROWS | KL_OUT_LOSS_ELEMENTS;
                kl_test(&c, "distant ratios");
                kl_inputs_free(&in);
            }
    test_done();
}

/* PyTorch's zeros next to inputs whose logarithms are none, or infinite. */
static void infinite_inputs_of_divergences(void **state) {
    static const divergence_shape shape = {2, 5};
    static const double inputs[] = {0, 0.5, (double)INFINITY, (double)NAN, 3};
    unsigned d, kind;
    int i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (kind = 0; kind < KL_KINDS; kind++) {
            kl_case c = divergence_case(all_dtypes[d], GPULOSS_DTYPE_UNSET, shape, kind * KL_KINDS, CHOICE_FORWARD);
            kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, KL_WITH_ROW_WEIGHTS, d);
            for (i = 0; i < 5; i++) {
                in.input[i] = inputs[i];
                in.target[i] = c.target_kind == GPULOSS_PROBABILITIES ? 0 : i ? -(double)INFINITY : 0;
            }
            c.pytorch_zeros = true;
            c.reduction = GPULOSS_NONE;
            c.outputs = KL_OUT_LOSS_ROWS | KL_OUT_LOSS_ELEMENTS;
            kl_test(&c, "infinite inputs");
            kl_inputs_free(&in);
        }
    test_done();
}

/* Half a number that eps all but hides makes terms with digits distant below those of any other, beside large ones. */
static void small_halves_with_eps(void **state) {
    enum { ROWS = 4 };
    static const double targets[ROWS] = {0x1p-23, 65504, 0x1p-22, 0x1p-23}, zeros[ROWS] = {0};
    unsigned pair, rows;
    (void)state;
    REQUIRE_GPU();
    for (pair = 0; pair < 2; pair++)
        for (rows = 1; rows <= ROWS; rows++) {
            kl_case c = kl_case_of_pair(GPULOSS_F16, rows, 1, pair);
            c.input = zeros;
            c.target = targets;
            c.eps = 1;
            c.reduction = GPULOSS_SUM;
            c.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS;
            kl_test(&c, "small halves with eps");
        }
    test_done();
}

enum { SUMS = 6, TERMS = 8 };
static const int exponents_of_sums[SUMS][TERMS] = {
    {1, 0, -1, 20, -20, 3, 2, 1},     {-90, -91, -92, -90, -90, -90, -90, -90},
    {80, 80, -80, 80, 80, 80, 20, 1}, {100, 1, 1, 1, 1, 1, 1, -100},
    {45, 1, 1, 1, 1, 1, 1, 1},        {110, 110, 110, 110, 110, 110, 110, 110}};

/* Row weights from all over the range, of either sign or both. */
static void distant_weights(double *weights, gpuloss_dtype dtype, unsigned sum, unsigned sign) {
    int row;
    for (row = 0; row < TERMS; row++) {
        double size = ldexp(1, exponents_of_sums[sum][row] * (dtype == GPULOSS_F64 ? 9 : 1));
        weights[row] = sign == 0 || (sign == 2 && row % 2) ? size : -size;
    }
}

/* Of the kernels of two logits, by one lane a row, several, a block, or a cluster, and of those with options; and of those
 * of a sparse teacher. The last sign is a NaN. */
static void check_distant(gpuloss_dtype dtype, int64_t classes, unsigned choice, unsigned sum, unsigned sign,
                          unsigned more_outputs) {
    divergence_shape shape = {TERMS, classes};
    double weights[TERMS];
    kl_case c = divergence_case(dtype, GPULOSS_DTYPE_UNSET, shape, LOGITS_PAIR, choice);
    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, sum);
    distant_weights(weights, dtype, sum, sign);
    if (sign == 3)
        in.input[2 * classes] = sum % 2 ? (double)NAN : -(double)INFINITY;
    c.row_weights = weights;
    c.reduction = GPULOSS_SUM;
    c.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS | more_outputs;
    kl_test(&c, "sums of distant losses");
    kl_inputs_free(&in);
}

static void sums_of_distant_divergences(void **state) {
    unsigned d, e, sign;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (e = 0; e < SUMS; e++)
            for (sign = 0; sign < 4; sign++) {
                const int64_t width = (int64_t)(16 / dtype_size(all_dtypes[d]));
                check_distant(all_dtypes[d], 2, CHOICE_FORWARD, e, sign, 0);
                check_distant(all_dtypes[d], 2, CHOICE_FORWARD, e, sign, KL_OUT_LOSS_ELEMENTS);
                check_distant(all_dtypes[d], 300, CHOICE_FORWARD, e, sign, 0);
                check_distant(all_dtypes[d], 513 * width, CHOICE_FORWARD, e, sign, 0);
                check_distant(all_dtypes[d], 129 * width, CHOICE_REVERSE + (e + sign) % 3, e, sign, 0);
                if (e != 2 && e != 3) /* Long rows take time. */
                    continue;
                check_distant(all_dtypes[d], 513 * width, CHOICE_FORWARD, e, sign, KL_OUT_GRAD);
                check_distant(all_dtypes[d], 513 * width, CHOICE_JS_HALF + sign % 2, e, sign, 0);
                if (e == 3)
                    check_distant(all_dtypes[d], 3100 * width, CHOICE_FORWARD, e, sign, KL_OUT_GRAD);
            }
    test_done();
}

static void sums_of_distant_sparse(void **state) {
    static const sparse_shape shapes[] = {{TERMS, 3, 2}, {TERMS, 500, 2}};
    unsigned d, e, sign;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (e = 0; e < 2 * SUMS; e++)
            for (sign = 0; sign < 4; sign++) {
                sparse_case c = sparse_case_of(all_dtypes[d], shapes[e / SUMS]);
                sparse_inputs in;
                sparse_fill(&c, LOGITS_NORMAL, 0.7, d, &in);
                distant_weights(in.row_weights, c.dtype, e % SUMS, sign);
                if (sign == 3)
                    in.logits[4] = e % 2 ? (double)NAN : -(double)INFINITY;
                sparse_weigh(&c, &in);
                c.reduction = GPULOSS_SUM;
                c.outputs = SPARSE_OUT_LOSS | SPARSE_OUT_LOSS_ROWS;
                sparse_test(&c, "sums of distant losses");
                sparse_inputs_free(&in);
            }
    test_done();
}

int run_coverage_divergence_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_divergences),
        cmocka_unit_test(groups_of_sparse),
        cmocka_unit_test(types_of_sparse),
        cmocka_unit_test(gradients_of_every_pair),
        cmocka_unit_test(subnormal_exponentials_of_divergences),
        cmocka_unit_test(subnormal_exponentials_of_sparse),
        cmocka_unit_test(distant_ratios_of_divergences),
        cmocka_unit_test(infinite_inputs_of_divergences),
        cmocka_unit_test(small_halves_with_eps),
        cmocka_unit_test(sums_of_distant_divergences),
        cmocka_unit_test(sums_of_distant_sparse),
    };
    return cmocka_run_group_tests_name("coverage of divergences", tests, NULL, NULL);
}
