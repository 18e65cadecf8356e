/* Decodes one instruction line into one struct insn, by the rows of instructions.def. */
#include "parse.h"

#include <stdlib.h>
#include <string.h>

/* Several rows share an executor, which is then declared several times. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wredundant-decls"
#define ROW(isa, sm, pattern, operands, exec) ptxsim_exec ptxsim_x_##exec;
#define PURE ROW
#include "instructions.def"
#undef ROW
#undef PURE
#pragma GCC diagnostic pop

const struct ptxsim_row ptxsim_rows[] = {
#define ROW(isa, sm, pattern, operands, exec) {isa, sm, pattern, operands, ptxsim_x_##exec, false},
#define PURE(isa, sm, pattern, operands, exec) {isa, sm, pattern, operands, ptxsim_x_##exec, true},
#include "instructions.def"
#undef ROW
#undef PURE
    {0, 0, NULL, NULL, NULL, false}};

enum meaning { M_HINT, M_ROUND, M_FLAG, M_SPACE, M_VECTOR, M_OP };

/* The modifiers, and the fields of the instruction that they set. A hint does not change any result. */
static const struct modifier {
    const char *text;
    enum meaning meaning;
    uint32_t value;
    uint16_t isa, sm;
} modifiers[] = {
    {".rn", M_ROUND, RND_RN, 0, 0},
    {".rz", M_ROUND, RND_RZ, 0, 0},
    {".rm", M_ROUND, RND_RM, 0, 0},
    {".rp", M_ROUND, RND_RP, 0, 0},
    {".rni", M_ROUND, RND_RNI, 0, 0},
    {".rzi", M_ROUND, RND_RZI, 0, 0},
    {".rmi", M_ROUND, RND_RMI, 0, 0},
    {".rpi", M_ROUND, RND_RPI, 0, 0},
    {".rna", M_ROUND, RND_RNA, 0, 0},
    {".ftz", M_FLAG, F_FTZ, 0, 0},
    {".sat", M_FLAG, F_SAT, 0, 0},
    {".approx", M_FLAG, F_APPROX, 0, 0},
    {".full", M_FLAG, F_FULL, 0, 0},
    {".NaN", M_FLAG, F_NAN, 70, 80},
    {".volatile", M_FLAG, F_VOLATILE, 0, 0},
    {".xorsign", M_FLAG, F_XORSIGN, 72, 86},
    {".relu", M_FLAG, F_RELU, 70, 80},
    {".to", M_FLAG, F_TO, 0, 0},
    {".cc", M_FLAG, F_CC, 0, 0},
    {".aligned", M_FLAG, F_ALIGNED, 0, 0},
    {".global", M_SPACE, SP_GLOBAL, 0, 0},
    {".shared", M_SPACE, SP_SHARED, 0, 0},
    {".shared::cta", M_SPACE, SP_SHARED, 78, 30},
    {".shared::cluster", M_SPACE, SP_CLUSTER, 78, 90},
    {".local", M_SPACE, SP_LOCAL, 0, 0},
    {".param", M_SPACE, SP_PARAM, 0, 0},
    {".param::entry", M_SPACE, SP_PARAM, 83, 0},
    {".param::func", M_SPACE, SP_PARAM, 83, 0},
    {".const", M_SPACE, SP_CONST, 0, 0},
    {".v2", M_VECTOR, 2, 0, 0},
    {".v4", M_VECTOR, 4, 0, 0},
    {".v8", M_VECTOR, 8, 0, 0},
    {".eq", M_OP, OP_EQ, 0, 0},
    {".ne", M_OP, OP_NE, 0, 0},
    {".lt", M_OP, OP_LT, 0, 0},
    {".le", M_OP, OP_LE, 0, 0},
    {".gt", M_OP, OP_GT, 0, 0},
    {".ge", M_OP, OP_GE, 0, 0},
    {".lo", M_OP, OP_LO, 0, 0},
    {".ls", M_OP, OP_LS, 0, 0},
    {".hi", M_OP, OP_HI, 0, 0},
    {".hs", M_OP, OP_HS, 0, 0},
    {".equ", M_OP, OP_EQU, 0, 0},
    {".neu", M_OP, OP_NEU, 0, 0},
    {".ltu", M_OP, OP_LTU, 0, 0},
    {".leu", M_OP, OP_LEU, 0, 0},
    {".gtu", M_OP, OP_GTU, 0, 0},
    {".geu", M_OP, OP_GEU, 0, 0},
    {".num", M_OP, OP_NUM, 0, 0},
    {".nan", M_OP, OP_NAN, 0, 0},
    {".and", M_OP, OP_AND, 0, 0},
    {".or", M_OP, OP_OR, 0, 0},
    {".xor", M_OP, OP_XOR, 0, 0},
    {".wide", M_OP, OP_WIDE, 0, 0},
    {".up", M_OP, OP_UP, 0, 0},
    {".down", M_OP, OP_DOWN, 0, 0},
    {".bfly", M_OP, OP_BFLY, 0, 0},
    {".idx", M_OP, OP_IDX, 0, 0},
    {".all", M_OP, OP_ALL, 0, 0},
    {".any", M_OP, OP_ANY, 0, 0},
    {".uni", M_OP, OP_UNI, 0, 0},
    {".ballot", M_OP, OP_BALLOT, 0, 0},
    {".add", M_OP, OP_ADD, 0, 0},
    {".min", M_OP, OP_MIN, 0, 0},
    {".max", M_OP, OP_MAX, 0, 0},
    {".inc", M_OP, OP_INC, 0, 0},
    {".dec", M_OP, OP_DEC, 0, 0},
    {".exch", M_OP, OP_EXCH, 0, 0},
    {".cas", M_OP, OP_CAS, 0, 0},
    {".popc", M_OP, OP_POPC, 0, 0},
    {".clamp", M_OP, OP_CLAMP, 0, 0},
    {".wrap", M_OP, OP_WRAP, 0, 0},
    {".l", M_OP, OP_L, 0, 0},
    {".r", M_OP, OP_R, 0, 0},
    {".f4e", M_OP, OP_F4E, 0, 0},
    {".b4e", M_OP, OP_B4E, 0, 0},
    {".rc8", M_OP, OP_RC8, 0, 0},
    {".ecl", M_OP, OP_ECL, 0, 0},
    {".ecr", M_OP, OP_ECR, 0, 0},
    {".rc16", M_OP, OP_RC16, 0, 0},
    {".finite", M_OP, OP_FINITE, 0, 0},
    {".infinite", M_OP, OP_INFINITE, 0, 0},
    {".number", M_OP, OP_NUMBER, 0, 0},
    {".notanumber", M_OP, OP_NOTANUMBER, 0, 0},
    {".normal", M_OP, OP_NORMAL, 0, 0},
    {".subnormal", M_OP, OP_SUBNORMAL, 0, 0},
    {".shiftamt", M_OP, OP_SHIFTAMT, 0, 0},
    {".cluster", M_HINT, 0, 78, 90},
    {".weak", M_HINT, 0, 60, 0},
    {".L1::evict_normal", M_HINT, 0, 74, 70},
    {".L1::evict_unchanged", M_HINT, 0, 74, 70},
    {".L1::evict_first", M_HINT, 0, 74, 70},
    {".L1::evict_last", M_HINT, 0, 74, 70},
    {".L1::no_allocate", M_HINT, 0, 74, 70},
    {".L2::cache_hint", M_HINT, 0, 74, 80},
    {".L2::64B", M_HINT, 0, 74, 75},
    {".L2::128B", M_HINT, 0, 74, 75},
    {".L2::256B", M_HINT, 0, 74, 80},
};

