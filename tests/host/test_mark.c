/* test_mark: the marks that gen/mark.c writes, on texts written by hand, and on random ones. */
#include "../../gen/gen.h"
#include "test_mark.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define HEAD ".version 6.0\n.target sm_70\n.address_size 64\n"
#define KERNEL ".visible .entry k(\n.param .align 8 .b8 p[8]\n)\n{\n.reg .pred %p<9>;\n"

/* The text of a kernel, with a table of conditions. */
static text kernel_of(const char *table, const char *body) {
    const char *const parts[] = {HEAD, table, KERNEL, body, "}\n"};
    text ptx = {0};
    for (int i = 0; i < 5; i++)
        text_add_bytes(&ptx, parts[i], strlen(parts[i]));
    return ptx;
}

static void expect_marks_of(const char *entry, const char *body, const char *table, const char *marked) {
    text ptx = kernel_of("", body), expected = kernel_of(table, marked), got = mark(ptx.bytes, entry);
    assert_string_equal(got.bytes, expected.bytes);
    text_free(&ptx);
    text_free(&expected);
    text_free(&got);
}

static void expect_marks(const char *body, const char *table, const char *marked) {
    expect_marks_of("k", body, table, marked);
}

/* Adds a line, with the mark of a feature word. */
static void add_marked(text *marked, const char *line, int length) {
    const char *word = strstr(line, "0x5BEC000");
    if (word != NULL && word < line + length)
        text_add(marked, "/*=%c*/%.*s0x00000000;\n", word[9], (int)(word - line), line);
    else
        text_add(marked, "%.*s\n", length, line);
}

/* The clauses of a condition that no words satisfy. */
#define NEVER "never"

/* A branch by predicate %p0 of a test: the clauses where it is false, and where it is true. */
static void expect_test(const char *test, const char *if_false, const char *if_true) {
    const int is_left_out = strcmp(if_true, NEVER) == 0;
    const int is_true = *if_true != 0 && !is_left_out, is_false = *if_false != 0 ? is_true + 1 : 0;
    text body = {0}, marked = {0}, table = {0};
    for (const char *at = test; *at != 0; at += strcspn(at, "\n") + 1)
        add_marked(&marked, at, (int)strcspn(at, "\n"));
    text_add(&body, "%s@%%p0 bra L1;\nbar.sync 1;\nret;\nL1:\nret;\n", test);
    if (!is_left_out)
        text_add(&marked, is_true ? "/*1*/@%%p0 bra L1;\n" : "@%%p0 bra L1;\n");
    if (is_false)
        text_add(&marked, "//!%d\n", is_false);
    text_add(&marked, "bar.sync 1;\nret;\n");
    if (is_true || is_false)
        text_add(&marked, "//!%d\n", is_true);
    if (!is_left_out)
        text_add(&marked, is_true ? "L1:\nret;\n//!0\n" : "L1:\nret;\n");
    text_add(&table, is_true ? "//?1 %s\n" : "", if_true);
    if (is_false)
        text_add(&table, "//?%d %s\n", is_false, if_false);
    expect_marks(body.bytes, table.bytes, marked.bytes);
    text_free(&body);
    text_free(&marked);
    text_free(&table);
}

#define W0 "mov.u32 %r0, 0x5BEC0000;\n"
#define W1 "mov.u32 %r1, 0x5BEC0001;\n"
#define W2 "mov.b32 %r2, 0x5BEC0002;\n"
#define W3 "mov.u32 %r3, 0x5BEC0003;\n"

static void texts_without_features(void **state) {
    static const char *const texts[] = {"", "anything", HEAD KERNEL "call f;\nbrx.idx %r1, t;\n}\n"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        text got = mark(texts[i], "k");
        assert_string_equal(got.bytes, texts[i]);
        text_free(&got);
    }
}

static void masks(void **state) {
    (void)state;
    expect_test(W0 "and.b32 %r4, %r0, 4;\nsetp.eq.s32 %p0, %r4, 0;\n", "0+00000004", "0-00000004");
    expect_test(W1 "and.b32 %r4, %r1, 0x4;\nsetp.ne.u32 %p0, %r4, 0;\n", "1-00000004", "1+00000004");
    expect_test(W2 "and.b32 %r4, 10, %r2;\nsetp.ne.b32 %p0, 0, %r4;\n", "2-0000000a", "2+0000000a");
    expect_test(W3 "and.b32 %r4, %r3, -2147483648;\nsetp.eq.b32 %p0, %r4, -2147483648;\n", "3-80000000", "3+80000000");
    expect_test(W0 "and.b32 %r4, %r0, 6;\nsetp.eq.b32 %p0, %r4, 6;\n", "", "0+00000002 0+00000004");
    expect_test(W0 "and.b32 %r4, %r0, 6;\nsetp.ne.b32 %p0, %r4, 6;\n", "0+00000002 0+00000004", "");
    expect_test(W0 "and.b32 %r4, %r0, 6;\nsetp.eq.b32 %p0, %r4, 2;\n", "", "0+00000002 0-00000004");
    expect_test(W0 "and.b32 %r4, %r0, 6;\nsetp.eq.b32 %p0, %r4, 1;\n", "", NEVER);
    expect_test(W0 "and.b32 %r4, %r0, 7;\nand.b32 %r5, %r4, 12;\nsetp.ne.s32 %p0, %r5, 0;\n", "0-00000004",
                "0+00000004");
    expect_test(W0 "and.b32 %r4, %r0, 1;\nand.b32 %r5, %r0, 6;\nor.b32 %r6, %r4, %r5;\nsetp.ne.s32 %p0, %r6, 0;\n",
                "0-00000007", "0+00000007");
    expect_test(W0 "not.b32 %r4, %r0;\nand.b32 %r5, %r4, 6;\nsetp.eq.s32 %p0, %r5, 0;\n", "", "0+00000002 0+00000004");
    expect_test(W0 "xor.b32 %r4, %r0, 2;\nand.b32 %r5, %r4, 2;\nsetp.eq.s32 %p0, %r5, 0;\n", "0-00000002",
                "0+00000002");
}

