"""What is resident while memory is mapped by itself, in a process whose heap has free pieces.

`python -m tests.runtime.mapped_alone` prints, as JSON, how many bytes more are resident once some
tensors, one after the other, are gone: while it is on, and before and after; whether 3 MB are
mapped by themselves in each state; and what of the heap is in use before and after.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os

import torch
from torch import Tensor

from lowtide.runtime import libc
from lowtide.runtime.heap import Trimmer, trimming
from lowtide.runtime.mapped import Mapped, is_mapped


def left_bytes() -> int:
    libc.trim()
    before = libc.resident_bytes()
    for rows in range(4, 10):
        torch.ones(rows, 300_000)
    return libc.resident_bytes() - before


def are_mapped() -> bool:
    malloc, free = libc.function("malloc"), libc.function("free")
    malloc.argtypes, malloc.restype, free.argtypes = (
        [ctypes.c_size_t],
        ctypes.c_void_p,
        [ctypes.c_void_p],
    )
    piece = malloc(3_000_000)
    found = is_mapped(piece)
    free(piece)
    return found


def short() -> Trimmer:
    """One that has no room for any op."""
    return Trimmer(most_bytes=0, growth_bytes=1 << 40)


def refuse(_: Tensor) -> Tensor:
    raise ValueError


def backward(fails: bool) -> list[bool]:
    """Within, and after it."""
    found: list[bool] = []
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    short().follow((), [y])
    x.register_hook(refuse if fails else lambda _: found.append(are_mapped()))
    try:
        y.sum().backward()
    except ValueError:
        found.append(are_mapped())
        del y
        gc.collect()
    return [*found, are_mapped()]


def call(fails: bool) -> list[bool]:
    found: list[bool] = []
    made = short()
    try:
        with trimming(made):
            made.check()
            found.append(are_mapped())
            if fails:
                raise ValueError
    except ValueError:
        pass
    return [*found, are_mapped()]


def forked() -> bool:
    """In a child of a process where it is on."""
    child = os.fork()
    if not child:
        os._exit(are_mapped())
    return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    torch.ones(7 << 20)  # from now on glibc maps nothing of less than these 28 MiB by itself
    kept = [torch.ones(500_000) for _ in range(60)]
    del kept[::2]  # 2 MB between 2 MB
    mapped = Mapped()
    used = libc.used_bytes()
    found: dict[str, object] = {"before": [left_bytes(), are_mapped()]}
    mapped.on()
    found["on"] = [left_bytes(), are_mapped()]
    found["forked"] = forked()
    del kept[::2]
    libc.trim()
    mapped.on()
    found["again"] = [left_bytes(), are_mapped()]
    mapped.off()
    found["after"] = [left_bytes(), are_mapped()]
    found["lost"] = libc.used_bytes() + 15 * 2_000_000 - used
    found["backward"], found["failed backward"] = backward(False), backward(True)
    found["call"], found["failed call"] = call(False), call(True)
    mapped.on()
    del mapped
    found["gone"] = are_mapped()
    print(json.dumps(found))
