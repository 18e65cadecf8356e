/* How far a quantised language model is from the one that it was made of, from the logits of both over the same tokens:
 *     model_diff [options] BASE OTHER
 * Prints perplexities, KL(BASE || OTHER) a token with its quantiles, and how often the likeliest token is the same. The GPU
 * computes the KL, the cross-entropy and the likeliest token of each row with gpuloss. The host adds them up in double.
 * Files are read in batches, and the next batch is read and uploaded while the GPU works. Only the KL of each row is kept.
 * Exit status: 0, 1 for bad input, 2 if this machine lacks something, 3 for other errors.
 * cc -std=c99 -O2 examples/model_diff.c -o model_diff -lm -ldl
 *
 * BASE and OTHER are arrays of little-endian numbers, one row of --classes logits a token, or both are .kld files of
 * `llama-perplexity --save-all-logits`. Their format is that of llama.cpp's tools/perplexity/perplexity.cpp:
 *     "_logits_", int32 n_ctx, n_vocab, n_chunk, int32 tokens[n_chunk][n_ctx], then for each chunk n_ctx - 1 - n_ctx / 2 rows
 *     float scale, float least, uint16 u[n_vocab], and one more if n_vocab is odd:   log p = scale u + least
 * Row j of a chunk is the prediction of its token n_ctx / 2 + 1 + j.
 *
 * The log-probabilities l' of such a file differ from those of the model, l, in two ways.
 *   Rounding: |l' - l| <= h = 1.3e-4. Half a step is 8 / 65535 = 1.221e-4 at most. The floats in which the file's writer
 *     computes add less than 8e-6: 0.012 steps in u, and 1e-6 each in scale, least and their sum, whose sizes are below 32.
 *   Cut-off: a class of more than 16 below the row's largest, P, is stored as P exp(-16): its probability has become larger.
 *     The probabilities of a row thus add up to at most 1 + classes exp(-16), that is 1.014 with 128256 classes.
 * What this does to each figure:
 *   Perplexity is that of l' as it is stored: l' of a true token is off by h, whereas dividing by the row's sum would add up to
 *     0.014. It is within a factor exp(h) = 1.00013 of the model's, and their ratio within exp(2 h). Cut-off true tokens
 *     make it too small without a bound, so they are counted.
 *   KL is sum_c g(p, q) with g(p, q) = p log(p / q) - p + q >= 0 of the stored p and q. It is KL where they add up to 1.
 *     Where they do not, terms of classes that are not cut off stay what they are in the model, but for h.
 *     Rounding changes it by at most h (KL + 2 sqrt(2 KL)) + 4 h^2, 7e-8 for equal models: dg = dlog p . p log(p / q) +
 *     dlog q . (q - p), sum |p - q| <= sqrt(2 KL) (Pinsker), so that sum p |log(p / q)| <= KL + sqrt(2 KL).
 *     Cut-off makes it larger by at most classes exp(-16) KL (1.4 % with 128256): a term that grows is at most
 *     exp(-16) g(P, Q), of the largest of both rows, and g(P, Q) is at most the term of one of these two classes.
 *     Cut-off in OTHER makes it smaller without a bound: log q is never below log Q - 16.
 *   The difference of the true token's probability is off by at most 2 h = 2.6e-4, or by exp(-16) where it is cut off.
 *   The likeliest tokens may be others only where the two largest log-probabilities are within 2 h.
 * gpuloss is therefore given l' as GPULOSS_LOGITS. The KL of two arrays of logits comes from their differences, where KL of
 * log-probabilities that do not add up to 1 may be negative. It divides by the rows' sums, exp(lse), which gpuloss also returns:
 *     sum_c g = exp(lse_base) (KL + exp(d) - 1 - d),   d = lse_other - lse_base,   -l' = cross-entropy - lse */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#define GPULOSS_IMPLEMENTATION
