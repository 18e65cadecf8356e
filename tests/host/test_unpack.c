/* The decoders of the embedded texts: exact on the output of gen/, and never out of bounds on anything else. */
#define GPULOSS_STATIC
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Heap blocks that end where the decoder is told, so that a sanitizer sees the first byte outside. A byte ahead of them is
 * there for blocks of no bytes. */
static void *new_block(size_t count) {
    char *block = (char *)malloc(1 + count);
    assert_non_null(block);
    return block + 1;
}
static void free_block(void *block) {
    free((char *)block - 1);
}
static void *copy_of(const void *from, size_t count) {
    return memcpy(new_block(count), from, count);
}

static const uint32_t no_words[GPULOSSI_FEATURE_WORDS] = {0, 0, 0, 0};

static size_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(*seed >> 33);
}

/* Decodes after the texts of `before`. The bytes of a text that fits must be `expected`, unless that is null. */
static int decodes(const gpulossi_lzma *before, const unsigned char *packed, size_t packed_bytes, size_t bytes,
                   const unsigned char *expected) {
    gpulossi_lzma z = *before;
    unsigned char *in = (unsigned char *)copy_of(packed, packed_bytes);
    int fits;
    z.history = (unsigned char *)new_block(before->at + bytes);
    memcpy(z.history, before->history, before->at);
    fits = gpulossi_lzma_decode(&z, bytes, in, packed_bytes);
    if (fits)
        assert_int_equal(z.at, before->at + bytes);
    if (fits && expected != NULL)
        assert_memory_equal(z.history + before->at, expected, bytes);
    free_block(z.history);
    free_block(in);
    return fits;
}

/* Whether a shortened text expands to this many bytes, with a zero after it. */
static int expands(const unsigned char *shortened, size_t shortened_bytes, size_t bytes, const char *expected) {
    unsigned char *in = (unsigned char *)copy_of(shortened, shortened_bytes);
    const size_t room = bytes + GPULOSSI_PHRASE_BYTES;
    gpulossi_shortened *s = (gpulossi_shortened *)malloc(sizeof *s);
    char *text = (char *)new_block(room);
    size_t out = 0, count = 0;
    int fits = gpulossi_shortened_begin(s, in, shortened_bytes);
    if (fits) {
        do {
            count = gpulossi_expand(s, text + out, room - out);
            out += count;
        } while (count > 0);
        fits = out + 1 == bytes && gpulossi_is_expanded(s);
    }
    if (fits && expected != NULL)
        assert_memory_equal(text, expected, out);
    free_block(in);
    free_block(text);
    free(s);
    return fits;
}

/* ---- the embedded images ---- */

/* Whether the text of an image comes out of these sizes, after the texts of `before`. */
static int unpacks(const gpulossi_lzma *before, const gpulossi_image *image, size_t packed_bytes,
                   size_t shortened_bytes, size_t bytes, const char *expected) {
    gpulossi_lzma z = *before;
    unsigned char *in = (unsigned char *)copy_of(image->words, packed_bytes);
    int fits;
    z.history = (unsigned char *)new_block(before->at + shortened_bytes);
    memcpy(z.history, before->history, before->at);
    fits = gpulossi_lzma_decode(&z, shortened_bytes, in, packed_bytes) &&
           expands(z.history + before->at, shortened_bytes, bytes, expected);
    free_block(z.history);
    free_block(in);
    return fits;
}

