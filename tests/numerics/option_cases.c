#include "option_cases.h"

#include <math.h>
#include <stdlib.h>

#include "run_common.h"

/* Multiples of 1/64, which every type of results holds: from `low` up, in 128 steps. */
static double *factors(int64_t count, double low, random_source *r) {
    double *values = require_doubles(count);
    int64_t i;
    for (i = 0; i < count; i++)
        values[i] = low + (double)random_below(r, 128) / 64;
    return values;
}

/* Uniform in [0, 1), and every fifth 0. They need not sum to 1. */
static double *probabilities(const ce_case *c, random_source *r) {
    double *t = require_doubles(c->rows * c->classes);
    int64_t i;
    for (i = 0; i < c->rows * c->classes; i++)
        t[i] = i % 5 == 2 ? 0 : dtype_round(ce_target_dtype(c), random_uniform(r, 0, 1));
    return t;
}

static void add_options(ce_case *c, unsigned options, const option_inputs *in) {
    c->class_weights = options & OPTION_WEIGHTS ? in->class_weights : NULL;
    c->row_weights = options & OPTION_ROW_WEIGHTS ? in->row_weights : NULL;
    c->label_smoothing = options & OPTION_SMOOTHING ? 0.1 : 0;
    c->lse_square_scale = options & OPTION_Z_LOSS ? 0.01 : 0;
    c->softcap = options & OPTION_SOFTCAP ? 5 : 0;
    c->logit_scale = options & OPTION_SCALE ? 0.7 : 0;
    c->use_ignore_index = (options & OPTION_IGNORE_INDEX) != 0;
    c->ignore_index = -100;
}

ce_case option_case(gpuloss_dtype dtype, option_shape shape, unsigned options, logits_kind kind, uint64_t seed,
                    option_inputs *in) {
    random_source r = random_from(seed + 5);
    ce_case c = ce_case_of(dtype, shape.rows, shape.classes, NULL, NULL);
    int64_t row, i;
    c.inner = shape.inner;
    c.outputs = CE_OUT_EVERY;
    c.x = in->x = require_doubles(shape.rows * shape.classes);
    make_logits(in->x, shape.rows, shape.classes, kind, dtype, seed);
    c.targets = in->targets = (int64_t *)require_memory((size_t)shape.rows * sizeof *in->targets);
    make_targets(in->targets, shape.rows, shape.classes, seed);
    in->class_weights = factors(shape.classes, 1.0 / 64, &r);
    in->row_weights = factors(shape.rows, -0.5, &r);
    in->t = options & OPTION_PROBABILITIES ? probabilities(&c, &r) : NULL;
    for (i = 3; i < shape.classes; i += 7)
        in->class_weights[i] = 0;
    add_options(&c, options, in);
    for (row = 1; c.use_ignore_index && row < shape.rows; row += 3)
        in->targets[row] = c.ignore_index;
    c.target_probabilities = in->t;
    return c;
}

ce_case option_layout_case(gpuloss_dtype dtype, const option_layout *l, unsigned options, uint64_t seed,
                           option_inputs *in) {
    ce_case c = option_case(dtype, l->shape, options, LOGITS_NORMAL, seed, in);
    c.logits_stride = c.grad_stride = c.targets_stride = c.grad_targets_stride = l->stride;
    c.logits_offset = l->logits_offset;
    c.grad_offset = c.target_offset = c.grad_target_offset = l->offset;
    return c;
}

void option_target_dtype(ce_case *c, option_inputs *in, gpuloss_dtype dtype) {
    int64_t i;
    c->target_dtype = dtype;
    for (i = 0; in->t != NULL && i < c->rows * c->classes; i++)
        in->t[i] = dtype_round(dtype, in->t[i]);
}

void option_inputs_free(option_inputs *in) {
    free(in->x);
    free(in->t);
    free(in->class_weights);
    free(in->row_weights);
    free(in->targets);
}

static const gpuloss_index_type index_types[] = {GPULOSS_I64, GPULOSS_U8, GPULOSS_I16, GPULOSS_I32};

