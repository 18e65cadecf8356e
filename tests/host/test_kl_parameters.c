/* Each field of a desc of the two divergences arrives where the kernel reads it, and one that is not given leaves it
 * neutral. */
#include "check.h"

static gpuloss_context *context;

/* All of the parameters, but for where the scratch lies. */
static void expect_parameters(const gpuloss_kl_div_desc *d, gpulossi_kl_div want) {
    const gpulossi_kl_div *got;
    expect_ok(gpuloss_kl_div(context, d, NULL));
    got = &last_launch()->parameters.kl_div;
    assert_true(got->rows.scratch != 0);
    want.rows.scratch = got->rows.scratch;
    assert_memory_equal(got, &want, sizeof want);
}

static void expect_sparse_parameters(const gpuloss_kl_div_sparse_desc *d, gpulossi_kl_div_sparse want) {
    const gpulossi_kl_div_sparse *got;
    expect_ok(gpuloss_kl_div_sparse(context, d, NULL));
    got = &last_launch()->parameters.kl_div_sparse;
    assert_true(got->rows.scratch != 0);
    want.rows.scratch = got->rows.scratch;
    assert_memory_equal(got, &want, sizeof want);
}

/* 77 rows of 1001 floats, summed, ... */
static gpuloss_kl_div_desc rows_of_floats(void) {
    gpuloss_kl_div_desc d;
    memset(&d, 0, sizeof d);
    d.input = AT(1);
    d.target = AT(2);
    d.rows = 77;
    d.classes = 1001;
    d.dtype = GPULOSS_F32;
    d.input_kind = GPULOSS_LOG_PROBABILITIES;
    d.target_kind = GPULOSS_PROBABILITIES;
    d.reduction = GPULOSS_SUM;
    d.loss = AT(3);
    d.loss_rows = AT(4);
    return d;
}

/* ... and what the kernel is given for it. */
static gpulossi_kl_div parameters_of_rows(void) {
    gpulossi_kl_div p;
    memset(&p, 0, sizeof p);
    p.rows.rows = 77;
    p.rows.classes = p.rows.last_classes = 1001;
    p.rows.grad_stride = p.input_stride = p.target_stride = p.elements_stride = p.grad_target_stride = 1001;
    p.rows.grad_scale = p.rows.divisor = p.inverse_temperature = p.factor = 1.0;
    p.rows.group = 64;
    p.inner = 1;
    p.rows.loss = ADDRESS(3);
    p.rows.loss_rows = ADDRESS(4);
    p.input = ADDRESS(1);
    p.target = ADDRESS(2);
    p.input_kind = GPULOSS_LOG_PROBABILITIES;
    p.target_kind = GPULOSS_PROBABILITIES;
    p.target_dtype = GPULOSS_F32;
    return p;
}

static void fields_of_the_basic_kernels(void **state) {
    gpuloss_kl_div_desc d = rows_of_floats();
    gpulossi_kl_div p = parameters_of_rows();
    (void)state;
    context = new_context();
    expect_parameters(&d, p);
    d.loss = NULL, p.rows.loss = 0;
    d.input_stride = p.input_stride = 1003;
    d.target_stride = p.target_stride = 1005;
    d.loss_elements = AT(5), p.elements = ADDRESS(5);
    d.loss_elements_stride = p.elements_stride = 1007;
    d.grad_input = AT(6), p.rows.grad = ADDRESS(6);
    d.grad_input_stride = p.rows.grad_stride = 1009;
    d.eps = p.eps = 1e-12;
    d.grad_loss = AT(8), p.rows.grad_loss = ADDRESS(8);
    d.grad_loss_rows = AT(9), p.rows.grad_loss_rows = ADDRESS(9);
    d.grad_scale = p.rows.grad_scale = 0.75;
    d.flags = GPULOSS_USE_GRAD_SCALE | GPULOSS_PYTORCH_ZEROS;
    p.rows.flags = GPULOSSI_KEEP_ZERO_NAN;
    expect_parameters(&d, p);
    d.input_stride = p.input_stride = 1004, p.rows.flags |= GPULOSSI_EVEN;
    d.reduction = GPULOSS_MEAN;
    d.divisor_in = AT(10), p.rows.divisor_in = ADDRESS(10);
    expect_parameters(&d, p);
    d.divisor_in = NULL, p.rows.divisor_in = 0;
    d.divisor = p.rows.divisor = 4.0, p.rows.grad_scale = 0.75 / 4.0;
    expect_parameters(&d, p);
    gpuloss_destroy(context);
}