/* Each image is the file in ptx/, with a zero after it; one byte more or less of anything is noticed. */
static void embedded_images(void **state) {
    int module;
    (void)state;
    for (module = 0; module < GPULOSSI_MODULE_COUNT; module++) {
        const gpulossi_image *image = gpulossi_image_of(module);
        const size_t packed = image->packed_bytes, shortened = image->shortened_bytes, bytes = image->bytes;
        const size_t history_bytes = gpulossi_unpacked_bytes(image);
        unsigned char *history = (unsigned char *)malloc(history_bytes);
        char *text = (char *)malloc(gpulossi_room_bytes(image) + 8), *file = (char *)malloc(bytes), path[128];
        gpulossi_image wrong;
        gpulossi_marks marks;
        size_t specialised_bytes;
        gpulossi_lzma z;
        FILE *f;
        snprintf(path, sizeof path, "ptx/%s.ptx", image->entry + strlen("gpuloss_"));
        f = fopen(path, "rb");
        if (f == NULL)
            fail_msg("can't open %s (the tests run in the repository's root)", path);
        assert_int_equal(fread(file, 1, bytes, f), bytes - 1);
        fclose(f);
        file[bytes - 1] = 0;
        gpulossi_lzma_begin(&z, history);
        if (image->after >= 0)
            assert_true(gpulossi_unpack(&z, gpulossi_image_of(image->after)));
        assert_int_equal(z.at + shortened, history_bytes);
        assert_true(unpacks(&z, image, packed, shortened, bytes, file));
        assert_false(unpacks(&z, image, packed, shortened, bytes - 1, NULL));
        assert_false(unpacks(&z, image, packed, shortened, bytes + 1, NULL));
        assert_false(unpacks(&z, image, packed, shortened - 1, bytes, NULL));
        assert_false(unpacks(&z, image, packed, shortened + 1, bytes, NULL));
        assert_false(unpacks(&z, image, packed - 1, shortened, bytes, NULL));
        assert_true(gpulossi_unpack_text(image, no_words, text));
        gpulossi_marks_begin(&marks);
        specialised_bytes = bytes - 1;
        assert_true(gpulossi_specialise(&marks, file, &specialised_bytes, no_words));
        assert_memory_equal(text, file, specialised_bytes);
        assert_int_equal(text[specialised_bytes], 0);
        for (wrong = *image, wrong.bytes--; wrong.bytes <= bytes + 1; wrong.bytes += 2)
            assert_false(gpulossi_unpack_text(&wrong, no_words, text));
        free(text);
        free(history);
        free(file);
    }
}

/* ---- LZMA ---- */

enum { ENCODED_BYTES = 1 << 16, ENCODED_TEXT = 1 << 18 };

/* Writes a stream of symbols that the test chooses. */
typedef struct encoder {
    unsigned char packed[ENCODED_BYTES], text[ENCODED_TEXT];
    size_t packed_bytes, bytes, begin; /* begin: of this stream, in the text */
    uint64_t low;
    uint32_t range;
    unsigned waiting, waits; /* a byte that may still get a carry, and how many wait, all but the first 0xff */
    unsigned state;
    uint32_t distances[4];
    uint16_t probabilities[GPULOSSI_LZMA_PROBABILITIES];
} encoder;

static void begin_stream(encoder *e) {
    e->low = e->packed_bytes = e->waiting = 0;
    e->waits = 1;
    e->range = 0xffffffffu;
    e->begin = e->bytes;
}

static encoder *new_encoder(void) {
    encoder *e = (encoder *)calloc(1, sizeof *e);
    unsigned i;
    assert_non_null(e);
    for (i = 0; i < GPULOSSI_LZMA_PROBABILITIES; i++)
        e->probabilities[i] = 1024;
    begin_stream(e);
    return e;
}

static void shift_low(encoder *e) {
    if (e->low < 0xff000000u || e->low >> 32 != 0) {
        for (; e->waits > 0; e->waits--) {
            assert_true(e->packed_bytes < ENCODED_BYTES);
            e->packed[e->packed_bytes++] = (unsigned char)(e->waiting + (unsigned)(e->low >> 32));
            e->waiting = 0xff;
        }
        e->waiting = (unsigned)(e->low >> 24) & 0xff;
    }
    e->waits++;
    e->low = e->low << 8 & 0xffffffffu;
}

static void end_stream(encoder *e) {
    int i;
    for (i = 0; i < 5; i++)
        shift_low(e);
}

static void put_bit(encoder *e, unsigned which, unsigned bit) {
    const unsigned p = e->probabilities[which];
    const uint32_t bound = (e->range >> 11) * p;
    if (bit) {
        e->low += bound;
        e->range -= bound;
        e->probabilities[which] = (uint16_t)(p - p / 32);
    } else {
        e->range = bound;
        e->probabilities[which] = (uint16_t)(p + (2048 - p) / 32);
    }
    for (; e->range < 1u << 24; e->range <<= 8)
        shift_low(e);
}

static void put_tree(encoder *e, unsigned first, unsigned bits, unsigned number) {
    unsigned node = 1;
    while (bits-- > 0) {
        put_bit(e, first + node, number >> bits & 1);
        node = 2 * node + (number >> bits & 1);
    }
}

static void put_reversed(encoder *e, unsigned first, unsigned bits, unsigned number) {
    unsigned node = 1;
    for (; bits > 0; bits--, number >>= 1) {
        put_bit(e, first + node, number & 1);
        node = 2 * node + (number & 1);
    }
}

