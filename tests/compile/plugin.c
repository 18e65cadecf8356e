/* A plugin with a gpuloss of its own. PLUGIN is the function that it exports: the buffer of its messages. */
#define GPULOSS_IMPLEMENTATION
#include "../../gpuloss.h"

const void *PLUGIN(void);

const void *PLUGIN(void) {
    return gpuloss_last_error();
}
