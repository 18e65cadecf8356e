/* A plugin that creates a context, fails with it, and destroys it, for hosts.c. */
#define GPULOSS_STATIC
#include "../../gpuloss.h"

int use(const gpuloss_create_desc *create);

int use(const gpuloss_create_desc *create) {
    gpuloss_kl_div_desc desc = GPULOSS_KL_DIV_DEFAULTS;
    gpuloss_context *gpu;
    int failed;
    if (gpuloss_create(&gpu, create) != GPULOSS_OK)
        return 1;
    failed = gpuloss_kl_div(gpu, &desc, NULL) != GPULOSS_ERROR_INVALID_ARGUMENT || gpuloss_last_error()[0] == 0;
    gpuloss_destroy(gpu);
    return failed;
}