static void put_length(encoder *e, unsigned first, unsigned length) {
    put_bit(e, first, length >= 10);
    if (length >= 10)
        put_bit(e, first + 1, length >= 18);
    put_tree(e,
             first + (length < 10   ? 2
                      : length < 18 ? 10
                                    : 18),
             length < 18 ? 3 : 8,
             length - (length < 10   ? 2
                       : length < 18 ? 10
                                     : 18));
}

/* The text goes on with bytes of a distance, which may lie ahead of it or be too many: the decoder must refuse these. */
static void copy_in_text(encoder *e, unsigned length) {
    for (; length > 0; length--) {
        assert_true(e->bytes < ENCODED_TEXT);
        e->text[e->bytes] = e->distances[0] < e->bytes ? e->text[e->bytes - e->distances[0] - 1] : 0;
        e->bytes++;
    }
}

static void put_literal(encoder *e, unsigned char byte) {
    const unsigned match = e->state >= 7 && e->distances[0] < e->bytes ? e->text[e->bytes - e->distances[0] - 1] : 0;
    unsigned node = 1, bits = 8, is_same = e->state >= 7;
    put_bit(e, GPULOSSI_LZMA_MATCH + e->state, 0);
    while (bits-- > 0) {
        const unsigned bit = byte >> bits & 1, match_bit = match >> bits & 1;
        put_bit(e, GPULOSSI_LZMA_LITERAL + (is_same ? 256 * (1 + match_bit) : 0) + node, bit);
        is_same = is_same && bit == match_bit;
        node = 2 * node + bit;
    }
    e->text[e->bytes++] = byte;
    e->state = e->state < 4 ? 0 : e->state < 10 ? e->state - 3 : e->state - 6;
}

static void put_text(encoder *e, const char *text) {
    for (; *text != 0; text++)
        put_literal(e, (unsigned char)*text);
}

/* Bytes that do not repeat soon. */
static void put_noise(encoder *e, size_t count) {
    uint64_t seed = count;
    for (; count > 0; count--)
        put_literal(e, (unsigned char)next_random(&seed));
}

static void put_match(encoder *e, uint32_t distance, unsigned length) {
    const uint32_t less = distance - 1;
    unsigned slot, bits = 0;
    while (bits < 32 && less >> bits != 0)
        bits++;
    slot = less < 4 ? less : 2 * (bits - 1) + (less >> (bits - 2) & 1);
    bits = slot < 4 ? 0 : slot / 2 - 1;
    put_bit(e, GPULOSSI_LZMA_MATCH + e->state, 1);
    put_bit(e, GPULOSSI_LZMA_REPEAT + e->state, 0);
    put_length(e, GPULOSSI_LZMA_LENGTH, length);
    put_tree(e, GPULOSSI_LZMA_SLOT + 64 * (length < 5 ? length - 2 : 3), 6, slot);
    if (slot >= 14) {
        for (; bits > 4; bits--) {
            e->range >>= 1;
            e->low += less >> (bits - 1) & 1 ? e->range : 0;
            for (; e->range < 1u << 24; e->range <<= 8)
                shift_low(e);
        }
        put_reversed(e, GPULOSSI_LZMA_LOW, 4, less & 15);
    } else if (slot >= 4) {
        const uint32_t base = (2 | (slot & 1)) << bits;
        put_reversed(e, GPULOSSI_LZMA_DISTANCE + base - slot, bits, less - base);
    }
    memmove(e->distances + 1, e->distances, 3 * sizeof *e->distances);
    e->distances[0] = less;
    copy_in_text(e, length);
    e->state = e->state < 7 ? 7 : 10;
}

/* At the last distance but `which`; one byte only at the last. */
static void put_repeat(encoder *e, unsigned which, unsigned length) {
    const uint32_t distance = e->distances[which];
    put_bit(e, GPULOSSI_LZMA_MATCH + e->state, 1);
    put_bit(e, GPULOSSI_LZMA_REPEAT + e->state, 1);
    put_bit(e, GPULOSSI_LZMA_NOT_FIRST + e->state, which > 0);
    if (which == 0)
        put_bit(e, GPULOSSI_LZMA_LONG + e->state, length > 1);
    else
        put_bit(e, GPULOSSI_LZMA_NOT_SECOND + e->state, which > 1);
    if (which > 1)
        put_bit(e, GPULOSSI_LZMA_NOT_THIRD + e->state, which > 2);
    memmove(e->distances + 1, e->distances, which * sizeof *e->distances);
    e->distances[0] = distance;
    if (length > 1)
        put_length(e, GPULOSSI_LZMA_REPEAT_LENGTH, length);
    copy_in_text(e, length);
    e->state = length == 1 ? (e->state < 7 ? 9 : 11) : e->state < 7 ? 8 : 11;
}

