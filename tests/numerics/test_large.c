/* Sizes that only a GPU gets through: many long rows, and more than 2^32 elements. The rows of the inputs repeat a
 * tile, so that the reference needs the tile only. The tile's number of rows is prime, so that a row number without its
 * upper bits meets the wrong row. Every row has a target of its own. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bounds.h"
#include "compare.h"
#include "data.h"
#include "harness.h"
#include "suites.h"

enum { TILE = 61 };

/* First in every test of this file. */
#define REQUIRE_FULL_SIZE()                                                                                            \
    do {                                                                                                               \
        if (!harness_context || harness_small) {                                                                       \
            print_message("skipped: %s\n", harness_context ? "a large shape, left out by --small" : harness_reason()); \
            skip();                                                                                                    \
        }                                                                                                              \
    } while (0)

typedef struct big {
    gpuloss_dtype dtype;
    int64_t rows, classes;
    size_t row_bytes;
    double *tile; /* [TILE, classes] */
} big;

static big big_of(gpuloss_dtype dtype, int64_t rows, int64_t classes) {
    big b;
    b.dtype = dtype;
    b.rows = rows;
    b.classes = classes;
    b.row_bytes = (size_t)classes * dtype_size(dtype);
    b.tile = require_doubles(TILE * classes);
    return b;
}

/* Device memory, or a skipped test where the GPU is too small. */
static void *device_memory(size_t bytes) {
    void *memory = NULL;
    gpuloss_status status = gpuloss_alloc(harness_context, &memory, bytes);
    if (status == GPULOSS_ERROR_OUT_OF_DEVICE_MEMORY) {
        print_message("not enough device memory for %zu bytes\n", bytes);
        skip();
    }
    require_ok(status);
    return memory;
}

static void *upload_tiled(const big *b, const double *tile) {
    size_t tile_bytes = TILE * b->row_bytes, size = dtype_size(b->dtype);
    unsigned char *host = (unsigned char *)require_memory(tile_bytes);
    unsigned char *device = (unsigned char *)device_memory((size_t)b->rows * b->row_bytes);
    int64_t i, row;
    for (i = 0; i < TILE * b->classes; i++)
        dtype_store(b->dtype, host + (size_t)i * size, tile[i]);
    for (row = 0; row < b->rows; row += TILE) {
        int64_t count = b->rows - row < TILE ? b->rows - row : TILE;
        require_ok(gpuloss_upload(harness_context, device + (size_t)row * b->row_bytes, host,
                                  (size_t)count * b->row_bytes, NULL));
    }
    free(host);
    return device;
}

/* The checked rows: the first and last, the rows around 2^31 and 2^32 elements, and some spread over all. */
static bool looked_at(const big *b, int64_t row) {
    int64_t at_31 = (INT64_C(1) << 31) / b->classes, at_32 = (INT64_C(1) << 32) / b->classes;
    return row < 2 || row >= b->rows - 2 || llabs(row - at_31) < 2 || llabs(row - at_32) < 2 || row % 997 == 5;
}

static double *download_row(const big *b, const void *device, int64_t row) {
    size_t size = dtype_size(b->dtype);
    unsigned char *host = (unsigned char *)require_memory(b->row_bytes);
    double *values = require_doubles(b->classes);
    int64_t c;
    require_ok(gpuloss_download(harness_context, host, (const unsigned char *)device + (size_t)row * b->row_bytes,
                                b->row_bytes, NULL));
    for (c = 0; c < b->classes; c++) {
        if (is_poison(host + (size_t)c * size, size))
            fail_msg("row %lld, column %lld was not written", (long long)row, (long long)c);
        values[c] = dtype_load(b->dtype, host + (size_t)c * size);
    }
    free(host);
    return values;
}

static double *download_results(const big *b, const void *device, int64_t count) {
    gpuloss_dtype results = dtype_of_results(b->dtype);
    size_t size = dtype_size(results);
    unsigned char *host = (unsigned char *)require_memory((size_t)count * size);
    double *values = require_doubles(count);
    int64_t i;
    require_ok(gpuloss_download(harness_context, host, device, (size_t)count * size, NULL));
    for (i = 0; i < count; i++)
        values[i] = dtype_load(results, host + (size_t)i * size);
    free(host);
    return values;
}

