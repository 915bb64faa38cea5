"""The binary interface between the runtime and a compiled kernel: one definition for both sides.

A kernel is an exported C function that takes one pointer, to an array of 8-byte slots:

    int64_t name(const void *args)      // 0: done; anything else: a fault, see codegen
    slot 0   lt_parallel_for     torch's thread pool, or null: then tasks run one after another
    slot 1   int64_t             how many threads the pool has
    slot 2…  the kernel's own    pointers, int64 sizes and strides, doubles, in the order of `fmt`

`fmt` has one character for each slot: P an address, q an int64, d a double, in native byte order.
The C code below includes no headers, so it compiles fast and for any target.
"""

from __future__ import annotations

SLOT_BYTES = 8
SLOT_CODES = "Pqd"
SYMBOL = "kernel"  # the C function of every compiled kernel

# torch/csrc/stable/c/shim.h: AOTITorchError torch_parallel_for(begin, end, grain_size, func, ctx)
C_DECLARATIONS = """\
typedef long long int64_t;
typedef int int32_t;
typedef void (*lt_task)(int64_t begin, int64_t end, void *context);
typedef int32_t (*lt_parallel_for)(int64_t begin, int64_t end, int64_t grain, lt_task task,
                                   void *context);
typedef union { void *p; int64_t q; double d; } lt_slot;
#if defined(_WIN32)
#define LT_EXPORT __declspec(dllexport)
#else
#define LT_EXPORT __attribute__((visibility("default")))
#endif

/* Runs task over [begin, end), in pieces of at least grain; 0, or the error of torch's pool. */
static inline int32_t lt_run(const lt_slot *slots, int64_t begin, int64_t end, int64_t grain,
                             lt_task task, void *context) {
  lt_parallel_for parallel_for = (lt_parallel_for)slots[0].p;
  if (begin >= end) return 0;
  if (parallel_for && slots[1].q > 1 && end - begin > grain)
    return parallel_for(begin, end, grain, task, context);
  task(begin, end, context);
  return 0;
}
"""
