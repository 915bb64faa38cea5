"""What `lt.compile` gives can be asked, as all that is compiled: `c.memory(…)`, `c.explain(…)`, …

In: the compiled object, and arguments, meta tensors too. Out: the answers of the graphs of a call.

    PyTorch's capture ──► graph 1: a Walk, results without values ──► graph 2: a Walk ──► one answer

Which graphs a call takes only a call tells. So there is one, on tensors without values
(`memory/virtual`): graphs are walked; what Python does between them, and what PyTorch runs of a
graph, is booked op by op; the backward pass goes through all of it, on one ledger.
"""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import torch

from lowtide.errors import BudgetError
from lowtide.frontend.dynamo.internals import is_capturing
from lowtide.memory import watching
from lowtide.memory.left_behind import Before
from lowtide.memory.measure import same_python_random
from lowtide.memory.reached import MOST
from lowtide.memory.stand_ins import with_sizes
from lowtide.memory.virtual import NO_MEMORY, TWICE, Stopped, Virtual, virtual_for
from lowtide.pipeline import listening, plain
from lowtide.pipeline.budget import allowance
from lowtide.pipeline.budget.allowance import ALL, Allowance, shares_below
from lowtide.pipeline.budget.search import refusal
from lowtide.pipeline.compiled import Compiled
from lowtide.pipeline.explain import Explanation, explain
from lowtide.pipeline.memory import MemoryPlan, plan_of
from lowtide.pipeline.played import virtual_backward
from lowtide.pipeline.promised import Promise, Promises
from lowtide.pipeline.shares import Shares, best
from lowtide.pipeline.walk import Walk, ineligible
from lowtide.runtime import arena, heap

_Given = tuple[tuple[Any, ...], dict[str, Any]]  # arguments, by position and by name

_ASKED: Final = "Python asks the data for numbers, which are taken to be 1, or False"
_LEFT: Final = (
    "memory() calls the function on tensors without values, and somebody keeps some of them: what "
    "is computed from these later is wrong"
)
_MUCH: Final = (
    f"the function reaches more than {MOST:,} objects: those beyond are not put back after memory()"
)
_OVER: Final = (
    "the call takes more than its budget: what is not known of it cannot be shared among its graphs"
)
_OTHERWISE: Final = "called twice, the function does not do the same"
_OUTSIDE: Final = "Python runs `{}` outside of what is compiled: that is in no budget"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    """What is kept in mind of a compiled object. `shares`: of its budget, if it has one."""

    promises: Promises
    shares: Shares | None


def attach(compiled: Any, budget_bytes: int | None = None) -> Any:
    """What is to be called in its place: it has the methods, where it had none of these names
    itself, keeps what `memory` has promised, and its graphs share a budget."""
    root = getattr(compiled, "_orig_mod", compiled)
    name = getattr(root, "__name__", type(root).__name__)
    about = _About(
        promises=Promises(), shares=None if budget_bytes is None else Shares(name, budget_bytes)
    )

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        kept = about.promises.kept(call, root)
        return kept if about.shares is None else about.shares.given(kept)

    if isinstance(compiled, torch.nn.Module):
        compiled.forward = watched(compiled.forward)
        copied = functools.partial(_parts, compiled, budget_bytes)
        object.__setattr__(compiled, "__reduce__", copied)  # see below
        if hasattr(root, "__deepcopy__"):  # which PyTorch would give for that of `compiled`
            deeply = functools.partial(_copied_deeply, compiled, budget_bytes)
            object.__setattr__(compiled, "__deepcopy__", deeply)
    elif inspect.isfunction(compiled):
        compiled = watched(compiled)
    for name, method in _METHODS.items():
        if not hasattr(compiled, name):
            with suppress(AttributeError):  # it takes none
                # Of the wrapper: a module's own `__setattr__` hands on to the wrapped one.
                bound = functools.partial(method, compiled, about)
                object.__setattr__(compiled, name, bound)
    return compiled


