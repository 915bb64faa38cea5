"""The program of one kind of call, without the branches that its arguments decide.

In: a Driver and the arguments of a call. Out: a Function that does the same for every call with
such arguments: the same sizes, and the same values of what is no tensor.

    if training: …                          y = torch.batch_norm(x, …)
    y = torch.batch_norm(x, …)        →     if y.sum() > 0: …
    if y.sum() > 0: …

What stands between two ops that could be done in chunks would part them, and libraries check much:
`nn.BatchNorm2d` asks for the dims of its input, and whether it is training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from lowtide.ir.core import Block, Function, Op, Value, clone_block, with_block
from lowtide.passes.common_subexpressions import eliminate_common_subexpressions
from lowtide.passes.constants import fold_constants
from lowtide.passes.dead_code import eliminate_dead_code
from lowtide.pipeline.driver import Driver
from lowtide.pipeline.followed import Followed

_MOST_ROUNDS: Final = 8  # branches within branches


def decided(driver: Driver, args: Sequence[Any]) -> Function:
    """See the module's text; the driver's own function where nothing is decided."""
    function = driver.function
    for _ in range(_MOST_ROUNDS):
        with torch.no_grad():
            known = Followed(driver, args).known
        if not any(_is_decided(op, known) for op in function.block.ops):
            break
        chosen = fold_constants(_with_conditions(function, known))
        function = eliminate_dead_code(eliminate_common_subexpressions(chosen))
        driver = Driver(function, tiles=driver.tiles)
    return function


def _is_decided(op: Op, known: Mapping[Value, Any]) -> bool:
    return op.name == "if" and type(known.get(op.operands[0])) is bool


def _with_conditions(function: Function, known: Mapping[Value, Any]) -> Function:
    """The conditions that are known, also of branches within, as constants before all else."""
    mapping: dict[Value, Value] = {}
    block = clone_block(function.block, mapping)
    constants: dict[Value, Op] = {}
    for v, stand_in in mapping.items():
        value = known.get(v)
        if type(value) is bool:
            made = Value(stand_in.name, stand_in.type)
            constants[stand_in] = Op(name="const", attrs={"value": value}, results=[made])
    for op in Function(function.name, block).walk():
        if op.name == "if" and op.operands[0] in constants:
            op.operands[0] = constants[op.operands[0]].result
    return with_block(function, Block(block.args, [*constants.values(), *block.ops]))
