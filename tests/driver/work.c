#include "work.h"

#include <stdlib.h>
#include <string.h>

/* The rows of few classes, and the rows that clusters share on GPUs with clusters. */
enum {
    ROWS = 6,
    MORE_ROWS = 600,
    CLASSES = 1000,
    LONG_ROWS = 2,
    LONG_CLASSES = 40000,
    ENTRIES = 4,       /* of a row of the sparse teacher */
    ALIGNMENT = 256,   /* of each array */
    SLOT_BYTES = 4096, /* of a call's workspace, which needs less */
    CLEAR_BYTE = 0xff
};

static int64_t row_count(void) {
    return is_small ? ROWS : MORE_ROWS;
}

static void *memory(size_t bytes) {
    void *pointer = malloc(bytes);
    if (pointer == NULL)
        fail_msg("no memory of %lu bytes", (unsigned long)bytes);
    return pointer;
}

static size_t size_of(gpuloss_dtype dtype) {
    return dtype == GPULOSS_F64 ? 8 : dtype == GPULOSS_F32 ? 4 : 2;
}
static size_t result_size(gpuloss_dtype dtype) {
    return dtype == GPULOSS_F64 ? 8 : 4;
}

/* The offset of the next array, which has `bytes` bytes. */
static size_t take(size_t *end, size_t bytes) {
    const size_t at = *end;
    *end += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static unsigned next_number(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Logits in [-4, 4). bf16 has the upper half of a float. */
static void fill_logits(unsigned char *to, gpuloss_dtype dtype, int64_t count, unsigned *state) {
    int64_t i;
    for (i = 0; i < count; i++) {
        const float number = (float)next_number(state) / 2097152.0f - 4.0f;
        const double wide = (double)number;
        if (dtype == GPULOSS_F64)
            memcpy(to + 8 * i, &wide, 8);
        else if (dtype == GPULOSS_F32)
            memcpy(to + 4 * i, &number, 4);
        else
            memcpy(to + 2 * i, (const unsigned char *)&number + 2, 2);
    }
}

/* Indices of 16 bits need a launch of their own that counts the rows. */
static void fill_targets(unsigned char *to, int64_t rows, unsigned *state) {
    int64_t i;
    for (i = 0; i < rows; i++) {
        const int16_t target = i % 5 == 4 ? -100 : (int16_t)(next_number(state) % CLASSES);
        memcpy(to + 2 * i, &target, 2);
    }
}

static void fill_teacher(unsigned char *indices, unsigned char *values, int64_t rows, unsigned *state) {
    int64_t i;
    for (i = 0; i < rows * ENTRIES; i++) {
        const int32_t index = (int32_t)(next_number(state) % CLASSES);
        const float value = (float)(next_number(state) % 200) / 1000.0f;
        memcpy(indices + 4 * i, &index, 4);
        memcpy(values + 4 * i, &value, 4);
    }
}

/* The gradient of a call is the input of the next one. Factors prevent it from becoming ever smaller. */
static void fill_descs(work *w, gpuloss_dtype dtype, const size_t in[5], const size_t out[9]) {
    const gpuloss_cross_entropy_desc cross_entropy = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    const gpuloss_kl_div_desc divergence = GPULOSS_KL_DIV_DEFAULTS;
    const gpuloss_kl_div_sparse_desc sparse = GPULOSS_KL_DIV_SPARSE_DEFAULTS;
    w->rows = cross_entropy;
    w->rows.logits = w->inputs + in[0];
    w->rows.dtype = dtype;
    w->rows.targets = w->inputs + in[1];
    w->rows.target_type = GPULOSS_I16;
    w->rows.rows = row_count();
    w->rows.classes = CLASSES;
    w->rows.flags |= (unsigned)GPULOSS_USE_GRAD_SCALE;
    w->rows.grad_scale = 16.0 * (double)row_count();
    w->rows.loss = w->outputs + out[0];
    w->rows.grad_logits = w->outputs + out[1];
    w->divergence = divergence;
    w->divergence.input = w->rows.grad_logits;
    w->divergence.target = w->rows.logits;
    w->divergence.dtype = dtype;
    w->divergence.input_kind = w->divergence.target_kind = GPULOSS_LOGITS;
    w->divergence.rows = row_count();
    w->divergence.classes = CLASSES;
    w->divergence.flags |= (unsigned)GPULOSS_USE_GRAD_SCALE;
    w->divergence.grad_scale = 16.0 * (double)row_count();
    w->divergence.loss = w->outputs + out[2];
    w->divergence.grad_input = w->outputs + out[3];
    w->divergence.grad_target = w->outputs + out[4];
    w->sparse = sparse;
    w->sparse.logits = w->divergence.grad_input;
    w->sparse.dtype = dtype;
    w->sparse.indices = w->inputs + in[2];
    w->sparse.index_type = GPULOSS_I32;
    w->sparse.values = w->inputs + in[3];
    w->sparse.value_dtype = GPULOSS_F32;
    w->sparse.value_kind = GPULOSS_PROBABILITIES;
    w->sparse.residual = GPULOSS_BUCKET;
    w->sparse.rows = row_count();
    w->sparse.classes = CLASSES;
    w->sparse.k = ENTRIES;
    w->sparse.loss = w->outputs + out[5];
    w->sparse.grad_logits = w->outputs + out[6];
    w->long_rows = w->rows;
    w->long_rows.logits = w->inputs + in[4];
    w->long_rows.rows = LONG_ROWS;
    w->long_rows.classes = LONG_CLASSES;
    w->long_rows.loss = w->outputs + out[7];
    w->long_rows.grad_logits = w->outputs + out[8];
}

work work_new(gpuloss_context *context, gpuloss_dtype dtype, unsigned seed) {
    const int64_t rows = row_count();
    const size_t size = size_of(dtype), loss = result_size(dtype), bytes = (size_t)rows * CLASSES * size;
    const size_t long_bytes = (size_t)LONG_ROWS * LONG_CLASSES * size;
    size_t in[5], out[9], input_bytes = 0;
    unsigned char *host;
    void *inputs, *outputs;
    work w;
    memset(&w, 0, sizeof w);
    w.context = context;
    in[0] = take(&input_bytes, bytes);
    in[1] = take(&input_bytes, (size_t)rows * 2);
    in[2] = take(&input_bytes, (size_t)rows * ENTRIES * 4);
    in[3] = take(&input_bytes, (size_t)rows * ENTRIES * 4);
    in[4] = take(&input_bytes, long_bytes);
    out[0] = take(&w.output_bytes, loss);
    out[1] = take(&w.output_bytes, bytes);
    out[2] = take(&w.output_bytes, loss);
    out[3] = take(&w.output_bytes, bytes);
    out[4] = take(&w.output_bytes, bytes);
    out[5] = take(&w.output_bytes, loss);
    out[6] = take(&w.output_bytes, bytes);
    out[7] = take(&w.output_bytes, loss);
    out[8] = take(&w.output_bytes, long_bytes);
    w.written_bytes = 4 * loss + 4 * bytes + long_bytes;
    EXPECT(gpuloss_stream_create(context, &w.copies), GPULOSS_OK);
    EXPECT(gpuloss_alloc(context, &inputs, input_bytes), GPULOSS_OK);
    EXPECT(gpuloss_alloc(context, &outputs, w.output_bytes), GPULOSS_OK);
    w.inputs = (unsigned char *)inputs;
    w.outputs = (unsigned char *)outputs;
    host = (unsigned char *)memory(input_bytes);
    memset(host, 0, input_bytes);
    fill_logits(host + in[0], dtype, rows * CLASSES, &seed);
    fill_targets(host + in[1], rows, &seed);
    fill_teacher(host + in[2], host + in[3], rows, &seed);
    fill_logits(host + in[4], dtype, LONG_ROWS * LONG_CLASSES, &seed);
    EXPECT(gpuloss_upload(context, inputs, host, input_bytes, w.copies), GPULOSS_OK);
    free(host);
    fill_descs(&w, dtype, in, out);
    return w;
}

void work_free(work *w) {
    EXPECT(gpuloss_free(w->context, w->inputs), GPULOSS_OK);
    EXPECT(gpuloss_free(w->context, w->outputs), GPULOSS_OK);
    EXPECT(gpuloss_free(w->context, w->workspace), GPULOSS_OK);
    EXPECT(gpuloss_stream_destroy(w->context, w->copies), GPULOSS_OK);
    memset(w, 0, sizeof *w);
}

void work_give_workspace(work *w) {
    void *all;
    EXPECT(gpuloss_alloc(w->context, &all, (size_t)WORK_CALLS * SLOT_BYTES), GPULOSS_OK);
    w->workspace = (unsigned char *)all;
    w->rows.workspace = w->workspace;
    w->divergence.workspace = w->workspace + SLOT_BYTES;
    w->sparse.workspace = w->workspace + (size_t)2 * SLOT_BYTES;
    w->long_rows.workspace = w->workspace + (size_t)3 * SLOT_BYTES;
    w->rows.workspace_bytes = w->divergence.workspace_bytes = SLOT_BYTES;
    w->sparse.workspace_bytes = w->long_rows.workspace_bytes = SLOT_BYTES;
}

gpuloss_status work_call(const work *w, int call, struct CUstream_st *stream) {
    switch (call) {
    case 0:
        return gpuloss_cross_entropy(w->context, &w->rows, stream);
    case 1:
        return gpuloss_kl_div(w->context, &w->divergence, stream);
    case 2:
        return gpuloss_kl_div_sparse(w->context, &w->sparse, stream);
    default:
        return gpuloss_cross_entropy(w->context, &w->long_rows, stream);
    }
}

gpuloss_status work_preload(const work *w, int call, struct CUstream_st *stream) {
    switch (call) {
    case 0:
        return gpuloss_cross_entropy_preload(w->context, &w->rows, stream);
    case 1:
        return gpuloss_kl_div_preload(w->context, &w->divergence, stream);
    case 2:
        return gpuloss_kl_div_sparse_preload(w->context, &w->sparse, stream);
    default:
        return gpuloss_cross_entropy_preload(w->context, &w->long_rows, stream);
    }
}

gpuloss_status work_calls(const work *w, struct CUstream_st *stream) {
    gpuloss_status status = GPULOSS_OK;
    int call;
    for (call = 0; call < WORK_CALLS && status == GPULOSS_OK; call++)
        status = work_call(w, call, stream);
    return status;
}

gpuloss_status work_preloads(const work *w, struct CUstream_st *stream) {
    gpuloss_status status = GPULOSS_OK;
    int call;
    for (call = 0; call < WORK_CALLS && status == GPULOSS_OK; call++)
        status = work_preload(w, call, stream);
    return status;
}

static gpuloss_status clear(const work *w, int byte) {
    unsigned char *bytes = (unsigned char *)malloc(w->output_bytes);
    gpuloss_status status = GPULOSS_ERROR_OUT_OF_HOST_MEMORY;
    if (bytes != NULL) {
        memset(bytes, byte, w->output_bytes);
        status = gpuloss_upload(w->context, w->outputs, bytes, w->output_bytes, w->copies);
    }
    free(bytes);
    return status;
}

gpuloss_status work_clear(const work *w) {
    return clear(w, CLEAR_BYTE);
}

gpuloss_status work_fetch(const work *w, unsigned char *bytes) {
    return gpuloss_download(w->context, bytes, w->outputs, w->output_bytes, w->copies);
}

static unsigned char *results_over(const work *w, struct CUstream_st *stream, int byte) {
    unsigned char *results = (unsigned char *)memory(w->output_bytes);
    EXPECT(clear(w, byte), GPULOSS_OK);
    EXPECT(work_calls(w, stream), GPULOSS_OK);
    EXPECT(gpuloss_synchronize(w->context, stream), GPULOSS_OK);
    EXPECT(work_fetch(w, results), GPULOSS_OK);
    return results;
}

/* Over two different bytes, which stay between the arrays only. */
unsigned char *work_results(const work *w, struct CUstream_st *stream) {
    unsigned char *over_zeros = results_over(w, stream, 0), *results = results_over(w, stream, CLEAR_BYTE);
    size_t i, same = 0;
    for (i = 0; i < w->output_bytes; i++)
        same += over_zeros[i] == results[i];
    free(over_zeros);
    if (same != w->written_bytes)
        fail_msg("%lu bytes of the outputs are the same in two runs, instead of %lu", (unsigned long)same,
                 (unsigned long)w->written_bytes);
    return results;
}

void work_expect(const work *w, const unsigned char *results, const char *what) {
    unsigned char *got = (unsigned char *)memory(w->output_bytes);
    size_t i = 0;
    EXPECT(work_fetch(w, got), GPULOSS_OK);
    while (i < w->output_bytes && got[i] == results[i])
        i++;
    free(got);
    if (i < w->output_bytes)
        fail_msg("%s: byte %lu of the outputs is another one", what, (unsigned long)i);
}

void work_expect_clear(const work *w, const char *what) {
    unsigned char *cleared = (unsigned char *)memory(w->output_bytes);
    memset(cleared, CLEAR_BYTE, w->output_bytes);
    work_expect(w, cleared, what);
    free(cleared);
}

void work_expect_not_preloaded(const work *w, struct CUstream_st *stream, const char *reason) {
    int call;
    for (call = 0; call < WORK_CALLS; call++) {
        EXPECT(work_call(w, call, stream), GPULOSS_ERROR_NOT_PRELOADED);
        assert_non_null(strstr(gpuloss_last_error(), reason));
        EXPECT(work_preload(w, call, stream), GPULOSS_ERROR_NOT_PRELOADED);
        assert_non_null(strstr(gpuloss_last_error(), reason));
    }
}
