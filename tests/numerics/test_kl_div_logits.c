/* Forward KL of two arrays of logits of one type. It has a kernel of its own for calls without terms of elements and
 * without a gradient of the target. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "run_common.h"
#include "suites.h"

enum { OUT_ALL = KL_OUT_LOSS | KL_OUT_LOSS_ROWS | KL_OUT_GRAD };

static const double inf = (double)INFINITY;
static const unsigned output_sets[] = {KL_OUT_LOSS,
                                       KL_OUT_GRAD,
                                       KL_OUT_LOSS | KL_OUT_GRAD,
                                       KL_OUT_LOSS_ROWS,
                                       KL_OUT_LOSS_ROWS | KL_OUT_GRAD,
                                       KL_OUT_LOSS | KL_OUT_LOSS_ROWS,
                                       OUT_ALL};
enum { OUTPUT_SETS = sizeof output_sets / sizeof output_sets[0] };

/* Jensen-Shannon with a beta of 0 is forward KL, too. */
static kl_case logits_case(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned number) {
    divergence_shape shape = {rows, classes};
    kl_case c = divergence_case(dtype, GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1,
                                number % 6 == 5 ? CHOICE_JS_0 : CHOICE_FORWARD);
    c.outputs = OUT_ALL;
    return c;
}

/* A call that must give something: a loss is not one where nothing is reduced. */
static void test_call(const kl_case *c, const char *what) {
    if (kl_outputs(c))
        kl_test(c, what);
}

static void check_length(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned number) {
    kl_case c = logits_case(dtype, rows, classes, number);
    kl_inputs in =
        divergence_inputs(&c, (distribution_kind)(number % DISTRIBUTIONS_KINDS), number * 11 % KL_WITH_SETS, number);
    divergence_vary(&c, number);
    c.outputs = output_sets[number % OUTPUT_SETS];
    test_call(&c, "length of rows");
    kl_inputs_free(&in);
}

/* Around a vector, a warp, the vectors that a thread takes, a block, and on. */
static void lengths_of_two_logits(void **state) {
    static const int64_t lengths[] = {1, 2, 7, 8, 9, 31, 33, 64, 100, 257, 1000, 1025, 4097, 9001};
    unsigned d, k, number = 0;
    int64_t rows;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++)
            for (rows = 1; rows <= 5; rows++, number++)
                if (!harness_small || (lengths[k] < 1000 ? number % 2 == 0 : rows == 1 + (d + k) % 3))
                    check_length(all_dtypes[d], rows, lengths[k], number);
    test_done();
}

/* Groups of every size with more rows than a block has of them. */
static void groups_of_two_logits(void **state) {
    static const int64_t vectors[] = {3, 9, 20, 40, 100, 200, 400, 800};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof vectors / sizeof vectors[0]; k++) {
            int64_t width = (int64_t)(16 / dtype_size(all_dtypes[d]));
            kl_case c = logits_case(all_dtypes[d], vectors[k] < 300 ? 9 : 5, vectors[k] * width, k);
            kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, d + k);
            c.input_stride = k % 2 ? STRIDE_ONE_MORE : STRIDE_PACKED;
            kl_test(&c, "groups");
            kl_inputs_free(&in);
        }
    test_done();
}

/* Rows that are taken several at a time from the queue, because there are many more of them than groups. */
static void many_rows_of_two_logits(void **state) {
    int64_t rows = harness_small ? 28700 : 1700000;
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        kl_case c = logits_case(all_dtypes[d], rows, 2, 0);
        kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, d);
        c.outputs = KL_OUT_LOSS | KL_OUT_GRAD;
        kl_test(&c, "many rows");
        kl_inputs_free(&in);
    }
    test_done();
}

/* Input, target and gradient by every way of not being aligned, with a gradient of its own or over the input. */
static void offsets_of_two_logits(void **state) {
    unsigned d;
    int i, j;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        int width = (int)(16 / dtype_size(all_dtypes[d]));
        for (i = 0; i < width; i++)
            for (j = 0; j < width; j++) {
                kl_case c = logits_case(all_dtypes[d], 3, 4 * width + 5, (unsigned)(i + j));
                kl_inputs in;
                if (harness_small && width > 4 && (i + j) % 2)
                    continue;
                in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, 3);
                c.input_offset = i;
                c.target_offset = j;
                c.grad_offset = (i + 3 * j) % width;
                c.in_place = (i + 2 * j) % 3 == 1;
                c.input_stride = (stride_kind)((i + j) % STRIDE_KINDS);
                c.target_stride = (stride_kind)((i + j / 2) % STRIDE_KINDS);
                c.grad_stride = (stride_kind)((i / 2 + j) % STRIDE_KINDS);
                c.result_offset = (i + j) % 4;
                c.guard = (i + j) % 2 ? 256 : 0;
                kl_test(&c, "offsets");
                kl_inputs_free(&in);
            }
    }
    test_done();
}

