"""Finds how the parts of a result combine, if an op reduces the axis that is cut.

In: an op, its operands on the meta device, and the dim along which each operand is cut. Out: a
`Reduced`, or Dependent if no rule says that parts combine.

    d.sum(0)          d cut along 0     sum           parts are added
    d.min(0)          d cut along 0     min.dim       the smaller value, and its position
    x.T @ x           cut along 1, 0    sum
    p @ v             p: a softmax cut along its dim: weighted

`independence` has the axes along which results are cut themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import torch

from lowtide.budget.torch_rules import Cut, Dependent, Named, Needs
from lowtide.ir.core import Op
from lowtide.torch_private.pytree import tensors_in

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """`kind`: how parts combine. `dim`: of the operand, along which positions count. `inner`: by
    how much the position grows from one point of the axis to the next, such as 11 for
    `d.flatten().argmax()`, d: [13, 11], cut along 13. `divide`: the combined sum is divided by the
    number of elements, as in a mean."""

    kind: str
    dim: int = 0
    inner: int = 1
    divide: bool = False
    keepdim: bool = False
    largest: bool = True
    k: int = 0


def reduced_axis(op: Op, values: Sequence[Any], cut: Cut, extent: int) -> Reduced:
    """Return how the parts of the op's results combine. `extent`: points of the axis, each of which
    may be several rows of an operand. Raises Dependent and Needs."""
    rule = _RULES.get(op.name)
    named: dict[str, Any] = {}
    if op.name == "call_torch":
        rule = _CALLED.get(str(op.attrs["target"]).rpartition(".")[2])
        names = cast("tuple[str, ...]", op.attrs.get("kwnames", ()))
        count = len(values) - len(names)
        named = dict(zip(names, values[count:], strict=True))
        values = values[:count]
    if rule is None:
        raise Dependent("works along what is cut")
    found = rule(values, named, cut)
    rows = next(x.shape[cut[id(x)]] for x in tensors_in(list(values)) if id(x) in cut)
    return replace(found, inner=found.inner * rows // extent)


def weights_of(op: Op, values: Sequence[Any], cut: Cut) -> int:
    """Return the dim of a softmax that is cut along its own dim. Raises Dependent."""
    if op.name != "torch.softmax":
        raise Dependent("works along what is cut")
    x, dim = _alone(values, cut)
    if values[2] is not None or x.dtype not in (torch.float32, torch.float64):
        raise Dependent("is a softmax along what is cut, in another dtype")
    if values[1] % x.dim() != dim or dim != x.dim() - 1:
        raise Dependent("is a softmax along what is cut, and of another dim than the last")
    return dim


def _alone(values: Sequence[Any], cut: Cut) -> tuple[Tensor, int]:
    """Return the first operand and its cut dim; no other tensor is an operand."""
    tensors = tensors_in(list(values))
    if len(tensors) != 1 or id(tensors[0]) not in cut:
        raise Dependent("works along what is cut")
    return tensors[0], cut[id(tensors[0])]


def _dims(x: Tensor, dims: Any) -> set[int]:
    """Return the dims that are reduced: all if none are named."""
    if dims is None or dims == () or dims == []:
        return set(range(x.dim()))
    named = cast("Sequence[int]", dims if isinstance(dims, tuple | list) else [dims])
    return {d % x.dim() for d in named}


def _over_dims(kind: str, *, divide: bool = False) -> Callable[..., Reduced]:
    def rule(values: Sequence[Any], named: Named, cut: Cut) -> Reduced:
        x, dim = _alone(values, cut)
        keepdim = len(values) > 2 and values[2] is True
        if dim not in _dims(x, values[1] if len(values) > 1 else None):
            raise Dependent("is not independent along what is cut")
        return Reduced(kind=kind, dim=dim, divide=divide, keepdim=keepdim)

    return rule


def _extreme(kind: str) -> Callable[..., Reduced]:
    """Rule of `min(x, dim)` with positions."""

    def rule(values: Sequence[Any], named: Named, cut: Cut) -> Reduced:
        x, dim = _alone(values, cut)
        if values[1] % x.dim() != dim:
            raise Dependent("is not independent along what is cut")
        return Reduced(kind=kind, dim=dim, keepdim=values[2] is True)

    return rule


def _position(kind: str) -> Callable[..., Reduced]:
    """Rule of `argmin`: without a dim, positions count over all dims, so that parts are in order
    only if the outermost is cut."""

    def rule(values: Sequence[Any], named: Named, cut: Cut) -> Reduced:
        x, dim = _alone(values, cut)
        along, keepdim = values[1], values[2] is True
        if x.dtype == torch.bool:
            raise Dependent("has no positions of bools")
        if along is not None:
            if along % x.dim() != dim:
                raise Dependent("is not independent along what is cut")
            return Reduced(kind=kind, dim=dim, keepdim=keepdim)
        if keepdim or any(n != 1 for n in x.shape[:dim]):
            raise Dependent("counts positions over several dims")
        return Reduced(kind=f"flat.{kind}", dim=dim, inner=x[(0,) * (dim + 1)].numel())

    return rule


def _product(values: Sequence[Any], named: Named, cut: Cut) -> Reduced:
    """Rule of a product of matrices: what is summed over is cut in both."""
    x, y = cast("tuple[Tensor, Tensor]", tuple(values[:2]))
    inner = {id(x): x.dim() - 1, id(y): max(y.dim() - 2, 0)}
    if x is y or any(cut[id(v)] != inner[id(v)] for v in (x, y) if id(v) in cut):
        raise Dependent("mixes what is cut")
    if x.dtype in (torch.float16, torch.bfloat16) or x.dim() == 0 or y.dim() == 0:
        raise Dependent("would round the parts of a sum to half precision")
    for v in (x, y):
        if id(v) not in cut:
            raise Needs(v, inner[id(v)])
    return Reduced(kind="sum", dim=inner[id(x)])


def _masked(values: Sequence[Any], named: Named, cut: Cut) -> Reduced:
    """Rule of `x[mask].sum()`."""
    x, mask = cast("tuple[Tensor, Tensor]", tuple(values))
    dims = {cut[id(v)] for v in (x, mask) if id(v) in cut}
    (dim, *others) = dims
    if others or mask.dim() <= dim or mask.dtype != torch.bool:
        raise Dependent("selects along what is cut")
    for v in (x, mask):
        if id(v) not in cut:
            raise Needs(v, dim)
    return Reduced(kind="sum", dim=dim)


def _topk(values: Sequence[Any], named: Named, cut: Cut) -> Reduced:
    x, dim = _alone(values, cut)
    given = dict(zip(("k", "dim", "largest", "sorted"), values[1:], strict=False)) | dict(named)
    if given.get("dim", -1) % x.dim() != dim or type(given.get("k")) is not int:
        raise Dependent("is not independent along what is cut")
    largest = given.get("largest", True) is True
    return Reduced(kind="topk", dim=dim, k=given["k"], largest=largest)


_RULES: Final[Mapping[str, Callable[..., Reduced]]] = {
    "torch.sum": _over_dims("sum"),
    "torch.mean": _over_dims("sum", divide=True),
    "torch.count_nonzero": _over_dims("sum"),
    "torch.masked_sum": _masked,
    **{f"torch.{name}": _over_dims(name[-3:]) for name in ("amin", "amax", "min", "max")},
    **{f"torch.{name}": _over_dims(name) for name in ("any", "all", "logsumexp")},
    **{f"torch.{name}": _extreme(name) for name in ("min.dim", "max.dim")},
    **{f"torch.arg{name}": _position(f"{name}.dim") for name in ("min", "max")},
    **dict.fromkeys(("torch.matmul", "torch.mm", "torch.bmm", "torch.mv", "torch.dot"), _product),
}
_CALLED: Final[Mapping[str, Callable[..., Reduced]]] = {"topk": _topk}
