/* Trains a network to read handwritten digits. The network is C code on the CPU. Its loss, and the gradient of the loss
 * to the logits, come from the GPU in one fused call for every batch.
 *     cc -std=c99 -O2 examples/02_digits.c -o digits -lm          (glibc older than 2.34: add -ldl)
 *     ./digits [examples/data/digits.csv] */
#define GPULOSS_IMPLEMENTATION
#include "digits.h"

enum { HIDDEN = 64, EPOCHS = 12 };

int main(int argc, char **argv) {
    static image images[IMAGES];
    static network net;
    static const image *order[TRAINING];
    static float logits[BATCH][CLASSES], grad[BATCH][CLASSES];
    int32_t targets[BATCH];
    uint32_t state = 1;
    int right = 0;
    float loss;
    const gpuloss_create_desc create = {.flags = GPULOSS_CHECK_POINTERS}; /* while a program is new */
    gpuloss_context *gpu;
    gpuloss_info info;
    void *gpu_logits, *gpu_targets, *gpu_loss;
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;

    load_images(argc > 1 ? argv[1] : "examples/data/digits.csv", images);
    check(gpuloss_create(&gpu, &create));
    check(gpuloss_get_info(gpu, &info));
    check(gpuloss_alloc(gpu, &gpu_logits, sizeof logits));
    check(gpuloss_alloc(gpu, &gpu_targets, sizeof targets));
    check(gpuloss_alloc(gpu, &gpu_loss, sizeof loss));
    printf("%d images for training, %d held out; loss on %s\n", TRAINING, HELD_OUT, info.device_name);

    d.logits = gpu_logits;
    d.dtype = GPULOSS_F32;
    d.targets = gpu_targets;
    d.target_type = GPULOSS_I32;
    d.rows = BATCH;
    d.classes = CLASSES;
    d.reduction = GPULOSS_MEAN;
    d.loss = gpu_loss;
    d.grad_logits = gpu_logits; /* over the logits: they are not needed again */

    network_init(&net, HIDDEN, &state);
    for (int i = 0; i < TRAINING; i++)
        order[i] = &images[i];
    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        float rate = 0.15f * (float)(EPOCHS + 1 - epoch) / EPOCHS;
        double total = 0;
        shuffle(order, &state);
        for (int first = 0; first + BATCH <= TRAINING; first += BATCH) {
            const image **batch = order + first;
            for (int row = 0; row < BATCH; row++) {
                float hidden[MAX_HIDDEN + 1];
                network_forward(&net, batch[row], hidden, logits[row]);
                targets[row] = batch[row]->digit;
            }
            check(gpuloss_upload(gpu, gpu_logits, logits, sizeof logits, NULL));
            check(gpuloss_upload(gpu, gpu_targets, targets, sizeof targets, NULL));
            check(gpuloss_cross_entropy(gpu, &d, NULL));
            check(gpuloss_download(gpu, &loss, gpu_loss, sizeof loss, NULL));
            check(gpuloss_download(gpu, grad, gpu_logits, sizeof grad, NULL));
            network_learn(&net, batch, grad, rate);
            total += (double)loss;
        }
        right = network_test(&net, images);
        printf("epoch %2d   train loss %.4f   held-out accuracy %.2f %%\n", epoch, total / (TRAINING / BATCH),
               100.0 * right / HELD_OUT);
    }

    check(gpuloss_free(gpu, gpu_logits));
    check(gpuloss_free(gpu, gpu_targets));
    check(gpuloss_free(gpu, gpu_loss));
    gpuloss_destroy(gpu);
    printf("held-out accuracy: %.2f %% (%d of %d)\n", 100.0 * right / HELD_OUT, right, HELD_OUT);
    return 100 * right > 93 * HELD_OUT ? 0 : 1;
}
