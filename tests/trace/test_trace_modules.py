"""Traced modules: torch.nn's own against eager, live parameters, gradients, copies."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from agree import agree, same
from torch import nn

import lowtide as lt
from lowtide.ir.core import Function
from tests.deploy.roundtrip import through_file

R = torch.rand


class Block(nn.Module):
    """Shared weights, a plain tensor, a buffer, a second entry point."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.again = self.fc
        self.scale = nn.Parameter(R(4))
        self.register_buffer("offset", R(4))
        self.plain = R(4)

    def forward(self, x):
        return self.again(self.fc(x).relu() * self.scale + self.offset) * self.plain

    def encode(self, x, y):
        return self.fc(x) - y


class Branchy(nn.Module):
    def forward(self, x):
        if self.training:
            return x + 1
        return x - 1


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3), nn.Tanh())


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.rnn = nn.GRU(4, 3, batch_first=True, bidirectional=True)

    def forward(self, ids):
        out, last = self.rnn(self.table(ids))
        return {"out": out.mean(1), "last": last}


IDS = torch.randint(10, (2, 5))
MODELS: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {
    "mlp": (mlp, (R(3, 4),), (R(7, 4),)),
    "conv": (conv, (R(2, 2, 8, 8),), (R(3, 2, 10, 12),)),
    "block": (Block, (R(3, 4),), (R(6, 4),)),
    "lstm": (lambda: nn.LSTM(4, 3, 2), (R(5, 2, 4),), (R(3, 6, 4),)),
    "lstm state": (
        lambda: nn.LSTM(4, 3), (R(5, 2, 4), (R(1, 2, 3), R(1, 2, 3))),
        (R(4, 3, 4), (R(1, 3, 3), R(1, 3, 3))),
    ),
    "attention": (Attention, (R(2, 3, 4),), (R(4, 5, 4),)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (R(2, 3, 4),), (R(3, 5, 4),)
    ),
    "decoder": (
        lambda: nn.TransformerDecoderLayer(4, 2, 8, batch_first=True),
        (R(2, 3, 4), R(2, 5, 4)), (R(3, 4, 4), R(3, 2, 4)),
    ),
    "words": (Words, (IDS,), (torch.randint(10, (4, 3)),)),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4)), (R(2, 4),), (R(5, 4),)),
    "instance": (lambda: nn.InstanceNorm1d(3, affine=True), (R(2, 3, 4),), (R(4, 3, 6),)),
    "loss": (nn.CrossEntropyLoss, (R(3, 5), IDS[0, :3] % 5), (R(2, 6), IDS[1, :2] % 5)),
    "upsample": (lambda: nn.Upsample(scale_factor=2), (R(1, 2, 3, 3),), (R(2, 2, 4, 5),)),
    "shuffle": (lambda: nn.PixelShuffle(2), (R(1, 4, 3, 3),), (R(2, 8, 2, 2),)),
    "bilinear": (lambda: nn.Bilinear(2, 3, 4), (R(3, 2), R(3, 3)), (R(5, 2), R(5, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    make, example, other = MODELS[name]
    model = make().eval()
    traced = lt.trace(model, example)
    agree(traced, model, example, other)
    assert list(traced.state_dict()) == list(model.state_dict())


def test_batch_norm_in_training_counts() -> None:
    model = nn.BatchNorm1d(4)
    twin = copy.deepcopy(model)
    traced = lt.trace(model, R(5, 4))
    twin.load_state_dict(model.state_dict())
    x = R(6, 4)
    same(traced(x), twin(x))
    same(dict(traced.state_dict()), dict(twin.state_dict()))
    assert model.num_batches_tracked == 2  # the traced run, and this one: the check left no mark


def test_parameters_are_live() -> None:
    model = Block()
    traced = lt.trace(model, R(3, 4))
    x = R(2, 4)
    with torch.no_grad():
        same(traced(x), model(x))
        model.scale.mul_(2)
        same(traced(x), model(x))
        traced.load_state_dict({k: torch.ones_like(v) for k, v in model.state_dict().items()})
        same(traced(x), model(x))
        assert model.fc.weight.sum() == 16


def test_training_gives_the_same_gradients() -> None:
    model, twin = Block(), Block()
    twin.load_state_dict(model.state_dict())
    twin.plain = model.plain
    traced = lt.trace(model, R(3, 4))
    assert {id(p) for p in traced.parameters()} == {id(p) for p in model.parameters()}
    ours = torch.optim.SGD(traced.parameters(), lr=0.1)
    theirs = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        x = R(5, 4)
        for module, optimizer in ((traced, ours), (twin, theirs)):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
        for p, q in zip(traced.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
            torch.testing.assert_close(p, q)


def test_autocast_around_a_call() -> None:
    model = nn.Linear(4, 4)
    traced = lt.trace(model, R(2, 4))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        same(traced(R(2, 4)).dtype, torch.bfloat16)


def test_the_mode_is_frozen() -> None:
    traced = lt.trace(Branchy().eval(), R(2))
    assert not traced.training
    traced.train()
    assert traced(torch.zeros(2)).tolist() == [-1, -1]


def test_meta_and_other_dtypes_run_as_pytorch() -> None:
    traced = lt.trace(nn.Linear(4, 3), R(2, 4))
    assert traced.to("meta")(R(5, 4).to("meta")).shape == (5, 3)
    double = lt.trace(nn.Linear(4, 3), R(2, 4)).double()
    assert double(R(5, 4).double()).dtype == torch.float64


def test_the_original_keeps_its_mode_and_children() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
    traced = lt.trace(model, R(3, 2))
    traced.train()
    assert not model.training
    assert not model[1].training
    assert "_constants" not in dict(model.named_modules())
    assert traced.original_name == "Sequential"
    assert "Linear" in repr(traced)


def test_constants_are_kept_with_the_module() -> None:
    traced = lt.trace(Block(), R(3, 4))
    assert "_constants.c0" in dict(traced.named_buffers())
    assert traced.graph.captures[-1] == "_constants.c0"
    assert "_constants.c0" not in traced.state_dict()


def test_shared_parameters_are_one_capture() -> None:
    traced = lt.trace(Block(), R(3, 4))
    assert sum(path.endswith(".weight") for path in traced.graph.captures) == 1


def test_deepcopy_is_independent() -> None:
    model = Block()
    traced = lt.trace(model, R(3, 4))
    twin = copy.deepcopy(traced)
    x = R(2, 4)
    before = traced(x)
    with torch.no_grad():
        model.scale.zero_()
    same(twin(x), before)
    assert not torch.equal(traced(x), before)


def test_built_from_a_root_and_programs() -> None:
    traced = lt.trace(Block(), R(3, 4))
    functions: dict[str, Function] = {"forward": traced.graph}
    again = lt.TracedModule(traced, functions)
    x = R(5, 4)
    same(again(x), traced(x))


def test_trace_module() -> None:
    model = Block()
    x, y = R(3, 4), R(3, 4)
    traced = lt.trace_module(model, {"forward": x, "encode": (x, y)})
    agree(traced, model, (R(5, 4),))
    agree(traced.encode, model.encode, (R(5, 4), R(5, 4)))
    by_name = lt.trace_module(model, {"encode": {"y": y, "x": x}}, example_inputs_is_kwarg=True)
    same(by_name.encode(y=y, x=x), model.encode(x, y))
    with pytest.raises(NotImplementedError, match="has no forward"):
        by_name(x)


def test_bound_methods() -> None:
    model = Block()
    assert isinstance(lt.trace(model.forward, R(3, 4)), lt.TracedModule)
    encode = lt.trace(model.encode, (R(3, 4), R(3, 4)))
    x, y = R(2, 4), R(2, 4)
    same(encode(x, y), model.encode(x, y))


def test_a_model_in_a_closure_stays_live() -> None:
    model = nn.Linear(4, 2)
    traced = lt.trace(lambda x: model(x).relu(), R(3, 4))
    with torch.no_grad():
        model.weight.fill_(1)
    x = R(5, 4)
    same(traced(x), model(x).relu())
    traced(x).sum().backward()
    assert model.weight.grad is not None


def test_hooks_are_recorded() -> None:
    model = nn.Linear(4, 2)
    model.register_forward_hook(lambda module, args, out: out * 2)
    agree(lt.trace(model, R(3, 4)), model, (R(5, 4),))


def test_parametrized_weights_are_recorded() -> None:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    traced = lt.trace(model, R(3, 4))
    agree(traced, model, (R(5, 4),))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    agree(traced, model, (R(5, 4),))


def test_memory_and_explain_of_a_module() -> None:
    traced = lt.trace(mlp().eval(), R(3, 4))
    with torch.no_grad():
        assert traced.explain(R(64, 4)).kernels
        assert traced.memory(R(64, 4)).peak_bytes >= 64 * 3 * 4
    assert traced.stages(R(64, 4))
    assert "linear" in traced.code


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(5, 3)
        self.o = nn.Linear(3, 5, bias=False)
        self.o.weight = self.e.weight

    def forward(self, i):
        return self.o(self.e(i))


@pytest.mark.parametrize("is_loaded", [False, True])
def test_tied_parameters_that_part(is_loaded: bool) -> None:
    i = torch.tensor([1, 2])
    traced = lt.trace(Tied(), (i,))
    if is_loaded:
        traced = through_file(traced)
    traced(i)
    weight = nn.Parameter(R(5, 3))
    traced.e.weight = traced.o.weight = weight
    assert torch.allclose(traced(i), weight[i] @ weight.T)
    traced.o.weight = nn.Parameter(R(5, 3))
    with pytest.raises(lt.CompileError, match=r"`self\.(e|o)\.weight"):
        traced(i)


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("is_called", [False, True])
def test_tied_parameters_that_part_inside_a_scripted_module(is_called: bool) -> None:
    i = torch.tensor([1, 2])
    inner = lt.trace(Tied(), (i,))
    compiled = lt.script(Around(inner))
    if is_called:
        compiled(i)
    kept = compiled.inner.o.weight
    compiled.inner.o.weight = nn.Parameter(R(5, 3))
    for call in (lambda: compiled(i), lambda: lt.script(Around(inner))(i)):
        with pytest.raises(lt.CompileError, match=r"`self\.inner\.(e|o)\.weight") as caught:
            call()
        assert "return self.inner(x)" in str(caught.value)
    compiled.inner.o.weight = kept
    assert torch.allclose(compiled(i), kept[i] @ kept.T)


class TiedBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("shift", self.scale)

    def forward(self, x):
        return x * self.scale + self.shift


def test_tied_buffers_that_part() -> None:
    traced = lt.trace(TiedBuffers(), (R(3),))
    traced.shift = R(3)
    with pytest.raises(lt.CompileError, match=r"`self\.(scale|shift)"):
        traced(R(3))
