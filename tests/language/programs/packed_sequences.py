"""Packed sequences through recurrent layers; named tuples are told by their class."""

from typing import Any, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
)

from tests.language.support import module_program, program


def _x() -> Tensor:
    return torch.linspace(-1, 1, 60).view(3, 5, 4)


def _lengths() -> Tensor:
    return torch.tensor([2, 5, 1])


def _packed() -> PackedSequence:
    return pack_padded_sequence(_x(), _lengths(), batch_first=True, enforce_sorted=False)


@module_program(args=lambda: (_x(), _lengths()), grad=True)
class PackedThroughTwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(12, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor, n: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        packed = pack_padded_sequence(x, n.cpu(), batch_first=True, enforce_sorted=False)
        out, (h, c) = self.lstm(packed)
        out, last = self.gru(out)
        y, lengths = pad_packed_sequence(out, padding_value=-1.0)
        return self.head(y), lengths, h + c, last


@module_program(calls=lambda: [(_x(),), (_x(), _lengths())], grad=True)
class PackedIfLengthsAreGiven(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(4, 6, batch_first=True)

    def forward(self, x: Tensor, lengths: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        if lengths is not None:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            out, h = self.rnn(packed)
            y, _ = pad_packed_sequence(out, batch_first=True)
            return y, h
        y, h = self.rnn(x)
        return y, h


@module_program(calls=lambda: [(_x(),), (_packed(),)], torchscript=False)
class TensorOrPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 6, batch_first=True)

    def forward(self, x: Union[Tensor, PackedSequence]) -> Tensor:
        y, _ = self.gru(x)
        if isinstance(y, PackedSequence):
            return pad_packed_sequence(y, batch_first=True)[0]
        return y


@module_program(args=lambda: (_packed(), torch.ones(1, 3, 6)), torchscript=False)
class PackedArgumentAndResult(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6)

    def forward(self, packed: PackedSequence, h: Tensor):
        out, (_, c) = self.lstm(input=packed, hx=(h, h * 2))
        return out, out.data.sum() + c, out.batch_sizes


@module_program(args=lambda: (list(_x()[:2]),), torchscript=False)
class PackedFromAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6)

    def forward(self, xs: List[Tensor]) -> Tensor:
        out, _ = self.lstm(pack_sequence(xs, enforce_sorted=False))
        return pad_packed_sequence(out)[0]


@module_program(make=lambda: DerivedLSTM(4, 6, batch_first=True), args=lambda: (_x(),),
                torchscript=False)  # fmt: skip
class DerivedLSTM(nn.LSTM):
    def forward(self, x, hx=None):
        packed = pack_padded_sequence(x, torch.tensor([5, 4, 4]), batch_first=True)
        return pad_packed_sequence(super().forward(packed)[0], batch_first=True)[0]


class Base(NamedTuple):
    a: Tensor
    b: Optional[Tensor]


class Derived(Base):
    def total(self) -> Tensor:
        return self.a.sum()


class Alike(NamedTuple):
    a: Tensor
    b: Optional[Tensor]


def _tuples() -> List[Any]:
    x = torch.ones(2)
    return [Base(x, None), Derived(x, x), Alike(x, x), (x, None), (x, x), (1, 2), 4]


@program(calls=lambda: [(v,) for v in _tuples()], torchscript=False)
def named_tuples_of_any(x: Any) -> int:
    if isinstance(x, Derived):
        return 2
    if isinstance(x, Base):
        return 1
    if isinstance(x, (Alike, int)):
        return 3
    return 4 if isinstance(x, tuple) else 0


@program(args=lambda: (_tuples(),), torchscript=False)
def named_tuples_in_a_list(xs: List[Any]):
    return [(isinstance(x, Derived), isinstance(x, Base), isinstance(x, tuple)) for x in xs]


@program(args=lambda: (torch.ones(2),), torchscript=False)
def named_tuples_made_here(x: Tensor):
    one, plain = Base(x * 2, None), (x, None)
    made = isinstance(one, Base), isinstance(one, Alike), isinstance(one, Derived)
    return made, isinstance(plain, Base), Derived(x, x).b
