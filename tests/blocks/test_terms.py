"""Sums over several products, taken apart, mean what they meant."""

from __future__ import annotations

import pytest
import torch

from lowtide.ir import dtypes as dt
from lowtide.texpr import expr as ex
from lowtide.texpr.build import Builder, Val
from lowtide.texpr.evaluate import evaluate
from lowtide.texpr.expr import Program, Reduce
from lowtide.texpr.index import Index, Size, as_index
from lowtide.texpr.normalise import normalise
from lowtide.texpr.terms import products_apart

N, M, K = (as_index(Size(name, 33)) for name in "NMK")
HINTS = {"N": 40, "M": 50, "K": 60}


def program(body: str, hints: dict[str, int]) -> tuple[Program, Program]:
    """`body`: of `a`, `b` [N, K] and `u`, `v` [M, K], summed over K."""
    b = Builder()
    given = {n: b.input(n, (N, K), (K, 1), dt.f64) for n in "ab"}
    given |= {n: b.input(n, (M, K), (K, 1), dt.f64) for n in "uv"}

    def element(at: tuple[Index, ...]) -> ex.Expr:
        def term(k: tuple[Index, ...]) -> ex.Expr:
            read = {n: b.load(x, ((at[0] if n in "ab" else at[1]), *k)) for n, x in given.items()}
            mul = lambda *parts: b.apply("mul", *parts)  # noqa: E731
            return {
                "sum": b.apply("add", mul(read["a"], read["u"]), mul(read["b"], read["v"])),
                "difference": b.apply("sub", mul(read["a"], read["u"]), mul(read["b"], read["v"])),
                "one": mul(read["a"], read["u"]),
                "pairs": b.apply(
                    "add",
                    mul(read["a"], read["u"]),
                    b.apply("exp", b.apply("sub", read["b"], read["v"])),
                ),
                "three": b.apply(
                    "sub",
                    mul(read["a"], read["u"]),
                    b.apply("sub", mul(read["b"], read["v"]), mul(read["b"], read["u"])),
                ),
            }[body]

        return b.reduce("sum", (K,), term)

    made: Val = b.tensor((N, M), dt.f64, element)
    b.program.outputs = [made.name]
    return b.program, products_apart(normalise(b.program, hints), hints)


@pytest.mark.parametrize(
    ("body", "sums"), [("sum", 2), ("difference", 2), ("three", 3), ("one", 1), ("pairs", 1)]
)
def test_values(body: str, sums: int) -> None:
    plain, made = program(body, HINTS)
    assert sum(isinstance(d.expr, Reduce) for d in made.defs.values()) == sums
    torch.manual_seed(0)
    sizes = {"N": 4, "M": 5, "K": 7}
    given = {n: torch.randn(4 if n in "ab" else 5, 7, dtype=torch.float64) for n in "abuv"}
    (name,) = plain.outputs
    want = evaluate(plain, given, sizes)[name]
    torch.testing.assert_close(evaluate(made, given, sizes)[name], want)


def test_small_ones_stay() -> None:
    _, made = program("sum", {"N": 40, "M": 50, "K": 8})
    assert len(made.defs) == 1