/* Numbers that are not bits of the word alone. */
static void numbers(void **state) {
    (void)state;
    expect_test(W0 "and.b32 %r4, %r0, 1;\nshr.u32 %r5, %r0, 4;\nand.b32 %r6, %r5, 2;\nor.b32 %r7, %r4, %r6;\n"
                   "setp.eq.s32 %p0, %r7, 3;\n",
                "", "0+00000001 0+00000020");
    expect_test(W0 "and.b32 %r4, %r0, 2;\nxor.b32 %r5, %r4, 5;\nsetp.eq.s32 %p0, %r5, 7;\n", "0-00000002",
                "0+00000002");
    expect_test(W0 "and.b32 %r4, %r0, 2;\nor.b32 %r5, %r4, 1;\nsetp.eq.s32 %p0, %r5, 0;\n", "", NEVER);
    expect_test(W0 "and.b32 %r4, %r0, 2;\nadd.s32 %r5, %r4, 1;\nsetp.eq.s32 %p0, %r5, 1;\n", "0+00000002",
                "0-00000002");
    expect_test(W0 "and.b32 %r4, %r0, 3;\nshl.b32 %r5, 1, %r4;\nsetp.eq.s32 %p0, %r5, 8;\n", "",
                "0+00000001 0+00000002");
    expect_test(W0 "setp.lt.s32 %p1, %r0, 0;\nselp.b32 %r4, 1, 2, %p1;\nand.b32 %r5, %r0, %r4;\n"
                   "setp.ne.s32 %p0, %r5, 0;\n",
                "", "");
}

/* More bits than are listed. */
static void wide_masks(void **state) {
    (void)state;
    expect_test(W0 "and.b32 %r4, %r0, 32767;\nsetp.eq.s32 %p0, %r4, 0;\n", "0+00007fff", "0-00007fff");
    expect_test(W0 "setp.ne.s32 %p0, %r0, 0;\n", "0-ffffffff", "0+ffffffff");
    expect_test(W0 "and.b32 %r4, %r0, 4095;\nsetp.eq.s32 %p0, %r4, 4096;\n", "", NEVER);
    expect_test(W0 "and.b32 %r4, %r0, 4095;\nsetp.eq.s32 %p0, %r4, 5;\n", "", "0+00000001 0+00000004 0-00000ffa");
    expect_test(W0 "and.b32 %r4, %r0, 4095;\nsetp.lt.u32 %p0, %r4, 5;\n", "", "");
}

static void bits_and_fields(void **state) {
    (void)state;
    expect_test(W0 "setp.lt.s32 %p0, %r0, 0;\n", "0-80000000", "0+80000000");
    expect_test(W0 "setp.gt.s32 %p0, %r0, -1;\n", "0+80000000", "0-80000000");
    expect_test(W0 "shl.b32 %r4, %r0, 27;\nsetp.ge.s32 %p0, %r4, 0;\n", "0+00000010", "0-00000010");
    expect_test(W0 "shr.u32 %r4, %r0, 5;\nand.b32 %r5, %r4, 1;\nsetp.eq.b32 %p0, %r5, 1;\n", "0-00000020",
                "0+00000020");
    expect_test(W0 "shr.s32 %r4, %r0, 5;\nsetp.eq.s32 %p0, %r4, 0;\n", "", "");
    expect_test(W0 "bfe.u32 %r4, %r0, 4, 3;\nsetp.eq.u32 %p0, %r4, 0;\n", "0+00000070", "0-00000070");
    expect_test(W0 "bfe.s32 %r4, %r0, 4, 3;\nsetp.eq.u32 %p0, %r4, 0;\n", "", "");
    expect_test(W0
                "cvt.u16.u32 %rs1, %r0;\nshr.u16 %rs2, %rs1, 4;\nand.b16 %rs3, %rs2, 3;\nsetp.eq.s16 %p0, %rs3, 2;\n",
                "", "0+00000020 0-00000010");
    expect_test(W0 "cvt.u64.u32 %rd1, %r0;\nand.b64 %rd2, %rd1, 12;\nsetp.ne.s64 %p0, %rd2, 0;\n", "0-0000000c",
                "0+0000000c");
    expect_test(W0 "cvt.u64.u32 %rd1, %r0;\nshl.b64 %rd2, %rd1, 32;\nsetp.lt.s64 %p0, %rd2, 0;\n", "0-80000000",
                "0+80000000");
    /* A field of three: at least two, in its own order. */
    expect_test(W0 "and.b32 %r4, %r0, 3;\nsetp.ge.u32 %p0, %r4, 2;\n", "0-00000002", "0+00000002");
    expect_test(W0 "and.b32 %r4, %r0, 3;\nsetp.gt.u32 %p0, %r4, 2;\n", "", "0+00000001 0+00000002");
    expect_test(W0 "and.b32 %r4, %r0, 3;\nsetp.le.s32 %p0, %r4, 0;\n", "0+00000003", "0-00000003");
    expect_test(W0 "and.b32 %r4, %r0, 3;\nadd.s32 %r5, %r4, -1;\nsetp.lt.u32 %p0, %r5, 2;\n", "", "0+00000003");
    expect_test(W0 "and.b32 %r4, %r0, 3;\nsub.s32 %r5, %r4, 3;\nsetp.eq.s32 %p0, %r5, 0;\n", "",
                "0+00000001 0+00000002");
}