static void *poisoned(size_t bytes) {
    enum { CHUNK = 1 << 24 };
    unsigned char *device = (unsigned char *)device_memory(bytes);
    unsigned char *host = (unsigned char *)require_memory(CHUNK);
    size_t at;
    fill_bits(host, CHUNK, POISON_BITS);
    for (at = 0; at < bytes; at += CHUNK)
        require_ok(gpuloss_upload(harness_context, device + at, host, bytes - at < CHUNK ? bytes - at : CHUNK, NULL));
    free(host);
    return device;
}

/* The losses of a call: in device memory, and taken back. */
typedef struct losses {
    void *loss, *loss_rows;
    double *got_loss, *got_rows;
} losses;

static losses losses_poisoned(const big *b) {
    size_t size = dtype_size(dtype_of_results(b->dtype));
    losses l = {NULL, NULL, NULL, NULL};
    l.loss = poisoned(size);
    l.loss_rows = poisoned((size_t)b->rows * size);
    return l;
}

static void losses_take(const big *b, losses *l) {
    require_ok(gpuloss_synchronize(harness_context, NULL));
    l->got_loss = download_results(b, l->loss, 1);
    l->got_rows = download_results(b, l->loss_rows, b->rows);
}

static void losses_free(losses *l) {
    require_ok(gpuloss_free(harness_context, l->loss));
    require_ok(gpuloss_free(harness_context, l->loss_rows));
    free(l->got_loss);
    free(l->got_rows);
}

/* The inputs of the check of a cross-entropy, besides the results. */
typedef struct ce_expectation {
    const big *b;
    const int64_t *targets;
    const reference_row *info; /* [TILE] */
    long double s;
} ce_expectation;

static row_bounds bounds_of(const ce_expectation *e, int64_t row) {
    const reference_row *info = &e->info[row % TILE];
    long double y = (long double)e->b->tile[row % TILE * e->b->classes + e->targets[row]];
    return cross_entropy_row_bounds(e->b->dtype, e->b->classes, info, y);
}

static void check_losses(const ce_expectation *e, const double *loss_rows, double loss, report *r) {
    const big *b = e->b;
    gpuloss_dtype results = dtype_of_results(b->dtype);
    long double sum = 0, bounds = 0;
    int64_t row;
    for (row = 0; row < b->rows; row++) {
        const reference_row *info = &e->info[row % TILE];
        long double want =
            info->log_sum + (info->max - (long double)b->tile[row % TILE * b->classes + e->targets[row]]);
        row_bounds bound = bounds_of(e, row);
        sum += want;
        bounds += bound.loss;
        compare_value(r, CE_LOSS_ROWS, b->dtype, results, row, 0, loss_rows[row], want, bound.loss);
    }
    compare_value(r, CE_LOSS, b->dtype, results, 0, 0, loss, sum / (long double)b->rows,
                  reduced_loss_bound(b->dtype, b->rows, bounds, sum, (long double)b->rows, sum / (long double)b->rows));
}

static void check_gradient(const ce_expectation *e, const void *grad, report *r) {
    const big *b = e->b;
    int64_t row, c;
    for (row = 0; row < b->rows; row++) {
        const reference_row *info = &e->info[row % TILE];
        const double *x = b->tile + row % TILE * b->classes;
        row_bounds bounds;
        double *got;
        if (!looked_at(b, row))
            continue;
        bounds = bounds_of(e, row);
        got = download_row(b, grad, row);
        for (c = 0; c < b->classes; c++) {
            int is_target = c == e->targets[row];
            long double p = expl((long double)x[c] - info->max - info->log_sum);
            compare_value(r, CE_GRAD, b->dtype, b->dtype, row, c, got[c], e->s * (p - (is_target ? 1 : 0)),
                          cross_entropy_gradient_bound(b->dtype, info, &bounds, (long double)x[c], p, is_target, e->s));
        }
        free(got);
    }
}

