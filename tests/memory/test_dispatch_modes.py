"""Dispatch modes that threads leave in another order than they entered them."""

import threading
from typing import Any, cast

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_in_any_mode_without_ignore_compile_internals,
)

import lowtide as lt
from lowtide.memory.modes import OwnMode


class Theirs(TorchDispatchMode):
    """A mode that captured code does not run under, as that of PyTorch's fake tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_mode_that_ends_in_another_thread_leaves_nothing_on() -> None:
    is_entered, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with OwnMode():
            is_entered.set()
            may_leave.wait()

    thread = threading.Thread(target=other)
    with Theirs():
        thread.start()
        is_entered.wait()
    may_leave.set()
    thread.join()
    assert not is_in_any_mode_without_ignore_compile_internals()


def test_within_a_mode_of_the_users_it_stays_on() -> None:
    with Theirs():
        with OwnMode():
            pass
        assert is_in_any_mode_without_ignore_compile_internals()
    assert not is_in_any_mode_without_ignore_compile_internals()


def test_a_rehearsal_captures_nothing_anew_after_one_beside_a_mode() -> None:
    """What `compiled.memory` enters in a thread ends after a mode of the main thread."""
    is_entered, may_leave = threading.Event(), threading.Event()

    @cast("Any", torch.compiler.disable)
    def waits(x: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            is_entered.set()
            may_leave.wait()
        return x

    def f(x: torch.Tensor) -> torch.Tensor:
        return waits(x * 2).exp()

    compiled: Any = lt.compile(f)
    x = torch.rand(8)
    compiled.memory(x)
    thread = threading.Thread(target=compiled.memory, args=(x,))
    with Theirs():
        thread.start()
        is_entered.wait()
    may_leave.set()
    thread.join()
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled.memory(x)
        torch.testing.assert_close(compiled(x), (x * 2).exp())
