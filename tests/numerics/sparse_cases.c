#include "sparse_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run_common.h"

const gpuloss_residual sparse_residuals[SPARSE_RESIDUALS] = {GPULOSS_BUCKET, GPULOSS_DROP, GPULOSS_RENORMALIZE};
const sparse_divergence sparse_divergences[SPARSE_DIVERGENCES] = {{GPULOSS_BUCKET, GPULOSS_FORWARD_KL, 0},
                                                                  {GPULOSS_DROP, GPULOSS_JENSEN_SHANNON, 0.5},
                                                                  {GPULOSS_RENORMALIZE, GPULOSS_TOTAL_VARIATION, 0},
                                                                  {GPULOSS_BUCKET, GPULOSS_REVERSE_KL, 0},
                                                                  {GPULOSS_DROP, GPULOSS_FORWARD_KL, 0},
                                                                  {GPULOSS_RENORMALIZE, GPULOSS_JENSEN_SHANNON, 0.3},
                                                                  {GPULOSS_BUCKET, GPULOSS_JENSEN_SHANNON, 0.5},
                                                                  {GPULOSS_DROP, GPULOSS_TOTAL_VARIATION, 0},
                                                                  {GPULOSS_RENORMALIZE, GPULOSS_FORWARD_KL, 0},
                                                                  {GPULOSS_BUCKET, GPULOSS_TOTAL_VARIATION, 0},
                                                                  {GPULOSS_DROP, GPULOSS_JENSEN_SHANNON, 0x1p-20},
                                                                  {GPULOSS_RENORMALIZE, GPULOSS_JENSEN_SHANNON, 0.5},
                                                                  {GPULOSS_BUCKET, GPULOSS_JENSEN_SHANNON, 0.9},
                                                                  {GPULOSS_DROP, GPULOSS_JENSEN_SHANNON, 1 - 0x1p-20},
                                                                  {GPULOSS_RENORMALIZE, GPULOSS_JENSEN_SHANNON, 0},
                                                                  {GPULOSS_BUCKET, GPULOSS_JENSEN_SHANNON, 1},
                                                                  {GPULOSS_BUCKET, GPULOSS_JENSEN_SHANNON, 1 - 0x1p-20},
                                                                  {GPULOSS_BUCKET, GPULOSS_JENSEN_SHANNON, 0x1p-20}};

void sparse_take(sparse_case *c, unsigned number) {
    const sparse_divergence *of = &sparse_divergences[number % SPARSE_DIVERGENCES];
    c->residual = of->residual;
    c->divergence = of->divergence;
    c->beta = of->beta;
}

void sparse_leave(sparse_case *c, gpuloss_residual residual) {
    c->residual = residual;
    if (residual == GPULOSS_BUCKET || (c->divergence != GPULOSS_REVERSE_KL && c->beta < 1))
        return;
    c->divergence = GPULOSS_TOTAL_VARIATION;
    c->beta = 0;
}

const gpuloss_kind sparse_kinds[SPARSE_KINDS] = {GPULOSS_PROBABILITIES, GPULOSS_LOG_PROBABILITIES};
const gpuloss_index_type sparse_index_types[SPARSE_INDEX_TYPES] = {GPULOSS_I64, GPULOSS_U8, GPULOSS_I32, GPULOSS_I16};

sparse_case sparse_case_of(gpuloss_dtype dtype, sparse_shape shape) {
    sparse_case c;
    memset(&c, 0, sizeof c);
    c.dtype = dtype;
    c.index_type = c.label_type = GPULOSS_I64;
    c.value_kind = GPULOSS_PROBABILITIES;
    c.residual = GPULOSS_BUCKET;
    c.reduction = GPULOSS_BATCHMEAN;
    c.rows = shape.rows;
    c.classes = shape.classes;
    c.k = shape.k;
    c.outputs = SPARSE_OUT_ALL;
    c.guard = 256;
    return c;
}

/* The number of classes that an index of this type can name. */
static int64_t reach(gpuloss_index_type type, int64_t classes) {
    int64_t most = type == GPULOSS_U8 ? 256 : type == GPULOSS_I16 ? 32768 : classes;
    return most < classes ? most : classes;
}

/* The first k of a random order of the classes. */
static void make_indices(const sparse_case *c, int64_t *indices, int64_t *order, random_source *r) {
    int64_t count = reach(c->index_type, c->classes), i;
    for (i = 0; i < count; i++)
        order[i] = i;
    for (i = 0; i < c->k; i++) {
        int64_t other = i + random_below(r, count - i), class_there = order[other];
        order[other] = order[i];
        order[i] = class_there;
        indices[i] = class_there;
    }
}

