/* Runs every .ptx file of a folder on a libcuda and compares the results with recorded ones.
 *
 *   run_instructions LIBRARY FOLDER RECORD          compare with RECORD
 *   run_instructions LIBRARY FOLDER RECORD --write  make it (on a real GPU)
 *   run_instructions LIBRARY FOLDER RECORD --dump FILE   besides, write every result
 *
 * Before each kernel stands `//! name inputs slots`; each thread takes three 64-bit words and stores one 64-bit word a
 * slot. Beside each store stands `//= label check`:
 *   bits    the results are compared bit for bit, through a hash
 *   approx  they are compared with the function computed in double precision, within the bound of the table below
 *   nan32 nan64  as bits, but any pattern that is no number equals any other: the PTX manual leaves it open */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4096, BLOCK = 128, SLOTS = 128, LABEL = 64 };

struct slot {
    char label[LABEL], check[16];
};

static struct gpu gpu;
static const char *folder, *record_path, *dump_path;
static int writing;
static char *record;
static FILE *written, *dump;

static uint64_t random_state;

static uint64_t random_word(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static uint64_t bits64(double d) {
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

static uint64_t bits32(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint64_t u) {
    uint32_t low = (uint32_t)u;
    float f;
    memcpy(&f, &low, sizeof f);
    return f;
}

static double double_of(uint64_t u) {
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

static const uint64_t int_specials[] = {0,
                                        1,
                                        2,
                                        31,
                                        32,
                                        33,
                                        63,
                                        64,
                                        0x7f,
                                        0x80,
                                        0xff,
                                        0x7fff,
                                        0x8000,
                                        0xffff,
                                        0x7fffffff,
                                        0x80000000,
                                        0xffffffff,
                                        0x100000000,
                                        0x7fffffffffffffff,
                                        0x8000000000000000,
                                        0xffffffffffffffff,
                                        0xffffffffffffff80,
                                        0xffffffffffff8000,
                                        0xffffffff80000000};
static const uint32_t f32_specials[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x807fffff,
                                        0x00800000, 0x80800000, 0x3f800000, 0xbf800000, 0x3f7fffff, 0x3f800001,
                                        0x40000000, 0x3f000000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                        0x7fc00000, 0xffc12345, 0x7f800001, 0x4f000000, 0xcf000000, 0x5f000000};
static const uint64_t f64_specials[] = {0,
                                        1ull << 63,
                                        1,
                                        0x800fffffffffffff,
                                        0x0010000000000000,
                                        0x8010000000000000,
                                        0x3ff0000000000000,
                                        0xbff0000000000000,
                                        0x3fefffffffffffff,
                                        0x3ff0000000000001,
                                        0x4000000000000000,
                                        0x3fe0000000000000,
                                        0x7fefffffffffffff,
                                        0xffefffffffffffff,
                                        0x7ff0000000000000,
                                        0xfff0000000000000,
                                        0x7ff8000000000000,
                                        0xfff8000000012345,
                                        0x41e0000000000000,
                                        0xc1e0000000000000,
                                        0x43e0000000000000,
                                        0x36a0000000000000,
                                        0x3810000000000001,
                                        0x47efffffffffffff};
static const uint16_t f16_specials[] = {0,      0x8000, 1,      0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400,
                                        0x3c00, 0xbc00, 0x3bff, 0x3c01, 0x4000, 0x3800, 0x7bff, 0xfbff,
                                        0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x6400, 0xe400, 0x5800};
enum { SPECIALS = 24 };

static uint64_t special(const char *inputs, uint32_t n) {
    n %= SPECIALS;
    if (strcmp(inputs, "f64") == 0)
        return f64_specials[n];
    if (strcmp(inputs, "f16") == 0)
        return f16_specials[n] | (uint64_t)f16_specials[(n + 7) % SPECIALS] << 16;
    if (strcmp(inputs, "int") == 0)
        return int_specials[n];
    if (strcmp(inputs, "angle") == 0)
        return bits32((float)(3.14159265 * ((double)n / 12 - 1)));
    return f32_specials[n];
}

/* Random values that are not all huge or tiny: half of them have an exponent close to that of one. */
static uint64_t random_value(const char *inputs) {
    uint64_t r = random_word(), narrow = random_word() & 1;
    if (strcmp(inputs, "f64") == 0)
        return narrow ? (r & 0x803fffffffffffffull) + 0x3fd0000000000000ull : r;
    if (strcmp(inputs, "f32") == 0)
        return narrow ? (r & 0x83ffffff) + 0x3d000000 : r & 0xffffffff;
    if (strcmp(inputs, "approx") == 0)
        return narrow ? (r & 0x83ffffff) + 0x3d000000 : bits32((float)ldexp((double)(r >> 11), -(int)(r & 63) - 25));
    if (strcmp(inputs, "angle") == 0)
        return bits32((float)(((double)(r >> 11) * 0x1p-53 * 2 - 1) * 3.14159265));
    return narrow ? r >> (random_word() & 63) : r;
}

static void make_inputs(const char *inputs, uint64_t *words) {
    random_state = 0x123456789abcdefull;
    for (uint32_t t = 0; t < THREADS; t++)
        for (uint32_t k = 0; k < 3; k++) {
            uint32_t n = k == 0 ? t : k == 1 ? t / SPECIALS : t + t / SPECIALS;
            words[3 * t + k] = t < SPECIALS * SPECIALS ? special(inputs, n) : random_value(inputs);
        }
}

static double quotient(double a, double b) {
    return a / b;
}
static double reciprocal(double a, double b) {
    return (void)b, 1 / a;
}
static double root(double a, double b) {
    return (void)b, sqrt(a);
}
static double inverse_root(double a, double b) {
    return (void)b, 1 / sqrt(a);
}
static double logarithm(double a, double b) {
    return (void)b, log2(a);
}
static double power(double a, double b) {
    return (void)b, exp2(a);
}
static double sine(double a, double b) {
    return (void)b, sin(a);
}
static double cosine(double a, double b) {
    return (void)b, cos(a);
}
static double hyperbolic(double a, double b) {
    return (void)b, tanh(a);
}

/* The bounds that the PTX manual states; an ulp counts as its largest relative size. Quotients: for divisors between
 * 2^-126 and 2^126. */
static const struct bound {
    const char *label;
    double (*function)(double, double);
    double relative, absolute;
} bounds[] = {
    {"rcp.approx.ftz.f64", reciprocal, 0x1p-20, 0},
    {"rsqrt.approx.ftz.f64", inverse_root, 0x1p-19, 0},
    {"rsqrt.approx.f64", inverse_root, 0x1p-50, 0},
    {"rcp.approx", reciprocal, 0x1p-23, 0},
    {"sqrt.approx", root, 0x1p-22, 0},
    {"rsqrt.approx", inverse_root, 0x1p-22, 0},
    {"lg2.approx", logarithm, 0x1p-22, 0x1p-22},
    {"ex2.approx", power, 0x1p-22, 0},
    {"sin.approx", sine, 0, 0x1p-20},
    {"cos.approx", cosine, 0, 0x1p-20},
    {"tanh.approx", hyperbolic, 0x1p-11, 0},
    {"div.approx", quotient, 0x1p-22, 0},
    {"div.full", quotient, 0x1p-22, 0},
};

static double flushed(double x, double least) {
    return fabs(x) < least ? copysign(0, x) : x;
}

static int check_approx(const struct slot *slot, const uint64_t *in, uint64_t out, double *worst) {
    const struct bound *b = bounds;
    while (strncmp(slot->label, b->label, strlen(b->label)) != 0)
        b++;
    int is_double = strstr(slot->label, "f64") != NULL, ftz = strstr(slot->label, "ftz") != NULL;
    double least = is_double ? 0x1p-1022 : 0x1p-126;
    double x = is_double ? double_of(in[0]) : (double)float_of(in[0]);
    double y = is_double ? double_of(in[1]) : (double)float_of(in[1]);
    double got = is_double ? double_of(out) : (double)float_of(out);
    if (b->function == quotient && !(fabs(y) >= 0x1p-126 && fabs(y) <= 0x1p126))
        return 1;
    if (ftz) {
        x = flushed(x, least);
        y = flushed(y, least);
    }
    double want = b->function(x, y);
    if (!is_double && fabs(want) > 0x1.fffffep127 && fabs(got) >= 0x1.fffffcp127)
        return 1;
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    double off = fabs(got - want), room = b->relative * fabs(want) + b->absolute;
    /* A result below the normal range has fewer bits, or none where it is flushed. */
    if (fabs(want) < 2 * least)
        return off <= (ftz || is_double ? 2 * least : 0x1p-148);
    if (room > 0 && off / room > *worst)
        *worst = off / room;
    return off <= room;
}

static uint64_t canonical(const char *check, uint64_t word) {
    if (strcmp(check, "nan32") == 0 && isnan(float_of(word)))
        return 0x7fffffff;
    if (strcmp(check, "nan64") == 0 && isnan(double_of(word)))
        return bits64((double)NAN) & ~(1ull << 63);
    return word;
}

static int recorded(const char *file, const char *kernel, const struct slot *slot, uint64_t hash) {
    char line[1024];
    snprintf(line, sizeof line, "%.200s %.*s %.*s %016llx\n", file, LABEL, kernel, LABEL, slot->label,
             (unsigned long long)hash);
    if (writing)
        fputs(line, written);
    return writing || strstr(record, line) != NULL;
}

static int check_slot(const char *file, const char *kernel, const struct slot *slot, const uint64_t *in,
                      const uint64_t *out, uint32_t slots) {
    uint64_t hash = 0xcbf29ce484222325ull;
    double worst = 0;
    int bad = 0;
    for (uint32_t t = 0; t < THREADS; t++) {
        uint64_t word = canonical(slot->check, out[(size_t)t * slots]);
        if (strcmp(slot->check, "approx") != 0) {
            hash = (hash ^ word) * 0x100000001b3ull;
            hash ^= hash >> 29;
        } else if (!check_approx(slot, in + 3 * t, word, &worst)) {
            if (!bad++)
                fprintf(stderr, "%s %s: of %016llx %016llx: %016llx\n", kernel, slot->label,
                        (unsigned long long)in[3 * t], (unsigned long long)in[3 * t + 1], (unsigned long long)word);
        }
    }
    if (strcmp(slot->check, "approx") == 0) {
        if (dump)
            fprintf(dump, "# %s %s: largest error is %.3f of the bound\n", kernel, slot->label, worst);
        return bad == 0;
    }
    if (recorded(file, kernel, slot, hash))
        return 1;
    fprintf(stderr, "%s %s %s: differs from the record\n", file, kernel, slot->label);
    return 0;
}

static void run_kernel(const char *file, void *module, const char *kernel, const char *inputs, const struct slot *slots,
                       uint32_t count) {
    static uint64_t in[3 * THREADS];
    uint64_t device_in, device_out;
    size_t bytes = (size_t)THREADS * count * 8;
    uint64_t *out = malloc(bytes);
    uint32_t n = THREADS;
    void *function, *params[] = {&device_in, &device_out, &n};
    int failures = 0;
    make_inputs(inputs, in);
    assert_non_null(out);
    assert_int_equal(gpu.alloc(&device_in, sizeof in), 0);
    assert_int_equal(gpu.alloc(&device_out, bytes), 0);
    assert_int_equal(gpu.upload(device_in, in, sizeof in), 0);
    assert_int_equal(gpu.fill(device_out, 0, bytes), 0);
    assert_int_equal(gpu.function(&function, module, kernel), 0);
    assert_int_equal(gpu.launch(function, THREADS / BLOCK, 1, 1, BLOCK, 1, 1, 0, NULL, params, NULL), 0);
    assert_int_equal(gpu.synchronize(), 0);
    assert_int_equal(gpu.download(out, device_out, bytes), 0);
    assert_int_equal(gpu.release_memory(device_in), 0);
    assert_int_equal(gpu.release_memory(device_out), 0);
    for (uint32_t s = 0; s < count; s++) {
        failures += !check_slot(file, kernel, &slots[s], in, out + s, count);
        for (uint32_t t = 0; dump && t < THREADS; t++)
            fprintf(dump, "%s %s %s %016llx %016llx %016llx -> %016llx\n", file, kernel, slots[s].label,
                    (unsigned long long)in[3 * t], (unsigned long long)in[3 * t + 1], (unsigned long long)in[3 * t + 2],
                    (unsigned long long)out[(size_t)t * count + s]);
    }
    free(out);
    assert_int_equal(failures, 0);
}

static void run_file(void **state) {
    const char *file = *state;
    char *text = read_text(folder, file);
    char log[1024] = "";
    int options[] = {5, 6};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    void *module;
    const char *target = strstr(text, "\n.target sm_");
    assert_non_null(target);
    if (atoi(target + 12) > gpu.capability) {
        free(text);
        skip();
    }
    int error = gpu.load(&module, text, 2, options, values);
    if (error)
        fprintf(stderr, "%s: error %d: %s\n", file, error, log);
    assert_int_equal(error, 0);
    for (const char *at = text; (at = strstr(at, "//! ")) != NULL;) {
        char kernel[LABEL], inputs[16];
        struct slot slots[SLOTS];
        unsigned count, found = 0;
        assert_int_equal(sscanf(at, "//! %63s %15s %u", kernel, inputs, &count), 3);
        assert_true(count <= SLOTS);
        const char *end = strstr(at + 4, "//! ");
        while (found < count && (at = strstr(at, "//= ")) != NULL && (!end || at < end)) {
            assert_int_equal(sscanf(at, "//= %63s %15s", slots[found].label, slots[found].check), 2);
            found++;
            at += 4;
        }
        assert_int_equal(found, count);
        run_kernel(file, module, kernel, inputs, slots, count);
    }
    assert_int_equal(gpu.unload(module), 0);
    free(text);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s LIBRARY FOLDER RECORD [--write] [--dump FILE]\n", argv[0]);
        return 2;
    }
    folder = argv[2];
    record_path = argv[3];
    for (int a = 4; a < argc; a++) {
        if (strcmp(argv[a], "--write") == 0)
            writing = 1;
        if (strcmp(argv[a], "--dump") == 0 && a + 1 < argc)
            dump_path = argv[++a];
    }
    gpu_open(&gpu, argv[1]);
    if (writing)
        written = fopen(record_path, "w");
    else
        record = read_text(NULL, record_path);
    if (dump_path)
        dump = fopen(dump_path, "w");
    if (writing && !written) {
        fprintf(stderr, "cannot open %s\n", record_path);
        return 2;
    }
    int failed = run_folder("instructions", folder, run_file);
    if (written)
        fclose(written);
    if (dump)
        fclose(dump);
    free(record);
    gpu.release(0);
    return failed;
}
