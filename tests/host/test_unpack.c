/* The decoder of the embedded texts: exact on what gen/ wrote, and never out of bounds on anything else. Every buffer
 * is a heap block of exactly the size that the decoder is told, so that a sanitizer sees the first byte outside. */
#define GPULOSS_STATIC
#include "check.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct bytes {
    unsigned char *at;
    size_t count;
} bytes;

static bytes copy_of(const void *from, size_t count) {
    bytes b;
    b.at = (unsigned char *)malloc(count > 0 ? count : 1);
    b.count = count;
    assert_non_null(b.at);
    memcpy(b.at, from, count);
    return b;
}

static int unpack(const unsigned char *packed, size_t packed_bytes, size_t expected_bytes, unsigned char *result) {
    bytes in = copy_of(packed, packed_bytes);
    unsigned char *out = (unsigned char *)malloc(expected_bytes > 0 ? expected_bytes : 1);
    int fits;
    assert_non_null(out);
    memset(out, 0xee, expected_bytes);
    fits = gpulossi_unpack(out, expected_bytes, in.at, packed_bytes);
    if (result != NULL)
        memcpy(result, out, expected_bytes);
    free(in.at);
    free(out);
    return fits;
}

/* What each image unpacks to is the file in ptx/, with a zero after it. */
static void embedded_images(void **state) {
    int module;
    (void)state;
    for (module = 0; module < GPULOSSI_MODULE_COUNT; module++) {
        const gpulossi_image *image = gpulossi_image_of(module);
        unsigned char *text = (unsigned char *)malloc(image->bytes), *file = (unsigned char *)malloc(image->bytes);
        char path[128];
        FILE *f;
        snprintf(path, sizeof path, "ptx/%s.ptx", image->entry + strlen("gpuloss_"));
        f = fopen(path, "rb");
        if (f == NULL)
            fail_msg("can't open %s (the tests run in the top folder)", path);
        assert_int_equal(fread(file, 1, image->bytes, f), image->bytes - 1);
        fclose(f);
        file[image->bytes - 1] = 0;
        assert_true(unpack((const unsigned char *)image->words, image->packed_bytes, image->bytes, text));
        assert_memory_equal(text, file, image->bytes);
        /* One byte more or less of either side is noticed. */
        assert_false(unpack((const unsigned char *)image->words, image->packed_bytes, image->bytes - 1, NULL));
        assert_false(unpack((const unsigned char *)image->words, image->packed_bytes, image->bytes + 1, NULL));
        assert_false(unpack((const unsigned char *)image->words, image->packed_bytes - 1, image->bytes, NULL));
        free(text);
        free(file);
    }
}

static void expect_text(const unsigned char *packed, size_t packed_bytes, const char *text) {
    unsigned char got[1200];
    size_t n;
    assert_true(strlen(text) < sizeof got);
    assert_true(unpack(packed, packed_bytes, strlen(text), got));
    assert_memory_equal(got, text, strlen(text));
    for (n = 0; n < packed_bytes; n++)
        assert_false(unpack(packed, n, strlen(text), NULL));
    if (strlen(text) > 0)
        assert_false(unpack(packed, packed_bytes, strlen(text) - 1, NULL));
    assert_false(unpack(packed, packed_bytes, strlen(text) + 1, NULL));
}

static void empty_block(void **state) {
    (void)state;
    expect_text((const unsigned char *)"\x00", 1, "");
    assert_false(unpack((const unsigned char *)"", 0, 0, NULL));
}

static void literals(void **state) {
    (void)state;
    expect_text((const unsigned char *)"\x50hello", 6, "hello");
    expect_text((const unsigned char *)"\xf0\x00"
                                       "fifteen letters",
                17, "fifteen letters");
    expect_text((const unsigned char *)"\xf0\x01"
                                       "sixteen letters!",
                18, "sixteen letters!");
}

static void long_literals(void **state) {
    static const unsigned extra[] = {254, 255, 256, 509, 510, 511, 800};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof extra / sizeof extra[0]; i++) {
        unsigned char packed[1200];
        char text[1200];
        size_t n = 0, left = extra[i];
        packed[n++] = 0xf0;
        for (; left >= 255; left -= 255)
            packed[n++] = 255;
        packed[n++] = (unsigned char)left;
        memset(packed + n, 'y', 15 + extra[i]);
        memset(text, 'y', 15 + extra[i]);
        text[15 + extra[i]] = 0;
        expect_text(packed, n + 15 + extra[i], text);
    }
}

static void matches(void **state) {
    (void)state;
    /* Apart, overlapping by one, overlapping by a pattern, and a long one: 19 + 255 + 6 = 280 bytes. */
    expect_text((const unsigned char *)"\x40"
                                       "abcd\x04\x00"
                                       "\x10!",
                9, "abcdabcd!");
    expect_text((const unsigned char *)"\x13"
                                       "x\x01\x00"
                                       "\x10.",
                6, "xxxxxxxx.");
    expect_text((const unsigned char *)"\x34"
                                       "abc\x03\x00"
                                       "\x10.",
                8, "abcabcabcab.");
    {
        char text[282];
        memset(text, 'z', 281);
        text[281] = 0;
        text[280] = 'q';
        expect_text((const unsigned char *)"\x1f"
                                           "z\x01\x00\xff\x05"
                                           "\x10q",
                    8, text);
    }
}

