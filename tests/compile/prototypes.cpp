// The driver functions that gpuloss.h declares by hand, against the toolkit's cuda.h: the same number of arguments,
// each passed in the same way, under the same symbol. Compiled with -include HEADER, run without a driver.
#define __CUDA_API_VERSION_INTERNAL // also what older symbols look like
#include <cuda.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <type_traits>

// The function of cuda.h for each row of the table.
#define REAL_error_name cuGetErrorName
#define REAL_error_string cuGetErrorString
#define REAL_init cuInit
#define REAL_driver_version cuDriverGetVersion
#define REAL_device_count cuDeviceGetCount
#define REAL_device_get cuDeviceGet
#define REAL_device_name cuDeviceGetName
#define REAL_device_attribute cuDeviceGetAttribute
#define REAL_primary_retain cuDevicePrimaryCtxRetain
#define REAL_primary_release cuDevicePrimaryCtxRelease_v2
#define REAL_primary_release_v1 cuDevicePrimaryCtxRelease
#define REAL_context_current cuCtxGetCurrent
#define REAL_context_push cuCtxPushCurrent_v2
#define REAL_context_pop cuCtxPopCurrent_v2
#define REAL_context_device cuCtxGetDevice
#define REAL_context_synchronize cuCtxSynchronize
#define REAL_module_load cuModuleLoadDataEx
#define REAL_module_unload cuModuleUnload
#define REAL_module_function cuModuleGetFunction
#define REAL_launch cuLaunchKernel
#define REAL_blocks_per_sm cuOccupancyMaxActiveBlocksPerMultiprocessor
#define REAL_launch_ex cuLaunchKernelEx
#define REAL_function_attribute cuFuncSetAttribute
#define REAL_clusters cuOccupancyMaxActiveClusters
#define REAL_memory_alloc cuMemAlloc_v2
#define REAL_memory_free cuMemFree_v2
#define REAL_upload cuMemcpyHtoDAsync_v2
#define REAL_download cuMemcpyDtoHAsync_v2
#define REAL_fill cuMemsetD32Async
#define REAL_pointer_attribute cuPointerGetAttribute
#define REAL_stream_create cuStreamCreate
#define REAL_stream_destroy cuStreamDestroy_v2
#define REAL_stream_synchronize cuStreamSynchronize
#define REAL_stream_capturing cuStreamIsCapturing

template <class T> struct is_number { static const bool value = std::is_integral<T>::value || std::is_enum<T>::value; };
template <class Ours, class Real, bool Numbers> struct same_number : std::false_type {};
template <class Ours, class Real> struct same_number<Ours, Real, true> {
    static const bool value = sizeof(Ours) == sizeof(Real);
};
// Structs behind pointers: CUcontext and CUstream must be the very types; the driver's other handles are void here.
template <class Ours, class Real> struct same {
    static const bool value = std::is_same<Ours, Real>::value || same_number < Ours, Real,
                      is_number<Ours>::value &&is_number<Real>::value > ::value ||
                          (std::is_void<Ours>::value && std::is_class<Real>::value);
};
template <> struct same<gpulossi_launch_config, CUlaunchConfig> : std::true_type {}; // see below
template <class Ours, class Real> struct same<const Ours, const Real> : same<Ours, Real> {};
template <class Ours, class Real> struct same<Ours *, Real *> : same<Ours, Real> {};

template <class Ours, class Real> struct same_call : std::false_type {};
template <class R, class S> struct same_call<R(), S()> : same<R, S> {};
template <class R, class A, class... As, class S, class B, class... Bs> struct same_call<R(A, As...), S(B, Bs...)> {
    static const bool value = same<A, B>::value && same_call<R(As...), S(Bs...)>::value;
};

