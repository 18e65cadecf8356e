/* Each field of a desc arrives where the kernel reads it, and a field that is not given leaves it neutral. */
#include "check.h"

#include <math.h>

static gpuloss_context *context;

static const gpulossi_cross_entropy *cross_entropy(const gpuloss_cross_entropy_desc *d) {
    expect_ok(gpuloss_cross_entropy(context, d, NULL));
    return &last_launch()->parameters.cross_entropy;
}

static const gpulossi_kl_div *kl_div(const gpuloss_kl_div_desc *d) {
    expect_ok(gpuloss_kl_div(context, d, NULL));
    return &last_launch()->parameters.kl_div;
}

#define ADDRESS(n) ((uint64_t)(uintptr_t)AT(n))

/* What both descs below have in common. */
static void expect_rows(const gpulossi_rows *rows) {
    assert_int_equal(rows->rows, 77);
    assert_int_equal(rows->classes, 1001);
    assert_int_equal(rows->grad, ADDRESS(6));
    assert_int_equal(rows->grad_stride, 1009);
    assert_int_equal(rows->loss, ADDRESS(3));
    assert_int_equal(rows->loss_rows, ADDRESS(4));
    assert_int_equal(rows->grad_loss, ADDRESS(8));
    assert_int_equal(rows->grad_loss_rows, ADDRESS(9));
}

static void cross_entropy_fields(void **state) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    const gpulossi_cross_entropy *p;
    (void)state;
    context = new_context();
    d.logits = AT(1);
    d.logits_stride = 1003;
    d.targets = AT(2);
    d.rows = 77;
    d.classes = 1001;
    d.ignore_index = INT64_MIN + 5;
    d.loss = AT(3);
    d.loss_rows = AT(4);
    d.lse = AT(5);
    d.grad_logits = AT(6);
    d.grad_logits_stride = 1009;
    d.bad_targets = (int64_t *)AT(7);
    d.grad_scale = 0.75;
    d.flags |= GPULOSS_USE_GRAD_SCALE;
    d.grad_loss = AT(8);
    d.grad_loss_rows = AT(9);
    p = cross_entropy(&d);
    expect_rows(&p->rows);
    assert_true(p->rows.grad_scale == 0.75);
    assert_true(p->rows.scratch != 0);
    assert_int_equal(p->logits, ADDRESS(1));
    assert_int_equal(p->logits_stride, 1003);
    assert_int_equal(p->targets, ADDRESS(2));
    assert_int_equal(p->ignore_index, INT64_MIN + 5);
    assert_int_equal(p->lse, ADDRESS(5));
    assert_int_equal(p->lse_in, 0);
    assert_int_equal(p->bad_targets, ADDRESS(7));
    d.lse = NULL;
    d.lse_in = AT(5);
    p = cross_entropy(&d);
    assert_int_equal(p->lse, 0);
    assert_int_equal(p->lse_in, ADDRESS(5));
    gpuloss_destroy(context);
}

static void cross_entropy_neutral(void **state) {
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    const gpulossi_cross_entropy *p;
    (void)state;
    context = new_context();
    assert_int_equal(d.reduction, GPULOSS_MEAN);
    assert_int_equal(d.flags, GPULOSS_USE_IGNORE_INDEX);
    assert_int_equal(d.ignore_index, -100);
    d.logits = AT(1);
    d.targets = AT(2);
    d.dtype = GPULOSS_F16;
    d.target_type = GPULOSS_I32;
    d.rows = 5;
    d.classes = 9;
    d.lse = AT(3);
    p = cross_entropy(&d);
    assert_int_equal(p->logits_stride, 9);
    assert_int_equal(p->ignore_index, -100);
    assert_int_equal(p->rows.grad, 0);
    assert_int_equal(p->rows.loss, 0);
    assert_int_equal(p->rows.loss_rows, 0);
    assert_int_equal(p->rows.grad_loss, 0);
    assert_int_equal(p->rows.grad_loss_rows, 0);
    assert_int_equal(p->bad_targets, 0);
    assert_int_equal(p->lse_in, 0);
    gpuloss_destroy(context);
}

static void cross_entropy_flags_and_divisors(void **state) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    const gpulossi_cross_entropy *p;
    (void)state;
    context = new_context();
    p = cross_entropy(&d);
    assert_int_equal(p->rows.flags, GPULOSSI_IGNORES | GPULOSSI_DATA_DIVISOR | GPULOSSI_COUNTED | GPULOSSI_EVEN);
    assert_true(p->rows.grad_scale == 1.0);
    d.target_type = GPULOSS_I32;
    d.grad_logits = NULL;
    p = cross_entropy(&d);
    assert_int_equal(p->rows.flags, GPULOSSI_I32_TARGETS | GPULOSSI_IGNORES | GPULOSSI_DATA_DIVISOR | GPULOSSI_EVEN);
    d = some_cross_entropy();
    d.flags = 0;
    d.ignore_index = 0;
    p = cross_entropy(&d);
    assert_int_equal(p->rows.flags, GPULOSSI_EVEN);
    assert_true(p->rows.divisor == 1000.0);
    assert_true(p->rows.grad_scale == 1.0 / 1000.0);
    d.flags = GPULOSS_USE_GRAD_SCALE;
    d.reduction = GPULOSS_BATCHMEAN;
    p = cross_entropy(&d);
    assert_true(p->rows.divisor == 1000.0);
    assert_true(p->rows.grad_scale == 0.0);
    d.grad_scale = -3.0;
    d.reduction = GPULOSS_SUM;
    p = cross_entropy(&d);
    assert_true(p->rows.divisor == 1.0);
    assert_true(p->rows.grad_scale == -3.0);
    d.reduction = GPULOSS_NONE;
    d.loss = NULL;
    d.flags |= GPULOSS_USE_IGNORE_INDEX;
    p = cross_entropy(&d);
    assert_int_equal(p->rows.flags, GPULOSSI_IGNORES | GPULOSSI_EVEN);
    assert_true(p->rows.grad_scale == -3.0);
    d.logits_stride = 1002;
    p = cross_entropy(&d);
    assert_int_equal(p->rows.flags, GPULOSSI_IGNORES);
    gpuloss_destroy(context);
}

