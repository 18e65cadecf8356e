/* Launches of a stream that follow each other: programmatic dependent launch. The blocks of a kernel may come to the GPU
 * while the last ones of the kernel before it still run, so that its beginning costs no time of its own. For older GPUs
 * these instructions are comments in the PTX. */
#ifndef GPULOSSI_PDL_CUH
#define GPULOSSI_PDL_CUH

#include "vec16.cuh"

/* The kernels before this one in its stream have ended, and all that they have written is there. Every kernel comes here
 * before it touches memory. */
DEVICE void wait_for_earlier() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* The blocks of the next kernel may come when all blocks of this one have been here or have ended. It waits for the end of
 * this kernel all the same, so this is a matter of time only. */
DEVICE void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

#endif
