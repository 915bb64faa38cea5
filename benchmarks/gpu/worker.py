"""The child process: checks and measures one job after another.

In: a JSON object a line on stdin, `{"job": {…}, "seconds": 20.0, "skip": {"torch.compile": "…"}}`;
one without a job asks what `lowtide doctor` says.
Out: JSON objects on what was stdout, each with `kind`: `"hello"` at the start, `"stage"` before
what may fail or take long, `"variant"` with what is now known of a variant, `"job"` with what is
known of the job, `"check"`, `"done"`. After a fault of CUDA the process ends: nothing works behind
one. Tracebacks go to stderr.

    $ python -m benchmarks.gpu.worker full < jobs
    {"kind": "stage", "variant": "lowtide", "stage": "first call"}
    {"kind": "variant", "name": "lowtide", "first_call_s": 2.1}
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.jobs import Job
from benchmarks.gpu.measure import Emit, Poisoned, Run
from lowtide.tools.comparison import describe_error

FULL, DRY, SIMULATED = "full", "dry", "simulated"
POISONED = 70  # the exit status after a fault of CUDA


def hello(emit: Emit) -> None:
    """What a report must say of the machine; what cannot be found out is left empty."""
    from lowtide.runtime import block_kernels
    from lowtide.tools.machine import this_machine

    emit(
        {
            "kind": "hello",
            "machine": _tried(lambda: this_machine("cuda").to_dict()),
            "driver": _tried(_driver),
            "triton": _tried(lambda: "" if block_kernels.missing() else block_kernels.version()),
            "capability": _tried(lambda: list(torch.cuda.get_device_capability())),
            "gpu_memory_bytes": _tried(lambda: torch.cuda.get_device_properties().total_memory),
            "caches": _tried(_caches),
        }
    )


def _tried(find: Callable[[], object]) -> object:
    try:
        return find()
    except Exception:
        traceback.print_exc()
        return None


def checks(emit: Emit) -> None:
    """What is missing on the machine."""
    from lowtide.runtime import doctor

    for check in doctor.checks():
        if check.name in ("compiler", "kernel", "cache folder", "GPU"):
            emit({"kind": "check", **dataclasses.asdict(check)})


def _driver() -> str:
    """NVIDIA's driver, as its tool or the kernel has it; "" where neither says."""
    import re
    import subprocess
    from pathlib import Path

    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if found.returncode == 0 and found.stdout.strip():
            return found.stdout.split()[0]
        text = Path("/proc/driver/nvidia/version").read_text()
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return match[0] if match else ""


def _caches() -> dict[str, str]:
    """Where compiled things are kept: times of first calls depend on whether they are empty."""
    from lowtide.runtime import cache

    names = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    found = {name: os.environ.get(name, "default") for name in names}
    held = cache.size()
    return {"lowtide": f"{held.entries} libraries at the start", **found}


def serve(effort: str, emit: Emit) -> None:
    """Jobs from stdin, until it ends. Raises: Poisoned."""
    hello(emit)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        try:
            if "job" in asked:
                _run(asked, effort, emit).measure()
            else:
                checks(emit)
        except Exception as fault:
            if isinstance(fault, Poisoned):
                raise
            traceback.print_exc()
            emit({"kind": "job", "error": describe_error(fault)})
        emit({"kind": "done"})


def _run(asked: dict[str, Any], effort: str, emit: Emit) -> Run:
    return Run(
        job=Job(**asked["job"]),
        device=torch.device("cuda"),
        emit=emit,
        skip=asked["skip"],
        is_small=effort != FULL,
        is_simulated=effort == SIMULATED,
        end_s=time.monotonic() + float(asked["seconds"]),
    )


def main(arguments: list[str]) -> None:
    """Serve; what libraries print goes to stderr, so that stdout has nothing but events."""
    (effort,) = arguments
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def emit(event: Any) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    if effort == SIMULATED:
        _simulate()
    try:
        serve(effort, emit)
    except Poisoned:
        out.flush()
        os._exit(POISONED)  # without CUDA's own clean-up, which would fail


def _simulate() -> None:
    """Values on the simulated device, as quickly as can be had."""
    import pytest

    from tests.blocks.quick_interpreter import quicken
    from tests.simulated.values import install

    install()
    quicken(pytest.MonkeyPatch())


if __name__ == "__main__":
    main(sys.argv[1:])