/* One group of alternatives, at *pattern, against the token; moves past the group. */
static bool match_group(const char **pattern, const char *token, size_t length, bool *optional) {
    const char *p = *pattern;
    bool found = false;
    *optional = *p == '?';
    if (*optional)
        p++;
    while (*p && *p != ' ') {
        size_t n = strcspn(p, "| ");
        found = found || (n == length && strncmp(p, token, n) == 0);
        p += n;
        p += *p == '|';
    }
    while (*p == ' ')
        p++;
    *pattern = p;
    return found;
}

static size_t token_length(const char *token) {
    return *token ? 1 + strcspn(token + 1, ".") : 0;
}

static bool match_root(const char *pattern, const char *opcode) {
    size_t n = strcspn(opcode, ".");
    return strncmp(pattern, opcode, n) == 0 && (pattern[n] == ' ' || pattern[n] == 0);
}

static bool match(const char *pattern, const char *opcode) {
    const char *token = opcode + strcspn(opcode, ".");
    pattern += strcspn(pattern, " ");
    pattern += strspn(pattern, " ");
    while (*pattern) {
        bool optional;
        size_t n = token_length(token);
        if (n && match_group(&pattern, token, n, &optional)) {
            token += n;
            continue;
        }
        if (!n)
            match_group(&pattern, "", 0, &optional);
        if (!optional)
            return false;
    }
    return *token == 0;
}

