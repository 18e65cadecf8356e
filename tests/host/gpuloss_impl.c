/* The library, with its host memory counted. */
#include "fake_driver.h"
#define GPULOSS_IMPLEMENTATION
#define GPULOSS_MALLOC(bytes) fake_malloc(bytes)
#define GPULOSS_FREE(pointer) fake_free(pointer)
#include "../../gpuloss.h"
