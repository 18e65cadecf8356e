/* The library, compiled once for the test program. */
#define GPULOSS_IMPLEMENTATION
#include "../../gpuloss.h"
