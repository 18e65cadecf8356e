/* Shared by 02_digits.c and 03_distill.c: the images, a network with one hidden layer, and the check of a status.
 * Everything here runs on the CPU; the losses are in the examples themselves. */
#ifndef DIGITS_H
#define DIGITS_H

#include "../gpuloss.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    IMAGES = 1797,
    HELD_OUT = IMAGES / 4, /* every fourth image is excluded from the training, to test with */
    TRAINING = IMAGES - HELD_OUT,
    PIXELS = 64,
    CLASSES = 10,
    BATCH = 64,
    MAX_HIDDEN = 64
};

/* Ends the program when a call failed. The exit code is the group of the status: 2 when this machine lacks something.
 */
static void check(gpuloss_status status) {
    if (status == GPULOSS_OK)
        return;
    fprintf(stderr, "%s\n", gpuloss_last_error());
    if (gpuloss_group_of(status) == GPULOSS_GROUP_ENVIRONMENT)
        fprintf(stderr,
                "This example computes its loss on an NVIDIA GPU: it needs one, and NVIDIA's driver for it, which "
                "brings libcuda.so.1\n(nvcuda.dll on Windows). The CUDA toolkit is not needed.\n");
    exit((int)gpuloss_group_of(status));
}

/* ------------------------------------------------------------------------------------------------------------- data */

typedef struct image {
    float pixel[PIXELS + 1]; /* 0 (paper) to 1 (ink); the last is always 1 and carries the biases */
    int32_t digit;
} image;

/* Reads one line of 64 pixels (0 to 16) and a digit. Returns a message if the line is wrong, or NULL. */
static const char *parse_image(char *text, image *out) {
    for (int i = 0; i <= PIXELS; i++) {
        char *end;
        long value = strtol(text, &end, 10);
        if (end == text)
            return "a number is missing";
        if (value < 0 || value > (i < PIXELS ? 16 : CLASSES - 1))
            return "a number is out of range";
        if (i < PIXELS ? *end != ',' : *end != '\0' && *end != '\n' && *end != '\r')
            return "not 65 numbers";
        if (i < PIXELS)
            out->pixel[i] = (float)value / 16;
        else
            out->digit = (int32_t)value;
        text = end + 1;
    }
    out->pixel[PIXELS] = 1;
    return NULL;
}

/* Reads all images and puts the training images first. Ends the program when it cannot. */
static void load_images(const char *path, image images[IMAGES]) {
    char line[512];
    FILE *file = fopen(path, "r");
    if (!file) {
        perror(path);
        fprintf(stderr, "Run this in the top folder of gpuloss, or give the path of digits.csv as the argument.\n");
        exit(1);
    }
    for (int i = 0; i < IMAGES; i++) {
        image *out = &images[i % 4 == 3 ? TRAINING + i / 4 : i - i / 4];
        const char *wrong = fgets(line, sizeof line, file) ? parse_image(line, out) : "the line cannot be read";
        if (wrong) {
            fprintf(stderr, "%s:%d: %s\n", path, i + 1, wrong);
            exit(1);
        }
    }
    fclose(file);
}

/* The next of a fixed sequence of pseudo-random numbers (xorshift32); the state starts at any number but 0. */
static uint32_t random_next(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Puts the training images into a new order, from which an epoch takes its batches. */
static void shuffle(const image *order[TRAINING], uint32_t *state) {
    for (int i = TRAINING - 1; i > 0; i--) {
        uint32_t other = random_next(state) % (uint32_t)(i + 1);
        const image *moved = order[i];
        order[i] = order[other];
        order[other] = moved;
    }
}

/* ---------------------------------------------------------------------------------------------------------- network */

/* logits = w2 leaky_relu(w1 pixels), with the biases in the last column of w1 and of w2. */
typedef struct network {
    int hidden;
    float w1[MAX_HIDDEN][PIXELS + 1], step1[MAX_HIDDEN][PIXELS + 1];
    float w2[CLASSES][MAX_HIDDEN + 1], step2[CLASSES][MAX_HIDDEN + 1];
} network;

/* A pseudo-random weight between -limit and limit. */
static float random_weight(float limit, uint32_t *state) {
    return limit * ((float)(random_next(state) >> 8) / 8388608.0f - 1);
}

static void network_init(network *net, int hidden, uint32_t *state) {
    memset(net, 0, sizeof *net);
    net->hidden = hidden;
    for (int h = 0; h < hidden; h++)
        for (int i = 0; i < PIXELS; i++)
            net->w1[h][i] = random_weight(sqrtf(6.0f / PIXELS), state);
    for (int c = 0; c < CLASSES; c++)
        for (int h = 0; h < hidden; h++)
            net->w2[c][h] = random_weight(sqrtf(3.0f / (float)hidden), state);
}

static float dot(const float *a, const float *b, int count) {
    float sum = 0;
    for (int i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

static void network_forward(const network *net, const image *in, float hidden[MAX_HIDDEN + 1], float logits[CLASSES]) {
    for (int h = 0; h < net->hidden; h++) {
        float sum = dot(net->w1[h], in->pixel, PIXELS + 1);
        hidden[h] = sum < 0 ? 0.1f * sum : sum;
    }
    hidden[net->hidden] = 1;
    for (int c = 0; c < CLASSES; c++)
        logits[c] = dot(net->w2[c], hidden, net->hidden + 1);
}

/* One step of gradient descent with momentum 0.9 on a batch, from the gradient of its loss to the logits. */
static void network_learn(network *net, const image *const batch[BATCH], float grad_logits[BATCH][CLASSES],
                          float rate) {
    for (int h = 0; h < net->hidden; h++)
        for (int i = 0; i <= PIXELS; i++)
            net->step1[h][i] *= 0.9f;
    for (int c = 0; c < CLASSES; c++)
        for (int h = 0; h <= net->hidden; h++)
            net->step2[c][h] *= 0.9f;
    for (int row = 0; row < BATCH; row++) {
        float hidden[MAX_HIDDEN + 1], logits[CLASSES];
        network_forward(net, batch[row], hidden, logits);
        for (int h = 0; h <= net->hidden; h++) {
            float grad_hidden = 0;
            for (int c = 0; c < CLASSES; c++) {
                grad_hidden += grad_logits[row][c] * net->w2[c][h];
                net->step2[c][h] -= rate * grad_logits[row][c] * hidden[h];
            }
            if (h == net->hidden)
                continue;
            if (hidden[h] < 0)
                grad_hidden *= 0.1f;
            for (int i = 0; i <= PIXELS; i++)
                net->step1[h][i] -= rate * grad_hidden * batch[row]->pixel[i];
        }
    }
    for (int h = 0; h < net->hidden; h++)
        for (int i = 0; i <= PIXELS; i++)
            net->w1[h][i] += net->step1[h][i];
    for (int c = 0; c < CLASSES; c++)
        for (int h = 0; h <= net->hidden; h++)
            net->w2[c][h] += net->step2[c][h];
}

/* How many of the test images the network names rightly. */
static int network_test(const network *net, const image images[IMAGES]) {
    int right = 0;
    for (int i = TRAINING; i < IMAGES; i++) {
        float hidden[MAX_HIDDEN + 1], logits[CLASSES];
        int best = 0;
        network_forward(net, &images[i], hidden, logits);
        for (int c = 1; c < CLASSES; c++)
            best = logits[c] > logits[best] ? c : best;
        right += best == images[i].digit;
    }
    return right;
}

#endif
