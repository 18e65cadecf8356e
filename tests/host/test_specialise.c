/* The loader's reader of marks: exact on what gen/mark.c writes, and never out of bounds on anything else. Every text is
 * a heap block of exactly its size, so that a sanitizer sees the first byte outside. */
#define GPULOSS_STATIC
#include "check.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORDS = GPULOSSI_FEATURE_WORDS };

static const uint32_t no_words[WORDS] = {0, 0, 0, 0};

/* Specialises a copy of some lines, and copies the result to `out`. */
static int specialise_lines(gpulossi_marks *marks, const char *lines, size_t *bytes, const uint32_t words[WORDS],
                            char *out) {
    char *exact = (char *)malloc(*bytes > 0 ? *bytes : 1);
    int is_sound;
    assert_non_null(exact);
    memcpy(exact, lines, *bytes);
    is_sound = gpulossi_specialise(marks, exact, bytes, words);
    memcpy(out, exact, *bytes);
    free(exact);
    return is_sound;
}

/* Specialises a text that ends with a zero, as a whole and line by line. */
static int specialise(char *text, size_t bytes, const uint32_t words[WORDS]) {
    const char *end = (const char *)memchr(text, 0, bytes);
    char *by_line = (char *)malloc(bytes + 1);
    size_t length, at, used = 0;
    gpulossi_marks marks;
    int is_sound, are_sound = 1;
    assert_non_null(by_line);
    if (end == NULL) {
        free(by_line);
        return 0;
    }
    length = (size_t)(end - text);
    gpulossi_marks_begin(&marks);
    for (at = 0; are_sound && at < length;) {
        size_t line = strcspn(text + at, "\n") + 1, left;
        line = line < length - at ? line : length - at;
        left = line;
        are_sound = specialise_lines(&marks, text + at, &left, words, by_line + used);
        used += left;
        at += line;
    }
    gpulossi_marks_begin(&marks);
    is_sound = specialise_lines(&marks, text, &length, words, text);
    assert_int_equal(is_sound, are_sound);
    if (is_sound) {
        text[length] = 0;
        assert_int_equal(used, length);
        assert_memory_equal(by_line, text, length);
    }
    free(by_line);
    return is_sound;
}

/* `expected` has the lines of the result, with ~ for a line that is empty. */
static void expect_text(const char *text, const uint32_t words[WORDS], const char *expected) {
    const size_t bytes = strlen(text) + 1;
    char *got = (char *)malloc(bytes), *whole = (char *)malloc(strlen(expected) + 1);
    size_t used = 0;
    assert_non_null(got);
    assert_non_null(whole);
    memcpy(got, text, bytes);
    assert_true(specialise(got, bytes, words));
    for (; *expected != 0; expected++)
        if (*expected != '~')
            whole[used++] = *expected;
    whole[used] = 0;
    assert_string_equal(got, whole);
    free(got);
    free(whole);
}

static void expect_malformed(const char *text) {
    char *copy = (char *)malloc(strlen(text) + 1);
    assert_non_null(copy);
    strcpy(copy, text);
    assert_false(specialise(copy, strlen(text) + 1, no_words));
    free(copy);
}

static void texts_without_marks(void **state) {
    static const char *const texts[] = {"",
                                        "\n",
                                        "\n\n",
                                        "ret;",
                                        ".version 6.0\n{\nmov.u32 %r1, 0x00000000;\nret;\n}\n",
                                        "//griddepcontrol.wait;\n",
                                        "/\n//\n/*\n//?\n//!\n/*1\n/*=\n",
                                        "/* a remark */ ret;\n/*?0+0x1*/ ret;\n",
                                        " //?1 0+00000001\n //!7\n /*9*/ret;\n"};
    const uint32_t words[WORDS] = {1, 2, 3, ~0u};
    size_t i;
    (void)state;
    for (i = 0; i < sizeof texts / sizeof texts[0]; i++)
        expect_text(texts[i], words, texts[i]);
}

