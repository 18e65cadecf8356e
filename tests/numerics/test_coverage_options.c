/* Coverage of the kernels of cross-entropy with options, in rows, in columns and in shards, beyond the other tests.
 * They are: every way to read and write each element type, each position of a vector, every type of index wherever one
 * is read, upstream factors, work left out with a given lse, the slow paths of the exponentials, and sums over rows of
 * very different sizes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const double inf = (double)INFINITY;

static void put(const ce_case *c, const option_inputs *in, int64_t row, int64_t column, double value) {
    reference_cross_entropy layout = {0};
    layout.classes = c->classes;
    layout.inner = c->inner;
    in->x[reference_element(&layout, row, column)] = value;
}

/* With and without class weights, then with indices instead of the probabilities. */
static void run_types(ce_case *c, const option_inputs *in) {
    int64_t i;
    for (i = 0; i < c->rows * c->classes; i++)
        in->t[i] = dtype_round(c->target_dtype, in->t[i]);
    c->class_weights = in->class_weights;
    ce_test(c, "types of arrays");
    c->class_weights = NULL;
    ce_test(c, "types of arrays");
    c->target_probabilities = NULL;
    ce_test(c, "types of arrays");
    c->class_weights = in->class_weights;
    ce_test(c, "types of arrays");
}

/* Three types, of arrays that all fit the vectors of the logits, or of which none does. */
static void types_of_arrays(void **state) {
    unsigned d, t, offset, columns;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (t = 0; t < DTYPE_COUNT; t++)
            for (offset = 0; offset < 2; offset++)
                for (columns = 0; columns < 2; columns++) {
                    option_shape rows = {2, 4 * dtype_width(all_dtypes[d]) + 1, 0}, image = {6, 8, 6};
                    option_inputs in;
                    ce_case c = option_case(all_dtypes[d], columns ? image : rows, OPTION_PROBABILITIES, LOGITS_NORMAL,
                                            d + t, &in);
                    c.target_dtype = all_dtypes[t];
                    c.grad_dtype = all_dtypes[(t + offset + columns) % DTYPE_COUNT];
                    c.logits_stride = c.grad_stride = c.targets_stride = c.grad_targets_stride = STRIDE_16_BYTES;
                    c.target_offset = c.grad_offset = c.grad_target_offset = c.result_offset = (int)offset;
                    c.label_smoothing = 0.1;
                    run_types(&c, &in);
                    option_inputs_free(&in);
                }
    test_done();
}

/* The maximum, a NaN, or a masked class in each position of a thread's vectors: as many rows as positions. */
static void every_position(void **state) {
    unsigned d, columns, soft, kind;
    double negative[32];
    int64_t i;
    (void)state;
    REQUIRE_GPU();
    for (i = 0; i < 32; i++)
        negative[i] = -0.5;
    for (d = 0; d < DTYPE_COUNT; d++)
        for (columns = 0; columns < 2; columns++)
            for (soft = 0; soft < 2; soft++)
                for (kind = 0; kind < 4; kind++) {
                    int64_t n = columns ? 8 : 4 * dtype_width(all_dtypes[d]);
                    const double values[] = {20, (double)NAN, -inf, inf};
                    option_shape shape = {n, n, columns ? n : 0};
                    unsigned options = OPTION_SMOOTHING | OPTION_WEIGHTS | (soft ? OPTION_PROBABILITIES : 0u);
                    option_inputs in;
                    ce_case c = option_case(all_dtypes[d], shape, options, LOGITS_NORMAL, kind, &in);
                    for (i = 0; i < n; i++)
                        put(&c, &in, i, i, values[kind]);
                    c.reduction = kind == 2 ? GPULOSS_SUM : GPULOSS_NONE;
                    ce_test(&c, "every position");
                    c.row_weights = negative;
                    ce_test(&c, "every position");
                    option_inputs_free(&in);
                }
    test_done();
}

