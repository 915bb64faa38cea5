"""Checks a function of an archive's code, and rewrites what `frontend.script` has another word for.

In: the AST of a `def`, and a `Names` that says what dotted names mean. Out: the AST of a `def` in
the language of `lt.script`, whose outer names `Names` has bound.

    torch.add(x, CONSTANTS.c0)           →  the same, with one name for each: `torch.add`
    annotate(List[int], [])              →  the type is an outer name, too
    ops.prim.RaiseException(m, "b.E")    →  raise E(m)
    p = C.__new__(C); _0 = (p).__init__(3, )   →  p = C(3)
    def f(dtype: int):                   →  begins with `dtype = as_given(int, dtype)`
    return self.rows                     →  return as_returned(self.rows)
    _1 = no_grad(); with _1:             →  with no_grad():

Invariant: a checked function has no syntax, no attribute and no outer name that is not listed here.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeVar

from lowtide.errors import LoadError

_ROOTS: Final = frozenset({"torch", "ops", "CONSTANTS", "__torch__"})
_TYPED: Final = frozenset({"annotate", "unchecked_cast", "uninitialized", "isinstance"})
_STATEMENTS: Final = (
    *(ast.FunctionDef, ast.Return, ast.Assign, ast.AugAssign, ast.Expr, ast.Pass, ast.If),
    *(ast.For, ast.While, ast.With, ast.Delete),
)
_EXPRESSIONS: Final = (
    *(ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Call, ast.Attribute),
    *(ast.Subscript, ast.UnaryOp, ast.BinOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Starred),
    *(ast.Slice, ast.keyword, ast.Load, ast.Store, ast.Del, ast.arguments, ast.arg),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.withitem, ast.ListComp),
    *(ast.comprehension, ast.JoinedStr, ast.FormattedValue),
)
SPECIAL: Final = frozenset(f"__{name}__" for name in (
    *("init", "len", "getitem", "setitem", "delitem", "contains", "call", "iter", "str", "repr"),
    *("bool", "int", "float", "hash", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("matmul", "neg", "pos", "invert", "and", "or", "xor", "lshift", "rshift", "iadd", "isub"),
    *("imul", "itruediv", "lt", "le", "gt", "ge", "eq", "ne", "enter", "exit"),
    *("radd", "rsub", "rmul", "rtruediv", "abs", "next", "setstate", "getstate"),
))  # fmt: skip
_RAISE: Final = "ops.prim.RaiseException"
_ASSERTION: Final = "AssertionError: "


class Item(ast.Subscript):
    """`x[i]` of TorchScript, where an item of a string is a byte."""


Item.__name__ = "Subscript"  # by which `ast.unparse` knows it


class Names(Protocol):
    """The meaning of an archive's names."""

    def bind(self, path: str, node: ast.AST) -> str:
        """Bind a dotted name as an outer name, which is returned. Raises LoadError."""
        ...

    def bind_type(self, node: ast.expr) -> str:
        """Bind a type. Raises LoadError."""
        ...

    def bind_exception(self, path: str) -> str:
        """Bind a class of exceptions: Python's of this name, else RuntimeError."""
        ...

    def is_converted(self, node: ast.expr) -> bool:
        """Return whether an argument of this type may be given in another form. Raises
        LoadError."""
        ...

    def is_bound(self, name: str) -> bool:
        """Return whether it is an outer name of the language, or one that was bound."""
        ...

    def error(self, node: ast.AST, problem: str) -> LoadError:
        """Return an error at this place of the archive."""
        ...


def rewritten(node: ast.FunctionDef, names: Names) -> ast.FunctionDef:
    """Return the function, whose AST is used up; see the module's text. Raises LoadError."""
    rewriter = _Rewriter(names)
    made = rewriter.function(node)
    for name in rewriter.loaded:
        if name.id not in rewriter.local and not names.is_bound(name.id):
            raise names.error(name, f"the name {name.id!r}, which the language lacks")
    return made


