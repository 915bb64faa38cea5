/* Streams, captures, events and graphs: handles, and what CUDA forbids during a capture. */
#include "runtime.h"

#include <stdlib.h>

/* ---- Streams and captures --------------------------------------------------------------- */

/* Kept for good: streams and events go on pointing to captures that have ended. */
typedef struct Capture {
  unsigned long long id;
  enum cudaStreamCaptureMode mode;
  pthread_t thread;
  struct Stream *origin;
  int is_under_way, is_spoiled;
  struct Capture *next;
} Capture;

typedef struct Stream {
  int device, priority;
  Capture *capture; /* the latest that it was part of */
} Stream;

typedef struct Event {
  int is_recorded;
  Capture *capture; /* in which it was recorded */
} Event;

static Capture *captures;
static Stream defaults[DEVICES] = {{.device = 0}, {.device = 1}};
static __thread enum cudaStreamCaptureMode thread_mode; /* global, to begin with */

static Stream *stream_of(cudaStream_t stream) {
  int is_default = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return is_default ? &defaults[current] : (Stream *)stream;
}

static Capture *capture_of(cudaStream_t stream) {
  Capture *found = stream_of(stream)->capture;
  return found && found->is_under_way ? found : NULL;
}

static cudaError_t spoiled(Capture *capture) {
  capture->is_spoiled = 1;
  return failed(cudaErrorStreamCaptureUnsupported);
}

/* Of a call that may wait for the device: whether a capture forbids it to this thread. One that
 * is forbidden spoils the capture. PyTorch's allocator relaxes its thread's mode around its own. */
cudaError_t forbidden(void) {
  cudaError_t error = cudaSuccess;
  if (thread_mode == cudaStreamCaptureModeRelaxed) return error;
  int is_global = thread_mode == cudaStreamCaptureModeGlobal;
  pthread_mutex_lock(&simulated_lock);
  for (Capture *c = captures; c; c = c->next) {
    if (!c->is_under_way || c->mode == cudaStreamCaptureModeRelaxed) continue;
    int is_own = pthread_equal(c->thread, pthread_self());
    if (is_own || (is_global && c->mode == cudaStreamCaptureModeGlobal)) error = spoiled(c);
  }
  pthread_mutex_unlock(&simulated_lock);
  return error;
}

/* Of what is put into a stream. */
cudaError_t enqueued(cudaStream_t stream) {
  Capture *capture = capture_of(stream);
  int is_lost = capture && capture->is_spoiled;
  return failed(is_lost ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}

int is_captured(cudaStream_t stream) { return capture_of(stream) != NULL; }

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  enum cudaStreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  Stream *made = calloc(1, sizeof *made);
  *made = (Stream){.device = current, .priority = priority};
  *stream = (cudaStream_t)made;
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { return free(stream), cudaSuccess; }

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  return *priority = stream_of(stream)->priority, cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  Stream *origin = stream_of(stream);
  if (origin == &defaults[current]) return failed(cudaErrorStreamCaptureUnsupported);
  if (capture_of(stream)) return failed(cudaErrorIllegalState);
  Capture *made = calloc(1, sizeof *made);
  pthread_mutex_lock(&simulated_lock);
  *made = (Capture){.id = captures ? captures->id + 1 : 1,
                    .mode = mode,
                    .thread = pthread_self(),
                    .origin = origin,
                    .is_under_way = 1,
                    .next = captures};
  captures = origin->capture = made;
  pthread_mutex_unlock(&simulated_lock);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  Capture *capture = capture_of(stream);
  *graph = NULL;
  if (!capture) return failed(cudaErrorIllegalState);
  if (capture->origin != stream_of(stream)) return failed(cudaErrorStreamCaptureUnmatched);
  int is_own = pthread_equal(capture->thread, pthread_self());
  if (!is_own && capture->mode != cudaStreamCaptureModeRelaxed)
    return failed(cudaErrorStreamCaptureWrongThread);
  capture->is_under_way = 0;
  if (capture->is_spoiled) return failed(cudaErrorStreamCaptureInvalidated);
  *graph = calloc(1, 1);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  Capture *capture = capture_of(stream);
  *status = !capture               ? cudaStreamCaptureStatusNone
            : capture->is_spoiled ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes,
                                     const cudaGraphEdgeData **edges, size_t *count) {
  Capture *capture = capture_of(stream);
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = NULL;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Capture *capture = capture_of(stream);
  return capture ? spoiled(capture) : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

/* Whatever the thread's mode is: it would wait for streams that are captured. */
cudaError_t cudaDeviceSynchronize(void) {
  cudaError_t error = cudaSuccess;
  pthread_mutex_lock(&simulated_lock);
  for (Capture *c = captures; c; c = c->next)
    if (c->is_under_way && c->origin->device == current) error = spoiled(c);
  pthread_mutex_unlock(&simulated_lock);
  return error;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *given) {
  cudaError_t error = enqueued(stream);
  if (!error && !is_captured(stream)) function(given);
  return error;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *given,
                                  unsigned flags) {
  cudaError_t error = enqueued(stream);
  if (!error && !is_captured(stream)) function(stream, cudaSuccess, given);
  return error;
}

/* ---- Events ----------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  return *event = calloc(1, sizeof(Event)), cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return free(event), cudaSuccess; }

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  cudaError_t error = enqueued(stream);
  if (!error) *(Event *)event = (Event){.is_recorded = 1, .capture = capture_of(stream)};
  return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

/* A stream that waits for one that is captured is captured too, until the capture ends. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  Event *awaited = (Event *)event;
  Capture *theirs = awaited->capture, *ours = capture_of(stream);
  if (!awaited->is_recorded || flags == cudaEventWaitExternal) return cudaSuccess;
  if (theirs && !theirs->is_under_way) theirs = NULL;
  if (ours && theirs != ours) {
    ours->is_spoiled = 1;
    return failed(cudaErrorStreamCaptureIsolation);
  }
  if (theirs) stream_of(stream)->capture = theirs;
  return cudaSuccess;
}

static cudaError_t asked(cudaEvent_t event) {
  Capture *capture = ((Event *)event)->capture;
  if (!capture || !capture->is_under_way) return forbidden();
  capture->is_spoiled = 1;
  return failed(cudaErrorCapturedEvent);
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return asked(event); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return asked(event); }

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  return *ms = 0.01f, cudaSuccess;
}

/* ---- Graphs ----------------------------------------------------------------------------- */

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph,
                                          unsigned long long flags) {
  return *made = calloc(1, 1), cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph,
                                 unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(made, graph, flags);
}

/* One stands for all: PyTorch warns of graphs without any. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  return *count = 1, cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) { return enqueued(stream); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return free(graph), cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return free(graph), cudaSuccess; }
