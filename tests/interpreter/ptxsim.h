/* Internals of the PTX interpreter that plays libcuda.
 *
 *   instructions.def   one row an instruction form: syntax, operands, executor
 *   parse.c            module text: directives, variables, functions
 *   decode.c           one instruction line to one struct insn, by the rows
 *   execute_*.c        executors: what an instruction does, one warp at a time
 *   math.c             single operations with exact rounding
 *   run.c              scheduler: lanes, warps, blocks, clusters, and faults
 *   memory.c shared.c  allocations, address spaces, shadows
 *   mbarrier.c         mbarriers, and the copies that complete at them
 *   device.c           the devices that can be simulated
 *   driver*.c          exported driver entry points
 */
#ifndef PTXSIM_H
#define PTXSIM_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PTXSIM_EXPORT __attribute__((visibility("default")))

enum { PTXSIM_WARP = 32, PTXSIM_FULL_BARRIERS = 16, PTXSIM_CALL_DEPTH = 16, PTXSIM_CLUSTER_MAX = 16 };

/* Real CUresult values. */
enum ptxsim_error {
    E_OK = 0,
    E_INVALID_VALUE = 1,
    E_OUT_OF_MEMORY = 2,
    E_NOT_INITIALIZED = 3,
    E_NO_DEVICE = 100,
    E_INVALID_DEVICE = 101,
    E_INVALID_IMAGE = 200,
    E_INVALID_CONTEXT = 201,
    E_NO_BINARY = 209,
    E_INVALID_PTX = 218,
    E_UNSUPPORTED_PTX_VERSION = 222,
    E_INVALID_HANDLE = 400,
    E_NOT_FOUND = 500,
    E_NOT_READY = 600,
    E_ILLEGAL_ADDRESS = 700,
    E_OUT_OF_RESOURCES = 701,
    E_TIMEOUT = 702,
    E_CONTEXT_DESTROYED = 709,
    E_ILLEGAL_INSTRUCTION = 715,
    E_MISALIGNED = 716,
    E_INVALID_ADDRESS_SPACE = 717,
    E_LAUNCH_FAILED = 719,
    E_NOT_SUPPORTED = 801,
    E_CLUSTER_SIZE = 912
};

enum ptxsim_type {
    T_NONE,
    T_PRED,
    T_B8,
    T_B16,
    T_B32,
    T_B64,
    T_B128,
    T_U8,
    T_U16,
    T_U32,
    T_U64,
    T_S8,
    T_S16,
    T_S32,
    T_S64,
    T_F16,
    T_F16X2,
    T_BF16,
    T_BF16X2,
    T_F32,
    T_F64
};

enum ptxsim_space { SP_GENERIC, SP_GLOBAL, SP_SHARED, SP_CLUSTER, SP_LOCAL, SP_PARAM, SP_CONST };

enum ptxsim_round { RND_NONE, RND_RN, RND_RZ, RND_RM, RND_RP, RND_RNI, RND_RZI, RND_RMI, RND_RPI, RND_RNA };

/* Modifiers that only switch something on. */
enum ptxsim_flag {
    F_FTZ = 1 << 0,
    F_SAT = 1 << 1,
    F_APPROX = 1 << 2,
    F_NAN = 1 << 3,
    F_VOLATILE = 1 << 4,
    F_XORSIGN = 1 << 5,
    F_ALIGNED = 1 << 6,
    F_RELU = 1 << 7,
    F_TO = 1 << 8,
    F_FULL = 1 << 9,
    F_CC = 1 << 10
};

