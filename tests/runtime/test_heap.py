"""Pages that the C library's heap keeps: given back before a call holds more than it may."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from lowtide.runtime import arena, heap, libc, ours
from lowtide.runtime.heap import BACKWARD, Guard, Observer, Trimmer, trimming

MB = 1 << 20


@pytest.fixture
def resident(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the process is said to hold, and how often its heap was trimmed to `live`."""
    found = {"bytes": 100 * MB, "live": 100 * MB, "trims": 0}

    def trim() -> bool:
        found["trims"] += 1
        found["bytes"] = found["live"]
        return True

    monkeypatch.setattr(libc, "resident_bytes", lambda: found["bytes"])
    monkeypatch.setattr(libc, "trim", trim)
    return found


def test_there_is_room_for_one_op_more(resident: dict[str, int]) -> None:
    trimmer = Trimmer(most_bytes=50 * MB, growth_bytes=10 * MB)
    for held, trims in ((40, 0), (41, 1), (30, 1), (45, 2)):
        resident["bytes"] = (100 + held) * MB
        trimmer.check()
        assert resident["trims"] == trims


def test_what_others_hold_is_looked_for_once(resident: dict[str, int]) -> None:
    trimmer = Trimmer(most_bytes=50 * MB, growth_bytes=10 * MB)
    resident["live"] = resident["bytes"] = 400 * MB
    for _ in range(5):
        trimmer.check()
    assert resident["trims"] <= 2
    resident["bytes"] += 20 * MB
    resident["trims"] = 0
    trimmer.check()
    assert resident["trims"] == 1


def test_backward_passes_are_followed(resident: dict[str, int]) -> None:
    x = torch.rand(10, requires_grad=True)
    y, fixed = x.exp(), torch.rand(3)
    trimmer = Trimmer(most_bytes=50 * MB, growth_bytes=10 * MB)
    trimmer.follow(trimmer.nodes([x]), [y, fixed, None, 3])
    resident["bytes"] = 200 * MB
    y.sum().backward()
    assert resident["trims"] == 1
    assert torch.equal(x.grad, x.exp())  # pyright: ignore[reportArgumentType]


def test_what_an_op_hands_on_is_not_followed(resident: dict[str, int]) -> None:
    x = torch.rand(10, requires_grad=True).exp()
    trimmer = Trimmer(most_bytes=50 * MB, growth_bytes=10 * MB)
    trimmer.follow(trimmer.nodes([x, 2]), [x.contiguous()])
    resident["bytes"] = 200 * MB
    x.sum().backward()
    assert not resident["trims"]


def test_what_is_written_into_an_operand_is_followed(resident: dict[str, int]) -> None:
    y = torch.rand(10, requires_grad=True) * 2
    trimmer = Trimmer(most_bytes=50 * MB, growth_bytes=10 * MB)
    given = trimmer.nodes([y])
    y[:3] = torch.zeros(3)
    trimmer.follow(given, [y])
    resident["bytes"] = 200 * MB
    y.sum().backward()
    assert resident["trims"] == 1


def test_an_op_is_asked_for_what_it_adds_itself(resident: dict[str, int]) -> None:
    """Where that is known."""
    large, small = object(), object()
    growths = {large: 20 * MB, small: MB}
    trimmer = Trimmer(most_bytes=50 * MB, growth_bytes=10 * MB, growths=growths)
    resident["bytes"] = 135 * MB
    for op, trims in ((small, 0), (None, 0), (large, 1)):
        trimmer.check(op)
        assert resident["trims"] == trims


def test_a_guard_looks_again_where_an_op_may_pass_what_was_left(
    resident: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap, "is_fresh", lambda _: True)
    large, small = object(), object()
    guard = Guard(most_bytes=50 * MB, growths={large: 20 * MB, small: MB})
    guard.check(small)
    resident["bytes"] = 145 * MB
    guard.check(small)  # there were 50 MB a moment ago
    assert not resident["trims"]
    guard = Guard(most_bytes=50 * MB, growths={large: 20 * MB, small: MB})
    resident["bytes"] = 180 * MB
    guard.check(small)
    resident["live"], resident["bytes"] = 145 * MB, 180 * MB
    guard.check(large)
    assert resident["trims"] == 1


def test_a_guard_follows_the_backward_pass_by_op(resident: dict[str, int]) -> None:
    op = object()
    x = torch.rand(10, requires_grad=True)
    y = x.exp()
    guard = Guard(most_bytes=50 * MB, growths={(BACKWARD, op): 20 * MB})
    guard.follow(guard.nodes([x]), [y], op)
    resident["bytes"] = 135 * MB
    y.sum().backward()
    assert resident["trims"] == 1


