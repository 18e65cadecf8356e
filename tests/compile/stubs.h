/* The three names that CUDA's headers give to the types that gpuloss.h uses, for machines that have none of them. */
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream, *cudaStream_t;
