/* Cross-entropy of 4 rows of 3 logits, and its gradient: cc -std=c99 -O2 examples/01_smallest.c -o smallest */
#define GPULOSS_IMPLEMENTATION
#include "../gpuloss.h"
#include <stdio.h>
#include <stdlib.h>

static void check(gpuloss_status status) {
    if (status == GPULOSS_OK)
        return;
    fprintf(stderr, "%s\n", gpuloss_last_error());
    exit((int)gpuloss_group_of(status)); /* 2: this machine lacks something */
}

int main(void) {
    float x[4][3] = {{2, 0, -1}, {0, 3, 0}, {1, 1, 1}, {-2, 0, 4}}, grad_x[4][3], mean;
    int32_t y[4] = {0, 1, 2, 0};
    const gpuloss_create_desc create = {.flags = GPULOSS_CHECK_POINTERS}; /* while a program is new */
    gpuloss_context *gpu;
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    void *logits, *targets, *grad, *loss;
    check(gpuloss_create(&gpu, &create));
    check(gpuloss_alloc(gpu, &logits, sizeof x));
    check(gpuloss_alloc(gpu, &targets, sizeof y));
    check(gpuloss_alloc(gpu, &grad, sizeof grad_x));
    check(gpuloss_alloc(gpu, &loss, sizeof mean));
    check(gpuloss_upload(gpu, logits, x, sizeof x, NULL));
    check(gpuloss_upload(gpu, targets, y, sizeof y, NULL));
    d.logits = logits, d.dtype = GPULOSS_F32, d.targets = targets, d.target_type = GPULOSS_I32;
    d.rows = 4, d.classes = 3, d.loss = loss, d.grad_logits = grad;
    check(gpuloss_cross_entropy(gpu, &d, NULL));
    check(gpuloss_download(gpu, &mean, loss, sizeof mean, NULL));
    check(gpuloss_download(gpu, grad_x, grad, sizeof grad_x, NULL));
    printf("loss %.6f\n", (double)mean);
    for (int i = 0; i < 4; i++)
        printf("grad %9.6f %9.6f %9.6f\n", (double)grad_x[i][0], (double)grad_x[i][1], (double)grad_x[i][2]);
    check(gpuloss_free(gpu, logits)), check(gpuloss_free(gpu, targets));
    check(gpuloss_free(gpu, grad)), check(gpuloss_free(gpu, loss));
    gpuloss_destroy(gpu);
    return 0;
}
