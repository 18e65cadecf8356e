#include "fields.h"

#include <stdlib.h>
#include <string.h>

uint64_t seed = 1;

unsigned random_below(unsigned bound) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % bound;
}

#define FIELD(desc, name, kind)                                                                                        \
    { #name, offsetof(desc, name), sizeof(((desc *)0)->name), kind }
#define CE(name, kind) FIELD(gpuloss_cross_entropy_desc, name, kind)
#define KL(name, kind) FIELD(gpuloss_kl_div_desc, name, kind)
#define SPARSE(name, kind) FIELD(gpuloss_kl_div_sparse_desc, name, kind)
#define CREATION(name, kind) FIELD(creation, name, kind)

static const field cross_entropy_fields[] = {CE(logits, POINTER),
                                             CE(logits_stride, SIZE),
                                             CE(targets, POINTER),
                                             CE(target_probabilities, POINTER),
                                             CE(target_probabilities_stride, SIZE),
                                             CE(rows, COUNT),
                                             CE(classes, SIZE),
                                             CE(inner, COUNT),
                                             CE(dtype, ENUM),
                                             CE(grad_dtype, ENUM),
                                             CE(target_dtype, ENUM),
                                             CE(target_type, ENUM),
                                             CE(reduction, ENUM),
                                             CE(flags, FLAGS),
                                             CE(ignore_index, COUNT),
                                             CE(class_weights, POINTER),
                                             CE(row_weights, POINTER),
                                             CE(label_smoothing, DOUBLE),
                                             CE(lse_square_scale, DOUBLE),
                                             CE(logit_scale, DOUBLE),
                                             CE(softcap, DOUBLE),
                                             CE(divisor, DOUBLE),
                                             CE(divisor_in, POINTER),
                                             CE(loss, POINTER),
                                             CE(loss_rows, POINTER),
                                             CE(z_loss, POINTER),
                                             CE(z_loss_rows, POINTER),
                                             CE(lse, POINTER),
                                             CE(argmax, POINTER),
                                             CE(correct, POINTER),
                                             CE(bad_targets, POINTER),
                                             CE(grad_logits, POINTER),
                                             CE(grad_logits_stride, SIZE),
                                             CE(grad_target_probabilities, POINTER),
                                             CE(grad_target_probabilities_stride, SIZE),
                                             CE(grad_scale, DOUBLE),
                                             CE(grad_loss, POINTER),
                                             CE(grad_loss_rows, POINTER),
                                             CE(lse_in, POINTER),
                                             CE(total_classes, SIZE),
                                             CE(class_offset, COUNT),
                                             CE(shard_rows, POINTER),
                                             CE(shards, COUNT),
                                             CE(workspace, POINTER),
                                             CE(workspace_bytes, SIZE)};

static const field kl_div_fields[] = {KL(input, POINTER),
                                      KL(input_stride, SIZE),
                                      KL(target, POINTER),
                                      KL(target_stride, SIZE),
                                      KL(rows, COUNT),
                                      KL(classes, SIZE),
                                      KL(inner, COUNT),
                                      KL(dtype, ENUM),
                                      KL(target_dtype, ENUM),
                                      KL(input_kind, ENUM),
                                      KL(target_kind, ENUM),
                                      KL(divergence, ENUM),
                                      KL(reduction, ENUM),
                                      KL(flags, FLAGS),
                                      KL(beta, DOUBLE),
                                      KL(temperature, DOUBLE),
                                      KL(eps, DOUBLE),
                                      KL(row_weights, POINTER),
                                      KL(labels, POINTER),
                                      KL(label_type, ENUM),
                                      KL(ignore_index, COUNT),
                                      KL(divisor, DOUBLE),
                                      KL(divisor_in, POINTER),
                                      KL(loss, POINTER),
                                      KL(loss_rows, POINTER),
                                      KL(loss_elements, POINTER),
                                      KL(loss_elements_stride, SIZE),
                                      KL(grad_input, POINTER),
                                      KL(grad_input_stride, SIZE),
                                      KL(grad_target, POINTER),
                                      KL(grad_target_stride, SIZE),
                                      KL(grad_scale, DOUBLE),
                                      KL(grad_loss, POINTER),
                                      KL(grad_loss_rows, POINTER),
                                      KL(workspace, POINTER),
                                      KL(workspace_bytes, SIZE)};

static const field sparse_fields[] = {SPARSE(logits, POINTER),
                                      SPARSE(logits_stride, SIZE),
                                      SPARSE(indices, POINTER),
                                      SPARSE(indices_stride, SIZE),
                                      SPARSE(values, POINTER),
                                      SPARSE(values_stride, SIZE),
                                      SPARSE(rows, COUNT),
                                      SPARSE(classes, SIZE),
                                      SPARSE(k, COUNT),
                                      SPARSE(dtype, ENUM),
                                      SPARSE(value_dtype, ENUM),
                                      SPARSE(index_type, ENUM),
                                      SPARSE(value_kind, ENUM),
                                      SPARSE(residual, ENUM),
                                      SPARSE(divergence, ENUM),
                                      SPARSE(reduction, ENUM),
                                      SPARSE(flags, FLAGS),
                                      SPARSE(beta, DOUBLE),
                                      SPARSE(temperature, DOUBLE),
                                      SPARSE(row_weights, POINTER),
                                      SPARSE(labels, POINTER),
                                      SPARSE(label_type, ENUM),
                                      SPARSE(ignore_index, COUNT),
                                      SPARSE(divisor, DOUBLE),
                                      SPARSE(divisor_in, POINTER),
                                      SPARSE(loss, POINTER),
                                      SPARSE(loss_rows, POINTER),
                                      SPARSE(grad_logits, POINTER),
                                      SPARSE(grad_logits_stride, SIZE),
                                      SPARSE(bad_indices, POINTER),
                                      SPARSE(grad_scale, DOUBLE),
                                      SPARSE(grad_loss, POINTER),
                                      SPARSE(grad_loss_rows, POINTER),
                                      SPARSE(workspace, POINTER),
                                      SPARSE(workspace_bytes, SIZE)};

static const field creation_fields[] = {CREATION(given, ENUM),   CREATION(current, ENUM), CREATION(device, ENUM),
                                        CREATION(path, ENUM),    CREATION(symbol, ENUM),  CREATION(flags, FLAGS),
                                        CREATION(version, ENUM), CREATION(bytes, SIZE)};

/* The bits of doubles, which no option of a compiler changes. None is denormal, because -ffast-math flushes denormal
 * numbers. */
static const uint64_t doubles[] = {0,                    /* 0 */
                                   0x8000000000000000u,  /* -0 */
                                   0x3fe0000000000000u,  /* 0.5 */
                                   0x3ff0000000000000u,  /* 1 */
                                   0x4004000000000000u,  /* 2.5 */
                                   0xbff0000000000000u,  /* -1 */
                                   0x3ff0000000000001u,  /* above 1 */
                                   0x37e16c262777579cu,  /* 1e-40 */
                                   0x47efff9335444c34u,  /* beyond the floats */
                                   0x7fefffffffffffffu,  /* the largest */
                                   0x7ff0000000000000u,  /* infinity */
                                   0xfff0000000000000u,  /* -infinity */
                                   0x7ff8000000000000u,  /* NaN */
                                   0xfff8000000000000u}; /* -NaN */
static const unsigned char enums[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 255};
const int64_t sizes[SIZES] = {0,
                              1,
                              2,
                              16,
                              20,
                              96,
                              150,
                              999,
                              1000,
                              1001,
                              1008,
                              4096,
                              8000,
                              32000,
                              100000,
                              1048576,
                              INT32_MAX,
                              -1,
                              -1000,
                              1 << 30,
                              (int64_t)1 << 34,
                              (int64_t)1 << 60,
                              (int64_t)1 << 62,
                              INT64_MAX,
                              INT64_MIN};
static const int64_t counts[] = {0,
                                 1,
                                 2,
                                 3,
                                 4,
                                 8,
                                 10,
                                 16,
                                 100,
                                 131,
                                 132,
                                 1000,
                                 1024,
                                 4096,
                                 4097,
                                 65536,
                                 1000000,
                                 -1,
                                 -100,
                                 (int64_t)1 << 31,
                                 (int64_t)1 << 40,
                                 (int64_t)1 << 62,
                                 INT64_MAX,
                                 INT64_MIN};

#define PICK(list) (list)[random_below((unsigned)(sizeof(list) / sizeof(list)[0]))]

/* An address of its own, an address that others share, one inside another array, a misaligned one, or the end of all
 * addresses. */
static uint64_t some_address(void) {
    const uint64_t array = 0x7000000000u + 0x100000000u * random_below(64);
    switch (random_below(12)) {
    case 0:
        return 0;
    case 1:
        return 0x7100000000u + 0x100000000u * random_below(4);
    case 2:
        return array + 4096 * random_below(1000);
    case 3:
        return array + random_below(16);
    case 4:
        return (uint64_t)0 - 4096 * (uint64_t)(1 + random_below(100));
    default:
        return array;
    }
}

void change(void *desc, const field *f) {
    uint64_t bits = 0;
    switch (f->kind) {
    case DOUBLE:
        bits = PICK(doubles);
        break;
    case ENUM:
        bits = PICK(enums);
        break;
    case SIZE:
        bits = (uint64_t)PICK(sizes);
        break;
    case COUNT:
        bits = (uint64_t)PICK(counts);
        break;
    case POINTER:
        bits = some_address();
        break;
    case FLAGS:
        bits = random_below(64);
    }
    memcpy((char *)desc + f->offset, &bits, f->bytes);
}

size_t rows_of(const field *fields) {
    size_t rows = 0;
    while (fields[rows].kind != COUNT)
        rows++;
    return rows;
}

int is_number(const field *f) {
    return f->kind == SIZE || f->kind == COUNT;
}

void set(void *desc, const field *f, int64_t number) {
    memcpy((char *)desc + f->offset, &number, f->bytes);
}

void make_huge(void *desc, const field *fields, size_t count) {
    const size_t rows = rows_of(fields);
    size_t i;
    for (i = 0; i < count; i++) {
        int64_t number = random_below(2) != 0 ? INT64_MAX >> random_below(6) : (int64_t)1 << (30 + random_below(33));
        if (i == rows || (i == rows + 1 && random_below(4) != 0))
            number = i == rows ? random_below(4) == 0 : 1;
        else if (!is_number(&fields[i]) || random_below(3) != 0)
            continue;
        set(desc, &fields[i], number);
    }
}

void change_some(void *desc, const field *fields, size_t count) {
    unsigned left = random_below(8);
    if (random_below(4) == 0)
        make_huge(desc, fields, count);
    for (; left > 0; left--)
        change(desc, &fields[random_below((unsigned)count)]);
}

static gpuloss_cross_entropy_desc some_cross_entropy(void) {
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    d.logits = GPULOSS_PTR(0x7100000000);
    d.targets = GPULOSS_PTR(0x7200000000);
    d.target_type = GPULOSS_I64;
    d.dtype = (gpuloss_dtype)(1 + random_below(4));
    d.rows = 1000;
    d.classes = 1000;
    d.loss = GPULOSS_PTR(0x7300000000);
    d.grad_logits = random_below(2) != 0 ? GPULOSS_PTR(0x7400000000) : NULL;
    return d;
}

static gpuloss_kl_div_desc some_kl_div(void) {
    gpuloss_kl_div_desc d = GPULOSS_KL_DIV_DEFAULTS;
    d.input = GPULOSS_PTR(0x7100000000);
    d.target = GPULOSS_PTR(0x7200000000);
    d.dtype = (gpuloss_dtype)(1 + random_below(4));
    d.input_kind = (gpuloss_kind)(1 + random_below(3));
    d.target_kind = (gpuloss_kind)(1 + random_below(3));
    d.rows = 1000;
    d.classes = 1000;
    d.loss = GPULOSS_PTR(0x7300000000);
    d.grad_input = random_below(2) != 0 ? GPULOSS_PTR(0x7400000000) : NULL;
    return d;
}

static gpuloss_kl_div_sparse_desc some_sparse(void) {
    gpuloss_kl_div_sparse_desc d = GPULOSS_KL_DIV_SPARSE_DEFAULTS;
    d.logits = GPULOSS_PTR(0x7100000000);
    d.indices = GPULOSS_PTR(0x7200000000);
    d.values = GPULOSS_PTR(0x7500000000);
    d.dtype = (gpuloss_dtype)(1 + random_below(4));
    d.index_type = GPULOSS_I32;
    d.value_kind = GPULOSS_PROBABILITIES;
    d.residual = (gpuloss_residual)(1 + random_below(3));
    d.rows = 1000;
    d.classes = 1000;
    d.k = 16;
    d.loss = GPULOSS_PTR(0x7300000000);
    d.grad_logits = random_below(2) != 0 ? GPULOSS_PTR(0x7400000000) : NULL;
    return d;
}

#define SET_FIELDS(c, list) ((c)->fields = (list), (c)->count = sizeof(list) / sizeof((list)[0]))

call some_call(enum function function) {
    call c;
    memset(&c, 0, sizeof c);
    c.function = function;
    switch (function) {
    case KL_DIV:
    case KL_DIV_DIVISOR:
        c.desc.kl_div = some_kl_div();
        SET_FIELDS(&c, kl_div_fields);
        break;
    case KL_DIV_SPARSE:
        c.desc.sparse = some_sparse();
        SET_FIELDS(&c, sparse_fields);
        break;
    case CREATE:
        c.desc.created.given = c.desc.created.symbol = 1;
        c.desc.created.version = GPULOSS_VERSION;
        c.desc.created.bytes = GPULOSS_DESC_BYTES;
        SET_FIELDS(&c, creation_fields);
        break;
    default:
        c.desc.cross_entropy = some_cross_entropy();
        SET_FIELDS(&c, cross_entropy_fields);
    }
    if (function == COMBINE) {
        c.desc.cross_entropy.logits = c.desc.cross_entropy.grad_logits = NULL;
        c.desc.cross_entropy.shards = 4;
        c.desc.cross_entropy.shard_rows = (gpuloss_shard_row *)GPULOSS_PTR(0x7500000000);
    }
    return c;
}

gpuloss_status launch(gpuloss_context *context, const call *c) {
    switch (c->function) {
    case CROSS_ENTROPY:
        return gpuloss_cross_entropy(context, &c->desc.cross_entropy, NULL);
    case COMBINE:
        return gpuloss_cross_entropy_combine(context, &c->desc.cross_entropy, NULL);
    case DIVISOR:
        return gpuloss_cross_entropy_divisor(context, &c->desc.cross_entropy, c->desc.cross_entropy.loss, NULL);
    case KL_DIV:
        return gpuloss_kl_div(context, &c->desc.kl_div, NULL);
    case KL_DIV_DIVISOR:
        return gpuloss_kl_div_divisor(context, &c->desc.kl_div, c->desc.kl_div.loss, NULL);
    default:
        return gpuloss_kl_div_sparse(context, &c->desc.sparse, NULL);
    }
}
