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
    gpuloss_kl_div_sparse_desc sparse = GPULOSS_KL_DIV_SPARSE_DEFAULTS;
    gpuloss_create_desc create = {NULL, 0, NULL, NULL, NULL, 0};
    unsigned long long address = 64;
    gpuloss_context *context;
    gpuloss_shard_row shard[2] = {{0.0, 1.0, 0.0, 0.0, 0.0, 0.0}, {0.0, 1.0, 0.0, 0.0, 0.0, 0.0}};
    int64_t counts[2] = {0, 0};
    size_t bytes = 0;
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
    kl.flags |= GPULOSS_USE_IGNORE_INDEX | GPULOSS_TEMPERATURE_SQUARED | GPULOSS_ADD_SUMS;
    kl.target_dtype = GPULOSS_F64;
    kl.input_kind = kl.target_kind = GPULOSS_LOGITS;
    kl.divergence = bytes == 0 ? GPULOSS_JENSEN_SHANNON : GPULOSS_TOTAL_VARIATION;
    kl.beta = kl.temperature = kl.divisor = 0.5;
    kl.row_weights = kl.labels = kl.divisor_in = loss;
    kl.label_type = GPULOSS_I16;
    kl.ignore_index = counts[0];
    kl.grad_target = loss;
    kl.grad_target_stride = counts[1];
    sparse.logits = sparse.indices = sparse.values = kl.input;
    sparse.k = counts[0];
    sparse.value_dtype = GPULOSS_BF16;
    sparse.index_type = GPULOSS_I32;
    sparse.value_kind = GPULOSS_LOG_PROBABILITIES;
    sparse.residual = GPULOSS_RENORMALIZE;
    sparse.bad_indices = counts;
    sparse.grad_logits = loss;
    if (gpuloss_create(&context, &create) != GPULOSS_OK)
        return gpuloss_last_error()[0];
    return gpuloss_cross_entropy(context, &ce, stream) == GPULOSS_OK &&
           gpuloss_cross_entropy_preload(context, &ce, stream) == GPULOSS_OK &&
           gpuloss_cross_entropy_combine(context, &ce, stream) == GPULOSS_OK &&
           gpuloss_cross_entropy_divisor(context, &ce, loss, stream) == GPULOSS_OK &&
           gpuloss_kl_div_divisor(context, &kl, loss, runtime_stream) == GPULOSS_OK &&
           gpuloss_kl_div(context, &kl, runtime_stream) == GPULOSS_OK &&
           gpuloss_kl_div_preload(context, &kl, runtime_stream) == GPULOSS_OK &&
           gpuloss_kl_div_workspace(context, &kl, &bytes) == GPULOSS_OK &&
           gpuloss_kl_div_sparse(context, &sparse, runtime_stream) == GPULOSS_OK &&
           gpuloss_kl_div_sparse_preload(context, &sparse, runtime_stream) == GPULOSS_OK &&
           gpuloss_kl_div_sparse_workspace(context, &sparse, &bytes) == GPULOSS_OK;
}