static bool count_fits(const char *operands, uint32_t count) {
    uint32_t most = 0, least = 0;
    bool optional = false;
    for (; *operands; operands++) {
        if (*operands == '?') {
            optional = true;
            continue;
        }
        most++;
        least += !optional;
    }
    return count >= least && count <= most;
}

static void note_modifier(struct parser *parser, struct insn *insn, const char *token, size_t length, uint32_t *ntypes,
                          uint32_t *nspaces) {
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)length, token);
    enum ptxsim_type type = ptxsim_type_name(text);
    if (type != T_NONE) {
        if (*ntypes < 2)
            insn->type[(*ntypes)++] = (uint8_t)type;
        return;
    }
    for (size_t m = 0; m < sizeof modifiers / sizeof *modifiers; m++) {
        const struct modifier *modifier = &modifiers[m];
        if (strcmp(modifier->text, text) != 0)
            continue;
        if (modifier->isa > parser->module->version)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "%s needs PTX %u.%u", text, modifier->isa / 10,
                              modifier->isa % 10);
        if (modifier->sm > parser->module->target)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "%s needs target sm_%u", text, modifier->sm);
        switch (modifier->meaning) {
        case M_ROUND:
            insn->round = (uint8_t)modifier->value;
            break;
        case M_FLAG:
            insn->flags |= modifier->value;
            break;
        case M_SPACE:
            if (*nspaces < 2)
                insn->space[(*nspaces)++] = (uint8_t)modifier->value;
            break;
        case M_VECTOR:
            insn->nv = (uint8_t)modifier->value;
            break;
        case M_OP:
            if (insn->nop < 3)
                insn->op[insn->nop++] = (uint8_t)modifier->value;
            break;
        case M_HINT:
            break;
        }
        return;
    }
}

static uint32_t pool_constant(struct parser *parser, uint64_t value) {
    struct kernel *kernel = parser->kernel;
    uint32_t *last = &parser->pooled[(value ^ value >> 8 ^ value >> 52) % PARSE_POOLED];
    if (*last < kernel->npool && kernel->pool[(size_t)*last * PTXSIM_WARP] == value)
        return SLOT_POOL | *last;
    for (*last = 0; *last < kernel->npool; ++*last)
        if (kernel->pool[(size_t)*last * PTXSIM_WARP] == value)
            return SLOT_POOL | *last;
    kernel->pool = ptxsim_grow(kernel->pool, kernel->npool, &kernel->pool_room, PTXSIM_WARP * sizeof *kernel->pool);
    for (uint32_t l = 0; l < PTXSIM_WARP; l++)
        kernel->pool[(size_t)kernel->npool * PTXSIM_WARP + l] = value;
    return SLOT_POOL | kernel->npool++;
}

static uint32_t special_slot(struct parser *parser, enum ptxsim_special id, uint64_t value) {
    struct kernel *kernel = parser->kernel;
    for (uint32_t i = 0; i < kernel->nspecials; i++)
        if (kernel->specials[i].id == id && kernel->specials[i].value == value)
            return kernel->specials[i].slot;
    kernel->specials =
        ptxsim_grow(kernel->specials, kernel->nspecials, &kernel->specials_room, sizeof *kernel->specials);
    struct special *special = &kernel->specials[kernel->nspecials++];
    special->slot = ptxsim_slot(parser);
    special->id = id;
    special->value = value;
    return special->slot;
}

