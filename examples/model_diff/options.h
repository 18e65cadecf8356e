/* The options of model_diff, and its errors. */
#ifndef EXAMPLES_MODEL_DIFF_OPTIONS_H
#define EXAMPLES_MODEL_DIFF_OPTIONS_H

#include "../../gpuloss.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "model_diff [options] BASE OTHER\n"
    "Compares the logits of two language models over the same tokens, on the GPU.\n"
    "BASE and OTHER are .kld files of llama-perplexity --save-all-logits, or little-endian arrays [tokens, classes]:\n"
    "  --dtype f32|f64|f16|bf16          of both arrays\n"
    "  --classes N                       logits a token\n"
    "  --targets FILE                    array of the true tokens; without it, what needs them is left out\n"
    "  --target-dtype i64|i32|i16|u8     of that array\n"
    "Options\n"
    "  --memory MIB      device memory of the batches, 256 unless given; the host takes as much\n"
    "  --device N        number of the GPU, 0 unless given\n"
    "  --skip-nonfinite  leave out rows whose KL or cross-entropy is NaN or infinite, instead of refusing the files\n"
    "  --csv FILE        write each figure with all its digits\n"
    "  --svg FILE        draw a histogram of KL a token\n"
    ".kld files hold rounded log-probabilities, cut off 16 below the largest of a row. Bounds, with h = 1.4e-4:\n"
    "  perplexity        a factor exp(h); too small by more where true tokens are cut off, which are counted\n"
    "  KL                rounding: h (KL + 2 sqrt(2 KL)) + 4 h^2; cut-off: too large by a share classes * exp(-16),\n"
    "                    too small without a bound where OTHER cuts off what BASE finds likely\n"
    "  p of true token   2 h\n"
    "  equal top tokens  rows whose two largest log-probabilities are within 2 h\n"
    "Exit status: 0, 1 for bad input, 2 if this machine lacks a driver or GPU, 3 for other errors.\n";

enum { BASE, OTHER, SIDES, BATCHES = 2, MOST_REPORTED = 10 };
enum { BAD_INPUT = 1, MACHINE_LACKS = 2, OTHER_ERROR = 3 };
static const char *const role[SIDES] = {"BASE", "OTHER"};

/* ---- errors and progress ---- */

static bool progress_shown;

static void erase_progress(void) {
    if (progress_shown)
        fprintf(stderr, "\r%60s\r", "");
    progress_shown = false;
}

#define say(...) (erase_progress(), fprintf(stderr, "model_diff: " __VA_ARGS__), (void)fputc('\n', stderr))
#define die(status, ...) (say(__VA_ARGS__), exit(status))

/* A wrong call comes of a wrong option: --device, or classes of which a row is too large. */
static void check(gpuloss_status status) {
    const gpuloss_status_group group = gpuloss_group_of(status);
    if (status != GPULOSS_OK)
        die(group == GPULOSS_GROUP_USAGE         ? BAD_INPUT
            : group == GPULOSS_GROUP_ENVIRONMENT ? MACHINE_LACKS
                                                 : OTHER_ERROR,
            "%s", gpuloss_last_error());
}

static void *allocate(int64_t count, size_t bytes) {
    void *room = (uint64_t)count <= SIZE_MAX / bytes ? calloc((size_t)count + (count == 0), bytes) : NULL;
    if (room == NULL)
        die(OTHER_ERROR, "out of host memory: %lld times %zu bytes", (long long)count, bytes);
    return room;
}

/* ---- options ---- */

static const struct dtype {
    const char *name;
    gpuloss_dtype dtype;
    size_t bytes;
    int fraction_bits;
} dtypes[] = {{"f32", GPULOSS_F32, 4, 23},
              {"f64", GPULOSS_F64, 8, 52},
              {"f16", GPULOSS_F16, 2, 10},
              {"bf16", GPULOSS_BF16, 2, 7}};

