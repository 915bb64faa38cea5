"""`memory`, `explain` and `stages` of what `lt.compile` gives, for each captured graph.

In: the compiled object, and arguments, which may be meta tensors. Out: the answers for the first
graph of such a call, and for each later graph that a call has run.

    PyTorch's capture, which stops before anything runs ──► the first graph ──┐
    calls so far ──► later graphs, with the forms of their latest inputs ─────┴─► the largest

The budget holds for each graph. These methods run none of the user's code, and write nothing.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, cast

import torch

from lowtide import config, html
from lowtide.api.explain import Explanation
from lowtide.budget.memory import MemoryPlan
from lowtide.diagnostics.warned import warn
from lowtide.memory.scopes.hidden import hide, hide_with_callees
from lowtide.memory.stand_ins import from_leaf, like, over_nothing, with_sizes
from lowtide.torch_private.graph_capture import break_of, first_graph, wrapped
from lowtide.torch_private.pytree import tree_leaves, tree_map_only

SEVERAL: Final = (
    "PyTorch captured several graphs in one call. Each has a budget of {budget:,} bytes "
    "of its own, and the memory of earlier graphs' results is not counted. fullgraph=True, or "
    "lt.script, applies the budget to the whole call"
)
NONE: Final = (
    "PyTorch captured no graph: Python runs the whole function, and the budget is not enforced"
)
BETWEEN: Final = "each graph is counted separately; what Python runs between them is not counted"
_NO_PLAN: Final = MemoryPlan(peak_bytes=0, formula="0", buffers=())
_CPU: Final = torch.device("cpu")


class Graph(Protocol):
    """A captured graph: compiled, or run by PyTorch as it is."""

    def __call__(self, *args: Any) -> Any: ...


class Explanations(tuple["Explanation | Graph", ...]):
    """The explanations of a call's graphs, in order; prints. `memory`: the plan of the largest
    graph."""

    memory: MemoryPlan

    def __str__(self) -> str:
        lines = [*map(str, self), *(f"note: {note}" for note in self.memory.notes if not self)]
        return "\n\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        shown = (
            g.html_parts() if isinstance(g, Explanation) else [html.line(str(g))] for g in self
        )
        notes = [html.line(f"note: {note}", "faint") for note in self.memory.notes if not self]
        return html.page(*(part for parts in shown for part in parts), *notes)

    @property
    def graphs(self) -> tuple[Explanation, ...]:
        """The explanations of the graphs that are compiled."""
        return tuple(g for g in self if isinstance(g, Explanation))

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of the largest graph in bytes."""
        return self.memory.peak_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as for JSON."""
        left = [str(g) for g in self if not isinstance(g, Explanation)]
        return {"graphs": [g.to_dict() for g in self.graphs], "left": left}


class Make(Protocol):
    """Makes a graph of what was captured."""

    def __call__(self, module: torch.fx.GraphModule) -> Graph: ...


@dataclass(slots=True, eq=False)
class _Ran:
    """A graph that a call has run. `sizes`: of the latest inputs that are no parameters, by place;
    `inputs`: stand-ins of all; both of later graphs only."""

    graph: weakref.ref[Graph]
    is_first: bool
    sizes: list[tuple[int, torch.Size]]
    inputs: tuple[Any, ...]

    def is_alike(self, args: tuple[Any, ...]) -> bool:
        """Return whether all sizes are as in an earlier call, so that nothing new can be
        learned."""
        for k, size in self.sizes:  # noqa: SIM110 - quicker than `all`
            if args[k].shape != size:
                return False
        return True


def shown_name(root: Any) -> str:
    """Return the name of the compiled object in errors: `Net.forward`, or that of a function."""
    if isinstance(root, torch.nn.Module):
        return f"{type(root).__name__}.forward"
    return str(getattr(root, "__name__", type(root).__name__))


class Target:
    """Of one compiled object. `make`: see `Make`; `name`: what warnings call it."""

    def __init__(self, root: Any, make: Make, budget_bytes: int | None) -> None:
        self.root = root
        self.make = make
        self.budget_bytes = budget_bytes
        self.name: str = getattr(root, "__name__", type(root).__name__)
        self.ran: dict[int, _Ran] = {}
        self._warned: set[str] = set()

    def tell(self, text: str) -> None:
        """Warn, once."""
        if text not in self._warned and not config.current().disable:
            self._warned.add(text)
            warn(f"{self.name}: {text}")

    def add(self, graph: Graph, args: tuple[Any, ...], is_first: bool) -> None:
        """Record that a call runs a graph with these inputs, which are new."""
        key, mine = id(graph), self.ran
        given: tuple[Any, ...] = () if is_first else args
        sizes = [(k, torch.Size(x.shape)) for k, x in enumerate(given) if type(x) is torch.Tensor]
        ref = weakref.ref(graph, lambda _: mine.pop(key, None))
        mine[key] = _Ran(ref, is_first, sizes, tuple(map(_stand_in, given)))

    def graphs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[tuple[Graph, Sequence[Any]]], list[str]]:
        """Return the graphs that a call runs, as far as they are known, with inputs for each, and
        notes."""
        args, kwargs = _on_device((args, kwargs), self.root)
        found = first_graph(self.root, args, kwargs)
        notes: list[str] = []
        graphs: list[tuple[Graph, Sequence[Any]]] = []
        if isinstance(found, str):
            notes.append(f"no first graph is captured ({found}); what Python runs is not counted")
        else:
            module, examples = found
            graphs.append((self.make(module), tuple(map(_stand_in, examples))))
            if not (why := break_of(module)):
                return graphs, notes
            notes += [f"there is a graph break after this graph: {why}", BETWEEN]
        for ran in list(self.ran.values()):
            graph = ran.graph()
            if graph is not None and not ran.is_first:  # which is captured for these inputs, or not
                graphs.append((graph, ran.inputs))
        if len(graphs) < 2:
            notes.append("later graphs are known only after a call")
        return graphs, notes


Listener = Callable[["Graph", tuple[Any, ...]], object]


class Call:
    """The graphs that one call runs: a call of a compiled object, or any call inside
    `listening`."""

    __slots__ = ("_target", "first", "listener")

    def __init__(self, target: Target | None, listener: Listener | None) -> None:
        self._target = target
        self.first: Graph | None = None
        self.listener = listener

    @property
    def name(self) -> str:
        """The name of what the user called; "" if that is not known."""
        return "" if self._target is None else shown_name(self._target.root)

    def runs(self, graph: Graph, args: tuple[Any, ...]) -> None:
        """Before it does."""
        if self.listener is not None:
            self.listener(graph, args)
        if (target := self._target) is None:
            return
        ran = target.ran.get(id(graph))
        if self.first is None:
            self.first = graph
            if ran is not None:
                return
        elif graph is not self.first and target.budget_bytes is not None:
            target.tell(SEVERAL.format(budget=target.budget_bytes))
        if ran is None or not ran.is_alike(args):
            target.add(graph, args, graph is self.first)


class _OfThread(threading.local):
    call: Call | None = None


of_thread: Final = _OfThread()


@contextmanager
def listening(listener: Listener) -> Generator[None]:
    """Inside, call the listener with each graph before it runs."""
    before, of_thread.call = of_thread.call, Call(None, listener)
    try:
        yield
    finally:
        of_thread.call = before


def attach(compiled: Any, make: Make, budget_bytes: int | None = None) -> Any:
    """Return the callable to use in its place, with the methods of compiled functions. A method of
    the user's own with such a name stays."""
    root = getattr(compiled, "_orig_mod", None) or getattr(
        compiled, "_torchdynamo_orig_callable", compiled
    )
    target = Target(root, make, budget_bytes)
    if isinstance(compiled, torch.nn.Module):
        compiled.forward = _watched(compiled.forward, target)
        copied = functools.partial(_parts, compiled, make, budget_bytes)
        object.__setattr__(compiled, "__reduce__", copied)  # see below
        if hasattr(root, "__deepcopy__"):  # which PyTorch would give for that of `compiled`
            deeply = functools.partial(_copied_deeply, compiled, make, budget_bytes)
            object.__setattr__(compiled, "__deepcopy__", deeply)
    elif inspect.isfunction(compiled):
        compiled = _watched(compiled, target)
    for name, method in _METHODS.items():
        if not hasattr(compiled, name):
            with suppress(AttributeError):  # it takes none
                # Of the wrapper: a module's own `__setattr__` hands on to the wrapped one.
                object.__setattr__(compiled, name, functools.partial(method, target))
    return compiled


