"""What an op of many parts leaves free between them counts, where the heap was free before, too."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from lowtide.memory import ledger as books
from lowtide.memory.host_heap import Within
from lowtide.memory.ledger import Ledger
from lowtide.memory.measure import can_measure_resident
from lowtide.runtime.played_arena import PlayedArena

MB = 1 << 20


def test_a_hole_is_too_short_for_an_aligned_tensor_of_its_size() -> None:
    heap = Within()
    first, second = heap.take(1_000_000), heap.take(500_000)
    assert first is not None
    assert second is not None
    heap.give_back(first)
    assert heap.hole_bytes == 1_000_000
    third = heap.take(1_000_000)
    assert heap.hole_bytes == 1_000_000
    heap.take(900_000)
    assert heap.hole_bytes == 100_000
    heap.give_back(second)
    assert heap.hole_bytes == 600_000  # beside each other
    heap.take(590_000)
    assert heap.hole_bytes == 10_000
    assert third is not None
    heap.give_back(third)
    heap.take(1_000_000)  # at the end there is room behind the hole
    assert heap.hole_bytes == 10_000


def test_holes_go_with_their_op_and_what_is_large_leaves_none() -> None:
    heap = Within()
    first, large = heap.take(1_000_000), heap.take(40 * MB)
    assert large is None
    assert first is not None
    heap.begin()
    heap.give_back(first)
    assert heap.hole_bytes == heap.most_hole_bytes == 0


def test_in_a_heap_in_pieces_no_hole_is_sure_to_be_taken_again() -> None:
    heap = Within()
    for _ in range(3):
        place = heap.take(1_000_000)
        assert place is not None
        heap.give_back(place)
    assert heap.hole_bytes == heap.most_hole_bytes == 1_000_000  # as much as there was at once
    heap.take(500_000)
    assert heap.hole_bytes == 500_000
    assert heap.most_hole_bytes == 1_000_000


def test_the_peak_has_the_holes_of_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books.heap, "leaves_holes", lambda: True)
    ledger = Ledger(PlayedArena())
    with ledger:
        x = torch.empty(MB, device="meta")
        y = x + 1
        del x
        z = y + 1  # takes new pages
    assert ledger.peak_bytes >= 12 * MB
    assert ledger.growth_bytes >= 12 * MB
    del y, z


@pytest.mark.skipif(not can_measure_resident(), reason="needs Linux's /proc")
def test_an_op_of_many_parts_keeps_to_the_least_budget() -> None:
    """As it comes, in a process whose heap eager's calls have left in pieces."""
    command = [sys.executable, "-m", "tests.memory.attention_alone"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for found in json.loads(printed.splitlines()[-1]):
        assert max(found["measured"]) <= found["most"] + MB // 2, found