static void run_cross_entropy(gpuloss_dtype dtype, int64_t rows, int64_t classes, bool in_place) {
    big b = big_of(dtype, rows, classes);
    int64_t *targets = (int64_t *)require_memory((size_t)rows * sizeof *targets), row;
    reference_row info[TILE];
    ce_expectation expectation;
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    void *logits, *grad, *device_targets;
    losses l;
    char text[100];
    report r;
    (void)snprintf(text, sizeof text, "cross_entropy %s %lldx%lld%s", dtype_name(dtype), (long long)rows,
                   (long long)classes, in_place ? " in place" : "");
    r = report_on(text);
    make_logits(b.tile, TILE, classes, LOGITS_NORMAL, dtype, 1);
    make_targets(targets, rows, classes, 2);
    for (row = 0; row < TILE; row++)
        reference_softmax(b.tile + row * classes, classes, &info[row]);
    logits = upload_tiled(&b, b.tile);
    grad = in_place ? logits : poisoned((size_t)rows * b.row_bytes);
    device_targets = device_memory((size_t)rows * sizeof *targets);
    require_ok(gpuloss_upload(harness_context, device_targets, targets, (size_t)rows * sizeof *targets, NULL));
    l = losses_poisoned(&b);
    d.logits = logits;
    d.dtype = dtype;
    d.targets = device_targets;
    d.target_type = GPULOSS_I64;
    d.rows = rows;
    d.classes = classes;
    d.loss = l.loss;
    d.loss_rows = l.loss_rows;
    d.grad_logits = grad;
    require_ok(gpuloss_cross_entropy(harness_context, &d, NULL));
    losses_take(&b, &l);
    expectation.b = &b;
    expectation.targets = targets;
    expectation.info = info;
    expectation.s = 1 / (long double)rows;
    check_losses(&expectation, l.got_rows, l.got_loss[0], &r);
    check_gradient(&expectation, grad, &r);
    if (!in_place)
        require_ok(gpuloss_free(harness_context, grad));
    require_ok(gpuloss_free(harness_context, logits));
    require_ok(gpuloss_free(harness_context, device_targets));
    losses_free(&l);
    free(targets);
    free(b.tile);
    case_done(&r);
}

/* Row sums, the whole and chosen rows of the gradient, all from the reference of one tile. */
static void check_kl_div(const big *b, const reference_kl_div *ref, const double *loss_rows, double loss,
                         const void *grad, report *r) {
    gpuloss_dtype results = dtype_of_results(b->dtype);
    long double sum = 0, bounds = 0, row_bound[TILE], n = (long double)b->rows;
    int64_t row, c;
    for (row = 0; row < TILE; row++) {
        long double terms = 0, magnitudes = 0;
        for (c = row * b->classes; c < (row + 1) * b->classes; c++) {
            terms += kl_div_term_bound(b->dtype, ref, ref->input[c], ref->target[c], ref->terms[c]);
            magnitudes += fabsl(ref->terms[c]);
        }
        row_bound[row] = kl_div_row_bound(b->dtype, b->classes, terms, magnitudes, ref->loss_rows[row]);
    }
    for (row = 0; row < b->rows; row++) {
        sum += ref->loss_rows[row % TILE];
        bounds += row_bound[row % TILE];
        compare_value(r, KL_LOSS_ROWS, b->dtype, results, row, 0, loss_rows[row], ref->loss_rows[row % TILE],
                      row_bound[row % TILE]);
        if (looked_at(b, row)) {
            double *got = download_row(b, grad, row);
            for (c = 0; c < b->classes; c++) {
                int64_t i = row % TILE * b->classes + c;
                compare_value(r, KL_GRAD, b->dtype, b->dtype, row, c, got[c], ref->grad[i],
                              kl_div_gradient_bound(b->dtype, ref, ref->target[i], ref->grad[i]));
            }
            free(got);
        }
    }
    compare_value(r, KL_LOSS, b->dtype, results, 0, 0, loss, sum / n,
                  reduced_loss_bound(b->dtype, b->rows, bounds, sum, n, sum / n));
}

