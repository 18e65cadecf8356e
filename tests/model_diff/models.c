/* Two language models of bytes, the files of their logits, and the figures that model_diff has to print of them:
 *     models FOLDER TEXT...
 * The models count pairs and triples of bytes in the texts, and add SMOOTHING to each count. For each pair of files, KIND.base
 * and KIND.other go to the folder, with KIND.targets, KIND.kls (the KL of each row) and KIND.expected. The latter has a line
 * for each figure: its name, value, standard error, and the bounds of these two. Exit status: 0, 1 if the rows of a .kld file are not within the bounds
 * that examples/model_diff.c states, 3 for other errors. */
#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TEXT = 1 << 20, CONTEXT = 64, CHUNKS = 20, TYPO_EVERY = 41, TYPO = 0x7f };
static const double SMOOTHING = 1e-5;

static unsigned char text[MOST_TEXT];
static size_t length;
static int32_t tokens[CHUNKS * CONTEXT];

static void read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(3);
    }
    length += fread(text + length, 1, MOST_TEXT - length, file);
    fclose(file);
}

/* Logits of the byte after `before`, of which `context` bytes count. */
static void predict(const int32_t *before, size_t context, double *logits) {
    size_t at, k;
    int c;
    for (c = 0; c < CLASSES; c++)
        logits[c] = SMOOTHING;
    for (at = context; at < length; at++) {
        for (k = 1; k <= context && text[at - k] == before[-(ptrdiff_t)k]; k++)
            continue;
        if (k > context)
            logits[text[at]]++;
    }
    for (c = 0; c < CLASSES; c++)
        logits[c] = log(logits[c]);
}

/* Pieces of the text. Now and then they contain a byte that the text does not have: its logit is the least, and after
 * it all logits are equal. */
static void choose_tokens(void) {
    int chunk, at;
    for (chunk = 0; chunk < CHUNKS; chunk++)
        for (at = 0; at < CONTEXT; at++) {
            const int i = chunk * CONTEXT + at;
            tokens[i] = i % TYPO_EVERY == 0 ? TYPO : text[(size_t)chunk * (length - CONTEXT) / CHUNKS + (size_t)at];
        }
}

static model_row base[ROWS], triples[ROWS], pairs[ROWS], rounded[ROWS];

static void predict_all(void) {
    int row, c;
    for (row = 0; row < ROWS; row++) {
        const int at = row / CHUNK_ROWS * CONTEXT + CONTEXT / 2 + 1 + row % CHUNK_ROWS;
        triples[row].classes = pairs[row].classes = rounded[row].classes = CLASSES;
        triples[row].target = pairs[row].target = rounded[row].target = tokens[at];
        predict(tokens + at, 2, triples[row].logits);
        predict(tokens + at, 1, pairs[row].logits);
        for (c = 0; c < CLASSES; c++)
            rounded[row].logits[c] = rint(8 * triples[row].logits[c]) / 8;
    }
}

/* ---- files ---- */

static FILE *create(const char *folder, const char *kind, const char *name) {
    char path[4096];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s.%s", folder, kind, name);
    file = fopen(path, "wb");
    if (file == NULL) {
        perror(path);
        exit(3);
    }
    return file;
}

static void finish(FILE *file) {
    if (ferror(file) != 0 || fclose(file) != 0) {
        perror("a file could not be written");
        exit(3);
    }
}

/* Writes an array, and sets its values. */
static void write_array(FILE *file, gpuloss_dtype dtype, model_row *rows) {
    char element[8];
    int row, c;
    for (row = 0; row < ROWS; row++)
        for (c = 0; c < CLASSES; c++) {
            dtype_store(dtype, element, rows[row].logits[c]);
            fwrite(element, dtype_size(dtype), 1, file);
            rows[row].logits[c] = dtype_load(dtype, element);
        }
    finish(file);
}

static void write_targets(FILE *file, gpuloss_index_type type) {
    int row;
    for (row = 0; row < ROWS; row++) {
        const int64_t target = triples[row].target; /* little-endian: its first bytes are the same number */
        fwrite(&target, type == GPULOSS_I64 ? 8 : type == GPULOSS_I32 ? 4 : type == GPULOSS_I16 ? 2 : 1, 1, file);
    }
    finish(file);
}

/* `more` is added to each logarithm. */
static void write_kld(FILE *file, model_row *rows, double more) {
    const int classes = rows[0].classes;
    const int32_t header[3] = {CONTEXT, classes, CHUNKS};
    int row, c;
    fwrite("_logits_", 8, 1, file);
    fwrite(header, sizeof header, 1, file);
    fwrite(tokens, sizeof tokens, 1, file);
    for (row = 0; row < ROWS; row++) {
        double *logits = rows[row].logits, largest = logits[0], least = logits[0], sum = 0;
        float numbers[2]; /* scale, log p of u = 0 */
        uint16_t u[CLASSES + 1] = {0};
        for (c = 1; c < classes; c++) {
            largest = fmax(largest, logits[c]);
            least = fmin(least, logits[c]);
        }
        least = fmax(least, largest - 16);
        for (c = 0; c < classes; c++)
            sum += exp(logits[c] - largest);
        numbers[0] = (float)((largest - least) / 65535);
        numbers[1] = (float)(least - largest - log(sum) + more);
        for (c = 0; c < classes; c++) {
            u[c] = logits[c] > least ? (uint16_t)lrint((logits[c] - least) / (double)numbers[0]) : 0;
            rows[row].cut_off[c] = logits[c] <= largest - 16;
            logits[c] = (double)numbers[0] * u[c] + (double)numbers[1];
        }
        fwrite(numbers, sizeof numbers, 1, file);
        fwrite(u, sizeof u[0], (size_t)(classes + classes % 2), file);
    }
    finish(file);
}

