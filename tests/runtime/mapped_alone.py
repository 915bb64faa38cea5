"""Which memory glibc maps by itself while `Mapped` is on, in a process of its own.

`python -m tests.runtime.mapped_alone` prints, as JSON, whether 3 MB are mapped by themselves in
each state: while it is on, before and after, in a forked child, within calls and backward passes.
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
    mapped = Mapped()
    found: dict[str, object] = {"before": are_mapped()}
    mapped.on()
    found["on"] = are_mapped()
    found["forked"] = forked()
    mapped.on()
    found["again"] = are_mapped()
    mapped.off()
    found["after"] = are_mapped()
    found["backward"], found["failed backward"] = backward(False), backward(True)
    found["call"], found["failed call"] = call(False), call(True)
    mapped.on()
    del mapped
    found["gone"] = are_mapped()
    print(json.dumps(found))
