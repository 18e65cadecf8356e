#include "divergence_cases.h"

#include <stdlib.h>

#include "run_common.h"

static const gpuloss_kind kinds[KL_KINDS] = {GPULOSS_PROBABILITIES, GPULOSS_LOG_PROBABILITIES, GPULOSS_LOGITS};
static const struct {
    gpuloss_divergence divergence;
    double beta;
} choices[CHOICES] = {{GPULOSS_FORWARD_KL, 0},      {GPULOSS_REVERSE_KL, 0},       {GPULOSS_JENSEN_SHANNON, 0.5},
                      {GPULOSS_TOTAL_VARIATION, 0}, {GPULOSS_JENSEN_SHANNON, 0.1}, {GPULOSS_JENSEN_SHANNON, 0},
                      {GPULOSS_JENSEN_SHANNON, 1}};

kl_case divergence_case(gpuloss_dtype dtype, gpuloss_dtype target_dtype, divergence_shape shape, unsigned pair,
                        unsigned choice) {
    kl_case c = kl_case_of(dtype, shape.rows, shape.classes, NULL, NULL);
    c.target_dtype = target_dtype;
    c.input_kind = kinds[pair % KL_KINDS];
    c.target_kind = kinds[pair / KL_KINDS % KL_KINDS];
    c.divergence = choices[choice].divergence;
    c.beta = choices[choice].beta;
    c.outputs = KL_OUT_EVERY;
    c.reduction = GPULOSS_MEAN;
    return c;
}

static bool has_kind(const kl_case *c, gpuloss_kind kind) {
    return c->input_kind == kind || c->target_kind == kind;
}

/* The options that are valid for the kinds and the divergence. */
static unsigned possible(const kl_case *c, unsigned options) {
    bool is_kl = c->divergence == GPULOSS_FORWARD_KL || c->divergence == GPULOSS_REVERSE_KL;
    if (!has_kind(c, GPULOSS_LOGITS))
        options &= ~(unsigned)KL_WITH_TEMPERATURE;
    if (!(options & KL_WITH_TEMPERATURE))
        options &= ~(unsigned)KL_WITH_SQUARE;
    if (!is_kl || !has_kind(c, GPULOSS_PROBABILITIES))
        options &= ~(unsigned)KL_WITH_EPS;
    return options;
}

/* Multiples of 1/64, which every type of results holds, in [-1/2, 3/2). */
static double *row_weights(int64_t rows, random_source *r) {
    double *weights = require_doubles(rows);
    int64_t row;
    for (row = 0; row < rows; row++)
        weights[row] = -0.5 + (double)random_below(r, 128) / 64;
    return weights;
}

/* Every third row is left out, but not a row that is alone. */
static int64_t *labels(const kl_case *c) {
    int64_t row, *to = (int64_t *)require_memory((size_t)c->rows * sizeof *to);
    for (row = 0; row < c->rows; row++)
        to[row] = row % 3 == 1 ? c->ignore_index : row % 100;
    return to;
}

/* A temperature that is a power of two is another case: it rounds nothing. */
void divergence_options(kl_case *c, unsigned options, uint64_t seed, kl_inputs *in) {
    random_source r = random_from(seed + 5);
    options = possible(c, options);
    c->temperature = options & KL_WITH_TEMPERATURE ? (seed % 4 == 3 ? 2 : 1.7) : 0;
    c->temperature_squared = (options & KL_WITH_SQUARE) != 0;
    c->eps = options & KL_WITH_EPS ? 1e-3 : 0;
    c->divisor = options & KL_WITH_DIVISOR ? 2.75 : 0;
    if (options & KL_WITH_ROW_WEIGHTS)
        c->row_weights = in->row_weights = row_weights(c->rows, &r);
    if (options & KL_WITH_LABELS) {
        static const gpuloss_index_type types[] = {GPULOSS_I64, GPULOSS_U8, GPULOSS_I32, GPULOSS_I16};
        c->label_type = types[seed % 4];
        c->ignore_index = c->label_type == GPULOSS_U8 ? 255 : -100;
        c->labels = in->labels = labels(c);
    }
}

static void swap_sides(kl_case *c, kl_inputs *in, distribution_kind kind, uint64_t seed) {
    make_distributions_of_two_types(in->target, in->input, c->rows, c->classes, kind, c->target_kind, c->input_kind,
                                    kl_target_dtype(c), c->dtype, seed);
}

kl_inputs divergence_inputs(kl_case *c, distribution_kind kind, unsigned options, uint64_t seed) {
    kl_inputs in = kl_inputs_new(c, kind, seed);
    if (seed % 2)
        swap_sides(c, &in, kind, seed);
    divergence_options(c, options, seed, &in);
    return in;
}

void divergence_vary(kl_case *c, unsigned number) {
    int inputs = (int)(16 / dtype_size(c->dtype)), targets = (int)(16 / dtype_size(kl_target_dtype(c)));
    c->reduction = all_reductions[number % REDUCTION_COUNT];
    c->in_place = number % 5 == 4;
    c->target_in_place = number % 7 == 5;
    c->input_stride = (stride_kind)(number / 2 % STRIDE_KINDS);
    c->target_stride = (stride_kind)(number / 3 % STRIDE_KINDS);
    c->grad_stride = (stride_kind)(number / 5 % STRIDE_KINDS);
    c->grad_target_stride = (stride_kind)(number / 7 % STRIDE_KINDS);
    c->elements_stride = (stride_kind)(number / 11 % STRIDE_KINDS);
    c->input_offset = (int)(number / 5) % inputs;
    c->target_offset = (int)(number / 2) % targets;
    c->grad_offset = (int)(number / 7) % inputs;
    c->grad_target_offset = (int)(number / 3) % targets;
    c->result_offset = (int)number % 3;
    c->label_offset = (int)number % 2;
    c->guard = number % 2 ? 256 : 0;
    c->own_workspace = number % 7 == 3;
    if (c->reduction != GPULOSS_MEAN && c->reduction != GPULOSS_BATCHMEAN)
        c->divisor = 0;
    c->divisor_on_device = c->divisor > 0 && number % 3 == 1;
}