/* ---- kinds ---- */

static void copy(model_row *to, const model_row *from) {
    memcpy(to, from, sizeof base);
}

static void make_arrays(const char *folder, const char *kind, gpuloss_dtype dtype, gpuloss_index_type type,
                        const model_row *left, const model_row *right) {
    static model_row other[ROWS];
    copy(base, left);
    copy(other, right);
    write_array(create(folder, kind, "base"), dtype, base);
    write_array(create(folder, kind, "other"), dtype, other);
    write_targets(create(folder, kind, "targets"), type);
    write_expected(create(folder, kind, "expected"), create(folder, kind, "kls"), dtype, false, base, other);
}

static bool make_kld(const char *folder, const char *kind, const model_row *left, const model_row *right) {
    static model_row other[ROWS];
    copy(base, left);
    copy(other, right);
    write_kld(create(folder, kind, "base"), base, 0);
    write_kld(create(folder, kind, "other"), other, 0);
    write_expected(create(folder, kind, "expected"), create(folder, kind, "kls"), GPULOSS_F32, true, base, other);
    return within_stated_bounds(kind, left, right, base, other);
}

/* Writes .kld files of an odd number of classes. */
static bool make_odd_kld(const char *folder) {
    static model_row left[ROWS], right[ROWS];
    int row;
    copy(left, triples);
    copy(right, rounded);
    for (row = 0; row < ROWS; row++)
        left[row].classes = right[row].classes = CLASSES - 1;
    return make_kld(folder, "odd_kld", left, right);
}

/* Rows that add up to exp(0.01) and exp(0.02), to which a cut-off brings them where there are 90000 and 180000 classes. */
static void make_sums_kld(const char *folder) {
    static model_row other[ROWS];
    copy(base, triples);
    copy(other, rounded);
    write_kld(create(folder, "sums_kld", "base"), base, 0.01);
    write_kld(create(folder, "sums_kld", "other"), other, 0.02);
    write_expected(create(folder, "sums_kld", "expected"), create(folder, "sums_kld", "kls"), GPULOSS_F32, true, base,
                   other);
}

/* Both models without a class that is never a target. */
static void make_masked(const char *folder) {
    static model_row left[ROWS], right[ROWS];
    int row;
    copy(left, triples);
    copy(right, pairs);
    for (row = 0; row < ROWS; row++)
        left[row].logits[CLASSES - 1] = right[row].logits[CLASSES - 1] = -(double)INFINITY;
    make_arrays(folder, "masked", GPULOSS_F32, GPULOSS_I16, left, right);
}

/* Rows without figures: NaN, infinity, a class or the true token of probability 0, no probability at all. */
static void make_nonfinite(const char *folder) {
    static model_row left[ROWS], right[ROWS];
    int row, c;
    copy(left, triples);
    copy(right, pairs);
    for (row = 7; row < ROWS; row += 50) {
        double *x = left[row].logits, *y = right[row].logits;
        left[row].left_out = true;
        if (row / 50 % 5 == 0)
            x[3] = (double)NAN;
        else if (row / 50 % 5 == 1)
            y[200] = (double)INFINITY;
        else if (row / 50 % 5 == 2)
            y[9] = -(double)INFINITY;
        else if (row / 50 % 5 == 3)
            x[left[row].target] = y[left[row].target] = -(double)INFINITY;
        else
            for (c = 0; c < CLASSES; c++)
                x[c] = y[c] = -(double)INFINITY;
    }
    make_arrays(folder, "nonfinite", GPULOSS_F32, GPULOSS_I64, left, right);
}

int main(int argc, char **argv) {
    const char *folder = argv[1];
    bool good;
    int i;
    for (i = 2; i < argc; i++)
        read_text(argv[i]);
    if (length < CONTEXT || length == MOST_TEXT || memchr(text, TYPO, length) != NULL) {
        fprintf(stderr, "got a text of %zu bytes, expected %d to %d, none of them %d\n", length, CONTEXT, MOST_TEXT,
                TYPO);
        return 3;
    }
    choose_tokens();
    predict_all();
    make_arrays(folder, "f32", GPULOSS_F32, GPULOSS_I64, triples, pairs);
    make_arrays(folder, "f64", GPULOSS_F64, GPULOSS_I32, triples, pairs);
    make_arrays(folder, "f16", GPULOSS_F16, GPULOSS_I16, triples, pairs);
    make_arrays(folder, "bf16", GPULOSS_BF16, GPULOSS_U8, triples, pairs);
    make_arrays(folder, "rounded", GPULOSS_F32, GPULOSS_I32, triples, rounded);
    make_masked(folder);
    make_nonfinite(folder);
    make_sums_kld(folder);
    good = make_kld(folder, "kld", triples, pairs);
    good = make_odd_kld(folder) && good;
    return good ? 0 : 1;
}