static const struct {
    const char *name;
    uint8_t bits;
    enum ptxsim_special id;
} special_names[] = {
    {"%tid.x", 32, SR_TID_X},
    {"%tid.y", 32, SR_TID_Y},
    {"%tid.z", 32, SR_TID_Z},
    {"%ntid.x", 32, SR_NTID_X},
    {"%ntid.y", 32, SR_NTID_Y},
    {"%ntid.z", 32, SR_NTID_Z},
    {"%ctaid.x", 32, SR_CTAID_X},
    {"%ctaid.y", 32, SR_CTAID_Y},
    {"%ctaid.z", 32, SR_CTAID_Z},
    {"%nctaid.x", 32, SR_NCTAID_X},
    {"%nctaid.y", 32, SR_NCTAID_Y},
    {"%nctaid.z", 32, SR_NCTAID_Z},
    {"%laneid", 32, SR_LANEID},
    {"%warpid", 32, SR_WARPID},
    {"%nwarpid", 32, SR_NWARPID},
    {"%smid", 32, SR_SMID},
    {"%nsmid", 32, SR_NSMID},
    {"%gridid", 64, SR_GRIDID},
    {"%lanemask_eq", 32, SR_MASK_EQ},
    {"%lanemask_lt", 32, SR_MASK_LT},
    {"%lanemask_le", 32, SR_MASK_LE},
    {"%lanemask_gt", 32, SR_MASK_GT},
    {"%lanemask_ge", 32, SR_MASK_GE},
    {"%clusterid.x", 32, SR_CLUSTERID_X},
    {"%clusterid.y", 32, SR_CLUSTERID_Y},
    {"%clusterid.z", 32, SR_CLUSTERID_Z},
    {"%nclusterid.x", 32, SR_NCLUSTERID_X},
    {"%nclusterid.y", 32, SR_NCLUSTERID_Y},
    {"%nclusterid.z", 32, SR_NCLUSTERID_Z},
    {"%cluster_ctaid.x", 32, SR_CLUSTER_CTAID_X},
    {"%cluster_ctaid.y", 32, SR_CLUSTER_CTAID_Y},
    {"%cluster_ctaid.z", 32, SR_CLUSTER_CTAID_Z},
    {"%cluster_nctaid.x", 32, SR_CLUSTER_NCTAID_X},
    {"%cluster_nctaid.y", 32, SR_CLUSTER_NCTAID_Y},
    {"%cluster_nctaid.z", 32, SR_CLUSTER_NCTAID_Z},
    {"%cluster_ctarank", 32, SR_CLUSTER_CTARANK},
    {"%cluster_nctarank", 32, SR_CLUSTER_NCTARANK},
    {"%is_explicit_cluster", 1, SR_IS_EXPLICIT_CLUSTER},
    {"%dynamic_smem_size", 32, SR_DYNAMIC_SMEM},
    {"%total_smem_size", 32, SR_TOTAL_SMEM},
    {"%clock", 32, SR_CLOCK},
    {"%clock_hi", 32, SR_CLOCK_HI},
    {"%clock64", 64, SR_CLOCK64},
    {"%globaltimer", 64, SR_GLOBALTIMER},
    {"%globaltimer_lo", 32, SR_GLOBALTIMER_LO},
    {"%globaltimer_hi", 32, SR_GLOBALTIMER_HI},
};

static void width_check(struct parser *parser, const char *name, uint32_t have, uint32_t want, bool wider) {
    if (have == want || (wider && have > want && have <= 64))
        return;
    ptxsim_parse_fail(parser, E_INVALID_PTX, "operand %s has %u bits where %u are wanted", name, have, want);
}

static uint32_t register_slot(struct parser *parser, const char *name, uint32_t bits, bool wider, uint32_t *have) {
    uint32_t index;
    const struct symbol *symbol = ptxsim_symbol(parser, name, &index);
    if (!symbol || (symbol->kind != SYM_REGISTER && symbol->kind != SYM_REGISTERS))
        ptxsim_parse_fail(parser, E_INVALID_PTX, "%s is not a declared register", name);
    *have = ptxsim_bits((int)symbol->type);
    if (*have == 1 || bits == 1)
        wider = false;
    width_check(parser, name, *have, bits, wider);
    return symbol->slot + index;
}

static uint32_t destination(struct parser *parser, struct insn *insn, const char *name, uint32_t bits, bool wider) {
    uint32_t have = bits;
    uint32_t slot = parser->discard;
    if (strcmp(name, "_") != 0)
        slot = register_slot(parser, name, bits, wider, &have);
    insn->dbits = (uint8_t)have;
    return slot;
}

static uint32_t source(struct parser *parser, struct insn *insn, const char *name, uint32_t bits, bool wider,
                       enum ptxsim_type type) {
    uint64_t value;
    const char *end;
    if (ptxsim_number(name, &end, type, &value)) {
        if (*end)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "bad constant %s", name);
        if (bits == 1)
            value = value != 0;
        return pool_constant(parser, bits < 64 ? value & ((1ull << bits) - 1) : value);
    }
    if (strcmp(name, "WARP_SZ") == 0)
        return pool_constant(parser, PTXSIM_WARP);
    for (size_t i = 0; i < sizeof special_names / sizeof *special_names; i++) {
        if (name[1] != special_names[i].name[1] || strcmp(name, special_names[i].name) != 0)
            continue;
        width_check(parser, name, special_names[i].bits, bits, false);
        enum ptxsim_special id = special_names[i].id;
        if (id > SR_STATIC_COUNT - 1) {
            insn->offset = id;
            return SLOT_NONE;
        }
        if (id >= SR_CLUSTERID_X && id <= SR_IS_EXPLICIT_CLUSTER && parser->module->target < 90)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "%s needs target sm_90", name);
        return special_slot(parser, id, 0);
    }
    uint32_t have;
    return register_slot(parser, name, bits, wider, &have);
}

