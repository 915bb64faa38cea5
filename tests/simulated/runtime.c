/* A CUDA runtime without a GPU. Device memory is host memory that is counted, so that PyTorch's
 * allocator has something to manage and runs out of it; kernels do nothing, and what they would
 * have written is computed elsewhere (values.py); all that is asynchronous has happened at once.
 * Captures are as strict as CUDA's: what CUDA refuses during one is refused here.
 *
 * What PyTorch asks for and is not here is a stub that succeeds (build.py).
 *
 * Here: devices, memory, copies. */
#include "runtime.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GRAIN 512 /* bytes: what cudaMalloc returns is aligned to it */

pthread_mutex_t simulated_lock = PTHREAD_MUTEX_INITIALIZER;
__thread int current;
static __thread cudaError_t last;

cudaError_t failed(cudaError_t error) {
  if (error) last = error;
  return error;
}

/* ---- Devices ---------------------------------------------------------------------------- */

typedef struct Fact {
  int attribute, value;
} Fact;

/* Those of an H100, so that Triton compiles for one. */
static const Fact FACTS[] = {
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
    {cudaDevAttrMultiProcessorCount, 132},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrClockRate, 1980000},
    {cudaDevAttrMemoryClockRate, 2619000},
    {cudaDevAttrGlobalMemoryBusWidth, 5120},
    {cudaDevAttrL2CacheSize, 50 << 20},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrConcurrentKernels, 1},
};

int fact(int attribute) {
  for (size_t k = 0; k < sizeof FACTS / sizeof *FACTS; k++)
    if (FACTS[k].attribute == attribute) return FACTS[k].value;
  return 0;
}

size_t total_bytes(void) {
  const char *wanted = getenv("LOWTIDE_SIMULATED_BYTES");
  return wanted ? strtoull(wanted, NULL, 10) : (size_t)16 << 30;
}

cudaError_t cudaGetDeviceCount(int *count) { return *count = DEVICES, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = current, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return last; }

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= DEVICES) return failed(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
  cudaError_t error = last;
  last = cudaSuccess;
  return error;
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted during a capture";
    case cudaErrorStreamCaptureInvalidated: return "the capture was spoiled by an earlier call";
    case cudaErrorStreamCaptureIsolation: return "a capture would depend on what is outside";
    case cudaErrorNotSupported: return "not simulated";
    default: return "simulated error";
  }
}

const char *cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  return *value = fact(attribute), cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "Simulated %d", device);
  p->totalGlobalMem = total_bytes();
  p->major = fact(cudaDevAttrComputeCapabilityMajor);
  p->minor = fact(cudaDevAttrComputeCapabilityMinor);
  p->multiProcessorCount = fact(cudaDevAttrMultiProcessorCount);
  p->warpSize = fact(cudaDevAttrWarpSize);
  p->sharedMemPerBlock = fact(cudaDevAttrMaxSharedMemoryPerBlock);
  p->sharedMemPerBlockOptin = fact(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  p->sharedMemPerMultiprocessor = fact(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = fact(cudaDevAttrMaxRegistersPerBlock);
  p->regsPerMultiprocessor = fact(cudaDevAttrMaxRegistersPerMultiprocessor);
  p->maxThreadsPerBlock = fact(cudaDevAttrMaxThreadsPerBlock);
  p->maxThreadsPerMultiProcessor = fact(cudaDevAttrMaxThreadsPerMultiProcessor);
  p->maxBlocksPerMultiProcessor = fact(cudaDevAttrMaxBlocksPerMultiprocessor);
  for (int k = 0; k < 3; k++) {
    p->maxThreadsDim[k] = fact(cudaDevAttrMaxBlockDimX + k);
    p->maxGridSize[k] = fact(cudaDevAttrMaxGridDimX + k);
  }
  p->memoryBusWidth = fact(cudaDevAttrGlobalMemoryBusWidth);
  p->l2CacheSize = fact(cudaDevAttrL2CacheSize);
  p->totalConstMem = 65536;
  p->memPitch = 2147483647;
  p->textureAlignment = GRAIN;
  p->pciBusID = device + 1;
  p->concurrentKernels = p->unifiedAddressing = p->canMapHostMemory = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
  snprintf(text, length, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int other) {
  return *can = 1, cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

/* ---- Memory ----------------------------------------------------------------------------- */

typedef struct Block {
  char *start;
  size_t nbytes;
  int device;
  struct Block *next;
} Block;

static Block *blocks;
static size_t used_bytes[DEVICES];

cudaError_t cudaMalloc(void **result, size_t nbytes) {
  *result = NULL;
  if (forbidden()) return last;
  size_t rounded = (nbytes + GRAIN - 1) / GRAIN * GRAIN;
  cudaError_t error = cudaErrorMemoryAllocation;
  pthread_mutex_lock(&simulated_lock);
  if (rounded <= total_bytes() && used_bytes[current] <= total_bytes() - rounded) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *start = mmap(NULL, rounded, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (start != MAP_FAILED) {
      Block *made = malloc(sizeof *made);
      *made = (Block){start, rounded, current, blocks};
      blocks = made;
      used_bytes[current] += rounded;
      *result = start;
      error = cudaSuccess;
    }
  }
  pthread_mutex_unlock(&simulated_lock);
  return failed(error);
}

cudaError_t cudaFree(void *start) {
  if (!start) return cudaSuccess;
  if (forbidden()) return last;
  cudaError_t error = cudaErrorInvalidValue;
  pthread_mutex_lock(&simulated_lock);
  for (Block **place = &blocks; *place; place = &(*place)->next) {
    Block *block = *place;
    if (block->start != start) continue;
    *place = block->next;
    used_bytes[block->device] -= block->nbytes;
    munmap(block->start, block->nbytes);
    free(block);
    error = cudaSuccess;
    break;
  }
  pthread_mutex_unlock(&simulated_lock);
  return failed(error);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  *total = total_bytes();
  *free_bytes = *total - used_bytes[current];
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **result, size_t nbytes, unsigned flags) {
  if (forbidden()) return last;
  return failed(posix_memalign(result, 4096, nbytes) ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFreeHost(void *start) { return free(start), cudaSuccess; }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *pointer) {
  const char *place = pointer;
  memset(found, 0, sizeof *found);
  found->type = cudaMemoryTypeUnregistered;
  found->device = -1;
  pthread_mutex_lock(&simulated_lock);
  for (Block *block = blocks; block; block = block->next) {
    if (place < block->start || place >= block->start + block->nbytes) continue;
    found->type = cudaMemoryTypeDevice;
    found->device = block->device;
    found->devicePointer = (void *)pointer;
    break;
  }
  pthread_mutex_unlock(&simulated_lock);
  return cudaSuccess;
}

/* ---- Copies ----------------------------------------------------------------------------- */

/* What a capture records is done when its graph is replayed, by values.py. */
static int happens(cudaStream_t stream, cudaError_t *error) {
  *error = enqueued(stream);
  return !*error && !is_captured(stream);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t nbytes, enum cudaMemcpyKind kind) {
  if (forbidden()) return last;
  return memmove(to, from, nbytes), cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t nbytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  cudaError_t error;
  if (happens(stream, &error)) memmove(to, from, nbytes);
  return error;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int device, const void *from, int other, size_t nbytes,
                                cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, nbytes, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemset(void *start, int value, size_t nbytes) {
  if (forbidden()) return last;
  return memset(start, value, nbytes), cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *start, int value, size_t nbytes, cudaStream_t stream) {
  cudaError_t error;
  if (happens(stream, &error)) memset(start, value, nbytes);
  return error;
}