/* Every set of outputs with every reduction. */
static void outputs_of_two_logits(void **state) {
    unsigned d, set, reduction, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (set = 0; set < OUTPUT_SETS; set++)
            for (reduction = 0; reduction < REDUCTION_COUNT; reduction++, number++) {
                kl_case c = logits_case(all_dtypes[d], 4, 37, number);
                kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, number % 3 ? 0 : KL_WITH_LABELS, number);
                c.outputs = output_sets[set];
                c.reduction = all_reductions[reduction];
                c.in_place = number % 3 == 1;
                test_call(&c, "outputs");
                kl_inputs_free(&in);
            }
    test_done();
}

/* Every set of options, and the factors of the gradient. */
static void check_options(gpuloss_dtype dtype, unsigned set, unsigned number) {
    enum { ROWS = 5 };
    static const double upstream = -0.75, of_rows[ROWS] = {1.0, 0.0, -2.0, 0.125, 3.0};
    kl_case c = logits_case(dtype, ROWS, 43, number);
    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, set, number);
    c.reduction = c.divisor > 0 ? (number % 2 ? GPULOSS_MEAN : GPULOSS_BATCHMEAN) : all_reductions[number % 4];
    c.divisor_on_device = c.divisor > 0 && number % 3 == 1;
    c.use_grad_scale = number % 5 == 1;
    c.grad_scale = 1.0 / 3.0;
    c.grad_loss = number % 3 || c.reduction == GPULOSS_NONE ? NULL : &upstream;
    c.grad_loss_rows = number % 4 ? NULL : of_rows;
    c.label_offset = (int)number % 2;
    c.input_stride = number % 4 < 2 ? STRIDE_PACKED : STRIDE_ONE_MORE;
    kl_test(&c, "options");
    kl_inputs_free(&in);
}

static void options_of_two_logits(void **state) {
    unsigned d, set, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (set = 0; set < KL_WITH_SETS; set++)
            if (!(set & KL_WITH_EPS))
                check_options(all_dtypes[d], set, number++);
    test_done();
}

static void fill(double *values, int64_t count, double value) {
    int64_t i;
    for (i = 0; i < count; i++)
        values[i] = value;
}

/* Classes masked on one side, the other, both or neither, one by one and by whole vectors and slices. */
static void mask_some(const kl_case *c, const kl_inputs *in) {
    int64_t row, i, n = c->classes;
    for (row = 0; row < c->rows; row++)
        for (i = 1; i < n; i++) {
            bool slice = row % 2 && (i < n / 2) == (row % 4 == 1);
            if (row < 2 ? i % 4 == 1 : slice && row != 3)
                in->input[row * n + i] = -inf;
            if (row < 2 ? i % 4 == row : slice && row < 5)
                in->target[row * n + i] = -inf;
        }
}

/* Rows that have no softmax do not affect their neighbours. */
static void spoil_some(const kl_case *c, const kl_inputs *in) {
    int64_t n = c->classes;
    in->input[n + n / 2] = (double)NAN;
    in->target[2 * n + n - 1] = (double)NAN;
    in->input[4 * n] = inf;
    in->target[5 * n + n / 3] = inf;
    fill(in->input + 6 * n, n, -inf);
    fill(in->target + 7 * n, n, -inf);
}

static void leave_out_some(kl_case *c, const kl_inputs *in) {
    int64_t row, n = c->classes;
    for (row = 0; row < c->rows; row += 2) {
        in->labels[row] = c->ignore_index;
        fill(in->input + row * n, n, row % 4 ? (double)NAN : inf);
        fill(in->target + row * n, n, row % 4 ? -inf : (double)NAN);
    }
}

static void check_corner(gpuloss_dtype dtype, int64_t classes, unsigned corner, unsigned number) {
    static const char *const names[] = {"masked classes", "NaN and infinities", "rows left out"};
    kl_case c = logits_case(dtype, 9, classes, number);
    kl_inputs in =
        divergence_inputs(&c, DISTRIBUTIONS_RANDOM,
                          (corner == 2 ? KL_WITH_LABELS : 0u) | (number % 2 ? KL_WITH_TEMPERATURE : 0u), number);
    if (corner == 0)
        mask_some(&c, &in);
    else if (corner == 1)
        spoil_some(&c, &in);
    else
        leave_out_some(&c, &in);
    c.in_place = number % 3 == 1;
    c.target_offset = (int)number % 2;
    c.outputs = number % 4 == 3 ? KL_OUT_LOSS_ROWS : OUT_ALL;
    kl_test(&c, names[corner]);
    kl_inputs_free(&in);
}

static void corners_of_two_logits(void **state) {
    static const int64_t lengths[] = {6, 33, 1100};
    unsigned d, k, corner, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++)
            for (corner = 0; corner < 3; corner++, number++)
                check_corner(all_dtypes[d], lengths[k], corner, number);
    test_done();
}

/* A side masks the first classes, and is otherwise close to the other one. The other side has little on these classes, which
 * then is all of the divergence. */