/* The address of a variable or parameter, as a constant or as a value that differs between blocks. */
static bool symbol_address(struct parser *parser, const char *name, enum ptxsim_space *space, uint32_t *slot,
                           bool *frame) {
    uint32_t index;
    const struct symbol *symbol = ptxsim_symbol(parser, name, &index);
    *frame = false;
    if (symbol) {
        switch (symbol->kind) {
        case SYM_PARAM:
            *space = SP_PARAM;
            *slot = pool_constant(parser, PTXSIM_PARAM_BASE + symbol->slot);
            return true;
        case SYM_FRAME:
            *space = SP_PARAM;
            *frame = true;
            *slot = pool_constant(parser, PTXSIM_LOCAL_BASE + symbol->slot);
            return true;
        case SYM_LOCAL:
            *space = SP_LOCAL;
            *slot = pool_constant(parser, PTXSIM_LOCAL_BASE + symbol->slot);
            return true;
        case SYM_SHARED:
            *space = SP_SHARED;
            *slot = special_slot(parser, SR_SHARED_SYMBOL, symbol->slot);
            return true;
        case SYM_DYNAMIC:
            *space = SP_SHARED;
            *slot = special_slot(parser, SR_DYNAMIC_SYMBOL, 0);
            return true;
        case SYM_REGISTER:
        case SYM_REGISTERS:
            return false;
        }
    }
    struct variable *variable = ptxsim_variable(parser->module, name);
    if (!variable)
        return false;
    *space = variable->space;
    if (variable->space != SP_SHARED) {
        *slot = pool_constant(parser, variable->address);
    } else if (variable->is_extern) {
        if (variable->align > parser->kernel->dynamic_align)
            parser->kernel->dynamic_align = variable->align;
        parser->kernel->uses_dynamic = true;
        *slot = special_slot(parser, SR_DYNAMIC_SYMBOL, 0);
    } else {
        *slot = special_slot(parser, SR_SHARED_SYMBOL, ptxsim_shared_offset(parser, variable));
    }
    return true;
}

static void memory_operand(struct parser *parser, struct insn *insn, char *text, uint32_t nth) {
    size_t n = strlen(text);
    if (n < 3 || text[0] != '[' || text[n - 1] != ']')
        ptxsim_parse_fail(parser, E_INVALID_PTX, "%s is not an address", text);
    text[n - 1] = 0;
    text++;
    enum ptxsim_space want = (enum ptxsim_space)insn->space[nth && insn->space[1] ? 1 : 0];
    if (nth == 2)
        want = SP_SHARED;
    int64_t offset = 0;
    char *plus = strpbrk(text, "+");
    if (plus) {
        uint64_t value;
        const char *end;
        if (!ptxsim_number(plus + 1, &end, T_B64, &value) || *end)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "bad offset %s", plus + 1);
        offset = (int64_t)value;
        *plus = 0;
    }
    if (nth == 0)
        insn->offset = offset;
    else if (nth < 3)
        insn->offset_more[nth - 1] = offset;
    enum ptxsim_space space;
    uint32_t slot, index;
    bool frame;
    uint64_t value;
    const char *end;
    if (symbol_address(parser, text, &space, &slot, &frame)) {
        bool fits = space == want || (want == SP_GENERIC && (space == SP_GLOBAL || space == SP_CONST)) ||
                    (want == SP_CLUSTER && space == SP_SHARED);
        if (!fits)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "%s is in another address space", text);
        insn->frame = frame;
    } else if (ptxsim_number(text, &end, T_B64, &value) && *end == 0) {
        slot = pool_constant(parser, value);
    } else {
        const struct symbol *symbol = ptxsim_symbol(parser, text, &index);
        if (!symbol || (symbol->kind != SYM_REGISTER && symbol->kind != SYM_REGISTERS))
            ptxsim_parse_fail(parser, E_INVALID_PTX, "%s is not declared", text);
        uint32_t bits = ptxsim_bits((int)symbol->type);
        bool narrow = want == SP_SHARED || want == SP_CLUSTER || want == SP_LOCAL || want == SP_PARAM;
        if (bits != 64 && !(bits == 32 && narrow))
            ptxsim_parse_fail(parser, E_INVALID_PTX, "address register %s has %u bits", text, bits);
        slot = symbol->slot + index;
    }
    insn->s[insn->ns++] = slot;
}

