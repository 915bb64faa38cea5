"""Meta tensors that stand for tensors: of the same form, without memory.

like(x)         a leaf if `x` is a leaf or needs no gradient, else the result of an op
from_leaf(x)    the result of an op on `x`, whose gradient is the leaf's
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
_SMALL_BYTES: Final = 1 << 16  # less is not worth a mapping of its own
_CPU: Final = torch.device("cpu")
_NO_RESERVE: Final = 0x4000 if sys.platform == "linux" else 0  # Python has no name for it


def like(x: torch.Tensor, requires_grad: bool = False) -> torch.Tensor:
    """A meta tensor of the same form; no leaf if it requires grad and `x` is none."""
    made = torch.empty_strided(
        x.shape, x.stride(), dtype=x.dtype, device=META, requires_grad=requires_grad
    )
    return made if x.is_leaf or not requires_grad else from_leaf(made)


def with_sizes(value: Any) -> Any:
    """The same, with meta tensors for those whose sizes are symbols, at the values that these are
    known to have; raises LowtideError where they have none. Where there is none, it is the value
    itself: which lists are one says something, too."""
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
        raise LowtideError(f"the sizes ({sizes}) have no values: give a tensor of the sizes meant")
    rank = x.dim()
    return torch.empty_strided(
        found[:rank], found[rank:], dtype=x.dtype, device=META, requires_grad=x.requires_grad
    )


def from_leaf(leaf: torch.Tensor) -> torch.Tensor:
    """What an op has made of it, of the same form: it may be changed in place, and its gradient is
    the leaf's. No memory is touched."""
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
    """A tensor of the form of `x`, on the device."""
    return over(x, untouched(x.untyped_storage().nbytes(), device))


def untouched(nbytes: int, device: torch.device = _CPU) -> Storage:
    """Memory of which no page is used, however much it is. A GPU's is nowhere: whoever asks where,
    as to launch a kernel of their own, gets an error of PyTorch's."""
    if device.type != "cpu":
        nowhere = storage_nowhere(nbytes, device)
        with torch.no_grad():
            over = torch.empty(0, dtype=torch.uint8, device=device).set_(nowhere)  # pyright: ignore
        throw_on_data_pointer(over)
        return nowhere
    if nbytes < _SMALL_BYTES:
        return Storage(nbytes, device="cpu")
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    return torch.frombuffer(pages, dtype=torch.uint8).untyped_storage()


def over(x: Tensor, storage: Storage) -> Tensor:
    """A tensor of the form of `x`, in this memory."""
    made = torch.empty(0, dtype=x.dtype, device=storage.device)
    made = made.set_(storage, x.storage_offset(), x.shape, x.stride())  # pyright: ignore
    made = made.conj() if x.is_conj() else made
    return negative_view(made) if x.is_neg() else made