/* Of a stream that stands alone, and that has ended. */
static int is_accepted(const encoder *e, size_t packed_bytes, size_t bytes) {
    unsigned char none = 0;
    gpulossi_lzma z;
    gpulossi_lzma_begin(&z, &none);
    return decodes(&z, e->packed, packed_bytes, bytes, e->text);
}

/* Ends the stream, which is right as it is, and wrong where it is cut. */
static void expect_text(encoder *e) {
    size_t n;
    end_stream(e);
    assert_true(is_accepted(e, e->packed_bytes, e->bytes));
    for (n = 0; n < e->packed_bytes; n += 1 + e->packed_bytes / 300)
        assert_false(is_accepted(e, n, e->bytes));
    assert_false(is_accepted(e, e->packed_bytes - 1, e->bytes));
    for (n = 0; n < 8; n++)
        e->packed[e->packed_bytes + n] = 0;
    assert_false(is_accepted(e, e->packed_bytes + 1, e->bytes));
    assert_false(is_accepted(e, e->packed_bytes + 8, e->bytes));
    if (e->bytes > 0)
        assert_false(is_accepted(e, e->packed_bytes, e->bytes - 1));
    free(e);
}

static void literals(void **state) {
    encoder *e = new_encoder();
    (void)state;
    expect_text(e);
    e = new_encoder();
    put_text(e, "hello");
    expect_text(e);
    e = new_encoder();
    put_noise(e, 3000);
    expect_text(e);
}

static void matches(void **state) {
    static const unsigned lengths[] = {2, 3, 4, 5, 9, 10, 17, 18, 272, 273};
    static const uint32_t distances[] = {1,   2,   3,    4,    5,    6,    7,     8,     9,     96,    97,    127,
                                         128, 129, 1000, 4095, 4096, 4097, 12287, 12288, 32768, 49151, 49152, 60000};
    size_t i, k;
    (void)state;
    for (i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        encoder *e = new_encoder();
        put_text(e, "abcdefghij");
        put_match(e, 7, lengths[i]);
        put_text(e, "h.");
        put_match(e, 1, lengths[i]);
        expect_text(e);
    }
    for (i = 0; i < sizeof distances / sizeof distances[0]; i++) {
        encoder *e = new_encoder();
        put_noise(e, 300);
        for (k = 0; k < 250; k++)
            put_match(e, 293, 273);
        put_match(e, distances[i], 20);
        put_noise(e, 3);
        put_match(e, distances[i], 2);
        expect_text(e);
    }
}

static void repeats(void **state) {
    unsigned which, again;
    (void)state;
    for (which = 0; which < 4; which++)
        for (again = 0; again < 4; again++) {
            encoder *e = new_encoder();
            put_noise(e, 40);
            put_match(e, 31, 4);
            put_match(e, 11, 2);
            put_text(e, "x");
            put_match(e, 23, 3);
            put_match(e, 17, 5);
            put_repeat(e, which, 3);
            put_repeat(e, again, 12);
            put_repeat(e, 0, 1);
            put_text(e, "some literals");
            put_repeat(e, again, 30);
            put_text(e, "?");
            put_repeat(e, 0, 1);
            put_repeat(e, 0, 1);
            put_repeat(e, which, 2);
            put_match(e, 3, 2);
            put_repeat(e, 3, 2);
            expect_text(e);
        }
}

/* A text that goes on after another, and not without it. */
static void texts_after_others(void **state) {
    encoder *e = new_encoder();
    unsigned char *first, *history = (unsigned char *)malloc(ENCODED_TEXT), none = 0;
    size_t first_bytes, size;
    gpulossi_lzma z;
    (void)state;
    put_text(e, "the first text, the first");
    put_match(e, 5, 7);
    end_stream(e);
    first_bytes = e->packed_bytes;
    first = (unsigned char *)copy_of(e->packed, first_bytes);
    gpulossi_lzma_begin(&z, history);
    assert_true(gpulossi_lzma_decode(&z, e->bytes, first, first_bytes));
    begin_stream(e);
    put_repeat(e, 0, 1);
    put_text(e, "the text");
    put_match(e, 30, 9);
    put_match(e, (uint32_t)e->bytes, 3);
    end_stream(e);
    size = e->bytes - e->begin;
    assert_true(decodes(&z, e->packed, e->packed_bytes, size, e->text + e->begin));
    assert_false(decodes(&z, e->packed, e->packed_bytes - 1, size, NULL));
    assert_false(decodes(&z, e->packed, e->packed_bytes, size - 1, NULL));
    gpulossi_lzma_begin(&z, &none);
    assert_false(decodes(&z, e->packed, e->packed_bytes, size, NULL));
    free_block(first);
    free(history);
    free(e);
}

