"""`torch.utils.checkpoint.checkpoint(fn, x)`: `fn` inlined, in a block that is recomputed.

In: the call. Out: a `with` of a `Recomputed` around the body of `fn`.

    y = checkpoint(self.block, x, use_reentrant=False)

    %m: Any = call_torch() {target="lowtide.Recomputed", kwnames=()}
    %y: Tensor = with(%m)
      block(%_: Any): …

The recomputation draws the same random numbers, whatever `preserve_rng_state` says. As in PyTorch,
the reentrant form records nothing where no tensor among the arguments requires a gradient.
"""

from __future__ import annotations

from typing import Final, cast

import torch.utils.checkpoint

from lowtide.frontend.script.builtin_calls import BUILTINS
from lowtide.frontend.script.context import UNKNOWN, Context
from lowtide.frontend.script.flow import run_inside
from lowtide.frontend.script.nodes import Call, Node
from lowtide.ir import recomputed
from lowtide.ir import types as t
from lowtide.ir.core import Value

_RESULT: Final = "<checkpointed>"  # a variable's name that no program has
_IGNORED: Final = ("determinism_check", "debug", "early_stop", "preserve_rng_state")


def _checkpoint(c: Context, call: Call) -> Node:
    callee, *args = call.args
    keywords = {k: v for k, v in call.keywords.items() if k not in _IGNORED}
    if "context_fn" in keywords:
        raise c.error(call.node, "checkpoint() with `context_fn` is not compiled", "without it")
    flag = c.as_value(keywords.pop("use_reentrant", c.const(True)), call.node)
    reentrant = c.constant(flag)
    tensors = [a for a in args if isinstance(a, Value)] if reentrant is not False else []
    kwnames: tuple[str, ...] = ()
    if reentrant is UNKNOWN or (not tensors and reentrant is not False):
        tensors = [*tensors, flag if reentrant is UNKNOWN else c.const(True)]
        kwnames = ("reentrant",)
    manager = c.dynamic("call_torch", tensors, target=recomputed.TARGET, kwnames=kwnames)
    parts = [_RESULT]  # of a tuple each one: gradients go through tensors alone
    is_tuple = False

    def body() -> None:
        nonlocal is_tuple
        found = c.as_value(c.call_function(call.node, callee, args, keywords), call.node)
        if not isinstance(found.type, t.TupleType) or found.type.names:
            c.frame.vars[_RESULT] = found
            return
        is_tuple = True
        parts[:] = [f"{_RESULT}{k}" for k in range(len(found.type.elems))]
        for k, elem in enumerate(found.type.elems):
            c.frame.vars[parts[k]] = c.builder.emit("tuple.get", [found], [elem], index=k).result

    entered = Value("", t.ANY)
    c.builder.born([entered])
    run_inside(c, "with", [manager], [entered], body)
    made = [cast("Value", c.frame.vars.pop(name)) for name in parts]
    return c.builder.tuple_make(made) if is_tuple else made[0]


BUILTINS[torch.utils.checkpoint.checkpoint] = _checkpoint
