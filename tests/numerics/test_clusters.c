/* Long rows, which GPUs with clusters of blocks retain in shared memory. They are of cross-entropy without options,
 * cross-entropy with options and divergences of two arrays of logits. On other GPUs the same rows are streamed. A
 * cluster has about as many blocks as a row needs, and more where rows are few. Shorter rows without options, and rows
 * without a gradient, are streamed through the ring of a team of warps of a block. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "divergence_cases.h"
#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

/* The types with kernels for clusters, and the limits of these kernels. */
static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F16, GPULOSS_BF16};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };
enum { BLOCK = 256, SLOTS = 16, BLOCK_VECTORS = 8 * BLOCK, MOST_BLOCKS = 16 };
enum { BASIC, OPTIONS, LOGITS, DISTANCES, LOSSES };

static const double inf = (double)INFINITY;

static int64_t width_of(gpuloss_dtype dtype) {
    return (int64_t)(16 / dtype_size(dtype));
}

/* Classes of a row of `vectors` vectors, the last of which is not whole. Two arrays take the room of twice as many. */
static int64_t classes_of(gpuloss_dtype dtype, int64_t vectors, unsigned loss) {
    return (loss >= LOGITS ? vectors / 2 : vectors) * width_of(dtype) + 1;
}

/* In every second case all arrays of a row begin at the same position of a vector. */
static void check_basic(gpuloss_dtype dtype, int64_t rows, int64_t classes, bool gradient, unsigned number) {
    option_shape shape = {rows, classes, 0};
    option_inputs in;
    ce_case c = option_case(dtype, shape, number % 3 == 2 ? OPTION_IGNORE_INDEX : 0,
                            (logits_kind)(number % LOGITS_KINDS), number, &in);
    option_vary(&c, number);
    c.grad_dtype = GPULOSS_DTYPE_UNSET;
    if (number % 2)
        c.grad_offset = c.logits_offset, c.grad_stride = c.logits_stride;
    c.outputs = CE_OUT_ALL & ~(gradient ? 0u : (unsigned)CE_OUT_GRAD);
    ce_test(&c, "basic rows of clusters");
    option_inputs_free(&in);
}

static void check_options(gpuloss_dtype dtype, int64_t rows, int64_t classes, bool gradient, unsigned number) {
    option_shape shape = {rows, classes, 0};
    option_inputs in;
    ce_case c =
        option_case(dtype, shape, number * 37 % OPTION_SETS, (logits_kind)(number * 3 % LOGITS_KINDS), number, &in);
    option_vary(&c, number);
    if (number % 2) {
        c.grad_dtype = GPULOSS_DTYPE_UNSET;
        c.grad_offset = c.logits_offset, c.grad_stride = c.logits_stride;
    }
    c.outputs &= ~(gradient ? 0u : (unsigned)CE_OUT_GRAD);
    ce_test(&c, "options of rows of clusters");
    option_inputs_free(&in);
}

/* Forward KL, or for DISTANCES one of the other divergences. */
static kl_case logits_case(unsigned loss, gpuloss_dtype dtype, int64_t rows, int64_t classes, bool gradient,
                           unsigned number) {
    static const unsigned others[] = {CHOICE_REVERSE, CHOICE_JS_HALF, CHOICE_TV, CHOICE_JS};
    divergence_shape shape = {rows, classes};
    kl_case c = divergence_case(dtype, GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1,
                                loss == LOGITS ? CHOICE_FORWARD : others[number % 4]);
    c.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS | (gradient ? KL_OUT_GRAD : 0u);
    return c;
}

static void check_logits(unsigned loss, gpuloss_dtype dtype, int64_t rows, int64_t classes, bool gradient,
                         unsigned number) {
    kl_case c = logits_case(loss, dtype, rows, classes, gradient, number / 2);
    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, number * 11 % KL_WITH_SETS, number);
    divergence_vary(&c, number);
    if (number % 2) {
        c.target_offset = c.grad_offset = c.input_offset;
        c.target_stride = c.grad_stride = c.input_stride;
    }
    kl_test(&c, "two logits of rows of clusters");
    kl_inputs_free(&in);
}

static void check_loss(unsigned loss, gpuloss_dtype dtype, int64_t rows, int64_t classes, bool gradient,
                       unsigned number) {
    if (loss == BASIC)
        check_basic(dtype, rows, classes, gradient, number);
    else if (loss == OPTIONS)
        check_options(dtype, rows, classes, gradient, number);
    else
        check_logits(loss, dtype, rows, classes, gradient, number);
}

/* Rows that `size` blocks have room for: one vector more than half of the blocks retain, and two vectors less than all
 * of them retain. A small run has either the second case or the third. */