/* Every kind of upstream factor in columns; the divisor of the gradient given, in memory, counted and weighed. */
static void factors_in_columns(void **state) {
    enum { ROWS = 6 };
    static const option_shape image = {ROWS, 5, 3};
    static const double upstream = -0.75, weights[ROWS] = {1.0, 0.0, -2.0, 0.125, 3.0, 0.5};
    unsigned d, given;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (given = 0; given < 24; given++) {
            unsigned options = (given & 1 ? OPTION_WEIGHTS : 0u) | (given & 2 ? OPTION_IGNORE_INDEX : 0u);
            option_inputs in;
            ce_case c = option_case(all_dtypes[d], image, options, LOGITS_NORMAL, 8, &in);
            c.divisor = given < 8 ? 2.75 : 0;
            c.divisor_on_device = given < 4;
            if (given < 16) {
                c.grad_loss = &upstream;
                c.grad_loss_rows = weights;
            } else {
                c.outputs &= ~(unsigned)CE_OUT_GRAD;
            }
            ce_test(&c, "factors in columns");
            option_inputs_free(&in);
        }
    test_done();
}

/* Without options: rows in registers, and rows that are streamed. */
static void types_of_index_without_options(void **state) {
    unsigned d, type, streamed;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (type = 0; type < 4; type++)
            for (streamed = 0; streamed < 2; streamed++) {
                option_shape shape = {2, streamed ? 2049 * dtype_width(all_dtypes[d]) : 21, 0};
                option_inputs in;
                ce_case c = option_case(all_dtypes[d], shape, 0, LOGITS_NORMAL, type, &in);
                in.targets[0] = 7;
                in.targets[1] = 20;
                c.index_type = (gpuloss_index_type)((unsigned)GPULOSS_I64 + type);
                c.outputs = CE_OUT_ALL;
                c.divisor = 2.75;
                c.divisor_on_device = type % 2 == 1;
                ce_test(&c, "types of index without options");
                option_inputs_free(&in);
            }
    test_done();
}

/* Rows that are counted by a launch of their own, columns by vectors, and rows of several schedules. */
static void types_of_index_of_schedules(void **state) {
    static const struct {
        int64_t rows, vectors, classes, inner; /* classes are added to those of the vectors */
        unsigned options;
    } shapes[] = {{4100, 0, 3, 0, 0},
                  {704, 0, 21, 352, 0},
                  {704, 0, 40, 352, 0},
                  {9, 1024, 0, 0, OPTION_WEIGHTS},
                  {5, 100, 0, 0, OPTION_WEIGHTS}};
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16};
    unsigned d, k, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (number = 0; number < 8; number++) {
                const option_shape shape = {
                    shapes[k].rows, shapes[k].vectors * dtype_width(dtypes[d]) + shapes[k].classes, shapes[k].inner};
                option_inputs in;
                ce_case c =
                    option_case(dtypes[d], shape, shapes[k].options | OPTION_IGNORE_INDEX, LOGITS_NORMAL, number, &in);
                option_index_type_of_any(&c, number);
                if (shapes[k].options == 0)
                    c.outputs = CE_OUT_ALL;
                if (number < 4)
                    c.outputs &= ~(unsigned)CE_OUT_GRAD;
                ce_test(&c, "types of index of schedules");
                option_inputs_free(&in);
            }
    test_done();
}

/* In rows, columns and shards; the loss is divided by the weights of the targets, which a launch without a gradient sums
 * up itself. */
static void types_of_index(void **state) {
    static const option_shape shapes[] = {{7, 21, 0}, {7, 21, 7}};
    unsigned d, k, type, ignores;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (type = 0; type < 4; type++)
                for (ignores = 0; ignores < 2; ignores++) {
                    option_inputs in;
                    ce_case c = option_case(all_dtypes[d], shapes[k],
                                            OPTION_WEIGHTS | (ignores ? (unsigned)OPTION_IGNORE_INDEX : 0u),
                                            LOGITS_NORMAL, type, &in);
                    option_index_type(&c, type);
                    ce_test(&c, "types of index");
                    c.outputs &= ~(unsigned)CE_OUT_GRAD;
                    ce_test(&c, "types of index");
                    if (k == 0)
                        ce_test_shards(&c, 9, "shards");
                    option_inputs_free(&in);
                }
    test_done();
}

