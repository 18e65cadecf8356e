#include "check.h"

#include <stdio.h>

const some_dtype every_dtype[DTYPES] = {
    {GPULOSS_F32, "f32", 4}, {GPULOSS_F64, "f64", 8}, {GPULOSS_F16, "f16", 2}, {GPULOSS_BF16, "bf16", 2}};

const char *text_dtype(gpuloss_dtype dtype) {
    return dtype == GPULOSS_F16 || dtype == GPULOSS_BF16 ? "any16" : every_dtype[dtype - GPULOSS_F32].name;
}

void expect_module(const char *name, gpuloss_dtype dtype, int line) {
    const fake_launched *l = last_launch();
    /* The conversions of any16 from bf16. */
    const int is_bf16 =
        strstr(l->module->ptx, ", 0xffff0000;") != NULL || strstr(l->module->ptx, "mov.b16 zero, 0;") != NULL;
    char entry[96];
    snprintf(entry, sizeof entry, "gpuloss_%s_%s", name, text_dtype(dtype));
    if (strcmp(l->entry, entry) != 0)
        fail_msg("line %d: %s is launched instead of %s", line, l->entry, entry);
    if (is_bf16 != (dtype == GPULOSS_BF16))
        fail_msg("line %d: %s is specialised for the other type of 16 bits", line, entry);
}

int begin_test(void **state) {
    (void)state;
    fake_reset();
    fake_set_current(&fake.context[2]);
    return 0;
}

int finish_test(void **state) {
    (void)state;
    if (fake.violation[0] != 0)
        print_error("the driver was misused: %s\n", fake.violation);
    if (fake_leaks() != 0)
        print_error("%d things are leaked\n", fake_leaks());
    if (fake.pushes != fake.pops)
        print_error("%d contexts pushed, %d popped\n", fake.pushes, fake.pops);
    if (fake.prepares != 0)
        print_error("%d prepare kernels have run for nothing\n", fake.prepares);
    return fake.violation[0] != 0 || fake_leaks() != 0 || fake.pushes != fake.pops || fake.prepares != 0;
}

gpuloss_context *new_context(void) {
    gpuloss_create_desc desc = fake_desc();
    gpuloss_context *context = NULL;
    expect_ok(gpuloss_create(&context, &desc));
    assert_non_null(context);
    return context;
}

gpuloss_context *new_context_without_clusters(void) {
    fake.has_clusters = 0;
    return new_context();
}

void expect_ok_(gpuloss_status got, int line) {
    if (got != GPULOSS_OK)
        fail_msg("line %d: %s: %s", line, gpuloss_status_name(got), gpuloss_last_error());
}

void expect_error_(gpuloss_status got, gpuloss_status expected, const char *function, const char *word, int line) {
    const char *message = gpuloss_last_error();
    size_t length = strlen(function);
    if (got != expected)
        fail_msg("line %d: got %s instead of %s: %s", line, gpuloss_status_name(got), gpuloss_status_name(expected),
                 message);
    if (strncmp(message, function, length) != 0 || message[length] != ':')
        fail_msg("line %d: the message does not begin with %s: %s", line, function, message);
    if (strstr(message, word) == NULL)
        fail_msg("line %d: the message does not say \"%s\": %s", line, word, message);
}

gpuloss_cross_entropy_desc some_cross_entropy(void) {
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    d.logits = AT(1);
    d.dtype = GPULOSS_F32;
    d.targets = AT(2);
    d.target_type = GPULOSS_I16; /* of which the prepare kernel counts any number */
    d.rows = 1000;
    d.classes = 1000;
    d.loss = AT(3);
    d.grad_logits = AT(4);
    return d;
}

gpuloss_kl_div_desc some_kl_div(void) {
    gpuloss_kl_div_desc d = GPULOSS_KL_DIV_DEFAULTS;
    d.input = AT(1);
    d.target = AT(2);
    d.dtype = GPULOSS_F32;
    d.input_kind = d.target_kind = GPULOSS_PROBABILITIES;
    d.rows = 1000;
    d.classes = 1000;
    d.loss = AT(3);
    d.grad_input = AT(4);
    return d;
}

gpuloss_kl_div_sparse_desc some_kl_div_sparse(void) {
    gpuloss_kl_div_sparse_desc d = GPULOSS_KL_DIV_SPARSE_DEFAULTS;
    d.logits = AT(1);
    d.indices = AT(2);
    d.values = AT(5);
    d.dtype = GPULOSS_F32;
    d.index_type = GPULOSS_I32;
    d.value_kind = GPULOSS_PROBABILITIES;
    d.residual = GPULOSS_BUCKET;
    d.rows = 1000;
    d.classes = 1000;
    d.k = 16;
    d.loss = AT(3);
    d.grad_logits = AT(4);
    return d;
}

void give_probabilities(gpuloss_cross_entropy_desc *d) {
    d->targets = NULL;
    d->target_type = GPULOSS_INDEX_UNSET;
    d->target_probabilities = AT(20);
}

gpuloss_cross_entropy_desc some_shard(void) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.loss = d.grad_logits = NULL;
    d.total_classes = 4000;
    d.class_offset = 2000;
    d.shard_rows = (gpuloss_shard_row *)AT(5);
    return d;
}

gpuloss_cross_entropy_desc some_combine(void) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    d.logits = d.grad_logits = NULL;
    d.classes = 4000;
    d.shards = 4;
    d.shard_rows = (gpuloss_shard_row *)AT(5);
    return d;
}

struct CUstream_st *stream_number(int n) {
    return (struct CUstream_st *)(uintptr_t)(0x1000 + 64 * n);
}

