"""The classes and functions of an archive, made from its code at their first use.

In: the texts of the archive's `code/` folder, its constants. Out: Python classes and functions.

    code.find("__torch__.net.Net")   →  a class derived from nn.Module, with the methods' functions

The functions have `__lowtide_source__`, which `frontend.script` compiles, and a code object of
their arguments that calls the compiled function. Python never runs what the archive says.
Invariant: one class for each dotted name; outer names of functions are in one dict, by dotted name.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final, cast

import torch

from lowtide.errors import LoadError, Loc
from lowtide.frontend.script import decorators, language
from lowtide.frontend.script.source import SOURCE, FunctionSource
from lowtide.frontend.torchscript import functions, operators
from lowtide.frontend.torchscript.annotations import Unknown, annotation
from lowtide.frontend.torchscript.language import SPECIAL, around, rewritten

MODULE: Final = "lowtide.loaded"  # the `__module__` of all that is made
_OUTER: Final[dict[str, object]] = {
    **{f.__name__: f for f in (range, int, float, bool, complex, getattr, setattr)},
    **{f.__name__: f for f in (len, isinstance, list, tuple, dict, sorted)},
    "print": operators.printed,
    "str": operators.shown,
    "fork": language.fork,
    "wait": language.wait,
    "annotate": operators.annotate,
    "unchecked_cast": operators.unchecked_cast,
    "uninitialized": operators.uninitialized,
    "as_given": operators.as_given,
    "as_returned": operators.as_returned,
    "inf": math.inf,
    "nan": math.nan,
    "infj": complex(0, math.inf),
    "nanj": complex(0, math.nan),
    "torch.device": torch.device,
    "torch.inf": math.inf,
    "torch.nan": math.nan,
}
# Classes of PyTorch whose code is in archives; Lowtide compiles these Python objects.
_KNOWN: Final[dict[str, object]] = {
    "__torch__.torch.autograd.grad_mode.no_grad": torch.no_grad,
    "__torch__.torch.autograd.grad_mode.enable_grad": torch.enable_grad,
    "__torch__.torch.autograd.grad_mode.set_grad_enabled": torch.set_grad_enabled,
    "__torch__.torch.autograd.grad_mode.inference_mode": torch.inference_mode,
    "__torch__.torch.amp.autocast_mode.autocast": operators.autocast,
    "__torch__.torch.autocast_mode.autocast": operators.autocast,
    "__torch__.torch.autograd.profiler.record_function": torch.profiler.record_function,
}
_LIST: Final = "__torch__.torch.nn.modules.container.ModuleList"  # code indexes it
_MANGLED: Final = re.compile(r"___torch_mangle_\d+\.")
_EXCEPTIONS: Final[dict[str, type[Exception]]] = {
    cls.__name__: cls
    for cls in vars(builtins).values()
    if isinstance(cls, type) and issubclass(cls, Exception)
}
# Types of arguments that a caller may give in another form: a dtype, an int, another enum's member.
# Lists and dicts are copied.
_CONVERTED: Final = ("int", "float", "complex", "Optional[int]", "Optional[float]")
_LITERALS: Final = (int, float, bool, str)
_STORE: Final = re.compile(r"\.(\w+)\s*=(?!=)", re.ASCII)
# Attributes of the Python class that PyTorch before 1.5 wrote into archives; no program reads them.
UNUSED: Final = frozenset({"__constants__", "__overloads__"})
# Attributes that each nn.Module sets in its own __init__.
_KEPT: Final = frozenset(vars(torch.nn.Module())) - {"training", "_is_full_backward_hook"}
_INTERFACES: Final = ("Interface", "ModuleInterface")

Error = Callable[[ast.AST, str, str], LoadError]


@dataclass(frozen=True, slots=True)
class ModuleClass:
    """The facts about a class of modules in the code, besides its methods."""

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    constants: Mapping[str, object]


def outer_names(call: Callable[..., object]) -> dict[str, object]:
    """Return the outer names of an archive. `call`: a function of it and arguments → the result of
    the compiled function."""
    return {**_OUTER, functions.CALL: call}


@dataclass(slots=True)
class Code:
    """See the module's text. `version`: of the file's format, by which operators may differ."""

    name: str
    files: Mapping[str, str]
    constants: list[object]
    version: int
    authors: Callable[[str, int], Loc | None]  # a file and an offset there → the author's line
    outer: dict[str, object]
    infos: dict[str, ModuleClass] = field(default_factory=dict[str, ModuleClass])
    _making: set[str] = field(default_factory=set[str])
    _found: dict[str, object] = field(default_factory=dict[str, object])
    _trees: dict[str, dict[str, ast.stmt]] = field(default_factory=dict[str, dict[str, ast.stmt]])
    assigned: frozenset[str] | None = None
    missing: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def find(self, path: str, node: ast.AST | None = None, within: str = "") -> Any:
        """Return the class or function of a dotted name. Raises LoadError."""
        known = _KNOWN.get(_MANGLED.sub("", path))
        if known is not None:
            return known
        if path in self._found:
            return self._found[path]
        owner, _, name = path.rpartition(".")
        file = f"{owner.replace('.', '/')}.py"
        found = self._definitions(file).get(name)
        if found is None:
            problem = f"{path}, which the archive's code does not define"
            raise self.error(within or file, node, problem)
        if isinstance(found, ast.FunctionDef):
            if path in self._making:
                raise self.error(within or file, node or found, f"{path}, which calls itself")
            self._making.add(path)
            made: object = self._function(file, found, path)
            self._making.discard(path)
            self._found[path] = made
            return made
        assert isinstance(found, ast.ClassDef)
        return self._class(file, found, path)

    def defines(self, path: str) -> bool:
        """Return whether the code has a class or a function of this dotted name."""
        owner, _, name = path.rpartition(".")
        is_known = _MANGLED.sub("", path) in _KNOWN
        return is_known or name in self._definitions(f"{owner.replace('.', '/')}.py")

    def _definitions(self, file: str) -> dict[str, ast.stmt]:
        known = self._trees.get(file)
        if known is None:
            text = self.files.get(file, "")
            try:
                tree = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise LoadError(f"{self._shown(file)}: {error}") from error
            rows = (n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef))
            known = self._trees[file] = {n.name: n for n in rows}
        return known

    def _shown(self, file: str) -> str:
        return f"{self.name}:code/{file}"

    def error(self, file: str, node: ast.AST | None, problem: str) -> LoadError:
        """Return an error at a place of the archive's code."""
        line: int = getattr(node, "lineno", 0)
        lines = self.files.get(file, "").splitlines()
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        place = f"{self._shown(file)}:{line}" if line else self._shown(file)
        author = self.author(file, line, getattr(node, "col_offset", 0)) if line else None
        written = f"; written as {author}: {author.text.strip()}" if author is not None else ""
        return LoadError(f"{place}: {problem}" + (f": {text}" if text else "") + written)

    def author(self, file: str, line: int, byte: int) -> Loc | None:
        """Return the author's place for one in the archive's code; None where it is not known."""
        before = self.files[file].splitlines(keepends=True)[: line - 1]
        return self.authors(file, sum(len(text.encode()) for text in before) + byte)

    # ---- functions ----------------------------------------------------------------------------

    def _function(self, file: str, node: ast.FunctionDef, path: str) -> FunctionType:
        hints = self._hints(file, node)
        defaults = self._defaults(file, node)
        text = self.files[file].splitlines(keepends=True)
        plain = rewritten(node, _NamesOf(self, file))
        source = FunctionSource(
            node=plain,
            file=self._shown(file),
            lines=tuple(text),
            first_line=1,
            line_shift=0,
            origin=functools.partial(self.author, file),
        )
        made = functions.made(plain, path, self.outer, source.file, defaults)
        made.__module__, made.__qualname__ = MODULE, path.removeprefix("__torch__.")
        made.__annotations__ = hints
        setattr(made, SOURCE, source)
        return made

    def _hints(self, file: str, node: ast.FunctionDef) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for arg in (*node.args.args, *node.args.kwonlyargs):
            if arg.annotation is not None and arg.arg != "self":
                hint = self.hint(file, arg.annotation)
                found |= {} if hint is None else {arg.arg: hint}
        returned = None if node.returns is None else self.hint(file, node.returns)
        return found if returned is None else found | {"return": returned}

    def hint(self, file: str, node: ast.expr) -> Any:
        """Return the annotation for a type; None for a module. Raises LoadError."""
        try:
            return annotation(node, lambda path, at: self._type_named(path, at, file))
        except Unknown as error:
            raise self.error(file, node, f"the type {error}, which the language lacks") from error

    def _type_named(self, path: str, node: ast.AST, file: str) -> Any:
        if path.startswith("__torch__.torch.classes."):
            self.missing.setdefault(path, []).append(str(self.error(file, node, path)))
            return typing.Any
        found: object = self.find(path, node, file)
        if isinstance(found, type) and issubclass(found, torch.nn.Module):
            return None
        return None if found in _INTERFACES else cast("Any", found)

    def _defaults(self, file: str, node: ast.FunctionDef) -> tuple[object, ...]:
        return tuple(self.literal(file, d) for d in node.args.defaults)

    def literal(self, file: str, node: ast.expr) -> object:
        """Return the value of a default or a constant. Raises LoadError."""
        match node:
            case ast.Name("inf" | "nan" as name):
                return _OUTER[name]
            case ast.UnaryOp(ast.USub(), operand):
                return -cast("Any", self.literal(file, operand))
            case ast.List(elts):
                return [self.literal(file, e) for e in elts]
            case ast.Tuple(elts):
                return tuple(self.literal(file, e) for e in elts)
            case ast.Call(ast.Name("annotate"), [_, value]):
                return self.literal(file, value)
            case ast.Call(ast.Attribute(ast.Name("torch"), "device"), [ast.Constant(str(name))]):
                return torch.device(name)
            case ast.Attribute(ast.Name("CONSTANTS"), name):
                return self.constant(file, node, name)
            case ast.Attribute():
                cls, _, member = ast.unparse(node).rpartition(".")
                found = self.find(cls, node, file)
                if isinstance(found, enum.EnumMeta) and member in found.__members__:
                    return found.__members__[member]
            case _:
                pass
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError) as error:
            raise self.error(file, node, f"`{ast.unparse(node)[:80]}` as a constant") from error

    def constant(self, file: str, node: ast.AST, name: str) -> object:
        """Return the value of `CONSTANTS.c0`. Raises LoadError."""
        number = int(name[1:]) if name[1:].isdigit() else len(self.constants)
        if not name.startswith("c") or number >= len(self.constants):
            raise self.error(file, node, f"the constant {name}, which the archive lacks")
        return self.constants[number]

    # ---- classes ------------------------------------------------------------------------------

    def _class(self, file: str, node: ast.ClassDef, path: str) -> Any:
        base = node.bases[0].id if node.bases and isinstance(node.bases[0], ast.Name) else ""
        if base in _INTERFACES:
            made: Any = base
        elif base == "NamedTuple":
            made = self._named_tuple(file, node)
        elif base == "Enum":
            made = self._enum(file, node)
        elif base in ("Module", ""):
            return self._plain_class(file, node, path, is_module=base == "Module")
        else:
            raise self.error(file, node, f"a class derived from {base}")
        self._found[path] = made
        return made

    def _assigned(self) -> frozenset[str]:
        """Return the names of attributes that some function of the archive assigns. All other
        attributes are constants of a program, and each call checks them."""
        if self.assigned is None:
            found = (name for text in self.files.values() for name in _STORE.findall(text))
            self.assigned = frozenset(found)
        return self.assigned

    def _named_tuple(self, file: str, node: ast.ClassDef) -> type:
        rows: list[tuple[str, Any]] = []
        defaults: dict[str, object] = {}
        for part in node.body:
            match part:
                case ast.AnnAssign(ast.Name(name), type_, value):
                    rows.append((name, self.hint(file, type_) or typing.Any))
                    defaults |= {} if value is None else {name: self.literal(file, value)}
                case ast.Pass():
                    pass
                case _:
                    raise self.error(file, part, "this in a named tuple")
        made: Any = typing.NamedTuple(node.name, rows)  # pyright: ignore
        made.__new__.__defaults__ = tuple(defaults.values())
        made._field_defaults = defaults
        made.__module__ = MODULE
        return made

    def _enum(self, file: str, node: ast.ClassDef) -> type:
        rows: list[tuple[str, object]] = []
        for part in node.body:
            match part:
                case ast.Assign([ast.Name(name)], value) if not name.startswith("_"):
                    rows.append((name, self.literal(file, value)))
                case _:
                    raise self.error(file, part, "this in an enum")
        made: Any = enum.Enum(node.name, rows, module=MODULE)  # pyright: ignore
        return made

    def _plain_class(self, file: str, node: ast.ClassDef, path: str, *, is_module: bool) -> type:
        own = {"__module__": MODULE, "__qualname__": node.name}
        made: Any = type(node.name, (_base(path),) if is_module else (), own)
        self._found[path] = made  # before its methods, whose types may name it
        methods: dict[str, ast.FunctionDef] = {}
        lists: dict[str, tuple[str, ...]] = {}
        constants: dict[str, object] = {}
        hints: dict[str, Any] = {}
        for part in node.body:
            match part:
                case ast.FunctionDef(name) if name not in methods:
                    methods[name] = part
                case ast.Assign([ast.Name(name)], value) if name.startswith("__"):
                    found = self.literal(file, value)
                    lists[name] = tuple(map(str, cast("list[object]", found)))
                case ast.Assign([ast.Subscript(_, ast.Constant(str(name)))], type_):
                    hints[name] = self.hint(file, type_)
                case ast.AnnAssign(ast.Name(name)) if name in UNUSED:
                    pass
                case ast.AnnAssign(ast.Name(name), type_, value):
                    hints[name] = self.hint(file, type_)
                    if value is not None:
                        constants[name] = self.literal(file, value)
                case ast.Pass():
                    pass
                case _:
                    raise self.error(file, part, "this in a class")
        for name in (*hints, *methods):
            is_own = name in _KEPT or (name[:2] == name[-2:] == "__" and name not in SPECIAL)
            if is_own or (name in hints and name in methods):
                raise self.error(file, node, f"a class with a member {name!r}")
        made.__annotations__ = {k: v for k, v in hints.items() if v is not None}
        made.__constants__ = [
            k for k, v in hints.items() if v in _LITERALS and k not in self._assigned()
        ]
        pre_hooks = lists.get("__forward_pre_hooks__", ())
        hooks = lists.get("__forward_hooks__", ())
        if is_module and (pre_hooks or hooks):
            methods["__call__"] = self._with_hooks(file, node, methods, pre_hooks, hooks)
        for name, method in methods.items():
            setattr(made, name, self._method(file, method, path, is_module))
        if is_module:
            self.infos[path] = ModuleClass(
                lists.get("__parameters__", ()), lists.get("__buffers__", ()), constants
            )
        return made

    def _with_hooks(
        self,
        file: str,
        node: ast.ClassDef,
        methods: Mapping[str, ast.FunctionDef],
        pre_hooks: Sequence[str],
        hooks: Sequence[str],
    ) -> ast.FunctionDef:
        """Return `__call__`, which calls the hooks before and after `forward`."""
        for name in ("forward", *pre_hooks, *hooks):
            if name not in methods:
                raise self.error(file, node, f"a class with hooks and without {name!r}")
        return around(methods, pre_hooks, hooks)

    def _method(self, file: str, node: ast.FunctionDef, path: str, is_module: bool) -> Any:
        first = node.args.args[0] if node.args.args else None
        receiver = first.annotation if first is not None else None
        has_self = receiver is not None and ast.unparse(receiver) == path
        made = self._function(file, node, f"{path}.{node.name}")
        if not has_self:
            return staticmethod(made)
        if is_module and node.name != "forward" and not node.name.startswith("__"):
            decorators.export(made)
        return made


