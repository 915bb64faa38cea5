"""Turns the block of the user's checkpoint (`Recomputed`) into a section of one chunk.

In: the op `with` and the values it reads. Out: a `section`, or None if PyTorch's own checkpoint
must run the block. A section passes gradients through tensors that are its operands and results,
but not through tensors in lists and objects, or tensors from outside that it writes.

    with(%m): block: %h = tanh(%x); yield(%h)    →    %h = section(%x) {chunks=1}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

import torch

from lowtide.execute.chunks import carries_gradient
from lowtide.execute.section import SECTION
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.aliases import CHANGING
from lowtide.ir.core import Block, Op, Value, free_values, walk

BY_PYTORCH: Final = (
    "it writes into tensors from outside, returns tensors that share memory, or reads or returns "
    "lists or objects, which hide gradients"
)
_CARRYING: Final = (t.TENSOR, t.OptionalType(t.TENSOR))
_PLAIN: Final = (t.INT, t.FLOAT, t.BOOL, t.NUMBER, t.STR, t.NONE)


def as_section(op: Op, env: Mapping[Value, Any], made: MutableMapping[Op, Block]) -> Op | None:
    """Return the section, or None; see the module's text. `made`: sections by op, reused by the
    next call."""
    (block,) = op.blocks
    inputs = [v for v in free_values(block.ops) if v not in block.args]
    values = [env[v] for v in inputs]
    if any(r.type not in (*_CARRYING, *_PLAIN) for r in op.results):
        return None
    if not all(isinstance(x, torch.Tensor) or _is_plain(x) for x in values):
        return None
    if _writes(block, env):
        return None
    counters = _counters(block, env)
    carrying = {v for v, x in zip(inputs, values, strict=True) if carries_gradient(x)}
    _spread(block.ops, carrying)
    ends, everything = block.terminator.operands, tuple(range(len(inputs)))
    how: dict[str, Any] = {
        "chunks": 1,
        "cuts": (None,) * len(inputs),
        "joins": (None,) * len(ends),
        "sources": tuple(everything if v in carrying else () for v in ends),
        "overwrites": any(map(_overwrites, _pairs(block))),
        "counters": tuple(k for k, v in enumerate(inputs) if v in counters),
    }
    return Op(
        name=SECTION,
        operands=inputs,
        attrs=how,
        results=op.results,
        blocks=[made.setdefault(op, Block(inputs, block.ops))],
        loc=op.loc,
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device)


def _writes(block: Block, env: Mapping[Value, Any]) -> bool:
    """Return whether the block may write tensors that it did not make. Counters are exempt:
    PyTorch's checkpoint increments them twice, too."""
    counters = _counters(block, env)
    for op in walk(block):
        if op.name not in CHANGING:
            continue
        target = op.operands[0] if op.operands else None
        is_own = target in counters or (target is not None and _is_made_by(target, block))
        if op.name != "mutate" or not is_own:
            return True
    return False


def _counters(block: Block, env: Mapping[Value, Any]) -> set[Value]:
    """Return the integer tensors from outside that the block writes."""
    written = {op.operands[0] for op in walk(block) if op.name == "mutate"}
    return {
        v
        for v in written
        if isinstance(x := env.get(v), torch.Tensor) and not x.is_floating_point()
    }


def _is_made_by(value: Value, block: Block) -> bool:
    """Return whether the op's result is new memory, not a view of an operand."""
    maker = next((op for op in walk(block) if value in op.results), None)
    return maker is not None and opdefs.has_kind(
        maker.name, ("pointwise", "contraction", "factory")
    )


# ops whose result PyTorch saves for their gradient
_SAVING: Final = frozenset({
    *("relu", "relu6", "elu", "celu", "selu", "leaky_relu", "hardtanh", "threshold", "sigmoid"),
    *("tanh", "exp", "exp2", "sqrt", "rsqrt", "reciprocal", "softmax", "log_softmax"),
})  # fmt: skip


def _pairs(block: Block) -> Iterator[Op | None]:
    """Yield each tensor that is written into, with the op that made it."""
    makers = {r: op for op in walk(block) for r in op.results}
    return (makers.get(op.operands[0]) for op in walk(block) if op.name == "mutate")


def _overwrites(maker: Op | None) -> bool:
    """Return whether the block overwrites a value that the op which made it has saved for its
    gradient. PyTorch's checkpoint allows that, since it recomputes the value."""
    if maker is None:
        return False
    name = str(maker.attrs.get("target", maker.name)).rpartition(".")[2]
    return name.removesuffix("_") in _SAVING


def _spread(ops: Sequence[Op], carrying: set[Value]) -> None:
    """Add the values that may have a graph because they are computed from such values."""
    for op in ops:
        for block in op.blocks:
            carrying.update(block.args)
            _spread(block.ops, carrying)
        ends = [block.terminator.operands for block in op.blocks]
        if op.name in ("if", "with"):  # each block of `if`, the first of `with` gives the results
            rows = zip(op.results, *ends[: 1 if op.name == "with" else 2], strict=True)
            carrying.update(r for r, *given in rows if not carrying.isdisjoint(given))
            continue
        used = {*op.operands, *(v for given in ends for v in given)}
        if op.name != "torch.detach" and not carrying.isdisjoint(used):
            carrying.update(op.results)
