"""Functions for Python of what an archive's code defines, whose code is never the archive's.

In: the AST of a `def`. Out: a function of the same arguments, which calls the compiled function.

    def forward(self, x, n): …    →    def forward(self, x, n): return <call>(self, x, n)

torch.jit saves a function as the `forward` of an empty module, without its defaults;
`without_module` gives it back.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final, cast

from lowtide.frontend.script.source import SOURCE, FunctionSource

CALL: Final = " call"  # the outer name of what calls a compiled function: none of an archive's


def made(
    node: ast.FunctionDef,
    path: str,
    outer: dict[str, Any],
    file: str,
    defaults: tuple[object, ...] | None,
) -> FunctionType:
    """Return the function. `path`: unique among those of these outer names."""
    caller = f"call {path}"
    found = FunctionType(_calling(node, caller, file), outer, node.name, defaults or None)
    call = cast("Callable[..., object]", outer[CALL])
    outer[caller] = lambda *args, **named: call(found, *args, **named)
    return found


def without_module(method: FunctionType, name: str, defaults: tuple[object, ...]) -> FunctionType:
    """Return the function of this name. `defaults`: of its last parameters."""
    source = cast("FunctionSource", vars(method)[SOURCE])
    node = cast("ast.FunctionDef", copy.copy(source.node))
    node.name, node.args = name, copy.copy(node.args)
    node.args.args = node.args.args[1:]
    path = f"{method.__module__}.{method.__qualname__} as {name}"
    found = made(node, path, method.__globals__, source.file, defaults)
    found.__module__ = method.__module__
    found.__annotations__ = dict(method.__annotations__)
    setattr(found, SOURCE, dataclasses.replace(source, node=node))
    return found


def _calling(node: ast.FunctionDef, caller: str, file: str) -> CodeType:
    """Return the code of a function of these arguments that passes them to `caller`."""
    args = node.args
    given: list[ast.expr] = [ast.Name(a.arg, ast.Load()) for a in args.args]
    named = [ast.keyword(a.arg, ast.Name(a.arg, ast.Load())) for a in args.kwonlyargs]
    body = ast.Return(ast.Call(ast.Name(caller, ast.Load()), given, named))
    plain = ast.FunctionDef(node.name, args, [body], [], None)
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(plain, node)], []))
    code = compile(module, file, "exec", dont_inherit=True)
    return next(x for x in code.co_consts if isinstance(x, CodeType))
