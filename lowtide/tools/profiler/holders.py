"""Finds what holds a tensor: a chain of referrers from it to an object that has a name.

In: live tensors. Out: texts, the most direct first:

    local `x` of step (train.py:30)          list `losses` (train.py:12)
    attribute `cache` of Net                 NumPy array in list `history` (train.py:9)
    closure `seen` of make_step.<locals>.step (train.py:8), held by list `hooks` (train.py:3)
    local `h` of step (train.py:31), kept by the traceback of ValueError
    saved for backward by MulBackward0, whose graph hangs on list `losses` (train.py:12)

The search goes from referrer to referrer until one has a name: a module's global, a frame's local,
an object's attribute, a closure. A tensor that autograd saved has no Python referrer; the graphs of
all live tensors are searched for it.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

import torch

from lowtide.cpython import frames_of_threads
from lowtide.memory.scopes.disposed import is_gone
from lowtide.tools.profiler.alive import Found, live_tensors, place_of
from lowtide.tools.profiler.holder_words import (
    error_of,
    in_class,
    in_closure,
    in_frame,
    in_module,
    kind_of,
    locals_of,
)
from lowtide.tools.profiler.records import Allocation
from lowtide.tools.profiler.referrers import Above, is_made_anew, is_profiler_frame
from lowtide.torch_private.autograd import SAVED, sequence_number
from lowtide.torch_private.tensors import base as base_of

_MAX_DEPTH = 6
_MAX_HOLDERS = 4
_MAX_NODES = 20_000


class Holders:
    """The holders of live tensors, for use in a `with`: it refers to what it found until the
    end."""

    def __init__(self, found: Found) -> None:
        tensors = [t for refs in found.values() for t in _still(refs)]
        bases = [base for t in tensors if (base := base_of(t)) is not None]
        self._found = found
        self._above = Above([*tensors, *bases])
        self._saved: dict[tuple[str, int], tuple[str, Any]] | None = None
        self._above_roots: Above | None = None
        self._arrays: list[tuple[int, Any]] | None = None
        self._above_arrays: Above | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for above in (self._above, self._above_roots, self._above_arrays):
            if above is not None:
                above.close()
        self._arrays = None

    def of(self, allocation: Allocation) -> tuple[str, ...]:
        """Return texts; none if no holder was found."""
        texts: list[str] = []
        for tensor in _still(self._found.get(allocation.born, ())):
            texts += holders_of(tensor, self._above)
            base = base_of(tensor)  # a view keeps its base alive
            if base is not None and not texts:
                texts += [f"view of it: {text}" for text in holders_of(base, self._above)]
        if not texts:
            texts += self._in_graphs(allocation)
        if not texts:
            texts += self._in_arrays(allocation)
        return tuple(dict.fromkeys(texts))[:_MAX_HOLDERS]

    def _in_graphs(self, allocation: Allocation) -> list[str]:
        if self._saved is None or self._above_roots is None:
            self._saved = _saved_tensors()
            roots = [t for _, ref in self._saved.values() if (t := ref()) is not None]
            self._above_roots = Above({id(root): root for root in roots}.values())
        found = self._saved.get((allocation.device, allocation.address))
        root = found[1]() if found is not None else None
        if found is None or root is None:
            return []
        on = holders_of(root, self._above_roots)
        hangs = f", whose graph hangs on {on[0]}" if on else ""
        return [f"saved for backward by {found[0]}{hangs}"]

    def _in_arrays(self, allocation: Allocation) -> list[str]:
        """Describe NumPy arrays over a tensor's memory: the garbage collector does not track
        them."""
        tensors = {id(t) for t in _still(self._found.get(allocation.born, ()))}
        if not tensors:
            return []
        if self._arrays is None:
            self._arrays = _arrays_of_tensors()
            self._above_arrays = Above(array for _, array in self._arrays)
        assert self._above_arrays is not None
        arrays = [array for base, array in self._arrays if base in tensors]
        return [
            f"NumPy array in {text}" for a in arrays for text in holders_of(a, self._above_arrays)
        ]


def _arrays_of_tensors() -> list[tuple[int, Any]]:
    """Return (id of the tensor, array) for every array over a tensor's memory."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return []
    holding: list[Any] = gc.get_objects()
    holding += [list(locals_of(frame).values()) for frame in _running_frames()]
    arrays: dict[int, Any] = {}
    for thing in holding:
        for one in gc.get_referents(thing):
            if type(one) is numpy.ndarray:
                arrays[id(one)] = one
    found: list[tuple[int, Any]] = []
    for array in arrays.values():
        base = array
        while type(base) is numpy.ndarray:
            base = base.base
        if isinstance(base, torch.Tensor):
            found.append((id(base), array))
    return found


def _still(refs: Iterable[weakref.ref[torch.Tensor]]) -> list[torch.Tensor]:
    """Return the tensors that are alive and not disposed."""
    tensors = [tensor for ref in refs if (tensor := ref()) is not None]
    return [tensor for tensor in tensors if not is_gone(tensor)]


def holders_of(thing: Any, above: Above, *, follow_closures: bool = True) -> list[str]:
    """Describe everything with a name that holds `thing`, over at most six objects in between.

    `follow_closures`: for a closure of a nested function, say what holds that function, too."""
    found: list[str] = []
    running = _running_frames()
    seen = {id(thing)}
    # (object, description of the innermost container between it and the tensor)
    level: list[tuple[Any, str]] = [(thing, "")]
    for _ in range(_MAX_DEPTH):
        next_level: list[tuple[Any, str]] = []
        for held, words in level:
            for frame in running:
                found += in_frame(frame, held, words)
            for referrer in above.of(held):
                if id(referrer) in seen:
                    continue
                seen.add(id(referrer))
                named = _named(referrer, held, words, above, follow_closures)
                if named is None:
                    next_level.append((referrer, _words(referrer, words)))
                else:
                    found += named
        level = next_level
        if len(found) >= _MAX_HOLDERS or not level:
            break
    return list(dict.fromkeys(found))[:_MAX_HOLDERS]