/* A positive probability that is too small for the type must not become 0: that is another case. */
static double stored(const sparse_case *c, double p) {
    gpuloss_dtype dtype = sparse_value_dtype(c);
    double rounded;
    if (c->value_kind == GPULOSS_LOG_PROBABILITIES)
        return dtype_round(dtype, log(p));
    rounded = dtype_round(dtype, p);
    return rounded > 0 ? rounded : dtype_ulp(dtype, 0);
}

static void make_values(const sparse_case *c, double *values, double total, random_source *r) {
    double sum = 0;
    int64_t j;
    for (j = 0; j < c->k; j++) {
        values[j] = exp(2 * random_normal(r));
        sum += values[j];
    }
    for (j = 0; j < c->k; j++)
        values[j] = stored(c, values[j] / sum * total);
}

void sparse_fill(sparse_case *c, logits_kind kind, double total, uint64_t seed, sparse_inputs *in) {
    random_source r = random_from(seed + 9);
    int64_t row, *order = (int64_t *)require_memory((size_t)c->classes * sizeof *order);
    c->logits = in->logits = require_doubles(c->rows * c->classes);
    c->values = in->values = require_doubles(c->rows * c->k);
    c->indices = in->indices = (int64_t *)require_memory((size_t)(c->rows * c->k) * sizeof *in->indices);
    in->row_weights = require_doubles(c->rows);
    in->labels = (int64_t *)require_memory((size_t)c->rows * sizeof *in->labels);
    make_logits(in->logits, c->rows, c->classes, kind, c->dtype, seed);
    for (row = 0; row < c->rows; row++) {
        make_indices(c, in->indices + row * c->k, order, &r);
        make_values(c, in->values + row * c->k, total, &r);
        in->row_weights[row] = (double)(random_below(&r, 128) - 32) / 64;
        in->labels[row] = row % 3 == 1 ? 77 : row % 50;
    }
    free(order);
}

void sparse_inputs_free(sparse_inputs *in) {
    free(in->logits);
    free(in->values);
    free(in->indices);
    free(in->row_weights);
    free(in->labels);
}

void sparse_mask(sparse_case *c, const sparse_inputs *in) {
    c->labels = in->labels;
    c->ignore_index = 77;
}

void sparse_weigh(sparse_case *c, const sparse_inputs *in) {
    c->row_weights = in->row_weights;
}

void sparse_raise_first(const sparse_case *c, const sparse_inputs *in, double largest) {
    int64_t row;
    for (row = 0; row < c->rows; row++)
        in->logits[row * c->classes + in->indices[row * c->k]] = largest;
}

static void vary_layout(sparse_case *c, unsigned number) {
    int logits = (int)(16 / dtype_size(c->dtype));
    c->in_place = number % 5 == 4;
    c->logits_stride = (stride_kind)(number / 2 % STRIDE_KINDS);
    c->values_stride = (stride_kind)(number / 3 % STRIDE_KINDS);
    c->indices_stride = (stride_kind)(number / 5 % STRIDE_KINDS);
    c->grad_stride = (stride_kind)(number / 7 % STRIDE_KINDS);
    c->logits_offset = (int)(number / 5) % logits;
    c->grad_offset = (int)(number / 7) % logits;
    c->indices_offset = (int)number % 3;
    c->values_offset = (int)(number / 3) % 5;
    c->result_offset = (int)number % 3;
    c->guard = number % 2 ? 256 : 0;
    c->own_workspace = number % 7 == 3;
}

void sparse_vary(sparse_case *c, unsigned number) {
    static const double temperatures[] = {0, 1.75, 2, 0.3};
    vary_layout(c, number);
    c->value_dtype = number / 2 % 5 ? all_dtypes[number / 2 % 5 - 1] : GPULOSS_DTYPE_UNSET;
    c->value_kind = sparse_kinds[number / 3 % SPARSE_KINDS];
    sparse_take(c, number);
    c->reduction = all_reductions[number % REDUCTION_COUNT];
    c->index_type = sparse_index_types[number / 3 % SPARSE_INDEX_TYPES];
    c->label_type = sparse_index_types[number / 5 % SPARSE_INDEX_TYPES];
    if (c->index_type == GPULOSS_U8 && c->k > 256)
        c->index_type = GPULOSS_I16;
    c->temperature = temperatures[number / 5 % 4];
    c->temperature_squared = c->temperature > 0 && number % 3 == 0;
    if (c->reduction == GPULOSS_MEAN || c->reduction == GPULOSS_BATCHMEAN) {
        c->divisor = number % 5 == 1 ? 2.75 : 0;
        c->divisor_on_device = number % 10 == 1;
    }
}