static void check_size(unsigned loss, gpuloss_dtype dtype, int64_t size, unsigned number) {
    int64_t least = size == 1 ? BLOCK_VECTORS : size / 2 * BLOCK * SLOTS, most = size * BLOCK * SLOTS - 2;
    check_loss(loss, dtype, 2 + number % 2, classes_of(dtype, least, loss), true, number);
    if (!harness_small || number % 2 == 0)
        check_loss(loss, dtype, 1, classes_of(dtype, most, loss), size > 4, number + 1);
    if (!harness_small || number % 2 == 1)
        check_loss(loss, dtype, 1 + number % 3, classes_of(dtype, least, loss), false, number + 2);
}

/* A large one, of which a small run has little. */
static void check_large_size(unsigned loss, gpuloss_dtype dtype, int64_t size, unsigned number) {
    int64_t classes = classes_of(dtype, size / 2 * BLOCK * SLOTS, loss);
    bool wide = dtype_size(dtype) == 4;
    if (!harness_small)
        check_size(loss, dtype, size, number);
    else if (size == 8 && (wide || loss != DISTANCES))
        check_loss(loss, dtype, 2, classes, loss >= LOGITS, number);
    else if (size == 16 && (wide || loss == BASIC))
        check_loss(loss, dtype, 1, classes, true, number);
}

static void test_sizes(int64_t least, int64_t most, void (*check)(unsigned, gpuloss_dtype, int64_t, unsigned)) {
    unsigned d, loss, number = 0;
    int64_t size;
    for (d = 0; d < DTYPES; d++)
        for (loss = 0; loss < LOSSES; loss++)
            for (size = 1; size <= MOST_BLOCKS; size *= 2, number++)
                if (size >= least && size <= most)
                    check(loss, dtypes[d], size, number);
    test_done();
}

static void small_clusters(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_sizes(1, 4, check_size);
}

static void large_clusters(void **state) {
    (void)state;
    REQUIRE_GPU();
    test_sizes(8, MOST_BLOCKS, check_large_size);
}

/* Vectors that do not fit in the largest cluster are read again. They are fewer and more than its threads take at a
 * time, and, in two cases, more than fit in wide blocks. */
static void rows_that_do_not_fit(void **state) {
    static const int64_t more[] = {1, 3000, 45000, 70000};
    unsigned d, loss, k, number = 7;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (loss = 0; loss < LOSSES; loss++)
            for (k = 0; k < sizeof more / sizeof more[0]; k++, number++) {
                int64_t classes = classes_of(dtypes[d], MOST_BLOCKS * BLOCK * SLOTS + more[k], loss);
                if (harness_small && k != 2)
                    continue;
                check_loss(loss, dtypes[d], harness_small ? 1 : 2, classes, true, number);
                if (loss >= LOGITS)
                    check_loss(loss, dtypes[d], 1, classes, true, number + 1);
            }
    test_done();
}

/* The same of pairs of rows with logits too large for the short formulas, and with targets of another alignment. */
static void large_logits_that_do_not_fit(void **state) {
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < 5; k++) {
            unsigned loss = k == 0 ? LOGITS : DISTANCES;
            int64_t i, classes = classes_of(dtypes[d], MOST_BLOCKS * BLOCK * SLOTS + 30400, loss);
            kl_case c = logits_case(loss, dtypes[d], 1, classes, true, k);
            kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, k);
            for (i = 0; i < classes; i++) {
                in.input[i] = dtype_round(dtypes[d], 6000 + 30 * in.input[i]);
                in.target[i] = dtype_round(dtypes[d], 6000 + 30 * in.target[i]);
            }
            c.target_offset = k % 2;
            c.input_offset = c.grad_offset = 3 * (k / 2 % 2);
            kl_test(&c, "large logits that do not fit");
            kl_inputs_free(&in);
        }
    test_done();
}

/* More rows than the clusters that run at a time, so that some clusters take several. */
static void more_rows_than_clusters(void **state) {
    unsigned d, loss;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (loss = 0; loss < LOSSES; loss++) {
            int64_t rows = harness_small ? (loss == BASIC ? 29 : 14) : 500;
            int64_t vectors = loss == BASIC ? 2 * BLOCK_VECTORS : loss == LOGITS ? 3 * BLOCK_VECTORS : BLOCK_VECTORS;
            check_loss(loss, dtypes[d], rows, classes_of(dtypes[d], vectors + 1, loss), true, d + loss);
            if (!harness_small || d == 0)
                check_loss(loss, dtypes[d], harness_small ? 3 : 50,
                           classes_of(dtypes[d], 5 * (int64_t)BLOCK * SLOTS, loss), true, d + loss + 1);
        }
    test_done();
}

/* Rows that one wide block retains, and rows that two retain: one row fewer than run at a time. And one row of many
 * blocks. */
static void rows_of_wide_blocks(void **state) {
    const int64_t multiprocessors = harness_small ? 4 : 132;
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++) {
        check_basic(dtypes[d], 2 * multiprocessors - 1, classes_of(dtypes[d], 6500, BASIC), true, d);
        check_basic(dtypes[d], multiprocessors - 1, 13000 * width_of(dtypes[d]), true, 3 + d);
        check_basic(dtypes[d], 1, classes_of(dtypes[d], 26000, BASIC), d == 0, 6 + d);
    }
    test_done();
}

