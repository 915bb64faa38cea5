"""Compiles a function or method as one region that needs no library: what a C function is made of.

In: a compiled function or method, example arguments. Out: an `Entry`: the host program, the
kernels, where each size comes from, what is given and what is returned.

    f(x, y) with x: [1000, 3], y: [200, 3]     sizes s0 = x.shape[0], s1 = y.shape[0]; inputs x, y

Numbers of the module and flags of the call are constants. A size above 32 stays an argument.
Invariant: all that PyTorch would do in this process, kernels do here; else ExportError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from lowtide import config
from lowtide.codegen.executable import Executable, compile_program
from lowtide.codegen.host.program import HostProgram
from lowtide.codegen.host.region import Let, Live, Made, Output, RegionProgram
from lowtide.compiler import simplified
from lowtide.deploy.c_library.answers import answered
from lowtide.errors import ExportError, Loc
from lowtide.execute.driver import Driver
from lowtide.execute.region import Region
from lowtide.execute.standing import Standing, standing
from lowtide.ir.core import Block, Function, Op, Value
from lowtide.ir.dtypes import DType
from lowtide.ir.literals import is_literal
from lowtide.specialise.region_boundaries import static_reason
from lowtide.specialise.signature import CONSTANT, VARIES, Ineligible, Levels
from lowtide.specialise.signature import sizes as spots_of
from lowtide.texpr.index import Index

_MOST_SHOWN = 40
_NOTHING = "is no kernel"
_FREE: Final = re.compile(
    r"(?!(?:out|f)\d+$|(?:z|t|n|first|trip|lt|kernel)_|[A-Z]|model)[a-z]\w*", re.ASCII
)  # names that neither the C library nor the generated code uses
_TAKEN: Final = re.compile(
    r"""sizes|weights|workspace|workspace_given|workspace_bytes|pool|pool_or_null |
    threads|offsets|needed|fault|status|slots|i|main|auto|break|case|char |
    const|continue|default|do|double|else|enum|extern|float|for|goto|if |
    inline|int|long|register|restrict|return|short|signed|sizeof|static|struct |
    switch|typedef|union|unsigned|void|volatile|while|bool|true|false|asm |
    typeof|linux|unix|and|bitand|bitor|catch|class|compl|constexpr|decltype |
    delete|dynamic_cast|explicit|export|friend|mutable|namespace|new|noexcept |
    not|operator|or|private|protected|public|static_assert|template|this |
    thread_local|throw|try|typeid|typename|using|virtual|xor|alignas|alignof |
    nullptr|concept|requires|wchar_t""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """What the C function is given or gives: a tensor, an int or a float. `shape`: its sizes;
    `shown`: the user's name, which need not be one in C."""

    name: str
    shown: str = ""
    kind: str = "tensor"  # "tensor", "int", "float"
    dtype: DType | None = None
    shape: tuple[Index, ...] = ()
    of: str = ""  # its name in the host program
    weight: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size of the call: its symbol, the dims that have it, and the least that is taken."""

    symbol: str
    dims: tuple[str, ...]
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """See the module's text. `guards`: (index, whether it is >= 0) that the sizes must satisfy;
    `equal`: pairs that must be equal. `checks`: names of bools that must hold."""

    name: str
    executable: Executable
    sizes: tuple[Size, ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    guards: tuple[tuple[Index, bool], ...]
    equal: tuple[tuple[Index, Index], ...]
    checks: tuple[str, ...]
    numbers: Mapping[str, str]  # floats of the host program → the argument
    example: tuple[Any, ...]

    @property
    def host(self) -> HostProgram:
        """The program around the kernels."""
        return self.executable.host

    def example_sizes(self) -> list[int]:
        """Return the sizes of the example."""
        found: list[int] = []
        for s in self.sizes:
            name, _, dim = s.dims[0].partition(".shape[")
            rows = zip(self.inputs, self.example, strict=True)
            value = next(v for a, v in rows if a.shown == name)
            found.append(value.shape[int(dim[:-1])] if dim else value)
        return found


def gathered(name: str, compiled: Any, args: Sequence[Any]) -> Entry:
    """Return what the C function is made of. Raises ExportError."""
    driver, values = compiled.resolve(compiled.bind(tuple(args), {}))
    values = [v.contiguous() if isinstance(v, torch.Tensor) else v for v in values]
    function, values, given = _with_constants(driver.function, values)
    with config.override(products="kernels", kernels_only=True), torch.no_grad():
        region = _whole(function)
        region.levels = _levels(values, given)
        try:
            found = standing(region, values)
        except Ineligible as why:
            raise ExportError([(function.loc, f"it is given {why}")]) from None
        if found.reason:
            raise _left(function, found.reason, found.loc)
        return _entry(name, function, found, values, given)


def _with_constants(function: Function, values: Sequence[Any]) -> tuple[Function, list[Any], int]:
    """Return the function with constants for numbers that it captures, and for flags and strings
    that it is given; the values of its parameters; and how many of them the caller gives."""
    count = len(function.arguments)
    kept: list[tuple[Value, Any]] = []
    ops: list[Op] = []
    given = 0
    for k, (param, value) in enumerate(zip(function.params, values, strict=True)):
        is_argument = k < count
        is_number = type(value) in (int, float)
        if is_literal(value) and not (is_argument and is_number):
            ops.append(Op(name="const", attrs={"value": value}, results=[param], loc=function.loc))
            continue
        if not isinstance(value, torch.Tensor) and not (is_argument and is_number):
            what = f"`{param.name}` is a {type(value).__name__}"
            raise ExportError([(function.loc, f"{what}, which has no C type")])
        if isinstance(value, torch.Tensor):
            value = value.detach().contiguous()  # what is given to C is
        kept.append((param, value))
        given += is_argument
    block = Block([p for p, _ in kept], [*ops, *function.block.ops])
    captures = tuple(str(p.name) for p, _ in kept[given:])
    made = simplified(answered(replace(function, block=block, captures=captures)))
    return made, [v for _, v in kept], given


def _whole(function: Function) -> Region:
    """Return all of the function as a region. Raises ExportError."""
    region = Driver(function).plan.region(0)
    if region is None:
        raise _left(function, _NOTHING, function.loc)
    return region


def _levels(values: Sequence[Any], given: int) -> Levels:
    """Return levels by which sizes above 32 of what the caller gives may be anything from 2 on, and
    those of weights are constants."""
    return {
        spot: VARIES if spot.place.position < given else CONSTANT
        for spot, n in spots_of(values)
        if n > 32 or spot.place.position >= given
    }


def _left(function: Function, reason: str, loc: Loc) -> ExportError:
    """Return the error: where the region ends, and all else that is certainly no kernel."""
    others = [
        (op.loc, f"`{op.attrs.get('target', op.name)}` {why}")
        for op in function.walk()
        if op.name != "raise" and (why := static_reason(op)) and op.loc != loc
    ]
    first = [] if reason == _NOTHING and others else [(loc, f"an op {reason}")]
    return ExportError([*first, *others][:_MOST_SHOWN])


def _entry(
    name: str,
    function: Function,
    found: Standing,
    values: Sequence[Any],
    given: int,
) -> Entry:
    host = found.host
    assert host is not None
    around: RegionProgram = host.around
    _check_around(function, around)
    hints = dict(zip(host.symbols, [found.numbers[n] for n in host.symbols], strict=True))
    executable = compile_program(
        host.program, symbols=host.symbols, scalars=host.scalars, hints=hints
    )
    kernels = around.kernels
    inputs = _inputs(function, kernels, executable, values, given, found)
    outputs = _outputs(function, around, executable)
    checks = tuple(executable.host.results[len(outputs) :]) if kernels is not None else ()
    return Entry(
        name=name,
        executable=executable,
        sizes=tuple(
            Size(symbol=n, dims=tuple(found.dims.get(n, ())), least=found.least[n])
            for n in found.numbers
        ),
        inputs=inputs,
        outputs=outputs,
        guards=tuple(found.guards),
        equal=tuple((a, b) for a, b, _ in host.program.equalities),
        checks=checks,
        numbers=dict(zip(host.scalars, _numbers(function, kernels), strict=True)),
        example=tuple(values),
    )


def _check_around(function: Function, around: RegionProgram) -> None:
    """Raise ExportError for what happens outside of kernels."""
    reasons: list[str] = []
    if around.sizes or around.before:
        reasons.append("it computes numbers outside of kernels; compute them in tensors")
    if not all(isinstance(s, Let) for s in around.after):
        reasons.append("it returns a view; return a copy, `.clone()`")
    if around.writes:
        reasons.append("it writes into a tensor that it is given; return the new value")
    if reasons:
        raise ExportError([(function.loc, why) for why in reasons])


def _inputs(
    function: Function,
    kernels: Any,
    executable: Executable,
    values: Sequence[Any],
    given: int,
    found: Standing,
) -> tuple[Argument, ...]:
    read = [x.position for x in kernels.inputs] if kernels is not None else []
    names = dict(zip(read, executable.host.inputs, strict=True))
    made: list[Argument] = []
    labels = _labels(function)
    for k, (param, value) in enumerate(zip(function.params, values, strict=True)):
        label, shown = labels[k], param.name or "_"
        if isinstance(value, torch.Tensor):
            held = executable.host.inputs.get(names.get(k, ""))
            made.append(Argument(
                name=label,
                shown=shown,
                dtype=found.dtypes[k],
                shape=held.shape if held is not None else found.shapes[k],
                of=names.get(k, ""),
                weight=None if k < given else value.detach(),
            ))  # fmt: skip
        else:
            made.append(Argument(name=label, shown=shown, kind=type(value).__name__))
    return tuple(made)


def _outputs(
    function: Function, around: RegionProgram, executable: Executable
) -> tuple[Argument, ...]:
    flat: list[Any] = []
    made_before = {s.name: s.value for s in around.after if isinstance(s, Let)}

    def add(x: Any) -> None:
        if isinstance(x, Made):
            x = made_before[x.name]
        elems = getattr(x, "elems", None)
        if elems is not None:
            for e in elems:
                add(e)
        else:
            flat.append(x)

    for x in around.results:
        add(x)
    made: list[Argument] = []
    for k, x in enumerate(flat):
        if not isinstance(x, Output):
            what = "an argument as it is" if isinstance(x, Live) else "a number"
            raise ExportError([(function.loc, f"it returns {what}; return a tensor of its own")])
        of = executable.host.results[x.number]
        d = executable.program.defs[of]
        made.append(
            Argument(name=f"out{k}", kind="tensor", dtype=d.dtype, shape=tuple(d.shape), of=of)
        )
    if len({a.of for a in made}) != len(made):
        raise ExportError([(function.loc, "it returns one tensor twice; return a copy")])
    return tuple(made)


def _numbers(function: Function, kernels: Any) -> list[str]:
    names: list[str] = []
    labels = _labels(function)
    for x in kernels.numbers if kernels is not None else ():
        if not isinstance(x, Live):
            raise ExportError([(function.loc, "it computes a float outside of kernels")])
        names.append(labels[x.position])
    return names


def _labels(function: Function) -> list[str]:
    """Return the names in C of what the function is given."""
    found: list[str] = []
    for k, param in enumerate(function.params):
        name = param.name or f"x{k}"
        if not _FREE.fullmatch(name) or _TAKEN.fullmatch(name):
            name = "arg_" + re.sub(r"[^A-Za-z0-9_]", "_", name)
        while name in found:
            name += "_"
        found.append(name)
    return found
