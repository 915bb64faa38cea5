"""`lowtide try`: eager PyTorch against Lowtide on the user's own function.

In: a target such as `pkg.mod:fn`, shapes, dtypes. Out: a `Trial`: the comparison, the predicted
peak, and what was left to PyTorch. The function is called with random numbers in [0, 1); integers
are 0, bools are True or False.

    $ lowtide try boxes:intersection --shape 20000x4,500x4
    name     min      median   peak      first call  max abs diff  agrees
    -------  -------  -------  --------  ----------  ------------  ------
    eager    69.0 ms  69.9 ms   225 MiB     76.2 ms  -             -
    lowtide  1.60 ms  1.64 ms  38.2 MiB      498 ms  0             yes

    Lowtide: 43× as fast as eager, 17 % of its memory. The results agree.

A call that would need more memory than the machine has fails with an error in its row.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from lowtide import html
from lowtide.errors import CompileError
from lowtide.memory.available import available_bytes
from lowtide.tables import format_bytes
from lowtide.tools.comparison import Comparison, ComparisonRow, compare
from lowtide.tools.explain_command import (
    ArgumentFault,
    check_call,
    described,
    filled,
    make_arguments,
    resolve,
    scripted,
)
from lowtide.tools.referee import errors, in_double
from lowtide.torch_private.pytree import tensors_in

_MOST_LEFT = 5  # ops left to PyTorch that are printed


@dataclass(frozen=True, kw_only=True)
class Trial:
    """`refused`: why `lt.script` does not compile the target, so that `lt.compile` ran instead; ""
    if it does. `predicted_bytes`: of the peak; None if it is not known. `left`: the ops that
    PyTorch runs, one line each. `errors`: of each row against float64, where results differ."""

    target: str
    comparison: Comparison
    predicted_bytes: int | None
    left: tuple[str, ...]
    refused: str
    errors: dict[str, float] | None

    @property
    def works(self) -> bool:
        """True if Lowtide ran, and its result is as near to that of float64 as eager's."""
        row = self.comparison["lowtide"]
        return not row.error and (row.agrees is not False or self._is_rounding())

    def _is_rounding(self) -> bool:
        return self.errors is not None and self.errors["lowtide"] <= 4 * self.errors["eager"]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, with the rows of the comparison, for JSON."""
        return {
            "target": self.target,
            **self.comparison.to_dict(),
            "predicted_bytes": self.predicted_bytes,
            "left": list(self.left),
            "refused": self.refused,
            "errors": self.errors,
        }

    def _repr_html_(self) -> str:
        said = map(html.line, filter(None, "\n".join(self._remarks()).splitlines()))
        return html.page(html.heading(self.target), self.comparison.html_table(), *said)

    def __str__(self) -> str:
        return "\n".join([str(self.comparison), "", *self._remarks()])

    __repr__ = __str__

    def _remarks(self) -> list[str]:
        parts = [self._verdict()]
        if self.predicted_bytes is not None:
            parts.append(f"Peak predicted before the call: {format_bytes(self.predicted_bytes)}.")
        if self.refused:
            parts += ["", "lt.script refuses it, so lt.compile ran instead:", self.refused]
        if self.left:
            count = len(self.left)
            parts += ["", f"Left to PyTorch ({count} op{'s' * (count != 1)}):"]
            parts += [f"  {line}" for line in self.left[:_MOST_LEFT]]
            parts += ["  …"] if count > _MOST_LEFT else []
        return parts

    def _verdict(self) -> str:
        eager, ours = self.comparison["eager"], self.comparison["lowtide"]
        if eager.error and ours.error:
            return "Neither ran."
        if ours.error:
            return "Lowtide failed, eager PyTorch did not; `lowtide doctor` checks the machine."
        if eager.error:
            return f"Lowtide needs {format_bytes(ours.peak_bytes)}. Eager PyTorch failed."
        return f"Lowtide: {_ratios(eager, ours)}. {self._agreement(ours)}"

    def _agreement(self, ours: ComparisonRow) -> str:
        if ours.agrees:
            return "The results agree."
        if self.errors is None:
            return "THE RESULTS DIFFER; `lowtide reduce` finds the op."
        off = ", ".join(f"{name} by {error:.2g}" for name, error in self.errors.items())
        if self._is_rounding():
            return f"The results differ by rounding.\nOff from a run in float64: {off}."
        return f"THE RESULTS DIFFER; `lowtide reduce` finds the op.\nOff from float64: {off}."


def try_target(target: str, shapes: str, dtypes: str, backward: bool = False) -> Trial:
    """Compare eager PyTorch with Lowtide. With `backward`: a training step, whose loss weighs all
    results at random. Raises ArgumentFault, and LowtideError if neither `lt.script` nor
    `lt.compile` takes the target."""
    import lowtide as lt

    found = resolve(target)
    plain = inspect.unwrap(found) if hasattr(found, "explain") else found
    if hasattr(plain, "explain"):
        raise ArgumentFault(f"{target!r} is compiled already; name the module that it is made of")
    refused = ""
    try:
        compiled: Any = scripted(target, found)
    except CompileError as fault:
        refused = str(fault)
        compiled = lt.compile(plain)
    like = make_arguments(shapes, dtypes)
    check_call(target, plain, like)
    torch.manual_seed(0)
    args = tuple(map(filled, like))
    called: dict[str, Callable[..., Any]] = {"eager": plain, "lowtide": compiled}
    if backward:
        _require_gradients(args)
        called = {name: _Step(f, plain) for name, f in called.items()}
    with _within_memory(), torch.set_grad_enabled(backward):
        comparison = compare(called, args)
        if not refused and comparison["lowtide"].error and not comparison["eager"].error:
            refused = _refusal(compiled, args)
        if refused and comparison["lowtide"].error:  # refused by the first call only
            compiled = lt.compile(plain)
            called["lowtide"] = _Step(compiled, plain) if backward else compiled
            comparison = compare(called, args)
        _check_shapes(shapes, comparison, called["eager"], args)
        off = None
        if comparison["lowtide"].agrees is False:
            judged = _Step(in_double(plain)) if backward else plain
            off = errors(judged, args, {name: f(*args) for name, f in called.items()})
        predicted, left = _explained(compiled, args) if not refused else (None, ())
    return Trial(
        target=target,
        comparison=comparison,
        predicted_bytes=predicted,
        left=left,
        refused=refused,
        errors=off,
    )


def _refusal(compiled: Any, args: Sequence[Any]) -> str:
    """Return why the program does not compile for these arguments, "" if it does."""
    try:
        compiled.memory(*args)
    except CompileError as fault:
        return str(fault)
    return ""


def _check_shapes(
    shapes: str, comparison: Comparison, plain: Callable[..., Any], args: Sequence[torch.Tensor]
) -> None:
    """Raise ArgumentFault if PyTorch refuses the arguments: the user's line, and why."""
    eager, ours = comparison["eager"].error, comparison["lowtide"].error
    if not eager or not ours or "out of memory" in (eager[:13], ours[:13]):
        return
    try:
        plain(*args)
    except ArgumentFault:
        raise
    except Exception as fault:
        raise ArgumentFault(
            f"write other shapes than {shapes}; eager PyTorch refuses them, too:\n"
            f"{described(fault)}"
        ) from fault


