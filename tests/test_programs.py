"""The example programs: seeded inputs, right answers, and the bytes eager needs for them."""

from __future__ import annotations

import pytest
import torch

from lowtide.memory.measure import measure_peak
from lowtide.tools.programs import PROGRAMS

MIB = 1 << 20


@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_are_seeded(name: str) -> None:
    program = PROGRAMS[name]
    once, again = program.make_inputs(*program.quick), program.make_inputs(*program.quick)
    other = program.make_inputs(*program.quick, seed=1)
    for one, same, different in zip(once, again, other, strict=True):
        assert torch.equal(one, same)
        assert not torch.equal(one, different)


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_fit_the_maker(name: str) -> None:
    program = PROGRAMS[name]
    assert len(program.sizes) == len(program.full) == len(program.quick)
    assert program.describe(program.quick).count("=") == len(program.sizes)
    assert program.function.__doc__


def test_boxes_are_boxes() -> None:
    boxes1, boxes2 = PROGRAMS["boxes"].make_inputs(50, 20)
    for boxes in (boxes1, boxes2):
        assert (boxes[:, 2:] > boxes[:, :2]).all()
    area = PROGRAMS["boxes"].function(boxes1, boxes1)
    assert isinstance(area, torch.Tensor)
    own = (boxes1[:, 2] - boxes1[:, 0]) * (boxes1[:, 3] - boxes1[:, 1])
    torch.testing.assert_close(area.diagonal(), own)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("boxes", (20_000, 500)),
        ("similarity", (128, 500)),
        ("chamfer", (2_000, 2_000)),
        ("nearest_centre", (5_000, 128, 32)),
    ],
)
def test_eager_peak_is_as_the_formula_says(name: str, sizes: tuple[int, ...]) -> None:
    program = PROGRAMS[name]
    args = program.make_inputs(*sizes)
    program.function(*args)
    # PyTorch's own count: what is resident depends on what the process held on to before.
    peak, _ = measure_peak(lambda: program.function(*args))
    assert peak.method == "profiler"
    assert peak.peak_bytes == pytest.approx(program.eager_peak_bytes(sizes), rel=0.01, abs=MIB)
