"""One job: values against float64, first calls, peaks, then times in turns.

In: a `Run`. Out: events, by its `emit`; see `worker`. Whatever a variant raises is an event, and
the others go on; only a fault of CUDA ends it, as `Poisoned`.
"""

from __future__ import annotations

import dataclasses
import gc
import inspect
import math
import random
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from benchmarks.gpu.jobs import TRAINING, Job
from benchmarks.gpu.judge import Verdict, judge
from benchmarks.gpu.programs import GPU_PROGRAMS, PRECISIONS, GpuProgram
from lowtide.tools.comparison import describe_error

EAGER, COMPILE, LOWTIDE = "eager", "torch.compile", "lowtide"
_ROUND_MS = 3.0  # a round has as many calls of a variant as take that long
_MOST_CALLS, _MOST_ROUNDS, _FEWEST_ROUNDS = 100, 30, 3
_WARM_CALLS = 3  # Lowtide records a loop's CUDA graph at the second one

T = TypeVar("T")
Emit = Callable[[Mapping[str, Any]], None]
Function = Callable[..., object]


class Poisoned(Exception):
    """A fault of CUDA, after which this process can do nothing more on the GPU."""


@dataclass(kw_only=True)
class Setting:
    """Arguments, and what is multiplied with outputs for gradients: None until one is known."""

    inputs: tuple[Tensor, ...]
    cotangents: list[Tensor] | None = None


@dataclass(kw_only=True)
class Truth:
    """What is right: results in float64, and eager's own. `inputs`: in float64."""

    setting: Setting
    inputs: tuple[Tensor, ...]
    results: list[Tensor]
    eager: list[Tensor]


