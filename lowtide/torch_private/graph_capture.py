"""The private parts of PyTorch's graph capture; tested per torch minor.

In: nodes and example values of a captured graph. Out: plain Python facts.

    symbol_of(s77)      "s77"       a size that is a symbol of the capture, and nothing else
    place_of(node)      Loc("model.py", 12, …), from its stack trace
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import inspect
import os
import re
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, Final, cast

import torch
from torch._guards import CompileContext

from lowtide import errors
from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.torch_private.autograd import forward_level
from lowtide.torch_private.dispatch import HigherOrderOperator
from lowtide.torch_private.modes import no_dispatch_modes, transform

__all__ = ["CompileContext"]

BACKEND: Final = "lowtide"
_OURS: Final = "_is_lowtide"  # of a function that gets captured graphs
ENTER_AUTOCAST: Final[Any] = torch.amp.autocast_mode._enter_autocast  # pyright: ignore
EXIT_AUTOCAST: Final[Any] = torch.amp.autocast_mode._exit_autocast  # pyright: ignore

# The module of the switch that compiled code flips on entry and on exit, once that is loaded.
EVAL_FRAME: Final = "torch._dynamo.eval_frame"
SWITCH: Final = "_maybe_set_eval_frame"
_C: Final[Any] = torch._C  # pyright: ignore[reportPrivateUsage]
_eval: Final[Any] = _C._dynamo.eval_frame
_Strategy: Final[Any] = _eval._FrameExecStrategy
_Action: Final[Any] = _eval._FrameAction
_SKIP: Final[Any] = _Strategy(_Action.SKIP, _Action.DEFAULT)
_SKIP_BELOW: Final[Any] = _Strategy(_Action.SKIP, _Action.SKIP)
_CHECKPOINT: Final = "tag_activation_checkpoint"
_CHECKPOINT_OPTIONS: Final = (
    *("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop"),
)
_LIBRARIES: Final = tuple(  # the folders of files that are not the user's
    os.path.join(os.path.dirname(os.path.abspath(file)), "")
    for file in (torch.__file__, errors.__file__)
)
_FRAME: Final = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def skip(code: CodeType) -> None:
    """Make the capture run the function as Python if Python calls it. Its callees may be captured.
    A captured function that calls it still inlines it."""
    _eval.set_code_exec_strategy(code, _SKIP)


def skip_with_callees(code: CodeType) -> None:
    """Make the capture run the function, and all that it calls, as Python."""
    _eval.set_code_exec_strategy(code, _SKIP_BELOW)


def left_out(function: FunctionType) -> FunctionType:
    """Return the function marked so that the capture calls it as it is, without inlining it or its
    callees."""
    skip_with_callees(function.__code__)
    cast("Any", function)._torchdynamo_disable = True
    return function


def register(backend: Callable[..., Any]) -> None:
    """Makes `torch.compile(backend="lowtide")` known where no installed package does; imports
    PyTorch's capture, which takes seconds."""
    import torch._dynamo.backends.registry as registry

    break_at_functions()
    go_on_at_floats()
    if BACKEND not in registry._COMPILER_FNS:  # pyright: ignore[reportPrivateUsage]
        registry.register_backend(backend, BACKEND)


