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
    """One machine and the software on it."""

    cpu: str
    logical_cpus: int
    torch_threads: int
    memory_bytes: int
    system: str
    python: str
    torch: str
    lowtide: str

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.logical_cpus} logical CPUs ({self.torch_threads} torch threads), "
            f"{format_bytes(self.memory_bytes)} · {self.system} · Python {self.python} · "
            f"torch {self.torch} · lowtide {self.lowtide}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return dataclasses.asdict(self)


def this_machine() -> Machine:
    """Describe the machine that this runs on."""
    return Machine(
        cpu=cpu_name(),
        logical_cpus=_usable_cpus(),
        torch_threads=torch.get_num_threads(),
        memory_bytes=memory_bytes(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        lowtide=__version__,
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
