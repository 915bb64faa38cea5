"""Program → text. `parser` reads it back to the same Program.

    size N >= 2
    input x: f32[N, 3] strides (3, 1)
    t1[i:N]: f32 = sum[k:3](mul(x[i, k], 0.5))    # sum model.py:3
    output t1

A number without a dtype is f32 if it has a point, else i64 or bool; `$n` is an f64. Other dtypes
are written: `0.5:f64`. A subexpression that is long and used twice, or nested deeply, has a line of
its own under its definition: `%1[k:3] = exp(x[i, k])`, with the axes that are not the definition's.

Invariant: the text is complete, and equal for Programs that differ only in the identity of axes.
Axes with one name in one definition are numbered: `i`, `i.1`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lowtide.errors import Loc
from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import (
    AddAt,
    Apply,
    At,
    Cast,
    Const,
    Def,
    Delay,
    Expr,
    Input,
    Load,
    Program,
    Reduce,
    Scalar,
    Select,
)
from lowtide.texpr.index import Atom, Axis, Clamp, FloorDiv, Gather, Index, Mod, Size, deep_atoms

COMPARISONS: Final = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "isfinite"})
REDUCTIONS: Final = frozenset({"sum", "prod", "min", "max", "any", "all", "argmin", "argmax"})
_LONG: Final = 80  # characters of a part that is written once, if it is used twice
_DEEP: Final = 40  # parts within parts; the parser goes so deep


def print_program(program: Program) -> str:
    """Return the text of a Program, a line for each of its parts."""
    sizes = {a.name: a for a in sizes_of(program)}
    lines = [*size_lines(sizes.values()), *(input_line(i) for i in program.inputs.values())]
    lines += [_delay(y) for y in program.delays.values()]
    for d in program.defs.values():
        lines += ExprPrinter(sizes.keys()).definition(d)
    lines += [f"equal {_index(a)}, {_index(b)}: {m!r}" for a, b, m in program.equalities]
    return "\n".join([*lines, *wanted_lines(program)])


def size_lines(sizes: Iterable[Size]) -> list[str]:
    """Return a line for each size of which more is known than that it is not negative."""
    return [f"size {a.name}{'' if a.low is None else f' >= {a.low}'}" for a in sizes if a.low != 0]


def wanted_lines(program: Program) -> list[str]:
    """Return the lines of outputs, checks and sums that another Program computes, too."""
    found = {
        "output": program.outputs,
        "check": program.checks,
        "shared_sums": [f"{n}: {d.name}" for n, d in sorted(program.shared_sums.items())],
    }
    return [f"{word} {', '.join(names)}" for word, names in found.items() if names]


def sizes_of(program: Program) -> list[Size]:
    """Return the sizes that are known at run time only, in the order in which they are met."""
    found: dict[Atom, None] = {}
    for i in program.inputs.values():
        found |= _atoms((*i.shape, *i.strides))
    for y in program.delays.values():
        found |= _atoms(y.shape)
    for d in program.defs.values():
        found |= _atoms(d.shape)
        for node in ex.walk(d.expr):
            found |= _atoms(ex.indices(node))
            if isinstance(node, Reduce):
                found |= _atoms(a.extent for a in node.axes)
    for a, b, _ in program.equalities:
        found |= _atoms((a, b))
    return [a for a in found if isinstance(a, Size)]


def _atoms(held: Iterable[Index]) -> dict[Atom, None]:
    return {a: None for i in held for a in deep_atoms(i)}


def result_of(fn: str, args: Sequence[Expr]) -> DType:
    """Return the usual dtype of a pointwise function."""
    return dtypes.boolean if fn in COMPARISONS else args[0].dtype


def reduced(fn: str, body: Expr) -> DType:
    """Return the usual dtype of a reduction."""
    return dtypes.i64 if fn in ("argmin", "argmax") else body.dtype


def input_line(i: Input) -> str:
    """The line of an input."""
    order = "" if i.order is None else f" order ({', '.join(map(str, i.order))})"
    return f"input {i.name}: {i.dtype}[{_indices(i.shape)}] strides ({_indices(i.strides)}){order}"


def _delay(y: Delay) -> str:
    step = "+1" if y.reverse else "-1"
    text = f"delay {y.name}: {y.dtype}[{_indices(y.shape)}] = {y.source}[{step}] from {y.init}"
    text += f" ends {', '.join(y.ends)}" if y.ends else ""
    text += f" why {y.why!r}" if y.why else ""
    return text + _place("", y.loc)


def _place(op: str, loc: Loc) -> str:
    """Return the comment with the op and the source line of a value."""
    if not op and not loc.line:
        return ""
    return f"    # {op or '-'} {loc}" if loc.line else f"    # {op}"


def _indices(held: Iterable[Index]) -> str:
    return ", ".join(map(_index, held))


def _index(index: Index) -> str:
    return ExprPrinter(()).index(index)


class ExprPrinter:
    """Writes definitions and expressions. `taken`: names that no axis gets; `declared`: dtypes of
    values, where a load may have another one."""

    def __init__(self, taken: Iterable[str], declared: Mapping[str, DType] | None = None) -> None:
        self.taken = set(taken)
        self.declared = declared or {}
        self.axes: dict[Axis, str] = {}
        self.begin()

    def begin(self) -> None:
        """Start a definition or a nest: parts are numbered from 1."""
        self.known: dict[Expr, str] = {}
        self.depth: dict[Expr, int] = {}
        self.lines: list[str] = []

    def definition(self, d: Def) -> list[str]:
        """The lines of a definition, its parts last."""
        self.begin()
        axes = self.binders(d.axes)
        text = self.expr(d.expr, d.axes)
        return [f"{d.name}[{axes}]: {d.dtype} = {text}{_place(d.op, d.loc)}", *self.lines]

    def expr(self, e: Expr, bound: Sequence[Axis]) -> str:
        """The text of an expression; its parts are added to `lines`. `bound`: axes that have been
        written with their extents."""
        nodes = list(ex.walk(e, self.known))
        users = Counter(c for node in nodes for c in node.children)
        apart = {e.place} if isinstance(e, AddAt) else set[Expr]()
        for node in nodes:
            depth = 1 + max((self.depth.get(c, 0) for c in node.children), default=0)
            text = self.known[node] = self.node(node)
            self.depth[node] = depth
            twice = users[node] > 1 and len(text) > _LONG
            if (twice or depth > _DEEP) and node is not e and node not in apart:
                self.part(node, bound)
        return self.known[e]

    def part(self, e: Expr, bound: Sequence[Axis], note: str = "") -> None:
        """Give an expression whose text is known a line of its own."""
        within = self.binders(a for a in ex.ordered_axes(e, bound) if a not in bound)
        name = f"%{len(self.lines) + 1}"
        self.lines.append(f"  {name}{f'[{within}]' if within else ''} = {self.known[e]}{note}")
        self.known[e], self.depth[e] = name, 0

    def binders(self, axes: Iterable[Axis]) -> str:
        return ", ".join(f"{self.name(a)}:{self.index(a.extent)}" for a in axes)

    def name(self, a: Axis) -> str:
        if a not in self.axes:
            name, count = a.name, 0
            while name in self.taken:
                count += 1
                name = f"{a.name}.{count}"
            self.taken.add(name)
            self.axes[a] = name
        return self.axes[a]

    def node(self, e: Expr) -> str:
        """Return the text of a node whose operands are known."""
        known = self.known
        match e:
            case Load():
                kind = _of(e.dtype, self.declared.get(e.source, e.dtype))
                return f"{e.source}[{', '.join(map(self.index, e.index))}]{kind}"
            case Const():
                usual = (
                    "f32" if e.dtype.is_float else "bool" if isinstance(e.value, bool) else "i64"
                )
                return f"{e.value!r}{_of(e.dtype, dtypes.BY_NAME[usual])}"
            case At():
                return f"at({self.index(e.index)}){_of(e.dtype, dtypes.i64)}"
            case Scalar():
                return f"${e.name}{_of(e.dtype, dtypes.f64)}"
            case Apply():
                kind = _of(e.dtype, result_of(e.fn, e.args))
                return f"{e.fn}{kind}({', '.join(known[a] for a in e.args)})"
            case Select():
                return f"select({known[e.cond]}, {known[e.yes]}, {known[e.no]})"
            case Cast():
                return f"{e.dtype}({known[e.arg]})"
            case AddAt():
                return f"{known[e.value]} added to {known[e.place]}"
            case Reduce():
                kind = _of(e.dtype, reduced(e.fn, e.body))
                return f"{e.fn}[{self.binders(e.axes)}]{kind}({known[e.body]})"
            case _:
                raise AssertionError(f"no text for {type(e).__name__}")

    def index(self, index: Index) -> str:
        """Return a sum of products, in an order that depends on the text only."""
        if index.const is not None:
            return str(index.const)
        terms = [(sorted(map(self.atom, m)), factor) for m, factor in index.terms]
        parts: list[str] = []
        for names, factor in sorted(terms, key=_term_key):
            number = [] if abs(factor) == 1 and names else [str(abs(factor))]
            body = "*".join((*number, *(text for _, text in names)))
            sign = "-" if factor < 0 else "+"
            parts.append(f"{sign} {body}" if parts else (f"-{body}" if factor < 0 else body))
        return " ".join(parts)

    def atom(self, a: Atom) -> tuple[int, str]:
        """Return the sort key of an atom, and its text."""
        match a:
            case Axis():
                text = self.name(a)
            case FloorDiv():
                text = f"({self.within(a.num)} // {self.within(a.den)})"
            case Mod():
                text = f"({self.within(a.num)} % {self.within(a.den)})"
            case Clamp():
                text = f"clamp({self.index(a.num)}, {self.index(a.extent)})"
            case Gather():
                text = f"[{self.known[a.expr]}]"
            case _:
                text = repr(a)
        return a.key[0], text

    def within(self, index: Index) -> str:
        """Return a part of a division."""
        text = self.index(index)
        return text if text.isidentifier() or text.isdecimal() else f"({text})"


def _term_key(term: tuple[list[tuple[int, str]], int]) -> tuple[bool, bool, int, object]:
    """Return the sort key of a term: subtracted terms come later, numbers last: `i*n + j - k +
    1`."""
    names, factor = term
    return not names, factor < 0, -len(names), names


def _of(dtype: DType, usual: DType) -> str:
    return "" if dtype is usual else f":{dtype}"
