"""Odd classes, odd threads, and what handles that end together share."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize

import lowtide as lt


class Slotted(torch.Tensor):
    __slots__ = ("note",)


def test_a_class_with_slots_is_left_alone() -> None:
    stats = lt.scope_statistics()
    stats.reset()
    with lt.dispose_scope():
        before = torch.ones(2)
        slotted = torch.ones(2).as_subclass(Slotted) + 1
        slotted.note = 3
        after = torch.ones(2)
    assert lt.is_disposed(before)
    assert lt.is_disposed(after)
    assert slotted.tolist() == [2, 2]
    assert slotted.note == 3
    for _ in range(2):
        with pytest.raises(TypeError, match="a Slotted cannot be disposed"):
            lt.dispose(slotted)
    with lt.dispose_scope() as scope:
        scope.attach(slotted)
    assert not lt.is_disposed(slotted)
    del slotted
    assert stats.thread_total_live == 0


def test_attributes_that_tensors_share_stay_with_the_others() -> None:
    class Shared(torch.Tensor):
        pass

    a, b = (torch.ones(2).as_subclass(Shared) for _ in range(2))
    attributes = {"note": 5}
    a.__dict__ = b.__dict__ = attributes  # pyright: ignore[reportAttributeAccessIssue]
    lt.dispose(a)
    assert b.note == 5  # pyright: ignore[reportAttributeAccessIssue]
    assert attributes == {"note": 5}


def test_attributes_stay_with_what_autograd_holds() -> None:
    source = torch.ones(4)
    with lt.dispose_scope() as scope:
        base = source * 2
        base.note = "kept"  # pyright: ignore[reportAttributeAccessIssue]
        view = scope.detach(base[1:])
    again = view._base
    assert again is not base
    assert again is not None
    assert vars(again) == {"note": "kept"}
    assert again.tolist() == [2, 2, 2, 2]


def test_each_of_many_names_its_own_line() -> None:
    with lt.dispose_scope():
        first = [torch.ones(1) for _ in range(40)]
        second = [torch.ones(2) for _ in range(40)]
        third = first[0] + 1
    del first[3:30]
    for tensors, made in ((first, "ones(1)"), (second, "ones(2)"), ([third], "first[0] + 1")):
        for tensor in tensors:
            with pytest.raises(lt.DisposedTensorError) as caught:
                tensor.sum()
            assert made in caught.value.birth.text
            assert "with lt.dispose_scope" not in caught.value.birth.text


def test_a_scope_that_another_thread_ends() -> None:
    lt.scope_statistics().stop()  # which would keep the mode on
    depth = torch._C._len_torch_function_stack()
    with lt.dispose_scope() as scope:
        before = torch.ones(1)
        thread = threading.Thread(target=scope.dispose)
        thread.start()
        thread.join()
        after = torch.ones(1)
    assert lt.is_disposed(before)
    assert not lt.is_disposed(after)
    assert lt.current_dispose_scope() is None
    assert torch._C._len_torch_function_stack() == depth


def test_an_interrupt_while_a_scope_opens_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    lt.scope_statistics().stop()
    depth = torch._C._len_torch_function_stack()
    with monkeypatch.context() as patch:
        patch.setattr("lowtide.memory.scopes.resident.resident_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt), lt.dispose_scope():
            pass
    assert lt.current_dispose_scope() is None
    assert torch._C._len_torch_function_stack() == depth


def test_cached_parametrizations_are_pytorchs() -> None:
    layer = parametrizations.orthogonal(torch.nn.Linear(3, 3))
    with parametrize.cached():
        with lt.dispose_scope() as scope:
            first = scope.detach(layer(torch.ones(2, 3)))
        assert layer(torch.ones(2, 3)).equal(first)
