#include "numbered_cases.h"

#include <math.h>
#include <stdlib.h>

#include "run_common.h"

const unsigned digit_values[DIGITS] = {8, 4, 64, 2, 4, 8, 256, 4, 4, 16, 4, 16, 8, 4, 2, 4, 3, 2, 4, 2, 2, 8, 2};

enum { VALUES_NORMAL, VALUES_SPREAD, VALUES_BROKEN, VALUES_MASKED, VALUES_CONSTANT, VALUES_SUBNORMAL, VALUES_BLOCKED };
enum { WEIGHTS_USUAL, WEIGHTS_SPREAD, WEIGHTS_OF_SOME, WEIGHTS_ZERO };

/* Families of shapes: classes from `low` on, below `high`; rows, or images of columns. */
typedef struct family {
    int64_t rows[4], low, high;
    int64_t inner[8];
} family;
enum { MOST_ELEMENTS = 90000, MOST_DOUBLES = 16000 };
static const family families[] = {
    {{1, 7, 70, 290}, 1, 32, {0}},
    {{5, 130, 290, 520}, 8, 200, {0}},
    {{1, 5, 11, 41}, 200, 1500, {0}},
    {{1, 2, 5, 11}, 1500, 9000, {0}},
    {{1, 2, 3, 4}, 9000, 33000, {0}},
    {{1, 2, 6, 16}, 1, 100, {3, 8, 47, 48, 8198, 16, 8199, 31}},
    {{3, 4, 6, 3}, 2, 60, {344, 352, 345, 104, 343, 346, 347, 1040}}, /* enough columns for every multiprocessor */
    {{700, 1100, 2600, 3400}, 2, 60, {0}},
};

static option_shape shape_of(const unsigned *digit) {
    const family *of = &families[digit[DIGIT_FAMILY]];
    const int64_t width = dtype_width(all_dtypes[digit[DIGIT_DTYPE]]);
    option_shape s = {of->rows[digit[DIGIT_ROWS]], 0, of->inner[digit[DIGIT_INNER]]};
    s.classes = of->low + (of->high - of->low) * digit[DIGIT_CLASSES] / 64 + digit[DIGIT_SEED] % 4;
    if (width == 2 && s.classes > MOST_DOUBLES)
        s.classes /= 2;
    if (digit[DIGIT_WHOLE])
        s.classes = (s.classes + width - 1) / width * width;
    if (s.inner == 0 && s.rows * s.classes > MOST_ELEMENTS)
        s.rows = MOST_ELEMENTS / s.classes;
    if (s.inner > 0)
        s.rows *= s.inner;
    if (s.inner > 0 && s.rows * s.classes > MOST_ELEMENTS)
        s.classes = MOST_ELEMENTS / s.rows > 0 ? MOST_ELEMENTS / s.rows : 1;
    return s;
}

/* Strides and offsets of the logits, their gradient, the targets, and the gradient of these. */
typedef struct layout {
    stride_kind stride[4];
    int offset[4];
} layout;
static const layout layouts[] = {
    {{STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED}, {0, 0, 0, 0}},
    {{STRIDE_16_BYTES, STRIDE_16_BYTES, STRIDE_16_BYTES, STRIDE_16_BYTES}, {0, 0, 0, 0}},
    {{STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED}, {1, 1, 1, 1}},
    {{STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED}, {1, 0, 0, 0}},
    {{STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED}, {0, 1, 1, 1}},
    {{STRIDE_ONE_MORE, STRIDE_ONE_MORE, STRIDE_ONE_MORE, STRIDE_ONE_MORE}, {0, 0, 0, 0}},
    {{STRIDE_PACKED, STRIDE_16_BYTES, STRIDE_PACKED, STRIDE_16_BYTES}, {0, 0, 0, 0}},
    {{STRIDE_16_BYTES, STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED}, {0, 0, 0, 0}},
    {{STRIDE_13_MORE, STRIDE_13_MORE, STRIDE_13_MORE, STRIDE_13_MORE}, {1, 2, 1, 1}},
    {{STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED}, {2, 2, 2, 2}},
    {{STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED}, {2, 0, 2, 0}},
    {{STRIDE_PACKED, STRIDE_PACKED, STRIDE_ONE_MORE, STRIDE_PACKED}, {0, 0, 0, 1}},
    {{STRIDE_16_BYTES, STRIDE_16_BYTES, STRIDE_16_BYTES, STRIDE_16_BYTES}, {0, 0, 4, 4}},
    {{STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED, STRIDE_PACKED}, {0, 4, 0, 0}},
    {{STRIDE_16_BYTES, STRIDE_16_BYTES, STRIDE_16_BYTES, STRIDE_16_BYTES}, {3, 3, 1, 2}},
    {{STRIDE_16_BYTES, STRIDE_ONE_MORE, STRIDE_PACKED, STRIDE_PACKED}, {0, 0, 0, 0}},
};

