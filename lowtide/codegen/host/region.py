"""The program of a region around its kernels, as data.

    numbers s0
    size s1 = py.mul(s0, a[1])              before the first call with these sizes
    f0 = py.truediv(a[2], 2)                each call
    kernels (a[0]) numbers (f0) -> 2 outputs, 1 checks
    v0 = torch.select(a[0], 0, s1 - 1)      a view, by PyTorch's own op
    write a[3] = o[1]
    result o[0], v0

`a` are the live-ins, `o` the kernels' outputs. Ops are named as the IR names them. The region's
`HostProgram` describes how the kernels run; `execute/host_code` writes this one from a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from lowtide.errors import VerifyError
from lowtide.ir.literals import print_literal
from lowtide.texpr.index import Atom, Clamp, FloorDiv, Index, Mod


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A live-in, or an item of it. `path`: subscripts and dict keys."""

    position: int
    path: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """An output of the kernels."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The result of a statement, or an item of it."""

    name: str
    item: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number computed from sizes."""

    index: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A constant that can be printed."""

    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """An object of the user's program that cannot be printed, by name: a generator, for
    instance."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A sequence. `kind`: "list", "tuple", or the name of the `Object` that makes it from a
    tuple."""

    kind: str
    elems: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """A dict."""

    keys: tuple[Operand, ...]
    elems: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A tensor of which only sizes and dtype are used."""

    dtype: torch.dtype
    shape: tuple[Index, ...]


Operand = Live | Output | Made | Number | Literal | Object | Group | Entries | Sized


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The result of the op `name` for these operands. It may raise."""

    name: str
    op: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size, computed by an op from these operands."""

    name: str
    op: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Permute:
    """A permuted view of an output: dim k of the view is dim `order[k]` of the output."""

    name: str
    of: Output
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Let:
    """A list, tuple or dict that is used in several places and must be one object."""

    name: str
    value: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Runs the kernels on tensors among the live-ins, and on numbers. Their results are the
    `outputs`, then the checks; a false check ends the call. `may_capture`: the device may record a
    CUDA graph instead, in which checks cannot be read."""

    inputs: tuple[Live, ...]
    numbers: tuple[Operand, ...]
    outputs: int
    checks: int
    may_capture: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Copies the values of a tensor into another one."""

    to: Operand
    value: Operand


Statement = Size | Call | Permute | Let


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProgram:
    """`numbers`: names of the sizes that a call is given. `sizes` computes further sizes, once for
    each new set of sizes. Each call runs `before`, the kernels, `after`, then `writes`."""

    numbers: tuple[str, ...]
    sizes: tuple[Statement, ...]
    before: tuple[Statement, ...]
    kernels: Kernels | None
    after: tuple[Statement, ...]
    writes: tuple[Write, ...]
    results: tuple[Operand, ...]


def live_ins(program: RegionProgram) -> Iterator[int]:
    """Yield the positions of live-ins that are read or returned after the kernels have run."""
    for statement in program.after:
        match statement:
            case Size(operands=operands) | Call(operands=operands):
                yield from _positions(operands)
            case Let(value=value):
                yield from _positions([value])
            case Permute():
                pass
    for write in program.writes:
        yield from _positions([write.to, write.value])
    yield from _positions(program.results)


def _positions(operands: Iterable[Operand]) -> Iterator[int]:
    for x in operands:
        match x:
            case Live(position=position):
                yield position
            case Group(elems=elems) | Entries(elems=elems):
                yield from _positions(elems)
            case _:
                pass


def verify_region(program: RegionProgram) -> None:
    """Raises VerifyError, an internal fault, if a value is read before it is defined."""
    kernels = program.kernels
    _Checker(0, set()).statements(program.sizes)
    _Checker(0, set()).statements(program.before)
    outputs = 0 if kernels is None else kernels.outputs
    if kernels is not None:
        made = {s.name for s in program.before}
        _Checker(0, made).operands([*kernels.inputs, *kernels.numbers])
    after = _Checker(outputs, set())
    after.statements(program.after)
    after.operands([x for w in program.writes for x in (w.to, w.value)])
    after.operands(program.results)


class _Checker:
    """`outputs`: the number of the kernels' outputs. `made`: names that are defined so far."""

    def __init__(self, outputs: int, made: set[str]) -> None:
        self.outputs = outputs
        self.made = made

    def statements(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            match statement:
                case Size(operands=operands) | Call(operands=operands):
                    self.operands(operands)
                case Let(value=value):
                    self.operands([value])
                case Permute(of=of):
                    self.operands([of])
            if statement.name in self.made:
                raise VerifyError(f"{statement.name} is made twice")
            self.made.add(statement.name)

    def operands(self, operands: Iterable[Operand]) -> None:
        for x in operands:
            match x:
                case Output(number=number) if number >= self.outputs:
                    raise VerifyError(f"the kernels have no output {number} here")
                case Made(name=name) if name not in self.made:
                    raise VerifyError(f"{name} is read before it is made")
                case Group(elems=elems) | Entries(elems=elems):
                    self.operands(elems)
                case _:
                    pass


# ---- text --------------------------------------------------------------------------------------


def print_region(program: RegionProgram) -> str:
    """Return the text of a region's program, one line a statement."""
    lines = [f"numbers {', '.join(program.numbers)}"] if program.numbers else []
    lines += [s if s.startswith("size ") else f"prepare {s}" for s in map(_line, program.sizes)]
    lines += map(_line, program.before)
    if (k := program.kernels) is not None:
        text = f"kernels ({', '.join(map(text_of, k.inputs))})"
        text += f" numbers ({', '.join(map(text_of, k.numbers))})" if k.numbers else ""
        text += f" -> {k.outputs} outputs" + (f", {k.checks} checks" if k.checks else "")
        text += ", may capture" if k.may_capture else ""
        lines.append(text)
    lines += map(_line, program.after)
    lines += [f"write {text_of(w.to)} = {text_of(w.value)}" for w in program.writes]
    return "\n".join([*lines, f"result {', '.join(map(text_of, program.results))}".rstrip()])


def _line(statement: Statement) -> str:
    match statement:
        case Size(name=name, op=op, operands=operands):
            return f"size {name} = {op}({', '.join(map(text_of, operands))})"
        case Call(name=name, op=op, operands=operands):
            return f"{name} = {op}({', '.join(map(text_of, operands))})"
        case Permute(name=name, of=of, order=order):
            return f"{name} = {text_of(of)} permuted {order}"
        case Let(name=name, value=value):
            return f"{name} = {text_of(value)}"


def text_of(x: Operand, size: Callable[[str], str] = str, literal: Literals = print_literal) -> str:
    """Return the text of an operand. `size`: gives the text of a size from its name."""
    match x:
        case Live(position=position, path=path):
            return f"a[{position}]" + "".join(f"[{i!r}]" for i in path)
        case Output(number=number):
            return f"o[{number}]"
        case Made(name=name, item=item):
            return name if item is None else f"{name}[{item}]"
        case Number(index=index):
            return index_text(index, size)
        case Literal(value=value):
            return literal(value)
        case Object(name=name):
            return name
        case Group(kind=kind, elems=elems):
            inner = ", ".join(text_of(e, size, literal) for e in elems)
            comma = "," if len(elems) == 1 else ""
            whole = f"[{inner}]" if kind == "list" else f"({inner}{comma})"
            return whole if kind in ("list", "tuple") else f"{kind}({whole})"
        case Entries(keys=keys, elems=elems):
            pairs = (
                f"{text_of(k, size, literal)}: {text_of(v, size, literal)}"
                for k, v in zip(keys, elems, strict=True)
            )
            return f"{{{', '.join(pairs)}}}"
        case Sized(dtype=dtype, shape=shape):
            sizes = "".join(f"{index_text(n, size)}, " for n in shape)
            return f"sized({literal(dtype)}, ({sizes.rstrip()}))"


Literals = Callable[[object], str]


def index_text(index: Index, size: Callable[[str], str] = str) -> str:
    """Return the text of a polynomial in sizes."""

    def atom_text(atom: Atom) -> str:
        match atom:
            case FloorDiv():
                return f"(({whole(atom.num)}) // ({whole(atom.den)}))"
            case Mod():
                return f"(({whole(atom.num)}) % ({whole(atom.den)}))"
            case Clamp():
                return f"min(max({whole(atom.num)}, 0), ({whole(atom.extent)}) - 1)"
            case _:
                return size(repr(atom))

    def whole(i: Index) -> str:
        parts = [
            "*".join([str(factor), *map(atom_text, monomial)]).removeprefix("1*")
            for monomial, factor in i.terms
        ]
        return " + ".join(parts) or "0"

    return whole(index)


# ---- Python ------------------------------------------------------------------------------------


class PythonRegion:
    """The two functions of a region's program as Python source, which each call runs:

    def prepare(a, z):                          # once per new set of sizes
        z.append(py_mul(z[0], a[1]))

    def run(a, z, sizes):
        o = exe([a[0]], sizes, [a[2]])
        if not o[1]: raise CheckFailed
        v0 = torch_select(a[0], 0, 1)
        return (o[0], v0)

    `records`: the kernels also get all live-ins, and the writes as a function."""

    def __init__(self, program: RegionProgram, records: bool) -> None:
        self.program = program
        self.records = records
        computed = (s.name for s in program.sizes if isinstance(s, Size))
        names = [*program.numbers, *computed]
        self.order = {name: k for k, name in enumerate(names)}
        self.literals: dict[str, object] = {}  # by name: constants without a Python literal

    def prepare(self) -> str:
        """Return the source of `prepare`, "" if no size is computed."""
        body = [self._line(s) for s in self.program.sizes]
        return "\n".join(["def prepare(a, z):", *body]) if body else ""

    def run(self) -> str:
        """Return the source of `run`."""
        program = self.program
        writes = [f"    write({self._text(w.to)}, {self._text(w.value)})" for w in program.writes]
        lines, more = ["def run(a, z, sizes):"], ", a" * self.records
        if self.records and writes:
            lines += ["    def written(o):", *(f"    {line}" for line in writes)]
            more += ", written"
        if (k := program.kernels) is not None:
            lines += _guarded([self._line(s) for s in program.before])
            lines += ["    if capturing(): raise CheckFailed"] if k.may_capture else []
            inputs, numbers = (", ".join(map(self._text, x)) for x in (k.inputs, k.numbers))
            lines.append(f"    o = exe([{inputs}], sizes, [{numbers}]{more})")
            checks = range(k.outputs, k.outputs + k.checks)
            lines += [f"    if not o[{n}]: raise CheckFailed" for n in checks]
        lines += [*_guarded([self._line(s) for s in program.after]), *writes]
        results = "".join(f"{self._text(x)}, " for x in program.results)
        return "\n".join([*lines, f"    return ({results.rstrip()})"])

    def _line(self, statement: Statement) -> str:
        match statement:
            case Size():
                return f"    z.append({self._call(statement)})"
            case Call(name=name):
                return f"    {name} = {self._call(statement)}"
            case Permute(name=name, of=of, order=order):
                return f"    {name} = {self._text(of)}.permute{order}"
            case Let(name=name, value=value):
                return f"    {name} = {self._text(value)}"

    def _call(self, call: Call | Size) -> str:
        operands = ", ".join(map(self._text, call.operands))
        return f"{function_name(call.op)}({operands})"

    def _text(self, x: Operand) -> str:
        return text_of(x, lambda name: f"z[{self.order[name]}]", self._literal)

    def _literal(self, value: object) -> str:
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        for name, known in self.literals.items():
            if known is value:
                return name
        name = f"c{len(self.literals)}"
        self.literals[name] = value
        return name


def function_name(op: str) -> str:
    """Return the name of an op's function in the Python text."""
    return "".join(c if c.isalnum() else "_" for c in op)


def _guarded(lines: Sequence[str]) -> list[str]:
    """Return lines that call Python's or PyTorch's functions, which may raise."""
    if not lines:
        return []
    inner = [f"    {line}" for line in lines]
    return [
        "    try:",
        *inner,
        "    except Exception as error:",
        "        raise HostFault from error",
    ]
