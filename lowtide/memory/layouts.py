"""Strides of results that differ between the CPU and the meta device.

In: an op, its arguments, and its results on the meta device. Out: the results with the strides that
they have on the CPU. Whether the next op copies its operand depends on them.

    pixel_shuffle(x, 2), x channels-last     on the CPU channels-last, on meta contiguous

The table was found by running each op on both devices; `tests/memory/test_layouts` compares again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

import torch

from lowtide.torch_private.dispatch import is_slow_convolution, schema_of

Tensor = torch.Tensor
Strides = tuple[int, ...]
aten = torch.ops.aten
NO_NAMES: Final[Mapping[str, Any]] = MappingProxyType({})
VOLUMES: Final = 5  # dims of images of three
LAYOUTS: Final = {4: torch.channels_last, VOLUMES: torch.channels_last_3d}

# The result is channels-last if the argument at this position is, else contiguous.
_AS_ARGUMENT: Final[dict[Any, int]] = {
    aten.upsample_nearest2d.default: 0,
    aten._upsample_nearest_exact2d.default: 0,
    aten.upsample_bilinear2d.default: 0,
    aten.upsample_bicubic2d.default: 0,
    aten.upsample_nearest3d.default: 0,
    aten._upsample_nearest_exact3d.default: 0,
    aten.upsample_trilinear3d.default: 0,
    aten.pixel_shuffle.default: 0,
    aten.pixel_unshuffle.default: 0,
    aten.channel_shuffle.default: 0,
    aten.native_channel_shuffle.default: 0,
    aten.reflection_pad2d.default: 0,
    aten.reflection_pad3d.default: 0,
    aten.replication_pad2d.default: 0,
    aten.replication_pad3d.default: 0,
    aten.max_unpool2d.default: 0,
    aten.reflection_pad2d_backward.default: 1,
    aten.reflection_pad3d_backward.default: 1,
    aten.replication_pad2d_backward.default: 1,
    aten.replication_pad3d_backward.default: 1,
}
_CONTIGUOUS: Final = frozenset({
    aten.log_sigmoid_forward.default, aten.rrelu_with_noise.default, aten.glu_backward.default,
    aten.pow.Scalar, aten.native_layer_norm.default, aten._log_softmax.default,
    aten.linalg_vector_norm.default, aten.im2col.default, aten.tril.default, aten.triu.default,
    aten.masked_fill.Scalar, aten.masked_fill.Tensor,
})  # fmt: skip
# The first result is channels-last if the first argument is, and is not contiguous as well.
_BATCH_NORMS: Final = frozenset({
    aten.native_batch_norm.default, aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats, aten._native_batch_norm_legit_no_training.default,
})  # fmt: skip
# Results are like `empty_like` of the first argument, if no memory format is given.
_AS_FIRST: Final = frozenset({
    aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default,
    aten.full_like.default, aten.rand_like.default, aten.randn_like.default, aten.flip.default,
    aten.sort.default, aten.sort.stable, aten.conj_physical.default, aten.deg2rad.default,
    aten.rad2deg.default, aten.hardtanh.default, aten.relu6.default, aten.nan_to_num.default,
    aten._prelu_kernel.default, aten.huber_loss.default, aten.binary_cross_entropy.default,
})  # fmt: skip
# Elementwise ops without PyTorch's tag, and ops of other kinds that have it.
_UNTAGGED: Final = frozenset({
    aten.floor_divide.default, aten.complex.default, aten.polar.default, aten.hardswish.default,
    aten.mse_loss.default, aten.smooth_l1_loss.default,
})  # fmt: skip
_NOT_ELEMENTWISE: Final = frozenset({aten.clone.default, aten.mvlgamma.default})
_OPERANDS: Final = frozenset(("self", "other", "x", "n"))  # numbers of which PyTorch makes tensors


def with_eager_layout(
    func: Any, args: Sequence[Any], result: Any, named: Mapping[str, Any] = NO_NAMES
) -> Any:
    """Return the result with the strides that it has on the CPU; most are unchanged. `named`: the
    op's keyword arguments."""
    place = _AS_ARGUMENT.get(func)
    if place is not None:
        layout = LAYOUTS[result.dim()] if is_channels_last(args[place]) else torch.contiguous_format
        return _in_order(result, layout)
    if func in _CONTIGUOUS:
        return _each(result, lambda r: _in_order(r, torch.contiguous_format))
    if func in _AS_FIRST:
        if named.get("memory_format") not in (None, torch.preserve_format):
            return result
        return _each(result, lambda r: _as_first(r, args[0]))
    if func in _BATCH_NORMS:
        return _in_order(result[0], _format_for_batch_norm(args[0])), *result[1:]
    special = _SPECIAL.get(func)
    if special is not None:
        return special(result, *args)
    places = _operand_places(func)
    return _elementwise(result, [args[k] for k in places if k < len(args)]) if places else result


