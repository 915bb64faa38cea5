"""Long reductions in two steps mean what they meant."""

from __future__ import annotations

import pytest
import torch

from lowtide.ir import dtypes as dt
from lowtide.texpr.build import Builder, Val
from lowtide.texpr.evaluate import evaluate
from lowtide.texpr.expr import Reduce
from lowtide.texpr.index import Index, Size, as_index
from lowtide.texpr.long_folds import LEAST_PART, LEAST_TERMS, in_two_steps
from lowtide.texpr.normalise import normalise

N, M = (as_index(Size(name, 33)) for name in "NM")


def over_all(b: Builder, x: Val, fn: str, dtype: dt.DType) -> Val:
    def body(_: tuple[Index, ...]) -> object:
        return b.reduce(fn, x.shape, lambda k: b.load(x, k))

    return b.tensor((), dtype, body)  # type: ignore[arg-type]


@pytest.mark.parametrize("fn", ["sum", "max", "min", "prod", "argmax", "argmin"])
@pytest.mark.parametrize("n", [1, 2048, 2049, 9000])
def test_values(fn: str, n: int) -> None:
    b = Builder()
    x = b.input("x", (N,), (1,), dt.f64)
    b.program.outputs = [over_all(b, x, fn, dt.i64 if "arg" in fn else dt.f64).name]
    hints = {"N": 1 << 20}
    made = in_two_steps(normalise(b.program, hints), hints)
    assert len(made.defs) > len(b.program.defs)
    torch.manual_seed(n)
    given = torch.randn(n, dtype=torch.float64)
    given[n // 2 :] = given[: n - n // 2].clone()  # equals, in several parts
    (name,) = b.program.outputs
    want = evaluate(b.program, {"x": given}, {"N": n})[name]
    torch.testing.assert_close(evaluate(made, {"x": given}, {"N": n})[name], want)


def test_one_axis_after_the_other() -> None:
    b = Builder()
    x = b.input("x", (N, M), (M, 1), dt.f32)
    b.program.outputs = [over_all(b, x, "sum", dt.f32).name]
    hints = {"N": 1000, "M": 900}
    made = in_two_steps(normalise(b.program, hints), hints)
    axes = [len(d.axes) for d in made.defs.values()]
    assert axes == [1, 0]
    given = torch.randn(70, 50)
    (name,) = b.program.outputs
    found = evaluate(made, {"x": given}, {"N": 70, "M": 50})[name]
    torch.testing.assert_close(found, given.sum())


def test_short_ones_stay() -> None:
    b = Builder()
    x = b.input("x", (N,), (1,), dt.f32)
    b.program.outputs = [over_all(b, x, "sum", dt.f32).name]
    hints = {"N": LEAST_TERMS - 1}
    normal = normalise(b.program, hints)
    assert in_two_steps(normal, hints).defs == normal.defs


def test_parts_are_not_shorter_than_it_is_worth() -> None:
    b = Builder()
    x = b.input("x", (N,), (1,), dt.f32)
    b.program.outputs = [over_all(b, x, "sum", dt.f32).name]
    hints = {"N": LEAST_TERMS}
    made = in_two_steps(normalise(b.program, hints), hints)
    first = next(iter(made.defs.values()))
    assert isinstance(first.expr, Reduce)
    assert first.expr.axes[0].extent.const == LEAST_PART