/* A line that is needed under one condition. */
static void expect_condition(const char *clauses, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, int holds) {
    const uint32_t words[WORDS] = {w0, w1, w2, w3};
    char text[300], expected[300];
    snprintf(text, sizeof text, "//?1%s\nalways;\n//!1\nwhere;\n//!0\nret;\n", clauses);
    snprintf(expected, sizeof expected, "//?1%s\nalways;\n//!1\n%s\n%s\nret;\n", clauses, holds ? "where;" : "~",
             holds ? "//!0" : "~");
    expect_text(text, words, expected);
    snprintf(text, sizeof text, "//?1%s\n/*1*/where;\nret;\n", clauses);
    snprintf(expected, sizeof expected, "//?1%s\n%s\nret;\n", clauses, holds ? "/*1*/where;" : "~");
    expect_text(text, words, expected);
}

static void clauses(void **state) {
    (void)state;
    expect_condition(" 0+00000001", 1, 0, 0, 0, 1);
    expect_condition(" 0+00000001", 0xfffffffe, ~0u, ~0u, ~0u, 0);
    expect_condition(" 0-00000001", 1, 0, 0, 0, 0);
    expect_condition(" 0-00000001", 0xfffffffe, ~0u, ~0u, ~0u, 1);
    expect_condition(" 1+80000000", 0, 0x80000000, 0, 0, 1);
    expect_condition(" 2+0000ab00", 0, 0, 0x200, 0, 1);
    expect_condition(" 2+0000ab00", ~0u, ~0u, 0xffff54ff, ~0u, 0);
    expect_condition(" 3-c0de0000", 0, 0, 0, 0x3f21ffff, 1);
    expect_condition(" 3-c0de0000", 0, 0, 0, 0x40000, 0);
    expect_condition(" 0+00000000", ~0u, ~0u, ~0u, ~0u, 0);
    expect_condition(" 0-00000000", ~0u, ~0u, ~0u, ~0u, 1);
}

static void conjunctions(void **state) {
    (void)state;
    expect_condition(" 0+00000003 0+0000000c", 9, 0, 0, 0, 1);
    expect_condition(" 0+00000003 0+0000000c", 3, 0, 0, 0, 0);
    expect_condition(" 0+00000003 0+0000000c", 8, 0, 0, 0, 0);
    expect_condition(" 0+00000001 0-00000006", 1, 0, 0, 0, 1);
    expect_condition(" 0+00000001 0-00000006", 5, 0, 0, 0, 0);
    expect_condition(" 0-00000006 0+00000001", 0, 0, 0, 0, 0);
    expect_condition(" 0+00000001 1+00000001 2+00000001 3-00000001", 1, 1, 1, 0, 1);
    expect_condition(" 0+00000001 1+00000001 2+00000001 3-00000001", 1, 1, 0, 0, 0);
    expect_condition(" 0+00000001 1+00000001 2+00000001 3-00000001", 1, 1, 1, 1, 0);
}

static const char marked[] = ".version 6.0\n"
                             ".address_size 64\n"
                             "//?1 0+00000001\n"
                             "//?2 0+00000001 1-00000002\n"
                             "//?3 2+00000030\n"
                             ".visible .entry k()\n"
                             "{\n"
                             "/*=0*/mov.u32 %r1, 0x00000000;\n"
                             "/*1*/@%p1 bra L1;\n"
                             "/* sum */ add.u32 %r9, %r9, 1;\n"
                             "//!1\n"
                             "/*=1*/mov.u32 %r2, 0x00000000;\n"
                             "/*2*/@%p2 bra L2;\n"
                             "/*3*/ shl.b32 %f1, %r1, 16;\n"
                             "//griddepcontrol.wait;\n"
                             "//!2\n"
                             "L1:\n"
                             "/*3*/bra.uni L3;\n"
                             "//!0\n"
                             "L3:\n"
                             "/*=3*/mov.b32 %r3, 0x00000000;\n"
                             "ret;\n"
                             "}\n";

