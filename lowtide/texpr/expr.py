"""Tensor expressions: what a program computes, in any order.

    Program = Input*, Delay*, Def*, output names
    Def     = name, Axis*, Expr, dtype           -- one value: a formula for the element at its axes
    Delay   = name, source, init                 -- a Def one step earlier along its first axis
    Expr    = Load(value, Index*) | Const | At(Index) | Scalar(name) | Apply(fn, Expr*)
            | Select(cond, Expr, Expr) | Cast(dtype, Expr) | Reduce(fn, Axis*, Expr)
    a Def that has no value of its own and adds to another one: AddAt(Load, Expr)

Expressions are hash-consed: equal ones are the same object, so common subexpressions cost nothing
to find and a rewrite visits each once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.ir.dtypes import BY_NAME, DType, f32, f64, nearest, wrapped
from lowtide.texpr.index import (
    Atom,
    Axis,
    Gather,
    Index,
    as_index,
    deep_atoms,
    gather,
    row_major,
    the_axis,
)
from lowtide.texpr.index_ranges import rebuild


class Expr:
    """One node of an expression. Facts that are read often are found once, when the node is made.
    These are its `children`, the `atoms` of its indices and reductions, and the axes that are
    `free`, all including those of its children. `reads`: a cache of `loads`."""

    __slots__ = ("__weakref__", "atoms", "children", "dtype", "free", "reads")
    dtype: DType
    children: tuple[Expr, ...]
    atoms: frozenset[Atom]
    free: frozenset[Axis]
    reads: tuple[Load, ...] | None

    def __repr__(self) -> str:
        return show(self)


class Load(Expr):
    """The element of a tensor (an input or a Def) at an index."""

    __slots__ = ("index", "source")
    source: str
    index: tuple[Index, ...]


class Const(Expr):
    __slots__ = ("value",)
    value: float | int | bool


class At(Expr):
    """An index as an i64 value."""

    __slots__ = ("index",)
    index: Index


class Scalar(Expr):
    """A number that the caller passes at run time."""

    __slots__ = ("name",)
    name: str


class Apply(Expr):
    """A pointwise function of operands of one dtype."""

    __slots__ = ("args", "fn")
    fn: str
    args: tuple[Expr, ...]


class Select(Expr):
    """`yes` where `cond` (a bool) holds, else `no`."""

    __slots__ = ("cond", "no", "yes")
    cond: Expr
    yes: Expr
    no: Expr


class Cast(Expr):
    __slots__ = ("arg",)
    arg: Expr


class Reduce(Expr):
    """A reduction of `body` over its own axes: sum prod min max any all argmin argmax."""

    __slots__ = ("axes", "body", "fn")
    fn: str
    axes: tuple[Axis, ...]
    body: Expr


class AddAt(Expr):
    """All that a Def is: for each point of its axes, `value` is added to the element `place` of a
    tensor, which begins as that tensor's own Def says. The data may name one place for many points;
    a GPU adds in any order. Nobody else reads that tensor: it is for the caller, and in memory."""

    __slots__ = ("place", "value")
    place: Load
    value: Expr


_A = TypeVar("_A")
_interned: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()


def _make(
    kind: type[Any],
    dtype: DType,
    key: tuple[Any, ...],
    children: tuple[Expr, ...] = (),
    **fields: Any,
) -> Any:
    """Return the node with this content. `children`: without those in its indices."""
    full = (kind, dtype.name, *key)
    found = _interned.get(full)
    if found is None:
        found = object.__new__(kind)
        found.dtype = dtype
        found.reads = None
        for name, value in fields.items():
            setattr(found, name, value)
        _look_inside(found, children)
        _interned[full] = found
    return found


def _look_inside(node: Expr, children: tuple[Expr, ...]) -> None:
    """Set a node's facts from those of its parts."""
    atoms, axes = frozenset[Atom](), frozenset[Axis]()
    if held := indices(node):
        children = (*children, *gathered(held))
        atoms = frozenset(a for i in held for a in deep_atoms(i))
        axes = frozenset(a for a in atoms if isinstance(a, Axis))
    node.children = children
    node.atoms = _union(atoms, [c.atoms for c in children])
    node.free = _union(axes, [c.free for c in children])
    if isinstance(node, Reduce):
        node.atoms = node.atoms.union(node.axes)
        node.free = node.free.difference(node.axes)