static void choose_layout(ce_case *c, const unsigned *digit) {
    const layout *of = &layouts[digit[DIGIT_LAYOUT]];
    c->logits_stride = of->stride[0];
    c->grad_stride = of->stride[1];
    c->targets_stride = of->stride[2];
    c->grad_targets_stride = of->stride[3];
    c->logits_offset = of->offset[0];
    c->grad_offset = of->offset[1];
    c->target_offset = of->offset[2];
    c->grad_target_offset = of->offset[3];
    c->result_offset = digit[DIGIT_LAYOUT] > 0 && digit[DIGIT_SEED] % 2;
    if (digit[DIGIT_IN_PLACE] && c->outputs & CE_OUT_GRAD) {
        c->in_place = true;
        c->grad_dtype = c->dtype;
    }
    c->targets_in_place =
        digit[DIGIT_IN_PLACE] && c->target_probabilities != NULL && (c->outputs & CE_OUT_GRAD_TARGETS) != 0;
}

static double *logit(const ce_case *c, const numbered_inputs *in, int64_t row, int64_t k) {
    const int64_t inner = c->inner > 1 ? c->inner : 1;
    return &in->options.x[(row / inner * c->classes + k) * inner + row % inner];
}

/* The size of a row's logits, where rows have very different ones. The losses and their squares stay finite. */
static double spread(const ce_case *c, double x, int64_t number) {
    static const int exponents[] = {0, 1, 20, -20, 60, 100, 119, 10, -90, 30};
    const double limit = c->lse_square_scale > 0 ? 0x1p60 : dtype_max(c->dtype) / 4;
    return fmax(-limit, fmin(limit, ldexp(x, exponents[number % 10] / (c->target_probabilities ? 3 : 1))));
}

/* A logit that all classes have, beyond the range of the fast exponentials. */
static double constant_of(const ce_case *c, unsigned seed) {
    const int exponent = c->dtype == GPULOSS_F16   ? 15
                         : c->dtype == GPULOSS_F64 ? 200
                         : c->lse_square_scale > 0 ? 50
                                                   : 100;
    return ldexp(seed % 2 ? -1 : 1, exponent);
}

static void choose_logit(const ce_case *c, unsigned values, unsigned seed, int64_t row, int64_t k, double *x) {
    const double inf = (double)INFINITY;
    if (values == VALUES_SPREAD)
        *x = dtype_round(c->dtype, spread(c, *x, row + seed));
    if (values == VALUES_MASKED && (k + row) % 5 == 1)
        *x = -inf;
    if (values == VALUES_CONSTANT)
        *x = dtype_round(c->dtype, constant_of(c, seed));
    if (values == VALUES_SUBNORMAL)
        *x = dtype_round(c->dtype, (k + row) % 2 == 0 ? 0 : c->dtype == GPULOSS_F64 ? -720.5 : -95);
    if (values == VALUES_BLOCKED && k / 8 % 3 == seed % 3)
        *x = c->logit_scale < 0 && seed % 2 ? inf : -inf;
}

/* Rows of which all or all but one are masked, rows with a NaN or an infinity, and rows whose target is masked. */
static void break_row(const ce_case *c, const numbered_inputs *in, int64_t row, unsigned seed) {
    const double inf = (double)INFINITY;
    const int64_t kind = (row + seed) % 5, at = (row + seed) % c->classes, y = in->options.targets[row];
    int64_t k;
    for (k = 0; k < c->classes && kind < 2; k++)
        if (kind == 0 || k != at)
            *logit(c, in, row, k) = -inf;
    if (kind == 2)
        *logit(c, in, row, at) = row % 2 ? (double)NAN : inf;
    if (kind == 3)
        *logit(c, in, row, y >= 0 ? y % c->classes : 0) = -inf;
}

