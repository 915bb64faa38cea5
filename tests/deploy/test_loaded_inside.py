"""Loaded modules and functions inside scripted ones: their programs are inlined."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from tests.deploy.roundtrip import through_file


class Core(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.l(x))

    @lt.export
    def enc(self, x: Tensor) -> Tensor:
        return self.l(x)


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


class Encoding(Outer):
    def forward(self, x: Tensor) -> Tensor:
        inner: Any = self.inner
        return self.inner.enc(x) * 2 + inner.forward(x)


class Listed(nn.Module):
    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x + self.parts[0].enc(x)


class Counting(nn.Module):
    """Programs with branches and loops, for both modes, that change what they are of."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.norm = nn.BatchNorm1d(3)
        self.scale = 2.0

    def forward(self, x: Tensor, k: int = 2, ys: list[Tensor] = []) -> Tensor:  # noqa: B006
        self.calls += 1
        if self.training:
            x = x * 3
        for y in ys:
            x = x + y
        if x.sum() > 0:
            x = x + k
        return self.norm(x) * self.scale


class AroundCounting(Outer):
    def forward(self, x: Tensor) -> Tensor:
        inner: Any = self.inner
        before = self.inner.calls
        y = inner(x, ys=[x, x]) + inner(x, 5)
        self.inner.scale = 3.0
        z = inner(x)
        self.inner.scale = 2.0
        return y + self.inner.calls * 100 + before + z


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3)


def loaded(module: nn.Module) -> Any:
    return through_file(lt.script(module))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("outer", [Outer, Encoding, nn.Sequential])
def test_results_and_gradients(outer: Any, x: Tensor) -> None:
    core = Core()
    inner = loaded(core)
    compiled, eager = lt.script(outer(inner)), outer(core)
    close(compiled(x), eager(x))
    compiled(x).sum().backward()
    eager(x).sum().backward()
    close(inner.l.weight.grad, core.l.weight.grad)
    assert list(compiled.state_dict()) == list(eager.state_dict())
    assert len(list(compiled.parameters())) == 2


def test_parameters_are_read_at_each_call(x: Tensor) -> None:
    inner = loaded(Core())
    compiled = lt.script(Outer(inner))
    compiled(x)
    with torch.no_grad():
        inner.l.weight.mul_(2)
    close(compiled(x), inner(x) + 1)
    private = copy.deepcopy(compiled)
    with torch.no_grad():
        inner.l.bias.add_(7)
    assert not torch.allclose(private(x), compiled(x))


def test_saved_again_and_again(x: Tensor) -> None:
    core = Core()
    once = through_file(lt.script(Outer(loaded(core))))
    twice = through_file(lt.script(Outer(once)))
    close(twice(x), core(x) + 2)
    assert list(twice.state_dict()) == ["inner.inner.l.weight", "inner.inner.l.bias"]


def test_a_loaded_trace(x: Tensor) -> None:
    core = Core()
    traced = through_file(lt.trace(core, (x,)))
    close(lt.script(Outer(traced))(x), core(x) + 1)


def test_put_into_a_compiled_module(x: Tensor) -> None:
    inner, compiled = loaded(Core()), lt.script(Outer(Core()))
    compiled(x)
    compiled.inner = inner
    close(compiled(x), inner(x) + 1)
    close(compiled.inner(x), inner(x))
    close(compiled.inner.enc(x), inner.enc(x))
    close(through_file(compiled)(x), compiled(x))


def test_in_a_list(x: Tensor) -> None:
    a, b = loaded(Core()), loaded(Core())
    compiled = lt.script(Listed([a, b]))
    close(compiled(x), Listed([a, b])(x))
    close(through_file(compiled)(x), compiled(x))


