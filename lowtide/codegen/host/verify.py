"""The rules of a host program: every name is defined before it is read, and freed at most once.

In:  a host program. Out: nothing; raises VerifyError, an internal fault of ours.

    launch k0(x, t2)     before `take t2`             rule broken: t2 is read before it is there
    free t2; free t2                                  rule broken: t2 is given back already
    loop step ...: launch k0(h[step2, ...])           rule broken: step2 is no step around it
    take x: f32[s0]      and x is an input            rule broken: x is there already
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
        self.held = set(program.inputs)
        self.gone: set[str] = set()

    def check(self) -> None:
        for x in self.program.inputs.values():
            self._known(x.shape)
        for statement in self.program.body:
            self._statement(statement)
        for name in self.program.results:
            self._there(name)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Size(name=name, index=index):
                self._known([index])
                self.sizes.add(name)
            case Take(name=name, tensor=tensor):
                self._known(tensor.shape)
                self._made(name)
            case Over(name=name, tensor=tensor, of=of):
                self._known(tensor.shape)
                self._there(of)
                self._made(name)
            case Work(name=name, thread_bytes=found):
                self._known(found)
                self._made(name)
            case Fill(name=name):
                self._there(name)
            case Dense(name=name, of=of):
                self._there(of)
                self._made(name)
            case View(name=name, tensor=tensor, of=of, index=index):
                self._known([*tensor.shape, index])
                self._there(of)
                self._made(name)
            case Own(name=name, tensor=tensor):
                self._known(tensor.shape)
                self._there(name)
            case Launch():
                self._launch(statement, ())
            case Matmul():
                for matrix in (statement.left, statement.right, statement.result):
                    self._there(matrix.source)
                    self._known([*matrix.sizes, *matrix.strides, matrix.offset])
            case Loop():
                self._loop(statement, ())
            case Free(names=names):
                for name in names:
                    self._there(name)
                    self.held.remove(name)
                    self.gone.add(name)

    def _launch(self, launch: Launch, steps: tuple[str, ...]) -> None:
        for place in launch.tensors:
            self._place(place, steps)
        if launch.work:
            self._there(launch.work)
        known = self.sizes | {BEGUN} if steps else self.sizes
        self._are(launch.sizes, known, "a size")
        self._are(launch.numbers, set(self.program.numbers), "a number")

    def _loop(self, loop: Loop, around: tuple[str, ...]) -> None:
        self._known([loop.begin, loop.trips])
        if loop.step in around:
            raise VerifyError(f"{loop.step} is a step around this loop already")
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
            self._there(name)
        for row in _rows(place):
            self._known([row.rows, row.row_bytes])
            if row.step not in steps:
                raise VerifyError(f"{row.step} is no step of a loop around a launch")

    def _there(self, name: str) -> None:
        if name in self.gone:
            raise VerifyError(f"{name} is given back already")
        if name not in self.held:
            raise VerifyError(f"{name} is read before it is there")

    def _made(self, name: str) -> None:
        if name in self.held or name in self.gone:
            raise VerifyError(f"{name} is there already")
        if name in self.sizes or name in self.program.numbers:
            raise VerifyError(f"{name} is a number and a tensor")
        self.held.add(name)

    def _known(self, found: Iterable[Index]) -> None:
        names = {a.name for i in found for a in deep_atoms(i) if isinstance(a, SizeAtom)}
        self._are(sorted(names), self.sizes, "a size")

    def _are(self, names: Iterable[str], known: set[str], what: str) -> None:
        for name in names:
            if name not in known:
                raise VerifyError(f"{name} is not {what} that is known here")


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