/* Rows of one warp and of two, four and eight, in one step, in two, and without a gradient in more. There are more of
 * them than the static tiles of the GPU's teams. The offsets vary. */
static void rows_of_the_ring(void **state) {
    static const struct {
        int64_t rows, vectors;
        bool gradient;
    } shapes[] = {{210, 260, true},  {70, 530, true},   {30, 1040, true},  {30, 3100, true},
                  {70, 1030, false}, {40, 2060, false}, {30, 4200, false}, {20, 6500, false}};
    unsigned d, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++, number += 3) {
            int64_t rows = harness_small ? shapes[k].rows / (d ? 2 : 1) : 10 * shapes[k].rows;
            check_basic(dtypes[d], rows, classes_of(dtypes[d], shapes[k].vectors, BASIC), shapes[k].gradient, number);
        }
    test_done();
}

/* More rows than a team has lanes to defer their last steps, if the GPU has one multiprocessor. With the first shape
 * this also holds for four. */
static void many_rows_of_a_team(void **state) {
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    check_basic(GPULOSS_F32, 270, classes_of(GPULOSS_F32, 1030, BASIC), true, 1);
    for (d = 0; d < DTYPES; d++) {
        int64_t width = width_of(dtypes[d]);
        check_basic(dtypes[d], width == 4 ? 70 : 140, 1031 * width, true, 3 * d);
        check_basic(dtypes[d], 70, 1027 * width + 1, false, 3 * d + 1);
        check_basic(dtypes[d], 70, (BLOCK_VECTORS * 2 + 10) * width, true, 3 * d + 2);
        if (d > 0)
            check_logits(LOGITS, dtypes[d], 110, 514 * width, true, 4 * d);
    }
    check_basic(GPULOSS_BF16, 70, (BLOCK_VECTORS * 2 + 10) * width_of(GPULOSS_BF16), true, LOGITS_CONFIDENT);
    test_done();
}

/* Pairs of rows of whole vectors only: more than the lanes of the leader's warp that defer their last steps, and longer
 * ones. */
static void whole_rows_of_clusters(void **state) {
    static const struct { int64_t rows, vectors; } shapes[] = {{280, 514}, {10, 3100}};
    unsigned d, loss, k, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (loss = LOGITS; loss < LOSSES; loss++)
            for (k = harness_small && d ? 1 : 0; k < sizeof shapes / sizeof shapes[0]; k++, number++) {
                kl_case c =
                    logits_case(loss, dtypes[d], shapes[k].rows, shapes[k].vectors * width_of(dtypes[d]), true, number);
                kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, number);
                kl_test(&c, "whole rows of clusters");
                kl_inputs_free(&in);
            }
    test_done();
}

/* Rows of several whole vectors a thread, by every divergence, with large distances. One has classes masked on both
 * sides, one has classes masked on the teacher's side, and others are ordinary. */
static void whole_vectors_of_clusters(void **state) {
    static const unsigned choices[] = {CHOICE_FORWARD, CHOICE_REVERSE, CHOICE_JS_HALF, CHOICE_TV, CHOICE_JS};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof choices / sizeof choices[0]; k++) {
            divergence_shape shape = {10, 4 * BLOCK * width_of(dtypes[d])};
            kl_case c = divergence_case(dtypes[d], GPULOSS_DTYPE_UNSET, shape, KL_KIND_PAIRS - 1, choices[k]);
            kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, k);
            int64_t i;
            for (i = 0; i < c.rows * c.classes; i++)
                in.input[i] *= 4;
            for (i = 3; i < c.classes; i += 97) {
                in.target[c.classes + i] = in.target[2 * c.classes + i] = -inf;
                in.input[c.classes + i] = -inf;
            }
            c.outputs = KL_OUT_LOSS | KL_OUT_LOSS_ROWS | KL_OUT_GRAD;
            c.input_stride = c.target_stride = c.grad_stride = STRIDE_PACKED;
            c.input_offset = c.target_offset = c.grad_offset = 0;
            kl_test(&c, "whole vectors of clusters");
            kl_inputs_free(&in);
        }
    test_done();
}

/* Rows of a queue of which some have no divergence, or next to none, or are left out. Of two logits they are for two small
 * blocks, or for two of others. */
static void check_mixed(unsigned loss, gpuloss_dtype dtype, unsigned number) {
    const int64_t vectors = loss == LOGITS && number % 2 == 0 ? 3 * BLOCK_VECTORS : BLOCK_VECTORS;
    kl_case c = logits_case(loss, dtype, harness_small ? 29 : 450, classes_of(dtype, vectors, LOGITS), true, number);
    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, number ? KL_WITH_LABELS : 0, number);
    int64_t row, i, n = c.classes;
    for (row = 0; row < c.rows; row++) {
        double *input = in.input + row * n, *target = in.target + row * n;
        if (row % 5 == 0)
            input[n / 2] = (double)NAN;
        for (i = 0; row % 5 == 1 && i < n; i++)
            target[i] = input[i];
        if (row % 5 == 1)
            input[7] = -40, target[7] = -40 + dtype_ulp(dtype, 40);
        if (row % 5 == 2 && row % 2)
            target[n - 1] = inf;
    }
    c.reduction = number ? GPULOSS_BATCHMEAN : GPULOSS_NONE;
    kl_test(&c, "mixed rows of clusters");
    kl_inputs_free(&in);
}

