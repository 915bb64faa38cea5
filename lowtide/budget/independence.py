"""Finds the axes along which an op is independent: parts of results need parts of operands.

In: an op, its operands on the meta device, and the dim along which each operand is cut. Out: the
dim along which each tensor of the result is cut.

    y = x @ w        x cut along 0     y cut along 0
    z = y.softmax(1) y cut along 0     z cut along 0
    z = y.sum(0)     y cut along 0     Dependent
    z = y + b        y cut along 0, b: [N, M]     Needs: b must be cut along 0, too

An op with a lowering is decided by its formula, not by a table: every load of a cut operand must be
at the axis of the result. `torch_rules` has PyTorch's own ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from lowtide.budget.torch_rules import (
    Cut,
    Dependent,
    Needs,
    by_rule,
    is_pointwise,
    name_of,
    pointwise,
    reduced,
    rows_of,
    rule_of,
    selected,
)
from lowtide.ir import opdefs
from lowtide.ir.core import Block, Op, Value
from lowtide.ops.conversions import CONVERTING
from lowtide.specialise.abstract import Abs, Map, Place, Seq
from lowtide.specialise.lifting import inplace
from lowtide.specialise.signature import CONSTANT, Binding
from lowtide.specialise.specialise import Trace, specialise
from lowtide.texpr import expr as ex
from lowtide.texpr.build import Val
from lowtide.texpr.expr import Def, Load, Program
from lowtide.texpr.index import Axis, deep_atoms, the_axis
from lowtide.torch_private.pytree import tensors_in

Tensor = torch.Tensor
_REDUCTIONS: Final = ("torch.sum", "torch.mean")
_LIKE: Final = ("torch.zeros_like", "torch.ones_like", "torch.full_like")
_NOT_POINTWISE: Final = (
    "", "setitem", "places", "Tensor.fill_diagonal_", "Tensor.triu", "Tensor.tril",
)  # fmt: skip
_RESHAPES: Final = ("torch.flatten", "torch.reshape", "torch.view")


def cut_results(op: Op, values: Sequence[Any], results: Sequence[Any], cut: Cut) -> dict[int, int]:
    """Return the dim along which each tensor of `results` is cut, by id; others are whole.

    `values`: one for each operand. Raises Dependent and Needs."""
    if op.name in _LIKE:
        return pointwise(values[:1], {}, results, cut)
    rule = rule_of(op, values)
    if op.name in opdefs.STATISTICS and rule is not None and is_lowered(op, values):
        raise Dependent("takes the whole batch, in kernels that keep no more than they read")
    if rule is not None:
        found = by_rule(rule, op, values, results, cut)
        if any(dim >= x.dim() for x in tensors_in(results) for dim in [found[id(x)]]):
            raise Dependent("reduces everything")
        return found
    if selects(op, values):
        return selected(values, results, cut)
    try:
        trace, binding, inputs = _lowered(op, values)
    except Exception as fault:  # a lowering refuses operands by any error
        if is_pointwise(op):  # such as complex numbers
            return pointwise(values, {}, results, cut)
        if op.name in _REDUCTIONS:
            return reduced(values, {}, results, cut)
        raise Dependent(str(fault)) from fault
    sources = {name: _at(inputs, place) for name, place in binding.tensors.items()}
    try:
        known = _follow(trace.builder.program, sources, cut)
    except Dependent:
        if op.name in _RESHAPES:
            return rows_of(values, results, cut)
        raise
    found: dict[int, int] = {}
    for v, result in zip(op.results, results, strict=True):
        for val, tensor in _pairs(trace.env[v], result):
            dim = known.get(val.name)
            if dim is not None:
                found[id(tensor)] = dim
    return found


def selects(op: Op, values: Sequence[Any]) -> bool:
    """Return whether the op selects elements by a mask, `d[mask]`: how many, the data decide."""
    is_by_one = op.name == "torch.getitem" and op.attrs["spec"] == ("tensor",)
    if not is_by_one and name_of(op) != "masked_select":
        return False
    tensors = tensors_in(list(values))
    return len(tensors) == 2 and tensors[1].dtype == torch.bool


def goes_on(op: Op) -> bool:
    """Return whether the op may read a part of a selection: what it gives is joined by adding, or
    is of each element."""
    is_usual = opdefs.has_kind(op.name, ("pointwise", "copy")) or op.name in CONVERTING
    is_usual = is_usual or is_pointwise(op)
    return op.name != "mutate" and (is_usual or name_of(op) in ("bincount", "histc"))


def is_lowered(op: Op, values: Sequence[Any]) -> bool:
    """Return whether a kernel or Python runs the op with these operands, not PyTorch."""
    if op.name == "call_torch":
        return False
    if op.name != "mutate" and not op.name.startswith("torch."):
        return True
    try:
        _lowered(op, values)
    except Exception:  # a lowering refuses operands by any error
        return False
    return True


def program_of(op: Op, values: Sequence[Any]) -> Program | None:
    """Return the formulas of an op with these operands; None if it has no lowering for them."""
    try:
        trace, _, _ = _lowered(op, values)
    except Exception:  # a lowering refuses operands by any error
        return None
    return trace.builder.program


def _lowered(op: Op, values: Sequence[Any]) -> tuple[Trace, Binding, list[Any]]:
    """Return the op alone as a region, its binding, and its tensors. Raises Dependent, and what
    lowerings raise."""
    given = dict(zip(op.operands, values, strict=True))
    live = [v for v in given if tensors_in(given[v]) or isinstance(given[v], list)]
    constants = [
        Op(name="const", attrs={"value": x}, results=[v]) for v, x in given.items() if v not in live
    ]
    block = Block(live, [*constants, *_on_a_copy(op), Op(name="yield", operands=list(op.results))])
    inputs = [given[v] for v in live]
    binding = Binding(inputs, _Constants(), True)
    trace = specialise(block, range(len(block.ops)), live, binding, {}, {})
    if trace.stop < len(block.ops) or trace.misfit:
        raise Dependent(trace.reason)
    return trace, binding, inputs


def is_pointwise_write(op: Op) -> bool:
    """Return whether this is a pointwise `mutate` of its first operand: `x.mul_(y)`, `x[mask] =
    0`."""
    return inplace.out_of_place(op) not in _NOT_POINTWISE


def _on_a_copy(op: Op) -> list[Op]:
    """Return the op; an op that writes into a tensor is given a copy."""
    if op.name != "mutate":
        return [op]
    x, *others = op.operands
    copy = Value(x.name, x.type)
    write = Op(name=op.name, operands=[copy, *others], attrs=op.attrs, results=op.results)
    return [Op(name="torch.clone", operands=[x], results=[copy]), write]


class _Constants(dict[Any, int]):
    """A signature in which all sizes are constants."""

    def get(self, key: Any, default: Any = None) -> Any:
        return CONSTANT

    def __bool__(self) -> bool:
        return True


# -- formulas --------------------------------------------------------------------------------------


def _follow(program: Program, sources: Mapping[str, Tensor], cut: Cut) -> dict[str, int]:
    """Return the dim along which each input and definition is cut."""
    known = {n: cut[id(x)] for n, x in sources.items() if id(x) in cut}
    for d in program.defs.values():
        if d.adds_to:  # a chunk would add only its part
            raise Dependent(f"{d.op} adds at places that are data")
        axis = _axis_of(d, known)
        if axis is not None:
            _check(program, d, axis, known, sources)
            known[d.name] = d.axes.index(axis)
    return known


def _axis_of(d: Def, known: Mapping[str, int]) -> Axis | None:
    """Return the axis of `d` at which it loads cut operands."""
    axes = {the_axis(x.index[known[x.source]]) for x in ex.loads(d.expr) if x.source in known}
    if not axes:
        return None
    axis = axes.pop()
    if axes or axis is None or axis not in d.axes:
        raise Dependent(f"{d.op} mixes what is cut")
    return axis


def _is_uniform(program: Program, name: str, k: int) -> bool:
    """Return whether a definition is the same at all places along a dim."""
    d = program.defs.get(name)
    return d is not None and all(
        d.axes[k] not in deep_atoms(i) for node in ex.walk(d.expr) for i in ex.indices(node)
    )


def _check(
    program: Program,
    d: Def,
    axis: Axis,
    known: Mapping[str, int],
    sources: Mapping[str, Tensor],
) -> None:
    """Check that the axis is used only at the cut dims of loads. Raises Dependent and Needs."""
    for node in ex.walk(d.expr):
        for k, index in enumerate(ex.indices(node)):
            if axis not in deep_atoms(index):
                continue
            if not isinstance(node, Load) or the_axis(index) is not axis:
                raise Dependent(f"{d.op} depends on where it is")
            if known.get(node.source) == k or _is_uniform(program, node.source, k):
                continue
            if node.source in sources and node.source not in known:
                raise Needs(sources[node.source], k)
            raise Dependent(f"{d.op} reads the whole of a value")


def _pairs(x: Abs, value: Any) -> list[tuple[Val, Tensor]]:
    """Return each tensor of an abstract value, paired with the real one."""
    if isinstance(x.value, Val):
        return [(x.value, value)]
    if isinstance(x.value, Seq):
        return [p for e, v in zip(x.value.elems, value, strict=True) for p in _pairs(e, v)]
    if isinstance(x.value, Map):
        return [p for k, e in x.value.entries().items() for p in _pairs(e, value[k])]
    return []


def _at(values: Sequence[Any], place: Place) -> Any:
    found: Any = values[place.position]
    for key in place.path:
        found = found[key]
    return found