static void check_masked_begin(gpuloss_dtype dtype, gpuloss_dtype target_dtype, int64_t classes, int64_t masked,
                               unsigned number) {
    kl_case c = logits_case(dtype, 3, classes, 0);
    kl_inputs in;
    int64_t row, i;
    c.target_dtype = target_dtype;
    in = divergence_inputs(&c, DISTRIBUTIONS_CLOSE, 0, number);
    for (row = 0; row < c.rows; row++)
        for (i = 0; i < masked; i++) {
            double *input = in.input + row * classes + i, *target = in.target + row * classes + i;
            double *little = number % 2 ? target : input, *none = number % 2 ? input : target;
            *little = floor(*little) - 3; /* a number of every type */
            *none = -inf;
        }
    if (number % 2)
        c.divergence = GPULOSS_REVERSE_KL;
    c.input_offset = (int)(number / 2 % 3);
    c.target_offset = c.input_offset;
    c.outputs = number % 5 < 3 ? KL_OUT_LOSS_ROWS : OUT_ALL;
    test_call(&c, "masked first classes of close sides");
    kl_inputs_free(&in);
}

static void masks_of_close_logits(void **state) {
    static const int64_t lengths[] = {17, 40, 300, 1100, 5000}, masked[] = {1, 2, 4, 8, 16};
    unsigned d, t, k, m, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++)
            for (m = 0; m < sizeof masked / sizeof masked[0]; m++)
                check_masked_begin(all_dtypes[d], GPULOSS_DTYPE_UNSET, lengths[k], masked[m], number++);
    for (d = 0; d < DTYPE_COUNT; d++)
        for (t = 0; t < DTYPE_COUNT; t++)
            for (k = 0; k < 4; k++)
                check_masked_begin(all_dtypes[d], all_dtypes[t], k < 2 ? 400 : 1104, 8, number++);
    test_done();
}

/* All rows are left out, or there are none. */
static void no_rows_of_two_logits(void **state) {
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        kl_case c = logits_case(all_dtypes[d], 3, 20, 0);
        kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, KL_WITH_LABELS, d);
        int64_t row;
        for (row = 0; row < c.rows; row++)
            in.labels[row] = c.ignore_index;
        kl_test(&c, "all rows left out");
        c.rows = 0;
        kl_test(&c, "no rows");
        kl_inputs_free(&in);
    }
    test_done();
}

/* Logits of every kind, and the same in reverse order for the target. */
static void kinds_of_two_logits(void **state) {
    static const double temperatures[] = {0, 0.1, 20, 2};
    unsigned d, number = 0;
    int kind;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (kind = 0; kind < LOGITS_KINDS; kind++, number++) {
            kl_case c = logits_case(all_dtypes[d], 3, 140, number);
            kl_inputs in = kl_inputs_unset(&c);
            int64_t i, n = c.rows * c.classes;
            make_logits(in.input, c.rows, c.classes, (logits_kind)kind, c.dtype, number);
            for (i = 0; i < n; i++)
                in.target[i] = in.input[n - 1 - i];
            c.temperature = temperatures[(number + number / 4) % 4];
            c.target_stride = number / 2 % 2 ? STRIDE_ONE_MORE : STRIDE_PACKED;
            kl_test(&c, logits_kind_name((logits_kind)kind));
            kl_inputs_free(&in);
        }
    test_done();
}

static void expect_zeros(report *r, const char *what, const double *values, int64_t count) {
    int64_t i;
    for (i = 0; i < count; i++)
        if (!(values[i] == 0))
            report_failure(r, what, i, 0, "got %g", values[i]);
}

/* The divergence of a row from itself is exactly 0, like its gradient. */
static void check_itself(gpuloss_dtype dtype, int64_t classes, unsigned number) {
    kl_case c = logits_case(dtype, 3, classes, number);
    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, number % 2 ? KL_WITH_TEMPERATURE : 0, number);
    char text[KL_DESCRIPTION];
    kl_result result;
    report r;
    mask_some(&c, &in);
    c.target = c.input;
    c.target_offset = number % 3 == 1;
    kl_describe(&c, "from itself", text, sizeof text);
    r = report_on(text);
    kl_run(&c, &result, &r);
    expect_zeros(&r, "loss", &result.loss, 1);
    expect_zeros(&r, "loss_rows", result.loss_rows, c.rows);
    expect_zeros(&r, "grad_input", result.grad, c.rows * c.classes);
    kl_free(&result);
    kl_inputs_free(&in);
    case_done(&r);
}

static void two_logits_that_agree(void **state) {
    static const int64_t lengths[] = {1, 21, 300, 4099};
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof lengths / sizeof lengths[0]; k++, number++)
            check_itself(all_dtypes[d], lengths[k], number);
    test_done();
}

/* Two sides that differ by `spread`: a divergence of about half its square. No row of it is negative, and the bound
 * leaves it digits. */
