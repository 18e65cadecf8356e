/* A stand-in for the parts of cuBLAS that examples/08_cublas.c calls. It multiplies on the CPU, for the interpreter,
 * whose device memory only the driver can read. It takes bf16 and float, and sums in float in the order of k. */
#include <cublas_v2.h>
#include <cuda.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct cublasContext {
    CUstream stream;
};

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    *handle = calloc(1, sizeof **handle);
    return *handle != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = (CUstream)stream;
    return CUBLAS_STATUS_SUCCESS;
}

static float from_bf16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static uint16_t to_bf16(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static size_t bytes_of(cudaDataType type) {
    return type == CUDA_R_32F ? 4 : 2;
}

/* [rows, columns] by columns: a copy on the host, of which the driver reads whole columns. */
static void *download(const void *from, cudaDataType type, int rows, int columns, int stride) {
    const size_t bytes = ((size_t)(columns - 1) * (size_t)stride + (size_t)rows) * bytes_of(type);
    void *to = malloc(bytes);
    if (to != NULL && cuMemcpyDtoH(to, (CUdeviceptr)(uintptr_t)from, bytes) == CUDA_SUCCESS)
        return to;
    free(to);
    return NULL;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType a_type, int lda, const void *b,
                            cudaDataType b_type, int ldb, const void *beta, void *c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algo) {
    const float scale = *(const float *)alpha, of_c = *(const float *)beta;
    const int t_a = of_a == CUBLAS_OP_T, t_b = of_b == CUBLAS_OP_T;
    (void)algo;
    if (a_type != CUDA_R_16BF || b_type != CUDA_R_16BF || (c_type != CUDA_R_16BF && c_type != CUDA_R_32F) ||
        compute != CUBLAS_COMPUTE_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (lda < (t_a ? k : m) || ldb < (t_b ? n : k) || ldc < m)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (cuStreamSynchronize(handle->stream) != CUDA_SUCCESS)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    uint16_t *x = download(a, a_type, t_a ? k : m, t_a ? m : k, lda);
    uint16_t *y = download(b, b_type, t_b ? n : k, t_b ? k : n, ldb);
    void *z = download(c, c_type, m, n, ldc);
    cublasStatus_t status = x != NULL && y != NULL && z != NULL ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR;
    for (int j = 0; status == CUBLAS_STATUS_SUCCESS && j < n; j++)
        for (int i = 0; i < m; i++) {
            const size_t at = (size_t)j * (size_t)ldc + (size_t)i;
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += from_bf16(x[t_a ? (size_t)i * (size_t)lda + (size_t)l : (size_t)l * (size_t)lda + (size_t)i]) *
                       from_bf16(y[t_b ? (size_t)l * (size_t)ldb + (size_t)j : (size_t)j * (size_t)ldb + (size_t)l]);
            sum *= scale;
            /* With a beta of 0, the old value is not read: it may be NaN. */
            if (of_c != 0)
                sum += of_c * (c_type == CUDA_R_32F ? ((float *)z)[at] : from_bf16(((uint16_t *)z)[at]));
            if (c_type == CUDA_R_32F)
                ((float *)z)[at] = sum;
            else
                ((uint16_t *)z)[at] = to_bf16(sum);
        }
    if (status == CUBLAS_STATUS_SUCCESS &&
        cuMemcpyHtoD((CUdeviceptr)(uintptr_t)c, z, ((size_t)(n - 1) * (size_t)ldc + (size_t)m) * bytes_of(c_type)) !=
            CUDA_SUCCESS)
        status = CUBLAS_STATUS_EXECUTION_FAILED;
    free(x), free(y), free(z);
    return status;
}