static void choose_values(const ce_case *c, const numbered_inputs *in, const unsigned *digit) {
    int64_t row, k;
    for (row = 0; row < c->rows; row++) {
        for (k = 0; k < c->classes; k++)
            choose_logit(c, digit[DIGIT_VALUES], digit[DIGIT_SEED], row, k, logit(c, in, row, k));
        if (digit[DIGIT_VALUES] == VALUES_BROKEN)
            break_row(c, in, row, digit[DIGIT_SEED]);
    }
}

/* Weights of very different sizes, or zeros among them, or nothing else. A product of two very different sizes would
 * leave the range. */
static void choose_weights(const ce_case *c, const numbered_inputs *in, const unsigned *digit) {
    static const int exponents[] = {0, 1, 20, -20, 60, -60, 25}, of_classes[] = {0, -100, 1, 20, 60, -60, 25};
    const unsigned kind =
        digit[DIGIT_VALUES] == VALUES_SPREAD && digit[DIGIT_WEIGHTS] == WEIGHTS_SPREAD ? 0 : digit[DIGIT_WEIGHTS];
    int64_t i;
    for (i = 0; i < c->rows; i++)
        if (kind == WEIGHTS_SPREAD)
            in->options.row_weights[i] = i % 11 == 5 ? 0 : ldexp(i % 2 ? -1.5 : 1, exponents[i % 7]);
        else if (kind == WEIGHTS_OF_SOME)
            in->options.row_weights[i] = i % 3 == 1 ? 1 : 0;
    for (i = 0; i < c->classes; i++)
        if (kind == WEIGHTS_SPREAD && c->row_weights == NULL)
            in->options.class_weights[i] = ldexp(1 + (double)(i % 3) / 4, of_classes[i % 7]);
        else if (kind == WEIGHTS_OF_SOME)
            in->options.class_weights[i] = (double)(i % 2);
        else if (kind == WEIGHTS_ZERO)
            in->options.class_weights[i] = 0;
}

/* The lse that is given. It is above the highest logit, and need not be that of the row. */
static void choose_lse(ce_case *c, numbered_inputs *in, const unsigned *digit) {
    const double scale = c->logit_scale != 0 ? c->logit_scale : 1;
    int64_t row, k;
    if (!digit[DIGIT_LSE] ||
        !(digit[DIGIT_VALUES] == VALUES_NORMAL || (digit[DIGIT_VALUES] > VALUES_BLOCKED && scale == 1)))
        return;
    c->lse_in = in->lse = require_doubles(c->rows);
    for (row = 0; row < c->rows; row++) {
        double highest = -(double)INFINITY;
        for (k = 0; k < c->classes; k++) {
            const double z = *logit(c, in, row, k) * scale;
            highest = fmax(highest, c->softcap > 0 ? c->softcap * tanh(z / c->softcap) : z);
        }
        in->lse[row] = (double)(float)(highest + log((double)c->classes) / 2);
    }
}

static void choose_outputs(ce_case *c, const unsigned *digit) {
    static const unsigned outputs[] = {CE_OUT_EVERY,
                                       CE_OUT_LOSS,
                                       CE_OUT_LOSS | CE_OUT_GRAD,
                                       CE_OUT_LOSS | CE_OUT_GRAD | CE_OUT_GRAD_TARGETS,
                                       CE_OUT_GRAD,
                                       CE_OUT_GRAD | CE_OUT_GRAD_TARGETS,
                                       CE_OUT_LOSS | CE_OUT_LOSS_ROWS,
                                       CE_OUT_LOSS_ROWS | CE_OUT_LSE,
                                       CE_OUT_LOSS | CE_OUT_ARGMAX | CE_OUT_CORRECT,
                                       CE_OUT_GRAD_TARGETS,
                                       CE_OUT_EVERY & ~(unsigned)CE_OUT_GRAD,
                                       CE_OUT_ARGMAX,
                                       CE_OUT_LOSS | CE_OUT_GRAD | CE_OUT_Z_LOSS,
                                       CE_OUT_LSE | CE_OUT_GRAD,
                                       CE_OUT_LOSS | CE_OUT_BAD_TARGETS,
                                       CE_OUT_LOSS | CE_OUT_LOSS_ROWS | CE_OUT_GRAD | CE_OUT_BAD_TARGETS};
    c->reduction = all_reductions[digit[DIGIT_REDUCTION]];
    c->outputs = outputs[digit[DIGIT_OUTPUTS]];
    if (c->reduction == GPULOSS_MEAN && digit[DIGIT_DIVISOR] > 0) {
        c->divisor = 2.75;
        c->divisor_on_device = digit[DIGIT_DIVISOR] == 2;
    }
}