def _union(first: frozenset[_A], others: Iterable[frozenset[_A]]) -> frozenset[_A]:
    """Return the union; one of the sets if it contains all others."""
    for other in others:
        if first is not other and not other <= first:
            first = other if first <= other else first | other
    return first


def load(source: str, index: Sequence[Index], dtype: DType) -> Load:
    at = tuple(as_index(i) for i in index)
    return _make(Load, dtype, (source, at), source=source, index=at)


def const(value: float | int | bool, dtype: DType) -> Const:
    """Return a constant, rounded to the dtype; an int wraps around."""
    if dtype.is_float:
        value = nearest(float(value), dtype)
    else:
        value = bool(value) if dtype.name == "bool" else wrapped(int(value), dtype)
    return _make(Const, dtype, (repr(value),), value=value)


def at(index: Index | int, dtype: DType) -> At:
    return _make(At, dtype, (as_index(index),), index=as_index(index))


def scalar(name: str, dtype: DType) -> Scalar:
    return _make(Scalar, dtype, (name,), name=name)


def apply(fn: str, args: Sequence[Expr], dtype: DType) -> Apply:
    return _make(Apply, dtype, (fn, *args), tuple(args), fn=fn, args=tuple(args))


def select(cond: Expr, yes: Expr, no: Expr) -> Select:
    parts = (cond, yes, no)
    return _make(Select, yes.dtype, parts, parts, cond=cond, yes=yes, no=no)


def cast(arg: Expr, dtype: DType) -> Expr:
    if arg.dtype is dtype:
        return arg
    return _make(Cast, dtype, (arg,), (arg,), arg=arg)


def reduce(fn: str, axes: Sequence[Axis], body: Expr, dtype: DType) -> Reduce:
    key = (fn, tuple(axes), body)
    return _make(Reduce, dtype, key, (body,), fn=fn, axes=tuple(axes), body=body)


def add_at(place: Load, value: Expr) -> AddAt:
    return _make(AddAt, place.dtype, (place, value), (place, value), place=place, value=value)