/* With `inner` a stride is from one image to the next. A target that is shared has none. */
static void fields_of_columns_and_shared_targets(void **state) {
    gpuloss_kl_div_desc d = rows_of_floats();
    gpulossi_kl_div p = parameters_of_rows();
    (void)state;
    context = new_context();
    d.flags = GPULOSS_SHARED_TARGET, p.target_stride = 0;
    expect_parameters(&d, p);
    d.inner = p.inner = 11;
    p.rows.group = 8;
    p.rows.grad_stride = p.input_stride = p.elements_stride = p.grad_target_stride = 11 * 1001;
    expect_parameters(&d, p);
    d.flags = 0, p.target_stride = 11 * 1001;
    expect_parameters(&d, p);
    d.input_stride = p.input_stride = 11 * 1001 + 1;
    d.target_stride = p.target_stride = 11 * 1001 + 2;
    d.loss_elements = AT(5), p.elements = ADDRESS(5);
    d.loss_elements_stride = p.elements_stride = 11 * 1001 + 3;
    d.grad_input = AT(6), p.rows.grad = ADDRESS(6);
    d.grad_input_stride = p.rows.grad_stride = 11 * 1001 + 4;
    d.grad_target = AT(7), p.grad_target = ADDRESS(7);
    d.grad_target_stride = p.grad_target_stride = 11 * 1001 + 5;
    expect_parameters(&d, p);
    gpuloss_destroy(context);
}

/* Cut anew every stride is that of the new rows, of arrays that are there or not. */
static void fields_of_rows_cut_anew(void **state) {
    gpuloss_kl_div_desc d = rows_of_floats();
    gpulossi_kl_div p = parameters_of_rows();
    (void)state;
    context = new_context();
    d.loss_rows = NULL, p.rows.loss_rows = 0;
    d.grad_input_stride = 1002;
    d.loss_elements_stride = 1003;
    p.rows.rows = 10;
    p.rows.classes = p.input_stride = p.target_stride = p.elements_stride = p.rows.grad_stride = 8192;
    p.rows.last_classes = 77 * 1001 - 9 * 8192;
    p.rows.group = 256;
    p.rows.flags = GPULOSSI_EVEN;
    expect_parameters(&d, p);
    d.reduction = GPULOSS_MEAN;
    p.rows.divisor = 77.0 * 1001.0, p.rows.grad_scale = 1.0 / (77.0 * 1001.0);
    expect_parameters(&d, p);
    gpuloss_destroy(context);
}

/* Of 16 bits a tile has four of the new rows if they are only read, but for as many as four blocks a multiprocessor
 * have last. */
static void rows_of_wide_tiles(void **state) {
    static const int64_t classes = 16384;
    gpuloss_kl_div_desc d = rows_of_floats();
    const gpulossi_kl_div *p;
    int64_t blocks, more;
    (void)state;
    context = new_context();
    blocks = 4 * (int64_t)fake.multiprocessors;
    d.loss_rows = NULL, d.loss_elements = NULL, d.grad_input = NULL;
    d.rows = 1;
    for (more = -1; more <= 9; more++) {
        const int64_t wide = more < 4 ? 0 : more / 4;
        d.dtype = GPULOSS_BF16;
        d.classes = (4 * blocks + more) * classes + 5;
        expect_ok(gpuloss_kl_div(context, &d, NULL));
        p = &last_launch()->parameters.kl_div;
        assert_int_equal(p->rows.classes, classes);
        assert_int_equal(p->rows.last_classes, 5);
        assert_int_equal(p->wide_tiles, wide);
        assert_int_equal(p->rows.rows, 4 * blocks + more + 1 - 3 * wide);
        d.grad_input = AT(4);
        expect_ok(gpuloss_kl_div(context, &d, NULL));
        assert_int_equal(last_launch()->parameters.kl_div.wide_tiles, 0);
        assert_int_equal(last_launch()->parameters.kl_div.rows.rows, 4 * blocks + more + 1);
        d.grad_input = NULL, d.loss_elements = AT(5);
        expect_ok(gpuloss_kl_div(context, &d, NULL));
        assert_int_equal(last_launch()->parameters.kl_div.wide_tiles, 0);
        d.loss_elements = NULL;
        d.dtype = GPULOSS_F32;
        expect_ok(gpuloss_kl_div(context, &d, NULL));
        assert_int_equal(last_launch()->parameters.kl_div.wide_tiles, 0);
        assert_int_equal(last_launch()->parameters.kl_div.rows.classes, classes / 2);
    }
    gpuloss_destroy(context);
}

