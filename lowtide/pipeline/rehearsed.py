"""What `lt.compile` gives can be asked, as all that is compiled: `c.memory(…)`, `c.explain(…)`, …

In: the compiled object, and arguments, meta tensors too. Out: the answers of the graphs of a call.

    PyTorch's capture ──► graph 1: a Walk, results without values ──► graph 2: a Walk ──► one answer

Which graphs a call takes only a call tells. So there is one, in which none of them is run: each
gives tensors of the right form, whose memory nobody touches, and so are meta tensors handed in.
Python that asks for a value between two graphs finds an arbitrary one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map

from lowtide.memory import watching
from lowtide.memory.ledger import from_leaf
from lowtide.pipeline import plain
from lowtide.pipeline.compiled import Compiled
from lowtide.pipeline.explain import Explanation, explain
from lowtide.pipeline.memory import MemoryPlan, plan_memory
from lowtide.pipeline.walk import Walk, ineligible

# Told of each graph that is called, and its arguments; what it returns is the result instead.
listeners: list[Callable[[Any, tuple[Any, ...]], Any]] = []
RUN: Final = object()  # the graph is to be run


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """One graph of a call. `walk` is None where PyTorch runs the graph as it is; `why`."""

    name: str
    why: str
    walk: Walk | None = None

    def __str__(self) -> str:
        if self.walk is None:
            return f"{self.name}: PyTorch runs the captured graph as it is: {self.why}"
        return str(explain(self.name, self.walk, self.why))


class Explanations(tuple[Rehearsal, ...]):
    """What a call does, graph by graph; prints."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n\n".join(map(str, self)) or "no graph is captured: Python runs all of it"

    @property
    def graphs(self) -> tuple[Explanation, ...]:
        """Those that are compiled."""
        return tuple(explain(g.name, g.walk, g.why) for g in self if g.walk is not None)

    @property
    def peak_bytes(self) -> int:
        """The predicted peak."""
        return _plan(self).peak_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as for JSON."""
        left = [str(g) for g in self if g.walk is None]
        return {"graphs": [g.to_dict() for g in self.graphs], "left": left}


def hear(graph: Any, args: tuple[Any, ...]) -> Any:
    """Tells the listeners of a call; `RUN`, or its result."""
    found: Any = RUN
    for listener in list(listeners):
        given = listener(graph, args)
        found = given if given is not RUN else found
    return found


def attach(compiled: Any) -> Any:
    """Gives it the methods, where it has none of these names itself."""
    for name, method in _METHODS.items():
        if not hasattr(compiled, name):
            with suppress(AttributeError):  # it takes none
                # Of the wrapper: a module's own `__setattr__` hands on to the wrapped one.
                object.__setattr__(compiled, name, functools.partial(method, compiled))
    return compiled


def _memory(compiled: Any, /, *args: Any, **kwargs: Any) -> MemoryPlan:
    """The predicted peak for these inputs (meta tensors too); no graph is run."""
    return _plan(_rehearse(compiled, args, kwargs))


def _explain(compiled: Any, /, *args: Any, **kwargs: Any) -> Explanations:
    """For these inputs (meta tensors too), graph by graph: kernels, what PyTorch runs and why."""
    return Explanations(_rehearse(compiled, args, kwargs))


def _stages(compiled: Any, /, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
    """The programs after each stage for these inputs, graph by graph."""
    walks = [g.walk for g in _rehearse(compiled, args, kwargs) if g.walk is not None]
    return [stage for walk in walks for stage in walk.stages()]


_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "memory": _memory, "explain": _explain, "stages": _stages,
}  # fmt: skip


def _rehearse(compiled: Any, args: Any, kwargs: Any) -> list[Rehearsal]:
    found: list[Rehearsal] = []

    def listener(graph: Any, given: tuple[Any, ...]) -> Any:
        if not isinstance(graph, Compiled):
            found.append(Rehearsal(name=graph.__name__, why=graph.why))
            return RUN
        values = graph.bind(given, {})
        why = plain.reason() or ineligible(values)
        walk = Walk(graph.resolve(values)[0].planned(values), values)
        found.append(Rehearsal(name=graph.__name__, why=why, walk=walk))
        return RUN if walk.results is None else tree_map(_untouched, walk.results[0])

    listeners.append(listener)
    try:
        with watching.aside():
            compiled(*tree_map(_untouched, args), **tree_map(_untouched, kwargs))
    finally:
        listeners.remove(listener)
    return found


def _untouched(x: Any) -> Any:
    """For a meta tensor one that has memory, of which no page is used."""
    if not isinstance(x, torch.Tensor) or not (x.is_meta or _is_fake(x)):
        return x
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu")
    made.requires_grad_(x.requires_grad)
    return made if x.is_leaf else from_leaf(made)


def _is_fake(x: torch.Tensor) -> bool:
    return hasattr(x, "fake_mode")


def _plan(graphs: Sequence[Rehearsal]) -> MemoryPlan:
    """The peak of all graphs. What one gives counts as alive for those that follow; with gradients
    what it keeps does, too."""
    plans = [(g.walk, plan_memory(g.walk, g.why)) for g in graphs if g.walk is not None]
    left = tuple(f"not counted: {g}" for g in graphs if g.walk is None)
    if not plans:
        notes = (*left, *(() if left else ("no graph is captured",)))
        return MemoryPlan(peak_bytes=0, formula="0", buffers=(), notes=notes)
    if len(plans) == 1:
        return replace(plans[0][1], notes=(*plans[0][1].notes, *left))
    peak = before = 0
    for walk, plan in plans:
        peak = max(peak, before + plan.peak_bytes)
        tensors = [x for x in tree_leaves(walk.results) if isinstance(x, torch.Tensor)]
        before += plan.peak_bytes if walk.records else sum(x.nbytes for x in tensors)
    most = max((plan for _, plan in plans), key=lambda p: p.peak_bytes)
    notes = dict.fromkeys(n for _, plan in plans for n in plan.notes)
    counted = f"{len(plans)} graphs: what each leaves is counted to the end, Python's own is not"
    return replace(most, peak_bytes=peak, formula=str(peak), notes=(*notes, *left, counted))
