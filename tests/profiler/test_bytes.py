"""Bytes: against programs whose allocations are known, and against PyTorch's own events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lowtide as lt
from lowtide.memory.measure import measure_peak
from lowtide.tools.profiler.alive import Found
from lowtide.tools.profiler.holders import Holders
from lowtide.tools.profiler.timeline import thinned
from tests.profiler.programs import FLOAT_BYTES, Block, line_of, row_of, similarity


def test_each_operator_has_the_bytes_it_allocates() -> None:
    x, y = torch.rand(16, 40), torch.rand(16, 40)
    with lt.profile() as prof:
        result = similarity(x, y)
    pairs = 16 * 40 * 40
    assert row_of(prof, "aten::sub").self_bytes == pairs * FLOAT_BYTES
    assert row_of(prof, "aten::abs").self_bytes == pairs * FLOAT_BYTES
    assert row_of(prof, "aten::lt").self_bytes >= pairs  # and its wrapped number
    assert row_of(prof, "aten::sum").self_bytes >= result.nbytes
    for row in prof.rows():
        if row.op in ("aten::unsqueeze", "aten::slice"):
            assert row.self_bytes == 0


def test_the_peak_and_what_is_live_at_it() -> None:
    x = torch.rand(16, 40)
    with lt.profile() as prof:
        similarity(x, x)
    live = prof.live_at_peak()
    assert sum(one.nbytes for one in live) == prof.peak_bytes
    pairs_bytes = 16 * 40 * 40 * FLOAT_BYTES
    difference = next(one for one in live if one.op == "aten::sub")
    assert difference.nbytes == pairs_bytes
    assert difference.source == line_of(similarity, "difference = ")
    assert (difference.shape, difference.dtype) == ((16, 40, 40), "float32")
    assert live == sorted(live, key=lambda one: -one.nbytes)
    assert prof.peak_bytes == prof.peaks["cpu"]


def test_the_peak_of_a_chain() -> None:
    def chain() -> torch.Tensor:
        a = torch.ones(1000)
        b = a.exp()
        del a
        c = b.exp()
        return c.exp()

    with lt.profile() as prof:
        chain()
    assert prof.peak_bytes == 3 * 1000 * FLOAT_BYTES  # b, c and the result
    assert [one.op for one in prof.live_at_peak()] == ["aten::exp"] * 3
    assert row_of(prof, "aten::ones").peak_bytes == 0
    rows = [row for row in prof.rows() if row.op == "aten::exp"]
    assert sorted(row.calls for row in rows) == [1, 1, 1]  # three lines


def test_calls_are_counted() -> None:
    x = torch.ones(16)
    with lt.profile() as prof:
        for _ in range(50):
            x.exp()
    row = row_of(prof, "aten::exp")
    assert (row.calls, row.self_bytes) == (50, 50 * 16 * FLOAT_BYTES)
    assert row.self_time_ns > 0


def test_what_was_there_before_is_not_counted() -> None:
    before = torch.ones(10_000)
    with lt.profile() as prof:
        del before
        torch.ones(10)
    assert prof.peak_bytes == 10 * FLOAT_BYTES


def test_an_empty_profile() -> None:
    with lt.profile() as prof:
        pass
    assert prof.peak_bytes == 0
    assert prof.live_at_peak() == []
    assert "peak 0 B" in prof.table()


def _train() -> None:
    torch.manual_seed(0)
    model = Block()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(50, 32)).sum().backward()
        optimizer.step()


def _views_and_writes() -> torch.Tensor:
    a = torch.zeros(100, 100)
    a[::2] += 1
    b = a.t().contiguous()
    b.resize_(200, 100)
    return torch.cat([a, b])


@pytest.mark.parametrize("program", [_train, _views_and_writes])
def test_the_peak_is_that_of_pytorchs_own_events(program: Callable[[], object]) -> None:
    program()
    peak, _ = measure_peak(program)
    with lt.profile() as prof:
        program()
    assert prof.peak_bytes == peak.peak_bytes


@pytest.mark.parametrize("program", [_train, _views_and_writes])
def test_all_bytes_belong_to_some_row(program: Callable[[], object]) -> None:
    program()
    with torch.profiler.profile(profile_memory=True) as theirs:
        program()
    kineto = theirs.profiler.kineto_results  # type: ignore[union-attr]
    sizes = [e.nbytes() for e in kineto.events() if e.name() == "[memory]"]
    with lt.profile() as prof:
        program()
    assert sum(row.self_bytes for row in prof.rows()) == sum(n for n in sizes if n > 0)
    assert sum(row.peak_bytes for row in prof.rows()) == prof.peak_bytes


def test_a_curve_of_many_points_is_thinned_without_losing_its_extremes() -> None:
    values = [(7919 * i) % 1009 for i in range(10_000)]
    values[5_555], values[5_556] = 4000, -1
    kept = thinned(values, 400)
    assert len(kept) <= 400
    assert list(kept) == sorted(set(kept))
    assert {0, 5_555, 5_556, 9_999} <= set(kept)
    assert list(thinned(values, 10_000)) == list(range(10_000))


def test_holders_are_looked_for_of_the_largest_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand live tensors it would take half a minute."""
    monkeypatch.setattr("lowtide.tools.profiler.profile._MOST_SEARCHED", 2)
    looked_at: list[int] = []
    plain = Holders.__init__

    def counting(self: Holders, found: Found) -> None:
        looked_at.append(len(found))
        plain(self, found)

    monkeypatch.setattr(Holders, "__init__", counting)
    with lt.profile() as prof:
        kept = [torch.ones(n) for n in (10, 30, 20)]
    live = prof.live_at_peak()
    assert looked_at == [2]
    assert [bool(one.holders) for one in live] == [True, True, False]
    assert len(kept) == 3