/* A row's factors in the combination of shards. */
static void options_of_shards(void **state) {
    static const option_shape shape = {9, 30, 0};
    unsigned d, set;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (set = 0; set < 8; set++) {
            unsigned options = set & 1 ? OPTION_ALL : OPTION_SMOOTHING | OPTION_ROW_WEIGHTS;
            option_inputs in;
            ce_case c = option_case(all_dtypes[d], shape, options, LOGITS_ASCENDING, set, &in);
            c.divisor = set & 2 ? 2.75 : 0;
            c.divisor_on_device = (set & 6) == 6;
            in.targets[4] = 30;
            put(&c, &in, 5, 3, (double)NAN);
            put(&c, &in, 6, 25, (double)NAN);
            ce_test_shards(&c, set & 4 ? 3 : 25, "shards");
            option_inputs_free(&in);
        }
    test_done();
}

/* From a given lse, with each set of options and of outputs there is work that is left out. */
static void outputs_from_lse(void **state) {
    enum { ROWS = 4 };
    static const option_shape shapes[] = {{ROWS, 37, 0}, {ROWS, 12, 2}};
    static const double lse[ROWS] = {3.5, 6.25, 4, 5};
    static const unsigned sets[] = {0, OPTION_SMOOTHING, OPTION_SMOOTHING | OPTION_WEIGHTS, OPTION_PROBABILITIES};
    static const unsigned outputs[] = {CE_OUT_GRAD,
                                       CE_OUT_LOSS,
                                       CE_OUT_LOSS_ROWS | CE_OUT_GRAD,
                                       CE_OUT_ARGMAX,
                                       CE_OUT_CORRECT | CE_OUT_GRAD,
                                       CE_OUT_Z_LOSS_ROWS | CE_OUT_GRAD};
    unsigned d, k, set, o;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (set = 0; set < sizeof sets / sizeof sets[0]; set++) {
                option_inputs in;
                ce_case c = option_case(all_dtypes[d], shapes[k], sets[set] | OPTION_Z_LOSS, LOGITS_NORMAL, 5, &in);
                c.lse_in = lse;
                for (o = 0; o < sizeof outputs / sizeof outputs[0]; o++) {
                    c.outputs = outputs[o] | CE_OUT_GRAD_TARGETS;
                    if (ce_outputs(&c))
                        ce_test(&c, "outputs from an lse");
                }
                option_inputs_free(&in);
            }
    test_done();
}

/* Four groups of two warps in a block, each of which meets by itself; from a given lse as well. */
static void groups_of_options(void **state) {
    enum { ROWS = 5, IMAGE = 256 };
    static const double lse[ROWS] = {3, 4, 5, 6, 7};
    unsigned d, soft;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (soft = 0; soft < 2; soft++) {
            unsigned options = OPTION_SMOOTHING | (soft ? OPTION_PROBABILITIES : OPTION_WEIGHTS);
            option_shape rows = {ROWS, 130 * dtype_width(all_dtypes[d]), 0}, image = {IMAGE, 9, IMAGE};
            option_inputs in;
            ce_case c = option_case(all_dtypes[d], rows, options, LOGITS_NORMAL, 5, &in);
            ce_test(&c, "groups of options");
            c.lse_in = lse;
            c.outputs = CE_OUT_GRAD;
            ce_test(&c, "groups of options with lse_in");
            option_inputs_free(&in);
            c = option_case(all_dtypes[d], image, options, LOGITS_ASCENDING, 5, &in);
            ce_test(&c, "groups of columns");
            option_inputs_free(&in);
        }
    test_done();
}

/* More rows of a whole block each than there are blocks, with indices and with probabilities. */
static void more_rows_than_blocks(void **state) {
    int64_t rows = harness_small ? 9 : 1300;
    unsigned d, soft;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (soft = 0; soft < 2; soft++) {
            option_shape shape = {rows, 513 * dtype_width(all_dtypes[d]), 0};
            option_inputs in;
            ce_case c = option_case(all_dtypes[d], shape, soft ? OPTION_PROBABILITIES : OPTION_ROW_WEIGHTS,
                                    LOGITS_NORMAL, d, &in);
            c.outputs = CE_OUT_LOSS;
            ce_test(&c, "more rows than blocks");
            option_inputs_free(&in);
        }
    test_done();
}