#include "../gpuloss.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "model_diff [options] BASE OTHER\n"
    "Compares the logits of two language models over the same tokens, on the GPU.\n"
    "BASE and OTHER are .kld files of llama-perplexity --save-all-logits, or little-endian arrays [tokens, classes]:\n"
    "  --dtype f32|f64|f16|bf16          of both arrays\n"
    "  --classes N                       logits a token\n"
    "  --targets FILE                    array of the true tokens; without it, what needs them is left out\n"
    "  --target-dtype i64|i32|i16|u8     of that array\n"
    "Options\n"
    "  --memory MIB      device memory of the batches, 256 unless given; the host takes as much\n"
    "  --device N        number of the GPU, 0 unless given\n"
    "  --skip-nonfinite  leave out rows whose KL or cross-entropy is NaN or infinite, instead of refusing the files\n"
    "  --csv FILE        write each figure with all its digits\n"
    "  --svg FILE        draw a histogram of KL a token\n"
    ".kld files hold rounded log-probabilities, cut off 16 below the largest of a row. Bounds of the effect, h = "
    "1.3e-4:\n"
    "  perplexity        a factor exp(h); too small by more where true tokens are cut off, which are counted\n"
    "  KL                rounding: h (KL + 2 sqrt(2 KL)) + 4 h^2; cut-off: too large by a share classes * exp(-16),\n"
    "                    too small without a bound where OTHER cuts off what BASE finds likely\n"
    "  p of true token   2.6e-4\n"
    "  equal top tokens  rows whose two largest log-probabilities are within 2 h\n"
    "Exit status: 0, 1 for bad input, 2 if this machine lacks a driver or GPU, 3 for other errors.\n";

enum { BASE, OTHER, SIDES, BATCHES = 2, MOST_REPORTED = 10 };
enum { BAD_INPUT = 1, MACHINE_LACKS = 2, OTHER_ERROR = 3 };
static const char *const role[SIDES] = {"BASE", "OTHER"};

/* ---- errors and progress ---- */

static bool progress_shown;

static void erase_progress(void) {
    if (progress_shown)
        fprintf(stderr, "\r%60s\r", "");
    progress_shown = false;
}

#define say(...) (erase_progress(), fprintf(stderr, "model_diff: " __VA_ARGS__), (void)fputc('\n', stderr))
#define die(status, ...) (say(__VA_ARGS__), exit(status))

static void check(gpuloss_status status) {
    if (status != GPULOSS_OK)
        die(gpuloss_group_of(status) == GPULOSS_GROUP_ENVIRONMENT ? MACHINE_LACKS : OTHER_ERROR, "%s",
            gpuloss_last_error());
}

static void *allocate(int64_t count, size_t bytes) {
    void *room = (uint64_t)count <= SIZE_MAX / bytes ? calloc((size_t)count + (count == 0), bytes) : NULL;
    if (room == NULL)
        die(OTHER_ERROR, "out of host memory: %lld times %zu bytes", (long long)count, bytes);
    return room;
}

/* ---- options ---- */

static const struct dtype {
    const char *name;
    gpuloss_dtype dtype;
    size_t bytes;
    int fraction_bits;
} dtypes[] = {{"f32", GPULOSS_F32, 4, 23},
              {"f64", GPULOSS_F64, 8, 52},
              {"f16", GPULOSS_F16, 2, 10},
              {"bf16", GPULOSS_BF16, 2, 7}};

static const struct index_type {
    const char *name;
    gpuloss_index_type type;
    size_t bytes;
} index_types[] = {{"i64", GPULOSS_I64, 8}, {"i32", GPULOSS_I32, 4}, {"i16", GPULOSS_I16, 2}, {"u8", GPULOSS_U8, 1}};

static struct {
    const char *path[SIDES], *targets, *csv, *svg;
    const struct dtype *dtype;
    const struct index_type *target_dtype;
    int64_t classes; /* 0: not given */
    double mebibytes;
    int device;
    bool skip_nonfinite;
} option = {.mebibytes = 256};

static const struct dtype *dtype_named(const char *name) {
    size_t i;
    for (i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(name, dtypes[i].name) == 0)
            return &dtypes[i];
    die(BAD_INPUT, "--dtype: got %s, expected f32, f64, f16 or bf16", name);
    return NULL;
}

static const struct index_type *index_type_named(const char *name) {
    size_t i;
    for (i = 0; i < sizeof index_types / sizeof index_types[0]; i++)
        if (strcmp(name, index_types[i].name) == 0)
            return &index_types[i];
    die(BAD_INPUT, "--target-dtype: got %s, expected i64, i32, i16 or u8", name);
    return NULL;
}

static int64_t whole_number(const char *name, const char *text, int64_t least) {
    char *end;
    const long long number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || number < least || number > INT32_MAX)
        die(BAD_INPUT, "%s: got %s, expected a whole number from %lld to %ld", name, text, (long long)least,
            (long)INT32_MAX);
    return number;
}

