/* Cross-entropy by the kernels of every option: each option alone and several at once. The layouts of rows take
 * different paths through the ring of a warp. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "option_cases.h"
#include "run_common.h"
#include "suites.h"

static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_BF16, GPULOSS_F16, GPULOSS_F64};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0], MOST_ROWS = 1024 };

static const double inf = (double)INFINITY;

/* Everything but the gradient of the logits, which takes the state of the whole row. */
enum { READ_ONLY = CE_OUT_EVERY & ~(CE_OUT_GRAD | CE_OUT_GRAD_TARGETS) };
enum { CLASSES_AS_THEY_ARE = -1 };

/* Rows of `vectors` vectors of 16 bytes and `more` classes, or of `more` classes. */
typedef struct layout {
    int64_t rows, vectors, more;
    stride_kind stride;
    int offset, step; /* of the logits, in elements; and from each array to the next */
} layout;

static int64_t width_of(gpuloss_dtype dtype) {
    return (int64_t)(16 / dtype_size(dtype));
}

static ce_case case_of(gpuloss_dtype dtype, const layout *l, unsigned options, logits_kind kind, unsigned number,
                       option_inputs *in) {
    const int64_t classes = l->vectors == CLASSES_AS_THEY_ARE ? l->more : l->vectors * width_of(dtype) + l->more;
    option_shape shape = {l->rows, classes, 0};
    ce_case c = option_case(dtype, shape, options, kind, number, in);
    c.logits_stride = c.grad_stride = c.targets_stride = c.grad_targets_stride = l->stride;
    c.logits_offset = l->offset;
    c.target_offset = l->offset + l->step;
    c.grad_offset = l->offset + 2 * l->step;
    c.grad_target_offset = l->offset + 3 * l->step;
    return c;
}

/* A set of options, and the further parts of a call. */
typedef struct call {
    unsigned options, outputs;
    double scale;               /* if it is not 0 */
    bool lse_in, row_gradients; /* given */
    bool divisor;               /* given, so that no rows are counted; in memory where an lse is given, too */
} call;

static const call calls[] = {
    {0, CE_OUT_EVERY, 0, false, false, false},
    {0, CE_OUT_LOSS | CE_OUT_GRAD, 0, false, true, false},
    {OPTION_IGNORE_INDEX, CE_OUT_ALL | CE_OUT_CORRECT, 0, false, false, true},
    {OPTION_WEIGHTS, CE_OUT_EVERY, 0, false, false, false},
    {OPTION_SMOOTHING, CE_OUT_ALL, 0, false, false, false},
    {OPTION_Z_LOSS, CE_OUT_EVERY, 0, false, false, false},
    {OPTION_SOFTCAP, CE_OUT_EVERY, 0, false, false, false},
    {OPTION_SCALE, CE_OUT_EVERY, 0, false, false, false},
    {OPTION_SCALE | OPTION_SMOOTHING, CE_OUT_EVERY, -0.7, false, true, false},
    {OPTION_SCALE, CE_OUT_LOSS | CE_OUT_GRAD, -0.7, false, false, false},
    {OPTION_ROW_WEIGHTS | OPTION_IGNORE_INDEX, CE_OUT_ALL, 0, false, true, false},
    {OPTION_WEIGHTS | OPTION_SMOOTHING, CE_OUT_ALL, 0, false, false, false},
    {OPTION_WEIGHTS | OPTION_SMOOTHING, CE_OUT_LOSS, 0, false, false, false},
    {OPTION_ALL, CE_OUT_EVERY, 0, false, true, false},
    {OPTION_ALL, READ_ONLY, -0.7, false, false, true},
    {OPTION_PROBABILITIES, CE_OUT_EVERY, 0, false, false, false},
    {OPTION_PROBABILITIES, CE_OUT_LOSS | CE_OUT_GRAD_TARGETS, 0, false, true, false},
    {OPTION_PROBABILITIES | OPTION_WEIGHTS, CE_OUT_ALL, 0, false, false, false},
    {OPTION_PROBABILITIES | OPTION_SMOOTHING, CE_OUT_ALL | CE_OUT_GRAD_TARGETS, 0, false, false, false},
    {OPTION_PROBABILITIES | OPTION_ALL, CE_OUT_EVERY, 0, false, true, false},
    {OPTION_PROBABILITIES | OPTION_ALL, READ_ONLY, -0.7, false, false, false},
    {0, CE_OUT_GRAD, 0, true, false, false},
    {OPTION_WEIGHTS | OPTION_SMOOTHING, CE_OUT_GRAD, 0, true, false, false},
    {OPTION_SMOOTHING, CE_OUT_GRAD, 0, true, true, false},
    {OPTION_SMOOTHING | OPTION_Z_LOSS, CE_OUT_ALL, 0, true, false, true},
    {OPTION_ALL, CE_OUT_EVERY, 0, true, true, false},
    {OPTION_Z_LOSS, CE_OUT_LOSS | CE_OUT_Z_LOSS, 0, true, false, false},
    {OPTION_PROBABILITIES, CE_OUT_GRAD, 0, true, false, false},
    {OPTION_PROBABILITIES | OPTION_ALL, CE_OUT_EVERY, 0, true, false, false},
};
enum { CALLS = sizeof calls / sizeof calls[0] };