# ---- programs -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input tensor: `strides` in elements, one per dimension. `order`: see `orders`; None if the
    tensor lies in the order of its dims, or has gaps."""

    name: str
    dtype: DType
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Def:
    """One value: the element at `axes` is `expr`. Its shape is the extents of the axes."""

    name: str
    axes: tuple[Axis, ...]
    expr: Expr
    loc: Loc = UNKNOWN_LOC
    op: str = ""

    @property
    def dtype(self) -> DType:
        return self.expr.dtype

    @property
    def shape(self) -> tuple[Index, ...]:
        return tuple(a.extent for a in self.axes)

    @property
    def is_rounded(self) -> bool:
        """Return whether the value depends on the order in which its terms are combined."""
        e = self.expr
        return isinstance(e, Reduce) and e.fn in ("sum", "prod") and e.dtype.is_float

    @property
    def is_contraction(self) -> bool:
        """Return whether it is a sum whose body joins values that each lack some loops: matmul and
        similar."""
        e, own = self.expr, [a for a in self.axes if a.extent.const != 1]
        if not (isinstance(e, Reduce) and e.fn == "sum" and own):
            return False
        partial = (load.free for load in loads(e.body))
        return sum(1 for p in partial if p and p < {*own, *e.axes}) >= 2

    @property
    def tiles_dtype(self) -> DType:
        """The dtype in which the tiles of a sum are added up by all kernels that compute it: one
        that the formula alone decides. A contraction has too many results for float64."""
        dtype = BY_NAME[self.dtype.compute]
        return f64 if dtype is f32 and self.is_rounded and not self.is_contraction else dtype

    @property
    def adds_to(self) -> str:
        """The tensor that it is added to, "" if it is a value."""
        return self.expr.place.source if isinstance(self.expr, AddAt) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """A value that a loop carries: at step t of its first axis it is `source` at t - 1. At the
    first step it is `init`, which has the other axes only. `reverse`: it is `source` at t + 1, and
    the last step is the first.

    `source` may load the delay: that is the only way in which definitions may form a cycle. `why`:
    the part of the user's program that makes the steps depend on each other. `ends`: for a bool,
    the values that are of no use from the step on at which it is false. Delays among them, itself
    included, then stay as they are, and definitions of such steps are not read.
    """

    name: str
    source: str
    init: str
    shape: tuple[Index, ...]
    dtype: DType
    reverse: bool = False
    loc: Loc = UNKNOWN_LOC
    why: str = ""
    ends: tuple[str, ...] = ()

    @property
    def behind(self) -> int:
        """Return the step at which `source` is read, relative to the current step."""
        return 1 if self.reverse else -1

    @property
    def first(self) -> Index:
        """The step that reads `init`."""
        return self.shape[0] - 1 if self.reverse else as_index(0)

    @property
    def last(self) -> Index:
        """The step that comes last."""
        return as_index(0) if self.reverse else self.shape[0] - 1


@dataclass(slots=True, kw_only=True)
class Program:
    """Definitions in an order in which each comes after what it loads, delays aside.

    `outputs` are what the caller needs, also what is only added to one of them (`AddAt`). `checks`
    names bool scalars that must come out true (data-dependent indices in bounds); `equalities` are
    pairs of sizes, with a message, to be compared before the run. `shared_sums`: float sums
    that another Program computes, too, in the same order (`tile/summation`), and the dtype in
    which their tiles are added up."""

    inputs: dict[str, Input] = field(default_factory=dict[str, Input])
    delays: dict[str, Delay] = field(default_factory=dict[str, Delay])
    defs: dict[str, Def] = field(default_factory=dict[str, Def])
    outputs: list[str] = field(default_factory=list[str])
    checks: list[str] = field(default_factory=list[str])
    equalities: list[tuple[Index, Index, str]] = field(
        default_factory=list[tuple[Index, Index, str]]
    )
    shared_sums: Mapping[str, DType] = field(default_factory=dict[str, DType])

    def additions(self, to: Container[str]) -> list[str]:
        """Definitions that are added to these values."""
        return [n for n, d in self.defs.items() if d.adds_to and d.adds_to in to]

    @property
    def results(self) -> list[str]:
        """The outputs that are values, which the caller gets."""
        return [n for n in self.outputs if n not in self.defs or not self.defs[n].adds_to]

    def added_to(self) -> frozenset[str]:
        """Tensors that more is added to: what lies in memory is not what their definitions say."""
        found = (self.defs[n].adds_to for n in self.outputs if n in self.defs)
        return frozenset(filter(None, found))

    def contents(self) -> tuple[object, ...]:
        """Return a hashable key of the Program, source lines included."""
        return (
            tuple(self.inputs.values()), tuple(self.delays.values()), tuple(self.defs.values()),
            tuple(self.outputs), tuple(self.checks), tuple(self.equalities),
            frozenset(self.shared_sums.items()),
        )  # fmt: skip


def ordered(defs: Mapping[str, Def]) -> dict[str, Def]:
    """Return the definitions in order: each after those that it loads. Raises AssertionError for a
    cycle."""
    found: dict[str, Def] = {}
    begun: set[str] = set()
    for start in defs:
        stack = [(start, False)]
        while stack:
            name, ready = stack.pop()
            if ready:
                found[name] = defs[name]
            elif name in defs and name not in found:
                if name in begun:
                    raise AssertionError(f"{name} depends on itself")
                begun.add(name)
                stack.append((name, True))
                stack += [(x.source, False) for x in loads(defs[name].expr)]
    return found


def stored(name: str, shape: Sequence[Index], dtype: DType) -> Input:
    """Return a value that another program has left in memory, dense."""
    sizes = tuple(shape)
    return Input(name=name, dtype=dtype, shape=sizes, strides=row_major(sizes))


def pruned(program: Program, outputs: list[str] | None = None) -> Program:
    """Without what no output needs; `outputs`: others than the program's own."""
    roots = program.outputs if outputs is None else outputs
    kept = needed(program, [*roots, *program.checks])
    return replace(
        program,
        inputs={n: i for n, i in program.inputs.items() if n in kept},
        delays={n: y for n, y in program.delays.items() if n in kept},
        defs={n: d for n, d in program.defs.items() if n in kept},
        outputs=roots,
        checks=list(program.checks),
        equalities=list(program.equalities),
    )