static void expect_refused(encoder *e) {
    end_stream(e);
    assert_false(is_accepted(e, e->packed_bytes, e->bytes));
    free(e);
}

static void bad_matches(void **state) {
    static const uint32_t distances[] = {7, 8, 130, 5000, 0x7fffffff, 0x80000000u, 0xffffffffu, 0};
    size_t i;
    encoder *e = new_encoder();
    (void)state;
    put_match(e, 1, 2); /* with nothing ahead of it */
    expect_refused(e);
    e = new_encoder();
    put_repeat(e, 0, 1);
    expect_refused(e);
    e = new_encoder();
    put_repeat(e, 3, 5);
    expect_refused(e);
    for (i = 0; i < sizeof distances / sizeof distances[0]; i++) {
        e = new_encoder();
        put_text(e, "abcdef");
        put_match(e, distances[i], 4); /* from ahead of the text; 0 is the end mark of streams that have one */
        expect_refused(e);
    }
    for (i = 1; i < 60; i++) {
        e = new_encoder();
        put_text(e, "abcdef");
        put_match(e, 3, 60); /* beyond the text's end */
        end_stream(e);
        assert_false(is_accepted(e, e->packed_bytes, e->bytes - i));
        free(e);
    }
}

/* A stream that would be right if there were zeros after it, and one whose first byte is not zero. */
static void bad_ends(void **state) {
    unsigned i, found = 0;
    (void)state;
    for (i = 0; i < 2000; i++) {
        encoder *e = new_encoder();
        char text[16];
        snprintf(text, sizeof text, "text %u", i);
        put_text(e, text);
        end_stream(e);
        if (e->packed[e->packed_bytes - 1] == 0) {
            found++;
            assert_true(is_accepted(e, e->packed_bytes, e->bytes));
            assert_false(is_accepted(e, e->packed_bytes - 1, e->bytes));
        }
        e->packed[0] = (unsigned char)(1 + i % 255);
        assert_false(is_accepted(e, e->packed_bytes, e->bytes));
        free(e);
    }
    assert_true(found > 0);
}

/* A stream with every kind of symbol in it. */
static encoder *varied(void) {
    encoder *e = new_encoder();
    put_text(e, "a stream with every kind of symbol");
    put_match(e, 10, 5);
    put_text(e, "!");
    put_repeat(e, 0, 1);
    put_match(e, 30, 12);
    put_repeat(e, 1, 4);
    put_text(e, "more");
    put_match(e, 3, 200);
    put_match(e, 190, 3);
    put_repeat(e, 2, 20);
    put_repeat(e, 3, 2);
    put_text(e, "end");
    return e;
}

static void damaged_streams(void **state) {
    encoder *e = varied();
    size_t at, n;
    unsigned value;
    (void)state;
    end_stream(e);
    assert_true(is_accepted(e, e->packed_bytes, e->bytes));
    for (n = 0; n < e->packed_bytes; n++)
        assert_false(is_accepted(e, n, e->bytes));
    for (n = 0; n < e->bytes; n++)
        assert_false(is_accepted(e, e->packed_bytes, n));
    /* Every byte in every other value, which has every flipped bit among them. */
    for (at = 0; at < e->packed_bytes; at++) {
        const unsigned char right = e->packed[at];
        for (value = 1; value < 256; value++) {
            e->packed[at] = (unsigned char)(right ^ value);
            assert_false(is_accepted(e, e->packed_bytes, e->bytes));
        }
        e->packed[at] = right;
    }
    expect_text(varied());
    free(e);
}

static void put_random_symbol(encoder *e, uint64_t *seed) {
    const size_t kind = next_random(seed) % 8;
    const unsigned length =
        (unsigned)(next_random(seed) % 5 == 0 ? 2 + next_random(seed) % 272 : 2 + next_random(seed) % 9);
    const unsigned which = (unsigned)(next_random(seed) % 4);
    if (kind < 3 || e->bytes == 0)
        put_literal(e, (unsigned char)next_random(seed));
    else if (kind < 5)
        put_match(e, 1 + (uint32_t)(next_random(seed) % e->bytes), length);
    else if (e->distances[which] < e->bytes)
        put_repeat(e, which, kind == 7 && which == 0 ? 1 : length);
}

