"""Functions made of methods of an archive's code.

In: a method that does not use its module. Out: the function.

    def forward(self, x, n): …    →    def f(x, n=2): …

torch.jit saves a function as the `forward` of an empty module, without its defaults.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from types import CodeType, FunctionType
from typing import cast

from lowtide.frontend.script.source import SOURCE, FunctionSource


def without_module(method: FunctionType, name: str, defaults: tuple[object, ...]) -> FunctionType:
    """Return the function of this name. `defaults`: of its last parameters."""
    source = cast("FunctionSource", vars(method)[SOURCE])
    node = cast("ast.FunctionDef", copy.copy(source.node))
    node.name, node.args = name, copy.copy(node.args)
    node.args.args = node.args.args[1:]
    module = compile(ast.Module([node], []), source.file, "exec", dont_inherit=True)
    code = next(c for c in module.co_consts if isinstance(c, CodeType))
    made = FunctionType(code, method.__globals__, name, defaults or None)
    made.__module__ = method.__module__
    made.__annotations__ = dict(method.__annotations__)
    setattr(made, SOURCE, dataclasses.replace(source, node=node))
    return made
