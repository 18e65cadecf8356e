/* The two formats of model_diff's files. */
#ifndef EXAMPLES_MODEL_DIFF_FILES_H
#define EXAMPLES_MODEL_DIFF_FILES_H

#include "options.h"

#include <sys/stat.h>
#include <unistd.h>

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
    const struct dtype *dtype; /* type of the logits for gpuloss */
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
    static const double MOST_BYTES = 9e18;    /* a little less than 2^63 */
    int32_t header[SIDES][3];
    int64_t chunks;
    double bytes;
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
    work.row_bytes = KLD_ROW_HEADER_BYTES + (work.classes + work.classes % 2) * (int64_t)sizeof(uint16_t);
    bytes =
        (double)chunks * ((double)work.context * KLD_TOKEN_BYTES + (double)work.chunk_rows * (double)work.row_bytes);
    if (bytes > MOST_BYTES)
        die(BAD_INPUT, "%s: got n_ctx %lld, n_vocab %lld and n_chunk %lld, expected a file of at most 9e18 bytes",
            sides[BASE].path, (long long)work.context, (long long)work.classes, (long long)chunks);
    work.first_byte = KLD_HEADER_BYTES + chunks * work.context * KLD_TOKEN_BYTES;
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

static char *packed; /* one row of a .kld file */

static void read_kld_rows(const file *f, int64_t first, int64_t rows, float *to) {
    int64_t row, c;
    for (row = first; row < first + rows; row++) {
        float scale, least;
        read_at(f, work.first_byte + row * work.row_bytes, packed, (size_t)work.row_bytes);
        memcpy(&scale, packed, sizeof scale);
        memcpy(&least, packed + sizeof scale, sizeof least);
        /* NaNs are found later, like the NaNs of arrays. 0.125 is more than rounding adds. */
        if (scale < 0 || scale * KLD_STEPS > KLD_RANGE + 0.125f || least > 0.125f)
            die(BAD_INPUT, "%s: row %lld: got scale %g and least %g, expected 0 to 16 / 65535, and at most 0", f->path,
                (long long)row, (double)scale, (double)least);
        for (c = 0; c < work.classes; c++) {
            uint16_t u;
            memcpy(&u, packed + KLD_ROW_HEADER_BYTES + (size_t)c * sizeof u, sizeof u);
            *to++ = (float)((double)scale * u + (double)least);
        }
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

#endif