static void whole_texts(void **state) {
    const uint32_t none[WORDS] = {0, 0, 0, 0xdeadbeef}, all[WORDS] = {0x80000001, 0x10, 0x20, 0},
                   some[WORDS] = {1, 2, 0, 0xffffffff};
    (void)state;
    expect_text(marked, none,
                ".version 6.0\n.address_size 64\n//?1 0+00000001\n//?2 0+00000001 1-00000002\n//?3 2+00000030\n"
                ".visible .entry k()\n{\n/*=0*/mov.u32 %r1, 0x00000000;\n~\n/* sum */ add.u32 %r9, %r9, 1;\n//!1\n"
                "~\n~\n~\n~\n~\n~\n~\n~\nL3:\n/*=3*/mov.b32 %r3, 0xdeadbeef;\nret;\n}\n");
    expect_text(marked, all,
                ".version 6.0\n.address_size 64\n//?1 0+00000001\n//?2 0+00000001 1-00000002\n//?3 2+00000030\n"
                ".visible .entry k()\n{\n/*=0*/mov.u32 %r1, 0x80000001;\n/*1*/@%p1 bra L1;\n"
                "/* sum */ add.u32 %r9, %r9, 1;\n//!1\n/*=1*/mov.u32 %r2, 0x00000010;\n/*2*/@%p2 bra L2;\n"
                "/*3*/ shl.b32 %f1, %r1, 16;\n//griddepcontrol.wait;\n//!2\nL1:\n/*3*/bra.uni L3;\n//!0\nL3:\n"
                "/*=3*/mov.b32 %r3, 0x00000000;\nret;\n}\n");
    expect_text(marked, some,
                ".version 6.0\n.address_size 64\n//?1 0+00000001\n//?2 0+00000001 1-00000002\n//?3 2+00000030\n"
                ".visible .entry k()\n{\n/*=0*/mov.u32 %r1, 0x00000001;\n/*1*/@%p1 bra L1;\n"
                "/* sum */ add.u32 %r9, %r9, 1;\n//!1\n/*=1*/mov.u32 %r2, 0x00000002;\n~\n~\n"
                "//griddepcontrol.wait;\n//!2\n~\n~\n~\nL3:\n/*=3*/mov.b32 %r3, 0xffffffff;\nret;\n}\n");
}

static void feature_words(void **state) {
    const uint32_t words[WORDS] = {0x01234567, 0x89abcdef, 0xf, 0xf0000000};
    (void)state;
    expect_text("/*=0*/mov.u32 %r1, 0x00000000;", words, "/*=0*/mov.u32 %r1, 0x01234567;");
    expect_text("/*=1*/mov.u32 %r1, 0x00000000;\n", words, "/*=1*/mov.u32 %r1, 0x89abcdef;\n");
    expect_text("/*=2*/0x00000000\n", words, "/*=2*/0x0000000f\n");
    expect_text("/*=3*/0x0000000x00000000, 0x00000000\n", words, "/*=3*/0x0000000xf0000000, 0x00000000\n");
    /* Others are left alone. */
    expect_text("/*=2*/0x00000000\n0x00000000\n", words, "/*=2*/0x0000000f\n0x00000000\n");
    expect_text("//?1 0+80000000\n//!1\n/*=0*/0x00000000\n//!0\n/*=0*/0x00000000", words,
                "//?1 0+80000000\n//!1\n~\n~\n/*=0*/0x01234567");
    /* A line of a block that is not needed is emptied unread. */
    expect_text("//?1 0+80000000\n//!1\n/*=9\n/*77*/\n/*12345*/", words, "//?1 0+80000000\n//!1\n~\n~\n~");
}

