/* The addresses of arrays: each is aligned, and no output of a call may overlap another of its arrays, but a gradient may be
 * the array that it is the gradient of. Every array and every pair of them is tried for every loss. With
 * GPULOSS_CHECK_POINTERS every array lies in memory that the driver knows. */
#include "check.h"

#include <stddef.h>
#include <stdio.h>

enum { INPUT = 0, OUTPUT = 1, LOGITS = 2, TARGET = 4 };

typedef struct field {
    const char *name;
    size_t offset;
    int use;
    uintptr_t bytes; /* of the array */
} field;

typedef gpuloss_status call(gpuloss_context *context, const void *desc);

typedef struct loss {
    const char *function;
    call *run;
    size_t bytes; /* of its desc */
} loss;

static gpuloss_context *context;

static void set(void *desc, const field *f, uintptr_t address) {
    void *pointer = GPULOSS_PTR(address);
    memcpy((char *)desc + f->offset, &pointer, sizeof pointer);
}
static uintptr_t address_of(const void *desc, const field *f) {
    void *pointer;
    memcpy(&pointer, (const char *)desc + f->offset, sizeof pointer);
    return (uintptr_t)pointer;
}

/* Both names are told, that of an output first. */
static void expect_overlap(const loss *of, const void *desc, const field *output, const field *other) {
    const long calls = fake.calls;
    char message[128], reverse[128];
    const gpuloss_status status = of->run(context, desc);
    snprintf(message, sizeof message, "%s: %s: overlaps %s", of->function, output->name, other->name);
    snprintf(reverse, sizeof reverse, "%s: %s: overlaps %s", of->function, other->name, output->name);
    if (status == GPULOSS_OK)
        fail_msg("%s: %s may overlap %s", of->function, output->name, other->name);
    if (status != GPULOSS_ERROR_INVALID_ARGUMENT ||
        (strncmp(gpuloss_last_error(), message, strlen(message)) != 0 &&
         ((other->use & OUTPUT) == 0 || strncmp(gpuloss_last_error(), reverse, strlen(reverse)) != 0)))
        fail_msg("got \"%s\" instead of \"%s\"", gpuloss_last_error(), message);
    assert_int_equal(fake.calls, calls);
}
static void expect_accepted(const loss *of, const void *desc, const char *what, const field *output,
                            const field *other) {
    if (of->run(context, desc) != GPULOSS_OK)
        fail_msg("%s of %s and %s: %s", what, output->name, other->name, gpuloss_last_error());
}

static void check_pair(const loss *of, const void *base, const field *output, const field *other) {
    const uintptr_t there = address_of(base, other), distant = (uintptr_t)AT(100);
    double room[64];
    void *desc = room;
    assert_true(of->bytes <= sizeof room);
    memcpy(desc, base, of->bytes);
    set(desc, output, there);
    if ((output->use & other->use & ~OUTPUT) != 0)
        expect_accepted(of, desc, "one array", output, other);
    else
        expect_overlap(of, desc, output, other);
    /* The last 16 bytes of one are the first of the other, and then none is. */
    if (output->bytes >= 32) {
        set(desc, other, distant);
        set(desc, output, distant - output->bytes + 16);
        expect_overlap(of, desc, output, other);
        set(desc, output, distant - output->bytes);
        expect_accepted(of, desc, "adjacent arrays", output, other);
    }
    if (other->bytes >= 32) {
        set(desc, other, distant);
        set(desc, output, distant + other->bytes - 16);
        expect_overlap(of, desc, output, other);
        set(desc, output, distant + other->bytes);
        expect_accepted(of, desc, "adjacent arrays", output, other);
    }
}

static void check_inputs(const loss *of, const void *base, const field *input, const field *other) {
    double room[64];
    memcpy(room, base, of->bytes);
    set(room, input, address_of(base, other));
    expect_accepted(of, room, "one array", input, other);
}

/* An array whose last byte has the last address is taken, and one that is 16 bytes longer not. */
static void check_end(const loss *of, const void *base, const field *f) {
    double room[64];
    void *desc = room;
    char message[128];
    memcpy(desc, base, of->bytes);
    set(desc, f, (uintptr_t)0 - (f->bytes + 15) / 16 * 16 - 16);
    expect_accepted(of, desc, "the last addresses", f, f);
    if (f->bytes < 32)
        return;
    set(desc, f, (uintptr_t)0 - f->bytes + 16);
    snprintf(message, sizeof message, "%s: goes beyond the last address (got 0x%llx, of %llu bytes)", f->name,
             (unsigned long long)address_of(desc, f), (unsigned long long)f->bytes);
    expect_error(of->run(context, desc), GPULOSS_ERROR_INVALID_ARGUMENT, of->function, message);
}