const fake_launched *last_launch(void) {
    assert_true(fake.launches > 0);
    return &fake.launch[fake.launches - 1];
}

void expect_cleared(int fills, struct CUstream_st *stream) {
    const fake_filled *last = &fake.fill[fills - 1];
    assert_string_equal(last_launch()->entry, PREPARE_KERNEL);
    assert_int_equal(fake.prepares, 0);
    assert_int_equal(fake.fills, fills);
    assert_int_equal(last->base, last_launch()->parameters.rows.scratch);
    assert_int_equal(last->bytes, sizeof(gpulossi_scratch));
    assert_ptr_equal(last->stream, stream);
}

void expect_divisor(unsigned flags, double divisor, double scale, int prepares, int line) {
    const gpulossi_rows *rows = &last_launch()->parameters.rows;
    if (fake.launches != (prepares ? 2 : 1))
        fail_msg("line %d: %d launches", line, fake.launches);
    if ((rows->flags & BY_PREPARED) != flags)
        fail_msg("line %d: the flags are %#x instead of %#x", line, rows->flags & BY_PREPARED, flags);
    if (rows->divisor != divisor || rows->grad_scale != scale)
        fail_msg("line %d: the divisor is %g, the factor %g", line, rows->divisor, rows->grad_scale);
}

int has_format(const fake_launched *l, uint32_t feature) {
    return (l->module->words[GPULOSSI_FORMAT_WORD] & feature) != 0;
}

/* An odd number of vectors. */
static int64_t padded(int64_t bytes) {
    const int64_t vectors = (bytes + 15) / 16;
    return 16 * (vectors + (vectors % 2 == 0));
}

int64_t tile_bytes_of(const fake_launched *l, int64_t rows) {
    const int bytes = strstr(l->entry, "f64") != NULL ? 8 : strstr(l->entry, "f32") != NULL ? 4 : 2;
    const int64_t classes = l->parameters.rows.classes;
    const int is_packed = has_format(l, GPULOSSI_FORMAT_PACKED);
    int64_t row = is_packed || has_format(l, GPULOSSI_FORMAT_COLUMNS) ? classes * bytes : padded(classes * bytes);
    int64_t besides = is_packed ? 32 : 0; /* arrays that may begin within a vector */
    if (has_format(l, GPULOSSI_FORMAT_FLOAT_TARGETS)) {
        row += padded(classes * 4);
        besides += 48;
    } else if (has_format(l, GPULOSSI_FORMAT_TWO_ARRAYS)) {
        row *= 2;
        besides += has_format(l, GPULOSSI_FORMAT_COLUMNS) ? 32 : besides;
    }
    if (has_format(l, GPULOSSI_FORMAT_STAGED_GRADIENT)) {
        const int gradient = has_format(l, GPULOSSI_FORMAT_F64 << GPULOSSI_FORMAT_GRADIENT_SHIFT)   ? 8
                             : has_format(l, GPULOSSI_FORMAT_F32 << GPULOSSI_FORMAT_GRADIENT_SHIFT) ? 4
                                                                                                    : 2;
        row += padded(classes * gradient);
        besides += 48;
    }
    return rows * row + besides;
}

/* Blocks with tiles of floats or doubles have less where the rows of all threads fit. */
static unsigned shared_bytes_of_tiles(const fake_launched *l) {
    const int is_f64 = strstr(l->entry, "f64") != NULL, is_16 = !is_f64 && strstr(l->entry, "f32") == NULL;
    const unsigned less = is_f64 ? 24576 : 14848;
    if (!is_16 && tile_bytes_of(l, 128 / l->parameters.rows.group) <= less)
        return less;
    return is_f64 ? 36864 : 20480;
}

unsigned shared_bytes_of(const fake_launched *l) {
    if (strstr(l->entry, "_row_thread_") != NULL)
        return shared_bytes_of_tiles(l);
    if (strstr(l->entry, "_logits_packed_") != NULL)
        return 2 * l->parameters.rows.ring_bytes * (l->block / 32);
    if (strstr(l->entry, "_packed_") != NULL)
        return l->parameters.rows.ring_bytes * (l->block / 32);
    if (strstr(l->entry, "_sparse_memory_") != NULL)
        return 16384;
    if (strstr(l->entry, "_pipeline_") == NULL)
        return 0;
    if (!has_format(l, GPULOSSI_FORMAT_THREE_BLOCKS))
        return 98304;
    return has_format(l, GPULOSSI_FORMAT_SHORT_STAGES) ? 49152 : 65536;
}

int is_pipeline_of_divergences(const char *entry) {
    return strstr(entry, "_kl_div_row_pipeline_") != NULL || strstr(entry, "_kl_div_sparse_pipeline_") != NULL;
}

unsigned blocks_at_once(const fake_launched *l) {
    const unsigned bytes = shared_bytes_of(l);
    return (unsigned)(fake.multiprocessors *
                      (bytes == 0 ? fake.blocks_small
                       : bytes == 32768 || bytes == 38400 || bytes == 38912 || bytes == 14848 || bytes == 24576
                           ? fake.blocks_less
                           : fake.blocks_shared));
}

void expect_row_group(const fake_launched *l, int64_t rows, unsigned group, int line) {
    uint64_t groups = GPULOSSI_BLOCK / group, blocks = ((uint64_t)rows + groups - 1) / groups;
    if (l->parameters.rows.group != group)
        fail_msg("line %d: %u threads share %lld classes, instead of %u", line, l->parameters.rows.group,
                 (long long)l->parameters.rows.classes, group);
    assert_int_equal(l->grid, blocks < blocks_at_once(l) ? blocks : blocks_at_once(l));
    assert_int_equal(l->shared_bytes, shared_bytes_of(l));
}