static void read_options(int argc, char **argv) {
    int at, files = 0;
    for (at = 1; at < argc; at++) {
        const char *name = argv[at], *value;
        if (strncmp(name, "--", 2) != 0) {
            if (files == SIDES)
                die(BAD_INPUT, "got a third file, %s, expected BASE and OTHER", name);
            option.path[files++] = name;
            continue;
        }
        if (strcmp(name, "--help") == 0) {
            printf("%s", usage);
            exit(0);
        }
        if (strcmp(name, "--skip-nonfinite") == 0) {
            option.skip_nonfinite = true;
            continue;
        }
        if (++at == argc)
            die(BAD_INPUT, "%s: unknown, or without its value; --help lists the options", name);
        value = argv[at];
        if (strcmp(name, "--dtype") == 0)
            option.dtype = dtype_named(value);
        else if (strcmp(name, "--classes") == 0)
            option.classes = whole_number(name, value, 1);
        else if (strcmp(name, "--targets") == 0)
            option.targets = value;
        else if (strcmp(name, "--target-dtype") == 0)
            option.target_dtype = index_type_named(value);
        else if (strcmp(name, "--device") == 0)
            option.device = (int)whole_number(name, value, 0);
        else if (strcmp(name, "--csv") == 0)
            option.csv = value;
        else if (strcmp(name, "--svg") == 0)
            option.svg = value;
        else if (strcmp(name, "--memory") == 0) {
            char *end;
            option.mebibytes = strtod(value, &end);
            if (*end != '\0' || !(option.mebibytes > 0 && option.mebibytes <= 1 << 24))
                die(BAD_INPUT, "--memory: got %s, expected mebibytes above 0, at most %d", value, 1 << 24);
        } else
            die(BAD_INPUT, "%s: unknown; --help lists the options", name);
    }
    if (files < SIDES)
        die(BAD_INPUT, "got %d files, expected BASE and OTHER; --help says more", files);
}

/* ---- files ---- */

typedef struct file {
    const char *path;
    FILE *stream;
    int64_t bytes;
} file;

static file sides[SIDES], targets; /* targets.stream is NULL without --targets */

/* The same for both sides. */
static struct {
    bool is_kld, has_targets;
    const struct dtype *dtype; /* that gpuloss is given */
    const struct index_type *target_dtype;
    int64_t classes, rows, row_bytes, first_byte; /* row_bytes: in the file, where rows begin at first_byte */
    int64_t context, chunk_rows;                  /* of .kld files */
} work;

enum { KLD_HEADER_BYTES = 20, KLD_ROW_HEADER_BYTES = 8, KLD_TOKEN_BYTES = 4, KLD_STEPS = 65535, KLD_RANGE = 16 };

static file open_file(const char *path) {
    file f = {path, fopen(path, "rb"), 0};
    struct stat status;
    if (f.stream == NULL)
        die(BAD_INPUT, "%s: cannot be opened: %s", path, strerror(errno));
    if (fstat(fileno(f.stream), &status) != 0 || !S_ISREG(status.st_mode))
        die(BAD_INPUT, "%s: got no regular file, expected one", path);
    f.bytes = (int64_t)status.st_size;
    return f;
}

static void read_at(const file *f, int64_t offset, void *to, size_t bytes) {
    if (fseeko(f->stream, (off_t)offset, SEEK_SET) != 0 || fread(to, 1, bytes, f->stream) != bytes)
        die(OTHER_ERROR, "%s: %zu bytes at %lld cannot be read: %s", f->path, bytes, (long long)offset,
            ferror(f->stream) ? strerror(errno) : "the file has become shorter");
}

static bool is_kld(const file *f) {
    char magic[8] = "";
    if (f->bytes >= (int64_t)sizeof magic)
        read_at(f, 0, magic, sizeof magic);
    return memcmp(magic, "_logits_", sizeof magic) == 0;
}

static void expect_size(const file *f, int64_t bytes, const char *of) {
    if (f->bytes != bytes)
        die(BAD_INPUT, "%s: %s: got %lld bytes, expected %lld for %s", f->path,
            f->bytes < bytes ? "is cut off" : "is too long", (long long)f->bytes, (long long)bytes, of);
}