static void predicates(void **state) {
    (void)state;
    /* The form that NVVM gives the lowest bit. */
    expect_test(W0 "and.b32 %r4, %r0, 1;\nsetp.eq.b32 %p1, %r4, 1;\nmov.pred %p2, 0;\nxor.pred %p3, %p1, %p2;\n"
                   "not.pred %p0, %p3;\n",
                "0+00000001", "0-00000001");
#define A "and.b32 %r4, %r0, 2;\nsetp.ne.s32 %p1, %r4, 0;\n"
#define B "and.b32 %r5, %r0, 12;\nsetp.eq.s32 %p2, %r5, 0;\n"
#define DATA "setp.lt.f32 %p3, %f1, %f2;\n"
    expect_test(W0 A B "and.pred %p0, %p1, %p2;\n", "", "0+00000002 0-0000000c");
    expect_test(W0 A B "or.pred %p0, %p1, %p2;\n", "0+0000000c 0-00000002", "");
    expect_test(W0 A B "not.pred %p4, %p2;\nor.pred %p0, %p1, %p4;\n", "0-0000000e", "0+0000000e");
    expect_test(W0 A DATA "and.pred %p0, %p1, %p3;\n", "", "0+00000002");
    expect_test(W0 A DATA "or.pred %p0, %p3, %p1;\n", "0-00000002", "");
    expect_test(W0 A DATA "xor.pred %p0, %p3, %p1;\n", "", "");
    expect_test(W0 A B "xor.pred %p0, %p1, %p2;\n", "0+0000000e", "");
    expect_test(W0 A "xor.pred %p0, %p1, %p1;\n", "", NEVER);
    expect_test(W0 A "mov.pred %p4, %p1;\nmov.pred %p0, %p4;\n", "0-00000002", "0+00000002");
    expect_test(W0 A "selp.u32 %r6, -1, 0, %p1;\nand.b32 %r7, %r6, 1;\nsetp.eq.b32 %p0, %r7, 1;\n", "0-00000002",
                "0+00000002");
    expect_test(W0 A B "selp.b32 %r6, 5, 7, %p1;\nselp.b32 %r7, %r6, 3, %p2;\nsetp.eq.s32 %p0, %r7, 7;\n", "0+0000000e",
                "0-0000000e");
    expect_test(W0 A DATA "selp.b32 %r6, -1, 0, %p3;\nselp.b32 %r7, %r6, 0, %p1;\nsetp.ne.s32 %p0, %r7, 0;\n", "",
                "0+00000002");
}

static void several_words(void **state) {
    (void)state;
    expect_test(W0 W1 "and.b32 %r4, %r0, 3;\nand.b32 %r5, %r1, 28;\nor.b32 %r6, %r4, %r5;\nsetp.eq.s32 %p0, %r6, 0;\n",
                "", "0-00000003 1-0000001c");
    expect_test(W0 W1 "and.b32 %r4, %r0, 255;\nand.b32 %r5, %r1, 255;\nor.b32 %r6, %r4, %r5;\nmov.b32 %r7, %r6;\n"
                      "cvt.u64.u32 %rd1, %r7;\nsetp.ne.s64 %p0, %rd1, 0;\n",
                "0-000000ff 1-000000ff", "");
    expect_test(W0 W1 "and.b32 %r4, %r0, 3;\nshr.u32 %r5, %r0, 4;\nand.b32 %r6, %r5, 255;\nor.b32 %r7, %r4, %r6;\n"
                      "setp.ne.s32 %p0, %r7, 0;\n",
                "0-00000ff3", "0+00000ff3");
    expect_test(W0 W1 "and.b32 %r4, %r0, 255;\nand.b32 %r5, %r1, 255;\nor.b32 %r6, %r4, %r5;\n"
                      "setp.eq.s32 %p0, %r6, %r7;\n",
                "", "");
    expect_test(W0 W3 "and.b32 %r4, %r0, 2;\nsetp.ne.s32 %p1, %r4, 0;\nsetp.lt.s32 %p2, %r3, 0;\n"
                      "and.pred %p0, %p1, %p2;\n",
                "", "0+00000002 3+80000000");
}

