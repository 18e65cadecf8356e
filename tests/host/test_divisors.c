/* The divisor of the sum over rows, and calls for which the prepare kernel finds it first. */
#include "check.h"

static gpuloss_context *context;

/* Of one call, see expect_divisor; what the prepare kernel is given is what the launch that follows is given. */
static void expect_division(const gpuloss_cross_entropy_desc *d, unsigned flags, double divisor, double scale,
                            int prepares, int line) {
    fake_launched launched;
    fake.launches = 0;
    expect_ok_(gpuloss_cross_entropy(context, d, stream_number(1)), line);
    expect_divisor(flags, divisor, scale, prepares, line);
    if (!prepares)
        return;
    assert_string_equal(fake.launch[0].entry, PREPARE_KERNEL);
    assert_null(strstr(last_launch()->entry, "prepare"));
    assert_int_equal(fake.launch[0].block, GPULOSSI_BLOCK);
    assert_ptr_equal(fake.launch[0].stream, stream_number(1));
    /* Slots are no matter of the prepare kernel. */
    launched = *last_launch();
    launched.parameters.rows.of.tile_rows = fake.launch[0].parameters.rows.of.tile_rows;
    assert_memory_equal(&fake.launch[0].parameters, &launched.parameters, sizeof launched.parameters);
}
#define DIVIDES(change, flags, divisor, scale, prepares)                                                               \
    d = base;                                                                                                          \
    change;                                                                                                            \
    expect_division(&d, flags, divisor, scale, prepares, __LINE__)

static void without_ignore_index(gpuloss_cross_entropy_desc *d) {
    d->flags &= ~(unsigned)GPULOSS_USE_IGNORE_INDEX;
    d->ignore_index = 0;
}