/* Splits at commas outside brackets, in place. */
static uint32_t split(struct parser *parser, char *text, char *out[], uint32_t room) {
    uint32_t n = 0;
    int depth = 0;
    if (!*text)
        return 0;
    out[n++] = text;
    for (; *text; text++) {
        if (*text == '{' || *text == '[' || *text == '(')
            depth++;
        if (*text == '}' || *text == ']' || *text == ')')
            depth--;
        if (*text != ',' || depth)
            continue;
        *text = 0;
        if (n == room)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "too many operands");
        out[n++] = text + 1;
    }
    return n;
}

static uint32_t elements(struct parser *parser, char *text, char *out[8]) {
    size_t n = strlen(text);
    if (n < 2 || text[0] != '{' || text[n - 1] != '}')
        ptxsim_parse_fail(parser, E_INVALID_PTX, "%s is not a vector", text);
    text[n - 1] = 0;
    return split(parser, text + 1, out, 8);
}

static void vector_operand(struct parser *parser, struct insn *insn, char *text, bool write) {
    char *names[8];
    enum ptxsim_type type = (enum ptxsim_type)insn->type[0];
    uint32_t n = 1;
    names[0] = text;
    if (insn->nv) {
        n = elements(parser, text, names);
        if (n != insn->nv)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "a vector of %u is wanted", insn->nv);
    }
    for (uint32_t i = 0; i < n; i++)
        insn->v[i] = write ? destination(parser, insn, names[i], insn->bits, true)
                           : source(parser, insn, names[i], insn->bits, true, type);
    insn->nv = (uint8_t)n;
}

/* Operands of mov: besides scalars, a pack {a,b} on either side and the address of a symbol. */
static void pack_operand(struct parser *parser, struct insn *insn, char *text, bool write) {
    char *names[8];
    uint32_t n = elements(parser, text, names);
    if ((n != 2 && n != 4) || insn->nv || ptxsim_is_float(insn->type[0]))
        ptxsim_parse_fail(parser, E_INVALID_PTX, "this pack is not implemented");
    uint32_t bits = insn->bits / n;
    for (uint32_t i = 0; i < n; i++)
        insn->v[i] = write ? destination(parser, insn, names[i], bits, false)
                           : source(parser, insn, names[i], bits, false, T_B64);
    insn->nv = (uint8_t)n;
}

static void move_source(struct parser *parser, struct insn *insn, char *text) {
    enum ptxsim_space space;
    uint32_t slot;
    bool frame;
    int64_t offset = 0;
    if (*text == '{') {
        pack_operand(parser, insn, text, false);
        return;
    }
    char *plus = strchr(text, '+');
    if (plus) {
        uint64_t value;
        const char *end;
        if (!ptxsim_number(plus + 1, &end, T_B64, &value) || *end)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "bad offset %s", plus + 1);
        *plus = 0;
        offset = (int64_t)value;
    }
    if (symbol_address(parser, text, &space, &slot, &frame)) {
        if (frame || insn->bits < 32)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "the address of %s cannot be taken", text);
        insn->offset = offset;
        insn->s[insn->ns++] = slot;
        return;
    }
    if (plus)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "%s is not a variable", text);
    insn->s[insn->ns++] = source(parser, insn, text, insn->bits, false, (enum ptxsim_type)insn->type[0]);
}

static void predicate_source(struct parser *parser, struct insn *insn, char *text) {
    insn->negate = *text == '!';
    insn->s[insn->ns++] = source(parser, insn, text + (*text == '!'), 1, false, T_PRED);
}

static void paired_destination(struct parser *parser, struct insn *insn, char *text, uint32_t bits) {
    char *second = strchr(text, '|');
    if (second)
        *second = 0;
    insn->d[insn->nd++] = destination(parser, insn, text, bits, false);
    if (second) {
        uint8_t keep = insn->dbits;
        insn->d[insn->nd++] = destination(parser, insn, second + 1, 1, false);
        insn->dbits = keep;
    }
}

