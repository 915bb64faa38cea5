"""The same Program is planned and differentiated once, whoever asks; what differs in anything is
not the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.execute import backend


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is planned anew."""
    found: list[Any] = []
    real = backend._compiled

    def plan(program: Any, *rest: Any) -> Any:
        found.append(program)
        return real(program, *rest)

    backend.use(None)
    monkeypatch.setattr(backend, "_compiled", plan)
    return found


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(1, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x - x.mean(-1, keepdim=True)) * self.scale, -1)


def of_layers(count: int) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    stack: list[torch.nn.Module] = []
    for _ in range(count):
        stack += [Layer(), torch.nn.Conv1d(17, 17, 1)]  # PyTorch's own, between regions
    return torch.nn.Sequential(*stack), torch.randn(5, 17, 24, requires_grad=True)


def test_layers_of_one_kind_are_planned_once(planned: list[Any]) -> None:
    model, x = of_layers(4)
    found = lt.script(model)(x)
    torch.testing.assert_close(found, model(x))
    gradients = torch.autograd.grad(found.square().sum(), [x, *model.parameters()])
    wanted = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b)
    of_four = len(planned)
    assert 0 < of_four == len({p.contents() for p in planned})
    model, x = of_layers(8)
    lt.script(model)(x).square().sum().backward()
    assert len(planned) == of_four


@pytest.mark.parametrize("other", [
    lambda x: torch.exp(x) * 3.0,
    lambda x: torch.exp(x) * 2,
    lambda x: torch.exp(x).double() * 2.0,
    lambda x: (torch.exp(x) * 2.0).sum(0),
])  # fmt: skip
def test_another_number_dtype_or_shape_is_another_program(other: Any) -> None:
    x = torch.rand(9, 40)

    def one(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) * 2.0

    compiled = lt.script(one)
    torch.testing.assert_close(compiled(x), one(x))
    torch.testing.assert_close(lt.trace(other, (x,))(x), other(x))


def test_both_of_equal_programs_run_at_sizes_of_their_own() -> None:
    @lt.script
    def a(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) * 2.0

    b = lt.script(a.__wrapped__)
    for sizes in ((5, 33), (7, 65), (1, 1), (0, 4)):
        x = torch.randn(sizes)
        torch.testing.assert_close(a(x), torch.softmax(x, -1) * 2.0)
        torch.testing.assert_close(b(x.double()), torch.softmax(x.double(), -1) * 2.0)
