/* The tests of marks on random texts, and of what comes before the marks. */
#ifndef TEST_MARK_H
#define TEST_MARK_H

#define GPULOSSI_SHARED
#include "../../gpuloss.h"

void random_flows(void **state);
void random_jumps(void **state);
int lower_tests(void); /* how many failed */

#endif
