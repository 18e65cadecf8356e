/* Calls of every kind. They launch each kernel that this GPU has a use for. */
#include "calls.h"

enum {
    IN_REGISTERS,
    LONG,
    OPTIONS,
    PROBABILITIES,
    COLUMNS,
    BEGIN_ANYWHERE,
    PLANES,
    FEW_PLANES,
    PACKED,
    PACKED_REG,
    BLOCK_ROWS,
    PIPELINE,
    WEIGHTS_IN_THE_PIPELINE,
    LOSSES,
    SHARD,
    CROSS_ENTROPIES,
    COMBINE = CROSS_ENTROPIES,
    PROBABILITIES_ON_BOTH_SIDES,
    LOGARITHMS_OF_THE_INPUT,
    LOGARITHMS_OF_THE_TARGET,
    LOGARITHMS,
    ROW_WEIGHTS,
    SHORT_ROW_WEIGHTS,
    LONG_ROW_WEIGHTS,
    LABELS,
    LOGITS,
    LOGITS_PACKED,
    LOGITS_PACKED_REG,
    LOGITS_OF_A_BLOCK,
    LOGITS_OF_CLUSTERS,
    LOSSES_OF_LOGITS,
    DISTANCES,
    KL_DIVS,
    SPARSE = KL_DIVS,
    SPARSE_SHORT,
    SPARSE_OF_CLUSTERS,
    SPARSE_WITH_LABELS
};

static gpuloss_cross_entropy_desc cross_entropy_of(int n, int bytes) {
    gpuloss_cross_entropy_desc d = some_cross_entropy();
    const int width = 16 / bytes;
    switch (n) {
    case IN_REGISTERS:
        d.classes = 96;
        d.logits_stride = 112;
        break;
    case OPTIONS:
    case PROBABILITIES:
        d.classes = 20;
        d.softcap = 30.0;
        if (n == PROBABILITIES)
            give_probabilities(&d);
        break;
    case COLUMNS:
        d.inner = 10;
        break;
    case BEGIN_ANYWHERE:
        d.logits = GPULOSS_PTR(ADDRESS(1) + 8);
        d.classes = 101;
        break;
    case PLANES:
    case FEW_PLANES:
        d.inner = 1 << 16;
        d.rows = 16 << 16;
        d.classes = n == PLANES ? 150 : 20;
        break;
    case PACKED:
    case PACKED_REG:
        d.classes = n == PACKED ? 50 * width : 16;
        break;
    case BLOCK_ROWS:
        d.classes = 200 * width;
        d.logits_stride = 201 * width;
        break;
    case PIPELINE:
        d.label_smoothing = 0.1;
        break;
    case WEIGHTS_IN_THE_PIPELINE:
        d.label_smoothing = 0.1;
        d.class_weights = AT(6);
        break;
    case LOSSES:
        d.grad_logits = NULL;
        d.classes = 100000;
        break;
    case SHARD:
        d = some_shard();
        break;
    default:
        d.classes = 100000;
    }
    return d;
}

static gpuloss_kl_div_desc kl_div_of(int n, int bytes) {
    gpuloss_kl_div_desc d = some_kl_div();
    if (n == LOGARITHMS_OF_THE_INPUT || n == LOGARITHMS)
        d.input_kind = GPULOSS_LOG_PROBABILITIES;
    if (n == LOGARITHMS_OF_THE_TARGET || n == LOGARITHMS)
        d.target_kind = GPULOSS_LOG_PROBABILITIES;
    if (n >= LOGITS)
        d.input_kind = d.target_kind = GPULOSS_LOGITS;
    switch (n) {
    case ROW_WEIGHTS:
    case SHORT_ROW_WEIGHTS:
    case LONG_ROW_WEIGHTS:
        d.row_weights = AT(6);
        d.classes = n == ROW_WEIGHTS ? 1000 : n == SHORT_ROW_WEIGHTS ? 100 : 400000 / bytes;
        break;
    case LABELS:
        GIVE_LABELS(&d);
        break;
    case LOGITS:
        d.input_stride = d.classes + 1;
        break;
    case LOGITS_PACKED:
        d.classes = 400;
        break;
    case LOGITS_PACKED_REG:
        d.classes = 16;
        break;
    case LOGITS_OF_A_BLOCK:
        d.classes = 16000 / bytes;
        break;
    case LOSSES_OF_LOGITS:
        d.grad_input = NULL;
        d.classes = 100000;
        break;
    case DISTANCES:
        d.divergence = GPULOSS_TOTAL_VARIATION;
        d.classes = 100000;
        break;
    case LOGITS_OF_CLUSTERS:
        d.classes = 400000 / bytes;
        break;
    default:
        break;
    }
    return d;
}

