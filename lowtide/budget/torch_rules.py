"""Tables of PyTorch's own ops: the axes along which their results are independent.

In: the name of an op, its operands on the meta device, and the dims along which they are cut. Out:
the dims along which its results are cut.

    torch.sort(x, 1)             x cut along 0      the results along 0
    torch.fft.fft(x)             x cut along -1     Dependent
    torch.lgamma(x)              pointwise, by PyTorch's own tag
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import torch

from lowtide.execute.cut import ADDED
from lowtide.ir import opdefs
from lowtide.ir.core import Op
from lowtide.torch_private.dispatch import schema_of
from lowtide.torch_private.pytree import tensors_in

Tensor = torch.Tensor
Cut = Mapping[int, int]  # id of a meta tensor → the dim along which it is cut


class Dependent(Exception):
    """The results are not independent along that axis, or no rule says so."""


class Needs(Exception):
    """They are independent if this operand is cut along this dim, too."""

    def __init__(self, tensor: Tensor, dim: int) -> None:
        super().__init__(dim)
        self.tensor = tensor
        self.dim = dim


Named = Mapping[str, Any]
Rule = Callable[[Sequence[Any], Named, Sequence[Any], Cut], dict[int, int]]


def rule_of(op: Op, values: Sequence[Any]) -> Rule | None:
    """Return the rule of a PyTorch op with these operands; None if it has a lowering, or no
    rule."""
    if _is_of_the_batch(op, values):
        return _channels
    name = name_of(op)
    if name in _RULES:
        return _RULES[name]
    return pointwise if name and op.name == "call_torch" and is_pointwise(op) else None


def _is_of_the_batch(op: Op, values: Sequence[Any]) -> bool:
    """Return whether it is a norm in training that reads or writes statistics of the whole
    batch."""
    if op.name not in opdefs.STATISTICS or values[opdefs.OF_THE_BATCH] is False:
        return False
    return op.name == "torch.batch_norm" or any(
        values[k] is not None for k in opdefs.STATISTICS[op.name]
    )


def by_rule(
    rule: Rule, op: Op, values: Sequence[Any], results: Sequence[Any], cut: Cut
) -> dict[int, int]:
    """Return the dims along which the rule cuts the op's results. `values`: one for each
    operand."""
    names = cast("tuple[str, ...]", op.attrs.get("kwnames", ()))
    count = len(values) - len(names)
    return rule(values[:count], dict(zip(names, values[count:], strict=True)), results, cut)


def name_of(op: Op) -> str:
    """Return `sort` for torch.sort and Tensor.sort alike; "" for an op with a lowering."""
    if op.name == "call_torch":
        return str(op.attrs["target"]).rpartition(".")[2]
    if not op.name.startswith("torch."):
        return ""
    record: Any = opdefs.torch_record(op.name)
    return "" if record.lower is not None else record.name.rpartition(".")[2]


def is_pointwise(op: Op) -> bool:
    """Return whether PyTorch tags all overloads of the op as pointwise."""
    if op.name == "mutate":
        return False
    target = str(op.attrs["target"]) if op.name == "call_torch" else op.name
    packet = getattr(torch.ops.aten, target.rpartition(".")[2], None)
    if packet is None:
        return False
    forms = [getattr(packet, name) for name in packet.overloads()]
    of_tensors = [f for f in forms if _takes_tensors(schema_of(f))]
    return bool(of_tensors) and all(
        torch.Tag.pointwise in f.tags and not _draws(schema_of(f)) for f in of_tensors
    )


def _draws(schema: Any) -> bool:
    """Return whether the op may draw random numbers; PyTorch tags rrelu as pointwise, too."""
    return any(a.name == "generator" for a in schema.arguments)


def _takes_tensors(schema: Any) -> bool:
    """Return whether the overload is on tensors, without an `out` argument."""
    arguments = schema.arguments
    is_tensors = bool(arguments) and isinstance(arguments[0].type, torch.TensorType)
    return is_tensors and not any(a.is_out for a in arguments)


def pointwise(
    values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut
) -> dict[int, int]:
    """Results are cut at the dim that broadcasting aligns with the operands' cut dims."""
    tensors = tensors_in([*values, *named.values()])
    places = {cut[id(x)] - x.dim() for x in tensors if id(x) in cut}
    if len(places) != 1:
        raise Dependent("several axes are cut")
    place = places.pop()
    (size,) = {x.shape[place] for x in tensors if id(x) in cut}
    for x in tensors:
        if id(x) not in cut and x.dim() >= -place and x.shape[place] != 1:
            raise Needs(x, x.dim() + place)
    made = tensors_in(results)
    if any(r.dim() < -place or r.shape[place] != size for r in made):
        raise Dependent("gives another shape")
    return {id(r): r.dim() + place for r in made}