static void check_alignment(const loss *of, const void *base, const field *f) {
    double room[64];
    char message[64];
    memcpy(room, base, of->bytes);
    set(room, f, address_of(base, f) + 1);
    snprintf(message, sizeof message, ": %s: must be aligned to ", f->name);
    expect_error(of->run(context, room), GPULOSS_ERROR_MISALIGNED, of->function, message);
}

static gpuloss_context *checking_context(void) {
    gpuloss_create_desc create = fake_desc();
    gpuloss_context *made = NULL;
    create.flags = GPULOSS_CHECK_POINTERS;
    expect_ok(gpuloss_create(&made, &create));
    return made;
}

/* Takes away the memory of the first and of the last byte of an array. */
static void check_memory(const loss *of, const void *desc, const field *f) {
    char message[128];
    const int launches = fake.launches;
    fake.unknown_bytes = 1;
    fake.unknown_at = address_of(desc, f);
    snprintf(message, sizeof message, "%s: is not memory that the GPU can access (got 0x%llx", f->name,
             (unsigned long long)fake.unknown_at);
    expect_error(of->run(context, desc), GPULOSS_ERROR_INVALID_ARGUMENT, of->function, message);
    if (f->bytes >= 32) {
        fake.unknown_at += f->bytes - 1;
        snprintf(message, sizeof message, "%s: is longer than its memory (got 0x%llx, of %llu bytes, of which %llu are",
                 f->name, (unsigned long long)address_of(desc, f), (unsigned long long)f->bytes,
                 (unsigned long long)f->bytes - 1);
        expect_error(of->run(context, desc), GPULOSS_ERROR_INVALID_ARGUMENT, of->function, message);
        assert_int_equal(fake.launches, launches);
        fake.unknown_at++;
        expect_accepted(of, desc, "memory that ends with the array", f, f);
    }
    fake.unknown_bytes = 0;
}

/* Gives each array an address, and tries others. */
static void check(const loss *of, void *desc, const field *fields, size_t count) {
    size_t i, k;
    context = new_context();
    for (i = 0; i < count; i++)
        set(desc, &fields[i], (uintptr_t)AT(i + 1));
    if (of->run(context, desc) != GPULOSS_OK)
        fail_msg("%s", gpuloss_last_error());
    for (i = 0; i < count; i++) {
        check_alignment(of, desc, &fields[i]);
        check_end(of, desc, &fields[i]);
        for (k = 0; k < count; k++)
            if (k != i && (fields[i].use & OUTPUT) != 0)
                check_pair(of, desc, &fields[i], &fields[k]);
            else if (k != i && (fields[k].use & OUTPUT) == 0)
                check_inputs(of, desc, &fields[i], &fields[k]);
    }
    gpuloss_destroy(context);
    context = checking_context();
    for (i = 0; i < count; i++)
        check_memory(of, desc, &fields[i]);
    gpuloss_destroy(context);
}
#define CHECK(of, desc, fields) check(of, desc, fields, sizeof(fields) / sizeof(fields)[0])

