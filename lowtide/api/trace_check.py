"""`check_trace`: checks that the recorded program does what the Python function does.

In: the function, its recording, and the inputs to check with. Out: nothing, or a `TracerWarning`.

    the function runs again on copies          other results?     the output, and the difference
                                               another program?   the first line that differs
    it runs again with each size varied        another program?   the size that became a constant

Invariant: afterwards the inputs, the module's buffers and PyTorch's random state are what they
were before. The program is checked op by op in PyTorch, before any kernel is compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from lowtide.api.traced import TracedFunction
from lowtide.frontend.trace.captures import Constants
from lowtide.frontend.trace.nested_values import take_apart
from lowtide.frontend.trace.places import here, warn
from lowtide.frontend.trace.trace import Call, Recording, record
from lowtide.ir.core import Function, print_function
from lowtide.ir.interpret import run_block

_ATOL = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The parts that are needed to run the function a second time."""

    func: Callable[..., Any]
    name: str
    module: torch.nn.Module | None
    constants: Constants
    recording: Recording
    traced: TracedFunction
    tolerance: float

    def retrace(self, call: Call) -> Recording:
        """Records the function once more, without warnings."""
        return record(
            self.func,
            copied(call),
            name=self.name,
            root=self.module,
            constants=self.constants.copy(),
            quiet=True,
        )


def check(c: Check, calls: Sequence[Call], *, vary: bool) -> None:
    """Compares on each of these calls; with `vary`, also looks for sizes that became constants."""
    kept = [*c.constants.tensors, *(c.module.buffers() if c.module is not None else ())]
    warned = c.recording.warnings > 0
    for call in calls:
        for text in _faults(c, call, kept):
            _warn(text)
            warned = True
    if vary and not warned:
        with _restored(kept):
            text = _frozen_size(c, calls[0])
        if text:
            _warn(text)


def _faults(c: Check, call: Call, kept: Sequence[torch.Tensor]) -> Iterator[str]:
    """Yield the faults of the program on this call."""
    with _restored(kept):
        second = c.retrace(call)
    differs = difference(c.recording.function, second.function)
    if differs:
        yield f"{c.name}() records a different program when it runs again: {differs}"
    with _restored(kept):
        before = torch.get_rng_state()
        try:
            recorded = _outputs(_run(c.traced, copied(call)))
        except Exception as error:
            yield f"the recorded program of {c.name}() fails: {type(error).__name__}: {error}"
            return
        is_random = not torch.equal(torch.get_rng_state(), before)
    if is_random:
        yield f"{c.name}() draws random numbers; did you forget .eval() on your model?"
    expected = _outputs(second.result)
    wrong = _mismatch(recorded, expected, c.tolerance)
    if not wrong:
        return
    with _restored(kept):
        args = copied(call)
        repeated = _outputs(c.func(*args.args, **args.kwargs))
    if _mismatch(repeated, expected, c.tolerance):
        wrong += "; the function itself returns different results each time"
    yield f"the recorded program of {c.name}() differs from the function: {wrong}"


def _frozen_size(c: Check, call: Call) -> str:
    """Records with one more in a dim, for each size where that is possible, and compares the
    programs."""
    for varied in _varied(call):
        try:
            second = c.retrace(varied)
        except Exception:  # the function asks for these sizes
            continue
        differs = difference(c.recording.function, second.function)
        if differs:
            return (
                f"{c.name}() keeps a size of its example inputs as a constant: {differs}. "
                "Sizes that go through int(), float(), range(), or a float's operator (`1.0 / n`, "
                "but not `1 / n`) are fixed; lt.script has no such limits"
            )
    return ""


def _run(traced: TracedFunction, call: Call) -> Any:
    driver, operands = traced.resolve(traced.flat(call.args, call.kwargs))
    env = dict(zip(driver.function.params, operands, strict=True))
    return traced.wrap(run_block(driver.function.block, env)[0])


def _outputs(result: Any) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    take_apart(result, "the result", leaves, (torch.Tensor, int, float))
    return leaves


def _mismatch(found: list[tuple[str, Any]], expected: list[tuple[str, Any]], tol: float) -> str:
    """Return text that says which output differs, and how far; "" if none does."""
    if len(found) != len(expected):
        return f"{len(found)} results instead of {len(expected)}"
    for (_, a), (where, b) in zip(found, expected, strict=True):
        x, y = torch.as_tensor(a), torch.as_tensor(b)
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{where} is {_form(x)} instead of {_form(y)}"
        if x.is_meta or torch.allclose(x, y, rtol=tol, atol=_ATOL, equal_nan=True):
            continue
        kind = torch.complex128 if x.is_complex() else torch.float64
        off = float((x.detach().to(kind) - y.detach().to(kind)).abs().max())
        return f"{where} is off by up to {off:.3g} (check_tolerance={tol:g})"
    return ""