/* More tiles of columns, of a whole block each, than there are blocks. */
static void more_tiles_than_the_grid(void **state) {
    int64_t tiles = harness_small ? 33 : 1300;
    unsigned d, options;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (options = 0; options <= OPTION_ROW_WEIGHTS; options += OPTION_ROW_WEIGHTS) {
            option_shape image = {64 * tiles, 33, 64 * tiles};
            option_inputs in;
            ce_case c = option_case(all_dtypes[d], image, options, LOGITS_NORMAL, 5, &in);
            c.outputs = CE_OUT_LOSS | CE_OUT_GRAD;
            ce_test(&c, "more tiles than blocks");
            option_inputs_free(&in);
        }
    test_done();
}

/* Doubles whose exponentials are subnormal, next to the maximum, before it and after it; with a softcap, those of which
 * the derivative is made. */
static void subnormal_exponentials_of_options(void **state) {
    enum { ROWS = 6 };
    static const option_shape shapes[] = {{ROWS, 16, 0}, {ROWS, 64, 0}, {ROWS, 512, 0}, {ROWS, 17, 6}, {ROWS, 4, 6}};
    static const double softcaps[] = {0, 2, 2000};
    unsigned k, soft, set, cap;
    int64_t row, i;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (soft = 0; soft < 2; soft++)
            for (set = 0; set < 2; set++)
                for (cap = 0; cap < sizeof softcaps / sizeof softcaps[0]; cap++) {
                    unsigned options = (set ? OPTION_SMOOTHING : 0u) | (soft ? OPTION_PROBABILITIES : 0u);
                    option_inputs in;
                    ce_case c = option_case(GPULOSS_F64, shapes[k], options | OPTION_Z_LOSS, LOGITS_NORMAL, k, &in);
                    c.softcap = softcaps[cap];
                    for (row = 0; row < ROWS; row++)
                        for (i = 0; i < c.classes; i++)
                            put(&c, &in, row, i, !lies_below(row, i, c.classes) ? 0 : cap == 2 ? -755 : -720.5);
                    ce_test(&c, "subnormal exponentials");
                    if (c.inner == 0 && !soft) {
                        ce_test_shards(&c, c.classes / 2, "shards");
                        ce_test_shards(&c, c.classes - 1, "shards");
                    }
                    option_inputs_free(&in);
                }
    test_done();
}

/* The sums over rows of the loss and of its part from the lse. Their terms have very different sizes and either sign.
 * They are 2^e and 2^2e for the exponents e. For double the exponents are eight times as large, or sixteen times
 * without the part from the lse. */
static void sums_of_distant_losses(void **state) {
    enum { ROWS = 8 };
    static const option_shape shapes[] = {{ROWS, 1, 0}, {ROWS, 1, ROWS}};
    static const int exponents[][ROWS] = {{1, 0, -1, 20, -20, 3, 2, 1},     {-40, -41, -42, -40, -40, -40, -40, -40},
                                          {50, 50, -40, 50, 50, 50, 20, 1}, {50, 1, 1, 1, 1, 1, 1, -40},
                                          {60, 1, 1, 1, 1, 1, 1, 1},        {62, 62, 62, 62, 62, 62, 62, 62}};
    unsigned d, k, e, soft, sign;
    int row;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (soft = 0; soft < 2; soft++)
                for (e = 0; e < sizeof exponents / sizeof exponents[0]; e++)
                    for (sign = 0; sign < 4; sign++) {
                        double lse[ROWS], weights[ROWS];
                        option_inputs in;
                        ce_case c = option_case(all_dtypes[d], shapes[k], soft ? OPTION_PROBABILITIES : 0u,
                                                LOGITS_NORMAL, k, &in);
                        for (row = 0; row < ROWS; row++) {
                            lse[row] = ldexp(1, exponents[e][row] * (c.dtype == GPULOSS_F64 ? e == 5 ? 16 : 8 : 1));
                            weights[row] = sign == 0 || (sign == 2 && row % 2) ? 1 : -1;
                            in.x[row] = 0;
                            if (soft)
                                in.t[row] = 1;
                        }
                        if (sign == 3)
                            lse[2] = e % 2 && !soft ? inf : (double)NAN;
                        c.lse_in = lse;
                        c.row_weights = weights;
                        c.lse_square_scale = e == 5 ? 0 : 1;
                        c.reduction = GPULOSS_SUM;
                        c.outputs = CE_OUT_LOSS | CE_OUT_Z_LOSS | CE_OUT_LOSS_ROWS;
                        ce_test(&c, "sums of distant losses");
                        option_inputs_free(&in);
                    }
    test_done();
}

