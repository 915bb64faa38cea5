"""Recurrent layers on CUDA: what PyTorch's own cells keep, and what cuDNN says that it keeps."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import lowtide as lt
from lowtide.memory import cudnn_sizes
from lowtide.memory.like_cuda import UNASKED
from tests.memory.cuda_calls import ON_CUDA, requested

CUDNN = Path(__file__).parent.parent / "simulated/cudnn.c"
STEPS, BATCH, INPUT, HIDDEN = 40, 16, 64, 96

LAYERS: dict[str, Callable[..., nn.Module]] = {
    "lstm": nn.LSTM,
    "both ways": lambda *a, **k: nn.LSTM(*a, 2, bidirectional=True, **k),
    "dropout": lambda *a, **k: nn.LSTM(*a, 2, dropout=0.3, batch_first=True, **k),
    "projected": lambda *a, **k: nn.LSTM(*a, proj_size=32, **k),
    "without biases": lambda *a, **k: nn.LSTM(*a, 2, bias=False, **k),
    "gru": nn.GRU,
    "gru both ways": lambda *a, **k: nn.GRU(*a, 2, bidirectional=True, batch_first=True, **k),
    "tanh": lambda *a, **k: nn.RNN(*a, 2, **k),
    "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}


class Tagger(nn.Module):
    """Layers of both kinds, and what Lowtide compiles between them."""

    def __init__(self, device: str = "cuda") -> None:
        super().__init__()
        self.below = nn.LSTM(INPUT, HIDDEN, batch_first=True, device=device)
        self.above = nn.GRU(HIDDEN, HIDDEN, batch_first=True, device=device)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.below(torch.tanh(x) * 2)
        return torch.softmax(self.above(torch.relu(h))[0], -1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cuDNN that can be asked, in a process without a GPU."""
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler")
    path = tmp_path / "cudnn.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(CUDNN), "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))
    functions = {name: getattr(library, f"cudnn{name}") for name in cudnn_sizes.NAMES}
    monkeypatch.setattr(cudnn_sizes, "_functions", functools.cache(lambda: functions))
    monkeypatch.setattr(cudnn_sizes, "_device", lambda: 0)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test asks anew, of a cuDNN that PyTorch uses."""
    cudnn_sizes.forget()
    with torch.backends.cudnn.flags(enabled=True):
        yield
    cudnn_sizes.forget()


def fake(name: str, requires_grad: bool = False) -> tuple[nn.Module, Tensor]:
    layer = LAYERS[name](INPUT, HIDDEN, device="meta")
    with FakeTensorMode():
        for key, weight in list(layer.named_parameters()):
            setattr(layer, key, nn.Parameter(torch.empty(weight.shape, device="cuda")))
        return layer, torch.empty(STEPS, BATCH, INPUT, device="cuda", requires_grad=requires_grad)


def test_where_cudnn_cannot_be_asked_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_sizes, "_device", lambda: None)
    layer, x = fake("lstm", requires_grad=True)
    plan = lt.script(layer).memory(x)
    assert UNASKED in plan.notes
    assert 4_370_000 <= plan.peak_bytes <= 4_380_000  # as the simulated GPU takes it


def test_nothing_is_said_where_cudnn_is_turned_off() -> None:
    layer, x = fake("lstm")
    with torch.backends.cudnn.flags(enabled=False):
        assert UNASKED not in lt.script(layer).memory(x).notes


@pytest.mark.usefixtures("asked")
def test_what_cudnn_says_is_counted() -> None:
    """Its reserve is seven numbers for each cell here, its workspace four."""
    layer, x = fake("lstm")
    cells = STEPS * BATCH * HIDDEN * 4
    weights = sum(p.nbytes for p in layer.parameters())  # they do not lie in one buffer here
    with torch.no_grad():
        plan = lt.script(layer).memory(x)
        at_rest = lt.script(layer.eval()).memory(x)
    assert UNASKED not in plan.notes
    assert (7 + 4 + 1) * cells + weights <= plan.peak_bytes <= 12.2 * cells + weights
    assert (4 + 1) * cells + weights <= at_rest.peak_bytes <= 5.2 * cells + weights


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("name", LAYERS)
def test_all_layers_can_be_asked_about(name: str) -> None:
    layer, x = fake(name, requires_grad=True)
    plan = lt.script(layer).memory(x)
    assert UNASKED not in plan.notes
    passes = len([p for p in layer.parameters() if p.dim() == 2]) // 2
    reserve = 4 * passes * STEPS * BATCH * HIDDEN * 4  # of the cell that keeps least
    assert plan.peak_bytes > reserve + x.nbytes


def test_a_cudnn_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = dict.fromkeys(cudnn_sizes.NAMES, lambda *_: 3000)
    monkeypatch.setattr(cudnn_sizes, "_functions", functools.cache(lambda: refusing))
    monkeypatch.setattr(cudnn_sizes, "_device", lambda: 0)
    layer, x = fake("gru")
    assert UNASKED in lt.script(layer).memory(x).notes


# ---- On CUDA


@ON_CUDA
@pytest.mark.parametrize("is_cudnns", [False, True], ids=["fused", "cudnn"])
@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("name", [*LAYERS, "tagger"])
def test_cuda_takes_what_was_predicted(name: str, requires_grad: bool, is_cudnns: bool) -> None:
    with torch.backends.cudnn.flags(enabled=is_cudnns), torch.set_grad_enabled(requires_grad):
        layer = Tagger() if name == "tagger" else LAYERS[name](INPUT, HIDDEN, device="cuda")
        x = torch.rand(STEPS, BATCH, INPUT, device="cuda", requires_grad=requires_grad)
        compiled = lt.script(layer)
        predicted = compiled.memory(x).peak_bytes
        taken = requested(compiled, layer, x)
    of_dropout = 2_200_000 if is_cudnns and name == "dropout" else 0  # once in a process
    assert taken <= predicted <= 1.02 * taken + 4096 + of_dropout


class Halves(nn.Module):
    """Autocast casts weights at each call, or step."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.float16):
            return self.layer(x)[0]


@ON_CUDA
@pytest.mark.parametrize("is_cudnns", [False, True], ids=["fused", "cudnn"])
@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "grad"])
def test_cuda_under_autocast(requires_grad: bool, is_cudnns: bool) -> None:
    with torch.backends.cudnn.flags(enabled=is_cudnns), torch.set_grad_enabled(requires_grad):
        layer = Halves(nn.LSTM(256, 256, device="cuda"))
        x = torch.rand(4, 4, 256, device="cuda", requires_grad=requires_grad)
        compiled = lt.script(layer)
        predicted = compiled.memory(x).peak_bytes
        taken = requested(compiled, layer, x)
    assert taken <= predicted <= 1.05 * taken + 16_384


@ON_CUDA
def test_cuda_weights_that_lie_apart_are_copied_together() -> None:
    with torch.backends.cudnn.flags(enabled=True), torch.no_grad():
        layer = nn.LSTM(INPUT, HIDDEN, device="cuda")
        x = torch.rand(STEPS, BATCH, INPUT, device="cuda")
        together = lt.script(layer).memory(x).peak_bytes
        layer._flat_weights = [nn.Parameter(w.clone()) for w in layer._flat_weights]
        weights = sum(w.nbytes for w in layer._flat_weights)
        compiled = lt.script(layer)
        apart = compiled.memory(x).peak_bytes
        assert apart - together >= 0.99 * weights
        assert requested(compiled, layer, x) <= apart