def _same_dim(results: Sequence[Any], dim: int) -> dict[int, int]:
    return {id(x): dim for x in tensors_in(results)}


def _first_cut(values: Sequence[Any], named: Named, cut: Cut) -> tuple[Tensor, int]:
    """Return the first operand and its cut dim; no other tensor may be cut."""
    x, *rest = tensors_in([*values, *named.values()])
    if id(x) not in cut or any(id(r) in cut for r in rest):
        raise Dependent("another operand than the first is cut")
    return x, cut[id(x)]


def _along(default: int | None, position: int = 1) -> Rule:
    """Rule of ops along one dim, operand `position` or `dim`: independent along all others."""

    def rule(
        values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut
    ) -> dict[int, int]:
        x, dim = _first_cut(values, named, cut)
        along = named.get("dim", values[position] if len(values) > position else default)
        if type(along) is not int or along % x.dim() == dim:
            raise Dependent("works along what is cut")
        is_smaller = all(r.dim() < x.dim() for r in tensors_in(results))
        return _same_dim(results, dim - (is_smaller and along % x.dim() < dim))

    return rule


def reduced(
    values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut
) -> dict[int, int]:
    """Rule of sums and means, of complex numbers say: independent along the dims that stay."""
    x, dim = _first_cut(values, named, cut)
    along, keeps = values[1], values[2] is True
    if not isinstance(along, tuple | list) or not along:
        raise Dependent("reduces everything")
    gone = {d % x.dim() for d in cast("Sequence[int]", along)}
    if dim in gone:
        raise Dependent("works along what is cut")
    return _same_dim(results, dim if keeps else dim - sum(d < dim for d in gone))


def _counts(
    values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut
) -> dict[int, int]:
    """Rule of `bincount`: what chunks count is added up."""
    tensors, _ = _all_cut(values, named, cut)  # weights, too
    if any(x.dim() != 1 for x in tensors):
        raise Dependent("counts something else than a vector")
    return _same_dim(results, ADDED)


def _histogram(
    values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut
) -> dict[int, int]:
    """Rule of `histc`: the same, with given borders."""
    _first_cut(values, named, cut)
    given = dict(zip(("bins", "min", "max"), values[1:], strict=False)) | dict(named)
    if given.get("min", 0) == given.get("max", 0):
        raise Dependent("takes its borders from all values")
    return _same_dim(results, ADDED)


def selected(values: Sequence[Any], results: Sequence[Any], cut: Cut) -> dict[int, int]:
    """Rule of `d[mask]`: what the mask selects of the first rows comes first."""
    tensors, dim = _all_cut(values, {}, cut)
    if dim != 0 or len({x.shape for x in tensors}) != 1:
        raise Dependent("selects along what is cut")
    return _same_dim(results, 0)


def rows_of(values: Sequence[Any], results: Sequence[Any], cut: Cut) -> dict[int, int]:
    """Rule of views in the order of memory: a first dim that is cut becomes one of as many points,
    with one row or more for each."""
    x, dim = _first_cut(values, {}, cut)
    made = tensors_in(results)
    if any(size != 1 for size in x.shape[:dim]):
        raise Dependent("the axis is not the outermost")
    if any(r.dim() == 0 or r.shape[0] % x.shape[dim] for r in made):
        raise Dependent("splits the axis")
    return _same_dim(results, 0)


def _leading(inner: int) -> Rule:
    """Rule of ops on the last `inner` dims: independent along all before them."""

    def rule(
        values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut
    ) -> dict[int, int]:
        x, dim = _first_cut(values, named, cut)
        if dim >= x.dim() - inner or "dim" in named or len(values) > 1:
            raise Dependent("works along what is cut")
        return _same_dim(results, dim)

    return rule


def _batch(values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut) -> dict[int, int]:
    """Rule of ops on x: [N, C, ...], independent along N."""
    x, dim = _first_cut(values, named, cut)
    if dim != 0 or x.dim() < 3 or any(r.dim() != x.dim() for r in tensors_in(results)):
        raise Dependent("works along what is cut")
    return _same_dim(results, 0)


