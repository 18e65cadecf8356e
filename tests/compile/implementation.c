/* Nothing but the implementation: what its object defines is what gpuloss.h defines. */
#ifndef GPULOSS_STATIC
#define GPULOSS_IMPLEMENTATION
#endif
#include "../../gpuloss.h"