static void unknown_registers(void **state) {
    (void)state;
    /* One under a predicate, one of two that is unknown, a vector, another type, no definition. */
    expect_test(W0 "and.b32 %r4, %r0, 2;\nadd.s32 %r4, %r4, %r0;\nsetp.ne.s32 %p0, %r4, 0;\n", "", "");
    expect_test(W0 "@%p1 and.b32 %r4, %r0, 2;\nsetp.ne.s32 %p0, %r4, 0;\n", "", "");
    expect_test(W0 "mov.b32 {%rs1, %rs2}, %r0;\nsetp.ne.s16 %p0, %rs1, 0;\n", "", "");
    expect_test(W0 "and.b32 %r4, %r0, 2;\nsetp.ne.s32 %p0|%p1, %r4, 0;\n", "", "");
    expect_test(W0 "and.b32 %r4, %r0, 2;\nsetp.ne.s32 %p1|%p0, %r4, 0;\n", "", "");
    expect_test(W0 "and.b32 %r4, %r0, 2;\nsetp.ne.and.s32 %p0, %r4, 0, %p1;\n", "", "");
    expect_test(W0 "and.b32 %r4, %r0, 2;\ncvt.rn.f32.u32 %f1, %r4;\nsetp.neu.f32 %p0, %f1, 0f00000000;\n", "", "");
    expect_test(W0 "add.s32 %r4, %r4, %r0;\nsetp.ne.s32 %p0, %r4, 0;\n", "", "");
    expect_test(W0 "mov.u32 %r4, %tid.x;\nsetp.ne.s32 %p0, %r4, 0;\n", "", "");
    expect_test(W0 "popc.b32 %r4, %r0;\nsetp.ne.s32 %p0, %r4, 0;\n", "", "");
    /* An address is none. */
    expect_test(W0 "and.b32 %r4, %r0, 2;\nst.shared.u32 [%r4], %r5;\nsetp.ne.s32 %p0, %r4, 0;\n", "0-00000002",
                "0+00000002");
    expect_test(W0 "and.b32 %r4, %r0, 0f00000001;\nsetp.ne.s32 %p0, %r4, 0;\n", "", "");
}

/* A name that a scope declares is another register, there. */
static void scopes_of_names(void **state) {
    (void)state;
    expect_test(W0 "and.b32 %r4, %r0, 2;\n{\n.reg .b32 %r4, t<3>;\nmov.u32 %r4, 7;\nmov.u32 t1, 7;\n}\n"
                   "setp.ne.s32 %p0, %r4, 0;\n",
                "0-00000002", "0+00000002");
    expect_test(W0 "and.b32 t3, %r0, 2;\n{ .reg .b32 t<3>; mov.u32 t1, 0;\nmov.u32 t3, 7;\n}\n"
                   "setp.ne.s32 %p0, t3, 0;\n",
                "0-00000002", "");
    expect_test(W0 "{\n.reg .b32 a;\nand.b32 a, %r0, 2;\nsetp.ne.s32 %p0, a, 0;\n}\n", "", "");
    expect_test(W0 "{ .reg .pred a;\nand.b32 %r4, %r0, 2; }\nsetp.ne.s32 %p0, %r4, 0;\n", "0-00000002", "0+00000002");
}

#define HAS(p, r, mask) "and.b32 " r ", %r0, " mask ";\nsetp.eq.s32 " p ", " r ", 0;\n"

static void nested_conditions(void **state) {
    (void)state;
    expect_marks(W0 HAS("%p1", "%r4", "2") "@%p1 bra L3;\n" HAS(
                     "%p2", "%r5", "4") "@!%p2 bra L1;\nbar.sync 1;\n"
                                        "bra.uni L2;\nL1:\nbar.sync 2;\nL2:\nbar.sync 3;\nL3:\nret;\n",
                 "//?1 0+00000002\n//?2 0+00000002 0+00000004\n//?3 0+00000002 0-00000004\n",
                 "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS("%p1", "%r4", "2") "@%p1 bra L3;\n//!1\n" HAS(
                     "%p2", "%r5", "4") "/*2*/@!%p2 bra L1;\n//!3\nbar.sync 1;\nbra.uni L2;\n//!2\nL1:\n"
                                        "bar.sync 2;\n//!1\nL2:\nbar.sync 3;\n//!0\nL3:\nret;\n");
}

/* Two tests that lead to one block are one of both masks, where each is of the same word. */
static void joined_conditions(void **state) {
    (void)state;
    expect_marks(W0 HAS("%p1", "%r4", "2") "@!%p1 bra L1;\n" HAS("%p2", "%r5", "4") "@%p2 bra L2;\nL1:\nbar.sync 1;\n"
                                                                                    "L2:\nret;\n",
                 "//?1 0+00000006\n//?2 0-00000002\n",
                 "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS("%p1", "%r4", "2") "/*1*/@!%p1 bra L1;\n//!2\n" HAS(
                     "%p2", "%r5", "4") "@%p2 bra L2;\n//!1\nL1:\nbar.sync 1;\n//!0\nL2:\nret;\n");
    expect_marks(
        W0 W1 HAS("%p1", "%r4", "2") "@!%p1 bra L1;\nsetp.eq.s32 %p2, %r1, 0;\n@%p2 bra L2;\nL1:\n"
                                     "bar.sync 1;\nL2:\nret;\n",
        "//?1 0-00000002\n",
        "/*=0*/mov.u32 %r0, 0x00000000;\n/*=1*/mov.u32 %r1, 0x00000000;\n" HAS(
            "%p1", "%r4",
            "2") "@!%p1 bra L1;\n//!1\nsetp.eq.s32 %p2, %r1, 0;\n@%p2 bra L2;\n//!0\nL1:\nbar.sync 1;\nL2:\nret;\n");
}

