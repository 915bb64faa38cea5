"""Selections of pairs by a mask, without selecting: kernels compute with all pairs, masked.

In: ops that select by a mask of the region, and ops on what they give. Out: abstract values that
are `Selection`s, and the results of their reductions; raises Escaped for any other use.

    close = d[d < 1.0]               d[i, j] where t1[i, j]                     a Selection
    energy = torch.exp(-close)       exp(-d[i, j]) where t1[i, j]               another one
    energy.sum()                     sum_ij(t1[i, j] ? exp(-d[i, j]) : 0)       a tensor
    i, j = torch.where(d < 1.0)      the indices themselves where t1[i, j]      Selections
    x[i] - y[j]                      x[i, c] - y[j, c] where t1[i, j]           the same
    i, j = torch.triu_indices(…)     the indices themselves where j >= i        Selections
    torch.pdist(x)                   cdist(x, x)[i, j] where j > i              a Selection

PyTorch's selection has a size that depends on the data, so a region would end there and store the
pairs. In that case only, a Selection is tried. If an op needs the selection itself, the region ends
before that op.

While gradients are recorded, elements that are not selected are 1 from the start. Their slopes are
then finite: the cotangents of 0 that they get would turn an infinite slope into NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import torch

from lowtide.ir import dtypes, opdefs
from lowtide.ir.core import Op, Value, free_values
from lowtide.ops.conversions import CONVERTING
from lowtide.specialise import late_binding, torch_ops
from lowtide.specialise.abstract import (
    Abs,
    Map,
    Selection,
    Seq,
    constant,
    frozen,
    is_constant,
    operands_of,
    tensors_in,
)
from lowtide.specialise.kernel_numbers import Escaped
from lowtide.specialise.layers import are_pairs
from lowtide.texpr.build import ShapeError, Unsupported, Val
from lowtide.texpr.index import Index, product
from lowtide.texpr.sizes import evaluate

_PLACES: Final = ("torch.where", "torch.nonzero", "Tensor.nonzero", "Tensor.where")
_SELECTS: Final = ("torch.masked_select", "Tensor.masked_select")
_HOLDING: Final = ("tuple.make", "list.make", "tuple.get", "list.get", "unpack", "use")
_LIKE_POINTWISE: Final = CONVERTING | {"torch.detach", "torch.clone"}
_ALL: Final = (None, (), (0,), (-1,), 0, -1)  # dims of a reduction of a vector
_SUMS: Final = {"torch.sum": "torch.masked_sum", "torch.mean": "torch.masked_mean"}
_LARGEST: Final = ("torch.max", "torch.amax")
_SMALLEST: Final = ("torch.min", "torch.amin")
_TRIANGLES: Final = {"torch.triu_indices": "ge", "torch.tril_indices": "le"}
_DISTANCES: Final = "torch.pdist"
_MAY_RAISE: Final = (
    "torch.floor_divide",
    "torch.remainder",
    "torch.fmod",
    "torch.div",
    "torch.pow",
)
_MOST_COLUMNS: Final = 4  # of rows that are read for each pair


def evaluated(run: Any, op: Op, env: Mapping[Value, Abs]) -> list[Abs] | None:
    """Return the results of an op that selects by a mask, or that reads a Selection; None for other
    ops. Raises Escaped."""
    read = [s for v in op.operands if v in env for s in _within(env[v])]
    if not read:
        half = _half(run, op, env)
        if half is not None:
            return half
        return _selected(run, op, _operands(run, op, env)) if _may_select(run, op) else None
    if op.name in _HOLDING or (op.name == "torch.getitem" and _is_item(op, env)):
        return None
    try:
        found = _computed(run, op, _operands(run, op, env)) if _is_usual(run) else None
    except (Unsupported, ShapeError):
        found = None
    if found is None:
        raise Escaped(read[0].op)
    return found


def _operands(run: Any, op: Op, env: Mapping[Value, Abs]) -> list[Abs]:
    operands = operands_of(op, env)
    run.refresh(operands)
    return operands


def _is_usual(run: Any) -> bool:
    """Return whether no loop or branch is followed, and nothing is written at the end."""
    in_loop = run.loop is not None or run.activity.in_loop or run.b.mask is not None
    return not (in_loop or run.writes or run.b.sums)


def check_escapes(env: Mapping[Value, Abs], later: Sequence[Op]) -> None:
    """Raise Escaped if a later op reads a Selection."""
    for v in free_values(later):
        for s in _within(env[v]) if v in env else ():
            raise Escaped(s.op)


def _within(x: Abs) -> Iterable[Selection]:
    if isinstance(x.value, Seq | Map):
        for e in x.value.elems:
            yield from _within(e)
    elif isinstance(x.value, Selection):
        yield x.value


# -- what selects ----------------------------------------------------------------------------------


def _may_select(run: Any, op: Op) -> bool:
    is_by_mask = op.name == "torch.getitem" and op.attrs["spec"] == ("tensor",)
    if not is_by_mask and op.attrs.get("target") not in (*_PLACES, *_SELECTS):
        return False
    return op not in run.excluded and _is_usual(run) and run.pairs_alive()


def _selected(run: Any, op: Op, operands: list[Abs]) -> list[Abs] | None:
    """Return what the op selects as Selections; None if it is no selection by a mask."""
    tensors = [x.value for x in operands if isinstance(x.value, Val)]
    mask = tensors[-1] if tensors else None
    if mask is None or mask.dtype is not dtypes.boolean or mask.ndim < 2:
        return None
    if op.attrs.get("target") not in _PLACES:
        if len(operands) != 2 or len(tensors) != 2 or not _has_shape(run, tensors[0], mask):
            return None
        return [Abs(Selection(_guarded(run, op, operands[0], mask), mask, op))]
    as_tuple = [x.value for x in operands[1:]] == [True]
    if len(tensors) != 1 or as_tuple != ("nonzero" in str(op.attrs["target"])):
        return None
    return [Abs(Seq(tuple, tuple(Abs(x) for x in _places(run, op, mask))))]


def _is_item(op: Op, env: Mapping[Value, Abs]) -> bool:
    """Return whether the op reads the rows or the columns of `torch.triu_indices`."""
    return isinstance(env[op.operands[0]].value, Seq) and op.attrs["spec"] == ("int",)


# -- halves of a square ----------------------------------------------------------------------------


def _half(run: Any, op: Op, env: Mapping[Value, Abs]) -> list[Abs] | None:
    """Return the results of an op that lists the pairs in half a square, None for other ops."""
    is_distance = op.name == _DISTANCES
    if not (is_distance or op.name in _TRIANGLES) or op in run.excluded or not _is_usual(run):
        return None
    try:
        operands = _operands(run, op, env)
        return _distances(run, op, operands) if is_distance else _triangle(run, op, operands)
    except (Unsupported, ShapeError):
        return None


def _triangle(run: Any, op: Op, operands: list[Abs]) -> list[Abs] | None:
    rows, columns, offset, dtype, *options = (x.value for x in operands)
    known = all(isinstance(n, int | Index) for n in (rows, columns, offset))
    if not known or dtype not in (None, torch.int64) or any(x is not None for x in options[:1]):
        return None
    sizes = cast("tuple[Index | int, ...]", (rows, columns))
    if options[2] or options[1] not in (None, "cpu", torch.device("cpu")):
        return None
    if run.b.device.type != "cpu" or run.b.default_device.type != "cpu":
        return None
    if not all(run.b.at_least(n, 1) for n in sizes) or not _is_large(run, sizes):
        return None
    mask = _mask(run, op, sizes, _TRIANGLES[op.name], cast("Index | int", offset))
    return [Abs(Seq(tuple, tuple(Abs(x) for x in _places(run, op, mask))))]


def _distances(run: Any, op: Op, operands: list[Abs]) -> list[Abs] | None:
    """Return `torch.pdist`, of the distances of all pairs, those above the diagonal."""
    x, p = operands
    if not isinstance(x.value, Val) or x.value.ndim != 2 or p.value not in (1, 2):
        return None
    sizes = (x.value.shape[0], x.value.shape[0])
    if x.value.dtype not in (dtypes.f32, dtypes.f64) or not run.b.at_least(sizes[0], 2):
        return None
    if not _is_large(run, sizes):
        return None
    full = _lowered(run, op, "torch.cdist", x, x, p, constant(None))
    mask = _mask(run, op, sizes, "ge", 1)
    return [Abs(Selection(_guarded(run, op, Abs(full), mask), mask, op))]


def _is_large(run: Any, sizes: Sequence[Index | int]) -> bool:
    """Return whether a matrix of the sizes is one of pairs."""
    nbytes = 4 * evaluate(product(sizes), run.numbers)
    return are_pairs(nbytes, run.given_bytes)


def _mask(run: Any, op: Op, sizes: Sequence[Index | int], by: str, offset: Index | int) -> Val:
    """Return where column - row is on one side of the offset."""
    run.b.loc, run.b.op = op.loc, ""
    return run.b.tensor(
        sizes, dtypes.boolean,
        lambda idx: run.b.apply(by, run.b.at(idx[1] - idx[0]), run.b.at(offset)),
    )  # fmt: skip


def _places(run: Any, op: Op, mask: Val) -> list[Selection]:
    """Return the indices at which a mask holds, one for each dim."""
    run.b.loc, run.b.op = op.loc, ""
    places = [
        run.b.tensor(mask.shape, dtypes.i64, lambda idx, k=k: run.b.at(idx[k]))
        for k in range(mask.ndim)
    ]
    return [Selection(p, mask, op, k) for k, p in enumerate(places)]


def _has_shape(run: Any, x: Val, mask: Val) -> bool:
    if x.ndim != mask.ndim:
        return False
    for a, b in zip(x.shape, mask.shape, strict=True):
        run.b.require_equal(a, b, "a mask of another size")
    return True


def _guarded(run: Any, op: Op, x: Abs, mask: Val) -> Val:
    """Return the tensor; 1 where it is not selected if gradients are recorded."""
    assert isinstance(x.value, Val)
    if not x.value.dtype.is_float or not (run.activity.records or run.b.may_recompute):
        return x.value
    if x.value.ndim > mask.ndim:
        mask = _lowered(run, op, "torch.unsqueeze", Abs(mask), constant(-1))
    return _lowered(run, op, "torch.where", Abs(mask), x, constant(1))


def _lowered(run: Any, op: Op, name: str, *operands: Abs) -> Val:
    record: Any = opdefs.torch_record(name)
    kind = "pointwise" if record.kind == "view" else record.kind  # the results are no views
    (found,) = torch_ops.lowered(run, op, record, kind, (), [frozen(x) for x in operands])
    assert isinstance(found.value, Val)
    return found.value


# -- what reads a selection ------------------------------------------------------------------------


def _computed(run: Any, op: Op, operands: list[Abs]) -> list[Abs] | None:
    """Return the results of an op that reads Selections, None if it needs the selection itself."""
    read = [x.value for x in operands if isinstance(x.value, Selection)]
    bound = _bound(op, operands)
    if not read or bound is None or len(op.results) != 1:
        return None
    name, operands = bound
    like = read[0]
    if any(s.mask != like.mask for s in read):
        return None
    if name == "torch.getitem":
        return _gathered(run, op, operands, like)
    if any(s.full.ndim != like.full.ndim for s in read):
        return None
    if opdefs.has_kind(name, ("pointwise",)) or name in _LIKE_POINTWISE:
        return _pointwise(run, op, name, operands, like)
    if operands[0].value is not like or not all(map(is_constant, operands[1:])):
        return None
    if like.full.ndim > like.mask.ndim:
        rows = _along_columns(run, op, name, operands[1:], like)
        if rows is not None:
            return rows
    found = _reduced(run, op, name, operands[1:], like)
    return None if found is None else [Abs(found)]


def _bound(op: Op, operands: Sequence[Abs]) -> tuple[str, list[Abs]] | None:
    """Return the op of PyTorch's and its operands, of which late ones are known only now."""
    if op.name.startswith("torch."):
        return op.name, list(operands)
    source = late_binding.source_of(op.name) or str(op.attrs.get("target", ""))
    if op.name == "py.call_method":
        source = f"Tensor.{op.attrs['name']}"
    whole = [Abs(x.value.full) if isinstance(x.value, Selection) else x for x in operands]
    kwnames = cast("tuple[str, ...]", op.attrs.get("kwnames", ()))
    found = late_binding.bind_late(source, whole, kwnames) if source else None
    if found is None:
        return None
    own = {id(w): x for w, x in zip(whole, operands, strict=True)}
    return f"torch.{found[0].name}", [own.get(id(x), x) for x in found[1]]