/* The lse that a forward pass would have saved. */
static double lse_of(const ce_case *c, int64_t row) {
    const double scale = c->logit_scale != 0 ? c->logit_scale : 1, cap = c->softcap;
    double row_max = -inf, sum = 0;
    int pass;
    int64_t i;
    for (pass = 0; pass < 2; pass++)
        for (i = 0; i < c->classes; i++) {
            double z = scale * c->x[row * c->classes + i];
            z = cap > 0 ? cap * tanh(z / cap) : z;
            if (pass == 0)
                row_max = fmax(row_max, z);
            else
                sum += exp(z - row_max);
        }
    return (double)(float)(row_max + log(sum));
}

static void set_call(ce_case *c, const call *k) {
    static double row_gradients[MOST_ROWS], lse[MOST_ROWS];
    static const double up = -0.75;
    int64_t i;
    for (i = 0; i < MOST_ROWS; i++)
        row_gradients[i] = (double)(i % 5) / 4 - 0.5;
    c->outputs = k->outputs;
    if (k->scale != 0)
        c->logit_scale = k->scale;
    for (i = 0; k->lse_in && i < c->rows; i++)
        lse[i] = lse_of(c, i);
    c->lse_in = k->lse_in ? lse : NULL;
    if (k->row_gradients) {
        c->grad_loss = &up;
        c->grad_loss_rows = row_gradients;
    }
    if (k->divisor)
        c->divisor = 2.75;
    c->divisor_on_device = k->divisor && k->lse_in;
}

/* Every type, however many classes there are; one target is bad, unless it may be that of an ignored row. */
static void set_targets(ce_case *c, const option_inputs *in, unsigned number) {
    static const gpuloss_index_type types[] = {GPULOSS_I64, GPULOSS_U8, GPULOSS_I16, GPULOSS_I32};
    int64_t i;
    c->index_type = types[number % 4];
    if (c->index_type != GPULOSS_U8) {
        in->targets[c->rows - 1] = number % 3 == 0 ? -5 : in->targets[c->rows - 1];
        return;
    }
    c->ignore_index = c->use_ignore_index ? UINT8_MAX : c->ignore_index;
    for (i = 0; i < c->rows; i++)
        in->targets[i] = in->targets[i] < 0 ? UINT8_MAX : in->targets[i] % UINT8_MAX;
}

static void test_call(gpuloss_dtype dtype, const layout *l, unsigned n, unsigned number, const char *what) {
    option_inputs in;
    ce_case c = case_of(dtype, l, calls[n].options, LOGITS_NORMAL, number, &in);
    set_call(&c, &calls[n]);
    in.row_weights[1] = 0;
    if (!c.target_probabilities)
        set_targets(&c, &in, number);
    ce_test(&c, what);
    option_inputs_free(&in);
}

