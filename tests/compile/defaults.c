/* GPULOSS_CROSS_ENTROPY_DEFAULTS sets what PyTorch has for defaults, and leaves every other field zero: a value in the
 * wrong place of the list would be another field. */
#include "../../gpuloss.h"

#include <stdio.h>
#include <string.h>

int main(void) {
    gpuloss_cross_entropy_desc defaults = GPULOSS_CROSS_ENTROPY_DEFAULTS, pytorch;
    memset(&pytorch, 0, sizeof pytorch);
    pytorch.reduction = GPULOSS_MEAN;
    pytorch.flags = GPULOSS_USE_IGNORE_INDEX;
    pytorch.ignore_index = -100;
    /* Byte by byte: there is no gap between two fields. */
    if (memcmp(&defaults, &pytorch, sizeof defaults) == 0)
        return 0;
    puts("GPULOSS_CROSS_ENTROPY_DEFAULTS are not PyTorch's");
    return 1;
}
