"""Prints a HostProgram as C: a function that computes sizes, lays out memory and launches kernels.

In: a host program, the kernels of its parts. Out: C text of `static model_status run_NAME(…)`.

    take t2: f32[s0]              char *t2 = workspace + offsets[0];
    launch k0(x, t2) sizes s0     lt_slot a[] = {…}; fault |= k0(a);
    loop step from 0 by 1 …       for (int64_t trip = 0; trip < s0; trip++) { … }

Memory: each temporary lives from one statement to another. `lt_layout` finds offsets for the sizes
of a call, so that no two that live at once overlap; the same function tells how much is needed.
Invariant: nothing is allocated, and nothing outside of the arguments is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.codegen.c.c_names import c_index
from lowtide.codegen.host.program import (
    BEGUN,
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
from lowtide.texpr.build import symbols
from lowtide.texpr.index import Index, product
from lowtide.tile.matmul import Matmul

LAYOUT = """\
typedef struct { int64_t bytes, from, to; } lt_piece;

/* Finds offsets of pieces so that those that live at once are apart; returns the bytes of all. */
static int64_t lt_layout(const lt_piece *p, int64_t count, int64_t *offsets) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t at = 0, moved = 1;
    while (moved) {
      moved = 0;
      for (int64_t j = 0; j < i; j++) {
        const int is_apart = p[j].to < p[i].from || p[i].to < p[j].from;
        if (is_apart || at >= offsets[j] + p[j].bytes || offsets[j] >= at + p[i].bytes) continue;
        at = offsets[j] + p[j].bytes;
        moved = 1;
      }
    }
    offsets[i] = at;
    if (at + p[i].bytes > total) total = at + p[i].bytes;
  }
  return total;
}
"""
ALIGNED: int = 64


def layout(pieces: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Return what `lt_layout` finds: offsets of pieces (bytes, from, to), and the bytes of all."""
    offsets: list[int] = []
    for i, (nbytes, begin, end) in enumerate(pieces):
        at, is_moved = 0, True
        while is_moved:
            is_moved = False
            for (size, first, last), offset in zip(pieces[:i], offsets, strict=True):
                is_apart = last < begin or end < first
                if not (is_apart or at >= offset + size or offset >= at + nbytes):
                    at, is_moved = offset + size, True
        offsets.append(at)
    ends = (at + n for at, (n, _, _) in zip(offsets, pieces, strict=True))
    return offsets, max(ends, default=0)


CTYPES: Mapping[str, str] = {
    "f32": "float", "f64": "double", "i64": "int64_t", "i32": "int32_t", "i16": "int16_t",
    "i8": "int8_t", "u8": "uint8_t", "bool": "uint8_t", "bf16": "uint16_t", "f16": "uint16_t",
}  # fmt: skip


class NotPrinted(Exception):
    """A statement for which there is no C; the text names it."""


def c_name(name: str) -> str:
    """Return the C identifier of a tensor or a kernel."""
    return "t_" + re.sub(r"\W", "_", name)


@dataclass(slots=True)
class Piece:
    """A temporary: `factor` times the largest of `nbytes` bytes, which lives from statement `begin`
    to statement `end`."""

    nbytes: tuple[Index, ...]
    begin: int
    end: int
    factor: int = 1