void option_index_type_of_any(ce_case *c, unsigned number) {
    int64_t row, *targets = (int64_t *)(uintptr_t)c->targets;
    for (row = 0; row < c->rows; row++)
        targets[row] = targets[row] == c->ignore_index ? 255 : targets[row] % 255;
    c->ignore_index = 255;
    c->index_type = index_types[number % 4];
}

void option_index_type(ce_case *c, unsigned number) {
    int64_t row, *targets = (int64_t *)(uintptr_t)c->targets;
    c->index_type = index_types[number % 4];
    if (c->index_type == GPULOSS_U8 && c->classes > 255)
        c->index_type = GPULOSS_I16;
    if (c->index_type == GPULOSS_I16 && c->classes > INT16_MAX)
        c->index_type = GPULOSS_I32;
    if (c->index_type != GPULOSS_U8 || !c->use_ignore_index)
        return;
    for (row = 0; row < c->rows; row++)
        if (targets[row] == c->ignore_index)
            targets[row] = 255;
    c->ignore_index = 255;
}

static gpuloss_dtype unset_or(unsigned number) {
    return number % (DTYPE_COUNT + 1) ? all_dtypes[number % (DTYPE_COUNT + 1) - 1] : GPULOSS_DTYPE_UNSET;
}

void option_vary(ce_case *c, unsigned number) {
    int logits = (int)(16 / dtype_size(c->dtype)), grads;
    c->reduction = all_reductions[number % REDUCTION_COUNT];
    c->in_place = number % 5 == 4;
    c->grad_dtype = c->in_place ? GPULOSS_DTYPE_UNSET : unset_or(number / 2);
    c->targets_in_place = c->target_probabilities && number % 7 == 5;
    c->logits_stride = (stride_kind)(number / 2 % STRIDE_KINDS);
    c->grad_stride = (stride_kind)(number / 3 % STRIDE_KINDS);
    c->targets_stride = (stride_kind)(number / 5 % STRIDE_KINDS);
    c->grad_targets_stride = (stride_kind)(number / 7 % STRIDE_KINDS);
    grads = (int)(16 / dtype_size(ce_grad_dtype(c)));
    c->logits_offset = (int)(number / 5) % logits;
    c->grad_offset = (int)(number / 7) % grads;
    c->target_offset = (int)number % 3;
    c->grad_target_offset = (int)(number / 3) % 5;
    c->result_offset = (int)number % 3;
    c->guard = number % 2 ? 256 : 0;
    c->own_workspace = number % 7 == 3;
    if (c->reduction == GPULOSS_MEAN && number % 3 == 1) {
        c->divisor = 2.75;
        c->divisor_on_device = number % 9 == 1;
    }
    if (!c->target_probabilities)
        option_index_type(c, number / 3);
}

/* The logarithms that a forward pass leaves to a backward pass. */
static double *lse_of(const ce_case *c) {
    const int64_t inner = c->inner > 1 ? c->inner : 1;
    double *lse = require_doubles(c->rows);
    int64_t row, i;
    for (row = 0; row < c->rows; row++) {
        const double *x = c->x + row / inner * inner * c->classes + row % inner;
        double row_max = x[0], sum = 0;
        for (i = 1; i < c->classes; i++)
            row_max = fmax(row_max, x[i * inner]);
        for (i = 0; i < c->classes; i++)
            sum += exp(x[i * inner] - row_max);
        lse[row] = (double)(float)(row_max + log(sum));
    }
    return lse;
}

double *option_pass(ce_case *c, unsigned number) {
    double *lse = NULL;
    switch (number % 4) {
    case 0:
        c->outputs = CE_OUT_ALL;
        c->in_place = number % 8 == 0;
        break;
    case 1:
        c->outputs = CE_OUT_ALL & ~(unsigned)CE_OUT_GRAD;
        break;
    case 2:
        c->outputs = CE_OUT_LOSS;
        c->reduction = number % 8 == 2 ? GPULOSS_SUM : GPULOSS_MEAN;
        break;
    default:
        c->outputs = CE_OUT_GRAD | (number % 8 == 3 ? CE_OUT_LOSS : 0u);
        c->lse_in = lse = number % 16 < 8 ? lse_of(c) : NULL;
    }
    return lse;
}
