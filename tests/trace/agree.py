"""Traces on one set of inputs, and compares with eager PyTorch on others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


def copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, args)


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    a, b = tree_leaves(found), tree_leaves(expected)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        if isinstance(y, torch.Tensor):
            torch.testing.assert_close(x, y)
        else:
            assert x == y
            assert type(x) is type(y)


def agree(traced: Callable[..., Any], fn: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    """The traced function gives what eager PyTorch gives, and changes its inputs alike."""
    for args in calls:
        for grad in (False, True):
            ours, theirs = copies(args), copies(args)
            with torch.set_grad_enabled(grad):
                torch.manual_seed(0)
                expected = fn(*theirs)
                torch.manual_seed(0)
                same(traced(*ours), expected)
            same(ours, theirs)
