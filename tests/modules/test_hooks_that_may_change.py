"""Hooks that give a value in some calls and None in others, of submodules and in saved files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: Tensor, k: int = 1) -> Tensor:
        self.count += k
        return x * k


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Counted()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.inner(x, 3) + self.inner(x, k=5)


def doubled_in_training(module: nn.Module, args: Any, result: Tensor) -> Any:
    return result * 2 if module.training else None


def where_large(module: nn.Module, args: Any, result: Tensor) -> Any:
    if result.sum() > 10:
        return result * 10
    return None


def after_some_calls(module: Any, args: Any) -> Any:
    if module.count > 5:
        return (args[0] + 1, *args[1:])
    return None


def always(module: nn.Module, args: Any) -> Any:
    return (args[0] + 1,)


def _compare(ours: nn.Module, theirs: nn.Module, *args: Any) -> None:
    got, wanted = ours(*args), theirs(*args)
    assert type(got) is type(wanted)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("hook", [doubled_in_training, where_large])
def test_a_submodule_hook_that_may_give_none(hook: Any) -> None:
    plain = Around()
    plain.inner.register_forward_hook(hook)
    compiled = lt.script(copy.deepcopy(plain))
    for mode in (True, False, True):
        for x in (torch.ones(2), torch.full((2,), 9.0)):
            _compare(compiled.train(mode), plain.train(mode), x)


def test_a_submodule_pre_hook_that_may_give_none() -> None:
    plain = Around()
    plain.inner.register_forward_pre_hook(after_some_calls)
    compiled = lt.script(copy.deepcopy(plain))
    for _ in range(3):
        _compare(compiled, plain, torch.ones(2))


def test_saved_hooks_that_may_give_none(tmp_path: Path) -> None:
    plain = Counted()
    plain.register_forward_hook(doubled_in_training)
    plain.register_forward_pre_hook(after_some_calls)
    made = lt.script(copy.deepcopy(plain))
    _compare(made, plain, torch.ones(2), 2)
    lt.save(made, tmp_path / "counted.lt")
    loaded = lt.load(tmp_path / "counted.lt")
    for mode in (False, True, False):
        for _ in range(2):
            _compare(loaded.train(mode), plain.train(mode), torch.ones(2), 2)


def test_a_saved_pre_hook_sees_no_keywords(tmp_path: Path) -> None:
    """Python shows it the positional arguments only; the program was made for all of them."""
    module = Counted()
    module.register_forward_pre_hook(always)
    lt.save(lt.script(module), tmp_path / "counted.lt")
    loaded = lt.load(tmp_path / "counted.lt")
    assert loaded(torch.ones(1)).tolist() == [2.0]
    with pytest.raises(TypeError, match="positional-only arguments passed as keyword"):
        loaded(torch.ones(1), k=5)
