/* Where the shared variables of a kernel are needed. */
#ifndef GPULOSSI_GEN_SHARED_H
#define GPULOSSI_GEN_SHARED_H

#include "parse.h"

/* A shared variable takes memory wherever it is declared. Its declaration, and the lines that move its address, get the
 * condition of the lines that use it. The conditions of blocks are known. */
void find_shared(parsed *p);

#endif