def _pointwise(
    run: Any, op: Op, name: str, operands: list[Abs], like: Selection
) -> list[Abs] | None:
    if not like.full.dtype.is_float and name in _MAY_RAISE:
        return None  # of an integer 0 that is not selected
    given = list[Abs]()
    for x in operands:
        if isinstance(x.value, Selection):
            x = Abs(x.value.full)
        elif isinstance(x.value, Val):
            if x.value.ndim:
                return None
            if run.activity.carries(x.value, len(run.b.program.defs)):
                if x.value.dtype is not like.full.dtype:
                    return None
                x = Abs(_guarded(run, op, x, like.mask))
        elif tensors_in(x):
            return None
        given.append(x)
    found = _lowered(run, op, name, *given)
    if found.ndim != like.full.ndim:
        return None
    return [Abs(Selection(found, like.mask, like.op))]


def _gathered(run: Any, op: Op, operands: list[Abs], like: Selection) -> list[Abs] | None:
    """Return `x[i]`, `d[i, j]` for places of the mask, along dims of the same sizes."""
    x, *by = operands
    mask, value = like.mask, x.value
    found = (p.value.place if isinstance(p.value, Selection) else None for p in by)
    places = [k for k in found if k is not None]
    if not isinstance(value, Val) or len(places) != len(by) or value.ndim < len(by):
        return None
    columns = value.shape[len(by) :]
    if op.attrs["spec"] != ("tensor",) * len(by) or len(columns) > 1:
        return None
    is_half = like.op.name in _TRIANGLES  # of which each second pair is selected
    if not is_half and any(not isinstance(n, int) or n > _MOST_COLUMNS for n in columns):
        return None
    for size, place in zip(value.shape, places, strict=False):
        run.b.require_equal(size, mask.shape[place], "places of another tensor")
    run.b.loc, run.b.op, first = op.loc, "getitem", len(run.b.program.defs)

    def body(idx: tuple[Index, ...]) -> Any:
        return run.b.load(value, [*(idx[k] for k in places), *idx[mask.ndim :]])

    full = run.b.tensor((*mask.shape, *columns), value.dtype, body)
    run.activity.after("getitem", full, first)
    return [Abs(Selection(_guarded(run, op, Abs(full), mask), mask, like.op))]


