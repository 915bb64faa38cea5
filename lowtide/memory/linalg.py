"""What PyTorch's linear algebra allocates on the CPU, for LAPACK: an upper bound.

In: an ATen op, its arguments and its result, on meta tensors. Out: bytes beyond the result.

    results                      ops that have no meta kernel  ──►  empty results
    svd, eigh, qr, pinv, lstsq   copies of what LAPACK writes over, of all matrices of a batch, and
                                 its work space, of one matrix after the other

Found by measuring, PyTorch 2.13 with MKL: `tests/memory/test_prediction`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch

from lowtide.memory.convolution import nbytes

aten = torch.ops.aten
Tensor = torch.Tensor
_REFLECTORS: Final = 256  # columns at a time, of a full basis


def results(func: Any, args: Sequence[Any]) -> tuple[Tensor, ...] | None:
    """What an op gives, on the meta device; None for any op that PyTorch knows there."""
    make = _MAKERS.get(func)
    return None if make is None else make(*args)


def _lstsq(a: Tensor, b: Tensor, *_: Any) -> tuple[Tensor, ...]:
    """The solution lies in the first rows of what the right side was copied to."""
    rows, columns = a.shape[-2:]
    is_vector = b.dim() == a.dim() - 1 and b.shape == a.shape[:-1]
    right = (b.unsqueeze(-1) if is_vector else b).shape
    batch: Any = cast("Any", torch).broadcast_shapes(a.shape[:-2], right[:-2])
    room = b.new_empty((*batch, max(rows, columns), right[-1]))
    solution = room[..., :columns, :]
    rank = a.new_empty(a.shape[:-2], dtype=torch.int64)
    nothing = a.new_empty(0)
    return (solution.squeeze(-1) if is_vector else solution), nothing, rank, nothing.clone()


def copied(args: Sequence[Any], _: Any) -> int:
    """The operand."""
    return nbytes(args[0])


def right_copied(args: Sequence[Any], _: Any) -> int:
    """The second operand."""
    return nbytes(args[1])


def svd(args: Sequence[Any], result: Any) -> int:
    """Of `aten._linalg_svd`."""
    x = args[0]
    rows, columns = x.shape[-2:]
    least = min(rows, columns)
    if not result[0].numel():
        return nbytes(x)
    is_full = max(result[0].shape[-1], result[2].shape[-2]) > least
    full = _REFLECTORS * max(rows, columns) if is_full else 0
    return nbytes(x) + (4 * least * least + full) * x.itemsize


def eigh(args: Sequence[Any], result: Any) -> int:
    """Of `aten._linalg_eigh`; vectors are found in the result."""
    x = args[0]
    return 2 * x.shape[-1] ** 2 * x.itemsize if result[1].numel() else nbytes(x)


def qr(args: Sequence[Any], result: Any) -> int:
    """Of `aten.linalg_qr`; the triangle of each matrix of a batch is copied."""
    x = args[0]
    rows, columns = x.shape[-2:]
    triangles = nbytes(result[1]) if x.dim() > 2 and rows > columns else 0
    return triangles + (0 if result[0].numel() else nbytes(x)) + _work(x)


def pinv(args: Sequence[Any], result: Any) -> int:
    """Of `aten.linalg_pinv`: the svd, or its parts multiplied."""
    x = args[0]
    least, most = sorted(x.shape[-2:])
    if not most:
        return 0
    small = nbytes(x) // most * least
    work = 4 * least * least * x.itemsize
    return max(2 * nbytes(x) + small + work - nbytes(result), nbytes(x) + 2 * small)


def euclidean(args: Sequence[Any], _: Any) -> int:
    """Of `aten._euclidean_dist`: the points, each with its norm and a one beside it."""
    points = args[:2]
    return sum(nbytes(x) + 2 * x.itemsize * (x.numel() // max(x.shape[-1], 1)) for x in points)


def matrix_exp(args: Sequence[Any], result: Any) -> int:
    """Of `aten.linalg_matrix_exp`: for matrices whose norms are alike 11 times their bytes. The
    more squarings there are between the least norm of a batch and the largest, the more is held,
    and of small matrices some numbers for each: 18.8 times is enough for norms that are up to a
    million times others. Of one matrix the norm decides."""
    x = args[0]
    n = x.shape[-1]
    if n <= 1:
        return 0
    if x.numel() == n * n:
        return 12 * nbytes(x)
    return nbytes(x) * 94 // 5 - nbytes(result)


def _work(x: Tensor) -> int:
    """A block of columns."""
    return _REFLECTORS * x.shape[-1] * x.itemsize


_MAKERS: Final[dict[Any, Callable[..., tuple[Tensor, ...]]]] = {
    aten.linalg_lstsq.default: _lstsq,
}

BOUNDS: Final[dict[Any, Callable[[Sequence[Any], Any], int]]] = {
    aten._linalg_svd.default: svd,
    aten._linalg_eigh.default: eigh,
    aten.linalg_eig.default: copied,
    aten.linalg_qr.default: qr,
    aten.linalg_pinv.atol_rtol_tensor: pinv,
    aten.linalg_lstsq.default: copied,
    aten.linalg_inv_ex.default: copied,
    aten.linalg_matrix_exp.default: matrix_exp,
    aten.cholesky_solve.default: right_copied,
    aten._euclidean_dist.default: euclidean,
}
