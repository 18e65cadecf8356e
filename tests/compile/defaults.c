/* The three lists of defaults set the fields that they name, and leave every other field zero. A value at a wrong
 * position of a list would set another field. */
#include "../../gpuloss.h"

#include <stdio.h>
#include <string.h>

static int differs(const void *defaults, const void *wanted, size_t bytes, const char *name) {
    if (memcmp(defaults, wanted, bytes) == 0)
        return 0;
    printf("%s are not what they are meant to be\n", name);
    return 1;
}

/* They are compared byte by byte, and static, so that the gaps between two fields are zero. */
static const gpuloss_cross_entropy_desc ce = GPULOSS_CROSS_ENTROPY_DEFAULTS;
static const gpuloss_kl_div_desc kl = GPULOSS_KL_DIV_DEFAULTS;
static const gpuloss_kl_div_sparse_desc sparse = GPULOSS_KL_DIV_SPARSE_DEFAULTS;

int main(void) {
    gpuloss_cross_entropy_desc ce_wanted;
    gpuloss_kl_div_desc kl_wanted;
    gpuloss_kl_div_sparse_desc sparse_wanted;
    memset(&ce_wanted, 0, sizeof ce_wanted);
    ce_wanted.reduction = GPULOSS_MEAN;
    ce_wanted.flags = GPULOSS_USE_IGNORE_INDEX;
    ce_wanted.ignore_index = -100;
    /* A divergence of rows, not of elements; forward KL is zero. */
    memset(&kl_wanted, 0, sizeof kl_wanted);
    kl_wanted.reduction = GPULOSS_BATCHMEAN;
    memset(&sparse_wanted, 0, sizeof sparse_wanted);
    sparse_wanted.reduction = GPULOSS_BATCHMEAN;
    return differs(&ce, &ce_wanted, sizeof ce, "GPULOSS_CROSS_ENTROPY_DEFAULTS") +
           differs(&kl, &kl_wanted, sizeof kl, "GPULOSS_KL_DIV_DEFAULTS") +
           differs(&sparse, &sparse_wanted, sizeof sparse, "GPULOSS_KL_DIV_SPARSE_DEFAULTS");
}
