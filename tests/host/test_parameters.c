/* Each field of a desc of cross-entropy arrives where the kernel reads it, and one that is not given leaves it neutral.
 */
#include "check.h"

static gpuloss_context *context;

static const gpulossi_cross_entropy *cross_entropy(const gpuloss_cross_entropy_desc *d) {
    expect_ok(gpuloss_cross_entropy(context, d, NULL));
    return &last_launch()->parameters.cross_entropy;
}

/* All of the parameters, but for where the scratch lies. */
static void expect_parameters(const gpuloss_cross_entropy_desc *d, gpulossi_cross_entropy want) {
    const gpulossi_cross_entropy *got = cross_entropy(d);
    assert_true(got->rows.scratch != 0);
    want.rows.scratch = got->rows.scratch;
    assert_memory_equal(got, &want, sizeof want);
}

/* 77 rows of 1001 floats, summed, and nothing else ... */
static gpuloss_cross_entropy_desc rows_of_floats(void) {
    gpuloss_cross_entropy_desc d;
    memset(&d, 0, sizeof d);
    d.logits = AT(1);
    d.targets = AT(2);
    d.rows = 77;
    d.classes = 1001;
    d.dtype = GPULOSS_F32;
    d.target_type = GPULOSS_I64;
    d.reduction = GPULOSS_SUM;
    return d;
}

/* ... and what the kernel is given for it. `group`: threads that share a row. `slots`: rows that they take in a row. */
static gpulossi_cross_entropy parameters_of_rows(unsigned group, unsigned slots) {
    gpulossi_cross_entropy p;
    memset(&p, 0, sizeof p);
    p.rows.rows = 77;
    p.rows.classes = p.rows.last_classes = p.total_classes = 1001;
    p.rows.grad_stride = p.logits_stride = p.probabilities_stride = p.grad_probabilities_stride = 1001;
    p.rows.grad_scale = p.rows.divisor = p.logit_scale = 1.0;
    p.rows.group = group;
    p.rows.of.tile_rows = slots;
    p.ignore_index = INT64_MIN;
    p.logits = ADDRESS(1);
    p.targets = ADDRESS(2);
    p.inner = 1;
    p.target_type = GPULOSS_I64;
    p.target_dtype = p.grad_dtype = GPULOSS_F32;
    return p;
}

static void cross_entropy_fields(void **state) {
    gpuloss_cross_entropy_desc d = rows_of_floats();
    gpulossi_cross_entropy p = parameters_of_rows(32, 1);
    (void)state;
    context = new_context();
    d.loss = AT(3), p.rows.loss = ADDRESS(3);
    expect_parameters(&d, p);
    d.logits_stride = p.logits_stride = 1003;
    d.loss_rows = AT(4), p.rows.loss_rows = ADDRESS(4);
    d.lse = AT(5), p.lse = ADDRESS(5);
    d.grad_logits = AT(6), p.rows.grad = ADDRESS(6);
    d.grad_logits_stride = p.rows.grad_stride = 1009;
    d.bad_targets = (int64_t *)AT(7), p.bad_targets = ADDRESS(7);
    d.grad_loss = AT(8), p.rows.grad_loss = ADDRESS(8);
    d.grad_loss_rows = AT(9), p.rows.grad_loss_rows = ADDRESS(9);
    d.ignore_index = p.ignore_index = INT64_MIN + 5;
    d.grad_scale = p.rows.grad_scale = 0.75;
    d.flags = GPULOSS_USE_IGNORE_INDEX | GPULOSS_USE_GRAD_SCALE;
    p.rows.flags = GPULOSSI_IGNORES;
    expect_parameters(&d, p);
    d.lse = NULL, p.lse = 0;
    d.lse_in = AT(5), p.lse_in = ADDRESS(5);
    expect_parameters(&d, p);
    gpuloss_destroy(context);
}

static void cross_entropy_option_fields(void **state) {
    gpuloss_cross_entropy_desc d = rows_of_floats();
    gpulossi_cross_entropy p = parameters_of_rows(32, 1);
    (void)state;
    context = new_context();
    d.class_weights = AT(3), p.class_weights = ADDRESS(3);
    d.row_weights = AT(4), p.row_weights = ADDRESS(4);
    d.z_loss = AT(5), p.z_loss = ADDRESS(5);
    d.z_loss_rows = AT(6), p.z_loss_rows = ADDRESS(6);
    d.argmax = (int64_t *)AT(7), p.argmax = ADDRESS(7);
    d.correct = (int64_t *)AT(8), p.correct = ADDRESS(8);
    d.label_smoothing = p.label_smoothing = 0.125;
    d.lse_square_scale = p.lse_square_scale = 0.25;
    d.logit_scale = p.logit_scale = -0.5;
    d.softcap = p.softcap = 30.0;
    expect_parameters(&d, p);
    d.grad_logits = AT(9), p.rows.grad = ADDRESS(9);
    d.grad_dtype = GPULOSS_BF16, p.grad_dtype = GPULOSS_BF16;
    d.grad_logits_stride = p.rows.grad_stride = 1004;
    d.target_dtype = GPULOSS_F16, p.target_dtype = GPULOSS_F16;
    d.target_type = GPULOSS_I16, p.target_type = GPULOSS_I16;
    d.reduction = GPULOSS_MEAN;
    d.divisor_in = AT(10), p.rows.divisor_in = ADDRESS(10);
    expect_parameters(&d, p);
    d.divisor_in = NULL, p.rows.divisor_in = 0;
    d.divisor = p.rows.divisor = 5.0, p.rows.grad_scale = 1.0 / 5.0;
    expect_parameters(&d, p);
    gpuloss_destroy(context);
}