static void check_close(gpuloss_dtype dtype, double spread, unsigned number) {
    kl_case c = logits_case(dtype, 3, 700, number);
    kl_inputs in = kl_inputs_unset(&c);
    random_source random = random_from(number);
    char text[KL_DESCRIPTION];
    kl_result result;
    kl_expected e;
    report r;
    int64_t i;
    c.target_stride = number % 2 ? STRIDE_ONE_MORE : STRIDE_PACKED;
    for (i = 0; i < c.rows * c.classes; i++) {
        in.target[i] = dtype_round(dtype, 2 * random_normal(&random));
        in.input[i] = dtype_round(dtype, in.target[i] + spread * random_normal(&random));
    }
    kl_describe(&c, "close sides", text, sizeof text);
    r = report_on(text);
    kl_run(&c, &result, &r);
    kl_check(&c, &result, &r);
    kl_expect(&c, &e);
    for (i = 0; i < c.rows; i++)
        if (!(result.loss_rows[i] >= 0 && e.loss_rows[i] < 0.1L * e.ref.loss_rows[i]))
            report_failure(&r, "loss_rows", i, 0, "%g within %.3Lg of %.3Lg", result.loss_rows[i], e.loss_rows[i],
                           e.ref.loss_rows[i]);
    kl_expected_free(&e);
    kl_free(&result);
    kl_inputs_free(&in);
    case_done(&r);
}

/* Types of 16 bits do not hold differences as small. */
static void two_logits_that_nearly_agree(void **state) {
    static const double spreads[] = {0.5, 0.36, 0.25, 4.5e-2, 1.4e-3, 2e-4};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < (dtype_size(all_dtypes[d]) == 2 ? 4u : 6u); k++)
            check_close(all_dtypes[d], spreads[k], k);
    test_done();
}

/* Every sum of a divergence of two logits, by their distance: rows of a warp, of a block, and of a cluster. */
static void distances_of_two_logits(void **state) {
    static const double spreads[] = {0.05, 0.3, 0.6, 0.8, 1, 1.4, 2};
    static const int64_t classes[] = {1000, 4096, 9000};
    enum { DIVERGENCES = 4 };
    unsigned d, k, i, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (i = 0; i < DIVERGENCES * sizeof spreads / sizeof spreads[0]; i++, number++) {
                random_source random = random_from(number);
                kl_case c;
                kl_inputs in;
                int64_t j;
                if (harness_small && number % 5 != 0)
                    continue;
                c = logits_case(all_dtypes[d], 3, classes[k], number);
                c.divergence = (gpuloss_divergence)((int)GPULOSS_FORWARD_KL + (int)(i % DIVERGENCES));
                c.beta = c.divergence == GPULOSS_JENSEN_SHANNON ? 0.5 : 0;
                in = kl_inputs_unset(&c);
                for (j = 0; j < c.rows * c.classes; j++) {
                    in.target[j] = dtype_round(c.dtype, random_normal(&random));
                    in.input[j] =
                        dtype_round(c.dtype, in.target[j] + spreads[i / DIVERGENCES] * random_normal(&random));
                }
                kl_test(&c, "distance");
                kl_inputs_free(&in);
            }
    test_done();
}

/* Sides that nearly agree but in one class, of which one side has a hundredth and the other nothing. The KL is large, and
 * Jensen-Shannon is not. */
static void two_logits_that_agree_but_in_one_class(void **state) {
    unsigned d, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++, number++) {
        random_source random = random_from(number);
        kl_case c = logits_case(all_dtypes[d], 3, 9000, number);
        kl_inputs in = kl_inputs_unset(&c);
        int64_t i;
        c.divergence = GPULOSS_JENSEN_SHANNON;
        c.beta = 0.5;
        for (i = 0; i < c.rows * c.classes; i++) {
            const int is_alone = i % c.classes == 4321;
            const double target = is_alone ? 5 : random_normal(&random);
            in.target[i] = dtype_round(c.dtype, target);
            in.input[i] = dtype_round(c.dtype, is_alone ? -60 : target + 0.01 * random_normal(&random));
        }
        kl_test(&c, "one class differs");
        kl_inputs_free(&in);
    }
    test_done();
}

/* Rows of a lane, of a few lanes, of a warp, of a block and of a cluster whose sides are close but in a few classes. Those
 * have little weight, and differ by more, or are masked on both sides or on the one that weighs. They may be in the middle. */
static void check_close_row(gpuloss_dtype dtype, int64_t classes, unsigned number) {
    static const double distances[] = {1.1, -1.2, 1.3, -1.5, 4, -4};
    random_source random = random_from(number);
    kl_case c = logits_case(dtype, 3, classes, 0);
    kl_inputs in = kl_inputs_unset(&c);
    double *weighs = number % 2 ? in.input : in.target, *other = number % 2 ? in.target : in.input;
    int64_t i;
    c.divergence = number % 2 ? GPULOSS_REVERSE_KL : GPULOSS_FORWARD_KL;
    c.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS | (number / 2 % 2 ? KL_OUT_GRAD : 0u);
    for (i = 0; i < c.rows * c.classes; i++) {
        const bool is_middle = number / 8 % 2 && i % classes >= classes / 2 && i % classes < classes / 2 + 32,
                   is_distant = i % 29 == 7 || is_middle, is_masked = number / 4 % 2 && i % 31 == 3;
        const double size = is_distant ? -6 : random_normal(&random),
                     distance = is_distant ? distances[(is_middle ? i : i / 29) % 6] : 0.01 * random_normal(&random);
        weighs[i] = is_masked || (number / 4 % 2 && i % 31 == 4) ? -inf : dtype_round(dtype, size);
        other[i] = is_masked ? -inf : dtype_round(dtype, i % 31 == 4 ? -9 : size + distance);
    }
    kl_test(&c, "close row with distant classes");
    kl_inputs_free(&in);
}