static void test_calls(const layout *layouts, size_t count, const char *what) {
    unsigned d, n, number = 0;
    size_t k;
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < count; k++)
            for (n = 0; n < CALLS; n++, number++)
                test_call(dtypes[d], &layouts[k], n, number, what);
}

/* Rows of one warp and of several, with stages of either length; on lines of 128 bytes, between them, and ragged. */
static void calls_of_the_pipeline(void **state) {
    static const layout layouts[] = {
        {9, 49, 0, STRIDE_PACKED, 0, 0},   {9, CLASSES_AS_THEY_ARE, 1000, STRIDE_PACKED, 0, 0},
        {9, 61, 3, STRIDE_ONE_MORE, 1, 0}, {9, 61, 2, STRIDE_ONE_MORE, 0, 1},
        {6, 300, 0, STRIDE_PACKED, 0, 0},  {5, 525, 2, STRIDE_PACKED, 0, 0}};
    (void)state;
    REQUIRE_GPU();
    test_calls(layouts, sizeof layouts / sizeof layouts[0], "calls of the pipeline");
    test_done();
}

/* Rows that the blocks of a cluster share: few, or too long for a block, whole and ragged. */
static void clusters_of_the_pipeline(void **state) {
    static const layout layouts[] = {{3, 2100, 0, STRIDE_PACKED, 0, 0}, {3, 2100, 3, STRIDE_ONE_MORE, 1, 1}};
    unsigned d, k, n, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof layouts / sizeof layouts[0]; k++)
            for (n = (d + k) % 2; n < CALLS; n += 2, number++)
                test_call(dtypes[d], &layouts[k], n, number, "clusters of the pipeline");
    test_done();
}

/* Clusters have long stages if there is a row for each multiprocessor. */
static void many_rows_of_clusters(void **state) {
    layout layouts[] = {{0, 2100, 0, STRIDE_PACKED, 0, 0}, {0, 2100, 3, STRIDE_ONE_MORE, 1, 1}};
    gpuloss_info info;
    unsigned d, k, n, number = 0;
    (void)state;
    REQUIRE_GPU();
    require_ok(gpuloss_get_info(harness_context, &info));
    assert_true(info.multiprocessors <= MOST_ROWS);
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof layouts / sizeof layouts[0]; k++)
            for (n = (d + k) % 4; n < CALLS; n += 4, number++) {
                layouts[k].rows = info.multiprocessors;
                test_call(dtypes[d], &layouts[k], n, number, "many rows of clusters");
            }
    test_done();
}

/* Class weights in the shared memory of a block, up to the most classes, and one class more. Rows begin at every element
 * of a vector, and on lines and between them. */
static void weights_of_the_pipeline(void **state) {
    static const struct {
        layout layout;
        unsigned options;
    } cases[] = {{{9, CLASSES_AS_THEY_ARE, 801, STRIDE_PACKED, 0, 0}, 0},
                 {{9, CLASSES_AS_THEY_ARE, 1000, STRIDE_PACKED, 3, 1}, 0},
                 {{9, CLASSES_AS_THEY_ARE, 4099, STRIDE_PACKED, 0, 0}, 0},
                 {{5, CLASSES_AS_THEY_ARE, 8191, STRIDE_PACKED, 0, 0}, 0},
                 {{5, CLASSES_AS_THEY_ARE, 8192, STRIDE_ONE_MORE, 0, 0}, 0},
                 {{9, CLASSES_AS_THEY_ARE, 8193, STRIDE_PACKED, 0, 0}, 0},
                 {{9, 61, 3, STRIDE_ONE_MORE, 1, 0}, OPTION_ALL},
                 {{9, 300, 5, STRIDE_ONE_MORE, 7, 1}, OPTION_PROBABILITIES}};
    unsigned d, k, writes;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof cases / sizeof cases[0]; k++)
            for (writes = 0; writes < 2; writes++) {
                option_inputs in;
                ce_case c = case_of(dtypes[d], &cases[k].layout,
                                    cases[k].options | OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_IGNORE_INDEX,
                                    LOGITS_NORMAL, k, &in);
                c.outputs = writes ? CE_OUT_LOSS | CE_OUT_GRAD : CE_OUT_LOSS;
                ce_test(&c, "class weights of the pipeline");
                option_inputs_free(&in);
            }
    test_done();
}

