"""Tensors that the program differentiates, so that each must be a tensor of PyTorch's graph.

In: a Function. Out: the tensors that it passes to `autograd.grad`, `backward`, `retain_grad`, a
hook, or a Python function. A region has to end after the op that makes such a tensor.

    %vec: Tensor = torch.sub(%a, %b, %1)        a region ends here, and the next one reads %vec
    %e: Tensor = torch.sum(%vec, …)
    %g = call_torch(%es, %vecs) {"torch.autograd.grad"}

Why: a region is one node of the graph. If one region computed both %vec and %e, the graph would
lead from %a and %b to %e, but not from %vec to %e. The gradient of %vec would be None or
incomplete.
"""

from __future__ import annotations

from typing import Final

from lowtide.ir.aliases import holds_tensors, is_fresh
from lowtide.ir.core import Block, Function, Op, Value, walk

_ASKS: Final = frozenset(
    (
        *("torch.autograd.grad", "torch.autograd.backward", "Tensor.backward", "Tensor.grad"),
        *("Tensor.retain_grad", "Tensor.register_hook"),
        *("Tensor.register_post_accumulate_grad_hook",),
    )
)
GOES_ON: Final = "goes_on"  # of a `return`: Python runs the rest of the function
_PYTHON: Final = ("py.call", "py.call_method")  # it may ask for gradients of what it is given
_APPLY: Final = "torch.autograd.function.Function.apply"  # is a node of the graph itself
_HOLDING: Final = ("tuple.make", "list.make", "dict.make", "cast")
_STRUCTURE: Final = (*_HOLDING, "tuple.get", "list.get", "unpack", "const")
_FAMILIES: Final = ("list", "dict", "set", "attr")


def differentiated(fn: Function) -> frozenset[Value]:
    """Tensors after whose making a region has to end. Too many of them cost time, no more."""
    asking = [v for op in fn.walk() if _asks(op) for v in op.operands]
    end = fn.block.terminator
    if not asking and GOES_ON not in end.attrs:
        return frozenset()
    sources = _Sources(fn)
    found = sources.of(asking)
    if GOES_ON in end.attrs:
        used = {
            v for op in fn.walk() if not (op is end or op.name in _HOLDING) for v in op.operands
        }
        found |= sources.of(end.operands) & used
    return frozenset(found) - {v for op in fn.walk() if op.name in _STRUCTURE for v in op.results}


def sources_of(fn: Function, values: list[Value]) -> set[Value]:
    """Return all values that the given ones may be, may hold, or may be parts of."""
    return _Sources(fn).of(values) if values else set()


def makes_within(op: Op, values: frozenset[Value]) -> bool:
    """Return whether a block of the op makes one of the values."""
    inner = (o for block in op.blocks for o in walk(block))
    return any(not values.isdisjoint(o.results) for o in inner)


def _asks(op: Op) -> bool:
    if op.name in _PYTHON:
        tensors = {v for v in op.operands if holds_tensors(v)}
        return len(tensors) > 1 and _APPLY not in str(op.attrs.get("target"))
    return op.attrs.get("target") in _ASKS


class _Sources:
    """Finds the values that a value may be, or may contain."""

    def __init__(self, fn: Function) -> None:
        self.made: dict[Value, tuple[Op, int]] = {}
        self.given: dict[Value, list[Value]] = {}  # what blocks are given
        self.grown: dict[Value, list[Value]] = {}  # what containers are changed with
        self._read(fn.block)

    def _read(self, block: Block) -> None:
        for op in block.ops:
            self.made.update((v, (op, k)) for k, v in enumerate(op.results))
            if op.name.partition(".")[0] in _FAMILIES and len(op.operands) > 1:
                self.grown.setdefault(op.operands[0], []).extend(op.operands[1:])
            for inner in op.blocks:
                if op.name == "loop":
                    carried = op.operands[2:], inner.terminator.operands[1:]
                    for arg, *values in zip(inner.args[1:], *carried, strict=False):
                        self.given.setdefault(arg, []).extend(values)
                else:
                    for arg, value in zip(inner.args, op.operands, strict=False):
                        self.given.setdefault(arg, []).append(value)
                self._read(inner)

    def of(self, values: list[Value]) -> set[Value]:
        """Return the values, and all that they may be or contain."""
        found, waiting = set[Value](), list(values)
        while waiting:
            v = waiting.pop()
            if v in found or not holds_tensors(v):
                continue
            found.add(v)
            waiting += self.given.get(v, ())
            waiting += self.grown.get(v, ())
            if v in self.made:
                waiting += self._behind(*self.made[v])
        return found

    def _behind(self, op: Op, k: int) -> list[Value]:
        if not op.blocks:
            return [] if is_fresh(op) else op.operands
        skipped = 1 if op.name == "loop" else 0  # whether to go on
        ends = (block.terminator.operands[skipped:] for block in op.blocks)
        return [*(end[k] for end in ends if k < len(end)), *op.operands]