static uint32_t argument_list(struct parser *parser, char *text, struct formal *out, uint32_t room) {
    char *names[32];
    size_t n = strlen(text);
    if (n < 2 || text[0] != '(' || text[n - 1] != ')')
        ptxsim_parse_fail(parser, E_INVALID_PTX, "%s is not an argument list", text);
    text[n - 1] = 0;
    uint32_t count = split(parser, text + 1, names, room);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index;
        const struct symbol *symbol = ptxsim_symbol(parser, names[i], &index);
        if (!symbol || symbol->kind != SYM_FRAME)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "argument %s is not a parameter variable", names[i]);
        out[i].offset = symbol->slot;
        out[i].bytes = symbol->count;
    }
    return count;
}

static void call_operands(struct parser *parser, char *parts[], uint32_t n) {
    parser->calls = ptxsim_grow(parser->calls, parser->ncalls, &parser->calls_room, sizeof *parser->calls);
    struct call_site *site = &parser->calls[parser->ncalls++];
    uint32_t at = 0;
    memset(site, 0, sizeof *site);
    site->insn = parser->kernel->ncode;
    site->line = parser->line;
    site->caller = parser->current;
    if (at < n && parts[at][0] == '(')
        site->nresults = argument_list(parser, parts[at++], site->results, 4);
    if (at == n)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "call without a function");
    site->callee = ptxsim_callee(parser, parts[at++]);
    if (at < n)
        site->narguments = argument_list(parser, parts[at++], site->arguments, 32);
    if (at < n)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "indirect calls are not implemented");
}

static void jump_operand(struct parser *parser, const char *name) {
    parser->jumps = ptxsim_grow(parser->jumps, parser->njumps, &parser->jumps_room, sizeof *parser->jumps);
    parser->jumps[parser->njumps].name = ptxsim_copy(name, strlen(name));
    parser->jumps[parser->njumps].insn = parser->kernel->ncode;
    parser->jumps[parser->njumps++].line = parser->line;
}

static void operand(struct parser *parser, struct insn *insn, char letter, char *text, uint32_t *memories) {
    enum ptxsim_type t0 = (enum ptxsim_type)insn->type[0];
    enum ptxsim_type t1 = (enum ptxsim_type)insn->type[1];
    uint32_t bits = insn->bits;
    switch (letter) {
    case 'd':
        insn->d[insn->nd++] = destination(parser, insn, text, bits, false);
        break;
    case 'D':
        insn->d[insn->nd++] = destination(parser, insn, text, 2 * bits, false);
        break;
    case 'r':
        insn->d[insn->nd++] = destination(parser, insn, text, 32, false);
        break;
    case 'q':
        insn->d[insn->nd++] = destination(parser, insn, text, 1, false);
        break;
    case 'Q':
        paired_destination(parser, insn, text, 1);
        break;
    case 'S':
        paired_destination(parser, insn, text, bits);
        break;
    case 'R':
        paired_destination(parser, insn, text, 32);
        break;
    case 'a':
        insn->s[insn->ns++] = source(parser, insn, text, bits, false, t0);
        break;
    case 'A':
        insn->s[insn->ns++] = source(parser, insn, text, 2 * bits, false, T_B64);
        break;
    case 'b':
        insn->s[insn->ns++] = source(parser, insn, text, ptxsim_bits((int)t1), false, t1);
        break;
    case 'B':
        insn->s[insn->ns++] = source(parser, insn, text, ptxsim_bits((int)t1), true, t1);
        break;
    case 'u':
        insn->s[insn->ns++] = source(parser, insn, text, 32, false, T_U32);
        break;
    case 'g':
        insn->s[insn->ns++] = source(parser, insn, text, 64, false, T_U64);
        break;
    case 'p':
        predicate_source(parser, insn, text);
        break;
    case 'x':
        if (insn->nv || insn->bytes)
            vector_operand(parser, insn, text, true);
        else
            insn->d[insn->nd++] = destination(parser, insn, text, bits, true);
        break;
    case 'X':
        vector_operand(parser, insn, text, false);
        break;
    case 'k':
        if (*text == '{')
            pack_operand(parser, insn, text, true);
        else
            insn->d[insn->nd++] = destination(parser, insn, text, bits, false);
        break;
    case 'K':
        move_source(parser, insn, text);
        break;
    case 'm':
        memory_operand(parser, insn, text, (*memories)++);
        break;
    case 'i': {
        uint64_t value;
        const char *end;
        if (!ptxsim_number(text, &end, T_B64, &value) || *end)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "%s is not a constant", text);
        insn->immediate = (uint32_t)value;
        break;
    }
    case 'l':
        jump_operand(parser, text);
        break;
    default:
        break;
    }
}

