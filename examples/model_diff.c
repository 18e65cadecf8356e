/* Compares a quantised language model with its original, from the logits of both over the same tokens:
 *     model_diff [options] BASE OTHER
 * Prints perplexities, KL(BASE || OTHER) a token with its quantiles, and how often the likeliest token is the same.
 * gpuloss computes the KL, the cross-entropies and the likeliest tokens of each row on the GPU. The host adds up in double.
 * The next batch is read and uploaded while the GPU works. Files may be larger than memory, which has the KL of each row only.
 * Exit status: 0, 1 for bad input, 2 if this machine lacks something, 3 for other errors.
 * cc -std=c99 -O2 examples/model_diff.c -o model_diff -lm -ldl
 *
 * Both files are arrays of little-endian numbers, --classes logits a token. Or both are .kld files, as
 * `llama-perplexity --save-all-logits` writes them (llama.cpp, tools/perplexity/perplexity.cpp):
 *     "_logits_", int32 n_ctx, n_vocab, n_chunk, int32 tokens[n_chunk][n_ctx], then n_ctx - 1 - n_ctx / 2 rows a chunk:
 *     float scale, float least, uint16 u[n_vocab], and one more if n_vocab is odd;   log p = scale u + least
 * Row j of a chunk predicts its token n_ctx / 2 + 1 + j.
 *
 * The log-probabilities l' of a .kld file differ from the model's, l, in two ways.
 *   Rounding: |l' - l| <= h = 1.4e-4. Half a step is 8 / 65535 = 1.221e-4 at most. Floats add less than 1.5e-5 where logits
 *     are below 100: four roundings of u, which are 0.016 steps in sum, one of scale, two of least, and one of l' here.
 *   Cut-off: a class of more than 16 below the row's largest probability P is stored as P exp(-16), which is larger. The
 *     probabilities of a row add up to at most 1 + classes exp(-16): 1.014 of 128256 classes.
 * For each figure, this means:
 *   Perplexity is that of l' as stored, within a factor exp(h) = 1.00014. The ratio is within exp(2 h). Dividing by the
 *     row's sum would change l' by up to 0.014. Cut-off true tokens make perplexity too small, without a bound; they are
 *     counted.
 *   KL is sum_c g(p, q) of the stored p and q, with g(p, q) = p log(p / q) - p + q >= 0. Where p and q add up to 1, this is
 *     KL. Where they do not, the terms of classes that are not cut off still are the model's.
 *     Rounding changes KL by at most h (KL + 2 sqrt(2 KL)) + 4 h^2, which is 8e-8 of equal models. For dg is p log(p / q)
 *     dlog p + (q - p) dlog q. sum |p - q| <= sqrt(2 KL) is Pinsker's inequality, and sum p |log(p / q)| <= KL +
 *     sqrt(2 KL) follows from it. 4 h^2 is for the change of p and q themselves.
 *     Cut-off makes KL too large by at most classes exp(-16) KL. For a term that grows is at most exp(-16) g(P, Q) then, with
 *     the largest of both rows. g(P, Q) is at most the term of one of these two classes.
 *     Cut-off in OTHER makes KL too small, without a bound: log q is never below log Q - 16.
 *   The difference of the true token's probability is within 2 h = 2.8e-4.
 *   The likeliest token may be another one only where the two largest log-probabilities are within 2 h.
 * gpuloss is given l' as GPULOSS_LOGITS. The KL of logits comes from their differences, which loses no digits of similar
 * models, and is never negative but for rounding. The KL of log-probabilities that do not add up to 1 may be. gpuloss divides
 * by the rows' sums exp(lse), and returns lse. The host undoes this:
 *     sum_c g = exp(lse_base) (KL + exp(d) - 1 - d),   d = lse_other - lse_base;   -l' = cross-entropy - lse */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#define GPULOSS_IMPLEMENTATION
#include "../gpuloss.h"

#include "model_diff/figures.h"

/* ---- the GPU ---- */

/* Numbers that gpuloss computes for each row. */
enum { KL, LOSS, LSE = LOSS + SIDES, RESULTS = LSE + SIDES };