int make_call(int n, const some_dtype *dtype, some_call *call) {
    if (n > SPARSE_WITH_LABELS)
        return 0;
    memset(call, 0, sizeof *call);
    if (n < CROSS_ENTROPIES) {
        call->function = "gpuloss_cross_entropy";
        call->preload = "gpuloss_cross_entropy_preload";
        call->cross_entropy = cross_entropy_of(n, dtype->bytes);
    } else if (n == COMBINE) {
        call->function = "gpuloss_cross_entropy_combine";
        call->preload = "gpuloss_cross_entropy_preload";
        call->cross_entropy = some_combine();
    } else if (n < KL_DIVS) {
        call->function = "gpuloss_kl_div";
        call->preload = "gpuloss_kl_div_preload";
        call->kl_div = kl_div_of(n, dtype->bytes);
    } else {
        call->function = "gpuloss_kl_div_sparse";
        call->preload = "gpuloss_kl_div_sparse_preload";
        call->kl_div_sparse = some_kl_div_sparse();
        if (n == SPARSE_WITH_LABELS)
            GIVE_LABELS(&call->kl_div_sparse);
        if (n == SPARSE_SHORT)
            call->kl_div_sparse.classes = 100;
        if (n == SPARSE_OF_CLUSTERS)
            call->kl_div_sparse.rows = 8, call->kl_div_sparse.classes = 400000 / dtype->bytes;
    }
    call->cross_entropy.dtype = call->kl_div.dtype = call->kl_div_sparse.dtype = dtype->dtype;
    return 1;
}

gpuloss_status launch_call(gpuloss_context *context, const some_call *call, struct CUstream_st *stream) {
    if (strcmp(call->function, "gpuloss_cross_entropy") == 0)
        return gpuloss_cross_entropy(context, &call->cross_entropy, stream);
    if (strcmp(call->function, "gpuloss_cross_entropy_combine") == 0)
        return gpuloss_cross_entropy_combine(context, &call->cross_entropy, stream);
    return strcmp(call->function, "gpuloss_kl_div") == 0 ? gpuloss_kl_div(context, &call->kl_div, stream)
                                                         : gpuloss_kl_div_sparse(context, &call->kl_div_sparse, stream);
}

gpuloss_status preload_call(gpuloss_context *context, const some_call *call, struct CUstream_st *stream) {
    if (strcmp(call->preload, "gpuloss_cross_entropy_preload") == 0)
        return gpuloss_cross_entropy_preload(context, &call->cross_entropy, stream);
    return strcmp(call->preload, "gpuloss_kl_div_preload") == 0
               ? gpuloss_kl_div_preload(context, &call->kl_div, stream)
               : gpuloss_kl_div_sparse_preload(context, &call->kl_div_sparse, stream);
}

void preload_every_call(gpuloss_context *context, gpuloss_dtype dtype) {
    some_call call;
    int t = 0, n;
    while (every_dtype[t].dtype != dtype)
        t++;
    for (n = 0; make_call(n, &every_dtype[t], &call); n++)
        expect_ok(preload_call(context, &call, NULL));
}