static void open_arrays(void) {
    int64_t rows[SIDES];
    int side;
    if (option.dtype == NULL || option.classes == 0)
        die(BAD_INPUT, "%s: not a .kld file, and without --dtype and --classes", sides[BASE].path);
    if ((option.targets != NULL) != (option.target_dtype != NULL))
        die(BAD_INPUT, "--targets and --target-dtype: got one of them, expected both");
    work.dtype = option.dtype;
    work.classes = option.classes;
    work.row_bytes = work.classes * (int64_t)work.dtype->bytes;
    for (side = 0; side < SIDES; side++) {
        rows[side] = sides[side].bytes / work.row_bytes;
        if (rows[side] == 0 || sides[side].bytes % work.row_bytes != 0)
            die(BAD_INPUT, "%s: is cut off: got %lld bytes, expected a multiple of a row's %lld", sides[side].path,
                (long long)sides[side].bytes, (long long)work.row_bytes);
    }
    if (rows[OTHER] != rows[BASE])
        die(BAD_INPUT, "%s: got %lld rows, expected %lld, those of %s", sides[OTHER].path, (long long)rows[OTHER],
            (long long)rows[BASE], sides[BASE].path);
    work.rows = rows[BASE];
    work.has_targets = option.targets != NULL;
    work.target_dtype = work.has_targets ? option.target_dtype : index_type_named("u8");
    if (work.has_targets) {
        targets = open_file(option.targets);
        expect_size(&targets, work.rows * (int64_t)work.target_dtype->bytes, "the target of each row");
    }
}

static void compare_tokens(int64_t count) {
    enum { BLOCK = 4096 };
    int32_t tokens[SIDES][BLOCK];
    int64_t first, at;
    for (first = 0; first < count; first += BLOCK) {
        const int64_t size = count - first < BLOCK ? count - first : BLOCK;
        int side;
        for (side = 0; side < SIDES; side++)
            read_at(&sides[side], KLD_HEADER_BYTES + first * KLD_TOKEN_BYTES, tokens[side],
                    (size_t)size * KLD_TOKEN_BYTES);
        for (at = 0; at < size; at++) {
            if (tokens[BASE][at] < 0 || tokens[BASE][at] >= work.classes)
                die(BAD_INPUT, "%s: token %lld: got %ld, expected 0 to %lld", sides[BASE].path, (long long)(first + at),
                    (long)tokens[BASE][at], (long long)work.classes - 1);
            if (tokens[OTHER][at] != tokens[BASE][at])
                die(BAD_INPUT, "%s: token %lld: got %ld, expected %ld, that of %s", sides[OTHER].path,
                    (long long)(first + at), (long)tokens[OTHER][at], (long)tokens[BASE][at], sides[BASE].path);
        }
    }
}

static void open_klds(void) {
    static const char *const names[] = {"n_ctx", "n_vocab", "n_chunk"};
    static const int32_t least[] = {3, 1, 1}; /* below 3 a chunk has no rows */
    int32_t header[SIDES][3];
    int64_t chunks;
    int side, i;
    if (option.dtype != NULL || option.classes != 0 || option.targets != NULL || option.target_dtype != NULL)
        die(BAD_INPUT, "%s: is a .kld file, which --dtype, --classes, --targets and --target-dtype are not for",
            sides[BASE].path);
    for (side = 0; side < SIDES; side++) {
        if (sides[side].bytes < KLD_HEADER_BYTES)
            die(BAD_INPUT, "%s: is cut off: got %lld bytes, expected %d for its header", sides[side].path,
                (long long)sides[side].bytes, KLD_HEADER_BYTES);
        read_at(&sides[side], 8, header[side], sizeof header[side]);
        for (i = 0; i < 3; i++) {
            if (header[side][i] < least[i])
                die(BAD_INPUT, "%s: %s: got %ld, expected at least %ld", sides[side].path, names[i],
                    (long)header[side][i], (long)least[i]);
            if (header[side][i] != header[BASE][i])
                die(BAD_INPUT, "%s: %s: got %ld, expected %ld, that of %s", sides[side].path, names[i],
                    (long)header[side][i], (long)header[BASE][i], sides[BASE].path);
        }
    }
    chunks = header[BASE][2];
    work.is_kld = work.has_targets = true;
    work.dtype = dtype_named("f32");
    work.target_dtype = index_type_named("i32");
    work.context = header[BASE][0];
    work.classes = header[BASE][1];
    work.chunk_rows = work.context - 1 - work.context / 2;
    work.rows = chunks * work.chunk_rows;
    work.first_byte = KLD_HEADER_BYTES + chunks * work.context * KLD_TOKEN_BYTES;
    work.row_bytes = KLD_ROW_HEADER_BYTES + (work.classes + work.classes % 2) * (int64_t)sizeof(uint16_t);
    if (work.rows > (INT64_MAX - work.first_byte) / work.row_bytes)
        die(BAD_INPUT, "%s: got n_ctx %lld, n_vocab %lld and n_chunk %lld, expected a file below 2^63 bytes",
            sides[BASE].path, (long long)work.context, (long long)work.classes, (long long)chunks);
    for (side = 0; side < SIDES; side++)
        expect_size(&sides[side], work.first_byte + work.rows * work.row_bytes, "what its header says");
    compare_tokens(chunks * work.context);
}

