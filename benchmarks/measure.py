"""All measurements of one program: times turn by turn here, peaks in processes of their own.

In: a `Program` and its sizes. Out: a `ProgramResult`, one `VariantResult` for each variant; what
could not be measured is None and `error` says why.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from benchmarks.variants import COMPILE, EAGER, JAX, LOWTIDE, make_variant, prepare, variant_names
from benchmarks.worker import measure
from lowtide.memory.measure import time_alternating
from lowtide.tools.comparison import describe_error
from lowtide.tools.difference import difference
from lowtide.tools.programs import Program

Say = Callable[[str], None]


@dataclass(kw_only=True)
class VariantResult:
    """One variant. `peak_bytes` is over the inputs, `extra_bytes` over inputs and outputs."""

    name: str
    min_ms: float | None = None
    median_ms: float | None = None
    first_call_ms: float | None = None
    peak_bytes: int | None = None
    extra_bytes: int | None = None
    predicted_bytes: int | None = None
    agrees: bool | None = None
    error: str = ""


@dataclass(kw_only=True)
class ProgramResult:
    """One program at one size."""

    name: str
    title: str
    sizes: dict[str, int]
    variants: list[VariantResult] = field(default_factory=list[VariantResult])

    def variant(self, name: str) -> VariantResult | None:
        """The variant of that name, if it was measured."""
        return next((found for found in self.variants if found.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured: repeats and seconds of timing each, and which of the slow parts; and
    where, `"cpu"` or `"cuda"`."""

    is_quick: bool = False
    repeats: int = 15
    seconds: float = 3.0
    only: tuple[str, ...] = ()
    with_peak: bool = True
    with_first_call: bool = True
    device: str = "cpu"


def measure_program(program: Program, effort: Effort, say: Say) -> ProgramResult:
    """Measure every variant of `program`."""
    sizes = program.quick if effort.is_quick else program.full
    known = variant_names(program, effort.device)
    names = [name for name in known if not effort.only or name in effort.only]
    result = ProgramResult(
        name=program.name,
        title=program.title,
        sizes=dict(zip(program.sizes, sizes, strict=True)),
        variants=[VariantResult(name=name) for name in names],
    )
    for variant in result.variants:
        if effort.with_peak:
            say(f"{program.name} · {variant.name} · peak memory")
            _fill_peak(program, variant, effort)
        if effort.with_first_call and variant.name in (COMPILE, LOWTIDE) and not variant.error:
            say(f"{program.name} · {variant.name} · first call")
            _fill_first_call(program, variant, effort)
    say(f"{program.name} · time")
    _fill_times(program, result.variants, sizes, effort)
    return result


def _fill_peak(program: Program, variant: VariantResult, effort: Effort) -> None:
    sizes = "quick" if effort.is_quick else "full"
    found = measure("peak", program.name, variant.name, sizes, effort.device)
    variant.error = found.get("error", "")
    if not variant.error:
        variant.peak_bytes = found["peak_bytes"]
        variant.extra_bytes = max(found["peak_bytes"] - found["output_bytes"], 0)
        variant.predicted_bytes = found.get("predicted_bytes")


def _fill_first_call(program: Program, variant: VariantResult, effort: Effort) -> None:
    """The first call with empty caches on disk, in a process that has compiled before."""
    sizes = "quick" if effort.is_quick else "full"
    with tempfile.TemporaryDirectory() as folder:
        caches = ("LOWTIDE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        env = dict.fromkeys(caches, folder)
        found = measure("first-call", program.name, variant.name, sizes, effort.device, env=env)
    variant.error = found.get("error", "")
    variant.first_call_ms = found.get("first_call_ms")


def _fill_times(
    program: Program, variants: list[VariantResult], sizes: tuple[int, ...], effort: Effort
) -> None:
    tensors = tuple(x.to(effort.device) for x in program.make_inputs(*sizes))
    reference: object = None
    calls: dict[str, Callable[[], object]] = {}
    for variant in variants:
        if variant.error:
            continue
        try:
            args = prepare(variant.name, tensors)
            call = partial(make_variant(program, variant.name), *args)
            result = call()
            if variant.name == EAGER:
                reference = result
            elif reference is not None:
                variant.agrees = difference(reference, _as_torch(variant.name, result)).agrees
            del result
            calls[variant.name] = call
        except Exception as fault:
            variant.error = describe_error(fault)
    reference = None
    timings = time_alternating(calls, repeats=effort.repeats, seconds=effort.seconds)
    for variant in variants:
        if variant.name in timings:
            variant.min_ms = timings[variant.name].min_ns / 1e6
            variant.median_ms = timings[variant.name].median_ns / 1e6


def _as_torch(name: str, result: Any) -> object:
    """JAX's arrays as tensors; indices are int32 there and int64 in PyTorch."""
    if name != JAX:
        return result
    import numpy as np

    if isinstance(result, tuple):
        return tuple(_as_torch(name, item) for item in result)
    tensor = torch.from_numpy(np.array(result))
    return tensor.long() if tensor.dtype == torch.int32 else tensor
