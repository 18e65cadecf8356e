/* The tests of marks on random texts. */
#ifndef TEST_MARK_H
#define TEST_MARK_H

#define GPULOSSI_SHARED
#include "../../gpuloss.h"

void random_flows(void **state);
void random_jumps(void **state);

#endif