static void malformed_marks(void **state) {
    static const char *const texts[] = {
        "//?00001 0+00000001\n",              /* too many digits */
        "//?1\n",                             /* no clause */
        "//?2 0+00000001\n",                  /* out of order */
        "//?0 0+00000001\n",                  /* the number of always */
        "//?x 0+00000001\n",                  /* no number */
        "//?1 0+00000001\n//?1 0+00000001\n", /* twice */
        "//?1 0+00000001\n//?3 0+00000001\n", /* one is missing */
        "//?1 4+00000001\n",                  /* no fifth word */
        "//?1 /+00000001\n",                  /* a digit too low */
        "//?1 0*00000001\n",                  /* no sign */
        "//?1 0+0000001\n",                   /* seven digits */
        "//?1 0+000000012\n",                 /* nine digits */
        "//?1 0+0000000A\n",                  /* upper case */
        "//?1 0+0000000g\n",                  /* no digit */
        "//?1 0+00000001 \n",                 /* half a clause */
        "//?1  0+00000001\n",                 /* two blanks */
        "//?1 0+00000001\t0+00000001\n",      /* no blank */
        "//?1 0+00000001\r\n",                /* another end of the line */
        "//!1\n",                             /* no condition */
        "//?1 0+00000001\n//!2\n",            /* no second one */
        "//?1 0+00000001\n//!1 \n",           /* something after it */
        "//?1 0+00000001\n//!-1\n",           /* no number */
        "//?1 0+00000001\n//!12345\n",        /* too many digits */
        "/*1*/ret;\n",                        /* no condition */
        "//?1 0+00000001\n/*2*/ret;\n",       /* no second one */
        "//?1 0+00000001\n/*1/ret;\n",        /* no end */
        "//?1 0+00000001\n/*1 */ret;\n",      /* a blank */
        "//?1 0+00000001\n/*1*",              /* half an end */
        "//?1 0+00000001\n/*10000*/ret;\n",   /* too many digits */
        "/*=4*/mov.u32 %r1, 0x00000000;\n",   /* no fifth word */
        "/*=*/mov.u32 %r1, 0x00000000;\n",    /* no word */
        "/*=0/mov.u32 %r1, 0x00000000;\n",    /* no end */
        "/*=0*/mov.u32 %r1, 0x0000000;\n",    /* nothing to write to */
        "/*=0*/mov.u32 %r1,\n 0x00000000;\n", /* not on its line */
        "/*=0*/mov.u32 %r1, 0x5BEC0000;\n",   /* another constant */
    };
    size_t i;
    (void)state;
    for (i = 0; i < sizeof texts / sizeof texts[0]; i++)
        expect_malformed(texts[i]);
}

static void most_conditions(void **state) {
    const size_t room = 40 * (GPULOSSI_MOST_CONDITIONS + 2);
    char *text = (char *)malloc(room), *copy = (char *)malloc(room);
    size_t used = 0, table = 0, left;
    int n;
    (void)state;
    assert_non_null(text);
    assert_non_null(copy);
    for (n = 1; n <= GPULOSSI_MOST_CONDITIONS + 1; n++) {
        table = n <= GPULOSSI_MOST_CONDITIONS ? used : table;
        used += (size_t)snprintf(text + used, room - used, "//?%d 0%c00000001\n", n, n % 2 ? '+' : '-');
    }
    strcpy(copy, text);
    assert_false(specialise(copy, used + 1, no_words));
    /* The last one that there may be. */
    used = table + (size_t)snprintf(text + table, room - table, "//?%d 0+00000001\n/*%d*/a\n/*%d*/b\n",
                                    GPULOSSI_MOST_CONDITIONS, GPULOSSI_MOST_CONDITIONS, GPULOSSI_MOST_CONDITIONS - 1);
    strcpy(copy, text);
    assert_true(specialise(copy, used + 1, no_words));
    left = (size_t)(strstr(text, "/*1024*/a") - text);
    assert_memory_equal(copy, text, left);
    assert_string_equal(copy + left, "\n\n");
    free(text);
    free(copy);
}

/* ---- a reader written another way ---- */

static regex_t is_table, is_block, is_line, is_word;

