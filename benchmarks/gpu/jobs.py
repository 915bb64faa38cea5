"""The order of measurements and the time that each may take.

jobs = all_jobs()                       # most important first
share_s(jobs, left_s=700.0)             # seconds for jobs[0]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from benchmarks.gpu.programs import GPU_PROGRAMS

FORWARD, TRAINING = "forward", "training"  # training: forward and backward
LEAST_S = 6.0  # below that a job is not begun
# Gradients before forward passes: their results are compared, too.
_ORDER = (
    ("float32", TRAINING),
    ("bfloat16", TRAINING),
    ("float32", FORWARD),
    ("tf32", TRAINING),
    ("bfloat16", FORWARD),
    ("float16", TRAINING),
    ("tf32", FORWARD),
    ("float16", FORWARD),
)
_FIRST = {"boxes", "similarity"}  # whose forward pass is what the project began with


@dataclass(frozen=True, kw_only=True)
class Job:
    """One program in one precision, its forward pass or both."""

    program: str
    precision: str
    mode: str

    @property
    def name(self) -> str:
        """`"attention, bfloat16, training"`."""
        return f"{self.program}, {self.precision}, {self.mode}"


def all_jobs(only: Collection[str] = ()) -> list[Job]:
    """Most important first; `only`: names of programs, or `"attention:bfloat16"`."""
    found: list[Job] = []
    for program in GPU_PROGRAMS.values():
        for precision in program.precisions:
            if only and program.name not in only and f"{program.name}:{precision}" not in only:
                continue
            for mode in (FORWARD, TRAINING) if program.differentiable else (FORWARD,):
                found.append(Job(program=program.name, precision=precision, mode=mode))
    return sorted(found, key=_rank)


def _rank(job: Job) -> int:
    is_alone = not GPU_PROGRAMS[job.program].differentiable or job.program in _FIRST
    if job.precision == "float32" and job.mode == FORWARD and is_alone:
        return -1
    return _ORDER.index((job.precision, job.mode))


def share_s(jobs: Sequence[Job], left_s: float) -> float:
    """Seconds for the first of `jobs`, where `left_s` are left for all: float32 gets twice as much,
    gradients twice as much. What a job does not need is left to the next ones."""
    weights = [
        (2 if job.precision == "float32" else 1) * (2 if job.mode == TRAINING else 1)
        for job in jobs
    ]
    return left_s * weights[0] / sum(weights)
