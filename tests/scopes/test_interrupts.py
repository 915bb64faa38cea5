"""An interrupt (Ctrl-C) wherever Python looks for one passes, and the scope ends nevertheless."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

import lowtide as lt

_CALLS = ("CALL", "CALL_FUNCTION_EX", "CALL_KW")
_SCOPES = "/memory/scopes/"


class Interrupter:
    """Raises KeyboardInterrupt at one of the places where CPython runs the handlers of signals: the
    beginning of a function, the end of a loop's body, and after a call of what is not Python."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.frames = 0
        self.names: dict[CodeType, dict[int, str]] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self.called)
        try:
            yield
        finally:
            sys.settrace(before)

    def called(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        # At its own beginning nothing has been tried yet, as in any context manager.
        if _SCOPES not in code.co_filename or code.co_name in ("__enter__", "__exit__"):
            return None
        if code not in self.names:
            self.names[code] = {i.offset: i.opname for i in dis.get_instructions(code)}
        self.frames += 1
        frame.f_trace_opcodes = True
        return self.inside(frame, code.co_name == "_end")

    def inside(self, frame: FrameType, is_end: bool) -> Callable[..., Any]:
        before, frames = "", self.frames

        def step(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal before, frames
            if event == "opcode":
                name = self.names[frame.f_code].get(frame.f_lasti, "")
                is_begun = name == "RESUME" and not is_end
                is_checked = is_begun or name == "JUMP_BACKWARD"
                is_checked |= before in _CALLS and frames == self.frames
                before, frames = name, self.frames
                self.count += is_checked
                if is_checked and self.count == self.at:
                    raise KeyboardInterrupt
            return step

        return step


def a_scope(kept: list[torch.Tensor]) -> None:
    """Tensors in the log and settled ones, one that has died, and one with a gradient retained."""
    with lt.dispose_scope() as scope:
        kept.append(torch.ones(1))
        assert scope.contains(kept[0])
        kept.append(kept[0] * 2)
        torch.ones(2)
        kept.append(torch.ones(1, requires_grad=True) * 2)
        kept[-1].retain_grad()
        kept.append(Ours([1.0, 2.0]))
    kept.append(torch.ones(1))  # nobody's


class Ours(torch.Tensor):
    """A class of the user's."""


def test_an_interrupt_loses_no_tensor_and_no_count(stats: lt.ScopeStatistics) -> None:
    stats.stop()
    depth = torch._C._len_torch_function_stack()
    a_scope([])
    at, is_interrupted = 0, True
    while is_interrupted and at < 2_000:
        at += 1
        stats.reset()
        kept: list[torch.Tensor] = []
        is_interrupted = False
        try:
            with Interrupter(at).on():
                a_scope(kept)
        except KeyboardInterrupt:
            is_interrupted = True
        assert lt.current_dispose_scope() is None, at
        assert torch._C._len_torch_function_stack() == depth, at
        assert all(lt.is_disposed(t) for t in kept[:4]), at
        kept.clear()
        assert stats.thread_total_live == 0, at
    assert 200 < at < 2_000


def test_scopes_end_at_the_limit_of_recursion() -> None:
    lt.scope_statistics().stop()
    depth = torch._C._len_torch_function_stack()
    kept: list[torch.Tensor] = []

    def deeper() -> None:
        with lt.dispose_scope():
            kept.append(torch.ones(1))
            deeper()

    with pytest.raises(RecursionError):
        deeper()
    assert len(kept) > 100
    assert all(lt.is_disposed(t) for t in kept)
    assert lt.current_dispose_scope() is None
    assert torch._C._len_torch_function_stack() == depth


def test_an_interrupt_in_the_middle_of_many_tensors(
    stats: lt.ScopeStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowtide.memory.scopes import disposed

    plain: Callable[..., None] = disposed.swap_contents
    calls = 0

    def interrupted(*pair: torch.Tensor) -> None:
        nonlocal calls
        plain(*pair)
        calls += 1
        if calls == 150:
            raise KeyboardInterrupt

    kept: list[torch.Tensor] = []
    with monkeypatch.context() as patch:
        patch.setattr(disposed, "swap_contents", interrupted)
        with pytest.raises(KeyboardInterrupt), lt.dispose_scope() as scope:
            kept += [torch.ones(1) for _ in range(300)]
    assert all(lt.is_disposed(t) for t in kept)
    assert scope.is_ended
    assert stats.disposed_in_scope == stats.created_in_scope == 300
    for tensor in (kept[0], kept[149], kept[-1]):
        with pytest.raises(lt.DisposedTensorError, match="kept \\+= "):
            tensor.sum()
