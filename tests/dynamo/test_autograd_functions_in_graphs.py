"""A user's `torch.autograd.Function` under `lt.compile`: all of its own rules are used."""

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
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"autograd\.Function: PyTorch diff"):
        lt.compile(PROGRAMS["grad"], fullgraph=True)(torch.ones(2))


class Pair(torch.autograd.Function):
    """Twice and three times the input, with gradients that show which of them are None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if g is None:
            return None if h is None else h * 100
        return g * 10 if h is None else g + h


@pytest.mark.parametrize("used", [0, 1])
def test_missing_gradients_are_none(used: int) -> None:
    def f(x: Tensor) -> Tensor:
        return Pair.apply(x)[used].sin()  # pyright: ignore

    x = torch.linspace(-1, 2, 12).view(4, 3).requires_grad_()
    found, expected = (torch.autograd.grad(c(x).sum(), x) for c in (lt.compile(f), f))
    torch.testing.assert_close(found, expected)


def test_second_derivatives() -> None:
    def f(x: Tensor) -> Tensor:
        return own(x * 2) * x

    def second(g: Callable[[Tensor], Tensor]) -> Tensor:
        x = torch.linspace(-1, 2, 12).requires_grad_()
        (first,) = torch.autograd.grad(g(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), x)[0]

    torch.testing.assert_close(second(lt.compile(f)), second(f))


def test_forward_mode() -> None:
    import torch.autograd.forward_ad as forward

    def f(x: Tensor, t: Tensor) -> Any:
        with forward.dual_level():
            return tuple(forward.unpack_dual(Own.apply(forward.make_dual(x, t)) * 2))  # pyright: ignore

    x, t = torch.linspace(-1, 2, 12), torch.ones(12)
    torch.testing.assert_close(lt.compile(f)(x, t), f(x, t))


def test_inference_and_whole_graphs_are_captured() -> None:
    def f(x: Tensor) -> Tensor:
        return (Pair.apply(x * 2)[0] + 1).tanh()  # pyright: ignore

    x = torch.linspace(-1, 2, 12)
    with torch.no_grad():
        compiled = lt.compile(f)
        torch.testing.assert_close(compiled(x), f(x))
        assert len(compiled.explain(x).graphs) == 1
    torch.testing.assert_close(lt.compile(f, fullgraph=True)(x.requires_grad_()), f(x))