#define FIELD(desc, name, use, bytes)                                                                                  \
    { #name, offsetof(desc, name), use, bytes }
#define CE(name, use, bytes) FIELD(gpuloss_cross_entropy_desc, name, use, bytes)
#define KL(name, use, bytes) FIELD(gpuloss_kl_div_desc, name, use, bytes)
#define SPARSE(name, use, bytes) FIELD(gpuloss_kl_div_sparse_desc, name, use, bytes)
/* Of 1000 rows and 1000 classes, in floats. */
enum { WHOLE = 4000000, ROWS = 4000, ONE = 4 };

static gpuloss_status run_cross_entropy(gpuloss_context *on, const void *desc) {
    return gpuloss_cross_entropy(on, (const gpuloss_cross_entropy_desc *)desc, NULL);
}
static gpuloss_status run_combine(gpuloss_context *on, const void *desc) {
    return gpuloss_cross_entropy_combine(on, (const gpuloss_cross_entropy_desc *)desc, NULL);
}
static gpuloss_status run_kl_div(gpuloss_context *on, const void *desc) {
    return gpuloss_kl_div(on, (const gpuloss_kl_div_desc *)desc, NULL);
}
static gpuloss_status run_sparse(gpuloss_context *on, const void *desc) {
    return gpuloss_kl_div_sparse(on, (const gpuloss_kl_div_sparse_desc *)desc, NULL);
}

static const loss cross_entropy = {"gpuloss_cross_entropy", run_cross_entropy, sizeof(gpuloss_cross_entropy_desc)};
static const loss combine = {"gpuloss_cross_entropy_combine", run_combine, sizeof(gpuloss_cross_entropy_desc)};
static const loss kl_div = {"gpuloss_kl_div", run_kl_div, sizeof(gpuloss_kl_div_desc)};
static const loss sparse = {"gpuloss_kl_div_sparse", run_sparse, sizeof(gpuloss_kl_div_sparse_desc)};

#define RESULTS(OF)                                                                                                    \
    OF(loss, OUTPUT, ONE), OF(loss_rows, OUTPUT, ROWS), OF(workspace, OUTPUT, sizeof(gpulossi_scratch)),               \
        OF(row_weights, INPUT, ROWS), OF(divisor_in, INPUT, ONE)
#define UPSTREAM(OF) OF(grad_loss, INPUT, ONE), OF(grad_loss_rows, INPUT, ROWS)
#define OF_INDICES                                                                                                     \
    CE(targets, INPUT, 4000), CE(class_weights, INPUT, 4000), CE(z_loss, OUTPUT, ONE), CE(z_loss_rows, OUTPUT, ROWS),  \
        CE(lse, OUTPUT, ROWS), CE(argmax, OUTPUT, 8000), CE(correct, OUTPUT, 8), CE(bad_targets, OUTPUT, 8)

static void finish_cross_entropy(gpuloss_cross_entropy_desc *d) {
    d->workspace_bytes = sizeof(gpulossi_scratch);
    d->target_type = GPULOSS_I32;
    d->lse_square_scale = 1.0;
}

static void cross_entropy_of_indices(void **state) {
    static const field fields[] = {CE(logits, LOGITS, WHOLE), CE(grad_logits, OUTPUT | LOGITS, WHOLE), RESULTS(CE),
                                   UPSTREAM(CE), OF_INDICES};
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    (void)state;
    finish_cross_entropy(&d);
    CHECK(&cross_entropy, &d, fields);
}

static void cross_entropy_of_probabilities(void **state) {
    static const field fields[] = {CE(logits, LOGITS, WHOLE),
                                   CE(grad_logits, OUTPUT | LOGITS, WHOLE),
                                   CE(target_probabilities, TARGET, WHOLE),
                                   CE(grad_target_probabilities, OUTPUT | TARGET, WHOLE),
                                   CE(lse_in, INPUT, ROWS),
                                   RESULTS(CE),
                                   UPSTREAM(CE)};
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    (void)state;
    d.targets = NULL;
    d.flags = 0;
    d.ignore_index = 0;
    finish_cross_entropy(&d);
    CHECK(&cross_entropy, &d, fields);
}

/* Gradients of another type than the logits may not replace them. Class weights are those of all shards. */
static void cross_entropy_of_shards(void **state) {
    static const field fields[] = {CE(logits, INPUT, WHOLE),        CE(grad_logits, OUTPUT, WHOLE / 2),
                                   CE(lse_in, INPUT, ROWS),         CE(targets, INPUT, 4000),
                                   CE(class_weights, INPUT, 16000), CE(workspace, OUTPUT, sizeof(gpulossi_scratch))};
    static const field outputs[] = {CE(logits, INPUT, WHOLE), CE(targets, INPUT, 4000), CE(shard_rows, OUTPUT, 48000)};
    gpuloss_cross_entropy_desc d = some_shard();
    (void)state;
    d.shard_rows = NULL;
    d.grad_dtype = GPULOSS_BF16;
    finish_cross_entropy(&d);
    CHECK(&cross_entropy, &d, fields);
    d = some_shard();
    d.target_type = GPULOSS_I32;
    CHECK(&cross_entropy, &d, outputs);
}

static void combined_shards(void **state) {
    static const field fields[] = {
        CE(shard_rows, INPUT, 192000), RESULTS(CE),           CE(targets, INPUT, 4000), CE(class_weights, INPUT, 16000),
        CE(z_loss, OUTPUT, ONE),       CE(lse, OUTPUT, ROWS), CE(argmax, OUTPUT, 8000), CE(correct, OUTPUT, 8),
        CE(bad_targets, OUTPUT, 8)};
    gpuloss_cross_entropy_desc d = some_combine();
    (void)state;
    finish_cross_entropy(&d);
    CHECK(&combine, &d, fields);
}

static void divergences(void **state) {
    static const field fields[] = {KL(input, LOGITS, WHOLE),
                                   KL(target, TARGET, WHOLE),
                                   KL(loss_elements, OUTPUT, WHOLE),
                                   KL(grad_input, OUTPUT | LOGITS, WHOLE),
                                   KL(grad_target, OUTPUT | TARGET, WHOLE),
                                   KL(labels, INPUT, 8000),
                                   RESULTS(KL),
                                   UPSTREAM(KL)};
    gpuloss_kl_div_desc d = some_kl_div();
    (void)state;
    GIVE_LABELS(&d);
    d.workspace_bytes = sizeof(gpulossi_scratch);
    CHECK(&kl_div, &d, fields);
}

static void sparse_divergences(void **state) {
    static const field fields[] = {SPARSE(logits, LOGITS, WHOLE),
                                   SPARSE(indices, INPUT, 64000),
                                   SPARSE(values, INPUT, 64000),
                                   SPARSE(grad_logits, OUTPUT | LOGITS, WHOLE),
                                   SPARSE(bad_indices, OUTPUT, 8),
                                   SPARSE(labels, INPUT, 8000),
                                   RESULTS(SPARSE),
                                   UPSTREAM(SPARSE)};
    gpuloss_kl_div_sparse_desc d = some_kl_div_sparse();
    (void)state;
    GIVE_LABELS(&d);
    d.index_type = GPULOSS_I32;
    d.workspace_bytes = sizeof(gpulossi_scratch);
    CHECK(&sparse, &d, fields);
}

/* Arrays of no rows have no bytes, wherever they begin. */
static void arrays_of_no_rows(void **state) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    (void)state;
    context = new_context();
    d.class_weights = AT(6);
    d.loss_rows = (char *)AT(6) + 16;
    expect_error(gpuloss_cross_entropy(context, &d, NULL), GPULOSS_ERROR_INVALID_ARGUMENT, cross_entropy.function,
                 "loss_rows: overlaps class_weights");
    d.rows = 0;
    expect_ok(gpuloss_cross_entropy(context, &d, NULL));
    gpuloss_destroy(context);
}