static void bad_matches(void **state) {
    (void)state;
    assert_false(unpack((const unsigned char *)"\x40"
                                               "abcd\x00\x00"
                                               "\x10!",
                        9, 9, NULL)); /* offset 0 */
    assert_false(unpack((const unsigned char *)"\x40"
                                               "abcd\x05\x00"
                                               "\x10!",
                        9, 9, NULL)); /* before the text */
    assert_false(unpack((const unsigned char *)"\x00\x01\x00"
                                               "\x10!",
                        5, 5, NULL)); /* with nothing before */
    assert_false(unpack((const unsigned char *)"\x40"
                                               "abcd\x04\x00",
                        7, 8, NULL)); /* ends in a match */
    assert_false(unpack((const unsigned char *)"\x4f"
                                               "abcd\x04\x00\xff\xff\xff\xff",
                        11, 9, NULL));
    assert_false(unpack((const unsigned char *)"\xf0\xff\xff\xff\xff", 5, 9, NULL));
}

/* A block with every kind of sequence in it. */
static const unsigned char block[] = "\x40"
                                     "abcd\x04\x00"
                                     "\x13"
                                     "x\x01\x00"
                                     "\xf2\x03"
                                     "eighteen letters!!\x12\x00"
                                     "\x2f"
                                     "zz\x02\x00\x07"
                                     "\x50"
                                     "tail.";
enum { BLOCK_BYTES = sizeof block - 1, TEXT_BYTES = 8 + 8 + 18 + 6 + 2 + 26 + 5 };

static void damaged_blocks(void **state) {
    unsigned char damaged[BLOCK_BYTES];
    size_t at, n;
    unsigned value;
    (void)state;
    assert_true(unpack(block, BLOCK_BYTES, TEXT_BYTES, NULL));
    for (n = 0; n < TEXT_BYTES + 40; n++)
        assert_int_equal(unpack(block, BLOCK_BYTES, n, NULL), n == TEXT_BYTES);
    for (n = 0; n < BLOCK_BYTES; n++)
        assert_false(unpack(block, n, TEXT_BYTES, NULL));
    /* Every byte in every value: what is accepted has the size that was said, which unpack's buffers check. */
    for (at = 0; at < BLOCK_BYTES; at++)
        for (value = 0; value < 256; value++) {
            memcpy(damaged, block, BLOCK_BYTES);
            damaged[at] = (unsigned char)value;
            (void)unpack(damaged, BLOCK_BYTES, TEXT_BYTES, NULL);
        }
}

/* A decoder written another way, which only finds the size: success is right exactly when it agrees. */
static int size_of(const unsigned char *p, size_t count, size_t *size) {
    size_t i = 0, total = 0;
    for (;;) {
        size_t literal, match, distance, code;
        if (i >= count)
            return 0;
        code = p[i++];
        literal = code / 16;
        match = code % 16 + 4;
        if (literal == 15)
            for (;;) {
                if (i >= count)
                    return 0;
                literal += p[i];
                if (p[i++] != 255)
                    break;
            }
        if (literal > count - i)
            return 0;
        i += literal;
        total += literal;
        if (i == count) {
            *size = total;
            return 1;
        }
        if (count - i < 2)
            return 0;
        distance = p[i] + 256u * p[i + 1];
        i += 2;
        if (code % 16 == 15)
            for (;;) {
                if (i >= count)
                    return 0;
                match += p[i];
                if (p[i++] != 255)
                    break;
            }
        if (distance < 1 || distance > total)
            return 0;
        total += match;
    }
}

static size_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(*seed >> 33);
}

static void random_blocks(void **state) {
    uint64_t seed = 20240229;
    long round, accepted = 0;
    (void)state;
    for (round = 0; round < 200000; round++) {
        unsigned char damaged[BLOCK_BYTES];
        size_t at, changes, count, expected, size = 0;
        int valid;
        memcpy(damaged, block, BLOCK_BYTES);
        for (changes = next_random(&seed) % 6; changes > 0; changes--) {
            at = next_random(&seed) % BLOCK_BYTES;
            damaged[at] = (unsigned char)next_random(&seed);
        }
        count = next_random(&seed) % 4 == 0 ? next_random(&seed) % (BLOCK_BYTES + 1) : BLOCK_BYTES;
        valid = size_of(damaged, count, &size);
        expected = valid && next_random(&seed) % 2 == 0 ? size : next_random(&seed) % 120;
        assert_int_equal(unpack(damaged, count, expected, NULL), valid && size == expected);
        accepted += valid && size == expected;
    }
    assert_true(accepted > 1000);
}

int unpack_tests(void) {
    const struct CMUnitTest tests[] = {TEST(embedded_images), TEST(empty_block),  TEST(literals),
                                       TEST(long_literals),   TEST(matches),      TEST(bad_matches),
                                       TEST(damaged_blocks),  TEST(random_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
