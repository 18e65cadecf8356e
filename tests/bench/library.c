/* The calls of gpuloss that are measured. GPULOSS_HEADER: the header to measure, if not this repository's. */
#ifndef GPULOSS_HEADER
#define GPULOSS_HEADER "../../gpuloss.h"
#endif
#define GPULOSS_STATIC
#include GPULOSS_HEADER
#include "data.h"
#include "device.h"
#include "library.h"
#include "pairs.h"
#include "requests.h"

static gpuloss_context *context;

static int check(gpuloss_status status) {
    return status != GPULOSS_OK && bench_fail("%s", gpuloss_last_error());
}

gpuloss_context *bench_context(void) {
    return context;
}

int bench_library_open(void *(*symbol)(void *user, const char *name)) {
    const gpuloss_create_desc desc = {NULL, 0, NULL, symbol, NULL, 0};
    return check(gpuloss_create(&context, &desc));
}

void bench_library_close(void) {
    gpuloss_destroy(context);
}

static gpuloss_dtype dtype_of(const char *name) {
    return strcmp(name, "f32") == 0   ? GPULOSS_F32
           : strcmp(name, "f64") == 0 ? GPULOSS_F64
           : strcmp(name, "f16") == 0 ? GPULOSS_F16
                                      : GPULOSS_BF16;
}

/* An array of a cell, with elements of a type, where its layout begins. */
static void *array(const bench_cell *c, int which, const char *dtype) {
    return (char *)bench_array(which) + bench_layout_of(c)->shift * bench_dtype_bytes(dtype);
}

/* 0 where the array is packed. */
static int64_t stride_of(const bench_cell *c) {
    const int64_t stride = bench_stride(c);
    return stride == c->classes * c->inner ? 0 : stride;
}

static void set_options(gpuloss_cross_entropy_desc *d, const bench_request *r) {
    d->label_smoothing = r->label_smoothing;
    d->lse_square_scale = r->lse_square_scale;
    d->softcap = r->softcap;
    d->logit_scale = r->logit_scale;
    d->class_weights = r->class_weights ? bench_array(BENCH_WEIGHTS) : NULL;
    d->row_weights = r->row_weights ? bench_array(BENCH_ROW_WEIGHTS) : NULL;
}

/* The desc without outputs. */
static gpuloss_cross_entropy_desc describe_cross_entropy(const bench_cell *c) {
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    const char *probabilities = bench_probabilities_dtype(c);
    d.logits = array(c, BENCH_INPUT, c->dtype);
    d.logits_stride = stride_of(c);
    if (probabilities != NULL) {
        d.target_probabilities = array(c, BENCH_TARGET, probabilities);
        d.target_probabilities_stride = stride_of(c);
        d.target_dtype = dtype_of(probabilities);
    } else {
        d.targets = bench_array(BENCH_TARGET);
        d.target_type = GPULOSS_I64;
    }
    d.rows = c->rows;
    d.classes = c->classes;
    d.inner = c->inner;
    d.dtype = dtype_of(c->dtype);
    set_options(&d, bench_request_of(c));
    return d;
}

gpuloss_cross_entropy_desc bench_cross_entropy_desc(int cell) {
    const bench_cell *c = &bench_cells[cell];
    const bench_request *r = bench_request_of(c);
    gpuloss_cross_entropy_desc d = describe_cross_entropy(c);
    if (c->pass == BENCH_BACKWARD) {
        d.lse_in = bench_array(BENCH_LSE);
    } else {
        d.loss = bench_array(BENCH_RESULTS);
        d.correct = r->correct ? (int64_t *)bench_array(BENCH_RESULTS) + 8 : NULL;
        d.argmax = r->argmax ? (int64_t *)bench_array(BENCH_ARGMAX) : NULL;
        d.loss_rows = r->loss_rows ? bench_array(BENCH_LOSS_ROWS) : NULL;
    }
    if (c->pass != BENCH_LOSS) {
        d.grad_dtype = dtype_of(bench_gradient_dtype(c));
        d.grad_logits_stride = stride_of(c);
        d.grad_logits = bench_layout_of(c)->in_place ? array(c, BENCH_INPUT, c->dtype)
                                                     : array(c, BENCH_GRADIENT, bench_gradient_dtype(c));
    }
    return d;
}