/* More class weights, in the stages of the pipeline beside the logits, in rows of whole vectors and others. */
static void staged_weights(void **state) {
    static const layout layouts[] = {{9, CLASSES_AS_THEY_ARE, 8200, STRIDE_PACKED, 0, 0},
                                     {9, CLASSES_AS_THEY_ARE, 8203, STRIDE_16_BYTES, 0, 0}};
    static const call staged[] = {
        {OPTION_WEIGHTS | OPTION_SMOOTHING | OPTION_SOFTCAP, CE_OUT_LOSS, 0, false, false, false},
        {OPTION_WEIGHTS | OPTION_SMOOTHING, CE_OUT_GRAD, 0, true, false, false},
        {OPTION_ALL, READ_ONLY, 0, false, false, false},
        {OPTION_ALL, CE_OUT_GRAD, 0, true, true, false}};
    unsigned d, k, n, number = 0;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof layouts / sizeof layouts[0]; k++)
            for (n = 0; n < sizeof staged / sizeof staged[0]; n++, number++) {
                option_inputs in;
                ce_case c = case_of(dtypes[d], &layouts[k], staged[n].options, LOGITS_NORMAL, number, &in);
                set_call(&c, &staged[n]);
                ce_test(&c, "staged weights");
                option_inputs_free(&in);
            }
    test_done();
}

/* Every type of gradients and of target probabilities, in rows of whole vectors and others; a row has no weight. */
static void types_of_the_pipeline(void **state) {
    static const layout layouts[] = {
        {2, 161, 0, STRIDE_PACKED, 0, 0}, {2, 160, 3, STRIDE_ONE_MORE, 1, 0}, {2, 49, 3, STRIDE_PACKED, 0, 1}};
    unsigned d, k, g, t;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof layouts / sizeof layouts[0]; k++)
            for (g = 0; g < DTYPE_COUNT; g++)
                for (t = 0; t < DTYPE_COUNT; t++) {
                    option_inputs in;
                    ce_case c = case_of(dtypes[d], &layouts[k], OPTION_PROBABILITIES, LOGITS_NORMAL, g + t, &in);
                    c.grad_dtype = all_dtypes[g];
                    option_target_dtype(&c, &in, all_dtypes[t]);
                    ce_test(&c, "types of the pipeline");
                    c.class_weights = in.class_weights;
                    c.row_weights = in.row_weights;
                    in.row_weights[1] = 0;
                    c.label_smoothing = t % 2 ? 0.1 : 0;
                    ce_test(&c, "types of the pipeline");
                    c.target_probabilities = NULL;
                    c.target_dtype = GPULOSS_DTYPE_UNSET;
                    c.class_weights = c.row_weights = NULL;
                    c.label_smoothing = 0;
                    if (t == 0)
                        ce_test(&c, "types of the pipeline");
                    c.softcap = 5;
                    c.label_smoothing = 0.1;
                    if (t == 1)
                        ce_test(&c, "types of the pipeline");
                    option_inputs_free(&in);
                }
    test_done();
}

