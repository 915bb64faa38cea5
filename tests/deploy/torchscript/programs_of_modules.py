"""Modules for each part of TorchScript's language, of which archives are made.

In: modules as a user of torch.jit writes them. Out: more of `programs.CASES`.
"""

# ruff: noqa
# The code here is what users write.

from typing import Any, Dict, Final, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.deploy.torchscript.compared import Case
from tests.deploy.torchscript.programs import CASES, Color, Point, Vector, X, program, x3
from tests.language.support import via


class KeepsDtype(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind: int = torch.float64
        self.table: Dict[str, int] = {"a": torch.int32}

    def forward(self, x: Tensor):
        self.kind = x.dtype
        return x.to(self.table["a"]), torch.ones([2], dtype=self.kind)


program(X, lambda: (x3().double(),))(KeepsDtype)


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.fc.register_forward_hook(_doubled)
        self.register_forward_pre_hook(_shifted)
        self.register_forward_hook(_doubled_root)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


def _doubled(self, args: Tuple[Tensor], out: Tensor) -> Tensor:
    return out * 2


def _shifted(self, args: Tuple[Tensor]) -> Tuple[Tensor]:
    return (args[0] + 1,)


def _doubled_root(self, args: Tuple[Tensor], out: Tensor) -> Tensor:
    return out + args[0]


program(X, grad=True)(Hooked)


@torch.jit.interface
class Step(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pass


class Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Interfaces(nn.Module):
    picked: Step

    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([Halves(), Doubles()])
        self.named = nn.ModuleDict({"a": nn.Tanh(), "b": nn.Sigmoid()})
        self.picked = Doubles()

    def forward(self, x: Tensor, k: int) -> Tensor:
        step: Step = self.steps[k]
        x = step.forward(x)
        for layer in self.steps:
            x = layer(x)
        for name, layer in self.named.items():
            x = x + layer(x) if name == "a" else x
        return self.picked.forward(x)


program(lambda: (x3(), 0), lambda: (x3(), 1), lambda: (x3(), 5))(Interfaces)


class Stateful(nn.Module):
    limit: Final[int] = 3
    history: List[Tensor]
    missing: Optional[Tensor]

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("loose", torch.ones(1), persistent=False)
        self.scale = nn.Parameter(torch.ones(4))
        self.count = 0
        self.name = "n"
        self.history = []
        self.missing = None

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.detach().sum(0)
        self.count += 1
        self.name = self.name + "!"
        self.history.append(x.detach().mean())
        if self.count >= self.limit:
            self.missing = x.detach()
        missing = self.missing
        y = x * self.scale
        return y if missing is None else y + missing

    @torch.jit.export
    def reset(self, n: int = 2) -> int:
        self.total.zero_()
        self.count = n
        return self.count

    @torch.jit.export
    def known(self) -> Tuple[int, str, List[Tensor], bool]:
        return self.count, self.name, self.history, self.missing is None


program(
    *(X, X, lambda: via("known"), lambda: via("reset", n=5), X, lambda: via("reset")),
    lambda: via("known"),
    attributes=("count", "name"),
    grad=True,
)(Stateful)


class SavesItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.arange(4.0)
        self.k = 3

    @torch.jit.export
    def __getstate__(self) -> Tuple[Tensor, int, bool]:
        return self.table * 2, self.k + 1, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, int, bool]) -> None:
        self.table = state[0] + 1
        self.k = state[1]
        self.training = state[2]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.table + self.k


program(X, attributes=("k",))(SavesItself)


class OfClasses(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = Vector(2.0, 3.0)
        self.points = [Point(torch.ones(2), 1, "a")]
        self.mode = Color.BLUE

    def forward(self, x: Tensor):
        self.v.scale(2.0)
        if self.mode == Color.BLUE:
            x = x * self.v.a
        return x, self.points[0], self.v.norm, self.mode


program(X, X)(OfClasses)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(10, 3)

    def forward(self, x: Tensor, lengths: Tensor):
        p = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, (h, c) = self.lstm(p)
        y, lengths = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        z, g = self.gru(y)
        return z, g, h, c


program(
    lambda: (
        torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(2)),
        torch.tensor([3, 5]),
    ),
    grad=True,
)(Recurrent)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 2
        )
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layers(x))


program(lambda: (x3().view(1, 3, 4).requires_grad_(),), grad=True)(Attention)


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Linear(4, 3)), {nn.Linear}
        )

    def forward(self, x: Tensor) -> Tensor:
        q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
        return self.net(q.dequantize())


program(X)(Quantised)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(self.net(x))
        return F.interpolate(x, scale_factor=2.0, mode="nearest")


def _image() -> Tuple[Tensor]:
    return (torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(5)).requires_grad_(),)


program(_image, _image, grad=True)(Convolutions)


def _traced(name: str, make: Any, given: Any) -> None:
    def traced() -> Any:
        torch.manual_seed(3)
        return torch.jit.trace(make(), given(), check_trace=False)

    CASES.append(Case(f"traced_{name}", traced, lambda: [given()], (), True))


_traced("convolutions", lambda: Convolutions().eval(), _image)
_traced("attention", lambda: Attention().eval(), lambda: (x3().view(1, 3, 4).requires_grad_(),))
_traced("function", lambda: lambda x: (x.relu() @ x.t(), x[:, 0].sum()), X)


@program(lambda: (torch.ones(2),))
class SetsAParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.n = 5

    @torch.jit.export
    def __getstate__(self):
        return self.w.detach() * 2, self.n, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[Tensor, int, bool]):
        self.w = state[0]
        self.n = state[1] + 1
        self.training = state[2]

    def forward(self, x: Tensor):
        return x * self.w + self.n