def _base(path: str) -> type[torch.nn.Module]:
    """Return what a class of modules derives from: a list of modules has items."""
    return torch.nn.ModuleList if _MANGLED.sub("", path) == _LIST else torch.nn.Module


@dataclass(frozen=True, slots=True)
class _NamesOf:
    """Names in one file of the code; see `language.Names`."""

    code: Code
    file: str

    def bind(self, path: str, node: ast.AST) -> str:
        outer = self.code.outer
        name = path.replace(".", "_") if path.startswith("CONSTANTS.") else path  # it is captured
        if name not in outer:
            outer[name] = self._meaning(path, node)
        return name

    def _meaning(self, path: str, node: ast.AST) -> object:
        root, _, rest = path.partition(".")
        if root == "CONSTANTS":
            return self.code.constant(self.file, node, rest)
        if root == "__torch__":
            return self._own(path, node)
        found = operators.operator(path, self.code.version)
        if found is None:
            rows = self.code.missing.setdefault(path, [])
            rows.append(str(self.error(node, path)))
            return operators.missing(path)
        return found

    def _own(self, path: str, node: ast.AST) -> object:
        owner, _, name = path.rpartition(".")
        if self.code.defines(path) or not self.code.defines(owner):
            return self.code.find(path, node, self.file)
        found = self.code.find(owner, node, self.file)
        if isinstance(found, enum.EnumMeta) and name in found.__members__:
            return found.__members__[name]
        member = vars(found).get(name) if isinstance(found, type) else None
        if isinstance(member, staticmethod):
            return cast("Any", member).__func__
        raise self.error(node, f"{path}, which the archive's code does not define")

    def bind_type(self, node: ast.expr) -> str:
        name = f"type {ast.unparse(node)}"
        if name not in self.code.outer:
            parts = node.elts if isinstance(node, ast.List | ast.Tuple) else None
            hint = self.code.hint
            if parts is None:
                self.code.outer[name] = hint(self.file, node)
            else:
                self.code.outer[name] = tuple(hint(self.file, p) for p in parts)
        return name

    def bind_exception(self, path: str) -> str:
        root, _, name = path.partition(".")
        cls = _EXCEPTIONS.get(name, RuntimeError) if root == "builtins" else RuntimeError
        name = f"exception {cls.__name__}"
        self.code.outer[name] = cls
        return name

    def is_converted(self, node: ast.expr) -> bool:
        text = ast.unparse(node)
        if text in _CONVERTED or "List[" in text or "Dict[" in text:
            return True
        if "__torch__" not in text:
            return False
        parts = (n for n in ast.walk(node) if isinstance(n, ast.Attribute))
        paths = (p for p in map(ast.unparse, parts) if self.code.defines(p))
        return any(isinstance(self.code.find(p, node, self.file), enum.EnumMeta) for p in paths)

    def is_bound(self, name: str) -> bool:
        return name in self.code.outer

    def error(self, node: ast.AST, problem: str) -> LoadError:
        return self.code.error(self.file, node, problem)


__all__ = ["MODULE", "Code", "ModuleClass", "outer_names"]
