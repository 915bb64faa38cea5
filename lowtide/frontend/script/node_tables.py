"""Tables of handlers for compile-time nodes: attributes, calls, items, elements.

In: the type of a node. Out: the function that compiles it. The modules that make such nodes fill
the tables; `expressions`, `calls`, `subscripts`, `iteration` and `targets` look there first.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from lowtide.frontend.script.nodes import Call, Node
from lowtide.ir.core import Value

# The first argument of each is the Context.
ATTRIBUTE_OF: dict[type, Callable[[Any, ast.AST, Any, str], Node]] = {}
STORE_OF: dict[type, Callable[[Any, ast.AST, Any, str, Node], None]] = {}
CALL_OF: dict[type, Callable[[Any, Any, Call], Node]] = {}
ITEM_OF: dict[type, Callable[[Any, ast.Subscript, Any], Node]] = {}
ELEMENTS_OF: dict[type, Callable[[Any, ast.AST, Any], Sequence[Node]]] = {}
VALUE_OF: dict[type, Callable[[Any, ast.AST, Any], Value]] = {}