@dataclass(slots=True)
class CDriver:
    """See the module's text. `outputs`: results, by name, with the C expression of their memory.
    `kernels`: the C function of each kernel by its name in the program. `first`: the number of the
    first temporary among those of the whole function."""

    program: HostProgram
    outputs: Mapping[str, str]
    kernels: Mapping[str, str]
    most_threads: int = 8
    first: int = 0
    _pieces: dict[str, Piece] = field(default_factory=dict[str, Piece])
    _parent: dict[str, str] = field(default_factory=dict[str, str])
    _loops: list[Loop] = field(default_factory=list[Loop])
    _sizes: dict[str, None] = field(default_factory=dict[str, None])

    def sizes(self) -> list[Size]:
        """Return the sizes that are computed, in order."""
        seen: set[str] = set()
        found: list[Size] = []
        steps = {s.step for s in self.program.body if isinstance(s, Loop)}
        for s in self.program.body:
            if isinstance(s, Size):
                if s.name in seen:
                    if s.name in steps and not self._is_measure(s.name):
                        continue  # each loop has a step of its own
                    raise NotPrinted("a size that changes")
                seen.add(s.name)
                found.append(s)
        return found

    def _is_measure(self, size: str) -> bool:
        """Return whether the bytes of a temporary depend on it."""
        return any(size in symbols(n) for p in self.pieces() for n in p.nbytes)

    def pieces(self) -> list[Piece]:
        """Return the temporaries, in the program's own sizes."""
        self._lay_out()
        return list(self._pieces.values())

    def _lay_out(self) -> None:
        if self._pieces or self._parent:
            return
        last = len(self.program.body)
        for k, s in enumerate(self.program.body):
            match s:
                case Take(name=name, tensor=tensor) | Own(name=name, tensor=tensor):
                    self._piece(name, (nbytes_of(tensor),), k, last)
                case Work(name=name, thread_bytes=found):
                    self._piece(name, found, k, last, self.most_threads)
                case Over(name=name, of=of):
                    self._parent[name] = of
                    self._keep(of, last)
                case View(name=name, of=of):
                    self._parent[name] = of
                case Free(names=names):
                    self._free(names, k)
                case _:
                    pass

    def _piece(
        self, name: str, nbytes: tuple[Index, ...], begin: int, last: int, factor: int = 1
    ) -> None:
        if name not in self.outputs:
            self._pieces[name] = Piece(nbytes, begin, last, factor)

    def _root(self, name: str) -> str:
        while name in self._parent:
            name = self._parent[name]
        return name

    def _keep(self, name: str, last: int) -> None:
        root = self._root(name)
        if root in self._pieces:
            self._pieces[root].end = last

    def _free(self, names: Sequence[str], k: int) -> None:
        """End a tensor's memory with the last of its names."""
        for name in names:
            root = self._root(name)
            others = [n for n in self._parent if n not in names and self._root(n) == root]
            if root in self._pieces and root in names and not others:
                self._pieces[root].end = k
            elif root in self._pieces:
                self._pieces[root].end = len(self.program.body)

    def body(self) -> Iterator[str]:
        """Yield the statements of the function."""
        self._lay_out()
        self._sizes = dict.fromkeys(self.program.sizes)
        for s in self.program.body:
            yield from self._statement(s)
        for name in self.outputs:
            root = self._root(name)
            if root != name or name in self.program.inputs:
                tensor = self._tensor(name)
                yield f"memmove({self.outputs[name]}, {c_name(name)}, {_nbytes(tensor)});"

    def _tensor(self, name: str) -> Tensor:
        for s in self.program.body:
            if isinstance(s, Take | Over | Own | View) and s.name == name:
                return s.tensor
        return self.program.inputs[name]

    def _statement(self, s: Statement) -> Iterator[str]:
        match s:
            case Size(name=name):
                self._sizes[name] = None
            case Take(name=name):
                yield f"char *{c_name(name)} = {self._memory(name)};"
            case Work(name=name):
                yield f"char *{c_name(name)} = {self._memory(name)};"
            case Over(name=name, of=of):
                yield f"char *{c_name(name)} = {c_name(of)};"
            case View(name=name, of=of, tensor=tensor, index=index):
                row = f"{_nbytes(tensor)} * ({c_index(index)})"
                yield f"char *{c_name(name)} = {c_name(of)} + {row};"
            case Own(name=name, tensor=tensor):
                yield f"memcpy({self._memory(name)}, {c_name(name)}, {_nbytes(tensor)});"
                yield f"{c_name(name)} = {self._memory(name)};"
            case Fill(name=name, value=value):
                tensor = self._tensor(name)
                ctype = CTYPES[tensor.dtype.name]
                yield f"for (int64_t i = 0; i < {c_index(product(tensor.shape))}; i++)"
                yield f"  (({ctype} *){c_name(name)})[i] = {_number(value, ctype)};"
            case Dense(name=name, of=of):
                yield f"char *{c_name(name)} = {c_name(of)};"
            case Launch():
                yield from self._launch(s)
            case Loop():
                yield from self._loop(s)
            case Free():
                pass
            case Matmul():
                raise NotPrinted("a product by PyTorch's library")

    def _memory(self, name: str) -> str:
        if name in self.outputs:
            return f"(char *){self.outputs[name]}"
        return f"workspace + offsets[{self.first + [*self._pieces].index(name)}]"

    def _launch(self, s: Launch) -> Iterator[str]:
        slots = ["{.p = (void *)pool}", "{.q = threads}"]
        slots.append(f"{{.p = {c_name(s.work)}}}" if s.work else "{.p = 0}")
        slots += [f"{{.p = {self._place(p)}}}" for p in s.tensors]
        slots += [f"{{.q = {self._size(n)}}}" for n in s.sizes]
        slots += [f"{{.d = {n}}}" for n in s.numbers]
        yield f"{{ const lt_slot slots[] = {{{', '.join(slots)}}};"
        yield f"  fault |= {self.kernels[s.kernel]}(slots); }}"

    def _size(self, name: str) -> str:
        if name == BEGUN:
            return f"!first_{self._loops[-1].step}"
        return f"z_{name}"

    def _place(self, place: Place) -> str:
        match place:
            case str():
                return c_name(place)
            case Offset(of=of, nbytes=nbytes):
                return f"(({self._place(of)}) + {c_index(nbytes)})"
            case Row(of=of, step=step, shift=shift, rows=rows, row_bytes=row_bytes, first=first):
                loop = next(x for x in self._loops if x.step == step)
                base = f"({self._place(of)}) + ({c_index(row_bytes)}) * ({c_index(loop.begin)})"
                stride = f"({c_index(row_bytes)}) * {loop.by}"
                moved = f"{base} + {stride} * lt_mod(trip_{step} + {shift}, {c_index(rows)})"
                begun = f"{base} + {stride} * lt_mod(trip_{step}, {c_index(rows)})"
                if first is not None:
                    begun = self._place(first)
                return f"(first_{step} ? {begun} : {moved})"

    def _loop(self, s: Loop) -> Iterator[str]:
        step, trips = s.step, c_index(s.trips)
        if s.ran:
            yield f"int64_t z_{s.ran} = {trips}; (void)z_{s.ran};"
        yield f"for (int64_t n_{step} = 0; n_{step} < {trips}; n_{step}++) {{"
        at = f"{trips} - 1 - n_{step}" if s.reverse else f"n_{step}"
        yield f"  const int first_{step} = n_{step} == 0;"
        yield f"  const int64_t trip_{step} = {at};"
        yield f"  const int64_t z_{step} = {c_index(s.begin)} + {s.by} * trip_{step};"
        yield f"  (void)first_{step}; (void)z_{step};"
        self._loops.append(s)
        for inner in s.body:
            lines = self._launch(inner) if isinstance(inner, Launch) else self._loop(inner)
            yield from (f"  {line}" for line in lines)
        if s.until:
            ran = f"z_{s.ran} = n_{step} + 1; " if s.ran else ""
            yield f"  if (!*({self._place(s.until)})) {{ {ran}break; }}"
        self._loops.pop()
        yield "}"


def nbytes_of(tensor: Tensor) -> Index:
    """Return the bytes of a tensor."""
    return product(tensor.shape) * tensor.dtype.itemsize


def _nbytes(tensor: Tensor) -> str:
    return f"{tensor.dtype.itemsize} * ({c_index(product(tensor.shape))})"


def _number(value: float, ctype: str) -> str:
    if ctype in ("float", "double"):
        if value in (float("inf"), float("-inf")):
            return "-(1.0 / 0.0)" if value < 0 else "1.0 / 0.0"
        return f"({ctype}){float(value).hex()}"
    return f"({ctype}){int(value)}"