static void run_kl_div(gpuloss_dtype dtype, int64_t rows, int64_t classes) {
    big b = big_of(dtype, rows, classes);
    int64_t elements = TILE * classes;
    double *target_tile = require_doubles(elements);
    gpuloss_kl_div_desc d = GPULOSS_KL_DIV_DEFAULTS;
    void *input, *target, *grad;
    losses l;
    reference_kl_div ref;
    char text[100];
    report r;
    (void)snprintf(text, sizeof text, "kl_div %s %lldx%lld", dtype_name(dtype), (long long)rows, (long long)classes);
    r = report_on(text);
    make_distributions(b.tile, target_tile, TILE, classes, DISTRIBUTIONS_RANDOM, GPULOSS_PROBABILITIES,
                       GPULOSS_PROBABILITIES, dtype, 3);
    memset(&ref, 0, sizeof ref);
    ref.rows = TILE;
    ref.classes = classes;
    ref.input = b.tile;
    ref.target = target_tile;
    ref.input_kind = ref.target_kind = GPULOSS_PROBABILITIES;
    ref.reduction = GPULOSS_SUM;
    ref.grad_scale = 1 / (long double)rows;
    ref.loss_rows = require_long_doubles(TILE);
    ref.terms = require_long_doubles(elements);
    ref.grad = require_long_doubles(elements);
    reference_kl_div_run(&ref);
    input = upload_tiled(&b, b.tile);
    target = upload_tiled(&b, target_tile);
    grad = poisoned((size_t)rows * b.row_bytes);
    l = losses_poisoned(&b);
    d.input = input;
    d.target = target;
    d.rows = rows;
    d.classes = classes;
    d.dtype = dtype;
    d.input_kind = d.target_kind = GPULOSS_PROBABILITIES;
    d.loss = l.loss;
    d.loss_rows = l.loss_rows;
    d.grad_input = grad;
    require_ok(gpuloss_kl_div(harness_context, &d, NULL));
    losses_take(&b, &l);
    check_kl_div(&b, &ref, l.got_rows, l.got_loss[0], grad, &r);
    require_ok(gpuloss_free(harness_context, input));
    require_ok(gpuloss_free(harness_context, target));
    require_ok(gpuloss_free(harness_context, grad));
    losses_free(&l);
    free(target_tile);
    free(ref.loss_rows);
    free(ref.terms);
    free(ref.grad);
    free(b.tile);
    case_done(&r);
}

static void many_long_rows(void **state) {
    size_t d;
    (void)state;
    REQUIRE_FULL_SIZE();
    for (d = 0; d < DTYPE_COUNT; d++) {
        run_cross_entropy(all_dtypes[d], 32768, 4096, false);
        run_cross_entropy(all_dtypes[d], 4096, 50257, true);
        run_kl_div(all_dtypes[d], 32768, 4096);
    }
    run_kl_div(GPULOSS_F32, 16384, 16384);
    test_done();
}

/* More rows than any grid has blocks in its second dimension, or a 32-bit count of elements of short rows. */
static void many_short_rows(void **state) {
    (void)state;
    REQUIRE_FULL_SIZE();
    run_cross_entropy(GPULOSS_F32, 5000011, 10, false);
    run_cross_entropy(GPULOSS_BF16, 5000011, 10, true);
    run_kl_div(GPULOSS_F16, 5000011, 10);
    test_done();
}

static void more_than_32_bits_of_elements(void **state) {
    (void)state;
    REQUIRE_FULL_SIZE();
    run_cross_entropy(GPULOSS_BF16, 70000, 65536, false);
    run_cross_entropy(GPULOSS_F16, 70000, 65536, true);
    run_kl_div(GPULOSS_BF16, 70000, 65536);
    test_done();
}

int run_large_tests(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_long_rows),
        cmocka_unit_test(many_short_rows),
        cmocka_unit_test(more_than_32_bits_of_elements),
    };
    return cmocka_run_group_tests_name("large", tests, NULL, NULL);
}
