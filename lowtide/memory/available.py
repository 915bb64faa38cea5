"""The bytes that this process can use before the system kills processes.

In: /proc/meminfo and, in a container, the limits of the control group. Out: bytes, or None on
systems without these files. Tools read it before a large run, because Linux grants allocations that
it cannot back and kills a process later.

    available_bytes()      12_884_901_888
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_SELF_CGROUP = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
# Limit, usage and the part of the usage that is page cache: control groups 2, then 1.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def is_out_of_memory(fault: BaseException) -> bool:
    """Return whether the exception reports a failed allocation, on any device. PyTorch's CPU
    allocator raises a plain RuntimeError, which is recognised by its message."""
    if isinstance(fault, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(fault).lower() for words in _OUT_OF_MEMORY)


def available_bytes() -> int | None:
    """Return the bytes that can be used now without swapping: the smaller of the system's and the
    container's. None if neither is known."""
    known = [count for count in (_system_bytes(), _cgroup_bytes()) if count is not None]
    return min(known) if known else None


def _system_bytes() -> int | None:
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _cgroup_bytes() -> int | None:
    left = [count for folder in _cgroup_folders() if (count := _left_bytes(folder)) is not None]
    return min(left) if left else None


def _cgroup_folders() -> list[Path]:
    """Return this process's control group and its ancestors; in a container often only the root."""
    try:
        lines = _SELF_CGROUP.read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = _CGROUP_ROOT / controllers
        here = root / path.lstrip("/")
        folders += [folder for folder in (here, *here.parents) if folder.is_relative_to(root)]
    return folders


def _left_bytes(folder: Path) -> int | None:
    for limit_name, usage_name, cache_name in _CGROUP_FILES:
        try:
            limit = int((folder / limit_name).read_text())
            usage = int((folder / usage_name).read_text())
            stat = (folder / "memory.stat").read_text()
        except (OSError, ValueError):  # the other version, no limit ("max"), or unreadable
            continue
        cached = re.search(rf"^{cache_name} (\d+)$", stat, re.MULTILINE)
        return max(limit - usage + (int(cached[1]) if cached else 0), 0)
    return None