static void loops(void **state) {
    (void)state;
    expect_marks(
        W0 HAS("%p1", "%r4", "2") "L1:\n.pragma \"nounroll\";\n@%p1 bra L2;\nbar.sync 1;\nL2:\n"
                                  "setp.lt.f32 %p2, %f1, %f2;\n@%p2 bra L1;\nret;\n",
        "//?1 0+00000002\n",
        "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS(
            "%p1", "%r4", "2") "L1:\n.pragma \"nounroll\";\n@%p1 bra L2;\n"
                               "//!1\nbar.sync 1;\n//!0\nL2:\nsetp.lt.f32 %p2, %f1, %f2;\n@%p2 bra L1;\nret;\n");
    /* A loop whose later rounds may come from elsewhere needs less than its first one. */
    expect_marks(W0 HAS("%p1", "%r4", "2") HAS("%p2", "%r5", "4") "@%p1 bra L2;\nL1:\nbar.sync 1;\nL2:\n"
                                                                  "@!%p2 bra L1;\nret;\n",
                 "//?1 0+00000006\n//?2 0-00000004\n",
                 "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS("%p1", "%r4", "2") HAS(
                     "%p2", "%r5", "4") "@%p1 bra L2;\n"
                                        "//!1\nL1:\nbar.sync 1;\n//!0\nL2:\n/*1*/@!%p2 bra L1;\n//!2\nret;\n//!0\n");
}

/* A condition without room for all masks forgets the one with most bits. */
static void forgotten_masks(void **state) {
    text body = {0};
    (void)state;
    text_add(&body, "%s", W0);
    for (int n = 0; n < 10; n++)
        text_add(&body, "and.b32 %%r%d, %%r0, 0x%x;\nsetp.eq.s32 %%p%d, %%r%d, 0;\n@%%p%d bra L1;\n", n + 4,
                 n == 4 ? 0x700000u : 3u << 2 * n, n, n + 4, n);
    text_add(&body, "bar.sync 1;\nL1:\nret;\n");
    text ptx = kernel_of("", body.bytes), got = mark(ptx.bytes, "k");
    assert_non_null(strstr(got.bytes,
                           "//?9 0+00000003 0+0000000c 0+00000030 0+000000c0 0+00000c00 0+00003000 0+0000c000 "
                           "0+00030000\n.visible"));
    assert_non_null(strstr(got.bytes, "//!9\nand.b32 %r13, %r0, 0xc0000;\nsetp.eq.s32 %p9, %r13, 0;\n@%p9 bra L1;\n"
                                      "bar.sync 1;\n//!0\nL1:\n"));
    text_free(&body);
    text_free(&ptx);
    text_free(&got);
}

static void ends(void **state) {
    (void)state;
    expect_marks(W0 HAS("%p1", "%r4", "2") "@%p1 ret;\n" HAS("%p2", "%r5", "4") "@!%p2 bra L1;\nbar.sync 1;\ntrap;\n"
                                                                                "L1:\nbar.sync 2;\nret;\nbar.sync 3;\n",
                 "//?1 0+00000002\n//?2 0+00000002 0+00000004\n//?3 0+00000002 0-00000004\n",
                 "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS("%p1", "%r4", "2") "@%p1 ret;\n//!1\n" HAS(
                     "%p2", "%r5", "4") "/*2*/@!%p2 bra L1;\n//!3\nbar.sync 1;\ntrap;\n//!2\nL1:\nbar.sync "
                                        "2;\nret;\n//!0\n");
    /* A second query of a feature gives the same. */
    expect_marks(W0 HAS("%p1", "%r4", "2") "@%p1 exit;\n@!%p1 bra L1;\nbar.sync 1;\nL1:\nret;\n", "//?1 0+00000002\n",
                 "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS("%p1", "%r4", "2") "@%p1 exit;\n//!1\n@!%p1 bra L1;\n"
                                                                           "L1:\nret;\n//!0\n");
}

