"""The values of a C function: one kind for each kind of value of the program.

a Python constant     itself: None, a bool, a number, a string, a dtype
an int                Index: a polynomial in sizes and in ints that are C variables
Real, Truth           a float or a bool: a C expression without effects
Tensor                a contiguous tensor in memory
tuple, list           these; a list is one object, as in Python
Thing                 an object of the user's: a module

%n: int = py.add(%rows, %one)         Index  v0 + 1
%m: float = Tensor.item(%max)         Real   d_3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, cast

import torch

from lowtide.codegen.c.c_names import c_index
from lowtide.codegen.host.c_driver import Piece
from lowtide.errors import Loc
from lowtide.ir.core import Op
from lowtide.ir.dtypes import DType, from_torch
from lowtide.texpr.index import Atom, FloorDiv, Index, Mod, Size, as_index, deep_atoms
from lowtide.texpr.index_ranges import floordiv, nonnegative, rebuild
from lowtide.torch_private.pytree import leaves

# Ints that kernels do not have: they are converted where they are read and written.
NARROW: Final = (
    DType(name="i16", torch=torch.int16, itemsize=2, c="int16_t", compute="i32", is_float=False),
    DType(name="i8", torch=torch.int8, itemsize=1, c="int8_t", compute="i32", is_float=False),
)


def of_torch(dtype: torch.dtype) -> DType | None:
    """Return the element type of a C tensor, None if C has none."""
    return from_torch(dtype) or next((d for d in NARROW if d.torch is dtype), None)


class Refused(Exception):
    """An op for which there is no C; the text completes "`op` …". Other ops are looked at, too.
    `loc`: its line, if it is another one than that of the op that is printed."""

    def __init__(self, why: str, loc: Loc | None = None) -> None:
        super().__init__(why)
        self.loc = loc


class Again(Exception):
    """The function must be printed again. `constant`: sizes of the call that are constants; `same`:
    pairs of them that are one size; `state`: the module's tensors and attributes that are state;
    `least`: sizes that may not be smaller; `growths`: lists that grow in loops or branches, by the
    op that makes them, and what is known of their elements."""

    def __init__(
        self,
        constant: Sequence[str] = (),
        same: Sequence[tuple[str, str]] = (),
        state: Sequence[str] = (),
        least: Mapping[str, int] = MappingProxyType({}),
        growths: Mapping[Op, Growth | None] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.growths = growths
        self.least = least
        self.constant, self.same, self.state = constant, same, state


@dataclass(frozen=True, slots=True)
class Real:
    """A float."""

    text: str


@dataclass(frozen=True, slots=True)
class Truth:
    """A bool."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Thing:
    """An object of the program, at a path from the module."""

    path: str
    value: object


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tensor:
    """A contiguous tensor. `at`: a C expression of its address. `piece`: the number of the
    temporary that holds it, None for memory of the caller's. `family`: the same for tensors that
    share memory in PyTorch. `writable`: whether the program may change it in place."""

    at: str
    dtype: DType
    shape: tuple[Index, ...]
    piece: int | None = None
    family: object = None
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The elements of a list that grows in a loop or branch. `kind`: "tensor", "int", "float" or
    "bool"; `dtype`, `shape`: of one; `most`: how many there may be."""

    kind: str
    dtype: DType
    shape: tuple[Index, ...]
    most: Index


@dataclass(slots=True, kw_only=True, eq=False)
class Rows:
    """Such a list. `op`: what makes it; `whole`: room for all elements; `count`: a C variable that
    changes; `level`: of the loops and branches in which it is made; `added`: how many elements it
    may get by what is printed; `families`: of tensors that it holds."""

    op: Op
    whole: Tensor
    count: Index
    kind: str
    level: int
    added: Index = field(default_factory=lambda: as_index(0))
    families: list[object] = field(default_factory=list[object])


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()  # what a variable holds that has not been assigned


@dataclass(frozen=True, slots=True, eq=False)
class Maybe:
    """The value of a variable that only some branches or steps assign. `flag`: whether one did."""

    value: object
    flag: str


def tensors_in(x: object) -> list[Tensor]:
    """Return all tensors in a value."""
    found: list[Tensor] = []
    for e in cast("list[object]", leaves(x)):
        if isinstance(e, Maybe):
            found += tensors_in(e.value)
        elif isinstance(e, Tensor):
            found.append(e)
    return found


def is_int(x: object) -> bool:
    """Return whether it is an int, known or not; a bool is none."""
    return type(x) is int or isinstance(x, Index)


def is_float(x: object) -> bool:
    """Return whether it is a float."""
    return type(x) is float or isinstance(x, Real)


def is_bool(x: object) -> bool:
    """Return whether it is a bool."""
    return type(x) is bool or isinstance(x, Truth)


def c_int(x: object) -> str:
    """Return an int as C."""
    if isinstance(x, Index) and x.const is None:
        return f"({c_index(x)})"
    found = x.const if isinstance(x, Index) else x
    assert isinstance(found, int)
    return f"({found + 1}LL - 1)" if found < 0 else f"{int(found)}LL"


def c_real(x: object) -> str:
    """Return a number as a C double."""
    if isinstance(x, Real):
        return x.text
    if isinstance(x, Truth):
        return f"(double){x.text}"
    if is_int(x):
        return f"(double){c_int(x)}"
    value = float(cast("Any", x))
    if value != value:
        return "(double)NAN"
    if value in (float("inf"), float("-inf")):
        return "(double)INFINITY" if value > 0 else "-(double)INFINITY"
    return f"{value.hex()}" if value >= 0 else f"({value.hex()})"


def c_truth(x: object) -> str:
    """Return the truth of a number as C."""
    if isinstance(x, Truth):
        return x.text
    if isinstance(x, Real):
        return f"({x.text} != 0)"
    if isinstance(x, Index) and x.const is None:
        return f"({c_index(x)} != 0)"
    return "1" if (x.const if isinstance(x, Index) else x) else "0"


@dataclass(slots=True, kw_only=True)
class Frame:
    """The state of one C function while its body is printed. `bounds`: the largest values of ints
    that are C variables, where known. `examples`: possible values of them. `least`: the smallest
    values of the call's sizes. `small`: ints whose arithmetic cannot overflow. `gaps`: how many
    answers to questions about C variables have no code. `facts`: indices that are >= 0 in what is
    printed now. `tick` counts statements: the time of a temporary's life."""

    pieces: list[Piece] = field(default_factory=list[Piece])
    bounds: dict[str, Index] = field(default_factory=dict[str, Index])
    examples: dict[str, int] = field(default_factory=dict[str, int])
    least: dict[str, int] = field(default_factory=dict[str, int])
    small: set[str] = field(default_factory=set[str])
    runtime: set[str] = field(default_factory=set[str])
    messages: list[str] = field(default_factory=list[str])
    reasons: dict[tuple[Loc, str], None] = field(default_factory=dict[tuple[Loc, str], None])
    gaps: int = 0
    facts: list[Index] = field(default_factory=list[Index])
    tick: int = 0
    names: int = 0

    def fresh(self, prefix: str) -> str:
        """Return a new C name."""
        self.names += 1
        return f"{prefix}{self.names}"

    def variable(self, low: int | None, bound: Index | None, *, is_small: bool = False) -> Index:
        """Return an int that is a C variable `z_rN`. `low`: its least value, if known."""
        name = self.fresh("r")
        self.runtime.add(name)
        self.examples[name] = 50 + 7 * len(self.examples)
        if bound is not None:
            self.bounds[name] = bound
        if is_small or (bound is not None and low is not None):
            self.small.add(name)
        return as_index(Size(name, low))

    def take(self, *nbytes: Index, factor: int = 1) -> int:
        """Return a new temporary that lives from now on."""
        most = tuple(self.most(n) for n in nbytes)
        self.pieces.append(Piece(most, self.tick, self.tick, factor))
        return len(self.pieces) - 1

    def touch(self, *values: object) -> None:
        """Note that these are read or written now."""
        for value in values:
            for x in tensors_in(value):
                if x.piece is not None:
                    self.pieces[x.piece].end = max(self.pieces[x.piece].end, self.tick)

    def repeated(self, begin: int) -> None:
        """End a loop that began at this tick: what was there before and is used in it lives on."""
        for piece in self.pieces:
            if piece.begin < begin < piece.end:
                piece.end = self.tick

    def most(self, index: Index) -> Index:
        """Return an upper bound in sizes of the call. Raises Refused if there is none."""
        if self._is_static(index):
            return index
        found = as_index(0)
        for monomial, factor in index.terms:
            if all(self._is_static(as_index(a)) for a in monomial):
                part = as_index(factor)
                for atom in monomial:
                    part *= as_index(atom)
                found += part
            elif factor > 0:
                part = as_index(factor)
                for atom in monomial:
                    part *= self._most_of(atom)
                found += part
            elif not all(nonnegative(as_index(a)) for a in monomial):
                raise Refused(f"has a size without a bound, {index}")
        return found

    def is_sure(self, index: Index) -> bool:
        """Return whether `index >= 0` is certain, by facts and the bounds of ints that are C
        variables."""
        return self._is_bounded(index) or any(self._is_bounded(index - f) for f in self.facts)

    def _is_bounded(self, index: Index) -> bool:
        if nonnegative(index):
            return True
        found = as_index(0)
        for monomial, factor in index.terms:
            names = [a for a in monomial if not self._is_static(as_index(a))]
            if not names:
                part = as_index(factor)
                for atom in monomial:
                    part *= as_index(atom)
                found += part
            elif not all(nonnegative(as_index(a)) for a in monomial):
                return False
            elif factor < 0:
                try:
                    found -= self.most(Index(((monomial, -factor),)))
                except Refused:
                    return False
        return nonnegative(found)

    def _is_static(self, index: Index) -> bool:
        return not any(isinstance(a, Size) and a.name in self.runtime for a in deep_atoms(index))

    def _most_of(self, atom: Atom) -> Index:
        whole = as_index(atom)
        if self._is_static(whole):
            return whole
        match atom:
            case Size(name=name) if name in self.bounds:
                return self.bounds[name]
            case Size() if (known := self._by_facts(whole)) is not None:
                return known
            case FloorDiv(num=num, den=den) if self._is_static(den):
                return floordiv(self.most(num), den)
            case Mod(den=den) if self._is_static(den):
                return den - 1
            case _:
                raise Refused(
                    f"has a size without a bound, {atom}; clamp it to the size of a tensor"
                )

    def _by_facts(self, size: Index) -> Index | None:
        """Return an upper bound of a C variable by what is known where it is used."""
        found = (fact + size for fact in self.facts)
        return next((n for n in found if self._is_static(n)), None)

    def example(self, index: Index, sizes: Mapping[str, int]) -> int:
        """Return the value of an int in the example."""

        def value(atom: Atom) -> Index | None:
            if not isinstance(atom, Size):
                return None
            found = self.examples[atom.name] if atom.name in self.runtime else sizes[atom.name]
            return as_index(found)

        found = rebuild(index, value)
        assert found.const is not None
        return found.const

    def is_small(self, index: Index) -> bool:
        """Return whether sums and products of it do not overflow."""
        return all(
            a.name not in self.runtime or a.name in self.small
            for a in deep_atoms(index)
            if isinstance(a, Size)
        )
