/* Nothing but the implementation: its object defines the symbols of gpuloss.h. */
#ifndef GPULOSS_STATIC
#define GPULOSS_IMPLEMENTATION
#endif
#include "../../gpuloss.h"
