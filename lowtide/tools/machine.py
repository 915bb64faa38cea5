"""Describes the machine of a measurement: CPU, threads, memory, versions.

Out: a `Machine`, as text and as a dict for JSON, without names of hosts, users or paths.

    print(this_machine())
    AMD EPYC 9654, 4 logical CPUs (4 torch threads), 16.0 GiB · Linux x86_64 · Python 3.11.2 · …
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
    """A machine and its software. `gpu`: "" if the measurement uses none."""

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
        """Return the fields, for JSON."""
        return dataclasses.asdict(self)


def this_machine(device: str = "cpu") -> Machine:
    """Describe this machine. `device`: `"cpu"`, or `"cuda"` to name the current GPU, too."""
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
    """Return the CPU's model name, else its architecture."""
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