def _each(result: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return change(result) if isinstance(result, Tensor) else tuple(map(change, result))


def _format_for_batch_norm(x: Tensor) -> torch.memory_format:
    last = LAYOUTS.get(x.dim())
    if last is None or x.is_contiguous():
        return torch.contiguous_format
    is_last = x.is_contiguous(memory_format=last) or is_channels_last(x)
    return last if is_last else torch.contiguous_format


@functools.cache
def _operand_places(func: Any) -> tuple[int, ...]:
    """Return the positions of the operands of an elementwise op; none for another op. A number is
    an operand where PyTorch makes a tensor of it."""
    schema = schema_of(func)
    returns = schema.returns
    is_tagged = torch.Tag.pointwise in func.tags and func not in _NOT_ELEMENTWISE
    if not is_tagged and func not in _UNTAGGED:
        return ()
    if len(returns) != 1 or returns[0].alias_info is not None:
        return ()
    kinds = [(str(a.type), a.name) for a in schema.arguments]
    found = [
        k
        for k, (kind, name) in enumerate(kinds)
        if kind in ("Tensor", "Optional[Tensor]") or (kind == "number" and name in _OPERANDS)
    ]
    return tuple(reversed(found) if func is aten.threshold_backward.default else found)


def _elementwise(result: Tensor, operands: Sequence[Any]) -> Tensor:
    """Return the result with the strides that PyTorch's TensorIterator gives to it on the CPU.

    If all operands have one shape, then contiguous ones give a contiguous result, channels-last
    images a channels-last one, and dense ones of equal strides one of the same strides. Otherwise
    dims are sorted by the strides of the operands. On meta tensors many ops are decomposed, and the
    decomposition treats dims of size 1 in another way:

        x: [2, 1, 4, 5], strides (20, 1, 5, 1)
        relu(x)     strides (20, 20, 5, 1)     x counts as contiguous
        x * 2       strides (20, 1, 5, 1)      2 has another shape than x
    """
    tensors = [x for x in operands if isinstance(x, Tensor)]
    shape = tuple(result.shape)
    has_number = any(isinstance(x, int | float | complex) for x in operands)
    are_alike = not has_number and all(x.shape == shape for x in tensors)
    strides = _of_equal_shapes(tensors) if are_alike else None
    if strides is None:
        if not tensors or torch.broadcast_shapes(*(x.shape for x in tensors)) != shape:
            return result
        strides = _dense(shape, _sorted_dims(shape, [_broadcast(x, shape) for x in tensors]))
    return _with_strides(result, strides)


def _of_equal_shapes(tensors: Sequence[Tensor]) -> Strides | None:
    first = tensors[0]
    if all(x.is_contiguous() for x in tensors):
        return _dense(first.shape, range(first.dim()))
    if first.dim() != VOLUMES:
        last = LAYOUTS.get(first.dim())
        if last is not None and all(x.is_contiguous(memory_format=last) for x in tensors):
            return _dense(first.shape, (0, 2, 3, 1))
    is_copied = all(is_packed(x) and x.stride() == first.stride() for x in tensors)
    return first.stride() if is_copied else None


def _broadcast(x: Tensor, shape: Sequence[int]) -> Strides:
    """Return the strides of x as an operand of a result of this shape."""
    new = len(shape) - x.dim()
    rows = zip(x.shape, shape[new:], x.stride(), strict=True)
    return (0,) * new + tuple(0 if n != size else stride for n, size, stride in rows)


def _sorted_dims(shape: Sequence[int], operands: Sequence[Strides]) -> Sequence[int]:
    """Return the dims in memory order, the outermost first: an insertion sort, since the comparison
    is not transitive."""
    dims = list(reversed(range(len(shape))))
    for i in range(1, len(dims)):
        at = i
        for k in range(i - 1, -1, -1):
            found = _compare(dims[k], dims[at], shape, operands)
            if found < 0:
                break
            if found > 0:
                dims[k], dims[at] = dims[at], dims[k]
                at = k
    return dims[::-1]


def _compare(a: int, b: int, shape: Sequence[int], operands: Sequence[Strides]) -> int:
    """Return 1 if dim `a` lies outside of dim `b`, -1 if inside, 0 if no operand tells."""
    for strides in operands:
        if strides[a] and strides[b]:
            if strides[a] != strides[b]:
                return 1 if strides[a] > strides[b] else -1
            if shape[a] > shape[b]:
                return 1
    return 0


def _dense(shape: Sequence[int], order: Sequence[int]) -> Strides:
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = step
        step *= max(shape[d], 1)
    return tuple(strides)


def _rolled(result: Tensor, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Return the result of `roll` with its strides on the CPU. `roll` concatenates two parts along
    each dim; it is contiguous if one of them is empty."""
    pairs = list(zip(shifts, dims, strict=False))
    is_last = bool(pairs) and is_channels_last(x) and all(n % x.shape[d] for n, d in pairs)
    return _in_order(result, LAYOUTS[x.dim()] if is_last else torch.contiguous_format)


def _convolved(result: Tensor, x: Tensor, w: Tensor, _bias: Any, *how: Any) -> Tensor:
    """Return the result of a convolution with its strides on the CPU: channels-last if one operand
    is, except for PyTorch's own 3-D kernels. On meta tensors it is always contiguous."""
    if result.dim() == 3:  # runs as images of one row
        rows = (v.unsqueeze(2) for v in (x.contiguous(), w))
        is_last = any(map(is_channels_last, rows))
        return _in_order(result.unsqueeze(2), LAYOUTS[4]).squeeze(2) if is_last else result
    if not (is_channels_last(x) or is_channels_last(w)):
        return result
    if result.dim() == VOLUMES and not is_onednns(x, w, *how[:6]):
        return result
    return torch.empty_like(result, memory_format=LAYOUTS[result.dim()])


def _indexed(result: Tensor, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Return the result of `x[indices]` with its strides on the CPU: those of an elementwise op of
    the indices and of x, which has strides 0 where it is indexed."""
    tensors = [i for i in indices if i is not None]
    if not tensors or any(i.dtype in (torch.bool, torch.uint8) for i in tensors):
        return result
    places = [d for d, i in enumerate(indices) if i is not None]
    free = [d for d in range(x.dim()) if d not in places]
    is_run = places == list(range(places[0], places[-1] + 1))
    before = places[0] if is_run else 0
    tensors = cast("Sequence[Tensor]", torch.broadcast_tensors(*tensors))
    shape = tensors[0].shape
    outer, inner = ([x.stride(d) for d in part] for part in (free[:before], free[before:]))
    source = torch.empty_strided(
        result.shape, (*outer, *[0] * len(shape), *inner), dtype=x.dtype, device="meta"
    )
    full = (*[1] * len(outer), *shape, *[1] * len(inner))
    return _elementwise(result, [source, *(i.reshape(full) for i in tensors)])


def _gated(result: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    return _elementwise(result, x.chunk(2, dim))


def _logits_loss(result: Tensor, x: Tensor, target: Tensor, *rest: Any) -> Tensor:
    """Return the loss with its strides on the CPU, which begins with `1 - target`."""
    return _elementwise(result, [target, 1]) if result.shape == target.shape else result


def is_onednns(x: Tensor, w: Tensor, *options: Any) -> bool:
    """Return whether oneDNN runs this convolution on the CPU, as PyTorch decides it.

    `options`: stride, padding, dilation, transposed, output_padding, groups.
    """
    # PyTorch decides by CPU tensors: here of one element, expanded.
    images, weights = (torch.empty(1, dtype=v.dtype, device="cpu").expand(v.shape) for v in (x, w))
    return not is_slow_convolution(images, weights, *options)


_SPECIAL: Final[dict[Any, Callable[..., Tensor]]] = {
    aten.convolution.default: _convolved,
    aten.roll.default: _rolled,
    aten.index.Tensor: _indexed,
    aten.glu.default: _gated,
    aten.binary_cross_entropy_with_logits.default: _logits_loss,
}


def is_dense(x: Tensor) -> bool:
    """Return whether PyTorch's kernels read the tensor as it is: contiguous or channels-last."""
    last = LAYOUTS.get(x.dim())
    return x.is_contiguous() or (last is not None and x.is_contiguous(memory_format=last))


def is_channels_last(x: Tensor) -> bool:
    """Return whether PyTorch treats x: [N, C, ...] as channels-last. That depends on strides alone,
    which are arbitrary for dims of size 1; contiguous images of one pixel do not count."""
    if x.dim() not in LAYOUTS or not x.stride(1):
        return False
    least = 0
    for d in (1, *range(x.dim() - 1, 1, -1), 0):
        if not x.shape[d] or x.stride(d) < least or (d == 0 and least == x.stride(1)):
            return False
        least = x.stride(d) * x.shape[d]
    return True


def _as_first(result: Tensor, x: Tensor) -> Tensor:
    """Return the result with the strides of `empty_like(x)` on the CPU, unless it is a reduction of
    x. On meta tensors the strides of dims of size 1 are others."""
    if result.shape != x.shape:
        return result
    if is_packed(x):
        return _with_strides(result, x.stride())
    return _with_strides(result, torch.empty_like(x).stride())


def _with_strides(x: Tensor, strides: Strides) -> Tensor:
    if x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)


def _in_order(x: Tensor, layout: torch.memory_format) -> Tensor:
    found = torch.empty_like(x, memory_format=layout)
    return x if found.stride() == x.stride() else found


def is_packed(x: Tensor) -> bool:
    """Return whether the elements of x fill memory without gaps, in any order of dims."""
    step = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
