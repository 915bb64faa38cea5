"""Convolutions of little work are part of a region; the key of a region is of what it reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide import config
from lowtide.diagnostics import stats


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(8, 4, 3, stride=2, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.b(F.relu(self.a(x))).mean(-1))


@pytest.mark.parametrize("way", [lt.script, lt.compile])
def test_small_convolutions_are_one_region(way: Any) -> None:
    torch.manual_seed(0)
    model = Small()
    compiled = way(model)
    with torch.no_grad():
        for n in (12, 33, 70, 12):
            x = torch.randn(2, 3, n)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)
    x = torch.randn(2, 3, 12, requires_grad=True)
    compiled(x).sum().backward()  # PyTorch's own
    found, x.grad = x.grad, None
    model(x).sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-5, atol=1e-6)


def test_they_are_compiled_only_where_no_gradient_is_recorded() -> None:
    compiled, x = lt.script(Small()), torch.randn(2, 3, 12)
    with torch.no_grad():
        compiled(x)
        assert "0 ops left to PyTorch" in str(compiled.explain(x))
    assert "0 ops" not in str(compiled.explain(x))


def test_large_ones_are_pytorchs() -> None:
    compiled, x = lt.script(nn.Conv2d(16, 32, 3)), torch.randn(4, 16, 40, 40)
    with torch.no_grad(), config.override(products=""):  # there is a library
        torch.testing.assert_close(compiled(x), compiled.__lowtide_root__(x), rtol=0, atol=0)
        assert "1 op left to PyTorch" in str(compiled.explain(x))


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.a(x)) * 2
        print(end="")
        return torch.tanh(self.b(y)) * 3


def test_what_a_region_does_not_read_is_no_part_of_its_key() -> None:
    compiled, x = lt.script(Cut()), torch.randn(3, 4)
    for parameter in compiled.parameters():
        parameter.requires_grad_(False)
    compiled(x)
    before = stats.cache_stats().traces
    compiled.b.weight.requires_grad_(True)
    found = compiled(x)
    assert found.requires_grad
    assert stats.cache_stats().traces - before == 1  # of the second region alone
    torch.testing.assert_close(found, compiled.__lowtide_root__(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", [lt.script, lt.compile])
def test_under_autocast_they_are_pytorchs(way: Any) -> None:
    model, x = nn.Conv1d(3, 8, 3), torch.randn(2, 3, 12)
    compiled = way(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = compiled(x)
        assert found.dtype is torch.bfloat16
        assert torch.equal(found, model(x))


def test_layouts_are_as_pytorch_has_them() -> None:
    model, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 9, 9)
    compiled = lt.script(model)
    with torch.no_grad():
        for given in (x.to(memory_format=torch.channels_last), x, x[:, :, ::2, ::2]):
            assert compiled(given).stride() == model(given).stride()
        model.to(memory_format=torch.channels_last)
        assert compiled(x).stride() == model(x).stride()


def two_strides(x: Tensor, w: Tensor, padding: list[int], groups: int) -> Tensor:
    return F.conv2d(x, w, None, 2, padding, 1, groups)


@pytest.mark.parametrize(
    ("x", "w", "padding", "groups"),
    [
        ((3, 2, 5, 1), (2, 1, 2, 2), [1, 1], 2),
        ((1, 2, 6, 4), (1, 2, 3, 1), [1, 0], 1),
        ((2, 1, 4, 4), (2, 1, 1, 1), [1, 0], 1),
        ((0, 2, 4, 4), (1, 2, 2, 2), [0, 1], 1),
    ],
)
def test_windows_of_one_place(x: Any, w: Any, padding: list[int], groups: int) -> None:
    torch.manual_seed(0)
    made = torch.randn(*x).transpose(-1, -2).contiguous().transpose(-1, -2)
    given = made, torch.randn(*w), padding, groups
    found, wanted = lt.script(two_strides)(*given), two_strides(*given)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert found.stride() == wanted.stride()


def of_one_int(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x * 2, w, None, 1, 1).relu()


def of_defaults(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x.exp(), w)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("fn", [of_one_int, of_defaults])
def test_a_captured_convolution_takes_ints_for_lists(fn: Any) -> None:
    x, w = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3)
    for compiled in (lt.compile(fn), lt.trace(fn, (x, w))):
        torch.testing.assert_close(compiled(x, w), fn(x, w), rtol=1e-5, atol=1e-5)
