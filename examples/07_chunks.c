/* The loss of a linear layer in chunks of rows: all logits, hidden weight^T, never exist at once. Here the CPU
 * multiplies the matrices, to need nothing else. In practice cuBLAS or CUTLASS does, on the stream of the losses. The
 * loss and both gradients are compared with the results of one call for all rows.
 *     cc -std=c99 -O2 examples/07_chunks.c -o chunks -lm        (glibc older than 2.34: add -ldl) */
#define GPULOSS_IMPLEMENTATION
#include "../gpuloss.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 200, FEATURES = 24, CLASSES = 500, CHUNK = 48 /* rows; memory is for as many logits */ };

typedef struct gradients {
    float loss, hidden[ROWS][FEATURES], weight[CLASSES][FEATURES];
} gradients;

static float hidden[ROWS][FEATURES], weight[CLASSES][FEATURES];
static int64_t targets[ROWS];
/* Sums of the magnitudes of products, which bound the rounding errors. */
static double hidden_size[ROWS][FEATURES], weight_size[CLASSES][FEATURES];

static gpuloss_context *gpu;
static void *gpu_logits, *gpu_targets, *gpu_loss, *gpu_divisor;

static void check(gpuloss_status status) {
    if (status == GPULOSS_OK)
        return;
    fprintf(stderr, "%s\n", gpuloss_last_error());
    exit((int)gpuloss_group_of(status)); /* 2: this machine lacks something */
}

/* The products of a chunk, from row `first` on. Its gradient is left in the logits, and added up for the weight. */
static void chunk_of(gpuloss_cross_entropy_desc *d, int first, int rows, gradients *to) {
    static float x[ROWS][CLASSES];
    const size_t bytes = sizeof x[0] * (size_t)rows;
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < CLASSES; c++) {
            x[i][c] = 0;
            for (int k = 0; k < FEATURES; k++)
                x[i][c] += hidden[first + i][k] * weight[c][k];
        }
    check(gpuloss_upload(gpu, gpu_logits, x, bytes, NULL));
    d->rows = rows;
    d->targets = (int64_t *)gpu_targets + first;
    check(gpuloss_cross_entropy(gpu, d, NULL));
    check(gpuloss_download(gpu, x, gpu_logits, bytes, NULL));
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < CLASSES; c++)
            for (int k = 0; k < FEATURES; k++) {
                const float of_hidden = x[i][c] * weight[c][k], of_weight = x[i][c] * hidden[first + i][k];
                to->hidden[first + i][k] += of_hidden;
                to->weight[c][k] += of_weight;
                hidden_size[first + i][k] += (double)fabsf(of_hidden);
                weight_size[c][k] += (double)fabsf(of_weight);
            }
}

/* The mean over all rows that are not ignored, `chunk` rows at a time. */
static void run(int chunk, gradients *to) {
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS; /* mean, ignore_index = -100 */
    memset(to, 0, sizeof *to);
    memset(hidden_size, 0, sizeof hidden_size);
    memset(weight_size, 0, sizeof weight_size);
    d.dtype = GPULOSS_F32;
    d.targets = gpu_targets;
    d.target_type = GPULOSS_I64;
    d.rows = ROWS;
    d.classes = CLASSES;
    /* Each chunk divides by the number of all rows that count, which stays on the GPU. */
    check(gpuloss_cross_entropy_divisor(gpu, &d, gpu_divisor, NULL));
    check(gpuloss_upload(gpu, gpu_loss, &to->loss, sizeof to->loss, NULL)); /* 0, to which the chunks add */
    d.divisor_in = gpu_divisor;
    d.flags |= GPULOSS_ADD_SUMS;
    d.logits = gpu_logits;
    d.grad_logits = gpu_logits; /* over the logits: they are not needed again */
    d.loss = gpu_loss;
    for (int first = 0; first < ROWS; first += chunk)
        chunk_of(&d, first, first + chunk < ROWS ? chunk : ROWS - first, to);
    check(gpuloss_download(gpu, &to->loss, gpu_loss, sizeof to->loss, NULL));
}

/* The largest difference, in units of the allowed difference, with u = 2^-24. Here no logit is 9 below the largest of
 * its row, and no probability is above 0.1. The gradient of a logit is thus within 9 u of its exact value for the
 * exponent, and 15 u for all else. Two runs differ by 48 u. Both add products in the same order, at most 500: 500 u
 * more each. */
static double compare(const float *one, const float *other, const double *size, int count) {
    double worst = 0;
    for (int i = 0; i < count; i++)
        worst = fmax(worst, fabs((double)one[i] - (double)other[i]) / (ldexp(48 + 2 * 500, -24) * size[i]));
    return worst;
}

int main(void) {
    static gradients whole, chunks;
    const gpuloss_create_desc create = {.flags = GPULOSS_CHECK_POINTERS}; /* while a program is new */
    double of_loss, of_hidden, of_weight;
    for (int k = 0; k < FEATURES; k++) {
        for (int i = 0; i < ROWS; i++)
            hidden[i][k] = (float)sin(0.7 * i + 1.3 * k);
        for (int c = 0; c < CLASSES; c++)
            weight[c][k] = (float)(0.5 * cos(0.3 * c * (k + 1)));
    }
    for (int i = 0; i < ROWS; i++)
        targets[i] = i % 7 == 3 ? -100 : i * 37 % CLASSES;

    check(gpuloss_create(&gpu, &create));
    check(gpuloss_alloc(gpu, &gpu_targets, sizeof targets));
    check(gpuloss_alloc(gpu, &gpu_loss, sizeof(float)));
    check(gpuloss_alloc(gpu, &gpu_divisor, sizeof(float)));
    check(gpuloss_upload(gpu, gpu_targets, targets, sizeof targets, NULL));
    check(gpuloss_alloc(gpu, &gpu_logits, sizeof(float) * CHUNK * CLASSES));
    run(CHUNK, &chunks);
    check(gpuloss_free(gpu, gpu_logits));
    check(gpuloss_alloc(gpu, &gpu_logits, sizeof(float) * ROWS * CLASSES));
    run(ROWS, &whole);

    /* Each chunk rounds the loss once. That of a row is at most 13, and within 13 u + 24 u of its exact value. */
    of_loss = fabs((double)whole.loss - (double)chunks.loss) /
              ldexp((double)whole.loss * (ROWS / CHUNK + 1) + 2 * (13 + 24), -24);
    of_hidden = compare(*whole.hidden, *chunks.hidden, *hidden_size, ROWS * FEATURES);
    of_weight = compare(*whole.weight, *chunks.weight, *weight_size, CLASSES * FEATURES);
    printf("loss of one call %.6f, of %d chunks %.6f\n", (double)whole.loss, (ROWS + CHUNK - 1) / CHUNK,
           (double)chunks.loss);
    printf("difference over the allowed one: loss %.3f, gradients of hidden %.3f, of weight %.3f\n", of_loss, of_hidden,
           of_weight);
    check(gpuloss_free(gpu, gpu_logits)), check(gpuloss_free(gpu, gpu_targets));
    check(gpuloss_free(gpu, gpu_loss)), check(gpuloss_free(gpu, gpu_divisor));
    gpuloss_destroy(gpu);
    return of_loss <= 1 && of_hidden <= 1 && of_weight <= 1 ? 0 : 1;
}