def _parts(compiled: Any, budget_bytes: int | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Of its copies: as PyTorch makes them they have no methods, and a budget of each graph."""
    made_of: Any = type(compiled).__reduce__
    return _made_again, (*made_of(compiled), budget_bytes)


def _copied_deeply(compiled: Any, budget_bytes: int | None, memo: dict[int, Any]) -> Any:
    _, (make, given, _) = _parts(compiled, budget_bytes)
    return _made_again(make, copy.deepcopy(given, memo), budget_bytes)


def _made_again(make: Callable[..., Any], given: tuple[Any, ...], budget_bytes: int | None) -> Any:
    return attach(make(*given), budget_bytes)


def _memory(compiled: Any, about: _About, /, *args: Any, **kwargs: Any) -> MemoryPlan:
    """The predicted peak for these inputs (meta tensors too); no graph is run."""
    return _rehearse(compiled, about, args, kwargs)[1]


def _explain(compiled: Any, about: _About, /, *args: Any, **kwargs: Any) -> Explanations:
    """For these inputs (meta tensors too), graph by graph: kernels, what PyTorch runs and why."""
    graphs, plan = _rehearse(compiled, about, args, kwargs)
    made = Explanations(graphs)
    made.memory = plan
    return made


def _stages(compiled: Any, about: _About, /, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
    """The programs after each stage for these inputs, graph by graph."""
    walks = [g.walk for g in _rehearse(compiled, about, args, kwargs)[0] if g.walk is not None]
    return [stage for walk in walks for stage in walk.stages()]


_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "memory": _memory, "explain": _explain, "stages": _stages,
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _Call:
    """A call on tensors without values, as it goes on: its graphs, and what it takes. `allowed`: of
    its budget, if there is one."""

    virtual: Virtual
    allowed: Allowance | None = None
    graphs: list[Rehearsal] = field(default_factory=list[Rehearsal])
    notes: list[str] = field(default_factory=list[str])
    reason: str = ""  # why nothing is compiled just now
    is_whole: bool = True  # else it ended before its end

    def stop(self, why: str) -> None:
        """What comes now is not known."""
        self.is_whole = False
        self.notes.append(f"{why}; nothing after it is counted")

    def not_alike(self) -> _Call:
        """It, which is not the same when it is called again."""
        self.is_whole = False
        self.notes.append(_OTHERWISE)
        if self.allowed is not None:
            self.allowed.share_bytes = None
        return self

    def hear(self, graph: Any, given: tuple[Any, ...]) -> Any:
        """What the graph gives; where that is not known, what PyTorch gives for it."""
        if isinstance(graph, Compiled):
            found = self.play(graph, given, {})
            if found is not listening.RUN:
                return found
        else:
            self.graphs.append(Rehearsal(name=graph.__name__, why=graph.why))
        return cast("Any", graph).forward(*given)

    def play(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What it gives, walked; `RUN` where that is not known."""
        with self.virtual.aside():
            driver, values = compiled.resolve(compiled.bind(args, kwargs))
            why = self.reason or ineligible([x for x in values if not _is_module(x)])
            walk = Walk(driver.planned(values), values, self.virtual)
            self.graphs.append(Rehearsal(name=compiled.__name__, why=why, walk=walk))
            results = walk.leave()
        return listening.RUN if results is None else results[0]

    def plan(self) -> MemoryPlan:
        """Its peak, Python's own ops counted."""
        walks = [g.walk for g in self.graphs if g.walk is not None]
        notes = [note for walk in walks for note in walk.notes]
        notes += [str(g) for g in self.graphs if g.walk is None]
        notes += [_ASKED] * (self.virtual.asked > 0)
        if self.virtual.outside is not None and not self.is_shared:
            name, loc = self.virtual.outside
            place = f"{loc}: " if loc.line else ""
            notes.append(f"{place}{_OUTSIDE.format(name)}")
        if self.allowed is not None and not self.is_shared and self.is_over:
            notes.append(_OVER)
        notes += self.virtual.ledger.notes
        return plan_of(self.virtual.ledger, walks, [*notes, *self.notes])

    @property
    def is_one(self) -> bool:
        """Whether it is one graph, and nothing else."""
        is_compiled = all(g.walk is not None for g in self.graphs)
        return len(self.graphs) == 1 and is_compiled and self.virtual.outside is None

    @property
    def is_known(self) -> bool:
        """Whether all that it takes has been seen."""
        return self.is_whole and not any(g.walk.ends for g in self.graphs if g.walk is not None)

    @property
    def is_shared(self) -> bool:
        """Whether its graphs have been given one share, which is tried for the call."""
        return self.allowed is not None and self.allowed.share_bytes is not None

    @property
    def is_over(self) -> bool:
        """Whether it takes more than its budget."""
        return self.allowed is not None and self.peak_bytes > self.allowed.budget_bytes

    @property
    def peak_bytes(self) -> int:
        """What it takes."""
        return self.virtual.ledger.peak_bytes

    def promise(self, plan: MemoryPlan) -> Promise | None:
        """What calls like it are held to, where no Driver sees to it."""
        if not self.is_known or (self.is_one and not self.is_shared):
            return None
        walks = [g.walk for g in self.graphs if g.walk is not None]
        strays = self.virtual.asked or any(walk.may_stray for walk in walks)
        return Promise(
            peak_bytes=plan.peak_bytes,
            growths=self.virtual.ledger.growths,
            calls_ops=self.virtual.calls_ops,
            goes_back=self.virtual.goes_back,
            strays=heap.Strays() if strays else None,
            share_bytes=None if self.allowed is None else self.allowed.share_bytes,
            planned_bytes=0 if self.allowed is None else self.allowed.planned_bytes,
            is_tight=self.is_shared,
            has_heap=self.virtual.device.type == "cpu" and not self.is_one,
        )


def _is_module(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def _has_no_values(error: Exception) -> bool:
    """Whether PyTorch says that a tensor has none."""
    return any(words in str(error) for words in NO_MEMORY)


def _rehearse(
    compiled: Any, about: _About, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Rehearsal], MemoryPlan]:
    given, shares = with_sizes((args, kwargs)), about.shares
    call = _called(compiled, given) if shares is None else _shared(compiled, given, shares)
    plan = call.plan()
    refused = None
    if shares is not None and call.is_shared and call.is_over:
        refused = refusal(shares.name, shares.budget_bytes, plan)
    promise = call.promise(plan)
    if refused is not None and call.virtual.asked:
        promise = None  # another branch may do
    if promise is not None:
        about.promises.give(given[0], given[1], replace(promise, refusal=refused))
    if refused is not None:
        raise copy.copy(refused)
    return call.graphs, plan


def _shared(compiled: Any, given: _Given, shares: Shares) -> _Call:
    """The call with the share of each graph that is best for it, or the least if it is over the
    budget even so; where that is not known, with those that it has if nobody asks."""

    def called(share_bytes: int | None) -> _Call:
        return _called(compiled, given, shares.allowed(share_bytes, is_tried=True))

    first = called(ALL)
    if not first.is_known:
        return called(None)
    if not first.is_over:
        return first
    if first.is_one:
        return called(shares.budget_bytes)
    calls = {ALL: first}

    def peak_of(share_bytes: int) -> int:
        if share_bytes not in calls:
            calls[share_bytes] = called(share_bytes)
        call = calls[share_bytes]
        if [g.name for g in call.graphs] != [g.name for g in first.graphs]:
            raise _RunsOtherwise
        return call.peak_bytes

    try:
        return calls[best([ALL, *shares_below(first.peak_bytes)], shares.budget_bytes, peak_of)]
    except Exception:  # what went well once: Python has taken the last item of a list, or counts
        return first.not_alike()


class _RunsOtherwise(Exception):
    """A call takes other graphs than the same call before."""


def _called(compiled: Any, given: _Given, allowed: Allowance | None = None) -> _Call:
    """It, called on tensors without values."""
    args, kwargs = given
    call = _Call(
        virtual=virtual_for((args, kwargs, compiled), arena.is_tight(), is_capturing),
        reason=plain.reason(),
        allowed=allowed,
    )
    free, named = call.virtual.untouched(args), call.virtual.untouched(kwargs)
    root = getattr(compiled, "_orig_mod", compiled)
    before = Before((root, args, kwargs), call.virtual.of_an_op)
    if not before.is_all:
        call.notes.append(_MUCH)
    try:
        with (
            same_python_random(),
            listening.by(call.hear),
            listening.playing(call.play),
            watching.aside(),
            allowance.on(allowed),
            call.virtual.on(),
        ):
            try:
                ends = virtual_backward(call.virtual, compiled(*free, **named))
                call.notes += ends
                call.is_whole = not ends
            except Stopped as why:
                call.stop(str(why))
            except Exception as error:
                # An op without meta tensors; a number that was taken to be 1; a gradient
                # that has none itself here.
                is_guess = call.virtual.asked or TWICE in call.virtual.ledger.notes
                is_unknown = isinstance(error, NotImplementedError) or _has_no_values(error)
                if isinstance(error, BudgetError) or not (is_guess or is_unknown):
                    raise
                words = str(error).partition("\n")[0]
                call.stop(f"{type(error).__name__}: {words}")
    finally:
        before.put_back(call.virtual.has_no_values)
    del free, named, before
    if call.virtual.has_left_any:
        gc.collect()
    if call.virtual.has_left_any:
        warnings.warn(_LEFT, RuntimeWarning, stacklevel=4)
    return call
