"""Exclusive ownership: decides whether a kernel may overwrite a tensor's memory.

In: a tensor that its holder no longer needs. Out: True only if all references to its memory are
known: Python's, the tensor's uses in C++ (saved tensors, buffers of autograd's engine), and uses of
its storage (views, detached tensors, numpy arrays made of it).

    held = [conv(x)]
    is_alone(held, 0)               True
    y = held[0].view(-1)            then False, as after an op that saved it for its gradient
    over(held[0], (4, 8))           another tensor in the same memory, with its values

Memory from outside PyTorch (numpy, DLPack, a file, shared memory) is never overwritten, since its
references are unknown; nor a GPU's, since another stream may still read it.

The counts of a tensor without other references depend on the versions of Python and PyTorch, so
they are measured on such a tensor.
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

LEAST_BYTES = arena.SMALL_BYTES  # what is smaller is not worth the counting

Counts = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Rules:
    """`is_rehearsal`: whose meta tensors stand for others; `on_host`: for tensors of the CPU."""

    on_host: bool = True
    is_rehearsal: bool = False


def is_alone(held: Sequence[torch.Tensor], k: int, others: int = 0) -> bool:
    """Whether `held[k]` is known to nobody but `held`, and to so many other references of the
    caller's."""
    references, *uses = _alone()
    return _is_whole(held[k], rules()) and _counts(held, k) == (references + others, *uses)


def rules() -> Rules:
    """Those of the call that this thread is in."""
    return _now.rules or _OF_A_RUN


def is_alone_in_backward(cotangents: Sequence[Any], k: int, rules: Rules, is_watched: bool) -> bool:
    """The same of one of the arguments of an autograd.Function's `backward`, asked there, of the
    sequence that it got. `rules`: of the call whose backward pass it is; `is_watched`: whether a
    hook of ours looks on, for which PyTorch holds the cotangents once more."""
    if not has_engine_alone(cotangents, k, is_watched):
        return False
    return _is_whole(cotangents[k], rules)


def has_engine_alone(cotangents: Sequence[Any], k: int, is_watched: bool) -> bool:
    """Whether nobody but autograd's engine has it, be its memory whose it may."""
    if not _is_large(cotangents[k]):
        return False
    return _counts(cotangents, k) == (_probes().watched if is_watched else _probes().given)


def _is_large(x: Any) -> bool:
    """Is it a tensor with memory, and worth the counting? A transform makes some without (vmap)."""
    if type(x) is not torch.Tensor or x.numel() * x.itemsize < LEAST_BYTES:
        return False
    return has_storage(x)


def all_alone_in_backward(
    cotangents: Sequence[Any], rules: Rules, is_watched: bool
) -> tuple[int, ...]:
    """The places of all of which that is so."""
    return tuple(
        k for k in range(len(cotangents)) if is_alone_in_backward(cotangents, k, rules, is_watched)
    )


def all_alone_as_saved(saved: Sequence[Any], rules: Rules) -> tuple[int, ...]:
    """The places of what only that autograd.Function has saved whose `backward` asks, of the
    sequence that it got. Where the graph is kept, it is needed again: that is not asked here."""
    return tuple(k for k in range(len(saved)) if _is_alone_as_saved(saved, k, rules))


def _is_alone_as_saved(saved: Sequence[Any], k: int, rules: Rules) -> bool:
    if not _is_large(saved[k]):
        return False
    return _is_whole(saved[k], rules) and _counts(saved, k) == _probes().saved


def over(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A dense tensor of these sizes in the memory of `x`, which has as many elements: a tensor of
    its own for autograd, no view."""
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
    """Inside, these are the rules, as a rehearsal has its own."""
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
    """Is it a plain tensor that has all of its storage, and did PyTorch or the arena make that?"""
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
    # whoever has the storage's object is no use of the storage
    return sys.getrefcount(held[k]), in_cpp, sys.getrefcount(storage), uses


@functools.cache
def _alone() -> Counts:
    """Of a tensor that one list has."""
    return _elsewhere(lambda: _counts([torch.empty(1, device="cpu")], 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probes:
    """Counts in a backward pass: of a cotangent that only the engine has; the same where a hook
    looks on; of what only the graph has saved."""

    given: Counts
    watched: Counts
    saved: Counts


@functools.cache
def _probes() -> _Probes:
    given, saved = _elsewhere(lambda: _probed(is_watched=False))
    watched, _ = _elsewhere(lambda: _probed(is_watched=True))
    return _Probes(given=given, watched=watched, saved=saved)


def prepare() -> None:
    """Finds out what counts are to be: outside of any backward pass."""
    _alone()
    _probes()


def _probed(is_watched: bool) -> tuple[Counts, Counts]:
    found: list[Counts] = []
    with torch.enable_grad(), torch.inference_mode(False):
        x = torch.ones(2, device="cpu", requires_grad=True)
        y = cast("torch.Tensor", _Probe.apply(found, x * 1))
        if is_watched:
            y.grad_fn.register_hook(_look_on)  # pyright: ignore
        torch.autograd.grad((y * torch.ones(2, device="cpu")).sum(), [x])
    given, saved = found
    return given, saved


def _look_on(*_: object) -> None:
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


def _elsewhere(ask: Any) -> Any:
    """The answer of another thread, on which no mode is entered."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    thread.join()
    return answers[0]
