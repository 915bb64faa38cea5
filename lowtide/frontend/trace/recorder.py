"""Writes the ops of one run, and maps tensors and numbers of the run to values.

In: calls with their arguments and results, from `mode`. Out: the body of a Function.

    y = x.view(n, -1)       →  %1: Tensor = torch.view(%x, (%n, -1))      y stands for %1
    y.add_(1)               →  %2: Tensor = mutate(%1, 1)                 y stands for %2
    n, m = y.shape          →  %3: List[int] = torch.shape(%2), …         TracedInt

Invariant: a tensor is identified by its Python object, which lives as long as the recorder. A
tensor that was not made during the run is captured.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import torch

from lowtide.errors import CompileError
from lowtide.frontend.trace.autocast_blocks import AutocastBlocks
from lowtide.frontend.trace.captures import Captures
from lowtide.frontend.trace.encode import Items, NotEncodable, encode, encode_items
from lowtide.frontend.trace.numbers import Traced, traced_number
from lowtide.frontend.trace.places import Place, here, warn_frozen
from lowtide.ir import types as t
from lowtide.ir.aliases import writes_another
from lowtide.ir.builder import Builder
from lowtide.ir.core import Block, Value
from lowtide.ir.types import ListType, TupleType
from lowtide.ops import registry
from lowtide.ops.binding import Bound, bind, emit, records_of
from lowtide.ops.library import is_left
from lowtide.torch_private.pytree import tensors_in

_ENCODABLE: Final = (
    "tensors, numbers, strings, dtypes, devices, and lists, tuples and dicts of them"
)
_FEW: Final = 3  # rows, which are unpacked at once
_REMEDIES: Final = {  # by what was met
    "a ScriptObject": "lt.script of the module, whose program leaves such calls to PyTorch, or the "
    "module before torch.ao.quantization converts it",
}


class Recorder:
    """See the module's text. Used by one thread only."""

    def __init__(
        self, captures: Captures, stop: types.FrameType | None = None, *, quiet: bool = False
    ) -> None:
        self.builder = Builder(Block())
        self.captures = captures
        self.stop = stop
        self.grad_off = False  # torch.no_grad() inside a run that began with gradients
        self.renewed: set[int] = set()  # ids of what the call gave another shape or other memory
        self.done = False
        self.quiet = quiet
        self.autocast = AutocastBlocks()
        self.warnings = 0
        self._tensors: dict[int, tuple[torch.Tensor, Value]] = {}
        self._fixed: set[Value] = set()  # Python data
        self._thread = threading.get_ident()

    # -- tensors --

    def tensor(self, tensor: torch.Tensor) -> Value:
        """Return the value of a tensor; under `no_grad`, a detached one."""
        found = self._tensors.get(id(tensor))
        value = self._captured(tensor) if found is None else found[1]
        if self.grad_off and id(tensor) not in self.renewed:
            return self.builder.emit("torch.detach", [value], [t.TENSOR]).result
        return value

    def _captured(self, tensor: torch.Tensor) -> Value:
        value = self.captures.capture(tensor)
        if not self.captures.is_named(tensor):
            self._fixed.add(value)
        self.bind_tensor(tensor, value)
        return value

    def bind_tensor(self, tensor: torch.Tensor, value: Value) -> None:
        """From here on, the tensor is this value."""
        self._tensors[id(tensor)] = (tensor, value)

    def depends(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's values may differ in another call."""
        found = self._tensors.get(id(tensor))
        if found is None:
            return self.captures.is_named(tensor)
        return found[1] not in self._fixed

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is an input, was made in this run, or is captured."""
        return id(tensor) in self._tensors

    # -- numbers --

    def is_live(self) -> bool:
        """Return whether the run goes on, in this thread."""
        return not self.done and threading.get_ident() == self._thread

    def number(self, number: Any) -> Value | None:
        """Return the value of a number of this run."""
        mine = isinstance(number, Traced) and number.traced_recorder is self
        return number.traced_value if mine else None

    def number_op(self, name: str, operands: list[Any], result: Any) -> Any:
        """Record an op on numbers; return `result` as a traced number."""
        self.builder.loc = here(self.stop).loc
        value = self.builder.py(name, *(encode(self, x) for x in operands))
        return result if value is None else traced_number(result, self, value)

    def number_frozen(self, what: str, *, in_library: bool) -> None:
        """Warn that a number became a constant, if the user can do something about it."""
        place = here(self.stop)
        checked = place.loc.text.lstrip().startswith(("assert ", "print("))
        if not checked and (in_library or not place.in_library):
            self.warn_frozen(what, place)

    def warn_frozen(self, what: str, place: Place, remedy: str = "") -> None:
        """Warn that something of the run became a constant of the program."""
        self.warnings += 1
        if not self.quiet:
            warn_frozen(what, place, remedy)

    # -- calls --

    def call(
        self,
        source: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        *,
        mutates: bool,
    ) -> None:
        """Record a call. `mutates`: it changes one of its operands."""
        place = here(self.stop)
        self.builder.loc = place.loc
        try:
            values = [encode(self, x) for x in args]
            named = {k: encode(self, x) for k, x in kwargs.items()}
        except NotEncodable as what:
            problem = f"{source} is called with {what}, which a recorded program cannot hold"
            raise self.error(place, problem, _REMEDIES.get(str(what), _ENCODABLE)) from None
        bound = None if mutates else bind(records_of(source), values, named)
        if bound is not None and bound.record.name != "getitem" and not is_left(bound.record):
            self._record(bound, result)
            return
        op_name = "mutate" if mutates and not writes_another(source, named) else "call_torch"
        operands = [*values, *named.values()]
        self._plain(op_name, operands, result, target=source, kwnames=tuple(named))

    def python_call(self, target: str, operands: Sequence[Value], result: Any) -> None:
        """Record a call of a Python object, of this name, with this result."""
        self.autocast.note(self.builder.block)
        self._plain("py.call", operands, result, target=target, kwnames=())

    def constant(self, result: Any) -> None:
        """Record a tensor made from Python data: a captured copy, cloned in each call."""
        for tensor in tensors_in(result):
            if not self.knows(tensor):
                self.builder.loc = here(self.stop).loc
                operands = [self.data(tensor), self.builder.const(None)]
                copy = self.builder.emit("torch.clone", operands, [t.TENSOR]).result
                self.bind_tensor(tensor, copy)
                self.fix(tensor)

    def data(self, tensor: torch.Tensor) -> Value:
        """Return the captured value of Python data that nothing changes."""
        kept = self.captures.constants.data(tensor)
        found = self._tensors.get(id(kept))
        return self._captured(kept) if found is None else found[1]

    def fix(self, result: Any) -> None:
        """Note that the result is the same in each call."""
        self._fixed.update(self._tensors[id(x)][1] for x in tensors_in(result) if self.knows(x))

    def getitem(self, x: torch.Tensor, index: Any, result: Any) -> None:
        """Record `x[index]`."""
        base, items = self._indexed(x, index)
        op = self.builder.emit(
            "torch.getitem", [base, *items.operands], [t.TENSOR], spec=items.spec
        )
        self.bind(op.result, result)

    def setitem(self, x: torch.Tensor, index: Any, value: Any) -> None:
        """Record `x[index] = value`."""
        base, items = self._indexed(x, index)
        op = self.builder.emit(
            "mutate",
            [base, *items.operands, encode(self, value)],
            [t.TENSOR],
            target="Tensor.__setitem__",
            kwnames=(),
            spec=items.spec,
        )
        if not self.grad_off:
            self.bind_tensor(x, op.result)

    def _indexed(self, x: torch.Tensor, index: Any) -> tuple[Value, Items]:
        place = here(self.stop)
        self.builder.loc = place.loc
        try:
            return self.tensor(x), encode_items(self, index)
        except NotEncodable as what:
            raise self.error(place, f"{what} as an index cannot be recorded", "a tensor") from None

    def sizes(self, source: str, x: torch.Tensor, args: Sequence[Any], result: Any) -> Any:
        """Record a size query; return the answer as traced numbers."""
        self.builder.loc = here(self.stop).loc
        bound = bind(
            registry.lookup(source), [self.tensor(x), *(encode(self, a) for a in args)], {}
        )
        assert bound is not None, source
        value = emit(self.builder, bound)[0]
        if isinstance(result, int):
            return traced_number(result, self, value)
        elems = [self._element(value, k) for k in range(len(result))]
        return torch.Size([traced_number(n, self, e) for n, e in zip(result, elems, strict=True)])

    def _element(self, value: Value, index: int) -> Value:
        found = self.builder.py("list.get", value, self.builder.const(index))
        assert found is not None
        return found

    def _record(self, bound: Bound, result: Any) -> None:
        values = emit(self.builder, bound)
        if len(values) == 1:
            self.bind(values[0], result)
            return
        for value, part in zip(values, result, strict=True):
            self.bind(value, part)

    def _plain(
        self, name: str, operands: Sequence[Value], result: Any, *, target: str, kwnames: Any
    ) -> None:
        """Record a call without a record, typed by its result; a tuple becomes several results."""
        type_ = t.type_of(result)
        several = isinstance(type_, TupleType) and len(type_.elems) > 1 and name == "call_torch"
        types_ = list(cast("TupleType", type_).elems) if several else [type_ or t.ANY]
        op = self.builder.emit(name, operands, types_, target=target, kwnames=kwnames)
        if several:
            for value, part in zip(op.results, result, strict=True):
                self.bind(value, part)
        else:
            self.bind(op.result, result)

    def bind(self, value: Value, result: Any) -> None:
        """Bind the tensors of a result to the parts of its value."""
        if isinstance(result, torch.Tensor):
            detached = self.grad_off and id(result) not in self.renewed
            if not (detached and self.knows(result)):
                self.bind_tensor(result, value)
        elif isinstance(result, tuple | list) and tensors_in(result):
            for part, elem in zip(self.parts(value, len(result)), result, strict=True):  # pyright: ignore
                self.bind(part, elem)

    def parts(self, value: Value, count: int) -> list[Value]:
        """Return the elements of a tuple or a list."""
        if isinstance(value.type, TupleType):
            return [self.builder.tuple_get(value, k) for k in range(count)]
        maker = self.builder.makers.get(value)
        if maker is not None and maker.name == "torch.unbind" and count > _FEW:
            return self._rows(value, count)
        elem = value.type.elem if isinstance(value.type, ListType) else t.TENSOR
        return self.builder.emit("unpack", [value], [elem] * count).results

    def _rows(self, value: Value, count: int) -> list[Value]:
        """Return many rows one by one, so that a loop can be rerolled. Another number of rows is an
        error."""
        builder = self.builder
        length = builder.py("py.len", value)
        wrong = builder.py("py.ne", length, builder.const(count)) if length is not None else None
        assert wrong is not None
        raises, goes_on = Block(), Block()
        with builder.inside(raises):
            message = builder.const(f"the wrong number of values to unpack (expected {count})")
            builder.emit("raise", [message], exception="ValueError")
            builder.emit("yield")
        with builder.inside(goes_on):
            builder.emit("yield")
        builder.emit("if", [wrong], blocks=[raises, goes_on])
        return [self._element(value, k) for k in range(count)]

    def error(self, place: Place, problem: str, remedy: str) -> CompileError:
        """Return an error at the user's line, to be raised."""
        return CompileError(problem, place.loc, remedy)
