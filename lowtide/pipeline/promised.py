"""A call of what `lt.compile` gave, made of several parts, holds what `memory()` has told of it.

In: a rehearsal's promise, for arguments of some form. Out: for each later call with such arguments
its graphs' share of the budget, and a `heap.Guard` over all of them, what Python does between them,
and the backward pass.

    c.memory(x)     79.7 MB: kept in mind
    c(x)            under the Guard, where the heap's holes would else be 30 MB more

A call that is one graph needs none: its Driver looks after it (`pipeline/holes`). Before ops of
Python's own a mode stands, where some are large.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import torch

from lowtide.errors import BudgetError
from lowtide.frontend.dynamo.internals import wrapped
from lowtide.memory.graph import nodes_of, now
from lowtide.memory.leaves import tensors_in
from lowtide.memory.modes import LooksOn
from lowtide.memory.scopes.hidden import hide, hide_with_callees
from lowtide.pipeline import holes, listening, plain
from lowtide.pipeline.budget import allowance
from lowtide.runtime import heap, libc

_MOST_KNOWN: Final = 256
_SEEN: Final = (
    *(torch.Tensor, bool, int, float, complex, str, bytes, type(None)),
    *(torch.dtype, torch.device, torch.memory_format, type),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a call takes at most, and what each op adds. `calls_ops`, `goes_back`: whether Python
    calls large ops itself, in the call and in its backward pass. `strays`: where the data decide
    what is run. `share_bytes`: of each graph, where there is a budget, and `planned_bytes`, the sum
    of their peaks; `refusal`: it is too small.
    `is_tight`: the arena's free blocks are not counted. `has_heap`: else there are no holes."""

    peak_bytes: int
    growths: Mapping[object, int] = field(default_factory=dict[object, int])
    calls_ops: bool = False
    goes_back: bool = False
    strays: heap.Strays | None = None
    share_bytes: int | None = None
    planned_bytes: int = 0
    refusal: BudgetError | None = None
    is_tight: bool = False
    has_heap: bool = True

    def guard(self) -> heap.Guard:
        """One for a call."""
        make = heap.Apart if self.goes_back else heap.Guard
        return make(
            most_bytes=self.peak_bytes,
            growths=self.growths,
            strays=self.strays,
            is_tight=self.is_tight,
        )


class Promises:
    """Those of one compiled object, by the form of a call's arguments."""

    def __init__(self) -> None:
        self._known: dict[Any, Promise] = {}
        self._signature: inspect.Signature | None = None
        self._root: torch.nn.Module | None = None

    def give(self, args: tuple[Any, ...], kwargs: dict[str, Any], promise: Promise) -> None:
        """Calls with such arguments are held to it from now on."""
        if not libc.keeps_holes():
            promise = replace(promise, has_heap=False)
        if not promise.has_heap and promise.share_bytes is None and promise.refusal is None:
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        if (key := self._key(args, kwargs)) is not None:
            self._known[key] = promise

    def kept(self, call: Callable[..., Any], root: Any = None) -> Callable[..., Any]:
        """The same call, which keeps them; `root`: what was compiled, if that is a module."""

        def keeping(*args: Any, **kwargs: Any) -> Any:
            mine = allowance.current()
            is_tried = mine is not None and mine.is_tried
            promise = self._of(args, kwargs) if self._known and not is_tried else None
            if promise is not None and (mine is None or not mine.count):  # else within such a call
                if promise.refusal is not None:
                    raise copy.copy(promise.refusal)  # its traceback's frames hold the arguments
                if mine is not None:
                    mine.share_bytes, mine.told_bytes = promise.share_bytes, promise.planned_bytes
            elif mine is not None and mine.has_several:
                promise = _up_to(mine.budget_bytes, mine.calls_ops)
            if promise is None or not _is_guarded(promise):
                return call(*args, **kwargs)
            with _Keeping(promise) as kept:
                result = call(*args, **kwargs)
                kept.gives(result)
                return result

        self._root = root if isinstance(root, torch.nn.Module) else None
        self._signature = _signature(call if self._root is None else self._root.forward)
        return wrapped(keeping, call)

    def _key(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, sees_gradients: bool = True
    ) -> Any:
        """The same for a call that is written otherwise; None where there is none.
        `sees_gradients`: which are there already; else as if none were."""
        try:
            given: Any = (args, sorted(kwargs.items()))
            if self._signature is not None:
                bound = self._signature.bind(*args, **kwargs)
                bound.apply_defaults()
                given = [*bound.arguments.items()]
            state = torch.is_grad_enabled(), torch.get_num_threads()
            unseen = [*_unseen(given, sees_gradients), *_modes(self._root, sees_gradients)]
            known = holes.form(given, sees_gradients=sees_gradients)
            key = (*state, *plain.surroundings(), known, *unseen)
            hash(key)
        except Exception:  # an object of the user's that cannot be looked at: then there is none
            return None
        return key

    def _of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Promise | None:
        """Which one is to be kept just now. Where gradients are there, what was told of a call
        without holds, too, if the function does not ask for them: such a call makes more. It is
        not refused for that."""
        if plain.reason():
            return None
        found = self._known.get(self._key(args, kwargs))
        if found is None:
            found = self._known.get(self._key(args, kwargs, sees_gradients=False))
            found = None if found is None or found.refusal is not None else found
        return found