/* Target probabilities of floats beside logits of 16 bits: rows of one step of a warp, and of several long stages. */
static void floats_beside_16_bits(void **state) {
    static const layout layouts[] = {{40, 60, 0, STRIDE_PACKED, 0, 0},
                                     {40, 128, 0, STRIDE_PACKED, 0, 0},
                                     {40, 129, 3, STRIDE_ONE_MORE, 0, 0},
                                     {40, 700, 0, STRIDE_PACKED, 0, 0}};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < 2; d++)
        for (k = 0; k < sizeof layouts / sizeof layouts[0]; k++) {
            option_inputs in;
            ce_case c =
                case_of(d == 0 ? GPULOSS_F16 : GPULOSS_BF16, &layouts[k], OPTION_PROBABILITIES, LOGITS_NORMAL, k, &in);
            option_target_dtype(&c, &in, GPULOSS_F32);
            c.outputs = CE_OUT_EVERY;
            ce_test(&c, "floats beside 16 bits");
            c.outputs = CE_OUT_LOSS;
            ce_test(&c, "floats beside 16 bits");
            option_inputs_free(&in);
        }
    test_done();
}

/* More steps than there are stages: the ring wraps within a row, and where there is a gradient, steps are copied again. */
static void steps_of_the_pipeline(void **state) {
    static const struct {
        layout layout;
        unsigned options, outputs;
        gpuloss_dtype target_dtype;
    } kinds[] = {
        {{5, 6200, 0, STRIDE_PACKED, 0, 0}, 0, READ_ONLY, GPULOSS_DTYPE_UNSET},
        {{5, 6200, 3, STRIDE_ONE_MORE, 1, 0}, OPTION_SMOOTHING, CE_OUT_LOSS, GPULOSS_DTYPE_UNSET},
        {{5, 1900, 0, STRIDE_PACKED, 0, 0}, OPTION_PROBABILITIES, CE_OUT_EVERY, GPULOSS_F32},
        {{5, 1900, 0, STRIDE_PACKED, 0, 0}, OPTION_PROBABILITIES | OPTION_WEIGHTS, CE_OUT_EVERY, GPULOSS_F32},
        {{40, 500, 0, STRIDE_PACKED, 0, 0}, OPTION_PROBABILITIES | OPTION_ROW_WEIGHTS, CE_OUT_EVERY, GPULOSS_F32},
        {{40, 500, 0, STRIDE_PACKED, 0, 0}, OPTION_PROBABILITIES, CE_OUT_EVERY, GPULOSS_DTYPE_UNSET},
        {{5, 2100, 0, STRIDE_PACKED, 0, 0}, OPTION_PROBABILITIES, CE_OUT_EVERY, GPULOSS_F32},
        {{5, 3500, 3, STRIDE_PACKED, 0, 0}, OPTION_Z_LOSS, CE_OUT_ALL, GPULOSS_DTYPE_UNSET}};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            option_inputs in;
            ce_case c = case_of(dtypes[d], &kinds[k].layout, kinds[k].options, LOGITS_NORMAL, k, &in);
            c.outputs = kinds[k].outputs;
            if (c.target_probabilities && kinds[k].target_dtype != GPULOSS_DTYPE_UNSET)
                option_target_dtype(&c, &in, kinds[k].target_dtype);
            ce_test(&c, "steps of the pipeline");
            option_inputs_free(&in);
        }
    test_done();
}

/* The same with several rows a team, on a device with a single multiprocessor. */
static void many_calls_of_the_pipeline(void **state) {
    static const layout layouts[] = {{67, 49, 0, STRIDE_PACKED, 0, 0}, {67, 48, 3, STRIDE_ONE_MORE, 1, 1}};
    (void)state;
    REQUIRE_GPU();
    test_calls(layouts, sizeof layouts / sizeof layouts[0], "many calls of the pipeline");
    test_done();
}

/* Several rows of a lane until they are finished, and rows by fours, on a device with a single multiprocessor; 1000 classes
 * begin between lines. */