static void mixed_rows_of_clusters(void **state) {
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (number = 0; number < (harness_small || d == 0 ? 4u : 2u); number++)
            check_mixed(number % 2 ? LOGITS : DISTANCES, dtypes[d], number / 2 + 2 * d);
    test_done();
}

/* Targets of one byte, where 255 is ignored or a class. */
static void few_targets(ce_case *c, option_inputs *in) {
    int64_t row;
    for (row = 0; row < c->rows; row++)
        in->targets[row] = in->targets[row] == c->ignore_index ? 255 : in->targets[row] % 250;
    c->index_type = GPULOSS_U8;
    c->ignore_index = c->use_ignore_index ? 255 : 0;
}

/* Rows with options in whole vectors, for which the weights of the classes are read once. Every second row has a logit
 * that the short formulas do not take. */
static void check_shared(gpuloss_dtype dtype, int64_t rows, int64_t classes, bool gradient, unsigned number) {
    static const unsigned sets[] = {OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_Z_LOSS | OPTION_IGNORE_INDEX,
                                    OPTION_SMOOTHING | OPTION_ROW_WEIGHTS, OPTION_WEIGHTS,
                                    OPTION_Z_LOSS | OPTION_IGNORE_INDEX};
    option_shape shape = {rows, classes, 0};
    option_inputs in;
    ce_case c = option_case(dtype, shape, sets[number % 4], (logits_kind)(number % LOGITS_KINDS), number, &in);
    double most = dtype_max(dtype);
    const double odd[] = {(double)NAN, inf, -inf, -inf, most, -most, -inf};
    int64_t row, i;
    for (row = number % 2; row < rows; row += 2) {
        double *x = in.x + row * classes;
        int64_t which = row / 2 % 7;
        x[which == 2 ? 3 : classes - 4 - which] = odd[which]; /* class 3 has no weight */
        for (i = 0; which == 6 && row % 3 == 0 && i < classes; i++)
            x[i] = -inf;
    }
    option_index_type(&c, number / 2);
    if (number % 4 == 3)
        few_targets(&c, &in);
    c.reduction = all_reductions[number % REDUCTION_COUNT];
    c.in_place = gradient && number % 3 == 1;
    c.logits_stride = number % 2 || classes % width_of(dtype) ? STRIDE_16_BYTES : STRIDE_PACKED;
    c.grad_stride = c.in_place || classes % width_of(dtype) ? c.logits_stride : STRIDE_PACKED;
    c.outputs &= ~(gradient ? 0u : (unsigned)CE_OUT_GRAD);
    ce_test(&c, "rows that share weights");
    option_inputs_free(&in);
}

static void rows_that_share_weights(void **state) {
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++) {
        int64_t width = width_of(dtypes[d]);
        for (number = 0; number < 8; number++) {
            check_shared(dtypes[d], number < 6 ? 9 : 2, (BLOCK_VECTORS + 3) * width, true, number + d);
            check_shared(dtypes[d], number < 4 ? 40 : 70, (BLOCK * 4 + 37) * width, false, number + d);
        }
        /* Rows that start on 16 bytes and do not end there; the loss alone of a few. */
        for (number = 0; number < 4; number++) {
            check_shared(dtypes[d], number % 2 ? 5 : 26, (BLOCK_VECTORS + 3) * width + 3, true, number);
            check_shared(dtypes[d], 35, (BLOCK * 4 + 37) * width + 3, false, number + d);
        }
        for (number = 0; number < 8; number++)
            check_shared(dtypes[d], 3, (BLOCK_VECTORS + 3) * width + 3 * (number % 3 == 1), false, number + d);
        for (number = 0; number < 4; number++)
            check_shared(dtypes[d], 3, BLOCK * (d ? 36 : 40) * width, false, number);
        /* More blocks of a cluster, also some without a part of a row; whole tiles of rows. */
        check_shared(dtypes[d], 2, (BLOCK * 16 + 5) * width, true, d);
        /* Slots of a cluster that are nearly all full. */
        check_shared(dtypes[d], 7, 4000 * width, true, 4 * d);
        check_shared(dtypes[d], 7, 4000 * width, true, 4 * d + 2);
        check_shared(dtypes[d], 3, BLOCK * (d ? 9 : 32) * width, true, d + 4);
        /* More than the largest cluster has room for beside the weights. */
        if (!harness_small || d == 1)
            check_shared(dtypes[d], 1, (MOST_BLOCKS * BLOCK * (d ? 4 : 8) + 9) * width, true, 9);
        if (!harness_small || d == 2)
            check_shared(dtypes[d], 300, BLOCK * 4 * width, false, d);
    }
    test_done();
}

