"""Calls of functions under `functools.lru_cache`.

In: the cached function, and a call. Out: the inlined body, if its result cannot be told from the
cached one; else a call by Python, which uses its cache.

    @lru_cache                               @lru_cache
    def squared(n): return n * n             def mask(n): return torch.ones(n).tril()

    squared(n)  →  py.mul(%n, %n)            mask(n)  →  py.call(%n): the same tensor each time
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, Final

from lowtide.errors import CompileError
from lowtide.frontend.script.attempts import attempt
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.nodes import Call, Node
from lowtide.frontend.script.outside import Assumptions
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Op, Value
from lowtide.ir.effects import Effects

_SEEN: Final = ~(Effects.MAKES | Effects.RAISES)


def cached_call(c: Context, obj: Any, fn: FunctionType, call: Call) -> Node:
    """Return the result of `obj(args)`, where `fn` is the cached function."""
    from lowtide.frontend.script import left_to_python  # it reads modules that read this one

    outer, start = c.assumed, len(c.builder.block.ops)
    c.assumed = Assumptions(varying=outer.varying, live=outer.live, assigned=outer.assigned)

    def compile_it() -> Value:
        given = (*call.args, *call.keywords.values())
        found = c.inline(fn, call.node, call.args, call.keywords, unpacked=call.unpacked)
        ops = list(_all_ops(c.builder.block.ops[start:]))
        is_plain = all(isinstance(v, Value) and t.is_immutable(v.type) for v in (found, *given))
        if is_plain and not c.assumed.has_data() and not any(map(_is_observable, ops)):
            assert isinstance(found, Value)
            return found
        raise c.error(call.node, "what the cache holds may be another thing")

    try:
        found = attempt(c, compile_it)
    finally:
        c.assumed, inner = outer, c.assumed
        c.assumed.log += inner.log
    if isinstance(found, CompileError):
        return left_to_python.python_call(c, obj, call, t.ANY)
    c.assumed.found = {**inner.found, **c.assumed.found}
    return found


def _all_ops(ops: Sequence[Op]) -> Iterator[Op]:
    for op in ops:
        yield op
        for block in op.blocks:
            yield from _all_ops(block.ops)


def _is_observable(op: Op) -> bool:
    """Return whether the result of the program depends on when or how often the op runs."""
    values = (*op.operands, *op.results)
    return bool(opdefs.effects_of(op) & _SEEN) or any(t.may_be_tensor(v.type) for v in values)