static void close_rows_with_distant_classes(void **state) {
    static const int64_t classes[] = {24, 65, 256, 1001, 1022, 2000, 4104, 9000};
    enum { WAYS = 16 };
    unsigned d, k, way, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (way = 0; way < WAYS; way++, number++)
                if (!harness_small || number % 3 == 0)
                    check_close_row(all_dtypes[d], classes[k], way);
    test_done();
}

/* Rows with an offset on one side, whose sides else differ by `spread` times a normal number. The offset changes no
 * probability but by the rounding of the logits themselves, which the reference has too. */
static void check_offset(const kl_case *shape, gpuloss_divergence divergence, double offset, double spread,
                         unsigned number) {
    kl_case c = *shape;
    kl_inputs in = kl_inputs_unset(&c);
    random_source random = random_from(number);
    int64_t i;
    c.divergence = divergence;
    c.beta = divergence == GPULOSS_JENSEN_SHANNON ? (number % 3 ? 0.5 : 0.3) : 0;
    c.temperature = number % 5 == 4 ? 3 : 0;
    for (i = 0; i < c.rows * c.classes; i++) {
        double target = 2 * random_normal(&random), input = target + spread * random_normal(&random);
        in.target[i] = dtype_round(c.dtype, target + (number % 2 ? offset : 0));
        in.input[i] = dtype_round(c.dtype, input + (number % 2 ? 0 : offset));
    }
    test_call(&c, "an offset between two logits");
    kl_inputs_free(&in);
}

/* Rows in the registers of a lane; of a few lanes, by words and by vectors; of a block; and of a cluster. The rows of a
 * cluster are with and without a gradient. Other divergences have a kernel for clusters, and one for all else. */
typedef struct offset_shape {
    int64_t rows, vectors, more;
    unsigned outputs;
} offset_shape;
static const offset_shape offset_shapes[] = {{40, 0, 20, KL_OUT_LOSS | KL_OUT_GRAD},
                                             {24, 0, 41, OUT_ALL},
                                             {9, 125, 0, OUT_ALL},
                                             {133, 1024, 0, OUT_ALL},
                                             {2, 2100, 0, OUT_ALL},
                                             {3, 900, 1, KL_OUT_LOSS_ROWS}};
enum { OFFSET_SHAPES = sizeof offset_shapes / sizeof offset_shapes[0] };

static void check_offsets(gpuloss_dtype dtype, const offset_shape *shape, unsigned *number) {
    static const gpuloss_divergence divergences[] = {GPULOSS_FORWARD_KL, GPULOSS_REVERSE_KL, GPULOSS_JENSEN_SHANNON,
                                                     GPULOSS_TOTAL_VARIATION};
    static const double offsets[] = {1e2, 4e3, 1e4, 1e6}, spreads[] = {1.4, 0.4, 4.5e-2, 1.4e-3};
    enum { OFFSETS = sizeof offsets / sizeof offsets[0], SPREADS = sizeof spreads / sizeof spreads[0] };
    const int64_t width = (int64_t)(16 / dtype_size(dtype));
    const int64_t rows = harness_small && shape->vectors > 0 ? (shape->rows + 31) / 32 + 1 : shape->rows;
    unsigned i, j;
    for (i = 0; i < sizeof divergences / sizeof divergences[0]; i++)
        for (j = 0; j < OFFSETS * SPREADS; j++, ++*number) {
            kl_case c = logits_case(dtype, rows, shape->vectors * width + shape->more, 0);
            /* An interpreter runs half of the long rows whose sides are close. */
            if ((harness_small && shape->vectors > 500 && j % SPREADS > 0 && (i + j) % 2 == 0) ||
                offsets[j / SPREADS] > dtype_max(dtype) / 2)
                continue;
            c.outputs = shape->outputs;
            check_offset(&c, divergences[i], offsets[j / SPREADS], spreads[j % SPREADS], *number);
        }
}

static void offsets_of_rows_of_two_logits(void **state) {
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < OFFSET_SHAPES; k++)
            check_offsets(all_dtypes[d], &offset_shapes[k], &number);
    test_done();
}

/* One shape of each type: of short rows, and of rows that fit registers. */
static void offsets_between_two_logits(void **state) {
    unsigned d, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        check_offsets(all_dtypes[d], &offset_shapes[d % 3], &number);
    test_done();
}