/* Streams of random symbols are decoded, and damaged ones are not, or to something else of that size. */
static void random_streams(void **state) {
    uint64_t seed = 20240229;
    int round, refused = 0;
    (void)state;
    for (round = 0; round < 4000; round++) {
        encoder *e = new_encoder();
        gpulossi_lzma z;
        unsigned char none = 0;
        size_t symbols = 1 + next_random(&seed) % 60, changes;
        for (; symbols > 0; symbols--)
            put_random_symbol(e, &seed);
        end_stream(e);
        assert_true(is_accepted(e, e->packed_bytes, e->bytes));
        gpulossi_lzma_begin(&z, &none);
        for (changes = 1 + next_random(&seed) % 6; changes > 0; changes--) {
            e->packed[next_random(&seed) % e->packed_bytes] ^= (unsigned char)(1 + next_random(&seed) % 255);
            refused += !decodes(&z, e->packed, next_random(&seed) % (e->packed_bytes + 1), e->bytes, NULL);
            refused += !decodes(&z, e->packed, e->packed_bytes, next_random(&seed) % (e->bytes + 300), NULL);
        }
        free(e);
    }
    assert_true(refused > 4000);
}

static void random_bytes(void **state) {
    uint64_t seed = 7;
    int round;
    (void)state;
    for (round = 0; round < 20000; round++) {
        unsigned char packed[64], none = 0;
        size_t i, count = next_random(&seed) % sizeof packed;
        gpulossi_lzma z;
        for (i = 0; i < sizeof packed; i++)
            packed[i] = (unsigned char)(i == 0 ? 0 : next_random(&seed) % 2 == 0 ? next_random(&seed) : 255);
        gpulossi_lzma_begin(&z, &none);
        (void)decodes(&z, packed, count, next_random(&seed) % 4000, NULL);
    }
}

/* ---- checksums ---- */

/* A GPU whose texts are those of the block. */
static gpuloss_context bare_context(void) {
    gpuloss_context context;
    memset(&context, 0, sizeof context);
    context.compute_capability = GPULOSSI_ANY_GPU;
    return context;
}

static void sums_distinguish_texts(void **state) {
    unsigned char text[40];
    size_t bytes, bit;
    (void)state;
    memset(text, 'x', sizeof text);
    for (bytes = 1; bytes <= sizeof text; bytes++) {
        const uint64_t sum = gpulossi_sum_of(text, bytes);
        for (bit = 0; bit < 8 * bytes; bit++) {
            text[bit / 8] = (unsigned char)(text[bit / 8] ^ 1 << bit % 8);
            assert_true(gpulossi_sum_of(text, bytes) != sum);
            text[bit / 8] = 'x';
        }
        assert_true(gpulossi_sum_of(text, bytes) == sum);
    }
}

static void expect_damaged(gpuloss_status status, const gpulossi_image *image) {
    char wanted[160];
    snprintf(wanted, sizeof wanted,
             "function: kernel: the embedded PTX of %s is damaged (got bytes of another checksum)", image->entry);
    assert_int_equal(status, GPULOSS_ERROR_COMPILE);
    if (strncmp(gpuloss_last_error(), wanted, strlen(wanted)) != 0)
        fail_msg("got \"%s\" instead of \"%s\"", gpuloss_last_error(), wanted);
}

static void another_sum(void **state) {
    const gpuloss_context context = bare_context();
    gpulossi_image image = *gpulossi_image_of(GPULOSSI_MODULE_kl_div_probabilities_f32);
    char *text;
    (void)state;
    assert_int_equal(gpulossi_text_of(&context, "function", &image, no_words, &text), GPULOSS_OK);
    free(text);
    image.sum ^= (uint64_t)1 << 63;
    expect_damaged(gpulossi_text_of(&context, "function", &image, no_words, &text), &image);
}

static char *sound_text_of(const gpulossi_image *image) {
    char *text = (char *)malloc(gpulossi_room_bytes(image));
    assert_true(gpulossi_unpack_text(image, no_words, text));
    return text;
}