static void memory_of_pointers(void **state) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    gpuloss_kl_div_desc kl = some_kl_div();
    gpuloss_kl_div_sparse_desc sparse = some_kl_div_sparse();
    (void)state;
    context = checking_context();
    fake.pointer_gpu = 1;
    expect_error(gpuloss_cross_entropy(context, &d, NULL), GPULOSS_ERROR_INVALID_ARGUMENT, cross_entropy.function,
                 "logits: is memory of another GPU than the context's, which is 0 (got 0x");
    fake.pointer_managed = 1;
    expect_ok(gpuloss_cross_entropy(context, &d, NULL));
    fake.pointer_managed = 0;
    fake.pointer_type = 1; /* pinned */
    expect_ok(gpuloss_cross_entropy(context, &d, NULL));
    fake.pointer_gpu = 0;
    fake.pointer_type = 2;
    fake.fail_symbol = "cuPointerGetAttribute";
    expect_error(gpuloss_cross_entropy(context, &d, NULL), GPULOSS_ERROR_DRIVER, cross_entropy.function, "logits: ");
    fake.fail_symbol = NULL;
    for (fake.fail_attribute = 8; fake.fail_attribute <= 12; fake.fail_attribute++)
        expect_ok(gpuloss_cross_entropy(context, &d, NULL)); /* an old driver */
    fake.fail_attribute = 0;
    fake.unknown_bytes = UINT64_MAX;
    expect_ok(gpuloss_cross_entropy_preload(context, &d, NULL));
    expect_ok(gpuloss_kl_div_preload(context, &kl, NULL));
    expect_ok(gpuloss_kl_div_sparse_preload(context, &sparse, NULL));
    gpuloss_destroy(context);
    context = new_context();
    expect_ok(gpuloss_cross_entropy(context, &d, NULL));
    gpuloss_destroy(context);
}

static void flags_of_a_context(void **state) {
    gpuloss_create_desc create = fake_desc();
    (void)state;
    create.flags = 2;
    expect_error(gpuloss_create(&context, &create), GPULOSS_ERROR_INVALID_ARGUMENT, "gpuloss_create",
                 "flags: holds an unknown flag (got 2)");
    fake.missing[0] = "cuPointerGetAttribute";
    create.flags = GPULOSS_CHECK_POINTERS;
    expect_error(gpuloss_create(&context, &create), GPULOSS_ERROR_DRIVER_TOO_OLD, "gpuloss_create",
                 "flags: the driver cannot check pointers");
    create.flags = 0;
    expect_ok(gpuloss_create(&context, &create));
    gpuloss_destroy(context);
}

int overlap_tests(void) {
    const struct CMUnitTest tests[] = {
        TEST(cross_entropy_of_indices),
        TEST(cross_entropy_of_probabilities),
        TEST(cross_entropy_of_shards),
        TEST(combined_shards),
        TEST(divergences),
        TEST(sparse_divergences),
        TEST(arrays_of_no_rows),
        TEST(memory_of_pointers),
        TEST(flags_of_a_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
