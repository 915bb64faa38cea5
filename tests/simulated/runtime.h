/* What the files of the simulated runtime share. */
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stddef.h>

#define DEVICES 2

#pragma GCC visibility push(hidden) /* or these would stand in for others' of the same name */
extern pthread_mutex_t simulated_lock;
extern __thread int current; /* device */

cudaError_t failed(cudaError_t error); /* remembers it, for cudaGetLastError */
int fact(int attribute);
size_t total_bytes(void);

cudaError_t forbidden(void);                /* see captures.c */
cudaError_t enqueued(cudaStream_t stream);
int is_captured(cudaStream_t stream);
#pragma GCC visibility pop