/* Modifiers whose meaning depends on the instruction are stored as themselves, in order, in insn.op[]. */
enum ptxsim_op {
    OP_NONE,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_LO,
    OP_LS,
    OP_HI,
    OP_HS,
    OP_EQU,
    OP_NEU,
    OP_LTU,
    OP_LEU,
    OP_GTU,
    OP_GEU,
    OP_NUM,
    OP_NAN,
    OP_AND,
    OP_OR,
    OP_XOR,
    OP_WIDE,
    OP_UP,
    OP_DOWN,
    OP_BFLY,
    OP_IDX,
    OP_ALL,
    OP_ANY,
    OP_UNI,
    OP_BALLOT,
    OP_ADD,
    OP_MIN,
    OP_MAX,
    OP_INC,
    OP_DEC,
    OP_EXCH,
    OP_CAS,
    OP_POPC,
    OP_CLAMP,
    OP_WRAP,
    OP_L,
    OP_R,
    OP_F4E,
    OP_B4E,
    OP_RC8,
    OP_ECL,
    OP_ECR,
    OP_RC16,
    OP_FINITE,
    OP_INFINITE,
    OP_NUMBER,
    OP_NOTANUMBER,
    OP_NORMAL,
    OP_SUBNORMAL,
    OP_SHIFTAMT,
    OP_ARRIVE,
    OP_WAIT,
    OP_RED,
    OP_SYNC
};

struct warp;
struct insn;

/* The scheduler's next step after an executor returns. */
enum ptxsim_next {
    NEXT,       /* every lane of the group goes on to the following instruction */
    RESCHEDULE, /* the executor has set the lanes' program counters or states itself */
    YIELD       /* likewise, and other warps are to run first */
};

typedef enum ptxsim_next ptxsim_exec(struct warp *w, const struct insn *i, uint32_t mask);

struct ptxsim_row {
    uint16_t isa, sm;
    const char *pattern;
    const char *operands;
    ptxsim_exec *exec;
    bool pure; /* destination is defined exactly where all sources are */
};

/* Register slots hold 32 lanes of 64 bits, zero-extended. A slot with this bit lives in the kernel's constant pool. */
#define SLOT_POOL 0x80000000u
#define SLOT_NONE 0x7fffffffu

struct insn {
    ptxsim_exec *exec;
    const struct ptxsim_row *row;
    uint64_t mask;          /* value bits of the first type */
    int64_t offset;         /* of the first address, or a clock's name */
    int64_t offset_more[2]; /* of the second and third */
    uint32_t immediate;
    uint32_t guard;
    uint32_t line;
    uint32_t flags;
    uint32_t target; /* of a branch or call */
    uint32_t d[2];   /* destinations */
    uint32_t s[5];   /* sources; of a memory operand the base register */
    uint32_t v[8];   /* elements of a vector operand */
    uint32_t copy;   /* first argument copy of a call */
    uint8_t ncopy, ncopy_back;
    uint8_t nd, ns, nv;
    uint8_t type[2];
    uint8_t bits, shift; /* width of the first type, and 64 minus it */
    uint8_t dbits;       /* width of the destination register */
    uint8_t round;
    uint8_t space[2];
    uint8_t op[3];
    uint8_t nop;
    uint8_t bytes;  /* bytes of one memory element */
    bool guard_not; /* guard is inverted */
    bool negate;    /* the predicate source is inverted */
    bool frame;     /* param space of a function call: stored in the thread's frame */
    bool pure;
    bool hit;
    bool implicit; /* the end of a body: no line of the text */
};

/* Values that a warp's registers hold from the start: special registers and shared addresses. */
enum ptxsim_special {
    SR_TID_X,
    SR_TID_Y,
    SR_TID_Z,
    SR_NTID_X,
    SR_NTID_Y,
    SR_NTID_Z,
    SR_CTAID_X,
    SR_CTAID_Y,
    SR_CTAID_Z,
    SR_NCTAID_X,
    SR_NCTAID_Y,
    SR_NCTAID_Z,
    SR_LANEID,
    SR_WARPID,
    SR_NWARPID,
    SR_SMID,
    SR_NSMID,
    SR_GRIDID,
    SR_MASK_EQ,
    SR_MASK_LT,
    SR_MASK_LE,
    SR_MASK_GT,
    SR_MASK_GE,
    SR_CLUSTERID_X,
    SR_CLUSTERID_Y,
    SR_CLUSTERID_Z,
    SR_NCLUSTERID_X,
    SR_NCLUSTERID_Y,
    SR_NCLUSTERID_Z,
    SR_CLUSTER_CTAID_X,
    SR_CLUSTER_CTAID_Y,
    SR_CLUSTER_CTAID_Z,
    SR_CLUSTER_NCTAID_X,
    SR_CLUSTER_NCTAID_Y,
    SR_CLUSTER_NCTAID_Z,
    SR_CLUSTER_CTARANK,
    SR_CLUSTER_NCTARANK,
    SR_IS_EXPLICIT_CLUSTER,
    SR_DYNAMIC_SMEM,
    SR_TOTAL_SMEM,
    SR_STATIC_COUNT,
    SR_CLOCK = SR_STATIC_COUNT,
    SR_CLOCK_HI,
    SR_CLOCK64,
    SR_GLOBALTIMER,
    SR_GLOBALTIMER_LO,
    SR_GLOBALTIMER_HI,
    SR_SHARED_SYMBOL,
    SR_DYNAMIC_SYMBOL
};