static void set_row_options(gpuloss_kl_div_desc *d, const bench_pair *p) {
    d->row_weights = p->row_weights ? bench_array(BENCH_ROW_WEIGHTS) : NULL;
    d->loss_rows = p->loss_rows ? bench_array(BENCH_LOSS_ROWS) : NULL;
    if (p->labels) {
        d->labels = bench_array(BENCH_LABELS);
        d->label_type = GPULOSS_I64;
        d->flags |= GPULOSS_USE_IGNORE_INDEX;
        d->ignore_index = BENCH_IGNORE_INDEX;
    }
}

static gpuloss_divergence divergence_of(const bench_pair *p) {
    static const gpuloss_divergence divergences[] = {GPULOSS_FORWARD_KL, GPULOSS_REVERSE_KL, GPULOSS_JENSEN_SHANNON,
                                                     GPULOSS_TOTAL_VARIATION};
    return divergences[p->divergence];
}

gpuloss_kl_div_desc bench_kl_div_desc(int cell) {
    static const gpuloss_kind kinds[] = {GPULOSS_PROBABILITIES, GPULOSS_LOG_PROBABILITIES, GPULOSS_LOGITS};
    const bench_cell *c = &bench_cells[cell];
    const bench_pair *p = c->pair;
    gpuloss_kl_div_desc d = GPULOSS_KL_DIV_DEFAULTS;
    d.input = bench_array(BENCH_INPUT);
    d.target = bench_array(BENCH_TARGET);
    d.rows = c->rows;
    d.classes = c->classes;
    d.dtype = dtype_of(c->dtype);
    if (*p->target_dtype != 0)
        d.target_dtype = dtype_of(p->target_dtype);
    d.input_kind = kinds[p->input];
    d.target_kind = kinds[p->target];
    d.divergence = divergence_of(p);
    d.beta = p->beta;
    set_row_options(&d, p);
    d.loss = bench_array(BENCH_RESULTS);
    d.grad_input = c->pass == BENCH_LOSS ? NULL : bench_array(BENCH_GRADIENT);
    d.grad_target = bench_wants_grad_target(c) ? bench_array(BENCH_GRAD_TARGET) : NULL;
    return d;
}

static gpuloss_kl_div_sparse_desc kl_div_sparse_desc(int cell) {
    const bench_cell *c = &bench_cells[cell];
    gpuloss_kl_div_sparse_desc d = GPULOSS_KL_DIV_SPARSE_DEFAULTS;
    d.logits = bench_array(BENCH_INPUT);
    d.indices = bench_array(BENCH_TARGET);
    d.values = bench_array(BENCH_VALUES);
    d.rows = c->rows;
    d.classes = c->classes;
    d.k = bench_entries(c);
    d.dtype = dtype_of(c->dtype);
    d.value_dtype = GPULOSS_F32;
    d.index_type = GPULOSS_I64;
    d.value_kind = GPULOSS_PROBABILITIES;
    d.residual = GPULOSS_BUCKET;
    d.divergence = divergence_of(c->pair);
    d.beta = c->pair->beta;
    d.loss = bench_array(BENCH_RESULTS);
    d.grad_logits = c->pass == BENCH_LOSS ? NULL : bench_array(BENCH_GRADIENT);
    return d;
}

int bench_library_call(int cell, void *stream) {
    if (bench_entries(&bench_cells[cell]) > 0) {
        const gpuloss_kl_div_sparse_desc d = kl_div_sparse_desc(cell);
        return check(gpuloss_kl_div_sparse(context, &d, stream));
    } else if (bench_is_pair(&bench_cells[cell])) {
        const gpuloss_kl_div_desc d = bench_kl_div_desc(cell);
        return check(gpuloss_kl_div(context, &d, stream));
    } else {
        const gpuloss_cross_entropy_desc d = bench_cross_entropy_desc(cell);
        return check(gpuloss_cross_entropy(context, &d, stream));
    }
}

int bench_library_save_lse(int cell) {
    gpuloss_cross_entropy_desc d = describe_cross_entropy(&bench_cells[cell]);
    d.lse = bench_array(BENCH_LSE);
    return check(gpuloss_cross_entropy(context, &d, NULL));
}

int bench_kl(int kind, uint64_t input, uint64_t target, int64_t rows, int64_t classes, uint64_t loss) {
    gpuloss_kl_div_desc d = GPULOSS_KL_DIV_DEFAULTS;
    d.input = GPULOSS_PTR(input);
    d.target = GPULOSS_PTR(target);
    d.rows = rows;
    d.classes = classes;
    d.dtype = GPULOSS_F32;
    d.input_kind = d.target_kind = (gpuloss_kind)kind;
    d.loss = GPULOSS_PTR(loss);
    return check(gpuloss_kl_div(context, &d, NULL));
}