static void kl_div_fields(void **state) {
    gpuloss_kl_div_desc d = some_kl_div();
    const gpulossi_kl_div *p;
    (void)state;
    context = new_context();
    d.input = AT(1);
    d.input_stride = 1003;
    d.target = AT(2);
    d.target_stride = 1005;
    d.rows = 77;
    d.classes = 1001;
    d.eps = 1e-12;
    d.loss = AT(3);
    d.loss_rows = AT(4);
    d.loss_elements = AT(5);
    d.loss_elements_stride = 1007;
    d.grad_input = AT(6);
    d.grad_input_stride = 1009;
    d.grad_scale = 0.75;
    d.flags = GPULOSS_USE_GRAD_SCALE | GPULOSS_PYTORCH_ZEROS;
    d.grad_loss = AT(8);
    d.grad_loss_rows = AT(9);
    p = kl_div(&d);
    expect_rows(&p->rows);
    assert_true(p->rows.grad_scale == 0.75 / 77.0);
    assert_true(p->rows.divisor == 77.0);
    assert_true(p->rows.scratch != 0);
    assert_int_equal(p->rows.flags, GPULOSSI_KEEP_ZERO_NAN);
    assert_int_equal(p->input, ADDRESS(1));
    assert_int_equal(p->input_stride, 1003);
    assert_int_equal(p->target, ADDRESS(2));
    assert_int_equal(p->target_stride, 1005);
    assert_int_equal(p->elements, ADDRESS(5));
    assert_int_equal(p->elements_stride, 1007);
    assert_true(p->eps == 1e-12);
    gpuloss_destroy(context);
}

static void kl_div_divisors(void **state) {
    gpuloss_kl_div_desc d = some_kl_div();
    gpuloss_kl_div_desc defaults = GPULOSS_KL_DIV_DEFAULTS;
    const gpulossi_kl_div *p;
    (void)state;
    context = new_context();
    assert_int_equal(defaults.reduction, GPULOSS_BATCHMEAN);
    assert_int_equal(defaults.flags, 0);
    d.classes = 500;
    d.reduction = GPULOSS_MEAN;
    p = kl_div(&d);
    assert_int_equal(p->rows.flags, GPULOSSI_EVEN);
    assert_true(p->rows.divisor == 500000.0);
    assert_true(p->rows.grad_scale == 1.0 / 500000.0);
    d.reduction = GPULOSS_SUM;
    p = kl_div(&d);
    assert_true(p->rows.divisor == 1.0);
    assert_true(p->rows.grad_scale == 1.0);
    d.reduction = GPULOSS_NONE;
    d.loss = NULL;
    p = kl_div(&d);
    assert_true(p->rows.grad_scale == 1.0);
    assert_true(p->eps == 0.0);
    assert_int_equal(p->elements, 0);
    assert_int_equal(p->rows.loss, 0);
    d.input = (const char *)AT(1) + 4;
    p = kl_div(&d);
    assert_int_equal(p->rows.flags, 0);
    gpuloss_destroy(context);
}

/* What is added to a probability is one at most itself; anything else would make the logarithms meaningless. */
static void eps_lies_in_0_to_1(void **state) {
    static const double refused[] = {-1e-300, -1.0, 1.0000000000000002, 1e300, HUGE_VAL, -HUGE_VAL, NAN};
    static const double accepted[] = {0.0, 1e-300, 0.5, 1.0};
    gpuloss_kl_div_desc d = some_kl_div();
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        d.eps = refused[i];
        expect_error(gpuloss_kl_div(context, &d, NULL), GPULOSS_ERROR_INVALID_ARGUMENT, "gpuloss_kl_div", "eps: ");
    }
    assert_int_equal(fake.launches, 0);
    for (i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        d.eps = accepted[i];
        assert_true(kl_div(&d)->eps == accepted[i]);
    }
    gpuloss_destroy(context);
}

int parameter_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(cross_entropy_fields), TEST(cross_entropy_neutral), TEST(cross_entropy_flags_and_divisors),
        TEST(kl_div_fields),        TEST(kl_div_divisors),       TEST(eps_lies_in_0_to_1)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
