"""`lt.compile`: any Python, by PyTorch's own graph capture; and the backend that it is built on.

In: a function or an nn.Module. Out: what `torch.compile` returns for it.

    @lt.compile
    def step(x, y): ...                           torch.compile(step, backend="lowtide")
    torch.compile(model, backend="lowtide")       the same, by name, once the package is installed

Each captured graph becomes a `CompiledGraph`, run by a `Driver`. Invariant: PyTorch runs the
captured graph as it is if the driver cannot (modes, another device), or if the graph does not
become a Function; one warning says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast, overload

import torch

from lowtide import config
from lowtide.api import captured_graphs
from lowtide.api.compiled import Compiled, warn_without_budget
from lowtide.api.explain import Explanation
from lowtide.api.pickled import is_from_file
from lowtide.api.script_module import ScriptModule
from lowtide.budget.drivers import make_driver
from lowtide.diagnostics import debug, faults, stats
from lowtide.diagnostics.tracebacks import through_user_lines
from lowtide.errors import LowtideError
from lowtide.execute.driver import Driver
from lowtide.execute.options import Options, options_of
from lowtide.frontend.script import torch_jit_twins
from lowtide.ir.core import Function
from lowtide.specialise.signature import Ineligible
from lowtide.torch_private import torch_state
from lowtide.torch_private.graph_capture import BACKEND, check_hooks, for_our_capture, register

_reason = torch_state.reason
_of_thread = captured_graphs.of_thread
_NO_GRAPH = "PyTorch captured no graph: Python runs the call"

Model = TypeVar("Model", bound=Callable[..., Any])


class CompiledGraph(Compiled):
    """One captured graph that became a program. `program` is a `GraphProgram`."""

    def __init__(
        self, module: torch.fx.GraphModule, program: Any, options: Options, name: str
    ) -> None:
        self.__name__ = self.__qualname__ = program.function.name
        self.forward: Callable[..., Any] = module.forward
        self.options = options
        self._driver = make_driver(program.function, options, name)
        self._arguments: tuple[int, ...] = program.arguments
        self._captured: tuple[Any, ...] = program.captured
        self._sets_grad: bool = program.sets_grad

    def __call__(self, *args: Any) -> Any:
        """Run the graph."""
        if (call := _of_thread.call) is not None:
            call.runs(self, args)
        if _reason():
            self.without_budget(_reason())
            stats.count("calls_eager")
            return self.forward(*args)
        values = (*[args[k] for k in self._arguments], *self._captured)
        grad = self._sets_grad and torch.is_grad_enabled()
        try:
            return self._driver(values)
        except Ineligible:
            pass  # so that PyTorch's error is not raised "during handling of" Ineligible
        except Exception as error:
            if self._sets_grad:
                torch.set_grad_enabled(grad)
            raise through_user_lines(error) from error.__cause__
        self.without_budget("")
        stats.count("calls_eager")
        return self.forward(*args)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the operands of the program, for the inputs of the graph."""
        return (*[args[k] for k in self._arguments], *self._captured)

    def driver(self, args: tuple[Any, ...]) -> Driver:
        """Return the only program."""
        return self._driver

    def program(self) -> Function:
        """Return the program."""
        return self._driver.function


class PlainGraph:
    """A captured graph that PyTorch runs, and why."""

    def __init__(self, module: torch.fx.GraphModule, why: str, options: Options) -> None:
        self.__name__ = self.__qualname__ = "graph"
        self.why = why
        self.forward: Callable[..., Any] = module.forward
        self._has_warned = options.budget_bytes is None

    def __call__(self, *args: Any) -> Any:
        """Run the graph by PyTorch."""
        if (call := _of_thread.call) is not None:
            call.runs(self, args)
        if not (self._has_warned or config.current().disable):
            self._has_warned = True
            warn_without_budget("a captured graph", self.why)
        stats.count("calls_eager")
        return self.forward(*args)

    def __str__(self) -> str:
        return f"{self.__name__}: PyTorch runs the captured graph as it is: {self.why}"


