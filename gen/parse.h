/* A lowered text taken to pieces: lines, statements, basic blocks, scopes and definitions of registers. */
#ifndef GPULOSSI_GEN_PARSE_H
#define GPULOSSI_GEN_PARSE_H

#include "condition.h"

/* A feature word in a text, but for its number; kernels write it into a mov. */
#define FEATURE_WORD "0x5BEC000"

typedef struct text_line {
    const char *at; /* in the text */
    size_t length;  /* without the newline */
    int block;
    int word; /* number of the feature word that it moves to a register, or -1 */
    int jump; /* the branch, ret, exit or trap on it, or -1 */
    int is_tagged;
    int has_need;   /* it declares a shared variable or moves its address, for the lines that use that */
    condition when; /* the condition of its tag, or of these lines */
} text_line;

typedef struct statement {
    const char *opcode, *guard; /* a predicate, or NULL */
    int is_negated;
    const char *operands[MOST_OPERANDS];
    int count; /* of operands, with the ones that have no room */
    int line, scope;
} statement;

typedef struct basic_block {
    const char *label; /* or NULL */
    int scope, first_line;
    int last;     /* the statement that ends it, or -1 where it falls through */
    int declares; /* something that the whole kernel may name */
    condition when;
} basic_block;

/* Scope 0 is the kernel. */
typedef struct brace_scope {
    int parent, first_line, last_line;
} brace_scope;

/* A name that another scope declares. With a count it is a prefix: prefix<count>. */
typedef struct local {
    const char *name;
    int scope, count;
} local;

typedef struct definition {
    const char *name;
    int statement;
} definition;

typedef struct parsed {
    const char *entry;
    char *copy;
    text_line *lines;
    statement *statements;
    basic_block *blocks;
    brace_scope *scopes;
    local *locals;
    definition *definitions; /* by name */
    int line_count, statement_count, block_count, scope_count, local_count, definition_count;
    int first, end; /* lines of the body, without its braces */
} parsed;

/* Whether a character may be in a name. */
int is_name(char c);
/* Ends the program where the text has something whose flow is not followed. */
parsed *parse(const char *ptx, const char *entry);
void parse_free(parsed *p);
int parse_number(const char *name, uint64_t *number);
int is_opcode(const statement *s, const char *name);
/* The only definition of a register of the kernel, or -1. */
int find_definition(const parsed *p, const char *name, int scope);
/* The first of the definitions of a register of the kernel, and how many follow each other from there; or -1. */
int find_definitions(const parsed *p, const char *name, int scope, int *count);
/* The block that a branch jumps to. */
int find_label(const parsed *p, const statement *branch);

#endif
