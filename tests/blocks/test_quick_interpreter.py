"""What tests have kernels interpreted by gives the bits that Triton's interpreter gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels
from tests.blocks.programs import CASES
from tests.blocks.test_values import backward, leaves, results


@pytest.fixture(autouse=True, scope="module")
def _quickly_interpreted() -> None:
    """Not here."""


def bits(x: Tensor) -> list[int]:
    return x.detach().reshape(-1).view(torch.uint8).tolist()


def found(name: str) -> list[Tensor]:
    case = CASES[name]
    given = leaves(case)
    got = results(lt.script(case.fn)(*given))
    if case.grad:
        backward(got)
    return [*got, *(x.grad for x in given if isinstance(x, Tensor) and x.grad is not None)]


@pytest.mark.parametrize("name", ["scaled-bf16", "integers", "looked-up", "loss", "rows"])
def test_the_same_bits(name: str, made: list[BlockKernels]) -> None:
    from tests.blocks.quick_interpreter import quicken

    want = found(name)
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        got = found(name)
    assert made, "no kernel ran"
    for g, w in zip(got, want, strict=True):
        assert g.dtype is w.dtype
        assert bits(g) == bits(w)


def test_nothing_stays_quick() -> None:
    import triton.language as tl
    from triton.runtime import interpreter

    from tests.blocks.quick_interpreter import quicken

    def now() -> list[object]:
        functions = tl.tensor.__init__, tl.tensor.__add__, tl.block_type.__init__, tl.load
        inner = interpreter._patch_lang, interpreter._get_np_dtype
        return [*functions, *inner, interpreter.interpreter_builder.options]

    before = now()
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        found("scaled")
    assert now() == before
