/* The tables of options and layouts. */
#include "requests.h"

#include <string.h>

/* Beside each option stand the instructions and special functions that the formula in gpuloss.h adds to a logit. A number
 * of a row, or one that goes into a factor of a fused multiplication, adds none. */
const bench_request bench_requests[BENCH_REQUESTS] = {
    [BENCH_PLAIN] = {.name = "plain"},
    /* A fused multiplication sums the weighted logits; another subtracts the weight from the gradient. */
    [BENCH_PUBLISHED] = {.name = "published",
                         .label_smoothing = 0.1,
                         .class_weights = 1,
                         .lse_square_scale = 1e-4,
                         .argmax = 1,
                         .sum = {0, 1.25},
                         .gradient_sweep = {0, 1}},
    /* An addition sums the logits; the gradient's constant goes into its multiplication. */
    [BENCH_SMOOTHING] = {.name = "smoothing", .label_smoothing = 0.1, .sum = {0, 1}},
    /* The weight of the target is a factor of the row. */
    [BENCH_CLASS_WEIGHTS] = {.name = "weights", .class_weights = 1},
    /* A fused multiplication sums the weighted logits; another subtracts the weight from the gradient. */
    [BENCH_SMOOTHING_WEIGHTS] = {.name = "smoothing_weights",
                                 .label_smoothing = 0.1,
                                 .class_weights = 1,
                                 .sum = {0, 1},
                                 .gradient_sweep = {0, 1}},
    /* A factor of the row. */
    [BENCH_ROW_WEIGHTS_ALONE] = {.name = "row_weights", .row_weights = 1},
    /* A term of the row, and a factor of its gradient. */
    [BENCH_Z_LOSS] = {.name = "z_loss", .lse_square_scale = 1e-4},
    /* tanh y is 1 - 2 / (exp 2y + 1): an exponential, a reciprocal, a multiplication, an addition and a fused one. Its
     * derivative 1 - tanh^2 is a fused multiplication, and a factor of the gradient. */
    [BENCH_SOFTCAP] = {.name = "softcap", .softcap = 30, .sum = {2, 5}, .gradient_sweep = {2, 7}},
    /* A factor within the argument of the exponential. */
    [BENCH_LOGIT_SCALE] = {.name = "logit_scale", .logit_scale = 0.5},
    /* The maximum is found anyway: a comparison and a choice for every eight logits. */
    [BENCH_WITH_ARGMAX] = {.name = "argmax", .argmax = 1, .correct = 1, .sum = {0, 0.25}},
    /* A number of the row. */
    [BENCH_WITH_LOSS_ROWS] = {.name = "loss_rows", .loss_rows = 1},
    /* The sum of the above. */
    [BENCH_ALL] = {.name = "all",
                   .label_smoothing = 0.1,
                   .lse_square_scale = 1e-4,
                   .softcap = 30,
                   .logit_scale = 0.5,
                   .class_weights = 1,
                   .row_weights = 1,
                   .argmax = 1,
                   .correct = 1,
                   .loss_rows = 1,
                   .sum = {2, 6.25},
                   .gradient_sweep = {2, 8}},
    /* An addition sums the probabilities, and a fused multiplication their products with the logits; another subtracts the
     * probability from the gradient. Reading them counts besides (floors.c). */
    [BENCH_PROBABILITIES] = {.name = "probabilities", .probabilities = "", .sum = {0, 2}, .gradient_sweep = {0, 1}},
    [BENCH_PROBABILITIES_F32] = {.name = "probabilities_f32",
                                 .probabilities = "f32",
                                 .sum = {0, 2},
                                 .gradient_sweep = {0, 1}},
    /* Another type of the gradient only changes how it is packed and stored (floors.c). */
    [BENCH_GRADIENT_F32] = {.name = "gradient_f32", .gradient = "f32"},
    [BENCH_GRADIENT_BF16] = {.name = "gradient_bf16", .gradient = "bf16"},
    /* An ignored row costs the store of its zeros (floors.c). */
    [BENCH_MASKED_0] = {.name = "masked_0"},
    [BENCH_MASKED_50] = {.name = "masked_50", .ignored = 50},
    [BENCH_MASKED_85] = {.name = "masked_85", .ignored = 85},
    /* Options of the data alone: a student that has nearly learned, one that still learns, and one that has just
     * begun. */
    [BENCH_SIGMA_1_100] = {.name = "sigma_0.01", .closeness = 0.01},
    [BENCH_SIGMA_3_10] = {.name = "sigma_0.3", .closeness = 0.3},
    [BENCH_SIGMA_1] = {.name = "sigma_1", .closeness = 1},
};

/* The cells with odd numbers of classes, or of columns, are packed: their layout is named for its effect on
 * alignment. */
const bench_layout bench_layouts[BENCH_LAYOUTS] = {
    [BENCH_PACKED] = {.name = "packed"},
    [BENCH_SHIFTED] = {.name = "shifted", .shift = 1},
    [BENCH_ODD_ROWS] = {.name = "odd_rows"},
    [BENCH_STRIDE_1] = {.name = "stride_1", .more = 1},
    [BENCH_PADDED] = {.name = "padded", .multiple = 128},
    [BENCH_IN_PLACE] = {.name = "in_place", .in_place = 1},
    [BENCH_ODD_INNER] = {.name = "odd_inner"},
};

const bench_request *bench_request_of(const bench_cell *c) {
    return &bench_requests[c->option];
}

const bench_layout *bench_layout_of(const bench_cell *c) {
    return &bench_layouts[c->layout];
}

const char *bench_option_name(int cell) {
    return bench_request_of(&bench_cells[cell])->name;
}

const char *bench_layout_name(int cell) {
    return bench_layout_of(&bench_cells[cell])->name;
}

int bench_dtype_bytes(const char *dtype) {
    return strcmp(dtype, "f64") == 0 ? 8 : strcmp(dtype, "f32") == 0 ? 4 : 2;
}

int bench_is(const bench_cell *c, const char *loss) {
    return strcmp(c->loss, loss) == 0;
}

int bench_is_pair(const bench_cell *c) {
    return c->pair != NULL;
}

const char *bench_gradient_dtype(const bench_cell *c) {
    const char *given = bench_request_of(c)->gradient;
    return given != NULL ? given : c->dtype;
}

const char *bench_probabilities_dtype(const bench_cell *c) {
    const char *given = bench_request_of(c)->probabilities;
    return given != NULL && *given == 0 ? c->dtype : given;
}

int64_t bench_stride(const bench_cell *c) {
    const bench_layout *layout = bench_layout_of(c);
    int64_t stride = c->classes * c->inner + layout->more;
    if (layout->multiple > 0)
        stride = (stride + layout->multiple - 1) / layout->multiple * layout->multiple;
    return stride;
}

int64_t bench_elements(const bench_cell *c) {
    return c->rows / c->inner * bench_stride(c) + bench_layout_of(c)->shift;
}

int64_t bench_ignored_rows(const bench_cell *c) {
    return c->rows * bench_request_of(c)->ignored / 100;
}
