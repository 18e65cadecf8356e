/* A stand-in for the CUDA driver, on host memory. It is handed to gpuloss_create as a symbol source; it records
 * every request, fails on demand, and notes every call that a real driver would not have taken. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#ifndef GPULOSSI_SHARED
#define GPULOSSI_SHARED
#endif
#include "../../gpuloss.h"

enum {
    FAKE_DEVICES = 2,
    FAKE_CONTEXTS = 4, /* first the primary contexts of the devices, then those that a program made itself */
    FAKE_RECORDS = 1024,
    FAKE_PREPARED = 64,
    FAKE_CLUSTER_SIZES = 17, /* 0 to 16 blocks */
    FAKE_WIDE_BLOCK = 384
};

struct CUctx_st {
    int device;
    int retained; /* primary contexts: how often */
};

typedef struct fake_memory {
    uint64_t base; /* 0: freed */
    size_t bytes;
    struct CUctx_st *context;
    int release_failed; /* a call to free it was made to fail: its remaining is not the library's fault */
} fake_memory;

typedef struct fake_module {
    struct CUctx_st *context;
    char *ptx;                      /* as it was given */
    char entry[64], real_entry[64]; /* by which tests call it, and that of its text */
    uint32_t words[2];              /* that the library wrote into its text */
    unsigned most_threads;          /* of a block */
    int live, release_failed;
    int waits;        /* its text waits for the kernel before it, by an instruction and not in a comment */
    int is_new;       /* it is for GPUs that have clusters, ... */
    int smem_rows;    /* it has rows in shared memory ... */
    int for_clusters; /* ... and is launched in them */
    int occupancies;  /* queries for the blocks that a multiprocessor takes */
    unsigned shared_bytes_allowed;
    int shared_bytes_set; /* the requested bytes; 0: nothing */
    int non_portable_allowed;
} fake_module;

typedef struct fake_launched {
    char entry[64];
    const fake_module *module;
    unsigned grid, block, shared_bytes;
    unsigned cluster; /* blocks; 0: launched without clusters */
    int dependent;    /* it may come to the GPU before the one before it has ended */
    struct CUstream_st *stream;
    union {
        gpulossi_rows rows; /* every parameter struct begins with it */
        gpulossi_cross_entropy cross_entropy;
        gpulossi_kl_div kl_div;
        gpulossi_kl_div_sparse kl_div_sparse;
    } parameters;
} fake_launched;

typedef struct fake_filled {
    uint64_t base;
    size_t bytes;
    unsigned value;
    struct CUstream_st *stream;
    int finished;        /* its stream was waited for */
    int launches_before; /* how many launches had been made */
} fake_filled;

struct fake_driver {
    /* The machine that it plays. fake_reset has the defaults. */
    int driver_version, devices, major, minor, multiprocessors;
    int blocks_small;               /* resident blocks, ... */
    int blocks_shared, blocks_less; /* ... of kernels with shared memory, and of kernels with less of it */
    int has_clusters, shared_optin;
    int active_clusters[FAKE_CLUSTER_SIZES];
    int wide_clusters[FAKE_CLUSTER_SIZES]; /* of wide blocks, and of others with as much shared memory, ... */
    int row_clusters[FAKE_CLUSTER_SIZES];  /* ... and of the larger ones with weights in shared memory */
    int capturing;
    uint64_t unknown_at, unknown_bytes; /* addresses of no memory; all others are of memory */
    int pointer_type, pointer_managed, pointer_gpu;
    const char *missing[4]; /* symbols it does not have */
    const char *log;        /* of a module load that fails */

    /* Calls that fail: the fail_at-th (1: the next), or from there on; or every call of one symbol. */
    long fail_at;
    int fail_from_there_on;
    const char *fail_symbol;
    const char *fail_entry; /* of a kernel: launching it */
    int fail_attribute;     /* of a device or a function: getting it, or setting it */
    int fail_code;
    long fail_malloc_at;

    /* Records of calls. */
    long calls, mallocs;
    const char *failed;   /* symbol of the last call that was made to fail ... */
    int failed_attribute; /* ... and the attribute that it was about */
    int launches, fills, modules, memories, streams_live, mallocs_live;
    gpulossi_cross_entropy prepared[FAKE_PREPARED]; /* of prepare kernels that wait for the launch they were made for */
    int prepares;
    int pushes, pops, retains, releases, synchronizes;
    long loads; /* module loads that were tried */
    fake_launched launch[FAKE_RECORDS];
    fake_filled fill[FAKE_RECORDS];
    fake_module module[FAKE_RECORDS];
    fake_memory memory[FAKE_RECORDS];
    struct CUctx_st context[FAKE_CONTEXTS];
    char violation[256]; /* the first thing that a real driver would have refused */
};
extern struct fake_driver fake;

void fake_reset(void);
/* The symbol function of a gpuloss_create_desc, and a desc with it. */
void *fake_symbol(void *user, const char *name);
gpuloss_create_desc fake_desc(void);
/* The calling thread's current context, its stack emptied. */
void fake_set_current(struct CUctx_st *context);
struct CUctx_st *fake_current(void);
/* Depth of the calling thread's stack of contexts. */
int fake_depth(void);
/* Modules, allocations, streams, primary contexts and host memory that are still allocated. */
int fake_leaks(void);
int fake_live_modules(void);
/* The threads of a block of the kernel of that name, where clusters or rows in shared memory decide them; else 256. */
unsigned fake_threads_of(const char *entry);
/* Whether the kernel of that name is one for clusters of blocks. */
int fake_is_for_clusters(const char *entry);
/* The library's host memory. */
void *fake_malloc(size_t bytes);
void fake_free(void *pointer);

#endif