/* More rows of a cluster than the manager has lanes to defer their last steps, on a GPU with one multiprocessor. At
 * full size this holds for any GPU. */
static void many_rows_that_share_weights(void **state) {
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        check_shared(dtypes[d], harness_small ? 35 : 4400, (BLOCK_VECTORS + 3) * width_of(dtypes[d]), true, 4 * d);
    test_done();
}

/* The factors of a loss and its gradient, and indices of every type; in whole vectors and not. */
static void check_factors(gpuloss_dtype dtype, int64_t classes, bool basic, unsigned number) {
    static const double upstream = -0.75, of_rows[] = {0.5, -2, 3};
    static const gpuloss_index_type types[] = {GPULOSS_U8, GPULOSS_I16, GPULOSS_I32, GPULOSS_I64};
    static const unsigned sets[] = {0, OPTION_WEIGHTS | OPTION_SMOOTHING, OPTION_WEIGHTS, OPTION_ALL,
                                    OPTION_SMOOTHING | OPTION_Z_LOSS | OPTION_ROW_WEIGHTS};
    option_shape shape = {3, classes + number % 3 % 2, 0};
    option_inputs in;
    unsigned options = basic ? 0 : number < 20 ? sets[number % 5] : (unsigned)OPTION_WEIGHTS;
    ce_case c = option_case(dtype, shape, options, LOGITS_NORMAL, number, &in);
    bool forward = number % 6 == 4 || number >= 20;
    int64_t row;
    c.index_type = types[number % 4];
    for (row = 0; row < c.rows; row++)
        in.targets[row] = 20 * row + number;
    if (c.index_type != GPULOSS_U8)
        in.targets[number % 3] = -1;
    c.use_ignore_index = number % 7 < 3;
    c.ignore_index = c.use_ignore_index ? 20 + number : 0;
    c.reduction = number / 5 % 2 ? all_reductions[number % REDUCTION_COUNT] : GPULOSS_MEAN;
    c.divisor = c.reduction == GPULOSS_MEAN && number < 20 && number % 3 == 1 ? 48.5 : 0;
    c.divisor_on_device = c.divisor > 0 && number % 2;
    c.use_grad_scale = !forward && number % 3 == 2;
    c.grad_scale = c.use_grad_scale ? 1.0 / 3.0 : 0;
    c.grad_loss = !forward && number % 2 && c.reduction != GPULOSS_NONE ? &upstream : NULL;
    c.grad_loss_rows = !forward && number % 4 == 1 ? of_rows : NULL;
    c.outputs = basic ? CE_OUT_ALL : CE_OUT_EVERY;
    if (forward)
        c.outputs &= ~(unsigned)CE_OUT_GRAD;
    ce_test(&c, "factors of rows");
    option_inputs_free(&in);
}

static void check_pair_factors(unsigned loss, gpuloss_dtype dtype, unsigned number) {
    static const double upstream = -0.75, of_rows[] = {0.5, -2, 3};
    kl_case c = logits_case(loss, dtype, 3, classes_of(dtype, BLOCK_VECTORS, LOGITS), true, number);
    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, KL_WITH_LABELS | (number * 7 % KL_WITH_SETS), number);
    c.reduction = c.divisor > 0 ? GPULOSS_MEAN : GPULOSS_SUM;
    c.divisor_on_device = c.divisor > 0 && number % 2;
    c.grad_loss = number % 2 ? &upstream : NULL;
    c.grad_loss_rows = number % 4 > 1 ? of_rows : NULL;
    kl_test(&c, "factors of rows");
    kl_inputs_free(&in);
}

/* Short rows, rows in registers, rows of the ring and rows of clusters. The last rows of clusters sum weights of
 * classes without a gradient. */
static void factors_of_rows(void **state) {
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++) {
        int64_t classes = (BLOCK_VECTORS + 1) * width_of(all_dtypes[d]);
        for (number = 0; number < 24; number++) {
            check_factors(all_dtypes[d], 100, true, number);
            check_factors(all_dtypes[d], 300, true, number);
            check_factors(all_dtypes[d], 300 * width_of(all_dtypes[d]), true, number);
            if (!harness_small || number % 3 == 0)
                check_factors(all_dtypes[d], classes, true, number);
            check_factors(all_dtypes[d], classes, false, number);
        }
        for (number = 0; number < 8; number++)
            check_pair_factors(number < 4 ? LOGITS : DISTANCES, all_dtypes[d], number);
    }
    test_done();
}

