/* The declarations alone, linked with an implementation that was compiled elsewhere. */
#include "../../gpuloss.h"

#include <string.h>

int main(void) {
    gpuloss_create_desc desc = {NULL, 0, NULL, NULL, NULL, 0};
    gpuloss_context *context = NULL;
    desc.driver_path = "no/such/library";
    if (gpuloss_create(&context, &desc) != GPULOSS_ERROR_NO_DRIVER || context != NULL)
        return 1;
    if (strstr(gpuloss_last_error(), "no/such/library") == NULL)
        return 2;
    gpuloss_destroy(context);
    return 0;
}