def _up_to(budget_bytes: int, calls_ops: bool) -> Promise:
    """What can be told of a call that nobody has asked about."""
    return Promise(
        peak_bytes=budget_bytes, calls_ops=calls_ops, is_tight=True, has_heap=libc.keeps_holes()
    )


def _is_guarded(promise: Promise) -> bool:
    """Whether the heap is looked after in a call just now, and nobody else does."""
    if not promise.has_heap or heap.trimmer() is not None or listening.is_asked():
        return False
    return promise.strays is None or promise.strays.begin()


class _Keeping:
    """One call."""

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._guard = promise.guard()
        self._on = contextlib.ExitStack()
        self._since = now()

    def __enter__(self) -> _Keeping:
        self._on.enter_context(heap.trimming(self._guard))
        if self._promise.calls_ops:
            self._on.enter_context(_BeforeOps(self._guard, guesses=not self._promise.growths))
        return self

    def gives(self, result: Any) -> None:
        """The call's result, with which one may go backward."""
        tensors = tensors_in(result)
        for node in nodes_of(tensors, self._since):
            self._guard.stand_before(node, node.name())
        self._guard.hand_out(sum(x.nbytes for x in tensors if x.requires_grad))

    def __exit__(self, *error: Any) -> None:
        self._on.close()


class _BeforeOps(LooksOn):
    """`guesses`: where nobody knows what ops add, that is taken to be their largest operand."""

    def __init__(self, guard: heap.Guard, *, guesses: bool) -> None:
        super().__init__()
        self._guard = guard
        self._guesses = guesses

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self._guard.check(func, _largest_bytes(args) if self._guesses else 0)
        return func(*args, **(kwargs or {}))


def _largest_bytes(operands: Sequence[Any]) -> int:
    sizes = (x.numel() * x.itemsize for x in operands if isinstance(x, torch.Tensor))
    return max(sizes, default=0)


def _unseen(value: Any, sees_gradients: bool, depth: int = 0) -> Iterator[int]:
    """What `holes.form` does not look into: which objects these are."""
    if isinstance(value, _SEEN):
        return
    if isinstance(value, torch.nn.Module):
        yield from _modes(value, sees_gradients)
        return
    items: Any = vars(value) if dataclasses.is_dataclass(value) else value
    if isinstance(items, dict):
        items = list(cast("dict[Any, Any]", items).values())
    known = cast("Sequence[Any]", items) if isinstance(items, tuple | list) else None
    if known is None or depth == holes.DEEPEST or len(known) > holes.MOST_ITEMS:
        yield id(value)
        return
    for x in known:
        yield from _unseen(x, sees_gradients, depth + 1)


def _modes(root: torch.nn.Module | None, sees_gradients: bool) -> list[int]:
    """What of a module decides what it runs, and of what there will be gradients, or are."""
    if root is None:
        return []
    trained = sum(1 << k for k, m in enumerate(root.modules()) if m.training)
    parameters = list(enumerate(root.parameters()))
    wanted = sum(1 << k for k, p in parameters if p.requires_grad)
    there = sum(1 << k for k, p in parameters if sees_gradients and p.grad is not None)
    return [trained, wanted, there]


def _signature(call: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(call)
    except (TypeError, ValueError):
        return None


hide(sys.modules[__name__])
for _hidden in (
    *(Promises._of, _Keeping.__init__, _Keeping.__enter__, _Keeping.gives, _Keeping.__exit__),  # pyright: ignore[reportPrivateUsage]
    _BeforeOps.__torch_dispatch__,
):
    hide_with_callees(_hidden)