def _watched(compiled: Callable[..., Any], target: Target) -> Callable[..., Any]:
    """Return the call with its graphs recorded."""

    def called(*args: Any, **kwargs: Any) -> Any:
        before = of_thread.call
        of_thread.call = mine = Call(target, None if before is None else before.listener)
        try:
            result = compiled(*args, **kwargs)
        finally:
            of_thread.call = before
        if mine.first is None and target.budget_bytes is not None:
            target.tell(NONE)
        return result

    return wrapped(called, compiled)


def _parts(
    compiled: Any, make: Make, budget_bytes: int | None
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Of its copies: as PyTorch makes them they have no methods."""
    made_of: Any = type(compiled).__reduce__
    return _rebuilt, (*made_of(compiled), make, budget_bytes)


def _copied_deeply(
    compiled: Any, make: Make, budget_bytes: int | None, memo: dict[int, Any]
) -> Any:
    _, (build, given, *_) = _parts(compiled, make, budget_bytes)
    return _rebuilt(build, copy.deepcopy(given, memo), make, budget_bytes)


def _rebuilt(
    build: Callable[..., Any], given: tuple[Any, ...], make: Make, budget_bytes: int | None
) -> Any:
    return attach(build(*given), make, budget_bytes)


def _memory(target: Target, /, *args: Any, **kwargs: Any) -> MemoryPlan:
    """Return the predicted peak of the largest graph for these inputs (meta tensors too); no graph
    is run.

    Before a call it is the first graph; after one also each that was run after that.
    """
    return _explain(target, *args, **kwargs).memory


def _explain(target: Target, /, *args: Any, **kwargs: Any) -> Explanations:
    """Return, graph by graph, the kernels, and the ops that PyTorch runs and why. Arguments may be
    meta tensors."""
    graphs, notes = target.graphs(args, kwargs)
    return joined([explained(graph, given) for graph, given in graphs], notes)


def joined(found: Sequence[Explanation | Graph], notes: Sequence[str]) -> Explanations:
    """Return the explanations of a call's graphs; the plan of the largest gets the notes."""
    known = [x for x in found if isinstance(x, Explanation)]
    notes = [*notes, *(str(x) for x in found if not isinstance(x, Explanation))]
    if len(known) > 1:
        sizes = ", ".join(f"{x.name} {x.peak_bytes:,}" for x in known)
        notes.insert(0, f"the largest of {len(known)} graphs: {sizes} bytes")
    made = Explanations(found)
    most = max(known, key=lambda x: x.peak_bytes).memory if known else _NO_PLAN
    made.memory = replace(most, notes=(*most.notes, *notes))
    return made


def explained(graph: Graph, given: Sequence[Any]) -> Explanation | Graph:
    """Return the explanation of the graph for these inputs; if PyTorch runs it, the graph, which
    says why."""
    explain: Callable[..., Explanation] | None = getattr(graph, "explain", None)
    return graph if explain is None else explain(*given)


def _stages(target: Target, /, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
    """Return the programs after each stage for these inputs, graph by graph."""
    graphs, _ = target.graphs(args, kwargs)
    with_stages = [(getattr(graph, "stages", None), given) for graph, given in graphs]
    return [stage for find, given in with_stages if find is not None for stage in find(*given)]


_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "memory": _memory, "explain": _explain, "stages": _stages,
}  # fmt: skip


def _on_device(
    given: tuple[tuple[Any, ...], dict[str, Any]], root: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with meta and fake tensors replaced by tensors without memory. Their
    device is that of the other arguments, or of the module."""
    given = with_sizes(given)
    known = [x for x in tree_leaves(given) if isinstance(x, torch.Tensor)]
    if isinstance(root, torch.nn.Module):
        known += [*root.parameters(), *root.buffers()]
    is_there = torch.cuda.is_available()
    places = (x.device for x in known if not (x.is_meta or _is_fake(x)))
    device = next((d for d in places if d.type != "cuda" or is_there), _CPU)

    def exchanged(x: torch.Tensor) -> torch.Tensor:
        if x.layout is not torch.strided or not (x.is_meta or _is_fake(x)):
            return x
        return _nowhere(x, device)

    exchange: Any = tree_map_only
    return exchange(torch.Tensor, exchanged, given)


def _is_fake(x: torch.Tensor) -> bool:
    return hasattr(x, "fake_mode")


def _nowhere(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the device without memory, of the form of `x`."""
    with torch.no_grad():
        made = over_nothing(x, device).requires_grad_(x.requires_grad)
    if x.is_leaf and x.grad is not None:
        made.grad = over_nothing(x.grad, device)
    return made if x.is_leaf or not x.requires_grad else from_leaf(made)


def _stand_in(x: Any) -> Any:
    """Return a tensor without memory of the same form; the value of a size that is a symbol."""
    if isinstance(x, torch.SymInt):
        return cast("Any", x).node.hint
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_nested:
        return x
    (x,) = with_sizes((x,))
    if x.device.type == "cuda" and torch.cuda.is_available():
        return _nowhere(x, x.device)
    made = like(x, x.requires_grad)
    if x.is_leaf and x.grad is not None:
        made.grad = like(x.grad)
    return made


hide(sys.modules[__name__])
for _hidden in (Target.add, Call.runs):
    hide_with_callees(_hidden)