def test_modes_and_attributes_that_are_assigned(x: Tensor) -> None:
    plain = Counting()
    inner = loaded(plain)
    eager, compiled = AroundCounting(plain), lt.script(AroundCounting(inner))
    for mode in (True, False, True):
        eager.train(mode)
        compiled.train(mode)
        for _ in range(2):
            close(compiled(x), eager(x))
    assert inner.calls == plain.calls
    close(inner.norm.running_mean, plain.norm.running_mean)
    again = through_file(compiled)
    for mode in (True, False):
        eager.train(mode)
        again.train(mode)
        close(again(x), eager(x))


def _nothing_of_it(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
    return (args[0] * 0,)


def test_its_hooks_run(x: Tensor) -> None:
    inner = loaded(Core())
    compiled = lt.script(Outer(inner))
    compiled(x)
    inner.register_forward_pre_hook(_nothing_of_it)
    close(compiled(x), torch.relu(inner.l.bias).expand(2, 3) + 1)


class Unknown(Outer):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner.encode(x)


class OfInt(Outer):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(3)


class TooMany(Outer):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x)


@pytest.mark.parametrize(
    ("outer", "text"),
    [
        (Unknown, "a module (Core) has no attribute 'encode'(.|\n)*`forward` or `enc`"),
        (OfInt, "forward() was saved for (Tensor), not for (int)"),
        (TooMany, "too many positional arguments"),
    ],
)
def test_refused(outer: Any, text: str) -> None:
    pattern = text if "|" in text else re.escape(text)
    with pytest.raises(lt.CompileError, match=pattern.replace("(Core)", r"\(Core\)")):
        lt.script(outer(loaded(Core())))


# ---- functions --------------------------------------------------------------------------------


def add(x: Tensor, n: int, s: float = 2.0) -> Tensor:
    return x + n if n > 2 else x * s


def fill(xs: list[int], n: int) -> int:
    for k in range(n):
        xs.append(k)
    return len(xs)


LOADED_ADD = through_file(lt.script(add))
LOADED_FILL = through_file(lt.script(fill))


def with_add(x: Tensor, k: int) -> Tensor:
    return LOADED_ADD(x, k) + LOADED_ADD(x, 1, s=5.0) + LOADED_ADD(n=9, x=x)


def with_fill(x: Tensor) -> Tensor:
    xs = [1]
    if LOADED_FILL(xs, 2) != 3:
        return x
    return x + xs[2] + len(xs)


def with_wrong(x: Tensor) -> Tensor:
    return LOADED_ADD(x, x)


def with_either(c: bool, x: Tensor) -> Any:
    v = 2**62 if c else x
    return LOADED_ADD(v, 3)


def with_item(xs: list[Any], k: int) -> Any:
    return LOADED_ADD(xs[0], xs[k])


def test_a_number_is_no_tensor_for_a_loaded_function(x: Tensor) -> None:
    close(lt.script(with_either)(False, x), add(x, 3))
    with pytest.raises(TypeError, match="'x' was saved for Tensor"):
        lt.script(with_either)(True, x)
    close(lt.script(with_item)([x, 3, x, "a"], 1), add(x, 3))
    with pytest.raises(TypeError, match="was saved for int"):
        lt.script(with_item)([x, 3, x, "a"], 2)


def test_a_loaded_function(x: Tensor) -> None:
    compiled = lt.script(with_add)
    for f in (compiled, through_file(compiled)):
        close(f(x, 3), add(x, 3) + add(x, 1, 5.0) + add(x, 9))
    close(lt.script(with_fill)(x), x + 4)
    with pytest.raises(lt.CompileError, match="was saved for"):
        lt.script(with_wrong)(x)


class Moded(nn.Module):
    mode: str | None

    def __init__(self) -> None:
        super().__init__()
        self.mode = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mode is not None:
            x = x + len(self.mode)
        return x * 2


def test_what_is_declared_optional_stays_so_when_saved_again() -> None:
    inner = through_file(lt.script(Moded()))
    m = through_file(lt.script(Outer(inner)))
    x = torch.ones(2)
    assert m(x).tolist() == [3, 3]
    m.inner.mode = "ab"
    assert m(x).tolist() == [7, 7]