def _along_columns(
    run: Any, op: Op, name: str, others: Sequence[Abs], x: Selection
) -> list[Abs] | None:
    """Return a reduction of rows [P, C] over their columns."""
    names = [p.name for p in opdefs.torch_record(name).params[1:]]
    if not opdefs.has_kind(name, ("reduction",)) or "dim" not in names:
        return None
    k = names.index("dim")
    dims = _dims(others[k])
    if dims not in ((1,), (-1,), 1, -1):
        return None
    last = constant([-1] if isinstance(dims, tuple) else -1)
    found = _lowered(run, op, name, Abs(x.full), *others[:k], last, *others[k + 1 :])
    if found.ndim not in (x.mask.ndim, x.full.ndim):
        return None
    return [Abs(Selection(found, x.mask, x.op))]


def _dims(x: Abs) -> Any:
    return tuple(e.value for e in x.value.elems) if isinstance(x.value, Seq) else x.value


def _reduced(run: Any, op: Op, name: str, others: Sequence[Abs], x: Selection) -> Val | None:
    """Return a reduction of all that is selected, None if there is none for the op."""
    given = [p.name for p in opdefs.torch_record(name).params[1:]]
    named = dict(zip(given, map(_dims, others), strict=False))
    dims = named.pop("dim", None)
    if dims not in _ALL or (x.full.ndim > x.mask.ndim and (dims is not None or name not in _SUMS)):
        return None
    is_root, base = name.startswith("torch.std"), name.removesuffix(".unbiased")
    if base in ("torch.var", "torch.std"):
        found = _spread(run, op, named, x)
        return _lowered(run, op, "torch.sqrt", Abs(found)) if is_root and found else found
    return None if any(named.values()) else _folded(run, op, name, len(others), x)