/* Logarithms of the softmax of a row, or the softmax itself, rounded to the type. */
static void set_kind(gpuloss_dtype dtype, gpuloss_kind kind, int64_t classes, double *row) {
    double sum = 0;
    int64_t i;
    for (i = 0; i < classes; i++)
        sum += exp(row[i]);
    for (i = 0; i < classes; i++)
        row[i] = dtype_round(dtype, kind == GPULOSS_PROBABILITIES ? exp(row[i]) / sum : row[i] - log(sum));
}

/* Logits with an offset against a side of another kind, in every other row nearly all of them masked by a huge number. */
static void check_offset_of_one_side(gpuloss_dtype dtype, const offset_shape *shape, unsigned number) {
    static const double offsets[] = {0, 1e2, 1e4, 1e6};
    const int64_t width = (int64_t)(16 / dtype_size(dtype));
    kl_case c = logits_case(dtype, harness_small ? 2 : shape->rows, shape->vectors * width + shape->more, 0);
    const gpuloss_kind kind = number / 2 % 2 ? GPULOSS_PROBABILITIES : GPULOSS_LOG_PROBABILITIES;
    const double offset = offsets[number / 8 % 4];
    random_source random = random_from(number);
    kl_inputs in;
    int64_t i;
    c.divergence = number % 2 ? GPULOSS_REVERSE_KL : GPULOSS_FORWARD_KL;
    *(number / 4 % 2 ? &c.input_kind : &c.target_kind) = kind;
    c.temperature = number % 5 == 4 ? 3 : 0;
    c.outputs = shape->outputs;
    if (offset > dtype_max(dtype) / 2)
        return;
    in = kl_inputs_unset(&c);
    for (i = 0; i < c.rows * c.classes; i++) {
        const double t = 2 * random_normal(&random), x = t + 0.3 * random_normal(&random);
        const double mask = i / c.classes % 2 == 1 && i % 37 != 0 ? -fmin(1e9, dtype_max(dtype) / 4) : 0;
        in.target[i] = c.target_kind == GPULOSS_LOGITS ? dtype_round(dtype, t + offset + mask) : t;
        in.input[i] = c.input_kind == GPULOSS_LOGITS ? dtype_round(dtype, x + offset + mask) : x;
    }
    for (i = 0; i < c.rows; i++)
        set_kind(dtype, kind, c.classes, (c.target_kind == GPULOSS_LOGITS ? in.input : in.target) + i * c.classes);
    test_call(&c, "an offset of one side of logits");
    kl_inputs_free(&in);
}
static void offsets_of_one_side_of_logits(void **state) {
    static const offset_shape shapes[] = {{24, 0, 41, OUT_ALL}, {9, 125, 0, OUT_ALL}, {3, 300, 1, OUT_ALL}};
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (number = 0; number < 32 * 3; number++)
            check_offset_of_one_side(all_dtypes[d], &shapes[number / 32], number);
    test_done();
}

/* Classes in the middle of every other row that are far from the others: both logits, or the logarithms of one side. Relative
 * to these, exponentials leave the range of floats. */
static void check_middle(gpuloss_dtype dtype, const offset_shape *shape, unsigned number) {
    const int64_t width = (int64_t)(16 / dtype_size(dtype));
    kl_case c = logits_case(dtype, harness_small ? 2 : shape->rows, shape->vectors * width + shape->more, 0);
    const bool has_two = number % 2 == 0;
    const double middle = number / 2 % 2 ? 100 : -200;
    random_source random = random_from(number);
    kl_inputs in;
    int64_t i;
    c.divergence = number / 4 % 2 ? GPULOSS_REVERSE_KL : GPULOSS_FORWARD_KL;
    if (!has_two)
        *(number / 8 % 2 ? &c.input_kind : &c.target_kind) = GPULOSS_LOG_PROBABILITIES;
    c.outputs = shape->outputs;
    in = kl_inputs_unset(&c);
    for (i = 0; i < c.rows * c.classes; i++) {
        const int64_t from_middle = i % c.classes - c.classes / 2;
        const double far = i / c.classes % 2 == 1 && from_middle >= 0 && from_middle < 32 ? middle : 0;
        const double t = 2 * random_normal(&random), x = t + 0.3 * random_normal(&random);
        in.target[i] = dtype_round(dtype, t + (has_two || c.target_kind != GPULOSS_LOGITS ? far : 0));
        in.input[i] = dtype_round(dtype, x + (has_two || c.input_kind != GPULOSS_LOGITS ? far : 0));
    }
    for (i = 0; i < c.rows && !has_two; i++)
        set_kind(dtype, GPULOSS_LOG_PROBABILITIES, c.classes,
                 (c.target_kind == GPULOSS_LOGITS ? in.input : in.target) + i * c.classes);
    test_call(&c, "a middle that is far from the others");
    kl_inputs_free(&in);
}
static void middles_far_from_others(void **state) {
    static const offset_shape shapes[] = {{24, 0, 41, OUT_ALL}, {9, 125, 0, OUT_ALL}, {3, 300, 1, OUT_ALL}};
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (number = 0; number < 16 * 3; number++)
            check_middle(all_dtypes[d], &shapes[number / 16], number);
    test_done();
}