/* A register that several instructions write has one of their values, under the condition of its block. */
static void joined_values(void **state) {
    (void)state;
    expect_test(W0 "and.b32 %r4, %r0, 2;\nand.b32 %r4, %r0, 2;\nsetp.ne.s32 %p0, %r4, 0;\n", "0-00000002",
                "0+00000002");
    expect_marks(W0 HAS("%p1", "%r4", "2") "@%p1 bra L1;\nmov.u16 %rs1, 1;\nbra.uni L2;\nL1:\nshr.u32 %r5, %r0, 2;\n"
                                           "cvt.u16.u32 %rs2, %r5;\nand.b16 %rs1, %rs2, 1;\nL2:\n"
                                           "setp.eq.s16 %p2, %rs1, 0;\n@%p2 bra L3;\nbar.sync 1;\nret;\nL3:\nret;\n",
                 "//?1 0-00000002\n//?2 0+00000002\n//?3 0-00000006\n//?4 0+00000006\n",
                 "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS("%p1", "%r4", "2") "/*1*/@%p1 bra L1;\n//!2\nmov.u16 %rs1, 1;\n"
                                                                           "bra.uni L2;\n//!1\nL1:\n"
                                                                           "shr.u32 %r5, %r0, 2;\n"
                                                                           "cvt.u16.u32 %rs2, %r5;\n"
                                                                           "and.b16 %rs1, %rs2, 1;\n//!0\nL2:\n"
                                                                           "setp.eq.s16 %p2, %rs1, 0;\n"
                                                                           "/*3*/@%p2 bra L3;\n//!4\nbar.sync 1;\n"
                                                                           "ret;\n//!3\nL3:\nret;\n//!0\n");
    /* A block that no words reach assigns nothing. */
    expect_marks(W0 "mov.u32 %r5, 0;\nand.b32 %r4, %r0, 2;\nsetp.eq.s32 %p1, %r4, 4;\n@!%p1 bra L1;\nmov.u32 %r5, 1;\n"
                    "L1:\nsetp.ne.s32 %p2, %r5, 0;\n@%p2 bra L2;\nret;\nL2:\nbar.sync 1;\nret;\n",
                 "",
                 "/*=0*/mov.u32 %r0, 0x00000000;\nmov.u32 %r5, 0;\nand.b32 %r4, %r0, 2;\nsetp.eq.s32 %p1, %r4, 4;\n"
                 "@!%p1 bra L1;\nL1:\nsetp.ne.s32 %p2, %r5, 0;\nret;\n");
    /* Around a loop. */
    expect_test(W0 "and.b32 %r4, %r0, 2;\nL3:\nsetp.lt.f32 %p1, %f1, %f2;\nmov.u32 %r4, 0;\n@%p1 bra L3;\n"
                   "setp.ne.s32 %p0, %r4, 0;\n",
                "", "0+00000002");
}

/* Columns are not packed, and floats beside other logits are a second array. */
static void words_of_no_call(void **state) {
    const char *body = W1 "and.b32 %r4, %r1, 4;\nsetp.eq.s32 %p1, %r4, 0;\n@%p1 bra L1;\n"
                          "/*?1+0x2*/ bar.sync 1;\nand.b32 %r5, %r1, 2;\nsetp.ne.s32 %p2, %r5, 0;\n@%p2 bra L2;\n"
                          "bar.sync 2;\nL1:\nand.b32 %r6, %r1, 0x08000000;\nsetp.eq.s32 %p3, %r6, 0;\n@%p3 bra L3;\n"
                          "and.b32 %r7, %r1, 0x10000;\nsetp.ne.s32 %p4, %r7, 0;\n@%p4 bra L3;\nL2:\nbar.sync 3;\n"
                          "L3:\nret;\n";
    const char *marked =
        "/*=1*/mov.u32 %r1, 0x00000000;\nand.b32 %r4, %r1, 4;\nsetp.eq.s32 %p1, %r4, 0;\n@%p1 bra L1;\n//!1\n"
        "and.b32 %r5, %r1, 2;\nsetp.ne.s32 %p2, %r5, 0;\nbar.sync 2;\n//!0\nL1:\nand.b32 %r6, %r1, 0x08000000;\n"
        "setp.eq.s32 %p3, %r6, 0;\n@%p3 bra L3;\n//!2\nand.b32 %r7, %r1, 0x10000;\nsetp.ne.s32 %p4, %r7, 0;\n"
        "@%p4 bra L3;\n//!0\nL3:\nret;\n";
    (void)state;
    expect_marks_of("gpuloss_cross_entropy_row_thread_any16", body, "//?1 1+00000004\n//?2 1+08000000\n", marked);
    text ptx = kernel_of("", body), got = mark(ptx.bytes, "gpuloss_cross_entropy_row_basic_f32");
    assert_non_null(strstr(got.bytes, "bar.sync 1;\n"));
    assert_non_null(strstr(got.bytes, "L2:\nbar.sync 3;\n"));
    text_free(&ptx);
    text_free(&got);
}

static void conditional_lines(void **state) {
    (void)state;
    expect_marks("/*?1+0x00000001*/ shl.b32 %f1, %r1, 16;\n/*?1-0x1u 0+0X30*/ and.b32 %f1, %r1, 7;\n"
                 "/*?2-0xF0UL   3+0xa*/neg.f32 %f1, %f1; abs.f32 %f1, %f1;\n/* a remark */ ret;\n",
                 "//?1 1+00000001\n//?2 0+00000030 1-00000001\n//?3 2-000000f0 3+0000000a\n",
                 "/*1*/ shl.b32 %f1, %r1, 16;\n/*2*/ and.b32 %f1, %r1, 7;\n"
                 "/*3*/neg.f32 %f1, %f1; abs.f32 %f1, %f1;\n/* a remark */ ret;\n");
    /* A line that is there in all of its block, or never. */
    expect_marks("/*?0-0x0*/ neg.f32 %f1, %f1;\n/*?0+0x0*/ neg.f32 %f2, %f2;\nret;\n", "",
                 " neg.f32 %f1, %f1;\nret;\n");
    /* A jump. */
    expect_marks(
        W0 HAS("%p1", "%r4", "2") "@%p1 bra L2;\n/*?0+0x4*/ bra L1;\nbar.sync 1;\nL2:\nret;\nL1:\nbar.sync 2;\n"
                                  "ret;\n",
        "//?1 0+00000002\n//?2 0+00000004\n//?3 0+00000002 0+00000004\n",
        "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS(
            "%p1", "%r4", "2") "@%p1 bra L2;\n//!1\n/*2*/ bra L1;\n"
                               "bar.sync 1;\n//!0\nL2:\nret;\n//!3\nL1:\nbar.sync 2;\nret;\n//!0\n");
    /* A jump that a predicate may prevent too. */
    expect_marks(W0 HAS("%p1", "%r4", "2") "/*?0+0x4*/ @%p1 bra L1;\nbar.sync 1;\nret;\nL1:\nret;\n",
                 "//?1 0+00000004 0-00000002\n",
                 "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS("%p1", "%r4", "2") "/*1*/ @%p1 bra L1;\nbar.sync 1;\nret;\n"
                                                                           "//!1\nL1:\nret;\n//!0\n");
    /* The register of such a line may be written, or not. */
    expect_marks(W0 "/*?1-0x1*/and.b32 %r4, %r0, 2;\nsetp.ne.s32 %p0, %r4, 0;\n@%p0 bra L1;\nbar.sync 1;\nL1:\nret;\n",
                 "//?1 1-00000001\n",
                 "/*=0*/mov.u32 %r0, 0x00000000;\n/*1*/and.b32 %r4, %r0, 2;\nsetp.ne.s32 %p0, %r4, 0;\n@%p0 bra L1;\n"
                 "bar.sync 1;\nL1:\nret;\n");
}

