"""Answers questions about PyTorch's state as they are answered in a C library.

In, out: a Function. A C function records no gradient, casts nothing, gets dense tensors that are no
subclass, and calls no fused kernel of PyTorch.

    %0: bool = call_torch() {target="torch.backends.mha.get_fastpath_enabled"}
    →  %0: bool = const {value=False}
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone

ANSWERS: Final = {
    "torch.backends.mha.get_fastpath_enabled": False,
    "torch.is_autocast_enabled": False,
    "torch.is_autocast_cpu_enabled": False,
    "torch.is_grad_enabled": False,
    "torch.is_inference_mode_enabled": False,
    "F.has_torch_function": False,
    "F.has_torch_function_unary": False,
    "F.has_torch_function_variadic": False,
    "Tensor.is_nested": False,
    "Tensor.is_cuda": False,
    "Tensor.is_quantized": False,
    "Tensor.is_sparse": False,
    "torch.jit.is_scripting": False,
    "torch.jit.is_tracing": False,
}
# Ops whose result is no operand.
_MAKERS: Final = frozenset({"torch.layer_norm", "torch.rms_norm", "torch.linear", "torch.add"})


def answered(fn: Function) -> Function:
    """Return the function with constants for the questions."""
    result = clone(fn)
    made = {v for op in result.walk() if op.name in _MAKERS for v in op.results}
    _answer(result.block, frozenset(result.params), made)
    return result


def _answer(block: Block, params: frozenset[Value], made: Set[Value]) -> None:
    for k, op in enumerate(block.ops):
        for inner in op.blocks:
            _answer(inner, params, made)
        answer = _answer_to(op, params, made)
        if answer is not None:
            block.ops[k] = Op(name="const", attrs={"value": answer}, results=op.results, loc=op.loc)


def _answer_to(op: Op, params: frozenset[Value], made: Set[Value]) -> bool | None:
    if op.name == "call_torch":
        return ANSWERS.get(str(op.attrs["target"]))
    if op.name == "py.is" and all(v.type == t.TENSOR for v in op.operands):
        a, b = op.operands
        if a is b:
            return True
        others = {a, b} - params  # each parameter has memory of its own
        return False if others <= made else None
    return None