def _convolution(
    values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut
) -> dict[int, int]:
    """Like `_batch`, if there is a batch."""
    x, weight, *_ = tensors_in([*values, *named.values()])
    if x.dim() != weight.dim():
        raise Dependent("there is no batch")
    return _batch(values, named, results, cut)


def _channels(
    values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut
) -> dict[int, int]:
    """Rule of ops on x: [N, C, ...] whose weights and statistics are cut along C, too."""
    x, *others = tensors_in([*values, *named.values()])
    if cut.get(id(x)) != 1 or x.dim() < 2:
        raise Dependent("takes the whole batch")
    for p in others:
        if id(p) not in cut:
            raise Needs(p, 0)
    return _same_dim(results, 1)


def _all_cut(values: Sequence[Any], named: Named, cut: Cut) -> tuple[list[Tensor], int]:
    """Return all operands and the common dim along which they are cut, counted from the front."""
    tensors = tensors_in([*values, *named.values()])
    dims = {cut[id(x)] for x in tensors if id(x) in cut}
    if len(dims) != 1:
        raise Dependent("several axes are cut")
    (dim,) = dims
    sizes = {x.shape[dim] if x.dim() > dim else 0 for x in tensors}
    if len(sizes) != 1:
        raise Dependent("one operand is broadcast")
    for x in tensors:
        if id(x) not in cut:
            raise Needs(x, dim)
    return tensors, dim


def _systems(
    values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut
) -> dict[int, int]:
    """Rule of ops on matrices in the last two dims of all operands; the dims before them are
    broadcast."""
    tensors = tensors_in([*values, *named.values()])
    inner = len({x.dim() for x in tensors}) != 1
    if inner or any(cut[id(x)] >= x.dim() - 2 for x in tensors if id(x) in cut):
        raise Dependent("works along what is cut")
    return pointwise(values, named, results, cut)


def _batches(
    values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut
) -> dict[int, int]:
    """Rule of ops on [N, …] operands, independent along N."""
    if _all_cut(values, named, cut)[1] != 0:
        raise Dependent("works along what is cut")
    return _same_dim(results, 0)


def _put(values: Sequence[Any], named: Named, results: Sequence[Any], cut: Cut) -> dict[int, int]:
    """Rule of `put_in_part`: of what is written, each part takes what lies in it."""
    x, places = values[0], values[4:6]
    dim = cut.get(id(x))
    others = (*values[1:4], places[1 - dim]) if dim is not None else ()
    if dim is None or any(id(v) in cut for v in others):
        raise Dependent("another operand than the matrix is cut")
    if id(places[dim]) not in cut:
        raise Needs(places[dim], 0)
    return _same_dim(results, dim)


_RULES: Final[Mapping[str, Rule]] = {
    "bincount": _counts,
    "histc": _histogram,
    "put_in_part": _put,
    **dict.fromkeys(("sort", "argsort", "median", "nanmedian", "mode"), _along(-1)),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "msort"), _along(0)),
    **dict.fromkeys(("topk", "kthvalue"), _along(-1, position=2)),
    **dict.fromkeys(("quantile", "nanquantile"), _along(None, position=2)),
    **dict.fromkeys(("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"), _along(-1, position=2)),
    **dict.fromkeys(("fft2", "ifft2", "rfft2", "irfft2", "hfft2", "ihfft2"), _leading(2)),
    **dict.fromkeys(("conj", "real", "imag", "resolve_conj", "view_as_real"), _leading(0)),
    **dict.fromkeys(("solve", "cholesky_solve", "solve_triangular", "lstsq"), _systems),
    **dict.fromkeys(("grid_sample", "grid_sampler"), _batches),
    **dict.fromkeys(
        ("inv", "det", "slogdet", "svdvals", "svd", "qr", "eigh", "eigvalsh", "cholesky", "pinv",
         "matrix_exp", "inverse", "logdet"),
        _leading(2),
    ),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        _convolution,
    ),
    **dict.fromkeys(
        ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
         "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "interpolate",
         "group_norm", "pixel_shuffle", "pixel_unshuffle", "lp_pool1d", "lp_pool2d", "lp_pool3d",
         "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool3d", "unfold", "fold",
         "local_response_norm", "channel_shuffle"),
        _batch,
    ),
}  # fmt: skip
