"""What `lt.compile` gives can be asked, as all that is compiled: `c.memory(…)`, `c.explain(…)`, …

In: the compiled object, and arguments, meta tensors too. Out: the answers of the graphs of a call.

    PyTorch's capture ──► graph 1: a Walk, results without values ──► graph 2: a Walk ──► one answer

Which graphs a call takes only a call tells. So there is one, on tensors without values
(`memory/virtual`): graphs are walked; what Python does between them, and what PyTorch runs of a
graph, is booked op by op; the backward pass goes through all of it, on one ledger.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

from lowtide.frontend.dynamo.internals import is_capturing
from lowtide.memory import watching
from lowtide.memory.virtual import NO_MEMORY, TWICE, Stopped, Virtual, virtual_for
from lowtide.pipeline import plain
from lowtide.pipeline.compiled import Compiled
from lowtide.pipeline.explain import Explanation, explain
from lowtide.pipeline.memory import MemoryPlan, plan_of
from lowtide.pipeline.played import virtual_backward
from lowtide.pipeline.walk import Walk, ineligible
from lowtide.runtime import arena


class _OfThread(threading.local):
    """`listeners` are told of each graph that this thread calls, and its arguments; what one
    returns is the result instead."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Any, tuple[Any, ...]], Any]] = []


of_thread: Final = _OfThread()
RUN: Final = object()  # the graph is to be run
_ASKED: Final = "Python asks the data for numbers, which are taken to be 1, or False"
_OUTSIDE: Final = (
    "Python runs `{}` outside of what is compiled: that is in no budget, and what the C library's "
    "heap keeps beside it is not counted"
)


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

    memory: MemoryPlan

    def __str__(self) -> str:
        return "\n\n".join(map(str, self)) or "no graph is captured: Python runs all of it"

    @property
    def graphs(self) -> tuple[Explanation, ...]:
        """Those that are compiled."""
        return tuple(explain(g.name, g.walk, g.why) for g in self if g.walk is not None)

    @property
    def peak_bytes(self) -> int:
        """The predicted peak."""
        return self.memory.peak_bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as for JSON."""
        left = [str(g) for g in self if g.walk is None]
        return {"graphs": [g.to_dict() for g in self.graphs], "left": left}


def hear(graph: Any, args: tuple[Any, ...]) -> Any:
    """Tells the listeners of a call; `RUN`, or its result."""
    found: Any = RUN
    for listener in list(of_thread.listeners):
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
    return _rehearse(compiled, args, kwargs)[1]


def _explain(compiled: Any, /, *args: Any, **kwargs: Any) -> Explanations:
    """For these inputs (meta tensors too), graph by graph: kernels, what PyTorch runs and why."""
    graphs, plan = _rehearse(compiled, args, kwargs)
    made = Explanations(graphs)
    made.memory = plan
    return made


def _stages(compiled: Any, /, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
    """The programs after each stage for these inputs, graph by graph."""
    walks = [g.walk for g in _rehearse(compiled, args, kwargs)[0] if g.walk is not None]
    return [stage for walk in walks for stage in walk.stages()]


_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "memory": _memory, "explain": _explain, "stages": _stages,
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _Call:
    """A call on tensors without values, as it goes on: its graphs, and what it takes."""

    virtual: Virtual
    graphs: list[Rehearsal] = field(default_factory=list[Rehearsal])
    notes: list[str] = field(default_factory=list[str])
    reason: str = ""  # why nothing is compiled just now

    def hear(self, graph: Any, given: tuple[Any, ...]) -> Any:
        """What the graph gives; where that is not known, what PyTorch gives for it."""
        if isinstance(graph, Compiled):
            with self.virtual.aside():
                values = graph.bind(given, {})
                why = self.reason or ineligible(values)
                walk = Walk(graph.resolve(values)[0].planned(values), values, self.virtual)
                self.graphs.append(Rehearsal(name=graph.__name__, why=why, walk=walk))
                results = walk.leave()
            if results is not None:
                return results[0]
        else:
            self.graphs.append(Rehearsal(name=graph.__name__, why=graph.why))
        return cast("Any", graph).forward(*given)

    def plan(self) -> MemoryPlan:
        """Its peak, Python's own ops counted."""
        walks = [g.walk for g in self.graphs if g.walk is not None]
        notes = [note for walk in walks for note in walk.notes]
        notes += [str(g) for g in self.graphs if g.walk is None]
        notes += [_ASKED] * (self.virtual.asked > 0)
        if self.virtual.outside is not None:
            name, loc = self.virtual.outside
            place = f"{loc}: " if loc.line else ""
            notes.append(f"{place}{_OUTSIDE.format(name)}")
        notes += self.virtual.ledger.notes
        return plan_of(self.virtual.ledger, walks, [*notes, *self.notes])


def _has_no_values(error: Exception) -> bool:
    """Whether PyTorch says that a tensor has none."""
    return any(words in str(error) for words in NO_MEMORY)


def _rehearse(compiled: Any, args: Any, kwargs: Any) -> tuple[list[Rehearsal], MemoryPlan]:
    call = _Call(
        virtual=virtual_for((args, kwargs, compiled), arena.is_tight(), is_capturing),
        reason=plain.reason(),
    )
    given, named = call.virtual.untouched(args), call.virtual.untouched(kwargs)
    of_thread.listeners.append(call.hear)
    try:
        with watching.aside(), call.virtual.on():
            try:
                call.notes += virtual_backward(call.virtual, compiled(*given, **named))
            except Stopped as why:
                call.notes.append(f"{why}; nothing after it is counted")
            except Exception as error:
                # An op without meta tensors; a number that was taken to be 1; a gradient
                # that has none itself here.
                is_guess = call.virtual.asked or TWICE in call.virtual.ledger.notes
                is_unknown = isinstance(error, NotImplementedError) or _has_no_values(error)
                if not (is_guess or is_unknown):
                    raise
                words = str(error).partition("\n")[0]
                call.notes.append(f"{type(error).__name__}: {words}; nothing after it is counted")
    finally:
        of_thread.listeners.remove(call.hear)
    return call.graphs, call.plan()