class _Rewriter(ast.NodeTransformer):
    def __init__(self, names: Names) -> None:
        self.names = names
        self.loaded: list[ast.Name] = []
        self.local: set[str] = set()
        self.texts: dict[str, str] = {}  # variable → its text
        self.managers: dict[str, ast.expr] = {}  # variable → what made it, for `with`

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Return the function without annotations and defaults, which the caller reads."""
        given = node.args
        self.local |= {node.name, *(a.arg for a in (*given.args, *given.kwonlyargs))}
        first: list[ast.stmt] = []
        for arg in (*given.args, *given.kwonlyargs):
            if arg.annotation is not None and arg.arg != "self":
                first += self._converted(arg, arg.annotation)
            arg.annotation = None
        nothing: list[ast.expr | None] = [None for _ in given.kwonlyargs]
        args = ast.arguments([], given.args, None, given.kwonlyargs, nothing, None, [])
        if node.args.vararg or node.args.kwarg or node.decorator_list:
            raise self.names.error(node, "a function with `*`, `**` or a decorator")
        made = ast.FunctionDef(node.name, args, [*first, *self.block(node.body)], [], None)
        return ast.copy_location(made, node)

    def _converted(self, arg: ast.arg, annotation: ast.expr) -> list[ast.stmt]:
        if not self.names.is_converted(annotation):
            return []
        value = ast.Call(
            ast.Name("as_given", ast.Load()),
            [self._type(annotation), ast.Name(arg.arg, ast.Load())],
            [],
        )
        return [_placed(ast.Assign([ast.Name(arg.arg, ast.Store())], value), arg)]

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements, pairs of `__new__` and `__init__` as one."""
        found: list[ast.stmt] = []
        k = 0
        while k < len(body):
            pair = _construction(body[k : k + 2])
            if pair is None:
                made = self.visit(body[k])
                found += made if isinstance(made, list) else [made]
            else:
                made = self.visit(_placed(pair, body[k]))
                self.managers[ast.unparse(pair.targets[0])] = made.value
                found.append(made)
                k += 1
            k += 1
        return found or [ast.Pass()]

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Load):
            self.loaded.append(node)
        else:
            self.local.add(node.id)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, _STATEMENTS + _EXPRESSIONS):
            raise self.names.error(node, f"a {type(node).__name__}, which the language lacks")
        return super().generic_visit(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        raise self.names.error(node, "a module in a function")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self.function(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """`x : T = v` is `x = annotate(T, v)`."""
        if node.value is None or not node.simple:
            raise self.names.error(node, "a variable that is declared without a value")
        func = ast.Name("annotate", ast.Load())
        call = ast.Call(func, [self._type(node.annotation), self.visit(node.value)], [])
        return _placed(ast.Assign([self.visit(node.target)], call), node)

    def visit_If(self, node: ast.If) -> ast.AST:
        made = ast.If(self.visit(node.test), self.block(node.body), self.block(node.orelse))
        return ast.copy_location(made, node)

    def visit_For(self, node: ast.For) -> ast.AST:
        target, iterable = self.visit(node.target), self.visit(node.iter)
        return ast.copy_location(ast.For(target, iterable, self.block(node.body), []), node)

    def visit_While(self, node: ast.While) -> ast.AST:
        made = ast.While(self.visit(node.test), self.block(node.body), [])
        return ast.copy_location(made, node)

    def visit_With(self, node: ast.With) -> ast.AST:
        items: list[ast.withitem] = []
        for item in node.items:
            made = self.managers.get(ast.unparse(item.context_expr))
            target = None if item.optional_vars is None else self.visit(item.optional_vars)
            items.append(ast.withitem(made or self.visit(item.context_expr), target))
        return ast.copy_location(ast.With(items, self.block(node.body)), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        match node.value:
            case ast.Call(func, args) if ast.unparse(func) == _RAISE:
                return _placed(self._raise(args), node)
            case _:
                return ast.copy_location(ast.Expr(self.visit(node.value)), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        match node:
            case ast.Assign([ast.Name(name)], ast.Constant(str(text))):
                self.texts[name] = text
            case _:
                pass
        return super().generic_visit(node)

    def _raise(self, args: list[ast.expr]) -> ast.Raise:
        """An assertion has a message that says so; another class than Python's stands before it."""
        message = self._text(args[0]) if args else ast.Constant("")
        named = self._text(args[1]) if len(args) > 1 else ast.Constant("")
        path = named.value if isinstance(named, ast.Constant) else ""
        match message:
            case ast.Constant(str(text)) if not path and text.startswith(_ASSERTION):
                path, message = "builtins.AssertionError", ast.Constant(text[len(_ASSERTION) :])
            case ast.Call(func, [first, rest]) if not path and ast.unparse(func) == "torch.add":
                match self._text(first):
                    case ast.Constant(str(text)) if text == _ASSERTION:
                        path, message = "builtins.AssertionError", rest
                    case _:
                        pass
            case _:
                pass
        message = self.visit(message)
        if path and not str(path).startswith("builtins."):
            message = ast.BinOp(ast.Constant(f"{path}: "), ast.Add(), message)
        cls = self.names.bind_exception(str(path))
        return ast.Raise(ast.Call(ast.Name(cls, ast.Load()), [message], []), None)

    def _text(self, node: ast.expr) -> ast.expr:
        """Return the constant of a variable that holds a text."""
        if isinstance(node, ast.Name) and node.id in self.texts:
            return ast.Constant(self.texts[node.id])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(ast.Name("getattr" | "setattr"), [_, ast.Constant(str(name)), *_]):
                self._check_member(node, name)
            case ast.Call(ast.Name("getattr" | "setattr")):
                raise self.names.error(node, "an attribute whose name is computed")
            case _:
                pass
        if isinstance(node.func, ast.Name) and node.func.id in _TYPED and node.args:
            at = 1 if node.func.id == "isinstance" else 0
            for k, arg in enumerate(node.args):
                node.args[k] = self._type(arg) if k == at else self.visit(arg)
            return ast.copy_location(ast.Call(self.visit(node.func), node.args, []), node)
        return super().generic_visit(node)

    def _type(self, node: ast.expr) -> ast.expr:
        return ast.copy_location(ast.Name(self.names.bind_type(node), ast.Load()), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        made = super().generic_visit(node)
        if not isinstance(node.ctx, ast.Load) or isinstance(node.slice, ast.Slice | ast.Tuple):
            return made
        return ast.copy_location(Item(node.value, node.slice, node.ctx), node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        value = ast.Constant(None) if node.value is None else self.visit(node.value)
        call = ast.Call(ast.Name("as_returned", ast.Load()), [value], [])
        return _placed(ast.Return(call), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        path = _dotted(node)
        if path is not None and path.partition(".")[0] in _ROOTS:
            return ast.copy_location(ast.Name(self.names.bind(path, node), ast.Load()), node)
        self._check_member(node, node.attr)
        return super().generic_visit(node)

    def _check_member(self, node: ast.AST, name: str) -> None:
        if name.startswith("__") and name.endswith("__") and name not in SPECIAL:
            raise self.names.error(node, f"the attribute {name!r}")


def around(
    methods: Mapping[str, ast.FunctionDef], pre_hooks: Sequence[str], hooks: Sequence[str]
) -> ast.FunctionDef:
    """Return the method `__call__` of a class: its hooks, and between them `forward`."""
    forward = methods["forward"]
    names = [a.arg for a in forward.args.args[1:]]
    given, result = ast.Tuple([], ast.Load()), "the result"
    given.elts = [ast.Name(n, ast.Load()) for n in names]
    body: list[ast.stmt] = []

    def called(name: str, *args: ast.expr) -> ast.Call:
        return ast.Call(ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load()), [*args], [])

    for name in pre_hooks:
        call = called(name, given)
        returned = methods[name].returns
        if _is_none(returned):
            body.append(ast.Expr(call))
            continue
        is_tuple = returned is not None and ast.unparse(returned).startswith("Tuple")
        stored: list[ast.expr] = [ast.Name(n, ast.Store()) for n in names]
        target = ast.Tuple(stored, ast.Store()) if is_tuple else stored[0]
        body.append(ast.Assign([target], call))
    body.append(ast.Assign([ast.Name(result, ast.Store())], called("forward", *given.elts)))
    for name in hooks:
        call = called(name, given, ast.Name(result, ast.Load()))
        kept = _is_none(methods[name].returns)
        body.append(ast.Expr(call) if kept else ast.Assign([ast.Name(result, ast.Store())], call))
    body.append(ast.Return(ast.Name(result, ast.Load())))
    last = methods[hooks[-1]].returns if hooks else None
    returns = forward.returns if last is None or _is_none(last) else last
    made = ast.FunctionDef("__call__", forward.args, body, [], returns)
    return copy.deepcopy(_placed(made, forward))


def _is_none(returned: ast.expr | None) -> bool:
    return returned is None or ast.unparse(returned) in ("None", "NoneType")


_Made = TypeVar("_Made", bound=ast.AST)


def _placed(made: _Made, node: ast.AST) -> _Made:
    """Return the new node, which stands where the old one stood."""
    return ast.fix_missing_locations(ast.copy_location(made, node))


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _construction(pair: list[ast.stmt]) -> ast.Assign | None:
    """Return `x = C(args)` for `x = C.__new__(C)` and `_0 = (x).__init__(args)`."""
    match pair:
        case [
            ast.Assign([ast.Name(made) as target], ast.Call(ast.Attribute(cls, "__new__"), [_])),
            ast.Assign([_], ast.Call(ast.Attribute(ast.Name(used), "__init__"), args, keywords)),
        ] if made == used:
            return ast.Assign([target], ast.Call(cls, args, keywords))
        case _:
            return None
