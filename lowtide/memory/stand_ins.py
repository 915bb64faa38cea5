"""Tensors without memory that stand for other tensors: of the same shape, strides and dtype.

like(x)              a meta tensor; a leaf unless `x` is the result of an op with a gradient
from_leaf(x)         the result of an op on `x`, whose gradient flows to `x`
over_nothing(x, d)   a tensor on device `d` whose pages are never touched
"""

from __future__ import annotations

import mmap
import operator
import sys
from typing import Any, Final, cast

import torch

from lowtide.errors import LowtideError
from lowtide.torch_private.pytree import tree_leaves, tree_map_only
from lowtide.torch_private.tensors import negative_view, storage_nowhere, throw_on_data_pointer

Tensor = torch.Tensor
Storage = torch.UntypedStorage
META: Final = torch.device("meta")
_SMALL_BYTES: Final = 1 << 16  # smaller storages are allocated, not mapped
_CPU: Final = torch.device("cpu")
_NO_RESERVE: Final = 0x4000 if sys.platform == "linux" else 0  # Python has no name for it


def like(x: torch.Tensor, requires_grad: bool = False) -> torch.Tensor:
    """Return a meta tensor of the same form; a leaf unless it requires grad and `x` is no leaf."""
    made = torch.empty_strided(
        x.shape, x.stride(), dtype=x.dtype, device=META, requires_grad=requires_grad
    )
    return made if x.is_leaf or not requires_grad else from_leaf(made)


def with_sizes(value: Any) -> Any:
    """Return the pytree with meta tensors for those whose sizes are symbols, in the sizes that the
    symbols stand for. A pytree without such tensors is returned itself, so that lists keep their
    identity. Raises LowtideError if a symbol has no value."""
    found = tree_map_only(torch.Tensor, _with_sizes, value)
    is_same = all(map(operator.is_, tree_leaves(found), tree_leaves(value)))
    return value if is_same else found


def _with_sizes(x: Tensor) -> Tensor:
    if x.layout is not torch.strided or x.is_nested:
        return x
    form = [*x.shape, *x.stride()]
    if all(type(n) is int for n in form):
        return x
    found: list[Any] = [
        n if type(n) is int else getattr(cast("Any", n).node, "hint", None) for n in form
    ]
    if None in found:
        sizes = ", ".join(map(str, x.shape))
        raise LowtideError(f"the sizes ({sizes}) have no values: pass a tensor with real sizes")
    rank = x.dim()
    return torch.empty_strided(
        found[:rank], found[rank:], dtype=x.dtype, device=META, requires_grad=x.requires_grad
    )


def from_leaf(leaf: torch.Tensor) -> torch.Tensor:
    """Return the result of an op on the leaf, of the same form. Unlike the leaf, it may be
    changed in place; its gradient flows to the leaf. No memory is touched."""
    with torch.enable_grad():
        return cast("torch.Tensor", _FromLeaf.apply(leaf))


class _FromLeaf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> torch.Tensor:
        return cotangents[0]


def over_nothing(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the form of `x` on the device, whose memory is never touched."""
    return in_storage(x, untouched(x.untyped_storage().nbytes(), device))


def untouched(nbytes: int, device: torch.device = _CPU) -> Storage:
    """Return a storage of which no page is resident. A GPU's has no address: PyTorch raises an
    error where it is needed, as in a launch of the user's own kernel."""
    if device.type != "cpu":
        nowhere = storage_nowhere(nbytes, device)
        with torch.no_grad():
            empty = torch.empty(0, dtype=torch.uint8, device=device).set_(nowhere)  # pyright: ignore
        throw_on_data_pointer(empty)
        return nowhere
    if nbytes < _SMALL_BYTES:
        return Storage(nbytes, device="cpu")
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    return torch.frombuffer(pages, dtype=torch.uint8).untyped_storage()


def in_storage(x: Tensor, storage: Storage) -> Tensor:
    """Return a tensor of the form of `x` in this storage."""
    made = torch.empty(0, dtype=x.dtype, device=storage.device)
    made = made.set_(storage, x.storage_offset(), x.shape, x.stride())  # pyright: ignore
    made = made.conj() if x.is_conj() else made
    return negative_view(made) if x.is_neg() else made