/* A vocabulary in two shards, each of which has long rows, and more of them than there are clusters. */
static void shards_of_clustered_rows(void **state) {
    unsigned d;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++) {
        int64_t half = (BLOCK_VECTORS + 5) * width_of(dtypes[d]);
        const int64_t firsts[] = {0, half};
        option_shape shape = {14, 2 * half + 3, 0};
        option_inputs in;
        ce_case c = option_case(dtypes[d], shape, OPTION_SMOOTHING, LOGITS_NORMAL, d, &in);
        char text[CE_DESCRIPTION];
        ce_result result;
        report r;
        c.outputs = CE_OUT_LOSS | CE_OUT_LOSS_ROWS | CE_OUT_ARGMAX | CE_OUT_CORRECT;
        ce_describe(&c, "shards of rows of clusters", text, sizeof text);
        r = report_on(text);
        ce_run_sharded(&c, firsts, 2, &result, &r);
        ce_check(&c, &result, &r);
        ce_free(&result);
        option_inputs_free(&in);
        case_done(&r);
    }
    test_done();
}

/* Logits and gradient, or the two arrays of logits, by every way of not being aligned. */
static void check_offsets(gpuloss_dtype dtype, int i, int j) {
    option_shape shape = {3, classes_of(dtype, BLOCK_VECTORS, BASIC), 0};
    int width = (int)width_of(dtype);
    option_inputs in;
    ce_case c = option_case(dtype, shape, 0, LOGITS_NORMAL, (unsigned)i, &in);
    kl_case k = logits_case((i - j) / 4 % 2 ? DISTANCES : LOGITS, dtype, 2, classes_of(dtype, BLOCK_VECTORS, LOGITS),
                            true, (unsigned)i);
    kl_inputs of_k = divergence_inputs(&k, DISTRIBUTIONS_RANDOM, 0, (unsigned)j);
    c.outputs = (i + j) % 3 ? CE_OUT_ALL : CE_OUT_EVERY;
    c.logits_offset = k.input_offset = i;
    c.grad_offset = k.target_offset = j;
    k.grad_offset = (i + 3 * j) % width;
    c.in_place = k.in_place = (i + 2 * j) % 5 == 1;
    c.logits_stride = k.input_stride = (stride_kind)((i + j) % STRIDE_KINDS);
    c.grad_stride = k.target_stride = (stride_kind)(j % STRIDE_KINDS);
    k.grad_stride = (stride_kind)(i % STRIDE_KINDS);
    c.guard = k.guard = j % 2 ? 256 : 0;
    ce_test(&c, "offsets of rows of clusters");
    kl_test(&k, "offsets of rows of clusters");
    kl_inputs_free(&of_k);
    option_inputs_free(&in);
}

static void offsets_of_clustered_rows(void **state) {
    unsigned d;
    int i, j;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++) {
        int width = (int)width_of(dtypes[d]);
        for (i = 0; i < width; i++)
            for (j = 0; j < width; j++)
                if (!harness_small || (i - j) % (width / 2) == 0)
                    check_offsets(dtypes[d], i, j);
    }
    test_done();
}

/* Contents of a row: classes of probability 0, rows without a softmax, the ends of the type, and maxima on either side
 * of the limit of the fast range in gen/kernels/device/math.cuh. */
enum {
    MASKED_HALF,
    MASKED_BUT_LAST,
    MASKED,
    NAN_LAST,
    NAN_ALONE,
    INFINITE,
    LARGEST,
    BOTH_ENDS,
    LARGE_LAST,
    CLOSE_MAX,
    CLOSE_BELOW,
    DISTANT_MAX,
    DISTANT_BELOW,
    RISING,
    NEXT_TO_NOTHING,
    TIES,
    NAN_TIES,
    CONSTANT,
    CONTENTS
};
static const char *const content_names[CONTENTS] = {"half masked",
                                                    "all masked but the last",
                                                    "all masked",
                                                    "NaN",
                                                    "NaN among masked",
                                                    "+inf",
                                                    "the largest",
                                                    "both ends",
                                                    "a large one at the end",
                                                    "a close maximum",
                                                    "close below",
                                                    "a distant maximum",
                                                    "distant below",
                                                    "rising maxima",
                                                    "exponentials next to nothing",
                                                    "ties",
                                                    "several NaN",
                                                    "one value"};

static double content(unsigned kind, gpuloss_dtype dtype, int64_t i, int64_t n, double normal) {
    double largest = dtype_max(dtype);
    switch (kind) {
    case MASKED_HALF:
        return i < n / 2 ? -inf : normal;
    case MASKED_BUT_LAST:
        return i < n - 1 ? -inf : normal;
    case MASKED:
        return -inf;
    case NAN_LAST:
        return i == n - 1 ? (double)NAN : normal;
    case NAN_ALONE:
        return i == n - 1 - n / 5 ? (double)NAN : -inf;
    case INFINITE:
        return i == n / 2 ? inf : normal;
    case LARGEST:
        return largest;
    case BOTH_ENDS:
        return i % 2 ? largest : -largest;
    case LARGE_LAST:
        return i == n - 1 ? largest / 8 : normal;
    case CLOSE_MAX:
        return 4000 + normal;
    case CLOSE_BELOW:
        return -4000 + normal;
    case DISTANT_MAX:
        return 5000 + normal;
    case DISTANT_BELOW:
        return -5000 + normal;
    case RISING:
        return normal + (i < n / 4 ? 0 : i < n / 2 ? 4090 : i < n - n / 4 ? 4098 : 4104);
    case NEXT_TO_NOTHING: /* of double */
        return i < n / 2 || i % 3 == 0 ? normal - 725 : normal;
    case TIES:
        return i == n / 3 || i == n / 2 || i == n - 1 ? 32 : normal;
    case NAN_TIES:
        return i == n / 3 || i == n - 1 ? (double)NAN : i == 0 ? 64 : normal;
    default:
        return 1.5;
    }
}

