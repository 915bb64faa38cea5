"""Loops that the driver runs: which ops between two steps are regions."""

from __future__ import annotations

import torch

import lowtide as lt


def halved(x: torch.Tensor):
    steps = 0
    while x.numel() > 3:
        x = x[1:][x.numel() // 2 :]
        steps += 1
    return steps


def test_views_and_sizes_alone_are_no_region() -> None:
    before = lt.cache_stats()
    assert lt.script(halved)(torch.arange(100)) == halved(torch.arange(100))
    assert (lt.cache_stats() - before).specialisations == 0
