"""nn.RNN, nn.GRU and nn.LSTM as cuDNN runs them: all layers in one call, which keeps a reserve.

In: a call of `torch.lstm` and its kin, on meta tensors. Out: its results, and what it and its
gradient allocate. How large the reserve, the workspace and the weights' one buffer are, cuDNN
tells: see cudnn_sizes.

    layers            such a call  ──►  aten._cudnn_rnn
    rnn_results       aten._cudnn_rnn, aten._cudnn_rnn_backward  ──►  empty results
    rnn_scratch, rnn_backward_scratch     what these allocate besides

PyTorch chooses among cuDNN's algorithms by sizes and devices: the one that takes most counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import torch
from torch.utils.weak import WeakIdKeyDictionary

from lowtide.memory import cudnn_sizes
from lowtide.memory.convolution import nbytes
from lowtide.memory.cudnn_sizes import Asked, Sizes

aten = torch.ops.aten
Tensor = torch.Tensor

_FEW: Final = 1 << 16

MODES: Final[dict[Any, int]] = {  # cuDNN's numbers
    torch.rnn_relu: 0,
    torch.rnn_tanh: 1,
    torch.lstm: 2,
    torch.gru: 3,
}


def takes(x: Tensor) -> bool:
    """Whether PyTorch leaves recurrent layers of such an input to cuDNN, where there is one."""
    is_there = torch.backends.cudnn.is_available() or not torch.cuda.is_available()
    return (
        is_there
        and torch.backends.cudnn.enabled
        and x.dtype in cudnn_sizes.DTYPES
        and x.numel() > 0
    )


class Places:
    """In which of the caller's storages lies what a meta tensor stands for, and the numbers of
    small index tensors. Holds none of the caller's tensors."""

    def __init__(self) -> None:
        self._storages: Any = WeakIdKeyDictionary()  # (which, bytes)
        self._numbers: Any = WeakIdKeyDictionary()

    def add(self, meta: Tensor, real: Tensor) -> None:
        """`meta` stands for `real`."""
        if real.is_cuda:
            storage = real.untyped_storage()
            self._storages[meta] = storage._cdata, storage.nbytes()  # pyright: ignore[reportPrivateUsage]
        elif type(real) is Tensor and real.device.type == "cpu" and real.dtype is torch.int64:
            if real.dim() != 1 or real.numel() > _FEW:
                return
            self._numbers[meta] = real.tolist()

    def numbers(self, meta: Tensor) -> list[int] | None:
        """What stands in the caller's tensor, one of the CPU's; None if that is not known."""
        return self._numbers.get(meta)

    def holds_all(self, tensors: Sequence[Tensor], needed: int) -> bool:
        """Whether one storage of so many bytes holds all, as `flatten_parameters` lays weights."""
        found = {self._storages.get(x) for x in tensors}
        return len(found) == 1 and None not in found and next(iter(found))[1] >= needed


@dataclass(frozen=True)
class _Call:
    """The arguments of `aten._cudnn_rnn`, in their order."""

    x: Tensor
    weights: Sequence[Tensor]
    of_layer: int  # weights
    buffer: Tensor | None  # where the weights lie one after the other
    h: Tensor
    c: Tensor | None
    mode: int
    hidden: int
    projected: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batches: Sequence[int]  # of a packed sequence, one per step
    state: Tensor | None = None  # of dropout

    def asked(self) -> Asked:
        x = self.turned(self.x)
        lengths = _lengths(self.batches) if self.batches else (x.shape[0],) * x.shape[1]
        return Asked(
            mode=self.mode,
            dtype=x.dtype,
            input_size=x.shape[-1],
            hidden=self.hidden,
            projected=self.projected,
            num_layers=self.num_layers,
            bidirectional=self.bidirectional,
            dropout=self.dropout if self.train else 0.0,
            train=self.train,
            lengths=lengths,
            is_packed=bool(self.batches),
        )

    def cast(self, dtype: torch.dtype) -> _Call:
        """With numbers of this dtype; weights, too, where gradients go through the copies."""
        weights = [w.to(dtype) for w in self.weights] if torch.is_grad_enabled() else self.weights
        c = None if self.c is None else self.c.to(dtype)
        return replace(self, x=self.x.to(dtype), h=self.h.to(dtype), c=c, weights=weights)

    def sizes(self) -> Sizes:
        found = cudnn_sizes.sizes(self.asked())
        if found is None:  # `layers` has asked; who calls PyTorch's op themselves has not
            raise NotImplementedError("what cuDNN takes for recurrent layers is not known here")
        return found

    def turned(self, x: Tensor) -> Tensor:
        """As cuDNN takes it: step by step."""
        return x.transpose(0, 1) if self.batch_first and not self.batches else x

    def empty_output(self) -> Tensor:
        """It lies step by step."""
        width = (self.projected or self.hidden) * (2 if self.bidirectional else 1)
        return self.turned(self.x.new_empty((*self.turned(self.x).shape[:-1], width)))

    @property
    def has_biases(self) -> bool:
        return self.of_layer > (3 if self.projected else 2)


