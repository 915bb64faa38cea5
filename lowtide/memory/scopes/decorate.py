"""Scopes around functions, coroutine functions, generators and asynchronous generators.

In: a function, and a function that makes a scope. Out: a function with the same behaviour, each
call of which runs in a new dispose scope. Scopes are not imported here: Dynamo may compile these
functions, and must not compile those of scopes.

    @lt.dispose_scope()                     @lt.wrapped_dispose_scope
    def log_norms(model): ...               def features(x): ...        # its result is moved out

Invariant: a generator's scope is the innermost only while its body runs, not between two values.
`with dispose_scope():` around a `yield` cannot do this: the caller would run inside the scope.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, ParamSpec, TypeVar

from lowtide.memory.scopes.hidden import by_python
from lowtide.memory.scopes.ownership import move
from lowtide.memory.scopes.tensor_trees import with_parts

T = TypeVar("T")
P = ParamSpec("P")
MakeScope = Callable[[], Any]  # `scope.dispose_scope`
Leave = Callable[[Any, Any], Any]  # (scope, result) → result
_nothing: Any = None


def scoped(fn: Callable[P, T], make_scope: MakeScope) -> Callable[P, T]:
    """Return `fn` in a scope; nothing is moved out."""
    return _wrapped(fn, make_scope, _as_it_is)


def moving_out(fn: Callable[P, T], make_scope: MakeScope) -> Callable[P, T]:
    """Return `fn` in a scope; its result, or each value that it yields, is moved out."""
    return _wrapped(fn, make_scope, _out_of)


def _as_it_is(scope: Any, value: Any) -> Any:
    return value


@by_python
def _out_of(scope: Any, value: T) -> T:
    outer = scope.outer_scope
    for tensor in with_parts(value):
        move(tensor, outer, only_from=scope)
    return value


def _wrapped(fn: Any, make_scope: MakeScope, leave: Leave) -> Any:
    kind: Any = fn.__class__
    code = (fn, inspect.getattr_static(kind, "__call__", None))  # of a callable object
    if any(map(inspect.isasyncgenfunction, code)):
        made: Any = _async_generator(fn, make_scope, leave)
    elif any(map(inspect.iscoroutinefunction, code)):
        made = _coroutine(fn, make_scope, leave)
    elif any(map(inspect.isgeneratorfunction, code)):
        made = _generator(fn, make_scope, leave)
    elif callable(fn):
        made = _function(fn, make_scope, leave)
    else:
        raise TypeError(f"expected a function, got {type(fn).__name__}")
    return made


def _function(fn: Any, make_scope: MakeScope, leave: Leave) -> Any:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        with make_scope() as scope:
            return leave(scope, fn(*args, **kwargs))

    return call


def _coroutine(fn: Any, make_scope: MakeScope, leave: Leave) -> Any:
    @functools.wraps(fn)
    async def call(*args: Any, **kwargs: Any) -> Any:
        async with make_scope() as scope:
            return leave(scope, await fn(*args, **kwargs))

    return call


def _generator(fn: Any, make_scope: MakeScope, leave: Leave) -> Any:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        steps = fn(*args, **kwargs)
        scope = make_scope()
        step, sent = steps.send, _nothing
        try:
            while True:
                with _Inside(scope):
                    value = leave(scope, step(sent))
                try:
                    sent = yield value
                    step = steps.send
                except GeneratorExit:
                    with _Inside(scope):
                        steps.close()
                    raise
                except BaseException as error:
                    step, sent = steps.throw, error
        except StopIteration as stop:
            return leave(scope, stop.value)
        finally:
            scope.dispose()

    return call


def _async_generator(fn: Any, make_scope: MakeScope, leave: Leave) -> Any:
    @functools.wraps(fn)
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        steps = fn(*args, **kwargs)
        scope = make_scope()
        step, sent = steps.asend, _nothing
        try:
            while True:
                with _Inside(scope):
                    value = leave(scope, await step(sent))
                try:
                    sent = yield value
                    step = steps.asend
                except GeneratorExit:
                    with _Inside(scope):
                        await steps.aclose()
                    raise
                except BaseException as error:
                    step, sent = steps.athrow, error
        except StopAsyncIteration:
            return
        finally:
            scope.dispose()

    return call


class _Inside:
    """A context in which the scope is the innermost: while a step of a generator runs."""

    def __init__(self, scope: Any) -> None:
        self.scope = scope

    def __enter__(self) -> None:
        if self.scope.is_open:
            self.scope.enter_context()
        else:
            self.scope.__enter__()

    def __exit__(self, *_: object) -> None:
        self.scope.leave_context()
