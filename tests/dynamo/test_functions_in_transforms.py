"""A user's `torch.autograd.Function` inside `torch.func` transforms: its own rules are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap  # pyright: ignore[reportPrivateImportUsage]

import lowtide as lt
from lowtide.diagnostics import faults


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    with faults.strict():
        yield
    torch._dynamo.reset()


class Own(torch.autograd.Function):
    """A sine whose derivatives are not the sine's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return g * ctx.saved_tensors[0] * 7

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return t * 9


class Batched(torch.autograd.Function):
    """A sine that is a cosine in a batch."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.cos(), in_dims[0]


def own(x: Tensor) -> Tensor:
    return Own.apply(x).sum()  # pyright: ignore


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "grad": lambda x: grad(own)(x.exp()) + x.cos(),
    "second": lambda x: grad(lambda q: grad(own)(q).pow(2).sum())(x),
    "vjp": lambda x: vjp(own, x)[1](x.sum())[0],
    "jacrev": lambda x: jacrev(own)(x),
    "jvp": lambda x: jvp(own, (x,), (x,)),
    "batch of grads": lambda x: vmap(grad(own))(x),
    "hessian": lambda x: hessian(own)(x[0]),
    "vmap": lambda x: vmap(lambda q: Batched.apply(q) + 1)(x),  # pyright: ignore
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_own_rules_are_used(name: str, needs_grad: bool) -> None:
    x = torch.linspace(-1, 2, 12).view(4, 3).requires_grad_(needs_grad)
    found, expected = lt.compile(PROGRAMS[name])(x), PROGRAMS[name](x)
    torch.testing.assert_close(found, expected)


def test_other_backends_capture_as_before() -> None:
    graphs: list[Any] = []

    def backend(module: Any, examples: Any) -> Any:
        graphs.append(module)
        return module.forward

    lt.compile(PROGRAMS["grad"])(torch.ones(2))
    torch._dynamo.reset()
    torch.compile(PROGRAMS["grad"], backend=backend, fullgraph=True)(torch.ones(2))
    assert len(graphs) == 1


def test_a_whole_graph_is_refused() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\.func transform"):
        lt.compile(PROGRAMS["grad"], fullgraph=True)(torch.ones(2))
