"""Operators whose meaning has changed: what they are in a file of an older format.

In: an operator's name, and the version of a file's format. Out: how a call in it is compiled, or
None where it is as today. The rows are those of PyTorch's `operator_upgraders/version_map.cpp`.

    torch.div(i, j)                of ints, before 4: rounds towards 0
    torch.full([2], 3)             before 5: a float, whatever the value is
    torch.linspace(0, 1, None)     before 8: 100 steps

`gelu` got its argument `approximate` with version 10; its default is what it was before.
"""

from __future__ import annotations

from typing import Final

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.flow import choose
from lowtide.frontend.script.nodes import Call, Node
from lowtide.frontend.script.torch_calls import torch_call
from lowtide.frontend.torchscript import codes
from lowtide.frontend.torchscript.on_tensors import Keywords, Row, Values
from lowtide.ir import types as t
from lowtide.ir.core import Value


def before(name: str, version: int) -> Row | None:
    """Return how an operator is compiled that has changed since; None where it has not."""
    changed, row = _CHANGED.get(name, (0, None))
    return row if version < changed else None


def _division(source: str) -> Row:
    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        if len(args) > 2 or "rounding_mode" in keywords:
            return torch_call(c, call.node, source, args, keywords)

        def divided(mode: str | None) -> Value:
            named = keywords if mode is None else {**keywords, "rounding_mode": c.const(mode)}
            return c.as_value(torch_call(c, call.node, source, args, named), call.node)

        parts = [v for v in (*args, *keywords.values()) if not t.is_number(v.type)]
        if any(v.type == t.FLOAT for v in args):
            return divided(None)
        are = [torch_call(c, call.node, "Tensor.is_floating_point", [v], {}) for v in parts]
        is_float = c.as_value(are[0], call.node)
        for other in are[1:]:
            is_float = c.py(call.node, "py.or", is_float, c.as_value(other, call.node))
        return choose(c, call.node, is_float, lambda: divided(None), lambda: divided("trunc"))

    return compile_call


def _full(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    named = {k: v for k, v in keywords.items() if v.type != t.NONE}
    if "dtype" in named or "out" in named:
        named = {k: codes.decode_named(c, call.node, k, v) for k, v in named.items()}
    else:
        args = [args[0], c.py(call.node, "py.float", args[1])]
    return torch_call(c, call.node, "torch.full", args, named)


def _steps(source: str) -> Row:
    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        args = [c.const(100) if k == 2 and v.type == t.NONE else v for k, v in enumerate(args)]
        named = {
            k: codes.decode_named(c, call.node, k, v)
            for k, v in keywords.items()
            if v.type != t.NONE
        }
        return torch_call(c, call.node, source, args, named)

    return compile_call


_CHANGED: Final[dict[str, tuple[int, Row]]] = {
    "div": (4, _division("torch.div")),
    "div_": (4, _division("Tensor.div_")),
    "full": (5, _full),
    "linspace": (8, _steps("torch.linspace")),
    "logspace": (9, _steps("torch.logspace")),
}