static const struct index_type {
    const char *name;
    gpuloss_index_type type;
    size_t bytes;
} index_types[] = {{"i64", GPULOSS_I64, 8}, {"i32", GPULOSS_I32, 4}, {"i16", GPULOSS_I16, 2}, {"u8", GPULOSS_U8, 1}};

static struct {
    const char *path[SIDES], *targets, *csv, *svg;
    const struct dtype *dtype;
    const struct index_type *target_dtype;
    int64_t classes; /* 0: not given */
    double mebibytes;
    int device;
    bool skip_nonfinite;
} option = {.mebibytes = 256};

static const struct dtype *dtype_named(const char *name) {
    size_t i;
    for (i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(name, dtypes[i].name) == 0)
            return &dtypes[i];
    die(BAD_INPUT, "--dtype: got %s, expected f32, f64, f16 or bf16", name);
    return NULL;
}

static const struct index_type *index_type_named(const char *name) {
    size_t i;
    for (i = 0; i < sizeof index_types / sizeof index_types[0]; i++)
        if (strcmp(name, index_types[i].name) == 0)
            return &index_types[i];
    die(BAD_INPUT, "--target-dtype: got %s, expected i64, i32, i16 or u8", name);
    return NULL;
}

static int64_t whole_number(const char *name, const char *text, int64_t least) {
    char *end;
    const long long number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || number < least || number > INT32_MAX)
        die(BAD_INPUT, "%s: got %s, expected a whole number from %lld to %ld", name, text, (long long)least,
            (long)INT32_MAX);
    return number;
}

static double mebibytes_of(const char *text) {
    enum { MOST = 1 << 24 };
    char *end;
    const double number = strtod(text, &end);
    if (*end != '\0' || !(number > 0 && number <= MOST))
        die(BAD_INPUT, "--memory: got %s, expected mebibytes above 0, at most %d", text, MOST);
    return number;
}

enum { DTYPE, CLASSES, TARGETS, TARGET_DTYPE, MEMORY, DEVICE, CSV, SVG, WITH_VALUE };
static const char *const with_value[WITH_VALUE] = {"--dtype",  "--classes", "--targets", "--target-dtype",
                                                   "--memory", "--device",  "--csv",     "--svg"};

static void read_option(int number, const char *value) {
    const char *name = with_value[number];
    if (number == DTYPE)
        option.dtype = dtype_named(value);
    else if (number == CLASSES)
        option.classes = whole_number(name, value, 1);
    else if (number == TARGETS)
        option.targets = value;
    else if (number == TARGET_DTYPE)
        option.target_dtype = index_type_named(value);
    else if (number == MEMORY)
        option.mebibytes = mebibytes_of(value);
    else if (number == DEVICE)
        option.device = (int)whole_number(name, value, 0);
    else if (number == CSV)
        option.csv = value;
    else
        option.svg = value;
}

static void read_options(int argc, char **argv) {
    int at, number, files = 0;
    for (at = 1; at < argc; at++) {
        const char *name = argv[at];
        for (number = 0; number < WITH_VALUE && strcmp(name, with_value[number]) != 0; number++)
            continue;
        if (number < WITH_VALUE) {
            if (++at == argc)
                die(BAD_INPUT, "%s: got no value, expected one", name);
            read_option(number, argv[at]);
        } else if (strcmp(name, "--help") == 0) {
            printf("%s", usage);
            exit(0);
        } else if (strcmp(name, "--skip-nonfinite") == 0)
            option.skip_nonfinite = true;
        else if (strncmp(name, "--", 2) == 0)
            die(BAD_INPUT, "%s: no such option; --help lists them", name);
        else if (files == SIDES)
            die(BAD_INPUT, "%s: got a third file, expected BASE and OTHER", name);
        else
            option.path[files++] = name;
    }
    if (files < SIDES)
        die(BAD_INPUT, "got %d files, expected BASE and OTHER; --help says more", files);
}

#endif
