"""The Triton text of kernels, printed without Triton."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowtide.codegen.machines import CUDA, Kind, executable, fused
from lowtide.codegen.triton.executable import BlockExecutable
from lowtide.texpr.build import Builder
from tests.emit.test_kernels import HINTS, PROGRAMS


def made(name: str) -> BlockExecutable:
    b = Builder()
    b.program.outputs = [v.name for v in PROGRAMS[name](b)]
    kind = Kind(machine=CUDA)
    found = executable(fused(b.program, HINTS, kind), list(HINTS), [], HINTS, kind)
    assert isinstance(found, BlockExecutable)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    found = made(name)
    golden(name, "\n\n".join([*map(str, found.plans), *(t.text for t in found.texts)]))


def test_the_driver_allocates_launches_and_lets_go(golden: Callable[[str, str], None]) -> None:
    golden("chamfer_driver", made("chamfer").driver)
