"""Prints a HostProgram as text; `parser` reads the text back to the same program.

sizes s0
input x: f32[s0, 4]
take t2: f32[s0] output    # - model.py:3
work k0.work = 64
launch k0(x, t2) sizes (s0) work k0.work
free k0.work
result t2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lowtide.codegen.host.program import (
    Dense,
    Fill,
    Free,
    HostProgram,
    Launch,
    Loop,
    Offset,
    Over,
    Own,
    Place,
    Row,
    Size,
    Statement,
    Take,
    Tensor,
    View,
    Work,
)
from lowtide.errors import Loc
from lowtide.ir.literals import print_literal
from lowtide.texpr.index import Index
from lowtide.tile.matmul import Matmul, Matrix


def print_host(program: HostProgram) -> str:
    """Return the text of a host program, one line a statement."""
    lines = [f"sizes {', '.join(program.sizes)}"] if program.sizes else []
    lines += [f"numbers {', '.join(program.numbers)}"] if program.numbers else []
    lines += [f"input {name}: {_tensor(x)}" for name, x in program.inputs.items()]
    for statement in program.body:
        lines += _lines(statement)
    return "\n".join([*lines, f"result {', '.join(program.results)}".rstrip()])


def _lines(statement: Statement) -> Iterator[str]:
    match statement:
        case Size(name=name, index=index):
            yield f"size {name} = {index}"
        case Take(name=name, tensor=tensor, kind=kind, loc=loc):
            yield f"take {name}: {_tensor(tensor)} {kind}{_at(loc)}"
        case Over(name=name, tensor=tensor, kind=kind, of=of, loc=loc):
            yield f"over {name}: {_tensor(tensor)} {kind} = {of}{_at(loc)}"
        case Work(name=name, thread_bytes=found):
            yield f"work {name} = {', '.join(map(str, found))}"
        case Fill(name=name, value=value):
            yield f"fill {name} = {print_literal(value)}"
        case Dense(name=name, of=of):
            yield f"dense {name} = {of}"
        case View(name=name, tensor=tensor, of=of, index=index, loc=loc):
            yield f"view {name}: {_tensor(tensor)} = {of}[{index}]{_at(loc)}"
        case Own(name=name, tensor=tensor, kind=kind, loc=loc):
            yield f"own {name}: {_tensor(tensor)} {kind}{_at(loc)}"
        case Launch():
            yield _launch(statement)
        case Matmul():
            yield _matmul(statement)
        case Loop():
            yield _head(statement)
            for inner in statement.body:
                yield from (f"    {line}" for line in _lines(inner))
        case Free(names=names):
            yield f"free {', '.join(names)}"


def _launch(launch: Launch) -> str:
    text = f"launch {launch.kernel}({', '.join(map(place_text, launch.tensors))})"
    text += f" sizes ({', '.join(launch.sizes)})" if launch.sizes else ""
    text += f" numbers ({', '.join(launch.numbers)})" if launch.numbers else ""
    text += f" work {launch.work}" if launch.work else ""
    if (m := launch.instead) is not None:
        text += f" instead {_matmul(m)}"
    return text


def _matmul(m: Matmul) -> str:
    parts = ", ".join(map(_matrix, (m.left, m.right, m.result)))
    bias = f", bias {_matrix(m.bias)}" if m.bias is not None else ""
    return f"matmul({parts}{bias}, points {m.points})"


def _matrix(m: Matrix) -> str:
    return f"{m.source}[({_indices(m.sizes)}), ({_indices(m.strides)}), {m.offset}]"


def _head(loop: Loop) -> str:
    text = f"loop {loop.step} from {loop.begin} by {loop.by}, {loop.trips} times"
    text += ", reverse" if loop.reverse else ""
    text += f", until {place_text(loop.until)}" if loop.until else ""
    return f"{text}{f', ran {loop.ran}' if loop.ran else ''}:"


def place_text(place: Place) -> str:
    """Return the text of the location where a kernel finds a tensor."""
    match place:
        case str():
            return place
        case Offset(of=of, nbytes=nbytes):
            return f"{place_text(of)}[bytes {nbytes}]"
        case Row():
            shift = f" {'-' if place.shift < 0 else '+'} {abs(place.shift)}" if place.shift else ""
            first = "" if place.first is None else f", first {place_text(place.first)}"
            inner = f"{place.step}{shift}, rows {place.rows}, bytes {place.row_bytes}{first}"
            return f"{place_text(place.of)}[{inner}]"


def _tensor(x: Tensor) -> str:
    return f"{x.dtype}[{_indices(x.shape)}]"


def _indices(found: Iterable[Index]) -> str:
    return ", ".join(map(str, found))


def _at(loc: Loc) -> str:
    return f"    # - {loc}" if loc.line else ""