def _form(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def difference(a: Function, b: Function) -> str:
    """Return the first line in which two programs differ, "" if they do not."""
    if a == b:
        return ""
    before, after = (print_function(fn, locs=False).splitlines() for fn in (a, b))
    for k, (x, y) in enumerate(zip_longest(before, after, fillvalue="(nothing)")):
        if x != y:
            ops = a.block.ops  # a line each, where nothing is nested
            is_flat = len(ops) == len(before) - 1
            place = f"{ops[k - 1].loc}: " if is_flat and 0 < k <= len(ops) else ""
            return f"{place}`{x.strip()}` becomes `{y.strip()}`"
    return ""


def copied(call: Call, data: bool = True) -> Call:
    """Return the call on copies of its tensors. A tensor that is given twice stays one tensor.
    Without `data`, copies share the memory, but not shapes and strides."""
    made: dict[int, torch.Tensor] = {}

    def copy(x: torch.Tensor) -> torch.Tensor:
        if id(x) not in made:
            made[id(x)] = _differentiable_as(x, x.detach().clone() if data else x.detach())
        return made[id(x)]

    return _mapped(call, copy)


def _differentiable_as(x: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Return `made`, which requires a gradient if x does, and is a leaf if x is. A leaf cannot be
    written in place."""
    made.requires_grad_(x.requires_grad)
    if x.is_leaf:
        return made
    with torch.enable_grad():
        return made.clone()


Dims = frozenset[tuple[int, int]]  # which dims: a tensor's number, and the dim
_MOST_VARIED = 8  # recordings, each of which runs the function


def _varied(call: Call) -> Iterator[Call]:
    """Yield the call with one more item along some dims of its inputs, the last one twice, for each
    size."""
    leaves: list[tuple[str, Any]] = []
    for value in (*call.args, *call.kwargs.values()):
        take_apart(value, "", leaves, (torch.Tensor,))
    for dims in _together([x for _, x in leaves])[:_MOST_VARIED]:
        numbers = itertools.count()

        def longer(x: torch.Tensor, dims: Dims = dims, numbers: Iterator[int] = numbers) -> Any:
            number, made = next(numbers), x
            for d in range(x.dim()):
                if (number, d) in dims:
                    made = torch.cat([made.detach(), made.detach().narrow(d, -1, 1)], d)
            return x if made is x else _differentiable_as(x, made)

        yield _mapped(call, longer)


def _together(tensors: Sequence[torch.Tensor]) -> list[Dims]:
    """Dims that may have to grow together: dim 0, as the first input has it; all of one size, since
    operands of a product share one; and those of one size in one place, where another dim of that
    size belongs to a parameter."""
    sizes = {
        (k, d): n
        for k, x in enumerate(tensors)
        if x.layout is torch.strided
        for d, n in enumerate(x.shape)
        if n
    }
    first = next(iter(sizes.values()), 0)
    found = [frozenset(at for at, n in sizes.items() if at[1] == 0 and n == first)]
    of_size: dict[int, set[tuple[int, int]]] = {}
    in_place: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for at, n in sizes.items():
        if n > 1:  # what has one item may be there to be broadcast
            of_size.setdefault(n, set()).add(at)
            in_place.setdefault((at[1], n), set()).add(at)
    found += map(frozenset, (*of_size.values(), *in_place.values()))
    return [dims for dims in dict.fromkeys(found) if dims]


def _mapped(call: Call, change: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    def rebuilt(value: Any) -> Any:
        leaves: list[tuple[str, Any]] = []
        nest = take_apart(value, "", leaves, (torch.Tensor,))
        return nest.build(iter([change(x) for _, x in leaves]))

    args = tuple(rebuilt(a) for a in call.args)  # in the order in which tensors are numbered
    return Call(args, {k: rebuilt(v) for k, v in call.kwargs.items()}, call.names)


@contextmanager
def _restored(tensors: Sequence[torch.Tensor]) -> Generator[None]:
    """Puts tensors and PyTorch's random state back to what they were."""
    state = torch.get_rng_state()
    before = [x.detach().clone() for x in tensors]
    try:
        yield
    finally:
        torch.set_rng_state(state)
        with torch.no_grad():
            for x, old in zip(tensors, before, strict=True):
                if not torch.equal(x, old):
                    x.detach().copy_(old)


def _warn(text: str) -> None:
    warn(text, here())