/* The sum of the weights of the targets, in the launch of the loss and, for a gradient, in the one before it, which sums
 * up those of all classes as well. */
static void sums_of_distant_weights(void **state) {
    enum { ROWS = 8, CLASSES = 5 };
    static const option_shape shapes[] = {{ROWS, CLASSES, 0}, {ROWS, CLASSES, ROWS}};
    static const int exponents[][CLASSES] = {{50, 2, -40, -100, 0}, {50, 50, 50, 50, 50},     {-80, -81, -82, -80, -80},
                                             {45, 2, 1, 1, 0},      {-100, -30, -80, -90, 9}, {110, 110, 110, 110, 110},
                                             {1, 1, 1, 9999, 9999}};
    unsigned d, k, e, grad;
    int i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (e = 0; e < sizeof exponents / sizeof exponents[0]; e++)
                for (grad = 0; grad < 2; grad++) {
                    option_inputs in;
                    ce_case c =
                        option_case(all_dtypes[d], shapes[k], OPTION_WEIGHTS | OPTION_SMOOTHING, LOGITS_NORMAL, k, &in);
                    for (i = 0; i < CLASSES; i++)
                        in.class_weights[i] = ldexp(1, exponents[e][i] * (c.dtype == GPULOSS_F64 ? 9 : 1));
                    for (i = 0; i < ROWS; i++)
                        in.targets[i] = i % (e == 4 ? 4 : CLASSES);
                    c.outputs = CE_OUT_LOSS | (grad ? (unsigned)CE_OUT_GRAD : (unsigned)CE_OUT_BAD_TARGETS);
                    ce_test(&c, "distant weights");
                    option_inputs_free(&in);
                }
    test_done();
}

/* Two shards, one with logits far below the other's. The losses of the rows have very different sizes. */
static void distant_shards(void **state) {
    enum { ROWS = 4, CLASSES = 6 };
    static const option_shape shape = {ROWS, CLASSES, 0};
    static const int exponents[][ROWS] = {{0, 1, 2, 3}, {100, -100, 20, 1}, {110, 110, 110, 110}, {-100, -90, -110, 0}};
    unsigned d, e, above;
    int64_t row, i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (e = 0; e < sizeof exponents / sizeof exponents[0]; e++)
            for (above = 0; above < 2; above++) {
                option_inputs in;
                ce_case c =
                    option_case(all_dtypes[d], shape, OPTION_SMOOTHING | OPTION_ROW_WEIGHTS, LOGITS_NORMAL, e, &in);
                for (row = 0; row < ROWS; row++) {
                    in.row_weights[row] = ldexp(row ? 1 : -1, exponents[e][row] * (c.dtype == GPULOSS_F64 ? 9 : 1));
                    for (i = 0; i < CLASSES; i++)
                        put(&c, &in, row, i, (i < 3) == (above != 0) ? 0.5 : -720);
                }
                c.reduction = GPULOSS_SUM;
                ce_test_shards(&c, 3, "shards");
                option_inputs_free(&in);
            }
    test_done();
}