/* The rows that are not ignored are counted: before a gradient is divided by them, else as the rows go by. */
static void rows_that_are_not_ignored(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    DIVIDES((void)0, BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES(d.loss = NULL, BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES(d.lse_in = AT(6), BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES(d.classes = 1 << 20, BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES(d.inner = 8, BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES(d.label_smoothing = 0.1, BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES((d.flags |= GPULOSS_USE_GRAD_SCALE, d.grad_scale = -3.0), BY_PREPARED, 1.0, -3.0, 1);
    DIVIDES(d.flags |= GPULOSS_USE_GRAD_SCALE, BY_PREPARED, 1.0, 0.0, 1);
    DIVIDES(d.grad_logits = NULL, BY_DATA, 1.0, 1.0, 0);
    DIVIDES((d.grad_logits = NULL, d.inner = 8), BY_DATA, 1.0, 1.0, 0);
    DIVIDES((d.grad_logits = NULL, d.loss = NULL, d.z_loss = AT(6)), BY_DATA, 1.0, 1.0, 0);
    DIVIDES(d.rows = 0, BY_DATA, 1.0, 1.0, 0);
    /* There is nothing to divide: nothing may be summed up in the scratch that nobody takes out of it. */
    DIVIDES((d.grad_logits = d.loss = NULL, d.loss_rows = AT(6)), 0, 1000.0, 1.0 / 1000.0, 0);
    DIVIDES((d.grad_logits = d.loss = NULL, d.loss_rows = AT(6), d.class_weights = AT(7)), 0, 1000.0, 1.0 / 1000.0, 0);
    gpuloss_destroy(context);
}

/* Few rows each block counts for itself, from indices of 4 or 8 bytes. */
static void few_rows(void **state) {
    static const struct {
        gpuloss_index_type type;
        int64_t rows;
        int prepares;
    } calls[] = {{GPULOSS_I64, 1, 0},    {GPULOSS_I64, 4096, 0}, {GPULOSS_I64, 4097, 1}, {GPULOSS_I32, 4096, 0},
                 {GPULOSS_I32, 4097, 1}, {GPULOSS_I16, 1, 1},    {GPULOSS_U8, 1, 1}};
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        DIVIDES((d.target_type = calls[i].type, d.rows = calls[i].rows, d.classes = 9),
                calls[i].prepares ? BY_PREPARED : BY_DATA, 1.0, 1.0, calls[i].prepares);
        DIVIDES((d.target_type = calls[i].type, d.rows = calls[i].rows, d.label_smoothing = 0.1, d.loss = NULL),
                calls[i].prepares ? BY_PREPARED : BY_DATA, 1.0, 1.0, calls[i].prepares);
        DIVIDES((d.target_type = calls[i].type, d.rows = calls[i].rows, d.class_weights = AT(6)), BY_PREPARED, 1.0, 1.0,
                1);
        DIVIDES((d.target_type = calls[i].type, d.rows = calls[i].rows, d.classes = 9, d.class_weights = AT(6)),
                BY_PREPARED, 1.0, 1.0, 1);
    }
    gpuloss_destroy(context);
}

/* A block that has a row to itself counts no more than 8 rows a thread. */
static void few_rows_of_blocks(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    base.target_type = GPULOSS_I64;
    DIVIDES(d.rows = 8 * 128, BY_DATA, 1.0, 1.0, 0);
    assert_int_equal(last_launch()->block, 128);
    DIVIDES(d.rows = 8 * 128 + 1, BY_PREPARED, 1.0, 1.0, 1);
    assert_int_equal(last_launch()->block, 128);
    DIVIDES((d.rows = 8 * 128 + 1, d.grad_logits = NULL), BY_DATA, 1.0, 1.0, 0);
    DIVIDES((d.rows = 8 * 128 + 1, d.divisor = 3.0), 0, 3.0, 1.0 / 3.0, 0);
    gpuloss_destroy(context);
}

static void known_to_the_host(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    DIVIDES(d.reduction = GPULOSS_SUM, 0, 1.0, 1.0, 0);
    DIVIDES(d.reduction = GPULOSS_BATCHMEAN, 0, 1000.0, 1.0 / 1000.0, 0);
    DIVIDES((d.reduction = GPULOSS_NONE, d.loss = NULL), 0, 1.0, 1.0, 0);
    DIVIDES(without_ignore_index(&d), 0, 1000.0, 1.0 / 1000.0, 0);
    DIVIDES((without_ignore_index(&d), d.flags |= GPULOSS_USE_GRAD_SCALE, d.grad_scale = 8.0), 0, 1000.0, 8.0 / 1000.0,
            0);
    /* Of images, their columns. */
    DIVIDES((without_ignore_index(&d), d.inner = 8), 0, 1000.0, 1.0 / 1000.0, 0);
    /* Probabilities ignore no row and weigh none. */
    DIVIDES(give_probabilities(&d), 0, 1000.0, 1.0 / 1000.0, 0);
    DIVIDES((give_probabilities(&d), d.class_weights = AT(6)), 0, 1000.0, 1.0 / 1000.0, 0);
    DIVIDES((give_probabilities(&d), d.reduction = GPULOSS_SUM), 0, 1.0, 1.0, 0);
    gpuloss_destroy(context);
}

/* With class weights the mean is over the weights of the targets, ignored rows or not. */
static void weights_of_targets(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    base.class_weights = AT(6);
    DIVIDES((void)0, BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES(without_ignore_index(&d), BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES((without_ignore_index(&d), d.inner = 8), BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES(d.reduction = GPULOSS_SUM, 0, 1.0, 1.0, 0);
    DIVIDES(d.reduction = GPULOSS_BATCHMEAN, 0, 1000.0, 1.0 / 1000.0, 0);
    /* Without a gradient the kernel of the rows sums them on the way, unless it sums z-losses. */
    DIVIDES(d.grad_logits = NULL, BY_DATA, 1.0, 1.0, 0);
    DIVIDES((without_ignore_index(&d), d.grad_logits = NULL), BY_DATA, 1.0, 1.0, 0);
    DIVIDES((d.grad_logits = NULL, d.lse_square_scale = 1e-4), BY_DATA, 1.0, 1.0, 0);
    DIVIDES((d.grad_logits = NULL, d.z_loss = AT(7)), BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES((d.grad_logits = NULL, d.z_loss_rows = AT(7)), BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES((d.reduction = GPULOSS_SUM, d.grad_logits = NULL), 0, 1.0, 1.0, 0);
    DIVIDES((d.classes = 20, d.grad_logits = NULL), BY_DATA, 1.0, 1.0, 0);
    base.classes = 10000;
    base.label_smoothing = 0.5;
    DIVIDES((without_ignore_index(&d), d.grad_logits = NULL), BY_DATA, 1.0, 1.0, 0);
    DIVIDES(d.grad_logits = NULL, BY_DATA, 1.0, 1.0, 0);
    DIVIDES(d.target_type = GPULOSS_I64, BY_PREPARED, 1.0, 1.0, 1);
    /* No cluster has enough registers for these. */
    DIVIDES((d.classes = 4 * 65537, d.grad_logits = NULL), BY_DATA, 1.0, 1.0, 0);
    gpuloss_destroy(context);
    context = new_context_without_clusters();
    DIVIDES(d.grad_logits = NULL, BY_DATA, 1.0, 1.0, 0);
    gpuloss_destroy(context);
}

static void given_by_the_caller(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    DIVIDES(d.divisor = 7.0, 0, 7.0, 1.0 / 7.0, 0);
    DIVIDES((d.divisor = 7.0, d.class_weights = AT(6)), 0, 7.0, 1.0 / 7.0, 0);
    DIVIDES((d.divisor = 7.0, give_probabilities(&d)), 0, 7.0, 1.0 / 7.0, 0);
    DIVIDES((d.divisor = 7.0, without_ignore_index(&d)), 0, 7.0, 1.0 / 7.0, 0);
    DIVIDES((d.divisor = 0.25, d.flags |= GPULOSS_USE_GRAD_SCALE, d.grad_scale = 3.0), 0, 0.25, 12.0, 0);
    DIVIDES(d.divisor_in = AT(6), 0, 1.0, 1.0, 0);
    assert_int_equal(last_launch()->parameters.rows.divisor_in, (uintptr_t)AT(6));
    DIVIDES((d.divisor_in = AT(6), d.class_weights = AT(7)), 0, 1.0, 1.0, 0);
    DIVIDES((d.divisor_in = AT(6), give_probabilities(&d)), 0, 1.0, 1.0, 0);
    DIVIDES((d.divisor_in = AT(6), without_ignore_index(&d)), 0, 1.0, 1.0, 0);
    assert_int_equal(last_launch()->parameters.rows.divisor_in, (uintptr_t)AT(6));
    gpuloss_destroy(context);
}

/* A gradient from a saved lse goes through no row first, so the sum of the weights that smoothing needs is prepared,
 * whatever the divisor is. */
static void weights_of_all_classes(void **state) {
    gpuloss_cross_entropy_desc base = some_cross_entropy(), d;
    (void)state;
    context = new_context();
    base.reduction = GPULOSS_SUM;
    base.class_weights = AT(6);
    base.lse_in = AT(7);
    base.label_smoothing = 0.1;
    DIVIDES((void)0, 0, 1.0, 1.0, 1);
    DIVIDES((d.reduction = GPULOSS_MEAN, d.divisor = 4.0), 0, 4.0, 0.25, 1);
    DIVIDES((d.reduction = GPULOSS_MEAN, d.divisor_in = AT(8)), 0, 1.0, 1.0, 1);
    DIVIDES(d.reduction = GPULOSS_MEAN, BY_PREPARED, 1.0, 1.0, 1);
    DIVIDES((d.loss = NULL, d.total_classes = 5000), 0, 1.0, 1.0, 1);
    DIVIDES(d.grad_logits = NULL, 0, 1.0, 1.0, 0);
    DIVIDES(d.class_weights = NULL, 0, 1.0, 1.0, 0);
    DIVIDES(d.lse_in = NULL, 0, 1.0, 1.0, 0);
    DIVIDES(d.label_smoothing = 0.0, 0, 1.0, 1.0, 0);
    DIVIDES(give_probabilities(&d), 0, 1.0, 1.0, 0);
    DIVIDES(d.rows = 0, 0, 1.0, 1.0, 0);
    gpuloss_destroy(context);
}

/* A thread of the prepare kernel gets four rows or classes, and there are no more blocks than do some work at once. */
static void grid_of_the_prepare_kernel(void **state) {
    static const struct {
        int64_t rows, classes;
        unsigned grid;
    } shapes[] = {{1, 1, 1},       {1024, 7, 1},    {1025, 7, 2},         {7, 1024, 1},      {7, 1025, 2},
                  {3000, 9000, 9}, {9000, 3000, 9}, {1024 * 528, 2, 528}, {1 << 24, 1, 528}, {1, 1 << 24, 528}};
    size_t i;
    (void)state;
    context = new_context();
    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        gpuloss_cross_entropy_desc d = some_cross_entropy();
        d.rows = shapes[i].rows;
        d.classes = shapes[i].classes;
        fake.launches = 0;
        expect_ok(gpuloss_cross_entropy(context, &d, NULL));
        assert_int_equal(fake.launch[0].grid, shapes[i].grid);
    }
    gpuloss_destroy(context);
}

int divisor_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(rows_that_are_not_ignored), TEST(few_rows),
        TEST(known_to_the_host),         TEST(weights_of_targets),
        TEST(given_by_the_caller),       TEST(weights_of_all_classes),
        TEST(few_rows_of_blocks),        TEST(grid_of_the_prepare_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