static gpuloss_context *gpu;
static int64_t batch_rows; /* at most */
static size_t result_bytes;

static struct batch {
    int64_t first, rows; /* no rows: nothing is to be collected */
    struct CUstream_st *stream;
    char *host_logits[SIDES], *host_targets;
    void *memory, *logits[SIDES], *targets, *results[RESULTS];
    int64_t *argmax[SIDES];
} batches[BATCHES];

static char *host_results[RESULTS];
static int64_t *host_argmax[SIDES];

enum { ALIGNMENT_BYTES = 256, ARRAYS = SIDES + 1 + RESULTS + SIDES };

/* The next array of a batch in its memory. */
static void *carve(char **at, int64_t bytes) {
    char *array = *at;
    *at += (bytes + ALIGNMENT_BYTES - 1) / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
    return array;
}

static void create_batches(void) {
    const int64_t logit_bytes = work.classes * (int64_t)work.dtype->bytes;
    const int64_t target_bytes = (int64_t)work.target_dtype->bytes;
    const double memory = option.mebibytes * 1048576 / BATCHES - ARRAYS * ALIGNMENT_BYTES;
    gpuloss_create_desc create;
    int64_t row_bytes;
    int k, side, result;
    memset(&create, 0, sizeof create);
    create.device = option.device;
    result_bytes = work.dtype->dtype == GPULOSS_F64 ? sizeof(double) : sizeof(float);
    row_bytes = SIDES * (logit_bytes + (int64_t)sizeof(int64_t)) + target_bytes + RESULTS * (int64_t)result_bytes;
    if (memory < (double)row_bytes)
        die(BAD_INPUT, "--memory: got %g, expected at least %.9g for rows of %lld classes", option.mebibytes,
            (double)(row_bytes + (ARRAYS + 1) * ALIGNMENT_BYTES) * BATCHES / 1048576, (long long)work.classes);
    batch_rows = (int64_t)fmin((double)work.rows, memory / (double)row_bytes);
    check(gpuloss_create(&gpu, &create));
    for (k = 0; k < BATCHES; k++) {
        struct batch *b = &batches[k];
        char *at;
        check(gpuloss_stream_create(gpu, &b->stream));
        check(gpuloss_alloc(gpu, &b->memory, (size_t)(batch_rows * row_bytes + ARRAYS * ALIGNMENT_BYTES)));
        at = (char *)b->memory;
        for (side = 0; side < SIDES; side++) {
            b->logits[side] = carve(&at, batch_rows * logit_bytes);
            b->argmax[side] = (int64_t *)carve(&at, batch_rows * (int64_t)sizeof(int64_t));
            b->host_logits[side] = (char *)allocate(batch_rows, (size_t)logit_bytes);
        }
        b->targets = carve(&at, batch_rows * target_bytes);
        b->host_targets = (char *)allocate(batch_rows, (size_t)target_bytes); /* zeros, where none are given */
        for (result = 0; result < RESULTS; result++)
            b->results[result] = carve(&at, batch_rows * (int64_t)result_bytes);
    }
    for (side = 0; side < SIDES; side++)
        host_argmax[side] = (int64_t *)allocate(batch_rows, sizeof(int64_t));
    for (result = 0; result < RESULTS; result++)
        host_results[result] = (char *)allocate(batch_rows, result_bytes);
    if (work.is_kld)
        packed = (char *)allocate(work.row_bytes, 1);
}

static void destroy_batches(void) {
    int k, side, result;
    for (k = 0; k < BATCHES; k++) {
        check(gpuloss_stream_destroy(gpu, batches[k].stream));
        check(gpuloss_free(gpu, batches[k].memory));
        for (side = 0; side < SIDES; side++)
            free(batches[k].host_logits[side]);
        free(batches[k].host_targets);
    }
    gpuloss_destroy(gpu);
    for (side = 0; side < SIDES; side++)
        free(host_argmax[side]);
    for (result = 0; result < RESULTS; result++)
        free(host_results[result]);
    free(packed);
}

