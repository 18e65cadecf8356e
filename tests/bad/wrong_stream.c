/* Must not compile: the stream is something else. */
#include "../../gpuloss.h"

gpuloss_status wrong_stream(gpuloss_context *context, const gpuloss_kl_div_desc *desc, float *stream);
gpuloss_status wrong_stream(gpuloss_context *context, const gpuloss_kl_div_desc *desc, float *stream) {
    return gpuloss_kl_div(context, desc, stream);
}
