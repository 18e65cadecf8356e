/* Must not compile as C++11: gpuloss_context is opaque. */
#include "../../gpuloss.h"

size_t missing_part(void);
size_t missing_part(void) {
    return sizeof(gpuloss_context);
}
