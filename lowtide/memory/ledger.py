"""The allocations of a dry run: when they are made, by which line, and the peak.

In: the ops that PyTorch runs on meta tensors while the ledger is entered, also in a backward pass.
Out: `peak_bytes`, and `at_peak()`: what was alive then. Nothing is computed, no data is allocated.

    ledger = Ledger()
    with ledger:
        y = x * 2                      # x: on the meta device; one entry, until y's storage dies
        ledger.play(events)            # the allocations and frees of kernels
    ledger.peak_bytes

Invariant: an entry is a storage that an op made. It counts once, however many views it has, and
lives as long as anything refers to it: a value of the program, a saved tensor, a gradient. Earlier
storages, and those made while `paused`, do not count. Real tensors among an op's operands are
replaced by meta tensors, so that nothing is written.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd.function import FunctionCtx

from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.memory import bounds, layouts, makers, meta_cache
from lowtide.memory.elsewhere import Elsewhere
from lowtide.memory.graph import nodes_of
from lowtide.memory.largest import largest
from lowtide.memory.layouts import is_packed
from lowtide.memory.plan import Event, LiveAllocation
from lowtide.memory.stand_ins import like
from lowtide.torch_private.autograd import current_node, sequence_number
from lowtide.torch_private.dispatch import is_composite, parts_of_composite, schema_of
from lowtide.torch_private.modes import OwnMode
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import address, storage_of, use_count, uses_of_storage

_NODE = "lowtide.place"
_ROOT = "torch::autograd::GraphRoot"  # gives the cotangents, and computes nothing
WATCHED = "lowtide.watched"  # key in the metadata of a node that `watch` has hooked
_META = torch.device("meta")
_FOREVER = 1 << 62
_TORCH = "PyTorch"
_NUMBERS_BYTES = 64  # an op's Python numbers as 0-dim tensors
_ALONE = 2  # use count of a storage that one tensor has: the tensor and the query
_ONCE = 4  # use count, within a mode, of a gradient that only the engine holds
aten = torch.ops.aten
_MAKE_ZEROS = {aten.new_zeros.default, aten.zeros_like.default, aten.zeros.default}
_CONSTANT = {aten.zeros.default, aten.ones.default, aten.full.default, aten.empty.memory_format}
_BY_DATA = dict.fromkeys(
    ("CumprodBackward0", "ProdBackward0", "ProdBackward1"),
    "looks for zeros in the data, and takes less where it finds none",
)
_ASK_TRUTH = {aten.equal.default, aten.allclose.default}
_ASK = {aten._local_scalar_dense.default, *_ASK_TRUTH}
_ONTO_ZEROS: dict[Any, Any] = {
    aten.scatter.src: aten.scatter_.src,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.put.default: aten.put_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
}


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """An allocation that lives from `born` until `died`, in steps of the ledger's clock."""

    name: str
    kind: str
    loc: Loc
    nbytes: int
    born: int
    shape: tuple[int, ...] = ()
    itemsize: int = 1
    formula: str = ""
    died: int = _FOREVER
    shown: Callable[[str], tuple[str, Loc]] | None = None  # of a kernel's value: see `describe`

    def describe(self) -> tuple[str, Loc]:
        """Return the user's word for it, and its place."""
        if self.shown is None:
            return self.name, self.loc
        word, loc = self.shown(self.name)
        return word, self.loc if self.loc.line else loc


