"""The program of one kind of call, without the branches that its arguments decide.

In: a Driver and the arguments of a call. Out: a Function that does the same for every call with
such arguments: the same sizes, and the same values of what is no tensor.

    if training: …                          y = torch.batch_norm(x, …)
    y = torch.batch_norm(x, …)        →     if y.sum() > 0: …
    if y.sum() > 0: …

What stands between two ops that could be done in chunks would part them, and libraries check much:
`nn.BatchNorm2d` asks for the dims of its input, and whether it is training.

Always holds: a condition is decided only where it follows from what plans are kept by: sizes, which
arguments are None, and numbers, truths and texts among them. Gradients, devices, and whether two
names mean one tensor are for the run to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import torch

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone_block, with_block
from lowtide.passes.common_subexpressions import eliminate_common_subexpressions
from lowtide.passes.constants import fold_constants
from lowtide.passes.dead_code import eliminate_dead_code
from lowtide.pipeline.budget.kept import kept_values
from lowtide.pipeline.driver import Driver
from lowtide.pipeline.followed import Followed

_PLAIN: Final = (bool, int, float, str, type(None))
_PYTHON: Final = ("const", "py", "math", "tuple")
_SIZES: Final = (
    "torch.dim", "torch.shape", "torch.size", "torch.size.dim", "torch.numel", "torch.len",
)  # fmt: skip
_NONE_TESTS: Final = ("py.is", "py.is_not")


def decided(driver: Driver, args: Sequence[Any]) -> Function:
    """See the module's text; the driver's own function where nothing is decided."""
    function = driver.function
    while True:  # branches within branches; each round leaves fewer
        with torch.no_grad():
            followed = Followed(driver, args)
        known = _decidable(function, followed, kept_values(function, args))
        if not any(op.name == "if" and op.operands[0] in known for op in function.block.ops):
            return function
        chosen = fold_constants(_with_conditions(function, known))
        function = eliminate_dead_code(eliminate_common_subexpressions(chosen))
        driver = Driver(function, tiles=driver.tiles)


def _decidable(function: Function, followed: Followed, kept: Set[Value]) -> dict[Value, bool]:
    """The truths that are the same in all such calls."""
    known = followed.known
    plain = {v for v in function.params if type(known.get(v)) in _PLAIN}
    for op in function.block.ops:
        if all(v in known for v in op.results) and _follows(op, plain, function, followed, kept):
            plain.update(op.results)
    values = ((v, known[v]) for v in plain)
    return {v: value for v, value in values if type(value) is bool}


def _follows(
    op: Op, plain: set[Value], function: Function, followed: Followed, kept: Set[Value]
) -> bool:
    """Is what the op gives known from plain values, sizes and which arguments are None alone?"""
    if op.name in _SIZES:
        x, *others = op.operands
        return not followed.has_guessed and x in kept and plain.issuperset(others)
    if op.name in _NONE_TESTS and any(v.type == t.NONE for v in op.operands):
        return all(v.type == t.NONE or v in function.params for v in op.operands)
    is_python = op.name.partition(".")[0] in _PYTHON and opdefs.is_shareable(op)
    return is_python and plain.issuperset(op.operands)


def _with_conditions(function: Function, known: Mapping[Value, bool]) -> Function:
    """The conditions that are known, also of branches within, as constants before all else."""
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
