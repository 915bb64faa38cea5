"""The memory that this process can still take before the system kills something.

In: /proc/meminfo and, in a container, the limits of the control group. Out: bytes, or None if the
system does not tell. Tools read it before a large run, since Linux grants any allocation and kills
later.
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
    """Whether an allocation failed, on whatever device; PyTorch has no class of its own for that on
    the CPU."""
    if isinstance(fault, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(fault).lower() for words in _OUT_OF_MEMORY)


def available_bytes() -> int | None:
    """Bytes that can be taken now without swapping: the system's, or the container's if fewer."""
    known = [count for count in (_system_bytes(), _cgroup_bytes()) if count is not None]
    return min(known) if known else None


def _system_bytes() -> int | None:
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _cgroup_bytes() -> int | None:
    rooms = [room for folder in _cgroup_folders() if (room := _room(folder)) is not None]
    return min(rooms) if rooms else None


def _cgroup_folders() -> list[Path]:
    """This process's control group and those above it; inside a container often only the root."""
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


def _room(folder: Path) -> int | None:
    for limit_name, usage_name, cache_name in _CGROUP_FILES:
        try:
            limit = int((folder / limit_name).read_text())
            usage = int((folder / usage_name).read_text())
            stat = (folder / "memory.stat").read_text()
        except (OSError, ValueError):  # another version, no limit ("max"), or not readable
            continue
        cached = re.search(rf"^{cache_name} (\d+)$", stat, re.MULTILINE)
        return max(limit - usage + (int(cached[1]) if cached else 0), 0)
    return None