static int compile_patterns(void **state) {
    (void)state;
    return regcomp(&is_table, "^//[?]([0-9]{1,4})(( [0-3][-+][0-9a-f]{8})+)$", REG_EXTENDED) ||
           regcomp(&is_block, "^//!([0-9]{1,4})$", REG_EXTENDED) ||
           regcomp(&is_line, "^/[*]([0-9]{1,4})[*]/", REG_EXTENDED) ||
           regcomp(&is_word, "^/[*]=0{0,3}([0-3])[*]/.*0x00000000", REG_EXTENDED);
}

static int free_patterns(void **state) {
    (void)state;
    regfree(&is_table);
    regfree(&is_block);
    regfree(&is_line);
    regfree(&is_word);
    return 0;
}

static int starts(const char *line, const char *with) {
    return strncmp(line, with, strlen(with)) == 0 && strlen(line) > 3;
}

static int holds(const char *clauses, const uint32_t words[WORDS]) {
    unsigned word, mask;
    char sign;
    for (; sscanf(clauses, " %1u%c%8x", &word, &sign, &mask) == 3; clauses += 11)
        if ((sign == '+') != ((words[word] & mask) > 0))
            return 0;
    return 1;
}

typedef struct model {
    int count, is_needed;
    int holds[GPULOSSI_MOST_CONDITIONS + 1];
} model;

/* A line, ended by a zero; returns whether it is well formed, and rewrites or empties it. */
static int model_line(model *m, char *line, const uint32_t words[WORDS]) {
    regmatch_t found[3];
    int is_needed = m->is_needed;
    if (starts(line, "//?")) {
        if (regexec(&is_table, line, 3, found, 0) != 0 || atoi(line + 3) != m->count + 1 ||
            m->count == GPULOSSI_MOST_CONDITIONS)
            return 0;
        m->holds[++m->count] = holds(line + found[2].rm_so, words);
    } else if (starts(line, "//!")) {
        if (regexec(&is_block, line, 0, NULL, 0) != 0 || atoi(line + 3) > m->count)
            return 0;
        m->is_needed = m->holds[atoi(line + 3)];
    } else if (is_needed && starts(line, "/*=")) {
        char digits[9];
        if (regexec(&is_word, line, 2, found, 0) != 0)
            return 0;
        snprintf(digits, sizeof digits, "%08x", (unsigned)words[line[found[1].rm_so] - '0']);
        memcpy(strstr(line, "0x00000000") + 2, digits, 8);
    } else if (is_needed && starts(line, "/*") && line[2] >= '0' && line[2] <= '9') {
        if (regexec(&is_line, line, 0, NULL, 0) != 0 || atoi(line + 2) > m->count)
            return 0;
        is_needed = m->holds[atoi(line + 2)];
    }
    if (!is_needed)
        line[0] = 0;
    return 1;
}

static int model_specialise(char *text, const uint32_t words[WORDS]) {
    model m;
    char *line = text, was = '\n';
    memset(&m, 0, sizeof m);
    m.is_needed = m.holds[0] = 1;
    while (was != 0 && *line != 0) {
        char *end = line + strcspn(line, "\n");
        was = *end;
        *end = 0;
        if (!model_line(&m, line, words))
            return 0;
        memmove(text, line, strlen(line));
        text += strlen(line);
        if (was != 0)
            *text++ = was;
        line = end + (was != 0);
    }
    *text = 0;
    return 1;
}

static size_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(*seed >> 33);
}

static void random_words(uint64_t *seed, uint32_t words[WORDS]) {
    int i;
    for (i = 0; i < WORDS; i++)
        words[i] = (uint32_t)(next_random(seed) & next_random(seed) % 64);
}

static size_t newlines(const char *text) {
    size_t count = 0;
    for (; *text != 0; text++)
        count += *text == '\n';
    return count;
}