/* One row alone, which the blocks of a large cluster share. Its target is a class, no class, or ignored. */
static void check_content(gpuloss_dtype dtype, int64_t rows, int64_t classes, unsigned kind, unsigned number) {
    option_shape shape = {rows, classes, 0};
    bool ends = kind == LARGEST || kind == BOTH_ENDS;
    option_inputs in;
    ce_case c = option_case(dtype, shape, 0, LOGITS_NORMAL, number, &in);
    int64_t i, row;
    for (i = 0; i < rows * classes; i++)
        in.x[i] = dtype_round(dtype, content(kind, dtype, i % classes, classes, in.x[i]));
    for (row = 0; row < rows; row++)
        in.targets[row] = row % 2 ? classes - 1 : classes / 3;
    if (number % 4 > 1 && rows > 1)
        in.targets[rows - 1] = -100;
    c.use_ignore_index = number % 4 == 3;
    c.ignore_index = c.use_ignore_index ? -100 : 0;
    c.logits_offset = (int)number / 2 % 2;
    c.grad_offset = number % 5 ? c.logits_offset : 1 - c.logits_offset;
    c.in_place = number % 3 == 1;
    c.reduction = ends ? GPULOSS_NONE : all_reductions[number % REDUCTION_COUNT];
    c.outputs = CE_OUT_ALL;
    ce_test(&c, content_names[kind]);
    c.outputs |= CE_OUT_ARGMAX | CE_OUT_CORRECT;
    if (!ends && number % 2)
        c.label_smoothing = 0.1;
    ce_test(&c, content_names[kind]);
    c.outputs &= ~(unsigned)CE_OUT_GRAD;
    ce_test(&c, content_names[kind]);
    option_inputs_free(&in);
}

/* Rows that are short, in registers, of the ring and streamed, and rows that a cluster of two blocks or more retains.
 * */
static void contents_of_rows(void **state) {
    unsigned d, kind, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (kind = 0; kind < CONTENTS; kind++, number++) {
            int64_t width = width_of(all_dtypes[d]), classes = (BLOCK_VECTORS + 1) * width + 5;
            check_content(all_dtypes[d], 35, 10, kind, number);
            check_content(all_dtypes[d], 3, 100, kind, number);
            check_content(all_dtypes[d], 3, 300, kind, number);
            check_content(all_dtypes[d], 3, 300 * width + 5, kind, number);
            check_content(all_dtypes[d], harness_small && number % 2 ? 2 : 1, classes, kind, number + d);
        }
    test_done();
}

/* One side of a pair has the contents, also in rows that their label leaves out. Losses alone are of many rows, which
 * are not retained. */
static void check_pair(unsigned loss, gpuloss_dtype dtype, unsigned kind, bool writes, unsigned number) {
    kl_case c = logits_case(loss, dtype, writes ? 3 : 36, (BLOCK_VECTORS / 2 + 1) * width_of(dtype) + 5,
                            writes && number % 4 != 3, kind + number);
    kl_inputs in = divergence_inputs(
        &c, DISTRIBUTIONS_RANDOM, (number % 2 ? KL_WITH_LABELS : 0u) | (number % 3 ? KL_WITH_TEMPERATURE : 0u), number);
    double *side = number / 2 % 2 ? in.target : in.input;
    int64_t i, n = c.classes;
    for (i = 0; i < 2 * n; i++)
        side[i] = dtype_round(dtype, content(kind, dtype, i % n, n, side[i]));
    c.input_offset = (int)number / 2 % 2;
    c.target_offset = c.grad_offset = number % 5 ? c.input_offset : 1 - c.input_offset;
    c.in_place = writes && number % 3 == 1;
    c.reduction = all_reductions[number % REDUCTION_COUNT];
    kl_test(&c, content_names[kind]);
    kl_inputs_free(&in);
}

/* Logits at the ends of the type lose all digits of a divergence, and are left to other tests. */
static void contents_of_pairs(void **state) {
    unsigned d, kind, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (kind = 0; kind < CONTENTS; kind++, number++)
            if (kind != LARGEST && kind != BOTH_ENDS && kind != LARGE_LAST) {
                check_pair(LOGITS, dtypes[d], kind, true, number);
                check_pair(LOGITS, dtypes[d], kind, false, number);
                check_pair(DISTANCES, dtypes[d], kind, true, number);
            }
    test_done();
}