static void many_rows_of_the_pipeline(void **state) {
    static const struct {
        layout layout;
        unsigned options, outputs;
    } kinds[] = {{{600, 48, 0, STRIDE_PACKED, 0, 0}, OPTION_SMOOTHING, CE_OUT_ALL},
                 {{530, 49, 2, STRIDE_PACKED, 0, 0}, OPTION_SOFTCAP | OPTION_IGNORE_INDEX, CE_OUT_EVERY},
                 {{70, CLASSES_AS_THEY_ARE, 1000, STRIDE_PACKED, 0, 0}, OPTION_SMOOTHING | OPTION_WEIGHTS, CE_OUT_ALL},
                 {{70, 513, 0, STRIDE_PACKED, 0, 0}, OPTION_Z_LOSS, CE_OUT_ALL},
                 {{70, 1030, 3, STRIDE_PACKED, 0, 0}, 0, CE_OUT_ALL},
                 /* Most tiles of losses are static: tiles of a row, and of four. */
                 {{600, 48, 0, STRIDE_PACKED, 0, 0}, OPTION_SCALE, CE_OUT_LOSS | CE_OUT_LOSS_ROWS},
                 {{3200, 48, 0, STRIDE_PACKED, 0, 0}, OPTION_SOFTCAP, CE_OUT_LOSS | CE_OUT_LOSS_ROWS}};
    unsigned d, k;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            layout l = kinds[k].layout;
            option_inputs in;
            if (!harness_small && k % DTYPES != d)
                continue; /* these take the reference many seconds */
            l.rows *= harness_small ? 1 : 132;
            ce_case c = case_of(dtypes[d], &l, kinds[k].options, LOGITS_NORMAL, k, &in);
            c.outputs = kinds[k].outputs;
            ce_test(&c, "many rows of the pipeline");
            option_inputs_free(&in);
        }
    test_done();
}

/* Rows of unusual logits: distant, masked, not finite, with a maximum that keeps rising or is a tie. */
static void logits_of_the_pipeline(void **state) {
    static const layout layouts[] = {
        {7, 49, 3, STRIDE_PACKED, 0, 0}, {7, 300, 0, STRIDE_PACKED, 0, 0}, {7, 530, 0, STRIDE_PACKED, 0, 0}};
    static const unsigned sets[] = {0,
                                    OPTION_SMOOTHING,
                                    OPTION_SOFTCAP | OPTION_SMOOTHING,
                                    OPTION_SCALE,
                                    OPTION_PROBABILITIES | OPTION_WEIGHTS,
                                    OPTION_WEIGHTS | OPTION_SMOOTHING};
    unsigned d, k, s, kind;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (k = 0; k < sizeof layouts / sizeof layouts[0]; k++)
            for (s = 0; s < sizeof sets / sizeof sets[0]; s++)
                for (kind = 0; kind < LOGITS_KINDS; kind++) {
                    const double values[] = {(double)NAN, inf, -inf, dtypes[d] == GPULOSS_F16 ? 9984 : 0x1p100};
                    option_inputs in;
                    ce_case c = case_of(dtypes[d], &layouts[k], sets[s], (logits_kind)kind, kind, &in);
                    int64_t i;
                    for (i = 0; kind % 2 == 0 && i < 4; i++)
                        in.x[(i + 1) * c.classes + (7 * (int64_t)kind + 31 * i) % c.classes] = values[i];
                    for (i = 0; kind == LOGITS_WIDE && i < c.classes; i++)
                        in.x[5 * c.classes + i] = -inf;
                    if (kind % 2 == 0) /* a product with log2(e) is beyond floats */
                        in.x[6 * c.classes + 9] = dtypes[d] == GPULOSS_F16 ? -65504 : -0x1.8p127;
                    c.outputs &= ~(unsigned)(CE_OUT_Z_LOSS | CE_OUT_Z_LOSS_ROWS);
                    c.reduction = kind % 4 == 2 ? GPULOSS_NONE : GPULOSS_SUM;
                    ce_test(&c, "logits of the pipeline");
                    option_inputs_free(&in);
                }
    test_done();
}

/* Doubles far from 0, to which exponentials are relative at first: below it, above it, and both in a row. In one row of each
 * kind the first vectors of all threads are masked. */