def _named(
    referrer: Any, held: Any, words: str, above: Above, follow_closures: bool
) -> list[str] | None:
    """Return texts if `referrer` has a name for `held`; None to search its referrers; [] to
    stop."""
    if isinstance(referrer, types.FrameType):
        return _in_left_frame(referrer, in_frame(referrer, held, words), above)
    if isinstance(referrer, types.CellType):
        closures = in_closure(referrer, words, above)
        if not follow_closures:
            return [text for _, text in closures] or None
        return [_with_holder(function, text, above) for function, text in closures] or None
    if isinstance(referrer, dict):
        return _named_dict(referrer, held, words, above)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(referrer, types.ModuleType | types.FunctionType | type):
        return in_class(referrer, held, words)
    if isinstance(referrer, list | tuple | set | types.MethodType):
        return None
    names = _names_in(getattr(referrer, "__dict__", {}), held)
    return [f"{words}attribute `{name}` of {kind_of(referrer)}" for name in names] or None


def _with_holder(function: types.FunctionType, text: str, above: Above) -> str:
    if not is_made_anew(function):
        return text
    held = holders_of(function, above, follow_closures=False)
    return f"{text}, held by {held[0]}" if held else text


def _in_left_frame(frame: types.FrameType, texts: list[str], above: Above) -> list[str]:
    """Add the exception, if any, whose traceback keeps a finished frame alive."""
    error = error_of(frame, above) if texts else None
    if error is None:
        return texts
    on = [text for text in holders_of(error, above) if "kept by the traceback" not in text][:1]
    kept = f", kept by the traceback of {type(error).__name__}"
    return [text + kept + "".join(f" in {one}" for one in on) for text in texts]


def _named_dict(referrer: dict[Any, Any], held: Any, words: str, above: Above) -> list[str] | None:
    names = _names_in(referrer, held)
    module: Any = above.module_dicts.get(id(referrer))
    if module is None and "__builtins__" in referrer:  # a script, run by exec or runpy
        module = types.SimpleNamespace(
            __name__=referrer.get("__name__"), __file__=referrer.get("__file__")
        )
    if module is not None:
        return [in_module(module, name, words) for name in names]
    for owner in above.of(referrer):
        if isinstance(owner, torch.nn.Module):
            for noun, key in (("parameter", "_parameters"), ("buffer", "_buffers")):
                if vars(owner).get(key) is referrer:
                    return [f"{words}{noun} `{name}` of {kind_of(owner)}" for name in names]
        if getattr(owner, "__dict__", None) is referrer and not isinstance(owner, type):
            return [f"{words}attribute `{name}` of {kind_of(owner)}" for name in names]
    return None


def _names_in(namespace: Any, held: Any) -> list[str]:
    if not isinstance(namespace, dict):
        return []
    items: list[tuple[object, object]] = list(namespace.items())  # pyright: ignore[reportUnknownArgumentType]
    return [str(name) for name, value in items if value is held]


def _words(referrer: Any, words: str) -> str:
    """Return the kind of the innermost container, such as `list `."""
    if words or isinstance(referrer, types.MethodType | types.CellType):
        return words
    return f"{type(referrer).__name__} "


def _running_frames() -> list[types.FrameType]:
    """Return the running frames of all threads, without the profiler's own."""
    frames: list[types.FrameType] = []
    for innermost in frames_of_threads().values():
        frame: types.FrameType | None = innermost
        while frame is not None:
            if not is_profiler_frame(frame):
                frames.append(frame)
            frame = frame.f_back
    return frames


def _saved_tensors() -> dict[tuple[str, int], tuple[str, Any]]:
    """Return (name of the node, tensor of the graph) of each saved tensor, by device and address.

    Reading a node's saved tensors runs the hooks of `saved_tensors_hooks`, if it has any."""
    saved: dict[tuple[str, int], tuple[str, Any]] = {}
    seen: set[Any] = set()
    roots = [(root, t) for t in live_tensors() if (root := _graph_of(t)) is not None]
    # The latest first, so that a node is listed under the final result of its graph.
    roots.sort(key=lambda pair: -sequence_number(pair[0]))
    for root, tensor in roots:
        for node in _nodes(root, seen):
            for value in _values_of(node):
                place = place_of(value)
                if place is not None:
                    saved.setdefault(place, (node.name(), weakref.ref(tensor)))
    return saved


def _graph_of(tensor: torch.Tensor) -> Any:
    with suppress(Exception):
        return tensor.grad_fn
    return None


def _nodes(root: Any, seen: set[Any]) -> Iterator[Any]:
    waiting: list[Any] = [root]
    while waiting and len(seen) < _MAX_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]


def _values_of(node: Any) -> Iterable[torch.Tensor]:
    names: Sequence[str] = [name for name in dir(node) if name.startswith(SAVED)]
    for name in [*names, "saved_tensors"]:
        with suppress(Exception):  # freed by backward()
            value: Any = getattr(node, name)
            for tensor in value if isinstance(value, list | tuple) else [value]:  # pyright: ignore[reportUnknownVariableType]
                if isinstance(tensor, torch.Tensor):
                    yield tensor