#define ROW(need, field, symbol, arguments)                                                                            \
    static_assert(same_call<int arguments, decltype(REAL_##field)>::value, symbol " is declared otherwise in cuda.h");
GPULOSSI_DRIVER(ROW)
#undef ROW

// The structs that gpuloss.h declares have the layout of the structs in cuda.h.
#define FIELD(ours, field, real, real_field)                                                                           \
    static_assert(offsetof(ours, field) == offsetof(real, real_field), #real "." #real_field);
FIELD(gpulossi_launch_config, grid, CUlaunchConfig, gridDimX)
FIELD(gpulossi_launch_config, grid[1], CUlaunchConfig, gridDimY)
FIELD(gpulossi_launch_config, grid[2], CUlaunchConfig, gridDimZ)
FIELD(gpulossi_launch_config, block, CUlaunchConfig, blockDimX)
FIELD(gpulossi_launch_config, block[1], CUlaunchConfig, blockDimY)
FIELD(gpulossi_launch_config, block[2], CUlaunchConfig, blockDimZ)
FIELD(gpulossi_launch_config, shared_bytes, CUlaunchConfig, sharedMemBytes)
FIELD(gpulossi_launch_config, stream, CUlaunchConfig, hStream)
FIELD(gpulossi_launch_config, attributes, CUlaunchConfig, attrs)
FIELD(gpulossi_launch_config, attribute_count, CUlaunchConfig, numAttrs)
FIELD(gpulossi_launch_attribute, id, CUlaunchAttribute, id)
FIELD(gpulossi_launch_attribute, value, CUlaunchAttribute, value.clusterDim.x)
FIELD(gpulossi_launch_attribute, value[1], CUlaunchAttribute, value.clusterDim.y)
FIELD(gpulossi_launch_attribute, value[2], CUlaunchAttribute, value.clusterDim.z)
FIELD(gpulossi_launch_attribute, value, CUlaunchAttribute, value.programmaticStreamSerializationAllowed)
static_assert(sizeof(gpulossi_launch_config) == sizeof(CUlaunchConfig), "CUlaunchConfig");
static_assert(sizeof(gpulossi_launch_attribute) == sizeof(CUlaunchAttribute), "CUlaunchAttribute");

#define NAME_(name) #name
#define NAME(name) NAME_(name)
#define VALUE(ours, real) static_assert(int(ours) == int(real), #real);
VALUE(GPULOSSI_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY)
VALUE(GPULOSSI_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE)
VALUE(GPULOSSI_CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE)
VALUE(GPULOSSI_CU_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU)
VALUE(GPULOSSI_CU_INVALID_PTX, CUDA_ERROR_INVALID_PTX)
VALUE(GPULOSSI_CU_JIT_COMPILER_NOT_FOUND, CUDA_ERROR_JIT_COMPILER_NOT_FOUND)
VALUE(GPULOSSI_CU_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
VALUE(GPULOSSI_CU_JIT_COMPILATION_DISABLED, CUDA_ERROR_JIT_COMPILATION_DISABLED)
VALUE(GPULOSSI_CU_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
VALUE(GPULOSSI_CU_ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
VALUE(GPULOSSI_CU_ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
VALUE(GPULOSSI_CU_ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
VALUE(GPULOSSI_CU_ATTRIBUTE_SHARED_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
VALUE(GPULOSSI_CU_ATTRIBUTE_CLUSTERS, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)
VALUE(GPULOSSI_CU_FUNCTION_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
VALUE(GPULOSSI_CU_FUNCTION_SHARED_CARVEOUT, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
VALUE(GPULOSSI_CU_FUNCTION_NON_PORTABLE_CLUSTER, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED)
VALUE(GPULOSSI_CU_LAUNCH_CLUSTER, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
VALUE(GPULOSSI_CU_LAUNCH_DEPENDENT, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
VALUE(GPULOSSI_CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BUFFER)
VALUE(GPULOSSI_CU_JIT_ERROR_LOG_BYTES, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
VALUE(GPULOSSI_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING)
static_assert(sizeof(CUdeviceptr) == sizeof(uint64_t), "CUdeviceptr");

int main() {
    int wrong = 0;
#define ROW(need, field, symbol, arguments)                                                                            \
    if (std::strcmp(symbol, NAME(REAL_##field)) != 0)                                                                  \
        wrong += std::printf("%s is looked up where %s is meant\n", symbol, NAME(REAL_##field));
    GPULOSSI_DRIVER(ROW)
    return wrong != 0;
}