/* The words of a module are constants, so that their pages must be opened first. */
static void flip(const gpulossi_image *image, size_t bit) {
    unsigned char *byte = (unsigned char *)(uintptr_t)image->words + bit / 8;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    assert_int_equal(mprotect((void *)((uintptr_t)byte / page * page), page, PROT_READ | PROT_WRITE), 0);
    *byte = (unsigned char)(*byte ^ 1u << bit % 8);
}

/* A module whose text is unpacked after that of `base`, or is its own. */
static int module_after(int base, uint64_t *seed) {
    const int begin = (int)(next_random(seed) % GPULOSSI_MODULE_COUNT);
    int i;
    for (i = 0; i < GPULOSSI_MODULE_COUNT; i++) {
        const int module = (begin + i) % GPULOSSI_MODULE_COUNT;
        if (gpulossi_image_of(module)->after == base)
            return module;
    }
    return base;
}

/* A flipped bit anywhere in the block gives the text as it is, or an error; the last texts depend on most bits. */
static void flipped_bits(void **state) {
    const gpuloss_context context = bare_context();
    uint64_t seed = 5;
    int round, refused = 0;
    (void)state;
    for (round = 0; round < 200; round++) {
        const int damaged = (int)(next_random(&seed) % GPULOSSI_MODULE_COUNT);
        const gpulossi_image *image = gpulossi_image_of(round % 2 == 0 ? damaged : module_after(damaged, &seed));
        const size_t bit = next_random(&seed) % (8 * gpulossi_image_of(damaged)->packed_bytes);
        char *sound = sound_text_of(image), *text = NULL;
        gpuloss_status status;
        flip(gpulossi_image_of(damaged), bit);
        status = gpulossi_text_of(&context, "function", image, no_words, &text);
        flip(gpulossi_image_of(damaged), bit);
        if (status == GPULOSS_OK) {
            assert_string_equal(text, sound);
            free(text);
        } else {
            expect_damaged(status, image);
            refused++;
        }
        free(sound);
    }
    assert_true(refused > 150);
}

/* ---- names ---- */

/* This is exactly that text, and not with anything more or less. */
static void expect_expanded(const char *shortened, size_t shortened_bytes, const char *text) {
    const unsigned char *bytes = (const unsigned char *)shortened;
    const size_t text_bytes = strlen(text) + 1;
    size_t n;
    assert_true(expands(bytes, shortened_bytes, text_bytes, text));
    for (n = 0; n < shortened_bytes; n++)
        assert_false(expands(bytes, n, text_bytes, NULL));
    for (n = 0; n < text_bytes + 20; n++)
        assert_int_equal(expands(bytes, shortened_bytes, n, NULL), n == text_bytes);
}
/* The zero at the end is one byte more than the literal's. */
#define EXPECT_EXPANDED(shortened, text) expect_expanded(shortened, sizeof(shortened) - 1, text)

static void names(void **state) {
    (void)state;
    EXPECT_EXPANDED("\0", "");
    EXPECT_EXPANDED("ret;\n\0", "ret;\n");
    EXPECT_EXPANDED("\x80 \x81 \x82 \x83 \x84 \x85 \x86:\0", "%p1 %rs1 %r1 %f1 %rd1 %fd1 L1:");
    EXPECT_EXPANDED("\x82,\x82,\x8a,\x82\0", "%r1,%r2,%r3,%r4");
    /* The last one first; a name that is named again comes to the front, another one goes. */
    EXPECT_EXPANDED("\x82\x82\x82\x92\x92\x92\x92\0\0\x02\x04\x00", "%r1%r2%r3%r3%r2%r1%r1");
    EXPECT_EXPANDED("\x82\x82\x82\x92\x92\x92\0\x01\x03\x01", "%r1%r2%r3%r3%r1%r2");
    EXPECT_EXPANDED("\x82\x8a\x82\x92\x92\0\x03\x01", "%r1%r2%r3%r1%r3");
    EXPECT_EXPANDED("\x83\x82\x93\x92\0\x01\x01", "%f1%r1%f1%r1");
}

static void many_names(void **state) {
    char shortened[512], text[4096] = "";
    size_t count, n, bytes = 0;
    (void)state;
    /* Numbers of one to three digits, of which the last 128 can be named again. */
    for (count = 0; count < 200; count++) {
        shortened[bytes++] = (char)0x84;
        snprintf(text + strlen(text), 16, "%%rd%d", (int)count + 1);
    }
    for (n = 0; n < 128; n++) {
        shortened[bytes++] = (char)0x94;
        snprintf(text + strlen(text), 16, "%%rd%d", 73 + (int)n);
    }
    shortened[bytes++] = 0;
    for (n = 0; n < 128; n++)
        shortened[bytes++] = (char)0xfe;
    expect_expanded(shortened, bytes, text);
}