/* Runs a call whose classes of probability 0 are masked by numbers, and checks it as one where the mask is -inf. */
static void check_masked(kl_case *c, const kl_inputs *in, const bool *is_masked, const char *what) {
    char text[KL_DESCRIPTION];
    kl_result result;
    report r;
    int64_t i;
    kl_describe(c, what, text, sizeof text);
    r = report_on(text);
    kl_run(c, &result, &r);
    for (i = 0; i < c->rows * c->classes; i++)
        if (is_masked[i]) {
            in->target[i] = c->target_kind == GPULOSS_PROBABILITIES ? 0 : -inf;
            in->input[i] = c->input_kind == GPULOSS_PROBABILITIES ? in->input[i] : -inf;
        }
    kl_check(c, &result, &r);
    kl_free(&result);
    case_done(&r);
}

typedef struct masked_middle {
    gpuloss_divergence divergence;
    gpuloss_kind target_kind;
    double offset, mask; /* of logits of the target; infinity is as large as the type allows */
} masked_middle;

/* Classes in the middle of a row give the distance of the sides. They are masked here: logits on both sides by the same
 * number, or the logarithms of the target alone. */
static void check_masked_middle(gpuloss_dtype dtype, int64_t rows, int64_t classes, const masked_middle *m,
                                unsigned number) {
    kl_case c = logits_case(dtype, rows, classes, 0);
    const bool of_logits = m->target_kind == GPULOSS_LOGITS;
    const double mask = isinf(m->mask) ? m->mask : fmax(m->mask, -dtype_max(dtype) / 2);
    random_source random = random_from(number);
    bool *is_masked = calloc((size_t)(rows * classes), sizeof *is_masked);
    kl_inputs in;
    int64_t i;
    assert_non_null(is_masked);
    c.divergence = m->divergence;
    c.target_kind = m->target_kind;
    c.beta = m->divergence == GPULOSS_JENSEN_SHANNON ? 0.5 : 0;
    in = kl_inputs_unset(&c);
    for (i = 0; i < rows * classes; i++) {
        const double t = random_normal(&random), x = t + random_normal(&random);
        const bool is_middle = i % classes >= classes * 2 / 5 && i % classes < classes * 2 / 3;
        is_masked[i] = is_middle;
        in.target[i] = dtype_round(dtype, of_logits ? (is_middle ? mask : t + m->offset) : t);
        in.input[i] = dtype_round(dtype, of_logits && is_middle ? mask : x);
    }
    for (i = 0; i < rows && !of_logits; i++) {
        int64_t k;
        set_kind(dtype, m->target_kind, classes, in.target + i * classes);
        for (k = 0; k < classes; k++)
            in.target[i * classes + k] = is_masked[k] ? dtype_round(dtype, mask) : in.target[i * classes + k];
    }
    for (i = 0; i < rows * classes && !of_logits; i++)
        is_masked[i] = false; /* the input's logits are not masked, and exp(mask) is 0 */
    check_masked(&c, &in, is_masked, "a masked middle");
    kl_inputs_free(&in);
    free(is_masked);
}
static void masked_middles(void **state) {
    static const masked_middle cases[] = {
        {GPULOSS_REVERSE_KL, GPULOSS_LOGITS, 100, -INFINITY},
        {GPULOSS_REVERSE_KL, GPULOSS_LOGITS, 1e4, -INFINITY},
        {GPULOSS_REVERSE_KL, GPULOSS_LOGITS, 100, -1e9},
        {GPULOSS_FORWARD_KL, GPULOSS_LOGITS, 100, -1e9},
        {GPULOSS_FORWARD_KL, GPULOSS_LOGITS, 20, -1e4},
        {GPULOSS_JENSEN_SHANNON, GPULOSS_LOGITS, 1e4, -INFINITY},
        {GPULOSS_FORWARD_KL, GPULOSS_LOG_PROBABILITIES, 0, -1e4},
        {GPULOSS_FORWARD_KL, GPULOSS_LOG_PROBABILITIES, 0, -1e9},
    };
    static const int64_t vectors[] = {40, 250, 2100};
    unsigned d, k, m;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof vectors / sizeof vectors[0]; k++)
            for (m = 0; m < sizeof cases / sizeof cases[0]; m++) {
                const int64_t width = (int64_t)(16 / dtype_size(all_dtypes[d]));
                if (cases[m].offset < dtype_max(all_dtypes[d]) / 2)
                    check_masked_middle(all_dtypes[d], 3, vectors[k] * width + (m % 2), &cases[m], m);
            }
    test_done();
}

/* Reverse KL of logits against probabilities of 0, where exp(z - max) is 0, too. The maximum grows along the row, so
 * that threads meet these classes with a smaller maximum. */