def _lengths(batches: Sequence[int]) -> tuple[int, ...]:
    """Of each sequence, from the number of those that are still running at each step."""
    return tuple(sum(n > k for n in batches) for k in range(batches[0]))


def layers(
    func: Any, args: Sequence[Any], places: Places, half: torch.dtype | None = None
) -> tuple[Tensor, ...] | None:
    """See the module's text; None where cuDNN cannot be asked. `half`: autocast's dtype; weights
    are copied to it into one buffer, so only a graph has others of them."""
    call = _call(func, places, *args)
    if call is None:
        return None
    if half is not None and call.x.dtype is torch.float32:
        call, places = call.cast(half), Places()  # no copy lies where its weight does
    found = cudnn_sizes.sizes(call.asked())
    if found is None:
        return None
    if places.holds_all(call.weights, found.weights):
        call = replace(call, buffer=call.weights[0].detach())
    y, hy, cy, *_ = aten._cudnn_rnn.default(*(getattr(call, f.name) for f in fields(call)))
    return (y, hy) if call.c is None else (y, hy, cy)


def _call(func: Any, places: Places, x: Tensor, *given: Any) -> _Call | None:
    """None where the sizes of a packed sequence's batches are not known."""
    batches: Sequence[int] | None = ()
    is_packed = isinstance(given[0], Tensor) and given[0].dim() == 1
    if is_packed:
        batches = places.numbers(given[0])
        if batches is None:
            return None
        given = (*given[1:], False)
    state, weights, _, num_layers, dropout, train, both, batch_first = given
    h, c = state if func is torch.lstm else (state, None)
    hidden = (h if c is None else c).shape[2]
    return _Call(
        x=x,
        weights=weights,
        of_layer=len(weights) // (num_layers * (2 if both else 1)),
        buffer=None,
        h=h,
        c=c,
        mode=MODES[func],
        hidden=hidden,
        projected=0 if h.shape[2] == hidden else h.shape[2],
        num_layers=num_layers,
        batch_first=batch_first,
        dropout=dropout,
        train=train,
        bidirectional=both,
        batches=batches,
    )


def rnn_results(func: Any, args: Sequence[Any]) -> tuple[Any, ...] | None:
    """What cuDNN's layers or their gradient give, on the meta device; None for any other op."""
    make = _MAKERS.get(func)
    return None if make is None else make(args)


def _rnn(args: Sequence[Any]) -> tuple[Tensor, ...]:
    call = _Call(*args)
    sizes = call.sizes()
    c = call.h.new_empty(0) if call.c is None else torch.empty_like(call.c)
    buffer = (
        call.x.new_empty(sizes.weights // call.x.itemsize) if call.buffer is None else call.buffer
    )
    reserve = call.x.new_empty(sizes.reserve if call.train else 0, dtype=torch.uint8)
    return call.empty_output(), torch.empty_like(call.h), c, reserve, buffer


def _rnn_backward(args: Sequence[Any]) -> tuple[Any, ...]:
    call = _backward_call(args)
    dx = call.turned(torch.empty_like(call.turned(call.x), memory_format=torch.contiguous_format))
    dc = None if call.c is None else torch.empty_like(call.c)
    return dx, torch.empty_like(call.h), dc, _weight_gradients(call) if args[-1][3] else []


def _backward_call(args: Sequence[Any]) -> _Call:
    """Its arguments are these, with others between and behind."""
    return _Call(*args[:6], *args[10:20])


def _weight_gradients(call: _Call) -> list[Tensor]:
    """Parts of one buffer; where cuDNN has biases and the call none, copies of them."""
    if not call.has_biases:
        return [torch.empty_like(w) for w in call.weights]
    buffer = call.x.new_empty(call.sizes().weights // call.x.itemsize)
    found: list[Tensor] = []
    start = 0
    for w in call.weights:
        found.append(buffer[start : start + w.numel()].view(w.shape))
        start += w.numel()
    return found


def rnn_scratch(args: Sequence[Any], _: Any) -> int:
    """What `aten._cudnn_rnn` allocates inside: workspace, an input in order, dropout's state."""
    call = _Call(*args)
    sizes = call.sizes()
    return sizes.workspace + _copied(call, call.x) + sizes.dropout_state


def rnn_backward_scratch(args: Sequence[Any], _: Any) -> int:
    """The same for its gradient, and zeros for cotangents that are not there."""
    call = _backward_call(args)
    output, *cotangents = args[6:10]
    of_states = [x for x in (call.h, call.c) if x is not None]
    given = zip((output, *of_states), cotangents, strict=False)
    zeros = sum(nbytes(x) for x, cotangent in given if cotangent is None)
    copied = _copied(call, call.x) + _copied(
        call, output if cotangents[0] is None else cotangents[0]
    )
    sizes = call.sizes()
    return sizes.workspace + zeros + copied + (0 if call.has_biases else sizes.weights)


def _copied(call: _Call, x: Tensor) -> int:
    return 0 if call.turned(x).is_contiguous() else nbytes(x)


_MAKERS: Final[dict[Any, Callable[[Sequence[Any]], tuple[Any, ...]]]] = {
    aten._cudnn_rnn.default: _rnn,
    aten._cudnn_rnn_backward.default: _rnn_backward,
}