static void probability_fields(void **state) {
    gpuloss_cross_entropy_desc d = rows_of_floats();
    gpulossi_cross_entropy p = parameters_of_rows(64, 1);
    (void)state;
    context = new_context();
    give_probabilities(&d);
    p.targets = p.target_type = 0;
    p.probabilities = ADDRESS(20);
    d.loss_rows = AT(3), p.rows.loss_rows = ADDRESS(3);
    expect_parameters(&d, p);
    d.target_probabilities_stride = p.probabilities_stride = 1005;
    d.grad_target_probabilities = AT(4), p.grad_probabilities = ADDRESS(4);
    d.grad_target_probabilities_stride = p.grad_probabilities_stride = 1006;
    d.target_dtype = GPULOSS_F64, p.target_dtype = GPULOSS_F64;
    p.rows.group = 32; /* doubles are not in the stages of floats */
    /* There is a gradient, although not one of the logits. */
    d.grad_loss_rows = AT(5), p.rows.grad_loss_rows = ADDRESS(5);
    expect_parameters(&d, p);
    d.grad_logits = AT(6), p.rows.grad = ADDRESS(6);
    expect_parameters(&d, p);
    gpuloss_destroy(context);
}

/* Classes that are not innermost: a stride is from one image to the next. */
static void column_fields(void **state) {
    gpuloss_cross_entropy_desc d = rows_of_floats();
    gpulossi_cross_entropy p = parameters_of_rows(8, 0);
    (void)state;
    context = new_context();
    d.inner = p.inner = 11;
    d.grad_logits = AT(3), p.rows.grad = ADDRESS(3);
    p.logits_stride = p.rows.grad_stride = p.probabilities_stride = p.grad_probabilities_stride = 11 * 1001;
    expect_parameters(&d, p);
    give_probabilities(&d);
    p.targets = p.target_type = 0;
    p.probabilities = ADDRESS(20);
    d.grad_target_probabilities = AT(4), p.grad_probabilities = ADDRESS(4);
    d.logits_stride = p.logits_stride = 11 * 1001 + 1;
    d.grad_logits_stride = p.rows.grad_stride = 11 * 1001 + 2;
    d.target_probabilities_stride = p.probabilities_stride = 11 * 1001 + 3;
    d.grad_target_probabilities_stride = p.grad_probabilities_stride = 11 * 1001 + 4;
    expect_parameters(&d, p);
    gpuloss_destroy(context);
}

static void shard_fields(void **state) {
    gpuloss_cross_entropy_desc d = rows_of_floats();
    gpulossi_cross_entropy p = parameters_of_rows(32, 1);
    (void)state;
    context = new_context();
    d.total_classes = p.total_classes = 5000;
    d.class_offset = p.class_offset = 3999;
    d.shard_rows = (gpuloss_shard_row *)AT(3), p.shard_rows = ADDRESS(3);
    d.bad_targets = (int64_t *)AT(4), p.bad_targets = ADDRESS(4);
    expect_parameters(&d, p);
    d.shard_rows = NULL, p.shard_rows = 0;
    d.lse_in = AT(5), p.lse_in = ADDRESS(5);
    d.grad_logits = AT(6), p.rows.grad = ADDRESS(6);
    expect_parameters(&d, p);
    gpuloss_destroy(context);
}

/* Types that are not given are that of the logits. */
static void types_of_arrays(void **state) {
    static const gpuloss_dtype dtypes[] = {GPULOSS_F32, GPULOSS_F64, GPULOSS_F16, GPULOSS_BF16};
    size_t t;
    (void)state;
    context = new_context();
    for (t = 0; t < 4; t++) {
        gpuloss_cross_entropy_desc d = rows_of_floats();
        const gpulossi_cross_entropy *p;
        d.dtype = dtypes[t];
        d.loss = AT(3);
        d.target_type = GPULOSS_U8;
        p = cross_entropy(&d);
        assert_int_equal(p->grad_dtype, d.dtype);
        assert_int_equal(p->target_dtype, d.dtype);
        assert_int_equal(p->target_type, GPULOSS_U8);
        assert_int_equal((p->rows.flags & GPULOSSI_F64_RESULTS) != 0, d.dtype == GPULOSS_F64);
    }
    gpuloss_destroy(context);
}

int parameter_tests(void) {
    const struct CMUnitTest tests[] = {TEST(cross_entropy_fields), TEST(cross_entropy_option_fields),
                                       TEST(probability_fields),   TEST(column_fields),
                                       TEST(shard_fields),         TEST(types_of_arrays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
