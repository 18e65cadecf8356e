/* Must not compile under the strict set: a warning is planted. */
#include "../../gpuloss.h"

int narrowing(const gpuloss_kl_div_desc *desc);
int narrowing(const gpuloss_kl_div_desc *desc) {
    return desc->rows;
}
