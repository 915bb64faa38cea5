"""lt.script, lt.trace and lt.compile of what torch.jit made, in memory."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from tests.deploy.torchscript.old_net import (
    Encoder,
    X,
    archive,
    loaded_by_torch,
    quietly,
    scripted,
)


def traced() -> Any:
    torch.manual_seed(0)
    return quietly(torch.jit.trace, Encoder().eval(), X)


MAKERS = {
    "script": scripted,
    "load": lambda: loaded_by_torch(archive()),
    "trace": traced,
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def same(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted)


class Around(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) * self.w


@every
def test_tensors_are_shared(make: Any) -> None:
    old = make().eval()
    m = lt.script(old)
    same(m(X), old(X))
    named = dict(old.named_parameters())
    for name, parameter in m.named_parameters():
        assert parameter is named[name]
    for module in (old, m):
        with torch.no_grad():
            next(module.parameters()).mul_(3)
        same(m(X), old(X))
        module.load_state_dict({k: v * 1.5 for k, v in module.state_dict().items()})
        same(m(X), old(X))
    old.double()
    same(m(X.double()), old(X.double()))
    m.float()
    same(m(X), old(X))
    same(dict(m.named_buffers()), dict(old.named_buffers()))


@every
def test_the_mode_is_shared(make: Any) -> None:
    old = make().eval()
    m = lt.script(old)
    assert not m.training
    m.train()
    assert old.training
    old.eval()
    same(m(X), old(X))


@every
def test_gradients(make: Any) -> None:
    old = make().eval()
    lt.script(old)(X).sum().backward()
    found = [p.grad.clone() for p in old.parameters()]
    old.zero_grad()
    old(X).sum().backward()
    for got, parameter in zip(found, old.parameters(), strict=True):
        same(got, parameter.grad)


@every
def test_copies_have_their_own_state(make: Any) -> None:
    old = make().eval()
    m = lt.script(old)
    wanted = old(X)
    file = io.BytesIO()
    lt.save(m, file)
    copies = [copy.deepcopy(m), lt.load(file.getvalue()), lt.freeze(old)]
    with torch.no_grad():
        for parameter in old.parameters():
            parameter.zero_()
    for other in copies:
        same(other(X), wanted)
    copies[0].train()
    assert not old.training


@every
def test_as_a_part(make: Any) -> None:
    net = Around(make()).eval()
    m = lt.script(net)
    same(m(X), net(X))
    assert "a module of torch.jit" not in str(m.explain(X))
    assert list(m.state_dict()) == list(net.state_dict())
    net.train()
    torch.manual_seed(0)
    wanted = net(X)
    torch.manual_seed(0)
    same(m(X), wanted)
    net.eval()
    recorded = lt.trace(net, X)
    same(recorded(X + 1), net(X + 1))
    assert list(recorded.state_dict()) == list(net.state_dict())
    same(lt.compile(net)(X), net(X))


@every
def test_traced_and_compiled(make: Any) -> None:
    old = make().eval()
    for m in (
        lt.trace(old, X),
        lt.trace_module(old, {"forward": X}),
        lt.compile(old),
        lt.trace(lambda x: old(x), X),
        lt.trace(lambda x: old.forward(x), X),
    ):
        same(m(X + 1), old(X + 1))


def test_a_method_in_a_trace() -> None:
    old = quietly(torch.jit.script, Methods())
    recorded = lt.trace(lambda x: old.shifted(x, 2) + 1, X)
    same(recorded(X + 1), old.shifted(X + 1, 2) + 1)


class Methods(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x

    @torch.jit.export
    def shifted(self, x: Tensor, n: int) -> Tensor:
        return x + n


@torch.jit.script
def helper(v):
    return v * 2


@torch.jit.script
def branching(v, n: int = 2):
    if n > 1:
        return helper(v).sum() * n
    return v.sum()


def test_functions() -> None:
    f = lt.script(branching)
    assert f.__name__ == "branching"
    same(f(X), branching(X))
    same(f(X, n=1), branching(X, 1))
    file = io.BytesIO()
    lt.save(f, file)
    same(lt.load(file.getvalue())(X, 3), branching(X, 3))
    same(lt.compile(branching)(X), branching(X))
    same(lt.trace(branching, (X,))(X), branching(X))
    recorded = quietly(torch.jit.trace, lambda x: helper(x) + 1, X)
    same(lt.script(recorded)(X), recorded(X))


@lt.script
def calls(x):
    return branching(x, 3) + helper(x)


def test_functions_inside_compiled_code() -> None:
    same(calls(X), branching(X, 3) + helper(X))
    assert "py.call" not in str(calls.graph)
    recorded = lt.trace(lambda x: helper(x) + 1, X)
    same(recorded(X + 1), helper(X + 1) + 1)


class ClassStyle(torch.jit.ScriptModule):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    @torch.jit.script_method
    def forward(me, x):
        return x * me.w


def test_class_style() -> None:
    old = ClassStyle()
    same(lt.script(old)(X), old(X))
    same(lt.script(Around(old))(X), old(X))


def test_a_deep_copy_of_the_old_module_has_a_twin_of_its_own() -> None:
    old = scripted().eval()
    m = lt.script(old)
    other = copy.deepcopy(old)
    with torch.no_grad():
        other.out.weight.zero_()
    same(lt.script(other)(X), other(X))
    same(m(X), old(X))


def test_patched_torch_jit_loads() -> None:
    raw = archive()
    with lt.patch_torch_jit():
        m = torch.jit.load(io.BytesIO(raw))
    assert isinstance(m, lt.ScriptModule)
    same(m.eval()(X), loaded_by_torch(raw).eval()(X))


def test_a_part_that_has_no_twin_is_left_to_torch_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise lt.LoadError("nothing is read")

    monkeypatch.setattr("lowtide.deploy.torchscript.load.load", refuse)
    net = Around(scripted()).eval()
    same(lt.script(net)(X), net(X))
    with pytest.raises(lt.CompileError, match="nothing is read"):
        lt.script(net.part)


def test_a_part_that_does_not_compile_is_left_to_torch_jit(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowtide.frontend.torchscript import on_tensors

    def refuse(c, call, args, keywords):
        raise c.error(call.node, "not today", "another day")

    net = Around(scripted()).eval()
    monkeypatch.setitem(on_tensors.TABLE, "batch_norm", refuse)
    m = lt.script(net)
    assert "not today" in str(m.graph)
    steps = net.part.steps
    same(m(X), net(X))
    assert net.part.steps == steps + 2
