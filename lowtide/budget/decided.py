"""Specialises a program to one kind of call: takes the branches that the arguments decide.

In: a Driver and the arguments of a call. Out: a Function that does the same for every call with
the same sizes, and the same values of all arguments that are not tensors.

    if training: …                          y = torch.batch_norm(x, …)
    y = torch.batch_norm(x, …)        →     if y.sum() > 0: …
    if y.sum() > 0: …

An `if` between two ops would keep them out of one chunk, and libraries have many: `nn.BatchNorm2d`
checks the dims of its input, and whether it is training.

`with_unrolled_loops` unrolls loops as well, so that one axis cuts all steps, or single steps are
recomputed.

    for _ in range(3):                      y1 = x + gelu(x @ a) @ b
        x = x + gelu(x @ a) @ b       →     y2 = y1 + gelu(y1 @ a) @ b
                                            …

Invariant: a condition, or a number of steps, is decided only if it follows from the key of the
plan: sizes, which arguments are None, and the numbers, bools and strings among them. Gradients,
devices, and the identity of tensors are decided at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import torch

from lowtide.budget.loops import is_counted
from lowtide.budget.meta_interpreter import MetaInterpreter
from lowtide.budget.plan_key import fixed_values
from lowtide.execute.driver import Driver
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone_block, clone_op, walk, with_block
from lowtide.passes.common_subexpressions import eliminate_common_subexpressions
from lowtide.passes.constants import fold_constants
from lowtide.passes.dead_code import eliminate_dead_code
from lowtide.passes.ir_queries import make_constant, makers_of
from lowtide.specialise.signature import SMALL

_PLAIN: Final = (bool, int, float, str, type(None))
_PYTHON: Final = ("const", "py", "math", "tuple")
_SIZES: Final = (
    "torch.dim", "torch.shape", "torch.size", "torch.size.dim", "torch.numel", "torch.len",
)  # fmt: skip
_NONE_TESTS: Final = ("py.is", "py.is_not")
_MOST_OPS: Final = 400  # of a program with unrolled loops


def decided(driver: Driver, args: Sequence[Any]) -> Function:
    """Return the specialised function; the driver's own function if nothing is decided."""
    function = driver.function
    while True:  # branches within branches; each round leaves fewer
        known = {v: x for v, x in _decidable(driver, args).items() if type(x) is bool}
        if not any(op.name == "if" and op.operands[0] in known for op in function.block.ops):
            return function
        chosen = fold_constants(_with_conditions(function, known))
        function = eliminate_dead_code(eliminate_common_subexpressions(chosen))
        driver = Driver(function, tiles=driver.tiles)


def with_unrolled_loops(driver: Driver, args: Sequence[Any]) -> Function:
    """Return the function with unrolled loops; the driver's own if there is none. Loops of more
    than `SMALL` steps, or of more than `_MOST_OPS` ops in all, stay."""
    function = driver.function
    while True:  # loops within loops
        makers = makers_of(function)
        trips = _decidable(driver, args)
        ops: list[Op] = []
        mapping: dict[Value, Value] = {}
        for op in function.block.ops:
            count = trips.get(op.operands[0]) if op.name == "loop" else None
            is_short = type(count) is int and count <= SMALL and is_counted(op, makers)
            steps = count if is_short else 0
            ops += _steps(op, steps, mapping) if steps else [clone_op(op, mapping)]
        count = len(list(walk(Block([], ops))))
        if count > _MOST_OPS or len(ops) == len(function.block.ops):
            return function
        made = fold_constants(with_block(function, Block(function.block.args, ops)))
        function = eliminate_dead_code(eliminate_common_subexpressions(made))
        driver = Driver(function, tiles=driver.tiles)


def _steps(loop: Op, count: int, mapping: dict[Value, Value]) -> list[Op]:
    """Return the ops of all steps. Adds the loop's results to `mapping`."""
    body = loop.blocks[0]
    index, *arguments = body.args
    carried = [mapping.get(v, v) for v in loop.operands[2:]]
    ops: list[Op] = []
    for k in range(count):
        step = Value(index.name, index.type)
        ops.append(make_constant(step, k, loop))
        known = {**mapping, index: step, **dict(zip(arguments, carried, strict=True))}
        ops += [clone_op(op, known) for op in body.ops[:-1]]
        carried = [known.get(v, v) for v in body.terminator.operands[1:]]
    mapping.update(zip(loop.results, carried, strict=True))
    return ops


def _decidable(driver: Driver, args: Sequence[Any]) -> dict[Value, Any]:
    """Return the plain values that are the same in all calls with this key."""
    with torch.no_grad():
        interpreted = MetaInterpreter(driver, args)
    function, known = driver.function, interpreted.known
    kept = fixed_values(function, args)
    plain = {v for v in function.params if type(known.get(v)) in _PLAIN}
    for op in function.block.ops:
        if all(v in known for v in op.results) and _follows(op, plain, function, interpreted, kept):
            plain.update(op.results)
    return {v: known[v] for v in plain}


def _follows(
    op: Op, plain: set[Value], function: Function, interpreted: MetaInterpreter, kept: Set[Value]
) -> bool:
    """Return whether the op's results follow from plain values, sizes and None-ness alone."""
    if op.name in _SIZES:
        x, *others = op.operands
        return not interpreted.has_guessed and x in kept and plain.issuperset(others)
    if op.name in _NONE_TESTS and any(v.type == t.NONE for v in op.operands):
        return all(v.type == t.NONE or v in function.params for v in op.operands)
    is_python = op.name.partition(".")[0] in _PYTHON and opdefs.is_shareable(op)
    return is_python and plain.issuperset(op.operands)


def _with_conditions(function: Function, known: Mapping[Value, bool]) -> Function:
    """Add the decided conditions, of nested branches too, as constants at the beginning."""
    mapping: dict[Value, Value] = {}
    block = clone_block(function.block, mapping)
    constants: dict[Value, Op] = {}
    for v, value in known.items():
        stand_in = mapping[v]
        made = Value(stand_in.name, stand_in.type)
        constants[stand_in] = Op(name="const", attrs={"value": value}, results=[made])
    for op in Function(function.name, block).walk():
        if op.name == "if" and op.operands[0] in constants:
            op.operands[0] = constants[op.operands[0]].result
    return with_block(function, Block(block.args, [*constants.values(), *block.ops]))