/* Rows whose sides are close, distant and between, one after the other. The divergence of close sides keeps its digits
 * only in the careful sum. */
static void check_sizes(unsigned loss, gpuloss_dtype dtype, bool gradient, unsigned number) {
    static const double spreads[] = {0.02, 2, 0.3, 0.45, 0.7, 1e-3, 1};
    int64_t vectors = loss == LOGITS ? 2 * BLOCK_VECTORS - 3 : 2 * BLOCK_VECTORS + 1;
    kl_case c = logits_case(loss, dtype, harness_small ? 7 : 70, vectors * width_of(dtype), gradient, number);
    kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, number / 4 % 2 ? KL_WITH_TEMPERATURE : 0, number);
    random_source random = random_from(number);
    int64_t i, n = c.rows * c.classes;
    for (i = 0; i < n; i++)
        in.target[i] = dtype_round(dtype, in.input[i] + spreads[(i / c.classes + number) % 7] * random_normal(&random));
    kl_test(&c, "divergences of every size");
    kl_inputs_free(&in);
}

static void divergences_of_every_size(void **state) {
    unsigned d, number;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++) {
        for (number = 0; number < 2; number++)
            check_sizes(LOGITS, dtypes[d], number == 0, 5 * number + d);
        for (number = 0; number < 4; number++)
            check_sizes(DISTANCES, dtypes[d], (number + d) % 4 != 3, number + d);
    }
    test_done();
}

/* Losses too large for the integers of the sum. They are of rows of the ring, of rows that a cluster retains, and of
 * rows that share weights, with a gradient and without. */
static void large_losses_of_rows(void **state) {
    static const struct {
        int64_t rows, vectors;
        unsigned options;
    } shapes[] = {{70, 1040, 0},
                  {2, 4300, 0},
                  {2, 2300, OPTION_WEIGHTS | OPTION_SMOOTHING},
                  {70, 1040, OPTION_WEIGHTS | OPTION_SMOOTHING}};
    unsigned k, number;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (number = 0; number < 8; number++) {
            gpuloss_dtype dtype = number < 4 ? GPULOSS_F32 : GPULOSS_BF16;
            bool whole = shapes[k].options != 0;
            option_shape shape = {shapes[k].rows, shapes[k].vectors * width_of(dtype) + (whole ? 0 : 1), 0};
            option_inputs in;
            ce_case c = option_case(dtype, shape, shapes[k].options, LOGITS_NORMAL, number, &in);
            int64_t row;
            for (row = 0; row < c.rows; row++)
                in.x[row * c.classes + row] = dtype_round(dtype, number % 4 < 2 ? 1e30 : -1e30);
            c.outputs = CE_OUT_EVERY & ~(number % 2 ? 0u : (unsigned)CE_OUT_GRAD);
            if (!whole)
                c.outputs &= CE_OUT_ALL;
            c.reduction = GPULOSS_SUM;
            ce_test(&c, "large losses");
            option_inputs_free(&in);
        }
    for (k = LOGITS; k < LOSSES; k++)
        for (number = 0; number < 2; number++) {
            gpuloss_dtype dtype = number ? GPULOSS_BF16 : GPULOSS_F32;
            kl_case c = logits_case(k, dtype, 3, (BLOCK_VECTORS + 1) * width_of(dtype), true, number);
            kl_inputs in = divergence_inputs(&c, DISTRIBUTIONS_RANDOM, 0, number);
            int64_t row;
            for (row = 0; row < c.rows; row++) {
                in.input[row * c.classes] = dtype_round(dtype, 1e20);
                in.target[row * c.classes + 1] = dtype_round(dtype, 60);
            }
            c.reduction = GPULOSS_SUM;
            kl_test(&c, "large divergences");
            kl_inputs_free(&in);
        }
    test_done();
}

int run_cluster_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_clusters),
        cmocka_unit_test(large_clusters),
        cmocka_unit_test(rows_that_do_not_fit),
        cmocka_unit_test(large_logits_that_do_not_fit),
        cmocka_unit_test(more_rows_than_clusters),
        cmocka_unit_test(rows_of_wide_blocks),
        cmocka_unit_test(rows_of_the_ring),
        cmocka_unit_test(many_rows_of_a_team),
        cmocka_unit_test(offsets_of_clustered_rows),
        cmocka_unit_test(whole_vectors_of_clusters),
        cmocka_unit_test(whole_rows_of_clusters),
        cmocka_unit_test(mixed_rows_of_clusters),
        cmocka_unit_test(rows_that_share_weights),
        cmocka_unit_test(many_rows_that_share_weights),
        cmocka_unit_test(large_losses_of_rows),
        cmocka_unit_test(factors_of_rows),
        cmocka_unit_test(shards_of_clustered_rows),
        cmocka_unit_test(contents_of_rows),
        cmocka_unit_test(contents_of_pairs),
        cmocka_unit_test(divergences_of_every_size),
    };
    return cmocka_run_group_tests_name("clusters", tests, NULL, NULL);
}