@pytest.mark.parametrize(("cotangents", "trims"), [(20 * MB, 1), (10 * MB, 0)])
def test_results_are_handed_out_with_room_for_their_cotangents(
    resident: dict[str, int], cotangents: int, trims: int
) -> None:
    guard = Guard(most_bytes=50 * MB, growths={heap.COTANGENTS: cotangents})
    resident["bytes"] = 135 * MB
    guard.hand_out()
    assert resident["trims"] == trims


def test_a_guard_leaves_the_arena_its_blocks(
    resident: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are predicted, as a call without a budget keeps them."""
    emptied: list[bool] = []
    monkeypatch.setattr(arena, "empty_cache", lambda: emptied.append(True))
    for made in (Guard(most_bytes=MB, growths={}), Trimmer(most_bytes=MB, growth_bytes=0)):
        assert not emptied
        resident["bytes"] += 10 * MB
        made.check()
    assert emptied
    assert resident["trims"]


def test_a_tight_arena_keeps_its_blocks_while_there_is_room(
    resident: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the block that is mapped, and for one op beside it."""
    monkeypatch.setattr(arena._pool, "is_tight", True)
    arena.empty_cache()
    trimmer = Trimmer(most_bytes=50 * MB, growth_bytes=10 * MB)
    for held, kept in ((36, 3), (37, 0)):
        del_me = arena.empty((3 * MB,), torch.uint8)
        del del_me
        resident["bytes"] = (100 + held) * MB
        with trimming(trimmer):
            made = arena.empty((4 * MB,), torch.uint8)
        assert arena.stats().cached_bytes == kept * MB
        del made
        arena.empty_cache()


def test_a_tight_arena_keeps_nothing_that_is_freed_where_no_op_would_have_room(
    resident: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even within an op, in a call and in its backward pass."""
    monkeypatch.setattr(arena._pool, "is_tight", True)
    trimmer = Trimmer(most_bytes=50 * MB, growth_bytes=10 * MB)

    def kept_bytes() -> int:
        arena.empty_cache()
        made = arena.empty((3 * MB,), torch.uint8)
        del made
        return arena.stats().cached_bytes

    class Freeing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            seen.append(kept_bytes())
            return g

    seen: list[int] = []
    for held, kept in ((40, 3 * MB), (41, 0)):
        resident["live"] = resident["bytes"] = (100 + held) * MB
        with trimming(trimmer):
            assert kept_bytes() == kept
        x = torch.rand(3, requires_grad=True)
        y = Freeing.apply(x)
        trimmer.follow(trimmer.nodes([x]), [y])
        y.sum().backward()  # pyright: ignore
        assert seen.pop() == kept
        assert kept_bytes() == 3 * MB  # nobody's call


def test_a_tight_arena_keeps_nothing_where_no_budget_tells(
    resident: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena._pool, "is_tight", True)
    watches = (None, Observer(), Guard(most_bytes=50 * MB, growths={}))
    for watch in watches:
        del_me = arena.empty((3 * MB,), torch.uint8)
        del del_me
        with trimming(watch):
            made = arena.empty((4 * MB,), torch.uint8)
        assert not arena.stats().cached_bytes
        del made
        arena.empty_cache()
    assert resident["bytes"]


def test_room_is_made_for_what_is_no_op(resident: dict[str, int]) -> None:
    resident["bytes"] = 140 * MB
    heap.make_room(400 * MB)  # no call is watched
    for watch, nbytes, trims in (
        (Trimmer(most_bytes=50 * MB, growth_bytes=0), 50 * MB, 0),
        (Trimmer(most_bytes=50 * MB, growth_bytes=0), 51 * MB, 1),
        (Observer(), 400 * MB, 0),
    ):
        resident["trims"] = 0
        with trimming(watch):
            heap.make_room(nbytes)
        assert resident["trims"] == trims


def test_only_within_a_budget_is_memory_of_the_heap_taken() -> None:
    free = ours.rules()
    for made in (Guard(most_bytes=MB, growths={}), Observer()):
        with trimming(made):
            assert ours.rules() is free
    with trimming(Trimmer(most_bytes=MB, growth_bytes=0)):
        assert ours.rules().takes_heap


def test_each_thread_has_the_call_that_it_is_in() -> None:
    outer, inner = (Trimmer(most_bytes=MB, growth_bytes=0) for _ in range(2))
    with trimming(outer):
        with suppress(ValueError), trimming(inner):
            assert heap.trimmer() is inner
            raise ValueError
        assert heap.trimmer() is outer
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(heap.trimmer).result() is None
    assert heap.trimmer() is None


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
def test_what_is_resident_is_this_process() -> None:
    before = libc.resident_bytes()
    x = torch.ones(64 * MB // 4)  # mapped, whatever holes there are
    assert libc.resident_bytes() - before > 48 * MB
    del x
