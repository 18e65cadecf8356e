/* One way of including gpuloss.h, chosen by macros, and a use of it that needs no cast. */
#ifdef STUBS_BEFORE
#include "stubs.h"
#endif
#ifdef CUDA_BEFORE
#include <cuda.h>
#endif
#ifdef WINDOWS_BEFORE
#include <windows.h>
#endif

#ifdef DECLARATIONS_FIRST
#include "../../gpuloss.h"
#define GPULOSS_IMPLEMENTATION
#endif
#include "../../gpuloss.h"
#ifdef TWICE
#include "../../gpuloss.h"
#endif

#ifdef STUBS_AFTER
#include "stubs.h"
#endif
#ifdef CUDA_AFTER
#include <cuda.h>
#endif
#ifdef WINDOWS_AFTER
#include <windows.h>
#endif

#if defined(STUBS_BEFORE) || defined(STUBS_AFTER) || defined(CUDA_BEFORE) || defined(CUDA_AFTER)
typedef CUcontext mode_context;
typedef CUstream mode_stream;
#else
typedef struct CUctx_st *mode_context;
typedef struct CUstream_st *mode_stream;
#endif
#if defined(STUBS_BEFORE) || defined(STUBS_AFTER)
typedef cudaStream_t mode_runtime_stream;
#else
typedef mode_stream mode_runtime_stream;
#endif

int mode_use(mode_context cuda_context, mode_stream stream, mode_runtime_stream runtime_stream, float *loss);
int mode_use(mode_context cuda_context, mode_stream stream, mode_runtime_stream runtime_stream, float *loss) {
    gpuloss_cross_entropy_desc ce = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    gpuloss_kl_div_desc kl = GPULOSS_KL_DIV_DEFAULTS;
    gpuloss_create_desc create = {NULL, 0, NULL, NULL, NULL};
    unsigned long long address = 64;
    gpuloss_context *context;
    gpuloss_shard_row shard[2] = {{0.0, 1.0, 0.0, 0.0, 0.0, 0.0}, {0.0, 1.0, 0.0, 0.0, 0.0, 0.0}};
    int64_t counts[2] = {0, 0};
    create.cuda_context = cuda_context;
    ce.logits = GPULOSS_PTR(address);
    ce.loss = loss;
    ce.targets = GPULOSS_PTR(address);
    ce.target_type = sizeof(int) == 2 ? GPULOSS_I16 : GPULOSS_U8;
    ce.grad_dtype = ce.target_dtype = GPULOSS_BF16;
    ce.class_weights = ce.row_weights = ce.divisor_in = loss;
    ce.z_loss = ce.z_loss_rows = ce.grad_target_probabilities = loss;
    ce.label_smoothing = ce.lse_square_scale = ce.logit_scale = ce.softcap = ce.divisor = 0.5;
    ce.argmax = ce.correct = counts;
    ce.total_classes = ce.class_offset = ce.inner = counts[0];
    ce.shard_rows = shard;
    ce.shards = (int64_t)sizeof shard / (int64_t)sizeof shard[0];
    kl.input = ce.logits;
    kl.flags = GPULOSS_USE_GRAD_SCALE | GPULOSS_PYTORCH_ZEROS;
    if (gpuloss_create(&context, &create) != GPULOSS_OK)
        return gpuloss_last_error()[0];
    return gpuloss_cross_entropy(context, &ce, stream) == GPULOSS_OK &&
           gpuloss_cross_entropy_combine(context, &ce, stream) == GPULOSS_OK &&
           gpuloss_kl_div(context, &kl, runtime_stream) == GPULOSS_OK;
}