struct special {
    uint32_t slot;
    enum ptxsim_special id;
    uint64_t value;
};

struct argument_copy {
    uint32_t from, to, bytes;
};

struct kernel {
    char *name;
    struct module *module;
    struct insn *code;
    uint32_t ncode, code_room, entry;
    uint32_t nslots;
    uint64_t *pool;
    uint32_t npool, pool_room;
    struct special *specials;
    uint32_t nspecials, specials_room;
    struct argument_copy *copies;
    uint32_t ncopies, copies_room;
    uint32_t param_bytes, param_count;
    uint32_t *param_offset, *param_size;
    uint32_t shared_bytes, local_bytes, const_bytes;
    uint32_t dynamic_align;
    uint32_t max_ntid, req_ntid[3], req_cluster[3], max_cluster_rank;
    bool uses_dynamic;
    bool nonportable_cluster; /* function attributes set by the driver API */
    uint32_t max_dynamic;
    struct kernel *next;
};

struct variable {
    char *name;
    enum ptxsim_space space;
    uint64_t address; /* in the space; device address of global and const variables */
    uint64_t bytes;
    uint32_t align;
    bool is_extern;
    struct variable *next;
};

/* A function is decoded anew into each kernel that calls it, so remember its text only. */
struct function {
    char *name;
    size_t text;
    uint32_t line;
    bool is_entry, has_body;
    struct function *next;
};

struct module {
    char *text;
    size_t size;
    const char **lines;
    uint32_t nlines;
    uint32_t version, target;
    struct kernel *kernels;
    struct variable *variables;
    struct function *functions;
    struct module *next;
};

/* Asynchronous writes to shared memory: copies of groups that nobody has waited for, and copies of mbarriers under
 * way. */
struct copies {
    struct pending_copy *at;
    uint32_t count, room;
};

struct mbarrier;

/* Every mbarrier of the present blocks, of which shared memory holds the number. */
struct mbarriers {
    struct mbarrier *at;
    uint32_t count, room;
    bool changed;  /* since the scheduler looked last */
    uint32_t idle; /* rounds of the scheduler in which every warp waited and nothing changed */
};

/* Interpreter's view of one kernel launch. */
struct launch {
    struct kernel *kernel;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t dynamic_bytes;
    bool dependent; /* the kernels before it in its stream may still run */
    uint8_t *params;
    uint64_t steps, step_limit; /* warp instructions of the present blocks */
    uint64_t instructions;
    uint64_t random;
    jmp_buf escape;
    int error;
    uint32_t nctas;
    struct cta *ctas;
    uint32_t cluster_arrived, cluster_phase;
    struct copies pending; /* for an mbarrier */
    struct mbarriers mbarriers;
};

struct barrier {
    uint32_t arrived; /* threads */
    uint32_t expected;
    uint32_t pc;
    uint32_t votes;
};

struct shared_cell;

struct cta {
    struct launch *launch;
    uint32_t index[3];
    uint32_t rank;
    uint32_t threads, nwarps, live;
    uint32_t shared_bytes;
    uint8_t *shared;
    uint8_t *shared_init;
    struct shared_cell *cells;
    uint32_t block_barrier, cluster_barrier; /* when the last one was, see shared.c */
    struct barrier barriers[PTXSIM_FULL_BARRIERS];
    struct warp *warps;
    uint32_t *order;
};

