"""Work memory of a loop's kernels: shared, but for what later steps find again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.codegen.host.build import Stage, _Builder
from lowtide.codegen.host.program import Work
from lowtide.texpr.expr import Program
from lowtide.texpr.index import as_index
from lowtide.texpr.partition import Part


def kernels(described: list[tuple[str, int, bool]]) -> Any:
    """Plans and signatures; what a prologue has computed is found again by later steps."""
    plans = [SimpleNamespace(prologue=[0] * first, outputs=[]) for _, _, first in described]
    taken = [
        SimpleNamespace(name=n, thread_bytes=as_index(b), tensors=[], sizes=[], numbers=[])
        for n, b, _ in described
    ]
    return SimpleNamespace(plans=plans, signatures=taken, shaped={})


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ([("a", 80, True)], [(80,)]),
        ([("a", 80, True), ("b", 100, True)], [(80,), (100,)]),
        ([("a", 80, False), ("b", 100, False)], [(80, 100)]),
        (
            [("a", 80, True), ("b", 90, False), ("c", 70, True), ("d", 95, False)],
            [(70,), (80,), (90, 95)],
        ),
        ([("a", 0, False)], []),
    ],
)
def test_kernels_share_work_memory_but_for_what_later_steps_find(
    described: list[tuple[str, int, bool]], expected: list[tuple[int, ...]]
) -> None:
    builder = _Builder(Program(), {})
    stage = Stage(head="loop0.", part=Part(program=Program()), kernels=kernels(described))
    launches = list(builder.launches(stage, {}))
    works = [s for s in builder.statements if isinstance(s, Work)]
    assert sorted(tuple(i.const for i in w.thread_bytes) for w in works) == expected
    bytes_of = {w.name: w.thread_bytes for w in works}
    for launch, (_, nbytes, _) in zip(launches, described, strict=True):
        assert not nbytes or as_index(nbytes) in bytes_of[launch.work]