static double far_from_0(int64_t row, int64_t i, int64_t classes) {
    static const double begins[] = {-5000, -700, -690, -300, 12, 5000, 1e8, -1e8};
    const double last = 0.25 * (double)(i % 37);
    const int64_t kinds = sizeof begins / sizeof begins[0];
    if (row >= kinds && i < classes / 2)
        return -inf;
    if (row == kinds - 1 || row == 2 * kinds - 1) /* each vector has a new maximum */
        return -1e4 + 11 * (double)(i / 2);
    return begins[row % kinds] * (row % 2 == 0 || i < classes / 2 ? 1 : -0.5) + last;
}

static void doubles_far_from_0(void **state) {
    static const layout layouts[] = {{16, CLASSES_AS_THEY_ARE, 21, STRIDE_PACKED, 0, 0},
                                     {16, 500, 0, STRIDE_PACKED, 0, 0},
                                     {16, 300, 1, STRIDE_ONE_MORE, 1, 0},
                                     {16, 2500, 0, STRIDE_PACKED, 0, 0}};
    static const unsigned sets[] = {0, OPTION_SMOOTHING, OPTION_WEIGHTS | OPTION_SMOOTHING, OPTION_SCALE,
                                    OPTION_PROBABILITIES};
    size_t k, s;
    (void)state;
    REQUIRE_GPU();
    for (k = 0; k < sizeof layouts / sizeof layouts[0]; k++)
        for (s = 0; s < sizeof sets / sizeof sets[0]; s++) {
            option_inputs in;
            ce_case c = case_of(GPULOSS_F64, &layouts[k], sets[s], LOGITS_NORMAL, (unsigned)s, &in);
            int64_t i;
            for (i = 0; i < c.rows * c.classes; i++)
                in.x[i] = far_from_0(i / c.classes, i % c.classes, c.classes);
            c.outputs &= ~(unsigned)(CE_OUT_Z_LOSS | CE_OUT_Z_LOSS_ROWS);
            c.reduction = GPULOSS_NONE;
            ce_test(&c, "doubles far from 0");
            option_inputs_free(&in);
        }
    test_done();
}

/* The vocabulary in three parts, each of which is for the pipeline. */
static void shards_of_the_pipeline(void **state) {
    static const layout whole = {9, CLASSES_AS_THEY_ARE, 3000, STRIDE_PACKED, 0, 0};
    static const int64_t firsts[] = {0, 1000, 2011};
    static const unsigned sets[] = {0, OPTION_ALL, OPTION_SMOOTHING | OPTION_WEIGHTS, OPTION_SOFTCAP};
    unsigned d, s;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPES; d++)
        for (s = 0; s < sizeof sets / sizeof sets[0]; s++) {
            char text[CE_DESCRIPTION];
            option_inputs in;
            ce_case c = case_of(dtypes[d], &whole, sets[s], LOGITS_NORMAL, s, &in);
            ce_result result;
            report r;
            c.outputs &= ~(unsigned)CE_OUT_GRAD;
            c.shards = 3;
            in.x[4 * c.classes + 1500] = (double)NAN;
            ce_describe(&c, "shards of the pipeline", text, sizeof text);
            r = report_on(text);
            ce_run_sharded(&c, firsts, 3, &result, &r);
            ce_check(&c, &result, &r);
            ce_free(&result);
            option_inputs_free(&in);
            case_done(&r);
        }
    test_done();
}

int run_row_pipeline_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_of_the_pipeline),  cmocka_unit_test(clusters_of_the_pipeline),
        cmocka_unit_test(many_rows_of_clusters),  cmocka_unit_test(weights_of_the_pipeline),
        cmocka_unit_test(staged_weights),         cmocka_unit_test(types_of_the_pipeline),
        cmocka_unit_test(steps_of_the_pipeline),  cmocka_unit_test(many_rows_of_the_pipeline),
        cmocka_unit_test(logits_of_the_pipeline), cmocka_unit_test(doubles_far_from_0),
        cmocka_unit_test(shards_of_the_pipeline), cmocka_unit_test(many_calls_of_the_pipeline),
        cmocka_unit_test(floats_beside_16_bits),
    };
    return cmocka_run_group_tests_name("row pipeline", tests, NULL, NULL);
}