struct warp {
    uint64_t *regs;
    uint32_t *def; /* a bit a lane: the register has been written */
    const uint64_t *pool;
    struct cta *cta;
    struct launch *launch;
    struct kernel *kernel;
    uint32_t index; /* in the block */
    uint32_t exists, exited;
    uint32_t waited; /* lanes that know the kernels before this one to have ended */
    uint32_t runnable, at_bar, at_sync, at_warpbar, at_cluster;
    uint32_t cur, cur_pc, next_pc;
    uint32_t pc[PTXSIM_WARP];
    uint32_t bar_id[PTXSIM_WARP];
    uint32_t warpbar_mask[PTXSIM_WARP];
    uint32_t stack[PTXSIM_WARP][PTXSIM_CALL_DEPTH];
    uint8_t depth[PTXSIM_WARP];
    uint32_t carry; /* condition code of add.cc and friends */
    uint8_t *local, *local_init;
    uint32_t clock, full_sync;
    uint32_t pair_sync[PTXSIM_WARP][PTXSIM_WARP];
    bool has_pairs;
    struct copies pending;             /* of groups */
    uint32_t async_group[PTXSIM_WARP]; /* groups of asynchronous copies that each lane has committed */
    uint32_t cluster_arrived;          /* lanes between arriving at the cluster barrier and leaving it */
    uint32_t cluster_phase[PTXSIM_WARP];
    uint32_t (*seen)[PTXSIM_WARP]; /* by mbarrier: phases that each lane knows to be complete */
    uint32_t nseen, seen_room;
    bool seen_differ;                  /* between lanes */
    uint32_t fence_clock[PTXSIM_WARP]; /* of each lane's last proxy fence */
    uint32_t fence_time[PTXSIM_WARP];
    uint32_t since_wait; /* instructions since a wait for an mbarrier failed */
    uint32_t wait_pc, wait_lane, wait_for;
    bool others_first; /* after a failed wait, the other ones of its diverged lanes run first */
};

