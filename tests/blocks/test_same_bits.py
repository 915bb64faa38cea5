"""Under `torch.use_deterministic_algorithms(True)` the same call gives the same bits each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.autograd import profiler

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.runtime import choice
from tests.blocks import test_text
from tests.blocks.programs import CASES, looked_up
from tests.blocks.stand_in import Gpu
from tests.blocks.test_values import backward, leaves, results
from tests.emit.test_kernels import PROGRAMS

# By which a gradient might be added up: of index_put_ and scatter_add_ there are, on a GPU, ways
# that add in the order in which threads come by.
_SCATTERS = frozenset({
    "aten::index_add", "aten::index_add_", "aten::index_put_", "aten::_index_put_impl_",
    "aten::put_", "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce_",
    "aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward",
})  # fmt: skip
_WITHIN = {"aten::index_put_", "aten::_index_put_impl_"}  # index_add_, so that bits stay the same


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def pairs(table: Tensor, index: Tensor) -> Tensor:
    return (table[index[:, :1], index[:, 1:] % 40] ** 2).sum(1)


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def gathered(table: Tensor, index: Tensor) -> Tensor:
    return torch.exp(table.gather(0, index[:, :1].expand(-1, 40))).sum(1)


@pytest.mark.parametrize("fn", [looked_up, pairs, gathered])
def test_scatters_are_index_add(
    fn: Callable[[Tensor, Tensor], Tensor], made: list[BlockKernels], device: torch.device
) -> None:
    torch.manual_seed(0)
    compiled = lt.script(fn)
    table = torch.randn(100, 40).to(device).requires_grad_()
    index = torch.randint(0, 100, (50, 7)).to(device)
    want = torch.autograd.grad(fn(table, index).sum(), table)[0]
    found: list[Tensor] = []
    for _ in range(2):
        with profiler.profile() as profile:
            found += torch.autograd.grad(compiled(table, index).sum(), table)
        names = {e.name for e in profile.function_events} & _SCATTERS
        assert names - (_WITHIN if device.type == "cuda" else set()) == {"aten::index_add_"}
    assert made, "no kernel ran"
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], want, rtol=1e-4, atol=1e-4)


def test_pytorch_promises_it_of_index_add() -> None:
    promised, _, _ = str(torch.use_deterministic_algorithms.__doc__).rpartition("will throw a")
    assert "index_add` when called on CUDA tensor" in promised


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_kernel_adds_where_another_does(name: str) -> None:
    assert "atomic" not in test_text.made(name).source


@pytest.mark.parametrize("name", ["looked-up", "chamfer", "kernel-sum", "loss", "channels", "rnn"])
def test_what_is_allocated_is_written(name: str, device: torch.device) -> None:
    """PyTorch fills new memory with NaN, then."""
    case = CASES[name]
    compiled, given, same = lt.script(case.fn), leaves(case, device), leaves(case, device)
    got, again, want = (results(f(*x)) for f, x in (
        (compiled, given), (compiled, given), (case.fn, same),
    ))  # fmt: skip
    backward(got)
    backward(want)
    near = {"rtol": 10 * case.tolerance, "atol": 10 * case.tolerance}
    for g, a, w in zip(got, again, want, strict=True):
        assert torch.equal(g, a)
        torch.testing.assert_close(g, w, **near)
    for g, w in zip(given, same, strict=True):
        if isinstance(w, Tensor) and w.grad is not None:
            torch.testing.assert_close(g.grad, w.grad, **near)


def test_no_clock_chooses_products(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object) -> int:
        raise AssertionError

    monkeypatch.setattr(choice, "_measured", measured)
    compiled = lt.script(product)
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    for _ in range(2):
        assert torch.equal(compiled(x, y), x @ y)
    assert not gpu.launched
