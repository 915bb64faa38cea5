"""The rules of a host program: each name is defined once, read after that, freed at most once.

In:  a host program. Out: nothing; raises VerifyError, an internal fault.

    launch k0(x, t2)     before `take t2`             t2 is read before it is defined
    free t2; free t2                                  t2 is used after it is freed
    loop step ...: launch k0(h[step2, ...])           step2 is not the step of a loop around …
    take x: f32[s0]      and x is an input            x is defined twice
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    View,
    Work,
    names_in,
)
from lowtide.errors import VerifyError
from lowtide.texpr.index import Index, deep_atoms
from lowtide.texpr.index import Size as SizeAtom
from lowtide.tile.matmul import Matmul


def verify_host(program: HostProgram) -> None:
    """Raises VerifyError if a rule is broken."""
    _Checker(program).check()


class _Checker:
    def __init__(self, program: HostProgram) -> None:
        self.program = program
        self.sizes = set(program.sizes)
        self.live = set(program.inputs)
        self.freed: set[str] = set()

    def check(self) -> None:
        for x in self.program.inputs.values():
            self._check_sizes(x.shape)
        for statement in self.program.body:
            self._statement(statement)
        for name in self.program.results:
            self._read(name)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Size(name=name, index=index):
                self._check_sizes([index])
                self.sizes.add(name)
            case Take(name=name, tensor=tensor):
                self._check_sizes(tensor.shape)
                self._define(name)
            case Over(name=name, tensor=tensor, of=of):
                self._check_sizes(tensor.shape)
                self._read(of)
                self._define(name)
            case Work(name=name, thread_bytes=found):
                self._check_sizes(found)
                self._define(name)
            case Fill(name=name):
                self._read(name)
            case Dense(name=name, of=of):
                self._read(of)
                self._define(name)
            case View(name=name, tensor=tensor, of=of, index=index):
                self._check_sizes([*tensor.shape, index])
                self._read(of)
                self._define(name)
            case Own(name=name, tensor=tensor):
                self._check_sizes(tensor.shape)
                self._read(name)
            case Launch():
                self._launch(statement, ())
            case Matmul():
                for matrix in (*statement.operands, statement.result):
                    self._read(matrix.source)
                    self._check_sizes([*matrix.sizes, *matrix.strides, matrix.offset])
            case Loop():
                self._loop(statement, ())
            case Free(names=names):
                for name in names:
                    self._read(name)
                    self.live.remove(name)
                    self.freed.add(name)

    def _launch(self, launch: Launch, steps: tuple[str, ...]) -> None:
        for place in launch.tensors:
            self._place(place, steps)
        if launch.work:
            self._read(launch.work)
        known = self.sizes | {BEGUN} if steps else self.sizes
        self._check_names(launch.sizes, known, "a size")
        self._check_names(launch.numbers, set(self.program.numbers), "a number")

    def _loop(self, loop: Loop, around: tuple[str, ...]) -> None:
        self._check_sizes([loop.begin, loop.trips])
        if loop.step in around:
            raise VerifyError(f"{loop.step} is the step of two nested loops")
        steps = (*around, loop.step)
        self.sizes.add(loop.step)
        for inner in loop.body:
            if isinstance(inner, Loop):
                self._loop(inner, steps)
            else:
                self._launch(inner, steps)
        if loop.until:
            self._place(loop.until, steps)
        if loop.ran:
            self.sizes.add(loop.ran)

    def _place(self, place: Place, steps: tuple[str, ...]) -> None:
        for name in names_in(place):
            self._read(name)
        for row in _rows(place):
            self._check_sizes([row.rows, row.row_bytes])
            if row.step not in steps:
                raise VerifyError(f"{row.step} is not the step of a loop around a launch")

    def _read(self, name: str) -> None:
        if name in self.freed:
            raise VerifyError(f"{name} is used after it is freed")
        if name not in self.live:
            raise VerifyError(f"{name} is read before it is defined")

    def _define(self, name: str) -> None:
        if name in self.live or name in self.freed:
            raise VerifyError(f"{name} is defined twice")
        if name in self.sizes or name in self.program.numbers:
            raise VerifyError(f"{name} is a number and a tensor")
        self.live.add(name)

    def _check_sizes(self, found: Iterable[Index]) -> None:
        names = {a.name for i in found for a in deep_atoms(i) if isinstance(a, SizeAtom)}
        self._check_names(sorted(names), self.sizes, "a size")

    def _check_names(self, names: Iterable[str], known: set[str], what: str) -> None:
        for name in names:
            if name not in known:
                raise VerifyError(f"{name} is not {what} that is defined here")


def _rows(place: Place) -> Iterator[Row]:
    match place:
        case str():
            return
        case Row():
            yield place
            yield from _rows(place.of)
            if place.first is not None:
                yield from _rows(place.first)
        case Offset():
            yield from _rows(place.of)
