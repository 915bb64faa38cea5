"""Python that is called without being run: PyTorch's ops on tensors whose memory nobody touches.

In: a `Ledger`, entered nowhere, and the device of the call. Out: a mode under which each op of
PyTorch, by whatever Python it is called, is computed on the meta device, booked, and gives tensors
of the device where it would have put them, without values.

    mode = Virtual(ledger, device)
    with mode.on():
        y = model(x)                       # on the device, of the right form; autograd is PyTorch's
        y.backward(torch.ones_like(y))
    ledger.peak_bytes

Always holds: a tensor of a device and its *twin* on the meta device have the same form, and their
memories live equally long, so that the ledger's account is right. What the caller's tensors hold is
neither changed nor looked at, but for single numbers. A number that only the data know is 1, or
False; `was_asked` tells.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final, cast

import torch
from torch.utils._pytree import tree_leaves, tree_map

from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.memory import graph
from lowtide.memory.casts import Casts, is_weight, nesting
from lowtide.memory.cudnn_captured import without_state
from lowtide.memory.graph import THROUGH
from lowtide.memory.ledger import WATCHED, Ledger
from lowtide.memory.modes import OwnMode
from lowtide.memory.scopes.births import loc_of, user_frame
from lowtide.memory.scopes.hidden import hide_with_callees
from lowtide.memory.stand_ins import over, untouched
from lowtide.runtime import ours
from lowtide.runtime.played_arena import PlayedArena

Tensor = torch.Tensor
Storage = torch.UntypedStorage
_OVERLOAD: Final[Any] = type(torch.ops.aten.add.Tensor)
_CPU: Final = torch.device("cpu")
LARGE_BYTES: Final = 1 << 20
_MOST_NUMBERS: Final = 1024  # that Python may ask for: perhaps it asks until the answer is another
# In PyTorch's words, where memory is asked for, or values:
NO_MEMORY: Final = ("access data pointer", "on meta tensors")
_STATE: Final = (
    "cuDNN's dropout has a state that PyTorch makes once and keeps; what it takes is not known here"
)
TWICE: Final = "gradients of gradients are not counted within what is compiled"
ELSEWHERE: Final = "counted as on the CPU: what `lt.compile` captures is not rehearsed for {} here"
_START: Final = torch.empty(0, device="meta")  # where a gradient has no elements
_CAST: Final = torch.ops.aten._to_copy.default
_ASK: Final = torch.ops.aten._local_scalar_dense.default


class Stopped(Exception):
    """Nothing is known from here on; the text says why."""


def virtual_for(
    values: Any, is_tight: bool, is_compiling: Callable[[], bool] = lambda: False
) -> Virtual:
    """A mode, with a ledger, for a call with these values: on the GPU where one of them lies, a
    module's parameters and buffers among them. Where that is not there, on the CPU; a note says
    so."""
    found = (x.device for value in tree_leaves(values) for x in _tensors(value) if not x.is_meta)
    wanted = next((device for device in found if device.type != "cpu"), _CPU)
    device = wanted if wanted.type == "cpu" or torch.cuda.is_available() else _CPU
    on_host = device == _CPU
    ledger = Ledger(PlayedArena(is_tight, is_used=on_host), of_host=on_host)
    if device != wanted:
        ledger.notes[ELSEWHERE.format(wanted.type)] = None
    made = Virtual(ledger, device, is_compiling)
    made.drops = device.type == "cuda" and any(map(_drops, tree_leaves(values)))
    return made


def _drops(value: Any) -> bool:
    """Whether it has recurrent layers with dropout."""
    layers = value.modules() if isinstance(value, torch.nn.Module) else ()
    return any(isinstance(x, torch.nn.RNNBase) and x.dropout for x in layers)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, torch.Tensor):
        yield value


class Virtual(OwnMode):
    """See the module's text. `is_compiling`: whether what is called just now is a compiler's."""

    supports_higher_order_operators = True

    def __init__(
        self,
        ledger: Ledger,
        device: torch.device,
        is_compiling: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self.ledger = ledger
        self.device = device
        self.since = graph.now()  # what is older of autograd's graph is the caller's
        self.asked = 0  # numbers that only the data know
        self.has_run = False  # an op of Python's own
        self.names = True  # ops, and their lines
        self.outside: tuple[str, Loc] | None = None  # the first large op of Python's own
        self.calls_ops = False  # whether Python calls large ops in the call itself
        self.goes_back = False  # … and in the backward pass, as hooks do
        self.casts = Casts(device.type)  # of what is walked
        self._has_cast = False  # a weight, in an op that Python calls
        self.drops = False  # whether cuDNN's state of dropout may be asked for
        self._is_compiling = is_compiling
        self._is_aside = False
        self._twins: dict[int, tuple[weakref.ref[Storage], Tensor]] = {}
        self._hosts: dict[int, weakref.ref[Storage]] = {}
        self._starts: dict[int, Tensor] = {}  # where the graph of a program ends, by operand
        self._given: dict[int, Any] = {}  # the node of each operand, as it came
        self._made: dict[int, weakref.ref[Storage]] = {}  # storages without values
        self._written: set[int] = set()  # numbers of the caller's that were written, here only

    @contextlib.contextmanager
    def on(self) -> Generator[None]:
        """Entered, and what stands before PyTorch's ops with it."""
        with without_state() if self.drops else contextlib.nullcontext(), self:
            try:
                yield
            finally:
                if self._has_cast:
                    torch.clear_autocast_cache()

    @contextlib.contextmanager
    def aside(self) -> Generator[None]:
        """Inside, ops are none of the mode's business."""
        before, self._is_aside = self._is_aside, True
        try:
            yield
        finally:
            self._is_aside = before

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The op's results, without values."""
        named = dict(kwargs or {})
        if self._is_aside or self._is_compiling() or not isinstance(func, _OVERLOAD):
            return func(*args, **named)
        if is_view(func):
            return func(*args, **named)
        self.has_run = True
        self.casts.look()
        if self.names:
            self.ledger.see_node()  # what the op adds is known as its own, not as its node's
            self._name(func)
        if func is _ASK:
            if self._key(args[0]) not in (self._made.keys() | self._written):
                return func(*args)
            self._count()
        if func._schema.is_mutable and args and _is_number(args[0]):
            self._written.add(self._key(args[0]))
        if func is torch.ops.aten._cudnn_init_dropout_state.default:
            raise Stopped(_STATE)
        if self.ledger.accumulates(func, args):
            return args[0]
        given = _map(self.twin, args), {k: _map(self.twin, v) for k, v in named.items()}
        where = _CPU if self.device == _CPU else _where(args, named)
        with self.ledger.answering():
            self.ledger.is_elsewhere = where != self.device
            try:
                found = self.ledger.__torch_dispatch__(func, types, *given)
            finally:
                self.ledger.is_elsewhere = False
        is_users = self.names or graph.in_backward()
        is_new = is_users and where == _CPU and not func._schema.is_mutable
        if is_new and _is_large(found):
            name = self.ledger.name if self.names else func.overloadpacket.__name__
            self.outside = self.outside or (name, self.ledger.loc if self.names else UNKNOWN_LOC)
            self.calls_ops |= self.names
            caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            self.goes_back |= not self.names and not _is_the_engines(caller)
        if func is _CAST and nesting() and self._is_weight_of_the_callers(args[0]):
            # PyTorch keeps what autocast casts, for later calls and for other threads: values, too.
            self._has_cast = True
            made = func(*args, **named)
            self._pair(made.untyped_storage(), found.detach())
            return made
        return _map(lambda x: self.host(x, where), found)

    def _name(self, func: Any) -> None:
        frame = user_frame(sys._getframe(2))  # pyright: ignore[reportPrivateUsage]
        loc = UNKNOWN_LOC
        if frame is not None and not frame.f_code.co_filename.startswith("<"):
            loc = loc_of(frame.f_code, frame.f_lasti)
        self.ledger.at(func.overloadpacket.__name__, loc, op=func)
        if torch.is_grad_enabled():  # then the op's node is the latest
            number: int = torch._C._autograd._get_sequence_nr() - 1  # pyright: ignore
            self.ledger.places[number] = self.ledger.name, self.ledger.loc

    def _count(self) -> None:
        self.asked += 1
        if self.asked > _MOST_NUMBERS:
            raise Stopped(f"Python asks the data for more than {_MOST_NUMBERS} numbers")

    def twin(self, x: Tensor, keeps_numbers: bool = True) -> Tensor:
        """The meta tensor that stands for it; single numbers of the caller's stay what they are."""
        if x.is_meta:
            return x
        if x.layout is not torch.strided:
            raise Stopped(f"tensors of {x.layout} are not counted")
        storage = x.untyped_storage()
        found = self._twins.get(storage._cdata)  # pyright: ignore[reportPrivateUsage]
        if found is None:
            if not x.dim() and keeps_numbers and x.device == _CPU:
                return x
            made = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")
            self.ledger.given([made])
            self._pair(storage, made)
        else:
            made = found[1]
        return over(x, made.untyped_storage()).requires_grad_(x.requires_grad)

    def released(self, x: Tensor) -> Tensor:
        """Its twin, which nobody else has: what is made in its memory is another tensor's twin."""
        found = self._twins.pop(self._key(x), None)
        if found is None:
            return self.twin(x, keeps_numbers=False)
        self._hosts.pop(self._key(found[1]), None)
        return over(x, found[1].untyped_storage())

    def operand(self, x: Tensor) -> Tensor:
        """Its twin, as a program's operand: no leaf, for the graph would hold a leaf's memory."""
        with self.aside():
            made = self.twin(x, keeps_numbers=False)
            if x.requires_grad:
                start = torch.empty(x.shape, dtype=x.dtype, device="meta", requires_grad=True)
                made = _over_leaf(start, made)
                self._starts[id(made)] = start
                self._given[id(made)] = made.grad_fn
            return made

    def host(self, x: Tensor, device: torch.device | None = None) -> Tensor:
        """The tensor of the device for a meta tensor; of the call's device, unless it is told."""
        if not x.is_meta:
            return x
        storage = x.untyped_storage()
        known = self._hosts.get(storage._cdata)  # pyright: ignore[reportPrivateUsage]
        host = known() if known is not None else None
        if host is None:
            host = untouched(storage.nbytes(), device or self.device)
            self._note(host)
            self._pair(host, x.detach())
        return over(x, host)

    def gradient(self, x: Tensor | None) -> Tensor | None:
        """The tensor of the device for a gradient; a view where that is one, which has its base."""
        if x is None:
            return None
        made = self.host(x)
        return made.view_as(made) if x._is_view() else made

    def joined(self, results: Any, operands: Mapping[int, tuple[Tensor, Tensor]]) -> Any:
        """A program's results as tensors of the device. `operands`: by the id of each one's
        stand-in, the tensor that it stands for, and that stand-in."""
        with self.aside():
            made: dict[int, Tensor] = {key: x for key, (x, _) in operands.items()}
            carrying: dict[int, Tensor] = {
                key: stand_in
                for key, (x, stand_in) in operands.items()
                if stand_in.requires_grad and stand_in.grad_fn is not self._given.get(key)
                if not x.is_leaf and not x._is_view()
            }  # written in place: their gradients go through the program, too
            for x in tree_leaves(results):
                if isinstance(x, torch.Tensor) and id(x) not in made:
                    if x.requires_grad:
                        carrying[id(x)] = x
                    else:
                        made[id(x)] = self.host(x)
            if carrying:
                own = {key: x for key, (x, _) in operands.items() if x.requires_grad}
                starts = [self._starts[key] for key in own]
                found = _joined(self, list(carrying.values()), starts, *own.values())
                for key, x in zip(carrying, found, strict=True):
                    made[key] = _written(operands[key][0], x) if key in operands else x

            self._starts.clear()
            self._given.clear()

            def exchange(x: Any) -> Any:
                return made.get(id(x), x)

            return tree_map(exchange, results)

    def untouched(self, value: Any) -> Any:
        """The caller's value, with tensors of the device for meta and for fake ones."""
        return tree_map(self._untouched, value)

    def _untouched(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if not (x.is_meta or hasattr(x, "fake_mode")):
            return x if x.is_leaf or x.layout is not torch.strided else self.of_an_op(x)
        made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        self.ledger.given([made])
        made = self.host(made).requires_grad_(x.requires_grad)
        return made if x.is_leaf or not x.requires_grad else _over_leaf(made, made)

    def of_an_op(self, x: Tensor) -> Tensor:
        """The same tensor, behind which the caller's graph is not seen: going backward lets go of
        what that has saved."""
        form = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        with self.ledger.paused():
            leaf = self.host(form, x.device).requires_grad_()
        return _over_leaf(leaf, x)

    def _note(self, made: Storage) -> None:
        """It has no values, as long as it lives."""
        key = made._cdata  # pyright: ignore[reportPrivateUsage]

        def end(ref: object) -> None:
            if self._made.get(key) is ref:
                del self._made[key]

        self._made[key] = weakref.ref(made, end)

    def _pair(self, storage: Storage, twin: Tensor) -> None:
        key, meta = storage._cdata, twin.untyped_storage()._cdata  # pyright: ignore

        def end(ref: object) -> None:
            if self._twins.get(key, (None,))[0] is ref:
                del self._twins[key]
            if self._hosts.get(meta) is ref:
                del self._hosts[meta]

        ref = weakref.ref(storage, end)
        self._twins[key], self._hosts[meta] = (ref, twin), ref

    @property
    def has_left_any(self) -> bool:
        """Whether tensors of this mode's making are alive."""
        return bool(self._made)

    def has_no_values(self, x: Tensor) -> bool:
        """Whether it is of this mode's making."""
        return x.layout is torch.strided and not x.is_meta and self._key(x) in self._made

    def _is_weight_of_the_callers(self, x: Tensor) -> bool:
        return is_weight(x) and self._key(x) not in self._made

    def _key(self, x: Tensor) -> int:
        return x.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def _where(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Of an op's results: what it was told, or where its operands are, numbers aside."""
    told = kwargs.get("device")
    if told is not None:
        device = torch.device(told)
        is_current = device == torch.device("cuda")  # which has no number
        return torch.device("cuda", torch.cuda.current_device()) if is_current else device
    found: list[Tensor] = []
    _map(found.append, args)  # pyright: ignore[reportArgumentType]
    large = (x.device for x in found if x.dim())
    return next(large, found[0].device if found else _CPU)


def _is_number(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not x.dim() and x.layout is torch.strided


def _is_the_engines(frame: FrameType) -> bool:
    """Whether autograd's engine calls the op that this frame has called."""
    return frame.f_code.co_name == "_engine_run_backward"


def _is_large(value: Any) -> bool:
    found: list[Tensor] = []
    _map(found.append, value)  # pyright: ignore[reportArgumentType]
    return any(x.numel() * x.itemsize >= LARGE_BYTES for x in found)


def _over_leaf(leaf: Tensor, like: Tensor) -> Tensor:
    """A tensor with the memory of `like`, whose gradient is the leaf's."""
    with torch.enable_grad():
        return cast("Tensor", _OverLeaf.apply(leaf, like.detach()))


class _OverLeaf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: Tensor, like: Tensor) -> Tensor:
        ctx.metadata[THROUGH] = True
        return over(like, like.untyped_storage())

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        return cotangents[0], None


class _Written(torch.autograd.Function):
    """A tensor that a program has written in place, with the gradient of what it has written."""

    @staticmethod
    def forward(ctx: Any, written: Tensor, _: Tensor) -> Tensor:
        ctx.metadata[THROUGH] = True
        ctx.mark_dirty(written)
        return written

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[None, Tensor]:
        return None, cotangents[0]


class _Joined(torch.autograd.Function):
    """What autograd knows of a program, as one op on the device."""

    @staticmethod
    def forward(
        ctx: Any,
        virtual: Virtual,
        results: Sequence[Tensor],
        operands: Sequence[Tensor],
        *_: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.virtual, ctx.operands = virtual, operands
        ctx.metadata[THROUGH] = True
        virtual.ledger.watch(results)
        ctx.handed = [None for _ in results]
        with torch.enable_grad():
            ends = [_handed(ctx.handed, k, x) for k, x in enumerate(results)]
        ctx.edges = list(map(torch.autograd.graph.get_gradient_edge, ends))
        return tuple(map(virtual.host, results))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        is_watched = WATCHED in ctx.metadata
        alone = [ours.has_engine_alone(cotangents, k, is_watched) for k in range(len(cotangents))]
        virtual: Virtual = ctx.virtual
        if torch.is_grad_enabled():
            virtual.ledger.notes[TWICE] = None
        with virtual.aside():
            edges: list[Any] = []
            passed: dict[int, tuple[Tensor, Tensor]] = {}  # who else has them has them still
            for k, g in enumerate(cotangents):
                if g is None:
                    continue
                x = virtual.released(g) if alone[k] else virtual.twin(g, False)
                if not alone[k]:
                    passed[id(x)] = g, x
                ctx.handed[k] = x
                edges.append(ctx.edges[k])
            x = None  # then the engine alone has it
            virtual.ledger.python_has([g for g in ctx.handed if g is not None])
            with virtual.casts.on(), virtual.ledger:
                found = _gradients(edges, ctx.operands, [_START] * len(edges), allow_unused=True)
            same = [passed[id(x)][0] if id(x) in passed else virtual.gradient(x) for x in found]
            return None, None, None, *same


class _Handed(torch.autograd.Function):
    """Gives its cotangent to autograd's engine as an op would: nobody else has it then, so that the
    memory may be used again."""

    @staticmethod
    def forward(ctx: Any, cotangents: list[Tensor | None], k: int, x: Tensor) -> Tensor:
        ctx.cotangents, ctx.k = cotangents, k
        return _START.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, None, Tensor | None]:
        given, ctx.cotangents[ctx.k] = ctx.cotangents[ctx.k], None
        return None, None, given


_joined: Final[Any] = cast("Any", _Joined).apply
_handed: Final[Any] = cast("Any", _Handed).apply
_written: Final[Any] = cast("Any", _Written).apply
_gradients: Final[Any] = torch.autograd.grad

for _hidden in (Virtual.__torch_dispatch__, _Joined.backward, _OverLeaf.backward):
    hide_with_callees(_hidden)


def is_view(func: Any) -> bool:
    """Whether it gives views and nothing else, or changes the form of one."""
    returns = func._schema.returns
    gives_views = bool(returns) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returns
    )
    return gives_views or torch.Tag.inplace_view in func.tags


def _map(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(_map(change, v) for v in cast("Sequence[Any]", value))
    return value