def needed(program: Program, wanted: Iterable[str]) -> set[str]:
    """These values, and all that they are made of."""
    found: set[str] = set()
    todo = list(wanted)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        if name in program.defs:
            todo += [load.source for load in loads(program.defs[name].expr)]
        elif name in program.delays:
            todo += [program.delays[name].source, program.delays[name].init]
    return found


# ---- walking and rewriting --------------------------------------------------------------------


def gathered(index: Sequence[Index]) -> Iterator[Expr]:
    """Yield the expressions inside data-dependent indices."""
    for i in index:
        for atom in deep_atoms(i):
            if isinstance(atom, Gather):
                yield atom.expr


def walk(expr: Expr, known: Iterable[Expr] = ()) -> Iterator[Expr]:
    """Yield every node once, operands before users; none that is `known` or used by these only."""
    seen: set[Expr] = set(known)
    stack: list[Any] = [expr]  # None: the node below it is ready
    while stack:
        node = stack.pop()
        if node is None:
            yield stack.pop()
        elif node not in seen:
            seen.add(node)
            if node.children:
                stack += (node, None, *reversed(node.children))
            else:
                yield node


def loads(expr: Expr) -> tuple[Load, ...]:
    """Return the loads of an expression; cached, because they are read often."""
    if isinstance(expr, Load) and not expr.children:
        return (expr,)
    if expr.reads is None:
        expr.reads = tuple(node for node in walk(expr) if isinstance(node, Load))
    return expr.reads


def indices(node: Expr) -> tuple[Index, ...]:
    """Return the index expressions that a node itself holds."""
    if isinstance(node, Load):
        return node.index
    return (node.index,) if isinstance(node, At) else ()


def indices_in(expr: Expr) -> list[Index]:
    """Return the indices of all nodes of the expression."""
    return [i for node in walk(expr) for i in indices(node)]


def aligned(node: Load) -> bool:
    """Return whether the indices are distinct plain axes (or 0 along an axis of extent 1)."""
    axes = [the_axis(i) for i in node.index if i.const != 0]
    return None not in axes and len(set(axes)) == len(axes)


