"""Which code a module runs: its own `__call__`, replaced parts of loaded and traced modules, the
parameters that `functional_call` gives, and what `__prepare_scriptable__` names."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import lowtide as lt


def reloaded(m: nn.Module) -> Any:
    file = io.BytesIO()
    lt.save(m, file)
    file.seek(0)
    return lt.load(file)


# ---- `__call__` ---------------------------------------------------------------------------------


class Doubles(nn.Module):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * 2

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class DoublesLess(Doubles):
    def forward(self, x: Tensor) -> Tensor:
        return x - 1


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Doubles()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


class Scaled(nn.Module):
    def __call__(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.forward(x) * scale

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


@pytest.mark.parametrize("kind", [Doubles, DoublesLess, Around])
def test_a_call_of_its_own_is_run(kind: type[nn.Module]) -> None:
    m, x = kind(), torch.rand(3)
    made = lt.script(m)
    for _ in range(2):
        assert torch.equal(made(x), m(x))
    hook = m.register_forward_hook(lambda module, args, out: out + 100)
    assert torch.equal(made(x), m(x))
    hook.remove()
    assert torch.equal(made(x), m(x))


def test_a_call_with_other_arguments_than_forward() -> None:
    m, x = Scaled(), torch.rand(3)
    assert torch.equal(lt.script(m)(x, scale=3.0), m(x, scale=3.0))


def test_a_call_of_its_own_in_files() -> None:
    x = torch.rand(3)
    for kind in (Around, Doubles):
        assert torch.equal(reloaded(lt.script(kind()))(x), kind()(x))
    assert torch.equal(reloaded(lt.script(Scaled()))(x, scale=3.0), Scaled()(x, scale=3.0))


def test_hooks_of_the_root_in_files() -> None:
    m, x = Net(), torch.rand(2, 4)
    m.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    m.register_forward_hook(lambda module, args, out: out + args[0].sum())
    made = lt.script(m)
    loaded = reloaded(made)
    for _ in range(2):
        torch.testing.assert_close(loaded(x), m(x))
        torch.testing.assert_close(reloaded(loaded)(x), m(x))
        made(x)
        loaded = reloaded(made)
    m.register_forward_hook(lambda module, args, out: -out)
    loaded.register_forward_hook(lambda module, args, out: -out)
    torch.testing.assert_close(loaded(x), m(x))


# ---- replaced parts -----------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x))


def traced() -> Any:
    return lt.trace(Net(), (torch.rand(2, 4),))


@pytest.mark.parametrize("is_called", [False, True])
@pytest.mark.parametrize(
    "make", [lambda: reloaded(lt.script(Net())), traced, lambda: reloaded(traced())]
)
@pytest.mark.parametrize("part", [nn.ReLU6(), nn.LeakyReLU(0.5), None])
def test_a_part_that_the_program_does_not_know(
    part: nn.Module | None, make: Callable[[], Any], is_called: bool
) -> None:
    m, x = make(), torch.rand(2, 4)
    if is_called:
        m(x)
    m.act = part
    with pytest.raises(lt.CompileError, match=r"`self.act` was .*LeakyReLU, is .*recorded"):
        m(x)


def test_a_copy_of_a_changed_trace() -> None:
    m = traced()
    m.act = nn.ReLU6()
    with pytest.raises(lt.CompileError, match=r"`self.act` was"):
        copy.deepcopy(m)


class NoTensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)


def test_a_trace_that_reads_nothing_of_its_module() -> None:
    x = torch.ones(2)
    m = lt.trace(NoTensors(), (x,))
    m(x)
    m.act = nn.ReLU6()
    with pytest.raises(lt.CompileError, match=r"`self.act` was ReLU, is ReLU6"):
        m(x)


def test_new_tensors_in_old_parts_are_used() -> None:
    m, x = traced(), torch.rand(2, 4)
    m.fc.weight = nn.Parameter(torch.zeros(4, 4))
    assert torch.allclose(m(x), nn.functional.leaky_relu(m.fc.bias, 0.1).expand(2, 4))


# ---- parameters from outside --------------------------------------------------------------------

RECURRENT: list[Callable[[], nn.Module]] = [
    lambda: nn.GRU(4, 3),
    lambda: nn.RNN(4, 3, 2),
    lambda: nn.LSTM(4, 3, bidirectional=True, bias=False),
]


@pytest.mark.parametrize("make", RECURRENT)
def test_functional_calls_of_recurrent_layers(make: Callable[[], Any]) -> None:
    m, x = make(), torch.rand(5, 2, 4)
    made = lt.script(m)
    given = {name: torch.randn_like(p) for name, p in m.named_parameters()}
    before, other = m(x)[0], functional_call(m, given, (x,))[0]
    assert torch.allclose(made(x)[0], before)
    assert torch.allclose(functional_call(made, given, (x,))[0], other)
    assert torch.allclose(made(x)[0], before)
    m.weight_hh_l0 = nn.Parameter(torch.zeros_like(m.weight_hh_l0))
    assert torch.allclose(made(x)[0], m(x)[0])


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 + self.get_buffer("offset")


def test_an_example_that_is_the_modules_own_buffer() -> None:
    m, x = Adds(), torch.rand(4)
    made = lt.trace(m, m.get_buffer("offset"))
    assert torch.equal(made(x), m(x))


# ---- asked of torch.jit -------------------------------------------------------------------------


class Prepared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1

    def __prepare_scriptable__(self) -> nn.Module:
        return DoublesLess()


class HoldsPrepared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Prepared()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x)


def test_what_is_compiled_in_its_place() -> None:
    x, m = torch.rand(3), HoldsPrepared()
    assert torch.equal(lt.script(Prepared())(x), DoublesLess()(x))
    with pytest.raises(lt.CompileError, match="__prepare_scriptable__"):
        lt.script(m)
    m.part = lt.script(m.part)
    assert torch.equal(lt.script(m)(x), DoublesLess()(x))


def test_names_that_freeze_does_not_find() -> None:
    with pytest.raises(lt.CompileError, match="Net has no attribute 'nope'"):
        lt.freeze(lt.script(Net().eval()), preserved_attrs=["nope"])


def test_isinstance_of_a_list() -> None:
    with pytest.raises(RuntimeError, match="is not a type"):
        lt.isinstance(2, [int])


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return (x * self.weight * self.calls).sum()


@pytest.mark.parametrize("make", [lt.script, lambda m: reloaded(lt.script(m)), lt.compile])
def test_what_a_transform_leaves_in_a_buffer(make: Callable[[nn.Module], Any]) -> None:
    x, plain, made = torch.ones(2), Counts(), make(Counts())
    for m in (plain, made):
        given = {name: p.detach() for name, p in m.named_parameters()}
        for k in (1, 2):
            found = torch.func.grad(lambda p, m=m: functional_call(m, p, (x,)))(given)
            assert torch.equal(next(iter(found.values())), torch.full((2,), float(k)))
    assert torch.equal(made(x), plain(x))
    assert torch.equal(made(x), plain(x))


# ---- a part that knows its parent ---------------------------------------------------------------


class Knows(nn.Module):
    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        vars(self)["parent"] = parent  # no submodule, or there would be a cycle

    def forward(self, x: Tensor) -> Tensor:
        self.parent.calls += 1
        return self.parent.scaled(x)


class IsKnown(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.calls = scale, 0
        self.part = Knows(self)

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.scale * self.calls

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) + self.calls


@pytest.mark.parametrize("make", [lt.script, lambda m: reloaded(lt.script(m))])
def test_a_part_that_knows_its_parent(make: Callable[[nn.Module], Any]) -> None:
    x, plain, made = torch.ones(2), IsKnown(2.0), make(IsKnown(2.0))
    for scale in (2.0, 3.0):
        plain.scale = made.scale = scale
        assert torch.equal(made(x), plain(x))


def test_a_part_that_is_told_of_another_parent() -> None:
    m, x = IsKnown(2.0), torch.ones(2)
    made = lt.script(m)
    assert torch.equal(made(x), x * 2 + 1)
    vars(m.part)["parent"] = IsKnown(5.0)
    with pytest.raises(lt.CompileError, match="IsKnown that is not registered as a submodule"):
        made(x)


# ---- hidden parts -------------------------------------------------------------------------------


def test_an_attribute_that_hides_a_part() -> None:
    m, x = Net(), torch.rand(2, 4)
    made = lt.script(m)
    torch.testing.assert_close(made(x), m(x))
    object.__setattr__(m, "act", nn.ReLU())
    with pytest.raises(lt.CompileError, match="an attribute hides the submodule 'act'"):
        made(x)
    del m.__dict__["act"]
    for held in (torch.ones(4, 4), torch.full((4, 4), 2.0)):
        m.fc.__dict__["weight"] = held
        torch.testing.assert_close(made(x), m(x))
    del m.fc.__dict__["weight"]
    torch.testing.assert_close(made(x), m(x))


# ---- what is put into a compiled module's `_modules`, and into parts of recorded ones -----------


class TwoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


def test_what_is_put_into_modules_is_a_part() -> None:
    plain, x = TwoParts(), torch.rand(2, 3)
    made = lt.script(copy.deepcopy(plain))
    made(x)
    for m in (plain, made):
        m._modules["a"] = nn.Tanh()
        m.b._modules.update({"1": nn.Sigmoid()})
    torch.testing.assert_close(made(x), plain(x))
    for m in (plain, made):
        m.b._modules.pop("1")
        del m.b._modules["0"]
    torch.testing.assert_close(made(x), plain(x))
    made.b._modules.clear()
    assert list(made.b.children()) == []


@pytest.mark.parametrize("through_a_file", [False, True])
def test_parts_of_a_trace_are_not_exchanged_unseen(through_a_file: bool) -> None:
    x = torch.rand(2, 3)
    traced = lt.trace(TwoParts(), x)
    traced = reloaded(traced) if through_a_file else traced
    with pytest.raises(AttributeError, match=r"forward\(\) of a traced or loaded module"):
        traced.a.forward = torch.tanh
    with pytest.raises(AttributeError, match=r"__class__ of a traced or loaded module"):
        traced.a.__class__ = nn.Identity
    for register in ("forward_hook", "forward_pre_hook", "full_backward_hook"):
        with pytest.raises(RuntimeError, match=r"would never be called"):
            getattr(traced.a, f"register_{register}")(lambda *_: None)
    traced._modules["a"] = nn.Tanh()
    with pytest.raises(lt.CompileError, match=r"`self.a` was Linear, is Tanh"):
        traced(x)
