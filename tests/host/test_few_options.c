/* The kernels without options that take a few options: smoothing, class weights, row weights, a z-loss, and the class of
 * the maximum. */
#include "choice.h"

/* A few options take the kernels of rows without options where these are fast. */
static void rows_with_few_options(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    choice_context = new_context();
    base.grad_logits = NULL;
    base.classes = 100;
    TAKES(d.label_smoothing = 0.1, "packed_smem");
    TAKES(d.row_weights = AT(6), "packed_smem");
    TAKES(d.lse_square_scale = 0.5, "packed_smem");
    TAKES(d.class_weights = AT(6), "packed_smem");
    TAKES((d.class_weights = AT(6), d.row_weights = AT(7), d.lse_square_scale = 0.5), "packed_smem");
    TAKES((d.label_smoothing = 0.1, d.row_weights = AT(6), d.lse_square_scale = 0.5), "packed_smem");
    TAKES((d.label_smoothing = 0.1, d.loss_rows = AT(7), d.lse = AT(8)), "packed_smem");
    TAKES((d.label_smoothing = 0.1, d.class_weights = AT(6)), "packed_smem");
    TAKES((d.lse_square_scale = 0.5, d.argmax = (int64_t *)AT(6)), "packed_smem");
    TAKES(d.correct = (int64_t *)AT(6), "packed_smem");
    /* A gradient and other options take the other schedules. */
    TAKES((d.label_smoothing = 0.1, d.grad_logits = AT(4)), "row_thread");
    TAKES((d.class_weights = AT(6), d.grad_logits = AT(4)), "row_thread");
    TAKES((d.class_weights = AT(6), d.lse_square_scale = 0.5, d.z_loss = AT(7)), "row_thread");
    TAKES((d.label_smoothing = 0.1, d.class_weights = AT(6), d.grad_logits = AT(4)), "row_thread");
    TAKES((d.argmax = (int64_t *)AT(6), d.grad_logits = AT(4)), "row_thread");
    TAKES((d.argmax = (int64_t *)AT(6), d.lse_in = AT(7)), "row_thread");
    TAKES((d.argmax = (int64_t *)AT(6), d.softcap = 2.0), "row_thread");
    TAKES((d.label_smoothing = 0.1, d.logit_scale = 2.0), "row_thread");
    TAKES((d.lse_square_scale = 0.5, d.z_loss = AT(6)), "row_thread");
    TAKES((d.lse_square_scale = 0.5, d.lse_in = AT(6)), "row_thread");
    base.classes = 20;
    TAKES(d.label_smoothing = 0.1, "packed_reg");
    TAKES((d.label_smoothing = 0.1, d.lse_square_scale = 0.5), "packed_reg");
    TAKES(d.class_weights = AT(6), "packed_reg");
    TAKES((d.class_weights = AT(6), d.grad_logits = AT(4)), "row_thread");
    TAKES((d.label_smoothing = 0.1, d.grad_logits = AT(4), d.dtype = GPULOSS_BF16), "packed_reg");
    TAKES((d.label_smoothing = 0.1, d.grad_logits = AT(4), d.dtype = GPULOSS_BF16, d.classes = 23), "packed_reg");
    TAKES((d.label_smoothing = 0.1, d.grad_logits = AT(4), d.dtype = GPULOSS_BF16, d.classes = 24), "row_thread");
    TAKES(d.row_weights = AT(6), "row_thread");
    TAKES((d.row_weights = AT(6), d.classes = 22), "row_thread");
    TAKES((d.row_weights = AT(6), d.classes = 23), "packed_smem");
    TAKES((d.row_weights = AT(6), d.classes = 23, d.dtype = GPULOSS_BF16), "row_thread");
    TAKES((d.row_weights = AT(6), d.classes = 24, d.dtype = GPULOSS_BF16), "packed_smem");
    TAKES((d.label_smoothing = 0.1, d.logits_stride = 21), "row_thread");
    base.classes = 16;
    base.grad_logits = AT(4);
    TAKES(d.class_weights = AT(6), "packed_reg");
    TAKES((d.class_weights = AT(6), d.classes = 17), "row_thread");
    TAKES((d.label_smoothing = 0.1, d.lse_square_scale = 0.5), "packed_reg");
    TAKES((d.label_smoothing = 0.1, d.grad_dtype = GPULOSS_BF16), "row_thread");
    TAKES((d.label_smoothing = 0.1, d.class_weights = AT(6)), "packed_reg");
    TAKES(d.argmax = (int64_t *)AT(6), "packed_reg");
    TAKES((d.argmax = (int64_t *)AT(6), d.classes = 17), "row_thread");
    TAKES((d.label_smoothing = 0.1, d.lse_in = AT(7)), "row_thread");
    TAKES(d.row_weights = AT(6), "row_thread");
    base.grad_logits = NULL;
    base.classes = 4000;
    TAKES(d.label_smoothing = 0.1, "block_rows");
    TAKES(d.class_weights = AT(6), "block_rows");
    TAKES((d.class_weights = AT(6), d.dtype = GPULOSS_BF16), "block_rows");
    TAKES((d.class_weights = AT(6), d.grad_logits = AT(4)), "pipeline");
    TAKES((d.class_weights = AT(6), d.label_smoothing = 0.1), "pipeline");
    TAKES(d.argmax = (int64_t *)AT(6), "pipeline");
    TAKES((d.row_weights = AT(6), d.dtype = GPULOSS_BF16), "block_rows");
    TAKES((d.label_smoothing = 0.1, d.dtype = GPULOSS_BF16), "pipeline");
    TAKES((d.label_smoothing = 0.1, d.logits_stride = 4001), "pipeline");
    TAKES((d.lse_square_scale = 0.5, d.lse_in = AT(6)), "pipeline");
    TAKES((d.label_smoothing = 0.1, d.dtype = GPULOSS_F64), "pipeline");
    base.classes = 600;
    TAKES((d.row_weights = AT(6), d.logits_stride = 604), "pipeline");
    gpuloss_destroy(choice_context);
}