static void open_files(void) {
    bool kld[SIDES];
    int side;
    for (side = 0; side < SIDES; side++) {
        sides[side] = open_file(option.path[side]);
        kld[side] = is_kld(&sides[side]);
    }
    if (kld[OTHER] != kld[BASE])
        die(BAD_INPUT, "%s: is %s .kld file, expected the format of %s", sides[OTHER].path, kld[OTHER] ? "a" : "no",
            sides[BASE].path);
    if (kld[BASE])
        open_klds();
    else
        open_arrays();
}

static void close_files(void) {
    int side;
    for (side = 0; side < SIDES; side++)
        fclose(sides[side].stream);
    if (targets.stream != NULL)
        fclose(targets.stream);
}

/* ---- rows ---- */

static uint16_t *packed; /* the numbers of one row of a .kld file */

static void read_kld_rows(const file *f, int64_t first, int64_t rows, float *to) {
    int64_t row, c;
    for (row = first; row < first + rows; row++) {
        const int64_t at = work.first_byte + row * work.row_bytes;
        float header[2]; /* scale, least */
        read_at(f, at, header, sizeof header);
        read_at(f, at + KLD_ROW_HEADER_BYTES, packed, (size_t)work.classes * sizeof *packed);
        /* A NaN is found where the others are: by what comes of it. An eighth of a unit is more than rounding adds. */
        if (header[0] < 0 || header[0] * KLD_STEPS > KLD_RANGE + 0.125f || header[1] > 0.125f)
            die(BAD_INPUT, "%s: row %lld: got scale %g and least %g, expected 0 to 16 / 65535 and at most 0", f->path,
                (long long)row, (double)header[0], (double)header[1]);
        for (c = 0; c < work.classes; c++)
            *to++ = (float)((double)header[0] * packed[c] + (double)header[1]);
    }
}

static int64_t target_at(const void *from, int64_t row) {
    const char *at = (const char *)from + (size_t)row * work.target_dtype->bytes;
    int64_t i64;
    int32_t i32;
    int16_t i16;
    switch (work.target_dtype->type) {
    case GPULOSS_I64:
        memcpy(&i64, at, sizeof i64);
        return i64;
    case GPULOSS_I32:
        memcpy(&i32, at, sizeof i32);
        return i32;
    case GPULOSS_I16:
        memcpy(&i16, at, sizeof i16);
        return i16;
    case GPULOSS_U8:
    case GPULOSS_INDEX_UNSET:
        break;
    }
    return *(const unsigned char *)at;
}

static void read_targets(int64_t first, int64_t rows, char *to) {
    const int64_t bytes = (int64_t)work.target_dtype->bytes;
    int64_t row, size;
    for (row = first; work.is_kld && row < first + rows; row += size) {
        const int64_t chunk = row / work.chunk_rows, in_chunk = row % work.chunk_rows;
        const int64_t token = chunk * work.context + work.context / 2 + 1 + in_chunk;
        size = work.chunk_rows - in_chunk;
        if (size > first + rows - row)
            size = first + rows - row;
        read_at(&sides[BASE], KLD_HEADER_BYTES + token * bytes, to + (row - first) * bytes, (size_t)(size * bytes));
    }
    if (targets.stream == NULL)
        return;
    read_at(&targets, first * bytes, to, (size_t)(rows * bytes));
    for (row = 0; row < rows; row++) {
        const int64_t target = target_at(to, row);
        if (target < 0 || target >= work.classes)
            die(BAD_INPUT, "%s: row %lld: got target %lld, expected 0 to %lld", targets.path, (long long)(first + row),
                (long long)target, (long long)work.classes - 1);
    }
}

