"""A module's special methods: those behind brackets, `len`, `in` and `for`.

In: a ModuleRef and the name of a special method. Out: the method's body, or None where the class
has no such method of its own; PyTorch's containers are for `module_containers`.

    self.vocab[word]    →  the body of its __getitem__
    for w in self.vocab →  over what stands in `return iter(…)` of its __iter__
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from types import FunctionType

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.node_tables import CALL_OF
from lowtide.frontend.script.nodes import BoundMethod, Call, ModuleRef, Node
from lowtide.frontend.script.source import unwrap


def call_own(
    c: Context, node: ast.AST, found: Node, name: str, args: Sequence[Node] = ()
) -> Node | None:
    """Compile `module.name(*args)`, if the user's class defines the method; else return None."""
    if not isinstance(found, ModuleRef):
        return None
    fn = inspect.getattr_static(type(found.module), name, None)
    fn = unwrap(fn) if callable(fn) else fn
    if not isinstance(fn, FunctionType) or fn.__module__.startswith("torch.nn.modules."):
        return None
    place = ast.copy_location(ast.Call(ast.Constant(None), [], []), node)
    return CALL_OF[BoundMethod](c, BoundMethod(fn, found), Call(node=place, args=list(args)))


def make_iterator(c: Context, call: Call) -> Node:
    """Compile `iter(x)` in an `__iter__` as x itself: a loop reads it once."""
    if c.frame.fn.__name__ != "__iter__" or len(call.args) != 1:  # pyright: ignore[reportFunctionMemberAccess]
        raise c.error(
            call.node,
            "iter() is compiled in `__iter__` only",
            "a loop over it, or a list and an index",
        )
    return call.args[0]