/* run.c */
void ptxsim_run(struct launch *launch);
_Noreturn void ptxsim_fault(struct warp *w, const struct insn *i, int lane, int code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void ptxsim_barrier_check(struct cta *cta, uint32_t id);
void ptxsim_leave(struct warp *w, uint32_t mask);
void ptxsim_advance(struct warp *w, uint32_t mask, uint32_t pc);
uint64_t ptxsim_random(struct launch *launch);
extern char ptxsim_fault_text[2048];
extern uint64_t ptxsim_total_instructions;
extern double ptxsim_total_seconds;

/* executed.c: notes the instructions that a module has executed before it is freed; appends `kernel line executed text`
 * for each noted instruction to the file that the environment names. */
void ptxsim_note_executed(const struct module *module);
void ptxsim_write_executed(void);

/* parse.c */
struct parse_error {
    char text[1024];
    int code;
};
struct module *ptxsim_parse(const char *text, struct parse_error *error);
void ptxsim_module_free(struct module *module);
/* Room for one item more; never null. */
void *ptxsim_grow(void *items, uint32_t count, uint32_t *room, size_t size);
int ptxsim_line_text(const struct module *module, uint32_t line, const char **text);

/* device.c */
enum { PTXSIM_MOST_DEVICES = 8 };

struct device {
    const char *name;
    uint32_t sm; /* 10 * major + minor */
    uint32_t threads_per_block, threads_per_sm, blocks_per_sm;
    uint32_t shared_per_block, shared_optin, shared_per_sm, shared_reserved;
    uint32_t cluster_portable, cluster_max;
    uint32_t l2_bytes, clock_khz, memory_khz, bus_bits;
    uint32_t sms;                 /* set from the environment */
    uint32_t devices;             /* likewise: how many alike there are, over one memory */
    uint64_t memory;              /* likewise */
    uint64_t steps, seed, approx; /* likewise */
    int driver_version;           /* likewise */
    const char *coverage;         /* likewise: file for the lines that were executed */
    const char *fault;            /* likewise: folder of faults to plant in kernels that are loaded */
    bool speed;                   /* likewise: print the instructions a second at the end */
};
extern struct device ptxsim_device;
bool ptxsim_device_init(void);
int ptxsim_device_attribute(int attribute, int *value);
uint32_t ptxsim_driver_isa(void);

/* memory.c: the shadow has one byte for each byte of device memory. */
enum { SH_OPEN = 1, SH_INIT = 2, SH_CONST = 4, SH_READ = 8 /* by a copy under way */ };
#define PTXSIM_DEVICE_BASE 0x700000000000ull
#if defined(_WIN32) /* where memory is not had for nothing */
#define PTXSIM_DEVICE_SPAN (1ull << 31)
#else
#define PTXSIM_DEVICE_SPAN (1ull << 36)
#endif
#define PTXSIM_LOCAL_GENERIC 0x6d0000000000ull
#define PTXSIM_SHARED_GENERIC 0x6e0000000000ull
#define PTXSIM_PARAM_GENERIC 0x6c0000000000ull
#define PTXSIM_WINDOW 0x10000000000ull
#define PTXSIM_SHARED_STEP 0x01000000u
#define PTXSIM_LOCAL_BASE 0x1000u
#define PTXSIM_PARAM_BASE 0x1000u
extern uint8_t *ptxsim_arena, *ptxsim_shadow;
int ptxsim_memory_init(void);
/* owner: the context, or null for a module's own variables. */
int ptxsim_alloc(uint64_t bytes, const void *owner, uint64_t *address);
/* Whether an address lies in an allocation, and which. */
bool ptxsim_allocation_of(uint64_t address, uint64_t *start, uint64_t *bytes, const void **owner);
void ptxsim_free_owned(const void *owner);
int ptxsim_free(uint64_t address);
uint64_t ptxsim_memory_used(void);
int ptxsim_host_range(uint64_t address, uint64_t bytes, uint8_t **data, uint8_t **shadow);
void ptxsim_mark(uint64_t address, uint64_t bytes, uint8_t state);
void ptxsim_mark_read(uint64_t address, uint64_t bytes, bool under_way);

enum ptxsim_access { ACC_LOAD, ACC_STORE, ACC_ATOMIC, ACC_MBARRIER };

/* Resolves and checks one lane's access; a fault does not return. */
uint8_t *ptxsim_access(struct warp *w, const struct insn *i, int lane, enum ptxsim_space space, uint64_t address,
                       uint32_t bytes, enum ptxsim_access access, uint8_t **local_init);
enum ptxsim_space ptxsim_generic_space(uint64_t address);
/* These lanes access memory before griddepcontrol.wait: a fault if one of them means global memory. */
void ptxsim_early(struct warp *w, const struct insn *i, uint32_t mask, enum ptxsim_space space, uint32_t base,
                  int64_t offset);

/* shared.c */
int ptxsim_shared_new(struct cta *cta, uint32_t bytes);
void ptxsim_shared_reset(struct cta *cta);
void ptxsim_shared_free(struct cta *cta);
void ptxsim_shared_touch(struct warp *w, const struct insn *i, int lane, struct cta *owner, uint32_t offset,
                         uint32_t bytes, enum ptxsim_access access);
/* The states of a byte in shared_init. */
enum { SHARED_UNWRITTEN, SHARED_WRITTEN, SHARED_PENDING, SHARED_MBARRIER };
void ptxsim_shared_barrier(struct cta *cta);
void ptxsim_shared_cluster_barrier(struct cta *cta);
void ptxsim_shared_sync(struct warp *w, uint32_t mask);
void ptxsim_shared_order(struct warp *w, int lane, uint32_t other, uint32_t clock);
void ptxsim_shared_fence(struct warp *w, uint32_t mask);
void ptxsim_shared_proxy(struct warp *w, const struct insn *i, int lane, uint64_t address, uint32_t bytes);
void ptxsim_shared_copied(struct cta *owner, uint32_t offset, uint32_t bytes, uint32_t mbarrier, uint32_t phase);

/* mbarrier.c */
/* Waited for either by the lane that issued it, through its group, or by anybody through an mbarrier. */
struct pending_copy {
    struct cta *owner;
    uint32_t offset, bytes;
    uint32_t lane, group;
    uint32_t mbarrier, phase;
    uint64_t source;     /* device address, or zero */
    struct warp *sender; /* of data from shared memory or registers, at its time; or null */
    uint32_t clock;
};
void ptxsim_mbarrier_new(struct warp *w, int lane, struct cta *owner, uint32_t offset, uint32_t count);
struct mbarrier *ptxsim_mbarrier(struct launch *launch, const struct cta *owner, uint32_t offset);
void ptxsim_mbarrier_end(struct warp *w, const struct insn *i, int lane, struct mbarrier *b);
void ptxsim_mbarrier_fence(struct warp *w, uint32_t mask);
uint32_t ptxsim_mbarrier_update(struct warp *w, const struct insn *i, int lane, struct mbarrier *b, uint32_t arrivals,
                                int64_t expect, int64_t complete);
void ptxsim_mbarrier_copy(struct warp *w, const struct insn *i, int lane, struct mbarrier *b, struct pending_copy copy,
                          bool proxy);
bool ptxsim_mbarrier_wait(struct warp *w, int lane, struct mbarrier *b, uint32_t value, bool parity, bool *strangers);
void ptxsim_mbarrier_deliver(struct warp *w, const struct insn *i, int lane, struct mbarrier *b);
bool ptxsim_mbarrier_seen(const struct warp *w, int lane, uint32_t number, uint32_t phase);
void ptxsim_mbarrier_sync(struct warp *w, uint32_t mask);
void ptxsim_mbarrier_block(struct cta *cta);
void ptxsim_mbarrier_idle(struct launch *launch);
void ptxsim_mbarrier_exit(struct warp *w, const struct insn *i, int lane);
void ptxsim_mbarrier_clear(struct launch *launch);

/* decode.c */
extern const struct ptxsim_row ptxsim_rows[];

/* execute_memory.c */
uint64_t ptxsim_atomic_result(const struct insn *i, uint64_t old, uint64_t b, uint64_t c, bool is_global);

/* execute_cluster.c */
void ptxsim_cluster_check(struct launch *launch);

/* math.c */
uint32_t ptxsim_f32_add(uint32_t a, uint32_t b, int round);
uint32_t ptxsim_f32_mul(uint32_t a, uint32_t b, int round);
uint32_t ptxsim_f32_fma(uint32_t a, uint32_t b, uint32_t c, int round);
uint32_t ptxsim_f32_div(uint32_t a, uint32_t b, int round);
uint32_t ptxsim_f32_sqrt(uint32_t a, int round);
uint64_t ptxsim_f64_add(uint64_t a, uint64_t b, int round);
uint64_t ptxsim_f64_mul(uint64_t a, uint64_t b, int round);
uint64_t ptxsim_f64_fma(uint64_t a, uint64_t b, uint64_t c, int round);
uint64_t ptxsim_f64_div(uint64_t a, uint64_t b, int round);
uint64_t ptxsim_f64_sqrt(uint64_t a, int round);
float ptxsim_half_to_float(uint32_t h);
uint32_t ptxsim_float_to_half(uint32_t bits);
uint32_t ptxsim_double_to_half(double x, int round);
double ptxsim_fma_odd(double a, double b, double c);
uint32_t ptxsim_double_to_bf16(double x, int round);
uint64_t ptxsim_convert(uint64_t value, int from, int to, int round, uint32_t flags);

static inline uint32_t ptxsim_bits(int type) {
    static const uint8_t bits[] = {0, 1, 8, 16, 32, 64, 128, 8, 16, 32, 64, 8, 16, 32, 64, 16, 32, 16, 32, 32, 64};
    return bits[type];
}
static inline bool ptxsim_is_signed(int type) {
    return type >= T_S8 && type <= T_S64;
}
static inline bool ptxsim_is_float(int type) {
    return type >= T_F16;
}

static inline const uint64_t *ptxsim_source(const struct warp *w, uint32_t slot) {
    return (slot & SLOT_POOL ? w->pool : w->regs) + (size_t)(slot & ~SLOT_POOL) * PTXSIM_WARP;
}
static inline uint32_t ptxsim_defined(const struct warp *w, uint32_t slot) {
    return slot & SLOT_POOL ? ~0u : w->def[slot];
}
static inline void ptxsim_define(struct warp *w, uint32_t slot, uint32_t mask, uint32_t defined) {
    w->def[slot] = (w->def[slot] & ~mask) | (defined & mask);
}

#endif
