/* Launches, the libraries beside the runtime, and the driver as Triton and PyTorch use it. */
#include "runtime.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Launches --------------------------------------------------------------------------- */

static __thread struct {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
} pushed;

/* What nvcc writes for kernel<<<...>>>(...): pushed by the caller, popped by the kernel's stub. */
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     struct CUstream_st *stream) {
  pushed.grid = grid;
  pushed.block = block;
  pushed.shared_bytes = shared_bytes;
  pushed.stream = stream;
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes,
                                       void *stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared_bytes = pushed.shared_bytes;
  *(cudaStream_t *)stream = pushed.stream;
  return cudaSuccess;
}

void **__cudaRegisterFatBinary(void *binary) {
  static void *handle[1];
  return handle;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  return *kernel = (cudaKernel_t)function, cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **given,
                               size_t shared_bytes, cudaStream_t stream) {
  return enqueued(stream);
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **given,
                             size_t shared_bytes, cudaStream_t stream) {
  return enqueued(stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                                void **given) {
  return enqueued(config->stream);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  found->numRegs = 32;
  found->binaryVersion = found->ptxVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count,
                                                                   const void *function,
                                                                   int threads, size_t bytes,
                                                                   unsigned flags) {
  return *count = 2, cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function,
                                                          int threads, size_t bytes) {
  return *count = 2, cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **found, const void *symbol) {
  static char room[1 << 20];
  return *found = room, cudaSuccess;
}

/* ---- Libraries -------------------------------------------------------------------------- */

/* Their handles and descriptors, which callers only hand on. */
static int made(void **handle) { return *handle = calloc(1, 256), 0; }

int cublasCreate_v2(void **handle) { return made(handle); }
int cublasLtCreate(void **handle) { return made(handle); }
int cublasLtMatmulDescCreate(void **found, int compute, int scale) { return made(found); }
int cublasLtMatmulPreferenceCreate(void **found) { return made(found); }
int cusolverDnCreate(void **handle) { return made(handle); }
int cusparseCreate(void **handle) { return made(handle); }

int cublasLtMatrixLayoutCreate(void **found, int type, uint64_t rows, uint64_t columns,
                               int64_t stride) {
  return made(found);
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c,
                                   void *d, void *preference, int most, void *found, int *count) {
  return *count = 1, 0;
}

int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0; }
int cublasGetMathMode(void *handle, int *mode) { return *mode = 0; }
size_t cublasLtGetVersion(void) { return 130100; }

static const char *SIMULATED = "simulated";
const char *cublasGetStatusString(int status) { return SIMULATED; }
const char *cublasGetStatusName(int status) { return SIMULATED; }
const char *cudnnGetErrorString(int status) { return SIMULATED; }
const char *cusparseGetErrorString(int status) { return SIMULATED; }
const char *cusparseGetErrorName(int status) { return SIMULATED; }
int cuptiGetResultString(int status, const char **text) { return *text = SIMULATED, 0; }
int cuptiGetErrorMessage(int status, const char **text) { return *text = SIMULATED, 0; }

/* ---- The driver ------------------------------------------------------------------------- */

static CUresult in_driver(cudaError_t error) { return (CUresult)error; } /* the same numbers */

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { return *count = DEVICES, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int number) { return *device = number, CUDA_SUCCESS; }

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  return *value = fact((int)attribute), CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  snprintf(name, length, "Simulated %d", device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *nbytes, CUdevice device) {
  return *nbytes = total_bytes(), CUDA_SUCCESS;
}

/* A device's context is its number, and one more: none may be NULL. */
static CUcontext context_of(int device) { return (CUcontext)(uintptr_t)(device + 1); }

CUresult cuCtxGetCurrent(CUcontext *context) {
  return *context = context_of(current), CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (context) current = (int)(uintptr_t)context - 1;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) { return *device = current, CUDA_SUCCESS; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  return *context = context_of(device), CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
  if (flags) *flags = 0;
  return *is_active = 1, CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  return *text = cudaGetErrorString((cudaError_t)error), CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  cudaError_t error = forbidden();
  if (!error) *module = calloc(1, 1);
  return in_driver(error);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                            CUjit_option *options, void **values) {
  return cuModuleLoadData(module, image);
}

CUresult cuModuleUnload(CUmodule module) { return free(module), CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  return *function = (CUfunction)module, CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_NUM_REGS: return *value = 64, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return *value = 1024, CUDA_SUCCESS;
    default: return *value = 0, CUDA_SUCCESS;
  }
}

CUresult cuPointerGetAttribute(void *found, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *(CUdeviceptr *)found = pointer;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads,
                        unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                        CUstream stream, void **given, void **more) {
  return in_driver(enqueued(stream));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **given,
                          void **more) {
  return in_driver(enqueued(config->hStream));
}

CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function,
                                      const CUlaunchConfig *config) {
  return *count = 16, CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  return *table = NULL, CUDA_ERROR_NOT_FOUND;
}

/* Entry points are asked for by name, of all versions: what is not here does nothing. */
static int nothing(void) { return 0; }

static void *entry_point(const char *name) {
  void *found = dlsym(RTLD_DEFAULT, name);
  return found ? found : (void *)nothing;
}

CUresult cuGetProcAddress_v2(const char *name, void **found, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
  return *found = entry_point(name), CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status) {
  if (status) *status = cudaDriverEntryPointSuccess;
  return *found = entry_point(name), cudaSuccess;
}