/* NULL for a finite number. */
static const char *nonfinite(const void *logits, int64_t at) {
    const int sign_bit = 8 * (int)work.dtype->bytes - 1;
    const uint64_t fraction = ((uint64_t)1 << work.dtype->fraction_bits) - 1;
    const uint64_t exponent = (((uint64_t)1 << sign_bit) - 1) ^ fraction;
    uint64_t bits = 0;
    memcpy(&bits, (const char *)logits + (size_t)at * work.dtype->bytes, work.dtype->bytes);
    if ((bits & exponent) != exponent)
        return NULL;
    return bits & fraction ? "NaN" : bits >> sign_bit ? "-inf" : "inf";
}

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
        die(BAD_INPUT, "--memory: got %g, expected at least %g for rows of %lld classes", option.mebibytes,
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
        packed = (uint16_t *)allocate(work.classes, sizeof *packed);
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

/* ---- statistics ---- */

typedef struct moments {
    int64_t count;
    double mean, squares; /* squares: of the differences from the mean */
} moments;

static void add(moments *m, double value) {
    const double off = value - m->mean;
    m->mean += off / (double)++m->count;
    m->squares += off * (value - m->mean);
}

/* The standard error of the mean; NaN of one number. */
static double standard_error(const moments *m) {
    return m->count > 1 ? sqrt(m->squares / (double)(m->count - 1) / (double)m->count) : (double)NAN;
}

static struct {
    double *kls; /* of the rows that count; sorted in the end */
    moments kl, loss[SIDES], more_loss, equal_top, squared_p_difference;
    int64_t nonfinite_rows, cut_off[SIDES];
} total;

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
    kl = fmax(kl, 0); /* which only rounding makes negative */
    total.kls[total.kl.count] = kl;
    add(&total.kl, kl);
    for (side = 0; side < SIDES; side++)
        add(&total.loss[side], loss[side]);
    add(&total.more_loss, loss[OTHER] - loss[BASE]);
    difference = exp(-loss[OTHER]) - exp(-loss[BASE]);
    add(&total.squared_p_difference, difference * difference);
    add(&total.equal_top, host_argmax[BASE][row] == host_argmax[OTHER][row]);
}

/* Waits for what was started. */
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

static int compare_doubles(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
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
        say("... and %lld more rows", (long long)(total.nonfinite_rows - MOST_REPORTED));
    if (total.nonfinite_rows > 0 && !option.skip_nonfinite)
        die(BAD_INPUT,
            "got %lld rows of %lld that have no finite KL or cross-entropy, expected none; "
            "--skip-nonfinite leaves them out",
            (long long)total.nonfinite_rows, (long long)work.rows);
    if (total.kl.count == 0)
        die(BAD_INPUT, "no row has a finite KL and cross-entropy");
    qsort(total.kls, (size_t)total.kl.count, sizeof *total.kls, compare_doubles);
}

/* Between two ranks it is interpolated. */
static double quantile(double share) {
    const double rank = share * (double)(total.kl.count - 1);
    const int64_t below = (int64_t)rank, above = below + (below + 1 < total.kl.count);
    return total.kls[below] + (rank - (double)below) * (total.kls[above] - total.kls[below]);
}

/* ---- figures ---- */

static FILE *open_output(const char *path) {
    FILE *out = path != NULL ? fopen(path, "w") : NULL;
    if (path != NULL && out == NULL)
        die(OTHER_ERROR, "%s: cannot be written: %s", path, strerror(errno));
    return out;
}

static void close_output(const char *path, FILE *out) {
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed)
        die(OTHER_ERROR, "%s: could not be written: %s", path, strerror(errno));
}

/* Prints a figure, with its standard error if it has one, and writes it to csv if that is wanted. */
static void figure(FILE *csv, const char *name, const char *description, double value, const double *error) {
    printf("%-44s %12.7g", description, value);
    if (error != NULL)
        printf(isnan(*error) ? " +- unknown" : " +- %.3g", *error);
    printf("\n");
    if (csv != NULL)
        fprintf(csv, "%s,%.17g,", name, value);
    if (csv != NULL && error != NULL)
        fprintf(csv, "%.17g", *error);
    if (csv != NULL)
        fprintf(csv, "\n");
}