/* Braces open and close in pairs, and the kernel's declarations stay. */
static void whole_scopes(void **state) {
    (void)state;
    expect_marks(
        W0 HAS("%p1", "%r4",
               "2") "@%p1 bra L1;\nbar.sync 1;\n{\n.reg .pred done;\nW:\n"
                    "mbarrier.try_wait.parity.shared::cta.b64 done, [%r9], 0;\n@!done bra W;\n}\nL1:\nret;\n",
        "//?1 0+00000002\n",
        "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS(
            "%p1", "%r4",
            "2") "@%p1 bra L1;\n//!1\nbar.sync 1;\n{\n"
                 ".reg .pred done;\nW:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%r9], 0;\n@!done bra W;\n}\n"
                 "//!0\nL1:\nret;\n");
    expect_marks(
        W0 HAS("%p1", "%r4", "2") "{\n@%p1 bra W;\nbar.sync 1;\nW:\nbar.sync 2;\n}\nret;\n", "",
        "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS("%p1", "%r4", "2") "{\n@%p1 bra W;\nbar.sync 1;\nW:\nbar.sync 2;\n"
                                                                  "}\nret;\n");
    /* The same label in two scopes. */
    expect_marks(W0 HAS("%p1", "%r4", "2") "@%p1 bra L1;\n{\nW:\n@%p8 bra W;\n}\nL1:\n{\nW:\n@%p8 bra W;\n}\nret;\n",
                 "//?1 0+00000002\n",
                 "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS("%p1", "%r4", "2") "@%p1 bra L1;\n//!1\n{\nW:\n@%p8 bra W;\n}\n"
                                                                           "//!0\nL1:\n{\nW:\n@%p8 bra W;\n}\nret;\n");
    expect_marks(W0 HAS("%p1", "%r4", "2") "@%p1 bra L1;\n.shared .align 4 .b8 s[4];\nbar.sync 1;\nL1:\nret;\n", "",
                 "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS("%p1", "%r4", "2") "@%p1 bra L1;\n.shared .align 4 .b8 s[4];\n"
                                                                           "bar.sync 1;\nL1:\nret;\n");
}

/* A comment for newer GPUs belongs to its block, and an instruction may take several lines. */
static void other_lines(void **state) {
    (void)state;
    expect_marks(
        W0 HAS("%p1", "%r4", "2") "@%p1 bra L1;\n//griddepcontrol.wait;\nmad.lo.s32 %r8, %r8,\n%r8, %r8;\nL1:\n"
                                  "ret;\n//griddepcontrol.wait;\n",
        "//?1 0+00000002\n",
        "/*=0*/mov.u32 %r0, 0x00000000;\n" HAS(
            "%p1", "%r4", "2") "@%p1 bra L1;\n//!1\n//griddepcontrol.wait;\n"
                               "mad.lo.s32 %r8, %r8,\n%r8, %r8;\n//!0\nL1:\nret;\n//griddepcontrol.wait;\n");
}

/* The message that the generator ends with. */
static void expect_failure(const char *body, const char *word) {
    char said[1024];
    int ends[2], status;
    ssize_t length;
    text ptx = kernel_of("", body);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        text got = mark(ptx.bytes, "k");
        _exit(got.bytes == NULL);
    }
    waitpid(child, &status, 0);
    close(ends[1]);
    length = read(ends[0], said, sizeof said - 1);
    said[length > 0 ? length : 0] = 0;
    close(ends[0]);
    text_free(&ptx);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    if (strstr(said, word) == NULL)
        fail_msg("not '%s' in: %s", word, said);
}

