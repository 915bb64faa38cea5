"""A call without a budget holds what was predicted for it, and not the heap's holes beside it.

In: a Driver and the arguments of a call that PyTorch's ops are part of. Out: a `heap.Guard` to run
it under, which gives free pages back where more than the predicted peak would be resident.

The first call with some sizes is observed: did the process grow, or was there that much of the heap
in use, which may have been free before? Only then it is worth a rehearsal, which takes some
milliseconds, when that call is over: the first eight sizes at once, others when they come again,
since each call may have its own. What stays small is observed once for its sizes, and at some calls
later on.

    holes.run(driver, args, call)        1: observed, 40 MB; rehearsed        2: under a Guard
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from lowtide.memory import watching
from lowtide.memory.leaves import tensors_in
from lowtide.memory.scopes.disposed import outside_dispatch_modes
from lowtide.memory.scopes.hidden import hide_with_callees
from lowtide.pipeline import faults, plain
from lowtide.runtime import heap, libc

if TYPE_CHECKING:
    from lowtide.pipeline.driver import Driver

LEAST_BYTES: Final = 4 << 20  # what a call has grown by, for its holes to be worth a look
LEAST_USED_BYTES: Final = 1 << 20  # the same of what it had of the heap between two ops
_NOW_AND_THEN: Final = 32  # calls
_AT_ONCE: Final = 8  # sizes
_MOST_KNOWN: Final = 256
DEEPEST: Final = 8  # of lists in lists
MOST_ITEMS: Final = 64
_times_new = 0


def sizes_are_new() -> None:
    """A region has met sizes for the first time."""
    global _times_new
    _times_new += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prediction:
    """`growths`: what each op adds at most. `is_known`: else holes are left. `strays`: where the
    data decide what is run, and a loop may keep more than was shown."""

    is_known: bool = True
    strays: heap.Strays | None = None
    peak_bytes: int = 0
    growths: Mapping[object, int] = field(default_factory=dict[object, int])


_UNKNOWN: Final = _Prediction(is_known=False)


class Holes:
    """What is known of a Driver's calls; see the module's text."""

    __slots__ = ("_calls", "_known", "_seen_new")

    def __init__(self) -> None:
        self._calls = 0  # since one was observed, all of them small; -1: some are large
        self._seen_new = -1
        self._known: dict[Any, _Prediction | None] = {}

    def are_few(self) -> bool:
        """Whether a call can do without a look: the last were small, at sizes that are known."""
        if self._calls < 0 or self._seen_new != _times_new:
            return False
        self._calls += 1
        return self._calls < _NOW_AND_THEN

    def run(self, driver: Driver, args: Sequence[Any], call: Callable[[], list[Any]]) -> list[Any]:
        """What the call with these arguments gives."""
        if not libc.keeps_holes():
            return call()
        key = _key(args, len(driver.function.arguments)) if self._calls < 0 else None
        known = self._known.get(key)
        is_left = known is not None and not known.is_known
        if is_left or (known and known.strays and not known.strays.begin()):
            return call()
        if known is not None:
            guard = heap.Guard(
                most_bytes=known.peak_bytes, growths=known.growths, strays=known.strays
            )
            with heap.trimming(guard):
                results = call()
                guard.hand_out()
                return results
        with heap.trimming(seen := heap.Observer()):
            results = call()
        seen.look()
        self._seen_new = _times_new
        used_bytes = max(seen.used_bytes, _cotangent_bytes(results))
        if seen.grown_bytes >= LEAST_BYTES or used_bytes >= LEAST_USED_BYTES:
            self._calls = -1
            self._learn(driver, args)
        elif self._calls >= 0:
            self._calls = 0
        return results

    def _learn(self, driver: Driver, args: Sequence[Any]) -> None:
        key = _key(args, len(driver.function.arguments))
        known = None  # where there were many, the next call may have other sizes again
        if len(self._known) < _AT_ONCE or key in self._known:
            known = _predicted(driver, args)
        self._remember(key, known)

    def _remember(self, key: Any, known: _Prediction | None) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = known


def _predicted(driver: Driver, args: Sequence[Any]) -> _Prediction:
    from lowtide.pipeline.walk import Walk  # it walks the Driver's road

    if any(map(_is_elsewhere, args)):
        return _UNKNOWN
    try:
        with watching.aside(), outside_dispatch_modes():
            walk = Walk(driver, args)
    except Exception as fault:
        faults.survive(fault, f"{driver.function.name}: what a call takes", "holes are left")
        return _UNKNOWN
    if walk.results is None or walk.fails:
        return _UNKNOWN
    return _Prediction(
        strays=heap.Strays() if walk.may_stray else None,
        peak_bytes=walk.ledger.peak_bytes,
        growths=walk.ledger.growths,
    )


def _cotangent_bytes(results: Sequence[Any]) -> int:
    """What the caller takes of the heap to go backward with."""
    return sum(x.nbytes for x in tensors_in(results) if x.requires_grad)


def _is_elsewhere(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type != "cpu"


def _key(args: Sequence[Any], count: int) -> Any:
    """What a prediction is of. Parameters, which come after the `count` arguments, keep their
    sizes; the first of them tells whether there are gradients yet."""
    first = next((x for x in args[count:] if isinstance(x, torch.Tensor) and x.requires_grad), None)
    numbers = tuple(x for x in args[count:] if isinstance(x, bool | int))
    state = torch.is_grad_enabled(), torch.get_num_threads(), numbers
    return (*state, *plain.surroundings(), form(first), form(args[:count]))


def form(value: Any, depth: int = 0, *, sees_gradients: bool = True) -> Any:
    """What of an argument decides what a call takes: sizes, and what may be a mode; of long lists
    their length. `sees_gradients`: else as if none were there yet."""

    def within(inner: Any) -> Any:
        return form(inner, depth + 1, sees_gradients=sees_gradients)

    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested:
            return type(value), value.layout
        has_grad = sees_gradients and value.is_leaf and value.grad is not None
        return tuple(value.shape), value.stride(), value.dtype, value.requires_grad, has_grad
    if value is None or isinstance(value, bool | int | str):
        return value
    kind = type(cast("object", value))
    if depth == DEEPEST:
        return kind
    if isinstance(value, tuple | list):
        items = cast("Sequence[Any]", value)
        return (len(items), *map(within, items[:MOST_ITEMS]))
    if isinstance(value, dict):
        whole = cast("dict[Any, Any]", value)
        rows = itertools.islice(whole.items(), MOST_ITEMS)
        return kind, len(whole), tuple((form(k), within(x)) for k, x in rows)
    if dataclasses.is_dataclass(kind):
        return kind, within(getattr(value, "__dict__", None))
    return kind


hide_with_callees(heap.Trimmer.before_node)  # a function that Dynamo has compiled may go backward
