/* Calls of a stream that follow each other without waiting. Each reads the results of earlier calls, also if its blocks
 * start before these calls have ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data.h"
#include "harness.h"
#include "suites.h"

enum { CALLS = 12, FULL_SIZE = 16 /* times the rows of a small run */ };

/* Logits of two sides, that calls write their gradients over. */
typedef struct chain {
    gpuloss_dtype dtype;
    int64_t rows, classes;
    size_t bytes;               /* of a side */
    unsigned char *contents[2]; /* of the sides, at first */
    void *side[2], *targets, *losses;
} chain;

static void *uploaded(const void *contents, size_t bytes) {
    void *device;
    require_ok(gpuloss_alloc(harness_context, &device, bytes));
    require_ok(gpuloss_upload(harness_context, device, contents, bytes, NULL));
    return device;
}

static chain chain_new(gpuloss_dtype dtype, int64_t rows, int64_t classes) {
    const size_t size = dtype_size(dtype);
    double *values = require_doubles(rows * classes);
    int64_t *targets = (int64_t *)require_memory((size_t)rows * sizeof *targets), i;
    chain c;
    int side;
    c.dtype = dtype;
    c.rows = rows;
    c.classes = classes;
    c.bytes = (size_t)(rows * classes) * size;
    make_targets(targets, rows, classes, 3);
    c.targets = uploaded(targets, (size_t)rows * sizeof *targets);
    for (side = 0; side < 2; side++) {
        c.contents[side] = (unsigned char *)require_memory(c.bytes);
        make_logits(values, rows, classes, LOGITS_NORMAL, dtype, (uint64_t)side);
        for (i = 0; i < rows * classes; i++)
            dtype_store(dtype, c.contents[side] + (size_t)i * size, values[i]);
        c.side[side] = uploaded(c.contents[side], c.bytes);
    }
    require_ok(gpuloss_alloc(harness_context, &c.losses, CALLS * sizeof(double)));
    free(values);
    free(targets);
    return c;
}

static void chain_free(chain *c) {
    int side;
    for (side = 0; side < 2; side++) {
        free(c->contents[side]);
        require_ok(gpuloss_free(harness_context, c->side[side]));
    }
    require_ok(gpuloss_free(harness_context, c->targets));
    require_ok(gpuloss_free(harness_context, c->losses));
}

static void *loss_of(const chain *c, int call) {
    return (char *)c->losses + (size_t)call * dtype_size(dtype_of_results(c->dtype));
}

/* Call `call` of a chain: two gradients, then one loss. The factor prevents gradients from becoming ever smaller. */
static gpuloss_status make_call(const chain *c, int call) {
    const double factor = 16.0 * (double)c->rows;
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    if (call % 3 == 2) {
        gpuloss_kl_div_desc kl = GPULOSS_KL_DIV_DEFAULTS;
        kl.input = kl.grad_input = c->side[1];
        kl.target = c->side[0];
        kl.rows = c->rows;
        kl.classes = c->classes;
        kl.dtype = c->dtype;
        kl.input_kind = kl.target_kind = GPULOSS_LOGITS;
        kl.flags |= GPULOSS_USE_GRAD_SCALE;
        kl.grad_scale = factor;
        kl.loss = loss_of(c, call);
        return gpuloss_kl_div(harness_context, &kl, NULL);
    }
    d.logits = c->side[0];
    d.targets = c->targets;
    d.rows = c->rows;
    d.classes = c->classes;
    d.dtype = c->dtype;
    d.target_type = GPULOSS_I64;
    d.flags |= GPULOSS_USE_GRAD_SCALE;
    d.grad_scale = factor;
    d.grad_logits = call % 3 == 0 ? c->side[0] : NULL;
    d.loss = loss_of(c, call);
    return gpuloss_cross_entropy(harness_context, &d, NULL);
}

/* Runs all calls from the same state. Returns the final results. */
static unsigned char *run(const chain *c, bool waits) {
    const size_t losses = CALLS * dtype_size(dtype_of_results(c->dtype));
    unsigned char *end = (unsigned char *)require_memory(losses + 2 * c->bytes);
    int call, side;
    for (side = 0; side < 2; side++)
        require_ok(gpuloss_upload(harness_context, c->side[side], c->contents[side], c->bytes, NULL));
    for (call = 0; call < CALLS; call++) {
        require_ok(make_call(c, call));
        if (waits)
            require_ok(gpuloss_synchronize(harness_context, NULL));
    }
    require_ok(gpuloss_download(harness_context, end, c->losses, losses, NULL));
    for (side = 0; side < 2; side++)
        require_ok(
            gpuloss_download(harness_context, end + losses + (size_t)side * c->bytes, c->side[side], c->bytes, NULL));
    return end;
}

static void compare_runs(gpuloss_dtype dtype, int64_t rows, int64_t classes) {
    chain c = chain_new(dtype, rows, classes);
    const size_t size = dtype_size(dtype_of_results(dtype)), bytes = CALLS * size + 2 * c.bytes;
    const int runs = harness_small ? 1 : 20;
    unsigned char *separate = run(&c, true);
    int i, call;
    for (i = 0; i < runs; i++) {
        unsigned char *in_a_row = run(&c, false);
        for (call = 0; call < CALLS; call++)
            if (memcmp(separate + (size_t)call * size, in_a_row + (size_t)call * size, size) != 0)
                fail_msg("%s, %lld rows, %lld classes: the loss of call %d is another one in a row", dtype_name(dtype),
                         (long long)rows, (long long)classes, call);
        if (memcmp(separate, in_a_row, bytes) != 0)
            fail_msg("%s, %lld rows, %lld classes: a gradient is another one in a row", dtype_name(dtype),
                     (long long)rows, (long long)classes);
        free(in_a_row);
    }
    free(separate);
    chain_free(&c);
}

static void calls_in_a_row(void **state) {
    static const int64_t shapes[][2] = {{1, 10}, {40, 64}, {20, 1000}, {10, 4096}, {3, 20000}};
    unsigned d, i;
    (void)state;
    REQUIRE_GPU();
    for (d = 0; d < DTYPE_COUNT; d++)
        for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            compare_runs(all_dtypes[d], shapes[i][0] * (harness_small || i == 0 ? 1 : FULL_SIZE), shapes[i][1]);
}

int run_stream_tests(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(calls_in_a_row)};
    return cmocka_run_group_tests_name("streams", tests, NULL, NULL);
}
