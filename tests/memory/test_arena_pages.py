"""What a block of the arena takes of the machine: huge pages, and small ones behind them."""

from __future__ import annotations

import pytest
import torch

import lowtide as lt
from lowtide.memory.measure import can_measure_resident, measure_peak
from lowtide.runtime import arena

_ELSEWHERE_BYTES = 1 << 16  # pages of the rest of the process, which may go meanwhile


@pytest.mark.skipif(not can_measure_resident(), reason="needs Linux's /proc")
@pytest.mark.parametrize("nbytes", [1_300_000, 2_300_000, 2_621_440, 4_600_000, 9_000_000])
def test_whole_pages_and_no_more(nbytes: int) -> None:
    def call() -> list[torch.Tensor]:
        made = [arena.empty((nbytes,), torch.uint8) for _ in range(8)]
        for x in made:
            x.fill_(1)
        return made

    call()
    measured = measure_peak(call, release=lt.empty_cache)[0].peak_bytes
    assert measured <= 8 * arena.resident_bytes(nbytes) + (1 << 20)
    assert measured >= 8 * nbytes - _ELSEWHERE_BYTES