static const struct ptxsim_row *find_row(struct parser *parser, const char *opcode, uint32_t operands) {
    bool root = false, form = false;
    for (const struct ptxsim_row *row = ptxsim_rows; row->pattern; row++) {
        if (!match_root(row->pattern, opcode))
            continue;
        root = true;
        if (!match(row->pattern, opcode))
            continue;
        form = true;
        if (row->operands[0] == 'c' || count_fits(row->operands, operands))
            return row;
    }
    ptxsim_parse_fail(parser, E_INVALID_PTX, "%s %s",
                      form   ? "wrong number of operands for"
                      : root ? "these modifiers are not implemented:"
                             : "unknown instruction",
                      opcode);
}

/* An instruction without its operands. */
static struct insn form_of(struct parser *parser, const char *opcode, uint32_t operands) {
    struct insn insn = {0};
    const struct ptxsim_row *row = find_row(parser, opcode, operands);
    if (row->isa > parser->module->version)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "%s needs PTX %u.%u", opcode, row->isa / 10, row->isa % 10);
    if (row->sm > parser->module->target && row->sm > 50)
        ptxsim_parse_fail(parser, E_INVALID_PTX, "%s needs target sm_%u", opcode, row->sm);
    insn.row = row;
    insn.exec = row->exec;
    insn.pure = row->pure;
    insn.guard = SLOT_NONE;
    uint32_t ntypes = 0, nspaces = 0;
    const char *token = opcode + strcspn(opcode, ".");
    for (size_t length; (length = token_length(token)) != 0; token += length)
        note_modifier(parser, &insn, token, length, &ntypes, &nspaces);
    insn.bits = (uint8_t)ptxsim_bits(insn.type[0]);
    insn.shift = (uint8_t)(insn.bits < 64 ? 64 - insn.bits : 0);
    insn.mask = insn.bits < 64 ? (1ull << insn.bits) - 1 : ~0ull;
    insn.bytes = strchr(row->operands, 'm') ? (uint8_t)(insn.bits / 8) : 0;
    return insn;
}

/* form_of(), which is slow, once for each opcode: a program may load thousands of texts. */
static struct insn known_form(struct parser *parser, const char *opcode, uint32_t operands) {
    enum { FORMS = 4096 };
    static struct form {
        char opcode[64];
        uint32_t operands, version, target;
        struct insn insn;
    } * forms[FORMS];
    const uint32_t version = parser->module->version, target = parser->module->target;
    uint32_t hash = operands + 31 * version + 961 * target;
    for (const char *c = opcode; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619;
    struct form **at = &forms[(hash ^ hash >> 16) % FORMS];
    const struct form *known = *at;
    if (known && known->operands == operands && known->version == version && known->target == target &&
        strcmp(known->opcode, opcode) == 0)
        return known->insn;
    struct insn insn = form_of(parser, opcode, operands);
    if (!*at)
        *at = calloc(1, sizeof **at);
    if (!*at)
        abort();
    if (strlen(opcode) < sizeof known->opcode) {
        strcpy((*at)->opcode, opcode);
        (*at)->operands = operands, (*at)->version = version, (*at)->target = target;
        (*at)->insn = insn;
    }
    return insn;
}

void ptxsim_decode(struct parser *parser, const char *opcode, char *operands, const char *guard) {
    char *parts[PARSE_OPERANDS];
    uint32_t n = split(parser, operands, parts, PARSE_OPERANDS), memories = 0, at = 0;
    struct insn insn = known_form(parser, opcode, n);
    const struct ptxsim_row *row = insn.row;
    insn.line = parser->line;
    if (row->operands[0] == 'c') {
        call_operands(parser, parts, n);
    } else {
        for (const char *letter = row->operands; at < n; letter++)
            if (*letter != '?')
                operand(parser, &insn, *letter, parts[at++], &memories);
    }
    for (uint32_t i = 0; i < insn.ns; i++)
        if (insn.s[i] == SLOT_NONE && strncmp(opcode, "mov.", 4) != 0)
            ptxsim_parse_fail(parser, E_INVALID_PTX, "a clock can only be read by mov");
    if (*guard) {
        uint32_t have;
        insn.guard = register_slot(parser, guard + 1, 1, false, &have);
        insn.guard_not = *guard == '!';
    }
    struct kernel *kernel = parser->kernel;
    kernel->code = ptxsim_grow(kernel->code, kernel->ncode, &kernel->code_room, sizeof *kernel->code);
    kernel->code[kernel->ncode++] = insn;
}