/* The weights of the targets are summed along with a loss. A gradient needs them before. */
static void weights_of_few_options(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    choice_context = new_context();
    base.classes = 10;
    base.class_weights = AT(6);
    base.reduction = GPULOSS_MEAN;
    TAKES((void)0, "packed_reg");
    assert_int_equal(fake.launches, 2);
    assert_true(last_launch()->parameters.rows.flags & GPULOSSI_PREPARED);
    base.grad_logits = NULL;
    TAKES((void)0, "packed_reg");
    assert_int_equal(fake.launches, 1);
    assert_int_equal(last_launch()->module->words[GPULOSSI_CALL_WORD] & GPULOSSI_CE_COUNTS, GPULOSSI_CE_COUNTS);
    TAKES(d.divisor = 3.0, "packed_reg");
    assert_int_equal(last_launch()->module->words[GPULOSSI_CALL_WORD] & GPULOSSI_CE_COUNTS, 0);
    gpuloss_destroy(choice_context);
}

/* Losses of packed rows of 1000 classes of 16 bits. */
static gpuloss_cross_entropy_desc packed_losses(void) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.classes = 1000;
    d.dtype = GPULOSS_BF16;
    d.grad_logits = NULL;
    return d;
}

/* Bytes of a block whose rings are smaller, so that five blocks fit a multiprocessor. */
static void rings_of_few_options(void **state) {
    gpuloss_cross_entropy_desc base = packed_losses(), d;
    (void)state;
    choice_context = new_context();
    TAKES((void)0, "packed_smem");
    assert_int_equal(last_launch()->shared_bytes, 4 * 9728);
    TAKES(d.class_weights = AT(6), "packed_smem");
    assert_int_equal(last_launch()->shared_bytes, 4 * 9600);
    assert_int_equal(last_launch()->parameters.rows.ring_bytes, 9600);
    gpuloss_destroy(choice_context);
}

/* Smoothing with class weights reads vectors of both, or words of both. */
static void alignment_of_class_weights(void **state) {
    gpuloss_cross_entropy_desc base = packed_losses(), d;
    (void)state;
    choice_context = new_context();
    base.label_smoothing = 0.1;
    TAKES(d.class_weights = AT(6), "packed_smem");
    assert_int_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_RAGGED, 0);
    TAKES(d.class_weights = GPULOSS_PTR((uintptr_t)AT(6) + 8), "packed_smem");
    assert_true(last_launch()->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_RAGGED);
    assert_int_equal(last_launch()->parameters.rows.flags & GPULOSSI_EVEN, 0);
    TAKES((d.class_weights = GPULOSS_PTR((uintptr_t)AT(6) + 8), d.label_smoothing = 0.0), "packed_smem");
    assert_int_equal(last_launch()->module->words[GPULOSSI_FORMAT_WORD] & GPULOSSI_FORMAT_RAGGED, 0);
    gpuloss_destroy(choice_context);
}

int few_option_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(rows_with_few_options),
        TEST(weights_of_few_options),
        TEST(rings_of_few_options),
        TEST(alignment_of_class_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