def _folded(run: Any, op: Op, name: str, others: int, x: Selection) -> Val | None:
    """Return a sum, mean or extreme of all; `others`: how many operands the op has beside x."""
    mask, full, is_float = Abs(x.mask), Abs(x.full), x.full.dtype.is_float
    every, false, none = constant([*range(x.full.ndim)]), constant(False), constant(None)
    if name in _SUMS:
        return _lowered(run, op, _SUMS[name], full, mask)
    if name in ("torch.any", "torch.all") and x.full.dtype is dtypes.boolean:
        filled = _lowered(run, op, "torch.where", mask, full, constant(name == "torch.all"))
        return _lowered(run, op, name, Abs(filled), none, false)
    if name == "torch.logsumexp" and is_float:
        filled = _lowered(run, op, "torch.where", mask, full, constant(-math.inf))
        return _lowered(run, op, name, Abs(filled), every, false)
    if name in (*_LARGEST, *_SMALLEST) and (is_float or x.full.dtype is dtypes.i64):
        some = _lowered(run, op, "torch.any", mask, none, false)
        run.check(Abs(some))  # else PyTorch raises
        ends = torch.iinfo(torch.int64)
        low, high = (-math.inf, math.inf) if is_float else (ends.min, ends.max)
        least = constant(low if name in _LARGEST else high)
        filled = _lowered(run, op, "torch.where", mask, full, least)
        return _lowered(run, op, name, Abs(filled), *([every, false] if others else []))
    return None


def _spread(run: Any, op: Op, named: Mapping[str, object], x: Selection) -> Val | None:
    """Return the variance, with PyTorch's correction of the count."""
    unbiased, correction = named.get("unbiased"), named.get("correction")
    is_known = correction is None or (isinstance(correction, int) and unbiased is None)
    if x.full.dtype not in (dtypes.f32, dtypes.f64) or named.get("keepdim") or not is_known:
        return None
    less = correction if correction is not None else 0 if unbiased is False else 1
    mask, none, one = Abs(x.mask), constant(None), constant(1)
    mean = _lowered(run, op, "torch.masked_mean", Abs(x.full), mask)
    apart = _lowered(run, op, "torch.sub", Abs(x.full), Abs(mean), one)
    squares = _lowered(run, op, "torch.mul", Abs(apart), Abs(apart))
    total = _lowered(run, op, "torch.masked_sum", Abs(squares), mask)
    count = _lowered(run, op, "torch.sum", mask, none, constant(False), none)
    free = _lowered(run, op, "torch.sub", Abs(count), constant(less), one)
    free = _lowered(run, op, "torch.clamp", Abs(free), constant(0), none)
    return _lowered(run, op, "torch.div", Abs(total), Abs(free), none)
