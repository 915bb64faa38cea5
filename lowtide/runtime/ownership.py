"""Exclusive ownership: decides whether a kernel may overwrite a tensor's memory.

In: a tensor that its holder no longer needs. Out: True only if no other reference to its memory
exists: in Python, in C++ (saved tensors, buffers of autograd's engine), or to its storage (views,
detached tensors, numpy arrays made of it).

    held = [conv(x)]
    is_alone(held, 0)               True
    y = held[0].view(-1)            then False, as after an op that saved it for its gradient
    over(held[0], (4, 8))           another tensor in the same memory, with its values

Memory from outside PyTorch (numpy, DLPack, a file, shared memory) is never overwritten, since its
references are unknown. Nor is a GPU's memory, since another stream may still read it. The reference
counts without other references depend on the versions of Python and PyTorch, so they are measured.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from lowtide.runtime import arena
from lowtide.torch_private.tensors import address, has_storage, use_count, uses_of_storage

LEAST_BYTES = arena.SMALL_BYTES  # for smaller tensors, counting takes longer than an allocation

Counts = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for overwriting memory. `is_rehearsal`: meta tensors stand for real ones, as in a
    dry run. `on_host`: they stand for CPU tensors."""

    on_host: bool = True
    is_rehearsal: bool = False


def is_alone(held: Sequence[torch.Tensor], k: int, others: int = 0) -> bool:
    """Return whether `held[k]` has no references except by `held` and `others` ones of the
    caller."""
    references, *uses = _alone()
    return _is_whole(held[k], rules()) and _counts(held, k) == (references + others, *uses)


def rules() -> Rules:
    """Return the rules of the call that this thread runs."""
    return _now.rules or _OF_A_RUN


def is_alone_in_backward(cotangents: Sequence[Any], k: int, rules: Rules, is_watched: bool) -> bool:
    """Return `is_alone` for an argument of an autograd.Function's `backward`; call it there.
    `rules`: of the forward pass. `is_watched`: whether a hook of Lowtide is registered, for which
    PyTorch holds another reference to each cotangent."""
    if not has_engine_alone(cotangents, k, is_watched):
        return False
    return _is_whole(cotangents[k], rules)


def has_engine_alone(cotangents: Sequence[Any], k: int, is_watched: bool) -> bool:
    """Return whether only autograd's engine refers to the cotangent, whoever made its memory."""
    if not _is_large(cotangents[k]):
        return False
    return _counts(cotangents, k) == (_probes().watched if is_watched else _probes().given)


def _is_large(x: Any) -> bool:
    """Return whether this is a large tensor with memory; transforms make some without (vmap)."""
    if type(x) is not torch.Tensor or x.numel() * x.itemsize < LEAST_BYTES:
        return False
    return has_storage(x)


def all_alone_in_backward(
    cotangents: Sequence[Any], rules: Rules, is_watched: bool
) -> tuple[int, ...]:
    """Return the positions of all cotangents with `is_alone_in_backward`."""
    return tuple(
        k for k in range(len(cotangents)) if is_alone_in_backward(cotangents, k, rules, is_watched)
    )


def all_alone_as_saved(saved: Sequence[Any], rules: Rules) -> tuple[int, ...]:
    """Return the positions of saved tensors that only the running autograd.Function refers to.
    `saved`: its `saved_tensors`. The caller checks that the graph is not retained."""
    return tuple(k for k in range(len(saved)) if _is_alone_as_saved(saved, k, rules))


def _is_alone_as_saved(saved: Sequence[Any], k: int, rules: Rules) -> bool:
    if not _is_large(saved[k]):
        return False
    return _is_whole(saved[k], rules) and _counts(saved, k) == _probes().saved


def in_memory_of(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a dense tensor of this shape in the memory of `x`, which has as many elements. For
    autograd it is no view."""
    x = x.data
    if x.shape == shape and x.is_contiguous():
        return x
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return x.as_strided(shape, strides[::-1], x.storage_offset()).data


@contextlib.contextmanager
def under(rules: Rules) -> Generator[None]:
    """A context in which this thread has these rules."""
    before, _now.rules = _now.rules, rules
    try:
        yield
    finally:
        _now.rules = before


class _Now(threading.local):
    rules: Rules | None = None


_now = _Now()
_OF_A_RUN = Rules()


def _is_whole(x: torch.Tensor, rules: Rules) -> bool:
    """Return whether it is a plain tensor with all of its storage, which PyTorch or the arena
    made."""
    if type(x) is not torch.Tensor or x.layout is not torch.strided:
        return False
    if x.is_inference() is not torch.is_inference_mode_enabled() or x.is_conj() or x.is_neg():
        return False
    storage = x.untyped_storage()
    if storage.nbytes() != x.numel() * x.itemsize or x.device.type not in ("cpu", "meta"):
        return False
    if x.is_meta:
        return rules.on_host and rules.is_rehearsal
    return not storage.is_shared() and (storage.resizable() or arena.has_made(x))


def _counts(held: Sequence[torch.Tensor], k: int) -> Counts:
    storage = held[k].untyped_storage()
    uses = uses_of_storage(address(storage))
    in_cpp = use_count(held[k])
    # A reference to the storage's Python object is not counted among the storage's uses.
    return sys.getrefcount(held[k]), in_cpp, sys.getrefcount(storage), uses


@functools.cache
def _alone() -> Counts:
    """Return the counts of a tensor that only a list refers to."""
    return _on_new_thread(lambda: _counts([torch.empty(1, device="cpu")], 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probes:
    """Counts in a backward pass. `given`: of a cotangent that only the engine refers to. `watched`:
    the same with a hook. `saved`: of a tensor that only the graph refers to."""

    given: Counts
    watched: Counts
    saved: Counts


@functools.cache
def _probes() -> _Probes:
    given, saved = _on_new_thread(lambda: _probed(is_watched=False))
    watched, _ = _on_new_thread(lambda: _probed(is_watched=True))
    return _Probes(given=given, watched=watched, saved=saved)


def prepare() -> None:
    """Measure the counts, outside of any backward pass."""
    _alone()
    _probes()


def _probed(is_watched: bool) -> tuple[Counts, Counts]:
    found: list[Counts] = []
    with torch.enable_grad(), torch.inference_mode(False):
        x = torch.ones(2, device="cpu", requires_grad=True)
        y = cast("torch.Tensor", _Probe.apply(found, x * 1))
        if is_watched:
            y.grad_fn.register_hook(_no_effect)  # pyright: ignore
        torch.autograd.grad((y * torch.ones(2, device="cpu")).sum(), [x])
    given, saved = found
    return given, saved


def _no_effect(*_: object) -> None:
    pass


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, found: list[Counts], x: torch.Tensor) -> torch.Tensor:
        ctx.found = found
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[None, torch.Tensor]:
        saved = ctx.saved_tensors
        ctx.found += [_counts(cotangents, 0), _counts(saved, 0)]
        return None, cotangents[0]


def _on_new_thread(run: Any) -> Any:
    """Return the result of a function on a new thread, where no mode is active."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    thread.join()
    return results[0]