@for_our_capture
def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Return the `torch.compile` backend: a captured graph as a callable of the same inputs.

    `options`: `budget` of each graph, and `tune`; `mode` changes nothing.
    """
    del example_inputs, mode
    check_hooks()
    call = _of_thread.call
    return _graph(gm, _options_of(**(options or {})), "" if call is None else call.name).__call__


def _graph(module: torch.fx.GraphModule, options: Options, name: str) -> CompiledGraph | PlainGraph:
    """Return a captured graph, compiled if possible. `name`: what the user compiled."""
    from lowtide.frontend.dynamo.convert import NotConverted, convert  # only where one is captured

    try:
        program = convert(module)
    except NotConverted as why:
        return PlainGraph(module, str(why), options)
    except Exception as error:
        fault = faults.survive(error, "lt.compile: a captured graph")
        return PlainGraph(module, fault, options)
    function = program.function
    debug.show("ir", function.name, lambda: str(function))
    return CompiledGraph(module, program, options, name)


def _options_of(budget: object = None, tune: object = False, **others: object) -> Options:
    """Return the options in `torch.compile(options=…)`, for each captured graph. Raises
    LowtideError for unknown ones."""
    if others:
        raise LowtideError(
            f"unknown option {sorted(others)[0]!r}: the options are `budget` and `tune`"
        )
    return options_of(budget, tune)


@overload
def compile(
    model: Model,
    *,
    budget: int | str | None = None,
    tune: bool = False,
    fullgraph: bool = False,
    dynamic: bool | None = None,
) -> Model: ...
@overload
def compile(
    model: None = None,
    *,
    budget: int | str | None = None,
    tune: bool = False,
    fullgraph: bool = False,
    dynamic: bool | None = None,
) -> Callable[[Model], Model]: ...


def compile(
    model: Any = None,
    *,
    budget: int | str | None = None,
    tune: bool = False,
    fullgraph: bool = False,
    dynamic: bool | None = None,
) -> Any:
    """Compile any Python function or nn.Module by PyTorch's graph capture; a decorator too.

    `fullgraph`: raise where the capture would break the graph. `dynamic`: True makes all sizes
    symbols at once, False none, None those that are seen to change. Both are torch.compile's.
    `budget`: the bytes that one captured graph may allocate at its peak; with `fullgraph` that is
    the whole call. A graph that does not fit raises BudgetError before it runs. `tune`: see
    `lt.script`.

        fast = lt.compile(model)
        fast(torch.rand(64, 8))
        fast.memory(torch.rand(64, 8)).peak_bytes       # explain() and stages(), too
    """
    options = options_of(budget, tune)
    if model is None:
        return functools.partial(
            compile, budget=budget, tune=tune, fullgraph=fullgraph, dynamic=dynamic
        )
    if _has_no_python(model):
        from lowtide.api.script import script  # its program is what there is to compile

        return cast("Any", script)(model, budget=budget, tune=tune)
    register(backend)
    made: Any = torch.compile(
        model,
        backend=BACKEND,
        fullgraph=fullgraph,
        dynamic=dynamic,
        options=cast("Any", options.given()) or None,
    )
    return captured_graphs.attach(
        made,
        functools.partial(_graph, options=options, name=captured_graphs.shown_name(model)),
        options.budget_bytes,
    )


def _has_no_python(model: Any) -> bool:
    """Return whether the model is from a file, or torch.jit made it."""
    if torch_jit_twins.is_module(model) or torch_jit_twins.is_function(model):
        return True
    if not isinstance(model, Compiled | ScriptModule):
        return False
    root: object = getattr(cast("object", model), "__lowtide_root__", cast("object", model))
    return is_from_file(root)


def explain_compiled(
    compiled: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> captured_graphs.Explanations:
    """Explain a call of a compiled function, graph by graph, as `c.explain` does.

    The function is called, since only a run shows which graphs it takes. Without a graph, the
    result is empty and prints a note.
    """
    seen: list[Explanation | captured_graphs.Graph] = []

    def listener(graph: captured_graphs.Graph, given: tuple[Any, ...]) -> None:
        seen.append(captured_graphs.explained(graph, given))

    with captured_graphs.listening(listener):
        compiled(*args, **kwargs)
    return captured_graphs.joined(seen, () if seen else (_NO_GRAPH,))
