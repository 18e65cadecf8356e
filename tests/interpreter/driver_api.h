/* The exported functions: the CUDA driver's under its own names and ABI, and two of this library. */
#ifndef PTXSIM_DRIVER_API_H
#define PTXSIM_DRIVER_API_H

#include "driver.h"

struct launch_config;

PTXSIM_EXPORT int cuInit(unsigned flags);
PTXSIM_EXPORT int cuDriverGetVersion(int *version);
PTXSIM_EXPORT int cuGetErrorName(int code, const char **name);
PTXSIM_EXPORT int cuGetErrorString(int code, const char **text);
PTXSIM_EXPORT int cuDeviceGetCount(int *count);
PTXSIM_EXPORT int cuDeviceGet(int *device, int ordinal);
PTXSIM_EXPORT int cuDeviceGetName(char *name, int length, int device);
PTXSIM_EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
PTXSIM_EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device);
PTXSIM_EXPORT int cuDevicePrimaryCtxRetain(CUcontext *context, int device);
PTXSIM_EXPORT int cuDevicePrimaryCtxRelease(int device);
PTXSIM_EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
PTXSIM_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
PTXSIM_EXPORT int cuCtxCreate_v2(CUcontext *context, unsigned flags, int device);
PTXSIM_EXPORT int cuCtxDestroy_v2(CUcontext context);
PTXSIM_EXPORT int cuCtxGetCurrent(CUcontext *context);
PTXSIM_EXPORT int cuCtxSetCurrent(CUcontext context);
PTXSIM_EXPORT int cuCtxPushCurrent_v2(CUcontext context);
PTXSIM_EXPORT int cuCtxPopCurrent_v2(CUcontext *context);
PTXSIM_EXPORT int cuCtxGetDevice(int *device);
PTXSIM_EXPORT int cuCtxSynchronize(void);
PTXSIM_EXPORT int cuStreamCreate(CUstream *stream, unsigned flags);
PTXSIM_EXPORT int cuStreamDestroy_v2(CUstream stream);
PTXSIM_EXPORT int cuStreamSynchronize(CUstream stream);
PTXSIM_EXPORT int cuStreamQuery(CUstream stream);
PTXSIM_EXPORT int cuStreamGetCtx(CUstream stream, CUcontext *context);
PTXSIM_EXPORT int cuStreamIsCapturing(CUstream stream, int *status);
PTXSIM_EXPORT int cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address);
PTXSIM_EXPORT int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
PTXSIM_EXPORT int cuEventCreate(CUevent *event, unsigned flags);
PTXSIM_EXPORT int cuEventRecord(CUevent event, CUstream stream);
PTXSIM_EXPORT int cuEventSynchronize(CUevent event);
PTXSIM_EXPORT int cuEventQuery(CUevent event);
PTXSIM_EXPORT int cuEventElapsedTime(float *ms, CUevent start, CUevent end);
PTXSIM_EXPORT int cuEventDestroy_v2(CUevent event);
PTXSIM_EXPORT const char *ptxsim_last_fault(void);
PTXSIM_EXPORT unsigned long long ptxsim_instructions_executed(void);
PTXSIM_EXPORT int cuModuleLoadData(CUmodule *module, const void *image);
PTXSIM_EXPORT int cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, int *names, void **values);
PTXSIM_EXPORT int cuModuleUnload(CUmodule module);
PTXSIM_EXPORT int cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
PTXSIM_EXPORT int cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name);
PTXSIM_EXPORT int cuFuncGetAttribute(int *value, int attribute, CUfunction function);
PTXSIM_EXPORT int cuFuncSetAttribute(CUfunction function, int attribute, int value);
PTXSIM_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                              size_t dynamic);
PTXSIM_EXPORT int cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, CUstream stream, void **params, void **extra);
PTXSIM_EXPORT int cuLaunchKernelEx(const struct launch_config *config, CUfunction function, void **params,
                                   void **extra);
PTXSIM_EXPORT int cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const struct launch_config *config);
PTXSIM_EXPORT int cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
PTXSIM_EXPORT int cuMemFree_v2(CUdeviceptr address);
PTXSIM_EXPORT int cuMemGetInfo_v2(size_t *left, size_t *total);
PTXSIM_EXPORT int cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
PTXSIM_EXPORT int cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
PTXSIM_EXPORT int cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
PTXSIM_EXPORT int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
PTXSIM_EXPORT int cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
PTXSIM_EXPORT int cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
PTXSIM_EXPORT int cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count);
PTXSIM_EXPORT int cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count);
PTXSIM_EXPORT int cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream);
PTXSIM_EXPORT int cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream);

#endif
