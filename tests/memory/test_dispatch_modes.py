"""Dispatch modes that threads leave in another order than they entered them."""

import threading
from typing import Any

from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_in_any_mode_without_ignore_compile_internals,
)

from lowtide.torch_private.modes import OwnMode


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
