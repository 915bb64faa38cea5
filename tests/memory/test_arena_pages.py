"""What a block of the arena counts as: huge pages, and small ones behind them."""

from __future__ import annotations

import mmap

import pytest
import torch

from lowtide.runtime import arena
from tests.memory.contract import asked_bytes


@pytest.mark.parametrize("nbytes", [1_300_000, 2_300_000, 2_621_440, 4_600_000, 9_000_000])
def test_whole_pages_and_no_more_than_a_quarter(nbytes: int) -> None:
    counted = arena.resident_bytes(nbytes)
    assert nbytes <= counted <= arena.class_bytes(nbytes) <= 1.25 * nbytes + mmap.PAGESIZE


def test_what_is_asked_for_is_counted_to_the_byte() -> None:
    asked = asked_bytes(lambda: [arena.empty((1_300_000,), torch.uint8) for _ in range(8)])
    assert asked == 8 * 1_300_000
