"""Prints a function or method as a C function: what is around its body, and what it is given.

In: a compiled function or method, example arguments. Out: an `Entry`: the statements of its body,
its temporaries, where each size comes from, what is given, kept and returned.

    f(x, y) with x: [1000, 3], y: [200, 3]     sizes v0 = x.shape[0], v2 = y.shape[0]; inputs x, y

Numbers of the module and flags of the call are constants. A size above 32 stays an argument.
Invariant: all that PyTorch would do in this process is C here; else ExportError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import torch

from lowtide import config
from lowtide.c_library.answers import answered
from lowtide.c_library.flow import BROKEN
from lowtide.c_library.regions import KernelTexts, nbytes
from lowtide.c_library.sizes import Choice, Size
from lowtide.c_library.values import (
    MISSING,
    Again,
    Frame,
    Growth,
    Real,
    Refused,
    Tensor,
    Thing,
    Truth,
    c_int,
    c_real,
    c_truth,
    is_bool,
    is_float,
    is_int,
    of_torch,
)
from lowtide.c_library.walk import Walker
from lowtide.c_library.words import FREE, TAKEN
from lowtide.codegen.host import region as host
from lowtide.compiler import simplified
from lowtide.errors import ExportError
from lowtide.ir.core import Block, Function, Op, Value
from lowtide.ir.dtypes import DType
from lowtide.ir.literals import is_literal
from lowtide.specialise.region_boundaries import static_reason
from lowtide.specialise.signature import LARGE, SMALL, size_symbol
from lowtide.texpr.index import Index, as_index
from lowtide.torch_private.pytree import leaves

_MOST_SHOWN: Final = 40
_MOST_ROUNDS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument or a result of the C function: a tensor, an int, a float or a bool. `shape`: its
    sizes, or their upper bounds where the data decide (`counted`). `shown`: the user's name, which
    need not be one in C."""

    name: str
    shown: str = ""
    kind: str = "tensor"  # "tensor", "int", "float", "bool"
    dtype: DType | None = None
    shape: tuple[Index, ...] = ()
    counted: bool = False
    at: str = ""  # of an input tensor: its address in the body
    weight: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tensor or number of the module that the program changes: a field of the state."""

    key: str
    name: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """See the module's text. `fixed`: dims that are constants, as "x.shape[0]". `inputs`: the
    caller's, then the weights. `constants`: ints of the call that must be those of the example.
    `expected`: what it returns for the example, flat."""

    name: str
    sizes: tuple[Size, ...]
    fixed: Mapping[str, int]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    constants: Mapping[str, int]
    body: tuple[str, ...]
    frame: Frame
    state: tuple[Kept, ...]
    example: tuple[Any, ...]
    expected: tuple[Any, ...]


@dataclass(slots=True)
class Settings:
    """The findings of earlier rounds: sizes that are constants or equal, and keys of state.
    `least`: of sizes that may not be smaller; `floor`: of all sizes; `growths`: of lists."""

    constant: set[str] = field(default_factory=set[str])
    same: dict[str, str] = field(default_factory=dict[str, str])
    state: set[str] = field(default_factory=set[str])
    least: dict[str, int] = field(default_factory=dict[str, int])
    floor: int = 0
    growths: dict[Op, Growth | None] = field(default_factory=dict[Op, Growth | None])

    def name_of(self, name: str) -> str:
        """Return the name of a size among those that are equal to it."""
        while name in self.same:
            name = self.same[name]
        return name

    def add(self, found: Again) -> None:
        """Take over what a round has found."""
        self.state.update(found.state)
        for a, b in found.same:
            a, b = sorted((self.name_of(a), self.name_of(b)), key=lambda n: int(n[1:]))
            if a != b:
                self.same[b] = a
        self.constant.update(found.constant)
        if found.constant or found.same or found.least:
            self.growths = dict.fromkeys(self.growths)  # their sizes are other ones now
        self.growths.update(found.growths)
        self.least.update(found.least)


def gathered(
    name: str,
    compiled: Any,
    args: Sequence[Any],
    kernels: KernelTexts,
    state: set[str],
    upper: str,
    choice: Choice,
) -> Entry:
    """Return what the C function is made of, without what it gives. `state`: keys of state that
    other functions of the library have; those of this one are added. Raises ExportError."""
    driver, values = compiled.resolve(compiled.bind(tuple(args), {}))
    values = [contiguous(v) for v in values]
    function, values, given = with_constants(driver.function, values, state)
    found = Settings(state=state)
    with torch.no_grad(), config.override(products="kernels", kernels_only=True):
        return _with_fewest_gaps(lambda: _Printed(
            name, function, values, given, kernels, found, upper, choice
        ), found)  # fmt: skip


def _with_fewest_gaps(make: Callable[[], _Printed], found: Settings) -> Entry:
    """Return the function for sizes from 0 on; if data-dependent sizes then have no code in some
    cases, from 1 or 2 on, if there are fewer such cases. Raises ExportError."""
    made: list[Entry] = []
    problems: list[ExportError] = []
    for floor in (0, 1, 2):
        found.floor = floor
        found.growths = dict.fromkeys(found.growths)
        try:
            made.append(_settled(make, found))
        except ExportError as error:
            problems.append(error)
        if made and not made[-1].frame.gaps:
            break
    if not made:
        raise problems[-1]
    return min(made, key=lambda entry: entry.frame.gaps)


def _settled(make: Callable[[], _Printed], found: Settings) -> Entry:
    for _ in range(_MOST_ROUNDS):
        try:
            return make().entry()
        except Again as retry:
            found.add(retry)
    raise AssertionError("the sizes of an exported function do not settle")


def contiguous(v: Any) -> Any:
    """Return the value with contiguous tensors."""
    if isinstance(v, torch.Tensor):
        return v.detach().contiguous()
    if type(v) in (list, tuple):
        return type(v)(contiguous(e) for e in v)
    if type(v) is dict:
        return {k: contiguous(e) for k, e in cast("Mapping[Any, Any]", v).items()}
    return v


def flat(x: Any) -> Iterator[Any]:
    """Return the values that C returns: all but None and strings."""
    return (e for e in leaves(x) if e is not None and not isinstance(e, str))


def with_constants(
    function: Function, values: Sequence[Any], state: set[str]
) -> tuple[Function, list[Any], int]:
    """Return the function with constants for numbers that it captures, and for flags and strings
    that it is given; the values of its parameters; and how many of them the caller gives."""
    count = len(function.arguments)
    kept: list[tuple[Value, Any, str]] = []
    ops: list[Op] = []
    given = 0
    paths = ["", *function.captures]
    for k, (param, value) in enumerate(zip(function.params, values, strict=True)):
        is_argument = k < count
        is_number = type(value) in (int, float)
        is_kept = not is_argument and paths[k - count + 1] in state
        if is_literal(value) and not (is_argument and is_number) and not is_kept:
            ops.append(Op(name="const", attrs={"value": value}, results=[param], loc=function.loc))
            continue
        if is_argument and not (is_number or _is_of_tensors(value)):
            kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            what = f"`{param.name}` is a {kind}"
            raise ExportError([(function.loc, f"{what}, which has no C type")])
        kept.append((param, value, "" if is_argument else paths[k - count + 1]))
        given += is_argument
    block = Block([p for p, _, _ in kept], [*ops, *function.block.ops])
    captures = tuple(path for _, _, path in kept[given:])
    made = simplified(answered(replace(function, block=block, captures=captures)))
    return made, [v for _, v, _ in kept], given


def _is_of_tensors(x: Any) -> bool:
    if isinstance(x, tuple | list):
        return all(map(_is_of_tensors, cast("Sequence[Any]", x)))
    if type(x) is dict:
        return all(map(_is_of_tensors, cast("Mapping[Any, Any]", x).values()))
    return isinstance(x, torch.Tensor) and of_torch(x.dtype) is not None


class _Printed:
    """One round of printing."""

    def __init__(
        self,
        name: str,
        function: Function,
        values: Sequence[Any],
        given: int,
        kernels: KernelTexts,
        settings: Settings,
        upper: str,
        choice: Choice,
    ) -> None:
        self.choice = choice
        self.name, self.function, self.values, self.given = name, function, values, given
        self.settings, self.upper = settings, upper
        self.frame = Frame()
        self.sizes: dict[str, Size] = {}
        self.fixed: dict[str, int] = {}
        self.free: set[str] = set()
        self.inputs: list[Argument] = []
        self.weights: list[Argument] = []
        self.known: dict[str, Tensor] = {}  # the module's tensors, by key
        self.constants: dict[str, int] = {}
        self.state: dict[str, Kept] = {}
        self.spots = 0
        self.read: list[str] = []  # statements that read numbers of the state
        self.labels: list[str] = []
        self.assigned = _assigned(function)
        settings.state.update(self.assigned)
        self.frame.take(as_index(8))  # the message
        self.kernels = kernels
        self.direct: list[tuple[int, str]] = []

    def entry(self) -> Entry:
        """See the module's text."""
        function, frame = self.function, self.frame
        env: dict[Value, object] = {}
        for k, (param, value) in enumerate(zip(function.params, self.values, strict=True)):
            if k < self.given:
                env[param] = self.argument(param.name or f"x{k}", param.name or "_", value)
            else:
                path = function.captures[k - self.given]
                env[param] = self.captured(path, value)
        walker = Walker(
            function, frame, self.kernels, {s.symbol: s.example for s in self.sizes.values()},
            frozenset(self.free), self.returns(), self.attribute,
        )  # fmt: skip
        walker.state_name = self.state_name
        walker.used_outputs = self.outputs_of
        walker.is_assigned = self.is_assigned
        walker.growths = self.settings.growths
        walker.lines += self.read
        found = walker.run(env)
        self.raise_reasons(found, walker)
        outputs = self.outputs(walker, found)
        self.frame.pieces[0].end = frame.tick + 1
        read = set(re.findall(r"\bw_\d+\b", "\n".join(walker.lines)))
        weights = [a for a in self.weights if a.at in read]
        return Entry(
            name=self.name,
            sizes=tuple(self.sizes.values()),
            fixed=self.fixed,
            inputs=(*self.inputs, *weights),
            outputs=tuple(outputs),
            constants=self.constants,
            body=tuple(walker.lines),
            frame=frame,
            state=tuple(self.state.values()),
            example=tuple(leaves(self.values[: self.given])),
            expected=(),
        )

    def returns(self) -> dict[str, str]:
        """Return the statements that return a status."""
        names = ("BAD_SIZE", "RAISED", "BAD_INDEX", "NULL")
        return {n: f"return {self.upper}_{n};" for n in names}

    # -- what is given --

    def label(self, name: str) -> str:
        """Return a name in C."""
        if not FREE.fullmatch(name) or TAKEN.fullmatch(name):
            name = "arg_" + re.sub(r"[^A-Za-z0-9_]", "_", name)
        while name in self.labels:
            name += "_"
        self.labels.append(name)
        return name

    def argument(self, name: str, shown: str, value: Any) -> object:
        """Return an argument's value in the body; a list or dict is one for each tensor."""
        if isinstance(value, tuple | list):
            elems = enumerate(cast("Sequence[Any]", value))
            made = [self.argument(f"{name}_{k}", f"{shown}[{k}]", e) for k, e in elems]
            return tuple(made) if isinstance(value, tuple) else made
        if type(value) is dict:
            rows = cast("Mapping[str, Any]", value).items()
            return {k: self.argument(f"{name}_{k}", f"{shown}['{k}']", e) for k, e in rows}
        label = self.label(name)
        if isinstance(value, torch.Tensor):
            sizes = [self.size(n, f"{shown}.shape[{d}]", "v") for d, n in enumerate(value.shape)]
            dtype = of_torch(value.dtype)
            assert dtype is not None
            at = self.frame.fresh("g_")
            made = Argument(name=label, shown=shown, dtype=dtype, shape=tuple(sizes), at=at)
            self.inputs.append(made)
            return Tensor(at=at, dtype=dtype, shape=tuple(sizes), family=made)
        kind = type(value).__name__
        self.inputs.append(Argument(name=label, shown=shown, kind=kind))
        if kind == "float":
            return Real(label)
        letter = "i" if value > SMALL else "n"
        found = self.size(value, shown, letter)
        if found.const is None:
            self.free.update([str(found)] if letter == "n" else [])
            return found
        self.constants[label] = value
        return value

    def size(self, n: int, shown: str, letter: str) -> Index:
        """Return a size or int of the call."""
        own = f"{letter}{self.spots}"
        self.spots += 1
        name = self.settings.name_of(own)
        chosen = self.choice.of(own, shown, n)
        is_constant = name in self.settings.constant or own in self.settings.constant
        if chosen is False and is_constant:
            raise ExportError([(self.function.loc, f"an op needs {shown} as a constant")])
        if is_constant or (letter == "v" and n <= SMALL if chosen is None else chosen):
            self.fixed.update([(shown, n)] if letter == "v" else [])
            return as_index(n)
        least, most = self.choice.ranges.get(shown, (0, LARGE))
        least = max(least, self.settings.least.get(name, min(self.settings.floor, n)))
        known = self.sizes.get(name)
        if known is not None:
            least, most = max(least, known.least), min(most, known.most)
        if name[0] == "n" and not least:
            least = -(2**39)
        dims = (*(known.dims if known else ()), shown)
        self.sizes[name] = Size(symbol=name, dims=dims, least=least, most=most, example=n)
        if name[0] == "v":
            if n < least:
                raise ExportError([(self.function.loc, f"{shown} must be at least {least}")])
            self.frame.least[name] = least
        return size_symbol(name, None if name[0] == "n" else min(least, 2))

    # -- the module --

    def captured(self, path: str, value: Any) -> object:
        """Return the value of something that the program captures."""
        if isinstance(value, torch.Tensor):
            return self.tensor(path, value)
        if is_literal(value) and path in self.settings.state:
            return self.number(path, value)
        if is_literal(value):
            return value
        if isinstance(value, tuple | list):
            elems = enumerate(cast("Sequence[Any]", value))
            made = [self.captured(f"{path}.{k}", e) for k, e in elems]
            return tuple(made) if isinstance(value, tuple) else made
        if type(value) is dict:
            rows = cast("Mapping[Any, Any]", value).items()
            return {k: self.captured(f"{path}.{k}", e) for k, e in rows}
        return Thing(path, value)

    def attribute(self, thing: Thing, name: str) -> object:
        """Return the value, or the place in the state, of an attribute."""
        key = _key(thing.path, name)
        try:
            value = getattr(thing.value, name)
        except AttributeError:
            raise Refused(f"reads `{name}`, which is not there") from None
        if isinstance(value, torch.Tensor) or key not in self.settings.state:
            return self.captured(key, value)
        field_name = self.field(key, value)
        if type(value) is int:
            found = size_symbol(f"state_{field_name}", None)
            self.frame.runtime.add(f"state_{field_name}")
            return found
        if type(value) is float:
            return Real(f"state->{field_name}")
        if type(value) is bool:
            return Truth(f"state->{field_name}")
        raise Refused(f"changes `{name}`, which is {value!r} where it is exported; set it before")

    def number(self, key: str, value: Any) -> object:
        """Return a number of the state that this function only reads."""
        at = f"state->{self.field(key, value)}"
        if type(value) is int:
            made = self.frame.variable(None, None)
            self.frame.examples[c_int(made)[3:-1]] = value
            self.read.append(f"const int64_t {c_int(made)[1:-1]} = {at};")
            return made
        if type(value) not in (float, bool):
            raise ExportError([(self.function.loc, f"`{key}` is {value!r}, and changes")])
        return Real(at) if type(value) is float else Truth(at)

    def is_assigned(self, thing: Thing, name: str) -> bool:
        """Return whether the program assigns the attribute."""
        return _key(thing.path, name) in self.assigned

    def state_name(self, thing: Thing, name: str) -> str:
        """Return the name of an attribute's field in the state."""
        return self.state[_key(thing.path, name)].name

    def field(self, key: str, value: Any) -> str:
        """Return the name of a field of the state."""
        if key not in self.state:
            name = re.sub(r"\W", "_", key.replace("@", "")) or "self"
            taken = {x.name for x in self.state.values()}
            while name in taken or not re.match(r"[A-Za-z]", name) or TAKEN.fullmatch(name):
                name = f"x{name}_"
            self.state[key] = Kept(key=key, name=name, value=value)
        return self.state[key].name

    def tensor(self, key: str, value: torch.Tensor) -> Tensor:
        """Return a tensor of the module: a weight, or a field of the state."""
        if key in self.known:
            return self.known[key]
        dtype = of_torch(value.dtype)
        if dtype is None:
            raise ExportError([(self.function.loc, f"`{key}` is a tensor of {value.dtype}")])
        shape = tuple(as_index(n) for n in value.shape)
        if key in self.settings.state:
            at = f"((char *)(void *)&state->{self.field(key, value)})"
            made = Tensor(at=at, dtype=dtype, shape=shape, family=key, writable=True)
        else:
            at = self.frame.fresh("w_")
            self.weights.append(Argument(
                name=at, shown=key, dtype=dtype, shape=shape, at=at, weight=value.detach()
            ))  # fmt: skip
            made = Tensor(at=at, dtype=dtype, shape=shape, family=key)
        self.known[key] = made
        return made

    # -- what is returned --

    def raise_reasons(self, found: object, walker: Walker) -> None:
        """Raise ExportError for all ops that were refused, and all that certainly would be."""
        reasons = dict(self.frame.reasons)
        if not reasons and found is not BROKEN:
            return
        known = {loc for loc, _ in reasons}
        for op in self.function.walk():
            why = static_reason(op)
            is_done = op.name in ("raise", "mutate") or op.name.startswith("attr.")
            if why and not is_done and op.loc not in known and op not in walker.done:
                reasons[op.loc, f"`{op.attrs.get('target', op.name)}` {why}"] = None
        rows = list(reasons) or [(self.function.loc, "it cannot be followed")]
        raise ExportError(rows[:_MOST_SHOWN])

    def outputs_of(self, results: Sequence[host.Operand]) -> Mapping[int, str]:
        """Return for outputs of a region that ends the function where they are written."""
        found: dict[int, str] = {}
        count = 0

        def add(x: host.Operand) -> None:
            nonlocal count
            if isinstance(x, host.Group | host.Entries):
                for e in x.elems:
                    add(e)
                return
            if isinstance(x, host.Literal) and (x.value is None or isinstance(x.value, str)):
                return
            if isinstance(x, host.Output):
                found.setdefault(x.number, f"(char *)out{count}")
            count += 1

        for x in results:
            add(x)
        return found

    def outputs(self, walker: Walker, found: object) -> list[Argument]:
        """Print what gives the results to the caller; return them."""
        made: list[Argument] = []
        lines = walker.lines
        self.frame.tick += 1
        for k, x in enumerate(flat(found)):
            name = f"out{k}"
            if x is MISSING:
                raise ExportError([(self.function.loc, "it returns what is not always made")])
            if isinstance(x, Tensor):
                made.append(self.tensor_output(lines, name, x))
            elif is_bool(x):
                made.append(Argument(name=name, kind="bool"))
                lines.append(f"*{name} = {c_truth(x)};")
            elif is_int(x):
                made.append(Argument(name=name, kind="int"))
                lines.append(f"*{name} = {c_int(x)};")
            elif is_float(x):
                made.append(Argument(name=name, kind="float"))
                lines.append(f"*{name} = {c_real(x)};")
            else:
                what = f"it returns a {type(x).__name__}; return tensors and numbers"
                raise ExportError([(self.function.loc, what)])
        return made

    def tensor_output(self, lines: list[str], name: str, x: Tensor) -> Argument:
        """Print the copy of a result, unless it is made in place."""
        self.frame.touch(x)
        is_direct = any(f"char *{x.at} = (char *)((char *){name});" in line for line in lines)
        try:
            most = tuple(self.frame.most(n) for n in x.shape)
        except Refused as why:
            raise ExportError([(self.function.loc, f"its result {why}")]) from None
        is_counted = any(a is not b for a, b in zip(most, x.shape, strict=True))
        if is_counted:
            bad = self.returns()["BAD_SIZE"]
            lines.append(f"if ({name}_capacity < {c_int(nbytes(x))} / {x.dtype.itemsize}) {bad}")
            lines += [f"{name}_shape[{d}] = {c_int(n)};" for d, n in enumerate(x.shape)]
        if not is_direct:
            lines.append(f"memmove({name}, {x.at}, {c_int(nbytes(x))});")
        return Argument(name=name, dtype=x.dtype, shape=most, counted=is_counted)


def _key(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _assigned(function: Function) -> set[str]:
    """Return the keys of attributes that the program assigns."""
    rows = zip(function.params[len(function.arguments) :], function.captures, strict=True)
    paths: dict[Value, str] = dict(rows)
    found: set[str] = set()
    for op in function.walk():
        if op.name == "attr.get" and op.operands[0] in paths:
            paths[op.result] = _key(paths[op.operands[0]], str(op.attrs["name"]))
        elif op.name == "attr.set" and op.operands[0] in paths:
            found.add(_key(paths[op.operands[0]], str(op.attrs["name"])))
    return found
