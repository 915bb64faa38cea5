"""What an op of many parts leaves free between them counts, where the heap was free before, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.errors import UNKNOWN_LOC
from lowtide.memory import ledger as books
from lowtide.memory.host_heap import Within
from lowtide.memory.ledger import Ledger
from lowtide.runtime.played_arena import PlayedArena
from tests.memory.contract import asked_bytes, assert_budget_kept, assert_within_contract

MB = 1 << 20


def test_a_hole_is_too_short_for_an_aligned_tensor_of_its_size() -> None:
    heap = Within()
    first, _ = heap.take(1_000_000), heap.take(500_000)
    heap.give_back(1_000_000, first)
    heap.take(1_000_000)
    assert heap.hole_bytes == 1_000_000


def test_holes_side_by_side_become_one() -> None:
    heap = Within()
    for _ in range(9):
        heap.give_back(1_000_000, heap.take(1_000_000))
    assert heap.hole_bytes == 2_000_000


def test_holes_go_with_their_op_and_what_is_large_leaves_none() -> None:
    heap = Within()
    heap.give_back(40 * MB, heap.take(40 * MB))
    heap.give_back(1_000_000, heap.take(1_000_000))
    assert heap.hole_bytes == 1_000_000
    heap.begin()
    assert heap.hole_bytes == 0


def test_what_another_op_has_taken_leaves_a_hole_where_this_one_goes_on() -> None:
    heap = Within()
    op = heap.take(1_000_000)
    heap.begin()
    heap.give_back(1_000_000, op)
    assert heap.hole_bytes == 0
    heap.take(1_000_000)
    assert heap.hole_bytes == 1_000_000


def test_holes_where_something_older_was_are_known() -> None:
    heap = Within()
    op = heap.take(1_000_000)
    heap.begin()
    heap.give_back(1_000_000, op)
    heap.take(1_000_000)
    assert heap.old_bytes == 1_000_000
    heap.take(400_000)  # lies in it
    assert heap.old_bytes == 600_000
    heap.begin()
    assert heap.old_bytes == 0


def test_the_peak_has_holes_that_an_op_cannot_avoid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books.libc, "leaves_holes", lambda: True)
    ledger = Ledger(PlayedArena())
    with ledger:
        x = torch.empty(6 * MB, device="meta")
        ledger.at("another", UNKNOWN_LOC)
        y = torch.empty(MB, device="meta")
        del x
        z = torch.empty(6 * MB, device="meta")
    assert 52 * MB <= ledger.peak_bytes <= 53 * MB
    del y, z


def summed(x: Tensor) -> Tensor:
    c = torch.cumsum(x * 2, -1)
    return torch.cumsum(c * x, -1)[:, :5] + c.mean(-1, keepdim=True)


def test_gradients_that_python_has_given_are_not_added_in_place() -> None:
    """Two kernels give one of `c`: the engine adds them in new memory."""
    x = torch.rand(2000, 600, requires_grad=True)
    compiled: Any = lt.script(summed)

    def step() -> None:
        r = compiled(x)
        r.backward(torch.ones_like(r))

    step()
    x.grad = None
    asked = asked_bytes(step)
    x.grad = None
    predicted = compiled.memory(x).peak_bytes
    assert_within_contract(asked, predicted, library_ops=False)


def test_the_peak_has_the_holes_of_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books.libc, "leaves_holes", lambda: True)
    ledger = Ledger(PlayedArena())
    with ledger:
        x = torch.empty(MB, device="meta")
        y = x + 1
        del x
        z = y + 1  # takes new pages
    assert 8 * MB < ledger.peak_bytes <= 12.6 * MB
    assert ledger.growth_bytes >= 12 * MB
    del y, z


def test_what_a_part_works_in_leaves_a_hole_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books.libc, "leaves_holes", lambda: True)
    ledger = Ledger(PlayedArena())
    x, w = torch.empty(MB, device="meta"), torch.empty(MB, dtype=torch.float64, device="meta")
    ledger.given([x, w])
    with ledger:
        y = x * w  # 8 MiB, and as many of x as float64
        z = x * w
    assert ledger.growth_bytes >= (8 + 8 + 8 + 8 + 8) * MB  # with a hole for each
    del y, z


def attended(x: Tensor, w: Tensor, b: Tensor, o: Tensor, ob: Tensor) -> Any:
    return F.multi_head_attention_forward(
        x, x, x, 64, 4, w, b, None, None, False, 0.0, o, ob, need_weights=True
    )


def losses(x: Tensor, y: Tensor, z: Tensor) -> Any:
    near = F.triplet_margin_loss(x.tanh(), y, z) + F.margin_ranking_loss(x, y, z.sign())
    return near, F.gaussian_nll_loss(x, y, z.exp()), F.cosine_similarity(x, y).mean()


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    shapes = (250, 8, 64), (192, 64), (192,), (64, 64), (64,)
    return [torch.rand(shape) - 0.5 for shape in shapes]


def rows() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4000, 700) for _ in range(3)]


@pytest.mark.parametrize(("f", "make", "grad"), [(attended, inputs, True), (losses, rows, False)])
def test_an_op_of_many_parts_keeps_to_its_prediction(f: Any, make: Any, grad: bool) -> None:
    args = [x.requires_grad_(grad) for x in make()]
    compiled: Any = lt.script(f)

    def step() -> None:
        results = [x for x in compiled(*args) if x.requires_grad]
        if results:
            torch.autograd.backward(results, [torch.ones_like(x) for x in results])

    step()
    for x in args:
        x.grad = None
    asked = asked_bytes(step)
    for x in args:
        x.grad = None
    assert_within_contract(asked, compiled.memory(*args).peak_bytes, library_ops=False)


def test_an_op_of_many_parts_keeps_to_its_budget() -> None:
    args = inputs()
    with pytest.raises(lt.BudgetError) as refused:
        lt.script(attended, budget=1)(*args)
    least = refused.value.least_bytes
    compiled: Any = lt.script(attended, budget=least)
    compiled(*args)
    assert_budget_kept(asked_bytes(lambda: compiled(*args)), least, library_ops=False)