static void print_figures(FILE *csv) {
    static const struct {
        const char *name, *description;
        double share;
    } quantiles[] = {{"kl_median", "  median", 0.5}, {"kl_90", "  90 %", 0.9},       {"kl_95", "  95 %", 0.95},
                     {"kl_99", "  99 %", 0.99},      {"kl_99_9", "  99.9 %", 0.999}, {"kl_largest", "  largest", 1}};
    double error;
    size_t i;
    int side;
    if (csv != NULL)
        fprintf(csv, "figure,value,standard_error\n");
    for (side = 0; side < SIDES; side++)
        printf("%-5s  %s\n", role[side], sides[side].path);
    figure(csv, "tokens", "tokens", (double)total.kl.count, NULL);
    if (total.nonfinite_rows > 0)
        figure(csv, "nonfinite_rows", "rows left out: NaN or infinite", (double)total.nonfinite_rows, NULL);
    if (work.has_targets) {
        static const char *const names[SIDES] = {"perplexity_base", "perplexity_other"};
        for (side = 0; side < SIDES; side++) {
            const double perplexity = exp(total.loss[side].mean);
            error = perplexity * standard_error(&total.loss[side]);
            figure(csv, names[side], side == BASE ? "perplexity of BASE" : "perplexity of OTHER", perplexity, &error);
        }
        error = exp(total.more_loss.mean) * standard_error(&total.more_loss);
        figure(csv, "perplexity_ratio", "perplexity of OTHER / of BASE", exp(total.more_loss.mean), &error);
    }
    error = standard_error(&total.kl);
    figure(csv, "kl_mean", "KL(BASE || OTHER) a token, in nats: mean", total.kl.mean, &error);
    for (i = 0; i < sizeof quantiles / sizeof quantiles[0]; i++)
        figure(csv, quantiles[i].name, quantiles[i].description, quantile(quantiles[i].share), NULL);
    if (work.has_targets)
        figure(csv, "p_difference_rms", "p of the true token: RMS difference", sqrt(total.squared_p_difference.mean),
               NULL);
    error = standard_error(&total.equal_top);
    figure(csv, "equal_top", "equal top tokens: share", total.equal_top.mean, &error);
    if (work.is_kld) {
        figure(csv, "cut_off_base", "true tokens at the cut-off of BASE", (double)total.cut_off[BASE], NULL);
        figure(csv, "cut_off_other", "true tokens at the cut-off of OTHER", (double)total.cut_off[OTHER], NULL);
    }
    if (!work.has_targets)
        printf("Left out without --targets: perplexities, and p of the true token.\n");
}

/* ---- histogram ---- */

/* In pixels. */
enum { WIDTH = 800, HEIGHT = 460, LEFT = 80, RIGHT = 770, TOP = 120, BOTTOM = 400, SMALL_BAR = 30 };
enum { BINS_A_DECADE = 10, MOST_DECADES = 10, MOST_TICKS = 6 };

static void write_text(FILE *svg, const char *text) {
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < ' ' || c == '<' || c == '>' || c == '&')
            fprintf(svg, "&#%d;", c < ' ' ? '?' : c);
        else
            fputc(c, svg);
    }
}

static void write_bar(FILE *svg, double x, double width, int64_t count, double height, double from, double to) {
    fprintf(svg, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"#3465a4\">", x, BOTTOM - height,
            width, height);
    fprintf(svg, "<title>%.3g to %.3g: %lld tokens</title></rect>\n", from, to, (long long)count);
}