/* Reads rows, uploads them and starts their kernels, without waiting for these. */
static void start(struct batch *b, int64_t first, int64_t rows) {
    const size_t bytes = (size_t)(rows * work.classes) * work.dtype->bytes;
    gpuloss_kl_div_desc kl = GPULOSS_KL_DIV_DEFAULTS;
    int side;
    b->first = first;
    b->rows = rows;
    read_targets(first, rows, b->host_targets);
    check(gpuloss_upload(gpu, b->targets, b->host_targets, (size_t)rows * work.target_dtype->bytes, b->stream));
    for (side = 0; side < SIDES; side++) {
        gpuloss_cross_entropy_desc ce = GPULOSS_CROSS_ENTROPY_DEFAULTS;
        if (work.is_kld)
            read_kld_rows(&sides[side], first, rows, (float *)(void *)b->host_logits[side]);
        else
            read_at(&sides[side], first * work.row_bytes, b->host_logits[side], bytes);
        check(gpuloss_upload(gpu, b->logits[side], b->host_logits[side], bytes, b->stream));
        ce.logits = b->logits[side];
        ce.dtype = work.dtype->dtype;
        ce.targets = b->targets;
        ce.target_type = work.target_dtype->type;
        ce.rows = rows;
        ce.classes = work.classes;
        ce.reduction = GPULOSS_NONE;
        ce.flags = 0; /* no target is ignored */
        ce.ignore_index = 0;
        ce.loss_rows = b->results[LOSS + side];
        ce.lse = b->results[LSE + side];
        ce.argmax = b->argmax[side];
        check(gpuloss_cross_entropy(gpu, &ce, b->stream));
    }
    kl.target = b->logits[BASE];
    kl.input = b->logits[OTHER];
    kl.target_kind = kl.input_kind = GPULOSS_LOGITS;
    kl.dtype = work.dtype->dtype;
    kl.rows = rows;
    kl.classes = work.classes;
    kl.reduction = GPULOSS_NONE;
    kl.loss_rows = b->results[KL];
    check(gpuloss_kl_div(gpu, &kl, b->stream));
}

/* ---- rows ---- */

/* Says why a row has no figures. */
static void report_row(const struct batch *b, int64_t row) {
    const int64_t target = work.has_targets ? target_at(b->host_targets, row) : -1;
    const long long number = (long long)(b->first + row);
    int64_t c;
    for (c = 0; c < work.classes; c++) {
        const int64_t at = row * work.classes + c;
        bool masked[SIDES]; /* of probability 0: nothing bad by itself */
        int side;
        for (side = 0; side < SIDES; side++) {
            const char *name = nonfinite(b->host_logits[side], at);
            masked[side] = name != NULL && strcmp(name, "-inf") == 0;
            if (name != NULL && (!masked[side] || c == target)) {
                say("%s: row %lld: class %lld%s is %s", sides[side].path, number, (long long)c,
                    c == target ? ", the true token," : "", name);
                return;
            }
        }
        if (masked[OTHER] && !masked[BASE]) {
            say("%s: row %lld: class %lld is -inf, but not in %s", sides[OTHER].path, number, (long long)c,
                sides[BASE].path);
            return;
        }
    }
    say("row %lld: no finite KL or cross-entropy: each class is -inf, or logits are too large", number);
}