/* Any bytes: with a zero the result is the model's, and has as many lines. Returns whether it is accepted. */
static int check_bytes(const char *bytes, size_t count, const uint32_t words[WORDS]) {
    char got[2048], expected[2048];
    const char *end = (const char *)memchr(bytes, 0, count);
    int is_sound;
    assert_true(count <= sizeof got);
    memcpy(got, bytes, count);
    memcpy(expected, bytes, count);
    is_sound = specialise(got, count, words);
    if (end == NULL) {
        assert_false(is_sound);
        assert_memory_equal(got, bytes, count);
        return 0;
    }
    assert_int_equal(is_sound, model_specialise(expected, words));
    if (is_sound) {
        assert_string_equal(got, expected);
        assert_int_equal(newlines(got), newlines(bytes));
    }
    return is_sound;
}

static void truncated_texts(void **state) {
    const uint32_t words[2][WORDS] = {{0, 0, 0, 0}, {1, 0, 0x20, 0x12345678}};
    char text[sizeof marked];
    size_t n, i;
    (void)state;
    for (i = 0; i < 2; i++)
        for (n = 0; n <= sizeof marked; n++) {
            (void)check_bytes(marked, n, words[i]);
            memcpy(text, marked, sizeof marked);
            text[n < sizeof marked ? n : sizeof marked - 1] = 0;
            (void)check_bytes(text, sizeof marked, words[i]);
            if (n < sizeof marked)
                (void)check_bytes(text, n + 1, words[i]);
        }
}

static void changed_bytes(void **state) {
    static const char values[] = "\n /*?!=+-0123459:;afgAx@\x80\xff\x7f\x01\r\t";
    const uint32_t words[2][WORDS] = {{0, 0, 0, 0}, {1, 0, 0x20, 0x12345678}};
    char text[sizeof marked];
    size_t at, v, i;
    (void)state;
    for (i = 0; i < 2; i++)
        for (at = 0; at < sizeof marked; at++)
            for (v = 0; v < sizeof values; v++) {
                memcpy(text, marked, sizeof marked);
                text[at] = values[v];
                (void)check_bytes(text, sizeof marked, words[i]);
            }
}

static void shuffled_lines(void **state) {
    uint64_t seed = 20250301;
    long round, accepted = 0;
    (void)state;
    for (round = 0; round < 20000; round++) {
        const char *lines[64];
        char text[2048];
        uint32_t words[WORDS];
        size_t count = 0, used = 0, swaps, i;
        const char *at;
        for (at = marked; *at != 0; at += strcspn(at, "\n") + 1)
            lines[count++] = at;
        for (swaps = next_random(&seed) % 6; swaps > 0; swaps--)
            lines[next_random(&seed) % count] = lines[next_random(&seed) % count];
        for (i = 0; i < count; i++) {
            size_t length = strcspn(lines[i], "\n") + 1;
            memcpy(text + used, lines[i], length);
            used += length;
        }
        text[used] = 0;
        random_words(&seed, words);
        accepted += check_bytes(text, used + 1, words);
    }
    assert_true(accepted > 5000);
    assert_true(accepted < 19000);
}

static void random_bytes(void **state) {
    static const char often[] = "//?!/?!**==  ++--00011223344ax\n\n\n0x00000000";
    uint64_t seed = 20250302;
    long round;
    (void)state;
    for (round = 0; round < 100000; round++) {
        char text[64];
        uint32_t words[WORDS];
        size_t i, count = next_random(&seed) % (sizeof text + 1);
        for (i = 0; i < count; i++)
            text[i] =
                next_random(&seed) % 8 == 0 ? (char)next_random(&seed) : often[next_random(&seed) % (sizeof often - 1)];
        if (count > 0 && next_random(&seed) % 4 != 0)
            text[count - 1] = 0;
        random_words(&seed, words);
        (void)check_bytes(text, count, words);
    }
}

int specialise_tests(void) {
    const struct CMUnitTest tests[] = {TEST(texts_without_marks), TEST(clauses),         TEST(conjunctions),
                                       TEST(whole_texts),         TEST(feature_words),   TEST(malformed_marks),
                                       TEST(most_conditions),     TEST(truncated_texts), TEST(changed_bytes),
                                       TEST(shuffled_lines),      TEST(random_bytes)};
    return cmocka_run_group_tests(tests, compile_patterns, free_patterns);
}
