/* descs COUNT [SEED]: calls with that many pseudo-random descs, on the stand-in driver. Prints a hash of every status, message
 * and launch, so that programs of one source under different options of a compiler can be compared. C99 and C++. */
#include "../../gpuloss.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "../host/fake_driver.h"
#ifdef __cplusplus
}
#endif
#include "fields.h"
#define GPULOSS_IMPLEMENTATION
#define GPULOSS_MALLOC(bytes) fake_malloc(bytes)
#define GPULOSS_FREE(pointer) fake_free(pointer)
#include "../../gpuloss.h"

#include <stdio.h>

static uint64_t hash = 14695981039346656037u;
static long accepted, launched;

static void hash_bytes(const void *bytes, size_t count) {
    const unsigned char *at = (const unsigned char *)bytes;
    for (; count > 0; count--)
        hash = (hash ^ *at++) * 1099511628211u;
}

static void hash_launch(fake_launched *l) {
    l->parameters.rows.scratch = 0; /* the only address that is not in the desc */
    hash_bytes(l->entry, strlen(l->entry));
    hash_bytes(&l->grid, sizeof l->grid);
    hash_bytes(&l->block, sizeof l->block);
    hash_bytes(&l->shared_bytes, sizeof l->shared_bytes);
    hash_bytes(&l->cluster, sizeof l->cluster);
    hash_bytes(&l->parameters, sizeof l->parameters);
}

static void hash_call(gpuloss_context *context, const call *c) {
    const int fills = fake.fills;
    const unsigned char status = (unsigned char)launch(context, c);
    hash_bytes(&status, 1);
    if (status == 0)
        accepted++;
    else
        hash_bytes(gpuloss_last_error(), strlen(gpuloss_last_error()));
    launched += fake.launches;
    for (; fake.launches > 0; fake.launches--)
        hash_launch(&fake.launch[fake.launches - 1]);
    fake.prepares = 0;
    fake.fills = fills;
}

static void hash_random_call(gpuloss_context *context) {
    static const enum function functions[] = {CROSS_ENTROPY, CROSS_ENTROPY, CROSS_ENTROPY, COMBINE,
                                              DIVISOR,       KL_DIV,        KL_DIV,        KL_DIV,
                                              KL_DIV_SPARSE, KL_DIV_DIVISOR};
    call c = some_call(functions[random_below(sizeof functions / sizeof functions[0])]);
    change_some(&c.desc, c.fields, c.count);
    hash_call(context, &c);
}

/* Without rows and with one class, each size and count alone has each number. Descs of several random numbers are seldom
 * accepted. */
static void hash_each_number(gpuloss_context *context, enum function function) {
    const call fields_of = some_call(function);
    const field *rows = fields_of.fields + rows_of(fields_of.fields), *end = fields_of.fields + fields_of.count, *f;
    size_t i;
    for (f = fields_of.fields; f < end; f++) {
        if (f == rows || f == rows + 1 || !is_number(f))
            continue;
        for (i = 0; i < SIZES; i++) {
            call c = some_call(function);
            set(&c.desc, rows, 0);
            set(&c.desc, rows + 1, 1);
            set(&c.desc, f, sizes[i]);
            hash_call(context, &c);
        }
    }
}

/* Runs the descs on a GPU of this compute capability. The newest GPUs have a variant of a kernel for each set of
 * options. A count of 0 means the calls with each number. */
static int run(int major, long count) {
    gpuloss_create_desc desc;
    gpuloss_context *context;
    int function;
    fake_reset();
    fake.major = major;
    fake_set_current(&fake.context[2]);
    desc = fake_desc();
    if (gpuloss_create(&context, &desc) != GPULOSS_OK)
        return 0;
    for (function = CROSS_ENTROPY; function < FUNCTIONS && count == 0; function++)
        if (function != CREATE)
            hash_each_number(context, (enum function)function);
    for (; count > 0; count--)
        hash_random_call(context);
    gpuloss_destroy(context);
    if (fake.violation[0] != 0)
        fprintf(stderr, "the driver was misused: %s\n", fake.violation);
    if (fake_leaks() != 0)
        fprintf(stderr, "%d leaks\n", fake_leaks());
    return fake.violation[0] == 0 && fake_leaks() == 0;
}

/* The stand-in driver has records of 1024 variants. */
enum { CALLS_OF_PART = 20000 };

int main(int argc, char **argv) {
    long left = argc > 1 ? atol(argv[1]) : 100000;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : seed;
    if (!run(7, 0) || !run(8, 0) || !run(9, 0))
        return 1;
    for (; left > 0; left -= CALLS_OF_PART) {
        const long part = left < CALLS_OF_PART ? left : CALLS_OF_PART;
        if (!run(7, part / 2) || !run(8, part / 2) || !run(9, part / 100))
            return 1;
    }
    printf("%016llx %ld accepted, %ld launches\n", (unsigned long long)hash, accepted, launched);
    return 0;
}
