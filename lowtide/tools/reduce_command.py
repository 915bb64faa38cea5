"""`lowtide reduce pkg.mod:fn --shape 1000x4`: reduces a program whose result differs from
PyTorch's.

In: a function or module by name, shapes. PyTorch and Lowtide run it on seeded inputs. If the
results differ, the program is run after each stage to find the first wrong one: as IR, as a
Program, as groups and as tile programs by evaluators, then compiled. Then the IR is shrunk as long
as the same stage stays wrong. Out: the stage, the reduced IR, and its inputs. Only forward passes
are compared.

    the first stage that is wrong: normalise
    def f(%a: Tensor) -> Tensor:
      %b: Tensor = torch.exp(%a)
      return(%b)
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from lowtide import compiler
from lowtide.budget.drivers import make_driver
from lowtide.codegen.executable import compile_program
from lowtide.execute import backend
from lowtide.execute.options import Options
from lowtide.ir import interpret
from lowtide.ir.core import Block, Function, Op, Value, free_values, print_function
from lowtide.ir.types import TENSOR
from lowtide.passes.dead_code import eliminate_dead_code
from lowtide.passes.run import Pass, run
from lowtide.specialise.signature import Ineligible
from lowtide.texpr.evaluate import evaluate
from lowtide.texpr.expr import Program
from lowtide.tools import interpreted as interpreted_kernels
from lowtide.tools.difference import Difference, difference
from lowtide.tools.explain_command import ArgumentFault, make_arguments, resolve, scripted

REMEDY: Final = (
    "Report it with the text above (see docs/correctness.md); `python -m lowtide.opt` prints the\n"
    "result of each stage. Until it is mended, LOWTIDE_DISABLE=1 lets PyTorch run the program."
)
CAPTURE = "source → ir"


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """The reduced program. `stage`: "" if nothing differs. `inputs`: of `function`."""

    stage: str
    function: Function
    inputs: tuple[Any, ...] = ()
    note: str = ""  # how the results differ, or that both are errors

    def __str__(self) -> str:
        if not self.stage:
            return f"nothing differs{self.note}"
        ir = print_function(self.function)
        names = re.findall(r"%([\w.]+):", ir.partition("\n")[0])
        shapes = [
            f"  %{name}: {tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
            if isinstance(x, torch.Tensor) else f"  %{name}: {x!r}"
            for name, x in zip(names, self.inputs, strict=True)
        ]  # fmt: skip
        head = f"the first stage that is wrong: {self.stage}\n{self.note}\n"
        return "\n".join((head, ir, *shapes, "", REMEDY))

    def to_dict(self) -> dict[str, str]:
        """Return the fields, for JSON."""
        ir = print_function(self.function) if self.stage else ""
        return {"stage": self.stage, "note": self.note, "ir": ir}


def reduce(target: str, shapes: str, dtypes: str) -> Reduced:
    """Reduce a function; see the module's text. Raises ArgumentFault, and LowtideError if it does
    not compile."""
    with recorded() as before:
        found = resolve(target)  # a module may trace when it is imported
    compiled: Any = scripted(target, found)
    inputs = [seeded(x, k) for k, x in enumerate(make_arguments(shapes, dtypes))]
    with recorded() as functions:
        try:
            bound = compiled.bind(tuple(inputs), {})
        except TypeError as fault:  # other arguments than the function takes
            raise ArgumentFault(
                f"{fault}; --shape gives tensors alone: write a function that has the other "
                "arguments in it"
            ) from None
        driver, values = compiled.resolve(bound)
    functions += [x for x in reversed(before) if x[0].name == driver.function.name]
    values = dict(zip(_places(driver.function), values, strict=True))
    whole = (x for x in functions if values.keys() >= {*_places(x[0])})
    function, passes = next(whole, (driver.function, compiler.SIMPLIFY))
    values = tuple(values[place] for place in _places(function))
    eager = getattr(compiled, "__wrapped__", None) or found
    wanted = outcome(eager, inputs)
    got = outcome(interpreted(function), values, len(inputs))
    if hasattr(eager, "explain") or (note := difference_text(wanted, got)) is None:
        found = reduced(function, values, passes)
        if not found.stage and isinstance(wanted, str):
            return replace(found, note=f": PyTorch {wanted}, too; do the shapes fit?")
        return found
    return Reduced(stage=CAPTURE, function=function, inputs=values, note=note)


def _places(f: Function) -> list[tuple[bool, object]]:
    """Return a key for each parameter: the number of an argument, or what it captures."""
    return [*((False, k) for k in range(len(f.arguments))), *((True, c) for c in f.captures)]


def reduced(function: Function, values: Sequence[Any], passes: Sequence[Pass]) -> Reduced:
    """Return the smallest part of a function for which the same stage is the first wrong one.
    `passes`: those that simplify it."""
    stage, note = first_wrong(function, values, passes)
    if not stage:
        return Reduced(stage="", function=function)
    found = Reduced(stage=stage, function=function, inputs=tuple(values), note=note)
    while (smaller := next(_still_wrong(found, passes), None)) is not None:
        found = smaller
    return found


def _still_wrong(found: Reduced, passes: Sequence[Pass]) -> Iterator[Reduced]:
    for function, values in smaller_ones(found.function, found.inputs):
        with contextlib.suppress(Exception):  # an invalid program
            stage, note = first_wrong(function, values, passes)
            if stage == found.stage:
                yield Reduced(stage=stage, function=function, inputs=tuple(values), note=note)


def smaller_ones(f: Function, values: Sequence[Any]) -> Iterator[tuple[Function, Sequence[Any]]]:
    """Yield smaller functions: with an earlier value as the result, with an op's result as an
    input, or one run of a block by itself, such as the last step of a loop."""
    ops = f.block.ops[:-1]
    (result,) = f.block.terminator.operands
    for k, op in enumerate(ops):
        for v in op.results:
            if v.type == TENSOR and v is not result:
                end = Op(name="return", operands=[v], loc=op.loc)
                part = Block(args=f.block.args, ops=[*ops[: k + 1], end])
                yield eliminate_dead_code(replace(f, block=part, result=v.type)), values
    env: dict[Value, Any] = dict(zip(f.params, copy.deepcopy(list(values)), strict=True))
    for k, op in enumerate(ops):
        interpret.run_op(op, env)
        if any(v.type == TENSOR and v is not result for v in op.results):
            part = Block(args=[*f.block.args, *op.results], ops=[*ops[:k], *f.block.ops[k + 1 :]])
            given = [*values, *(copy.deepcopy(env[v]) for v in op.results)]
            yield from [_without_unused(eliminate_dead_code(replace(f, block=part)), given)]
        for block in op.blocks:
            yield from _block_alone(f, block, env)


def _block_alone(
    f: Function, block: Block, env: Mapping[Value, Any]
) -> Iterator[tuple[Function, Sequence[Any]]]:
    """Yield functions of a block's ops, one for each tensor that it yields. `env`: values of its
    last run."""
    free = [v for v in free_values(block.ops) if v not in block.args]
    params = [*block.args, *free]
    if not all(v in env for v in params):  # it did not run
        return
    given = [copy.deepcopy(env[v]) for v in params]
    for v in dict.fromkeys(block.terminator.operands):
        if v.type == TENSOR:
            end = Op(name="return", operands=[v], loc=block.terminator.loc)
            part = Block(args=params, ops=[*block.ops[:-1], end])
            made = replace(f, block=part, result=v.type, defaults={}, captures=())
            yield _without_unused(eliminate_dead_code(made), given)


def _without_unused(f: Function, values: Sequence[Any]) -> tuple[Function, Sequence[Any]]:
    used = {v for op in f.walk() for v in op.operands}
    pairs = [(p, x) for p, x in zip(f.params, values, strict=True) if p in used]
    block = Block(args=[p for p, _ in pairs], ops=f.block.ops)
    return replace(f, block=block, defaults={}, captures=()), [x for _, x in pairs]


def first_wrong(
    function: Function, values: Sequence[Any], passes: Sequence[Pass]
) -> tuple[str, str]:
    """Return the first stage after which the result differs, and how; "", "" if none is wrong."""
    wanted = outcome(interpreted(function), values)
    for step in (*passes, *compiler.PREPARE):
        function = run(function, [step])
        note = difference_text(wanted, outcome(interpreted(function), values))
        if note is not None:
            return getattr(step, "__name__", "simplify"), note
    for stage, compiled in code_generators():
        backend.use(compiled)
        try:
            note = difference_text(wanted, outcome(driven(function), values))
        finally:
            backend.use(None)
        if fault := interpreted_kernels.fault():
            note = f"raises {type(fault).__name__} in a loop"
        if note is not None:
            return stage, note
    return "", ""


def code_generators() -> Iterator[tuple[str, Callable[..., Any] | None]]:
    """Yield the stages after the IR, in order, and what runs a Program as each has made it."""
    yield "specialise", _Evaluated
    for stage in interpreted_kernels.STAGES:
        # The host program is the same in all of these.
        name = "split or host" if stage == "split" else stage
        make = functools.partial(interpreted_kernels.interpreted, stage=stage)
        yield name, functools.partial(compile_program, make=make)
    yield "emit", None


def interpreted(function: Function) -> Callable[..., Any]:
    """Return a callable that runs each op by PyTorch."""
    return functools.partial(interpret.run, function)


def driven(function: Function) -> Callable[..., Any]:
    """Return a callable that runs the function compiled."""
    driver = make_driver(function, Options())

    def call(*values: Any) -> Any:
        try:
            return driver(values)
        except Ineligible:  # as in a compiled call, PyTorch runs it
            return interpret.run(function, *values)

    return call


def outcome(call: Callable[..., Any], values: Sequence[Any], count: int | None = None) -> Any:
    """Return the result of a call and its first `count` operands afterwards, or the type of its
    error."""
    given = copy.deepcopy(list(values))
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            return [call(*given), [x for x in given[:count] if isinstance(x, torch.Tensor)]]
    except Exception as error:
        return f"raises {type(error).__name__}"


def difference_text(wanted: object, got: object) -> str | None:
    """Return how the outcomes differ; None if they agree."""
    found: Difference = difference(wanted, got)
    return None if found.agrees else found.note


def seeded(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a tensor like the meta tensor x, with normal random numbers or ints 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    if x.is_floating_point() or x.is_complex():
        return torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return torch.randint(0, 2, x.shape, generator=generator).to(x.dtype)


@contextlib.contextmanager
def recorded() -> Generator[list[tuple[Function, Sequence[Pass]]]]:
    """A context that records the functions that are simplified inside, and their passes."""
    found: list[tuple[Function, Sequence[Pass]]] = []

    def record(fn: Function, passes: Sequence[Pass]) -> Function:
        if passes[-1] is compiler.SIMPLIFY[-1]:  # not to prepare it for the driver
            found.append((fn, passes))
        return run(fn, passes)

    compiler.run = record
    try:
        yield found
    finally:
        compiler.run = run


class _Evaluated:
    """Stands for compiled kernels: evaluates a Program."""

    kernels, stages, refusals = (), (), ()

    def __init__(
        self,
        program: Program,
        *,
        symbols: Sequence[str],
        scalars: Sequence[str],
        hints: Mapping[str, int],
    ) -> None:
        self.program, self.names = program, ([*program.inputs], symbols, scalars)

    def write(self) -> None:
        """Write nothing: there is no source text."""

    def reusable_inputs(self, inputs: object) -> dict[str, str]:
        """Return no inputs: the evaluator overwrites none."""
        return {}

    def __call__(self, *given: Sequence[Any]) -> list[torch.Tensor]:
        inputs, sizes, numbers = (
            dict(zip(names, values, strict=True))
            for names, values in zip(self.names, given, strict=True)
        )
        found = evaluate(self.program, inputs, sizes, numbers)
        return [found[n] for n in (*self.program.results, *self.program.checks)]
