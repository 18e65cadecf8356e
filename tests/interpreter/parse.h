/* State that parse.c and decode.c share while one module is read, and the literals of literals.c. */
#ifndef PTXSIM_PARSE_H
#define PTXSIM_PARSE_H

#include "ptxsim.h"

enum { PARSE_NAME = 256, PARSE_OPERANDS = 16, PARSE_POOLED = 256 };

enum symbol_kind { SYM_REGISTER, SYM_REGISTERS, SYM_PARAM, SYM_FRAME, SYM_LOCAL, SYM_SHARED, SYM_DYNAMIC };

struct symbol {
    char *name;
    size_t length;
    enum symbol_kind kind;
    enum ptxsim_type type;
    uint32_t count; /* of numbered registers; bytes of anything else */
    uint32_t slot;  /* first register, or an offset in the space */
};

struct label {
    char *name;
    uint32_t line, pc;
};

struct jump {
    char *name;
    uint32_t insn, line;
};

struct formal {
    uint32_t offset, bytes;
};

/* A function as decoded into the present kernel. */
struct callee {
    struct function *function;
    uint32_t entry;
    struct formal formals[32], results[4];
    uint32_t nformals, nresults;
};

struct call_site {
    uint32_t insn, line, caller, callee;
    struct formal arguments[32], results[4];
    uint32_t narguments, nresults;
};

struct parser {
    struct module *module;
    const char *p;
    uint32_t line;
    jmp_buf escape;
    struct parse_error *error;
    struct kernel *kernel;
    struct symbol *symbols;
    uint32_t nsymbols, symbols_room;
    struct label *labels;
    uint32_t nlabels, labels_room;
    struct jump *jumps;
    uint32_t njumps, jumps_room;
    struct callee *callees;
    uint32_t ncallees, current;
    struct call_site *calls;
    uint32_t ncalls, calls_room;
    struct {
        struct variable *variable;
        uint32_t offset;
    } shared[64];
    uint32_t nshared;
    uint32_t pooled[PARSE_POOLED]; /* index in the kernel's pool of the last constant of a hash */
    char *operands;                /* text of the present instruction */
    uint32_t operands_room;
    uint32_t discard; /* a register for results that nobody wants */
};

_Noreturn void ptxsim_parse_fail(struct parser *parser, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether a character is a digit in every locale. */
static inline bool ptxsim_is_digit(char c) {
    return c >= '0' && c <= '9';
}
char *ptxsim_copy(const char *text, size_t length);
void ptxsim_decode(struct parser *parser, const char *opcode, char *operands, const char *guard);
uint32_t ptxsim_callee(struct parser *parser, const char *name);
uint32_t ptxsim_slot(struct parser *parser);
bool ptxsim_number(const char *text, const char **end, enum ptxsim_type type, uint64_t *value);
const struct symbol *ptxsim_symbol(const struct parser *parser, const char *name, uint32_t *index);
struct variable *ptxsim_variable(const struct module *module, const char *name);
uint32_t ptxsim_shared_offset(struct parser *parser, struct variable *variable);
enum ptxsim_type ptxsim_type_name(const char *name);

#endif