static void choose_upstream(ce_case *c, numbered_inputs *in, unsigned digit) {
    static const double upstream = -0.75;
    int64_t row;
    if ((c->outputs & CE_OUT_GRAD) == 0)
        return;
    if (digit % 2 && c->reduction != GPULOSS_NONE)
        c->grad_loss = &upstream;
    if (digit < 2)
        return;
    c->grad_loss_rows = in->grad_loss_rows = require_doubles(c->rows);
    for (row = 0; row < c->rows; row++)
        in->grad_loss_rows[row] = (double)(row % 5) - 2;
}

static void choose_types(ce_case *c, numbered_inputs *in, const unsigned *digit) {
    static const double softcaps[] = {5, 1000, 30, 0x1p-14};
    c->grad_dtype = all_dtypes[digit[DIGIT_GRAD_DTYPE]];
    if (c->target_probabilities)
        option_target_dtype(c, &in->options, all_dtypes[digit[DIGIT_TYPE]]);
    else if (digit[DIGIT_TYPE] == 1)
        option_index_type_of_any(c, digit[DIGIT_TYPE]);
    else
        option_index_type(c, digit[DIGIT_TYPE]);
    if (c->softcap > 0)
        c->softcap = softcaps[digit[DIGIT_SOFTCAP]];
    if (digit[DIGIT_SIGN])
        c->logit_scale = -c->logit_scale;
}

/* Indices of 8 bits are all classes, or ignored. */
static void take_bad_target(const ce_case *c, const numbered_inputs *in, unsigned digit) {
    if (digit && !c->target_probabilities && c->rows > 2 && c->index_type != GPULOSS_U8)
        in->options.targets[2] = c->index_type == GPULOSS_I16 ? -3 : c->classes + 5;
}

/* The rows in two chunks, each of whole images. A sum is not divided by the rows of a chunk. */
static void choose_chunks(ce_case *c, unsigned digit) {
    const int64_t image = c->inner > 1 ? c->inner : 1;
    if (digit && c->reduction != GPULOSS_BATCHMEAN)
        c->chunk = (c->rows / image + 1) / 2 * image;
}

ce_case numbered_case(uint64_t number, numbered_inputs *in) {
    unsigned digit[DIGITS], i;
    ce_case c;
    for (i = 0; i < DIGITS; number /= digit_values[i], i++)
        digit[i] = (unsigned)(number % digit_values[i]);
    in->lse = in->grad_loss_rows = NULL;
    c = option_case(all_dtypes[digit[DIGIT_DTYPE]], shape_of(digit), digit[DIGIT_OPTIONS],
                    digit[DIGIT_VALUES] > VALUES_BLOCKED ? (logits_kind)digit[DIGIT_SEED] : LOGITS_NORMAL,
                    digit[DIGIT_SEED], &in->options);
    choose_outputs(&c, digit);
    choose_types(&c, in, digit);
    choose_layout(&c, digit);
    choose_weights(&c, in, digit);
    choose_values(&c, in, digit);
    take_bad_target(&c, in, digit[DIGIT_BAD_TARGET]);
    choose_upstream(&c, in, digit[DIGIT_UPSTREAM]);
    choose_lse(&c, in, digit);
    choose_chunks(&c, digit[DIGIT_CHUNKS]);
    if (ce_outputs(&c) == 0)
        c.outputs |= CE_OUT_LOSS_ROWS;
    return c;
}

void numbered_inputs_free(numbered_inputs *in) {
    option_inputs_free(&in->options);
    free(in->lse);
    free(in->grad_loss_rows);
}

void numbered_test(uint64_t number) {
    numbered_inputs in;
    ce_case c = numbered_case(number, &in);
    ce_test(&c, "case of a number");
    numbered_inputs_free(&in);
}
