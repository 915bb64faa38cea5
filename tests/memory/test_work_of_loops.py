"""Work memory of a loop's kernels: what is taken, and that it is what was predicted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.codegen.c import steps
from lowtide.codegen.executable import Executable
from lowtide.runtime import arena
from lowtide.texpr.index import as_index

KB = 1 << 10


def kernel(name: str, nbytes: int, prologue: bool) -> tuple[Any, Any]:
    """A plan and its text; what a prologue has computed is found again by later steps."""
    text = SimpleNamespace(name=name, thread_bytes=as_index(nbytes))
    return SimpleNamespace(name=name, prologue=[object()] if prologue else []), text


@pytest.mark.parametrize(
    ("kernels", "taken"),
    [
        ([("a", 80, True)], [80]),
        ([("a", 80, True), ("b", 100, True)], [80, 100]),
        ([("a", 80, False), ("b", 100, False)], [100]),
        ([("a", 80, True), ("b", 90, False), ("c", 70, True), ("d", 95, False)], [70, 80, 95]),
    ],
)
def test_kernels_share_work_memory_but_for_what_later_steps_find(
    kernels: list[tuple[str, int, bool]], taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [kernel(name, kb * KB, prologue) for name, kb, prologue in kernels]
    plans, texts = [p for p, _ in made], [t for _, t in made]
    asked: list[int] = []
    monkeypatch.setattr(arena, "scratch", lambda nbytes: asked.append(nbytes) or object())
    work = steps._work(SimpleNamespace(sizes={}), texts, plans, 2)
    assert sorted(asked) == [2 * kb * KB for kb in taken]
    assert work.keys() == {name for name, _, _ in kernels}

    step: Any = SimpleNamespace(is_step=True, plans=plans, needs=texts, threads=lambda: 2)
    for name in ("_work", "_stays"):
        setattr(step, name, getattr(Executable, name).__get__(step))
    held = Executable.work_at_once(step, {})
    assert sorted(h.nbytes for h in held) == sorted(asked)
