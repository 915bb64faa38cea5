"""What a chunk gave is gone when the next one runs."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.execute.chunks import Chunks


def two_products(x, y):
    return torch.sort(torch.relu(x @ y + 1) @ y.t(), -1).values


def test_nothing_that_a_chunk_gave_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for one tensor: the first one's sum, to which the others are added."""
    torch.manual_seed(0)
    x, y = (torch.randn(600, 600, requires_grad=True) for _ in range(2))
    with pytest.raises(lt.BudgetError) as refused:
        lt.script(two_products, budget=1000)(x, y)
    limited = lt.script(two_products, budget=refused.value.least_bytes)
    limited(x, y).sum().backward()  # plans, and compiles
    given: list[weakref.ref[torch.Tensor]] = []
    left: list[int] = []
    run: Any = Chunks.chunk_gradients

    def watched(self: Chunks, *args: Any) -> Any:
        left.append(sum(ref() is not None for ref in given))
        found = run(self, *args)
        given.extend(weakref.ref(v) for v in found if isinstance(v, torch.Tensor))
        return found

    monkeypatch.setattr(Chunks, "chunk_gradients", watched)
    limited(x, y).sum().backward()
    assert len(left) >= 3
    assert max(left[2:]) <= 1