@dataclass(kw_only=True)
class Run:
    """One job under way. `skip`: variants that failed before, and why; `end_s`: of the time."""

    job: Job
    device: torch.device
    emit: Emit
    skip: Mapping[str, str] = field(default_factory=dict[str, str])
    is_small: bool = False
    is_simulated: bool = False
    end_s: float = math.inf

    @property
    def program(self) -> GpuProgram:
        """What the job measures."""
        return GPU_PROGRAMS[self.job.program]

    @property
    def trains(self) -> bool:
        """Whether gradients are wanted."""
        return self.job.mode == TRAINING

    def measure(self) -> None:
        """The whole job. Raises: Poisoned."""
        _set_precision(self.job.precision)
        small, full = self.program.quick, self.program.full
        sizes = small if self.is_small else full
        self.emit({"kind": "job", "sizes": self.program.describe(sizes)})
        setting = self.guarded("", "inputs", partial(self.setting, sizes))
        if setting is None:
            return
        truth = self.guarded("", "float64", partial(self.truth, setting), is_note=True)
        if truth is None and not self.is_small:  # too large for float64: the same at a small size
            sizes = small
            truth = self.guarded("", "float64", lambda: self.truth(self.setting(small)))
        self.emit({"kind": "job", "checked": self.program.describe(sizes) if truth else ""})
        calls: dict[str, Callable[[], object]] = {}
        for name, make in self.variants().items():
            if name in self.skip:
                self.emit({"kind": "variant", "name": name, "error": self.skip[name]})
                continue
            function = self.guarded(name, "first call", partial(self.first, name, make, setting))
            if function is None:
                continue
            calls[name] = partial(self.step, function, setting)
            if truth is not None:
                self.guarded(name, "values", partial(self.check, name, function, truth))
            self.guarded(name, "memory", partial(self.memory, name, function, setting))
        del truth
        self.guarded("", "times", partial(self.times, calls))

    # ---- Parts

    def guarded(
        self, variant: str, stage: str, part: Callable[[], T], is_note: bool = False
    ) -> T | None:
        """What `part` gives; None where it raises, which is an event. Raises: Poisoned."""
        event = {"kind": "variant", "name": variant} if variant else {"kind": "job"}
        self.emit({"kind": "stage", "variant": variant, "stage": stage})
        start_s = time.monotonic()
        try:
            found = part()
            _wait(self.device)
            self.emit({**event, f"seconds of {stage}": round(time.monotonic() - start_s, 3)})
            return found
        except Exception as fault:
            traceback.print_exc()
            says = f"{stage}: {describe_error(fault)}"
        gc.collect()
        self.emit({**event, "note" if is_note else "error": says})
        try:
            _wait(self.device)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        except Exception as fault:
            raise Poisoned(str(fault)) from fault
        return None

    def variants(self) -> dict[str, Callable[[], Function]]:
        """What makes the functions, by name; eager first, what takes longest to compile last."""
        import lowtide as lt

        program = self.program
        script: Any = lt.script
        found: dict[str, Callable[[], Function]] = {
            EAGER: lambda: program.function,
            LOWTIDE: lambda: script(program.function),
        }
        if program.peer is not None:
            peer, function = program.peer
            found[peer] = lambda: function
        if self.device.type == "cuda":
            found[COMPILE] = lambda: _compiled(program.function)
        return found

    def setting(self, sizes: tuple[int, ...]) -> Setting:
        """Arguments of that size."""
        inputs = self.program.inputs(sizes, PRECISIONS[self.job.precision], self.device)
        for x in inputs:
            x.requires_grad_(self.trains and x.is_floating_point())
        return Setting(inputs=inputs)

    def truth(self, setting: Setting) -> Truth:
        """Of the same inputs in float64; settles what gradients are multiplied with."""
        exact = tuple(
            x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
            for x in setting.inputs
        )
        dtype = PRECISIONS[self.job.precision]
        if self.trains and setting.cotangents is None:
            with torch.no_grad():
                shaped = tensors(self.program.function(*exact))
                cotangents = _cotangents(shaped, dtype)
                if self.program.settle is not None:
                    cotangents = self.program.settle(exact, cotangents, dtype)
            setting.cotangents = cotangents
        wide = None
        if setting.cotangents is not None:
            wide = [c.double() for c in setting.cotangents]
        results = self.step(self.program.function, Setting(inputs=exact, cotangents=wide))
        eager = self.step(self.program.function, setting)
        return Truth(setting=setting, inputs=exact, results=results, eager=eager)

    def step(self, function: Function, setting: Setting, fresh: bool = False) -> list[Tensor]:
        """Outputs, then gradients. `fresh`: cotangents are made within, as a loss makes them."""
        found = tensors(function(*setting.inputs))
        if not self.trains:
            return found
        if setting.cotangents is None:
            setting.cotangents = _cotangents(found, found[0].dtype)
        wanted = [x for x in setting.inputs if x.requires_grad]
        given = [c.clone() for c in setting.cotangents] if fresh else setting.cotangents
        gradients = torch.autograd.grad(found, wanted, given)
        return [*(x.detach() for x in found), *gradients]

    def first(self, name: str, make: Callable[[], Function], setting: Setting) -> Function:
        """The function; after its first call, which compiles, and what warms it up."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            start = time.perf_counter()
            function = make()
            self.step(function, setting)
            _wait(self.device)
            first_s = time.perf_counter() - start
            for _ in range(1 if self.is_small else _WARM_CALLS):
                self.step(function, setting)
        event: dict[str, Any] = {"kind": "variant", "name": name, "first_call_s": first_s}
        if name == LOWTIDE:
            event["warnings"] = sorted({str(w.message).partition("\n")[0] for w in said})
        self.emit(event)
        return function

    def check(self, name: str, function: Function, truth: Truth) -> bool:
        """Its values, which a simulated device has of PyTorch's ops and of Lowtide's alone: none
        of cuDNN's, nor of what Inductor compiles."""
        if name == EAGER or (self.is_simulated and name != LOWTIDE):
            return True
        found = self.step(function, truth.setting)
        verdicts = self.verdicts(found, truth)
        self.emit(
            {
                "kind": "variant",
                "name": name,
                "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts],
            }
        )
        return True

    def verdicts(self, found: list[Tensor], truth: Truth) -> list[Verdict]:
        """One a result: outputs, then gradients by the name of their input."""
        names = list(inspect.signature(self.program.function).parameters)
        wanted = [n for n, x in zip(names, truth.inputs, strict=True) if x.requires_grad]
        outputs = len(truth.results) - len(wanted)
        labels = [*(f"output {i}" for i in range(outputs)), *(f"gradient of {n}" for n in wanted)]
        right, own = truth.results, truth.eager
        if self.program.judged is not None:
            right, own, found = (self.program.judged(truth.inputs, x) for x in (right, own, found))
        ulp = torch.finfo(PRECISIONS[self.job.precision]).eps
        if len(found) != len(right):
            nan = float("nan")
            note = f"{len(found)} results, eager has {len(right)}"
            return [Verdict(name="", error=nan, eager_error=nan, scale=nan, wrong=1, note=note)]
        return [judge(*given, ulp=ulp) for given in zip(labels, right, own, found, strict=False)]

    def memory(self, name: str, function: Function, setting: Setting) -> bool:
        """The peak of a warm call beyond what was there; of Lowtide's also the predicted one."""
        event: dict[str, Any] = {"kind": "variant", "name": name}
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            found = self.step(function, setting, fresh=True)
            torch.cuda.synchronize()
            self.emit({**event, "peak_bytes": torch.cuda.max_memory_allocated() - before})
            del found
        if name == LOWTIDE:
            compiled: Any = function
            event["predicted_bytes"] = int(compiled.memory(*setting.inputs).peak_bytes)
            explained = compiled.explain(*setting.inputs)
            event["explain"] = str(explained)
            event["plain"] = explained.plain
            event["left"] = [f"{s.op} ({s.loc}): {s.reason}" for s in explained.torch_ops]
            event["notes"] = list(explained.notes)
            self.emit(event)
        return True

    def times(self, calls: Mapping[str, Callable[[], object]]) -> bool:
        """Rounds in turns, in another order each, while there is time; milliseconds a call."""
        counts: dict[str, int] = {}
        for name, call in calls.items():
            one_ms = self.guarded(name, "times", partial(self.elapsed_ms, call, 1))
            if one_ms is not None:
                many = _ROUND_MS / max(one_ms, _ROUND_MS / _MOST_CALLS)
                counts[name] = 1 if self.is_small else max(1, math.ceil(many))
        self.emit({"kind": "stage", "variant": "", "stage": "times"})
        samples: dict[str, list[float]] = {name: [] for name in counts}
        order, chance = list(counts), random.Random(0)
        for done in range(1 if self.is_small else _MOST_ROUNDS):
            if done >= _FEWEST_ROUNDS and time.monotonic() > self.end_s:
                break
            chance.shuffle(order)
            for name in order:
                samples[name].append(self.elapsed_ms(calls[name], counts[name]))
        for name, found in samples.items():
            self.emit({"kind": "variant", "name": name, "times_ms": found, "calls": counts[name]})
        return True

    def elapsed_ms(self, call: Callable[[], object], count: int) -> float:
        """Of one of `count` calls in a row, between two events of the stream."""
        if self.device.type != "cuda":
            start = time.perf_counter()
            for _ in range(count):
                call()
            return (time.perf_counter() - start) * 1e3 / count
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / count


def _compiled(function: Function) -> Function:
    """Anew, whatever was compiled before."""
    torch.compiler.reset()
    return torch.compile(function, dynamic=False)


def tensors(found: Any) -> list[Tensor]:
    """A result's tensors in order."""
    return [found] if isinstance(found, Tensor) else [x for item in found for x in tensors(item)]


def _cotangents(outputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Random ones of the shapes of `outputs`; 1 for a loss."""
    made: list[Tensor] = []
    for y in outputs:
        generator = torch.Generator(y.device).manual_seed(1)
        drawn = torch.randn(y.shape, generator=generator, device=y.device).to(dtype)
        made.append(drawn if y.ndim else torch.ones_like(drawn))
    return made


def _set_precision(precision: str) -> None:
    """Of products, for all variants alike; cuDNN's, too."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