static void bad_names(void **state) {
    static const unsigned char no_class[] = {0x87, 0x8f, 0x97};
    unsigned char shortened[4] = {0, 0, 0, 0};
    size_t i, n;
    (void)state;
    for (i = 0; i < sizeof no_class; i++) {
        shortened[0] = no_class[i];
        for (n = 0; n < 12; n++) {
            assert_false(expands(shortened, 2, n, NULL));
            assert_false(expands(shortened, 3, n, NULL));
        }
    }
    /* A name that needs a further byte which is missing, and further bytes that no name needs. */
    assert_false(expands((const unsigned char *)"\x82\x92\0", 3, 7, NULL));
    assert_false(expands((const unsigned char *)"\x82\x92\0\1\1", 5, 7, NULL));
    /* A name that is not in the list, or no longer. */
    assert_false(expands((const unsigned char *)"\x92\0\0", 3, 4, NULL));
    assert_false(expands((const unsigned char *)"\x82\x92\0\2", 4, 7, NULL));
    assert_false(expands((const unsigned char *)"\x82\x92\x92\0\1\0", 6, 10, NULL));
}

/* The names of a text, each `byte`. */
static int many_expand(unsigned char byte, size_t count, size_t bytes) {
    unsigned char *many = (unsigned char *)malloc(count + 1);
    int fit;
    memset(many, byte, count);
    many[count] = 0;
    fit = expands(many, count + 1, bytes, NULL);
    free(many);
    return fit;
}

/* Lists and numbers have an end. */
static void most_names(void **state) {
    char name[GPULOSSI_NAME_BYTES] = {'%', 'r', 's', '9', '9', '9', '9', 7};
    (void)state;
    assert_false(gpulossi_next_name(name));
    assert_true(many_expand(0x80, 256, 9 * 3 + 90 * 4 + 157 * 5 + 1));
    assert_false(many_expand(0x80, 257, 9 * 3 + 90 * 4 + 158 * 5 + 1));
    assert_true(many_expand(0x89, 9999, 9 * 4 + 90 * 5 + 900 * 6 + 9000 * 7 + 1));
    assert_false(many_expand(0x89, 10000, 9 * 4 + 90 * 5 + 900 * 6 + 9000 * 7 + 8 + 1));
}

static void phrases(void **state) {
    static const char *const all[] = GPULOSSI_PHRASES;
    size_t i;
    (void)state;
    assert_int_equal(sizeof all / sizeof all[0], GPULOSSI_PHRASE_COUNT);
    for (i = 0; i < GPULOSSI_PHRASE_COUNT; i++) {
        const char shortened[] = {'a', (char)(GPULOSSI_PHRASE + i), 'b', 0};
        char text[2 * GPULOSSI_PHRASE_BYTES];
        assert_in_range(strlen(all[i]), 2, GPULOSSI_PHRASE_BYTES - 1);
        snprintf(text, sizeof text, "a%sb", all[i]);
        expect_expanded(shortened, sizeof shortened, text);
    }
}

static void random_names(void **state) {
    uint64_t seed = 11;
    int round;
    (void)state;
    for (round = 0; round < 50000; round++) {
        unsigned char shortened[40];
        size_t i, count = next_random(&seed) % sizeof shortened;
        for (i = 0; i < sizeof shortened; i++)
            shortened[i] = (unsigned char)(next_random(&seed) % 3 == 0   ? next_random(&seed)
                                           : next_random(&seed) % 8 == 0 ? 0
                                                                         : 0x80 + next_random(&seed) % 0x30);
        (void)expands(shortened, count, next_random(&seed) % 100, NULL);
    }
}

int unpack_tests(void) {
    const struct CMUnitTest tests[] = {TEST(embedded_images),
                                       TEST(literals),
                                       TEST(matches),
                                       TEST(repeats),
                                       TEST(texts_after_others),
                                       TEST(bad_matches),
                                       TEST(bad_ends),
                                       TEST(damaged_streams),
                                       TEST(random_streams),
                                       TEST(random_bytes),
                                       TEST(names),
                                       TEST(many_names),
                                       TEST(bad_names),
                                       TEST(most_names),
                                       TEST(phrases),
                                       TEST(random_names),
                                       TEST(another_sum),
                                       TEST(flipped_bits),
                                       TEST(sums_distinguish_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