class Rewriter:
    """Rebuilds expressions bottom up: `visit` may replace a node whose operands are new already,
    `atoms` says what replaces atoms of indices. Each distinct node is visited once; without a
    `visit`, what has none of the atoms stays as it is."""

    def __init__(
        self,
        visit: Callable[[Expr], Expr | None] | None = None,
        atoms: Mapping[Atom, Index] | None = None,
    ) -> None:
        self._visit = visit
        self._atoms = atoms or {}
        self._done: dict[Expr, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        done, visit, atoms = self._done, self._visit, self._atoms.keys()
        stack = [expr]
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
            elif visit is None and node.atoms.isdisjoint(atoms):
                done[stack.pop()] = node
            elif waiting := [c for c in node.children if c not in done]:
                stack += reversed(waiting)
            else:
                stack.pop()
                new = self._rebuilt(node)
                done[node] = new if visit is None else visit(new) or new
        return done[expr]

    def index(self, index: Index) -> Index:
        return rebuild(index, self._atom)

    def _atom(self, atom: Atom) -> Index | None:
        new = self._atoms.get(atom)
        if new is None and isinstance(atom, Gather):
            inner = self(atom.expr)
            return None if inner is atom.expr else gather(inner)
        return new

    def _rebuilt(self, node: Expr) -> Expr:
        done = self._done
        children = tuple(map(done.__getitem__, node.children))
        if children == node.children and node.atoms.isdisjoint(self._atoms):
            return node
        if isinstance(node, Load):
            return load(node.source, [self.index(i) for i in node.index], node.dtype)
        if isinstance(node, At):
            return at(self.index(node.index), node.dtype)
        if isinstance(node, Apply):
            return apply(node.fn, [done[a] for a in node.args], node.dtype)
        if isinstance(node, Select):
            return select(done[node.cond], done[node.yes], done[node.no])
        if isinstance(node, Cast):
            return cast(done[node.arg], node.dtype)
        if isinstance(node, AddAt):
            place = done[node.place]
            assert isinstance(place, Load), f"{node.place.source} is added to, and written out"
            return add_at(place, done[node.value])
        if isinstance(node, Reduce):
            return reduce(node.fn, self._axes(node.axes), done[node.body], node.dtype)
        return node

    def _axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        renamed: list[Axis] = []
        for a in axes:
            new = self._atoms.get(a)
            atoms = new.atoms() if new is not None else {a}
            only = next(iter(atoms)) if len(atoms) == 1 else a
            renamed.append(only if isinstance(only, Axis) else a)
        return tuple(renamed)


def reading(expr: Expr, names: Mapping[str, str]) -> Expr:
    """Return the expression with names of loaded values replaced."""

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source in names:
            return load(names[node.source], node.index, node.dtype)
        return None

    return Rewriter(visit)(expr) if names else expr


def ordered_axes(expr: Expr, axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Return the axes that are free in a part of a definition: the definition's `axes` first, in
    order."""
    free = expr.free
    others = sorted(free.difference(axes), key=lambda a: a.key)
    return (*(a for a in axes if a in free), *others)


_LONGEST_SHOWN = 20_000  # characters of one part; shared parts stand in full wherever they are used


def show(expr: Expr) -> str:
    """Return the expression as one line of text for people."""
    known: dict[Expr, str] = {}
    for node in walk(expr):
        text = _shown(node, known)
        known[node] = text if len(text) <= _LONGEST_SHOWN else f"<{len(text)} characters>"
    return known[expr]


def _shown(expr: Expr, known: Mapping[Expr, str]) -> str:
    """Return the text of a node whose operands' texts are known."""
    if isinstance(expr, Load):
        return f"{expr.source}[{', '.join(map(str, expr.index))}]"
    if isinstance(expr, Const):
        return f"{expr.value!r}"
    if isinstance(expr, At):
        return f"at({expr.index})"
    if isinstance(expr, Scalar):
        return f"${expr.name}"
    if isinstance(expr, Apply):
        return f"{expr.fn}({', '.join(known[a] for a in expr.args)})"
    if isinstance(expr, Select):
        return f"select({known[expr.cond]}, {known[expr.yes]}, {known[expr.no]})"
    if isinstance(expr, Cast):
        return f"{expr.dtype}({known[expr.arg]})"
    if isinstance(expr, AddAt):
        return f"{known[expr.value]} added to {known[expr.place]}"
    if isinstance(expr, Reduce):
        axes = ", ".join(f"{a.name}:{a.extent}" for a in expr.axes)
        return f"{expr.fn}[{axes}]({known[expr.body]})"
    return type(expr).__name__