static double result_of(int result, int64_t row) {
    float number;
    double wide;
    if (result_bytes == sizeof wide) {
        memcpy(&wide, host_results[result] + (size_t)row * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&number, host_results[result] + (size_t)row * sizeof number, sizeof number);
    return (double)number;
}

static void count_cut_off(const struct batch *b, int64_t row) {
    const double half_a_step = (double)KLD_RANGE / KLD_STEPS / 2;
    const int64_t target = target_at(b->host_targets, row);
    int side;
    for (side = 0; side < SIDES; side++) {
        const float *logits = (const float *)(const void *)b->host_logits[side] + row * work.classes;
        total.cut_off[side] += (double)(logits[host_argmax[side][row]] - logits[target]) > KLD_RANGE - half_a_step;
    }
}

static void count_row(const struct batch *b, int64_t row) {
    double kl = result_of(KL, row), loss[SIDES], lse[SIDES], difference;
    bool finite = isfinite(kl);
    int side;
    for (side = 0; side < SIDES; side++) {
        lse[side] = result_of(LSE + side, row);
        loss[side] = work.has_targets ? result_of(LOSS + side, row) : 0;
        finite = finite && isfinite(lse[side]) && isfinite(loss[side]);
    }
    if (!finite) {
        if (total.nonfinite_rows++ < MOST_REPORTED)
            report_row(b, row);
        return;
    }
    if (work.is_kld) { /* see the top of this file */
        difference = lse[OTHER] - lse[BASE];
        kl = exp(lse[BASE]) * (kl + (expm1(difference) - difference));
        for (side = 0; side < SIDES; side++)
            loss[side] -= lse[side];
        count_cut_off(b, row);
    }
    kl = fmax(kl, 0); /* only rounding makes it negative */
    total.kls[total.kl.count] = kl;
    add(&total.kl, kl);
    for (side = 0; side < SIDES; side++)
        add(&total.loss[side], loss[side]);
    add(&total.more_loss, loss[OTHER] - loss[BASE]);
    difference = exp(-loss[OTHER]) - exp(-loss[BASE]);
    add(&total.squared_p_difference, difference * difference);
    add(&total.equal_top, host_argmax[BASE][row] == host_argmax[OTHER][row]);
}

/* Waits for the work on a batch, and adds up its results. */
static void collect(struct batch *b) {
    int64_t row;
    int side, result;
    if (b->rows == 0)
        return;
    for (result = 0; result < RESULTS; result++)
        check(
            gpuloss_download(gpu, host_results[result], b->results[result], (size_t)b->rows * result_bytes, b->stream));
    for (side = 0; side < SIDES; side++)
        check(gpuloss_download(gpu, host_argmax[side], b->argmax[side], (size_t)b->rows * sizeof(int64_t), b->stream));
    for (row = 0; row < b->rows; row++)
        count_row(b, row);
    if (isatty(fileno(stderr))) {
        const int64_t done = b->first + b->rows;
        fprintf(stderr, "\r%lld of %lld tokens, %.0f %%", (long long)done, (long long)work.rows,
                100 * (double)done / (double)work.rows);
        progress_shown = true;
    }
    b->rows = 0;
}

static void compare_models(void) {
    int64_t first, k = 0;
    total.kls = (double *)allocate(work.rows, sizeof *total.kls);
    for (first = 0; first < work.rows; first += batch_rows, k++) {
        start(&batches[k % BATCHES], first, work.rows - first < batch_rows ? work.rows - first : batch_rows);
        collect(&batches[(k + 1) % BATCHES]);
    }
    collect(&batches[(k + 1) % BATCHES]);
    erase_progress();
    if (total.nonfinite_rows > MOST_REPORTED)
        say("... and %lld more", (long long)(total.nonfinite_rows - MOST_REPORTED));
    if (total.nonfinite_rows > 0 && !option.skip_nonfinite)
        die(BAD_INPUT,
            "got %lld rows of %lld that have no finite KL or cross-entropy, expected none; "
            "--skip-nonfinite leaves them out",
            (long long)total.nonfinite_rows, (long long)work.rows);
    if (total.kl.count == 0)
        die(BAD_INPUT, "no row has a finite KL and cross-entropy");
    qsort(total.kls, (size_t)total.kl.count, sizeof *total.kls, compare_doubles);
}

int main(int argc, char **argv) {
    FILE *csv, *svg;
    if (argc < 2) {
        fprintf(stderr, "%s", usage);
        return BAD_INPUT;
    }
    read_options(argc, argv);
    open_files();
    create_batches();
    csv = open_output(option.csv);
    svg = open_output(option.svg);
    compare_models();
    destroy_batches();
    print_figures(csv);
    if (svg != NULL) {
        write_svg(svg);
        close_output(option.svg, svg);
    }
    if (csv != NULL)
        close_output(option.csv, csv);
    close_files();
    free(total.kls);
    if (fflush(stdout) != 0 || ferror(stdout))
        die(OTHER_ERROR, "the figures could not be printed: %s", strerror(errno));
    return 0;
}
