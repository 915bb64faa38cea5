"""Calls of inner functions and lambdas of the function that is compiled.

In: a `LocalFunction`, and a call's arguments. Out: the ops of its body, in place of the call.

Invariant: it sees the variables of the function around it as they are at the call, as in Python.
"""

from __future__ import annotations

import ast
import inspect
from typing import cast

from lowtide.frontend.script.arguments import bind_python, check_count
from lowtide.frontend.script.context import Context, Frame
from lowtide.frontend.script.functions import compile_body, local_frame
from lowtide.frontend.script.node_tables import CALL_OF
from lowtide.frontend.script.nodes import Call, LocalFunction, Node


def _local_call(c: Context, callee: LocalFunction, call: Call) -> Node:
    """Return a function that stands in the one being compiled: it sees that one's variables."""
    check_count(c, call)
    outer = cast("Frame", callee.frame)
    if any(frame.source.node is callee.node for frame in c.frames):
        raise c.error(call.node, "an inner function that calls itself is not compiled", "a loop")
    signature = _signature_of(callee)
    name = getattr(callee.node, "name", "<lambda>")
    bound = bind_python(c, call.node, name, signature, call.args, call.keywords)
    depth = len(c.frames)
    c.frames.append(local_frame(outer, callee.node))
    c.frame.vars.update(bound)
    try:
        if isinstance(callee.node, ast.Lambda):
            return c.expr(callee.node.body)
        return compile_body(c)
    finally:
        del c.frames[depth:]


def _signature_of(callee: LocalFunction) -> inspect.Signature:
    a, defaults = callee.node.args, callee.defaults
    kinds = inspect.Parameter
    parameters = [
        inspect.Parameter(p.arg, kind, default=defaults.get(p.arg, kinds.empty))
        for group, kind in (
            (a.posonlyargs, kinds.POSITIONAL_ONLY),
            (a.args, kinds.POSITIONAL_OR_KEYWORD),
            ([a.vararg] if a.vararg else [], kinds.VAR_POSITIONAL),
            (a.kwonlyargs, kinds.KEYWORD_ONLY),
            ([a.kwarg] if a.kwarg else [], kinds.VAR_KEYWORD),
        )
        for p in group
    ]
    return inspect.Signature(parameters)


CALL_OF[LocalFunction] = _local_call