def _explained(compiled: Any, args: Sequence[Any]) -> tuple[int | None, tuple[str, ...]]:
    found = compiled.explain(*args)
    several = cast("Sequence[Any]", found) if isinstance(found, tuple) else (found,)  # graphs
    ops = (op for one in several for op in getattr(one, "torch_ops", ()))
    lines = [f"{op.op} at {op.loc}: {op.reason}" for op in ops]
    peak: int = cast("Any", found).memory.peak_bytes
    return peak, tuple(lines)


def _require_gradients(args: Sequence[torch.Tensor]) -> None:
    found = [x.requires_grad_() for x in args if x.is_floating_point() or x.is_complex()]
    if not found:
        raise ArgumentFault("--backward: no argument is of a floating-point dtype")


class _Step:
    """A training step: the function's results, and gradients of its arguments and of the
    parameters of `of`, the module that it is or belongs to."""

    def __init__(self, function: Callable[..., Any], of: Any = None) -> None:
        self.function = function
        owner = getattr(function if of is None else of, "__self__", function if of is None else of)
        self.parameters = [*owner.parameters()] if isinstance(owner, torch.nn.Module) else []

    def __call__(self, *args: torch.Tensor) -> tuple[Any, ...]:
        result = self.function(*args)
        made = [x for x in tensors_in(result) if x.requires_grad]
        if not made:
            raise ArgumentFault("--backward: no result has a gradient")
        leaves = [x for x in (*args, *self.parameters) if x.requires_grad]
        draw = torch.Generator().manual_seed(1)
        weights = [torch.rand(x.shape, generator=draw).to(x.dtype) for x in made]
        return result, torch.autograd.grad(made, leaves, weights, allow_unused=True)


def _ratios(eager: ComparisonRow, ours: ComparisonRow) -> str:
    said: list[str] = []
    if eager.min_ms and ours.min_ms:
        said.append(f"{_short(eager.min_ms / ours.min_ms)}× as fast as eager")
    if eager.peak_bytes and ours.peak_bytes is not None:
        share = ours.peak_bytes / eager.peak_bytes
        said.append(f"{_short(100 * share)} % of" if share < 2 else f"{_short(share)}×")
        said[-1] += " its memory"
    return ", ".join(said) or "too short to measure"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


@contextmanager
def _within_memory() -> Generator[None]:
    """Let allocations beyond the machine's memory fail, so that the system need not kill the
    process."""
    free = available_bytes() if sys.platform == "linux" else None
    if free is None:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as f:
        used = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
