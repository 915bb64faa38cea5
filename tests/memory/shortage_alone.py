"""Training steps of a dropout network that run out of address space: what stays in use of the heap.

Run in a process of its own, as a limit on the address space is the process's. Prints a line for
each limit: `failed` or `passed`, what of the heap is in use more than before (bytes), what of the
arena is, and how many parameters have a gradient. Resident memory is not looked at: glibc keeps
freed pages at the end of a heap that is not the main one (up to 64 MiB), and takes from such a heap
once the main one cannot grow.
"""

from __future__ import annotations

import ctypes
import gc
import re
import resource
from pathlib import Path

import torch
from torch import nn

import lowtide as lt

WIDTH = 250


class _Counted(ctypes.Structure):
    """glibc's `mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("heaps", "free_pieces", "free_small", "maps", "mapped", "unused", "of_small"),
            *("of_pieces", "free", "at_end"),
        )
    ]


_library = ctypes.CDLL("libc.so.6")
_library.mallinfo2.restype = _Counted
SPARE_MB = (1, 80, 240)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = self.dropout(self.norm(self.linear(x)).sort(1).values.cumsum(1).tanh())
        return x


def main() -> None:
    net = Dropped()
    compiled, x = lt.script(net), torch.rand(36_000, WIDTH)  # 36 MB: glibc maps and unmaps each

    def step() -> None:
        compiled(x).sum().backward()

    def in_use() -> tuple[int, int]:
        gc.collect()
        lt.empty_cache()
        return _used_bytes(), lt.memory_stats().in_use_bytes

    for _ in range(2):
        step()
        net.zero_grad(set_to_none=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    for spare_mb in SPARE_MB:
        heap, arena = in_use()
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + spare_mb * 1_000_000, hard))
        try:
            step()
            how = "passed"
        except (RuntimeError, MemoryError):
            how = "failed"
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        has = sum(parameter.grad is not None for parameter in net.parameters())
        net.zero_grad(set_to_none=True)
        now_heap, now_arena = in_use()
        print(how, now_heap - heap, now_arena - arena, has)


def _used_bytes() -> int:
    """Of the C library's heap."""
    counted = _library.mallinfo2()
    return counted.of_pieces + counted.mapped


def _address_space() -> int:
    found = re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    main()