/* The new rows are half as long where they are written, of floats, and of 16 bits where both sides are logarithms. */
static void short_rows_cut_anew(void **state) {
    static const struct {
        gpuloss_dtype dtype;
        gpuloss_kind input, target;
        int64_t read, written;
    } cases[] = {{GPULOSS_F32, GPULOSS_PROBABILITIES, GPULOSS_PROBABILITIES, 8192, 4096},
                 {GPULOSS_F32, GPULOSS_LOG_PROBABILITIES, GPULOSS_PROBABILITIES, 8192, 4096},
                 {GPULOSS_F32, GPULOSS_LOG_PROBABILITIES, GPULOSS_LOG_PROBABILITIES, 8192, 4096},
                 {GPULOSS_F64, GPULOSS_LOG_PROBABILITIES, GPULOSS_LOG_PROBABILITIES, 4096, 4096},
                 {GPULOSS_BF16, GPULOSS_PROBABILITIES, GPULOSS_PROBABILITIES, 16384, 16384},
                 {GPULOSS_BF16, GPULOSS_LOG_PROBABILITIES, GPULOSS_PROBABILITIES, 16384, 16384},
                 {GPULOSS_BF16, GPULOSS_PROBABILITIES, GPULOSS_LOG_PROBABILITIES, 16384, 16384},
                 {GPULOSS_F16, GPULOSS_LOG_PROBABILITIES, GPULOSS_LOG_PROBABILITIES, 16384, 8192}};
    gpuloss_kl_div_desc d = rows_of_floats();
    size_t i;
    (void)state;
    context = new_context();
    d.loss_rows = NULL, d.loss_elements = NULL;
    d.rows = 1, d.classes = 16384 * 64;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        d.dtype = cases[i].dtype;
        d.input_kind = cases[i].input, d.target_kind = cases[i].target;
        d.grad_input = NULL;
        expect_ok(gpuloss_kl_div(context, &d, NULL));
        assert_int_equal(last_launch()->parameters.rows.classes, cases[i].read);
        d.grad_input = AT(4);
        expect_ok(gpuloss_kl_div(context, &d, NULL));
        assert_int_equal(last_launch()->parameters.rows.classes, cases[i].written);
    }
    gpuloss_destroy(context);
}

static void fields_of_options(void **state) {
    gpuloss_kl_div_desc d = rows_of_floats();
    gpulossi_kl_div p = parameters_of_rows();
    (void)state;
    context = new_context();
    d.grad_target = AT(5), p.grad_target = ADDRESS(5);
    /* There is a gradient, although not one of the input. */
    d.grad_loss = AT(6), p.rows.grad_loss = ADDRESS(6);
    d.grad_loss_rows = AT(7), p.rows.grad_loss_rows = ADDRESS(7);
    d.grad_target_stride = p.grad_target_stride = 1010;
    d.target_dtype = GPULOSS_BF16, p.target_dtype = GPULOSS_BF16;
    d.row_weights = AT(8), p.row_weights = ADDRESS(8);
    d.divergence = GPULOSS_JENSEN_SHANNON, p.divergence = GPULOSS_JENSEN_SHANNON;
    d.beta = p.beta = 0.375;
    p.rows.group = 32, p.rows.of.tile_rows = 1; /* in the pipeline */
    expect_parameters(&d, p);
    d.input_kind = GPULOSS_LOGITS, p.input_kind = GPULOSS_LOGITS;
    p.rows.group = 256;
    d.temperature = 4.0, p.inverse_temperature = 0.25;
    expect_parameters(&d, p);
    d.target_kind = GPULOSS_LOGITS, p.target_kind = GPULOSS_LOGITS;
    d.flags = GPULOSS_TEMPERATURE_SQUARED, p.factor = 16.0;
    expect_parameters(&d, p);
    d.input_kind = GPULOSS_PROBABILITIES, p.input_kind = GPULOSS_PROBABILITIES;
    d.divergence = GPULOSS_REVERSE_KL, p.divergence = GPULOSS_REVERSE_KL;
    d.beta = p.beta = 0.0;
    d.eps = p.eps = 0.5;
    expect_parameters(&d, p);
    GIVE_LABELS(&d), p.labels = ADDRESS(21);
    d.label_type = GPULOSS_I16, p.label_type = GPULOSS_I16;
    d.ignore_index = p.ignore_index = INT64_MIN + 5;
    p.rows.flags = GPULOSSI_IGNORES;
    expect_parameters(&d, p);
    d.grad_input = AT(9), p.rows.grad = ADDRESS(9);
    d.reduction = GPULOSS_BATCHMEAN;
    p.rows.flags = GPULOSSI_IGNORES | GPULOSSI_DATA_DIVISOR | GPULOSSI_PREPARED;
    expect_parameters(&d, p);
    d.label_type = GPULOSS_U8, p.label_type = GPULOSS_U8;
    d.ignore_index = p.ignore_index = 0;
    expect_parameters(&d, p);
    gpuloss_destroy(context);
}

