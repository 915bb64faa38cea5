"""Programs that gcc compiled wrongly, or rightly only by luck, with the flags of users' kernels:
integers at the ends of their range, and models whose kernels are split into functions.

Neither is in `QUICKLY_COMPILED`: less optimized, they were right all along.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from lowtide.codegen.c import kernel


def above_itself(x: Tensor) -> Tensor:
    return x + 1 > x


def below_itself(x: Tensor) -> Tensor:
    return x - 1 < x


def the_larger(x: Tensor) -> Tensor:
    return torch.maximum(x + 1, x)


def the_smaller(x: Tensor) -> Tensor:
    return torch.minimum(x - 1, x)


def negated(x: Tensor) -> Tensor:
    return (-x < 0) & (x < 0)


def magnitude(x: Tensor) -> Tensor:
    return x.abs() < 0


def sign_of_the_magnitude(x: Tensor) -> Tensor:
    return x.abs().sign() + x.abs() // 2


def doubled_and_halved(x: Tensor) -> Tensor:
    return (x * 2) // 2 == x


def shifted_there_and_back(x: Tensor) -> Tensor:
    return (x << 1) >> 1 == x


def square(x: Tensor) -> Tensor:
    return x * x >= 0


def cube(x: Tensor) -> Tensor:
    return x**3 + x * x


def divided(x: Tensor) -> Tensor:
    return x // -1 + x % 3


def distance(x: Tensor) -> Tensor:
    return (x[:, None] - x[None, :]).abs() < 0


def total(x: Tensor) -> Tensor:
    return x.sum(dtype=x.dtype) < x.amax()


def totals_of_rows(x: Tensor) -> Tensor:
    return (x[:, None] + x[None, :]).sum(1, dtype=x.dtype)


def product_of_all(x: Tensor) -> Tensor:
    return x.prod(dtype=x.dtype)


def running_total(x: Tensor) -> Tensor:
    return x.cumsum(0, dtype=x.dtype) > x


def within_a_loop(x: Tensor) -> Tensor:
    out = x
    for _ in range(3):
        out = out + x
    return out > x


PROGRAMS = [
    above_itself, below_itself, the_larger, the_smaller, negated, magnitude,
    sign_of_the_magnitude, doubled_and_halved, shifted_there_and_back, square, cube, divided,
    distance, total, totals_of_rows, product_of_all, running_total, within_a_loop,
]  # fmt: skip


def at_the_ends(dtype: torch.dtype) -> Tensor:
    """The least and largest values, their neighbours, roots and halves; 37 of them."""
    ends = torch.iinfo(dtype)
    root = int(ends.max**0.5)
    near = [ends.min, ends.min + 1, ends.max, ends.max - 1, ends.max // 2, ends.max // 2 + 1]
    values = [*near, *(v for v in (-2, -1, 0, 1, 3, root, root + 1) if v >= ends.min)]
    return torch.tensor((values * 3)[:37], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_integers_wrap_around(program: Callable[[Tensor], Tensor], dtype: torch.dtype):
    x = at_the_ends(dtype)
    expected = program(x)
    for compiled in (lt.script(program), lt.trace(program, x)):
        found = compiled(x)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tolist() == expected.tolist()


def feed_forward(width: int) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
    )


class Two(nn.Module):
    """Half a conformer's block: two feed-forward parts with residuals, a norm after each."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = feed_forward(width), feed_forward(width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x) * 0.5 + x)
        return self.last(self.second(x) * 0.5 + x)


class Alternating(nn.Module):
    """Such a part after a convolution over the steps."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.mixed, self.inner = nn.Conv1d(width, width, 3, padding=1), Two(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.mixed(x.permute(1, 2, 0)).permute(2, 0, 1))


@pytest.mark.parametrize(("shape", "lines"), [((40, 2, 16), 1000), ((5, 2, 12), 100)], ids=str)
@pytest.mark.parametrize("make", [Two, Alternating])
def test_models_whose_kernels_are_split(
    make: Callable[[int], nn.Module],
    shape: tuple[int, ...],
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """`lines`: how long a kernel is that is split. It depends on the CPU which one is so long."""
    monkeypatch.setattr(kernel, "LONG_LINES", lines)
    monkeypatch.setattr(kernel, "OUTLINED_LINES", min(kernel.OUTLINED_LINES, lines // 2))
    torch.manual_seed(0)
    model, x = make(shape[-1]), torch.rand(shape)
    exact = make(shape[-1]).double()
    exact.load_state_dict(model.state_dict())
    scripted = lt.script(model)
    with torch.no_grad():
        near(scripted(x), model(x), exact(x.double()))
    gradients = [
        torch.autograd.grad(m(v).square().sum(), [*m.parameters()])
        for m, v in ((scripted, x), (model, x), (exact, x.double()))
    ]
    for found, eager, truth in zip(*gradients, strict=True):
        near(found, eager, truth)


def near(found: Tensor, eager: Tensor, exact: Tensor) -> None:
    """No further from float64 than four times what eager mode is, and four units of the largest."""
    error, its_own = ((t.double() - exact).abs().max() for t in (found, eager))
    assert error <= 4 * its_own + 4 * torch.finfo(torch.float32).eps * exact.abs().max()