def for_our_capture(backend: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a backend as Lowtide's."""
    setattr(backend, _OURS, True)
    return backend


@functools.cache
def break_at_functions() -> None:
    """Make captures for Lowtide break the graph where a user's `torch.autograd.Function` is applied
    and gradients are recorded, so that PyTorch runs it. If the graph has to be whole, a capture
    refuses the Functions that a transform applies.

    A captured Function has no second derivatives, gets zeros in place of None, and in transforms of
    torch.func its forward is differentiated in place of calling its backward or jvp."""
    import torch._dynamo.variables.misc as misc
    from torch._dynamo.exc import unimplemented

    variable: Any = misc.AutogradFunctionVariable
    call_apply = variable.call_apply

    @functools.wraps(call_apply)
    def checked(self: Any, tx: Any, *args: Any) -> Any:
        in_transform = transform() is not None or forward_level() >= 0
        is_recorded = torch.is_grad_enabled() and not tx.output.root_tx.one_graph
        if _is_ours(tx) and (in_transform or is_recorded):
            unimplemented(
                gb_type="torch.autograd.Function: PyTorch differentiates it",
                context=str(self.fn_cls),
                explanation="The capture would not use all rules that the Function has.",
                hints=["Leave out `fullgraph=True`."],
            )
        return call_apply(self, tx, *args)

    variable.call_apply = checked


def _is_ours(tx: Any) -> bool:
    """Return whether a capture is for Lowtide."""
    compiler = tx.output.compiler_fn
    return getattr(getattr(compiler, "compiler_fn", compiler), _OURS, False)


@functools.cache
def go_on_at_floats() -> None:
    """Make captures for Lowtide go on at `.item()` and `float()` of a float tensor, as captures
    with `fullgraph` do: what is read later, such as a value of pairs, is no result of a graph.

    No size or index depends on a float, so what follows is captured as with a float argument.
    Ints still end the graph: sizes that only the data decide are left to PyTorch."""
    import torch._dynamo.variables.tensor as tensors

    variable: Any = tensors.TensorVariable
    method_item = variable.method_item

    @functools.wraps(method_item)
    def captured(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        is_float = getattr(self.dtype, "is_floating_point", False)
        if not (_is_ours(tx) and is_float and self.ndim == 0) or args or kwargs:
            return method_item(self, tx, *args, **kwargs)
        from torch._dynamo.variables.builder import wrap_fx_proxy

        mode = tx.output.fake_mode
        before, mode.allow_scalar_outputs = mode.allow_scalar_outputs, True
        try:
            proxy = tx.output.create_proxy("call_method", "item", (self.as_proxy(),), {})
            return wrap_fx_proxy(tx, proxy)
        finally:
            mode.allow_scalar_outputs = before

    variable.method_item = captured
    methods: dict[str, Any] = getattr(variable, "tp_methods", {})  # from PyTorch 2.14 on
    if "item" in methods:
        methods["item"] = dataclasses.replace(methods["item"], handler=captured)
        _end_at_text()


def _end_at_text() -> None:
    """Make captures for Lowtide end a graph at `float(text)` and `int(text)` of a text with a float
    that the graph computes, such as `float(f"{s:.3f}")`. PyTorch 2.14 raises an error there."""
    from torch._dynamo.variables.base import AsPythonConstantNotImplementedError
    from torch._dynamo.variables.builtin import BuiltinVariable

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, tx, *args, **kwargs)
            except AsPythonConstantNotImplementedError:
                if _is_ours(tx):
                    return None  # the caller's word for what it does not know
                raise

        return call

    variable: Any = BuiltinVariable
    for name in ("call_float", "call_int"):
        setattr(variable, name, ending(getattr(variable, name)))
    variable.call_function_handler_cache.clear()  # bound methods of before


def check_hooks() -> None:
    """Make the capture under way check at each call that modules have no other hooks than now.

    PyTorch leaves this check out by default, for any backend, so that a hook that is registered
    later is never called."""
    from torch._dynamo import callback, config

    if CompileContext.try_get() is None or not config.skip_nnmodule_hook_guards:
        return
    config.skip_nnmodule_hook_guards = False
    callback.callback_handler.register_end_callback(_leave_hooks_out)


def _leave_hooks_out(_: object) -> None:
    """Undo `check_hooks` at the end of the capture: other backends have PyTorch's default."""
    from torch._dynamo import callback, config

    config.skip_nnmodule_hook_guards = True
    handler = callback.callback_handler
    others = [c for c in handler.end_callbacks if c is not _leave_hooks_out]
    handler.end_callbacks = others  # another list: PyTorch iterates over the old one


def wrapped(call: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Mark `call`, which calls a result of `torch.compile`, so that PyTorch finds the user's
    function in it."""
    functools.update_wrapper(call, compiled)
    call._torchdynamo_wrapper_id = id(call)  # pyright: ignore[reportFunctionMemberAccess]
    return call


def breaks(module: Any) -> bool:
    """Return whether Python goes on after a captured graph; True where that is not known."""
    why = getattr(module, "compile_subgraph_reason", None)
    return getattr(why, "graph_break", True)


class _Captured(BaseException):
    """The first graph, and examples of its inputs. Not an Exception, which the capture would take
    for a fault of the backend's."""


def first_graph(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Sequence[Any]] | str:
    """Return the first graph that a call would capture, and fake tensors as examples of its inputs.
    If there is none, return the reason. The capture stops there: nothing is run. Raises TypeError
    for arguments that the function does not take."""
    import torch._dynamo.convert_frame as convert_frame
    from torch._dynamo import config, utils

    break_at_functions()
    go_on_at_floats()
    called: Any = model.forward if isinstance(model, torch.nn.Module) else model
    called = called if hasattr(called, "__code__") else getattr(called, "__call__", called)  # noqa: B004
    function: Any = getattr(called, "__func__", called)
    if not inspect.isfunction(function) or config.disable:
        return "PyTorch captures Python functions and modules"
    receiver = (called.__self__,) if function is not called else ()
    signature = inspect.signature(function, follow_wrapped=False)
    bound = signature.bind(*receiver, *args, **kwargs)
    bound.apply_defaults()
    cells = function.__closure__ or ()
    inside = {n: c.cell_contents for n, c in zip(function.__code__.co_freevars, cells, strict=True)}

    @for_our_capture
    def stop(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
        raise _Captured(module, examples)

    capture: Any = convert_frame
    try:
        context = capture.CompileContext(capture.get_compile_id({}))
        with (
            capture.compile_lock,
            _nothing_known(),
            utils.get_metrics_context(),
            capture.compile_context(context),
            no_dispatch_modes(),
        ):
            capture.compile_frame(
                function.__code__,
                function.__globals__,
                {**bound.arguments, **inside},
                vars(builtins),
                cells,
                compiler_fn=stop,
                one_graph=False,
                restart_reasons=set(),
            )
    except _Captured as found:
        return cast("tuple[Any, Sequence[Any]]", found.args)
    except Exception as why:  # what it cannot capture, or another PyTorch that has other names
        return f"{type(why).__name__}: {str(why).strip().partition(chr(10))[0]}"
    return "PyTorch captures no graph"


@contextmanager
def _nothing_known() -> Generator[None]:
    """Disable Dynamo's record of seen sizes: inside, every size is static and none is recorded."""
    import torch._dynamo.pgo as pgo

    known: Any = pgo
    before, known._CODE_STATE = known._CODE_STATE, defaultdict(known.CodeState)
    try:
        yield
    finally:
        known._CODE_STATE = before


def break_of(module: Any) -> str:
    """Return the place and the reason of the graph break after a captured graph; "" if there is
    none."""
    why = getattr(module, "compile_subgraph_reason", None)
    if why is None or not why.graph_break:
        return ""
    frames = [f for f in why.user_stack if not f.filename.startswith(_LIBRARIES)]
    place = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    return f"{place}{str(why.reason).strip().partition(chr(10))[0]}"


def example_of(node: Any) -> Any:
    """Return the fake value that the capture computed for a node; None where it has none."""
    meta: dict[str, Any] = node.meta
    return meta.get("example_value", meta.get("val"))


def symbol_of(example: object) -> str | None:
    """Return the name of a size that is one symbol of the capture."""
    inner: Any = getattr(example, "node", None)
    expression: Any = getattr(inner, "expr", None)
    if not isinstance(example, torch.SymInt):
        return None
    return str(expression) if getattr(expression, "is_Symbol", False) else None


def is_checkpoint(node: Any) -> bool:
    """Return whether a node stands for `torch.utils.checkpoint`: a call of the graph that is its
    first argument."""
    target, options = node.target, set(node.kwargs)
    is_higher = isinstance(target, HigherOrderOperator)
    name = str(target.name()) if is_higher else ""
    return name == _CHECKPOINT and options.issubset(_CHECKPOINT_OPTIONS)


def place_of(node: Any) -> Loc:
    """Return the user's line of a node: the innermost one outside of PyTorch and Lowtide."""
    frames = _FRAME.findall(str(getattr(node, "stack_trace", None) or ""))
    if not frames:
        return UNKNOWN_LOC
    own = [f for f in frames if not f[0].startswith(_LIBRARIES)]
    file, line, function = (own or frames)[-1]
    return Loc(file=file, line=int(line), function=function)
