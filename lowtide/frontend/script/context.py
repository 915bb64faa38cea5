"""The state of compiling one script function, and the tables of handlers for each kind of syntax.

In: AST nodes. Out: ops in the builder's block, variables in the innermost frame.

    EXPRESSIONS[ast.BinOp](c, node)      registered by `operators`
    c.builder.emit("py.add", …)          an op, with the place `builder.loc`

The other modules of this folder (`expressions`, `statements`, …) register handlers in the tables,
and call each other through them only.

Invariant: `builder.loc` is the place of the statement or expression being compiled.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, TypeVar, cast

from lowtide.errors import CompileError, Loc
from lowtide.frontend.script.module_state import ModuleState
from lowtide.frontend.script.node_tables import VALUE_OF
from lowtide.frontend.script.nodes import ITERATORS, Method, Node, Poison, describe
from lowtide.frontend.script.outside import Assumptions, may_change
from lowtide.frontend.script.remedies import fitting
from lowtide.frontend.script.source import FunctionSource
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN, Builder
from lowtide.ir.core import Block, Value

# Hidden variables: whether, and with what, control has left the straight road.
RETURNED = "$returned"
RETURN_VALUE = "$value"
BROKE = "$broke"
CONTINUED = "$continued"
RAISED = "$raised"
CHOSEN = "$chosen"
FLAGS = (RETURNED, BROKE, CONTINUED, RAISED)

Step = Callable[[Sequence["Step"]], bool]  # compiles one statement; True: the rest was compiled too


@dataclass(slots=True, kw_only=True)
class Frame:
    """One function being compiled: the scripted one, or an inlined one."""

    fn: FunctionType
    source: FunctionSource
    names: Mapping[str, object]  # closure, globals, builtins: what is not assigned in the function
    local_names: frozenset[str]
    vars: dict[str, Node | Poison] = field(default_factory=dict[str, "Node | Poison"])
    caller: Loc | None = None  # where it was called from
    owner: int = 0  # the id of the module whose method it is
    block: Block | None = None  # where its statements are compiled


_CONTAINERS = (dict, list, tuple)
OUTSIDE: dict[type[ast.AST], tuple[str, str]] = {
    ast.Yield: ("`yield` is not compiled", "return a list or a tuple"),
    ast.YieldFrom: ("`yield from` is not compiled", "return a list or a tuple"),
    ast.Await: ("`await` is not compiled", "a plain call"),
    ast.AsyncFor: ("`async for` is not compiled", "`for`"),
    ast.AsyncWith: ("`async with` is not compiled", "the calls themselves"),
    ast.AsyncFunctionDef: ("`async def` is not compiled", "`def`"),
    ast.ClassDef: ("a class inside a compiled function is not compiled", "a global class"),
    ast.Try: ("`try` is not compiled", "a test before the call, with `if`"),
    ast.Global: ("`global` is not compiled", "an argument and a returned value"),
    ast.Nonlocal: ("`nonlocal` is not compiled", "an argument and a returned value"),
    ast.Match: ("`match` is not compiled", "`if` and `elif`"),
}
if hasattr(ast, "TryStar"):
    OUTSIDE[ast.TryStar] = OUTSIDE[ast.Try]


class NotKnown(CompileError):
    """Something must be known while compiling, and may depend on the step of a loop. A loop of few
    steps is then unrolled, so that it is known."""


class Context:
    """The state passed to every compiling function. `frame`: the function whose source is read."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.frames: list[Frame] = []
        self.modules: ModuleState | None = None  # where the program is a module's method
        self.captured: dict[str, Value] = {}  # by path, where it is a function
        self.assumed = Assumptions()
        self.opaque: list[Any] = []  # calls of Python code: see `rechecked`
        self.loop_start: int | None = None  # how long the log was where the outermost loop begins
        self.maybe_unbound: set[Value] = set()  # what a variable is that may not be assigned yet
        # lists, dicts and sets that stand for global ones, or for parts of these, with the whole
        self.constants: dict[Value, object] = {}
        # that stand for objects of the user's own classes, and whether they are read at each call
        self.containers: dict[Value, tuple[Any, bool]] = {}
        self.iterators: set[Value] = set()  # lists that stand for what Python reads once
        self.attributes: dict[tuple[str, str], t.Type] = {}  # of classes, as far as seen assigned

    def stands_for(self, value: Value, obj: Any, *, is_read: bool) -> Value:
        """Return the value, noting that it may be a container of a user's class."""
        kind = cast("type[object]", type(obj))
        is_container = isinstance(obj, _CONTAINERS) and not hasattr(kind, "_fields")
        if is_container and may_change(kind):
            self.containers[value] = (obj, is_read)
        return value

    @property
    def frame(self) -> Frame:
        """The innermost function."""
        return self.frames[-1]

    def expr(self, node: ast.expr) -> Node:
        """Compile an expression. An attribute that may or may not be a method is read now, since it
        may change."""
        found = self.callee(node)
        if isinstance(found, Method) and t.is_dynamic(found.receiver.type):
            return self.as_value(found, node)
        return found

    def callee(self, node: ast.expr) -> Node:
        """Compile an expression that is about to be called."""
        handler = EXPRESSIONS.get(type(node))
        if handler is None:
            raise self.outside(node)
        with self.at(node):
            return handler(self, node)

    def value(self, node: ast.expr) -> Value:
        """Compile an expression to an SSA value."""
        return self.as_value(self.expr(node), node)

    def as_value(self, found: Node, node: ast.AST) -> Value:
        """Return the SSA value of a compiled expression. Raises CompileError for modules, functions
        and other compile-time nodes."""
        if isinstance(found, Value):
            return found
        if type(found) in VALUE_OF:
            return VALUE_OF[type(found)](self, node, found)
        if isinstance(found, Method) and t.is_dynamic(found.receiver.type):
            return self.dynamic("attr.get", [found.receiver], name=found.name)
        if isinstance(found, ITERATORS):
            raise self._iterator_error(found, node)
        raise self.error(node, f"{describe(found)} cannot be used as a value", "a call of it")

    def _iterator_error(self, found: Node, node: ast.AST) -> CompileError:
        name = type(found).__name__.lower()
        for part in ast.walk(node):
            match part:
                case ast.Call(ast.Name(id)) if id == name:
                    place, text = part, ast.unparse(part)
                    break
                case _:
                    pass
        else:
            place, text = node, f"{name}(…)"
        problem = f"{name}() gives an iterator, which cannot be used as a value"
        return self.error(place, problem, f"list({text})")

    def check_no_iterator(self, found: Node, node: ast.AST) -> None:
        """Raises CompileError if Python has an iterator here, where a list would show."""
        if isinstance(found, Value) and found in self.iterators:
            text = f"list({ast.unparse(node)})" if isinstance(node, ast.expr) else "a list"
            raise self.error(node, "an iterator, which can only be read, is used as a value", text)
        if isinstance(found, ITERATORS):
            raise self._iterator_error(found, node)

    def read(self, found: Node, node: ast.AST) -> Value:
        """Return the value of an iterable that is consumed at once: an iterator becomes a list."""
        return (
            self.list_of(found, node)
            if isinstance(found, ITERATORS)
            else (self.as_value(found, node))
        )

    def read_value(self, node: ast.expr) -> Value:
        """Compile an iterable expression that is consumed at once."""
        return self.read(self.expr(node), node)

    def is_iterator(self, found: Node | Poison | None) -> bool:
        """Return whether Python has an iterator here, which can be read only once."""
        return isinstance(found, ITERATORS) or found in self.iterators

    def step(self, node: ast.stmt) -> Step:
        """Return the compilation of one statement, to be passed to `run`."""

        def compile_statement(rest: Sequence[Step]) -> bool:
            handler = STATEMENTS.get(type(node))
            if handler is None:
                raise self.outside(node)
            with self.at(node):
                return bool(handler(self, node, rest))

        return compile_statement

    def steps(self, body: Sequence[ast.stmt]) -> list[Step]:
        """Return the compilation of several statements."""
        return [self.step(s) for s in body]

    @contextmanager
    def at(self, node: ast.AST) -> Generator[None]:
        """A context in which added ops have this node's source location."""
        outer = self.builder.loc
        if hasattr(node, "lineno"):
            self.builder.loc = replace(self.frame.source.loc(node), caller=self.frame.caller)
        try:
            yield
        finally:
            self.builder.loc = outer

    @contextmanager
    def in_loop(self) -> Generator[None]:
        """A context for code that runs several times."""
        outer = self.loop_start
        self.loop_start = len(self.assumed.log) if outer is None else outer
        try:
            yield
        finally:
            self.loop_start = outer

    def outside(self, node: ast.AST) -> CompileError:
        """Return the error for syntax that is not compiled."""
        unknown = (f"`{ast.unparse(node)[:40]}` is not compiled", "")
        return self.error(node, *OUTSIDE.get(type(node), unknown))

    def error(self, node: ast.AST, problem: str, remedy: str = "") -> CompileError:
        """Return an error at this node, to be raised."""
        return CompileError(problem, self.frame.source.loc(node), remedy)

    def py(self, node: ast.AST, name: str, *operands: Value) -> Value:
        """Return the result of an op on Python values. If the operands' types do not fit, raises
        CompileError, or, in code that may not run, adds an op that raises Python's error."""
        found = self.builder.py(name, *operands)
        if found is None and self.may_be_skipped:
            found = self.builder.py(name, *map(self.unknown, operands))
        if found is None:
            types = ", ".join(str(o.type) for o in operands)
            problem = f"{name.partition('.')[2]} does not take ({types})"
            raise self.error(node, problem, fitting(name, [o.type for o in operands]))
        return found

    @property
    def may_be_skipped(self) -> bool:
        """Return whether this is in a branch or a loop, which may not run."""
        blocks = (frame.block for frame in self.frames if frame.block is not None)
        return self.builder.block is not next(blocks, self.builder.block)

    def unknown(self, value: Value) -> Value:
        """Return the value cast to an unknown type."""
        return self.builder.emit("cast", [value], [t.ANY]).result

    def by_getattr(self, base: Value, name: str) -> Value:
        """Return `base.name`, read by Python at run time."""
        operands, target = [base, self.const(name)], python_objects.name_of(getattr)
        return self.builder.emit("py.call", operands, [t.ANY], target=target, kwnames=()).result

    def const(self, value: object) -> Value:
        """Return a constant."""
        return self.builder.const(value)

    def constant(self, node: Node) -> object:
        """Return the Python value of a compiled expression if it is known, else UNKNOWN."""
        return self.builder.constant(node) if isinstance(node, Value) else UNKNOWN

    def not_none(self, value: Value) -> Value:
        """Return the value. If it is None where None is an error, its type is made unknown, so that
        Python's own error is raised at run time."""
        if value.type != t.NONE:
            return value
        return self.builder.emit("cast", [value], [t.ANY]).result

    def truth(self, value: Value) -> Value:
        """Return `bool(value)`; for a tensor it is computed at run time."""
        known = self.builder.constant(value)
        if known is not UNKNOWN:
            return self.const(bool(known))
        if isinstance(value.type, t.TupleType):
            return self.const(len(value.type.elems) > 0)
        found = self.builder.py("py.bool", value)
        assert found is not None
        return found

    def get(self, name: str) -> Node | Poison | None:
        """Return a variable of the innermost function."""
        return self.frame.vars.get(name)

    def bind(self, name: str, value: Node) -> None:
        """Assign a variable."""
        if isinstance(value, Value) and not value.name and not name.startswith("$"):
            value.name = name
        self.frame.vars[name] = value

    def effect(self, name: str, /, *operands: Value, **attrs: Any) -> None:
        """Add an op that changes its first operand and has no useful result."""
        results = [] if name == "attr.set" else [t.NONE]
        self.builder.emit(name, operands, results, **attrs)

    def dynamic(self, name: str, operands: Sequence[Value], /, **attrs: Any) -> Value:
        """Return the result of an op whose result type is unknown."""
        return self.builder.emit(name, operands, [t.ANY], **attrs).result

    # What is compiled by a module that this one's other users import.

    def inline(
        self,
        fn: FunctionType,
        node: ast.AST,
        args: Sequence[Node],
        keywords: Mapping[str, Node] | None = None,
        *,
        unpacked: bool = False,
        owner: int = 0,
    ) -> Node:
        """Inline the body of a Python function; return its result. `owner`: the id of the module
        whose method it is."""
        return LINKS["inline"](self, fn, node, args, keywords, unpacked=unpacked, owner=owner)

    def call_function(
        self,
        node: ast.Call,
        callee: Node,
        args: Sequence[Node],
        keywords: Mapping[str, Node] | None = None,
    ) -> Node:
        """Compile a call made by a builtin such as `map` or `sorted`."""
        return LINKS["call_function"](self, node, callee, args, keywords)

    def python_object(self, node: ast.AST, obj: object, path: str = "") -> Node:
        """Return the node for an outside Python object: a constant, or an object to call."""
        return LINKS["python_object"](self, node, obj, path)

    def list_of(self, found: Node, node: ast.AST) -> Value:
        """Return a new list of the elements of an iterable."""
        return LINKS["list_of"](self, found, node)

    def sorted_by(self, node: ast.Call, xs: Value, keywords: Mapping[str, Node]) -> Value:
        """Return a sorted copy of a list, by the keys of a function if one is given."""
        return LINKS["sorted_by"](self, node, xs, keywords)


LINKS: dict[str, Callable[..., Any]] = {}

Handler = TypeVar("Handler", bound=Callable[..., Any])

EXPRESSIONS: dict[type[ast.expr], Callable[[Context, Any], Node]] = {}
STATEMENTS: dict[type[ast.stmt], Callable[[Context, Any, Sequence[Step]], bool | None]] = {}


def link(function: Handler) -> Handler:
    """Make the decorated function the implementation of the Context method of that name."""
    LINKS[function.__name__] = function
    return function


def expression(*kinds: type[ast.expr]) -> Callable[[Handler], Handler]:
    """Register the decorated function as the compiler of these expressions."""

    def add(handler: Handler) -> Handler:
        EXPRESSIONS.update(dict.fromkeys(kinds, handler))
        return handler

    return add


def statement(*kinds: type[ast.stmt]) -> Callable[[Handler], Handler]:
    """Register the decorated function as the compiler of these statements."""

    def add(handler: Handler) -> Handler:
        STATEMENTS.update(dict.fromkeys(kinds, handler))
        return handler

    return add
