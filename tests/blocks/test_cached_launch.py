"""How kernels are compiled for a GPU and launched there, on a stand-in for one."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide import config
from lowtide.codegen.triton.kernels import BlockKernels
from tests.blocks.stand_in import Gpu


def shifted(x: Tensor, y: Tensor, by: float) -> Tensor:
    return x[:, None] * by + y[None]


def rnn(x: Tensor, u: Tensor, h: Tensor) -> Tensor:
    out: list[Tensor] = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ u * 0.1)
        out.append(h)
    return torch.stack(out)


def check(found: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


def test_what_is_compiled_is_launched_again(gpu: Gpu) -> None:
    compiled = lt.script(shifted)
    for n, m, by in ((64, 48, 0.5), (80, 48, 2.0), (64, 96, 3.0), (1000, 48, 0.1)):
        x, y = torch.randn(n), torch.randn(m)
        check(compiled(x, y, by), shifted(x, y, by))
    assert len(gpu.launched) == 4
    assert gpu.loaded == ["k0"]


def test_forms(gpu: Gpu) -> None:
    """Rows of other lengths and tensors that lie unevenly are compiled for, other sizes are not."""
    compiled = lt.script(shifted)
    x, y = torch.randn(80), torch.randn(80)
    for a, b in ((x, y[:64]), (x[:77], y[:64]), (x, y[:65]), (x[:77], y[:66]), (x[1:], y[:64])):
        check(compiled(a, b, 0.5), shifted(a, b, 0.5))
    marks = [sorted(form.attrs) for form in gpu.forms("k0")]
    assert marks == [[(0,), (1,), (2,), (4,)], [(0,), (1,), (2,)], [(1,), (2,), (4,)]]


def test_tritons_own_launch_compiles_the_same(gpu: Gpu, made: list[BlockKernels]) -> None:
    x, y = torch.randn(64), torch.randn(48)
    lt.script(shifted)(x, y, 0.5)
    (ours,) = gpu.launched
    (kernel,) = made[0].bound().values()
    out, constants = torch.empty(64, 48), ours.given[3:]
    again = kernel.function.warmup(
        x, y, out, *constants, grid=(1,), num_warps=kernel.parameters.warps
    )
    ours, theirs = ours.source, again.src
    assert ours.signature == theirs.signature
    assert ours.constants == theirs.constants
    marks = {k: v for k, v in theirs.attrs.items() if v}
    assert ours.attrs == {k: v for k, v in marks.items() if k != (3,)}  # it strides nothing
    assert (3,) in marks


@pytest.mark.parametrize(("rows", "width"), [(100, 36), (101, 33)])
def test_steps_have_one_form(gpu: Gpu, rows: int, width: int) -> None:
    """The rows of a stack lie evenly at all steps, or none is taken to."""
    x, u, h = torch.randn(9, rows, width), torch.randn(width, width), torch.randn(rows, width)
    check(lt.script(rnn)(x, u, h), rnn(x, u, h))
    stepped = [x.source for x in gpu.launched if x.source.fn.__name__ == "k0"]
    assert len(stepped) == 9
    assert len({id(x) for x in stepped}) == 1
    moving = {k for k, kind in enumerate(stepped[0].signature.values()) if kind.startswith("*")}
    assert len(moving - {k for (k,) in stepped[0].attrs}) == (0 if width == 36 else 2)


def test_a_captured_call(gpu: Gpu) -> None:
    compiled = lt.script(shifted)
    x, y = torch.randn(64), torch.randn(48)
    gpu.capturing = True
    with pytest.warns(RuntimeWarning, match="Call the program once before"):
        check(compiled(x, y, 0.5), shifted(x, y, 0.5))
    assert not gpu.launched
    gpu.capturing = False
    check(compiled(x, y, 0.5), shifted(x, y, 0.5))
    gpu.capturing = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(compiled(x, y, 0.5), shifted(x, y, 0.5))
    assert len(gpu.launched) == 2


def looked_up(t: Tensor, i: Tensor) -> Tensor:
    return t[i] * 2


@pytest.mark.usefixtures("as_on_gpus")
def test_a_captured_call_waits_for_no_check(gpu: Gpu) -> None:
    compiled = lt.script(looked_up)
    t, i = torch.randn(64), torch.arange(40)
    check(compiled(t, i), looked_up(t, i))
    count = len(gpu.launched)
    assert count
    gpu.capturing = True
    check(compiled(t, i), looked_up(t, i))
    assert len(gpu.launched) == count


def test_the_machine_is_part_of_the_key() -> None:
    compiled = lt.script(shifted)
    x, y = torch.randn(40), torch.randn(50)
    with config.override(interpret_blocks=False):
        check(compiled(x, y, 0.5), shifted(x, y, 0.5))
        assert compiled.stages(x, y, 0.5)[-1][0] == "C"
    check(compiled(x, y, 0.5), shifted(x, y, 0.5))
    assert compiled.stages(x, y, 0.5)[-1][0] == "Triton"