/* Rows of more than one step of a block, with weights on all classes, whose maximum still rises. */
static void long_rows_with_weights(void **state) {
    unsigned d, soft;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (soft = 0; soft < 2; soft++) {
            option_shape shape = {1, 2049 * dtype_width(all_dtypes[d]), 0};
            option_inputs in;
            ce_case c = option_case(all_dtypes[d], shape, OPTION_SMOOTHING | (soft ? OPTION_PROBABILITIES : 0u),
                                    LOGITS_ASCENDING, d, &in);
            ce_test(&c, "long row with weights");
            option_inputs_free(&in);
        }
    test_done();
}

/* The divisors of gradients, by every kernel that has it from rows, on a device with as few multiprocessors as the
 * interpreter's: rows that each block counts for itself, or that a kernel before it does; and a number in memory. The last
 * one is the divisor of a loss with class weights, which the kernel sums. */
static void divisors_of_every_kernel(void **state) {
    static const struct {
        option_shape shape;
        unsigned options;
    } kernels[] = {{{70, 21, 0}, 0},
                   {{70, 150, 0}, 0},
                   {{70, 150, 0}, OPTION_SMOOTHING},
                   {{70, 150, 0}, OPTION_SCALE},
                   {{9, 1000, 0}, 0},
                   {{9, 4096, 0}, 0},
                   {{9, 8200, 0}, 0},
                   {{3, 34000, 0}, 0},
                   {{7, 333, 0}, OPTION_SMOOTHING},
                   {{3, 34000, 0}, OPTION_SMOOTHING},
                   {{3 * 344, 5, 344}, 0},
                   {{3 * 344, 26, 344}, 0},
                   {{6, 5, 3}, OPTION_SMOOTHING}};
    static const gpuloss_index_type types[] = {GPULOSS_I64, GPULOSS_I16, GPULOSS_U8, GPULOSS_I32};
    enum { TYPES = sizeof types / sizeof types[0] };
    static const double up = 0.75;
    unsigned d, k, pass;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (k = 0; k < sizeof kernels / sizeof kernels[0]; k++)
            for (pass = 0; pass <= TYPES; pass++) {
                const unsigned options =
                    kernels[k].options | OPTION_IGNORE_INDEX | (pass == TYPES ? OPTION_WEIGHTS : 0u);
                option_inputs in;
                ce_case c = option_case(all_dtypes[d], kernels[k].shape, options, LOGITS_NORMAL, k, &in);
                int64_t row;
                c.grad_dtype = GPULOSS_DTYPE_UNSET;
                c.outputs = pass == TYPES ? CE_OUT_LOSS : CE_OUT_LOSS | CE_OUT_GRAD;
                c.index_type = types[pass % TYPES];
                c.ignore_index = 1;
                for (row = 0; row < c.rows; row++)
                    in.targets[row] = llabs(in.targets[row] % UINT8_MAX);
                in.targets[0] = 1;
                in.targets[c.rows - 1] = 0;
                c.grad_loss = pass > 0 && pass < TYPES ? &up : NULL;
                c.divisor = pass == 2 ? 3 : 0;
                c.divisor_on_device = pass == 2;
                ce_test(&c, "divisors");
                option_inputs_free(&in);
            }
    test_done();
}

int run_coverage_option_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_of_arrays),
        cmocka_unit_test(divisors_of_every_kernel),
        cmocka_unit_test(every_position),
        cmocka_unit_test(factors_in_columns),
        cmocka_unit_test(types_of_index_without_options),
        cmocka_unit_test(types_of_index),
        cmocka_unit_test(types_of_index_of_schedules),
        cmocka_unit_test(options_of_shards),
        cmocka_unit_test(outputs_from_lse),
        cmocka_unit_test(groups_of_options),
        cmocka_unit_test(more_rows_than_blocks),
        cmocka_unit_test(more_tiles_than_the_grid),
        cmocka_unit_test(subnormal_exponentials_of_options),
        cmocka_unit_test(sums_of_distant_losses),
        cmocka_unit_test(sums_of_distant_weights),
        cmocka_unit_test(distant_shards),
        cmocka_unit_test(long_rows_with_weights),
    };
    return cmocka_run_group_tests_name("coverage of options", tests, NULL, NULL);
}
