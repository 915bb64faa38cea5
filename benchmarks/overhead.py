"""What Lowtide costs where there is nothing to gain: a call on tiny input, and its import.

Out: microseconds a call of eager, torch.compile and Lowtide for `x * 2 + 1` on 8 elements, and the
milliseconds that `import lowtide` and `lowtide.script` add to `import torch`.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch

from benchmarks.worker import measure
from lowtide.memory.measure import time_alternating
from lowtide.tools.comparison import describe_error

_MIN_SAMPLE_NS = 5e6
_IMPORTS = 5


def _tiny(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def launch_overhead(device: str = "cpu") -> dict[str, Any]:
    """Median microseconds a call, by variant; an error's text where one does not run."""
    x = torch.ones(8, device=device)
    found: dict[str, Any] = {}
    calls: dict[str, Any] = {"eager": partial(_tiny, x)}
    for name, make in (("torch.compile", _compiled), ("lowtide", _scripted)):
        try:
            calls[name] = partial(make(), x)
            calls[name]()
        except Exception as fault:
            calls.pop(name, None)
            found[name] = describe_error(fault)
    timings = time_alternating(calls, repeats=21, min_sample_ns=_MIN_SAMPLE_NS)
    return found | {name: timing.median_ns / 1e3 for name, timing in timings.items()}


def import_time_ms() -> float | None:
    """The median of several processes, or None where lowtide does not import."""
    samples = [measure("import", "lowtide").get("import_ms") for _ in range(_IMPORTS)]
    known = [sample for sample in samples if sample is not None]
    return statistics.median(known) if known else None


def _compiled() -> Any:
    return torch.compile(_tiny, dynamic=False)


def _scripted() -> Any:
    import lowtide as lt

    return lt.script(_tiny)
