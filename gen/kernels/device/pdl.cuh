/* Programmatic dependent launch. The blocks of a kernel may start while the last blocks of the previous kernel of the
 * stream still run, which hides the start. For older GPUs these instructions are comments in the PTX. */
#ifndef GPULOSSI_PDL_CUH
#define GPULOSSI_PDL_CUH

#include "vec16.cuh"

/* Waits until the earlier kernels of the stream have ended and their writes are visible. Every kernel calls this before
 * it loads or stores. */
DEVICE void wait_for_earlier() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* The blocks of the next kernel may start when all blocks of this one have called this or have ended. The next kernel
 * still waits for the end of this one, so the call affects only the timing. */
DEVICE void let_next_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

#endif
