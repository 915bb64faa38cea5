"""The host program: what happens around the kernels of a Program, as data.

    sizes s0
    input x: f32[s0, 4]
    input h0: f32[4]
    take h: f32[2, 4] temporary
    size step = 0
    loop step from 0 by 1, s0 times:
        launch loop0.k0(x, h[step - 1, rows 2, bytes 16, first h0], h[step, rows 2, bytes 16]) ...
    view last: f32[4] = h[(s0 - 1) % 2]
    result last

`build` writes it, `printer` and `parser` are text and back, `verify` checks it, `memory` reads the
memory plan from it, and `python` prints the driver. Nothing in it is a Python function or object of
the user's, so that a driver in another language can be printed from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.ir.dtypes import DType
from lowtide.texpr.index import Index
from lowtide.tile.matmul import Matmul

BEGUN: Final = "begun"  # a launch's size that is 0 in the first step of its loop, later 1

MUCH_BYTES: Final = 1 << 16  # a view that keeps so many other bytes alive is copied: see `Own`

Shape = tuple[Index, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a stack that changes with the steps of a loop: row `(t + shift) % rows` at step t.
    The first step to run reads `first` instead, if that is given. `row_bytes`: size of one row."""

    of: Place
    step: str
    shift: int
    rows: Index
    row_bytes: Index
    first: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The address `nbytes` after another place."""

    of: Place
    nbytes: Index


Place = str | Row | Offset  # a tensor's location for a kernel: its name, or a part of another one


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor's element type and sizes."""

    dtype: DType
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A number computed from sizes. The same name may be assigned again later."""

    name: str
    index: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """An allocation. `kind`: "output" or "temporary". `loc`: the user's line."""

    name: str
    tensor: Tensor
    kind: str
    loc: Loc = UNKNOWN_LOC


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """A tensor in the memory of another one, `of`, which the next launch reads for the last
    time."""

    name: str
    tensor: Tensor
    kind: str
    of: str
    loc: Loc = UNKNOWN_LOC


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work memory for each thread, as large as the largest of `thread_bytes`."""

    name: str
    thread_bytes: tuple[Index, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Sets all elements of a tensor to one number."""

    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A contiguous tensor of the same values: `of` itself if it is contiguous, else a copy."""

    name: str
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Row `index` of a tensor, in its memory."""

    name: str
    tensor: Tensor
    of: str
    index: Index
    loc: Loc = UNKNOWN_LOC


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """Copies a view to memory of its own, unless the tensor that it is a part of is larger by less
    than `MUCH_BYTES`."""

    name: str
    tensor: Tensor
    kind: str
    loc: Loc = UNKNOWN_LOC


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel launch. `tensors`, `sizes` and `numbers` are its parameters, in order. `work`: the
    name of its work memory, "" if it needs none. `instead`: a library product with the same result;
    the faster of the two runs."""

    kernel: str
    tensors: tuple[Place, ...]
    sizes: tuple[str, ...]
    numbers: tuple[str, ...]
    work: str = ""
    instead: Matmul | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Runs the body `trips` times. In trip k, size `step` is `begin + by * k`; with `reverse` the
    last trip runs first. The loop ends after a step that writes False to `until`. `ran`: the size
    that holds the number of steps that ran. Both may be "". A body has launches and loops only."""

    step: str
    begin: Index
    by: int
    trips: Index
    body: tuple[Launch | Loop, ...]
    reverse: bool = False
    until: Place = ""
    ran: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Frees the memory of these tensors, unless a view of it is alive."""

    names: tuple[str, ...]


# A Matmul is a product by the library.
Statement = Size | Take | Over | Work | Fill | Dense | View | Own | Launch | Matmul | Loop | Free


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProgram:
    """`sizes` and `numbers`: parameters besides `inputs`. `results`: names of tensors."""

    sizes: tuple[str, ...]
    numbers: tuple[str, ...]
    inputs: Mapping[str, Tensor]
    body: tuple[Statement, ...]
    results: tuple[str, ...]


def names_in(place: Place) -> Iterator[str]:
    """Yield the names of the tensors in a place."""
    match place:
        case str():
            yield place
        case Row():
            yield from names_in(place.of)
            if place.first is not None:
                yield from names_in(place.first)
        case Offset():
            yield from names_in(place.of)


def reads(statement: Statement) -> Iterator[str]:
    """Yield the tensors and the work memory that a statement reads."""
    match statement:
        case Over() | Dense() | View():
            yield statement.of
        case Fill() | Own():
            yield statement.name
        case Launch():
            for place in statement.tensors:
                yield from names_in(place)
            if statement.work:
                yield statement.work
        case Matmul(operands=operands, result=result):
            yield from (*(x.source for x in operands), result.source)
        case Loop():
            if statement.until:
                yield from names_in(statement.until)
            for inner in statement.body:
                yield from reads(inner)
        case _:
            pass
