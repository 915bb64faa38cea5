"""Runs a sketch in eager PyTorch, in float64 and compiled, and compares all that a caller can see.

In: a `Sketch`. Out: "" or what is wrong, such as

    script, call 1: results v3: is 2, eager 3

A text that begins with "loud: " is no wrong result: an internal error after which PyTorch ran the
program, or a refusal.

Two differences are allowed. Eager's backward pass raises where a saved tensor was overwritten; the
compiled one may have saved the value, and not raise. The other way round is a failure. And what
`torch.compile(backend="eager")` gets wrong in the same way as `lt.compile` is not Lowtide's.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import exc as dynamo

import lowtide as lt
from lowtide.errors import CompileError
from tests.fuzz.check import Tally, folder
from tests.fuzz.drawing import made
from tests.fuzz.rounding import Rounding
from tests.fuzz.sketch import Sizes, Sketch, with_less
from tests.fuzz.verdict import difference, sharing
from tests.written import function_of

NOISY_RUNS = 16
_OVERWRITTEN = ("modified by an inplace operation", "has been modified inplace")
_serial = itertools.count()
Call = Callable[..., Any]


@dataclass(slots=True)
class Seen:
    """What a caller sees of one call."""

    results: dict[str, Any] = field(default_factory=dict[str, Any])
    inputs: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    state: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    grads: dict[str, torch.Tensor | None] = field(default_factory=dict[str, torch.Tensor | None])
    shared: dict[str, str] = field(default_factory=dict[str, str])
    random: bytes = b""
    error: Exception | None = None
    backward_error: Exception | None = None


class Ways:
    """The program as eager, as float64 and as compiled modules or functions, all of equal state."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self.plain = self._built(sketch.source)

    def _built(self, source: str, dtype: str = "") -> Any:
        path = Path(folder.name) / f"sketch_{next(_serial)}.py"
        target = function_of(source, path, "Program")
        if not self.sketch.parts:
            return target
        torch.manual_seed(0)
        return target().to(eval(dtype or self.sketch.dtype)).train(self.sketch.train)

    def eager(self) -> Any:
        return copy.deepcopy(self.plain) if self.sketch.parts else self.plain

    def wide(self) -> Any:
        """In float64, of the same state."""
        built = self._built(self.sketch.wide, "torch.float64")
        if self.sketch.parts:
            built.load_state_dict(self.plain.state_dict())
        return built

    def compiled(self, way: str) -> Any:
        """By script, trace or compile."""
        f = self.eager()
        match way:
            case "script":
                return lt.script(f)
            case "compile":
                return lt.compile(f)
            case _:
                torch.manual_seed(99)
                args, leaves = arguments(self.sketch, 0, self.sketch.sizes[0])
                args = [  # what is written while it is traced may be no copy of a leaf
                    x if x is leaf else x.detach() for x, leaf in zip(args, leaves, strict=True)
                ]
                with torch.set_grad_enabled(self.sketch.grad):
                    traced = lt.trace(f, tuple(args))
                if self.sketch.parts:  # the run that was traced has written its buffers
                    with torch.no_grad():
                        for ours, theirs in zip(_state(traced), _state(self.plain), strict=True):
                            ours[1].copy_(theirs[1])
                return traced


