"""Plans and budgets for CUDA tensors; none is there, and no GPU: fake ones stand for them."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import lowtide as lt
from lowtide.memory.bounds import rounded
from lowtide.memory.ledger import Ledger
from tests.memory.contract import with_room

pytest.importorskip("triton")

SIZES = (6000, 64), (64, 300), (300, 64)


def sorted_rows(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    h = torch.sort(torch.relu(x @ w), 1).values
    return (torch.exp(-h.abs()) @ v).sum(1)


def pointwise(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """PyTorch's own ops make views, and nodes of autograd's graph: no memory of a GPU's."""
    h = torch.cumsum(x @ w, 1)
    parts = [torch.cumsum(part, 1) for part in h.split(50, 1)]
    return torch.cumsum(torch.cat(parts, 1) @ v, 0)


def looked_up(table: Tensor, index: Tensor) -> Tensor:
    return torch.cumsum(table[index] * 2, 1)


def on_gpu(requires_grad: bool = False) -> list[Tensor]:
    with FakeTensorMode():
        return [torch.empty(s, device="cuda", requires_grad=requires_grad) for s in SIZES]


@pytest.mark.parametrize("fn", [sorted_rows, pointwise])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_only_tensors_count(fn: object, requires_grad: bool) -> None:
    """No pages, no warm blocks, no objects: what PyTorch's allocator is asked for."""
    found = lt.script(fn).memory(*on_gpu(requires_grad))  # type: ignore[arg-type]
    assert found.peak_bytes == sum(b.nbytes for b in found.buffers)
    assert not [b for b in found.buffers if b.kind == "arena"]


def test_the_sum_of_what_is_alive() -> None:
    """Each op reads one tensor of these bytes, and makes another: the first has ended by then. At
    the peak one is six parts, and a copy of the last one's operand, which PyTorch reads in order.
    Each is a whole number of the allocator's blocks."""
    (n, _), (_, k), _ = SIZES
    whole, part = rounded(4 * n * k), rounded(4 * n * 50)
    assert lt.script(pointwise).memory(*on_gpu()).peak_bytes == whole + 7 * part


@pytest.mark.parametrize("budget", ["6MB", "3MB", "1.5MB"])
def test_a_budget(budget: str) -> None:
    given = on_gpu()
    free = lt.script(sorted_rows).memory(*given).peak_bytes
    limited = lt.script(sorted_rows, budget=budget)
    limit = float(budget.removesuffix("MB")) * 1e6
    assert limited.memory(*given).peak_bytes <= limit < free
    assert re.search(r"k0 -> \w+ .* 4 warps", str(limited.explain(*given)))


def twice(x: Tensor) -> Tensor:
    return torch.cumsum(torch.cumsum(x * 2, 0) * 2, 1)


def test_no_memory_is_written_over() -> None:
    """What the CPU's backward pass writes over the tensors that it is done with lies beside them:
    the operand, the cotangent, and both gradients."""
    least: dict[str, int] = {}
    for device in ("cpu", "cuda"):
        with FakeTensorMode():
            x = torch.empty(1500, 1500, device=device, requires_grad=True)
        with pytest.raises(lt.BudgetError) as refused:
            lt.script(twice, budget=1).memory(x)
        least[device] = refused.value.least_bytes
    assert least["cuda"] > least["cpu"] + x.nbytes * 0.9


COUNT = 2_000_000
WITHIN = {  # bytes that PyTorch 2.11's allocator was asked for beyond results
    "sort": (lambda x, _: torch.sort(x), 40_391_000),
    "short rows": (lambda x, _: torch.sort(x.view(-1, 2000)), 16_000),
    "columns": (lambda x, _: torch.sort(x.view(500_000, 4), 0), 96_400_000),
    "median": (lambda x, _: torch.median(x), 64_000_000),
    "expanded": (lambda x, _: x[:2000].expand(1000, 2000) @ x.view(2000, 1000), 8_000_000),
    "few rows": (lambda x, _: torch.sort(x.view(20, -1)), 64_391_000),
    "many rows": (lambda x, _: torch.sort(x.view(-1, 5000)), 40_000_000),
    "topk": (lambda x, _: torch.topk(x.view(-1, 2000), 5), 1_566_000),
    "turned": (lambda x, _: torch.softmax(x.view(-1, 2000).t(), 0), 8_000_000),
    "accumulated": (lambda x, i: x.index_put((i,), x, accumulate=True), 96_452_000),
    "masked": (lambda x, _: x.masked_scatter(x > 0, x), 16_037_000),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHIN)
def test_what_pytorchs_kernels_take(name: str) -> None:
    op, measured = WITHIN[name]
    ledger = Ledger(of_host=False)
    x = torch.empty(COUNT, device="meta")
    i = torch.empty(COUNT, device="meta", dtype=torch.int64)
    ledger.given([x, i])
    with ledger:
        found = op(x, i)
    within = ledger.peak_bytes - ledger.live_bytes
    del found
    assert measured <= with_room(within)
    assert within <= 2 * measured + 16_000_000


def test_a_budget_that_is_too_small() -> None:
    with pytest.raises(lt.BudgetError) as fault:
        lt.script(sorted_rows, budget="50KB").memory(*on_gpu())
    assert "arena" not in str(fault.value)


def test_indices_that_are_data() -> None:
    """Whether a CUDA graph is being captured is asked of a GPU only where there may be one."""
    with FakeTensorMode():
        table = torch.empty(300, 64, device="cuda")
        index = torch.zeros(6000, dtype=torch.int64, device="cuda")
    compiled = lt.script(looked_up)
    # what is read is the cumulative sum's operand; the check's one byte ended before
    assert compiled.memory(table, index).peak_bytes == 2 * 4 * 6000 * 64
    assert "k0" in str(compiled.explain(table, index))
