"""What a measurement must say about where it was made: CPU, threads, memory, versions.

Out: a `Machine`, as text for people and as a dict for JSON. No host, user or path is in it.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lowtide import __version__
from lowtide.config import memory_bytes
from lowtide.tables import format_bytes


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine and the software on it. `gpu`: "" where nothing runs on one."""

    cpu: str
    logical_cpus: int
    torch_threads: int
    memory_bytes: int
    system: str
    python: str
    torch: str
    lowtide: str
    gpu: str = ""

    def __str__(self) -> str:
        head = f"{self.gpu} · " if self.gpu else ""
        return (
            f"{head}{self.cpu}, {self.logical_cpus} logical CPUs "
            f"({self.torch_threads} torch threads), {format_bytes(self.memory_bytes)} · "
            f"{self.system} · Python {self.python} · "
            f"torch {self.torch} · lowtide {self.lowtide}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return dataclasses.asdict(self)


def this_machine(device: str = "cpu") -> Machine:
    """Describe the machine that this runs on; `device`: `"cpu"`, or `"cuda"` for the current GPU
    beside it."""
    return Machine(
        cpu=cpu_name(),
        logical_cpus=_usable_cpus(),
        torch_threads=torch.get_num_threads(),
        memory_bytes=memory_bytes(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        lowtide=__version__,
        gpu="" if device == "cpu" else f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}",
    )


def cpu_name() -> str:
    """The CPU's name as its maker writes it, else its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if found:
        return found[1].strip()
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.stdout.strip():
            return result.stdout.strip()
    return platform.processor() or platform.machine()


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