def arguments(
    s: Sketch, call: int, sizes: Sizes, wide: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The arguments of a call, and the leaves that they were made from."""
    torch.manual_seed(call)
    leaves = [made(given, sizes) for given in s.inputs]
    if wide:
        leaves = [x.double() if x.is_floating_point() else x for x in leaves]
    for given, x in zip(s.inputs, leaves, strict=True):
        x.requires_grad_(s.grad and given.grad != "none" and x.is_floating_point())
    args = [x * 1 if given.grad == "made" else x for given, x in zip(s.inputs, leaves, strict=True)]
    return args, leaves


def _state(f: Any) -> list[tuple[str, torch.Tensor]]:
    if not hasattr(f, "named_parameters"):
        return []
    f = getattr(f, "_orig_mod", f)
    return [*f.named_buffers(), *f.named_parameters()]


def seen(s: Sketch, f: Any, call: int, sizes: Sizes, wide: bool = False) -> Seen:
    """Calls `f`, then its backward pass."""
    args, leaves = arguments(s, call, sizes, wide)
    named = dict(_state(f))
    for x in named.values():
        x.grad = None
    saw = Seen()
    torch.manual_seed(1000 + call)
    try:
        with torch.set_grad_enabled(s.grad), _default(torch.float64 if wide else torch.float32):
            results = f(*args)
    except CompileError:
        raise
    except Exception as error:
        saw.error = error
        results = ()
    saw.random = torch.get_rng_state().numpy().tobytes()
    saw.results = dict(zip(s.outputs, results, strict=True)) if results else {}
    saw.inputs = {given.name: x for given, x in zip(s.inputs, args, strict=True)}
    tensors = {n: x for n, x in saw.results.items() if isinstance(x, torch.Tensor)}
    saw.shared = sharing({**saw.inputs, **named, **tensors})
    if s.grad and not saw.error:
        try:
            _backward([x for x in tensors.values() if x.requires_grad])
        except CompileError:
            raise
        except Exception as error:
            saw.backward_error = error
    saw.state = {n: x.detach().clone() for n, x in named.items() if not x.requires_grad}
    saw.grads = {f"self.{n}": x.grad for n, x in named.items() if x.requires_grad}
    saw.grads |= {g.name: x.grad for g, x in zip(s.inputs, leaves, strict=True)}
    return saw


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Generator[None]:
    """What `torch.zeros(3)` makes; arguments are drawn outside, so that they are the same ones."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _backward(results: Sequence[torch.Tensor]) -> None:
    generator = torch.Generator().manual_seed(5)
    cotangents = [
        torch.randn(x.shape, generator=generator).to(torch.bfloat16).to(x.dtype) for x in results
    ]
    if results:
        torch.autograd.backward(list(results), cotangents)


# ---- the comparison -----------------------------------------------------------------------------


class Reference:
    """Eager's and float64's calls, made once; noisy ones when they are asked for."""

    def __init__(self, ways: Ways, runs: Sequence[tuple[int, Sizes]]) -> None:
        self.ways, self.runs = ways, runs
        self.eager = self._calls(ways.eager())
        self.truth: list[Seen | None] = [None for _ in runs]
        with contextlib.suppress(Exception):  # then eager's own values are what is right
            self.truth = [*self._calls(ways.wide(), wide=True)]
        self._noisy: list[list[Seen]] | None = None

    def _calls(self, f: Any, wide: bool = False) -> list[Seen]:
        s = self.ways.sketch
        return [seen(s, f, call, sizes, wide) for call, sizes in self.runs]

    def noisy(self, call: int) -> list[Seen]:
        """Of one call, runs that round otherwise."""
        if self._noisy is None:
            self._noisy = []
            for seed in range(NOISY_RUNS):
                with Rounding(seed):
                    self._noisy.append(self._calls(self.ways.eager()))
        return [run[call] for run in self._noisy]


def check(sketch: Sketch, tally: Tally | None = None) -> str:
    """All ways of compiling it, at all its calls; what is wrong, "" if nothing."""
    tally = tally or Tally()
    loud = ""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        ways = Ways(sketch)
        reference = Reference(ways, list(sketch.runs("script")))
        for way in sketch.ways:
            raised.clear()
            try:
                wrong = _check_way(ways, way, reference, tally)
            except CompileError as error:
                wrong = f"loud: {way}: {type(error).__name__}: {error}"
            finally:
                torch._dynamo.reset()
            told = [str(w.message) for w in raised]
            if wrong and way == "trace" and any(lt.TracerWarning is w.category for w in raised):
                continue  # it was said that the trace holds for this call only
            internal = next((t for t in told if "internal error" in t), "")
            if wrong and not wrong.startswith("loud: "):
                return wrong
            loud = loud or wrong or (internal and f"loud: {way}: {internal}")
    return loud


def _check_way(ways: Ways, way: str, reference: Reference, tally: Tally) -> str:
    s = ways.sketch
    first = reference.eager[0].error
    try:
        compiled = ways.compiled(way)
    except CompileError:
        raise
    except Exception as error:
        tally.rejected += 1
        same = first is not None and type(first) is type(error)
        return "" if same else f"{way}: raises {error!r:.300}, eager {first!r:.300}"
    for k, (call, sizes) in enumerate(s.runs(way)):
        tally.runs += 1
        got = seen(s, compiled, call, sizes)
        if isinstance(got.error, dynamo.TorchDynamoException):
            tally.rejected += 1  # PyTorch's own capture does not take it
            return ""
        wrong = _difference(got, reference, k)
        if wrong and way == "compile" and wrong == _of_capture(ways, k, reference):
            tally.rejected += 1
            return ""
        if wrong:
            return f"{way}, call {call} at {dict(sizes)}: {wrong}"
        tally.compiled += 1
    return ""


def _of_capture(ways: Ways, last: int, reference: Reference) -> str:
    """What is wrong at that call where PyTorch's capture runs without Lowtide."""
    torch._dynamo.reset()
    captured = torch.compile(ways.eager(), backend="eager")
    runs = [seen(ways.sketch, captured, *run) for run in ways.sketch.runs("compile")]
    return _difference(runs[last], reference, last)


def _difference(got: Seen, reference: Reference, k: int) -> str:
    eager, truth = reference.eager[k], reference.truth[k] or Seen()
    for ours, theirs, where in (
        (got.error, eager.error, "the call"),
        (got.backward_error, eager.backward_error, "the backward pass"),
    ):
        kept = ours is None and any(text in str(theirs) for text in _OVERWRITTEN)
        if type(ours) is not type(theirs) and not kept:
            return f"{where} raises {ours!r:.300}, eager {theirs!r:.300}"
    if got.shared != eager.shared:
        return f"memory is shared as {got.shared}, eager {eager.shared}"
    if got.random != eager.random:
        return "the random state afterwards is another"
    if eager.error or eager.backward_error:
        return ""
    for what in ("results", "inputs", "state", "grads"):
        ours, theirs, right = (getattr(x, what) for x in (got, eager, truth))
        if ours.keys() != theirs.keys():
            return f"{what} are {list(ours)}, eager {list(theirs)}"
        for name in theirs:
            wrong = _one(ours[name], theirs[name], right.get(name), reference, k, what, name)
            if wrong:
                return f"{what} {name}: {wrong}"
    return ""


def _one(
    ours: Any, theirs: Any, right: Any, reference: Reference, k: int, what: str, name: str
) -> str:
    if not isinstance(theirs, torch.Tensor) or not isinstance(ours, torch.Tensor):
        same = type(ours) is type(theirs) and (ours == theirs or not isinstance(ours, int))
        return "" if same else f"is {ours!r:.200}, eager {theirs!r:.200}"

    def noisy() -> list[torch.Tensor | None]:
        return [getattr(run, what).get(name) for run in reference.noisy(k)]

    return difference(ours, theirs, right, noisy)


# ---- making it small ----------------------------------------------------------------------------


def failure(sketch: Sketch) -> str:
    """As `check`, with exceptions as text; "" for what is no program at all."""
    try:
        runs = list(sketch.runs("script"))
        eager = [seen(sketch, Ways(sketch).plain, *run).error for run in runs]
        if any(isinstance(e, NameError | AttributeError) for e in eager):
            return ""
        return check(sketch)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def minimised(sketch: Sketch) -> Sketch:
    """Drops statements, outputs, calls and ways as long as it fails in the same manner."""
    manner = _manner(failure(sketch))
    changed = True
    while changed:
        changed = False
        for smaller in with_less(sketch):
            if _manner(failure(smaller)) == manner:
                sketch, changed = smaller, True
                break
    return sketch


def _manner(wrong: str) -> str:
    """What kind of fault a text is about, the same for a smaller program with the same fault."""
    if not wrong:
        return ""
    kinds = (
        "loud: ",
        " raises ",
        "memory is shared",
        "random state",
        "strides",
        "requires_grad",
        " of ",
        " is ",
    )
    return next((kind for kind in kinds if kind in wrong), "other")
