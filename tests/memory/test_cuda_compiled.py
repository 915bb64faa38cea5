"""What `lt.compile` captures, on CUDA: rehearsed on tensors of the GPU that have no memory."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import lowtide as lt
from lowtide.memory.ledger import Ledger
from lowtide.memory.stand_ins import untouched
from lowtide.memory.virtual import ELSEWHERE, Virtual
from lowtide.runtime.played_arena import PlayedArena
from tests.memory.cuda_calls import ON_CUDA, requested


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(64, 256), nn.LayerNorm(256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.norm(self.up(x))))


class Recurrent(nn.Module):
    """Captured in no graph: PyTorch runs all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(64, 96, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.layers(torch.tanh(x))[0], -1)


class Broken(nn.Module):
    """Two graphs, and a number that only the data know."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sort(x @ x.t(), 1).values
        torch._dynamo.graph_break()
        if h.sum().item() > 1e9:
            return h
        return torch.softmax(h * 2, -1).cumsum(0)


class Device(nn.Module):
    """It asks where tensors are, and moves some."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.is_cuda
        shift = torch.arange(x.shape[-1]).to(x.device)
        torch._dynamo.graph_break()
        assert shift.is_cuda
        return torch.cumsum(x + shift, 0)


PROGRAMS = {"mlp": (Mlp, (50, 64)), "recurrent": (Recurrent, (4, 20, 64)),
            "broken": (Broken, (120, 64)), "device": (Device, (300, 200))}  # fmt: skip


@ON_CUDA
@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_cuda_takes_what_was_predicted(name: str, requires_grad: bool) -> None:
    make, shape = PROGRAMS[name]
    module = make().cuda()
    x = torch.rand(shape, device="cuda", requires_grad=requires_grad)
    compiled = lt.compile(module)
    with torch.set_grad_enabled(requires_grad), torch.backends.cudnn.flags(enabled=False):
        before = torch.cuda.memory_allocated()
        plan = compiled.memory(x)
        assert torch.cuda.memory_allocated() == before
        assert x.grad is None
        taken = requested(compiled, module, x)
    assert not [note for note in plan.notes if "not counted further" in note]
    assert taken <= plan.peak_bytes <= 1.02 * taken + 8192


@ON_CUDA
def test_cuda_memory_of_nobody_cannot_be_asked_for() -> None:
    """As a kernel of the user's would: an error, not a fault of the device."""
    nowhere = torch.empty(0, device="cuda").set_(untouched(400, torch.device("cuda:0")))  # type: ignore[call-overload]
    with pytest.raises(RuntimeError, match="data pointer"):
        nowhere.data_ptr()


@ON_CUDA
def test_cuda_ops_give_tensors_of_their_device() -> None:
    device = torch.device("cuda:0")
    x = torch.rand(100, device=device)
    ledger = Ledger(PlayedArena(is_used=False), of_host=False)
    with Virtual(ledger, device):
        found = x.exp(), torch.ones(5), torch.ones(5, device="cuda"), x.cpu(), x.sum() + 1
    assert [y.device.type for y in found] == ["cuda", "cpu", "cuda", "cpu", "cuda"]


def test_where_there_is_no_gpu_it_is_said() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with FakeTensorMode():
        x = torch.empty(100, 20, device="cuda")
    assert ELSEWHERE.format("cuda") in lt.compile(lambda x: torch.cumsum(x * 2, 0)).memory(x).notes


def test_calls_of_other_threads_are_not_rehearsed() -> None:
    x = torch.rand(300, 200)
    compiled = lt.compile(lambda x: torch.sort(torch.relu(x) * 2 + 1, 0).values)
    expected = compiled(x)
    found: list[bool] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            found.append(torch.equal(compiled(x), expected))

    thread = threading.Thread(target=call)
    thread.start()
    for _ in range(20):
        compiled.memory(x)
    stop.set()
    thread.join()
    assert found
    assert all(found)


@ON_CUDA
def test_cuda_where_memory_is_asked_for_it_is_said() -> None:
    def asks(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y * (y.data_ptr() != 0)

    (note,) = lt.compile(asks).memory(torch.rand(100, 100, device="cuda")).notes
    assert note.endswith("nothing after it is counted")


@ON_CUDA
def test_cuda_rehearsals_draw_nothing() -> None:
    def drawn(x: Tensor) -> Tensor:
        return torch.sort(x * torch.rand(()), 0).values

    x, state = torch.rand(100, 100, device="cuda"), torch.get_rng_state()
    for wrap in (lt.script, lt.compile):
        wrap(drawn).memory(x)
    assert torch.equal(torch.get_rng_state(), state)