class Ledger(OwnMode):
    """See the module's text. `name`, `loc`, `kind`: attributes of the next entries. `of_host`:
    counts CPU memory; on a GPU, tensors are rounded up to whole blocks."""

    def __init__(self, of_host: bool = True) -> None:
        super().__init__()
        self.of_host = of_host
        self.live_bytes = 0  # what is held now
        self.peak_bytes = 0
        self._node = -1  # of autograd's graph, whose op it is
        self.entries: list[Entry] = []
        self.notes: dict[str, None] = {}
        self.unbounded: dict[str, None] = {}  # notes on ops that the table of bounds does not have
        self.name, self.loc, self.kind = "", UNKNOWN_LOC, _TORCH
        self._clock = 0
        self._peak_clock = 0
        self._peak_inside = LiveAllocation(name="", nbytes=0, kind="", loc=UNKNOWN_LOC)
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._is_paused = False
        self.has_read_data = False  # for a number that depends on the data
        self._answers = False
        self.elsewhere = Elsewhere()
        self._of_python: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # gradients
        self._done: Any = None  # the node that ran last in the backward pass
        self._zeros = 0  # the storage of the zeros that were made last

    # -- called by the dry run --

    def at(self, name: str, loc: Loc, kind: str = _TORCH) -> None:
        """Attribute the allocations from here on to this op."""
        self.name, self.loc, self.kind = name, loc, kind

    def spike(self, nbytes: int) -> None:
        """Count these bytes for a moment, as scratch memory of an op."""
        self._clock += 1
        now_bytes = self.live_bytes + nbytes
        if now_bytes > self.peak_bytes:
            self.peak_bytes = now_bytes
            self._peak_clock = self._clock
            self._peak_inside = LiveAllocation(
                name=f"within {self.name}", nbytes=nbytes, kind=self.kind, loc=self.loc
            )

    def play(
        self, events: Iterable[Event], shown: Callable[[str], tuple[str, Loc]]
    ) -> dict[str, Entry]:
        """Enter the events of a run of kernels; return the live allocations by name. `shown`: the
        user's word and place for a name."""
        self.see_node()
        left: dict[str, Entry] = {}
        for event in events:
            x = event.held
            if not event.takes:
                self.end(left.pop(x.name))
                continue
            entry = Entry(
                name=x.name, kind=x.kind, loc=x.loc, nbytes=x.nbytes, born=0, formula=x.formula,
                shown=shown,
            )  # fmt: skip
            self._enter(entry)
            left[x.name] = entry
        return left

    def adopt(self, x: torch.Tensor, entry: Entry) -> None:
        """Let the entry live as long as the tensor's memory."""
        storage = x.untyped_storage()
        self._storages[storage_of(x)] = weakref.ref(storage, self._end_of(storage_of(x), entry))

    def hold(self, nbytes: int) -> None:
        """Count these bytes from here on, for steps that do not run one by one."""
        self._enter(
            Entry(name=self.name, kind=self.kind, loc=self.loc, nbytes=nbytes, born=self._clock)
        )

    @contextlib.contextmanager
    def aside(self, nbytes: int) -> Generator[None]:
        """A context in which these live bytes do not count: they belong to another branch."""
        self.live_bytes -= nbytes
        try:
            yield
        finally:
            self.live_bytes += nbytes

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """A context whose allocations do not count."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @contextlib.contextmanager
    def answering(self) -> Generator[None]:
        """A context in which an op that reads a number from the data gets 1, or False."""
        before, self._answers = self._answers, True
        try:
            yield
        finally:
            self._answers = before

    def mark(self, results: Sequence[torch.Tensor]) -> None:
        """Attribute allocations in the backward pass of these results to this op's line, too."""
        for node in nodes_of(results, stop_at=_NODE):
            node.metadata[_NODE] = self.name, self.loc

    def watch(self, results: Sequence[torch.Tensor]) -> None:
        """Record which node of these results' backward pass ran last."""
        for node in nodes_of(results):
            node.register_hook(self._node_is_done)
            node.metadata[WATCHED] = True

    def backward_ends(self) -> None:
        """Release the graph."""
        self._done = None

    def _node_is_done(self, gradients: object, *_: object) -> None:
        self._done = current_node()
        if isinstance(self._done, FunctionCtx):
            self.python_has(tensors_in(gradients))

    def python_has(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that Python may hold these tensors: the engine does not accumulate in place
        there."""
        found = (x.untyped_storage() for x in tensors)
        self._of_python |= {address(x): weakref.ref(x) for x in found}

    def accumulates(self, func: Any, args: Sequence[Any]) -> bool:
        """Return whether autograd's engine would add one gradient to another in place if no mode
        were on: it does if nothing else refers to the first. Python may refer to the results of
        Python functions."""
        if func is not aten.add.Tensor or torch.is_grad_enabled():
            return False
        node: Any = current_node()
        if node is None or not (node is self._done or node.name() == _ROOT):
            return False
        x = args[0]
        if (pythons := self._of_python.get(storage_of(x))) is not None and pythons() is not None:
            return False
        return (
            x.layout is torch.strided
            and uses_of_storage(storage_of(x)) == _ALONE
            and use_count(x) <= _ONCE
            and is_packed(x)
        )

    def at_peak(self) -> list[Entry | LiveAllocation]:
        """Return what is alive at the peak, the largest first."""
        found: list[Entry | LiveAllocation] = [
            e for e in self.entries if e.born <= self._peak_clock < e.died and e.nbytes
        ]
        if self._peak_inside.nbytes:
            found.append(self._peak_inside)
        rest = self.peak_bytes - sum(e.nbytes for e in found)
        if rest > 0:
            found.append(
                LiveAllocation(name="rounding to blocks", nbytes=rest, kind=_TORCH, loc=UNKNOWN_LOC)
            )
        return sorted(found, key=lambda e: -e.nbytes)

    # -- called by PyTorch --

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the op on the meta device, and enter its allocations."""
        kwargs = dict(kwargs or {})
        if self._is_paused:
            return func(*args, **kwargs)
        if is_composite(func):
            with self:
                return parts_of_composite(func, args, kwargs)
        self.see_node()
        leaves = not self.of_host and self.elsewhere.makes(args, kwargs)
        args, kwargs = self._on_meta(func, args, kwargs)
        if func in _ASK and args[0].is_meta:
            self.has_read_data = True
            if func is aten.allclose.default:
                with self:
                    torch.isclose(*args, **kwargs)
            if self._answers:
                return _answer(func, args[0])
        if self.accumulates(func, args):
            return args[0]
        func = self._as_without_a_mode(func, args)
        result, note = largest(func, args)
        if result is None:
            result = makers.results(func, args)
        if result is None:
            result = meta_cache.run(func, args, kwargs)
            result = layouts.with_eager_layout(func, args, result, kwargs)
        elif note:
            self.notes[f"{self.loc}: {note}"] = None
        result = _lifted(func, result)
        if func in _MAKE_ZEROS:
            self._zeros = storage_of(result)
        if leaves:
            self.given(tensors_in(result))
            self.elsewhere.add(tensors_in(result))
            return result
        for x in tensors_in(result):
            if not any(x is given for given in args):  # an in-place op returns its operand
                self.book(x)
        inside = bounds.scratch(func, args, kwargs, result, self.of_host)
        if inside is None:
            inside = bounds.largest_operand(args, kwargs)
            self.unbounded[f"{self.loc}: {bounds.UNKNOWN.format(func.name())}"] = None
        inside = inside + _NUMBERS_BYTES if self.of_host else bounds.rounded(inside)
        if inside:
            self.spike(inside)
        return result

    def _as_without_a_mode(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Return the op that PyTorch's backward formulas would call without modes: under a mode
        they call the out-of-place op on zeros."""
        node: Any = current_node()
        if node is None or isinstance(node, FunctionCtx):
            return func
        in_place = _ONTO_ZEROS.get(func)
        is_onto_zeros = in_place is not None and self._zeros == storage_of(args[0])
        return in_place if is_onto_zeros else func

    def _on_meta(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with meta tensors for real ones, and `device` likewise."""
        given = tensors_in([*args, *kwargs.values()])
        schema = schema_of(func)
        makes = not given and any(a.name == "device" for a in schema.arguments)
        if func in _CONSTANT and not self.of_host and _is_number_of_cpu(args, kwargs):
            return args, kwargs  # PyTorch for GPUs leaves it on the CPU
        if makes or kwargs.get("device") is not None:
            kwargs["device"] = _META
        if all(x.is_meta for x in given):
            return args, kwargs
        if not schema.is_mutable and all(x.dim() == 0 and not x.is_meta for x in given):
            return args, kwargs  # real numbers: the program may read their value
        keeps = not schema.is_mutable
        read = keeps or not self.of_host  # a GPU's kernel may read a CPU scalar
        return (
            tuple(self._changed(x, read if k else keeps) for k, x in enumerate(args)),
            {k: self._changed(x, keeps) for k, x in kwargs.items()},
        )

    def _changed(self, x: Any, keeps_numbers: bool) -> Any:
        if isinstance(x, torch.Tensor):
            return x if x.is_meta or (keeps_numbers and x.dim() == 0) else self._twin(x)
        if type(x) in (list, tuple):
            items = cast("Sequence[Any]", x)
            return type(x)(self._changed(item, keeps_numbers) for item in items)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return x

    def _twin(self, x: torch.Tensor) -> torch.Tensor:
        found = self._twins.get(id(x))
        if found is None:
            found = self._twins[id(x)] = (x, like(x))
            self._storages[storage_of(found[1])] = weakref.ref(found[1].untyped_storage())
        return found[1]

    def given(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that these tensors existed before."""
        for x in tensors:
            self._storages[storage_of(x)] = weakref.ref(x.untyped_storage())

    def book(self, x: torch.Tensor) -> None:
        """Enter a tensor; it counts as long as its memory lives."""
        key = storage_of(x)
        known = self._storages.get(key)
        if not x.is_meta:
            return
        if known is not None and known() is not None:
            return
        storage = x.untyped_storage()
        name, loc = self._place()
        entry = Entry(
            name=name,
            kind=self.kind,
            loc=loc,
            nbytes=storage.nbytes(),
            born=self._clock,
            shape=tuple(x.shape) if x.numel() * x.itemsize == storage.nbytes() else (),
            itemsize=x.itemsize,
        )
        self._storages[key] = weakref.ref(storage, self._end_of(key, entry))
        self._enter(entry)

    def see_node(self) -> None:
        """Note which node of a backward pass runs now."""
        node, number = _current()
        if number not in (-1, self._node) and (why := _BY_DATA.get(node.name())):
            name, loc = self._place()
            self.notes[f"{loc}: {name} {why}"] = None
        self._node = number

    def _place(self) -> tuple[str, Loc]:
        node, _ = _current()
        place = None if node is None else node.metadata.get(_NODE)
        return (f"{place[0]} backward", place[1]) if place else (self.name, self.loc)

    def _enter(self, entry: Entry) -> None:
        self._clock += 1
        entry.born = self._clock
        self.entries.append(entry)
        self.live_bytes += self._size(entry)
        self.spike(0)

    def _size(self, entry: Entry) -> int:
        return entry.nbytes if self.of_host else bounds.rounded(entry.nbytes)

    def end(self, entry: Entry) -> None:
        """Free an entry."""
        self._clock += 1
        entry.died = self._clock
        self.live_bytes -= self._size(entry)

    def _end_of(self, key: int, entry: Entry) -> Callable[[object], None]:
        weak = weakref.ref(self)  # the ledger refers to this callback

        def end(ref: object) -> None:
            ledger = weak()
            if ledger is None:
                return
            ledger.end(entry)
            if ledger._storages.get(key) is ref:  # else the address was reused
                del ledger._storages[key]

        return end


def _answer(func: Any, x: torch.Tensor) -> Any:
    is_truth = func in _ASK_TRUTH or x.dtype is torch.bool
    return False if is_truth else torch.ones((), dtype=x.dtype).item()


def _current() -> tuple[Any, int]:
    """Return the running backward node and its number; None and -1 outside of a backward pass."""
    node: Any = current_node()
    return node, -1 if node is None else int(sequence_number(node))


def _is_number_of_cpu(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    has_no_dims = bool(args) and isinstance(args[0], list | tuple) and not args[0]
    return has_no_dims and torch.device(kwargs.get("device") or "cpu").type == "cpu"


def _lifted(func: Any, result: Any) -> Any:
    """Return a meta tensor for the result of `torch.tensor([1, 2])`, whose allocation no mode sees;
    other results unchanged."""
    is_lift = func is torch.ops.aten.lift_fresh.default
    if is_lift and not result.is_meta and (result.dim() or result.device.type != "cpu"):
        return like(result)
    return result
