"""Forward hooks of submodules that do not compile: Python calls them, and uses what they give."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt

X = torch.arange(3.0)


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.calls = 0

    def count(self, module: nn.Module, args: Any, result: Tensor) -> None:
        self.calls += 1

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


class Adder:
    def __init__(self) -> None:
        self.calls = 0

    def hook(self, module: nn.Module, args: Any, result: Tensor) -> Tensor:
        self.calls += 1
        return result + self.calls


Seen = list[Any]


def in_a_dict(m: Outer, seen: Seen) -> Any:
    kept: dict[str, Tensor] = {}
    seen.append(kept)

    def hook(module, args, result):
        kept["last"] = result.detach()

    return m.inner.register_forward_hook(hook)


def in_a_list(m: Outer, seen: Seen) -> Any:
    return m.inner.register_forward_hook(lambda module, args, result: seen.append(result))


def with_a_result(m: Outer, seen: Seen) -> Any:
    def hook(module, args, result):
        seen.append(args[0])
        return result * 3

    return m.inner.register_forward_hook(hook)


def in_place(m: Outer, seen: Seen) -> Any:
    def hook(module, args, result):
        result.add_(10)
        seen.append(float(result.sum()))

    return m.inner.register_forward_hook(hook)


def one_after_another(m: Outer, seen: Seen) -> Any:
    def first(module, args, result):
        seen.append(1)
        return result, result

    def second(module, args, result):
        seen.append(2)
        return result[0] + result[1]

    m.inner.register_forward_hook(first)
    return m.inner.register_forward_hook(second)


def before(m: Outer, seen: Seen) -> Any:
    return m.inner.register_forward_pre_hook(lambda module, args: seen.append(args))


def before_with_a_result(m: Outer, seen: Seen) -> Any:
    def hook(module, args):
        seen.append(args[0])
        return args[0] * 4

    return m.inner.register_forward_pre_hook(hook)


def counting(m: Outer, seen: Seen) -> Any:
    calls = 0

    def hook(module, args, result):
        nonlocal calls
        calls += 1
        seen.append(calls)

    return m.inner.register_forward_hook(hook)


def of_another_module(m: Outer, seen: Seen) -> Any:
    return m.inner.register_forward_hook(m.count)


def of_an_object(m: Outer, seen: Seen) -> Any:
    return m.inner.register_forward_hook(Adder().hook)


@pytest.mark.parametrize(
    "register",
    [in_a_dict, in_a_list, with_a_result, in_place, one_after_another, before,
     before_with_a_result, counting, of_another_module, of_an_object],
)  # fmt: skip
def test_the_same_as_eager(register: Callable[[Outer, Seen], Any]) -> None:
    outcomes: list[Any] = []
    for make in (lambda m: m, lt.script):
        own, seen = Outer(), list[Any]()
        handle = register(own, seen)
        module = make(own)
        results = [module(X), module(X)]
        handle.remove()
        outcomes.append(([*results, module(X)], seen, own.calls))
    torch.testing.assert_close(outcomes[1], outcomes[0])


class Shortened:
    def hook(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args[:0]


def test_another_number_of_arguments() -> None:
    own = Outer()
    own.inner.register_forward_pre_hook(Shortened().hook)
    with pytest.raises(TypeError, match="gave 0 arguments for 1"):
        lt.script(own)(X)


def test_gradients_and_activations() -> None:
    layer = nn.Linear(3, 3)
    net = nn.Sequential(layer, nn.ReLU())
    kept: dict[str, Tensor] = {}
    layer.register_forward_hook(lambda module, args, result: kept.__setitem__("out", result))
    lt.script(net)(X).sum().backward()
    assert layer.weight.grad is not None
    grad, out = layer.weight.grad.clone(), kept["out"]
    net.zero_grad()
    net(X).sum().backward()
    torch.testing.assert_close(grad, layer.weight.grad)
    torch.testing.assert_close(out, kept["out"])


class Keeps(nn.Module):
    """Its layer's hook is a method of its own, and forward uses what that has kept."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.kept: dict[str, Tensor] = {}
        self.calls = 0
        self.layer.register_forward_hook(self.keep)

    def keep(self, module: nn.Module, args: Any, result: Tensor) -> None:
        self.kept["out"] = result.detach()
        self.calls += 1

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) + self.kept["out"] * self.calls


@pytest.mark.parametrize("copied", [False, True])
def test_forward_uses_what_a_method_as_a_hook_has_kept(copied: bool) -> None:
    plain = nn.Sequential(Keeps())
    made = lt.script(copy.deepcopy(plain))
    made = copy.deepcopy(made) if copied else made
    for k in range(3):
        torch.testing.assert_close(made(X + k), plain(X + k))
    assert made[0].calls == 3


class Wrong(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.nosuch()  # pyright: ignore


def test_no_line_is_told_twice() -> None:
    with pytest.raises(lt.CompileError) as caught:
        lt.script(nn.Sequential(Wrong()))(X)
    assert str(caught.value).count("called from") == 1
    with pytest.raises(lt.CompileError) as caught:
        lt.script(Wrong())(X)
    assert "called from" not in str(caught.value)


def test_a_hook_on_all_modules_is_seen() -> None:
    outer = Outer()
    made = lt.script(outer)
    assert torch.equal(made(X), outer(X))
    register = nn.modules.module.register_module_forward_hook
    handle = register(lambda m, _, result: result + 10 if isinstance(m, Inner) else None)
    try:
        assert torch.equal(made(X), (X + 11) * 2)
    finally:
        handle.remove()
    assert torch.equal(made(X), outer(X))


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outer = lt.script(Outer())

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x) + self.outer.calls


@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="the capture of older versions follows our descriptors"
)
def test_a_compiled_module_reads_an_attribute_of_a_scripted_one() -> None:
    torch._dynamo.reset()
    plain = Reads()
    plain.outer.calls = 3
    assert torch.equal(lt.compile(plain)(X), (X + 1) * 2 + 3)
