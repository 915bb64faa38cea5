"""Compiled functions inside traced ones, traced ones inside each other, and patch_torch_jit."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
import torch
from agree import agree, same
from torch import nn

import lowtide as lt
from lowtide import script_if_tracing

R = torch.rand


@lt.script
def sign(x, n: int = 2):
    if x.sum() > 0:
        y = x * n
    else:
        y = x - n
    return y


@lt.script
def halves(x):
    n = x.shape[0] // 2
    return x[:n], x[n:], n


@lt.script
def repeat(x, times: int):
    for _ in range(times):
        x = x * 2
    return x


@lt.script
def bump(x):
    x.add_(1)
    return x


def test_control_flow_of_scripted_parts_is_kept() -> None:
    def fn(x):
        return sign(x + 1) + sign(x, n=3)

    traced = lt.trace(fn, R(3))
    agree(traced, fn, (R(5),), (-5 * R(4),))
    assert str(traced.graph).count("= if(") == 2


def test_results_of_scripted_parts_keep_their_memory() -> None:
    def fn(x):
        a, b, n = halves(x)
        return a.sum() + b.sum(), x.view(n, -1), repeat(x, x.shape[1])

    traced = lt.trace(fn, R(4, 3))
    agree(traced, fn, (R(6, 5),))


def test_in_place_scripted_parts() -> None:
    def fn(x):
        y = x * 2
        z = bump(y)
        return y + z

    agree(lt.trace(fn, R(3)), fn, (R(4),))


def test_gradients_through_scripted_parts() -> None:
    traced = lt.trace(lambda x: sign(x).sum(), R(3))
    for scale, grad in ((1.0, 2.0), (-1.0, 1.0)):
        x = (torch.ones(3) * scale).requires_grad_()
        traced(x).backward()
        assert x.grad is not None
        assert x.grad.tolist() == [grad] * 3


def test_scripted_part_in_a_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            return sign(self.fc(x))

    model = Model()
    agree(lt.trace(model, R(2, 3)), model, (R(4, 3),), (-9 * R(4, 3),))


def test_traced_parts_are_inlined() -> None:
    inner = lt.trace(lambda x: sign(x) + 1, R(3))
    outer = lt.trace(lambda x: inner(x * 2), R(3))
    assert "= if(" in str(outer.graph)
    agree(outer, lambda x: sign(x * 2) + 1, (R(4),), (-R(4),))


def test_traced_modules_are_inlined_with_live_parameters() -> None:
    inner = lt.trace(nn.Linear(3, 3), R(2, 3))
    model = nn.Sequential(inner, nn.ReLU())
    outer = lt.trace(model, R(2, 3))
    assert outer.graph.captures == ("0.weight", "0.bias")
    with torch.no_grad():
        inner.weight.fill_(1)
    agree(outer, model, (R(4, 3),))


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.scale = 2.0

    def forward(self, x):
        if x.sum() > 0:
            return self.fc(x) * self.scale
        return x


class CountingGate(Gate):
    calls: int = 0

    def forward(self, x):
        self.calls = self.calls + 1
        if x.sum() > 0:
            return self.fc(x) * self.scale
        return x


def test_scripted_modules_keep_their_control_flow() -> None:
    model = nn.Sequential(lt.script(Gate()), nn.ReLU())
    traced = lt.trace(model, R(2, 3))
    assert "= if(" in str(traced.graph)
    assert set(traced.graph.captures) == {"0.fc.weight", "0.fc.bias"}
    agree(traced, model, (R(4, 3),), (-R(4, 3),))


def test_scripted_modules_that_change_themselves_are_seen_through() -> None:
    inner = lt.script(CountingGate())
    with pytest.warns(lt.TracerWarning, match="`bool` of a tensor is frozen as True"):
        traced = lt.trace(lambda x: inner(x) + 1, R(2, 3))
    agree(traced, lambda x: inner(x) + 1, (R(4, 3),))


def test_traced_modules_are_script_modules() -> None:
    traced = lt.trace(nn.Linear(3, 2), R(1, 3))
    assert isinstance(traced, lt.ScriptModule)
    assert traced.original_name == "Linear"


def test_nested_results_of_traced_parts() -> None:
    inner = lt.trace(lambda d: {"y": d["x"] * 2, "z": [d["x"]]}, {"x": R(2)})

    def fn(x):
        made = inner({"x": x + 1})
        return made["y"] + made["z"][0]

    agree(lt.trace(fn, R(2)), fn, (R(5),))


def _nest(x):
    return {"sum": x.sum(), "rows": [x + 1, (x * 2, None)], 3: x}


def test_nested_results_inside_scripted_ones() -> None:
    inner = lt.trace(_nest, R(2))

    @lt.script
    def outer(x):
        found = inner(x)
        return found["rows"][1][0] + found["sum"], found

    x = R(5)
    same(outer(x), (x * 2 + x.sum(), _nest(x)))


def test_nested_results_are_saved() -> None:
    file = io.BytesIO()
    lt.save(lt.trace(_nest, R(2)), file)
    file.seek(0)
    x = R(5)
    same(lt.load(file)(x), _nest(x))


@lt.script
def by_name(x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    return {"a": [x + 1], "b": [x * 2, x]}


def test_dicts_of_scripted_parts() -> None:
    def fn(x):
        return by_name(x)["b"][0] + by_name(x * 3)["a"][0]

    agree(lt.trace(fn, R(2)), fn, (R(5),))


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = lt.trace(lambda x, y: torch.where(x > y, x * 2, y - x), (R(2), R(2)))
        self.sign = sign

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x, x.flip(0)) + self.sign(x, 3)


def test_functions_of_a_module() -> None:
    net, x = Holder(), R(5)
    compiled = lt.script(net)
    same(compiled(x), net(x))
    file = io.BytesIO()
    lt.save(compiled, file)
    file.seek(0)
    same(lt.load(file)(x), net(x))
    net.act = lt.trace(torch.add, (R(2), R(2)))
    same(compiled(x), net(x))


def test_program_hook() -> None:
    traced = lt.trace(torch.add, (R(2), R(2)))
    assert traced.__lowtide_program__() is traced.graph
    nested = lt.trace(lambda d: d["x"] + 1, {"x": R(2)})
    assert [str(p.type) for p in nested.__lowtide_program__().arguments] == ["Dict[str, Tensor]"]
    mixed = lt.trace(lambda xs: xs[0] + xs[1][0], ([R(2), (R(2),)],))
    assert mixed.__lowtide_program__() is None


def increase(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def test_traced_parts_of_scripted_ones_stay_frozen() -> None:
    with pytest.warns(lt.TracerWarning):
        inner = lt.trace(increase, torch.ones(2))
    layer = lt.trace(nn.Linear(2, 2), torch.ones(1, 2))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x):
            if x.sum() < 0:
                return self.layer(inner(x))
            return x

    model = lt.script(Outer())
    x = -torch.ones(3, 2)
    same(model(x), layer(x + 1))
    assert set(model.graph.captures) == {"layer.weight", "layer.bias"}


def test_compiled_objects_are_given_back() -> None:
    with pytest.warns(UserWarning, match="already compiled"):
        assert lt.trace(sign, R(2)) is sign


def test_traced_under_other_modes() -> None:
    traced = lt.trace(lambda x: sign(x) * 2, R(3))
    x = R(4, 3)
    same(torch.func.vmap(lt.trace(lambda y: y * 2 + 1, R(3)))(x), x * 2 + 1)
    with torch.device("cpu"):
        same(traced(x), x * 4)


def test_script_if_tracing() -> None:
    @script_if_tracing
    def pick(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    traced = lt.trace(lambda x: pick(x), R(3))
    agree(traced, pick, (R(2),), (-R(2),))


def test_patch() -> None:
    before = dict(vars(torch.jit))
    with lt.patch_torch_jit():
        from torch.jit import script, trace

        assert script is lt.script
        assert trace is torch.jit.trace is lt.trace
        assert isinstance(torch.jit.trace(torch.sin, R(2)), torch.jit.ScriptFunction)
        assert torch.jit._overload is before["_overload"]
        inner = lt.patch_torch_jit()
        inner.undo()
        inner.undo()
        assert torch.jit.script is lt.script
        torch.jit.script = len  # type: ignore[assignment]
        assert torch.jit.script is len
        del torch.jit.script
    assert torch.jit.script is before["script"]
    assert type(torch.jit) is type(sys)
    assert dict(vars(torch.jit)) == before


def test_pytorch_itself_is_not_patched() -> None:
    with lt.patch_torch_jit():
        asks = {"__name__": "torch.nn.something", "torch": torch}
        assert eval("torch.jit.script", asks) is not lt.script
        asks["__name__"] = "torchvision.ops"
        assert eval("torch.jit.script", asks) is lt.script


def test_patch_by_environment() -> None:
    code = (
        "import lowtide as lt, torch, torch.distributed.optim, torch.nn.utils.parametrize\n"
        "assert torch.jit.script is lt.script and torch.jit.is_tracing is lt.is_tracing\n"
    )
    env = os.environ | {"LOWTIDE_PATCH_TORCH_JIT": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=120)