static void fields_of_a_sparse_teacher(void **state) {
    gpuloss_kl_div_sparse_desc d;
    gpulossi_kl_div_sparse p;
    (void)state;
    context = new_context();
    memset(&d, 0, sizeof d);
    memset(&p, 0, sizeof p);
    d.logits = AT(1), p.logits = ADDRESS(1);
    d.indices = AT(2), p.indices = ADDRESS(2);
    d.values = AT(3), p.values = ADDRESS(3);
    d.rows = p.rows.rows = 77;
    d.classes = p.rows.classes = p.rows.last_classes = p.rows.grad_stride = p.logits_stride = 1001;
    d.k = p.k = p.indices_stride = p.values_stride = 7;
    d.dtype = GPULOSS_F32, p.value_dtype = GPULOSS_F32;
    d.index_type = GPULOSS_I64;
    d.value_kind = GPULOSS_PROBABILITIES;
    d.residual = GPULOSS_DROP;
    d.reduction = GPULOSS_SUM;
    d.loss = AT(4), p.rows.loss = ADDRESS(4);
    p.rows.grad_scale = p.rows.divisor = p.inverse_temperature = p.factor = 1.0;
    p.rows.group = 32;
    p.rows.of.tile_rows = 1;
    expect_sparse_parameters(&d, p);
    d.logits_stride = p.logits_stride = 1003;
    d.indices_stride = p.indices_stride = 8;
    d.values_stride = p.values_stride = 9;
    d.value_dtype = GPULOSS_F16, p.value_dtype = GPULOSS_F16;
    d.index_type = GPULOSS_I16;
    d.value_kind = GPULOSS_LOG_PROBABILITIES;
    d.residual = GPULOSS_BUCKET;
    d.divergence = GPULOSS_JENSEN_SHANNON, d.beta = p.beta = 0.25;
    d.temperature = 4.0, p.inverse_temperature = 0.25;
    d.row_weights = AT(5), p.row_weights = ADDRESS(5);
    d.loss_rows = AT(6), p.rows.loss_rows = ADDRESS(6);
    d.bad_indices = (int64_t *)AT(7), p.bad_indices = ADDRESS(7);
    expect_sparse_parameters(&d, p);
    d.grad_logits = AT(8), p.rows.grad = ADDRESS(8);
    d.grad_logits_stride = p.rows.grad_stride = 1005;
    d.grad_loss = AT(9), p.rows.grad_loss = ADDRESS(9);
    d.grad_loss_rows = AT(10), p.rows.grad_loss_rows = ADDRESS(10);
    d.flags = GPULOSS_TEMPERATURE_SQUARED | GPULOSS_USE_GRAD_SCALE, p.factor = 16.0;
    d.grad_scale = p.rows.grad_scale = -0.5;
    GIVE_LABELS(&d), p.labels = ADDRESS(21);
    d.label_type = GPULOSS_I32, p.label_type = GPULOSS_I32;
    d.ignore_index = p.ignore_index = INT64_MAX - 5;
    p.rows.flags = GPULOSSI_IGNORES;
    expect_sparse_parameters(&d, p);
    d.reduction = GPULOSS_MEAN;
    d.divisor_in = AT(11), p.rows.divisor_in = ADDRESS(11);
    expect_sparse_parameters(&d, p);
    d.divisor_in = NULL, p.rows.divisor_in = 0;
    d.divisor = p.rows.divisor = 8.0, p.rows.grad_scale = -0.5 / 8.0;
    d.residual = GPULOSS_RENORMALIZE;
    d.label_type = GPULOSS_U8, p.label_type = GPULOSS_U8;
    expect_sparse_parameters(&d, p);
    gpuloss_destroy(context);
}

/* Types that are not given are that of the logits. */
static void what_is_not_given(void **state) {
    size_t t;
    (void)state;
    context = new_context();
    for (t = 0; t < DTYPES; t++) {
        gpuloss_kl_div_desc d = some_kl_div();
        gpuloss_kl_div_sparse_desc sparse = some_kl_div_sparse();
        d.dtype = sparse.dtype = every_dtype[t].dtype;
        expect_ok(gpuloss_kl_div(context, &d, NULL));
        assert_int_equal(last_launch()->parameters.kl_div.target_dtype, d.dtype);
        expect_ok(gpuloss_kl_div_sparse(context, &sparse, NULL));
        assert_int_equal(last_launch()->parameters.kl_div_sparse.value_dtype, d.dtype);
    }
    gpuloss_destroy(context);
}

int kl_parameter_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(fields_of_the_basic_kernels), TEST(fields_of_rows_cut_anew),
        TEST(rows_of_wide_tiles),          TEST(short_rows_cut_anew),
        TEST(fields_of_options),           TEST(fields_of_a_sparse_teacher),
        TEST(what_is_not_given),           TEST(fields_of_columns_and_shared_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
