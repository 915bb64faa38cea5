"""Which results may be written over operands: read off the planned kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.budget.dry_run import DryRun
from lowtide.budget.dry_run_steps import KernelStep
from lowtide.codegen import inplace

X, A = torch.ones(300, 200), torch.ones(200)
SQUARE = torch.ones(300, 300)
IMAGE = torch.ones(2, 8, 40, 50)
LINES = torch.ones(60_001, 20)


def executable(fn: Callable[..., Any], *args: Tensor) -> Any:
    """The executable of a function that is one region."""
    compiled: Any = lt.script(fn)
    driver, values = compiled.resolve(compiled.bind(args, {}))
    (step,) = (s for s in DryRun(driver, values).steps if isinstance(s, KernelStep))
    return step.executable()


def places(fn: Callable[..., Any], *args: Tensor) -> list[tuple[str, ...]]:
    """For each result of the kernels, in order, over which operands or temporaries it may lie."""
    kernels = executable(fn, *args).first
    return [kernels.replaceable.get(n, ()) for p in kernels.plans for n in p.outputs]


def point(x: Tensor, a: Tensor) -> Tensor:
    return torch.relu(x * a)


def norm(x: Tensor, a: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), a)


def of_rows(x: Tensor, a: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)


def of_all(x: Tensor, a: Tensor) -> Tensor:
    return x * x.sum()


def of_lines(x: Tensor) -> Tensor:
    return x * torch.exp(x.sum(0))  # the exponentials before all tiles


def of_first(x: Tensor) -> Tensor:
    return x * torch.exp(x[0])  # each thread reads the first line at a time of its own


def grouped(x: Tensor) -> Tensor:
    return F.group_norm(x, 2)


def image(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


def shifted(x: Tensor, a: Tensor) -> Tensor:
    return x + torch.roll(x, 1, 0)


def turned(x: Tensor) -> Tensor:
    return x.t() + 1  # lies as x does


def transposed(x: Tensor) -> Tensor:
    return x.t().contiguous() + 1


def clamped(x: Tensor, a: Tensor) -> Tensor:
    return x[1:] + x[:-1]


def spread(x: Tensor, a: Tensor) -> Tensor:
    return a * 2 + x


def widened(x: Tensor, a: Tensor) -> Tensor:
    return x.double() + 1


def product(x: Tensor) -> Tensor:
    return x @ x


def largest(x: Tensor, a: Tensor) -> Tensor:
    return torch.softmax(x, -1)  # runs again where it has met NaN


def written_first(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return y * 2, x + y


@pytest.mark.parametrize(
    ("fn", "args", "expected"),
    [
        (point, (X, A), [("x0",)]),
        (norm, (X, A), [("x0",)]),
        (of_rows, (X, A), [("x0",)]),
        (of_all, (X, A), [(), ("x0",)]),
        (of_lines, (LINES,), [(), ("x0",)]),
        (of_first, (LINES,), [()]),
        (grouped, (IMAGE,), [(), (), (), ("x0",)]),
        (image, (IMAGE.to(memory_format=torch.channels_last),), [("x0",)]),
        (image, (IMAGE[..., ::2],), [()]),
        (shifted, (X, A), [()]),
        (turned, (SQUARE,), [("x0",)]),
        (transposed, (SQUARE,), [()]),
        (clamped, (X, A), [()]),
        (spread, (X, A), [("x0",)]),
        (widened, (X, A), [()]),
        (product, (SQUARE,), [()]),
        (largest, (X, A), [()]),
        (written_first, (X, X + 1), [("x1",), ("x1", "x0")]),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)
def test_places(fn: Any, args: tuple[Tensor, ...], expected: Any) -> None:
    assert places(fn, *args) == expected


def test_no_kernel_reads_it_later() -> None:
    kernels = executable(of_all, X, A).first
    sums, points = kernels.plans
    tensors = inplace.layouts(kernels.normal.inputs, kernels.normal.defs)
    (output,) = points.outputs
    assert inplace.replaceable([sums, points], tensors, ["x0"], ()) == {output: ("x0",)}
    assert inplace.replaceable([points, sums], tensors, ["x0"], ()) == {}
    assert inplace.replaceable([sums, points], tensors, ["x0"], (points.name,)) == {}


def test_an_operand_that_only_earlier_kernels_read() -> None:
    """The second product has no use for `x`; its result is as large."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = torch.softmax(x @ w, 0)
        return torch.cumsum(h @ w, 1)

    w = torch.randn(200, 200)
    kernels = executable(fn, X, w).first
    assert "x0" in kernels.replaceable[kernels.plans[-1].outputs[0]]


def test_a_temporary_that_dies() -> None:
    """`h` is stored for the product, and read once more; what comes of it lies in its place."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(x @ w)
        return h * (h @ w).sum(1, keepdim=True)

    made = executable(fn, SQUARE, SQUARE)
    kernels = made.first
    (result,) = kernels.program.outputs
    (h,) = (kernels.placed[n] for n in (result,))
    assert h in kernels.program.defs or h in kernels.normal.defs
    sizes = dict.fromkeys(kernels.symbols, 300)
    large = [e for e in made.events(sizes) if e.held.nbytes == SQUARE.nbytes]
    alive = most = 0
    for e in large:
        alive += 1 if e.takes else -1
        most = max(most, alive)
    assert most == len({e.held.name for e in large}) - 1
    x = torch.rand(300, 300) / 100
    torch.testing.assert_close(lt.script(fn)(x, x), fn(x, x))