static void failures(void **state) {
    (void)state;
    expect_failure(W0 "call f;\n", "line 10: a jump that is not followed: call f;");
    expect_failure(W0 "call.uni (r), f, (a);\n", "a jump that is not followed");
    expect_failure(W0 "@%p1 brx.idx %r1, t;\n", "a jump that is not followed");
    expect_failure(W0 "bra L1;\n", "a branch to a label that is not there");
    expect_failure(W0 "{\nW:\nret;\n}\nbra W;\n", "a branch to a label that is not there");
    expect_failure(W0 "neg.f32 %f1, %f1; @%p1 bra L1;\nL1:\n", "a branch that does not have its line to itself");
    expect_failure(W0 "L1: bra L1;\n", "a branch that does not have its line to itself");
    expect_failure(W0 "{\nL1:\nbra L1; }\n", "a branch that does not have its line to itself");
    expect_failure(W0 "bra\nL1;\nL1:\n", "a branch that does not have its line to itself");
    expect_failure(W0 "neg.f32 %f1, %f1; L1:\n", "a label that is not at the beginning of its line");
    expect_failure(W0 "ret; ", "the end of the kernel does not have its line to itself");
    expect_failure(W0 "neg.f32 %f1, %f1", "an instruction that does not end");
    expect_failure(W0 "{\n", "the kernel does not end");
    expect_failure("mov.u32 %r0, 0x5BEC0004;\n", "a feature word that is not a mov of its own");
    expect_failure("add.u32 %r0, %r1, 0x5BEC0001;\n", "a feature word that is not a mov of its own");
    expect_failure("@%p1 mov.u32 %r0, 0x5BEC0001;\n", "a feature word that is not a mov of its own");
    expect_failure("mov.u32 %r0, 0x5BEC0001; neg.f32 %f1, %f1;\n", "a feature word that is not a mov of its own");
    expect_failure("mov.u64 %rd0, 0x5BEC0001;\n", "a feature word that is not a mov of its own");
    expect_failure("/*?0+0x1*/ mov.u32 %r0, 0x5BEC0001;\n", "a feature word that is not a mov of its own");
    expect_failure("/*?4+0x1*/ ret;\n", "a clause that is not W+0xMASK or W-0xMASK");
    expect_failure("/*?0*0x1*/ ret;\n", "a clause that is not W+0xMASK or W-0xMASK");
    expect_failure("/*?0+1*/ ret;\n", "a mask that is not hexadecimal");
    expect_failure("/*?0+0x1 ret;\n", "a comment that does not end on its line");
    expect_failure("/*?0+0x1*x*/ ret;\n", "a tag that does not end");
    expect_failure("neg.f32 %f1, %f1; /*?0+0x1*/ ret;\n", "a tag that is not at the beginning of its line");
    expect_failure("/*?0+0x1*/ {\n}\n", "a scope that is longer than its conditional line");
    expect_failure("{\n/*?0+0x1*/ neg.f32 %f1, %f1; }\n", "a scope that is longer than its conditional line");
    expect_failure("/*?0+0x1*/ { .reg .b16 h; {\n} }\n", "a scope that is longer than its conditional line");
    expect_failure("/*?0+0x1*/ L1:\n", "a conditional line with a label");
    expect_failure("/*?0+0x1*/ { W: neg.f32 %f1, %f1; }\n", "a conditional line with a label");
    expect_failure("/*?0+0x1*/ { @%p1 bra L1; }\nL1:\n", "a branch that does not have its line to itself");
    expect_failure("/*?0+0x1*/ neg.f32 %f1,\n%f1;\n", "longer than its conditional line");
    expect_failure(W0 "/*1*/ ret;\n", "a comment that reads like a mark");
    expect_failure(W0 "/*=1*/ ret;\n", "a comment that reads like a mark");
    expect_failure(W0 "//!1\n", "a comment that reads like a mark");
    expect_failure(W0 "//?1 0+00000001\n", "a comment that reads like a mark");
}

/* As many conditions as a text may have, and one more. */
static void most_conditions(void **state) {
    (void)state;
    for (int more = 0; more < 2; more++) {
        text body = {0};
        for (int n = 1; n <= GPULOSSI_MOST_CONDITIONS + more; n++)
            text_add(&body, "/*?1+0x%x*/ neg.f32 %%f1, %%f1;\n", (unsigned)n);
        if (more == 1) {
            expect_failure(body.bytes, "more than 1024 conditions");
        } else {
            text ptx = kernel_of("", body.bytes), got = mark(ptx.bytes, "k");
            assert_non_null(strstr(got.bytes, "\n//?1024 1+00000400\n.visible"));
            assert_non_null(strstr(got.bytes, "\n/*1024*/ neg.f32 %f1, %f1;\n}\n"));
            text_free(&ptx);
            text_free(&got);
        }
        text_free(&body);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_without_features),
                                       cmocka_unit_test(masks),
                                       cmocka_unit_test(numbers),
                                       cmocka_unit_test(forgotten_masks),
                                       cmocka_unit_test(wide_masks),
                                       cmocka_unit_test(bits_and_fields),
                                       cmocka_unit_test(predicates),
                                       cmocka_unit_test(several_words),
                                       cmocka_unit_test(unknown_registers),
                                       cmocka_unit_test(scopes_of_names),
                                       cmocka_unit_test(nested_conditions),
                                       cmocka_unit_test(joined_conditions),
                                       cmocka_unit_test(loops),
                                       cmocka_unit_test(ends),
                                       cmocka_unit_test(joined_values),
                                       cmocka_unit_test(words_of_no_call),
                                       cmocka_unit_test(conditional_lines),
                                       cmocka_unit_test(whole_scopes),
                                       cmocka_unit_test(other_lines),
                                       cmocka_unit_test(failures),
                                       cmocka_unit_test(most_conditions),
                                       cmocka_unit_test(random_flows),
                                       cmocka_unit_test(random_jumps)};
    return cmocka_run_group_tests(tests, NULL, NULL) + lower_tests();
}