/* Bars of equal width on a logarithmic axis. What is 0, or more than MOST_DECADES below the largest, is a bar at the left. */
static void write_svg(FILE *svg) {
    static const struct {
        const char *name;
        double share;
    } marks[] = {{"median", 0.5}, {"90 %", 0.9}, {"99 %", 0.99}};
    const double largest = total.kls[total.kl.count - 1];
    const int high = largest > 0 ? (int)floor(log10(largest)) + 1 : 0;
    int64_t counts[MOST_DECADES * BINS_A_DECADE] = {0}, small = 0, most = 0, at, step;
    int low, bins, bin;
    double pixels_a_decade, pixels_a_token, x;
    size_t i;
    for (at = 0; at + 1 < total.kl.count && total.kls[at] <= 0; at++)
        continue;
    low = total.kls[at] > 0 ? (int)floor(log10(total.kls[at])) : high - 1;
    if (low < high - MOST_DECADES)
        low = high - MOST_DECADES;
    bins = (high - low) * BINS_A_DECADE;
    for (at = 0; at < total.kl.count; at++) {
        const double place = total.kls[at] > 0 ? floor((log10(total.kls[at]) - low) * BINS_A_DECADE) : -1;
        if (place < 0)
            small++;
        else
            counts[place < bins ? (int)place : bins - 1]++;
    }
    for (bin = 0, most = small; bin < bins; bin++)
        most = counts[bin] > most ? counts[bin] : most;
    pixels_a_decade = (double)(RIGHT - LEFT - SMALL_BAR) / (high - low);
    pixels_a_token = (double)(BOTTOM - TOP) / (double)most;

    fprintf(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" ", WIDTH,
            HEIGHT, WIDTH, HEIGHT);
    fprintf(svg,
            "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    fprintf(svg, "<text x=\"%d\" y=\"26\" font-size=\"18\">KL(BASE || OTHER) of %lld tokens, mean %.4g</text>\n", LEFT,
            (long long)total.kl.count, total.kl.mean);
    for (i = 0; i < SIDES; i++) {
        fprintf(svg, "<text x=\"%d\" y=\"%d\">%s: ", LEFT, 46 + 16 * (int)i, role[i]);
        write_text(svg, sides[i].path);
        fprintf(svg, "</text>\n");
    }
    /* The least of 1, 2, 5, 10, 20, 50, ... with no more ticks than wanted. */
    for (step = 1, i = 0; most / step > MOST_TICKS; i++)
        step = i % 3 == 1 ? step / 2 * 5 : step * 2;
    for (at = 0; at <= most; at += step) {
        const double y = BOTTOM - pixels_a_token * (double)at;
        fprintf(svg, "<path d=\"M%d %.2fH%d\" stroke=\"#ddd\"/>", LEFT, y, RIGHT);
        fprintf(svg, "<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\">%lld</text>\n", LEFT - 6, y + 4, (long long)at);
    }
    for (bin = 0; bin < bins; bin++)
        if (counts[bin] > 0)
            write_bar(svg, LEFT + SMALL_BAR + pixels_a_decade * bin / BINS_A_DECADE,
                      pixels_a_decade / BINS_A_DECADE - 0.5, counts[bin], pixels_a_token * (double)counts[bin],
                      pow(10, low + (double)bin / BINS_A_DECADE), pow(10, low + (bin + 1.0) / BINS_A_DECADE));
    if (small > 0) {
        write_bar(svg, LEFT, SMALL_BAR - 6, small, pixels_a_token * (double)small, 0, pow(10, low));
        fprintf(svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">less</text>\n", LEFT + SMALL_BAR / 2 - 3,
                BOTTOM + 18);
    }
    for (bin = low; bin <= high; bin++) {
        x = LEFT + SMALL_BAR + pixels_a_decade * (bin - low);
        fprintf(svg, "<path d=\"M%.2f %dv5\" stroke=\"#000\"/>", x, BOTTOM);
        fprintf(svg, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">1e%d</text>\n", x, BOTTOM + 18, bin);
    }
    fprintf(svg, "<path d=\"M%d %dH%d\" stroke=\"#000\"/>\n", LEFT, BOTTOM, RIGHT);
    for (i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        const double value = quantile(marks[i].share);
        if (value < pow(10, low))
            continue;
        x = LEFT + SMALL_BAR + pixels_a_decade * (log10(value) - low);
        fprintf(svg, "<path d=\"M%.2f %dV%d\" stroke=\"#c00\" stroke-dasharray=\"4 3\"/>", x, TOP - 10 * (int)i,
                BOTTOM);
        fprintf(svg, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"end\" fill=\"#c00\">%s %.3g</text>\n", x - 3,
                TOP - 2 - 12 * (int)i, marks[i].name, value);
    }
    fprintf(svg, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">KL of a token, in nats</text>\n", (LEFT + RIGHT) / 2,
            BOTTOM + 42);
    fprintf(svg, "<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\">tokens</text>\n</svg>\n",
            (TOP + BOTTOM) / 2);
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
