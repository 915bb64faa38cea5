"""Prints ops that exported C expresses by other ops: those of `composed`, and ops on narrow ints.

In: an op outside of any region, its operands (see `values`). Out: its results; None if the op is
neither of these. Statements are appended to `Flow.lines`.

    x.median(dim=0)             the statements of `composed.median` with dim = 0
    pcm.float()                 pcm is copied to int32, which a kernel converts
    (x * 99).to(torch.int16)    a kernel computes int32, whose low 16 bits are copied
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import torch

from lowtide.api.script import script
from lowtide.c_library import composed, composed_images, tensor_ops
from lowtide.c_library.answers import answered
from lowtide.c_library.flow import BROKEN, Env, Flow
from lowtide.c_library.regions import concrete
from lowtide.c_library.values import NARROW, Refused, Tensor, c_int, of_torch
from lowtide.c_library.written import op_written
from lowtide.codegen.host.c_driver import CTYPES
from lowtide.compiler import simplified
from lowtide.execute.block_plan import BlockPlan
from lowtide.execute.region_state import NO_ALIASING
from lowtide.ir import dtypes, interpret
from lowtide.ir.core import Block, Function, Op, Value
from lowtide.ir.dtypes import DType
from lowtide.texpr.index import product
from lowtide.torch_private.pytree import leaves

_MOST_DEPTH: Final = 4
_MODULES: Final = (composed, composed_images)  # which fill the table
_LITERALS: Final = (bool, int, float, str, torch.dtype)


class Inlined(Flow):
    """See the module's text. `function`: the one that is being printed, exported or inlined."""

    function: Function
    depth = 0

    def plan_of(self, function: Function) -> BlockPlan:
        """Return the plan of a function's block."""
        return BlockPlan(
            function.block, function.name, function.params, NO_ALIASING, frozenset(), frozenset()
        )

    def composed(self, op: Op, given: Sequence[Any]) -> list[object] | None:
        """Print the function that expresses an op; return its results, None if no function fits.
        Raises Refused."""
        target = str(op.attrs.get("target", op.name))
        written = op_written(target)
        if written is None or self.depth >= _MOST_DEPTH:
            return None
        bound = _bound(written, op, given)
        if bound is None:
            return None
        reasons = dict(self.frame.reasons)
        found = self.inlined(written, bound)
        inner = [what for key in self.frame.reasons if key not in reasons for what in [key[1]]]
        if inner or found is BROKEN:
            self.frame.reasons.clear()
            self.frame.reasons.update(reasons)
            raise Refused(f"has no C here: {inner[0] if inner else 'it cannot be followed'}")
        many = isinstance(found, tuple) and len(op.results) > 1
        return list(cast("tuple[object, ...]", found)) if many else [found]

    def inlined(self, written: Callable[..., Any], given: Sequence[Any]) -> Any:
        """Print a Python function; return its result, BROKEN if an op was refused."""
        examples = tuple(concrete(self.around, x) for x in given)
        constants = [x is None or isinstance(x, _LITERALS) for x in given]
        function = _function(written, examples, constants)
        outer, self.function = self.function, function
        self.depth += 1
        try:
            values = [x for x, is_constant in zip(given, constants, strict=True) if not is_constant]
            env: Env = dict(zip(function.params, values, strict=True))
            (found,) = self.block(self.plan_of(function), env)
            return found
        finally:
            self.function = outer
            self.depth -= 1

    # -- ints of 8 and 16 bits --

    def widened(self, op: Op, given: Sequence[Any]) -> list[object] | None:
        """Print an op on 8- or 16-bit ints as one on int32, and narrow its results. Return None for
        other ops. Raises Refused."""
        is_narrow = any(
            (isinstance(x, Tensor) and x.dtype in NARROW) or
            (isinstance(x, torch.dtype) and of_torch(x) in NARROW)
            for x in given
        )  # fmt: skip
        if not is_narrow or op.blocks or op.name == "mutate":
            return None
        env = {v: concrete(self.around, x) for v, x in zip(op.operands, given, strict=True)}
        try:
            interpret.run_op(op, env)
        except Exception as error:
            raise Refused(f"of 8- or 16-bit ints: {error}") from None
        expected = [env[r] for r in op.results]
        if not any(isinstance(x, torch.Tensor) for x in leaves(expected)):
            return None  # gives only sizes
        wide = [
            self.cast(x, dtypes.i32) if isinstance(x, Tensor) and x.dtype in NARROW
            else torch.int32 if isinstance(x, torch.dtype) and of_torch(x) in NARROW else x
            for x in given
        ]  # fmt: skip
        args = [Value(v.name, v.type) for v in op.operands]
        results = [Value(r.name, r.type) for r in op.results]
        consts = [(v, x) for v, x in zip(args, wide, strict=True) if isinstance(x, torch.dtype)]
        ops = [
            *(Op(name="const", attrs={"value": x}, results=[v], loc=op.loc) for v, x in consts),
            Op(name=op.name, operands=args, attrs=op.attrs, results=results, loc=op.loc),
            Op(name="yield", operands=results, loc=op.loc),
        ]
        inner = self.plan_of(self.function).inner(Block([], ops))
        inner.is_repeated = False
        kept: Env = {
            v: x for v, x in zip(args, wide, strict=True) if not isinstance(x, torch.dtype)
        }
        found = self.block(inner, kept)
        return [self.narrowed(x, e) for x, e in zip(found, expected, strict=True)]

    def narrowed(self, x: object, example: object) -> object:
        """Return a result converted to the dtype of `example`, which is PyTorch's."""
        if isinstance(x, Tensor) and isinstance(example, torch.Tensor):
            dtype = of_torch(example.dtype)
            if dtype is x.dtype:
                return x
            if dtype is None or x.dtype is not dtypes.i32 or dtype not in NARROW:
                raise Refused(f"gives a tensor of {example.dtype}")
            return self.cast(x, dtype)
        if isinstance(x, tuple | list):
            rows = zip(cast("Sequence[object]", x), cast("Sequence[object]", example), strict=True)
            made = [self.narrowed(a, b) for a, b in rows]
            return tuple(made) if isinstance(x, tuple) else made
        return x

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        """Return a copy in another int type; a narrower one keeps the low bits."""
        made = tensor_ops.memory(self.frame, dtype, x.shape)
        self.frame.touch(x, made)
        index = self.frame.fresh("i_")
        to, of = CTYPES[dtype.name], CTYPES[x.dtype.name]
        self.lines += [
            tensor_ops.declared(made),
            f"for (int64_t {index} = 0; {index} < {c_int(product(x.shape))}; {index}++)",
            f"  (({to} *)(void *){made.at})[{index}] = ({to})((const {of} *)(const void *)"
            f"{x.at})[{index}];",
        ]
        return made


@functools.cache
def _scripted(written: Callable[..., Any]) -> Any:
    return script(written)


def _function(
    written: Callable[..., Any], examples: tuple[Any, ...], constants: Sequence[bool]
) -> Function:
    """Return the Function for arguments like `examples`, some of which it has as constants."""
    function: Function = _scripted(written).resolve(examples)[0].function
    ops: list[Op] = []
    kept: list[Value] = []
    for param, x, is_constant in zip(function.params, examples, constants, strict=True):
        if is_constant:
            ops.append(Op(name="const", attrs={"value": x}, results=[param], loc=function.loc))
        else:
            kept.append(param)
    block = Block(kept, [*ops, *function.block.ops])
    return simplified(answered(replace(function, block=block)))


def _bound(written: Callable[..., Any], op: Op, given: Sequence[Any]) -> list[Any] | None:
    """Return the arguments of the function, defaults included; None if the op's do not fit it."""
    kwnames = cast("tuple[str, ...]", op.attrs.get("kwnames", ()))
    count = len(given) - len(kwnames)
    try:
        found = inspect.signature(written).bind(
            *given[:count], **dict(zip(kwnames, given[count:], strict=True))
        )
    except TypeError:
        return None
    found.apply_defaults()
    return list(found.arguments.values())
