"""What is resident while memory is mapped by itself, in a process whose heap has free pieces.

`python -m tests.runtime.mapped_alone` prints, as JSON, how many bytes more are resident once some
tensors, one after the other, are gone: while it is on, and before and after.
"""

from __future__ import annotations

import json

import torch

from lowtide.runtime import libc
from lowtide.runtime.mapped import Mapped


def left_bytes() -> int:
    libc.trim()
    before = libc.resident_bytes()
    for rows in range(4, 10):
        torch.ones(rows, 300_000)
    return libc.resident_bytes() - before


if __name__ == "__main__":
    torch.ones(7 << 20)  # from now on glibc maps nothing of less than these 28 MiB by itself
    kept = [torch.ones(500_000) for _ in range(60)]
    del kept[::2]  # 2 MB between 2 MB
    mapped = Mapped()
    found = {"before": left_bytes()}
    mapped.on()
    found["on"] = left_bytes()
    del kept[::2]
    libc.trim()
    mapped.on()
    found["again"] = left_bytes()
    mapped.off()
    found["after"] = left_bytes()
    print(json.dumps(found))
