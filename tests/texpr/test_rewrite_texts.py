"""Each rewrite of Programs by texts: before, after, and both evaluated. See tests/texts.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from lowtide.texpr.build import Unsupported
from lowtide.texpr.evaluate import evaluate
from lowtide.texpr.expr import Program
from lowtide.texpr.parser import parse_program
from lowtide.texpr.printer import print_program, sizes_of
from lowtide.texpr.rewrites import REWRITES
from lowtide.texpr.sizes import evaluate as size_of
from tests.texts import Case, cases_of

FOLDER = Path(__file__).parent / "text"
CASES = cases_of(FOLDER)
SIZES = (5, 2, 9)  # of the runs; a case gives likely sizes


def test_each_rewrite_has_a_file() -> None:
    assert {file.stem for file in FOLDER.glob("*.txt")} == REWRITES.keys()


Tensors = dict[str, torch.Tensor]


def inputs_of(program: Program, sizes: Mapping[str, int], known: Tensors) -> Tensors:
    """Seeded, those that are known as they are; numbers are between 0 and 1, ints small."""
    generator = torch.Generator().manual_seed(0)
    found: Tensors = {}
    for i in program.inputs.values():
        shape = [size_of(n, sizes) for n in i.shape]
        x = torch.rand(shape, generator=generator, dtype=torch.float64)
        found[i.name] = known.get(i.name, (x * (1 if i.dtype.is_float else 3)).to(i.dtype.torch))
    return found


def gradients(
    program: Program, inputs: Tensors, given: Tensors, sizes: Mapping[str, int]
) -> Tensors:
    """What PyTorch's autograd says of the evaluator, by the names of a backward Program."""
    leaves = {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in inputs.items()}
    found = evaluate(program, leaves, sizes)
    total = sum((found[n] * given[f"g_{n}"]).sum() for n in program.results)
    assert isinstance(total, torch.Tensor)
    wanted = {n: x for n, x in leaves.items() if x.requires_grad}
    grads = torch.autograd.grad(total, [*wanted.values()])
    return {f"ct_{n}": g for n, g in zip(wanted, grads, strict=True)}


def check_values(before: Program, after: Program, name: str, size: int) -> None:
    """The results of both are equal, up to the order of addition."""
    sizes = {a.name: max(size, a.low or 0) for p in (before, after) for a in sizes_of(p)}
    inputs = inputs_of(before, sizes, {})
    given = inputs_of(after, sizes, inputs)
    found = evaluate(after, given, sizes)
    if name == "gradients":
        wanted = gradients(before, inputs, given, sizes)
    else:
        wanted = evaluate(before, inputs, sizes)
    names = [n for n in after.results if n in wanted]
    assert names
    for n in names:
        want = wanted[n]
        near = 1e-6 if want.dtype is torch.float32 else 1e-12
        torch.testing.assert_close(
            found[n].reshape(want.shape), want, rtol=near, atol=near, equal_nan=True
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rewrite(case: Case, request: pytest.FixtureRequest) -> None:
    before = parse_program(case.before)
    assert print_program(before) == case.before.strip()
    hints = {a.name: int(case.given.get(a.name, 64)) for a in sizes_of(before)}
    try:
        after = REWRITES[case.name](before, hints)
    except Unsupported:
        assert not case.fires
        return
    assert print_program(before) == case.before.strip()  # it is not changed itself
    text = print_program(after)
    case.check(text, request.config.getoption("--update-golden"))
    again = parse_program(text)
    assert print_program(again) == text
    for size in SIZES:
        check_values(before, again, case.name, size)
