"""How far the results of exported C are from those of PyTorch and of Lowtide in process.

In: a program, its calls, its exported library. Out: an `Agreement`.

The unit is one step of float32 at a result's largest value. Errors are those beside PyTorch in
float64. Rounding alone gives eager PyTorch an error, too; where one sample of it is small, others
are drawn (`tests/fuzz/rounding`). C may have four times as much, and four steps at least. Whole
numbers must be the same, unless rounding decides them: then four times as many may differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

import lowtide as lt
from lowtide import config
from lowtide.torch_private.pytree import leaves, tree_map
from tests.c_library.calling import OK, Library
from tests.fuzz.rounding import Rounding

_FACTOR: Final = 4
_SAMPLES: Final = 2


@dataclass(kw_only=True)
class Agreement:
    """`calls`: how many were compared. `c_steps`, `eager_steps`: the largest errors. `own_steps`,
    `library_steps`: the largest differences from Lowtide in process with its own products, and with
    the library's. `problem`: the first call that is wrong, "" for none."""

    calls: int = 0
    c_steps: float = 0.0
    eager_steps: float = 0.0
    own_steps: float = 0.0
    library_steps: float = 0.0
    problem: str = ""


def agreement(
    make: Callable[[], Callable[..., Any]],
    calls: Sequence[tuple[Any, ...]],
    folder: str,
    function: str,
) -> Agreement:
    """Compare the library in a folder. Each side gets a program of its own, since it may have
    state; `make` gives equal ones."""
    library = Library(Path(folder))
    eager, exact = make(), _wide_program(make())
    kernels, products = lt.script(make()), lt.script(make())
    made = Agreement()
    for args in calls:
        status, found = library.results(function, *args)
        if status != OK:
            made.problem = f"call {made.calls}: status {status}"
            return made
        usual = _results(eager, args)
        with config.override(products="kernels", kernels_only=True):
            own = _results(kernels, args)
        library_results = _results(products, args)
        right = usual if exact is None else _exact_results(exact, args)
        for j, c in enumerate(found):
            unit = _step(right[j])
            error, eager_error = (distance(x[j], right[j], unit) for x in (found, usual))
            made.c_steps = max(made.c_steps, error)
            made.own_steps = max(made.own_steps, distance(c, own[j], unit))
            made.library_steps = max(made.library_steps, distance(c, library_results[j], unit))
            if not right[j].is_floating_point():
                wrong, theirs_wrong = (_unequal(x[j], right[j]) for x in (found, usual))
                is_right = torch.equal(c, usual[j]) or wrong <= _FACTOR * theirs_wrong
            else:
                if not error <= _FACTOR * max(eager_error, 1):
                    eager_error = max(eager_error, _rounding(make(), args, j, right[j], unit))
                made.eager_steps = max(made.eager_steps, eager_error)
                is_right = error <= _FACTOR * max(eager_error, 1)
            if not is_right:
                apart = f"{error:.3g} steps, rounding gives {eager_error:.3g}"
                made.problem = f"call {made.calls}, result {j}: {apart}"
                return made
        made.calls += 1
    return made


def _wide_program(program: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the program in float64; None for a file of TorchScript, which fixes its types."""
    if isinstance(program, torch.jit.ScriptModule):
        return None
    return copy.deepcopy(program).double() if isinstance(program, nn.Module) else program


def _results(program: Callable[..., Any], args: tuple[Any, ...]) -> list[Tensor]:
    copies = tree_map(lambda a: a.clone() if isinstance(a, Tensor) else a, args)
    with torch.no_grad():
        found = program(*copies)
    return [torch.as_tensor(e).clone() for e in _numbers(found)]


def _exact_results(exact: Callable[..., Any], args: tuple[Any, ...]) -> list[Tensor]:
    def wide(a: Any) -> Any:
        return a.double() if isinstance(a, Tensor) and a.is_floating_point() else a

    torch.set_default_dtype(torch.float64)
    try:
        return _results(exact, tree_map(wide, args))
    finally:
        torch.set_default_dtype(torch.float32)


def _rounding(
    program: Callable[..., Any], args: tuple[Any, ...], j: int, right: Tensor, unit: float
) -> float:
    """Return the largest error of a result by other roundings."""
    found = 0.0
    for seed in range(_SAMPLES):
        with Rounding(seed):
            other = _results(program, args)
        found = max(found, distance(other[j], right, unit))
    return found


def _numbers(x: Any) -> Iterator[Any]:
    yield from (e for e in leaves(x) if isinstance(e, Tensor | int | float))


def _step(x: Tensor) -> float:
    """Return the distance of neighbours in float32 at the largest finite value."""
    if not x.is_floating_point():
        return 1.0
    finite = x[x.isfinite()].abs()
    most = float(finite.max()) if finite.numel() else 0.0
    return max(most, 1e-30) * torch.finfo(torch.float32).eps


def _unequal(a: Tensor, b: Tensor) -> float:
    return float((a != b).sum()) if a.shape == b.shape else float("inf")


def distance(a: Tensor, b: Tensor, unit: float) -> float:
    """Return the largest difference in units; infinite for other shapes, infinities and NaNs."""
    if a.shape != b.shape:
        return float("inf")
    x, y = a.double(), b.double()
    is_same = (x == y) | (x.isnan() & y.isnan())
    difference = torch.where(is_same, 0.0, (x - y).abs())
    if bool(difference.isnan().any()):
        return float("inf")
    return float(difference.max()) / unit if difference.numel() else 0.0
