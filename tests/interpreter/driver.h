/* Objects behind the driver's handles, and the functions that begin and end every exported entry point. */
#ifndef PTXSIM_DRIVER_H
#define PTXSIM_DRIVER_H

#include "ptxsim.h"

/* The ABI's types; handles are pointers to objects that only this library sees inside. */
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef unsigned long long CUdeviceptr;

struct CUctx_st {
    bool primary, alive;
    uint32_t retained;
    int device;
    int sticky; /* error that every later call returns */
    CUcontext next;
};

struct CUmod_st {
    struct module *module;
    CUcontext context;
    CUmodule next;
};

struct CUfunc_st {
    struct kernel *kernel;
    CUmodule owner;
    CUfunction next;
};

struct CUstream_st {
    CUcontext context;
    CUstream next;
};

struct CUevent_st {
    CUcontext context;
    bool recorded;
    uint64_t ns;
    CUevent next;
};

void ptxsim_lock(void);
void ptxsim_unlock(void);
/* Takes the lock and finds the current context; returns an error that the call must give instead, if any. */
int ptxsim_enter(CUcontext *context);
bool ptxsim_stream_ok(CUstream stream);
void ptxsim_drop_modules(CUcontext context);

#endif