static void probabilities_that_become_0(void **state) {
    enum { CLASSES = 1000, ZEROS = 300 };
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        const double least = all_dtypes[d] == GPULOSS_F64 ? -800 : -100;
        kl_case c = logits_case(all_dtypes[d], 2, CLASSES, 0);
        bool is_masked[2 * CLASSES];
        kl_inputs in;
        int64_t i;
        c.divergence = GPULOSS_REVERSE_KL;
        c.target_kind = GPULOSS_PROBABILITIES;
        in = kl_inputs_unset(&c);
        for (i = 0; i < 2 * CLASSES; i++) {
            const int64_t k = i < CLASSES ? i : 2 * CLASSES - 1 - i;
            const double z = k < ZEROS ? least * (2 - 0.85 * (double)k / ZEROS)
                                       : least * 0.8 * (double)(CLASSES - k) / (CLASSES - ZEROS);
            is_masked[i] = k < ZEROS;
            in.input[i] = dtype_round(c.dtype, z);
            in.target[i] = is_masked[i] ? -inf : 4 * in.input[i] / -least;
        }
        set_kind(c.dtype, c.target_kind, CLASSES, in.target);
        set_kind(c.dtype, c.target_kind, CLASSES, in.target + CLASSES);
        check_masked(&c, &in, is_masked, "probabilities that become 0");
        kl_inputs_free(&in);
    }
    test_done();
}

/* A class of probability close to 1 on one side and close to 0 on the other; and logits at the ends of the type. */
static void two_distant_logits(void **state) {
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < 2; k++) {
            kl_case c = logits_case(all_dtypes[d], 2, 200, 0);
            kl_inputs in = kl_inputs_unset(&c);
            double huge = dtype_max(c.dtype) / 2;
            int64_t i;
            for (i = 0; i < 2 * c.classes; i++) {
                in.input[i] = i < c.classes ? (i == 7 ? 0 : -50) : (i == c.classes + 9 ? -86.5 : 0);
                in.target[i] = i < c.classes ? (i == 7 ? -86.5 : 0) : (i == c.classes + 9 ? 0 : -50);
                if (k == 1)
                    in.input[i] = i < c.classes ? huge : -huge / 2, in.target[i] = i < c.classes ? huge : huge / 2;
            }
            c.temperature = k ? 4 : 0;
            kl_test(&c, "distant sides");
            c.target_stride = STRIDE_ONE_MORE;
            kl_test(&c, "distant sides, not packed");
            kl_inputs_free(&in);
        }
    test_done();
}

/* The side that does not weigh masks classes. One of them has a probability on the other side, and one has a probability
 * that is 0 as a float. The loss is infinite, of which only forward KL has a gradient. */
static void masked_classes_without_a_float(void **state) {
    static const int64_t classes[] = {4, 20, 33, 208, 521, 4400, 8800};
    unsigned d, k, way;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (way = 0; way < 3; way++) {
                kl_case c = logits_case(all_dtypes[d], 2, classes[k], 0);
                kl_inputs in = kl_inputs_unset(&c);
                double *weighs = way % 2 == 0 ? in.target : in.input, *masks = way % 2 == 0 ? in.input : in.target;
                int64_t i;
                for (i = 0; i < 2 * c.classes; i++) {
                    weighs[i] = i == 2 ? -200 : 0;
                    masks[i] = i == 1 || i == 2 ? -inf : 0;
                }
                c.divergence = way % 2 == 0 ? GPULOSS_FORWARD_KL : GPULOSS_REVERSE_KL;
                c.outputs = way < 2 ? KL_OUT_LOSS | KL_OUT_LOSS_ROWS : KL_OUT_LOSS | KL_OUT_GRAD;
                kl_test(&c, "masked classes");
                kl_inputs_free(&in);
            }
    test_done();
}

int run_kl_div_logits_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_of_two_logits),
        cmocka_unit_test(groups_of_two_logits),
        cmocka_unit_test(many_rows_of_two_logits),
        cmocka_unit_test(offsets_of_two_logits),
        cmocka_unit_test(outputs_of_two_logits),
        cmocka_unit_test(options_of_two_logits),
        cmocka_unit_test(corners_of_two_logits),
        cmocka_unit_test(no_rows_of_two_logits),
        cmocka_unit_test(kinds_of_two_logits),
        cmocka_unit_test(two_logits_that_agree),
        cmocka_unit_test(two_logits_that_nearly_agree),
        cmocka_unit_test(distances_of_two_logits),
        cmocka_unit_test(two_distant_logits),
        cmocka_unit_test(masks_of_close_logits),
        cmocka_unit_test(two_logits_that_agree_but_in_one_class),
        cmocka_unit_test(close_rows_with_distant_classes),
        cmocka_unit_test(offsets_between_two_logits),
        cmocka_unit_test(offsets_of_rows_of_two_logits),
        cmocka_unit_test(offsets_of_one_side_of_logits),
        cmocka_unit_test(middles_far_from_others),
        cmocka_unit_test(masked_middles),
        cmocka_unit_test(probabilities_that_become_0),
        cmocka_unit_test(masked_classes_without_a_float),
    };
    return cmocka_run_group_tests_name("kl_div of logits", tests, NULL, NULL);
}
